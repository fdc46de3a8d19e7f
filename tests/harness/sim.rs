//! The simulation of the data plane: shipped roles, log, plan and rules over a simulated disk, network and clock.
//!
//! One thread, one seed, one order of events. After every event every invariant that it may touch is checked
//! (`sim/invariants`), and every event goes into the trace hash: same seed, same trace. Where to read: `World` here,
//! what a seed draws in `sim/swarm.rs`, what goes wrong in `sim/faults.rs`, what an operator does in `sim/operator.rs`, a
//! broker in `sim/node.rs`, what clients conclude in `sim/workload.rs`, planted bugs in `sim/flaws.rs`.

use std::collections::BTreeMap;

use highwater_data::replica::Replica;
use highwater_quorum::ImageVersion;
use highwater_wire::{BrokerId, Millis, TopicPartition};

pub mod answers;
pub mod book;
pub mod core;
pub mod deeds;
mod faults;
pub mod flaws;
pub mod gate;
pub mod gate_states;
pub mod invariants;
mod keeping;
pub mod lines;
pub mod marks;
pub mod message;
pub mod network;
pub mod node;
pub mod operator;
pub mod quorum;
pub mod rng;
pub mod run;
pub mod same;
pub mod schedule;
mod settling;
pub mod shrink;
pub mod swarm;
pub mod trace;
pub mod workload;
pub mod worlds;

use self::core::{Core, Counts, Event, Truth};
use self::invariants::{Violation, must};
use self::network::{Place, Way};
use self::node::{End, Node};
use self::operator::Operator;
use self::quorum::Quorum;
use self::rng::Rng;
use self::schedule::{Ledger, Schedule};
use self::swarm::{Shape, Swarm};
use self::trace::{Trace, Verbose};
use self::workload::Workload;

/// µs a produce may be overdue at a broker that runs (L2).
const OVERDUE_MAX: u64 = 2_000_000;
/// µs after a pause before anything can be called overdue.
const PAUSE_GRACE: u64 = 1_000_000;

/// A cluster, its clients, and everything between them.
pub struct World {
    pub core: Core,
    pub nodes: BTreeMap<BrokerId, Node>,
    pub quorum: Quorum,
    pub workload: Workload,
    /// Chooses what goes wrong.
    rng: Rng,
    operator: Operator,
    /// Members that lost data and are not back in the ISR yet.
    lossy: std::collections::BTreeSet<(TopicPartition, BrokerId)>,
    /// Partitions of which more is lost at once than is promised to survive.
    beyond: std::collections::BTreeSet<TopicPartition>,
    /// The metadata of which the admin API was last asked.
    questioned: ImageVersion,
}

impl World {
    /// A cluster about to be formed. `_shape` is what the swarm was drawn for; it stands in the call so that a test
    /// reads as a sentence.
    pub fn new(seed: u64, _shape: Shape, swarm: Swarm) -> Self {
        Self::traced(seed, swarm, Verbose::No)
    }

    /// The same with the lines of its trace.
    pub fn traced(seed: u64, swarm: Swarm, verbose: Verbose) -> Self {
        Self::with(Core::new(seed, swarm, Trace::new(verbose)), &[])
    }

    /// The same, which writes down what is drawn.
    pub fn recorded(seed: u64, swarm: Swarm, verbose: Verbose) -> Self {
        let mut core = Core::new(seed, swarm, Trace::new(verbose));
        core.ledger = Ledger::recording();
        Self::with(core, &[])
    }

    /// One in which what is written is done, and nothing else.
    pub fn scheduled(schedule: &Schedule, verbose: Verbose) -> Self {
        let mut core = Core::new(schedule.seed, schedule.swarm.clone(), Trace::new(verbose));
        core.ledger = Ledger::scripted(schedule);
        if schedule.still {
            core.rng.hold_still();
            core.net.hold_still();
        }
        let mut world = Self::with(core, &schedule.absent);
        for entry in schedule.events.iter().filter(|entry| entry.join.is_none()) {
            world.core.at(entry.at_us, Event::Deed(Box::new(entry.clone())));
        }
        world
    }

    fn with(mut core: Core, absent: &[BrokerId]) -> Self {
        let ids: Vec<BrokerId> = (1..=core.swarm.brokers).map(BrokerId).filter(|id| !absent.contains(id)).collect();
        let mut nodes = BTreeMap::new();
        for &id in &ids {
            core.truth.insert(id, Truth { incarnation: None, machine_up: true, paused: false });
            nodes.insert(id, Node::new(id));
            core.after(1_000 * id.0 as u64, Event::Start { broker: id });
        }
        let rng = core.rng.fork(4);
        let operator = Operator::new(core.rng.fork(6));
        let mut quorum = Quorum::new(core.rng.fork(5), core.swarm.session_ms);
        quorum.form(&mut core);
        let workload = Workload::new(&mut core);
        let mut world = Self {
            core,
            nodes,
            quorum,
            workload,
            rng,
            operator,
            lossy: Default::default(),
            beyond: Default::default(),
            questioned: ImageVersion(0),
        };
        world.schedule_faults();
        world.schedule_acts();
        world
    }

