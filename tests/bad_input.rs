//! Hostile and mistaken input against a real process: the right error, the connection kept or closed as the specification
//! says, nothing appended, the node alive and its memory bounded.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use highwater_tests::client::{
    Client, LATEST, batch, fetch_partition, fetch_request, fetch_topic, list_offsets_request, produce_request,
};
use highwater_tests::process::{Processes, binary, free_ports};
use highwater_wire::messages::produce_response::PartitionProduceResponse;
use highwater_wire::produce::ProduceRequest;
use highwater_wire::request::ApiVersionsRequest;
use highwater_wire::response::response_limits;
use highwater_wire::{
    ApiKey, Codec, ErrorCode, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Record, RecordBatchBuilder, Response,
    Timestamp, TopicId,
};
use serde_json::{Value, json};

const ALL: i16 = -1;
const ONE_NODE: &[(&str, &str)] = &[("socket.request.max.bytes", "4194304"), ("log.retention.ms", "-1")];
const NOW: i64 = 1_760_000_000_000;

async fn one_node() -> Processes {
    let mut cluster = Processes::start(1, ONE_NODE);
    cluster.wait_ready().await;
    cluster
}

fn kafka(cluster: &Processes) -> SocketAddr {
    ([127, 0, 0, 1], cluster.node(1).kafka_port).into()
}

async fn connect(cluster: &Processes) -> Client {
    Client::connect(kafka(cluster)).await.expect("the node accepts connections")
}

/// The node still answers, on a connection of its own.
async fn assert_alive(cluster: &Processes) {
    let answer = connect(cluster).await.metadata("nobody").await.expect("the node is alive");
    assert_eq!(answer.brokers.len(), 1);
}

/// A request header of version 1 with an empty body behind it, and its length.
fn frame(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let client = b"mallory";
    frame.extend_from_slice(&((8 + 2 + client.len() + body.len()) as i32).to_be_bytes());
    frame.extend_from_slice(&key.to_be_bytes());
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&7i32.to_be_bytes());
    frame.extend_from_slice(&(client.len() as i16).to_be_bytes());
    frame.extend_from_slice(client);
    frame.extend_from_slice(body);
    frame
}

