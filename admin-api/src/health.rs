//! Health of the cluster (operators.md 1.4 C) and of this process (1.4 M).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_data::Phase;
use highwater_quorum::MetadataImage;
use highwater_quorum::QuorumRole;
use highwater_quorum::image::{BrokerState, ChangeKind};
use highwater_wire::{BrokerId, TopicPartition};
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::configs;
use crate::error::ApiError;
use crate::partitions::state::states;
use crate::query::Params;
use crate::quorum;
use crate::respond::{Call, Metadata, Related, plain};
use crate::routes::{self, Route};

const CLUSTER_PARAMETERS: &[&str] = &["fail"];
const READY_PARAMETERS: &[&str] = &["level"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get("/health", cluster, "Whether the cluster is well; if not, why, since when and because of whom")
            .object::<HealthBody>(200)
            .object::<HealthBody>(503)
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

#[derive(Debug, Serialize, JsonSchema)]
struct HealthBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    healthy: bool,
    /// Since when something is wrong; `null` while nothing is.
    since_ms: Option<i64>,
    reasons: Vec<ReasonBody>,
    brokers: BrokersBody,
    partitions: PartitionsBody,
    quorum: QuorumBody,
    disk: DiskBody,
    /// Brokers that work with other settings than those set on them, until their next start; of those that answer.
    pending_restart: Vec<i32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReasonBody {
    code: &'static str,
    severity: &'static str,
    count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<Related>,
    cause: CauseBody,
}

/// The smallest set of brokers found that explains the affected partitions.
#[derive(Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct CauseBody {
    brokers: Vec<i32>,
    explains: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BrokersBody {
    total: usize,
    unfenced: usize,
    fenced: Vec<i32>,
    shutting_down: Vec<i32>,
    maintenance: [(); 0],
    decommissioning: [(); 0],
}

/// Partitions by state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PartitionsBody {
    pub total: usize,
    pub offline: usize,
    pub under_min_isr: usize,
    pub at_min_isr: usize,
    pub under_replicated: usize,
    pub elr_only: usize,
    pub not_preferred: usize,
    pub reassigning: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "QuorumHealthBody")]
