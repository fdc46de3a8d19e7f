//! A stranger who means harm or knows no better: requests changed in a few places, frames that lie about their length,
//! connections that stall, HTTP that is none.
//!
//! Nothing of it may change anything, so that the history stays true: what could, were it understood, is cut short. A node
//! closes the connection or answers; it does not end, and of its log and its memory others take a look.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use highwater_wire::api::ApiKey;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::super::board::Board;
use super::super::fleet::Door;
use super::pause;
use crate::fuzz::{golden, mutate};
use crate::sim::rng::Rng;

/// Between two attacks.
const PACE: Duration = Duration::from_millis(10);
/// Strangers who besiege a node.
const AT_ONCE: u32 = 20;
const CONNECT: Duration = Duration::from_millis(300);
/// How long an answer or a good-bye is waited for.
const PATIENCE: Duration = Duration::from_millis(50);
/// So long somebody stalls who stalls.
const STALL: Duration = Duration::from_secs(3);

/// What changes something where it is understood.
const CHANGING: [ApiKey; 15] = [
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::CreatePartitions,
    ApiKey::DeleteRecords,
    ApiKey::AlterConfigs,
    ApiKey::IncrementalAlterConfigs,
    ApiKey::ElectLeaders,
    ApiKey::InitProducerId,
    ApiKey::UnregisterBroker,
    // It creates the topic of the groups.
    ApiKey::FindCoordinator,
    ApiKey::JoinGroup,
    ApiKey::LeaveGroup,
    ApiKey::OffsetCommit,
    ApiKey::OffsetDelete,
    ApiKey::DeleteGroups,
];
/// In the place of a parameter of a path; none of them names anything.
const ODD: [&str; 8] = ["x", "-1", "99999999999999999999", "%00", "..%2f..", "%ff", "a%20b", "*"];
const BROKEN_JSON: [&str; 8] = ["", "[", "{\"a\":", "\u{feff}{}", "\"\\ud800\"", "NaN", "{}{}", "// {}"];
/// On the controller listener, where raft and everything else between nodes comes in.
const BETWEEN_NODES: [&str; 14] = [
    "/raft/append",
    "/raft/vote",
    "/raft/pre-vote",
    "/raft/transfer-leader",
    "/raft/snapshot",
    "/heartbeat",
    "/propose",
    "/suspect",
    "/watermarks",
    "/voters",
    "/transfer-leadership",
    "/admin/replicas",
    "/admin/delete-records",
    "/nowhere",
];

/// What it knows: requests as they should be, and where there is something to ask over HTTP.
pub struct Stranger {
    frames: Vec<(ApiKey, Vec<u8>)>,
    /// Method and path with its parameters in braces.
    routes: Vec<(String, String)>,
    attacks: AtomicU64,
    /// Of those, the ones on a connection that a node took.
    heard: AtomicU64,
}

impl Stranger {
    /// Asks a node what there is.
    pub async fn new(board: &Board) -> Self {
        let frames = golden("request").into_iter().map(|(api, _, frame)| (api, frame)).collect();
        let mut routes = Vec::new();
        for node in board.fleet.nodes().cycle() {
            if let Some((200, document)) = board.fleet.get(node, "/openapi.json").await {
                for (path, methods) in document["paths"].as_object().into_iter().flatten() {
                    let methods = methods.as_object().into_iter().flat_map(serde_json::Map::keys);
                    routes.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
                }
            }
            if !routes.is_empty() || board.is_stopped() {
                break;
            }
        }
        Self { frames, routes, attacks: AtomicU64::new(0), heard: AtomicU64::new(0) }
    }

    /// Until the clients are to stop.
    pub async fn work(self: Arc<Self>, board: Arc<Board>, mut rng: Rng) {
        let mut chance = SmallRng::seed_from_u64(rng.next_u64());
        while !board.is_stopped() {
            pause(&mut rng, PACE).await;
            let node = rng.within(1, u64::from(*board.fleet.nodes().end())) as u8;
            self.attack(&board, node, &mut chance).await;
        }
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (attacks, heard) = (count(&self.attacks), count(&self.heard));
        eprintln!("{:7.1} s  hostile: {attacks} attacks, {heard} on a connection", board.history.seconds());
    }

