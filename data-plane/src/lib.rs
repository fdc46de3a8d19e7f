//! The data plane of one node: replicas, their logs, the Kafka server in front of them and the fetchers between them.
//!
//! Down: `server → handlers → partitions → replica → {replication, log} → {log_view, disk}`; a handler knows of the server
//! only where its answer goes. `reconcile`, `fetcher` and `isr_reporter` talk to `partitions` and the quorum's client;
//! `lifecycle` starts and stops them all.

pub mod cleaner;
pub mod config;
pub mod coordinator;
pub mod disk;
pub mod error;
pub mod fetch_session;
pub mod fetcher;
pub mod group;
pub mod handlers;
pub mod identity;
pub mod isr_reporter;
pub mod keeping;
pub mod lifecycle;
pub mod live;
pub mod log;
pub mod log_view;
pub mod loggers;
pub mod net;
pub mod partitions;
pub mod reconcile;
pub mod replica;
pub mod replication;
pub mod server;
pub mod suspects;
pub mod sync_pool;
pub mod view;
pub mod workers;

pub use config::{
    Boot, DataPlaneConfig, LifecycleConfig, ListenerConfig, LogConfig, ReplicationConfig, ServerConfig, TopicDefaults,
};
pub use error::DataPlaneError;
pub use live::LiveConfig;
pub use loggers::{LogLevel, Logger, Loggers};
pub use view::{NodeView, Phase, Recovery, ReplicaView};

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use highwater_quorum::QuorumClient;
use highwater_wire::ClusterId;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use coordinator::Coordinators;
use disk::FsDisk;
use fetcher::Fetchers;
use handlers::context::{Context, Sessions};
use identity::Identity;
use lifecycle::{Lifecycle, Wish};
use live::Live;
use log::LogDir;
use log::log_dir::Opening;
use net::Bound;
use partitions::{Deliveries, Edges, Hosted, Partitions, Request};
use server::metrics::ServerMetrics;
use suspects::Suspects;
use sync_pool::SyncPool;
use view::NodeState;
use workers::Workers;

/// How long connections may take to end when the broker stops.
const CONNECTIONS_END: Duration = Duration::from_secs(3);
/// Logs closed at once: each waits for its own fsyncs.
const CLOSING_THREADS: usize = 8;
/// How long the workers may take to end.
const RUNTIME_END: Duration = Duration::from_secs(2);

/// The data plane of this process. It runs on a runtime of its own (D37), so it may be started from any.
pub struct DataPlane {
    config: Arc<DataPlaneConfig>,
    live: Arc<Live>,
    /// `None` once ended.
    workers: Option<Workers>,
    partitions: Arc<Partitions>,
    identity: Arc<Identity>,
    state: Arc<NodeState>,
    view: ReplicaView,
    addresses: Vec<(String, SocketAddr)>,
    wish: watch::Sender<Wish>,
    connections: TaskTracker,
    stop_serving: CancellationToken,
    background: Vec<tokio::task::JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
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
        let config = Arc::new(config);
        if !listeners.iter().any(|listener| listener.name == config.inter_broker_listener) {
            return Err(DataPlaneError::NoInterBrokerListener {
                name: config.inter_broker_listener.clone(),
                listeners: listeners.into_iter().map(|listener| listener.name).collect(),
            });
        }
        // Before the directory is touched: a port in use must not cost the mark of a clean stop.
        let bound = listeners.iter().map(Bound::bind).collect::<Result<Vec<_>, _>>()?;
        let opening = Opening {
            cluster: ClusterId(config.cluster_id.clone()),
            broker: config.broker,
            boot_id: config.boot.id.clone(),
            boot_time_ms: config.boot.uptime_ms,
        };
        let directory = |error| DataPlaneError::Directory(Arc::new(error));
        let (dir, previous) = LogDir::open(FsDisk, &config.log_dir, &opening).map_err(directory)?;
        if let Some(doubt) = &previous.doubt {
            info!(doubt, "nothing proves that the page cache of the last process survived");
        }
        for file in &previous.damaged {
            tracing::warn!(directory = %config.log_dir.display(), file, "a checkpoint is damaged and counts as empty");
        }
        dir.write_running_marker(config.incarnation)
            .map_err(|error| DataPlaneError::Storage { path: config.log_dir.clone(), why: error.to_string().into() })?;
        let addresses = bound.iter().map(|bound| (bound.name.clone(), bound.address)).collect();
        let advertised = bound.iter().map(|bound| (bound.name.clone(), bound.advertised.clone())).collect();
        let workers = Workers::start(config.server.workers);
        let workers = workers.map_err(|error| DataPlaneError::Resources(Arc::new(error)))?;
        let runtime = workers.handle().clone();
        let (sync_pool, threads) = SyncPool::start(config.log.sync_threads)?;

