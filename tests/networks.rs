//! Clients, replication and the controllers on networks of their own: three nodes in three network namespaces, each
//! with three links that can be cut one by one.
//!
//! Needs root and `ip` (iproute2); fails where it has not got them.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use highwater_tests::client::{Client, batch, contents, fetch_partition, fetch_request, fetch_topic};
use highwater_tests::networks::Networks;
use highwater_tests::process::binary;
use highwater_wire::ErrorCode;
use serde_json::{Value, json};

const NODES: u8 = 3;
const NOW: i64 = 1_760_000_000_000;
/// `replica.lag.time.max.ms`
const LAG_MAX: Duration = Duration::from_millis(1_500);
const PATIENCE: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(50);

/// The networks, by the letter in the names of their devices.
#[derive(Clone, Copy)]
enum Net {
    Clients,
    Replication,
    Control,
}

impl Net {
    const LETTERS: [char; 3] = ['c', 'r', 'm'];

    fn letter(self) -> char {
        Self::LETTERS[self as usize]
    }
}

/// Three combined nodes, each in its namespace. Processes end before their networks go.
struct Nodes {
    children: Vec<Child>,
    networks: Networks,
    http: reqwest::Client,
    dir: tempfile::TempDir,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for node in 1..=NODES {
                let log = fs::read_to_string(self.dir.path().join(format!("n{node}/log"))).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                eprintln!("--- node {node}\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
            }
        }
    }
}

