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

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{Offset, Timestamp, TopicId};

use super::checkpoint::{self, NewerFormat};
use super::error::OpenError;
use super::log_dir::{LogDir, Marks, PARTITION_METADATA};
use super::producer_state::ProducerState;
use super::recent::RecentBatches;
use super::scan::HeaderScan;
use super::segment::{ClosedIndex, Segment, SegmentIndex, file_name};
use super::sync::EPOCHS;
use super::{Log, LogName, LogSettings};
use crate::disk::{Disk, DiskFile};
use crate::log_view::EpochHistory;

mod files;
mod pass;

use files::Files;
use pass::Recovery;

/// What opening a log found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The directory held no such log: an empty one was made.
    pub created: bool,
    /// The directory was closed in order, and nothing was scanned (R19).
    pub clean: bool,
    /// Bytes read and checked.
    pub bytes_scanned: u64,
    /// What was cut off the end (R20).
    pub cut: Option<Cut>,
    /// Everything was removed because the end was below the start in the checkpoint (R22).
    pub emptied: bool,
    /// What the directory says of where the log begins did not agree: deleted records may be back, or the oldest are gone.
    pub start_doubted: bool,
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
    /// Whether records may be gone that this replica once held (D10): more was cut than one incomplete last batch, or the
    /// log ends below its watermark checkpoint. A log that is missing counts only where the checkpoint knows of records
    /// in it: a process killed before it had made the directory of a new topic has lost nothing.
    pub fn may_have_lost_records(&self) -> bool {
        let cut = self.cut.as_ref().is_some_and(|cut| !cut.incomplete_last_batch_only);
        cut || self.emptied || self.start_doubted || self.end < self.watermark_checkpoint
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
    dir.forget_durably(name)?;
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
        epochs_synced: false,
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
    /// Nothing but the epochs needs a sync.
    synced: bool,
    /// Nor do they: the file holds this very history.
    epochs_synced: bool,
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
        cut_files: Vec::new(),
        names_version: 1,
        names_synced: synced,
        epochs_version: 1,
        epochs_synced: u64::from(parts.epochs_synced),
        is_new: false,
        start_fell: false,
        unwritten_indexes: parts.unwritten_indexes,
        unwritten_snapshots: Vec::new(),
        snapshots: parts.snapshots,
        prepared: None,
        job_out: false,
        cleaned_to: dir.cleaned_to(name).min(parts.end),
        swapping: None,
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
            start_doubted: false,
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
        Ok(Some(stored)) if stored == topic || planted(Flaw::TakesOverLogs) => Ok(true),
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
            SegmentIndex::Closed(closed) => closed.floor(from)?,
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
