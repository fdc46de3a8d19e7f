//! The door to the quorum for everybody on this node: propose here or forward to the raft leader, and read the image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater_wire::{BrokerEpoch, BrokerId, IncarnationId, Timestamp, TopicId, TopicPartition};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ambient::{random_seed, random_topic_id, wall_clock};
use crate::controller::{
    AlterConfigs, Answer, Command, ConfigAction, ConfigOperation, ConfigResource, KnownWatermark, RULE_VERSION,
    Refusal, decide,
};
use crate::duty;
use crate::error::QuorumError;
use crate::flaws::{Flaw, planted};
use crate::image::events::EventId;
use crate::image::topic_config::check_lengths;
use crate::image::{BrokerState, ImageVersion, MetadataImage};
use crate::planner::{plan_growth, plan_topic};
use crate::raft::{EventPage, LeaderChanges, Node, ProposeRequest, TransferRequest, VoterRequest, WatermarkReport};
use crate::status::QuorumStatus;
use crate::voters::{VoterChange, VoterChangeStatus};

/// A topic as asked for by a client, before placement (R179, D18, D19).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct TopicSpec {
    pub name: String,
    /// `None`: `num.partitions`.
    pub partitions: Option<i32>,
    /// `None`: `default.replication.factor`, capped at the active brokers.
    pub replication_factor: Option<i16>,
    /// Explicit replicas by partition number; with it the two above must be `None`.
    pub assignments: BTreeMap<i32, Vec<BrokerId>>,
    pub configs: BTreeMap<String, String>,
    /// Check all, change nothing.
    pub validate_only: bool,
}

/// What was created (or would be).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedTopic {
    /// The zero id after `validate_only`.
    pub id: TopicId,
    pub partitions: i32,
    pub replication_factor: i16,
    /// A remark for the caller, such as "replication factor capped at 1: one broker is present".
    pub note: Option<String>,
}

/// More partitions for a topic, as asked for by a client, before placement (R186, D18).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct PartitionsSpec {
    pub topic: String,
    /// How many partitions the topic is to have in all.
    pub partitions: i32,
    /// Explicit replicas of the new partitions, in order, preferred leader first; `None`: they are placed.
    pub assignments: Option<Vec<Vec<BrokerId>>>,
    /// Check all, change nothing.
    pub validate_only: bool,
}

/// A change of configuration as asked for (R187); see [`AlterConfigs`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigChange {
    pub resource: ConfigResource,
    /// Keys that are not named go back to their defaults.
    pub replace: bool,
    pub operations: Vec<ConfigOperation>,
    /// What the caller believes to be set on the resource.
    pub expected: Option<BTreeMap<String, String>>,
}

impl ConfigChange {
    /// Whether it could be made on this image.
    ///
    /// # Errors
    /// What it would be refused for, and texts that are too long.
    pub fn check(&self, image: &MetadataImage) -> Result<(), Refusal> {
        let given = self.operations.iter().map(|operation| {
            let value = match &operation.action {
                ConfigAction::Set(value) | ConfigAction::Append(value) | ConfigAction::Subtract(value) => {
                    value.as_str()
                }
                ConfigAction::Delete => "",
            };
            (operation.key.as_str(), value)
        });
        check_lengths(given).map_err(|faults| match self.resource {
            ConfigResource::Topic(_) => Refusal::InvalidTopicConfigs(faults),
            ConfigResource::Broker(_) | ConfigResource::Brokers => Refusal::InvalidBrokerConfigs(faults),
        })?;
        let command = self.clone().into_command(Timestamp::NONE);
        decide(image, image.version.0 + 1, RULE_VERSION, &command).map(drop)
    }

    fn into_command(self, time: Timestamp) -> Command {
        let Self { resource, replace, operations, expected } = self;
        Command::AlterConfigs(AlterConfigs { resource, replace, operations, expected, time })
    }
}

