//! The data plane under simulated trouble: safe while it lasts, back to normal after it, the same every time, and no
//! planted bug goes unnoticed. The long runs are `cargo run --release -p highwater-tests --bin sim -- run --seeds 0..500`.

use highwater_quorum::planner::judge_restart;
use highwater_tests::sim::World;
use highwater_tests::sim::flaws::{Flaw, hunt, plant};
use highwater_tests::sim::run::{Plan, run_seed};
use highwater_tests::sim::shrink::Regression;
use highwater_tests::sim::swarm::{ANY, Shape, Swarm, THREE_BROKERS, THREE_CALM_BROKERS, UNATTENDED};
use highwater_tests::sim::{gate, gate_states, worlds};
use highwater_wire::Millis;

/// Simulated seconds a seed, in a build that is not optimised.
const SHORT: Millis = Millis(15_000);

fn for_each_seed(seeds: std::ops::Range<u64>, run: impl Fn(u64) + Sync) {
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    run(seed);
                }
            });
        }
    });
}

fn assert_fine(seed: u64, plan: &Plan) {
    let outcome = run_seed(seed, plan);
    if let Some(violation) = outcome.violation {
        panic!(
            "seed {seed}: {violation}\nsee it: cargo run --release -p highwater-tests --bin sim -- replay {seed} --seconds {}",
            plan.time.0 / 1_000
        );
    }
}

#[test]
fn acknowledged_records_survive_crashes_and_partitions() {
    let plan = Plan { time: SHORT, ..Plan::usual() };
    for_each_seed(0..80, |seed| assert_fine(seed, &plan));
}

#[test]
fn three_brokers_come_back_whole_after_trouble() {
    for_each_seed(0..20, |seed| {
        let mut world = World::new(seed, THREE_BROKERS, Swarm::draw_for(seed, THREE_BROKERS));
        world.run_for(SHORT);
        world.heal();
        let patience = world.patience();
        world.run_until(World::isr_is_full, patience);
        world.scan();
        assert_eq!(world.violation(), None, "seed {seed}");
    });
}

#[test]
fn without_faults_the_isr_never_changes() {
    for_each_seed(0..10, |seed| {
        let plan = Plan { shape: THREE_CALM_BROKERS, time: SHORT, ..Plan::usual() };
        let outcome = run_seed(seed, &plan);
        assert_eq!(outcome.violation, None, "seed {seed}");
        assert_eq!(outcome.counts.leader_changes, 0, "seed {seed}: L5");
        assert_eq!(outcome.counts.isr_changes, 0, "seed {seed}: L5");
        assert!(outcome.counts.acked > 10, "seed {seed}: {:?}", outcome.counts);
    });
}

#[test]
fn seeds_that_once_failed_pass() {
    let lines = include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#'));
    let seeds: Vec<(u64, Shape)> = lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let seed = words.next().and_then(|word| word.parse().ok());
            let shape = match words.next() {
                Some("any") => ANY,
                Some("unattended") => UNATTENDED,
                other => panic!("{line:?}: a draw called {other:?}"),
            };
            (seed.unwrap_or_else(|| panic!("{line:?} begins with no seed")), shape)
        })
        .collect();
    for_each_seed(0..seeds.len() as u64, |index| {
        let (seed, shape) = seeds[index as usize];
        assert_fine(seed, &Plan { shape, ..Plan::usual() });
    });
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for_each_seed(1_000..1_006, |seed| {
        let plan = Plan { time: SHORT, ..Plan::usual() };
        let (first, second) = (run_seed(seed, &plan), run_seed(seed, &plan));
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert_eq!(first.events, second.events, "seed {seed}");
        assert_ne!(first.trace_hash, run_seed(seed + 100, &plan).trace_hash);
    });
}

/// A few of the planted bugs; `sim -- flaws` has them all.
#[test]
fn planted_bugs_are_caught() {
    let plan = Plan { time: Millis(30_000), ..Plan::usual() };
    for flaw in [Flaw::CommitsBelowMinIsr, Flaw::IgnoresDivergence, Flaw::RegistrationKeepsIsr] {
        let caught = hunt(flaw, 0..150, &plan);
        assert!(caught.is_some(), "{flaw:?} went unnoticed");
    }
}

