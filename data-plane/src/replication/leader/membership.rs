//! Who comes into the ISR and who leaves it: what the leader proposes, and what it makes of the answer
//! (R112–R118, R133, R134).

use highwater_quorum::controller::{AlteredPartition, IsrProposal, IsrReason};
use highwater_quorum::flaws::{Flaw, planted};
use highwater_quorum::image::{Evidence, ExpandReason, LeaderRecovery, ShrinkReason};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, Millis};

use super::{Follower, Leader};
use crate::log_view::LogView;
use crate::replication::isr::IsrOutcome;
use crate::replication::note::Note;
use crate::replication::{Cx, Effect};

/// How long a refused proposal rests (R133): a round of a silent follower's session.
const REFUSED_REST: Millis = Millis(500);

impl Leader {
    /// R115–R118
    pub(super) fn maybe_expand(&mut self, index: usize, cx: &mut Cx<'_>) {
        let follower = &self.followers[index];
        if self.isr.pending().is_some() || self.isr.committed().contains(&follower.id) {
            return;
        }
        let Some(end) = follower.progress.end() else { return };
        let in_sync = end >= self.high_watermark && (end >= self.epoch_start || planted(Flaw::JoinsAtWatermark));
        if !in_sync || !self.is_eligible(follower) {
            return;
        }
        // Under min ISR the watermark stands still, and reaching it proves little (R118).
        if self.is_under_min_isr() && !follower.progress.is_caught_up(cx.view.end, cx.now, self.lag_max) {
            return;
        }
        let reason = if follower.was_away { ExpandReason::BrokerReturned } else { ExpandReason::CaughtUp };
        let evidence = vec![self.evidence(follower, &cx.view, cx.now)];
        let id = follower.id;
        let mut isr = self.isr.committed().to_vec();
        isr.push(id);
        self.propose(isr, IsrReason::Expand(reason), evidence, cx);
    }

    /// Followers that are silent at the end do not fetch again before something is appended, so every event that may let
    /// one in looks at all of them: an image, the end of a change in flight (R115 with D20).
    ///
    /// What an unclean election leaves to do for its leader is nothing, and it says so at once (R191).
    pub fn maybe_propose(&mut self, cx: &mut Cx<'_>) {
        self.propose_again_at = None;
        if self.recovering && self.isr.pending().is_none() {
            // Where its log ended is where the loss begins, if there was one (D12).
            let from = if planted(Flaw::LosesFromWatermark) { self.high_watermark } else { self.epoch_start };
            let evidence = vec![Evidence { leader_end: Some(from), ..Evidence::about(self.me) }];
            self.propose(self.isr.committed().to_vec(), IsrReason::Recovered, evidence, cx);
        }
        (0..self.followers.len()).for_each(|index| self.maybe_expand(index, cx));
    }

    /// R116: active, and the process that fetched is the one registered.
    pub(super) fn is_eligible(&self, follower: &Follower) -> bool {
        let fetched_as = follower.progress.broker_epoch();
        self.peers.get(follower.id).is_some_and(|peer| peer.active && Some(peer.epoch) == fetched_as)
    }

    fn propose(&mut self, isr: Vec<BrokerId>, why: IsrReason, evidence: Vec<Evidence>, cx: &mut Cx<'_>) {
        let members: Option<Vec<_>> = isr.iter().map(|&id| Some((id, self.known_epoch(id)?))).collect();
        // A member whose registration is not in our metadata cannot be vouched for; metadata will say why.
        let Some(members) = members else { return };
        let proposal = IsrProposal {
            partition: self.partition,
            leader_epoch: self.epoch,
            partition_epoch: self.partition_epoch,
            isr: members,
            recovery: LeaderRecovery::Recovered,
            why,
            evidence,
        };
        if isr != self.isr.committed() {
            cx.effects.push(Effect::Note(Note::IsrProposed {
                from: self.isr.committed().to_vec(),
                to: isr,
                leader_epoch: self.epoch,
                partition_epoch: self.partition_epoch,
            }));
        }
        cx.effects.push(Effect::Propose(Box::new(proposal.clone())));
        self.isr.propose(proposal, cx.now);
    }

    /// The epoch a member's own fetches carried; for one that has not fetched in this leadership, that of the image
    /// which also says that it is in the ISR (KIP-903).
    fn known_epoch(&self, id: BrokerId) -> Option<BrokerEpoch> {
        if id == self.me {
            return Some(self.own_epoch);
        }
        let fetched_as = self.followers.iter().find(|follower| follower.id == id)?.progress.broker_epoch();
        fetched_as.or_else(|| self.peers.get(id).map(|peer| peer.epoch))
    }

