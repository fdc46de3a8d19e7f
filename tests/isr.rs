//! Who leaves the ISR, when and why (R109, R112), on real processes.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use highwater_tests::client::Client;
use highwater_tests::process::{Processes, Role, free_ports};
use highwater_tests::slow_link::{SlowLink, UNLIMITED};
use highwater_wire::request::UnregisterBrokerRequest;
use serde_json::{Value, json};

#[allow(dead_code)] // each test file uses its part
mod stock;
use stock::Load;

/// Long sessions and a short lag limit: only the leader's timer evicts.
const LAG_ONLY: &[(&str, &str)] = &[("broker.session.timeout.ms", "60000"), ("replica.lag.time.max.ms", "5000")];

async fn create_assigned(cluster: &Processes, name: &str, replicas: &[usize], min_isr: &str) {
    let body = json!({"topic_name": name, "replicas_assignments": {"0": replicas},
        "configs": [{"name": "min.insync.replicas", "value": min_isr}]});
    let answer = cluster.http.post(cluster.url(1, "/topics")).json(&body).send().await.unwrap();
    let status = answer.status().as_u16();
    assert_eq!(status, 201, "{}", answer.text().await.unwrap());
    cluster.wait_state(1, name, 0, "in sync", |s| s["isr"].as_array().is_some_and(|i| i.len() == replicas.len())).await;
}

/// The newest change of this type.
async fn newest(cluster: &Processes, id: usize, topic: &str, kind: &str) -> Value {
    let history = cluster.history(id, topic, 0).await;
    history.into_iter().filter(|c| c["type"] == kind).max_by_key(|c| c["metadata_offset"].as_u64()).expect("a change")
}

/// A client that acks=1 serves sees no more than this of what happens to a follower.
fn assert_steady(quiet: f64, disturbed: f64) {
    let change = disturbed / quiet;
    assert!((0.9..=1.1).contains(&change), "the acks=1 rate went from {quiet:.0} to {disturbed:.0} a second");
}

