//! Opening a log after a stop of any kind (R18–R25).
//!
//! After a clean stop nothing is scanned but the batches behind the last index entry. After any other one every segment
//! from the recovery point on is read and checked batch by batch; the first bad one and all behind it are cut off; index,
//! epochs and producers are made anew from what is left.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use highwater_wire::batch::BatchHeader;
use highwater_wire::{LeaderEpoch, Offset, Timestamp, TopicId};

use super::checkpoint::{self, NewerFormat};
use super::error::OpenError;
use super::index::{IndexBuilder, SparseIndex};
use super::log_dir::{LogDir, Marks, PARTITION_METADATA};
use super::producer_state::ProducerState;
use super::recent::RecentBatches;
use super::scan::{self, HeaderScan};
use super::segment::{ClosedIndex, Segment, SegmentIndex, file_name, length};
use super::sync::EPOCHS;
use super::{Log, LogName, LogSettings};
use crate::disk::{Disk, DiskFile};
use crate::log_view::EpochHistory;

mod files;

use files::Files;

/// What opening a log found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The directory held no such log: an empty one was made. For a replica that should exist: its data is gone.
    pub created: bool,
    /// The directory was closed in order, and nothing was scanned (R19).
    pub clean: bool,
    /// Bytes read and checked.
    pub bytes_scanned: u64,
    /// What was cut off the end (R20).
    pub cut: Option<Cut>,
    /// Everything was removed because the end was below the start in the checkpoint (R22).
    pub emptied: bool,
    pub start: Offset,
    pub end: Offset,
    /// What the checkpoint said of the high watermark; 0 when it said nothing (R24: clamp it to start and end).
    pub watermark_checkpoint: Offset,
}

/// The end of a log that was not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The log now ends here.
    pub at: Offset,
    /// Bytes removed, later segments included.
    pub bytes: u64,
    /// Segments removed as a whole.
    pub segments: usize,
    /// Whether it was no more than the first part of one last batch: what a killed process leaves behind.
    pub incomplete_last_batch_only: bool,
    /// What was wrong at the cut, and where.
    pub reason: String,
}

impl RecoveryReport {
    /// Whether records may be gone that this replica once held (D10): more was cut than one incomplete last batch, the
    /// log ends below its watermark checkpoint, or there was no log.
    pub fn may_have_lost_records(&self) -> bool {
        let cut = self.cut.as_ref().is_some_and(|cut| !cut.incomplete_last_batch_only);
        self.created || cut || self.emptied || self.end < self.watermark_checkpoint
    }
}

/// See [`Log::create`].
pub(super) fn create<D: Disk>(
    dir: &Arc<LogDir<D>>,
    name: &LogName,
    topic: TopicId,
    settings: LogSettings,
    start: Offset,
    now: Timestamp,
) -> Result<Log<D>, OpenError> {
    let path = dir.log_path(name);
    make(dir, name, topic, settings, start, now).map_err(|error| OpenError::Io { directory: path, error })
}

fn make<D: Disk>(
    dir: &Arc<LogDir<D>>,
    name: &LogName,
    topic: TopicId,
    settings: LogSettings,
    start: Offset,
    now: Timestamp,
) -> io::Result<Log<D>> {
    let (disk, path) = (dir.disk(), dir.log_path(name));
    if disk.exists(&path)? {
        disk.remove_dir_all(&path)?;
        disk.sync_dir(dir.path())?;
    }
    dir.created(name)?;
    disk.create_dir_all(&path)?;
    write_metadata(disk, &path, topic)?;
    let file = disk.create(&path.join(file_name(start, "log")))?;
    dir.opened(name, Offset::ZERO)?;
    let parts = Parts {
        segments: vec![Segment::empty(start, file, 0, now)],
        end: start,
        epochs: EpochHistory::default(),
        producers: ProducerState::default(),
        snapshots: BTreeSet::new(),
        flushed_end: Offset::ZERO,
        unwritten_indexes: Vec::new(),
        synced: false,
    };
    let mut log = assemble(dir, name, topic, settings, parts, start);
    log.is_new = true;
    Ok(log)
}

/// Not synced, and not by way of a temporary file: one that is torn belongs to a log that never synced a record, and such a
/// log is made anew (R17 in the form of D24).
fn write_metadata<D: Disk>(disk: &D, path: &Path, topic: TopicId) -> io::Result<()> {
    let text = checkpoint::format_partition_metadata(topic);
    disk.create(&path.join(PARTITION_METADATA))?.write_at(&[IoSlice::new(text.as_bytes())], 0)
}

/// What recovery hands to the log.
struct Parts<D: Disk> {
    segments: Vec<Segment<D>>,
    end: Offset,
    epochs: EpochHistory,
    producers: ProducerState,
    snapshots: BTreeSet<Offset>,
    flushed_end: Offset,
    unwritten_indexes: Vec<Arc<ClosedIndex<D>>>,
    /// Nothing at all needs a sync.
    synced: bool,
}

