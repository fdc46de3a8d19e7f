//! What is synced off the lock (D24): the job that a log hands out, and what comes back.
//!
//! One job at a time per log. A job syncs data first, then what only describes it, and raises the recovery point last
//! (R283). Whatever fails, the log has failed: a sync that failed is never tried again.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_wire::Offset;

use super::log_dir::PARTITION_METADATA;
use super::segment::{ClosedIndex, file_name};
use super::{LogDir, LogName, checkpoint};
use crate::disk::{Disk, DiskFile};

pub(super) const EPOCHS: &str = "leader-epoch-checkpoint";
/// The next segment before it has a name.
pub(super) const PREPARED: &str = "next-segment.prepared";

/// What is to be synced, run off the lock.
pub struct SyncJob<D: Disk> {
    pub(super) dir: Arc<LogDir<D>>,
    pub(super) name: LogName,
    pub(super) path: PathBuf,
    pub(super) stamp: Stamp,
    pub(super) truncations_now: Arc<AtomicU64>,
    pub(super) bytes: u64,
    /// Files that are to be cut, and to which length.
    pub(super) cuts: Vec<(Arc<D::File>, u64)>,
    /// What the log holds safely, behind the cuts.
    pub(super) flushed_end: Offset,
    pub(super) files: Vec<Arc<D::File>>,
    pub(super) indexes: Vec<Arc<ClosedIndex<D>>>,
    pub(super) snapshots: Vec<(Offset, Vec<u8>)>,
    /// The content of the epoch file, where it changed.
    pub(super) epochs: Option<String>,
    /// Names in the log's directory changed.
    pub(super) sync_names: bool,
    /// It was truncated since the last job.
    pub(super) truncated: bool,
    /// The log begins anew, below where its checkpoint may say that it begins.
    pub(super) start_fell: Option<Offset>,
    /// The log itself is new: its metadata and its name in the directory above.
    pub(super) is_new: bool,
    /// Make the next segment ready, with so many bytes reserved.
    pub(super) prepare: Option<u64>,
}

/// What the log looked like when the job was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub truncations: u64,
    pub end: Offset,
    pub names_version: u64,
    pub epochs_version: u64,
}

/// What came of a job, for [`super::Log::on_synced`].
pub struct SyncDone<D: Disk> {
    pub(super) stamp: Stamp,
    pub(super) result: io::Result<()>,
    pub(super) indexes: Vec<Offset>,
    pub(super) snapshots: Vec<Offset>,
    pub(super) prepared: Option<D::File>,
}

impl<D: Disk> SyncJob<D> {
    /// Bytes of log this job may have to write out; to order jobs by.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Syncs. May take long.
    pub fn run(self) -> SyncDone<D> {
        let mut prepared = None;
        let result = self.sync_all().and_then(|()| {
            prepared = self.prepare.map(|bytes| self.prepare(bytes)).transpose()?;
            Ok(())
        });
        SyncDone {
            stamp: self.stamp,
            result: result.map_err(|error| named(&error, &self.path)),
            indexes: self.indexes.iter().map(|index| index.base).collect(),
            snapshots: self.snapshots.iter().map(|(offset, _)| *offset).collect(),
            prepared,
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        let disk = self.dir.disk();
        if self.truncated {
            self.dir.lower_watermark(&self.name, self.stamp.end)?;
        }
        cut_files(&self.dir, &self.name, &self.cuts, self.flushed_end)?;
        for file in &self.files {
            file.sync_data()?;
        }
        for index in &self.indexes {
            index.write()?;
        }
        for (offset, content) in &self.snapshots {
            write_snapshot(disk, &self.path.join(file_name(*offset, "snapshot")), content)?;
        }
        if self.is_new {
            disk.open(&self.path.join(PARTITION_METADATA))?.sync_data()?;
        }
        match &self.epochs {
            Some(epochs) => checkpoint::write_atomically(disk, &self.path.join(EPOCHS), epochs.as_bytes())?,
            None if self.sync_names => disk.sync_dir(&self.path)?,
            None => {}
        }
        if self.is_new {
            disk.sync_dir(self.dir.path())?;
        }
        if let Some(start) = self.start_fell {
            self.dir.start_fell(&self.name, start)?;
        }
        // A log that was truncated meanwhile notes its own, lower point with the job that finishes the truncation.
        if self.truncations_now.load(Ordering::SeqCst) == self.stamp.truncations {
            self.dir.note_recovery_point(&self.name, self.stamp.end)?;
        }
        Ok(())
    }

    fn prepare(&self, bytes: u64) -> io::Result<D::File> {
        let file = self.dir.disk().create(&self.path.join(PREPARED))?;
        if bytes > 0 {
            file.preallocate(bytes)?;
        }
        Ok(file)
    }
}

impl<D: Disk> SyncDone<D> {
    /// Why it failed, if it did; the log fails with it.
    pub fn error(&self) -> Option<&io::Error> {
        self.result.as_ref().err()
    }
}

/// Cuts files and syncs them; before that nobody may trust what lies behind `flushed_end` any more. A loss of power in the middle
/// may leave the old length with zeros in the last block that was to stay, as ext4 does it, and recovery looks for such only
/// from the recovery point on.
pub(super) fn cut_files<D: Disk>(
    dir: &LogDir<D>,
    name: &LogName,
    cuts: &[(Arc<D::File>, u64)],
    flushed_end: Offset,
) -> io::Result<()> {
    if cuts.is_empty() {
        return Ok(());
    }
    dir.lower_recovery_point(name, flushed_end)?;
    for (file, len) in cuts {
        file.set_len(*len)?;
    }
    cuts.iter().try_for_each(|(file, _)| file.sync_data())
}

/// A snapshot in place; a torn one is told by its CRC.
pub(super) fn write_snapshot<D: Disk>(disk: &D, path: &std::path::Path, content: &[u8]) -> io::Result<()> {
    let file = disk.create(path)?;
    file.write_at(&[IoSlice::new(content)], 0)?;
    file.sync_data()
}

/// The error with the file it is about.
pub(super) fn named(error: &io::Error, path: &std::path::Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
