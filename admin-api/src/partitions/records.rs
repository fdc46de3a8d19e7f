//! `POST /topics/{t}/partitions/{p}/records:delete`: the log start of a partition moves, on every live replica.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use highwater_wire::ErrorCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Chosen, one};
use crate::AdminState;
use crate::error::ApiError;
use crate::live::{self, LiveReplica};
use crate::peer::DeletionRefused;
use crate::respond::{Call, Links, Metadata, read_json};
use crate::routes::{self, Route};

/// How long it waits for all live replicas unless `timeout_ms` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// This file's routes.
pub fn routes() -> Vec<Route> {
    let path = "/topics/{topic_name}/partitions/{partition_id}/records:delete";
    vec![
        routes::post(path, delete, "Delete the records below an offset, on all live replicas and for good")
            .takes::<DeleteRecordsBody>(json!({ "before_offset": 0 }))
            .or_takes(
                "A dry run: how much would go, if all below the high watermark went",
                json!({ "before_offset": -1, "validate_only": true }),
            )
            .object::<DeletedRecordsBody>(200)
            .fails(&[
                (400, 40002, "The offset is above the high watermark, or the topic is compacted."),
                (500, 50003, "The leader moved, or not all live replicas followed in time: ask again."),
                (503, 50302, "The partition has no leader, or it did not answer."),
            ]),
    ]
}

/// What is to go.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteRecordsBody {
    /// The first offset to keep; -1: the high watermark, which deletes all that consumers can read.
    before_offset: i64,
    /// Check and tell, delete nothing.
    #[serde(default)]
    validate_only: bool,
}

/// What went (or would go).
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeletedRecordsBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    partition_id: i32,
    /// The first offset that was to be kept.
    before_offset: i64,
    /// How many offsets lay below it.
    deleted_offsets: i64,
    /// The lowest log start of the live replicas; of a dry run, what it would be.
    low_watermark: i64,
    validate_only: bool,
}

/// `POST /topics/{t}/partitions/{p}/records:delete`
///
/// 200 when every live replica has moved its log start and the leader's is durable. Asked of the leader by whichever node
/// got the call. Safe to repeat: a log start never moves back.
pub async fn delete(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let body: DeleteRecordsBody = read_json(&headers, &body)?;
    let timeout = read.params.timeout(TIMEOUT)?;
    let chosen = one(&read, &topic, &partition)?;
    let silent = || ApiError::leader_silent(&chosen.topic.name, chosen.partition, chosen.state.leader);
    let leader = chosen.state.leader.ok_or_else(silent)?;
    let live = live::from_leaders(&admin, &read.image, std::iter::once(chosen.at())).await;
    let live = live.get(&chosen.at()).ok_or_else(silent)?;
    let before = check(&chosen, live, body.before_offset)?;
    let low_watermark = if body.validate_only {
        before.max(live.log_start_offset)
    } else {
        let at = chosen.at();
        let deleted = if leader == admin.config.node {
            let view = admin.replicas.get().ok_or_else(silent)?;
            let deleted = view.delete_records(at, body.before_offset, timeout).await;
            Some(deleted.map_err(DeletionRefused::from))
        } else {
            admin.peers.delete_records(&admin.quorum, leader, at, body.before_offset, timeout).await
        };
        match deleted {
            Some(Ok(low_watermark)) => low_watermark,
            Some(Err(refused)) => return Err(error(&chosen, refused)),
            None => {
                let why = format!(
                    "broker {leader}, which leads {}-{}, did not answer: the records may or may not be deleted; ask again",
                    chosen.topic.name, chosen.partition
                );
                return Err(ApiError::retriable(ErrorCode::RequestTimedOut, why));
            }
        }
    };
    let body = answer(&read.links, &chosen, live, before, low_watermark, body.validate_only);
    read.object(StatusCode::OK, &body)
}

/// The first offset to keep.
fn check(chosen: &Chosen<'_>, live: &LiveReplica, before: i64) -> Result<i64, ApiError> {
    let (name, number, end) = (&chosen.topic.name, chosen.partition, live.high_watermark);
    if !chosen.topic.config.cleanup.delete {
        let why = format!("cleanup.policy of {name} is compact: records are deleted by key, not by offset");
        return Err(ApiError::refused(ErrorCode::PolicyViolation, why));
    }
    match before {
        HIGH_WATERMARK => Ok(end),
        before if (0..=end).contains(&before) => Ok(before),
        before => {
            let why = format!(
                "before_offset {before} is outside {name}-{number}: give one from 0 to its high watermark {end}, or -1 \
                 for that"
            );
            Err(ApiError::refused(ErrorCode::OffsetOutOfRange, why))
        }
    }
}

fn error(chosen: &Chosen<'_>, refused: DeletionRefused) -> ApiError {
    let at = format!("{}-{}", chosen.topic.name, chosen.partition);
    match refused.code() {
        ErrorCode::RequestTimedOut => ApiError::retriable(
            ErrorCode::RequestTimedOut,
            format!("not every live replica of {at} has deleted the records yet; they will: ask again to be sure"),
        ),
        code if code.is_retriable() => ApiError::retriable(code, format!("{at}: {}; ask again", refused.why)),
        code => ApiError::refused(code, format!("{at}: {}", refused.why)),
    }
}

fn answer(
    links: &Links,
    chosen: &Chosen<'_>,
    live: &LiveReplica,
    before: i64,
    low_watermark: i64,
    validate_only: bool,
) -> DeletedRecordsBody {
    DeletedRecordsBody {
        kind: "KafkaDeletedRecords",
        metadata: links.metadata(&chosen.path(), &chosen.names()),
        cluster_id: links.cluster_id().to_owned(),
        topic_name: chosen.topic.name.to_string(),
        partition_id: chosen.partition,
        before_offset: before,
        deleted_offsets: (before - live.log_start_offset).max(0),
        low_watermark,
        validate_only,
    }
}
