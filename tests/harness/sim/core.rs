//! What every part of the world shares: the clock, the queue of events, the network, the book and the trace.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_data::disk::SimDisk;
use highwater_data::log::SyncJob;
use highwater_data::replica::message::Now;
use highwater_quorum::MetadataImage;
use highwater_wire::{BrokerId, IncarnationId, Millis, Timestamp, TopicPartition};

use super::book::Book;
use super::invariants::{Verdict, Violation};
use super::marks::{Mark, Marks};
use super::message::{Call, Message};
use super::network::{Fate, Link, Network, Packet, Way};
use super::rng::Rng;
use super::schedule::Ledger;
use super::swarm::Swarm;
use super::trace::Trace;

/// The wall clock of time 0.
const EPOCH_MS: i64 = 1_800_000_000_000;

/// Something that happens at a time.
pub enum Event {
    Deliver(Box<Packet<Message>>),
    /// The dialling side learns that its connection is gone.
    Broke {
        link: Link,
        generation: u64,
    },
    /// For one process of a broker; another process never sees it.
    Node {
        broker: BrokerId,
        process: u64,
        timer: NodeTimer,
    },
    /// A broker that is down comes up.
    Start {
        broker: BrokerId,
    },
    /// A paused broker goes on.
    Resume {
        broker: BrokerId,
    },
    Image {
        broker: BrokerId,
        image: Arc<MetadataImage>,
    },
    Client {
        client: u32,
        timer: ClientTimer,
    },
    Controller(ControllerTimer),
    Fault(Fault),
    Act(super::operator::Act),
    /// Of a schedule that is run again.
    Deed(Box<super::schedule::Entry>),
}

/// Timers inside a broker's process.
pub enum NodeTimer {
    Register,
    Heartbeat,
    Tick(TopicPartition),
    Sync(TopicPartition, Box<SyncJob<SimDisk>>),
    /// The fetch loop to this leader looks for something to ask.
    Kick(BrokerId),
    /// A parked fetch session has news, or its time is up.
    Session(Link),
    SessionDue {
        link: Link,
        call: Call,
    },
    /// No answer came.
    CallDue {
        link: Link,
        call: Call,
    },
    /// ISR proposals wait to be sent.
    Propose,
    Checkpoint,
    /// A log start is to be written down (D33).
    SaveStart(TopicPartition, highwater_wire::Offset),
    /// Files that are no longer part of a log.
    Erase(Vec<std::path::PathBuf>),
    /// The orderly stop waits no longer.
    StopDue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientTimer {
    Next,
    CallDue(Call),
    Resend,
}

#[derive(Debug, Clone)]
pub enum ControllerTimer {
    /// Sessions are looked at.
    Sessions,
    /// A suspicion was probed.
    Probed {
        broker: BrokerId,
        epoch: highwater_wire::BrokerEpoch,
        suspected: Millis,
    },
    /// A request that was late.
    Late(Box<Packet<Message>>),
    /// An answer that was late.
    Answer(Box<Packet<Message>>),
    /// A raft leader is there again.
    Back,
    Preferred,
}

/// A kind of trouble whose time has come; the end of trouble that lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill,
    Power,
    Wipe,
    Stop,
    Pause,
    Cut,
    Mend {
        from: super::network::Place,
        to: super::network::Place,
    },
    Isolate,
    Suspicion,
    /// A part of a script.
    End {
        broker: BrokerId,
        end: super::node::End,
        restart_after: u64,
    },
    ControllerOut,
    ControllerChange,
    HoldImages,
    ReleaseImages(BrokerId),
    Reset,
    DiskError,
    Preferred,
    /// A part of a strike: what follows some time after a follower asked to join, at `at` (µs).
    Struck {
        join: Join,
        at: u64,
        blow: Blow,
    },
    Double,
    DeleteTopic,
    /// Topics that are missing are made.
    MakeTopics,
}

/// What a strike does later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    End {
        broker: BrokerId,
        end: super::node::End,
        restart_after: u64,
    },
    /// One round of preferred elections.
    Elect,
}

/// Counted over a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub faults: u64,
    pub leader_changes: u64,
    pub isr_changes: u64,
    pub acked: u64,
    pub read: u64,
    pub truncations: u64,
    pub elr_elections: u64,
    pub diverging: u64,
    pub topics: u64,
    /// What the operator did.
    pub acts: u64,
    pub unclean_elections: u64,
    /// … after which committed records were missing.
    pub lossy_elections: u64,
    pub deletes_answered: u64,
    /// Losses written into the history.
    pub losses_told: u64,
    /// Rare states.
    pub marks: Marks,
}

