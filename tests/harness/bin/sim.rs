//! The simulation from the command line: many seeds, the planted bugs, or one seed with its trace.

use std::collections::BTreeMap;
use std::panic;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use highwater_tests::sim::flaws::{Flaw, hunt};
use highwater_tests::sim::marks::{CI_SEEDS, LEAST, Mark};
use highwater_tests::sim::run::{Plan, Totals, run_seed};
use highwater_tests::sim::same;
use highwater_tests::sim::shrink::{Case, serve};
use highwater_tests::sim::swarm::{ANY, UNATTENDED};
use highwater_tests::sim::trace::{Verbose, last_lines};
use highwater_wire::Millis;

mod shrinking;
mod worlds;

/// Lines of the trace shown with a violation.
const LINES_SHOWN: usize = 60;

#[derive(Parser)]
#[command(about = "Deterministic simulation of the data plane")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run seeds on all cores; the last line is JSON. Exit 1 at a violation.
    Run {
        /// `A..B`, B not included.
        #[arg(long, value_parser = seed_range)]
        seeds: std::ops::Range<u64>,
        /// Simulated seconds of trouble per seed.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Keep going after a violation, and list all of them.
        #[arg(long)]
        all: bool,
        /// Threads; default: all cores.
        #[arg(long)]
        threads: Option<usize>,
        /// Without the operator: faults only.
        #[arg(long)]
        unattended: bool,
        /// Seeds whose violation is known and not yet decided upon: they count only if they hold all at once.
        #[arg(long, value_delimiter = ',')]
        known_red: Vec<u64>,
    },
    /// Run seeds in two processes, the second time backwards: every trace must be the same. The last line is JSON. Exit 1
    /// if one is not.
    Same {
        /// `A..B`, B not included.
        #[arg(long, value_parser = seed_range)]
        seeds: std::ops::Range<u64>,
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Threads of each process; default: all cores.
        #[arg(long)]
        threads: Option<usize>,
        /// One of the two processes: `forwards` or `backwards`.
        #[arg(long, hide = true)]
        half: Option<String>,
    },
    /// Plant each known bug and run ordinary seeds until it is caught. Exit 1 unless all are, or all but the known holes.
    Flaws {
        /// Seeds tried per bug.
        #[arg(long, default_value_t = 3_000)]
        seeds: u64,
        /// Only this one, by its rule (`R242`); in this process.
        #[arg(long)]
        only: Option<String>,
        /// Rules whose flaw is known to escape (`R242`): a hole of the workload or the checkers, still to be closed.
        #[arg(long, value_delimiter = ',')]
        known_holes: Vec<String>,
    },
    /// Make a failing seed short: as few events as break the same rule, in a file that is run for ever. A path is printed;
    /// the last line is JSON.
    Shrink {
        /// The seed; with a flaw, the first seed tried.
        seed: Option<u64>,
        /// Plant this bug, by its rule.
        #[arg(long)]
        flaw: Option<String>,
        /// Every planted bug, each caught by the first seed that does.
        #[arg(long, conflicts_with_all = ["seed", "flaw"])]
        all_flaws: bool,
        /// Seeds tried until one fails.
        #[arg(long, default_value_t = 3_000)]
        seeds: u64,
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Without the operator: faults only.
        #[arg(long)]
        unattended: bool,
        /// Real seconds per seed.
        #[arg(long, default_value_t = 240)]
        patience: u64,
        /// Where the files go.
        #[arg(long, default_value = "tests/regressions")]
        to: PathBuf,
        /// Bugs shrunk at a time; default: all cores.
        #[arg(long)]
        threads: Option<usize>,
    },
    /// Run a file of `shrink` and print its trace.
    Rerun {
        file: PathBuf,
        /// Without the flaw that the file names.
        #[arg(long)]
        sound: bool,
    },
    /// Search all schedules of small worlds; then the same with rules left out, which must be found. The last line is JSON.
    Worlds {
        /// Steps more, or fewer, than usual.
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        deeper: isize,
        /// Only worlds, or mistakes, whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// Every planted flaw, in the usual worlds: which are found there?
        #[arg(long)]
        all_flaws: bool,
    },
    /// Answers `shrink`: a schedule a line, an outcome a line.
    #[command(hide = true)]
    Worker,
    /// Run one seed and print its trace.
    Replay {
        seed: u64,
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Plant this bug, by its rule.
        #[arg(long)]
        flaw: Option<String>,
        /// Only the last lines.
        #[arg(long)]
        last: Option<usize>,
        /// Without the operator: faults only.
        #[arg(long)]
        unattended: bool,
    },
}

