//! The metadata image: everything the quorum has decided, immutable and shared.
//!
//! `apply(&Change)` is the only way it changes; a publication costs what changed (D16).

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_wire::{BrokerId, Timestamp, TopicId, TopicPartition};
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};

mod apply;
mod broker;
pub mod broker_config;
pub mod diff;
pub mod events;
mod history;
mod state_hash;
mod topic;
pub mod topic_config;

pub use broker::{BrokerRegistration, BrokerState, ControllerRegistration, DataProof, Endpoint, METADATA_FEATURE};
pub use diff::{LocalChanges, LocalPartition, StopReason, StoppedPartition, local_changes};
pub(crate) use history::HISTORY_WEIGHT_PER_PARTITION;
pub use history::{
    CHANGES_PER_PARTITION, ChangeKind, Evidence, ExpandReason, HISTORY_WEIGHT_MAX, LastWatermark, LeaderReason,
    PartitionChange, ShrinkReason, WatermarkSource,
};
pub use state_hash::state_hash;
pub(crate) use topic::stored_report;
pub use topic::{Inherited, LastReport, LeaderRecovery, PartitionState, Topic};
pub use topic_config::TopicConfig;

use crate::controller::CreateTopic;

/// The index of the last applied raft entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ImageVersion(pub u64);

/// The state of the cluster as of one entry. Cloning costs a few counters.
#[derive(Debug, Clone, Default)]
pub struct MetadataImage {
    pub version: ImageVersion,
    /// `None` until the cluster is formed.
    pub cluster_id: Option<Arc<str>>,
    pub feature_level: u16,
    pub brokers: RedBlackTreeMapSync<BrokerId, Arc<BrokerRegistration>>,
    pub topics: RedBlackTreeMapSync<TopicId, Arc<Topic>>,
    pub names: RedBlackTreeMapSync<Arc<str>, TopicId>,
    /// Newest last; at most `CHANGES_PER_PARTITION` each.
    pub history: RedBlackTreeMapSync<TopicPartition, Arc<Vec<Arc<PartitionChange>>>>,
    /// What all of `history` weighs, see [`PartitionChange::weight`].
    pub history_weight: u64,
    /// Parts of topics that are not complete yet (D17).
    pub staged: RedBlackTreeMapSync<TopicId, Arc<Vec<CreateTopic>>>,
    /// First id of the next block (R67).
    pub next_producer_id: i64,
    /// Controllers added since the cluster was formed; those it was formed by are configured.
    pub controllers: RedBlackTreeMapSync<BrokerId, Arc<ControllerRegistration>>,
    /// What was set on brokers while they run: on all of them under `None`, on one under its id. Never empty maps.
    pub broker_configs: RedBlackTreeMapSync<Option<BrokerId>, Arc<BTreeMap<String, String>>>,
}

/// One change of the image; what the state rows are written from. Derived by `decide`, never proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Cluster {
        cluster_id: String,
        feature_level: u16,
    },
    Broker(Arc<BrokerRegistration>),
    BrokerRemoved(BrokerId),
    /// A topic without its partitions, which follow as `Partition`.
    Topic {
        id: TopicId,
        name: Arc<str>,
        created: Timestamp,
        config: Arc<TopicConfig>,
    },
    /// With its partitions and history.
    TopicRemoved(TopicId),
    Partition(TopicPartition, Arc<PartitionState>),
    History(TopicPartition, Arc<PartitionChange>),
    /// Drops the changes with a sequence below this.
    HistoryTrimmed(TopicPartition, u64),
    Staged(TopicId, Arc<CreateTopic>),
    Unstaged(TopicId),
    NextProducerId(i64),
    Controller(Arc<ControllerRegistration>),
    ControllerRemoved(BrokerId),
    /// What a topic took over from the configuration of the node that created it; follows its `Topic`.
    Inherited(TopicId, Arc<BTreeMap<String, Inherited>>),
    /// All that is set on brokers, on all (`None`) or on one; empty: nothing any more.
    BrokerConfigs(Option<BrokerId>, Arc<BTreeMap<String, String>>),
}

impl MetadataImage {
    /// The topic of this name.
    pub fn topic_named(&self, name: &str) -> Option<&Arc<Topic>> {
        self.names.get(name).and_then(|id| self.topics.get(id))
    }

    /// The state of one partition.
    pub fn partition(&self, at: TopicPartition) -> Option<&Arc<PartitionState>> {
        self.topics.get(&at.topic)?.partitions.get(usize::try_from(at.partition).ok()?)
    }

    /// The registration of a broker.
    pub fn broker(&self, id: BrokerId) -> Option<&Arc<BrokerRegistration>> {
        self.brokers.get(&id)
    }

    /// The brokers that may lead and be in an ISR now, by id.
    pub fn active_brokers(&self) -> impl Iterator<Item = &Arc<BrokerRegistration>> {
        self.brokers.values().filter(|broker| broker.is_active())
    }

    /// Every partition of every topic, by topic id and number.
    pub fn partitions(&self) -> impl Iterator<Item = (TopicPartition, &Arc<Topic>, &Arc<PartitionState>)> {
        self.topics.values().flat_map(|topic| {
            let numbered = (0i32..).zip(&topic.partitions);
            numbered.map(move |(number, state)| (TopicPartition::new(topic.id, number), topic, state))
        })
    }

    /// What was set while they run on all brokers (`None`) or on one.
    pub fn broker_configs(&self, of: Option<BrokerId>) -> Option<&BTreeMap<String, String>> {
        self.broker_configs.get(&of).map(Arc::as_ref)
    }

    /// What happened to a partition, oldest first.
    pub fn history_of(&self, at: TopicPartition) -> &[Arc<PartitionChange>] {
        self.history.get(&at).map_or(&[], |changes| changes.as_slice())
    }
}
