//! A follower at work: what a leader answered goes into the log, or the log is cut to where both agree.

use bytes::Bytes;
use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{ErrorCode, LeaderEpoch, Offset};

use super::message::{FetchedFromLeader, FollowerNext, LeaderAnswer, LeaderOffsets, Now};
use super::note::Note;
use super::status::TruncationStatus;
use super::{Replica, StorageFailure};
use crate::disk::Disk;
use crate::log::{FollowerAppendError, FollowerStop};
use crate::replication::Effect;
use crate::replication::follower::{Answer, FetchPoint, Verdict};

impl<D: Disk> Replica<D> {
    /// What the fetcher is to do now. Remembers whether it was told to wait for a sync.
    pub(super) fn next_fetch(&mut self) -> FollowerNext {
        let may_fetch = self.replication.may_fetch();
        let durable = self.replication.terms().is_some_and(|terms| terms.durable());
        let view = self.log.view();
        self.fetcher_awaits_sync = false;
        let Some(follower) = self.replication.following() else { return FollowerNext::AwaitMetadata };
        if !may_fetch {
            return FollowerNext::AwaitMetadata;
        }
        // By asking from the end it vouches for everything below: cut as it should be (D24), and synced where every
        // record is to be (D23).
        if !(self.log.is_settled() || planted(Flaw::FetchesUnsettled)) || (durable && view.flushed_end < view.end) {
            self.fetcher_awaits_sync = true;
            return FollowerNext::AwaitSync;
        }
        match follower.next(&view) {
            FollowerNext::Fetch(point) => {
                let log_start = point.log_start.min(self.deletes.saved_start());
                FollowerNext::Fetch(FetchPoint { log_start, ..point })
            }
            next => next,
        }
    }

    pub(super) fn fetched_from_leader(
        &mut self,
        fetched: FetchedFromLeader,
        now: Now,
    ) -> Result<FollowerNext, StorageFailure> {
        let FetchedFromLeader { requested, answer } = fetched;
        let (answer, records) = match answer {
            LeaderAnswer::Records { records, high_watermark, log_start } => {
                (Answer::Records { high_watermark, log_start }, records)
            }
            LeaderAnswer::Diverging { epoch, end, log_start } => {
                (Answer::Diverging { epoch, end, log_start }, Bytes::new())
            }
            LeaderAnswer::Error(code) => (Answer::Error(code), Bytes::new()),
        };
        let Some(follower) = self.replication.following() else { return Ok(FollowerNext::AwaitMetadata) };
        let epoch = if planted(Flaw::TakesLateAnswers) { LeaderEpoch(i32::MAX) } else { follower.epoch() };
        match follower.on_answer(&requested, answer, &self.log.view()) {
            Verdict::Append { high_watermark, log_start } => {
                let stop = if records.is_empty() { None } else { self.store(records, epoch, now)? };
                self.adopt(high_watermark, log_start);
                Ok(match stop {
                    None => self.next_fetch(),
                    Some(stop) => self.damaged(&requested, &stop),
                })
            }
            verdict => self.carry_out_verdict(verdict, now),
        }
    }

    /// Appends what a leader sent; says what part of it could not be taken, if any.
    fn store(&mut self, records: Bytes, epoch: LeaderEpoch, now: Now) -> Result<Option<FollowerStop>, StorageFailure> {
        let truncations = self.log.view().truncations;
        let mut appended = self.log.append_as_follower(records.clone(), epoch, now.wall);
        if self.log.view().truncations != truncations {
            // The leader's log starts inside its first batch: our empty log moved back to where that batch begins, which
            // the leader would refuse to serve again (R153).
            self.after_truncation();
            appended = self.log.append_as_follower(records, epoch, now.wall);
        }
        match appended {
            // A batch that is merely cut short comes whole with the next fetch, unless it was the first.
            Ok(appended) => Ok(appended
                .stopped
                .filter(|stop| !matches!(stop, FollowerStop::Incomplete { .. }) || appended.batches == 0)),
            Err(FollowerAppendError::Refused(stop)) => Ok(Some(stop)),
            Err(FollowerAppendError::Io(error)) => Err(error.into()),
        }
    }

