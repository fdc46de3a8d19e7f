//! Many partitions in real processes, and a follower that does not keep up with a deletion. Part of `tests/process.rs`, so
//! that it is linked once and takes its turn.
//!
//! The bounds are those of an unoptimized build beside other work: far above what a release build needs, far below what one
//! task, timer or file rewrite per partition costs.

use std::time::{Duration, Instant};

use highwater_tests::process::Processes;
use serde_json::{Value, json};

const PARTITIONS: usize = 1_000;
/// A second, of three idle nodes together. Twice what they need; raft's clock alone, ticking everywhere, cost as much again.
const WAKEUPS_MAX: u64 = 400;

/// Whether every replica of every partition leads or fetches, in sync.
async fn all_fetch(cluster: &Processes) -> bool {
    let path = "/topics/-/partitions/-/replica-status?fields=fetch_state,is_in_isr";
    let Ok((200, answer)) = cluster.get(1, path).await else { return false };
    let rows = answer["data"].as_array().map_or(&[][..], Vec::as_slice);
    let fetches = |row: &Value| matches!(row["fetch_state"].as_str(), Some("LEADER" | "FETCHING"));
    rows.len() == 3 * PARTITIONS && rows.iter().all(|row| fetches(row) && row["is_in_isr"] == true)
}

async fn under_replicated(cluster: &Processes) -> Option<u64> {
    let (status, health) = cluster.get(1, "/health").await.ok()?;
    (status == 200).then(|| health["partitions"]["under_replicated"].as_u64()).flatten()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_partitions_come_up_idle_cheaply_and_come_back_after_a_kill() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    let begun = Instant::now();
    let body = json!({"topic_name": "many", "partitions_count": PARTITIONS, "replication_factor": 3});
    let answer = cluster.http.post(cluster.url(1, "/topics")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    cluster.wait("all led and followed", Duration::from_secs(30), async || all_fetch(&cluster).await).await;
    println!("{PARTITIONS} partitions: led and followed after {:?}", begun.elapsed());

    // What is idle costs next to nothing: no clock ticks per partition.
    let span = Duration::from_secs(5);
    let usage = |cluster: &Processes| -> (Duration, u64) {
        let usages: Vec<_> = (1..=3).map(|id| cluster.usage(id)).collect();
        (usages.iter().map(|usage| usage.cpu).sum(), usages.iter().map(|usage| usage.sleeps).sum())
    };
    let before = usage(&cluster);
    tokio::time::sleep(span).await;
    let after = usage(&cluster);
    let (spent, wakeups) = (after.0 - before.0, after.1.saturating_sub(before.1) / span.as_secs());
    println!("idle: {spent:?} of {span:?}, {wakeups} wake-ups a second over all three");
    assert!(spent < span.mul_f64(0.5), "{spent:?} of {span:?} while nothing happens");
    // Whatever the build and the machine: a heartbeat, a fetch and a look at a deadline wake threads, a clock does not.
    assert!(wakeups < WAKEUPS_MAX, "{wakeups} wake-ups a second while nothing happens");
    for id in 1..=3 {
        let resident = cluster.usage(id).resident_kib >> 10;
        println!("node {id}: {resident} MiB resident");
        assert!(resident < 160, "node {id} holds {resident} MiB");
    }

    // One answers quickly among many.
    let mut slowest = Duration::ZERO;
    for n in 0..60 {
        let begun = Instant::now();
        assert!(cluster.state(1 + n % 3, "many", n * 16).await.is_some());
        slowest = slowest.max(begun.elapsed());
    }
    println!("state of one partition: at most {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?} for one partition's state");

    cluster.kill(3);
    let all_short = async || under_replicated(&cluster).await == Some(PARTITIONS as u64);
    cluster.wait("every partition is short of node 3", Duration::from_secs(20), all_short).await;
    let begun = Instant::now();
    let (status, listed) = cluster.get(2, "/topics/-/partitions/-/state?state=UNDER_REPLICATED").await.unwrap();
    assert_eq!((status, listed["data"].as_array().map(Vec::len)), (200, Some(PARTITIONS)));
    println!("all {PARTITIONS} under-replicated ones listed in {:?}", begun.elapsed());
    let begun = Instant::now();
    cluster.start_node(3);
    let full = async || under_replicated(&cluster).await == Some(0);
    cluster.wait("every partition is whole again", Duration::from_secs(40), full).await;
    println!("restart to full ISR: {:?}", begun.elapsed());
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_waits_for_a_live_replica_that_stands_still_and_may_be_asked_again() {
    // R274: it is alive until its session ends.
    let mut cluster = Processes::start(3, &[("broker.session.timeout.ms", "30000")]);
    cluster.wait_ready().await;
    let body = json!({"topic_name": "t", "replicas_assignments": {"0": [1, 2, 3]}});
    let answer = cluster.http.post(cluster.url(1, "/topics")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    cluster.wait_state(1, "t", 0, "led by node 1", |s| s["leader_id"] == 1 && s["high_watermark"].is_i64()).await;
    let address = ([127, 0, 0, 1], cluster.node(1).kafka_port).into();
    let mut client = highwater_tests::client::Client::connect(address).await.unwrap();
    for value in ["a", "b", "c"] {
        let batch = highwater_tests::client::batch(1_760_000_000_000, &[value]);
        assert_eq!(client.produce("t", 0, -1, batch).await.unwrap().error_code, 0);
    }
    let delete = async |timeout_ms: u64| {
        let url = cluster.url(2, &format!("/topics/t/partitions/0/records:delete?timeout_ms={timeout_ms}"));
        let answer = cluster.http.post(url).json(&json!({"before_offset": 2})).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    cluster.pause(3);
    let (status, told) = delete(500).await;
    assert_eq!((status, &told["error_code"]), (500, &json!(50003)), "{told}");
    assert_eq!(told["details"]["kafka_error"], "REQUEST_TIMED_OUT", "{told}");
    cluster.resume(3);
    let (status, told) = delete(20_000).await;
    assert_eq!((status, &told["low_watermark"]), (200, &json!(2)), "{told}");
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}
