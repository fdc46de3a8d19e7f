//! R166–R176, D7–D10: registrations, fences, shutdowns.

use highwater_wire::{BrokerEpoch, BrokerId, DirectoryId, IncarnationId, Timestamp};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{BrokerState, ChangeKind, DataProof, LeaderReason, METADATA_FEATURE, ShrinkReason};

fn state_of(quorum: &Quorum, id: i32) -> BrokerState {
    quorum.image.broker(BrokerId(id)).unwrap().state
}

#[test]
fn a_registration_is_fenced_and_its_epoch_is_the_index_of_its_entry() {
    let mut quorum = Quorum::new(0);
    let index = quorum.image.version.0 as i64 + 1;
    let epoch = BrokerEpoch(index);
    assert_eq!(quorum.register(1, DataClaim::Nothing), Ok(Answer::Registered { epoch }));
    assert_eq!(state_of(&quorum, 1), BrokerState::Fenced);
    // R167: the same process again keeps its epoch and its state.
    quorum.unfence(1, &[]).unwrap();
    let moved = RegisterBroker { admin_url: "http://elsewhere".to_owned(), ..registration(1) };
    assert_eq!(quorum.run(Command::RegisterBroker(moved)), Ok(Answer::Registered { epoch }));
    assert_eq!(state_of(&quorum, 1), BrokerState::Active);
    assert_eq!(quorum.image.broker(BrokerId(1)).unwrap().admin_url, "http://elsewhere");
}

#[test]
fn a_second_process_is_refused_while_the_first_is_active_and_not_proved_dead() {
    // R166, D9.
    let mut quorum = Quorum::new(1);
    let second = RegisterBroker { incarnation: process(1, 9), ..registration(1) };
    let refused = quorum.run(Command::RegisterBroker(second.clone()));
    assert_eq!(refused, Err(Refusal::DuplicateRegistration(BrokerId(1))));
    for prepare in [|q: &mut Quorum| drop(q.fence(&[1])), |q: &mut Quorum| drop(q.shut_down(1)), |_: &mut Quorum| {}] {
        let mut quorum = quorum.clone();
        prepare(&mut quorum);
        let previous_is_dead = state_of(&quorum, 1) == BrokerState::Active;
        let second = RegisterBroker { previous_is_dead, ..second.clone() };
        assert!(quorum.run(Command::RegisterBroker(second)).is_ok());
    }
}

#[test]
fn a_registration_that_cannot_be_right_is_refused_with_its_reason() {
    let none = DirectoryId::from_bytes([0; 16]);
    type Fault = fn(&mut RegisterBroker);
    let faults: [(Fault, i16, &str); 7] = [
        (|r| r.cluster_id = "other".to_owned(), 104, "this is cluster highwater-test, not other"),
        (|r| r.features = [(METADATA_FEATURE.to_owned(), 0)].into(), 35, "feature level 1"),
        (|r| r.inter_broker_listener = "SSL".to_owned(), 119, "inter.broker.listener.name"),
        (|r| r.log_dirs.clear(), 119, "0 log directories"),
        (|r| r.log_dirs = registration(1).log_dirs, 119, "belongs to broker 1"),
        (|r| r.metadata_dir = registration(1).metadata_dir, 119, "belongs to broker 1"),
        (|r| r.controller_url.clear(), 119, "controller listener"),
    ];
    for (fault, code, text) in faults {
        let mut request = registration(2);
        fault(&mut request);
        let refusal = Quorum::new(1).run(Command::RegisterBroker(request)).unwrap_err();
        assert_eq!(highwater_wire::ErrorCode::from(&refusal).code(), code, "{refusal}");
        assert!(refusal.to_string().contains(text), "{text:?} is missing in {refusal}");
    }
    let reserved = RegisterBroker { log_dirs: vec![none], ..registration(2) };
    assert!(Quorum::new(1).run(Command::RegisterBroker(reserved)).is_err());
}

