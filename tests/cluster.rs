//! Clusters of real nodes in this process: leaders die, logs are cut, replicas leave and come back, everything restarts.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::time::Duration;

use highwater_data::Stopped;
use highwater_quorum::image::{ChangeKind, ExpandReason, LeaderReason, ShrinkReason};
use highwater_tests::client::{
    Client, EARLIEST, LATEST, batch, contents, idempotent_batch, produce_request, watermark,
};
use highwater_tests::cluster::{Cluster, told};
use highwater_wire::{BrokerId, ErrorCode};
use serde_json::Value;

#[path = "cluster/kafka_api.rs"]
mod kafka_api;
#[path = "cluster/producers.rs"]
mod producers;

const ALL: i16 = -1;
const MIN_ISR_2: &[(&str, &str)] = &[("min.insync.replicas", "2")];
const NOW: i64 = 1_760_000_000_000;

/// Sends values one batch each and returns where they were acknowledged.
async fn produce(client: &mut Client, topic: &str, acks: i16, values: &[&str]) -> Vec<(i64, String)> {
    let mut acked = Vec::new();
    for value in values {
        let answer = told(client.produce(topic, 0, acks, batch(NOW, &[value])).await);
        assert_eq!(answer.error_code, 0, "{answer:?}");
        acked.push((answer.base_offset, (*value).to_owned()));
    }
    acked
}

/// All that is committed. A new leader does not know that at once: until it does, it answers 78 (R94).
async fn read(cluster: &Cluster, topic: &str) -> Vec<(i64, String)> {
    let mut client = cluster
        .wait_for(&format!("{topic}: a leader that knows its watermark"), async || {
            let mut client = cluster.leader_client(topic, 0).await;
            (client.list_offset(topic, 0, LATEST).await.ok()?.error_code == 0).then_some(client)
        })
        .await;
    contents(&told(client.read_all(topic, 0).await))
}

/// Waits until the watermark of the leader is here.
async fn wait_watermark(cluster: &Cluster, topic: &str, expected: i64) {
    cluster
        .wait_for(&format!("{topic}: watermark {expected}"), async || {
            let mut client = cluster.leader_client(topic, 0).await;
            let told = client.list_offset(topic, 0, LATEST).await.ok()?;
            (told.offset == expected).then_some(())
        })
        .await;
}

fn shrinks(cluster: &Cluster, topic: &str) -> Vec<(ShrinkReason, Vec<BrokerId>)> {
    let history = cluster.history(topic, 0);
    let reasons = history.iter().filter_map(|change| match &change.kind {
        ChangeKind::Shrink { reason, after, .. } => Some((*reason, after.clone())),
        _ => None,
    });
    reasons.collect()
}

fn expands(cluster: &Cluster, topic: &str) -> Vec<ExpandReason> {
    let history = cluster.history(topic, 0);
    let reasons = history.iter().filter_map(|change| match &change.kind {
        ChangeKind::Expand { reason, .. } => Some(*reason),
        _ => None,
    });
    reasons.collect()
}

fn elections(cluster: &Cluster, topic: &str) -> Vec<LeaderReason> {
    let history = cluster.history(topic, 0);
    let reasons = history.iter().filter_map(|change| match &change.kind {
        ChangeKind::Leader { reason, .. } => Some(*reason),
        _ => None,
    });
    reasons.collect()
}

