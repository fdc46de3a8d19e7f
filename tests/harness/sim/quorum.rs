//! The metadata quorum as an ordered list: commands go through the shipped rules one after the other, and the image
//! that comes out is put on its way to the brokers.
//!
//! What raft guarantees is taken for granted here (its own simulation proves it); what it does not is exercised: a
//! leader that is not there, answers that are late or lost, requests that come twice, a new leader that knows nothing
//! of sessions, brokers that hear of changes late, in lumps, or for a while not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_quorum::client::{Heartbeat, HeartbeatAnswer};
use highwater_quorum::controller::{
    Answer, Command, CreateTopic, ElectionKind, FencedBroker, KnownWatermark, RULE_VERSION, RegisterBroker,
};
use highwater_quorum::image::BrokerState;
use highwater_quorum::planner::{Liveness, Reports, place};
use highwater_quorum::{Change, ImageVersion, MetadataImage, Refusal, decide};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, Millis, TopicId, TopicPartition};

use super::core::{ControllerTimer, Core, Event, Truth};
use super::gate::{self, Reality};
use super::invariants::must;
use super::marks::Mark;
use super::message::Message;
use super::network::{Packet, Way};
use super::node::{CLUSTER, lifecycle};
use super::rng::Rng;
use super::schedule::Made;

/// µs between two looks at the sessions.
const SESSION_LOOK: u64 = 100_000;

/// The quorum and its soft state.
pub struct Quorum {
    pub image: Arc<MetadataImage>,
    index: u64,
    rng: Rng,
    /// For what only an operator does.
    operator_rng: Rng,
    /// No raft leader until then.
    out: bool,
    /// The shipped planner; a new raft leader starts with a fresh one.
    liveness: Liveness,
    /// What each broker said it has applied.
    versions: BTreeMap<BrokerId, ImageVersion>,
    /// When a stopping broker's shutdown was registered.
    shutdown_at: BTreeMap<BrokerId, ImageVersion>,
    topics_made: u64,
    /// Brokers whose proposals wait, and until when (µs).
    neglected: BTreeMap<BrokerId, u64>,
    /// What the restart gate was last asked about.
    judged: (ImageVersion, BTreeSet<BrokerId>),
    /// What leaders said of their watermarks (D12): soft state too.
    reports: Reports,
}

impl Quorum {
    pub fn new(rng: Rng, session_ms: u64) -> Self {
        Self {
            image: Arc::default(),
            index: 0,
            operator_rng: rng.fork(1),
            rng,
            out: false,
            liveness: Liveness::new(Millis(session_ms), Millis::ZERO),
            versions: BTreeMap::new(),
            shutdown_at: BTreeMap::new(),
            topics_made: 0,
            neglected: BTreeMap::new(),
            judged: Default::default(),
            reports: Reports::default(),
        }
    }

    /// The first entry of the cluster.
    pub fn form(&mut self, core: &mut Core) {
        let time = core.wall();
        let command = Command::FormCluster { cluster_id: CLUSTER.to_owned(), feature_level: 1, time };
        self.decide(core, &command).expect("an empty cluster can be formed");
        core.after(SESSION_LOOK, Event::Controller(ControllerTimer::Sessions));
    }

