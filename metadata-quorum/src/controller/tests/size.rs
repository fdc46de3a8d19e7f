//! What a large cluster costs: one entry of many partitions, under the lock of the state machine (D13).

use std::time::{Duration, Instant};

use highwater_wire::{BrokerId, Offset, Timestamp};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::Evidence;

/// 10,000 partitions of 3 replicas in one topic, all with a full history.
fn large() -> Quorum {
    let mut quorum = Quorum::new(3);
    for part in 0..5 {
        let orders = [ids(&[1, 2, 3]), ids(&[2, 3, 1]), ids(&[3, 1, 2])];
        quorum
            .run(Command::CreateTopic(CreateTopic {
                first_partition: part * 2_000,
                assignments: (0..2_000).map(|n| orders[n % 3].clone()).collect(),
                complete: part == 4,
                ..creation(1, &[1], &[("min.insync.replicas", "2")])
            }))
            .unwrap();
    }
    quorum
}

#[test]
fn fencing_a_broker_of_ten_thousand_partitions_is_one_walk() {
    let quorum = large();
    let published = quorum.image.clone();
    let (broker, epoch) = (BrokerId(1), quorum.epoch(1));
    let fenced = FencedBroker { broker, epoch, note: "connection refused twice".to_owned() };
    let time = Timestamp(1);
    let command = Command::FenceBrokers { brokers: vec![fenced], watermarks: vec![], time };
    let start = Instant::now();
    let decision = decide(&quorum.image, 100, RULE_VERSION, &command).unwrap();
    let decided = start.elapsed();
    let mut image = quorum.image.clone();
    image.apply_all(&decision.changes);
    let total = start.elapsed();
    println!("decide {decided:?}, decide and apply {total:?}, {} changes", decision.changes.len());
    image.check_invariants();
    assert!(image.partitions().all(|(_, _, state)| state.isr.len() == 2));
    assert!(published.partitions().all(|(_, _, state)| state.isr.len() == 3), "what was published stays as it was");
    // 50 ms in a release build; quadratic work would take minutes in any.
    assert!(total < Duration::from_secs(3), "{total:?}");
}

#[test]
fn isr_changes_of_ten_thousand_partitions_are_cut_into_commands_that_fit_an_entry() {
    // A broker that comes back makes its leaders propose for all their partitions at once.
    let quorum = large();
    let evidence = Evidence {
        follower_end: Some(Offset(i64::MAX)),
        leader_end: Some(Offset(i64::MAX)),
        lag_ms: Some(u64::MAX),
        last_fetch_age_ms: Some(u64::MAX),
        last_caught_up_age_ms: Some(u64::MAX),
        ..Evidence::about(BrokerId(3))
    };
    let proposals: Vec<_> = (quorum.image.partitions())
        .map(|(at, _, _)| IsrProposal {
            partition: at,
            evidence: vec![evidence.clone()],
            ..quorum.proposal(1, &[1, 2, 3])
        })
        .collect();
    let mut rest = &proposals[..];
    while !rest.is_empty() {
        let changes = AlterPartition::fitting(rest);
        assert!(!changes.is_empty() && changes[..] == rest[..changes.len()], "in order, and each time some");
        let (broker, epoch) = (BrokerId(1), quorum.epoch(1));
        let request = AlterPartition { broker, epoch, changes, time: Timestamp(i64::MAX) };
        rest = &rest[request.changes.len()..];
        assert!(postcard::to_stdvec(&Command::AlterPartition(request)).unwrap().len() < 60 << 10);
    }
}
