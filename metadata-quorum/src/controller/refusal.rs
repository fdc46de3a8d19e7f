//! Why the controller would not do what it was asked.

use highwater_wire::{
    BrokerEpoch, BrokerId, DirectoryId, ErrorCode, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition,
};
use serde::{Deserialize, Serialize};

use crate::image::topic_config::ConfigFaults;

/// A rule said no: the command is in the log, and nothing changed. Never an IO failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    #[error("this is cluster {ours}, not {given}")]
    InconsistentClusterId { ours: String, given: String },
    #[error("broker {0} is registered by another process that is still alive")]
    DuplicateRegistration(BrokerId),
    #[error("broker {0} is not registered")]
    UnknownBroker(BrokerId),
    #[error("epoch {given} of broker {broker} is not its current one ({current})")]
    StaleBrokerEpoch { broker: BrokerId, given: BrokerEpoch, current: BrokerEpoch },
    #[error("bad registration: {0}")]
    InvalidRegistration(String),
    #[error("broker {0} is not fenced; stop it first")]
    NotFenced(BrokerId),
    #[error("broker {0} is shutting down and must register again")]
    ShuttingDown(BrokerId),
    #[error("invalid topic name {name:?}: {why}")]
    InvalidTopicName { name: String, why: String },
    #[error("topic {0:?} exists already")]
    TopicExists(String),
    #[error("{0}")]
    InvalidPartitions(String),
    #[error("{0}")]
    InvalidReplicationFactor(String),
    #[error("{0}")]
    InvalidAssignment(String),
    #[error("{0}")]
    InvalidRequest(String),
    #[error("topic id {0} is unknown")]
    UnknownTopicId(TopicId),
    #[error("partition {0} is unknown")]
    UnknownPartition(TopicPartition),
    #[error(
        "this controller is behind: leader epoch {leader_epoch}, partition epoch {partition_epoch} are ahead of it"
    )]
    ControllerBehind { leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch },
    #[error("leader epoch {given} is behind {current}")]
    FencedLeaderEpoch { given: LeaderEpoch, current: LeaderEpoch },
    #[error("partition epoch {given} is behind {current}")]
    StalePartitionEpoch { given: PartitionEpoch, current: PartitionEpoch },
    #[error("broker {0} may not be in an ISR now: fenced, shutting down, unregistered or of another epoch")]
    IneligibleReplica(BrokerId),
    #[error("the change was applied and made {0} the leader")]
    NewLeaderElected(BrokerId),
    #[error("the preferred leader {0} is not in the ISR or not active")]
    PreferredLeaderNotAvailable(BrokerId),
    #[error("no replica may lead now")]
    EligibleLeadersNotAvailable,
    #[error("it leads already")]
    ElectionNotNeeded,
    #[error("the cluster speaks feature level {level}, which does not know this command")]
    UnsupportedFeature { level: u16 },
    #[error("topic {0:?} is unknown")]
    UnknownTopic(String),
    #[error("leader epoch {given} is ahead of {current}")]
    LeaderEpochAhead { given: LeaderEpoch, current: LeaderEpoch },
    #[error("partition epoch {given} is ahead of {current}")]
    PartitionEpochAhead { given: PartitionEpoch, current: PartitionEpoch },
    #[error("broker {broker} holds no replica of {partition}")]
    NotAReplica { broker: BrokerId, partition: TopicPartition },
    #[error("broker {0} cannot lead now: it is fenced, shutting down or not registered")]
    LeaderNotActive(BrokerId),
    #[error(
        "broker {0} is not in sync: acknowledged records may be lost if it leads, and nobody has said that they may be"
    )]
    LossNotAccepted(BrokerId),
    #[error("node {node} is a voter already, with directory id {directory}: replace it (replace={node})")]
    DuplicateVoter { node: BrokerId, directory: DirectoryId },
    #[error("node {0} is no voter")]
    VoterNotFound(BrokerId),
    /// The node, its directory and its address do not belong together.
    #[error("{0}")]
    InvalidVoterKey(String),
    #[error("{0}")]
    VoterChangeInProgress(String),
    /// With the arithmetic.
    #[error("{0}")]
    QuorumWouldBeLost(String),
    #[error("node {node} cannot lead the metadata quorum: {why}")]
    IneligibleQuorumLeader { node: BrokerId, why: String },
    #[error("{0}")]
    NodeUnreachable(String),
    #[error("{0}")]
    InvalidTopicConfigs(ConfigFaults),
    #[error("{0}")]
    InvalidBrokerConfigs(ConfigFaults),
    #[error("the configuration of {0} was changed since it was read; read it again")]
    ConfigsChanged(String),
}

