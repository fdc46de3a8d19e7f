//! The simulation of the quorum from the command line: many seeds, each in a process of its own, the planted flaws, or
//! one seed with its trace. Started by `quorum-sim` of highwater-tests, which builds it as it must be built.

#![allow(clippy::unwrap_used)] // a broken tool must stop

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::{Parser, Subcommand};
use highwater_quorum::flaws::Flaw;
use highwater_quorum_sim::marks::rare;
use highwater_quorum_sim::run::{Outcome, Plan, run_seed};
use highwater_quorum_sim::trace::{Verbose, last_lines};
use highwater_quorum_sim::watchdog;
use serde_json::{Value, json};

/// Lines of the trace shown with a violation.
const LINES_SHOWN: usize = 80;

#[derive(Parser)]
#[command(
    name = "quorum-sim",
    about = "Deterministic simulation of the metadata quorum: the real openraft under turmoil"
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run seeds on all cores, each in a process of its own; the last line is JSON. Exit 1 at a violation.
    Run {
        /// `A..B`, B not included.
        #[arg(long, value_parser = seed_range)]
        seeds: Range<u64>,
        /// Simulated seconds of trouble per seed.
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// Keep going after a violation, and list all of them.
        #[arg(long)]
        all: bool,
    },
    /// Plant each known flaw of the quorum and run ordinary seeds until it is caught. Exit 1 unless all are.
    Flaws {
        /// Seeds tried per flaw, from 0 on.
        #[arg(long, default_value_t = 300)]
        seeds: u64,
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// Only this one, by its rule.
        #[arg(long)]
        only: Option<String>,
    },
    /// Run seeds twice, the second time in reverse order, and compare the hashes of their traces.
    Same {
        #[arg(long, value_parser = seed_range)]
        seeds: Range<u64>,
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
    /// Run one seed in this process and print its trace, or its last lines, and the outcome as JSON.
    Replay {
        seed: u64,
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// Plant this flaw, by its rule.
        #[arg(long)]
        flaw: Option<String>,
        /// Only so many lines of the trace.
        #[arg(long)]
        last: Option<usize>,
        /// Log lines of the product too.
        #[arg(long)]
        log: bool,
    },
}

fn seed_range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("seeds are given as A..B")?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
    let range = number(from)?..number(to)?;
    if range.is_empty() { Err(format!("{text} holds no seed")) } else { Ok(range) }
}

fn flaw_named(rule: &str) -> Option<Flaw> {
    Flaw::QUORUM.into_iter().find(|flaw| flaw.rule().eq_ignore_ascii_case(rule))
}

fn main() -> ExitCode {
    if cfg!(not(tokio_unstable)) {
        eprintln!("note: built without --cfg tokio_unstable: seeds are checked, but none can be run again as it was");
    }
    match Arguments::parse().verb {
        Verb::Run { seeds, seconds, all } => run(seeds, seconds, all),
        Verb::Flaws { seeds, seconds, only } => flaws(seeds, seconds, only.as_deref()),
        Verb::Same { seeds, seconds } => same(seeds, seconds),
        Verb::Replay { seed, seconds, flaw, last, log } => replay(seed, seconds, flaw.as_deref(), last, log),
    }
}

fn outcome_json(outcome: &Outcome) -> Value {
    let counts = &outcome.counts;
    json!({
        "seed": outcome.seed,
        "hash": format!("{:016x}", outcome.hash),
        "simulated_ms": u64::try_from(outcome.simulated.as_millis()).unwrap(),
        "events": outcome.events,
        "entries": outcome.entries,
        "proposed": counts.proposed,
        "acked": counts.acked,
        "refused": counts.refused,
        "unknown": counts.unknown,
        "exchanges": counts.exchanges,
        "duplicated": counts.duplicated,
        "late": counts.late,
        "boots": counts.boots,
        "lost_writes": counts.lost_writes,
        "leader_changes": counts.leader_changes,
        "troubles": counts.troubles,
        "marks": counts.marks.counts(),
        "violation": outcome.violation,
    })
}

