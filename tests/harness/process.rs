//! Real `highwater` processes on loopback: started, killed with -9, paused, resumed, asked over HTTP.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The binary under test, built once per test process with the profile of this build.
///
/// `HIGHWATER_BINARY` names another one.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("HIGHWATER_BINARY") {
            return PathBuf::from(given);
        }
        // target/<profile>/deps/<this test>, or target/<profile>/<this program> -> target/<profile>/highwater
        let this = std::env::current_exe().expect("a process knows its own file");
        let folder = this.parent().expect("a file lies in a folder");
        let profile = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
        let profile = profile.expect("cargo puts tests into <profile>/deps");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--locked", "--quiet", "-p", "highwater", "--bin", "highwater"]);
        cargo.arg("--target-dir").arg(profile.parent().expect("a profile lies in a target directory"));
        if profile.file_name().is_some_and(|name| name == "release") {
            cargo.arg("--release");
        }
        without_cargos_variables(&mut cargo);
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo can be started");
        assert!(built.success(), "the highwater binary does not build");
        profile.join("highwater")
    })
}

/// Takes away what cargo tells a test about its package: a cargo within would build half the dependencies anew.
pub fn without_cargos_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_BIN_") {
            command.env_remove(&name);
        }
    }
}

/// `process.roles` of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Both,
    Controller,
    Broker,
}

impl Role {
    pub const fn is_broker(self) -> bool {
        !matches!(self, Self::Controller)
    }

    pub const fn is_controller(self) -> bool {
        !matches!(self, Self::Broker)
    }

    /// The lines of `server.properties` that depend on it; `voters` as in `controller.quorum.voters`, or, where `joins`,
    /// found by those as bootstrap servers.
    pub fn lines(self, voters: &[String], joins: bool, kafka_port: u16, controller_port: u16) -> Vec<String> {
        let roles = match self {
            Self::Both => "broker,controller",
            Self::Controller => "controller",
            Self::Broker => "broker",
        };
        let kafka = if self.is_broker() { format!("PLAINTEXT://127.0.0.1:{kafka_port},") } else { String::new() };
        let quorum = if joins {
            let servers: Vec<&str> = voters.iter().filter_map(|voter| Some(voter.split_once('@')?.1)).collect();
            format!("controller.quorum.bootstrap.servers={}", servers.join(","))
        } else {
            format!("controller.quorum.voters={}", voters.join(","))
        };
        vec![
            format!("process.roles={roles}"),
            quorum,
            format!("listeners={kafka}CONTROLLER://127.0.0.1:{controller_port}"),
            "controller.listener.names=CONTROLLER".to_owned(),
        ]
    }
}

/// One node: its addresses, files and, while it runs, its process.
pub struct Node {
    pub id: usize,
    pub role: Role,
    pub kafka_port: u16,
    pub controller_port: u16,
    pub http_port: u16,
    /// `server.properties`, `data`, `metadata` and `log` lie here.
    pub dir: PathBuf,
    child: Option<Child>,
}

impl Node {
    /// The log of all its runs.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Its `log.dirs`.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Its `metadata.log.dir`.
    pub fn metadata_dir(&self) -> PathBuf {
        self.dir.join("metadata")
    }

    /// Its process.
    ///
    /// # Panics
    /// It does not run.
    pub fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("the node runs");
        Pid::from_raw(i32::try_from(child.id()).expect("pids are small")).expect("pids are positive")
    }

    /// Whether its process runs (a paused one does).
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

/// What a process costs.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// User and system time.
    pub cpu: Duration,
    pub resident_kib: u64,
    /// How often a thread of it went to sleep, over those that live.
    pub sleeps: u64,
}

/// The right to run processes: one cluster at a time in a test process, for two cores carry no more under load.
struct Turn;

static TAKEN: Mutex<bool> = Mutex::new(false);
static FREED: Condvar = Condvar::new();

impl Turn {
    fn wait() -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while *taken {
            taken = FREED.wait(taken).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        *taken = true;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = false;
        FREED.notify_one();
    }
}

/// Some nodes that form one cluster, and the folder they live in. Others wait until it is gone.
pub struct Processes {
    pub nodes: Vec<Node>,
    pub http: reqwest::Client,
    extra: Vec<(String, String)>,
    dir: tempfile::TempDir,
    _turn: Turn,
}

