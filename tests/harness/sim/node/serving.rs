//! The leader's side: produces, reads, and the fetch sessions of followers (D20).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use highwater_data::disk::SimDisk;
use highwater_data::replica::message::{
    Acks, Caller, Fetch, FetchPoint, Isolation, LastArrival, LeaderHolds, ListOffsets, OffsetSpec, OffsetsCaller,
    Produce, ReplicaReply, ReplicaRequest, Ticket, WaiterId, Watch,
};
use highwater_wire::batch::RecordBatch;
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Millis, Offset, TopicPartition};

use super::super::core::{Core, Event, NodeTimer};
use super::super::invariants::joining;
use super::super::marks::Mark;
use super::super::message::{Call, Message, PartitionAnswer, ReadAnswer};
use super::super::network::{Link, Way};
use super::Process;

/// A produce that waits for the watermark.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingProduce {
    link: Link,
    generation: u64,
    call: Call,
    deadline: u64,
    at: TopicPartition,
    /// Of the leadership that took it.
    epoch: i32,
}

/// A follower's fetch session: one per connection.
#[derive(Debug)]
pub(super) struct Session {
    generation: u64,
    waiter: WaiterId,
    arrival: LastArrival,
    /// Who asked last: a process that registers again goes on on its connection.
    caller: Caller,
    /// Its newest request.
    newest: Call,
    /// What it last asked of each partition.
    asked: BTreeMap<TopicPartition, FetchPoint>,
    /// Partitions that will wake it.
    armed: BTreeSet<TopicPartition>,
    /// Partitions that have news.
    ready: BTreeSet<TopicPartition>,
    /// It has answered before.
    served: bool,
    /// The watermark and the log start it was last told of each partition (R88).
    told: BTreeMap<TopicPartition, (Offset, Offset)>,
    parked: Option<Parked>,
}

#[derive(Debug, Clone, Copy)]
struct Parked {
    call: Call,
    arrived: Millis,
    due: u64,
}

impl Process {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn on_produce(
        &mut self,
        core: &mut Core,
        link: Link,
        generation: u64,
        call: Call,
        at: TopicPartition,
        batch: Bytes,
        acks: i16,
        timeout_ms: u64,
    ) {
        let acks = match acks {
            0 => Acks::None,
            1 => Acks::Leader,
            _ => Acks::AllInSync,
        };
        let batch = match RecordBatch::from_produce(Some(batch), 9) {
            Ok(batch) => batch,
            Err(error) => panic!("the workload built a bad batch: {error}"),
        };
        let ticket = Ticket(self.mint());
        let deadline = core.clock().mono + Millis(timeout_ms);
        let request = Produce { batch, acks, deadline, ticket, epoch: None };
        let epoch = self.hosted.get(&at).map_or(-1, |hosted| hosted.replica.replication().leader_epoch().0);
        let waiting = WaitingProduce { link, generation, call, deadline: deadline.0 * 1_000, at, epoch };
        self.waiting.insert(ticket, waiting);
        let before = self.log_end(at);
        let reply = self.ask(core, at, ReplicaRequest::Produce(request));
        match &reply {
            Some(ReplicaReply::Waiting | ReplicaReply::Produced(_)) if self.log_end(at) == before => {
                core.mark(Mark::DuplicateAnswered);
            }
            Some(ReplicaReply::Refused(refusal)) if refusal.code() == ErrorCode::NotEnoughReplicas => {
                core.mark(Mark::RefusedBelowMinIsr);
            }
            _ => {}
        }
        match reply {
            Some(ReplicaReply::Waiting) => {}
            Some(ReplicaReply::Refused(_)) if acks == Acks::None => {
                // R46: the only way to tell.
                self.waiting.remove(&ticket);
                core.net.reset(link);
                core.after(500, Event::Broke { link, generation });
            }
            Some(_) if acks == Acks::None => {
                self.waiting.remove(&ticket);
            }
            Some(reply) => self.answer_produce(core, at, ticket, &reply),
            None => {
                self.waiting.remove(&ticket);
                let result = Err(ErrorCode::NotLeaderOrFollower);
                core.send(link, Way::Back, generation, Message::Produced { call, result });
            }
        }
    }

    fn log_end(&self, at: TopicPartition) -> Option<Offset> {
        self.hosted.get(&at).map(|hosted| hosted.replica.log().view().end)
    }

