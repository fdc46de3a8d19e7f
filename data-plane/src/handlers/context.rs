//! What a handler may touch: the image, the partitions, the quorum's client, the limits.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use highwater_quorum::image::{BrokerRegistration, Endpoint, Topic};
use highwater_quorum::{MetadataImage, NodeSettings, QuorumClient};
use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, TopicId, TopicPartition};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::init_producer_id::ProducerIds;
use crate::config::TopicDefaults;
use crate::coordinator::{Coordinators, OFFSETS_TOPIC};
use crate::fetch_session::SessionTable;
use crate::handlers::fetch::OpenSession;
use crate::identity::Identity;
use crate::live::Live;
use crate::loggers::Loggers;
use crate::partitions::Partitions;
use crate::replica::message::Refusal;
use crate::server::metrics::ServerMetrics;
use crate::suspects::Suspects;
use crate::view::NodeState;

/// Shared by all connections.
pub struct Context {
    pub identity: Arc<Identity>,
    pub cluster_id: String,
    pub inter_broker_listener: String,
    pub partitions: Arc<Partitions>,
    pub quorum: QuorumClient,
    pub images: watch::Receiver<Arc<MetadataImage>>,
    pub live: Arc<Live>,
    pub settings: Arc<NodeSettings>,
    pub loggers: Loggers,
    pub topics: TopicDefaults,
    pub producer_ids: ProducerIds,
    pub coordinators: Arc<Coordinators>,
    pub suspects: Arc<Suspects>,
    pub sessions: Mutex<Sessions>,
    pub metrics: Arc<ServerMetrics>,
    pub(crate) state: Arc<NodeState>,
}

/// The fetch sessions of this broker.
pub struct Sessions {
    pub table: SessionTable,
    pub open: HashMap<i32, Arc<OpenSession>>,
}

/// Who is at the other end of a connection, and by which door it came.
#[derive(Debug)]
pub struct Caller {
    pub listener: Arc<str>,
    /// Brokers may speak here (D22).
    pub inter_broker: bool,
    pub peer: SocketAddr,
}

impl Context {
    /// The newest image.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.images.borrow().clone()
    }

    /// `auto.create.topics.enable`, as it is now.
    pub fn may_create_topics(&self, image: &MetadataImage) -> bool {
        let now = self.settings.flag(image, self.identity.broker, "auto.create.topics.enable");
        now.unwrap_or(self.topics.auto_create)
    }

    /// `delete.topic.enable`, as it is now.
    pub fn may_delete_topics(&self, image: &MetadataImage) -> bool {
        let now = self.settings.flag(image, self.identity.broker, "delete.topic.enable");
        now.unwrap_or(self.topics.delete_enabled)
    }
}

/// Topics that only coordinators write to (R42 step 6).
pub fn is_internal(topic: &str) -> bool {
    matches!(topic, OFFSETS_TOPIC | "__transaction_state")
}

/// The partition of this name (R42 step 3).
///
/// # Errors
/// 3
pub fn by_name<'a>(
    image: &'a MetadataImage,
    name: &str,
    partition: i32,
) -> Result<(TopicPartition, &'a Arc<Topic>), ErrorCode> {
    let topic = image.topic_named(name).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    numbered(topic, partition)
}

/// The partition of this topic id (R71).
///
/// # Errors
/// 100 for the topic, 3 for the partition.
pub fn by_id(image: &MetadataImage, id: TopicId, partition: i32) -> Result<(TopicPartition, &Arc<Topic>), ErrorCode> {
    let topic = image.topics.get(&id).ok_or(ErrorCode::UnknownTopicId)?;
    numbered(topic, partition)
}

fn numbered(topic: &Arc<Topic>, partition: i32) -> Result<(TopicPartition, &Arc<Topic>), ErrorCode> {
    let known = usize::try_from(partition).is_ok_and(|number| number < topic.partitions.len());
    if known { Ok((TopicPartition::new(topic.id, partition), topic)) } else { Err(ErrorCode::UnknownTopicOrPartition) }
}

/// An address of a live broker on the caller's listener.
pub fn live_endpoint<'a>(image: &'a MetadataImage, broker: BrokerId, listener: &str) -> Option<&'a Endpoint> {
    image.brokers.get(&broker).filter(|broker| is_live(broker))?.listeners.get(listener)
}

/// Told to clients: registered and not fenced (R172).
pub fn is_live(broker: &BrokerRegistration) -> bool {
    broker.state != highwater_quorum::image::BrokerState::Fenced
}

/// The leader to name beside an error 6 or 74 (R54): of the image or of the refusal, whichever epoch is newer.
pub fn leader_hint(
    image: &MetadataImage,
    at: TopicPartition,
    refusal: Option<&Refusal>,
) -> Option<(BrokerId, LeaderEpoch)> {
    let known = image.partition(at).and_then(|state| Some((state.leader?, state.leader_epoch)));
    let told = refusal.and_then(Refusal::current_leader);
    match (known, told) {
        (Some(known), Some(told)) => Some(if told.1 > known.1 { told } else { known }),
        (known, told) => known.or(told),
    }
}
