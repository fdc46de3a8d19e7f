//! Where to start looking in a segment: sparse maps from offset to position and from time to offset. Pure.
//!
//! The bytes are Kafka's: `.index` holds entries of a 4-byte offset, relative to the segment's base, and a 4-byte
//! position; `.timeindex` of an 8-byte timestamp and a 4-byte relative offset, all big-endian. Offsets are those of the
//! last record of a batch, positions those of its first byte.

use highwater_wire::batch::BatchHeader;
use highwater_wire::{Offset, Timestamp};

const OFFSET_ENTRY_BYTES: usize = 8;
const TIME_ENTRY_BYTES: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OffsetEntry {
    /// Of the last record of the batch, relative to the segment's base.
    last: u32,
    position: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TimeEntry {
    /// The largest in the segment so far.
    timestamp: i64,
    /// Of the last record of the batch that has it.
    last: u32,
}

/// The largest timestamp of some records, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxTimestamp {
    pub timestamp: Timestamp,
    /// Of the last record of the first batch that has it.
    pub last: Offset,
}

/// The index of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SparseIndex {
    offsets: Vec<OffsetEntry>,
    times: Vec<TimeEntry>,
}

impl SparseIndex {
    /// The position to scan from for `offset`: that of a batch at or before the one that holds it.
    pub fn floor(&self, base: Offset, offset: Offset) -> u32 {
        let relative = offset.since(base);
        let above = self.offsets.partition_point(|entry| i64::from(entry.last) <= relative);
        above.checked_sub(1).map_or(0, |index| self.offsets[index].position)
    }

    /// The entry that [`Self::floor`] goes by: the last offset of a batch, and its position.
    pub fn floor_entry(&self, base: Offset, offset: Offset) -> Option<(Offset, u32)> {
        let relative = offset.since(base);
        let above = self.offsets.partition_point(|entry| i64::from(entry.last) <= relative);
        let entry = self.offsets[above.checked_sub(1)?];
        Some((base.plus(i64::from(entry.last)), entry.position))
    }

    /// The entry that [`Self::floor_of_time`] goes by: the largest timestamp up to there, and the last offset of its batch.
    pub fn floor_entry_of_time(&self, base: Offset, at: Timestamp) -> Option<MaxTimestamp> {
        let above = self.times.partition_point(|entry| entry.timestamp <= at.0);
        let entry = self.times[above.checked_sub(1)?];
        Some(MaxTimestamp { timestamp: Timestamp(entry.timestamp), last: base.plus(i64::from(entry.last)) })
    }

    /// An offset before which every record of the segment is older than `at`; the segment's base when nothing is known.
    pub fn floor_of_time(&self, base: Offset, at: Timestamp) -> Offset {
        let above = self.times.partition_point(|entry| entry.timestamp <= at.0);
        above.checked_sub(1).map_or(base, |index| base.plus(i64::from(self.times[index].last)))
    }

    /// The position of the last entry; 0 when there is none.
    pub fn last_position(&self) -> u32 {
        self.offsets.last().map_or(0, |entry| entry.position)
    }

    /// The last offset of the batch that the last entry is about.
    pub fn last_entry(&self, base: Offset) -> Option<Offset> {
        self.offsets.last().map(|entry| base.plus(i64::from(entry.last)))
    }

    /// The largest timestamp noted.
    pub fn max_timestamp(&self, base: Offset) -> Option<MaxTimestamp> {
        let entry = self.times.last()?;
        Some(MaxTimestamp { timestamp: Timestamp(entry.timestamp), last: base.plus(i64::from(entry.last)) })
    }

    /// The largest timestamp in the bytes of a `.timeindex` file whose segment does not grow any more: its last entry.
    pub fn max_timestamp_of_file(base: Offset, times: &[u8]) -> Option<MaxTimestamp> {
        let last = times.chunks_exact(TIME_ENTRY_BYTES).next_back()?;
        let timestamp = (i64::from(u32_at(last, 0)) << 32) | i64::from(u32_at(last, 4));
        Some(MaxTimestamp { timestamp: Timestamp(timestamp), last: base.plus(i64::from(u32_at(last, 8))) })
    }

    /// Whether one more entry would make a file larger than `bytes_max`.
    pub fn is_full(&self, bytes_max: u32) -> bool {
        let bytes_max = bytes_max as usize;
        (self.offsets.len() + 1) * OFFSET_ENTRY_BYTES > bytes_max
            || (self.times.len() + 1) * TIME_ENTRY_BYTES > bytes_max
    }

