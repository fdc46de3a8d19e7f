//! Whoever could be elected holds everything committed: the ISR, the ELR, and whom the rules would choose now (S7, S8).

use highwater_quorum::MetadataImage;
use highwater_quorum::controller::next_leader;
use highwater_wire::TopicPartition;

use super::super::book::PartitionBook;
use super::{Verdict, must};

/// S7: every member of the quorum's ISR and ELR is complete.
pub fn members(at: TopicPartition, book: &PartitionBook) -> Verdict {
    let Some(state) = &book.quorum else { return Ok(()) };
    for &member in state.isr.iter().chain(&state.elr) {
        must(book.lines.unproved.contains(&member) || book.is_complete(member), "S7", || {
            format!(
                "{at}: {member} may be elected (ISR {:?}, ELR {:?}) but lacks records committed up to {}: it ends at {:?}",
                state.isr,
                state.elr,
                book.committed.end(),
                book.replicas.get(&member).map(|r| r.mirror.end())
            )
        })?;
    }
    Ok(())
}

/// S8: whom the rules would elect now, were they asked, is complete. A last known leader can prove nothing by its newest
/// registration: it may have come back empty before that one (D30).
pub fn last_known(at: TopicPartition, book: &PartitionBook, image: &MetadataImage) -> Verdict {
    let Some((next, reason)) = next_leader(image, at, false) else { return Ok(()) };
    must(book.lines.unproved.contains(&next) || book.is_complete(next), "S8", || {
        format!("{at}: {next} could be elected ({reason:?}) without what was committed up to {}", book.committed.end())
    })
}
