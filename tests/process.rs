//! Real processes, killed, paused and wiped under load from librdkafka.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use highwater_tests::client::{Client, batch, produce_request};
use highwater_tests::process::{Processes, Role};
use serde_json::Value;

mod scale;
#[allow(dead_code)] // each test file uses its part
mod stock;
use stock::{Load, check_once_in_order, read_all};

const IDEMPOTENT: &[(&str, &str)] = &[("enable.idempotence", "true")];

/// All `.log` bytes of one replica, in order.
fn replica_bytes(data: &Path, topic: &str, partition: usize) -> Vec<u8> {
    let dir = data.join(format!("{topic}-{partition}"));
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .collect();
    files.sort();
    let mut bytes: Vec<u8> = files.iter().flat_map(|path| fs::read(path).unwrap()).collect();
    // A preallocated tail is zeros: no batch begins with a length of zero.
    let end = end_of_batches(&bytes);
    bytes.truncate(end);
    bytes
}

fn end_of_batches(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(length) = bytes.get(at + 8..at + 12) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        if length == 0 || at + 12 + length > bytes.len() {
            break;
        }
        at += 12 + length;
    }
    at
}

async fn wait_quiet(cluster: &Processes, topic: &str, partitions: usize, rf: usize) {
    for partition in 0..partitions {
        cluster
            .wait_state(1, topic, partition, "in sync everywhere", |s| {
                s["isr"].as_array().is_some_and(|isr| isr.len() == rf)
                    && s["high_watermark"].is_i64()
                    && s["high_watermark"] == s["log_end_offset"]
                    && s["replica_status"].as_array().is_some_and(|all| {
                        all.len() == rf && all.iter().all(|r| r["log_end_offset"] == s["log_end_offset"])
                    })
            })
            .await;
    }
}

fn check_equal_bytes(cluster: &Processes, topic: &str, partitions: usize) {
    for partition in 0..partitions {
        let all: Vec<Vec<u8>> = cluster.nodes.iter().map(|n| replica_bytes(&n.data_dir(), topic, partition)).collect();
        for (other, bytes) in all.iter().enumerate().skip(1) {
            assert!(*bytes == all[0], "{topic}-{partition}: replicas 1 and {} differ", other + 1);
        }
        assert!(!all[0].is_empty(), "{topic}-{partition} is empty");
    }
}

/// Issue 3, "Done when" 3: numbered messages under kill -9 of each node in turn.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_messages_survive_nodes_killed_in_turn() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "numbers", 3, 3, &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster.bootstrap(), "numbers", 2_500, 100, IDEMPOTENT);
    let (mut kills, mut of_a_leader, mut of_the_controller) = (0, 0, 0);
    while kills < 6 || of_a_leader < 3 || of_the_controller < 1 || load.sent() < 100_000 {
        let controller = cluster.controller().await;
        let victim = if of_the_controller == 0 && kills >= 2 { controller } else { kills % 3 + 1 };
        let observer = victim % 3 + 1;
        let mut leads = false;
        for partition in 0..3 {
            let state = cluster.state(observer, "numbers", partition).await.expect("a state");
            leads |= state["leader_id"] == victim as i64;
        }
        let before = load.acked();
        cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > before + 100).await;
        cluster.kill(victim);
        kills += 1;
        of_a_leader += usize::from(leads);
        of_the_controller += usize::from(victim == controller);
        let at_kill = load.acked();
        cluster.wait("writable without it", Duration::from_secs(30), async || load.acked() > at_kill + 2_000).await;
        cluster.start_node(victim);
        cluster.wait_node_ready(victim).await;
        for partition in 0..3 {
            cluster
                .wait_state(observer, "numbers", partition, "in sync again", |s| {
                    s["isr"].as_array().is_some_and(|isr| isr.len() == 3)
                })
                .await;
        }
        assert!(
            kills < 60,
            "not reached in {kills} kills: {of_a_leader} of a leader, {of_the_controller} of the controller, {} sent",
            load.sent()
        );
    }
    let still = load.sent();
    cluster.wait("sent after the last restart", Duration::from_secs(20), async || load.sent() > still + 2_000).await;
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    assert!(outcome.acked.len() >= 100_000, "only {} acknowledged", outcome.acked.len());
    println!(
        "kills {kills} (leader {of_a_leader}, controller {of_the_controller}), acked {}, longest gap {:?}",
        outcome.acked.len(),
        outcome.longest_gap
    );
    let read = read_all(&cluster.bootstrap(), "numbers", 3);
    check_once_in_order(&outcome.acked, &read);
    wait_quiet(&cluster, "numbers", 3, 3).await;
    check_equal_bytes(&cluster, "numbers", 3);
    let mut shrinks = 0;
    for partition in 0..3 {
        for change in cluster.history(1, "numbers", partition).await {
            let reason = change["reason"].as_str().unwrap_or_default();
            match change["type"].as_str() {
                Some("ISR_SHRINK") => {
                    shrinks += 1;
                    assert!(
                        ["BROKER_FENCED", "BROKER_RESTARTED"].contains(&reason) || reason.starts_with("FOLLOWER_"),
                        "a shrink without a good reason: {change}"
                    );
                }
                Some("ISR_EXPAND") => assert!(["CAUGHT_UP", "BROKER_RETURNED"].contains(&reason), "{change}"),
                _ => {}
            }
        }
    }
    assert!(shrinks >= 6, "{shrinks} shrinks in the history of {kills} kills");
}