    fn push_time(&mut self, base: Offset, max: MaxTimestamp) {
        let Some(last) = relative(base, max.last) else { return };
        if self.times.last().is_none_or(|entry| entry.timestamp < max.timestamp.0 && entry.last < last) {
            self.times.push(TimeEntry { timestamp: max.timestamp.0, last });
        }
    }

    /// Drops what was noted of batches at `position` or behind it.
    pub fn truncate(&mut self, position: u32, base: Offset, end: Offset) {
        self.offsets.truncate(self.offsets.partition_point(|entry| entry.position < position));
        self.times.truncate(self.times.partition_point(|entry| i64::from(entry.last) < end.since(base)));
    }

    /// The bytes of the `.index` file.
    pub fn encode_offsets(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.offsets.len() * OFFSET_ENTRY_BYTES);
        for entry in &self.offsets {
            bytes.extend_from_slice(&entry.last.to_be_bytes());
            bytes.extend_from_slice(&entry.position.to_be_bytes());
        }
        bytes
    }

    /// The bytes of the `.timeindex` file.
    pub fn encode_times(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.times.len() * TIME_ENTRY_BYTES);
        for entry in &self.times {
            bytes.extend_from_slice(&entry.timestamp.to_be_bytes());
            bytes.extend_from_slice(&entry.last.to_be_bytes());
        }
        bytes
    }

    /// From the two files. What comes after the first entry that does not increase, or that points behind the segment's
    /// `size`, is left out: a shorter index is slower, never wrong.
    pub fn decode(offsets: &[u8], times: &[u8], size: u32) -> Self {
        let mut index = Self::default();
        for bytes in offsets.chunks_exact(OFFSET_ENTRY_BYTES) {
            let entry = OffsetEntry { last: u32_at(bytes, 0), position: u32_at(bytes, 4) };
            let follows =
                index.offsets.last().is_none_or(|before| entry.last > before.last && entry.position > before.position);
            if !follows || entry.position >= size {
                break;
            }
            index.offsets.push(entry);
        }
        for bytes in times.chunks_exact(TIME_ENTRY_BYTES) {
            let timestamp = (i64::from(u32_at(bytes, 0)) << 32) | i64::from(u32_at(bytes, 4));
            let entry = TimeEntry { timestamp, last: u32_at(bytes, 8) };
            let follows =
                index.times.last().is_none_or(|before| entry.timestamp > before.timestamp && entry.last > before.last);
            if !follows {
                break;
            }
            index.times.push(entry);
        }
        index
    }
}

/// Builds an index while batches are appended or scanned.
#[derive(Debug, Clone, Default)]
pub struct IndexBuilder {
    index: SparseIndex,
    bytes_since_entry: u64,
    max: Option<MaxTimestamp>,
}

impl IndexBuilder {
    /// Goes on with an index that was read back or cut. Note the batches from the position returned on: those of the last
    /// entry and behind it.
    pub fn resume(index: SparseIndex, base: Offset) -> (Self, u32) {
        let from = index.last_position();
        let max = index.max_timestamp(base);
        (Self { index, bytes_since_entry: 0, max }, from)
    }

    /// Notes a batch that begins at `position`: an entry every `interval` bytes (R270).
    #[inline]
    pub fn note(&mut self, base: Offset, header: &BatchHeader, position: u32, interval: u32) {
        let last = Offset(header.base_offset.saturating_add(i64::from(header.last_offset_delta)));
        let timestamp = Timestamp(header.max_timestamp);
        let bytes_since_entry = self.bytes_since_entry;
        self.bytes_since_entry += header.total_bytes() as u64;
        // A header that has rotted may say anything. An index without it is slower, never wrong.
        let Some(relative) = relative(base, last) else { return };
        if header.has_times() && self.max.is_none_or(|max| timestamp > max.timestamp) {
            self.max = Some(MaxTimestamp { timestamp, last });
        }
        if bytes_since_entry > u64::from(interval) {
            if self.index.offsets.last().is_none_or(|before| relative > before.last && position > before.position) {
                self.index.offsets.push(OffsetEntry { last: relative, position });
            }
            if let Some(max) = self.max {
                self.index.push_time(base, max);
            }
            self.bytes_since_entry = header.total_bytes() as u64;
        }
    }

    pub const fn index(&self) -> &SparseIndex {
        &self.index
    }

    pub const fn max_timestamp(&self) -> Option<MaxTimestamp> {
        self.max
    }

    /// The entries so far.
    pub fn into_index(self) -> SparseIndex {
        self.index
    }

