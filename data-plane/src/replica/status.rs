//! All that a replica tells people about itself (operators.md 1.4 A). Computed when asked for, never kept.

use std::sync::Arc;

use highwater_quorum::controller::IsrProposal;
use highwater_quorum::image::PartitionState;
use highwater_wire::{BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch, Timestamp};

use super::message::Now;
use super::{Health, Replica};
use crate::disk::Disk;
use crate::replication::Role;
use crate::replication::follower::Phase;

/// One replica, as it sees itself at `observed`.
#[derive(Debug, Clone)]
pub struct ReplicaStatus {
    pub role: RoleName,
    /// The state of the last image applied here; `None` before the first.
    pub assignment: Option<Arc<PartitionState>>,
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub log_start: Offset,
    pub high_watermark: Offset,
    pub last_stable_offset: Offset,
    pub log_end: Offset,
    /// Everything below is synced.
    pub flushed_end: Offset,
    /// Bytes in this log.
    pub log_bytes: u64,
    /// What it does about fetching; `Leader` when it leads.
    pub fetch_state: FetchState,
    /// The error that made it step aside (R209).
    pub offline: Option<Arc<str>>,
    /// Only of a leader.
    pub leading: Option<LeaderStatus>,
    /// (epoch, first offset), oldest first.
    pub leader_epochs: Vec<(LeaderEpoch, Offset)>,
    /// The last truncation of this replica since it was opened, if any.
    pub last_truncation: Option<TruncationStatus>,
    /// The wall clock when this was read.
    pub observed: Timestamp,
}

/// What a leader knows beyond its own log.
#[derive(Debug, Clone)]
pub struct LeaderStatus {
    /// First offset of this leadership (LESO).
    pub epoch_start: Offset,
    /// As the controller last said.
    pub isr: Vec<BrokerId>,
    /// The one that bounds the watermark (R123).
    pub maximal_isr: Vec<BrokerId>,
    /// The ISR change under way.
    pub pending: Option<IsrProposal>,
    /// Effective (R9).
    pub min_isr: usize,
    pub under_min_isr: bool,
    /// Every replica in the order of the assignment, the leader too.
    pub replicas: Vec<ReplicaProgress>,
    /// Produce requests that wait for the watermark.
    pub waiting_produces: usize,
    /// Fetch sessions and single fetches that wait for news.
    pub waiting_fetches: usize,
}

/// One replica as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaProgress {
    pub broker: BrokerId,
    pub is_leader: bool,
    pub is_in_isr: bool,
    /// R108; D36: also true of one that stopped fetching while nothing is written.
    pub is_caught_up: bool,
    /// `None`: has not fetched in this leader epoch.
    pub log_end: Option<Offset>,
    pub log_start: Option<Offset>,
    pub lag_offsets: Option<i64>,
    pub lag_bytes: Option<u64>,
    /// How long it has been behind, in milliseconds; 0 at the end of the leader's log. `None`: never seen at the end.
    pub lag_ms: Option<u64>,
    pub last_fetch: Option<Timestamp>,
    pub last_caught_up: Option<Timestamp>,
    pub fetch_state: FetchState,
    /// What keeps it out of the ISR, when something does.
    pub waiting_for: Option<WaitingFor>,
}

/// What a replica is to its partition now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleName {
    Leader,
    Follower,
    /// No leader to follow, or not assigned.
    Idle,
    /// The disk failed.
    Offline,
    Stopped,
}

/// What a replica does about fetching. Of a remote follower: what its fetches show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchState {
    Leader,
    /// A follower that asks, or asked within `replica.lag.time.max.ms`.
    Fetching,
    /// A remote follower whose last fetch is older than `replica.lag.time.max.ms`.
    StoppedFetching,
    /// A remote follower that has not fetched in this leader epoch.
    NotFetchedYet,
    /// Waits for a truncation to reach the disk (D24).
    Truncating,
    /// Waits for a flush (D23).
    Flushing,
    /// Waits after an error of the leader (D26a).
    BackingOff,
    /// Asks the leader where its log starts and ends (R162).
    OutOfRange,
    /// Fenced by the leader, which is in a newer epoch; waits for metadata (R163).
    AwaitingMetadata,
    /// No leader, draining, or not assigned.
    Idle,
    /// The disk failed.
    Failed,
}