    /// R162
    pub(super) fn leader_offsets(&mut self, offsets: LeaderOffsets, now: Now) -> Result<FollowerNext, StorageFailure> {
        let Some(follower) = self.replication.following() else { return Ok(FollowerNext::AwaitMetadata) };
        let (requested, view) = (&offsets.requested, self.log.view());
        let held = match offsets.answer {
            Ok(held) => held,
            Err(code) if follower.on_leader_offsets_failed(requested, &view) => return Ok(self.back_off(code)),
            Err(_) => return Ok(FollowerNext::Dropped),
        };
        let verdict = follower.on_leader_offsets(requested, held.start, held.end, &view);
        let next = self.carry_out_verdict(verdict, now)?;
        if next == FollowerNext::Dropped || self.log.view().knows_producers {
            return Ok(next);
        }
        self.log.learn_producers(held.producers);
        Ok(self.next_fetch())
    }

    fn carry_out_verdict(&mut self, verdict: Verdict, now: Now) -> Result<FollowerNext, StorageFailure> {
        match verdict {
            Verdict::Stale => return Ok(FollowerNext::Dropped),
            Verdict::BackOff(error) => return Ok(self.back_off(error)),
            Verdict::Truncate { to } => self.truncate(to, now)?,
            Verdict::TruncateFully { start } => self.truncate_fully(start, now)?,
            Verdict::Append { .. } | Verdict::Resume | Verdict::AskLeader | Verdict::Fenced => {}
        }
        Ok(self.next_fetch())
    }

    /// R124: the leader's watermark as far as our log goes, then its log start.
    fn adopt(&mut self, high_watermark: Offset, log_start: Offset) {
        let Some(follower) = self.replication.following() else { return };
        let before = follower.high_watermark();
        follower.on_stored(high_watermark, &self.log.view());
        let adopted = follower.high_watermark();
        if log_start > self.log.view().start {
            self.log.advance_start(log_start.min(adopted));
        }
        if adopted > before {
            let effects = &mut self.effects;
            self.replication.park().on_watermark(adopted, |wake| effects.push(Effect::Wake(wake)));
        }
    }

    /// Part of an answer was left out (R154, D27).
    fn damaged(&mut self, requested: &FetchPoint, stop: &FollowerStop) -> FollowerNext {
        let error = match stop {
            // A late answer of a leader we have not heard of: metadata is on its way.
            FollowerStop::FutureEpoch { .. } => ErrorCode::UnknownLeaderEpoch,
            FollowerStop::Corrupt { .. } | FollowerStop::OutOfOrder { .. } | FollowerStop::Incomplete { .. } => {
                self.effects.push(Effect::Note(Note::CorruptFetch {
                    leader: requested.leader,
                    offset: requested.offset,
                    why: stop.to_string(),
                }));
                ErrorCode::CorruptMessage
            }
        };
        if let Some(follower) = self.replication.following() {
            follower.on_damaged();
        }
        self.back_off(error)
    }

    fn back_off(&mut self, error: ErrorCode) -> FollowerNext {
        match self.next_fetch() {
            FollowerNext::Fetch(point) => FollowerNext::BackOff { point, error },
            other => other,
        }
    }

    /// Cuts the log to where it agrees with the leader's (R158, R160); the cut reaches the disk before the next fetch.
    pub(super) fn truncate(&mut self, to: Offset, now: Now) -> Result<(), StorageFailure> {
        self.note_truncation(to, now);
        self.log.truncate_to(to)?;
        self.after_truncation();
        Ok(())
    }

    fn truncate_fully(&mut self, start: Offset, now: Now) -> Result<(), StorageFailure> {
        let view = self.log.view();
        // A leader that begins behind our end has deleted all that we hold: retention, not a truncation.
        if start < view.end {
            self.note_truncation(start.min(view.start), now);
        }
        self.log.truncate_fully_to(start)?;
        self.after_truncation();
        Ok(())
    }

    fn after_truncation(&mut self) {
        let generation = self.replication.fresh_generation();
        if let Some(follower) = self.replication.following() {
            follower.on_truncated(&self.log.view(), generation);
        }
        // Readers at a follower may wait beyond what there is now.
        let effects = &mut self.effects;
        self.replication.park().wake_all(|wake| effects.push(Effect::Wake(wake)));
    }

    fn note_truncation(&mut self, to: Offset, now: Now) {
        let from = self.log.view().end;
        if to >= from {
            return;
        }
        let high_watermark = self.replication.high_watermark();
        let leader_epoch = self.replication.leader_epoch();
        self.last_truncation = Some(TruncationStatus { from, to, leader_epoch, at: now.wall });
        self.effects.push(Effect::Note(if to < high_watermark {
            Note::TruncatedBelowWatermark { from, to, high_watermark, leader_epoch }
        } else {
            Note::Truncated { from, to, high_watermark, leader_epoch }
        }));
    }
}
