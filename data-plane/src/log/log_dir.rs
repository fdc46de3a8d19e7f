//! One directory of `log.dirs`: whose it is, what the process before left in it, and the checkpoints all its logs share.
//!
//! Logs find their recovery point here when they open, and their sync jobs note it here when they are done; the caller
//! decides when checkpoints are written (R14). Nothing here is ever called under a partition's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{BrokerEpoch, DirectoryId, IncarnationId, Offset, TopicId};
use parking_lot::Mutex;

use super::checkpoint::{self, NewerFormat};
use super::{LogDirError, LogName};
use crate::disk::{Disk, DiskFile, LockAttempt};

mod identity;

use identity::{Heritage, RUNNING};
pub use identity::{Opening, Previous};

const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
const STARTS: &str = "log-start-offset-checkpoint";
const WATERMARKS: &str = "replication-offset-checkpoint";
const CLEANED: &str = "cleaner-offset-checkpoint";
const LOCK: &str = ".lock";

/// Endings of directories that are no logs any more.
const DELETED_DIR: &str = "-delete";
const STRAY_DIR: &str = "-stray";
/// The ending of files that are no part of a log any more.
pub(super) const DELETED_FILE: &str = ".deleted";
pub(super) const PARTITION_METADATA: &str = "partition.metadata";

/// A log found in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLog {
    pub name: LogName,
    /// From `partition.metadata`; `None` where that is missing or unreadable.
    pub topic: Option<TopicId>,
    /// Of all its segments.
    pub bytes: u64,
}

impl FoundLog {
    /// Whether it may be the log of this topic (R27): it says so, or it does not say.
    pub fn is_of(&self, topic: TopicId) -> bool {
        self.topic.is_none_or(|own| own == topic) || planted(Flaw::TakesOverLogs)
    }
}

/// A locked log directory.
pub struct LogDir<D: Disk> {
    disk: D,
    path: PathBuf,
    id: DirectoryId,
    opening: Opening,
    /// The process before stopped in order: nothing needs a scan (R19).
    clean: bool,
    /// What the processes before left, until this one has registered.
    heritage: Heritage,
    tables: Mutex<Tables>,
    /// Log starts to be written: whoever writes next takes all of them along, so that many saved at once cost a write or
    /// two.
    starts_due: Mutex<Vec<(LogName, Offset)>>,
    _lock: D::Lock,
}

/// The checkpoints as they are to be, and who holds which log.
#[derive(Default)]
struct Tables {
    watermarks: Table,
    recovery_points: Table,
    starts: Table,
    /// Up to where compaction came. A file that knows less costs work, and one that knows too much leaves older values lying
    /// beside newer ones: neither loses anything.
    cleaned: Table,
    /// Found after an unclean stop and not opened yet.
    unrecovered: BTreeSet<LogName>,
    /// Opened and not closed cleanly.
    open: BTreeSet<LogName>,
    /// Logs whose start was saved since all starts were last looked at.
    saved_starts: BTreeSet<LogName>,
    /// Opened at some time by this process: how the one before stopped says nothing of them any more.
    touched: BTreeSet<LogName>,
}

/// One checkpoint file: what it is to say, and what it says.
#[derive(Default)]
struct Table {
    file: &'static str,
    now: BTreeMap<LogName, Offset>,
    written: BTreeMap<LogName, Offset>,
}

/// What the checkpoints say of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    pub clean: bool,
    pub recovery_point: Offset,
    pub start: Offset,
    pub watermark: Offset,
}

