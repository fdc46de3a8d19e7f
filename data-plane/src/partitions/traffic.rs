//! What goes through the replicas here, counted: per topic, and how long the disk takes. Handles are resolved once, when a
//! replica is hosted; counting is an atomic addition.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use highwater_wire::TopicId;
use metrics::{Counter, Histogram, counter, histogram};
use parking_lot::Mutex;

use crate::replication::note::Note;

/// One batch in so many is timed: reading the clock twice costs as much as all the other counting.
const TIMED: u64 = 16;

/// Of one topic, over its replicas here, since the first of them was opened.
#[derive(Debug, Default)]
pub struct TopicTraffic {
    batches_in: AtomicU64,
    bytes_in: AtomicU64,
    records_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// As [`TopicTraffic`] stands at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicCounts {
    /// Accepted from producers, as it came (compressed).
    pub bytes_in: u64,
    pub records_in: u64,
    /// Handed to consumers.
    pub bytes_out: u64,
}

impl TopicTraffic {
    /// Whether the next batch is to be timed.
    pub fn is_timed(&self) -> bool {
        self.batches_in.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED)
    }

    /// A batch of a producer was accepted.
    pub fn produced(&self, bytes: u64, records: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        self.records_in.fetch_add(records, Ordering::Relaxed);
    }

    /// Records went to a consumer.
    pub fn consumed(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    fn counts(&self) -> TopicCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TopicCounts {
            bytes_in: read(&self.bytes_in),
            records_in: read(&self.records_in),
            bytes_out: read(&self.bytes_out),
        }
    }
}

/// The counters of all replicas here.
#[derive(Debug)]
pub struct Traffic {
    topics: Mutex<HashMap<TopicId, Arc<TopicTraffic>>>,
    append: Histogram,
    fsync: Histogram,
    truncated: Counter,
    truncated_committed: Counter,
    corrupt: Counter,
    rotted: Counter,
}

impl Traffic {
    /// `dir`: the directory of the logs, as a label.
    pub fn new(dir: &str) -> Self {
        let truncated =
            |reason: &'static str| counter!("highwater_log_truncated_records_total", "reason" => reason.to_owned());
        Self {
            topics: Mutex::default(),
            append: histogram!("highwater_append_seconds", "dir" => dir.to_owned()),
            fsync: histogram!("highwater_fsync_seconds", "dir" => dir.to_owned()),
            truncated: truncated("uncommitted"),
            truncated_committed: truncated("committed"),
            corrupt: counter!("highwater_corrupt_batches_total", "from" => "leader"),
            rotted: counter!("highwater_corrupt_batches_total", "from" => "disk"),
        }
    }

    /// The counters of a topic: for a replica that is opened.
    pub fn of(&self, topic: TopicId) -> Arc<TopicTraffic> {
        self.topics.lock().entry(topic).or_default().clone()
    }

    /// Every topic with a replica here. Topics without one are forgotten.
    pub fn topics(&self) -> Vec<(TopicId, TopicCounts)> {
        let mut topics = self.topics.lock();
        topics.retain(|_, traffic| Arc::strong_count(traffic) > 1);
        topics.iter().map(|(topic, traffic)| (*topic, traffic.counts())).collect()
    }

    /// An append took this long, disk cache included.
    pub fn appended(&self, took: Duration) {
        self.append.record(took);
    }

    /// Files were forced to the disk.
    pub fn synced(&self, took: Duration) {
        self.fsync.record(took);
    }

    /// Damage on disk was met where none was known.
    pub fn rotted(&self) {
        self.rotted.increment(1);
    }

    /// What a replica has to say is counted, too.
    pub fn note(&self, note: &Note) {
        match note {
            Note::Truncated { from, to, .. } => self.truncated.increment(from.0.abs_diff(to.0)),
            Note::TruncatedBelowWatermark { from, to, high_watermark, .. } => {
                let committed = high_watermark.0.min(from.0).abs_diff(to.0);
                self.truncated_committed.increment(committed);
                self.truncated.increment(from.0.abs_diff(to.0).saturating_sub(committed));
            }
            Note::CorruptFetch { .. } => self.corrupt.increment(1),
            Note::BecameLeader { .. }
            | Note::BecameFollower { .. }
            | Note::BecameIdle { .. }
            | Note::IsrChanged { .. }
            | Note::IsrProposed { .. }
            | Note::IsrRefused { .. }
            | Note::StorageFailed { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_counted_over_its_replicas_and_forgotten_with_the_last() {
        let traffic = Traffic::new("d");
        let topic = TopicId::random();
        let (one, two) = (traffic.of(topic), traffic.of(topic));
        one.produced(100, 3);
        two.produced(50, 1);
        two.consumed(70);
        drop(one);
        let counts = TopicCounts { bytes_in: 150, records_in: 4, bytes_out: 70 };
        assert_eq!(traffic.topics(), [(topic, counts)]);
        drop(two);
        assert_eq!(traffic.topics(), []);
    }

    #[test]
    fn one_batch_in_sixteen_is_timed() {
        let traffic = TopicTraffic::default();
        assert_eq!((0..160).filter(|_| traffic.is_timed()).count(), 10);
    }
}