impl Processes {
    /// Starts `count` combined nodes from nothing, with `extra` lines in every `server.properties`.
    pub fn start(count: usize, extra: &[(&str, &str)]) -> Self {
        Self::start_roles(&vec![Role::Both; count], extra)
    }

    /// The same with a role for each node.
    pub fn start_roles(roles: &[Role], extra: &[(&str, &str)]) -> Self {
        let mut cluster = Self::prepare_roles(roles, extra);
        for id in 1..=roles.len() {
            cluster.start_node(id);
        }
        cluster
    }

    /// Writes the files, starts nothing.
    pub fn prepare(count: usize, extra: &[(&str, &str)]) -> Self {
        Self::prepare_roles(&vec![Role::Both; count], extra)
    }

    fn prepare_roles(roles: &[Role], extra: &[(&str, &str)]) -> Self {
        let turn = Turn::wait();
        let dir = tempfile::Builder::new().prefix("highwater-").tempdir().expect("a temporary folder");
        // reqwest is built without a provider of its own; a second install is refused, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let extra = extra.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let mut cluster = Self { nodes: Vec::new(), http, extra, dir, _turn: turn };
        let ports = free_ports(roles.len() * 3);
        for (role, ports) in roles.iter().zip(ports.chunks(3)) {
            cluster.push(*role, ports);
        }
        for id in 1..=roles.len() {
            cluster.write_properties(id, false);
        }
        cluster
    }

    fn push(&mut self, role: Role, ports: &[u16]) -> usize {
        let id = self.nodes.len() + 1;
        let dir = self.dir.path().join(format!("n{id}"));
        fs::create_dir_all(&dir).expect("a folder for the node");
        let (kafka_port, controller_port, http_port) = (ports[0], ports[1], ports[2]);
        self.nodes.push(Node { id, role, kafka_port, controller_port, http_port, dir, child: None });
        id
    }

    /// One more node, which finds the others by `controller.quorum.bootstrap.servers`; not started. Its id.
    pub fn add_node(&mut self, role: Role) -> usize {
        let id = self.push(role, &free_ports(3));
        self.write_properties(id, true);
        id
    }

    fn write_properties(&self, id: usize, joins: bool) {
        let node = self.node(id);
        let voters = self.nodes.iter().filter(|n| n.role.is_controller() && (!joins || n.id != id));
        let voters: Vec<String> = voters.map(|n| format!("{}@127.0.0.1:{}", n.id, n.controller_port)).collect();
        let mut lines = vec![format!("node.id={id}")];
        lines.extend(node.role.lines(&voters, joins, node.kafka_port, node.controller_port));
        lines.extend([
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
            format!("http.listeners=http://127.0.0.1:{}", node.http_port),
            format!("log.dirs={}", node.data_dir().display()),
            format!("metadata.log.dir={}", node.metadata_dir().display()),
        ]);
        lines.extend(self.extra.iter().map(|(key, value)| format!("{key}={value}")));
        fs::write(node.dir.join("server.properties"), lines.join("\n") + "\n").expect("a configuration file");
    }

    /// The folder of all nodes.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Node `id`, counted from 1.
    pub fn node(&self, id: usize) -> &Node {
        &self.nodes[id - 1]
    }

