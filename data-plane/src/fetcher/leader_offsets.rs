//! What a leader's log holds (R162), asked on a connection of its own: it is rare.

use std::sync::Arc;

use highwater_wire::api::ApiKey;
use highwater_wire::frame::{FrameBuffer, FrameLimits};
use highwater_wire::request::{DescribeProducersRequest, ListOffsetsRequest, Request};
use highwater_wire::response::{Response, response_limits};
use highwater_wire::{ErrorCode, Offset, TopicPartition};
use kafka_wire::describe_producers_request;
use kafka_wire::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use tokio::io::AsyncWriteExt;
use tokio::time::{Duration, sleep, timeout};

use super::{Connection, DIAL_TIMEOUT, Fetchers, GRACE, address, read_frame};
use crate::handlers::describe_producers;
use crate::log::ActiveProducer;
use crate::net;
use crate::replica::message::{FetchPoint, FollowerNext, LeaderHolds, LeaderOffsets, ReplicaReply, ReplicaRequest};

const LIST_OFFSETS_VERSION: i16 = 7;
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// Room for a million producers.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long a follower rests that can ask nothing else before its leader has answered.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the leader, and tells the replica what it said.
pub(super) async fn ask_leader(shared: Arc<Fetchers>, at: TopicPartition, requested: FetchPoint) {
    let asked = timeout(GRACE, leader_holds(&shared, at, requested)).await;
    let answer = asked.unwrap_or(Err(ErrorCode::NetworkException));
    let failed = answer.is_err();
    let told = ReplicaRequest::LeaderOffsets(LeaderOffsets { requested, answer });
    let mut reply = shared.partitions.enter(at, told);
    if failed && matches!(reply, Some(ReplicaReply::Next(FollowerNext::AskLeader(_)))) {
        sleep(PAUSE).await;
        reply = shared.partitions.enter(at, ReplicaRequest::FetchPoint);
    }
    if let Some(ReplicaReply::Next(next)) = reply {
        shared.partitions.follow(at, next);
    }
}

async fn leader_holds(shared: &Fetchers, at: TopicPartition, requested: FetchPoint) -> Result<LeaderHolds, ErrorCode> {
    let name = shared.quorum.image().topics.get(&at.topic).map(|topic| topic.name.clone());
    let name = name.ok_or(ErrorCode::UnknownTopicId)?;
    let (to, _) = address(&shared.quorum, requested.leader).ok_or(ErrorCode::NetworkException)?;
    let stream = net::dial(&to, DIAL_TIMEOUT).await.map_err(|_| ErrorCode::NetworkException)?;
    let frames = FrameBuffer::new(FrameLimits::same(ANSWER_BYTES_MAX));
    let mut leader = Asked { connection: Connection { stream, frames }, at, name: &name };
    let replica = shared.identity.broker.0;
    let start = leader.offset(EARLIEST, replica, requested).await?;
    let end = leader.offset(LATEST, replica, requested).await?;
    // Last: whoever had all its batches below the start by then has nothing that is still to be fetched.
    let producers = leader.producers().await?;
    Ok(LeaderHolds { start, end, producers })
}

/// A leader that is asked about one partition.
struct Asked<'a> {
    connection: Connection,
    at: TopicPartition,
    name: &'a str,
}

impl Asked<'_> {
    async fn ask(&mut self, request: Request, version: i16) -> Result<Response, ErrorCode> {
        let api = request.api();
        let frame = request.encode(version, 0, None).map_err(|_| ErrorCode::UnknownServerError)?;
        let network = |_| ErrorCode::NetworkException;
        self.connection.stream.write_all(&frame.to_bytes()).await.map_err(network)?;
        let frame = read_frame(Some(&mut self.connection)).await.map_err(network)?;
        let (_, response) =
            Response::decode(api, version, frame, response_limits()).map_err(|_| ErrorCode::NetworkException)?;
        Ok(response)
    }

    async fn offset(&mut self, timestamp: i64, replica: i32, requested: FetchPoint) -> Result<Offset, ErrorCode> {
        let mut partition = ListOffsetsPartition::default();
        partition.partition_index = self.at.partition;
        partition.current_leader_epoch = requested.leader_epoch.0;
        partition.timestamp = timestamp;
        let mut topic = ListOffsetsTopic::default();
        topic.name = self.name.into();
        topic.partitions.push(partition);
        let mut request = ListOffsetsRequest::default();
        request.replica_id = replica;
        request.topics.push(topic);
        let Response::ListOffsets(response) = self.ask(request.into(), LIST_OFFSETS_VERSION).await? else {
            return Err(ErrorCode::UnknownServerError);
        };
        let told = response.topics.first().and_then(|topic| topic.partitions.first());
        let told = told.ok_or(ErrorCode::UnknownServerError)?;
        match ErrorCode::from_code(told.error_code) {
            ErrorCode::None => Offset::from_wire(told.offset).ok_or(ErrorCode::UnknownServerError),
            code => Err(code),
        }
    }

    async fn producers(&mut self) -> Result<Vec<ActiveProducer>, ErrorCode> {
        let mut topic = describe_producers_request::TopicRequest::default();
        topic.name = self.name.into();
        topic.partition_indexes.push(self.at.partition);
        let mut request = DescribeProducersRequest::default();
        request.topics.push(topic);
        let version = ApiKey::DescribeProducers.versions().max;
        let Response::DescribeProducers(response) = self.ask(request.into(), version).await? else {
            return Err(ErrorCode::UnknownServerError);
        };
        let told = response.topics.first().and_then(|topic| topic.partitions.first());
        let told = told.ok_or(ErrorCode::UnknownServerError)?;
        match ErrorCode::from_code(told.error_code) {
            ErrorCode::None => {
                let producers = told.active_producers.iter().map(describe_producers::from_wire);
                producers.collect::<Option<_>>().ok_or(ErrorCode::UnknownServerError)
            }
            code => Err(code),
        }
    }
}
