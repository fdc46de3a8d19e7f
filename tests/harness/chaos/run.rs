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
use super::families::Family;
use super::fleet::hardware::lacks_cgroups;
use super::fleet::{Build, Fleet};
use super::history::{Event, History};
use super::logs;
use super::nemesis::Nemesis;
use super::plan::{Fault, draw};
use super::workload::foreign::Foreign;
use super::workload::hostile::Stranger;
use super::workload::{admin, producers, readers, stock};
use crate::sim::rng::Rng;

/// How long three nodes may take to serve.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Load before the first fault, and after the last one until healing counts.
const CALM: Duration = Duration::from_secs(3);
/// What an idempotent producer may still need for its last batch.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
#[derive(Debug, Clone)]
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
    pub nodes: u8,
    pub families: BTreeSet<Family>,
    /// A rule that the binary is to leave out; the run ends as soon as its absence shows.
    pub flaw: Option<String>,
    /// One fault at a time, each when the one before has healed.
    pub one_by_one: bool,
}

/// The file with the history of a run.
pub fn history_file(dir: &Path) -> PathBuf {
    dir.join("history.jsonl")
}

/// # Errors
/// The history cannot be written or read.
pub async fn run(plan: &Plan) -> io::Result<(Verdict, BTreeMap<String, u64>)> {
    let programs: Vec<_> = plan.families.iter().filter_map(|f| Some((*f, f.program(&plan.dir)?))).collect();
    let history = History::create(&history_file(&plan.dir))?;
    let history = Arc::new(if plan.flaw.is_some() { history.judged() } else { history });
    let faults = plan.faults.iter().map(ToString::to_string).collect();
    history.write(Event::Plan { seed: plan.seed, faults });
    let any = |needs: fn(Fault) -> bool| plan.faults.iter().any(|fault| needs(*fault));
    let fleet = Arc::new(Fleet::make(Build {
        flaw: plan.flaw.clone(),
        links: any(Fault::needs_links),
        disks: any(Fault::needs_disks),
        cgroups: any(|fault| fault == Fault::Squeeze),
        spare: any(|fault| fault == Fault::Twin),
        ..Build::of(plan.binary.clone(), plan.dir.clone(), plan.nodes)
    }));
    let board = Arc::new(Board::new(fleet.clone(), history.clone()));
    let rng = Rng::new(plan.seed).fork(2);

    fleet.nodes().for_each(|node| fleet.start(node));
    wait_ready(&fleet).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut watchers = JoinSet::new();
    for node in fleet.nodes() {
        watchers.spawn(watch_metadata(board.clone(), node, done.clone()));
    }
    let nemesis = Nemesis::new(board.clone(), plan.one_by_one);
    watchers.spawn(watch_processes(board.clone(), nemesis.clone(), done.clone()));
    admin::open_topics(&board).await;
    let foreign: Vec<Arc<Foreign>> =
        programs.iter().map(|(family, program)| Foreign::start(&board, *family, program, &plan.dir)).collect();
    let stranger = match plan.families.contains(&Family::Hostile) {
        true => Some(Arc::new(Stranger::new(&board).await)),
        false => None,
    };
    let mut clients = JoinSet::new();
    start_clients(&board, &rng, plan, &foreign, &mut clients);
    if let Some(stranger) = &stranger {
        clients.spawn(stranger.clone().work(board.clone(), rng.fork(900)));
    }
    tokio::time::sleep(CALM).await;

    let steps = draw(plan.seed, plan.length, &plan.faults, plan.mean_gap, plan.nodes, SLOTS);
    tokio::select! {
        () = nemesis.run(steps) => {}
        () = is_caught(&history) => {}
    }
    if !history.is_broken() {
        end(plan, &board, &foreign, &mut clients).await;
        if let Some(stranger) = &stranger {
            ending::besiege(&board, stranger, rng.fork(901)).await;
        }
    }
    board.stop();
    // After a run to its end they have ended already.
    last_answers(&mut clients).await;
    done.store(true, Ordering::Relaxed);
    while let Some(ended) = watchers.join_next().await {
        ended.expect("no watcher panics");
    }
    let warnings = logs::judge(&board);
    history.flush()?;
    let verdict = judge(BufReader::new(File::open(history_file(&plan.dir))?).lines(), plan.demand)?;
    if board.producer_resets.load(Ordering::Relaxed) > 0 {
        eprintln!("{} idempotent producers began anew", board.producer_resets.load(Ordering::Relaxed));
    }
    Ok((verdict, warnings))
}

