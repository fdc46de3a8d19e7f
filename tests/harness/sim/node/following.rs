//! The follower's side: one fetch loop per leader broker, one request under way in each (D21, R151).

use std::collections::{BTreeSet, VecDeque};

use highwater_data::disk::SimDisk;
use highwater_data::replica::message::{
    FetchPoint, FetchedFromLeader, FollowerNext, LeaderAnswer, LeaderHolds, LeaderOffsets, ReplicaReply, ReplicaRequest,
};
use highwater_data::replication::Role;
use highwater_data::replication::follower::Phase;
use highwater_wire::{BrokerId, ErrorCode, TopicPartition};

use super::super::core::{Core, Event, NodeTimer};
use super::super::invariants::joining;
use super::super::marks::Mark;
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
    /// That question is under way.
    Asking(FetchPoint),
    /// The leader knows that this is asked.
    UnderWay(FetchPoint),
}

/// What an answer of a leader may change in a follower.
#[derive(Debug, PartialEq, Eq)]
struct Followed {
    end: i64,
    truncations: u64,
    high_watermark: i64,
    phase: Option<Phase>,
}

/// The loop to one leader: one request under way, and a second one only when there is news from outside (a partition to
/// follow, one that was synced), which makes the leader answer the first at once. Requests say what changed (KIP-227).
#[derive(Debug, Default)]
pub(super) struct Fetcher {
    calls: VecDeque<Call>,
    /// Of the connection that the requests went out on.
    generation: u64,
    /// What the leader's session holds.
    known: BTreeSet<TopicPartition>,
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
            FollowerNext::AskLeader(point) => (Next::AskOffsets(point, core.now), point.leader, 0),
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

    /// Sends a round if none is under way, or if somebody wants something new.
    pub(super) fn kick(&mut self, core: &mut Core, leader: BrokerId) {
        let Some(epoch) = self.epoch else { return };
        let link = self.link_to(leader);
        let generation = core.net.generation(link);
        let fetcher = self.fetchers.entry(leader).or_default();
        if fetcher.generation != generation {
            fetcher.generation = generation;
            fetcher.known.clear();
        }
        let (mut points, mut waiting) = (Vec::new(), BTreeSet::new());
        for (at, hosted) in &mut self.hosted {
            match hosted.next {
                Next::AskOffsets(point, from) if point.leader == leader && from <= core.now => {
                    let call = core.call();
                    fetcher.offsets.push((call, *at, point));
                    hosted.next = Next::Asking(point);
                    core.request(link, Message::Offsets { call, at: *at, point });
                    let timer = NodeTimer::CallDue { link, call };
                    core.after(2_000_000, Event::Node { broker: self.id, process: self.number, timer });
                }
                Next::Fetch(point) if point.leader == leader => points.push((*at, point)),
                Next::Pause(point, until) if point.leader == leader && until <= core.now => points.push((*at, point)),
                Next::UnderWay(point) if point.leader == leader => {
                    if fetcher.known.contains(at) {
                        waiting.insert(*at);
                    } else {
                        points.push((*at, point));
                    }
                }
                _ => {}
            }
        }
        let due = match fetcher.calls.len() {
            0 => !points.is_empty() || !waiting.is_empty(),
            1 => !points.is_empty(),
            _ => false,
        };
        if !due {
            return;
        }
        for (at, point) in &points {
            waiting.insert(*at);
            if let Some(hosted) = self.hosted.get_mut(at) {
                hosted.next = Next::UnderWay(*point);
            }
        }
        let forget = fetcher.known.difference(&waiting).copied().collect();
        fetcher.known = waiting;
        let call = core.call();
        fetcher.calls.push_back(call);
        core.request(link, Message::Fetch { call, broker: self.id, epoch, points, forget });
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
        if fetcher.calls.front() != Some(&call) {
            return core.mark(Mark::AnswerToNobody);
        }
        fetcher.calls.pop_front();
        for (at, requested, answer) in answers {
            let answer = match answer {
                PartitionAnswer::Records { records, high_watermark, log_start } => {
                    LeaderAnswer::Records { records, high_watermark, log_start }
                }
                PartitionAnswer::Diverging { epoch, end, log_start } => {
                    core.counts.diverging += 1;
                    LeaderAnswer::Diverging { epoch: Some(epoch), end: Some(end), log_start: Some(log_start) }
                }
                PartitionAnswer::Error(error) => LeaderAnswer::Error(error),
            };
            self.feed(core, at, requested, answer);
        }
        self.kick(core, leader);
    }

