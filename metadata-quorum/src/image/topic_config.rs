//! Topic level configuration: Kafka's names and our fields (replication.md §24, operators.md §5).

use serde::{Deserialize, Serialize};

/// The configuration of a topic in force: every key has a value; `given` says which were set on the topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicConfig {
    /// `min.insync.replicas`
    pub min_isr: usize,
    /// `unclean.leader.election.enable`
    pub unclean_election: bool,
    /// `max.message.bytes`: of one batch, header included
    pub message_bytes_max: u32,
    /// `retention.ms`; `None`: for ever
    pub retention_ms: Option<u64>,
    /// `retention.bytes`; `None`: unbounded
    pub retention_bytes: Option<u64>,
    /// `segment.bytes`
    pub segment_bytes_max: u32,
    /// `segment.ms`
    pub segment_ms: u64,
    /// `segment.jitter.ms`
    pub segment_jitter_ms: u64,
    /// `segment.index.bytes`
    pub index_bytes_max: u32,
    /// `index.interval.bytes`
    pub index_interval_bytes: u32,
    /// `cleanup.policy`: only `delete` until compaction exists
    pub compact: bool,
    /// `compression.type`: only `producer` until re-encoding exists
    pub compression: String,
    /// `message.timestamp.type` = LogAppendTime
    pub log_append_time: bool,
    /// `message.timestamp.before.max.ms`
    pub timestamp_before_max_ms: u64,
    /// `message.timestamp.after.max.ms`
    pub timestamp_after_max_ms: u64,
    /// `flush.messages`; `u64::MAX`: never by count
    pub flush_messages: u64,
    /// `flush.ms`; `u64::MAX`: never by time
    pub flush_ms: u64,
    /// `file.delete.delay.ms`
    pub file_delete_delay_ms: u64,
    /// `preallocate`
    pub preallocate: bool,
    /// Keys set on the topic, as given, sorted.
    pub given: std::collections::BTreeMap<String, String>,
}
