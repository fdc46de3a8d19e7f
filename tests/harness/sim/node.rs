//! A broker: a disk that outlives its processes, and the process that runs on it, if one does.
//!
//! The process hosts shipped replicas, the shipped fetch rules and the shipped comparison of images; what is written
//! here is only the part that is asynchronous in the product: who calls whom when.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_data::disk::SimDisk;
use highwater_data::disk::sim::Crash;
use highwater_data::log::log_dir::Opening;
use highwater_data::log::{LogDir, LogName};
use highwater_data::replica::Replica;
use highwater_data::replica::message::{Checkpoint, Outbox, Output, ReplicaReply, ReplicaRequest, Ticket};
use highwater_quorum::MetadataImage;
use highwater_quorum::controller::{DataClaim, IsrProposal, IsrReason};
use highwater_wire::{BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId, TopicPartition};
use serde::{Deserialize, Serialize};

use super::core::{Core, Event, Join, NodeTimer, Truth};
use super::marks::Mark;
use super::message::{Call, Message};
use super::network::{Link, Packet, Place, Way};
use super::trace::Verbose;

mod deleting;
mod following;
pub mod lifecycle;
mod looking;
mod serving;

use deleting::WaitingDelete;
use following::Fetcher;
pub use lifecycle::Phase;
use serving::{Session, WaitingProduce};

/// The id of the simulated cluster.
pub const CLUSTER: &str = "simulated-cluster";

/// How a broker goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// kill -9: the page cache stays.
    Killed,
    /// The machine lost power.
    PowerLoss,
    /// The disk is replaced.
    Wiped,
    /// In order.
    Stopped,
}

/// A broker over the whole run.
pub struct Node {
    pub id: BrokerId,
    disk: SimDisk,
    /// Counts the boots of its machine.
    boot: u64,
    pub process: Option<Process>,
    /// Paused until then: everything that reaches it waits in `inbox`.
    pub paused: bool,
    pub inbox: Vec<Event>,
    /// When the last pause ended (µs).
    pub went_on_at: u64,
    /// New images wait until they are released.
    pub images_held: bool,
    /// The newest image that waits.
    pub waiting_image: Option<Arc<MetadataImage>>,
    /// How the last process ended.
    pub ended: Option<End>,
    /// It lost data since the quorum last heard of a registration of it.
    pub lossy: bool,
    /// µs until it comes back from an end of its own, where a schedule says so.
    pub back_us: Option<u64>,
}

/// One hosted replica.
pub struct Hosted {
    pub replica: Replica<SimDisk>,
    pub name: LogName,
    tick_at: Option<u64>,
    next: following::Next,
    backoff_ms: u64,
}

/// One process of a broker.
pub struct Process {
    pub id: BrokerId,
    pub number: u64,
    pub incarnation: IncarnationId,
    claim: DataClaim,
    dir: Arc<LogDir<SimDisk>>,
    directory: DirectoryId,
    pub phase: Phase,
    pub epoch: Option<BrokerEpoch>,
    /// The newest image it was told, and the one its replicas were told.
    pub image: Arc<MetadataImage>,
    acted: Arc<MetadataImage>,
    pub hosted: BTreeMap<TopicPartition, Hosted>,
    fetchers: BTreeMap<BrokerId, Fetcher>,
    sessions: BTreeMap<Link, Session>,
    waiting: BTreeMap<Ticket, WaitingProduce>,
    deleting: BTreeMap<Ticket, WaitingDelete>,
    proposals: BTreeMap<TopicPartition, IsrProposal>,
    alter: Option<(Call, Vec<IsrProposal>)>,
    lost: Vec<TopicPartition>,
    /// What the controller was told of watermarks and log starts (D12).
    reported: BTreeMap<TopicPartition, Checkpoint>,
    registering: Option<Call>,
    heartbeat: Option<Call>,
    next_id: u64,
    outbox: Outbox<SimDisk>,
    /// The disk failed: the process is to be taken down.
    pub storage_failed: bool,
    /// An orderly stop may end now.
    pub may_stop: bool,
    /// And counts as one: the quorum let it go (D34).
    pub stops_cleanly: bool,
    /// Where the end of the disk's obedience is set (torn writes).
    pub doomed: bool,
}

