//! The metadata quorum under simulation: the real openraft and all of our quorum that ships, on simulated disks and a
//! simulated network. One process per seed; see tests/README.md.

#![allow(clippy::unwrap_used)] // a broken simulation must stop

pub mod checks;
pub mod faults;
pub mod host;
pub mod marks;
pub mod net;
#[path = "../../harness/sim/rng.rs"]
pub mod rng;
pub mod run;
pub mod shadow;
pub mod swarm;
#[path = "../../harness/sim/trace.rs"]
pub mod trace;
pub mod watchdog;
pub mod workload;
pub mod world;
