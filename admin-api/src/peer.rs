//! What nodes ask each other for the admin API, over the controller listener (D4): live values of replicas, how far the
//! node itself is, and its own view of the quorum. Both ends are here, so that they cannot drift apart.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use highwater_data::handlers::delete_records::Refused;
use highwater_data::replica::status::ReplicaStatus;
use highwater_data::{Loggers, Phase};
use highwater_quorum::settings::{Effective, effective};
use highwater_quorum::{NodeSettings, QuorumClient, QuorumStatus};
use highwater_wire::{BrokerId, ErrorCode, TopicPartition};
use serde::{Deserialize, Serialize};

use crate::groups;
use crate::groups::live::{GroupAnswer, GroupCall};
use crate::live::{LiveReplica, LocalReplicas};
use crate::log_dirs::LiveLogDir;
use crate::loggers::{self, LevelChange, LiveLogger};

/// Partitions asked for in one call.
const BATCH: usize = 2_000;
/// How much longer than its time-out a deletion's answer may take.
const ANSWER_GRACE: Duration = Duration::from_secs(1);
/// How long a coordinator may take to store a change.
const GROUP_CHANGE: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    partitions: Vec<TopicPartition>,
}

/// One entry per partition asked for, in order; `None`: not hosted here.
type Answered = Vec<Option<LiveReplica>>;

/// The routes that answer other nodes; to be merged into the controller listener.
pub fn replica_router(replicas: LocalReplicas) -> Router {
    Router::new()
        .route("/admin/replicas", post(replicas_here))
        .route("/admin/delete-records", post(delete_records_here))
        .route("/admin/log-dirs", get(log_dirs_here))
        .route("/admin/node", get(node_here))
        .route("/admin/groups", post(groups_here))
        .with_state(replicas)
}

#[derive(Debug, Serialize, Deserialize)]
struct Deletion {
    at: TopicPartition,
    before: i64,
    timeout_ms: u64,
}

/// Why records were not deleted.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeletionRefused {
    code: i16,
    /// For a person.
    pub why: String,
}

impl DeletionRefused {
    /// Kafka's error.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::from_code(self.code)
    }
}

impl From<Refused> for DeletionRefused {
    fn from(refused: Refused) -> Self {
        Self { code: refused.code.code(), why: refused.why }
    }
}

async fn delete_records_here(
    State(replicas): State<LocalReplicas>,
    Json(asked): Json<Deletion>,
) -> Result<Json<Result<i64, DeletionRefused>>, StatusCode> {
    let view = replicas.get().ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let deleted = view.delete_records(asked.at, asked.before, Duration::from_millis(asked.timeout_ms)).await;
    Ok(Json(deleted.map_err(DeletionRefused::from)))
}

async fn log_dirs_here(State(replicas): State<LocalReplicas>) -> Result<Json<Vec<LiveLogDir>>, StatusCode> {
    let view = replicas.get().ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let dirs = view.log_dirs().await.ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(Json(dirs.into_iter().map(LiveLogDir::from).collect()))
}

/// What a node tells of itself as a broker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeReport {
    /// Of its data plane; `STARTING` before there is one.
    pub phase: String,
    /// Its logs are open.
    pub recovered: bool,
    pub logs_open: usize,
    pub logs: usize,
    /// Under which it is registered; `None`: not yet.
    pub broker_epoch: Option<i64>,
    /// The ISRs it has proposed as leader and has no answer for.
    pub proposals: Vec<(TopicPartition, Vec<i32>)>,
}

impl NodeReport {
    /// Of this node.
    pub fn here(replicas: &LocalReplicas) -> Self {
        let Some(view) = replicas.get() else { return Self { phase: "STARTING".to_owned(), ..Self::default() } };
        let node = view.node();
        let pending = |at, status: ReplicaStatus| {
            let proposal = status.leading?.pending?;
            Some((at, proposal.isr.iter().map(|(broker, _)| broker.0).collect()))
        };
        Self {
            phase: node.phase.name().to_owned(),
            recovered: node.phase > Phase::LogRecovery,
            logs_open: node.recovery.logs_open,
            logs: node.recovery.logs,
            broker_epoch: node.epoch.map(|epoch| epoch.0),
            proposals: view.all().into_iter().filter_map(|(at, status)| pending(at, status)).collect(),
        }
    }
}

async fn groups_here(State(replicas): State<LocalReplicas>, Json(call): Json<GroupCall>) -> Json<GroupAnswer> {
    Json(groups::live::here(&replicas, call).await)
}

async fn node_here(State(replicas): State<LocalReplicas>) -> Json<NodeReport> {
    Json(NodeReport::here(&replicas))
}

