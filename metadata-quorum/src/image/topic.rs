//! A topic and the state of its partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_wire::{BrokerId, DirectoryId, LeaderEpoch, Offset, PartitionEpoch, Timestamp, TopicId};
use serde::{Deserialize, Serialize};

use super::topic_config::TopicConfig;

/// One creation of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    pub id: TopicId,
    pub name: Arc<str>,
    pub created: Timestamp,
    pub config: Arc<TopicConfig>,
    /// Topic level keys that came from the node that created the topic, where it differs from what is built in. Weaker
    /// than what is set on the topic or, while they run, on all brokers. Empty for topics older than rules 3, whose
    /// inherited keys count as set on them.
    pub inherited: Arc<BTreeMap<String, Inherited>>,
    /// By partition number; shared, so that a change of one costs one.
    pub partitions: Vec<Arc<PartitionState>>,
}

/// A default that a topic took over at its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherited {
    /// In the topic key's own unit.
    pub value: String,
    /// By the node's configuration; else by our own default, which depends on the topic (D19: min ISR 2 of 3 replicas).
    pub set: bool,
}

/// Who holds, leads and may lead a partition. Changed by the controller only; every change raises `partition_epoch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    /// Assigned replicas in order: the first is the preferred leader.
    pub replicas: Vec<BrokerId>,
    /// Per replica, the directory it lies in (D15); same length as `replicas`.
    pub directories: Vec<DirectoryId>,
    pub adding: Vec<BrokerId>,
    pub removing: Vec<BrokerId>,
    /// In-sync replicas, in the order of `replicas`.
    pub isr: Vec<BrokerId>,
    /// Eligible leader replicas: left the ISR below min ISR, still complete (KIP-966).
    pub elr: Vec<BrokerId>,
    /// The last leader, kept from the moment the partition has none until the next election (R198, D30).
    pub last_known_elr: Vec<BrokerId>,
    /// `None`: nobody may lead now.
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub recovery: LeaderRecovery,
    /// What the last leader reported of its watermark before it went (D12).
    #[serde(with = "stored_report")]
    pub last_known_watermark: Option<LastReport>,
    /// When this leader epoch began, by the proposer's clock.
    pub leader_since: Timestamp,
}

/// What a leader last said of what it had committed (D12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReport {
    pub high_watermark: Offset,
    /// By its clock.
    pub reported: Timestamp,
    /// Where its log began: what lay below had been deleted, and cannot be lost. 0 in reports older than rules 4.
    pub log_start: Offset,
}

/// Persists a report as rules 1 to 3 did, which knew no log start, and behind their two cases a third one that has it.
pub(crate) mod stored_report {
    use highwater_wire::{Offset, Timestamp};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::LastReport;

    /// The first two are what postcard makes of `None` and `Some((high_watermark, reported))`.
    #[derive(Serialize, Deserialize)]
    enum Stored {
        Nothing,
        Watermark(Offset, Timestamp),
        WatermarkAndStart(Offset, Timestamp, Offset),
    }

    pub fn serialize<S: Serializer>(report: &Option<LastReport>, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = match *report {
            None => Stored::Nothing,
            Some(LastReport { high_watermark, reported, log_start: Offset::ZERO }) => {
                Stored::Watermark(high_watermark, reported)
            }
            Some(LastReport { high_watermark, reported, log_start }) => {
                Stored::WatermarkAndStart(high_watermark, reported, log_start)
            }
        };
        stored.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LastReport>, D::Error> {
        Ok(match Stored::deserialize(deserializer)? {
            Stored::Nothing => None,
            Stored::Watermark(high_watermark, reported) => {
                Some(LastReport { high_watermark, reported, log_start: Offset::ZERO })
            }
            Stored::WatermarkAndStart(high_watermark, reported, log_start) => {
                Some(LastReport { high_watermark, reported, log_start })
            }
        })
    }
}

/// Whether the leader was elected uncleanly and has not yet said that it recovered (R191).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaderRecovery {
    Recovered,
    Recovering,
}

impl PartitionState {
    /// `min.insync.replicas` capped by the number of replicas (R9).
    pub fn effective_min_isr(&self, min_isr: usize) -> usize {
        min_isr.min(self.replicas.len()).max(1)
    }

    /// Panics where S2 or the shape of S3 and S4 is broken, with the state in the message.
    pub fn check_invariants(&self) {
        let distinct = |list: &[BrokerId]| list.iter().enumerate().all(|(i, b)| !list[..i].contains(b));
        assert!(distinct(&self.replicas), "a replica twice: {self:?}");
        assert!(distinct(&self.isr) && distinct(&self.elr), "an ISR or ELR member twice: {self:?}");
        assert!(self.isr.iter().all(|b| self.replicas.contains(b)), "ISR outside replicas: {self:?}");
        assert!(self.elr.iter().all(|b| self.replicas.contains(b)), "ELR outside replicas: {self:?}");
        assert!(!self.isr.iter().any(|b| self.elr.contains(b)), "ISR meets ELR: {self:?}");
        assert!(self.leader.is_none_or(|l| self.isr.contains(&l)), "leader outside ISR: {self:?}");
        assert!(self.leader.is_none() == self.isr.is_empty(), "an ISR without a leader: {self:?}");
        assert!(self.last_known_elr.len() <= 1, "more than one last known leader: {self:?}");
        assert!(self.leader.is_none() || self.last_known_elr.is_empty(), "last known leader beside a leader: {self:?}");
        let (adding, removing) = (&self.adding, &self.removing);
        assert!(distinct(adding) && distinct(removing), "a replica added or removed twice: {self:?}");
        assert!(adding.iter().chain(removing).all(|b| self.replicas.contains(b)), "moving outside replicas: {self:?}");
        assert!(!adding.iter().any(|b| removing.contains(b)), "added and removed at once: {self:?}");
        assert!(self.leader_epoch.0 >= 0 && self.partition_epoch.0 >= self.leader_epoch.0, "epochs: {self:?}");
        assert!(self.directories.len() == self.replicas.len(), "directories and replicas differ: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Now(#[serde(with = "stored_report")] Option<LastReport>);

    #[test]
    fn a_report_is_stored_as_before_where_it_says_no_more_than_before() {
        let bytes = |value: &Option<(Offset, Timestamp)>| postcard::to_stdvec(value).unwrap();
        let report = LastReport { high_watermark: Offset(70), reported: Timestamp(9), log_start: Offset::ZERO };
        for (before, now) in [(None, Now(None)), (Some((Offset(70), Timestamp(9))), Now(Some(report)))] {
            assert_eq!(postcard::to_stdvec(&now).unwrap(), bytes(&before));
            assert_eq!(postcard::from_bytes::<Now>(&bytes(&before)).unwrap(), now);
        }
        let now = Now(Some(LastReport { log_start: Offset(66), ..report }));
        let json = serde_json::to_string(&now).unwrap();
        assert_eq!(postcard::from_bytes::<Now>(&postcard::to_stdvec(&now).unwrap()).unwrap(), now);
        assert_eq!(serde_json::from_str::<Now>(&json).unwrap(), now);
    }
}
