//! What the admin API, health checks and tests may know of this node's data plane, and the little they may ask of it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use highwater_quorum::ImageVersion;
use highwater_wire::group_records::OffsetValue;
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, Offset, Timestamp, TopicId, TopicPartition};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::coordinator::Promise;
use crate::error::DataPlaneError;
use crate::group::shard::Commit;
use crate::group::status::GroupStatus;
use crate::group::{Answer, ClassicGroup, Out, Shard, Speaker};
use crate::handlers::context::Context;
use crate::handlers::delete_records::{self, Refused};
use crate::handlers::describe_log_dirs::{self, LogDirStatus, Space};
use crate::identity::Identity;
use crate::partitions::traffic::TopicCounts;
use crate::partitions::{Partitions, Request};
use crate::replica::message::{Isolation, ListOffsets, OffsetSpec, OffsetsCaller, ReplicaReply};
use crate::replica::status::ReplicaStatus;

/// How long a change of a group may take.
const GROUP_WRITE: Duration = Duration::from_secs(5);

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
    /// Fetches that wait for news.
    pub waiting_fetches: usize,
    /// Produce requests that wait for the high watermark.
    pub waiting_produces: usize,
}

/// A window on the replicas hosted here. Cheap to clone, usable from any thread; each call locks one partition at a
/// time for microseconds. After the data plane has stopped it shows nothing.
#[derive(Clone)]
pub struct ReplicaView {
    partitions: Weak<Partitions>,
    context: Weak<Context>,
    state: Arc<NodeState>,
}

impl ReplicaView {
    pub(crate) fn new(partitions: &Arc<Partitions>, context: &Arc<Context>, state: Arc<NodeState>) -> Self {
        Self { partitions: Arc::downgrade(partitions), context: Arc::downgrade(context), state }
    }

    /// The node as a whole.
    pub fn node(&self) -> NodeView {
        let partitions = self.partitions.upgrade();
        let context = self.context.upgrade();
        let leading = partitions.as_ref().map_or(0, |partitions| {
            let all = partitions.all();
            all.iter().filter(|hosted| hosted.is_leader()).count()
        });
        let since = self.state.heartbeat_answered.load(Ordering::Acquire);
        let age = partitions.as_ref().filter(|_| since > 0).map(|partitions| partitions.clock.mono().0 - since);
        NodeView {
            broker: self.state.identity.broker,
            phase: *self.state.phase.borrow(),
            why: self.state.why.lock().clone(),
            epoch: self.state.identity.epoch(),
            unfenced: self.state.unfenced.load(Ordering::Acquire),
            heartbeat_age_ms: age,
            recovery: *self.state.recovery.borrow(),
            acted_on: self.state.acted_on(),
            replicas: partitions.as_ref().map_or(0, |partitions| partitions.len()),
            leading,
            connections: context.as_ref().map_or(0, |context| context.metrics.connections()),
            fetch_sessions: context.as_ref().map_or(0, |context| context.sessions.lock().table.len()),
            waiting_fetches: context.as_ref().map_or(0, |context| context.metrics.waiting_fetches()),
            waiting_produces: partitions.as_ref().map_or(0, |partitions| partitions.tickets.len()),
        }
    }

    /// What went through each topic with a replica here, since it was opened.
    pub fn topics(&self) -> Vec<(TopicId, TopicCounts)> {
        self.partitions.upgrade().map(|partitions| partitions.traffic.topics()).unwrap_or_default()
    }

    /// How long each worker of the data plane has been busy since it started.
    pub fn busy(&self) -> Vec<Duration> {
        self.partitions.upgrade().map(|partitions| crate::workers::busy(&partitions.runtime())).unwrap_or_default()
    }

    /// The directory of the logs.
    pub fn log_dir(&self) -> Option<PathBuf> {
        self.partitions.upgrade().map(|partitions| partitions.dir().path().to_path_buf())
    }

    /// The file system it lies on; `None` when the system does not say.
    pub fn log_dir_space(&self) -> Option<Space> {
        describe_log_dirs::space(&self.log_dir()?)
    }

