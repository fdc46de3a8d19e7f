//! DeleteRecords: the log start moves, is saved, and every live replica follows before the answer (R274, D33).
//!
//! A follower saves the start that it takes over from its leader too, and tells the leader of no other: whichever replica
//! leads next, and whoever is killed, what was said to be deleted stays away.

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{Millis, Offset};

use super::Replica;
use super::message::{DeleteRecords, FollowerNext, Outbox, Output, ReplicaReply};
use crate::disk::Disk;
use crate::replication::Effect;
use crate::replication::acks::Ticket;
use crate::replication::refusal::Refusal;

/// Requests that wait for the log starts to follow.
#[derive(Debug)]
pub(super) struct Deletes {
    waiting: Vec<Waiting>,
    /// The log start that is known to survive: the checkpoint file holds it, or the files below are gone.
    saved_start: Offset,
    /// One is being saved; the next one waits for it, so that an older one is never written over it.
    saving: bool,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: Ticket,
    target: Offset,
    deadline: Millis,
}

impl Deletes {
    pub(super) fn new(saved_start: Offset) -> Self {
        Self { waiting: Vec::new(), saved_start, saving: false }
    }

    /// The log start that others may be told of.
    pub(super) fn saved_start(&self) -> Offset {
        self.saved_start
    }

    pub(super) fn expire(&mut self, now: Millis, effects: &mut Vec<Effect>) {
        self.waiting.retain(|waiting| {
            let keep = waiting.deadline > now;
            if !keep {
                effects.push(Effect::Refused { ticket: waiting.ticket, refusal: Refusal::TimedOut });
            }
            keep
        });
    }

    pub(super) fn drain(&mut self, refusal: &Refusal, effects: &mut Vec<Effect>) {
        let lost = |waiting: Waiting| Effect::Refused { ticket: waiting.ticket, refusal: refusal.clone() };
        effects.extend(self.waiting.drain(..).map(lost));
    }

    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }
}

impl<D: Disk> Replica<D> {
    pub(super) fn delete_records(&mut self, delete: DeleteRecords, out: &mut Outbox<D>) -> ReplicaReply<D> {
        if let Err(refusal) = self.replication.leader() {
            return ReplicaReply::Refused(refusal);
        }
        let high_watermark = self.replication.high_watermark();
        let target = delete.before.unwrap_or(high_watermark);
        let view = self.log.view();
        if target > high_watermark && !planted(Flaw::DeletesAboveWatermark) {
            let (start, end) = (view.start, high_watermark);
            return ReplicaReply::Refused(Refusal::OffsetOutOfRange { offset: target, start, end });
        }
        if self.log.advance_start(target) {
            // Followers hear of the new start at once, not after their MaxWait.
            let effects = &mut self.effects;
            self.replication.park().on_appended(|wake| effects.push(Effect::Wake(wake)));
        }
        self.save_start(out);
        if let Some(low_watermark) = self.deleted_up_to(target) {
            return ReplicaReply::DeletedRecords { low_watermark };
        }
        let DeleteRecords { ticket, deadline, .. } = delete;
        self.deletes.waiting.push(Waiting { ticket, target, deadline });
        ReplicaReply::Waiting
    }

    /// Has a log start saved that moved since. What retention moved needs no saving: the files below are gone.
    pub(super) fn save_start(&mut self, out: &mut Outbox<D>) {
        let start = self.log.view().start;
        // A truncation that is not finished may have to put the checkpoint right itself.
        if start == self.deletes.saved_start || self.deletes.saving || !self.log.is_settled() {
            return;
        }
        // Below: cut back to where the leader's log starts.
        self.deletes.saved_start = start.min(self.deletes.saved_start);
        // Of an emptied log the first batch to come may begin below: the leader's log start may lie within it.
        let lies_at_its_file = start == self.log.first_base() && start < self.log.view().end;
        if lies_at_its_file || start == Offset::ZERO {
            self.deletes.saved_start = start;
        } else {
            self.deletes.saving = true;
            out.push(Output::SaveStart(start));
        }
    }

    /// A log start is in its checkpoint. A follower tells its leader at once, who may be waiting for it.
    pub(super) fn start_saved(&mut self, start: Offset, out: &mut Outbox<D>) {
        self.deletes.saving = false;
        // Unless the log was cut back meanwhile.
        self.deletes.saved_start = start.min(self.log.view().start);
        if self.replication.following().is_some() {
            let next = self.next_fetch();
            if matches!(next, FollowerNext::Fetch(_)) {
                out.push(Output::Fetchable(next));
            }
        }
    }

    /// The low watermark, once it has passed `target` and ours is saved.
    fn deleted_up_to(&self, target: Offset) -> Option<Offset> {
        let leader = self.replication.leader().ok()?;
        let low_watermark = leader.low_watermark(&self.log.view())?;
        let saved = self.deletes.saved_start >= target || planted(Flaw::DeletesUnsaved);
        (low_watermark >= target && saved).then_some(low_watermark)
    }

    /// After every event: who waited long enough?
    pub(super) fn settle_deletes(&mut self, out: &mut Outbox<D>) {
        if self.deletes.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.deletes.waiting);
        waiting.retain(|request| {
            let Some(low_watermark) = self.deleted_up_to(request.target) else { return true };
            out.push(Output::Reply(request.ticket, ReplicaReply::DeletedRecords { low_watermark }));
            false
        });
        self.deletes.waiting = waiting;
    }
}
