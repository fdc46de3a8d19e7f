//! All that can be proposed to the quorum, each with its fences, and what comes back.
//!
//! Commands are persisted (in raft entries): fields are only ever added with a new rule version (D14).
//! `decide` sees image and command only, so times, random ids and defaults of a node's configuration are spelled out here.

use std::collections::BTreeMap;

use highwater_wire::{
    BrokerEpoch, BrokerId, DirectoryId, IncarnationId, LeaderEpoch, Offset, PartitionEpoch, ProducerId, Timestamp,
    TopicId, TopicPartition,
};
use serde::{Deserialize, Serialize};

use crate::image::{
    BrokerState, Endpoint, Evidence, ExpandReason, Inherited, LastReport, LeaderRecovery, ShrinkReason,
};

/// A proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// The first entry of a cluster, proposed by the node that formed it.
    FormCluster {
        cluster_id: String,
        feature_level: u16,
        time: Timestamp,
    },
    RegisterBroker(RegisterBroker),
    /// The broker has recovered its logs, applied its registration and wants in (R173). `lost`: partitions where
    /// recovery found less than it must (D10); the broker leaves their ELR in this entry.
    UnfenceBroker {
        broker: BrokerId,
        epoch: BrokerEpoch,
        lost: Vec<TopicPartition>,
        time: Timestamp,
    },
    /// Takes brokers out of every ISR and leadership: all of them first, then elections (D30). Each is skipped if its
    /// epoch changed. `watermarks`: what its partitions' last leader reported (D12), as rules 1 to 3 knew it.
    FenceBrokers {
        brokers: Vec<FencedBroker>,
        watermarks: Vec<BareWatermark>,
        time: Timestamp,
    },
    /// Controlled shutdown: moves leaders, leaves ISRs, blocks a return under this epoch (R174).
    ShutDownBroker {
        broker: BrokerId,
        epoch: BrokerEpoch,
        time: Timestamp,
    },
    /// Forgets a fenced broker (R176).
    UnregisterBroker {
        broker: BrokerId,
        time: Timestamp,
    },
    CreateTopic(CreateTopic),
    DeleteTopic {
        id: TopicId,
        time: Timestamp,
    },
    AlterPartition(AlterPartition),
    ElectLeaders {
        kind: ElectionKind,
        partitions: Vec<TopicPartition>,
        time: Timestamp,
    },
    AllocateProducerIds {
        broker: BrokerId,
        epoch: BrokerEpoch,
        count: u32,
    },
    /// Raises the level of what may be proposed.
    SetFeatureLevel {
        level: u16,
    },
    /// More partitions for a topic, from rule version 3 on.
    AddPartitions(AddPartitions),
    /// Elections whose leaders somebody chose (rules 3).
    ElectChosen {
        elections: Vec<ChosenElection>,
        time: Timestamp,
    },
    /// Where a controller that is made a voter is reached (D1), whether or not anybody has it configured.
    RegisterController {
        node: BrokerId,
        /// Its metadata directory: another one is another controller.
        directory: DirectoryId,
        endpoint: Endpoint,
        time: Timestamp,
    },
    /// Forgets the address of a controller that left the quorum; skipped if it is there under another directory.
    UnregisterController {
        node: BrokerId,
        directory: DirectoryId,
        time: Timestamp,
    },
    /// Changes the configuration of one topic, one broker or all brokers, as a whole or not at all (R187).
    AlterConfigs(AlterConfigs),
    /// As `CreateTopic`, where the configuration of the proposing node stays told apart from what was asked for: `part`
    /// holds only the latter. The last part's `inherited` counts.
    CreateTopicInheriting {
        part: CreateTopic,
        inherited: BTreeMap<String, Inherited>,
    },
    /// As `FenceBrokers`, with where the logs of the lost leaders began (rules 4): what lay below had been deleted and is no
    /// loss.
    FenceBrokersKnowing {
        brokers: Vec<FencedBroker>,
        watermarks: Vec<KnownWatermark>,
        time: Timestamp,
    },
}

