//! Nodes of the shipped binary, each in a network namespace of its own, and what can be done to them from outside.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::hardware::Cgroup;
use super::links::{self, Links};
use crate::networks::Networks;
use crate::power::volume::Volume;

pub mod hardware;

/// Replicas of every partition, however many nodes there are.
pub const REPLICAS: u8 = 3;
/// `broker.session.timeout.ms`
pub const SESSION: Duration = Duration::from_secs(3);

pub const CLIENT_PORT: u16 = 9092;
pub const CONTROLLER_PORT: u16 = 9093;
pub const REPLICATION_PORT: u16 = 9094;
const HTTP_PORT: u16 = 8082;

/// Where a node tells whether the cluster is healthy.
pub const HEALTH: &str = "/v3/clusters/-/health";

/// A listener of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Clients,
    Replication,
    Controller,
    Http,
}

impl Door {
    pub const ALL: [Self; 4] = [Self::Clients, Self::Replication, Self::Controller, Self::Http];

    const fn port(self) -> u16 {
        match self {
            Self::Clients => CLIENT_PORT,
            Self::Replication => REPLICATION_PORT,
            Self::Controller => CONTROLLER_PORT,
            Self::Http => HTTP_PORT,
        }
    }
}

const NET: char = 'c';
const POLL: Duration = Duration::from_millis(20);

/// A cut: packets that a node does not get, or that it sends in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    pub node: u8,
    /// nftables statements.
    pub input: Vec<String>,
    pub output: Vec<String>,
}

#[derive(Default)]
struct Member {
    child: Option<Child>,
    /// How often it was started.
    starts: u32,
}

/// What a fleet is made of.
#[derive(Debug, Clone)]
pub struct Build {
    pub binary: PathBuf,
    /// Everything of the nodes lies below it.
    pub dir: PathBuf,
    pub nodes: u8,
    /// More lines of `server.properties`.
    pub properties: String,
    /// The rule that a build with planted flaws is to leave out.
    pub flaw: Option<String>,
    /// A proxy on every link between nodes.
    pub links: bool,
    /// A file system of its own for every node.
    pub disks: bool,
    /// Limits of memory and processor time.
    pub cgroups: bool,
    /// A machine without a node.
    pub spare: bool,
}

impl Build {
    /// Nodes of a binary, and nothing beside them.
    pub const fn of(binary: PathBuf, dir: PathBuf, nodes: u8) -> Self {
        let properties = String::new();
        Self { binary, dir, nodes, properties, flaw: None, links: false, disks: false, cgroups: false, spare: false }
    }
}

pub struct Fleet {
    // In this order: no proxy without its namespace.
    links: Option<Links>,
    build: Build,
    networks: Networks,
    disks: Vec<Mutex<Option<Volume>>>,
    members: Vec<Mutex<Member>>,
    /// What is cut now, by the number of the fault.
    cuts: Mutex<Vec<(u64, Cut)>>,
    pub http: reqwest::Client,
}

impl Fleet {
    /// Makes networks and files; starts nothing.
    pub fn make(build: Build) -> Self {
        let networks = Networks::make(build.nodes + u8::from(build.spare), &[NET]);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().expect("an HTTP client");
        let members = (0..build.nodes).map(|_| Mutex::default()).collect();
        let mut fleet = Self { links: None, build, networks, disks: Vec::new(), members, cuts: Mutex::default(), http };
        for node in fleet.nodes() {
            fs::create_dir_all(fleet.home(node)).expect("a folder for the node");
            let disk = fleet.build.disks.then(|| fleet.make_disk(node));
            fleet.disks.push(Mutex::new(disk));
            fleet.write_properties(node);
            if fleet.build.cgroups {
                let made = fleet.cgroup(node).make();
                made.unwrap_or_else(|error| panic!("memory and processor time cannot be limited: {error}"));
            }
        }
        fleet.links = fleet.build.links.then(|| fleet.make_links());
        fleet
    }

