//! May this broker be restarted now, and which one next (operators.md 1.4 G)? A judgement of the image and of what was
//! heard of the brokers a moment ago; it changes nothing and proposes nothing.
//!
//! A restart takes the broker out of every ISR for a while (R174). So each partition it holds is looked at as it would
//! be without it, and without those that are in the ISR still but did not answer: they are about to leave it.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::{BrokerEpoch, BrokerId, TopicPartition};

use crate::flaws::{Flaw, planted};
use crate::image::{BrokerState, ImageVersion, MetadataImage, PartitionState, Topic};
use crate::status::QuorumStatus;

/// What the image cannot tell. Whatever is missing here counts against the restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestartFacts {
    /// Nodes whose process answered just now. Asked must be every active broker, and the one the question is about.
    pub answering: BTreeSet<BrokerId>,
    /// ISRs that leaders have proposed and the quorum has not decided.
    pub proposed: BTreeMap<TopicPartition, Vec<BrokerId>>,
    /// `None`: no raft leader that a majority answers, or nobody could be asked.
    pub quorum: Option<QuorumFacts>,
}

/// The quorum as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumFacts {
    pub leader: BrokerId,
    pub voters: BTreeSet<BrokerId>,
    /// Voters that answer the leader and lack next to nothing, itself included. A voter whose disk was wiped is another
    /// member than the one that votes, and not among them (D1).
    pub caught_up: BTreeSet<BrokerId>,
    pub majority: usize,
    /// Two sets of voters are in force: what a majority is changes at any moment.
    pub joint: bool,
}

impl QuorumFacts {
    /// From the status of a node that leads; `None` from one that does not, or that no majority answers any more.
    pub fn of(status: &QuorumStatus) -> Option<Self> {
        if !status.leads() {
            return None;
        }
        let soon = 3 * status.election_timeout_ms;
        let caught_up = status.peers.iter().filter(|peer| peer.voter && peer.progress().is_well(soon));
        Some(Self {
            leader: status.node,
            voters: status.voters.iter().map(|voter| voter.node).collect(),
            caught_up: caught_up.map(|peer| peer.member.node).collect(),
            majority: status.majority,
            joint: status.joint,
        })
    }
}

/// Why a broker must not be restarted now. The names are those of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocker {
    /// It is led and could not be: neither an in-sync nor an eligible replica is left that is in service.
    Unavailable,
    /// acks=all would fail: fewer than min ISR would be left, and enough are there now.
    FullAcksProduceUnavailable,
    /// Fewer than min ISR are there now; this broker is one of them, or may be the first to catch up.
    AlreadyUnderMinIsr,
    /// It leads alone: what it acknowledged to acks=1 is nowhere else.
    Acks1DataLoss,
    /// A partition is blocked, and brokers that hold other replicas of it are not in service.
    OtherBrokerDown,
    /// The voters that are caught up would be no majority without it, or nobody knows.
    QuorumLoss,
}

impl Blocker {
    /// In the order in which they are listed.
    pub const ALL: [Self; 6] = [
        Self::Unavailable,
        Self::FullAcksProduceUnavailable,
        Self::AlreadyUnderMinIsr,
        Self::Acks1DataLoss,
        Self::OtherBrokerDown,
        Self::QuorumLoss,
    ];

    /// As the API spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::FullAcksProduceUnavailable => "full_acks_produce_unavailable",
            Self::AlreadyUnderMinIsr => "already_under_min_isr",
            Self::Acks1DataLoss => "acks1_data_loss",
            Self::OtherBrokerDown => "other_broker_down",
            Self::QuorumLoss => "quorum_loss",
        }
    }
}

/// The judgement on one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartVerdict {
    pub broker: BrokerId,
    /// Every partition concerned, by topic id and number; none for `QuorumLoss`.
    pub blocking: BTreeMap<Blocker, Vec<TopicPartition>>,
    /// Partitions with one replica, which go offline for a while. Accepted: it can never be otherwise.
    pub rf1_offline: Vec<TopicPartition>,
    /// Partitions whose min ISR is their number of replicas: acks=all stands still for a while. Accepted likewise.
    pub min_isr_equals_rf: Vec<TopicPartition>,
    /// Behind `OtherBrokerDown`.
    pub down: BTreeSet<BrokerId>,
    /// Caught-up voters besides this broker; `None`: unknown.
    pub caught_up_without: Option<usize>,
}

impl RestartVerdict {
    /// Nothing speaks against the restart.
    pub fn is_safe(&self) -> bool {
        self.blocking.is_empty()
    }

    fn block(&mut self, why: Blocker, at: TopicPartition) {
        self.blocking.entry(why).or_default().push(at);
    }
}

