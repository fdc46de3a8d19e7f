//! Consumer groups: stock clients share partitions, come and go, and lose no position when a coordinator dies.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use highwater_tests::client::Client;
use highwater_tests::process::Processes;
use highwater_tests::stock_tools::kafka_tool;
use highwater_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use highwater_wire::messages::{FindCoordinatorRequest, OffsetFetchRequest};
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

async fn cluster_with(topic: &str, partitions: usize) -> Processes {
    let soon = [
        ("group.initial.rebalance.delay.ms", "200"),
        ("broker.session.timeout.ms", "3000"),
        ("broker.heartbeat.interval.ms", "500"),
        // A default of the cluster must not eat what groups committed.
        ("log.retention.bytes", "1000"),
    ];
    let mut cluster = Processes::start(3, &soon);
    cluster.wait_ready().await;
    cluster.create_topic(1, topic, partitions, 3, &[]).await;
    cluster
}

/// Numbers as records, spread over the partitions.
fn produce(bootstrap: &str, topic: &str, partitions: i32, numbers: std::ops::Range<u64>) {
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", bootstrap).set("acks", "all").create().unwrap();
    for number in numbers {
        let (key, value) = (number.to_string(), number.to_string());
        let partition = i32::try_from(number).unwrap() % partitions;
        producer.send(BaseRecord::to(topic).key(&key).payload(&value).partition(partition)).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

fn consumer(bootstrap: &str, group: &str, settings: &[(&str, &str)]) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "500")
        .set("retry.backoff.ms", "50")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "200")
        .set("enable.auto.commit", "false");
    for (key, value) in settings {
        config.set(*key, *value);
    }
    config.create().unwrap()
}

