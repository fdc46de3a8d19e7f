//! The log of one partition on one disk: batches in segments, and what is remembered of them.
//!
//! A `Log` belongs to one owner, behind its lock. What may take long – reading, syncing, erasing – leaves as a value
//! ([`ReadPlan`], [`SyncJob`], paths to erase) that is carried out elsewhere. It knows nothing of leaders, watermarks or
//! replicas. `log/log_dir.rs` holds what a directory of logs shares; `log/segment.rs`, `log/index.rs` the files;
//! `log/append.rs`, `log/truncate.rs`, `log/clean.rs` the ways to change it; `log/recovery.rs` the way back after a stop of any kind.
//! Names and formats are Kafka's (D31).

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use highwater_wire::batch::RecordBatch;
use highwater_wire::{LeaderEpoch, Offset, Timestamp, TopicId};

use crate::disk::Disk;
use crate::log_view::{EpochHistory, LogView};

mod append;
pub mod checkpoint;
pub mod clean;
pub mod compaction;
pub mod error;
mod flush;
pub mod index;
pub mod log_dir;
pub mod producer_state;
mod read;
pub mod read_plan;
mod recent;
pub mod recovery;
pub mod retention;
mod scan;
mod segment;
pub mod settings;
pub mod sync;
mod truncate;

pub use error::{Appended, FollowerAppendError, FollowerAppended, FollowerStop, LogDirError, OpenError, TimestampHit};
pub use log_dir::{FoundLog, LogDir, Opening, Previous};
pub use producer_state::{ActiveProducer, ProducerCheck, ProducerRefusal};
pub use read_plan::ReadPlan;
pub use recovery::RecoveryReport;
pub use settings::{LogName, LogSettings};
pub use sync::{SyncDone, SyncJob};

use producer_state::ProducerState;
use recent::RecentBatches;
use segment::{ClosedIndex, Segment};

/// One partition's log. All methods are synchronous; none but `open` and `close_cleanly` syncs.
///
/// After a failed write the log is *failed* ([`Log::failed`]): every write is refused, and what was half written is
/// outside `end` and therefore never read (R44, R209).
pub struct Log<D: Disk> {
    dir: Arc<LogDir<D>>,
    name: LogName,
    topic: TopicId,
    path: PathBuf,
    settings: LogSettings,

    /// Oldest first, never empty; only the last one grows.
    segments: Vec<Segment<D>>,
    start: Offset,
    end: Offset,
    /// The recovery point in memory (R283, D23).
    flushed_end: Offset,
    epochs: EpochHistory,
    producers: ProducerState,
    recent: RecentBatches,

    truncations: u64,
    /// The same number for plans and jobs that are out.
    truncations_now: Arc<AtomicU64>,
    /// The truncation that has reached the disk.
    truncations_synced: u64,
    /// The files that are to be cut, and to which length, oldest first.
    cut_files: Vec<(Arc<D::File>, u64)>,

    /// Counts changes of the names in the directory, and of the epochs; and what of them is synced.
    names_version: u64,
    names_synced: u64,
    epochs_version: u64,
    epochs_synced: u64,
    /// Metadata and name are not synced yet.
    is_new: bool,
    /// It begins below where it began before, and the checkpoint of its start does not know.
    start_fell: bool,
    /// Closed segments whose index is not written yet.
    unwritten_indexes: Vec<Arc<ClosedIndex<D>>>,
    unwritten_snapshots: Vec<(Offset, Vec<u8>)>,
    /// Producer snapshots on the disk, or on their way there.
    snapshots: BTreeSet<Offset>,
    prepared: Option<D::File>,
    job_out: bool,

    /// Below it a key stands once (R275).
    cleaned_to: Offset,
    /// The segment that several were merged into and that does not bear its name yet.
    swapping: Option<clean::Swap>,

    failure: Option<String>,
}

impl<D: Disk> Log<D> {
    /// Opens the log of a partition, or makes an empty one where the directory holds none ([`RecoveryReport::created`]).
    ///
    /// Recovery happens here (R18–R25) and may read all that was written since the last sync: call it off the lock, on
    /// the pool. `InconsistentTopicId` when the directory belongs to another creation of the topic (R17).
    pub fn open(
        dir: &Arc<LogDir<D>>,
        name: &LogName,
        topic: TopicId,
        settings: LogSettings,
        now: Timestamp,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        recovery::open(dir, name, topic, settings, now)
    }

    /// Makes an empty log that starts at `start`, removing what the directory held.
    pub fn create(
        dir: &Arc<LogDir<D>>,
        name: &LogName,
        topic: TopicId,
        settings: LogSettings,
        start: Offset,
        now: Timestamp,
    ) -> Result<Self, OpenError> {
        recovery::create(dir, name, topic, settings, start, now)
    }

