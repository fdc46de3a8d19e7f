//! Inbound: raft RPCs, heartbeats, forwarded proposals, probes – one axum router on the controller listener (D4).
//!
//! Raft bodies are postcard, the rest is JSON that a person can curl.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use highwater_wire::{BrokerEpoch, BrokerId, DirectoryId};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, VoteRequest,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::formation::FormationAnswer;
use super::network::{CLUSTER, TO};
use super::node::{Node, Reply};
use super::snapshot;
use super::types::{SnapshotMeta, TypeConfig, Vote};
use crate::body::{self, BodyFault};
use crate::client::{Heartbeat, HeartbeatAnswer};
use crate::controller::{Answer, Command, KnownWatermark};
use crate::duty;
use crate::status::{ProbeAnswer, QuorumStatus};
use crate::voters::{VoterChange, VoterChangeStatus};

/// Appends hold up to 1 MiB of entries, and one entry more.
const RPC_BYTES_MAX: usize = 8 << 20;
const SNAPSHOT_BYTES_MAX: usize = 1 << 30;
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// A forwarded proposal.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProposeRequest {
    pub command: Command,
    pub timeout_ms: u64,
}

/// A suspicion (D7).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SuspectRequest {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
}

/// Watermarks of partitions that a broker leads, told to a voter (D12).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WatermarkReport {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
    pub watermarks: Vec<KnownWatermark>,
}

/// A change of the voters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VoterRequest {
    pub change: VoterChange,
    pub timeout_ms: u64,
}

/// Another leader for the quorum.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TransferRequest {
    pub target: BrokerId,
    pub timeout_ms: u64,
}

/// Who asks for `/formation`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FormationQuery {
    pub node: BrokerId,
    /// As printed: 22 characters of base64.
    pub directory: String,
}

type NodeState = State<Arc<Node>>;

/// All routes of this crate; `extra` is the admin API's peer reads.
pub(crate) fn router(node: Arc<Node>, extra: Router) -> Router {
    let raft = Router::new()
        .route("/raft/append", post(append))
        .route("/raft/vote", post(vote))
        .route("/raft/pre-vote", post(pre_vote))
        .route("/raft/transfer-leader", post(transfer_leader));
    let snapshot = Router::new().route("/raft/snapshot", post(install_snapshot));
    let rest = Router::new()
        .route("/heartbeat", post(heartbeat))
        .route("/propose", post(propose))
        .route("/suspect", post(suspect))
        .route("/watermarks", post(watermarks))
        .route("/probe", get(probe))
        .route("/formation", get(formation))
        .route("/read-index", post(read_index))
        .route("/status", get(status))
        .route("/voters", post(change_voters))
        .route("/transfer-leadership", post(transfer_leadership));
    let routes = bounded(raft, RPC_BYTES_MAX);
    let routes = routes.merge(bounded(snapshot, SNAPSHOT_BYTES_MAX)).merge(bounded(rest, REQUEST_BYTES_MAX));
    routes.with_state(node).merge(extra)
}

/// Routes whose bodies have at most so many bytes.
fn bounded(routes: Router<Arc<Node>>, bytes_max: usize) -> Router<Arc<Node>> {
    let read = move |request: Request, next: Next| async move {
        match body::in_one_piece(request, bytes_max).await {
            Ok(request) => next.run(request).await,
            Err(fault @ BodyFault::TooLarge { .. }) => {
                (StatusCode::PAYLOAD_TOO_LARGE, fault.to_string()).into_response()
            }
            Err(fault) => (StatusCode::BAD_REQUEST, fault.to_string()).into_response(),
        }
    };
    routes.layer(middleware::from_fn(read)).layer(DefaultBodyLimit::max(bytes_max))
}

/// Refuses what is meant for another disk or another cluster (D1).
fn check_target(node: &Node, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let refuse = |why: String| Err(Box::new((StatusCode::MISDIRECTED_REQUEST, why).into_response()));
    let me = node.id.to_string();
    match header(TO) {
        Some(to) if to == me => {}
        to => return refuse(format!("this is {me}, not {}", to.unwrap_or("given"))),
    }
    match (header(CLUSTER), node.cluster_id()) {
        (Some(theirs), Some(ours)) if theirs != ours => refuse(format!("this is cluster {ours}, not {theirs}")),
        _ => Ok(()),
    }
}

fn postcard_body(value: &impl Serialize) -> Response {
    postcard::to_stdvec(value).expect("raft messages are plain data").into_response()
}

