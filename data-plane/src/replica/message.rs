//! What goes into a replica and what comes out. Plain data: no lock, no channel, no clock.
//!
//! One call [`Replica::handle`](crate::replica::Replica::handle) takes a [`ReplicaRequest`], returns its
//! [`ReplicaReply`] at once and puts everything else that follows from it into the [`Outbox`]. The caller leaves the
//! lock first and delivers the outbox afterwards, in order.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use highwater_quorum::controller::{AlteredPartition, IsrProposal};
use highwater_wire::batch::RecordBatch;
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Millis, Offset, Timestamp};

use crate::disk::Disk;
use crate::log::clean::{CleanJob, CleanReport, Cleaned, Installed, KeyBuffer};
use crate::log::compaction::Due;
use crate::log::{ActiveProducer, ReadPlan, SyncDone, SyncJob};
use crate::replica::status::ReplicaStatus;
pub use crate::replication::acks::Ticket;
pub use crate::replication::follower::{FetchPoint, FollowerNext};
pub use crate::replication::note::Note;
pub use crate::replication::park::{WaiterId, Watch};
pub use crate::replication::peers::{Peer, Peers};
pub use crate::replication::progress::LastArrival;
pub use crate::replication::refusal::Refusal;
/// What an image says of one partition hosted here.
pub use crate::replication::{Became, Terms as Assignment};

/// The time of a call, read once by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For every decision.
    pub mono: Millis,
    /// For what people and records are told; never for a decision about replicas.
    pub wall: Timestamp,
}

/// Asked of one replica.
pub enum ReplicaRequest<D: Disk> {
    /// Append a batch as leader → [`ReplicaReply::Produced`], or `Waiting` and later [`Output::Reply`].
    Produce(Produce),
    /// Read → [`ReplicaReply::Fetched`].
    Fetch(Fetch),
    /// The session forgets this partition, or is gone → `Done`.
    Unwatch(WaiterId),
    /// A leader answered this follower → [`ReplicaReply::Next`].
    FetchedFromLeader(FetchedFromLeader),
    /// After [`FollowerNext::AskLeader`]: what the leader's log holds, or that it would not say (R162)
    /// → [`ReplicaReply::Next`].
    LeaderOffsets(LeaderOffsets),
    /// Where this follower would fetch now → [`ReplicaReply::Next`].
    FetchPoint,
    /// → [`ReplicaReply::ListedOffset`].
    ListOffsets(ListOffsets),
    /// OffsetForLeaderEpoch (R95) → [`ReplicaReply::EpochEnd`].
    EpochEnd(EpochEnd),
    /// What each producer wrote last here; of a leader only (KIP-664) → [`ReplicaReply::Producers`].
    Producers,
    /// R274 → [`ReplicaReply::DeletedRecords`], or `Waiting` and later [`Output::Reply`].
    DeleteRecords(DeleteRecords),
    /// What the image says of this partition: lead, follow, or neither → [`ReplicaReply::Became`]. Repeats and
    /// images older than one already applied change nothing. Sent too when only peers or configuration changed.
    Become(Box<Assignment>),
    /// The quorum answered an ISR proposal, or did not → `Done`.
    IsrAnswered(Box<IsrAnswered>),
    /// Time has passed: due at or after [`Outbox::tick_at`] → `Done`.
    Tick,
    /// A [`SyncJob`] handed out as [`Output::Sync`] has run, well or not → `Done`.
    Synced(SyncDone<D>),
    /// A log start handed out as [`Output::SaveStart`] is in its checkpoint file (D33) → `Done`.
    StartSaved(Offset),
    /// Something failed on the disk outside this replica's own calls: a read plan, a checkpoint. The replica steps aside
    /// (R209) → `Done`.
    StorageFailed(String),
    /// Delete what retention allows (R272) → `Done`. Due every `log.retention.check.interval.ms`.
    Retain,
    /// What compaction could do with this log → [`ReplicaReply::CleaningDue`].
    CleaningDue,
    /// Hand out what is due (R275) → [`ReplicaReply::CleanJob`].
    Clean(KeyBuffer),
    /// Put what a [`CleanJob`] has written in its place → [`ReplicaReply::Installed`].
    InstallCleaned(Box<Cleaned<D>>),
    /// The names are synced: the next step of a merge → [`ReplicaReply::Swapping`].
    GoOnSwapping,
    /// A [`CleanJob`] came to its end → `Done`.
    CleanedUp(CleanReport),
    /// What the checkpoint files of the log directory hold of it (R14, R15) → [`ReplicaReply::Checkpoint`].
    Checkpoint,
    /// → [`ReplicaReply::Status`].
    Status,
    /// The broker is in controlled shutdown (R146): a replica outside the ISR or without a leader stops fetching; the
    /// others go on → `Done`. Waiting requests are answered when the leadership moves.
    Drain,
    /// Let go of everything: waiting requests are answered → `Done`. Every later request is refused as
    /// [`Refusal::Stopped`]. To close the log in order, call [`Replica::close_cleanly`](crate::replica::Replica::close_cleanly)
    /// afterwards.
    Stop,
}

