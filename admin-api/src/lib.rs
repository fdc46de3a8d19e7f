//! The HTTP admin API: what people and scripts ask a node, and the few things they change (operators.md §1).
//!
//! Thin: a handler translates, asks the quorum's client or the replicas, and translates back. Rules live in the quorum,
//! live values in the data plane. Any node answers; writes are forwarded inside the cluster.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use highwater_data::Loggers;
use highwater_quorum::body::in_one_piece;
use highwater_quorum::image::events::EventId;
use highwater_quorum::status::QuorumRole;
use highwater_quorum::{ImageVersion, NodeSettings, QuorumClient};
use highwater_wire::BrokerId;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::runtime::Handle;

pub mod answers;
mod beats;
mod brokers;
mod changes;
mod clusters;
mod configs;
mod elections;
mod error;
mod events;
mod groups;
mod health;
mod live;
mod log_dirs;
mod loggers;
pub mod metrics;
mod openapi;
mod partitions;
pub mod peer;
mod query;
mod quorum;
mod rates;
mod recovery;
mod respond;
mod restart;
pub mod routes;
mod time;
mod topics;

pub use beats::Beats;
pub use changes::follow;
pub use error::ApiError;
pub use live::{LiveFollower, LiveReplica, LocalReplicas};
pub use time::rfc3339;

/// Which partitions `/metrics` shows (`metrics.partition.level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionMetrics {
    /// None.
    Summary,
    /// Those led here.
    Leader,
    /// All hosted here.
    Full,
}

/// What an operator chooses for the admin API.
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// `node.id`
    pub node: BrokerId,
    /// Whether this node has the broker role; a controller alone hosts no replicas and is ready without them.
    pub broker: bool,
    /// `http.advertised.url`: the base of links when a caller sent no Host.
    pub url: String,
    /// Version of the binary.
    pub version: String,
    /// `controller.quorum.voters`: who is asked for a view before the image knows anybody.
    pub voters: Vec<BrokerId>,
    /// `delete.topic.enable`
    pub delete_topics: bool,
    /// `ready.in.sync.max.wait.ms`
    pub in_sync_wait_max: Duration,
    pub partition_metrics: PartitionMetrics,
    /// This node's own configuration, for whoever asks what is in force.
    pub settings: Arc<NodeSettings>,
    /// The log levels of this process.
    pub loggers: Loggers,
    /// The runtimes of this process beside the data plane's, by name.
    pub pools: Vec<(&'static str, Handle)>,
}

/// What every handler may touch. Cheap to clone.
#[derive(Clone)]
pub struct AdminState(Arc<Shared>);

/// The parts of [`AdminState`].
pub struct Shared {
    pub(crate) config: AdminConfig,
    pub(crate) quorum: QuorumClient,
    pub(crate) replicas: LocalReplicas,
    pub(crate) peers: peer::Peers,
    pub(crate) beats: Beats,
    pub(crate) metrics: Option<PrometheusHandle>,
    pub(crate) rates: rates::CatchUp,
    pub(crate) changes: changes::ChangeCounts,
    pub(crate) started: Instant,
    closing: tokio::sync::watch::Sender<bool>,
}

impl Deref for AdminState {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl AdminState {
    /// `replicas` may be filled in later: until then health says that the data plane has not started.
    ///
    /// # Errors
    /// The HTTP client for other nodes cannot be built.
    pub fn new(
        config: AdminConfig,
        quorum: QuorumClient,
        replicas: LocalReplicas,
        beats: Beats,
        metrics: Option<PrometheusHandle>,
    ) -> Result<Self, reqwest::Error> {
        let position = EventId::end_of(quorum.image().version.0);
        let changes = changes::ChangeCounts::new(time::now_ms(), position);
        Ok(Self(Arc::new(Shared {
            config,
            quorum,
            replicas,
            peers: peer::Peers::new()?,
            beats,
            metrics,
            rates: rates::CatchUp::default(),
            changes,
            started: Instant::now(),
            closing: tokio::sync::watch::channel(false).0,
        })))
    }

    /// `delete.topic.enable`, as it is now.
    pub(crate) fn may_delete_topics(&self) -> bool {
        let now = self.config.settings.flag(&self.quorum.image(), self.config.node, "delete.topic.enable");
        now.unwrap_or(self.config.delete_topics)
    }