    /// Appends a command, decides it, applies it and tells everybody.
    pub fn decide(&mut self, core: &mut Core, command: &Command) -> Result<Answer, Refusal> {
        self.index += 1;
        let decision = decide(&self.image, self.index, RULE_VERSION, command);
        core.trace.mix(self.index);
        core.trace.line(core.now, || {
            let outcome = match &decision {
                Ok(decision) => format!("{:?}", decision.answer),
                Err(refusal) => format!("refused: {refusal}"),
            };
            format!("entry {}: {} → {outcome}", self.index, describe(command))
        });
        let decision = match decision {
            Ok(decision) => decision,
            Err(refusal) => {
                Arc::make_mut(&mut self.image).version = ImageVersion(self.index);
                return Err(refusal);
            }
        };
        let mut image = MetadataImage::clone(&self.image);
        image.apply_all(&decision.changes);
        image.version = ImageVersion(self.index);
        image.check_invariants();
        image.check_configs();
        self.image = Arc::new(image);
        let mut touched = BTreeSet::new();
        for change in &decision.changes {
            match change {
                Change::Partition(at, _) => {
                    touched.insert(*at);
                }
                // Its configuration may have changed.
                Change::Topic { id, .. } => {
                    let partitions = self.image.topics.get(id).map_or(0, |topic| topic.partitions.len());
                    touched.extend((0..partitions as i32).map(|number| TopicPartition::new(*id, number)));
                }
                _ => {}
            }
        }
        for change in &decision.changes {
            if let Change::TopicRemoved(id) = change {
                core.book.partitions.retain(|at, _| at.topic != *id);
            }
        }
        for at in touched {
            let (Some(state), Some(topic)) = (self.image.partition(at), self.image.topics.get(&at.topic)) else {
                continue;
            };
            core.trace.line(core.now, || {
                format!(
                    "  {at}: leader {:?} epoch {}/{} ISR {:?} ELR {:?} last {:?}",
                    state.leader.map(|l| l.0),
                    state.leader_epoch,
                    state.partition_epoch,
                    ids(&state.isr),
                    ids(&state.elr),
                    ids(&state.last_known_elr)
                )
            });
            core.trace.mix(state.leader_epoch.0 as u64 ^ (state.partition_epoch.0 as u64) << 20);
            let verdict = core.book.decided(at, state, &topic.config, &self.image, &mut core.counts);
            core.check(verdict);
        }
        if !decision.changes.is_empty() {
            let brokers: Vec<_> = core.truth.keys().copied().collect();
            lifecycle::publish(core, brokers.into_iter(), &self.image);
        }
        Ok(decision.answer)
    }

    /// A request reached the controller.
    pub fn on_packet(&mut self, core: &mut Core, packet: Packet<Message>) {
        if let Message::Alter { request, .. } = &packet.message
            && let Some(&until) = self.neglected.get(&request.broker)
            && until > core.now
            && !core.healed
        {
            return core.at(until, Event::Controller(ControllerTimer::Late(Box::new(packet))));
        }
        let late = core.swarm.controller_late;
        if !core.healed && late > 0 && self.rng.chance(late) {
            let delay = self.rng.within(1_000, core.swarm.controller_late_us);
            let again = if self.rng.chance(200) { Some(packet.clone()) } else { None };
            core.after(delay, Event::Controller(ControllerTimer::Late(Box::new(packet))));
            if let Some(packet) = again {
                self.handle(core, packet);
            }
            return;
        }
        self.handle(core, packet);
    }

    fn handle(&mut self, core: &mut Core, packet: Packet<Message>) {
        if self.out {
            return;
        }
        let answer = match packet.message {
            Message::Register { call, request } => {
                let result = self.register(core, *request);
                Message::Registered { call, result }
            }
            Message::Heartbeat { call, request } => {
                let result = self.heartbeat(core, &request);
                Message::HeartbeatAnswer { call, result }
            }
            Message::Alter { call, request } => {
                let answer = self.decide(core, &Command::AlterPartition(*request));
                let result = match answer {
                    Ok(Answer::PartitionsAltered(results)) => {
                        Ok(results.into_iter().map(|r| r.map_err(|refusal| ErrorCode::from(&refusal))).collect())
                    }
                    Ok(other) => unreachable!("an ISR change answers {other:?}"),
                    Err(refusal) => Err(ErrorCode::from(&refusal)),
                };
                Message::Altered { call, result }
            }
            Message::Suspect { broker, epoch } => {
                // Two probes, at least 50 ms apart.
                let delay = self.rng.within(60_000, 120_000);
                let suspected = core.clock().mono;
                return core.after(delay, Event::Controller(ControllerTimer::Probed { broker, epoch, suspected }));
            }
            other => unreachable!("the controller is not asked {other:?}"),
        };
        if !core.healed && core.swarm.answers_lost > 0 && self.rng.chance(core.swarm.answers_lost) {
            return core.trace.line(core.now, || "  the answer is lost".to_owned());
        }
        let late = core.swarm.answers_late;
        if !core.healed && late > 0 && self.rng.chance(late) {
            let delay = self.rng.within(1_000, core.swarm.answers_late_us);
            let answer = Packet { way: Way::Back, message: answer, ..packet };
            return core.after(delay, Event::Controller(ControllerTimer::Answer(Box::new(answer))));
        }
        core.send(packet.link, Way::Back, packet.generation, answer);
    }

