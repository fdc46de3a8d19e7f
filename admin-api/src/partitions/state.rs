//! `/topics/{t|-}/partitions/{p|-}/state`: who leads, who is in sync, who is not and what it waits for (operators.md
//! 1.4 A). Epochs and sets come from the image; offsets and lags from the leader, absent when it does not answer.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::MetadataImage;
use highwater_quorum::image::{BrokerState, LeaderRecovery, PartitionState};
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Chosen, choose, ids, is_single};
use crate::AdminState;
use crate::error::ApiError;
use crate::live::{self, LiveReplica};
use crate::query::LIST;
use crate::rates::CatchUp;
use crate::respond::{Call, Links, Metadata, Row, number_key};
use crate::routes::{self, Route};

const FILTERS: &[&str] = &["state", "broker_id", "leader_id", "topic", "min_lag_ms"];

/// This file's route.
pub fn routes() -> Vec<Route> {
    const WHAT: &str = "Who leads, who is in sync, who is not and what it waits for";
    vec![
        routes::get("/topics/{topic_name}/partitions/{partition_id}/state", state, WHAT)
            .object_or_list::<StateBody>("KafkaPartitionStateList")
            .knows(FILTERS),
    ]
}

/// Every word of `states`.
pub const ALL: &[&str] = &[
    "ONLINE",
    "OFFLINE",
    "UNDER_REPLICATED",
    "UNDER_MIN_ISR",
    "AT_MIN_ISR",
    "ELR_ONLY",
    "NOT_PREFERRED_LEADER",
    "REASSIGNING",
    "RECOVERING",
];

/// What is to be said of a partition in one word each. `min_isr`: of the topic.
pub fn states(state: &PartitionState, min_isr: usize) -> Vec<&'static str> {
    let min_isr = state.effective_min_isr(min_isr);
    let (in_sync, wanted) = (state.isr.len(), state.replicas.len().saturating_sub(state.adding.len()));
    let facts = [
        (state.leader.is_some(), "ONLINE"),
        (state.leader.is_none(), "OFFLINE"),
        (in_sync < wanted, "UNDER_REPLICATED"),
        (in_sync < min_isr, "UNDER_MIN_ISR"),
        (in_sync == min_isr, "AT_MIN_ISR"),
        (state.isr.is_empty() && !state.elr.is_empty(), "ELR_ONLY"),
        (state.leader.is_some() && state.leader != state.replicas.first().copied(), "NOT_PREFERRED_LEADER"),
        (!state.adding.is_empty() || !state.removing.is_empty(), "REASSIGNING"),
        (state.recovery == LeaderRecovery::Recovering, "RECOVERING"),
    ];
    facts.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect()
}

#[derive(Debug, Serialize, JsonSchema)]
struct StateBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    topic_name: String,
    topic_id: String,
    partition_id: i32,
    leader_id: Option<i32>,
    leader_epoch: i32,
    leader_since_ms: i64,
    preferred_leader_id: Option<i32>,
    partition_epoch: i32,
    leader_recovery_state: &'static str,
    replicas: Vec<i32>,
    isr: Vec<i32>,
    elr: Vec<i32>,
    last_known_elr: Vec<i32>,
    adding_replicas: Vec<i32>,
    removing_replicas: Vec<i32>,
    min_insync_replicas: usize,
    states: Vec<&'static str>,
    log_start_offset: Option<i64>,
    high_watermark: Option<i64>,
    last_stable_offset: Option<i64>,
    log_end_offset: Option<i64>,
    /// The ISR that the leader has proposed and the controller has not answered.
    proposed_isr: Option<Vec<i32>>,
    /// What the last leader reported before it went: only while nobody leads.
    last_known_high_watermark: Option<i64>,
    replica_status: Vec<ReplicaStatusBody>,
    waiting_for: Vec<WaitingBody>,
    observed: ObservedBody,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReplicaStatusBody {
    broker_id: i32,
    is_leader: bool,
    is_in_isr: bool,
    is_caught_up: Option<bool>,
    log_end_offset: Option<i64>,
    lag_offsets: Option<i64>,
    lag_bytes: Option<u64>,
    lag_ms: Option<u64>,
    catch_up_bytes_per_s: Option<u64>,
    eta_ms: Option<u64>,
    last_fetch_time_ms: Option<i64>,
    last_caught_up_time_ms: Option<i64>,
    fetch_state: Option<String>,
}