    /// Lets this much time pass. Stops early at a violation.
    pub fn run_for(&mut self, time: Millis) {
        let until = self.core.now + time.0 * 1_000;
        while self.core.violation.is_none() {
            let Some(event) = self.core.pop(until) else { break };
            self.step(event);
        }
        if self.core.violation.is_none() {
            self.core.now = until;
        }
    }

    /// Lets time pass until the condition holds; a violation of liveness if it does not in time.
    pub fn run_until(&mut self, holds: impl Fn(&Self) -> Result<(), String>, within: Millis) {
        let until = self.core.now + within.0 * 1_000;
        let mut missing = String::new();
        while self.core.violation.is_none() && self.core.now < until {
            match holds(self) {
                Ok(()) => return,
                Err(what) => missing = what,
            }
            self.run_for(Millis(200));
        }
        let verdict =
            must(self.core.violation.is_some(), "L1", || format!("{within} after everything was healed: {missing}"));
        self.core.check(verdict);
    }

    pub fn violation(&self) -> Option<&Violation> {
        self.core.violation.as_ref()
    }

    pub fn counts(&self) -> Counts {
        Counts { faults: self.core.counts.faults + self.core.net.faults, ..self.core.counts }
    }

    pub fn trace_hash(&self) -> u64 {
        self.core.trace.hash()
    }

    fn step(&mut self, event: Event) {
        self.core.trace.event(self.core.now, code_of(&event));
        match event {
            Event::Deliver(packet) => {
                if !self.core.net.is_heard(&packet) {
                    return;
                }
                match packet.receiver() {
                    Place::Broker(id) => self.at_node(BrokerId(id), Event::Deliver(packet)),
                    Place::Client(id) => {
                        self.core
                            .trace
                            .line(self.core.now, || format!("{}→c{id} {}", packet.sender(), packet.message.describe()));
                        self.workload.on_packet(&mut self.core, id, *packet);
                    }
                    Place::Controller => {
                        self.core
                            .trace
                            .line(self.core.now, || format!("{}→ctl {}", packet.sender(), packet.message.describe()));
                        self.quorum.on_packet(&mut self.core, *packet);
                    }
                }
            }
            Event::Broke { link, generation } => {
                if self.core.net.generation(link) == generation {
                    self.core.net.reset(link);
                }
                match link.from {
                    Place::Broker(id) => self.at_node(BrokerId(id), Event::Broke { link, generation }),
                    Place::Client(id) => self.workload.on_broken(&mut self.core, id, link),
                    Place::Controller => {}
                }
            }
            Event::Node { broker, .. } | Event::Image { broker, .. } => self.at_node(broker, event),
            Event::Start { broker } => {
                if let Some(node) = self.nodes.get_mut(&broker) {
                    node.start(&mut self.core);
                    let image = self.quorum.image.clone();
                    node::lifecycle::publish(&mut self.core, std::iter::once(broker), &image);
                }
            }
            Event::Resume { broker } => self.resume(broker),
            Event::Client { client, timer } => self.workload.on_timer(&mut self.core, client, timer),
            Event::Controller(timer) => self.quorum.on_timer(&mut self.core, timer),
            Event::Fault(fault) => self.fault(fault),
            Event::Act(act) => self.act(act),
            Event::Deed(entry) => self.written(entry),
        }
        self.give_producer_ids();
        self.strike_joins();
        self.note_unclean_elections();
        self.note_lowered_promises();
        self.question_the_admin();
    }

    fn give_producer_ids(&mut self) {
        while let Some(client) = self.core.wants_producer_id.pop() {
            if let Some(id) = self.quorum.producer_id(&mut self.core) {
                self.workload.got_producer_id(client, id);
            }
        }
    }

