//! The log of one partition on one disk: batches in segments, and what is remembered of them.
//!
//! A `Log` belongs to one owner, behind its lock. What may take long – reading, syncing, erasing – leaves as a value
//! (`ReadPlan`, `SyncJob`, paths to erase) that is carried out elsewhere. It knows nothing of leaders, watermarks or
//! replicas. Layout: `log/log_dir.rs` holds what a directory of logs shares; `log/segment.rs`, `log/index.rs` the files;
//! `log/recovery.rs` the way back after a stop of any kind. Names and formats are Kafka's (D31).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use highwater_wire::batch::RecordBatch;
use highwater_wire::{LeaderEpoch, Offset, Timestamp, TopicId};

use crate::disk::Disk;
use crate::log_view::LogView;

pub mod error;
pub mod log_dir;
pub mod producer_state;
pub mod read_plan;
pub mod recovery;
pub mod settings;
pub mod sync;

pub use error::{Appended, FollowerAppendError, FollowerAppended, FollowerStop, LogDirError, OpenError, TimestampHit};
pub use log_dir::LogDir;
pub use producer_state::{ProducerCheck, ProducerRefusal};
pub use read_plan::ReadPlan;
pub use recovery::RecoveryReport;
pub use settings::{LogName, LogSettings};
pub use sync::{SyncDone, SyncJob};

