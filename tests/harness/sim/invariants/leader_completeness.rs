//! Whoever leads holds everything that was committed before it (S7, S10), and its watermark only rises (T2).

use super::super::book::{Look, PartitionBook};
use super::{Verdict, must};

/// A leader that just took an epoch.
pub fn took_over(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    must(book.is_complete(look.broker), "S7", || {
        let replica = &book.replicas[&look.broker];
        format!(
            "{}: {} leads epoch {} without all that was committed up to {}: it ends at {} and agrees up to {}",
            look.at,
            look.broker,
            look.leader_epoch,
            book.committed.end(),
            replica.mirror.end(),
            replica.mirror.agrees_up_to(&book.committed, book.committed.end())
        )
    })
}

/// H1 at the other end: whoever leads begins no later than a leader of the same line did, if only leaders delete. What a
/// replica had deleted in a line that was cut off is not gone from the present one.
pub fn begins_where_others_did(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    must(book.deletes_old || look.start <= book.gone_to, "H1", || {
        format!(
            "{}: {} leads epoch {} from {} on; nobody who led before it, since epoch {}, had deleted more than up to {}",
            look.at, look.broker, look.leader_epoch, look.start, book.lines.since, book.gone_to
        )
    })
}

/// T2, and R161: no watermark falls within one process and role, but for a truncation to a later start.
pub fn watermark_rises(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    let replica = &book.replicas[&look.broker];
    let same_term =
        replica.process == look.process && replica.leads && look.leads && replica.leader_epoch == look.leader_epoch;
    must(!same_term || look.high_watermark >= replica.high_watermark, "T2", || {
        format!(
            "{}: the watermark of leader {} fell from {} to {} in epoch {}",
            look.at, look.broker, replica.high_watermark, look.high_watermark, look.leader_epoch
        )
    })
}

/// S10: no watermark is above the largest one that a leader reached.
pub fn watermark_was_reached(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    must(look.leads || look.high_watermark <= book.committed.end().max(look.start), "S10", || {
        format!(
            "{} on {}: watermark {}, but no leader ever got beyond {}",
            look.at,
            look.broker,
            look.high_watermark,
            book.committed.end()
        )
    })
}
