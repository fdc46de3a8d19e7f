//! `PATCH /topics/{topic_name}`: more partitions (REST v3), with named replicas and a dry run as our additions.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use highwater_quorum::PartitionsSpec;
use highwater_quorum::image::Topic;
use highwater_wire::{BrokerId, ErrorCode};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{TopicBody, WRITE_TIMEOUT, read_json};
use crate::AdminState;
use crate::error::ApiError;
use crate::respond::Call;

/// The body of a change. Members that v3 does not know are refused: a typo must not do something else.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateTopicBody {
    /// How many partitions the topic is to have in all: more than now.
    partitions_count: Option<i32>,
    /// Replicas of the new partitions by number, preferred leader first; by default they are placed.
    #[serde(default)]
    replicas_assignments: BTreeMap<String, Vec<i32>>,
    /// Check all, change nothing.
    #[serde(default)]
    validate_only: bool,
}

impl UpdateTopicBody {
    fn spec(&self, topic: &Topic) -> Result<PartitionsSpec, ApiError> {
        let present = topic.partitions.len();
        let assigned = self.replicas_assignments.len();
        let partitions = match self.partitions_count {
            Some(count) => count,
            None if assigned > 0 => i32::try_from(present + assigned).unwrap_or(i32::MAX),
            None => {
                let why = "partitions_count is missing: how many partitions the topic is to have in all";
                return Err(ApiError::invalid_payload(why));
            }
        };
        let mut assignments = BTreeMap::new();
        for (partition, replicas) in &self.replicas_assignments {
            let number = partition.parse::<usize>().ok();
            let replicas: Option<Vec<BrokerId>> = replicas.iter().copied().map(BrokerId::from_wire).collect();
            let (Some(number), Some(replicas)) = (number, replicas) else {
                let why =
                    format!("replicas_assignments: \"{partition}\" is no partition number, or a broker is negative");
                return Err(ApiError::invalid_payload(why));
            };
            assignments.insert(number, replicas);
        }
        if let Some((wanted, given)) = (present..).zip(assignments.keys()).find(|(wanted, given)| wanted != *given) {
            let name = &topic.name;
            let why = format!(
                "replicas_assignments: topic {name} has partitions 0 to {}; {given} is given where {wanted} comes next",
                present - 1
            );
            return Err(ApiError::refused(ErrorCode::InvalidReplicaAssignment, why));
        }
        let assignments = (assigned > 0).then(|| assignments.into_values().collect());
        Ok(PartitionsSpec { topic: topic.name.to_string(), partitions, assignments, validate_only: self.validate_only })
    }
}

/// `PATCH /topics/{topic_name}`
///
/// 200 with the topic as it is then (or would be): a majority of the quorum has stored it and this node knows it;
/// brokers may still be opening their replicas. 400 when Kafka's rules refuse (not more than now, replicas that cannot
/// be). Repeating it after an uncertain answer is safe: it goes on from what is there, or says that nothing is missing.
pub async fn update(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut read = call.read(&admin, &cluster, &[]).await?;
    let body: UpdateTopicBody = read_json(&headers, &body)?;
    let topic = read.image.topic_named(&name).ok_or_else(|| ApiError::unknown_topic(&name))?;
    let spec = body.spec(topic)?;
    let (planned, validate_only) = (usize::try_from(spec.partitions).unwrap_or(0), spec.validate_only);
    let id = admin.quorum.add_partitions(spec, read.params.timeout(WRITE_TIMEOUT)?).await?;
    read.set_image(admin.quorum.image());
    let topic = read.image.topics.get(&id).ok_or_else(|| ApiError::unknown_topic(&name))?;
    let mut answer = TopicBody::new(&read.links, topic);
    if validate_only {
        answer.partitions_count = planned.try_into().unwrap_or(i32::MAX);
    }
    read.object(StatusCode::OK, &answer)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use highwater_quorum::image::{LeaderRecovery, PartitionState, TopicConfig};
    use highwater_wire::{LeaderEpoch, PartitionEpoch, Timestamp, TopicId};
    use serde_json::{Value, json};

    use super::*;

    fn topic(partitions: usize) -> Topic {
        let state = PartitionState {
            replicas: vec![BrokerId(1)],
            directories: vec![],
            adding: vec![],
            removing: vec![],
            isr: vec![BrokerId(1)],
            elr: vec![],
            last_known_elr: vec![],
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            recovery: LeaderRecovery::Recovered,
            last_known_watermark: None,
            leader_since: Timestamp(1),
        };
        Topic {
            id: TopicId::from_bytes([1; 16]),
            name: "t".into(),
            created: Timestamp(1),
            config: Arc::new(TopicConfig::built_in()),
            inherited: Arc::default(),
            partitions: std::iter::repeat_with(|| Arc::new(state.clone())).take(partitions).collect(),
        }
    }

    fn spec(body: Value) -> Result<PartitionsSpec, ApiError> {
        let body: UpdateTopicBody = serde_json::from_value(body).unwrap();
        body.spec(&topic(2))
    }

    #[test]
    fn new_partitions_follow_those_that_are_there() {
        let asked = spec(json!({"partitions_count": 4, "validate_only": true})).unwrap();
        assert_eq!((asked.partitions, asked.assignments, asked.validate_only), (4, None, true));
        let asked = spec(json!({"replicas_assignments": {"3": [2, 1], "2": [1, 2]}})).unwrap();
        assert_eq!(asked.partitions, 4, "the assignment says how many");
        let (a, b) = (BrokerId(1), BrokerId(2));
        assert_eq!(asked.assignments, Some(vec![vec![a, b], vec![b, a]]));
    }

    #[test]
    fn bodies_that_mean_nothing_are_told_apart_from_those_that_kafka_refuses() {
        let code = |body| spec(body).unwrap_err().error_code;
        assert_eq!(code(json!({})), 42206);
        assert_eq!(code(json!({"partitions_count": 3, "replicas_assignments": {"x": [1]}})), 42206);
        assert_eq!(code(json!({"partitions_count": 3, "replicas_assignments": {"2": [-1]}})), 42206);
        assert_eq!(code(json!({"partitions_count": 3, "replicas_assignments": {"1": [1]}})), 40002);
        assert_eq!(code(json!({"partitions_count": 4, "replicas_assignments": {"2": [1], "4": [1]}})), 40002);
    }
}
