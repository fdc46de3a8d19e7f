//! Whole replicas over a simulated disk, joined by hand: what one says is carried to the other, step by step.

use std::path::Path;

use bytes::Bytes;
use highwater_quorum::controller::IsrProposal;
use highwater_wire::batch::RecordBatch;
use highwater_wire::records::RecordBatchBuilder;
use highwater_wire::{
    BrokerEpoch, BrokerId, ClusterId, ErrorCode, LeaderEpoch, Millis, Offset, ProducerEpoch, ProducerId, Timestamp,
};

use super::message::*;
use super::status::*;
use super::*;
use crate::disk::sim::SimDisk;
use crate::log::{LogDir, LogName, Opening};
use crate::replication::testing::{Facts, LAG_MAX, brokers, members, partition};

mod follower;
mod leader;

/// One broker with its replica. What it put out and nobody took yet is in `outputs`.
struct Node {
    id: BrokerId,
    replica: Replica<SimDisk>,
    disk: SimDisk,
    outputs: Vec<Output<SimDisk>>,
    tick_at: Option<Millis>,
    now: Now,
}

impl Node {
    fn new(id: i32) -> Self {
        Self::open(id, SimDisk::new())
    }

    /// Opens what the disk holds, as a process does at its start.
    fn open(id: i32, disk: SimDisk) -> Self {
        let id = BrokerId(id);
        let opening = Opening {
            cluster: ClusterId("c".to_owned()),
            broker: id,
            boot_id: Some("boot".to_owned()),
            boot_time_ms: 1,
        };
        let (dir, _) = LogDir::open(disk.clone(), Path::new("/data"), &opening).unwrap();
        let settings = LogSettings { segment_bytes_max: 1_000, ..LogSettings::default() };
        let wall = Timestamp(1_700_000_000_000);
        let (log, report) = Log::open(&dir, &LogName::new("t", 0), partition().topic, settings, wall).unwrap();
        let config = ReplicaConfig { partition: partition(), me: id, lag_max: LAG_MAX };
        let replica = Replica::new(config, log, report.watermark_checkpoint);
        Self { id, replica, disk, outputs: Vec::new(), tick_at: None, now: Now { mono: Millis(1_000_000), wall } }
    }

    fn ask(&mut self, request: ReplicaRequest<SimDisk>) -> ReplicaReply<SimDisk> {
        let mut out = Outbox::new();
        let reply = self.replica.handle(request, self.now, &mut out);
        self.outputs.extend(out.drain());
        self.tick_at = out.tick_at;
        reply
    }

    fn pass(&mut self, millis: u64) {
        self.now.mono = self.now.mono + Millis(millis);
        self.now.wall = Timestamp(self.now.wall.0 + millis as i64);
    }

    fn end(&self) -> i64 {
        self.replica.log().view().end.0
    }

    fn high_watermark(&self) -> i64 {
        self.replica.replication().high_watermark().0
    }

    fn take_terms(&mut self, facts: &Facts) -> Became {
        let own_epoch = BrokerEpoch(100 + i64::from(self.id.0));
        match self.ask(ReplicaRequest::Become(Box::new(Assignment { own_epoch, ..facts.terms() }))) {
            ReplicaReply::Became(became) => became,
            other => panic!("{other:?}"),
        }
    }

    fn produce(&mut self, batch: RecordBatch, acks: Acks, ticket: u64) -> ReplicaReply<SimDisk> {
        let deadline = self.now.mono + Millis(30_000);
        self.ask(ReplicaRequest::Produce(Produce { batch, acks, deadline, ticket: Ticket(ticket), epoch: None }))
    }

    fn next(&mut self) -> FollowerNext {
        next_of(self.ask(ReplicaRequest::FetchPoint))
    }

    fn point(&mut self) -> FetchPoint {
        match self.next() {
            FollowerNext::Fetch(point) => point,
            other => panic!("{other:?}"),
        }
    }

