//! The churn: records at a steady rate, clients that come and go, topics that are made and deleted, settings that change.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use highwater_wire::request::MetadataRequest;
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::chaos::fleet::Fleet;
use crate::client::{Client, batch, produce_request};
use crate::sim::rng::Rng;

/// The topic that stays.
pub const KEPT: &str = "soak";
const PARTITIONS: i32 = 6;
/// Records a second of the client that stays; those that come and go bring as many again.
const RECORDS_A_SECOND: u64 = 250;
const RECORD_BYTES: usize = 256;
/// Connections at a time, and how long one lives: at ten times the churn 50 come and go a second.
const CONNECTIONS: usize = 200;
const LIFE: Duration = Duration::from_secs(40);
/// Records that a client which comes and goes brings in its life.
const RECORDS_A_LIFE: usize = 5;
/// Between two topics, and between two settings, at the churn of a day.
const TOPIC_EVERY: Duration = Duration::from_secs(10);
/// Topics that come and go there are at a time.
const TOPICS: usize = 10;
const LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Counters {
    failed: AtomicU64,
    connections: AtomicU64,
    created: AtomicU64,
    deleted: AtomicU64,
    configured: AtomicU64,
}

/// What the clients did.
pub struct Counts {
    pub acknowledged: u64,
    pub failed: u64,
    pub connections: u64,
    pub created: u64,
    pub deleted: u64,
    pub configured: u64,
}

pub struct Load {
    fleet: Arc<Fleet>,
    begun: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
    pub acknowledged: Arc<AtomicU64>,
    counters: Arc<Counters>,
    tasks: JoinSet<()>,
}

impl Load {
    /// Makes the topic that stays; the clients wait for [`Load::begin`].
    ///
    /// # Errors
    /// The topic cannot be made.
    pub async fn start(fleet: Arc<Fleet>, churn: u32, seed: u64) -> io::Result<Self> {
        let configs = [("min.insync.replicas", "2"), ("retention.bytes", "524288"), ("segment.bytes", "131072")];
        let configs: Vec<Value> = configs.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let body = json!({
            "topic_name": KEPT,
            "partitions_count": PARTITIONS,
            "replication_factor": 3,
            "configs": configs,
        });
        match fleet.post(1, "/v3/clusters/-/topics", &body, LIMIT).await {
            Some((201, _)) => {}
            other => return Err(io::Error::other(format!("the topic cannot be made: {other:?}"))),
        }
        let mut load = Self {
            fleet,
            begun: Arc::default(),
            stopped: Arc::default(),
            acknowledged: Arc::default(),
            counters: Arc::default(),
            tasks: JoinSet::new(),
        };
        load.spawn_all(churn, &Rng::new(seed));
        Ok(load)
    }

    fn spawn_all(&mut self, churn: u32, rng: &Rng) {
        let view = || View {
            fleet: self.fleet.clone(),
            begun: self.begun.clone(),
            stopped: self.stopped.clone(),
            acknowledged: self.acknowledged.clone(),
            counters: self.counters.clone(),
        };
        let steady = view();
        self.tasks.spawn_blocking(move || steady.steady());
        for index in 0..CONNECTIONS {
            let (view, rng) = (view(), rng.fork(100 + index as u64));
            self.tasks.spawn(async move { view.come_and_go(LIFE / churn, rng).await });
        }
        let (topics, settings) = (view(), view());
        let (one, other) = (rng.fork(1), rng.fork(2));
        self.tasks.spawn(async move { topics.topics(TOPIC_EVERY / churn, one).await });
        self.tasks.spawn(async move { settings.settings(TOPIC_EVERY / churn, other).await });
    }

    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// All clients leave.
    pub async fn stop(mut self) -> Counts {
        self.stopped.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no client panics");
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            acknowledged: of(&self.acknowledged),
            failed: of(&self.counters.failed),
            connections: of(&self.counters.connections),
            created: of(&self.counters.created),
            deleted: of(&self.counters.deleted),
            configured: of(&self.counters.configured),
        }
    }
}

/// What every client has.
struct View {
    fleet: Arc<Fleet>,
    begun: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    counters: Arc<Counters>,
}

struct Reports {
    acknowledged: Arc<AtomicU64>,
    counters: Arc<Counters>,
}

