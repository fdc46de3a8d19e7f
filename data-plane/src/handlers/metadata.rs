//! Metadata (3, v0–13): brokers, topics, leaders, as the local image has them (R188).
//!
//! v0 asks for all topics with an empty list, later versions with none; v10 brings topic ids, v12 asks by them, v13 has
//! an error of its own. Topics may be created on the way (R56). A topic that is being created elsewhere is unknown (3)
//! until the image here has it; whoever created it through this broker finds it at once (D18).

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_quorum::image::{PartitionState, Topic};
use highwater_quorum::{MetadataImage, QuorumError, TopicSpec};
use highwater_wire::{BrokerId, ErrorCode, Millis, TopicId};
use kafka_wire::metadata_request::MetadataRequestTopic;
use kafka_wire::metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic};
use kafka_wire::{MetadataRequest, MetadataResponse};
use kafka_wire_core::{StrBytes, Uuid};

use super::context::{Caller, Context, is_internal, is_live, live_endpoint};
use super::create_topics::CREATE_TIMEOUT;

/// How long an answer is held back while the leader it would name may be dead (D7): the quorum takes 0.2 s to know.
const SUSPECT_HOLD: Millis = Millis(500);

pub async fn handle(context: &Context, caller: &Caller, version: i16, request: MetadataRequest) -> MetadataResponse {
    let mut image = without_suspects(context, request.topics.as_deref(), version).await;
    let topics = match request.topics {
        None => image.topics.values().map(|topic| describe(&image, topic, caller, version)).collect(),
        Some(asked) if asked.is_empty() && version == 0 => {
            image.topics.values().map(|topic| describe(&image, topic, caller, version)).collect()
        }
        Some(asked) => {
            let mut errors = BTreeMap::new();
            if context.may_create_topics(&image) && request.allow_auto_topic_creation {
                errors = create_missing(context, &image, &asked).await;
                image = context.image();
            }
            asked.iter().map(|topic| one(&image, topic, &errors, caller, version)).collect()
        }
    };
    let mut response = MetadataResponse::default();
    response.brokers = brokers(&image, caller, version);
    if version >= 1 {
        response.controller_id = controller(context, &image, caller);
    }
    if version >= 2 {
        response.cluster_id = Some(context.cluster_id.as_str().into());
    }
    response.topics = topics;
    response
}

/// The newest image, in which no suspect leads what is asked for; or, after half a second, the newest one as it is.
async fn without_suspects(
    context: &Context,
    asked: Option<&[MetadataRequestTopic]>,
    version: i16,
) -> Arc<MetadataImage> {
    let clock = context.partitions.clock;
    if context.suspects.now(clock.mono()).is_empty() {
        return context.image();
    }
    let mut images = context.images.clone();
    let deadline = clock.instant(clock.mono() + SUSPECT_HOLD).into();
    loop {
        let image = images.borrow_and_update().clone();
        let suspects = context.suspects.now(clock.mono());
        let suspected = |broker: &BrokerId| {
            let registered = image.brokers.get(broker).map(|registration| registration.epoch);
            registered.is_some() && suspects.get(broker).copied() == registered
        };
        let led_by_suspect =
            |topic: &Arc<Topic>| topic.partitions.iter().any(|state| state.leader.as_ref().is_some_and(suspected));
        let hold = match asked {
            Some(asked) if !asked.is_empty() || version > 0 => {
                asked.iter().filter_map(|topic| find(&image, topic)).any(led_by_suspect)
            }
            _ => image.topics.values().any(led_by_suspect),
        };
        if !hold || !matches!(tokio::time::timeout_at(deadline, images.changed()).await, Ok(Ok(()))) {
            return image;
        }
    }
}

fn find<'a>(image: &'a MetadataImage, asked: &MetadataRequestTopic) -> Option<&'a Arc<Topic>> {
    match &asked.name {
        Some(name) => image.topic_named(name.as_str()),
        None => image.topics.get(&asked.topic_id.into()),
    }
}

fn brokers(image: &MetadataImage, caller: &Caller, version: i16) -> Vec<MetadataResponseBroker> {
    let live = image.brokers.values().filter(|broker| is_live(broker));
    live.filter_map(|broker| {
        let endpoint = broker.listeners.get(&*caller.listener)?;
        let mut told = MetadataResponseBroker::default();
        told.node_id = broker.id.0;
        told.host = endpoint.host.as_str().into();
        told.port = i32::from(endpoint.port);
        if version >= 1 {
            told.rack = broker.rack.as_deref().map(StrBytes::from);
        }
        Some(told)
    })
    .collect()
}

/// Where admin requests are best sent: the raft leader if it can be reached there, else this broker.
pub fn controller(context: &Context, image: &MetadataImage, caller: &Caller) -> i32 {
    let leader = context.quorum.leader().filter(|leader| live_endpoint(image, *leader, &caller.listener).is_some());
    leader.unwrap_or(context.identity.broker).0
}

