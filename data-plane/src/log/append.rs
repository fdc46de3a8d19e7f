//! Appending: one vectored write per leader's batch, one per run of a follower's; nothing copied, nothing allocated.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use highwater_wire::batch::{BatchError, BatchHeader, BatchIter, HEADER_BYTES, RecordBatch, STAMP_BYTES};
use highwater_wire::{LeaderEpoch, Offset, Timestamp};

use super::Log;
use super::error::{Appended, FollowerAppendError, FollowerAppended, FollowerStop};
use super::segment::{NextBatch, Segment, SegmentIndex, file_name};
use super::sync::PREPARED;
use crate::disk::{Disk, DiskFile};

const TIMESTAMP_TYPE_BIT: i16 = 1 << 3;
const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const MAX_TIMESTAMP_AT: usize = 35;

impl<D: Disk> Log<D> {
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
        self.check_well()?;
        let base = self.end;
        let mut header = *batch.header();
        header.base_offset = base.0;
        header.leader_epoch = epoch.0;
        let last = Offset(base.0.saturating_add(i64::from(header.last_offset_delta)));
        let log_append_time = self.settings.log_append_time.then_some(now);
        header.max_timestamp = log_append_time.map_or(header.max_timestamp, |now| now.0);
        let next = NextBatch { bytes: batch.len(), timestamp: Timestamp(header.max_timestamp), last };
        if self.is_cut_unsynced() || self.last_segment().is_due(&self.settings, (0, None), next, now) {
            self.roll(now)?;
        }
        let stamp = batch.stamped_head(base, epoch);
        let written = match log_append_time {
            None => self.write(&[IoSlice::new(&stamp), IoSlice::new(&batch.bytes()[STAMP_BYTES..])]),
            Some(now) => {
                let head = head_with_append_time(batch, &stamp, now);
                header.attributes |= TIMESTAMP_TYPE_BIT;
                self.write(&[IoSlice::new(&head), IoSlice::new(&batch.bytes()[HEADER_BYTES..])])
            }
        };
        written?;
        self.note(&header);
        Ok(Appended { base, last, log_append_time })
    }

    /// Writes what a leader sent, from the log's end on (R153–R155): every batch whole, its CRC right (D27), its offsets
    /// not below the end, its epoch not above `current`. What comes before the first batch that is none of this is
    /// appended; [`FollowerAppended::stopped`] says what came then.
    ///
    /// An empty log whose end lies inside the first batch is moved to where that batch begins, and nothing is appended yet:
    /// fetch again from the new end once [`Log::is_settled`].
    pub fn append_as_follower(
        &mut self,
        records: Bytes,
        current: LeaderEpoch,
        now: Timestamp,
    ) -> Result<FollowerAppended, FollowerAppendError> {
        self.check_well()?;
        let (before, epochs_before) = (self.end, self.epochs_version);
        let mut taken = FollowerRun { written: 0, accepted: 0, batches: 0, first: None };
        let mut expected = self.end;
        let mut batches = BatchIter::new(records.clone());
        let mut stopped = None;
        for batch in batches.by_ref() {
            let judged = batch
                .map_err(|error| FollowerStop::Corrupt { after: expected, error })
                .and_then(|batch| judge(&batch, expected, current).map(|()| batch));
            let batch = match judged {
                Ok(batch) => batch,
                Err(FollowerStop::OutOfOrder { base, .. })
                    if self.must_move_back(&taken, base, batch_end(&records)) =>
                {
                    let producers = std::mem::take(&mut self.producers);
                    self.truncate_fully_to(base)?;
                    self.learn_producers(producers.active());
                    break;
                }
                Err(FollowerStop::OutOfOrder { base, end }) if taken.accepted == 0 => {
                    let Some(cover) = cover_from(&records, expected, current) else {
                        stopped = Some(FollowerStop::OutOfOrder { base, end });
                        break;
                    };
                    self.append_cover(&cover, now)?;
                    taken.accepted = batch_len(&records);
                    taken.written = taken.accepted;
                    taken.batches = 1;
                    expected = self.end;
                    continue;
                }
                Err(stop) => {
                    stopped = Some(stop);
                    break;
                }
            };
            let next = NextBatch { bytes: batch.len(), timestamp: batch.max_timestamp(), last: batch.last_offset() };
            let pending = ((taken.accepted - taken.written) as u32, taken.first);
            if self.is_cut_unsynced() || self.last_segment().is_due(&self.settings, pending, next, now) {
                self.write_run(&records, &mut taken)?;
                if self.is_cut_unsynced() || self.last_segment().is_due(&self.settings, (0, None), next, now) {
                    self.roll(now)?;
                }
            }
            if batch.last_offset().since(self.last_segment().base) > i64::from(i32::MAX) {
                let (base, delta) = (batch.base_offset().0, batch.last_offset_delta());
                let error = BatchError::OffsetRange { base, delta };
                stopped = Some(FollowerStop::Corrupt { after: expected, error });
                break;
            }
            taken.accepted += batch.len();
            taken.batches += 1;
            taken.first.get_or_insert(batch.max_timestamp());
            expected = batch.next_offset();
        }
        self.write_run(&records, &mut taken)?;
        let bytes = batches.rest().len();
        if stopped.is_none() && self.end >= before && bytes > 0 {
            stopped = Some(FollowerStop::Incomplete { bytes });
        }
        match stopped {
            Some(stop) if taken.batches == 0 => Err(FollowerAppendError::Refused(stop)),
            stopped => Ok(FollowerAppended {
                before,
                end: self.end,
                batches: taken.batches,
                bytes: taken.written,
                epochs_changed: self.epochs_version != epochs_before,
                stopped,
            }),
        }
    }

    /// Writes what stands for the rest of a batch.
    fn append_cover(&mut self, cover: &RecordBatch, now: Timestamp) -> io::Result<()> {
        let next = NextBatch { bytes: cover.len(), timestamp: cover.max_timestamp(), last: cover.last_offset() };
        if self.is_cut_unsynced() || self.last_segment().is_due(&self.settings, (0, None), next, now) {
            self.roll(now)?;
        }
        self.write(&[IoSlice::new(cover.bytes())])?;
        self.note(cover.header());
        Ok(())
    }

    /// Whether this is the first batch, and spans the end of a log that holds nothing (R153).
    fn must_move_back(&self, taken: &FollowerRun, base: Offset, batch_end: Option<Offset>) -> bool {
        let empty = self.start == self.end && taken.accepted == 0;
        empty && base < self.end && batch_end.is_some_and(|end| end > self.end)
    }

    /// Writes the accepted batches that are not written yet, in one go, and notes them.
    fn write_run(&mut self, records: &Bytes, taken: &mut FollowerRun) -> io::Result<()> {
        let run = &records[taken.written..taken.accepted];
        if run.is_empty() {
            return Ok(());
        }
        self.write(&[IoSlice::new(run)])?;
        let mut rest = run;
        while let Ok(header) = BatchHeader::parse(rest) {
            self.note(&header);
            rest = &rest[header.total_bytes()..];
        }
        taken.written = taken.accepted;
        taken.first = None;
        Ok(())
    }

    /// Writes at the end of the active segment. Whatever a failed write leaves there is behind `size` and never read.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let active = self.last_segment();
        active.file.write_at(parts, u64::from(active.size)).map_err(|error| self.fail(&error))
    }

    /// Notes a batch that was written at the end: index, producers, epochs, end.
    fn note(&mut self, header: &BatchHeader) {
        let epoch = LeaderEpoch::from_wire(header.leader_epoch);
        if epoch.is_some() && epoch != self.epochs.latest() {
            self.note_epoch(epoch, Offset(header.base_offset));
        }
        let interval = self.settings.index_interval_bytes;
        let active = self.active();
        let (base, position) = (active.base, active.size);
        if let SegmentIndex::Growing(builder) = &mut active.index {
            builder.note(base, header, position, interval);
        }
        active.first_timestamp.get_or_insert(Timestamp(header.max_timestamp));
        active.size += header.total_bytes() as u32;
        let log_position = active.log_position + u64::from(position);
        self.end = header.next_offset();
        self.recent.push(self.end, log_position);
        self.producers.note(header);
    }

    /// A batch of another epoch than the latest begins at `base`. Entries that begin at the end or behind it have no records:
    /// they must not hide an older epoch that does.
    fn note_epoch(&mut self, epoch: Option<LeaderEpoch>, base: Offset) {
        let dropped = self.epochs.truncate_from_end(self.end);
        let added = epoch
            .filter(|&epoch| self.epochs.latest().is_none_or(|latest| epoch > latest))
            .is_some_and(|epoch| self.epochs.assign(epoch, base));
        if dropped || added {
            self.epochs_version += 1;
        }
    }

    /// The active file is to be cut, and the disk does not know: what is appended goes to a new one, or stale batches behind it
    /// could come back (D25).
    fn is_cut_unsynced(&self) -> bool {
        self.cut_files.iter().any(|(file, _)| Arc::ptr_eq(file, &self.last_segment().file))
    }

    /// Starts a new segment at the end (R269). The old one is closed; syncing it is due.
    pub(super) fn roll(&mut self, now: Timestamp) -> io::Result<()> {
        let base = self.end;
        let path = self.path.join(file_name(base, "log"));
        let disk = self.dir.disk().clone();
        let file = match self.prepared.take() {
            Some(file) => disk.rename(&self.path.join(PREPARED), &path).map(|()| file),
            None => disk.create(&path),
        };
        let file = file.map_err(|error| self.fail(&error))?;
        let (log, interval) = (self.path.clone(), self.settings.index_interval_bytes);
        let old = self.active();
        let log_position = old.log_position + u64::from(old.size);
        let closed = old.close(&disk, &log, interval);
        self.unwritten_indexes.extend(closed);
        if self.knows_producers() {
            self.keep_producers();
        }
        self.segments.push(Segment::empty(base, file, log_position, now));
        self.names_version += 1;
        Ok(())
    }

    /// Starts a new segment if the active one is due by the clock; for ticks, appends look for themselves (R269). Says
    /// whether it did.
    pub fn roll_if_due(&mut self, now: Timestamp) -> io::Result<bool> {
        self.check_well()?;
        let due = self.last_segment().is_old(&self.settings, now);
        if due {
            self.roll(now)?;
        }
        Ok(due)
    }
}

