//! What a node tells of itself and of its cluster: the API's own document, events, metrics.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use highwater_tests::client::{Client, batch, contents};
use highwater_tests::cluster::Cluster;
use highwater_tests::process::{self, Processes};
use serde_json::{Value, json};

#[path = "observe/metrics.rs"]
mod metrics;
#[path = "observe/openapi.rs"]
mod openapi;
#[path = "observe/stream.rs"]
mod stream;

use stream::{Stream, kinds};

/// A process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn delete_topic(cluster: &Cluster, name: &str) {
    let id = cluster.image().topic_named(name).unwrap().id;
    let node = cluster.running()[0];
    cluster.node(node).quorum().delete_topic(id, Duration::from_secs(30)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_of_the_document_is_answered_as_the_document_says() {
    let cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("orders", 3, 3, &[]).await;
    for group in ["billing", "retired"] {
        cluster
            .wait_for(&format!("group {group} has a position"), async || {
                for id in 1..=3 {
                    let mut client = cluster.client(id).await;
                    client.find_coordinator(group).await.ok()?;
                    if client.commit_offset(group, "orders", 0, 0).await.ok()? == 0 {
                        return Some(());
                    }
                }
                None
            })
            .await;
    }
    openapi::replay(&cluster).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_replayed_exactly_from_any_place_on_any_node_and_after_restarts() {
    let mut cluster = Cluster::start(3, &[]).await;
    let mut live = Stream::open(&cluster, 1, "", None).await;
    let start = live.beginning().await;
    cluster.create_topic("a", 2, 3, &[]).await;
    cluster.crash(3).await;
    cluster.wait_state("a", 0, "without node 3", |state| state.isr.len() == 2).await;
    cluster.start_node(3).await;
    cluster.wait_in_sync("a", 0, 3).await;
    cluster.wait_in_sync("a", 1, 3).await;
    delete_topic(&cluster, "a").await;
    let told = live.until("topic.deleted", "a").await;
    let kinds = kinds(&told);
    for expected in
        ["topic.created", "broker.fenced", "isr.shrink", "broker.registered", "broker.unfenced", "isr.expand"]
    {
        assert!(kinds.contains(&expected), "{expected} is missing in {kinds:?}");
    }
    let shrink = told.iter().find(|told| told.kind == "isr.shrink").unwrap();
    assert_eq!((&shrink.data["reason"], &shrink.data["broker_id"]), (&json!("BROKER_FENCED"), &json!(3)));
    assert_eq!(shrink.data["isr_after"].as_array().unwrap().len(), 2);

    // From each place, on each node; node 3 has been killed and started since.
    for (at, node) in (0..told.len()).zip([1, 2, 3].into_iter().cycle()) {
        let mut again = Stream::open(&cluster, node, "", told[at].id.as_deref()).await;
        let rest = if at + 1 < told.len() { again.until("topic.deleted", "a").await } else { Vec::new() };
        assert_eq!(rest, told[at + 1..], "behind {:?} on node {node}", told[at].id);
    }
    cluster.stop(1).await;
    cluster.start_node(1).await;
    cluster.crash(2).await;
    cluster.start_node(2).await;
    for node in 1..=3 {
        let all = Stream::open(&cluster, node, "", Some(&start)).await.until("topic.deleted", "a").await;
        assert_eq!(all, told, "node {node}");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_hear_what_they_ask_for_and_are_told_what_is_gone() {
    let mut cluster = Cluster::start(3, &[]).await;
    let mut of_a = Stream::open(&cluster, 2, "?type=topic.*,leader.*&topic=a*", None).await;
    let mut of_broker = Stream::open(&cluster, 1, "?type=broker.*&broker_id=3", None).await;
    of_a.beginning().await;
    of_broker.beginning().await;
    cluster.create_assigned("b", &[3, 1, 2], &[]).await;
    cluster.create_assigned("a", &[3, 1, 2], &[]).await;
    cluster.stop(3).await;
    cluster.wait_state("a", 0, "led by another", |state| state.leader.is_some_and(|leader| leader.0 != 3)).await;
    cluster.wait_state("b", 0, "led by another", |state| state.leader.is_some_and(|leader| leader.0 != 3)).await;
    delete_topic(&cluster, "b").await;
    delete_topic(&cluster, "a").await;
    let told = of_a.until("topic.deleted", "a").await;
    assert_eq!(kinds(&told), ["topic.created", "leader.elected", "topic.deleted"]);
    assert!(told.iter().all(|told| told.data["topic_name"] == "a"), "{told:?}");
    assert_eq!((&told[1].data["leader_before"], &told[1].data["reason"]), (&json!(3), &json!("DRAIN")));
    let mut heard = of_broker.frame().await.unwrap();
    while heard.data.is_null() {
        heard = of_broker.frame().await.unwrap();
    }
    assert_eq!((heard.kind.as_str(), &heard.data["broker_id"]), ("broker.shutdown", &json!(3)));

    // A time to begin with: everything since the cluster was formed.
    let all = Stream::open(&cluster, 1, "?since=-1h", None).await.until("topic.deleted", "a").await;
    assert!(kinds(&all).starts_with(&["broker.registered"]) || kinds(&all).contains(&"quorum.membership"), "{all:?}");
    assert!(all.ends_with(&told[2..]));
    // A place before all that is kept.
    let mut old = Stream::open(&cluster, 1, "?type=topic.*", Some("0.0")).await;
    old.beginning().await;
    let gap = old.frame().await.unwrap();
    assert_eq!((gap.kind.as_str(), gap.id.as_deref()), ("gap", Some("0")));
    assert_eq!((&gap.data["from"], &gap.data["to"]), (&json!("0.0"), &json!("0")));
    assert_eq!(kinds(&old.until("topic.deleted", "a").await).first(), Some(&"topic.created"));
    // A place that is still to come: nothing before it is told.
    let ahead = format!("{}.0", cluster.image().version.0 + 1);
    let mut ahead = Stream::open(&cluster, 1, "?type=topic.*", Some(&ahead)).await;
    ahead.beginning().await;
    cluster.create_topic("c", 1, 1, &[]).await;
    cluster.create_topic("d", 1, 1, &[]).await;
    assert!(ahead.until("topic.created", "d").await.iter().all(|told| told.data["topic_name"] != "a"));

    for (query, last) in
        [("?type=isr.schrink", None), ("?since=yesterday", None), ("?broker_id=x", None), ("", Some("x"))]
    {
        let answer = Stream::answer(&cluster, 1, query, last).await;
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.unwrap();
        assert_eq!((status, &body["error_code"]), (400, &json!(400)), "{query} {last:?}: {body}");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_holds_up_nothing_and_a_stop_ends_its_stream() {
    const TOPICS: usize = 60;
    let mut cluster = Cluster::start(1, &[]).await;
    let mut slow = Stream::open(&cluster, 1, "?type=topic.*", None).await;
    let mut other = Stream::open(&cluster, 1, "?type=topic.*", None).await;
    for n in 0..TOPICS {
        cluster.create_topic(&format!("t{n}"), 1, 1, &[]).await;
    }
    let seen = other.until("topic.created", &format!("t{}", TOPICS - 1)).await;
    assert_eq!(seen.len(), TOPICS);
    assert_eq!(slow.until("topic.created", &format!("t{}", TOPICS - 1)).await, seen, "late, and complete");

    let begun = Instant::now();
    cluster.stop(1).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "the open streams held up the stop: {:?}", begun.elapsed());
    slow.ended().await;
    other.ended().await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_goes_on_at_the_next_node_where_it_was_cut_off() {
    let mut cluster = Cluster::start(3, &[]).await;
    let urls: Vec<String> = cluster.members.iter().map(|member| format!("127.0.0.1:{}", member.http_port)).collect();
    let mut command = Command::new(process::binary());
    command.args(["events", "--url", &urls.join(","), "-t", "topic.*", "-o", "jsonl", "--after", "0"]);
    let mut child = Killed(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let (lines, printed) = std::sync::mpsc::channel();
    let stdout = BufReader::new(child.0.stdout.take().unwrap());
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    let mut heard = Vec::new();
    for n in 0..6 {
        cluster.create_topic(&format!("t{n}"), 1, 2, &[]).await;
        let line = printed.recv_timeout(Duration::from_secs(30)).unwrap();
        heard.push(serde_json::from_str::<Value>(&line).unwrap());
        match n {
            1 => {
                cluster.crash(1).await;
                // Before that a topic may still be laid on it, and would wait for it.
                let dead = highwater_wire::BrokerId(1);
                let fenced = || !cluster.image().brokers.get(&dead).is_some_and(|broker| broker.is_active());
                cluster.wait("the dead node is fenced", fenced).await;
            }
            3 => {
                cluster.start_node(1).await;
                cluster.stop(2).await;
            }
            _ => {}
        }
    }
    let names: Vec<&str> = heard.iter().map(|event| event["topic_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["t0", "t1", "t2", "t3", "t4", "t5"]);
    assert!(heard.iter().all(|event| event["event"] == "topic.created" && event["id"].is_string()));
    assert!(printed.try_recv().is_err(), "something was told twice");
    cluster.end().await;
}

/// What each alert looks at must be there before anything has happened.
const ALERTED: &[(&str, &[(&str, &str)])] = &[
    ("highwater_cluster_partitions_state", &[("state", "offline")]),
    ("highwater_cluster_partitions_state", &[("state", "under_min_isr")]),
    ("highwater_cluster_partitions_state", &[("state", "under_replicated")]),
    ("highwater_controller_active", &[]),
    ("highwater_raft_quorum_ack_age_seconds", &[]),
    ("highwater_raft_can_lose", &[]),
    ("highwater_isr_changes_total", &[("change", "shrink"), ("topic", "t")]),
    ("highwater_leader_elections_total", &[("reason", "UNCLEAN")]),
    ("highwater_log_truncated_records_total", &[("reason", "committed")]),
    ("highwater_partition_replica_lag_seconds", &[("topic", "t")]),
    ("highwater_log_dir_state", &[]),
    ("highwater_log_dir_bytes", &[("kind", "free")]),
    ("highwater_produce_rejected_total", &[("reason", "not_enough_replicas")]),
    ("highwater_produce_rejected_total", &[("reason", "disk")]),
    ("highwater_request_seconds_bucket", &[("api", "Produce"), ("phase", "total")]),
    ("highwater_fsync_seconds_bucket", &[]),
];

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_complete_well_formed_and_count_what_clients_did() {
    const ALL: i16 = -1;
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "t", 1, 3, &[]).await;
    let listed = metrics::listed();
    let scrape = async |cluster: &Processes| {
        let mut all = Vec::new();
        for id in 1..=3 {
            let url = format!("http://127.0.0.1:{}/metrics", cluster.node(id).http_port);
            let text = cluster.http.get(url).send().await.unwrap().text().await.unwrap();
            all.push(metrics::Exposed::read(&text, &listed));
        }
        all
    };
    let sum = |all: &[metrics::Exposed], name: &str, labels: &[(&str, &str)]| -> f64 {
        all.iter().map(|one| one.sum(name, labels)).sum()
    };

    let before = scrape(&cluster).await;
    for (name, labels) in ALERTED {
        assert!(before.iter().any(|one| one.has(name, labels)), "{name} {labels:?} is not there from the start");
    }
    let state = cluster.state(1, "t", 0).await.unwrap();
    let leader = usize::try_from(state["leader_id"].as_u64().unwrap()).unwrap();
    let other = leader % 3 + 1;
    let connect = async |id: usize| {
        let address = (std::net::Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into();
        Client::connect(address).await.unwrap()
    };
    let mut client = connect(leader).await;
    let mut bytes = 0;
    for n in 0..20_i64 {
        let records = batch(1_760_000_000_000 + n, &["a", "b", "c"]);
        bytes += records.len();
        assert_eq!(client.produce("t", 0, ALL, records).await.unwrap().error_code, 0);
    }
    let read = client.read_all("t", 0).await.unwrap();
    assert_eq!(contents(&read).len(), 60);
    let refused = connect(other).await.produce("t", 0, ALL, batch(1_760_000_000_000, &["x"])).await.unwrap();
    assert_eq!(refused.error_code, 6);

    let after = scrape(&cluster).await;
    let grown = |name: &str, labels: &[(&str, &str)]| sum(&after, name, labels) - sum(&before, name, labels);
    let topic = ("topic", "t");
    assert_eq!(grown("highwater_topic_records_total", &[topic, ("direction", "in")]), 60.0);
    assert_eq!(grown("highwater_topic_bytes_total", &[topic, ("direction", "in")]), bytes as f64);
    assert!(grown("highwater_topic_bytes_total", &[topic, ("direction", "out")]) >= bytes as f64);
    assert!(grown("highwater_replication_bytes_total", &[("direction", "in")]) >= 2.0 * bytes as f64);
    let produce = ("api", "Produce");
    assert_eq!(grown("highwater_requests_total", &[produce, ("error", "NONE")]), 20.0);
    assert_eq!(grown("highwater_requests_total", &[produce, ("error", "NOT_LEADER_OR_FOLLOWER")]), 1.0);
    assert_eq!(grown("highwater_request_seconds_count", &[produce, ("phase", "total")]), 21.0);
    let local = grown("highwater_request_seconds_count", &[produce, ("phase", "local")]);
    assert!((1.0..=2.0).contains(&local), "one in 16 of 21 over two connections: {local}");
    assert!(grown("highwater_worker_busy_seconds_total", &[("pool", "data")]) > 0.0);
    assert!(sum(&after, "highwater_workers", &[("pool", "raft")]) >= 3.0);
    assert_eq!(sum(&after, "highwater_config_pending_restart", &[]), 0.0);
    assert_eq!(grown("highwater_produce_rejected_total", &[("reason", "not_leader")]), 1.0);
    assert!(grown("highwater_append_seconds_count", &[]) >= 1.0);
    assert_eq!(sum(&after, "highwater_partition_log_end_offset", &[topic]), 60.0);
    assert_eq!(sum(&after, "highwater_controller_active", &[]), 1.0);

    let families: std::collections::BTreeSet<&String> = after.iter().flat_map(|one| &one.families).collect();
    let missing: Vec<&String> = listed.keys().filter(|name| !families.contains(name)).collect();
    assert!(missing.is_empty(), "listed in ops/metrics.md, and shown by no node: {missing:?}");
}