    fn register(&mut self, core: &mut Core, mut request: RegisterBroker) -> Result<BrokerEpoch, ErrorCode> {
        let broker = request.broker;
        if let Some(registered) = self.image.brokers.get(&broker)
            && registered.incarnation != request.incarnation
        {
            let silence = self.liveness.silence(broker, registered.epoch, core.clock().mono);
            let silent = silence >= Millis(core.swarm.session_ms);
            let proved = core.swarm.restarts_proved
                && core.truth.get(&broker).is_some_and(|t| t.incarnation == Some(request.incarnation) && !t.paused);
            if !silent && !proved && !registered.is_active() {
                core.trace.line(core.now, || format!("  {broker} is registered by another process, not silent yet"));
                return Err(ErrorCode::DuplicateBrokerRegistration);
            }
            request.previous_is_dead = (silent || proved) && registered.is_active();
            if request.previous_is_dead && !silent {
                core.mark(Mark::RestartBelieved);
            }
        }
        let incarnation = request.incarnation;
        match self.decide(core, &Command::RegisterBroker(request)) {
            Ok(Answer::Registered { epoch }) => {
                self.liveness.heartbeat(broker, epoch, incarnation, core.clock().mono);
                Ok(epoch)
            }
            Ok(other) => unreachable!("a registration answers {other:?}"),
            Err(refusal) => Err(ErrorCode::from(&refusal)),
        }
    }

    fn heartbeat(&mut self, core: &mut Core, heartbeat: &Heartbeat) -> Result<HeartbeatAnswer, ErrorCode> {
        let broker = heartbeat.broker;
        let Some(registered) = self.image.brokers.get(&broker).cloned() else {
            return Err(ErrorCode::BrokerIdNotRegistered);
        };
        if registered.epoch != heartbeat.epoch {
            return Err(ErrorCode::StaleBrokerEpoch);
        }
        self.liveness.heartbeat(broker, heartbeat.epoch, heartbeat.incarnation, core.clock().mono);
        self.versions.insert(broker, heartbeat.version);
        self.reports.take(&self.image, broker, &heartbeat.watermarks);
        let time = core.wall();
        let caught_up = heartbeat.version.0 as i64 >= registered.epoch.0;
        let command = match registered.state {
            BrokerState::Fenced if !heartbeat.want_fence && !heartbeat.want_shutdown && caught_up => {
                let lost = heartbeat.lost.clone();
                Some(Command::UnfenceBroker { broker, epoch: heartbeat.epoch, lost, time })
            }
            BrokerState::Active if heartbeat.want_shutdown => {
                Some(Command::ShutDownBroker { broker, epoch: heartbeat.epoch, time })
            }
            _ => None,
        };
        if let Some(command) = command {
            let _refused = self.decide(core, &command);
            if matches!(command, Command::ShutDownBroker { .. }) {
                self.shutdown_at.insert(broker, ImageVersion(self.index));
            }
        }
        let state = self.image.brokers.get(&broker).map_or(BrokerState::Fenced, |b| b.state);
        let leads = self.leads_anything(broker);
        let noticed = self.shutdown_at.get(&broker).is_none_or(|at| {
            self.image
                .brokers
                .iter()
                .filter(|(id, b)| b.is_active() && **id != broker)
                .all(|(id, _)| self.versions.get(id).is_some_and(|v| v >= at))
        });
        let should_shutdown = heartbeat.want_shutdown
            && (state == BrokerState::Fenced || state == BrokerState::ShuttingDown && !leads && noticed);
        Ok(HeartbeatAnswer { state, caught_up, should_shutdown, version: self.image.version })
    }

    fn leads_anything(&self, broker: BrokerId) -> bool {
        self.image.topics.values().any(|topic| topic.partitions.iter().any(|p| p.leader == Some(broker)))
    }

    pub fn on_timer(&mut self, core: &mut Core, timer: ControllerTimer) {
        match timer {
            ControllerTimer::Sessions => {
                core.after(SESSION_LOOK, Event::Controller(ControllerTimer::Sessions));
                if !self.out {
                    self.end_sessions(core);
                    self.try_the_gate(core);
                }
            }
            ControllerTimer::Probed { broker, epoch, suspected } => {
                let truth = core.truth.get(&broker).copied();
                let registered = self.image.brokers.get(&broker).filter(|b| b.epoch == epoch);
                if let (Some(truth), Some(registered)) = (truth, registered)
                    && !self.out
                    && truth.machine_up
                    && truth.incarnation != Some(registered.incarnation)
                {
                    self.prove_dead(core, broker, epoch, suspected, "connection refused twice");
                }
            }
            ControllerTimer::Answer(packet) => {
                let Packet { link, generation, message, .. } = *packet;
                core.send(link, Way::Back, generation, message);
            }
            ControllerTimer::Late(packet) => self.handle(core, *packet),
            ControllerTimer::Back => self.come_back(core),
            ControllerTimer::Preferred => self.elect_preferred(core),
        }
    }

