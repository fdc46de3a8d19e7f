//! What leaders said of their watermarks (D12): if one is lost with its disk, that is all anybody knows of what it had
//! committed.

use std::collections::BTreeMap;

use highwater_wire::{BrokerId, LeaderEpoch, TopicPartition};

use crate::controller::{FencedBroker, KnownWatermark};
use crate::image::{MetadataImage, PartitionState};

/// Watermarks kept for all partitions together: beyond it new partitions are not taken.
const REPORTS_MAX: usize = 100_000;
/// Watermarks in one fence, so that its entry stays far below 64 KiB.
const REPORTS_PER_FENCE: usize = 1_000;

/// The newest report of each partition.
#[derive(Debug, Default)]
pub struct Reports(BTreeMap<TopicPartition, Report>);

/// What a leader said of its watermark, and in which leadership.
#[derive(Debug)]
struct Report {
    by: BrokerId,
    epoch: LeaderEpoch,
    known: KnownWatermark,
}

impl Report {
    /// Of the present leadership: what an earlier one reached may have been lost since.
    fn is_of(&self, state: &PartitionState) -> bool {
        state.leader == Some(self.by) && state.leader_epoch == self.epoch
    }
}

impl Reports {
    /// Takes what a broker says of partitions it leads; what it does not lead is left out.
    pub fn take(&mut self, image: &MetadataImage, broker: BrokerId, told: &[KnownWatermark]) {
        if self.0.len() + told.len() > REPORTS_MAX {
            self.0.retain(|at, report| image.partition(*at).is_some_and(|state| report.is_of(state)));
        }
        for known in told {
            let at = known.partition;
            let Some(state) = image.partition(at).filter(|state| state.leader == Some(broker)) else { continue };
            // Older builds do not say in which leadership.
            let epoch = known.leader_epoch.unwrap_or(state.leader_epoch);
            let report = Report { by: broker, epoch, known: known.clone() };
            // Reports may overtake each other; within a leadership the watermark only grows, and so does the log start.
            let reached = |known: &KnownWatermark| (known.high_watermark, known.log_start);
            let before = self.0.get(&at);
            if !report.is_of(state) || before.is_some_and(|it| it.is_of(state) && reached(&it.known) > reached(known)) {
                continue;
            }
            if before.is_some() || self.0.len() < REPORTS_MAX {
                self.0.insert(at, report);
            }
        }
    }

    /// What the present leader of a partition said.
    pub fn of(&self, image: &MetadataImage, at: TopicPartition) -> Option<KnownWatermark> {
        let report = self.0.get(&at)?;
        report.is_of(image.partition(at)?).then(|| report.known.clone())
    }

    /// What these brokers said of partitions that lose their whole ISR with them: where somebody stays in sync, nothing is
    /// lost.
    pub fn of_the_lost(&self, image: &MetadataImage, brokers: &[FencedBroker]) -> Vec<KnownWatermark> {
        let gone = |id: &BrokerId| brokers.iter().any(|fenced| fenced.broker == *id);
        let lost = |at: &TopicPartition, report: &Report| {
            image.partition(*at).is_some_and(|state| report.is_of(state) && state.isr.iter().all(gone))
        };
        let lost = self.0.iter().filter(|(at, report)| lost(at, report));
        lost.map(|(_, report)| report.known.clone()).take(REPORTS_PER_FENCE).collect()
    }
}

#[cfg(test)]
mod tests {
    use highwater_wire::{Offset, Timestamp, TopicId};

    use super::*;
    use crate::controller::testing::{Quorum, at};

    fn known(partition: TopicPartition, high_watermark: i64) -> KnownWatermark {
        let (high_watermark, reported) = (Offset(high_watermark), Timestamp(1));
        KnownWatermark { partition, high_watermark, reported, log_start: Offset::ZERO, leader_epoch: None }
    }

    fn fenced(quorum: &Quorum, ids: &[i32]) -> Vec<FencedBroker> {
        let fenced = |id: &i32| FencedBroker { broker: BrokerId(*id), epoch: quorum.epoch(*id), note: String::new() };
        ids.iter().map(fenced).collect()
    }

    #[test]
    fn the_last_watermarks_are_those_of_partitions_that_lose_their_whole_isr() {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[]).unwrap();
        quorum.create(2, &[2, 1], &[]).unwrap();
        quorum.create(3, &[1, 2], &[]).unwrap();
        quorum.set_isr(1, &[1]);
        quorum.set_isr(2, &[2]);
        let mut reports = Reports::default();
        let strange = TopicPartition::new(TopicId::random(), 0);
        let told = [known(at(1), 7), known(at(2), 8), known(at(3), 6), known(strange, 9)];
        reports.take(&quorum.image, BrokerId(1), &told);
        let last = |reports: &Reports, ids| reports.of_the_lost(&quorum.image, &fenced(&quorum, ids));
        assert_eq!(last(&reports, &[1]), [known(at(1), 7)], "3 has another in sync, 2 is led by another");
        assert_eq!(last(&reports, &[2]), []);
        assert_eq!(last(&reports, &[1, 2]), [known(at(1), 7), known(at(3), 6)]);
        reports.take(&quorum.image, BrokerId(1), &[known(at(1), 12)]);
        assert_eq!(last(&reports, &[1]), [known(at(1), 12)]);
        reports.take(&quorum.image, BrokerId(1), &[known(at(1), 9)]);
        assert_eq!(reports.of(&quorum.image, at(1)), Some(known(at(1), 12)), "a report that came late");
        assert_eq!(reports.of(&quorum.image, at(2)), None);
        let deleted = KnownWatermark { log_start: Offset(11), ..known(at(1), 12) };
        reports.take(&quorum.image, BrokerId(1), &[deleted.clone(), known(at(1), 12)]);
        assert_eq!(reports.of(&quorum.image, at(1)), Some(deleted), "what it deleted does not come back");
    }

    #[test]
    fn what_an_earlier_leadership_reached_says_nothing_of_this_one() {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[]).unwrap();
        let mut reports = Reports::default();
        reports.take(&quorum.image, BrokerId(1), &[known(at(1), 7)]);
        let earlier = Some(quorum.state(1).leader_epoch);
        quorum.set_isr(1, &[1]);
        quorum.fence(&[1]);
        quorum.unfence(1, &[]).unwrap();
        assert_eq!(quorum.sets(1).0, Some(1), "the same leader in another epoch");
        assert_eq!(reports.of_the_lost(&quorum.image, &fenced(&quorum, &[1])), []);
        reports.take(&quorum.image, BrokerId(1), &[KnownWatermark { leader_epoch: earlier, ..known(at(1), 7) }]);
        assert_eq!(reports.of(&quorum.image, at(1)), None, "a report that came very late");
    }
}
