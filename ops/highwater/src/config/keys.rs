//! The table of keys: served (with default, unit and reason), known to Kafka but without meaning here, and dangerous
//! to ignore. `ops/server.properties.example` is written from it (`example.rs`).

use highwater_quorum::image::topic_config::ConfigType;

mod unserved;

pub use unserved::{DANGEROUS, IGNORED};

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number between the two, both included.
    Number(i64, i64),
    Bool,
    Text,
    OneOf(&'static [&'static str]),
}

impl Kind {
    /// What would do, to be read after "must be".
    pub fn allowed(self) -> String {
        match self {
            Self::Number(min, max) => format!("a whole number from {min} to {max}"),
            Self::Bool => "true or false".to_owned(),
            Self::Text => "text".to_owned(),
            Self::OneOf(words) => words.join(" or "),
        }
    }

    /// Kafka's name of the type.
    pub fn config_type(self) -> ConfigType {
        match self {
            Self::Number(_, INT) => ConfigType::Int,
            Self::Number(_, max) if max < INT => ConfigType::Int,
            Self::Number(..) => ConfigType::Long,
            Self::Bool => ConfigType::Boolean,
            Self::Text | Self::OneOf(_) => ConfigType::String,
        }
    }
}

/// A key that changes what this binary does.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// In force when nobody sets it; empty: none, or computed as `about` says.
    pub default: &'static str,
    /// Unit and reason, one or two lines.
    pub about: &'static str,
}

const fn number(name: &'static str, default: &'static str, min: i64, max: i64, about: &'static str) -> Key {
    Key { name, kind: Kind::Number(min, max), default, about }
}

const fn text(name: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { name, kind: Kind::Text, default, about }
}

const fn flag(name: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { name, kind: Kind::Bool, default, about }
}

const fn one_of(
    name: &'static str,
    default: &'static str,
    allowed: &'static [&'static str],
    about: &'static str,
) -> Key {
    Key { name, kind: Kind::OneOf(allowed), default, about }
}

const INT: i64 = i32::MAX as i64;
const LONG: i64 = i64::MAX;

/// A group of keys under one heading of the example file.
#[derive(Debug)]
pub struct Group {
    pub title: &'static str,
    pub keys: &'static [Key],
}

