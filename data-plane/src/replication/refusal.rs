//! Why a replica would not do what it was asked, and what that is called on the wire.

use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Offset};

/// A rule said no; never an IO failure of this call (a failure of an earlier one is [`Refusal::Offline`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another replica leads, nobody does, or the leadership ended while the request waited (R51, R72, D32).
    /// The hint is what this replica knows, for KIP-951 (R54).
    #[error("not the leader here; as far as this broker knows it is {leader:?} in epoch {leader_epoch}")]
    NotLeader { leader: Option<BrokerId>, leader_epoch: LeaderEpoch },
    /// The caller's leader epoch is behind ours (R72).
    #[error("leader epoch {given} is behind {current}")]
    FencedEpoch { given: LeaderEpoch, current: LeaderEpoch, leader: Option<BrokerId> },
    /// The caller's leader epoch is ahead: our metadata is behind (R72).
    #[error("leader epoch {given} is ahead of {current}, the newest known here")]
    UnknownEpoch { given: LeaderEpoch, current: LeaderEpoch },
    /// The follower is not in the assignment this leader knows (R73).
    #[error("broker {replica} is not a replica of this partition in the assignment known here")]
    NotAReplica { replica: BrokerId, leader: Option<BrokerId>, leader_epoch: LeaderEpoch, with_epoch: bool },
    /// The fetch comes from a process that is gone: the broker has registered anew since (R103).
    #[error("broker {replica} registered anew as {current}; this fetch is of its former process {given}")]
    StaleReplica { replica: BrokerId, given: BrokerEpoch, current: BrokerEpoch, leader_epoch: LeaderEpoch },
    /// The follower's registration is not in our metadata yet, or the fetch carried no broker epoch (D22).
    #[error("the registration of broker {replica} that this fetch names is not known here")]
    UnknownReplica { replica: BrokerId, given: Option<BrokerEpoch> },
    /// Before the append (R10, R42 step 9).
    #[error("{in_sync} replicas in sync, {min_isr} needed")]
    TooFewInSync { in_sync: usize, min_isr: usize },
    /// The records are stored, but the maximal ISR was too small when their turn came (R49).
    #[error("appended, but {in_sync} replicas in sync, {min_isr} needed")]
    TooFewInSyncAfterAppend { in_sync: usize, min_isr: usize },
    /// The records are stored and may commit later (R50).
    #[error("not enough replicas answered in time; the records may still commit")]
    TimedOut,
    /// R74, R99.
    #[error("offset {offset} is outside this log, which holds {start} to {end} (exclusive)")]
    OffsetOutOfRange { offset: Offset, start: Offset, end: Offset },
    /// A new leader does not know yet how far its predecessor had committed (R94).
    #[error("high watermark {high_watermark} has not reached the start {epoch_start} of this leader epoch yet")]
    OffsetNotAvailable { high_watermark: Offset, epoch_start: Offset },
    /// The idempotent producer's epoch is behind (R59).
    #[error("{why}")]
    InvalidProducerEpoch { why: String },
    /// A gap or a step back in a producer's sequence (R59, R60).
    #[error("{why}")]
    OutOfOrderSequence { why: String },
    /// Bytes that are no batch, or whose CRC does not match (D27).
    #[error("{why}")]
    CorruptBatch { why: String },
    /// The disk failed under this replica, now or before; it serves nothing until the process restarts (R209).
    #[error("storage failed: {why}")]
    Offline { why: std::sync::Arc<str> },
    /// The replica is stopped: its topic was deleted, it was moved away, or the broker is stopping.
    #[error("this replica has stopped")]
    Stopped,
}

impl From<&Refusal> for ErrorCode {
    /// No wildcard arm: a new refusal does not compile until it has a code.
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NotLeader { .. } | Refusal::StaleReplica { .. } | Refusal::Stopped => Self::NotLeaderOrFollower,
            Refusal::NotAReplica { with_epoch, .. } => {
                if *with_epoch {
                    Self::UnknownLeaderEpoch
                } else {
                    Self::NotLeaderOrFollower
                }
            }
            Refusal::FencedEpoch { .. } => Self::FencedLeaderEpoch,
            Refusal::UnknownEpoch { .. } | Refusal::UnknownReplica { .. } => Self::UnknownLeaderEpoch,
            Refusal::TooFewInSync { .. } => Self::NotEnoughReplicas,
            Refusal::TooFewInSyncAfterAppend { .. } => Self::NotEnoughReplicasAfterAppend,
            Refusal::TimedOut => Self::RequestTimedOut,
            Refusal::OffsetOutOfRange { .. } => Self::OffsetOutOfRange,
            Refusal::OffsetNotAvailable { .. } => Self::OffsetNotAvailable,
            Refusal::InvalidProducerEpoch { .. } => Self::InvalidProducerEpoch,
            Refusal::OutOfOrderSequence { .. } => Self::OutOfOrderSequenceNumber,
            Refusal::CorruptBatch { .. } => Self::CorruptMessage,
            Refusal::Offline { .. } => Self::KafkaStorageError,
        }
    }
}

impl Refusal {
    /// The error of the protocol.
    pub fn code(&self) -> ErrorCode {
        self.into()
    }

    /// The leader that errors 6 and 74 may name (R54). Never one of an older epoch than this replica knows.
    pub fn current_leader(&self) -> Option<(BrokerId, LeaderEpoch)> {
        match self {
            Self::NotLeader { leader: Some(leader), leader_epoch } => Some((*leader, *leader_epoch)),
            Self::FencedEpoch { leader: Some(leader), current, .. } => Some((*leader, *current)),
            _ => None,
        }
    }
}
