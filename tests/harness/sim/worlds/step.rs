//! What may happen next, and what it leads to.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_data::replication::follower::Answer as FetchAnswer;
use highwater_quorum::controller::{
    AlterPartition, Answer, ChosenElection, Command, CreateTopic, DataClaim, FencedBroker, RULE_VERSION, RegisterBroker,
};
use highwater_quorum::image::{BrokerState, Endpoint};
use highwater_quorum::{ImageVersion, MetadataImage, decide};
use highwater_wire::{BrokerId, DirectoryId, ErrorCode, IncarnationId, Offset, Timestamp};

use super::broker::{Broker, Former};
use super::{LAPSE, Packet, Setting, World, Wrong, partition};

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Append(BrokerId),
    /// The message at this place among those under way arrives: any of them may, so they overtake each other.
    Deliver(u8),
    Drop(u8),
    /// A broker hears of the newest metadata.
    Learn(BrokerId),
    /// An operator names a member of the ISR.
    Elect(BrokerId),
    Kill(BrokerId),
    /// A machine loses power, and of its log keeps only so many records.
    Lose(BrokerId, u8),
    /// The controller notices a death.
    Fence(BrokerId),
    /// A broker that is down comes up and registers.
    Start(BrokerId),
    /// A broker that has heard of its registration is let in.
    Unfence(BrokerId),
    /// Time enough for everybody who is behind to be late, and for proposals to be sent again.
    Lapse,
}

impl World {
    /// Every broker serves and knows it; nothing is written yet.
    pub fn begin(setting: &Setting) -> Self {
        let ids: Vec<BrokerId> = (1..=setting.replicas).map(BrokerId).collect();
        let mut world = Self {
            image: Arc::default(),
            brokers: ids.iter().map(|id| Broker::new(*id)).collect(),
            under_way: Vec::new(),
            committed: Vec::new(),
            budget: setting.budget,
            appended: 0,
            now: highwater_wire::Millis(LAPSE),
            processes: 0,
            wrong: setting.wrong,
            violation: None,
        };
        world.decide(&Command::FormCluster { cluster_id: "small".to_owned(), feature_level: 1, time: Timestamp(0) });
        for id in &ids {
            world.start(*id);
            world.unfence(*id);
        }
        let configs = BTreeMap::from([("min.insync.replicas".to_owned(), setting.min_isr.to_string())]);
        world.decide(&Command::CreateTopic(CreateTopic {
            id: partition().topic,
            name: "small".to_owned(),
            configs,
            first_partition: 0,
            assignments: vec![ids.clone()],
            complete: true,
            manual: true,
            time: Timestamp(0),
        }));
        for id in ids {
            world.learn(id);
        }
        world.ask();
        for step in setting.before {
            world.take(*step);
            let _sound_so_far = world.check();
        }
        world
    }