/// Waits until the history shows that something is broken; for ever, where nobody looks.
async fn is_caught(history: &History) {
    while !history.is_broken() {
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for the clients to end.
async fn last_answers(clients: &mut JoinSet<()>) {
    let until = Instant::now() + LAST_ANSWERS;
    while let Ok(Some(ended)) = tokio::time::timeout_at(until.into(), clients.join_next()).await {
        ended.expect("no client panics");
    }
}

/// After the last fault: everything heals, the clients end, everything is read.
async fn end(plan: &Plan, board: &Arc<Board>, foreign: &[Arc<Foreign>], clients: &mut JoinSet<()>) {
    let (fleet, history) = (&board.fleet, &board.history);
    for node in fleet.nodes() {
        fleet.signal(node, Signal::CONT);
        fleet.start(node);
    }
    let healing = Instant::now();
    eprintln!("{:7.1} s  the last fault is over", history.seconds());
    // Producers go on: in sync under load, or it does not count.
    let healed = ending::heal(board, healing).await;
    eprintln!("{:7.1} s  {}", history.seconds(), if healed { "healed" } else { "not healed" });
    tokio::time::sleep(CALM).await;
    board.stop();
    last_answers(clients).await;
    ending::drain(board, plan.families.contains(&Family::Librdkafka), foreign, healed).await;
    ending::compare_metadata(board).await;
    eprintln!("{:7.1} s  read from every replica", history.seconds());
}

async fn wait_ready(fleet: &Fleet) {
    let until = Instant::now() + START_LIMIT;
    for node in fleet.nodes() {
        while !fleet.is_ready(node).await {
            assert!(Instant::now() < until, "node {node} is not ready in {START_LIMIT:?}:\n{}", fleet.log(node));
            tokio::time::sleep(POLL).await;
        }
    }
}

fn start_clients(board: &Arc<Board>, rng: &Rng, plan: &Plan, foreign: &[Arc<Foreign>], clients: &mut JoinSet<()>) {
    if plan.families.contains(&Family::Own) {
        start_own(board, rng, clients);
    }
    if plan.families.contains(&Family::Librdkafka) {
        for (name, idempotent) in [("librdkafka-idempotent", true), ("librdkafka-plain", false)] {
            let (shared, stream) = (board.clone(), rng.fork(600 + u64::from(idempotent)));
            clients.spawn_blocking(move || stock::producer(&shared, name, idempotent, stream));
        }
        let shared = board.clone();
        clients.spawn_blocking(move || stock::consumer(&shared, "librdkafka-consumer"));
    }
    for (index, client) in foreign.iter().enumerate() {
        let (client, stream) = (client.clone(), rng.fork(800 + index as u64));
        clients.spawn_blocking(move || client.work(stream));
    }
    clients.spawn(admin::admin(board.clone(), rng.fork(700)));
    clients.spawn(admin::rotate(board.clone(), plan.topic_values));
}

fn start_own(board: &Arc<Board>, rng: &Rng, clients: &mut JoinSet<()>) {
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
}

/// A node that ends while nobody did anything to it is written down, and started again.
async fn watch_processes(board: Arc<Board>, nemesis: Arc<Nemesis>, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Relaxed) {
        for node in board.fleet.nodes().filter(|node| !nemesis.is_busy(*node)) {
            if let Some(status) = board.fleet.ended_by_itself(node) {
                board.history.write(Event::Broken { node, what: format!("ended by itself: {status}") });
                board.fleet.start(node);
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether this machine can do a fault; why not, in words.
///
/// # Errors
/// It cannot.
pub fn can_do(fault: Fault) -> Result<(), String> {
    match fault {
        Fault::Squeeze => lacks_cgroups().map_or(Ok(()), |error| Err(format!("no cgroups: {error}"))),
        _ => Ok(()),
    }
}

/// Takes away what lies in memory, and keeps what a person needs to find out more.
pub fn keep_artefacts(dir: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    fs::copy(history_file(dir), history_file(to))?;
    for node in 1..=u8::MAX {
        let log = dir.join(format!("n{node}/log"));
        if !log.exists() {
            break;
        }
        fs::copy(log, to.join(format!("node-{node}.log")))?;
    }
    for family in Family::ALL {
        let errors = dir.join(format!("{family}.err"));
        if errors.exists() {
            fs::copy(errors, to.join(format!("{family}.err")))?;
        }
    }
    Ok(())
}
