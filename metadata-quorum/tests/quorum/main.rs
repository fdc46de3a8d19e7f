//! Three real nodes in this process, and what they make of deaths, restarts, silence and changes of their number.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use highwater_quorum::controller::{ConfigAction, ConfigOperation, ConfigResource, DataClaim, RegisterBroker};
use highwater_quorum::image::{BrokerState, ImageVersion};
use highwater_quorum::{
    Answer, Command, ConfigChange, ControllerListener, Heartbeat, QuorumError, QuorumLimits, QuorumRole, Refusal,
    TopicSpec,
};
use highwater_wire::{BrokerEpoch, BrokerId, DirectoryId, IncarnationId, Timestamp};

use cluster::{Cluster, PATIENCE, eventually};

mod cluster;
mod voters;

#[test]
fn three_nodes_form_one_cluster_from_nothing() {
    let (mut cluster, listeners) = Cluster::new(3, 0, QuorumLimits::default());
    let begun = Instant::now();
    for (at, listener) in listeners.into_iter().enumerate() {
        cluster.start_node(at, ControllerListener::Bound(listener), Some("chosen".to_owned())).unwrap();
    }
    cluster.await_leader();
    println!("from nothing to a leader and a formed cluster: {:?}", begun.elapsed());
    for at in 0..3 {
        eventually("the cluster's id is known everywhere", || {
            cluster.client(at).image().cluster_id.as_deref() == Some("chosen")
        });
        let process = cluster.nodes[at].process.as_ref().unwrap();
        process.runtime.block_on(process.quorum.ready(PATIENCE)).unwrap();
        let status = cluster.client(at).status();
        assert_eq!((status.voters.len(), status.majority, status.waiting), (3, 2, None));
    }
    let leader = cluster.leader().unwrap();
    eventually("the leader sees everybody", || cluster.client(leader).status().can_lose == Some(1));
}

#[test]
fn two_of_three_voters_wait_and_name_the_third() {
    let (mut cluster, mut listeners) = Cluster::new(3, 0, QuorumLimits::default());
    drop(listeners.pop());
    for (at, listener) in listeners.into_iter().enumerate() {
        cluster.start_node(at, ControllerListener::Bound(listener), None).unwrap();
    }
    eventually("node 1 says whom it waits for", || {
        cluster.client(0).status().waiting.is_some_and(|why| why.contains("voter 3 does not answer"))
    });
    assert_eq!(cluster.client(0).status().role, QuorumRole::Unformed);
    cluster.restart(2);
    cluster.await_leader();
}

#[test]
fn another_cluster_id_is_refused_with_both_named() {
    let (mut cluster, listeners) = Cluster::new(2, 0, QuorumLimits::default());
    for ((at, listener), id) in listeners.into_iter().enumerate().zip(["one", "two"]) {
        cluster.start_node(at, ControllerListener::Bound(listener), Some(id.to_owned())).unwrap();
    }
    eventually("both ids are named", || {
        cluster.client(0).status().waiting.is_some_and(|why| why.contains("one") && why.contains("two"))
    });
}

