//! Compacted topics on real processes: of each key the newest record stays, whoever is killed, and stock clients read what is left.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use highwater_tests::client::Client;
use highwater_tests::process::Processes;
use highwater_wire::{Record, RecordBatchBuilder, Timestamp};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};

const ALL: i16 = -1;
const KEYS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Small segments, cleaned as soon as anything in them is dirty.
const COMPACTED: &[(&str, &str)] = &[
    ("cleanup.policy", "compact"),
    ("segment.bytes", "20000"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("min.insync.replicas", "2"),
    ("delete.retention.ms", "1000"),
];

async fn cluster() -> Processes {
    let soon = [
        ("log.cleaner.backoff.ms", "100"),
        ("broker.session.timeout.ms", "3000"),
        ("broker.heartbeat.interval.ms", "500"),
    ];
    let mut cluster = Processes::start(3, &soon);
    cluster.wait_ready().await;
    cluster.create_topic(1, "t", 1, 3, COMPACTED).await;
    cluster
}

fn address(cluster: &Processes, id: usize) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into()
}

/// Numbers written to keys in turn, larger ones later; every 50th is a tombstone.
#[derive(Default)]
struct Writer {
    next: u64,
    /// By key: the newest number that was acknowledged, and whether it was a tombstone.
    acked: BTreeMap<u64, (u64, bool)>,
}

const fn is_tombstone(number: u64) -> bool {
    number % 50 == 49
}

impl Writer {
    /// Ten records in a batch; `false`: not acknowledged.
    async fn write(&mut self, client: &mut Client) -> bool {
        let mut builder = RecordBatchBuilder::new();
        let numbers: Vec<u64> = (self.next..self.next + 10).collect();
        self.next += 10;
        for number in &numbers {
            let (key, value) = ((number % KEYS).to_string(), format!("{number:0>60}"));
            let value = (!is_tombstone(*number)).then_some(value.as_bytes());
            let header = (bytes::Bytes::from_static(b"number"), Some(number.to_string().into()));
            let record = Record { headers: vec![header], ..Record::new(Timestamp(1), Some(key.as_bytes()), value) };
            builder.push(&record);
        }
        let answer = client.produce("t", 0, ALL, builder.build().into_bytes()).await;
        let stored = answer.is_ok_and(|answer| answer.error_code == 0);
        if stored {
            self.acked.extend(numbers.iter().map(|number| (number % KEYS, (*number, is_tombstone(*number)))));
        }
        stored
    }

    /// Of each key (in the order of offsets) no number falls, and the last is at least the one that was acknowledged last.
    fn check(&self, read: &[(i64, u64, u64)], context: &str) {
        let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
        for pair in read.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{context}: offsets {pair:?}");
        }
        for (offset, key, number) in read {
            assert_eq!(number % KEYS, *key, "{context}: offset {offset}");
            let before = newest.insert(*key, *number);
            assert!(before.is_none_or(|before| before <= *number), "{context}: key {key} at {offset} goes back");
        }
        for (key, (number, tombstone)) in &self.acked {
            let found = newest.get(key);
            assert!(
                found.is_some_and(|found| found >= number) || *tombstone && found.is_none(),
                "{context}: key {key} was {number} (tombstone: {tombstone}), and is {found:?}"
            );
        }
    }
}

fn number_of(record: &Record) -> (i64, u64, u64) {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse().unwrap();
    (record.offset.0, text(record.key.as_deref().unwrap()), text(record.headers[0].1.as_deref().unwrap()))
}

/// Waits until `id` leads with everybody in sync.
async fn led_by(cluster: &Processes, id: usize) {
    let body = json!({"election_type": "DESIGNATED",
        "partitions": [{"topic_name": "t", "partition_id": 0, "leader_id": id}]});
    let leads = |s: &Value| s["leader_id"] == id && s["isr"].as_array().is_some_and(|isr| isr.len() == 3);
    let leads = async || {
        if cluster.state(id, "t", 0).await.as_ref().is_some_and(leads) {
            return true;
        }
        let _ = cluster.http.post(cluster.url(id, "/elections")).json(&body).send().await;
        false
    };
    cluster.wait(&format!("node {id} leads, all in sync"), PATIENCE, leads).await;
}