/// The first segment of a replica, as it lies on disk.
fn segment(cluster: &Cluster, id: i32, topic: &str) -> Vec<u8> {
    std::fs::read(cluster.member(id).replica_dir(topic, 0).join("00000000000000000000.log")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_leader_dies_another_leads_and_every_acknowledged_record_keeps_its_offset() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", 1, 3, MIN_ISR_2).await;
    let leader = cluster.wait_leading("t", 0).await;
    let epoch = cluster.state("t", 0).unwrap().leader_epoch.0;
    let mut client = cluster.client(leader).await;
    let mut acked = produce(&mut client, "t", ALL, &["a", "b", "c"]).await;

    cluster.crash(leader).await;
    let state = cluster.wait_state("t", 0, "led by another", |s| s.leader.is_some_and(|l| l.0 != leader)).await;
    assert_eq!(state.leader_epoch.0, epoch + 1);
    assert!(!state.isr.contains(&BrokerId(leader)));
    assert_eq!(read(&cluster, "t").await, acked);
    let mut client = cluster.leader_client("t", 0).await;
    acked.extend(produce(&mut client, "t", ALL, &["d", "e"]).await);

    // R95: where each epoch ends, and what is said of one that nobody knows.
    let end = told(client.epoch_end("t", 0, epoch).await);
    assert_eq!((end.error_code, end.leader_epoch, end.end_offset), (0, epoch, 3));
    let end = told(client.epoch_end("t", 0, epoch + 1).await);
    assert_eq!((end.error_code, end.leader_epoch, end.end_offset), (0, epoch + 1, 5));
    let end = told(client.epoch_end("t", 0, epoch + 2).await);
    assert_eq!((end.error_code, end.leader_epoch, end.end_offset), (0, -1, -1));

    cluster.start_node(leader).await;
    cluster.wait_in_sync("t", 0, 3).await;
    assert_eq!(read(&cluster, "t").await, acked);
    assert!(elections(&cluster, "t").contains(&LeaderReason::Failover), "{:?}", cluster.history("t", 0));
    let (reason, after) = shrinks(&cluster, "t").first().cloned().unwrap();
    assert_eq!(reason, ShrinkReason::BrokerFenced);
    assert!(!after.contains(&BrokerId(leader)));
    for id in 1..=3 {
        cluster.wait_log_end(id, "t", 0, 5).await;
        assert_eq!(segment(&cluster, id, "t"), segment(&cluster, leader, "t"), "node {id}");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suffix_that_only_its_leader_had_is_cut_when_that_leader_returns() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    let mut acked = produce(&mut client, "t", ALL, &["a", "b"]).await;

    // Alone, node 1 still answers acks=1, but nobody may read what it says.
    cluster.crash(2).await;
    cluster.crash(3).await;
    let mut alone = cluster.client(1).await;
    let lost = produce(&mut alone, "t", 1, &["lost-1", "lost-2", "lost-3"]).await;
    assert_eq!(lost[0].0, 2);
    let fetched = told(alone.fetch("t", 0, 2, Duration::ZERO).await);
    assert_eq!((fetched.error, watermark(&fetched), fetched.records.len()), (ErrorCode::None, 2, 0));
    assert_eq!(cluster.log_end(1, "t", 0).await, Some(5));
    cluster.crash(1).await;

    cluster.begin(2).await;
    cluster.begin(3).await;
    cluster.wait_serving().await;
    let state = cluster.wait_state("t", 0, "led by another", |s| s.leader.is_some_and(|l| l.0 != 1)).await;
    cluster.wait_in_sync("t", 0, 2).await;
    let mut client = cluster.leader_client("t", 0).await;
    acked.extend(produce(&mut client, "t", ALL, &["c", "d"]).await);
    assert_eq!(acked[2].0, 2, "the suffix of node 1 was never committed, so its offsets are free");

    cluster.start_node(1).await;
    cluster.wait_in_sync("t", 0, 3).await;
    cluster.wait_log_end(1, "t", 0, 4).await;
    assert_eq!(segment(&cluster, 1, "t"), segment(&cluster, state.leader.unwrap().0, "t"));
    assert_eq!(read(&cluster, "t").await, acked);
    let unclean = [LeaderReason::Unclean, LeaderReason::LastKnown];
    assert!(!elections(&cluster, "t").iter().any(|reason| unclean.contains(reason)), "{:?}", cluster.history("t", 0));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_the_isr_and_who_returns_stands_in_the_history_with_its_reason() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", ALL, &["a"]).await;

    cluster.crash(2).await;
    cluster.wait_state("t", 0, "without node 2", |s| !s.isr.contains(&BrokerId(2))).await;
    assert_eq!(shrinks(&cluster, "t"), [(ShrinkReason::BrokerFenced, vec![BrokerId(1), BrokerId(3)])]);
    produce(&mut client, "t", ALL, &["b"]).await;
    cluster.start_node(2).await;
    cluster.wait_in_sync("t", 0, 3).await;
    assert_eq!(expands(&cluster, "t").len(), 1);

    assert_eq!(cluster.stop(3).await, Stopped::Cleanly);
    cluster.wait_state("t", 0, "without node 3", |s| !s.isr.contains(&BrokerId(3))).await;
    let last = shrinks(&cluster, "t").pop().unwrap();
    assert_eq!(last, (ShrinkReason::ControlledShutdown, vec![BrokerId(1), BrokerId(2)]));
    cluster.start_node(3).await;
    cluster.wait_in_sync("t", 0, 3).await;
    assert_eq!(expands(&cluster, "t").len(), 2);
    assert_eq!(elections(&cluster, "t"), [LeaderReason::Created], "node 1 led all the time");
    for change in cluster.history("t", 0) {
        if let ChangeKind::Expand { evidence, .. } = &change.kind {
            assert!(evidence.iter().any(|e| e.follower_end == e.leader_end && e.leader_end.is_some()), "{change:?}");
        }
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn below_min_isr_acks_all_is_refused_with_19_and_the_watermark_stands_still() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2], MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    let mut expected = produce(&mut client, "t", ALL, &["a"]).await;

    cluster.crash(2).await;
    cluster.wait_in_sync("t", 0, 1).await;
    // The leader learns of it a moment after the quorum decided.
    let refused = cluster
        .wait_for("19", async || {
            let mut request = produce_request("t", 0, ALL, Some(batch(NOW, &["refused"])));
            request.timeout_ms = 0;
            let answer = told(client.produce_as(9, request).await);
            (answer.error_code != ErrorCode::RequestTimedOut.code()).then_some(answer)
        })
        .await;
    assert_eq!(refused.error_code, ErrorCode::NotEnoughReplicas.code());
    assert_eq!(refused.base_offset, -1);
    let end = cluster.log_end(1, "t", 0).await.unwrap();

    let answer = told(client.produce("t", 0, 1, batch(NOW, &["b"])).await);
    assert_eq!((answer.error_code, answer.base_offset), (0, end), "acks=1 asks nobody, and 19 appended nothing");
    let fetched = told(client.fetch("t", 0, 1, Duration::ZERO).await);
    assert_eq!((fetched.error, watermark(&fetched), fetched.records.len()), (ErrorCode::None, 1, 0));
    assert_eq!(told(client.list_offset("t", 0, LATEST).await).offset, 1);

    cluster.start_node(2).await;
    cluster.wait_in_sync("t", 0, 2).await;
    wait_watermark(&cluster, "t", end + 1).await;
    expected.extend(produce(&mut client, "t", ALL, &["c"]).await);
    let seen = read(&cluster, "t").await;
    assert!(expected.iter().all(|record| seen.contains(record)), "{seen:?}");
    assert!(seen.contains(&(end, "b".to_owned())), "{seen:?}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controlled_stop_moves_its_leaders_first() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[2, 1, 3], MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    let mut acked = produce(&mut client, "t", ALL, &["a"]).await;

    // A consumer that waits at a follower for more is answered when that one stops, not cut off.
    let mut reader = cluster.client(3).await;
    let (read_on, stopped) = tokio::join!(reader.fetch("t", 0, 1, Duration::from_secs(10)), cluster.stop(3));
    assert_eq!((told(read_on).records.len(), stopped), (0, Stopped::Cleanly));
    cluster.start_node(3).await;
    cluster.wait_in_sync("t", 0, 3).await;

    assert_eq!(cluster.stop(2).await, Stopped::Cleanly);
    assert!(cluster.member(2).data_dir().join(".clean-shutdown").exists(), "no mark of a clean stop");
    let state = cluster.state("t", 0).unwrap();
    assert!(state.leader.is_some_and(|leader| leader.0 != 2), "{state:?}");
    assert_eq!(elections(&cluster, "t"), [LeaderReason::Created, LeaderReason::Drain]);
    let mut client = cluster.leader_client("t", 0).await;
    acked.extend(produce(&mut client, "t", ALL, &["b"]).await);

    cluster.start_node(2).await;
    cluster.wait_in_sync("t", 0, 3).await;
    assert!(
        !cluster.member(2).data_dir().join(".clean-shutdown").exists(),
        "the mark must go when a node starts (R18)"
    );
    assert_eq!(read(&cluster, "t").await, acked);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_everything_keeps_topics_records_and_producer_state() {
    let mut cluster = Cluster::start(3, &[]).await;
    let created = cluster.create_topic("t", 1, 3, MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    let producer = told(client.init_producer_id().await);
    for sequence in 0..3 {
        let sent = idempotent_batch(producer, sequence, NOW, &[&format!("v{sequence}")]);
        let answer = told(client.produce("t", 0, ALL, sent).await);
        assert_eq!((answer.error_code, answer.base_offset), (0, i64::from(sequence)));
    }
    let before = read(&cluster, "t").await;

    cluster.stop_all().await;
    for id in 1..=3 {
        cluster.begin(id).await;
    }
    cluster.wait_serving().await;
    cluster.wait_in_sync("t", 0, 3).await;
    assert_eq!(cluster.image().topic_named("t").unwrap().id, created.id);
    assert_eq!(cluster.image().topic_named("t").unwrap().config.min_isr, 2);
    wait_watermark(&cluster, "t", 3).await;
    assert_eq!(read(&cluster, "t").await, before);

    // The last batch again: a duplicate, answered with its first offset. The next one is new.
    let mut client = cluster.leader_client("t", 0).await;
    let answer = told(client.produce("t", 0, ALL, idempotent_batch(producer, 2, NOW, &["v2"])).await);
    assert_eq!((answer.error_code, answer.base_offset), (0, 2));
    let answer = told(client.produce("t", 0, ALL, idempotent_batch(producer, 3, NOW, &["v3"])).await);
    assert_eq!((answer.error_code, answer.base_offset), (0, 3));
    // An id that is handed out now is another one (T12).
    assert_ne!(told(client.init_producer_id().await).0, producer.0);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_flushes_every_message_acknowledges_and_survives() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", 1, 3, &[("min.insync.replicas", "2"), ("flush.messages", "1")]).await;
    let leader = cluster.wait_leading("t", 0).await;
    let mut client = cluster.client(leader).await;
    let mut acked = produce(&mut client, "t", 1, &["a", "b"]).await;
    acked.extend(produce(&mut client, "t", ALL, &["c", "d"]).await);
    cluster.crash(leader).await;
    cluster.wait_state("t", 0, "led by another", |s| s.leader.is_some_and(|l| l.0 != leader)).await;
    assert_eq!(read(&cluster, "t").await, acked);
    let mut client = cluster.leader_client("t", 0).await;
    acked.extend(produce(&mut client, "t", ALL, &["e"]).await);
    cluster.start_node(leader).await;
    cluster.wait_in_sync("t", 0, 3).await;
    assert_eq!(read(&cluster, "t").await, acked);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_by_size_removes_whole_old_segments_on_every_replica() {
    let cluster = Cluster::start(3, &[("log.retention.check.interval.ms", "200")]).await;
    let sizes = [
        ("segment.bytes", "1048576"),
        ("retention.bytes", "2097152"),
        ("retention.ms", "-1"),
        ("file.delete.delay.ms", "0"),
    ];
    cluster.create_topic("t", 1, 3, &sizes).await;
    let mut client = cluster.leader_client("t", 0).await;
    let value = "x".repeat(200_000);
    for offset in 0..40 {
        let answer = told(client.produce("t", 0, ALL, batch(NOW, &[&value])).await);
        assert_eq!((answer.error_code, answer.base_offset), (0, offset));
    }
    // Five batches a segment: 8 MB come down to no less than 2 MiB and no more than a segment above.
    let start = cluster
        .wait_for("the log begins later", async || {
            let start = told(client.list_offset("t", 0, EARLIEST).await).offset;
            (start >= 20).then_some(start)
        })
        .await;
    assert_eq!(start % 5, 0, "the log begins where a segment does");
    assert!(start < 35, "less than retention.bytes is left: the log begins at {start}");
    let fetched = told(client.fetch("t", 0, start - 1, Duration::ZERO).await);
    assert_eq!(fetched.error, ErrorCode::OffsetOutOfRange);
    let kept = told(client.read_all("t", 0).await);
    assert_eq!(kept.first().map(|record| record.offset.0), Some(start));
    assert_eq!(kept.last().map(|record| record.offset.0), Some(39));
    for id in 1..=3 {
        let dir = cluster.member(id).replica_dir("t", 0);
        cluster
            .wait(&format!("node {id} has removed the first segment"), || {
                !dir.join("00000000000000000000.log").exists()
            })
            .await;
    }
    cluster.end().await;
}

/// GET or POST under `/v3/clusters/-` of a node: status, body, and the age of the metadata it answered from.
async fn http(cluster: &Cluster, id: i32, path: &str, body: Option<&str>) -> (u16, Value, Option<u64>) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}/v3/clusters/-{path}", cluster.member(id).http_port);
    let request = match body {
        None => client.get(url),
        Some(body) => client.post(url).header("content-type", "application/json").body(body.to_owned()),
    };
    let answer = told(request.timeout(Duration::from_secs(15)).send().await);
    let age = answer.headers().get("x-metadata-age-ms").and_then(|age| age.to_str().ok()?.parse().ok());
    (answer.status().as_u16(), told(answer.json().await), age)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_a_node_stays_up_and_says_what_is_wrong() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", ALL, &["a"]).await;
    cluster.crash(2).await;
    cluster.crash(3).await;

    // Reads go on and say how old they are; the quorum's own view shows whose vote is missing (operators.md 1.4 D).
    let (status, quorum, _) = cluster
        .wait_for("node 1 knows that nobody leads the quorum", async || {
            let seen = http(&cluster, 1, "/quorum", None).await;
            seen.1["leader_id"].is_null().then_some(seen)
        })
        .await;
    assert_eq!(status, 200, "{quorum}");
    let views = quorum["views"].as_array().expect("views");
    assert!(views.iter().any(|view| view["node_id"] == 1 && view["reachable"] == true), "{quorum}");
    assert!(views.iter().any(|view| view["node_id"] == 2 && view["reachable"] == false), "{quorum}");
    let (status, topics, age) = http(&cluster, 1, "/topics", None).await;
    assert_eq!((status, topics["data"][0]["topic_name"].as_str()), (200, Some("t")), "{topics}");
    assert!(age.is_some_and(|age| age > 0), "an age of {age:?} ms without a leader");
    let fetched = told(cluster.client(1).await.fetch("t", 0, 0, Duration::ZERO).await);
    assert!(fetched.error == ErrorCode::None && !fetched.records.is_empty(), "{fetched:?}");
    // Writes do not.
    let (status, told_why, _) = http(&cluster, 1, "/topics?timeout_ms=500", Some(r#"{"topic_name":"u"}"#)).await;
    let known = matches!((status, told_why["error_code"].as_u64()), (503, Some(50310)) | (500, Some(50003)));
    assert!(known, "{status} {told_why}");
    // Time-outs say "unknown", never "not written" (R50).
    let mut request = produce_request("t", 0, ALL, Some(batch(NOW, &["b"])));
    request.timeout_ms = 300;
    let answer = told(cluster.client(1).await.produce_as(9, request).await);
    assert_eq!(answer.error_code, ErrorCode::RequestTimedOut.code());

    // One more makes a majority: the cluster goes on where it was.
    cluster.start_node(3).await;
    cluster.wait_in_sync("t", 0, 2).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", ALL, &["c"]).await;
    assert_eq!(read(&cluster, "t").await[0], (0, "a".to_owned()));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_controller_that_also_led_is_succeeded_in_both() {
    let mut cluster = Cluster::start(3, &[]).await;
    let controller = cluster.controller().await;
    let (a, b) = (controller % 3 + 1, (controller + 1) % 3 + 1);
    cluster.create_assigned("t", &[controller, a, b], MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    let mut acked = produce(&mut client, "t", ALL, &["a"]).await;
    cluster.crash(controller).await;
    let next = cluster.controller().await;
    assert_ne!(next, controller);
    cluster.wait_state("t", 0, "led by another", |s| s.leader.is_some_and(|l| l.0 != controller)).await;
    assert_eq!(read(&cluster, "t").await, acked);
    let mut client = cluster.leader_client("t", 0).await;
    acked.extend(produce(&mut client, "t", ALL, &["b"]).await);
    // Metadata can be changed too, and who was dead learns of it.
    let (code, why) = told(client.create_topic("u", 2, 2, &[]).await);
    assert_eq!((code, why), (0, None));
    cluster.start_node(controller).await;
    cluster.wait_in_sync("t", 0, 3).await;
    cluster
        .wait("the returned node knows the new topic", || {
            cluster.node(controller).quorum().image().topic_named("u").is_some_and(|topic| topic.partitions.len() == 2)
        })
        .await;
    assert_eq!(read(&cluster, "t").await, acked);
    cluster.end().await;
}
