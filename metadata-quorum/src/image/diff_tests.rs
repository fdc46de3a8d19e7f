//! What a broker has to do after an image changed, by example.

use std::collections::BTreeMap;

use highwater_wire::{BrokerId, DirectoryId, LeaderEpoch, PartitionEpoch, Timestamp, TopicId};

use super::*;
use crate::image::{Change, LeaderRecovery};

const HERE: BrokerId = BrokerId(1);

fn topic_id(n: u8) -> TopicId {
    TopicId::from_bytes([n; 16])
}

fn state(replicas: &[i32], leader: i32, leader_epoch: i32, partition_epoch: i32) -> PartitionState {
    let replicas: Vec<_> = replicas.iter().copied().map(BrokerId).collect();
    PartitionState {
        directories: vec![DirectoryId::from_bytes([7; 16]); replicas.len()],
        isr: replicas.clone(),
        replicas,
        adding: vec![],
        removing: vec![],
        elr: vec![],
        last_known_elr: vec![],
        leader: Some(BrokerId(leader)),
        leader_epoch: LeaderEpoch(leader_epoch),
        partition_epoch: PartitionEpoch(partition_epoch),
        recovery: LeaderRecovery::Recovered,
        last_known_watermark: None,
        leader_since: Timestamp(0),
    }
}

fn with(image: &MetadataImage, topic: u8, name: &str, states: &[PartitionState]) -> MetadataImage {
    let mut image = image.clone();
    let id = topic_id(topic);
    let config = Arc::new(TopicConfig::built_in());
    image.apply(&Change::Topic { id, name: name.into(), created: Timestamp(0), config });
    for (number, state) in (0..).zip(states) {
        image.apply(&Change::Partition(TopicPartition::new(id, number), Arc::new(state.clone())));
    }
    image
}

fn numbers(list: &[LocalPartition]) -> Vec<i32> {
    list.iter().map(|local| local.at.partition).collect()
}

#[test]
fn an_empty_image_before_gives_every_hosted_partition() {
    let states = [state(&[1, 2], 1, 0, 0), state(&[2, 1], 2, 0, 0), state(&[2, 3], 2, 0, 0)];
    let new = with(&MetadataImage::default(), 1, "a", &states);
    let changes = local_changes(&MetadataImage::default(), &new, HERE);
    assert_eq!((numbers(&changes.lead), numbers(&changes.follow)), (vec![0], vec![1]));
    assert!(changes.stop.is_empty() && changes.refreshed.is_empty());
    assert!(local_changes(&new, &new, HERE).is_empty());
}

#[test]
fn a_leader_that_went_and_came_back_in_one_batch_is_a_new_leader() {
    let old = with(&MetadataImage::default(), 1, "a", &[state(&[1, 2], 1, 3, 5)]);
    let new = with(&old, 1, "a", &[state(&[1, 2], 1, 5, 7)]);
    let changes = local_changes(&old, &new, HERE);
    assert_eq!(numbers(&changes.lead), vec![0]);
    assert!(changes.refreshed.is_empty());
}

#[test]
fn a_changed_isr_or_configuration_refreshes_and_restarts_nothing() {
    let old = with(&MetadataImage::default(), 1, "a", &[state(&[1, 2], 1, 3, 5), state(&[2, 1], 2, 0, 0)]);
    let new = with(&old, 1, "a", &[state(&[1, 2], 1, 3, 6), state(&[2, 1], 2, 0, 0)]);
    let changes = local_changes(&old, &new, HERE);
    assert_eq!((numbers(&changes.refreshed), changes.lead.len(), changes.follow.len()), (vec![0], 0, 0));

    let mut configured = old.clone();
    let given = BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]);
    let config = Arc::new(TopicConfig::parse(&given).unwrap());
    configured.apply(&Change::Topic { id: topic_id(1), name: "a".into(), created: Timestamp(0), config });
    assert_eq!(numbers(&local_changes(&old, &configured, HERE).refreshed), vec![0, 1]);
}

#[test]
fn a_topic_created_again_stops_the_old_replica_and_starts_a_new_one() {
    // R260: the name is only a lookup; the id says which replica is meant.
    let old = with(&MetadataImage::default(), 1, "a", &[state(&[1, 2], 1, 3, 5)]);
    let mut new = old.clone();
    new.apply(&Change::TopicRemoved(topic_id(1)));
    let new = with(&new, 2, "a", &[state(&[1, 2], 1, 0, 0)]);
    let changes = local_changes(&old, &new, HERE);
    assert_eq!(changes.stop.len(), 1);
    assert_eq!((changes.stop[0].at.topic, changes.stop[0].why), (topic_id(1), StopReason::TopicDeleted));
    assert_eq!(changes.lead[0].at.topic, topic_id(2));
    assert_eq!(new.topic_named("a").map(|topic| topic.id), Some(topic_id(2)));
}

#[test]
fn a_replica_taken_from_the_assignment_is_stopped() {
    let old = with(&MetadataImage::default(), 1, "a", &[state(&[1, 2], 1, 3, 5)]);
    let new = with(&old, 1, "a", &[state(&[2, 3], 2, 4, 6)]);
    let changes = local_changes(&old, &new, HERE);
    assert_eq!(changes.stop[0].why, StopReason::Unassigned);
    assert!(changes.lead.is_empty() && changes.follow.is_empty());
}