#[test]
fn every_node_proposes_and_reads_its_own_write() {
    let cluster = Cluster::start(3);
    for at in 0..3 {
        let epoch = cluster.register(at);
        let image = cluster.client(at).image();
        let broker = image.brokers.get(&cluster.nodes[at].id).expect("applied here when the answer came");
        assert_eq!(broker.epoch, epoch);
    }
    for at in 0..3 {
        eventually("unfenced", || cluster.broker_state(at, at) == Some(BrokerState::Active));
    }
    // The proposer's image knows all brokers once it has read through the leader.
    let process = cluster.nodes[2].process.as_ref().unwrap();
    let client = process.quorum.client().clone();
    process.runtime.block_on(client.linearizable(PATIENCE)).unwrap();
    let spec = TopicSpec { name: "orders".to_owned(), partitions: Some(6), ..TopicSpec::default() };
    // From a thread without any runtime's clock or reactor of its own.
    let created = futures::executor::block_on(client.create_topic(spec.clone(), PATIENCE)).unwrap();
    assert_eq!((created.partitions, created.replication_factor), (6, 3));
    assert_eq!(client.image().topics.get(&created.id).unwrap().partitions.len(), 6);
    let twice = process.runtime.block_on(client.create_topic(spec, PATIENCE));
    assert!(matches!(twice, Err(QuorumError::Refused(_))), "{twice:?}");

    let epoch = client.image().brokers.get(&BrokerId(3)).unwrap().epoch;
    let one = process.runtime.block_on(client.allocate_producer_ids(BrokerId(3), epoch)).unwrap();
    let two = process.runtime.block_on(client.allocate_producer_ids(BrokerId(3), epoch)).unwrap();
    assert!(one.end <= two.start && !one.is_empty(), "{one:?}, {two:?}");
    process.runtime.block_on(client.delete_topic(created.id, PATIENCE)).unwrap();
    assert!(client.image().topics.is_empty());
}

#[test]
fn a_restart_of_all_keeps_what_was_acknowledged() {
    let mut cluster = Cluster::start(3);
    for at in 0..3 {
        cluster.register(at);
    }
    eventually("three brokers", || {
        (0..3).all(|at| (0..3).all(|broker| cluster.broker_state(at, broker) == Some(BrokerState::Active)))
    });
    let client = cluster.client(1);
    let spec = TopicSpec { name: "kept".to_owned(), partitions: Some(3), ..TopicSpec::default() };
    let created = futures::executor::block_on(client.create_topic(spec, PATIENCE)).unwrap();
    let id = client.image().cluster_id.clone();
    drop(client);
    // Two die at once, one stops in order: what counts is what they have on disk.
    cluster.kill(0);
    cluster.kill(1);
    cluster.stop(2);
    (0..3).for_each(|at| cluster.restart(at));
    let leader = cluster.await_leader();
    let process = cluster.nodes[leader].process.as_ref().unwrap();
    process.runtime.block_on(process.quorum.ready(PATIENCE)).unwrap();
    let image = process.quorum.client().image();
    assert_eq!(image.cluster_id, id);
    assert_eq!(image.topics.get(&created.id).map(|topic| topic.partitions.len()), Some(3));
    assert_eq!(image.brokers.size(), 3);
}

#[test]
fn a_dead_leader_is_succeeded_and_fenced() {
    let mut cluster = Cluster::start(3);
    for at in 0..3 {
        cluster.register(at);
    }
    eventually("three brokers", || {
        (0..3).all(|at| (0..3).all(|broker| cluster.broker_state(at, broker) == Some(BrokerState::Active)))
    });
    let leader = cluster.await_leader();
    let begun = Instant::now();
    cluster.kill(leader);
    eventually("another leads", || cluster.leader().is_some_and(|now| now != leader));
    let succeeded = begun.elapsed();
    let now = cluster.leader().unwrap();
    eventually("the dead leader's broker is fenced", || cluster.broker_state(now, leader) == Some(BrokerState::Fenced));
    println!("raft leader dead: succeeded after {succeeded:?}, its broker fenced after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5), "by proof, not by the session of nine seconds");
    cluster.propose(now, Command::SetFeatureLevel { level: 1 }).unwrap();
}

#[test]
fn a_dead_follower_is_fenced_by_proof() {
    let mut cluster = Cluster::start(3);
    for at in 0..3 {
        cluster.register(at);
    }
    eventually("three brokers", || {
        (0..3).all(|at| (0..3).all(|broker| cluster.broker_state(at, broker) == Some(BrokerState::Active)))
    });
    let leader = cluster.await_leader();
    let victim = (leader + 1) % 3;
    let begun = Instant::now();
    cluster.kill(victim);
    eventually("fenced", || cluster.broker_state(leader, victim) == Some(BrokerState::Fenced));
    println!("broker dead: fenced after {:?}, counted from before its death", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5), "by proof, not by the session of nine seconds");
    // It comes back under a new epoch, at once.
    cluster.restart(victim);
    let epoch = cluster.register(victim);
    eventually("active again", || cluster.broker_state(leader, victim) == Some(BrokerState::Active));
    assert_eq!(cluster.client(leader).image().brokers.get(&cluster.nodes[victim].id).unwrap().epoch, epoch);
}

