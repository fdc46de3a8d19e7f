//! The leader: who is in sync, how far the log is committed, what a fetch of a follower proves.
//!
//! Everything here happens in one critical section with the append or the read it belongs to (R43, R101): the caller
//! hands in the log's view of this moment and carries the effects out before anybody else sees the replica.

use std::sync::Arc;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_quorum::image::{LeaderRecovery, PartitionState};
use highwater_wire::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch, Timestamp, TopicPartition};

use super::acks::{Ack, AckQueue, Ticket};
use super::isr::IsrState;
use super::park::WaiterId;
use super::peers::Peers;
use super::progress::FollowerProgress;
use super::refusal::Refusal;
use super::{Cx, Effect, Terms};
use crate::log_view::LogView;

mod fetches;
mod membership;
#[cfg(test)]
mod tests;

pub use fetches::{FetchVerdict, FollowerFetch, compare_logs};

/// One leadership: from one leader epoch to the next.
#[derive(Debug, Clone)]
pub struct Leader {
    partition: TopicPartition,
    me: BrokerId,
    lag_max: Millis,
    epoch: LeaderEpoch,
    /// First offset this leadership may write (LESO).
    epoch_start: Offset,
    partition_epoch: PartitionEpoch,
    high_watermark: Offset,
    isr: IsrState,
    /// Effective (R9).
    min_isr: usize,
    /// The leader's own share counts what is synced, not what is written (D23).
    durable: bool,
    own_epoch: BrokerEpoch,
    peers: Arc<Peers>,
    /// The other replicas, in the order of the assignment.
    followers: Vec<Follower>,
    /// Wait for the watermark.
    acks: AckQueue,
    /// Wait for the disk (acks = 1 where every record is synced, D23).
    flush_acks: AckQueue,
    last_shrink_check: Millis,
    /// When a refused proposal may be tried again, if no fetch or image comes first.
    propose_again_at: Option<Millis>,
    /// Elected uncleanly, and the controller does not know yet that this leader has recovered (R191).
    recovering: bool,
}

/// Another replica of this partition.
#[derive(Debug, Clone)]
struct Follower {
    id: BrokerId,
    progress: FollowerProgress,
    /// Its broker was seen fenced, shutting down or gone while it was outside the ISR: its way back is a return.
    was_away: bool,
    /// In ISR or ELR as far as known: it holds all that was ever committed.
    is_member: bool,
}

/// How one replica stands, for people.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    pub broker: BrokerId,
    pub progress: &'a FollowerProgress,
    pub in_isr: bool,
    pub caught_up: bool,
    pub active: bool,
    pub joining: bool,
}

impl Leader {
    /// Takes the leadership that `terms` give, with the watermark known so far (R141). The log already has the epoch's
    /// entry: its end is the start of this leadership (R140). Nothing is known of the followers (R106): an offset of an
    /// earlier epoch, even of our own, may have been truncated since.
    pub fn new(
        partition: TopicPartition,
        me: BrokerId,
        lag_max: Millis,
        terms: &Terms,
        high_watermark: Offset,
        view: &LogView<'_>,
        now: Millis,
    ) -> Self {
        let state = &terms.state;
        let followers = state.replicas.iter().filter(|&&id| id != me);
        let new_follower = |&id: &BrokerId| Follower::new(id, state, &terms.peers, now);
        Self {
            partition,
            me,
            lag_max,
            epoch: state.leader_epoch,
            epoch_start: view.end,
            partition_epoch: state.partition_epoch,
            high_watermark: if planted(Flaw::CommitsAtTakeover) {
                view.end
            } else {
                high_watermark.clamp(view.start, view.end)
            },
            isr: IsrState::stable(state.isr.iter().copied()),
            min_isr: state.effective_min_isr(terms.config.min_isr),
            durable: terms.durable(),
            own_epoch: terms.own_epoch,
            peers: Arc::clone(&terms.peers),
            followers: followers.map(new_follower).collect(),
            acks: AckQueue::default(),
            flush_acks: AckQueue::default(),
            last_shrink_check: now,
            propose_again_at: None,
            recovering: state.recovery == LeaderRecovery::Recovering,
        }
    }

