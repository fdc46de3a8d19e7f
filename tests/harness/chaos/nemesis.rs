//! Makes the schedule happen: finds out who is meant, does it, undoes it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::board::Board;
use super::fleet::{CONTROLLER_PORT, Cut, Fleet, HEALTH, NODES, REPLICATION_PORT};
use super::history::Event;
use super::plan::{Fault, Step, Target};

/// Faults at a time.
const AT_ONCE: usize = 3;
/// How long SIGTERM may take: leaders move, and without a quorum it gives up after five seconds (D34).
const STOP_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);
/// How long a step waits for its turn, and for its nodes; one that never came makes the run vacuous.
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// How long a wiped node is waited for to be in sync everywhere; nothing is wiped after that.
const REFILL_LIMIT: Duration = Duration::from_secs(120);
const REPLACE_LIMIT: Duration = Duration::from_secs(60);

pub struct Nemesis {
    board: Arc<Board>,
    /// Nodes whose process somebody is doing something to.
    busy: Mutex<BTreeSet<u8>>,
    /// One lossy member at a time, until it has caught up: min.insync.replicas − 1.
    lossy: Arc<Semaphore>,
    ids: AtomicU64,
}

/// Gives nodes back.
struct Held<'a> {
    nemesis: &'a Nemesis,
    nodes: Vec<u8>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut busy = self.nemesis.busy.lock();
        for node in &self.nodes {
            busy.remove(node);
        }
    }
}

impl Nemesis {
    pub fn new(board: Arc<Board>) -> Arc<Self> {
        Arc::new(Self { board, busy: Mutex::default(), lossy: Arc::new(Semaphore::new(1)), ids: AtomicU64::new(1) })
    }

    fn fleet(&self) -> &Fleet {
        &self.board.fleet
    }

    /// Whether somebody is doing something to the process of a node right now.
    pub fn is_busy(&self, node: u8) -> bool {
        self.busy.lock().contains(&node)
    }

    /// Runs the whole schedule; all that it did is undone when it returns, but nothing is waited for.
    pub async fn run(self: Arc<Self>, steps: Vec<Step>) {
        let began = Instant::now();
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = JoinSet::new();
        for step in steps {
            tokio::time::sleep_until((began + step.after).into()).await;
            let (nemesis, turns) = (self.clone(), turns.clone());
            running.spawn(async move {
                let Ok(Ok(_turn)) = tokio::time::timeout(TURN_LIMIT, turns.acquire()).await else { return };
                nemesis.step(step).await;
            });
        }
        while let Some(done) = running.join_next().await {
            done.expect("no fault panics");
        }
    }

    async fn targets(&self, target: Target) -> Vec<u8> {
        match target {
            Target::Node(node) => vec![node],
            Target::LeaderOf(slot) => {
                let leader = self.board.leader(&self.board.slot(slot)).map(|(node, _)| node);
                vec![leader.unwrap_or(slot % NODES + 1)]
            }
            Target::Controller => vec![self.fleet().controller().await.unwrap_or(1)],
            Target::MajorityWithout(node) => others(node),
        }
    }

