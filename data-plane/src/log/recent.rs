//! Where the last batches lie, so that whoever reads at the tail needs no index and no look at the disk. Pure.

use std::collections::VecDeque;

use highwater_wire::Offset;

/// How many batches are remembered: what followers and tailing consumers may be behind by.
const BATCHES: usize = 128;

#[derive(Debug, Clone, Copy)]
struct Recent {
    /// Exclusive.
    end: Offset,
    /// In bytes since the beginning of the log, over all segments.
    position: u64,
}

/// The last batches appended, oldest first.
#[derive(Debug, Default)]
pub struct RecentBatches {
    batches: VecDeque<Recent>,
    /// The first offset that is known.
    from: Offset,
}

impl RecentBatches {
    /// Nothing is known below `from`, the end of the log.
    pub fn starting_at(from: Offset) -> Self {
        Self { batches: VecDeque::with_capacity(BATCHES), from }
    }

    /// Notes a batch that ends before `end`, at `position`.
    #[inline]
    pub fn push(&mut self, end: Offset, position: u64) {
        if self.batches.len() == BATCHES
            && let Some(oldest) = self.batches.pop_front()
        {
            self.from = oldest.end;
        }
        self.batches.push_back(Recent { end, position });
    }

    /// The position of the batch that holds `offset`, or of the next one where none does. `None`: not known, or none.
    #[inline]
    pub fn position_of(&self, offset: Offset) -> Option<u64> {
        if offset < self.from {
            return None;
        }
        let index = self.batches.partition_point(|batch| batch.end <= offset);
        self.batches.get(index).map(|batch| batch.position)
    }

    /// Forgets everything; `from` is the end of the log.
    pub fn clear(&mut self, from: Offset) {
        self.batches.clear();
        self.from = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_offsets_are_found_and_older_ones_not_guessed() {
        let mut recent = RecentBatches::starting_at(Offset(50));
        assert_eq!(recent.position_of(Offset(50)), None, "nothing there yet");
        for n in 0..200u64 {
            recent.push(Offset(50 + 10 * (n as i64 + 1)), 1_000 * n);
        }
        assert_eq!(recent.position_of(Offset(2_049)), Some(199_000));
        assert_eq!(recent.position_of(Offset(2_040)), Some(199_000));
        assert_eq!(recent.position_of(Offset(2_039)), Some(198_000));
        assert_eq!(recent.position_of(Offset(2_050)), None, "the end");
        let first_known = 50 + 10 * (200 - BATCHES as i64);
        assert_eq!(recent.position_of(Offset(first_known)), Some(72_000));
        assert_eq!(recent.position_of(Offset(first_known - 1)), None);
        recent.clear(Offset(7));
        recent.push(Offset(9), 70);
        assert_eq!(recent.position_of(Offset(7)), Some(70));
        assert_eq!(recent.position_of(Offset(6)), None);
    }
}
