//! R189–R198: who leads next, and how it is labelled.

use highwater_wire::{BrokerId, LeaderEpoch, Offset, Timestamp};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{ChangeKind, LastReport, LeaderReason, LeaderRecovery, ShrinkReason};

const UNCLEAN: &[(&str, &str)] = &[("unclean.leader.election.enable", "true")];

#[test]
fn the_first_of_the_assignment_that_is_in_sync_and_active_leads() {
    for (fenced, leader) in [(&[1][..], 2), (&[1, 2], 3), (&[2], 1), (&[3, 2], 1)] {
        let mut quorum = Quorum::new(3);
        quorum.create(1, &[1, 2, 3], &[]).unwrap();
        quorum.fence(fenced);
        assert_eq!(quorum.sets(1).0, Some(leader), "after fencing {fenced:?}");
    }
}

#[test]
fn nobody_outside_the_isr_is_elected_while_the_isr_has_a_member() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], UNCLEAN).unwrap();
    quorum.set_isr(1, &[1, 3]);
    quorum.fence(&[1]);
    assert_eq!(quorum.sets(1), (Some(3), vec![3], vec![]));
}

#[test]
fn an_eligible_replica_leads_alone_once_the_isr_is_empty() {
    // R190: ISR = {elected}, out of the ELR, and the election is clean.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("min.insync.replicas", "2")]).unwrap();
    quorum.fence(&[1, 2, 3]);
    assert_eq!(quorum.sets(1), (None, vec![], vec![1, 2, 3]));
    let leaderless = quorum.state(1).clone();
    assert_eq!(leaderless.leader_epoch, LeaderEpoch(1), "losing the leader is a change of leader (R137)");
    assert_eq!(leaderless.last_known_elr, ids(&[1]));
    quorum.unfence(3, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(3), vec![3], vec![1, 2]));
    assert_eq!(quorum.state(1).recovery, LeaderRecovery::Recovered);
    assert!(quorum.state(1).last_known_elr.is_empty());
    assert_eq!(quorum.last_election(1), LeaderReason::Elr);
    quorum.unfence(1, &[]).unwrap();
    assert_eq!(quorum.sets(1).0, Some(3), "a leader that works is kept");
}

#[test]
fn a_replica_that_was_not_in_sync_waits_unless_the_topic_allows_an_unclean_election() {
    for (configs, leader) in [(&[][..], None), (UNCLEAN, Some(2))] {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], configs).unwrap();
        quorum.set_isr(1, &[1]);
        quorum.fence(&[1]);
        assert_eq!(quorum.sets(1).0, leader);
    }
}

#[test]
fn an_unclean_leader_is_marked_and_starts_alone_until_it_says_it_recovered() {
    // R190, R191, R130 8.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], UNCLEAN).unwrap();
    quorum.set_isr(1, &[1]);
    let report = LastReport { high_watermark: Offset(70), reported: Timestamp(9), log_start: Offset(3) };
    let LastReport { high_watermark, reported, log_start } = report;
    let known = KnownWatermark { partition: at(1), high_watermark, reported, log_start, leader_epoch: None };
    let fenced = FencedBroker { broker: BrokerId(1), epoch: quorum.epoch(1), note: "silent".to_owned() };
    let time = Timestamp(3);
    quorum.run(Command::FenceBrokersKnowing { brokers: vec![fenced], watermarks: vec![known], time }).unwrap();
    assert_eq!(quorum.sets(1).1, vec![2]);
    assert_eq!(quorum.last_election(1), LeaderReason::Unclean);
    assert_eq!(quorum.state(1).recovery, LeaderRecovery::Recovering);
    assert_eq!(quorum.state(1).last_known_watermark, Some(report));
    let told = quorum.image.history_of(at(1)).iter().any(|change| match &change.kind {
        ChangeKind::Shrink { reason: ShrinkReason::UncleanElection, evidence, .. } => {
            evidence[0].note.as_deref().unwrap().contains("high watermark 70")
        }
        _ => false,
    });
    assert!(told, "the loss is estimated by the last leader's watermark (D12)");

    quorum.unfence(1, &[]).unwrap();
    let mut grow = quorum.proposal(1, &[1, 2]);
    grow.recovery = LeaderRecovery::Recovering;
    assert!(matches!(quorum.alter(2, grow.clone()), Err(Refusal::InvalidRequest(_))));
    grow.recovery = LeaderRecovery::Recovered;
    quorum.alter(2, grow).unwrap();
    assert_eq!((quorum.sets(1).1, quorum.state(1).recovery), (vec![1, 2], LeaderRecovery::Recovered));
}

