//! A node of the quorum for the simulation: all that ships but sled and sockets, and eyes to look inside.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use highwater_wire::{BrokerId, DirectoryId, IncarnationId};
use openraft::EntryPayload;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::{VoteRequest, VoteResponse};

use super::store::MetaStore;
pub use super::store::in_memory::{Latency, SimDisk};
pub use super::transport::{Inbound, Knock, NoAnswer, Outbound, Transport};
use super::types::{LogId, TypeConfig};
use super::{Member, MemberConfig, listener, log_store, state_machine};
use crate::client::QuorumClient;
use crate::config::{NodeRoles, QuorumLimits, TopicDefaults};
use crate::controller::Command;
use crate::error::StartError;
use crate::image::Endpoint;
use crate::status::QuorumMember;

/// Runs a process with openraft's chance drawn from this seed.
///
/// Only a build with `--cfg tokio_unstable` is deterministic (configuration C of stack.md §6); in any other nothing is
/// seeded.
pub fn scope<F: Future>(seed: u64, future: F) -> impl Future<Output = F::Output> {
    #[cfg(tokio_unstable)]
    return super::types::Runtime::scope(seed, future);
    #[cfg(not(tokio_unstable))]
    {
        let _ = seed;
        future
    }
}

/// Who a simulated node is.
#[derive(Debug)]
pub struct SimConfig {
    pub node: BrokerId,
    pub incarnation: IncarnationId,
    pub voters: BTreeMap<BrokerId, Endpoint>,
    pub bootstrap: Vec<Endpoint>,
    pub advertised: Endpoint,
    pub roles: NodeRoles,
    pub limits: QuorumLimits,
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    pub index: u64,
    pub term: u64,
}

impl EntryId {
    fn of(id: LogId) -> Self {
        Self { index: id.index, term: *id.leader_id }
    }
}

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Blank,
    Membership(Vec<BTreeSet<QuorumMember>>),
    Command { rules: u16, command: Command },
}

/// Raft as it is inside a process at one moment. Reads no clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub id: QuorumMember,
    pub term: u64,
    pub leads: bool,
    pub learns: bool,
    pub leader: Option<QuorumMember>,
    pub last_log: Option<u64>,
    /// As far as this node has the entries.
    pub committed: Option<EntryId>,
    pub applied: Option<EntryId>,
    pub snapshot: Option<EntryId>,
    pub purged: Option<EntryId>,
    /// The sets of voters in force here; two while they change.
    pub voters: Vec<BTreeSet<QuorumMember>>,
    pub failed: Option<String>,
}

/// One process.
pub struct SimNode {
    member: Member,
}

impl SimNode {
    /// Starts a process on a disk, and talks over `transport`.
    ///
    /// # Errors
    /// As the real node.
    pub async fn start(config: SimConfig, disk: &SimDisk, transport: Arc<dyn Transport>) -> Result<Self, StartError> {
        let store = MetaStore::in_memory(disk, config.node.0).await;
        let store =
            store.map_err(|error| StartError::Store { directory: "simulated".into(), why: error.to_string() })?;
        let config = MemberConfig {
            node: config.node,
            incarnation: config.incarnation,
            cluster_id: None,
            voters: config.voters,
            bootstrap: config.bootstrap,
            advertised: config.advertised,
            roles: config.roles,
            limits: config.limits,
            topic_defaults: TopicDefaults::default(),
        };
        let member = Member::start(config, Arc::new(store), transport).await?;
        Ok(Self { member })
    }

    pub fn client(&self) -> &QuorumClient {
        &self.member.client
    }

    /// What its controller listener serves.
    pub fn routes(&self) -> axum::Router {
        listener::router(Arc::clone(&self.member.node), axum::Router::new())
    }

    pub fn directory_id(&self) -> DirectoryId {
        self.member.node.id.directory
    }

    /// As [`super::Quorum::failed`].
    pub async fn failed(&self) -> String {
        self.member.failed().await
    }

    /// As [`super::Quorum::stop`].
    pub async fn stop(&self) {
        self.member.stop().await;
    }

    pub fn look(&self) -> Look {
        let metrics = self.member.node.raft.metrics();
        let metrics = metrics.borrow_watched();
        let config = metrics.membership_config.membership().get_joint_config().iter();
        let failed = self.member.node.store.failure().borrow().clone();
        let latest = |log_id: &Option<LogId>| log_id.map(EntryId::of);
        Look {
            id: self.member.node.id.into(),
            term: metrics.current_term,
            leads: metrics.state == ServerState::Leader,
            learns: metrics.state == ServerState::Learner,
            leader: metrics.current_leader.map(QuorumMember::from),
            last_log: metrics.last_log_index,
            committed: latest(&metrics.local_committed),
            applied: latest(&metrics.last_applied),
            snapshot: latest(&metrics.snapshot),
            purged: latest(&metrics.purged),
            voters: config.map(|voters| voters.iter().copied().map(QuorumMember::from).collect()).collect(),
            failed: failed.or_else(|| metrics.running_state.as_ref().err().map(ToString::to_string)),
        }
    }
}

/// What is on a disk, as its process sees it or as a crash would leave it.
#[derive(Clone, Copy)]
pub struct Eye<'a> {
    pub disk: &'a SimDisk,
    pub durable: bool,
}

impl Eye<'_> {
    /// Term, and whom the vote is for.
    pub fn vote(&self) -> Option<(u64, QuorumMember)> {
        let vote = log_store::read_vote(&self.disk.raft_row(log_store::VOTE, self.durable)?)?;
        Some((vote.leader_id.term, vote.leader_id.voted_for.into()))
    }

    pub fn purged(&self) -> Option<EntryId> {
        log_store::read_log_id(&self.disk.raft_row(log_store::PURGED, self.durable)?).map(EntryId::of)
    }

    pub fn applied(&self) -> Option<EntryId> {
        state_machine::applied(&self.disk.state_row(state_machine::HEAD, self.durable)?).map(EntryId::of)
    }

    pub fn entry(&self, index: u64) -> Option<(EntryId, Content)> {
        let bytes = self.disk.raft_row(&log_store::entry_key(index), self.durable)?;
        let entry = log_store::read_entry(&bytes)?;
        let content = match entry.payload {
            EntryPayload::Blank => Content::Blank,
            EntryPayload::Membership(membership) => {
                let sets = membership.get_joint_config().iter();
                Content::Membership(sets.map(|set| set.iter().copied().map(QuorumMember::from).collect()).collect())
            }
            EntryPayload::Normal(proposal) => {
                Content::Command { rules: proposal.rules, command: proposal.command().ok()? }
            }
        };
        Some((EntryId::of(entry.log_id), content))
    }
}

/// The vote that an answer to `/raft/vote` granted: term, and to whom. What a node has told others must outlive it.
pub fn granted(path: &str, request: &[u8], answer: &[u8]) -> Option<(u64, QuorumMember)> {
    if path != "/raft/vote" {
        return None;
    }
    let request: VoteRequest<TypeConfig> = postcard::from_bytes(request).ok()?;
    let answer: VoteResponse<TypeConfig> = postcard::from_bytes(answer).ok()?;
    let candidate = request.vote.leader_id;
    answer.vote_granted.then(|| (candidate.term, candidate.voted_for.into()))
}
