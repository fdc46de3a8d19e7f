//! What goes wrong, when, and how much of it may: every kind has its own clock, drawn by the swarm.

use highwater_wire::{BrokerId, TopicPartition};

use super::World;
use super::book::PartitionBook;
use super::core::{Blow, Event, Fault, Join};
use super::deeds::Deed;
use super::network::Place;
use super::node::End;
use super::swarm::{Budget, Gaps};

/// µs between two looks at missing topics.
const TOPIC_LOOK: u64 = 400_000;

fn gap_of(gaps: &Gaps, delete: u64, fault: Fault) -> u64 {
    match fault {
        Fault::Kill => gaps.kill,
        Fault::Power => gaps.power,
        Fault::Wipe => gaps.wipe,
        Fault::Stop => gaps.stop,
        Fault::Pause => gaps.pause,
        Fault::Cut => gaps.cut,
        Fault::Isolate => gaps.isolate,
        Fault::Suspicion => gaps.suspicion,
        Fault::ControllerOut => gaps.controller_out,
        Fault::ControllerChange => gaps.controller_change,
        Fault::HoldImages => gaps.image_hold,
        Fault::Reset => gaps.reset,
        Fault::DiskError => gaps.disk_error,
        Fault::Preferred => gaps.preferred,
        Fault::Double => gaps.double,
        Fault::DeleteTopic => delete,
        Fault::Mend { .. } | Fault::End { .. } | Fault::ReleaseImages(_) | Fault::Struck { .. } | Fault::MakeTopics => {
            0
        }
    }
}

const KINDS: [Fault; 16] = [
    Fault::Kill,
    Fault::Power,
    Fault::Wipe,
    Fault::Stop,
    Fault::Pause,
    Fault::Cut,
    Fault::Isolate,
    Fault::Suspicion,
    Fault::ControllerOut,
    Fault::ControllerChange,
    Fault::HoldImages,
    Fault::Reset,
    Fault::DiskError,
    Fault::Preferred,
    Fault::Double,
    Fault::DeleteTopic,
];

/// Whether a broker holds, or is to hold, a replica.
fn is_assigned(partition: &PartitionBook, broker: BrokerId) -> bool {
    partition.quorum.as_ref().is_some_and(|state| state.replicas.contains(&broker))
}

impl World {
    pub(super) fn schedule_faults(&mut self) {
        self.core.after(TOPIC_LOOK, Event::Fault(Fault::MakeTopics));
        if self.core.ledger.is_scripted() {
            return;
        }
        for kind in KINDS {
            self.schedule(kind, 2_000_000);
        }
    }

    fn schedule(&mut self, kind: Fault, not_before: u64) {
        let gap = gap_of(&self.core.swarm.gaps, self.core.swarm.delete_gap_ms, kind);
        if gap > 0 && !self.core.healed {
            let delay = not_before + self.rng.around(gap * 1_000);
            self.core.after(delay, Event::Fault(kind));
        }
    }