#[test]
fn the_last_known_leader_has_the_best_claim_in_an_unclean_election() {
    // R198: after a power loss of all nodes nobody can prove anything; an operator's word elects who led last.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("min.insync.replicas", "2")]).unwrap();
    quorum.set_isr(1, &[1, 2]);
    quorum.fence(&[1]);
    quorum.fence(&[2, 3]);
    assert_eq!(quorum.state(1).last_known_elr, ids(&[2]));
    for id in 1..=3 {
        quorum.start(id, DataClaim::Nothing);
    }
    assert_eq!(quorum.sets(1), (None, vec![], vec![]), "unclean elections are off");
    assert_eq!(quorum.elect(ElectionKind::Clean, 1), Err(Refusal::EligibleLeadersNotAvailable));
    assert_eq!(quorum.elect(ElectionKind::Unclean, 1), Ok(BrokerId(2)));
    assert_eq!(quorum.last_election(1), LeaderReason::LastKnown);
    assert_eq!(quorum.state(1).recovery, LeaderRecovery::Recovering);
}

#[test]
fn an_operators_unclean_election_prefers_whoever_needs_none() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    assert_eq!(quorum.elect(ElectionKind::Unclean, 1), Err(Refusal::ElectionNotNeeded));
    quorum.set_isr(1, &[1]);
    quorum.fence(&[1, 2]);
    assert_eq!(quorum.elect(ElectionKind::Unclean, 1), Err(Refusal::EligibleLeadersNotAvailable));
    quorum.unfence(2, &[]).unwrap();
    assert_eq!(quorum.sets(1).0, None);
    assert_eq!(next_leader(&quorum.image, at(1), false), None);
    assert_eq!(next_leader(&quorum.image, at(1), true), Some((BrokerId(2), LeaderReason::Unclean)));
    assert_eq!(quorum.elect(ElectionKind::Unclean, 1), Ok(BrokerId(2)));
    assert_eq!(quorum.last_election(1), LeaderReason::Unclean);
}

#[test]
fn an_unclean_election_leaves_nobody_eligible_who_holds_another_history() {
    // R190: broker 1 may hold what broker 3 lacks and may even lead again, from a watermark that broker 3 never had.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("min.insync.replicas", "2")]).unwrap();
    quorum.fence(&[3]);
    quorum.fence(&[2]);
    quorum.fence(&[1]);
    quorum.unfence(3, &[]).unwrap();
    assert_eq!(quorum.sets(1), (None, vec![], vec![1, 2]));
    let command = Command::ElectLeaders { kind: ElectionKind::Unclean, partitions: vec![at(1)], time: Timestamp(3) };
    let before = decide(&quorum.image, quorum.image.version.0 + 1, 2, &command).unwrap();
    let elected = before.changes.iter().find_map(|change| match change {
        crate::image::Change::Partition(_, state) => Some(state.elr.clone()),
        _ => None,
    });
    assert_eq!(elected, Some(ids(&[1, 2])), "rules 2 left them eligible");
    quorum.run(command).unwrap();
    assert_eq!(quorum.sets(1), (Some(3), vec![3], vec![]));
}

#[test]
fn a_preferred_election_moves_the_leader_home_if_home_is_in_sync() {
    // R192.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    assert_eq!(quorum.elect(ElectionKind::Preferred, 1), Err(Refusal::ElectionNotNeeded));
    quorum.fence(&[1]);
    quorum.unfence(1, &[]).unwrap();
    let away = Refusal::PreferredLeaderNotAvailable(BrokerId(1));
    assert_eq!(quorum.elect(ElectionKind::Preferred, 1), Err(away));
    quorum.set_isr(1, &[1, 2]);
    let before = quorum.state(1).leader_epoch;
    assert_eq!(quorum.elect(ElectionKind::Preferred, 1), Ok(BrokerId(1)));
    assert_eq!((quorum.state(1).leader_epoch, quorum.last_election(1)), (before.next(), LeaderReason::Preferred));
    assert_eq!(quorum.sets(1).1, vec![1, 2]);
    assert_eq!(quorum.elect(ElectionKind::Clean, 1), Err(Refusal::ElectionNotNeeded));
    assert_eq!(quorum.elect(ElectionKind::Clean, 9), Err(Refusal::UnknownPartition(at(9))));
}
