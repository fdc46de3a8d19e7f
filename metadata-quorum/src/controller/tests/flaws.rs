//! One test per flaw of replication.md §18 whose guard lives in the controller, and D30.

use highwater_wire::{BrokerId, Timestamp, TopicId};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{DataProof, LeaderReason};

const MIN_2: &[(&str, &str)] = &[("min.insync.replicas", "2")];

#[test]
fn r241_a_shrink_that_arrives_after_its_leader_was_fenced_changes_nothing() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    let shrink = quorum.proposal(1, &[1, 2]);
    quorum.fence(&[1]);
    let elected = quorum.state(1).clone();
    assert!(matches!(quorum.alter(1, shrink), Err(Refusal::FencedLeaderEpoch { .. })));
    assert_eq!(quorum.state(1), &elected);
    assert!(elected.isr.contains(&BrokerId(3)), "whom the shrink left out is still counted by the new leader");
}

#[test]
fn r242_r243_a_follower_that_registered_anew_cannot_join_by_what_its_former_process_fetched() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    quorum.set_isr(1, &[1]);
    let expand = quorum.proposal(1, &[1, 2]);
    quorum.start(2, DataClaim::Nothing);
    assert_eq!(quorum.alter(1, expand.clone()), Err(Refusal::IneligibleReplica(BrokerId(2))));
    // D26: the leader resends it unchanged; it stays refused, however often.
    assert_eq!(quorum.alter(1, expand), Err(Refusal::IneligibleReplica(BrokerId(2))));
    quorum.fence(&[1]);
    assert_eq!(quorum.sets(1), (None, vec![], vec![1]));
}

#[test]
fn r244_registering_alone_takes_a_wiped_member_out_of_the_isr() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    quorum.register(2, DataClaim::Nothing).unwrap();
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![]));
    quorum.unfence(2, &[]).unwrap();
    quorum.fence(&[1]);
    assert_eq!(quorum.sets(1).0, None, "the wiped one is not elected");
    // The sole member itself: out of ISR and ELR, nobody leads.
    let mut alone = Quorum::new(1);
    alone.create(1, &[1], &[]).unwrap();
    alone.start(1, DataClaim::Nothing);
    assert_eq!(alone.sets(1), (None, vec![], vec![]));
}

#[test]
fn r245_the_last_replica_standing_loses_its_tail_and_the_intact_ones_lead() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    quorum.fence(&[2]);
    quorum.fence(&[3]);
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![3]), "broker 2 left while min ISR held");
    quorum.fence(&[1]);
    quorum.start(1, DataClaim::Nothing);
    assert_eq!(quorum.sets(1), (None, vec![], vec![3]), "power loss: broker 1 cannot prove its tail");
    quorum.unfence(2, &[]).unwrap();
    assert_eq!(quorum.sets(1).0, None, "broker 2 may lack what was acknowledged since it left");
    quorum.unfence(3, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(3), vec![3], vec![]));
    assert_eq!(quorum.last_election(1), LeaderReason::Elr);
}

#[test]
fn r258_no_two_processes_share_a_broker_epoch() {
    let mut quorum = Quorum::new(1);
    let mut epochs = vec![quorum.epoch(1)];
    quorum.register(1, DataClaim::Nothing).unwrap();
    epochs.push(quorum.epoch(1));
    // A late repetition of the first process's registration is another registration, not the old epoch again.
    quorum.run(Command::RegisterBroker(registration(1))).unwrap();
    epochs.push(quorum.epoch(1));
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
}

#[test]
fn r259_of_two_proposals_made_in_the_same_state_one_is_applied() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    let (without_3, without_2) = (quorum.proposal(1, &[1, 2]), quorum.proposal(1, &[1, 3]));
    quorum.alter(1, without_3.clone()).unwrap();
    assert!(matches!(quorum.alter(1, without_2), Err(Refusal::StalePartitionEpoch { .. })));
    assert!(matches!(quorum.alter(1, without_3), Err(Refusal::StalePartitionEpoch { .. })), "nor twice");
    assert_eq!(quorum.sets(1).1, vec![1, 2]);
}

