//! The table of broker level keys, as far as brokers can be told them while they run.
//!
//! What a node's own configuration knows of them (defaults, words for people) is in the binary's table; a test there
//! compares both.

use crate::image::topic_config::keys::Rule;

/// What setting a key on running brokers does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is in force at once for every topic that does not set its own key.
    TopicDefault,
    /// The process takes it over as it hears of it.
    AtOnce,
    /// It is kept, and the process takes it over at its next start.
    AtRestart,
}

/// One key that concerns a process.
pub(super) struct NodeKey {
    pub name: &'static str,
    pub rule: Rule,
    pub effect: Effect,
}

impl NodeKey {
    pub fn named(name: &str) -> Option<&'static Self> {
        NODE.iter().find(|key| key.name == name)
    }
}

const fn at_once(name: &'static str, rule: Rule) -> NodeKey {
    NodeKey { name, rule, effect: Effect::AtOnce }
}

const fn at_restart(name: &'static str, rule: Rule) -> NodeKey {
    NodeKey { name, rule, effect: Effect::AtRestart }
}

const INT: i64 = i32::MAX as i64;

/// Keys that concern a process: for one broker or for all.
pub(super) const NODE: &[NodeKey] = &[
    at_once("socket.request.max.bytes", Rule::Int(1024)),
    at_once("max.connections", Rule::Int(1)),
    at_once("connections.max.idle.ms", Rule::Long(1)),
    at_once("fetch.max.bytes", Rule::Int(1024)),
    at_once("replica.fetch.max.bytes", Rule::Int(1)),
    at_once("replica.fetch.response.max.bytes", Rule::Int(1)),
    at_once("replica.fetch.wait.max.ms", Rule::Int(1)),
    at_once("replica.fetch.min.bytes", Rule::Int(1)),
    at_once("replica.fetch.backoff.ms", Rule::Int(1)),
    at_once("replica.high.watermark.checkpoint.interval.ms", Rule::Long(1)),
    at_once("log.retention.check.interval.ms", Rule::Long(1)),
    at_once("controlled.shutdown.enable", Rule::Flag),
    at_once("auto.create.topics.enable", Rule::Flag),
    at_once("delete.topic.enable", Rule::Flag),
    at_once("num.partitions", Rule::Range(1, INT)),
    at_once("default.replication.factor", Rule::Range(1, i16::MAX as i64)),
    at_once("ready.in.sync.max.wait.ms", Rule::Long(0)),
    at_once(
        "metrics.partition.level",
        Rule::Word { words: &["summary", "leader", "full"], others_served: true, list: false },
    ),
    at_once("log.cleaner.backoff.ms", Rule::Long(0)),
    at_once("log.cleaner.dedupe.buffer.size", Rule::Long(1024)),
    at_restart("num.network.threads", Rule::Range(1, 1024)),
    at_restart("num.replica.fetchers", Rule::Range(1, 64)),
    at_restart("replica.lag.time.max.ms", Rule::Long(10)),
    at_restart("max.incremental.fetch.session.cache.slots", Rule::Int(0)),
    at_restart("producer.id.expiration.ms", Rule::Long(1)),
];

/// Broker level keys that are the default of a topic level key, in the same unit (Kafka's synonyms).
pub(super) const TOPIC_DEFAULTS: &[(&str, &str)] = &[
    ("min.insync.replicas", "min.insync.replicas"),
    ("unclean.leader.election.enable", "unclean.leader.election.enable"),
    ("message.max.bytes", "max.message.bytes"),
    ("log.retention.ms", "retention.ms"),
    ("log.retention.bytes", "retention.bytes"),
    ("log.segment.bytes", "segment.bytes"),
    ("log.roll.ms", "segment.ms"),
    ("log.roll.jitter.ms", "segment.jitter.ms"),
    ("log.index.size.max.bytes", "segment.index.bytes"),
    ("log.index.interval.bytes", "index.interval.bytes"),
    ("log.cleanup.policy", "cleanup.policy"),
    ("compression.type", "compression.type"),
    ("log.message.timestamp.type", "message.timestamp.type"),
    ("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
    ("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
    ("log.flush.interval.messages", "flush.messages"),
    ("log.flush.interval.ms", "flush.ms"),
    ("log.segment.delete.delay.ms", "file.delete.delay.ms"),
    ("log.preallocate", "preallocate"),
];

/// Coarser units of a default, which only a file may use, as in Kafka.
pub(super) const COARSE: &[(&str, &str)] = &[
    ("log.retention.minutes", "set log.retention.ms"),
    ("log.retention.hours", "set log.retention.ms"),
    ("log.roll.hours", "set log.roll.ms"),
    ("log.roll.jitter.hours", "set log.roll.jitter.ms"),
];

/// Keys that make a process what it is.
pub(super) const READ_ONLY: &[&str] = &[
    "advertised.listeners",
    "auto.leader.rebalance.enable",
    "broker.heartbeat.interval.ms",
    "broker.id",
    "broker.rack",
    "broker.session.timeout.ms",
    "cluster.id",
    "config.unknown.keys",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.election.timeout.ms",
    "controller.quorum.voters",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "http.advertised.url",
    "http.auth.mode",
    "http.listeners",
    "initial.broker.registration.timeout.ms",
    "inter.broker.listener.name",
    "leader.imbalance.check.interval.seconds",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
    "node.id",
    "offset.metadata.max.bytes",
    "offsets.retention.minutes",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "process.roles",
];
