//! Compaction of one log, carried out off its lock (R275–R281).
//!
//! [`Log::clean_job`] hands out what is due, with handles of its own on the files; [`CleanJob::step`] reads them and writes
//! what is left of one segment, or of several small ones in one, to a file beside them; [`Log::install`] puts that in their place.
//! Whoever reads meanwhile reads the old files to their end: what they say is true, too.
//!
//! What stays covers all offsets that were there, epoch by epoch (`compaction/cover.rs`). So a segment still ends where the next
//! one begins and a gap still means damage, for readers, followers and recovery alike. One segment in the place of one is a
//! rename, which a crash leaves done or not done. What several are merged into bears the name `.swap`, durably, before their files
//! go, and they are gone, durably, before it gets its own: whoever finds one at a start finishes that (R25, `recovery/files.rs`).

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use highwater_wire::batch::{BatchHeader, HEADER_BYTES, RecordBatch};
use highwater_wire::records::thin::Thinned;
use highwater_wire::{Offset, Timestamp};

use super::compaction::cover::Cover;
use super::compaction::key_map::KeyMap;
use super::compaction::{Due, Sieve, plan};
use super::index::IndexBuilder;
use super::segment::{ClosedIndex, Segment, SegmentIndex, file_name};
use super::{Log, LogDir, LogSettings};
use crate::disk::{Disk, DiskFile};

/// What is being written; nothing of it counts.
pub(super) const CLEANED: &str = "log.cleaned";
/// Written and synced: it counts, and the segments that it replaces do not.
pub(super) const SWAP: &str = "log.swap";
/// What is read and written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A segment as it was when the job was handed out.
struct Part<D: Disk> {
    base: Offset,
    end: Offset,
    file: Arc<D::File>,
    size: u32,
}

/// What the table of keys may be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyBuffer {
    /// `log.cleaner.dedupe.buffer.size`
    pub bytes_max: usize,
    /// Drawn by whoever cleans: with it no two keys can be made that look alike.
    pub secret: (u64, u64),
}

/// What is to be cleaned. Dropping it leaves the log as it is.
pub struct CleanJob<D: Disk> {
    dir: Arc<LogDir<D>>,
    path: PathBuf,
    settings: LogSettings,
    delete_retention_ms: u64,
    truncations: u64,
    due: Due,
    now: Timestamp,
    buffer: KeyBuffer,
    /// Of each live producer, where its newest batch ends: that one stays, if without records (R278).
    newest: BTreeSet<Offset>,
    parts: Vec<Part<D>>,
    /// Built with the first step: where each key stands last, and up to where that is known.
    latest: Option<KeyMap>,
    /// What still is to be done.
    groups: VecDeque<Vec<Part<D>>>,
    stop: Arc<AtomicBool>,
    pub report: CleanReport,
}

/// What a cleaning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CleanReport {
    /// Where the log is clean up to now.
    pub cleaned_to: Offset,
    pub keys: usize,
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub records_before: u64,
    pub records_after: u64,
    pub segments_before: usize,
    pub segments_after: usize,
}

/// What is left of some segments, on the disk and synced, not in the log yet.
pub struct Cleaned<D: Disk> {
    truncations: u64,
    base: Offset,
    /// The files that it is made of.
    files: Vec<Arc<D::File>>,
    index: Arc<ClosedIndex<D>>,
    file: Arc<D::File>,
    size: u32,
}

/// Segments that were merged, on the way to their one name.
pub(super) struct Swap {
    base: Offset,
    /// Whose files still lie there.
    replaced: Vec<Offset>,
}

/// What became of [`Log::install`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// It is part of the log.
    Done,
    /// It is; [`Log::go_on_swapping`] after each sync of the names, until that says that it is done.
    Begun,
    /// The log changed meanwhile: it counts for nothing.
    Stale,
}

