//! The life of this broker: register, recover, be unfenced, serve, drain (R28, R29, R166–R174, D9–D12, D34).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater_quorum::controller::{Answer, Command, Refusal, RegisterBroker};
use highwater_quorum::image::{BrokerState, Endpoint};
use highwater_quorum::{Heartbeat, HeartbeatAnswer, QuorumError};
use highwater_quorum::{ImageVersion, MetadataImage, QuorumClient};
use highwater_wire::{BrokerEpoch, BrokerId, DirectoryId, Millis};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::DataPlaneConfig;
use crate::error::DataPlaneError;
use crate::handlers::context::Context;
use crate::identity::Identity;
use crate::log::log_dir::Previous;
use crate::net::Bound;
use crate::partitions::{Deliveries, Partitions, Request};
use crate::reconcile::Reconciler;
use crate::server;
use crate::view::{NodeState, Phase};

mod images;
mod losses;
mod watermarks;

use losses::Losses;
use watermarks::Watermarks;

/// How long one attempt to register may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause while the quorum has no leader: at the start of a cluster there soon is one.
const NO_LEADER_RETRY: Duration = Duration::from_millis(50);
/// Between heartbeats that wait for something: to be unfenced, to be let go.
const EAGER: Duration = Duration::from_millis(50);
/// After a heartbeat that was not answered.
const UNANSWERED_RETRY: Duration = Duration::from_millis(250);

/// What the owner of the data plane wants of the lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Serve,
    Drain,
}

/// Everything that the lifecycle starts or tells.
pub(crate) struct Lifecycle {
    pub config: Arc<DataPlaneConfig>,
    pub quorum: QuorumClient,
    pub identity: Arc<Identity>,
    pub partitions: Arc<Partitions>,
    pub context: Arc<Context>,
    pub state: Arc<NodeState>,
    pub previous: Previous,
    pub log_dir_id: DirectoryId,
    pub listeners: Vec<Bound>,
    pub advertised: Vec<(String, Endpoint)>,
    pub wish: watch::Receiver<Wish>,
    pub connections: TaskTracker,
    pub stop_serving: CancellationToken,
}

impl Lifecycle {
    /// Runs until the task is aborted, or until something stops this broker.
    pub async fn run(mut self) {
        if let Err(error) = self.live().await {
            self.state.fail(error);
        }
    }

    async fn live(&mut self) -> Result<(), DataPlaneError> {
        let epoch = self.register().await?;
        self.state.enter(Phase::CatchingUp, "waiting until the local metadata holds this broker's registration");
        let image = self.caught_up(epoch).await;
        self.state.enter(Phase::LogRecovery, "opening the logs");
        let lag_max = Millis(millis(self.config.replication.replica_lag_max));
        let expiration = millis(self.config.log.producer_id_expiration);
        let mut reconciler = Reconciler::new(self.partitions.clone(), self.identity.clone(), lag_max, expiration);
        let began = Instant::now();
        let lost = reconciler.first(image, &self.state.recovery).await.map_err(|error| self.storage(&error))?;
        info!(
            broker = %self.identity.broker, %epoch, replicas = self.partitions.len(), lost = lost.len(),
            took_ms = millis(began.elapsed()), "logs are open"
        );
        self.state.enter(Phase::Fenced, "waiting to be unfenced by the metadata quorum");
        let changed = Arc::new(Notify::new());
        let following = images::Follower {
            reconciler,
            images: self.quorum.watch(),
            identity: self.identity.clone(),
            state: self.state.clone(),
            log_dir: self.config.log_dir.clone(),
            changed: changed.clone(),
        };
        let watermarks = Watermarks::new(self.identity.broker, self.partitions.clone(), self.quorum.watch());
        let mut beating = Beating { lost: Losses::new(lost), watermarks, leader: None };
        tokio::select! {
            failed = following.run() => failed,
            failed = self.beat(&mut beating, &changed) => failed,
        }
    }