    /// Follows the phase.
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.state.phase.subscribe()
    }

    /// One hosted replica; `None` when it is not hosted here (or not yet opened).
    pub fn status(&self, at: TopicPartition) -> Option<ReplicaStatus> {
        match self.partitions.upgrade()?.enter(at, Request::Status)? {
            ReplicaReply::Status(status) => Some(*status),
            _ => None,
        }
    }

    /// All hosted replicas, in order of topic id and partition.
    pub fn all(&self) -> Vec<(TopicPartition, ReplicaStatus)> {
        let Some(partitions) = self.partitions.upgrade() else { return Vec::new() };
        let all = partitions.all().into_iter();
        all.filter_map(|hosted| Some((hosted.at, self.status(hosted.at)?))).collect()
    }

    /// Deletes the records of a partition led here below `before` (-1: the high watermark), and waits until every live
    /// replica has; the low watermark then. As DeleteRecords does (R274, D33).
    ///
    /// # Errors
    /// Those of DeleteRecords: not the leader 6, outside the log 1, compacted 44, not all in time 7.
    pub async fn delete_records(&self, at: TopicPartition, before: i64, timeout: Duration) -> Result<i64, Refused> {
        let context = self.context.upgrade().ok_or(ErrorCode::NotLeaderOrFollower)?;
        let before = delete_records::before(before)?;
        let results = delete_records::delete(&context, &[(at, before)], timeout).await;
        let result = results.into_iter().next().unwrap_or_else(|| Err(ErrorCode::NotLeaderOrFollower.into()));
        result.map(|low_watermark| low_watermark.0)
    }

    /// The groups that this broker coordinates, in the order of their ids; `name`: that one alone.
    ///
    /// # Errors
    /// 14: it does not know them all yet. 16: it has stopped, or another one coordinates that group.
    pub fn groups(&self, name: Option<&str>) -> Result<Vec<GroupStatus>, ErrorCode> {
        let context = self.context.upgrade().ok_or(ErrorCode::NotCoordinator)?;
        match name {
            Some(name) => {
                let told = |shard: &mut Shard, _, _: &mut Out| shard.group(name).map(ClassicGroup::status);
                Ok(context.coordinators.tell(&context.image(), name, told)?.into_iter().collect())
            }
            None => {
                let told = context.coordinators.tell_all(|shard| shard.groups().map(ClassicGroup::status).collect())?;
                let mut all: Vec<GroupStatus> = told.into_iter().flat_map(|some: Vec<GroupStatus>| some).collect();
                all.sort_by(|a, b| a.id.cmp(&b.id));
                Ok(all)
            }
        }
    }

    /// Deletes a group that nobody is in, with its positions.
    ///
    /// # Errors
    /// 68: somebody is in it. 69: there is none. 7, 14, 15, 16: ask again.
    pub async fn delete_group(&self, name: &str) -> Result<(), ErrorCode> {
        let context = self.context.upgrade().ok_or(ErrorCode::NotCoordinator)?;
        let asked =
            context.coordinators.ask(&context.image(), name, |shard, token, _, out| shard.delete(token, name, out));
        let (asked, promise) = asked?;
        asked?;
        stored(promise).await
    }

    /// Moves the positions of a group that nobody is in.
    ///
    /// # Errors
    /// 68: somebody is in it. 69: there is none. 7, 14, 15, 16: ask again.
    pub async fn reset_offsets(&self, name: &str, positions: &[(String, i32, i64)]) -> Result<(), ErrorCode> {
        let context = self.context.upgrade().ok_or(ErrorCode::NotCoordinator)?;
        let nobody = Speaker { member_id: String::new(), instance: None, generation: -1 };
        let asked = context.coordinators.ask(&context.image(), name, |shard, token, now, out| {
            let group = shard.group(name).ok_or(ErrorCode::GroupIdNotFound)?;
            if !group.is_deserted() {
                return Err(ErrorCode::NonEmptyGroup);
            }
            let commit = |(topic, partition, offset): &(String, i32, i64)| Commit {
                topic: topic.clone(),
                partition: *partition,
                value: OffsetValue {
                    offset: *offset,
                    leader_epoch: -1,
                    metadata: String::new(),
                    committed_at: now.wall,
                    expires_at: None,
                },
            };
            shard.commit(token, name, &nobody, positions.iter().map(commit).collect(), now, out);
            Ok(())
        });
        let (asked, promise) = asked?;
        asked?;
        stored(promise).await
    }

    /// The log directories of this broker; `None` after it has stopped.
    pub async fn log_dirs(&self) -> Option<Vec<LogDirStatus>> {
        let partitions = self.partitions.upgrade()?;
        Some(vec![describe_log_dirs::status(&partitions, None).await])
    }

    /// First record below the high watermark with a timestamp at or after `from`, as ListOffsets answers it; leader only.
    ///
    /// # Errors
    /// Those of ListOffsets: not hosted or not the leader 6, watermark not known yet 78, disk failed 56.
    pub fn offset_for_timestamp(
        &self,
        at: TopicPartition,
        from: Timestamp,
    ) -> Result<Option<(Offset, Timestamp)>, ErrorCode> {
        let question = ListOffsets {
            caller: OffsetsCaller::Consumer(Isolation::ReadUncommitted),
            leader_epoch: None,
            spec: OffsetSpec::AtOrAfter(from),
        };
        let partitions = self.partitions.upgrade().ok_or(ErrorCode::NotLeaderOrFollower)?;
        match partitions.enter(at, Request::ListOffsets(question)) {
            Some(ReplicaReply::ListedOffset(listed)) => Ok(listed.offset.map(|offset| (offset, listed.timestamp))),
            Some(ReplicaReply::Refused(refusal)) => Err(refusal.code()),
            Some(_) | None => Err(ErrorCode::NotLeaderOrFollower),
        }
    }
}

