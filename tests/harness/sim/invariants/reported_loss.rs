//! What an unclean election is said to have cost is true (D12): never more than it did, and from where the new leader began.

use highwater_quorum::image::{ChangeKind, PartitionState};
use highwater_wire::TopicPartition;

use super::super::book::PartitionBook;
use super::{Verdict, must};

/// The quorum wrote a `loss` into the history.
pub fn told(at: TopicPartition, state: &PartitionState, loss: &ChangeKind, book: &PartitionBook) -> Verdict {
    let Some(leader) = state.leader.and_then(|leader| book.replicas.get(&leader)) else { return Ok(()) };
    if leader.leader_epoch != state.leader_epoch.0 {
        return Ok(());
    }
    let ChangeKind::DataLoss { from: Some(from), known } = loss else { return Ok(()) };
    // Later only by what the last leader had deleted, and that lay below what it had committed.
    let deleted = known.filter(|known| from.0 > leader.leadership_start && *from <= known.high_watermark);
    must(from.0 == leader.leadership_start || deleted.is_some(), "D12", || {
        format!(
            "{at}: the loss is said to begin at {from}; epoch {} of its leader begins at {}",
            state.leader_epoch, leader.leadership_start
        )
    })?;
    let said = loss.records_lost() as i64;
    let (real, loss) = (book.lines.untold, book.lines.newest_loss);
    must(said <= real, "D12", || {
        format!(
            "{at}: {said} records are said to be lost by the election of {:?} in epoch {} (from {from}, {known:?}); in \
             truth {real}: {loss:?}",
            state.leader, state.leader_epoch
        )
    })
}