impl Node {
    pub fn new(id: BrokerId) -> Self {
        Self {
            id,
            disk: SimDisk::new(),
            boot: 1,
            process: None,
            paused: false,
            inbox: Vec::new(),
            went_on_at: 0,
            images_held: false,
            waiting_image: None,
            ended: None,
            lossy: false,
            back_us: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// A process starts on what the last one left.
    pub fn start(&mut self, core: &mut Core) {
        if self.process.is_some() {
            return;
        }
        let incarnation = IncarnationId::from_bytes(core.rng.bytes16());
        let opening = Opening {
            cluster: ClusterId(CLUSTER.to_owned()),
            broker: self.id,
            boot_id: Some(format!("boot {} of {}", self.boot, self.id)),
            boot_time_ms: core.now / 1_000 + 1,
        };
        let path: PathBuf = Path::new("/data").to_owned();
        let (dir, previous) = match LogDir::open(self.disk.clone(), &path, &opening) {
            Ok(opened) => opened,
            Err(error) => panic!("{} cannot open its directory: {error}", self.id),
        };
        let claim = previous.claim();
        let ended = self.ended;
        core.trace.line(core.now, || {
            format!(
                "b{} starts after {ended:?}: {claim:?}{}",
                self.id,
                previous.doubt.map_or(String::new(), |d| format!(" ({d})"))
            )
        });
        dir.write_running_marker(incarnation).expect("the simulated disk obeys at a start");
        let number = core.process();
        core.truth.insert(self.id, Truth { incarnation: Some(incarnation), machine_up: true, paused: false });
        let mut process = Process::new(self.id, number, incarnation, claim, dir);
        process.register(core);
        process.schedule(core, core.swarm.checkpoint_ms * 1_000, NodeTimer::Checkpoint);
        self.process = Some(process);
    }

    /// The process ends, or the machine does. `keeps`: draws what of the unsynced survives a loss of power; `None`: nothing.
    pub fn end(&mut self, core: &mut Core, end: End, keeps: Option<u64>) {
        let Some(process) = self.process.take() else { return };
        process.mark_pending_proposals(core);
        drop(process);
        self.paused = false;
        self.inbox.clear();
        self.waiting_image = None;
        self.ended = Some(end);
        self.lossy |= matches!(end, End::PowerLoss | End::Wiped);
        core.images.remove(&self.id);
        match end {
            End::Killed | End::Stopped => self.disk.crash(Crash::Killed),
            End::PowerLoss => {
                self.boot += 1;
                self.disk.crash(keeps.map_or(Crash::PowerLoss, |seed| Crash::PowerLossKeepingSome { seed }));
            }
            End::Wiped => {
                self.disk.crash(Crash::Killed);
                self.disk.wipe();
            }
        }
        let machine_up = end != End::PowerLoss;
        core.truth.insert(self.id, Truth { incarnation: None, machine_up, paused: false });
        core.book.went_down(self.id, end);
        // The kernel of a machine that runs tells everybody; one without power tells nobody.
        for link in core.net.links_of(Place::Broker(self.id.0)) {
            let generation = core.net.generation(link);
            core.net.reset(link);
            if link.from != Place::Broker(self.id.0) && machine_up {
                let delay = core.swarm.weather.delay;
                core.after(delay, Event::Broke { link, generation });
            }
        }
    }

    /// From now on the disk obeys only for some more changes, the last of them torn: the process dies in the middle.
    pub fn doom(&mut self, more: u64, torn: u8) {
        self.disk.stop_at(self.disk.changes() + more, torn);
        if let Some(process) = &mut self.process {
            process.doomed = true;
        }
    }

    /// A sync of the disk fails, or a write, after some more that do not.
    pub fn fail_disk(&mut self, sync: bool, more: u64) {
        if sync {
            self.disk.fail_sync_after(more);
        } else {
            self.disk.fail_write_after(more);
        }
    }
}

impl Process {
    fn new(id: BrokerId, number: u64, incarnation: IncarnationId, claim: DataClaim, dir: Arc<LogDir<SimDisk>>) -> Self {
        Self {
            id,
            number,
            incarnation,
            claim,
            directory: dir.id(),
            dir,
            phase: Phase::Registering,
            epoch: None,
            image: Arc::default(),
            acted: Arc::default(),
            hosted: BTreeMap::new(),
            fetchers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            deleting: BTreeMap::new(),
            proposals: BTreeMap::new(),
            alter: None,
            lost: Vec::new(),
            reported: BTreeMap::new(),
            registering: None,
            heartbeat: None,
            next_id: 0,
            outbox: Outbox::new(),
            storage_failed: false,
            may_stop: false,
            stops_cleanly: false,
            doomed: false,
        }
    }

    /// It ends: with it go the leaderships that wait for an answer of the controller.
    fn mark_pending_proposals(&self, core: &mut Core) {
        for hosted in self.hosted.values() {
            let Ok(leader) = hosted.replica.replication().leader() else { continue };
            match leader.isr().pending().map(|proposal| proposal.why) {
                Some(IsrReason::Expand(_)) => core.mark(Mark::LeaderEndedExpanding),
                Some(IsrReason::Shrink(_)) => core.mark(Mark::LeaderEndedShrinking),
                Some(IsrReason::Recovered) | None => {}
            }
        }
    }

    fn place(&self) -> Place {
        Place::Broker(self.id.0)
    }

    fn to_controller(&self) -> Link {
        Link { from: self.place(), to: Place::Controller }
    }

    fn schedule(&self, core: &mut Core, delay: u64, timer: NodeTimer) {
        core.after(delay, Event::Node { broker: self.id, process: self.number, timer });
    }

    fn mint(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The one door to a replica: asks it, delivers what came out, and has the result looked at.
    fn ask(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        request: ReplicaRequest<SimDisk>,
    ) -> Option<ReplicaReply<SimDisk>> {
        let now = core.clock();
        let hosted = self.hosted.get_mut(&at)?;
        let mut outbox = std::mem::take(&mut self.outbox);
        let reply = hosted.replica.handle(request, now, &mut outbox);
        if let Some(due) = outbox.tick_at.take() {
            let due = due.0.saturating_mul(1_000).max(core.now + 1);
            if hosted.tick_at.is_none_or(|at| at > due || at <= core.now) {
                hosted.tick_at = Some(due);
                core.at(due, Event::Node { broker: self.id, process: self.number, timer: NodeTimer::Tick(at) });
            }
        }
        self.look(core, at);
        for output in outbox.drain() {
            self.deliver(core, at, output);
        }
        self.outbox = outbox;
        Some(reply)
    }

    fn deliver(&mut self, core: &mut Core, at: TopicPartition, output: Output<SimDisk>) {
        match output {
            Output::Reply(ticket, reply) if self.deleting.contains_key(&ticket) => {
                self.answer_delete(core, at, ticket, &reply, true);
            }
            Output::Reply(ticket, reply) => self.answer_produce(core, at, ticket, &reply),
            Output::Wake { waiter, urgent } => self.wake(core, at, waiter, urgent),
            Output::ProposeIsr(proposal) => {
                core.trace.line(core.now, || {
                    let isr: Vec<_> = proposal.isr.iter().map(|(b, e)| (b.0, e.0)).collect();
                    format!("  b{} proposes {isr:?} for {at} ({:?})", self.id, proposal.why)
                });
                if let (IsrReason::Expand(_), Some(&(joiner, _))) = (proposal.why, proposal.isr.last()) {
                    core.joins.push(Join { leader: self.id, joiner });
                }
                self.proposals.insert(at, *proposal);
                self.schedule(core, 0, NodeTimer::Propose);
            }
            Output::Sync(job) => {
                let mean = core.swarm.sync_us;
                let delay = core.rng.around(mean);
                self.schedule(core, delay, NodeTimer::Sync(at, Box::new(job)));
            }
            Output::Fetchable(next) => self.set_next(core, at, next),
            Output::Note(note) => {
                if core.trace.verbose != Verbose::No {
                    core.trace.line(core.now, || format!("  b{} {at}: {note:?}", self.id));
                }
            }
            Output::SaveStart(start) => self.schedule(core, 2_000, NodeTimer::SaveStart(at, start)),
            Output::Erase(paths) => self.schedule(core, 1_000_000, NodeTimer::Erase(paths)),
            Output::StorageFailed { error } => {
                core.trace.line(core.now, || format!("  b{} {at}: disk failed: {error}", self.id));
                self.storage_failed = true;
            }
        }
    }

    /// A message reached this process.
    pub fn on_packet(&mut self, core: &mut Core, packet: Packet<Message>) {
        let Packet { link, way, generation, message, .. } = packet;
        if way == Way::Back {
            match message {
                Message::FetchAnswer { call, answers } => self.on_fetch_answer(core, link, call, answers),
                Message::OffsetsAnswer { call, at, point, result } => {
                    self.on_offsets_answer(core, link, call, at, point, result);
                }
                Message::Registered { call, result } => self.on_registered(core, call, result),
                Message::HeartbeatAnswer { call, result } => self.on_heartbeat_answer(core, call, result),
                Message::Altered { call, result } => self.on_altered(core, call, result),
                other => unreachable!("a broker is no client: {other:?}"),
            }
            return;
        }
        match message {
            Message::Produce { call, at, batch, acks, timeout_ms } => {
                self.on_produce(core, link, generation, call, at, batch, acks, timeout_ms);
            }
            Message::Read { call, at, offset, leader_epoch, last_epoch } => {
                let result = self.on_read(core, at, offset, leader_epoch, last_epoch);
                core.send(link, Way::Back, generation, Message::ReadAnswer { call, result });
            }
            Message::Latest { call, at, leader_epoch } => {
                let result = self.on_latest(core, at, leader_epoch);
                core.send(link, Way::Back, generation, Message::LatestAnswer { call, result });
            }
            Message::Delete { call, at, before, timeout_ms } => {
                self.on_delete(core, (link, generation, call), at, before, timeout_ms);
            }
            Message::Fetch { call, broker, epoch, points, forget } => {
                self.on_fetch(core, link, generation, call, broker, epoch, (points, forget));
            }
            Message::Offsets { call, at, point } => {
                let result = self.on_offsets(core, at, point);
                core.send(link, Way::Back, generation, Message::OffsetsAnswer { call, at, point, result });
            }
            other => unreachable!("a broker is no controller: {other:?}"),
        }
    }

    pub fn on_timer(&mut self, core: &mut Core, timer: NodeTimer) {
        match timer {
            NodeTimer::Register => self.register(core),
            NodeTimer::Heartbeat => self.beat(core),
            NodeTimer::Tick(at) => {
                if let Some(hosted) = self.hosted.get_mut(&at)
                    && hosted.tick_at.is_some_and(|due| due <= core.now)
                {
                    hosted.tick_at = None;
                    self.ask(core, at, ReplicaRequest::Tick);
                }
            }
            NodeTimer::Sync(at, job) => self.sync(core, at, *job),
            NodeTimer::Kick(leader) => self.kick(core, leader),
            NodeTimer::Session(link) => self.serve_session(core, link, false),
            NodeTimer::SessionDue { link, call } => self.session_due(core, link, call),
            NodeTimer::CallDue { link, call } => self.call_due(core, link, call),
            NodeTimer::Propose => self.propose(core),
            NodeTimer::Checkpoint => self.checkpoint(core),
            NodeTimer::SaveStart(at, start) => self.save_start(core, at, start),
            NodeTimer::Erase(paths) => {
                if self.dir.erase(&paths).is_err() {
                    self.storage_failed = true;
                }
            }
            NodeTimer::StopDue => {
                if self.phase == Phase::Draining {
                    self.may_stop = true;
                }
            }
        }
    }

    /// A connection that this process dialled is gone.
    pub fn on_broken(&mut self, core: &mut Core, link: Link, generation: u64) {
        match link.to {
            Place::Controller => self.controller_lost(core),
            Place::Broker(leader) => self.leader_lost(core, BrokerId(leader), generation),
            Place::Client(_) => {}
        }
    }

    /// Partitions led here, for tests of the world.
    pub fn led(&self) -> BTreeSet<TopicPartition> {
        self.hosted
            .iter()
            .filter(|(_, hosted)| hosted.replica.replication().leader().is_ok())
            .map(|(at, _)| *at)
            .collect()
    }
}