/// A replica that is missing, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WaitingBody {
    broker_id: i32,
    why: String,
    lag_ms: Option<u64>,
    eta_ms: Option<u64>,
}

impl WaitingBody {
    /// A replica of which nothing is known but why it is waited for.
    pub fn unseen(broker: BrokerId, why: &str) -> Self {
        Self { broker_id: broker.0, why: why.to_owned(), lag_ms: None, eta_ms: None }
    }

    /// The same with an estimate.
    #[cfg(test)]
    pub fn with_eta(self, eta_ms: Option<u64>) -> Self {
        Self { eta_ms, ..self }
    }

    /// Who is waited for.
    pub fn broker(&self) -> BrokerId {
        BrokerId(self.broker_id)
    }

    /// Until it lacks nothing, if two looks at it have shown that.
    pub fn eta_ms(&self) -> Option<u64> {
        self.eta_ms
    }
}

/// Who is missing in a partition, and why, with what its leader said if it answered.
pub fn missing(
    image: &MetadataImage,
    chosen: Chosen<'_>,
    live: Option<&LiveReplica>,
    rates: &CatchUp,
) -> Vec<WaitingBody> {
    let replicas = chosen.state.replicas.iter();
    let status: Vec<_> = replicas.map(|broker| replica_status(chosen, *broker, live, rates)).collect();
    waiting_for(image, chosen.state, &status, live)
}

/// Where the values come from.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ObservedBody {
    pub metadata_offset: u64,
    pub leader_observed_at_ms: Option<i64>,
    /// The leader did not answer: its values are null.
    pub stale: bool,
}

impl StateBody {
    fn new(
        links: &Links,
        image: &MetadataImage,
        chosen: Chosen<'_>,
        live: Option<&LiveReplica>,
        rates: &CatchUp,
    ) -> Self {
        let state = chosen.state;
        let min_isr = state.effective_min_isr(chosen.topic.config.min_isr);
        let path = format!("{}/state", chosen.path());
        let mut names = chosen.names();
        names.push("state".to_owned());
        let replica_status: Vec<ReplicaStatusBody> =
            state.replicas.iter().map(|broker| replica_status(chosen, *broker, live, rates)).collect();
        let waiting_for = waiting_for(image, state, &replica_status, live);
        Self {
            kind: "KafkaPartitionState",
            metadata: links.metadata(&path, &names),
            cluster_id: links.cluster_id().to_owned(),
            topic_name: chosen.topic.name.to_string(),
            topic_id: chosen.topic.id.to_string(),
            partition_id: chosen.partition,
            leader_id: state.leader.map(|leader| leader.0),
            leader_epoch: state.leader_epoch.0,
            leader_since_ms: state.leader_since.0,
            preferred_leader_id: state.replicas.first().map(|broker| broker.0),
            partition_epoch: state.partition_epoch.0,
            leader_recovery_state: match state.recovery {
                LeaderRecovery::Recovered => "RECOVERED",
                LeaderRecovery::Recovering => "RECOVERING",
            },
            replicas: ids(&state.replicas),
            isr: ids(&state.isr),
            elr: ids(&state.elr),
            last_known_elr: ids(&state.last_known_elr),
            adding_replicas: ids(&state.adding),
            removing_replicas: ids(&state.removing),
            min_insync_replicas: min_isr,
            states: states(state, chosen.topic.config.min_isr),
            log_start_offset: live.map(|live| live.log_start_offset),
            high_watermark: live.map(|live| live.high_watermark),
            last_stable_offset: live.map(|live| live.last_stable_offset),
            log_end_offset: live.map(|live| live.log_end_offset),
            proposed_isr: live.and_then(|live| live.proposed_isr.clone()),
            last_known_high_watermark: match state.leader {
                None => state.last_known_watermark.map(|report| report.high_watermark.0),
                Some(_) => None,
            },
            replica_status,
            waiting_for,
            observed: ObservedBody {
                metadata_offset: image.version.0,
                leader_observed_at_ms: live.map(|live| live.observed_ms),
                stale: live.is_none(),
            },
        }
    }
}

