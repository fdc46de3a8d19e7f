//! Reading: fetches of followers and consumers, searches for offsets and epochs.

use std::io;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{Offset, Timestamp};

use super::message::{
    Caller, Diverging, EpochEnd, Fetch, FetchGrant, ListOffsets, ListedOffset, Now, OffsetSpec, OffsetsCaller,
    ReplicaReply,
};
use super::{Replica, StorageFailure};
use crate::disk::Disk;
use crate::log::TimestampHit;
use crate::replication::Role;
use crate::replication::leader::{FetchVerdict, FollowerFetch, Leader, compare_logs};
use crate::replication::park::Interest;
use crate::replication::progress::Session;
use crate::replication::refusal::Refusal;

impl<D: Disk> Replica<D> {
    pub(super) fn fetch(&mut self, fetch: Fetch, now: Now) -> Result<ReplicaReply<D>, StorageFailure> {
        if let Err(refusal) = self.replication.check_epoch(fetch.leader_epoch) {
            return Ok(ReplicaReply::Refused(refusal));
        }
        match fetch.caller {
            Caller::Follower { id, epoch } => {
                let session = fetch.watch.as_ref().and_then(|watch| {
                    watch.arrival.as_ref().map(|arrival| Session { waiter: watch.waiter, arrival: arrival.clone() })
                });
                let question = FollowerFetch {
                    replica: id,
                    broker_epoch: epoch,
                    leader_epoch: fetch.leader_epoch,
                    offset: fetch.offset,
                    last_fetched_epoch: fetch.last_fetched_epoch,
                    log_start: fetch.follower_log_start,
                    at: fetch.arrived,
                    session,
                };
                self.fetch_for_follower(&fetch, &question, now)
            }
            Caller::Consumer(_) => self.fetch_for_consumer(&fetch),
        }
    }

    /// Check, read plan and the follower's new state are one critical section with the role (R101). A refused fetch, or
    /// one whose read cannot be granted, proves nothing (R100); a diverging one takes back what was proved before.
    fn fetch_for_follower(
        &mut self,
        fetch: &Fetch,
        question: &FollowerFetch,
        now: Now,
    ) -> Result<ReplicaReply<D>, StorageFailure> {
        let view = self.log.view();
        let verdict = self.replication.leader().and_then(|leader| leader.check_fetch(question, &view));
        match verdict {
            Ok(FetchVerdict::Agrees) => {}
            Ok(FetchVerdict::Diverges { epoch, end }) => {
                if let Some((leader, mut cx)) = self.replication.lead_with(view, now.mono, &mut self.effects) {
                    if planted(Flaw::CountsDivergingFetches) {
                        leader.on_follower_fetch(question, &mut cx);
                    } else {
                        leader.on_diverging_fetch(question, &cx.view);
                    }
                }
                return Ok(self.diverging(epoch, end));
            }
            Err(refusal) => return Ok(ReplicaReply::Refused(refusal)),
        }
        let mut grant = self.grant(fetch, view.end)?;
        if let Some(watch) = &fetch.watch {
            self.replication.park().disarm(watch.waiter);
        }
        if fetch.first_ask
            && let Some((leader, mut cx)) = self.replication.lead_with(self.log.view(), now.mono, &mut self.effects)
        {
            leader.on_follower_fetch(question, &mut cx);
        }
        grant.high_watermark = self.replication.high_watermark();
        grant.last_stable_offset = grant.high_watermark;
        self.arm(fetch, &mut grant, Interest::Follower { quietly_told: false });
        Ok(ReplicaReply::Fetched(grant))
    }

    /// R69, R70, R74, R239
    fn fetch_for_consumer(&mut self, fetch: &Fetch) -> Result<ReplicaReply<D>, StorageFailure> {
        let serves = match self.replication.role() {
            Role::Leader(_) => true,
            Role::Follower(_) => fetch.any_replica,
            Role::Idle { .. } => false,
        };
        if !serves {
            return Ok(ReplicaReply::Refused(self.replication.not_leader()));
        }
        match compare_logs(fetch.offset, fetch.last_fetched_epoch, &self.log.view()) {
            Ok(FetchVerdict::Agrees) => {}
            Ok(FetchVerdict::Diverges { epoch, end }) => return Ok(self.diverging(epoch, end)),
            Err(refusal) => return Ok(ReplicaReply::Refused(refusal)),
        }
        let shown = if planted(Flaw::ShowsUncommitted) { self.log.view().end } else { Offset::ZERO };
        let bound = self.replication.high_watermark().max(shown);
        let mut grant = self.grant(fetch, bound)?;
        let offset = fetch.offset.max(bound);
        self.arm(fetch, &mut grant, Interest::Consumer { offset, quietly_told: false });
        Ok(ReplicaReply::Fetched(grant))
    }

