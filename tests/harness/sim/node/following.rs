//! The follower's side: one fetch loop per leader broker, one request under way in each (D21, R151).

use std::collections::{BTreeMap, VecDeque};

use highwater_data::replica::message::{
    FetchPoint, FetchedFromLeader, FollowerNext, LeaderAnswer, LeaderOffsets, ReplicaReply, ReplicaRequest,
};
use highwater_wire::{BrokerId, ErrorCode, Offset, TopicPartition};

use super::super::core::{Core, NodeTimer};
use super::super::message::{Call, Message, PartitionAnswer};
use super::super::network::{Link, Place};
use super::Process;

/// First pause after an error (D26a), ms.
const BACKOFF_FIRST: u64 = 20;

/// What one partition wants of its fetch loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    Fetch(FetchPoint),
    /// The same, from that time (µs) on.
    Pause(FetchPoint, u64),
    /// Ask where the leader's log starts and ends, from that time on.
    AskOffsets(FetchPoint, u64),
    /// In the request under way.
    UnderWay(FetchPoint),
}

/// The loop to one leader: one request under way, and a second one only when there is news from outside (a partition to
/// follow, one that was synced), which makes the leader answer the first at once.
#[derive(Debug, Default)]
pub(super) struct Fetcher {
    calls: VecDeque<(Call, Vec<(TopicPartition, FetchPoint)>)>,
    /// Generation of the connection the requests went out on.
    generation: u64,
    offsets: Vec<(Call, TopicPartition, FetchPoint)>,
}

impl Process {
    pub(super) fn set_next(&mut self, core: &mut Core, at: TopicPartition, next: FollowerNext) {
        let Some(hosted) = self.hosted.get_mut(&at) else { return };
        let (next, leader, delay) = match next {
            FollowerNext::Fetch(point) => {
                hosted.backoff_ms = 0;
                (Next::Fetch(point), point.leader, 0)
            }
            FollowerNext::BackOff { point, error } => {
                hosted.backoff_ms =
                    (hosted.backoff_ms * 2).clamp(BACKOFF_FIRST, core.swarm.backoff_ms.max(BACKOFF_FIRST));
                core.trace.line(core.now, || format!("  b{} {at}: backs off after {error:?}", self.id));
                let delay = hosted.backoff_ms * 1_000;
                (Next::Pause(point, core.now + delay), point.leader, delay)
            }
            FollowerNext::AskLeaderOffsets(point) => (Next::AskOffsets(point, core.now), point.leader, 0),
            FollowerNext::AwaitSync | FollowerNext::AwaitMetadata => {
                hosted.next = Next::Nothing;
                return;
            }
            FollowerNext::Dropped => return,
        };
        hosted.next = next;
        self.schedule(core, delay, NodeTimer::Kick(leader));
    }

    fn link_to(&self, leader: BrokerId) -> Link {
        Link { from: self.place(), to: Place::Broker(leader.0) }
    }

    /// Sends a round if none is under way and somebody wants something.
    pub(super) fn kick(&mut self, core: &mut Core, leader: BrokerId) {
        let Some(epoch) = self.epoch else { return };
        let link = self.link_to(leader);
        let fetcher = self.fetchers.entry(leader).or_default();
        for (at, hosted) in &mut self.hosted {
            if let Next::AskOffsets(point, from) = hosted.next
                && point.leader == leader
                && from <= core.now
            {
                let call = core.call();
                fetcher.offsets.push((call, *at, point));
                hosted.next = Next::UnderWay(point);
                core.request(link, Message::Offsets { call, at: *at, point });
                let due = NodeTimer::CallDue { link, call };
                core.after(2_000_000, super::Event::Node { broker: self.id, process: self.number, timer: due });
            }
        }
        if fetcher.calls.len() > 1 {
            return;
        }
        let mut points = Vec::new();
        let mut news = false;
        for (at, hosted) in &mut self.hosted {
            let (point, new) = match hosted.next {
                Next::Fetch(point) => (point, true),
                Next::Pause(point, until) if until <= core.now => (point, true),
                Next::UnderWay(point) if !fetcher.offsets.iter().any(|(_, asked, _)| asked == at) => (point, false),
                _ => continue,
            };
            if point.leader == leader {
                hosted.next = Next::UnderWay(point);
                points.push((*at, point));
                news |= new;
            }
        }
        if !news {
            return;
        }
        let call = core.call();
        fetcher.calls.push_back((call, points.clone()));
        fetcher.generation = core.net.generation(link);
        core.request(link, Message::Fetch { call, broker: self.id, epoch, points });
        // D34: a fetch is given up MaxWait + 2 s after it was sent.
        let patience = (core.swarm.fetch_wait_ms + 2_000) * 1_000;
        self.schedule(core, patience, NodeTimer::CallDue { link, call });
    }

