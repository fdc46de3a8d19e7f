//! Where a leader's log starts and ends (R162), asked on a connection of its own: it is rare.

use std::sync::Arc;

use highwater_wire::api::ApiKey;
use highwater_wire::frame::{FrameBuffer, FrameLimits};
use highwater_wire::request::{ListOffsetsRequest, Request};
use highwater_wire::response::{Response, response_limits};
use highwater_wire::{ErrorCode, Offset, TopicPartition};
use kafka_wire::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use tokio::io::AsyncWriteExt;

use super::{Connection, DIAL_TIMEOUT, Fetchers, GRACE, address, read_frame};
use crate::net;
use crate::replica::message::{FetchPoint, LeaderOffsets, ReplicaReply, ReplicaRequest};

const LIST_OFFSETS_VERSION: i16 = 7;

/// Asks the leader, and tells the replica what it said.
pub(super) async fn ask_leader_offsets(shared: Arc<Fetchers>, at: TopicPartition, requested: FetchPoint) {
    let asked = tokio::time::timeout(GRACE, leader_offsets(&shared, at, requested)).await;
    let answer = asked.unwrap_or(Err(ErrorCode::NetworkException));
    let told = ReplicaRequest::LeaderOffsets(LeaderOffsets { requested, answer });
    if let Some(ReplicaReply::Next(next)) = shared.partitions.enter(at, told) {
        shared.partitions.follow(at, next);
    }
}

async fn leader_offsets(
    shared: &Fetchers,
    at: TopicPartition,
    requested: FetchPoint,
) -> Result<(Offset, Offset), ErrorCode> {
    const LATEST: i64 = -1;
    const EARLIEST: i64 = -2;
    let name = shared.quorum.image().topics.get(&at.topic).map(|topic| topic.name.clone());
    let name = name.ok_or(ErrorCode::UnknownTopicId)?;
    let (to, _) = address(&shared.quorum, requested.leader).ok_or(ErrorCode::NetworkException)?;
    let network = |_| ErrorCode::NetworkException;
    let stream = net::dial(&to, DIAL_TIMEOUT).await.map_err(network)?;
    let mut connection = Connection { stream, frames: FrameBuffer::new(FrameLimits::same(1 << 20)) };
    let mut found = [Offset::ZERO; 2];
    for (timestamp, found) in [EARLIEST, LATEST].into_iter().zip(&mut found) {
        let mut partition = ListOffsetsPartition::default();
        partition.partition_index = at.partition;
        partition.current_leader_epoch = requested.leader_epoch.0;
        partition.timestamp = timestamp;
        let mut topic = ListOffsetsTopic::default();
        topic.name = (&*name).into();
        topic.partitions.push(partition);
        let mut request = ListOffsetsRequest::default();
        request.replica_id = shared.identity.broker.0;
        request.topics.push(topic);
        let frame = Request::from(request).encode(LIST_OFFSETS_VERSION, 0, None);
        let frame = frame.map_err(|_| ErrorCode::UnknownServerError)?;
        connection.stream.write_all(&frame.to_bytes()).await.map_err(network)?;
        let frame = read_frame(Some(&mut connection)).await.map_err(network)?;
        let response = Response::decode(ApiKey::ListOffsets, LIST_OFFSETS_VERSION, frame, response_limits());
        let Ok((_, Response::ListOffsets(response))) = response else { return Err(ErrorCode::NetworkException) };
        let told = response.topics.first().and_then(|topic| topic.partitions.first());
        let told = told.ok_or(ErrorCode::UnknownServerError)?;
        match ErrorCode::from_code(told.error_code) {
            ErrorCode::None => *found = Offset::from_wire(told.offset).ok_or(ErrorCode::UnknownServerError)?,
            code => return Err(code),
        }
    }
    Ok((found[0], found[1]))
}
