//! One seed: troubles, then peace; within a stated time the cluster comes to rest, and its history is what was told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use highwater_quorum::flaws::{Flaw, plant};

use crate::checks::Checks;
use crate::faults::Faults;
use crate::host;
use crate::net::host_name;
use crate::swarm::Swarm;
use crate::trace::Verbose;
use crate::world::{self, Counts, set_now, take_over};

/// Step of the simulated clock.
const TICK: Duration = Duration::from_millis(1);
/// Time to come to rest once the troubles are over: one leader, all have applied the same, lost voters are replaced.
pub const REST: Duration = Duration::from_secs(40);

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of troubles.
    pub seconds: u64,
    pub flaw: Option<Flaw>,
    pub verbose: Verbose,
}

impl Default for Plan {
    fn default() -> Self {
        Self { seconds: 30, flaw: None, verbose: Verbose::No }
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub seed: u64,
    pub simulated: Duration,
    pub hash: u64,
    pub events: u64,
    pub entries: u64,
    pub counts: Counts,
    /// Rule and text.
    pub violation: Option<(String, String)>,
}

/// Steps of the clock made in this process: whoever spins keeps simulated time from passing.
pub static STEPS: AtomicU64 = AtomicU64::new(0);

/// Runs one seed on this thread.
pub fn run_seed(seed: u64, plan: &Plan) -> Outcome {
    take_over(seed);
    plant(plan.flaw);
    let swarm = Swarm::draw(seed);
    let world = world::new(seed, swarm.clone(), plan.verbose);
    world.lock().note(0, &[seed], || format!("seed {seed}: {swarm:?}"));
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .enable_random_order()
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(plan.seconds + 3_600))
        .min_message_latency(Duration::from_millis(swarm.latency_ms.0))
        .max_message_latency(Duration::from_millis(swarm.latency_ms.1))
        .tcp_capacity(65_536)
        .build();
    for node in 1..=swarm.nodes() {
        let world = world.clone();
        sim.host(host_name(node), move || host::process(world.clone(), node));
    }
    let mut checks = Checks::default();
    let mut faults = Faults::new(seed, &world.lock());
    let end = Duration::from_secs(plan.seconds);
    let mut restless = String::new();
    loop {
        if let Err(error) = sim.step() {
            world.lock().violate("no process panics", error.to_string());
        }
        let now = sim.elapsed();
        set_now(now);
        STEPS.fetch_add(1, Ordering::Relaxed);
        {
            let mut world = world.lock();
            checks.look(&mut world, now);
            if world.violation.is_some() {
                break;
            }
        }
        if now < end {
            faults.step(&mut sim, &world, &checks, now);
            continue;
        }
        if !std::mem::replace(&mut world.lock().resting, true) {
            faults.heal(&mut sim, &world);
            world.lock().note(34, &[], || "peace".to_owned());
        }
        faults.notice_ended(&mut sim, &world, &checks, now);
        faults.step(&mut sim, &world, &checks, now);
        // Whoever waits for an answer has had it by then.
        if now > end + Duration::from_secs(6) && now.as_millis().is_multiple_of(20) {
            match checks.at_rest(&world.lock()) {
                Ok(()) => break,
                Err(why) => restless = why,
            }
        }
        if now > end + REST {
            world.lock().violate("rest after troubles", restless.clone());
            break;
        }
    }
    let simulated = sim.elapsed();
    let mut shared = world.lock();
    if shared.violation.is_none() {
        checks.check_history(&mut shared);
    }
    let processes: Vec<_> = shared.machines.values_mut().map(|machine| machine.process.take()).collect();
    let outcome = Outcome {
        seed,
        simulated,
        hash: shared.trace.hash(),
        events: shared.trace.events(),
        entries: checks.shadow.len(),
        counts: shared.counts.clone(),
        violation: shared.violation.clone().map(|(rule, text)| (rule.to_owned(), text)),
    };
    drop(shared);
    drop(processes);
    drop(sim);
    plant(None);
    highwater_quorum::sim::simulate(None);
    outcome
}