struct QuorumBody {
    leader_id: Option<i32>,
    leader_epoch: Option<u64>,
    voters: Option<usize>,
    caught_up: Option<usize>,
    can_lose: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DiskBody {
    low: [(); 0],
    read_only: [(); 0],
}

/// Counts the partitions of an image by state.
pub fn count(image: &MetadataImage) -> PartitionsBody {
    let mut counts = PartitionsBody::default();
    for topic in image.topics.values() {
        for state in &topic.partitions {
            counts.total += 1;
            for word in states(state, topic.config.min_isr) {
                match word {
                    "OFFLINE" => counts.offline += 1,
                    "UNDER_MIN_ISR" => counts.under_min_isr += 1,
                    "AT_MIN_ISR" => counts.at_min_isr += 1,
                    "UNDER_REPLICATED" => counts.under_replicated += 1,
                    "ELR_ONLY" => counts.elr_only += 1,
                    "NOT_PREFERRED_LEADER" => counts.not_preferred += 1,
                    "REASSIGNING" => counts.reassigning += 1,
                    _ => {}
                }
            }
        }
    }
    counts
}

/// One kind of trouble with partitions.
struct Trouble {
    /// For each affected partition, the replicas that are missing.
    missing: Vec<BTreeSet<BrokerId>>,
    since_ms: Option<i64>,
}

fn trouble(image: &MetadataImage, word: &str) -> Trouble {
    let mut found = Trouble { missing: Vec::new(), since_ms: None };
    for topic in image.topics.values() {
        for (partition, state) in (0..).zip(&topic.partitions) {
            if states(state, topic.config.min_isr).contains(&word) {
                found.missing.push(state.replicas.iter().filter(|b| !state.isr.contains(b)).copied().collect());
                let since = since(image, TopicPartition::new(topic.id, partition), word);
                found.since_ms = [found.since_ms, since].into_iter().flatten().min();
            }
        }
    }
    found
}

/// When the present trouble of a partition began, as far as its history tells.
fn since(image: &MetadataImage, at: TopicPartition, word: &str) -> Option<i64> {
    let changes = image.history.get(&at)?;
    let lost = |kind: &ChangeKind| match kind {
        ChangeKind::Leader { .. } => word == "OFFLINE",
        ChangeKind::Shrink { .. } => word != "OFFLINE",
        ChangeKind::Expand { .. } | ChangeKind::DataLoss { .. } => false,
    };
    changes.iter().rev().find(|change| lost(&change.kind)).map(|change| change.time.0)
}

/// Greedy: the broker that explains most partitions first, until all are explained that can be.
fn cause(missing: &[BTreeSet<BrokerId>]) -> CauseBody {
    let mut left: Vec<&BTreeSet<BrokerId>> = missing.iter().filter(|set| !set.is_empty()).collect();
    let mut cause = CauseBody::default();
    while !left.is_empty() {
        let mut counts: BTreeMap<BrokerId, usize> = BTreeMap::new();
        for broker in left.iter().copied().flatten() {
            *counts.entry(*broker).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(broker, count)| (**count, std::cmp::Reverse(**broker)));
        let Some((&broker, _)) = most else { break };
        let before = left.len();
        left.retain(|set| !set.contains(&broker));
        cause.explains += before - left.len();
        cause.brokers.push(broker.0);
    }
    cause.brokers.sort_unstable();
    cause
}

/// `GET /health` of the cluster; `fail=true` makes it 503 when something is wrong.
pub async fn cluster(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[CLUSTER_PARAMETERS]).await?;
    let fail = read.params.flag("fail")?;
    let image = &read.image;
    let mut reasons = Vec::new();
    let mut since_ms: Option<i64> = None;
    let kinds = [("OFFLINE", "critical"), ("UNDER_MIN_ISR", "critical"), ("UNDER_REPLICATED", "warning")];
    for (word, severity) in kinds {
        let trouble = trouble(image, word);
        if !trouble.missing.is_empty() {
            since_ms = [since_ms, trouble.since_ms].into_iter().flatten().min();
            reasons.push(ReasonBody {
                code: word,
                severity,
                count: trouble.missing.len(),
                partitions: Some(read.links.related(&format!("/topics/-/partitions/-/state?state={word}"))),
                cause: cause(&trouble.missing),
            });
        }
    }
    let with_state = |state: BrokerState| -> Vec<i32> {
        image.brokers.values().filter(|broker| broker.state == state).map(|broker| broker.id.0).collect()
    };
    let (fenced, shutting_down) = (with_state(BrokerState::Fenced), with_state(BrokerState::ShuttingDown));
    for (code, brokers) in [("BROKER_FENCED", &fenced), ("BROKER_SHUTTING_DOWN", &shutting_down)] {
        if !brokers.is_empty() {
            let since = image.brokers.values().filter(|b| brokers.contains(&b.id.0)).map(|b| b.state_since.0).min();
            since_ms = [since_ms, since].into_iter().flatten().min();
            let cause = CauseBody { brokers: brokers.clone(), explains: brokers.len() };
            reasons.push(ReasonBody { code, severity: "warning", count: brokers.len(), partitions: None, cause });
        }
    }
    let leader = quorum::leader_status(&admin).await;
    match &leader {
        None => reasons.push(ReasonBody {
            code: "NO_QUORUM_LEADER",
            severity: "critical",
            count: 1,
            partitions: None,
            cause: CauseBody::default(),
        }),
        Some(status) if status.voters.len() > 2 && status.can_lose == Some(0) => {
            let silent: Vec<i32> = status
                .peers
                .iter()
                .filter(|peer| peer.voter && peer.contact_age_ms.is_none_or(|age| age > 5_000))
                .map(|peer| peer.member.node.0)
                .collect();
            let cause = CauseBody { explains: silent.len(), brokers: silent };
            reasons.push(ReasonBody {
                code: "QUORUM_CANNOT_LOSE_ONE",
                severity: "warning",
                count: 1,
                partitions: None,
                cause,
            });
        }
        Some(_) => {}
    }
    let healthy = reasons.is_empty();
    let body = HealthBody {
        kind: "KafkaClusterHealth",
        metadata: read.links.metadata("/health", &["health".to_owned()]),
        cluster_id: read.links.cluster_id().to_owned(),
        healthy,
        since_ms,
        reasons,
        brokers: BrokersBody {
            total: image.brokers.size(),
            unfenced: image.brokers.values().filter(|broker| broker.state != BrokerState::Fenced).count(),
            fenced,
            shutting_down,
            maintenance: [],
            decommissioning: [],
        },
        partitions: count(image),
        quorum: QuorumBody {
            leader_id: leader.as_ref().map(|status| status.node.0),
            leader_epoch: leader.as_ref().map(|status| status.term),
            voters: leader.as_ref().map(|status| status.voters.len()),
            caught_up: leader.as_ref().map(quorum::caught_up_voters),
            can_lose: leader.as_ref().and_then(|status| status.can_lose),
        },
        disk: DiskBody { low: [], read_only: [] },
        pending_restart: configs::pending_restart(&admin, &read).await,
    };
    read.object(if healthy || !fail { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
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

/// `GET /health/ready`: recovered, registered, unfenced, with fresh metadata and a quorum that answers.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_smallest_set_of_brokers_that_explains_all() {
        let set = |ids: &[i32]| ids.iter().map(|id| BrokerId(*id)).collect::<BTreeSet<_>>();
        let missing = [set(&[1]), set(&[1, 2]), set(&[1, 3]), set(&[3])];
        assert_eq!(cause(&missing), CauseBody { brokers: vec![1, 3], explains: 4 });
        assert_eq!(cause(&[]), CauseBody::default());
    }
}
