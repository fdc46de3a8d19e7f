//! One partition on its way from one state to the next. The only place that raises epochs (R137, R138), moves members
//! between ISR and ELR (R195) and writes down why.

use std::collections::BTreeSet;
use std::sync::Arc;

use highwater_wire::{BrokerId, LeaderEpoch, Offset, TopicPartition};

use super::draft::Draft;
use super::election::{Live, Policy, candidate};
use super::loss::{last_watermark, leads_uncleanly};
use crate::flaws::{Flaw, planted};
use crate::image::{
    ChangeKind, Evidence, ExpandReason, LastReport, LeaderReason, LeaderRecovery, PartitionChange, PartitionState,
    ShrinkReason, Topic, TopicConfig,
};

/// The step of one partition in one decision: change the ISR, then `settle_elr`, then `elect`, then `finish`.
pub(super) struct Transition<'a> {
    at: TopicPartition,
    before: &'a PartitionState,
    pub after: PartitionState,
    /// Capped by the number of replicas (R9).
    min_isr: usize,
    unclean_allowed: bool,
    kinds: Vec<ChangeKind>,
    touched: bool,
}

impl<'a> Transition<'a> {
    pub fn new(at: TopicPartition, topic: &Topic, before: &'a PartitionState) -> Self {
        Self::under(at, &topic.config, before)
    }

    /// As [`Self::new`], under a configuration that the topic gets in the same entry.
    pub fn under(at: TopicPartition, config: &TopicConfig, before: &'a PartitionState) -> Self {
        let min_isr = before.effective_min_isr(config.min_isr);
        let unclean_allowed = config.unclean_election;
        Self { at, before, after: before.clone(), min_isr, unclean_allowed, kinds: Vec::new(), touched: false }
    }

    /// Moves the partition epoch though nothing else may change: proposals that are on their way become stale.
    pub fn touch(&mut self) {
        self.touched = true;
    }

    /// Takes `gone` out of the ISR.
    pub fn shrink(&mut self, gone: impl Fn(BrokerId) -> bool, reason: ShrinkReason, evidence: Vec<Evidence>) {
        let before = self.after.isr.clone();
        self.after.isr.retain(|member| !gone(*member));
        if self.after.isr.len() < before.len() && !planted(Flaw::ShrinksUntold) {
            let after = self.after.isr.clone();
            self.kinds.push(ChangeKind::Shrink { before, after, reason, evidence });
        }
    }

    /// Takes `joining`, all of them replicas, into the ISR; keeps the order of the assignment.
    pub fn expand(&mut self, joining: &[BrokerId], reason: ExpandReason, evidence: Vec<Evidence>) {
        let before = self.after.isr.clone();
        let isr = |replica: &&BrokerId| before.contains(replica) || joining.contains(replica);
        self.after.isr = self.after.replicas.iter().filter(isr).copied().collect();
        if self.after.isr.len() > before.len() {
            let after = self.after.isr.clone();
            self.kinds.push(ChangeKind::Expand { before, after, reason, evidence });
        }
    }

    /// R195: whoever left the ISR while it is below min ISR still holds all that was ever committed, since the leader
    /// froze its watermark (R121), unless it is among the `lost`, who cannot prove that they still hold it (R169).
    pub fn settle_elr(&mut self, lost: &BTreeSet<BrokerId>) {
        let Self { before, after, .. } = self;
        after.elr = if after.isr.len() >= self.min_isr && !planted(Flaw::KeepsElr) {
            Vec::new()
        } else {
            let complete = |id: &&BrokerId| before.elr.contains(id) || before.isr.contains(id);
            let eligible = |id: &&BrokerId| !after.isr.contains(id) && !lost.contains(id);
            after.replicas.iter().filter(complete).filter(eligible).copied().collect()
        };
    }

