//! Elections whose leaders somebody chose, and what an unclean one cost.

use highwater_wire::{BrokerId, LeaderEpoch, Offset, PartitionEpoch, Timestamp};

use crate::controller::loss::last_watermark;
use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{
    ChangeKind, Evidence, LastReport, LastWatermark, LeaderReason, LeaderRecovery, ShrinkReason, WatermarkSource,
};

/// `leader` for topic `n`, without any further word.
fn chosen(n: u8, leader: i32) -> ChosenElection {
    ChosenElection {
        partition: at(n),
        leader: BrokerId(leader),
        accept_loss: false,
        expected_leader_epoch: None,
        expected_partition_epoch: None,
        watermark: None,
    }
}

fn with_loss(n: u8, leader: i32) -> ChosenElection {
    ChosenElection { accept_loss: true, ..chosen(n, leader) }
}

fn elect(quorum: &mut Quorum, election: ChosenElection) -> Result<BrokerId, Refusal> {
    match quorum.run(Command::ElectChosen { elections: vec![election], time: Timestamp(6) })? {
        Answer::LeadersElected(results) => results.into_iter().next().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn report(watermark: i64, start: i64) -> LastReport {
    LastReport { high_watermark: Offset(watermark), reported: Timestamp(9), log_start: Offset(start) }
}

/// Fences a leader that had said this of its watermark.
fn fence_with(quorum: &mut Quorum, id: i32, watermark: i64) {
    fence_with_start(quorum, id, watermark, 0);
}

/// The same, and where its log began.
fn fence_with_start(quorum: &mut Quorum, id: i32, watermark: i64, start: i64) {
    let LastReport { high_watermark, reported, log_start } = report(watermark, start);
    let known = KnownWatermark { partition: at(1), high_watermark, reported, log_start, leader_epoch: None };
    let fenced = FencedBroker { broker: BrokerId(id), epoch: quorum.epoch(id), note: "silent".to_owned() };
    let time = Timestamp(3);
    quorum.run(Command::FenceBrokersKnowing { brokers: vec![fenced], watermarks: vec![known], time }).unwrap();
}

/// The first proposal of a leader that was elected uncleanly; `end`: where its log ended.
fn recovered(quorum: &mut Quorum, leader: i32, end: i64) {
    let evidence = vec![Evidence { leader_end: Some(Offset(end)), ..Evidence::about(BrokerId(leader)) }];
    let why = IsrReason::Recovered;
    let proposal = IsrProposal { why, evidence, ..quorum.proposal(1, &[leader]) };
    quorum.alter(leader, proposal).unwrap();
}

fn losses(quorum: &Quorum) -> Vec<ChangeKind> {
    let kinds = quorum.image.history_of(at(1)).iter().map(|change| change.kind.clone());
    kinds.filter(|kind| matches!(kind, ChangeKind::DataLoss { .. })).collect()
}

#[test]
fn a_member_of_the_isr_leads_when_it_is_chosen_and_once_more_is_not_needed() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    let choice = ChosenElection { expected_leader_epoch: Some(LeaderEpoch(0)), ..chosen(1, 3) };
    assert_eq!(elect(&mut quorum, choice.clone()), Ok(BrokerId(3)));
    assert_eq!(quorum.sets(1), (Some(3), vec![1, 2, 3], vec![]));
    assert_eq!(quorum.last_election(1), LeaderReason::Designated);
    assert_eq!(quorum.state(1).recovery, LeaderRecovery::Recovered);
    let before = quorum.state(1).clone();
    assert_eq!(elect(&mut quorum, choice), Err(Refusal::ElectionNotNeeded), "whatever epoch was expected");
    assert_eq!(*quorum.state(1), before);
    assert_eq!(elect(&mut quorum, chosen(1, 1)), Ok(BrokerId(1)));
    assert_eq!(quorum.last_election(1), LeaderReason::Preferred, "whoever chooses the first replica sends it home");
}

#[test]
fn a_member_of_the_elr_leads_without_loss_once_the_isr_is_empty() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("min.insync.replicas", "3")]).unwrap();
    quorum.fence(&[2]);
    quorum.unfence(2, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(1), vec![1, 3], vec![2]));
    assert_eq!(elect(&mut quorum, chosen(1, 2)), Err(Refusal::LossNotAccepted(BrokerId(2))), "the ISR has members");
    quorum.fence(&[1, 2, 3]);
    quorum.unfence(3, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(3), vec![3], vec![1, 2]), "whoever comes first leads");
    assert!(!is_clean(quorum.state(1), BrokerId(2)) && is_clean(quorum.state(1), BrokerId(3)));
}

