//! R126–R131: fences in order, then members.

use highwater_wire::{BrokerEpoch, LeaderEpoch, PartitionEpoch, TopicPartition};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::LeaderRecovery;

/// Leader 1 in leader epoch 1, partition epoch 2, ISR 1, 3.
fn quorum() -> Quorum {
    let mut quorum = Quorum::new(4);
    quorum.create(1, &[2, 1, 3], &[("min.insync.replicas", "2")]).unwrap();
    quorum.fence(&[2]);
    quorum.unfence(2, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(1), vec![1, 3], vec![]));
    quorum
}

#[test]
fn the_first_fence_that_is_broken_answers() {
    let quorum = quorum();
    let good = quorum.proposal(1, &[2, 1, 3]);
    let (leader_epoch, partition_epoch) = (good.leader_epoch, good.partition_epoch);
    assert_eq!((leader_epoch, partition_epoch), (LeaderEpoch(1), PartitionEpoch(1)));
    let (newer, older) = (LeaderEpoch(2), LeaderEpoch(0));
    let (ahead, behind) = (PartitionEpoch(9), PartitionEpoch(0));
    let none = vec![];
    let by = |sender, change: &dyn Fn(&mut IsrProposal)| {
        let mut proposal = good.clone();
        change(&mut proposal);
        let code =
            quorum.clone().alter(sender, proposal).err().map(|refusal| highwater_wire::ErrorCode::from(&refusal));
        code.map_or(0, |code| code.code())
    };
    let unknown_topic = TopicPartition::new(topic_id(9), 0);
    let unknown_partition = TopicPartition::new(topic_id(1), 7);
    assert_eq!(by(1, &|_| {}), 0);
    assert_eq!(by(1, &|p| p.partition = unknown_topic), 100);
    assert_eq!(by(1, &|p| p.partition = unknown_partition), 3);
    // 3 before 4, 5 and 6: the controller is the stale side.
    assert_eq!(by(3, &|p| (p.leader_epoch, p.partition_epoch) = (newer, behind)), 41);
    assert_eq!(by(3, &|p| (p.leader_epoch, p.partition_epoch) = (older, ahead)), 41);
    // 4 before 5.
    assert_eq!(by(3, &|p| p.leader_epoch = older), 74);
    // 5 before 6.
    assert_eq!(by(3, &|p| p.partition_epoch = behind), 42);
    // 6 before 7.
    assert_eq!(by(1, &|p| (p.partition_epoch, p.isr) = (behind, none.clone())), 95);
    // 7 and 8 before 9.
    assert_eq!(by(1, &|p| p.isr.clear()), 42);
    assert_eq!(by(1, &|p| p.isr[0] = p.isr[1]), 42);
    assert_eq!(by(1, &|p| p.isr[0] = (highwater_wire::BrokerId(4), quorum.epoch(4))), 42);
    assert_eq!(by(1, &|p| p.isr.retain(|(id, _)| id.0 != 1)), 42);
    assert_eq!(by(1, &|p| p.recovery = LeaderRecovery::Recovering), 42);
    assert_eq!(
        by(1, &|p| (p.recovery, p.isr) =
            (LeaderRecovery::Recovering, vec![(highwater_wire::BrokerId(1), BrokerEpoch(0))])),
        42
    );
    // 9: -1 is no epoch, an older or a newer one is another process.
    for epoch in [-1, quorum.epoch(2).0 - 1, quorum.epoch(2).0 + 1] {
        assert_eq!(by(1, &|p| p.isr[0].1 = BrokerEpoch(epoch)), 107);
    }
}

#[test]
fn a_stale_or_unknown_sender_is_refused_as_a_whole() {
    let mut quorum = quorum();
    for (broker, epoch) in [(1, 0), (1, 99), (77, 1)] {
        let changes = vec![quorum.proposal(1, &[2, 1, 3])];
        let (broker, epoch) = (highwater_wire::BrokerId(broker), BrokerEpoch(epoch));
        let request = AlterPartition { broker, epoch, changes, time: highwater_wire::Timestamp(1) };
        let refused = quorum.run(Command::AlterPartition(request));
        assert!(matches!(refused, Err(Refusal::StaleBrokerEpoch { .. })), "{refused:?}");
    }
}