    /// Where it starts and ends, and whose epochs it holds.
    pub fn view(&self) -> LogView<'_> {
        LogView {
            start: self.start,
            end: self.end,
            flushed_end: self.flushed_end,
            epochs: &self.epochs,
            truncations: self.truncations,
            knows_producers: self.knows_producers(),
        }
    }

    pub const fn name(&self) -> &LogName {
        &self.name
    }

    pub const fn topic(&self) -> TopicId {
        self.topic
    }

    /// The directory of this log's files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub const fn dir(&self) -> &Arc<LogDir<D>> {
        &self.dir
    }

    pub const fn settings(&self) -> &LogSettings {
        &self.settings
    }

    /// Adopts a changed topic configuration; it counts from the next append on.
    pub fn set_settings(&mut self, settings: LogSettings) {
        self.settings = settings;
    }

    /// Why this log takes no more writes; `None` while it is well.
    pub fn failed(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Bytes of all segments.
    pub fn size_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.size)).sum()
    }

    /// Where the oldest segment begins: at or below the start.
    pub fn first_base(&self) -> Offset {
        self.segments[0].base
    }

    /// Number of segments.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Whether an idempotent producer's batch continues what it wrote before (R58–R61). Changes nothing; a batch without
    /// a producer is always fresh.
    pub fn check_producer(&self, batch: &RecordBatch) -> Result<ProducerCheck, ProducerRefusal> {
        self.producers.check(batch.header())
    }

    /// Forgets idempotent producers that have not written since `producer.id.expiration.ms` (R66).
    pub fn expire_producers(&mut self, now: Timestamp) {
        self.producers.expire(now, self.settings.producer_expiration_ms);
    }

    /// Whether producers are known whose batches were all deleted. Not, where a log was begun behind them and nothing has
    /// told it yet: no batch, and no snapshot where it begins.
    fn knows_producers(&self) -> bool {
        // A log that failed may be without its files.
        let Some(base) = self.segments.first().map(|segment| segment.base) else { return true };
        base == Offset::ZERO || self.end > base || self.snapshots.contains(&base)
    }

    /// What a leader knows of producers, to a log that does not ([`LogView::knows_producers`]). Of those whose newest batch
    /// is still to be fetched that batch will tell. Counts as a truncation: [`Self::is_settled`] is false until the next
    /// sync job is back, since a log that has lost this would not know that it had it.
    pub fn learn_producers(&mut self, active: impl IntoIterator<Item = ActiveProducer>) {
        if self.knows_producers() {
            return;
        }
        let start = self.start;
        self.producers = active.into_iter().filter(|producer| producer.is_below(start)).collect();
        self.count_truncation();
        self.keep_producers();
    }

    /// A snapshot of the producers as of the end, with the next sync job.
    fn keep_producers(&mut self) {
        self.unwritten_snapshots.push((self.end, self.producers.encode()));
        self.snapshots.insert(self.end);
    }

    /// How many idempotent producers are remembered.
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// What is remembered of idempotent producers, for comparing replicas (S16).
    pub const fn producers(&self) -> &ProducerState {
        &self.producers
    }

    /// Notes that the leader of `epoch` writes from the end on (R147).
    ///
    /// The entry reaches the file with the next sync job, before any record it covers counts as synced; a start that is not
    /// clean reads it from the batches anyway (D24), so that it need not be written here.
    pub fn assign_epoch(&mut self, epoch: LeaderEpoch) {
        if self.epochs.assign(epoch, self.end) {
            self.epochs_version += 1;
        }
    }

    /// Records below `start` are no longer readable (R5). Never moves back, never beyond the end. Says whether it moved.
    /// To make it durable: [`LogDir::checkpoint_starts`], off the lock (D33).
    pub fn advance_start(&mut self, start: Offset) -> bool {
        let start = start.min(self.end);
        if start <= self.start {
            return false;
        }
        self.start = start;
        if self.epochs.truncate_from_start(start) {
            self.epochs_version += 1;
        }
        true
    }

    fn active(&mut self) -> &mut Segment<D> {
        self.segments.last_mut().expect("a log always has a segment")
    }

    fn last_segment(&self) -> &Segment<D> {
        self.segments.last().expect("a log always has a segment")
    }

    /// The segment that holds `offset`, or the first.
    fn segment_of(&self, offset: Offset) -> usize {
        self.segments.partition_point(|segment| segment.base <= offset).saturating_sub(1)
    }

    fn check_well(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => Err(io::Error::other(format!("{} takes no writes: {failure}", self.path.display()))),
        }
    }

    /// The log is failed from now on; the error names it.
    fn fail(&mut self, error: &io::Error) -> io::Error {
        let error = sync::named(error, &self.path);
        self.failure.get_or_insert_with(|| error.to_string());
        error
    }

    /// Panics where the log contradicts itself (R2, S1).
    pub fn check_invariants(&self) {
        self.epochs.check_invariants();
        assert!(self.start <= self.end, "{}: start {} above end {}", self.name, self.start, self.end);
        assert!(self.flushed_end <= self.end, "{}: flushed {} above end {}", self.name, self.flushed_end, self.end);
        assert!(self.segments[0].base <= self.start, "{}: a start below the first segment", self.name);
        for pair in self.segments.windows(2) {
            assert!(pair[0].base < pair[1].base, "{}: segments do not increase", self.name);
            let position = pair[0].log_position + u64::from(pair[0].size);
            assert_eq!(position, pair[1].log_position, "{}: positions do not add up", self.name);
        }
        assert!(self.last_segment().base <= self.end, "{}: an end below the last segment", self.name);
    }
}

#[cfg(test)]
mod tests;