impl<D: Disk> Log<D> {
    /// What compaction could do now; `None`: nothing, or the topic is not compacted.
    pub fn cleaning_due(&self, high_watermark: Offset, now: Timestamp) -> Option<Due> {
        let rules = self.settings.compaction.as_ref()?;
        let facts = self.segment_facts();
        // What is not synced yet would have to be synced twice.
        let bound = high_watermark.min(self.flushed_end);
        let (_, closed) = facts.split_last()?;
        plan(closed, self.first_base(), self.cleaned_to, bound, now, rules)
    }

    /// Hands out what is due.
    pub fn clean_job(&self, high_watermark: Offset, now: Timestamp, buffer: KeyBuffer) -> Option<CleanJob<D>> {
        if self.failure.is_some() || self.swapping.is_some() {
            return None;
        }
        let due = self.cleaning_due(high_watermark, now)?;
        let ends = self.segments.iter().skip(1).map(|next| next.base);
        let parts = self.segments.iter().zip(ends).take_while(|(_, end)| *end <= due.to).map(|(segment, end)| Part {
            base: segment.base,
            end,
            file: Arc::clone(&segment.file),
            size: segment.size,
        });
        Some(CleanJob {
            dir: Arc::clone(&self.dir),
            path: self.path.clone(),
            settings: self.settings.clone(),
            delete_retention_ms: self.settings.compaction?.delete_retention_ms,
            truncations: self.truncations,
            due,
            now,
            buffer,
            newest: self.producers.newest_ends(),
            parts: parts.collect(),
            latest: None,
            groups: VecDeque::new(),
            stop: Arc::default(),
            report: CleanReport::default(),
        })
    }

    /// Puts what is left in the place of what it was made of: renames and removals, nothing is read or synced.
    ///
    /// # Errors
    /// The disk failed, and the log with it.
    pub fn install(&mut self, cleaned: &Cleaned<D>) -> io::Result<Installed> {
        self.check_well()?;
        let first = self.segments.iter().position(|segment| segment.base == cleaned.base);
        let same = |first: usize| {
            let segments = self.segments.get(first..first + cleaned.files.len())?;
            let same = |(segment, file): (&Segment<D>, &Arc<D::File>)| Arc::ptr_eq(&segment.file, file);
            segments.iter().zip(&cleaned.files).all(same).then_some(first)
        };
        // The last one grows: it is never among them.
        let stale = cleaned.truncations != self.truncations || self.swapping.is_some();
        let Some(first) = first.and_then(same).filter(|_| !stale) else { return Ok(Installed::Stale) };
        let behind = first + cleaned.files.len();
        let merged = cleaned.files.len() > 1;
        self.names_version += 1;
        let to = if merged { SWAP } else { "log" };
        let (from, to) = (file_name(cleaned.base, CLEANED), file_name(cleaned.base, to));
        let renamed = self.dir.disk().rename(&self.path.join(from), &self.path.join(to));
        renamed.map_err(|error| self.fail(&error))?;
        if merged {
            let replaced = self.segments[first + 1..behind].iter().map(|segment| segment.base).collect();
            self.swapping = Some(Swap { base: cleaned.base, replaced });
        }
        let next = &self.segments[behind];
        let segment = Segment {
            base: cleaned.base,
            file: Arc::clone(&cleaned.file),
            size: cleaned.size,
            log_position: next.log_position - u64::from(cleaned.size),
            first_timestamp: None,
            created: self.segments[first].created,
            index: SegmentIndex::Closed(Arc::clone(&cleaned.index)),
        };
        self.segments.splice(first..behind, [segment]);
        // Positions count up to the end: those before what shrank move up.
        let mut position = self.segments[first].log_position;
        for segment in self.segments[..first].iter_mut().rev() {
            position -= u64::from(segment.size);
            segment.log_position = position;
        }
        self.recent.clear(self.end);
        Ok(if merged { Installed::Begun } else { Installed::Done })
    }

