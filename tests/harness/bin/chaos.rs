//! Chaos on real processes from the command line. The last line is JSON; exit 1 at an anomaly or when too little happened.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use highwater_tests::chaos::checker::{Demand, USUAL, Verdict, judge};
use highwater_tests::chaos::plan::Fault;
use highwater_tests::chaos::run::{self, Plan};
use highwater_tests::process::binary;

#[derive(Parser)]
#[command(about = "Three nodes under faults, stock clients and a checker of what they saw")]
struct Arguments {
    /// Minutes of faults; starting, healing and the final scan come on top.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Kinds of fault: kill, strike, term, kill-all, pause, rolling-pause, partition, one-way, bridge, client-cut,
    /// quorum-cut, data-cut, loss, reset, wipe, replace. Default: all.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<Fault>,
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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let demand = Demand { leader_changes: arguments.leader_changes, ..USUAL };
    let told = match &arguments.judge {
        Some(file) => File::open(file).and_then(|file| judge(BufReader::new(file).lines(), demand)),
        None => chaos(&arguments, demand),
    };
    match told {
        Ok(verdict) => close(&verdict),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn close(verdict: &Verdict) -> ExitCode {
    for example in verdict.examples() {
        eprintln!("{example}");
    }
    println!("{}", verdict.json());
    if verdict.findings.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn chaos(arguments: &Arguments, demand: Demand) -> std::io::Result<Verdict> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let faults = if arguments.faults.is_empty() { Fault::ALL.to_vec() } else { arguments.faults.clone() };
    let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
    let (minutes, gap) = (arguments.minutes, arguments.gap);
    eprintln!("chaos --minutes {minutes} --gap {gap} --faults {} --seed {seed}", names.join(","));
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
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (verdict, warnings) = runtime.block_on(run::run(&plan))?;
    // A client that hangs does not hold the verdict back.
    runtime.shutdown_timeout(Duration::from_secs(1));
    for (line, times) in warnings {
        eprintln!("{times:6} x {line}");
    }
    if verdict.findings.failed() || arguments.keep_always {
        let to = arguments.keep.join(seed.to_string());
        run::keep_artefacts(dir.path(), &to)?;
        eprintln!("history and logs: {}", to.display());
    }
    Ok(verdict)
}
