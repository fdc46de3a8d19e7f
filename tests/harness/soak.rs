//! A soak: a cluster under churn, and whether anything of it grows that should not.
//!
//! Ten times the churn of a day in some minutes, or a day as it is; a straight line through each of memory, descriptors,
//! threads, metadata, data and log, and a stated bound for its slope.

mod load;
mod sample;
mod slope;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::load::Load;
use self::sample::{Metric, Sample};
use self::slope::{Growth, judge};
use crate::chaos::fleet::{Build, Fleet, HEALTH};

const NODES: u8 = 3;
/// Between two samples of a short run; a long one takes as many in all.
const LOOK: Duration = Duration::from_secs(1);
const SAMPLES_MAX: u32 = 3_600;
const POLL: Duration = Duration::from_millis(100);
/// How long a cluster may take to be healthy after a start.
const HEAL_LIMIT: Duration = Duration::from_secs(60);
/// How long a node may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// The time in which caches, pools and retention fill is not judged: this share of a run, and at least and at most so long.
const WARM_UP_SHARE: f64 = 0.4;
const WARM_UP: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3_600)];
/// How soon after the last client its connections are gone.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
/// What nodes are configured with beside what the fleet needs: everything that is kept goes within seconds.
const PROPERTIES: &str = "log.retention.check.interval.ms=2000\nlog.segment.delete.delay.ms=1000\n";

/// What to do, and for how long.
pub struct Plan {
    pub length: Duration,
    /// Of what a day brings: 1 or 10.
    pub churn: u32,
    /// Between two rolling restarts; `None`: never.
    pub roll_every: Option<Duration>,
    /// Between two kills of a node; `None`: never.
    pub kill_every: Option<Duration>,
    pub seed: u64,
    pub binary: PathBuf,
    pub dir: PathBuf,
}

/// Runs it; the closing line, whose `ok` is the verdict.
///
/// # Errors
/// A node's files cannot be read.
pub async fn run(plan: &Plan) -> io::Result<Value> {
    let fleet = Arc::new(Fleet::make(Build {
        properties: PROPERTIES.to_owned(),
        ..Build::of(plan.binary.clone(), plan.dir.clone(), NODES)
    }));
    fleet.nodes().for_each(|node| fleet.start(node));
    healthy(&fleet).await?;
    let load = Load::start(fleet.clone(), plan.churn, plan.seed).await?;
    load.begin();
    let (taken, restarts) = watch(plan, &fleet, &load).await?;
    let counts = load.stop().await;
    let mut faults = clients_left(&fleet).await?;
    let mut nodes = Vec::new();
    for node in fleet.nodes() {
        let mine: Vec<&Sample> = taken.iter().filter(|sample| sample.node == node).collect();
        let grown = grown(plan, &mine);
        faults
            .extend(grown.iter().filter(|growth| growth.is_too_much()).map(|growth| format!("node {node}: {growth}")));
        faults.extend(wrong_lines(&fleet, node, restarts > 0));
        let told: serde_json::Map<String, Value> =
            grown.iter().map(|growth| (growth.metric.name().to_owned(), growth.json())).collect();
        nodes.push(json!({ "node": node, "samples": mine.len(), "growth": told }));
    }
    if counts.failed > 0 && restarts == 0 {
        faults.push(format!("{} records of an undisturbed cluster were not acknowledged", counts.failed));
    }
    for fault in &faults {
        eprintln!("{fault}");
    }
    Ok(json!({
        "ok": faults.is_empty(),
        "seed": plan.seed,
        "seconds": plan.length.as_secs(),
        "churn": plan.churn,
        "acknowledged": counts.acknowledged,
        "failed": counts.failed,
        "connections": counts.connections,
        "topics_created": counts.created,
        "topics_deleted": counts.deleted,
        "settings_changed": counts.configured,
        "restarts": restarts,
        "faults": faults,
        "nodes": nodes,
    }))
}

