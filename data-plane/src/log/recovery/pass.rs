//! One pass over the segments of a log: trusted after a clean stop, checked after any other.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::batch::BatchHeader;
use highwater_wire::{LeaderEpoch, Offset, Timestamp};

use super::super::LogSettings;
use super::super::index::{IndexBuilder, SparseIndex};
use super::super::log_dir::Marks;
use super::super::scan::{self, HeaderScan};
use super::super::segment::{ClosedIndex, Segment, SegmentIndex, Within, file_name, is_largest, length};
use super::files::Files;
use super::{Cut, Parts, RecoveryReport, newest_snapshot, next_position, replay_producers, segment_of};
use crate::disk::{Disk, DiskFile};
use crate::log_view::EpochHistory;

/// What a pass needs to know.
pub struct Recovery<'a, D: Disk> {
    pub disk: &'a D,
    pub path: &'a Path,
    pub settings: &'a LogSettings,
    pub marks: Marks,
    pub now: Timestamp,
}

impl<D: Disk> Recovery<'_, D> {
    /// Opens what the directory holds: as it was closed, or checked from the recovery point on (R20). Gives the parts of
    /// the log, its end, and what was done to it.
    ///
    /// # Errors
    /// The disk failed; what is damaged in the files is no error but cut.
    pub fn run(
        mut self,
        mut files: Files,
        epochs: Option<EpochHistory>,
    ) -> io::Result<(Parts<D>, Offset, RecoveryReport)> {
        if files.segments.is_empty() {
            self.disk.create(&self.path.join(file_name(self.marks.start, "log")))?;
            files.segments.push(self.marks.start);
        }
        let mut clean = self.marks.clean;
        let mut bytes_scanned = 0;
        let mut cut = None;
        let opened = if clean { self.open_clean(&files.segments)? } else { None };
        if opened.is_none() {
            self.marks.recovery_point = self.trusted_end(&files.segments, epochs.as_ref())?;
        }
        let (mut segments, mut end) = match opened {
            Some(opened) => opened,
            None => {
                clean = false;
                let (opened, scanned, found) = self.check(&files.segments)?;
                (bytes_scanned, cut) = (scanned, found);
                opened
            }
        };
        let epochs = match epochs {
            Some(history) if !self.is_history_of(&history, &segments, end)? => None,
            epochs => epochs,
        };
        let start_doubted = clean && self.start_is_doubtful(epochs.as_ref(), segments[0].base, end);
        let epochs = if start_doubted {
            // Of two that do not agree, the one that hides no record; the epochs are then read from the batches.
            let in_history = epochs.as_ref().and_then(|history| history.entries().first()).map(|first| first.start);
            self.marks.start = in_history.unwrap_or_default().min(self.marks.start);
            None
        } else {
            epochs
        };
        let emptied = end < self.marks.start;
        if emptied {
            (segments, end) = self.start_over(segments)?;
        }
        let forgotten = planted(Flaw::ForgetsLogStart);
        let start = if forgotten { segments[0].base } else { self.marks.start.max(segments[0].base) };
        let recovery_point = if clean { end } else { self.marks.recovery_point.min(end) };
        // The one where the log begins tells of what was deleted: nothing that is found here can contradict it.
        self.drop_snapshots_above(&mut files.snapshots, recovery_point.max(segments[0].base))?;
        let (mut producers, from) = newest_snapshot(self.disk, self.path, &mut files.snapshots, end)?;
        replay_producers(&segments, from, &mut producers)?;
        if planted(Flaw::ForgetsProducers) {
            producers.clear();
        }
        let stored = epochs.clone().unwrap_or_default();
        let epochs = if emptied { EpochHistory::default() } else { self.epochs(epochs, clean, &segments, start, end)? };
        let report = RecoveryReport {
            created: false,
            clean,
            bytes_scanned,
            cut,
            emptied,
            start_doubted,
            start,
            end,
            watermark_checkpoint: self.marks.watermark,
        };
        // An epoch without records that was left out here must not come back from the file: what is appended next may be of
        // an older epoch, and would be taken for records of that one.
        let epochs_synced = clean && !emptied && stored == epochs;
        let unwritten_indexes = if clean { Vec::new() } else { self.closed_again(&segments) };
        let parts = Parts {
            segments,
            end,
            epochs,
            producers,
            snapshots: files.snapshots,
            flushed_end: recovery_point,
            unwritten_indexes,
            synced: clean && !emptied,
            epochs_synced,
        };
        Ok((parts, start, report))
    }

    /// All segments as a clean stop left them (R19); `None` where the last one is not as it should be.
    fn open_clean(&self, bases: &[Offset]) -> io::Result<Option<(Vec<Segment<D>>, Offset)>> {
        let mut segments = self.open_closed(bases.split_last().map_or(&[][..], |(_, closed)| closed))?;
        let Some(&base) = bases.last() else { return Ok(None) };
        let file = self.disk.open(&self.path.join(file_name(base, "log")))?;
        let size = length(&file)?;
        let read = |ending| self.disk.read(&self.path.join(file_name(base, ending))).unwrap_or_default();
        let mut index = SparseIndex::decode(&read("index"), &read("timeindex"), size);
        if !index
            .max_timestamp(base)
            .map_or(Ok(true), |max| is_largest(&file, &index, base, size, max, Within::ItsBatch))?
        {
            index = SparseIndex::default();
        }
        let (mut builder, from) = IndexBuilder::resume(index, base);
        let mut end = base;
        let entry = builder.index().last_entry(base);
        let mut scan = HeaderScan::new(&file, u64::from(from), u64::from(size));
        loop {
            match scan.next() {
                // Offsets are outside the CRC; where one leaves a gap, or is not what the index says, everything is looked at.
                Ok(Some((position, header)))
                    if header.last_offset_delta >= 0
                        && if position == u64::from(from) {
                            entry.map_or(header.base_offset == base.0, |last| header.next_offset() == last.plus(1))
                        } else {
                            header.base_offset == end.0
                        } =>
                {
                    builder.note(base, &header, position as u32, self.settings.index_interval_bytes);
                    end = header.next_offset();
                }
                Ok(None) => break,
                Ok(Some(_)) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let first_timestamp = HeaderScan::new(&file, 0, u64::from(size)).next()?;
        let mut segment = Segment::empty(base, file, next_position(&segments), self.now);
        segment.size = size;
        segment.first_timestamp = first_timestamp.map(|(_, header)| Timestamp(header.max_timestamp));
        segment.index = SegmentIndex::Growing(builder);
        segments.push(segment);
        Ok(Some((segments, end)))
    }

    fn open_closed(&self, bases: &[Offset]) -> io::Result<Vec<Segment<D>>> {
        let mut segments: Vec<Segment<D>> = Vec::with_capacity(bases.len() + 1);
        for &base in bases {
            let file = self.disk.open(&self.path.join(file_name(base, "log")))?;
            let (position, interval) = (next_position(&segments), self.settings.index_interval_bytes);
            segments.push(Segment::open_closed(self.disk, self.path, base, file, position, interval, self.now)?);
        }
        Ok(segments)
    }

    /// The recovery point, or the base of an earlier segment that is not as a sync left it. That takes a truncation which
    /// power loss cut short: a segment may then end before the next begins, and what a leader wrote on before its truncation
    /// was synced begins with an epoch that the stored history does not have there.
    fn trusted_end(&self, bases: &[Offset], stored: Option<&EpochHistory>) -> io::Result<Offset> {
        let recovery_point = self.marks.recovery_point;
        for (index, &base) in bases.iter().enumerate().take_while(|&(_, &base)| base <= recovery_point) {
            let next = bases.get(index + 1).copied().filter(|&next| next <= recovery_point);
            match self.is_as_synced(base, next, stored) {
                Ok(true) => {}
                Ok(false) => return Ok(base),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(base),
                Err(error) => return Err(error),
            }
        }
        Ok(recovery_point)
    }

    fn is_as_synced(&self, base: Offset, next: Option<Offset>, stored: Option<&EpochHistory>) -> io::Result<bool> {
        let file = self.disk.open(&self.path.join(file_name(base, "log")))?;
        let size = length(&file)?;
        let known = |header: &BatchHeader| {
            let synced = header.base_offset < self.marks.recovery_point.0;
            stored.filter(|_| synced).and_then(|epochs| epochs.epoch_at(Offset(header.base_offset)))
        };
        let strange = |header: &BatchHeader| known(header).is_some_and(|known| known.0 != header.leader_epoch);
        let mut scan = HeaderScan::new(&file, 0, u64::from(size));
        if let Some((_, first)) = scan.next()?
            && strange(&first)
        {
            // Where the second one is what it should be, the first one's header has rotted: whoever reads it is told.
            let second = scan.next()?.map(|(_, second)| second);
            if !second.is_some_and(|second| known(&second).is_some() && !strange(&second)) {
                return Ok(false);
            }
        }
        let Some(next) = next else { return Ok(true) };
        let offsets = self.disk.read(&self.path.join(file_name(base, "index"))).unwrap_or_default();
        let from = SparseIndex::decode(&offsets, &[], size).last_position();
        let mut end = base;
        let mut scan = HeaderScan::new(&file, u64::from(from), u64::from(size));
        while let Some((_, header)) = scan.next()? {
            end = header.next_offset();
        }
        Ok(end == next)
    }

    /// Reads and checks everything from the segment of the recovery point on (R20).
    #[allow(clippy::type_complexity)]
    fn check(&self, bases: &[Offset]) -> io::Result<((Vec<Segment<D>>, Offset), u64, Option<Cut>)> {
        let first = bases.partition_point(|&base| base <= self.marks.recovery_point).saturating_sub(1);
        let mut segments = self.open_closed(&bases[..first])?;
        let mut scanned = 0;
        let mut end = bases[first];
        for (index, &base) in bases.iter().enumerate().skip(first) {
            if base != end {
                let reason = format!("segment {base} does not begin at the end {end} of the one before");
                let cut = self.cut(&bases[index..], 0, end, false, reason)?;
                return Ok(((segments, end), scanned, Some(cut)));
            }
            if let Some(before) = segments.last_mut()
                && index > first
            {
                before.close(self.disk, self.path, self.settings.index_interval_bytes);
            }
            let (segment, segment_end, bad) = self.check_segment(base, next_position(&segments))?;
            scanned += u64::from(segment.size);
            end = segment_end;
            let (file, size) = (Arc::clone(&segment.file), u64::from(segment.size));
            segments.push(segment);
            if let Some(bad) = bad {
                let left = file.len()? - size;
                // Durable before anything is appended here: a stale batch further on, whole and with a right CRC, would
                // look like a record (D25).
                file.set_len(size)?;
                file.sync_data()?;
                let only = bad.incomplete && index + 1 == bases.len();
                let reason = format!("segment {base}, position {}: {}", bad.position, bad.reason);
                let cut = self.cut(&bases[index + 1..], left, end, only, reason)?;
                return Ok(((segments, end), scanned, Some(cut)));
            }
        }
        Ok(((segments, end), scanned, None))
    }

    fn check_segment(&self, base: Offset, log_position: u64) -> io::Result<(Segment<D>, Offset, Option<scan::Bad>)> {
        let file = self.disk.open(&self.path.join(file_name(base, "log")))?;
        let len = length(&file)?;
        let mut builder = IndexBuilder::default();
        let (mut end, mut size, mut first_timestamp) = (base, 0, None);
        let note = |position: u64, header: &BatchHeader| {
            builder.note(base, header, position as u32, self.settings.index_interval_bytes);
            first_timestamp.get_or_insert(Timestamp(header.max_timestamp));
            end = header.next_offset();
            size = position as u32 + header.total_bytes() as u32;
        };
        let bad = scan::check_batches(&file, u64::from(len), base.0, base.0.saturating_add(i64::from(i32::MAX)), note)?;
        let mut segment = Segment::empty(base, file, log_position, self.now);
        segment.size = size;
        segment.first_timestamp = first_timestamp;
        segment.index = SegmentIndex::Growing(builder);
        Ok((segment, end, bad))
    }

    /// The indexes of the closed segments that were checked: what the disk has of them may be old.
    fn closed_again(&self, segments: &[Segment<D>]) -> Vec<Arc<ClosedIndex<D>>> {
        let checked = &segments[segment_of(segments, self.marks.recovery_point)..];
        let indexes = checked.iter().filter_map(|segment| match &segment.index {
            SegmentIndex::Growing(_) => None,
            SegmentIndex::Closed(closed) => Some(Arc::clone(closed)),
        });
        indexes.collect()
    }

    /// Removes whole segments behind a cut, durably: they must not come back behind what is appended next.
    fn cut(&self, later: &[Offset], left: u64, at: Offset, only: bool, reason: String) -> io::Result<Cut> {
        let mut bytes = left;
        for &base in later.iter().rev() {
            let path = self.path.join(file_name(base, "log"));
            bytes += self.disk.open(&path)?.len()?;
            self.disk.remove(&path)?;
        }
        self.disk.sync_dir(self.path)?;
        Ok(Cut { at, bytes, segments: later.len(), incomplete_last_batch_only: only, reason })
    }

    /// The log ended below its start: all of it goes (R22).
    fn start_over(&self, segments: Vec<Segment<D>>) -> io::Result<(Vec<Segment<D>>, Offset)> {
        for segment in segments.iter().rev() {
            self.disk.remove(&self.path.join(file_name(segment.base, "log")))?;
        }
        let start = self.marks.start;
        let file = self.disk.create(&self.path.join(file_name(start, "log")))?;
        self.disk.sync_dir(self.path)?;
        Ok((vec![Segment::empty(start, file, 0, self.now)], start))
    }

    /// Whether what is stored of epochs is what the batches say, as far as it was synced: each entry begins with a batch of
    /// its epoch. A history that has rotted would cut a log at the wrong place (R158).
    fn is_history_of(&self, history: &EpochHistory, segments: &[Segment<D>], end: Offset) -> io::Result<bool> {
        let first = segments[0].base;
        let synced = self.marks.recovery_point.max(first).min(end);
        let until = if self.marks.clean { end } else { synced };
        // The file may not know yet that older segments were deleted.
        let mut history = history.clone();
        history.truncate_from_start(first);
        let speaks = history.entries().first().is_some_and(|first| first.start < end);
        if !speaks && self.batches_from(segments, first)?.first().is_some_and(|at| at.leader_epoch >= 0) {
            return Ok(false);
        }
        for (number, entry) in history.entries().iter().enumerate().filter(|(_, entry)| entry.start < until) {
            let found = self.batches_from(segments, entry.start)?;
            // The first one may begin inside a batch, where the log does.
            let Some(at) = found.first().filter(|at| number == 0 || at.base_offset == entry.start.0) else {
                return Ok(false);
            };
            // Where the batch that is to begin the epoch says another one, the next one tells which of the two has rotted.
            let next_entry = history.entries().get(number + 1).map_or(end, |next| next.start);
            let next = found.get(1).filter(|next| next.base_offset < next_entry.0);
            if at.leader_epoch != entry.epoch.0 && next.is_none_or(|next| next.leader_epoch != entry.epoch.0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The batch that holds `offset`, or the first one behind it, and the one behind that, as far as they can be read.
    fn batches_from(&self, segments: &[Segment<D>], offset: Offset) -> io::Result<Vec<BatchHeader>> {
        let mut found = Vec::new();
        for segment in &segments[segment_of(segments, offset)..] {
            let from = match &segment.index {
                SegmentIndex::Closed(closed) => closed.floor(offset)?,
                SegmentIndex::Growing(builder) => builder.index().floor(segment.base, offset),
            };
            let mut scan = HeaderScan::new(&*segment.file, u64::from(from), u64::from(segment.size));
            loop {
                match scan.next() {
                    Ok(Some((_, header))) if header.next_offset() > offset => found.push(header),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(found),
                    Err(error) => return Err(error),
                }
                if found.len() == 2 {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// After a clean stop the checkpoint of the start and the history of epochs say the same of where the log begins.
    fn start_is_doubtful(&self, history: Option<&EpochHistory>, base: Offset, end: Offset) -> bool {
        let start = self.marks.start.max(base);
        let first_missing = self.marks.start > Offset::ZERO && self.marks.start < base;
        first_missing
            || match history.and_then(|history| history.entries().first()) {
                Some(first) => first.start != start && first.start < end,
                None => start > end,
            }
    }

    /// The stored history, without what is not covered by the log (R23) and, after a stop that was not clean, without what
    /// was never synced; the rest is read from the batches (R20, D24).
    fn epochs(
        &self,
        stored: Option<EpochHistory>,
        clean: bool,
        segments: &[Segment<D>],
        start: Offset,
        end: Offset,
    ) -> io::Result<EpochHistory> {
        let mut from = if clean { end } else { self.marks.recovery_point };
        // The file may know of a start that its checkpoint had not heard of yet.
        let covers = |history: &EpochHistory| history.entries().first().is_some_and(|first| first.start <= start);
        let mut epochs = stored.filter(|history| clean || covers(history)).unwrap_or_else(|| {
            from = Offset::ZERO;
            EpochHistory::default()
        });
        epochs.truncate_from_end(from);
        for segment in &segments[segment_of(segments, from)..] {
            let mut scan = HeaderScan::new(&*segment.file, 0, u64::from(segment.size));
            while from < end
                && let Some((_, header)) = scan.next()?
            {
                if let Some(epoch) = LeaderEpoch::from_wire(header.leader_epoch)
                    && epochs.latest().is_none_or(|latest| epoch > latest)
                {
                    epochs.assign(epoch, Offset(header.base_offset));
                }
            }
        }
        epochs.truncate_from_end(end);
        epochs.truncate_from_start(start);
        Ok(epochs)
    }

    fn drop_snapshots_above(&self, snapshots: &mut BTreeSet<Offset>, recovery_point: Offset) -> io::Result<()> {
        for offset in snapshots.split_off(&recovery_point.plus(1)) {
            self.disk.remove(&self.path.join(file_name(offset, "snapshot")))?;
        }
        Ok(())
    }
}
