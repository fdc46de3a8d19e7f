//! From registration to the orderly stop (R28, R29, R166–R174), and the errands to the controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_data::disk::SimDisk;
use highwater_data::log::{Log, LogName, LogSettings, OpenError, SyncJob};
use highwater_data::replica::message::{
    Assignment, Became, Checkpoint, IsrAnswered, Peer, Peers, ReplicaReply, ReplicaRequest,
};
use highwater_data::replica::{Replica, ReplicaConfig};
use highwater_quorum::client::{Heartbeat, HeartbeatAnswer};
use highwater_quorum::controller::{AlterPartition, AlteredPartition, KnownWatermark, RegisterBroker};
use highwater_quorum::image::diff::{LocalPartition, local_changes};
use highwater_quorum::image::{BrokerState, Endpoint};
use highwater_quorum::{ImageVersion, MetadataImage};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, Millis, Offset, TopicPartition};

use super::super::core::{Core, Event, NodeTimer};
use super::super::marks::Mark;
use super::super::message::{Call, Message};
use super::following::Next;
use super::{CLUSTER, Hosted, Process};

/// How far a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Registering,
    /// Has an epoch, waits for an image that shows it.
    CatchingUp,
    /// Its replicas do what the image says; not active yet.
    Fenced,
    Serving,
    Draining,
}

/// µs until a call to the controller is given up.
const CONTROLLER_PATIENCE: u64 = 1_500_000;
/// µs between two attempts to register (D9).
const REGISTER_RETRY: u64 = 500_000;
/// µs an orderly stop waits for the quorum (D34).
const STOP_PATIENCE: u64 = 5_000_000;

impl Process {
    pub(super) fn register(&mut self, core: &mut Core) {
        if self.epoch.is_some() {
            return;
        }
        let endpoint = Endpoint { host: format!("broker-{}", self.id), port: 9092 };
        let request = RegisterBroker {
            broker: self.id,
            cluster_id: CLUSTER.to_owned(),
            incarnation: self.incarnation,
            listeners: BTreeMap::from([("PLAINTEXT".to_owned(), endpoint)]),
            inter_broker_listener: "PLAINTEXT".to_owned(),
            controller_url: format!("http://broker-{}:9093", self.id),
            admin_url: String::new(),
            rack: None,
            log_dirs: vec![self.directory],
            metadata_dir: highwater_wire::DirectoryId::from_bytes([self.id.0 as u8 + 1; 16]),
            features: BTreeMap::from([("metadata.version".to_owned(), 1)]),
            version: "simulated".to_owned(),
            claim: self.claim.clone(),
            previous_is_dead: false,
            time: core.wall(),
        };
        let call = core.call();
        self.registering = Some(call);
        core.request(self.to_controller(), Message::Register { call, request: Box::new(request) });
        self.schedule(core, CONTROLLER_PATIENCE, NodeTimer::CallDue { link: self.to_controller(), call });
    }

    pub(super) fn on_registered(&mut self, core: &mut Core, call: Call, result: Result<BrokerEpoch, ErrorCode>) {
        if self.registering != Some(call) {
            return;
        }
        self.registering = None;
        match result {
            Ok(epoch) => {
                core.trace.line(core.now, || format!("  b{} is registered as {epoch}", self.id));
                self.epoch = Some(epoch);
                self.storage_failed |= self.dir.registered(self.incarnation).is_err();
                // One that was asked to stop still is.
                if self.phase != Phase::Draining {
                    self.phase = Phase::CatchingUp;
                }
                self.beat(core);
                self.act(core);
            }
            Err(_) => self.schedule(core, REGISTER_RETRY, NodeTimer::Register),
        }
    }

    /// Sends a heartbeat and plans the next (R170).
    pub(super) fn beat(&mut self, core: &mut Core) {
        let Some(epoch) = self.epoch else { return };
        let call = core.call();
        self.heartbeat = Some(call);
        let draining = self.phase == Phase::Draining;
        let request = Heartbeat {
            broker: self.id,
            epoch,
            incarnation: self.incarnation,
            version: self.image.version,
            want_fence: self.phase < Phase::Fenced,
            want_shutdown: draining,
            drained: draining && self.led().is_empty(),
            lost: self.lost.clone(),
            watermarks: self.watermarks(core),
        };
        core.request(self.to_controller(), Message::Heartbeat { call, request: Box::new(request) });
        self.schedule(core, core.swarm.heartbeat_ms * 1_000, NodeTimer::CallDue { link: self.to_controller(), call });
    }