fn seed_range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("seeds are given as A..B")?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
    let range = number(from)?..number(to)?;
    if range.is_empty() { Err(format!("{text} holds no seed")) } else { Ok(range) }
}

fn flaw_named(rule: &str) -> Option<Flaw> {
    Flaw::ALL.into_iter().find(|flaw| flaw.rule().eq_ignore_ascii_case(rule))
}

thread_local! {
    static SEED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Run { seeds, seconds, all, threads, unattended, known_red } => {
            run(seeds, &planned(seconds, unattended), all, threads, &known_red)
        }
        Verb::Same { seeds, seconds, threads, half: None } => same(&seeds, seconds, cores(threads)),
        Verb::Same { seeds, seconds, threads, half: Some(half) } => {
            let plan = planned(seconds, false);
            print!("{}", same::print(&same::run_all(&seeds, half == "backwards", &plan, cores(threads))));
            ExitCode::SUCCESS
        }
        Verb::Flaws { seeds, only: Some(rule), .. } => hunt_one(&rule, seeds),
        Verb::Flaws { seeds, only: None, known_holes } => hunt_all(seeds, &known_holes),
        Verb::Shrink { seed, flaw, all_flaws, seeds, seconds, unattended, patience, to, threads } => {
            let seeds = match (seed, &flaw) {
                (Some(seed), None) => seed..seed + 1,
                (seed, _) => seed.unwrap_or(0)..seed.unwrap_or(0) + seeds,
            };
            let flaws = match (all_flaws, flaw) {
                (true, _) => Flaw::ALL.iter().map(|flaw| Some(flaw.rule().to_owned())).collect(),
                (false, Some(rule)) if flaw_named(&rule).is_none() => {
                    eprintln!("no flaw is planted for {rule}; known: {}", rules());
                    return ExitCode::from(2);
                }
                (false, flaw) => vec![flaw.and_then(|rule| flaw_named(&rule)).map(|flaw| flaw.rule().to_owned())],
            };
            let time = Duration::from_secs(patience);
            let case = Case { flaw: None, seeds, unattended, seconds, time, commit: commit() };
            let cases: Vec<Case> = flaws.into_iter().map(|flaw| Case { flaw, ..case.clone() }).collect();
            shrinking::shrink(&cases, &to, threads)
        }
        Verb::Worlds { deeper, only, all_flaws } => worlds::search(deeper, only.as_deref(), all_flaws),
        Verb::Rerun { file, sound } => shrinking::rerun(&file, sound),
        Verb::Worker => {
            serve();
            ExitCode::SUCCESS
        }
        Verb::Replay { seed, seconds, flaw, last, unattended } => {
            replay(seed, planned(seconds, unattended), flaw.as_deref(), last)
        }
    }
}

/// What this code is called, for whoever reads a file later.
fn commit() -> String {
    let described = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let name = described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "an unknown commit".to_owned() } else { format!("commit {name}") }
}

fn planned(seconds: u64, unattended: bool) -> Plan {
    let shape = if unattended { UNATTENDED } else { ANY };
    Plan { shape, time: Millis(seconds * 1_000), ..Plan::usual() }
}

/// As many as asked for, or one per core.
fn cores(threads: Option<usize>) -> usize {
    threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1)
}

