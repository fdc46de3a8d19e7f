//! Counts ISR changes and elections for `/metrics`, each on one node only, so that sums over nodes are right: on the
//! partition's leader after the change, or on the raft leader where there is none. Counted from the quorum's journal, which
//! misses nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_quorum::image::events::{EventId, EventKind};
use highwater_quorum::image::{ChangeKind, ExpandReason, LeaderReason, PartitionChange, ShrinkReason};
use highwater_wire::{BrokerId, Timestamp};
use metrics::{Histogram, histogram};
use parking_lot::Mutex;

use crate::AdminState;
use crate::partitions::history::{expand_reason, leader_reason, shrink_reason};

const SHRINKS: &[ShrinkReason] = &[
    ShrinkReason::FollowerStoppedFetching,
    ShrinkReason::FollowerSlow,
    ShrinkReason::BrokerFenced,
    ShrinkReason::BrokerRestarted,
    ShrinkReason::ControlledShutdown,
    ShrinkReason::LogDirOffline,
    ShrinkReason::Reassignment,
    ShrinkReason::UncleanElection,
];
const EXPANDS: &[ExpandReason] = &[ExpandReason::CaughtUp, ExpandReason::BrokerReturned];
/// Those at the creation of a topic are not counted.
const ELECTIONS: &[LeaderReason] = &[
    LeaderReason::Preferred,
    LeaderReason::Failover,
    LeaderReason::Elr,
    LeaderReason::LastKnown,
    LeaderReason::Unclean,
    LeaderReason::Designated,
    LeaderReason::Reassignment,
    LeaderReason::Drain,
    LeaderReason::Lost,
];

/// Events read at once.
const PAGE: usize = 512;

/// Shrink or expand, reason, topic.
pub type IsrChange = (&'static str, &'static str, String);

/// Counts since this process started. Every word is there from the start, so that a first event is seen as a step.
pub struct ChangeCounts(Mutex<State>);

struct State {
    /// Changes before this are of an earlier process.
    since_ms: i64,
    position: EventId,
    raft: Option<(u64, BrokerId)>,
    counts: Counts,
    /// Partitions without a leader, and since when.
    leaderless: BTreeMap<(String, i32), Timestamp>,
    election: Histogram,
}

/// What was counted.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    pub isr: BTreeMap<IsrChange, u64>,
    pub elections: BTreeMap<&'static str, u64>,
    /// Committed records known to be lost by unclean elections.
    pub lost: u64,
    /// Raft leaders this node has heard of.
    pub raft: u64,
}

impl ChangeCounts {
    /// Counts from `since_ms` (wall clock) and `position` on.
    pub fn new(since_ms: i64, position: EventId) -> Self {
        let elections = ELECTIONS.iter().map(|reason| (leader_reason(*reason), 0)).collect();
        Self(Mutex::new(State {
            since_ms,
            position,
            raft: None,
            counts: Counts { elections, ..Counts::default() },
            leaderless: BTreeMap::new(),
            election: histogram!("highwater_leader_election_seconds"),
        }))
    }

    /// Reads on, and tells all counts. Topics led here have every word.
    pub fn read(&self, admin: &AdminState) -> Counts {
        self.observe(admin);
        let image = admin.quorum.image();
        let node = admin.config.node;
        let mut state = self.0.lock();
        let isr = &mut state.counts.isr;
        isr.retain(|(_, _, topic), _| image.names.contains_key(topic.as_str()));
        for topic in image.topics.values() {
            let last = (EXPAND, expand_reason(EXPANDS[0]), topic.name.to_string());
            if isr.contains_key(&last) || !topic.partitions.iter().any(|state| state.leader == Some(node)) {
                continue;
            }
            let words = SHRINKS.iter().map(|reason| (SHRINK, shrink_reason(*reason)));
            for (change, reason) in words.chain(EXPANDS.iter().map(|reason| (EXPAND, expand_reason(*reason)))) {
                isr.entry((change, reason, topic.name.to_string())).or_default();
            }
        }
        state.counts.clone()
    }

    /// Raft leaders this node has heard of.
    pub fn raft_leaders(&self) -> u64 {
        self.0.lock().counts.raft
    }

