//! What appending answers, and what can be wrong with a directory or a log.

use std::io;
use std::path::PathBuf;

use highwater_wire::batch::BatchError;
use highwater_wire::{LeaderEpoch, Offset, Timestamp, TopicId};

/// Where a leader's batch went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    pub base: Offset,
    /// Inclusive.
    pub last: Offset,
    /// The time stamped into the batch, on LogAppendTime topics only (R38).
    pub log_append_time: Option<Timestamp>,
}

/// What a follower took of a fetch answer.
#[derive(Debug, PartialEq, Eq)]
pub struct FollowerAppended {
    /// The log's end before and after.
    pub before: Offset,
    pub end: Offset,
    pub batches: usize,
    pub bytes: usize,
    /// Whether a new epoch began.
    pub epochs_changed: bool,
    /// Why it did not take all.
    pub stopped: Option<FollowerStop>,
}

/// Why a follower stopped before the end of a fetch answer (R154). What came before is appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FollowerStop {
    #[error("the batch at offset {base} is of leader epoch {batch}, above our {current}: a late answer")]
    FutureEpoch { base: Offset, batch: LeaderEpoch, current: LeaderEpoch },
    #[error("the batch after offset {after} is corrupt: {error}")]
    Corrupt { after: Offset, error: BatchError },
    #[error("the batch at offset {base} begins below our end {end}")]
    OutOfOrder { base: Offset, end: Offset },
    /// An answer may end in the middle of a batch; the next fetch brings it whole.
    #[error("the last {bytes} bytes are no whole batch")]
    Incomplete { bytes: usize },
}

/// Why nothing of a fetch answer was appended.
#[derive(Debug, thiserror::Error)]
pub enum FollowerAppendError {
    #[error(transparent)]
    Refused(FollowerStop),
    /// The log has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The answer to a search by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampHit {
    pub timestamp: Timestamp,
    pub offset: Offset,
    pub leader_epoch: Option<LeaderEpoch>,
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{directory} holds topic id {stored}, but the cluster's topic of that name has id {expected}: \
         the topic was deleted and made again; move the directory away to start this replica empty"
    )]
    InconsistentTopicId { directory: PathBuf, stored: TopicId, expected: TopicId },
    #[error("{file} is of format version {version}, this build reads up to {known}: start the release that wrote it")]
    NewerFormat { file: PathBuf, version: i64, known: i64 },
    #[error(
        "{file} was left by a compaction that was interrupted, and is damaged, so it cannot be finished: stop the node, \
         remove the directory of this partition, and start it again; it then fetches everything from the others"
    )]
    UnfinishedCompaction { file: PathBuf },
    #[error("{directory}: {error}")]
    Io { directory: PathBuf, error: io::Error },
}

/// Why a directory of logs could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogDirError {
    #[error(
        "{directory} is in use by process {}: stop it, or give this broker another log.dirs",
        .holder.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
    )]
    Locked { directory: PathBuf, holder: Option<u32> },
    #[error("{file} is of format version {version}, this build reads up to {known}: start the release that wrote it")]
    NewerFormat { file: PathBuf, version: i64, known: i64 },
    #[error("{file}: {key} is {found}, this broker's is {expected}: the directory belongs to another broker")]
    WrongOwner { file: PathBuf, key: &'static str, found: String, expected: String },
    #[error("{file} is damaged ({reason}); its lines are Kafka's: version=1, cluster.id, node.id, directory.id")]
    BadMetaProperties { file: PathBuf, reason: String },
    #[error("{directory}: {error}")]
    Io { directory: PathBuf, error: io::Error },
}
