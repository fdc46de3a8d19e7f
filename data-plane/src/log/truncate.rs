//! Taking away: the end by truncation (R160), the beginning by retention (R272).
//!
//! A truncation is counted before a file is touched, so that reads that are out give nothing back. It is finished when the
//! next sync job is back: until then a follower must not fetch (D24).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{Offset, Timestamp};

use super::index::IndexBuilder;
use super::log_dir::DELETED_FILE;
use super::producer_state::ProducerState;
use super::retention::{Limits, SegmentFacts, plan_removal};
use super::scan::HeaderScan;
use super::segment::{Segment, SegmentIndex, file_name};
use super::sync::write_snapshot;
use super::{Log, recovery};
use crate::disk::Disk;

impl<D: Disk> Log<D> {
    /// Removes the records at `to` and above (R160), and the epochs and producers they brought. `to` at or below the start
    /// empties the log at its start; `to` inside a batch takes the whole batch. Counts as a truncation if anything was
    /// removed: read plans given before return nothing from then on, and [`Log::is_settled`] is false until the next sync
    /// job is back.
    pub fn truncate_to(&mut self, to: Offset) -> io::Result<()> {
        self.check_well()?;
        self.finish_swap()?;
        if to >= self.end {
            if self.epochs.truncate_from_end(to) {
                self.epochs_version += 1;
            }
            return Ok(());
        }
        if to <= self.start {
            // What was deleted before stays true of its producers.
            let deleted = self.producers.rewind(self.start).then(|| std::mem::take(&mut self.producers));
            self.truncate_fully_to(self.start)?;
            if let Some(producers) = deleted {
                self.learn_producers(producers.active());
            }
            return Ok(());
        }
        self.count_truncation();
        self.cut(to).map_err(|error| self.fail(&error))
    }

    /// Removes everything; the log then starts and ends at `start`, above or below what it held (R153, R162). It knows no
    /// producer then; see [`Self::learn_producers`].
    pub fn truncate_fully_to(&mut self, start: Offset) -> io::Result<()> {
        self.check_well()?;
        self.finish_swap()?;
        self.count_truncation();
        self.empty_at(start).map_err(|error| self.fail(&error))
    }

    pub(super) fn count_truncation(&mut self) {
        self.truncations += 1;
        self.truncations_now.store(self.truncations, Ordering::SeqCst);
    }

    fn cut(&mut self, to: Offset) -> io::Result<()> {
        let kept = self.segment_of(to);
        self.remove_segments_from(kept + 1)?;
        let segment = &mut self.segments[kept];
        let base = segment.base;
        let (mut index, floor) = match &mut segment.index {
            SegmentIndex::Growing(builder) => {
                let index = std::mem::take(builder).into_index();
                let floor = index.floor(base, to);
                (index, floor)
            }
            SegmentIndex::Closed(closed) => {
                let floor = closed.floor(to)?;
                (closed.get()?.clone(), floor)
            }
        };
        let mut cut_at = segment.size;
        let mut end = to;
        let mut scan = HeaderScan::new(&*segment.file, u64::from(floor), u64::from(segment.size));
        while let Some((position, header)) = scan.next()? {
            if header.next_offset() > to {
                cut_at = position as u32;
                end = to.min(Offset(header.base_offset));
                break;
            }
        }
        if cut_at > 0 {
            // The file itself is cut by the next sync job, once the recovery point is down.
            self.cut_files.push((Arc::clone(&segment.file), u64::from(cut_at)));
        } else {
            // Another file under the same name has nothing of the old one in it, whatever reaches the disk.
            let (disk, path) = (self.dir.disk(), self.path.join(file_name(base, "log")));
            disk.remove(&path)?;
            segment.file = Arc::new(disk.create(&path)?);
            segment.first_timestamp = None;
            self.names_version += 1;
        }
        segment.size = cut_at;
        index.truncate(cut_at, base, end);
        let (mut builder, from) = IndexBuilder::resume(index, base);
        let mut scan = HeaderScan::new(&*segment.file, u64::from(from), u64::from(cut_at));
        while let Some((position, header)) = scan.next()? {
            builder.note(base, &header, position as u32, self.settings.index_interval_bytes);
        }
        segment.index = SegmentIndex::Growing(builder);
        self.unwritten_indexes.retain(|index| index.base < base);
        self.end = end;
        self.cleaned_to = self.cleaned_to.min(end);
        self.flushed_end = self.flushed_end.min(end);
        self.recent.clear(end);
        if !planted(Flaw::KeepsEpochEntries) && self.epochs.truncate_from_end(end) {
            self.epochs_version += 1;
        }
        self.drop_snapshots_above(end)?;
        if !planted(Flaw::KeepsProducers) && !self.producers.rewind(end) {
            self.reload_producers()?;
        }
        Ok(())
    }

    fn empty_at(&mut self, start: Offset) -> io::Result<()> {
        let created = self.last_segment().created;
        self.remove_segments_from(0)?;
        self.drop_snapshots_above(Offset(-1))?;
        let file = self.dir.disk().create(&self.path.join(file_name(start, "log")))?;
        self.names_version += 1;
        self.segments.push(Segment::empty(start, file, 0, created));
        self.unwritten_indexes.clear();
        self.start_fell |= start < self.start;
        (self.start, self.end) = (start, start);
        self.cleaned_to = self.cleaned_to.min(start);
        self.flushed_end = self.flushed_end.min(start);
        self.recent.clear(start);
        self.producers.clear();
        self.epochs.clear();
        self.epochs_version += 1;
        Ok(())
    }

