//! DeleteRecords (21, v0–2): the log start moves on every live replica, durably, before the answer (R274, D33).
//!
//! Sent to the leader of each partition. What was asked once may be asked again: a log start never moves back.

use std::sync::Arc;
use std::time::Duration;

use highwater_wire::{ErrorCode, Millis, Offset, TopicPartition};
use kafka_wire::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use kafka_wire::{DeleteRecordsRequest, DeleteRecordsResponse};
use tokio::sync::oneshot;

use super::context::{Context, by_name, is_internal};
use super::millis;
use crate::partitions::tickets::{Answer, Flush};
use crate::partitions::{Deliveries, Reply};
use crate::replica::message::{DeleteRecords, ReplicaReply, ReplicaRequest};

/// `LowWatermark` beside an error.
const NO_LOW_WATERMARK: i64 = -1;
/// `Offset` that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// Why records of a partition were not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub code: ErrorCode,
    /// For a person.
    pub why: String,
}

impl Refused {
    fn new(code: ErrorCode, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

pub async fn handle(context: &Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let image = context.image();
    let rows = request.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |row| (topic, row)));
    let rows: Vec<_> = rows
        .map(|(topic, row)| {
            let name = topic.name.as_str();
            let (at, _) = by_name(&image, name, row.partition_index)
                .map_err(|code| Refused::new(code, format!("there is no partition {name}-{}", row.partition_index)))?;
            Ok((at, before(row.offset)?))
        })
        .collect();
    let wanted: Vec<_> = rows.iter().filter_map(|row| row.as_ref().ok().copied()).collect();
    let mut results = delete(context, &wanted, millis(request.timeout_ms)).await.into_iter();
    let results = rows.into_iter().map(|row| match row {
        Ok(_) => results.next().unwrap_or_else(|| Err(ErrorCode::NotLeaderOrFollower.into())),
        Err(refused) => Err(refused),
    });
    let mut results = results.collect::<Vec<_>>().into_iter();
    let mut response = DeleteRecordsResponse::default();
    response.topics = request
        .topics
        .iter()
        .map(|topic| {
            let mut told = DeleteRecordsTopicResult::default();
            told.name = topic.name.clone();
            let partitions = topic.partitions.iter().zip(results.by_ref());
            told.partitions = partitions.map(|(row, result)| answer(row.partition_index, result)).collect();
            told
        })
        .collect();
    response
}

/// What the wire means by an offset: everything below it, or below the high watermark.
///
/// # Errors
/// 1 for a negative one.
pub fn before(offset: i64) -> Result<Option<Offset>, Refused> {
    match offset {
        HIGH_WATERMARK => Ok(None),
        0.. => Ok(Some(Offset(offset))),
        _ => Err(Refused::new(
            ErrorCode::OffsetOutOfRange,
            format!("offset {offset}: give the first offset to keep, or -1 for the high watermark"),
        )),
    }
}

fn answer(index: i32, result: Result<Offset, Refused>) -> DeleteRecordsPartitionResult {
    let mut told = DeleteRecordsPartitionResult::default();
    told.partition_index = index;
    match result {
        Ok(low_watermark) => told.low_watermark = low_watermark.0,
        Err(refused) => {
            told.low_watermark = NO_LOW_WATERMARK;
            told.error_code = refused.code.code();
        }
    }
    told
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, format!("{code}"))
    }
}

/// Deletes the records below an offset (`None`: the high watermark) of partitions led here, and waits until every live
/// replica has. Gives the low watermark of each, in order: the lowest log start of the replicas that are alive.
pub async fn delete(
    context: &Context,
    wanted: &[(TopicPartition, Option<Offset>)],
    timeout: Duration,
) -> Vec<Result<Offset, Refused>> {
    let partitions = &context.partitions;
    let (tell, told) = oneshot::channel();
    let refusals: Vec<_> = wanted.iter().map(|(at, _)| refused_before(context, *at)).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let Ok(reservation) = partitions.tickets.open(wanted.len(), Box::new(Tell(tell))) else {
        let busy = || Refused::new(ErrorCode::RequestTimedOut, "too many requests wait here already; try again");
        return wanted.iter().map(|_| Err(busy())).collect();
    };
    let now = partitions.clock.now();
    let deadline = now.mono + Millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX >> 1));
    let mut deliveries = Deliveries::new();
    let mut replies = Vec::new();
    for (place, ((at, before), refusal)) in wanted.iter().zip(&refusals).enumerate() {
        let reply = match refusal {
            Some(_) => Some(Reply::Done),
            None => {
                let delete = DeleteRecords { before: *before, deadline, ticket: reservation.ticket(place) };
                partitions.enter_with(*at, ReplicaRequest::DeleteRecords(delete), now, &mut deliveries)
            }
        };
        match reply {
            Some(ReplicaReply::Waiting) => {}
            // Not hosted here, or not any more.
            reply => replies.push((place, reply.unwrap_or(Reply::Done))),
        }
    }
    if !replies.is_empty() {
        let _ = partitions.tickets.complete_now(reservation, replies);
    }
    partitions.deliver(&mut deliveries);
    drop(deliveries);
    let replies = told.await.unwrap_or_default().into_iter().chain(std::iter::repeat_with(|| None));
    let results = refusals.into_iter().zip(replies).map(|(refusal, reply)| match (refusal, reply) {
        (Some(refused), _) => Err(refused),
        (None, Some(ReplicaReply::DeletedRecords { low_watermark })) => Ok(low_watermark),
        (None, Some(ReplicaReply::Refused(refusal))) => Err(Refused::new(refusal.code(), refusal.to_string())),
        (None, _) => Err(Refused::new(ErrorCode::NotLeaderOrFollower, "this broker does not lead it")),
    });
    results.collect()
}

/// What speaks against it before the replica is asked: who leads comes first, then the topic's policy.
fn refused_before(context: &Context, at: TopicPartition) -> Option<Refused> {
    if !context.partitions.get(at).is_some_and(|hosted| hosted.is_leader()) {
        // The replica says who leads, if it is here.
        return None;
    }
    let image = context.image();
    let topic = image.topics.get(&at.topic)?;
    let name = &topic.name;
    if is_internal(name) {
        let why = format!("{name} belongs to coordinators, which delete its records themselves");
        return Some(Refused::new(ErrorCode::InvalidTopicException, why));
    }
    (!topic.config.cleanup.delete).then(|| {
        let why = format!("cleanup.policy of {name} is compact: records are deleted by key, not by offset");
        Refused::new(ErrorCode::PolicyViolation, why)
    })
}

/// Hands the results to the task that waits for them.
struct Tell(oneshot::Sender<Vec<Option<Reply>>>);

impl Answer for Tell {
    fn answer(self: Box<Self>, replies: Vec<Option<Reply>>) -> Option<Arc<dyn Flush>> {
        let _ = self.0.send(replies);
        None
    }
}
