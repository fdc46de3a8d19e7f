//! Finding records: by offset for a read plan, by time for ListOffsets.

use std::io;
use std::sync::Arc;

use highwater_wire::batch::{BatchHeader, RecordBatch};
use highwater_wire::{LeaderEpoch, Offset, Timestamp};

use super::Log;
use super::error::TimestampHit;
use super::read_plan::{Begin, ReadPlan, Source};
use super::scan::HeaderScan;
use super::segment::{Segment, SegmentIndex, Within, is_largest, sound_floor};
use crate::disk::{Disk, DiskFile};

impl<D: Disk> Log<D> {
    /// Grants a read from the batch that holds `from` on, of whole batches that end at or below `bound`, up to
    /// `bytes_max` bytes; with `first_whole` the first batch comes even if it is larger. Touches no disk.
    ///
    /// Empty where `from` is not below `bound`. `InvalidInput` where `from` lies outside start and end (R271).
    pub fn plan_read(
        &self,
        from: Offset,
        bound: Offset,
        bytes_max: usize,
        first_whole: bool,
    ) -> io::Result<ReadPlan<D>> {
        if from < self.start || from > self.end {
            let text = format!("offset {from} is outside {}..={} of {}", self.start, self.end, self.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if self.segments.is_empty() {
            // The disk failed while the log was being emptied.
            return Err(io::Error::other(format!("{} has no file: its disk failed", self.name)));
        }
        let bound = bound.min(self.end);
        let wanted = from < bound && (bytes_max > 0 || first_whole);
        let source = if wanted { self.source_of(from) } else { None };
        let from_disk = source.as_ref().is_some_and(Source::is_from_disk);
        Ok(ReadPlan {
            source,
            epochs: from_disk.then(|| self.epochs.clone()),
            from,
            bound,
            bytes_max,
            first_whole,
            truncations: self.truncations,
            truncations_now: Arc::clone(&self.truncations_now),
        })
    }

    fn source_of(&self, from: Offset) -> Option<Source<D>> {
        if let Some(position) = self.recent.position_of(from) {
            let index = self.segments.partition_point(|segment| segment.log_position <= position).saturating_sub(1);
            let begin = Begin::At(position - self.segments[index].log_position);
            return Some(self.source(index, begin));
        }
        let index = self.segment_of(from);
        let segment = &self.segments[index];
        let begin = match &segment.index {
            SegmentIndex::Growing(builder) => Begin::ScanFrom(u64::from(builder.index().floor(segment.base, from))),
            SegmentIndex::Closed(closed) => Begin::Look(Arc::clone(closed)),
        };
        Some(self.source(index, begin))
    }

    fn source(&self, index: usize, begin: Begin<D>) -> Source<D> {
        let segment = &self.segments[index];
        Source {
            file: Arc::clone(&segment.file),
            begin,
            limit: u64::from(segment.size),
            base: segment.base,
            end: self.segments.get(index + 1).map_or(self.end, |next| next.base),
        }
    }

    /// How many bytes there are from `offset` to the end: exact for recent offsets, else up to an index interval more; in a
    /// closed segment up to the whole segment.
    pub fn bytes_from(&self, offset: Offset) -> u64 {
        if offset >= self.end {
            return 0;
        }
        let last = self.last_segment();
        let end = last.log_position + u64::from(last.size);
        let position = self.recent.position_of(offset).unwrap_or_else(|| {
            let segment = &self.segments[self.segment_of(offset)];
            let inside = match &segment.index {
                SegmentIndex::Growing(builder) => builder.index().floor(segment.base, offset),
                SegmentIndex::Closed(_) => 0,
            };
            segment.log_position + u64::from(inside)
        });
        end - position
    }

    /// The first record whose timestamp is `at` or later; may read the disk (R92). `None` where there is none.
    pub fn offset_for_timestamp(&self, at: Timestamp) -> io::Result<Option<TimestampHit>> {
        for (index, segment) in self.segments.iter().enumerate() {
            let end = self.segments.get(index + 1).map_or(self.end, |next| next.base);
            if end <= self.start || segment.max_timestamp().is_none_or(|max| max.timestamp < at) {
                continue;
            }
            let from = position_of(segment, offset_of_time(segment, at)?.max(self.start))?;
            if let Some(hit) = self.search(segment, from, |timestamp| timestamp >= at)? {
                return Ok(Some(hit));
            }
        }
        Ok(None)
    }

    /// The first record that has the largest timestamp (R92, −3). `None` for a log without records that carry one.
    pub fn max_timestamp(&self) -> io::Result<Option<TimestampHit>> {
        let maxima = self.segments.iter().filter_map(|segment| Some((segment, segment.max_timestamp()?)));
        // `max_by` keeps the last of equals; the first is wanted.
        let Some((segment, max)) = maxima.rev().max_by_key(|(_, max)| max.timestamp) else { return Ok(None) };
        let from = position_of(segment, max.last.max(segment.base))?;
        let found = self.search(segment, from, |timestamp| timestamp >= max.timestamp)?;
        if found.is_some() || self.start <= max.last {
            return Ok(found);
        }
        // The largest lies below the start: look at all that is left.
        let mut best: Option<TimestampHit> = None;
        for segment in &self.segments[self.segment_of(self.start)..] {
            self.each_record(segment, 0, |hit| {
                if best.is_none_or(|best| hit.timestamp > best.timestamp) {
                    best = Some(hit);
                }
                false
            })?;
        }
        Ok(best)
    }

    /// The first record from `position` on, not below the start, whose time is wanted. Wanted times are upwards closed.
    fn search(
        &self,
        segment: &Segment<D>,
        position: u32,
        wanted: impl Fn(Timestamp) -> bool,
    ) -> io::Result<Option<TimestampHit>> {
        let mut scan = HeaderScan::new(&*segment.file, u64::from(position), u64::from(segment.size));
        let mut hit = None;
        while let Some((position, header)) = scan.next()? {
            if header.next_offset() <= self.start || !wanted(Timestamp(header.max_timestamp)) {
                continue;
            }
            for_each_record(&*segment.file, position, &header, |found| {
                let take = found.offset >= self.start && wanted(found.timestamp);
                if take {
                    hit = Some(found);
                }
                take
            })?;
            if hit.is_some() {
                break;
            }
        }
        Ok(hit)
    }

    /// Shows every record from `position` on, not below the start, until `visit` says `true`.
    fn each_record(
        &self,
        segment: &Segment<D>,
        position: u32,
        mut visit: impl FnMut(TimestampHit) -> bool,
    ) -> io::Result<()> {
        let mut scan = HeaderScan::new(&*segment.file, u64::from(position), u64::from(segment.size));
        while let Some((position, header)) = scan.next()? {
            for_each_record(&*segment.file, position, &header, |hit| hit.offset >= self.start && visit(hit))?;
        }
        Ok(())
    }
}

/// The position of a batch at or before the one that holds `offset`.
fn position_of<D: Disk>(segment: &Segment<D>, offset: Offset) -> io::Result<u32> {
    match &segment.index {
        SegmentIndex::Closed(closed) => closed.floor(offset),
        SegmentIndex::Growing(builder) => {
            sound_floor(&*segment.file, builder.index(), segment.base, segment.size, offset)
        }
    }
}

/// An offset before which every record of the segment is older than `at`.
fn offset_of_time<D: Disk>(segment: &Segment<D>, at: Timestamp) -> io::Result<Offset> {
    let index = match &segment.index {
        SegmentIndex::Closed(closed) => return closed.floor_of_time(at),
        SegmentIndex::Growing(builder) => builder.index(),
    };
    match index.floor_entry_of_time(segment.base, at) {
        Some(max) if is_largest(&*segment.file, index, segment.base, segment.size, max, Within::ItsBatch)? => {
            Ok(max.last)
        }
        _ => Ok(segment.base),
    }
}

/// Reads one batch and shows its records until `visit` says `true`. A batch whose records cannot be read counts as its
/// last record.
fn for_each_record<F: DiskFile>(
    file: &F,
    position: u64,
    header: &BatchHeader,
    mut visit: impl FnMut(TimestampHit) -> bool,
) -> io::Result<()> {
    let leader_epoch = LeaderEpoch::from_wire(header.leader_epoch);
    let mut bytes = Vec::new();
    file.read_into(&mut bytes, header.total_bytes(), position)?;
    let batch = RecordBatch::parse(bytes.into());
    if let Ok(batch) = &batch
        && let Err(error) = batch.check_crc()
    {
        let text = format!("the batch at position {position} is damaged: {error}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let Ok(records) = batch.and_then(|batch| batch.records()) else {
        let offset = Offset(header.next_offset().0 - 1);
        visit(TimestampHit { timestamp: Timestamp(header.max_timestamp), offset, leader_epoch });
        return Ok(());
    };
    for record in records.map_while(Result::ok) {
        if visit(TimestampHit { timestamp: record.timestamp, offset: record.offset, leader_epoch }) {
            break;
        }
    }
    Ok(())
}