    pub(super) fn answer_produce(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        ticket: Ticket,
        reply: &ReplicaReply<SimDisk>,
    ) {
        let Some(waiting) = self.waiting.remove(&ticket) else {
            return core.trace.line(core.now, || format!("  b{} {at}: {ticket:?} was answered twice", self.id));
        };
        let result = match reply {
            ReplicaReply::Produced(produced) => Ok(produced.base),
            ReplicaReply::Refused(refusal) => Err(refusal.code()),
            other => panic!("a produce is answered with {other:?}"),
        };
        core.send(waiting.link, Way::Back, waiting.generation, Message::Produced { call: waiting.call, result });
    }

    /// Produces that ought to have been answered by now (L2), in µs overdue.
    pub fn most_overdue(&self, now: u64) -> u64 {
        self.waiting.values().map(|w| now.saturating_sub(w.deadline)).max().unwrap_or(0)
    }

    pub(super) fn on_read(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        offset: Offset,
        leader_epoch: Option<LeaderEpoch>,
        last_fetched_epoch: Option<LeaderEpoch>,
    ) -> Result<ReadAnswer, ErrorCode> {
        let request = Fetch {
            caller: Caller::Consumer(Isolation::ReadUncommitted),
            leader_epoch,
            offset,
            last_fetched_epoch,
            follower_log_start: None,
            bytes_max: 4_096,
            first_whole: true,
            any_replica: false,
            watch: None,
            arrived: core.clock().mono,
            first_ask: true,
        };
        match self.ask(core, at, ReplicaRequest::Fetch(request)) {
            Some(ReplicaReply::Fetched(grant)) => {
                self.check_shown(core, at, offset, grant.log_start);
                let records = match grant.plan.map(|plan| plan.read()) {
                    None => Bytes::new(),
                    Some(Ok(records)) => records,
                    Some(Err(_)) => return Err(ErrorCode::KafkaStorageError),
                };
                let (high_watermark, log_start) = (grant.high_watermark, grant.log_start);
                Ok(ReadAnswer { high_watermark, log_start, records, diverging: false })
            }
            Some(ReplicaReply::Diverging(diverging)) => Ok(ReadAnswer {
                high_watermark: diverging.high_watermark,
                log_start: diverging.log_start,
                records: Bytes::new(),
                diverging: true,
            }),
            Some(ReplicaReply::Refused(refusal)) => Err(refusal.code()),
            Some(other) => panic!("a fetch is answered with {other:?}"),
            None => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    pub(super) fn on_latest(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<Offset>, ErrorCode> {
        let caller = OffsetsCaller::Consumer(Isolation::ReadUncommitted);
        let request = ListOffsets { caller, leader_epoch, spec: OffsetSpec::Latest };
        match self.ask(core, at, ReplicaRequest::ListOffsets(request)) {
            Some(ReplicaReply::ListedOffset(listed)) => Ok(listed.offset),
            Some(ReplicaReply::Refused(refusal)) => {
                if refusal.code() == ErrorCode::OffsetNotAvailable {
                    core.mark(Mark::EndNotTold);
                }
                Err(refusal.code())
            }
            Some(other) => panic!("ListOffsets is answered with {other:?}"),
            None => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    /// Start and end of this leader's log, and its producers (R162).
    pub(super) fn on_offsets(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        point: FetchPoint,
    ) -> Result<LeaderHolds, ErrorCode> {
        let mut one = |spec| {
            let request = ListOffsets { caller: OffsetsCaller::Replica, leader_epoch: Some(point.leader_epoch), spec };
            match self.ask(core, at, ReplicaRequest::ListOffsets(request)) {
                Some(ReplicaReply::ListedOffset(listed)) => Ok(listed.offset.unwrap_or(Offset::ZERO)),
                Some(ReplicaReply::Refused(refusal)) => Err(refusal.code()),
                Some(other) => panic!("ListOffsets is answered with {other:?}"),
                None => Err(ErrorCode::NotLeaderOrFollower),
            }
        };
        let (start, end) = (one(OffsetSpec::Earliest)?, one(OffsetSpec::Latest)?);
        match self.ask(core, at, ReplicaRequest::Producers) {
            Some(ReplicaReply::Producers(producers)) => Ok(LeaderHolds { start, end, producers }),
            Some(ReplicaReply::Refused(refusal)) => Err(refusal.code()),
            Some(other) => panic!("the question for producers is answered with {other:?}"),
            None => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn on_fetch(
        &mut self,
        core: &mut Core,
        link: Link,
        generation: u64,
        call: Call,
        broker: BrokerId,
        epoch: BrokerEpoch,
        (points, forgotten): (Vec<(TopicPartition, FetchPoint)>, Vec<TopicPartition>),
    ) {
        let caller = Caller::Follower { id: broker, epoch: Some(epoch) };
        let arrived = core.clock().mono;
        let current = self.sessions.get(&link).map(|s| s.generation);
        if current.is_some_and(|g| g > generation) || (current == Some(generation) && self.is_repeated(link, call)) {
            // Received on a connection that is gone by now, or received twice: handled all the same, outside any session.
            for (at, point) in points {
                self.ask_follower(core, at, point, caller, None, arrived, true);
            }
            return;
        }
        if current != Some(generation) {
            self.drop_session(core, link);
            let session = Session {
                generation,
                waiter: WaiterId(self.mint()),
                arrival: LastArrival::default(),
                caller,
                newest: call,
                asked: BTreeMap::new(),
                armed: BTreeSet::new(),
                ready: BTreeSet::new(),
                served: false,
                told: BTreeMap::new(),
                parked: None,
            };
            self.sessions.insert(link, session);
        }
        // A second request on the connection: the one that waits is answered at once.
        if let Some(session) = self.sessions.get_mut(&link)
            && let Some(parked) = &mut session.parked
        {
            parked.due = core.now;
            self.serve_session(core, link, false);
        }
        let session = self.sessions.get_mut(&link).expect("made above");
        let due = core.now + core.swarm.fetch_wait_ms * 1_000;
        session.parked = Some(Parked { call, arrived, due });
        (session.caller, session.newest) = (caller, call);
        for (at, point) in points {
            if session.asked.insert(at, point) != Some(point) {
                session.told.remove(&at);
            }
            session.ready.insert(at);
        }
        let waiter = session.waiter;
        for at in forgotten {
            if let Some(session) = self.sessions.get_mut(&link) {
                session.asked.remove(&at);
                session.armed.remove(&at);
                session.ready.remove(&at);
            }
            self.ask(core, at, ReplicaRequest::Unwatch(waiter));
        }
        self.serve_session(core, link, true);
        if let Some(session) = self.sessions.get(&link) {
            session.arrival.store(arrived);
            if session.parked.is_some_and(|p| p.call == call) {
                self.schedule(core, due - core.now, NodeTimer::SessionDue { link, call });
            }
        }
    }

    fn is_repeated(&self, link: Link, call: Call) -> bool {
        self.sessions.get(&link).is_some_and(|s| s.newest >= call)
    }

    /// Asks every partition that has news, and answers if there is something to say.
    pub(super) fn serve_session(&mut self, core: &mut Core, link: Link, first_ask: bool) {
        let Some(session) = self.sessions.get_mut(&link) else { return };
        let Some(parked) = session.parked else { return };
        let ready = std::mem::take(&mut session.ready);
        let (caller, waiter, arrival) = (session.caller, session.waiter, session.arrival.clone());
        let mut answers = Vec::new();
        let mut news = parked.due <= core.now;
        for at in ready {
            let Some(point) = self.sessions.get(&link).and_then(|s| s.asked.get(&at).copied()) else { continue };
            let watch = Watch { waiter, bytes_min: 1, arrival: Some(arrival.clone()) };
            let (answer, watched) = self.ask_follower(core, at, point, caller, Some(watch), parked.arrived, first_ask);
            let Some(session) = self.sessions.get_mut(&link) else { return };
            if watched {
                session.armed.insert(at);
            } else {
                session.armed.remove(&at);
            }
            let has_news = !matches!(&answer, PartitionAnswer::Records { records, .. } if records.is_empty());
            news |= has_news;
            answers.push((at, point, answer));
        }
        let Some(session) = self.sessions.get_mut(&link) else { return };
        if !news {
            // What was learnt of watermarks rides on the next answer.
            for (at, _, answer) in &answers {
                let PartitionAnswer::Records { high_watermark, log_start, .. } = answer else { continue };
                if !session.armed.contains(at) || session.told.get(at) != Some(&(*high_watermark, *log_start)) {
                    session.ready.insert(*at);
                }
            }
            return;
        }
        session.parked = None;
        for (at, _, answer) in &answers {
            match answer {
                PartitionAnswer::Records { high_watermark, log_start, .. } => {
                    session.told.insert(*at, (*high_watermark, *log_start))
                }
                PartitionAnswer::Diverging { .. } | PartitionAnswer::Error(_) => session.told.remove(at),
            };
            if session.served && matches!(answer, PartitionAnswer::Diverging { .. }) {
                core.mark(Mark::DivergedInSession);
            }
        }
        session.served = true;
        let generation = session.generation;
        core.send(link, Way::Back, generation, Message::FetchAnswer { call: parked.call, answers });
    }

    #[allow(clippy::too_many_arguments)]
    fn ask_follower(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        point: FetchPoint,
        caller: Caller,
        watch: Option<Watch>,
        arrived: Millis,
        first_ask: bool,
    ) -> (PartitionAnswer, bool) {
        let request = Fetch {
            caller,
            leader_epoch: Some(point.leader_epoch),
            offset: point.offset,
            last_fetched_epoch: point.last_fetched_epoch,
            follower_log_start: Some(point.log_start),
            bytes_max: core.swarm.fetch_bytes_max,
            first_whole: true,
            any_replica: false,
            watch,
            arrived,
            first_ask,
        };
        let before = self.belief(at, caller);
        let reply = self.ask(core, at, ReplicaRequest::Fetch(request));
        if let Caller::Follower { id, epoch: Some(epoch) } = caller {
            let registered = self.acted.broker(id).map_or(-1, |b| b.epoch.0);
            core.check(joining::heard(at, id, epoch.0, registered, before, self.belief(at, caller)));
            if epoch.0 < registered {
                core.mark(Mark::FormerProcessFetched);
            }
        }
        match reply {
            Some(ReplicaReply::Fetched(grant)) => {
                let records = match grant.plan.map(|plan| plan.read()) {
                    None => Bytes::new(),
                    Some(Ok(records)) => records,
                    Some(Err(_)) => return (PartitionAnswer::Error(ErrorCode::KafkaStorageError), grant.watched),
                };
                let (high_watermark, log_start) = (grant.high_watermark, grant.log_start);
                (PartitionAnswer::Records { records, high_watermark, log_start }, grant.watched)
            }
            Some(ReplicaReply::Diverging(diverging)) => {
                let (epoch, end, log_start) = (diverging.epoch, diverging.end, diverging.log_start);
                (PartitionAnswer::Diverging { epoch, end, log_start }, false)
            }
            Some(ReplicaReply::Refused(refusal)) => (PartitionAnswer::Error(refusal.code()), false),
            Some(other) => panic!("a fetch is answered with {other:?}"),
            // Not hosted here (yet): this broker's metadata is behind the follower's.
            None => (PartitionAnswer::Error(ErrorCode::UnknownTopicOrPartition), false),
        }
    }

    /// What this leader believes of a follower.
    fn belief(&self, at: TopicPartition, caller: Caller) -> joining::Belief {
        let Caller::Follower { id, .. } = caller else { return None };
        let leader = self.hosted.get(&at)?.replica.replication().leader().ok()?;
        leader.reported_ends().find(|(broker, ..)| *broker == id).map(|(_, epoch, end)| (epoch.0, end.0))
    }

    /// A role may have changed: whoever waits belongs to the new one.
    pub(super) fn check_waiting(&self, core: &mut Core, at: TopicPartition) {
        let Some(hosted) = self.hosted.get(&at) else { return };
        let replication = hosted.replica.replication();
        let leads = replication.leader().is_ok().then(|| replication.leader_epoch().0);
        for waiting in self.waiting.values().filter(|w| w.at == at) {
            core.check(joining::waits(at, self.id, waiting.epoch, leads));
        }
    }

    /// A partition has news for a session.
    pub(super) fn wake(&mut self, core: &mut Core, at: TopicPartition, waiter: WaiterId, urgent: bool) {
        let Some((link, session)) = self.sessions.iter_mut().find(|(_, s)| s.waiter == waiter) else { return };
        let link = *link;
        session.ready.insert(at);
        session.armed.remove(&at);
        if urgent && session.parked.is_some() {
            self.schedule(core, 0, NodeTimer::Session(link));
        }
    }

    pub(super) fn session_due(&mut self, core: &mut Core, link: Link, call: Call) {
        if self.sessions.get(&link).is_some_and(|s| s.parked.is_some_and(|p| p.call == call)) {
            self.serve_session(core, link, false);
        }
    }

    fn drop_session(&mut self, core: &mut Core, link: Link) {
        if let Some(session) = self.sessions.remove(&link) {
            if session.parked.is_some() {
                core.mark(Mark::SessionReplaced);
            }
            for at in session.asked.into_keys() {
                self.ask(core, at, ReplicaRequest::Unwatch(session.waiter));
            }
        }
    }
}