/// What a broker says of itself every `broker.heartbeat.interval.ms` and when something changed (R170, D11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
    pub incarnation: IncarnationId,
    /// Its image has reached this.
    pub version: ImageVersion,
    /// Not ready to serve yet.
    pub want_fence: bool,
    pub want_shutdown: bool,
    /// Leads nothing any more (its data plane has let go of every leadership).
    pub drained: bool,
    /// Partitions where recovery found less than it must; sent until unfenced (D10).
    pub lost: Vec<TopicPartition>,
    /// Changed watermarks of led partitions whose ISR is not full (D12), bounded; told to every voter.
    pub watermarks: Vec<KnownWatermark>,
}

/// R170.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// As the answering raft leader has it applied.
    pub state: BrokerState,
    pub caught_up: bool,
    /// The broker may stop now (R174).
    pub should_shutdown: bool,
    /// The raft leader's image.
    pub version: ImageVersion,
}

/// Handle to the quorum of this process. Cheap to clone; usable from any tokio runtime and from none: calls run on the
/// quorum's own runtime.
#[derive(Clone)]
pub struct QuorumClient {
    node: Arc<Node>,
    runtime: tokio::runtime::Handle,
}

/// A heartbeat is answered within this, or not at all.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);
const PRODUCER_IDS_TIMEOUT: Duration = Duration::from_secs(5);
/// Ids in one block (R67).
const PRODUCER_IDS_PER_BLOCK: u32 = 1_000;

impl QuorumClient {
    pub(crate) fn new(node: Arc<Node>, runtime: tokio::runtime::Handle) -> Self {
        Self { node, runtime }
    }

    /// Runs `work` on the quorum's runtime, where its timers and connections live.
    async fn run<T, F>(&self, work: impl FnOnce(Arc<Node>) -> F) -> Result<T, QuorumError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, QuorumError>> + Send + 'static,
    {
        let done = self.runtime.spawn(work(Arc::clone(&self.node))).await;
        done.unwrap_or_else(|_| Err(QuorumError::Stopped("its runtime ended".to_owned())))
    }

