//! Chaos on real processes: a supervisor that knows only ports and files, faults drawn from a seed, clients that write down
//! all they saw, and a checker that judges the history.

mod board;
pub mod checker;
mod ending;
mod fleet;
pub mod history;
mod nemesis;
pub mod plan;
pub mod run;
mod workload;
