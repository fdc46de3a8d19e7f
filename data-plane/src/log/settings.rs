//! What a log is called and how it is kept.

use std::fmt;
use std::sync::Arc;

use highwater_quorum::image::topic_config::TopicConfig;

use super::compaction::CompactionRules;

/// The name of a partition's directory: `<topic>-<partition>` (D31).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogName {
    pub topic: Arc<str>,
    /// 0 or greater.
    pub partition: i32,
}

impl LogName {
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }

    /// From the name of a directory; `None` where it is none of a log (`-delete` and `-stray` ones are not).
    pub fn parse(directory: &str) -> Option<Self> {
        let (topic, partition) = directory.rsplit_once('-')?;
        let canonical = partition == "0" || (partition.starts_with(|c: char| ('1'..='9').contains(&c)));
        let digits = partition.bytes().all(|byte| byte.is_ascii_digit());
        if topic.is_empty() || !canonical || !digits {
            return None;
        }
        partition.parse().ok().map(|partition| Self::new(topic, partition))
    }
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// How a log is kept: the topic's configuration as far as it concerns files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// `segment.bytes`
    pub segment_bytes_max: u32,
    /// `segment.ms`
    pub segment_ms: u64,
    /// `segment.jitter.ms`: each segment is rolled up to this much earlier.
    pub segment_jitter_ms: u64,
    /// `segment.index.bytes`
    pub index_bytes_max: u32,
    /// `index.interval.bytes`
    pub index_interval_bytes: u32,
    /// `message.timestamp.type` = LogAppendTime
    pub log_append_time: bool,
    /// `preallocate`
    pub preallocate: bool,
    /// `retention.ms`; `None`: for ever
    pub retention_ms: Option<u64>,
    /// `retention.bytes`; `None`: unbounded
    pub retention_bytes: Option<u64>,
    /// How it is compacted; `None`: `cleanup.policy` does not say so.
    pub compaction: Option<CompactionRules>,
    /// `producer.id.expiration.ms` of the broker
    pub producer_expiration_ms: u64,
}

impl Default for LogSettings {
    /// Kafka's defaults; for tests and for topics without settings of their own.
    fn default() -> Self {
        Self {
            segment_bytes_max: 1 << 30,
            segment_ms: 604_800_000,
            segment_jitter_ms: 0,
            index_bytes_max: 10 << 20,
            index_interval_bytes: 4096,
            log_append_time: false,
            preallocate: false,
            retention_ms: Some(604_800_000),
            retention_bytes: None,
            compaction: None,
            producer_expiration_ms: 86_400_000,
        }
    }
}

impl From<&TopicConfig> for LogSettings {
    fn from(topic: &TopicConfig) -> Self {
        Self {
            segment_bytes_max: topic.segment_bytes_max,
            // A record must be in a closed segment when it is to be cleaned at the latest.
            segment_ms: if topic.compact { topic.segment_ms.min(topic.cleanup.lag_max_ms) } else { topic.segment_ms },
            segment_jitter_ms: topic.segment_jitter_ms,
            index_bytes_max: topic.index_bytes_max,
            index_interval_bytes: topic.index_interval_bytes,
            log_append_time: topic.log_append_time,
            preallocate: topic.preallocate,
            retention_ms: topic.retention_ms.filter(|_| topic.cleanup.delete),
            retention_bytes: topic.retention_bytes.filter(|_| topic.cleanup.delete),
            compaction: topic.compact.then_some(CompactionRules {
                dirty_ratio_min: topic.cleanup.dirty_ratio_min,
                lag_min_ms: topic.cleanup.lag_min_ms,
                lag_max_ms: topic.cleanup.lag_max_ms,
                delete_retention_ms: topic.cleanup.delete_retention_ms,
            }),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_only_compacted_is_deleted_neither_by_age_nor_by_size() {
        let settings = |policy: &str| {
            let given = [("cleanup.policy", policy), ("retention.bytes", "1000"), ("max.compaction.lag.ms", "60000")];
            let given = given.map(|(key, value)| (key.to_owned(), value.to_owned()));
            LogSettings::from(&TopicConfig::parse(&given.into()).unwrap())
        };
        let compact = settings("compact");
        assert_eq!((compact.retention_ms, compact.retention_bytes), (None, None));
        assert_eq!(compact.segment_ms, 60_000, "a record is in a closed segment when it is due");
        assert_eq!(compact.compaction.map(|rules| rules.lag_max_ms), Some(60_000));
        assert_eq!(settings("compact,delete").retention_bytes, Some(1_000));
        let delete = settings("delete");
        assert_eq!((delete.retention_bytes, delete.compaction, delete.segment_ms), (Some(1_000), None, 604_800_000));
    }

    #[test]
    fn directory_names_read_back_and_others_are_refused() {
        let name = LogName::new("my-topic.a", 12);
        assert_eq!(LogName::parse(&name.to_string()), Some(name));
        assert_eq!(LogName::parse("t-0"), Some(LogName::new("t", 0)));
        for other in ["t", "-1", "t-", "t-01", "t-1.ab-delete", "t-1-stray", "t--1x", "lost+found"] {
            assert_eq!(LogName::parse(other), None, "{other}");
        }
    }
}
