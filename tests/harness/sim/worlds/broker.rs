//! A broker of a small world: its log, which outlives its processes, and the shipped role of the one that runs.

use std::sync::Arc;

use highwater_data::log_view::{EpochHistory, LogView};
use highwater_data::replication::follower::{Answer, FetchPoint, FollowerNext, Verdict};
use highwater_data::replication::leader::{FetchVerdict, FollowerFetch};
use highwater_data::replication::peers::{Peer, Peers};
use highwater_data::replication::{Effect, Replication, Role, Step, Terms};
use highwater_quorum::controller::{AlteredPartition, IsrProposal};
use highwater_quorum::flaws::{Flaw, planted};
use highwater_quorum::{ImageVersion, MetadataImage};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, IncarnationId, LeaderEpoch, Millis, Offset};

use super::super::invariants::{Verdict as Checked, must};
use super::{LAG_MAX, Packet, Wrong, partition};

/// One record: who leads when it was written, and which one it is; number 0 stands where something was and is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub epoch: i32,
    pub number: u8,
}

/// A log of numbers; nothing is ever deleted from its beginning.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub records: Vec<Record>,
    pub epochs: EpochHistory,
    truncations: u64,
}

impl Log {
    pub fn end(&self) -> Offset {
        Offset(self.records.len() as i64)
    }

    pub fn view(&self) -> LogView<'_> {
        let end = self.end();
        LogView {
            start: Offset::ZERO,
            end,
            flushed_end: end,
            epochs: &self.epochs,
            truncations: self.truncations,
            knows_producers: true,
        }
    }

    fn push(&mut self, record: Record) {
        self.epochs.assign(LeaderEpoch(record.epoch), self.end());
        self.records.push(record);
    }

    pub fn cut(&mut self, to: Offset) {
        self.records.truncate(usize::try_from(to.0).unwrap_or(0));
        self.epochs.truncate_from_end(to);
        self.truncations += 1;
    }
}

/// What a broker held before its machine lost something, and the process that held it: what the quorum and leaders count
/// until they have heard of the next one.
#[derive(Debug, Clone)]
pub(super) struct Former {
    pub epoch: BrokerEpoch,
    pub records: Vec<Record>,
}

#[derive(Debug, Clone)]
pub(super) struct Broker {
    pub id: BrokerId,
    pub log: Log,
    pub process: Option<Process>,
    /// Of its newest registration.
    pub epoch: BrokerEpoch,
    pub incarnation: IncarnationId,
    /// Its machine lost something since.
    pub lossy: bool,
    pub former: Option<Former>,
    /// The watermark as written down when its last process ended.
    pub checkpoint: Offset,
}

#[derive(Debug, Clone)]
pub(super) struct Process {
    pub replication: Replication,
    /// The image it has acted on.
    pub seen: ImageVersion,
}

/// What came of handing something to a broker.
pub(super) type Sent = Vec<Packet>;

impl Broker {
    pub fn new(id: BrokerId) -> Self {
        Self {
            id,
            log: Log::default(),
            process: None,
            epoch: BrokerEpoch(0),
            incarnation: IncarnationId::from_bytes([0; 16]),
            lossy: false,
            former: None,
            checkpoint: Offset::ZERO,
        }
    }

    /// A process that has registered as `epoch` and knows nothing yet.
    pub fn start(&mut self, epoch: BrokerEpoch, incarnation: IncarnationId) {
        let replication = Replication::new(partition(), self.id, LAG_MAX, self.checkpoint, &self.log.view());
        self.process = Some(Process { replication, seen: ImageVersion(0) });
        (self.epoch, self.incarnation, self.lossy) = (epoch, incarnation, false);
    }

    /// What recovery must not do: below the checkpoint all is taken to be there; what is not reads as nothing.
    pub fn trust_the_checkpoint(&mut self) {
        let Some(former) = self.former.as_ref().filter(|_| self.lossy) else { return };
        let (from, to) = (self.log.records.len(), usize::try_from(self.checkpoint.0).unwrap_or(0));
        let lost = former.records.get(from..to).unwrap_or_default().to_vec();
        lost.into_iter().for_each(|record| self.log.push(Record { number: 0, ..record }));
    }

    pub fn high_watermark(&self) -> Option<Offset> {
        self.process.as_ref().map(|process| process.replication.high_watermark())
    }

    /// The role, as the process of now or none.
    pub fn role(&self) -> Option<&Role> {
        self.process.as_ref().map(|process| process.replication.role())
    }

    /// The log that somebody counts who knows the process of this epoch.
    pub fn log_as_of(&self, epoch: BrokerEpoch) -> &[Record] {
        match &self.former {
            Some(former) if former.epoch == epoch => &former.records,
            _ => &self.log.records,
        }
    }

