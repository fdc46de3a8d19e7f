//! One run from nothing to its verdict: nodes, clients, faults, healing, the scan.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::JoinSet;

use super::board::{Board, SLOTS, watch_metadata};
use super::checker::{Demand, Verdict, judge};
use super::ending;
use super::fleet::{Fleet, NODES};
use super::history::{Event, History};
use super::nemesis::Nemesis;
use super::plan::{Fault, draw};
use super::workload::{admin, producers, readers, stock};
use crate::sim::rng::Rng;

/// How long three nodes may take to serve.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Load before the first fault, and after the last one until healing counts.
const CALM: Duration = Duration::from_secs(3);
/// What an idempotent producer may still need for its last batch.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// What a node that lost its metadata says until it is replaced, as it should.
const LOST_ITS_DISK: &str = "this voter is not the one the quorum knows";
/// What openraft says of calls while it is being stopped.
const OPENRAFT_STOPS: [&str; 3] =
    ["raft stopped", "failed to send HeartbeatProgress", "failed to receive from RaftCore"];

pub struct Plan {
    pub seed: u64,
    pub length: Duration,
    pub faults: Vec<Fault>,
    pub mean_gap: Duration,
    pub binary: PathBuf,
    /// Everything of the run lies here.
    pub dir: PathBuf,
    /// Values after which a topic is full.
    pub topic_values: u64,
    pub demand: Demand,
}

/// The file with the history of a run.
pub fn history_file(dir: &Path) -> PathBuf {
    dir.join("history.jsonl")
}

/// # Errors
/// The history cannot be written or read.
pub async fn run(plan: &Plan) -> io::Result<(Verdict, BTreeMap<String, u64>)> {
    let history = Arc::new(History::create(&history_file(&plan.dir))?);
    let faults = plan.faults.iter().map(ToString::to_string).collect();
    history.write(Event::Plan { seed: plan.seed, faults });
    let fleet = Arc::new(Fleet::make(&plan.binary, &plan.dir));
    let board = Arc::new(Board::new(fleet.clone(), history.clone()));
    let rng = Rng::new(plan.seed).fork(2);

    (1..=NODES).for_each(|node| fleet.start(node));
    wait_ready(&fleet).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut watchers = JoinSet::new();
    for node in 1..=NODES {
        watchers.spawn(watch_metadata(board.clone(), node, done.clone()));
    }
    let nemesis = Nemesis::new(board.clone());
    watchers.spawn(watch_processes(board.clone(), nemesis.clone(), done.clone()));
    admin::open_topics(&board).await;
    let mut clients = JoinSet::new();
    start_clients(&board, &rng, plan.topic_values, &mut clients);
    tokio::time::sleep(CALM).await;

    nemesis.run(draw(plan.seed, plan.length, &plan.faults, plan.mean_gap, NODES, SLOTS)).await;
    for node in 1..=NODES {
        fleet.signal(node, Signal::CONT);
        fleet.start(node);
    }
    let healing = Instant::now();
    eprintln!("{:7.1} s  the last fault is over", history.seconds());
    // Producers go on: in sync under load, or it does not count.
    let healed = ending::heal(&board, healing).await;
    eprintln!("{:7.1} s  {}", history.seconds(), if healed { "healed" } else { "not healed" });
    tokio::time::sleep(CALM).await;
    board.stop();
    let until = Instant::now() + LAST_ANSWERS;
    while let Ok(Some(ended)) = tokio::time::timeout_at(until.into(), clients.join_next()).await {
        ended.expect("no client panics");
    }
    ending::drain(&board, healed).await;
    ending::compare_metadata(&board).await;
    eprintln!("{:7.1} s  read from every replica", history.seconds());
    done.store(true, Ordering::Relaxed);
    while let Some(ended) = watchers.join_next().await {
        ended.expect("no watcher panics");
    }
    let warnings = read_logs(&board, plan.faults.contains(&Fault::Replace));
    history.flush()?;
    let verdict = judge(BufReader::new(File::open(history_file(&plan.dir))?).lines(), plan.demand)?;
    if board.producer_resets.load(Ordering::Relaxed) > 0 {
        eprintln!("{} idempotent producers began anew", board.producer_resets.load(Ordering::Relaxed));
    }
    Ok((verdict, warnings))
}

