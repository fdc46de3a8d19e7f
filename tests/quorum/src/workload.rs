//! Who uses the quorum on each node: a broker that registers and sends heartbeats, somebody who proposes all kinds of
//! changes, and an operator who moves leaders and voters. All of it through the product's own client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::controller::{
    AlterConfigs, ConfigAction, ConfigOperation, ConfigResource, CreateTopic, DataClaim, ElectionKind, IsrProposal,
    IsrReason, RegisterBroker,
};
use highwater_quorum::image::{ExpandReason, MetadataImage, ShrinkReason};
use highwater_quorum::sim::SimNode;
use highwater_quorum::{
    Answer, Command, Heartbeat, NewVoter, PartitionsSpec, QuorumClient, QuorumError, Refusal, TopicSpec, VoterChange,
    VoterChangeState,
};
use highwater_wire::{BrokerEpoch, BrokerId, DirectoryId, IncarnationId, Timestamp, TopicId, TopicPartition};
use tokio::time::sleep;

use crate::host::{broker_id, endpoint};
use crate::marks::Mark;
use crate::rng::Rng;
use crate::world::World;

const PROPOSE: Duration = Duration::from_secs(4);
const READ: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Names of topics: few, so that they meet.
const NAMES: u64 = 8;
/// Topics kept, so that images stay small.
const TOPICS_MAX: usize = 6;

struct User {
    world: World,
    me: u32,
    node: Arc<SimNode>,
    rng: Rng,
}

/// Starts everybody who uses this process; they end with it.
pub fn start(world: &World, me: u32, node: &Arc<SimNode>, incarnation: IncarnationId, rng: &Rng) {
    let user = |label| User { world: world.clone(), me, node: Arc::clone(node), rng: rng.fork(label) };
    tokio::spawn(user(10).broker(incarnation));
    tokio::spawn(user(11).proposer());
    tokio::spawn(user(12).operator());
}

impl User {
    fn client(&self) -> &QuorumClient {
        self.node.client()
    }

    fn image(&self) -> Arc<MetadataImage> {
        self.client().image()
    }

    fn time(&self) -> Timestamp {
        self.world.lock().stamp()
    }

    /// Proposes, and writes down what was told.
    async fn propose(&self, command: Command) -> Result<(Answer, u64), QuorumError> {
        let number = self.world.lock().proposes(self.me, command.clone());
        let result = self.client().propose(command, PROPOSE).await;
        let version = self.image().version.0;
        let mut world = self.world.lock();
        if let Ok((_, index)) = &result
            && version < *index
        {
            world.violate("read your writes", format!("n{}: #{number} is entry {index}, here is {version}", self.me));
        }
        world.told(number, result.clone());
        result
    }

    async fn broker(mut self, incarnation: IncarnationId) {
        loop {
            let Some(epoch) = self.register(incarnation).await else {
                sleep(Duration::from_millis(self.rng.within(50, 500))).await;
                continue;
            };
            loop {
                let heartbeat = self.heartbeat(epoch, incarnation);
                match self.client().heartbeat(heartbeat).await {
                    // Somebody took this broker for dead, or off the list.
                    Err(QuorumError::Refused(Refusal::StaleBrokerEpoch { .. } | Refusal::UnknownBroker(_))) => break,
                    _ => sleep(HEARTBEAT).await,
                }
            }
        }
    }

    async fn register(&mut self, incarnation: IncarnationId) -> Option<BrokerEpoch> {
        let living = self.client().cluster_to_join().borrow().clone();
        let cluster_id = self.image().cluster_id.as_deref().map(str::to_owned).or(living)?;
        let listeners = BTreeMap::from([("BROKER".to_owned(), endpoint(self.me))]);
        let command = Command::RegisterBroker(RegisterBroker {
            broker: broker_id(self.me),
            cluster_id,
            incarnation,
            listeners,
            inter_broker_listener: "BROKER".to_owned(),
            controller_url: format!("http://n{}:{}", self.me, crate::net::PORT),
            admin_url: String::new(),
            rack: None,
            log_dirs: vec![DirectoryId::from_bytes([u8::try_from(self.me).unwrap(); 16])],
            metadata_dir: self.node.directory_id(),
            features: BTreeMap::new(),
            version: "sim".to_owned(),
            claim: DataClaim::Nothing,
            previous_is_dead: false,
            time: self.time(),
        });
        match self.propose(command).await {
            Ok((Answer::Registered { epoch }, _)) => Some(epoch),
            _ => None,
        }
    }

    fn heartbeat(&self, epoch: BrokerEpoch, incarnation: IncarnationId) -> Heartbeat {
        Heartbeat {
            broker: broker_id(self.me),
            epoch,
            incarnation,
            version: self.image().version,
            want_fence: false,
            want_shutdown: false,
            drained: false,
            lost: Vec::new(),
            watermarks: Vec::new(),
        }
    }

