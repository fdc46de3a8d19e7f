//! The door to the quorum for everybody on this node: propose here or forward to the raft leader, and read the image.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, IncarnationId, ProducerId, TopicId, TopicPartition};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::controller::{Answer, Command, KnownWatermark, Refusal};
use crate::image::{BrokerState, ImageVersion, MetadataImage};

/// Why the quorum gave no answer, or what it answered instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum QuorumError {
    /// A rule said no; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No raft leader is known; nothing was proposed.
    #[error("the metadata quorum has no leader: {why}")]
    NoLeader { why: String },
    /// The proposal may or may not be applied.
    #[error("no answer from the metadata quorum within {after_ms} ms")]
    TimedOut { after_ms: u64 },
    /// This node's store failed, or it is stopping.
    #[error("the metadata quorum stopped here: {0}")]
    Stopped(String),
}

impl From<&QuorumError> for ErrorCode {
    fn from(error: &QuorumError) -> Self {
        match error {
            QuorumError::Refused(refusal) => refusal.into(),
            QuorumError::NoLeader { .. } => Self::NotController,
            QuorumError::TimedOut { .. } => Self::RequestTimedOut,
            QuorumError::Stopped(_) => Self::KafkaStorageError,
        }
    }
}

/// A topic as asked for by a client, before placement (R179, D18, D19).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct TopicSpec {
    pub name: String,
    /// `None`: `num.partitions`.
    pub partitions: Option<i32>,
    /// `None`: `default.replication.factor`, capped at the active brokers.
    pub replication_factor: Option<i16>,
    /// Explicit replicas by partition number; with it the two above must be `None`.
    pub assignments: BTreeMap<i32, Vec<BrokerId>>,
    pub configs: BTreeMap<String, String>,
    /// Check all, change nothing.
    pub validate_only: bool,
}

/// What was created (or would be).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedTopic {
    /// The zero id after `validate_only`.
    pub id: TopicId,
    pub partitions: i32,
    pub replication_factor: i16,
    /// A remark for the caller, such as "replication factor capped at 1: one broker is present".
    pub note: Option<String>,
}

/// What a broker says of itself every `broker.heartbeat.interval.ms` and when something changed (R170, D11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
    pub incarnation: IncarnationId,
    /// Its image has reached this.
    pub version: ImageVersion,
    /// Not ready to serve yet.
    pub want_fence: bool,
    pub want_shutdown: bool,
    /// Leads nothing any more (its data plane has let go of every leadership).
    pub drained: bool,
    /// Partitions where recovery found less than it must; sent until unfenced (D10).
    pub lost: Vec<TopicPartition>,
    /// Changed watermarks of led partitions whose ISR is not full (D12), bounded.
    pub watermarks: Vec<KnownWatermark>,
}

/// R170.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// As the answering raft leader has it applied.
    pub state: BrokerState,
    pub caught_up: bool,
    /// The broker may stop now (R174).
    pub should_shutdown: bool,
    /// The raft leader's image.
    pub version: ImageVersion,
}

/// Handle to the quorum of this process. Cheap to clone; usable from any runtime.
#[derive(Clone)]
pub struct QuorumClient {
    images: watch::Receiver<Arc<MetadataImage>>,
}

/*
The interface the other crates build on (filled in by raft's side of this crate):

impl QuorumClient {
    /// The newest image applied here.
    pub fn image(&self) -> Arc<MetadataImage>;
    /// Wakes at each publication.
    pub fn watch(&self) -> watch::Receiver<Arc<MetadataImage>>;
    /// Waits until the image here has reached `version`.
    pub async fn reached(&self, version: ImageVersion, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError>;
    /// Proposes here or forwards; returns when the entry is applied *here too* (D18), with its index.
    pub async fn propose(&self, command: Command, timeout: Duration) -> Result<(Answer, u64), QuorumError>;
    /// Places and creates a topic: the one door for HTTP and Kafka (D18).
    pub async fn create_topic(&self, spec: TopicSpec, timeout: Duration) -> Result<CreatedTopic, QuorumError>;
    pub async fn delete_topic(&self, id: TopicId, timeout: Duration) -> Result<(), QuorumError>;
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, QuorumError>;
    /// A connection to this broker was reset or refused: a suspicion, checked by the raft leader (D7). Never waits.
    pub fn suspect(&self, broker: BrokerId, epoch: BrokerEpoch);
    pub async fn allocate_producer_ids(&self, broker: BrokerId, epoch: BrokerEpoch) -> Result<std::ops::Range<i64>, QuorumError>;
    /// Node id of the raft leader as known here.
    pub fn leader(&self) -> Option<BrokerId>;
    /// This node's own view of raft, and of its peers if it leads.
    pub fn status(&self) -> QuorumStatus;
    /// Waits until this image holds everything committed when the call was made (read index on the raft leader).
    pub async fn linearizable(&self, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError>;
}
*/

#[allow(unused)]
fn interface_types(_: Command, _: Answer, _: ProducerId, _: Duration) {}