    /// D12: the watermarks of led partitions whose ISR is not full, where they changed.
    fn watermarks(&mut self, core: &mut Core) -> Vec<KnownWatermark> {
        let has_gaps = |hosted: &Hosted| {
            let replication = hosted.replica.replication();
            let replicas = replication.terms().map_or(0, |terms| terms.state.replicas.len());
            replication.leader().is_ok_and(|leader| leader.isr().committed().len() < replicas)
        };
        let led: Vec<_> = self.hosted.iter().filter(|(_, hosted)| has_gaps(hosted)).map(|(at, _)| *at).collect();
        let before = std::mem::take(&mut self.reported);
        let mut told = Vec::new();
        for partition in led {
            let Some(ReplicaReply::Checkpoint(checkpoint)) = self.ask(core, partition, ReplicaRequest::Checkpoint)
            else {
                continue;
            };
            let Checkpoint { high_watermark, log_start, leader_epoch, .. } = checkpoint;
            self.reported.insert(partition, checkpoint);
            let same = |before: &Checkpoint| {
                let said = (before.high_watermark, before.log_start, before.leader_epoch);
                said == (high_watermark, log_start, leader_epoch)
            };
            if !before.get(&partition).is_some_and(same) {
                let (reported, leader_epoch) = (core.wall(), Some(leader_epoch));
                told.push(KnownWatermark { partition, high_watermark, reported, log_start, leader_epoch });
            }
        }
        told
    }

    pub(super) fn on_heartbeat_answer(
        &mut self,
        core: &mut Core,
        call: Call,
        result: Result<HeartbeatAnswer, ErrorCode>,
    ) {
        if self.heartbeat != Some(call) {
            return;
        }
        match result {
            Ok(answer) => {
                if answer.state == BrokerState::Active && self.phase == Phase::Fenced {
                    core.trace.line(core.now, || format!("  b{} serves", self.id));
                    self.phase = Phase::Serving;
                    self.lost.clear();
                }
                if self.phase == Phase::Draining && answer.should_shutdown {
                    self.may_stop = true;
                    self.stops_cleanly = true;
                }
            }
            Err(error) => {
                core.trace.line(core.now, || format!("  b{} heartbeat: {error:?}", self.id));
                if matches!(error, ErrorCode::StaleBrokerEpoch | ErrorCode::BrokerIdNotRegistered) {
                    // The registration of this process is gone (R128): it registers again.
                    self.heartbeat = None;
                    self.epoch = None;
                    self.register(core);
                }
            }
        }
    }

    /// An answer is overdue; for heartbeats also: the next one is due.
    pub(super) fn controller_due(&mut self, core: &mut Core, call: Call) {
        if self.registering == Some(call) {
            self.registering = None;
            self.register(core);
        }
        if self.heartbeat == Some(call) {
            self.beat(core);
        }
        if self.alter.as_ref().is_some_and(|(c, _)| *c == call) {
            self.alter_failed(core, ErrorCode::RequestTimedOut);
        }
    }

    pub(super) fn controller_lost(&mut self, core: &mut Core) {
        if self.registering.take().is_some() {
            self.schedule(core, REGISTER_RETRY, NodeTimer::Register);
        }
        self.alter_failed(core, ErrorCode::NetworkException);
    }

    /// Sends what waits, unless a request is under way already.
    pub(super) fn propose(&mut self, core: &mut Core) {
        let Some(epoch) = self.epoch else { return };
        if self.alter.is_some() || self.proposals.is_empty() {
            return;
        }
        let changes: Vec<_> = std::mem::take(&mut self.proposals).into_values().collect();
        let call = core.call();
        let request = AlterPartition { broker: self.id, epoch, changes: changes.clone(), time: core.wall() };
        self.alter = Some((call, changes));
        core.request(self.to_controller(), Message::Alter { call, request: Box::new(request) });
        self.schedule(core, CONTROLLER_PATIENCE, NodeTimer::CallDue { link: self.to_controller(), call });
    }

