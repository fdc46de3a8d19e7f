//! `/topics`: list, create, show, delete (REST v3); `topics/update.rs` changes one.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use highwater_quorum::image::Topic;
use highwater_quorum::{CreatedTopic, TopicSpec};
use highwater_wire::{BrokerId, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::AdminState;
use crate::error::ApiError;
use crate::query::LIST;
use crate::respond::{Call, Links, Metadata, Related, Row, WRITE_TIMEOUT, read_json};
use crate::routes::{self, Route};

mod update;

const LIST_FILTERS: &[&str] = &["topic"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get("/topics", list, "All topics").list::<TopicBody>("KafkaTopicList").knows(LIST_FILTERS),
        routes::post("/topics", create, "Create a topic; `validate_only` checks all, changes nothing and answers 200")
            .takes::<CreateTopicBody>(json!({ "topic_name": "payments", "partitions_count": 3 }))
            .or_takes(
                "A dry run with named replicas and a configuration",
                json!({
                    "topic_name": "audit", "replicas_assignments": { "0": [1, 2], "1": [2, 3] },
                    "configs": [{ "name": "retention.ms", "value": "86400000" }], "validate_only": true,
                }),
            )
            .object::<TopicBody>(201)
            .object::<TopicBody>(200),
        routes::get("/topics/{topic_name}", show, "One topic: its size, factor and id").object::<TopicBody>(200),
        routes::patch("/topics/{topic_name}", update::update, "Add partitions; those that are there stay as they are")
            .takes::<update::UpdateTopicBody>(json!({ "partitions_count": 6 }))
            .or_takes("A dry run", json!({ "partitions_count": 12, "validate_only": true }))
            .object::<TopicBody>(200)
            .example("topic_name", "payments"),
        routes::delete("/topics/{topic_name}", delete, "Delete a topic; its files go in the background")
            .example("topic_name", "payments")
            .empty(204),
    ]
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct TopicBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    is_internal: bool,
    replication_factor: i16,
    partitions_count: i32,
    partitions: Related,
    configs: Related,
    partition_reassignments: Related,
    authorized_operations: [(); 0],
    // Ours from here on.
    topic_id: Option<String>,
    min_insync_replicas: Option<usize>,
    created_ms: Option<i64>,
    /// What the creator should know, such as a capped replication factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl TopicBody {
    fn new(links: &Links, topic: &Topic) -> Self {
        let replicas = topic.partitions.first().map_or(0, |state| state.replicas.len());
        Self {
            topic_id: Some(topic.id.to_string()),
            min_insync_replicas: Some(topic.config.min_isr),
            created_ms: Some(topic.created.0),
            ..Self::planned(links, &topic.name, topic.partitions.len(), replicas)
        }
    }

    /// As it would be.
    fn planned(links: &Links, name: &str, partitions: usize, replicas: usize) -> Self {
        let path = path(name);
        Self {
            kind: "KafkaTopic",
            metadata: links.metadata(&path, &[format!("topic={name}")]),
            cluster_id: links.cluster_id().to_owned(),
            topic_name: name.to_owned(),
            is_internal: name.starts_with("__"),
            replication_factor: replicas.try_into().unwrap_or(i16::MAX),
            partitions_count: partitions.try_into().unwrap_or(i32::MAX),
            partitions: links.related(&format!("{path}/partitions")),
            configs: links.related(&format!("{path}/configs")),
            partition_reassignments: links.related(&format!("{path}/partitions/-/reassignment")),
            authorized_operations: [],
            topic_id: None,
            min_insync_replicas: None,
            created_ms: None,
            note: None,
        }
    }
}

/// The path of a topic below the cluster. Names need no encoding: Kafka allows letters, digits, `.`, `_` and `-` only.
fn path(name: &str) -> String {
    format!("/topics/{name}")
}

