//! State rows: what a change of the image writes into sled or a snapshot, and the image read back from rows (D13).
//!
//! A key is `kind | id`; in sled the generation stands before it. Values are postcard.

use std::sync::Arc;

use highwater_wire::{BrokerId, Timestamp, TopicId, TopicPartition};
use serde::{Deserialize, Serialize};

use crate::controller::CreateTopic;
use crate::image::{
    BrokerRegistration, Change, ControllerRegistration, Inherited, MetadataImage, PartitionChange, PartitionState,
    Topic, TopicConfig,
};

const BROKER: u8 = 1;
const TOPIC: u8 = 2;
const NAME: u8 = 3;
const PARTITION: u8 = 4;
const HISTORY: u8 = 5;
const CONFIG: u8 = 6;
const PRODUCER_IDS: u8 = 7;
const STAGED: u8 = 8;
const CONTROLLER: u8 = 9;
const INHERITED: u8 = 10;
const BROKER_CONFIG: u8 = 11;

/// Where rows go: a sled batch, a snapshot file.
pub(crate) trait RowSink {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>);
    fn remove(&mut self, key: Vec<u8>);
}

/// A topic's own row; its partitions and its configuration have theirs.
#[derive(Serialize, Deserialize)]
struct TopicRow {
    name: String,
    created: Timestamp,
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("rows are plain data, and memory is the only limit")
}