#[test]
fn what_cannot_be_is_refused_by_name_and_changes_nothing() {
    let mut quorum = Quorum::new(4);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    quorum.set_isr(1, &[1, 2]);
    quorum.fence(&[2]);
    let before = quorum.state(1).clone();
    let (leader_epoch, partition_epoch) = (before.leader_epoch, before.partition_epoch);
    let expecting = |leader, partition| ChosenElection {
        expected_leader_epoch: Some(leader),
        expected_partition_epoch: Some(partition),
        ..with_loss(1, 3)
    };
    let older = PartitionEpoch(partition_epoch.0 - 1);
    for (choice, refusal) in [
        (chosen(9, 1), Refusal::UnknownPartition(at(9))),
        (with_loss(1, 4), Refusal::NotAReplica { broker: BrokerId(4), partition: at(1) }),
        (with_loss(1, 2), Refusal::LeaderNotActive(BrokerId(2))),
        (chosen(1, 3), Refusal::LossNotAccepted(BrokerId(3))),
        (
            expecting(leader_epoch.next(), partition_epoch),
            Refusal::LeaderEpochAhead { given: leader_epoch.next(), current: leader_epoch },
        ),
        (
            expecting(LeaderEpoch(-1), partition_epoch),
            Refusal::FencedLeaderEpoch { given: LeaderEpoch(-1), current: leader_epoch },
        ),
        (expecting(leader_epoch, older), Refusal::StalePartitionEpoch { given: older, current: partition_epoch }),
        (
            expecting(leader_epoch, partition_epoch.next()),
            Refusal::PartitionEpochAhead { given: partition_epoch.next(), current: partition_epoch },
        ),
    ] {
        assert_eq!(elect(&mut quorum, choice.clone()), Err(refusal), "{choice:?}");
        assert_eq!(*quorum.state(1), before, "{choice:?}");
    }
    let twice = Command::ElectChosen { elections: vec![with_loss(1, 3), with_loss(1, 3)], time: Timestamp(6) };
    let Ok(Answer::LeadersElected(results)) = quorum.run(twice) else { panic!("not decided") };
    assert!(matches!(results.as_slice(), [Ok(BrokerId(3)), Err(Refusal::InvalidRequest(_))]), "{results:?}");
}

#[test]
fn chosen_elections_are_unknown_before_rules_3() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    let command = Command::ElectChosen { elections: vec![chosen(1, 2)], time: Timestamp(6) };
    for rules in 1..3 {
        let decided = decide(&quorum.image, quorum.image.version.0 + 1, rules, &command);
        assert!(matches!(decided, Err(Refusal::UnsupportedFeature { .. })), "{decided:?}");
    }
}

#[test]
fn the_loss_of_an_unclean_election_stands_in_the_history_true_to_the_offset() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    quorum.set_isr(1, &[1]);
    fence_with(&mut quorum, 1, 70);
    let partition_epoch = quorum.state(1).partition_epoch;
    let choice = ChosenElection { expected_partition_epoch: Some(partition_epoch), ..with_loss(1, 3) };
    // The disk is gone: the last leader comes back with nothing, and leaves the ELR.
    assert_eq!(quorum.sets(1), (None, vec![], vec![1]));
    quorum.register(1, DataClaim::Nothing).unwrap();
    assert_eq!(quorum.sets(1), (None, vec![], vec![]));
    let moved = elect(&mut quorum, choice.clone());
    assert!(matches!(moved, Err(Refusal::StalePartitionEpoch { .. })), "it was planned for another state: {moved:?}");
    assert_eq!(elect(&mut quorum, with_loss(1, 3)), Ok(BrokerId(3)));
    assert_eq!((quorum.sets(1), quorum.last_election(1)), ((Some(3), vec![3], vec![]), LeaderReason::Unclean));
    assert_eq!(quorum.state(1).recovery, LeaderRecovery::Recovering);
    assert!(losses(&quorum).is_empty(), "nobody knows yet where the log of 3 ends");
    recovered(&mut quorum, 3, 62);
    let known = LastWatermark {
        high_watermark: Offset(70),
        known: Timestamp(9),
        leader: Some(BrokerId(1)),
        source: WatermarkSource::Reported,
    };
    let loss = ChangeKind::DataLoss { from: Some(Offset(62)), known: Some(known) };
    assert_eq!((losses(&quorum), loss.records_lost()), (vec![loss.clone()], 8));
    let last = quorum.image.history_of(at(1)).last().unwrap();
    assert_eq!((last.leader, last.requested_by), (Some(BrokerId(3)), Some(BrokerId(3))));
    // Told once.
    let again = IsrProposal { why: IsrReason::Recovered, ..quorum.proposal(1, &[3]) };
    quorum.alter(3, again).unwrap();
    assert_eq!(losses(&quorum), vec![loss]);
    assert_eq!(quorum.state(1).last_known_watermark, None);
}

