//! What is remembered of each partition, and how little of it at most (D16).

use std::sync::Arc;

use highwater_wire::{BrokerId, TopicPartition};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{
    CHANGES_PER_PARTITION, Change, ChangeKind, Evidence, ExpandReason, HISTORY_WEIGHT_MAX, LeaderReason,
    PartitionChange, ShrinkReason,
};

#[test]
fn each_change_is_kept_with_its_reason_its_evidence_and_who_asked() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    let mut shrink = quorum.proposal(1, &[1]);
    shrink.why = IsrReason::Shrink(ShrinkReason::FollowerStoppedFetching);
    shrink.evidence = vec![Evidence { lag_ms: Some(30_012), ..Evidence::about(BrokerId(2)) }];
    quorum.alter(1, shrink.clone()).unwrap();
    let mut expand = quorum.proposal(1, &[1, 2]);
    expand.why = IsrReason::Expand(ExpandReason::BrokerReturned);
    quorum.alter(1, expand).unwrap();
    quorum.fence(&[1]);
    let history = quorum.image.history_of(at(1));
    let kinds: Vec<_> = history.iter().map(|change| change.kind.clone()).collect();
    let (both, one, two) = (ids(&[1, 2]), ids(&[1]), ids(&[2]));
    let noted = Evidence { note: Some("silent".to_owned()), ..Evidence::about(BrokerId(1)) };
    assert_eq!(
        kinds,
        vec![
            ChangeKind::Leader { before: None, reason: LeaderReason::Created },
            ChangeKind::Shrink {
                before: both.clone(),
                after: one.clone(),
                reason: ShrinkReason::FollowerStoppedFetching,
                evidence: shrink.evidence,
            },
            ChangeKind::Expand {
                before: one,
                after: both.clone(),
                reason: ExpandReason::BrokerReturned,
                evidence: vec![],
            },
            ChangeKind::Shrink { before: both, after: two, reason: ShrinkReason::BrokerFenced, evidence: vec![noted] },
            ChangeKind::Leader { before: Some(BrokerId(1)), reason: LeaderReason::Failover },
        ]
    );
    assert_eq!(history.iter().map(|change| change.sequence).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(history[1].requested_by, Some(BrokerId(1)));
    let last = history.last().unwrap();
    assert_eq!((last.leader, last.requested_by), (Some(BrokerId(2)), None));
    assert_eq!(last.partition_epoch, quorum.state(1).partition_epoch);
}

#[test]
fn the_newest_sixty_four_changes_of_a_partition_stay() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    for _ in 0..50 {
        quorum.set_isr(1, &[1]);
        quorum.set_isr(1, &[1, 2]);
    }
    let history = quorum.image.history_of(at(1));
    assert_eq!(history.len(), CHANGES_PER_PARTITION);
    assert_eq!((history[0].sequence, history[63].sequence), (37, 100));
}

#[test]
fn beyond_eight_mebibytes_the_oldest_entries_go_first_and_no_partition_loses_its_newest_change() {
    let mut quorum = Quorum::new(2);
    let partitions = 1_000;
    let assignments = vec![ids(&[1, 2]); partitions];
    quorum.run(Command::CreateTopic(CreateTopic { assignments, ..creation(1, &[1], &[]) })).unwrap();
    // Fill it up as many entries would have done, each of them changing some partitions.
    let filler = |index: u64, sequence: u64| PartitionChange {
        index,
        sequence,
        ..quorum.image.history_of(at(1))[0].as_ref().clone()
    };
    let mut image = quorum.image.clone();
    for round in 0..53u64 {
        for number in 0..partitions {
            let change = filler(100 + round * 10 + number as u64 / 100, round + 1);
            image.apply(&Change::History(TopicPartition::new(topic_id(1), number as i32), Arc::new(change)));
        }
    }
    assert!(image.history_weight > HISTORY_WEIGHT_MAX);
    quorum.image = image;
    quorum.image.version.0 = 10_000;
    quorum.fence(&[1]);
    assert!(quorum.image.history_weight <= HISTORY_WEIGHT_MAX, "{}", quorum.image.history_weight);
    assert!(quorum.image.history_weight > HISTORY_WEIGHT_MAX / 2, "{}", quorum.image.history_weight);
    let oldest = |at| quorum.image.history_of(at)[0].index;
    for number in 0..partitions {
        let at = TopicPartition::new(topic_id(1), number as i32);
        let history = quorum.image.history_of(at);
        assert_eq!(history.last().unwrap().index, 10_001);
        assert!(oldest(at).abs_diff(oldest(TopicPartition::new(topic_id(1), 0))) <= 10, "trimmed evenly by age");
    }
}
