//! Outbound: one transport for all node-to-node calls, every call with a deadline, addresses looked up per call (D5).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use bytes::Bytes;
use highwater_wire::BrokerId;
use openraft::alias::SnapshotOf;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, OptionalSend};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use super::transport::{Inbound, NoAnswer, Outbound, Transport};
use super::types::{NodeId, TypeConfig, Vote};
use crate::flaws::{Flaw, planted};
use crate::image::{Endpoint, MetadataImage};

/// Who a raft call is meant for: `node@directory`.
pub(crate) const TO: &str = "x-highwater-to";
/// The caller's cluster, once it knows it.
pub(crate) const CLUSTER: &str = "x-highwater-cluster";

/// A follower's fdatasync is inside an append with entries (D5).
const APPEND_BASE: Duration = Duration::from_millis(300);
/// Added per MiB of entries.
const APPEND_PER_MIB: Duration = Duration::from_secs(1);

/// What a request carries.
pub(crate) enum Content {
    /// A GET.
    None,
    Json(Bytes),
    /// A raft message for this member and no other.
    Raft(NodeId, Bytes),
}

impl Content {
    pub fn json(body: &impl Serialize) -> Self {
        Self::Json(serde_json::to_vec(body).expect("plain data with text for keys").into())
    }
}

/// How to reach the other nodes. Shared by raft, forwarding, probes and duty.
pub(crate) struct Peers {
    pub transport: Arc<dyn Transport>,
    images: watch::Receiver<Arc<MetadataImage>>,
    voters: BTreeMap<BrokerId, Endpoint>,
    bootstrap: Vec<Endpoint>,
    /// What others told while this node belonged to no cluster: better than nothing.
    learned: Mutex<BTreeMap<BrokerId, String>>,
    /// Nodes whose address in the image failed last: the configured one is tried next.
    misdirected: Mutex<BTreeSet<BrokerId>>,
    /// Nodes whose connection broke: suspicions, for whoever checks them (D7).
    broken: mpsc::UnboundedSender<BrokerId>,
}

/// Why a call to a node brought no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("no address is known for node {0}")]
    NoAddress(BrokerId),
    /// Nothing was sent: the connection could not be made.
    #[error("{url}: {why}")]
    NotSent { url: String, why: String },
    /// The request may have been carried out.
    #[error("{url}: {why}")]
    Unsure { url: String, why: String },
    /// It answered that it would not.
    #[error("{url} refused: {why}")]
    Refused { url: String, why: String },
}

/// `http://host:port`.
pub(crate) fn url_of(endpoint: &Endpoint) -> String {
    if endpoint.host.contains(':') && !endpoint.host.starts_with('[') {
        format!("http://[{}]:{}", endpoint.host, endpoint.port)
    } else {
        format!("http://{}:{}", endpoint.host, endpoint.port)
    }
}

/// Where the metadata says that a node's controller listener is.
///
/// A broker's own word is newer than that of whoever added it to the quorum, unless it is the word of a disk that was
/// replaced since.
pub(crate) fn address_in(image: &MetadataImage, node: BrokerId) -> Option<String> {
    let broker = image.brokers.get(&node).filter(|broker| !broker.controller_url.is_empty());
    match (broker, image.controllers.get(&node)) {
        (Some(broker), Some(controller)) if broker.metadata_dir != controller.directory => {
            Some(url_of(&controller.endpoint))
        }
        (Some(broker), _) => Some(broker.controller_url.clone()),
        (None, Some(controller)) => Some(url_of(&controller.endpoint)),
        (None, None) => None,
    }
}

impl Peers {
    pub fn new(
        transport: Arc<dyn Transport>,
        images: watch::Receiver<Arc<MetadataImage>>,
        voters: BTreeMap<BrokerId, Endpoint>,
        bootstrap: Vec<Endpoint>,
        broken: mpsc::UnboundedSender<BrokerId>,
    ) -> Self {
        let (learned, misdirected) = (Mutex::default(), Mutex::default());
        Self { transport, images, voters, bootstrap, learned, misdirected, broken }
    }

