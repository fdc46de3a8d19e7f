//! The follower: where to fetch, what to accept, where to truncate, which watermark to adopt.

use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, Offset};

/// Where a follower fetches next: derived from its log, never stored elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchPoint {
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    /// The log end: by asking, everything below is acknowledged.
    pub offset: Offset,
    /// The epoch of the record below `offset`; `None` for a log that never held one.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    pub log_start: Offset,
    /// Counts role changes, truncations and flushes of this replica: an answer to another generation is dropped (R152).
    pub generation: u64,
}

/// What a follower does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowerNext {
    /// Ask for this in the next round.
    Fetch(FetchPoint),
    /// Ask for this again after a pause (D26a); `error` is what the leader said.
    BackOff { point: FetchPoint, error: ErrorCode },
    /// Send ListOffsets −1 and −2 for this point to the leader, then [`ReplicaRequest::LeaderOffsets`] (R162).
    AskLeaderOffsets(FetchPoint),
    /// A flush or truncation must reach the disk first; [`Output::Fetchable`] follows (D23, D24).
    AwaitSync,
    /// Nothing until new metadata: fenced (R163), no leader, draining, leading, failed or stopped.
    AwaitMetadata,
    /// The answer was stale and changed nothing (R152): a newer fetch point is already on its way.
    Dropped,
}