/// Waits until every node is ready and says that all is well.
async fn healthy(fleet: &Fleet) -> io::Result<()> {
    let until = Instant::now() + HEAL_LIMIT;
    for node in fleet.nodes() {
        loop {
            let health = fleet.get(node, HEALTH).await;
            if matches!(&health, Some((200, health)) if health["healthy"] == true) && fleet.is_ready(node).await {
                break;
            }
            if Instant::now() > until {
                return Err(io::Error::other(format!("node {node} is not healthy in {HEAL_LIMIT:?}: {health:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

/// Looks at the nodes until the time is over, and restarts them when it is due; the samples, and how many were restarted.
async fn watch(plan: &Plan, fleet: &Fleet, load: &Load) -> io::Result<(Vec<Sample>, u64)> {
    let began = Instant::now();
    let every = LOOK.max(plan.length / SAMPLES_MAX);
    let (mut taken, mut restarts) = (Vec::new(), 0);
    let (mut next_roll, mut next_kill) = (plan.roll_every, plan.kill_every);
    let mut victim = 0;
    while began.elapsed() < plan.length {
        tokio::time::sleep(every).await;
        taken.extend(samples(fleet, began.elapsed().as_secs_f64())?);
        let is_due = |next: &mut Option<Duration>, every: Option<Duration>| match *next {
            Some(at) if at <= began.elapsed() => {
                *next = every.map(|every| at + every);
                true
            }
            _ => false,
        };
        if is_due(&mut next_roll, plan.roll_every) {
            for node in fleet.nodes() {
                let ended = fleet.terminate(node, STOP_LIMIT).await;
                if !ended.is_some_and(|status| status.success()) {
                    return Err(io::Error::other(format!("node {node} did not stop in order: {ended:?}")));
                }
                fleet.start(node);
                healthy(fleet).await?;
                restarts += 1;
            }
        }
        if is_due(&mut next_kill, plan.kill_every) {
            victim = victim % NODES + 1;
            fleet.kill(victim);
            fleet.start(victim);
            healthy(fleet).await?;
            restarts += 1;
        }
        if load.acknowledged.load(Ordering::Relaxed) == 0 && began.elapsed() > HEAL_LIMIT {
            return Err(io::Error::other("nothing is acknowledged"));
        }
    }
    Ok((taken, restarts))
}

fn samples(fleet: &Fleet, at: f64) -> io::Result<Vec<Sample>> {
    fleet.nodes().map(|node| Sample::take(fleet, node, at)).collect()
}

/// What each metric of a node did after the warm-up. What a restart sets back is judged from one start to the next.
fn grown(plan: &Plan, samples: &[&Sample]) -> Vec<Growth> {
    let warm_up = plan.length.mul_f64(WARM_UP_SHARE).clamp(WARM_UP[0], WARM_UP[1]).min(plan.length / 2).as_secs_f64();
    let mut worst: Vec<Growth> = Vec::new();
    for metric in Metric::ALL {
        let mut lives: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut start = None;
        let mut born = 0.0;
        for sample in samples {
            let is_new = start.replace(sample.starts) != Some(sample.starts);
            if is_new {
                born = if lives.is_empty() { 0.0 } else { sample.at };
            }
            if lives.is_empty() || is_new && metric.is_set_back() {
                lives.push(Vec::new());
            }
            let since = if metric.is_set_back() { born } else { 0.0 };
            if sample.at >= since + warm_up
                && let Some(life) = lives.last_mut()
            {
                life.push((sample.at, sample.of(metric)));
            }
        }
        let judged = lives.iter().filter_map(|life| judge(metric, plan.churn, life));
        worst.extend(judged.max_by(|one, other| one.excess().total_cmp(&other.excess())));
    }
    worst
}

/// Clients have left: so have their connections, on every node.
async fn clients_left(fleet: &Fleet) -> io::Result<Vec<String>> {
    let until = Instant::now() + CLOSE_LIMIT;
    loop {
        let left = samples(fleet, 0.0)?.into_iter().filter(|sample| sample.clients > 0);
        let left: Vec<String> = left
            .map(|Sample { node, clients, .. }| {
                format!("node {node}: {clients} connections {CLOSE_LIMIT:?} after the last client")
            })
            .collect();
        if left.is_empty() || Instant::now() > until {
            return Ok(left);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// ERROR lines, panics, and, where nobody was restarted, changes of who is in sync on a topic that is kept.
fn wrong_lines(fleet: &Fleet, node: u8, restarted: bool) -> Vec<String> {
    let kept = format!("partition=\"{}-", load::KEPT);
    let log = fleet.log(node);
    let is_wrong = |line: &&str| {
        line.contains(" ERROR ")
            || line.contains("panicked at")
            || !restarted && line.contains("ISR changed") && line.contains(&kept)
    };
    log.lines().filter(is_wrong).take(5).map(|line| format!("node {node}: {line}")).collect()
}

/// Keeps the nodes' logs of a run that failed.
///
/// # Errors
/// The folder cannot be written.
pub fn keep_logs(dir: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for node in 1..=NODES {
        std::fs::copy(dir.join(format!("n{node}/log")), to.join(format!("node-{node}.log")))?;
    }
    Ok(())
}
