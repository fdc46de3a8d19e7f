//! The raft leader's work: sessions, suspicions, fences, registrations, learners, leaders at home.
//!
//! It judges nobody while no majority answers it (R220), and all it decides is a proposal like any other (R219).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_wire::{BrokerEpoch, BrokerId, Millis};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

mod table;

use self::table::Table;
use crate::ambient::{random_cluster_id, wall_clock};
use crate::client::{Heartbeat, HeartbeatAnswer, propose};
use crate::config::QuorumLimits;
use crate::controller::{Answer, Command, ElectionKind, FencedBroker, Refusal, RegisterBroker};
use crate::image::{BrokerRegistration, BrokerState, MetadataImage};
use crate::planner::away_from_home;
use crate::raft::{
    Content, Node, NodeId, Reply, Suspect, SuspectRequest, Verdict, WatermarkReport, lifeline, prove, succeed,
};

/// Between two looks at something that is under way.
const LOOK_AGAIN: Millis = Millis(50);
/// A proposal of the leader's own.
const PROPOSE: Duration = Duration::from_secs(5);
/// Within a heartbeat's answer.
const PROPOSE_IN_HEARTBEAT: Duration = Duration::from_millis(700);
/// How long a proved death waits for the probes that are under way: those who died together are fenced in one entry
/// (D30).
const TOGETHER: Duration = Duration::from_millis(20);
/// Watermarks to a voter.
const SPREAD: Duration = Duration::from_millis(500);
/// Before a line that ended is held again.
const REDIAL: Duration = Duration::from_millis(500);
/// Between two looks at observers that could not be settled.
const SETTLE_AGAIN: Millis = Millis(500);
/// When a round of elections was full.
const BALANCE_AGAIN: Millis = Millis(1_000);
/// The first feature level there is.
const FEATURE_LEVEL: u16 = 1;

/// The soft state of the duties.
pub(crate) struct Duty {
    table: Mutex<Table>,
    /// Proved dead, to be fenced together.
    dead: Mutex<Vec<FencedBroker>>,
    probe_ended: Notify,
    /// Something became due that no image tells of.
    due: Notify,
    busy: Mutex<Busy>,
}

/// Which of the long jobs is under way, so that none is started twice.
#[derive(Debug, Default)]
struct Busy {
    fencing: bool,
    forming: bool,
    settling: bool,
    settled_at: Millis,
    succeeding: bool,
    announcing: bool,
    announced_at: Millis,
    balanced_at: Millis,
}

impl Duty {
    /// Reads what this node has heard from brokers.
    pub fn table_of<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.table.lock())
    }

    pub fn new(limits: &QuorumLimits) -> Self {
        let session = Millis(u64::try_from(limits.session_timeout.as_millis()).unwrap_or(u64::MAX));
        Self {
            table: Mutex::new(Table::new(session, Millis::ZERO)),
            dead: Mutex::default(),
            probe_ended: Notify::new(),
            due: Notify::new(),
            busy: Mutex::default(),
        }
    }
}

/// Runs on every node until it stops; acts where it leads. `suspicions`: nodes whose connection broke.
pub(crate) async fn run(
    node: Arc<Node>,
    broken: mpsc::UnboundedSender<BrokerId>,
    mut suspicions: mpsc::UnboundedReceiver<BrokerId>,
) {
    let mut images = node.images.clone();
    let mut leaders = node.leader_changes();
    let mut stopping = node.stopping.subscribe();
    let mut lines = Lifelines { node: Arc::clone(&node), lines: BTreeMap::new(), broken };
    loop {
        images.borrow_and_update();
        lines.hold(&wanted_lines(&node));
        let quiet = tick(&node).unwrap_or(Millis::MAX);
        tokio::select! {
            _ = stopping.changed() => return,
            () = tokio::time::sleep(Duration::from_millis(quiet.0)) => {}
            () = node.duty.due.notified() => {}
            changed = images.changed() => if changed.is_err() { return },
            changed = leaders.changed() => if !changed { return },
            suspicion = suspicions.recv() => if let Some(broker) = suspicion { suspect(&node, broker, None) },
        }
    }
}