/// How many replicas must hold a batch before its producer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// 0: no answer. The reply says whether to close the connection (R46).
    None,
    /// 1
    Leader,
    /// −1
    AllInSync,
}

/// One batch for one partition (R42 from step 8 on). The caller has checked CRC, size, structure and timestamps.
#[derive(Debug)]
pub struct Produce {
    pub batch: RecordBatch,
    pub acks: Acks,
    /// When [`Refusal::TimedOut`] is due (R50).
    pub deadline: Millis,
    pub ticket: Ticket,
    /// Only as leader of this epoch: whoever decided what to append did so in it. `None`: in any.
    pub epoch: Option<LeaderEpoch>,
}

/// Who fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A broker over the inter-broker listener, with the broker epoch of its request (D22).
    Follower { id: BrokerId, epoch: Option<BrokerEpoch> },
    /// Everybody else.
    Consumer(Isolation),
}

/// R69. No transactions yet: both end at the high watermark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    ReadUncommitted,
    ReadCommitted,
}

/// One partition of a Fetch request.
#[derive(Debug)]
pub struct Fetch {
    pub caller: Caller,
    /// `CurrentLeaderEpoch` (R72). Followers must send it.
    pub leader_epoch: Option<LeaderEpoch>,
    pub offset: Offset,
    /// `LastFetchedEpoch` (R99).
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// The follower's own log start; ignored of consumers.
    pub follower_log_start: Option<Offset>,
    /// Upper bound of the bytes granted; whole batches only.
    pub bytes_max: u32,
    /// Grant the first batch whole even if it is larger than `bytes_max` (R78).
    pub first_whole: bool,
    /// `true` for consumers of Fetch v11 or later: a follower may answer them (R70).
    pub any_replica: bool,
    /// Wake this one when there is more; see [`Watch`].
    pub watch: Option<Watch>,
    /// When the request arrived.
    pub arrived: Millis,
    /// `false` when a request that was parked asks again, or for the first time, because it was woken: the follower's
    /// state is touched once per request at most (R80), and its silence has been counted already (D20).
    pub first_ask: bool,
}

/// A leader's answer for one partition, as the fetcher received it.
#[derive(Debug)]
pub struct FetchedFromLeader {
    /// The fetch point that was asked with, unchanged: anything stale is dropped (R152).
    pub requested: FetchPoint,
    pub answer: LeaderAnswer,
}

/// R124, R154, R158.
#[derive(Debug)]
pub enum LeaderAnswer {
    /// Records may be empty; the batches as they came.
    Records { records: Bytes, high_watermark: Offset, log_start: Offset },
    /// `DivergingEpoch`: the leader's largest epoch at or below ours, and where it ends there. `None`: −1.
    Diverging { epoch: Option<LeaderEpoch>, end: Option<Offset>, log_start: Option<Offset> },
    /// An error of the leader, or `NetworkException` when there was no answer.
    Error(ErrorCode),
}

/// The answer to [`FollowerNext::AskLeader`].
#[derive(Debug, Clone)]
pub struct LeaderOffsets {
    /// The fetch point that was to be asked with.
    pub requested: FetchPoint,
    /// What the leader holds, or its error.
    pub answer: Result<LeaderHolds, ErrorCode>,
}

/// What a leader tells a follower that cannot just go on from where its own log ends.
#[derive(Debug, Clone, Default)]
pub struct LeaderHolds {
    /// ListOffsets −2
    pub start: Offset,
    /// ListOffsets −1: its log end.
    pub end: Offset,
    /// As of then or later.
    pub producers: Vec<ActiveProducer>,
}

/// One partition of a ListOffsets request (R92–R94).
#[derive(Debug, Clone, Copy)]
pub struct ListOffsets {
    pub caller: OffsetsCaller,
    pub leader_epoch: Option<LeaderEpoch>,
    pub spec: OffsetSpec,
}

