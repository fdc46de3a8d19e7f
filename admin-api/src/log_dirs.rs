//! `GET /brokers/{broker_id}/log-dirs`: what lies in a broker's log directories, and the room around it.

use axum::extract::{Path, State};
use axum::response::Response;
use highwater_data::handlers::describe_log_dirs::LogDirStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::AdminState;
use crate::brokers;
use crate::error::ApiError;
use crate::live::BUDGET;
use crate::respond::{Call, Metadata, Row};
use crate::routes::{self, Route};

/// Replicas that are told one by one, the largest first.
const LARGEST: usize = 10;

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get(
            "/brokers/{broker_id}/log-dirs",
            list,
            "A broker's log directories: sizes, room, largest partitions",
        )
        .list::<LogDirBody>("KafkaLogDirList")
        .fails(&[(503, 50302, "The broker did not answer.")]),
    ]
}

/// One log directory as its broker sees it; what brokers tell each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveLogDir {
    path: String,
    offline: Option<String>,
    /// (total, usable)
    space: Option<(u64, u64)>,
    replicas: usize,
    bytes: u64,
    largest: Vec<LargePartition>,
}

/// A replica and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LargePartition {
    topic_name: String,
    partition_id: i32,
    size_bytes: u64,
}

impl From<LogDirStatus> for LiveLogDir {
    fn from(mut status: LogDirStatus) -> Self {
        status.replicas.sort_by(|a, b| (b.bytes, a.at).cmp(&(a.bytes, b.at)));
        let largest = status.replicas.iter().take(LARGEST).map(|replica| LargePartition {
            topic_name: replica.topic.to_string(),
            partition_id: replica.at.partition,
            size_bytes: replica.bytes,
        });
        Self {
            largest: largest.collect(),
            replicas: status.replicas.len(),
            bytes: status.replicas.iter().map(|replica| replica.bytes).sum(),
            space: status.space.map(|space| (space.total_bytes, space.usable_bytes)),
            offline: status.offline,
            path: status.path,
        }
    }
}

/// One log directory.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogDirBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    broker_id: i32,
    log_dir: String,
    /// OK, or OFFLINE: nothing is read or written there any more.
    state: &'static str,
    error: Option<String>,
    /// Of the volume it lies on.
    total_bytes: Option<u64>,
    /// What is free there for this broker.
    usable_bytes: Option<u64>,
    /// Of all replicas in it.
    size_bytes: u64,
    replicas_count: usize,
    largest_partitions: Vec<LargePartition>,
}

/// `GET /brokers/{broker_id}/log-dirs`; 503/50302 when the broker does not answer within 2 s.
pub async fn list(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[crate::query::LIST]).await?;
    let broker = brokers::find(&read, &broker)?.id;
    let told = if broker == admin.config.node {
        match admin.replicas.get() {
            Some(view) => view.log_dirs().await.map(|dirs| dirs.into_iter().map(LiveLogDir::from).collect()),
            None => None,
        }
    } else {
        admin.peers.log_dirs(&admin.quorum, broker, BUDGET).await
    };
    let told: Vec<LiveLogDir> = told.ok_or_else(|| {
        ApiError::broker_not_available(format!("broker {broker} did not answer within 2 s: see whether it runs"))
    })?;
    let path = format!("/brokers/{broker}/log-dirs");
    let row = |dir: LiveLogDir| {
        let body = LogDirBody {
            kind: "KafkaLogDir",
            metadata: read.links.metadata(&path, &[format!("broker={broker}"), format!("log-dir={}", dir.path)]),
            cluster_id: read.links.cluster_id().to_owned(),
            broker_id: broker.0,
            state: if dir.offline.is_some() { "OFFLINE" } else { "OK" },
            error: dir.offline,
            total_bytes: dir.space.map(|(total, _)| total),
            usable_bytes: dir.space.map(|(_, usable)| usable),
            size_bytes: dir.bytes,
            replicas_count: dir.replicas,
            largest_partitions: dir.largest,
            log_dir: dir.path,
        };
        Row::new(&[&body.log_dir.clone()], body)
    };
    read.list("KafkaLogDirList", told.into_iter().map(row).collect())
}
