//! After the last fault: everything heals in time, every partition is read from each of its replicas, and the nodes agree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::board::{ANSWER, Board, Known, Place, connect};
use super::fleet::{HEALTH, REPLICAS, SESSION};
use super::history::Event;
use super::workload::admin::{KEY, OWN_PREFIX};
use super::workload::foreign::Foreign;
use super::workload::hostile::Stranger;
use super::workload::readers::{Fetched, fetch};
use super::workload::stock;
use crate::client::{EARLIEST, LATEST};
use crate::sim::rng::Rng;

/// P8: twice the session timeout and ten seconds.
pub const HEAL_LIMIT: Duration = Duration::from_secs(2 * SESSION.as_secs() + 10);
/// For what then hangs: the run says what it saw, and goes on to the scan.
const GIVE_UP: Duration = Duration::from_secs(90);
/// For reading everything once.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);
/// The same where nothing healed: what can be read is read at once.
const HURT_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// Attacks on a node after which its memory is looked at, twice.
const ATTACKS: u32 = 500;
/// What the allocator may keep of those: 16 KiB for each, where the least that a connection reads into is as much.
const KEPT_BYTES_MAX: u64 = ATTACKS as u64 * (16 << 10);

/// Waits until all partitions are in sync and those that producers use take records again. The time counts from `began`.
/// Whether it came to that.
pub async fn heal(board: &Board, began: Instant) -> bool {
    let mut why;
    loop {
        why = not_healed(board).await;
        if why.is_none() || began.elapsed() > GIVE_UP {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    let elapsed = u64::try_from(began.elapsed().as_millis()).expect("not that long");
    let ms = why.is_none().then_some(elapsed);
    let limit_ms = u64::try_from(HEAL_LIMIT.as_millis()).expect("seconds");
    board.history.write(Event::Healed { ms, limit_ms, why: why.unwrap_or_default() });
    ms.is_some()
}

/// What is not in sync, or not known to be; `None`: all is well.
pub async fn not_healed(board: &Board) -> Option<String> {
    for node in board.fleet.nodes() {
        if !board.fleet.is_ready(node).await {
            return Some(format!("node {node} is not ready"));
        }
        // Asked for: what clients were told may be of a while ago.
        let health = board.fleet.get(node, HEALTH).await;
        let Some((200, health)) = health else { return Some(format!("node {node} tells no health")) };
        if health["healthy"] != true {
            return Some(format!("node {node}: {health}"));
        }
    }
    for (place, Known { leader, isr, .. }) in board.written() {
        if leader < 0 || isr < usize::from(REPLICAS) {
            return Some(format!("{} is led by {leader}, {isr} in sync", place.name()));
        }
    }
    None
}

/// Reads everything from each node as leader with our client, then with the stock ones.
pub async fn drain(board: &Arc<Board>, librdkafka: bool, foreign: &[Arc<Foreign>], healed: bool) {
    let limit = if healed { DRAIN_LIMIT } else { HURT_LIMIT };
    let places: Vec<Place> = board.written().into_iter().map(|(place, _)| place).collect();
    if librdkafka {
        let (shared, list) = (board.clone(), places.clone());
        let ends = tokio::task::spawn_blocking(move || stock::drain(&shared, "drain-librdkafka", &list, limit));
        note_ends(board, "drain-librdkafka", &places, &ends.await.expect("the drain does not panic"));
    }
    let mut all_ends: BTreeMap<Place, i64> = BTreeMap::new();
    for leader in board.fleet.nodes() {
        let holds = |place: &&Place| board.known(place).is_some_and(|known| known.is_replica(leader));
        let places: Vec<Place> = places.iter().filter(holds).cloned().collect();
        let moved = move_leaders(board, &places, leader, limit).await;
        if let Err(why) = moved {
            board.history.write(Event::Broken { node: leader, what: format!("cannot be made leader: {why}") });
        }
        let by = format!("drain-{leader}");
        let until = Instant::now() + limit;
        let mut ends = BTreeMap::new();
        for place in &places {
            if let Some(end) = scan(board, &by, place, until).await {
                ends.insert(place.clone(), end);
            }
        }
        note_ends(board, &by, &places, &ends);
        all_ends.extend(ends);
    }
    for client in foreign {
        let (client, ends) = (client.clone(), all_ends.clone());
        let by = client.reader_name();
        let read = tokio::task::spawn_blocking(move || client.drain(&ends, limit)).await;
        note_ends(board, &by, &places, &read.expect("the drain does not panic"));
    }
}

fn note_ends(board: &Board, by: &str, places: &[Place], ends: &BTreeMap<Place, i64>) {
    for place in places {
        match ends.get(place) {
            Some(end) => board.history.write(Event::Drained { by: by.to_owned(), at: place.name(), end: *end }),
            None => {
                let what = format!("{by}: {} could not be read to its end", place.name());
                board.history.write(Event::Broken { node: 0, what });
            }
        }
    }
}

/// Reads a partition from its first to its last record; its end.
async fn scan(board: &Board, by: &str, place: &Place, until: Instant) -> Option<i64> {
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let Some((_, address)) = board.leader(place) else { continue };
        let Some(mut client) = connect(address).await else { continue };
        let bounds = async {
            let first = client.list_offset(&place.topic, place.partition, EARLIEST).await.ok()?;
            let last = client.list_offset(&place.topic, place.partition, LATEST).await.ok()?;
            (first.error_code == 0 && last.error_code == 0).then_some((first.offset, last.offset))
        };
        let Ok(Some((first, end))) = tokio::time::timeout(ANSWER, bounds).await else { continue };
        let (by, at) = (by.to_owned(), place.name());
        // Nothing is ever trimmed here: a log that begins later has lost its beginning.
        board.history.write(Event::Assign { by: by.clone(), at: at.clone(), offset: first.min(0) });
        let mut next = first;
        while next < end && Instant::now() < until {
            match fetch(&mut client, place, next, -1, ANSWER).await {
                Fetched::Records { records, .. } => {
                    if let Some((last, _)) = records.last() {
                        next = last + 1;
                        board.history.write(Event::Poll { by: by.clone(), at: at.clone(), records });
                    }
                }
                Fetched::Refused(_) | Fetched::Nothing => break,
            }
        }
        if next >= end {
            return Some(next);
        }
    }
    None
}

/// Makes one node lead these, and waits until it does.
async fn move_leaders(board: &Board, places: &[Place], leader: u8, limit: Duration) -> Result<(), String> {
    let until = Instant::now() + limit;
    let mut last = None;
    while Instant::now() < until {
        let elsewhere: Vec<Value> = places
            .iter()
            .filter(|place| board.known(place).is_none_or(|known| known.leader != i32::from(leader)))
            .map(|p| json!({ "topic_name": *p.topic, "partition_id": p.partition, "leader_id": leader }))
            .collect();
        if elsewhere.is_empty() {
            return Ok(());
        }
        let body = json!({ "election_type": "DESIGNATED", "partitions": elsewhere });
        last = board.fleet.post(1, "/v3/clusters/-/elections", &body, Duration::from_secs(10)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Err(format!("{last:?}"))
}

/// What each node knows of topics and their settings.
pub async fn compare_metadata(board: &Board) {
    for node in board.fleet.nodes() {
        let Some((200, body)) = board.fleet.get(node, "/v3/clusters/-/topics").await else {
            board.history.write(Event::Broken { node, what: "does not list its topics".to_owned() });
            continue;
        };
        let name = |topic: &Value| topic["topic_name"].as_str().map(str::to_owned);
        let topics: Vec<String> = body["data"].as_array().into_iter().flatten().filter_map(name).collect();
        for topic in topics.iter().filter(|topic| topic.starts_with(OWN_PREFIX)) {
            let path = format!("/v3/clusters/-/topics/{topic}/configs/{KEY}");
            if let Some((200, config)) = board.fleet.get(node, &path).await {
                let value = config["value"].as_str().unwrap_or_default().to_owned();
                let settings = BTreeMap::from([(KEY.to_owned(), value)]);
                board.history.write(Event::Settings { node, topic: topic.clone(), settings });
            }
        }
        board.history.write(Event::Topics { node, topics });
    }
}

/// Whether a node keeps memory of what strangers send: it has had its share by now, and may not grow by more of the same.
pub async fn besiege(board: &Arc<Board>, stranger: &Arc<Stranger>, mut rng: Rng) {
    for node in board.fleet.nodes() {
        stranger.besiege(board, node, ATTACKS, &mut rng).await;
        let before = board.fleet.memory(node);
        stranger.besiege(board, node, ATTACKS, &mut rng).await;
        let (Some(before), Some(after)) = (before, board.fleet.memory(node)) else { continue };
        eprintln!(
            "{:7.1} s  node {node}: {} KiB, {} KiB after {ATTACKS} attacks more",
            board.history.seconds(),
            before >> 10,
            after >> 10
        );
        if after > before + KEPT_BYTES_MAX {
            let what = format!("{ATTACKS} attacks left {} bytes more memory in use", after - before);
            board.history.write(Event::Broken { node, what });
        }
    }
}