async fn leader(cluster: &Processes) -> Option<Client> {
    for id in 1..=3 {
        if let Some(state) = cluster.state(id, "t", 0).await
            && let Some(leader) = state["leader_id"].as_u64()
        {
            return Client::connect(address(cluster, usize::try_from(leader).unwrap())).await.ok();
        }
    }
    None
}

/// Bytes of the segments of a partition on a node.
fn log_bytes(cluster: &Processes, id: usize, partition: &str) -> u64 {
    let files = std::fs::read_dir(cluster.node(id).data_dir().join(partition)).into_iter().flatten().flatten();
    let logs = files.filter(|file| file.path().extension().is_some_and(|ending| ending == "log"));
    logs.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// As librdkafka sees it, from the beginning to the end.
fn read_as_stock(cluster: &Processes) -> Vec<(i64, u64, u64)> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap())
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("t", 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let (mut read, until) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        assert!(Instant::now() < until, "the end was not reached");
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => {
                let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse::<u64>().unwrap();
                use rdkafka::message::Headers;
                let number = text(message.headers().unwrap().get(0).value.unwrap());
                read.push((message.offset(), text(message.key().unwrap()), number));
            }
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => return read,
            Some(Err(_)) | None => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_record_of_each_key_stays_whoever_is_killed() {
    let mut cluster = cluster().await;
    let mut writer = Writer::default();
    let until = Instant::now() + 4 * PATIENCE;
    for kills in 0..6 {
        let victim = kills % 3 + 1;
        let mut written = 0;
        while written < 60 {
            assert!(Instant::now() < until, "after {kills} kills: {written} batches");
            let Some(mut client) = leader(&cluster).await else { continue };
            while written < 60 && writer.write(&mut client).await {
                written += 1;
            }
        }
        cluster.kill(victim);
        // Every other one is away until the others have compacted what it has not heard of: where its log ends lies within that.
        if kills % 2 == 1 {
            let mut written = 0;
            while written < 60 {
                assert!(Instant::now() < until, "without node {victim}: {written} batches");
                let Some(mut client) = leader(&cluster).await else { continue };
                while written < 60 && writer.write(&mut client).await {
                    written += 1;
                }
            }
            let others = || (1..=3).filter(|id| *id != victim);
            let shrunk = async || others().all(|id| log_bytes(&cluster, id, "t-0") < 50_000);
            cluster.wait("the others compact their logs", PATIENCE, shrunk).await;
        }
        cluster.start_node(victim);
        cluster.wait_node_ready(victim).await;
    }
    for id in 1..=3 {
        led_by(&cluster, id).await;
        let records = Client::connect(address(&cluster, id)).await.unwrap().read_all("t", 0).await.unwrap();
        let read: Vec<_> = records.iter().map(number_of).collect();
        writer.check(&read, &format!("node {id}"));
        let shrunk = async || log_bytes(&cluster, id, "t-0") < 50_000;
        cluster.wait(&format!("node {id} compacts its log"), PATIENCE, shrunk).await;
    }
    let read = read_as_stock(&cluster);
    writer.check(&read, "librdkafka");
    assert!((read.len() as u64) < writer.next / 4, "{} of {} records are left", read.len(), writer.next);
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_becomes_compacted_and_takes_records_without_keys_no_more() {
    let cluster = cluster().await;
    let mut client = leader(&cluster).await.unwrap();
    let keyless = RecordBatchBuilder::new().value(Timestamp(1), b"v").build().into_bytes();
    let refused = client.produce("t", 0, ALL, keyless).await.unwrap();
    assert_eq!(refused.error_code, 87, "{refused:?}");
    let refused = client.delete_records("t", 0, 0).await.unwrap();
    assert_eq!(refused.unwrap_err().code(), 44);
    // Both policies: deleted by hand, too.
    let body = json!({ "data": [{ "name": "cleanup.policy", "value": "compact,delete" }] });
    let answer = cluster.http.post(cluster.url(1, "/topics/t/configs:alter")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 204);
    let deleted = async || client.delete_records("t", 0, 0).await.unwrap().is_ok();
    let mut deleted = deleted;
    cluster.wait("records may be deleted", PATIENCE, async || deleted().await).await;
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

/// How much is written, in MB; more of it to measure with.
fn megabytes() -> u64 {
    std::env::var("HIGHWATER_COMPACTION_MB").ok().and_then(|given| given.parse().ok()).unwrap_or(48)
}

/// Each record has about a kilobyte, each key is written twice, and a reader goes on reading meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_of_much_keeps_readers_going() {
    let (records, buffer) = (megabytes() * 1_000, 64 << 20);
    let mut cluster = Processes::start(
        1,
        &[("log.cleaner.backoff.ms", "100"), ("log.cleaner.dedupe.buffer.size", &buffer.to_string())],
    );
    cluster.wait_ready().await;
    let configs = [("cleanup.policy", "compact"), ("segment.bytes", "8388608"), ("min.cleanable.dirty.ratio", "1")];
    cluster.create_topic(1, "much", 1, 1, &configs).await;
    let keys = records / 2;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap())
        .set("queue.buffering.max.messages", "20000")
        .create()
        .unwrap();
    let padding = "x".repeat(1_000);
    for number in 0..records {
        let (key, value) = ((number % keys).to_string(), format!("{number} {padding}"));
        let mut record = BaseRecord::to("much").key(&key).payload(&value).partition(0);
        while let Err((_, again)) = producer.send(record) {
            producer.poll(Duration::from_millis(5));
            record = again;
        }
    }
    producer.flush(2 * PATIENCE).unwrap();
    let written = log_bytes(&cluster, 1, "much-0");
    // Nothing is dirty enough before this.
    let often = json!({ "value": "0.01" });
    let url = cluster.url(1, "/topics/much/configs/min.cleanable.dirty.ratio");
    assert_eq!(cluster.http.put(url).json(&often).send().await.unwrap().status().as_u16(), 204);
    let mut client = Client::connect(address(&cluster, 1)).await.unwrap();
    let (mut slowest, began) = (Duration::ZERO, Instant::now());
    // All but the last segment twice over: half of it goes.
    while log_bytes(&cluster, 1, "much-0") > written * 6 / 10 {
        assert!(began.elapsed() < 4 * PATIENCE, "{} of {written} bytes", log_bytes(&cluster, 1, "much-0"));
        let asked = Instant::now();
        let fetched = client.fetch("much", 0, i64::try_from(records).unwrap() - 1, Duration::ZERO).await.unwrap();
        assert!(!fetched.records.is_empty());
        slowest = slowest.max(asked.elapsed());
    }
    let usage = cluster.usage(1);
    eprintln!("{written} bytes compacted in {:?}; slowest fetch {slowest:?}; {usage:?}", began.elapsed());
    // Written to show a lock that is held while files are read: this machine may be slow for other reasons.
    assert!(slowest < Duration::from_millis(500), "a fetch took {slowest:?}");

    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 0;
    loop {
        let fetched = client.fetch("much", 0, next, Duration::ZERO).await.unwrap();
        if fetched.records.is_empty() {
            break;
        }
        for batch in highwater_wire::batch::BatchIter::new(fetched.records) {
            let batch = batch.unwrap();
            for record in batch.records().unwrap().map(Result::unwrap).filter(|record| record.offset.0 >= next) {
                let text =
                    |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().split(' ').next().unwrap().parse().unwrap();
                newest.insert(text(record.key.as_deref().unwrap()), text(record.value.as_deref().unwrap()));
            }
            next = batch.next_offset().0;
        }
    }
    assert_eq!(newest.len() as u64, keys);
    assert!(newest.iter().all(|(key, number)| *number == key + keys), "a key has an older value");
    assert_eq!(next as u64, records, "the log ends where it did");
}