    /// `http://host:port` of a node's controller listener: from the image, else from `controller.quorum.voters`, else as
    /// others told.
    pub fn url(&self, node: BrokerId) -> Option<String> {
        let configured = self.voters.get(&node).map(url_of);
        if configured.is_some() && self.misdirected.lock().contains(&node) {
            return configured;
        }
        let known = address_in(&self.images.borrow(), node);
        known.or(configured).or_else(|| self.learned.lock().get(&node).cloned())
    }

    /// `controller.quorum.voters`
    pub fn voters(&self) -> &BTreeMap<BrokerId, Endpoint> {
        &self.voters
    }

    /// `controller.quorum.bootstrap.servers`
    pub fn bootstrap(&self) -> &[Endpoint] {
        &self.bootstrap
    }

    /// Takes what another node says of where the others are.
    pub fn learn(&self, addresses: &BTreeMap<BrokerId, String>) {
        self.learned.lock().extend(addresses.iter().map(|(node, url)| (*node, url.clone())));
    }

    /// Nodes that may know a leader, beside those that the image and raft know.
    pub fn advisers(&self) -> Vec<BrokerId> {
        self.voters.keys().copied().chain(self.learned.lock().keys().copied()).collect()
    }

    pub fn cluster_id(&self) -> Option<Arc<str>> {
        self.images.borrow().cluster_id.clone()
    }

    /// Notes how a call ended: a connection that could not be made turns the next to the other address, and every
    /// broken one is a suspicion.
    fn note(&self, node: BrokerId, result: Result<(), &NoAnswer>) {
        match result {
            Ok(()) => {}
            Err(error) => {
                if !error.connected && self.voters.contains_key(&node) {
                    let mut misdirected = self.misdirected.lock();
                    if !misdirected.remove(&node) {
                        misdirected.insert(node);
                    }
                }
                if !error.timed_out {
                    let _ = self.broken.send(node);
                }
            }
        }
    }

    /// Sends a request to a node and returns the body of its 200.
    pub async fn call(
        &self,
        node: BrokerId,
        path: &str,
        deadline: Duration,
        content: Content,
    ) -> Result<Bytes, CallError> {
        let base = self.url(node).ok_or(CallError::NoAddress(node))?;
        let url = format!("{base}{path}");
        let (method, mut headers, body) = match content {
            Content::None => (Method::GET, Vec::new(), Bytes::new()),
            Content::Json(body) => (Method::POST, vec![("content-type", "application/json".to_owned())], body),
            Content::Raft(to, body) => (Method::POST, vec![(TO, to.to_string())], body),
        };
        if let Some(cluster) = self.cluster_id() {
            headers.push((CLUSTER, cluster.as_ref().to_owned()));
        }
        let request = Outbound { method, url: url.clone(), headers, body, deadline };
        let answer = self.transport.exchange(request).await;
        self.note(node, answer.as_ref().map(|_| ()));
        let Inbound { status, body } = answer.map_err(|NoAnswer { connected, why, .. }| match connected {
            false => CallError::NotSent { url: url.clone(), why },
            true => CallError::Unsure { url: url.clone(), why },
        })?;
        if status.is_success() {
            Ok(body)
        } else {
            Err(CallError::Refused { url, why: format!("{status}: {}", String::from_utf8_lossy(&body)) })
        }
    }

    /// As [`Self::call`], JSON both ways.
    pub async fn json<R: DeserializeOwned>(
        &self,
        node: BrokerId,
        path: &str,
        deadline: Duration,
        body: &impl Serialize,
    ) -> Result<R, CallError> {
        let answer = self.call(node, path, deadline, Content::json(body)).await?;
        parse_json(node, path, &answer)
    }

    /// A GET that answers JSON.
    pub async fn get_json<R: DeserializeOwned>(
        &self,
        node: BrokerId,
        path: &str,
        deadline: Duration,
    ) -> Result<R, CallError> {
        let answer = self.call(node, path, deadline, Content::None).await?;
        parse_json(node, path, &answer)
    }

