//! The table of topic keys: name, rule, default, field.

use super::TopicConfig;

/// The type of a key as Kafka's DescribeConfigs names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ConfigType {
    Boolean,
    String,
    Int,
    Long,
    Double,
    List,
}

impl ConfigType {
    /// Kafka's number for it (DescribeConfigs v3+).
    pub fn code(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::String => 2,
            Self::Int => 3,
            Self::Long => 5,
            Self::Double => 6,
            Self::List => 7,
        }
    }

    /// Kafka's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boolean => "BOOLEAN",
            Self::String => "STRING",
            Self::Int => "INT",
            Self::Long => "LONG",
            Self::Double => "DOUBLE",
            Self::List => "LIST",
        }
    }
}

/// One key.
pub(in crate::image) struct Key {
    pub name: &'static str,
    pub rule: Rule,
    pub default: &'static str,
    pub doc: &'static str,
    /// Puts a value that its rule has read into its field.
    pub put: fn(&mut TopicConfig, &Value),
}

impl Key {
    pub fn named(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}

/// Which texts are values of a key.
pub(in crate::image) enum Rule {
    Flag,
    /// A number of 32 bits from this on.
    Int(i64),
    /// A number of 64 bits from this on.
    Long(i64),
    /// A number between the two, both included.
    Range(i64, i64),
    /// A fraction from 0 to 1.
    Ratio,
    /// A word Kafka knows; only the first is served so far where `others_served` is false.
    Word {
        words: &'static [&'static str],
        others_served: bool,
        list: bool,
    },
}

/// A text that its rule has read.
pub(in crate::image) enum Value {
    Flag(bool),
    Number(i64),
    Word(String),
}

impl Value {
    fn flag(&self) -> bool {
        matches!(self, Self::Flag(true))
    }

    fn number(&self) -> i64 {
        if let Self::Number(number) = self { *number } else { 0 }
    }

    /// Rules keep numbers of these keys at 0 or above.
    fn whole(&self) -> u64 {
        self.number().max(0).unsigned_abs()
    }

    fn whole_32(&self) -> u32 {
        u32::try_from(self.whole()).unwrap_or(u32::MAX)
    }

    /// −1: unbounded.
    fn bounded(&self) -> Option<u64> {
        u64::try_from(self.number()).ok()
    }

    /// Kafka's largest number stands for "never".
    fn or_never(&self) -> u64 {
        if self.number() == i64::MAX { u64::MAX } else { self.whole() }
    }

    /// Of a [`Rule::Ratio`].
    fn millionths(&self) -> u32 {
        self.word().parse::<f64>().map_or(0, |ratio| (ratio * 1e6).round() as u32)
    }

    fn word(&self) -> &str {
        if let Self::Word(word) = self { word } else { "" }
    }
}

