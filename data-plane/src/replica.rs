//! One replica of one partition: its role and its log, joined. [`Replica::handle`] is the only door, and the only place
//! that carries a role's effects to the log.
//!
//! `replica/produce.rs`, `serve.rs`, `follow.rs` and `status.rs` hold what is done for producers, for readers, as a
//! follower and for people; this file holds what all requests share: transitions, flushing, failing.

use std::io;
use std::sync::Arc;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{BrokerId, Millis, Offset, TopicPartition};

use crate::disk::Disk;
use crate::log::{Log, LogSettings, SyncDone};
use crate::replication::refusal::Refusal;
use crate::replication::{Became, Effect, Replication, Role, Step, Terms};

mod delete_records;
mod follow;
pub mod message;
pub mod note;
mod produce;
mod serve;
pub mod status;
#[cfg(test)]
mod tests;

use delete_records::Deletes;
use message::{Checkpoint, IsrAnswered, Now, Outbox, Output, Produced, ReplicaReply, ReplicaRequest};
use note::Note;
use status::TruncationStatus;

/// What a replica must know from its birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaConfig {
    pub partition: TopicPartition,
    /// This broker.
    pub me: BrokerId,
    /// `replica.lag.time.max.ms`
    pub lag_max: Millis,
}

/// One replica.
pub struct Replica<D: Disk> {
    log: Log<D>,
    replication: Replication,
    health: Health,
    deletes: Deletes,
    /// When the first record that is not synced was noticed; for `flush.ms`.
    unflushed_since: Option<Millis>,
    /// The fetcher was told to wait for a sync, and hears when it is over.
    fetcher_awaits_sync: bool,
    last_truncation: Option<TruncationStatus>,
    /// Reused from call to call.
    effects: Vec<Effect>,
}

/// Whether it serves.
#[derive(Debug, Clone)]
enum Health {
    Running,
    /// R209: for the rest of this process.
    Offline(Arc<str>),
    Stopped,
}

impl<D: Disk> Replica<D> {
    /// Around an open log. `high_watermark`: of the checkpoint; clamped to what the log holds (R24).
    pub fn new(config: ReplicaConfig, log: Log<D>, high_watermark: Offset) -> Self {
        let view = log.view();
        let replication = Replication::new(config.partition, config.me, config.lag_max, high_watermark, &view);
        let deletes = Deletes::new(view.start);
        Self {
            log,
            replication,
            health: Health::Running,
            deletes,
            unflushed_since: None,
            fetcher_awaits_sync: false,
            last_truncation: None,
            effects: Vec::new(),
        }
    }

    /// The one door: does what is asked, answers, and puts everything else that follows into `out`, behind what is
    /// there. Never waits, never syncs.
    pub fn handle(&mut self, request: ReplicaRequest<D>, now: Now, out: &mut Outbox<D>) -> ReplicaReply<D> {
        let refusal = match &self.health {
            Health::Running => None,
            Health::Offline(why) => Some(Refusal::Offline { why: Arc::clone(why) }),
            Health::Stopped => Some(Refusal::Stopped),
        };
        if let Some(refusal) = refusal {
            out.tick_at = None;
            return match request {
                // It was out when the replica stopped; the log is closed behind it, and knows if it failed.
                ReplicaRequest::Synced(done) if matches!(self.health, Health::Stopped) => {
                    let _ = self.log.on_synced(done);
                    ReplicaReply::Done
                }
                request => self.refuse(&request, refusal, now),
            };
        }
        let start = self.log.view().start;
        let reply = self.serve(request, now, out).unwrap_or_else(|failure| self.step_aside(failure, out));
        if self.log.view().start != start {
            let effects = &mut self.effects;
            self.replication.park().on_start(|wake| effects.push(Effect::Wake(wake)));
        }
        self.carry_out(out);
        if matches!(self.health, Health::Running) {
            self.save_start(out);
            self.settle_deletes(out);
            self.sync_if_due(now, out);
            if cfg!(debug_assertions) {
                self.replication.check_invariants(&self.log.view());
            }
        }
        out.tick_at = self.tick_at(now);
        reply
    }

