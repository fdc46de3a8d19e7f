//! One segment: a file of batches, and where to find them in it.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use highwater_wire::{Offset, Timestamp};

use super::LogSettings;
use super::index::{IndexBuilder, MaxTimestamp, SparseIndex};
use super::scan::HeaderScan;
use crate::disk::{Disk, DiskFile};

/// The name of a segment's file: 20 digits and an ending.
pub fn file_name(base: Offset, ending: &str) -> String {
    format!("{:020}.{ending}", base.0)
}

/// The base offset and ending of a segment's file.
pub fn parse_file_name(name: &str) -> Option<(Offset, &str)> {
    let (digits, ending) = name.split_once('.')?;
    if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((Offset(digits.parse().ok()?), ending))
}

/// A segment. The last one of a log grows; the others do not change any more.
pub struct Segment<D: Disk> {
    pub base: Offset,
    pub file: Arc<D::File>,
    /// Bytes that belong to the log; a failed write may have left more in the file.
    pub size: u32,
    /// Bytes in the segments before, removed ones included.
    pub log_position: u64,
    /// The largest timestamp of the first batch: what `segment.ms` counts from (R269).
    pub first_timestamp: Option<Timestamp>,
    /// When the file was made or opened: what counts where records carry no time.
    pub created: Timestamp,
    pub index: SegmentIndex<D>,
}

/// The index of a segment.
pub enum SegmentIndex<D: Disk> {
    Growing(IndexBuilder),
    Closed(Arc<ClosedIndex<D>>),
}

impl<D: Disk> Segment<D> {
    /// An empty one.
    pub fn empty(base: Offset, file: D::File, log_position: u64, created: Timestamp) -> Self {
        Self {
            base,
            file: Arc::new(file),
            size: 0,
            log_position,
            first_timestamp: None,
            created,
            index: SegmentIndex::Growing(IndexBuilder::default()),
        }
    }

    pub fn max_timestamp(&self) -> Option<MaxTimestamp> {
        match &self.index {
            SegmentIndex::Growing(builder) => builder.max_timestamp(),
            SegmentIndex::Closed(closed) => closed.max,
        }
    }

    /// Whether a batch may not be appended here any more (R269). `pending` are bytes, and the time of the first of them,
    /// that will be appended before it.
    pub fn is_due(
        &self,
        settings: &LogSettings,
        pending: (u32, Option<Timestamp>),
        next: NextBatch,
        now: Timestamp,
    ) -> bool {
        let SegmentIndex::Growing(builder) = &self.index else { return true };
        let (pending_bytes, pending_first) = pending;
        let size = u64::from(self.size) + u64::from(pending_bytes);
        if size == 0 {
            return false;
        }
        let bytes_max = u64::from(settings.segment_bytes_max).min(i32::MAX as u64);
        let age_max = settings.segment_ms.saturating_sub(self.jitter(settings));
        let first = self.first_timestamp.or(pending_first).filter(|first| first.0 >= 0);
        let age = match first {
            Some(first) => next.timestamp.0.saturating_sub(first.0),
            None => now.0.saturating_sub(self.created.0),
        };
        size + next.bytes as u64 > bytes_max
            || u64::try_from(age).is_ok_and(|age| age > age_max)
            || builder.index().is_full(settings.index_bytes_max)
            || next.last.since(self.base) > i64::from(i32::MAX)
    }

    /// Whether it is old enough by the clock to be closed, though nothing is appended.
    pub fn is_old(&self, settings: &LogSettings, now: Timestamp) -> bool {
        let age = now.0.saturating_sub(self.created.0);
        let age_max = settings.segment_ms.saturating_sub(self.jitter(settings));
        self.size > 0 && u64::try_from(age).is_ok_and(|age| age > age_max)
    }