    /// The next step of a merge, once the names are synced as the step before left them: the files that were merged go, then the
    /// new one gets its name. Says whether there is another step.
    ///
    /// # Errors
    /// The disk failed, and the log with it.
    pub fn go_on_swapping(&mut self) -> io::Result<bool> {
        self.check_well()?;
        let Some(swap) = &mut self.swapping else { return Ok(false) };
        let (replaced, base) = (std::mem::take(&mut swap.replaced), swap.base);
        self.names_version += 1;
        if replaced.is_empty() {
            self.swapping = None;
            let (from, to) = (file_name(base, SWAP), file_name(base, "log"));
            let renamed = self.dir.disk().rename(&self.path.join(from), &self.path.join(to));
            return renamed.map(|()| false).map_err(|error| self.fail(&error));
        }
        for (base, ending) in
            replaced.iter().flat_map(|base| ["log", "index", "timeindex"].map(|ending| (base, ending)))
        {
            match self.dir.disk().remove(&self.path.join(file_name(*base, ending))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.fail(&error)),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Ends a merge at once, for whoever is about to change the beginning or the end of the log, or to close it.
    pub(super) fn finish_swap(&mut self) -> io::Result<()> {
        while self.swapping.is_some() {
            let (disk, path) = (self.dir.disk().clone(), self.path.clone());
            disk.sync_dir(&path).map_err(|error| self.fail(&error))?;
            self.go_on_swapping()?;
        }
        Ok(())
    }

    /// A job came to its end: the log is clean up to there.
    pub fn cleaned(&mut self, report: &CleanReport) {
        self.cleaned_to = self.cleaned_to.max(report.cleaned_to.min(self.end));
        self.dir.note_cleaned(&self.name, self.cleaned_to);
    }
}

impl<D: Disk> CleanJob<D> {
    /// [`Self::step`] gives up, as `Interrupted`, soon after this is set.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// After [`Installed::Stale`]: nothing is left of it.
    pub fn discard(&self, cleaned: &Cleaned<D>) -> io::Result<()> {
        match self.dir.disk().remove(&self.path.join(file_name(cleaned.base, CLEANED))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn go_on(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    /// Reads, and writes the next piece; `None`: nothing more is to be done. May take long.
    ///
    /// # Errors
    /// `InvalidData`: a batch is damaged, and this log cannot be cleaned. Else the disk failed, or is full. The log is as it
    /// was, but for what is installed.
    pub fn step(&mut self) -> io::Result<Option<Cleaned<D>>> {
        let latest = match self.latest.take() {
            Some(latest) => latest,
            None => self.begin()?,
        };
        let mut found = None;
        while found.is_none()
            && let Some(group) = self.groups.pop_front()
        {
            let done = self.clean(&latest, &group);
            if done.is_err() {
                // Whatever lies there would only take room.
                let _ = self.dir.disk().remove(&self.path.join(file_name(group[0].base, CLEANED)));
            }
            found = done.map_err(|error| super::sync::named(&error, &self.path))?;
        }
        self.latest = Some(latest);
        Ok(found)
    }

    /// After [`Log::install`] is durable.
    pub fn write_index(&self, cleaned: &Cleaned<D>) -> io::Result<()> {
        cleaned.index.write()
    }

    /// After [`Log::install`] and after each [`Log::go_on_swapping`]: makes it durable, so that earlier values of a key are gone
    /// for good before its tombstone goes. After an error the log has failed.
    pub fn sync_names(&self) -> io::Result<()> {
        self.dir.disk().sync_dir(&self.path)
    }

    /// Builds the table of keys and shares the segments out among groups.
    fn begin(&mut self) -> io::Result<KeyMap> {
        let dirty = self.parts.iter().filter(|part| part.end > self.due.dirty_from);
        let offsets: i64 = dirty.clone().map(|part| part.end.since(part.base.max(self.due.dirty_from))).sum();
        let mut latest =
            KeyMap::new(self.buffer.bytes_max, usize::try_from(offsets).unwrap_or(usize::MAX), self.buffer.secret);
        let mut known_to = self.due.dirty_from;
        'full: for part in dirty {
            let mut batches = Batches::of(&*part.file, part.size);
            while let Some(batch) = batches.next()? {
                self.go_on()?;
                if batch.next_offset() <= self.due.dirty_from || batch.is_control() {
                    continue;
                }
                for record in batch.records().map_err(invalid)? {
                    let record = record.map_err(invalid)?;
                    if let Some(key) = &record.key
                        && !latest.note(key, record.offset)
                    {
                        break 'full;
                    }
                    known_to = record.offset.plus(1);
                }
            }
            known_to = part.end;
        }
        self.report = CleanReport { cleaned_to: known_to, keys: latest.len(), ..CleanReport::default() };
        // Behind the last key that found room no record is older than any that is known: it stays.
        let mut bytes = 0_u64;
        let mut from = Offset::ZERO;
        for part in self.parts.drain(..).filter(|part| part.base < known_to) {
            let fits = bytes + u64::from(part.size) <= u64::from(self.settings.segment_bytes_max)
                && part.end.since(from) <= i64::from(i32::MAX);
            match self.groups.back_mut().filter(|_| fits) {
                Some(group) => {
                    bytes += u64::from(part.size);
                    group.push(part);
                }
                None => {
                    (bytes, from) = (u64::from(part.size), part.base);
                    self.groups.push_back(vec![part]);
                }
            }
        }
        Ok(latest)
    }

    fn clean(&mut self, latest: &KeyMap, group: &[Part<D>]) -> io::Result<Option<Cleaned<D>>> {
        let sieve = Sieve { latest, now: self.now, delete_retention_ms: self.delete_retention_ms };
        let before: u64 = group.iter().map(|part| u64::from(part.size)).sum();
        self.report.bytes_before += before;
        self.report.segments_before += group.len();
        self.report.segments_after += 1;
        if group.len() == 1 && !self.changes(&sieve, &group[0])? {
            self.report.bytes_after += before;
            return Ok(None);
        }
        let base = group[0].base;
        let path = self.path.join(file_name(base, CLEANED));
        let disk = self.dir.disk();
        let mut written = Writer::<D> {
            file: disk.create(&path)?,
            buffer: Vec::with_capacity(CHUNK_BYTES),
            size: 0,
            base,
            builder: IndexBuilder::default(),
            interval: self.settings.index_interval_bytes,
            failure: None,
        };
        let mut cover = Cover::default();
        for part in group {
            let mut batches = Batches::of(&*part.file, part.size);
            while let Some(batch) = batches.next()? {
                self.go_on()?;
                self.report.records_before += u64::from(batch.record_count().unsigned_abs());
                let mut write = |batch: RecordBatch| written.write(&batch);
                match self.sift(&sieve, &batch)? {
                    Some(rest) => {
                        self.report.records_after += u64::from(rest.record_count().unsigned_abs());
                        cover.stays(rest, &mut write);
                    }
                    None => cover.goes(batch.header(), &mut write),
                }
            }
        }
        cover.end(&mut |batch: RecordBatch| written.write(&batch));
        let (file, size, builder) = written.finish()?;
        file.sync_data()?;
        self.report.bytes_after += u64::from(size);
        let file = Arc::new(file);
        Ok(Some(Cleaned {
            truncations: self.truncations,
            base,
            files: group.iter().map(|part| Arc::clone(&part.file)).collect(),
            index: ClosedIndex::built(disk, &self.path, base, &file, size, self.settings.index_interval_bytes, builder),
            file,
            size,
        }))
    }

    /// What is left of a batch; `None`: it goes.
    fn sift(&self, sieve: &Sieve<'_>, batch: &RecordBatch) -> io::Result<Option<RecordBatch>> {
        let sifted = if batch.record_count() == 0 { Thinned::Nothing } else { sieve.sift(batch).map_err(invalid)? };
        let of_live_producer = batch.producer_id().is_some() && self.newest.contains(&batch.last_offset());
        Ok(match sifted {
            Thinned::Whole => Some(batch.clone()),
            Thinned::Rest(rest) => Some(rest),
            Thinned::Nothing if of_live_producer => Some(batch.emptied()),
            Thinned::Nothing => None,
        })
    }

    /// Whether anything of a segment would be another than it is.
    fn changes(&self, sieve: &Sieve<'_>, part: &Part<D>) -> io::Result<bool> {
        let mut batches = Batches::of(&*part.file, part.size);
        while let Some(batch) = batches.next()? {
            self.go_on()?;
            // One that covers what is gone stays as it is.
            let filler = batch.record_count() == 0 && batch.producer_id().is_none();
            if !filler && self.sift(sieve, &batch)?.as_ref() != Some(&batch) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Writes batches one behind the other.
struct Writer<D: Disk> {
    file: D::File,
    buffer: Vec<u8>,
    /// With the buffer.
    size: u32,
    base: Offset,
    builder: IndexBuilder,
    interval: u32,
    failure: Option<io::Error>,
}

impl<D: Disk> Writer<D> {
    fn write(&mut self, batch: &RecordBatch) {
        if self.failure.is_some() {
            return;
        }
        let Some(size) = u32::try_from(batch.len()).ok().and_then(|bytes| self.size.checked_add(bytes)) else {
            self.failure = Some(io::Error::from(io::ErrorKind::FileTooLarge));
            return;
        };
        self.builder.note(self.base, batch.header(), self.size, self.interval);
        self.buffer.extend_from_slice(batch.bytes());
        self.size = size;
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let at = u64::from(self.size) - self.buffer.len() as u64;
        if let Err(error) = self.file.write_at(&[IoSlice::new(&self.buffer)], at) {
            self.failure = Some(error);
        }
        self.buffer.clear();
    }

    fn finish(mut self) -> io::Result<(D::File, u32, IndexBuilder)> {
        self.flush();
        self.failure.map_or(Ok((self.file, self.size, self.builder)), Err)
    }
}

/// The batches of a segment, whole and checked.
struct Batches<'f, F: DiskFile> {
    file: &'f F,
    size: u64,
    /// Of the first byte of `chunk`.
    position: u64,
    chunk: Bytes,
}

impl<'f, F: DiskFile> Batches<'f, F> {
    fn of(file: &'f F, size: u32) -> Self {
        Self { file, size: u64::from(size), position: 0, chunk: Bytes::new() }
    }

    /// `InvalidData` at one that is damaged.
    fn next(&mut self) -> io::Result<Option<RecordBatch>> {
        let left = self.size - self.position;
        if left == 0 {
            return Ok(None);
        }
        let mut wanted = HEADER_BYTES;
        if self.chunk.len() >= wanted {
            wanted = BatchHeader::parse(&self.chunk).map_err(|error| self.damaged(&error))?.total_bytes();
        }
        if self.chunk.len() < wanted {
            self.read(wanted, left)?;
            wanted = BatchHeader::parse(&self.chunk).map_err(|error| self.damaged(&error))?.total_bytes();
        }
        if self.chunk.len() < wanted && wanted as u64 <= left {
            self.read(wanted, left)?;
        }
        if self.chunk.len() < wanted {
            return Err(self.damaged(&"it is cut off"));
        }
        let batch = RecordBatch::parse(self.chunk.slice(..wanted)).map_err(|error| self.damaged(&error))?;
        batch.validate_from_leader().map_err(|error| self.damaged(&error))?;
        self.chunk = self.chunk.slice(wanted..);
        self.position += wanted as u64;
        Ok(Some(batch))
    }

    fn read(&mut self, wanted: usize, left: u64) -> io::Result<()> {
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(wanted.max(CHUNK_BYTES));
        let mut chunk = Vec::with_capacity(bytes);
        self.file.read_into(&mut chunk, bytes, self.position)?;
        self.chunk = chunk.into();
        Ok(())
    }

    fn damaged(&self, why: &dyn std::fmt::Display) -> io::Error {
        let text = format!("the batch at position {} is damaged: {why}", self.position);
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

fn invalid(error: highwater_wire::batch::BatchError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
