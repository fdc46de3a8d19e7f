//! What lies on disk: Kafka's own tool reads it, damage is repaired or refused with words that help, a full disk takes one
//! node out and nobody's acknowledged records.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use highwater_data::Stopped;
use highwater_tests::client::{Client, LATEST, batch, contents, idempotent_batch, produce_request};
use highwater_tests::cluster::{Cluster, told};
use highwater_tests::process::{Processes, binary, free_ports};
use highwater_tests::stock_tools::kafka_tool;
use highwater_wire::{Codec, ErrorCode, RecordBatchBuilder, Timestamp};
use serde_json::json;

const ALL: i16 = -1;
const NOW: i64 = 1_760_000_000_000;
const FIRST: &str = "00000000000000000000";

fn dump(file: &Path, more: &[&str]) -> String {
    let ran = kafka_tool("org.apache.kafka.tools.DumpLogSegments")
        .arg("--files")
        .arg(file)
        .args(more)
        .output()
        .expect("java runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {said}", file.display());
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn kafkas_own_tool_reads_segments_indexes_and_producer_snapshots() {
    let mut cluster = Cluster::start(1, &[]).await;
    cluster.create_topic("t", 1, 1, &[("index.interval.bytes", "100")]).await;
    let mut client = cluster.client(1).await;
    let producer = told(client.init_producer_id().await);
    let plain = batch(NOW, &["plain-a", "plain-b"]);
    let idempotent = idempotent_batch(producer, 0, NOW + 1, &["idempotent"]);
    let mut sent = vec![plain, idempotent];
    for (n, codec) in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd].into_iter().enumerate() {
        let value = format!("{}-{}", codec.name(), "x".repeat(200));
        let builder = RecordBatchBuilder::new().codec(codec).value(Timestamp(NOW + 2 + n as i64), value.as_bytes());
        sent.push(builder.build().into_bytes());
    }
    for records in sent {
        assert_eq!(told(client.produce("t", 0, ALL, records).await).error_code, 0);
    }
    assert_eq!(cluster.stop(1).await, Stopped::Cleanly);

    let dir = cluster.member(1).replica_dir("t", 0);
    let said = dump(&dir.join(format!("{FIRST}.log")), &["--deep-iteration", "--print-data-log"]);
    for words in [
        "Log starting offset: 0".to_owned(),
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1".to_owned(),
        format!("baseOffset: 2 lastOffset: 2 count: 1 baseSequence: 0 lastSequence: 0 producerId: {}", producer.0),
        "partitionLeaderEpoch: 0".to_owned(),
        "payload: plain-b".to_owned(),
        "payload: idempotent".to_owned(),
        "compresscodec: gzip".to_owned(),
        "compresscodec: snappy".to_owned(),
        "compresscodec: lz4".to_owned(),
        "compresscodec: zstd".to_owned(),
        "payload: zstd-xxx".to_owned(),
    ] {
        assert!(said.contains(&words), "no {words:?} in:\n{said}");
    }
    assert_eq!(said.matches("isvalid: true").count(), 6, "{said}");
    assert!(!said.contains("isvalid: false"), "{said}");
    for index in ["index", "timeindex"] {
        let said = dump(&dir.join(format!("{FIRST}.{index}")), &["--index-sanity-check"]);
        assert!(said.contains("passed sanity check"), "{index}: {said}");
        let said = dump(&dir.join(format!("{FIRST}.{index}")), &["--verify-index-only"]);
        assert!(!said.contains("Mismatches") && !said.contains("Found timestamp mismatch"), "{index}: {said}");
    }
    let snapshot = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let snapshot = snapshot.filter(|path| path.extension().is_some_and(|e| e == "snapshot")).max().expect("a snapshot");
    let said = dump(&snapshot, &[]);
    assert!(said.contains(&format!("producerId: {}", producer.0)), "{said}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_checkpoints_and_indexes_are_rebuilt_from_the_log() {
    let mut cluster = Cluster::start(1, &[]).await;
    cluster.create_topic("t", 1, 1, &[("segment.bytes", "1048576"), ("retention.ms", "-1")]).await;
    let value = "x".repeat(100_000);
    let mut client = cluster.client(1).await;
    let producer = told(client.init_producer_id().await);
    for n in 0..25 {
        let sent = idempotent_batch(producer, n, NOW + i64::from(n), &[&value]);
        assert_eq!(told(client.produce("t", 0, ALL, sent).await).error_code, 0);
    }
    let before = contents(&told(client.read_all("t", 0).await));
    for crash in [true, false] {
        if crash {
            cluster.crash(1).await
        } else {
            assert_eq!(cluster.stop(1).await, Stopped::Cleanly)
        }
        let data = cluster.member(1).data_dir();
        let dir = cluster.member(1).replica_dir("t", 0);
        let shared =
            ["replication-offset-checkpoint", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"];
        for name in shared {
            fs::write(data.join(name), "not a checkpoint\n\u{0}\n").unwrap();
        }
        fs::write(dir.join("leader-epoch-checkpoint"), "0\n7\n1 1\n").unwrap();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "index" || e == "timeindex" || e == "snapshot") {
                fs::write(&path, b"thirteen junk").unwrap();
            }
        }
        cluster.start_node(1).await;
        cluster.wait_leading("t", 0).await;
        let mut client = cluster.client(1).await;
        assert_eq!(contents(&told(client.read_all("t", 0).await)), before, "after a crash: {crash}");
        let epoch = cluster.state("t", 0).unwrap().leader_epoch.0;
        let end = told(client.epoch_end("t", 0, epoch).await);
        assert_eq!((end.error_code, end.leader_epoch, end.end_offset), (0, epoch, 25), "after a crash: {crash}");
        let found = told(client.list_offset("t", 0, NOW + 13).await);
        assert_eq!((found.offset, found.timestamp), (13, NOW + 13), "after a crash: {crash}");
        let again = told(client.produce("t", 0, ALL, idempotent_batch(producer, 24, NOW + 24, &[&value])).await);
        assert_eq!((again.error_code, again.base_offset), (0, 24), "producer state after a crash: {crash}");
    }
    cluster.end().await;
}

