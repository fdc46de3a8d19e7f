//! Chaos on real processes: a supervisor that knows only ports and files, faults drawn from a seed, clients that write down
//! all they saw, and a checker that judges the history.

mod board;
pub mod checker;
mod ending;
pub mod families;
pub mod flaws;
pub(crate) mod fleet;
pub mod history;
mod links;
mod logs;
mod nemesis;
pub mod plan;
pub mod run;
mod workload;
