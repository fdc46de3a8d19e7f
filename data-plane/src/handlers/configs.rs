//! What DescribeConfigs, AlterConfigs and IncrementalAlterConfigs share: whose configuration a request means, and the
//! one door through which it is changed.
//!
//! Served are topics and brokers (one, or all of them under an empty name); any broker changes any of them. A broker's
//! loggers are its own (`broker_loggers.rs`).

use std::time::Duration;

use highwater_quorum::controller::{ConfigResource, check_topic_name};
use highwater_quorum::{ConfigChange, MetadataImage, QuorumError, Refusal};
use highwater_wire::{BrokerId, ErrorCode};

use super::context::Context;
use super::named::Fault;

/// How long a change may take; the requests carry no time-out.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Kafka's numbers of the resource types.
pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const BROKER_LOGGER: i8 = 8;

/// Whose configuration a request means.
///
/// # Errors
/// 3 and 17 for topics, 42 for everything that is no resource here.
pub(super) fn resource(image: &MetadataImage, kind: i8, name: &str) -> Result<ConfigResource, Fault> {
    match kind {
        TOPIC => match image.topic_named(name) {
            Some(topic) => Ok(ConfigResource::Topic(topic.id)),
            None => {
                check_topic_name(name).map_err(|refusal| (ErrorCode::from(&refusal), refusal.to_string()))?;
                Err((ErrorCode::UnknownTopicOrPartition, format!("there is no topic {name:?}")))
            }
        },
        BROKER if name.is_empty() => Ok(ConfigResource::Brokers),
        BROKER => {
            let id = name.parse().ok().and_then(BrokerId::from_wire);
            let why = || format!("broker {name:?}: a broker is named by its id, all of them by an empty name");
            id.map(ConfigResource::Broker).ok_or_else(|| (ErrorCode::InvalidRequest, why()))
        }
        BROKER_LOGGER => {
            let why = "levels of loggers are changed one by one: send IncrementalAlterConfigs";
            Err((ErrorCode::InvalidRequest, why.to_owned()))
        }
        other => {
            let why = format!("resource type {other} has no configuration here: 2 (topic) and 4 (broker) are served");
            Err((ErrorCode::InvalidRequest, why))
        }
    }
}

/// Changes one resource of a request, all of its keys or none.
///
/// # Errors
/// What is answered for this resource.
pub(super) async fn alter(
    context: &Context,
    kind: i8,
    name: &str,
    validate_only: bool,
    change: impl FnOnce(ConfigResource) -> Result<ConfigChange, Fault>,
) -> Result<(), Fault> {
    let mut found = resource(&context.image(), kind, name);
    if matches!(found, Err((ErrorCode::UnknownTopicOrPartition, _)))
        // Perhaps it was created elsewhere a moment ago.
        && let Ok(image) = context.quorum.linearizable(TIMEOUT).await
    {
        found = resource(&image, kind, name);
    }
    let change = change(found?)?;
    context.quorum.alter_configs(change, validate_only, TIMEOUT).await.map(drop).map_err(|error| match &error {
        QuorumError::Refused(Refusal::UnknownTopicId(_)) => {
            (ErrorCode::UnknownTopicOrPartition, format!("topic {name:?} was deleted"))
        }
        error => (ErrorCode::from(error), error.to_string()),
    })
}

/// How a resource is named in an answer, told apart from every other.
pub(super) fn told(kind: i8, name: &str) -> String {
    format!("resource {name:?} of type {kind}")
}
