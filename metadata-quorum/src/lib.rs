//! The metadata quorum: who holds, leads and may lead each partition, decided in one replicated log.
//!
//! Pure: `image`, `controller`, `planner`. Only `raft` and what lies under it names openraft or sled.

pub mod client;
pub mod controller;
pub mod image;
pub mod planner;

pub use client::{Heartbeat, HeartbeatAnswer, QuorumClient, QuorumError, TopicSpec};
pub use controller::{Answer, Command, Decision, Refusal, decide};
pub use image::{Change, ImageVersion, MetadataImage};
