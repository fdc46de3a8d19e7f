//! One seed from beginning to end, and what came of it.

use highwater_wire::Millis;

use super::World;
use super::core::Counts;
use super::flaws::{self, Flaw};
use super::invariants::Violation;
use super::schedule::Schedule;
use super::swarm::{ANY, Shape, Swarm};
use super::trace::Verbose;

/// How seeds are run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub shape: Shape,
    /// Simulated time with faults.
    pub time: Millis,
    pub flaw: Option<Flaw>,
    pub verbose: Verbose,
    /// Heal, and demand that everything comes back.
    pub settle: bool,
}

impl Plan {
    /// What CI runs: any cluster, a minute of trouble, then everything must come back.
    pub fn usual() -> Self {
        Self { shape: ANY, time: Millis(60_000), flaw: None, verbose: Verbose::No, settle: true }
    }
}

/// What came of a seed.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub seed: u64,
    pub violation: Option<Violation>,
    pub counts: Counts,
    pub simulated: Millis,
    pub events: u64,
    pub trace_hash: u64,
}

/// Runs one seed.
pub fn run_seed(seed: u64, plan: &Plan) -> Outcome {
    flaws::plant(plan.flaw);
    let swarm = Swarm::draw_for(seed, plan.shape);
    let world = World::traced(seed, swarm, plan.verbose);
    world.core.trace.line(0, || format!("seed {seed}: {:?}", world.core.swarm));
    run_world(world, seed, plan)
}

/// The same, and [`super::schedule::record`] then says what was done.
pub fn record_seed(seed: u64, plan: &Plan) -> Outcome {
    flaws::plant(plan.flaw);
    run_world(World::recorded(seed, Swarm::draw_for(seed, plan.shape), plan.verbose), seed, plan)
}

/// Does what is written; of the plan, flaw, verbosity and settling count.
pub fn run_schedule(schedule: &Schedule, plan: &Plan) -> Outcome {
    flaws::plant(plan.flaw);
    let world = World::scheduled(schedule, plan.verbose);
    run_world(world, schedule.seed, &Plan { time: Millis(schedule.trouble_us.div_ceil(1_000)), ..plan.clone() })
}

fn run_world(mut world: World, seed: u64, plan: &Plan) -> Outcome {
    world.run_for(plan.time);
    if plan.settle {
        world.heal();
        let patience = world.patience();
        world.run_until(World::isr_is_full, patience);
        world.scan();
    }
    flaws::plant(None);
    Outcome {
        seed,
        violation: world.violation().cloned(),
        counts: world.counts(),
        simulated: Millis(world.core.now / 1_000),
        events: world.core.trace.events(),
        trace_hash: world.trace_hash(),
    }
}

/// The sum over many seeds.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub seeds: u64,
    pub simulated_ms: u64,
    pub events: u64,
    pub counts: Counts,
    pub violations: Vec<(u64, Violation)>,
    /// Independent of the order in which seeds end.
    pub trace_hash: u64,
}

impl Totals {
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.simulated_ms += outcome.simulated.0;
        self.events += outcome.events;
        let (sum, one) = (&mut self.counts, &outcome.counts);
        sum.faults += one.faults;
        sum.leader_changes += one.leader_changes;
        sum.isr_changes += one.isr_changes;
        sum.acked += one.acked;
        sum.read += one.read;
        sum.truncations += one.truncations;
        sum.elr_elections += one.elr_elections;
        sum.diverging += one.diverging;
        sum.topics += one.topics;
        sum.acts += one.acts;
        sum.unclean_elections += one.unclean_elections;
        sum.lossy_elections += one.lossy_elections;
        sum.deletes_answered += one.deletes_answered;
        sum.losses_told += one.losses_told;
        sum.marks.add(&one.marks);
        let mixed = (outcome.trace_hash ^ outcome.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.trace_hash = self.trace_hash.wrapping_add(mixed ^ (mixed >> 31));
        if let Some(violation) = &outcome.violation {
            self.violations.push((outcome.seed, violation.clone()));
        }
    }

    pub fn merge(&mut self, other: Self) {
        let hash = self.trace_hash.wrapping_add(other.trace_hash);
        let mut violations = std::mem::take(&mut self.violations);
        violations.extend(other.violations);
        violations.sort_by_key(|(seed, _)| *seed);
        let outcome = Outcome {
            seed: 0,
            violation: None,
            counts: other.counts,
            simulated: Millis(other.simulated_ms),
            events: other.events,
            trace_hash: 0,
        };
        self.add(&outcome);
        self.seeds = self.seeds - 1 + other.seeds;
        self.trace_hash = hash;
        self.violations = violations;
    }
}
