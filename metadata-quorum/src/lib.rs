//! The metadata quorum: who holds, leads and may lead each partition, decided in one replicated log.
//!
//! Pure: `image`, `controller`, `planner`. Only `raft` and what lies under it names openraft or sled.

mod ambient;
pub mod body;
pub mod client;
pub mod config;
pub mod controller;
mod duty;
pub mod error;
pub mod flaws;
pub mod image;
pub mod planner;
mod raft;
pub mod settings;
#[cfg(feature = "sim")]
pub mod sim {
    //! What a simulation of the quorum needs to stand in for the machine.
    pub use crate::ambient::{Ambient, simulate};
    pub use crate::raft::sim::*;
}
pub mod status;
pub mod voters;

pub use client::{ConfigChange, CreatedTopic, Heartbeat, HeartbeatAnswer, PartitionsSpec, QuorumClient, TopicSpec};
pub use config::{ControllerListener, NodeRoles, QuorumConfig, QuorumLimits, TopicDefaults};
pub use controller::{Answer, Command, Decision, Refusal, decide};
pub use error::{QuorumError, StartError};
pub use image::{Change, ImageVersion, MetadataImage};
pub use raft::{EventPage, LeaderChanges, Quorum};
#[cfg(feature = "sim")]
pub use raft::{readers, trial as storage_trial};
pub use settings::{NodeSetting, NodeSettings, SettingOrigin};
pub use status::{PeerStatus, ProbeAnswer, QuorumMember, QuorumRole, QuorumStatus};
pub use voters::{NewVoter, VoterChange, VoterChangeState, VoterChangeStatus};