    /// What a replica that has stepped aside or stopped says.
    fn refuse(&mut self, request: &ReplicaRequest<D>, refusal: Refusal, now: Now) -> ReplicaReply<D> {
        match request {
            ReplicaRequest::Status => ReplicaReply::Status(Box::new(self.status(now))),
            ReplicaRequest::Unwatch(_)
            | ReplicaRequest::IsrAnswered(_)
            | ReplicaRequest::Tick
            | ReplicaRequest::Synced(_)
            | ReplicaRequest::StartSaved(_)
            | ReplicaRequest::StorageFailed(_)
            | ReplicaRequest::Retain
            | ReplicaRequest::CleanedUp(_)
            | ReplicaRequest::Drain
            | ReplicaRequest::Stop => ReplicaReply::Done,
            ReplicaRequest::Become(_) => ReplicaReply::Became(Became::Ignored),
            ReplicaRequest::FetchPoint | ReplicaRequest::FetchedFromLeader(_) | ReplicaRequest::LeaderOffsets(_) => {
                ReplicaReply::Next(message::FollowerNext::AwaitMetadata)
            }
            ReplicaRequest::Produce(_)
            | ReplicaRequest::Fetch(_)
            | ReplicaRequest::ListOffsets(_)
            | ReplicaRequest::EpochEnd(_)
            | ReplicaRequest::Producers
            | ReplicaRequest::DeleteRecords(_)
            | ReplicaRequest::CleaningDue
            | ReplicaRequest::Clean(_)
            | ReplicaRequest::InstallCleaned(_)
            | ReplicaRequest::GoOnSwapping
            | ReplicaRequest::Checkpoint => ReplicaReply::Refused(refusal),
        }
    }

    fn serve(
        &mut self,
        request: ReplicaRequest<D>,
        now: Now,
        out: &mut Outbox<D>,
    ) -> Result<ReplicaReply<D>, StorageFailure> {
        let reply = match request {
            ReplicaRequest::Produce(produce) => self.produce(produce, now)?,
            ReplicaRequest::Fetch(fetch) => self.fetch(fetch, now)?,
            ReplicaRequest::Unwatch(waiter) => {
                self.replication.unwatch(waiter, &self.log.view());
                ReplicaReply::Done
            }
            ReplicaRequest::FetchedFromLeader(fetched) => ReplicaReply::Next(self.fetched_from_leader(fetched, now)?),
            ReplicaRequest::LeaderOffsets(offsets) => ReplicaReply::Next(self.leader_offsets(offsets, now)?),
            ReplicaRequest::FetchPoint => ReplicaReply::Next(self.next_fetch()),
            ReplicaRequest::ListOffsets(list) => self.list_offsets(list)?,
            ReplicaRequest::EpochEnd(ask) => self.epoch_end(ask),
            ReplicaRequest::Producers => self.producers(),
            ReplicaRequest::DeleteRecords(delete) => self.delete_records(delete, out),
            ReplicaRequest::Become(terms) => ReplicaReply::Became(self.take_terms(*terms, now)?),
            ReplicaRequest::IsrAnswered(answered) => {
                self.isr_answered(&answered, now);
                ReplicaReply::Done
            }
            ReplicaRequest::Tick => {
                if let Some((leader, mut cx)) = self.replication.lead_with(self.log.view(), now.mono, &mut self.effects)
                {
                    leader.on_tick(&mut cx);
                }
                self.deletes.expire(now.mono, &mut self.effects);
                ReplicaReply::Done
            }
            ReplicaRequest::Synced(done) => {
                self.synced(done, now, out)?;
                ReplicaReply::Done
            }
            ReplicaRequest::StartSaved(start) => {
                self.start_saved(start, out);
                ReplicaReply::Done
            }
            ReplicaRequest::StorageFailed(why) => return Err(StorageFailure(why.into())),
            ReplicaRequest::Retain => {
                self.retain(now, out)?;
                ReplicaReply::Done
            }
            ReplicaRequest::CleaningDue => {
                ReplicaReply::CleaningDue(self.log.cleaning_due(self.replication.high_watermark(), now.wall))
            }
            ReplicaRequest::Clean(buffer) => {
                let job = self.log.clean_job(self.replication.high_watermark(), now.wall, buffer);
                ReplicaReply::CleanJob(job.map(Box::new))
            }
            ReplicaRequest::InstallCleaned(cleaned) => ReplicaReply::Installed(self.log.install(&cleaned)?, cleaned),
            ReplicaRequest::GoOnSwapping => ReplicaReply::Swapping(self.log.go_on_swapping()?),
            ReplicaRequest::CleanedUp(report) => {
                self.log.cleaned(&report);
                ReplicaReply::Done
            }
            ReplicaRequest::Checkpoint => ReplicaReply::Checkpoint(self.checkpoint()),
            ReplicaRequest::Status => ReplicaReply::Status(Box::new(self.status(now))),
            ReplicaRequest::Drain => {
                self.replication.drain();
                ReplicaReply::Done
            }
            ReplicaRequest::Stop => {
                self.end(&Refusal::Stopped);
                self.health = Health::Stopped;
                ReplicaReply::Done
            }
        };
        Ok(reply)
    }