    async fn proposer(mut self) {
        let pace = self.world.lock().swarm.pace_ms;
        loop {
            sleep(Duration::from_millis(self.rng.around(pace))).await;
            if self.world.lock().resting {
                return;
            }
            match self.rng.below(100) {
                0..12 => self.create_topic().await,
                12..20 => self.create_raw().await,
                20..28 => self.delete_topic().await,
                28..40 => self.producer_ids().await,
                40..58 => self.alter_partition().await,
                58..64 => self.elect().await,
                64..76 => self.configure().await,
                76..82 => self.grow().await,
                82..97 => self.read().await,
                _ => {
                    let _ = self.client().snapshot().await;
                }
            }
        }
    }

    fn name(&mut self) -> String {
        format!("t{}", self.rng.below(NAMES))
    }

    fn topic(&mut self) -> Option<TopicId> {
        let topics: Vec<TopicId> = self.image().topics.keys().copied().collect();
        self.rng.pick(&topics).copied()
    }

    async fn create_topic(&mut self) {
        if self.image().topics.size() >= TOPICS_MAX {
            return;
        }
        let spec =
            TopicSpec { name: self.name(), partitions: Some(self.rng.within(1, 3) as i32), ..Default::default() };
        if let Ok(created) = self.client().create_topic(spec, PROPOSE).await {
            self.world.lock().created.push(created.id);
        }
    }

    /// Without the planner and its look at what is committed: as late and as wrong as a proposal can be.
    async fn create_raw(&mut self) {
        let brokers: Vec<BrokerId> = self.image().active_brokers().map(|broker| broker.id).collect();
        let Some(first) = self.rng.pick(&brokers).copied() else { return };
        let assignments = vec![brokers.iter().copied().skip_while(|id| *id != first).collect()];
        let (id, name) = (TopicId::from_bytes(self.rng.bytes16()), self.name());
        let configs = BTreeMap::new();
        let (first_partition, complete, manual, time) = (0, true, false, self.time());
        let part = CreateTopic { id, name, configs, first_partition, assignments, complete, manual, time };
        let _ = self.propose(Command::CreateTopic(part)).await;
    }

    async fn delete_topic(&mut self) {
        if let Some(id) = self.topic() {
            let _ = self.propose(Command::DeleteTopic { id, time: self.time() }).await;
        }
    }

    async fn producer_ids(&mut self) {
        let Some(epoch) = self.image().broker(broker_id(self.me)).map(|broker| broker.epoch) else { return };
        if let Ok(block) = self.client().allocate_producer_ids(broker_id(self.me), epoch).await {
            self.world.lock().blocks.push((block.start, block.end));
        }
    }

    /// A leader's report of its ISR: one member out, or one back in.
    async fn alter_partition(&mut self) {
        let (image, me) = (self.image(), broker_id(self.me));
        let led: Vec<TopicPartition> =
            image.partitions().filter(|(_, _, state)| state.leader == Some(me)).map(|(at, _, _)| at).collect();
        let Some(partition) = self.rng.pick(&led).copied() else { return };
        let Some(state) = image.partition(partition) else { return };
        let others: Vec<BrokerId> = state.replicas.iter().copied().filter(|id| *id != me).collect();
        let Some(other) = self.rng.pick(&others).copied() else { return };
        let (mut isr, why) = (state.isr.clone(), state.isr.contains(&other));
        let why = match why {
            true => {
                isr.retain(|id| *id != other);
                IsrReason::Shrink(ShrinkReason::FollowerSlow)
            }
            false => {
                isr.push(other);
                IsrReason::Expand(ExpandReason::CaughtUp)
            }
        };
        let isr = isr.into_iter().filter_map(|id| Some((id, image.broker(id)?.epoch))).collect();
        let change = IsrProposal {
            partition,
            leader_epoch: state.leader_epoch,
            partition_epoch: state.partition_epoch,
            isr,
            recovery: state.recovery,
            why,
            evidence: Vec::new(),
        };
        let Some(epoch) = image.broker(me).map(|broker| broker.epoch) else { return };
        let request = highwater_quorum::controller::AlterPartition {
            broker: me,
            epoch,
            changes: vec![change],
            time: self.time(),
        };
        let _ = self.propose(Command::AlterPartition(request)).await;
    }

    async fn elect(&mut self) {
        let all: Vec<TopicPartition> = self.image().partitions().map(|(at, _, _)| at).collect();
        if let Some(at) = self.rng.pick(&all).copied() {
            let kind = ElectionKind::Preferred;
            let _ = self.propose(Command::ElectLeaders { kind, partitions: vec![at], time: self.time() }).await;
        }
    }