/// The body of a creation. Members that v3 does not know are refused: a typo must not create something else.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTopicBody {
    topic_name: Option<String>,
    partitions_count: Option<i32>,
    replication_factor: Option<i16>,
    #[serde(default)]
    replicas_assignments: BTreeMap<String, Vec<i32>>,
    #[serde(default)]
    configs: Vec<ConfigBody>,
    #[serde(default)]
    validate_only: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConfigBody {
    name: String,
    value: Option<String>,
}

impl TryFrom<CreateTopicBody> for TopicSpec {
    type Error = ApiError;

    fn try_from(body: CreateTopicBody) -> Result<Self, ApiError> {
        let name = body.topic_name.ok_or_else(|| ApiError::invalid_payload("topic_name is missing"))?;
        if name == "-" {
            return Err(ApiError::invalid_payload(
                "\"-\" means all topics in paths of this API, so a topic of that name could not be reached: choose \
                 another name",
            ));
        }
        let mut assignments = BTreeMap::new();
        for (partition, replicas) in body.replicas_assignments {
            let number = partition.parse::<i32>().ok().filter(|number| *number >= 0).ok_or_else(|| {
                ApiError::invalid_payload(format!("replicas_assignments: \"{partition}\" is no partition number"))
            })?;
            let replicas: Option<Vec<BrokerId>> = replicas.into_iter().map(BrokerId::from_wire).collect();
            let replicas = replicas.ok_or_else(|| {
                ApiError::invalid_payload(format!("replicas_assignments: partition {number} names a negative broker"))
            })?;
            assignments.insert(number, replicas);
        }
        // v3 lets callers repeat what an assignment says anyway; -1 is Kafka's "default".
        let partitions = body.partitions_count.filter(|count| *count != -1);
        let factor = body.replication_factor.filter(|factor| *factor != -1);
        if !assignments.is_empty() {
            let same_count = partitions.is_none_or(|count| usize::try_from(count) == Ok(assignments.len()));
            let same_factor =
                factor.is_none_or(|factor| assignments.values().all(|r| usize::try_from(factor) == Ok(r.len())));
            if !same_count || !same_factor {
                return Err(ApiError::refused(
                    ErrorCode::InvalidRequest,
                    "replicas_assignments says something else than partitions_count or replication_factor: leave those \
                     away",
                ));
            }
        }
        let mut configs = BTreeMap::new();
        for config in body.configs {
            // A null value means the default, as in v3.
            let Some(value) = config.value else { continue };
            if configs.insert(config.name.clone(), value).is_some() {
                return Err(ApiError::invalid_payload(format!("configs: {} is listed twice", config.name)));
            }
        }
        let explicit = !assignments.is_empty();
        Ok(Self {
            name,
            partitions: partitions.filter(|_| !explicit),
            replication_factor: factor.filter(|_| !explicit),
            assignments,
            configs,
            validate_only: body.validate_only,
        })
    }
}

/// `GET /topics`; filter `topic`.
pub async fn list(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, LIST_FILTERS]).await?;
    let names = read.params.filter("topic", None)?;
    let rows = read
        .image
        .topics
        .values()
        .filter(|topic| names.admits(&topic.name))
        .map(|topic| Row::new(&[&topic.name], TopicBody::new(&read.links, topic)))
        .collect();
    read.list("KafkaTopicList", rows)
}

