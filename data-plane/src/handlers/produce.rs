//! Produce (0, v3–13): check, append through the partition's door, answer when every partition has its result (R42–R55).
//!
//! v7 zstd, v8 record errors, v10 current leader and endpoints beside error 6 (KIP-951), v13 topic ids (KIP-516).
//! acks 0: no answer; if anything failed the connection is closed (R46). Batches are checked before the lock; where that
//! finds a fault, leadership and ISR are still asked first, so that errors come in the order of R42.
//! Transactions are not served: 53 for the whole request.

use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::MetadataImage;
use highwater_quorum::image::{Topic, TopicConfig};
use highwater_wire::batch::{BatchError, BatchHeader, ClientRules, InnerCheck, RecordBatch, TimestampRule};
use highwater_wire::produce::{ProducePartition, ProduceRequest, ProduceTopic};
use highwater_wire::request::StrBytes;
use highwater_wire::{BrokerId, ErrorCode, Millis, Timestamp, TopicPartition};
use kafka_wire::ProduceResponse;
use kafka_wire::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};

use super::Respond;
use super::context::{Caller, Context, by_id, by_name, is_internal, leader_hint, live_endpoint};
use crate::partitions::tickets::{Answer, Flush};
use crate::partitions::{Deliveries, Reply};
use crate::replica::message::{Acks, Produce, ReplicaReply, ReplicaRequest, Ticket};
use crate::replica::status::RoleName;

/// How long a produce waits for a new log to be opened.
const OPENING_MAX: Duration = Duration::from_millis(250);

/// Why a partition's batch was refused before, or instead of, asking its replica.
struct Fault {
    code: ErrorCode,
    why: String,
    records: Vec<i32>,
}

impl From<ErrorCode> for Fault {
    fn from(code: ErrorCode) -> Self {
        Self { code, why: String::new(), records: Vec::new() }
    }
}

impl From<&BatchError> for Fault {
    fn from(error: &BatchError) -> Self {
        Self { code: error.into(), why: error.to_string(), records: error.record_indexes().to_vec() }
    }
}

/// One partition of the request; those without a fault have a reply, in the same order.
struct Row {
    index: i32,
    at: Option<TopicPartition>,
    fault: Option<Fault>,
}

struct TopicRows {
    name: StrBytes,
    id: highwater_wire::TopicId,
    rows: Vec<Row>,
}

/// A Produce that waits for its partitions.
struct Waiting {
    context: Arc<Context>,
    caller: Arc<Caller>,
    respond: Respond,
    topics: Vec<TopicRows>,
}

pub fn handle(context: &Arc<Context>, caller: &Arc<Caller>, respond: Respond, request: ProduceRequest) {
    let now = context.partitions.clock.now();
    let version = respond.version();
    let image = context.image();
    let acks = match request.acks {
        -1 => Ok(Acks::AllInSync),
        0 => Ok(Acks::None),
        1 => Ok(Acks::Leader),
        _ => Err(ErrorCode::InvalidRequiredAcks),
    };
    let transactional = request.transactional_id.is_some() || has_transactional_batch(&request);
    let mut batches = Vec::with_capacity(request.topics.len());
    let mut topics = Vec::with_capacity(request.topics.len());
    let mut bytes = 0;
    for topic in request.topics {
        let ProduceTopic { name, id, partitions } = topic;
        let mut rows = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let index = partition.index;
            let checks = Checks { context, image: &image, version, acks, transactional, wall: now.wall };
            let (at, fault) = match checks.check(&name, id, partition) {
                Ok((at, batch)) => {
                    bytes += batch.len();
                    batches.push((at, batch));
                    (Some(at), None)
                }
                Err((at, fault)) => (at, Some(fault)),
            };
            rows.push(Row { index, at, fault });
        }
        // A copy: the name shares the read buffer, which must not outlive a long wait.
        topics.push(TopicRows { name: name.as_str().into(), id, rows });
    }
    let wait = u64::try_from(request.timeout_ms).unwrap_or(0);
    let deadline = now.mono + Millis(wait);
    let waiting = Waiting { context: context.clone(), caller: caller.clone(), respond, topics };
    let acks = acks.unwrap_or(Acks::None);
    let mut deliveries = Deliveries::new();
    if request.acks == 0 {
        let mut failed = waiting.topics.iter().flat_map(|topic| &topic.rows).any(|row| row.fault.is_some());
        for (at, batch) in batches {
            let produce = Produce { batch, acks, deadline, ticket: Ticket(u64::MAX), epoch: None };
            let reply = context.partitions.enter_with(at, ReplicaRequest::Produce(produce), now, &mut deliveries);
            failed |= !matches!(reply, Some(ReplicaReply::Produced(_)));
        }
        waiting.respond.send_nothing(failed);
    } else if batches.is_empty() {
        waiting.send(Vec::new());
    } else {
        let reservation = match context.partitions.tickets.open(batches.len(), Box::new(waiting)) {
            Ok(reservation) => reservation,
            Err(waiting) => {
                // Too many wait already; a retriable error, nothing is appended.
                let _ = waiting.answer(Vec::new());
                return;
            }
        };
        let mut replies = Vec::new();
        for (place, (at, batch)) in batches.into_iter().enumerate() {
            let produce = Produce { batch, acks, deadline, ticket: reservation.ticket(place), epoch: None };
            match context.partitions.enter_with(at, ReplicaRequest::Produce(produce), now, &mut deliveries) {
                Some(ReplicaReply::Waiting) => {}
                Some(reply) => replies.push((place, reply)),
                // Known but not hosted here, or not any more (R42 step 8).
                None => replies.push((place, Reply::Done)),
            }
        }
        if !replies.is_empty() {
            // The connection flushes when it has handled what it has read.
            let _ = context.partitions.tickets.complete_now(reservation, replies);
        }
    }
    context.metrics.produced(bytes);
    context.partitions.deliver(&mut deliveries);
}