    /// An event for a broker: it waits while the broker is paused, and is lost where none runs.
    fn at_node(&mut self, id: BrokerId, event: Event) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.paused {
            node.inbox.push(event);
            return;
        }
        if let Event::Image { image, .. } = event {
            let cut = self.core.net.is_cut(Place::Controller, Place::Broker(id.0));
            if node.images_held || cut {
                if node.waiting_image.as_ref().is_none_or(|waiting| waiting.version < image.version) {
                    node.waiting_image = Some(image);
                }
            } else if let Some(process) = &mut node.process {
                process.on_image(&mut self.core, image);
            }
            return self.after_node(id);
        }
        let Some(process) = &mut node.process else {
            return self.at_dead_node(id, event);
        };
        match event {
            Event::Deliver(packet) => {
                self.core.trace.mix(packet.message.code());
                self.core.trace.line(self.core.now, || {
                    let late = if packet.straggler { " (late)" } else { "" };
                    format!("{}→b{id} {}{late}", packet.sender(), packet.message.describe())
                });
                process.on_packet(&mut self.core, *packet);
            }
            Event::Broke { link, generation } => process.on_broken(&mut self.core, link, generation),
            Event::Node { process: number, timer, .. } => {
                if process.number == number {
                    process.on_timer(&mut self.core, timer);
                }
            }
            _ => unreachable!("not for a node"),
        }
        self.after_node(id);
    }

    /// A machine that runs refuses connections to a dead process; one without power says nothing.
    fn at_dead_node(&mut self, id: BrokerId, event: Event) {
        let machine_up = self.core.truth.get(&id).is_some_and(|t| t.machine_up);
        if let Event::Deliver(packet) = event
            && packet.way == Way::There
            && machine_up
        {
            let delay = self.core.swarm.weather.delay;
            self.core.after(delay, Event::Broke { link: packet.link, generation: packet.generation });
        }
    }

    /// What an event of a broker may lead to: its end.
    fn after_node(&mut self, id: BrokerId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(process) = &mut node.process else { return };
        if process.storage_failed {
            self.core.trace.line(self.core.now, || format!("b{id} dies of its disk"));
            node.end(&mut self.core, End::Killed, None);
            self.comes_back(id);
        } else if process.may_stop {
            let end = if process.stops_cleanly {
                process.close(&mut self.core);
                End::Stopped
            } else {
                End::Killed
            };
            self.core.trace.line(self.core.now, || format!("b{id} stops: {end:?}"));
            node.end(&mut self.core, end, None);
            self.comes_back(id);
        } else {
            // What waited while the machine stood still is dealt with first.
            let grace = node.went_on_at + PAUSE_GRACE;
            let overdue = if self.core.now < grace { 0 } else { process.most_overdue(self.core.now) };
            let verdict = must(overdue <= OVERDUE_MAX, "L2", || {
                format!("{id}: a produce is unanswered {} ms after its deadline", overdue / 1_000)
            });
            self.core.check(verdict);
        }
    }

    /// A broker that ended by itself is started again.
    fn comes_back(&mut self, id: BrokerId) {
        let written = self.nodes.get_mut(&id).and_then(|node| node.back_us.take());
        let delay = written.unwrap_or_else(|| self.rng.around(self.core.swarm.restart_ms * 1_000));
        self.core.ledger.note_return(id, delay);
        self.core.after(delay, Event::Start { broker: id });
    }

    fn resume(&mut self, id: BrokerId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !node.paused {
            return;
        }
        node.paused = false;
        node.went_on_at = self.core.now;
        if let Some(truth) = self.core.truth.get_mut(&id) {
            truth.paused = false;
        }
        self.core.trace.line(self.core.now, || format!("b{id} goes on"));
        for event in std::mem::take(&mut node.inbox) {
            self.core.after(0, event);
        }
    }

    /// One hosted replica, for tests and scans.
    pub fn replica(&self, broker: BrokerId, at: TopicPartition) -> Option<&Replica<highwater_data::disk::SimDisk>> {
        Some(&self.nodes.get(&broker)?.process.as_ref()?.hosted.get(&at)?.replica)
    }
}

fn code_of(event: &Event) -> u64 {
    match event {
        Event::Deliver(packet) => 1 ^ packet.sender().code() << 8 ^ packet.receiver().code() << 24,
        Event::Broke { link, .. } => 2 ^ link.from.code() << 8 ^ link.to.code() << 24,
        Event::Node { broker, .. } => 3 ^ (broker.0 as u64) << 8,
        Event::Start { broker } => 4 ^ (broker.0 as u64) << 8,
        Event::Resume { broker } => 5 ^ (broker.0 as u64) << 8,
        Event::Image { broker, image } => 6 ^ (broker.0 as u64) << 8 ^ image.version.0 << 24,
        Event::Client { client, .. } => 7 ^ u64::from(*client) << 8,
        Event::Controller(_) => 8,
        Event::Fault(_) => 9,
        Event::Act(_) => 10,
        Event::Deed(_) => 11,
    }
}
