//! Stock clients, unchanged: kcat, librdkafka, Kafka's own Java tools. A missing one fails the test.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use highwater_tests::process::Processes;
use highwater_tests::stock_tools::kafka_tool;

#[allow(dead_code)] // each test file uses its part
mod stock;
use stock::{Load, check_once_in_order, read_all};

fn run(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?} does not start: {e}; .ci/run installs what the tests need"));
    let mut stdin = child.stdin.take().unwrap();
    let text = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

async fn cluster_with(topic: &str, partitions: usize) -> Processes {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, topic, partitions, 3, &[]).await;
    cluster
}

fn sorted(lines: &str) -> BTreeMap<&str, usize> {
    let mut count = BTreeMap::new();
    for line in lines.lines() {
        *count.entry(line).or_default() += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_reads_what_kcat_wrote() {
    let cluster = cluster_with("kcat", 3).await;
    let lines: String = (0..2_000).map(|n| format!("line {n}\n")).collect();
    let bootstrap = cluster.bootstrap();
    for codec in ["none", "gzip", "snappy", "lz4"] {
        run(Command::new("kcat").args(["-P", "-b", &bootstrap, "-t", "kcat", "-X", "acks=all", "-z", codec]), &lines);
    }
    let read =
        run(Command::new("kcat").args(["-C", "-b", &bootstrap, "-t", "kcat", "-o", "beginning", "-e", "-q"]), "");
    let text = String::from_utf8(read.stdout).unwrap();
    let count = sorted(&text);
    assert_eq!(count.len(), 2_000);
    assert!(count.values().all(|&times| times == 4), "each line was written once per codec");
    let listed = run(Command::new("kcat").args(["-L", "-b", &bootstrap, "-t", "kcat"]), "");
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("3 brokers") && listed.contains("with 3 partitions"), "{listed}");
    let asked = run(Command::new("kcat").args(["-Q", "-b", &bootstrap, "-t", "kcat:0:-1"]), "");
    assert!(String::from_utf8(asked.stdout).unwrap().contains("kcat [0] offset"));
}

/// librdkafka switches lz4 off silently unless FindCoordinator and Produce are offered from v0: look into the log.
#[tokio::test(flavor = "multi_thread")]
async fn lz4_from_librdkafka_arrives_compressed_in_the_log() {
    let cluster = cluster_with("lz4", 1).await;
    let lines: String = (0..2_000).map(|n| format!("{}{n}\n", "compressible ".repeat(8))).collect();
    run(Command::new("kcat").args(["-P", "-b", &cluster.bootstrap(), "-t", "lz4", "-p", "0", "-z", "lz4"]), &lines);
    let log = cluster.node(1).data_dir().join("lz4-0/00000000000000000000.log");
    cluster
        .wait("the batch on replica 1", Duration::from_secs(10), async || {
            std::fs::read(&log).is_ok_and(|bytes| bytes.len() > 61 && bytes[8..12] != [0; 4])
        })
        .await;
    let bytes = std::fs::read(&log).unwrap();
    let attributes = i16::from_be_bytes([bytes[21], bytes[22]]);
    assert_eq!(attributes & 7, 3, "the first batch is not lz4");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_librdkafka_producer_writes_once_in_order() {
    let cluster = cluster_with("idempotent", 3).await;
    let load = Load::start(&cluster.bootstrap(), "idempotent", 5_000, 200, &[("enable.idempotence", "true")]);
    cluster.wait("20,000 acknowledgements", Duration::from_secs(60), async || load.acked() >= 20_000).await;
    let outcome = load.finish();
    assert!(outcome.failed.is_empty(), "failed: {:?}", outcome.failed.iter().next());
    assert_eq!(outcome.acked.len() as u64, outcome.sent);
    check_once_in_order(&outcome.acked, &read_all(&cluster.bootstrap(), "idempotent", 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_producer_perf_test_runs_from_maven() {
    let cluster = cluster_with("perf", 3).await;
    let mut tool = kafka_tool("org.apache.kafka.tools.ProducerPerformance");
    tool.args(["--topic", "perf", "--num-records", "20000", "--record-size", "500", "--throughput", "-1"]);
    tool.args(["--producer-props", &format!("bootstrap.servers={}", cluster.bootstrap()), "acks=all"]);
    let output = run(&mut tool, "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("20000 records sent"), "{text}");
    let read = run(
        Command::new("kcat").args([
            "-C",
            "-b",
            &cluster.bootstrap(),
            "-t",
            "perf",
            "-o",
            "beginning",
            "-e",
            "-q",
            "-f",
            "%o\n",
        ]),
        "",
    );
    assert_eq!(String::from_utf8(read.stdout).unwrap().lines().count(), 20_000);
}
