//! The admin API is asked while trouble lasts, and its answers are held against the truth of that moment: what it says of
//! partitions and brokers, and what an election would cost. The restart gate has a file of its own (`gate.rs`).

use highwater_admin::LiveReplica;
use highwater_admin::answers::{LiveMap, partition_counts, partition_states, plan_unclean, trouble_codes};
use highwater_data::replica::message::{Outbox, ReplicaReply, ReplicaRequest};
use highwater_quorum::image::{BrokerState, ChangeKind, PartitionChange, PartitionState};
use highwater_wire::{BrokerId, TopicPartition};

use super::World;
use super::invariants::{Verdict, must};

impl World {
    /// Asks whenever the metadata has changed.
    pub(super) fn question_the_admin(&mut self) {
        let version = self.quorum.image.version;
        if self.questioned == version || self.core.violation.is_some() {
            return;
        }
        self.questioned = version;
        let verdict = self.what_health_says().and_then(|()| self.what_elections_would_cost());
        self.core.check(verdict);
    }

    /// `state` and `health`: the words say what is so, of every partition and every broker.
    fn what_health_says(&self) -> Verdict {
        let image = &self.quorum.image;
        let (mut offline, mut under_min_isr, mut under_replicated) = (0, 0, 0);
        for (at, topic, state) in image.partitions() {
            let Some(book) = self.core.book.partitions.get(&at) else { continue };
            let words = partition_states(state, topic.config.min_isr);
            let facts = [
                ("OFFLINE", state.leader.is_none()),
                ("ONLINE", state.leader.is_some()),
                ("UNDER_MIN_ISR", state.isr.len() < book.min_isr),
                ("AT_MIN_ISR", state.isr.len() == book.min_isr),
                ("UNDER_REPLICATED", state.isr.len() < state.replicas.len()),
            ];
            for (word, holds) in facts {
                must(words.contains(&word) == holds, "state", || {
                    format!("{at} is said to be {words:?}; {word} is {holds}: {state:?}")
                })?;
            }
            offline += usize::from(state.leader.is_none());
            under_min_isr += usize::from(state.isr.len() < book.min_isr);
            under_replicated += usize::from(state.isr.len() < state.replicas.len());
        }
        let counts = partition_counts(image);
        let said = (counts.offline, counts.under_min_isr, counts.under_replicated);
        must(said == (offline, under_min_isr, under_replicated), "health", || {
            format!(
                "health counts {counts:?}; without leader {offline}, below min ISR {under_min_isr}, not full {under_replicated}"
            )
        })?;
        let codes = trouble_codes(image);
        let with_state = |state| image.brokers.values().any(|broker| broker.state == state);
        let facts = [
            ("OFFLINE", offline > 0),
            ("UNDER_MIN_ISR", under_min_isr > 0),
            ("UNDER_REPLICATED", under_replicated > 0),
            ("BROKER_FENCED", with_state(BrokerState::Fenced)),
            ("BROKER_SHUTTING_DOWN", with_state(BrokerState::ShuttingDown)),
            ("NO_ACTIVE_BROKER", image.active_brokers().next().is_none()),
        ];
        for (code, holds) in facts {
            must(codes.contains(&code) == holds, "health", || format!("health says {codes:?}; {code} is {holds}"))?;
        }
        Ok(())
    }

    /// Where nobody leads: the plan of an unclean election tells no greater loss than there would be.
    fn what_elections_would_cost(&mut self) -> Verdict {
        let nobody_leads = self.quorum.image.partitions().filter(|(_, _, state)| state.leader.is_none());
        let partitions: Vec<_> = nobody_leads.map(|(at, _, _)| at).collect();
        partitions.into_iter().try_for_each(|at| self.what_it_would_cost(at, None))
    }