    /// `ready.in.sync.max.wait.ms`, as it is now.
    pub(crate) fn in_sync_wait_max(&self) -> Duration {
        let image = self.quorum.image();
        let now = self.config.settings.value(&image, self.config.node, "ready.in.sync.max.wait.ms");
        now.and_then(|text| text.parse().ok()).map_or(self.config.in_sync_wait_max, Duration::from_millis)
    }

    /// `metrics.partition.level`, as it is now.
    pub(crate) fn partition_metrics(&self) -> PartitionMetrics {
        let image = self.quorum.image();
        match self.config.settings.value(&image, self.config.node, "metrics.partition.level") {
            Some("summary") => PartitionMetrics::Summary,
            Some("leader") => PartitionMetrics::Leader,
            Some("full") => PartitionMetrics::Full,
            _ => self.config.partition_metrics,
        }
    }

    /// Ends what would never end by itself: streams of events. Call it when the server is to stop.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Holds `true` from [`Self::close`] on.
    pub(crate) fn closing(&self) -> tokio::sync::watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Whether nothing is committed beyond the metadata of version `seen`.
    async fn is_newest(&self, seen: ImageVersion) -> bool {
        self.quorum.linearizable(CATCH_UP).await.is_ok_and(|image| image.version == seen)
    }

    /// How old the metadata here may be: since a leader was last heard, or since the start when none ever was.
    pub(crate) fn metadata_age_ms(&self) -> u64 {
        let status = self.quorum.status();
        if status.role == QuorumRole::Leader {
            return status.quorum_ack_age_ms.unwrap_or(0);
        }
        let uptime = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        status.leader_heard_age_ms.unwrap_or(uptime)
    }
}

/// The admin API, ready to be served.
pub fn router(admin: AdminState) -> Router {
    let (v3, rest) = routes::routers(routes::all());
    let v3 = v3.method_not_allowed_fallback(async || ApiError::method_not_allowed());
    rest.nest("/v3", v3.clone())
        // Where Confluent Server embeds it.
        .nest("/kafka/v3", v3)
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .fallback(async |request: Request| {
            ApiError::not_found(format!("there is nothing at {}; start at /v3/clusters", request.uri().path()))
        })
        .layer(middleware::from_fn_with_state(admin.clone(), around))
        .with_state(admin)
}

/// How long a node that has just started looks for what it may lack, before it says that something does not exist.
const CATCH_UP: Duration = Duration::from_secs(2);
/// What a path is called that nothing answers to.
const NO_ROUTE: &str = "unknown";
/// The largest body of a request, in bytes.
const BODY_BYTES_MAX: usize = 2 << 20;

/// Around every request: its id, the body of an error, and the count.
async fn around(State(admin): State<AdminState>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get("x-request-id").filter(|id| id.len() <= 200).and_then(|id| id.to_str().ok());
    let request_id = given.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    let route = request.extensions().get::<MatchedPath>().map_or(NO_ROUTE, MatchedPath::as_str).to_owned();
    let began = Instant::now();
    let (holds_all, seen) = (admin.quorum.has_caught_up(), admin.quorum.image().version);
    let path = respond::FullPath(request.uri().path().to_owned());
    request.extensions_mut().insert(path);
    let mut response = match in_one_piece(request, BODY_BYTES_MAX).await {
        Ok(request) => next.run(request).await,
        Err(fault) => ApiError::of_body(&fault).into_response(),
    };
    let mut error = match response.extensions_mut().remove::<ApiError>() {
        Some(error) => Some(error),
        None => ApiError::of_the_framework(&mut response).await,
    };
    if response.status() == StatusCode::NOT_FOUND && route != NO_ROUTE && !holds_all && !admin.is_newest(seen).await {
        let why = "this node has just started and does not hold all metadata yet: ask again, or another node";
        error = Some(ApiError::metadata_too_old(why));
    }
    if let Some(error) = error {
        response =
            respond::plain(error.status, &error.body(&request_id)).unwrap_or_else(|_| error.status.into_response());
    }
    let code = response.status().as_u16().to_string();
    ::metrics::counter!("highwater_admin_requests_total", "route" => route.clone(), "code" => code).increment(1);
    ::metrics::histogram!("highwater_admin_request_seconds", "route" => route).record(began.elapsed());
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}
