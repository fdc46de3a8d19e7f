//! R179–R185, D17: creation in one part and in several, names, assignments, deletion.

use std::sync::Arc;

use highwater_wire::{BrokerId, ErrorCode, Timestamp};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{ChangeKind, LeaderReason};

fn code(answer: Result<Answer, Refusal>) -> i16 {
    answer.map_or_else(|refusal| ErrorCode::from(&refusal).code(), |_| 0)
}

fn named(n: u8, name: &str) -> Command {
    Command::CreateTopic(CreateTopic { name: name.to_owned(), ..creation(n, &[1], &[]) })
}

#[test]
fn a_new_topic_is_led_by_its_first_active_replica_in_epoch_zero() {
    let mut quorum = Quorum::new(3);
    quorum.fence(&[1]);
    assert_eq!(quorum.create(1, &[1, 2, 3], &[]), Ok(Answer::TopicCreated { id: topic_id(1) }));
    let state = quorum.state(1);
    assert_eq!(quorum.sets(1), (Some(2), vec![2, 3], vec![]));
    assert_eq!((state.leader_epoch.0, state.partition_epoch.0), (0, 0));
    assert_eq!(state.directories.len(), 3);
    let history = quorum.image.history_of(at(1));
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].kind, ChangeKind::Leader { before: None, reason: LeaderReason::Created });
}

#[test]
fn bad_names_are_refused_and_so_are_names_that_collide_in_metrics() {
    let long = "x".repeat(250);
    for bad in ["", ".", "..", "a b", "a/b", "ä", long.as_str()] {
        assert_eq!(code(Quorum::new(1).run(named(1, bad))), 17, "{bad:?}");
    }
    assert!(check_topic_name(&long[1..]).is_ok());
    let mut quorum = Quorum::new(1);
    for (n, name) in [(1, "a.b"), (2, "a"), (3, "a-b"), (4, "ab"), (5, "z_1.x")] {
        assert_eq!(code(quorum.run(named(n, name))), 0, "{name}");
    }
    assert_eq!(code(quorum.run(named(6, "a.b"))), 36);
    for colliding in ["a_b", "z.1_x", "z_1_x"] {
        assert_eq!(code(quorum.run(named(6, colliding))), 17, "{colliding}");
    }
    assert_eq!(code(quorum.run(named(6, "a.c"))), 0);
}

#[test]
fn a_bad_assignment_is_refused_by_what_it_came_from() {
    // 39 by hand, 38 when a planner's choice was overtaken.
    let bad: [Vec<Vec<BrokerId>>; 5] =
        [vec![ids(&[])], vec![ids(&[1, 1])], vec![ids(&[1, 9])], vec![ids(&[1, 2]), ids(&[1])], vec![ids(&[3])]];
    for assignments in bad {
        for (manual, expected) in [(true, 39), (false, 38)] {
            let mut quorum = Quorum::new(3);
            quorum.fence(&[3]);
            let creation = CreateTopic { assignments: assignments.clone(), manual, ..creation(1, &[1], &[]) };
            assert_eq!(code(quorum.run(Command::CreateTopic(creation))), expected, "{assignments:?}");
        }
    }
    let none = CreateTopic { assignments: vec![], ..creation(1, &[1], &[]) };
    assert_eq!(code(Quorum::new(1).run(Command::CreateTopic(none))), 37);
}

#[test]
fn every_fault_of_the_configuration_is_told() {
    let mut quorum = Quorum::new(1);
    let refused = quorum.create(1, &[1], &[("min.insync.replicas", "0"), ("nonsense", "1")]).unwrap_err();
    assert_eq!(ErrorCode::from(&refused).code(), 40);
    assert!(refused.to_string().contains("min.insync.replicas") && refused.to_string().contains("nonsense"));
}

/// Part `number` of three, two partitions each.
fn part(n: u8, number: i32) -> CreateTopic {
    CreateTopic {
        first_partition: number * 2,
        assignments: vec![ids(&[1, 2]), ids(&[2, 1])],
        complete: number == 2,
        ..creation(n, &[1], &[])
    }
}

