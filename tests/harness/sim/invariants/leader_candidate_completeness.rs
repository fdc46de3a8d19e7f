//! Whoever could be elected holds everything committed: the ISR, the ELR, and whom the rules would choose now (S7, S8).

use highwater_quorum::MetadataImage;
use highwater_quorum::image::DataProof;
use highwater_wire::TopicPartition;

use super::super::book::PartitionBook;
use super::{Verdict, must};

/// S7: every member of the quorum's ISR and ELR is complete.
pub fn members(at: TopicPartition, book: &PartitionBook) -> Verdict {
    if book.unclean {
        return Ok(());
    }
    let Some(state) = &book.quorum else { return Ok(()) };
    for &member in state.isr.iter().chain(&state.elr) {
        must(book.is_complete(member), "S7", || {
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

/// S8 beyond ISR and ELR: a last known leader that the rules would take has proof that it lost nothing (D30).
pub fn last_known(at: TopicPartition, book: &PartitionBook, image: &MetadataImage) -> Verdict {
    let Some(state) = &book.quorum else { return Ok(()) };
    if book.unclean || state.leader.is_some() || !state.isr.is_empty() || !state.elr.is_empty() {
        return Ok(());
    }
    let [last] = state.last_known_elr[..] else { return Ok(()) };
    let proven = image.brokers.get(&last).is_some_and(|b| b.is_active() && b.kept_data != DataProof::None);
    must(!proven || book.is_complete(last), "S8", || {
        format!(
            "{at}: last known leader {last} could be elected without what was committed up to {}",
            book.committed.end()
        )
    })
}
