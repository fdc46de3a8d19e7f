//! The operator: a person, or a script, who gives orders at any time – in the middle of trouble too – and each order leaves
//! the cluster as it promises to. Every kind of act has its own clock, drawn by the swarm.

use highwater_quorum::controller::ElectionKind;
use highwater_wire::{BrokerId, TopicPartition};

use super::World;
use super::core::Event;
use super::deeds::{Deed, Spot};
use super::rng::Rng;
use super::swarm::Acts;

/// The operator's place in the network.
pub const OPERATOR: u32 = 900;

/// A kind of act whose time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    DeleteRecords,
    ElectClean,
    ElectUnclean,
    Designate,
    Unregister,
    AddPartitions,
    AlterConfig,
}

const ACTS: [Act; 7] = [
    Act::DeleteRecords,
    Act::ElectClean,
    Act::ElectUnclean,
    Act::Designate,
    Act::Unregister,
    Act::AddPartitions,
    Act::AlterConfig,
];

/// More partitions a topic does not get.
pub const PARTITIONS_MAX: usize = 5;

fn gap_of(acts: &Acts, act: Act) -> u64 {
    match act {
        Act::DeleteRecords => acts.delete_records,
        Act::ElectClean => acts.elect_clean,
        Act::ElectUnclean => acts.elect_unclean,
        Act::Designate => acts.designate,
        Act::Unregister => acts.unregister,
        Act::AddPartitions => acts.add_partitions,
        Act::AlterConfig => acts.alter_config,
    }
}

/// Chooses what is done to whom.
pub struct Operator {
    rng: Rng,
}

impl Operator {
    pub fn new(rng: Rng) -> Self {
        Self { rng }
    }
}

impl World {
    pub(super) fn schedule_acts(&mut self) {
        if self.core.ledger.is_scripted() {
            return;
        }
        for act in ACTS {
            self.schedule_act(act, 2_000_000);
        }
    }

    fn schedule_act(&mut self, act: Act, not_before: u64) {
        let gap = gap_of(&self.core.swarm.acts, act);
        if gap > 0 && !self.core.healed {
            let delay = not_before + self.operator.rng.around(gap * 1_000);
            self.core.after(delay, Event::Act(act));
        }
    }

    /// The time of an act has come.
    pub(super) fn act(&mut self, act: Act) {
        if self.core.healed {
            return;
        }
        match act {
            Act::DeleteRecords => self.delete_records(),
            Act::ElectClean => self.elect_where_nobody_leads(ElectionKind::Clean),
            Act::ElectUnclean => self.elect_where_nobody_leads(ElectionKind::Unclean),
            Act::Designate => self.designate(),
            Act::Unregister => self.unregister(),
            Act::AddPartitions => self.add_partitions(),
            Act::AlterConfig => self.alter_config(),
        }
        self.schedule_act(act, 0);
    }

    /// Some partition, in the words of the quorum.
    fn some_partition(&mut self) -> Option<TopicPartition> {
        let all: Vec<_> = self.quorum.image.partitions().map(|(at, _, _)| at).collect();
        self.operator.rng.pick(&all).copied()
    }

    /// Everything committed, a part of it, or more than there is; of whoever leads, or of somebody else by mistake.
    fn delete_records(&mut self) {
        let Some(at) = self.some_partition() else { return };
        let Some(book) = self.core.book.partitions.get(&at) else { return };
        let (committed, deleted) = (book.max_high_watermark(), book.deleted_to);
        let Some(state) = self.quorum.image.partition(at).cloned() else { return };
        let rng = &mut self.operator.rng;
        let leader = if rng.chance(950) { state.leader } else { rng.pick(&state.replicas).copied() };
        let Some(leader) = leader else { return };
        let before = match rng.below(10) {
            0..=2 => None,
            3 => Some(committed + rng.within(1, 20) as i64),
            4 => Some(deleted),
            _ => Some(rng.within(deleted.max(0) as u64, committed.max(deleted) as u64) as i64),
        };
        let timeout_ms = rng.log_within(200, 8_000);
        if let Some(at) = self.spot_of(at) {
            self.deed(Deed::DeleteRecords { at, leader, before, timeout_ms });
        }
    }

