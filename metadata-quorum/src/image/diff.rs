//! What a new image asks of the replicas hosted by one broker. Compares end states only, since images may skip steps
//! (R226): a topic deleted and created again, a leader that went and came back, a replica removed and added again.

use std::sync::Arc;

use highwater_wire::{BrokerId, TopicPartition};

use super::{MetadataImage, PartitionState, Topic, TopicConfig};

/// A hosted partition as the new image has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPartition {
    pub at: TopicPartition,
    pub topic_name: Arc<str>,
    pub state: Arc<PartitionState>,
    pub config: Arc<TopicConfig>,
}

/// A partition that is hosted here no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoppedPartition {
    pub at: TopicPartition,
    pub topic_name: Arc<str>,
    pub why: StopReason,
}

/// Why a replica goes. In both cases its directory goes too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The topic of this id is gone (another topic may bear its name by now).
    TopicDeleted,
    /// The assignment no longer names this broker.
    Unassigned,
}

/// The difference between two images for one broker; carry it out in the order of the fields (R227).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalChanges {
    pub stop: Vec<StoppedPartition>,
    /// This broker leads, and the replica is new here or the leader epoch rose (R139).
    pub lead: Vec<LocalPartition>,
    /// It does not lead (perhaps nobody does), and the replica is new here or the leader epoch rose.
    pub follow: Vec<LocalPartition>,
    /// Same leader epoch, other ISR, ELR, recovery mark, assignment or configuration: the role goes on (R144).
    pub refreshed: Vec<LocalPartition>,
    /// Brokers that came, went, changed state, epoch or address. Whoever weighs peers must look again, though nothing
    /// of the partition itself changed (R119, R145).
    pub brokers: Vec<BrokerId>,
}

impl LocalChanges {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What `broker` has to do to get from `old` to `new`; an empty image as `old` gives everything.
///
/// Topics that both images share cost one comparison of pointers.
pub fn local_changes(old: &MetadataImage, new: &MetadataImage, broker: BrokerId) -> LocalChanges {
    let mut changes = LocalChanges { brokers: changed_brokers(old, new), ..LocalChanges::default() };
    for topic in old.topics.values().filter(|topic| !new.topics.contains_key(&topic.id)) {
        for (number, state) in (0i32..).zip(&topic.partitions) {
            if state.replicas.contains(&broker) {
                let at = TopicPartition::new(topic.id, number);
                let topic_name = topic.name.clone();
                changes.stop.push(StoppedPartition { at, topic_name, why: StopReason::TopicDeleted });
            }
        }
    }
    for topic in new.topics.values() {
        match old.topics.get(&topic.id) {
            Some(before) if Arc::ptr_eq(before, topic) => {}
            before => topic_changes(before.map(Arc::as_ref), topic, broker, &mut changes),
        }
    }
    changes
}

fn topic_changes(old: Option<&Topic>, new: &Topic, broker: BrokerId, changes: &mut LocalChanges) {
    let same_config = old.is_some_and(|old| Arc::ptr_eq(&old.config, &new.config) || old.config == new.config);
    for (number, state) in (0i32..).zip(&new.partitions) {
        let before = old.and_then(|old| old.partitions.get(number as usize));
        if same_config && before.is_some_and(|before| Arc::ptr_eq(before, state)) {
            continue;
        }
        let before = before.filter(|before| before.replicas.contains(&broker));
        let at = TopicPartition::new(new.id, number);
        if !state.replicas.contains(&broker) {
            if before.is_some() {
                let topic_name = new.name.clone();
                changes.stop.push(StoppedPartition { at, topic_name, why: StopReason::Unassigned });
            }
            continue;
        }
        let list = match before {
            Some(before) if before.leader_epoch == state.leader_epoch => {
                if same_config && before.partition_epoch == state.partition_epoch {
                    continue;
                }
                &mut changes.refreshed
            }
            _ if state.leader == Some(broker) => &mut changes.lead,
            _ => &mut changes.follow,
        };
        let (topic_name, state, config) = (new.name.clone(), state.clone(), new.config.clone());
        list.push(LocalPartition { at, topic_name, state, config });
    }
}

fn changed_brokers(old: &MetadataImage, new: &MetadataImage) -> Vec<BrokerId> {
    let gone = old.brokers.keys().filter(|id| !new.brokers.contains_key(*id)).copied();
    let changed = new.brokers.iter().filter(|(id, broker)| {
        old.brokers.get(*id).is_none_or(|before| !Arc::ptr_eq(before, broker) && before != *broker)
    });
    let mut ids: Vec<_> = gone.chain(changed.map(|(id, _)| *id)).collect();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
