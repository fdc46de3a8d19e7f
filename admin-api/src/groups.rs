//! `/consumer-groups`: who is in a group, how far it is behind, why it was shared out anew, and its positions moved.
//!
//! REST v3 shapes and ours beside them. Asked of the coordinators (`groups/live.rs`), compared with where the leaders say that the
//! logs end (`groups/lag.rs`); `groups/change.rs` deletes and resets.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::MetadataImage;
use highwater_wire::TopicPartition;
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::error::ApiError;
use crate::live::{LiveReplica, from_leaders};
use crate::query::LIST;
use crate::respond::{Call, Metadata, Read, Related, Row, number_key};
use crate::routes::{self, Failure, Route};
use crate::time::now_ms;

mod change;
mod lag;
pub mod live;

use lag::{Health, PartitionLag};
use live::{GroupCall, LiveGroup, LiveMember};

const FILTERS: &[&str] = &["state"];
/// What may go wrong where one group is asked for.
const FAILURES: &[Failure] = &[
    (404, 40405, "there is no such group"),
    (503, 50302, "its coordinator does not answer, or has just changed: ask again"),
];

/// This file's routes, and those of `change.rs`.
pub fn routes() -> Vec<Route> {
    const ONE: &str = "/consumer-groups/{consumer_group_id}";
    let reads = vec![
        routes::get("/consumer-groups", list, "Every consumer group: state, members, lag, and what that means")
            .list::<GroupBody>("KafkaConsumerGroupList")
            .knows(FILTERS)
            .fails(&[(503, 50302, "a coordinator does not answer, or has just changed: ask again")]),
        routes::get(ONE, show, "One consumer group, with the causes of its last rebalances")
            .object::<GroupBody>(200)
            .fails(FAILURES),
        routes::get("/consumer-groups/{consumer_group_id}/consumers", consumers, "The members of a group")
            .list::<ConsumerBody>("KafkaConsumerList")
            .fails(FAILURES),
        routes::get("/consumer-groups/{consumer_group_id}/lags", lags, "How far a group is behind, by partition")
            .list::<LagBody>("KafkaConsumerLagList")
            .fails(FAILURES),
        routes::get(
            "/consumer-groups/{consumer_group_id}/lag-summary",
            summary,
            "How far a group is behind, in all and at most",
        )
        .object::<SummaryBody>(200)
        .fails(FAILURES),
    ];
    reads.into_iter().chain(change::routes(ONE)).collect()
}

#[derive(Debug, Serialize, JsonSchema)]
struct GroupBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    consumer_group_id: String,
    /// It only ever committed positions: its programs share out the partitions themselves.
    is_simple: bool,
    partition_assignor: String,
    /// EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE
    state: String,
    #[serde(rename = "type")]
    kind_of_group: &'static str,
    is_mixed_consumer_group: bool,
    coordinator: Related,
    consumers: Related,
    lag_summary: Related,
    // Ours from here on.
    /// OK, LAGGING, STALLED (members, and no commit for a minute), STOPPED (no members), UNKNOWN (a leader does not answer)
    status: &'static str,
    /// Records; null: a leader did not tell.
    total_lag: Option<i64>,
    members_count: usize,
    generation: i32,
    state_since_ms: i64,
    /// Why the partitions were shared out anew: the last 32 times since this coordinator took over, oldest first.
    rebalances: Vec<RebalanceBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RebalanceBody {
    generation: i32,
    cause: String,
    began_ms: i64,
    /// Until all members had joined.
    lasted_ms: u64,
    members_count: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ConsumerBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    consumer_group_id: String,
    consumer_id: String,
    instance_id: Option<String>,
    client_id: String,
    // Ours from here on.
    host: String,
    is_leader: bool,
    assignments: Vec<AssignedBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AssignedBody {
    topic_name: String,
    partition_ids: Vec<i32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LagBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    consumer_group_id: String,
    topic_name: String,
    partition_id: i32,
    /// Null: nothing was committed.
    current_offset: Option<i64>,
    /// The high watermark; null: its leader did not tell.
    log_end_offset: Option<i64>,
    lag: Option<i64>,
    consumer_id: Option<String>,
    instance_id: Option<String>,
    client_id: Option<String>,
    // Ours.
    committed_at_ms: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SummaryBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    consumer_group_id: String,
    max_lag: i64,
    total_lag: i64,
    max_lag_consumer_id: Option<String>,
    max_lag_instance_id: Option<String>,
    max_lag_client_id: Option<String>,
    max_lag_topic_name: Option<String>,
    max_lag_partition_id: Option<i32>,
    // Ours.
    /// Partitions whose leader did not tell: the sums lack them.
    unknown_count: usize,
}

/// Where logs begin and end, of the partitions that some groups read.
struct Ends<'a> {
    image: &'a MetadataImage,
    leaders: BTreeMap<TopicPartition, LiveReplica>,
}

