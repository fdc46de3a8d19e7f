//! What happened to a partition: each change of ISR and leader, with its reason and evidence (operators.md 1.4 B).

use highwater_wire::{BrokerId, LeaderEpoch, Offset, PartitionEpoch, Timestamp};
use serde::{Deserialize, Serialize};

/// Changes kept per partition (D16).
pub const CHANGES_PER_PARTITION: usize = 64;

/// What all histories together may weigh (D16): about the bytes they take in memory. Where many partitions exist the
/// limit is [`HISTORY_WEIGHT_PER_PARTITION`] for each, so that the newest change of every partition always stays.
pub const HISTORY_WEIGHT_MAX: u64 = 8 << 20;

/// See [`HISTORY_WEIGHT_MAX`].
pub(crate) const HISTORY_WEIGHT_PER_PARTITION: u64 = 512;

/// One change of a partition's ISR or leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionChange {
    /// Index of the entry that made it; with `sequence` its identity.
    pub index: u64,
    /// Counts the changes of one partition, from 0.
    pub sequence: u64,
    pub time: Timestamp,
    /// Leader and epochs after the change.
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    /// The broker whose proposal this was; `None`: the controller itself.
    pub requested_by: Option<BrokerId>,
    pub kind: ChangeKind,
}

impl PartitionChange {
    /// About the bytes this takes in memory: the same number on every node, whatever its allocator.
    pub fn weight(&self) -> u64 {
        const CHANGE: usize = 160;
        const EVIDENCE: usize = 112;
        let lists = match &self.kind {
            ChangeKind::Shrink { before, after, evidence, .. } | ChangeKind::Expand { before, after, evidence, .. } => {
                let notes = evidence.iter().map(|e| EVIDENCE + e.note.as_ref().map_or(0, String::len));
                4 * (before.len() + after.len()) + notes.sum::<usize>()
            }
            ChangeKind::Leader { .. } | ChangeKind::DataLoss { .. } => 0,
        };
        (CHANGE + lists) as u64
    }
}

/// What changed. One entry may make several changes of a partition (a fence shrinks and elects).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    Shrink {
        before: Vec<BrokerId>,
        after: Vec<BrokerId>,
        reason: ShrinkReason,
        evidence: Vec<Evidence>,
    },
    Expand {
        before: Vec<BrokerId>,
        after: Vec<BrokerId>,
        reason: ExpandReason,
        evidence: Vec<Evidence>,
    },
    Leader {
        before: Option<BrokerId>,
        reason: LeaderReason,
    },
    /// What an unclean election cost, as far as anybody knows; written when its leader says where its log ended. Committed
    /// records from `from` up to the watermark are gone, and perhaps more: the watermark may have moved after it was last
    /// told, and the new leader's log may part from the old one before its end.
    DataLoss {
        /// Where the new leader's epoch begins, or behind that the log of the last leader, which had deleted what lay below;
        /// `None`: the new leader did not say.
        from: Option<Offset>,
        /// What is known of the last leader's watermark.
        known: Option<LastWatermark>,
    },
}

impl ChangeKind {
    /// Committed records known to be lost.
    pub fn records_lost(&self) -> u64 {
        match self {
            Self::DataLoss { from: Some(from), known: Some(known) } => {
                u64::try_from(known.high_watermark.since(*from)).unwrap_or(0)
            }
            Self::DataLoss { .. } | Self::Shrink { .. } | Self::Expand { .. } | Self::Leader { .. } => 0,
        }
    }
}

/// The watermark that a leader is known to have reached, before it went (D12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWatermark {
    /// Exclusive, as every watermark.
    pub high_watermark: Offset,
    /// When, by the clock of whoever said so.
    pub known: Timestamp,
    /// The leader it was the watermark of; `None`: no longer in the history.
    pub leader: Option<BrokerId>,
    pub source: WatermarkSource,
}

/// How a watermark came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatermarkSource {
    /// The leader reported it.
    Reported,
    /// The evidence of the ISR change that left it alone in sync says what it had committed then.
    IsrChange,
}

/// Why somebody left the ISR. Names are those of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ShrinkReason {
    FollowerStoppedFetching,
    FollowerSlow,
    BrokerFenced,
    BrokerRestarted,
    ControlledShutdown,
    LogDirOffline,
    Reassignment,
    UncleanElection,
}

/// Why somebody came (back) into the ISR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExpandReason {
    CaughtUp,
    BrokerReturned,
}

/// Why a leader was elected. `Lost`: nobody could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LeaderReason {
    Created,
    Preferred,
    Failover,
    Elr,
    LastKnown,
    Unclean,
    Designated,
    Reassignment,
    Drain,
    Lost,
}

/// What the leader saw of a follower when it proposed a change. Ages are milliseconds by the leader's clock.
///
/// About the leader itself only two offsets are said: in `leader_end` where its log ended when it was elected uncleanly (of a
/// recovery), or what it had committed when it asked to be alone in sync; in the latter case in `follower_end` where its log
/// began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub broker: BrokerId,
    pub follower_end: Option<Offset>,
    pub leader_end: Option<Offset>,
    /// How long it has been behind.
    pub lag_ms: Option<u64>,
    pub last_fetch_age_ms: Option<u64>,
    pub last_caught_up_age_ms: Option<u64>,
    /// Free text: the fetch error seen last, or how a death was proved.
    pub note: Option<String>,
}

impl Evidence {
    /// Nothing known but who is meant.
    pub fn about(broker: BrokerId) -> Self {
        Self {
            broker,
            follower_end: None,
            leader_end: None,
            lag_ms: None,
            last_fetch_age_ms: None,
            last_caught_up_age_ms: None,
            note: None,
        }
    }
}
