//! The rules. `decide` runs on every node when an entry is applied: pure, the same everywhere, for ever (D14).

pub mod command;
mod refusal;

pub use command::*;
pub use refusal::Refusal;

use crate::image::{Change, MetadataImage};

/// What an entry does: changes to apply in order, and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub changes: Vec<Change>,
    pub answer: Answer,
}

/// The newest rule version this build proposes.
pub const RULE_VERSION: u16 = 1;

/// Decides a command of rule version `rules` at raft index `index` against the state before it.
///
/// # Errors
/// A refusal changes nothing.
pub fn decide(image: &MetadataImage, index: u64, rules: u16, command: &Command) -> Result<Decision, Refusal> {
    let _ = (image, index, rules, command);
    Err(Refusal::UnsupportedFeature { level: 0 })
}
