//! What compaction does to a log (R275–R279): which part of it is due, and which records stay. Pure.
//!
//! `compaction/key_map.rs` remembers where each key stands last; `compaction/cover.rs` puts together what is left of a segment.
//! Carried out by `log/clean.rs`.

use highwater_wire::batch::{BatchError, RecordBatch};
use highwater_wire::records::thin::Thinned;
use highwater_wire::{Offset, Record, Timestamp};

use super::retention::SegmentFacts;

pub mod cover;
pub mod key_map;

use key_map::KeyMap;

/// What the topic says of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionRules {
    /// `min.cleanable.dirty.ratio`, in millionths.
    pub dirty_ratio_min: u32,
    /// `min.compaction.lag.ms`
    pub lag_min_ms: u64,
    /// `max.compaction.lag.ms`
    pub lag_max_ms: u64,
    /// `delete.retention.ms`
    pub delete_retention_ms: u64,
}

impl Default for CompactionRules {
    fn default() -> Self {
        Self { dirty_ratio_min: 500_000, lag_min_ms: 0, lag_max_ms: i64::MAX as u64, delete_retention_ms: 86_400_000 }
    }
}

/// The part of a log that is to be cleaned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// Where what was never cleaned begins.
    pub dirty_from: Offset,
    /// Exclusive: where a segment ends.
    pub to: Offset,
    /// Dirty bytes of all bytes up to there; the dirtiest log is cleaned first.
    pub dirty_ratio: f64,
    /// It has waited for as long as `max.compaction.lag.ms` allows.
    pub overdue: bool,
}

/// What of a log is due (R275). `closed` are its segments but the last, the first of them with the log's beginning;
/// `bases` say where they begin; `cleaned_to` is where an earlier cleaning ended.
pub fn plan(
    closed: &[SegmentFacts],
    first_base: Offset,
    cleaned_to: Offset,
    high_watermark: Offset,
    now: Timestamp,
    rules: &CompactionRules,
) -> Option<Due> {
    let age = |segment: &SegmentFacts| u64::try_from(now.0.saturating_sub(segment.largest_timestamp.0)).unwrap_or(0);
    let settled = |segment: &&SegmentFacts| {
        segment.end <= high_watermark && (rules.lag_min_ms == 0 || age(segment) > rules.lag_min_ms)
    };
    let settled: Vec<&SegmentFacts> = closed.iter().take_while(settled).collect();
    let to = settled.last()?.end;
    let dirty_from = cleaned_to.max(first_base);
    let bytes = |dirty: bool| -> u64 {
        settled.iter().filter(|segment| (segment.end > dirty_from) == dirty).map(|segment| segment.bytes).sum()
    };
    let (dirty, clean) = (bytes(true), bytes(false));
    if dirty == 0 || to <= dirty_from {
        return None;
    }
    let dirty_ratio = dirty as f64 / (dirty + clean) as f64;
    let first_dirty = settled.iter().find(|segment| segment.end > dirty_from);
    let overdue = first_dirty.is_some_and(|segment| age(segment) > rules.lag_max_ms);
    let wanted = f64::from(rules.dirty_ratio_min) / 1e6;
    (overdue || dirty_ratio > wanted).then_some(Due { dirty_from, to, dirty_ratio, overdue })
}

/// Which records stay.
pub struct Sieve<'a> {
    /// Of every key in the dirty part, where it stands last.
    pub latest: &'a KeyMap,
    pub now: Timestamp,
    pub delete_retention_ms: u64,
}