fn key(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(kind);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

fn broker_key(id: BrokerId) -> Vec<u8> {
    key(BROKER, &[&id.0.to_be_bytes()])
}

fn controller_key(node: BrokerId) -> Vec<u8> {
    key(CONTROLLER, &[&node.0.to_be_bytes()])
}

fn partition_key(kind: u8, at: TopicPartition) -> Vec<u8> {
    key(kind, &[&at.topic.to_bytes(), &at.partition.to_be_bytes()])
}

fn history_key(at: TopicPartition, sequence: u64) -> Vec<u8> {
    key(HISTORY, &[&at.topic.to_bytes(), &at.partition.to_be_bytes(), &sequence.to_be_bytes()])
}

/// −1 stands for all brokers.
fn broker_config_key(of: Option<BrokerId>) -> Vec<u8> {
    key(BROKER_CONFIG, &[&of.map_or(-1, |id| id.0).to_be_bytes()])
}

fn staged_key(part: &CreateTopic) -> Vec<u8> {
    key(STAGED, &[&part.id.to_bytes(), &part.first_partition.to_be_bytes()])
}

/// Writes what `change` does to the rows. `before` is the image it is about to be applied to.
pub(crate) fn write_change(sink: &mut impl RowSink, before: &MetadataImage, change: &Change) {
    match change {
        // Cluster id and feature level stand in the head of the state.
        Change::Cluster { .. } => {}
        Change::Broker(registration) => sink.put(broker_key(registration.id), encode(registration.as_ref())),
        Change::BrokerRemoved(id) => sink.remove(broker_key(*id)),
        Change::Topic { id, name, created, config } => put_topic(sink, *id, name, *created, config),
        Change::TopicRemoved(id) => {
            let Some(topic) = before.topics.get(id) else { return };
            sink.remove(key(TOPIC, &[&id.to_bytes()]));
            sink.remove(key(CONFIG, &[&id.to_bytes()]));
            if !topic.inherited.is_empty() {
                sink.remove(key(INHERITED, &[&id.to_bytes()]));
            }
            if before.names.get(&topic.name) == Some(id) {
                sink.remove(key(NAME, &[topic.name.as_bytes()]));
            }
            for (number, _) in (0i32..).zip(&topic.partitions) {
                let at = TopicPartition::new(*id, number);
                sink.remove(partition_key(PARTITION, at));
                for change in before.history_of(at) {
                    sink.remove(history_key(at, change.sequence));
                }
            }
        }
        Change::Partition(at, state) => sink.put(partition_key(PARTITION, *at), encode(state.as_ref())),
        Change::History(at, change) => sink.put(history_key(*at, change.sequence), encode(change.as_ref())),
        Change::HistoryTrimmed(at, first_kept) => {
            for change in before.history_of(*at).iter().filter(|change| change.sequence < *first_kept) {
                sink.remove(history_key(*at, change.sequence));
            }
        }
        Change::Staged(_, part) => sink.put(staged_key(part), encode(part.as_ref())),
        Change::Unstaged(id) => {
            for part in before.staged.get(id).into_iter().flat_map(|parts| parts.iter()) {
                sink.remove(staged_key(part));
            }
        }
        Change::NextProducerId(next) => sink.put(key(PRODUCER_IDS, &[]), encode(next)),
        Change::Controller(registration) => {
            sink.put(controller_key(registration.node), encode(registration.as_ref()));
        }
        Change::ControllerRemoved(node) => sink.remove(controller_key(*node)),
        Change::Inherited(id, inherited) if inherited.is_empty() => sink.remove(key(INHERITED, &[&id.to_bytes()])),
        Change::Inherited(id, inherited) => sink.put(key(INHERITED, &[&id.to_bytes()]), encode(inherited.as_ref())),
        Change::BrokerConfigs(of, configs) if configs.is_empty() => sink.remove(broker_config_key(*of)),
        Change::BrokerConfigs(of, configs) => sink.put(broker_config_key(*of), encode(configs.as_ref())),
    }
}

fn put_topic(sink: &mut impl RowSink, id: TopicId, name: &str, created: Timestamp, config: &TopicConfig) {
    sink.put(key(TOPIC, &[&id.to_bytes()]), encode(&TopicRow { name: name.to_owned(), created }));
    sink.put(key(NAME, &[name.as_bytes()]), encode(&id));
    sink.put(key(CONFIG, &[&id.to_bytes()]), encode(config));
}

/// Writes every row of an image.
pub(crate) fn write_image(sink: &mut impl RowSink, image: &MetadataImage) {
    for registration in image.brokers.values() {
        sink.put(broker_key(registration.id), encode(registration.as_ref()));
    }
    for topic in image.topics.values() {
        write_topic(sink, topic);
    }
    for (at, changes) in &image.history {
        for change in changes.iter() {
            sink.put(history_key(*at, change.sequence), encode(change.as_ref()));
        }
    }
    for part in image.staged.values().flat_map(|parts| parts.iter()) {
        sink.put(staged_key(part), encode(part));
    }
    sink.put(key(PRODUCER_IDS, &[]), encode(&image.next_producer_id));
    for controller in image.controllers.values() {
        sink.put(controller_key(controller.node), encode(controller.as_ref()));
    }
    for (of, configs) in &image.broker_configs {
        sink.put(broker_config_key(*of), encode(configs.as_ref()));
    }
}

fn write_topic(sink: &mut impl RowSink, topic: &Topic) {
    put_topic(sink, topic.id, &topic.name, topic.created, &topic.config);
    if !topic.inherited.is_empty() {
        sink.put(key(INHERITED, &[&topic.id.to_bytes()]), encode(topic.inherited.as_ref()));
    }
    for (number, state) in (0i32..).zip(&topic.partitions) {
        sink.put(partition_key(PARTITION, TopicPartition::new(topic.id, number)), encode(state.as_ref()));
    }
}

/// Builds an image from rows that come in any order.
#[derive(Default)]
pub(crate) struct ImageReader {
    topics: std::collections::BTreeMap<TopicId, TopicRow>,
    configs: std::collections::BTreeMap<TopicId, TopicConfig>,
    inherited: std::collections::BTreeMap<TopicId, std::collections::BTreeMap<String, Inherited>>,
    /// In key order a topic's partitions ascend; any order is put right here.
    partitions: std::collections::BTreeMap<TopicPartition, PartitionState>,
    history: std::collections::BTreeMap<(TopicPartition, u64), PartitionChange>,
    staged: std::collections::BTreeMap<(TopicId, i32), CreateTopic>,
    image: MetadataImage,
}

/// A row that this build cannot read: damage, or a newer format that slipped past its version.
#[derive(Debug, thiserror::Error)]
#[error("unreadable state row {key:02x?}: {why}")]
pub(crate) struct BadRow {
    key: Vec<u8>,
    why: String,
}

impl ImageReader {
    /// Takes one row, its key without the generation.
    pub fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRow> {
        let bad = |why: &str| BadRow { key: key.to_vec(), why: why.to_owned() };
        let (&kind, id) = key.split_first().ok_or_else(|| bad("empty key"))?;
        let topic = |bytes: &[u8]| -> Result<TopicId, BadRow> {
            let bytes = bytes.get(..16).and_then(|id| <[u8; 16]>::try_from(id).ok());
            bytes.map(TopicId::from_bytes).ok_or_else(|| bad("short topic id"))
        };
        let partition = |bytes: &[u8]| -> Result<TopicPartition, BadRow> {
            let number = bytes.get(16..20).and_then(|number| <[u8; 4]>::try_from(number).ok());
            let number = number.map(i32::from_be_bytes).ok_or_else(|| bad("short partition number"))?;
            Ok(TopicPartition::new(topic(bytes)?, number))
        };
        let unreadable = |error: postcard::Error| bad(&error.to_string());
        match kind {
            BROKER => {
                let registration: BrokerRegistration = postcard::from_bytes(value).map_err(unreadable)?;
                self.image.apply(&Change::Broker(Arc::new(registration)));
            }
            TOPIC => {
                self.topics.insert(topic(id)?, postcard::from_bytes(value).map_err(unreadable)?);
            }
            // For people and for lookups without an image; the topic's own row holds the name too.
            NAME => {}
            PARTITION => {
                self.partitions.insert(partition(id)?, postcard::from_bytes(value).map_err(unreadable)?);
            }
            HISTORY => {
                let change: PartitionChange = postcard::from_bytes(value).map_err(unreadable)?;
                self.history.insert((partition(id)?, change.sequence), change);
            }
            CONFIG => {
                self.configs.insert(topic(id)?, postcard::from_bytes(value).map_err(unreadable)?);
            }
            PRODUCER_IDS => self.image.next_producer_id = postcard::from_bytes(value).map_err(unreadable)?,
            STAGED => {
                let part: CreateTopic = postcard::from_bytes(value).map_err(unreadable)?;
                self.staged.insert((part.id, part.first_partition), part);
            }
            CONTROLLER => {
                let registration: ControllerRegistration = postcard::from_bytes(value).map_err(unreadable)?;
                self.image.apply(&Change::Controller(Arc::new(registration)));
            }
            INHERITED => {
                self.inherited.insert(topic(id)?, postcard::from_bytes(value).map_err(unreadable)?);
            }
            BROKER_CONFIG => {
                let of = id.try_into().map(i32::from_be_bytes).map_err(|_| bad("short broker id"))?;
                let configs = Arc::new(postcard::from_bytes(value).map_err(unreadable)?);
                self.image.apply(&Change::BrokerConfigs(BrokerId::from_wire(of), configs));
            }
            _ => return Err(bad("unknown kind")),
        }
        Ok(())
    }

    /// The image of all rows taken; version, cluster id and feature level are the caller's.
    pub fn finish(mut self) -> Result<MetadataImage, BadRow> {
        let cluster = self.image.topic_defaults();
        for (id, row) in self.topics {
            let config = self.configs.remove(&id);
            let config =
                config.ok_or_else(|| BadRow { key: id.to_bytes().to_vec(), why: "no config row".to_owned() })?;
            let inherited = self.inherited.remove(&id).unwrap_or_default();
            let config = Arc::new(config.with_cleanup(&inherited, &cluster));
            self.image.apply(&Change::Topic { id, name: row.name.into(), created: row.created, config });
            if !inherited.is_empty() {
                self.image.apply(&Change::Inherited(id, Arc::new(inherited)));
            }
        }
        for (at, state) in self.partitions {
            let next = self.image.topics.get(&at.topic).map(|topic| topic.partitions.len());
            if next.and_then(|next| i32::try_from(next).ok()) != Some(at.partition) {
                return Err(BadRow {
                    key: partition_key(PARTITION, at),
                    why: "a gap before this partition".to_owned(),
                });
            }
            self.image.apply(&Change::Partition(at, Arc::new(state)));
        }
        for ((at, _), change) in self.history {
            self.image.apply(&Change::History(at, Arc::new(change)));
        }
        for ((id, _), part) in self.staged {
            self.image.apply(&Change::Staged(id, Arc::new(part)));
        }
        Ok(self.image)
    }
}