    /// The state of the log as of now, and the range up to `bound` (R75).
    fn grant(&self, fetch: &Fetch, bound: Offset) -> Result<FetchGrant<D>, StorageFailure> {
        let view = self.log.view();
        let high_watermark = self.replication.high_watermark();
        let (mut plan, mut available) = (None, 0);
        if fetch.offset < bound {
            let bytes_max = usize::try_from(fetch.bytes_max).unwrap_or(usize::MAX);
            let granted = self.log.plan_read(fetch.offset, bound, bytes_max, fetch.first_whole)?;
            plan = (!granted.is_empty()).then_some(granted);
            let beyond = if bound < view.end { self.log.bytes_from(bound) } else { 0 };
            available = self.log.bytes_from(fetch.offset).saturating_sub(beyond);
        }
        Ok(FetchGrant {
            high_watermark,
            last_stable_offset: high_watermark,
            log_start: view.start,
            log_end: view.end,
            available,
            plan,
            watched: false,
        })
    }

    fn arm(&mut self, fetch: &Fetch, grant: &mut FetchGrant<D>, interest: Interest) {
        if let Some(watch) = &fetch.watch
            && grant.available < u64::from(watch.bytes_min.max(1))
        {
            self.replication.park().arm(watch.waiter, interest);
            grant.watched = true;
        }
    }

    fn diverging(&self, epoch: highwater_wire::LeaderEpoch, end: Offset) -> ReplicaReply<D> {
        let (high_watermark, log_start) = (self.replication.high_watermark(), self.log.view().start);
        ReplicaReply::Diverging(Diverging { epoch, end, high_watermark, log_start })
    }

    /// R92–R94
    pub(super) fn list_offsets(&mut self, list: ListOffsets) -> Result<ReplicaReply<D>, StorageFailure> {
        let checked = self.replication.check_epoch(list.leader_epoch).and_then(|()| match list.caller {
            OffsetsCaller::Consumer(_) | OffsetsCaller::Replica => self.replication.leader().map(Some),
            OffsetsCaller::Debug => Ok(self.replication.leader().ok()),
        });
        let leader = match checked {
            Ok(leader) => leader,
            Err(refusal) => return Ok(ReplicaReply::Refused(refusal)),
        };
        let view = self.log.view();
        let bounded = matches!(list.caller, OffsetsCaller::Consumer(_));
        let bound = if bounded { self.replication.high_watermark() } else { view.end };
        let may_tell_the_end = || match leader {
            Some(leader) if bounded => Leader::may_tell_the_end(leader),
            _ => Ok(()),
        };
        let at = |offset, leader_epoch| ListedOffset { offset, timestamp: Timestamp::NONE, leader_epoch };
        let listed = match list.spec {
            OffsetSpec::Latest => may_tell_the_end().map(|()| at(Some(bound), view.epochs.latest())),
            OffsetSpec::Earliest => Ok(at(Some(view.start), view.epochs.epoch_at(view.start))),
            OffsetSpec::LatestTiered => Ok(at(None, None)),
            OffsetSpec::MaxTimestamp => {
                legible(self.log.max_timestamp())?.and_then(|hit| hit_below(bound, hit, may_tell_the_end))
            }
            OffsetSpec::AtOrAfter(time) => {
                let hit = legible(self.log.offset_for_timestamp(time))?;
                hit.and_then(|hit| hit_below(bound, hit, may_tell_the_end))
            }
        };
        Ok(listed.map_or_else(ReplicaReply::Refused, ReplicaReply::ListedOffset))
    }

    /// R95
    pub(super) fn epoch_end(&self, ask: EpochEnd) -> ReplicaReply<D> {
        let checked = self.replication.check_epoch(ask.leader_epoch).and_then(|()| self.replication.leader());
        if let Err(refusal) = checked {
            return ReplicaReply::Refused(refusal);
        }
        let view = self.log.view();
        ReplicaReply::EpochEnd(ask.epoch.and_then(|epoch| view.epochs.end_of(epoch, view.end)))
    }

    /// KIP-664
    pub(super) fn producers(&self) -> ReplicaReply<D> {
        match self.replication.leader() {
            Ok(_) => ReplicaReply::Producers(self.log.producers().active().collect()),
            Err(refusal) => ReplicaReply::Refused(refusal),
        }
    }
}

/// A damaged batch on the way is told to whoever asked; it is no reason to take the whole replica away.
fn legible<T>(found: io::Result<T>) -> io::Result<Result<T, Refusal>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Ok(Err(Refusal::CorruptBatch { why: error.to_string() }))
        }
        found => found.map(Ok),
    }
}

/// A hit at the bound or above, or none at all, is "not known yet" on a leader whose watermark lags (R94), else nothing.
fn hit_below(
    bound: Offset,
    hit: Option<TimestampHit>,
    may_tell_the_end: impl Fn() -> Result<(), Refusal>,
) -> Result<ListedOffset, Refusal> {
    match hit.filter(|hit| hit.offset < bound) {
        Some(TimestampHit { timestamp, offset, leader_epoch }) => {
            Ok(ListedOffset { offset: Some(offset), timestamp, leader_epoch })
        }
        None => {
            may_tell_the_end().map(|()| ListedOffset { offset: None, timestamp: Timestamp::NONE, leader_epoch: None })
        }
    }
}
