//! `/topics/{t|-}/partitions/{p|-}/replica-status`: how far each replica is (Confluent Server's shape, and more).

use axum::extract::{Path, State};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Chosen, choose};
use crate::AdminState;
use crate::error::ApiError;
use crate::live;
use crate::query::LIST;
use crate::respond::{Call, Metadata, Row, number_key};
use crate::routes::{self, Route};

const FILTERS: &[&str] = &["broker_id", "topic"];

/// This file's route.
pub fn routes() -> Vec<Route> {
    const WHAT: &str = "How far each replica is: offsets, lag in offsets, bytes and time";
    vec![
        routes::get("/topics/{topic_name}/partitions/{partition_id}/replica-status", list, WHAT)
            .list::<ReplicaStatusBody>("KafkaReplicaStatusList")
            .knows(FILTERS),
    ]
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReplicaStatusBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    partition_id: i32,
    broker_id: i32,
    is_leader: bool,
    is_observer: bool,
    is_isr_eligible: bool,
    is_in_isr: bool,
    is_caught_up: Option<bool>,
    log_start_offset: Option<i64>,
    log_end_offset: Option<i64>,
    last_caught_up_time_ms: Option<i64>,
    last_fetch_time_ms: Option<i64>,
    link_name: Option<String>,
    // Ours from here on.
    lag_offsets: Option<i64>,
    lag_bytes: Option<u64>,
    lag_ms: Option<u64>,
    catch_up_bytes_per_s: Option<u64>,
    eta_ms: Option<u64>,
    fetch_state: Option<String>,
    log_dir: Option<String>,
    size_bytes: Option<u64>,
    broker_epoch: Option<i64>,
    offline_reason: Option<String>,
    /// The leader did not answer within 2 s: what it alone knows is null.
    stale: bool,
}

/// `GET /topics/{t|-}/partitions/{p|-}/replica-status`; filters `broker_id`, `topic`.
pub async fn list(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let brokers = read.params.number_filter("broker_id")?;
    let names = read.params.filter("topic", None)?;
    let mut chosen = choose(&read.image, &topic, &partition)?;
    chosen.retain(|chosen| names.admits(&chosen.topic.name));
    let live = live::from_replicas(&admin, &read.image, chosen.iter().map(Chosen::at)).await;
    let mut rows = Vec::new();
    for chosen in &chosen {
        let (at, state) = (chosen.at(), chosen.state);
        let leader = state.leader.and_then(|leader| live.get(&(leader, at))).filter(|live| live.is_leader);
        if let Some(leader) = leader {
            admin.rates.sample(at, leader);
        }
        for broker in state.replicas.iter().filter(|broker| brokers.admits_number(Some(broker.0))) {
            let own = live.get(&(*broker, at));
            let seen = leader.and_then(|leader| leader.follower(*broker));
            let registration = read.image.brokers.get(broker);
            let rate = (!state.isr.contains(broker)).then(|| admin.rates.get(at, *broker)).flatten();
            let path = format!("{}/replica-status", chosen.path());
            let mut names = chosen.names();
            names.push(format!("replica-status={broker}"));
            let body = ReplicaStatusBody {
                kind: "KafkaReplicaStatus",
                metadata: read.links.metadata(&path, &names),
                cluster_id: read.links.cluster_id().to_owned(),
                topic_name: chosen.topic.name.to_string(),
                partition_id: chosen.partition,
                broker_id: broker.0,
                is_leader: state.leader == Some(*broker),
                is_observer: false,
                is_isr_eligible: registration.is_some_and(|registration| registration.is_active()),
                is_in_isr: state.isr.contains(broker),
                is_caught_up: seen.map(|seen| seen.is_caught_up),
                log_start_offset: own.map(|own| own.log_start_offset).or(seen.and_then(|seen| seen.log_start_offset)),
                log_end_offset: own.map(|own| own.log_end_offset).or(seen.and_then(|seen| seen.log_end_offset)),
                last_caught_up_time_ms: seen.and_then(|seen| seen.last_caught_up_time_ms),
                last_fetch_time_ms: seen.and_then(|seen| seen.last_fetch_time_ms),
                link_name: None,
                lag_offsets: seen.and_then(|seen| seen.lag_offsets),
                lag_bytes: seen.and_then(|seen| seen.lag_bytes),
                lag_ms: seen.and_then(|seen| seen.lag_ms),
                catch_up_bytes_per_s: rate.map(|rate| rate.bytes_per_s),
                eta_ms: rate.and_then(|rate| rate.eta_ms),
                fetch_state: own
                    .map(|own| own.fetch_state.clone())
                    .or_else(|| seen.map(|seen| seen.fetch_state.clone())),
                log_dir: registration
                    .and_then(|registration| registration.log_dirs.first())
                    .map(|directory| directory.to_string()),
                size_bytes: own.map(|own| own.log_bytes),
                broker_epoch: registration.map(|registration| registration.epoch.0),
                offline_reason: own.and_then(|own| own.offline.clone()),
                stale: leader.is_none(),
            };
            let key = [&*chosen.topic.name, &number_key(chosen.partition), &number_key(broker.0)];
            rows.push(Row::new(&key, body));
        }
    }
    read.list("KafkaReplicaStatusList", rows)
}