#[test]
fn r260_a_proposal_for_a_topic_that_was_created_again_is_for_a_topic_that_is_gone() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    let old = quorum.proposal(1, &[1]);
    quorum.run(Command::DeleteTopic { id: topic_id(1), time: Timestamp(1) }).unwrap();
    let again = CreateTopic { id: TopicId::from_bytes([2; 16]), ..creation(1, &[1, 2], &[]) };
    quorum.run(Command::CreateTopic(again)).unwrap();
    assert_eq!(quorum.alter(1, old), Err(Refusal::UnknownTopicId(topic_id(1))));
    assert_eq!(quorum.sets(2).1, vec![1, 2]);
}

#[test]
fn d30_a_wiped_replica_a_killed_one_and_a_new_quorum_leader_lose_nothing() {
    // Kafka 4.4 elects the wiped node with an empty log: a new controller gives fresh sessions, so the dead, wiped node
    // is fenced last and becomes the last known leader; its registration empties the ELR.
    for min_isr in ["1", "2"] {
        for wiped in [1, 2] {
            for together in [true, false] {
                let killed = 3 - wiped;
                let mut quorum = Quorum::new(3);
                quorum.create(1, &[1, 2], &[("min.insync.replicas", min_isr)]).unwrap();
                if together {
                    quorum.fence(&[1, 2]);
                } else {
                    quorum.fence(&[killed]);
                    quorum.fence(&[wiped]);
                }
                quorum.start(wiped, DataClaim::Nothing);
                assert_eq!(quorum.sets(1).0, None, "the wiped broker {wiped} leads (min ISR {min_isr})");
                let claim = quorum.same_boot(killed);
                quorum.start(killed, claim);
                let (leader, isr, _) = quorum.sets(1);
                if together || min_isr == "2" {
                    assert_eq!((leader, isr), (Some(killed), vec![killed]), "min ISR {min_isr}, wiped {wiped}");
                    assert_eq!(quorum.last_election(1), LeaderReason::Elr);
                } else {
                    // Broker `wiped` was the whole ISR for a while: only it had what was acknowledged then.
                    assert_eq!(leader, None);
                }
            }
        }
    }
}

#[test]
fn d30_a_registration_before_the_fence_is_as_safe_as_one_after_it() {
    for min_isr in ["1", "2"] {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[("min.insync.replicas", min_isr)]).unwrap();
        quorum.start(1, DataClaim::Nothing);
        assert_eq!(quorum.sets(1).0, Some(2));
        quorum.fence(&[2]);
        assert_eq!(quorum.sets(1), (None, vec![], vec![2]), "broker 1 was wiped");
        let claim = quorum.same_boot(2);
        quorum.start(2, claim);
        assert_eq!(quorum.sets(1), (Some(2), vec![2], vec![]));
    }
}

#[test]
fn d30_a_wiped_leader_restarted_cleanly_afterwards_still_proves_nothing() {
    // The proof of the newest registration speaks of the one before, not of the disk that was lost before that.
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[]).unwrap();
    quorum.fence(&[1]);
    quorum.start(1, DataClaim::Nothing);
    for _ in 0..2 {
        quorum.shut_down(1).unwrap();
        let claim = quorum.clean_stop(1);
        quorum.start(1, claim);
        assert_eq!(quorum.image.broker(BrokerId(1)).unwrap().kept_data, DataProof::CleanStop);
        assert_eq!(quorum.state(1).last_known_elr, ids(&[1]));
        assert_eq!(quorum.sets(1), (None, vec![], vec![]));
    }
    assert_eq!(quorum.elect(ElectionKind::Unclean, 1), Ok(BrokerId(1)), "an operator may accept the loss");
}

#[test]
fn d10_a_cluster_killed_as_a_whole_comes_back_by_ordinary_elections() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    quorum.fence(&[1, 2, 3]);
    for id in [2, 3, 1] {
        let claim = quorum.same_boot(id);
        quorum.start(id, claim);
    }
    assert_eq!(quorum.sets(1), (Some(2), vec![2], vec![1, 3]));
    assert_eq!(quorum.last_election(1), LeaderReason::Elr);
    quorum.set_isr(1, &[1, 2, 3]);
    assert_eq!(quorum.sets(1), (Some(2), vec![1, 2, 3], vec![]));
}
