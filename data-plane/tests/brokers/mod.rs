//! Brokers of one cluster in this process – real quorum, real disk, loopback TCP – and a small client on `wire`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_data::{
    Boot, DataPlane, DataPlaneConfig, LifecycleConfig, ListenerConfig, LogConfig, Loggers, ReplicationConfig,
    ServerConfig, TopicDefaults,
};
use highwater_quorum::image::Endpoint;
use highwater_quorum::{ControllerListener, NodeRoles, Quorum, QuorumConfig, QuorumLimits};
use highwater_wire::{BrokerId, IncarnationId};
use tempfile::TempDir;

pub mod client;

/// One broker with its quorum.
pub struct Broker {
    pub id: BrokerId,
    pub quorum: Quorum,
    pub data: DataPlane,
    pub address: SocketAddr,
}

/// What survives the processes: directories and addresses.
pub struct Cluster {
    directory: TempDir,
    voters: BTreeMap<BrokerId, Endpoint>,
    /// Controller listeners, bound before anything starts.
    bound: Mutex<BTreeMap<BrokerId, TcpListener>>,
    /// Ports of the Kafka listeners, once known.
    ports: Mutex<BTreeMap<BrokerId, u16>>,
}

impl Cluster {
    /// Nothing runs yet.
    pub fn new(nodes: i32) -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let (mut voters, mut bound) = (BTreeMap::new(), BTreeMap::new());
        for id in (1..=nodes).map(BrokerId) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            voters.insert(id, Endpoint { host: "127.0.0.1".to_owned(), port });
            bound.insert(id, listener);
        }
        Self { directory: tempfile::tempdir().unwrap(), voters, bound: Mutex::new(bound), ports: Mutex::default() }
    }

    /// Starts all brokers at once and waits until they serve.
    pub async fn start_all(&self) -> Vec<Broker> {
        futures::future::join_all(self.voters.keys().map(|id| self.start(id.0))).await
    }

    /// Starts a broker and waits until it serves; again on the same addresses and directories after it ended.
    pub async fn start(&self, id: i32) -> Broker {
        let id = BrokerId(id);
        let incarnation = IncarnationId::random();
        let controller = &self.voters[&id];
        let controller_address = format!("{}:{}", controller.host, controller.port);
        let bound = self.bound.lock().unwrap().remove(&id);
        let listener =
            bound.map_or_else(|| ControllerListener::Address(controller_address.clone()), ControllerListener::Bound);
        let config = QuorumConfig {
            node: id,
            incarnation,
            directory: self.directory.path().join(format!("{id}-metadata")),
            cluster_id: None,
            voters: self.voters.clone(),
            bootstrap: Vec::new(),
            listener,
            advertised: controller.clone(),
            roles: NodeRoles { broker: true, controller: true },
            limits: QuorumLimits {
                heartbeat_interval: Duration::from_millis(500),
                session_timeout: Duration::from_millis(3_000),
                ..QuorumLimits::default()
            },
            topic_defaults: highwater_quorum::TopicDefaults::default(),
        };
        let quorum = Quorum::start(config, axum::Router::new()).await.unwrap();
        let client = quorum.client().clone();
        let mut images = client.watch();
        let cluster_id = images.wait_for(|image| image.cluster_id.is_some()).await.unwrap().cluster_id.clone();
        let config = DataPlaneConfig {
            broker: id,
            cluster_id: cluster_id.as_deref().unwrap().to_owned(),
            incarnation,
            log_dir: self.directory.path().join(format!("{id}-data")),
            metadata_dir: client.status().directory,
            boot: Boot::of_this_machine(),
            rack: None,
            controller_url: format!("http://{controller_address}"),
            admin_url: String::new(),
            version: "test".to_owned(),
            inter_broker_listener: "PLAINTEXT".to_owned(),
            lifecycle: LifecycleConfig { heartbeat_interval: Duration::from_millis(500), ..LifecycleConfig::default() },
            replication: ReplicationConfig {
                replica_lag_max: Duration::from_millis(2_000),
                ..ReplicationConfig::default()
            },
            log: LogConfig::default(),
            server: ServerConfig { workers: 1, ..ServerConfig::default() },
            topics: TopicDefaults {
                auto_create: true,
                delete_enabled: true,
                offsets_partitions: 4,
                offsets_replication_factor: 3,
            },
            groups: Default::default(),
            settings: Arc::default(),
            loggers: Loggers::default(),
        };
        let port = self.ports.lock().unwrap().get(&id).copied().unwrap_or(0);
        let bind = SocketAddr::from(([127, 0, 0, 1], port));
        let listener = ListenerConfig { name: "PLAINTEXT".to_owned(), bind, advertised: None };
        let data = DataPlane::start(config, client, vec![listener]).await.unwrap();
        let address = data.addresses()[0].1;
        self.ports.lock().unwrap().insert(id, address.port());
        data.serving().await.unwrap();
        Broker { id, quorum, data, address }
    }
}