/// All keys that are served, in the order of the example file.
pub const GROUPS: &[Group] = &[
    Group {
        title: "Identity and directories",
        keys: &[
            number(
                "node.id",
                "",
                0,
                INT,
                "Number of this node in the cluster; must be set. broker.id is read as the same.",
            ),
            text(
                "process.roles",
                "broker,controller",
                "What this process does: broker, controller or both. A broker alone learns the metadata from the controllers.",
            ),
            text(
                "cluster.id",
                "",
                "Name of the cluster: 22 characters of base64. Minted when the cluster forms if nobody gives one.",
            ),
            text("log.dirs", "./data", "Directory of the partitions' logs; exactly one. log.dir is read as the same."),
            text(
                "metadata.log.dir",
                "",
                "Directory of the metadata log. Default: the log directory with -metadata appended; never inside it,\nso that losing a data disk does not make a voter forget its vote.",
            ),
            text("broker.rack", "", "Failure zone; replicas of a partition are spread over racks."),
        ],
    },
    Group {
        title: "Listeners",
        keys: &[
            text(
                "listeners",
                "PLAINTEXT://:9092,CONTROLLER://:9093",
                "NAME://host:port, comma separated; an empty host is every interface. One of them is the controller listener.",
            ),
            text(
                "advertised.listeners",
                "",
                "What clients and other brokers are told to dial. Default: the listeners, with this host's name for an empty host.",
            ),
            text(
                "listener.security.protocol.map",
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "Protocol by listener name; only PLAINTEXT is served.",
            ),
            text(
                "inter.broker.listener.name",
                "",
                "Listener over which brokers fetch from each other. Default: the first that is no controller listener.",
            ),
            text(
                "controller.listener.names",
                "CONTROLLER",
                "Name of the listener for raft, heartbeats and node-to-node HTTP.",
            ),
            number(
                "socket.request.max.bytes",
                "104857600",
                1024,
                INT,
                "Bytes; largest Produce request accepted. Any other may have 1 MiB.",
            ),
            number("max.connections", "2147483647", 1, INT, "Connections per node, all Kafka listeners together."),
            number("connections.max.idle.ms", "600000", 1, LONG, "ms; an idle client connection is closed after this."),
            number(
                "num.network.threads",
                "",
                1,
                1024,
                "Worker threads of the data plane. Default: one for two cores, at most 4.",
            ),
        ],
    },
    Group {
        title: "Admin API over HTTP",
        keys: &[
            text(
                "http.listeners",
                "http://127.0.0.1:8082",
                "Address of the admin API. Beyond loopback it needs http.auth.mode to be set.",
            ),
            text("http.advertised.url", "", "URL used in links and told to other nodes. Default: the listener."),
            one_of(
                "http.auth.mode",
                "",
                &["none"],
                "Who may call the admin API. none: anybody who reaches it. Default: none, on loopback only.",
            ),
            number(
                "ready.in.sync.max.wait.ms",
                "600000",
                0,
                LONG,
                "ms; /health/ready?level=in_sync stops waiting for replicas after this.",
            ),
            one_of(
                "metrics.partition.level",
                "leader",
                &["summary", "leader", "full"],
                "Which partitions /metrics shows: none, those led here, all hosted here.",
            ),
        ],
    },
    Group {
        title: "Metadata quorum",
        keys: &[
            text(
                "controller.quorum.voters",
                "",
                "id@host:port of each voter's controller listener, comma separated. Used to form the cluster.\nDefault: this node alone.",
            ),
            text(
                "controller.quorum.bootstrap.servers",
                "",
                "host:port of some nodes' controller listeners, by which a node that is none of the first voters finds the cluster.",
            ),
            number(
                "controller.quorum.election.timeout.ms",
                "600",
                300,
                60_000,
                "ms; upper bound of the raft election timeout, the lower is half. Shorter finds a dead leader sooner.",
            ),
            number(
                "broker.heartbeat.interval.ms",
                "2000",
                50,
                600_000,
                "ms; how often a broker reports to the raft leader.",
            ),
            number(
                "broker.session.timeout.ms",
                "9000",
                100,
                600_000,
                "ms; a silent broker is fenced after this. Must be more than twice the heartbeat interval.",
            ),
            number(
                "initial.broker.registration.timeout.ms",
                "60000",
                1,
                LONG,
                "ms; after this a node without a quorum says so loudly. It stays up and goes on trying.",
            ),
        ],
    },
    Group {
        title: "Replication",
        keys: &[
            number(
                "replica.lag.time.max.ms",
                "30000",
                10,
                LONG,
                "ms; a follower that has not caught up for this long leaves the in-sync replicas.",
            ),
            number("replica.fetch.max.bytes", "1048576", 1, INT, "Bytes per partition in one answer to a follower."),
            number("replica.fetch.response.max.bytes", "10485760", 1, INT, "Bytes of one answer to a follower."),
            number("replica.fetch.wait.max.ms", "500", 1, INT, "ms; how long a leader may hold an empty answer."),
            number("replica.fetch.min.bytes", "1", 1, INT, "Bytes that end the wait."),
            number(
                "replica.fetch.backoff.ms",
                "1000",
                1,
                INT,
                "ms; longest pause after a failed fetch of a partition.",
            ),
            number("num.replica.fetchers", "1", 1, 64, "Fetch sessions per leader, each with its own partitions."),
            number(
                "replica.high.watermark.checkpoint.interval.ms",
                "5000",
                1,
                LONG,
                "ms; how often the high watermarks are written down.",
            ),
            flag(
                "unclean.leader.election.enable",
                "false",
                "Whether a replica outside the in-sync set may lead when no other can: available, but records are lost.",
            ),
            number(
                "min.insync.replicas",
                "",
                1,
                INT,
                "Replicas that must hold a record before acks=all is answered. Default: 2 where the replication factor is 3\nor more, otherwise 1.",
            ),
            number(
                "default.replication.factor",
                "3",
                1,
                32_767,
                "Replicas of a topic created without a number; capped at the brokers present, and the answer says so.",
            ),
            flag("auto.leader.rebalance.enable", "true", "Whether leadership goes back to the preferred replica."),
            number("leader.imbalance.check.interval.seconds", "300", 1, LONG, "s; how often that is looked at."),
            flag("controlled.shutdown.enable", "true", "Whether a stopping node moves its leaders first."),
        ],
    },
    Group {
        title: "Topics",
        keys: &[
            flag("auto.create.topics.enable", "false", "Whether asking for an unknown topic creates it."),
            number("num.partitions", "1", 1, INT, "Partitions of a topic created without a number."),
            flag("delete.topic.enable", "true", "Whether topics may be deleted."),
            number("message.max.bytes", "1048588", 0, INT, "Bytes; largest record batch."),
        ],
    },
    Group {
        title: "Log",
        keys: &[
            number("log.segment.bytes", "1073741824", 14, INT, "Bytes of one segment file."),
            number("log.roll.ms", "", 1, LONG, "ms; a segment is closed after this. Before log.roll.hours."),
            number("log.roll.hours", "168", 1, INT, "h"),
            number(
                "log.roll.jitter.ms",
                "",
                0,
                LONG,
                "ms taken at random off log.roll.ms. Before log.roll.jitter.hours.",
            ),
            number("log.roll.jitter.hours", "0", 0, INT, "h"),
            number(
                "log.retention.ms",
                "",
                -1,
                LONG,
                "ms; older segments are deleted; -1: never. Before minutes and hours.",
            ),
            number("log.retention.minutes", "", -1, INT, "min; before hours."),
            number("log.retention.hours", "168", -1, INT, "h"),
            number("log.retention.bytes", "-1", -1, LONG, "Bytes kept per partition; -1: no limit."),
            number("log.retention.check.interval.ms", "300000", 1, LONG, "ms between looks for what may go."),
            one_of(
                "log.cleanup.policy",
                "delete",
                &["delete", "compact", "delete,compact", "compact,delete"],
                "Whether old segments are deleted by age and size, or only the newest record of each key is kept, or both.",
            ),
            number(
                "log.cleaner.backoff.ms",
                "15000",
                0,
                LONG,
                "ms between looks for a log to compact, once none was worth it.",
            ),
            number(
                "log.cleaner.dedupe.buffer.size",
                "134217728",
                1024,
                LONG,
                "Bytes for the keys of the log that is compacted, 25 a key; with more of them it takes several turns.",
            ),
            number(
                "log.flush.interval.messages",
                "9223372036854775807",
                1,
                LONG,
                "Records after which the log is synced to disk. 1: a record is acknowledged only when it is on disk.",
            ),
            number("log.flush.interval.ms", "", 0, LONG, "ms after which it is synced. Default: left to the kernel."),
            number("log.index.interval.bytes", "4096", 0, INT, "Bytes between index entries."),
            number("log.index.size.max.bytes", "10485760", 4, INT, "Bytes of one index file."),
            flag("log.preallocate", "false", "Whether a segment takes its whole size when it is created."),
            number(
                "log.segment.delete.delay.ms",
                "60000",
                0,
                LONG,
                "ms between dropping a segment and removing its file.",
            ),
            one_of(
                "log.message.timestamp.type",
                "CreateTime",
                &["CreateTime", "LogAppendTime"],
                "Whose clock is in records: the producer's or the leader's.",
            ),
            number(
                "log.message.timestamp.before.max.ms",
                "9223372036854775807",
                0,
                LONG,
                "ms; how far in the past a record's time may lie.",
            ),
            number(
                "log.message.timestamp.after.max.ms",
                "3600000",
                0,
                LONG,
                "ms; how far in the future a record's time may lie.",
            ),
            one_of(
                "compression.type",
                "producer",
                &["producer"],
                "What a broker does with compressed batches: keeps them as they came.",
            ),
            number("fetch.max.bytes", "57671680", 1024, INT, "Bytes of one answer to a consumer."),
            number(
                "max.incremental.fetch.session.cache.slots",
                "1000",
                0,
                INT,
                "Fetch sessions remembered for consumers.",
            ),
            number(
                "producer.id.expiration.ms",
                "86400000",
                1,
                LONG,
                "ms; an idempotent producer that is silent for this long is forgotten.",
            ),
        ],
    },
    Group {
        title: "Consumer groups",
        keys: &[
            number(
                "offsets.topic.num.partitions",
                "50",
                1,
                10_000,
                "Partitions of __consumer_offsets, which groups are spread over; in force when it is created.",
            ),
            number(
                "offsets.topic.replication.factor",
                "3",
                1,
                32_767,
                "Replicas of __consumer_offsets; as many as there are brokers when it is created.",
            ),
            number(
                "offsets.retention.minutes",
                "10080",
                1,
                INT,
                "Minutes for which the positions of a group without members are kept.",
            ),
            number("offset.metadata.max.bytes", "4096", 0, INT, "Bytes of the text beside a committed position."),
            number(
                "group.initial.rebalance.delay.ms",
                "3000",
                0,
                INT,
                "ms; how long the first member of an empty group waits for others.",
            ),
            number(
                "group.min.session.timeout.ms",
                "6000",
                1,
                INT,
                "ms; the shortest time after which a silent member may be taken for dead.",
            ),
            number("group.max.session.timeout.ms", "1800000", 1, INT, "ms; the longest."),
            number("group.max.size", "2147483647", 1, INT, "Members of one group."),
        ],
    },
    Group {
        title: "This file",
        keys: &[one_of(
            "config.unknown.keys",
            "error",
            &["error", "warn"],
            "Whether an unknown key refuses to start or is only told.",
        )],
    },
];

