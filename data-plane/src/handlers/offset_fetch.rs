//! OffsetFetch (9, v1–9): the positions that groups committed; −1 where there is none, which is no error.
//!
//! v2 all of a group's, v5 leader epochs, v7 stable only (there are no transactions that could be open), v8 several groups.

use std::sync::Arc;

use highwater_wire::ErrorCode;
use highwater_wire::StrBytes;
use highwater_wire::group_records::OffsetValue;
use kafka_wire::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use kafka_wire::{OffsetFetchRequest, OffsetFetchResponse};

use super::context::Context;

/// Topics with the partitions asked for; `None`: whatever there is.
type Asked = Option<Vec<(StrBytes, Vec<i32>)>>;
type Found = Vec<(StrBytes, Vec<(i32, Option<OffsetValue>)>)>;

pub fn handle(context: &Arc<Context>, version: i16, request: OffsetFetchRequest) -> OffsetFetchResponse {
    let mut response = OffsetFetchResponse::default();
    if version >= 8 {
        response.groups = request
            .groups
            .into_iter()
            .map(|group| {
                let topics = group.topics.map(|topics| {
                    topics.into_iter().map(|topic| (topic.name, topic.partition_indexes)).collect::<Vec<_>>()
                });
                of_group(context, group.group_id, topics)
            })
            .collect();
        return response;
    }
    let topics: Asked =
        request.topics.map(|topics| topics.into_iter().map(|topic| (topic.name, topic.partition_indexes)).collect());
    let (found, error) = match find(context, request.group_id.as_str(), topics.clone()) {
        Ok(found) => (found, None),
        Err(error) => (nothing(topics), Some(error.code())),
    };
    if version >= 2 {
        response.error_code = error.unwrap_or(0);
    }
    response.topics = found
        .into_iter()
        .map(|(name, partitions)| {
            let mut told = OffsetFetchResponseTopic::default();
            told.name = name;
            told.partitions = partitions
                .into_iter()
                .map(|(partition, value)| {
                    let mut told = OffsetFetchResponsePartition::default();
                    told.partition_index = partition;
                    told.committed_offset = value.as_ref().map_or(-1, |value| value.offset);
                    if version >= 5 {
                        told.committed_leader_epoch = value.as_ref().map_or(-1, |value| value.leader_epoch);
                    }
                    told.metadata = Some(value.map(|value| value.metadata).unwrap_or_default().into());
                    told.error_code = error.unwrap_or(0);
                    told
                })
                .collect();
            told
        })
        .collect();
    response
}

fn of_group(context: &Arc<Context>, group: StrBytes, topics: Asked) -> OffsetFetchResponseGroup {
    let mut told = OffsetFetchResponseGroup::default();
    match find(context, group.as_str(), topics) {
        Err(error) => told.error_code = error.code(),
        Ok(found) => {
            told.topics = found
                .into_iter()
                .map(|(name, partitions)| {
                    let mut told = OffsetFetchResponseTopics::default();
                    told.name = name;
                    told.partitions =
                        partitions.into_iter().map(|(partition, value)| position(partition, value)).collect();
                    told
                })
                .collect();
        }
    }
    told.group_id = group;
    told
}

fn position(partition: i32, value: Option<OffsetValue>) -> OffsetFetchResponsePartitions {
    let mut told = OffsetFetchResponsePartitions::default();
    told.partition_index = partition;
    told.committed_offset = value.as_ref().map_or(-1, |value| value.offset);
    told.committed_leader_epoch = value.as_ref().map_or(-1, |value| value.leader_epoch);
    told.metadata = Some(value.map(|value| value.metadata).unwrap_or_default().into());
    told
}

/// As asked for, without any position.
fn nothing(topics: Asked) -> Found {
    let none = |partitions: Vec<i32>| partitions.into_iter().map(|partition| (partition, None)).collect();
    topics.unwrap_or_default().into_iter().map(|(name, partitions)| (name, none(partitions))).collect()
}

fn find(context: &Arc<Context>, group: &str, topics: Asked) -> Result<Found, ErrorCode> {
    if group.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    context.coordinators.tell(&context.image(), group, |shard, _, _| {
        let Some(known) = shard.group(group) else { return nothing(topics) };
        let Some(topics) = topics else {
            let mut found: Found = Vec::new();
            for (topic, partition, value) in known.offsets.iter() {
                match found.last_mut() {
                    Some((name, partitions)) if name.as_str() == topic => {
                        partitions.push((partition, Some(value.clone())))
                    }
                    _ => found.push((topic.into(), vec![(partition, Some(value.clone()))])),
                }
            }
            return found;
        };
        topics
            .into_iter()
            .map(|(name, partitions)| {
                let value = |partition| (partition, known.offsets.get(name.as_str(), partition).cloned());
                let partitions = partitions.into_iter().map(value).collect();
                (name, partitions)
            })
            .collect()
    })
}