fn assemble<D: Disk>(
    dir: &Arc<LogDir<D>>,
    name: &LogName,
    topic: TopicId,
    settings: LogSettings,
    parts: Parts<D>,
    start: Offset,
) -> Log<D> {
    let synced = u64::from(parts.synced);
    let log = Log {
        path: dir.log_path(name),
        dir: Arc::clone(dir),
        name: name.clone(),
        topic,
        settings,
        recent: RecentBatches::starting_at(parts.end),
        segments: parts.segments,
        start,
        end: parts.end,
        flushed_end: parts.flushed_end.min(parts.end),
        epochs: parts.epochs,
        producers: parts.producers,
        truncations: 0,
        truncations_now: Arc::new(AtomicU64::new(0)),
        truncations_synced: 0,
        names_version: 1,
        names_synced: synced,
        epochs_version: 1,
        epochs_synced: synced,
        is_new: false,
        unwritten_indexes: parts.unwritten_indexes,
        unwritten_snapshots: Vec::new(),
        snapshots: parts.snapshots,
        prepared: None,
        job_out: false,
        failure: None,
    };
    log.check_invariants();
    log
}

/// See [`Log::open`].
pub(super) fn open<D: Disk>(
    dir: &Arc<LogDir<D>>,
    name: &LogName,
    topic: TopicId,
    settings: LogSettings,
    now: Timestamp,
) -> Result<(Log<D>, RecoveryReport), OpenError> {
    let path = dir.log_path(name);
    let failed = |error| OpenError::Io { directory: path.clone(), error };
    let marks = dir.marks(name);
    let usable = dir.disk().exists(&path).map_err(failed)? && belongs(dir.disk(), &path, topic, &marks)?;
    if !usable {
        let log = create(dir, name, topic, settings, Offset::ZERO, now)?;
        let report = RecoveryReport {
            created: true,
            clean: marks.clean,
            bytes_scanned: 0,
            cut: None,
            emptied: false,
            start: log.start,
            end: log.end,
            watermark_checkpoint: marks.watermark,
        };
        return Ok((log, report));
    }
    let files = Files::tidy(dir.disk(), &path)?;
    let epochs = stored_epochs(dir.disk(), &path)?;
    let recovery = Recovery { disk: dir.disk(), path: &path, settings: &settings, marks, now };
    let (parts, start, report) = recovery.run(files, epochs).map_err(failed)?;
    let log = assemble(dir, name, topic, settings, parts, start);
    dir.opened(name, log.flushed_end).map_err(failed)?;
    Ok((log, report))
}

/// Whether the directory holds a log of this topic. `false`: it holds none that was ever synced.
fn belongs<D: Disk>(disk: &D, path: &Path, topic: TopicId, marks: &Marks) -> Result<bool, OpenError> {
    let failed = |error| OpenError::Io { directory: path.to_owned(), error };
    let file = path.join(PARTITION_METADATA);
    let text = checkpoint::read_text(disk, &file).map_err(failed)?.unwrap_or_default();
    match checkpoint::parse_partition_metadata(&text) {
        Err(NewerFormat(version)) => Err(OpenError::NewerFormat { file, version, known: checkpoint::VERSION }),
        Ok(Some(stored)) if stored == topic => Ok(true),
        Ok(Some(stored)) => Err(OpenError::InconsistentTopicId { directory: path.to_owned(), stored, expected: topic }),
        Ok(None) if !marks.clean && marks.recovery_point == Offset::ZERO => Ok(false),
        Ok(None) => {
            checkpoint::write_atomically(disk, &file, checkpoint::format_partition_metadata(topic).as_bytes())
                .map_err(failed)?;
            Ok(true)
        }
    }
}

/// `None` where the file is missing or damaged.
fn stored_epochs<D: Disk>(disk: &D, path: &Path) -> Result<Option<EpochHistory>, OpenError> {
    let file = path.join(EPOCHS);
    let text = checkpoint::read_text(disk, &file)
        .map_err(|error| OpenError::Io { directory: path.to_owned(), error })?
        .unwrap_or_default();
    checkpoint::parse_epochs(&text).map_err(|NewerFormat(version)| OpenError::NewerFormat {
        file,
        version,
        known: checkpoint::VERSION,
    })
}

struct Recovery<'a, D: Disk> {
    disk: &'a D,
    path: &'a Path,
    settings: &'a LogSettings,
    marks: Marks,
    now: Timestamp,
}

