//! What DescribeConfigs, AlterConfigs and IncrementalAlterConfigs share: whose configuration a request means, and the
//! one door through which it is changed.
//!
//! Served are topics and brokers (one, or all of them under an empty name); any broker changes any of them. A broker's
//! loggers are its own (`broker_loggers.rs`).

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use highwater_quorum::controller::{ConfigResource, check_topic_name};
use highwater_quorum::{ConfigChange, MetadataImage, QuorumError, Refusal};
use highwater_wire::{BrokerId, ErrorCode};

use super::context::Context;

/// How long a change may take; the requests carry no time-out.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Kafka's numbers of the resource types.
pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const BROKER_LOGGER: i8 = 8;

/// What is answered instead of a result.
pub(super) type Fault = (ErrorCode, String);

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

/// Which of the (type, name) pairs of a request come more than once.
pub(super) fn repeated<'a>(named: impl Iterator<Item = (i8, &'a str)>) -> BTreeSet<(i8, &'a str)> {
    let mut seen = BTreeSet::new();
    named.filter(|resource| !seen.insert(*resource)).collect()
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

/// The fault of a resource that a request names twice.
pub(super) fn named_twice(kind: i8, name: &str) -> Fault {
    (ErrorCode::InvalidRequest, format!("resource {name:?} of type {kind} is named twice in one request"))
}

/// Changes each resource of a request once, all of them side by side; one that is refused does not touch the others.
/// `named`: type and name of a resource, `alter`: changes it.
pub(super) async fn alter_each<'a, R>(
    asked: &'a [R],
    named: impl Fn(&'a R) -> (i8, &'a str),
    alter: impl AsyncFn(&'a R) -> Result<(), Fault>,
) -> Vec<(&'a R, Result<(), Fault>)> {
    let twice = repeated(asked.iter().map(&named));
    let mut told = BTreeSet::new();
    let once = asked.iter().filter(|one| told.insert(named(one)));
    let (twice, named, alter) = (&twice, &named, &alter);
    let changes = once.map(|one| async move {
        let (kind, name) = named(one);
        let result = if twice.contains(&(kind, name)) { Err(named_twice(kind, name)) } else { alter(one).await };
        (one, result)
    });
    join_all(changes).await
}