#[test]
fn a_topic_in_parts_becomes_visible_with_the_last() {
    let mut quorum = Quorum::new(2);
    for number in 0..2 {
        assert_eq!(quorum.run(Command::CreateTopic(part(1, number))), Ok(Answer::Done));
        assert_eq!(quorum.run(Command::CreateTopic(part(1, number))), Ok(Answer::Done), "a repeated part");
        assert!(quorum.image.topic_named("topic-1").is_none());
    }
    let last = Command::CreateTopic(part(1, 2));
    assert_eq!(quorum.run(last.clone()), Ok(Answer::TopicCreated { id: topic_id(1) }));
    let topic = Arc::clone(quorum.image.topic_named("topic-1").unwrap());
    assert_eq!(topic.partitions.len(), 6);
    assert_eq!(topic.partitions[3].replicas, ids(&[2, 1]));
    assert!(quorum.image.staged.is_empty());
    assert_eq!(quorum.run(last), Ok(Answer::TopicCreated { id: topic_id(1) }), "R216: a repeated creation");
    assert_eq!(quorum.run(Command::CreateTopic(part(1, 0))), Ok(Answer::TopicCreated { id: topic_id(1) }));
}

#[test]
fn a_part_out_of_order_or_unlike_the_first_is_refused() {
    let mut quorum = Quorum::new(2);
    assert_eq!(code(quorum.run(Command::CreateTopic(part(1, 1)))), 42);
    quorum.run(Command::CreateTopic(part(1, 0))).unwrap();
    assert_eq!(code(quorum.run(Command::CreateTopic(part(1, 2)))), 42);
    let other = CreateTopic { configs: creation(1, &[1], &[("segment.ms", "5")]).configs, ..part(1, 1) };
    assert_eq!(code(quorum.run(Command::CreateTopic(other))), 42);
    let thin = CreateTopic { assignments: vec![ids(&[1])], ..part(1, 1) };
    assert_eq!(code(quorum.run(Command::CreateTopic(thin))), 39);
}

#[test]
fn whoever_begins_last_wins_the_name_and_abandoned_parts_go() {
    let mut quorum = Quorum::new(2);
    let same_name = |number| CreateTopic { id: topic_id(2), ..part(1, number) };
    quorum.run(Command::CreateTopic(part(1, 0))).unwrap();
    quorum.run(Command::CreateTopic(same_name(0))).unwrap();
    assert_eq!(code(quorum.run(Command::CreateTopic(part(1, 1)))), 42, "its first part is gone");
    quorum.run(Command::CreateTopic(same_name(1))).unwrap();
    quorum.run(Command::CreateTopic(same_name(2))).unwrap();
    assert_eq!(quorum.image.topic_named("topic-1").map(|topic| topic.id), Some(topic_id(2)));
    assert!(quorum.image.staged.is_empty());
}

#[test]
fn brokers_fenced_between_two_parts_leave_a_partition_that_waits_for_them() {
    let mut quorum = Quorum::new(2);
    quorum
        .run(Command::CreateTopic(CreateTopic {
            assignments: vec![ids(&[1])],
            complete: false,
            ..creation(1, &[1], &[])
        }))
        .unwrap();
    quorum.fence(&[1]);
    let last = CreateTopic { first_partition: 1, assignments: vec![ids(&[2])], ..creation(1, &[2], &[]) };
    quorum.run(Command::CreateTopic(last)).unwrap();
    assert_eq!(quorum.sets(1), (None, vec![], vec![1]));
    quorum.unfence(1, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![]));
}

#[test]
fn a_deleted_topic_leaves_nothing_and_its_name_is_free_at_once() {
    // R180, R185, R260: what is created under the name again is another topic.
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[]).unwrap();
    let delete = |n| Command::DeleteTopic { id: topic_id(n), time: Timestamp(1) };
    assert_eq!(quorum.run(delete(1)), Ok(Answer::Done));
    assert!(quorum.image.topics.is_empty() && quorum.image.names.is_empty() && quorum.image.history.is_empty());
    assert_eq!(quorum.run(delete(1)), Err(Refusal::UnknownTopicId(topic_id(1))));
    let again = CreateTopic { id: topic_id(2), ..creation(1, &[1], &[]) };
    quorum.run(Command::CreateTopic(again)).unwrap();
    assert_eq!(quorum.state(2).leader_epoch.0, 0);
    let first_part = CreateTopic { complete: false, ..creation(3, &[1], &[]) };
    quorum.run(Command::CreateTopic(first_part)).unwrap();
    quorum.run(delete(3)).unwrap();
    assert!(quorum.image.staged.is_empty());
}