    /// A partition by the number of its topic.
    fn spot_of(&self, at: TopicPartition) -> Option<Spot> {
        let name = &self.quorum.image.topics.get(&at.topic)?.name;
        Some((name.strip_prefix("topic")?.parse().ok()?, at.partition))
    }

    fn elect_where_nobody_leads(&mut self, kind: ElectionKind) {
        let nobody_leads = self.quorum.image.partitions().filter(|(_, _, state)| state.leader.is_none());
        let mut partitions: Vec<_> = nobody_leads.map(|(at, _, _)| at).collect();
        partitions.retain(|_| self.operator.rng.chance(700));
        let partitions: Vec<Spot> = partitions.into_iter().filter_map(|at| self.spot_of(at)).collect();
        if !partitions.is_empty() && !self.quorum.is_out() {
            self.deed(Deed::ElectWhereNobodyLeads { unclean: kind == ElectionKind::Unclean, partitions });
        }
    }

    /// Names the leader of a partition: in sync or not, with the word that records may be lost or without, in knowledge of the
    /// present epochs or of older ones.
    fn designate(&mut self) {
        let Some(at) = self.some_partition() else { return };
        let Some(state) = self.quorum.image.partition(at).cloned() else { return };
        let at_a_loss = self.core.swarm.acts.designate_at_a_loss;
        let rng = &mut self.operator.rng;
        let accept_loss = rng.chance(at_a_loss);
        let in_sync = if state.isr.len() > 1 && rng.chance(600) { &state.isr } else { &state.replicas };
        let Some(&leader) = rng.pick(in_sync) else { return };
        let behind = i32::from(rng.chance(100));
        let epochs_behind = rng.chance(500).then_some(behind);
        let with_watermark = rng.chance(500);
        if let Some(at) = self.spot_of(at).filter(|_| !self.quorum.is_out()) {
            self.deed(Deed::Designate { at, leader, accept_loss, epochs_behind, with_watermark });
        }
    }

    /// Forgets a broker that takes no part, or asks to forget one that does, which is refused. Nobody waits for its records
    /// any more: as if they were lost.
    fn unregister(&mut self) {
        let known: Vec<BrokerId> = self.quorum.image.brokers.keys().copied().collect();
        let away = |id: &&BrokerId| self.quorum.image.broker(**id).is_some_and(|broker| !broker.is_active());
        let mut fit: Vec<BrokerId> = known.iter().filter(away).copied().collect();
        if fit.is_empty() && self.operator.rng.chance(50) {
            fit = known;
        }
        let Some(&broker) = self.operator.rng.pick(&fit) else { return };
        self.deed(Deed::Unregister { broker });
    }

    /// More partitions for a topic; now and then by the number of partitions that it had once, which is refused or has been
    /// done already. Those that exist are not touched.
    fn add_partitions(&mut self) {
        let topic = self.operator.rng.below(self.core.swarm.topics.len() as u64) as usize;
        if self.quorum.image.topic_named(&format!("topic{topic}")).is_none() {
            return;
        }
        let rng = &mut self.operator.rng;
        let more = rng.within(1, 2) as usize;
        let (late, seed) = (rng.chance(100), rng.next_u64());
        self.deed(Deed::AddPartitions { topic, more, late, seed });
    }

    /// Sets one key of a topic, or puts it back to its default.
    fn alter_config(&mut self) {
        let topic = self.operator.rng.below(self.core.swarm.topics.len() as u64) as usize;
        if self.quorum.image.topic_named(&format!("topic{topic}")).is_none() {
            return;
        }
        let min_isr = self.core.swarm.acts.alter_min_isr;
        let rng = &mut self.operator.rng;
        let (key, value) = if rng.chance(min_isr) {
            ("min.insync.replicas", rng.within(1, 3).to_string())
        } else {
            match rng.below(6) {
                0 | 1 => ("unclean.leader.election.enable", rng.chance(400).to_string()),
                2 => ("retention.ms", rng.log_within(2_000, 60_000).to_string()),
                3 => ("retention.bytes", rng.log_within(2_048, 16_384).to_string()),
                4 => ("segment.bytes", rng.log_within(512, 8_192).to_string()),
                _ => ("flush.messages", if rng.chance(500) { 1 } else { i64::MAX }.to_string()),
            }
        };
        let value = (!rng.chance(100)).then_some(value);
        self.deed(Deed::AlterConfig { topic, key: key.to_owned(), value });
    }
}