impl<'a> Ends<'a> {
    async fn of(admin: &AdminState, image: &'a MetadataImage, groups: &[LiveGroup]) -> Self {
        let at = |topic: &str, partition| Some(TopicPartition::new(image.topic_named(topic)?.id, partition));
        let positions = groups.iter().flat_map(|group| &group.positions);
        let committed = positions.filter_map(|position| at(&position.topic, position.partition));
        let assigned = groups.iter().flat_map(|group| &group.members).flat_map(|member| &member.assigned);
        let assigned = assigned.flat_map(|(topic, all)| all.iter().filter_map(move |number| at(topic, *number)));
        let wanted: std::collections::BTreeSet<TopicPartition> = committed.chain(assigned).collect();
        Self { image, leaders: from_leaders(admin, image, wanted.into_iter()).await }
    }

    /// Of one group.
    async fn of_one(admin: &AdminState, image: &'a MetadataImage, group: &LiveGroup) -> Self {
        Self::of(admin, image, std::slice::from_ref(group)).await
    }

    fn lags<'g>(&self, group: &'g LiveGroup) -> Vec<PartitionLag<'g>> {
        lag::of(group, |topic, partition| {
            let live = self.leaders.get(&TopicPartition::new(self.image.topic_named(topic)?.id, partition))?;
            Some((live.log_start_offset, live.high_watermark))
        })
    }
}

/// One group, or why not.
async fn find(admin: &AdminState, read: &Read, name: &str) -> Result<LiveGroup, ApiError> {
    let told = live::of_group(admin, &read.image, name, GroupCall::Tell(Some(name.to_owned()))).await?;
    told.into_iter().next().ok_or_else(|| live::unknown(name))
}

fn body(read: &Read, group: &LiveGroup, lags: &[PartitionLag<'_>]) -> GroupBody {
    let path = path_of(&group.id);
    let coordinator = live::coordinator(&read.image, &group.id).map_or(-1, |broker| broker.0);
    let health = lag::health(group, lags, now_ms());
    let rebalances = group.history.iter().map(|rebalance| RebalanceBody {
        generation: rebalance.generation,
        cause: rebalance.why.clone(),
        began_ms: rebalance.began_ms,
        lasted_ms: rebalance.lasted_ms,
        members_count: rebalance.members,
    });
    GroupBody {
        kind: "KafkaConsumerGroup",
        metadata: read.links.metadata(&path, &[name_of(&group.id)]),
        cluster_id: read.links.cluster_id().to_owned(),
        consumer_group_id: group.id.clone(),
        is_simple: group.protocol_type.is_none(),
        partition_assignor: group.protocol.clone().unwrap_or_default(),
        state: group.state.clone(),
        kind_of_group: "CLASSIC",
        is_mixed_consumer_group: false,
        coordinator: read.links.related(&format!("/brokers/{coordinator}")),
        consumers: read.links.related(&format!("{path}/consumers")),
        lag_summary: read.links.related(&format!("{path}/lag-summary")),
        status: health.name(),
        total_lag: (health != Health::Unknown).then(|| lags.iter().filter_map(PartitionLag::lag).sum()),
        members_count: group.members.len(),
        generation: group.generation,
        state_since_ms: group.state_since_ms,
        rebalances: rebalances.collect(),
    }
}

/// The path of a group below its cluster.
fn path_of(group: &str) -> String {
    let mut path = "/consumer-groups/".to_owned();
    crate::query::encode(group, &mut path);
    path
}

fn name_of(group: &str) -> String {
    format!("consumer-group={group}")
}

/// `GET /consumer-groups`; filter `state`. All groups or none: a list that lacks some would look whole.
async fn list(State(admin): State<AdminState>, Path(cluster): Path<String>, call: Call) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let states = read.params.filter("state", None)?;
    let (groups, silent) = live::all(&admin, &read.image).await;
    if !silent.is_empty() {
        let silent: Vec<String> = silent.iter().map(ToString::to_string).collect();
        return Err(ApiError::broker_not_available(format!(
            "brokers {} did not tell within 2 s which groups they coordinate, or do not know it yet: ask again",
            silent.join(", ")
        )));
    }
    let ends = Ends::of(&admin, &read.image, &groups).await;
    let rows = groups.iter().filter(|group| states.admits(&group.state));
    let rows = rows.map(|group| Row::new(&[&group.id], body(&read, group, &ends.lags(group)))).collect();
    read.list("KafkaConsumerGroupList", rows)
}