#[test]
fn nothing_is_known_where_nobody_reported_and_nothing_is_lost_where_the_log_is_long_enough() {
    for (watermark, end, lost) in [(None, 62, None), (Some(60), 62, Some(60))] {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[("unclean.leader.election.enable", "true")]).unwrap();
        quorum.set_isr(1, &[1]);
        match watermark {
            Some(watermark) => fence_with(&mut quorum, 1, watermark),
            None => drop(quorum.fence(&[1])),
        }
        assert_eq!(quorum.last_election(1), LeaderReason::Unclean);
        recovered(&mut quorum, 2, end);
        let [loss] = losses(&quorum).try_into().unwrap();
        assert_eq!(loss.records_lost(), 0);
        let ChangeKind::DataLoss { from: Some(Offset(62)), known } = loss else { panic!("{loss:?}") };
        assert_eq!(known.map(|known| known.high_watermark.0), lost);
    }
}

/// Simulation, seeds 3224 and 5063.
#[test]
fn what_the_last_leader_had_deleted_is_not_lost() {
    for (start, end, from, lost) in [(66, 62, 66, 4), (70, 62, 70, 0), (60, 62, 62, 8)] {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[("unclean.leader.election.enable", "true")]).unwrap();
        quorum.set_isr(1, &[1]);
        fence_with_start(&mut quorum, 1, 70, start);
        recovered(&mut quorum, 2, end);
        let [loss] = losses(&quorum).try_into().unwrap();
        let ChangeKind::DataLoss { from: Some(Offset(begins)), .. } = loss else { panic!("{loss:?}") };
        assert_eq!((begins, loss.records_lost()), (from, lost), "log start {start}");
    }
}

#[test]
fn the_change_that_left_a_leader_alone_tells_what_was_committed_at_least() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    let leader_end = |broker, end| Evidence { leader_end: Some(Offset(end)), ..Evidence::about(BrokerId(broker)) };
    let of_itself = Evidence { follower_end: Some(Offset(33)), ..leader_end(1, 40) };
    let evidence = vec![of_itself, leader_end(2, 45)];
    let why = IsrReason::Shrink(ShrinkReason::FollowerSlow);
    let shrink = IsrProposal { why, evidence, ..quorum.proposal(1, &[1]) };
    quorum.alter(1, shrink).unwrap();
    quorum.fence(&[1]);
    let known = |quorum: &Quorum, min_isr| last_watermark(quorum.state(1), quorum.image.history_of(at(1)), min_isr);
    let told = known(&quorum, 1).unwrap();
    assert_eq!((told.watermark.high_watermark, told.watermark.source), (Offset(40), WatermarkSource::IsrChange));
    assert_eq!((told.watermark.leader, told.log_start), (Some(BrokerId(1)), Offset(33)));
    assert_eq!(known(&quorum, 2), None, "below min ISR the watermark stood still");
    // It comes back, leads, and is lost again: what was true of an earlier leadership is not of this one.
    quorum.unfence(1, &[]).unwrap();
    fence_with(&mut quorum, 1, 30);
    assert_eq!(known(&quorum, 1).unwrap().watermark.high_watermark, Offset(30));
}

#[test]
fn a_leader_that_is_still_there_is_replaced_only_by_the_operators_word_and_its_watermark_is_kept() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    quorum.set_isr(1, &[1, 2]);
    assert_eq!(elect(&mut quorum, chosen(1, 3)), Err(Refusal::LossNotAccepted(BrokerId(3))));
    let choice = ChosenElection { watermark: Some(report(50, 0)), ..with_loss(1, 3) };
    assert_eq!(elect(&mut quorum, choice), Ok(BrokerId(3)));
    assert_eq!((quorum.sets(1), quorum.last_election(1)), ((Some(3), vec![3], vec![]), LeaderReason::Unclean));
    recovered(&mut quorum, 3, 45);
    let [loss] = losses(&quorum).try_into().unwrap();
    let ChangeKind::DataLoss { known: Some(known), .. } = &loss else { panic!("{loss:?}") };
    assert_eq!((loss.records_lost(), known.leader), (5, Some(BrokerId(1))));
    quorum.set_isr(1, &[1, 2, 3]);
}

#[test]
fn rules_below_3_tell_no_loss() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[("unclean.leader.election.enable", "true")]).unwrap();
    quorum.set_isr(1, &[1]);
    fence_with(&mut quorum, 1, 70);
    let proposal = IsrProposal { why: IsrReason::Recovered, ..quorum.proposal(1, &[2]) };
    let (broker, epoch) = (BrokerId(2), quorum.epoch(2));
    let request = AlterPartition { broker, epoch, changes: vec![proposal], time: Timestamp(5) };
    let index = quorum.image.version.0 + 1;
    let decision = decide(&quorum.image, index, 2, &Command::AlterPartition(request)).unwrap();
    quorum.image.apply_all(&decision.changes);
    assert!(losses(&quorum).is_empty());
    assert_eq!(quorum.state(1).last_known_watermark, Some(report(70, 0)));
}
