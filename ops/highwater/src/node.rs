//! The composition root: in which order the parts of a node start and stop, and on which runtime each runs.
//!
//! Start: controller listener and raft, then the admin API (so that a node without a quorum can say so, D6), then,
//! once the cluster is formed, the data plane. Stop is the other way round; the controller listener closes last (D7).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use highwater_admin::{AdminState, Beats, LocalReplicas, peer};
use highwater_data::{DataPlane, DataPlaneError, ListenerConfig, Loggers, Stopped};
use highwater_quorum::{NodeSettings, Quorum, QuorumClient, QuorumError, StartError};
use highwater_wire::{BrokerId, IncarnationId};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{RwLock, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{self, NodeConfig};
use crate::storage;
use crate::telemetry::Telemetry;

mod parts;

use parts::{admin_config, data_config, live_config, quorum_config};

/// Version of this build, for people.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long a stop waits for the admin API's open requests.
const HTTP_GRACE: Duration = Duration::from_secs(2);

/// One attempt to hear of a quorum with a leader.
const READY_ATTEMPT: Duration = Duration::from_secs(2);

/// Why a node could not start, or had to stop by itself.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Quorum(#[from] StartError),
    #[error(transparent)]
    Data(#[from] DataPlaneError),
    #[error("http.listeners: cannot listen on {address}: {source}; is another process using the port?")]
    Http { address: String, source: std::io::Error },
    #[error("cannot resolve {0}: {1}")]
    Resolve(String, std::io::Error),
    #[error("{}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("cannot start a thread or runtime: {0}")]
    Resources(#[from] std::io::Error),
    #[error("cannot build an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    #[error(
        "the metadata quorum failed on this node: {0}; mend that (make room, replace the disk), then start it again"
    )]
    QuorumFailed(String),
    #[error("{0}")]
    Storage(#[from] storage::StorageError),
}

/// A runtime that may be dropped anywhere: what still runs on it is abandoned.
struct Threads(Option<Runtime>);

impl Threads {
    fn new(name: &str, workers: usize) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(workers).thread_name(name).enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> Handle {
        self.0.as_ref().expect("taken only by drop").handle().clone()
    }

    fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.0.as_ref().expect("taken only by drop").spawn(future)
    }

    /// Runs a future there and waits for it here.
    async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T, NodeError> {
        self.spawn(future).await.map_err(|error| NodeError::Resources(std::io::Error::other(error)))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// One node, running. [`Node::stop`] it; [`Node::abort`] ends it as `kill -9` would.
pub struct Node {
    raft: Threads,
    /// Kept for its drop.
    _admin: Threads,
    quorum: Quorum,
    data: Arc<RwLock<Option<DataPlane>>>,
    /// `Some` once the data plane has started or failed to.
    started: watch::Receiver<Option<Result<(), Arc<NodeError>>>>,
    starting: JoinHandle<()>,
    http_address: Option<SocketAddr>,
    http_stop: CancellationToken,
    admin_state: AdminState,
    http_task: Option<JoinHandle<()>>,
    /// It has the broker role.
    broker: bool,
    controlled_shutdown: bool,
    node: BrokerId,
    settings: Arc<NodeSettings>,
}

impl Node {
    /// Starts quorum and admin API; the data plane follows as soon as the cluster is formed.
    ///
    /// # Errors
    /// Addresses in use, directories that cannot be used, formats of a newer version.
    pub async fn start(config: NodeConfig, telemetry: Telemetry) -> Result<Self, NodeError> {
        let Telemetry { metrics, loggers } = telemetry;
        let incarnation = IncarnationId::random();
        let (node, settings) = (config.node_id, Arc::new(config.node_settings()));
        let dirs = std::iter::once(&config.metadata_dir).chain(Some(&config.log_dir).filter(|_| config.roles.broker));
        for path in dirs {
            std::fs::create_dir_all(path).map_err(|source| NodeError::Directory { path: path.clone(), source })?;
        }
        let (raft, admin) = (Threads::new("raft", 2)?, Threads::new("admin", 1)?);
        let (replicas, own_view) = (LocalReplicas::default(), peer::LocalQuorum::default());
        let extra = peer::replica_router(replicas.clone()).merge(peer::quorum_router(own_view.clone()));
        let extra = extra.merge(peer::settings_router(own_view.clone(), node, settings.clone()));
        let extra = extra.merge(peer::loggers_router(loggers.clone()));
        let quorum_config = quorum_config(&config, incarnation)?;
        let quorum = raft.run(Quorum::start(quorum_config, extra)).await??;
        let client = quorum.client().clone();
        own_view.set(client.clone());

        let beats = Beats::default();
        for (runtime, name) in [(&raft, "raft"), (&admin, "admin")] {
            let beats = beats.clone();
            runtime.spawn(async move { beats.beat(name).await });
        }
        tokio::spawn({
            let beats = beats.clone();
            async move { beats.beat("main").await }
        });
        if let Some(metrics) = metrics.clone() {
            admin.spawn(async move {
                let mut ticks = tokio::time::interval(Duration::from_secs(5));
                loop {
                    ticks.tick().await;
                    metrics.run_upkeep();
                }
            });
        }
        let pools = vec![("raft", raft.handle()), ("admin", admin.handle())];
        let admin_config = admin_config(&config, settings.clone(), loggers.clone(), pools);
        let state = AdminState::new(admin_config, client.clone(), replicas.clone(), beats, metrics)?;
        admin.spawn(highwater_admin::follow(state.clone()));
        let http_stop = CancellationToken::new();
        let (http_address, http_task) = match &config.http.listen {
            Some((host, port)) => {
                let (address, task) = serve_http(&admin, host, *port, state.clone(), http_stop.clone()).await?;
                (Some(address), Some(task))
            }
            None => (None, None),
        };
        let data = Arc::new(RwLock::new(None));
        let (told, started) = watch::channel(None);
        let (broker, controlled_shutdown) = (config.roles.broker, config.data.controlled_shutdown);
        let starting = tokio::spawn({
            let (data, settings) = (data.clone(), settings.clone());
            async move {
                if !config.roles.broker {
                    // A controller alone has no data plane: neither one that starts nor one that fails.
                    return std::future::pending().await;
                }
                match start_data(&config, client.clone(), incarnation, &replicas, settings, loggers).await {
                    Ok((plane, set)) => {
                        *data.write().await = Some(plane);
                        let _ = told.send(Some(Ok(())));
                        follow_settings(&config, &client, &data, set).await;
                    }
                    Err(error) => {
                        let _ = told.send(Some(Err(Arc::new(error))));
                    }
                }
            }
        });
        Ok(Self {
            raft,
            _admin: admin,
            quorum,
            data,
            started,
            starting,
            http_address,
            http_stop,
            admin_state: state,
            http_task,
            broker,
            controlled_shutdown,
            node,
            settings,
        })
    }

    /// The door to the quorum.
    pub fn quorum(&self) -> &QuorumClient {
        self.quorum.client()
    }

    /// Where the admin API listens.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Waits until this broker is unfenced and serves clients, or this controller belongs to a quorum with a leader.
    ///
    /// # Errors
    /// The data plane could not start, or stopped before that.
    pub async fn serving(&self) -> Result<(), Arc<NodeError>> {
        if !self.broker {
            return self.controlling().await;
        }
        self.data_started().await?;
        match self.data.read().await.as_ref() {
            Some(plane) => plane.serving().await.map_err(|error| Arc::new(error.into())),
            None => Err(Arc::new(DataPlaneError::Stopped.into())),
        }
    }

    async fn controlling(&self) -> Result<(), Arc<NodeError>> {
        let client = self.quorum.client();
        loop {
            match client.linearizable(READY_ATTEMPT).await {
                Ok(image) if image.cluster_id.is_some() => return Ok(()),
                Ok(image) => {
                    let next = highwater_quorum::ImageVersion(image.version.0 + 1);
                    let _ = client.reached(next, READY_ATTEMPT).await;
                }
                Err(QuorumError::Stopped(why)) => return Err(Arc::new(NodeError::QuorumFailed(why))),
                Err(_) => {}
            }
        }
    }

    /// Waits until something stops this node by itself.
    pub async fn failed(&self) -> Arc<NodeError> {
        let data = async {
            if let Err(error) = self.data_started().await {
                return error;
            }
            match self.data.read().await.as_ref() {
                Some(plane) => Arc::new(plane.failed().await.into()),
                None => std::future::pending().await,
            }
        };
        let error = tokio::select! {
            why = self.quorum.failed() => return Arc::new(NodeError::QuorumFailed(why)),
            error = data => error,
        };
        // A quorum that ends takes the data plane with it, and knows the reason a moment later.
        if matches!(&*error, NodeError::Data(DataPlaneError::Stopped))
            && let Ok(why) = tokio::time::timeout(READY_ATTEMPT, self.quorum.failed()).await
        {
            return Arc::new(NodeError::QuorumFailed(why));
        }
        error
    }

    async fn data_started(&self) -> Result<(), Arc<NodeError>> {
        let mut started = self.started.clone();
        match started.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Ok(())),
            Err(_) => Err(Arc::new(DataPlaneError::Stopped.into())),
        }
    }

    /// Controlled shutdown: leaders move first, then everything is flushed and closed.
    pub async fn stop(mut self) -> Stopped {
        self.starting.abort();
        let mut stopped = Stopped::Cleanly;
        if let Some(plane) = self.data.write().await.take() {
            let image = self.quorum.client().image();
            let now = self.settings.flag(&image, self.node, "controlled.shutdown.enable");
            if now.unwrap_or(self.controlled_shutdown) {
                tokio::select! {
                    biased;
                    // Nobody is left here to agree.
                    _ = self.quorum.failed() => {}
                    agreed = plane.drain() => if !agreed {
                        warn!("the quorum did not confirm the controlled shutdown in time; stopping anyway");
                    }
                }
            }
            stopped = plane.stop().await;
        }
        self.http_stop.cancel();
        self.admin_state.close();
        if let Some(task) = self.http_task.take() {
            let _ = tokio::time::timeout(HTTP_GRACE, task).await;
        }
        let quorum = self.quorum;
        let _ = self.raft.spawn(quorum.stop()).await;
        stopped
    }

    /// Ends this node as `kill -9` would: nobody is told, no log is flushed, no mark of a clean stop is written. For tests
    /// that hold several nodes in one process; only the quorum's store is closed in order, because its files must be free
    /// when this returns.
    pub async fn abort(mut self) {
        self.starting.abort();
        let _ = (&mut self.starting).await;
        if let Some(task) = self.http_task.take() {
            task.abort();
            let _ = task.await;
            self.admin_state.close();
        }
        if let Some(plane) = self.data.write().await.take() {
            let _ = tokio::task::spawn_blocking(move || plane.kill()).await;
        }
        let quorum = self.quorum;
        let _ = self.raft.spawn(quorum.stop()).await;
    }
}

