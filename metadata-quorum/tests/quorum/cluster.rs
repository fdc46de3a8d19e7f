//! Real nodes in this process: TCP, sled, openraft. Each has a runtime of its own, and dropping that is its death.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use highwater_quorum::controller::{DataClaim, RegisterBroker};
use highwater_quorum::image::{BrokerState, Endpoint};
use highwater_quorum::{
    Answer, Command, ControllerListener, Heartbeat, NodeRoles, Quorum, QuorumClient, QuorumConfig, QuorumError,
    QuorumLimits, QuorumRole, StartError, TopicDefaults,
};
use highwater_wire::{BrokerEpoch, BrokerId, DirectoryId, IncarnationId, Timestamp};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// One node: what outlives its process, and the process.
pub struct TestNode {
    pub id: BrokerId,
    pub directory: PathBuf,
    pub address: SocketAddr,
    pub process: Option<Process>,
}

pub struct Process {
    pub runtime: Runtime,
    pub quorum: Quorum,
    pub incarnation: IncarnationId,
}

pub struct Cluster {
    pub nodes: Vec<TestNode>,
    pub voters: BTreeMap<BrokerId, Endpoint>,
    limits: QuorumLimits,
    _home: TempDir,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Waits for a state, not for a time.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    begun.elapsed()
}

impl Cluster {
    /// `voters` nodes that vote and `others` that do not, none of them started.
    pub fn new(voters: usize, others: usize, limits: QuorumLimits) -> (Self, Vec<TcpListener>) {
        let home = TempDir::new().unwrap();
        let listeners: Vec<_> = (0..voters + others).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let nodes = (1i32..).zip(&listeners).map(|(number, listener)| TestNode {
            id: BrokerId(number),
            directory: home.path().join(number.to_string()),
            address: listener.local_addr().unwrap(),
            process: None,
        });
        let nodes: Vec<_> = nodes.collect();
        let endpoint = |node: &TestNode| Endpoint { host: "127.0.0.1".to_owned(), port: node.address.port() };
        let voters = nodes.iter().take(voters).map(|node| (node.id, endpoint(node))).collect();
        (Self { nodes, voters, limits, _home: home }, listeners)
    }

    pub fn start(voters: usize) -> Self {
        Self::start_with(voters, 0, QuorumLimits::default())
    }

