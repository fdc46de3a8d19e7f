//! One fetch request on its way: asks the partitions, waits for news if it must, reads what was granted and answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use highwater_quorum::MetadataImage;
use highwater_wire::batch::{BatchHeader, Codec, LOG_OVERHEAD_BYTES, RecordBatch};
use highwater_wire::fetch::{CurrentLeader, EpochEnd, FetchResponse, FetchedPartition, FetchedTopic, NodeEndpoint};
use highwater_wire::request::StrBytes;
use highwater_wire::{ErrorCode, Millis, Offset, TopicId, TopicPartition};
use tokio::time::sleep_until;

use super::super::Respond;
use super::super::context::{Caller, Context, by_id, by_name, leader_hint, live_endpoint};
use super::OpenSession;
use crate::fetch_session::{Answered, PartitionKey, TopicKey};
use crate::partitions::{Deliveries, Store};
use crate::replica::message::{
    Caller as Fetching, Diverging, Fetch, FetchGrant, Refusal, ReplicaReply, ReplicaRequest, Watch,
};

/// One request on its way.
pub(super) struct Round {
    pub(super) context: Arc<Context>,
    pub(super) caller: Arc<Caller>,
    pub(super) respond: Respond,
    pub(super) session: Arc<OpenSession>,
    pub(super) who: Fetching,
    pub(super) version: i16,
    pub(super) bytes_min: u32,
    pub(super) bytes_max: u32,
    pub(super) arrived: Millis,
    pub(super) first_ask: bool,
    pub(super) outcomes: BTreeMap<PartitionKey, Outcome>,
}

/// What a partition said last.
pub(super) enum Outcome {
    Granted(TopicPartition, Box<FetchGrant<Store>>),
    Diverging(Diverging),
    Refused { at: Option<TopicPartition>, code: ErrorCode, refusal: Option<Refusal> },
}

impl Round {
    /// Asks partitions, in the session's order; their answers replace what they said before.
    pub(super) fn ask(&mut self, keys: BTreeSet<PartitionKey>) {
        let image = self.context.image();
        let mut deliveries = Deliveries::new();
        let now = self.context.partitions.clock.now();
        let session = self.session.clone();
        let mut state = session.state.lock();
        for key in &keys {
            self.outcomes.remove(key);
        }
        let mut granted = 0usize;
        for outcome in self.outcomes.values() {
            granted += outcome.bytes_granted();
        }
        for key in state.session.in_order(keys) {
            let Some(asked) = state.session.asked(&key) else { continue };
            let at = match resolve(&image, &key) {
                Ok(at) => at,
                Err(code) => {
                    state.unarmed.insert(key.clone());
                    self.outcomes.insert(key, Outcome::Refused { at: None, code, refusal: None });
                    continue;
                }
            };
            let room = (self.bytes_max as usize).saturating_sub(granted);
            let fetch = Fetch {
                caller: self.who,
                leader_epoch: asked.leader_epoch,
                offset: Offset(asked.offset),
                last_fetched_epoch: asked.last_fetched_epoch.filter(|_| self.version >= 12),
                follower_log_start: asked.log_start,
                bytes_max: asked.bytes_max.min(u32::try_from(room).unwrap_or(u32::MAX)),
                first_whole: granted == 0,
                any_replica: self.version >= 11,
                watch: Some(Watch {
                    waiter: session.waiter.id,
                    bytes_min: self.bytes_min.max(1),
                    arrival: session.arrival.clone(),
                }),
                arrived: self.arrived,
                first_ask: self.first_ask,
            };
            let reply = self.context.partitions.enter_with(at, ReplicaRequest::Fetch(fetch), now, &mut deliveries);
            let mut watched = false;
            let outcome = match reply {
                Some(ReplicaReply::Fetched(grant)) => {
                    watched = grant.watched;
                    Outcome::Granted(at, Box::new(grant))
                }
                Some(ReplicaReply::Diverging(diverging)) => Outcome::Diverging(diverging),
                Some(ReplicaReply::Refused(refusal)) => {
                    Outcome::Refused { at: Some(at), code: refusal.code(), refusal: Some(refusal) }
                }
                _ => Outcome::Refused { at: Some(at), code: ErrorCode::NotLeaderOrFollower, refusal: None },
            };
            granted += outcome.bytes_granted();
            state.resolved.insert(at, key.clone());
            if watched {
                state.armed.insert(at);
                state.unarmed.remove(&key);
            } else {
                state.armed.remove(&at);
                state.unarmed.insert(key.clone());
            }
            self.outcomes.insert(key, outcome);
        }
        drop(state);
        self.context.partitions.deliver(&mut deliveries);
    }