    /// The numbers of the nodes.
    pub fn nodes(&self) -> RangeInclusive<u8> {
        1..=self.build.nodes
    }

    /// All nodes but this one.
    pub fn others(&self, node: u8) -> Vec<u8> {
        self.nodes().filter(|other| *other != node).collect()
    }

    fn cgroup(&self, node: u8) -> Cgroup {
        Cgroup { name: self.networks.namespace(node) }
    }

    /// How the other nodes call a node: its name where a proxy stands between them.
    fn name(&self, node: u8) -> String {
        if self.build.links { links::name(node) } else { self.ip(node).to_string() }
    }

    fn write_properties(&self, node: u8) {
        let home = self.home(node);
        let voters: Vec<String> = self.nodes().map(|id| format!("{id}@{}:{CONTROLLER_PORT}", self.name(id))).collect();
        let (ip, name) = (self.ip(node), self.name(node));
        // A proxy to another node has the port of that node, on another address.
        let all = if self.build.links { ip.to_string() } else { "0.0.0.0".to_owned() };
        let text = format!(
            "node.id={node}\n\
             controller.quorum.voters={voters}\n\
             listeners=CLIENTS://{all}:{CLIENT_PORT},REPLICATION://{all}:{REPLICATION_PORT},\
             CONTROLLER://{all}:{CONTROLLER_PORT}\n\
             advertised.listeners=CLIENTS://{ip}:{CLIENT_PORT},REPLICATION://{name}:{REPLICATION_PORT},\
             CONTROLLER://{name}:{CONTROLLER_PORT}\n\
             listener.security.protocol.map=CLIENTS:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             inter.broker.listener.name=REPLICATION\n\
             http.listeners=http://{ip}:{HTTP_PORT}\n\
             http.auth.mode=none\n\
             broker.heartbeat.interval.ms=500\n\
             broker.session.timeout.ms={session}\n\
             replica.lag.time.max.ms=5000\n\
             log.segment.bytes=262144\n\
             num.network.threads=1\n\
             log.dirs={data}\n\
             metadata.log.dir={metadata}\n\
             {more}",
            voters = voters.join(","),
            session = SESSION.as_millis(),
            data = self.data_dir(node).display(),
            metadata = self.metadata_dir(node).display(),
            more = self.build.properties,
        );
        fs::write(home.join("server.properties"), text).expect("a configuration file");
    }

    /// `server.properties`, `data`, `metadata` and `log` of a node lie here.
    pub fn home(&self, node: u8) -> PathBuf {
        self.build.dir.join(format!("n{node}"))
    }

    /// Where its files lie, except its log and its configuration.
    fn disk(&self, node: u8) -> PathBuf {
        if self.build.disks { self.home(node).join("mounted") } else { self.home(node) }
    }

    pub fn data_dir(&self, node: u8) -> PathBuf {
        self.disk(node).join("data")
    }

    pub fn metadata_dir(&self, node: u8) -> PathBuf {
        self.disk(node).join("metadata")
    }

    fn address_v4(&self, node: u8) -> Ipv4Addr {
        self.networks.address(NET, node)
    }

    /// Node 0 is this process.
    fn ip(&self, node: u8) -> IpAddr {
        self.networks.address(NET, node).into()
    }

    /// Where clients find a node.
    pub fn address(&self, node: u8) -> SocketAddr {
        (self.ip(node), CLIENT_PORT).into()
    }

    /// Where one of its listeners is found.
    pub fn door(&self, node: u8, door: Door) -> SocketAddr {
        (self.ip(node), door.port()).into()
    }

    /// All of them, as stock clients want it.
    pub fn bootstrap(&self) -> String {
        self.nodes().map(|node| self.address(node).to_string()).collect::<Vec<_>>().join(",")
    }

    fn member(&self, node: u8) -> &Mutex<Member> {
        &self.members[usize::from(node) - 1]
    }