    pub fn start_with(voters: usize, others: usize, limits: QuorumLimits) -> Self {
        let _ = tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).try_init();
        let (mut cluster, listeners) = Self::new(voters, others, limits);
        for (at, listener) in listeners.into_iter().enumerate() {
            cluster.start_node(at, ControllerListener::Bound(listener), None).unwrap();
        }
        cluster.await_leader();
        cluster
    }

    pub fn start_node(
        &mut self,
        at: usize,
        listener: ControllerListener,
        cluster_id: Option<String>,
    ) -> Result<(), StartError> {
        let node = &mut self.nodes[at];
        let (runtime, incarnation) = (runtime(), IncarnationId::random());
        let config = QuorumConfig {
            node: node.id,
            incarnation,
            directory: node.directory.clone(),
            cluster_id,
            // Who is none of the first voters finds them as bootstrap servers.
            voters: if self.voters.contains_key(&node.id) { self.voters.clone() } else { BTreeMap::new() },
            bootstrap: self.voters.values().cloned().collect(),
            listener,
            advertised: Endpoint { host: "127.0.0.1".to_owned(), port: node.address.port() },
            roles: NodeRoles { broker: true, controller: true },
            limits: self.limits.clone(),
            topic_defaults: TopicDefaults::default(),
        };
        let quorum = runtime.block_on(Quorum::start(config, axum::Router::new()))?;
        node.process = Some(Process { runtime, quorum, incarnation });
        Ok(())
    }

    /// Starts a node again on its address and directory, as soon as its predecessor has let go of both.
    pub fn restart(&mut self, at: usize) {
        let address = self.nodes[at].address.to_string();
        eventually("the directory and the address are free", || {
            match self.start_node(at, ControllerListener::Address(address.clone()), None) {
                Ok(()) => true,
                Err(StartError::Listen { .. } | StartError::Store { .. }) => false,
                Err(other) => panic!("{other}"),
            }
        });
    }

    pub fn stop(&mut self, at: usize) {
        let process = self.nodes[at].process.take().unwrap();
        process.runtime.block_on(process.quorum.stop());
    }

    /// As a killed process: nothing is finished, every socket closes.
    pub fn kill(&mut self, at: usize) {
        let process = self.nodes[at].process.take().unwrap();
        let Process { runtime, quorum, .. } = process;
        drop(quorum);
        runtime.shutdown_timeout(Duration::from_secs(5));
    }

    pub fn client(&self, at: usize) -> QuorumClient {
        self.nodes[at].process.as_ref().unwrap().quorum.client().clone()
    }

    pub fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].process.is_some())
    }

    /// The node that leads and that all running ones follow.
    pub fn leader(&self) -> Option<usize> {
        let leader = self.running().find(|at| self.client(*at).status().role == QuorumRole::Leader)?;
        let id = self.nodes[leader].id;
        let voters = self.running().filter(|at| self.voters.contains_key(&self.nodes[*at].id));
        voters.into_iter().all(|at| self.client(at).leader() == Some(id)).then_some(leader)
    }

    pub fn await_leader(&self) -> usize {
        eventually("a leader with a formed cluster", || {
            self.leader().is_some_and(|at| self.client(at).image().cluster_id.is_some())
        });
        self.leader().unwrap()
    }

    /// Registers the broker of a node and keeps it alive by heartbeats until its runtime ends.
    pub fn register(&self, at: usize) -> BrokerEpoch {
        let node = &self.nodes[at];
        let process = node.process.as_ref().unwrap();
        let client = process.quorum.client().clone();
        let (broker, incarnation) = (node.id, process.incarnation);
        let registration = RegisterBroker {
            broker,
            cluster_id: String::new(),
            incarnation,
            listeners: BTreeMap::new(),
            inter_broker_listener: "INTERNAL".to_owned(),
            controller_url: format!("http://{}", node.address),
            admin_url: String::new(),
            rack: None,
            log_dirs: vec![DirectoryId::from_bytes([u8::try_from(broker.0).unwrap(); 16])],
            metadata_dir: client.status().directory,
            features: BTreeMap::new(),
            version: "test".to_owned(),
            claim: DataClaim::Nothing,
            previous_is_dead: false,
            time: Timestamp(1),
        };
        let endpoint = Endpoint { host: "127.0.0.1".to_owned(), port: 1 };
        let mut registration = registration;
        registration.listeners.insert("INTERNAL".to_owned(), endpoint);
        let proposed = process.runtime.block_on(client.propose(Command::RegisterBroker(registration), PATIENCE));
        let (Answer::Registered { epoch }, _) = proposed.unwrap() else { panic!("not registered") };
        process.runtime.spawn(async move {
            loop {
                let heartbeat = Heartbeat {
                    broker,
                    epoch,
                    incarnation,
                    version: client.image().version,
                    want_fence: false,
                    want_shutdown: false,
                    drained: false,
                    lost: Vec::new(),
                    watermarks: Vec::new(),
                };
                let _ = client.heartbeat(heartbeat).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        epoch
    }

    pub fn broker_state(&self, seen_by: usize, broker: usize) -> Option<BrokerState> {
        let image = self.client(seen_by).image();
        image.brokers.get(&self.nodes[broker].id).map(|broker| broker.state)
    }

    pub fn propose(&self, at: usize, command: Command) -> Result<(Answer, u64), QuorumError> {
        let process = self.nodes[at].process.as_ref().unwrap();
        process.runtime.block_on(process.quorum.client().propose(command, PATIENCE))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in self.running().collect::<Vec<_>>() {
            self.kill(at);
        }
    }
}
