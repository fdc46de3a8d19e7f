//! How openraft is configured here: what an entry holds, what applying it answers, and what a voter is.

use std::fmt;

use bytes::Bytes;
use highwater_wire::{BrokerId, DirectoryId};
use openraft::alias::{LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf};
use serde::{Deserialize, Serialize};

use crate::controller::{Answer, Command, RULE_VERSION, Refusal};
use crate::status::QuorumMember;

/// The format of [`Proposal`] that this build writes.
pub(crate) const ENTRY_FORMAT: u8 = 1;

/// The largest payload of one entry; larger commands are split by whoever makes them (D17; sled, stack.md §3).
pub(crate) const ENTRY_BYTES_MAX: usize = 64 << 10;

/// About 14,000 lost partitions.
const UNFENCE_BYTES_MAX: usize = 4 * ENTRY_BYTES_MAX;

/// A voter or learner is its disk: a wiped one is another node (D1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct NodeId {
    pub node: BrokerId,
    pub directory: DirectoryId,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.node, self.directory)
    }
}

impl From<NodeId> for QuorumMember {
    fn from(id: NodeId) -> Self {
        Self { node: id.node, directory: id.directory }
    }
}

impl From<QuorumMember> for NodeId {
    fn from(member: QuorumMember) -> Self {
        Self { node: member.node, directory: member.directory }
    }
}

/// openraft's storage suite numbers its nodes.
#[cfg(test)]
impl From<u64> for NodeId {
    fn from(number: u64) -> Self {
        Self {
            node: BrokerId(i32::try_from(number).expect("the suite's ids are small")),
            directory: DirectoryId::from_bytes([0; 16]),
        }
    }
}

/// An entry's content: versioned for ever (D14). `payload` is a postcard-encoded [`Command`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proposal {
    pub format: u8,
    pub rules: u16,
    pub payload: Bytes,
}

impl Proposal {
    /// `None`: the command is larger than an entry may be.
    ///
    /// The one that cannot be split may be larger: a broker that lost many partitions must name them all in the entry
    /// that unfences it (D10). It comes once per restart, so that no page of sled fills with them.
    pub fn of(command: &Command) -> Option<Self> {
        let payload = postcard::to_stdvec(command).expect("a command is plain data, and memory is the only limit");
        let bytes_max = match command {
            Command::UnfenceBroker { .. } => UNFENCE_BYTES_MAX,
            _ => ENTRY_BYTES_MAX,
        };
        (payload.len() <= bytes_max).then(|| Self {
            format: ENTRY_FORMAT,
            rules: RULE_VERSION,
            payload: payload.into(),
        })
    }

    /// # Errors
    /// An entry of a newer format or of newer rules: this build may not apply it, or nodes would disagree.
    pub fn command(&self) -> std::io::Result<Command> {
        if self.format != ENTRY_FORMAT || self.rules > RULE_VERSION {
            return Err(std::io::Error::other(format!(
                "entry of format {}, rules {}: this build knows format {ENTRY_FORMAT} and rules up to {RULE_VERSION}; \
                 start the version that proposed it, or newer",
                self.format, self.rules
            )));
        }
        postcard::from_bytes(&self.payload).map_err(|error| std::io::Error::other(format!("unreadable entry: {error}")))
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proposal of {} bytes", self.payload.len())
    }
}

/// What applying an entry answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Applied {
    /// A blank or membership entry.
    Nothing,
    Decided(Result<Answer, Refusal>),
}

/// What openraft runs on; its chance is seeded in the simulation of the quorum.
#[cfg(all(feature = "sim", tokio_unstable))]
pub(crate) type Runtime = openraft::rt::deterministic_rng::DeterministicRng<openraft::impls::TokioRuntime>;
#[cfg(not(all(feature = "sim", tokio_unstable)))]
pub(crate) type Runtime = openraft::impls::TokioRuntime;

openraft::declare_raft_types!(
    /// One leader per term (`leader_id_std`), nodes without addresses: those are looked up per call (D1, D5).
    pub(crate) TypeConfig:
        D = Proposal,
        R = Applied,
        NodeId = NodeId,
        Node = openraft::EmptyNode,
        Term = u64,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, NodeId>,
        AsyncRuntime = Runtime,
);

pub(crate) type LogId = LogIdOf<TypeConfig>;
pub(crate) type Vote = VoteOf<TypeConfig>;
pub(crate) type Membership = StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = SnapshotMetaOf<TypeConfig>;
pub(crate) type Raft = openraft::Raft<TypeConfig, super::state_machine::StateMachine>;
