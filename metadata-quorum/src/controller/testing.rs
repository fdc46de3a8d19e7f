//! What the tests of rules and planners share: a small cluster, and commands with everything dull filled in.

use std::collections::BTreeMap;

use highwater_wire::{
    BrokerEpoch, BrokerId, DirectoryId, IncarnationId, LeaderEpoch, PartitionEpoch, Timestamp, TopicId, TopicPartition,
};

use super::*;
use crate::image::{
    BrokerRegistration, BrokerState, ChangeKind, DataProof, Endpoint, ImageVersion, LeaderReason, LeaderRecovery,
    PartitionState, ShrinkReason,
};

pub(crate) const CLUSTER: &str = "highwater-test";

pub(crate) fn ids(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

pub(crate) fn topic_id(n: u8) -> TopicId {
    TopicId::from_bytes([n; 16])
}

/// Partition 0 of topic `n`.
pub(crate) fn at(n: u8) -> TopicPartition {
    TopicPartition::new(topic_id(n), 0)
}

/// The `n`th process of a broker.
pub(crate) fn process(broker: i32, n: u8) -> IncarnationId {
    let mut bytes = [n; 16];
    bytes[0] = broker as u8;
    IncarnationId::from_bytes(bytes)
}

fn directory(broker: i32, kind: u8) -> DirectoryId {
    let mut bytes = [kind; 16];
    bytes[0] = broker as u8;
    DirectoryId::from_bytes(bytes)
}

/// A registration of process 1.
pub(crate) fn registration(broker: i32) -> RegisterBroker {
    let endpoint = Endpoint { host: format!("n{broker}"), port: 9092 };
    RegisterBroker {
        broker: BrokerId(broker),
        cluster_id: CLUSTER.to_owned(),
        incarnation: process(broker, 1),
        listeners: BTreeMap::from([("PLAINTEXT".to_owned(), endpoint)]),
        inter_broker_listener: "PLAINTEXT".to_owned(),
        controller_url: format!("http://n{broker}:9093"),
        admin_url: String::new(),
        rack: None,
        log_dirs: vec![directory(broker, 201)],
        metadata_dir: directory(broker, 202),
        features: BTreeMap::new(),
        version: "0.1.0".to_owned(),
        claim: DataClaim::Nothing,
        previous_is_dead: false,
        time: Timestamp(1),
    }
}

/// A broker of epoch 1 in a state, as a row of an image.
pub(crate) fn broker(id: i32, state: BrokerState) -> BrokerRegistration {
    let given = registration(id);
    BrokerRegistration {
        id: given.broker,
        incarnation: given.incarnation,
        epoch: BrokerEpoch(1),
        listeners: given.listeners,
        inter_broker_listener: given.inter_broker_listener,
        controller_url: given.controller_url,
        admin_url: given.admin_url,
        rack: None,
        log_dirs: given.log_dirs,
        metadata_dir: given.metadata_dir,
        features: given.features,
        version: given.version,
        state,
        state_since: Timestamp(1),
        kept_data: DataProof::None,
    }
}

/// An image of active brokers of epoch 1.
pub(crate) fn cluster_of(active: &[i32]) -> MetadataImage {
    let mut image = MetadataImage { version: ImageVersion(1), ..MetadataImage::default() };
    image.apply(&Change::Cluster { cluster_id: CLUSTER.to_owned(), feature_level: 1 });
    for id in active {
        image.apply(&Change::Broker(broker(*id, BrokerState::Active).into()));
    }
    image
}

/// The quorum's state machine in small: decides, applies, checks.
#[derive(Clone)]
pub(crate) struct Quorum {
    pub image: MetadataImage,
}

impl Quorum {
    /// Brokers 1 to `brokers`, all active, no topic.
    pub fn new(brokers: i32) -> Self {
        let mut quorum = Self { image: MetadataImage::default() };
        quorum
            .run(Command::FormCluster { cluster_id: CLUSTER.to_owned(), feature_level: 1, time: Timestamp(0) })
            .unwrap();
        for id in 1..=brokers {
            quorum.start(id, DataClaim::Nothing);
        }
        quorum
    }

    pub fn run(&mut self, command: Command) -> Result<Answer, Refusal> {
        let index = self.image.version.0 + 1;
        let decided = decide(&self.image, index, RULE_VERSION, &command);
        let before = self.image.clone();
        if let Ok(decision) = &decided {
            self.image.apply_all(&decision.changes);
        }
        self.image.version = ImageVersion(index);
        self.image.check_invariants();
        self.image.check_configs();
        check_epochs(&before, &self.image);
        decided.map(|decision| decision.answer)
    }

    /// Registers the next process of a broker whose former one is dead.
    pub fn register(&mut self, id: i32, claim: DataClaim) -> Result<Answer, Refusal> {
        let former = self.image.broker(BrokerId(id)).map_or(0, |broker| broker.incarnation.to_bytes()[1]);
        let incarnation = process(id, former + 1);
        self.run(Command::RegisterBroker(RegisterBroker {
            incarnation,
            claim,
            previous_is_dead: true,
            ..registration(id)
        }))
    }

    pub fn unfence(&mut self, id: i32, lost: &[TopicPartition]) -> Result<Answer, Refusal> {
        let (broker, epoch) = (BrokerId(id), self.epoch(id));
        self.run(Command::UnfenceBroker { broker, epoch, lost: lost.to_vec(), time: Timestamp(2) })
    }

    /// Registers and unfences.
    pub fn start(&mut self, id: i32, claim: DataClaim) {
        self.register(id, claim).unwrap();
        self.unfence(id, &[]).unwrap();
    }

    /// The claim of a process that takes over from the registered one on the same boot.
    pub fn same_boot(&self, id: i32) -> DataClaim {
        DataClaim::SameBoot { incarnation: self.image.broker(BrokerId(id)).unwrap().incarnation }
    }

    pub fn clean_stop(&self, id: i32) -> DataClaim {
        DataClaim::CleanStop { epoch: self.epoch(id) }
    }

    pub fn fence(&mut self, brokers: &[i32]) -> Answer {
        let brokers = brokers
            .iter()
            .map(|id| FencedBroker { broker: BrokerId(*id), epoch: self.epoch(*id), note: "silent".to_owned() })
            .collect();
        self.run(Command::FenceBrokers { brokers, watermarks: vec![], time: Timestamp(3) }).unwrap()
    }

    pub fn shut_down(&mut self, id: i32) -> Result<Answer, Refusal> {
        self.run(Command::ShutDownBroker { broker: BrokerId(id), epoch: self.epoch(id), time: Timestamp(4) })
    }

    /// Topic `n` of one partition.
    pub fn create(&mut self, n: u8, replicas: &[i32], configs: &[(&str, &str)]) -> Result<Answer, Refusal> {
        self.run(Command::CreateTopic(creation(n, replicas, configs)))
    }

    pub fn epoch(&self, id: i32) -> BrokerEpoch {
        self.image.broker(BrokerId(id)).unwrap().epoch
    }

    pub fn state(&self, n: u8) -> &PartitionState {
        self.image.partition(at(n)).unwrap()
    }

    /// A proposal of the leader as it would make it now.
    pub fn proposal(&self, n: u8, isr: &[i32]) -> IsrProposal {
        let state = self.state(n);
        IsrProposal {
            partition: at(n),
            leader_epoch: state.leader_epoch,
            partition_epoch: state.partition_epoch,
            isr: isr.iter().map(|id| (BrokerId(*id), self.epoch(*id))).collect(),
            recovery: LeaderRecovery::Recovered,
            why: if isr.len() < state.isr.len() {
                IsrReason::Shrink(ShrinkReason::FollowerSlow)
            } else {
                IsrReason::Expand(crate::image::ExpandReason::CaughtUp)
            },
            evidence: vec![],
        }
    }

    /// Sends one proposal as broker `sender`.
    pub fn alter(&mut self, sender: i32, proposal: IsrProposal) -> Result<AlteredPartition, Refusal> {
        let (broker, epoch) = (BrokerId(sender), self.epoch(sender));
        let request = AlterPartition { broker, epoch, changes: vec![proposal], time: Timestamp(5) };
        match self.run(Command::AlterPartition(request))? {
            Answer::PartitionsAltered(results) => results.into_iter().next().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The leader of topic `n` makes `isr` the ISR.
    pub fn set_isr(&mut self, n: u8, isr: &[i32]) {
        let leader = self.state(n).leader.unwrap().0;
        self.alter(leader, self.proposal(n, isr)).unwrap();
    }

    pub fn elect(&mut self, kind: ElectionKind, n: u8) -> Result<BrokerId, Refusal> {
        let command = Command::ElectLeaders { kind, partitions: vec![at(n)], time: Timestamp(6) };
        match self.run(command)? {
            Answer::LeadersElected(results) => results.into_iter().next().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// (leader, ISR, ELR) of topic `n`.
    pub fn sets(&self, n: u8) -> (Option<i32>, Vec<i32>, Vec<i32>) {
        let (state, plain) = (self.state(n), |list: &[BrokerId]| list.iter().map(|id| id.0).collect());
        (state.leader.map(|id| id.0), plain(&state.isr), plain(&state.elr))
    }

    /// The reason of the last change of leader of topic `n`.
    pub fn last_election(&self, n: u8) -> LeaderReason {
        let kinds = self.image.history_of(at(n)).iter().rev().map(|change| &change.kind);
        let reason = |kind: &ChangeKind| match kind {
            ChangeKind::Leader { reason, .. } => Some(*reason),
            _ => None,
        };
        kinds.into_iter().find_map(reason).unwrap()
    }
}

pub(crate) fn creation(n: u8, replicas: &[i32], configs: &[(&str, &str)]) -> CreateTopic {
    CreateTopic {
        id: topic_id(n),
        name: format!("topic-{n}"),
        configs: configs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        first_partition: 0,
        assignments: vec![ids(replicas)],
        complete: true,
        manual: true,
        time: Timestamp(1),
    }
}

/// T1 and R137: every change of a partition raises its epoch by one; the leader epoch rises by one exactly when the
/// leader changes.
fn check_epochs(before: &MetadataImage, after: &MetadataImage) {
    for (at, _, state) in after.partitions() {
        match before.partition(at) {
            None => assert_eq!((state.leader_epoch, state.partition_epoch), (LeaderEpoch(0), PartitionEpoch(0))),
            Some(old) if old == state => {}
            Some(old) => {
                assert_eq!(state.partition_epoch, old.partition_epoch.next(), "{at}: {old:?} -> {state:?}");
                let step = i32::from(state.leader != old.leader);
                assert_eq!(state.leader_epoch.0, old.leader_epoch.0 + step, "{at}: {old:?} -> {state:?}");
                assert!(state.leader == old.leader || state.leader_since != Timestamp::NONE);
            }
        }
    }
}
