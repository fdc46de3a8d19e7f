//! What a replica has to say in the log: each transition once, a constant message, facts as fields.

use std::sync::Arc;

use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, Offset, PartitionEpoch};
use tracing::{error, info, warn};

/// One fact for the log line. [`Note::log`] writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    BecameLeader {
        leader_epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
        isr: Vec<BrokerId>,
        epoch_start: Offset,
        high_watermark: Offset,
    },
    BecameFollower { leader: BrokerId, leader_epoch: LeaderEpoch, log_end: Offset, high_watermark: Offset },
    BecameIdle { leader_epoch: LeaderEpoch },
    /// The controller's ISR changed while this replica leads.
    IsrChanged { before: Vec<BrokerId>, after: Vec<BrokerId>, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch },
    /// This leader asks for another ISR.
    IsrProposed { from: Vec<BrokerId>, to: Vec<BrokerId>, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch },
    /// The controller refused a proposal (D26): `dropped` when the committed ISR stands again.
    IsrRefused { to: Vec<BrokerId>, code: ErrorCode, dropped: bool },
    Truncated { from: Offset, to: Offset, high_watermark: Offset, leader_epoch: LeaderEpoch },
    /// Below its own watermark: a violation of safety unless an unclean election happened (R161).
    TruncatedBelowWatermark { from: Offset, to: Offset, high_watermark: Offset, leader_epoch: LeaderEpoch },
    /// A batch from a leader was damaged on the way or at its source (D27).
    CorruptFetch { leader: BrokerId, offset: Offset, why: String },
    /// R209
    StorageFailed { error: Arc<str> },
}

impl Note {
    /// Writes the log line. `partition` is `topic-partition` by name.
    pub fn log(&self, partition: &str) {
        match self {
            Self::BecameLeader { leader_epoch, partition_epoch, isr, epoch_start, high_watermark } => {
                info!(partition, %leader_epoch, %partition_epoch, isr = %List(isr), %epoch_start, %high_watermark, "became leader");
            }
            Self::BecameFollower { leader, leader_epoch, log_end, high_watermark } => {
                info!(partition, %leader, %leader_epoch, %log_end, %high_watermark, "became follower");
            }
            Self::BecameIdle { leader_epoch } => info!(partition, %leader_epoch, "has no leader to follow"),
            Self::IsrChanged { before, after, leader_epoch, partition_epoch } => {
                info!(partition, before = %List(before), after = %List(after), %leader_epoch, %partition_epoch, "ISR changed");
            }
            Self::IsrProposed { from, to, leader_epoch, partition_epoch } => {
                info!(partition, before = %List(from), after = %List(to), %leader_epoch, %partition_epoch, "ISR change proposed");
            }
            Self::IsrRefused { to, code, dropped } => {
                info!(partition, after = %List(to), %code, dropped, "ISR change refused by the controller");
            }
            Self::Truncated { from, to, high_watermark, leader_epoch } => {
                info!(partition, %from, %to, %high_watermark, %leader_epoch, "truncated to where the leader's log agrees");
            }
            Self::TruncatedBelowWatermark { from, to, high_watermark, leader_epoch } => {
                error!(
                    partition, %from, %to, %high_watermark, %leader_epoch,
                    "truncated below the high watermark: acknowledged records are gone unless an unclean election explains it"
                );
            }
            Self::CorruptFetch { leader, offset, why } => {
                warn!(partition, %leader, %offset, why, "records from the leader are damaged; they are asked for again");
            }
            Self::StorageFailed { error } => {
                error!(partition, %error, "the disk failed; this replica serves nothing until the process restarts");
            }
        }
    }
}

/// `[1, 2, 3]` of broker ids.
struct List<'a>(&'a [BrokerId]);

impl std::fmt::Display for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for (i, broker) in self.0.iter().enumerate() {
            write!(f, "{}{broker}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}
