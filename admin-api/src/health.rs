//! Health of the cluster (operators.md 1.4 C) and of this process (1.4 M).

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use highwater_data::Phase;
use highwater_quorum::{MetadataImage, QuorumRole};
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::error::ApiError;
use crate::query::Params;
use crate::respond::{Call, plain};
use crate::routes::{self, Route};

pub mod cluster;

const CLUSTER_PARAMETERS: &[&str] = &["fail"];
const READY_PARAMETERS: &[&str] = &["level"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get(
            "/health",
            cluster::show,
            "Whether the cluster is well; if not, why, since when and because of whom",
        )
        .object::<cluster::HealthBody>(200)
        .object::<cluster::HealthBody>(503)
        .knows(CLUSTER_PARAMETERS),
        routes::get_at("/health/live", live, "Whether each runtime of this process still runs its tasks")
            .object::<LiveBody>(200)
            .object::<LiveBody>(503),
        routes::get_at("/health/startup", startup, "Whether log recovery is over")
            .object::<StartupBody>(200)
            .object::<StartupBody>(503),
        routes::get_at("/health/ready", ready, "Whether this node may serve clients; if not, which checks failed")
            .object::<ReadyBody>(200)
            .object::<ReadyBody>(503)
            .knows(READY_PARAMETERS),
    ]
}

/// Longest silence of a runtime that is still alive.
const BEAT_MAX: Duration = Duration::from_secs(10);
/// Oldest metadata that is still fresh enough to serve.
const METADATA_AGE_MAX_MS: u64 = 5_000;

#[derive(Debug, Serialize, JsonSchema)]
struct LiveBody {
    status: &'static str,
    uptime_s: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    silent: Vec<String>,
}

/// `GET /health/live`: whether each runtime answered its own heartbeat within 10 s. Depends on nothing else.
pub async fn live(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    call.params(&[])?;
    let silent = admin.beats.silent(BEAT_MAX);
    let (status, word) =
        if silent.is_empty() { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "stuck") };
    plain(status, &LiveBody { status: word, uptime_s: admin.started.elapsed().as_secs(), silent })
}

#[derive(Debug, Serialize, JsonSchema)]
struct StartupBody {
    phase: &'static str,
    why: String,
    partitions_done: usize,
    partitions_total: usize,
    bytes_per_s: Option<u64>,
    eta_ms: Option<u64>,
}

/// `GET /health/startup`: 200 once log recovery is over, so that nobody restarts a node that is still recovering.
pub async fn startup(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    call.params(&[])?;
    if !admin.config.broker {
        let body = StartupBody {
            phase: "CONTROLLER",
            why: "this node has no broker role and no logs to recover".to_owned(),
            partitions_done: 0,
            partitions_total: 0,
            bytes_per_s: None,
            eta_ms: None,
        };
        return plain(StatusCode::OK, &body);
    }
    let Some(node) = admin.replicas.get().map(|view| view.node()) else {
        let body = StartupBody {
            phase: "STARTING",
            why: "the data plane has not started yet".to_owned(),
            partitions_done: 0,
            partitions_total: 0,
            bytes_per_s: None,
            eta_ms: None,
        };
        return plain(StatusCode::SERVICE_UNAVAILABLE, &body);
    };
    let recovery = node.recovery;
    let recovering = node.phase == Phase::LogRecovery;
    let elapsed_ms = u64::try_from(admin.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = recovery.bytes_open.saturating_mul(1_000) / elapsed_ms;
    let left = recovery.bytes.saturating_sub(recovery.bytes_open);
    let body = StartupBody {
        phase: node.phase.name(),
        why: node.why,
        partitions_done: recovery.logs_open,
        partitions_total: recovery.logs,
        bytes_per_s: recovering.then_some(rate),
        eta_ms: (recovering && rate > 0).then(|| left.saturating_mul(1_000) / rate),
    };
    let done = node.phase > Phase::LogRecovery;
    plain(if done { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReadyBody {
    ready: bool,
    level: &'static str,
    failed: Vec<FailedBody>,
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct FailedBody {
    check: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl FailedBody {
    fn new(check: &'static str) -> Self {
        Self { check, value_ms: None, count: None, why: None }
    }
}

/// `GET /health/ready`: recovered, registered, unfenced, with fresh metadata and a quorum that answers. A controller
/// alone need not register.
/// `level=in_sync`: also every replica that can be in the ISR is in it, or `ready.in.sync.max.wait.ms` has passed.
pub async fn ready(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    let params: Params = call.params(&[READY_PARAMETERS])?;
    let level = params.word("level", &["serving", "in_sync"], "serving")?;
    let mut failed = not_serving(&admin);
    if level == "in_sync" && admin.started.elapsed() < admin.in_sync_wait_max() {
        let outside = outside_isr(&admin.quorum.image(), admin.config.node);
        if outside > 0 {
            failed.push(FailedBody { count: Some(outside), ..FailedBody::new("IN_SYNC") });
        }
    }
    let ready = failed.is_empty();
    let level = if level == "in_sync" { "in_sync" } else { "serving" };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    plain(status, &ReadyBody { ready, level, failed })
}

fn not_serving(admin: &AdminState) -> Vec<FailedBody> {
    let mut failed = Vec::new();
    match admin.replicas.get().map(|view| view.node()) {
        None if !admin.config.broker => {}
        None => failed.push(FailedBody::new("STARTED")),
        Some(node) => {
            if node.phase != Phase::Serving {
                let why = if node.why.is_empty() { node.phase.name().to_owned() } else { node.why.clone() };
                failed.push(FailedBody { why: Some(why), ..FailedBody::new("SERVING") });
            }
            if !node.unfenced {
                failed.push(FailedBody { value_ms: node.heartbeat_age_ms, ..FailedBody::new("UNFENCED") });
            }
        }
    }
    let quorum = admin.quorum.status();
    if let Some(why) = quorum.failed.clone().or_else(|| quorum.wiped.clone()).or_else(|| quorum.waiting.clone()) {
        failed.push(FailedBody { why: Some(why), ..FailedBody::new("QUORUM_MEMBER") });
    }
    let age = admin.metadata_age_ms();
    if age >= METADATA_AGE_MAX_MS {
        failed.push(FailedBody { value_ms: Some(age), ..FailedBody::new("METADATA_AGE") });
    }
    if quorum.leader.is_none() {
        failed.push(FailedBody::new("LEADER_KNOWN"));
    }
    let ack_age = match quorum.role {
        QuorumRole::Leader => quorum.quorum_ack_age_ms,
        _ => quorum.leader_heard_age_ms,
    };
    if ack_age.is_none_or(|age| age >= 3 * quorum.election_timeout_ms) {
        failed.push(FailedBody { value_ms: ack_age, ..FailedBody::new("QUORUM_ACK_AGE") });
    }
    failed
}

/// Replicas on `broker` that are outside the ISR although somebody leads them.
fn outside_isr(image: &MetadataImage, broker: BrokerId) -> usize {
    let states = image.topics.values().flat_map(|topic| &topic.partitions);
    states
        .filter(|state| state.replicas.contains(&broker) && !state.isr.contains(&broker) && state.leader.is_some())
        .count()
}