/// `POST /topics`: creates a topic.
///
/// 201 once a majority of the quorum has stored it and this node knows it; brokers may still be opening their replicas.
/// 400 when Kafka's rules refuse (name taken, too few brokers, bad configuration), 422 for a name or body that cannot
/// be, 503 without a raft leader. `validate_only` checks all, changes nothing and answers 200.
pub async fn create(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut read = call.read(&admin, &cluster, &[]).await?;
    let body: CreateTopicBody = read_json(&headers, &body)?;
    let spec = TopicSpec::try_from(body)?;
    let (name, validate_only) = (spec.name.clone(), spec.validate_only);
    // Placement, proposal and the wait for our own image: one door for HTTP and Kafka (D18).
    let created = admin.quorum.create_topic(spec, read.params.timeout(WRITE_TIMEOUT)?).await?;
    read.set_image(admin.quorum.image());
    let mut answer = planned(&read.links, &name, &created);
    if !validate_only && let Some(topic) = read.image.topics.get(&created.id) {
        answer = TopicBody::new(&read.links, topic);
    }
    answer.note = created.note;
    let status = if validate_only { StatusCode::OK } else { StatusCode::CREATED };
    let mut response = read.object(status, &answer)?;
    if let Ok(location) = HeaderValue::from_str(&answer.metadata.itself) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

fn planned(links: &Links, name: &str, created: &CreatedTopic) -> TopicBody {
    let partitions = usize::try_from(created.partitions).unwrap_or(0);
    TopicBody::planned(links, name, partitions, usize::try_from(created.replication_factor).unwrap_or(0))
}

/// `GET /topics/{topic_name}`
pub async fn show(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let topic = read.image.topic_named(&name).ok_or_else(|| ApiError::unknown_topic(&name))?;
    read.object(StatusCode::OK, &TopicBody::new(&read.links, topic))
}

/// `DELETE /topics/{topic_name}`: 204 once a majority of the quorum has stored it; files go in the background.
pub async fn delete(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut read = call.read(&admin, &cluster, &[]).await?;
    if !admin.may_delete_topics() {
        return Err(ApiError::refused(ErrorCode::TopicDeletionDisabled, "delete.topic.enable is false on this node"));
    }
    let id = read.image.topic_named(&name).ok_or_else(|| ApiError::unknown_topic(&name))?.id;
    admin.quorum.delete_topic(id, read.params.timeout(WRITE_TIMEOUT)?).await?;
    read.set_image(admin.quorum.image());
    Ok(read.empty(StatusCode::NO_CONTENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(body: &str) -> Result<TopicSpec, ApiError> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        read_json::<CreateTopicBody>(&headers, body.as_bytes()).and_then(TopicSpec::try_from)
    }

    #[test]
    fn a_creation_says_what_it_says() {
        let spec = spec(
            r#"{"topic_name":"orders","partitions_count":12,"replication_factor":3,"configs":[{"name":"flush.messages","value":"1"},{"name":"retention.ms","value":null}]}"#,
        )
        .unwrap();
        assert_eq!((spec.name.as_str(), spec.partitions, spec.replication_factor), ("orders", Some(12), Some(3)));
        assert_eq!(spec.configs, BTreeMap::from([("flush.messages".to_owned(), "1".to_owned())]));
    }

    #[test]
    fn an_assignment_stands_for_count_and_factor() {
        let spec =
            spec(r#"{"topic_name":"t","partitions_count":2,"replicas_assignments":{"0":[1,2],"1":[2,3]}}"#).unwrap();
        assert_eq!((spec.partitions, spec.replication_factor), (None, None));
        assert_eq!(spec.assignments[&1], [BrokerId(2), BrokerId(3)]);
    }

    #[test]
    fn bad_bodies_are_told_apart() {
        let code = |body: &str| spec(body).unwrap_err().error_code;
        assert_eq!(code("{"), 400);
        assert_eq!(code(r#"{"partitions_count":1}"#), 42206);
        assert_eq!(code(r#"{"topic_name":"-"}"#), 42206);
        assert_eq!(code(r#"{"topic_name":"t","partition_count":1}"#), 42206);
        assert_eq!(code(r#"{"topic_name":"t","replicas_assignments":{"x":[1]}}"#), 42206);
        assert_eq!(code(r#"{"topic_name":"t","partitions_count":3,"replicas_assignments":{"0":[1]}}"#), 40002);
        let headers = HeaderMap::from_iter([(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        )]);
        assert_eq!(read_json::<CreateTopicBody>(&headers, b"{}").unwrap_err().error_code, 415);
    }
}
