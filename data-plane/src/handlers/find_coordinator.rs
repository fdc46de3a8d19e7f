//! FindCoordinator (10, v0–6): who leads the partition that a group is kept in (R284). v1 kinds of keys, v4 several keys.
//!
//! The topic of the groups is created when somebody asks first. Transactions are not served: 53. Share groups neither: 42.

use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::{MetadataImage, TopicSpec};
use highwater_wire::{ErrorCode, StrBytes, TopicPartition};
use kafka_wire::find_coordinator_response::Coordinator;
use kafka_wire::{FindCoordinatorRequest, FindCoordinatorResponse};

use super::context::{Caller, Context, live_endpoint};
use crate::coordinator::{OFFSETS_TOPIC, partition_of};

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// A creation of the topic of groups; who asked tries again.
const CREATE: Duration = Duration::from_secs(5);

/// Where a coordinator is, or why there is none.
type Found = Result<(i32, String, i32), (ErrorCode, &'static str)>;

pub async fn handle(
    context: &Arc<Context>,
    caller: &Caller,
    version: i16,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let kind = if version >= 1 { request.key_type } else { GROUP };
    let keys = if version >= 4 { request.coordinator_keys } else { vec![request.key] };
    if kind == GROUP && keys.iter().any(|key| !key.is_empty()) {
        create(context).await;
    }
    let image = context.image();
    let found = keys.iter().map(|key| find(caller, &image, kind, key)).collect::<Vec<_>>();
    let mut response = FindCoordinatorResponse::default();
    if version < 4 {
        let told = tell(version, keys.first().cloned().unwrap_or_default(), found.into_iter().next());
        response.error_code = told.error_code;
        response.error_message = told.error_message;
        (response.node_id, response.host, response.port) = (told.node_id, told.host, told.port);
        return response;
    }
    response.coordinators = keys.into_iter().zip(found).map(|(key, found)| tell(version, key, Some(found))).collect();
    response
}

fn find(caller: &Caller, image: &MetadataImage, kind: i8, key: &StrBytes) -> Found {
    match kind {
        TRANSACTION => {
            return Err((ErrorCode::TransactionalIdAuthorizationFailed, "this broker serves no transactions"));
        }
        GROUP => {}
        _ => return Err((ErrorCode::InvalidRequest, "this broker coordinates groups only")),
    }
    if key.is_empty() {
        return Err((ErrorCode::InvalidGroupId, "a group has a name"));
    }
    let none = |why| (ErrorCode::CoordinatorNotAvailable, why);
    let topic = image.topic_named(OFFSETS_TOPIC).ok_or(none("the topic of the groups does not exist yet"))?;
    let partition = partition_of(key.as_str(), topic.partitions.len());
    let state = image.partition(TopicPartition::new(topic.id, partition));
    let leader = state.and_then(|state| state.leader).ok_or(none("nobody leads the partition of this group now"))?;
    let endpoint = live_endpoint(image, leader, &caller.listener);
    let endpoint = endpoint.ok_or(none("whoever leads the partition of this group does not listen here"))?;
    Ok((leader.0, endpoint.host.clone(), i32::from(endpoint.port)))
}

fn tell(version: i16, key: StrBytes, found: Option<Found>) -> Coordinator {
    let mut told = Coordinator::default();
    told.key = key;
    match found {
        Some(Ok((node, host, port))) => {
            told.node_id = node;
            told.host = host.into();
            told.port = port;
            told.error_message = (version >= 1).then(StrBytes::default);
        }
        Some(Err((error, why))) => {
            (told.node_id, told.port) = (-1, -1);
            told.error_code = error.code();
            told.error_message = (version >= 1).then(|| why.into());
        }
        None => {
            (told.node_id, told.port) = (-1, -1);
            told.error_code = ErrorCode::InvalidRequest.code();
        }
    }
    told
}

/// Sees to it that the topic of the groups exists. One that cannot be created yet is told as 15, and tried again.
async fn create(context: &Arc<Context>) {
    if context.image().topic_named(OFFSETS_TOPIC).is_some() {
        return;
    }
    let defaults = &context.topics;
    let brokers = context.image().brokers.size();
    let wanted = usize::from(defaults.offsets_replication_factor.unsigned_abs());
    // Nothing of it may go by age or size, whatever the cluster's defaults are (R284).
    let configs = [("cleanup.policy", "compact"), ("compression.type", "producer"), ("segment.bytes", "104857600")];
    let spec = TopicSpec {
        name: OFFSETS_TOPIC.to_owned(),
        partitions: Some(defaults.offsets_partitions),
        // As many as there are (D19).
        replication_factor: Some(i16::try_from(wanted.min(brokers).max(1)).unwrap_or(1)),
        assignments: Default::default(),
        configs: configs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        validate_only: false,
    };
    if let Err(error) = context.quorum.create_topic(spec, CREATE).await
        && ErrorCode::from(&error) != ErrorCode::TopicAlreadyExists
    {
        tracing::warn!(%error, "the topic of the groups could not be created; whoever looks for a coordinator tries again");
    }
}