/// Whether a partition is led here by the newest image, but its log is still being opened: the first record of a new
/// topic would be refused with 6, and its producer would pause before it asks again.
pub fn must_wait_for_opening(context: &Context, version: i16, request: &ProduceRequest) -> bool {
    let image = context.image();
    if image.version <= context.state.acted_on() {
        return false;
    }
    let partitions =
        request.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |part| (topic, part.index)));
    let found = partitions.filter_map(|(topic, index)| {
        let found =
            if version >= 13 { by_id(&image, topic.id, index) } else { by_name(&image, topic.name.as_str(), index) };
        found.ok().map(|(at, _)| at)
    });
    let mut closed = found.filter(|at| !context.partitions.contains(*at));
    closed.any(|at| image.partition(at).is_some_and(|state| state.leader == Some(context.identity.broker)))
}

/// Waits until they are open, within reason.
pub async fn opened(context: &Context, version: i16, request: &ProduceRequest) {
    let opening = || must_wait_for_opening(context, version, request);
    let opened = async {
        while opening() {
            context.state.next_acted_on(|| !opening()).await;
        }
    };
    let _ = tokio::time::timeout(OPENING_MAX, opened).await;
}

/// What the checks of a partition need to know.
struct Checks<'a> {
    context: &'a Arc<Context>,
    image: &'a MetadataImage,
    version: i16,
    acks: Result<Acks, ErrorCode>,
    transactional: bool,
    wall: Timestamp,
}

impl Checks<'_> {
    /// R42 up to step 10, but for what only the replica knows.
    fn check(
        &self,
        name: &StrBytes,
        id: highwater_wire::TopicId,
        partition: ProducePartition,
    ) -> Result<(TopicPartition, RecordBatch), (Option<TopicPartition>, Fault)> {
        if self.transactional {
            return Err((None, ErrorCode::TransactionalIdAuthorizationFailed.into()));
        }
        let found = if self.version >= 13 {
            by_id(self.image, id, partition.index)
        } else {
            by_name(self.image, name.as_str(), partition.index)
        };
        let (at, topic) = found.map_err(|code| (None, code.into()))?;
        let fault = |error: &BatchError| (Some(at), error.into());
        let batch = RecordBatch::from_produce(partition.records, self.version).map_err(|error| fault(&error))?;
        let acks = self.acks.map_err(|code| (Some(at), code.into()))?;
        if is_internal(&topic.name) {
            return Err((Some(at), ErrorCode::InvalidTopicException.into()));
        }
        match batch.validate_from_client(&rules(&topic.config, self.wall)) {
            Ok(batch) => Ok((at, batch)),
            Err(error) => Err((Some(at), self.refused_before(at, topic, acks).unwrap_or_else(|| (&error).into()))),
        }
    }

    /// What comes before a fault of the batch in the order of R42: not the leader (step 8), too few in sync (step 9).
    fn refused_before(&self, at: TopicPartition, _topic: &Topic, acks: Acks) -> Option<Fault> {
        let Some(ReplicaReply::Status(status)) = self.context.partitions.enter(at, ReplicaRequest::Status) else {
            return Some(ErrorCode::NotLeaderOrFollower.into());
        };
        if status.role == RoleName::Offline {
            return Some(ErrorCode::KafkaStorageError.into());
        }
        match &status.leading {
            None => Some(ErrorCode::NotLeaderOrFollower.into()),
            Some(leading) if acks == Acks::AllInSync && leading.under_min_isr => {
                Some(ErrorCode::NotEnoughReplicas.into())
            }
            Some(_) => None,
        }
    }
}

/// One is enough to refuse the whole request (R42 step 1).
fn has_transactional_batch(request: &ProduceRequest) -> bool {
    const TRANSACTIONAL: i16 = 1 << 4;
    let records = request.topics.iter().flat_map(|topic| &topic.partitions).filter_map(|p| p.records.as_deref());
    let mut headers = records.filter_map(|records| BatchHeader::parse(records).ok());
    headers.any(|header| header.attributes & TRANSACTIONAL != 0)
}

