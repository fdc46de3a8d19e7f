//! `/broker-configs` (set on all brokers) and `/brokers/{id}/configs` (of one): read and changed.
//!
//! A broker's file is known to itself alone, so another one is asked over the controller listener.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use highwater_quorum::MetadataImage;
use highwater_quorum::controller::ConfigResource;
use highwater_quorum::image::broker_config::{self, Effect};
use highwater_quorum::settings::{Effective, Setting, effective, of_all_brokers};
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::change::{self, AlterBody};
use super::{ConfigValue, ValueBody, expected, tagged};
use crate::AdminState;
use crate::error::ApiError;
use crate::live::{BUDGET, of_each};
use crate::query::LIST;
use crate::respond::{Call, Links, Metadata, Read, Row, WRITE_TIMEOUT, read_json};
use crate::routes::{self, Route};

const FILTERS: &[&str] = &["name"];
const SILENT: &[routes::Failure] = &[(503, 50302, "that broker did not answer within 2 s")];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    let dry_run = |name: &str| json!({ "data": [{ "name": name, "operation": "DELETE" }], "validate_only": true });
    let (all, one) = ("log.retention.ms", "max.connections");
    vec![
        routes::get("/broker-configs", list_all, "What is set on all brokers while they run")
            .list::<ClusterConfigBody>("KafkaClusterConfigList")
            .knows(FILTERS),
        routes::get("/broker-configs/{name}", show_all, "One key as it is set on all brokers, or its default")
            .example("name", all)
            .object::<ClusterConfigBody>(200),
        routes::put(
            "/broker-configs/{name}",
            put_all,
            "Set one key on all brokers; a default of topics is in force at once",
        )
        .example("name", all)
        .takes::<ValueBody>(json!({ "value": "86400000" }))
        .fails(change::FAILURES)
        .empty(204),
        routes::delete("/broker-configs/{name}", delete_all, "Take one key back on all brokers")
            .example("name", all)
            .fails(change::FAILURES)
            .empty(204),
        routes::post("/broker-configs:alter", alter_all, "Change several keys on all brokers, all of them or none")
            .takes::<AlterBody>(change::example(all, "86400000"))
            .or_takes("A dry run that takes a key back", dry_run(all))
            .empty(204),
        routes::get(
            "/brokers/{broker_id}/configs",
            list,
            "The configuration of a broker, or of all (`-`), with sources",
        )
        .list::<BrokerConfigBody>("KafkaBrokerConfigList")
        .knows(FILTERS)
        .fails(SILENT),
        routes::get("/brokers/{broker_id}/configs/{name}", show, "One key of a broker's configuration")
            .example("name", one)
            .object::<BrokerConfigBody>(200)
            .fails(SILENT),
        routes::put("/brokers/{broker_id}/configs/{name}", put, "Set one key on one broker")
            .example("name", one)
            .takes::<ValueBody>(json!({ "value": "1000" }))
            .fails(change::FAILURES)
            .empty(204),
        routes::delete("/brokers/{broker_id}/configs/{name}", delete, "Take one key back on one broker")
            .example("name", one)
            .fails(change::FAILURES)
            .empty(204),
        routes::post(
            "/brokers/{broker_id}/configs:alter",
            alter,
            "Change several keys of one broker, all of them or none",
        )
        .takes::<AlterBody>(change::example(one, "1000"))
        .or_takes("A dry run that takes a key back", dry_run(one))
        .empty(204),
    ]
}

/// One key as it is set on all brokers.
#[derive(Debug, Serialize, JsonSchema)]
struct ClusterConfigBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    config_type: &'static str,
    #[serde(flatten)]
    value: ConfigValue,
}

impl ClusterConfigBody {
    fn new(links: &Links, setting: Setting) -> Self {
        let name = &setting.name;
        Self {
            kind: "KafkaClusterConfig",
            metadata: links.metadata(&format!("/broker-configs/{name}"), &[format!("broker-config={name}")]),
            cluster_id: links.cluster_id().to_owned(),
            config_type: "BROKER",
            value: setting.into(),
        }
    }
}

