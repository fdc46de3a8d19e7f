//! A node of the quorum for the simulation: all that ships but sled and sockets, and eyes to look inside.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use highwater_wire::{BrokerId, DirectoryId, IncarnationId};
use openraft::EntryPayload;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::{SnapshotResponse, VoteRequest, VoteResponse};

use super::store::MetaStore;
pub use super::store::in_memory::{Latency, SimDisk};
pub use super::transport::{Inbound, Knock, NoAnswer, Outbound, Transport};
use super::types::{LogId, NodeId, SnapshotMeta, TypeConfig, Vote};
use super::{Member, MemberConfig, ProposeRequest, listener, log_store, state_machine};
use crate::client::{self, QuorumClient};
use crate::config::{NodeRoles, QuorumLimits, TopicDefaults};
use crate::controller::Command;
use crate::error::StartError;
use crate::image::Endpoint;
use crate::status::QuorumMember;

type Sets = openraft::Membership<NodeId, openraft::EmptyNode>;

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
#[allow(clippy::large_enum_variant)] // one at a time is looked at
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
            voters: sets_of(metrics.membership_config.membership()),
            failed: failed.or_else(|| metrics.running_state.as_ref().err().map(ToString::to_string)),
        }
    }
}

fn sets_of(membership: &Sets) -> Vec<BTreeSet<QuorumMember>> {
    let sets = membership.get_joint_config().iter();
    sets.map(|set| set.iter().copied().map(QuorumMember::from).collect()).collect()
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
        self.state().map(|(applied, _)| applied)
    }

    /// The last entry of the state, and the sets of voters it holds.
    pub fn state(&self) -> Option<(EntryId, Vec<BTreeSet<QuorumMember>>)> {
        let (applied, membership) = state_machine::applied(&self.disk.state_row(state_machine::HEAD, self.durable)?)?;
        Some((EntryId::of(applied), sets_of(membership.membership())))
    }

    /// What the snapshot file is of; it is always durable.
    pub fn snapshot(&self) -> Option<EntryId> {
        self.disk.snapshot().map(EntryId::of)
    }

    pub fn entry(&self, index: u64) -> Option<(EntryId, Content)> {
        let bytes = self.disk.raft_row(&log_store::entry_key(index), self.durable)?;
        let entry = log_store::read_entry(&bytes)?;
        let content = match entry.payload {
            EntryPayload::Blank => Content::Blank,
            EntryPayload::Membership(membership) => Content::Membership(sets_of(&membership)),
            EntryPayload::Normal(proposal) => {
                Content::Command { rules: proposal.rules, command: proposal.command().ok()? }
            }
        };
        Some((EntryId::of(entry.log_id), content))
    }
}

/// The entry of the snapshot that an answer to `/raft/snapshot` took over. It is on disk then.
pub fn installed(path: &str, request: &[u8], answer: &[u8]) -> Option<EntryId> {
    if path != "/raft/snapshot" {
        return None;
    }
    let (length, rest) = request.split_first_chunk::<4>()?;
    let head = rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    let (vote, meta) = postcard::from_bytes::<(Vote, SnapshotMeta)>(head).ok()?;
    let answer: SnapshotResponse<TypeConfig> = postcard::from_bytes(answer).ok()?;
    meta.last_log_id.filter(|_| answer.vote == vote).map(EntryId::of)
}

/// Whether the product makes a proposal again whose fate is unknown (R216).
pub fn may_be_repeated(command: &Command) -> bool {
    client::may_be_repeated(command)
}

/// Whether a network may deliver a request twice: proposals that the product itself repeats, and all that raft must bear.
pub fn may_come_twice(path: &str, body: &[u8]) -> bool {
    let repeated = || serde_json::from_slice::<ProposeRequest>(body).is_ok_and(|it| may_be_repeated(&it.command));
    path != "/propose" || repeated()
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

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use futures::future::BoxFuture;
    use highwater_wire::Timestamp;

    use super::super::node::Reply;
    use super::*;

    /// A network without anybody else.
    struct Nowhere;

    impl Transport for Nowhere {
        fn exchange(&self, _: Outbound) -> BoxFuture<'_, Result<Inbound, NoAnswer>> {
            Box::pin(async { Err(NoAnswer { connected: false, timed_out: false, why: "nobody".to_owned() }) })
        }

        fn knock<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Knock> {
            Box::pin(async { Knock::Unknown("nobody".to_owned()) })
        }

        fn hold<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
            Box::pin(pending())
        }
    }

    fn alone() -> SimConfig {
        let advertised = Endpoint { host: "n1".to_owned(), port: 9093 };
        SimConfig {
            node: BrokerId(1),
            incarnation: IncarnationId::from_bytes([1; 16]),
            voters: BTreeMap::from([(BrokerId(1), advertised.clone())]),
            bootstrap: Vec::new(),
            advertised,
            roles: NodeRoles { broker: false, controller: true },
            limits: QuorumLimits::default(),
        }
    }

    #[tokio::test]
    async fn whoever_looks_for_a_leader_pauses_between_two_attempts() {
        let disk = SimDisk::new(1, Latency { usual_ms: 0..1, slow_ms: 0..1 });
        let process = SimNode::start(alone(), &disk, Arc::new(Nowhere)).await.unwrap();
        let node = &process.member.node;
        node.images.clone().wait_for(|image| image.controllers.contains_key(&BrokerId(1))).await.unwrap();
        let attempts = std::cell::Cell::new(0);
        let here = |_| {
            attempts.set(attempts.get() + 1);
            async { Reply::<()>::Unsure { why: "no majority answers".to_owned() } }
        };
        let told = node.with_leader("/nowhere", &(), Duration::from_millis(300), true, here).await;
        assert!(told.is_err());
        assert!((2..=20).contains(&attempts.get()), "{} attempts in 300 ms", attempts.get());
    }

    #[tokio::test]
    async fn whoever_waits_for_news_of_a_raft_that_has_ended_does_not_spin() {
        let disk = SimDisk::new(1, Latency { usual_ms: 0..1, slow_ms: 0..1 });
        let process = SimNode::start(alone(), &disk, Arc::new(Nowhere)).await.unwrap();
        let node = &process.member.node;
        node.raft.shutdown().await.unwrap();
        let somebody = QuorumMember { node: BrokerId(2), directory: DirectoryId::from_bytes([2; 16]) };
        let begun = tokio::time::Instant::now();
        assert!(node.heard_since(somebody, begun).await.is_none());
        assert!(begun.elapsed() < node.limits.election_timeout, "it went on for {:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn what_was_under_way_when_raft_ended_is_not_said_to_be_undone() {
        let disk = SimDisk::new(1, Latency { usual_ms: 0..1, slow_ms: 0..1 });
        let process = SimNode::start(alone(), &disk, Arc::new(Nowhere)).await.unwrap();
        let node = &process.member.node;
        // Its own first entries are through.
        node.images.clone().wait_for(|image| image.controllers.contains_key(&BrokerId(1))).await.unwrap();
        disk.fail_next_sync();
        let command = Command::DeleteTopic { id: highwater_wire::TopicId::from_bytes([1; 16]), time: Timestamp(1) };
        let told = node.propose_here(command.clone(), Duration::from_secs(10)).await;
        assert!(matches!(told, Reply::Unsure { .. }), "{told:?}");
        process.failed().await;
        let told = node.propose_here(command, Duration::from_secs(10)).await;
        assert!(matches!(told, Reply::Stopped { .. } | Reply::NotLeader { .. }), "never begun: {told:?}");
    }
}