    /// The newest image applied here.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.node.image()
    }

    /// Wakes at each publication.
    pub fn watch(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.node.images.clone()
    }

    /// Up to `limit` events behind `after`, or a few more, from this node's journal. Never waits for anything but the disk.
    ///
    /// # Errors
    /// `Stopped`: the journal cannot be read.
    pub fn events_after(&self, after: EventId, limit: usize) -> Result<EventPage, QuorumError> {
        self.node.journal.page(after, limit).map_err(|error| QuorumError::Stopped(error.to_string()))
    }

    /// The last place in the order of events that this node's journal no longer has.
    pub fn events_floor(&self) -> EventId {
        self.node.journal.floor()
    }

    /// Wakes when entries were applied and their events can be read; holds the index of the last one.
    pub fn events_watch(&self) -> watch::Receiver<u64> {
        self.node.journal.looked()
    }

    /// Wakes when the raft leader changes, as far as this node knows.
    pub fn leader_changes(&self) -> LeaderChanges {
        self.node.leader_changes()
    }

    /// Waits until the image here has reached `version`.
    ///
    /// # Errors
    /// `TimedOut`; `Stopped` when nothing will be published any more.
    pub async fn reached(&self, version: ImageVersion, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError> {
        self.run(move |node| async move { node.reached(version, timeout).await }).await
    }

    /// Proposes here or forwards; returns when the entry is applied *here too* (D18), with its index.
    ///
    /// # Errors
    /// `Refused`: a rule said no. `NoLeader`: nothing was proposed. `TimedOut`: perhaps applied; a command that may be
    /// repeated without harm has been, until `timeout`.
    pub async fn propose(&self, command: Command, timeout: Duration) -> Result<(Answer, u64), QuorumError> {
        self.run(move |node| async move { propose(&node, command, timeout).await }).await
    }

    /// Places and creates a topic: the one door for HTTP and Kafka (D18).
    ///
    /// # Errors
    /// As [`Self::propose`]. After `TimedOut` the topic may exist.
    pub async fn create_topic(&self, spec: TopicSpec, timeout: Duration) -> Result<CreatedTopic, QuorumError> {
        self.run(move |node| async move { create_topic(&node, &spec, timeout).await }).await
    }

    /// Places and adds partitions to a topic: the one door for HTTP and Kafka (D18). A large growth becomes visible in
    /// steps; to repeat it after a failure is harmless and goes on from what is there. Returns the topic's id.
    ///
    /// # Errors
    /// As [`Self::propose`]. After `TimedOut` some or all of the partitions may exist.
    pub async fn add_partitions(&self, spec: PartitionsSpec, timeout: Duration) -> Result<TopicId, QuorumError> {
        self.run(move |node| async move { add_partitions(&node, &spec, timeout).await }).await
    }

    /// Deletes a topic by id.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn delete_topic(&self, id: TopicId, timeout: Duration) -> Result<(), QuorumError> {
        self.propose(Command::DeleteTopic { id, time: wall_clock() }, timeout).await.map(|_| ())
    }

    /// Changes the configuration of a topic, a broker or all brokers, as a whole or not at all; returns the index of the
    /// entry. `validate_only`: checks all, changes nothing.
    ///
    /// # Errors
    /// As [`Self::propose`]. Safe to repeat after `TimedOut`.
    pub async fn alter_configs(
        &self,
        change: ConfigChange,
        validate_only: bool,
        timeout: Duration,
    ) -> Result<u64, QuorumError> {
        self.run(move |node| async move { alter_configs(&node, change, validate_only, timeout).await }).await
    }

    /// Forgets a broker that is fenced or stopped (R176); if it is no voter it leaves raft soon after.
    ///
    /// # Errors
    /// As [`Self::propose`]; `Refused` while it lives, or when it is not registered.
    pub async fn unregister_broker(&self, broker: BrokerId, timeout: Duration) -> Result<(), QuorumError> {
        self.propose(Command::UnregisterBroker { broker, time: wall_clock() }, timeout).await.map(|_| ())
    }

    /// Sends a heartbeat to the raft leader (R170). Bounded by one second.
    ///
    /// # Errors
    /// `Refused` with 102 or 77: register again. `NoLeader`, `TimedOut`: send the next one.
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, QuorumError> {
        if !heartbeat.watermarks.is_empty() {
            let Heartbeat { broker, epoch, ref watermarks, .. } = heartbeat;
            let report = WatermarkReport { broker, epoch, watermarks: watermarks.clone() };
            let node = Arc::clone(&self.node);
            self.runtime.spawn(async move { duty::spread_watermarks(&node, &report).await });
        }
        self.run(move |node| async move {
            let here = |_| duty::on_heartbeat(&node, heartbeat.clone());
            node.with_leader("/heartbeat", &heartbeat, HEARTBEAT_TIMEOUT, true, here).await
        })
        .await
    }

    /// What the leader of a partition last said of its watermark, while its ISR is smaller than its replica set (D12).
    /// `None`: nothing in this leadership, or not to this node: only voters hear it.
    pub fn reported_watermark(&self, at: TopicPartition) -> Option<KnownWatermark> {
        self.node.duty.table_of(|table| table.reports.of(&self.node.image(), at))
    }

    /// A connection to this broker was reset or refused: a suspicion, checked by the raft leader (D7). Never waits.
    pub fn suspect(&self, broker: BrokerId, epoch: BrokerEpoch) {
        let node = Arc::clone(&self.node);
        self.runtime.spawn(async move { duty::report(&node, broker, epoch).await });
    }

    /// A block of producer ids of its own for this broker (R67).
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn allocate_producer_ids(
        &self,
        broker: BrokerId,
        epoch: BrokerEpoch,
    ) -> Result<std::ops::Range<i64>, QuorumError> {
        let command = Command::AllocateProducerIds { broker, epoch, count: PRODUCER_IDS_PER_BLOCK };
        match self.propose(command, PRODUCER_IDS_TIMEOUT).await? {
            (Answer::ProducerIds { first, count }, _) => Ok(first.0..first.0 + i64::from(count)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Node id of the raft leader as known here.
    pub fn leader(&self) -> Option<BrokerId> {
        self.node.leader().map(|leader| leader.node)
    }

    /// This node's own view of raft, and of its peers if it leads.
    pub fn status(&self) -> QuorumStatus {
        self.node.status()
    }

    /// Registered brokers whose heartbeat came within the last half of a session; empty unless this node leads.
    pub fn heard_recently(&self) -> BTreeSet<BrokerId> {
        duty::heard_recently(&self.node)
    }

    /// `http://host:port` of a node's controller listener, from the image, else from the configured voters (D4).
    pub fn controller_url(&self, node: BrokerId) -> Option<String> {
        self.node.peers.url(node)
    }

    /// Waits until this image holds everything committed when the call was made (read index on the raft leader).
    ///
    /// # Errors
    /// `NoLeader`, `TimedOut`.
    pub async fn linearizable(&self, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError> {
        self.run(move |node| async move { linearizable(&node, timeout).await }).await
    }

    /// Whether this node has held, at some moment since it started, all that was committed then. Before that it may not
    /// know what was acknowledged. A broker has once it is registered; others when something is read linearizably.
    pub fn has_caught_up(&self) -> bool {
        self.node.caught_up.load(Ordering::Acquire)
    }

    /// The status of the raft leader: here, or asked of it within `budget`. `None` without a leader that answers and
    /// that a majority answers.
    pub async fn leader_status(&self, budget: Duration) -> Option<QuorumStatus> {
        self.run(move |node| async move { Ok(node.leader_status(budget).await) }).await.ok().flatten()
    }

    /// The cluster that lives without this node and takes it in when it registers; `None`: none, or not that way.
    pub fn cluster_to_join(&self) -> watch::Receiver<Option<String>> {
        self.node.living.subscribe()
    }

    /// Hands raft leadership to another voter, and returns once that one leads.
    ///
    /// # Errors
    /// `Refused` when it is no voter, or one that is behind or silent; `NoLeader`; `TimedOut`: perhaps it leads soon.
    pub async fn transfer_leadership(&self, target: BrokerId, timeout: Duration) -> Result<(), QuorumError> {
        self.run(move |node| async move {
            let request = TransferRequest { target, timeout_ms: millis(timeout) };
            let here = |budget| node.transfer_leadership(target, budget);
            node.with_leader("/transfer-leadership", &request, timeout, true, here).await
        })
        .await
    }

    /// Changes the voters (D1): adds one, which catches up as an observer first, removes one, or replaces one. Returns
    /// when that is done, or tells how far it is: asking again goes on, wherever the leader is by then.
    ///
    /// # Errors
    /// `Refused`: the rest could not form a caught-up majority, another change is under way, no such voter, or the new
    /// one is not who it is said to be. `NoLeader`; `TimedOut`: ask again.
    pub async fn change_voters(
        &self,
        change: VoterChange,
        timeout: Duration,
    ) -> Result<VoterChangeStatus, QuorumError> {
        self.run(move |node| async move {
            let request = VoterRequest { change: change.clone(), timeout_ms: millis(timeout) };
            let here = |budget| node.change_voters(change.clone(), budget);
            node.with_leader("/voters", &request, timeout, false, here).await
        })
        .await
    }

    /// Has this node write a snapshot of the metadata now.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn snapshot(&self) -> Result<(), QuorumError> {
        self.run(move |node| async move { node.snapshot().await }).await
    }
}

/// Proposes, and waits for the entry here (D18).
pub(crate) async fn propose(
    node: &Arc<Node>,
    command: Command,
    timeout: Duration,
) -> Result<(Answer, u64), QuorumError> {
    let begun = Instant::now();
    let repeat = may_be_repeated(&command) || planted(Flaw::RepeatsProposals);
    let request = ProposeRequest { command, timeout_ms: millis(timeout) };
    let here = |budget| duty::propose_as_leader(node, request.command.clone(), budget);
    let (answer, index) = node.with_leader("/propose", &request, timeout, repeat, here).await?;
    caught_up(node, index, timeout.saturating_sub(begun.elapsed())).await?;
    Ok((answer, index))
}

/// Waits until this node holds what was committed up to `index`, a place that the raft leader has just named.
async fn caught_up(node: &Node, index: u64, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError> {
    let image = node.reached(ImageVersion(index), timeout).await?;
    node.caught_up.store(true, Ordering::Release);
    Ok(image)
}

/// Whether a second application changes nothing and answers the same (R216). The others are fenced by epochs or
/// names, so a repeat does no harm to the state, but it would answer "refused" to somebody whose command succeeded.
pub(crate) fn may_be_repeated(command: &Command) -> bool {
    match command {
        Command::FormCluster { .. }
        | Command::RegisterBroker(_)
        | Command::UnfenceBroker { .. }
        | Command::FenceBrokers { .. }
        | Command::FenceBrokersKnowing { .. }
        | Command::ShutDownBroker { .. }
        | Command::AllocateProducerIds { .. }
        | Command::SetFeatureLevel { .. }
        | Command::AddPartitions(_)
        | Command::RegisterController { .. }
        | Command::UnregisterController { .. } => true,
        // What was expected to be there may be what the first application changed.
        Command::AlterConfigs(request) => request.expected.is_none(),
        Command::UnregisterBroker { .. }
        | Command::CreateTopic(_)
        | Command::CreateTopicInheriting { .. }
        | Command::DeleteTopic { .. }
        | Command::AlterPartition(_)
        | Command::ElectLeaders { .. }
        | Command::ElectChosen { .. } => false,
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn unexpected(answer: &Answer) -> QuorumError {
    QuorumError::Stopped(format!("an answer to another question: {answer:?}"))
}

/// See [`QuorumClient::create_topic`].
async fn create_topic(node: &Arc<Node>, spec: &TopicSpec, timeout: Duration) -> Result<CreatedTopic, QuorumError> {
    let begun = Instant::now();
    let left = || timeout.saturating_sub(begun.elapsed());
    let id = random_topic_id();
    let given = spec.configs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    check_lengths(given).map_err(Refusal::InvalidTopicConfigs)?;
    // Placed by all that is committed: this node may not have heard yet of a broker that others see serving.
    let image = linearizable(node, left()).await?;
    let defaults = node.topic_defaults.under(&image, node.id.node);
    let plan = plan_topic(&image, spec, &defaults, id, random_seed(), wall_clock())?;
    let created = |id| CreatedTopic {
        id,
        partitions: plan.partitions,
        replication_factor: plan.replication_factor,
        note: plan.note.clone(),
    };
    if spec.validate_only {
        return Ok(created(TopicId::from_bytes([0; 16])));
    }
    for command in plan.commands() {
        match propose(node, command, left()).await {
            Ok(_) => {}
            // The raft leader may have died with the answer. The id tells whether the topic is this one.
            Err(QuorumError::TimedOut { .. }) if plan.parts.len() == 1 && !left().is_zero() => {
                let image = linearizable(node, left()).await?;
                if !image.topics.contains_key(&id) {
                    let after_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                    return Err(QuorumError::TimedOut { after_ms });
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(created(id))
}

/// See [`QuorumClient::add_partitions`].
async fn add_partitions(node: &Arc<Node>, spec: &PartitionsSpec, timeout: Duration) -> Result<TopicId, QuorumError> {
    let begun = Instant::now();
    let left = || timeout.saturating_sub(begun.elapsed());
    let image = linearizable(node, left()).await?;
    let plan = plan_growth(&image, spec, random_seed(), wall_clock())?;
    if !spec.validate_only {
        for part in plan.parts {
            propose(node, Command::AddPartitions(part), left()).await?;
        }
    }
    Ok(plan.topic)
}

/// See [`QuorumClient::alter_configs`].
async fn alter_configs(
    node: &Arc<Node>,
    change: ConfigChange,
    validate_only: bool,
    timeout: Duration,
) -> Result<u64, QuorumError> {
    let begun = Instant::now();
    // By all that is committed: what is refused here never reaches the log, however large it is.
    let image = linearizable(node, timeout).await?;
    change.check(&image)?;
    if validate_only {
        return Ok(image.version.0);
    }
    let command = change.into_command(wall_clock());
    propose(node, command, timeout.saturating_sub(begun.elapsed())).await.map(|(_, index)| index)
}

/// See [`QuorumClient::linearizable`].
async fn linearizable(node: &Arc<Node>, timeout: Duration) -> Result<Arc<MetadataImage>, QuorumError> {
    let begun = Instant::now();
    let index = node.with_leader("/read-index", &(), timeout, true, |_| node.read_index_here()).await?;
    caught_up(node, index, timeout.saturating_sub(begun.elapsed())).await
}