impl FetchState {
    /// As JSON spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "LEADER",
            Self::Fetching => "FETCHING",
            Self::StoppedFetching => "STOPPED_FETCHING",
            Self::NotFetchedYet => "NOT_FETCHED_YET",
            Self::Truncating => "TRUNCATING",
            Self::Flushing => "FLUSHING",
            Self::BackingOff => "BACKING_OFF",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::AwaitingMetadata => "AWAITING_METADATA",
            Self::Idle => "IDLE",
            Self::Failed => "FAILED",
        }
    }
}

/// Why a replica is not in the ISR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitingFor {
    /// Fenced, shutting down or not registered.
    BrokerNotActive,
    /// Has not fetched in this leader epoch.
    FirstFetch,
    /// Behind the high watermark or the start of this leadership (R111).
    CatchingUp,
    /// Complete; the controller has not answered yet.
    Controller,
}

impl WaitingFor {
    /// As JSON spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BrokerNotActive => "BROKER_NOT_ACTIVE",
            Self::FirstFetch => "FIRST_FETCH",
            Self::CatchingUp => "CATCHING_UP",
            Self::Controller => "CONTROLLER",
        }
    }
}

/// A truncation that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncationStatus {
    pub from: Offset,
    pub to: Offset,
    pub leader_epoch: LeaderEpoch,
    pub at: Timestamp,
}

impl<D: Disk> Replica<D> {
    /// Everything there is to tell, as of now.
    pub(super) fn status(&mut self, now: Now) -> ReplicaStatus {
        let wall = |at: Option<Millis>| at.map(|at| Timestamp(now.wall.0 - (now.mono - at).0.cast_signed()));
        let leading = self.leader_status(now, wall);
        let view = self.log.view();
        let terms = self.replication.terms();
        let leads = leading.is_some();
        ReplicaStatus {
            role: match (&self.health, self.replication.role()) {
                (Health::Offline(_), _) => RoleName::Offline,
                (Health::Stopped, _) => RoleName::Stopped,
                (Health::Running, Role::Leader(_)) => RoleName::Leader,
                (Health::Running, Role::Follower(_)) => RoleName::Follower,
                (Health::Running, Role::Idle { .. }) => RoleName::Idle,
            },
            assignment: terms.map(|terms| Arc::clone(&terms.state)),
            leader: if leads { terms.and_then(|terms| terms.state.leader) } else { self.replication.leader_id() },
            leader_epoch: self.replication.leader_epoch(),
            partition_epoch: self.replication.partition_epoch(),
            log_start: view.start,
            high_watermark: self.replication.high_watermark(),
            last_stable_offset: self.replication.high_watermark(),
            log_end: view.end,
            flushed_end: view.flushed_end,
            log_bytes: self.log.size_bytes(),
            fetch_state: self.own_fetch_state(),
            offline: match &self.health {
                Health::Offline(why) => Some(Arc::clone(why)),
                Health::Running | Health::Stopped => None,
            },
            leading,
            leader_epochs: view.epochs.entries().iter().map(|entry| (entry.epoch, entry.start)).collect(),
            last_truncation: self.last_truncation,
            observed: now.wall,
        }
    }