    fn storage(&self, error: &std::io::Error) -> DataPlaneError {
        DataPlaneError::Storage { path: self.config.log_dir.clone(), why: error.to_string().into() }
    }

    /// Until the quorum has a registration of this process (R166). A conflict with a process that may still live is
    /// tried again (D9); what can never succeed ends this one.
    async fn register(&self) -> Result<BrokerEpoch, DataPlaneError> {
        let listeners = self.advertised.iter().cloned().collect();
        let config = &self.config;
        let mut registration = RegisterBroker {
            broker: config.broker,
            cluster_id: config.cluster_id.clone(),
            incarnation: config.incarnation,
            listeners,
            inter_broker_listener: config.inter_broker_listener.clone(),
            controller_url: config.controller_url.clone(),
            admin_url: config.admin_url.clone(),
            rack: config.rack.clone(),
            log_dirs: vec![self.log_dir_id],
            metadata_dir: config.metadata_dir,
            features: Default::default(),
            version: config.version.clone(),
            claim: self.previous.claim(),
            previous_is_dead: false,
            time: self.partitions.clock.wall(),
        };
        let mut said = String::new();
        loop {
            registration.time = self.partitions.clock.wall();
            let command = Command::RegisterBroker(registration.clone());
            let (why, pause) = match self.quorum.propose(command, ATTEMPT).await {
                Ok((Answer::Registered { epoch }, _)) => {
                    self.identity.registered(epoch);
                    let noted = self.partitions.dir().registered(config.incarnation);
                    noted.map_err(|error| self.storage(&error))?;
                    info!(broker = %config.broker, %epoch, incarnation = %config.incarnation, "registered");
                    return Ok(epoch);
                }
                Ok((answer, _)) => {
                    (format!("an answer of another kind: {answer:?}"), config.lifecycle.registration_retry)
                }
                Err(QuorumError::Refused(
                    refusal @ (Refusal::InconsistentClusterId { .. } | Refusal::InvalidRegistration(_)),
                )) => {
                    return Err(DataPlaneError::Registration { broker: config.broker, source: refusal.into() });
                }
                Err(error @ QuorumError::NoLeader { .. }) => (error.to_string(), NO_LEADER_RETRY),
                Err(error) => (error.to_string(), config.lifecycle.registration_retry),
            };
            if why != said {
                info!(broker = %config.broker, why, "not registered yet; trying again");
                said.clone_from(&why);
            }
            self.state.waits_for(format!("registering: {why}"));
            sleep(pause).await;
        }
    }

    /// The first image that holds the registration of this process (R28).
    async fn caught_up(&self, epoch: BrokerEpoch) -> Arc<MetadataImage> {
        let version = ImageVersion(u64::try_from(epoch.0).unwrap_or(0));
        loop {
            if let Ok(image) = self.quorum.reached(version, ATTEMPT).await {
                return image;
            }
            sleep(NO_LEADER_RETRY).await;
        }
    }

    /// Heartbeats, and what their answers ask for. Ends only with a failure.
    async fn beat(&mut self, beating: &mut Beating, changed: &Notify) -> Result<(), DataPlaneError> {
        self.open_listeners(|name, config| name == config.inter_broker_listener && config_has_others(name, config))?;
        loop {
            let wish = *self.wish.borrow_and_update();
            let heartbeat = self.heartbeat(beating, wish);
            let sent = Instant::now();
            let pause = match self.quorum.heartbeat(heartbeat).await {
                Ok(answer) => self.answered(beating, wish, &answer)?,
                Err(QuorumError::Refused(refusal @ (Refusal::StaleBrokerEpoch { .. } | Refusal::UnknownBroker(_)))) => {
                    warn!(broker = %self.identity.broker, %refusal, "the registration of this broker is gone; registering again");
                    self.register().await?;
                    Duration::ZERO
                }
                Err(error) => {
                    beating.watermarks.forget();
                    self.state.waits_for(format!("heartbeat: {error}"));
                    UNANSWERED_RETRY.min(self.config.lifecycle.heartbeat_interval)
                }
            };
            tokio::select! {
                () = sleep_until(sent + pause) => {}
                () = changed.notified() => {}
                () = beating.watermarks.moved() => {}
                _ = self.wish.changed() => {}
            }
        }
    }

