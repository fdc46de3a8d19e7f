//! DescribeQuorum (55, v0–2): the metadata quorum as its leader sees it, whoever is asked.
//!
//! openraft pushes, so "last fetch" is the last acknowledged heartbeat or append. v1 brings these times, v2 directory
//! ids and where the voters are.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_quorum::{PeerStatus, QuorumStatus};
use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::describe_quorum_request::TopicData as AskedTopic;
use kafka_wire::describe_quorum_response::{Listener, Node, PartitionData, ReplicaState, TopicData};
use kafka_wire::{DescribeQuorumRequest, DescribeQuorumResponse};
use kafka_wire_core::Uuid;

use super::context::Context;

/// Kafka's name for the quorum's log.
const METADATA_TOPIC: &str = "__cluster_metadata";
/// How long the raft leader may take.
const BUDGET: Duration = Duration::from_secs(2);
/// What is not known of a time.
const NO_TIME: i64 = -1;

pub async fn handle(context: &Context, version: i16, request: DescribeQuorumRequest) -> DescribeQuorumResponse {
    let mut response = DescribeQuorumResponse::default();
    let status = if asks_for_metadata(&request.topics) { context.quorum.leader_status(BUDGET).await } else { None };
    let now_ms = context.partitions.clock.wall().0;
    response.topics = request.topics.iter().map(|topic| describe(topic, status.as_ref(), version, now_ms)).collect();
    if version >= 2
        && let Some(status) = &status
    {
        let url = |node| context.quorum.controller_url(node);
        response.nodes = status.voters.iter().filter_map(|voter| node(voter.node, &url(voter.node)?)).collect();
    }
    response
}

fn asks_for_metadata(topics: &[AskedTopic]) -> bool {
    let asked = topics.iter().filter(|topic| topic.topic_name.as_str() == METADATA_TOPIC);
    asked.flat_map(|topic| &topic.partitions).any(|partition| partition.partition_index == 0)
}

fn describe(asked: &AskedTopic, status: Option<&QuorumStatus>, version: i16, now_ms: i64) -> TopicData {
    let mut topic = TopicData::default();
    topic.topic_name = asked.topic_name.clone();
    let metadata = asked.topic_name.as_str() == METADATA_TOPIC;
    topic.partitions = asked
        .partitions
        .iter()
        .map(|partition| match (metadata && partition.partition_index == 0, status) {
            (true, Some(status)) => described(status, version, now_ms),
            (true, None) => {
                refused(0, ErrorCode::NotLeaderOrFollower, "the metadata quorum has no leader now", version)
            }
            (false, _) => {
                let why = "only partition 0 of __cluster_metadata is described";
                refused(partition.partition_index, ErrorCode::UnknownTopicOrPartition, why, version)
            }
        })
        .collect();
    topic
}

fn refused(index: i32, code: ErrorCode, why: &'static str, version: i16) -> PartitionData {
    let mut partition = PartitionData::default();
    partition.partition_index = index;
    partition.error_code = code.code();
    if version >= 2 {
        partition.error_message = Some(why.into());
    }
    partition.leader_id = -1;
    partition.leader_epoch = -1;
    partition.high_watermark = -1;
    partition
}

fn described(status: &QuorumStatus, version: i16, now_ms: i64) -> PartitionData {
    let mut partition = PartitionData::default();
    partition.leader_id = status.node.0;
    partition.leader_epoch = i32::try_from(status.term).unwrap_or(i32::MAX);
    partition.high_watermark = end(status.committed);
    let peers: BTreeMap<_, &PeerStatus> = status.peers.iter().map(|peer| (peer.member, peer)).collect();
    let replicas = |members: &[highwater_quorum::QuorumMember]| {
        members.iter().filter_map(|member| Some(replica(peers.get(member)?, version, now_ms))).collect()
    };
    partition.current_voters = replicas(&status.voters);
    partition.observers = replicas(&status.observers);
    partition
}

fn replica(peer: &PeerStatus, version: i16, now_ms: i64) -> ReplicaState {
    let mut replica = ReplicaState::default();
    replica.replica_id = peer.member.node.0;
    if version >= 2 {
        replica.replica_directory_id = Uuid::from_bytes(peer.member.directory.to_bytes());
    }
    replica.log_end_offset = end(peer.matched);
    if version >= 1 {
        let age = peer.contact_age_ms.and_then(|age| i64::try_from(age).ok());
        replica.last_fetch_timestamp = age.map_or(NO_TIME, |age| now_ms - age);
        replica.last_caught_up_timestamp = if peer.lag == 0 { replica.last_fetch_timestamp } else { NO_TIME };
    }
    replica
}

/// An offset is where the next entry goes; raft counts the last one.
fn end(last: Option<u64>) -> i64 {
    last.map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX - 1) + 1)
}

fn node(id: BrokerId, url: &str) -> Option<Node> {
    let (host, port) = url.strip_prefix("http://")?.trim_end_matches('/').rsplit_once(':')?;
    let mut listener = Listener::default();
    listener.name = "CONTROLLER".into();
    listener.host = host.trim_start_matches('[').trim_end_matches(']').into();
    listener.port = port.parse().ok()?;
    let mut node = Node::default();
    node.node_id = id.0;
    node.listeners = vec![listener];
    Some(node)
}

#[cfg(test)]
mod tests {
    use kafka_wire::describe_quorum_request::PartitionData as AskedPartition;

    use super::*;

    fn asked(name: &str, index: i32) -> AskedTopic {
        let mut partition = AskedPartition::default();
        partition.partition_index = index;
        let mut topic = AskedTopic::default();
        topic.topic_name = name.into();
        topic.partitions = vec![partition];
        topic
    }

    #[test]
    fn another_topic_is_unknown_and_a_quorum_without_leader_says_so() {
        assert!(asks_for_metadata(&[asked("orders", 0), asked(METADATA_TOPIC, 0)]));
        assert!(!asks_for_metadata(&[asked(METADATA_TOPIC, 1)]));
        let codes = |topic: &AskedTopic| describe(topic, None, 2, 0).partitions[0].error_code;
        assert_eq!(codes(&asked("orders", 0)), ErrorCode::UnknownTopicOrPartition.code());
        assert_eq!(codes(&asked(METADATA_TOPIC, 1)), ErrorCode::UnknownTopicOrPartition.code());
        assert_eq!(codes(&asked(METADATA_TOPIC, 0)), ErrorCode::NotLeaderOrFollower.code());
        let text = |version| describe(&asked("orders", 0), None, version, 0).partitions[0].error_message.clone();
        assert_eq!(text(1), PartitionData::default().error_message, "v2 brought texts");
        assert!(text(2).is_some_and(|text| text.as_str().contains("partition 0")));
    }

    #[test]
    fn voters_are_told_with_host_and_port() {
        let told = node(BrokerId(3), "http://[::1]:9093").unwrap();
        assert_eq!((told.node_id, told.listeners[0].host.as_str(), told.listeners[0].port), (3, "::1", 9093));
        assert!(node(BrokerId(3), "").is_none());
    }
}
