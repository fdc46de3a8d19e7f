//! The group coordinator, pure: events and the time in, answers and records to write out (KIP-62, 345, 394, 429, 814).
//!
//! A [`Shard`] holds every group whose records lie in one partition of `__consumer_offsets` (R284). It waits for nothing:
//! a request that cannot be answered yet is kept by its [`Token`], what must be durable first is handed out as a [`Write`],
//! and time is told by `tick`. `coordinator.rs` carries all that out.
//!
//! Only the classic protocol is spoken. Transactions and KIP-848 are to live beside [`classic`], over the same shard.

use bytes::Bytes;
use highwater_wire::group_records::{GroupKey, GroupValue, OffsetValue};
use highwater_wire::{ErrorCode, Millis};

pub mod classic;
pub mod loading;
pub mod member;
pub mod offsets;
pub mod shard;
pub mod status;

pub use classic::{ClassicGroup, State};
pub use loading::Loading;
pub use shard::Shard;

/// A request that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Something that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// What the coordinator is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `group.initial.rebalance.delay.ms`: how long the first member of an empty group waits for others.
    pub initial_rebalance_delay: Millis,
    /// `group.min.session.timeout.ms`
    pub session_min: Millis,
    /// `group.max.session.timeout.ms`
    pub session_max: Millis,
    /// `group.max.size`
    pub members_max: usize,
    /// `offset.metadata.max.bytes`
    pub metadata_bytes_max: usize,
    /// `offsets.retention.minutes`
    pub offsets_retention: Millis,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            initial_rebalance_delay: Millis(3_000),
            session_min: Millis(6_000),
            session_max: Millis(1_800_000),
            members_max: i32::MAX as usize,
            metadata_bytes_max: 4_096,
            offsets_retention: Millis(10_080 * 60_000),
        }
    }
}

/// A record for the log of groups; without a value it takes back what was written under this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    pub key: GroupKey,
    pub value: Option<Value>,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Offset(OffsetValue),
    Group(GroupValue),
}

/// Records that belong together: append them as one batch, then tell the shard what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub id: WriteId,
    pub records: Vec<GroupRecord>,
}

/// What became of a [`Write`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Committed: below the high watermark.
    Committed,
    /// Committed, but on fewer replicas than promised (20): whoever asked is told that it is not certain.
    Thin,
    /// Not appended.
    Refused(ErrorCode),
}

/// What follows from an event. Answers go out in order; writes are appended in order.
#[derive(Debug, Default)]
pub struct Out {
    pub answers: Vec<(Token, Answer)>,
    pub writes: Vec<Write>,
}

/// To a request that waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Joined(Joined),
    Synced(Synced),
    /// Of an OffsetCommit, an OffsetDelete or a DeleteGroups: all of it, or why not.
    Stored(Result<(), ErrorCode>),
}

/// JoinGroup
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    pub group: String,
    /// Empty: a new member.
    pub member_id: String,
    /// Static membership (KIP-345).
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout: Millis,
    pub session_timeout: Millis,
    pub protocol_type: String,
    /// The one it likes best first.
    pub protocols: Vec<Protocol>,
    /// What a new member is to be called: the client's name and something random.
    pub fresh_id: String,
    /// A new member gets its id first and joins with it (KIP-394, from v4 on).
    pub requires_known_id: bool,
    /// The leader may be told not to assign anything (KIP-814, from v9 on).
    pub skips_assignment: bool,
    /// Why, in the client's words (KIP-800).
    pub reason: String,
}

/// One way to assign partitions, with what the member says about itself for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protocol {
    pub name: String,
    pub metadata: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    pub error: ErrorCode,
    /// −1 with an error.
    pub generation: i32,
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    pub leader: String,
    pub skip_assignment: bool,
    pub member_id: String,
    /// For the leader only.
    pub members: Vec<JoinedMember>,
}

impl Joined {
    /// No.
    pub fn refused(error: ErrorCode, member_id: &str) -> Self {
        Self {
            error,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: String::new(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    pub member_id: String,
    pub instance: Option<String>,
    pub metadata: Bytes,
}

/// Who speaks, in everything but a JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Speaker {
    pub member_id: String,
    pub instance: Option<String>,
    /// −1: of no generation.
    pub generation: i32,
}

/// SyncGroup
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncRequest {
    pub group: String,
    pub speaker: Speaker,
    /// From v5 on; must be the group's.
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    /// Of the leader: for each member.
    pub assignments: Vec<(String, Bytes)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    pub error: ErrorCode,
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    pub assignment: Bytes,
}

impl Synced {
    /// No.
    pub const fn refused(error: ErrorCode) -> Self {
        Self { error, protocol_type: None, protocol: None, assignment: Bytes::new() }
    }
}

/// One who leaves, or is sent away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaver {
    /// Empty for a static member that is sent away by its instance.
    pub member_id: String,
    pub instance: Option<String>,
    pub reason: String,
}

/// Why an append failed, as group clients understand it (R289).
pub const fn append_error(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::UnknownTopicOrPartition
        | ErrorCode::NotEnoughReplicas
        | ErrorCode::NotEnoughReplicasAfterAppend
        | ErrorCode::RequestTimedOut => ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotLeaderOrFollower | ErrorCode::KafkaStorageError | ErrorCode::FencedLeaderEpoch => {
            ErrorCode::NotCoordinator
        }
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge => ErrorCode::InvalidCommitOffsetSize,
        other => other,
    }
}
