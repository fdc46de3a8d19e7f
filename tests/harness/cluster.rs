//! N nodes in this process, through the `Node` of the binary: real TCP, real disks, real openraft and sled.
//!
//! One cluster exists at a time: tests wait for their turn, so that a slow machine makes them late, not wrong, and the
//! log lines that are collected belong to one test. Everything waits for conditions.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use highwater::config::{self, NodeConfig, Surroundings};
use highwater::telemetry::Telemetry;
use highwater::{Node, NodeError};
use highwater_data::Stopped;
use highwater_quorum::MetadataImage;
use highwater_quorum::image::{PartitionChange, PartitionState};
use highwater_quorum::{CreatedTopic, TopicSpec};
use highwater_wire::{BrokerId, TopicPartition};
use parking_lot::{Mutex, MutexGuard};
use tracing_subscriber::EnvFilter;

use crate::client::Client;
use crate::process::{Role, free_ports};

static TURN: Mutex<()> = Mutex::new(());
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

const POLL: Duration = Duration::from_millis(10);
/// How long a condition may take. Far more than it should, because tests share two cores with other builds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One member and where it lives.
pub struct Member {
    pub id: i32,
    pub role: Role,
    pub kafka_port: u16,
    pub http_port: u16,
    pub controller_port: u16,
    dir: PathBuf,
    node: Option<Node>,
}

impl Member {
    /// Its `log.dirs`.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Its `metadata.log.dir`.
    pub fn metadata_dir(&self) -> PathBuf {
        self.dir.join("metadata")
    }

    /// The directory of one of its replicas.
    pub fn replica_dir(&self, topic: &str, partition: i32) -> PathBuf {
        self.data_dir().join(format!("{topic}-{partition}"))
    }

    fn properties(&self) -> PathBuf {
        self.dir.join("server.properties")
    }
}

/// Some nodes that form one cluster. A drop ends them and, while no test has failed, refuses unexpected ERROR lines.
pub struct Cluster {
    pub members: Vec<Member>,
    expected_errors: Vec<String>,
    extra: String,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts `count` combined nodes from nothing and waits until all of them serve. `extra`: further settings of all.
    pub async fn start(count: usize, extra: &[(&str, &str)]) -> Self {
        Self::start_roles(&vec![Role::Both; count], extra).await
    }

    /// The same with a role for each node.
    pub async fn start_roles(roles: &[Role], extra: &[(&str, &str)]) -> Self {
        let turn = TURN.lock();
        collect_lines();
        let dir = tempfile::Builder::new().prefix("highwater-cluster-").tempdir().expect("a temporary folder");
        let extra: String = extra.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        let mut cluster = Self { members: Vec::new(), expected_errors: Vec::new(), extra, dir, _turn: turn };
        for (role, ports) in roles.iter().zip(free_ports(roles.len() * 3).chunks(3)) {
            cluster.push(*role, ports);
        }
        for id in 1..=roles.len() {
            cluster.write_properties(id as i32, false);
        }
        for id in 1..=cluster.members.len() {
            cluster.begin(id as i32).await;
        }
        cluster.wait_serving().await;
        cluster
    }

    fn push(&mut self, role: Role, ports: &[u16]) -> i32 {
        let id = i32::try_from(self.members.len() + 1).expect("small");
        let dir = self.dir.path().join(format!("n{id}"));
        std::fs::create_dir_all(&dir).expect("a folder for the node");
        let (kafka_port, controller_port, http_port) = (ports[0], ports[1], ports[2]);
        self.members.push(Member { id, role, kafka_port, controller_port, http_port, dir, node: None });
        id
    }

    /// One more node, which finds the others by `controller.quorum.bootstrap.servers`; not started. Its id.
    pub fn add_member(&mut self, role: Role) -> i32 {
        let id = self.push(role, &free_ports(3));
        self.write_properties(id, true);
        id
    }