/// The files that `sim -- shrink` wrote: a few events each, with which a planted bug breaks a rule, or a fault of the product
/// once did.
#[test]
fn short_schedules_break_their_rule_with_the_planted_bug_and_none_without() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let files = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    files.sort();
    let wrong = std::sync::Mutex::new(Vec::new());
    for_each_seed(0..files.len() as u64, |index| {
        let path = &files[index as usize];
        let regression = Regression::read(path).unwrap();
        let found = regression.flaw().unwrap().map(|flaw| regression.run(Some(flaw)));
        let name = path.display();
        // Without optimisation more of the product's own assertions are on, and one of them may be the first to notice.
        let same = |rule: &str| rule == regression.rule || (cfg!(debug_assertions) && rule == "assertion");
        if let Some(found) = found.filter(|found| !found.as_ref().is_some_and(|(rule, _)| same(rule))) {
            let again =
                format!("make it anew: sim -- shrink --flaw {}", regression.flaw.as_deref().unwrap_or_default());
            wrong.lock().unwrap().push(format!("{name}: {} is not broken, but {found:?}; {again}", regression.rule));
        }
        if let Some(broken) = regression.run(None) {
            wrong.lock().unwrap().push(format!("{name}: broken without a flaw: {broken:?}"));
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `sim -- worlds` goes deeper.
#[test]
fn no_schedule_of_a_small_world_breaks_a_rule_and_a_rule_left_out_is_found() {
    for setting in worlds::usual() {
        let explored = worlds::explore(&worlds::Setting { depth: 5, ..setting });
        assert!(explored.counterexample.is_none(), "{}: {:#?}", setting.name, explored.counterexample);
    }
    let setting = worlds::variants()[0];
    let (steps, violation) = worlds::explore(&setting).counterexample.expect("a log cut to its watermark is found");
    assert_eq!(violation.rule, "T4", "{steps:#?}");
}

/// What became of asking the restart gate in many states.
#[derive(Debug, Default)]
struct Asked {
    states: usize,
    harmless: usize,
    harmful: usize,
    safe: usize,
    /// Harmless, and not called safe.
    false_alarms: Vec<String>,
    /// Called safe, and harmful.
    wrong: Vec<String>,
}

/// Asks of every broker in states drawn from these seeds, and finds out by restarting it.
fn ask_the_gate(seeds: std::ops::Range<u64>) -> Asked {
    let mut asked = Asked::default();
    for seed in seeds {
        let (image, reality) = gate_states::draw(seed);
        asked.states += 1;
        let Some(leader) = reality.voters.first().copied() else { continue };
        let facts = reality.facts(leader);
        for broker in image.brokers.keys() {
            let verdict = judge_restart(&image, &facts, *broker);
            match (verdict.is_safe(), gate::harm(&image, &reality, *broker)) {
                (safe, None) => {
                    asked.harmless += 1;
                    asked.safe += usize::from(safe);
                    if !safe {
                        asked.false_alarms.push(format!("seed {seed}, broker {broker}: {:?}", verdict.blocking));
                    }
                }
                (true, Some(harm)) => asked.wrong.push(format!("seed {seed}, broker {broker}: {harm}")),
                (false, Some(_)) => asked.harmful += 1,
            }
        }
    }
    asked
}

/// Issue 4, §2: "safe" is never followed by harm, and given in at least 95 % of the harmless states.
#[test]
fn a_restart_called_safe_does_no_harm_and_a_harmless_one_is_called_safe() {
    let asked = ask_the_gate(0..1_000);
    println!(
        "{} states: {} harmless restarts, {} of them called safe, {} harmful",
        asked.states, asked.harmless, asked.safe, asked.harmful
    );
    assert!(asked.wrong.is_empty(), "called safe and harmful: {:#?}", asked.wrong);
    assert!(asked.harmless > 500 && asked.harmful > 500, "too few of a kind to say anything");
    assert!(asked.safe * 100 >= asked.harmless * 95, "false alarms: {:#?}", asked.false_alarms);
}

#[test]
fn a_gate_that_forgets_a_rule_is_caught() {
    for flaw in [Flaw::RestartTrustsTheSilent, Flaw::RestartForgetsMinIsr, Flaw::RestartForgetsTheQuorum] {
        plant(Some(flaw));
        let asked = ask_the_gate(0..200);
        plant(None);
        assert!(!asked.wrong.is_empty(), "{flaw:?} went unnoticed in {} states", asked.states);
    }
}