impl Rule {
    /// The value of a text, or what it must be.
    pub fn read(&self, text: &str) -> Result<Value, String> {
        let must_be = || format!("must be {}", self.allowed());
        let text = text.trim();
        match self {
            Self::Flag if text.eq_ignore_ascii_case("true") => Ok(Value::Flag(true)),
            Self::Flag if text.eq_ignore_ascii_case("false") => Ok(Value::Flag(false)),
            Self::Flag => Err(must_be()),
            Self::Int(min) => match text.parse::<i32>() {
                Ok(number) if i64::from(number) >= *min => Ok(Value::Number(number.into())),
                _ => Err(must_be()),
            },
            Self::Long(min) => match text.parse::<i64>() {
                Ok(number) if number >= *min => Ok(Value::Number(number)),
                _ => Err(must_be()),
            },
            Self::Range(min, max) => match text.parse::<i64>() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(Value::Number(number)),
                _ => Err(must_be()),
            },
            Self::Ratio => match text.parse::<f64>() {
                Ok(number) if (0.0..=1.0).contains(&number) => Ok(Value::Word(text.to_owned())),
                _ => Err(must_be()),
            },
            Self::Word { words, others_served, list } => {
                let mut parts = text.split(',').map(str::trim);
                if (!list && text.contains(',')) || parts.any(|part| !words.contains(&part)) {
                    return Err(must_be());
                }
                if !others_served && text != words[0] {
                    return Err(format!("is not served yet, only {:?} is", words[0]));
                }
                Ok(Value::Word(text.to_owned()))
            }
        }
    }

    /// What would do, to be read after "must be".
    pub fn allowed(&self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Int(min) => format!("a whole number from {min} to {}", i32::MAX),
            Self::Long(min) => format!("a whole number from {min} to {}", i64::MAX),
            Self::Range(min, max) => format!("a whole number from {min} to {max}"),
            Self::Ratio => "a number from 0 to 1".to_owned(),
            Self::Word { words, others_served: true, list: true } => {
                format!("{}, or several of them separated by commas", words.join(" or "))
            }
            Self::Word { words, others_served: true, .. } => words.join(" or "),
            Self::Word { words, .. } => words[0].to_owned(),
        }
    }

    pub fn kind(&self) -> ConfigType {
        match self {
            Self::Flag => ConfigType::Boolean,
            Self::Int(_) | Self::Range(..) => ConfigType::Int,
            Self::Long(_) => ConfigType::Long,
            Self::Ratio => ConfigType::Double,
            Self::Word { list: true, .. } => ConfigType::List,
            Self::Word { .. } => ConfigType::String,
        }
    }
}

/// Kafka's words for `compression.type`; only the first is served.
const CODECS: &[&str] = &["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"];

