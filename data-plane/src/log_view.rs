//! What pure code may know of a log: where it starts and ends, how much of it is safe, and whose epochs it holds.

use highwater_wire::{LeaderEpoch, Offset};

/// A look at a log, borrowed from it: the end offset exists once. Ends are exclusive.
#[derive(Debug, Clone, Copy)]
pub struct LogView<'a> {
    /// The first readable offset; may lie inside a batch (R2).
    pub start: Offset,
    /// The offset the next record will get.
    pub end: Offset,
    /// Everything below is synced to the disk (D23). Never above `end`.
    pub flushed_end: Offset,
    pub epochs: &'a EpochHistory,
    /// How often this log was truncated since it was opened. Offsets seen at another count may hold other records.
    pub truncations: u64,
    /// Whether producers are known whose batches were all deleted; if not, a leader must tell before anything is fetched:
    /// who leads without that would store their repeated batches twice.
    pub knows_producers: bool,
}

/// One entry: the epoch, and the first offset its leader could write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochStart {
    pub epoch: LeaderEpoch,
    pub start: Offset,
}

/// Which leader epoch began at which offset; strictly increasing in both (R147).
///
/// The last entry may be one without records: an epoch whose leader has not written yet.
#[derive(Debug, Clone, Eq, Default)]
pub struct EpochHistory {
    entries: Vec<EpochStart>,
    /// Of the deleted records just the last: its epoch, and the offset that follows it. Forgotten when the log is closed.
    below: Option<(LeaderEpoch, Offset)>,
}

impl PartialEq for EpochHistory {
    /// Of what is there, not of what was deleted.
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl EpochHistory {
    /// A history from entries in any order; what [`Self::assign`] would not keep is dropped.
    pub fn from_entries(entries: impl IntoIterator<Item = EpochStart>) -> Self {
        let mut history = Self::default();
        for entry in entries {
            history.assign(entry.epoch, entry.start);
        }
        history
    }

    /// Notes that `epoch` begins at `start`. Says whether anything changed.
    ///
    /// Nothing changes for the same epoch with a start that is not lower; otherwise entries with an epoch or a start
    /// at or above the new one make way for it (R147).
    pub fn assign(&mut self, epoch: LeaderEpoch, start: Offset) -> bool {
        if self.entries.iter().any(|entry| entry.epoch == epoch && entry.start <= start) {
            return false;
        }
        self.entries.retain(|entry| entry.epoch < epoch && entry.start < start);
        self.entries.push(EpochStart { epoch, start });
        true
    }

    /// The newest epoch noted.
    pub fn latest(&self) -> Option<LeaderEpoch> {
        self.entries.last().map(|entry| entry.epoch)
    }

    /// The newest entry.
    pub fn latest_entry(&self) -> Option<EpochStart> {
        self.entries.last().copied()
    }

    /// The largest epoch noted that is not above `epoch`, and the end of its records (R95).
    ///
    /// `None` where that is undefined: nothing noted, or `epoch` above the latest. Below the first one noted the answer
    /// is `epoch` itself with the first start.
    pub fn end_of(&self, epoch: LeaderEpoch, log_end: Offset) -> Option<(LeaderEpoch, Offset)> {
        let latest = self.latest_entry()?;
        if epoch > latest.epoch {
            return None;
        }
        if epoch == latest.epoch {
            return Some((epoch, log_end));
        }
        let above = self.entries.partition_point(|entry| entry.epoch <= epoch);
        let end = self.entries[above].start;
        Some(above.checked_sub(1).map_or((epoch, end), |floor| (self.entries[floor].epoch, end)))
    }

    /// The epoch of the record at `offset`; `None` below the first entry.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let above = self.entries.partition_point(|entry| entry.start <= offset);
        above.checked_sub(1).map(|index| self.entries[index].epoch)
    }

    /// The epoch of the record below `offset`, if that is known: also of one that was just deleted.
    pub fn epoch_below(&self, offset: Offset) -> Option<LeaderEpoch> {
        match self.below {
            Some((epoch, end)) if end == offset => Some(epoch),
            _ => self.epoch_at(Offset(offset.0 - 1)),
        }
    }