    /// All that may happen now.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let Some(state) = self.image.partition(partition()) else { return steps };
        let late = state.leader_epoch.0 > self.budget.epochs;
        if late {
            return steps;
        }
        for place in 0..self.under_way.len() as u8 {
            if self.under_way[..usize::from(place)].contains(&self.under_way[usize::from(place)]) {
                continue;
            }
            steps.push(Step::Deliver(place));
            if self.budget.drops > 0 {
                steps.push(Step::Drop(place));
            }
        }
        if self.budget.lapses > 0 {
            steps.push(Step::Lapse);
        }
        for broker in &self.brokers {
            let id = broker.id;
            let registered = self.image.broker(id);
            let active = registered.is_some_and(|known| known.is_active());
            let Some(process) = &broker.process else {
                steps.push(Step::Start(id));
                if active {
                    steps.push(Step::Fence(id));
                }
                continue;
            };
            if process.seen != self.version() {
                steps.push(Step::Learn(id));
            }
            let fenced = registered.is_some_and(|known| known.state == BrokerState::Fenced);
            if fenced && process.seen.0 as i64 >= broker.epoch.0 {
                steps.push(Step::Unfence(id));
            }
            if self.budget.records > 0 && process.replication.leader().is_ok_and(|l| l.may_append_for_all().is_ok()) {
                steps.push(Step::Append(id));
            }
            if self.budget.elections > 0 && state.leader != Some(id) && state.isr.contains(&id) {
                steps.push(Step::Elect(id));
            }
            if self.budget.kills > 0 {
                steps.push(Step::Kill(id));
            }
            if self.budget.losses > 0 {
                steps.extend((0..broker.log.records.len() as u8).map(|keeps| Step::Lose(id, keeps)));
            }
        }
        steps
    }

    /// Does it.
    pub fn take(&mut self, step: Step) {
        match step {
            Step::Append(id) => {
                self.budget.records -= 1;
                self.appended += 1;
                let (number, now) = (self.appended, self.now);
                let sent = self.broker_mut(id).append(number, now);
                self.send(sent.unwrap_or_default());
            }
            Step::Deliver(place) => {
                let packet = self.under_way.remove(usize::from(place));
                self.deliver(packet);
            }
            Step::Drop(place) => {
                self.budget.drops -= 1;
                self.under_way.remove(usize::from(place));
            }
            Step::Learn(id) => self.learn(id),
            Step::Elect(leader) => {
                self.budget.elections -= 1;
                let election = ChosenElection {
                    partition: partition(),
                    leader,
                    accept_loss: false,
                    expected_leader_epoch: None,
                    expected_partition_epoch: None,
                    watermark: None,
                };
                self.decide(&Command::ElectChosen { elections: vec![election], time: Timestamp(0) });
            }
            Step::Kill(id) => {
                self.budget.kills -= 1;
                self.end(id);
            }
            Step::Lose(id, keeps) => {
                self.budget.losses -= 1;
                self.end(id);
                self.lose(id, keeps);
            }
            Step::Fence(id) => {
                let epoch = self.broker(id).epoch;
                let brokers = vec![FencedBroker { broker: id, epoch, note: "silent".to_owned() }];
                self.decide(&Command::FenceBrokers { brokers, watermarks: Vec::new(), time: Timestamp(0) });
            }
            Step::Start(id) => self.start(id),
            Step::Unfence(id) => self.unfence(id),
            Step::Lapse => {
                self.budget.lapses -= 1;
                self.now = self.now + highwater_wire::Millis(LAPSE);
                let now = self.now;
                for index in 0..self.brokers.len() {
                    let sent = self.brokers[index].tick(now);
                    self.send(sent);
                }
            }
        }
        self.ask();
    }

    /// Followers that have nothing under way ask again.
    fn ask(&mut self) {
        for index in 0..self.brokers.len() {
            let Some(question) = self.brokers[index].question() else { continue };
            let (Packet::Fetch { from, epoch, point } | Packet::AskEnd { from, epoch, point }) = &question else {
                continue;
            };
            let answered = |packet: &Packet| match packet {
                Packet::Fetched { to, epoch: of, point: asked, .. }
                | Packet::ToldEnd { to, epoch: of, point: asked, .. } => (to, of, asked) == (from, epoch, point),
                packet => *packet == question,
            };
            if !self.under_way.iter().any(answered) {
                self.send(vec![question]);
            }
        }
    }

    fn send(&mut self, packets: Vec<Packet>) {
        for packet in packets {
            // A proposal always goes out: nobody would send it again before time passes.
            let always = !matches!(packet, Packet::Fetch { .. } | Packet::AskEnd { .. });
            if !self.under_way.contains(&packet) && (always || self.under_way.len() < self.budget.under_way) {
                self.under_way.push(packet);
            }
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let (now, wrong) = (self.now, self.wrong);
        match packet {
            Packet::Fetch { from, epoch, point } => {
                let (sent, answer, records) = self.broker_mut(point.leader).fetched_by(from, epoch, point, now, wrong);
                self.send(sent);
                let told = self.broker(from).high_watermark().filter(|_| self.is_process(from, epoch));
                let is_news = !records.is_empty()
                    || !matches!(answer, FetchAnswer::Records { high_watermark, .. } if told == Some(high_watermark));
                // Without news it waits at the leader (D20), and is answered when there is some.
                self.send(vec![if is_news {
                    Packet::Fetched { to: from, epoch, point, answer, records }
                } else {
                    Packet::Fetch { from, epoch, point }
                }]);
            }
            Packet::AskEnd { from, epoch, point } => {
                let end = self.broker(point.leader).told_end(point);
                self.send(vec![Packet::ToldEnd { to: from, epoch, point, end }]);
            }
            Packet::Fetched { to, epoch, point, answer, records } => {
                if self.is_process(to, epoch) {
                    let committed = std::mem::take(&mut self.committed);
                    let checked = self.broker_mut(to).hears(point, answer, records, &committed);
                    self.committed = committed;
                    self.note(checked);
                }
            }
            Packet::ToldEnd { to, epoch, point, end } => {
                if self.is_process(to, epoch) {
                    let committed = std::mem::take(&mut self.committed);
                    let checked = self.broker_mut(to).hears_end(point, end, &committed);
                    self.committed = committed;
                    self.note(checked);
                }
            }
            Packet::Alter { from, epoch, proposal } => {
                let request =
                    AlterPartition { broker: from, epoch, changes: vec![(*proposal).clone()], time: Timestamp(0) };
                let result = match self.decide(&Command::AlterPartition(request)) {
                    Some(Answer::PartitionsAltered(results)) => {
                        let result = results.into_iter().next();
                        result.map_or(Err(ErrorCode::InvalidRequest), |one| one.map_err(|r| ErrorCode::from(&r)))
                    }
                    _ => Err(ErrorCode::StaleBrokerEpoch),
                };
                self.send(vec![Packet::Altered { to: from, epoch, proposal, result }]);
            }
            Packet::Altered { to, epoch, proposal, result } => {
                if self.is_process(to, epoch) {
                    let sent = self.broker_mut(to).altered(&proposal, &result, now);
                    self.send(sent);
                }
            }
        }
    }

    fn is_process(&self, id: BrokerId, epoch: highwater_wire::BrokerEpoch) -> bool {
        let broker = self.broker(id);
        broker.process.is_some() && broker.epoch == epoch
    }

    fn learn(&mut self, id: BrokerId) {
        let (image, now) = (self.image.clone(), self.now);
        let committed = std::mem::take(&mut self.committed);
        let (sent, checked) = self.broker_mut(id).learn(&image, now, &committed);
        self.committed = committed;
        self.note(checked);
        self.send(sent);
    }

    fn note(&mut self, checked: super::super::invariants::Verdict) {
        if let Err(violation) = checked {
            self.violation.get_or_insert(violation);
        }
    }

    fn end(&mut self, id: BrokerId) {
        let broker = self.broker_mut(id);
        broker.checkpoint = broker.high_watermark().unwrap_or(broker.checkpoint);
        broker.process = None;
        // Requests may have arrived already; answers find nobody.
        self.under_way.retain(|packet| match packet {
            Packet::Fetched { to, .. } | Packet::ToldEnd { to, .. } | Packet::Altered { to, .. } => *to != id,
            _ => true,
        });
    }

    fn lose(&mut self, id: BrokerId, keeps: u8) {
        let broker = self.broker_mut(id);
        broker.lossy = true;
        broker.former = Some(Former { epoch: broker.epoch, records: broker.log.records.clone() });
        broker.log.cut(Offset(i64::from(keeps)));
    }

    fn start(&mut self, id: BrokerId) {
        self.processes += 1;
        let incarnation = IncarnationId::from_bytes([self.processes; 16]);
        let broker = self.broker(id);
        let never = broker.epoch.0 == 0;
        if self.wrong == Wrong::TrustsTheCheckpoint {
            self.broker_mut(id).trust_the_checkpoint();
        }
        let broker = self.broker(id);
        let claim = if broker.lossy || never {
            DataClaim::Nothing
        } else {
            DataClaim::SameBoot { incarnation: broker.incarnation }
        };
        let endpoint = Endpoint { host: format!("n{id}"), port: 9092 };
        let request = RegisterBroker {
            broker: id,
            cluster_id: "small".to_owned(),
            incarnation,
            listeners: BTreeMap::from([("PLAINTEXT".to_owned(), endpoint)]),
            inter_broker_listener: "PLAINTEXT".to_owned(),
            controller_url: format!("http://n{id}:9093"),
            admin_url: String::new(),
            rack: None,
            log_dirs: vec![DirectoryId::from_bytes([id.0 as u8 + 100; 16])],
            metadata_dir: DirectoryId::from_bytes([id.0 as u8 + 1; 16]),
            features: BTreeMap::new(),
            version: "small".to_owned(),
            claim,
            previous_is_dead: self.image.broker(id).is_some_and(|known| known.is_active()),
            time: Timestamp(0),
        };
        if let Some(Answer::Registered { epoch }) = self.decide(&Command::RegisterBroker(request)) {
            self.broker_mut(id).start(epoch, incarnation);
        }
    }

    fn unfence(&mut self, id: BrokerId) {
        let epoch = self.broker(id).epoch;
        self.decide(&Command::UnfenceBroker { broker: id, epoch, lost: Vec::new(), time: Timestamp(0) });
    }

    /// A refusal changes nothing, not even the number of the entry: states are to be equal where they can be.
    fn decide(&mut self, command: &Command) -> Option<Answer> {
        let index = self.image.version.0 + 1;
        let decision = decide(&self.image, index, RULE_VERSION, command).ok()?;
        if !decision.changes.is_empty() {
            let mut image = MetadataImage::clone(&self.image);
            image.apply_all(&decision.changes);
            image.version = ImageVersion(index);
            self.image = Arc::new(image);
        }
        Some(decision.answer)
    }
}

