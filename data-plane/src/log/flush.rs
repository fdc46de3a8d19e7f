//! What a log hands out to be synced, and how it takes the result back (D23, D24).

use std::io;
use std::sync::Arc;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::Offset;

use super::Log;
use super::checkpoint;
use super::segment::file_name;
use super::sync::{EPOCHS, Stamp, SyncDone, SyncJob, cut_files, write_snapshot};
use crate::disk::{Disk, DiskFile};

impl<D: Disk> Log<D> {
    /// Whether a sync job is due whatever `flush.messages` says: a segment was rolled or the log truncated. Cheap; ask
    /// after every append.
    #[inline]
    pub fn sync_due(&self) -> bool {
        let rolled = self.segments.len() > 1 && self.last_segment().base > self.flushed_end;
        (rolled || !self.is_settled()) && !self.job_out && self.failure.is_none()
    }

    /// Whether every truncation so far has reached the disk: a follower fetches only then (D24).
    pub const fn is_settled(&self) -> bool {
        self.truncations == self.truncations_synced
    }

    /// All that is to be synced now, to be run off the lock; `None` when there is nothing or a job is out already.
    pub fn sync_job(&mut self) -> Option<SyncJob<D>> {
        let names = self.names_version != self.names_synced;
        let epochs = self.epochs_version != self.epochs_synced;
        let written = !self.unwritten_indexes.is_empty() || !self.unwritten_snapshots.is_empty();
        let anything = self.flushed_end < self.end || !self.is_settled() || names || epochs || written || self.is_new;
        if self.job_out || self.failure.is_some() || !anything {
            return None;
        }
        self.job_out = true;
        let ends = self.segments.iter().skip(1).map(|next| next.base).chain([self.end]);
        let unsynced = self.segments.iter().zip(ends).filter(|&(_, end)| end > self.flushed_end);
        let mut bytes = 0;
        let mut files: Vec<Arc<D::File>> = Vec::new();
        for (segment, _) in unsynced {
            bytes += u64::from(segment.size);
            files.push(Arc::clone(&segment.file));
        }
        let prepare = (self.segments.len() > 1 && self.prepared.is_none())
            .then(|| if self.settings.preallocate { u64::from(self.settings.segment_bytes_max) } else { 0 });
        Some(SyncJob {
            dir: Arc::clone(&self.dir),
            name: self.name.clone(),
            path: self.path.clone(),
            stamp: Stamp {
                truncations: self.truncations,
                end: self.end,
                names_version: self.names_version,
                epochs_version: self.epochs_version,
            },
            truncations_now: Arc::clone(&self.truncations_now),
            bytes,
            cuts: self.cut_files.clone(),
            flushed_end: self.flushed_end,
            files,
            indexes: self.unwritten_indexes.clone(),
            snapshots: self.unwritten_snapshots.clone(),
            epochs: epochs.then(|| checkpoint::format_epochs(&self.epochs)),
            sync_names: names || written,
            is_new: self.is_new,
            truncated: !self.is_settled(),
            start_fell: std::mem::take(&mut self.start_fell).then_some(self.start),
            prepare,
        })
    }

    /// Takes a job back. Says whether `flushed_end` moved; an error means that the log has failed (R283).
    pub fn on_synced(&mut self, done: SyncDone<D>) -> io::Result<bool> {
        self.job_out = false;
        done.result.or_else(|error| {
            if planted(Flaw::IgnoresFailedSyncs) {
                return Ok(());
            }
            self.failure.get_or_insert_with(|| error.to_string());
            Err(error)
        })?;
        self.names_synced = self.names_synced.max(done.stamp.names_version);
        self.epochs_synced = self.epochs_synced.max(done.stamp.epochs_version);
        self.is_new = false;
        if done.prepared.is_some() {
            self.prepared = done.prepared;
        }
        if done.stamp.truncations != self.truncations {
            // The job may have written snapshots of what is gone by now.
            for offset in done.snapshots.iter().filter(|offset| !self.snapshots.contains(offset)) {
                let path = self.path.join(file_name(*offset, "snapshot"));
                self.names_version += 1;
                match self.dir.disk().remove(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.fail(&error)),
                    _ => {}
                }
            }
            return Ok(false);
        }
        self.truncations_synced = self.truncations;
        self.cut_files.clear();
        self.unwritten_indexes.retain(|index| !done.indexes.contains(&index.base));
        self.unwritten_snapshots.retain(|(offset, _)| !done.snapshots.contains(offset));
        let moved = done.stamp.end > self.flushed_end;
        self.flushed_end = self.flushed_end.max(done.stamp.end);
        Ok(moved)
    }

    /// Writes indexes, epochs and producers, and syncs everything: off the lock, at the very end (R29), when no sync job is
    /// out. The log takes no writes afterwards.
    pub fn close_cleanly(&mut self) -> io::Result<()> {
        self.check_well()?;
        if self.job_out {
            return Err(io::Error::other(format!("{}: a sync job is out", self.path.display())));
        }
        self.sync_and_close().map_err(|error| self.fail(&error))?;
        self.failure = Some("it was closed".to_owned());
        Ok(())
    }

    /// Whether it holds no record, and the disk nothing that contradicts that: if it is lost, it is made anew as it is.
    fn is_untouched(&self) -> bool {
        let on_disk = self.names_version == self.names_synced && self.epochs_version == self.epochs_synced;
        let written = self.unwritten_indexes.is_empty() && self.unwritten_snapshots.is_empty();
        let truncated = !self.is_settled() || !self.cut_files.is_empty();
        self.end == Offset::ZERO && written && !truncated && (self.is_new || on_disk)
    }

    fn sync_and_close(&mut self) -> io::Result<()> {
        self.finish_swap()?;
        // Thousands of them would keep the disk busy for half a minute.
        if self.is_untouched() {
            self.dir.closed(&self.name, None, self.end);
            return Ok(());
        }
        let disk = self.dir.disk().clone();
        let (log, interval) = (self.path.clone(), self.settings.index_interval_bytes);
        let closed = self.active().close(&disk, &log, interval);
        self.unwritten_indexes.extend(closed);
        cut_files(&self.dir, &self.name, &self.cut_files, self.flushed_end)?;
        let ends: Vec<_> = self.segments.iter().skip(1).map(|next| next.base).chain([self.end]).collect();
        for (segment, end) in self.segments.iter().zip(ends) {
            if end > self.flushed_end {
                segment.file.sync_data()?;
            }
        }
        for index in &self.unwritten_indexes {
            index.write()?;
        }
        if self.knows_producers() && (!self.snapshots.contains(&self.end) || !self.unwritten_snapshots.is_empty()) {
            self.unwritten_snapshots.retain(|(offset, _)| *offset != self.end);
            self.keep_producers();
        }
        for (offset, content) in &self.unwritten_snapshots {
            write_snapshot(&disk, &log.join(file_name(*offset, "snapshot")), content)?;
        }
        if self.is_new {
            disk.open(&log.join(super::log_dir::PARTITION_METADATA))?.sync_data()?;
            disk.sync_dir(self.dir.path())?;
        }
        checkpoint::write_atomically(&disk, &log.join(EPOCHS), checkpoint::format_epochs(&self.epochs).as_bytes())?;
        let start = Some(self.start).filter(|&start| start > self.segments[0].base);
        self.dir.closed(&self.name, start, self.end);
        Ok(())
    }
}