/// "Done when" 4: the leader is paused for 12 s while a producer is connected to it alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_leader_acknowledges_nothing_that_is_missing_later() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "paused", 1, 3, &[("min.insync.replicas", "2")]).await;
    let state = cluster.state(1, "paused", 0).await.expect("a state");
    let leader = usize::try_from(state["leader_id"].as_u64().expect("a leader")).unwrap();
    let observer = leader % 3 + 1;
    let only = format!("127.0.0.1:{}", cluster.node(leader).kafka_port);
    let load = Load::start(&only, "paused", 500, 100, &[("enable.idempotence", "true")]);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 500).await;
    cluster.pause(leader);
    let paused = Instant::now();
    cluster
        .wait_state(observer, "paused", 0, "led by somebody else", |s| {
            s["leader_id"].as_u64().is_some_and(|l| l != leader as u64)
        })
        .await;
    cluster.wait("12 s of pause", Duration::from_secs(20), async || paused.elapsed() > Duration::from_secs(12)).await;
    cluster.resume(leader);
    let resumed = load.acked();
    cluster.wait("writable after the pause", Duration::from_secs(60), async || load.acked() > resumed + 500).await;
    let outcome = load.finish();
    let read = read_all(&cluster.bootstrap(), "paused", 1);
    check_once_in_order(&outcome.acked, &read);
    wait_quiet(&cluster, "paused", 1, 3).await;
    check_equal_bytes(&cluster, "paused", 1);
}

/// All three are killed at once: ordinary elections, writable soon after the last start.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_killed_as_a_whole_comes_back_with_ordinary_elections() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "all", 3, 3, &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster.bootstrap(), "all", 1_000, 100, IDEMPOTENT);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 2_000).await;
    for id in 1..=3 {
        cluster.kill(id);
    }
    let before = load.acked();
    for id in 1..=3 {
        cluster.start_node(id);
    }
    let started = Instant::now();
    cluster.wait("writable again", Duration::from_secs(30), async || load.acked() > before + 100).await;
    let writable = started.elapsed();
    println!("writable {writable:?} after the last start");
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    check_once_in_order(&outcome.acked, &read_all(&cluster.bootstrap(), "all", 3));
    for partition in 0..3 {
        for change in cluster.history(1, "all", partition).await {
            assert_ne!(change["reason"], "UNCLEAN", "{change}");
            assert_ne!(change["reason"], "UNCLEAN_ELECTION", "{change}");
            assert_ne!(change["reason"], "LAST_KNOWN", "{change}");
        }
    }
    wait_quiet(&cluster, "all", 3, 3).await;
    check_equal_bytes(&cluster, "all", 3);
}

/// The data directories of one node are wiped: it comes back empty and fetches everything again.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_node_is_filled_again_and_nothing_is_lost() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "wiped", 3, 3, &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster.bootstrap(), "wiped", 1_000, 100, IDEMPOTENT);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 2_000).await;
    let state = cluster.state(1, "wiped", 0).await.expect("a state");
    let victim = usize::try_from(state["leader_id"].as_u64().expect("a leader")).unwrap();
    cluster.kill(victim);
    fs::remove_dir_all(cluster.node(victim).data_dir()).unwrap();
    cluster.start_node(victim);
    cluster.wait_node_ready(victim).await;
    let before = load.acked();
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > before + 2_000).await;
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    check_once_in_order(&outcome.acked, &read_all(&cluster.bootstrap(), "wiped", 3));
    wait_quiet(&cluster, "wiped", 3, 3).await;
    check_equal_bytes(&cluster, "wiped", 3);
}

