//! Fuzzing from the command line: every reader of bytes from outside, for so many minutes, from one seed.
//!
//! Each target runs in a process of its own, since an allocation that fails ends it; the parent says which case it was.

use std::io::Write as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use highwater_tests::fuzz::{Memory, TARGETS, Told, case, run};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Cases between two signs of life of a target.
const STEP: u64 = 10_000;

#[derive(Parser)]
#[command(
    about = "Feeds made-up bytes to every reader of bytes from outside; the last line is JSON. Exit 1 at a fault."
)]
struct Arguments {
    /// Minutes for all targets together.
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this one.
    #[arg(long)]
    target: Option<String>,
    /// Runs one case of the target and shows its input.
    #[arg(long, requires = "target")]
    case: Option<u64>,
    /// In this process, from this case on; for the parent.
    #[arg(long, requires = "target", hide = true)]
    from: Option<u64>,
    /// Says each case before it is run; for the parent.
    #[arg(long, hide = true)]
    each: bool,
    /// Ends before this case; for the parent.
    #[arg(long, default_value_t = u64::MAX, hide = true)]
    to: u64,
}

fn memory() -> Memory {
    Memory { now: || MEMORY.current_usage(), peak: || MEMORY.peak_usage(), reset: || MEMORY.reset_peak_usage() }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chosen: Vec<_> =
        TARGETS.iter().filter(|target| arguments.target.as_deref().is_none_or(|name| name == target.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("no target of that name; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    if let Some(number) = arguments.case {
        let case = case(chosen[0], arguments.seed, number);
        println!("{:?}", String::from_utf8_lossy(&case.input));
        println!("{}", case.input.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        println!("taken: {}", (case.read)(case.input));
        return ExitCode::SUCCESS;
    }
    if let Some(from) = arguments.from {
        return work(&arguments, chosen[0], from);
    }
    let seconds = arguments.minutes * 60.0 / chosen.len() as f64;
    let (mut cases, mut faults) = (0, 0);
    let mut per_target = serde_json::Map::new();
    for target in chosen {
        match watch(target.name, arguments.seed, seconds) {
            Ok(told) => {
                cases += told["cases"].as_u64().unwrap_or(0);
                if !told["first_over"].is_null() {
                    faults += 1;
                    println!(
                        "{}: case {} took too much memory; {}",
                        target.name,
                        told["first_over"],
                        again(target.name, arguments.seed)
                    );
                }
                per_target.insert(target.name.to_owned(), told);
            }
            Err(why) => {
                faults += 1;
                println!("{}: {why}; {}", target.name, again(target.name, arguments.seed));
            }
        }
    }
    println!(
        "{}",
        serde_json::json!({"seed": arguments.seed, "cases": cases, "faults": faults, "targets": per_target})
    );
    if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn again(target: &str, seed: u64) -> String {
    format!("look at it: fuzz --target {target} --seed {seed} --case N")
}

/// The child's part.
fn work(arguments: &Arguments, target: &highwater_tests::fuzz::Target, from: u64) -> ExitCode {
    let time = Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut out = std::io::stdout().lock();
    let told = run(target, arguments.seed, from..arguments.to, time, memory(), |number| {
        if arguments.each || number % STEP == 0 {
            // A parent that is gone needs no news.
            let _ = writeln!(out, "at {number}").and_then(|()| out.flush());
        }
    });
    let Told { cases, accepted, bytes_over, first_over } = told;
    let first = first_over.map(|(number, _)| number);
    println!(
        "{}",
        serde_json::json!({"cases": cases, "accepted": accepted, "bytes_over": bytes_over, "first_over": first})
    );
    ExitCode::SUCCESS
}

/// Runs a target in a child; what it told, or which case ended it.
fn watch(target: &str, seed: u64, seconds: f64) -> Result<serde_json::Value, String> {
    let child = |from: u64, to: u64, each: bool| {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program);
        child.args(["--target", target, "--seed", &seed.to_string(), "--minutes", &(seconds / 60.0).to_string()]);
        child.args(["--from", &from.to_string(), "--to", &to.to_string()]).stderr(Stdio::piped());
        if each {
            child.arg("--each");
        }
        child.output().map_err(|error| error.to_string())
    };
    let last_at = |output: &std::process::Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().rev().find_map(|line| line.strip_prefix("at ")?.parse::<u64>().ok())
    };
    let output = child(0, u64::MAX, false)?;
    if output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        return serde_json::from_str(last).map_err(|error| format!("it said {last:?}: {error}"));
    }
    // Once more from the last sign of life, case by case.
    let from = last_at(&output).unwrap_or(0);
    let output = child(from, from + STEP, true)?;
    let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
    Err(format!("case {} ended the process ({}): {said}", last_at(&output).unwrap_or(from), output.status))
}