        let identity = Arc::new(Identity::new(config.broker));
        let state = Arc::new(NodeState::new(identity.clone()));
        let (isr, proposals) = unbounded_channel();
        let (fetchable, wishes) = unbounded_channel();
        let (storage_failed, mut failures) = unbounded_channel();
        let log_dir_id = dir.id();
        let partitions =
            Partitions::new(Edges { isr, fetchable, storage_failed, sync_pool, dir, runtime: runtime.clone() });
        let suspects = Arc::new(Suspects::new(quorum.clone()));
        let live = Arc::new(Live::new(&LiveConfig::from(config.as_ref())));
        let coordinators = Coordinators::new(partitions.clone(), state.clone(), config.broker, config.groups.clone());
        let context = Arc::new(Context {
            identity: identity.clone(),
            cluster_id: config.cluster_id.clone(),
            inter_broker_listener: config.inter_broker_listener.clone(),
            partitions: partitions.clone(),
            images: quorum.watch(),
            quorum: quorum.clone(),
            live: live.clone(),
            settings: config.settings.clone(),
            loggers: config.loggers.clone(),
            topics: config.topics.clone(),
            producer_ids: Default::default(),
            coordinators: coordinators.clone(),
            suspects: suspects.clone(),
            sessions: parking_lot::Mutex::new(Sessions::new(config.server.fetch_sessions_max)),
            metrics: Arc::new(ServerMetrics::new()),
            state: state.clone(),
        });
        let view = ReplicaView::new(&partitions, &context, state.clone());
        let fetchers = Arc::new(Fetchers {
            partitions: partitions.clone(),
            quorum: quorum.clone(),
            identity: identity.clone(),
            suspects,
            live: live.clone(),
            shards: config.replication.fetchers.max(1),
        });
        let (wish, wishes_of_owner) = watch::channel(Wish::Serve);
        let connections = TaskTracker::new();
        let stop_serving = CancellationToken::new();
        let lifecycle = Lifecycle {
            config: config.clone(),
            quorum: quorum.clone(),
            identity: identity.clone(),
            partitions: partitions.clone(),
            context,
            state: state.clone(),
            previous,
            log_dir_id,
            listeners: bound,
            advertised,
            wish: wishes_of_owner,
            connections: connections.clone(),
            stop_serving: stop_serving.clone(),
        };
        let failing = state.clone();
        let path = config.log_dir.clone();
        let background = vec![
            runtime.spawn(partitions.clone().run_ticker()),
            runtime.spawn(coordinators.clone().run(quorum.watch())),
            runtime.spawn(coordinators.run_ticker()),
            runtime.spawn(keeping::run(partitions.clone(), live.log())),
            runtime.spawn(cleaner::run(partitions.clone(), live.log())),
            runtime.spawn(isr_reporter::run(proposals, partitions.clone(), quorum, identity.clone())),
            runtime.spawn(fetcher::run(fetchers, wishes)),
            runtime.spawn(async move {
                if let Some(why) = failures.recv().await {
                    failing.fail(DataPlaneError::Storage { path, why });
                }
            }),
            runtime.spawn(lifecycle.run()),
        ];
        Ok(Self {
            config,
            live,
            workers: Some(workers),
            partitions,
            identity,
            state,
            view,
            addresses,
            wish,
            connections,
            stop_serving,
            background,
            threads,
        })
    }

    /// What others in this process may look at.
    pub fn view(&self) -> ReplicaView {
        self.view.clone()
    }

    /// Takes another configuration over, as far as a running broker can.
    pub fn adopt(&self, config: &LiveConfig) {
        self.live.adopt(config);
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
        let mut phase = self.state.phase.subscribe();
        tokio::select! {
            reached = phase.wait_for(|phase| *phase >= Phase::Serving) => {
                reached.map(drop).map_err(|_| DataPlaneError::Stopped)
            }
            error = self.failed() => Err(error),
        }
    }

    /// Waits until something stops this broker by itself: a failed disk, a registration refused for ever.
    pub async fn failed(&self) -> DataPlaneError {
        let mut failure = self.state.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await;
        failed.ok().and_then(|error| error.clone()).unwrap_or(DataPlaneError::Stopped)
    }

    /// Controlled shutdown (R174): leaderships move away while it goes on serving. Bounded by
    /// `controlled.shutdown.timeout` (D34); `true` when the quorum agreed that it may stop.
    pub async fn drain(&self) -> bool {
        self.state.enter(Phase::Draining, "moving leaderships to other brokers");
        lifecycle::drain_replicas(&self.partitions);
        self.wish.send_replace(Wish::Drain);
        let mut may_stop = self.state.may_stop.subscribe();
        let agreed =
            tokio::time::timeout(self.config.lifecycle.controlled_shutdown_timeout, may_stop.wait_for(|may| *may));
        let agreed = agreed.await.is_ok_and(|waited| waited.is_ok());
        if !agreed {
            warn!("the quorum did not agree to the shutdown in time; stopping anyway");
        }
        agreed
    }

    /// Stops serving and fetching, flushes everything and marks the directory clean (R29).
    pub async fn stop(mut self) -> Stopped {
        self.stop_serving.cancel();
        self.connections.close();
        if tokio::time::timeout(CONNECTIONS_END, self.connections.wait()).await.is_err() {
            warn!("some connections did not end in time");
        }
        self.end_background().await;
        let (partitions, epoch) = (self.partitions.clone(), self.identity.epoch());
        let closed = tokio::task::spawn_blocking(move || {
            let checkpointed = keeping::checkpoint_all(&partitions);
            let closed = close_replicas(&partitions);
            checkpointed.and(closed)?;
            partitions.dir().close_cleanly(epoch)
        });
        let stopped = match closed.await {
            Ok(Ok(())) => Stopped::Cleanly,
            Ok(Err(error)) => {
                warn!(%error, "the log directory is not marked clean; the next start recovers");
                Stopped::Uncleanly
            }
            Err(_) => Stopped::Uncleanly,
        };
        self.end();
        stopped
    }

    /// Stops at once as `kill -9` would: nothing is flushed, no mark is written; so does a drop. For tests. Blocks for a
    /// moment, until the directory is free again.
    pub fn kill(mut self) {
        self.end();
    }

    async fn end_background(&mut self) {
        for task in self.background.drain(..) {
            task.abort();
            let _ = task.await;
        }
    }

    /// Ends what still runs, and lets go of the directory.
    fn end(&mut self) {
        let Some(workers) = self.workers.take() else { return };
        self.stop_serving.cancel();
        for task in self.background.drain(..) {
            task.abort();
        }
        self.state.enter(Phase::Stopped, "the broker was stopped");
        self.partitions.sync_pool().abandon();
        let (partitions, threads) = (self.partitions.clone(), std::mem::take(&mut self.threads));
        // Not here: a runtime may not be waited for on another one.
        let ended = std::thread::spawn(move || {
            workers.end(RUNTIME_END);
            for thread in threads {
                let _ = thread.join();
            }
            partitions.clear();
        });
        let _ = ended.join();
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.end();
    }
}

/// Stops every replica, so that who waits is answered, and closes the logs behind their last syncs, several at once.
fn close_replicas(partitions: &Arc<Partitions>) -> io::Result<()> {
    let now = partitions.clock.now();
    let all = partitions.all();
    let mut deliveries = Deliveries::new();
    for hosted in &all {
        partitions.enter_hosted(hosted, Request::Stop, now, &mut deliveries);
    }
    partitions.deliver(&mut deliveries);
    partitions.sync_pool().settle();
    let per_thread = all.len().div_ceil(CLOSING_THREADS).max(1);
    std::thread::scope(|scope| {
        let close = |some: &[Arc<Hosted>]| some.iter().try_for_each(|hosted| hosted.close_cleanly());
        let threads: Vec<_> = all.chunks(per_thread).map(|some| scope.spawn(move || close(some))).collect();
        let closed =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())));
        closed.fold(Ok(()), Result::and)
    })
}