    fn write_properties(&self, id: i32, joins: bool) {
        let member = self.member(id);
        let voters = self.members.iter().filter(|other| other.role.is_controller() && (!joins || other.id != id));
        let voters: Vec<String> = voters.map(|v| format!("{}@127.0.0.1:{}", v.id, v.controller_port)).collect();
        let mut lines = vec![format!("node.id={id}")];
        lines.extend(member.role.lines(&voters, joins, member.kafka_port, member.controller_port));
        lines.extend([
            format!("http.listeners=http://127.0.0.1:{}", member.http_port),
            format!("log.dirs={}", member.data_dir().display()),
            format!("metadata.log.dir={}", member.metadata_dir().display()),
            "num.network.threads=1".to_owned(),
            self.extra.clone(),
        ]);
        std::fs::write(member.properties(), lines.join("\n")).expect("a configuration file");
    }

    /// ERROR lines that contain `text` are no failure.
    pub fn expect_error(&mut self, text: &str) {
        self.expected_errors.push(text.to_owned());
    }

    pub fn member(&self, id: i32) -> &Member {
        self.members.iter().find(|member| member.id == id).expect("a member of this cluster")
    }

    fn member_mut(&mut self, id: i32) -> &mut Member {
        self.members.iter_mut().find(|member| member.id == id).expect("a member of this cluster")
    }

    /// The running node.
    pub fn node(&self, id: i32) -> &Node {
        self.member(id).node.as_ref().expect("the node runs")
    }

    /// Ids of the nodes that run.
    pub fn running(&self) -> Vec<i32> {
        self.members.iter().filter(|member| member.node.is_some()).map(|member| member.id).collect()
    }

    /// Starts a node without waiting for anything. An address that its last run has not let go of yet is waited for.
    pub async fn begin(&mut self, id: i32) {
        let member = self.member_mut(id);
        assert!(member.node.is_none(), "node {id} runs already");
        let config = read_config(&member.properties());
        let until = Instant::now() + PATIENCE;
        loop {
            match Node::start(config.clone(), Telemetry::default()).await {
                Ok(node) => {
                    member.node = Some(node);
                    return;
                }
                Err(error) if Instant::now() < until && is_still_held(&error) => tokio::time::sleep(POLL).await,
                Err(error) => {
                    print_lines();
                    panic!("node {id} does not start: {error}");
                }
            }
        }
    }

    /// Starts a node (again) and waits until it serves.
    pub async fn start_node(&mut self, id: i32) {
        self.begin(id).await;
        self.wait_node_serving(id).await;
    }

    /// Controlled shutdown: leaders move first.
    pub async fn stop(&mut self, id: i32) -> Stopped {
        let node = self.member_mut(id).node.take().expect("the node runs");
        within("a controlled stop", node.stop()).await
    }

    /// As `kill -9` would: nobody is told, nothing is flushed, no mark of a clean stop.
    pub async fn crash(&mut self, id: i32) {
        let node = self.member_mut(id).node.take().expect("the node runs");
        within("a crash", node.abort()).await;
        let dir = self.member(id).data_dir();
        assert!(!dir.join(".clean-shutdown").exists(), "a crash must not look like a clean stop");
    }

    /// Waits until every running node serves.
    pub async fn wait_serving(&self) {
        for id in self.running() {
            self.wait_node_serving(id).await;
        }
    }

    async fn wait_node_serving(&self, id: i32) {
        let served = within(&format!("node {id} serves"), self.node(id).serving()).await;
        if let Err(error) = served {
            print_lines();
            panic!("node {id} does not serve: {error}");
        }
    }