async fn replicas_here(
    State(replicas): State<LocalReplicas>,
    Json(asked): Json<Asked>,
) -> Result<Json<Answered>, StatusCode> {
    if asked.partitions.len() > BATCH {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    Ok(Json(asked.partitions.into_iter().map(|at| replicas.live(at)).collect()))
}

/// The client half of a node's own view of the quorum, handed in once the quorum has started.
#[derive(Clone, Default)]
pub struct LocalQuorum(std::sync::Arc<std::sync::OnceLock<QuorumClient>>);

impl LocalQuorum {
    /// The quorum is there. Only the first call counts.
    pub fn set(&self, client: QuorumClient) {
        let _ = self.0.set(client);
    }
}

/// Serves this node's view of the quorum to its peers.
pub fn quorum_router(quorum: LocalQuorum) -> Router {
    Router::new().route("/admin/quorum", get(quorum_here)).with_state(quorum)
}

async fn quorum_here(State(quorum): State<LocalQuorum>) -> Result<Json<QuorumStatus>, StatusCode> {
    quorum.0.get().map(|client| Json(client.status())).ok_or(StatusCode::SERVICE_UNAVAILABLE)
}

/// Serves this node's own settings to its peers: what is in its file, nobody else knows.
pub fn settings_router(quorum: LocalQuorum, node: BrokerId, settings: Arc<NodeSettings>) -> Router {
    let here = move || async move {
        let image = quorum.0.get().map(QuorumClient::image).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
        Ok::<_, StatusCode>(Json(effective(&image, node, &settings)))
    };
    Router::new().route("/admin/settings", get(here))
}

/// Serves this node's log levels to its peers.
pub fn loggers_router(loggers: Loggers) -> Router {
    async fn change_here(
        State(loggers): State<Loggers>,
        Json(change): Json<LevelChange>,
    ) -> Json<Result<LiveLogger, String>> {
        Json(change.make(&loggers))
    }
    let here = get(async |State(loggers): State<Loggers>| Json(loggers::here(&loggers)));
    Router::new().route("/admin/loggers", here.post(change_here)).with_state(loggers)
}

/// Calls other nodes' controller listeners.
#[derive(Debug, Clone)]
pub struct Peers {
    http: reqwest::Client,
}

impl Peers {
    /// # Errors
    /// The HTTP client cannot be built.
    pub fn new() -> reqwest::Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(1))
            .pool_max_idle_per_host(4)
            .build()?;
        Ok(Self { http })
    }

    /// Live values of replicas that `broker` hosts, in the order asked for; `None` when it did not answer in `budget`.
    pub async fn replicas(
        &self,
        quorum: &QuorumClient,
        broker: BrokerId,
        partitions: &[TopicPartition],
        budget: Duration,
    ) -> Option<Vec<Option<LiveReplica>>> {
        let url = format!("{}/admin/replicas", quorum.controller_url(broker)?);
        let calls = partitions.chunks(BATCH).map(|chunk| {
            let asked = Asked { partitions: chunk.to_vec() };
            let call = self.http.post(&url).timeout(budget).json(&asked);
            async move {
                let answered: Answered = call.send().await.ok()?.error_for_status().ok()?.json().await.ok()?;
                (answered.len() == asked.partitions.len()).then_some(answered)
            }
        });
        let answers: Option<Vec<Answered>> = futures::future::join_all(calls).await.into_iter().collect();
        answers.map(|answers| answers.into_iter().flatten().collect())
    }

    /// Has the leader of a partition delete the records below `before` (-1: the high watermark); the low watermark. `None`
    /// when it did not answer within `timeout` and a little more: they may be deleted or not.
    pub async fn delete_records(
        &self,
        quorum: &QuorumClient,
        leader: BrokerId,
        at: TopicPartition,
        before: i64,
        timeout: Duration,
    ) -> Option<Result<i64, DeletionRefused>> {
        let url = format!("{}/admin/delete-records", quorum.controller_url(leader)?);
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let call = self.http.post(url).timeout(timeout + ANSWER_GRACE).json(&Deletion { at, before, timeout_ms });
        call.send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// What the coordinators of a broker say; `None` when it did not answer in `budget`.
    pub async fn groups(
        &self,
        quorum: &QuorumClient,
        broker: BrokerId,
        asked: GroupCall,
        budget: Duration,
    ) -> Option<GroupAnswer> {
        let url = format!("{}/admin/groups", quorum.controller_url(broker)?);
        // A change waits for the replicas of the groups' log.
        let budget = if matches!(asked, GroupCall::Tell(_)) { budget } else { budget + GROUP_CHANGE };
        let call = self.http.post(url).timeout(budget).json(&asked);
        call.send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// The log directories of a broker; `None` when it did not answer in `budget`.
    pub async fn log_dirs(&self, quorum: &QuorumClient, broker: BrokerId, budget: Duration) -> Option<Vec<LiveLogDir>> {
        let url = format!("{}/admin/log-dirs", quorum.controller_url(broker)?);
        self.http.get(url).timeout(budget).send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// The settings of `node` as itself tells them; `None` when it did not answer in `budget`.
    pub async fn settings(&self, quorum: &QuorumClient, node: BrokerId, budget: Duration) -> Option<Vec<Effective>> {
        let url = format!("{}/admin/settings", quorum.controller_url(node)?);
        self.http.get(url).timeout(budget).send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// The log levels of `node`; `None` when it did not answer in `budget`.
    pub async fn loggers(&self, quorum: &QuorumClient, node: BrokerId, budget: Duration) -> Option<Vec<LiveLogger>> {
        let url = format!("{}/admin/loggers", quorum.controller_url(node)?);
        self.http.get(url).timeout(budget).send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// Has `node` change a log level; `None` when it did not answer in `budget`.
    pub async fn change_level(
        &self,
        quorum: &QuorumClient,
        node: BrokerId,
        change: &LevelChange,
        budget: Duration,
    ) -> Option<Result<LiveLogger, String>> {
        let url = format!("{}/admin/loggers", quorum.controller_url(node)?);
        let call = self.http.post(url).timeout(budget).json(change);
        call.send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// The view of the quorum that `node` has; `None` when it did not answer in `budget`.
    pub async fn quorum(&self, quorum: &QuorumClient, node: BrokerId, budget: Duration) -> Option<QuorumStatus> {
        let url = format!("{}/admin/quorum", quorum.controller_url(node)?);
        self.http.get(url).timeout(budget).send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// What `node` tells of itself; `None` when it did not answer in `budget`.
    pub async fn node(&self, quorum: &QuorumClient, node: BrokerId, budget: Duration) -> Option<NodeReport> {
        let url = format!("{}/admin/node", quorum.controller_url(node)?);
        self.http.get(url).timeout(budget).send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }
}
