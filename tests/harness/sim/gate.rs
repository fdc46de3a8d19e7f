//! What a restart really does, found by doing it on a copy of the metadata: commands through the shipped rules, nothing
//! of the gate's own reasoning (operators.md 1.4 G). Whatever the gate calls safe must do no harm here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_quorum::controller::{
    AlterPartition, Answer, Command, DataClaim, FencedBroker, IsrProposal, IsrReason, RULE_VERSION, RegisterBroker,
};
use highwater_quorum::image::{BrokerState, ExpandReason, LeaderRecovery, PartitionState, ShrinkReason};
use highwater_quorum::planner::{QuorumFacts, RestartFacts};
use highwater_quorum::{ImageVersion, MetadataImage, decide};
use highwater_wire::{BrokerId, IncarnationId, Timestamp, TopicPartition};

/// What is so, whatever the metadata says.
#[derive(Debug, Clone, Default)]
pub struct Reality {
    /// Nodes whose process runs and answers, as the one that is registered if the metadata calls it active.
    pub alive: BTreeSet<BrokerId>,
    /// ISRs that leaders have proposed and that are about to be decided.
    pub proposed: BTreeMap<TopicPartition, Vec<BrokerId>>,
    pub voters: BTreeSet<BrokerId>,
    /// Voters that lag behind although they run.
    pub lagging: BTreeSet<BrokerId>,
}

impl Reality {
    fn caught_up(&self) -> BTreeSet<BrokerId> {
        self.voters.iter().filter(|id| self.alive.contains(id) && !self.lagging.contains(id)).copied().collect()
    }

    fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// What the gate is told.
    pub fn facts(&self, leader: BrokerId) -> RestartFacts {
        let quorum = QuorumFacts {
            leader,
            voters: self.voters.clone(),
            caught_up: self.caught_up(),
            majority: self.majority(),
            joint: false,
        };
        RestartFacts { answering: self.alive.clone(), proposed: self.proposed.clone(), quorum: Some(quorum) }
    }
}

/// A copy of the metadata on which things are tried.
#[derive(Clone)]
pub struct Fork {
    pub image: MetadataImage,
}

impl Fork {
    /// Decides and applies; a refusal changes nothing.
    pub fn run(&mut self, command: &Command) -> Option<Answer> {
        let index = self.image.version.0 + 1;
        let decided = decide(&self.image, index, RULE_VERSION, command);
        self.image.version = ImageVersion(index);
        let decision = decided.ok()?;
        self.image.apply_all(&decision.changes);
        self.image.check_invariants();
        Some(decision.answer)
    }

    /// Takes brokers out as a raft leader does that has missed them.
    pub fn fence(&mut self, brokers: &[BrokerId]) {
        let fenced = brokers.iter().filter_map(|id| {
            let epoch = self.image.broker(*id)?.epoch;
            Some(FencedBroker { broker: *id, epoch, note: "silent".to_owned() })
        });
        let command = Command::FenceBrokers { brokers: fenced.collect(), watermarks: Vec::new(), time: Timestamp(1) };
        self.run(&command);
    }

    /// The orderly stop.
    pub fn shut_down(&mut self, broker: BrokerId) {
        if let Some(epoch) = self.image.broker(broker).map(|registered| registered.epoch) {
            self.run(&Command::ShutDownBroker { broker, epoch, time: Timestamp(1) });
        }
    }

    /// The next process of a broker, with all its data, and unfenced.
    pub fn start(&mut self, broker: BrokerId, incarnation: IncarnationId) {
        let Some(before) = self.image.broker(broker).cloned() else { return };
        let registration = RegisterBroker {
            broker,
            cluster_id: self.image.cluster_id.as_deref().unwrap_or_default().to_owned(),
            incarnation,
            listeners: before.listeners.clone(),
            inter_broker_listener: before.inter_broker_listener.clone(),
            controller_url: before.controller_url.clone(),
            admin_url: before.admin_url.clone(),
            rack: before.rack.clone(),
            log_dirs: before.log_dirs.clone(),
            metadata_dir: before.metadata_dir,
            features: before.features.clone(),
            version: before.version.clone(),
            claim: DataClaim::CleanStop { epoch: before.epoch },
            previous_is_dead: true,
            time: Timestamp(1),
        };
        if let Some(Answer::Registered { epoch }) = self.run(&Command::RegisterBroker(registration)) {
            self.unfence(broker, epoch);
        }
    }

