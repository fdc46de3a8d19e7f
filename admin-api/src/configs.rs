//! `/topics/{t}/configs`: a topic's configuration with its sources (REST v3). Reading only, so far.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::image::Topic;
use highwater_quorum::image::topic_config::{ConfigEntry, ConfigType};
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::error::ApiError;
use crate::query::LIST;
use crate::respond::{Call, Links, Metadata, Row};
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
    ]
}

/// One key of one topic.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TopicConfigBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    name: &'static str,
    value: String,
    is_default: bool,
    /// Nothing can be set after creation yet.
    is_read_only: bool,
    is_sensitive: bool,
    source: Source,
    /// What would be in force without it, nearest first; begins with what is.
    synonyms: Vec<Synonym>,
    // Ours from here on.
    #[serde(rename = "type")]
    kind_of_value: &'static str,
    allowed: String,
    documentation: &'static str,
}

/// Where a value comes from, in Kafka's words. The defaults of the node that created a topic are set on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Source {
    DynamicTopicConfig,
    DefaultConfig,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Synonym {
    name: &'static str,
    value: String,
    source: Source,
}

impl TopicConfigBody {
    fn new(links: &Links, topic: &Topic, entry: ConfigEntry) -> Self {
        let ConfigEntry { name, value, default, given, kind, allowed, doc } = entry;
        let mut synonyms = vec![Synonym { name, value: default.to_owned(), source: Source::DefaultConfig }];
        if given {
            synonyms.insert(0, Synonym { name, value: value.clone(), source: Source::DynamicTopicConfig });
        }
        let path = format!("/topics/{}/configs/{name}", topic.name);
        Self {
            kind: "KafkaTopicConfig",
            metadata: links.metadata(&path, &[format!("topic={}", topic.name), format!("config={name}")]),
            cluster_id: links.cluster_id().to_owned(),
            topic_name: topic.name.to_string(),
            name,
            value,
            is_default: !given,
            is_read_only: true,
            is_sensitive: false,
            source: synonyms[0].source,
            synonyms,
            kind_of_value: type_name(kind),
            allowed,
            documentation: doc,
        }
    }
}

const fn type_name(kind: ConfigType) -> &'static str {
    match kind {
        ConfigType::Boolean => "BOOLEAN",
        ConfigType::String => "STRING",
        ConfigType::Int => "INT",
        ConfigType::Long => "LONG",
        ConfigType::Double => "DOUBLE",
        ConfigType::List => "LIST",
    }
}

/// `GET /topics/{t|-}/configs`; filters `topic`, `name`.
pub async fn list(
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
        for entry in topic.config.entries().into_iter().filter(|entry| names.admits(entry.name)) {
            let key = [&*topic.name, entry.name];
            rows.push(Row::new(&key, TopicConfigBody::new(&read.links, topic, entry)));
        }
    }
    read.list("KafkaTopicConfigList", rows)
}

/// `GET /topics/{t}/configs/{name}`
pub async fn show(
    State(admin): State<AdminState>,
    Path((cluster, topic, name)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let topic = read.image.topic_named(&topic).ok_or_else(|| ApiError::unknown_topic(&topic))?;
    let entry = topic.config.entries().into_iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| {
        ApiError::not_found(format!("no topic key {name:?} is served; {}/configs lists those that are", topic.name))
    })?;
    read.object(StatusCode::OK, &TopicConfigBody::new(&read.links, topic, entry))
}