    fn sent(&self, effects: Vec<Effect>) -> Sent {
        let proposed = |effect: Effect| match effect {
            Effect::Propose(proposal) => Some(Packet::Alter { from: self.id, epoch: self.epoch, proposal }),
            _ => None,
        };
        effects.into_iter().filter_map(proposed).collect()
    }

    /// Acts on an image, as a replica does that is handed its terms.
    pub fn learn(&mut self, image: &MetadataImage, now: Millis, committed: &[Record]) -> (Sent, Checked) {
        let Some(process) = &mut self.process else { return (Vec::new(), Ok(())) };
        process.seen = image.version;
        let (Some(state), Some(topic)) = (image.partition(partition()), image.topics.get(&partition().topic)) else {
            return (Vec::new(), Ok(()));
        };
        let peer = |id: &BrokerId| {
            let known = image.broker(*id)?;
            Some((*id, Peer { epoch: known.epoch, active: known.is_active(), reachable: true }))
        };
        let terms = Terms {
            // Newer images only are handed in: their numbers would make equal states differ.
            version: ImageVersion(0),
            state: state.clone(),
            config: topic.config.clone(),
            peers: Arc::new(Peers(image.brokers.keys().filter_map(peer).collect())),
            own_epoch: self.epoch,
        };
        let mut effects = Vec::new();
        let mut checked = Ok(());
        let replication = &mut process.replication;
        match replication.step(&terms) {
            Step::Ignore => {}
            Step::Refresh => replication.refresh(terms, self.log.view(), now, &mut effects),
            Step::Lead { epoch } => {
                let end = self.log.end();
                self.log.epochs.assign(epoch, end);
                replication.lead(terms, self.log.view(), now, &mut effects);
            }
            Step::Follow { .. } => {
                if let Some(to) = replication.follow(terms, &self.log.view(), &mut effects) {
                    checked = self.truncate(to, committed);
                }
            }
            Step::Idle => replication.idle(terms, &mut effects),
        }
        (self.sent(effects), checked)
    }

    /// T4: what is committed is never cut.
    fn truncate(&mut self, to: Offset, committed: &[Record]) -> Checked {
        let from = usize::try_from(to.0).unwrap_or(0);
        let pairs = self.log.records.iter().zip(committed).enumerate().skip(from);
        let lost = pairs.filter(|(_, (own, committed))| own == committed).map(|(offset, _)| offset).next();
        let id = self.id;
        let end = self.log.end();
        self.log.cut(to);
        if let Some(process) = &mut self.process {
            let generation = process.replication.fresh_generation();
            if let Some(follower) = process.replication.following() {
                follower.on_truncated(&self.log.view(), generation);
            }
        }
        must(lost.is_none(), "T4", || {
            format!("broker {id} cuts its log from {end} to {to}, with the committed record at {}", lost.unwrap_or(0))
        })
    }

    /// One more record, if it leads and acks=all is taken.
    pub fn append(&mut self, number: u8, now: Millis) -> Option<Sent> {
        let process = self.process.as_mut()?;
        let leader = process.replication.leader().ok()?;
        leader.may_append_for_all().ok()?;
        let epoch = leader.epoch().0;
        let mut effects = Vec::new();
        if let Some((leader, cx)) = process.replication.lead_with(self.log.view(), now, &mut effects) {
            leader.before_append(&cx.view);
        }
        self.log.push(Record { epoch, number });
        if let Some((leader, mut cx)) = process.replication.lead_with(self.log.view(), now, &mut effects) {
            leader.on_appended(&mut cx);
        }
        Some(self.sent(effects))
    }

    pub fn tick(&mut self, now: Millis) -> Sent {
        let Some(process) = &mut self.process else { return Vec::new() };
        let mut effects = Vec::new();
        if let Some((leader, mut cx)) = process.replication.lead_with(self.log.view(), now, &mut effects) {
            leader.on_tick(&mut cx);
        }
        self.sent(effects)
    }

    /// What it wants to ask now.
    pub fn question(&mut self) -> Option<Packet> {
        let (from, epoch) = (self.id, self.epoch);
        let process = self.process.as_mut()?;
        if !process.replication.may_fetch() {
            return None;
        }
        match process.replication.following()?.next(&self.log.view()) {
            FollowerNext::Fetch(point) => Some(Packet::Fetch { from, epoch, point }),
            FollowerNext::AskLeader(point) => Some(Packet::AskEnd { from, epoch, point }),
            _ => None,
        }
    }