/// A member in a thread of its own: commits what it has read, notes it, and lives until told to stop.
struct Reader {
    stop: Arc<AtomicBool>,
    owns: Arc<Mutex<BTreeSet<i32>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Reader {
    fn start(consumer: BaseConsumer, topic: &str, read: &Arc<Mutex<Vec<u64>>>) -> Self {
        consumer.subscribe(&[topic]).unwrap();
        let stop = Arc::<AtomicBool>::default();
        let owns = Arc::<Mutex<BTreeSet<i32>>>::default();
        let thread = std::thread::spawn({
            let (stop, owns, read) = (Arc::clone(&stop), Arc::clone(&owns), Arc::clone(read));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                        let number = std::str::from_utf8(message.payload().unwrap()).unwrap().parse().unwrap();
                        read.lock().push(number);
                        let _ = consumer.commit_message(&message, CommitMode::Async);
                    }
                    let assigned = consumer.assignment().unwrap();
                    *owns.lock() = assigned
                        .elements()
                        .iter()
                        .map(rdkafka::topic_partition_list::TopicPartitionListElem::partition)
                        .collect();
                }
                let _ = consumer.commit_consumer_state(CommitMode::Sync);
            }
        });
        Self { stop, owns, thread }
    }

    fn owns(&self) -> usize {
        self.owns.lock().len()
    }

    fn leave(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_goes_on_where_its_group_ended() {
    let cluster = cluster_with("t", 3).await;
    let bootstrap = cluster.bootstrap();
    let read = |most: usize| {
        let most = most.to_string();
        let args = ["-G", "g", "-b", &bootstrap, "-q", "-c", &most, "-X", "auto.offset.reset=earliest", "t"];
        let output = Command::new("kcat").args(args).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect::<BTreeSet<u64>>()
    };
    produce(&bootstrap, "t", 3, 0..300);
    assert_eq!(read(300), (0..300).collect());
    produce(&bootstrap, "t", 3, 300..400);
    assert_eq!(read(100), (300..400).collect(), "only what is new");
    // Whatever the cluster's defaults are for what is deleted by age or size.
    let (status, config) = cluster.get(1, "/topics/__consumer_offsets/configs/cleanup.policy").await.unwrap();
    assert_eq!((status, config["value"].as_str()), (200, Some("compact")), "{config}");
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn members_share_the_partitions_whatever_their_strategy_and_take_over_from_who_leaves() {
    let cluster = cluster_with("t", 6).await;
    let bootstrap = cluster.bootstrap();
    for strategy in ["range", "cooperative-sticky"] {
        let group = format!("g-{strategy}");
        let read = Arc::<Mutex<Vec<u64>>>::default();
        let member = || {
            let settings = [("partition.assignment.strategy", strategy)];
            Reader::start(consumer(&bootstrap, &group, &settings), "t", &read)
        };
        let mut members = vec![member(), member(), member()];
        let evenly = |members: &[Reader], each: usize| members.iter().all(|member| member.owns() == each);
        cluster.wait("two partitions each", PATIENCE, async || evenly(&members, 2)).await;
        members.pop().unwrap().leave();
        cluster.wait("three each, of two", PATIENCE, async || evenly(&members, 3)).await;
        produce(&bootstrap, "t", 6, 0..600);
        let all: BTreeSet<u64> = (0..600).collect();
        let seen = || read.lock().iter().copied().collect::<BTreeSet<u64>>();
        cluster.wait("everything is read", PATIENCE, async || seen() == all).await;
        members.into_iter().for_each(Reader::leave);
    }
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_member_keeps_its_partitions_over_a_restart() {
    let cluster = cluster_with("t", 4).await;
    let bootstrap = cluster.bootstrap();
    let read = Arc::<Mutex<Vec<u64>>>::default();
    let member = |instance: &str| {
        let settings = [("group.instance.id", instance), ("session.timeout.ms", "20000")];
        Reader::start(consumer(&bootstrap, "static", &settings), "t", &read)
    };
    let (a, b) = (member("a"), member("b"));
    cluster.wait("two each", PATIENCE, async || a.owns() == 2 && b.owns() == 2).await;
    let before = b.owns.lock().clone();
    b.leave();
    let b = member("b");
    cluster.wait("b has what it had", Duration::from_secs(15), async || *b.owns.lock() == before).await;
    assert_eq!(a.owns(), 2, "the other one was never asked to join again");
    a.leave();
    b.leave();
}

/// Where the coordinator of a group is, by a node that answers.
async fn coordinator(cluster: &Processes, group: &str) -> Option<SocketAddr> {
    for id in 1..=3 {
        let Ok(mut client) = Client::connect((Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into()).await else {
            continue;
        };
        let mut request = FindCoordinatorRequest::default();
        request.coordinator_keys = vec![group.into()];
        let Ok(answer) = client.ask(4, request).await else { continue };
        let found = &answer.coordinators[0];
        if found.error_code == 0 {
            return Some((Ipv4Addr::LOCALHOST, u16::try_from(found.port).unwrap()).into());
        }
    }
    None
}

async fn commit(address: SocketAddr, group: &str, offset: i64) -> Option<i16> {
    Client::connect(address).await.ok()?.commit_offset(group, "t", 0, offset).await.ok()
}

async fn committed(address: SocketAddr, group: &str) -> Option<i64> {
    let mut client = Client::connect(address).await.ok()?;
    let mut topic = OffsetFetchRequestTopics::default();
    topic.name = "t".into();
    topic.partition_indexes = vec![0];
    let mut asked = OffsetFetchRequestGroup::default();
    asked.group_id = group.into();
    asked.topics = Some(vec![topic]);
    let mut request = OffsetFetchRequest::default();
    request.groups = vec![asked];
    let answer = client.ask(8, request).await.ok()?;
    (answer.groups[0].error_code == 0).then(|| answer.groups[0].topics[0].partitions[0].committed_offset)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_position_is_lost_or_goes_back_when_coordinators_die() {
    let mut cluster = cluster_with("t", 1).await;
    let (mut acked, mut next, mut kills) = (-1, 0, 0);
    let until = Instant::now() + 4 * PATIENCE;
    while kills < 10 {
        assert!(Instant::now() < until, "{kills} kills, {acked} acknowledged");
        let Some(address) = coordinator(&cluster, "g").await else { continue };
        for _ in 0..20 {
            next += 1;
            if commit(address, "g", next).await == Some(0) {
                acked = next;
            }
            if let Some(told) = committed(address, "g").await {
                assert!((acked..=next).contains(&told), "{acked} was acknowledged, {next} sent, and {told} is told");
            }
        }
        let victim = (1..=3).find(|id| cluster.node(*id).kafka_port == address.port()).unwrap();
        if acked > 0 && cluster.nodes[victim - 1].runs() {
            cluster.kill(victim);
            kills += 1;
            let began = Instant::now();
            let told = loop {
                if let Some(address) = coordinator(&cluster, "g").await
                    && let Some(told) = committed(address, "g").await
                {
                    break told;
                }
                assert!(began.elapsed() < PATIENCE, "no coordinator after {:?}", began.elapsed());
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert!((acked..=next).contains(&told), "{acked} was acknowledged, {next} sent, and {told} is told");
            cluster.start_node(victim);
            cluster.wait_node_ready(victim).await;
        }
    }
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_back_when_their_coordinator_dies() {
    let mut cluster = cluster_with("t", 6).await;
    let bootstrap = cluster.bootstrap();
    let read = Arc::<Mutex<Vec<u64>>>::default();
    let members: Vec<_> = (0..3).map(|_| Reader::start(consumer(&bootstrap, "g", &[]), "t", &read)).collect();
    cluster.wait("two each", PATIENCE, async || members.iter().all(|member| member.owns() == 2)).await;
    produce(&bootstrap, "t", 6, 0..600);
    let seen = |read: &Mutex<Vec<u64>>| read.lock().iter().copied().collect::<BTreeSet<u64>>();
    cluster.wait("everything is read", PATIENCE, async || seen(&read).len() == 600).await;
    let address = coordinator(&cluster, "g").await.unwrap();
    let victim = (1..=3).find(|id| cluster.node(*id).kafka_port == address.port()).unwrap();
    cluster.kill(victim);
    produce(&bootstrap, "t", 6, 600..900);
    cluster.wait("they go on", PATIENCE, async || seen(&read).len() == 900).await;
    assert_eq!(members.iter().map(Reader::owns).sum::<usize>(), 6);
    members.into_iter().for_each(Reader::leave);
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn kafkas_own_tool_lists_describes_resets_and_deletes_groups() {
    let cluster = cluster_with("t", 2).await;
    let bootstrap = cluster.bootstrap();
    produce(&bootstrap, "t", 2, 0..100);
    let read = Arc::<Mutex<Vec<u64>>>::default();
    let member = Reader::start(consumer(&bootstrap, "g", &[("client.id", "reader")]), "t", &read);
    cluster.wait("everything is read", PATIENCE, async || read.lock().len() == 100).await;
    let tool = |args: &[&str]| {
        let mut tool = kafka_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand");
        let output = tool.args(["--bootstrap-server", &bootstrap]).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    };
    let (_, listed) = tool(&["--list", "--state"]);
    assert!(listed.contains("g") && listed.contains("Stable"), "{listed}");
    let (_, described) = tool(&["--describe", "--group", "g"]);
    assert!(
        described.contains("reader") && described.contains(" t ") && described.contains("CURRENT-OFFSET"),
        "{described}"
    );
    let (_, members) = tool(&["--describe", "--group", "g", "--members", "--verbose"]);
    assert!(members.contains("t(0,1)") || members.contains("t:0,1"), "{members}");
    let (_, refused) = tool(&["--delete", "--group", "g"]);
    assert!(refused.contains("NonEmpty") || refused.contains("not empty"), "{refused}");
    member.leave();
    let (done, reset) = tool(&["--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--execute"]);
    assert!(done && reset.contains('0'), "{reset}");
    read.lock().clear();
    let member = Reader::start(consumer(&bootstrap, "g", &[]), "t", &read);
    cluster.wait("everything is read again", PATIENCE, async || read.lock().len() == 100).await;
    member.leave();
    let (done, deleted) = tool(&["--delete", "--group", "g"]);
    assert!(done && deleted.contains("successful"), "{deleted}");
    let (_, listed) = tool(&["--list"]);
    assert!(!listed.lines().any(|line| line.trim() == "g"), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_told_moved_and_deleted_over_http_and_by_our_own_tool() {
    let cluster = cluster_with("t", 2).await;
    let bootstrap = cluster.bootstrap();
    produce(&bootstrap, "t", 2, 0..100);
    let read = Arc::<Mutex<Vec<u64>>>::default();
    let member = Reader::start(consumer(&bootstrap, "my group", &[("client.id", "reader")]), "t", &read);
    cluster.wait("everything is read", PATIENCE, async || read.lock().len() == 100).await;
    let group = async |id: usize| cluster.get(id, "/consumer-groups/my%20group").await.unwrap();
    cluster.wait("and committed", PATIENCE, async || group(1).await.1["total_lag"] == 0).await;
    // Whoever is asked: one of the three coordinates it.
    for id in 1..=3 {
        let (status, told) = group(id).await;
        assert_eq!((status, &told["state"], &told["status"]), (200, &json!("STABLE"), &json!("OK")), "{told}");
        assert_eq!((&told["members_count"], &told["is_simple"]), (&json!(1), &json!(false)), "{told}");
        assert!(told["rebalances"][0]["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{told}");
        let (_, list) = cluster.get(id, "/consumer-groups?state=STABLE").await.unwrap();
        assert_eq!(list["data"][0]["consumer_group_id"], "my group", "{list}");
        let (_, members) = cluster.get(id, "/consumer-groups/my%20group/consumers").await.unwrap();
        let assigned = &members["data"][0]["assignments"][0];
        assert_eq!(*assigned, json!({"topic_name": "t", "partition_ids": [0, 1]}), "{members}");
        assert_eq!(cluster.get(id, "/consumer-groups/nobody").await.unwrap().1["error_code"], 40405);
    }
    let reset = json!({ "to": "EARLIEST" });
    let url = cluster.url(2, "/consumer-groups/my%20group/offsets:reset");
    let refused = cluster.http.post(&url).json(&reset).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 409, "it has a member");
    let refused = cluster.http.delete(cluster.url(3, "/consumer-groups/my%20group")).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 409);

    member.leave();
    produce(&bootstrap, "t", 2, 100..130);
    cluster.wait("nobody is in it", PATIENCE, async || group(1).await.1["state"] == "EMPTY").await;
    let (code, listed, _) = cluster.cli(1, &["group", "list", "--check"]).await;
    assert_eq!(code, 7, "{listed}");
    assert!(listed.contains("my group") && listed.contains("STOPPED") && listed.contains(" 30 "), "{listed}");
    let (_, summary) = cluster.get(1, "/consumer-groups/my%20group/lag-summary").await.unwrap();
    assert_eq!((&summary["total_lag"], &summary["max_lag"]), (&json!(30), &json!(15)), "{summary}");
    let (code, plan, _) = cluster.cli(2, &["group", "seek", "my group", "--to", "-10", "--dry-run"]).await;
    assert_eq!((code, plan.lines().count()), (0, 4), "{plan}");
    let (code, done, said) =
        cluster.cli(2, &["group", "seek", "my group", "--to", "start", "--yes", "-o", "json"]).await;
    assert_eq!(code, 0, "{said}");
    assert!(done.contains("\"after_offset\": 0") && done.contains("\"lag\": 65"), "{done}");
    let (code, described, _) = cluster.cli(3, &["group", "describe", "my group"]).await;
    assert!(code == 0 && described.contains("lag 130") && described.contains("CAUSE"), "{described}");
    read.lock().clear();
    let member = Reader::start(consumer(&bootstrap, "my group", &[]), "t", &read);
    cluster.wait("everything is read again", PATIENCE, async || read.lock().len() == 130).await;
    member.leave();
    let gone = async || cluster.cli(1, &["group", "delete", "my group", "--yes"]).await.0 == 0;
    cluster.wait("it is deleted", PATIENCE, gone).await;
    assert_eq!(group(2).await.0, 404);
    let (code, ..) = cluster.cli(1, &["group", "describe", "my group"]).await;
    assert_eq!(code, 3);
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}