    pub(super) fn on_fetch_answer(
        &mut self,
        core: &mut Core,
        link: Link,
        call: Call,
        answers: Vec<(TopicPartition, FetchPoint, PartitionAnswer)>,
    ) {
        let Place::Broker(leader) = link.to else { return };
        let leader = BrokerId(leader);
        let Some(fetcher) = self.fetchers.get_mut(&leader) else { return };
        if fetcher.calls.front().is_none_or(|(c, _)| *c != call) {
            return;
        }
        let (_, points) = fetcher.calls.pop_front().expect("looked at above");
        // Whoever is not in the answer stays where it was (R88), unless the next request asks for it.
        for (at, point) in points {
            let asked_again = fetcher.calls.front().is_some_and(|(_, next)| next.contains(&(at, point)));
            if let Some(hosted) = self.hosted.get_mut(&at)
                && hosted.next == Next::UnderWay(point)
                && !asked_again
            {
                hosted.next = Next::Fetch(point);
            }
        }
        let more = !fetcher.calls.is_empty();
        for (at, requested, answer) in answers {
            let answer = match answer {
                PartitionAnswer::Records { records, high_watermark, log_start } => {
                    LeaderAnswer::Records { records, high_watermark, log_start }
                }
                PartitionAnswer::Diverging { epoch, end } => {
                    core.counts.diverging += 1;
                    LeaderAnswer::Diverging { epoch: Some(epoch), end: Some(end) }
                }
                PartitionAnswer::Error(error) => LeaderAnswer::Error(error),
            };
            self.feed(core, at, requested, answer);
        }
        if !more {
            self.kick(core, leader);
        }
    }

    fn feed(&mut self, core: &mut Core, at: TopicPartition, requested: FetchPoint, answer: LeaderAnswer) {
        let reply = self.ask(core, at, ReplicaRequest::FetchedFromLeader(FetchedFromLeader { requested, answer }));
        if let Some(ReplicaReply::Next(next)) = reply {
            self.set_next(core, at, next);
        }
    }

    pub(super) fn on_offsets_answer(
        &mut self,
        core: &mut Core,
        link: Link,
        call: Call,
        at: TopicPartition,
        point: FetchPoint,
        result: Result<(Offset, Offset), ErrorCode>,
    ) {
        let Place::Broker(leader) = link.to else { return };
        let Some(fetcher) = self.fetchers.get_mut(&BrokerId(leader)) else { return };
        let before = fetcher.offsets.len();
        fetcher.offsets.retain(|(c, _, _)| *c != call);
        if fetcher.offsets.len() == before {
            return;
        }
        self.feed_offsets(core, at, point, result);
    }

    fn feed_offsets(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        requested: FetchPoint,
        answer: Result<(Offset, Offset), ErrorCode>,
    ) {
        let request = ReplicaRequest::LeaderOffsets(LeaderOffsets { requested, answer });
        let Some(ReplicaReply::Next(next)) = self.ask(core, at, request) else { return };
        match next {
            FollowerNext::AskLeaderOffsets(point) if answer.is_err() => {
                if let Some(hosted) = self.hosted.get_mut(&at) {
                    hosted.next = Next::AskOffsets(point, core.now + 100_000);
                    self.schedule(core, 100_000, NodeTimer::Kick(point.leader));
                }
            }
            next => self.set_next(core, at, next),
        }
    }

    /// No answer in time: the connection is given up.
    pub(super) fn call_due(&mut self, core: &mut Core, link: Link, call: Call) {
        let Place::Broker(leader) = link.to else { return self.controller_due(core, call) };
        let leader = BrokerId(leader);
        let Some(fetcher) = self.fetchers.get(&leader) else { return };
        if fetcher.calls.iter().any(|(c, _)| *c == call) || fetcher.offsets.iter().any(|(c, _, _)| *c == call) {
            let generation = core.net.generation(link);
            core.net.reset(link);
            self.leader_lost(core, leader, generation);
        }
    }

    /// The connection to a leader is gone: everything under way on it failed.
    pub(super) fn leader_lost(&mut self, core: &mut Core, leader: BrokerId, generation: u64) {
        let Some(fetcher) = self.fetchers.get_mut(&leader) else { return };
        if fetcher.generation > generation {
            return;
        }
        let failed: BTreeMap<_, _> =
            std::mem::take(&mut fetcher.calls).into_iter().flat_map(|(_, points)| points).collect();
        let asked = std::mem::take(&mut fetcher.offsets);
        for (at, point) in failed {
            self.feed(core, at, point, LeaderAnswer::Error(ErrorCode::NetworkException));
        }
        for (_, at, point) in asked {
            self.feed_offsets(core, at, point, Err(ErrorCode::NetworkException));
        }
        self.suspect(core, leader);
    }
}