async fn serve_http(
    runtime: &Threads,
    host: &str,
    port: u16,
    state: AdminState,
    stop: CancellationToken,
) -> Result<(SocketAddr, JoinHandle<()>), NodeError> {
    let address = config::host_port(host, port);
    let bind = address.clone();
    // Bound on the runtime that serves it.
    let listener = runtime.run(async move { tokio::net::TcpListener::bind(bind).await }).await?;
    let listener = listener.map_err(|source| NodeError::Http { address: address.clone(), source })?;
    let bound = listener.local_addr()?;
    let router = highwater_admin::router(state);
    let task = runtime.spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            error!(%error, "the admin API stopped");
        }
    });
    info!(address = %bound, "admin API listens");
    Ok((bound, task))
}

/// Starts the data plane with what is set on this node by then, and tells what that was.
async fn start_data(
    config: &NodeConfig,
    quorum: QuorumClient,
    incarnation: IncarnationId,
    replicas: &LocalReplicas,
    settings: Arc<NodeSettings>,
    loggers: Loggers,
) -> Result<(DataPlane, BTreeMap<String, String>), NodeError> {
    let cluster_id = formed(config, &quorum).await?;
    let image = quorum.image();
    let set = config::set_on(&image, config.node_id);
    settings.started(&image, config.node_id);
    let config = under(config, &set);
    let mut listeners = Vec::new();
    for listener in &config.listeners {
        let (host, port) = listener.bind();
        let name = config::host_port(&host, port);
        let mut found = tokio::net::lookup_host((host.as_str(), port))
            .await
            .map_err(|error| NodeError::Resolve(name.clone(), error))?;
        let none = || NodeError::Resolve(name.clone(), std::io::ErrorKind::NotFound.into());
        let bind = found.next().ok_or_else(none)?;
        listeners.push(ListenerConfig {
            name: listener.name.clone(),
            bind,
            advertised: Some(listener.advertised.clone()),
        });
    }
    let data_config = data_config(&config, cluster_id, &quorum, incarnation, settings, loggers);
    let plane = DataPlane::start(data_config, quorum, listeners).await?;
    replicas.set(plane.view());
    Ok((plane, set))
}