/// A leader wants a follower in the ISR and tells the controller now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    pub leader: BrokerId,
    pub joiner: BrokerId,
}

/// What is really so, whatever anybody believes: for proofs of death (D7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truth {
    /// The process that runs there, if one does.
    pub incarnation: Option<IncarnationId>,
    /// The machine has power: a dead process there refuses connections.
    pub machine_up: bool,
    pub paused: bool,
}

/// Shared by all parts of the world.
pub struct Core {
    /// µs
    pub now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    pub net: Network<Message>,
    pub trace: Trace,
    pub book: Book,
    pub counts: Counts,
    pub swarm: Swarm,
    pub rng: Rng,
    /// Of every running broker, what it has been told: where clients look for leaders.
    pub images: BTreeMap<BrokerId, Arc<MetadataImage>>,
    pub truth: BTreeMap<BrokerId, Truth>,
    pub violation: Option<Violation>,
    /// Producers that ask for an id.
    pub wants_producer_id: Vec<u32>,
    /// Proposed since somebody last looked: a time to strike.
    pub joins: Vec<Join>,
    /// Writes down what is done, or says that it is done as it was written down.
    pub ledger: Ledger,
    calls: Call,
    processes: u64,
    /// No faults any more.
    pub healed: bool,
}

impl Core {
    pub fn new(seed: u64, swarm: Swarm, trace: Trace) -> Self {
        let rng = Rng::new(seed);
        let net = Network::new(rng.fork(2), swarm.weather.clone());
        Self {
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            net,
            trace,
            book: Book::default(),
            counts: Counts::default(),
            swarm,
            rng: rng.fork(3),
            images: BTreeMap::new(),
            truth: BTreeMap::new(),
            violation: None,
            wants_producer_id: Vec::new(),
            joins: Vec::new(),
            ledger: Ledger::default(),
            calls: 0,
            processes: 0,
            healed: false,
        }
    }

    pub fn clock(&self) -> Now {
        Now { mono: Millis(self.now / 1_000), wall: self.wall() }
    }

    pub fn wall(&self) -> Timestamp {
        Timestamp(EPOCH_MS + (self.now / 1_000) as i64)
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((time.max(self.now), self.sequence), event);
    }

    pub fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    /// The next event, unless it lies beyond `until`; the clock goes there.
    pub fn pop(&mut self, until: u64) -> Option<Event> {
        let (&(time, _), _) = self.queue.first_key_value()?;
        if time > until {
            return None;
        }
        let ((time, _), event) = self.queue.pop_first()?;
        self.now = time;
        Some(event)
    }

    pub fn call(&mut self) -> Call {
        self.calls += 1;
        self.calls
    }

    pub fn process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    /// Sends a request on the current connection of a link.
    pub fn request(&mut self, link: Link, message: Message) {
        let generation = self.net.generation(link);
        self.send(link, Way::There, generation, message);
    }

    pub fn send(&mut self, link: Link, way: Way, generation: u64, message: Message) {
        let repeatable = way == Way::There && message.is_repeatable();
        match self.net.send(self.now, link, way, generation, message, repeatable) {
            Fate::Deliver { at, packet, again } => {
                self.at(at, Event::Deliver(Box::new(packet)));
                if let Some((at, packet)) = again {
                    self.at(at, Event::Deliver(Box::new(packet)));
                }
            }
            Fate::Broke { notice_at, link, generation } => {
                self.trace.line(self.now, || format!("  {}–{} breaks", link.from, link.to));
                self.at(notice_at, Event::Broke { link, generation });
            }
            Fate::Held => {}
        }
    }

    /// Notes the first violation; the run ends with the event.
    pub fn check(&mut self, verdict: Verdict) {
        if let Err(violation) = verdict
            && self.violation.is_none()
        {
            let text = violation.to_string();
            self.trace.line(self.now, || format!("VIOLATION {text}"));
            self.violation = Some(violation);
        }
    }

    /// A rare state was reached.
    pub fn mark(&mut self, mark: Mark) {
        self.counts.marks.hit(mark);
    }

    pub fn fault(&mut self, what: impl FnOnce() -> String) {
        self.counts.faults += 1;
        self.trace.line(self.now, || format!("FAULT {}", what()));
    }
}