/// Whose process this node watches: the leader all brokers in service, a voter its leader.
fn wanted_lines(node: &Node) -> BTreeMap<BrokerId, String> {
    let me = node.id.node;
    let watched: Vec<BrokerId> = if node.is_leader() {
        node.image().active_brokers().map(|broker| broker.id).collect()
    } else {
        node.leader().map(|leader| leader.node).into_iter().collect()
    };
    let others = watched.into_iter().filter(|id| *id != me);
    others.filter_map(|id| Some((id, node.peers.url(id)?))).collect()
}

/// Connections held open only to notice their end (D7).
struct Lifelines {
    node: Arc<Node>,
    lines: BTreeMap<BrokerId, (String, JoinHandle<()>)>,
    broken: mpsc::UnboundedSender<BrokerId>,
}

impl Lifelines {
    fn hold(&mut self, wanted: &BTreeMap<BrokerId, String>) {
        self.lines.retain(|id, (url, task)| {
            let keep = wanted.get(id) == Some(url);
            if !keep {
                task.abort();
            }
            keep
        });
        for (id, url) in wanted {
            if self.lines.contains_key(id) {
                continue;
            }
            let (id, line, broken) = (*id, url.clone(), self.broken.clone());
            let (transport, mut stopping) = (Arc::clone(&self.node.peers.transport), self.node.stopping.subscribe());
            let task = tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = lifeline(transport.as_ref(), &line) => {}
                        _ = stopping.changed() => return,
                    }
                    if broken.send(id).is_err() {
                        return;
                    }
                    tokio::time::sleep(REDIAL).await;
                }
            });
            self.lines.insert(id, (url.clone(), task));
        }
    }
}

impl Drop for Lifelines {
    fn drop(&mut self) {
        for (_, task) in self.lines.values() {
            task.abort();
        }
    }
}

/// One look at everything that may be due. How long nothing will be, unless something changes; `None`: for ever.
fn tick(node: &Arc<Node>) -> Option<Millis> {
    let now = node.now();
    let term = node.is_leader().then(|| node.term());
    let begins = node.duty.table.lock().on_leading(term, now);
    if begins {
        tracing::info!(term, "leads the metadata quorum");
        node.duty.busy.lock().balanced_at = now;
        for broker in node.image().active_brokers() {
            suspect(node, broker.id, Some(broker.epoch));
        }
    }
    let announce_in = announce(node, now);
    if term.is_none() {
        return announce_in;
    }
    if node.leading().is_none() {
        // Nothing tells when the majority answers again.
        return Some(LOOK_AGAIN);
    }
    let image = node.image();
    if image.cluster_id.is_none() {
        spawn_once(node, |busy| &mut busy.forming, form_cluster);
        return Some(LOOK_AGAIN);
    }
    let (overdue, mut expiry_in) = {
        let liveness = &mut node.duty.table.lock().liveness;
        (liveness.expired(&image, now), liveness.next_look(&image, now))
    };
    if !overdue.is_empty() {
        expiry_in = LOOK_AGAIN;
        spawn_once(node, |busy| &mut busy.fencing, move |node| async move { fence(&node, overdue).await });
    }
    let settle_in = settle(node, now);
    let balance_in = balance(node, &image, now);
    [announce_in, Some(expiry_in), Some(settle_in), balance_in].into_iter().flatten().min()
}

