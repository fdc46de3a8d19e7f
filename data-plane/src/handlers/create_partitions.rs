//! CreatePartitions (37, v0–3): more partitions for a topic, through the quorum's one door (D18, R186).
//!
//! Any broker answers; the partitions are in this broker's image when it does.

use std::collections::BTreeSet;

use futures::future::join_all;
use highwater_quorum::PartitionsSpec;
use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::create_partitions_request::CreatePartitionsTopic;
use kafka_wire::create_partitions_response::CreatePartitionsTopicResult;
use kafka_wire::{CreatePartitionsRequest, CreatePartitionsResponse};

use super::context::Context;
use super::create_topics::{explain, timeout};

pub async fn handle(context: &Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse {
    let timeout = timeout(request.timeout_ms);
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<&str> =
        request.topics.iter().map(|topic| topic.name.as_str()).filter(|name| !seen.insert(*name)).collect();
    let mut named = BTreeSet::new();
    let once = request.topics.iter().filter(|topic| named.insert(topic.name.as_str()));
    let growths = once.map(|topic| {
        let duplicate = twice.contains(topic.name.as_str());
        async move {
            let result = match spec(topic, request.validate_only, duplicate) {
                Err(refused) => Err(refused),
                Ok(spec) => {
                    let grown = context.quorum.add_partitions(spec, timeout).await;
                    grown.map_err(|error| (ErrorCode::from(&error), explain(&error)))
                }
            };
            let mut told = CreatePartitionsTopicResult::default();
            told.name = topic.name.clone();
            // Null beside no error, as Kafka answers; the generated default is an empty text.
            told.error_message = None;
            if let Err((code, why)) = result {
                told.error_code = code.code();
                told.error_message = Some(why.into());
            }
            told
        }
    });
    let mut response = CreatePartitionsResponse::default();
    response.results = join_all(growths).await;
    response
}

fn spec(
    topic: &CreatePartitionsTopic,
    validate_only: bool,
    duplicate: bool,
) -> Result<PartitionsSpec, (ErrorCode, String)> {
    let name = topic.name.as_str();
    if duplicate {
        return Err((ErrorCode::InvalidRequest, format!("topic {name:?} is named twice in one request")));
    }
    let assignments = topic.assignments.as_ref().map(|assignments| {
        let replicas = |ids: &[i32]| ids.iter().map(|id| BrokerId(*id)).collect();
        assignments.iter().map(|assignment| replicas(&assignment.broker_ids)).collect()
    });
    Ok(PartitionsSpec { topic: name.to_owned(), partitions: topic.count, assignments, validate_only })
}
