//! Topics that go and come again, and records of odd times.

use std::time::{Duration, Instant};

use highwater_tests::client::{
    Client, EARLIEST, LATEST, batch, fetch_partition, fetch_request, fetch_topic, produce_request,
};
use highwater_tests::cluster::{Cluster, told};
use highwater_wire::{ErrorCode, Record, RecordBatchBuilder, Timestamp, TopicId};
use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::Message as _;
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::{ALL, NOW};

/// Produce to, and fetch from, a topic by its id.
async fn by_id(client: &mut Client, id: TopicId) -> (ErrorCode, ErrorCode) {
    let mut request = produce_request("", 0, ALL, Some(batch(NOW, &["for the old one"])));
    request.topics[0].id = id;
    let produced = told(client.produce_as(13, request).await);
    let mut topic = fetch_topic("", vec![fetch_partition(0, 0)]);
    topic.topic_id = id.into();
    let fetched = told(client.ask(13, fetch_request(vec![topic])).await);
    let partition = &fetched.topics[0].partitions[0];
    assert!(partition.records.is_empty(), "records of another topic");
    (ErrorCode::from_code(produced.error_code), partition.error)
}

#[tokio::test(flavor = "multi_thread")]
async fn b33_a_topic_that_comes_again_never_answers_for_the_one_before() {
    const ROUNDS: usize = 12;
    let cluster = Cluster::start(3, &[]).await;
    let mut ids: Vec<TopicId> = Vec::new();
    for round in 0..ROUNDS {
        // Other partitions and other leaders each time.
        let partitions = 1 + round as i32 % 3;
        let created = cluster.create_topic("t", partitions, 3, &[]).await;
        for old in &ids {
            assert_ne!(*old, created.id);
            for id in 1..=3 {
                let (produced, fetched) = by_id(&mut cluster.client(id).await, *old).await;
                assert_eq!(
                    (produced, fetched),
                    (ErrorCode::UnknownTopicId, ErrorCode::UnknownTopicId),
                    "round {round}"
                );
            }
        }
        let mut client = cluster.leader_client("t", 0).await;
        assert_eq!(told(client.list_offset("t", 0, LATEST).await).offset, 0, "round {round} begins empty");
        // A session that was opened on it must not go on in the next one.
        let mut full = fetch_request(vec![fetch_topic("t", vec![fetch_partition(0, 0)])]);
        (full.session_id, full.session_epoch) = (0, 0);
        let session = told(client.ask(12, full).await).session_id;
        let value = format!("round {round}");
        assert_eq!(told(client.produce("t", 0, ALL, batch(NOW, &[&value])).await).base_offset, 0);

        assert_eq!(told(cluster.client(round as i32 % 3 + 1).await.delete_topic("t").await), 0);
        cluster
            .wait("all know that it is gone", || {
                cluster.running().iter().all(|&id| cluster.node(id).quorum().image().topic_named("t").is_none())
            })
            .await;
        cluster.create_topic("t", 1, 3, &[]).await;
        let mut next = fetch_request(vec![]);
        (next.session_id, next.session_epoch) = (session, 1);
        let answer = told(client.ask(12, next).await);
        for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
            assert!(partition.records.is_empty(), "a session of the old topic was given records");
        }
        ids.push(created.id);
        assert_eq!(told(cluster.client(1).await.delete_topic("t").await), 0);
        cluster
            .wait("all know that the second is gone", || {
                cluster.running().iter().all(|&id| cluster.node(id).quorum().image().topic_named("t").is_none())
            })
            .await;
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b33_a_stock_producer_and_consumer_go_on_in_a_topic_that_comes_again() {
    const PAUSES_MS: [u64; 6] = [0, 50, 500, 0, 50, 500];
    const LIMIT: Duration = Duration::from_secs(30);
    let cluster = Cluster::start(3, &[]).await;
    let addresses: Vec<String> = (1..=3).map(|id| cluster.address(id).to_string()).collect();
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", addresses.join(",")).set("topic.metadata.refresh.interval.ms", "2000");
    settings.set("group.id", "none").set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
    let producer: FutureProducer = settings.create().unwrap();
    let consumer: StreamConsumer = settings.create().unwrap();
    let mut assigned = TopicPartitionList::new();
    assigned.add_partition_offset("t", 0, rdkafka::Offset::Beginning).unwrap();

    for (round, pause) in PAUSES_MS.into_iter().enumerate() {
        cluster.create_topic("t", 1 + round as i32 % 3, 3, &[]).await;
        if round == 0 {
            consumer.assign(&assigned).unwrap();
        }
        // Fewer each time: where the consumer stands, the new one has nothing.
        let values: Vec<String> = (0..10 - round).map(|n| format!("{round}-{n}")).collect();
        let begun = Instant::now();
        for value in &values {
            let record = || FutureRecord::<(), _>::to("t").partition(0).payload(value);
            while let Err((error, _)) = producer.send(record(), LIMIT).await {
                assert!(begun.elapsed() < LIMIT, "round {round}: cannot write: {error}");
            }
        }
        let mut read = Vec::new();
        while read.last() != values.last() {
            let left = LIMIT.saturating_sub(begun.elapsed());
            let next = tokio::time::timeout(left, consumer.recv()).await;
            let next = next.unwrap_or_else(|_| panic!("round {round}: {read:?} read of {values:?}"));
            // Errors are news of the topic that is gone.
            if let Ok(message) = next {
                read.push(String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned());
            }
        }
        read.dedup();
        assert_eq!(read, values, "round {round}: only what was written to this one, in order");
        println!("round {round}: written and read after {:?}", begun.elapsed());

        assert_eq!(told(cluster.client(1).await.delete_topic("t").await), 0);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    drop((consumer, producer));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_records_of_odd_times_neither_stay_for_ever_nor_take_younger_ones_with_them() {
    let wall = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap()
    };
    let hour = 3_600_000;
    let cluster = Cluster::start(1, &[("log.retention.check.interval.ms", "100")]).await;
    let kept = [("retention.ms", "3600000"), ("file.delete.delay.ms", "0")];
    cluster.create_topic("mixed", 1, 1, &kept).await;
    cluster.create_topic("old", 1, 1, &kept).await;
    let mut client = cluster.client(1).await;
    let send = async |client: &mut Client, topic: &str, time: i64| {
        let mut builder = RecordBatchBuilder::new();
        builder.push(&Record::new(Timestamp(time), None, Some(b"v")));
        told(client.produce(topic, 0, ALL, builder.build().into_bytes()).await)
    };
    let now = wall();
    // Too far ahead is refused: it would keep its segment for ever.
    for time in [now + 10 * 365 * 24 * hour, i64::MAX, now * 1_000] {
        let answer = send(&mut client, "mixed", time).await;
        assert_eq!(answer.error_code, ErrorCode::InvalidTimestamp.code(), "{time}: {answer:?}");
    }
    for (offset, time) in [0, now, now - 30 * 24 * hour, 1, now - 1].into_iter().enumerate() {
        let answer = send(&mut client, "mixed", time).await;
        assert_eq!((answer.error_code, answer.base_offset), (0, offset as i64), "{time}");
    }
    // A topic of old records alone: when it has been cleared, retention has looked at both.
    for time in [0, 1, now - 30 * 24 * hour] {
        assert_eq!(send(&mut client, "old", time).await.error_code, 0);
    }
    cluster
        .wait_for("retention clears what is old", async || {
            (cluster.client(1).await.list_offset("old", 0, EARLIEST).await.ok()?.offset == 3).then_some(())
        })
        .await;
    // The first record, of 1970, closed its segment by its age and may be gone; those behind it share one with younger ones.
    assert!(told(client.list_offset("mixed", 0, EARLIEST).await).offset <= 1, "younger records lie in that segment");
    // Seeks by time find the first at or behind it.
    for (asked, offset) in [(2, 1), (now - 1, 1), (now, 1), (now + 1, -1)] {
        let found = told(client.list_offset("mixed", 0, asked).await);
        assert_eq!((found.error_code, found.offset), (0, offset), "asked for {asked}");
    }
    let fetched = told(client.fetch("mixed", 0, 1, Duration::ZERO).await);
    assert_eq!((fetched.error, fetched.records.is_empty()), (ErrorCode::None, false));
    // What is written after the clearing is there.
    assert_eq!(send(&mut client, "old", now).await.base_offset, 3);
    cluster.end().await;
}