    /// R209: nothing more is served or written, and nobody waits in vain. Never a success.
    fn step_aside(&mut self, failure: StorageFailure, out: &mut Outbox<D>) -> ReplicaReply<D> {
        let why = failure.0;
        let refusal = Refusal::Offline { why: Arc::clone(&why) };
        self.end(&refusal);
        self.effects.push(Effect::Note(Note::StorageFailed { error: Arc::clone(&why) }));
        self.health = Health::Offline(Arc::clone(&why));
        self.carry_out(out);
        out.push(Output::StorageFailed { error: why });
        ReplicaReply::Refused(refusal)
    }

    fn end(&mut self, refusal: &Refusal) {
        self.replication.abdicate(refusal, &mut self.effects);
        self.deletes.drain(refusal, &mut self.effects);
    }

    /// Hands on what the role decided, in order.
    fn carry_out(&mut self, out: &mut Outbox<D>) {
        let log_start = if self.effects.is_empty() { return } else { self.log.view().start };
        for effect in self.effects.drain(..) {
            out.push(match effect {
                Effect::Stored { ticket, base, log_append_time } => {
                    Output::Reply(ticket, ReplicaReply::Produced(Produced { base, log_append_time, log_start }))
                }
                Effect::Refused { ticket, refusal } => Output::Reply(ticket, ReplicaReply::Refused(refusal)),
                Effect::Wake(wake) => Output::Wake { waiter: wake.waiter, urgent: wake.urgent },
                Effect::Propose(proposal) => Output::ProposeIsr(proposal),
                Effect::Note(note) => Output::Note(note),
            });
        }
    }

    /// Lead, follow or neither, as the image says (R140, R143, R144).
    fn take_terms(&mut self, terms: Terms, now: Now) -> Result<Became, StorageFailure> {
        let step = self.replication.step(&terms);
        if step == Step::Ignore {
            return Ok(Became::Ignored);
        }
        self.adopt_settings(&terms);
        if !matches!(step, Step::Refresh | Step::Lead { .. }) {
            self.deletes.drain(&self.replication.not_leader(), &mut self.effects);
        }
        match step {
            Step::Ignore => {}
            Step::Refresh => self.replication.refresh(terms, self.log.view(), now.mono, &mut self.effects),
            Step::Lead { epoch } => {
                // The epoch's entry is in the log before anything is appended or answered in it (S14, T6).
                if !planted(Flaw::ForgetsEpochEntry) {
                    self.log.assign_epoch(epoch);
                }
                self.replication.lead(terms, self.log.view(), now.mono, &mut self.effects);
            }
            Step::Follow { .. } => {
                let cut = self.replication.follow(terms, &self.log.view(), &mut self.effects);
                if let Some(to) = cut {
                    self.truncate(to, now)?;
                }
            }
            Step::Idle => self.replication.idle(terms, &mut self.effects),
        }
        Ok(match self.replication.role() {
            Role::Leader(_) => Became::Leader,
            Role::Follower(_) => Became::Follower(self.next_fetch()),
            Role::Idle { .. } => Became::Idle,
        })
    }

    fn adopt_settings(&mut self, terms: &Terms) {
        let known = self.replication.terms().is_some_and(|last| Arc::ptr_eq(&last.config, &terms.config));
        if known {
            return;
        }
        let current = self.log.settings();
        let settings =
            LogSettings { producer_expiration_ms: current.producer_expiration_ms, ..LogSettings::from(&*terms.config) };
        if *current != settings {
            self.log.set_settings(settings);
        }
    }

    fn isr_answered(&mut self, answered: &IsrAnswered, now: Now) {
        if let Some((leader, mut cx)) = self.replication.lead_with(self.log.view(), now.mono, &mut self.effects) {
            leader.on_isr(&answered.proposal, &answered.result, &mut cx);
        }
    }