/// `GET /consumer-groups/{g}`
async fn show(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let group = find(&admin, &read, &name).await?;
    let ends = Ends::of_one(&admin, &read.image, &group).await;
    read.object(StatusCode::OK, &body(&read, &group, &ends.lags(&group)))
}

/// `GET /consumer-groups/{g}/consumers`
async fn consumers(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST]).await?;
    let group = find(&admin, &read, &name).await?;
    let row = |member: &LiveMember| {
        let path = format!("{}/consumers/{}", path_of(&group.id), member.id);
        let assigned = member
            .assigned
            .iter()
            .map(|(topic, partitions)| AssignedBody { topic_name: topic.clone(), partition_ids: partitions.clone() });
        let body = ConsumerBody {
            kind: "KafkaConsumer",
            metadata: read.links.metadata(&path, &[name_of(&group.id), format!("consumer={}", member.id)]),
            cluster_id: read.links.cluster_id().to_owned(),
            consumer_group_id: group.id.clone(),
            consumer_id: member.id.clone(),
            instance_id: member.instance.clone(),
            client_id: member.client_id.clone(),
            host: member.client_host.clone(),
            is_leader: group.leader.as_ref() == Some(&member.id),
            assignments: assigned.collect(),
        };
        Row::new(&[&member.id], body)
    };
    read.list("KafkaConsumerList", group.members.iter().map(row).collect())
}

/// `GET /consumer-groups/{g}/lags`
async fn lags(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST]).await?;
    let group = find(&admin, &read, &name).await?;
    let ends = Ends::of_one(&admin, &read.image, &group).await;
    let row = |lag: PartitionLag<'_>| {
        let path = format!("{}/lags/{}/partitions/{}", path_of(&group.id), lag.topic, lag.partition);
        let names = [name_of(&group.id), format!("lag={}-{}", lag.topic, lag.partition)];
        let body = LagBody {
            kind: "KafkaConsumerLag",
            metadata: read.links.metadata(&path, &names),
            cluster_id: read.links.cluster_id().to_owned(),
            consumer_group_id: group.id.clone(),
            topic_name: lag.topic.to_owned(),
            partition_id: lag.partition,
            current_offset: lag.current_offset,
            log_end_offset: lag.log_end_offset,
            lag: lag.lag(),
            consumer_id: lag.member.map(|member| member.id.clone()),
            instance_id: lag.member.and_then(|member| member.instance.clone()),
            client_id: lag.member.map(|member| member.client_id.clone()),
            committed_at_ms: lag.committed_at_ms,
        };
        Row::new(&[lag.topic, &number_key(lag.partition)], body)
    };
    read.list("KafkaConsumerLagList", ends.lags(&group).into_iter().map(row).collect())
}

/// `GET /consumer-groups/{g}/lag-summary`
async fn summary(
    State(admin): State<AdminState>,
    Path((cluster, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let group = find(&admin, &read, &name).await?;
    let ends = Ends::of_one(&admin, &read.image, &group).await;
    let lags = ends.lags(&group);
    let worst = lags.iter().filter(|lag| lag.lag().is_some()).max_by_key(|lag| lag.lag());
    let member = worst.and_then(|worst| worst.member);
    let path = format!("{}/lag-summary", path_of(&group.id));
    let body = SummaryBody {
        kind: "KafkaConsumerGroupLagSummary",
        metadata: read.links.metadata(&path, &[name_of(&group.id), "lag-summary".to_owned()]),
        cluster_id: read.links.cluster_id().to_owned(),
        consumer_group_id: group.id.clone(),
        max_lag: worst.and_then(PartitionLag::lag).unwrap_or(0),
        total_lag: lags.iter().filter_map(PartitionLag::lag).sum(),
        max_lag_consumer_id: member.map(|member| member.id.clone()),
        max_lag_instance_id: member.and_then(|member| member.instance.clone()),
        max_lag_client_id: member.map(|member| member.client_id.clone()),
        max_lag_topic_name: worst.map(|worst| worst.topic.to_owned()),
        max_lag_partition_id: worst.map(|worst| worst.partition),
        unknown_count: lags.iter().filter(|lag| lag.lag().is_none()).count(),
    };
    read.object(StatusCode::OK, &body)
}
