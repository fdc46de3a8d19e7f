//! States in which the restart gate is asked: clusters with a past, drawn from a seed. Every step of the past is a
//! command that the shipped rules decide.

use std::collections::{BTreeMap, BTreeSet};

use highwater_quorum::MetadataImage;
use highwater_quorum::controller::{Command, CreateTopic, DataClaim, ElectionKind, RegisterBroker};
use highwater_quorum::image::{BrokerState, Endpoint};
use highwater_wire::{BrokerId, DirectoryId, IncarnationId, Timestamp, TopicId, TopicPartition};

use super::gate::{Fork, Reality};
use super::rng::Rng;

/// A cluster of three to six brokers with one to six partitions, after up to forty events; four times of five those who
/// can have come back since.
pub fn draw(seed: u64) -> (MetadataImage, Reality) {
    let mut rng = Rng::new(seed);
    let count = rng.within(3, 6) as i32;
    let brokers: Vec<BrokerId> = (1..=count).map(BrokerId).collect();
    let mut past = Fork { image: MetadataImage::default() };
    past.run(&Command::FormCluster { cluster_id: "gate".to_owned(), feature_level: 1, time: Timestamp(0) });
    for id in &brokers {
        past.run(&Command::RegisterBroker(registration(*id, &mut rng)));
        past.start(*id, IncarnationId::from_bytes(rng.bytes16()));
    }
    for number in 0..rng.within(1, 6) {
        create(&mut past, &brokers, number, &mut rng);
    }
    for _ in 0..rng.below(40) {
        step(&mut past, &brokers, &mut rng);
    }
    if rng.chance(800) {
        recover(&mut past, &brokers, &mut rng);
    }
    let reality = reality(&past, &brokers, &mut rng);
    (past.image, reality)
}

fn registration(broker: BrokerId, rng: &mut Rng) -> RegisterBroker {
    let endpoint = Endpoint { host: format!("n{broker}"), port: 9092 };
    RegisterBroker {
        broker,
        cluster_id: "gate".to_owned(),
        incarnation: IncarnationId::from_bytes(rng.bytes16()),
        listeners: BTreeMap::from([("PLAINTEXT".to_owned(), endpoint)]),
        inter_broker_listener: "PLAINTEXT".to_owned(),
        controller_url: format!("http://n{broker}:9093"),
        admin_url: String::new(),
        rack: None,
        log_dirs: vec![DirectoryId::from_bytes(rng.bytes16())],
        metadata_dir: DirectoryId::from_bytes(rng.bytes16()),
        features: BTreeMap::new(),
        version: "0".to_owned(),
        claim: DataClaim::Nothing,
        previous_is_dead: false,
        time: Timestamp(0),
    }
}

fn create(past: &mut Fork, brokers: &[BrokerId], number: u64, rng: &mut Rng) {
    let mut left = brokers.to_vec();
    let factor = if rng.chance(500) { 3 } else { rng.within(1, 4) as usize };
    let replicas: Vec<BrokerId> =
        (0..factor.min(left.len())).map(|_| left.swap_remove(rng.below(left.len() as u64) as usize)).collect();
    let min_isr = if rng.chance(600) { 2 } else { rng.within(1, 3) };
    let configs = BTreeMap::from([
        ("min.insync.replicas".to_owned(), min_isr.to_string()),
        ("unclean.leader.election.enable".to_owned(), rng.chance(50).to_string()),
    ]);
    past.run(&Command::CreateTopic(CreateTopic {
        id: TopicId::from_bytes(rng.bytes16()),
        name: format!("topic{number}"),
        configs,
        first_partition: 0,
        assignments: vec![replicas],
        complete: true,
        manual: true,
        time: Timestamp(0),
    }));
}

fn step(past: &mut Fork, brokers: &[BrokerId], rng: &mut Rng) {
    let Some(broker) = rng.pick(brokers).copied() else { return };
    match rng.below(10) {
        0 => past.fence(&[broker]),
        1 => past.shut_down(broker),
        // Several together, as after a power cut.
        2 if rng.chance(300) => past.fence(&brokers[..rng.below(brokers.len() as u64) as usize]),
        2..=4 => start(past, broker, rng),
        5 => slow(past, broker, rng),
        6 => {
            let partitions = past.image.partitions().map(|(at, _, _)| at).collect();
            past.run(&Command::ElectLeaders { kind: ElectionKind::Preferred, partitions, time: Timestamp(0) });
        }
        _ => past.catch_up(broker),
    }
}

/// Starts a broker that is out; now and then with an empty disk.
fn start(past: &mut Fork, broker: BrokerId, rng: &mut Rng) {
    let Some(before) = past.image.broker(broker).cloned() else { return };
    if before.is_active() {
        return;
    }
    let incarnation = IncarnationId::from_bytes(rng.bytes16());
    if rng.chance(100) {
        let wiped = RegisterBroker { incarnation, ..registration(broker, rng) };
        past.run(&Command::RegisterBroker(wiped));
    }
    past.start(broker, incarnation);
}

/// A follower falls behind wherever it is one.
fn slow(past: &mut Fork, broker: BrokerId, rng: &mut Rng) {
    let follows: Vec<(TopicPartition, Vec<BrokerId>)> = past
        .image
        .partitions()
        .filter(|(_, _, state)| state.isr.contains(&broker) && state.leader != Some(broker))
        .map(|(at, _, state)| (at, state.isr.iter().copied().filter(|id| *id != broker).collect()))
        .collect();
    for (at, isr) in follows {
        if rng.chance(600) {
            past.alter(at, &isr);
        }
    }
}

/// All who can come back do, but for the one or other.
fn recover(past: &mut Fork, brokers: &[BrokerId], rng: &mut Rng) {
    for _ in 0..2 {
        for broker in brokers {
            if !rng.chance(100) {
                start(past, *broker, rng);
            }
            if !rng.chance(100) {
                past.catch_up(*broker);
            }
        }
    }
}

/// Who lives: nearly all that are active, half of those that are fenced (they recover), whoever is shutting down.
fn reality(past: &Fork, brokers: &[BrokerId], rng: &mut Rng) -> Reality {
    let mut reality = Reality::default();
    for registered in past.image.brokers.values() {
        let lives = match registered.state {
            BrokerState::Active => rng.chance(970),
            BrokerState::Fenced => rng.chance(500),
            BrokerState::ShuttingDown => true,
        };
        if lives {
            reality.alive.insert(registered.id);
        }
    }
    // All vote, or the first three.
    let voters = if rng.chance(500) { brokers.len() } else { 3 };
    reality.voters = brokers[..voters].iter().copied().collect();
    reality.lagging = reality.voters.iter().copied().filter(|_| rng.chance(30)).collect();
    let proposals: Vec<_> = past.image.partitions().map(|(at, _, state)| (at, state.clone())).collect();
    for (at, state) in proposals {
        let Some(leader) = state.leader.filter(|leader| reality.alive.contains(leader)) else { continue };
        if rng.chance(50) {
            let keeps = |id: &&BrokerId| **id == leader || rng.chance(500);
            let isr: Vec<BrokerId> = state.isr.iter().filter(keeps).copied().collect();
            let active: BTreeSet<BrokerId> = past.image.active_brokers().map(|broker| broker.id).collect();
            if isr.len() < state.isr.len() && isr.iter().all(|id| active.contains(id)) {
                reality.proposed.insert(at, isr);
            }
        }
    }
    reality
}
