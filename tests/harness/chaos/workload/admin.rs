//! One client that changes the metadata: topics that nobody writes to come, go and are configured; topics that are
//! written to are replaced by new ones when they are full.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::board::{Board, KEPT_PREFIX, PARTITIONS, Place, TOPICS, WEAK_PREFIX, connect};
use super::super::fleet::REPLICAS;
use super::super::history::{Ask, Event, Outcome, Promise};
use super::pause;
use crate::sim::rng::Rng;

/// Between two changes.
const PACE: Duration = Duration::from_millis(1_500);
/// How long a change may take.
const LIMIT: Duration = Duration::from_secs(6);
/// Topics of its own that it keeps.
const OWN: usize = 4;
/// How the names of its own topics begin.
pub const OWN_PREFIX: &str = "a-";
/// The setting it changes.
pub const KEY: &str = "retention.ms";

/// Creates the topics of the run, and waits until somebody leads them.
pub async fn open_topics(board: &Board) {
    for number in 0..TOPICS {
        open(board, &format!("{KEPT_PREFIX}{number}-0"), Some(number), 1).await;
    }
    open(board, &format!("{WEAK_PREFIX}-0"), None, 1).await;
}

/// Creates a topic for producers, through `node` at first, until it is there.
async fn open(board: &Board, topic: &str, number: Option<u8>, node: u8) {
    let body = json!({
        "topic_name": topic,
        "partitions_count": PARTITIONS,
        "replication_factor": REPLICAS,
        "configs": [{ "name": "min.insync.replicas", "value": "2" }],
    });
    let mut node = node;
    let is_led = |partition| {
        let place = Place { topic: topic.into(), partition };
        board.known(&place).is_some_and(|known| known.leader >= 0)
    };
    while !(0..PARTITIONS).all(is_led) {
        if board.is_stopped() {
            return;
        }
        // There already: an answer was lost, or its leaders are not known yet.
        board.fleet.post(node, "/v3/clusters/-/topics", &body, LIMIT).await;
        node = node % board.fleet.nodes().end() + 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let promise = if number.is_some() { Promise::Kept } else { Promise::ReadIsKept };
    board.history.write(Event::Topic { topic: topic.to_owned(), partitions: PARTITIONS, promise });
    board.open(topic, number);
}

/// Replaces topics when so many values were sent to them.
pub async fn rotate(board: Arc<Board>, values_max: u64) {
    let mut generations = [0; TOPICS as usize];
    while !board.is_stopped() {
        for number in 0..TOPICS {
            let topic = board.slot(number * PARTITIONS as u8).topic;
            if board.sent_to(&topic) >= values_max {
                let generation = &mut generations[usize::from(number)];
                *generation += 1;
                open(&board, &format!("{KEPT_PREFIX}{number}-{generation}"), Some(number), 1 + number % REPLICAS).await;
                board.history.write(Event::Retired { topic: topic.to_string() });
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What an answer says of a change. A 4xx is a refusal before anything happened, but "it is there already" and "it is not
/// there" may speak of the first copy of a request that a node forwarded twice, as in Kafka.
fn outcome(answer: Option<&(u16, Value)>, done: u16) -> (Outcome, String) {
    match answer {
        Some((status, _)) if *status == done => (Outcome::Ok, String::new()),
        Some((status @ (401..=403 | 405..=499), body)) => (Outcome::Failed, format!("{status}: {body}")),
        Some((status, body)) => (Outcome::Unknown, format!("{status}: {body}")),
        None => (Outcome::Unknown, "no answer".to_owned()),
    }
}

/// Creates, configures and deletes topics that nobody writes to.
pub async fn admin(board: Arc<Board>, mut rng: Rng) {
    let mut own: Vec<String> = Vec::new();
    let mut free: Vec<String> = Vec::new();
    let mut named = 0;
    while !board.is_stopped() {
        pause(&mut rng, PACE).await;
        let node = rng.within(1, u64::from(*board.fleet.nodes().end())) as u8;
        let pick = if own.is_empty() { 0 } else { rng.below(own.len() as u64) as usize };
        let choice = if own.len() < OWN { 0 } else { 1 + rng.below(3) };
        let op = board.history.next_op();
        match choice {
            0 => {
                // A name that was deleted for certain comes back now and then, as another topic.
                let topic = match free.pop() {
                    Some(name) if rng.chance(500) => name,
                    _ => {
                        named += 1;
                        format!("{OWN_PREFIX}{named}")
                    }
                };
                if create(&board, op, &topic, node, rng.chance(500)).await == Outcome::Ok {
                    own.push(topic);
                }
            }
            1 => {
                let topic = own.swap_remove(pick);
                if delete(&board, op, &topic, node, rng.chance(500)).await == Outcome::Ok {
                    free.push(topic);
                }
            }
            _ => {
                let value = (3_600_000 + rng.below(1_000_000_000)).to_string();
                if configure(&board, op, &own[pick], node, value).await == Outcome::Unknown {
                    // It may happen at any time from now on: nothing more is asked of this topic.
                    own.swap_remove(pick);
                }
            }
        }
    }
}

fn ask(board: &Board, op: u64, topic: &str, ask: Ask) {
    board.history.write(Event::Asked { op, topic: topic.to_owned(), ask });
}

fn answered(board: &Board, op: u64, (outcome, why): (Outcome, String)) -> Outcome {
    board.history.write(Event::Answered { op, outcome, why });
    outcome
}

/// What a Kafka error code says of a change; `None`: no answer.
fn outcome_of_code(code: Option<i16>) -> (Outcome, String) {
    let name = |code: i16| highwater_wire::ErrorCode::from_code(code).name().to_owned();
    match code {
        Some(0) => (Outcome::Ok, String::new()),
        // Refused for what it asks for; anything else may still happen, or has (see `outcome`).
        Some(code @ (17 | 37 | 38 | 40 | 42)) => (Outcome::Failed, name(code)),
        Some(code) => (Outcome::Unknown, name(code)),
        None => (Outcome::Unknown, "no answer".to_owned()),
    }
}

async fn create(board: &Board, op: u64, topic: &str, node: u8, over_kafka: bool) -> Outcome {
    ask(board, op, topic, Ask::Create);
    let told = if over_kafka {
        let create = async {
            let mut client = connect(board.fleet.address(node)).await?;
            client.create_topic(topic, 1, REPLICAS.into(), &[]).await.ok().map(|(code, _)| code)
        };
        outcome_of_code(tokio::time::timeout(LIMIT, create).await.ok().flatten())
    } else {
        let body = json!({ "topic_name": topic, "partitions_count": 1, "replication_factor": REPLICAS });
        outcome(board.fleet.post(node, "/v3/clusters/-/topics", &body, LIMIT).await.as_ref(), 201)
    };
    answered(board, op, told)
}

async fn delete(board: &Board, op: u64, topic: &str, node: u8, over_kafka: bool) -> Outcome {
    ask(board, op, topic, Ask::Delete);
    let told = if over_kafka {
        let delete = async {
            let mut client = connect(board.fleet.address(node)).await?;
            client.delete_topic(topic).await.ok()
        };
        outcome_of_code(tokio::time::timeout(LIMIT, delete).await.ok().flatten())
    } else {
        let url = board.fleet.url(node, &format!("/v3/clusters/-/topics/{topic}"));
        let answer = board.fleet.http.delete(url).timeout(LIMIT).send().await.ok();
        outcome(answer.map(|answer| (answer.status().as_u16(), Value::Null)).as_ref(), 204)
    };
    answered(board, op, told)
}

async fn configure(board: &Board, op: u64, topic: &str, node: u8, value: String) -> Outcome {
    ask(board, op, topic, Ask::Configure { key: KEY.to_owned(), value: value.clone() });
    let url = board.fleet.url(node, &format!("/v3/clusters/-/topics/{topic}/configs/{KEY}"));
    let answer = board.fleet.http.put(url).json(&json!({ "value": value })).timeout(LIMIT).send().await.ok();
    let told = outcome(answer.map(|answer| (answer.status().as_u16(), Value::Null)).as_ref(), 204);
    answered(board, op, told)
}