    /// Starts a node that does not run.
    pub fn start(&self, node: u8) {
        let mut member = self.member(node).lock();
        if member.child.is_some() {
            return;
        }
        let log = File::options().create(true).append(true).open(self.home(node).join("log")).expect("a log file");
        let mut command = self.command(node, node);
        command.args(["start", "--config"]).arg(self.home(node).join("server.properties"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        command.current_dir(self.home(node));
        if let Some(flaw) = &self.build.flaw {
            command.env("HIGHWATER_FLAW", flaw);
        }
        let child = command.spawn().expect("the binary starts");
        if self.build.cgroups {
            self.cgroup(node).enter(child.id()).expect("a process can be limited");
        }
        member.child = Some(child);
        member.starts += 1;
    }

    /// The id of a node's process, and which of its processes that is; `None`: it does not run.
    pub fn process(&self, node: u8) -> Option<(u32, u32)> {
        let member = self.member(node).lock();
        member.child.as_ref().map(|child| (child.id(), member.starts))
    }

    /// The memory that a node's process has, bytes; `None`: it does not run.
    pub fn memory(&self, node: u8) -> Option<u64> {
        let (pid, _) = self.process(node)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    }

    /// Sends a signal; false: the node does not run.
    pub fn signal(&self, node: u8, signal: Signal) -> bool {
        let member = self.member(node).lock();
        let Some(child) = &member.child else { return false };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("pids are positive");
        kill_process(pid, signal).is_ok()
    }

    /// kill -9, and waits until it is gone.
    pub fn kill(&self, node: u8) {
        let mut member = self.member(node).lock();
        if let Some(mut child) = member.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// SIGTERM, and waits for the end; `None`: it had not ended in time and was killed.
    pub async fn terminate(&self, node: u8, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        // Before it listens a signal is as good as kill -9.
        while let Some((pid, _)) = self.process(node)
            && !catches_term(pid)
            && Instant::now() < until
        {
            tokio::time::sleep(POLL).await;
        }
        self.signal(node, Signal::TERM);
        loop {
            {
                let mut member = self.member(node).lock();
                let ended = member.child.as_mut().map(|child| child.try_wait().expect("a child can be waited for"));
                match ended {
                    Some(None) => {}
                    Some(Some(status)) => {
                        member.child = None;
                        return Some(status);
                    }
                    None => return None,
                }
            }
            if Instant::now() > until {
                self.kill(node);
                return None;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// How a node ended that nobody ended; it counts as not running from then on.
    pub fn ended_by_itself(&self, node: u8) -> Option<ExitStatus> {
        let mut member = self.member(node).lock();
        let status = member.child.as_mut()?.try_wait().expect("a child can be waited for")?;
        member.child = None;
        Some(status)
    }

    /// Removes what a node that does not run has on disk.
    pub fn wipe(&self, node: u8, metadata_too: bool) {
        assert!(self.member(node).lock().child.is_none(), "node {node} runs");
        let remove = |dir: PathBuf| match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", dir.display()),
            _ => {}
        };
        remove(self.data_dir(node));
        if metadata_too {
            remove(self.metadata_dir(node));
        }
    }

    /// Puts cuts into force until [`Fleet::mend`] with the same number.
    pub fn cut(&self, id: u64, cuts: Vec<Cut>) {
        let mut all = self.cuts.lock();
        let nodes: Vec<u8> = cuts.iter().map(|cut| cut.node).collect();
        all.extend(cuts.into_iter().map(|cut| (id, cut)));
        self.apply(&all, &nodes);
    }

    pub fn mend(&self, id: u64) {
        let mut all = self.cuts.lock();
        let nodes: Vec<u8> = all.iter().filter(|(of, _)| *of == id).map(|(_, cut)| cut.node).collect();
        all.retain(|(of, _)| *of != id);
        self.apply(&all, &nodes);
    }

    fn apply(&self, all: &[(u64, Cut)], nodes: &[u8]) {
        for &node in nodes {
            let here = || all.iter().filter(|(_, cut)| cut.node == node);
            let input: Vec<String> = here().flat_map(|(_, cut)| cut.input.clone()).collect();
            let output: Vec<String> = here().flat_map(|(_, cut)| cut.output.clone()).collect();
            self.networks.drop_packets(node, &input, &output);
        }
    }

    /// A node does not get what these send, by any port or one of these.
    pub fn deaf(&self, node: u8, to: &[u8], ports: &[u16]) -> Cut {
        let mut input = Vec::new();
        for other in to {
            let from = format!("ip saddr {}", self.ip(*other));
            match ports {
                [] => input.push(format!("{from} drop")),
                ports => input.extend(
                    ports
                        .iter()
                        .flat_map(|port| ["dport", "sport"].map(|side| format!("{from} tcp {side} {port} drop"))),
                ),
            }
        }
        Cut { node, input, output: Vec::new() }
    }

    /// Clients' requests do not reach a node, or its answers do not leave it.
    pub fn client_cut(&self, node: u8, answers: bool) -> Cut {
        let rule = |side: &str| vec![format!("tcp {side} {CLIENT_PORT} drop")];
        match answers {
            true => Cut { node, input: Vec::new(), output: rule("sport") },
            false => Cut { node, input: rule("dport"), output: Vec::new() },
        }
    }

    /// So many percent of all packets are lost on their way to a node, those of the supervisor's questions excepted.
    pub fn loss(&self, node: u8, percent: u64) -> Cut {
        let rule = format!("tcp dport != {HTTP_PORT} numgen random mod 100 < {percent} drop");
        Cut { node, input: vec![rule], output: Vec::new() }
    }

    /// Everything that comes to a node's Kafka and controller ports is answered with a reset.
    pub fn reset(&self, node: u8) -> Cut {
        let ports = format!("{{ {CLIENT_PORT}, {CONTROLLER_PORT}, {REPLICATION_PORT} }}");
        let rule = |side: &str| format!("tcp {side} {ports} reject with tcp reset");
        Cut { node, input: vec![rule("dport"), rule("sport")], output: Vec::new() }
    }

    pub fn url(&self, node: u8, path: &str) -> String {
        format!("http://{}:{HTTP_PORT}{path}", self.ip(node))
    }

    /// GET: status and body (null when it is no JSON); `None`: nobody answers in two seconds.
    pub async fn get(&self, node: u8, path: &str) -> Option<(u16, Value)> {
        let answer = self.http.get(self.url(node, path)).timeout(Duration::from_secs(2)).send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.json().await.unwrap_or(Value::Null)))
    }

    /// POST of a JSON body: status and body.
    pub async fn post(&self, node: u8, path: &str, body: &Value, limit: Duration) -> Option<(u16, Value)> {
        let answer = self.http.post(self.url(node, path)).json(body).timeout(limit).send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.json().await.unwrap_or(Value::Null)))
    }

    pub async fn is_ready(&self, node: u8) -> bool {
        self.get(node, "/health/ready").await.is_some_and(|(status, _)| status == 200)
    }

    /// The raft leader, as any node tells.
    pub async fn controller(&self) -> Option<u8> {
        for node in self.nodes() {
            if let Some((200, quorum)) = self.get(node, "/v3/clusters/-/quorum").await
                && let Some(leader) = quorum["leader_id"].as_u64()
            {
                return u8::try_from(leader).ok();
            }
        }
        None
    }

    /// How long the log of a node is, bytes.
    pub fn log_end(&self, node: u8) -> u64 {
        fs::metadata(self.home(node).join("log")).map_or(0, |log| log.len())
    }

    /// The log of all runs of a node.
    pub fn log(&self, node: u8) -> String {
        fs::read(self.home(node).join("log")).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for node in self.nodes() {
            self.kill(node);
            if self.build.cgroups {
                self.cgroup(node).remove();
            }
        }
    }
}

/// Whether a process has a handler for SIGTERM; one that is gone needs none.
fn catches_term(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_none_or(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
}