/// Broker 9, which is nowhere.
fn silent_broker(cluster: &Cluster) -> RegisterBroker {
    let image = cluster.client(0).image();
    let ours = image.brokers.get(&BrokerId(1)).unwrap();
    RegisterBroker {
        broker: BrokerId(9),
        cluster_id: image.cluster_id.as_deref().unwrap().to_owned(),
        incarnation: IncarnationId::random(),
        listeners: ours.listeners.clone(),
        inter_broker_listener: ours.inter_broker_listener.clone(),
        controller_url: ours.controller_url.clone(),
        admin_url: String::new(),
        rack: None,
        log_dirs: vec![DirectoryId::from_bytes([9; 16])],
        metadata_dir: DirectoryId::from_bytes([8; 16]),
        features: BTreeMap::new(),
        version: "test".to_owned(),
        claim: DataClaim::Nothing,
        previous_is_dead: false,
        time: Timestamp(1),
    }
}

#[test]
fn a_late_registration_of_a_predecessor_does_not_replace_one_that_is_not_unfenced_yet() {
    let limits = QuorumLimits {
        session_timeout: Duration::from_secs(3),
        heartbeat_interval: Duration::from_millis(500),
        ..QuorumLimits::default()
    };
    let cluster = Cluster::start_with(1, 0, limits);
    cluster.register(0);
    // Somebody listens and says nothing: nothing is proved.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let controller_url = format!("http://{}", listener.local_addr().unwrap());
    let present = RegisterBroker { controller_url, ..silent_broker(&cluster) };
    let late = RegisterBroker { incarnation: IncarnationId::random(), ..present.clone() };
    cluster.propose(0, Command::RegisterBroker(present.clone())).unwrap();
    let refused = cluster.propose(0, Command::RegisterBroker(late.clone()));
    assert!(
        matches!(refused, Err(QuorumError::Refused(Refusal::DuplicateRegistration(BrokerId(9))))),
        "it lives, though it is fenced: {refused:?}"
    );
    cluster.propose(0, Command::RegisterBroker(present)).expect("the same process may ask again");
    eventually("silent for a session", || cluster.propose(0, Command::RegisterBroker(late.clone())).is_ok());
}

#[test]
fn a_silent_broker_is_fenced_when_its_session_ends() {
    let limits = QuorumLimits {
        session_timeout: Duration::from_millis(700),
        heartbeat_interval: Duration::from_millis(100),
        ..QuorumLimits::default()
    };
    let cluster = Cluster::start_with(1, 0, limits);
    cluster.register(0);
    eventually("active", || cluster.broker_state(0, 0) == Some(BrokerState::Active));
    // A broker of another process that registers and never says a word.
    let silent = silent_broker(&cluster);
    let (Answer::Registered { epoch }, _) = cluster.propose(0, Command::RegisterBroker(silent)).unwrap() else {
        panic!("not registered")
    };
    let unfence = Command::UnfenceBroker { broker: BrokerId(9), epoch, lost: Vec::new(), time: Timestamp(2) };
    cluster.propose(0, unfence).unwrap();
    let state = || cluster.client(0).image().brokers.get(&BrokerId(9)).map(|broker| broker.state);
    assert_eq!(state(), Some(BrokerState::Active));
    eventually("fenced by the session", || state() == Some(BrokerState::Fenced));
    assert_eq!(cluster.broker_state(0, 0), Some(BrokerState::Active), "who speaks stays");
}