    /// Keeps a leader that may go on, else elects by R189; `drain`: the leader goes because it was asked to.
    pub fn elect(&mut self, live: &Live, policy: Policy, drain: bool) {
        if self.after.leader.is_some_and(|leader| self.after.isr.contains(&leader) && live.is_active(leader)) {
            return;
        }
        let unclean = self.unclean_allowed || policy == Policy::Unclean;
        match candidate(&self.after, live, unclean) {
            Some((leader, LeaderReason::Failover)) if drain => self.lead(leader, LeaderReason::Drain),
            Some((leader, reason)) => self.lead(leader, reason),
            None if self.after.leader.is_some() => {
                self.after.last_known_elr = self.after.leader.into_iter().collect();
                self.set_leader(None, LeaderReason::Lost);
            }
            None => {}
        }
    }

    /// Makes `leader` lead, with what that does to ISR, ELR and the recovery mark (R190).
    pub fn lead(&mut self, leader: BrokerId, reason: LeaderReason) {
        let unclean = matches!(reason, LeaderReason::Unclean | LeaderReason::LastKnown);
        if unclean {
            let known = match self.after.last_known_watermark {
                Some(LastReport { high_watermark, reported, .. }) => {
                    format!("the last leader reported high watermark {high_watermark} at {reported} ms")
                }
                None => "no high watermark is known".to_owned(),
            };
            let evidence = vec![Evidence { note: Some(known), ..Evidence::about(leader) }];
            let before = std::mem::replace(&mut self.after.isr, vec![leader]);
            let (after, reason) = (vec![leader], ShrinkReason::UncleanElection);
            self.kinds.push(ChangeKind::Shrink { before, after, reason, evidence });
            self.after.recovery = LeaderRecovery::Recovering;
        } else {
            self.after.last_known_watermark = None;
            self.expand(&[leader], ExpandReason::BrokerReturned, Vec::new());
        }
        self.after.elr.retain(|member| *member != leader);
        if self.after.isr.len() >= self.min_isr && !planted(Flaw::KeepsElr) {
            self.after.elr.clear();
        }
        self.after.last_known_elr.clear();
        self.set_leader(Some(leader), reason);
    }

    /// Writes down what the unclean election of the present leader cost; `from`: where its epoch begins.
    pub fn note_loss(&mut self, from: Option<Offset>, history: &[Arc<PartitionChange>]) {
        let known = last_watermark(self.before, history, self.min_isr);
        // A leader elected anew before it had said so has written since.
        let from = from.filter(|_| leads_uncleanly(history));
        let from = from.map(|from| known.map_or(from, |known| known.first_lost(from)));
        self.kinds.push(ChangeKind::DataLoss { from, known: known.map(|known| known.watermark) });
        // Told once: the next loss is counted from what this leader says.
        self.after.last_known_watermark = None;
    }

    fn set_leader(&mut self, leader: Option<BrokerId>, reason: LeaderReason) {
        self.kinds.push(ChangeKind::Leader { before: self.before.leader, reason });
        self.after.leader = leader;
        if self.before.leader.is_some() || !planted(Flaw::KeepsEpoch) {
            self.after.leader_epoch = LeaderEpoch(self.before.leader_epoch.0 + 1);
        }
    }

    fn elected_uncleanly(&self) -> bool {
        let unclean = |kind: &ChangeKind| {
            matches!(kind, ChangeKind::Leader { reason: LeaderReason::Unclean | LeaderReason::LastKnown, .. })
        };
        self.kinds.iter().any(unclean)
    }

    /// Hands a changed state to the draft, one partition epoch further; `false`: nothing changed.
    pub fn finish(mut self, draft: &mut Draft, requested_by: Option<BrokerId>) -> bool {
        if draft.rules >= 3 && self.elected_uncleanly() && !planted(Flaw::UncleanKeepsElr) {
            // Whoever was eligible holds what the new leader lacks, perhaps, and neither may lead after the other by right.
            self.after.elr.clear();
        }
        if self.after == *self.before && !self.touched {
            return false;
        }
        self.after.partition_epoch = self.before.partition_epoch.next();
        if self.after.leader_epoch != self.before.leader_epoch {
            self.after.leader_since = draft.time;
        }
        draft.partition(self.at, self.after, requested_by, self.kinds);
        true
    }
}