fn rate(load: &Load, before: usize, since: Instant) -> f64 {
    (load.acked() - before) as f64 / since.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_follower_is_evicted_by_the_lag_timer_and_comes_back() {
    let mut cluster = Processes::start(3, LAG_ONLY);
    cluster.wait_ready().await;
    let controller = cluster.controller().await;
    let leader = controller;
    let follower = controller % 3 + 1;
    create_assigned(&cluster, "lag", &[leader, follower], "1").await;
    let load = Load::start(&cluster.bootstrap(), "lag", 1_000, 1_000, &[("acks", "1")]);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 2_000).await;
    let (count, since) = (load.acked(), Instant::now());
    cluster.wait("a quiet stretch", Duration::from_secs(10), async || since.elapsed() > Duration::from_secs(3)).await;
    let quiet = rate(&load, count, since);

    cluster.pause(follower);
    let paused = Instant::now();
    let count = load.acked();
    cluster
        .wait_state(leader, "lag", 0, "without the follower", |s| s["isr"].as_array().is_some_and(|i| i.len() == 1))
        .await;
    let evicted = paused.elapsed();
    println!("evicted after {evicted:?}");
    assert!((5.0..8.5).contains(&evicted.as_secs_f64()), "evicted after {evicted:?}");
    cluster.wait("10 s", Duration::from_secs(20), async || paused.elapsed() > Duration::from_secs(10)).await;
    let disturbed = rate(&load, count, paused);
    assert_steady(quiet, disturbed);
    cluster.resume(follower);
    let resumed = Instant::now();
    cluster.wait_state(leader, "lag", 0, "in sync again", |s| s["isr"].as_array().is_some_and(|i| i.len() == 2)).await;
    println!("back {:?} after it went on", resumed.elapsed());
    let shrink = newest(&cluster, leader, "lag", "ISR_SHRINK").await;
    assert_eq!(shrink["reason"], "FOLLOWER_STOPPED_FETCHING", "{shrink}");
    assert_eq!(shrink["evidence"]["broker_id"], json!(follower), "{shrink}");
    // R112: between one lag limit and one and a half after it was last caught up, whenever somebody looks.
    let age = shrink["evidence"]["last_caught_up_age_ms"].as_u64().expect("evidence of its age");
    assert!((5_000..=7_550).contains(&age), "{shrink}");
    assert_eq!(newest(&cluster, leader, "lag", "ISR_EXPAND").await["reason"], "CAUGHT_UP");
    let outcome = load.finish();
    assert!(outcome.failed.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_behind_a_slow_link_is_evicted_as_slow_and_comes_back() {
    // Each node's replication listener is advertised through a proxy of its own.
    let ports = free_ports(6);
    let mut cluster = Processes::prepare(3, LAG_ONLY);
    let mut links = Vec::new();
    for id in 1..=3 {
        let (real, proxied) = (ports[id - 1], ports[id + 2]);
        links.push(SlowLink::start(proxied, real));
        let file = cluster.node(id).dir.join("server.properties");
        let node = cluster.node(id);
        let text = std::fs::read_to_string(&file)
            .unwrap()
            .replace("listeners=PLAINTEXT://", &format!("listeners=REPLICATION://127.0.0.1:{real},PLAINTEXT://"))
            .replace("map=PLAINTEXT:PLAINTEXT,", "map=PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,")
            + &format!(
                "advertised.listeners=PLAINTEXT://127.0.0.1:{},REPLICATION://127.0.0.1:{proxied}\n\
                 inter.broker.listener.name=REPLICATION\n",
                node.kafka_port
            );
        std::fs::write(&file, text.replace("http.listeners=REPLICATION", "http.listeners=http")).unwrap();
    }
    for id in 1..=3 {
        cluster.start_node(id);
    }
    cluster.wait_ready().await;
    let (leader, follower) = (1, 2);
    create_assigned(&cluster, "slow", &[leader, follower], "1").await;
    let load = Load::start(&cluster.bootstrap(), "slow", 1_000, 1_000, &[("acks", "1")]);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 3_000).await;
    let (count, since) = (load.acked(), Instant::now());
    cluster.wait("a quiet stretch", Duration::from_secs(10), async || since.elapsed() > Duration::from_secs(3)).await;
    let quiet = rate(&load, count, since);
    links[leader - 1].limit(150_000);
    let (count, since) = (load.acked(), Instant::now());
    cluster
        .wait_state(leader, "slow", 0, "without the follower", |s| s["isr"].as_array().is_some_and(|i| i.len() == 1))
        .await;
    let disturbed = rate(&load, count, since);
    assert_steady(quiet, disturbed);
    let shrink = newest(&cluster, leader, "slow", "ISR_SHRINK").await;
    assert_eq!(shrink["reason"], "FOLLOWER_SLOW", "{shrink}");
    links[leader - 1].limit(UNLIMITED);
    cluster
        .wait_state(leader, "slow", 0, "caught up", |s| {
            s["replica_status"].as_array().is_some_and(|all| all.iter().all(|r| r["is_caught_up"] == true))
        })
        .await;
    let caught_up = Instant::now();
    cluster.wait_state(leader, "slow", 0, "in sync again", |s| s["isr"].as_array().is_some_and(|i| i.len() == 2)).await;
    assert!(caught_up.elapsed() < Duration::from_secs(2), "back {:?} after catching up", caught_up.elapsed());
    assert!(load.finish().failed.is_empty());
}

/// What Kafka 4.4 loses (D30): one replica wiped, the other killed, the quorum's leader killed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn no_last_known_leader_leads_with_an_empty_log() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    let (wiped, killed) = (1, 2);
    for round in 0..20 {
        let (safe, risky) = (format!("safe-{round}"), format!("risky-{round}"));
        create_assigned(&cluster, &safe, &[wiped, killed], "2").await;
        create_assigned(&cluster, &risky, &[killed, wiped], "1").await;
        let settings = [("enable.idempotence", "true")];
        let loads = [&safe, &risky].map(|t| Load::start(&cluster.bootstrap(), t, 500, 100, &settings));
        cluster.wait("acknowledgements", Duration::from_secs(30), async || loads.iter().all(|l| l.acked() > 200)).await;
        let orders = [["wipe", "kill", "quorum"], ["kill", "wipe", "quorum"], ["quorum", "wipe", "kill"]];
        let more = [["quorum", "kill", "wipe"], ["wipe", "quorum", "kill"], ["kill", "quorum", "wipe"]];
        for step in if round % 2 == 0 { orders[round / 2 % 3] } else { more[round / 2 % 3] } {
            match step {
                "wipe" => {
                    if cluster.nodes[wiped - 1].runs() {
                        cluster.kill(wiped);
                    }
                    std::fs::remove_dir_all(cluster.node(wiped).data_dir()).unwrap();
                }
                "kill" => {
                    if cluster.nodes[killed - 1].runs() {
                        cluster.kill(killed);
                    }
                }
                _ => {
                    // With two nodes gone there is no leader to kill: then the third one, which would be it.
                    let alive = (1..=3).filter(|&id| cluster.nodes[id - 1].runs()).count();
                    let leader = if alive >= 2 { cluster.controller().await } else { 3 };
                    if cluster.nodes[leader - 1].runs() {
                        cluster.kill(leader);
                    }
                }
            }
        }
        for id in if round % 2 == 0 { [1, 3, 2] } else { [2, 3, 1] } {
            if !cluster.nodes[id - 1].runs() {
                cluster.start_node(id);
            }
        }
        cluster.wait_ready().await;
        cluster.wait_state(3, &safe, 0, "led", |s| s["leader_id"].is_i64()).await;
        let [safe_load, risky_load] = loads;
        let outcome = safe_load.finish();
        stock::check_once_in_order(&outcome.acked, &stock::read_all(&cluster.bootstrap(), &safe, 1));
        let state = cluster.state(3, &risky, 0).await.expect("a state");
        if state["leader_id"].is_i64() {
            assert!(state["log_end_offset"].as_i64().is_none_or(|end| end > 0), "round {round}: {state}");
        }
        risky_load.abandon();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_registers_again_while_it_lives_changes_the_isr_as_before() {
    let roles = [Role::Controller, Role::Broker, Role::Broker];
    // Short enough that its connections outlive the pause.
    let soon = [("broker.session.timeout.ms", "1500"), ("broker.heartbeat.interval.ms", "400")];
    let mut cluster = Processes::start_roles(&roles, &soon);
    cluster.wait_ready().await;
    let broker = async |cluster: &Processes| {
        let (status, body) = cluster.get(1, "/brokers/3").await.unwrap_or_default();
        (status == 200).then_some(body)
    };
    let before = broker(&cluster).await.expect("broker 3 is registered")["broker_epoch"].clone();
    assert!(before.is_i64());
    // Nothing is ever written to it: its follower comes back without any fetch of new records.
    create_assigned(&cluster, "idle", &[2, 3], "1").await;
    // Silent and forgotten; then it goes on, and finds that nobody knows it.
    cluster.pause(3);
    // Over HTTP that is refused for one that owns replicas.
    let mut client = Client::connect((Ipv4Addr::LOCALHOST, cluster.node(2).kafka_port).into()).await.unwrap();
    let mut request = UnregisterBrokerRequest::default();
    request.broker_id = 3;
    let forgotten = async || client.ask(0, request.clone()).await.is_ok_and(|answer| answer.error_code == 0);
    cluster.wait("broker 3 is fenced and forgotten", Duration::from_secs(20), forgotten).await;
    assert_eq!(broker(&cluster).await, None);
    cluster.resume(3);
    let again =
        async || broker(&cluster).await.is_some_and(|it| it["broker_epoch"].is_i64() && it["broker_epoch"] != before);
    cluster.wait("broker 3 has registered again", Duration::from_secs(20), again).await;
    cluster.wait_node_ready(3).await;
    let members = |s: &Value| s["isr"].as_array().map_or(0, Vec::len);
    cluster.wait_state(1, "idle", 0, "in sync on both again", |s| s["leader_id"] == 2 && members(s) == 2).await;
    create_assigned(&cluster, "again", &[3, 2], "1").await;
    // A follower leaves by proof of its death; to take it back is for the leader to propose.
    cluster.kill(2);
    cluster.wait_state(1, "again", 0, "without broker 2", |s| members(s) == 1).await;
    cluster.start_node(2);
    cluster.wait_state(1, "again", 0, "in sync on both again", |s| s["leader_id"] == 3 && members(s) == 2).await;
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_partition_takes_back_a_follower_that_was_fenced_for_a_moment() {
    let roles = [Role::Controller, Role::Broker, Role::Broker];
    // Its connections outlive the pause, so that nothing but its being unfenced tells of it.
    let soon = [("broker.session.timeout.ms", "1500"), ("broker.heartbeat.interval.ms", "400")];
    let mut cluster = Processes::start_roles(&roles, &soon);
    cluster.wait_ready().await;
    create_assigned(&cluster, "idle", &[2, 3], "1").await;
    let members = |s: &Value| s["isr"].as_array().map_or(0, Vec::len);
    cluster.pause(3);
    cluster.wait_state(1, "idle", 0, "without broker 3", |s| members(s) == 1).await;
    cluster.resume(3);
    cluster.wait_state(1, "idle", 0, "in sync on both again", |s| members(s) == 2).await;
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}
