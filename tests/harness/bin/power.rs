//! Power cuts from the command line: a store and a log on a volume of their own, cut again and again, checked each time;
//! then the same without the barrier, which must be found out.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use highwater_quorum::storage_trial;
use highwater_tests::power::volume::Volume;
use highwater_tests::power::{LOG, METADATA, Told, Writer, log, write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

const VOLUME_BYTES: u64 = 128 << 20;
/// Cuts of one volume, one upon the other, before a new one is made.
const CUTS_PER_VOLUME: u64 = 8;
/// Cuts without the barrier in which both losses must show.
const CONTROL_CUTS: u64 = 12;
/// Longest life of a writer after its first acknowledgements, in milliseconds.
const LIFE_MS_MAX: u64 = 250;

#[derive(Parser)]
#[command(about = "Power cuts of the metadata store and the log on a real file system; needs root")]
struct Arguments {
    #[command(flatten)]
    run: Run,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Args)]
struct Run {
    /// How many cuts.
    #[arg(long, default_value_t = 60)]
    cuts: u64,
    /// Moments, kinds of cut and writers follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only cuts by a copy of the image, with the writer stopped: none in the middle of a call.
    #[arg(long)]
    copied_only: bool,
    /// Leave out the control without the barrier.
    #[arg(long)]
    no_control: bool,
}

