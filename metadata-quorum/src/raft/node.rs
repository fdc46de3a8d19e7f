//! The quorum on this node, as its other files share it: raft, store, peers, and what is proposed through them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use highwater_wire::{BrokerId, IncarnationId, Millis};
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ClientWriteError, LinearizableReadError, RaftError};
use openraft::metrics::RaftServerMetrics;
use openraft::raft::linearizable_read::LinearizerOption;
use openraft::{Instant as _, ReadPolicy};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::journal::Journal;
use super::network::{CallError, Peers};
use super::store::MetaStore;
use super::types::{Applied, NodeId, Proposal, Raft, TypeConfig};
use super::voters::Changing;
use crate::config::{NodeRoles, QuorumLimits, TopicDefaults};
use crate::controller::{Answer, Command, Refusal};
use crate::duty::Duty;
use crate::error::QuorumError;
use crate::flaws::{Flaw, planted};
use crate::image::{Endpoint, ImageVersion, MetadataImage};

/// The longest single attempt of a call that may be repeated: a paused leader must not eat the whole deadline.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// Between two looks for a leader, when none is known.
const LOOK_AGAIN: Duration = Duration::from_millis(30);
/// A read index waits this long for its majority (D3).
const READ_INDEX_WAIT: Duration = Duration::from_secs(2);

/// See the file's head.
pub(crate) struct Node {
    pub id: NodeId,
    pub incarnation: IncarnationId,
    /// `CLUSTER_ID` as configured.
    pub cluster_id_given: Option<String>,
    /// Where others dial this node.
    pub advertised: Endpoint,
    pub roles: NodeRoles,
    pub limits: QuorumLimits,
    pub topic_defaults: TopicDefaults,
    pub raft: Raft,
    pub store: Arc<MetaStore>,
    pub images: watch::Receiver<Arc<MetadataImage>>,
    pub journal: Arc<Journal>,
    pub peers: Arc<Peers>,
    pub duty: Duty,
    /// Why there is no cluster here (yet).
    pub standing: Mutex<Standing>,
    /// The cluster that lives without this node, once somebody told of it: a broker registers there to be taken in.
    pub living: watch::Sender<Option<String>>,
    /// The change of voters under way here, one at a time.
    pub changing: Mutex<Option<Changing>>,
    /// Set once, when the node stops.
    pub stopping: watch::Sender<bool>,
    /// Since it started this node has held all that was committed at some moment.
    pub caught_up: AtomicBool,
    started: Instant,
    commit_seconds: metrics::Histogram,
    /// Milliseconds after `started` at which a leader last spoke to this node; 0: never.
    leader_heard: AtomicU64,
}

/// What keeps this node out of a cluster, for status and health (D1, D2).
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    pub waiting: Option<String>,
    pub wiped: Option<String>,
}

/// What a node says to something only the raft leader may do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply<T> {
    Done(T),
    Refused(Refusal),
    /// Not done: ask there.
    NotLeader {
        leader: Option<BrokerId>,
    },
    /// Perhaps done.
    Unsure {
        why: String,
    },
    /// Not done: that node is stopping or broken.
    Stopped {
        why: String,
    },
}

/// Wakes when this node's role or the raft leader it knows of change.
pub struct LeaderChanges(WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>);

impl LeaderChanges {
    /// Waits for the next change; `false`: raft ended.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

/// What `Node::new` is made of.
pub(crate) struct NodeParts {
    pub id: NodeId,
    pub incarnation: IncarnationId,
    pub cluster_id_given: Option<String>,
    pub advertised: Endpoint,
    pub roles: NodeRoles,
    pub limits: QuorumLimits,
    pub topic_defaults: TopicDefaults,
    pub raft: Raft,
    pub store: Arc<MetaStore>,
    pub images: watch::Receiver<Arc<MetadataImage>>,
    pub journal: Arc<Journal>,
    pub peers: Arc<Peers>,
}

impl Node {
    pub fn new(parts: NodeParts) -> Self {
        let duty = Duty::new(&parts.limits);
        Self {
            id: parts.id,
            incarnation: parts.incarnation,
            cluster_id_given: parts.cluster_id_given,
            advertised: parts.advertised,
            roles: parts.roles,
            limits: parts.limits,
            topic_defaults: parts.topic_defaults,
            raft: parts.raft,
            store: parts.store,
            images: parts.images,
            journal: parts.journal,
            peers: parts.peers,
            duty,
            standing: Mutex::default(),
            living: watch::channel(None).0,
            changing: Mutex::default(),
            stopping: watch::channel(false).0,
            caught_up: AtomicBool::new(false),
            started: Instant::now(),
            commit_seconds: metrics::histogram!("highwater_raft_commit_seconds"),
            leader_heard: AtomicU64::new(0),
        }
    }