/// Every key that is served.
pub(in crate::image) const KEYS: &[Key] = &[
    Key {
        name: "min.insync.replicas",
        rule: Rule::Int(1),
        default: "1",
        doc: "Replicas that must be in sync for a write with acks=all; capped at the number of replicas.",
        put: |config, value| config.min_isr = value.whole_32() as usize,
    },
    Key {
        name: "unclean.leader.election.enable",
        rule: Rule::Flag,
        default: "false",
        doc: "Whether a replica that may lack acknowledged records may lead when nobody else can.",
        put: |config, value| config.unclean_election = value.flag(),
    },
    Key {
        name: "max.message.bytes",
        rule: Rule::Int(0),
        default: "1048588",
        doc: "Largest record batch, header included, as compressed by the producer.",
        put: |config, value| config.message_bytes_max = value.whole_32(),
    },
    Key {
        name: "retention.ms",
        rule: Rule::Long(-1),
        default: "604800000",
        doc: "Age at which a segment may be deleted; -1: never by age.",
        put: |config, value| config.retention_ms = value.bounded(),
    },
    Key {
        name: "retention.bytes",
        rule: Rule::Long(-1),
        default: "-1",
        doc: "Size of a partition above which its oldest segments are deleted; -1: never by size.",
        put: |config, value| config.retention_bytes = value.bounded(),
    },
    Key {
        name: "segment.bytes",
        rule: Rule::Int(1024),
        default: "1073741824",
        doc: "Largest segment file.",
        put: |config, value| config.segment_bytes_max = value.whole_32(),
    },
    Key {
        name: "segment.ms",
        rule: Rule::Long(1),
        default: "604800000",
        doc: "Age at which a segment is closed though it is not full.",
        put: |config, value| config.segment_ms = value.or_never(),
    },
    Key {
        name: "segment.jitter.ms",
        rule: Rule::Long(0),
        default: "0",
        doc: "Largest random span subtracted from segment.ms, so that not all segments are closed at once.",
        put: |config, value| config.segment_jitter_ms = value.whole(),
    },
    Key {
        name: "segment.index.bytes",
        rule: Rule::Int(4),
        default: "10485760",
        doc: "Largest index file of a segment.",
        put: |config, value| config.index_bytes_max = value.whole_32(),
    },
    Key {
        name: "index.interval.bytes",
        rule: Rule::Int(0),
        default: "4096",
        doc: "Bytes of records between two entries of the index.",
        put: |config, value| config.index_interval_bytes = value.whole_32(),
    },
    Key {
        name: "cleanup.policy",
        rule: Rule::Word { words: &["delete", "compact"], others_served: true, list: true },
        default: "delete",
        doc: "Whether old segments are deleted by age and size, or of each key only the newest record is kept, or both.",
        put: |config, value| {
            let words = || value.word().split(',').map(str::trim);
            config.cleanup.delete = words().any(|word| word == "delete");
            config.compact = words().any(|word| word == "compact");
        },
    },
    Key {
        name: "compression.type",
        rule: Rule::Word { words: CODECS, others_served: false, list: false },
        default: "producer",
        doc: "Codec of stored batches; they are kept as the producer sent them, encoding anew is not served yet.",
        put: |config, value| value.word().clone_into(&mut config.compression),
    },
    Key {
        name: "message.timestamp.type",
        rule: Rule::Word { words: &["CreateTime", "LogAppendTime"], others_served: true, list: false },
        default: "CreateTime",
        doc: "Whose clock stamps a record: the producer's or the leader's.",
        put: |config, value| config.log_append_time = value.word() == "LogAppendTime",
    },
    Key {
        name: "message.timestamp.before.max.ms",
        rule: Rule::Long(0),
        default: "9223372036854775807",
        doc: "How far a record's timestamp may lie behind the leader's clock.",
        put: |config, value| config.timestamp_before_max_ms = value.or_never(),
    },
    Key {
        name: "message.timestamp.after.max.ms",
        rule: Rule::Long(0),
        default: "3600000",
        doc: "How far a record's timestamp may lie before the leader's clock.",
        put: |config, value| config.timestamp_after_max_ms = value.or_never(),
    },
    Key {
        name: "flush.messages",
        rule: Rule::Long(1),
        default: "9223372036854775807",
        doc: "Records after which the log is forced to the disk; 1: an acknowledged record is on the disk.",
        put: |config, value| config.flush_messages = value.or_never(),
    },
    Key {
        name: "flush.ms",
        rule: Rule::Long(0),
        default: "9223372036854775807",
        doc: "Time after which the log is forced to the disk.",
        put: |config, value| config.flush_ms = value.or_never(),
    },
    Key {
        name: "file.delete.delay.ms",
        rule: Rule::Long(0),
        default: "60000",
        doc: "How long a deleted file stays on the disk.",
        put: |config, value| config.file_delete_delay_ms = value.whole(),
    },
    Key {
        name: "preallocate",
        rule: Rule::Flag,
        default: "false",
        doc: "Whether the file of a new segment takes its full size at once.",
        put: |config, value| config.preallocate = value.flag(),
    },
    Key {
        name: "delete.retention.ms",
        rule: Rule::Long(0),
        default: "86400000",
        doc: "How long compaction keeps a tombstone that it has met; without effect under cleanup.policy=delete.",
        put: |config, value| config.cleanup.delete_retention_ms = value.whole(),
    },
    Key {
        name: "min.compaction.lag.ms",
        rule: Rule::Long(0),
        default: "0",
        doc: "Age below which a record is not compacted; without effect under cleanup.policy=delete.",
        put: |config, value| config.cleanup.lag_min_ms = value.whole(),
    },
    Key {
        name: "max.compaction.lag.ms",
        rule: Rule::Long(1),
        default: "9223372036854775807",
        doc: "Age at which a record must be compacted; without effect under cleanup.policy=delete.",
        put: |config, value| config.cleanup.lag_max_ms = value.or_never(),
    },
    Key {
        name: "min.cleanable.dirty.ratio",
        rule: Rule::Ratio,
        default: "0.5",
        doc: "Share of a log that must be dirty before it is compacted; without effect under cleanup.policy=delete.",
        put: |config, value| config.cleanup.dirty_ratio_min = value.millionths(),
    },
];

/// Topic keys of Kafka that mean something we do not do; refused by name, not taken for a misspelling.
pub(super) const NOT_SERVED: &[&str] = &[
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
    "remote.copy.disable",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
];