    fn end_sessions(&mut self, core: &mut Core) {
        let brokers = self.liveness.expired(&self.image, core.clock().mono);
        if !brokers.is_empty() {
            self.fence(core, brokers);
        }
    }

    /// Asks of every broker whether it may be restarted, and tries out on a copy whether that is true. Every broker is a
    /// voter here; the registered process of a broker answers unless it is dead or paused.
    fn try_the_gate(&mut self, core: &mut Core) {
        let answers = |(id, truth): (&BrokerId, &Truth)| {
            let registered = self.image.brokers.get(id).filter(|broker| broker.is_active());
            let same = registered.is_none_or(|broker| truth.incarnation == Some(broker.incarnation));
            (truth.incarnation.is_some() && truth.machine_up && !truth.paused && same).then_some(*id)
        };
        let alive: BTreeSet<BrokerId> = core.truth.iter().filter_map(answers).collect();
        let judged = (self.image.version, alive);
        if judged != self.judged {
            let voters = core.truth.keys().copied().collect();
            let reality = Reality { alive: judged.1.clone(), voters, ..Reality::default() };
            let wrong = gate::wrongly_safe(&self.image, &reality);
            core.check(must(wrong.is_none(), "G", || wrong.unwrap_or_default()));
            self.judged = judged;
        }
    }

    fn fence(&mut self, core: &mut Core, brokers: Vec<FencedBroker>) {
        let watermarks = self.reports.of_the_lost(&self.image, &brokers);
        let command = Command::FenceBrokersKnowing { brokers, watermarks, time: core.wall() };
        let _refused = self.decide(core, &command);
    }

    /// What the present leader of a partition last said of its watermark.
    pub fn reported_watermark(&self, at: TopicPartition) -> Option<KnownWatermark> {
        self.reports.of(&self.image, at)
    }

    /// Fences on proof, rightly or not, unless the planner spares the broker (D7).
    fn prove_dead(&mut self, core: &mut Core, broker: BrokerId, epoch: BrokerEpoch, suspected: Millis, how: &str) {
        match self.liveness.prove_dead(&self.image, broker, epoch, suspected, how, core.clock().mono) {
            Ok(fenced) => self.fence(core, vec![fenced]),
            Err(refusal) => core.trace.line(core.now, || format!("  {broker} is not fenced on proof: {refusal}")),
        }
    }

    /// A suspicion of a broker that lives (a firewall that rejects): it is fenced all the same.
    pub fn suspect_falsely(&mut self, core: &mut Core, broker: BrokerId) {
        if let Some((epoch, active)) = self.image.brokers.get(&broker).map(|b| (b.epoch, b.is_active())) {
            let suspected = core.clock().mono + Millis(1);
            self.prove_dead(core, broker, epoch, suspected, "a false suspicion");
            if self.image.broker(broker).is_some_and(|registered| !registered.is_active()) && active {
                core.mark(Mark::FencedByMistake);
            }
        }
    }

    /// Deals with the proposals of a broker only in a while.
    pub fn neglect(&mut self, core: &Core, broker: BrokerId, for_us: u64) {
        self.neglected.insert(broker, core.now + for_us);
    }

    /// The raft leader is gone; nobody answers until another one is there.
    pub fn go_out(&mut self, core: &mut Core, for_us: u64) {
        self.out = true;
        core.after(for_us, Event::Controller(ControllerTimer::Back));
    }

    /// Another raft leader: it gives everybody a fresh session (D8).
    pub fn come_back(&mut self, core: &mut Core) {
        self.out = false;
        self.liveness = Liveness::new(Millis(core.swarm.session_ms), core.clock().mono);
        self.reports = Reports::default();
    }

    pub fn is_out(&self) -> bool {
        self.out
    }

    pub fn elect_preferred(&mut self, core: &mut Core) {
        let partitions: Vec<_> = self
            .image
            .topics
            .values()
            .flat_map(|topic| {
                (0i32..)
                    .zip(&topic.partitions)
                    .filter(|(_, p)| p.leader != p.replicas.first().copied())
                    .map(|(n, _)| TopicPartition::new(topic.id, n))
            })
            .collect();
        if partitions.is_empty() {
            return;
        }
        let command = Command::ElectLeaders { kind: ElectionKind::Preferred, partitions, time: core.wall() };
        let _refused = self.decide(core, &command);
    }

