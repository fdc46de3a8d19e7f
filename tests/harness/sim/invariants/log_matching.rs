//! Logs that agree on an offset agree on everything before it (S1, S9, S11), and nothing committed is cut (T4, T5).

use super::super::book::{Look, PartitionBook, ReplicaBook};
use super::{Verdict, must};

/// S1, R2 of one replica.
pub fn shape(look: &Look<'_>, replica: &ReplicaBook) -> Verdict {
    must(
        look.start <= look.high_watermark && look.high_watermark <= look.end && look.flushed_end <= look.end,
        "R2",
        || {
            format!(
                "{} on {}: start {} ≤ watermark {} ≤ end {}, flushed {}",
                look.at, look.broker, look.start, look.high_watermark, look.end, look.flushed_end
            )
        },
    )?;
    // R154: nobody holds what was written in an epoch that it has not heard of.
    must(replica.mirror.last_epoch().is_none_or(|epoch| epoch <= look.leader_epoch), "S1", || {
        format!(
            "{} on {}: a batch of epoch {:?} in a log that has only heard of epoch {}",
            look.at,
            look.broker,
            replica.mirror.last_epoch(),
            look.leader_epoch
        )
    })?;
    must(replica.mirror.end() == look.end, "S1", || {
        format!("{} on {}: batches end at {}, the log says {}", look.at, look.broker, replica.mirror.end(), look.end)
    })?;
    let increasing = look.epochs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
    must(increasing, "S1", || format!("{} on {}: epoch history {:?}", look.at, look.broker, look.epochs))
}

/// S1: the epoch history equals a scan of the log, plus at most one entry without records. After a kill the log may begin
/// at an older checkpoint of its start than the history does (R274); records below the history are of no interest.
pub fn epochs_match_the_log(look: &Look<'_>, replica: &ReplicaBook) -> Verdict {
    let mut entries = look.epochs.iter().peekable();
    let mut epoch = None;
    let begins = look.epochs.first().map_or(look.start, |(_, start)| look.start.max(*start));
    for batch in replica.mirror.batches.iter().filter(|b| b.end > begins) {
        if epoch == Some(batch.epoch) {
            continue;
        }
        epoch = Some(batch.epoch);
        let first = batch.base.max(begins);
        // The first entry may begin earlier or be moved to the start of the log (R148).
        let found = entries.by_ref().find(|(e, _)| *e == batch.epoch);
        must(found.is_some_and(|(_, start)| *start <= first), "S1", || {
            format!(
                "{} on {}: epoch {} begins at {first}, history {:?}",
                look.at, look.broker, batch.epoch, look.epochs
            )
        })?;
    }
    let rest = entries.count();
    must(rest <= 1, "S1", || {
        format!("{} on {}: {rest} epochs without records at the end: {:?}", look.at, look.broker, look.epochs)
    })
}

/// S9 for one replica: below its watermark it holds what was committed.
pub fn below_watermark(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    let replica = &book.replicas[&look.broker];
    let at = look.high_watermark.min(book.committed.end());
    if at <= replica.mirror.origin || at <= look.start || at <= book.committed.origin {
        return Ok(());
    }
    let (Some(ours), Some(committed)) = (replica.mirror.batch_at(at - 1), book.committed.batch_at(at - 1)) else {
        return must(false, "S9", || {
            format!("{} on {}: no batch below its watermark {}", look.at, look.broker, look.high_watermark)
        });
    };
    must(ours.chain == committed.chain, "S9", || {
        format!(
            "{} on {}: below its watermark {} it holds other records than were committed; they agree up to {}",
            look.at,
            look.broker,
            look.high_watermark,
            replica.mirror.agrees_up_to(&book.committed, at)
        )
    })
}

/// S11: what a leader believes of a follower that follows it is true.
pub fn believed_ends(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    let leader = &book.replicas[&look.broker];
    for &(follower, epoch, end) in look.believed {
        let Some(replica) = book.replicas.get(&follower) else { continue };
        let follows = replica.alive
            && !replica.leads
            && replica.leader_epoch == look.leader_epoch
            && replica.broker_epoch == epoch;
        // Where its log begins inside a batch of the leader's it asked from there, and was sent all of it (R153).
        let inside = leader.mirror.batch_at(end).filter(|batch| batch.base < end);
        let from_inside = inside.is_some() && end <= replica.start;
        let end = inside.map_or(end, |batch| batch.base);
        // What lies below the leader's log start is of no interest, whatever it was.
        if !follows || from_inside || end <= look.start || end <= leader.mirror.origin || end <= replica.mirror.origin {
            continue;
        }
        let agrees = leader.mirror.chain_at(end).is_some_and(|chain| replica.mirror.chain_at(end) == Some(chain));
        must(agrees, "S11", || {
            format!(
                "{}: leader {} of epoch {} believes that {follower} holds its log up to {end}; it ends at {} and agrees up to {}",
                look.at,
                look.broker,
                look.leader_epoch,
                replica.mirror.end(),
                replica.mirror.agrees_up_to(&leader.mirror, end)
            )
        })?;
    }
    Ok(())
}

/// T4: a truncation to `to` cuts nothing that was committed, unless it was deleted here already, and no leader truncates.
pub fn truncation(look: &Look<'_>, book: &PartitionBook, to: i64) -> Verdict {
    let replica = &book.replicas[&look.broker];
    let agreed = replica.mirror.agrees_up_to(&book.committed, book.committed.end());
    let compared = agreed > book.committed.origin.max(replica.mirror.origin);
    let deleted = look.start.max(replica.start) >= agreed;
    must(!compared || to >= agreed || deleted || to >= replica.mirror.end(), "T4", || {
        format!(
            "{} on {}: truncated to {to} (log start {}) though it held committed records up to {agreed}",
            look.at, look.broker, look.start
        )
    })?;
    let led =
        replica.leads && look.leads && replica.process == look.process && replica.leader_epoch == look.leader_epoch;
    must(!led || to >= replica.mirror.end(), "T4", || {
        format!("{} on {}: the leader of epoch {} truncated to {to}", look.at, look.broker, look.leader_epoch)
    })
}

/// T5: a replica that comes back holds what it held: all of it after a kill, the synced part after a loss of power.
pub fn reopened(look: &Look<'_>, before: &ReplicaBook, now: &ReplicaBook) -> Verdict {
    let kept_up_to = before.kept_up_to;
    let (old, new) = (&before.mirror, &now.mirror);
    if new.origin >= old.end() {
        return Ok(());
    }
    let agreed = old.agrees_up_to(new, old.end().min(new.end()));
    must(new.end() <= agreed || new.end() > old.end(), "T5", || {
        format!("{} on {}: reopened with other records from {agreed} on", look.at, look.broker)
    })?;
    must(agreed >= kept_up_to.min(old.end()), "T5", || {
        format!(
            "{} on {}: {kept_up_to} was on disk, reopened with what it held up to {agreed} ({:?}, now {:?})",
            look.at,
            look.broker,
            old.batch_at(agreed),
            new.batch_at(agreed)
        )
    })
}