fn same(seeds: &std::ops::Range<u64>, seconds: u64, threads: usize) -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let began = Instant::now();
    let half = |half: &str| {
        let (seeds, seconds) = (format!("{}..{}", seeds.start, seeds.end), seconds.to_string());
        let mut run = Command::new(&program);
        run.args(["same", "--seeds", &seeds, "--seconds", &seconds, "--threads", &threads.to_string(), "--half", half]);
        let output = run.stdin(Stdio::null()).stderr(Stdio::inherit()).output().ok()?;
        same::parse(&String::from_utf8_lossy(&output.stdout)).filter(|_| output.status.success())
    };
    let (Some(forwards), Some(backwards)) = (half("forwards"), half("backwards")) else {
        eprintln!("a run did not come to its end");
        return ExitCode::FAILURE;
    };
    let differing = same::differing(&forwards, &backwards);
    differing.iter().for_each(|seed| println!("seed {seed}: {:?}, then {:?}", forwards.get(seed), backwards.get(seed)));
    let simulated_ms: u64 = forwards.values().chain(backwards.values()).map(|came| came.simulated.0).sum();
    let cpu_seconds = began.elapsed().as_secs_f64() * threads.min(forwards.len()).max(1) as f64;
    let line = serde_json::json!({
        "seeds": forwards.len(),
        "differing": differing.len(),
        "real_time_factor": (simulated_ms as f64 / 1_000.0 / cpu_seconds).round(),
    });
    println!("{line}");
    if differing.is_empty() && forwards.len() as u64 == seeds.end - seeds.start {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(seeds: std::ops::Range<u64>, plan: &Plan, all: bool, threads: Option<usize>, known_red: &[u64]) -> ExitCode {
    let shown = plan.clone();
    // Shipped assertions end the process in a release build: say first which seed it was.
    panic::set_hook(Box::new(move |info| {
        let seed = SEED.get();
        eprintln!("seed {seed}: an assertion of the product failed: {info}");
        if !all {
            show_trace(seed, &shown);
        }
        std::process::exit(1);
    }));
    let threads = cores(threads);
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    let mut totals = Totals::default();
    let parts: Vec<Totals> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut totals = Totals::default();
                    while !stop.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            break;
                        }
                        SEED.set(seed);
                        let outcome = run_seed(seed, plan);
                        if let Some(violation) = &outcome.violation {
                            let known = known_red.contains(&seed);
                            println!("seed {seed}{}: {violation}", if known { ", as known" } else { "" });
                            stop.fetch_or(!all && !known, Ordering::Relaxed);
                        }
                        totals.add(&outcome);
                    }
                    totals
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("the hook ends the process first")).collect()
    });
    for part in parts {
        totals.merge(part);
    }
    let (known, new): (Vec<_>, Vec<_>) =
        totals.violations.iter().map(|(seed, _)| *seed).partition(|seed| known_red.contains(seed));
    if let Some(seed) = new.first()
        && !all
    {
        show_trace(*seed, plan);
    }
    let mended: Vec<u64> =
        known_red.iter().copied().filter(|seed| seeds.contains(seed) && !known.contains(seed)).collect();
    for seed in &mended {
        println!("seed {seed} was named as known to be red and is not: leave it out of --known-red");
    }
    let counts = &totals.counts;
    let cpu_seconds = began.elapsed().as_secs_f64() * threads.min(totals.seeds as usize).max(1) as f64;
    let simulated_seconds = totals.simulated_ms as f64 / 1_000.0;
    let line = serde_json::json!({
        "seeds": totals.seeds,
        "simulated_hours": (simulated_seconds / 36.0).round() / 100.0,
        "faults": counts.faults,
        "leader_changes": counts.leader_changes,
        "acked": counts.acked,
        "violations": new.len(),
        "known_red": known,
        "real_time_factor": (simulated_seconds / cpu_seconds).round(),
        "trace_hash": format!("{:016x}", totals.trace_hash),
        "events": totals.events,
        "batches_read": counts.read,
        "isr_changes": counts.isr_changes,
        "truncations": counts.truncations,
        "elr_elections": counts.elr_elections,
        "diverging_fetches": counts.diverging,
        "topics": counts.topics,
        "acts": counts.acts,
        "unclean_elections": counts.unclean_elections,
        "lossy_elections": counts.lossy_elections,
        "deletes_answered": counts.deletes_answered,
        "losses_told": counts.losses_told,
        "marks": counts.marks.counts().map(|(mark, count)| (mark.name(), count)).collect::<BTreeMap<_, _>>(),
    });
    // Few seeds, or seeds without the operator, are not held to it.
    let counts_for_ci = totals.seeds >= CI_SEEDS && !plan.shape.unattended;
    let rare: Vec<(Mark, u64)> = counts.marks.rare().filter(|_| counts_for_ci).collect();
    rare.iter().for_each(|(mark, count)| println!("{} was reached {count} times, not {LEAST}", mark.name()));
    println!("{line}");
    let holds = new.is_empty() && mended.is_empty() && rare.is_empty();
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a seed again in a process of its own and shows how it ended.
fn show_trace(seed: u64, plan: &Plan) {
    let Ok(program) = std::env::current_exe() else { return };
    let mut replay = Command::new(program);
    let seconds = (plan.time.0 / 1_000).to_string();
    replay.args(["replay", &seed.to_string(), "--seconds", &seconds, "--last", &LINES_SHOWN.to_string()]);
    if plan.shape.unattended {
        replay.arg("--unattended");
    }
    let _shown = replay.status();
}