    /// The nodes, once nobody else does anything to their processes.
    async fn hold(&self, nodes: Vec<u8>) -> Option<Held<'_>> {
        let until = Instant::now() + TURN_LIMIT;
        while Instant::now() < until {
            {
                let mut busy = self.busy.lock();
                if nodes.iter().all(|node| !busy.contains(node)) {
                    busy.extend(&nodes);
                    return Some(Held { nemesis: self, nodes });
                }
            }
            tokio::time::sleep(POLL).await;
        }
        None
    }

    fn begin(&self, fault: Fault, target: String) -> u64 {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        eprintln!("{:7.1} s  {fault}: {target}", self.board.history.seconds());
        self.board.history.write(Event::FaultBegins { id, fault: fault.name().to_owned(), target });
        id
    }

    fn end(&self, id: u64) {
        self.board.history.write(Event::FaultEnds { id });
    }

    async fn step(&self, step: Step) {
        match step.fault {
            Fault::Partition
            | Fault::OneWay
            | Fault::Bridge
            | Fault::ClientCut
            | Fault::QuorumCut
            | Fault::DataCut
            | Fault::Loss
            | Fault::Reset => self.network(step).await,
            Fault::Pause | Fault::RollingPause => self.pause(step).await,
            Fault::Wipe | Fault::Replace => self.lossy(step).await,
            Fault::Kill | Fault::Strike | Fault::Term | Fault::KillAll => self.kill(step).await,
        }
    }

    async fn network(&self, step: Step) {
        let nodes = self.targets(step.target).await;
        let node = nodes[0];
        let (fleet, others, second) = (self.fleet(), others(node), step.detail.is_multiple_of(2));
        let both_ways = |ports: &[u16]| {
            let mut cuts = vec![fleet.deaf(node, &others, ports)];
            cuts.extend(others.iter().map(|other| fleet.deaf(*other, &[node], ports)));
            cuts
        };
        let (cuts, how): (Vec<Cut>, String) = match step.fault {
            Fault::Partition => (both_ways(&[]), String::new()),
            Fault::QuorumCut => (both_ways(&[CONTROLLER_PORT]), String::new()),
            Fault::DataCut => (both_ways(&[REPLICATION_PORT]), String::new()),
            Fault::OneWay if second => (vec![fleet.deaf(node, &others, &[])], "hears nobody".to_owned()),
            Fault::OneWay => {
                let cuts = others.iter().map(|other| fleet.deaf(*other, &[node], &[])).collect();
                (cuts, "is heard by nobody".to_owned())
            }
            Fault::Bridge => {
                let other = others[usize::from(second)];
                let cuts = vec![fleet.deaf(node, &[other], &[]), fleet.deaf(other, &[node], &[])];
                (cuts, format!("and node {other} lose each other"))
            }
            Fault::ClientCut => {
                let what = if second { "its answers are lost" } else { "requests are lost" };
                (vec![fleet.client_cut(node, second)], what.to_owned())
            }
            Fault::Loss => {
                let percent = 1 + step.detail % 30;
                (vec![fleet.loss(node, percent)], format!("loses {percent} %"))
            }
            _ => (nodes.iter().map(|node| fleet.reset(*node)).collect(), String::new()),
        };
        let id = self.begin(step.fault, format!("{} = {nodes:?} {how} for {:?}", step.target, step.lasts));
        fleet.cut(id, cuts);
        tokio::time::sleep(step.lasts).await;
        fleet.mend(id);
        self.end(id);
    }

    async fn pause(&self, step: Step) {
        let rounds: Vec<Vec<u8>> = match step.fault {
            Fault::RollingPause => (1..=NODES).map(|node| vec![node]).collect(),
            _ => vec![self.targets(step.target).await],
        };
        for nodes in rounds {
            let Some(held) = self.hold(nodes).await else { continue };
            let id = self.begin(step.fault, format!("{} = {:?} for {:?}", step.target, held.nodes, step.lasts));
            for node in &held.nodes {
                self.fleet().signal(*node, Signal::STOP);
            }
            tokio::time::sleep(step.lasts).await;
            for node in &held.nodes {
                self.fleet().signal(*node, Signal::CONT);
            }
            self.end(id);
        }
    }

    async fn kill(&self, step: Step) {
        let nodes = match step.fault {
            Fault::KillAll => (1..=NODES).collect(),
            _ => self.targets(step.target).await,
        };
        let Some(held) = self.hold(nodes).await else { return };
        if let (Fault::Strike, Target::LeaderOf(slot)) = (step.fault, step.target) {
            let produce = self.board.produces[usize::from(slot)].notified();
            if tokio::time::timeout(TURN_LIMIT, produce).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_micros(step.detail % 5_000)).await;
        }
        let id = self.begin(step.fault, format!("{} = {:?} for {:?}", step.target, held.nodes, step.lasts));
        for node in &held.nodes {
            match step.fault {
                Fault::Term => self.terminate(*node).await,
                _ => self.fleet().kill(*node),
            }
        }
        tokio::time::sleep(step.lasts).await;
        for node in &held.nodes {
            self.fleet().start(*node);
        }
        self.end(id);
    }

    async fn terminate(&self, node: u8) {
        let broken = |what: String| self.board.history.write(Event::Broken { node, what });
        match self.fleet().terminate(node, STOP_LIMIT).await {
            Some(status) if status.success() => {}
            Some(status) => broken(format!("ended with {status} after SIGTERM")),
            None => broken(format!("had not ended {STOP_LIMIT:?} after SIGTERM")),
        }
    }

    async fn lossy(&self, step: Step) {
        let Ok(Ok(budget)) = tokio::time::timeout(TURN_LIMIT, self.lossy.clone().acquire_owned()).await else { return };
        let node = self.targets(step.target).await[0];
        let Some(held) = self.hold(vec![node]).await else { return };
        let id = self.begin(step.fault, format!("{} = {:?} for {:?}", step.target, held.nodes, step.lasts));
        let replace = step.fault == Fault::Replace;
        self.fleet().kill(node);
        self.fleet().wipe(node, replace);
        tokio::time::sleep(step.lasts).await;
        self.fleet().start(node);
        if replace {
            self.replace(node).await;
        }
        drop(held);
        self.end(id);
        tokio::spawn(give_back(self.board.clone(), node, budget));
    }

    /// Makes a node a voter again that lost its metadata, as its readiness says.
    async fn replace(&self, node: u8) {
        let body = serde_json::json!({ "node_id": node, "replace": node });
        let until = Instant::now() + REPLACE_LIMIT;
        let mut last = None;
        for witness in (1..=NODES).cycle().filter(|witness| *witness != node) {
            if Instant::now() > until {
                break;
            }
            let limit = Duration::from_secs(10);
            last = self.fleet().post(witness, "/v3/clusters/-/quorum/voters", &body, limit).await;
            if last.as_ref().is_some_and(|(status, change)| *status < 300 && change["state"] != "CATCHING_UP") {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        let what = format!("is no voter again {REPLACE_LIMIT:?} after its disk was lost; last told: {last:?}");
        self.board.history.write(Event::Broken { node, what });
    }
}

fn others(node: u8) -> Vec<u8> {
    (1..=NODES).filter(|other| *other != node).collect()
}

/// Nobody else may lose anything until this node has everything again, in its own eyes: its metadata holds its
/// registration, by which it left all ISRs.
async fn give_back(board: Arc<Board>, node: u8, budget: OwnedSemaphorePermit) {
    let until = Instant::now() + REFILL_LIMIT;
    let is_full = async || {
        board.fleet.is_ready(node).await
            && matches!(board.fleet.get(node, HEALTH).await, Some((200, health)) if health["healthy"] == true)
    };
    while !is_full().await {
        if Instant::now() > until {
            budget.forget();
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}
