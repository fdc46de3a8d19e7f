//! A soak from the command line. The last line is JSON; exit 1 when something grew that should not.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use highwater_tests::process::binary;
use highwater_tests::soak::{Plan, keep_logs, run};

#[derive(Parser)]
#[command(about = "Three nodes under churn, and whether memory, descriptors, threads, disk or log grow")]
struct Arguments {
    /// So long, at ten times the churn of a day; nobody is restarted.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// So long instead, at the churn of a day, with rolling restarts and kills.
    #[arg(long)]
    hours: Option<f64>,
    /// Minutes between two rolling restarts; default: 60 with --hours, else never.
    #[arg(long)]
    roll_every: Option<f64>,
    /// Minutes between two kills; default: 20 with --hours, else never.
    #[arg(long)]
    kill_every: Option<f64>,
    /// All chance of the run; default: drawn, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// The binary under test; default: $HIGHWATER_BINARY, or built.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where the nodes' files lie while it runs.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Where the logs of a run that failed are kept.
    #[arg(long, default_value = "soak-failed")]
    keep: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match soak(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn soak(arguments: &Arguments) -> std::io::Result<bool> {
    let minutes = |minutes: f64| Duration::from_secs_f64(minutes * 60.0);
    let is_long = arguments.hours.is_some();
    let dir = tempfile::Builder::new().prefix("highwater-soak-").tempdir_in(&arguments.dir)?;
    let plan = Plan {
        length: minutes(arguments.hours.map_or(arguments.minutes, |hours| hours * 60.0)),
        churn: if is_long { 1 } else { 10 },
        roll_every: arguments.roll_every.or(is_long.then_some(60.0)).map(minutes),
        kill_every: arguments.kill_every.or(is_long.then_some(20.0)).map(minutes),
        seed: arguments.seed.unwrap_or_else(rand::random),
        binary: arguments.binary.clone().unwrap_or_else(|| binary().to_owned()).canonicalize()?,
        dir: dir.path().to_owned(),
    };
    eprintln!("soak for {:?}, seed {}", plan.length, plan.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let told = runtime.block_on(run(&plan));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let ok = told.as_ref().is_ok_and(|told| told["ok"] == true);
    if !ok {
        keep_logs(dir.path(), &arguments.keep)?;
        eprintln!("logs: {}", arguments.keep.display());
    }
    println!("{}", told?);
    Ok(ok)
}
