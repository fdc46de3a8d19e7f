//! OffsetCommit (8, v2–9): positions are answered when they are committed to the log of groups (R288).
//!
//! v6 leader epochs, v7 static members. A retention of the client's own (v2–4) is ignored, as since KIP-211. Each position is
//! checked for itself: topics nobody knows 3, metadata that is too long 12; the others are stored together.

use std::sync::Arc;
use std::time::Duration;

use highwater_wire::ErrorCode;
use highwater_wire::group_records::OffsetValue;
use kafka_wire::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use kafka_wire::{OffsetCommitRequest, OffsetCommitResponse};

use super::context::{Context, by_name};
use crate::group::shard::Commit;
use crate::group::{Answer, Speaker, append_error};

/// `offsets.commit.timeout.ms`
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(5);

pub async fn handle(context: &Arc<Context>, version: i16, request: OffsetCommitRequest) -> OffsetCommitResponse {
    let image = context.image();
    let wall = context.partitions.clock.wall();
    let metadata_max = context.coordinators.limits().metadata_bytes_max;
    let mut commits = Vec::new();
    // In the request's order: what speaks against each.
    let mut faults = Vec::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let metadata = partition.committed_metadata.as_ref().map(|text| text.as_str()).unwrap_or_default();
            let fault = if metadata.len() > metadata_max {
                Some(ErrorCode::OffsetMetadataTooLarge)
            } else {
                by_name(&image, topic.name.as_str(), partition.partition_index).err()
            };
            faults.push(fault);
            if fault.is_none() {
                commits.push(Commit {
                    topic: topic.name.as_str().to_owned(),
                    partition: partition.partition_index,
                    value: OffsetValue {
                        offset: partition.committed_offset,
                        leader_epoch: if version >= 6 { partition.committed_leader_epoch } else { -1 },
                        metadata: metadata.to_owned(),
                        committed_at: wall,
                        expires_at: None,
                    },
                });
            }
        }
    }
    let speaker = Speaker {
        member_id: request.member_id.as_str().to_owned(),
        instance: request.group_instance_id.as_ref().map(|id| id.as_str().to_owned()),
        generation: request.generation_id_or_member_epoch,
    };
    let group = request.group_id.as_str();
    let asked = context.coordinators.ask(&image, group, |shard, token, now, out| {
        shard.commit(token, group, &speaker, commits, now, out);
    });
    let stored = match asked {
        Err(error) => Err(error),
        Ok(((), promise)) => stored(promise.within(STORE_TIMEOUT).await),
    };
    let mut faults = faults.into_iter();
    let mut response = OffsetCommitResponse::default();
    for topic in &request.topics {
        let mut told = OffsetCommitResponseTopic::default();
        told.name = topic.name.clone();
        for partition in &topic.partitions {
            let mut of_partition = OffsetCommitResponsePartition::default();
            of_partition.partition_index = partition.partition_index;
            let fault = faults.next().flatten().or(stored.err());
            of_partition.error_code = fault.map_or(0, |fault| fault.code());
            told.partitions.push(of_partition);
        }
        response.topics.push(told);
    }
    response
}

/// What a request that waited for the log is told.
pub(super) fn stored(answer: Result<Answer, ErrorCode>) -> Result<(), ErrorCode> {
    match answer {
        Ok(Answer::Stored(stored)) => stored,
        Ok(_) => Err(ErrorCode::UnknownServerError),
        Err(error) => Err(append_error(error)),
    }
}