fn replay(seed: u64, plan: Plan, flaw: Option<&str>, last: Option<usize>) -> ExitCode {
    panic::set_hook(Box::new(move |info| {
        if let Some(last) = last {
            last_lines(last).iter().for_each(|line| println!("{line}"));
        }
        println!("seed {seed}: an assertion of the product failed: {info}");
        std::process::exit(1);
    }));
    let flaw = match flaw.map(|rule| flaw_named(rule).ok_or(rule)) {
        None => None,
        Some(Ok(flaw)) => Some(flaw),
        Some(Err(rule)) => {
            eprintln!("no flaw is planted for {rule}; known: {}", rules());
            return ExitCode::from(2);
        }
    };
    let verbose = if last.is_some() { Verbose::Keep } else { Verbose::Print };
    let plan = Plan { flaw, verbose, ..plan };
    let outcome = run_seed(seed, &plan);
    if let Some(last) = last {
        last_lines(last).iter().for_each(|line| println!("{line}"));
    }
    println!("seed {seed}: {:?}, trace hash {:016x}", outcome.counts, outcome.trace_hash);
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("seed {seed}: {violation}");
            ExitCode::FAILURE
        }
    }
}

fn rules() -> String {
    Flaw::ALL.map(Flaw::rule).join(", ")
}

fn hunt_one(rule: &str, seeds: u64) -> ExitCode {
    let Some(flaw) = flaw_named(rule) else {
        eprintln!("no flaw is planted for {rule}; known: {}", rules());
        return ExitCode::from(2);
    };
    panic::set_hook(Box::new(move |info| {
        // In a release build this is the end of the process; where panics unwind, `hunt` reports it instead.
        if cfg!(panic = "abort") {
            println!(
                "{} {flaw:?}: caught by an assertion of the product: {}",
                flaw.rule(),
                one_line(&info.to_string())
            );
            std::process::exit(0);
        }
    }));
    match hunt(flaw, 0..seeds, &Plan::usual()) {
        Some(caught) => {
            let text = one_line(&caught.text);
            println!(
                "{} {flaw:?}: caught by seed {} after {} seeds, {}: {text}",
                flaw.rule(),
                caught.seed,
                caught.seeds,
                caught.rule
            );
            ExitCode::SUCCESS
        }
        None => {
            println!("{} {flaw:?}: NOT caught in {seeds} seeds", flaw.rule());
            ExitCode::FAILURE
        }
    }
}

fn one_line(text: &str) -> String {
    let line = text.replace('\n', " ");
    line.chars().take(240).collect()
}

/// Each flaw in a process of its own: a shipped assertion that fires ends it, which is as good as a violation.
fn hunt_all(seeds: u64, known_holes: &[String]) -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let next = AtomicU64::new(0);
    let caught = AtomicU64::new(0);
    let unexpected = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(flaw) = Flaw::ALL.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let mut hunter = Command::new(&program);
                    hunter.args(["flaws", "--only", flaw.rule(), "--seeds", &seeds.to_string()]).stdin(Stdio::null());
                    match hunter.output() {
                        Ok(output) => {
                            print!("{}", String::from_utf8_lossy(&output.stdout));
                            let found = output.status.success();
                            caught.fetch_add(u64::from(found), Ordering::Relaxed);
                            let expected = found || known_holes.iter().any(|rule| rule == flaw.rule());
                            unexpected.fetch_add(u64::from(!expected), Ordering::Relaxed);
                        }
                        Err(error) => {
                            println!("{}: could not be run: {error}", flaw.rule());
                            unexpected.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let caught = caught.load(Ordering::Relaxed);
    println!("{}", serde_json::json!({ "flaws": Flaw::ALL.len(), "caught": caught }));
    if unexpected.load(Ordering::Relaxed) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