    /// Whether it need not wait (R79).
    pub(super) fn is_complete(&self) -> bool {
        let mut available = 0u64;
        for outcome in self.outcomes.values() {
            match outcome {
                Outcome::Granted(_, grant) => available = available.saturating_add(grant.available),
                Outcome::Diverging(_) | Outcome::Refused { .. } => return true,
            }
        }
        available >= u64::from(self.bytes_min) || self.session.state.lock().session.is_empty()
    }

    /// Waits for news, or for `wait` to pass; then answers.
    pub(super) async fn wait(mut self, wait: std::time::Duration) {
        let wait = Millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let deadline = self.context.partitions.clock.instant(self.arrived + wait).into();
        let session = self.session.clone();
        let _waits = self.context.metrics.waiting_fetch();
        let kept = session.state.lock().alarm.take();
        let mut alarm = kept.unwrap_or_else(|| Box::pin(sleep_until(deadline)));
        alarm.as_mut().reset(deadline);
        let mut timed_out = false;
        loop {
            tokio::select! {
                biased;
                () = session.waiter.woken() => {}
                () = &mut alarm => timed_out = true,
            }
            let mut state = session.state.lock();
            let ready = session.waiter.take_ready();
            let mut asked: BTreeSet<_> = ready.iter().filter_map(|at| state.resolved.get(at)).cloned().collect();
            asked.append(&mut state.unarmed);
            drop(state);
            // The grants of before are read only now: what could not be promised then may be promised now (R80).
            asked.extend(
                self.outcomes.iter().filter(|(_, outcome)| outcome.bytes_granted() > 0).map(|(key, _)| key.clone()),
            );
            if !asked.is_empty() {
                self.ask(asked);
            }
            if timed_out || self.is_complete() || session.waiter.take_stop() {
                break;
            }
        }
        session.state.lock().alarm = Some(alarm);
        self.answer();
    }

    /// Reads what was granted and queues the answer.
    pub(super) fn answer(self) {
        let image = self.context.image();
        let follower = matches!(self.who, Fetching::Follower { .. });
        let session = self.session.clone();
        let order = session.state.lock().session.in_order(self.outcomes.keys().cloned());
        let mut outcomes = self.outcomes;
        let mut told: Vec<(PartitionKey, FetchedPartition)> = Vec::with_capacity(order.len());
        for key in order {
            let Some(outcome) = outcomes.remove(&key) else { continue };
            let at = outcome.granted();
            let partition = outcome.tell(&self.context, &image, self.version, key.partition);
            if let Some(at) = at.filter(|_| !follower && !partition.records.is_empty()) {
                self.context.partitions.count_consumed(at, partition.records.len() as u64);
            }
            told.push((key, partition));
        }
        let mut state = session.state.lock();
        if self.session.id != 0 {
            told.retain(|(key, partition)| state.session.must_tell(key, answered(partition)));
        }
        drop(state);
        let bytes = told.iter().map(|(_, partition)| partition.records.len() as u64).sum();
        self.context.metrics.fetched(bytes, follower);
        let node_endpoints = endpoints(&image, &self.caller, self.version, &told);
        let mut response = FetchResponse { session_id: self.session.id, node_endpoints, ..FetchResponse::default() };
        for (key, partition) in told {
            push(&mut response.topics, &key.topic, partition);
        }
        self.respond.send(&response.into());
    }
}

impl Outcome {
    /// Where records were granted.
    fn granted(&self) -> Option<TopicPartition> {
        match self {
            Self::Granted(at, _) => Some(*at),
            Self::Diverging(_) | Self::Refused { .. } => None,
        }
    }

    fn bytes_granted(&self) -> usize {
        match self {
            Self::Granted(_, grant) => grant.plan.as_ref().map_or(0, |plan| plan.bytes_max()),
            Self::Diverging(_) | Self::Refused { .. } => 0,
        }
    }

