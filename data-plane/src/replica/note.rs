//! How the facts a replica reports become log lines: a constant message, facts as fields.

use highwater_wire::BrokerId;
use tracing::{error, info, warn};

pub use crate::replication::note::Note;

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