impl From<&Refusal> for ErrorCode {
    /// No wildcard arm: a new refusal does not compile until it has a code.
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::InconsistentClusterId { .. } => Self::InconsistentClusterId,
            Refusal::DuplicateRegistration(_) => Self::DuplicateBrokerRegistration,
            Refusal::UnknownBroker(_) => Self::BrokerIdNotRegistered,
            Refusal::StaleBrokerEpoch { .. } | Refusal::ShuttingDown(_) => Self::StaleBrokerEpoch,
            Refusal::InvalidRegistration(_) => Self::InvalidRegistration,
            Refusal::NotFenced(_) => Self::InvalidRequest,
            Refusal::InvalidTopicName { .. } => Self::InvalidTopicException,
            Refusal::TopicExists(_) => Self::TopicAlreadyExists,
            Refusal::InvalidPartitions(_) => Self::InvalidPartitions,
            Refusal::InvalidReplicationFactor(_) => Self::InvalidReplicationFactor,
            Refusal::InvalidAssignment(_) => Self::InvalidReplicaAssignment,
            Refusal::InvalidRequest(_) => Self::InvalidRequest,
            Refusal::UnknownTopicId(_) => Self::UnknownTopicId,
            Refusal::UnknownPartition(_) | Refusal::UnknownTopic(_) => Self::UnknownTopicOrPartition,
            Refusal::ControllerBehind { .. } => Self::NotController,
            Refusal::FencedLeaderEpoch { .. } => Self::FencedLeaderEpoch,
            Refusal::StalePartitionEpoch { .. } => Self::InvalidUpdateVersion,
            Refusal::IneligibleReplica(_) => Self::IneligibleReplica,
            Refusal::NewLeaderElected(_) => Self::NewLeaderElected,
            Refusal::PreferredLeaderNotAvailable(_) => Self::PreferredLeaderNotAvailable,
            Refusal::EligibleLeadersNotAvailable => Self::EligibleLeadersNotAvailable,
            Refusal::ElectionNotNeeded => Self::ElectionNotNeeded,
            Refusal::UnsupportedFeature { .. } => Self::UnsupportedVersion,
            Refusal::LeaderEpochAhead { .. } => Self::UnknownLeaderEpoch,
            Refusal::PartitionEpochAhead { .. } => Self::InvalidUpdateVersion,
            Refusal::NotAReplica { .. } => Self::InvalidRequest,
            Refusal::LeaderNotActive(_) | Refusal::LossNotAccepted(_) => Self::EligibleLeadersNotAvailable,
            Refusal::DuplicateVoter { .. } => Self::DuplicateVoter,
            Refusal::VoterNotFound(_) => Self::VoterNotFound,
            Refusal::InvalidVoterKey(_) => Self::InvalidVoterKey,
            // As Kafka's controllers answer it.
            Refusal::VoterChangeInProgress(_) => Self::RequestTimedOut,
            Refusal::QuorumWouldBeLost(_) => Self::InvalidRequest,
            Refusal::IneligibleQuorumLeader { .. } => Self::EligibleLeadersNotAvailable,
            Refusal::NodeUnreachable(_) => Self::BrokerNotAvailable,
            Refusal::InvalidTopicConfigs(_) => Self::InvalidConfig,
            // As Kafka answers whatever is wrong with a broker's configuration.
            Refusal::InvalidBrokerConfigs(_) => Self::InvalidRequest,
            Refusal::ConfigsChanged(_) => Self::InvalidUpdateVersion,
        }
    }
}