    /// The same of one partition, and of a leader that is named.
    pub(super) fn what_it_would_cost(&mut self, at: TopicPartition, leader: Option<BrokerId>) -> Verdict {
        let live = self.live_replicas(at);
        let reported = self.quorum.reported_watermark(at);
        let now_ms = self.core.wall().0;
        let Some(plan) = plan_unclean(&self.quorum.image, at, leader, live, reported, now_ms) else { return Ok(()) };
        let chosen = plan.election.leader;
        let Some(partition) = self.core.book.partitions.get(&at) else { return Ok(()) };
        let Some(replica) = partition.replicas.get(&chosen) else { return Ok(()) };
        let real = partition.lost_with(replica);
        must(plan.records_lost.is_none_or(|said| said as i64 <= real), "D12", || {
            format!(
                "{at}: the plan says that {chosen} would lose {:?} records at least; in truth {real} ({plan:?}), of {} \
                 committed, {} not told yet",
                plan.records_lost,
                partition.committed.end(),
                partition.lines.untold
            )
        })
    }

    /// What the replicas of a partition say of themselves, as far as their brokers answer.
    fn live_replicas(&mut self, at: TopicPartition) -> LiveMap {
        let now = self.core.clock();
        let Some(state) = self.quorum.image.partition(at) else { return LiveMap::new() };
        let mut live = LiveMap::new();
        for broker in &state.replicas {
            let node = self.nodes.get_mut(broker).filter(|node| !node.paused);
            let hosted = node.and_then(|node| node.process.as_mut()).and_then(|process| process.hosted.get_mut(&at));
            let Some(hosted) = hosted else { continue };
            if let ReplicaReply::Status(status) = hosted.replica.handle(ReplicaRequest::Status, now, &mut Outbox::new())
            {
                live.insert((*broker, at), LiveReplica::from(&*status));
            }
        }
        live
    }

    /// Everything has healed: then nothing is said to be wrong.
    pub(super) fn admin_says_that_all_is_well(&self) -> Verdict {
        let led = self.quorum.image.partitions().all(|(_, _, state)| state.leader.is_some());
        let codes = trouble_codes(&self.quorum.image);
        must(codes.is_empty() || !led, "health", || format!("all has healed, and health says {codes:?}"))
    }
}

/// `history`: what stands in it of one entry leads from the state before to the state after, and nothing else changed.
pub fn history_tells(
    at: TopicPartition,
    before: &PartitionState,
    after: &PartitionState,
    told: &[&PartitionChange],
) -> Verdict {
    let (mut isr, mut leader) = (before.isr.clone(), before.leader);
    for change in told {
        match &change.kind {
            ChangeKind::Shrink { before, after, .. } | ChangeKind::Expand { before, after, .. } => {
                must(*before == isr, "history", || {
                    format!("{at}: a change of the ISR {isr:?} is told as one of {before:?}: {change:?}")
                })?;
                isr.clone_from(after);
            }
            ChangeKind::Leader { before, .. } => {
                must(*before == leader, "history", || {
                    format!("{at}: the end of {leader:?} as leader is told as that of {before:?}: {change:?}")
                })?;
                leader = change.leader;
            }
            ChangeKind::DataLoss { .. } => {}
        }
        let epochs = before.partition_epoch.next()..=after.partition_epoch;
        must(epochs.contains(&change.partition_epoch), "history", || {
            format!("{at}: told of partition epoch {}, not of {epochs:?}", change.partition_epoch)
        })?;
    }
    must(isr == after.isr && leader == after.leader, "history", || {
        format!(
            "{at}: ISR {:?} to {:?}, leader {:?} to {:?} is told as {told:?}",
            before.isr, after.isr, before.leader, after.leader
        )
    })?;
    let elected = told.iter().any(|change| matches!(change.kind, ChangeKind::Leader { .. }));
    must(elected == (before.leader_epoch != after.leader_epoch), "history", || {
        format!("{at}: leader epoch {} to {} is told as {told:?}", before.leader_epoch, after.leader_epoch)
    })
}