    /// What this leader answers to a follower's question.
    fn answer(&mut self, follower: BrokerId, point: FetchPoint) -> LeaderAnswer {
        let fetch = follower_fetch(follower, point, self.now.mono);
        match self.ask(ReplicaRequest::Fetch(fetch)) {
            ReplicaReply::Fetched(grant) => LeaderAnswer::Records {
                records: grant.plan.map_or_else(Bytes::new, |plan| plan.read().unwrap()),
                high_watermark: grant.high_watermark,
                log_start: grant.log_start,
            },
            ReplicaReply::Diverging(diverging) => {
                let (epoch, end) = (Some(diverging.epoch), Some(diverging.end));
                LeaderAnswer::Diverging { epoch, end, log_start: Some(diverging.log_start) }
            }
            ReplicaReply::Refused(refusal) => LeaderAnswer::Error(refusal.code()),
            other => panic!("{other:?}"),
        }
    }

    fn feed(&mut self, requested: FetchPoint, answer: LeaderAnswer) -> FollowerNext {
        next_of(self.ask(ReplicaRequest::FetchedFromLeader(FetchedFromLeader { requested, answer })))
    }

    /// One fetch round with the leader.
    fn fetch_from(&mut self, leader: &mut Self) -> FollowerNext {
        let point = self.point();
        let answer = leader.answer(self.id, point);
        self.feed(point, answer)
    }

    /// What this leader says of its log.
    fn holds(&mut self) -> LeaderHolds {
        let ReplicaReply::Producers(producers) = self.ask(ReplicaRequest::Producers) else {
            panic!("it does not lead")
        };
        let view = self.replica.log().view();
        LeaderHolds { start: view.start, end: view.end, producers }
    }

    /// Takes in what a leader says of its log.
    fn hear(&mut self, requested: FetchPoint, holds: LeaderHolds) -> FollowerNext {
        next_of(self.ask(ReplicaRequest::LeaderOffsets(LeaderOffsets { requested, answer: Ok(holds) })))
    }

    /// Runs the sync jobs that are out; says how many there were.
    fn sync(&mut self) -> usize {
        let mut ran = 0;
        while let Some(at) = self.outputs.iter().position(|output| matches!(output, Output::Sync(_))) {
            let Output::Sync(job) = self.outputs.remove(at) else { unreachable!() };
            let done = job.run();
            self.ask(ReplicaRequest::Synced(done));
            ran += 1;
        }
        ran
    }

    /// Saves the log starts that are to be saved; says which.
    fn save_starts(&mut self) -> Vec<Offset> {
        let mut saved = Vec::new();
        while let Some(at) = self.outputs.iter().position(|output| matches!(output, Output::SaveStart(_))) {
            let Output::SaveStart(start) = self.outputs.remove(at) else { unreachable!() };
            self.ask(ReplicaRequest::StartSaved(start));
            saved.push(start);
        }
        saved
    }

    /// Answers for tickets since the last call: (ticket, base offset or error).
    fn replies(&mut self) -> Vec<(u64, Result<i64, ErrorCode>)> {
        let mut replies = Vec::new();
        self.outputs.retain(|output| match output {
            Output::Reply(ticket, ReplicaReply::Produced(produced)) => {
                replies.push((ticket.0, Ok(produced.base.0)));
                false
            }
            Output::Reply(ticket, ReplicaReply::DeletedRecords { low_watermark }) => {
                replies.push((ticket.0, Ok(low_watermark.0)));
                false
            }
            Output::Reply(ticket, ReplicaReply::Refused(refusal)) => {
                replies.push((ticket.0, Err(refusal.code())));
                false
            }
            _ => true,
        });
        replies
    }

    fn wakes(&mut self) -> Vec<(u64, bool)> {
        let mut wakes = Vec::new();
        self.outputs.retain(|output| match output {
            Output::Wake { waiter, urgent } => {
                wakes.push((waiter.0, *urgent));
                false
            }
            _ => true,
        });
        wakes
    }

