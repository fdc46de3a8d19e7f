//! The rules. `decide` runs on every node when an entry is applied: pure, the same everywhere, for ever (D14).
//!
//! It sees the image before the entry and the command, nothing else: no clock, no randomness, no configuration, and not
//! even [`RULE_VERSION`], which differs between builds. A changed rule is a new rule version beside the old one.

use highwater_wire::Timestamp;

mod brokers;
mod cluster;
pub mod command;
mod configs;
mod controllers;
mod draft;
mod election;
mod isr;
pub mod loss;
mod producer_ids;
mod refusal;
mod topics;
mod transition;

pub use command::*;
pub use election::{is_clean, next_leader};
pub use refusal::Refusal;
pub(crate) use topics::replication_factor;
pub use topics::{TOPIC_NAME_LENGTH_MAX, check_topic_name};

use crate::image::{Change, MetadataImage};
use draft::Draft;

/// What an entry does: changes to apply in order, and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub changes: Vec<Change>,
    pub answer: Answer,
}

/// The newest rule version this build proposes. What each changed:
/// 1. the first.
/// 2. A proposal refused because a member is not active moves the partition epoch, so that no late copy of it is accepted
///    once that member is active again: the leader has forgotten it by then (S6).
/// 3. Commands that operators give: partitions added, configurations changed, leaders chosen; each is refused under older
///    rules. An unclean election empties the ELR.
/// 4. Where the logs of lost leaders began belongs to what they had reported: what was deleted is no loss (D12).
/// 5. `cleanup.policy` may be `compact` (R275).
pub const RULE_VERSION: u16 = 5;

/// Decides a command of rule version `rules` at raft index `index` against the state before it.
///
/// All that an entry does is in one decision, so that nobody ever sees half of it (R221). Deciding the same command
/// again is harmless: it is refused by an epoch or a name, or changes nothing (R216).
///
/// # Errors
/// A refusal changes nothing. `UnsupportedFeature` for rules this build does not know: the caller must stop before it
/// applies such an entry, since other nodes may decide it.
pub fn decide(image: &MetadataImage, index: u64, rules: u16, command: &Command) -> Result<Decision, Refusal> {
    if !(1..=RULE_VERSION).contains(&rules) {
        return Err(Refusal::UnsupportedFeature { level: image.feature_level });
    }
    let mut draft = Draft::new(image, index, rules, time_of(command));
    let draft_ref = &mut draft;
    let answer = match command {
        Command::FormCluster { cluster_id, feature_level, .. } => cluster::form(draft_ref, cluster_id, *feature_level),
        Command::SetFeatureLevel { level } => cluster::set_feature_level(draft_ref, *level),
        Command::RegisterBroker(registration) => brokers::register(draft_ref, registration),
        Command::UnfenceBroker { broker, epoch, lost, .. } => brokers::unfence(draft_ref, *broker, *epoch, lost),
        Command::FenceBrokers { brokers, watermarks, .. } => {
            let reports = watermarks.iter().map(|known| (known.partition, known.report()));
            brokers::fence(draft_ref, brokers, reports.collect())
        }
        Command::FenceBrokersKnowing { brokers, watermarks, .. } => {
            let reports = watermarks.iter().map(|known| (known.partition, known.report()));
            brokers::fence(draft_ref, brokers, reports.collect())
        }
        Command::ShutDownBroker { broker, epoch, .. } => brokers::shut_down(draft_ref, *broker, *epoch),
        Command::UnregisterBroker { broker, .. } => brokers::unregister(draft_ref, *broker),
        Command::CreateTopic(creation) => topics::create(draft_ref, creation),
        Command::DeleteTopic { id, .. } => topics::delete(draft_ref, *id),
        Command::AddPartitions(growth) => topics::grow(draft_ref, growth),
        Command::AlterPartition(request) => isr::alter(draft_ref, request),
        Command::ElectLeaders { kind, partitions, .. } => election::elect_leaders(draft_ref, *kind, partitions),
        Command::AllocateProducerIds { broker, epoch, count } => {
            producer_ids::allocate(draft_ref, *broker, *epoch, *count)
        }
        Command::ElectChosen { elections, .. } => election::elect_chosen(draft_ref, elections),
        Command::RegisterController { node, directory, endpoint, .. } => {
            controllers::register(draft_ref, *node, *directory, endpoint)
        }
        Command::UnregisterController { node, directory, .. } => controllers::unregister(draft_ref, *node, *directory),
        Command::AlterConfigs(request) => configs::alter(draft_ref, request),
        Command::CreateTopicInheriting { part, inherited } => topics::create_inheriting(draft_ref, part, inherited),
    }?;
    Ok(draft.decision(answer))
}

/// The proposer's clock, where a command carries it.
pub(crate) fn time_of(command: &Command) -> Timestamp {
    match command {
        Command::FormCluster { time, .. }
        | Command::UnfenceBroker { time, .. }
        | Command::FenceBrokers { time, .. }
        | Command::FenceBrokersKnowing { time, .. }
        | Command::ShutDownBroker { time, .. }
        | Command::UnregisterBroker { time, .. }
        | Command::DeleteTopic { time, .. }
        | Command::ElectLeaders { time, .. }
        | Command::ElectChosen { time, .. }
        | Command::RegisterController { time, .. }
        | Command::UnregisterController { time, .. } => *time,
        Command::RegisterBroker(registration) => registration.time,
        Command::CreateTopic(creation) | Command::CreateTopicInheriting { part: creation, .. } => creation.time,
        Command::AlterConfigs(request) => request.time,
        Command::AddPartitions(growth) => growth.time,
        Command::AlterPartition(request) => request.time,
        Command::AllocateProducerIds { .. } | Command::SetFeatureLevel { .. } => Timestamp::NONE,
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