fn rules(config: &TopicConfig, wall: Timestamp) -> ClientRules {
    let timestamps = if config.log_append_time {
        TimestampRule::LogAppendTime
    } else {
        TimestampRule::CreateTime {
            now: wall,
            before_max_ms: config.timestamp_before_max_ms,
            after_max_ms: config.timestamp_after_max_ms,
        }
    };
    ClientRules {
        batch_bytes_max: config.message_bytes_max as usize,
        keys_required: config.compact,
        timestamps,
        inner: InnerCheck::Records,
    }
}

impl Answer for Waiting {
    fn answer(self: Box<Self>, replies: Vec<Option<Reply>>) -> Option<Arc<dyn Flush>> {
        let answers = self.respond.answers();
        self.send(replies);
        Some(answers)
    }
}

impl Waiting {
    fn send(self, replies: Vec<Option<Reply>>) {
        let version = self.respond.version();
        let mut replies = replies.into_iter();
        let mut hints = Hints { context: &self.context, caller: &self.caller, version, image: None, endpoints: vec![] };
        let mut response = ProduceResponse::default();
        for topic in &self.topics {
            let mut told = TopicProduceResponse::default();
            if version >= 13 {
                told.topic_id = topic.id.into();
            } else {
                told.name = topic.name.clone();
            }
            for row in &topic.rows {
                let mut partition = PartitionProduceResponse::default();
                partition.index = row.index;
                partition.base_offset = -1;
                partition.log_append_time_ms = -1;
                if version >= 5 {
                    partition.log_start_offset = -1;
                }
                match &row.fault {
                    Some(fault) => tell_fault(version, fault, &mut partition),
                    None => tell_reply(version, replies.next().flatten(), row.at, &mut partition, &mut hints),
                }
                if partition.error_code != 0 {
                    self.context.metrics.refused(ErrorCode::from_code(partition.error_code));
                }
                told.partition_responses.push(partition);
            }
            response.responses.push(told);
        }
        response.node_endpoints = hints.endpoints;
        self.respond.send(&response.into());
    }
}

fn tell_fault(version: i16, fault: &Fault, partition: &mut PartitionProduceResponse) {
    partition.error_code = fault.code.code();
    if version >= 8 {
        partition.error_message = (!fault.why.is_empty()).then(|| fault.why.as_str().into());
        let told = fault.records.iter().map(|index| {
            let mut told = BatchIndexAndErrorMessage::default();
            told.batch_index = *index;
            told
        });
        partition.record_errors = told.collect();
    }
}

fn tell_reply(
    version: i16,
    reply: Option<Reply>,
    at: Option<TopicPartition>,
    partition: &mut PartitionProduceResponse,
    hints: &mut Hints<'_>,
) {
    match reply {
        Some(ReplicaReply::Produced(produced)) => {
            partition.base_offset = produced.base.0;
            partition.log_append_time_ms = produced.log_append_time.0;
            if version >= 5 {
                partition.log_start_offset = produced.log_start.0;
            }
        }
        Some(ReplicaReply::Refused(refusal)) => {
            let code = refusal.code();
            partition.error_code = code.code();
            if version >= 8 {
                partition.error_message = Some(refusal.to_string().into());
            }
            if code == ErrorCode::NotLeaderOrFollower {
                hints.tell(at, Some(&refusal), partition);
            }
        }
        _ => {
            partition.error_code = ErrorCode::NotLeaderOrFollower.code();
            hints.tell(at, None, partition);
        }
    }
}

/// Who leads instead, and where that is (R54).
struct Hints<'a> {
    context: &'a Context,
    caller: &'a Caller,
    version: i16,
    image: Option<Arc<MetadataImage>>,
    endpoints: Vec<NodeEndpoint>,
}

impl Hints<'_> {
    fn tell(
        &mut self,
        at: Option<TopicPartition>,
        refusal: Option<&crate::replica::message::Refusal>,
        partition: &mut PartitionProduceResponse,
    ) {
        let Some(at) = at.filter(|_| self.version >= 10) else { return };
        let image = self.image.get_or_insert_with(|| self.context.image());
        let Some((leader, epoch)) = leader_hint(image, at, refusal) else { return };
        let Some(endpoint) = live_endpoint(image, leader, &self.caller.listener) else { return };
        let mut told = LeaderIdAndEpoch::default();
        told.leader_id = BrokerId::to_wire(Some(leader));
        told.leader_epoch = epoch.0;
        partition.current_leader = told;
        if self.endpoints.iter().any(|known| known.node_id == leader.0) {
            return;
        }
        let mut node = NodeEndpoint::default();
        node.node_id = leader.0;
        node.host = endpoint.host.as_str().into();
        node.port = i32::from(endpoint.port);
        node.rack = image.brokers.get(&leader).and_then(|broker| broker.rack.as_deref().map(StrBytes::from));
        self.endpoints.push(node);
    }
}