    /// Reads on, to the end of the journal.
    pub fn observe(&self, admin: &AdminState) {
        let status = admin.quorum.status();
        let leads_raft = status.leader == Some(admin.config.node);
        let mut state = self.0.lock();
        if let Some(leader) = status.leader
            && state.raft != Some((status.term, leader))
        {
            state.raft = Some((status.term, leader));
            state.counts.raft += 1;
        }
        while let Ok(page) = admin.quorum.events_after(state.position, PAGE) {
            for event in &page.events {
                match &event.kind {
                    EventKind::Partition { topic, partition, change } => {
                        let without_leader = state.without_leader(topic, *partition, change);
                        state.count(topic, change, admin.config.node, leads_raft, without_leader);
                    }
                    EventKind::TopicDeleted { name, .. } => state.leaderless.retain(|(topic, _), _| topic != name),
                    _ => {}
                }
            }
            let moved = state.position != page.position;
            state.position = page.position;
            if !moved || page.events.is_empty() {
                return;
            }
        }
    }
}

const SHRINK: &str = "shrink";
const EXPAND: &str = "expand";

impl State {
    /// How long the partition had no leader, when this change gave it one.
    fn without_leader(&mut self, topic: &str, partition: i32, change: &PartitionChange) -> Option<Duration> {
        let ChangeKind::Leader { .. } = &change.kind else { return None };
        let at = (topic.to_owned(), partition);
        if change.leader.is_none() {
            self.leaderless.entry(at).or_insert(change.time);
            return None;
        }
        let since = self.leaderless.remove(&at).unwrap_or(change.time);
        // By the clocks of whoever led the quorum then: they may differ.
        Some(Duration::from_millis(u64::try_from(change.time.0 - since.0).unwrap_or(0)))
    }

    fn count(
        &mut self,
        topic: &str,
        change: &PartitionChange,
        node: BrokerId,
        leads_raft: bool,
        without_leader: Option<Duration>,
    ) {
        let ours = change.leader.map_or(leads_raft, |leader| leader == node);
        if !ours || change.time.0 < self.since_ms {
            return;
        }
        let (what, reason) = match &change.kind {
            ChangeKind::Shrink { reason, .. } => (SHRINK, shrink_reason(*reason)),
            ChangeKind::Expand { reason, .. } => (EXPAND, expand_reason(*reason)),
            ChangeKind::Leader { reason, .. } => {
                *self.counts.elections.entry(leader_reason(*reason)).or_default() += 1;
                if let Some(duration) = without_leader {
                    self.election.record(duration);
                }
                return;
            }
            ChangeKind::DataLoss { .. } => {
                self.counts.lost += change.kind.records_lost();
                return;
            }
        };
        *self.counts.isr.entry((what, reason, topic.to_owned())).or_default() += 1;
    }
}

/// Changes this close together are read in one look.
const TOGETHER: Duration = Duration::from_millis(100);

/// Keeps the counts up to date, so that the journal's bounds lose none; runs until the quorum stops.
pub async fn follow(admin: AdminState) {
    let mut looked = admin.quorum.events_watch();
    let mut leaders = admin.quorum.leader_changes();
    loop {
        admin.changes.observe(&admin);
        tokio::select! {
            changed = looked.changed() => if changed.is_err() { return },
            changed = leaders.changed() => if !changed { return },
        }
        // Not a wait for anything: what happens in this time is counted in one go.
        tokio::time::sleep(TOGETHER).await;
    }
}

#[cfg(test)]
mod tests {
    use highwater_wire::{LeaderEpoch, PartitionEpoch};

    use super::*;

    #[test]
    fn an_election_took_as_long_as_nobody_led() {
        let counts = ChangeCounts::new(0, EventId::end_of(0));
        let mut state = counts.0.lock();
        let mut change = |partition, leader: Option<i32>, ms| {
            let change = PartitionChange {
                index: 1,
                sequence: 0,
                time: Timestamp(ms),
                leader: leader.map(BrokerId),
                leader_epoch: LeaderEpoch(1),
                partition_epoch: PartitionEpoch(1),
                requested_by: None,
                kind: ChangeKind::Leader { before: None, reason: LeaderReason::Failover },
            };
            state.without_leader("t", partition, &change).map(|took| took.as_millis())
        };
        assert_eq!(change(0, Some(2), 1_000), Some(0), "one after the other in one step");
        assert_eq!((change(0, None, 2_000), change(1, None, 2_500), change(0, None, 2_700)), (None, None, None));
        assert_eq!((change(0, Some(1), 5_000), change(1, Some(1), 5_000)), (Some(3_000), Some(2_500)));
        assert_eq!(change(0, Some(2), 9_000), Some(0));
        change(1, None, 10_000);
        assert_eq!(change(1, Some(1), 9_990), Some(0), "another node's clock");
    }
}
