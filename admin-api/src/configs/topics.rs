//! `/topics/{t}/configs`: read and changed.

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::StreamExt as _;
use highwater_quorum::controller::ConfigResource;
use highwater_quorum::image::Topic;
use highwater_quorum::settings::{Setting, of_topic};
use highwater_wire::TopicId;
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
            "Change several keys of a topic, all of them or none; of each topic (`-`) once all of them would accept it",
        )
        .fails(&[(
            500,
            50003,
            "of all topics, those in details.failed were not changed, or not known to be: repeat it",
        )])
        .fails(change::FAILURES)
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

/// `POST /topics/{t|-}/configs:alter`: each topic as a whole. Of all topics none is changed when one would be refused; then
/// they are changed one by one, and what fails on the way (no leader, no time) is told topic by topic. To repeat the call
/// is harmless. `If-Match` guards the change of one topic.
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
        let mut change = change::of(ConfigResource::Topic(topic.id), operations);
        change.expected = expected(&headers, &topic.config.given)?;
        return change::make(&admin, read, change, body.validate_only, timeout).await;
    }
    if headers.contains_key(header::IF_MATCH) {
        let text = "If-Match guards the configuration of one topic, and this changes all of them: name the topic";
        return Err(ApiError::invalid_payload(text));
    }
    let begun = Instant::now();
    let image = admin.quorum.linearizable(timeout).await?;
    let change_of = |id: TopicId| change::of(ConfigResource::Topic(id), operations.clone());
    for id in image.topics.keys() {
        change_of(*id).check(&image)?;
    }
    if !body.validate_only {
        let topics: Vec<_> = image.topics.iter().map(|(id, topic)| (*id, topic.name.to_string())).collect();
        let quorum = &admin.quorum;
        let changes = topics.into_iter().map(|(id, name)| {
            let change = change_of(id);
            async move {
                let left = timeout.saturating_sub(begun.elapsed());
                (name, quorum.alter_configs(change, false, left).await.map(drop).map_err(ApiError::from))
            }
        });
        outcome(futures::stream::iter(changes).buffer_unordered(SIDE_BY_SIDE).collect().await)?;
    }
    read.set_image(admin.quorum.image());
    Ok(read.empty(StatusCode::NO_CONTENT))
}

/// Topics that are changed at one time: they share the log's writes, and leave room for others.
const SIDE_BY_SIDE: usize = 32;
/// Topics that an error names one by one.
const NAMED_MAX: usize = 1_000;

/// What became of a change of all topics; a topic that was deleted meanwhile needs none.
///
/// # Errors
/// Some were not changed: the first one's error, and all of them in `details.failed`.
fn outcome(results: Vec<(String, Result<(), ApiError>)>) -> Result<(), ApiError> {
    let all = results.len();
    let failed = results.into_iter().filter_map(|(topic, result)| Some((topic, result.err()?)));
    let mut failed: Vec<(String, ApiError)> = failed.filter(|(_, error)| error.error_code != 40403).collect();
    failed.sort_by(|(a, _), (b, _)| a.cmp(b));
    let Some((topic, first)) = failed.first().cloned() else { return Ok(()) };
    let named = |(topic, error): &(String, ApiError)| json!({ "topic_name": topic, "error_code": error.error_code, "message": error.message });
    let details = json!({
        "changed": all - failed.len(),
        "failed_count": failed.len(),
        "failed": failed.iter().take(NAMED_MAX).map(named).collect::<Vec<_>>(),
    });
    let message = format!(
        "{} of {all} topics were not changed, the others were; the first of them is {topic}: {}",
        failed.len(),
        first.message
    );
    Err(ApiError { message, ..first }.with_details(details))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_changes_all_topics_is_told_which_were_not() {
        let slow = || Err(ApiError::retriable(highwater_wire::ErrorCode::RequestTimedOut, "too slow"));
        let results = vec![
            ("c".to_owned(), slow()),
            ("a".to_owned(), Ok(())),
            ("gone".to_owned(), Err(ApiError::unknown_topic("gone"))),
            ("b".to_owned(), slow()),
        ];
        let error = outcome(results).unwrap_err();
        assert_eq!((error.status.as_u16(), error.error_code), (500, 50003));
        assert_eq!(error.message, "2 of 4 topics were not changed, the others were; the first of them is b: too slow");
        let details = error.details.unwrap();
        assert_eq!((&details["changed"], &details["failed_count"]), (&json!(2), &json!(2)));
        assert_eq!(
            (&details["failed"][1]["topic_name"], &details["kafka_error"]),
            (&json!("c"), &json!("REQUEST_TIMED_OUT"))
        );
        assert_eq!(
            outcome(vec![("a".to_owned(), Ok(())), ("gone".to_owned(), Err(ApiError::unknown_topic("gone")))]),
            Ok(())
        );
    }
}