    fn notes(&self) -> Vec<&Note> {
        let mut notes = Vec::new();
        for output in &self.outputs {
            if let Output::Note(note) = output {
                notes.push(note);
            }
        }
        notes
    }

    fn proposals(&mut self) -> Vec<IsrProposal> {
        let mut proposals = Vec::new();
        self.outputs.retain(|output| match output {
            Output::ProposeIsr(proposal) => {
                proposals.push((**proposal).clone());
                false
            }
            _ => true,
        });
        proposals
    }

    fn status(&mut self) -> ReplicaStatus {
        match self.ask(ReplicaRequest::Status) {
            ReplicaReply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn consume(&mut self, offset: i64, watch: Option<Watch>) -> ReplicaReply<SimDisk> {
        let fetch = Fetch {
            caller: Caller::Consumer(Isolation::ReadUncommitted),
            leader_epoch: None,
            offset: Offset(offset),
            last_fetched_epoch: None,
            follower_log_start: None,
            bytes_max: 1 << 20,
            first_whole: true,
            any_replica: true,
            watch,
            arrived: self.now.mono,
            first_ask: true,
        };
        self.ask(ReplicaRequest::Fetch(fetch))
    }
}

fn next_of(reply: ReplicaReply<SimDisk>) -> FollowerNext {
    match reply {
        ReplicaReply::Next(next) => next,
        other => panic!("{other:?}"),
    }
}

fn follower_fetch(follower: BrokerId, point: FetchPoint, at: Millis) -> Fetch {
    Fetch {
        caller: Caller::Follower { id: follower, epoch: Some(BrokerEpoch(100 + i64::from(follower.0))) },
        leader_epoch: Some(point.leader_epoch),
        offset: point.offset,
        last_fetched_epoch: point.last_fetched_epoch,
        follower_log_start: Some(point.log_start),
        bytes_max: 1 << 20,
        first_whole: true,
        any_replica: false,
        watch: None,
        arrived: at,
        first_ask: true,
    }
}

fn batch(records: usize) -> RecordBatch {
    let mut builder = RecordBatchBuilder::new();
    for n in 0..records {
        builder = builder.value(Timestamp(1_699_999_999_000 + n as i64), format!("record {n}").as_bytes());
    }
    builder.build()
}

fn idempotent(epoch: i16, sequence: i32) -> RecordBatch {
    let builder = RecordBatchBuilder::new().producer(ProducerId(9), ProducerEpoch(epoch), sequence);
    builder.value(Timestamp(1_699_999_999_000), b"once").build()
}

fn code(reply: &ReplicaReply<SimDisk>) -> ErrorCode {
    match reply {
        ReplicaReply::Refused(refusal) => refusal.code(),
        other => panic!("{other:?}"),
    }
}

fn base(reply: &ReplicaReply<SimDisk>) -> i64 {
    match reply {
        ReplicaReply::Produced(produced) => produced.base.0,
        other => panic!("{other:?}"),
    }
}

/// Broker 1 leads in epoch 5; brokers 2 and 3 follow; all are in sync and have fetched.
fn cluster(facts: &Facts) -> [Node; 3] {
    let mut nodes = [1, 2, 3].map(Node::new);
    for node in &mut nodes {
        node.take_terms(facts);
        node.sync();
    }
    let [leader, two, three] = &mut nodes;
    two.fetch_from(leader);
    three.fetch_from(leader);
    nodes.iter_mut().for_each(|node| node.outputs.clear());
    nodes
}

fn facts() -> Facts {
    Facts::new(&[1, 2, 3], &[1, 2, 3], 5, 2)
}

/// Broker `leader` leads from the next epoch on.
fn elect(facts: &mut Facts, leader: i32) {
    facts.change(|state| {
        state.leader = Some(BrokerId(leader));
        state.leader_epoch = state.leader_epoch.next();
    });
}
