//! Storage faults on the simulated disk, from the command line. Each part prints one closing line of JSON; exit 1 at a
//! fault.

use std::panic;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use highwater_quorum::flaws::{Flaw, plant};
use highwater_quorum::storage_trial;
use highwater_tests::storage::{corruption, crash_points, faults, metadata_rot};
use serde_json::json;

#[derive(Parser)]
#[command(about = "Storage faults on the simulated disk")]
struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Power is lost before each change of a short life, in every way; then the same with each sync left out.
    CrashPoints {
        /// Ways tried at one point at most; drawn where there are more.
        #[arg(long, default_value_t = crash_points::WAYS_MAX)]
        ways: u64,
    },
    /// Each call of each kind fails once with EIO.
    Errors,
    /// The disk is full from some byte on, and the log is opened again while it is.
    Full,
    /// Every file of a closed directory is damaged in every region; what becomes of it is printed as a table.
    Corruption {
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The files of a metadata directory are damaged; each is opened by a process of its own.
    MetadataRot {
        #[arg(long, default_value_t = 100)]
        cases: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Each rule of the log that a planted flaw leaves out must be missed by one of the parts before.
    Flaws,
    #[command(hide = true)]
    WriteMetadata { directory: std::path::PathBuf },
    #[command(hide = true)]
    CheckMetadata { directory: std::path::PathBuf, told: String },
}

fn main() -> ExitCode {
    let began = Instant::now();
    let done = match Arguments::parse().part {
        Part::CrashPoints { ways } => crash_points(ways),
        Part::Errors => refused(faults::each_call_fails()),
        Part::Full => refused(faults::disk_full()),
        Part::Corruption { seed } => corruption(seed),
        Part::MetadataRot { cases, seed } => rot(cases, seed),
        Part::Flaws => flaws(),
        Part::WriteMetadata { directory } => {
            let mut say = |what: &str, number: u64| println!("{what} {number}");
            storage_trial::write(&directory, &mut say).map(|()| json!({})).map_err(|error| error.to_string())
        }
        Part::CheckMetadata { directory, told } => {
            let mut heard = storage_trial::Told::default();
            told.split(',').for_each(|line| heard.note(line));
            storage_trial::check(&directory, &heard).map(|()| json!({}))
        }
    };
    match done {
        Ok(mut line) => {
            line["seconds"] = json!(began.elapsed().as_secs_f64());
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

/// What the log itself promises, and the part that tries it.
const FLAWS: &[(Flaw, &str)] = &[
    (Flaw::ForgetsProducers, "crash-points"),
    (Flaw::ForgetsLogStart, "crash-points"),
    (Flaw::KeepsRecoveryPoint, "crash-points"),
    (Flaw::IgnoresFailedSyncs, "errors"),
];

fn flaws() -> Result<serde_json::Value, String> {
    let mut missed = Vec::new();
    for (flaw, part) in FLAWS {
        let began = Instant::now();
        plant(Some(*flaw));
        let found = panic::catch_unwind(|| match *part {
            "errors" => faults::each_call_fails().err(),
            _ => crash_points::try_all(None, crash_points::WAYS_MAX, true).err(),
        });
        plant(None);
        let found = found.unwrap_or_else(|_| Some("it panicked".to_owned()));
        println!(
            "{} by {part}, {:.1} s: {}",
            flaw.rule(),
            began.elapsed().as_secs_f64(),
            found.as_deref().unwrap_or("MISSED")
        );
        missed.extend(found.is_none().then(|| flaw.rule()));
    }
    if !missed.is_empty() {
        return Err(format!("nothing misses the rules {}", missed.join(", ")));
    }
    Ok(json!({ "flaws": FLAWS.len(), "caught": FLAWS.len() }))
}

fn crash_points(ways: u64) -> Result<serde_json::Value, String> {
    let tried = crash_points::try_all(None, ways, true)?;
    let left_out = crash_points::without_each_sync(ways.min(crash_points::WAYS_WITHOUT_SYNC));
    for (sync, (of, found)) in left_out.iter().enumerate() {
        println!("without sync {sync} of {of}: {}", found.as_deref().unwrap_or("nothing is lost"));
    }
    let needless: Vec<usize> =
        left_out.iter().enumerate().filter(|(_, (_, found))| found.is_none()).map(|(sync, _)| sync).collect();
    if needless != crash_points::NEEDLESS_SYNCS {
        return Err(format!(
            "the syncs that may be left out are {needless:?}, expected {:?}",
            crash_points::NEEDLESS_SYNCS
        ));
    }
    Ok(json!({
        "crash_points": tried.points, "ways": tried.ways, "different_disks": tried.disks, "lost": 0,
        "syncs": left_out.len(), "left_out_and_found_out": left_out.len() - needless.len(),
    }))
}

fn corruption(seed: u64) -> Result<serde_json::Value, String> {
    let sweep = corruption::sweep(seed);
    for ((kind, stop, outcome), times) in &sweep.outcomes {
        println!("{kind} | {stop:?} | {outcome:?} | {times}");
    }
    if !sweep.faults.is_empty() {
        return Err(format!("{} of {} cases:\n{}", sweep.faults.len(), sweep.cases, sweep.faults.join("\n")));
    }
    Ok(json!({ "damaged": sweep.cases, "seed": seed, "wrong_bytes": 0, "silent_losses": 0 }))
}

fn refused(tried: Result<faults::Tried, String>) -> Result<serde_json::Value, String> {
    tried.map(|tried| {
        json!({ "failures": tried.failures, "lived_on": tried.survived, "disks_opened_afterwards": tried.disks, "lost": 0 })
    })
}

fn rot(cases: u64, seed: u64) -> Result<serde_json::Value, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let sweep = metadata_rot::sweep(&this, cases, seed);
    let mut bad = 0;
    for ((file, outcome), (times, example)) in &sweep.outcomes {
        println!("{file} | {outcome:?} | {times} | {example}");
        let fine = matches!(outcome, metadata_rot::Outcome::Whole | metadata_rot::Outcome::Refused);
        bad += if fine { 0 } else { *times };
    }
    if bad > 0 {
        return Err(format!("{bad} of {} damaged stores were not told from whole ones", sweep.cases));
    }
    Ok(json!({ "damaged": sweep.cases, "seed": seed, "forgotten": 0 }))
}