    /// Drops the entries that start at `offset` or above (R148). Says whether anything changed.
    pub fn truncate_from_end(&mut self, offset: Offset) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.start < offset);
        self.entries.len() != before
    }

    /// Drops the entries that start below `offset`, but for the last of them, which then starts at `offset` (R148).
    /// Says whether anything changed.
    pub fn truncate_from_start(&mut self, offset: Offset) -> bool {
        let below = self.entries.partition_point(|entry| entry.start < offset);
        let Some(last_below) = below.checked_sub(1) else { return false };
        self.below = Some((self.entries[last_below].epoch, offset));
        let covered = self.entries.get(below).is_some_and(|next| next.start == offset);
        self.entries.drain(..if covered { below } else { last_below });
        if !covered {
            self.entries[0].start = offset;
        }
        true
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &[EpochStart] {
        &self.entries
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.below = None;
    }

    /// Panics where the history breaks its own rules (S1).
    pub fn check_invariants(&self) {
        for pair in self.entries.windows(2) {
            assert!(pair[0].epoch < pair[1].epoch, "epochs do not increase: {pair:?}");
            assert!(pair[0].start < pair[1].start, "starts do not increase: {pair:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(entries: &[(i32, i64)]) -> EpochHistory {
        let entry = |&(epoch, start): &(i32, i64)| EpochStart { epoch: LeaderEpoch(epoch), start: Offset(start) };
        EpochHistory { entries: entries.iter().map(entry).collect(), below: None }
    }

    #[test]
    fn assigning_a_known_epoch_at_or_above_its_start_changes_nothing() {
        let mut epochs = history(&[(1, 0), (3, 10)]);
        assert!(!epochs.assign(LeaderEpoch(3), Offset(10)));
        assert!(!epochs.assign(LeaderEpoch(3), Offset(12)));
        assert!(!epochs.assign(LeaderEpoch(1), Offset(5)));
        assert_eq!(epochs, history(&[(1, 0), (3, 10)]));
    }

    #[test]
    fn an_epoch_without_records_makes_way_for_the_next() {
        let mut epochs = history(&[(1, 0), (3, 10)]);
        assert!(epochs.assign(LeaderEpoch(4), Offset(10)));
        assert_eq!(epochs, history(&[(1, 0), (4, 10)]));
        assert!(epochs.assign(LeaderEpoch(2), Offset(10)), "an older epoch with records beats a newer without");
        assert_eq!(epochs, history(&[(1, 0), (2, 10)]));
    }

    #[test]
    fn the_end_of_an_epoch_follows_r95() {
        let epochs = history(&[(2, 5), (4, 10), (7, 20)]);
        let end_of = |epoch| epochs.end_of(LeaderEpoch(epoch), Offset(33)).map(|(e, o)| (e.0, o.0));
        assert_eq!(end_of(8), None, "above the latest: undefined");
        assert_eq!(end_of(7), Some((7, 33)), "latest: the end of the log");
        assert_eq!(end_of(6), Some((4, 20)), "unknown: the largest below, up to the next");
        assert_eq!(end_of(4), Some((4, 20)));
        assert_eq!(end_of(3), Some((2, 10)));
        assert_eq!(end_of(1), Some((1, 5)), "below the first: itself, with the first start");
        assert_eq!(EpochHistory::default().end_of(LeaderEpoch(0), Offset(3)), None);
    }

    #[test]
    fn truncating_the_end_drops_what_starts_there_or_above() {
        let mut epochs = history(&[(2, 5), (4, 10), (7, 20)]);
        assert!(!epochs.truncate_from_end(Offset(21)));
        assert!(epochs.truncate_from_end(Offset(10)));
        assert_eq!(epochs, history(&[(2, 5)]));
    }

    #[test]
    fn truncating_the_start_keeps_the_entry_that_covers_it() {
        let mut epochs = history(&[(2, 5), (4, 10), (7, 20)]);
        assert!(!epochs.truncate_from_start(Offset(5)));
        assert!(epochs.truncate_from_start(Offset(12)));
        assert_eq!(epochs, history(&[(4, 12), (7, 20)]));
        assert!(
            epochs.truncate_from_start(Offset(20)),
            "an entry that starts exactly there needs no other to cover it"
        );
        assert_eq!(epochs, history(&[(7, 20)]));
        epochs.check_invariants();
    }

    #[test]
    fn of_deleted_records_the_epoch_of_the_last_is_known() {
        let mut epochs = history(&[(2, 5), (4, 10), (7, 20)]);
        assert_eq!(epochs.epoch_below(Offset(10)), Some(LeaderEpoch(2)));
        epochs.truncate_from_start(Offset(20));
        assert_eq!(epochs.epoch_below(Offset(20)), Some(LeaderEpoch(4)));
        assert_eq!(epochs.epoch_below(Offset(21)), Some(LeaderEpoch(7)));
        assert_eq!(epochs.epoch_below(Offset(19)), None);
        epochs.truncate_from_start(Offset(25));
        assert_eq!(epochs.epoch_below(Offset(25)), Some(LeaderEpoch(7)));
        assert_eq!(history(&[(7, 20)]).epoch_below(Offset(20)), None, "read from its file");
        epochs.clear();
        assert_eq!(epochs.epoch_below(Offset(25)), None);
    }

    #[test]
    fn the_epoch_of_a_record_is_that_of_the_last_entry_at_or_below_it() {
        let epochs = history(&[(2, 5), (4, 10)]);
        assert_eq!(epochs.epoch_at(Offset(4)), None);
        assert_eq!(epochs.epoch_at(Offset(9)), Some(LeaderEpoch(2)));
        assert_eq!(epochs.epoch_at(Offset(10)), Some(LeaderEpoch(4)));
    }
}