impl World {
    /// A step in words.
    pub fn describe(&self, step: Step) -> String {
        let packet = |place: u8| match &self.under_way[usize::from(place)] {
            Packet::Fetch { from, epoch, point } => {
                format!(
                    "{from} (as {epoch}) fetches from {} at {} in epoch {}",
                    point.leader, point.offset, point.leader_epoch
                )
            }
            Packet::Fetched { to, answer, records, .. } => format!("{to} is answered {answer:?} {records:?}"),
            Packet::AskEnd { from, point, .. } => format!("{from} asks {} for its end", point.leader),
            Packet::ToldEnd { to, end, .. } => format!("{to} is told of the end {end:?}"),
            Packet::Alter { from, proposal, .. } => {
                let isr: Vec<i32> = proposal.isr.iter().map(|(id, _)| id.0).collect();
                format!("{from} proposes ISR {isr:?} ({:?})", proposal.why)
            }
            Packet::Altered { to, result, .. } => {
                let isr = result.as_ref().map(|altered| altered.isr.iter().map(|id| id.0).collect::<Vec<_>>());
                format!("{to} is told of its ISR: {isr:?}")
            }
        };
        match step {
            Step::Append(id) => format!("{id} appends a record"),
            Step::Deliver(place) => format!("arrives: {}", packet(place)),
            Step::Drop(place) => format!("is lost: {}", packet(place)),
            Step::Learn(id) => {
                let state = self.image.partition(partition());
                let leader = state.and_then(|state| Some((state.leader?.0, state.leader_epoch.0)));
                format!("{id} hears of the newest metadata: leader, epoch {leader:?}")
            }
            Step::Elect(id) => format!("an operator names {id}"),
            Step::Kill(id) => format!("{id} is killed"),
            Step::Lose(id, keeps) => format!("{id} loses power and keeps {keeps} records"),
            Step::Fence(id) => format!("{id} is fenced"),
            Step::Start(id) => format!("{id} starts and registers"),
            Step::Unfence(id) => format!("{id} is let in"),
            Step::Lapse => "time passes: who is behind is late".to_owned(),
        }
    }
}
