//! Faults that others published about similar systems, as experiments on this one, each with the outcome that is right.
//! `README.md` beside this file lists all of them by number and says which test is which.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

#[path = "public_failures/disks.rs"]
mod disks;
#[path = "public_failures/fetching.rs"]
mod fetching;
#[path = "public_failures/hostile.rs"]
mod hostile;
#[path = "public_failures/leaders.rs"]
mod leaders;
#[path = "public_failures/pipeline.rs"]
mod pipeline;
#[path = "public_failures/topics.rs"]
mod topics;

/// acks=all
const ALL: i16 = -1;
const MIN_ISR_2: &[(&str, &str)] = &[("min.insync.replicas", "2")];
/// When the records are of: some day of 2025.
const NOW: i64 = 1_760_000_000_000;
