//! What an unclean election costs, as far as anybody can know (D12): the watermark that the last leader was known to have
//! reached, against the end of the log that goes on.

use std::sync::Arc;

use highwater_wire::{BrokerId, LeaderEpoch, Offset};

use crate::flaws::{Flaw, planted};
use crate::image::{ChangeKind, LastWatermark, LeaderReason, PartitionChange, PartitionState, WatermarkSource};

/// What is known of the last leader's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastKnown {
    pub watermark: LastWatermark,
    /// Where it began when that was said: what lay below had been deleted.
    pub log_start: Offset,
}

impl LastKnown {
    /// The first record that is lost to a log that ends at `end`, if any is.
    pub fn first_lost(&self, end: Offset) -> Offset {
        if planted(Flaw::LosesTheDeleted) { end } else { end.max(self.log_start) }
    }
}

/// The best that is known of the watermark of the last leader: of one that was lost, or was replaced by an unclean
/// election whose leader has not recovered yet. What it reported itself, or what it had committed when it asked for an ISR
/// of itself alone; whichever is higher. `min_isr`: effective.
pub fn last_watermark(state: &PartitionState, history: &[Arc<PartitionChange>], min_isr: usize) -> Option<LastKnown> {
    let last = last_leader(history);
    let leader = state.last_known_elr.first().copied().or(last.map(|(leader, _)| leader));
    let reported = state.last_known_watermark.map(|report| {
        let (high_watermark, known) = (report.high_watermark, report.reported);
        let watermark = LastWatermark { high_watermark, known, leader, source: WatermarkSource::Reported };
        LastKnown { watermark, log_start: report.log_start }
    });
    // Below min ISR the watermark stands still, whatever the log (R121).
    let alone = last.filter(|_| min_isr <= 1).and_then(|(leader, epoch)| left_alone(history, leader, epoch));
    reported
        .into_iter()
        .chain(alone)
        .max_by_key(|known| (known.watermark.high_watermark, known.watermark.source == WatermarkSource::Reported))
}

/// Whether the present leader was elected uncleanly: then its epoch begins where the log that was left ended.
pub(super) fn leads_uncleanly(history: &[Arc<PartitionChange>]) -> bool {
    let last = history.iter().rev().find_map(|change| match &change.kind {
        ChangeKind::Leader { reason, .. } => Some(*reason),
        _ => None,
    });
    matches!(last, Some(LeaderReason::Unclean | LeaderReason::LastKnown))
}

/// Who led last, and in which epoch.
fn last_leader(history: &[Arc<PartitionChange>]) -> Option<(BrokerId, LeaderEpoch)> {
    history.iter().rev().find_map(|change| match &change.kind {
        ChangeKind::Leader {
            before: Some(before),
            reason: LeaderReason::Lost | LeaderReason::Unclean | LeaderReason::LastKnown,
        } => Some((*before, LeaderEpoch(change.leader_epoch.0 - 1))),
        _ => None,
    })
}

/// What `leader` had committed when, in this epoch, it asked for an ISR of itself alone: its evidence begins with that, and
/// with where its log began. What its log held beyond was committed only if it lived to hear that it was alone.
fn left_alone(history: &[Arc<PartitionChange>], leader: BrokerId, epoch: LeaderEpoch) -> Option<LastKnown> {
    let of_the_epoch = history.iter().rev().filter(|change| change.leader_epoch == epoch);
    let ends = of_the_epoch.filter_map(|change| match &change.kind {
        ChangeKind::Shrink { after, evidence, .. } if *after == [leader] && change.requested_by == Some(leader) => {
            let high_watermark = evidence.iter().find_map(|evidence| evidence.leader_end)?;
            let source = WatermarkSource::IsrChange;
            let watermark = LastWatermark { high_watermark, known: change.time, leader: Some(leader), source };
            let of_itself = evidence.iter().find(|evidence| evidence.broker == leader);
            let log_start = of_itself.and_then(|evidence| evidence.follower_end).unwrap_or_default();
            Some(LastKnown { watermark, log_start })
        }
        _ => None,
    });
    ends.max_by_key(|known| known.watermark.high_watermark)
}