    /// A flush is over (D23, D24).
    fn synced(&mut self, done: SyncDone<D>, now: Now, out: &mut Outbox<D>) -> Result<(), StorageFailure> {
        self.log.on_synced(done)?;
        let view = self.log.view();
        self.unflushed_since = (view.flushed_end < view.end).then_some(now.mono);
        if let Some((leader, mut cx)) = self.replication.lead_with(view, now.mono, &mut self.effects) {
            leader.on_flushed(&mut cx);
        }
        if self.fetcher_awaits_sync {
            let next = self.next_fetch();
            if !self.fetcher_awaits_sync {
                out.push(Output::Fetchable(next));
            }
        }
        Ok(())
    }

    /// Hands out a flush when the log asks for one, a truncation waits for it, or `flush.messages`/`flush.ms` say so.
    fn sync_if_due(&mut self, now: Now, out: &mut Outbox<D>) {
        let view = self.log.view();
        let unflushed = view.end.since(view.flushed_end);
        if unflushed == 0 {
            self.unflushed_since = None;
        } else if self.unflushed_since.is_none() {
            self.unflushed_since = Some(now.mono);
        }
        let by_config = self.replication.terms().is_some_and(|terms| {
            let by_count = u64::try_from(unflushed).unwrap_or(0) >= terms.config.flush_messages;
            unflushed > 0 && (terms.durable() || by_count || self.flush_at().is_some_and(|at| at <= now.mono))
        });
        if (by_config || self.log.sync_due() || !self.log.is_settled())
            && let Some(job) = self.log.sync_job()
        {
            out.push(Output::Sync(job));
        }
    }

    /// When `flush.ms` is due.
    fn flush_at(&self) -> Option<Millis> {
        let flush_ms = self.replication.terms()?.config.flush_ms;
        (flush_ms < u64::MAX).then_some(self.unflushed_since? + Millis(flush_ms))
    }

    fn tick_at(&self, now: Now) -> Option<Millis> {
        if !matches!(self.health, Health::Running) {
            return None;
        }
        let leader = match self.replication.role() {
            Role::Leader(leader) => leader.tick_at(&self.log.view(), now.mono),
            Role::Follower(_) | Role::Idle { .. } => None,
        };
        // A flush that is out already needs no tick; its end is an event of its own.
        let flush = self.flush_at().filter(|&at| at > now.mono);
        [leader, self.deletes.next_deadline(), flush].into_iter().flatten().min()
    }

    fn retain(&mut self, now: Now, out: &mut Outbox<D>) -> Result<(), StorageFailure> {
        self.log.roll_if_due(now.wall)?;
        self.log.expire_producers(now.wall);
        let removed = self.log.delete_segments(self.replication.high_watermark(), now.wall)?;
        if !removed.is_empty() {
            out.push(Output::Erase(removed));
        }
        Ok(())
    }

    fn checkpoint(&self) -> Checkpoint {
        let view = self.log.view();
        let leads_with_gaps = match (self.replication.role(), self.replication.terms()) {
            (Role::Leader(leader), Some(terms)) => leader.isr().committed().len() < terms.state.replicas.len(),
            _ => false,
        };
        Checkpoint {
            high_watermark: self.replication.high_watermark(),
            recovery_point: view.flushed_end,
            log_start: view.start,
            leader_epoch: self.replication.leader_epoch(),
            leads_with_gaps,
        }
    }

    /// Writes and syncs everything the log holds back, off the lock, after [`ReplicaRequest::Stop`] and after the sync job
    /// that was out then has been brought back (R29).
    ///
    /// # Errors
    /// The disk failed, now or before: the directory is not to be marked as cleanly closed.
    pub fn close_cleanly(&mut self) -> io::Result<Checkpoint> {
        if let Health::Offline(why) = &self.health {
            return Err(io::Error::other(why.to_string()));
        }
        self.log.close_cleanly()?;
        Ok(Checkpoint { recovery_point: self.log.view().end, ..self.checkpoint() })
    }

    /// The log, to look at.
    pub fn log(&self) -> &Log<D> {
        &self.log
    }

    /// The role, to look at.
    pub fn replication(&self) -> &Replication {
        &self.replication
    }
}

/// The disk failed; the replica steps aside.
#[derive(Debug)]
struct StorageFailure(Arc<str>);

impl From<io::Error> for StorageFailure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string().into())
    }
}
