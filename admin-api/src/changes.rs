//! Counts ISR changes and elections for `/metrics`, each on one node only, so that sums over nodes are right: on the
//! partition's leader after the change, or on the raft leader where there is none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::MetadataImage;
use highwater_quorum::image::{ChangeKind, ExpandReason, ImageVersion, LeaderReason, PartitionChange, ShrinkReason};
use highwater_wire::{BrokerId, TopicPartition};
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
const ELECTIONS: &[LeaderReason] = &[
    LeaderReason::Created,
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

/// Shrink or expand, reason, topic.
pub type IsrChange = (&'static str, &'static str, Arc<str>);

/// Counts since this process started. Every word is there from the start, so that a first event is seen as a step.
#[derive(Debug)]
pub struct ChangeCounts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Changes before this are of an earlier process.
    since_ms: i64,
    version: ImageVersion,
    seen: BTreeMap<TopicPartition, u64>,
    isr: BTreeMap<IsrChange, u64>,
    elections: BTreeMap<&'static str, u64>,
    /// Committed records known to be lost by unclean elections.
    lost: u64,
}

impl ChangeCounts {
    /// Counts from `since_ms` (wall clock) on.
    pub fn new(since_ms: i64) -> Self {
        let elections = ELECTIONS.iter().map(|reason| (leader_reason(*reason), 0)).collect();
        Self(Mutex::new(Counts { since_ms, elections, ..Counts::default() }))
    }

    /// Takes in what an image has that earlier ones had not.
    pub fn observe(&self, image: &MetadataImage, node: BrokerId, leads_raft: bool) {
        let mut counts = self.0.lock();
        if image.version <= counts.version {
            return;
        }
        counts.version = image.version;
        let counts = &mut *counts;
        for (at, changes) in &image.history {
            let seen = counts.seen.get(at).copied();
            let fresh: Vec<&PartitionChange> = changes
                .iter()
                .map(AsRef::as_ref)
                .filter(|change| seen.is_none_or(|seen| change.sequence > seen))
                .collect();
            let Some(last) = fresh.last() else { continue };
            counts.seen.insert(*at, last.sequence);
            let Some(topic) = image.topics.get(&at.topic) else { continue };
            let led_here = image.partition(*at).is_some_and(|state| state.leader == Some(node));
            if led_here {
                let words = SHRINKS.iter().map(|reason| ("shrink", shrink_reason(*reason)));
                for (change, reason) in words.chain(EXPANDS.iter().map(|reason| ("expand", expand_reason(*reason)))) {
                    counts.isr.entry((change, reason, topic.name.clone())).or_default();
                }
            }
            for change in fresh {
                let ours = change.leader.map_or(leads_raft, |leader| leader == node);
                if !ours || change.time.0 < counts.since_ms {
                    continue;
                }
                let isr = match &change.kind {
                    ChangeKind::Shrink { reason, .. } => ("shrink", shrink_reason(*reason)),
                    ChangeKind::Expand { reason, .. } => ("expand", expand_reason(*reason)),
                    ChangeKind::Leader { reason, .. } => {
                        *counts.elections.entry(leader_reason(*reason)).or_default() += 1;
                        continue;
                    }
                    ChangeKind::DataLoss { .. } => {
                        counts.lost += change.kind.records_lost();
                        continue;
                    }
                };
                *counts.isr.entry((isr.0, isr.1, topic.name.clone())).or_default() += 1;
            }
        }
        if counts.seen.len() > image.history.size() {
            counts.seen.retain(|at, _| image.history.contains_key(at));
            let topics = &image.names;
            counts.isr.retain(|(_, _, topic), _| topics.contains_key(topic));
        }
    }

    /// ISR changes by (shrink or expand, reason, topic).
    pub fn isr(&self) -> Vec<(IsrChange, u64)> {
        self.0.lock().isr.iter().map(|(key, count)| (key.clone(), *count)).collect()
    }

    /// Committed records known to be lost by unclean elections.
    pub fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    /// Elections by reason.
    pub fn elections(&self) -> Vec<(&'static str, u64)> {
        self.0.lock().elections.iter().map(|(reason, count)| (*reason, *count)).collect()
    }
}

/// Keeps the counts up to date; runs until the quorum stops publishing. At most two looks a second: history holds 64
/// changes per partition.
pub async fn follow(admin: AdminState) {
    let mut images = admin.quorum.watch();
    loop {
        let image = images.borrow_and_update().clone();
        admin.changes.observe(&image, admin.config.node, admin.quorum.leader() == Some(admin.config.node));
        drop(image);
        if images.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
