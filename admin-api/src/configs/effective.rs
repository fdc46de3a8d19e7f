//! `/brokers/{id}/configs:effective`: what a process works with, and where that is written. `/config-schema`: which keys
//! there are.

use axum::extract::{Path, State};
use axum::response::Response;
use highwater_quorum::image::TopicConfig;
use highwater_quorum::image::broker_config::{self, Effect};
use highwater_quorum::settings::{ConfigSource, Effective, SettingOrigin};
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::Serialize;

use super::brokers::asked;
use crate::AdminState;
use crate::error::ApiError;
use crate::query::LIST;
use crate::respond::{Call, Row};
use crate::routes::{self, Route};

const FILTERS: &[&str] = &["name"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get(
            "/brokers/{broker_id}/configs:effective",
            list,
            "What a broker (`-`: each) works with: value, source, file and line, and what waits for a restart",
        )
        .list::<EffectiveBody>("KafkaEffectiveConfigList")
        .knows(FILTERS)
        .fails(&[(503, 50302, "that broker did not answer within 2 s")]),
        routes::get(
            "/config-schema",
            schema,
            "Every key of topics and brokers: type, range, default, when it takes effect",
        )
        .list::<KeyBody>("KafkaConfigKeyList")
        .knows(FILTERS),
    ]
}

/// One key as a process works with it.
#[derive(Debug, Serialize, JsonSchema)]
struct EffectiveBody {
    kind: &'static str,
    cluster_id: String,
    broker_id: i32,
    name: String,
    /// What the process works with.
    value: Option<String>,
    source: &'static str,
    /// `server.properties:14` or the name of the variable, where its own configuration sets the key.
    location: Option<String>,
    /// What its own configuration says, or the default: differs from `value` where something was set while it ran.
    own_value: Option<String>,
    pending_restart: bool,
    /// What it will work with after a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_value: Option<String>,
}

fn body(cluster_id: &str, broker_id: i32, told: Effective) -> EffectiveBody {
    let Effective { setting, in_force, origin, own } = told;
    let pending_restart = setting.pending_restart;
    // What waits for a restart is not in force: what is, comes from where the value is found.
    let found = setting.synonyms.iter().find(|synonym| synonym.value == in_force).map(|synonym| synonym.source);
    let own_source = match &origin {
        SettingOrigin::Environment { .. } => "ENVIRONMENT",
        SettingOrigin::Flag => "COMMAND_LINE",
        SettingOrigin::File { .. } => ConfigSource::Static.name(),
        SettingOrigin::Default => ConfigSource::Default.name(),
    };
    let source = match if pending_restart { found } else { Some(setting.source()) } {
        Some(ConfigSource::Static) | None => own_source,
        Some(other) => other.name(),
    };
    let location = match origin {
        SettingOrigin::File { name, line } => Some(format!("{name}:{line}")),
        SettingOrigin::Environment { variable } => Some(variable),
        SettingOrigin::Flag => Some("-X".to_owned()),
        SettingOrigin::Default => None,
    };
    EffectiveBody {
        kind: "KafkaEffectiveConfig",
        cluster_id: cluster_id.to_owned(),
        broker_id,
        pending_value: pending_restart.then(|| setting.value().unwrap_or_default().to_owned()),
        name: setting.name,
        value: in_force,
        source,
        location,
        own_value: own,
        pending_restart,
    }
}

/// `GET /brokers/{id|-}/configs:effective`; filter `name`. Of all brokers, those that do not answer are left out.
async fn list(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let told = asked(&admin, &read, &broker).await?;
    let body = |id: BrokerId, one| body(read.links.cluster_id(), id.0, one);
    read.list_by_broker("KafkaEffectiveConfigList", told, |one| one.setting.name.clone(), body)
}

/// One key that is served.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyBody {
    kind: &'static str,
    resource_type: &'static str,
    name: String,
    #[serde(rename = "type")]
    kind_of_value: &'static str,
    /// To be read after "must be".
    allowed: String,
    default: Option<String>,
    /// `AT_ONCE`, `AT_RESTART` (stored, and pending until then) or `NEVER` (only in a node's own configuration).
    takes_effect: &'static str,
    /// The key of the other resource: a broker's default of a topic's key, and the reverse.
    synonym: Option<&'static str>,
    documentation: String,
}

/// `GET /config-schema`; filter `name`.
async fn schema(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let names = read.params.filter("name", None)?;
    let topics = TopicConfig::built_in().entries().into_iter().map(|entry| KeyBody {
        kind: "KafkaConfigKey",
        resource_type: "TOPIC",
        name: entry.name.to_owned(),
        kind_of_value: entry.kind.name(),
        allowed: entry.allowed,
        default: Some(entry.default.to_owned()),
        takes_effect: "AT_ONCE",
        synonym: broker_config::broker_key(entry.name),
        documentation: entry.doc.to_owned(),
    });
    let brokers = admin.config.settings.keys().map(|key| KeyBody {
        kind: "KafkaConfigKey",
        resource_type: "BROKER",
        name: key.name.to_owned(),
        kind_of_value: key.kind.name(),
        allowed: key.allowed.clone(),
        default: key.default.map(str::to_owned),
        takes_effect: match broker_config::effect(key.name) {
            Some(Effect::TopicDefault | Effect::AtOnce) => "AT_ONCE",
            Some(Effect::AtRestart) => "AT_RESTART",
            None => "NEVER",
        },
        synonym: broker_config::topic_key(key.name),
        documentation: key.doc.to_owned(),
    });
    let all = topics.chain(brokers).filter(|key| names.admits(&key.name));
    let rows = all.map(|key| {
        let place = [key.resource_type, &key.name].join("\u{0}");
        Row::new(&[&place], key)
    });
    read.list("KafkaConfigKeyList", rows.collect())
}
