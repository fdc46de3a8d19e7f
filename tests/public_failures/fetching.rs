//! What a fetch hands out, and when.

use std::time::{Duration, Instant};

use highwater_tests::client::{
    Client, batch, fetch_partition, fetch_request, fetch_topic, list_offsets_request, watermark,
};
use highwater_tests::cluster::{Cluster, told};
use highwater_wire::batch::{BatchIter, Codec};
use highwater_wire::messages::fetch_request::FetchRequest;
use highwater_wire::{ErrorCode, FetchResponse, Record, RecordBatchBuilder, Timestamp};
use serde_json::json;

use crate::{ALL, NOW};

#[tokio::test(flavor = "multi_thread")]
async fn b40_every_offset_is_reached_whatever_the_batch_and_the_limits() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_topic("t", 1, 1, &[]).await;
    let mut client = cluster.client(1).await;
    let mut expected: Vec<(i64, String)> = Vec::new();
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        for count in [1, 10, 130] {
            let mut builder = RecordBatchBuilder::new().codec(codec);
            for _ in 0..count {
                let value = format!("{codec:?} {}", expected.len());
                builder.push(&Record::new(Timestamp(NOW), None, Some(value.as_bytes())));
                expected.push((expected.len() as i64, value));
            }
            let answer = told(client.produce("t", 0, ALL, builder.build().into_bytes()).await);
            assert_eq!(answer.error_code, 0, "{answer:?}");
        }
    }
    let end = expected.len() as i64;
    for offset in 0..end {
        // The batch that holds it, whole, even where one byte was asked for.
        let mut partition = fetch_partition(0, offset);
        partition.partition_max_bytes = 1;
        let mut request = fetch_request(vec![fetch_topic("t", vec![partition])]);
        request.max_bytes = 1;
        let answer = told(client.ask(12, request).await);
        let fetched = answer.topics[0].partitions[0].clone();
        assert_eq!(fetched.error, ErrorCode::None);
        let batches: Vec<_> = BatchIter::new(fetched.records).collect::<Result<_, _>>().unwrap();
        assert_eq!(batches.len(), 1, "one batch for one byte, at {offset}");
        let records: Vec<Record> = batches[0].records().unwrap().collect::<Result<_, _>>().unwrap();
        let first =
            records.iter().find(|record| record.offset.0 >= offset).expect("the batch holds what was asked for");
        let value = String::from_utf8_lossy(first.value.as_deref().unwrap()).into_owned();
        assert_eq!((first.offset.0, value), expected[offset as usize]);
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b40_a_fetch_with_nothing_to_say_waits_its_time_with_a_session_and_without() {
    const WAIT: Duration = Duration::from_millis(400);
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_topic("t", 1, 1, &[]).await;
    let mut client = cluster.client(1).await;
    let timed = async |client: &mut Client, request: FetchRequest| {
        let begun = Instant::now();
        let answer = told(client.ask(12, request).await);
        (answer, begun.elapsed())
    };
    let waiting = |id: i32, epoch: i32| {
        let mut request = fetch_request(vec![]);
        (request.session_id, request.session_epoch) = (id, epoch);
        request.max_wait_ms = i32::try_from(WAIT.as_millis()).unwrap();
        request
    };
    let mut alone = waiting(0, -1);
    alone.topics = vec![fetch_topic("t", vec![fetch_partition(0, 0)])];
    for _ in 0..2 {
        let (answer, took) = timed(&mut client, alone.clone()).await;
        assert!(answer.topics[0].partitions[0].records.is_empty());
        assert!(took >= WAIT, "answered after {took:?}");
    }
    let mut full = waiting(0, 0);
    full.topics = vec![fetch_topic("t", vec![fetch_partition(0, 0)])];
    let (opened, _) = timed(&mut client, full).await;
    assert!(opened.session_id > 0);
    for epoch in 1..=3 {
        let (answer, took) = timed(&mut client, waiting(opened.session_id, epoch)).await;
        assert!(answer.topics.is_empty(), "{answer:?}");
        assert!(took >= WAIT, "an empty round of a session was answered after {took:?}: consumers would spin");
    }
    cluster.end().await;
}

/// What an incremental answer says: partition, error, records or not.
fn told_of(answer: &FetchResponse) -> Vec<(i32, ErrorCode, bool)> {
    let all = answer.topics.iter().flat_map(|topic| &topic.partitions);
    all.map(|partition| (partition.index, partition.error, !partition.records.is_empty())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn b41_each_kind_of_change_shows_up_in_the_session_and_nothing_else_does() {
    const PARTITIONS: i32 = 12;
    let cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", PARTITIONS, 3, &[]).await;
    // All led by node 1.
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}/v3/clusters/-/elections", cluster.member(1).http_port);
    let elect = async |partition: i32, leader: i32| {
        let partitions = json!([{"topic_name": "t", "partition_id": partition, "leader_id": leader}]);
        let body = json!({"election_type": "DESIGNATED", "partitions": partitions});
        let answer = http.post(&url).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        cluster.wait_state("t", partition, "led as told", |s| s.leader.is_some_and(|l| l.0 == leader)).await;
    };
    for partition in 0..PARTITIONS {
        elect(partition, 1).await;
        assert_eq!(cluster.wait_leading("t", partition).await, 1);
    }
    let mut writer = cluster.client(1).await;
    for partition in 0..PARTITIONS {
        assert_eq!(told(writer.produce("t", partition, ALL, batch(NOW, &["a"])).await).error_code, 0);
    }
    let mut client = cluster.client(1).await;
    let mut full = fetch_request(vec![]);
    (full.session_id, full.session_epoch) = (0, 0);
    full.topics = vec![fetch_topic("t", (0..PARTITIONS).map(|p| fetch_partition(p, 1)).collect())];
    let opened = told(client.ask(12, full).await);
    let session = opened.session_id;
    let mut epoch = 0;
    // Waits for one thing: the deadline only ends a test that would wait for ever.
    let mut next = async |changed: Vec<(i32, i64)>, wait: i32| {
        epoch += 1;
        let mut request = fetch_request(vec![]);
        (request.session_id, request.session_epoch) = (session, epoch);
        request.max_wait_ms = wait;
        if !changed.is_empty() {
            let moved = changed.into_iter().map(|(partition, offset)| fetch_partition(partition, offset));
            request.topics = vec![fetch_topic("t", moved.collect())];
        }
        told(client.ask(12, request).await)
    };
    // The watermark of a quiet partition may still be told once.
    let settled = next(vec![], 0).await;
    assert!(settled.topics.iter().flat_map(|t| &t.partitions).all(|p| p.records.is_empty()), "{settled:?}");
    assert_eq!(told_of(&next(vec![], 0).await), []);

    // Records: that partition alone.
    assert_eq!(told(writer.produce("t", 3, ALL, batch(NOW, &["b"])).await).error_code, 0);
    let answer = next(vec![], 10_000).await;
    assert_eq!(told_of(&answer), [(3, ErrorCode::None, true)]);
    assert_eq!(watermark(&answer.topics[0].partitions[0]), 2);
    assert_eq!(told_of(&next(vec![(3, 2)], 0).await), []);

    // The log start alone.
    assert_eq!(told(writer.delete_records("t", 5, 1).await), Ok(1));
    let answer = next(vec![], 0).await;
    assert_eq!(told_of(&answer), [(5, ErrorCode::None, false)], "DeleteRecords moved the log start");
    assert_eq!(answer.topics[0].partitions[0].log_start_offset.map(|start| start.0), Some(1));
    assert_eq!(told_of(&next(vec![], 0).await), []);

    // The leader is another one: told at once to whoever waits with an epoch that it knew; no other partition speaks.
    elect(7, 2).await;
    cluster.wait_leading("t", 7).await;
    let mut plain = list_offsets_request("t", 7, -1, -1);
    plain.replica_id = -1;
    let gone = told(writer.ask(8, plain).await);
    assert_eq!(gone.topics[0].partitions[0].error_code, ErrorCode::NotLeaderOrFollower.code());
    let answer = next(vec![], 0).await;
    assert!(told_of(&answer).iter().all(|(partition, ..)| *partition == 7), "{:?}", told_of(&answer));

    // The topic is deleted: every partition says so.
    assert_eq!(told(cluster.client(1).await.delete_topic("t").await), 0);
    cluster.wait("the topic is gone here", || cluster.node(1).quorum().image().topic_named("t").is_none()).await;
    let answer = next(vec![], 0).await;
    let mut gone = told_of(&answer);
    gone.sort_by_key(|(partition, ..)| *partition);
    assert_eq!(gone.len(), PARTITIONS as usize, "{gone:?}");
    assert!(gone.iter().all(|(_, code, data)| *code == ErrorCode::UnknownTopicOrPartition && !data), "{gone:?}");
    cluster.end().await;
}