/// SIGTERM moves leaders first: no failed produce, exit code 0, and the stop counts as clean.
#[tokio::test(flavor = "multi_thread")]
async fn a_controlled_stop_fails_no_produce() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "drained", 3, 3, &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster.bootstrap(), "drained", 1_000, 100, IDEMPOTENT);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 1_000).await;
    assert_eq!(cluster.terminate(2), Some(0), "the exit code of a controlled stop");
    assert!(cluster.node(2).data_dir().join(".clean-shutdown").exists(), "no mark of a clean stop");
    for partition in 0..3 {
        let state = cluster.state(1, "drained", partition).await.expect("a state");
        assert!(!state["isr"].as_array().expect("a list").contains(&2.into()), "{state}");
    }
    let before = load.acked();
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > before + 1_000).await;
    cluster.start_node(2);
    cluster.wait_node_ready(2).await;
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    check_once_in_order(&outcome.acked, &read_all(&cluster.bootstrap(), "drained", 3));
    wait_quiet(&cluster, "drained", 3, 3).await;
}

/// Five nodes are restarted one after the other under load, and nothing but `broker check --next`
/// says which and when: nobody waits for a node to be ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_driven_by_the_gate_fails_no_produce() {
    let mut cluster = Processes::start(5, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "rolling", 6, 3, &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster.bootstrap(), "rolling", 1_000, 100, IDEMPOTENT);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 1_000).await;
    let next = |text: &str| -> Value { serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}")) };
    let (_, first, _) = cluster.cli(1, &["broker", "check", "--next", "-o", "json"]).await;
    let since = next(&first)["roll"]["since_metadata_offset"].to_string();
    let (began, mut taken, mut ask) = (Instant::now(), Vec::new(), 1);
    loop {
        let wait = ["broker", "check", "--next", "--since", &since, "--wait", "--timeout", "60", "-o", "json"];
        let (code, said, told) = cluster.cli(ask, &wait).await;
        assert_eq!(code, 0, "{said}{told}");
        let check = next(&said);
        assert_eq!(check["safe"], true, "{check}");
        if check["roll"]["done"] == true {
            break;
        }
        let victim = usize::try_from(check["broker_id"].as_u64().expect("a broker")).unwrap();
        assert!(!taken.contains(&victim), "{victim} twice, after {taken:?}");
        taken.push(victim);
        let before = load.acked();
        assert_eq!(cluster.terminate(victim), Some(0), "the exit code of a controlled stop");
        // Away long enough to be missed by whoever needs it.
        cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > before + 500).await;
        cluster.start_node(victim);
        ask = victim % 5 + 1;
    }
    let took = began.elapsed();
    assert_eq!(taken.len(), 5, "{taken:?}");
    let (before, ends) = (load.acked(), load.sent());
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > before + 1_000).await;
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    println!(
        "rolled {taken:?} in {took:?}, sent {ends}, acked {}, longest gaps by partition {:?}",
        outcome.acked.len(),
        outcome.longest_gaps
    );
    check_once_in_order(&outcome.acked, &read_all(&cluster.bootstrap(), "rolling", 6));
    for partition in 0..6 {
        for change in cluster.history(1, "rolling", partition).await {
            let isr = change["isr_after"].as_array().map_or(2, Vec::len);
            assert!(isr >= 2, "acks=all stood still: {change}");
        }
    }
    let (code, said, _) = cluster.cli(1, &["broker", "check", "9"]).await;
    assert_eq!(code, 3, "an unknown broker: {said}");
}

/// A second process on the same directory is refused, and told who holds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_directory_is_refused() {
    let mut cluster = Processes::start(1, &[("default.replication.factor", "1")]);
    cluster.wait_ready().await;
    let second = std::process::Command::new(highwater_tests::process::binary())
        .args(["start", "--config"])
        .arg(cluster.node(1).dir.join("server.properties"))
        .output()
        .unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned() + &String::from_utf8_lossy(&second.stdout);
    assert!(said.contains("pid") || said.contains("in use"), "{said}");
}