    /// Takes an answer; gives the pause before the next heartbeat.
    fn answered(
        &mut self,
        beating: &mut Beating,
        wish: Wish,
        answer: &HeartbeatAnswer,
    ) -> Result<Duration, DataPlaneError> {
        let now = self.partitions.clock.mono();
        self.state.heartbeat_answered.store(now.0, Ordering::Release);
        let active = answer.state == BrokerState::Active;
        beating.lost.heard(answer.state);
        let was = self.state.unfenced.swap(active, Ordering::AcqRel);
        if active && !was {
            info!(broker = %self.identity.broker, "unfenced");
            self.open_listeners(|_, _| true)?;
            if wish == Wish::Serve {
                self.state.enter(Phase::Serving, "");
            }
        } else if was && answer.state == BrokerState::Fenced {
            warn!(broker = %self.identity.broker, "fenced by the metadata quorum; asking to be let in again");
            self.state.waits_for("fenced: the metadata quorum missed the heartbeats of this broker".to_owned());
        }
        if wish == Wish::Drain {
            if answer.should_shutdown {
                self.state.may_stop.send_replace(true);
            }
            return Ok(EAGER);
        }
        Ok(if active { self.config.lifecycle.heartbeat_interval } else { EAGER })
    }

    /// Opens the listeners that `which` names and that are not open yet.
    fn open_listeners(&mut self, which: impl Fn(&str, &OpenListeners) -> bool) -> Result<(), DataPlaneError> {
        let names: Vec<_> = self.advertised.iter().map(|(name, _)| name.clone()).collect();
        let known = OpenListeners { inter_broker_listener: self.config.inter_broker_listener.clone(), names };
        let (open, wait): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.listeners).into_iter().partition(|bound| which(&bound.name, &known));
        self.listeners = wait;
        for bound in open {
            let name: Arc<str> = bound.name.as_str().into();
            let listener = bound.listen()?;
            let (context, tasks) = (self.context.clone(), self.connections.clone());
            self.connections.spawn(server::accept(listener, name, context, tasks, self.stop_serving.clone()));
        }
        Ok(())
    }

    fn heartbeat(&self, beating: &mut Beating, wish: Wish) -> Heartbeat {
        let leader = self.quorum.leader();
        if std::mem::replace(&mut beating.leader, leader) != leader {
            // It may not have heard all that its predecessor was told.
            beating.watermarks.forget();
        }
        let drained = wish == Wish::Drain && !self.partitions.all().iter().any(|hosted| hosted.is_leader());
        Heartbeat {
            broker: self.identity.broker,
            epoch: self.identity.epoch().unwrap_or(BrokerEpoch(-1)),
            incarnation: self.config.incarnation,
            version: self.state.acted_on(),
            want_fence: false,
            want_shutdown: wish == Wish::Drain,
            drained,
            lost: beating.lost.told(),
            watermarks: beating.watermarks.take(),
        }
    }
}

/// What heartbeats carry until it was taken.
struct Beating {
    lost: Losses,
    watermarks: Watermarks,
    /// The raft leader that was told last.
    leader: Option<BrokerId>,
}

struct OpenListeners {
    inter_broker_listener: String,
    names: Vec<String>,
}

/// A listener for brokers alone may open before this broker is unfenced.
fn config_has_others(name: &str, known: &OpenListeners) -> bool {
    known.names.iter().any(|other| other != name)
}

/// Tells every replica that this broker drains (R146).
pub(crate) fn drain_replicas(partitions: &Arc<Partitions>) {
    let now = partitions.clock.now();
    let mut deliveries = Deliveries::new();
    for hosted in partitions.all() {
        partitions.enter_hosted(&hosted, Request::Drain, now, &mut deliveries);
    }
    partitions.deliver(&mut deliveries);
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