/// R187.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlterConfigs {
    pub resource: ConfigResource,
    /// Keys that are not named go back to their defaults; the operations then only set.
    pub replace: bool,
    /// Each key at most once.
    pub operations: Vec<ConfigOperation>,
    /// What the proposer believes to be set on the resource; anything else refuses the change.
    pub expected: Option<BTreeMap<String, String>>,
    pub time: Timestamp,
}

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConfigResource {
    Topic(TopicId),
    /// All brokers.
    Brokers,
    Broker(BrokerId),
}

/// What happens to one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigOperation {
    pub key: String,
    pub action: ConfigAction,
}

/// The value of a list is separated by commas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigAction {
    Set(String),
    /// Back to the default.
    Delete,
    /// Adds these to a list, where they are not in it.
    Append(String),
    /// Takes these out of a list.
    Subtract(String),
}

/// R166, R169. `previous_epoch`: of the registration that `proof` speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterBroker {
    pub broker: BrokerId,
    pub cluster_id: String,
    pub incarnation: IncarnationId,
    pub listeners: BTreeMap<String, Endpoint>,
    pub inter_broker_listener: String,
    pub controller_url: String,
    pub admin_url: String,
    pub rack: Option<String>,
    pub log_dirs: Vec<DirectoryId>,
    pub metadata_dir: DirectoryId,
    pub features: BTreeMap<String, u16>,
    pub version: String,
    /// What this process can prove about the data its predecessor held.
    pub claim: DataClaim,
    /// Set by the raft leader before it proposes: the registered incarnation is proved dead or its session has ended,
    /// so a conflict (101) is no reason to refuse (D9).
    pub previous_is_dead: bool,
    pub time: Timestamp,
}

/// The evidence a starting broker found in its log directory (D10). `decide` compares it with the last registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataClaim {
    /// A clean-stop marker that names this broker epoch.
    CleanStop { epoch: BrokerEpoch },
    /// A running-marker of this incarnation, same boot, directory and inode.
    SameBoot { incarnation: IncarnationId },
    /// Neither.
    Nothing,
    /// Several processes in a row on the same boot, in the same directory, and perhaps a clean stop before them: some were
    /// killed before they knew whether they had registered. Whichever of them the last registration names, nothing is lost.
    Survivors { incarnations: Vec<IncarnationId>, clean_epoch: Option<BrokerEpoch> },
}

/// One broker to fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencedBroker {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
    /// How it was known: "session of 9000 ms ended", "connection refused twice".
    pub note: String,
}

/// [`KnownWatermark`] as rules 1 to 3 wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BareWatermark {
    pub partition: TopicPartition,
    pub high_watermark: Offset,
    pub reported: Timestamp,
}

impl BareWatermark {
    pub(super) fn report(&self) -> LastReport {
        LastReport { high_watermark: self.high_watermark, reported: self.reported, log_start: Offset::ZERO }
    }
}

/// What a leader last said of a partition's watermark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownWatermark {
    pub partition: TopicPartition,
    pub high_watermark: Offset,
    pub reported: Timestamp,
    /// Where its log began then; heartbeats of older builds do not say it.
    #[serde(default)]
    pub log_start: Offset,
    /// In which it led then; the same.
    #[serde(default)]
    pub leader_epoch: Option<LeaderEpoch>,
}

impl KnownWatermark {
    pub(super) fn report(&self) -> LastReport {
        LastReport { high_watermark: self.high_watermark, reported: self.reported, log_start: self.log_start }
    }
}

/// A topic, or one part of a large one: parts share the id, and the topic becomes visible with the last (D17).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateTopic {
    pub id: TopicId,
    pub name: String,
    /// Topic level keys, Kafka's names, validated by `decide` too. Before rules 3 the proposer added what its own
    /// configuration says otherwise than the built-in default (D14); since then that is `inherited`.
    pub configs: BTreeMap<String, String>,
    /// Number of the first partition in `assignments`.
    pub first_partition: i32,
    /// Replicas of each partition of this part, preferred leader first.
    pub assignments: Vec<Vec<BrokerId>>,
    /// The last part.
    pub complete: bool,
    /// The assignment was given by hand: its faults are 39, and only a part of the replicas need be active (R183).
    pub manual: bool,
    pub time: Timestamp,
}

