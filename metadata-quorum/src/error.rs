//! What stops a call to the quorum that is not a refusal, and how it meets Kafka's error codes.

use highwater_wire::ErrorCode;
use serde::{Deserialize, Serialize};

use crate::controller::Refusal;

/// Why the quorum gave no answer, or what it answered instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum QuorumError {
    /// A rule said no; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No raft leader is known; nothing was proposed.
    #[error("the metadata quorum has no leader: {why}")]
    NoLeader { why: String },
    /// The proposal may or may not be applied.
    #[error("no answer from the metadata quorum within {after_ms} ms")]
    TimedOut { after_ms: u64 },
    /// This node's store failed, or it is stopping.
    #[error("the metadata quorum stopped here: {0}")]
    Stopped(String),
}

impl From<&QuorumError> for ErrorCode {
    fn from(error: &QuorumError) -> Self {
        match error {
            QuorumError::Refused(refusal) => refusal.into(),
            QuorumError::NoLeader { .. } => Self::NotController,
            QuorumError::TimedOut { .. } => Self::RequestTimedOut,
            QuorumError::Stopped(_) => Self::KafkaStorageError,
        }
    }
}

/// Why the quorum could not start on this node. Every text names the file, key or address and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(String),
    #[error("cannot listen for the controller on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("metadata directory {directory}: {why}")]
    Store { directory: String, why: String },
    #[error("raft did not start: {0}")]
    Raft(String),
}