/// What came of something that the log of a group was to take.
async fn stored(promise: Promise) -> Result<(), ErrorCode> {
    match promise.within(GROUP_WRITE).await? {
        Answer::Stored(stored) => stored,
        Answer::Joined(_) | Answer::Synced(_) => Err(ErrorCode::UnknownServerError),
    }
}

/// What the lifecycle tells and the view shows.
pub(crate) struct NodeState {
    pub identity: Arc<Identity>,
    pub phase: watch::Sender<Phase>,
    pub recovery: watch::Sender<Recovery>,
    pub why: Mutex<String>,
    pub unfenced: AtomicBool,
    /// Monotonic milliseconds; 0: never.
    pub heartbeat_answered: AtomicU64,
    acted_on: AtomicU64,
    /// Somebody may wait for the next image to be acted on.
    acted: Notify,
    /// `true`: the quorum agreed that this broker may stop.
    pub may_stop: watch::Sender<bool>,
    /// What stopped this broker by itself.
    pub failure: watch::Sender<Option<DataPlaneError>>,
}

impl NodeState {
    pub fn new(identity: Arc<Identity>) -> Self {
        Self {
            identity,
            phase: watch::Sender::new(Phase::Registering),
            recovery: watch::Sender::new(Recovery::default()),
            why: Mutex::default(),
            unfenced: AtomicBool::new(false),
            heartbeat_answered: AtomicU64::new(0),
            acted_on: AtomicU64::new(0),
            acted: Notify::new(),
            may_stop: watch::Sender::new(false),
            failure: watch::Sender::new(None),
        }
    }

    /// The newest image that the replicas were told.
    pub fn acted_on(&self) -> ImageVersion {
        ImageVersion(self.acted_on.load(Ordering::Acquire))
    }

    /// The replicas were told an image, and what it asks for is open.
    pub fn has_acted_on(&self, version: ImageVersion) {
        self.acted_on.store(version.0, Ordering::Release);
        self.acted.notify_waiters();
    }

    /// Waits for the next image to be acted on, unless `enough` holds before.
    pub async fn next_acted_on(&self, enough: impl Fn() -> bool) {
        let mut acted = std::pin::pin!(self.acted.notified());
        acted.as_mut().enable();
        if !enough() {
            acted.await;
        }
    }

    /// Enters a phase; `why`: what it waits for.
    pub fn enter(&self, phase: Phase, why: &str) {
        why.clone_into(&mut self.why.lock());
        self.phase.send_replace(phase);
    }

    /// What it waits for, within a phase.
    pub fn waits_for(&self, why: String) {
        *self.why.lock() = why;
    }

    /// Stops this broker; the first failure counts.
    pub fn fail(&self, error: DataPlaneError) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            if first {
                // Whatever ended the quorum on this node says so itself.
                if !matches!(error, DataPlaneError::Stopped) {
                    tracing::error!(%error, "the data plane cannot go on");
                }
                *failure = Some(error);
            }
            first
        });
    }
}
