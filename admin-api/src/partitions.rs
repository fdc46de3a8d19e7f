//! `/topics/{topic}/partitions`: partitions, their replicas, offsets and replica status (REST v3, Confluent Server's
//! `replica-status`). State and history, which are ours, have their own files.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::MetadataImage;
use highwater_quorum::image::{PartitionState, Topic};
use highwater_wire::{BrokerId, TopicPartition};
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::error::ApiError;
use crate::live;
use crate::query::LIST;
use crate::respond::{Call, Links, Metadata, Read, Related, Row, number_key};
use crate::routes::{self, Failure, Route};

pub mod history;
pub mod records;
pub mod replica_status;
pub mod state;

use state::states;

const LIST_FILTERS: &[&str] = &["state", "topic"];
const OFFSET_PARAMETERS: &[&str] = &["offset_type"];
const REPLICA_FILTERS: &[&str] = &["broker_id", "topic"];

/// Only the leader knows the answer.
const SILENT: Failure = (503, 50302, "the partition has no leader, or it did not answer within 2 s");

/// The routes of this file and of those below it.
pub fn routes() -> Vec<Route> {
    let partition = |rest: &str| format!("/topics/{{topic_name}}/partitions/{{partition_id}}{rest}");
    let mut all = vec![
        routes::get("/topics/{topic_name}/partitions", list, "The partitions of a topic, or of all (`-`)")
            .list::<PartitionBody>("KafkaPartitionList")
            .knows(LIST_FILTERS),
        routes::get(&partition(""), show, "One partition").object::<PartitionBody>(200),
        routes::get(&partition("/offset"), offset, "The ends of a partition's log, as consumers see them")
            .object::<OffsetsBody>(200)
            .knows(OFFSET_PARAMETERS)
            .fails(&[SILENT]),
        routes::get(&partition("/replicas"), replicas, "The replicas of a partition, or of all (`-`)")
            .list::<ReplicaBody>("KafkaReplicaList")
            .knows(REPLICA_FILTERS),
        routes::get(&partition("/replicas/{broker_id}"), replica, "One replica").object::<ReplicaBody>(200),
    ];
    all.extend(state::routes());
    all.extend(replica_status::routes());
    all.extend(history::routes());
    all.extend(records::routes());
    all
}

/// A partition that a path names.
#[derive(Clone, Copy)]
pub struct Chosen<'a> {
    pub topic: &'a Topic,
    pub partition: i32,
    pub state: &'a Arc<PartitionState>,
}

impl Chosen<'_> {
    /// Its key in the image.
    pub fn at(&self) -> TopicPartition {
        TopicPartition::new(self.topic.id, self.partition)
    }

    /// Its path below the cluster.
    pub fn path(&self) -> String {
        path(&self.topic.name, self.partition)
    }

    /// The parts of its resource name.
    pub fn names(&self) -> Vec<String> {
        vec![format!("topic={}", self.topic.name), format!("partition={}", self.partition)]
    }
}

fn path(topic: &str, partition: i32) -> String {
    format!("/topics/{topic}/partitions/{partition}")
}

/// The partitions that two path segments name; `-` means all.
///
/// # Errors
/// 404/40403 for a topic or partition that does not exist.
pub fn choose<'a>(image: &'a MetadataImage, topic: &str, partition: &str) -> Result<Vec<Chosen<'a>>, ApiError> {
    let topics: Vec<&Topic> = match topic {
        "-" => image.topics.values().map(AsRef::as_ref).collect(),
        name => vec![image.topic_named(name).ok_or_else(|| ApiError::unknown_topic(name))?],
    };
    let number = match partition {
        "-" => None,
        text => Some(text.parse::<i32>().map_err(|_| ApiError::unknown_partition(topic, text))?),
    };
    let mut chosen = Vec::new();
    for topic in topics {
        for (partition, state) in (0..).zip(&topic.partitions) {
            if number.is_none_or(|number| number == partition) {
                chosen.push(Chosen { topic, partition, state });
            }
        }
    }
    match number {
        Some(number) if chosen.is_empty() => Err(ApiError::unknown_partition(topic, &number.to_string())),
        _ => Ok(chosen),
    }
}

/// Whether both segments name one thing: the answer is then an object, else a list.
pub fn is_single(topic: &str, partition: &str) -> bool {
    topic != "-" && partition != "-"
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PartitionBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    partition_id: i32,
    leader: Option<Related>,
    replicas: Related,
    reassignment: Related,
    // Ours from here on.
    leader_id: Option<i32>,
    leader_epoch: i32,
    partition_epoch: i32,
    isr: Vec<i32>,
    elr: Vec<i32>,
    states: Vec<&'static str>,
}

/// The numbers of some brokers.
pub fn ids(brokers: &[BrokerId]) -> Vec<i32> {
    brokers.iter().map(|broker| broker.0).collect()
}

impl PartitionBody {
    fn new(links: &Links, chosen: Chosen<'_>) -> Self {
        let (path, state) = (chosen.path(), chosen.state);
        Self {
            kind: "KafkaPartition",
            metadata: links.metadata(&path, &chosen.names()),
            cluster_id: links.cluster_id().to_owned(),
            topic_name: chosen.topic.name.to_string(),
            partition_id: chosen.partition,
            leader: state.leader.map(|leader| links.related(&format!("{path}/replicas/{leader}"))),
            replicas: links.related(&format!("{path}/replicas")),
            reassignment: links.related(&format!("{path}/reassignment")),
            leader_id: state.leader.map(|leader| leader.0),
            leader_epoch: state.leader_epoch.0,
            partition_epoch: state.partition_epoch.0,
            isr: ids(&state.isr),
            elr: ids(&state.elr),
            states: states(state, chosen.topic.config.min_isr),
        }
    }
}

