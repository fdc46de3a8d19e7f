//! The changes of one decision while it is being made, and the upkeep that follows from them: the history of each
//! partition, and its limits (D16).

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_wire::{BrokerId, Timestamp, TopicPartition};

use crate::controller::{Answer, Decision};
use crate::image::{
    CHANGES_PER_PARTITION, Change, ChangeKind, HISTORY_WEIGHT_MAX, HISTORY_WEIGHT_PER_PARTITION, MetadataImage,
    PartitionChange, PartitionState,
};

/// One decision in the making.
pub(super) struct Draft<'a> {
    /// The state before the entry.
    pub image: &'a MetadataImage,
    /// Index of the entry.
    pub index: u64,
    /// The rule version of the entry.
    pub rules: u16,
    /// The proposer's clock.
    pub time: Timestamp,
    changes: Vec<Change>,
    history_weight: u64,
}

impl<'a> Draft<'a> {
    pub fn new(image: &'a MetadataImage, index: u64, rules: u16, time: Timestamp) -> Self {
        Self { image, index, rules, time, changes: Vec::new(), history_weight: image.history_weight }
    }

    /// Adds a change that needs no upkeep.
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// A partition's new state, with what is to be remembered of the step. Once per partition and decision.
    pub fn partition(
        &mut self,
        at: TopicPartition,
        state: PartitionState,
        requested_by: Option<BrokerId>,
        kinds: Vec<ChangeKind>,
    ) {
        let before = self.image.history_of(at);
        let first = before.first().map_or(0, |change| change.sequence);
        let mut next = before.last().map_or(0, |change| change.sequence + 1);
        let (leader, leader_epoch, partition_epoch) = (state.leader, state.leader_epoch, state.partition_epoch);
        self.changes.push(Change::Partition(at, Arc::new(state)));
        for kind in kinds {
            let change = PartitionChange {
                index: self.index,
                sequence: next,
                time: self.time,
                leader,
                leader_epoch,
                partition_epoch,
                requested_by,
                kind,
            };
            self.history_weight += change.weight();
            self.changes.push(Change::History(at, Arc::new(change)));
            next += 1;
        }
        let keep_from = next.saturating_sub(CHANGES_PER_PARTITION as u64);
        if keep_from > first {
            let dropped = before.iter().take_while(|change| change.sequence < keep_from);
            self.history_weight -= dropped.map(|change| change.weight()).sum::<u64>();
            self.changes.push(Change::HistoryTrimmed(at, keep_from));
        }
    }

    /// The decision, with the histories brought back under their common limit.
    pub fn decision(mut self, answer: Answer) -> Decision {
        let partitions = self.image.history.size() as u64;
        let limit = HISTORY_WEIGHT_MAX.max(HISTORY_WEIGHT_PER_PARTITION * partitions);
        if self.history_weight > limit {
            self.trim(self.history_weight - limit / 8 * 7);
        }
        Decision { changes: self.changes, answer }
    }

    /// Drops at least `excess` of what older entries wrote, oldest entries first and each as a whole, if there is as
    /// much: the newest change of a partition stays, and so does what this entry writes. Dropping down to seven eighths
    /// makes the walk over all histories rare.
    fn trim(&mut self, excess: u64) {
        let droppable = |changes: &'a Arc<Vec<Arc<PartitionChange>>>| changes.iter().rev().skip(1);
        let mut by_entry = BTreeMap::<u64, u64>::new();
        for change in self.image.history.values().flat_map(droppable) {
            *by_entry.entry(change.index).or_default() += change.weight();
        }
        let mut dropped = 0;
        let enough = by_entry.iter().find(|(_, weight)| {
            dropped += **weight;
            dropped >= excess
        });
        let Some(last_index) = enough.or(by_entry.last_key_value()).map(|(index, _)| *index) else { return };
        for (at, changes) in &self.image.history {
            // `index` grows along a history, so those to go are at its front.
            if let Some(newest_gone) = droppable(changes).find(|change| change.index <= last_index) {
                self.changes.push(Change::HistoryTrimmed(*at, newest_gone.sequence + 1));
            }
        }
    }
}