/// Another name for a key.
pub const ALIASES: &[(&str, &str)] = &[("broker.id", "node.id"), ("log.dir", "log.dirs")];

/// The served key of this name or alias.
pub fn served(name: &str) -> Option<&'static Key> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, key)| key);
    GROUPS.iter().flat_map(|group| group.keys).find(|key| key.name == name)
}

/// Whether Kafka knows the key and nothing here does.
pub fn ignored(name: &str) -> bool {
    IGNORED.iter().any(|pattern| matches(pattern, name))
}

/// What to do instead of setting a dangerous key.
pub fn dangerous(name: &str) -> Option<&'static str> {
    DANGEROUS.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, advice)| *advice)
}

/// The known key that a typo most probably meant.
pub fn suggestion(name: &str) -> Option<&'static str> {
    let served = GROUPS.iter().flat_map(|group| group.keys).map(|key| key.name);
    let exact = IGNORED.iter().copied().filter(|pattern| !pattern.ends_with('*'));
    served
        .chain(ALIASES.iter().map(|(alias, _)| *alias))
        .chain(exact)
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 6)
        .min()
        .map(|(_, known)| known)
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(family) => name.starts_with(family),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_stands_in_two_classes() {
        for group in GROUPS {
            for key in group.keys {
                assert!(!ignored(key.name), "{} is served and ignored", key.name);
                assert!(dangerous(key.name).is_none(), "{} is served and refused", key.name);
            }
        }
        for name in IGNORED {
            assert!(dangerous(name).is_none(), "{name} is ignored and refused");
        }
    }

    #[test]
    fn what_the_quorum_lets_people_set_is_served_here_with_the_same_range() {
        use highwater_quorum::image::broker_config::{Effect, described, dynamic_keys, effect, read_only};

        for name in dynamic_keys() {
            let key = served(name).unwrap_or_else(|| panic!("{name} can be set and does nothing here"));
            if effect(name) != Some(Effect::TopicDefault) {
                assert_eq!(described(name), Some((key.kind.config_type(), key.kind.allowed())), "{name}");
            }
        }
        for key in GROUPS.iter().flat_map(|group| group.keys) {
            let classes = [effect(key.name).is_some(), read_only(key.name).is_some()];
            assert!(classes[0] != classes[1], "{} must be one: to be set on brokers, read-only: {classes:?}", key.name);
        }
    }

    #[test]
    fn typos_find_the_key_that_was_meant() {
        assert_eq!(suggestion("min.insync.replica"), Some("min.insync.replicas"));
        assert_eq!(suggestion("log.retension.ms"), Some("log.retention.ms"));
        assert_eq!(suggestion("frobnicate"), None);
    }
}