    /// Where a node's Kafka listener is.
    pub fn address(&self, id: i32) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.member(id).kafka_port).into()
    }

    /// A new connection to a node.
    pub async fn client(&self, id: i32) -> Client {
        Client::connect(self.address(id)).await.expect("a running node accepts connections")
    }

    /// The newest image that any running node has.
    pub fn image(&self) -> Arc<MetadataImage> {
        let images = self.running().into_iter().map(|id| self.node(id).quorum().image());
        images.max_by_key(|image| image.version).expect("a node runs")
    }

    /// The raft leader, waited for.
    pub async fn controller(&self) -> i32 {
        let mut found = None;
        self.wait("a raft leader", || {
            let mut told = self.running().into_iter().filter_map(|id| self.node(id).quorum().leader());
            found = told.find(|leader| self.running().contains(&leader.0));
            found.is_some()
        })
        .await;
        found.expect("waited for").0
    }

    /// Creates a topic and waits until every partition is led by a node that knows it, with a full ISR.
    pub async fn create_topic(&self, name: &str, partitions: i32, rf: i16, configs: &[(&str, &str)]) -> CreatedTopic {
        let (partitions, replication_factor) = (Some(partitions), Some(rf));
        self.create(TopicSpec { partitions, replication_factor, ..spec(name, configs) }).await
    }

    /// The same for one partition with its replicas named; the first one leads.
    pub async fn create_assigned(&self, name: &str, replicas: &[i32], configs: &[(&str, &str)]) -> CreatedTopic {
        let replicas = replicas.iter().copied().map(BrokerId).collect();
        self.create(TopicSpec { assignments: BTreeMap::from([(0, replicas)]), ..spec(name, configs) }).await
    }

    async fn create(&self, spec: TopicSpec) -> CreatedTopic {
        let name = spec.name.clone();
        let id = self.running()[0];
        let created = self.node(id).quorum().create_topic(spec, PATIENCE).await;
        let created = created.unwrap_or_else(|error| panic!("creating {name}: {error}"));
        for partition in 0..created.partitions {
            self.wait_in_sync(&name, partition, created.replication_factor as usize).await;
            self.wait_leading(&name, partition).await;
        }
        created
    }

    /// Which partition this is now: a name may be created again.
    pub fn at(&self, topic: &str, partition: i32) -> Option<TopicPartition> {
        Some(TopicPartition::new(self.image().topic_named(topic)?.id, partition))
    }

    /// What the quorum says of a partition.
    pub fn state(&self, topic: &str, partition: i32) -> Option<PartitionState> {
        let image = self.image();
        let at = TopicPartition::new(image.topic_named(topic)?.id, partition);
        image.partition(at).map(|state| (**state).clone())
    }

    /// What happened to a partition, oldest first.
    pub fn history(&self, topic: &str, partition: i32) -> Vec<Arc<PartitionChange>> {
        let image = self.image();
        let topic = image.topic_named(topic).expect("a topic of this name");
        image.history_of(TopicPartition::new(topic.id, partition)).to_vec()
    }

    /// Waits for a state of a partition, and returns it.
    pub async fn wait_state(
        &self,
        topic: &str,
        partition: i32,
        what: &str,
        holds: impl Fn(&PartitionState) -> bool,
    ) -> PartitionState {
        let mut last = None;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            last = self.state(topic, partition);
            if let Some(state) = last.take_if(|state| holds(state)) {
                return state;
            }
            tokio::time::sleep(POLL).await;
        }
        print_lines();
        panic!("{topic}-{partition} was not {what} within {PATIENCE:?}; last seen: {last:?}");
    }

    /// Waits until so many replicas are in sync and one leads.
    pub async fn wait_in_sync(&self, topic: &str, partition: i32, count: usize) -> PartitionState {
        let holds = |state: &PartitionState| state.leader.is_some() && state.isr.len() == count;
        self.wait_state(topic, partition, &format!("led with {count} in sync"), holds).await
    }

    /// Waits until the leader has taken its place and answers for it; its id.
    pub async fn wait_leading(&self, topic: &str, partition: i32) -> i32 {
        let mut leading = None;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(leader) = self.state(topic, partition).and_then(|state| state.leader)
                && self.running().contains(&leader.0)
                && let Ok(mut client) = Client::connect(self.address(leader.0)).await
                && let Ok(told) = client.list_offset(topic, partition, crate::client::EARLIEST).await
            {
                if told.error_code == 0 {
                    return leader.0;
                }
                leading = Some((leader.0, told.error_code));
            }
            tokio::time::sleep(POLL).await;
        }
        print_lines();
        panic!("nobody leads {topic}-{partition}; last asked: {leading:?}");
    }

    /// A connection to the leader of a partition.
    pub async fn leader_client(&self, topic: &str, partition: i32) -> Client {
        let leader = self.wait_leading(topic, partition).await;
        self.client(leader).await
    }

    /// The log end of a replica, whatever its role; `None` while it does not answer for it.
    pub async fn log_end(&self, id: i32, topic: &str, partition: i32) -> Option<i64> {
        let mut client = Client::connect(self.address(id)).await.ok()?;
        let mut request = crate::client::list_offsets_request(topic, partition, crate::client::LATEST, -1);
        request.replica_id = -2; // "debug": any replica answers with its end (R68)
        let answer = client.ask(8, request).await.ok()?;
        let told = answer.topics.first()?.partitions.first()?;
        (told.error_code == 0).then_some(told.offset)
    }

    /// Waits until the log of a replica ends here.
    pub async fn wait_log_end(&self, id: i32, topic: &str, partition: i32, end: i64) {
        let mut last = None;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            last = self.log_end(id, topic, partition).await;
            if last == Some(end) {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        print_lines();
        panic!("the log of {topic}-{partition} on node {id} ends at {last:?}, not {end}");
    }

    /// Polls until `holds`.
    pub async fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        self.wait_for(what, async || holds().then_some(())).await;
    }

    /// Polls until there is something.
    pub async fn wait_for<T>(&self, what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(found) = found().await {
                return found;
            }
            tokio::time::sleep(POLL).await;
        }
        print_lines();
        panic!("not within {PATIENCE:?}: {what}");
    }

    /// Ends all nodes in order, last one first.
    pub async fn stop_all(&mut self) {
        for id in self.running().into_iter().rev() {
            self.stop(id).await;
        }
    }

    /// Ends all nodes at once and refuses ERROR lines that nobody expected. Every test ends with it.
    pub async fn end(mut self) {
        for id in self.running() {
            self.crash(id).await;
        }
        let errors = unexpected(&self.expected_errors);
        assert!(errors.is_empty(), "unexpected ERROR lines:\n{}", errors.join("\n"));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_lines();
        }
    }
}

