//! ElectLeaders (43, v0–2): preferred and unclean elections (R192). Any broker answers; whom the rules elect leads in this
//! broker's image when it does.
//!
//! An unclean election asked for here is the operator's word that records may be lost: the protocol has no place for a
//! confirmation. `POST /elections` tells before what it would cost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use highwater_quorum::controller::ElectionKind;
use highwater_quorum::{Answer, Command, MetadataImage, QuorumError};
use highwater_wire::{BrokerId, ErrorCode, TopicPartition};
use kafka_wire::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_wire::{ElectLeadersRequest, ElectLeadersResponse};

use super::context::{Context, by_name};
use super::create_topics::{explain, timeout};
use super::named::message;

/// Elections in one entry (D17).
const BATCH: usize = 1_000;

/// What became of one partition.
type Outcome = Result<(), (ErrorCode, String)>;

/// One partition as the client named it.
#[derive(Debug, Clone)]
struct Named {
    topic: String,
    partition: i32,
}

pub async fn handle(context: &Context, version: i16, request: ElectLeadersRequest) -> ElectLeadersResponse {
    let named = named(&request);
    let elected = elect(context, &request, &named, timeout(request.timeout_ms)).await;
    answer(version, &named, elected)
}

/// The partitions of a request; none where it means all.
fn named(request: &ElectLeadersRequest) -> Vec<Named> {
    let topics = request.topic_partitions.iter().flatten();
    let partitions = topics.flat_map(|topic| {
        topic.partitions.iter().map(|partition| Named { topic: topic.topic.as_str().to_owned(), partition: *partition })
    });
    partitions.collect()
}

async fn elect(
    context: &Context,
    request: &ElectLeadersRequest,
    named: &[Named],
    timeout: Duration,
) -> Result<Vec<(Named, Outcome)>, (ErrorCode, String)> {
    let kind = match request.election_type {
        0 => ElectionKind::Preferred,
        1 => ElectionKind::Unclean,
        other => {
            let why = format!("election type {other} is unknown: 0 is preferred, 1 unclean");
            return Err((ErrorCode::InvalidRequest, why));
        }
    };
    let began = Instant::now();
    let left = || timeout.saturating_sub(began.elapsed());
    let failed = |error: QuorumError| (ErrorCode::from(&error), explain(&error));
    let image = context.quorum.linearizable(left()).await.map_err(failed)?;
    let all = request.topic_partitions.is_none();
    let (mut known, mut outcomes) = (Vec::new(), Vec::new());
    if all {
        known = wanting(&image, kind);
    }
    for one in named {
        match by_name(&image, &one.topic, one.partition) {
            Ok((at, _)) => known.push((one.clone(), at)),
            Err(code) => {
                let why = format!("there is no partition {}-{}", one.topic, one.partition);
                outcomes.push((one.clone(), Err((code, why))));
            }
        }
    }
    for batch in known.chunks(BATCH) {
        let partitions = batch.iter().map(|(_, at)| *at).collect();
        let command = Command::ElectLeaders { kind, partitions, time: context.partitions.clock.wall() };
        let elected: Vec<Result<BrokerId, QuorumError>> = match context.quorum.propose(command, left()).await {
            Ok((Answer::LeadersElected(elected), _)) => {
                elected.into_iter().map(|one| one.map_err(QuorumError::from)).collect()
            }
            Ok((other, _)) => {
                let why = format!("an answer to another question: {other:?}");
                vec![Err(QuorumError::Stopped(why)); batch.len()]
            }
            Err(error) => vec![Err(error); batch.len()],
        };
        for ((one, _), elected) in batch.iter().zip(elected) {
            outcomes.push((one.clone(), elected.map(|_| ()).map_err(failed)));
        }
    }
    if all {
        // Who has the leader he wants is not told of (as Kafka).
        outcomes.retain(|(_, outcome)| !matches!(outcome, Err((ErrorCode::ElectionNotNeeded, _))));
    }
    Ok(outcomes)
}

/// All partitions that lack the leader of this kind.
fn wanting(image: &MetadataImage, kind: ElectionKind) -> Vec<(Named, TopicPartition)> {
    let wanting = image.partitions().filter(|(_, _, state)| match kind {
        ElectionKind::Preferred => state.leader != state.replicas.first().copied(),
        ElectionKind::Clean | ElectionKind::Unclean => state.leader.is_none(),
    });
    wanting.map(|(at, topic, _)| (Named { topic: topic.name.to_string(), partition: at.partition }, at)).collect()
}

/// A fault of the whole is told of each partition too; v0 has no other place for it.
fn answer(
    version: i16,
    named: &[Named],
    elected: Result<Vec<(Named, Outcome)>, (ErrorCode, String)>,
) -> ElectLeadersResponse {
    let mut response = ElectLeadersResponse::default();
    let outcomes = elected.unwrap_or_else(|(code, why)| {
        if version >= 1 {
            response.error_code = code.code();
        }
        named.iter().map(|one| (one.clone(), Err((code, why.clone())))).collect()
    });
    let mut by_topic: BTreeMap<String, Vec<PartitionResult>> = BTreeMap::new();
    for (Named { topic, partition }, outcome) in outcomes {
        let mut told = PartitionResult::default();
        told.partition_id = partition;
        told.error_message = None;
        if let Err((code, why)) = outcome {
            told.error_code = code.code();
            told.error_message = message(&why);
        }
        by_topic.entry(topic).or_default().push(told);
    }
    let results = by_topic.into_iter().map(|(topic, results)| {
        let mut told = ReplicaElectionResult::default();
        told.topic = topic.as_str().into();
        told.partition_result = results;
        told
    });
    response.replica_election_results = results.collect();
    response
}
