//! Choices that need randomness, time or taste. They run before the log and spell themselves out in commands, which the
//! rules then check. Pure all the same: time and seed are arguments.

pub mod balance;
pub mod growth_plan;
pub mod liveness;
pub mod placement;
pub mod reports;
pub mod restart;
pub mod topic_plan;

pub use balance::{PREFERRED_ELECTIONS_MAX, away_from_home};
pub use growth_plan::{GrowthPlan, plan_growth};
pub use liveness::{Liveness, ProofRefusal};
pub use placement::place;
pub use reports::Reports;
pub use restart::{Blocker, QuorumFacts, RestartFacts, RestartVerdict, judge_restart, restart_order};
pub use topic_plan::{TopicPlan, plan_topic};