#[test]
fn the_proof_of_a_registration_is_compared_with_the_last_one() {
    // D10.
    let quorum = Quorum::new(1);
    let (right, epoch) = (quorum.same_boot(1), quorum.epoch(1));
    let wrong_process = DataClaim::SameBoot { incarnation: process(1, 77) };
    let wrong_epoch = DataClaim::CleanStop { epoch: BrokerEpoch(epoch.0 - 1) };
    // Seed 272 of the simulation: killed before it knew whether it had registered.
    let survivors = |last: &[IncarnationId], clean_epoch| {
        let incarnations = std::iter::once(process(1, 77)).chain(last.iter().copied()).collect();
        DataClaim::Survivors { incarnations, clean_epoch }
    };
    let registered = quorum.image.broker(BrokerId(1)).unwrap().incarnation;
    for (claim, proof) in [
        (right, DataProof::SameBoot),
        (quorum.clean_stop(1), DataProof::CleanStop),
        (survivors(&[registered], None), DataProof::SameBoot),
        (survivors(&[], Some(epoch)), DataProof::CleanStop),
        (survivors(&[], None), DataProof::None),
        (wrong_process, DataProof::None),
        (wrong_epoch, DataProof::None),
        (DataClaim::Nothing, DataProof::None),
    ] {
        let mut quorum = quorum.clone();
        quorum.register(1, claim.clone()).unwrap();
        assert_eq!(quorum.image.broker(BrokerId(1)).unwrap().kept_data, proof, "{claim:?}");
    }
    // A marker in another directory proves nothing of the registered one.
    let mut quorum = quorum;
    let (claim, log_dirs) = (quorum.same_boot(1), vec![DirectoryId::from_bytes([99; 16])]);
    quorum.create(1, &[1], &[]).unwrap();
    let moved =
        RegisterBroker { incarnation: process(1, 2), claim, log_dirs, previous_is_dead: true, ..registration(1) };
    quorum.run(Command::RegisterBroker(moved)).unwrap();
    assert_eq!(quorum.image.broker(BrokerId(1)).unwrap().kept_data, DataProof::None);
    assert_eq!(quorum.sets(1), (None, vec![], vec![]));
    assert_eq!(quorum.state(1).directories, vec![DirectoryId::from_bytes([99; 16])]);
}

#[test]
fn a_new_process_leaves_the_isr_and_without_proof_the_elr() {
    // R169, R197, T9 as amended by D10.
    for (claim, isr, elr) in [
        (Quorum::same_boot as fn(&Quorum, i32) -> DataClaim, vec![2], vec![1]),
        (Quorum::clean_stop, vec![2], vec![1]),
        (|_, _| DataClaim::Nothing, vec![2], vec![]),
    ] {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[("min.insync.replicas", "2")]).unwrap();
        let claim = claim(&quorum, 1);
        quorum.register(1, claim).unwrap();
        assert_eq!(quorum.sets(1), (Some(2), isr, elr));
        let history = quorum.image.history_of(at(1));
        let shrink = history.iter().find_map(|change| match &change.kind {
            ChangeKind::Shrink { reason, .. } => Some(*reason),
            _ => None,
        });
        assert_eq!(shrink, Some(ShrinkReason::BrokerRestarted));
    }
}

#[test]
fn fencing_skips_a_broker_that_registered_anew() {
    let mut quorum = Quorum::new(2);
    let old = FencedBroker { broker: BrokerId(1), epoch: quorum.epoch(1), note: String::new() };
    quorum.start(1, DataClaim::Nothing);
    let unknown = FencedBroker { broker: BrokerId(9), ..old.clone() };
    let command = Command::FenceBrokers { brokers: vec![old, unknown], watermarks: vec![], time: Timestamp(1) };
    assert_eq!(quorum.run(command), Ok(Answer::Fenced { fenced: vec![] }));
    assert_eq!(state_of(&quorum, 1), BrokerState::Active);
    assert_eq!(quorum.fence(&[1]), Answer::Fenced { fenced: ids(&[1]) });
    assert_eq!(quorum.fence(&[1]), Answer::Fenced { fenced: vec![] }, "twice changes nothing");
}

