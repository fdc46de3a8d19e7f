//! The data plane of one node: replicas, their logs, the Kafka server in front of them and the fetchers between them.
//!
//! Down: `server → handlers → partitions → replica → {replication, log} → {log_view, disk}`. `reconcile`, `fetcher`,
//! `isr_reporter` and `lifecycle` talk only to `partitions` and the quorum's client.

pub mod config;
pub mod disk;
pub mod error;
pub mod log;
pub mod log_view;
pub mod replica;
pub mod replication;
pub mod view;

pub use config::{
    Boot, DataPlaneConfig, LifecycleConfig, ListenerConfig, LogConfig, ReplicationConfig, ServerConfig, TopicDefaults,
};
pub use error::DataPlaneError;
pub use view::{NodeView, Phase, Recovery, ReplicaView};

use std::net::SocketAddr;

use highwater_quorum::QuorumClient;

/// The data plane of this process. It runs on a runtime of its own (D37), so it may be started from any.
pub struct DataPlane {
    view: ReplicaView,
    addresses: Vec<(String, SocketAddr)>,
}

/// How a data plane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// All logs flushed, checkpoints written, the mark of a clean stop in place (R29).
    Cleanly,
    /// Something could not be written; the next start recovers (R20).
    Uncleanly,
}

impl DataPlane {
    /// Locks the log directory, binds the listeners and starts. Registering, recovery and serving follow in the
    /// background: `view().phase()` tells how far they are.
    ///
    /// # Errors
    /// What can be known at once: addresses in use, directories locked or of another cluster.
    pub async fn start(
        config: DataPlaneConfig,
        quorum: QuorumClient,
        listeners: Vec<ListenerConfig>,
    ) -> Result<Self, DataPlaneError> {
        let _ = (config, quorum, listeners);
        todo!()
    }

    /// What others in this process may look at.
    pub fn view(&self) -> ReplicaView {
        self.view.clone()
    }

    /// The listeners with the addresses they are really bound to.
    pub fn addresses(&self) -> &[(String, SocketAddr)] {
        &self.addresses
    }

    /// Waits until this broker is unfenced and its client listeners are open.
    ///
    /// # Errors
    /// It stopped before that.
    pub async fn serving(&self) -> Result<(), DataPlaneError> {
        todo!()
    }

    /// Waits until something stops this broker by itself: a failed disk, a registration refused for ever.
    pub async fn failed(&self) -> DataPlaneError {
        todo!()
    }

    /// Controlled shutdown (R174): leaderships move away while it goes on serving. Bounded by
    /// `controlled.shutdown.timeout` (D34); `true` when the quorum agreed that it may stop.
    pub async fn drain(&self) -> bool {
        todo!()
    }

    /// Stops serving and fetching, flushes everything and marks the directory clean (R29).
    pub async fn stop(self) -> Stopped {
        todo!()
    }

    /// Stops at once as `kill -9` would: nothing is flushed, no mark is written. For tests.
    pub fn kill(self) {
        todo!()
    }
}