impl ClientContext for Reports {
    fn log(&self, _: rdkafka::config::RDKafkaLogLevel, _: &str, _: &str) {}
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let counter = if result.is_ok() { &*self.acknowledged } else { &self.counters.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl View {
    fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    async fn wait_begun(&self) {
        while self.goes_on() && !self.begun.load(Ordering::Relaxed) {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits, and whether to go on; a client that is to leave leaves soon.
    async fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while self.goes_on() && Instant::now() < until {
            tokio::time::sleep(POLL.min(until.saturating_duration_since(Instant::now()))).await;
        }
        self.goes_on()
    }

    /// One librdkafka that stays, on a thread of its own.
    fn steady(&self) {
        while self.goes_on() && !self.begun.load(Ordering::Relaxed) {
            std::thread::sleep(POLL);
        }
        let (acknowledged, counters) = (self.acknowledged.clone(), self.counters.clone());
        let producer: ThreadedProducer<Reports> = ClientConfig::new()
            .set("bootstrap.servers", self.fleet.bootstrap())
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", "20")
            .create_with_context(Reports { acknowledged, counters })
            .expect("a producer");
        let text = "x".repeat(RECORD_BYTES);
        let (began, mut sent) = (Instant::now(), 0);
        while self.goes_on() {
            let due = began.elapsed().as_millis() as u64 * RECORDS_A_SECOND / 1_000;
            while sent < due {
                let partition = i32::try_from(sent % PARTITIONS as u64).expect("few partitions");
                let record: BaseRecord<'_, str, str> = BaseRecord::to(KEPT).partition(partition).payload(&text);
                if producer.send(record).is_err() {
                    self.counters.failed.fetch_add(1, Ordering::Relaxed);
                }
                sent += 1;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = producer.flush(LIMIT);
    }

    /// A client that connects, asks, writes and leaves, again and again.
    async fn come_and_go(&self, life: Duration, mut rng: Rng) {
        self.wait_begun().await;
        let first = Duration::from_micros(rng.below(life.as_micros() as u64));
        if !self.pause(first).await {
            return;
        }
        while self.goes_on() {
            let node = rng.within(1, 3) as u8;
            let left = Instant::now() + life;
            let _ = tokio::time::timeout(LIMIT + life, self.live(self.fleet.address(node), life, &mut rng)).await;
            if !self.pause(left.saturating_duration_since(Instant::now())).await {
                return;
            }
        }
    }

    /// Most of its life the connection does nothing.
    async fn live(&self, address: SocketAddr, life: Duration, rng: &mut Rng) -> io::Result<()> {
        let mut client = Client::connect(address).await?;
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        let mut request = MetadataRequest::default();
        request.topics = None;
        let told = client.ask(12, request).await?;
        let partition = rng.below(PARTITIONS as u64) as i32;
        let leader = told
            .topics
            .iter()
            .filter(|topic| topic.name.as_ref().is_some_and(|name| name.as_str() == KEPT))
            .flat_map(|topic| &topic.partitions)
            .find(|known| known.partition_index == partition)
            .and_then(|known| u8::try_from(known.leader_id).ok());
        if let Some(leader) = leader.filter(|leader| self.fleet.nodes().contains(leader)) {
            let mut writer = Client::connect(self.fleet.address(leader)).await?;
            let text = "y".repeat(RECORD_BYTES);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64;
            let bytes = batch(now, &[text.as_str(); RECORDS_A_LIFE]);
            let answer = writer.produce_as(9, produce_request(KEPT, partition, -1, Some(bytes))).await?;
            if answer.error_code == 0 {
                self.acknowledged.fetch_add(RECORDS_A_LIFE as u64, Ordering::Relaxed);
            }
            let end = answer.base_offset;
            let _ = writer.fetch(KEPT, partition, end.max(0), Duration::ZERO).await?;
        }
        self.pause(life * 3 / 4).await;
        Ok(())
    }

    /// Makes a topic, deletes the oldest.
    async fn topics(&self, every: Duration, mut rng: Rng) {
        self.wait_begun().await;
        let mut named = 0;
        let mut alive = std::collections::VecDeque::new();
        while self.pause(every).await {
            named += 1;
            let topic = format!("churn-{named}");
            let body = json!({ "topic_name": topic, "partitions_count": 2, "replication_factor": 3 });
            let node = rng.within(1, 3) as u8;
            if let Some((201, _)) = self.fleet.post(node, "/v3/clusters/-/topics", &body, LIMIT).await {
                self.counters.created.fetch_add(1, Ordering::Relaxed);
                alive.push_back(topic);
            }
            if alive.len() > TOPICS
                && let Some(oldest) = alive.pop_front()
            {
                let url = self.fleet.url(node, &format!("/v3/clusters/-/topics/{oldest}"));
                let answer = self.fleet.http.delete(url).timeout(LIMIT).send().await;
                let done = answer.is_ok_and(|answer| answer.status().is_success());
                self.counters.deleted.fetch_add(u64::from(done), Ordering::Relaxed);
            }
        }
    }

    /// Sets how long the topic that stays is kept to this and that, always longer than its size lets it.
    async fn settings(&self, every: Duration, mut rng: Rng) {
        self.wait_begun().await;
        while self.pause(every).await {
            let value = (3_600_000 + rng.below(1_000_000)).to_string();
            let url =
                self.fleet.url(rng.within(1, 3) as u8, &format!("/v3/clusters/-/topics/{KEPT}/configs/retention.ms"));
            let answer = self.fleet.http.put(url).json(&json!({ "value": value })).timeout(LIMIT).send().await;
            let done = answer.is_ok_and(|answer| answer.status().is_success());
            self.counters.configured.fetch_add(u64::from(done), Ordering::Relaxed);
        }
    }
}