fn replica_status(
    chosen: Chosen<'_>,
    broker: BrokerId,
    live: Option<&LiveReplica>,
    rates: &CatchUp,
) -> ReplicaStatusBody {
    let state = chosen.state;
    let seen = live.and_then(|live| live.follower(broker));
    let rate = seen.filter(|seen| !seen.is_in_isr).and_then(|_| rates.get(chosen.at(), broker));
    ReplicaStatusBody {
        broker_id: broker.0,
        is_leader: state.leader == Some(broker),
        is_in_isr: state.isr.contains(&broker),
        is_caught_up: seen.map(|seen| seen.is_caught_up),
        log_end_offset: seen.and_then(|seen| seen.log_end_offset),
        lag_offsets: seen.and_then(|seen| seen.lag_offsets),
        lag_bytes: seen.and_then(|seen| seen.lag_bytes),
        lag_ms: seen.and_then(|seen| seen.lag_ms),
        catch_up_bytes_per_s: rate.map(|rate| rate.bytes_per_s),
        eta_ms: rate.and_then(|rate| rate.eta_ms),
        last_fetch_time_ms: seen.and_then(|seen| seen.last_fetch_time_ms),
        last_caught_up_time_ms: seen.and_then(|seen| seen.last_caught_up_time_ms),
        fetch_state: seen.map(|seen| seen.fetch_state.clone()),
    }
}

/// Who is missing. With a leader: every replica outside the ISR. Without one: those who may lead and cannot now.
fn waiting_for(
    image: &MetadataImage,
    state: &PartitionState,
    status: &[ReplicaStatusBody],
    live: Option<&LiveReplica>,
) -> Vec<WaitingBody> {
    let candidates = || [&state.isr, &state.elr, &state.last_known_elr].into_iter().flatten();
    let missing: Vec<BrokerId> = match state.leader {
        Some(_) => state.replicas.iter().filter(|broker| !state.isr.contains(broker)).copied().collect(),
        None if candidates().next().is_some() => {
            state.replicas.iter().filter(|broker| candidates().any(|other| other == *broker)).copied().collect()
        }
        None => state.replicas.clone(),
    };
    missing
        .into_iter()
        .map(|broker| {
            let seen = status.iter().find(|status| status.broker_id == broker.0);
            let from_leader = live.and_then(|live| live.follower(broker)).and_then(|seen| seen.waiting_for.clone());
            // The image knows why better than the leader does.
            let why = match image.brokers.get(&broker).map(|registration| registration.state) {
                None => "BROKER_NOT_REGISTERED".to_owned(),
                Some(BrokerState::Fenced) => "BROKER_FENCED".to_owned(),
                Some(BrokerState::ShuttingDown) => "BROKER_SHUTTING_DOWN".to_owned(),
                Some(BrokerState::Active) if state.leader.is_none() => "ELECTION".to_owned(),
                Some(BrokerState::Active) => from_leader.unwrap_or_else(|| match live {
                    None => "LEADER_SILENT".to_owned(),
                    Some(_) => "CONTROLLER".to_owned(),
                }),
            };
            WaitingBody {
                broker_id: broker.0,
                why,
                lag_ms: seen.and_then(|seen| seen.lag_ms),
                eta_ms: seen.and_then(|seen| seen.eta_ms),
            }
        })
        .collect()
}