fn replay(seed: u64, seconds: u64, flaw: Option<&str>, last: Option<usize>, log: bool) -> ExitCode {
    let flaw = match flaw.map(|rule| flaw_named(rule).ok_or(rule)) {
        None => None,
        Some(Ok(flaw)) => Some(flaw),
        Some(Err(rule)) => {
            eprintln!("no flaw of the quorum is called {rule}");
            return ExitCode::from(2);
        }
    };
    if log {
        tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(std::io::stderr)
            .init();
    }
    let verbose = match last {
        None => Verbose::Print,
        Some(0) => Verbose::No,
        Some(_) => Verbose::Keep,
    };
    if let Some(last) = last.filter(|last| *last > 0) {
        // The product's own assertions end the process.
        std::panic::set_hook(Box::new(move |info| {
            last_lines(last).iter().for_each(|line| println!("{line}"));
            eprintln!("seed {seed}: {info}");
            std::process::exit(1);
        }));
    }
    watchdog::start(seed);
    let outcome = run_seed(seed, &Plan { seconds, flaw, verbose });
    if let Some(last) = last {
        last_lines(last).iter().for_each(|line| println!("{line}"));
    }
    println!("{}", outcome_json(&outcome));
    if outcome.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One seed in a process of its own: its outcome, or what it said when it ended.
fn in_process(seed: u64, seconds: u64, flaw: Option<Flaw>) -> Result<Value, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["replay", &seed.to_string(), "--seconds", &seconds.to_string(), "--last", "0"]);
    if let Some(flaw) = flaw {
        command.args(["--flaw", flaw.rule()]);
    }
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let outcome = text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    outcome.ok_or_else(|| {
        let words = String::from_utf8_lossy(&output.stderr);
        let words: Vec<&str> = words.lines().filter(|line| !line.starts_with("note: ")).take(6).collect();
        format!("{}: {}", output.status, words.join(" | "))
    })
}

fn violation_of(outcome: &Result<Value, String>) -> Option<(String, String)> {
    match outcome {
        Ok(outcome) => serde_json::from_value(outcome["violation"].clone()).unwrap(),
        Err(words) => Some(("no process panics".to_owned(), words.clone())),
    }
}