/// How far a follower is with a fetch answer, in bytes of it.
struct FollowerRun {
    written: usize,
    accepted: usize,
    batches: usize,
    /// The time of the first batch that is accepted and not written.
    first: Option<Timestamp>,
}

/// Where the first batch ends.
fn batch_end(records: &Bytes) -> Option<Offset> {
    BatchHeader::parse(records).ok().map(|header| header.next_offset())
}

/// Bytes of the first batch.
fn batch_len(records: &Bytes) -> usize {
    BatchHeader::parse(records).map_or(0, |header| header.total_bytes())
}

/// What stands for the rest of the first batch, from `expected` on, where that holds no record: the leader has compacted its log, and
/// one of its batches covers what lay behind it, among that the end of this log. `None`: it is no such batch.
fn cover_from(records: &Bytes, expected: Offset, current: LeaderEpoch) -> Option<RecordBatch> {
    let batch = RecordBatch::parse(records.slice(..batch_len(records))).ok()?;
    batch.validate_from_leader().ok()?;
    let epoch = batch.leader_epoch().filter(|epoch| *epoch <= current)?;
    let spans = batch.base_offset() < expected && expected < batch.next_offset();
    let below =
        |record: Result<highwater_wire::Record, BatchError>| record.is_ok_and(|record| record.offset < expected);
    (spans && batch.may_stretch() && batch.records().ok()?.all(below))
        .then(|| RecordBatch::empty(expected, batch.last_offset(), epoch))
}