    /// As the leader: a fetch of a follower, as `Replica::fetch_for_follower` deals with it.
    pub fn fetched_by(
        &mut self,
        from: BrokerId,
        epoch: BrokerEpoch,
        point: FetchPoint,
        now: Millis,
        wrong: Wrong,
    ) -> (Sent, Answer, Vec<Record>) {
        let nothing = |code| (Vec::new(), Answer::Error(code), Vec::new());
        let Some(process) = &mut self.process else { return nothing(ErrorCode::NetworkException) };
        let mut leader_epoch = point.leader_epoch;
        if wrong == Wrong::TakesOldFetches {
            leader_epoch = leader_epoch.max(process.replication.leader_epoch());
        }
        if let Err(refusal) = process.replication.check_epoch(Some(leader_epoch)) {
            return nothing(refusal.code());
        }
        let question = FollowerFetch {
            replica: from,
            broker_epoch: Some(epoch),
            leader_epoch: Some(leader_epoch),
            offset: point.offset,
            last_fetched_epoch: point.last_fetched_epoch,
            log_start: Some(point.log_start),
            at: now,
            session: None,
        };
        let view = self.log.view();
        let verdict = process.replication.leader().and_then(|leader| leader.check_fetch(&question, &view));
        let mut effects = Vec::new();
        let counts = verdict == Ok(FetchVerdict::Agrees) || (verdict.is_ok() && planted(Flaw::CountsDivergingFetches));
        if counts && let Some((leader, mut cx)) = process.replication.lead_with(view, now, &mut effects) {
            leader.on_follower_fetch(&question, &mut cx);
        }
        let high_watermark = process.replication.high_watermark();
        let (answer, records) = match verdict {
            Ok(FetchVerdict::Agrees) => {
                let from = usize::try_from(point.offset.0).unwrap_or(0);
                let answer = Answer::Records { high_watermark, log_start: Offset::ZERO };
                (answer, self.log.records[from..].to_vec())
            }
            Ok(FetchVerdict::Diverges { epoch, end }) => {
                let (epoch, end, log_start) = (Some(epoch), Some(end), Some(Offset::ZERO));
                (Answer::Diverging { epoch, end, log_start }, Vec::new())
            }
            Err(refusal) => (Answer::Error(refusal.code()), Vec::new()),
        };
        (self.sent(effects), answer, records)
    }

    /// As the leader: where the log ends.
    pub fn told_end(&self, point: FetchPoint) -> Result<Offset, ErrorCode> {
        let Some(process) = &self.process else { return Err(ErrorCode::NetworkException) };
        let checked = process.replication.check_epoch(Some(point.leader_epoch));
        let leads = checked.and_then(|()| process.replication.leader().map(|_| ()));
        leads.map(|()| self.log.end()).map_err(|refusal| refusal.code())
    }

    /// As a follower: a leader's answer, as `Replica::fetched_from_leader` deals with it.
    pub fn hears(&mut self, point: FetchPoint, answer: Answer, records: Vec<Record>, committed: &[Record]) -> Checked {
        let Some(follower) = self.process.as_mut().and_then(|process| process.replication.following()) else {
            return Ok(());
        };
        let takes = if planted(Flaw::TakesLateAnswers) { LeaderEpoch(i32::MAX) } else { follower.epoch() };
        let verdict = follower.on_answer(&point, answer, &self.log.view());
        if let Verdict::Append { high_watermark, .. } = verdict {
            let mut whole = true;
            for record in records {
                whole &= record.epoch <= takes.0;
                if whole {
                    self.log.push(record);
                }
            }
            if let Some(follower) = self.process.as_mut().and_then(|process| process.replication.following()) {
                follower.on_stored(high_watermark, &self.log.view());
                if !whole {
                    follower.on_damaged();
                }
            }
            return Ok(());
        }
        self.obey(verdict, committed)
    }

    /// As a follower: where the leader's log ends.
    pub fn hears_end(&mut self, point: FetchPoint, end: Result<Offset, ErrorCode>, committed: &[Record]) -> Checked {
        let Some(follower) = self.process.as_mut().and_then(|process| process.replication.following()) else {
            return Ok(());
        };
        match end {
            Ok(end) => {
                let verdict = follower.on_leader_offsets(&point, Offset::ZERO, end, &self.log.view());
                self.obey(verdict, committed)
            }
            Err(_) => {
                follower.on_leader_offsets_failed(&point, &self.log.view());
                Ok(())
            }
        }
    }

    fn obey(&mut self, verdict: Verdict, committed: &[Record]) -> Checked {
        match verdict {
            Verdict::Truncate { to } => self.truncate(to, committed),
            Verdict::TruncateFully { start } => self.truncate(start, committed),
            _ => Ok(()),
        }
    }

    /// As the leader: what the controller made of a proposal.
    pub fn altered(
        &mut self,
        proposal: &IsrProposal,
        result: &Result<AlteredPartition, ErrorCode>,
        now: Millis,
    ) -> Sent {
        let Some(process) = &mut self.process else { return Vec::new() };
        let mut effects = Vec::new();
        if let Some((leader, mut cx)) = process.replication.lead_with(self.log.view(), now, &mut effects) {
            leader.on_isr(proposal, result, &mut cx);
        }
        self.sent(effects)
    }
}