/// One key of one broker.
#[derive(Debug, Serialize, JsonSchema)]
struct BrokerConfigBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    broker_id: i32,
    #[serde(flatten)]
    value: ConfigValue,
    // Ours.
    /// The process works with another value until its next start.
    pending_restart: bool,
}

impl BrokerConfigBody {
    fn new(links: &Links, broker: BrokerId, setting: Setting) -> Self {
        let name = &setting.name;
        let path = format!("/brokers/{broker}/configs/{name}");
        Self {
            kind: "KafkaBrokerConfig",
            metadata: links.metadata(&path, &[format!("broker={broker}"), format!("config={name}")]),
            cluster_id: links.cluster_id().to_owned(),
            broker_id: broker.0,
            pending_restart: setting.pending_restart,
            value: setting.into(),
        }
    }
}

fn set_on(image: &MetadataImage, of: Option<BrokerId>) -> BTreeMap<String, String> {
    image.broker_configs(of).cloned().unwrap_or_default()
}

async fn list_all(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let names = read.params.filter("name", None)?;
    let settings = of_all_brokers(&read.image, &admin.config.settings).into_iter();
    let rows = settings.filter(|setting| names.admits(&setting.name)).map(|setting| {
        let name = setting.name.clone();
        Row::new(&[&name], ClusterConfigBody::new(&read.links, setting))
    });
    read.list("KafkaClusterConfigList", rows.collect())
}

async fn show_all(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let set = of_all_brokers(&read.image, &admin.config.settings).into_iter().find(|setting| setting.name == name);
    let setting = match set {
        Some(setting) => setting,
        None => default_of(&admin, &name)?,
    };
    let response = read.object(StatusCode::OK, &ClusterConfigBody::new(&read.links, setting))?;
    Ok(tagged(response, &set_on(&read.image, None)))
}

/// A key that is not set on all brokers, with its built-in value: what a node's own file says is shown with that node.
fn default_of(admin: &AdminState, name: &str) -> Result<Setting, ApiError> {
    let unknown =
        || ApiError::not_found(format!("no broker key {name:?} is served; /config-schema lists those that are"));
    let key = admin.config.settings.key(name).ok_or_else(unknown)?;
    let value = key.default.map(str::to_owned);
    Ok(Setting {
        name: name.to_owned(),
        synonyms: vec![highwater_quorum::settings::Synonym {
            name: name.to_owned(),
            value,
            source: highwater_quorum::settings::ConfigSource::Default,
        }],
        read_only: broker_config::effect(name).is_none(),
        kind: key.kind,
        allowed: key.allowed.clone(),
        doc: key.doc.to_owned(),
        pending_restart: false,
    })
}

async fn put_all(
    state: State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let value = read_json::<ValueBody>(&headers, &body)?.value()?;
    set(state, &cluster, None, change::one(name, Some(value)), call, &headers, false).await
}

async fn delete_all(
    state: State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    set(state, &cluster, None, change::one(name, None), call, &headers, false).await
}

async fn alter_all(
    state: State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: AlterBody = read_json(&headers, &body)?;
    set(state, &cluster, None, body.operations()?, call, &headers, body.validate_only).await
}

async fn put(
    state: State<AdminState>,
    Path((cluster, broker, name)): Path<(String, String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let value = read_json::<ValueBody>(&headers, &body)?.value()?;
    set(state, &cluster, Some(&broker), change::one(name, Some(value)), call, &headers, false).await
}

async fn delete(
    state: State<AdminState>,
    Path((cluster, broker, name)): Path<(String, String, String)>,
    call: Call,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    set(state, &cluster, Some(&broker), change::one(name, None), call, &headers, false).await
}

async fn alter(
    state: State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: AlterBody = read_json(&headers, &body)?;
    set(state, &cluster, Some(&broker), body.operations()?, call, &headers, body.validate_only).await
}

/// Changes what is set on one broker, or on all.
async fn set(
    State(admin): State<AdminState>,
    cluster: &str,
    broker: Option<&str>,
    operations: Vec<highwater_quorum::controller::ConfigOperation>,
    call: Call,
    headers: &HeaderMap,
    validate_only: bool,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, cluster, &[]).await?;
    let timeout = read.params.timeout(WRITE_TIMEOUT)?;
    let of = broker.map(|broker| known(&read.image, broker)).transpose()?;
    let mut change = change::of(of.map_or(ConfigResource::Brokers, ConfigResource::Broker), operations);
    change.expected = expected(headers, &set_on(&read.image, of))?;
    change::make(&admin, read, change, validate_only, timeout).await
}