    pub(super) fn on_altered(
        &mut self,
        core: &mut Core,
        call: Call,
        result: Result<Vec<Result<AlteredPartition, ErrorCode>>, ErrorCode>,
    ) {
        if self.alter.as_ref().is_none_or(|(c, _)| *c != call) {
            return;
        }
        let results = match result {
            Ok(results) => results,
            Err(error) => return self.alter_failed(core, error),
        };
        let (_, changes) = self.alter.take().expect("looked at above");
        for (proposal, result) in changes.into_iter().zip(results) {
            let at = proposal.partition;
            match result {
                Err(ErrorCode::IneligibleReplica) => core.mark(Mark::MemberIneligible),
                Err(ErrorCode::InvalidUpdateVersion | ErrorCode::FencedLeaderEpoch) => {
                    core.mark(Mark::ProposalOutdated);
                }
                _ => {}
            }
            let leads = |hosted: &Hosted| {
                hosted.replica.replication().leader().is_ok_and(|leader| leader.epoch() == proposal.leader_epoch)
            };
            if !self.hosted.get(&at).is_some_and(leads) {
                core.mark(Mark::AnsweredTooLate);
            }
            self.ask(core, at, ReplicaRequest::IsrAnswered(Box::new(IsrAnswered { proposal, result })));
        }
        self.propose(core);
    }

    fn alter_failed(&mut self, core: &mut Core, error: ErrorCode) {
        let Some((_, changes)) = self.alter.take() else { return };
        for proposal in changes {
            let at = proposal.partition;
            let answered = IsrAnswered { proposal, result: Err(error) };
            self.ask(core, at, ReplicaRequest::IsrAnswered(Box::new(answered)));
        }
        self.schedule(core, 50_000, NodeTimer::Propose);
    }

    /// A newer image than the last one arrived; older ones change nothing.
    pub fn on_image(&mut self, core: &mut Core, image: Arc<MetadataImage>) {
        if image.version <= self.image.version {
            return;
        }
        self.image = image;
        self.act(core);
    }

    /// Tells the replicas what the image says, if it shows this very process (house rule 2.3).
    fn act(&mut self, core: &mut Core) {
        let Some(epoch) = self.epoch else { return };
        let image = self.image.clone();
        let Some(own) = image.brokers.get(&self.id).filter(|b| b.epoch == epoch) else { return };
        core.images.insert(self.id, image.clone());
        // A process that registers again goes on with what it hosts.
        let first = self.acted.version == ImageVersion(0);
        if first && !self.set_strays_aside(core, &image) {
            self.storage_failed = true;
            return;
        }
        let changes = local_changes(&self.acted, &image, self.id);
        self.acted = image.clone();
        let peers: Arc<Peers> = Arc::new(Peers(
            image
                .brokers
                .iter()
                .map(|(id, b)| (*id, Peer { epoch: b.epoch, active: b.is_active(), reachable: true }))
                .collect(),
        ));
        for stopped in &changes.stop {
            if let Some(mut hosted) = self.hosted.remove(&stopped.at) {
                self.let_go(core, stopped.at, &mut hosted);
                if let Err(error) = self.dir.delete_log(&hosted.name) {
                    core.trace.line(core.now, || format!("  b{} delete {}: {error}", self.id, hosted.name));
                    self.storage_failed = true;
                }
            }
        }
        let mut told = std::collections::BTreeSet::new();
        for local in changes.lead.iter().chain(&changes.follow).chain(&changes.refreshed) {
            told.insert(local.at);
            self.become_what_it_says(core, local, &peers, first);
        }
        if !changes.brokers.is_empty() {
            let rest: Vec<_> = self.hosted.keys().filter(|at| !told.contains(at)).copied().collect();
            for at in rest {
                if let (Some(topic), Some(state)) = (image.topics.get(&at.topic), image.partition(at)) {
                    let local = LocalPartition {
                        at,
                        topic_name: topic.name.clone(),
                        state: state.clone(),
                        config: topic.config.clone(),
                    };
                    self.become_what_it_says(core, &local, &peers, first);
                }
            }
        }
        if self.phase == Phase::CatchingUp || own.state == BrokerState::Fenced && self.phase == Phase::Serving {
            self.phase = Phase::Fenced;
            self.beat(core);
        } else if self.phase == Phase::Draining {
            self.beat(core);
        }
    }

