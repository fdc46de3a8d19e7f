//! The set that counts for the watermark holds the set that may be elected (S6), and what is counted is true (T3).

use super::super::book::{Look, PartitionBook};
use super::{Verdict, must};

/// S6: the leader of the quorum's current epoch counts everybody who is in the quorum's ISR.
pub fn maximal_isr(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    let Some(state) = &book.quorum else { return Ok(()) };
    if !look.leads || state.leader_epoch.0 != look.leader_epoch || state.leader != Some(look.broker) {
        return Ok(());
    }
    let missing = state.isr.iter().find(|member| !look.maximal_isr.contains(member));
    must(missing.is_none(), "S6", || {
        format!(
            "{}: {missing:?} is in the ISR {:?} but leader {} counts only {:?}",
            look.at, state.isr, look.broker, look.maximal_isr
        )
    })
}

/// T3: the watermark moved from `from` to where it is now.
pub fn watermark_moved(look: &Look<'_>, book: &PartitionBook) -> Verdict {
    must(look.isr.len() >= look.min_isr, "T3", || {
        format!(
            "{}: leader {} moved the watermark to {} with the ISR {:?}, below min ISR {}",
            look.at, look.broker, look.high_watermark, look.isr, look.min_isr
        )
    })?;
    if book.lines.is_over(look.leader_epoch) {
        // Its followers may have gone over to another leader's history.
        return Ok(());
    }
    let chain = book.replicas[&look.broker].mirror.chain_at(look.high_watermark);
    for member in look.maximal_isr {
        let heard = look.believed.iter().find(|(id, ..)| id == member).map(|&(_, epoch, _)| epoch);
        let log = book.log_of(*member, heard);
        let holds = log.is_some_and(|(mirror, _)| {
            mirror.origin >= look.high_watermark || mirror.chain_at(look.high_watermark) == chain
        });
        must(holds, "T3", || {
            format!(
                "{}: leader {} moved the watermark to {}, which {member} of the maximal ISR {:?} does not hold: it ends at {:?}",
                look.at,
                look.broker,
                look.high_watermark,
                look.maximal_isr,
                log.map(|(mirror, _)| mirror.end())
            )
        })?;
        let flushed = log.is_none_or(|(mirror, flushed_end)| {
            flushed_end >= look.high_watermark || mirror.origin >= look.high_watermark
        });
        must(!book.flushes_each || flushed, "D23", || {
            format!(
                "{}: watermark {} counts records that {member} has synced only up to {:?}",
                look.at,
                look.high_watermark,
                log.map(|(_, flushed_end)| flushed_end)
            )
        })?;
    }
    Ok(())
}