fn spec(name: &str, configs: &[(&str, &str)]) -> TopicSpec {
    let configs = configs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    TopicSpec { name: name.to_owned(), configs, ..TopicSpec::default() }
}

fn read_config(path: &Path) -> NodeConfig {
    let text = std::fs::read_to_string(path).expect("written when the cluster was made");
    let environment = BTreeMap::new();
    let report = config::read(Some((path, &text)), &[], &Surroundings { environment: &environment });
    report.config.unwrap_or_else(|| panic!("{:?}", report.findings))
}

/// Sockets and locks of an aborted run may live for a moment longer.
fn is_still_held(error: &NodeError) -> bool {
    let text = error.to_string();
    text.contains("in use") || text.contains("lock")
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => {
            print_lines();
            panic!("not within {PATIENCE:?}: {what}");
        }
    }
}

/// Collects the log lines of this process from now on.
fn collect_lines() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,openraft=warn"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Collector).init();
    });
    LINES.lock().clear();
}

struct Collector;

impl io::Write for Collector {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        if std::env::var_os("RUST_LOG").is_some() {
            eprintln!("{text}");
        }
        LINES.lock().push(text);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log lines so far that contain `text`.
pub fn lines_with(text: &str) -> Vec<String> {
    LINES.lock().iter().filter(|line| line.contains(text)).cloned().collect()
}

/// What openraft says of calls that arrive while it is being stopped.
const OPENRAFT_STOPS: [&str; 3] =
    ["raft stopped", "failed to send HeartbeatProgress", "failed to receive from RaftCore"];

fn unexpected(expected: &[String]) -> Vec<String> {
    let mut errors = lines_with(" ERROR ");
    errors.retain(|line| !(line.contains(" openraft::") && OPENRAFT_STOPS.iter().any(|known| line.contains(known))));
    errors.retain(|line| !expected.iter().any(|known| line.contains(known)));
    errors
}

fn print_lines() {
    let lines = std::mem::take(&mut *LINES.lock());
    for line in &lines[lines.len().saturating_sub(150)..] {
        eprintln!("{line}");
    }
}

/// Unwraps what a broker said with the log at hand.
pub fn told<T, E: Debug>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| {
        print_lines();
        panic!("{error:?}")
    })
}
