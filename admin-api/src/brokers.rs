//! `/brokers`: the registered brokers and the replicas they host (REST v3, with our additions).

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::Refusal;
use highwater_quorum::image::{BrokerRegistration, BrokerState};
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::AdminState;
use crate::error::ApiError;
use crate::partitions::ReplicaBody;
use crate::query::LIST;
use crate::respond::{Call, Metadata, Read, Related, Row, WRITE_TIMEOUT, number_key};
use crate::routes::{self, Route};

const LIST_FILTERS: &[&str] = &["state"];
const REPLICA_FILTERS: &[&str] = &["topic"];
const ACT_PARAMETERS: &[&str] = &["validate_only"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get("/brokers", list, "The registered brokers")
            .list::<BrokerBody>("KafkaBrokerList")
            .knows(LIST_FILTERS),
        routes::get("/brokers/{broker_id}", show, "One broker: where it is and whether it takes part")
            .object::<BrokerBody>(200),
        routes::get("/brokers/{broker_id}/partition-replicas", partition_replicas, "The replicas a broker hosts")
            .list::<ReplicaBody>("KafkaReplicaList")
            .knows(REPLICA_FILTERS),
        routes::post("/brokers/{broker_id}:unregister", act, "Forget a broker that is gone and hosts nothing any more")
            .knows(ACT_PARAMETERS)
            .empty(202)
            .empty(200)
            .fails(&[(409, 40912, "it lives, or still owns replicas: details.blocking names them")])
            .expects(409),
    ]
}

/// How the API spells a broker's state.
pub const fn state_name(state: BrokerState) -> &'static str {
    match state {
        BrokerState::Fenced => "FENCED",
        BrokerState::Active => "ACTIVE",
        BrokerState::ShuttingDown => "SHUTTING_DOWN",
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct BrokerBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    broker_id: i32,
    host: Option<String>,
    port: Option<u16>,
    rack: Option<String>,
    configs: Related,
    partition_replicas: Related,
    // Ours from here on.
    state: &'static str,
    state_since_ms: i64,
    broker_epoch: i64,
    incarnation_id: String,
    version: String,
    in_maintenance: bool,
    is_controller: bool,
    admin_url: String,
}

impl BrokerBody {
    fn new(admin: &AdminState, read: &Read, broker: &BrokerRegistration) -> Self {
        let path = format!("/brokers/{}", broker.id);
        let endpoint = broker.inter_broker_endpoint();
        Self {
            kind: "KafkaBroker",
            metadata: read.links.metadata(&path, &[format!("broker={}", broker.id)]),
            cluster_id: read.links.cluster_id().to_owned(),
            broker_id: broker.id.0,
            host: endpoint.map(|endpoint| endpoint.host.clone()),
            port: endpoint.map(|endpoint| endpoint.port),
            rack: broker.rack.clone(),
            configs: read.links.related(&format!("{path}/configs")),
            partition_replicas: read.links.related(&format!("{path}/partition-replicas")),
            state: state_name(broker.state),
            state_since_ms: broker.state_since.0,
            broker_epoch: broker.epoch.0,
            incarnation_id: broker.incarnation.to_string(),
            version: broker.version.clone(),
            in_maintenance: false,
            is_controller: admin.quorum.leader() == Some(broker.id),
            admin_url: broker.admin_url.clone(),
        }
    }
}

/// `GET /brokers`; filter `state`.
pub async fn list(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, LIST_FILTERS]).await?;
    let states = read.params.filter("state", Some(&["FENCED", "ACTIVE", "SHUTTING_DOWN"]))?;
    let rows = read
        .image
        .brokers
        .values()
        .filter(|broker| states.admits(state_name(broker.state)))
        .map(|broker| Row::new(&[&number_key(broker.id.0)], BrokerBody::new(&admin, &read, broker)))
        .collect();
    read.list("KafkaBrokerList", rows)
}

/// `GET /brokers/{broker_id}`
pub async fn show(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let broker = find(&read, &broker)?;
    read.object(StatusCode::OK, &BrokerBody::new(&admin, &read, broker))
}

/// `GET /brokers/{broker_id}/partition-replicas`
pub async fn partition_replicas(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, REPLICA_FILTERS]).await?;
    let broker = find(&read, &broker)?.id;
    let topics = read.params.filter("topic", None)?;
    let mut rows = Vec::new();
    for topic in read.image.topics.values().filter(|topic| topics.admits(&topic.name)) {
        for (partition, state) in (0..).zip(&topic.partitions) {
            if state.replicas.contains(&broker) {
                let body = ReplicaBody::new(&read.links, &topic.name, partition, state, broker);
                rows.push(Row::new(&[&topic.name, &number_key(partition)], body));
            }
        }
    }
    read.list("KafkaReplicaList", rows)
}

/// Partitions named in a refusal; there may be more.
const BLOCKING_MAX: usize = 1_000;

/// `POST /brokers/{broker_id}:verb`: the router knows one parameter per segment, so the verb is cut off here.
pub async fn act(
    State(admin): State<AdminState>,
    Path((cluster, segment)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[ACT_PARAMETERS]).await?;
    match segment.rsplit_once(':') {
        Some((broker, "unregister")) => unregister(&admin, read, broker).await,
        _ => Err(ApiError::not_found(format!("there is nothing at /brokers/{segment}; there is :unregister"))),
    }
}

/// 202: the broker is forgotten, and leaves the metadata quorum soon if it only learned from it; 200: a dry run would be.
/// 404 when it is not registered; 409/40912 while it lives or owns replicas: nobody could ever fill them.
async fn unregister(admin: &AdminState, mut read: Read, broker: &str) -> Result<Response, ApiError> {
    let (timeout, validate_only) = (read.params.timeout(WRITE_TIMEOUT)?, read.params.flag("validate_only")?);
    // What this node has not heard of yet counts too.
    read.set_image(admin.quorum.linearizable(timeout).await?);
    let broker = find(&read, broker)?.clone();
    if broker.state == BrokerState::Active {
        return Err(Refusal::NotFenced(broker.id).into());
    }
    let owned: Vec<(&str, i32)> = read
        .image
        .partitions()
        .filter(|(_, _, state)| state.replicas.contains(&broker.id))
        .map(|(at, topic, _)| (&*topic.name, at.partition))
        .collect();
    if let Some((topic, partition)) = owned.first() {
        let message = format!(
            "broker {} still owns {} replicas, the first of {topic}-{partition}: move them to other brokers or delete \
             the topics first",
            broker.id,
            owned.len()
        );
        let named = |(topic, partition): &(&str, i32)| json!({ "topic_name": topic, "partition_id": partition });
        let blocking: Vec<_> = owned.iter().take(BLOCKING_MAX).map(named).collect();
        let details = json!({ "replicas": owned.len(), "blocking": blocking });
        return Err(ApiError::conflict(40912, message).with_details(details));
    }
    if validate_only {
        return Ok(read.empty(StatusCode::OK));
    }
    admin.quorum.unregister_broker(broker.id, timeout).await?;
    read.set_image(admin.quorum.image());
    Ok(read.empty(StatusCode::ACCEPTED))
}

/// The registered broker of this id.
///
/// # Errors
/// 404/404 for one that is not registered.
pub fn find<'a>(read: &'a Read, broker: &str) -> Result<&'a BrokerRegistration, ApiError> {
    let id = broker.parse().ok().and_then(BrokerId::from_wire);
    let found = id.and_then(|id| read.image.brokers.get(&id));
    found.map(AsRef::as_ref).ok_or_else(|| ApiError::not_found(format!("there is no broker {broker}")))
}
