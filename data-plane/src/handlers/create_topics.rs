//! CreateTopics (19, v2–7): places and creates through the quorum's one door (D18, R179).
//!
//! Any broker answers; the topic is in this broker's image when it does (R184). v5 tells what was created, v7 its id.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_quorum::client::CreatedTopic;
use highwater_quorum::{QuorumError, TopicSpec};
use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::create_topics_request::CreatableTopic;
use kafka_wire::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use kafka_wire::{CreateTopicsRequest, CreateTopicsResponse};
use kafka_wire_core::{StrBytes, Uuid};

use super::context::Context;
use super::named::{Fault, each_once, message};

/// How long a creation may take that no client set a time-out for.
pub const CREATE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client's time-out is kept within these bounds.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// A client's `TimeoutMs`, within reason.
pub fn timeout(millis: i32) -> Duration {
    match u64::try_from(millis) {
        Ok(millis) if millis > 0 => Duration::from_millis(millis).min(TIMEOUT_MAX),
        _ => CREATE_TIMEOUT,
    }
}

pub async fn handle(context: &Context, version: i16, request: &CreateTopicsRequest) -> CreateTopicsResponse {
    let timeout = timeout(request.timeout_ms);
    let name = |topic: &CreatableTopic| format!("topic {:?}", topic.name.as_str());
    let created = each_once(&request.topics, name, |topic| async move {
        let created = context.quorum.create_topic(spec(topic, request.validate_only)?, timeout).await;
        created.map_err(|error| (ErrorCode::from(&error), explain(&error)))
    });
    let answers = created.await.into_iter().map(|(topic, result)| answer(version, topic, result));
    let mut response = CreateTopicsResponse::default();
    response.topics = answers.collect();
    response
}

/// What a person is told of an error.
pub fn explain(error: &QuorumError) -> String {
    error.to_string()
}

fn spec(topic: &CreatableTopic, validate_only: bool) -> Result<TopicSpec, Fault> {
    let by_hand = !topic.assignments.is_empty();
    if by_hand && (topic.num_partitions != -1 || topic.replication_factor != -1) {
        let why = "with replica assignments, partitions and replication factor must both be -1";
        return Err((ErrorCode::InvalidRequest, why.to_owned()));
    }
    let mut assignments = BTreeMap::new();
    for assignment in &topic.assignments {
        let replicas = assignment.broker_ids.iter().map(|id| BrokerId(*id)).collect();
        if assignments.insert(assignment.partition_index, replicas).is_some() {
            let why = format!("partition {} is assigned twice", assignment.partition_index);
            return Err((ErrorCode::InvalidReplicaAssignment, why));
        }
    }
    let mut configs = BTreeMap::new();
    for config in &topic.configs {
        let Some(value) = &config.value else {
            return Err((ErrorCode::InvalidConfig, format!("{} has no value", config.name.as_str())));
        };
        configs.insert(config.name.as_str().to_owned(), value.as_str().to_owned());
    }
    Ok(TopicSpec {
        name: topic.name.as_str().to_owned(),
        partitions: (topic.num_partitions != -1).then_some(topic.num_partitions),
        replication_factor: (topic.replication_factor != -1).then_some(topic.replication_factor),
        assignments,
        configs,
        validate_only,
    })
}

fn answer(version: i16, topic: &CreatableTopic, result: Result<CreatedTopic, Fault>) -> CreatableTopicResult {
    let mut told = CreatableTopicResult::default();
    told.name = topic.name.clone();
    // Null beside no error, as Kafka answers; the generated default is an empty text.
    told.error_message = None;
    match result {
        Ok(created) => {
            if version >= 7 {
                told.topic_id = Uuid::from_bytes(created.id.to_bytes());
            }
            if version >= 5 {
                told.num_partitions = created.partitions;
                told.replication_factor = created.replication_factor;
                told.configs =
                    Some(topic.configs.iter().map(|config| configured(&config.name, &config.value)).collect());
            }
        }
        Err((code, why)) => {
            told.error_code = code.code();
            told.error_message = message(&why);
        }
    }
    told
}

fn configured(name: &StrBytes, value: &Option<StrBytes>) -> CreatableTopicConfigs {
    /// Set on the topic itself.
    const TOPIC_CONFIG: i8 = 1;
    let mut told = CreatableTopicConfigs::default();
    told.name = name.clone();
    told.value = value.clone();
    told.config_source = TOPIC_CONFIG;
    told
}