/// One partition's log. All methods are synchronous; none syncs.
///
/// After a failed write the log is *failed* ([`Log::failed`]): every write is refused, and what was half written is
/// outside `end` and therefore never read (R44, R209).
pub struct Log<D: Disk> {
    dir: Arc<LogDir<D>>,
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
        let _ = (dir, name, topic, settings, now);
        todo!()
    }

    /// Makes an empty log that starts at `start`, replacing what the directory held.
    pub fn create(
        dir: &Arc<LogDir<D>>,
        name: &LogName,
        topic: TopicId,
        settings: LogSettings,
        start: Offset,
        now: Timestamp,
    ) -> Result<Self, OpenError> {
        let _ = (dir, name, topic, settings, start, now);
        todo!()
    }

    pub fn view(&self) -> LogView<'_> {
        todo!()
    }

    pub fn name(&self) -> &LogName {
        todo!()
    }

    pub fn topic(&self) -> TopicId {
        todo!()
    }

    pub fn dir(&self) -> &Arc<LogDir<D>> {
        &self.dir
    }

    pub fn settings(&self) -> &LogSettings {
        todo!()
    }

    /// Adopts a changed topic configuration; it counts from the next append on.
    pub fn set_settings(&mut self, settings: LogSettings) {
        let _ = settings;
        todo!()
    }

    /// Why this log takes no more writes; `None` while it is well.
    pub fn failed(&self) -> Option<&str> {
        todo!()
    }

    /// Bytes of all segments.
    pub fn size_bytes(&self) -> u64 {
        todo!()
    }

    /// Number of segments.
    pub fn segment_count(&self) -> usize {
        todo!()
    }

    /// Whether an idempotent producer's batch continues what it wrote before (R58–R61). Changes nothing; a batch without
    /// a producer is always fresh.
    pub fn check_producer(&self, batch: &RecordBatch) -> Result<ProducerCheck, ProducerRefusal> {
        let _ = batch;
        todo!()
    }

    /// Writes one batch at the end, stamped with its base offset and `epoch`, and notes it everywhere (R40, R44).
    ///
    /// With LogAppendTime the batch gets the time `now` and a new CRC (R38). `now` also decides whether the segment is
    /// due to be rolled. The batch's bytes are neither copied nor changed.
    pub fn append_as_leader(
        &mut self,
        batch: &RecordBatch,
        epoch: LeaderEpoch,
        now: Timestamp,
    ) -> Result<Appended, io::Error> {
        let _ = (batch, epoch, now);
        todo!()
    }

    /// Writes what a leader sent, from the log's end on (R153–R155): every batch whole, its CRC right (D27), its offsets
    /// not below the end, its epoch not above `current`. What comes before the first batch that is none of this is
    /// appended; [`FollowerAppended::stopped`] says what came then.
    pub fn append_as_follower(
        &mut self,
        records: Bytes,
        current: LeaderEpoch,
        now: Timestamp,
    ) -> Result<FollowerAppended, FollowerAppendError> {
        let _ = (records, current, now);
        todo!()
    }

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
        let _ = (from, bound, bytes_max, first_whole);
        todo!()
    }

    /// How many bytes there are from `offset` to the end: exact for recent offsets, else up to an index interval more.
    pub fn bytes_from(&self, offset: Offset) -> u64 {
        let _ = offset;
        todo!()
    }

    /// Removes the records at `to` and above (R160), and the epochs and producers they brought. `to` below the start
    /// empties the log at its start. Counts as a truncation if anything was removed: read plans given before return
    /// nothing from then on, and [`Log::is_settled`] is false until the next sync job is back.
    pub fn truncate_to(&mut self, to: Offset) -> io::Result<()> {
        let _ = to;
        todo!()
    }

    /// Removes everything; the log then starts and ends at `start`, above or below what it held (R153, R162).
    pub fn truncate_fully_to(&mut self, start: Offset) -> io::Result<()> {
        let _ = start;
        todo!()
    }

    /// Records below `start` are no longer readable (R5). Never moves back, never beyond the end. Says whether it moved.
    /// To make it durable: [`LogDir::checkpoint_start`], off the lock (D33).
    pub fn advance_start(&mut self, start: Offset) -> bool {
        let _ = start;
        todo!()
    }

    /// Notes that the leader of `epoch` writes from the end on (R147).
    pub fn assign_epoch(&mut self, epoch: LeaderEpoch) {
        let _ = epoch;
        todo!()
    }

    /// The first record whose timestamp is `at` or later; may read the disk (R92). `None` where there is none.
    pub fn offset_for_timestamp(&self, at: Timestamp) -> io::Result<Option<TimestampHit>> {
        let _ = at;
        todo!()
    }

    /// The record with the largest timestamp (R92, −3). `None` for an empty log.
    pub fn max_timestamp(&self) -> io::Result<Option<TimestampHit>> {
        todo!()
    }

    /// Starts a new segment if the active one is due by age (R269); for ticks, appends look for themselves. Says whether
    /// it did.
    pub fn roll_if_due(&mut self, now: Timestamp) -> io::Result<bool> {
        let _ = now;
        todo!()
    }

    /// Removes the segments that may go (R272): by age, by size, or below the start; never one with records at or above
    /// `high_watermark`. The files bear `.deleted` from then on; erase the paths returned after `file.delete.delay.ms`
    /// with [`LogDir::erase`], off the lock.
    pub fn delete_segments(&mut self, high_watermark: Offset, now: Timestamp) -> io::Result<Vec<PathBuf>> {
        let _ = (high_watermark, now);
        todo!()
    }

    /// Forgets idempotent producers that have not written since `producer.id.expiration.ms` (R66).
    pub fn expire_producers(&mut self, now: Timestamp) {
        let _ = now;
        todo!()
    }

    /// How many idempotent producers are remembered.
    pub fn producer_count(&self) -> usize {
        todo!()
    }

    /// Whether a sync job is due whatever `flush.messages` says: a segment was rolled or the log truncated. Cheap; ask
    /// after every append.
    pub fn sync_due(&self) -> bool {
        todo!()
    }

    /// Whether every truncation so far has reached the disk: a follower fetches only then (D24).
    pub fn is_settled(&self) -> bool {
        todo!()
    }

    /// All that is to be synced now, to be run off the lock; `None` when there is nothing or a job is out already.
    pub fn sync_job(&mut self) -> Option<SyncJob<D>> {
        todo!()
    }

    /// Takes a job back. Says whether `flushed_end` moved; an error means that the log has failed (R283).
    pub fn on_synced(&mut self, done: SyncDone<D>) -> io::Result<bool> {
        let _ = done;
        todo!()
    }

    /// Writes indexes, epochs and producers, and syncs everything: off the lock, at the very end (R29). The log takes no
    /// writes afterwards.
    pub fn close_cleanly(&mut self) -> io::Result<()> {
        todo!()
    }
}
