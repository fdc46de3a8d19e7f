//! A group is deleted, or its positions are moved, while nobody is in it.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::lag::PartitionLag;
use super::live::{self, GroupCall};
use super::{Ends, FAILURES, find, name_of, path_of};
use crate::AdminState;
use crate::error::ApiError;
use crate::respond::{Call, Metadata, read_json};
use crate::routes::{self, Failure, Route};

const MEMBERS: &[Failure] = &[(409, 40912, "the group has members")];

/// This file's routes; `one` is the path of a group.
pub fn routes(one: &str) -> Vec<Route> {
    vec![
        routes::delete(one, delete, "Delete a group that nobody is in, with its positions")
            .fails(FAILURES)
            .fails(MEMBERS)
            .example("consumer_group_id", "retired")
            .empty(204),
        routes::post(
            "/consumer-groups/{consumer_group_id}/offsets:reset",
            reset,
            "Move the positions of a group that nobody is in; with validate_only, only say where they would be",
        )
        .takes::<ResetBody>(json!({ "to": "EARLIEST", "validate_only": true }))
        .or_takes(
            "Of one topic, a hundred records back",
            json!({ "to": "SHIFT_BY", "value": -100, "topics": ["orders"], "validate_only": true }),
        )
        .object::<ResetAnswer>(200)
        .fails(FAILURES)
        .fails(MEMBERS),
    ]
}

/// Where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum To {
    Earliest,
    Latest,
    /// `value`: the offset.
    Offset,
    /// `value`: by how many records, back where it is negative.
    ShiftBy,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResetBody {
    to: To,
    value: Option<i64>,
    /// Left out: all that the group has positions in.
    topics: Option<Vec<String>>,
    #[serde(default)]
    validate_only: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ResetAnswer {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    consumer_group_id: String,
    /// Nothing was changed.
    validate_only: bool,
    offsets: Vec<MovedBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MovedBody {
    topic_name: String,
    partition_id: i32,
    before_offset: Option<i64>,
    after_offset: i64,
    /// Records between the new position and the end.
    lag: i64,
}

/// `DELETE /consumer-groups/{g}`
async fn delete(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    live::of_group(&admin, &read.image, &name, GroupCall::Delete(name.clone())).await?;
    Ok(read.empty(StatusCode::NO_CONTENT))
}

/// Where a partition's position goes: never outside its log.
fn target(lag: &PartitionLag<'_>, to: To, value: i64) -> Option<i64> {
    let (start, end) = (lag.log_start_offset?, lag.log_end_offset?);
    let wanted = match to {
        To::Earliest => start,
        To::Latest => end,
        To::Offset => value,
        To::ShiftBy => lag.current_offset.unwrap_or(start).saturating_add(value),
    };
    Some(wanted.clamp(start, end))
}

/// `POST /consumer-groups/{g}/offsets:reset`
async fn reset(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let body: ResetBody = read_json(&headers, &body)?;
    let value = match (body.to, body.value) {
        (To::Offset | To::ShiftBy, Some(value)) => value,
        (To::Offset | To::ShiftBy, None) => {
            return Err(ApiError::invalid_payload("value is missing: OFFSET and SHIFT_BY need one"));
        }
        (To::Earliest | To::Latest, None) => 0,
        (To::Earliest | To::Latest, Some(_)) => {
            return Err(ApiError::invalid_payload("value is given, but EARLIEST and LATEST take none"));
        }
    };
    let group = find(&admin, &read, &name).await?;
    let ends = Ends::of_one(&admin, &read.image, &group).await;
    let lags = ends.lags(&group);
    let named = |lag: &&PartitionLag<'_>| body.topics.as_ref().is_none_or(|all| all.iter().any(|one| one == lag.topic));
    if let Some(missing) = body.topics.iter().flatten().find(|one| lags.iter().all(|lag| lag.topic != one.as_str())) {
        return Err(ApiError::invalid_payload(format!("group {name:?} has no position in topic {missing:?}")));
    }
    let mut moved = Vec::new();
    for lag in lags.iter().filter(named) {
        let Some(after) = target(lag, body.to, value) else {
            let text =
                format!("the leader of {}-{} does not tell where its log ends: ask again", lag.topic, lag.partition);
            return Err(ApiError::broker_not_available(text));
        };
        moved.push(MovedBody {
            topic_name: lag.topic.to_owned(),
            partition_id: lag.partition,
            before_offset: lag.current_offset,
            after_offset: after,
            lag: lag.log_end_offset.map_or(0, |end| end - after),
        });
    }
    if !body.validate_only {
        let positions =
            moved.iter().map(|moved| (moved.topic_name.clone(), moved.partition_id, moved.after_offset)).collect();
        live::of_group(&admin, &read.image, &name, GroupCall::Reset(name.clone(), positions)).await?;
    }
    let answer = ResetAnswer {
        kind: "KafkaConsumerGroupOffsetsReset",
        metadata: read.links.metadata(&format!("{}/offsets", path_of(&name)), &[name_of(&name)]),
        cluster_id: read.links.cluster_id().to_owned(),
        consumer_group_id: name,
        validate_only: body.validate_only,
        offsets: moved,
    };
    read.object(StatusCode::OK, &answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_moves_within_its_log() {
        let lag = |current_offset| PartitionLag {
            topic: "t",
            partition: 0,
            current_offset,
            committed_at_ms: None,
            log_end_offset: Some(90),
            log_start_offset: Some(10),
            member: None,
        };
        let at = |to, value| target(&lag(Some(50)), to, value);
        assert_eq!((at(To::Earliest, 0), at(To::Latest, 0)), (Some(10), Some(90)));
        assert_eq!((at(To::Offset, 60), at(To::Offset, 5), at(To::Offset, 91)), (Some(60), Some(10), Some(90)));
        assert_eq!(
            (at(To::ShiftBy, -3), at(To::ShiftBy, -300), at(To::ShiftBy, i64::MAX)),
            (Some(47), Some(10), Some(90))
        );
        assert_eq!(target(&lag(None), To::ShiftBy, 4), Some(14), "nothing committed: from the beginning");
        assert_eq!(target(&PartitionLag { log_end_offset: None, ..lag(None) }, To::Latest, 0), None);
    }
}
