//! ListOffsets (2, v1–10): where a log starts, ends, or reaches a time (R92–R94).
//!
//! Consumers (replica id −1) see up to the watermark, brokers up to the log end, id −2 asks any replica. −3 from v7,
//! −4 from v8, −5 from v9 on. A new leader that does not know yet how far its predecessor had committed answers 78.

use std::collections::BTreeSet;
use std::sync::Arc;

use highwater_quorum::MetadataImage;
use highwater_wire::{ErrorCode, LeaderEpoch, Offset, Timestamp};
use kafka_wire::list_offsets_request::ListOffsetsPartition;
use kafka_wire::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_wire::{ListOffsetsRequest, ListOffsetsResponse};

use super::context::{Context, by_name};
use super::isolation;
use crate::replica::message::{ListOffsets, ListedOffset, OffsetSpec, OffsetsCaller, ReplicaReply, ReplicaRequest};

const CONSUMER: i32 = -1;
const DEBUG: i32 = -2;

pub fn handle(context: &Arc<Context>, version: i16, request: &ListOffsetsRequest) -> ListOffsetsResponse {
    let image = context.image();
    let caller = match request.replica_id {
        CONSUMER => OffsetsCaller::Consumer(isolation(request.isolation_level)),
        DEBUG => OffsetsCaller::Debug,
        _ => OffsetsCaller::Replica,
    };
    let mut seen = BTreeSet::new();
    let mut response = ListOffsetsResponse::default();
    for topic in &request.topics {
        let mut told = ListOffsetsTopicResponse::default();
        told.name = topic.name.clone();
        for asked in &topic.partitions {
            let result = if seen.insert((topic.name.as_str(), asked.partition_index)) {
                one(context, &image, caller, version, topic.name.as_str(), asked)
            } else {
                Err(ErrorCode::InvalidRequest)
            };
            told.partitions.push(answer(version, asked.partition_index, result));
        }
        response.topics.push(told);
    }
    response
}

fn one(
    context: &Arc<Context>,
    image: &MetadataImage,
    caller: OffsetsCaller,
    version: i16,
    topic: &str,
    asked: &ListOffsetsPartition,
) -> Result<ListedOffset, ErrorCode> {
    let spec = match asked.timestamp {
        -1 => OffsetSpec::Latest,
        -2 => OffsetSpec::Earliest,
        -3 if version >= 7 => OffsetSpec::MaxTimestamp,
        -4 if version >= 8 => OffsetSpec::Earliest,
        -5 if version >= 9 => OffsetSpec::LatestTiered,
        time if time >= 0 => OffsetSpec::AtOrAfter(Timestamp(time)),
        _ => return Err(ErrorCode::UnsupportedVersion),
    };
    let (at, _) = by_name(image, topic, asked.partition_index)?;
    let leader_epoch = LeaderEpoch::from_wire(asked.current_leader_epoch).filter(|_| version >= 4);
    let question = ReplicaRequest::ListOffsets(ListOffsets { caller, leader_epoch, spec });
    match context.partitions.enter(at, question) {
        None => Err(ErrorCode::NotLeaderOrFollower),
        Some(ReplicaReply::ListedOffset(listed)) => Ok(listed),
        Some(ReplicaReply::Refused(refusal)) => match refusal.code() {
            ErrorCode::OffsetNotAvailable if version < 5 => Err(ErrorCode::LeaderNotAvailable),
            code => Err(code),
        },
        Some(_) => Err(ErrorCode::UnknownServerError),
    }
}

fn answer(version: i16, partition: i32, result: Result<ListedOffset, ErrorCode>) -> ListOffsetsPartitionResponse {
    let mut told = ListOffsetsPartitionResponse::default();
    told.partition_index = partition;
    told.timestamp = -1;
    told.offset = -1;
    match result {
        Ok(listed) => {
            told.timestamp = listed.timestamp.0;
            told.offset = Offset::to_wire(listed.offset);
            if version >= 4 {
                told.leader_epoch = LeaderEpoch::to_wire(listed.leader_epoch);
            }
        }
        Err(code) => told.error_code = code.code(),
    }
    told
}