    fn unfence(&mut self, broker: BrokerId, epoch: highwater_wire::BrokerEpoch) {
        self.run(&Command::UnfenceBroker { broker, epoch, lost: Vec::new(), time: Timestamp(1) });
    }

    /// A leader proposes this ISR now, in knowledge of the present state.
    pub fn alter(&mut self, at: TopicPartition, isr: &[BrokerId]) {
        let Some(state) = self.image.partition(at).cloned() else { return };
        let Some((leader, epoch)) = state.leader.and_then(|id| Some((id, self.image.broker(id)?.epoch))) else {
            return;
        };
        let members = isr.iter().filter_map(|id| Some((*id, self.image.broker(*id)?.epoch)));
        let why = if isr.len() < state.isr.len() {
            IsrReason::Shrink(ShrinkReason::FollowerSlow)
        } else {
            IsrReason::Expand(ExpandReason::CaughtUp)
        };
        let proposal = IsrProposal {
            partition: at,
            leader_epoch: state.leader_epoch,
            partition_epoch: state.partition_epoch,
            isr: members.collect(),
            recovery: LeaderRecovery::Recovered,
            why,
            evidence: Vec::new(),
        };
        let request = AlterPartition { broker: leader, epoch, changes: vec![proposal], time: Timestamp(1) };
        self.run(&Command::AlterPartition(request));
    }

    /// A replica that takes part has caught up everywhere: its leaders admit it.
    pub fn catch_up(&mut self, broker: BrokerId) {
        let holds = |state: &PartitionState| state.replicas.contains(&broker) && !state.isr.contains(&broker);
        let behind: Vec<_> =
            self.image.partitions().filter(|(_, _, s)| holds(s)).map(|(at, _, s)| (at, s.clone())).collect();
        for (at, state) in behind {
            let mut isr = state.isr.clone();
            isr.push(broker);
            self.alter(at, &isr);
        }
    }

    /// Brings a broker to life, if it was not, and up to date.
    fn bring_back(&mut self, broker: BrokerId) {
        match self.image.broker(broker).map(|registered| (registered.state, registered.epoch)) {
            Some((BrokerState::Fenced, epoch)) => self.unfence(broker, epoch),
            Some((BrokerState::ShuttingDown, _)) => self.start(broker, IncarnationId::from_bytes([99; 16])),
            Some((BrokerState::Active, _)) | None => {}
        }
        self.catch_up(broker);
    }
}

/// What clients get of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Service {
    led: bool,
    /// acks=all succeeds.
    full_acks: bool,
}

fn service(image: &MetadataImage, at: TopicPartition) -> Service {
    let (Some(topic), Some(state)) = (image.topics.get(&at.topic), image.partition(at)) else {
        return Service { led: false, full_acks: false };
    };
    let led = state.leader.is_some();
    Service { led, full_acks: led && state.isr.len() >= state.effective_min_isr(topic.config.min_isr) }
}

/// The harm that a restart of this broker does, in words; `None`: none. Not harm are the two costs that can never be
/// avoided: a partition of one replica goes offline, and one whose min ISR is all its replicas refuses acks=all.
///
/// Two futures are compared, in which everything goes the same way but for the restart: the silent are fenced, the
/// broker stops – orderly or not – and then the others come back one by one, in every order in which that matters.
pub fn harm(image: &MetadataImage, reality: &Reality, broker: BrokerId) -> Option<String> {
    if let Some(harm) = harm_to_the_quorum(reality, broker) {
        return Some(harm);
    }
    let mut without = Fork { image: image.clone() };
    for (at, isr) in &reality.proposed {
        without.alter(*at, isr);
    }
    let silent = |id: &BrokerId| !reality.alive.contains(id);
    let active = without.image.active_brokers().map(|registered| registered.id);
    let lost: Vec<BrokerId> = active.filter(silent).collect();
    without.fence(&lost);
    // A broker that is dead, or on its way out, comes back by a restart only.
    let state = without.image.broker(broker).map(|registered| registered.state);
    let helps = !silent(&broker) && matches!(state, Some(BrokerState::Active | BrokerState::Fenced));
    [false, true].into_iter().find_map(|orderly| {
        let mut with = without.clone();
        if orderly {
            with.shut_down(broker);
        } else {
            with.fence(&[broker]);
        }
        compare(&without, &with, broker, true).or_else(|| harm_later(&without, &with, broker, helps))
    })
}

