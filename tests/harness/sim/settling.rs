//! After the faults: everything is healed, and everything has to come back (L1–L4), whole and equal.

use highwater_quorum::image::BrokerState;
use highwater_wire::{Millis, TopicPartition};

use super::World;
use super::core::Event;
use super::invariants::{Verdict, must};
use super::network::Weather;

impl World {
    /// Ends all trouble: the network is calm, every broker runs, the controller answers.
    pub fn heal(&mut self) {
        if self.core.violation.is_some() {
            return;
        }
        self.core.healed = true;
        self.core.trace.line(self.core.now, || "everything is healed".to_owned());
        self.core.net.weather = Weather { delay: self.core.swarm.weather.delay.min(1_000), ..Weather::calm() };
        for (at, packet) in self.core.net.mend_all(self.core.now) {
            self.core.at(at, Event::Deliver(Box::new(packet)));
        }
        if self.quorum.is_out() {
            self.quorum.come_back(&mut self.core);
        }
        let brokers: Vec<_> = self.nodes.keys().copied().collect();
        for broker in brokers {
            self.resume(broker);
            self.release_images(broker);
            if !self.nodes[&broker].is_up() {
                self.core.after(1_000, Event::Start { broker });
            }
        }
        self.settle_losses();
        self.workload.quiet = true;
    }

    /// How long everything may take to come back: two sessions and ten seconds, and what the lag limit adds.
    pub fn patience(&self) -> Millis {
        Millis(2 * self.core.swarm.session_ms + 2 * self.core.swarm.lag_ms + 40_000)
    }

    /// Every broker is active, every partition that may has a leader, a full ISR, and equal logs up to the watermark.
    pub fn isr_is_full(&self) -> Result<(), String> {
        for (id, node) in &self.nodes {
            let registered = self.quorum.image.brokers.get(id);
            let serves = node.process.as_ref().is_some_and(|p| p.phase == super::node::Phase::Serving);
            if !serves || registered.is_none_or(|b| b.state != BrokerState::Active) {
                return Err(format!("broker {id} does not serve: {registered:?}"));
            }
        }
        if self.workload.under_way() > 0 {
            return Err(format!("{} batches wait for an answer", self.workload.under_way()));
        }
        for topic in self.quorum.image.topics.values() {
            for (number, state) in (0i32..).zip(&topic.partitions) {
                let at = TopicPartition::new(topic.id, number);
                let Some(leader) = state.leader else {
                    if self.is_within_promise(at) {
                        return Err(format!("{at} has no leader: {state:?}"));
                    }
                    continue;
                };
                if state.isr.len() != state.replicas.len() {
                    return Err(format!("{at}: ISR {:?} of {:?}", state.isr, state.replicas));
                }
                let Some(end) = self.replica(leader, at).map(|r| r.log().view().end) else {
                    return Err(format!("{at}: leader {leader} does not host it"));
                };
                for &broker in &state.replicas {
                    let Some(replica) = self.replica(broker, at) else {
                        return Err(format!("{at} is not hosted by {broker}"));
                    };
                    let (ends, watermark) = (replica.log().view().end, replica.replication().high_watermark());
                    if ends != end || watermark != end {
                        return Err(format!(
                            "{at} on {broker}: end {ends}, watermark {watermark}, the leader's end {end}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// The last look: all replicas of a partition hold the same, and everything committed is read (H1, L3).
    pub fn scan(&mut self) {
        if self.core.violation.is_none() {
            let verdict = self.scan_all().and_then(|()| self.admin_says_that_all_is_well());
            self.core.check(verdict);
        }
    }

    fn scan_all(&self) -> Verdict {
        for (at, partition) in &self.core.book.partitions {
            let Some(state) = self.quorum.image.partition(*at) else { continue };
            if state.leader.is_none() {
                continue;
            }
            for broker in &state.isr {
                must(partition.is_complete(*broker), "H1", || {
                    format!("{at}: {broker} lacks what was committed up to {}", partition.committed.end())
                })?;
                let replica = &partition.replicas[broker];
                let agreed = replica.mirror.agrees_up_to(&partition.committed, partition.committed.end());
                must(agreed == replica.mirror.end() || replica.mirror.origin >= agreed, "L3", || {
                    format!("{at} on {broker}: agrees up to {agreed}, ends at {}", replica.mirror.end())
                })?;
            }
        }
        Ok(())
    }
}