    /// R27: logs of topics that are gone, or of nobody here.
    fn set_strays_aside(&self, core: &Core, image: &MetadataImage) -> bool {
        let Ok(found) = self.dir.found() else { return false };
        for log in found {
            let at = image.topic_named(&log.name.topic).map(|topic| TopicPartition::new(topic.id, log.name.partition));
            let ours = at.and_then(|at| image.partition(at)).is_some_and(|state| state.replicas.contains(&self.id))
                && at.is_some_and(|at| log.is_of(at.topic));
            if !ours {
                core.trace.line(core.now, || format!("  b{} sets {} aside", self.id, log.name));
                if self.dir.set_aside(&log.name).is_err() {
                    return false;
                }
            }
        }
        true
    }

    fn become_what_it_says(&mut self, core: &mut Core, local: &LocalPartition, peers: &Arc<Peers>, first: bool) {
        let at = local.at;
        if !self.hosted.contains_key(&at) && !self.open(core, local, first) {
            return;
        }
        let assignment = Assignment {
            version: self.image.version,
            state: local.state.clone(),
            config: local.config.clone(),
            peers: peers.clone(),
            own_epoch: self.epoch.expect("acts only once registered"),
        };
        let became = self.ask(core, at, ReplicaRequest::Become(Box::new(assignment)));
        self.check_waiting(core, at);
        match became {
            Some(ReplicaReply::Became(Became::Follower(next))) => self.set_next(core, at, next),
            Some(ReplicaReply::Became(Became::Leader | Became::Idle)) => {
                if let Some(hosted) = self.hosted.get_mut(&at) {
                    hosted.next = Next::Nothing;
                }
            }
            _ => {}
        }
        if self.phase == Phase::Draining {
            self.ask(core, at, ReplicaRequest::Drain);
        }
    }