impl<D: Disk> Recovery<'_, D> {
    fn run(&self, mut files: Files, epochs: Option<EpochHistory>) -> io::Result<(Parts<D>, Offset, RecoveryReport)> {
        if files.segments.is_empty() {
            self.disk.create(&self.path.join(file_name(self.marks.start, "log")))?;
            files.segments.push(self.marks.start);
        }
        let mut clean = self.marks.clean;
        let mut bytes_scanned = 0;
        let mut cut = None;
        let opened = if clean { self.open_clean(&files.segments)? } else { None };
        let (mut segments, mut end) = match opened {
            Some(opened) => opened,
            None => {
                clean = false;
                let (opened, scanned, found) = self.check(&files.segments)?;
                (bytes_scanned, cut) = (scanned, found);
                opened
            }
        };
        let emptied = end < self.marks.start;
        if emptied {
            (segments, end) = self.start_over(segments)?;
        }
        let start = self.marks.start.max(segments[0].base);
        let recovery_point = if clean { end } else { self.marks.recovery_point.min(end) };
        self.drop_snapshots_above(&mut files.snapshots, recovery_point)?;
        let (mut producers, from) = newest_snapshot(self.disk, self.path, &mut files.snapshots, end)?;
        replay_producers(&segments, from, &mut producers)?;
        let epochs = if emptied { EpochHistory::default() } else { self.epochs(epochs, clean, &segments, start, end)? };
        let report = RecoveryReport {
            created: false,
            clean,
            bytes_scanned,
            cut,
            emptied,
            start,
            end,
            watermark_checkpoint: self.marks.watermark,
        };
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
        let index = SparseIndex::decode(&read("index"), &read("timeindex"), size);
        let (mut builder, from) = IndexBuilder::resume(index, base);
        let mut end = base;
        let mut scan = HeaderScan::new(&file, u64::from(from), u64::from(size));
        loop {
            match scan.next() {
                Ok(Some((position, header))) if header.base_offset >= end.0 && header.last_offset_delta >= 0 => {
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

    /// Reads and checks everything from the segment of the recovery point on (R20).
    #[allow(clippy::type_complexity)]
    fn check(&self, bases: &[Offset]) -> io::Result<((Vec<Segment<D>>, Offset), u64, Option<Cut>)> {
        let first = bases.partition_point(|&base| base <= self.marks.recovery_point).saturating_sub(1);
        let mut segments = self.open_closed(&bases[..first])?;
        let mut scanned = 0;
        // A truncation below the recovery point that power loss cut short may have shortened a segment and left the next
        // ones. Everything else down there was synced.
        for index in 0..first {
            let end = segments[index].last_offset_end()?;
            if end != bases[index + 1] {
                let reason = format!("segment {} ends at {end}, the next begins at {}", bases[index], bases[index + 1]);
                let cut = self.cut(&bases[index + 1..], 0, end, false, reason)?;
                segments.truncate(index);
                let (segment, end, _) = self.check_segment(bases[index], next_position(&segments))?;
                scanned += u64::from(segment.size);
                segments.push(segment);
                return Ok(((segments, end), scanned, Some(cut)));
            }
        }
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
                file.set_len(size)?;
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
        let mut epochs = stored.unwrap_or_else(|| {
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

fn next_position<D: Disk>(segments: &[Segment<D>]) -> u64 {
    segments.last().map_or(0, |last| last.log_position + u64::from(last.size))
}

fn segment_of<D: Disk>(segments: &[Segment<D>], offset: Offset) -> usize {
    segments.partition_point(|segment| segment.base <= offset).saturating_sub(1)
}

/// The newest snapshot at or below `end` that can be read, and its offset; damaged ones are removed (R26). Without one:
/// no producers, from the very beginning.
pub(super) fn newest_snapshot<D: Disk>(
    disk: &D,
    path: &Path,
    snapshots: &mut BTreeSet<Offset>,
    end: Offset,
) -> io::Result<(ProducerState, Offset)> {
    while let Some(&offset) = snapshots.range(..=end).next_back() {
        let file = path.join(file_name(offset, "snapshot"));
        if let Ok(state) = ProducerState::decode(&disk.read(&file)?) {
            return Ok((state, offset));
        }
        disk.remove(&file)?;
        snapshots.remove(&offset);
    }
    Ok((ProducerState::default(), Offset::ZERO))
}

/// Notes every batch at `from` and above (R63).
pub(super) fn replay_producers<D: Disk>(
    segments: &[Segment<D>],
    from: Offset,
    producers: &mut ProducerState,
) -> io::Result<()> {
    for segment in &segments[segment_of(segments, from)..] {
        let position = match &segment.index {
            SegmentIndex::Growing(builder) => builder.index().floor(segment.base, from),
            SegmentIndex::Closed(closed) => closed.get()?.floor(segment.base, from),
        };
        let mut scan = HeaderScan::new(&*segment.file, u64::from(position), u64::from(segment.size));
        while let Some((_, header)) = scan.next()? {
            if header.base_offset >= from.0 {
                producers.note(&header);
            }
        }
    }
    Ok(())
}