/// `GET /topics/{t|-}/partitions/{p|-}/state`; filters `state`, `broker_id`, `leader_id`, `topic`, `min_lag_ms`.
pub async fn state(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let wanted = read.params.filter("state", Some(ALL))?;
    let brokers = read.params.number_filter("broker_id")?;
    let leaders = read.params.number_filter("leader_id")?;
    let names = read.params.filter("topic", None)?;
    let min_lag_ms: Option<u64> = read.params.number("min_lag_ms")?;
    let mut chosen = choose(&read.image, &topic, &partition)?;
    if !is_single(&topic, &partition) {
        chosen.retain(|chosen| {
            let state = chosen.state;
            names.admits(&chosen.topic.name)
                && wanted.admits_any(&states(state, chosen.topic.config.min_isr))
                && leaders.admits_number(state.leader.map(|leader| leader.0))
                && (brokers.is_empty() || brokers.admits_numbers(state.replicas.iter().map(|broker| broker.0)))
        });
    }
    let live = live::from_leaders(&admin, &read.image, chosen.iter().map(Chosen::at)).await;
    for (at, live) in &live {
        admin.rates.sample(*at, live);
    }
    let bodies = chosen.iter().map(|chosen| {
        let body = StateBody::new(&read.links, &read.image, *chosen, live.get(&chosen.at()), &admin.rates);
        (chosen, body)
    });
    if is_single(&topic, &partition) {
        let mut bodies = bodies;
        let (_, body) = bodies.next().ok_or_else(|| ApiError::unknown_partition(&topic, &partition))?;
        return read.object(StatusCode::OK, &body);
    }
    let rows = bodies
        .filter(|(_, body)| {
            min_lag_ms.is_none_or(|min| body.replica_status.iter().any(|status| status.lag_ms >= Some(min)))
        })
        .map(|(chosen, body)| Row::new(&[&chosen.topic.name, &number_key(chosen.partition)], body))
        .collect();
    read.list("KafkaPartitionStateList", rows)
}

#[cfg(test)]
mod tests {
    use highwater_wire::{DirectoryId, LeaderEpoch, PartitionEpoch, Timestamp};

    use super::*;

    fn partition(replicas: &[i32], isr: &[i32], leader: Option<i32>) -> PartitionState {
        let brokers = |ids: &[i32]| -> Vec<BrokerId> { ids.iter().map(|id| BrokerId(*id)).collect() };
        PartitionState {
            replicas: brokers(replicas),
            directories: replicas.iter().map(|_| DirectoryId::from_bytes([1; 16])).collect(),
            adding: vec![],
            removing: vec![],
            isr: brokers(isr),
            elr: vec![],
            last_known_elr: vec![],
            leader: leader.map(BrokerId),
            leader_epoch: LeaderEpoch(1),
            partition_epoch: PartitionEpoch(1),
            recovery: LeaderRecovery::Recovered,
            last_known_watermark: None,
            leader_since: Timestamp(0),
        }
    }

    #[test]
    fn states_say_what_is_wrong_and_what_is_close_to_it() {
        assert_eq!(states(&partition(&[1, 2, 3], &[1, 2, 3], Some(1)), 2), ["ONLINE"]);
        assert_eq!(
            states(&partition(&[1, 2, 3], &[2, 3], Some(2)), 2),
            ["ONLINE", "UNDER_REPLICATED", "AT_MIN_ISR", "NOT_PREFERRED_LEADER"]
        );
        assert_eq!(
            states(&partition(&[1, 2, 3], &[3], Some(3)), 2),
            ["ONLINE", "UNDER_REPLICATED", "UNDER_MIN_ISR", "NOT_PREFERRED_LEADER"]
        );
        let mut lost = partition(&[1, 2], &[], None);
        lost.elr = vec![BrokerId(2)];
        assert_eq!(states(&lost, 1), ["OFFLINE", "UNDER_REPLICATED", "UNDER_MIN_ISR", "ELR_ONLY"]);
    }

    #[test]
    fn without_a_leader_those_who_may_lead_are_waited_for() {
        let mut state = partition(&[1, 2, 3], &[], None);
        state.elr = vec![BrokerId(2)];
        let waiting = waiting_for(&MetadataImage::default(), &state, &[], None);
        let expected =
            WaitingBody { broker_id: 2, why: "BROKER_NOT_REGISTERED".to_owned(), lag_ms: None, eta_ms: None };
        assert_eq!(waiting, [expected]);
    }
}