impl<D: Disk> LogDir<D> {
    /// Locks the directory, formats it if it is new, takes the mark of a clean stop away (R18) and loads the checkpoints.
    pub fn open(disk: D, path: &Path, opening: &Opening) -> Result<(Arc<Self>, Previous), LogDirError> {
        let failed = |error| LogDirError::Io { directory: path.to_owned(), error };
        create_durably(&disk, path).map_err(failed)?;
        let lock = match disk.lock(&path.join(LOCK)).map_err(failed)? {
            LockAttempt::Held(lock) => lock,
            LockAttempt::HeldBy(holder) => {
                return Err(LogDirError::Locked { directory: path.to_owned(), holder });
            }
        };
        let (id, fresh) = identity::read_or_format(&disk, path, opening)?;
        let clean_stop = identity::take_clean_stop(&disk, path)?;
        let survived = identity::survivor(&disk, path, opening).map_err(failed)?;
        let mut damaged = Vec::new();
        let mut load = |file| Table::load(&disk, path, file, &mut damaged);
        let tables = Tables {
            watermarks: load(WATERMARKS)?,
            recovery_points: load(RECOVERY_POINTS)?,
            starts: load(STARTS)?,
            cleaned: load(CLEANED)?,
            ..Tables::default()
        };
        let clean = clean_stop.is_some();
        let (found, doubt) = match survived {
            Ok(heritage) => (heritage, None),
            Err(doubt) => (Heritage::default(), Some(doubt)),
        };
        let previous =
            Previous { clean_stop, survived: found.survived, clean_before: found.clean, fresh, doubt, damaged };
        let dir = Self {
            disk,
            path: path.to_owned(),
            id,
            opening: opening.clone(),
            clean,
            heritage: Heritage::of(&previous),
            tables: Mutex::new(tables),
            starts_due: Mutex::default(),
            _lock: lock,
        };
        dir.forget_deleted().map_err(failed)?;
        if !clean {
            dir.tables.lock().unrecovered = dir.names().map_err(failed)?.into_iter().collect();
        }
        Ok((Arc::new(dir), previous))
    }

