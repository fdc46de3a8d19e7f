//! OffsetDelete (47, v0): a group forgets positions of topics that none of its members reads (KIP-496).

use std::sync::Arc;

use highwater_wire::ErrorCode;
use kafka_wire::offset_delete_response::{OffsetDeleteResponsePartition, OffsetDeleteResponseTopic};
use kafka_wire::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::context::{Context, by_name};
use super::offset_commit::{STORE_TIMEOUT, stored};

pub async fn handle(context: &Arc<Context>, request: OffsetDeleteRequest) -> OffsetDeleteResponse {
    let image = context.image();
    let mut response = OffsetDeleteResponse::default();
    let named: Vec<(String, i32)> = request
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|part| (topic.name.as_str().to_owned(), part.partition_index)))
        .collect();
    let group = request.group_id.as_str();
    let asked =
        context.coordinators.ask(&image, group, |shard, token, _, out| shard.delete_offsets(token, group, &named, out));
    let verdicts = match asked {
        Err(error) | Ok((Err(error), _)) => {
            response.error_code = error.code();
            return response;
        }
        Ok((Ok(verdicts), promise)) => {
            if let Err(error) = stored(promise.within(STORE_TIMEOUT).await) {
                response.error_code = error.code();
                return response;
            }
            verdicts
        }
    };
    let mut verdicts = verdicts.into_iter();
    for topic in &request.topics {
        let mut told = OffsetDeleteResponseTopic::default();
        told.name = topic.name.clone();
        for partition in &topic.partitions {
            let mut of_partition = OffsetDeleteResponsePartition::default();
            of_partition.partition_index = partition.partition_index;
            let unknown = by_name(&image, topic.name.as_str(), partition.partition_index).err();
            let verdict: Option<ErrorCode> = verdicts.next().and_then(Result::err).or(unknown);
            of_partition.error_code = verdict.map_or(0, |error| error.code());
            told.partitions.push(of_partition);
        }
        response.topics.push(told);
    }
    response
}