/// Has the observers be what the registrations ask for. When to look at them next: another change of the membership may
/// hold one up, which nobody tells.
fn settle(node: &Arc<Node>, now: Millis) -> Millis {
    let (settling, due) = {
        let busy = node.duty.busy.lock();
        (busy.settling, busy.settled_at + SETTLE_AGAIN)
    };
    if settling {
        return LOOK_AGAIN;
    }
    if now < due {
        return due - now;
    }
    spawn_once(
        node,
        |busy| &mut busy.settling,
        |node| async move {
            while node.settle_learners().await {}
            node.duty.busy.lock().settled_at = node.now();
        },
    );
    SETTLE_AGAIN
}

/// Starts a job unless it is running already.
fn spawn_once<F>(
    node: &Arc<Node>,
    flag: impl Fn(&mut Busy) -> &mut bool + Send + 'static,
    job: impl FnOnce(Arc<Node>) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send,
{
    if std::mem::replace(flag(&mut node.duty.busy.lock()), true) {
        return;
    }
    let node = Arc::clone(node);
    tokio::spawn(async move {
        job(Arc::clone(&node)).await;
        *flag(&mut node.duty.busy.lock()) = false;
    });
}

/// A voter tells the metadata where it is, once. When to look again whether that is so; `None`: it is, as far as this node
/// knows.
fn announce(node: &Arc<Node>, now: Millis) -> Option<Millis> {
    {
        let busy = node.duty.busy.lock();
        let due = busy.announced_at + SETTLE_AGAIN;
        if busy.announcing || now < due {
            return Some(if now < due { due - now } else { LOOK_AGAIN });
        }
    }
    node.duty.busy.lock().announced_at = now;
    let command = node.announcement()?;
    let job = move |node: Arc<Node>| async move {
        if let Err(error) = propose(&node, command, PROPOSE).await {
            tracing::debug!(%error, "where this voter is has not been written down yet");
        }
    };
    spawn_once(node, |busy| &mut busy.announcing, job);
    Some(SETTLE_AGAIN)
}

/// The first entry of a cluster (D2); whoever leads a quorum without one proposes it.
async fn form_cluster(node: Arc<Node>) {
    let cluster_id = node.cluster_id_given.clone().unwrap_or_else(|| random_cluster_id().0);
    let command =
        Command::FormCluster { cluster_id: cluster_id.clone(), feature_level: FEATURE_LEVEL, time: wall_clock() };
    match node.propose_here(command, PROPOSE).await {
        Reply::Done(_) => tracing::info!(cluster_id, "formed a cluster"),
        other => tracing::warn!(?other, "the cluster is not formed yet"),
    }
}

/// Moves leaders home where that is due (R199). When it is due next; `None`: never.
fn balance(node: &Arc<Node>, image: &MetadataImage, now: Millis) -> Option<Millis> {
    let interval = node.limits.leader_imbalance_check?;
    let interval = Millis(u64::try_from(interval.as_millis()).unwrap_or(u64::MAX));
    let due = node.duty.busy.lock().balanced_at + interval;
    if now < due {
        return Some(due - now);
    }
    let (partitions, more) = away_from_home(image);
    // Further rounds come soon, when this one has been applied.
    let next = if more { BALANCE_AGAIN.min(interval) } else { interval };
    node.duty.busy.lock().balanced_at = now + next - interval;
    if partitions.is_empty() {
        return Some(next);
    }
    let node = Arc::clone(node);
    tokio::spawn(async move {
        tracing::info!(count = partitions.len(), "moves leaders home");
        let command = Command::ElectLeaders { kind: ElectionKind::Preferred, partitions, time: wall_clock() };
        if let other @ (Reply::Refused(_) | Reply::Stopped { .. }) = node.propose_here(command, PROPOSE).await {
            tracing::warn!(?other, "leaders were not moved home");
        }
    });
    Some(next)
}

/// A broker told its watermarks: kept on every voter (D12).
pub(crate) fn on_watermarks(node: &Node, report: &WatermarkReport) {
    let image = node.image();
    if image.broker(report.broker).is_some_and(|broker| broker.epoch == report.epoch) {
        node.duty.table.lock().reports.take(&image, report.broker, &report.watermarks);
    }
}

/// Tells the voters what the raft leader hears by heartbeat: one of them succeeds it, perhaps because the raft leader
/// died in this very process. What does not arrive is told again with the next change.
pub(crate) async fn spread_watermarks(node: &Arc<Node>, report: &WatermarkReport) {
    on_watermarks(node, report);
    let (me, leader) = (node.id.node, node.leader().map(|leader| leader.node));
    let others = node.voters().into_iter().filter(|id| *id != me && Some(*id) != leader);
    let calls = others.map(|id| async move {
        let sent = node.peers.call(id, "/watermarks", SPREAD, Content::json(report)).await;
        if let Err(error) = sent {
            tracing::debug!(voter = %id, %error, "watermarks did not reach a voter");
        }
    });
    futures::future::join_all(calls).await;
}

/// Fences these brokers in one entry, with the watermarks they reported.
async fn fence(node: &Arc<Node>, brokers: Vec<FencedBroker>) {
    let image = node.image();
    let watermarks = node.duty.table.lock().reports.of_the_lost(&image, &brokers);
    let names: Vec<String> = brokers.iter().map(|fenced| format!("{} ({})", fenced.broker, fenced.note)).collect();
    let command = Command::FenceBrokersKnowing { brokers: brokers.clone(), watermarks, time: wall_clock() };
    match node.propose_here(command, PROPOSE).await {
        Reply::Done(_) => tracing::warn!(brokers = names.join(", "), "fenced"),
        other => {
            tracing::warn!(brokers = names.join(", "), ?other, "not fenced");
            let mut table = node.duty.table.lock();
            brokers.iter().for_each(|fenced| table.liveness.proof_withdrawn(fenced.broker));
        }
    }
}

/// Somebody's connection to a broker broke. On the raft leader this starts a probe; elsewhere it matters only if the
/// broker leads the quorum.
pub(crate) fn suspect(node: &Arc<Node>, broker: BrokerId, epoch: Option<BrokerEpoch>) {
    if broker == node.id.node || *node.stopping.borrow() {
        return;
    }
    if !node.is_leader() {
        if node.leader().is_some_and(|leader| leader.node == broker) {
            spawn_once(
                node,
                |busy| &mut busy.succeeding,
                |node| async move {
                    succeed(&node).await;
                },
            );
        }
        return;
    }
    let image = node.image();
    let Some(registration) = image.brokers.get(&broker) else { return };
    let begun = node.now();
    if epoch.is_some_and(|epoch| epoch != registration.epoch)
        || !registration.is_active()
        || node.leading().is_none()
        || !node.duty.table.lock().begin_probe(broker)
    {
        return;
    }
    let (node, registration) = (Arc::clone(node), Arc::clone(registration));
    tokio::spawn(async move { probe(&node, &registration, begun).await });
}

/// Probes a suspected broker, and fences it if its death is proved and the fast road open.
async fn probe(node: &Arc<Node>, broker: &BrokerRegistration, begun: Millis) {
    let verdict = prove(node.peers.transport.as_ref(), &as_suspect(node, broker)).await;
    let (image, now) = (node.image(), node.now());
    let alive = {
        let mut table = node.duty.table.lock();
        let dead = match verdict {
            Verdict::Dead(how) => {
                let liveness = &mut table.liveness;
                liveness.prove_dead(&image, broker.id, broker.epoch, begun, &how, now).map_err(|why| why.to_string())
            }
            Verdict::Alive => Err("it answers".to_owned()),
            Verdict::Unknown(why) => Err(why),
        };
        // Whoever waits for the last probe finds what it proved.
        let alive = dead.map(|dead| node.duty.dead.lock().push(dead)).err();
        table.end_probe(broker.id);
        alive
    };
    node.duty.probe_ended.notify_waiters();
    if let Some(why) = alive {
        tracing::debug!(broker = %broker.id, why, "a suspicion fences nobody");
        return;
    }
    // Brokers that died together are fenced together.
    let all_ended = async {
        loop {
            let ended = node.duty.probe_ended.notified();
            if !node.duty.table.lock().is_probing() {
                return;
            }
            ended.await;
        }
    };
    let _ = tokio::time::timeout(TOGETHER, all_ended).await;
    let together = std::mem::take(&mut *node.duty.dead.lock());
    if !together.is_empty() {
        fence(node, together).await;
    }
}

fn as_suspect(node: &Node, broker: &BrokerRegistration) -> Suspect {
    Suspect {
        node: broker.id,
        url: broker.controller_url.clone(),
        incarnation: Some(broker.incarnation),
        cluster_id: node.cluster_id(),
    }
}

/// A suspicion of this node: to the raft leader, or if it is the leader's, checked here.
pub(crate) async fn report(node: &Arc<Node>, broker: BrokerId, epoch: BrokerEpoch) {
    let leader = node.leader().map(|leader| leader.node);
    if node.is_leader() || leader == Some(broker) {
        suspect(node, broker, Some(epoch));
    } else if let Some(leader) = leader {
        let request = SuspectRequest { broker, epoch };
        let sent = node.peers.call(leader, "/suspect", Duration::from_millis(500), Content::json(&request));
        if let Err(error) = sent.await {
            tracing::debug!(%broker, %error, "a suspicion did not reach the raft leader");
        }
    }
}

/// Proposes on this node, if it leads, after what a leader adds to a command.
pub(crate) async fn propose_as_leader(node: &Arc<Node>, command: Command, timeout: Duration) -> Reply<(Answer, u64)> {
    match command {
        Command::RegisterBroker(registration) if node.is_leader() => register(node, registration, timeout).await,
        // Only voters speak for themselves: one that was removed may not know it yet.
        Command::RegisterController { node: voter, directory, .. }
            if node.is_leader() && !node.votes(NodeId { node: voter, directory }) =>
        {
            Reply::Refused(Refusal::VoterNotFound(voter))
        }
        command => node.propose_here(command, timeout).await,
    }
}

/// D9: a registration that conflicts with a live one is let in when that one is proved dead or has been silent for a
/// session since it was registered. So is one that is fenced, which the rules would let anybody replace: what comes
/// after it may be the late request of its predecessor, and would take it out of the ELR as one that proves nothing. An empty cluster id is this cluster's: a node that learns of it by registering cannot name it.
async fn register(node: &Arc<Node>, mut request: RegisterBroker, timeout: Duration) -> Reply<(Answer, u64)> {
    let image = node.image();
    if request.cluster_id.is_empty() {
        request.cluster_id = image.cluster_id.as_deref().unwrap_or_default().to_owned();
    }
    request.previous_is_dead = false;
    if let Some(previous) = image.brokers.get(&request.broker)
        && previous.incarnation != request.incarnation
    {
        let dead = node.duty.table.lock().session_ended(previous, node.now())
            || matches!(prove(node.peers.transport.as_ref(), &as_suspect(node, previous)).await, Verdict::Dead(_));
        if !dead && !previous.is_active() {
            return Reply::Refused(Refusal::DuplicateRegistration(request.broker));
        }
        request.previous_is_dead = dead && previous.is_active();
    }
    let (broker, incarnation) = (request.broker, request.incarnation);
    let reply = node.propose_here(Command::RegisterBroker(request), timeout).await;
    if let Reply::Done((answer, _)) = &reply {
        if let Answer::Registered { epoch } = answer {
            // Whoever registers was heard of, before its first heartbeat.
            node.duty.table.lock().liveness.heartbeat(broker, *epoch, incarnation, node.now());
        }
        node.reset_backoff(broker).await;
        node.duty.busy.lock().settled_at = Millis::ZERO;
        node.duty.due.notify_one();
    }
    reply
}

/// R170: takes a heartbeat on the raft leader, proposes what it asks for, and answers from what is applied then.
pub(crate) async fn on_heartbeat(node: &Arc<Node>, heartbeat: Heartbeat) -> Reply<HeartbeatAnswer> {
    if !node.is_leader() {
        return Reply::NotLeader { leader: node.leader().map(|leader| leader.node) };
    }
    let registration = match registered(&node.image(), &heartbeat) {
        Ok(registration) => registration,
        Err(refusal) => return Reply::Refused(refusal),
    };
    {
        let mut table = node.duty.table.lock();
        table.on_heartbeat(&heartbeat, node.now());
        table.reports.take(&node.image(), heartbeat.broker, &heartbeat.watermarks);
    }
    if node.leading().is_none() {
        // Cut off from the majority: what this node has applied may be long overtaken (R219).
        return Reply::Unsure { why: "no majority answers this raft leader".to_owned() };
    }

    let (broker, epoch, time) = (heartbeat.broker, heartbeat.epoch, wall_clock());
    let caught_up = i64::try_from(heartbeat.version.0).is_ok_and(|version| version >= epoch.0);
    let command = match registration.state {
        BrokerState::Active if heartbeat.want_shutdown => Some(Command::ShutDownBroker { broker, epoch, time }),
        BrokerState::Active if heartbeat.want_fence => Some(Command::FenceBrokersKnowing {
            brokers: vec![FencedBroker { broker, epoch, note: "it asked to be fenced".to_owned() }],
            watermarks: heartbeat.watermarks.clone(),
            time,
        }),
        BrokerState::Fenced if !heartbeat.want_fence && !heartbeat.want_shutdown && caught_up => {
            Some(Command::UnfenceBroker { broker, epoch, lost: heartbeat.lost.clone(), time })
        }
        BrokerState::Active | BrokerState::Fenced | BrokerState::ShuttingDown => None,
    };
    if let Some(command) = command {
        match node.propose_here(command, PROPOSE_IN_HEARTBEAT).await {
            Reply::Done(_) => {}
            Reply::Refused(refusal) => return Reply::Refused(refusal),
            Reply::NotLeader { leader } => return Reply::NotLeader { leader },
            Reply::Unsure { why } => return Reply::Unsure { why },
            Reply::Stopped { why } => return Reply::Stopped { why },
        }
    }
    let image = node.image();
    let registration = match registered(&image, &heartbeat) {
        Ok(registration) => registration,
        Err(refusal) => return Reply::Refused(refusal),
    };
    let should_shutdown = heartbeat.want_shutdown
        && match registration.state {
            BrokerState::Fenced => true,
            BrokerState::ShuttingDown => node.duty.table.lock().may_stop(&image, &registration, heartbeat.drained),
            BrokerState::Active => false,
        };
    Reply::Done(HeartbeatAnswer { state: registration.state, caught_up, should_shutdown, version: image.version })
}

/// The brokers this node heard of within the last half of a session, while it leads.
pub(crate) fn heard_recently(node: &Node) -> BTreeSet<BrokerId> {
    if node.leading().is_none() {
        return BTreeSet::new();
    }
    let (image, now) = (node.image(), node.now());
    let table = node.duty.table.lock();
    image.brokers.values().filter(|broker| table.is_recent(broker, now)).map(|broker| broker.id).collect()
}

fn registered(image: &MetadataImage, heartbeat: &Heartbeat) -> Result<Arc<BrokerRegistration>, Refusal> {
    let broker = heartbeat.broker;
    let registration = image.brokers.get(&broker).ok_or(Refusal::UnknownBroker(broker))?;
    if registration.epoch != heartbeat.epoch || registration.incarnation != heartbeat.incarnation {
        return Err(Refusal::StaleBrokerEpoch { broker, given: heartbeat.epoch, current: registration.epoch });
    }
    Ok(Arc::clone(registration))
}