    /// Makes the topic that the swarm drew at `number`; `false` when it could not be placed now.
    pub fn create_topic(&mut self, core: &mut Core, number: usize) -> bool {
        if self.out {
            return false;
        }
        let draw = core.swarm.topics[number].clone();
        let written = core.ledger.to_make(number);
        let assigned = written.as_ref().map(|made| &made.replicas);
        let needed = assigned.map_or(draw.replication_factor, |replicas| replicas.first().map_or(usize::MAX, Vec::len));
        if self.image.active_brokers().count() < needed {
            return false;
        }
        self.topics_made += 1;
        let seed = self.rng.next_u64();
        let assignments = match assigned {
            Some(replicas) => replicas.clone(),
            None => match place(&self.image, &[], draw.partitions as usize, draw.replication_factor, seed) {
                Ok(assignments) => assignments,
                Err(_) => return false,
            },
        };
        let mut configs = BTreeMap::from([
            ("min.insync.replicas".to_owned(), draw.min_isr.to_string()),
            ("segment.bytes".to_owned(), draw.segment_bytes.to_string()),
        ]);
        let mut set = |key: &str, value: Option<u64>| {
            if let Some(value) = value {
                configs.insert(key.to_owned(), value.to_string());
            }
        };
        set("flush.messages", draw.flush_messages);
        set("flush.ms", draw.flush_ms);
        set("retention.bytes", draw.retention_bytes);
        let (unclean, rng) = (core.swarm.acts.unclean_topics, &mut self.operator_rng);
        let drawn = unclean > 0 && rng.chance(unclean);
        let unclean = written.as_ref().map_or(drawn, |made| made.unclean);
        if unclean {
            configs.insert("unclean.leader.election.enable".to_owned(), "true".to_owned());
        }
        let made = Made { topic: number, replicas: assignments.clone(), unclean };
        let command = Command::CreateTopic(CreateTopic {
            id: TopicId::from_bytes(self.rng.bytes16()),
            name: format!("topic{number}"),
            configs,
            first_partition: 0,
            assignments,
            complete: true,
            manual: false,
            time: core.wall(),
        });
        let done = self.decide(core, &command).is_ok();
        core.counts.topics += u64::from(done);
        if done {
            core.ledger.note_made(made);
        }
        done
    }

    /// Deletes a topic by its number in the swarm.
    pub fn delete_topic(&mut self, core: &mut Core, number: usize) -> bool {
        let Some(id) = self.image.topic_named(&format!("topic{number}")).map(|t| t.id) else { return false };
        !self.out && self.decide(core, &Command::DeleteTopic { id, time: core.wall() }).is_ok()
    }

    /// A block of producer ids, asked for through a broker.
    pub fn producer_id(&mut self, core: &mut Core) -> Option<i64> {
        if self.out {
            return None;
        }
        let (broker, epoch) = self.image.brokers.values().find(|b| b.is_active()).map(|b| (b.id, b.epoch))?;
        match self.decide(core, &Command::AllocateProducerIds { broker, epoch, count: 1 }) {
            Ok(Answer::ProducerIds { first, .. }) => Some(first.0),
            _ => None,
        }
    }
}

fn ids(brokers: &[BrokerId]) -> Vec<i32> {
    brokers.iter().map(|b| b.0).collect()
}

fn describe(command: &Command) -> String {
    match command {
        Command::RegisterBroker(r) => format!("register {} {:?} dead={}", r.broker, r.claim, r.previous_is_dead),
        Command::AlterPartition(a) => {
            let changes: Vec<_> = a
                .changes
                .iter()
                .map(|c| {
                    let isr: Vec<_> = c.isr.iter().map(|(b, e)| (b.0, e.0)).collect();
                    format!("{} to {isr:?} at {}/{} {:?}", c.partition, c.leader_epoch, c.partition_epoch, c.why)
                })
                .collect();
            format!("alter by {} of {}: {}", a.broker, a.epoch, changes.join(", "))
        }
        Command::FenceBrokers { brokers, .. } | Command::FenceBrokersKnowing { brokers, .. } => {
            let brokers: Vec<_> = brokers.iter().map(|b| format!("{} of {} ({})", b.broker, b.epoch, b.note)).collect();
            format!("fence {}", brokers.join(", "))
        }
        Command::CreateTopic(t) => format!("create {} {} {:?} {:?}", t.name, t.id, t.assignments, t.configs),
        other => format!("{other:?}"),
    }
}