fn harm_to_the_quorum(reality: &Reality, broker: BrokerId) -> Option<String> {
    let caught_up = reality.caught_up();
    let without = caught_up.iter().filter(|id| **id != broker).count();
    let is_down = !reality.alive.contains(&broker);
    (without < reality.majority() && !is_down)
        .then(|| format!("{without} voters would be caught up, {} are a majority", reality.majority()))
}

/// The first partition that is worse off; `now`: right after the stop, when the costs that nobody can avoid are due.
fn compare(without: &Fork, with: &Fork, broker: BrokerId, now: bool) -> Option<String> {
    for (at, topic, state) in without.image.partitions().filter(|(_, _, s)| s.replicas.contains(&broker)) {
        let min_isr = state.effective_min_isr(topic.config.min_isr);
        if state.replicas.len() == 1 {
            continue;
        }
        let (fine, hurt) = (service(&without.image, at), service(&with.image, at));
        let told = |what: &str| {
            let after = with.image.partition(at).map(|s| (s.leader, s.isr.clone(), s.elr.clone()));
            Some(format!("{at} {what}: min {min_isr}, {:?} {:?} {:?} -> {after:?}", state.leader, state.isr, state.elr))
        };
        if fine.led && !hurt.led {
            return told("has no leader");
        }
        if fine.full_acks && !hurt.full_acks && !(now && min_isr == state.replicas.len()) {
            return told("refuses acks=all");
        }
        if now && state.leader == Some(broker) && state.isr == [broker] {
            return told("may lose what was acknowledged to acks=1");
        }
        let unclean =
            |image: &MetadataImage| image.partition(at).is_some_and(|s| s.recovery == LeaderRecovery::Recovering);
        if unclean(&with.image) && !unclean(&without.image) {
            return told("was given an unclean leader");
        }
    }
    None
}

/// Partitions that are in trouble come out of it later than without the restart. The broker itself catches up as soon as
/// somebody leads, the others one after the other, each of them first once.
fn harm_later(without: &Fork, with: &Fork, broker: BrokerId, helps: bool) -> Option<String> {
    let in_trouble = |fork: &Fork| {
        let mut partitions =
            fork.image.partitions().filter(|(_, _, s)| s.replicas.contains(&broker) && s.replicas.len() > 1);
        partitions.any(|(at, _, _)| !service(&fork.image, at).full_acks)
    };
    if !helps || !in_trouble(without) {
        return None;
    }
    let others: Vec<BrokerId> = without.image.brokers.keys().filter(|id| **id != broker).copied().collect();
    for first in 0..others.len() {
        let (mut fine, mut hurt) = (without.clone(), with.clone());
        fine.bring_back(broker);
        let troubled: Vec<TopicPartition> = without.image.partitions().map(|(at, _, _)| at).collect();
        for turn in 0..=others.len() {
            // What was well before is compared right after the stop; here it is what was not.
            for at in &troubled {
                let was = service(&without.image, *at);
                let (fine, hurt) = (service(&fine.image, *at), service(&hurt.image, *at));
                let holds =
                    without.image.partition(*at).is_some_and(|s| s.replicas.contains(&broker) && s.replicas.len() > 1);
                if holds && !was.full_acks && (fine.full_acks && !hurt.full_acks || fine.led && !hurt.led) {
                    let state = without.image.partition(*at);
                    return Some(format!("without the restart {at} would be served earlier: it is {state:?}"));
                }
            }
            let Some(other) = others.get((first + turn) % others.len()).filter(|_| turn < others.len()) else { break };
            fine.bring_back(*other);
            fine.catch_up(broker);
            hurt.bring_back(*other);
        }
    }
    None
}

/// What an image and the truth of a simulated world make of the gate: the first broker whose restart it calls safe and
/// that does harm.
pub fn wrongly_safe(image: &Arc<MetadataImage>, reality: &Reality) -> Option<String> {
    let leader = *reality.voters.first()?;
    let facts = reality.facts(leader);
    image.brokers.keys().find_map(|broker| {
        let verdict = highwater_quorum::planner::judge_restart(image, &facts, *broker);
        let harm = verdict.is_safe().then(|| harm(image, reality, *broker)).flatten()?;
        Some(format!("the restart of {broker} was called safe: {harm}"))
    })
}