    /// So many attacks on one node, some at a time.
    pub async fn besiege(self: &Arc<Self>, board: &Arc<Board>, node: u8, attacks: u32, rng: &mut Rng) {
        let mut strangers = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (stranger, board) = (self.clone(), board.clone());
            let mut chance = SmallRng::seed_from_u64(rng.next_u64());
            strangers.spawn(async move {
                for _ in 0..attacks / AT_ONCE {
                    stranger.attack(&board, node, &mut chance).await;
                }
            });
        }
        while let Some(done) = strangers.join_next().await {
            done.expect("no stranger panics");
        }
    }

    /// One connection to one of a node's listeners.
    async fn attack(&self, board: &Board, node: u8, rng: &mut SmallRng) {
        let door = Door::ALL[rng.random_range(0..Door::ALL.len())];
        let bytes = match door {
            Door::Clients | Door::Replication => self.frames(rng),
            Door::Http => self.call(rng),
            Door::Controller => between_nodes(rng),
        };
        self.attacks.fetch_add(1, Ordering::Relaxed);
        let at = board.fleet.door(node, door);
        if rng.random_ratio(1, 50) {
            // It says half of it and then nothing, while others go on.
            tokio::spawn(async move { send(at, &bytes[..bytes.len() / 2], STALL).await });
        } else if send(at, &bytes, PATIENCE).await {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Some frames of the Kafka protocol that are nearly right, or none.
    fn frames(&self, rng: &mut SmallRng) -> Vec<u8> {
        if rng.random_ratio(1, 8) {
            return noise(rng);
        }
        let mut stream = Vec::new();
        for _ in 0..rng.random_range(1..5) {
            let (api, sample) = &self.frames[rng.random_range(0..self.frames.len())];
            let mut frame = match CHANGING.contains(api) {
                true => sample[..rng.random_range(1..sample.len())].to_vec(),
                false => mutate::bytes(sample, rng),
            };
            // No other call than the one that was chosen.
            let key = frame.len().min(2);
            frame[..key].copy_from_slice(&sample[..key]);
            let length = i32::try_from(frame.len()).unwrap_or(i32::MAX);
            let lies = rng.random_ratio(1, 20);
            stream.extend(if lies { rng.random::<i32>() } else { length }.to_be_bytes());
            stream.extend(frame);
            if lies {
                // What came after a lie might be taken for another call.
                break;
            }
        }
        stream
    }

    /// A call of the admin API about nothing that is there.
    fn call(&self, rng: &mut SmallRng) -> Vec<u8> {
        if rng.random_ratio(1, 8) || self.routes.is_empty() {
            return noise(rng);
        }
        let (method, path) = &self.routes[rng.random_range(0..self.routes.len())];
        let mut target = String::new();
        for (index, part) in path.split(['{', '}']).enumerate() {
            // Every second part is a name in braces.
            target.push_str(if index % 2 == 0 { part } else { ODD[rng.random_range(0..ODD.len())] });
        }
        http(method, &target, &body(rng), rng)
    }
}

fn between_nodes(rng: &mut SmallRng) -> Vec<u8> {
    if rng.random_ratio(1, 8) {
        return noise(rng);
    }
    let path = BETWEEN_NODES[rng.random_range(0..BETWEEN_NODES.len())];
    http("POST", path, &body(rng), rng)
}

/// A body that is no JSON, and hardly a message of raft.
fn body(rng: &mut SmallRng) -> Vec<u8> {
    match rng.random_range(0..4) {
        0 => noise(rng),
        1 => vec![b'['; rng.random_range(1..100_000)],
        _ => BROKEN_JSON[rng.random_range(0..BROKEN_JSON.len())].as_bytes().to_vec(),
    }
}

fn noise(rng: &mut SmallRng) -> Vec<u8> {
    (0..rng.random_range(1..2_000)).map(|_| rng.random()).collect()
}

/// A request, sometimes with a head that is broken.
fn http(method: &str, target: &str, body: &[u8], rng: &mut SmallRng) -> Vec<u8> {
    let length = if rng.random_ratio(1, 20) { body.len() + 1 } else { body.len() };
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    // The line with method and path stays: another path might be one that is there.
    let (line, fields) = head.split_at(head.find('\r').unwrap_or(head.len()));
    let fields =
        if rng.random_ratio(1, 4) { mutate::bytes(fields.as_bytes(), rng) } else { fields.as_bytes().to_vec() };
    [line.as_bytes(), &fields, body].concat()
}

/// Sends, and listens until the other side has ended or so much time has passed; whether there was a connection.
async fn send(at: SocketAddr, bytes: &[u8], patience: Duration) -> bool {
    let Ok(Ok(mut stream)) = tokio::time::timeout(CONNECT, TcpStream::connect(at)).await else { return false };
    let talk = async {
        stream.write_all(bytes).await?;
        let mut answer = [0; 4096];
        while stream.read(&mut answer).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(patience, talk).await;
    true
}
