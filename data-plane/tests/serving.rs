//! Whole brokers in this process, as a client sees them.

#![allow(clippy::unwrap_used)] // helpers of tests, too, may fail loudly

use std::time::{Duration, Instant};

use highwater_data::Stopped;
use highwater_wire::api::ApiKey;
use highwater_wire::request::MetadataRequest;
use highwater_wire::response::correlation_id;
use highwater_wire::{ErrorCode, Offset};

mod brokers;

use brokers::client::{Client, batch, fetch, produce, values};
use brokers::{Broker, Cluster};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_produced_is_fetched() {
    let cluster = Cluster::new(1);
    let broker = cluster.start(1).await;
    let mut client = Client::connect(broker.address).await;
    let topic = client.create("t", 2, 1, &[]).await;
    assert_eq!(client.produce_until_led("t", 1, "first").await, 0);
    for (offset, acks) in [(1, -1), (3, 1)] {
        let told = client.produce("t", 1, acks, batch(&["a", "b"])).await;
        assert_eq!((told.error_code, told.base_offset), (0, offset), "acks {acks}");
    }
    let fetched = client.fetch(topic, 1, 2, 0).await;
    assert_eq!(fetched.error, ErrorCode::None);
    assert_eq!(values(&fetched), ["a", "b", "a", "b"], "whole batches");
    assert_eq!(client.list_offset("t", 1, -1).await, (ErrorCode::None, 5));
    assert_eq!(client.list_offset("t", 0, -1).await, (ErrorCode::None, 0));
    assert_eq!(client.list_offset("t", 9, -1).await.0, ErrorCode::UnknownTopicOrPartition);
    stop(vec![broker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_brokers_from_nothing_acknowledge_what_all_of_them_hold() {
    let began = Instant::now();
    let cluster = Cluster::new(3);
    let brokers = cluster.start_all().await;
    let serving = began.elapsed();
    let mut client = Client::connect(brokers[0].address).await;
    let topic = client.create("t", 1, 3, &[]).await;
    let created = began.elapsed();
    let leader = leader_of(&mut client, "t", 0).await;
    let leader = brokers.iter().find(|broker| broker.id.0 == leader).unwrap();
    let mut client = Client::connect(leader.address).await;
    assert_eq!(client.produce_until_led("t", 0, "first").await, 0);
    let acked = began.elapsed();
    let mut waits = Vec::new();
    for number in 1..50 {
        let sent = Instant::now();
        let told = client.produce("t", 0, -1, batch(&[&format!("record {number}")])).await;
        assert_eq!((told.error_code, told.base_offset), (0, number));
        waits.push(sent.elapsed());
    }
    waits.sort_unstable();
    eprintln!(
        "serving {serving:?}, created {created:?}, first ack {acked:?}, then p50 {:?} max {:?}",
        waits[25], waits[48]
    );
    let fetched = client.fetch(topic, 0, 0, 0).await;
    assert_eq!((values(&fetched).len(), fetched.high_watermark), (50, Some(Offset(50))));
    // Followers hear of the watermark with their next answer, and then serve readers too.
    for broker in &brokers {
        let mut reader = Client::connect(broker.address).await;
        let deadline = Instant::now() + Duration::from_secs(5);
        while values(&reader.fetch(topic, 0, 0, 100).await).len() < 50 {
            assert!(Instant::now() < deadline, "broker {} never served all records", broker.id);
        }
    }
    stop(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_in_request_order_though_the_first_waits_for_replicas() {
    let cluster = Cluster::new(1);
    let broker = cluster.start(1).await;
    let mut client = Client::connect(broker.address).await;
    let topic = client.create("t", 1, 1, &[]).await;
    client.produce_until_led("t", 0, "a").await;
    let mut expected = Vec::new();
    for number in 0..20 {
        expected.push((ApiKey::Produce, client.send(9, produce("t", 0, -1, batch(&["x"]))).await));
        expected.push((ApiKey::Fetch, client.send(13, fetch(topic, &[(0, number)], 5_000)).await));
    }
    for (api, id) in expected {
        let frame = client.receive().await.unwrap();
        assert_eq!(correlation_id(&frame), Some(id), "{api}");
    }
    stop(vec![broker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_fetch_is_answered_by_the_append_it_waits_for_and_by_the_next_request() {
    let cluster = Cluster::new(1);
    let broker = cluster.start(1).await;
    let mut writer = Client::connect(broker.address).await;
    let topic = writer.create("t", 1, 1, &[]).await;
    assert_eq!(writer.produce_until_led("t", 0, "a").await, 0);
    let mut reader = Client::connect(broker.address).await;
    let began = Instant::now();
    let (fetched, told) = tokio::join!(reader.fetch(topic, 0, 1, 20_000), writer.produce("t", 0, 1, batch(&["b"])));
    assert_eq!(told.error_code, 0);
    assert_eq!(values(&fetched), ["b"]);
    let parked = reader.send(13, fetch(topic, &[(0, 2)], 20_000)).await;
    let next = reader.send(12, MetadataRequest::default()).await;
    for id in [parked, next] {
        assert_eq!(correlation_id(&reader.receive().await.unwrap()), Some(id));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "nobody waited for MaxWait: {:?}", began.elapsed());
    stop(vec![broker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_produce_without_acks_closes_the_connection_and_nothing_else_does() {
    let cluster = Cluster::new(1);
    let broker = cluster.start(1).await;
    let mut client = Client::connect(broker.address).await;
    client.create("t", 1, 1, &[]).await;
    client.produce_until_led("t", 0, "a").await;
    client.send(9, produce("t", 0, 0, batch(&["b"]))).await;
    assert_eq!(
        client.list_offset("t", 0, -1).await,
        (ErrorCode::None, 2),
        "no answer to acks=0, the next one is right"
    );
    let told = client.produce("t", 0, 3, batch(&["c"])).await;
    assert_eq!(told.error_code, ErrorCode::InvalidRequiredAcks.code());
    let told = client.produce("nowhere", 0, 1, batch(&["c"])).await;
    assert_eq!(told.error_code, ErrorCode::UnknownTopicOrPartition.code());
    client.send(9, produce("nowhere", 0, 0, batch(&["c"]))).await;
    assert_eq!(client.receive().await, None);
    stop(vec![broker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_says_only_what_changed() {
    let cluster = Cluster::new(1);
    let broker = cluster.start(1).await;
    let mut client = Client::connect(broker.address).await;
    let topic = client.create("t", 3, 1, &[]).await;
    for partition in 0..3 {
        client.produce_until_led("t", partition, "a").await;
    }
    let mut request = fetch(topic, &[(0, 1), (1, 1), (2, 0)], 0);
    request.session_epoch = 0;
    let opened = client.fetch_all(request).await;
    assert_ne!(opened.session_id, 0);
    assert_eq!(opened.topics[0].partitions.len(), 3, "the first answer says everything");
    let incremental = |epoch, asked: &[(i32, i64)], wait| {
        let mut request = fetch(topic, asked, wait);
        request.session_id = opened.session_id;
        request.session_epoch = epoch;
        if asked.is_empty() {
            request.topics.clear();
        }
        request
    };
    let quiet = client.fetch_all(incremental(1, &[(2, 1)], 0)).await;
    assert_eq!(quiet.topics.len(), 0, "nothing changed");
    let mut writer = Client::connect(broker.address).await;
    let (woken, _) =
        tokio::join!(client.fetch_all(incremental(2, &[], 20_000)), writer.produce("t", 1, 1, batch(&["b"])));
    assert_eq!(woken.topics[0].partitions.len(), 1);
    assert_eq!(woken.topics[0].partitions[0].index, 1);
    let again = client.fetch_all(incremental(2, &[], 0)).await;
    assert_eq!(again.error, ErrorCode::InvalidFetchSessionEpoch);
    let mut unknown = incremental(3, &[], 0);
    unknown.session_id += 1;
    assert_eq!(client.fetch_all(unknown).await.error, ErrorCode::FetchSessionIdNotFound);
    stop(vec![broker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stopped_in_order_or_was_killed_serves_the_same_records_again() {
    let cluster = Cluster::new(1);
    let mut broker = cluster.start(1).await;
    let mut client = Client::connect(broker.address).await;
    let topic = client.create("t", 1, 1, &[]).await;
    client.produce_until_led("t", 0, "a").await;
    for (number, in_order) in [(1, true), (2, false), (3, true)] {
        if in_order {
            assert!(broker.data.drain().await);
            assert_eq!(broker.data.stop().await, Stopped::Cleanly);
        } else {
            broker.data.kill();
        }
        broker.quorum.stop().await;
        broker = cluster.start(1).await;
        let mut client = Client::connect(broker.address).await;
        assert_eq!(client.produce_until_led("t", 0, "b").await, number);
        let fetched = client.fetch(topic, 0, 0, 0).await;
        assert_eq!(values(&fetched).len(), usize::try_from(number).unwrap() + 1);
    }
    stop(vec![broker]).await;
}

async fn leader_of(client: &mut Client, topic: &str, partition: usize) -> i32 {
    client.metadata(&[topic], false).await.topics[0].partitions[partition].leader_id
}

async fn stop(brokers: Vec<Broker>) {
    for broker in brokers {
        broker.data.stop().await;
        broker.quorum.stop().await;
    }
}
