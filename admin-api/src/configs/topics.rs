//! `/topics/{t}/configs`: read and changed.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use highwater_quorum::controller::{AlterConfigs, Command, ConfigResource, RULE_VERSION};
use highwater_quorum::decide;
use highwater_quorum::image::Topic;
use highwater_quorum::settings::{Setting, of_topic};
use highwater_wire::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::change::{self, AlterBody};
use super::{ConfigValue, ValueBody, expected, tagged};
use crate::AdminState;
use crate::error::ApiError;
use crate::query::LIST;
use crate::respond::{Call, Links, Metadata, Row, WRITE_TIMEOUT, read_json};
use crate::routes::{self, Route};

const LIST_FILTERS: &[&str] = &["topic", "name"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get(
            "/topics/{topic_name}/configs",
            list,
            "The configuration of a topic, or of all (`-`), with sources",
        )
        .list::<TopicConfigBody>("KafkaTopicConfigList")
        .knows(LIST_FILTERS),
        routes::get("/topics/{topic_name}/configs/{name}", show, "One key of a topic's configuration")
            .object::<TopicConfigBody>(200),
        routes::put("/topics/{topic_name}/configs/{name}", put, "Set one key of a topic; in force at once")
            .takes::<ValueBody>(json!({ "value": "86400000" }))
            .fails(change::FAILURES)
            .empty(204),
        routes::delete("/topics/{topic_name}/configs/{name}", delete, "Take one key of a topic back to its default")
            .fails(change::FAILURES)
            .empty(204),
        routes::post(
            "/topics/{topic_name}/configs:alter",
            alter,
            "Change several keys of a topic, or of each topic (`-`), all of them or none",
        )
        .takes::<AlterBody>(change::example("retention.ms", "86400000"))
        .or_takes(
            "A dry run that takes a key back",
            json!({ "data": [{ "name": "retention.ms", "operation": "DELETE" }], "validate_only": true }),
        )
        .empty(204),
    ]
}

/// One key of one topic.
#[derive(Debug, Serialize, JsonSchema)]
struct TopicConfigBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    #[serde(flatten)]
    value: ConfigValue,
}

impl TopicConfigBody {
    fn new(links: &Links, topic: &Topic, setting: Setting) -> Self {
        let name = &setting.name;
        let path = format!("/topics/{}/configs/{name}", topic.name);
        Self {
            kind: "KafkaTopicConfig",
            metadata: links.metadata(&path, &[format!("topic={}", topic.name), format!("config={name}")]),
            cluster_id: links.cluster_id().to_owned(),
            topic_name: topic.name.to_string(),
            value: setting.into(),
        }
    }
}

/// `GET /topics/{t|-}/configs`; filters `topic`, `name`.
async fn list(
    State(admin): State<AdminState>,
    Path((cluster, topic)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, LIST_FILTERS]).await?;
    let (topics, names) = (read.params.filter("topic", None)?, read.params.filter("name", None)?);
    let chosen: Vec<&Topic> = match topic.as_str() {
        "-" => read.image.topics.values().map(AsRef::as_ref).collect(),
        name => vec![read.image.topic_named(name).ok_or_else(|| ApiError::unknown_topic(name))?],
    };
    let mut rows = Vec::new();
    for topic in chosen.into_iter().filter(|topic| topics.admits(&topic.name)) {
        for setting in of_topic(&read.image, topic).into_iter().filter(|setting| names.admits(&setting.name)) {
            let name = setting.name.clone();
            rows.push(Row::new(&[&topic.name, &name], TopicConfigBody::new(&read.links, topic, setting)));
        }
    }
    read.list("KafkaTopicConfigList", rows)
}

/// `GET /topics/{t}/configs/{name}`
async fn show(
    State(admin): State<AdminState>,
    Path((cluster, topic, name)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let topic = read.image.topic_named(&topic).ok_or_else(|| ApiError::unknown_topic(&topic))?;
    let setting = of_topic(&read.image, topic).into_iter().find(|setting| setting.name == name);
    let setting = setting.ok_or_else(|| {
        ApiError::not_found(format!("no topic key {name:?} is served; {}/configs lists those that are", topic.name))
    })?;
    let response = read.object(StatusCode::OK, &TopicConfigBody::new(&read.links, topic, setting))?;
    Ok(tagged(response, &topic.config.given))
}

/// `PUT /topics/{t}/configs/{name}`: 204 once it is in force; `If-Match` with the ETag of a GET guards it.
async fn put(
    state: State<AdminState>,
    path: Path<(String, String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let value = read_json::<ValueBody>(&headers, &body)?.value()?;
    set(state, path, call, &headers, Some(value)).await
}

/// `DELETE /topics/{t}/configs/{name}`: back to the default.
async fn delete(
    state: State<AdminState>,
    path: Path<(String, String, String)>,
    call: Call,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    set(state, path, call, &headers, None).await
}

async fn set(
    State(admin): State<AdminState>,
    Path((cluster, topic, name)): Path<(String, String, String)>,
    call: Call,
    headers: &HeaderMap,
    value: Option<String>,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let timeout = read.params.timeout(WRITE_TIMEOUT)?;
    let topic = read.image.topic_named(&topic).ok_or_else(|| ApiError::unknown_topic(&topic))?;
    let mut change = change::of(ConfigResource::Topic(topic.id), change::one(name, value));
    change.expected = expected(headers, &topic.config.given)?;
    change::make(&admin, read, change, false, timeout).await
}

/// `POST /topics/{t|-}/configs:alter`: each topic as a whole; of all topics none is changed when one would be refused.
async fn alter(
    State(admin): State<AdminState>,
    Path((cluster, topic)): Path<(String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut read = call.read(&admin, &cluster, &[]).await?;
    let body: AlterBody = read_json(&headers, &body)?;
    let (operations, timeout) = (body.operations()?, read.params.timeout(WRITE_TIMEOUT)?);
    if topic != "-" {
        let topic = read.image.topic_named(&topic).ok_or_else(|| ApiError::unknown_topic(&topic))?;
        let change = change::of(ConfigResource::Topic(topic.id), operations);
        return change::make(&admin, read, change, body.validate_only, timeout).await;
    }
    let image = admin.quorum.linearizable(timeout).await?;
    for id in image.topics.keys() {
        let command = Command::AlterConfigs(AlterConfigs {
            resource: ConfigResource::Topic(*id),
            replace: false,
            operations: operations.clone(),
            expected: None,
            time: Timestamp::NONE,
        });
        decide(&image, image.version.0 + 1, RULE_VERSION, &command)?;
    }
    if !body.validate_only {
        for (id, topic) in &image.topics {
            let change = change::of(ConfigResource::Topic(*id), operations.clone());
            admin.quorum.alter_configs(change, false, timeout).await.map_err(|error| {
                let error = ApiError::from(error);
                ApiError {
                    message: format!("at topic {}, others were changed before it: {}", topic.name, error.message),
                    ..error
                }
            })?;
        }
    }
    read.set_image(admin.quorum.image());
    Ok(read.empty(StatusCode::NO_CONTENT))
}