fn growth(first_partition: i32, assignments: &[&[i32]]) -> Command {
    Command::AddPartitions(AddPartitions {
        topic: topic_id(1),
        first_partition,
        assignments: assignments.iter().map(|replicas| ids(replicas)).collect(),
        manual: true,
        time: Timestamp(9),
    })
}

#[test]
fn partitions_are_added_behind_the_present_ones_which_stay_as_they_are() {
    // R186.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2], &[]).unwrap();
    quorum.fence(&[1]);
    let before = quorum.state(1).clone();
    assert_eq!(quorum.run(growth(1, &[&[1, 3], &[3, 2]])), Ok(Answer::Done));
    assert_eq!(*quorum.state(1), before);
    let topic = Arc::clone(quorum.image.topics.get(&topic_id(1)).unwrap());
    let told: Vec<_> = topic.partitions[1..].iter().map(|p| (p.leader, p.isr.clone(), p.leader_epoch.0)).collect();
    assert_eq!(told, [(Some(BrokerId(3)), ids(&[3]), 0), (Some(BrokerId(3)), ids(&[3, 2]), 0)]);
    assert_eq!(topic.partitions[2].leader_since, Timestamp(9));
}

#[test]
fn a_repeated_growth_changes_nothing_and_one_that_was_overtaken_is_refused() {
    // R216: the raft leader may die with the answer.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2], &[]).unwrap();
    let command = growth(1, &[&[1, 3], &[3, 2]]);
    quorum.run(command.clone()).unwrap();
    quorum.run(growth(3, &[&[2, 1]])).unwrap();
    let before = crate::image::state_hash(&quorum.image);
    assert_eq!(quorum.run(command), Ok(Answer::Done));
    for overtaken in [growth(1, &[&[1, 3], &[2, 3]]), growth(3, &[&[2, 1], &[1, 2]]), growth(5, &[&[1, 2]])] {
        assert_eq!(code(quorum.run(overtaken.clone())), 37, "{overtaken:?}");
    }
    for nothing in [growth(4, &[]), growth(-1, &[]), growth(1, &[]), growth(-1, &[&[1, 2]])] {
        assert_eq!(code(quorum.run(nothing.clone())), 37, "{nothing:?}");
    }
    assert_eq!(crate::image::state_hash(&quorum.image), before);
}

#[test]
fn a_bad_assignment_of_an_added_partition_is_refused_and_adds_nothing() {
    let mut quorum = Quorum::new(4);
    quorum.create(1, &[1, 2], &[]).unwrap();
    quorum.fence(&[3, 4]);
    for bad in [&[][..], &[1], &[1, 1], &[1, 9], &[1, 2, 3], &[3, 4]] {
        assert_eq!(code(quorum.run(growth(1, &[&[1, 2], bad]))), 39, "{bad:?}");
    }
    assert_eq!(quorum.image.topics.get(&topic_id(1)).unwrap().partitions.len(), 1);
    let Command::AddPartitions(elsewhere) = growth(1, &[&[1, 2]]) else { unreachable!() };
    let elsewhere = Command::AddPartitions(AddPartitions { topic: topic_id(2), ..elsewhere });
    assert_eq!(code(quorum.run(elsewhere)), 100);
}

#[test]
fn older_rules_do_not_know_how_to_add_partitions() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    for rules in 1..3 {
        let refused = decide(&quorum.image, 100, rules, &growth(1, &[&[1, 2]]));
        assert_eq!(refused, Err(Refusal::UnsupportedFeature { level: 1 }), "rules {rules}");
    }
}
