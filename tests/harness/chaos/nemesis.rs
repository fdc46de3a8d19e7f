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
use super::ending;
use super::fleet::{CONTROLLER_PORT, Cut, Fleet, HEALTH, REPLICATION_PORT};
use super::history::Event;
use super::plan::{Fault, Step, Target};

mod disks;
mod hand_over;
mod others;

/// Faults at a time.
const AT_ONCE: usize = 3;
/// How long SIGTERM may take: leaders move, and without a quorum it gives up after five seconds (D34).
const STOP_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);
/// Between two questions whether all is well, and how long it then stays so.
const HEAL_POLL: Duration = Duration::from_millis(20);
const SETTLED: Duration = Duration::from_millis(500);
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
    /// One fault at a time, each when the one before has healed.
    one_by_one: bool,
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
    pub fn new(board: Arc<Board>, one_by_one: bool) -> Arc<Self> {
        let (lossy, ids) = (Arc::new(Semaphore::new(1)), AtomicU64::new(1));
        Arc::new(Self { board, busy: Mutex::default(), lossy, ids, one_by_one })
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
        if self.one_by_one {
            return self.run_one_by_one(steps).await;
        }
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

    /// The same steps, each as soon as the one before has healed, until the time of the last one has come.
    async fn run_one_by_one(&self, steps: Vec<Step>) {
        let (began, length) = (Instant::now(), steps.last().map_or(Duration::ZERO, |step| step.after));
        for step in steps.iter().cycle().take_while(|_| began.elapsed() < length) {
            self.step(*step).await;
            let ended = Instant::now();
            let id = self.ids.load(Ordering::Relaxed) - 1;
            while ending::not_healed(&self.board).await.is_some() && ended.elapsed() < REFILL_LIMIT {
                tokio::time::sleep(HEAL_POLL).await;
            }
            let ms = u64::try_from(ended.elapsed().as_millis()).expect("a short time");
            self.board.history.write(Event::Recovered { id, ms });
            // So that every fault meets clients that have settled.
            tokio::time::sleep(SETTLED).await;
        }
    }

    async fn targets(&self, target: Target) -> Vec<u8> {
        match target {
            Target::Node(node) => vec![node],
            Target::LeaderOf(slot) => {
                let leader = self.board.leader(&self.board.slot(slot)).map(|(node, _)| node);
                vec![leader.unwrap_or(1 + slot % self.fleet().nodes().end())]
            }
            Target::Controller => vec![self.fleet().controller().await.unwrap_or(1)],
            Target::MajorityWithout(node) => {
                let mut nodes = self.fleet().others(node);
                nodes.truncate(nodes.len().div_ceil(2) + 1);
                nodes
            }
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

    /// Writes down that a fault begins; `how`: what is done to the nodes, with a blank behind.
    async fn begin(&self, step: &Step, nodes: &[u8], how: &str) -> u64 {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let target = format!("{} = {nodes:?} {how}for {:?}", step.target, step.lasts);
        // Asking takes its time, and beside other faults nobody could tell what it means.
        let controller = if self.one_by_one { self.fleet().controller().await } else { None };
        let controller = controller.is_some_and(|leader| nodes.contains(&leader));
        eprintln!("{:7.1} s  {}: {target}", self.board.history.seconds(), step.fault);
        self.board.mark(step.fault, nodes);
        let (fault, nodes) = (step.fault.name().to_owned(), nodes.to_vec());
        self.board.history.write(Event::FaultBegins { id, fault, target, nodes, controller });
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
            Fault::Delay | Fault::HalfOpen | Fault::MidFrame | Fault::Suspicion => self.links(step).await,
            Fault::Pause | Fault::RollingPause => self.pause(step).await,
            Fault::Wipe | Fault::Replace => self.lossy(step).await,
            Fault::Rot => self.rot(step).await,
            Fault::FullDisk => self.full_disk(step).await,
            Fault::PowerCut => self.power_cut(step).await,
            Fault::Squeeze => self.squeeze(step).await,
            Fault::Twin => self.twin(step).await,
            Fault::HandOver => self.hand_over(step).await,
            Fault::Forsaken => self.forsaken(step).await,
            Fault::Kill | Fault::Strike | Fault::Term | Fault::KillAll => self.kill(step).await,
        }
    }

    async fn network(&self, step: Step) {
        let nodes = self.targets(step.target).await;
        let node = nodes[0];
        let (fleet, others, second) = (self.fleet(), self.fleet().others(node), step.detail.is_multiple_of(2));
        let both_ways = |ports: &[u16]| {
            let mut cuts = vec![fleet.deaf(node, &others, ports)];
            cuts.extend(others.iter().map(|other| fleet.deaf(*other, &[node], ports)));
            cuts
        };
        let (cuts, how): (Vec<Cut>, String) = match step.fault {
            Fault::Partition => (both_ways(&[]), String::new()),
            Fault::QuorumCut => (both_ways(&[CONTROLLER_PORT]), String::new()),
            Fault::DataCut => (both_ways(&[REPLICATION_PORT]), String::new()),
            Fault::OneWay if second => (vec![fleet.deaf(node, &others, &[])], "hears nobody ".to_owned()),
            Fault::OneWay => {
                let cuts = others.iter().map(|other| fleet.deaf(*other, &[node], &[])).collect();
                (cuts, "is heard by nobody ".to_owned())
            }
            Fault::Bridge => {
                let other = others[usize::from(second)];
                let cuts = vec![fleet.deaf(node, &[other], &[]), fleet.deaf(other, &[node], &[])];
                (cuts, format!("and node {other} lose each other "))
            }
            Fault::ClientCut => {
                let what = if second { "its answers are lost " } else { "requests are lost " };
                (vec![fleet.client_cut(node, second)], what.to_owned())
            }
            Fault::Loss => {
                let percent = 1 + step.detail % 30;
                (vec![fleet.loss(node, percent)], format!("loses {percent} % "))
            }
            _ => (nodes.iter().map(|node| fleet.reset(*node)).collect(), String::new()),
        };
        let id = self.begin(&step, &nodes, &how).await;
        fleet.cut(id, cuts);
        tokio::time::sleep(step.lasts).await;
        fleet.mend(id);
        self.end(id);
    }

    async fn pause(&self, step: Step) {
        let rounds: Vec<Vec<u8>> = match step.fault {
            Fault::RollingPause => self.fleet().nodes().map(|node| vec![node]).collect(),
            _ => vec![self.targets(step.target).await],
        };
        for nodes in rounds {
            let Some(held) = self.hold(nodes).await else { continue };
            let id = self.begin(&step, &held.nodes, "").await;
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
            Fault::KillAll => self.fleet().nodes().collect(),
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
        let id = self.begin(&step, &held.nodes, "").await;
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
        let id = self.begin(&step, &held.nodes, "").await;
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
        for witness in self.fleet().others(node).into_iter().cycle() {
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