    /// `segment.jitter.ms`, spread over segments without drawing lots.
    fn jitter(&self, settings: &LogSettings) -> u64 {
        match settings.segment_jitter_ms {
            0 => 0,
            jitter => (self.base.0 as u64 ^ self.created.0 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % jitter,
        }
    }

    /// It will not grow any more. The index returned is still to be written.
    pub fn close(&mut self, disk: &D, log: &Path, interval: u32) -> Option<Arc<ClosedIndex<D>>> {
        let SegmentIndex::Growing(builder) = &mut self.index else { return None };
        let closed = ClosedIndex::built(disk, log, self.base, &self.file, self.size, interval, std::mem::take(builder));
        self.index = SegmentIndex::Closed(Arc::clone(&closed));
        Some(closed)
    }

    /// A closed segment found on the disk, its index unread. Its largest timestamp is the last one of its time index; where
    /// that is missing the index is built anew from the batches (R270).
    pub fn open_closed(
        disk: &D,
        log: &Path,
        base: Offset,
        file: D::File,
        log_position: u64,
        interval: u32,
        now: Timestamp,
    ) -> io::Result<Self> {
        let size = length(&file)?;
        let file = Arc::new(file);
        let index = OnceLock::new();
        let times = disk.read(&log.join(file_name(base, "timeindex"))).unwrap_or_default();
        let mut max = SparseIndex::max_timestamp_of_file(base, &times);
        let offsets = disk.read(&log.join(file_name(base, "index"))).unwrap_or_default();
        let found = SparseIndex::decode(&offsets, &times, size);
        // Retention goes by it: a wrong one would take a segment away.
        if size > 0 && !max.map_or(Ok(false), |max| is_largest(&*file, &found, base, size, max, Within::TheSegment))? {
            let (rebuilt, rebuilt_max) = build(&*file, base, size, interval)?;
            max = rebuilt_max;
            let _ = index.set(rebuilt);
        }
        let closed = ClosedIndex {
            disk: disk.clone(),
            log: log.to_owned(),
            base,
            file: Arc::clone(&file),
            size,
            interval,
            max,
            index,
            rebuilt: OnceLock::new(),
        };
        Ok(Self {
            base,
            file,
            size,
            log_position,
            first_timestamp: None,
            created: now,
            index: SegmentIndex::Closed(Arc::new(closed)),
        })
    }
}

/// What a batch asks of the segment it is to go to.
#[derive(Debug, Clone, Copy)]
pub struct NextBatch {
    pub bytes: usize,
    /// The largest of its records.
    pub timestamp: Timestamp,
    /// The offset its last record will have.
    pub last: Offset,
}

/// The length of a segment file; an error where positions would not fit an index.
pub fn length<F: DiskFile>(file: &F) -> io::Result<u32> {
    let len = file.len()?;
    u32::try_from(len).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("a segment of {len} bytes")))
}

fn build<F: DiskFile>(
    file: &F,
    base: Offset,
    size: u32,
    interval: u32,
) -> io::Result<(SparseIndex, Option<MaxTimestamp>)> {
    let mut builder = IndexBuilder::default();
    let mut scan = HeaderScan::new(file, 0, u64::from(size));
    loop {
        match scan.next() {
            Ok(Some((position, header))) => builder.note(base, &header, position as u32, interval),
            Ok(None) => break,
            // Whoever reads there is told; the batches before are still found.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => break,
            Err(error) => return Err(error),
        }
    }
    let max = builder.max_timestamp();
    Ok((builder.finish(base), max))
}

/// Whether a batch whose last offset is `last` begins at `position`.
fn is_batch_at<F: DiskFile>(file: &F, position: u32, size: u32, last: Offset) -> io::Result<bool> {
    match HeaderScan::new(file, u64::from(position), u64::from(size)).next() {
        Ok(found) => Ok(found.is_some_and(|(_, header)| header.next_offset() == last.plus(1))),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error),
    }
}

/// The position of a batch at or before the one that holds `offset`: where the index says, if a batch with that last offset
/// lies there, else the beginning of the file.
pub fn sound_floor<F: DiskFile>(
    file: &F,
    index: &SparseIndex,
    base: Offset,
    size: u32,
    offset: Offset,
) -> io::Result<u32> {
    match index.floor_entry(base, offset) {
        Some((last, position)) if is_batch_at(file, position, size, last)? => Ok(position),
        _ => Ok(0),
    }
}

/// How far a claim of an index about the largest timestamp is looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Within {
    /// The batch that ends with `max.last` has it.
    ItsBatch,
    /// And no batch behind that one has a larger one: an index may have been cut.
    TheSegment,
}

