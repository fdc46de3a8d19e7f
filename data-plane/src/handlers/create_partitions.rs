//! CreatePartitions (37, v0–3): more partitions for a topic, through the quorum's one door (D18, R186).
//!
//! Any broker answers; the partitions are in this broker's image when it does.

use highwater_quorum::PartitionsSpec;
use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::create_partitions_request::CreatePartitionsTopic;
use kafka_wire::create_partitions_response::CreatePartitionsTopicResult;
use kafka_wire::{CreatePartitionsRequest, CreatePartitionsResponse};

use super::context::Context;
use super::create_topics::{explain, timeout};
use super::named::{Fault, each_once, message};

pub async fn handle(context: &Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse {
    let timeout = timeout(request.timeout_ms);
    let (topics, validate_only) = (&request.topics, request.validate_only);
    let name = |topic: &CreatePartitionsTopic| format!("topic {:?}", topic.name.as_str());
    let grown = each_once(topics, name, |topic| async move {
        let grown = context.quorum.add_partitions(spec(topic, validate_only), timeout).await;
        grown.map_err(|error| (ErrorCode::from(&error), explain(&error)))
    });
    let answers = grown.await.into_iter().map(|(topic, result)| answer(topic, result.map(drop)));
    let mut response = CreatePartitionsResponse::default();
    response.results = answers.collect();
    response
}

fn spec(topic: &CreatePartitionsTopic, validate_only: bool) -> PartitionsSpec {
    let assignments = topic.assignments.as_ref().map(|assignments| {
        let replicas = |ids: &[i32]| ids.iter().map(|id| BrokerId(*id)).collect();
        assignments.iter().map(|assignment| replicas(&assignment.broker_ids)).collect()
    });
    PartitionsSpec { topic: topic.name.as_str().to_owned(), partitions: topic.count, assignments, validate_only }
}

fn answer(topic: &CreatePartitionsTopic, result: Result<(), Fault>) -> CreatePartitionsTopicResult {
    let mut told = CreatePartitionsTopicResult::default();
    told.name = topic.name.clone();
    // Null beside no error, as Kafka answers; the generated default is an empty text.
    told.error_message = None;
    if let Err((code, why)) = result {
        told.error_code = code.code();
        told.error_message = message(&why);
    }
    told
}
