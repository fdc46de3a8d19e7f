//! What all clients of a run share: which partitions are written to, who leads them, when to stop.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use highwater_wire::request::MetadataRequest;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::fleet::Fleet;
use super::history::{Event, History};
use super::plan::Fault;
use crate::client::Client;

/// Topics written to at a time, and partitions of each.
pub const TOPICS: u8 = 2;
pub const PARTITIONS: i32 = 2;
/// Partitions that are written to with acks=all at a time. A producer belongs to a slot, whatever topic is in it.
pub const SLOTS: u8 = TOPICS * PARTITIONS as u8;

/// How the names of topics begin that are written to with acks=all, and with acks=1.
pub const KEPT_PREFIX: &str = "q";
pub const WEAK_PREFIX: &str = "w";

/// How long a client waits for an answer before it gives up on the connection.
pub const ANSWER: Duration = Duration::from_millis(2_500);
const CONNECT: Duration = Duration::from_millis(1_000);
/// Between two looks at the metadata of a node.
const LOOK: Duration = Duration::from_millis(150);

/// A topic and one of its partitions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub topic: Arc<str>,
    pub partition: i32,
}

impl Place {
    /// Its name in the history.
    pub fn name(&self) -> String {
        format!("{}/{}", self.topic, self.partition)
    }
}

/// What metadata says of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// −1: nobody.
    pub leader: i32,
    pub epoch: i32,
    pub isr: usize,
    /// Bit n: node n holds a replica.
    replicas: u32,
}

impl Known {
    pub const fn is_replica(&self, node: u8) -> bool {
        self.replicas >> node & 1 == 1
    }
}

/// That a fault began, for whoever reads the logs.
#[derive(Debug)]
pub struct Mark {
    pub fault: Fault,
    /// Whose process, disk or links.
    pub nodes: Vec<u8>,
    /// How long the logs were at that moment, bytes, from node 1 on.
    pub log_ends: Vec<u64>,
}

pub struct Board {
    pub fleet: Arc<Fleet>,
    pub history: Arc<History>,
    /// By slot.
    slots: Mutex<Vec<Place>>,
    weak: Mutex<Vec<Place>>,
    known: Mutex<HashMap<Place, Known>>,
    /// Values sent to each topic.
    sent: Mutex<BTreeMap<Arc<str>, u64>>,
    marks: Mutex<Vec<Mark>>,
    stopped: AtomicBool,
    /// A produce is about to be sent to this slot.
    pub produces: [Notify; SLOTS as usize],
    /// Idempotent producers that had to begin anew.
    pub producer_resets: AtomicU64,
}

impl Board {
    pub fn new(fleet: Arc<Fleet>, history: Arc<History>) -> Self {
        Self {
            fleet,
            history,
            slots: Mutex::default(),
            weak: Mutex::default(),
            known: Mutex::default(),
            sent: Mutex::default(),
            marks: Mutex::default(),
            stopped: AtomicBool::new(false),
            produces: Default::default(),
            producer_resets: AtomicU64::new(0),
        }
    }

    /// The partition that producers of a slot write to.
    pub fn slot(&self, slot: u8) -> Place {
        self.slots.lock()[usize::from(slot)].clone()
    }

    /// The partition with acks=1 of this number.
    pub fn weak(&self, index: usize) -> Place {
        let weak = self.weak.lock();
        weak[index % weak.len()].clone()
    }

    /// All that is written to now.
    pub fn live(&self) -> Vec<Place> {
        self.slots.lock().iter().chain(self.weak.lock().iter()).cloned().collect()
    }

    /// Puts a topic into the slots of its number, or, without one, under those with acks=1.
    pub fn open(&self, topic: &str, number: Option<u8>) {
        let topic: Arc<str> = topic.into();
        let places = (0..PARTITIONS).map(|partition| Place { topic: topic.clone(), partition });
        match number {
            None => *self.weak.lock() = places.collect(),
            Some(number) => {
                let mut slots = self.slots.lock();
                let first = usize::from(number) * PARTITIONS as usize;
                let end = first + PARTITIONS as usize;
                if slots.len() < end {
                    slots.extend(places);
                } else {
                    slots.splice(first..end, places);
                }
            }
        }
    }