/// Starts a node that must not start; its exit code and what it said.
fn refused(config: &Path) -> (Option<i32>, String) {
    let ran = Command::new(binary()).args(["start", "--config"]).arg(config).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    (ran.status.code(), said)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_in_use_is_refused_with_the_holders_pid() {
    let mut cluster = Processes::start(1, &[]);
    cluster.wait_ready().await;
    let pid = pid_of(&cluster, 1);
    let ports = free_ports(3);
    let (data, metadata) = (cluster.node(1).data_dir(), cluster.node(1).metadata_dir());
    let elsewhere = cluster.dir().join("elsewhere");
    for (log_dirs, metadata_dir) in [(data, elsewhere.join("m1")), (elsewhere.join("d2"), metadata)] {
        let text = format!(
            "node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n\
             controller.quorum.voters=1@127.0.0.1:{c}\n\
             listeners=PLAINTEXT://127.0.0.1:{},CONTROLLER://127.0.0.1:{c}\nhttp.listeners=http://127.0.0.1:{}\n\
             log.dirs={}\nmetadata.log.dir={}\n",
            ports[0],
            ports[2],
            log_dirs.display(),
            metadata_dir.display(),
            c = ports[1],
        );
        let file = cluster.dir().join("second.properties");
        fs::write(&file, text).unwrap();
        let (code, said) = refused(&file);
        assert!(code.is_some_and(|code| code != 0), "{said}");
        assert!(said.contains(&pid.to_string()), "no pid {pid} in: {said}");
    }
    let mut client = Client::connect(([127, 0, 0, 1], cluster.node(1).kafka_port).into()).await.unwrap();
    assert_eq!(client.metadata("t").await.unwrap().brokers.len(), 1, "the holder goes on");
}

fn pid_of(cluster: &Processes, id: usize) -> u32 {
    let log = cluster.node(id).log();
    let after = log.split("pid=").nth(1).expect("the first log line names the process");
    after.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused_with_its_version_and_nothing_is_changed() {
    let mut cluster = Processes::start(1, &[]);
    cluster.wait_ready().await;
    assert_eq!(cluster.terminate(1), Some(0));
    let data = cluster.node(1).data_dir();
    let meta = data.join("meta.properties");
    let watermarks = data.join("replication-offset-checkpoint");
    for (file, text) in [
        (&meta, fs::read_to_string(&meta).unwrap().replace("version=1", "version=9")),
        (&watermarks, "9\n0\n".to_owned()),
    ] {
        let old = fs::read(file).unwrap();
        fs::write(file, &text).unwrap();
        let (code, said) = refused(&cluster.node(1).dir.join("server.properties"));
        assert!(code.is_some_and(|code| code != 0), "{said}");
        assert!(said.contains("format version 9") && said.contains(&file.display().to_string()), "{said}");
        assert_eq!(fs::read_to_string(file).unwrap(), text, "a refused directory is left as it is");
        fs::write(file, old).unwrap();
    }
    cluster.start_node(1);
    cluster.wait_ready().await;
}

/// A small file system of its own; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, mebibytes: usize) -> Self {
        fs::create_dir_all(&at).unwrap();
        let size = format!("size={mebibytes}m");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).status();
        assert!(done.is_ok_and(|status| status.success()), "a full disk is made with mount: run this test as root");
        Self(at)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_its_node_out_and_loses_nothing_that_was_acknowledged() {
    let mut cluster = Processes::prepare(3, &[]);
    let disk = SmallDisk::mount(cluster.node(1).data_dir(), 12);
    for id in 1..=3 {
        cluster.start_node(id);
    }
    cluster.wait_ready().await;
    let body = json!({"topic_name": "t", "replicas_assignments": {"0": [1, 2, 3]},
        "configs": [{"name": "min.insync.replicas", "value": "2"}, {"name": "retention.ms", "value": "-1"}]});
    let answer = cluster.http.post(cluster.url(2, "/topics")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let full = |s: &serde_json::Value| s["leader_id"] == 1 && s["isr"].as_array().is_some_and(|isr| isr.len() == 3);
    cluster.wait_state(2, "t", 0, "led by node 1 with a full ISR", full).await;

    let address = |id: usize| ([127, 0, 0, 1], cluster.node(id).kafka_port).into();
    let mut client = Client::connect(address(1)).await.unwrap();
    let mut acked = Vec::new();
    let refused = loop {
        let value = format!("{:05}{}", acked.len(), "x".repeat(500_000));
        let sent = produce_request("t", 0, ALL, Some(batch(NOW, &[&value])));
        match client.produce_as(9, sent).await {
            Ok(answer) if answer.error_code == 0 => acked.push((answer.base_offset, value)),
            Ok(answer) => break Some(ErrorCode::from_code(answer.error_code)),
            Err(_) => break None,
        }
        assert!(acked.len() < 40, "20 MB on a disk of 12 MiB");
    };
    assert!(refused.is_none_or(ErrorCode::is_retriable), "{refused:?} after {} records", acked.len());
    assert!(acked.len() >= 10, "only {} records before the disk was full", acked.len());

    // The others go on, and all that was acknowledged is there.
    let lead = |s: &serde_json::Value| matches!(s["leader_id"].as_u64(), Some(2 | 3));
    let state = cluster.wait_state(2, "t", 0, "led by another", lead).await;
    let leader = usize::try_from(state["leader_id"].as_u64().unwrap()).unwrap();
    let mut client = Client::connect(address(leader)).await.unwrap();
    cluster
        .wait("writable again", Duration::from_secs(20), async || {
            client.produce("t", 0, ALL, batch(NOW, &["after"])).await.is_ok_and(|answer| answer.error_code == 0)
        })
        .await;
    let read = contents(&client.read_all("t", 0).await.unwrap());
    for record in &acked {
        assert!(read.contains(record), "the acknowledged record at {} is gone", record.0);
    }
    assert!(client.list_offset("t", 0, LATEST).await.unwrap().offset > acked.len() as i64);
    let errors = cluster.unexpected_errors(&[]);
    assert!(errors.iter().all(|line| line.starts_with("node 1:")), "{errors:#?}");
    let helps = |line: &&String| line.contains("No space left") && line.contains("start again");
    assert!(errors.iter().any(|line| helps(&line)), "no ERROR line says what to do: {errors:#?}");

    // It has stopped by itself. On a new, empty disk it comes back and fetches everything.
    let until = Instant::now() + Duration::from_secs(20);
    while cluster.nodes[0].runs() {
        assert!(Instant::now() < until, "node 1 still runs on a full disk");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(disk);
    cluster.start_node(1);
    cluster.wait_node_ready(1).await;
    let full = |s: &serde_json::Value| s["isr"].as_array().is_some_and(|isr| isr.len() == 3);
    cluster.wait_state(2, "t", 0, "in sync on all three again", full).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_keep_its_metadata_says_why_and_what_to_do_and_ends_at_once() {
    let mut cluster = Processes::prepare(1, &[]);
    let disk = SmallDisk::mount(cluster.node(1).metadata_dir(), 12);
    cluster.start_node(1);
    cluster.wait_ready().await;
    let ballast = disk.0.join("ballast");
    // A refusal of many bytes leaves room for fewer.
    let mut filling = fs::File::create(&ballast).unwrap();
    let mut bytes = vec![0; 1 << 20];
    while !bytes.is_empty() {
        if filling.write_all(&bytes).is_err() {
            bytes.truncate(bytes.len() / 16);
        }
    }
    let until = Instant::now() + Duration::from_secs(20);
    let mut topics = 0;
    while cluster.nodes[0].runs() {
        assert!(Instant::now() < until, "node 1 still runs with a full disk below its metadata, {topics} topics later");
        // One of another name each time: what is there already is refused without being written.
        let body = json!({"topic_name": format!("t{topics}"), "partitions_count": 1, "replication_factor": 1});
        topics += 1;
        let _ = cluster.http.post(cluster.url(1, "/topics")).json(&body).send().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = cluster.node(1).log();
    let must_stop: Vec<&str> = log.lines().filter(|line| line.contains("highwater: this node must stop")).collect();
    let [reason] = must_stop[..] else { panic!("{must_stop:#?}") };
    assert!(reason.contains("No space left") && reason.contains("make room"), "{reason}");
    for noise in ["the data plane cannot go on", "the quorum did not"] {
        assert!(!log.contains(noise), "the reason is another: {log}");
    }

    // With room again it is what it was.
    drop(filling);
    fs::remove_file(ballast).unwrap();
    cluster.start_node(1);
    cluster.wait_node_ready(1).await;
}
