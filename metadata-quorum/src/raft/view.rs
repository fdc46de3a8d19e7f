//! What this node tells of raft: its status, and the few things a person may ask of it.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{Instant as _, ServerState};

use super::node::{Node, Standing};
use super::types::NodeId;
use crate::error::QuorumError;
use crate::status::{PeerStatus, QuorumMember, QuorumRole, QuorumStatus};

impl Node {
    /// This node's own view, and that of its peers while it leads.
    pub fn status(&self) -> QuorumStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let joint = membership.get_joint_config();
        let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
        // A node that was just taken in has nothing to wait for, whether or not it has looked around since.
        let belongs = membership.get_node(&self.id).is_some();
        let standing = if belongs { Standing::default() } else { self.standing.lock().clone() };
        let failed = self.store.failure().borrow().clone();
        let failed = failed.or_else(|| metrics.running_state.as_ref().err().map(ToString::to_string));
        let role = match metrics.state {
            _ if failed.is_some() || *self.stopping.borrow() => QuorumRole::Stopped,
            ServerState::Leader => QuorumRole::Leader,
            ServerState::Follower => QuorumRole::Follower,
            ServerState::Candidate => QuorumRole::Candidate,
            ServerState::Learner if belongs => QuorumRole::Observer,
            ServerState::Learner => QuorumRole::Unformed,
            ServerState::Shutdown => QuorumRole::Stopped,
        };
        let leads = role == QuorumRole::Leader;
        let election_timeout_ms = u64::try_from(self.limits.election_timeout.as_millis()).unwrap_or(u64::MAX);
        let age = |at: Duration| u64::try_from(at.as_millis()).unwrap_or(u64::MAX);

        let mut peers = Vec::new();
        if leads {
            for (id, _) in membership.nodes() {
                let own = *id == self.id;
                let matched = match &metrics.replication {
                    _ if own => metrics.last_log_index,
                    Some(replication) => replication.get(id).and_then(|log_id| log_id.as_ref().map(|at| at.index)),
                    None => None,
                };
                let contact = metrics.heartbeat.as_ref().and_then(|beats| beats.get(id).cloned().flatten());
                peers.push(PeerStatus {
                    member: (*id).into(),
                    voter: voters.contains(id),
                    matched,
                    lag: metrics.last_log_index.map_or(0, |last| last + 1) - matched.map_or(0, |at| at + 1),
                    contact_age_ms: if own { Some(0) } else { contact.map(|at| age(at.into_inner().elapsed())) },
                });
            }
        }
        let majority = voters.len() / 2 + 1;
        let quorum_ack_age_ms = match (leads, voters.len()) {
            (true, 1) => Some(0),
            (true, _) => metrics.last_quorum_acked.as_ref().map(|acked| age(acked.into_inner().elapsed())),
            (false, _) => None,
        };
        let mut status = QuorumStatus {
            node: self.id.node,
            directory: self.id.directory,
            incarnation: self.incarnation,
            cluster_id: self.cluster_id(),
            role,
            term: metrics.current_term,
            voted_for: (metrics.current_term > 0).then_some(metrics.vote.leader_id.voted_for.node),
            leader: metrics.current_leader.map(|leader| leader.node),
            last_log: metrics.last_log_index,
            committed: metrics.cluster_committed.as_ref().or(metrics.local_committed.as_ref()).map(|at| at.index),
            applied: metrics.last_applied.as_ref().map(|at| at.index),
            snapshot: metrics.snapshot.as_ref().map(|at| at.index),
            purged: metrics.purged.as_ref().map(|at| at.index),
            voters: voters.iter().map(|id| QuorumMember::from(*id)).collect(),
            observers: membership.learner_ids().map(QuorumMember::from).collect(),
            joint: joint.len() > 1,
            peers,
            quorum_ack_age_ms,
            leader_heard_age_ms: if leads { quorum_ack_age_ms } else { self.leader_heard_age().map(|age| age.0) },
            majority,
            can_lose: None,
            waiting: standing.waiting,
            wiped: standing.wiped,
            failed,
            election_timeout_ms,
        };
        status.can_lose = leads.then(|| status.well_voters().saturating_sub(majority));
        status
    }

    /// The status of the raft leader: here, or asked of it; `None` without one that answers and that is answered.
    pub async fn leader_status(&self, budget: Duration) -> Option<QuorumStatus> {
        let own = self.status();
        if own.role == QuorumRole::Leader {
            return Some(own).filter(QuorumStatus::leads);
        }
        let asked: Result<QuorumStatus, _> = self.peers.get_json(own.leader?, "/status", budget).await;
        asked.ok().filter(QuorumStatus::leads)
    }

    pub async fn snapshot(&self) -> Result<(), QuorumError> {
        self.raft.trigger().snapshot().await.map_err(|fatal| QuorumError::Stopped(fatal.to_string()))
    }
}