/// Partitions added to a topic (R186), or one part of many: each part is visible at once (D17).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddPartitions {
    pub topic: TopicId,
    /// Number of the first new partition. The fence: it is the number of partitions the proposer saw.
    pub first_partition: i32,
    /// Replicas of each new partition, preferred leader first; as many as the topic's partitions have.
    pub assignments: Vec<Vec<BrokerId>>,
    /// As in [`CreateTopic`].
    pub manual: bool,
    pub time: Timestamp,
}

/// ISR changes proposed by one leader (R126, KIP-903).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlterPartition {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
    pub changes: Vec<IsrProposal>,
    pub time: Timestamp,
}

/// Largest list of ISR changes in one command, as postcard writes it: well below the 64 KiB of an entry.
const CHANGES_BYTES_MAX: usize = 48 << 10;

impl AlterPartition {
    /// As many of these changes, from the first on, as fit into one command; at least one (D17).
    pub fn fitting<'a>(changes: impl IntoIterator<Item = &'a IsrProposal>) -> Vec<IsrProposal> {
        let mut bytes = 0;
        let mut fitting = Vec::new();
        for change in changes {
            bytes += postcard::to_stdvec(change).map_or(0, |written| written.len());
            if bytes > CHANGES_BYTES_MAX && !fitting.is_empty() {
                break;
            }
            fitting.push(change.clone());
        }
        fitting
    }
}

/// One partition's new ISR. Resent unchanged until answered (D26).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsrProposal {
    pub partition: TopicPartition,
    /// Of the leader that asks; another one is refused.
    pub leader_epoch: LeaderEpoch,
    /// Of the state it was decided on; a newer state refuses it.
    pub partition_epoch: PartitionEpoch,
    /// Members with the broker epochs their fetches carried; the leader with its own.
    pub isr: Vec<(BrokerId, BrokerEpoch)>,
    pub recovery: LeaderRecovery,
    pub why: IsrReason,
    pub evidence: Vec<Evidence>,
}

/// Why a leader asks for another ISR; kept in the history (D26).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IsrReason {
    Shrink(ShrinkReason),
    Expand(ExpandReason),
    /// Nothing but the recovery mark changes.
    Recovered,
}

/// R189–R192.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElectionKind {
    /// Where there is no leader: whoever may lead now.
    Clean,
    /// The first replica of the assignment, if it is in the ISR and active.
    Preferred,
    /// Where there is no leader: as `Clean`, else anybody alive, whatever the topic allows. An operator's word that
    /// acknowledged records may be lost.
    Unclean,
}

/// The leader that somebody wants for one partition (operators.md 1.4 E). Already leading is `ElectionNotNeeded`,
/// whatever the epochs say, so that a repeat does no harm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenElection {
    pub partition: TopicPartition,
    /// An active broker that holds a replica.
    pub leader: BrokerId,
    /// Acknowledged records may be lost: without this word only a member of the ISR, or of the ELR when the ISR is empty,
    /// is elected.
    pub accept_loss: bool,
    /// Elect only in these epochs; `None`: whatever they are.
    pub expected_leader_epoch: Option<LeaderEpoch>,
    pub expected_partition_epoch: Option<PartitionEpoch>,
    /// What a leader that is still there said of its watermark just before an unclean election replaces it.
    #[serde(with = "crate::image::stored_report")]
    pub watermark: Option<LastReport>,
}

/// What an applied command answers. The refusal of one partition or topic travels inside, that of the whole beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Registered {
        epoch: BrokerEpoch,
    },
    BrokerState {
        state: BrokerState,
    },
    Fenced {
        fenced: Vec<BrokerId>,
    },
    TopicCreated {
        id: TopicId,
    },
    /// One result per change, in order.
    PartitionsAltered(Vec<Result<AlteredPartition, super::Refusal>>),
    /// One result per partition, in order: the leader elected.
    LeadersElected(Vec<Result<BrokerId, super::Refusal>>),
    /// The block `[first, first + count)`.
    ProducerIds {
        first: ProducerId,
        count: u32,
    },
}

/// A partition's state after an accepted ISR change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlteredPartition {
    pub partition: TopicPartition,
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub isr: Vec<BrokerId>,
    pub recovery: LeaderRecovery,
    pub partition_epoch: PartitionEpoch,
}
