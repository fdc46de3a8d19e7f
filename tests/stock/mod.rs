//! A numbered workload on librdkafka: what was sent, what was acknowledged where, and whether that is still true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

/// Acknowledged: number → (partition, offset).
pub type Acked = BTreeMap<u64, (i32, i64)>;

/// Collects delivery reports.
#[derive(Default)]
pub struct Acks {
    acked: parking_lot::Mutex<Acked>,
    failed: parking_lot::Mutex<BTreeMap<u64, String>>,
    times: parking_lot::Mutex<Vec<(Instant, i32)>>,
}

impl ClientContext for Acks {
    fn log(&self, _: rdkafka::config::RDKafkaLogLevel, _: &str, _: &str) {}
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Acks {
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, number: Box<u64>) {
        match result {
            Ok(message) => {
                self.times.lock().push((Instant::now(), message.partition()));
                self.acked.lock().insert(*number, (message.partition(), message.offset()));
            }
            Err((error, _)) => {
                self.failed.lock().insert(*number, error.to_string());
            }
        }
    }
}

/// Sends numbers at a fixed rate from a thread of its own until told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    abandoned: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<Outcome>,
    producer: ThreadedProducer<Acks>,
}

/// What became of a load.
pub struct Outcome {
    pub sent: u64,
    pub acked: Acked,
    pub failed: BTreeMap<u64, String>,
    /// Longest time between two acknowledgements.
    pub longest_gap: Duration,
    /// … of the same partition.
    pub longest_gaps: BTreeMap<i32, Duration>,
}

impl Load {
    /// `settings` are librdkafka's; each record is its number in ASCII, padded to `size` bytes.
    pub fn start(bootstrap: &str, topic: &str, per_second: u64, size: usize, settings: &[(&str, &str)]) -> Self {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap)
            .set("acks", "all")
            .set("linger.ms", "5")
            .set("delivery.timeout.ms", "120000")
            .set("retry.backoff.ms", "20")
            .set("retry.backoff.max.ms", "100")
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "100")
            .set("topic.metadata.refresh.fast.interval.ms", "50");
        for (key, value) in settings {
            config.set(*key, *value);
        }
        let producer: ThreadedProducer<Acks> = config.create_with_context(Acks::default()).expect("a producer");
        let stop = Arc::new(AtomicBool::new(false));
        let abandoned = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, abandoned, sent) = (stop.clone(), abandoned.clone(), sent.clone());
            let (producer, topic) = (producer.clone(), topic.to_owned());
            move || {
                let sent = send_until(&producer, &topic, per_second, size, &stop, &sent);
                if !abandoned.load(Ordering::Relaxed) {
                    producer.flush(Duration::from_secs(120)).expect("every message gets its delivery report");
                }
                outcome(&producer, sent)
            }
        });
        Self { stop, abandoned, sent, thread, producer }
    }

    /// Numbers handed to librdkafka so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Numbers acknowledged so far.
    pub fn acked(&self) -> usize {
        self.producer.context().acked.lock().len()
    }

    /// Stops sending and does not ask what became of it.
    pub fn abandon(self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }

    /// Stops sending, waits for the last delivery report.
    pub fn finish(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the load ran to its end")
    }
}

fn send_until(
    producer: &ThreadedProducer<Acks>,
    topic: &str,
    per_second: u64,
    size: usize,
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> u64 {
    let began = Instant::now();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = began.elapsed().as_micros() as u64 * per_second / 1_000_000;
        while number < due {
            let payload = format!("{number:<size$}");
            match producer.send(BaseRecord::with_opaque_to(topic, Box::new(number)).payload(&payload).key("")) {
                Ok(()) => number += 1,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => break,
                Err((error, _)) => panic!("librdkafka refuses number {number}: {error}"),
            }
        }
        sent.store(number, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
    }
    number
}

fn outcome(producer: &ThreadedProducer<Acks>, sent: u64) -> Outcome {
    let acks = producer.context();
    let mut times = acks.times.lock().clone();
    times.sort();
    let longest = |times: &[Instant]| times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    let all: Vec<Instant> = times.iter().map(|(time, _)| *time).collect();
    let mut by_partition: BTreeMap<i32, Vec<Instant>> = BTreeMap::new();
    for (time, partition) in times {
        by_partition.entry(partition).or_default().push(time);
    }
    let longest_gaps = by_partition.iter().map(|(partition, times)| (*partition, longest(times))).collect();
    let (acked, failed) = (acks.acked.lock().clone(), acks.failed.lock().clone());
    Outcome { sent, acked, failed, longest_gap: longest(&all), longest_gaps }
}

/// Reads every partition of a topic from its beginning to its present end: per partition the (offset, number) list.
///
/// A leader that has just been elected shows less than was acknowledged until it may tell its end, so that is asked first.
pub fn read_all(bootstrap: &str, topic: &str, partitions: i32) -> BTreeMap<i32, Vec<(i64, u64)>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning).expect("a partition");
    }
    let until = Instant::now() + Duration::from_secs(120);
    for partition in 0..partitions {
        while let Err(error) = consumer.fetch_watermarks(topic, partition, Duration::from_secs(10)) {
            assert!(Instant::now() < until, "the end of {topic}-{partition} is not told: {error}");
        }
    }
    consumer.assign(&list).expect("assigned");
    let mut read: BTreeMap<i32, Vec<(i64, u64)>> = (0..partitions).map(|p| (p, Vec::new())).collect();
    let mut ended = BTreeSet::new();
    while ended.len() < read.len() {
        assert!(Instant::now() < until, "reading {topic} did not end; ended: {ended:?}");
        match consumer.poll(Duration::from_millis(500)) {
            Some(Ok(message)) => {
                let text = std::str::from_utf8(message.payload().expect("a payload")).expect("ASCII");
                let number = text.trim_end().parse().expect("a number");
                read.get_mut(&message.partition()).expect("a known partition").push((message.offset(), number));
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ended.insert(partition);
            }
            Some(Err(error)) => assert!(error.rdkafka_error_code().is_some(), "{error}"),
            None => {}
        }
    }
    read
}

/// Every acknowledged number is there, at its offset, exactly once; numbers of a partition stand in order (H1–H3).
pub fn check_once_in_order(acked: &Acked, read: &BTreeMap<i32, Vec<(i64, u64)>>) {
    let mut seen: BTreeMap<u64, (i32, i64)> = BTreeMap::new();
    for (&partition, records) in read {
        for pair in records.windows(2) {
            assert!(pair[0].0 < pair[1].0, "offsets of partition {partition} go back: {pair:?}");
            assert!(pair[0].1 < pair[1].1, "numbers of partition {partition} out of order: {pair:?}");
        }
        for &(offset, number) in records {
            let before = seen.insert(number, (partition, offset));
            assert!(before.is_none(), "number {number} twice: at {before:?} and {partition}/{offset}");
        }
    }
    for (number, at) in acked {
        assert_eq!(seen.get(number), Some(at), "acknowledged number {number} is not where it was acknowledged");
    }
}
