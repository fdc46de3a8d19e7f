//! What this node knows of the quorum: its own view, and that of its peers while it leads (operators.md 1.4 D).

use highwater_wire::{BrokerId, DirectoryId, IncarnationId};
use serde::{Deserialize, Serialize};

use crate::voters::Progress;

/// One node's own view of raft. Indexes are those of the last entry concerned, inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumStatus {
    pub node: BrokerId,
    pub directory: DirectoryId,
    pub incarnation: IncarnationId,
    pub cluster_id: Option<String>,
    pub role: QuorumRole,
    pub term: u64,
    pub voted_for: Option<BrokerId>,
    pub leader: Option<BrokerId>,
    pub last_log: Option<u64>,
    /// As far as this node knows; the leader knows first.
    pub committed: Option<u64>,
    /// What this node's image shows.
    pub applied: Option<u64>,
    /// The last entry within the newest snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that is no longer in the log.
    pub purged: Option<u64>,
    pub voters: Vec<QuorumMember>,
    pub observers: Vec<QuorumMember>,
    /// Two sets of voters are in force at once: a membership change is under way.
    pub joint: bool,
    /// Progress of every member, itself included; empty unless this node leads.
    pub peers: Vec<PeerStatus>,
    /// How long ago a majority last acknowledged this leader; `None` unless it leads.
    pub quorum_ack_age_ms: Option<u64>,
    /// How long ago this node last heard of a leader (its own acknowledgement while it leads); `None`: never.
    pub leader_heard_age_ms: Option<u64>,
    pub majority: usize,
    /// Voters that may fail now without losing the majority; `None` unless this node leads.
    pub can_lose: Option<usize>,
    /// Why there is no cluster yet: which voter is missing or not fresh (D2).
    pub waiting: Option<String>,
    /// This voter's metadata directory is not the one the quorum knows: what happened and the command that helps (D1).
    pub wiped: Option<String>,
    /// The store or raft failed for good: the node must stop.
    pub failed: Option<String>,
    /// Election timeout in force, upper bound.
    pub election_timeout_ms: u64,
}

impl QuorumStatus {
    /// Whether this is the view of a leader that a majority answers. One that no majority answers any more stays leader
    /// in raft until it hears of a successor, but it decides nothing.
    pub fn leads(&self) -> bool {
        let answered = self.quorum_ack_age_ms.is_some_and(|age| age < 3 * self.election_timeout_ms);
        self.role == QuorumRole::Leader && answered
    }

    /// Voters that answer this leader and have all but the newest entries.
    pub fn well_voters(&self) -> usize {
        let well = |peer: &&PeerStatus| peer.voter && peer.progress().is_well(3 * self.election_timeout_ms);
        self.peers.iter().filter(well).count()
    }
}

impl PeerStatus {
    /// What counts when voters are changed.
    pub fn progress(&self) -> Progress {
        Progress { lag: self.lag, contact_age_ms: self.contact_age_ms }
    }
}

/// What a node is in the quorum now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuorumRole {
    Leader,
    Follower,
    Candidate,
    /// Learns, does not vote (D3).
    Observer,
    /// Belongs to no cluster yet, or not as the disk it is.
    Unformed,
    Stopped,
}

/// A member of the quorum: a node and its disk (D1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QuorumMember {
    pub node: BrokerId,
    pub directory: DirectoryId,
}

/// What the raft leader knows of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub member: QuorumMember,
    pub voter: bool,
    /// The last entry known to be durable there.
    pub matched: Option<u64>,
    /// Entries it lacks.
    pub lag: u64,
    /// Age of its last acknowledged heartbeat or append; `None`: not since this node leads. 0 for the leader itself.
    pub contact_age_ms: Option<u64>,
}

/// What a node answers to anybody who asks who it is: open before registration (D7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    pub cluster_id: Option<String>,
    pub node: BrokerId,
    pub directory: DirectoryId,
    pub incarnation: IncarnationId,
    /// It has the controller role.
    #[serde(default)]
    pub may_vote: bool,
}
