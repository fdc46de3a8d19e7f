//! Starts and stops raft on this node. Only `raft*` names openraft or sled.

#[cfg(test)]
mod crash_tests;
mod formation;
mod journal;
mod listener;
mod log_store;
mod members;
mod network;
mod node;
mod probe;
mod pulse;
#[cfg(feature = "sim")]
pub mod readers;
mod rows;
#[cfg(test)]
mod rows_tests;
#[cfg(feature = "sim")]
pub mod sim;
mod snapshot;
mod state_machine;
mod store;
#[cfg(test)]
mod store_tests;
mod succession;
mod transport;
#[cfg(any(test, feature = "sim"))]
pub mod trial;
mod types;
mod view;
mod voters;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use highwater_wire::{BrokerId, DirectoryId, IncarnationId};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{Config, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use journal::EventPage;
pub(crate) use listener::{ProposeRequest, SuspectRequest, TransferRequest, VoterRequest, WatermarkReport};
pub(crate) use network::Content;
pub use node::LeaderChanges;
pub(crate) use node::{Node, Reply};
pub(crate) use probe::{Suspect, Verdict, lifeline, prove};
pub(crate) use succession::succeed;
pub(crate) use types::NodeId;

use self::log_store::LogStore;
use self::network::{Network, Peers};
use self::node::NodeParts;
use self::state_machine::StateMachine;
use self::store::MetaStore;
use self::transport::{Http, Transport};
use crate::client::QuorumClient;
use crate::config::{ControllerListener, NodeRoles, QuorumConfig, QuorumLimits, TopicDefaults};
use crate::duty;
use crate::error::{QuorumError, StartError};
use crate::flaws::{Flaw, planted};
use crate::image::Endpoint;

/// A large snapshot takes its time; openraft's default of 200 ms never delivers one.
const INSTALL_SNAPSHOT: Duration = Duration::from_secs(30);
/// Entries kept behind a snapshot, so that a follower a little behind needs none.
const ENTRIES_KEPT: u64 = 1_000;
/// Open HTTP connections get this long when the node stops.
const DRAIN: Duration = Duration::from_millis(500);

/// The quorum on this node: raft, its store, and the controller listener.
pub struct Quorum {
    member: Member,
    address: SocketAddr,
    close_listener: watch::Sender<bool>,
    server: JoinHandle<()>,
}

impl Quorum {
    /// Opens the store, opens the controller listener (first of all listeners), and joins or forms the cluster in the
    /// background (D2). Runs on the runtime it is called on; give it one of its own (D5). `extra` is merged into the
    /// controller listener's routes (admin peer reads, D4).
    ///
    /// # Errors
    /// Bad configuration, an address in use, a store that cannot be opened or is of a newer format.
    pub async fn start(config: QuorumConfig, extra: axum::Router) -> Result<Self, StartError> {
        config.validate()?;
        let listener = listen(config.listener).await?;
        let address = listener.local_addr().map_err(|source| StartError::Listen { address: "?".to_owned(), source })?;

        let directory = config.directory.clone();
        let failed = |why: String| StartError::Store { directory: directory.display().to_string(), why };
        let (path, number) = (directory.clone(), config.node.0);
        let store = tokio::task::spawn_blocking(move || MetaStore::open(&path, number)).await;
        let store = store.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        let http = Http::new().map_err(|error| StartError::Raft(error.to_string()))?;
        let member = MemberConfig {
            node: config.node,
            incarnation: config.incarnation,
            cluster_id: config.cluster_id,
            voters: config.voters,
            bootstrap: config.bootstrap,
            advertised: config.advertised,
            roles: config.roles,
            limits: config.limits,
            topic_defaults: config.topic_defaults,
        };
        let member = Member::start(member, Arc::new(store), Arc::new(http)).await?;
        let (close_listener, closed) = watch::channel(false);
        let router = listener::router(Arc::clone(&member.node), extra);
        let server = tokio::spawn(serve(listener, router, closed));
        tracing::info!(node = %member.node.id, %address, "the metadata quorum is open");
        Ok(Self { member, address, close_listener, server })
    }

    /// The door for everybody on this node.
    pub fn client(&self) -> &QuorumClient {
        &self.member.client
    }

    /// The address the controller listener is bound to.
    pub fn listen_address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until there is a cluster, its leader is known here, and this node holds what was committed at that time.
    ///
    /// # Errors
    /// `NoLeader` with the reason to wait; `TimedOut`.
    pub async fn ready(&self, timeout: Duration) -> Result<(), QuorumError> {
        let waited = self.member.client.linearizable(timeout).await;
        let formed = waited.and_then(|image| match image.cluster_id {
            Some(_) => Ok(()),
            None => Err(QuorumError::NoLeader { why: "the cluster is being formed".to_owned() }),
        });
        match formed {
            Ok(()) => Ok(()),
            Err(error) => {
                let standing = self.member.node.standing.lock().clone();
                Err(standing.wiped.or(standing.waiting).map_or(error, |why| QuorumError::NoLeader { why }))
            }
        }
    }

    /// Resolves when the store or raft failed for good, with the reason: the process must stop then.
    pub async fn failed(&self) -> String {
        self.member.failed().await
    }