/// `GET /topics/{topic_name}/partitions`
pub async fn list(
    State(admin): State<AdminState>,
    Path((cluster, topic)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, LIST_FILTERS]).await?;
    let wanted = read.params.filter("state", Some(state::ALL))?;
    let names = read.params.filter("topic", None)?;
    let rows = choose(&read.image, &topic, "-")?
        .into_iter()
        .filter(|chosen| names.admits(&chosen.topic.name))
        .filter(|chosen| wanted.admits_any(&states(chosen.state, chosen.topic.config.min_isr)))
        .map(|chosen| {
            Row::new(&[&chosen.topic.name, &number_key(chosen.partition)], PartitionBody::new(&read.links, chosen))
        })
        .collect();
    read.list("KafkaPartitionList", rows)
}

/// `GET /topics/{topic_name}/partitions/{partition_id}`
pub async fn show(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let chosen = one(&read, &topic, &partition)?;
    read.object(StatusCode::OK, &PartitionBody::new(&read.links, chosen))
}

/// The one partition that a path without `-` names.
pub fn one<'a>(read: &'a Read, topic: &str, partition: &str) -> Result<Chosen<'a>, ApiError> {
    if !is_single(topic, partition) {
        return Err(ApiError::malformed("this path needs one topic and one partition; \"-\" (all) is not served here"));
    }
    let chosen = choose(&read.image, topic, partition)?.into_iter().next();
    chosen.ok_or_else(|| ApiError::unknown_partition(topic, partition))
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct OffsetsBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    partition_id: i32,
    leader: Option<Related>,
    replicas: Related,
    reassignment: Related,
    earliest_offset: Option<i64>,
    latest_offset: Option<i64>,
}

/// `GET /topics/{t}/partitions/{p}/offset?offset_type=earliest|latest|earliest_and_latest`
///
/// Latest is the high watermark, as consumers see it. 503/50302 when the leader does not answer within 2 s.
pub async fn offset(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[OFFSET_PARAMETERS]).await?;
    let types = ["earliest", "latest", "earliest_and_latest"];
    let wanted = read.params.word("offset_type", &types, "earliest_and_latest")?;
    let chosen = one(&read, &topic, &partition)?;
    let live = live::from_leaders(&admin, &read.image, std::iter::once(chosen.at())).await;
    let live = live
        .get(&chosen.at())
        .ok_or_else(|| ApiError::leader_silent(&chosen.topic.name, chosen.partition, chosen.state.leader))?;
    let base = PartitionBody::new(&read.links, chosen);
    let body = OffsetsBody {
        kind: "KafkaPartitionWithOffsets",
        metadata: base.metadata,
        cluster_id: base.cluster_id,
        topic_name: base.topic_name,
        partition_id: base.partition_id,
        leader: base.leader,
        replicas: base.replicas,
        reassignment: base.reassignment,
        earliest_offset: (wanted != "latest").then_some(live.log_start_offset),
        latest_offset: (wanted != "earliest").then_some(live.high_watermark),
    };
    read.object(StatusCode::OK, &body)
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReplicaBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    partition_id: i32,
    broker_id: i32,
    is_leader: bool,
    is_in_sync: bool,
    broker: Related,
}

impl ReplicaBody {
    /// One replica of a partition.
    pub fn new(links: &Links, topic: &str, partition: i32, state: &PartitionState, broker: BrokerId) -> Self {
        let names = [format!("topic={topic}"), format!("partition={partition}"), format!("replica={broker}")];
        Self {
            kind: "KafkaReplica",
            metadata: links.metadata(&format!("{}/replicas/{broker}", path(topic, partition)), &names),
            cluster_id: links.cluster_id().to_owned(),
            topic_name: topic.to_owned(),
            partition_id: partition,
            broker_id: broker.0,
            is_leader: state.leader == Some(broker),
            is_in_sync: state.isr.contains(&broker),
            broker: links.related(&format!("/brokers/{broker}")),
        }
    }
}

/// `GET /topics/{t}/partitions/{p}/replicas`; `-` in both places means all.
pub async fn replicas(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, REPLICA_FILTERS]).await?;
    let brokers = read.params.number_filter("broker_id")?;
    let names = read.params.filter("topic", None)?;
    let mut rows = Vec::new();
    for chosen in choose(&read.image, &topic, &partition)? {
        if !names.admits(&chosen.topic.name) {
            continue;
        }
        for broker in chosen.state.replicas.iter().filter(|broker| brokers.admits_number(Some(broker.0))) {
            let body = ReplicaBody::new(&read.links, &chosen.topic.name, chosen.partition, chosen.state, *broker);
            rows.push(Row::new(&[&chosen.topic.name, &number_key(chosen.partition), &number_key(broker.0)], body));
        }
    }
    read.list("KafkaReplicaList", rows)
}

/// `GET /topics/{t}/partitions/{p}/replicas/{b}`
pub async fn replica(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition, broker)): Path<(String, String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let chosen = one(&read, &topic, &partition)?;
    let id = broker.parse().ok().and_then(BrokerId::from_wire);
    let id = id.filter(|id| chosen.state.replicas.contains(id)).ok_or_else(|| {
        ApiError::not_found(format!("partition {topic}-{partition} has no replica on broker {broker}"))
    })?;
    let body = ReplicaBody::new(&read.links, &chosen.topic.name, chosen.partition, chosen.state, id);
    read.object(StatusCode::OK, &body)
}
