//! What all parts of one run share: disks, processes, cuts, the history of proposals, and the first violation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::sim::{Ambient, EntryId, SimDisk, SimNode};
use highwater_quorum::{Answer, Command, QuorumError};
use highwater_wire::{BrokerId, DirectoryId, Timestamp, TopicId};
use parking_lot::Mutex;

use crate::marks::{Mark, Marks};
use crate::rng::Rng;
use crate::swarm::Swarm;
use crate::trace::{Trace, Verbose};

/// How a proposal ended for the one who made it.
#[derive(Debug, Clone)]
pub enum Told {
    Acked(Answer, u64),
    Refused,
    /// Nothing was proposed.
    NotProposed,
    /// Perhaps applied.
    Unknown,
}

/// A proposal, from the moment it was made.
#[derive(Debug, Clone)]
pub struct Proposed {
    pub by: u32,
    pub at: Duration,
    pub command: Command,
    pub told: Option<Told>,
}

/// What a run adds up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub proposed: u64,
    pub acked: u64,
    pub refused: u64,
    pub unknown: u64,
    pub exchanges: u64,
    pub duplicated: u64,
    pub late: u64,
    pub boots: u64,
    pub lost_writes: u64,
    pub leader_changes: u64,
    pub troubles: BTreeMap<String, u64>,
    pub marks: Marks,
}

/// What a dead process leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// A machine that refuses connections.
    Process,
    /// A machine that says nothing.
    Power,
}

/// One machine.
pub struct Machine {
    pub disk: SimDisk,
    pub boots: u64,
    pub down: Option<Down>,
    pub process: Option<Arc<SimNode>>,
    /// To end in order.
    pub stop: Arc<tokio::sync::Notify>,
}

/// The part of the world that processes and the clockwork share.
pub struct Shared {
    pub seed: u64,
    pub swarm: Swarm,
    pub trace: Trace,
    pub machines: BTreeMap<u32, Machine>,
    /// Ordered pairs that do not hear each other, with how often they were cut.
    pub cut: BTreeMap<(u32, u32), u32>,
    /// Votes granted, per member: the term, and to whom. What a disk must not forget.
    pub granted: BTreeMap<(BrokerId, DirectoryId), BTreeMap<u64, BrokerId>>,
    /// The last snapshot that a member said it had taken over.
    pub installed: BTreeMap<(BrokerId, DirectoryId), EntryId>,
    pub proposed: Vec<Proposed>,
    /// Topics that their creator was told of, and blocks of producer ids handed out, with the first of each.
    pub created: Vec<TopicId>,
    pub blocks: Vec<(i64, i64)>,
    /// The highest index that anybody was told of.
    pub acked: u64,
    /// Disks that were taken out of their machines.
    pub graves: Vec<SimDisk>,
    /// No more proposals: the cluster comes to rest.
    pub resting: bool,
    /// The newest time in a command: each has its own, so that no two commands are the same.
    stamped: i64,
    pub violation: Option<(&'static str, String)>,
    pub counts: Counts,
}

pub type World = Arc<Mutex<Shared>>;

thread_local! {
    static CHANCE: RefCell<Rng> = RefCell::new(Rng::new(0));
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// When the simulated world began, by its wall clock.
const EPOCH_MS: i64 = 1_700_000_000_000;

/// Time since the beginning. All nodes read the same clock.
pub fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_else(|| NOW.get())
}

pub fn set_now(now: Duration) {
    NOW.set(now);
}

fn clock() -> Timestamp {
    Timestamp(EPOCH_MS + i64::try_from(now().as_millis()).unwrap_or(0))
}

fn chance() -> u64 {
    CHANCE.with_borrow_mut(Rng::next_u64)
}

/// Puts the simulated clock and chance in the place of the real ones, on this thread.
pub fn take_over(seed: u64) {
    CHANCE.set(Rng::new(seed).fork(2));
    set_now(Duration::ZERO);
    highwater_quorum::sim::simulate(Some(Ambient { clock, chance }));
}

pub fn new(seed: u64, swarm: Swarm, verbose: Verbose) -> World {
    let rng = Rng::new(seed).fork(3);
    let machines = (1..=swarm.nodes()).map(|node| {
        let disk = SimDisk::new(rng.fork(u64::from(node)).next_u64(), swarm.disk.clone());
        (node, Machine { disk, boots: 0, down: None, process: None, stop: Arc::default() })
    });
    let machines = machines.collect();
    Arc::new(Mutex::new(Shared {
        seed,
        swarm,
        trace: Trace::new(verbose),
        machines,
        cut: BTreeMap::new(),
        granted: BTreeMap::new(),
        installed: BTreeMap::new(),
        proposed: Vec::new(),
        created: Vec::new(),
        blocks: Vec::new(),
        acked: 0,
        graves: Vec::new(),
        resting: false,
        stamped: 0,
        violation: None,
        counts: Counts::default(),
    }))
}

impl Shared {
    /// Adds an event to the trace: a number for its kind, what it is about, and a line for people.
    pub fn note(&mut self, kind: u64, facts: &[u64], line: impl FnOnce() -> String) {
        let at = u64::try_from(now().as_micros()).unwrap_or(u64::MAX);
        self.trace.event(at, kind);
        facts.iter().for_each(|fact| self.trace.mix(*fact));
        self.trace.line(at, line);
    }

    /// Counts something that must happen often.
    pub fn hit(&mut self, mark: Mark) {
        self.counts.marks.hit(mark);
    }

    /// The first one counts.
    pub fn violate(&mut self, rule: &'static str, text: String) {
        self.note(99, &[], || format!("VIOLATION {rule}: {text}"));
        self.violation.get_or_insert((rule, text));
    }

    /// A time for a command, in microseconds, that no other command has.
    pub fn stamp(&mut self) -> Timestamp {
        self.stamped = (self.stamped + 1).max(i64::try_from(now().as_micros()).unwrap_or(0));
        Timestamp(self.stamped)
    }

    pub fn is_cut(&self, from: u32, to: u32) -> bool {
        self.cut.get(&(from, to)).is_some_and(|times| *times > 0)
    }

    /// A proposal begins; returns its number.
    pub fn proposes(&mut self, by: u32, command: Command) -> usize {
        self.counts.proposed += 1;
        self.proposed.push(Proposed { by, at: now(), command, told: None });
        self.proposed.len() - 1
    }

    /// How it ended.
    pub fn told(&mut self, number: usize, result: Result<(Answer, u64), QuorumError>) {
        let told = match result {
            Ok((answer, index)) => {
                self.counts.acked += 1;
                self.acked = self.acked.max(index);
                Told::Acked(answer, index)
            }
            Err(QuorumError::Refused(_)) => {
                self.counts.refused += 1;
                Told::Refused
            }
            Err(QuorumError::NoLeader { .. }) => Told::NotProposed,
            Err(QuorumError::TimedOut { .. } | QuorumError::Stopped(_)) => {
                self.counts.unknown += 1;
                Told::Unknown
            }
        };
        let fact = if let Told::Acked(_, index) = &told { *index } else { 0 };
        let shown = self.proposed[number].clone();
        self.note(20, &[number as u64, fact], || {
            format!("n{} is told {told:?} of #{number} {}", shown.by, short(&shown.command))
        });
        self.proposed[number].told = Some(told);
    }
}

/// A command in few words.
pub fn short(command: &Command) -> String {
    let text = format!("{command:?}");
    text.chars().take(160).collect()
}