/// A broker that is registered, or on which something is set.
fn known(image: &MetadataImage, broker: &str) -> Result<BrokerId, ApiError> {
    let id = broker.parse().ok().and_then(BrokerId::from_wire);
    id.filter(|id| image.broker(*id).is_some() || image.broker_configs(Some(*id)).is_some())
        .ok_or_else(|| ApiError::not_found(format!("there is no broker {broker}")))
}

/// `GET /brokers/{id|-}/configs`; filter `name`. Of all brokers, those that do not answer are left out.
async fn list(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let told = asked(&admin, &read, &broker).await?;
    let body = |id, one: Effective| BrokerConfigBody::new(&read.links, id, one.setting);
    read.list_by_broker("KafkaBrokerConfigList", told, |one| one.setting.name.clone(), body)
}

/// `GET /brokers/{id}/configs/{name}`
async fn show(
    State(admin): State<AdminState>,
    Path((cluster, broker, name)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let id = known(&read.image, &broker)?;
    let told = of(&admin, &read.image, id).await?;
    let one = told.into_iter().find(|one| one.setting.name == name);
    let unknown =
        || ApiError::not_found(format!("no broker key {name:?} is served; /config-schema lists those that are"));
    let body = BrokerConfigBody::new(&read.links, id, one.ok_or_else(unknown)?.setting);
    Ok(tagged(read.object(StatusCode::OK, &body)?, &set_on(&read.image, Some(id))))
}

/// The settings of one broker, or (`-`) of all that answer.
pub(super) async fn asked(
    admin: &AdminState,
    read: &Read,
    broker: &str,
) -> Result<Vec<(BrokerId, Vec<Effective>)>, ApiError> {
    let image = &read.image;
    of_each(read, broker, |broker| known(image, broker), |id| of(admin, image, id)).await
}

/// Whether anything is set on brokers that needs a restart.
fn needs_restart(image: &MetadataImage) -> bool {
    let mut set = image.broker_configs.values().flat_map(|configs| configs.keys());
    set.any(|name| broker_config::effect(name) == Some(Effect::AtRestart))
}

/// Keys that this node works with another value of until its next start.
pub fn pending_here(admin: &AdminState) -> usize {
    let image = admin.quorum.image();
    if !needs_restart(&image) {
        return 0;
    }
    let told = effective(&image, admin.config.node, &admin.config.settings);
    told.iter().filter(|one| one.setting.pending_restart).count()
}

/// The brokers that wait for a restart, of those that answer. Asks nobody while nothing is set that needs one.
pub async fn pending_restart(admin: &AdminState, read: &Read) -> Vec<i32> {
    if !needs_restart(&read.image) {
        return Vec::new();
    }
    let told = asked(admin, read, "-").await.unwrap_or_default();
    let waits = |told: &Vec<Effective>| told.iter().any(|one| one.setting.pending_restart);
    told.into_iter().filter(|(_, told)| waits(told)).map(|(id, _)| id.0).collect()
}

/// The settings of one broker, as itself tells them.
async fn of(admin: &AdminState, image: &Arc<MetadataImage>, id: BrokerId) -> Result<Vec<Effective>, ApiError> {
    if id == admin.config.node {
        return Ok(effective(image, id, &admin.config.settings));
    }
    let told = admin.peers.settings(&admin.quorum, id, BUDGET).await;
    told.ok_or_else(|| {
        let text = format!(
            "broker {id} did not answer within 2 s, and only it knows its file; /broker-configs is answered by any"
        );
        ApiError::broker_not_available(text)
    })
}
