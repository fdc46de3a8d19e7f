//! Chaos on real processes from the command line. The last line is JSON; exit 1 at an anomaly or when too little happened.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use highwater_tests::chaos::checker::{Demand, USUAL, Verdict, judge};
use highwater_tests::chaos::families::Family;
use highwater_tests::chaos::flaws::{self, TRIALS};
use highwater_tests::chaos::plan::Fault;
use highwater_tests::chaos::run::{self, Plan};
use highwater_tests::process::binary;

#[derive(Parser)]
#[command(about = "Nodes under faults, stock clients and a checker of what they saw")]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Minutes of faults; starting, healing and the final scan come on top.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Kinds of fault: kill, strike, term, kill-all, pause, rolling-pause, partition, one-way, bridge, client-cut,
    /// quorum-cut, data-cut, loss, reset, wipe, replace, hand-over, forsaken, rot, full-disk, power-cut, squeeze, twin; with a
    /// proxy on every link also delay, half-open, mid-frame, suspicion, or `links` for these four. Default: `usual`, all without
    /// proxies that this machine can do.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// One fault at a time, each when the one before has healed, for numbers of unavailability; a missed mark fails.
    #[arg(long)]
    one_by_one: bool,
    /// Families of clients: own, librdkafka, java, franz-go. Default: all that this machine has.
    #[arg(long, value_delimiter = ',')]
    families: Vec<Family>,
    /// Nodes, all of them voters.
    #[arg(long, default_value_t = 3)]
    nodes: u8,
    /// All chance of the run; default: drawn, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// The binary under test; default: $HIGHWATER_BINARY, or built.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Mean time between two faults, seconds.
    #[arg(long, default_value_t = 5.0)]
    gap: f64,
    /// Values after which a topic gives way to a new one.
    #[arg(long, default_value_t = 20_000)]
    topic_values: u64,
    /// Where the nodes' files lie while it runs.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Where history and logs of a run that failed are kept.
    #[arg(long, default_value = "chaos-failed")]
    keep: PathBuf,
    /// Keep them anyway.
    #[arg(long)]
    keep_always: bool,
    /// Leader changes without which the run does not count.
    #[arg(long, default_value_t = USUAL.leader_changes)]
    leader_changes: u64,
    /// Judge this history again, run nothing.
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Verb {
    /// Builds with a rule left out: each must be found wanting. Exit 1 when one is not.
    Flaws {
        /// A binary with the feature `flaws`.
        #[arg(long)]
        binary: PathBuf,
        /// Only these.
        #[arg(long, value_delimiter = ',')]
        rules: Vec<String>,
        /// Minutes of faults of one try.
        #[arg(long, default_value_t = 1.0)]
        minutes: f64,
        /// Seeds that are tried, one after the other, until it is caught.
        #[arg(long, default_value_t = 3)]
        tries: u64,
        #[arg(long, default_value_t = 7)]
        seed: u64,
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let demand = Demand { leader_changes: arguments.leader_changes, ..USUAL };
    let told = match (&arguments.verb, &arguments.judge) {
        (Some(verb), _) => flawed(verb),
        (None, Some(file)) => {
            let told = File::open(file).and_then(|file| judge(BufReader::new(file).lines(), demand));
            told.map(|verdict| close(&verdict, arguments.one_by_one))
        }
        (None, None) => chaos(&arguments, demand).map(|verdict| close(&verdict, arguments.one_by_one)),
    };
    told.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

fn close(verdict: &Verdict, one_by_one: bool) -> ExitCode {
    for example in verdict.examples() {
        eprintln!("{example}");
    }
    let missed = if one_by_one { verdict.missed_marks() } else { Vec::new() };
    missed.iter().for_each(|mark| eprintln!("missed: {mark}"));
    println!("{}", verdict.json());
    if verdict.findings.failed() || !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn invalid(why: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, why)
}

/// What was asked for, or all usual ones that can be done here.
fn faults(words: &[String]) -> std::io::Result<Vec<Fault>> {
    if words.is_empty() {
        let can_do = |fault: &Fault| run::can_do(*fault).inspect_err(|why| eprintln!("without {fault}: {why}")).is_ok();
        return Ok(Fault::usual().into_iter().filter(can_do).collect());
    }
    let mut faults: Vec<Fault> = Vec::new();
    for word in words {
        faults.extend(Fault::named(word).map_err(invalid)?);
    }
    Ok(faults)
}

/// What was asked for, or all that this machine has.
fn families(asked: &[Family]) -> std::io::Result<BTreeSet<Family>> {
    let mut families = BTreeSet::new();
    for family in if asked.is_empty() { Family::ALL.to_vec() } else { asked.to_vec() } {
        match family.lacks() {
            None => {
                families.insert(family);
            }
            Some(what) if asked.is_empty() => eprintln!("without {family}: this machine has no {what}"),
            Some(what) => return Err(invalid(format!("{family}: this machine has no {what}"))),
        }
    }
    Ok(families)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

fn chaos(arguments: &Arguments, demand: Demand) -> std::io::Result<Verdict> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let (faults, families) = (faults(&arguments.faults)?, families(&arguments.families)?);
    let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
    let clients: Vec<&str> = families.iter().map(|family| family.name()).collect();
    let (minutes, gap, nodes) = (arguments.minutes, arguments.gap, arguments.nodes);
    let one_by_one = if arguments.one_by_one { " --one-by-one" } else { "" };
    eprintln!(
        "chaos --minutes {minutes} --gap {gap} --faults {} --families {} --nodes {nodes}{one_by_one} --seed {seed}",
        names.join(","),
        clients.join(",")
    );
    if nodes < 3 {
        return Err(invalid("three nodes at least: every partition has three replicas".to_owned()));
    }
    let dir = tempfile::Builder::new().prefix("highwater-chaos-").tempdir_in(&arguments.dir)?;
    let plan = Plan {
        seed,
        length: Duration::from_secs_f64(minutes * 60.0),
        faults,
        mean_gap: Duration::from_secs_f64(gap),
        binary: arguments.binary.clone().unwrap_or_else(|| binary().to_owned()).canonicalize()?,
        dir: dir.path().to_owned(),
        topic_values: arguments.topic_values,
        demand,
        nodes,
        families,
        flaw: None,
        one_by_one: arguments.one_by_one,
    };
    let runtime = runtime()?;
    let (verdict, warnings) = runtime.block_on(run::run(&plan))?;
    // A client that hangs does not hold the verdict back.
    runtime.shutdown_timeout(Duration::from_secs(1));
    for (line, times) in warnings {
        eprintln!("{times:6} x {line}");
    }
    if verdict.findings.failed() || arguments.keep_always {
        keep(dir.path(), &arguments.keep.join(seed.to_string()))?;
    }
    Ok(verdict)
}

fn keep(dir: &Path, to: &Path) -> std::io::Result<()> {
    run::keep_artefacts(dir, to)?;
    eprintln!("history and logs: {}", to.display());
    Ok(())
}

fn flawed(verb: &Verb) -> std::io::Result<ExitCode> {
    let Verb::Flaws { binary, rules, minutes, tries, seed, dir } = verb;
    let plan = Plan {
        seed: *seed,
        length: Duration::from_secs_f64(minutes * 60.0),
        faults: Vec::new(),
        mean_gap: Duration::from_secs(2),
        binary: binary.canonicalize()?,
        dir: dir.clone(),
        topic_values: 20_000,
        demand: USUAL,
        nodes: 3,
        families: BTreeSet::from([Family::Own, Family::Librdkafka]),
        flaw: None,
        one_by_one: false,
    };
    let mut outcomes = Vec::new();
    for trial in TRIALS.iter().filter(|trial| rules.is_empty() || rules.iter().any(|rule| rule == trial.rule)) {
        eprintln!("{}: {}", trial.rule, trial.what);
        let runtime = runtime()?;
        let outcome = runtime.block_on(flaws::run(*trial, &plan, *tries, dir))?;
        runtime.shutdown_timeout(Duration::from_secs(1));
        let how = if outcome.rows.is_empty() { "NOT CAUGHT".to_owned() } else { outcome.rows.join(", ") };
        eprintln!("{}: {how}, seed {}, {} s", trial.rule, outcome.seed, outcome.took.as_secs());
        outcomes.push(outcome);
    }
    for outcome in &outcomes {
        let how = if outcome.rows.is_empty() { "NOT CAUGHT".to_owned() } else { outcome.rows.join(", ") };
        println!("{:5} {:4} s  {}: {how}", outcome.trial.rule, outcome.took.as_secs(), outcome.trial.what);
    }
    let told = flaws::json(&outcomes);
    println!("{told}");
    Ok(if told["ok"] == true { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