    fn evidence(&self, follower: &Follower, view: &LogView<'_>, now: Millis) -> Evidence {
        let age = |at: Option<Millis>| at.map(|at| (now - at).0);
        let at_end = follower.progress.end() == Some(view.end);
        Evidence {
            broker: follower.id,
            follower_end: follower.progress.end(),
            leader_end: Some(view.end),
            lag_ms: if at_end { Some(0) } else { age(follower.progress.caught_up_at()) },
            last_fetch_age_ms: age(follower.progress.last_fetch()),
            last_caught_up_age_ms: age(follower.progress.caught_up_at()),
            note: None,
        }
    }

    /// R113, R114
    pub(super) fn maybe_shrink(&mut self, cx: &mut Cx<'_>) {
        if self.isr.pending().is_some() {
            return;
        }
        let falls_out = |follower: &&Follower| {
            self.isr.committed().contains(&follower.id)
                && !follower.progress.is_caught_up(cx.view.end, cx.now, self.lag_max)
        };
        let out: Vec<&Follower> = self.followers.iter().filter(falls_out).collect();
        let Some(first) = out.first() else { return };
        let fetches = first.progress.last_fetch().is_some_and(|at| cx.now - at <= self.lag_max);
        let reason = if fetches { ShrinkReason::FollowerSlow } else { ShrinkReason::FollowerStoppedFetching };
        let stays = |id: &BrokerId| !out.iter().any(|follower| follower.id == *id);
        let isr: Vec<_> = self.isr.committed().iter().copied().filter(stays).collect();
        let of_others = out.iter().map(|follower| self.evidence(follower, &cx.view, cx.now));
        // Alone in sync it may be lost with all that nobody else holds: what it had committed until now comes first, for
        // whoever counts the loss (D12). Its log may end behind that, but it may be gone before it commits the rest.
        let note = Some("high watermark and log start of the leader".to_owned());
        let (leader_end, follower_end) = (Some(self.high_watermark), Some(cx.view.start));
        let of_itself = Evidence { leader_end, follower_end, note, ..Evidence::about(self.me) };
        let evidence = (isr == [self.me]).then_some(of_itself).into_iter().chain(of_others).collect();
        self.propose(isr, IsrReason::Shrink(reason), evidence, cx);
    }

    /// The controller's answer to a proposal, or that there was none (R133, R134).
    pub fn on_isr(
        &mut self,
        proposal: &IsrProposal,
        result: &Result<AlteredPartition, ErrorCode>,
        cx: &mut Cx<'_>,
    ) -> IsrOutcome {
        let before = self.isr.committed().to_vec();
        let outcome = self.isr.on_answer(proposal, result, self.epoch, self.partition_epoch, cx.now);
        let refused = |code, dropped| {
            let to = proposal.isr.iter().map(|&(id, _)| id).collect();
            Effect::Note(Note::IsrRefused { to, code, dropped })
        };
        match outcome {
            IsrOutcome::Ignored | IsrOutcome::Resent(_) => {}
            IsrOutcome::Dropped(code) => {
                cx.effects.push(refused(code, true));
                self.propose_again_at = Some(cx.now + REFUSED_REST);
            }
            IsrOutcome::AwaitsMetadata(code) => cx.effects.push(refused(code, false)),
            IsrOutcome::Committed => {
                if let Ok(altered) = result {
                    self.partition_epoch = altered.partition_epoch;
                    self.recovering = altered.recovery == LeaderRecovery::Recovering;
                }
                self.note_isr_change(before, cx);
            }
        }
        // The maximal ISR may be smaller now, and producers wait for no other event (R253).
        self.settle(cx.view.end);
        self.advance(cx);
        if outcome == IsrOutcome::Committed {
            self.maybe_propose(cx);
        }
        outcome
    }

    pub(super) fn note_isr_change(&mut self, before: Vec<BrokerId>, cx: &mut Cx<'_>) {
        for follower in &mut self.followers {
            if self.isr.committed().contains(&follower.id) {
                follower.was_away = false;
                follower.is_member = true;
            }
        }
        if before != self.isr.committed() {
            cx.effects.push(Effect::Note(Note::IsrChanged {
                before,
                after: self.isr.committed().to_vec(),
                leader_epoch: self.epoch,
                partition_epoch: self.partition_epoch,
            }));
        }
    }
}