#[derive(Subcommand)]
enum Part {
    /// Writes until it is stopped: a process of its own.
    #[command(hide = true)]
    Write { volume: std::path::PathBuf, boot: String, seed: u64 },
    /// Checks one of the two: a process of its own, for it may panic.
    #[command(hide = true)]
    CheckMetadata { volume: std::path::PathBuf, told: String },
    #[command(hide = true)]
    CheckLog { volume: std::path::PathBuf, boot: String, told: std::path::PathBuf },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.part {
        None => return run(&arguments.run),
        Some(Part::Write { volume, boot, seed }) => write(&volume, &boot, seed).map_err(|error| error.to_string()),
        Some(Part::CheckMetadata { volume, told }) => {
            let mut heard = storage_trial::Told::default();
            told.split(',').for_each(|line| heard.note(line));
            storage_trial::check(&volume.join(METADATA), &heard)
        }
        Some(Part::CheckLog { volume, boot, told }) => std::fs::read_to_string(&told)
            .map_err(|error| error.to_string())
            .and_then(|lines| log::check(&volume.join(LOG), &boot, &log::Told::read(&lines)))
            .map(|found| print!("{}", found.lines())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// How the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The writer is stopped, then the image is copied: every call is done or not begun.
    Copied,
    /// The block device takes nothing more, in the middle of whatever is under way.
    Shutdown,
}

/// What became of one cut.
#[derive(Default)]
struct Outcome {
    metadata: Option<String>,
    log: Option<String>,
}

fn run(arguments: &Run) -> ExitCode {
    let began = Instant::now();
    let home = tempfile::Builder::new().prefix("highwater-power-").tempdir().expect("a temporary folder");
    let mut rng = SmallRng::seed_from_u64(arguments.seed);
    let (mut copied, mut shut_down, mut right_after_ack, mut acked) = (0, 0, 0, 0);
    let mut kept: Option<(Volume, Told)> = None;
    for number in 0..arguments.cuts {
        if number % CUTS_PER_VOLUME == 0 {
            kept = None;
        }
        let (volume, told) = kept.take().unwrap_or_else(|| (Volume::make(home.path(), VOLUME_BYTES), Told::default()));
        let mut moment = Moment::draw(&mut rng);
        if arguments.copied_only {
            moment.cut = Cut::Copied;
        }
        let (volume, told, outcome) = cut(volume, told, moment, number, Barrier::Kept, home.path());
        for (what, fault) in [("metadata", &outcome.metadata), ("log", &outcome.log)] {
            if let Some(fault) = fault {
                eprintln!("cut {number} of seed {} ({moment:?}): {what}: {fault}", arguments.seed);
                let image = std::env::temp_dir().join("highwater-power-failed.img");
                let saved = std::fs::copy(volume.image(), &image);
                eprintln!("the volume after the cut: {} ({saved:?})", image.display());
                return ExitCode::FAILURE;
            }
        }
        match moment.cut {
            Cut::Copied => copied += 1,
            Cut::Shutdown => shut_down += 1,
        }
        right_after_ack += u64::from(moment.acks.is_some());
        acked += told.metadata.acked.unwrap_or(0);
        kept = Some((volume, told));
    }
    drop(kept);
    let without_barrier = if arguments.no_control { None } else { Some(control(&mut rng, home.path())) };
    let blind = without_barrier.is_some_and(|(metadata, log)| metadata == 0 || log == 0);
    println!(
        "{}",
        json!({
            "cuts": arguments.cuts, "seed": arguments.seed, "image_copied": copied, "device_shut_down": shut_down,
            "right_after_an_ack": right_after_ack, "entries_acked": acked, "lost_or_not_opening": 0,
            "without_barrier": without_barrier.map(|(metadata, log)| json!({
                "cuts": CONTROL_CUTS, "metadata_found_out": metadata, "log_found_out": log })),
            "seconds": began.elapsed().as_secs(),
        })
    );
    if blind {
        eprintln!("without the barrier nothing was lost: these cuts prove nothing");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Cuts without the barrier: in how many of them the metadata store and the log lost what they had acknowledged.
fn control(rng: &mut SmallRng, home: &Path) -> (u64, u64) {
    let mut found_out = (0, 0);
    for number in 0..CONTROL_CUTS {
        let volume = Volume::make(home, VOLUME_BYTES);
        let moment = Moment { cut: Cut::Copied, ..Moment::draw(rng) };
        let (_, _, outcome) = cut(volume, Told::default(), moment, number, Barrier::LeftOut, home);
        found_out.0 += u64::from(outcome.metadata.is_some());
        found_out.1 += u64::from(outcome.log.is_some());
    }
    found_out
}

/// When and how.
#[derive(Debug, Clone, Copy)]
struct Moment {
    cut: Cut,
    life: Duration,
    /// Right after so many more acknowledgements, not after a time.
    acks: Option<u32>,
    seed: u64,
}

impl Moment {
    fn draw(rng: &mut SmallRng) -> Self {
        Self {
            cut: if rng.random_bool(0.5) { Cut::Copied } else { Cut::Shutdown },
            life: Duration::from_millis(rng.random_range(5..LIFE_MS_MAX)),
            acks: rng.random_bool(0.5).then(|| rng.random_range(1..60)),
            seed: rng.random(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Barrier {
    Kept,
    /// fdatasync says yes and does nothing; fsync too, for one of a directory commits what the other left out.
    LeftOut,
}

/// One life of a writer, its end, and what is left.
fn cut(
    volume: Volume,
    mut told: Told,
    moment: Moment,
    number: u64,
    barrier: Barrier,
    home: &Path,
) -> (Volume, Told, Outcome) {
    let this = std::env::current_exe().expect("a process knows its own file");
    let mut command = match barrier {
        Barrier::Kept => Command::new(&this),
        Barrier::LeftOut => {
            let mut strace = Command::new("strace");
            strace.args(["-D", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]);
            strace.args(["-e", "inject=fdatasync,fsync:retval=0"]).arg(&this);
            strace
        }
    };
    let boot = |life: u64| format!("boot-{number}-{life}");
    command.arg("write").arg(volume.path()).args([boot(0), moment.seed.to_string()]);
    let mut writer = Writer::start(&mut command);
    match moment.acks {
        Some(acks) => writer.run_to_ack(&mut told, acks),
        None => writer.run(&mut told, moment.life),
    }
    let copy = match moment.cut {
        Cut::Copied => {
            writer.freeze();
            let copy = volume.copy();
            writer.kill(&mut told);
            copy
        }
        Cut::Shutdown => {
            volume.shut_down();
            writer.kill_without_power(&mut told);
            volume.copy()
        }
    };
    let volume = volume.after(copy);

    let metadata = &told.metadata;
    let mut lines = vec![format!("vote {}", metadata.voted)];
    let numbers = [("acked", metadata.acked), ("purged", metadata.purged), ("snapshot", metadata.snapshot)];
    lines.extend(numbers.iter().filter_map(|(what, number)| number.map(|number| format!("{what} {number}"))));
    let of_metadata = Command::new(&this).arg("check-metadata").arg(volume.path()).arg(lines.join(",")).output();
    let file = home.join("told");
    std::fs::write(&file, told.log.lines()).expect("room for a small file");
    let of_log = Command::new(&this).arg("check-log").arg(volume.path()).arg(boot(1)).arg(&file).output();
    let (of_metadata, of_log) = (of_metadata.expect("it starts"), of_log.expect("it starts"));
    let fault = |output: &std::process::Output| {
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then(|| format!("{}: {told}", output.status))
    };
    let outcome = Outcome { metadata: fault(&of_metadata), log: fault(&of_log) };
    told.log = log::Told::read(&String::from_utf8_lossy(&of_log.stdout));
    (volume, told, outcome)
}