    /// Removes the files of all segments from `index` on, the last one first: a crash in between leaves a shorter log.
    fn remove_segments_from(&mut self, index: usize) -> io::Result<()> {
        while self.segments.len() > index {
            let Some(segment) = self.segments.pop() else { break };
            self.names_version += 1;
            for ending in ["log", "index", "timeindex"] {
                remove_if_there(self.dir.disk(), &self.path.join(file_name(segment.base, ending)))?;
            }
        }
        Ok(())
    }

    fn drop_snapshots_above(&mut self, end: Offset) -> io::Result<()> {
        self.unwritten_snapshots.retain(|(offset, _)| *offset <= end);
        let dropped = self.snapshots.split_off(&end.plus(1));
        for offset in dropped {
            self.names_version += 1;
            remove_if_there(self.dir.disk(), &self.path.join(file_name(offset, "snapshot")))?;
        }
        Ok(())
    }

    fn write_snapshots(&self) -> io::Result<()> {
        self.unwritten_snapshots.iter().try_for_each(|(offset, content)| {
            write_snapshot(self.dir.disk(), &self.path.join(file_name(*offset, "snapshot")), content)
        })
    }

    /// The producers as a snapshot and the log have them (R65).
    pub(super) fn reload_producers(&mut self) -> io::Result<()> {
        let unwritten: Vec<Offset> = self.unwritten_snapshots.iter().map(|(offset, _)| *offset).collect();
        self.snapshots.retain(|offset| !unwritten.contains(offset));
        let (disk, path) = (self.dir.disk(), &self.path);
        let (mut producers, mut from) = recovery::newest_snapshot(disk, path, &mut self.snapshots, self.end)?;
        self.snapshots.extend(unwritten);
        // A snapshot that is not written yet is known by its bytes.
        if let Some((offset, content)) = self.unwritten_snapshots.iter().rfind(|(offset, _)| *offset >= from)
            && let Ok(state) = ProducerState::decode(content)
        {
            (producers, from) = (state, *offset);
        }
        recovery::replay_producers(&self.segments, from, &mut producers)?;
        self.producers = producers;
        Ok(())
    }

    /// Removes the segments that may go (R272): by age, by size, or below the start; never one with records at or above
    /// `high_watermark`. The files bear `.deleted` from then on; erase the paths returned after `file.delete.delay.ms`
    /// with [`super::LogDir::erase`], off the lock.
    pub fn delete_segments(&mut self, high_watermark: Offset, now: Timestamp) -> io::Result<Vec<PathBuf>> {
        self.check_well()?;
        if self.swapping.is_some() {
            return Ok(Vec::new());
        }
        let facts = self.segment_facts();
        let limits =
            Limits { retention_ms: self.settings.retention_ms, retention_bytes: self.settings.retention_bytes };
        let removable = plan_removal(&facts, self.start, high_watermark, now, limits);
        if removable == 0 {
            return Ok(Vec::new());
        }
        if removable == self.segments.len() {
            self.roll(now)?;
            // The batches go at once; without this a kill would take what is known of their producers with them.
            self.write_snapshots().map_err(|error| self.fail(&error))?;
        }
        self.put_away(removable).map_err(|error| self.fail(&error))
    }

    pub(super) fn segment_facts(&self) -> Vec<SegmentFacts> {
        let ends = self.segments.iter().skip(1).map(|next| next.base).chain([self.end]);
        let facts = self.segments.iter().zip(ends).map(|(segment, end)| SegmentFacts {
            end,
            bytes: u64::from(segment.size),
            largest_timestamp: segment.max_timestamp().map_or(segment.created, |max| max.timestamp),
        });
        facts.collect()
    }

    /// Renames the files of the oldest segments, oldest first.
    fn put_away(&mut self, segments: usize) -> io::Result<Vec<PathBuf>> {
        let disk = self.dir.disk().clone();
        let new_first = self.segments[segments].base;
        let mut away = Vec::new();
        let mut put = |path: PathBuf| {
            let mut deleted = path.clone().into_os_string();
            deleted.push(DELETED_FILE);
            match disk.rename(&path, deleted.as_ref()) {
                Ok(()) => away.push(PathBuf::from(deleted)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            Ok(())
        };
        for segment in &self.segments[..segments] {
            for ending in ["log", "index", "timeindex"] {
                put(self.path.join(file_name(segment.base, ending)))?;
            }
        }
        // The newest snapshot at or below the new beginning still tells of producers whose batches are gone.
        let newest = self.snapshots.range(..=new_first).next_back().copied().unwrap_or(new_first);
        let older: Vec<Offset> = self.snapshots.range(..newest).copied().collect();
        for offset in older {
            put(self.path.join(file_name(offset, "snapshot")))?;
            self.snapshots.remove(&offset);
        }
        self.unwritten_snapshots.retain(|(offset, _)| *offset >= newest);
        self.unwritten_indexes.retain(|index| index.base >= new_first);
        self.segments.drain(..segments);
        self.names_version += 1;
        self.advance_start(new_first);
        Ok(away)
    }
}

fn remove_if_there<D: Disk>(disk: &D, path: &std::path::Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