impl Nodes {
    fn start(networks: Networks) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut nodes = Self { children: Vec::new(), networks, http, dir };
        let networks = &nodes.networks;
        let voters: Vec<String> =
            (1..=NODES).map(|node| format!("{node}@{}:9093", networks.address(Net::Control.letter(), node))).collect();
        let mut children = Vec::new();
        for node in 1..=NODES {
            let home = nodes.dir.path().join(format!("n{node}"));
            fs::create_dir_all(&home).unwrap();
            let at = |net: Net| networks.address(net.letter(), node);
            let (clients, replication, control) = (at(Net::Clients), at(Net::Replication), at(Net::Control));
            // Bound to everything, told by listener.
            let text = format!(
                "node.id={node}\n\
                 controller.quorum.voters={}\n\
                 listeners=CLIENTS://0.0.0.0:9092,REPLICATION://0.0.0.0:9094,CONTROLLER://0.0.0.0:9093\n\
                 advertised.listeners=CLIENTS://{clients}:9092,REPLICATION://{replication}:9094,CONTROLLER://{control}:9093\n\
                 listener.security.protocol.map=CLIENTS:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
                 inter.broker.listener.name=REPLICATION\n\
                 http.listeners=http://{control}:8082\n\
                 http.auth.mode=none\n\
                 replica.lag.time.max.ms={}\n\
                 num.network.threads=1\n\
                 log.dirs={}\n\
                 metadata.log.dir={}\n",
                voters.join(","),
                LAG_MAX.as_millis(),
                home.join("data").display(),
                home.join("metadata").display(),
            );
            fs::write(home.join("server.properties"), text).unwrap();
            let log = File::create(home.join("log")).unwrap();
            let child = networks
                .command(node, binary())
                .args(["start", "--config"])
                .arg(home.join("server.properties"))
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            children.push(child);
        }
        nodes.children = children;
        nodes
    }

    fn url(&self, node: u8, path: &str) -> String {
        format!("http://{}:8082{path}", self.networks.address(Net::Control.letter(), node))
    }

    async fn get(&self, node: u8, path: &str) -> Option<Value> {
        let answer = self.http.get(self.url(node, path)).timeout(Duration::from_secs(5)).send().await.ok()?;
        if answer.status().is_success() { answer.json().await.ok() } else { None }
    }

    async fn wait<T>(&self, what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(found) = found().await {
                return found;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("not within {PATIENCE:?}: {what}");
    }

    async fn state(&self) -> Option<Value> {
        self.get(1, "/v3/clusters/-/topics/t/partitions/0/state").await
    }

    async fn wait_isr(&self, expected: Value) -> Value {
        let until = Instant::now() + PATIENCE;
        let mut last = None;
        while Instant::now() < until {
            last = self.state().await;
            if let Some(state) = last.take_if(|state| sorted(&state["isr"]) == sorted(&expected)) {
                return state;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("no ISR {expected} within {PATIENCE:?}; last seen: {last:#?}");
    }

    async fn connect(&self, net: Net, node: u8) -> std::io::Result<Client> {
        let port = if matches!(net, Net::Replication) { 9094 } else { 9092 };
        let address = SocketAddr::from((self.networks.address(net.letter(), node), port));
        tokio::time::timeout(Duration::from_secs(2), Client::connect(address)).await?
    }
}

fn sorted(ids: &Value) -> Vec<i64> {
    let mut ids: Vec<i64> = ids.as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
    ids.sort_unstable();
    ids
}

async fn produce(client: &mut Client, acks: i16, value: &str) -> ErrorCode {
    let answer = client.produce("t", 0, acks, batch(NOW, &[value])).await.unwrap();
    ErrorCode::from_code(answer.error_code)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_between_clients_and_a_cut_between_brokers_do_not_touch_each_other() {
    let nodes = Nodes::start(Networks::make(NODES, &Net::LETTERS));
    for node in 1..=NODES {
        nodes.wait(&format!("node {node} is ready"), async || nodes.get(node, "/health/ready").await).await;
    }
    let body = json!({ "topic_name": "t", "replicas_assignments": { "0": [1, 2, 3] },
        "configs": [{ "name": "min.insync.replicas", "value": "2" }] });
    let created = nodes.http.post(nodes.url(1, "/v3/clusters/-/topics")).json(&body).send().await.unwrap();
    assert_eq!(created.status().as_u16(), 201, "{}", created.text().await.unwrap());
    nodes.wait_isr(json!([1, 2, 3])).await;
    let epoch = nodes.state().await.unwrap()["leader_epoch"].clone();

    // Whoever comes by a listener is told the addresses of that listener.
    for net in [Net::Clients, Net::Replication] {
        let told = nodes.connect(net, 2).await.unwrap().metadata("t").await.unwrap();
        let mut hosts: Vec<String> = told.brokers.iter().map(|broker| broker.host.to_string()).collect();
        hosts.sort();
        let expected: Vec<String> =
            (1..=NODES).map(|node| nodes.networks.address(net.letter(), node).to_string()).collect();
        assert_eq!(hosts, expected);
    }
    // Followers only by the listener between brokers (D22).
    let mut pretender = fetch_request(vec![fetch_topic("t", vec![fetch_partition(0, 0)])]);
    pretender.replica_id = 2;
    let answer = nodes.connect(Net::Clients, 1).await.unwrap().ask(12, pretender).await.unwrap();
    assert_eq!(answer.topics[0].partitions[0].error, ErrorCode::TopicAuthorizationFailed);

    // The clients' side of a follower is cut: nobody reaches it, and replication does not notice.
    let mut client = nodes.connect(Net::Clients, 1).await.unwrap();
    assert_eq!(produce(&mut client, -1, "0").await, ErrorCode::None);
    nodes.networks.cut(Net::Clients.letter(), 2);
    assert!(nodes.connect(Net::Clients, 2).await.is_err(), "the link is down");
    let (cut_at, mut sent) = (Instant::now(), 1);
    while cut_at.elapsed() < 3 * LAG_MAX {
        assert_eq!(produce(&mut client, -1, &sent.to_string()).await, ErrorCode::None);
        assert_eq!(sorted(&nodes.state().await.unwrap()["isr"]), [1, 2, 3]);
        sent += 1;
        tokio::time::sleep(POLL).await;
    }
    println!("clients' side of a follower cut for {:?}: {sent} acks=all, ISR full throughout", cut_at.elapsed());
    nodes.networks.mend(Net::Clients.letter(), 2);
    nodes.wait("clients reach node 2 again", async || nodes.connect(Net::Clients, 2).await.ok()).await;

    // Replication is cut at both followers: they leave the ISR, the leader stays, and its clients go on with acks=1.
    let cut_at = Instant::now();
    nodes.networks.cut(Net::Replication.letter(), 2);
    nodes.networks.cut(Net::Replication.letter(), 3);
    // A follower that has all there is stays in sync, however silent (R108): it takes a record to be behind.
    assert_eq!(produce(&mut client, 1, &sent.to_string()).await, ErrorCode::None);
    sent += 1;
    let state = nodes.wait_isr(json!([1])).await;
    println!("followers cut off left the ISR after {:?} (lag limit {LAG_MAX:?})", cut_at.elapsed());
    assert_eq!((state["leader_id"].as_i64(), &state["leader_epoch"]), (Some(1), &epoch));
    assert!(state["states"].as_array().unwrap().contains(&json!("UNDER_MIN_ISR")), "{state}");
    for _ in 0..10 {
        assert_eq!(produce(&mut client, 1, &sent.to_string()).await, ErrorCode::None);
        sent += 1;
    }
    assert_eq!(produce(&mut client, -1, "refused").await, ErrorCode::NotEnoughReplicas);
    nodes.networks.mend(Net::Replication.letter(), 2);
    nodes.networks.mend(Net::Replication.letter(), 3);
    nodes.wait_isr(json!([1, 2, 3])).await;
    assert_eq!(produce(&mut client, -1, &sent.to_string()).await, ErrorCode::None);
    sent += 1;
    let read: Vec<String> =
        contents(&client.read_all("t", 0).await.unwrap()).into_iter().map(|(_, value)| value).collect();
    assert_eq!(read, (0..sent).map(|number| number.to_string()).collect::<Vec<_>>());
}