    /// The epoch of this leadership.
    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// Its first offset.
    pub fn epoch_start(&self) -> Offset {
        self.epoch_start
    }

    /// The offset below which everything is committed.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Committed and proposed.
    pub fn isr(&self) -> &IsrState {
        &self.isr
    }

    /// Effective min ISR (R9).
    pub fn min_isr(&self) -> usize {
        self.min_isr
    }

    /// Grows with every change of ISR, as far as known here.
    pub fn partition_epoch(&self) -> PartitionEpoch {
        self.partition_epoch
    }

    /// R10
    pub fn is_under_min_isr(&self) -> bool {
        self.isr.committed().len() < self.min_isr
    }

    /// Whether the own share of the watermark is what is synced (D23).
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// For a planted bug alone (R52).
    #[cfg(feature = "sim")]
    pub(super) fn acks_mut(&mut self) -> &mut AckQueue {
        &mut self.acks
    }

    /// For a planted bug alone (R106): what is known of the followers, whatever the epoch it was learnt in.
    #[cfg(feature = "sim")]
    pub(super) fn progress_mut(&mut self) -> impl Iterator<Item = (BrokerId, &mut FollowerProgress)> {
        self.followers.iter_mut().map(|follower| (follower.id, &mut follower.progress))
    }

    /// Where each follower's log ends, as far as its fetches of this epoch say.
    pub fn follower_ends(&self) -> impl Iterator<Item = (BrokerId, Option<Offset>)> + '_ {
        self.followers.iter().map(|follower| (follower.id, follower.progress.end()))
    }

    /// The same with the process that said so; followers that said nothing are left out.
    pub fn reported_ends(&self) -> impl Iterator<Item = (BrokerId, BrokerEpoch, Offset)> + '_ {
        self.followers
            .iter()
            .filter_map(|follower| Some((follower.id, follower.progress.broker_epoch()?, follower.progress.end()?)))
    }

    /// Producers that wait.
    pub fn waiting_produces(&self) -> usize {
        self.acks.len() + self.flush_acks.len()
    }

    /// Whether a batch with acks = −1 may be appended (R42 step 9). Others always may (R47).
    pub fn may_append_for_all(&self) -> Result<(), Refusal> {
        if self.is_under_min_isr() {
            return Err(Refusal::TooFewInSync { in_sync: self.isr.committed().len(), min_isr: self.min_isr });
        }
        Ok(())
    }

    /// Whether "latest" and searches by time may be answered (R94): the watermark covers what the predecessor may have
    /// shown.
    pub fn may_tell_the_end(&self) -> Result<(), Refusal> {
        if self.high_watermark < self.epoch_start && !planted(Flaw::TellsTheEndTooSoon) {
            let (high_watermark, epoch_start) = (self.high_watermark, self.epoch_start);
            return Err(Refusal::OffsetNotAvailable { high_watermark, epoch_start });
        }
        Ok(())
    }

    /// Before an append: followers that wait at the end have held all of it until now (D20).
    pub fn before_append(&mut self, view: &LogView<'_>) {
        self.settle(view.end);
    }

    /// Records were appended.
    pub fn on_appended(&mut self, cx: &mut Cx<'_>) {
        let effects = &mut *cx.effects;
        cx.park.on_appended(|wake| effects.push(Effect::Wake(wake)));
        self.advance(cx);
    }

    /// More of the log is synced (D23).
    pub fn on_flushed(&mut self, cx: &mut Cx<'_>) {
        let effects = &mut *cx.effects;
        self.flush_acks.release(cx.view.flushed_end, self.epoch, |ack| effects.push(Effect::stored(&ack)));
        if self.durable {
            self.settle(cx.view.end);
            self.advance(cx);
        }
    }

    /// A producer waits until the watermark reaches the end of its batch; it may be there already (R48, R58).
    pub fn await_commit(&mut self, stored: StoredBatch, ticket: Ticket, deadline: Millis) -> AckState {
        if self.high_watermark >= stored.end || planted(Flaw::AcksUnreplicated) {
            return match self.commit_verdict() {
                Ok(()) => AckState::Done,
                Err(refusal) => AckState::Refused(refusal),
            };
        }
        self.acks.push(self.ack(stored, ticket, deadline));
        AckState::Waiting
    }

    /// A producer waits for this log alone: not at all, or until its batch is synced (R47, D23).
    pub fn await_own(&mut self, stored: StoredBatch, ticket: Ticket, deadline: Millis, view: &LogView<'_>) -> AckState {
        if !self.durable || view.flushed_end >= stored.end {
            return AckState::Done;
        }
        self.flush_acks.push(self.ack(stored, ticket, deadline));
        AckState::Waiting
    }

    fn ack(&self, stored: StoredBatch, ticket: Ticket, deadline: Millis) -> Ack {
        let StoredBatch { base, end, log_append_time } = stored;
        Ack { ticket, end, leader_epoch: self.epoch, deadline, base, log_append_time }
    }

    /// R49
    fn commit_verdict(&self) -> Result<(), Refusal> {
        let in_sync = self.isr.maximal_len();
        if in_sync < self.min_isr {
            return Err(Refusal::TooFewInSyncAfterAppend { in_sync, min_isr: self.min_isr });
        }
        Ok(())
    }

    /// Deadlines, resending, and every half lag limit the look at who fell behind (R112, R122).
    pub fn on_tick(&mut self, cx: &mut Cx<'_>) {
        let effects = &mut *cx.effects;
        for queue in [&mut self.acks, &mut self.flush_acks] {
            queue.expire(cx.now, |ack| {
                effects.push(Effect::Refused { ticket: ack.ticket, refusal: Refusal::TimedOut });
            });
        }
        #[cfg(feature = "sim")]
        if planted(Flaw::RestampsProposals) {
            self.isr.restamp(|id| self.peers.get(id).map(|peer| peer.epoch));
        }
        if let Some(proposal) = self.isr.take_resend(cx.now) {
            cx.effects.push(Effect::Propose(proposal));
        }
        if cx.now >= self.shrink_check_at() {
            self.last_shrink_check = cx.now;
            self.settle(cx.view.end);
            self.maybe_shrink(cx);
            self.advance(cx);
        }
        if self.propose_again_at.is_some_and(|at| at <= cx.now) {
            self.maybe_propose(cx);
        }
    }

    fn shrink_check_at(&self) -> Millis {
        self.last_shrink_check + Millis(self.lag_max.0 / 2)
    }

    /// When [`Self::on_tick`] is due: `None` while nobody waits and every replica that counts is at the end, which it
    /// cannot leave without an append (D36).
    pub fn tick_at(&self, view: &LogView<'_>, now: Millis) -> Option<Millis> {
        let counts = |follower: &Follower| {
            let lapses = |at: Millis| now - at <= self.lag_max;
            self.isr.maximal_contains(follower.id) || follower.progress.caught_up_at().is_some_and(lapses)
        };
        let behind = |follower: &Follower| follower.progress.end() != Some(view.end) && counts(follower);
        let shrink_check = self.followers.iter().any(behind).then(|| self.shrink_check_at());
        let deadlines = [self.acks.next_deadline(), self.flush_acks.next_deadline()];
        let others = [shrink_check, self.isr.resend_at(), self.propose_again_at];
        deadlines.into_iter().chain(others).flatten().min()
    }

    /// A newer image that leaves the leadership as it is: ISR, assignment, min ISR, who is active (R122, R135, R144).
    /// `state` counts only if its partition epoch is newer than what answers have said.
    pub fn on_image(&mut self, terms: &Terms, cx: &mut Cx<'_>) {
        self.settle(cx.view.end);
        self.peers = Arc::clone(&terms.peers);
        self.durable = terms.durable();
        for follower in &mut self.followers {
            let fetched_as = follower.progress.broker_epoch();
            let peer = self.peers.get(follower.id);
            if fetched_as.is_some() && peer.map(|peer| peer.epoch) != fetched_as {
                follower.progress.detach(cx.view.end);
            }
            follower.was_away |= !peer.is_some_and(|peer| peer.active);
        }
        let state = &terms.state;
        if state.partition_epoch > self.partition_epoch {
            self.partition_epoch = state.partition_epoch;
            let before = self.isr.committed().to_vec();
            self.isr.on_metadata(&state.isr);
            self.recovering = state.recovery == LeaderRecovery::Recovering;
            self.note_isr_change(before, cx);
            self.assign(state, cx.now);
        }
        if state.partition_epoch >= self.partition_epoch {
            for follower in &mut self.followers {
                follower.is_member = is_member(follower.id, state);
            }
            if !planted(Flaw::KeepsMinIsr) {
                self.min_isr = state.effective_min_isr(terms.config.min_isr);
            }
        }
        self.advance(cx);
        self.maybe_propose(cx);
    }

    /// R107: who is no longer assigned is forgotten; who is new (again) starts from nothing.
    fn assign(&mut self, state: &PartitionState, now: Millis) {
        let mut known = std::mem::take(&mut self.followers);
        for &id in state.replicas.iter().filter(|&&id| id != self.me) {
            let follower = match known.iter().position(|follower| follower.id == id) {
                Some(index) => known.swap_remove(index),
                None => Follower::new(id, state, &self.peers, now),
            };
            self.followers.push(follower);
        }
    }

    /// Tries to move the watermark (R119–R123) and tells whoever waited for it.
    pub fn advance(&mut self, cx: &mut Cx<'_>) {
        let Some(candidate) = self.high_watermark_bound(&cx.view, cx.now) else { return };
        if candidate <= self.high_watermark {
            return;
        }
        assert!(candidate <= cx.view.end, "watermark {candidate} above the end {} of the log", cx.view.end);
        self.high_watermark = candidate;
        let verdict = self.commit_verdict();
        let effects = &mut *cx.effects;
        self.acks.release(candidate, self.epoch, |ack| {
            effects.push(match &verdict {
                Ok(()) => Effect::Stored { ticket: ack.ticket, base: ack.base, log_append_time: ack.log_append_time },
                Err(refusal) => Effect::Refused { ticket: ack.ticket, refusal: refusal.clone() },
            });
        });
        cx.park.on_watermark(candidate, |wake| effects.push(Effect::Wake(wake)));
    }

    /// The offset below which every electable replica is known to hold the log. The watermark never moves back: the
    /// caller keeps the maximum.
    ///
    /// `None` while the committed ISR is smaller than min ISR: the watermark then stands still, so that whoever left the
    /// ISR holds all that was ever committed and may be elected (R121, KIP-966); and while a member of the maximal ISR
    /// has not fetched in this epoch. A caught-up, eligible replica outside the ISR is waited for too, or it would never
    /// catch up with a watermark that runs ahead (R120).
    pub fn high_watermark_bound(&self, view: &LogView<'_>, now: Millis) -> Option<Offset> {
        if self.is_under_min_isr() && !planted(Flaw::CommitsBelowMinIsr) {
            return None;
        }
        let own = if self.durable && !planted(Flaw::CountsUnsynced) { view.flushed_end } else { view.end };
        self.followers.iter().try_fold(own, |bound, follower| {
            if self.counts(follower.id) {
                return follower.progress.end().map(|end| bound.min(end));
            }
            let joins_soon = follower.progress.is_caught_up(view.end, now, self.lag_max) && self.is_eligible(follower);
            Some(follower.progress.end().filter(|_| joins_soon).map_or(bound, |end| bound.min(end)))
        })
    }

    /// Whether the watermark waits for a replica: for every member of the maximal ISR (R123).
    fn counts(&self, id: BrokerId) -> bool {
        match self.isr.pending().filter(|_| planted(Flaw::CountsProposedIsr)) {
            Some(proposal) => proposal.isr.iter().any(|&(member, _)| member == id),
            None => self.isr.maximal_contains(id),
        }
    }

    fn settle(&mut self, leader_end: Offset) {
        self.followers.iter_mut().for_each(|follower| follower.progress.settle(leader_end));
    }

    /// A session forgot this partition or is gone: its silence says nothing from now on.
    pub fn detach(&mut self, session: WaiterId, leader_end: Offset) {
        let of_session = |follower: &&mut Follower| follower.progress.is_followed_by(session);
        self.followers.iter_mut().filter(of_session).for_each(|follower| follower.progress.detach(leader_end));
    }

    /// The lowest log start of the replicas that are alive, this one's included (R274); `None` while one of them has not
    /// said where its log begins: what a former process of it said counts no more.
    pub fn low_watermark(&self, view: &LogView<'_>) -> Option<Offset> {
        let active = |id: BrokerId| self.peers.get(id).is_some_and(|peer| peer.active);
        let alive = |follower: &&Follower| active(follower.id) && !planted(Flaw::DeletesAlone);
        let lowest = |low: Offset, follower: &Follower| {
            let present = self.peers.get(follower.id).map(|peer| peer.epoch);
            let told = follower.progress.log_start().filter(|_| follower.progress.broker_epoch() == present);
            told.map(|start| low.min(start))
        };
        self.followers.iter().filter(alive).try_fold(view.start, lowest)
    }

    /// Ends the leadership: every waiting producer is told that it may be found elsewhere (R51), before anything is
    /// truncated. Gives the watermark to the next role.
    pub fn step_down(mut self, refusal: &Refusal, effects: &mut Vec<Effect>) -> Offset {
        for queue in [&mut self.acks, &mut self.flush_acks] {
            queue.drain(|ack| effects.push(Effect::Refused { ticket: ack.ticket, refusal: refusal.clone() }));
        }
        self.high_watermark
    }

    /// How the other replicas stand, in the order of the assignment.
    pub fn standings(&mut self, view: &LogView<'_>, now: Millis) -> impl Iterator<Item = Standing<'_>> {
        self.settle(view.end);
        let end = view.end;
        let leader = &*self;
        leader.followers.iter().map(move |follower| Standing {
            broker: follower.id,
            progress: &follower.progress,
            in_isr: leader.isr.committed().contains(&follower.id),
            caught_up: follower.progress.is_caught_up(end, now, leader.lag_max),
            active: leader.peers.get(follower.id).is_some_and(|peer| peer.active),
            joining: leader.isr.maximal_contains(follower.id),
        })
    }

    /// Panics where R2, S6 or S14 is broken.
    pub fn check_invariants(&self, view: &LogView<'_>) {
        let hw = self.high_watermark;
        assert!(view.start <= hw && hw <= view.end, "watermark {hw} outside {}..={}", view.start, view.end);
        assert!(self.epoch_start <= view.end, "epoch start {} above end {}", self.epoch_start, view.end);
        assert!(self.isr.committed().contains(&self.me), "the leader is not in its own ISR {:?}", self.isr);
    }
}

/// Where a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBatch {
    pub base: Offset,
    /// Exclusive.
    pub end: Offset,
    pub log_append_time: Timestamp,
}

/// Where a produce is after its batch was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckState {
    /// As safe as it asked for.
    Done,
    Waiting,
    Refused(Refusal),
}

impl Follower {
    fn new(id: BrokerId, state: &PartitionState, peers: &Peers, now: Millis) -> Self {
        let in_isr = state.isr.contains(&id);
        let was_away = !in_isr && !peers.get(id).is_some_and(|peer| peer.active);
        Self { id, progress: FollowerProgress::new(in_isr, now), was_away, is_member: is_member(id, state) }
    }
}

fn is_member(id: BrokerId, state: &PartitionState) -> bool {
    state.isr.contains(&id) || state.elr.contains(&id)
}
