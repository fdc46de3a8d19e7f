//! DescribeTopicPartitions (75, v0): partitions in pages, with the replicas that may lead without loss (KIP-966).
//!
//! Topics come in the order of their names, so that a cursor says where to go on. Named topics that do not exist are
//! told with their error; of all topics only those that exist are told.

use std::collections::BTreeSet;
use std::ops::Bound;

use highwater_quorum::MetadataImage;
use highwater_quorum::controller::check_topic_name;
use highwater_quorum::image::{PartitionState, Topic};
use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_wire::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};
use kafka_wire_core::{StrBytes, Uuid};

use super::context::{Caller, Context, is_internal};
use super::metadata::{is_reachable, leader_told};

/// `max.request.partition.size.limit` of Kafka: most partitions in one answer, whatever is asked for.
const PARTITIONS_MAX: usize = 2_000;

pub async fn handle(
    context: &Context,
    caller: &Caller,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    page(&context.image(), caller, &request)
}

fn page(
    image: &MetadataImage,
    caller: &Caller,
    request: &DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let mut response = DescribeTopicPartitionsResponse::default();
    let named: BTreeSet<&str> = request.topics.iter().map(|topic| topic.name.as_str()).collect();
    let (from, first) = match &request.cursor {
        None => ("", 0),
        Some(cursor) => {
            let (topic, first) = (cursor.topic_name.as_str(), usize::try_from(cursor.partition_index));
            match first {
                Ok(first) if named.is_empty() || named.contains(topic) => (topic, first),
                // A cursor that this request cannot have been given.
                _ => {
                    response.topics = named.iter().map(|name| missing(name, ErrorCode::InvalidRequest)).collect();
                    return response;
                }
            }
        }
    };
    let all = named.is_empty();
    let names: Vec<&str> = if all {
        let names = image.names.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        names.map(|(name, _)| name.as_ref()).collect()
    } else {
        named.range(from..).copied().collect()
    };
    let mut room = usize::try_from(request.response_partition_limit).unwrap_or(0).clamp(1, PARTITIONS_MAX);
    for name in names {
        if room == 0 {
            response.next_cursor = Some(cursor(name, 0));
            break;
        }
        let Some(topic) = image.topic_named(name) else {
            if !all {
                let unknown = check_topic_name(name).map(|()| ErrorCode::UnknownTopicOrPartition);
                response.topics.push(missing(name, unknown.unwrap_or(ErrorCode::InvalidTopicException)));
            }
            continue;
        };
        let first = if name == from { first } else { 0 };
        let mut told = heading(name);
        told.topic_id = Uuid::from_bytes(topic.id.to_bytes());
        told.partitions = partitions(image, topic, caller, first, room);
        room -= told.partitions.len();
        let next = first + told.partitions.len();
        response.topics.push(told);
        if next < topic.partitions.len() {
            response.next_cursor = Some(cursor(name, next));
            break;
        }
    }
    response
}

fn heading(name: &str) -> DescribeTopicPartitionsResponseTopic {
    let mut told = DescribeTopicPartitionsResponseTopic::default();
    told.name = Some(name.into());
    told.is_internal = is_internal(name);
    told
}

fn missing(name: &str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    let mut told = heading(name);
    told.error_code = error.code();
    told
}

fn cursor(name: &str, partition: usize) -> Cursor {
    let mut cursor = Cursor::default();
    cursor.topic_name = StrBytes::from(name);
    cursor.partition_index = i32::try_from(partition).unwrap_or(i32::MAX);
    cursor
}

fn partitions(
    image: &MetadataImage,
    topic: &Topic,
    caller: &Caller,
    first: usize,
    room: usize,
) -> Vec<DescribeTopicPartitionsResponsePartition> {
    let numbered = (0i32..).zip(&topic.partitions).skip(first).take(room);
    numbered.map(|(number, state)| partition(image, number, state, caller)).collect()
}

fn partition(
    image: &MetadataImage,
    number: i32,
    state: &PartitionState,
    caller: &Caller,
) -> DescribeTopicPartitionsResponsePartition {
    let ids = |brokers: &[BrokerId]| brokers.iter().map(|broker| broker.0).collect::<Vec<_>>();
    let (leader, error) = leader_told(image, state, caller);
    let mut told = DescribeTopicPartitionsResponsePartition::default();
    told.error_code = error.code();
    told.partition_index = number;
    told.leader_id = BrokerId::to_wire(leader);
    told.leader_epoch = state.leader_epoch.0;
    told.replica_nodes = ids(&state.replicas);
    told.isr_nodes = ids(&state.isr);
    told.eligible_leader_replicas = Some(ids(&state.elr));
    told.last_known_elr = Some(ids(&state.last_known_elr));
    let offline = state.replicas.iter().filter(|broker| !is_reachable(image, **broker, caller));
    told.offline_replicas = offline.map(|broker| broker.0).collect();
    told
}

#[cfg(test)]
#[path = "describe_topic_partitions_tests.rs"]
mod tests;