    fn own_fetch_state(&self) -> FetchState {
        if matches!(self.health, Health::Offline(_)) {
            return FetchState::Failed;
        }
        let view = self.log.view();
        match self.replication.role() {
            Role::Leader(_) => FetchState::Leader,
            Role::Idle { .. } => FetchState::Idle,
            Role::Follower(_) if !self.replication.may_fetch() => FetchState::Idle,
            Role::Follower(_) if !self.log.is_settled() => FetchState::Truncating,
            Role::Follower(_) if self.fetcher_awaits_sync && view.flushed_end < view.end => FetchState::Flushing,
            Role::Follower(follower) => match follower.phase() {
                Phase::Fetching => FetchState::Fetching,
                Phase::BackingOff => FetchState::BackingOff,
                Phase::OutOfRange => FetchState::OutOfRange,
                Phase::Fenced => FetchState::AwaitingMetadata,
            },
        }
    }

    fn leader_status(&mut self, now: Now, wall: impl Fn(Option<Millis>) -> Option<Timestamp>) -> Option<LeaderStatus> {
        let waiting_fetches = self.replication.waiting_fetches();
        let me = self.replication.me();
        let lag_max = self.replication.lag_max();
        let mut effects = Vec::new();
        let (leader, cx) = self.replication.lead_with(self.log.view(), now.mono, &mut effects)?;
        let (view, log) = (cx.view, &self.log);
        let (high_watermark, epoch_start) = (leader.high_watermark(), leader.epoch_start());
        let mut replicas = vec![ReplicaProgress {
            broker: me,
            is_leader: true,
            is_in_isr: true,
            is_caught_up: true,
            log_end: Some(view.end),
            log_start: Some(view.start),
            lag_offsets: Some(0),
            lag_bytes: Some(0),
            lag_ms: Some(0),
            last_fetch: None,
            last_caught_up: None,
            fetch_state: FetchState::Leader,
            waiting_for: None,
        }];
        replicas.extend(leader.standings(&view, now.mono).map(|standing| {
            let progress = standing.progress;
            let end = progress.end();
            let at_end = end == Some(view.end);
            let waiting_for = match end {
                _ if standing.in_isr => None,
                _ if !standing.active => Some(WaitingFor::BrokerNotActive),
                None => Some(WaitingFor::FirstFetch),
                Some(end) if end < high_watermark || end < epoch_start => Some(WaitingFor::CatchingUp),
                Some(_) if standing.joining => Some(WaitingFor::Controller),
                Some(_) => Some(WaitingFor::CatchingUp),
            };
            ReplicaProgress {
                broker: standing.broker,
                is_leader: false,
                is_in_isr: standing.in_isr,
                is_caught_up: standing.caught_up,
                log_end: end,
                log_start: progress.log_start(),
                lag_offsets: end.map(|end| view.end.since(end)),
                lag_bytes: end.map(|end| if at_end { 0 } else { log.bytes_from(end.max(view.start)) }),
                lag_ms: if at_end { Some(0) } else { progress.caught_up_at().map(|at| (now.mono - at).0) },
                last_fetch: wall(progress.last_fetch()),
                last_caught_up: wall(progress.caught_up_at()),
                fetch_state: match progress.last_fetch() {
                    None => FetchState::NotFetchedYet,
                    Some(at) if now.mono - at <= lag_max => FetchState::Fetching,
                    Some(_) => FetchState::StoppedFetching,
                },
                waiting_for,
            }
        }));
        let order = self.replication.terms().map(|terms| Arc::clone(&terms.state));
        let place = |broker: BrokerId| {
            order.as_ref().and_then(|state| state.replicas.iter().position(|&id| id == broker)).unwrap_or(usize::MAX)
        };
        replicas.sort_by_key(|replica| place(replica.broker));
        let Role::Leader(leader) = self.replication.role() else { return None };
        Some(LeaderStatus {
            epoch_start,
            isr: leader.isr().committed().to_vec(),
            maximal_isr: leader.isr().maximal().collect(),
            pending: leader.isr().pending().cloned(),
            min_isr: leader.min_isr(),
            under_min_isr: leader.is_under_min_isr(),
            replicas,
            waiting_produces: leader.waiting_produces(),
            waiting_fetches,
        })
    }
}