#[test]
fn brokers_found_dead_together_leave_all_isrs_before_anyone_is_elected() {
    // D30: one after the other would make the second the sole ISR member and last leader for a moment.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    let before = quorum.state(1).clone();
    quorum.fence(&[1, 2]);
    let after = quorum.state(1);
    assert_eq!(quorum.sets(1), (Some(3), vec![3], vec![]));
    assert_eq!(
        (after.leader_epoch, after.partition_epoch),
        (before.leader_epoch.next(), before.partition_epoch.next())
    );
    let notes = quorum.image.history_of(at(1)).iter().filter_map(|change| match &change.kind {
        ChangeKind::Shrink { reason: ShrinkReason::BrokerFenced, evidence, .. } => Some(evidence.len()),
        _ => None,
    });
    assert_eq!(notes.collect::<Vec<_>>(), vec![2], "one shrink, and how each death was known");
}

#[test]
fn unfencing_elects_where_nobody_leads_and_brings_nobody_into_an_isr() {
    // R173.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    quorum.create(2, &[2], &[]).unwrap();
    quorum.fence(&[2]);
    assert_eq!(quorum.sets(2).0, None);
    quorum.unfence(2, &[]).unwrap();
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![]));
    assert_eq!(quorum.sets(2), (Some(2), vec![2], vec![]));
    assert_eq!(quorum.unfence(2, &[at(2)]), Ok(Answer::BrokerState { state: BrokerState::Active }), "again: nothing");
    assert_eq!(quorum.sets(2), (Some(2), vec![2], vec![]));
}

#[test]
fn a_partition_that_recovery_found_short_is_not_led_by_the_broker_that_lost_it() {
    // D10.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[("min.insync.replicas", "2")]).unwrap();
    quorum.create(2, &[1], &[]).unwrap();
    quorum.fence(&[1, 2]);
    let claim = quorum.same_boot(1);
    quorum.register(1, claim).unwrap();
    assert_eq!(quorum.sets(1).2, vec![1, 2]);
    quorum.unfence(1, &[at(1), at(9)]).unwrap();
    assert_eq!(quorum.sets(1), (None, vec![], vec![2]));
    assert_eq!(quorum.sets(2), (Some(1), vec![1], vec![]), "the others are led");
}

#[test]
fn a_broker_that_lost_records_leaves_the_elr_of_a_partition_that_another_leads() {
    // D10: it would be elected without them as soon as that leader is gone.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[("min.insync.replicas", "2")]).unwrap();
    quorum.fence(&[1]);
    let claim = quorum.same_boot(1);
    quorum.register(1, claim).unwrap();
    assert_eq!(quorum.sets(1), (Some(2), vec![2], vec![1]));
    quorum.unfence(1, &[at(1)]).unwrap();
    assert_eq!(quorum.sets(1), (Some(2), vec![2], vec![]));
    quorum.fence(&[2]);
    assert_eq!(quorum.sets(1), (None, vec![], vec![2]));
}

#[test]
fn a_broker_that_shuts_down_hands_over_and_cannot_come_back_under_its_epoch() {
    // R174, R175.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("min.insync.replicas", "2")]).unwrap();
    quorum.create(2, &[1], &[]).unwrap();
    quorum.shut_down(1).unwrap();
    assert_eq!(quorum.sets(1), (Some(2), vec![2, 3], vec![]));
    assert_eq!(quorum.last_election(1), LeaderReason::Drain);
    assert_eq!(quorum.sets(2), (None, vec![], vec![1]));
    assert_eq!(quorum.last_election(2), LeaderReason::Lost);
    assert_eq!(quorum.unfence(1, &[]), Err(Refusal::ShuttingDown(BrokerId(1))));
    assert_eq!(quorum.fence(&[1]), Answer::Fenced { fenced: vec![] });
    assert!(quorum.shut_down(1).is_ok(), "twice changes nothing");
    let claim = quorum.clean_stop(1);
    quorum.start(1, claim);
    assert_eq!(quorum.sets(2), (Some(1), vec![1], vec![]));
}