impl Sieve<'_> {
    /// What is left of a batch. `error`: its records cannot be read.
    pub fn sift(&self, batch: &RecordBatch) -> Result<Thinned, BatchError> {
        // A marker goes with its transaction.
        if batch.is_control() {
            return Ok(Thinned::Whole);
        }
        let tombstones_go = batch.delete_horizon().is_some_and(|horizon| horizon <= self.now);
        let mut tombstones = false;
        let thinned = batch.thinned(None, |record| {
            let stays = self.stays(record, tombstones_go);
            tombstones |= stays && record.value.is_none();
            stays
        })?;
        // The first time that tombstones are met, it is noted until when they stay (KIP-534).
        if tombstones && batch.delete_horizon().is_none() {
            let horizon = self.now.0.saturating_add_unsigned(self.delete_retention_ms);
            return batch.thinned(Some(Timestamp(horizon)), |record| self.stays(record, tombstones_go));
        }
        Ok(thinned)
    }

    /// A record without a key says nothing of any key: such ones are left from a time under another policy.
    fn stays(&self, record: &Record, tombstones_go: bool) -> bool {
        let Some(key) = &record.key else { return false };
        self.latest.is_latest(key, record.offset) && (record.value.is_some() || !tombstones_go)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_wire::{LeaderEpoch, RecordBatchBuilder};

    fn segment(end: i64, bytes: u64, largest: i64) -> SegmentFacts {
        SegmentFacts { end: Offset(end), bytes, largest_timestamp: Timestamp(largest) }
    }

    fn due(cleaned: i64, watermark: i64, now: i64, rules: &CompactionRules) -> Option<(i64, i64, f64)> {
        let closed = [segment(10, 100, 1_000), segment(20, 100, 2_000), segment(30, 200, 3_000)];
        let due = plan(&closed, Offset(0), Offset(cleaned), Offset(watermark), Timestamp(now), rules)?;
        Some((due.dirty_from.0, due.to.0, due.dirty_ratio))
    }

    #[test]
    fn only_what_is_closed_and_committed_is_cleaned() {
        let rules = CompactionRules::default();
        assert_eq!(due(0, 30, 5_000, &rules), Some((0, 30, 1.0)));
        assert_eq!(due(0, 29, 5_000, &rules), Some((0, 20, 1.0)), "the third is not committed to its end");
        assert_eq!(due(0, 9, 5_000, &rules), None);
        assert_eq!(due(20, 30, 5_000, &rules), None, "half of it is dirty: not more than half");
        assert_eq!(due(10, 30, 5_000, &rules), Some((10, 30, 0.75)));
        assert_eq!(due(30, 30, 5_000, &rules), None, "nothing is dirty");
    }

    #[test]
    fn young_records_wait_and_old_ones_do_not() {
        let young = CompactionRules { lag_min_ms: 1_500, ..CompactionRules::default() };
        assert_eq!(due(0, 30, 4_000, &young), Some((0, 20, 1.0)), "the third is a second old");
        assert_eq!(due(0, 30, 2_500, &young), None);
        let old = CompactionRules { lag_max_ms: 1_500, ..CompactionRules::default() };
        assert_eq!(due(20, 30, 4_500, &old), None);
        assert_eq!(due(20, 30, 4_501, &old), Some((20, 30, 0.5)), "whatever the ratio");
    }

    fn batch() -> RecordBatch {
        let mut builder = RecordBatchBuilder::new().stamp(Offset(10), LeaderEpoch(1));
        for (key, value) in [(Some("a"), Some("1")), (Some("b"), None), (None, Some("x")), (Some("c"), Some("2"))] {
            builder.push(&Record::new(Timestamp(5), key.map(str::as_bytes), value.map(str::as_bytes)));
        }
        builder.build()
    }

    fn keys(sifted: Thinned) -> Vec<(i64, Option<Timestamp>)> {
        let Thinned::Rest(rest) = sifted else { panic!("{sifted:?}") };
        rest.records().unwrap().map(|record| (record.unwrap().offset.0, rest.delete_horizon())).collect()
    }

    #[test]
    fn the_last_of_each_key_stays_and_tombstones_until_their_horizon() {
        let mut latest = KeyMap::new(1 << 20, 16, (1, 2));
        for (key, offset) in [("a", 10), ("b", 11), ("c", 13), ("c", 40)] {
            assert!(latest.note(key.as_bytes(), Offset(offset)));
        }
        let sieve = |now| Sieve { latest: &latest, now: Timestamp(now), delete_retention_ms: 100 };
        let horizon = Some(Timestamp(1_100));
        let first = sieve(1_000).sift(&batch()).unwrap();
        assert_eq!(keys(first.clone()), [(10, horizon), (11, horizon)], "c stands later, and one has no key");
        let Thinned::Rest(first) = first else { panic!() };
        assert_eq!(sieve(1_099).sift(&first).unwrap(), Thinned::Whole);
        assert_eq!(keys(sieve(1_100).sift(&first).unwrap()), [(10, horizon)]);
        let nothing = KeyMap::new(1 << 20, 16, (1, 2));
        let other = Sieve { latest: &nothing, now: Timestamp(1_000), delete_retention_ms: 100 };
        assert_eq!(keys(other.sift(&batch()).unwrap()).len(), 3, "keys that are not in the dirty part stay");
    }
}