    /// Starts (again) the process of node `id`.
    pub fn start_node(&mut self, id: usize) {
        let node = &mut self.nodes[id - 1];
        assert!(!node.runs(), "node {id} runs already");
        let log = File::options().create(true).append(true).open(node.dir.join("log")).expect("a log file");
        let child = Command::new(binary())
            .args(["start", "--config"])
            .arg(node.dir.join("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .current_dir(&node.dir)
            .spawn()
            .expect("the binary starts");
        node.child = Some(child);
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self, id: usize) {
        let node = &mut self.nodes[id - 1];
        kill_process(node.pid(), Signal::KILL).expect("the process is there");
        if let Some(mut child) = node.child.take() {
            child.wait().expect("a child can be waited for");
        }
    }

    /// SIGSTOP.
    pub fn pause(&self, id: usize) {
        kill_process(self.node(id).pid(), Signal::STOP).expect("the process is there");
    }

    /// SIGCONT.
    pub fn resume(&self, id: usize) {
        kill_process(self.node(id).pid(), Signal::CONT).expect("the process is there");
    }

    /// What the process of node `id` has used so far, and holds now.
    pub fn usage(&self, id: usize) -> Usage {
        // Linux counts in hundredths of a second here on every machine we run on (USER_HZ).
        const TICK: Duration = Duration::from_millis(10);
        let read = |file: &str| {
            let path = format!("/proc/{}/{file}", self.node(id).pid().as_raw_nonzero());
            fs::read_to_string(path).expect("the node runs")
        };
        let (stat, status) = (read("stat"), read("status"));
        // Behind the name, which may hold anything: state is field 3, user and system time are 14 and 15.
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u32 = behind_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u32>().ok()).sum();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let resident_kib = resident.trim().trim_end_matches(" kB").trim().parse().expect("VmRSS is in kB");
        let tasks =
            fs::read_dir(format!("/proc/{}/task", self.node(id).pid().as_raw_nonzero())).expect("the node runs");
        let sleeps = tasks.flatten().filter_map(|task| {
            // A thread may end meanwhile.
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            count.trim().parse::<u64>().ok()
        });
        Usage { cpu: TICK * ticks, resident_kib, sleeps: sleeps.sum() }
    }

    /// SIGTERM, and waits for the end; its exit code.
    pub fn terminate(&mut self, id: usize) -> Option<i32> {
        kill_process(self.node(id).pid(), Signal::TERM).expect("the process is there");
        let mut child = self.nodes[id - 1].child.take().expect("the node runs");
        child.wait().expect("a child can be waited for").code()
    }

    /// SIGTERM, once more while it stops, and waits for the end; its exit code.
    pub fn terminate_twice(&mut self, id: usize) -> Option<i32> {
        kill_process(self.node(id).pid(), Signal::TERM).expect("the process is there");
        self.terminate(id)
    }

    /// SIGTERM, and `kill -9` before it can have stopped in order.
    pub fn terminate_then_kill(&mut self, id: usize) {
        kill_process(self.node(id).pid(), Signal::TERM).expect("the process is there");
        self.kill(id);
    }

    /// Kafka addresses of all brokers.
    pub fn bootstrap(&self) -> String {
        self.nodes
            .iter()
            .filter(|n| n.role.is_broker())
            .map(|n| format!("127.0.0.1:{}", n.kafka_port))
            .collect::<Vec<_>>()
            .join(",")
    }

    /// `http://…/v3/clusters/-` of node `id`, followed by `path`.
    pub fn url(&self, id: usize, path: &str) -> String {
        format!("http://127.0.0.1:{}/v3/clusters/-{path}", self.node(id).http_port)
    }

    /// GET under the cluster of node `id`: status and body (null when it is no JSON); an error when nobody answers.
    pub async fn get(&self, id: usize, path: &str) -> reqwest::Result<(u16, Value)> {
        let answer = self.http.get(self.url(id, path)).timeout(Duration::from_secs(5)).send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.json().await.unwrap_or(Value::Null)))
    }

    /// Waits until every running node is ready to serve.
    pub async fn wait_ready(&mut self) {
        for id in 1..=self.nodes.len() {
            if self.nodes[id - 1].runs() {
                self.wait_node_ready(id).await;
            }
        }
    }

    /// Waits until node `id` answers `/health/ready` with 200.
    pub async fn wait_node_ready(&self, id: usize) {
        let url = format!("http://127.0.0.1:{}/health/ready", self.node(id).http_port);
        self.wait(&format!("node {id} ready"), Duration::from_secs(30), async || {
            let answer = self.http.get(&url).timeout(Duration::from_secs(2)).send().await;
            answer.is_ok_and(|a| a.status().is_success())
        })
        .await;
    }

    /// Creates a topic through node `id` and waits until every node says that every partition is led with a full ISR.
    pub async fn create_topic(&self, id: usize, name: &str, partitions: usize, rf: usize, configs: &[(&str, &str)]) {
        let configs: Vec<Value> = configs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let body =
            json!({"topic_name": name, "partitions_count": partitions, "replication_factor": rf, "configs": configs});
        let answer = self.http.post(self.url(id, "/topics")).json(&body).send().await.expect("the node answers");
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap_or_default();
        assert_eq!(status, 201, "creating {name}: {text}");
        // On every node: each learns of it in its own time.
        for node in self.nodes.iter().filter(|node| node.child.is_some()).map(|node| node.id) {
            for partition in 0..partitions {
                self.wait_state(node, name, partition, "led with a full ISR", |s| {
                    s["leader_id"].is_i64() && s["isr"].as_array().is_some_and(|isr| isr.len() == rf)
                })
                .await;
            }
        }
    }

    /// The `state` object of a partition as node `id` tells it.
    pub async fn state(&self, id: usize, topic: &str, partition: usize) -> Option<Value> {
        let (status, body) = self.get(id, &format!("/topics/{topic}/partitions/{partition}/state")).await.ok()?;
        (status == 200).then_some(body)
    }

    /// Waits until the state of a partition fulfils `holds`, and returns it.
    pub async fn wait_state(
        &self,
        id: usize,
        topic: &str,
        partition: usize,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let until = Instant::now() + Duration::from_secs(40);
        while Instant::now() < until {
            last = self.state(id, topic, partition).await;
            if let Some(state) = &last
                && holds(state)
            {
                return last.expect("just matched");
            }
            tokio::time::sleep(POLL).await;
        }
        self.print_logs();
        panic!("{topic}-{partition} was not {what} within 40 s; last seen: {last:#?}");
    }

    /// The history entries of a partition, oldest first as the API gives them.
    pub async fn history(&self, id: usize, topic: &str, partition: usize) -> Vec<Value> {
        let (status, body) =
            self.get(id, &format!("/topics/{topic}/partitions/{partition}/history")).await.expect("an answer");
        assert_eq!(status, 200, "history of {topic}-{partition}: {body}");
        body["data"].as_array().cloned().expect("a list")
    }

    /// The node id of the raft leader, asked of the nodes that run.
    pub async fn controller(&mut self) -> usize {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            for id in 1..=self.nodes.len() {
                if self.nodes[id - 1].runs()
                    && let Ok((200, quorum)) = self.get(id, "/quorum").await
                    && let Some(leader) = quorum["leader_id"].as_u64()
                {
                    return usize::try_from(leader).expect("small");
                }
            }
            tokio::time::sleep(POLL).await;
        }
        self.print_logs();
        panic!("no node knows a raft leader");
    }

    /// Runs the binary as a person would, against the admin API of node `id`: exit code, stdout and stderr.
    pub async fn cli(&self, id: usize, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(binary());
        command.args(args).env("HIGHWATER_URL", format!("http://127.0.0.1:{}", self.node(id).http_port));
        let done = tokio::task::spawn_blocking(move || command.output()).await.expect("the call is not cancelled");
        let done = done.expect("the binary starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code().unwrap_or(-1), text(&done.stdout), text(&done.stderr))
    }

    /// Polls `holds` until it is true; panics with the logs when `limit` has passed.
    pub async fn wait(&self, what: &str, limit: Duration, mut holds: impl AsyncFnMut() -> bool) {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if holds().await {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        self.print_logs();
        panic!("not within {limit:?}: {what}");
    }

    /// The last lines of every node's log, to stderr.
    pub fn print_logs(&self) {
        for node in &self.nodes {
            let log = node.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- node {} ({})", node.id, node.dir.display());
            for line in &lines[lines.len().saturating_sub(40)..] {
                eprintln!("{line}");
            }
        }
    }

    /// Lines of level ERROR in the logs, except those that contain one of `expected`.
    pub fn unexpected_errors(&self, expected: &[&str]) -> Vec<String> {
        self.nodes
            .iter()
            .flat_map(|node| node.log().lines().map(|l| format!("node {}: {l}", node.id)).collect::<Vec<_>>())
            .filter(|line| line.contains("ERROR") && !expected.iter().any(|known| line.contains(known)))
            .collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        for node in &mut self.nodes {
            if let Some(mut child) = node.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

const POLL: Duration = Duration::from_millis(20);

/// Ports that were free a moment ago.
pub fn free_ports(count: usize) -> Vec<u16> {
    let held: io::Result<Vec<TcpListener>> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let held = held.expect("free ports on loopback");
    held.iter().map(|l| l.local_addr().expect("a bound listener has an address").port()).collect()
}