    /// Reads the records, if there are any.
    fn tell(self, context: &Context, image: &MetadataImage, version: i16, index: i32) -> FetchedPartition {
        let mut partition = FetchedPartition::new(index, ErrorCode::None);
        match self {
            Self::Granted(at, grant) => {
                partition.high_watermark = Some(grant.high_watermark);
                partition.last_stable_offset = Some(grant.last_stable_offset);
                partition.log_start_offset = Some(grant.log_start);
                match grant.plan.as_ref().map(|plan| plan.read()) {
                    None => {}
                    Some(Ok(records)) if version < 10 && holds_zstd(&records) => {
                        return FetchedPartition::new(index, ErrorCode::UnsupportedCompressionType);
                    }
                    Some(Ok(records)) => partition.records = records,
                    Some(Err(error)) => {
                        let topic = image.topics.get(&at.topic).map_or("", |topic| &topic.name);
                        if context.partitions.note_damage(at, &error) {
                            tracing::error!(
                                topic, index, %error,
                                "cannot read records that the log says it holds: let another replica lead; then stop this \
                                 node, remove the partition's directory and start it, and it is filled again"
                            );
                        }
                        let damaged = error.kind() == io::ErrorKind::InvalidData;
                        let code = if damaged { ErrorCode::CorruptMessage } else { ErrorCode::KafkaStorageError };
                        return FetchedPartition::new(index, code);
                    }
                }
            }
            Self::Diverging(diverging) => {
                partition.high_watermark = Some(diverging.high_watermark);
                partition.last_stable_offset = Some(diverging.high_watermark);
                partition.log_start_offset = Some(diverging.log_start);
                partition.diverging = Some(EpochEnd { epoch: diverging.epoch, end: diverging.end });
            }
            Self::Refused { at, code, refusal } => {
                partition.error = code;
                let names_leader = matches!(code, ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch);
                if let Some(at) = at.filter(|_| names_leader && version >= 16) {
                    let hint = leader_hint(image, at, refusal.as_ref());
                    partition.current_leader =
                        hint.map(|(leader, epoch)| CurrentLeader { leader: Some(leader), epoch });
                }
            }
        }
        partition
    }
}

/// R84: clients of Fetch v9 and older do not know zstd.
fn holds_zstd(records: &Bytes) -> bool {
    let mut rest = records.clone();
    while let Ok(header) = BatchHeader::parse(&rest) {
        let length = LOG_OVERHEAD_BYTES + usize::try_from(header.length).unwrap_or(0);
        if length > rest.len() {
            break;
        }
        let batch = RecordBatch::parse(rest.split_to(length));
        if batch.is_ok_and(|batch| batch.codec() == Ok(Codec::Zstd)) {
            return true;
        }
    }
    false
}

fn resolve(image: &MetadataImage, key: &PartitionKey) -> Result<TopicPartition, ErrorCode> {
    match &key.topic {
        TopicKey::Id(id) => by_id(image, *id, key.partition),
        TopicKey::Name(name) => by_name(image, name, key.partition),
    }
    .map(|(at, _)| at)
}

fn answered(partition: &FetchedPartition) -> Answered {
    Answered {
        error: partition.error,
        diverging: partition.diverging.is_some(),
        preferred_replica: partition.preferred_read_replica.is_some(),
        records: !partition.records.is_empty(),
        high_watermark: Offset::to_wire(partition.high_watermark),
        log_start: Offset::to_wire(partition.log_start_offset),
    }
}

/// Adds a partition behind the last topic if it is the same one: the order of partitions is kept.
fn push(topics: &mut Vec<FetchedTopic>, key: &TopicKey, partition: FetchedPartition) {
    let (name, id) = match key {
        TopicKey::Id(id) => ("", *id),
        TopicKey::Name(name) => (&**name, TopicId::from_bytes([0; 16])),
    };
    match topics.last_mut() {
        Some(last) if last.id == id && last.name.as_str() == name => last.partitions.push(partition),
        _ => topics.push(FetchedTopic { name: name.into(), id, partitions: vec![partition] }),
    }
}

/// Where the leaders named in the answer are (R54).
fn endpoints(
    image: &MetadataImage,
    caller: &Caller,
    version: i16,
    told: &[(PartitionKey, FetchedPartition)],
) -> Vec<NodeEndpoint> {
    if version < 16 {
        return Vec::new();
    }
    let leaders: BTreeSet<_> =
        told.iter().filter_map(|(_, partition)| partition.current_leader.and_then(|current| current.leader)).collect();
    let known = leaders.into_iter().filter_map(|id| {
        let endpoint = live_endpoint(image, id, &caller.listener)?;
        let rack = image.brokers.get(&id).and_then(|broker| broker.rack.as_deref().map(StrBytes::from));
        Some(NodeEndpoint { id, host: endpoint.host.as_str().into(), port: i32::from(endpoint.port), rack })
    });
    known.collect()
}
