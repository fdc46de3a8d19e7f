//! The door to the quorum for everybody on this node: propose here or forward to the raft leader, and read the image.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_wire::{BrokerEpoch, BrokerId, IncarnationId, TopicId, TopicPartition};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::controller::{Answer, Command, KnownWatermark};
use crate::error::QuorumError;
use crate::image::{BrokerState, ImageVersion, MetadataImage};
use crate::status::QuorumStatus;

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

/// Handle to the quorum of this process. Cheap to clone; usable from any tokio runtime and from none.
#[derive(Clone)]
pub struct QuorumClient {
    images: watch::Receiver<Arc<MetadataImage>>,
}

impl QuorumClient {
    /// The newest image applied here.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.images.borrow().clone()
    }

    /// Wakes at each publication.
    pub fn watch(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.images.clone()
    }

    /// Waits until the image here has reached `version`.
    ///
    /// # Errors
    /// `TimedOut`; `Stopped` when nothing will be published any more.
    pub async fn reached(&self, version: ImageVersion, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError> {
        let _ = (version, timeout);
        todo!()
    }

    /// Proposes here or forwards; returns when the entry is applied *here too* (D18), with its index.
    pub async fn propose(&self, command: Command, timeout: Duration) -> Result<(Answer, u64), QuorumError> {
        let _ = (command, timeout);
        todo!()
    }

    /// Places and creates a topic: the one door for HTTP and Kafka (D18).
    pub async fn create_topic(&self, spec: TopicSpec, timeout: Duration) -> Result<CreatedTopic, QuorumError> {
        let _ = (spec, timeout);
        todo!()
    }

    pub async fn delete_topic(&self, id: TopicId, timeout: Duration) -> Result<(), QuorumError> {
        let _ = (id, timeout);
        todo!()
    }

    /// Sends a heartbeat to the raft leader (R170). Bounded by one second.
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, QuorumError> {
        let _ = heartbeat;
        todo!()
    }

    /// A connection to this broker was reset or refused: a suspicion, checked by the raft leader (D7). Never waits.
    pub fn suspect(&self, broker: BrokerId, epoch: BrokerEpoch) {
        let _ = (broker, epoch);
        todo!()
    }

    /// A block of producer ids of its own for this broker (R67).
    pub async fn allocate_producer_ids(
        &self,
        broker: BrokerId,
        epoch: BrokerEpoch,
    ) -> Result<std::ops::Range<i64>, QuorumError> {
        let _ = (broker, epoch);
        todo!()
    }

    /// Node id of the raft leader as known here.
    pub fn leader(&self) -> Option<BrokerId> {
        todo!()
    }

    /// This node's own view of raft, and of its peers if it leads.
    pub fn status(&self) -> QuorumStatus {
        todo!()
    }

    /// `http://host:port` of a node's controller listener, from the image, else from the configured voters (D4).
    pub fn controller_url(&self, node: BrokerId) -> Option<String> {
        let _ = node;
        todo!()
    }

    /// Waits until this image holds everything committed when the call was made (read index on the raft leader).
    pub async fn linearizable(&self, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError> {
        let _ = timeout;
        todo!()
    }
}
