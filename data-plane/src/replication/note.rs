//! What a role has to say to people: each transition once. Facts only; the replica's owner writes the line.

use std::sync::Arc;

use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, Offset, PartitionEpoch};

/// One fact for the log line. `Note::log` writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    BecameLeader {
        leader_epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
        isr: Vec<BrokerId>,
        epoch_start: Offset,
        high_watermark: Offset,
    },
    BecameFollower {
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        log_end: Offset,
        high_watermark: Offset,
    },
    BecameIdle {
        leader_epoch: LeaderEpoch,
    },
    /// The controller's ISR changed while this replica leads.
    IsrChanged {
        before: Vec<BrokerId>,
        after: Vec<BrokerId>,
        leader_epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
    },
    /// This leader asks for another ISR.
    IsrProposed {
        from: Vec<BrokerId>,
        to: Vec<BrokerId>,
        leader_epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
    },
    /// The controller refused a proposal (D26): `dropped` when the committed ISR stands again.
    IsrRefused {
        to: Vec<BrokerId>,
        code: ErrorCode,
        dropped: bool,
    },
    Truncated {
        from: Offset,
        to: Offset,
        high_watermark: Offset,
        leader_epoch: LeaderEpoch,
    },
    /// Below its own watermark: a violation of safety unless an unclean election happened (R161).
    TruncatedBelowWatermark {
        from: Offset,
        to: Offset,
        high_watermark: Offset,
        leader_epoch: LeaderEpoch,
    },
    /// A batch from a leader was damaged on the way or at its source (D27).
    CorruptFetch {
        leader: BrokerId,
        offset: Offset,
        why: String,
    },
    /// R209
    StorageFailed {
        error: Arc<str>,
    },
}
