//! The settings of this broker that change while it runs. Whoever needs one reads it here; nobody waits, nothing is
//! locked on the way of a record.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::config::{DataPlaneConfig, LogConfig, ReplicationConfig, ServerConfig};

/// The parts of a configuration that a running broker takes over (R187). The others wait for its next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveConfig {
    pub replication: ReplicationConfig,
    pub log: LogConfig,
    pub server: ServerConfig,
}

impl From<&DataPlaneConfig> for LiveConfig {
    fn from(config: &DataPlaneConfig) -> Self {
        Self { replication: config.replication.clone(), log: config.log.clone(), server: config.server.clone() }
    }
}

/// See the file's head.
#[derive(Debug)]
pub struct Live {
    connections_max: AtomicUsize,
    connection_idle_ms: AtomicU64,
    request_bytes_max: AtomicUsize,
    fetch_bytes_max: AtomicU32,
    fetch_wait_ms: AtomicU64,
    fetch_bytes_min: AtomicU32,
    fetch_partition_bytes_max: AtomicU32,
    fetch_response_bytes_max: AtomicU32,
    fetch_backoff_ms: AtomicU64,
    /// How often what is written and cleared away.
    log: watch::Sender<LogConfig>,
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Live {
    pub fn new(config: &LiveConfig) -> Self {
        let live = Self {
            connections_max: AtomicUsize::default(),
            connection_idle_ms: AtomicU64::default(),
            request_bytes_max: AtomicUsize::default(),
            fetch_bytes_max: AtomicU32::default(),
            fetch_wait_ms: AtomicU64::default(),
            fetch_bytes_min: AtomicU32::default(),
            fetch_partition_bytes_max: AtomicU32::default(),
            fetch_response_bytes_max: AtomicU32::default(),
            fetch_backoff_ms: AtomicU64::default(),
            log: watch::Sender::new(config.log.clone()),
        };
        live.adopt(config);
        live
    }

    /// Takes another configuration over, as far as a running broker can. Connections and rounds that have begun go on
    /// under the old one.
    pub fn adopt(&self, config: &LiveConfig) {
        let LiveConfig { replication, log, server } = config;
        self.connections_max.store(server.connections_max, Ordering::Relaxed);
        self.connection_idle_ms.store(millis(server.connection_idle_max), Ordering::Relaxed);
        self.request_bytes_max.store(server.request_bytes_max, Ordering::Relaxed);
        self.fetch_bytes_max.store(server.fetch_bytes_max, Ordering::Relaxed);
        self.fetch_wait_ms.store(millis(replication.fetch_wait_max), Ordering::Relaxed);
        self.fetch_bytes_min.store(replication.fetch_bytes_min, Ordering::Relaxed);
        self.fetch_partition_bytes_max.store(replication.fetch_partition_bytes_max, Ordering::Relaxed);
        self.fetch_response_bytes_max.store(replication.fetch_response_bytes_max, Ordering::Relaxed);
        self.fetch_backoff_ms.store(millis(replication.fetch_backoff_max), Ordering::Relaxed);
        self.log.send_if_modified(|known| {
            let differs = known != log;
            known.clone_from(log);
            differs
        });
    }

    /// `max.connections`
    pub fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed)
    }

    /// `connections.max.idle.ms`, of connections accepted from now on
    pub fn connection_idle_max(&self) -> Duration {
        Duration::from_millis(self.connection_idle_ms.load(Ordering::Relaxed))
    }

    /// `socket.request.max.bytes`, of connections accepted from now on
    pub fn request_bytes_max(&self) -> usize {
        self.request_bytes_max.load(Ordering::Relaxed)
    }

    /// `fetch.max.bytes`
    pub fn fetch_bytes_max(&self) -> u32 {
        self.fetch_bytes_max.load(Ordering::Relaxed)
    }

    /// `replica.fetch.wait.max.ms`
    pub fn fetch_wait_max(&self) -> Duration {
        Duration::from_millis(self.fetch_wait_ms.load(Ordering::Relaxed))
    }

    /// `replica.fetch.min.bytes`
    pub fn fetch_bytes_min(&self) -> u32 {
        self.fetch_bytes_min.load(Ordering::Relaxed)
    }

    /// `replica.fetch.max.bytes`
    pub fn fetch_partition_bytes_max(&self) -> u32 {
        self.fetch_partition_bytes_max.load(Ordering::Relaxed)
    }

    /// `replica.fetch.response.max.bytes`
    pub fn fetch_response_bytes_max(&self) -> u32 {
        self.fetch_response_bytes_max.load(Ordering::Relaxed)
    }

    /// `replica.fetch.backoff.ms`
    pub fn fetch_backoff_max(&self) -> Duration {
        Duration::from_millis(self.fetch_backoff_ms.load(Ordering::Relaxed))
    }

    /// The intervals of the housekeeping, and a wake-up when they change.
    pub fn log(&self) -> watch::Receiver<LogConfig> {
        self.log.subscribe()
    }
}
