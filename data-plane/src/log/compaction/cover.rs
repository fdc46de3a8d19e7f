//! What is left of a segment, without gaps: batches that are gone are covered by the one before them or by an empty one.

use highwater_wire::batch::{BatchHeader, RecordBatch};
use highwater_wire::{LeaderEpoch, Offset};

/// The most offsets that one batch can cover.
const SPAN_MAX: i64 = i32::MAX as i64;

/// Takes the batches of a segment in their order, and gives back those that are to be written.
#[derive(Default)]
pub struct Cover {
    /// The newest batch; it may still have to cover what is gone behind it.
    last: Option<RecordBatch>,
    /// Offsets whose batches are gone: from, up to and without, of which epoch.
    gone: Option<(Offset, Offset, i32)>,
}

impl Cover {
    /// A batch that stays; `write` gets what is complete.
    pub fn stays(&mut self, batch: RecordBatch, write: &mut impl FnMut(RecordBatch)) {
        self.close_gap(write);
        if let Some(last) = self.last.replace(batch) {
            write(last);
        }
    }

    /// A batch that goes.
    pub fn goes(&mut self, header: &BatchHeader, write: &mut impl FnMut(RecordBatch)) {
        let (from, to) = (Offset(header.base_offset), header.next_offset());
        match &mut self.gone {
            Some((first, end, epoch)) if *epoch == header.leader_epoch && to.since(*first) <= SPAN_MAX => *end = to,
            _ => {
                self.close_gap(write);
                self.gone = Some((from, to, header.leader_epoch));
            }
        }
    }

    /// Nothing more comes.
    pub fn end(mut self, write: &mut impl FnMut(RecordBatch)) {
        self.close_gap(write);
        if let Some(last) = self.last {
            write(last);
        }
    }

    /// Covers what is gone: by stretching the batch before it where that is of the same epoch and of no producer.
    fn close_gap(&mut self, write: &mut impl FnMut(RecordBatch)) {
        let Some((from, to, epoch)) = self.gone.take() else { return };
        let last_gone = Offset(to.0 - 1);
        let stretchable = |last: &RecordBatch| {
            last.may_stretch()
                && last.header().leader_epoch == epoch
                && last.next_offset() == from
                && to.since(last.base_offset()) <= SPAN_MAX
        };
        match self.last.take() {
            Some(last) if stretchable(&last) => self.last = Some(last.stretched_to(last_gone)),
            last => {
                if let Some(last) = last {
                    write(last);
                }
                self.last = Some(RecordBatch::empty(from, last_gone, LeaderEpoch(epoch)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_wire::{ProducerEpoch, ProducerId, RecordBatchBuilder, Timestamp};

    /// Batches of two records each; a letter for what becomes of each: `s` stays, `p` stays and has a producer, `g` goes.
    /// Digits are epochs.
    fn covered(story: &str) -> Vec<(i64, i64, i32, i32)> {
        let (mut cover, mut written, mut next, mut epoch) = (Cover::default(), Vec::new(), 0, 0);
        let mut write = |batch: RecordBatch| {
            batch.validate_from_leader().unwrap();
            let header = batch.header();
            written.push((header.base_offset, header.next_offset().0, header.leader_epoch, header.record_count));
        };
        for what in story.chars() {
            if let Some(digit) = what.to_digit(10) {
                epoch = digit as i32;
                continue;
            }
            let mut builder = RecordBatchBuilder::new().stamp(Offset(next), LeaderEpoch(epoch));
            if what == 'p' {
                builder = builder.producer(ProducerId(1), ProducerEpoch(0), 0);
            }
            let batch = builder.value(Timestamp(1), b"a").value(Timestamp(1), b"b").build();
            next += 2;
            match what {
                'g' => cover.goes(batch.header(), &mut write),
                _ => cover.stays(batch, &mut write),
            }
        }
        cover.end(&mut write);
        written
    }

    #[test]
    fn what_is_gone_is_covered_by_the_batch_before_it_where_that_can() {
        assert_eq!(covered("ss"), [(0, 2, 0, 2), (2, 4, 0, 2)]);
        assert_eq!(covered("sggs"), [(0, 6, 0, 2), (6, 8, 0, 2)]);
        assert_eq!(covered("ggs"), [(0, 4, 0, 0), (4, 6, 0, 2)]);
        assert_eq!(covered("pgs"), [(0, 2, 0, 2), (2, 4, 0, 0), (4, 6, 0, 2)]);
        assert_eq!(covered("sg1gs"), [(0, 4, 0, 2), (4, 6, 1, 0), (6, 8, 1, 2)]);
        assert_eq!(covered("gggg"), [(0, 8, 0, 0)]);
        assert_eq!(covered("g1g2gg"), [(0, 2, 0, 0), (2, 4, 1, 0), (4, 8, 2, 0)]);
        assert_eq!(covered(""), []);
    }

    #[test]
    fn no_batch_covers_more_than_it_can_say() {
        let (mut cover, mut written) = (Cover::default(), Vec::new());
        let wide = |base: i64| *RecordBatch::empty(Offset(base), Offset(base + (1 << 30) - 1), LeaderEpoch(0)).header();
        let mut write = |batch: RecordBatch| written.push((batch.base_offset().0, batch.next_offset().0));
        (0..4).for_each(|n| cover.goes(&wide(n << 30), &mut write));
        cover.end(&mut write);
        let gib = 1 << 30;
        assert_eq!(written, [(0, gib), (gib, 2 * gib), (2 * gib, 3 * gib), (3 * gib, 4 * gib)]);
    }
}