/// Whether a follower may append this batch at `expected` (R153, R154, D27).
fn judge(batch: &RecordBatch, expected: Offset, current: LeaderEpoch) -> Result<(), FollowerStop> {
    batch.validate_from_leader().map_err(|error| FollowerStop::Corrupt { after: expected, error })?;
    let base = batch.base_offset();
    if base < expected {
        return Err(FollowerStop::OutOfOrder { base, end: expected });
    }
    match batch.leader_epoch() {
        Some(epoch) if epoch > current => Err(FollowerStop::FutureEpoch { base, batch: epoch, current }),
        _ => Ok(()),
    }
}

/// The header as a leader of a LogAppendTime topic writes it, with a CRC that fits (R38).
fn head_with_append_time(batch: &RecordBatch, stamp: &[u8; STAMP_BYTES], now: Timestamp) -> [u8; HEADER_BYTES] {
    let mut head = [0; HEADER_BYTES];
    head.copy_from_slice(&batch.bytes()[..HEADER_BYTES]);
    head[..STAMP_BYTES].copy_from_slice(stamp);
    let attributes = batch.header().attributes | TIMESTAMP_TYPE_BIT;
    head[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
    head[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&now.0.to_be_bytes());
    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    crc.update(&head[ATTRIBUTES_AT..]);
    crc.update(&batch.bytes()[HEADER_BYTES..]);
    head[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&(crc.finalize() as u32).to_be_bytes());
    head
}