    /// Counts values on their way to a topic.
    pub fn count(&self, place: &Place, values: usize) {
        *self.sent.lock().entry(place.topic.clone()).or_default() += values as u64;
    }

    pub fn sent_to(&self, topic: &str) -> u64 {
        self.sent.lock().get(topic).copied().unwrap_or_default()
    }

    pub fn known(&self, place: &Place) -> Option<Known> {
        self.known.lock().get(place).copied()
    }

    /// All partitions that were ever written to, in order. They are never deleted.
    pub fn written(&self) -> Vec<(Place, Known)> {
        let known = self.known.lock();
        let mut all: Vec<(Place, Known)> =
            known.iter().filter(|(place, _)| is_written(place)).map(|(place, known)| (place.clone(), *known)).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    /// The address of the leader, if there is one.
    pub fn leader(&self, place: &Place) -> Option<(u8, SocketAddr)> {
        let leader = u8::try_from(self.known(place)?.leader).ok().filter(|id| self.fleet.nodes().contains(id))?;
        Some((leader, self.fleet.address(leader)))
    }

    /// Notes that a fault begins.
    pub fn mark(&self, fault: Fault, nodes: &[u8]) {
        let log_ends = self.fleet.nodes().map(|node| self.fleet.log_end(node)).collect();
        self.marks.lock().push(Mark { fault, nodes: nodes.to_vec(), log_ends });
    }

    /// The faults that began, one after the other.
    pub fn marks(&self) -> MutexGuard<'_, Vec<Mark>> {
        self.marks.lock()
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn learn(&self, place: Place, told: Known) {
        let mut known = self.known.lock();
        let before = known.get(&place).copied();
        // A node that is behind says nothing new.
        if before.is_some_and(|before| before.epoch > told.epoch) {
            return;
        }
        // A name that was deleted and is used again begins with epoch 0: judged is what is never deleted.
        let is_new = before.is_none_or(|before| (before.leader, before.epoch) != (told.leader, told.epoch));
        if is_new && is_written(&place) {
            self.history.write(Event::Leader { at: place.name(), leader: told.leader, epoch: told.epoch });
        }
        known.insert(place, told);
    }
}

fn is_written(place: &Place) -> bool {
    place.topic.starts_with(KEPT_PREFIX) || place.topic.starts_with(WEAK_PREFIX)
}

/// A connection within the patience of a client under faults.
pub async fn connect(address: SocketAddr) -> Option<Client> {
    tokio::time::timeout(CONNECT, Client::connect(address)).await.ok()?.ok()
}

/// Asks one node again and again who leads what, until `done`.
pub async fn watch_metadata(board: Arc<Board>, node: u8, done: Arc<AtomicBool>) {
    let mut link = None;
    while !done.load(Ordering::Relaxed) {
        let mut client = match link.take() {
            Some(client) => client,
            None => match connect(board.fleet.address(node)).await {
                Some(client) => client,
                None => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            },
        };
        let mut request = MetadataRequest::default();
        request.topics = None;
        request.allow_auto_topic_creation = false;
        if let Ok(Ok(answer)) = tokio::time::timeout(CONNECT, client.ask(12, request)).await {
            for topic in answer.topics.into_iter().filter(|topic| topic.error_code == 0) {
                let Some(name) = topic.name else { continue };
                let name: Arc<str> = name.as_str().into();
                for partition in topic.partitions {
                    let place = Place { topic: name.clone(), partition: partition.partition_index };
                    let isr = partition.isr_nodes.len();
                    let (leader, epoch) = (partition.leader_id, partition.leader_epoch);
                    let replicas = partition.replica_nodes.iter().fold(0, |bits, id| bits | 1 << (id & 31));
                    board.learn(place, Known { leader, epoch, isr, replicas });
                }
            }
            link = Some(client);
        }
        tokio::time::sleep(LOOK).await;
    }
}