#[test]
fn a_member_that_is_fenced_shutting_down_or_gone_is_not_eligible() {
    let good = quorum();
    let mut fenced = good.clone();
    fenced.fence(&[2]);
    let mut stopping = good.clone();
    stopping.shut_down(2).unwrap();
    let mut gone = fenced.clone();
    gone.run(Command::UnregisterBroker { broker: highwater_wire::BrokerId(2), time: highwater_wire::Timestamp(1) })
        .unwrap();
    for mut quorum in [fenced, stopping, gone] {
        let mut proposal = good.proposal(1, &[2, 1, 3]);
        proposal.partition_epoch = quorum.state(1).partition_epoch;
        let refused = quorum.alter(1, proposal);
        assert_eq!(refused, Err(Refusal::IneligibleReplica(highwater_wire::BrokerId(2))));
    }
}

#[test]
fn a_late_copy_of_a_refused_proposal_is_not_accepted_when_its_member_is_active_again() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    quorum.fence(&[2]);
    let expand = quorum.proposal(1, &[1, 2]);
    let before = quorum.state(1).clone();
    let two = highwater_wire::BrokerId(2);
    assert_eq!(quorum.alter(1, expand.clone()), Err(Refusal::IneligibleReplica(two)));
    let refused = quorum.state(1);
    assert_eq!(refused, &crate::image::PartitionState { partition_epoch: before.partition_epoch.next(), ..before });
    quorum.unfence(2, &[]).unwrap();
    assert!(matches!(quorum.alter(1, expand), Err(Refusal::StalePartitionEpoch { .. })));
    assert_eq!(quorum.sets(1).1, vec![1], "its leader has forgotten it, and does not count broker 2");
    quorum.alter(1, quorum.proposal(1, &[1, 2])).unwrap();
}

#[test]
fn one_partition_refused_does_not_stop_the_next_and_none_may_come_twice() {
    let mut quorum = quorum();
    quorum.create(2, &[1, 3], &[]).unwrap();
    let mut bad = quorum.proposal(1, &[2, 1, 3]);
    bad.isr[0].1 = BrokerEpoch(-1);
    let good = quorum.proposal(2, &[1]);
    let changes = vec![bad, good.clone(), good];
    let (broker, epoch) = (highwater_wire::BrokerId(1), quorum.epoch(1));
    let request = AlterPartition { broker, epoch, changes, time: highwater_wire::Timestamp(1) };
    let Answer::PartitionsAltered(results) = quorum.run(Command::AlterPartition(request)).unwrap() else { panic!() };
    assert!(matches!(results[0], Err(Refusal::IneligibleReplica(_))));
    assert!(results[1].is_ok());
    assert!(matches!(results[2], Err(Refusal::InvalidRequest(_))));
    assert_eq!(quorum.sets(2).1, vec![1]);
}

#[test]
fn an_isr_change_raises_the_partition_epoch_only_and_no_change_raises_nothing() {
    let mut quorum = quorum();
    let before = quorum.state(1).clone();
    let altered = quorum.alter(1, quorum.proposal(1, &[3, 2, 1])).unwrap();
    assert_eq!(altered.isr, ids(&[2, 1, 3]), "in the order of the assignment");
    assert_eq!((altered.leader_epoch, altered.partition_epoch), (before.leader_epoch, before.partition_epoch.next()));
    let again = quorum.alter(1, quorum.proposal(1, &[2, 1, 3])).unwrap();
    assert_eq!(again.partition_epoch, altered.partition_epoch);
}

#[test]
fn whoever_leaves_below_min_isr_stays_eligible_until_min_isr_is_reached_again() {
    // R195.
    let mut quorum = quorum();
    quorum.set_isr(1, &[2, 1, 3]);
    quorum.set_isr(1, &[1, 3]);
    assert_eq!(quorum.sets(1).2, Vec::<i32>::new(), "min ISR still holds");
    quorum.set_isr(1, &[1]);
    assert_eq!(quorum.sets(1).2, vec![3], "broker 2 left while min ISR held");
    quorum.set_isr(1, &[1, 2]);
    assert_eq!(quorum.sets(1), (Some(1), vec![2, 1], vec![]));
}

#[test]
fn min_isr_is_capped_by_the_number_of_replicas() {
    // R9: with one replica and min ISR 2 the sole member is a full ISR.
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[("min.insync.replicas", "2")]).unwrap();
    quorum.fence(&[1]);
    assert_eq!(quorum.sets(1), (None, vec![], vec![1]));
    quorum.unfence(1, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![]));
}
