//! What must hold after every event, a property a file. Names are those of the KIP-966 TLA+ model.
//!
//! Checks are incremental: only the replica, or the partition, that an event touched is looked at, and of its log only
//! what is new. They look at the product from outside and never change it.

pub mod added_partitions;
pub mod consistent_read;
pub mod deleted_records;
pub mod joining;
pub mod leader_candidate_completeness;
pub mod leader_completeness;
pub mod log_matching;
pub mod monotonic_epochs;
pub mod replication_quorum_superset;
pub mod reported_loss;
pub mod valid_isr_and_elr;

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// As in replication.md: `S7`, `H1`.
    pub rule: &'static str,
    pub text: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

pub type Verdict = Result<(), Violation>;

/// `Err` with the text unless the condition holds.
pub fn must(holds: bool, rule: &'static str, text: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Violation { rule, text: text() }) }
}
