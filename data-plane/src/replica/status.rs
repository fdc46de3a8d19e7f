//! All that a replica tells people about itself (operators.md 1.4 A). Computed when asked for, never kept.

use std::sync::Arc;

use highwater_quorum::controller::IsrProposal;
use highwater_quorum::image::PartitionState;
use highwater_wire::{BrokerId, LeaderEpoch, Offset, PartitionEpoch, Timestamp};

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