    /// The index of a segment that will not grow: with its largest timestamp as the last entry, as Kafka leaves it.
    pub fn finish(mut self, base: Offset) -> SparseIndex {
        if let Some(max) = self.max {
            self.index.push_time(base, max);
        }
        self.index
    }
}

/// `None` for what cannot be of this segment: it is rolled before its offsets leave 31 bits (R269).
fn relative(base: Offset, offset: Offset) -> Option<u32> {
    u32::try_from(offset.0.checked_sub(base.0)?).ok().filter(|relative| i32::try_from(*relative).is_ok())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Offset = Offset(100);

    /// Batches of 10 records and 100 bytes each, with the timestamps given; an entry every 250 bytes.
    fn built(timestamps: &[i64]) -> IndexBuilder {
        let mut builder = IndexBuilder::default();
        for (n, &timestamp) in timestamps.iter().enumerate() {
            builder.note(BASE, &header(100 + 10 * n as i64, timestamp), 100 * n as u32, 250);
        }
        builder
    }

    fn header(base_offset: i64, max_timestamp: i64) -> BatchHeader {
        BatchHeader {
            base_offset,
            length: 88,
            leader_epoch: 0,
            crc: 0,
            attributes: 0,
            last_offset_delta: 9,
            base_timestamp: max_timestamp,
            max_timestamp,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 10,
        }
    }

    #[test]
    fn a_look_up_never_lands_behind_the_batch_sought() {
        let index = built(&[5; 20]).finish(BASE);
        assert!(index.offsets.len() > 3);
        for offset in 100..300 {
            let position = index.floor(BASE, Offset(offset));
            let batch = (offset - 100) / 10 * 100;
            assert!(i64::from(position) <= batch, "{offset} at {position}");
            assert!(batch - i64::from(position) <= 400, "{offset} at {position}: too far");
        }
    }

    #[test]
    fn times_are_noted_once_and_point_at_the_first_batch_that_has_them() {
        let index = built(&[1, 2, 9, 4, 9, 9, 9, 9, 12, 3, 3, 3, 3]).finish(BASE);
        assert_eq!(index.max_timestamp(BASE), Some(MaxTimestamp { timestamp: Timestamp(12), last: Offset(189) }));
        assert_eq!(index.floor_of_time(BASE, Timestamp(8)), BASE, "nothing known before the first entry");
        assert_eq!(index.floor_of_time(BASE, Timestamp(9)), Offset(129));
        assert_eq!(index.floor_of_time(BASE, Timestamp(11)), Offset(129));
    }

    #[test]
    fn files_read_back_in_kafkas_bytes() {
        let index = built(&[1, 2, 3, 4, 5, 6, 7, 8]).finish(BASE);
        let (offsets, times) = (index.encode_offsets(), index.encode_times());
        assert_eq!(SparseIndex::decode(&offsets, &times, 800), index);
        assert_eq!(&offsets[..8], &[0, 0, 0, 39, 0, 0, 1, 44], "offset 139, position 300");
        assert_eq!(&times[..12], &[0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 39]);
    }

    #[test]
    fn a_damaged_index_is_read_as_far_as_it_makes_sense() {
        let index = built(&[1; 30]).finish(BASE);
        let mut offsets = index.encode_offsets();
        let whole = offsets.len();
        offsets.extend_from_slice(&[0; 80]);
        assert_eq!(SparseIndex::decode(&offsets, &[], 3_000).offsets, index.offsets, "zeros of a file made longer");
        offsets.truncate(whole - 3);
        assert_eq!(SparseIndex::decode(&offsets, &[], 3_000).offsets, index.offsets[..index.offsets.len() - 1]);
        assert!(SparseIndex::decode(&offsets, &[], 1_000).offsets.iter().all(|entry| entry.position < 1_000));
    }

    #[test]
    fn a_batch_that_says_it_lies_elsewhere_is_left_out() {
        let mut builder = built(&[1; 12]);
        let before = builder.index().offsets.clone();
        for elsewhere in [i64::MIN, -1, 0, 99, 100 + (1 << 33), i64::MAX] {
            builder.note(BASE, &header(elsewhere, 1 << 40), 1_200, 0);
        }
        let kept = builder.finish(BASE);
        assert_eq!(kept.offsets, before, "a damaged header is no entry, and no panic");
    }

    #[test]
    fn truncation_forgets_what_is_behind_it() {
        let mut index = built(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).finish(BASE);
        index.truncate(600, BASE, Offset(160));
        assert!(index.offsets.iter().all(|entry| entry.position < 600));
        assert!(index.times.iter().all(|entry| entry.last < 60));
        assert!(!index.offsets.is_empty());
    }
}