/// A node's configuration under what is set on it while it runs.
fn under(config: &NodeConfig, set: &BTreeMap<String, String>) -> NodeConfig {
    let (config, left_out) = config.under(set);
    for finding in left_out {
        warn!(%finding, "a setting does not go with the rest of this node's configuration; it is left out here");
    }
    config
}

/// Hands what is set on this node to the data plane whenever it changes, until either ends. `set`: what it started with.
async fn follow_settings(
    config: &NodeConfig,
    quorum: &QuorumClient,
    data: &RwLock<Option<DataPlane>>,
    mut set: BTreeMap<String, String>,
) {
    let mut images = quorum.watch();
    loop {
        let now = config::set_on(&images.borrow_and_update(), config.node_id);
        if now != set {
            let config = under(config, &now);
            let Some(plane) = &*data.read().await else { return };
            plane.adopt(&live_config(&config));
            let keys: Vec<_> = now.iter().map(|(key, value)| format!("{key}={value}")).collect();
            info!(set = keys.join(" "), "settings of this broker changed");
            set = now;
        }
        if images.changed().await.is_err() {
            return;
        }
    }
}

/// Waits until the cluster is formed and this node knows it, or is to be taken in by registering (D3); tells once if
/// that takes long (D2, D6).
async fn formed(config: &NodeConfig, quorum: &QuorumClient) -> Result<String, NodeError> {
    let mut images = quorum.watch();
    let mut to_join = quorum.cluster_to_join();
    let patience = tokio::time::sleep(config.quorum.registration_timeout);
    tokio::pin!(patience);
    let mut told = false;
    loop {
        if let Some(cluster_id) = images.borrow_and_update().cluster_id.as_deref() {
            return Ok(cluster_id.to_owned());
        }
        if let Some(cluster_id) = to_join.borrow_and_update().clone() {
            return Ok(cluster_id);
        }
        tokio::select! {
            Ok(()) = to_join.changed() => {}
            changed = images.changed() => {
                if changed.is_err() {
                    return Err(NodeError::QuorumFailed("it stopped before the cluster was formed".to_owned()));
                }
            }
            () = &mut patience, if !told => {
                told = true;
                let waiting = quorum.status().waiting.unwrap_or_default();
                warn!(
                    waiting,
                    "no metadata quorum yet; this node stays up and goes on trying: GET /v3/clusters/-/quorum shows who \
                     is missing"
                );
            }
        }
    }
}