    /// A GET that answers JSON, of whoever listens at an address.
    pub async fn get_json_at<R: DeserializeOwned>(
        &self,
        base: &str,
        path: &str,
        deadline: Duration,
    ) -> Result<R, String> {
        get_json(self.transport.as_ref(), format!("{base}{path}"), deadline).await
    }

    async fn raft<R: DeserializeOwned>(
        &self,
        to: NodeId,
        path: &str,
        deadline: Duration,
        body: Vec<u8>,
    ) -> Result<R, CallError> {
        let answer = self.call(to.node, path, deadline, Content::Raft(to, body.into())).await?;
        postcard::from_bytes(&answer)
            .map_err(|error| CallError::Unsure { url: path.to_owned(), why: format!("unreadable answer: {error}") })
    }
}

fn parse_json<R: DeserializeOwned>(node: BrokerId, path: &str, answer: &[u8]) -> Result<R, CallError> {
    serde_json::from_slice(answer).map_err(|error| CallError::Unsure {
        url: format!("node {node}, {path}"),
        why: format!("unreadable answer: {error}"),
    })
}

/// A GET that answers JSON, without a node that it is meant for.
pub(crate) async fn get_json<R: DeserializeOwned>(
    transport: &dyn Transport,
    url: String,
    deadline: Duration,
) -> Result<R, String> {
    let (headers, body) = (Vec::new(), Bytes::new());
    let request = Outbound { method: Method::GET, url: url.clone(), headers, body, deadline };
    let Inbound { status, body } = transport.exchange(request).await.map_err(|error| error.why)?;
    if !status.is_success() {
        return Err(format!("{url} answers {status}"));
    }
    serde_json::from_slice(&body).map_err(|error| format!("{url}: unreadable answer: {error}"))
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("raft messages are plain data")
}

/// Makes a client per peer; they all share one pool of connections.
#[derive(Clone)]
pub(crate) struct Network(pub Arc<Peers>);

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: NodeId, _: &EmptyNode) -> PeerClient {
        PeerClient { peers: Arc::clone(&self.0), target }
    }
}

/// Raft calls to one peer. Every failure is `Unreachable`, which backs off; `Network` would retry at once.
pub(crate) struct PeerClient {
    peers: Arc<Peers>,
    target: NodeId,
}

impl PeerClient {
    async fn rpc<Q: Serialize, R: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
        deadline: Duration,
    ) -> Result<R, RPCError<TypeConfig>> {
        let answer = self.peers.raft(self.target, path, deadline, encode(request)).await;
        answer.map_err(|error| RPCError::Unreachable(Unreachable::from_string(error)))
    }
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let body = encode(&rpc);
        let deadline = if rpc.entries.is_empty() {
            option.soft_ttl()
        } else {
            let kibibytes = u32::try_from(body.len() >> 10).unwrap_or(u32::MAX);
            APPEND_BASE + APPEND_PER_MIB * kibibytes / 1024
        };
        let answer = self.peers.raft(self.target, "/raft/append", deadline, body).await;
        answer.map_err(|error| RPCError::Unreachable(Unreachable::from_string(error)))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.rpc("/raft/vote", &rpc, option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        if planted(Flaw::GrantsPreVotes) {
            return Ok(VoteResponse::new(rpc.vote, None, true));
        }
        self.rpc("/raft/pre-vote", &rpc, option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, Bytes>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let head = encode(&(vote, &snapshot.meta));
        let mut body = u32::try_from(head.len()).expect("a short head").to_be_bytes().to_vec();
        body.extend_from_slice(&head);
        body.extend_from_slice(&snapshot.snapshot);
        let sent = self.peers.raft(self.target, "/raft/snapshot", option.hard_ttl(), body);
        tokio::select! {
            answer = sent => answer.map_err(|error| StreamingError::Unreachable(Unreachable::from_string(error))),
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.rpc("/raft/transfer-leader", &request, option.soft_ttl()).await
    }

    /// 20 ms doubling to 200 ms.
    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(
            (0u32..).map(|step| Duration::from_millis(20 << step.min(4)).min(Duration::from_millis(200))),
        ))
    }
}
