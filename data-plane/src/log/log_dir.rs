//! placeholder
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_wire::{BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId, Offset, TopicId};

use super::{LogDirError, LogName};
use crate::disk::Disk;

/// Whose directory it is to be, and which boot of the machine this is.
#[derive(Debug, Clone)]
pub struct Opening {
    pub cluster: ClusterId,
    pub broker: BrokerId,
    /// `/proc/sys/kernel/random/boot_id`; `None` where unreadable, and then nothing is proved (D10).
    pub boot_id: Option<String>,
    /// CLOCK_BOOTTIME in milliseconds: how long the machine has been up.
    pub boot_time_ms: u64,
}

/// What a directory said of the process before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previous {
    /// The broker epoch in the mark of a clean stop (R18); the mark is removed by then. `Some(None)`: a clean stop
    /// without an epoch.
    pub clean_stop: Option<Option<BrokerEpoch>>,
    /// The incarnation whose page cache is known to have survived: same boot, same directory (D10).
    pub survived: Option<IncarnationId>,
    /// The directory was formatted just now.
    pub fresh: bool,
    /// For the log line: why nothing is proved.
    pub doubt: Option<String>,
}

/// A log found in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLog {
    pub name: LogName,
    /// From `partition.metadata`; `None` where that is missing or unreadable.
    pub topic: Option<TopicId>,
    pub bytes: u64,
}

/// One directory of `log.dirs`: its lock, its identity, its checkpoints.
pub struct LogDir<D: Disk> {
    _disk: PhantomData<D>,
}

impl<D: Disk> LogDir<D> {
    /// Locks the directory, formats it if it is empty, takes the mark of a clean stop away (R18) and loads the checkpoints.
    pub fn open(disk: D, path: &Path, opening: &Opening) -> Result<(Arc<Self>, Previous), LogDirError> {
        let _ = (disk, path, opening);
        todo!()
    }

    pub fn path(&self) -> &Path {
        todo!()
    }

    pub fn disk(&self) -> &D {
        todo!()
    }

    /// `directory.id` of `meta.properties`.
    pub fn id(&self) -> DirectoryId {
        todo!()
    }

    /// Notes durably that this incarnation runs on this boot; before registering (D10).
    pub fn write_running_marker(&self, incarnation: IncarnationId) -> io::Result<()> {
        let _ = incarnation;
        todo!()
    }

    /// The logs in the directory, whether opened or not. Erases what is left of deleted ones.
    pub fn found(&self) -> io::Result<Vec<FoundLog>> {
        todo!()
    }

    /// The high watermark in the checkpoint; 0 when there is none (R24).
    pub fn watermark(&self, name: &LogName) -> Offset {
        let _ = name;
        todo!()
    }

    /// Writes `replication-offset-checkpoint`: logs not named keep what they had (R15).
    pub fn checkpoint_watermarks(&self, marks: impl IntoIterator<Item = (LogName, Offset)>) -> io::Result<()> {
        let _ = marks.into_iter().count();
        todo!()
    }

    /// Writes `recovery-point-offset-checkpoint` from what the sync jobs reached.
    pub fn checkpoint_recovery_points(&self) -> io::Result<()> {
        todo!()
    }

    /// Writes `log-start-offset-checkpoint`: logs not named keep what they had.
    pub fn checkpoint_starts(&self, starts: impl IntoIterator<Item = (LogName, Offset)>) -> io::Result<()> {
        let _ = starts.into_iter().count();
        todo!()
    }

    /// Takes a log away at once: its directory is renamed `…-delete`. The log must not be used any more. Erase the path
    /// returned later with [`LogDir::erase`].
    pub fn delete_log(&self, name: &LogName) -> io::Result<PathBuf> {
        let _ = name;
        todo!()
    }

    /// Sets a log aside that belongs to nobody: its directory is renamed `…-stray` (R27).
    pub fn set_aside(&self, name: &LogName) -> io::Result<PathBuf> {
        let _ = name;
        todo!()
    }

    /// Erases what `delete_log` and `Log::delete_segments` gave back. Takes time.
    pub fn erase(&self, paths: &[PathBuf]) -> io::Result<()> {
        let _ = paths;
        todo!()
    }

    /// Writes all checkpoints and the mark of a clean stop: the very last (R29). Refused, with the reason, while a log was
    /// not closed cleanly or never loaded after an unclean start (R18).
    pub fn close_cleanly(&self, epoch: Option<BrokerEpoch>) -> io::Result<()> {
        let _ = epoch;
        todo!()
    }
}