/// Judges the restart of one node, which may be a broker, a voter or both.
///
/// A broker that is fenced and does not answer serves nothing that a restart could take away, and one that is shutting
/// down has given all of it up: their partitions block nothing. A fenced one that answers is recovering and may be what
/// a partition waits for.
pub fn judge_restart(image: &MetadataImage, facts: &RestartFacts, broker: BrokerId) -> RestartVerdict {
    let mut verdict = RestartVerdict {
        broker,
        blocking: BTreeMap::new(),
        rf1_offline: Vec::new(),
        min_isr_equals_rf: Vec::new(),
        down: BTreeSet::new(),
        caught_up_without: None,
    };
    let answers = facts.answering.contains(&broker);
    let holds_something = match image.broker(broker).map(|registered| registered.state) {
        Some(BrokerState::Active) => true,
        Some(BrokerState::Fenced) => answers,
        Some(BrokerState::ShuttingDown) | None => false,
    };
    if holds_something {
        for (at, topic, state) in image.partitions() {
            if state.replicas.contains(&broker) {
                judge_partition(image, facts, &mut verdict, at, topic, state);
            }
        }
    }
    judge_quorum(facts, &mut verdict, image.broker(broker).is_none_or(|b| b.state == BrokerState::Fenced) && !answers);
    verdict
}

fn judge_partition(
    image: &MetadataImage,
    facts: &RestartFacts,
    verdict: &mut RestartVerdict,
    at: TopicPartition,
    topic: &Topic,
    state: &PartitionState,
) {
    let (broker, min_isr) = (verdict.broker, state.effective_min_isr(topic.config.min_isr));
    if state.replicas.len() == 1 {
        return verdict.rf1_offline.push(at);
    }
    let in_service = |id: &BrokerId| is_in_service(image, facts, *id);
    let stays = |id: &&BrokerId| facts.proposed.get(&at).is_none_or(|proposed| proposed.contains(id));
    let others = |ids: &[BrokerId]| ids.iter().filter(|id| **id != broker && in_service(id)).filter(stays).count();
    let without = others(&state.isr);
    let now = without + usize::from(state.isr.contains(&broker) && stays(&&broker));
    let mut why = Vec::new();
    let elected = state.elr.iter().any(|id| *id != broker && in_service(id));
    if state.leader.is_some() && without == 0 && !elected {
        why.push(Blocker::Unavailable);
    }
    // Where nobody leads it helps by leading, or as the second in sync; a first leader who comes back is enough for one.
    let helps = state.leader.is_some() || min_isr > 1 || topic.config.unclean_election || state.elr.contains(&broker);
    if now < min_isr {
        if helps {
            why.push(Blocker::AlreadyUnderMinIsr);
        }
    } else if without < min_isr && !planted(Flaw::RestartForgetsMinIsr) {
        if state.replicas.len() > min_isr {
            why.push(Blocker::FullAcksProduceUnavailable);
        } else {
            verdict.min_isr_equals_rf.push(at);
        }
    }
    if state.leader == Some(broker) && now == 1 {
        why.push(Blocker::Acks1DataLoss);
    }
    if !why.is_empty() {
        let down: Vec<_> = state.replicas.iter().filter(|id| **id != broker && !in_service(id)).copied().collect();
        if !down.is_empty() {
            why.push(Blocker::OtherBrokerDown);
        }
        verdict.down.extend(down);
    }
    for why in why {
        verdict.block(why, at);
    }
}

/// Takes part, and answers.
fn is_in_service(image: &MetadataImage, facts: &RestartFacts, id: BrokerId) -> bool {
    let answers = facts.answering.contains(&id) || planted(Flaw::RestartTrustsTheSilent);
    answers && image.broker(id).is_some_and(|registered| registered.is_active())
}

/// `is_down`: it takes no part in anything, as far as can be told; then it cannot be missed by a quorum that does
/// without it already.
fn judge_quorum(facts: &RestartFacts, verdict: &mut RestartVerdict, is_down: bool) {
    let broker = verdict.broker;
    let Some(quorum) = &facts.quorum else {
        verdict.blocking.insert(Blocker::QuorumLoss, Vec::new());
        return;
    };
    let without = quorum.caught_up.iter().filter(|id| **id != broker).count();
    verdict.caught_up_without = Some(without);
    let missed = !is_down || quorum.caught_up.contains(&broker);
    if missed && (without < quorum.majority || quorum.joint) && !planted(Flaw::RestartForgetsTheQuorum) {
        verdict.blocking.insert(Blocker::QuorumLoss, Vec::new());
    }
}

/// The order in which a rolling restart takes the brokers: whoever registered first has run longest, and a restart
/// registers anew, so everybody has its turn. With `since`, the image's version when the roll began, brokers that have
/// registered after it were restarted already and are left out, and the raft leader is kept for the end so that it
/// moves once; an empty order says that the roll is over. Without `since` nobody can tell when the others are through,
/// so the raft leader takes its turn like everybody. Brokers that are not active are not offered.
pub fn restart_order(image: &MetadataImage, leader: Option<BrokerId>, since: Option<ImageVersion>) -> Vec<BrokerId> {
    let is_old = |epoch: BrokerEpoch| since.is_none_or(|since| u64::try_from(epoch.0).is_ok_and(|e| e <= since.0));
    let mut order: Vec<_> = image.active_brokers().filter(|broker| is_old(broker.epoch)).collect();
    order.sort_by_key(|broker| (since.is_some() && leader == Some(broker.id), broker.epoch));
    order.into_iter().map(|broker| broker.id).collect()
}

#[cfg(test)]
#[path = "restart_tests.rs"]
mod tests;