    /// Monotonic time since this node started.
    pub fn now(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub fn image(&self) -> Arc<MetadataImage> {
        self.images.borrow().clone()
    }

    /// The cluster's id, from the image or, before there is one, from the disk.
    pub fn cluster_id(&self) -> Option<String> {
        self.images.borrow().cluster_id.as_deref().map(str::to_owned).or_else(|| self.store.cluster_id())
    }

    /// A leader spoke to this node.
    pub fn note_leader(&self) {
        self.leader_heard.store(self.now().0.max(1), Ordering::Relaxed);
    }

    /// How long ago a leader spoke to this node; `None`: never.
    pub fn leader_heard_age(&self) -> Option<Millis> {
        let heard = self.leader_heard.load(Ordering::Relaxed);
        (heard > 0).then(|| self.now() - Millis(heard))
    }

    pub fn is_leader(&self) -> bool {
        self.raft.is_leader()
    }

    /// The voters as known here; those of the configuration before there is a membership.
    pub fn voters(&self) -> Vec<BrokerId> {
        let mut voters: Vec<BrokerId> = self.raft.voter_ids().map(|voter| voter.node).collect();
        if voters.is_empty() {
            voters.extend(self.peers.voters().keys());
        }
        voters.sort();
        voters.dedup();
        voters
    }

    /// The raft leader as known here.
    pub fn leader(&self) -> Option<NodeId> {
        self.raft.server_metrics().borrow_watched().current_leader
    }

    /// The term this node leads in with a majority that answered lately (R220); `None`: it must not judge anybody.
    pub fn leading(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if !metrics.state.is_leader() {
            return None;
        }
        let acked = metrics.last_quorum_acked.as_ref().map(|acked| acked.into_inner().elapsed());
        let alone = metrics.membership_config.voter_ids().all(|voter| voter == self.id);
        let fresh = alone || acked.is_some_and(|age| age <= self.limits.election_timeout);
        fresh.then_some(metrics.current_term)
    }

    pub fn term(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    /// Wakes when role or leader change here.
    pub fn leader_changes(&self) -> LeaderChanges {
        LeaderChanges(self.raft.server_metrics())
    }

    /// Talks to a peer again at once: it has just shown that it is there.
    pub async fn reset_backoff(&self, node: BrokerId) {
        let ids: Vec<NodeId> = {
            let metrics = self.raft.metrics();
            let membership = metrics.borrow_watched().membership_config.clone();
            membership.nodes().map(|(id, _)| *id).filter(|id| id.node == node).collect()
        };
        let _ = self.raft.trigger().reset_backoff(ids).await;
    }

    fn not_leader<T>(&self) -> Reply<T> {
        let leader = self.leader().map(|leader| leader.node);
        Reply::NotLeader { leader: leader.filter(|leader| *leader != self.id.node) }
    }

    /// Why nothing is proposed here any more; `None`: raft runs.
    fn ended(&self) -> Option<String> {
        if *self.stopping.borrow() {
            return Some("this node is stopping".to_owned());
        }
        let metrics = self.raft.metrics();
        let state = metrics.borrow_watched().running_state.clone();
        state.err().map(|fatal| fatal.to_string())
    }

    /// Proposes on this node, which must lead. The answer is that of the applied entry, with its index.
    pub async fn propose_here(&self, command: Command, timeout: Duration) -> Reply<(Answer, u64)> {
        if !self.is_leader() {
            return self.not_leader();
        }
        if let Some(why) = self.ended() {
            return Reply::Stopped { why };
        }
        let Some(proposal) = Proposal::of(&command) else {
            return Reply::Refused(Refusal::InvalidRequest(
                "the command is larger than 64 KiB, the most an entry of the metadata log may hold: split it"
                    .to_owned(),
            ));
        };
        let begun = Instant::now();
        let written = tokio::time::timeout(timeout, self.raft.client_write(proposal)).await;
        if matches!(written, Ok(Ok(_))) {
            self.commit_seconds.record(begun.elapsed());
        }
        match written {
            Ok(Ok(written)) => match written.data {
                Applied::Decided(Ok(answer)) => Reply::Done((answer, written.log_id.index)),
                Applied::Decided(Err(refusal)) => Reply::Refused(refusal),
                Applied::Nothing => Reply::Unsure { why: "applied without a decision".to_owned() },
            },
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => self.not_leader(),
            Ok(Err(RaftError::APIError(error))) => Reply::Unsure { why: error.to_string() },
            // Raft ended while the entry was under way: others may commit it.
            Ok(Err(RaftError::Fatal(fatal))) => Reply::Unsure { why: fatal.to_string() },
            Err(_) => Reply::Unsure { why: "not committed in time".to_owned() },
        }
    }

    /// The index that a read must wait for to see all that is committed now. This node must lead.
    pub async fn read_index_here(&self) -> Reply<u64> {
        if planted(Flaw::ReadsAlone) {
            return if self.is_leader() { Reply::Done(self.image().version.0) } else { self.not_leader() };
        }
        let option = LinearizerOption::from(ReadPolicy::ReadIndex).with_wait_timeout(READ_INDEX_WAIT);
        match self.raft.get_read_log_id(option).await {
            Ok((read, _)) => Reply::Done(read.index()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => self.not_leader(),
            Err(RaftError::APIError(error)) => Reply::Unsure { why: error.to_string() },
            Err(RaftError::Fatal(fatal)) => Reply::Stopped { why: fatal.to_string() },
        }
    }

    /// Has the raft leader do something: here if this node leads, else over HTTP, looking for the leader until the
    /// deadline. `repeat`: doing it twice does no harm, so an uncertain attempt is tried again.
    pub async fn with_leader<T, Q, F>(
        &self,
        path: &str,
        request: &Q,
        timeout: Duration,
        repeat: bool,
        mut here: impl FnMut(Duration) -> F,
    ) -> Result<T, QuorumError>
    where
        T: DeserializeOwned,
        Q: Serialize,
        F: Future<Output = Reply<T>>,
    {
        let begun = Instant::now();
        let timed_out =
            || QuorumError::TimedOut { after_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX) };
        let mut uncertain = false;
        let mut why = "none is known".to_owned();
        let mut hint = None;
        let mut stopping = self.stopping.subscribe();
        let mut leaders = self.raft.server_metrics();
        for attempt in 0usize.. {
            // A fresh receiver has seen nothing: what it waited for would be over, and this loop would never pause.
            leaders.borrow_and_update();
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            if *stopping.borrow() {
                return Err(QuorumError::Stopped("this node is stopping".to_owned()));
            }
            let budget = if repeat { left.min(ATTEMPT_MAX) } else { left };
            let reply = if self.is_leader() {
                match here(budget).await {
                    Reply::Stopped { why } => return Err(QuorumError::Stopped(why)),
                    reply => reply,
                }
            } else {
                match hint.take().or_else(|| self.guess_leader(attempt)) {
                    Some(node) => self.forward(node, path, request, budget).await,
                    None => Reply::NotLeader { leader: None },
                }
            };
            match reply {
                Reply::Done(done) => return Ok(done),
                Reply::Refused(refusal) => return Err(refusal.into()),
                Reply::NotLeader { leader } => {
                    hint = leader.filter(|leader| *leader != self.id.node);
                    if hint.is_some() && attempt % 4 != 3 {
                        continue;
                    }
                }
                Reply::Unsure { why: unsure } => {
                    if !repeat {
                        tracing::debug!(path, why = unsure, "the raft leader's answer is unknown");
                        return Err(timed_out());
                    }
                    uncertain = true;
                    why = unsure;
                }
                Reply::Stopped { why: stopped } => why = stopped,
            }
            tokio::select! {
                _ = tokio::time::sleep(LOOK_AGAIN.min(left)) => {}
                changed = leaders.changed() => if changed.is_err() {
                    return Err(QuorumError::Stopped("raft has ended on this node".to_owned()));
                },
                _ = stopping.changed() => {}
            }
        }
        if uncertain { Err(timed_out()) } else { Err(QuorumError::NoLeader { why }) }
    }

    /// Whom to ask: the known leader, and where that did not help, the voters in turn.
    fn guess_leader(&self, attempt: usize) -> Option<BrokerId> {
        let me = self.id.node;
        let known = self.leader().map(|leader| leader.node).filter(|leader| *leader != me);
        if attempt.is_multiple_of(2) && known.is_some() {
            return known;
        }
        let mut others: Vec<BrokerId> = self.raft.voter_ids().map(|voter| voter.node).collect();
        others.extend(self.peers.advisers());
        others.sort();
        others.dedup();
        others.retain(|node| *node != me);
        others.get((attempt / 2) % others.len().max(1)).copied().or(known)
    }

    async fn forward<T: DeserializeOwned>(
        &self,
        node: BrokerId,
        path: &str,
        request: &impl Serialize,
        budget: Duration,
    ) -> Reply<T> {
        match self.peers.json::<Reply<T>>(node, path, budget, request).await {
            Ok(reply) => reply,
            Err(CallError::NoAddress(_) | CallError::NotSent { .. } | CallError::Refused { .. }) => {
                Reply::NotLeader { leader: None }
            }
            Err(error @ CallError::Unsure { .. }) => Reply::Unsure { why: error.to_string() },
        }
    }

    /// Waits until the image here has reached `version`.
    pub async fn reached(&self, version: ImageVersion, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError> {
        let mut images = self.images.clone();
        let reached = tokio::time::timeout(timeout, images.wait_for(|image| image.version >= version)).await;
        match reached {
            Ok(Ok(image)) => Ok(image.clone()),
            Ok(Err(_)) => Err(QuorumError::Stopped("its state machine ended".to_owned())),
            Err(_) => Err(QuorumError::TimedOut { after_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX) }),
        }
    }
}