    /// Stops raft and closes the store; the controller listener closes last (D7).
    pub async fn stop(self) {
        self.member.stop().await;
        self.close_listener.send_replace(true);
        let mut server = self.server;
        if tokio::time::timeout(DRAIN, &mut server).await.is_err() {
            server.abort();
        }
    }
}

/// What a member needs to know of itself, whatever it stores on and talks over.
#[derive(Debug)]
pub(crate) struct MemberConfig {
    pub node: BrokerId,
    pub incarnation: IncarnationId,
    pub cluster_id: Option<String>,
    pub voters: BTreeMap<BrokerId, Endpoint>,
    pub bootstrap: Vec<Endpoint>,
    pub advertised: Endpoint,
    pub roles: NodeRoles,
    pub limits: QuorumLimits,
    pub topic_defaults: TopicDefaults,
}

/// Raft, formation and duties of this node; whoever starts it serves its routes.
pub(crate) struct Member {
    pub client: QuorumClient,
    pub node: Arc<Node>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Member {
    pub async fn start(
        config: MemberConfig,
        store: Arc<MetaStore>,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, StartError> {
        let failed = |why: String| StartError::Store { directory: store.directory().display().to_string(), why };
        let cluster_id = store.cluster_id();
        if let (Some(given), Some(stored)) = (&config.cluster_id, &cluster_id)
            && given != stored
        {
            return Err(StartError::Config(format!(
                "this node is configured for cluster {given}, but its metadata directory belongs to {stored}: correct \
                 CLUSTER_ID or metadata.log.dir"
            )));
        }
        let log = LogStore::open(Arc::clone(&store)).map_err(|error| failed(error.to_string()))?;
        let (machine, images) = StateMachine::open(Arc::clone(&store)).map_err(|error| failed(error.to_string()))?;

        let journal = machine.journal();

        let directory = if planted(Flaw::WipedVote) { DirectoryId::from_bytes([1; 16]) } else { store.directory_id() };
        let id = NodeId { node: config.node, directory };
        let (broken, suspicions) = mpsc::unbounded_channel();
        let peers = Arc::new(Peers::new(transport, images.clone(), config.voters, config.bootstrap, broken.clone()));
        let raft_config = raft_config(&config.limits).map_err(|error| StartError::Raft(error.to_string()))?;
        let raft = types::Raft::new(id, Arc::new(raft_config), Network(Arc::clone(&peers)), log, machine).await;
        let raft = raft.map_err(|error| StartError::Raft(error.to_string()))?;
        let node = Arc::new(Node::new(NodeParts {
            id,
            incarnation: config.incarnation,
            cluster_id_given: config.cluster_id,
            advertised: config.advertised,
            roles: config.roles,
            limits: config.limits,
            topic_defaults: config.topic_defaults,
            raft,
            store,
            images,
            journal,
            peers,
        }));
        let tasks = vec![
            tokio::spawn(formation::run(Arc::clone(&node))),
            tokio::spawn(pulse::run(Arc::clone(&node))),
            tokio::spawn(duty::run(Arc::clone(&node), broken, suspicions)),
        ];
        let client = QuorumClient::new(Arc::clone(&node), tokio::runtime::Handle::current());
        Ok(Self { client, node, tasks: Mutex::new(tasks) })
    }

    /// See [`Quorum::failed`].
    pub async fn failed(&self) -> String {
        let mut store = self.node.store.failure();
        let raft_ended = async {
            // Not on `metrics`, which change with every answer to a heartbeat; these end with raft.
            let mut leaders = self.node.leader_changes();
            while leaders.changed().await {}
            let metrics = self.node.raft.metrics();
            let state = metrics.borrow_watched().running_state.clone();
            state.err().map_or_else(|| "raft has ended".to_owned(), |fatal| fatal.to_string())
        };
        tokio::select! {
            why = store.wait_for(Option::is_some) => match why {
                Ok(why) => why.clone().unwrap_or_default(),
                Err(_) => "the metadata store is closed".to_owned(),
            },
            why = raft_ended => why,
        }
    }

    /// Stops raft and closes the store.
    pub async fn stop(&self) {
        self.node.stopping.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in &tasks {
            task.abort();
        }
        if let Err(error) = self.node.raft.shutdown().await {
            tracing::warn!(?error, "raft did not stop in order");
        }
        // Whoever starts in this directory next finds it free: they hold the store.
        for task in tasks {
            let _ = task.await;
        }
        self.node.store.closed().await;
    }
}

async fn listen(listener: ControllerListener) -> Result<tokio::net::TcpListener, StartError> {
    match listener {
        ControllerListener::Address(address) => {
            tokio::net::TcpListener::bind(&address).await.map_err(|source| StartError::Listen { address, source })
        }
        ControllerListener::Bound(listener) => {
            let address = listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
            let bound = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
            bound.map_err(|source| StartError::Listen { address, source })
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, router: axum::Router, mut closed: watch::Receiver<bool>) {
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let served = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = closed.wait_for(|closed| *closed).await;
    });
    if let Err(error) = served.await {
        tracing::error!(%error, "the controller listener ended");
    }
}

/// Settings of D5.
fn raft_config(limits: &QuorumLimits) -> Result<Config, openraft::ConfigError> {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let election_timeout_max = millis(limits.election_timeout);
    Config {
        cluster_name: "highwater".to_owned(),
        heartbeat_interval: millis(pulse::HEARTBEAT),
        election_timeout_min: election_timeout_max / 2,
        election_timeout_max,
        install_snapshot_timeout: millis(INSTALL_SNAPSHOT),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(limits.snapshot_entries),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT.min(limits.snapshot_entries),
        replication_lag_threshold: limits.snapshot_entries.max(ENTRIES_KEPT),
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(planted(Flaw::RestoresLeaders)),
        ..Config::default()
    }
    .validate()
}