    fn open(&mut self, core: &mut Core, local: &LocalPartition, first: bool) -> bool {
        let name = LogName::new(local.topic_name.clone(), local.at.partition);
        let settings = LogSettings::from(local.config.as_ref());
        let mut opened = Log::open(&self.dir, &name, local.at.topic, settings.clone(), core.wall());
        if matches!(opened, Err(OpenError::InconsistentTopicId { .. })) && self.dir.set_aside(&name).is_ok() {
            opened = Log::open(&self.dir, &name, local.at.topic, settings, core.wall());
        }
        let (log, report) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                core.trace.line(core.now, || format!("  b{} cannot open {name}: {error}", self.id));
                self.storage_failed = true;
                return false;
            }
        };
        let state = &local.state;
        let claimed = [&state.isr, &state.elr, &state.last_known_elr].into_iter().any(|list| list.contains(&self.id));
        if first && report.may_have_lost_records() && claimed {
            self.lost.push(local.at);
            core.mark(Mark::LossReported);
        }
        if report.cut.as_ref().is_some_and(|cut| cut.incomplete_last_batch_only) {
            core.mark(Mark::TornTailCut);
        }
        if !report.clean && log.producer_count() > 0 {
            core.mark(Mark::ProducersRebuilt);
        }
        core.trace.line(core.now, || format!("  b{} opens {name}: {report:?}", self.id));
        let config = ReplicaConfig { partition: local.at, me: self.id, lag_max: Millis(core.swarm.lag_ms) };
        let replica = Replica::new(config, log, report.watermark_checkpoint);
        let hosted = Hosted { replica, name, tick_at: None, next: Next::Nothing, backoff_ms: 0 };
        self.hosted.insert(local.at, hosted);
        self.opened(core, local);
        true
    }

    fn let_go(&mut self, core: &mut Core, at: TopicPartition, hosted: &mut Hosted) {
        let now = core.clock();
        let mut outbox = std::mem::take(&mut self.outbox);
        hosted.replica.handle(ReplicaRequest::Stop, now, &mut outbox);
        for output in outbox.drain() {
            self.deliver(core, at, output);
        }
        self.outbox = outbox;
        core.book.deleted(self.id, at);
    }

    pub(super) fn sync(&mut self, core: &mut Core, at: TopicPartition, job: SyncJob<SimDisk>) {
        let done = job.run();
        self.ask(core, at, ReplicaRequest::Synced(done));
    }

    pub(super) fn save_start(&mut self, core: &mut Core, at: TopicPartition, start: Offset) {
        let Some(hosted) = self.hosted.get(&at) else { return };
        let request = match self.dir.checkpoint_starts([(hosted.name.clone(), start)]) {
            Ok(()) => ReplicaRequest::StartSaved(start),
            Err(error) => ReplicaRequest::StorageFailed(error.to_string()),
        };
        self.ask(core, at, request);
    }

    pub(super) fn checkpoint(&mut self, core: &mut Core) {
        let marks: Vec<_> =
            self.hosted.values().map(|h| (h.name.clone(), h.replica.replication().high_watermark())).collect();
        let starts: Vec<_> = self.hosted.values().map(|h| (h.name.clone(), h.replica.log().view().start)).collect();
        let written = self
            .dir
            .checkpoint_watermarks(marks)
            .and_then(|()| self.dir.checkpoint_recovery_points())
            .and_then(|()| self.dir.checkpoint_found_starts(|| starts));
        if written.is_err() {
            self.storage_failed = true;
        }
        let retained: Vec<_> = self
            .hosted
            .keys()
            .filter(|at| core.book.partitions.get(at).is_some_and(|p| p.deletes_old || p.deleted_to > 0))
            .copied()
            .collect();
        for at in retained {
            self.ask(core, at, ReplicaRequest::Retain);
        }
        self.schedule(core, core.swarm.checkpoint_ms * 1_000, NodeTimer::Checkpoint);
    }

    /// Begins the orderly stop (R174).
    pub fn drain(&mut self, core: &mut Core) {
        if self.phase == Phase::Draining {
            return;
        }
        if self.phase < Phase::Fenced {
            self.may_stop = true;
            return;
        }
        self.phase = Phase::Draining;
        let all: Vec<_> = self.hosted.keys().copied().collect();
        for at in all {
            self.ask(core, at, ReplicaRequest::Drain);
        }
        self.beat(core);
        self.schedule(core, STOP_PATIENCE, NodeTimer::StopDue);
    }

    /// The end of the orderly stop. Clean only if the quorum let it go.
    pub fn close(&mut self, core: &mut Core) {
        let all: Vec<_> = self.hosted.keys().copied().collect();
        let now = core.clock();
        for at in all {
            if let Some(hosted) = self.hosted.get_mut(&at) {
                let mut outbox = std::mem::take(&mut self.outbox);
                hosted.replica.handle(ReplicaRequest::Stop, now, &mut outbox);
                for output in outbox.drain() {
                    self.deliver(core, at, output);
                }
                self.outbox = outbox;
            }
        }
        let mut marks = Vec::new();
        let mut closed = Ok(());
        for hosted in self.hosted.values_mut() {
            match hosted.replica.close_cleanly() {
                Ok(checkpoint) => marks.push((hosted.name.clone(), checkpoint.high_watermark)),
                Err(error) => closed = Err(error),
            }
        }
        let closed = closed
            .and_then(|()| self.dir.checkpoint_watermarks(marks))
            .map_err(|error| error.to_string())
            .and_then(|()| self.dir.close_cleanly(self.epoch).map_err(|error| error.to_string()));
        if let Err(error) = closed {
            core.trace.line(core.now, || format!("  b{} does not close cleanly: {error}", self.id));
        }
    }

    /// Tells the controller that a broker's connection was reset (D7).
    pub(super) fn suspect(&mut self, core: &mut Core, broker: BrokerId) {
        if let Some(epoch) = self.image.brokers.get(&broker).map(|b| b.epoch) {
            core.request(self.to_controller(), Message::Suspect { broker, epoch });
        }
    }
}

/// Puts a new image on its way to every broker.
pub fn publish(core: &mut Core, brokers: impl Iterator<Item = BrokerId>, image: &Arc<MetadataImage>) {
    for broker in brokers {
        let slow = core.swarm.image_slow > 0 && !core.healed && core.rng.chance(core.swarm.image_slow);
        let mean = if slow { core.swarm.image_delay_long_us } else { core.swarm.image_delay_us };
        let delay = core.rng.around(mean);
        core.after(delay, Event::Image { broker, image: image.clone() });
    }
}
