//! Producers on our own wire client: plain ones that never send twice, idempotent ones that send until they know, and some
//! with acks=1.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use highwater_wire::{ErrorCode, ProducerEpoch, ProducerId};

use super::super::board::{ANSWER, Board, Place, connect};
use super::super::history::{Event, Outcome};
use super::{pause, payload};
use crate::client::{Client, batch, idempotent_batch, produce_request};
use crate::sim::rng::Rng;

/// Between two sends of one producer.
const PACE: Duration = Duration::from_millis(30);
/// Before another try.
const AGAIN: Duration = Duration::from_millis(20);
/// `timeout.ms` of a produce.
const TIMEOUT_MS: i32 = 2_000;

/// A connection to whoever led last.
#[derive(Default)]
struct Link {
    node: u8,
    client: Option<Client>,
}

impl Link {
    /// A connection to the leader, an old one if there is one.
    async fn leader_of(&mut self, board: &Board, place: &Place) -> Option<&mut Client> {
        let (node, address) = board.leader(place)?;
        if self.node != node || self.client.is_none() {
            self.node = node;
            self.client = connect(address).await;
        }
        self.client.as_mut()
    }
}

/// What a broker said to one batch.
enum Told {
    At(i64),
    Refused(ErrorCode),
    Nothing(String),
}

async fn produce(link: &mut Link, board: &Board, place: &Place, acks: i16, bytes: bytes::Bytes) -> Told {
    let Some(client) = link.leader_of(board, place).await else { return Told::Nothing("no connection".to_owned()) };
    let mut request = produce_request(&place.topic, place.partition, acks, Some(bytes));
    request.timeout_ms = TIMEOUT_MS;
    let why = match tokio::time::timeout(ANSWER, client.produce_as(9, request)).await {
        Ok(Ok(answer)) if answer.error_code == 0 => return Told::At(answer.base_offset),
        Ok(Ok(answer)) => return Told::Refused(ErrorCode::from_code(answer.error_code)),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    link.client = None;
    Told::Nothing(why)
}

/// Whether a batch that got this at its first try is not in the log and never will be (H4).
const fn is_definite(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::NotEnoughReplicas
            | ErrorCode::MessageTooLarge
            | ErrorCode::CorruptMessage
            | ErrorCode::InvalidRecord
            | ErrorCode::UnknownTopicOrPartition
    )
}

/// ms since 1970, as producers stamp their records: retention would take older ones.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292 million")
}

/// Never sends anything twice. `slot`: acks=all to that slot; `None`: acks=1.
pub async fn plain(board: Arc<Board>, name: String, slot: Option<u8>, mut rng: Rng) {
    let mut link = Link::default();
    let acks = if slot.is_some() { -1 } else { 1 };
    while !board.is_stopped() {
        pause(&mut rng, PACE).await;
        let place = match slot {
            Some(slot) => board.slot(slot),
            None => board.weak(rng.below(2) as usize),
        };
        let values = board.history.next_values(rng.within(1, 4));
        let op = board.history.next_op();
        let texts: Vec<String> = values.iter().map(|value| payload(*value)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let bytes = batch(now(), &texts);
        let count = values.len();
        board.count(&place, count);
        let (by, at) = (name.clone(), place.name());
        board.history.write(Event::Send { op, by, at, values, once: true, ordered: true });
        // Without a connection nothing was sent.
        let connected = link.leader_of(&board, &place).await.is_some();
        if let Some(slot) = slot {
            board.produces[usize::from(slot)].notify_waiters();
        }
        let told = match connected {
            true => produce(&mut link, &board, &place, acks, bytes).await,
            false => Told::Nothing("no connection".to_owned()),
        };
        let (outcome, why) = match told {
            Told::At(offset) => {
                board.history.write(Event::Sent { op, first: 0, count, offset });
                continue;
            }
            Told::Refused(error) if is_definite(error) => (Outcome::Failed, error.name().to_owned()),
            Told::Refused(error) => (Outcome::Unknown, error.name().to_owned()),
            Told::Nothing(why) => (if connected { Outcome::Unknown } else { Outcome::Failed }, why),
        };
        board.history.write(Event::Unsent { op, first: 0, count, outcome, why });
        tokio::time::sleep(AGAIN).await;
    }
}

/// Sends each batch until it knows what became of it; the broker keeps one copy.
pub async fn idempotent(board: Arc<Board>, name: String, slot: u8, mut rng: Rng) {
    let mut link = Link::default();
    let mut identity: Option<(ProducerId, ProducerEpoch)> = None;
    // The next sequence belongs to a partition: with a new topic in the slot it begins at 0.
    let mut at: Option<(Place, i32)> = None;
    while !board.is_stopped() {
        pause(&mut rng, PACE).await;
        let place = board.slot(slot);
        let Some(producer) = identity else {
            identity = new_identity(&board, &mut rng).await;
            at = None;
            continue;
        };
        let sequence = at.take().filter(|(known, _)| *known == place).map_or(0, |(_, next)| next);
        let values = board.history.next_values(rng.within(1, 4));
        let op = board.history.next_op();
        let texts: Vec<String> = values.iter().map(|value| payload(*value)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let bytes = idempotent_batch(producer, sequence, now(), &texts);
        let count = values.len();
        board.count(&place, count);
        let by = name.clone();
        board.history.write(Event::Send { op, by, at: place.name(), values, once: true, ordered: true });
        board.produces[usize::from(slot)].notify_waiters();
        let why = loop {
            match produce(&mut link, &board, &place, -1, bytes.clone()).await {
                Told::At(offset) => {
                    board.history.write(Event::Sent { op, first: 0, count, offset });
                    at = Some((place, sequence + count as i32));
                    break None;
                }
                Told::Refused(error) if !error.is_retriable() => break Some(error.name().to_owned()),
                Told::Refused(error) if board.is_stopped() => break Some(error.name().to_owned()),
                Told::Nothing(why) if board.is_stopped() => break Some(why),
                Told::Refused(_) | Told::Nothing(_) => tokio::time::sleep(AGAIN).await,
            }
        };
        if let Some(why) = why {
            if !board.is_stopped() {
                board.producer_resets.fetch_add(1, Ordering::Relaxed);
            }
            board.history.write(Event::Unsent { op, first: 0, count, outcome: Outcome::Unknown, why });
            identity = None;
        }
    }
}

async fn new_identity(board: &Board, rng: &mut Rng) -> Option<(ProducerId, ProducerEpoch)> {
    let node = rng.within(1, u64::from(*board.fleet.nodes().end())) as u8;
    let mut client = connect(board.fleet.address(node)).await?;
    tokio::time::timeout(ANSWER, client.init_producer_id()).await.ok()?.ok()
}
