//! DescribeLogDirs (35, v1–4): the log directory of this broker, the size of each replica in it, and the room around it.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_wire::{ErrorCode, TopicPartition};
use kafka_wire::describe_log_dirs_response::{DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic};
use kafka_wire::{DescribeLogDirsRequest, DescribeLogDirsResponse};
use kafka_wire_core::StrBytes;

use super::context::{Context, by_name};
use crate::partitions::{Deliveries, Hosted, Partitions};
use crate::replica::message::{ReplicaReply, ReplicaRequest};

/// Replicas asked in a row, before others get the worker.
const AT_ONCE: usize = 128;

/// One log directory of this broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDirStatus {
    pub path: String,
    /// Why nothing is read or written there any more.
    pub offline: Option<String>,
    /// Of the volume, and what is free on it for this process; `None`: the system does not say.
    pub space: Option<Space>,
    /// The replicas in it, in order.
    pub replicas: Vec<ReplicaSize>,
}

/// How large a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total_bytes: u64,
    pub usable_bytes: u64,
}

/// What one replica takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSize {
    pub at: TopicPartition,
    /// Of the topic; it may be gone from the image by now.
    pub topic: Arc<str>,
    pub bytes: u64,
    /// How far the log ends below the watermark it knows; 0 but for a damaged one.
    pub offset_lag: i64,
}

pub async fn handle(context: &Context, version: i16, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse {
    let wanted = request.topics.as_ref().map(|topics| {
        let image = context.image();
        let named =
            topics.iter().flat_map(|topic| topic.partitions.iter().map(move |index| (topic.topic.as_str(), *index)));
        let known = named.filter_map(|(topic, index)| by_name(&image, topic, index).ok());
        // What is not here is left out, as it is of all.
        known.filter_map(|(at, _)| context.partitions.get(at)).collect::<Vec<_>>()
    });
    let status = status(&context.partitions, wanted).await;
    let mut told = DescribeLogDirsResult::default();
    told.log_dir = status.path.as_str().into();
    if status.offline.is_some() {
        told.error_code = ErrorCode::KafkaStorageError.code();
    } else {
        let mut by_topic = BTreeMap::<Arc<str>, Vec<DescribeLogDirsPartition>>::new();
        for replica in status.replicas {
            let mut row = DescribeLogDirsPartition::default();
            row.partition_index = replica.at.partition;
            row.partition_size = i64::try_from(replica.bytes).unwrap_or(i64::MAX);
            row.offset_lag = replica.offset_lag;
            by_topic.entry(replica.topic).or_default().push(row);
        }
        let topics = by_topic.into_iter().map(|(name, partitions)| {
            let mut topic = DescribeLogDirsTopic::default();
            topic.name = StrBytes::from(&*name);
            topic.partitions = partitions;
            topic
        });
        told.topics = topics.collect();
    }
    if version >= 4
        && let Some(space) = status.space
    {
        told.total_bytes = i64::try_from(space.total_bytes).unwrap_or(i64::MAX);
        told.usable_bytes = i64::try_from(space.usable_bytes).unwrap_or(i64::MAX);
    }
    let mut response = DescribeLogDirsResponse::default();
    response.results = vec![told];
    response
}

/// The one log directory, with the replicas `wanted`; `None`: all.
pub async fn status(partitions: &Arc<Partitions>, wanted: Option<Vec<Arc<Hosted>>>) -> LogDirStatus {
    let dir = partitions.dir().clone();
    let space = partitions.sync_pool().call(move || space(dir.path())).await.flatten();
    let wanted = wanted.unwrap_or_else(|| partitions.all());
    let mut replicas = Vec::with_capacity(wanted.len());
    let mut offline = None;
    for some in wanted.chunks(AT_ONCE) {
        let now = partitions.clock.now();
        let mut deliveries = Deliveries::new();
        for hosted in some {
            let asked = partitions.enter_hosted(hosted, ReplicaRequest::Status, now, &mut deliveries);
            let ReplicaReply::Status(status) = asked else { continue };
            if let Some(why) = status.offline {
                offline.get_or_insert_with(|| why.to_string());
            }
            let offset_lag = status.high_watermark.since(status.log_end).max(0);
            let topic = hosted.log.topic.clone();
            replicas.push(ReplicaSize { at: hosted.at, topic, bytes: status.log_bytes, offset_lag });
        }
        partitions.deliver(&mut deliveries);
        if some.len() == AT_ONCE {
            tokio::task::yield_now().await;
        }
    }
    LogDirStatus { path: partitions.dir().path().display().to_string(), offline, space, replicas }
}

/// Of the file system a directory lies on; `None` when the system does not say.
pub fn space(path: &std::path::Path) -> Option<Space> {
    let volume = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(volume.f_frsize);
    Some(Space { total_bytes: bytes(volume.f_blocks), usable_bytes: bytes(volume.f_bavail) })
}