/// One raft RPC: check, decode, ask raft, encode.
async fn rpc<Q, R, E, F>(node: &Node, headers: &HeaderMap, body: &[u8], ask: impl FnOnce(Q) -> F) -> Response
where
    Q: DeserializeOwned,
    R: Serialize,
    E: std::fmt::Display,
    F: Future<Output = Result<R, E>>,
{
    if let Err(refused) = check_target(node, headers) {
        return *refused;
    }
    let request = match postcard::from_bytes(body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("unreadable raft message: {error}")).into_response(),
    };
    match ask(request).await {
        Ok(answer) => postcard_body(&answer),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

async fn append(State(node): NodeState, headers: HeaderMap, body: Bytes) -> Response {
    let ask = |request: AppendEntriesRequest<TypeConfig>| async {
        let answer = node.raft.append_entries(request).await;
        // One that is outvoted leads no more, whatever it says.
        if answer.as_ref().is_ok_and(|answer| !matches!(answer, AppendEntriesResponse::HigherVote(_))) {
            node.note_leader();
        }
        answer
    };
    rpc(&node, &headers, &body, ask).await
}

async fn vote(State(node): NodeState, headers: HeaderMap, body: Bytes) -> Response {
    rpc(&node, &headers, &body, |request: VoteRequest<TypeConfig>| node.raft.vote(request)).await
}

async fn pre_vote(State(node): NodeState, headers: HeaderMap, body: Bytes) -> Response {
    rpc(&node, &headers, &body, |request: VoteRequest<TypeConfig>| node.raft.pre_vote(request)).await
}

async fn transfer_leader(State(node): NodeState, headers: HeaderMap, body: Bytes) -> Response {
    let ask = |request: TransferLeaderRequest<TypeConfig>| node.raft.handle_transfer_leader(request);
    rpc(&node, &headers, &body, ask).await
}

/// `u32` length, postcard (vote, meta), then the snapshot's bytes.
pub(super) fn parse_snapshot(body: &Bytes) -> Option<(Vote, SnapshotMeta, Bytes)> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (vote, meta) = postcard::from_bytes(rest.get(..length)?).ok()?;
    Some((vote, meta, body.slice(4 + length..)))
}

async fn install_snapshot(State(node): NodeState, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refused) = check_target(&node, &headers) {
        return *refused;
    }
    let Some((vote, meta, snapshot)) = parse_snapshot(&body) else {
        return (StatusCode::BAD_REQUEST, "unreadable snapshot message").into_response();
    };
    // Once raft has it, one that cannot be read ends this node.
    if let Err(error) = snapshot::decode(&snapshot) {
        return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
    }
    node.note_leader();
    match node.raft.install_full_snapshot(vote, openraft::Snapshot { meta, snapshot }).await {
        Ok(SnapshotResponse { vote, .. }) => postcard_body(&SnapshotResponse::<TypeConfig>::new(vote)),
        Err(fatal) => (StatusCode::SERVICE_UNAVAILABLE, fatal.to_string()).into_response(),
    }
}

async fn heartbeat(State(node): NodeState, Json(heartbeat): Json<Heartbeat>) -> Json<Reply<HeartbeatAnswer>> {
    Json(duty::on_heartbeat(&node, heartbeat).await)
}

async fn propose(State(node): NodeState, Json(request): Json<ProposeRequest>) -> Json<Reply<(Answer, u64)>> {
    let timeout = Duration::from_millis(request.timeout_ms);
    Json(duty::propose_as_leader(&node, request.command, timeout).await)
}

async fn suspect(State(node): NodeState, Json(request): Json<SuspectRequest>) -> StatusCode {
    duty::suspect(&node, request.broker, Some(request.epoch));
    StatusCode::ACCEPTED
}

async fn watermarks(State(node): NodeState, Json(report): Json<WatermarkReport>) -> StatusCode {
    duty::on_watermarks(&node, &report);
    StatusCode::ACCEPTED
}

async fn probe(State(node): NodeState) -> Json<ProbeAnswer> {
    Json(ProbeAnswer {
        cluster_id: node.cluster_id(),
        node: node.id.node,
        directory: node.id.directory,
        incarnation: node.incarnation,
        may_vote: node.roles.controller,
    })
}

async fn formation(State(node): NodeState, Query(query): Query<FormationQuery>) -> Response {
    let directory = match query.directory.parse::<DirectoryId>() {
        Ok(directory) => directory,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    match FormationAnswer::of(&node, query.node, directory).await {
        Ok(answer) => Json(answer).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn read_index(State(node): NodeState) -> Json<Reply<u64>> {
    Json(node.read_index_here().await)
}

async fn change_voters(State(node): NodeState, Json(request): Json<VoterRequest>) -> Json<Reply<VoterChangeStatus>> {
    let timeout = Duration::from_millis(request.timeout_ms);
    Json(node.change_voters(request.change, timeout).await)
}

async fn transfer_leadership(State(node): NodeState, Json(request): Json<TransferRequest>) -> Json<Reply<()>> {
    Json(node.transfer_leadership(request.target, Duration::from_millis(request.timeout_ms)).await)
}

async fn status(State(node): NodeState) -> Json<QuorumStatus> {
    Json(node.status())
}