fn one(
    image: &MetadataImage,
    asked: &MetadataRequestTopic,
    errors: &BTreeMap<String, ErrorCode>,
    caller: &Caller,
    version: i16,
) -> MetadataResponseTopic {
    let id = TopicId::from_bytes(asked.topic_id.to_bytes());
    let mut missing = MetadataResponseTopic::default();
    let Some(name) = asked.name.as_ref().map(StrBytes::as_str) else {
        if let Some(topic) = image.topics.get(&id) {
            return describe(image, topic, caller, version);
        }
        missing.name = (version < 12).then(|| "".into());
        missing.topic_id = asked.topic_id;
        missing.error_code = ErrorCode::UnknownTopicId.code();
        return missing;
    };
    if let Some(topic) = image.topic_named(name) {
        return describe(image, topic, caller, version);
    }
    let error = match errors.get(name) {
        Some(error) => *error,
        None if !is_legal(name) => ErrorCode::InvalidTopicException,
        None => ErrorCode::UnknownTopicOrPartition,
    };
    missing.name = Some(name.into());
    missing.error_code = error.code();
    missing
}

fn describe(image: &MetadataImage, topic: &Topic, caller: &Caller, version: i16) -> MetadataResponseTopic {
    let mut told = MetadataResponseTopic::default();
    told.name = Some((&*topic.name).into());
    if version >= 1 {
        told.is_internal = is_internal(&topic.name);
    }
    if version >= 10 {
        told.topic_id = Uuid::from_bytes(topic.id.to_bytes());
    }
    let partitions = (0i32..).zip(&topic.partitions);
    told.partitions = partitions.map(|(number, state)| partition(image, number, state, caller, version)).collect();
    told
}

fn partition(
    image: &MetadataImage,
    number: i32,
    state: &PartitionState,
    caller: &Caller,
    version: i16,
) -> MetadataResponsePartition {
    let live = |broker: &BrokerId| is_reachable(image, *broker, caller);
    let (leader, error) = match leader_told(image, state, caller) {
        (leader, ErrorCode::ListenerNotFound) if version < 6 => (leader, ErrorCode::LeaderNotAvailable),
        told => told,
    };
    let mut told = MetadataResponsePartition::default();
    told.error_code = error.code();
    told.partition_index = number;
    told.leader_id = BrokerId::to_wire(leader);
    told.replica_nodes = state.replicas.iter().map(|broker| broker.0).collect();
    told.isr_nodes = state.isr.iter().map(|broker| broker.0).collect();
    if version >= 5 {
        told.offline_replicas = state.replicas.iter().filter(|broker| !live(broker)).map(|broker| broker.0).collect();
    }
    if version >= 7 {
        told.leader_epoch = state.leader_epoch.0;
    }
    told
}

/// Whether a caller can speak to this broker now.
pub fn is_reachable(image: &MetadataImage, broker: BrokerId, caller: &Caller) -> bool {
    live_endpoint(image, broker, &caller.listener).is_some()
}

/// The leader that a caller is told of, and the error beside none: it has no address on the caller's listener, or there is
/// none now.
pub fn leader_told(image: &MetadataImage, state: &PartitionState, caller: &Caller) -> (Option<BrokerId>, ErrorCode) {
    match state.leader {
        Some(leader) if is_reachable(image, leader, caller) => (Some(leader), ErrorCode::None),
        Some(leader) if image.brokers.get(&leader).is_some_and(|broker| is_live(broker)) => {
            (None, ErrorCode::ListenerNotFound)
        }
        _ => (None, ErrorCode::LeaderNotAvailable),
    }
}

/// R179
fn is_legal(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= 249 && name != "." && name != ".." && name.chars().all(legal)
}

/// Creates what is asked for by name and does not exist (R56). Gives what to answer where that failed.
async fn create_missing(
    context: &Context,
    image: &MetadataImage,
    asked: &[MetadataRequestTopic],
) -> BTreeMap<String, ErrorCode> {
    let names = asked.iter().filter_map(|topic| topic.name.as_ref().map(StrBytes::as_str));
    let missing = names.filter(|name| image.topic_named(name).is_none());
    let creations = missing.map(|name| async move {
        let spec = TopicSpec { name: name.to_owned(), ..TopicSpec::default() };
        let error = match context.quorum.create_topic(spec, CREATE_TIMEOUT).await {
            Ok(_) => return None,
            Err(QuorumError::Refused(refusal)) => match ErrorCode::from(&refusal) {
                ErrorCode::TopicAlreadyExists => return None,
                code => code,
            },
            Err(_) => ErrorCode::LeaderNotAvailable,
        };
        Some((name.to_owned(), error))
    });
    futures::future::join_all(creations).await.into_iter().flatten().collect()
}
