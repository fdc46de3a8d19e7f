//! What coordinators know of groups, as nodes tell each other, and who is asked for it.

use highwater_data::coordinator::{OFFSETS_TOPIC, partition_of};
use highwater_data::group::status::GroupStatus;
use highwater_quorum::MetadataImage;
use highwater_wire::{BrokerId, ErrorCode, TopicPartition};
use serde::{Deserialize, Serialize};

use crate::AdminState;
use crate::error::ApiError;
use crate::live::{BUDGET, LocalReplicas};

/// One group as its coordinator knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveGroup {
    pub id: String,
    /// `STABLE`, `EMPTY`, …
    pub state: String,
    pub state_since_ms: i64,
    pub generation: i32,
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    pub leader: Option<String>,
    pub members: Vec<LiveMember>,
    pub positions: Vec<LivePosition>,
    pub history: Vec<LiveRebalance>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveMember {
    pub id: String,
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub assigned: Vec<(String, Vec<i32>)>,
}

/// One committed position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivePosition {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub committed_at_ms: i64,
}

/// How a generation came about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRebalance {
    pub generation: i32,
    pub why: String,
    pub began_ms: i64,
    pub lasted_ms: u64,
    pub members: usize,
}

impl From<GroupStatus> for LiveGroup {
    fn from(group: GroupStatus) -> Self {
        let members = group.members.into_iter().map(|member| LiveMember {
            id: member.id,
            instance: member.instance,
            client_id: member.client_id,
            client_host: member.client_host,
            assigned: member.assigned,
        });
        let positions = group.positions.into_iter().map(|position| LivePosition {
            topic: position.topic,
            partition: position.partition,
            offset: position.offset,
            committed_at_ms: position.committed_at.0,
        });
        let history = group.history.into_iter().map(|rebalance| LiveRebalance {
            generation: rebalance.generation,
            why: rebalance.why,
            began_ms: rebalance.began.0,
            lasted_ms: rebalance.lasted.0,
            members: rebalance.members,
        });
        Self {
            id: group.id,
            state: shouted(group.state.name()),
            state_since_ms: group.state_since.0,
            generation: group.generation,
            protocol_type: group.protocol_type,
            protocol: group.protocol,
            leader: group.leader,
            members: members.collect(),
            positions: positions.collect(),
            history: history.collect(),
        }
    }
}

/// `PreparingRebalance` as `PREPARING_REBALANCE`.
fn shouted(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

/// What is asked of a coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum GroupCall {
    /// All groups that the node coordinates, or the one of this name.
    Tell(Option<String>),
    Delete(String),
    /// Topic, partition, offset.
    Reset(String, Vec<(String, i32, i64)>),
}

/// What a coordinator answers; the error is Kafka's code.
pub type GroupAnswer = Result<Vec<LiveGroup>, i16>;

/// Answers a call on this node.
pub async fn here(replicas: &LocalReplicas, call: GroupCall) -> GroupAnswer {
    let view = replicas.get().ok_or(ErrorCode::NotCoordinator.code())?;
    let done = match call {
        GroupCall::Tell(name) => {
            return match view.groups(name.as_deref()) {
                Ok(groups) => Ok(groups.into_iter().map(LiveGroup::from).collect()),
                Err(error) => Err(error.code()),
            };
        }
        GroupCall::Delete(name) => view.delete_group(&name).await,
        GroupCall::Reset(name, positions) => view.reset_offsets(&name, &positions).await,
    };
    done.map(|()| Vec::new()).map_err(ErrorCode::code)
}

/// Asks a broker, this node or another.
async fn ask(admin: &AdminState, broker: BrokerId, call: GroupCall) -> Option<Result<Vec<LiveGroup>, ErrorCode>> {
    let answer = if broker == admin.config.node {
        here(&admin.replicas, call).await
    } else {
        admin.peers.groups(&admin.quorum, broker, call, BUDGET).await?
    };
    Some(answer.map_err(ErrorCode::from_code))
}

/// The broker that coordinates a group; `None`: it has no leader now, or no group was ever made.
pub fn coordinator(image: &MetadataImage, group: &str) -> Option<BrokerId> {
    let topic = image.topic_named(OFFSETS_TOPIC)?;
    let partition = partition_of(group, topic.partitions.len());
    image.partition(TopicPartition::new(topic.id, partition))?.leader
}

/// Asks the coordinator of a group.
///
/// # Errors
/// 404/40405: there is no such group. 409/40912: somebody is in it. 503/50302, 50311: ask again.
pub async fn of_group(
    admin: &AdminState,
    image: &MetadataImage,
    group: &str,
    call: GroupCall,
) -> Result<Vec<LiveGroup>, ApiError> {
    if image.topic_named(OFFSETS_TOPIC).is_none() {
        return Err(unknown(group));
    }
    let silent = |what: &str| ApiError::broker_not_available(format!("{what} of group {group:?}: ask again"));
    let broker = coordinator(image, group).ok_or_else(|| silent("there is no leader for the partition"))?;
    let told = ask(admin, broker, call).await.ok_or_else(|| silent("no answer within 2 s from the coordinator"))?;
    told.map_err(|error| match error {
        ErrorCode::GroupIdNotFound => unknown(group),
        ErrorCode::NonEmptyGroup => ApiError::conflict(
            40912,
            format!("group {group:?} has members: stop its programs, and wait for their sessions to end"),
        ),
        error => ApiError::retriable(error, format!("the coordinator of group {group:?} says {error:?}: ask again")),
    })
}

pub fn unknown(group: &str) -> ApiError {
    ApiError::unknown_group(format!("there is no consumer group {group:?}; GET /consumer-groups lists all"))
}

/// Every group of the cluster. Those of a broker that does not answer in time are missing; who that is comes second.
pub async fn all(admin: &AdminState, image: &MetadataImage) -> (Vec<LiveGroup>, Vec<BrokerId>) {
    let topic = image.topic_named(OFFSETS_TOPIC);
    let led = topic.iter().flat_map(|topic| &topic.partitions).filter_map(|state| state.leader);
    let brokers: std::collections::BTreeSet<BrokerId> = led.collect();
    let calls = brokers.iter().map(|broker| ask(admin, *broker, GroupCall::Tell(None)));
    let (mut groups, mut silent) = (Vec::new(), Vec::new());
    for (broker, told) in brokers.iter().zip(futures::future::join_all(calls).await) {
        match told {
            Some(Ok(told)) => groups.extend(told),
            _ => silent.push(*broker),
        }
    }
    groups.sort_by(|a, b| a.id.cmp(&b.id));
    (groups, silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_spelled_as_rest_v3_has_them() {
        let names = ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"];
        let shouted: Vec<String> = names.map(shouted).into();
        assert_eq!(shouted, ["EMPTY", "PREPARING_REBALANCE", "COMPLETING_REBALANCE", "STABLE"]);
    }
}
