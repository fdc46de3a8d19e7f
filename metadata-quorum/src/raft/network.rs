//! Outbound: one HTTP client for all node-to-node calls, every call with a deadline, addresses looked up per call (D5).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

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

use super::types::{NodeId, TypeConfig, Vote};
use crate::image::{Endpoint, MetadataImage};

/// Who a raft call is meant for: `node@directory`.
pub(crate) const TO: &str = "x-highwater-to";
/// The caller's cluster, once it knows it.
pub(crate) const CLUSTER: &str = "x-highwater-cluster";

/// A follower's fdatasync is inside an append with entries (D5).
const APPEND_BASE: Duration = Duration::from_millis(300);
/// Added per MiB of entries.
const APPEND_PER_MIB: Duration = Duration::from_secs(1);

/// How to reach the other nodes. Shared by raft, forwarding, probes and duty.
pub(crate) struct Peers {
    pub http: reqwest::Client,
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
        images: watch::Receiver<Arc<MetadataImage>>,
        voters: BTreeMap<BrokerId, Endpoint>,
        bootstrap: Vec<Endpoint>,
        broken: mpsc::UnboundedSender<BrokerId>,
    ) -> Result<Self, reqwest::Error> {
        // Only the first provider of a process counts; main may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(1))
            .pool_idle_timeout(Duration::from_secs(60))
            .build()?;
        let (learned, misdirected) = (Mutex::default(), Mutex::default());
        Ok(Self { http, images, voters, bootstrap, learned, misdirected, broken })
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
    fn note(&self, node: BrokerId, result: Result<(), &reqwest::Error>) {
        match result {
            Ok(()) => {}
            Err(error) => {
                if error.is_connect() && self.voters.contains_key(&node) {
                    let mut misdirected = self.misdirected.lock();
                    if !misdirected.remove(&node) {
                        misdirected.insert(node);
                    }
                }
                if !error.is_timeout() {
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
        request: impl FnOnce(&reqwest::Client, String) -> reqwest::RequestBuilder,
    ) -> Result<Bytes, CallError> {
        let base = self.url(node).ok_or(CallError::NoAddress(node))?;
        let url = format!("{base}{path}");
        let mut request = request(&self.http, url.clone()).timeout(deadline);
        if let Some(cluster) = self.cluster_id() {
            request = request.header(CLUSTER, cluster.as_ref());
        }
        let unsure = |error: &reqwest::Error| {
            let why = chain(error);
            match error.is_connect() {
                true => CallError::NotSent { url: url.clone(), why },
                false => CallError::Unsure { url: url.clone(), why },
            }
        };
        let response = request.send().await;
        self.note(node, response.as_ref().map(|_| ()));
        let response = response.map_err(|error| unsure(&error))?;
        let status = response.status();
        let body = response.bytes().await;
        self.note(node, body.as_ref().map(|_| ()));
        let body = body.map_err(|error| CallError::Unsure { url: url.clone(), why: chain(&error) })?;
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
        let answer = self.call(node, path, deadline, |http, url| http.post(url).json(body)).await?;
        parse_json(node, path, &answer)
    }

    /// A GET that answers JSON.
    pub async fn get_json<R: DeserializeOwned>(
        &self,
        node: BrokerId,
        path: &str,
        deadline: Duration,
    ) -> Result<R, CallError> {
        let answer = self.call(node, path, deadline, |http, url| http.get(url)).await?;
        parse_json(node, path, &answer)
    }

    /// A GET that answers JSON, of whoever listens at an address.
    pub async fn get_json_at<R: DeserializeOwned>(
        &self,
        base: &str,
        path: &str,
        deadline: Duration,
    ) -> Result<R, String> {
        let answer = async {
            let response = self.http.get(format!("{base}{path}")).timeout(deadline).send().await?;
            response.error_for_status()?.json::<R>().await
        };
        answer.await.map_err(|error| chain(&error))
    }

    async fn raft<R: DeserializeOwned>(
        &self,
        to: NodeId,
        path: &str,
        deadline: Duration,
        body: Vec<u8>,
    ) -> Result<R, CallError> {
        let answer =
            self.call(to.node, path, deadline, |http, url| http.post(url).header(TO, to.to_string()).body(body));
        let answer = answer.await?;
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

/// An error with its causes: reqwest's own text names only the address.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
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