/// Three controllers, three brokers; two of a partition's brokers are killed. Nobody can be told that a record is safe any
/// more, and nothing that was read before is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn with_one_of_three_brokers_left_acks_all_is_refused_and_nothing_read_is_taken_back() {
    let roles = [[Role::Controller; 3], [Role::Broker; 3]].concat();
    let mut cluster = Processes::start_roles(&roles, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(4, "few", 1, 3, &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster.bootstrap(), "few", 1_000, 100, IDEMPOTENT);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 2_000).await;
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    let seen = read_all(&cluster.bootstrap(), "few", 1);
    check_once_in_order(&outcome.acked, &seen);

    let state = cluster.state(4, "few", 0).await.expect("a state");
    let leader = usize::try_from(state["leader_id"].as_u64().expect("a leader")).unwrap();
    let others: Vec<usize> = (4..=6).filter(|id| *id != leader).collect();
    let killed_at = Instant::now();
    others.iter().for_each(|id| cluster.kill(*id));
    // Asked of a controller, which hosts nothing.
    let state = cluster
        .wait_state(1, "few", 0, "under its min ISR", |s| {
            s["states"].as_array().is_some_and(|states| states.contains(&"UNDER_MIN_ISR".into()))
                && s["isr"].as_array().is_some_and(|isr| isr.len() == 1)
        })
        .await;
    let noticed = killed_at.elapsed();
    assert_eq!(state["leader_id"].as_u64(), Some(leader as u64), "{state}");
    let mut waited_for: Vec<u64> =
        state["waiting_for"].as_array().unwrap().iter().filter_map(|who| who["broker_id"].as_u64()).collect();
    waited_for.sort_unstable();
    assert_eq!(waited_for, others.iter().map(|id| *id as u64).collect::<Vec<_>>(), "{state}");

    let address = ([127, 0, 0, 1], cluster.node(leader).kafka_port).into();
    let mut client = Client::connect(address).await.unwrap();
    let now = 1_760_000_000_000;
    let mut send = async |acks: i16, value: i64| {
        let mut request = produce_request("few", 0, acks, Some(batch(now, &[&value.to_string()])));
        request.timeout_ms = 300;
        let answer = client.produce_as(9, request).await.unwrap();
        (answer.error_code, answer.base_offset)
    };
    // The leader may hear of it a moment after the controller; what it takes until then is not acknowledged, but there.
    let mut next = outcome.acked.len() as i64;
    let told_at = Instant::now();
    loop {
        match send(-1, next).await.0 {
            19 => break,
            code => assert!(matches!(code, 7 | 20) && told_at.elapsed() < Duration::from_secs(10), "error {code}"),
        }
        next += 1;
    }
    for _ in 0..10 {
        assert_eq!(send(1, next).await, (0, next), "acks=1 goes on where the leader lives");
        next += 1;
    }
    // The watermark stands: what a consumer may see is what it saw.
    assert_eq!(read_all(&cluster.bootstrap(), "few", 1), seen);
    println!("two of three brokers killed: UNDER_MIN_ISR told by a controller after {noticed:?}");

    let returned_at = Instant::now();
    others.iter().for_each(|id| cluster.start_node(*id));
    wait_quiet(&cluster, "few", 1, 3).await;
    println!("full ISR {:?} after their start", returned_at.elapsed());
    let after = read_all(&cluster.bootstrap(), "few", 1);
    assert_eq!(after[&0][..seen[&0].len()], seen[&0], "nothing is taken back");
    assert_eq!(after[&0].len() as i64, next, "and what the living leader took with acks=1 is there");
}

