//! Damage in every file of a metadata directory: one flip, zero, cut or duplicate; then it is opened and read by a process of
//! its own, which may end as it likes, but not with something else than what was acknowledged.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use highwater_quorum::storage_trial::Told;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng, SeedableRng};

use super::corruption::Damage;

/// Entries in the store that is damaged.
const ENTRIES: u64 = 2_500;
/// An opening that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Everything acknowledged is there.
    Whole,
    /// It says that it is damaged, and does not go on.
    Refused,
    /// The process ended in the middle of opening.
    Panicked,
    /// It opened and had forgotten something: the worst a voter can do.
    Forgot,
    /// It opened and held something else.
    Wrong,
    Hung,
}

/// For each file and outcome how often, and an example.
#[derive(Debug, Default)]
pub struct Sweep {
    pub cases: u64,
    pub outcomes: BTreeMap<(String, Outcome), (u64, String)>,
}

/// The lines that the checking process takes.
pub fn told_as_lines(told: &Told) -> String {
    let numbers = [("acked", told.acked), ("purged", told.purged), ("snapshot", told.snapshot)];
    let numbers = numbers.iter().filter_map(|(what, number)| number.map(|number| format!("{what} {number}")));
    std::iter::once(format!("vote {}", told.voted)).chain(numbers).collect::<Vec<_>>().join(",")
}

/// Damages `cases` places. `this` writes (`write-metadata DIR`) and checks (`check-metadata DIR LINES`).
pub fn sweep(this: &Path, cases: u64, seed: u64) -> Sweep {
    let home = tempfile::Builder::new().prefix("highwater-rot-").tempdir().expect("a temporary folder");
    let whole = home.path().join("whole");
    let told = told_as_lines(&write(this, &whole));
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut sweep = Sweep::default();
    let files: Vec<PathBuf> = files(&whole).into_iter().filter(|file| !file.ends_with(".lock")).collect();
    for case in 0..cases {
        let damaged = home.path().join("damaged");
        let _ = fs::remove_dir_all(&damaged);
        copy(&whole, &damaged);
        // Half of them in the database itself.
        let database = files.iter().find(|file| file.ends_with("db")).filter(|_| case % 2 == 0);
        let file = database.or_else(|| files.choose(&mut rng)).expect("there are files");
        let path = damaged.join(file.strip_prefix(&whole).expect("below it"));
        let mut content = fs::read(&path).expect("it was copied");
        let written: Vec<usize> = (0..content.len()).filter(|&at| content[at] != 0).collect();
        let Some(&place) = written.choose(&mut rng) else { continue };
        let damage = [Damage::Flip { bit: rng.random_range(0..8) }, Damage::Zero, Damage::Cut, Damage::Duplicate];
        let damage = damage[rng.random_range(0..damage.len())];
        super::corruption::apply(damage, place, &mut content);
        fs::write(&path, content).expect("room for a file");
        let (outcome, text) = check(this, &damaged, &told);
        sweep.cases += 1;
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name = if name.starts_with("snap.") { "snap.*".to_owned() } else { name };
        let example = format!("{damage:?} at {place}: {text}");
        sweep.outcomes.entry((name, outcome)).or_insert((0, example)).0 += 1;
    }
    sweep
}

/// Lets a process write until enough is acknowledged, and kills it.
fn write(this: &Path, directory: &Path) -> Told {
    let mut child =
        Command::new(this).arg("write-metadata").arg(directory).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut told = Told::default();
    let out = BufReader::new(child.stdout.take().expect("it is piped"));
    for line in out.lines().map_while(Result::ok) {
        told.note(&line);
        if told.acked.is_some_and(|acked| acked > ENTRIES) && told.purged.is_some() {
            let _ = child.kill();
        }
    }
    let _ = child.wait();
    told
}

fn check(this: &Path, directory: &Path, told: &str) -> (Outcome, String) {
    let mut command = Command::new(this);
    command.arg("check-metadata").arg(directory).arg(told).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let until = Instant::now() + PATIENCE;
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return (Outcome::Hung, String::new());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("it ended");
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let outcome = match output.status.code() {
        Some(0) => Outcome::Whole,
        Some(1) if text.contains("was acknowledged") || text.contains("and was") => Outcome::Forgot,
        Some(1) if text.contains("is another") || text.contains("what its entries make") => Outcome::Wrong,
        Some(1) => Outcome::Refused,
        _ => Outcome::Panicked,
    };
    (outcome, text)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("room for a folder");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, &target).map(drop).expect("room for a copy") }
    }
}
