//! The positions that a group committed.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::group_records::{GroupKey, OffsetValue};
use highwater_wire::{Millis, Timestamp};

use super::{GroupRecord, Value};

/// By topic and partition. Only what is in the log is here: a commit that is on its way is not seen (R288).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offsets {
    topics: BTreeMap<String, BTreeMap<i32, OffsetValue>>,
}

impl Offsets {
    pub fn get(&self, topic: &str, partition: i32) -> Option<&OffsetValue> {
        self.topics.get(topic)?.get(&partition)
    }

    /// In the order of topics and partitions.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i32, &OffsetValue)> {
        self.topics.iter().flat_map(|(topic, partitions)| {
            partitions.iter().map(move |(partition, value)| (topic.as_str(), *partition, value))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// A record of the log; without a value it takes the position back.
    pub fn apply(&mut self, topic: String, partition: i32, value: Option<OffsetValue>) {
        match value {
            Some(value) => {
                self.topics.entry(topic).or_default().insert(partition, value);
            }
            None => {
                if let Some(partitions) = self.topics.get_mut(&topic) {
                    partitions.remove(&partition);
                    if partitions.is_empty() {
                        self.topics.remove(&topic);
                    }
                }
            }
        }
    }

    /// What is to be forgotten (R292, KIP-211): positions older than `retention`, counted from when the group became empty
    /// (`empty_since`) if that was later. Of a group with members only topics that nobody has `subscribed` to; where that
    /// is not known, nothing.
    pub fn expired(
        &self,
        now: Timestamp,
        retention: Millis,
        empty_since: Option<Timestamp>,
        subscribed: Option<&BTreeSet<String>>,
    ) -> Vec<(String, i32)> {
        let retention = i64::try_from(retention.0).unwrap_or(i64::MAX);
        let is_due = |topic: &str, value: &OffsetValue| {
            let from = match (empty_since, subscribed) {
                (Some(since), _) => since.0.max(value.committed_at.0),
                (None, Some(subscribed)) if !subscribed.contains(topic) => value.committed_at.0,
                (None, _) => return false,
            };
            value.expires_at.map_or(from.saturating_add(retention), |at| at.0) <= now.0
        };
        self.iter()
            .filter(|(topic, _, value)| is_due(topic, value))
            .map(|(topic, partition, _)| (topic.to_owned(), partition))
            .collect()
    }
}

/// The record of a commit; without a value, of its being taken back.
pub fn record(group: &str, topic: &str, partition: i32, value: Option<OffsetValue>) -> GroupRecord {
    let key = GroupKey::Offset { group: group.to_owned(), topic: topic.to_owned(), partition };
    GroupRecord { key, value: value.map(Value::Offset) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(offset: i64, committed_at: i64) -> OffsetValue {
        OffsetValue {
            offset,
            leader_epoch: -1,
            metadata: String::new(),
            committed_at: Timestamp(committed_at),
            expires_at: None,
        }
    }

    #[test]
    fn what_is_taken_back_is_gone() {
        let mut offsets = Offsets::default();
        offsets.apply("t".to_owned(), 1, Some(value(5, 0)));
        assert_eq!(offsets.get("t", 1).map(|value| value.offset), Some(5));
        offsets.apply("t".to_owned(), 2, None);
        offsets.apply("t".to_owned(), 1, None);
        assert!(offsets.is_empty());
    }

    #[test]
    fn positions_expire_when_nobody_has_needed_them_for_long_enough() {
        let mut offsets = Offsets::default();
        offsets.apply("old".to_owned(), 0, Some(value(1, 100)));
        offsets.apply("new".to_owned(), 0, Some(value(1, 900)));
        let retention = Millis(500);
        let expired = |now, empty_since, subscribed: Option<&[&str]>| {
            let subscribed = subscribed.map(|topics| topics.iter().map(|topic| (*topic).to_owned()).collect());
            let expired = offsets.expired(Timestamp(now), retention, empty_since, subscribed.as_ref());
            expired.into_iter().map(|(topic, _)| topic).collect::<Vec<_>>()
        };
        assert_eq!(expired(1_000, Some(Timestamp(0)), None), ["old"]);
        assert!(expired(1_000, Some(Timestamp(501)), None).is_empty(), "it was in use until then");
        assert_eq!(expired(1_400, Some(Timestamp(0)), None), ["new", "old"]);
        assert!(expired(9_000, None, None).is_empty(), "nobody knows what its members read");
        assert_eq!(expired(9_000, None, Some(&["new"])), ["old"]);
    }
}
