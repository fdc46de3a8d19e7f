//! DescribeProducers (61, v0): what the idempotent producers of a partition wrote last (KIP-664). Answered by its leader.

use std::sync::Arc;

use highwater_quorum::MetadataImage;
use highwater_wire::{ErrorCode, Offset, producers};
use kafka_wire::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use kafka_wire::{DescribeProducersRequest, DescribeProducersResponse};

use super::context::{Context, by_name};
use crate::log::ActiveProducer;
use crate::replica::message::{ReplicaReply, ReplicaRequest};

pub fn handle(context: &Arc<Context>, request: &DescribeProducersRequest) -> DescribeProducersResponse {
    let image = context.image();
    let mut response = DescribeProducersResponse::default();
    for topic in &request.topics {
        let mut told = TopicResponse::default();
        told.name = topic.name.clone();
        for &partition in &topic.partition_indexes {
            let mut of_partition = PartitionResponse::default();
            of_partition.partition_index = partition;
            match active(context, &image, topic.name.as_str(), partition) {
                Ok(active) => of_partition.active_producers = active.iter().map(to_wire).collect(),
                Err((code, why)) => {
                    of_partition.error_code = code.code();
                    of_partition.error_message = Some(why.as_str().into());
                }
            }
            told.partitions.push(of_partition);
        }
        response.topics.push(told);
    }
    response
}

fn active(
    context: &Arc<Context>,
    image: &MetadataImage,
    topic: &str,
    partition: i32,
) -> Result<Vec<ActiveProducer>, (ErrorCode, String)> {
    let at = by_name(image, topic, partition);
    let (at, _) = at.map_err(|code| (code, format!("there is no partition {partition} of a topic '{topic}'")))?;
    match context.partitions.enter(at, ReplicaRequest::Producers) {
        Some(ReplicaReply::Producers(active)) => Ok(active),
        Some(ReplicaReply::Refused(refusal)) => Err((refusal.code(), refusal.to_string())),
        None => Err((ErrorCode::NotLeaderOrFollower, format!("this broker holds no replica of {topic}-{partition}"))),
        Some(_) => Err((ErrorCode::UnknownServerError, "the replica answered something else".to_owned())),
    }
}

fn to_wire(active: &ActiveProducer) -> ProducerState {
    let mut told = ProducerState::default();
    told.producer_id = active.id.0;
    told.producer_epoch = i32::from(active.epoch.0);
    told.last_sequence = active.last_sequence;
    told.last_timestamp = active.last_timestamp.0;
    told.coordinator_epoch = active.coordinator_epoch;
    told.current_txn_start_offset = Offset::to_wire(active.transaction_start);
    if let Some(last) = active.last_offset {
        producers::set_newest_batch(&mut told, last, active.offset_delta);
    }
    told
}

/// What a leader of our own said; `None`: it is not what a leader says.
pub(crate) fn from_wire(told: &ProducerState) -> Option<ActiveProducer> {
    let newest = producers::newest_batch(told);
    Some(ActiveProducer {
        id: highwater_wire::ProducerId(told.producer_id),
        epoch: highwater_wire::ProducerEpoch(i16::try_from(told.producer_epoch).ok()?),
        last_sequence: told.last_sequence,
        last_offset: newest.map(|(last, _)| last),
        offset_delta: newest.map_or(0, |(_, delta)| delta),
        last_timestamp: highwater_wire::Timestamp(told.last_timestamp),
        coordinator_epoch: told.coordinator_epoch,
        transaction_start: Offset::from_wire(told.current_txn_start_offset),
    })
    .filter(|active| active.last_offset.is_some() == (active.last_sequence >= 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_wire::{ProducerEpoch, ProducerId, Timestamp};

    #[test]
    fn a_replica_reads_what_a_leader_says() {
        let active = ActiveProducer {
            id: ProducerId(4_001),
            epoch: ProducerEpoch(2),
            last_sequence: 17,
            last_offset: Some(Offset(99)),
            offset_delta: 3,
            last_timestamp: Timestamp(1_700_000_000_000),
            coordinator_epoch: -1,
            transaction_start: None,
        };
        let silent = ActiveProducer { last_sequence: -1, last_offset: None, offset_delta: 0, ..active };
        for active in [active, silent] {
            assert_eq!(from_wire(&to_wire(&active)), Some(active));
        }
        let mut without_offset = to_wire(&active);
        without_offset.unknown_tagged_fields = Default::default();
        assert_eq!(from_wire(&without_offset), None, "a sequence without its offset cannot be placed");
    }
}