/// Runs seeds on all cores, in the order given; `each` hears of every outcome, and says whether to go on.
fn on_all_cores(
    seeds: &[u64],
    run: impl Fn(u64) -> Result<Value, String> + Sync,
    each: impl Fn(u64, Result<Value, String>) -> bool + Sync,
) {
    let (next, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap();
                    let Some(seed) = seeds.get(at).copied() else { return };
                    if !each(seed, run(seed)) {
                        stopped.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

fn run(seeds: Range<u64>, seconds: u64, all: bool) -> ExitCode {
    let began = Instant::now();
    let outcomes: Mutex<BTreeMap<u64, Value>> = Mutex::default();
    let violations: Mutex<BTreeMap<u64, (String, String)>> = Mutex::default();
    let list: Vec<u64> = seeds.clone().collect();
    on_all_cores(
        &list,
        |seed| in_process(seed, seconds, None),
        |seed, outcome| {
            if let Some((rule, text)) = violation_of(&outcome) {
                println!("seed {seed}: {rule}: {text}");
                println!(
                    "  again: cargo run --release -p highwater-tests --bin quorum-sim -- replay {seed} --seconds {seconds} \
                     --last {LINES_SHOWN}"
                );
                violations.lock().unwrap().insert(seed, (rule, text));
            }
            let fine = violations.lock().unwrap().is_empty();
            if let Ok(outcome) = outcome {
                outcomes.lock().unwrap().insert(seed, outcome);
            }
            fine || all
        },
    );
    let (outcomes, violations) = (outcomes.into_inner().unwrap(), violations.into_inner().unwrap());
    let sum = |key: &str| outcomes.values().filter_map(|outcome| outcome[key].as_u64()).sum::<u64>();
    let sums = |key: &str| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (name, count) in outcomes.values().filter_map(|outcome| outcome[key].as_object()).flatten() {
            *sums.entry(name.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
        sums
    };
    let (troubles, marks) = (sums("troubles"), sums("marks"));
    // What was cut short by a violation says nothing.
    let rare = if violations.is_empty() { rare(&marks, outcomes.len() as u64) } else { Vec::new() };
    for (name, least) in &rare {
        println!("{name} came {} times, {least} are the least: these seeds prove too little", marks[*name]);
    }
    // One number for the traces of all seeds, in their order.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for outcome in outcomes.values() {
        for byte in outcome["hash"].as_str().unwrap_or_default().bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    let wall = began.elapsed().as_secs_f64();
    let simulated = sum("simulated_ms") as f64 / 1_000.0;
    println!(
        "{}",
        json!({
            "seeds": outcomes.len(),
            "simulated_hours": (simulated / 36.0).round() / 100.0,
            "times_real_time": (simulated / wall).round(),
            "wall_seconds": wall.round(),
            "faults": troubles.values().sum::<u64>(),
            "faults_by_kind": troubles,
            "leader_changes": sum("leader_changes"),
            "boots": sum("boots"),
            "lost_writes": sum("lost_writes"),
            "entries": sum("entries"),
            "proposed": sum("proposed"),
            "acked": sum("acked"),
            "refused": sum("refused"),
            "unknown": sum("unknown"),
            "exchanges": sum("exchanges"),
            "duplicated": sum("duplicated"),
            "late": sum("late"),
            "marks": marks,
            "rare": rare.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "trace_hash": format!("{hash:016x}"),
            "violations": violations.len(),
        })
    );
    if violations.is_empty() && rare.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn flaws(seeds: u64, seconds: u64, only: Option<&str>) -> ExitCode {
    let list: Vec<u64> = (0..seeds).collect();
    let mut missed = 0;
    for flaw in Flaw::QUORUM {
        if only.is_some_and(|only| !flaw.rule().eq_ignore_ascii_case(only)) {
            continue;
        }
        let began = Instant::now();
        let caught: Mutex<Option<(u64, String, String)>> = Mutex::default();
        on_all_cores(
            &list,
            |seed| in_process(seed, seconds, Some(flaw)),
            |seed, outcome| {
                // A seed that breaks a rule without the flaw says nothing about it.
                if let Some((rule, text)) = violation_of(&outcome)
                    && violation_of(&in_process(seed, seconds, None)).is_none()
                {
                    let mut caught = caught.lock().unwrap();
                    if caught.as_ref().is_none_or(|(first, ..)| seed < *first) {
                        *caught = Some((seed, rule, text));
                    }
                    return false;
                }
                true
            },
        );
        let took = began.elapsed().as_secs_f64();
        match caught.into_inner().unwrap() {
            Some((seed, rule, text)) => {
                let text: String = text.chars().take(140).collect();
                println!("{:<16} {flaw:?}: seed {seed}, {took:.0} s: {rule}: {text}", flaw.rule());
            }
            None => {
                missed += 1;
                println!("{:<16} {flaw:?}: MISSED in {seeds} seeds, {took:.0} s", flaw.rule());
            }
        }
    }
    println!("{}", json!({ "flaws": Flaw::QUORUM.len(), "missed": missed }));
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn same(seeds: Range<u64>, seconds: u64) -> ExitCode {
    let hashes = |list: &[u64]| {
        let found: Mutex<BTreeMap<u64, String>> = Mutex::default();
        on_all_cores(
            list,
            |seed| in_process(seed, seconds, None),
            |seed, outcome| {
                let hash = outcome.map_or_else(|words| words, |outcome| outcome["hash"].to_string());
                found.lock().unwrap().insert(seed, hash);
                true
            },
        );
        found.into_inner().unwrap()
    };
    let forward: Vec<u64> = seeds.clone().collect();
    let backward: Vec<u64> = seeds.rev().collect();
    let (first, second) = (hashes(&forward), hashes(&backward));
    let differing: Vec<u64> =
        first.iter().filter(|(seed, hash)| second[*seed] != **hash).map(|(seed, _)| *seed).collect();
    println!("{}", json!({ "seeds": first.len(), "equal": first.len() - differing.len(), "differing": differing }));
    if differing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
