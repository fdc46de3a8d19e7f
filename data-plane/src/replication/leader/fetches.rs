//! What a fetch proves: the checks that make a follower's offset an acknowledgement (R72–R74, R99–R105).

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset};

use super::Leader;
use crate::log_view::LogView;
use crate::replication::park::WakeUp;
use crate::replication::progress::{FollowerFetched, Session};
use crate::replication::refusal::Refusal;
use crate::replication::{Cx, Effect};

/// A follower's fetch, as it came.
#[derive(Debug, Clone)]
pub struct FollowerFetch {
    pub replica: BrokerId,
    pub broker_epoch: Option<BrokerEpoch>,
    pub leader_epoch: Option<LeaderEpoch>,
    pub offset: Offset,
    pub last_fetched_epoch: Option<LeaderEpoch>,
    pub log_start: Option<Offset>,
    pub at: Millis,
    pub session: Option<Session>,
}

/// What checks say of a fetch (R99).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchVerdict {
    /// The logs agree below the offset asked for.
    Agrees,
    /// They part ways: the largest epoch of ours at or below the caller's, and where it ends here.
    Diverges { epoch: LeaderEpoch, end: Offset },
}

/// Whether a caller's log, which ends at `offset` with a record of `last_fetched_epoch`, is a part of this one
/// (R74, R99; KIP-595). Of consumers too (R239).
pub fn compare_logs(
    offset: Offset,
    last_fetched_epoch: Option<LeaderEpoch>,
    view: &LogView<'_>,
) -> Result<FetchVerdict, Refusal> {
    let out_of_range = Refusal::OffsetOutOfRange { offset, start: view.start, end: view.end };
    if offset < view.start {
        return Err(out_of_range);
    }
    if let Some(last) = last_fetched_epoch.filter(|_| !planted(Flaw::IgnoresDivergence)) {
        let Some((epoch, end)) = view.epochs.end_of(last, view.end) else { return Err(out_of_range) };
        if epoch < last || end < offset {
            let epoch = if planted(Flaw::NamesTheAskedEpoch) { last } else { epoch };
            return Ok(FetchVerdict::Diverges { epoch, end });
        }
    }
    if offset > view.end {
        return Err(out_of_range);
    }
    Ok(FetchVerdict::Agrees)
}

impl Leader {
    /// Checks a follower's fetch against this leadership and the log; changes nothing (R72, R73, R99, R103, D22).
    pub fn check_fetch(&self, fetch: &FollowerFetch, view: &LogView<'_>) -> Result<FetchVerdict, Refusal> {
        match fetch.leader_epoch {
            Some(_) if planted(Flaw::TakesAnyEpoch) => {}
            Some(given) if given < self.epoch => {
                return Err(Refusal::FencedEpoch { given, current: self.epoch, leader: Some(self.me) });
            }
            Some(given) if given > self.epoch => return Err(Refusal::UnknownEpoch { given, current: self.epoch }),
            _ => {}
        }
        let with_epoch = fetch.leader_epoch.is_some();
        if !with_epoch || !self.followers.iter().any(|follower| follower.id == fetch.replica) {
            let (leader, leader_epoch) = (Some(self.me), self.epoch);
            return Err(Refusal::NotAReplica { replica: fetch.replica, leader, leader_epoch, with_epoch });
        }
        match (fetch.broker_epoch, self.peers.get(fetch.replica).map(|peer| peer.epoch)) {
            (Some(given), Some(current)) if given == current => {}
            (Some(_), Some(_)) if planted(Flaw::BelievesOldProcesses) => {}
            (Some(given), Some(current)) if given < current => {
                let (replica, leader_epoch) = (fetch.replica, self.epoch);
                return Err(Refusal::StaleReplica { replica, given, current, leader_epoch });
            }
            (given, _) => return Err(Refusal::UnknownReplica { replica: fetch.replica, given }),
        }
        let verdict = compare_logs(fetch.offset, fetch.last_fetched_epoch, view)?;
        if verdict == FetchVerdict::Agrees && !self.can_vouch_for(fetch, view) {
            let epoch = fetch.last_fetched_epoch.unwrap_or(self.epoch);
            return Ok(FetchVerdict::Diverges { epoch, end: view.start });
        }
        Ok(verdict)
    }

    /// Whether our history shows that what a follower holds is ours too, where nothing in it speaks against that.
    ///
    /// It says nothing of epochs before the first that it knows, whose records were deleted here, but for the last of them;
    /// nor of what lies below an empty log that begins above ours. The follower may hold other records there that were
    /// never committed, or, after an unclean election, have deleted others: it is to begin anew where this log begins. A
    /// member of ISR or ELR holds all that was committed, and so all that can have been deleted here; it must not fall
    /// behind that.
    fn can_vouch_for(&self, fetch: &FollowerFetch, view: &LogView<'_>) -> bool {
        let is_member = self.followers.iter().any(|follower| follower.id == fetch.replica && follower.is_member);
        if is_member || planted(Flaw::VouchesForTheDeleted) {
            return true;
        }
        match fetch.last_fetched_epoch {
            Some(last) => {
                let is_known = view.epochs.entries().first().is_some_and(|first| last >= first.epoch);
                is_known || view.epochs.epoch_below(fetch.offset) == Some(last)
            }
            None => fetch.offset == view.start,
        }
    }

    /// A follower is told that its log parts from ours. It may have agreed before, in this very leadership: a member of the
    /// ELR is vouched for as long as it is one. What it was believed to hold counts no more (S11).
    pub fn on_diverging_fetch(&mut self, fetch: &FollowerFetch, view: &LogView<'_>) {
        if let Some(follower) = self.followers.iter_mut().find(|follower| follower.id == fetch.replica) {
            follower.progress.diverged(view.end);
        }
    }

    /// A fetch that [`Self::check_fetch`] found to agree, with the same view: its offset is the acknowledgement
    /// (R102, R105).
    pub fn on_follower_fetch(&mut self, fetch: &FollowerFetch, cx: &mut Cx<'_>) {
        debug_assert!(
            self.check_fetch(fetch, &cx.view) == Ok(FetchVerdict::Agrees) || planted(Flaw::CountsDivergingFetches),
            "an unchecked fetch: {fetch:?}"
        );
        let Some(index) = self.followers.iter().position(|follower| follower.id == fetch.replica) else { return };
        let Some(mut broker_epoch) = fetch.broker_epoch else { return };
        if planted(Flaw::BelievesOldProcesses) {
            broker_epoch = self.peers.get(fetch.replica).map_or(broker_epoch, |peer| peer.epoch);
        }
        let progress = &mut self.followers[index].progress;
        let before = progress.end();
        let present = fetch.session.as_ref().map(|session| session.waiter);
        let other = progress.session().filter(|waiter| Some(*waiter) != present);
        progress.on_fetch(
            FollowerFetched {
                offset: fetch.offset,
                log_start: fetch.log_start,
                broker_epoch,
                at: fetch.at,
                session: fetch.session.clone(),
            },
            cx.view.end,
        );
        // This one was asked outside the session that counted until now, and may be an old one that was late. If that
        // session lives on, it is silent at the end it once named: its next request is to name it again.
        if let Some(waiter) = other {
            cx.effects.push(Effect::Wake(WakeUp { waiter, urgent: false }));
        }
        self.maybe_expand(index, cx);
        if before != Some(fetch.offset) {
            self.settle(cx.view.end);
            self.advance(cx);
        }
    }
}