/// Whether `max` is what an index may say of the segment.
pub fn is_largest<F: DiskFile>(
    file: &F,
    index: &SparseIndex,
    base: Offset,
    size: u32,
    max: MaxTimestamp,
    within: Within,
) -> io::Result<bool> {
    let from = sound_floor(file, index, base, size, max.last)?;
    let mut scan = HeaderScan::new(file, u64::from(from), u64::from(size));
    let mut found = false;
    loop {
        match scan.next() {
            Ok(Some((_, header))) if header.next_offset() <= max.last => {}
            Ok(Some((_, header))) if found => {
                if header.has_times() && header.max_timestamp > max.timestamp.0 {
                    return Ok(false);
                }
            }
            Ok(Some((_, header))) => {
                found = header.next_offset() == max.last.plus(1) && header.max_timestamp == max.timestamp.0;
                if !found || within == Within::ItsBatch {
                    return Ok(found);
                }
            }
            Ok(None) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(found),
            Err(error) => return Err(error),
        }
    }
}

/// The index of a segment that does not change any more: read when it is first asked for, built anew where it is lost.
pub struct ClosedIndex<D: Disk> {
    disk: D,
    log: PathBuf,
    pub base: Offset,
    file: Arc<D::File>,
    size: u32,
    interval: u32,
    max: Option<MaxTimestamp>,
    index: OnceLock<SparseIndex>,
    /// In its place once an entry was found to be wrong.
    rebuilt: OnceLock<SparseIndex>,
}

impl<D: Disk> ClosedIndex<D> {
    /// Of a segment that was just written as a whole.
    pub fn built(
        disk: &D,
        log: &Path,
        base: Offset,
        file: &Arc<D::File>,
        size: u32,
        interval: u32,
        builder: IndexBuilder,
    ) -> Arc<Self> {
        Arc::new(Self {
            disk: disk.clone(),
            log: log.to_owned(),
            base,
            file: Arc::clone(file),
            size,
            interval,
            max: builder.max_timestamp(),
            index: OnceLock::from(builder.finish(base)),
            rebuilt: OnceLock::new(),
        })
    }

    /// The index. May read the disk; an error only where the segment itself cannot be read (R270).
    pub fn get(&self) -> io::Result<&SparseIndex> {
        if let Some(index) = self.rebuilt.get().or_else(|| self.index.get()) {
            return Ok(index);
        }
        let read = |ending| self.disk.read(&self.log.join(file_name(self.base, ending)));
        let index = match (read("index"), read("timeindex")) {
            (Ok(offsets), Ok(times)) => SparseIndex::decode(&offsets, &times, self.size),
            _ => build(&*self.file, self.base, self.size, self.interval)?.0,
        };
        Ok(self.index.get_or_init(|| index))
    }

    /// The position of a batch at or before the one that holds `offset`. The entry it goes by is compared with its batch: an
    /// index that has rotted is built anew (R270).
    pub fn floor(&self, offset: Offset) -> io::Result<u32> {
        match self.get()?.floor_entry(self.base, offset) {
            None => Ok(0),
            Some((last, position)) if is_batch_at(&*self.file, position, self.size, last)? => Ok(position),
            Some(_) => Ok(self.rebuild()?.floor(self.base, offset)),
        }
    }

    /// An offset before which every record is older than `at`; checked in the same way.
    pub fn floor_of_time(&self, at: Timestamp) -> io::Result<Offset> {
        let index = self.get()?;
        match index.floor_entry_of_time(self.base, at) {
            None => Ok(self.base),
            Some(max) if is_largest(&*self.file, index, self.base, self.size, max, Within::ItsBatch)? => Ok(max.last),
            Some(_) => Ok(self.rebuild()?.floor_of_time(self.base, at)),
        }
    }

    /// Puts another index in the place of one that is wrong.
    fn rebuild(&self) -> io::Result<&SparseIndex> {
        let (rebuilt, _) = build(&*self.file, self.base, self.size, self.interval)?;
        Ok(self.rebuilt.get_or_init(|| rebuilt))
    }

    /// Writes both index files and syncs them.
    pub fn write(&self) -> io::Result<()> {
        let index = self.get()?;
        for (ending, content) in [("index", index.encode_offsets()), ("timeindex", index.encode_times())] {
            let file = self.disk.create(&self.log.join(file_name(self.base, ending)))?;
            file.write_at(&[IoSlice::new(&content)], 0)?;
            file.sync_data()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_read_back() {
        assert_eq!(file_name(Offset(170), "log"), "00000000000000000170.log");
        assert_eq!(parse_file_name("00000000000000000170.log"), Some((Offset(170), "log")));
        assert_eq!(parse_file_name("00000000000000000170.log.deleted"), Some((Offset(170), "log.deleted")));
        assert_eq!(parse_file_name("170.log"), None);
        assert_eq!(parse_file_name("leader-epoch-checkpoint"), None);
    }
}