    fn feed(&mut self, core: &mut Core, at: TopicPartition, requested: FetchPoint, answer: LeaderAnswer) {
        let request = ReplicaRequest::FetchedFromLeader(FetchedFromLeader { requested, answer });
        let reply = self.ask_with_answer(core, at, requested, request);
        if let Some(ReplicaReply::Next(next)) = reply {
            self.set_next(core, at, next);
        }
        self.ask_anew(core, at, requested);
    }

    /// Hands over a leader's answer, and looks whether it may have changed what it changed.
    fn ask_with_answer(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        requested: FetchPoint,
        request: ReplicaRequest<SimDisk>,
    ) -> Option<ReplicaReply<SimDisk>> {
        let (follows, before) = self.followed(at)?;
        let reply = self.ask(core, at, request);
        if self.followed(at).is_some_and(|(_, now)| now != before) {
            let asked = (requested.leader, requested.leader_epoch.0);
            core.check(joining::taken(at, self.id, asked, follows));
        }
        reply
    }

    /// Whom this replica follows in which epoch, and all that an answer may change.
    fn followed(&self, at: TopicPartition) -> Option<(Option<(BrokerId, i32)>, Followed)> {
        let replica = &self.hosted.get(&at)?.replica;
        let view = replica.log().view();
        let (follows, phase) = match replica.replication().role() {
            Role::Follower(follower) => (Some((follower.leader(), follower.epoch().0)), Some(follower.phase())),
            Role::Leader(_) | Role::Idle { .. } => (None, None),
        };
        let high_watermark = replica.replication().high_watermark().0;
        Some((follows, Followed { end: view.end.0, truncations: view.truncations, high_watermark, phase }))
    }

    /// A question that was answered in vain is asked as it has to be now.
    fn ask_anew(&mut self, core: &mut Core, at: TopicPartition, requested: FetchPoint) {
        let Some(hosted) = self.hosted.get(&at) else { return };
        let asked = hosted.next == Next::UnderWay(requested) || hosted.next == Next::Asking(requested);
        if asked && let Some(ReplicaReply::Next(next)) = self.ask(core, at, ReplicaRequest::FetchPoint) {
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
        result: Result<LeaderHolds, ErrorCode>,
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
        answer: Result<LeaderHolds, ErrorCode>,
    ) {
        let failed = answer.is_err();
        let request = ReplicaRequest::LeaderOffsets(LeaderOffsets { requested, answer });
        let reply = self.ask_with_answer(core, at, requested, request);
        let Some(ReplicaReply::Next(next)) = reply else { return };
        match next {
            FollowerNext::AskLeader(point) if failed => {
                if let Some(hosted) = self.hosted.get_mut(&at) {
                    hosted.next = Next::AskOffsets(point, core.now + 100_000);
                    self.schedule(core, 100_000, NodeTimer::Kick(point.leader));
                }
            }
            next => self.set_next(core, at, next),
        }
        self.ask_anew(core, at, requested);
    }

    /// No answer in time: the connection is given up.
    pub(super) fn call_due(&mut self, core: &mut Core, link: Link, call: Call) {
        let Place::Broker(leader) = link.to else { return self.controller_due(core, call) };
        let leader = BrokerId(leader);
        let Some(fetcher) = self.fetchers.get(&leader) else { return };
        if fetcher.calls.contains(&call) || fetcher.offsets.iter().any(|(c, _, _)| *c == call) {
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
        fetcher.calls.clear();
        fetcher.known.clear();
        let asked = std::mem::take(&mut fetcher.offsets);
        let failed: Vec<_> = self
            .hosted
            .iter()
            .filter_map(|(at, hosted)| match hosted.next {
                Next::UnderWay(point) if point.leader == leader => Some((*at, point)),
                _ => None,
            })
            .collect();
        for (at, point) in failed {
            self.feed(core, at, point, LeaderAnswer::Error(ErrorCode::NetworkException));
        }
        for (_, at, point) in asked {
            self.feed_offsets(core, at, point, Err(ErrorCode::NetworkException));
        }
        // Whoever only waited for its turn asks on the next connection.
        self.schedule(core, 0, NodeTimer::Kick(leader));
        self.suspect(core, leader);
    }
}