async fn wait_ready(fleet: &Fleet) {
    let until = Instant::now() + START_LIMIT;
    for node in 1..=NODES {
        while !fleet.is_ready(node).await {
            assert!(Instant::now() < until, "node {node} is not ready in {START_LIMIT:?}:\n{}", fleet.log(node));
            tokio::time::sleep(POLL).await;
        }
    }
}

fn start_clients(board: &Arc<Board>, rng: &Rng, topic_values: u64, clients: &mut JoinSet<()>) {
    for slot in 0..SLOTS {
        let stream = |label: u64| rng.fork(label * 100 + u64::from(slot));
        clients.spawn(producers::plain(board.clone(), format!("plain-{slot}"), Some(slot), stream(1)));
        clients.spawn(producers::idempotent(board.clone(), format!("idempotent-{slot}"), slot, stream(2)));
        let place_of = move |board: &Board| board.slot(slot);
        clients.spawn(readers::reader(board.clone(), format!("reader-{slot}"), place_of, stream(3)));
    }
    for index in 0..2 {
        let stream = |label: u64| rng.fork(label * 100 + index as u64);
        clients.spawn(producers::plain(board.clone(), format!("weak-{index}"), None, stream(4)));
        let place_of = move |board: &Board| board.weak(index);
        clients.spawn(readers::reader(board.clone(), format!("weak-reader-{index}"), place_of, stream(5)));
    }
    for (name, idempotent) in [("librdkafka-idempotent", true), ("librdkafka-plain", false)] {
        let (shared, stream) = (board.clone(), rng.fork(600 + u64::from(idempotent)));
        clients.spawn_blocking(move || stock::producer(&shared, name, idempotent, stream));
    }
    let shared = board.clone();
    clients.spawn_blocking(move || stock::consumer(&shared, "librdkafka-consumer"));
    clients.spawn(admin::admin(board.clone(), rng.fork(700)));
    clients.spawn(admin::rotate(board.clone(), topic_values));
}

/// A node that ends while nobody did anything to it is written down, and started again.
async fn watch_processes(board: Arc<Board>, nemesis: Arc<Nemesis>, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Relaxed) {
        for node in (1..=NODES).filter(|node| !nemesis.is_busy(*node)) {
            if let Some(status) = board.fleet.ended_by_itself(node) {
                board.history.write(Event::Broken { node, what: format!("ended by itself: {status}") });
                board.fleet.start(node);
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Writes down what no log may hold; how often each WARN line came, fields left out.
fn read_logs(board: &Board, replaced: bool) -> BTreeMap<String, u64> {
    let mut warnings = BTreeMap::new();
    for node in 1..=NODES {
        let mut told: BTreeSet<String> = BTreeSet::new();
        for line in board.fleet.log(node).lines() {
            let panicked =
                line.contains("panicked at") || line.contains("assertion") || line.contains("memory allocation of");
            let stops = line.contains(" openraft::") && OPENRAFT_STOPS.iter().any(|known| line.contains(known));
            let expected = stops || replaced && line.contains(LOST_ITS_DISK);
            let error = line.contains(" ERROR ") && !expected;
            // The same again says nothing new.
            if (panicked || error) && told.insert(without_numbers(line)) {
                board.history.write(Event::Broken { node, what: line.to_owned() });
            }
            if line.contains(" WARN ") {
                *warnings.entry(without_numbers(line)).or_default() += 1;
            }
        }
    }
    warnings
}

/// A log line without its time and with every number replaced.
fn without_numbers(line: &str) -> String {
    let text = line.split_once(' ').map_or(line, |(_, rest)| rest).trim();
    let mut kept = String::new();
    for letter in text.chars() {
        match letter.is_ascii_digit() {
            true if kept.ends_with('#') => {}
            true => kept.push('#'),
            false => kept.push(letter),
        }
    }
    kept
}

/// Takes away what lies in memory, and keeps what a person needs to find out more.
pub fn keep_artefacts(dir: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    fs::copy(history_file(dir), history_file(to))?;
    for node in 1..=NODES {
        let log = dir.join(format!("n{node}/log"));
        if log.exists() {
            fs::copy(log, to.join(format!("node-{node}.log")))?;
        }
    }
    Ok(())
}