    /// The checkpoints may still speak of a log that was deleted just before the process ended: another topic of that
    /// name must not be measured by them.
    fn forget_deleted(&self) -> io::Result<()> {
        let ending = format!(".{}", self.id);
        for entry in self.disk.list(&self.path)? {
            if let Some((name, _)) = entry.name.strip_suffix(DELETED_DIR).and_then(|name| name.split_once(&ending))
                && let Some(name) = LogName::parse(name)
                && !self.disk.exists(&self.log_path(&name))?
            {
                self.forget(&name);
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub const fn disk(&self) -> &D {
        &self.disk
    }

    /// `directory.id` of `meta.properties`.
    pub const fn id(&self) -> DirectoryId {
        self.id
    }

    /// Notes durably that this incarnation runs on this boot; before registering (D10). What the processes before it left
    /// is handed on, for until it has registered they are the ones the quorum knows.
    pub fn write_running_marker(&self, incarnation: IncarnationId) -> io::Result<()> {
        self.mark_running(incarnation, &self.heritage)
    }

    /// The quorum knows this incarnation now: the ones before it count no more.
    pub fn registered(&self, incarnation: IncarnationId) -> io::Result<()> {
        if self.heritage.survived.is_empty() && self.heritage.clean.is_none() {
            return Ok(());
        }
        self.mark_running(incarnation, &Heritage::default())
    }

    fn mark_running(&self, incarnation: IncarnationId, heritage: &Heritage) -> io::Result<()> {
        let directory = self.disk.identity(&self.path)?;
        let text = identity::format_running(&self.opening, &directory, incarnation, heritage);
        checkpoint::write_atomically(&self.disk, &self.path.join(RUNNING), text.as_bytes())
    }

    /// The logs in the directory, whether opened or not, sorted.
    pub fn found(&self) -> io::Result<Vec<FoundLog>> {
        let mut found = Vec::new();
        for name in self.names()? {
            let path = self.log_path(&name);
            let metadata = checkpoint::read_text(&self.disk, &path.join(PARTITION_METADATA))?;
            let topic = metadata.and_then(|text| checkpoint::parse_partition_metadata(&text).ok().flatten());
            let mut bytes = 0;
            for entry in self.disk.list(&path)?.iter().filter(|entry| entry.name.ends_with(".log")) {
                bytes += self.disk.open(&path.join(&entry.name))?.len()?;
            }
            found.push(FoundLog { name, topic, bytes });
        }
        Ok(found)
    }

    /// Directories of deleted logs and of those set aside (R27); the deleted ones may be erased.
    pub fn left_over(&self) -> io::Result<Vec<PathBuf>> {
        let entries = self.disk.list(&self.path)?.into_iter();
        let deleted = entries.filter(|entry| entry.is_dir && entry.name.ends_with(DELETED_DIR));
        Ok(deleted.map(|entry| self.path.join(entry.name)).collect())
    }

    fn names(&self) -> io::Result<Vec<LogName>> {
        let entries = self.disk.list(&self.path)?.into_iter();
        Ok(entries.filter(|entry| entry.is_dir).filter_map(|entry| LogName::parse(&entry.name)).collect())
    }

    /// Where a log lies.
    pub fn log_path(&self, name: &LogName) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// The high watermark in the checkpoint; 0 when there is none (R24).
    pub fn watermark(&self, name: &LogName) -> Offset {
        self.tables.lock().watermarks.of(name)
    }

    /// Writes `replication-offset-checkpoint`: logs not named keep what they had (R15).
    pub fn checkpoint_watermarks(&self, marks: impl IntoIterator<Item = (LogName, Offset)>) -> io::Result<()> {
        let tables = &mut *self.tables.lock();
        tables.watermarks.now.extend(marks);
        tables.watermarks.write_if_changed(&self.disk, &self.path)
    }

    /// Writes `recovery-point-offset-checkpoint` from what the sync jobs reached (R283).
    pub fn checkpoint_recovery_points(&self) -> io::Result<()> {
        self.tables.lock().recovery_points.write_if_changed(&self.disk, &self.path)
    }

    /// Up to where compaction came, by the checkpoint.
    pub(super) fn cleaned_to(&self, name: &LogName) -> Offset {
        self.tables.lock().cleaned.of(name)
    }

    /// A log is compacted up to there; written with [`Self::checkpoint_cleaned`].
    pub(super) fn note_cleaned(&self, name: &LogName, to: Offset) {
        self.tables.lock().cleaned.now.insert(name.clone(), to);
    }

    /// Writes `cleaner-offset-checkpoint`.
    pub fn checkpoint_cleaned(&self) -> io::Result<()> {
        self.tables.lock().cleaned.write_if_changed(&self.disk, &self.path)
    }

    /// Writes `log-start-offset-checkpoint`: logs not named keep what they had. Durable when it returns (D33).
    pub fn checkpoint_starts(&self, starts: impl IntoIterator<Item = (LogName, Offset)>) -> io::Result<()> {
        let starts: Vec<_> = starts.into_iter().collect();
        self.starts_due.lock().extend(starts.iter().cloned());
        let tables = &mut *self.tables.lock();
        let due = std::mem::take(&mut *self.starts_due.lock());
        let written = |table: &Table, (name, start): &(LogName, Offset)| table.written.get(name) >= Some(start);
        // Nothing is left of ours if another took it along and wrote it.
        if due.is_empty() && starts.iter().all(|start| written(&tables.starts, start)) {
            return Ok(());
        }
        tables.saved_starts.extend(due.iter().map(|(name, _)| name.clone()));
        tables.starts.now.extend(due);
        tables.starts.write(&self.disk, &self.path)
    }

    /// Writes `log-start-offset-checkpoint` with what `collect` finds; a start saved by [`Self::checkpoint_starts`] while
    /// it looked is newer and stays.
    pub fn checkpoint_found_starts(&self, collect: impl FnOnce() -> Vec<(LogName, Offset)>) -> io::Result<()> {
        self.tables.lock().saved_starts.clear();
        let found = collect();
        let tables = &mut *self.tables.lock();
        tables.starts.now.extend(found.into_iter().filter(|(name, _)| !tables.saved_starts.contains(name)));
        tables.starts.write_if_changed(&self.disk, &self.path)
    }

    /// A log begins anew at `start`. Where the file says that it begins later it is put right before this returns: what
    /// is appended next must not be taken for deleted.
    pub(super) fn start_fell(&self, name: &LogName, start: Offset) -> io::Result<()> {
        let tables = &mut *self.tables.lock();
        self.starts_due.lock().retain(|(due, _)| due != name);
        tables.starts.now.insert(name.clone(), start);
        tables.saved_starts.insert(name.clone());
        if tables.starts.written.get(name).is_some_and(|&written| written > start) {
            tables.starts.write(&self.disk, &self.path)?;
        }
        Ok(())
    }

    /// Takes a log away at once: its directory is renamed `…-delete`. The log must not be used any more. Erase the path
    /// returned later with [`LogDir::erase`].
    pub fn delete_log(&self, name: &LogName) -> io::Result<PathBuf> {
        self.put_away(name, DELETED_DIR)
    }

    /// Sets a log aside that belongs to nobody: its directory is renamed `…-stray` (R27). No file speaks of it any more by
    /// then: a directory that bears that ending stays, and another process could not tell whether what a checkpoint says of
    /// its name is said of it or of a log that was lost.
    pub fn set_aside(&self, name: &LogName) -> io::Result<PathBuf> {
        self.forget_durably(name)?;
        self.put_away(name, STRAY_DIR)
    }

    fn put_away(&self, name: &LogName, ending: &str) -> io::Result<PathBuf> {
        let mut away = self.path.join(format!("{name}.{}{ending}", self.id));
        for number in 1.. {
            if !self.disk.exists(&away)? {
                break;
            }
            away = self.path.join(format!("{name}.{}.{number}{ending}", self.id));
        }
        self.disk.rename(&self.log_path(name), &away)?;
        self.disk.sync_dir(&self.path)?;
        self.forget(name);
        Ok(away)
    }

    /// The checkpoints no longer speak of this log; their files until they are written next.
    fn forget(&self, name: &LogName) {
        let tables = &mut *self.tables.lock();
        for table in tables.all() {
            table.now.remove(name);
        }
        tables.unrecovered.remove(name);
        tables.open.remove(name);
    }

    /// A log of this name is no more, or is made anew: what the files still say of it is taken out before this returns.
    pub(super) fn forget_durably(&self, name: &LogName) -> io::Result<()> {
        let tables = &mut *self.tables.lock();
        for table in tables.all() {
            table.now.remove(name);
            if table.written.contains_key(name) {
                table.write(&self.disk, &self.path)?;
            }
        }
        Ok(())
    }

    /// Erases what `delete_log` and `Log::delete_segments` gave back; what is gone already is no error. Takes time.
    pub fn erase(&self, paths: &[PathBuf]) -> io::Result<()> {
        for path in paths {
            let is_log = path.parent() == Some(&self.path);
            let erased = if is_log { self.disk.remove_dir_all(path) } else { self.disk.remove(path) };
            match erased {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes all checkpoints and the mark of a clean stop: the very last (R29). Refused, with the reason, while a log was
    /// not closed cleanly, or was never recovered after an unclean stop (R18).
    pub fn close_cleanly(&self, epoch: Option<BrokerEpoch>) -> io::Result<()> {
        let tables = &mut *self.tables.lock();
        let refused = |why: &str, name: &LogName| Err(io::Error::other(format!("no clean stop: {name} {why}")));
        if let Some(name) = tables.unrecovered.first() {
            return refused("was never recovered", name);
        }
        if let Some(name) = tables.open.first() {
            return refused("was not closed cleanly", name);
        }
        for table in [&mut tables.watermarks, &mut tables.recovery_points, &mut tables.starts] {
            table.write(&self.disk, &self.path)?;
        }
        tables.cleaned.write_if_changed(&self.disk, &self.path)?;
        identity::write_clean_stop(&self.disk, &self.path, epoch)
    }

    /// What a log that is about to open must know.
    pub(super) fn marks(&self, name: &LogName) -> Marks {
        let tables = self.tables.lock();
        Marks {
            clean: self.clean && !tables.touched.contains(name),
            recovery_point: tables.recovery_points.of(name),
            start: tables.starts.of(name),
            watermark: tables.watermarks.of(name),
        }
    }

    /// A log is open, and synced up to `recovery_point`.
    pub(super) fn opened(&self, name: &LogName, recovery_point: Offset) -> io::Result<()> {
        {
            let tables = &mut *self.tables.lock();
            tables.unrecovered.remove(name);
            tables.open.insert(name.clone());
            tables.touched.insert(name.clone());
        }
        self.note_recovery_point(name, recovery_point)
    }

    /// A log is closed, and all of it synced. `start`: where it lies inside the first segment (R11).
    pub(super) fn closed(&self, name: &LogName, start: Option<Offset>, end: Offset) {
        let tables = &mut *self.tables.lock();
        tables.open.remove(name);
        match start {
            Some(start) => tables.starts.now.insert(name.clone(), start),
            None => tables.starts.now.remove(name),
        };
        tables.recovery_points.now.insert(name.clone(), end);
    }

    /// A log was truncated and ends at `end`. Where the file says that more was committed – an unclean election took that
    /// back – it is put right before this returns: after a kill the log would pass for one that lost records (D10), and
    /// where it is the last replica nobody would lead the partition any more (seed 9523).
    pub(super) fn lower_watermark(&self, name: &LogName, end: Offset) -> io::Result<()> {
        let table = &mut self.tables.lock().watermarks;
        if table.of(name) > end {
            table.now.insert(name.clone(), end);
        }
        if table.written.get(name).is_some_and(|&written| written > end) {
            table.write(&self.disk, &self.path)?;
        }
        Ok(())
    }

    /// A log is about to lose what lies behind `recovery_point`: the file does not claim more when this returns.
    pub(super) fn lower_recovery_point(&self, name: &LogName, recovery_point: Offset) -> io::Result<()> {
        let lower = self.tables.lock().recovery_points.of(name).min(recovery_point);
        self.note_recovery_point(name, lower)
    }

    /// A log is synced up to `recovery_point`. Where the file claims more – the log was truncated – it is put right before
    /// this returns (R160): whatever is appended next must not be believed.
    pub(super) fn note_recovery_point(&self, name: &LogName, recovery_point: Offset) -> io::Result<()> {
        let table = &mut self.tables.lock().recovery_points;
        table.now.insert(name.clone(), recovery_point);
        let claims_more = table.written.get(name).is_some_and(|&written| written > recovery_point);
        if claims_more && !planted(Flaw::KeepsRecoveryPoint) {
            table.write(&self.disk, &self.path)?;
        }
        Ok(())
    }
}

impl Tables {
    fn all(&mut self) -> [&mut Table; 4] {
        [&mut self.watermarks, &mut self.recovery_points, &mut self.starts, &mut self.cleaned]
    }
}

/// Makes a directory and those above it, and makes their names durable.
fn create_durably<D: Disk>(disk: &D, path: &Path) -> io::Result<()> {
    let mut parents = Vec::new();
    for missing in path.ancestors() {
        if missing.as_os_str().is_empty() || disk.exists(missing)? {
            break;
        }
        parents.push(missing.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")));
    }
    disk.create_dir_all(path)?;
    parents.into_iter().rev().try_for_each(|parent| disk.sync_dir(parent))
}

impl Table {
    /// From its file; empty where there is none, and where it cannot be read, which `damaged` then hears of.
    fn load<D: Disk>(
        disk: &D,
        dir: &Path,
        file: &'static str,
        damaged: &mut Vec<&'static str>,
    ) -> Result<Self, LogDirError> {
        let path = dir.join(file);
        let text =
            checkpoint::read_text(disk, &path).map_err(|error| LogDirError::Io { directory: path.clone(), error })?;
        let exists = disk.exists(&path).map_err(|error| LogDirError::Io { directory: path.clone(), error })?;
        let text = text.unwrap_or_default();
        let now = checkpoint::parse_offsets(&text).map_err(|NewerFormat(version)| LogDirError::NewerFormat {
            file: path,
            version,
            known: checkpoint::VERSION,
        })?;
        if exists && now.is_empty() && text != checkpoint::format_offsets(&now) {
            damaged.push(file);
        }
        Ok(Self { file, written: now.clone(), now })
    }

    fn of(&self, name: &LogName) -> Offset {
        self.now.get(name).copied().unwrap_or_default()
    }

    /// Nothing to do where the file says it already.
    fn write_if_changed<D: Disk>(&mut self, disk: &D, dir: &Path) -> io::Result<()> {
        if self.now == self.written { Ok(()) } else { self.write(disk, dir) }
    }

    fn write<D: Disk>(&mut self, disk: &D, dir: &Path) -> io::Result<()> {
        checkpoint::write_atomically(disk, &dir.join(self.file), checkpoint::format_offsets(&self.now).as_bytes())?;
        self.written.clone_from(&self.now);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
