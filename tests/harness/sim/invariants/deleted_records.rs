//! What DeleteRecords promised (R274, D33): once answered, nobody sees those records again, whoever leads and whatever was
//! killed; nothing above goes; and what was refused changed nothing.

use highwater_wire::{BrokerId, Offset, TopicPartition};

use super::super::book::{Look, PartitionBook, ReplicaBook};
use super::{Verdict, must};

/// A leader says that everything below `target` is gone. `alive`: whom it must have waited for, as which processes.
pub fn answered(
    at: TopicPartition,
    leader: BrokerId,
    target: i64,
    low_watermark: i64,
    alive: &[(BrokerId, i64)],
    book: &mut PartitionBook,
) -> Verdict {
    must(low_watermark >= target, "R274", || {
        format!("{at}: leader {leader} answers DeleteRecords of {target} with low watermark {low_watermark}")
    })?;
    let epoch = book.replicas.get(&leader).map(|replica| replica.leader_epoch);
    for (id, broker_epoch) in alive {
        let follows = |replica: &&ReplicaBook| {
            replica.alive && replica.broker_epoch == *broker_epoch && Some(replica.leader_epoch) == epoch
        };
        let Some(replica) = book.replicas.get(id).filter(follows) else { continue };
        must(replica.start >= target, "R274", || {
            let start = replica.start;
            format!("{at}: leader {leader} says that all is gone below {target}; on {id} the log begins at {start}")
        })?;
    }
    if book.leaders.keys().next_back().copied() > epoch {
        // Another leads since, one that was away when they were deleted or has another line: it has brought them back.
        return Ok(());
    }
    book.deleted_to = book.deleted_to.max(target);
    for replica in book.replicas.values_mut().filter(|replica| replica.alive && replica.start >= target) {
        replica.owes_start = replica.owes_start.max(target);
    }
    Ok(())
}

/// Asked to delete below `before` with its watermark at `high_watermark`, a leader did as it should.
pub fn judged(
    at: TopicPartition,
    before: Option<i64>,
    high_watermark: i64,
    refused: bool,
    starts: (i64, i64),
) -> Verdict {
    let above = before.is_some_and(|before| before > high_watermark);
    must(above == refused, "R274", || {
        format!("{at}: DeleteRecords of {before:?} at watermark {high_watermark}: refused as out of range is {refused}")
    })?;
    let target = before.unwrap_or(high_watermark);
    let (was, is) = starts;
    let expected = if refused { was } else { was.max(target) };
    must(is == expected, "R274", || {
        format!(
            "{at}: DeleteRecords of {before:?} at watermark {high_watermark} moved the log start from {was} to {is}"
        )
    })
}

/// A log was opened again: it begins no earlier than was counted on, unless nothing is left of it.
pub fn reopened(look: &Look<'_>, before: &ReplicaBook) -> Verdict {
    must(look.start >= before.owes_start || look.end == look.start, "D33", || {
        format!(
            "{} on {}: everything below {} was said to be deleted; reopened, the log begins at {}",
            look.at, look.broker, before.owes_start, look.start
        )
    })
}

/// A leader took over. One that was away when the records were deleted, and has not heard of it, brings them back: it is
/// not waited for (R274 speaks of live replicas).
pub fn took_over(look: &Look<'_>, book: &mut PartitionBook) -> Verdict {
    let owes = book.replicas[&look.broker].owes_start;
    must(look.start >= owes, "D33", || {
        format!("{}: leader {} begins at {}, below {owes}, which it said was deleted", look.at, look.broker, look.start)
    })?;
    book.deleted_to = book.deleted_to.min(look.start);
    Ok(())
}

/// A consumer is shown records from `offset` on by the leader of the present epoch.
pub fn shown(at: TopicPartition, leader: BrokerId, offset: Offset, start: Offset, book: &PartitionBook) -> Verdict {
    must(offset.0 >= book.deleted_to && start.0 >= book.deleted_to, "D33", || {
        format!(
            "{at}: leader {leader}, whose log begins at {start}, shows a reader {offset}; all below {} was said to be deleted",
            book.deleted_to
        )
    })
}

/// T7: no log start goes back while a log is open, but for a new beginning after a truncation.
pub fn start_moved(look: &Look<'_>, replica: &ReplicaBook) -> Verdict {
    let anew = replica.truncations != look.truncations || replica.process != look.process;
    must(anew || look.start >= replica.start, "T7", || {
        format!("{} on {}: the log start went back from {} to {}", look.at, look.broker, replica.start, look.start)
    })
}