#[test]
fn a_broker_shuts_down_in_order() {
    let cluster = Cluster::start(1);
    let epoch = cluster.register(0);
    eventually("active", || cluster.broker_state(0, 0) == Some(BrokerState::Active));
    let process = cluster.nodes[0].process.as_ref().unwrap();
    let client = process.quorum.client().clone();
    let heartbeat = |drained| Heartbeat {
        broker: BrokerId(1),
        epoch,
        incarnation: process.incarnation,
        version: client.image().version,
        want_fence: false,
        want_shutdown: true,
        drained,
        lost: Vec::new(),
        watermarks: Vec::new(),
    };
    let answer = process.runtime.block_on(client.heartbeat(heartbeat(false))).unwrap();
    assert_eq!((answer.state, answer.should_shutdown), (BrokerState::ShuttingDown, false));
    let answer = process.runtime.block_on(client.heartbeat(heartbeat(true))).unwrap();
    assert!(answer.should_shutdown, "{answer:?}");
    let stale = Heartbeat { epoch: BrokerEpoch(epoch.0 + 1), ..heartbeat(true) };
    assert!(matches!(process.runtime.block_on(client.heartbeat(stale)), Err(QuorumError::Refused(_))));
}

#[test]
fn a_node_that_lags_behind_the_log_gets_a_snapshot() {
    let limits = QuorumLimits { snapshot_entries: 100, ..QuorumLimits::default() };
    let mut cluster = Cluster::start_with(3, 0, limits);
    for at in 0..3 {
        cluster.register(at);
    }
    let leader = cluster.await_leader();
    let laggard = (leader + 1) % 3;
    cluster.stop(laggard);
    let behind = cluster.client(leader).status().last_log.unwrap();
    let process = cluster.nodes[leader].process.as_ref().unwrap();
    let client = process.quorum.client().clone();
    let setting = ConfigOperation { key: "max.connections".to_owned(), action: ConfigAction::Set("77".to_owned()) };
    let change =
        ConfigChange { resource: ConfigResource::Brokers, replace: false, operations: vec![setting], expected: None };
    process.runtime.block_on(client.alter_configs(change, false, PATIENCE)).unwrap();
    let begun = Instant::now();
    process.runtime.block_on(async {
        for _ in 0..10 {
            let writes = (0..60).map(|_| client.propose(Command::SetFeatureLevel { level: 1 }, PATIENCE));
            for written in futures::future::join_all(writes).await {
                written.unwrap();
            }
        }
    });
    println!("600 proposals, 60 at a time, two of three voters: {:?}", begun.elapsed());
    eventually("the entries it lacks are gone", || {
        cluster.client(leader).status().purged.is_some_and(|purged| purged > behind)
    });
    cluster.restart(laggard);
    let version = cluster.client(leader).image().version;
    eventually("it has caught up", || cluster.client(laggard).image().version >= version);
    assert_eq!(cluster.client(laggard).image().brokers.size(), 3);
    let setting = |cluster: &Cluster| {
        let image = cluster.client(laggard).image();
        image.dynamic_setting(BrokerId(1), "max.connections").map(str::to_owned)
    };
    assert_eq!(setting(&cluster).as_deref(), Some("77"));
    eventually("by a snapshot", || cluster.client(laggard).status().snapshot > Some(behind));
    // And what it got by snapshot survives its own restart.
    cluster.kill(laggard);
    cluster.restart(laggard);
    eventually("it has it still", || cluster.client(laggard).image().version >= version);
    assert_eq!(setting(&cluster).as_deref(), Some("77"));
}

#[test]
fn a_broker_that_is_no_voter_learns() {
    let cluster = Cluster::start_with(1, 1, QuorumLimits::default());
    cluster.register(0);
    cluster.register(1);
    eventually("it observes and is active", || {
        cluster.client(1).status().role == QuorumRole::Observer
            && cluster.broker_state(1, 1) == Some(BrokerState::Active)
    });
    let process = cluster.nodes[1].process.as_ref().unwrap();
    let image = process.runtime.block_on(process.quorum.client().linearizable(PATIENCE)).unwrap();
    assert!(image.version > ImageVersion(0) && image.brokers.size() == 2);
}