/// The raft leader's metadata directory is lost while a producer runs with acks=all. The node stays up, prints the command
/// that helps, and that command helps.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_voter_is_replaced_by_the_command_it_prints_and_no_send_fails() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "replaced", 3, 3, &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster.bootstrap(), "replaced", 1_000, 100, IDEMPOTENT);
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > 2_000).await;
    let victim = cluster.controller().await;
    let witness = victim % 3 + 1;
    cluster.kill(victim);
    fs::remove_dir_all(cluster.node(victim).metadata_dir()).unwrap();
    cluster.start_node(victim);
    let ready = format!("http://127.0.0.1:{}/health/ready", cluster.node(victim).http_port);
    let mut told = String::new();
    cluster
        .wait("the wiped voter says what helps", Duration::from_secs(30), async || {
            let Ok(answer) = cluster.http.get(&ready).send().await else { return false };
            let status = answer.status().as_u16();
            let body: Value = answer.json().await.unwrap_or_default();
            let whys = body["failed"].as_array().into_iter().flatten().filter_map(|failed| failed["why"].as_str());
            let why = whys.into_iter().find(|why| why.contains("lost its disk"));
            told = why.unwrap_or_default().to_owned();
            status == 503 && why.is_some()
        })
        .await;
    let (_, command) = told.split_once(": highwater ").expect("a command");
    let began = Instant::now();
    let (code, said) = highwater(&cluster, witness, command).await;
    assert_eq!(code, Some(0), "{command}: {said}");
    let replaced = began.elapsed();
    cluster.wait_node_ready(victim).await;
    let ready_after = began.elapsed();
    let before = load.acked();
    cluster.wait("acknowledgements", Duration::from_secs(30), async || load.acked() > before + 2_000).await;
    cluster
        .wait("three voters have caught up", Duration::from_secs(30), async || {
            let quorum = cluster.get(witness, "/quorum").await;
            quorum.is_ok_and(|(_, quorum)| {
                quorum["can_lose"] == 1 && quorum["current_voters"].as_array().is_some_and(|voters| voters.len() == 3)
            })
        })
        .await;
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    check_once_in_order(&outcome.acked, &read_all(&cluster.bootstrap(), "replaced", 3));
    wait_quiet(&cluster, "replaced", 3, 3).await;
    println!(
        "the raft leader's disk wiped: the command took {replaced:?}, the node was ready {ready_after:?} after its start; \
         {} sent, none failed, longest gap between acknowledgements {:?}",
        outcome.sent, outcome.longest_gap
    );
}

/// `highwater …` asking node `id`: exit code and all it said.
async fn highwater(cluster: &Processes, id: usize, arguments: &str) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(highwater_tests::process::binary());
    command.args(arguments.split_whitespace());
    command.env("HIGHWATER_URL", format!("http://127.0.0.1:{}", cluster.node(id).http_port));
    let ran = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    (ran.status.code(), said)
}

/// A person moves the quorum from one controller to another, by the commands.
#[tokio::test(flavor = "multi_thread")]
async fn the_quorum_moves_to_another_controller_by_commands() {
    let mut cluster = Processes::start_roles(&[Role::Controller, Role::Broker], &[("default.replication.factor", "1")]);
    cluster.wait_ready().await;
    cluster.create_topic(2, "moved", 1, 1, &[]).await;
    let new = cluster.add_node(Role::Controller);
    cluster.start_node(new);
    let endpoint = format!("127.0.0.1:{}", cluster.node(new).controller_port);
    let add = format!("quorum add-voter --node {new} --endpoint {endpoint}");
    cluster
        .wait("the new controller can be added", Duration::from_secs(30), async || {
            let (code, said) = highwater(&cluster, 2, &format!("{add} --dry-run")).await;
            code == Some(0) && said.starts_with("would change the voters from [1] to [1,3]")
        })
        .await;
    let (code, said) = highwater(&cluster, 2, &format!("{add} --wait")).await;
    assert_eq!((code, said.starts_with("voters [1,3]")), (Some(0), true), "{said}");
    cluster.wait_node_ready(new).await;
    let (code, said) = highwater(&cluster, 2, &format!("quorum transfer --to {new}")).await;
    assert_eq!((code, said.as_str()), (Some(0), "node 3 leads the metadata quorum\n"));
    let (code, said) = highwater(&cluster, 2, "quorum remove-voter --node 1").await;
    assert_eq!((code, said.starts_with("voters [3]")), (Some(0), true), "{said}");
    let (code, said) = highwater(&cluster, 2, "quorum status").await;
    assert_eq!((code, said.contains("CurrentVoters:    [3]")), (Some(0), true), "{said}");
    let (code, said) = highwater(&cluster, 2, "quorum remove-voter --node 3").await;
    assert_eq!((code, said.contains("the last voter")), (Some(4), true), "{said}");
    let (code, said) = highwater(&cluster, 2, "quorum transfer --to 2").await;
    assert_eq!((code, said.contains("no voter")), (Some(4), true), "{said}");
    // The first controller is gone for good, and nobody needs its address.
    cluster.kill(1);
    cluster.kill(2);
    cluster.start_node(2);
    cluster.wait_node_ready(2).await;
    cluster.create_topic(2, "afterwards", 1, 1, &[]).await;
}