    async fn configure(&mut self) {
        let Some(topic) = self.topic() else { return };
        let value = self.rng.within(60_000, 1 << 40).to_string();
        let operation = ConfigOperation { key: "retention.ms".to_owned(), action: ConfigAction::Set(value) };
        let request = AlterConfigs {
            resource: ConfigResource::Topic(topic),
            replace: false,
            operations: vec![operation],
            expected: None,
            time: self.time(),
        };
        let _ = self.propose(Command::AlterConfigs(request)).await;
    }

    async fn grow(&mut self) {
        let image = self.image();
        let Some(topic) = self.topic().and_then(|id| image.topics.get(&id)) else { return };
        if topic.partitions.len() >= 4 {
            return;
        }
        let partitions = i32::try_from(topic.partitions.len() + 1).unwrap();
        let spec = PartitionsSpec { topic: topic.name.to_string(), partitions, ..Default::default() };
        let _ = self.client().add_partitions(spec, PROPOSE).await;
    }

    /// A linearizable read shows everything that anybody was told of before it began.
    async fn read(&mut self) {
        let floor = self.world.lock().acked;
        let read = self.client().linearizable(READ).await;
        let mut world = self.world.lock();
        world.hit(if read.is_ok() { Mark::Read } else { Mark::ReadRefused });
        if let Ok(image) = read
            && image.version.0 < floor
        {
            let text = format!("n{} reads {} after {floor} was acknowledged", self.me, image.version.0);
            world.violate("linearizable reads", text);
        }
    }

    async fn operator(mut self) {
        loop {
            let pause = if self.world.lock().resting { 400 } else { 6_000 };
            sleep(Duration::from_millis(self.rng.around(pause))).await;
            let (resting, membership, transfers) = {
                let world = self.world.lock();
                (world.resting, world.swarm.membership, world.swarm.transfers)
            };
            if membership || resting {
                self.change_voters(resting).await;
            }
            if transfers && !resting {
                let voters: Vec<BrokerId> = self.node.look().voters.iter().flatten().map(|it| it.node).collect();
                if let Some(target) = self.rng.pick(&voters).copied() {
                    let led = self.client().leader();
                    let moved = self.client().transfer_leadership(target, Duration::from_secs(2)).await;
                    if moved.is_ok() && led.is_some_and(|led| led != target) {
                        self.world.lock().hit(Mark::HandedOver);
                    }
                }
            }
        }
    }

    /// Replaces a voter that lost its disk; else adds, removes or exchanges one.
    async fn change_voters(&mut self, resting: bool) {
        let look = self.node.look();
        let [voters] = look.voters.as_slice() else { return };
        let wiped = {
            let world = self.world.lock();
            let lost = |id: &&u32| {
                let now = world.machines[id].process.as_ref().map(|process| process.directory_id());
                let voter = voters.iter().find(|voter| voter.node == broker_id(**id));
                voter.is_some_and(|voter| now.is_some_and(|now| now != voter.directory))
            };
            world.machines.keys().find(lost).copied()
        };
        let new = |node: u32| NewVoter { node: broker_id(node), directory: None, endpoint: Some(endpoint(node)) };
        let nodes: Vec<u32> = self.world.lock().machines.keys().copied().collect();
        let votes = |node: &u32| voters.iter().any(|voter| voter.node == broker_id(*node));
        let (inside, outside): (Vec<u32>, Vec<u32>) = nodes.into_iter().partition(votes);
        let (add, remove) = match wiped {
            Some(wiped) => (Some(new(wiped)), Some(broker_id(wiped))),
            None if resting => return,
            None => {
                let (add, remove) = (self.rng.pick(&outside).copied(), self.rng.pick(&inside).copied());
                match (add, self.rng.below(3)) {
                    (Some(add), 0) => (Some(new(add)), None),
                    (Some(add), 1) => (Some(new(add)), remove.map(broker_id)),
                    _ if inside.len() > 3 => (None, remove.map(broker_id)),
                    _ => return,
                }
            }
        };
        let mark = match (&add, remove) {
            (Some(_), Some(_)) => Mark::VoterReplaced,
            (Some(_), None) => Mark::VoterAdded,
            (None, _) => Mark::VoterRemoved,
        };
        let change = VoterChange { add, remove, retain_as_observer: self.rng.chance(500), validate_only: false };
        let me = self.me;
        self.world.lock().note(21, &[u64::from(me)], || format!("n{me}'s operator asks for {change:?}"));
        let changed = self.client().change_voters(change, Duration::from_secs(5)).await;
        let mut world = self.world.lock();
        let done = changed.as_ref().is_ok_and(|status| status.state == VoterChangeState::Done);
        if done {
            world.hit(mark);
        }
        world.note(22, &[u64::from(me), u64::from(done)], || format!("n{me}'s operator is told {changed:?}"));
    }
}
