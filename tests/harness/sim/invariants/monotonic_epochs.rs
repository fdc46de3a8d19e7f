//! Epochs only grow, and each has one owner (T1, S5, S13).

use highwater_quorum::image::PartitionState;
use highwater_wire::TopicPartition;

use super::super::book::{Look, PartitionBook};
use super::{Verdict, must};

/// T1 at the quorum: one change, one step.
pub fn at_quorum(at: TopicPartition, before: Option<&PartitionState>, after: &PartitionState) -> Verdict {
    let Some(before) = before else {
        return must(after.leader_epoch.0 == 0 && after.partition_epoch.0 == 0, "T1", || {
            format!("{at}: created with epochs {} and {}", after.leader_epoch, after.partition_epoch)
        });
    };
    if before == after {
        return Ok(());
    }
    must(after.partition_epoch.0 > before.partition_epoch.0, "T1", || {
        format!("{at}: changed without a new partition epoch: {before:?} to {after:?}")
    })?;
    must(
        after.leader_epoch > before.leader_epoch
            || (after.leader_epoch == before.leader_epoch && after.leader == before.leader),
        "T1",
        || format!("{at}: leader {:?} to {:?} in epoch {}", before.leader, after.leader, after.leader_epoch),
    )
}

/// T1 at a broker, and S5: one leader an epoch.
pub fn at_broker(look: &Look<'_>, book: &mut PartitionBook) -> Verdict {
    if let Some(replica) = book.replicas.get(&look.broker) {
        must(
            look.leader_epoch >= replica.leader_epoch && look.partition_epoch >= replica.partition_epoch,
            "T1",
            || {
                format!(
                    "{} on {}: leader epoch {} to {}, partition epoch {} to {}",
                    look.at,
                    look.broker,
                    replica.leader_epoch,
                    look.leader_epoch,
                    replica.partition_epoch,
                    look.partition_epoch
                )
            },
        )?;
    }
    if !look.leads {
        return Ok(());
    }
    let owner = *book.leaders.entry(look.leader_epoch).or_insert((look.broker, look.process));
    must(owner == (look.broker, look.process), "S5", || {
        format!("{}: epoch {} is led by {} and by {}", look.at, look.leader_epoch, owner.0, look.broker)
    })
}