    /// The time of a fault has come.
    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::MakeTopics => return self.make_topics(),
            Fault::Mend { from, to } => return self.mend(from, to),
            Fault::ReleaseImages(broker) => return self.release_images(broker),
            _ if self.core.healed => return,
            Fault::End { broker, end, restart_after } => return self.end(broker, end, restart_after),
            Fault::Struck { join, at, blow } => return self.strike(join, at, blow),
            _ => {}
        }
        match fault {
            Fault::Kill => self.kill(),
            Fault::Power => self.end_some(End::PowerLoss),
            Fault::Wipe => self.end_some(End::Wiped),
            Fault::Stop => self.stop(),
            Fault::Pause => self.pause(),
            Fault::Cut => self.cut(),
            Fault::Isolate => self.isolate(),
            Fault::Suspicion => {
                if let Some(broker) = self.pick_up()
                    && !self.quorum.is_out()
                {
                    self.deed(Deed::Suspect { broker });
                }
            }
            Fault::ControllerOut => {
                let for_us = self.rng.around(self.core.swarm.gaps.controller_out_ms * 1_000);
                self.deed(Deed::ControllerOut { for_us });
            }
            Fault::ControllerChange => self.deed(Deed::ControllerChange),
            Fault::HoldImages => {
                if let Some(broker) = self.pick_up() {
                    let for_us = self.rng.around(self.core.swarm.gaps.image_hold_ms * 1_000);
                    self.deed(Deed::HoldImages { broker, for_us });
                }
            }
            Fault::Reset => self.reset_some(),
            Fault::DiskError => {
                if let Some(broker) = self.pick_up() {
                    let (sync, more) = (self.core.rng.chance(500), self.core.rng.below(3));
                    self.deed(Deed::FailDisk { broker, sync, more, back_us: None });
                }
            }
            Fault::Preferred => self.deed(Deed::Elect),
            Fault::Double => self.double(),
            Fault::DeleteTopic => {
                let topic = self.rng.below(self.core.swarm.topics.len() as u64) as usize;
                self.deed(Deed::DeleteTopic { topic });
            }
            Fault::Mend { .. }
            | Fault::End { .. }
            | Fault::ReleaseImages(_)
            | Fault::Struck { .. }
            | Fault::MakeTopics => {}
        }
        self.schedule(fault, 0);
    }

    fn up(&self) -> Vec<BrokerId> {
        self.nodes.values().filter(|n| n.is_up()).map(|n| n.id).collect()
    }

    fn pick_up(&mut self) -> Option<BrokerId> {
        let up = self.up();
        self.rng.pick(&up).copied()
    }

    /// Leaders are the more interesting victims.
    fn pick_victim(&mut self) -> Option<BrokerId> {
        let leaders: Vec<BrokerId> = self
            .quorum
            .image
            .topics
            .values()
            .flat_map(|t| t.partitions.iter().filter_map(|p| p.leader))
            .filter(|id| self.nodes.get(id).is_some_and(super::node::Node::is_up))
            .collect();
        if self.rng.chance(500) { self.rng.pick(&leaders).copied() } else { None }.or_else(|| self.pick_up())
    }

    fn restart_time(&mut self) -> u64 {
        self.rng.around(self.core.swarm.restart_ms * 1_000)
    }

    fn kill(&mut self) {
        let Some(broker) = self.pick_victim() else { return };
        let restart_after = self.restart_time();
        if self.rng.chance(350) {
            // In the middle of a write: the end comes with the next one.
            let (more, torn) = (self.core.rng.below(4), self.core.rng.below(256) as u8);
            return self.deed(Deed::Doom { broker, more, torn, back_us: None });
        }
        self.end(broker, End::Killed, restart_after);
    }

    fn end_some(&mut self, end: End) {
        let Some(broker) = self.pick_victim() else { return };
        let restart_after = self.restart_time();
        self.end(broker, end, restart_after);
    }

    /// Ends a broker if the budget has room for what it would lose.
    fn end(&mut self, broker: BrokerId, end: End, back_us: u64) {
        if !self.may_end(broker, end) {
            return;
        }
        let keeps = (end == End::PowerLoss && !self.core.rng.chance(400)).then(|| self.core.rng.next_u64());
        self.deed(Deed::End { broker, end, back_us, keeps });
    }

    pub(super) fn may_end(&mut self, broker: BrokerId, end: End) -> bool {
        let loses = matches!(end, End::PowerLoss | End::Wiped);
        self.nodes.get(&broker).is_some_and(super::node::Node::is_up) && (!loses || self.may_lose(broker))
    }

    /// What a broker holds does not count any more, until it is in the ISR again.
    pub(super) fn note_lossy(&mut self, broker: BrokerId) {
        let assigned = self.core.book.partitions.iter().filter(|(_, partition)| is_assigned(partition, broker));
        self.lossy.extend(assigned.map(|(&at, _)| (at, broker)));
    }

    /// Of topics that are gone.
    pub(super) fn forget_losses_of_deleted(&mut self) {
        self.lossy.retain(|(at, _)| self.core.book.partitions.contains_key(at));
    }

    /// After an unclean election only its leader holds what counts, until others have caught up with it.
    pub(super) fn note_unclean_elections(&mut self) {
        while let Some(at) = self.core.book.elected_uncleanly.pop() {
            let Some(state) = self.quorum.image.partition(at) else { continue };
            if state.leader.is_some_and(|id| self.lossy.contains(&(at, id)) && self.lost_unheard(id)) {
                // Its records were gone when it was elected, and its registration will say so.
                self.beyond.insert(at);
            }
            let others = state.replicas.iter().filter(|id| state.leader != Some(**id));
            self.lossy.extend(others.map(|id| (at, *id)));
        }
    }

    /// Members that lost something and have caught up since count no more.
    pub(super) fn settle_losses(&mut self) {
        let (nodes, quorum) = (&self.nodes, &self.quorum);
        self.lossy.retain(|(at, broker)| {
            let Some(state) = quorum.image.partition(*at) else { return false };
            let up = nodes.get(broker).is_some_and(super::node::Node::is_up);
            let epoch = nodes.get(broker).and_then(|n| n.process.as_ref()).and_then(|p| p.epoch);
            let registered = epoch.is_some() && quorum.image.brokers.get(broker).map(|b| b.epoch) == epoch;
            !(up && registered && state.isr.contains(broker))
        });
        let lossy = &self.lossy;
        self.beyond.retain(|at| lossy.iter().any(|(partition, _)| partition == at));
    }

    pub(super) fn may_lose(&mut self, broker: BrokerId) -> bool {
        self.settle_losses();
        let budget = self.core.swarm.budget;
        if budget == Budget::None {
            return true;
        }
        self.core.book.partitions.iter().filter(|(_, p)| is_assigned(p, broker)).all(|(at, partition)| {
            let lossy = |id: &BrokerId| *id == broker || self.lossy.contains(&(*at, *id));
            match budget {
                Budget::Strict => {
                    let replicas = partition.quorum.iter().flat_map(|state| &state.replicas);
                    replicas.filter(|id| lossy(id)).count() < partition.promised
                }
                _ => partition.members().iter().any(|id| !lossy(id)),
            }
        })
    }

    fn stop(&mut self) {
        let Some(broker) = self.pick_victim() else { return };
        self.deed(Deed::Stop { broker, back_us: None });
    }

    fn pause(&mut self) {
        let Some(broker) = self.pick_victim() else { return };
        if self.nodes.get(&broker).is_some_and(|node| !node.paused) {
            let for_us = self.rng.around(self.core.swarm.gaps.pause_ms * 1_000);
            self.deed(Deed::Pause { broker, for_us });
        }
    }

    fn some_place(&mut self) -> Place {
        let brokers = self.core.swarm.brokers as u64;
        let drawn = self.rng.within(1, brokers + 1);
        if drawn > brokers { Place::Controller } else { Place::Broker(drawn as i32) }
    }

    fn cut(&mut self) {
        let (from, to) = (self.some_place(), self.some_place());
        let for_us = self.rng.around(self.core.swarm.gaps.cut_ms * 1_000);
        if from != to {
            self.deed(Deed::Cut { from, to, for_us });
        }
    }

    fn isolate(&mut self) {
        let Some(broker) = self.pick_victim() else { return };
        let for_us = self.rng.around(self.core.swarm.gaps.cut_ms * 1_000);
        let both_ways = self.rng.chance(600);
        self.deed(Deed::Isolate { broker, both_ways, for_us });
    }

    pub(super) fn mend(&mut self, from: Place, to: Place) {
        for (at, packet) in self.core.net.mend(self.core.now, from, to) {
            self.core.at(at, Event::Deliver(Box::new(packet)));
        }
        if let (Place::Controller, Place::Broker(id)) = (from, to) {
            self.hand_image(BrokerId(id));
        }
    }

    pub(super) fn release_images(&mut self, broker: BrokerId) {
        if let Some(node) = self.nodes.get_mut(&broker) {
            node.images_held = false;
        }
        self.hand_image(broker);
    }

    fn hand_image(&mut self, broker: BrokerId) {
        if let Some(image) = self.nodes.get_mut(&broker).and_then(|n| n.waiting_image.take()) {
            self.core.after(0, Event::Image { broker, image });
        }
    }

    fn reset_some(&mut self) {
        let links: Vec<_> =
            (1..=self.core.swarm.brokers).flat_map(|id| self.core.net.links_of(Place::Broker(id))).collect();
        if let Some(&link) = self.rng.pick(&links) {
            self.deed(Deed::Reset { from: link.from, to: link.to });
        }
    }

    /// Several brokers one shortly after the other, in any of the ways, with another controller in between: the
    /// classic ways to lose acknowledged records.
    fn double(&mut self) {
        let mut up = self.up();
        let count = self.rng.within(2, 3).min(up.len() as u64);
        let mut at = 0;
        let back = self.restart_time();
        for _ in 0..count {
            let index = self.rng.below(up.len() as u64) as usize;
            let broker = up.swap_remove(index);
            let end = match self.rng.below(5) {
                0 | 1 => End::Killed,
                2 | 3 => End::PowerLoss,
                _ => End::Wiped,
            };
            let restart_after =
                if self.rng.chance(500) { self.rng.around(back) } else { self.rng.within(1_000, 300_000) };
            self.core.after(at, Event::Fault(Fault::End { broker, end, restart_after }));
            if self.rng.chance(400) {
                self.core.after(at + 1, Event::Fault(Fault::ControllerChange));
            }
            at += self.rng.log_within(1_000, 4_000_000);
        }
    }

    /// What goes wrong while followers join: each of it alone seldom does harm, all of it together may.
    pub(super) fn strike_joins(&mut self) {
        while let Some(join) = self.core.joins.pop() {
            let strikes = self.core.swarm.strikes.clone();
            self.strike_as_written(join);
            if self.core.healed || self.core.ledger.is_scripted() || !self.rng.chance(strikes.joins) {
                continue;
            }
            let Join { leader, joiner } = join;
            let at = self.core.now;
            let late_us = self.rng.around(strikes.late_ms * 1_000);
            if self.rng.chance(strikes.late) {
                self.deed_of(join, at, Deed::Neglect { broker: leader, for_us: late_us });
            }
            let end_at = self.rng.within(0, late_us / 2);
            let later = |world: &mut Self, after, blow| {
                world.core.after(after, Event::Fault(Fault::Struck { join, at, blow }));
            };
            if self.rng.chance(strikes.joiner) {
                let end = *self.rng.pick(&[End::Killed, End::PowerLoss, End::Wiped]).expect("three");
                let restart_after = self.rng.within(1_000, 400_000);
                later(self, end_at, Blow::End { broker: joiner, end, restart_after });
            }
            if self.rng.chance(strikes.unheard) {
                let (from, to) = (Place::Broker(joiner.0), Place::Broker(leader.0));
                let for_us = end_at + self.rng.around(strikes.late_ms * 1_000);
                self.deed_of(join, at, Deed::Cut { from, to, for_us });
            }
            if self.rng.chance(strikes.election) {
                let after = self.rng.log_within(1_000, 2_000_000);
                let restart_after = self.restart_time();
                let blow = if self.rng.chance(500) {
                    Blow::Elect
                } else {
                    Blow::End { broker: leader, end: End::Killed, restart_after }
                };
                later(self, after, blow);
            }
        }
    }

    /// The later part of a strike.
    fn strike(&mut self, join: Join, at: u64, blow: Blow) {
        match blow {
            Blow::End { broker, end, restart_after } => {
                self.core.ledger.struck = Some((join, at));
                self.end(broker, end, restart_after);
                self.core.ledger.struck = None;
            }
            Blow::Elect => self.deed_of(join, at, Deed::Elect),
        }
    }

    fn make_topics(&mut self) {
        self.core.after(TOPIC_LOOK, Event::Fault(Fault::MakeTopics));
        for number in 0..self.core.swarm.topics.len() {
            if self.quorum.image.topic_named(&format!("topic{number}")).is_none()
                && self.quorum.create_topic(&mut self.core, number)
            {
                self.note_losses_before(number);
            }
        }
    }

    /// The quorum may place a new topic on a broker of which it does not know yet that it lost everything.
    pub(super) fn note_losses_before(&mut self, number: usize) {
        let Some(topic) = self.quorum.image.topic_named(&format!("topic{number}")) else { return };
        for (partition, state) in (0i32..).zip(&topic.partitions) {
            let at = TopicPartition::new(topic.id, partition);
            let lost: Vec<BrokerId> = state.replicas.iter().filter(|id| self.lost_unheard(**id)).copied().collect();
            if self.core.book.partitions.get(&at).is_some_and(|p| lost.len() >= p.promised) {
                self.beyond.insert(at);
            }
            self.lossy.extend(lost.into_iter().map(|id| (at, id)));
        }
    }

    /// It lost what it held, and the quorum has not heard of that.
    fn lost_unheard(&self, id: BrokerId) -> bool {
        let Some(node) = self.nodes.get(&id).filter(|node| node.lossy) else { return false };
        let incarnation = self.quorum.image.broker(id).map(|broker| broker.incarnation);
        node.process.as_ref().is_none_or(|process| Some(process.incarnation) != incarnation)
    }

    /// Where min ISR was lowered while as many members as it names have lost what they held, unheard, they may be the only
    /// ones left to lead: the others are no longer waited for.
    pub(super) fn note_lowered_promises(&mut self) {
        while let Some(at) = self.core.book.promised_less.pop() {
            let Some(partition) = self.core.book.partitions.get(&at) else { continue };
            let lost = |id: &BrokerId| self.lossy.contains(&(at, *id)) && self.lost_unheard(*id);
            let lost = partition.members().iter().filter(|id| lost(id)).count();
            if lost > 0 && lost >= partition.promised {
                self.beyond.insert(at);
            }
        }
    }

    /// Not more was lost of it at once than is promised to survive.
    pub(super) fn is_within_promise(&self, at: TopicPartition) -> bool {
        self.core.swarm.budget == Budget::Strict && !self.beyond.contains(&at)
    }
}