/// Who asks for offsets (R68, R93).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetsCaller {
    /// Replica id −1: bounded by the watermark, answered by the leader.
    Consumer(Isolation),
    /// A broker: bounded by the log end, answered by the leader.
    Replica,
    /// Replica id −2: bounded by the log end, answered by any replica.
    Debug,
}

/// What offset is asked for (R92).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetSpec {
    /// −1
    Latest,
    /// −2 and −4: the log start
    Earliest,
    /// −3
    MaxTimestamp,
    /// −5: nothing is tiered
    LatestTiered,
    /// The first record with this timestamp or a later one.
    AtOrAfter(Timestamp),
}

/// `None` everywhere: no such record, which is no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedOffset {
    pub offset: Option<Offset>,
    pub timestamp: Timestamp,
    pub leader_epoch: Option<LeaderEpoch>,
}

/// One partition of an OffsetForLeaderEpoch request.
#[derive(Debug, Clone, Copy)]
pub struct EpochEnd {
    /// `CurrentLeaderEpoch` (R72).
    pub leader_epoch: Option<LeaderEpoch>,
    /// `None`: −1.
    pub epoch: Option<LeaderEpoch>,
}

/// One partition of a DeleteRecords request. The caller has checked the policy.
#[derive(Debug, Clone, Copy)]
pub struct DeleteRecords {
    /// `None`: the high watermark.
    pub before: Option<Offset>,
    pub deadline: Millis,
    pub ticket: Ticket,
}

/// What the quorum said to a proposal.
#[derive(Debug, Clone)]
pub struct IsrAnswered {
    /// The proposal as it was handed out.
    pub proposal: IsrProposal,
    /// The state after it, or why not: the code of the partition's refusal, of the whole request's, or
    /// `RequestTimedOut`/`NetworkException`/`NotController` when there was no answer (D26).
    pub result: Result<AlteredPartition, ErrorCode>,
}

/// The immediate answer.
pub enum ReplicaReply<D: Disk> {
    /// Nothing to say.
    Done,
    /// The answer comes later as [`Output::Reply`] with the request's ticket.
    Waiting,
    Produced(Produced),
    Fetched(FetchGrant<D>),
    /// The caller's log and ours part ways: no records, no error (R99).
    Diverging(Diverging),
    Next(FollowerNext),
    ListedOffset(ListedOffset),
    /// `None`: this log knows nothing of the epoch, which is no error (R95).
    EpochEnd(Option<(LeaderEpoch, Offset)>),
    Producers(Vec<ActiveProducer>),
    DeletedRecords {
        low_watermark: Offset,
    },
    Became(Became),
    /// `None`: nothing is due.
    CleaningDue(Option<Due>),
    /// `None`: nothing is due any more.
    CleanJob(Option<Box<CleanJob<D>>>),
    /// With what was to be installed.
    Installed(Installed, Box<Cleaned<D>>),
    /// Whether there is another step.
    Swapping(bool),
    Checkpoint(Checkpoint),
    Status(Box<ReplicaStatus>),
    Refused(Refusal),
}

/// A batch is stored as durably as its `acks` asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Produced {
    /// Of the original batch when this one was a repetition (R58).
    pub base: Offset,
    /// `NONE` unless the topic stamps the time of the append.
    pub log_append_time: Timestamp,
    pub log_start: Offset,
}

/// A range that may be read, with the state of the log as of one moment (R75).
pub struct FetchGrant<D: Disk> {
    pub high_watermark: Offset,
    pub last_stable_offset: Offset,
    pub log_start: Offset,
    pub log_end: Offset,
    /// Bytes between the offset asked for and the caller's bound; what MinBytes counts (R79). Not limited by `bytes_max`.
    pub available: u64,
    /// Read it outside the lock. `None`: nothing to read.
    pub plan: Option<ReadPlan<D>>,
    /// The waiter was armed and will be woken. `false`: ask again in the next round.
    pub watched: bool,
}

/// R99: where the caller's log may still agree with ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Diverging {
    /// The newest epoch here that is not newer than the caller's last.
    pub epoch: LeaderEpoch,
    /// Where that epoch ends here, exclusive.
    pub end: Offset,
    pub high_watermark: Offset,
    pub log_start: Offset,
}

/// One line of each checkpoint file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    pub high_watermark: Offset,
    pub recovery_point: Offset,
    pub log_start: Offset,
    pub leader_epoch: LeaderEpoch,
    /// It leads, and its ISR is smaller than the replica set: heartbeats carry its watermark (D12).
    pub leads_with_gaps: bool,
}