#[test]
fn only_a_broker_that_takes_no_part_can_be_forgotten_and_then_leads_nothing_ever() {
    // R176.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[("min.insync.replicas", "2")]).unwrap();
    let forget = Command::UnregisterBroker { broker: BrokerId(1), time: Timestamp(1) };
    assert_eq!(quorum.run(forget.clone()), Err(Refusal::NotFenced(BrokerId(1))));
    quorum.fence(&[1, 2]);
    assert_eq!(quorum.run(forget.clone()), Ok(Answer::Done));
    assert_eq!((quorum.sets(1).2, quorum.state(1).replicas.clone()), (vec![2], ids(&[1, 2])));
    assert!(quorum.state(1).last_known_elr.is_empty());
    assert_eq!(quorum.run(forget), Err(Refusal::UnknownBroker(BrokerId(1))));
}

#[test]
fn commands_of_a_broker_carry_its_epoch() {
    let mut quorum = Quorum::new(1);
    let (broker, epoch) = (BrokerId(1), BrokerEpoch(quorum.epoch(1).0 + 1));
    let stale = Refusal::StaleBrokerEpoch { broker, given: epoch, current: quorum.epoch(1) };
    let time = Timestamp(1);
    for command in [
        Command::UnfenceBroker { broker, epoch, lost: vec![], time },
        Command::ShutDownBroker { broker, epoch, time },
        Command::AllocateProducerIds { broker, epoch, count: 10 },
    ] {
        assert_eq!(quorum.run(command), Err(stale.clone()));
    }
    let nobody = Command::UnfenceBroker { broker: BrokerId(5), epoch, lost: vec![], time };
    assert_eq!(quorum.run(nobody), Err(Refusal::UnknownBroker(BrokerId(5))));
}

#[test]
fn blocks_of_producer_ids_never_overlap() {
    // T12.
    let mut quorum = Quorum::new(2);
    let mut next = 0;
    for (id, count) in [(1, 1000), (2, 1), (1, 1000)] {
        let (broker, epoch) = (BrokerId(id), quorum.epoch(id));
        let answer = quorum.run(Command::AllocateProducerIds { broker, epoch, count }).unwrap();
        assert_eq!(answer, Answer::ProducerIds { first: highwater_wire::ProducerId(next), count });
        next += i64::from(count);
    }
    quorum.image.next_producer_id = i64::MAX;
    let (broker, epoch) = (BrokerId(1), quorum.epoch(1));
    assert!(quorum.run(Command::AllocateProducerIds { broker, epoch, count: 1 }).is_err());
}

#[test]
fn a_cluster_is_formed_once_and_its_feature_level_rises_only_with_all_brokers() {
    let mut quorum = Quorum::new(1);
    let form = |id: &str| Command::FormCluster { cluster_id: id.to_owned(), feature_level: 1, time: Timestamp(0) };
    assert_eq!(quorum.run(form(CLUSTER)), Ok(Answer::Done));
    assert!(matches!(quorum.run(form("other")), Err(Refusal::InconsistentClusterId { .. })));
    let refused = quorum.run(Command::SetFeatureLevel { level: 2 }).unwrap_err();
    assert!(refused.to_string().contains("broker 1 speaks feature level 1"), "{refused}");
    assert_eq!(quorum.run(Command::SetFeatureLevel { level: 1 }), Ok(Answer::Done));
    let mut newer = registration(1);
    newer.features.insert(METADATA_FEATURE.to_owned(), 2);
    quorum.run(Command::RegisterBroker(newer)).unwrap();
    assert_eq!(quorum.run(Command::SetFeatureLevel { level: 2 }), Ok(Answer::Done));
    assert_eq!(quorum.image.feature_level, 2);
    assert!(quorum.run(Command::SetFeatureLevel { level: 1 }).is_err());
    let unknown = decide(&quorum.image, 99, RULE_VERSION + 1, &Command::SetFeatureLevel { level: 2 });
    assert_eq!(unknown, Err(Refusal::UnsupportedFeature { level: 2 }));
}
