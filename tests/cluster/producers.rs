//! Idempotent producers: what they wrote is known to whoever leads.

use highwater_tests::client::idempotent_batch;
use highwater_tests::cluster::{Cluster, told};
use highwater_wire::messages::describe_producers_request::TopicRequest;
use highwater_wire::request::DescribeProducersRequest;
use highwater_wire::{BrokerId, ErrorCode};

use super::{ALL, MIN_ISR_2, NOW, read};

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_answered_with_its_first_offset_even_by_the_next_leader() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", 1, 3, MIN_ISR_2).await;
    let leader = cluster.wait_leading("t", 0).await;
    let mut client = cluster.client(leader).await;
    let producer = told(client.init_producer_id().await);
    let batches: Vec<_> =
        (0..6).map(|n| idempotent_batch(producer, n * 2, NOW, &[&format!("{n}-a"), &format!("{n}-b")])).collect();
    for (n, sent) in batches.iter().enumerate() {
        let answer = told(client.produce("t", 0, ALL, sent.clone()).await);
        assert_eq!((answer.error_code, answer.base_offset), (0, 2 * n as i64));
    }
    cluster.crash(leader).await;
    cluster.wait_state("t", 0, "led by another", |s| s.leader.is_some_and(|l| l.0 != leader)).await;
    let mut client = cluster.leader_client("t", 0).await;
    // R58: the last five batches are known; R60: the sixth is out of order.
    for (n, sent) in batches.iter().enumerate().skip(1) {
        let answer = told(client.produce("t", 0, ALL, sent.clone()).await);
        assert_eq!((answer.error_code, answer.base_offset), (0, 2 * n as i64), "batch {n}");
    }
    let answer = told(client.produce("t", 0, ALL, batches[0].clone()).await);
    assert_eq!(answer.error_code, ErrorCode::OutOfOrderSequenceNumber.code());
    let answer = told(client.produce("t", 0, ALL, idempotent_batch(producer, 14, NOW, &["gap"])).await);
    assert_eq!(answer.error_code, ErrorCode::OutOfOrderSequenceNumber.code());
    assert_eq!(read(&cluster, "t").await.len(), 12);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_begun_anew_knows_the_producers_of_deleted_records() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2], &[]).await;
    cluster.wait_in_sync("t", 0, 2).await;
    let mut client = cluster.client(1).await;
    let producer = told(client.init_producer_id().await);
    let sent = idempotent_batch(producer, 0, NOW, &["a", "b"]);
    assert_eq!(told(client.produce("t", 0, ALL, sent.clone()).await).base_offset, 0);
    cluster.crash(2).await;
    cluster.wait_state("t", 0, "broker 2 is out", |state| state.isr == [BrokerId(1)]).await;
    std::fs::remove_dir_all(cluster.member(2).replica_dir("t", 0)).unwrap();
    assert_eq!(told(client.delete_records("t", 0, 2).await), Ok(2));
    cluster.start_node(2).await;
    cluster.wait_in_sync("t", 0, 2).await;
    cluster.crash(1).await;
    cluster.wait_state("t", 0, "broker 2 leads", |state| state.leader == Some(BrokerId(2))).await;
    let mut client = cluster.client(2).await;
    let again = told(client.produce("t", 0, 1, sent).await);
    assert_eq!((again.error_code, again.base_offset), (0, 0), "R58: answered as it was the first time");

    // KIP-664, as kafka-transactions.sh describe-producers asks.
    let mut request = DescribeProducersRequest::default();
    for name in ["t", "nobody"] {
        let mut topic = TopicRequest::default();
        topic.name = name.into();
        topic.partition_indexes.push(0);
        request.topics.push(topic);
    }
    let answer = told(client.ask(0, request).await);
    let of_t = &answer.topics[0].partitions[0];
    let active: Vec<_> = of_t.active_producers.iter().map(|p| (p.producer_id, p.last_sequence)).collect();
    assert_eq!((of_t.error_code, active), (0, vec![(producer.0.0, 1)]), "{answer:?}");
    let of_nobody = &answer.topics[1].partitions[0];
    assert_eq!(of_nobody.error_code, ErrorCode::UnknownTopicOrPartition.code());
    assert!(of_nobody.error_message.as_ref().is_some_and(|why| why.contains("nobody")), "{answer:?}");
    cluster.end().await;
}