/// What follows from a call, for the caller to deliver after it has left the lock.
pub enum Output<D: Disk> {
    /// A request that waited has its answer.
    Reply(Ticket, ReplicaReply<D>),
    /// Put this partition on the waiter's ready list; wake the waiter only if `urgent`.
    Wake { waiter: WaiterId, urgent: bool },
    /// Carry this to the quorum, as it is, and the answer back. May come again before it was answered.
    ProposeIsr(Box<IsrProposal>),
    /// Run off the lock, then [`ReplicaRequest::Synced`] (or `SyncFailed`). At most one is out at a time.
    Sync(SyncJob<D>),
    /// This follower has something new for its fetcher: a fetch point, or that it must not fetch.
    Fetchable(FollowerNext),
    /// For the log line; each fact once.
    Note(Note),
    /// Write this log start into the checkpoint file, off the lock, then [`ReplicaRequest::StartSaved`] (D33).
    SaveStart(Offset),
    /// Files that are no longer part of the log: erase them after `file.delete.delay.ms` with `LogDir::erase`.
    Erase(Vec<PathBuf>),
    /// The disk failed: the directory is no longer to be written (R209).
    StorageFailed { error: Arc<str> },
}

/// Collects the outputs of a call. Reused from call to call, so that a call in steady state allocates nothing.
pub struct Outbox<D: Disk> {
    /// In the order to deliver.
    pub outputs: Vec<Output<D>>,
    /// When [`ReplicaRequest::Tick`] is due next; set by every call. `None`: no deadline here.
    pub tick_at: Option<Millis>,
}

impl<D: Disk> Default for Outbox<D> {
    fn default() -> Self {
        Self { outputs: Vec::new(), tick_at: None }
    }
}

impl<D: Disk> Outbox<D> {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the outputs, keeping the room they had.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Output<D>> {
        self.outputs.drain(..)
    }

    pub(crate) fn push(&mut self, output: Output<D>) {
        self.outputs.push(output);
    }
}

impl<D: Disk> fmt::Debug for ReplicaReply<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("Done"),
            Self::Waiting => f.write_str("Waiting"),
            Self::Produced(produced) => produced.fmt(f),
            Self::Fetched(grant) => grant.fmt(f),
            Self::Diverging(diverging) => diverging.fmt(f),
            Self::Next(next) => next.fmt(f),
            Self::ListedOffset(listed) => listed.fmt(f),
            Self::EpochEnd(end) => f.debug_tuple("EpochEnd").field(end).finish(),
            Self::Producers(producers) => f.debug_tuple("Producers").field(producers).finish(),
            Self::DeletedRecords { low_watermark } => f.debug_tuple("DeletedRecords").field(low_watermark).finish(),
            Self::Became(became) => became.fmt(f),
            Self::CleaningDue(due) => f.debug_tuple("CleaningDue").field(due).finish(),
            Self::CleanJob(job) => f.debug_tuple("CleanJob").field(&job.is_some()).finish(),
            Self::Installed(installed, _) => installed.fmt(f),
            Self::Swapping(more) => f.debug_tuple("Swapping").field(more).finish(),
            Self::Checkpoint(checkpoint) => checkpoint.fmt(f),
            Self::Status(status) => status.fmt(f),
            Self::Refused(refusal) => f.debug_tuple("Refused").field(refusal).finish(),
        }
    }
}

impl<D: Disk> fmt::Debug for FetchGrant<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchGrant")
            .field("high_watermark", &self.high_watermark)
            .field("log_start", &self.log_start)
            .field("log_end", &self.log_end)
            .field("available", &self.available)
            .field("granted", &self.plan.as_ref().map_or(0, ReadPlan::bytes_max))
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

impl<D: Disk> fmt::Debug for Output<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(ticket, reply) => f.debug_tuple("Reply").field(ticket).field(reply).finish(),
            Self::Wake { waiter, urgent } => f.debug_tuple("Wake").field(waiter).field(urgent).finish(),
            Self::ProposeIsr(proposal) => proposal.fmt(f),
            Self::Sync(_) => f.write_str("Sync"),
            Self::Fetchable(next) => f.debug_tuple("Fetchable").field(next).finish(),
            Self::Note(note) => note.fmt(f),
            Self::SaveStart(start) => f.debug_tuple("SaveStart").field(start).finish(),
            Self::Erase(paths) => f.debug_tuple("Erase").field(paths).finish(),
            Self::StorageFailed { error } => f.debug_tuple("StorageFailed").field(error).finish(),
        }
    }
}
