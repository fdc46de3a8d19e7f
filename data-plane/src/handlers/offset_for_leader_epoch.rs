//! OffsetForLeaderEpoch (23, v2–4): where the records of an epoch end (R95, R96). No knowledge is no error: −1, −1.

use std::sync::Arc;

use highwater_quorum::MetadataImage;
use highwater_wire::{ErrorCode, LeaderEpoch, Offset};
use kafka_wire::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_wire::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use kafka_wire::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::context::{Context, by_name};
use crate::replica::message::{EpochEnd, ReplicaReply, ReplicaRequest};

pub fn handle(context: &Arc<Context>, request: &OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
    let image = context.image();
    let mut response = OffsetForLeaderEpochResponse::default();
    for topic in &request.topics {
        let mut told = OffsetForLeaderTopicResult::default();
        told.topic = topic.topic.clone();
        for asked in &topic.partitions {
            let mut end = EpochEndOffset::default();
            end.partition = asked.partition;
            end.leader_epoch = -1;
            end.end_offset = -1;
            match one(context, &image, topic.topic.as_str(), asked) {
                Ok(Some((epoch, offset))) => {
                    end.leader_epoch = epoch.0;
                    end.end_offset = offset.0;
                }
                Ok(None) => {}
                Err(code) => end.error_code = code.code(),
            }
            told.partitions.push(end);
        }
        response.topics.push(told);
    }
    response
}

fn one(
    context: &Arc<Context>,
    image: &MetadataImage,
    topic: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<Option<(LeaderEpoch, Offset)>, ErrorCode> {
    let (at, _) = by_name(image, topic, asked.partition)?;
    let question = EpochEnd {
        leader_epoch: LeaderEpoch::from_wire(asked.current_leader_epoch),
        epoch: LeaderEpoch::from_wire(asked.leader_epoch),
    };
    match context.partitions.enter(at, ReplicaRequest::EpochEnd(question)) {
        None => Err(ErrorCode::NotLeaderOrFollower),
        Some(ReplicaReply::EpochEnd(end)) => Ok(end),
        Some(ReplicaReply::Refused(refusal)) => Err(refusal.code()),
        Some(_) => Err(ErrorCode::UnknownServerError),
    }
}
