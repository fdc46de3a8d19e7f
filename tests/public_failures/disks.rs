//! Disks that refuse and disks that are slow, under real nodes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use highwater_tests::client::{Client, contents};
use highwater_tests::process::{Node, Processes};
use highwater_wire::ErrorCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::pipeline::{POLL, Pipeline, check_values};

/// A tracer that spoils system calls of a running node. The node goes on unspoiled when this is dropped.
struct Tracer(Child);

impl Tracer {
    /// `inject` as strace wants it, for calls on `file` alone.
    fn attach(node: &Node, file: &Path, inject: &str) -> Self {
        let pid = node.pid().as_raw_nonzero().to_string();
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-P"]).arg(file).arg("-e").arg(format!("inject={inject}"));
        let child = strace.args(["-p", &pid]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let tracer = Self(child.expect("strace is installed (.ci/run does it)"));
        let traced = || {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the node runs").flatten();
            let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            threads.map(status).all(|status| !status.contains("TracerPid:\t0\n"))
        };
        let until = Instant::now() + Duration::from_secs(20);
        while !traced() {
            assert!(Instant::now() < until, "strace does not attach to process {pid}");
            std::thread::sleep(POLL);
        }
        tracer
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // By SIGTERM it lets go of the node.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Three nodes, `t` on all of them with every append synced, and a producer.
struct Running {
    cluster: Processes,
    acked: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
    producer: JoinHandle<i32>,
}

impl Running {
    async fn start() -> Self {
        let mut cluster = Processes::start(3, &[]);
        cluster.wait_ready().await;
        let configs = json!([{"name": "min.insync.replicas", "value": "2"}, {"name": "flush.messages", "value": "1"}]);
        let body = json!({"topic_name": "t", "replicas_assignments": {"0": [1, 2, 3]}, "configs": configs});
        let answer = cluster.http.post(cluster.url(1, "/topics")).json(&body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 201);
        let addresses: Vec<SocketAddr> =
            (1..=3).map(|id| (std::net::Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into()).collect();
        let (acked, enough) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let producer =
            Pipeline { addresses, name: 0, refused: Arc::default(), acked: acked.clone(), enough: enough.clone() };
        let running = Self { cluster, acked, enough, producer: tokio::spawn(producer.run()) };
        running.goes_on("at the beginning").await;
        running
    }

    async fn goes_on(&self, when: &str) {
        let before = self.acked.load(Ordering::Relaxed);
        let what = format!("20 more batches are acknowledged {when}");
        let more = async || self.acked.load(Ordering::Relaxed) >= before + 20;
        self.cluster.wait(&what, Duration::from_secs(30), more).await;
    }

    /// Waits until `victim` leads with a full ISR.
    async fn led_by(&self, victim: usize) {
        let body = json!({"election_type": "DESIGNATED",
            "partitions": [{"topic_name": "t", "partition_id": 0, "leader_id": victim}]});
        let leads = |s: &Value| s["leader_id"] == victim && s["isr"].as_array().is_some_and(|isr| isr.len() == 3);
        let leads = async || {
            let state = self.cluster.state(victim, "t", 0).await;
            if state.as_ref().is_some_and(leads) {
                return true;
            }
            let _ = self.cluster.http.post(self.cluster.url(victim, "/elections")).json(&body).send().await;
            false
        };
        self.cluster.wait("the victim leads, all in sync", Duration::from_secs(40), leads).await;
    }

    /// All that was acknowledged is there, whoever leads.
    async fn end(self, expected: &[&str]) {
        self.enough.store(true, Ordering::Relaxed);
        let sent = self.producer.await.unwrap();
        let running = Self { producer: tokio::spawn(async { 0 }), ..self };
        for id in 1..=3 {
            running.led_by(id).await;
            let address = (std::net::Ipv4Addr::LOCALHOST, running.cluster.node(id).kafka_port).into();
            let records = Client::connect(address).await.unwrap().read_all("t", 0).await.unwrap();
            let values: Vec<String> = contents(&records).into_iter().map(|(_, value)| value).collect();
            check_values(&values, 0, sent);
        }
        assert_eq!(running.cluster.unexpected_errors(expected), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b21_a_failed_sync_ends_its_node_and_no_acknowledgement_depends_on_it() {
    let mut running = Running::start().await;
    // What fails, of which file, and what the node says.
    let cases = [
        ("fdatasync", "data/t-0/00000000000000000000.log", "the disk failed"),
        ("fdatasync", "metadata/store/db", "this node must stop"),
        ("sync_file_range", "metadata/store/db", "this node must stop"),
    ];
    for (round, (call, file, said)) in cases.into_iter().enumerate() {
        let victim = round % 3 + 1;
        running.led_by(victim).await;
        let node = running.cluster.node(victim);
        let path = node.dir.join(file);
        let before = node.log().len();
        let tracer = Tracer::attach(node, &path, &format!("{call}:error=EIO"));
        // Something for the quorum to write, too.
        let body = json!({"topic_name": format!("made-{round}"), "partitions_count": 1, "replication_factor": 3});
        let _ = running.cluster.http.post(running.cluster.url(victim % 3 + 1, "/topics")).json(&body).send().await;
        let until = Instant::now() + Duration::from_secs(30);
        while running.cluster.nodes[victim - 1].runs() {
            assert!(Instant::now() < until, "node {victim} goes on although {call} of {file} fails");
            tokio::time::sleep(POLL).await;
        }
        drop(tracer);
        let log = running.cluster.node(victim).log();
        assert!(log[before..].contains(said), "node {victim}, {call} of {file}:\n{}", &log[before..]);
        running.goes_on("by the other two").await;
        running.cluster.start_node(victim);
        running.cluster.wait_node_ready(victim).await;
    }
    running
        .end(&[
            "the disk failed",
            "metadata sync failed",
            "cannot go on",
            "Input/output error",
            "openraft::raft::raft_inner: failed to",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b21_a_slow_sync_costs_latency_and_nothing_else() {
    let mut running = Running::start().await;
    // A leader of everything, so that nobody else could hide it.
    let victim = running.cluster.controller().await;
    running.led_by(victim).await;
    let term = async |running: &Running| {
        let (status, quorum) = running.cluster.get(victim, "/quorum").await.unwrap();
        assert_eq!(status, 200, "{quorum}");
        (quorum["leader_id"].clone(), quorum["leader_epoch"].clone())
    };
    let before = term(&running).await;
    let node = running.cluster.node(victim);
    let path = node.data_dir().join("t-0/00000000000000000000.log");
    let tracer = Tracer::attach(node, &path, "fdatasync:delay_enter=500000");
    running.goes_on("while each sync of the leader takes half a second").await;
    assert_eq!(term(&running).await, before, "a slow log is no reason for another controller");
    drop(tracer);
    assert!(running.cluster.nodes[victim - 1].runs());
    running.goes_on("afterwards").await;
    running.end(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b16_damage_that_a_reader_meets_is_refused_told_once_and_mended_from_the_others() {
    let mut running = Running::start().await;
    running.enough.store(true, Ordering::Relaxed);
    let sent = (&mut running.producer).await.unwrap();
    running.led_by(1).await;
    assert_eq!(running.cluster.terminate(1), Some(0));
    let log = running.cluster.node(1).data_dir().join("t-0/00000000000000000000.log");
    let mut bytes = fs::read(&log).unwrap();
    // A letter of the third batch's record: each begins with its offset and length.
    let length = |at: usize| 12 + u32::from_be_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
    let second = length(0);
    let fourth = second + length(second) + length(second + length(second));
    bytes[fourth - 2] ^= 1;
    fs::write(&log, bytes).unwrap();
    running.cluster.start_node(1);
    running.cluster.wait_node_ready(1).await;
    running.led_by(1).await;

    let ports = [1, 2].map(|id| running.cluster.node(id).kafka_port);
    let address = |id: usize| (std::net::Ipv4Addr::LOCALHOST, ports[id - 1]).into();
    let mut client = Client::connect(address(1)).await.unwrap();
    for _ in 0..3 {
        let fetched = client.fetch("t", 0, 2, Duration::ZERO).await.unwrap();
        assert_eq!((fetched.error, fetched.records.len()), (ErrorCode::CorruptMessage, 0));
    }
    for whole in [0, 3] {
        let fetched = client.fetch("t", 0, whole, Duration::ZERO).await.unwrap();
        assert_eq!(fetched.error, ErrorCode::None, "from {whole} on");
        assert!(!fetched.records.is_empty());
    }
    let told = running.cluster.unexpected_errors(&[]);
    assert_eq!(told.len(), 1, "once, however often it is read: {told:?}");
    assert!(told[0].contains("00000000000000000000.log"), "{told:?}");
    let metrics = format!("http://127.0.0.1:{}/metrics", running.cluster.node(1).http_port);
    let metrics = running.cluster.http.get(metrics).send().await.unwrap().text().await.unwrap();
    let counted = metrics.lines().any(|line| line == "highwater_corrupt_batches_total{from=\"disk\"} 1");
    assert!(counted, "{:?}", metrics.lines().filter(|line| line.contains("corrupt")).collect::<Vec<_>>());

    // As the line says.
    running.led_by(2).await;
    assert_eq!(running.cluster.terminate(1), Some(0));
    fs::remove_dir_all(log.parent().unwrap()).unwrap();
    running.cluster.start_node(1);
    running.cluster.wait_node_ready(1).await;
    for id in [2, 1] {
        running.led_by(id).await;
        let records = Client::connect(address(id)).await.unwrap().read_all("t", 0).await.unwrap();
        let values: Vec<String> = contents(&records).into_iter().map(|(_, value)| value).collect();
        check_values(&values, 0, sent);
    }
}
