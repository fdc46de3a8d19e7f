//! What the admin API, health checks and tests may know of this node's data plane. Reading changes nothing.

use highwater_quorum::ImageVersion;
use highwater_wire::{BrokerEpoch, BrokerId};

/// How far the start (or stop) of this broker is. The order is the order of R28.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Asking the quorum for a broker epoch.
    Registering,
    /// Waiting until the local image holds the registration.
    CatchingUp,
    /// Opening logs; see `Recovery`.
    LogRecovery,
    /// Replicas follow and lead as the image says; waiting to be unfenced.
    Fenced,
    /// Unfenced, listeners open.
    Serving,
    /// Controlled shutdown.
    Draining,
    Stopped,
}

impl Phase {
    /// As health answers spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registering => "REGISTERING",
            Self::CatchingUp => "CATCHING_UP",
            Self::LogRecovery => "LOG_RECOVERY",
            Self::Fenced => "FENCED",
            Self::Serving => "SERVING",
            Self::Draining => "DRAINING",
            Self::Stopped => "STOPPED",
        }
    }
}

/// Progress of opening the logs at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovery {
    pub logs: usize,
    pub logs_open: usize,
    /// Bytes of log found in the directory.
    pub bytes: u64,
    /// Bytes of the logs that are open.
    pub bytes_open: u64,
}

/// The node as a whole, now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub broker: BrokerId,
    pub phase: Phase,
    /// Why it is not serving, for a person; empty while it serves.
    pub why: String,
    /// `None` until registered.
    pub epoch: Option<BrokerEpoch>,
    /// As the last heartbeat answer said; a broker can be fenced again while `phase` is `Serving`.
    pub unfenced: bool,
    /// Milliseconds since a heartbeat was last answered; `None` before the first.
    pub heartbeat_age_ms: Option<u64>,
    pub recovery: Recovery,
    /// The image that the replicas here have been told of.
    pub acted_on: ImageVersion,
    /// Replicas hosted here.
    pub replicas: usize,
    pub leading: usize,
    /// Open connections over all Kafka listeners.
    pub connections: usize,
    pub fetch_sessions: usize,
    /// Produce requests that wait for the high watermark.
    pub waiting_produces: usize,
}

/// A window on the replicas hosted here. Cheap to clone, usable from any thread; each call locks one partition at a
/// time for microseconds.
#[derive(Clone)]
pub struct ReplicaView {
    _private: (),
}

/*
impl ReplicaView {
    /// The node as a whole.
    pub fn node(&self) -> NodeView;
    /// Follows the phase.
    pub fn phase(&self) -> tokio::sync::watch::Receiver<Phase>;
    /// One hosted replica; `None` when it is not hosted here (or not yet opened).
    pub fn status(&self, at: TopicPartition) -> Option<ReplicaStatus>;
    /// All hosted replicas, in order of topic id and partition.
    pub fn all(&self) -> Vec<(TopicPartition, ReplicaStatus)>;
    /// First offset with a timestamp at or after `from` below the high watermark, as ListOffsets answers it; leader only.
    pub fn offset_for_timestamp(&self, at: TopicPartition, from: Timestamp) -> Result<Option<(Offset, Timestamp)>, ErrorCode>;
}
*/
