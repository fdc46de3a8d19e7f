//! What an operator (or a test) chooses for the data plane: typed, with units, validated before it gets here.
//!
//! No `Default` for the whole: `node.rs` and the tests spell each choice out. The parts that are mere limits have
//! Kafka's defaults (replication.md §24), so that they are written once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::NodeSettings;
use highwater_quorum::image::Endpoint;
use highwater_wire::{BrokerId, DirectoryId, IncarnationId};

use crate::loggers::Loggers;

/// Everything the data plane is told at its start.
#[derive(Debug, Clone)]
pub struct DataPlaneConfig {
    /// `node.id`
    pub broker: BrokerId,
    /// The cluster this node's directories were formatted for, or will be.
    pub cluster_id: String,
    /// Fresh at every start of the process (R166); the quorum's probes answer with the same one.
    pub incarnation: IncarnationId,
    /// The one directory of `log.dirs` (D15).
    pub log_dir: PathBuf,
    /// The directory id of `metadata.log.dir` (D1), for the registration.
    pub metadata_dir: DirectoryId,
    /// What the kernel says of this boot; injected, so that a test can pretend a power loss (D10).
    pub boot: Boot,
    /// `broker.rack`
    pub rack: Option<String>,
    /// `http://host:port` of the controller listener, as other nodes reach it.
    pub controller_url: String,
    /// `http://host:port` of the admin API; empty when there is none.
    pub admin_url: String,
    /// Version of the binary, for people.
    pub version: String,
    /// `inter.broker.listener.name`: one of the listeners handed to `DataPlane::start`.
    pub inter_broker_listener: String,
    pub lifecycle: LifecycleConfig,
    pub replication: ReplicationConfig,
    pub log: LogConfig,
    pub server: ServerConfig,
    pub topics: TopicDefaults,
    pub groups: crate::group::Limits,
    /// This node's own configuration, for whoever asks what is in force.
    pub settings: Arc<NodeSettings>,
    /// The log levels of this process.
    pub loggers: Loggers,
}

/// One boot of this machine (D10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// `/proc/sys/kernel/random/boot_id`; `None` when unreadable, and then nothing is proved.
    pub id: Option<String>,
    /// How long the machine has been up (CLOCK_BOOTTIME), in milliseconds.
    pub uptime_ms: u64,
}

impl Boot {
    /// What this machine's kernel says now. To be read once per process.
    pub fn of_this_machine() -> Self {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let uptime = u64::try_from(rustix::system::sysinfo().uptime).unwrap_or(0);
        Self { id: id.map(|id| id.trim().to_owned()), uptime_ms: uptime * 1_000 }
    }
}

/// A listener: its name, the address it is bound to and the one that is told to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// As in `listeners` and `listener.security.protocol.map`, such as `PLAINTEXT`.
    pub name: String,
    /// Port 0: any free one.
    pub bind: SocketAddr,
    /// `advertised.listeners`; `None`: the bound address itself.
    pub advertised: Option<Endpoint>,
}

/// How this broker lives in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleConfig {
    /// `broker.heartbeat.interval.ms`
    pub heartbeat_interval: Duration,
    /// `controlled.shutdown.timeout`: how long a stop waits for its leaderships to move (D34).
    pub controlled_shutdown_timeout: Duration,
    /// Wait between two attempts to register (D9).
    pub registration_retry: Duration,
}

impl Default for LifecycleConfig {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(2_000),
            controlled_shutdown_timeout: Duration::from_secs(5),
            registration_retry: Duration::from_millis(500),
        }
    }
}

/// How replicas follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationConfig {
    /// `replica.lag.time.max.ms`: how long a follower may be behind before it leaves the ISR (R108).
    pub replica_lag_max: Duration,
    /// `replica.fetch.wait.max.ms`
    pub fetch_wait_max: Duration,
    /// `replica.fetch.min.bytes`
    pub fetch_bytes_min: u32,
    /// `replica.fetch.max.bytes`, of one partition; soft (R78)
    pub fetch_partition_bytes_max: u32,
    /// `replica.fetch.response.max.bytes`; soft (R78)
    pub fetch_response_bytes_max: u32,
    /// `replica.fetch.backoff.ms`: the longest wait after an error (D26a).
    pub fetch_backoff_max: Duration,
    /// `num.replica.fetchers`: sessions per leader, with disjoint partitions (D21). At least 1.
    pub fetchers: u32,
}

impl Default for ReplicationConfig {
    fn default() -> Self {
        Self {
            replica_lag_max: Duration::from_millis(30_000),
            fetch_wait_max: Duration::from_millis(500),
            fetch_bytes_min: 1,
            fetch_partition_bytes_max: 1_048_576,
            fetch_response_bytes_max: 10_485_760,
            fetch_backoff_max: Duration::from_millis(1_000),
            fetchers: 1,
        }
    }
}

/// The log directory as a whole; what belongs to a topic is in its `TopicConfig`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Threads that fsync, prepare segments, delete and recover. At least 1.
    pub sync_threads: usize,
    /// `replica.high.watermark.checkpoint.interval.ms`
    pub watermark_checkpoint_interval: Duration,
    /// `log.flush.offset.checkpoint.interval.ms`, and of the log starts too
    pub offset_checkpoint_interval: Duration,
    /// `log.retention.check.interval.ms`
    pub retention_check_interval: Duration,
    /// `log.cleaner.backoff.ms`
    pub cleaner_backoff: Duration,
    /// `log.cleaner.dedupe.buffer.size`
    pub cleaner_buffer_bytes: usize,
    /// `producer.id.expiration.ms`
    pub producer_id_expiration: Duration,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            sync_threads: 2,
            watermark_checkpoint_interval: Duration::from_millis(5_000),
            offset_checkpoint_interval: Duration::from_millis(60_000),
            retention_check_interval: Duration::from_millis(300_000),
            cleaner_backoff: Duration::from_millis(15_000),
            cleaner_buffer_bytes: 128 << 20,
            producer_id_expiration: Duration::from_millis(86_400_000),
        }
    }
}

/// Limits of the Kafka listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// `num.network.threads`: workers of the data plane (D37). At least 1. Default: one for two cores, at most 4;
    /// more of them than there is work for only wake each other.
    pub workers: usize,
    /// `socket.request.max.bytes`: of a Produce; everything else may have 1 MiB (R55).
    pub request_bytes_max: usize,
    /// `connections.max.idle.ms`
    pub connection_idle_max: Duration,
    /// `max.connections`
    pub connections_max: usize,
    /// `fetch.max.bytes`
    pub fetch_bytes_max: u32,
    /// `max.incremental.fetch.session.cache.slots`
    pub fetch_sessions_max: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4)),
            request_bytes_max: 104_857_600,
            connection_idle_max: Duration::from_millis(600_000),
            connections_max: usize::MAX,
            fetch_bytes_max: 57_671_680,
            fetch_sessions_max: 1_000,
        }
    }
}

/// What a client's request may do to topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDefaults {
    /// `auto.create.topics.enable`: a Metadata request may create the topics it names (R56).
    pub auto_create: bool,
    /// `delete.topic.enable`
    pub delete_enabled: bool,
    /// `offsets.topic.num.partitions`
    pub offsets_partitions: i32,
    /// `offsets.topic.replication.factor`; as many as there are brokers when it is created (D19)
    pub offsets_replication_factor: i16,
}