fn goodbyes(cluster: &Processes) -> Vec<String> {
    cluster.node(1).log().lines().filter(|line| line.contains("closing a connection")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_closes_its_connection_with_one_log_line() {
    let cluster = one_node().await;
    let produce_of = |bytes: i32| [&bytes.to_be_bytes()[..], &[0, 0, 0, 9]].concat();
    let other_of = |bytes: i32| [&bytes.to_be_bytes()[..], &[0, 3, 0, 9]].concat();
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("a length of 2 GiB", i32::MAX.to_be_bytes().to_vec(), &["exceeds the limit"]),
        ("a negative length", (-1i32).to_be_bytes().to_vec(), &["a frame of -1 bytes"]),
        ("a length too small for a header", vec![0, 0, 0, 3, 0, 0, 0], &["a frame of 3 bytes"]),
        ("somebody speaks HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec(), &["exceeds the limit"]),
        ("Produce above socket.request.max.bytes", produce_of((4 << 20) + 1), &["exceeds the limit of 4194304"]),
        ("Metadata above 1 MiB", other_of((1 << 20) + 1), &["exceeds the limit of 1048576"]),
        ("an API nobody knows", frame(999, 3, &[]), &["999", "mallory", "version 3"]),
        ("an API that is not served", frame(24, 5, &[0; 40]), &["24", "mallory", "version 5"]),
        ("a version that is not served", frame(3, 99, &[]), &["Metadata", "99", "mallory"]),
        ("Produce version 2", frame(0, 2, &[0; 12]), &["Produce", "version 2", "mallory"]),
        ("a body of noise", frame(1, 12, &[0xff; 64]), &["Fetch", "cannot be read", "mallory"]),
    ];
    for (what, bytes, words) in cases {
        let before = goodbyes(&cluster).len();
        let mut client = connect(&cluster).await;
        client.send_bytes(&bytes).await.unwrap();
        client.closed().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        cluster
            .wait(&format!("a log line for: {what}"), Duration::from_secs(5), async || {
                goodbyes(&cluster).len() > before
            })
            .await;
        let said = goodbyes(&cluster);
        assert_eq!(said.len(), before + 1, "{what}: one line, no more");
        let line = said.last().unwrap();
        assert!(words.iter().all(|word| line.contains(word)), "{what}: {line}");
        assert_alive(&cluster).await;
    }

    // The end of the stream within a frame: nothing to answer, nothing to complain about.
    let mut client = connect(&cluster).await;
    client.send_bytes(&frame(3, 9, &[])[..10]).await.unwrap();
    client.finish().await.unwrap();
    client.closed().await.unwrap();
    assert_alive(&cluster).await;
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_version_of_api_versions_is_answered_in_version_0_with_35() {
    let cluster = one_node().await;
    let mut client = connect(&cluster).await;
    client.send_bytes(&frame(18, 77, &[1, 2, 3])).await.unwrap();
    let answer = client.receive_frame().await.unwrap().expect("an answer, not the end");
    let (id, answer) = Response::decode(ApiKey::ApiVersions, 0, answer, response_limits()).unwrap();
    let Response::ApiVersions(answer) = answer else { panic!("{answer:?}") };
    assert_eq!((id, answer.error_code), (7, ErrorCode::UnsupportedVersion.code()));
    let told: Vec<i16> = answer.api_keys.iter().map(|api| api.api_key).collect();
    assert_eq!(
        told,
        [
            0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 42, 43, 44, 47, 55,
            60, 61, 64, 75
        ]
    );
    assert_eq!((answer.api_keys[0].min_version, answer.api_keys[0].max_version), (0, 13), "KAFKA-18659");

    // On the same connection the client asks again, as KIP-511 has it.
    let mut request = ApiVersionsRequest::default();
    request.client_software_name = "x".into();
    request.client_software_version = "1".into();
    assert_eq!(client.ask(3, request).await.unwrap().error_code, 0);
}

/// What is wrong with the batch, the topic, the Produce version, the request, the error.
struct Wrong {
    what: &'static str,
    topic: &'static str,
    version: i16,
    acks: i16,
    records: Option<Bytes>,
    code: ErrorCode,
}

fn wrong(what: &'static str, records: Bytes, code: ErrorCode) -> Wrong {
    Wrong { what, topic: "t", version: 9, acks: ALL, records: Some(records), code }
}

fn good() -> RecordBatchBuilder {
    RecordBatchBuilder::new().value(Timestamp(NOW), b"value")
}

fn patched(at: usize, byte: u8) -> Bytes {
    let mut bytes = good().build().into_bytes().to_vec();
    bytes[at] = byte;
    bytes.into()
}

fn wrongs() -> Vec<Wrong> {
    use ErrorCode::{CorruptMessage, InvalidRecord, InvalidTimestamp, MessageTooLarge, UnsupportedCompressionType};
    let one = good().build().into_bytes();
    let zstd = RecordBatchBuilder::new().codec(Codec::Zstd).value(Timestamp(NOW), b"value").build().into_bytes();
    let late = RecordBatchBuilder::new().value(Timestamp(4_000_000_000_000), b"late").build().into_bytes();
    let producer = |sequence| good().producer(ProducerId(5), ProducerEpoch::from_wire(0).unwrap(), sequence);
    let large = batch(NOW, &[&"x".repeat(2_000)]);
    vec![
        wrong("a flipped bit in the records", patched(one.len() - 2, b'X'), CorruptMessage),
        wrong("a flipped bit in the CRC", patched(18, one[18] ^ 1), CorruptMessage),
        wrong("a length below the header", patched(11, 10), CorruptMessage),
        wrong("fewer records than offsets", good().gap(3).build().into_bytes(), InvalidRecord),
        wrong("no records in the batch", RecordBatchBuilder::new().build().into_bytes(), InvalidRecord),
        wrong("two batches in one", [&one[..], &one[..]].concat().into(), InvalidRecord),
        wrong("half a batch", one.slice(..40), InvalidRecord),
        wrong("magic 0", patched(16, 0), InvalidRecord),
        wrong("magic 1", patched(16, 1), InvalidRecord),
        wrong("magic 3", patched(16, 3), InvalidRecord),
        wrong("no bytes at all", Bytes::new(), InvalidRecord),
        Wrong { records: None, ..wrong("null records", Bytes::new(), InvalidRecord) },
        wrong(
            "a base offset other than 0",
            good().stamp(Offset(5), LeaderEpoch::from_wire(0).unwrap()).build().into_bytes(),
            InvalidRecord,
        ),
        wrong("a control batch", good().attributes(32).build().into_bytes(), InvalidRecord),
        wrong("a producer id without a sequence", producer(-1).build().into_bytes(), InvalidRecord),
        wrong("codec bits 5", good().attributes(5).build().into_bytes(), UnsupportedCompressionType),
        wrong("lz4 that is none", good().attributes(3).build().into_bytes(), CorruptMessage),
        wrong("gzip that is none", good().attributes(1).build().into_bytes(), CorruptMessage),
        Wrong { version: 6, ..wrong("zstd before version 7", zstd, UnsupportedCompressionType) },
        Wrong { topic: "small", ..wrong("above max.message.bytes", large, MessageTooLarge) },
        wrong("a time far in the future", late, InvalidTimestamp),
        Wrong { acks: 2, ..wrong("acks=2", one.clone(), ErrorCode::InvalidRequiredAcks) },
        Wrong { acks: -2, ..wrong("acks=-2", one.clone(), ErrorCode::InvalidRequiredAcks) },
        wrong(
            "a transactional batch",
            good().attributes(16).build().into_bytes(),
            ErrorCode::TransactionalIdAuthorizationFailed,
        ),
        Wrong { topic: "nobody", ..wrong("an unknown topic", one, ErrorCode::UnknownTopicOrPartition) },
    ]
}

async fn end(client: &mut Client, topic: &str) -> i64 {
    let told = client.list_offset(topic, 0, LATEST).await.unwrap();
    assert_eq!(told.error_code, 0);
    told.offset
}

async fn send(client: &mut Client, version: i16, request: ProduceRequest, what: &str) -> PartitionProduceResponse {
    client.produce_as(version, request).await.unwrap_or_else(|error| panic!("{what}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_must_not_be_stored_is_refused_and_leaves_no_trace() {
    let cluster = one_node().await;
    cluster.create_topic(1, "t", 1, 1, &[]).await;
    cluster.create_topic(1, "small", 1, 1, &[("max.message.bytes", "1000")]).await;
    let topics = ["t", "small"];
    let mut client = connect(&cluster).await;
    let record = Record::new(Timestamp(NOW), Some(b"key"), Some(b"value"));
    let keyed = RecordBatchBuilder::new().record(&record).build().into_bytes();
    for topic in topics {
        let answer = client.produce(topic, 0, ALL, keyed.clone()).await.unwrap();
        assert_eq!((answer.error_code, answer.base_offset), (0, 0), "{topic}");
    }
    for Wrong { what, topic, version, acks, records, code } in wrongs() {
        let answer = send(&mut client, version, produce_request(topic, 0, acks, records), what).await;
        assert_eq!(ErrorCode::from_code(answer.error_code), code, "{what}: {answer:?}");
        assert_eq!(answer.base_offset, -1, "{what}");
        for topic in topics {
            assert_eq!(end(&mut client, topic).await, 1, "{what}: something was appended to {topic}");
        }
    }
    // Which record was at fault (v8), and that a partition that does not exist is none.
    let late = RecordBatchBuilder::new().record(&record).value(Timestamp(4_000_000_000_000), b"late");
    let late = Some(late.build().into_bytes());
    let answer = send(&mut client, 9, produce_request("t", 0, ALL, late), "one record of the future").await;
    assert_eq!(answer.error_code, ErrorCode::InvalidTimestamp.code());
    assert_eq!(answer.record_errors.iter().map(|error| error.batch_index).collect::<Vec<_>>(), [1], "{answer:?}");
    let answer = send(&mut client, 9, produce_request("t", 7, ALL, Some(keyed.clone())), "partition 7").await;
    assert_eq!(answer.error_code, ErrorCode::UnknownTopicOrPartition.code());
    // Topic ids (v13): one that nobody has.
    let mut by_id = produce_request("", 0, ALL, Some(keyed.clone()));
    by_id.topics[0].id = TopicId::random();
    let answer = send(&mut client, 13, by_id, "an unknown topic id").await;
    assert_eq!(answer.error_code, ErrorCode::UnknownTopicId.code());
    // zstd is fine from version 7 on, and the connection served all of this.
    let zstd = RecordBatchBuilder::new().codec(Codec::Zstd).value(Timestamp(NOW), b"value").build().into_bytes();
    let answer = send(&mut client, 7, produce_request("t", 0, ALL, Some(zstd)), "zstd").await;
    assert_eq!((answer.error_code, answer.base_offset), (0, 1));

    // acks=0 has no answer: the only sign of a failure is the end of the connection (R46).
    client.send(9, &produce_request("t", 0, 0, Some(patched(16, 1))).into()).await.unwrap();
    client.closed().await.unwrap();
    let mut client = connect(&cluster).await;
    assert_eq!(end(&mut client, "t").await, 2);
    let fine = good().build().into_bytes();
    client.send(9, &produce_request("t", 0, 0, Some(fine)).into()).await.unwrap();
    assert_eq!(end(&mut client, "t").await, 3, "an acks=0 that is fine has no answer and keeps the connection");
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_what_is_not_there_are_told_so() {
    let cluster = one_node().await;
    cluster.create_topic(1, "t", 1, 1, &[]).await;
    let mut client = connect(&cluster).await;
    for n in 0..3 {
        assert_eq!(client.produce("t", 0, ALL, batch(NOW, &["v"])).await.unwrap().base_offset, n);
    }
    let fetch = async |client: &mut Client, topic: &str, partition, offset| {
        client.fetch(topic, partition, offset, Duration::ZERO).await.unwrap().error
    };
    assert_eq!(fetch(&mut client, "t", 0, 3).await, ErrorCode::None);
    assert_eq!(fetch(&mut client, "t", 0, 4).await, ErrorCode::OffsetOutOfRange);
    assert_eq!(fetch(&mut client, "t", 0, -1).await, ErrorCode::OffsetOutOfRange);
    assert_eq!(fetch(&mut client, "t", 9, 0).await, ErrorCode::UnknownTopicOrPartition);
    assert_eq!(fetch(&mut client, "nobody", 0, 0).await, ErrorCode::UnknownTopicOrPartition);
    // By id (v13).
    let mut topic = fetch_topic("", vec![fetch_partition(0, 0)]);
    topic.topic_id = TopicId::random().into();
    let answer = client.ask(13, fetch_request(vec![topic])).await.unwrap();
    assert_eq!(answer.topics[0].partitions[0].error, ErrorCode::UnknownTopicId);
    // A leader epoch behind and ahead of the leader's (R72). Epoch 0 is this one's first.
    for (epoch, code) in [(0, ErrorCode::None), (1, ErrorCode::UnknownLeaderEpoch)] {
        let mut partition = fetch_partition(0, 0);
        partition.current_leader_epoch = epoch;
        let answer = client.ask(12, fetch_request(vec![fetch_topic("t", vec![partition])])).await.unwrap();
        assert_eq!(answer.topics[0].partitions[0].error, code, "epoch {epoch}");
        let answer = client.ask(8, list_offsets_request("t", 0, LATEST, epoch)).await.unwrap();
        assert_eq!(answer.topics[0].partitions[0].error_code, code.code(), "epoch {epoch}");
    }
    // The same partition twice is a mistake (R92), a timestamp of another version too.
    let mut twice = list_offsets_request("t", 0, LATEST, -1);
    let again = twice.topics[0].partitions[0].clone();
    twice.topics[0].partitions.push(again);
    let answer = client.ask(8, twice).await.unwrap();
    assert!(answer.topics[0].partitions.iter().any(|p| p.error_code == ErrorCode::InvalidRequest.code()), "{answer:?}");
}

/// D22: whoever fetches as a follower moves the watermark, so it is accepted from brokers only.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_cannot_fetch_as_a_follower() {
    let inter_broker = free_ports(1)[0];
    let mut cluster = Processes::prepare(1, ONE_NODE);
    let file = cluster.node(1).dir.join("server.properties");
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replacen("listeners=PLAINTEXT:", &format!("listeners=REPLICATION://127.0.0.1:{inter_broker},PLAINTEXT:"), 1)
        .replace("map=PLAINTEXT:PLAINTEXT,", "map=PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,")
        + "inter.broker.listener.name=REPLICATION\n";
    std::fs::write(&file, text).unwrap();
    cluster.start_node(1);
    cluster.wait_ready().await;
    cluster.create_topic(1, "t", 1, 1, &[]).await;
    let mut client = connect(&cluster).await;
    assert_eq!(client.produce("t", 0, ALL, batch(NOW, &["v"])).await.unwrap().error_code, 0);
    let as_follower = |version: i16, id: i32, epoch: i32| {
        let mut partition = fetch_partition(0, 1);
        partition.current_leader_epoch = epoch;
        let mut request = fetch_request(vec![fetch_topic("t", vec![partition])]);
        if version >= 15 {
            request.replica_id = -1;
            request.replica_state.replica_id = id;
            request.replica_state.replica_epoch = 1;
        } else {
            request.replica_id = id;
        }
        request
    };
    // On the client listener: never, whoever it says it is.
    for id in [1, 2, 7] {
        let answer = client.ask(12, as_follower(12, id, 0)).await.unwrap();
        let told = &answer.topics[0].partitions[0];
        assert_eq!((told.error, told.high_watermark), (ErrorCode::TopicAuthorizationFailed, None), "replica {id}");
    }
    // On the replication listener: not one that the partition is not assigned to (R73), and it leaves no trace.
    let mut inner = Client::connect(([127, 0, 0, 1], inter_broker).into()).await.unwrap();
    let answer = inner.ask(12, as_follower(12, 7, 0)).await.unwrap();
    assert_eq!(answer.topics[0].partitions[0].error, ErrorCode::UnknownLeaderEpoch);
    let answer = inner.ask(12, as_follower(12, 7, -1)).await.unwrap();
    assert_eq!(answer.topics[0].partitions[0].error, ErrorCode::NotLeaderOrFollower);
    let state = cluster.state(1, "t", 0).await.unwrap();
    assert_eq!((&state["isr"], &state["replicas"]), (&json!([1]), &json!([1])), "{state}");
    assert_eq!(state["replica_status"].as_array().unwrap().len(), 1, "{state}");
    assert_eq!(end(&mut client, "t").await, 1);
}

fn resident_kib(cluster: &Processes) -> u64 {
    let log = cluster.node(1).log();
    let pid: u32 = log
        .lines()
        .find_map(|line| line.split("pid=").nth(1))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|pid| pid.parse().ok())
        .expect("the first log line names the process");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_hostile_connections_do_not_take_the_memory() {
    let cluster = one_node().await;
    cluster.create_topic(1, "t", 1, 1, &[]).await;
    let mut client = connect(&cluster).await;
    assert_eq!(client.produce("t", 0, ALL, batch(NOW, &["v"])).await.unwrap().error_code, 0);
    let before = resident_kib(&cluster);
    // Each announces the largest Produce there is, sends 64 KiB of it, and leaves the rest owing.
    let begun = [&(4i32 << 20).to_be_bytes()[..], &[0, 0, 0, 9], &[0; 64 << 10]].concat();
    let mut held = Vec::new();
    for n in 0..200 {
        let mut hostile = connect(&cluster).await;
        match n % 4 {
            0 => hostile.send_bytes(&i32::MAX.to_be_bytes()).await.unwrap(),
            1 => hostile.send_bytes(&frame(1, 12, &[0xff; 1000])).await.unwrap(),
            _ => hostile.send_bytes(&begun).await.unwrap(),
        }
        held.push(hostile);
    }
    assert_eq!(end(&mut client, "t").await, 1);
    let during = resident_kib(&cluster);
    println!("resident: {before} KiB before, {during} KiB with 200 hostile connections");
    // Each may cost what it sent and its read buffer of 256 KiB; never what it announced.
    assert!(during < before + (128 << 10), "{before} KiB became {during} KiB: 200 frames of 4 MiB are 800 MiB");
    drop(held);
    assert_eq!(client.produce("t", 0, ALL, batch(NOW, &["w"])).await.unwrap().base_offset, 1);
    assert_alive(&cluster).await;
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

/// Method, path below the cluster, body, content type → status, error code, words of the message.
type HttpCase = (&'static str, &'static str, Option<(&'static str, &'static str)>, u16, u64, &'static str);

const JSON: &str = "application/json";

const HTTP: &[HttpCase] = &[
    ("GET", "/topics?topc=t", None, 400, 400, "unknown query parameter \"topc\""),
    ("GET", "/topics/-/partitions/-/state?state=OFLINE", None, 400, 400, "OFLINE"),
    ("GET", "/topics?page_size=0", None, 400, 400, "page_size"),
    ("GET", "/topics?page_size=5&page_token=nonsense", None, 400, 400, "page_token"),
    ("GET", "/topics?timeout_ms=soon", None, 400, 400, "timeout_ms"),
    ("GET", "/topics/t/partitions/0/history?since=yesterday", None, 400, 400, "since"),
    ("GET", "/topics?min_metadata_offset=999999999&timeout_ms=50", None, 503, 50311, "applied"),
    ("GET", "/nothing", None, 404, 404, "nothing at"),
    ("GET", "/topics/nobody", None, 404, 40403, "nobody"),
    ("GET", "/topics/t/partitions/99", None, 404, 40403, "99"),
    ("GET", "/topics/t/partitions/99/state", None, 404, 40403, "99"),
    ("GET", "/topics/nobody/partitions/0/history", None, 404, 40403, "nobody"),
    ("GET", "/topics/t/partitions/x/state", None, 404, 40403, "x"),
    ("GET", "/brokers/77", None, 404, 404, "77"),
    ("DELETE", "/topics/nobody", None, 404, 40403, "nobody"),
    ("PUT", "/topics/t", None, 405, 405, "method"),
    ("POST", "/topics", Some((JSON, "{")), 400, 400, "JSON"),
    ("POST", "/topics", Some(("text/plain", "{}")), 415, 415, "content-type"),
    ("POST", "/topics", Some((JSON, "{}")), 422, 42206, "topic_name"),
    ("POST", "/topics", Some((JSON, "{\"topic_name\":\"x\",\"partition_count\":1}")), 422, 42206, "partition_count"),
    ("POST", "/topics", Some((JSON, "{\"topic_name\":\"a b\"}")), 422, 42206, "a b"),
    ("POST", "/topics", Some((JSON, "{\"topic_name\":\"t\"}")), 400, 40002, "t"),
    ("POST", "/topics", Some((JSON, "{\"topic_name\":\"x\",\"replication_factor\":3}")), 400, 40002, "3"),
    ("POST", "/topics", Some((JSON, "{\"topic_name\":\"x\",\"partitions_count\":0}")), 400, 40002, "0"),
    (
        "POST",
        "/topics",
        Some((JSON, "{\"topic_name\":\"x\",\"configs\":[{\"name\":\"retention.mss\",\"value\":\"1\"}]}")),
        400,
        40002,
        "retention.ms",
    ),
    (
        "POST",
        "/topics",
        Some((JSON, "{\"topic_name\":\"x\",\"configs\":[{\"name\":\"segment.bytes\",\"value\":\"big\"}]}")),
        400,
        40002,
        "segment.bytes",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_over_http_get_the_error_of_the_table() {
    let cluster = one_node().await;
    cluster.create_topic(1, "t", 1, 1, &[]).await;
    for (method, path, body, status, code, words) in HTTP {
        let mut request = cluster.http.request(method.parse().unwrap(), cluster.url(1, path));
        if let Some((content_type, text)) = body {
            request = request.header("content-type", *content_type).body(*text);
        }
        let answer = request.header("x-request-id", "from-a-test").send().await.unwrap();
        let got = answer.status().as_u16();
        assert_eq!(answer.headers()["x-request-id"], "from-a-test", "{method} {path}");
        let told: Value = answer.json().await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert_eq!((got, told["error_code"].as_u64()), (*status, Some(*code)), "{method} {path} {body:?}: {told}");
        let message = told["message"].as_str().unwrap_or_default();
        assert!(message.contains(words), "{method} {path} {body:?}: {message}");
        assert_eq!(told["request_id"], "from-a-test");
    }
    // Another cluster's id.
    let url = format!("http://127.0.0.1:{}/v3/clusters/other/topics", cluster.node(1).http_port);
    let answer = cluster.http.get(url).send().await.unwrap();
    let (got, told): (u16, Value) = (answer.status().as_u16(), answer.json().await.unwrap());
    assert_eq!((got, told["error_code"].as_u64()), (404, Some(404)), "{told}");
    // None of this created anything.
    let (_, topics) = cluster.get(1, "/topics").await.unwrap();
    let names: Vec<&Value> = topics["data"].as_array().unwrap().iter().map(|topic| &topic["topic_name"]).collect();
    assert_eq!(names, ["t"]);
}

#[test]
fn check_tells_all_faults_of_a_configuration_at_once_and_exits_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.properties");
    let text = "node.id=1\n\
                process.roles=broker,controller\n\
                listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n\
                controller.quorum.voters=1@127.0.0.1:9093\n\
                replica.lag.time.max.mss=5000\n\
                num.partitions=none\n\
                zookeeper.connect=localhost:2181\n\
                log.dirs=/tmp/hw\n\
                metadata.log.dir=/tmp/hw/metadata\n";
    std::fs::write(&file, text).unwrap();
    let check = |verb: &str| {
        let ran = Command::new(binary()).args([verb, "--config"]).arg(&file).output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    for verb in ["check", "start"] {
        let (code, said) = check(verb);
        assert_eq!(code, Some(2), "{verb}: {said}");
        for words in [
            "server.properties:5: unknown key \"replica.lag.time.max.mss\"; did you mean \"replica.lag.time.max.ms\"?",
            "server.properties:6: num.partitions \"none\" is not a whole number",
            "server.properties:7: \"zookeeper.connect\" cannot be ignored safely",
            "server.properties:9: metadata.log.dir",
        ] {
            assert!(said.contains(words), "{verb} does not say {words:?}:\n{said}");
        }
    }
    let fixed: Vec<&str> = text.lines().take(4).chain(["log.dirs=/tmp/hw"]).collect();
    std::fs::write(&file, fixed.join("\n")).unwrap();
    let (code, said) = check("check");
    assert_eq!(code, Some(0), "{said}");
}
