//! Each check of the restart gate by itself, on small clusters decided by the rules.

use highwater_wire::DirectoryId;

use super::*;
use crate::controller::DataClaim;
use crate::controller::testing::*;
use crate::status::{PeerStatus, QuorumMember, QuorumRole};

const MIN_2: &[(&str, &str)] = &[("min.insync.replicas", "2")];

fn all_well(brokers: &[i32]) -> RestartFacts {
    let nodes: BTreeSet<BrokerId> = ids(brokers).into_iter().collect();
    let quorum = QuorumFacts {
        leader: BrokerId(1),
        voters: nodes.clone(),
        caught_up: nodes.clone(),
        majority: nodes.len() / 2 + 1,
        joint: false,
    };
    RestartFacts { answering: nodes, proposed: BTreeMap::new(), quorum: Some(quorum) }
}

/// The names of what blocks the restart of a broker, and of how many partitions.
fn blockers(quorum: &Quorum, facts: &RestartFacts, broker: i32) -> Vec<(&'static str, usize)> {
    let verdict = judge_restart(&quorum.image, facts, BrokerId(broker));
    assert_eq!(verdict.is_safe(), verdict.blocking.is_empty());
    verdict.blocking.iter().map(|(why, partitions)| (why.name(), partitions.len())).collect()
}

#[test]
fn in_a_whole_cluster_everybody_may_be_restarted() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    quorum.create(2, &[2, 3], &[("min.insync.replicas", "1")]).unwrap();
    for broker in 1..=3 {
        assert_eq!(blockers(&quorum, &all_well(&[1, 2, 3]), broker), []);
    }
}

#[test]
fn what_can_never_be_safe_is_reported_and_does_not_block() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1], &[("min.insync.replicas", "2")]).unwrap();
    quorum.create(2, &[1, 2], MIN_2).unwrap();
    let verdict = judge_restart(&quorum.image, &all_well(&[1, 2, 3]), BrokerId(1));
    assert!(verdict.is_safe());
    assert_eq!((verdict.rf1_offline, verdict.min_isr_equals_rf), (vec![at(1)], vec![at(2)]));
    // While the other replica is away it is another matter.
    quorum.fence(&[2]);
    let expected = [("unavailable", 1), ("already_under_min_isr", 1), ("acks1_data_loss", 1), ("other_broker_down", 1)];
    assert_eq!(blockers(&quorum, &all_well(&[1, 2, 3]), 1), expected);
}

#[test]
fn the_second_replica_waits_until_the_first_is_back_in_the_isr() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    let claim = quorum.clean_stop(3);
    quorum.fence(&[3]);
    let facts = all_well(&[1, 2, 3]);
    let away = [("full_acks_produce_unavailable", 1), ("other_broker_down", 1)];
    assert_eq!(blockers(&quorum, &facts, 1), away);
    quorum.start(3, claim);
    assert_eq!(blockers(&quorum, &facts, 1), [("full_acks_produce_unavailable", 1)], "it is back and catches up");
    assert_eq!(blockers(&quorum, &facts, 3), [], "it is not missed yet");
    quorum.set_isr(1, &[1, 2, 3]);
    assert_eq!(blockers(&quorum, &facts, 1), []);
}

#[test]
fn a_leader_that_is_alone_keeps_what_acks_1_wrote() {
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[("min.insync.replicas", "1")]).unwrap();
    quorum.set_isr(1, &[1]);
    let alone = [("unavailable", 1), ("full_acks_produce_unavailable", 1), ("acks1_data_loss", 1)];
    assert_eq!(blockers(&quorum, &all_well(&[1, 2, 3]), 1), alone);
    assert_eq!(blockers(&quorum, &all_well(&[1, 2, 3]), 2), [], "min ISR 1 does not need it");
}

#[test]
fn an_eligible_replica_in_service_can_lead_a_fenced_one_cannot() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    quorum.set_isr(1, &[1, 2]);
    quorum.set_isr(1, &[1]);
    assert_eq!(quorum.sets(1).2, [2], "the ELR");
    let facts = all_well(&[1, 2, 3]);
    assert_eq!(blockers(&quorum, &facts, 1), [("already_under_min_isr", 1), ("acks1_data_loss", 1)]);
    quorum.fence(&[2]);
    let nobody = [("unavailable", 1), ("already_under_min_isr", 1), ("acks1_data_loss", 1), ("other_broker_down", 1)];
    assert_eq!(blockers(&quorum, &facts, 1), nobody);
}

#[test]
fn who_may_be_first_to_catch_up_is_left_alone_and_who_is_dead_is_not() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    quorum.fence(&[2, 3]);
    let mut facts = all_well(&[1, 2, 3]);
    let recovering = [("already_under_min_isr", 1), ("other_broker_down", 1)];
    assert_eq!(blockers(&quorum, &facts, 2), recovering, "fenced, and answers: it recovers");
    facts.answering.remove(&BrokerId(2));
    assert_eq!(blockers(&quorum, &facts, 2), [], "starting what is dead takes nothing away");
    let verdict = judge_restart(&quorum.image, &facts, BrokerId(1));
    assert_eq!(verdict.down, ids(&[2, 3]).into_iter().collect());
}

#[test]
fn a_broker_on_its_way_out_has_nothing_left_to_lose() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    quorum.set_isr(1, &[1, 2]);
    quorum.shut_down(2).unwrap();
    assert_eq!(blockers(&quorum, &all_well(&[1, 2, 3]), 2), []);
    assert_eq!(blockers(&quorum, &all_well(&[1, 2, 3]), 3), [("already_under_min_isr", 1), ("other_broker_down", 1)]);
}

#[test]
fn in_sync_replicas_that_do_not_answer_do_not_count() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    let mut facts = all_well(&[1, 2, 3]);
    facts.answering.remove(&BrokerId(3));
    let silent = [("full_acks_produce_unavailable", 1), ("other_broker_down", 1)];
    assert_eq!(blockers(&quorum, &facts, 1), silent, "3 is in the ISR still");
    assert_eq!(blockers(&quorum, &facts, 3), [], "the silent one itself is not missed by the others");
}

#[test]
fn replicas_whose_leader_wants_them_out_do_not_count() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    let mut facts = all_well(&[1, 2, 3]);
    facts.proposed.insert(at(1), ids(&[1, 2]));
    assert_eq!(blockers(&quorum, &facts, 2), [("full_acks_produce_unavailable", 1)]);
    assert_eq!(blockers(&quorum, &facts, 3), []);
}

#[test]
fn brokers_that_share_nothing_do_not_matter_to_each_other() {
    let mut quorum = Quorum::new(4);
    quorum.create(1, &[1, 2, 3], MIN_2).unwrap();
    quorum.fence(&[4]);
    let facts = all_well(&[1, 2, 3, 4]);
    assert_eq!(blockers(&quorum, &facts, 1), [], "4 is fenced for good and holds nothing");
    quorum.create(2, &[1, 2, 3], &[("min.insync.replicas", "1")]).unwrap();
    quorum.fence(&[3]);
    assert_eq!(blockers(&quorum, &facts, 4), []);
}

#[test]
fn the_voters_that_are_caught_up_must_be_a_majority_without_it() {
    let quorum = Quorum::new(5);
    let mut facts = all_well(&[1, 2, 3, 4, 5]);
    let verdict = judge_restart(&quorum.image, &facts, BrokerId(2));
    assert_eq!((verdict.is_safe(), verdict.caught_up_without), (true, Some(4)));
    let voters = |facts: &mut RestartFacts, caught_up: &[i32]| {
        facts.quorum.as_mut().unwrap().caught_up = ids(caught_up).into_iter().collect();
    };
    voters(&mut facts, &[1, 2, 3]);
    assert_eq!(blockers(&quorum, &facts, 2), [("quorum_loss", 0)]);
    assert_eq!(blockers(&quorum, &facts, 4), [], "three are left without one that lags");
    voters(&mut facts, &[1, 2]);
    assert_eq!(blockers(&quorum, &facts, 4), [("quorum_loss", 0)]);
    // A node that is no broker is judged by the quorum alone; one that is dead is missed by nobody.
    voters(&mut facts, &[1, 2, 9]);
    facts.answering.insert(BrokerId(9));
    assert_eq!(blockers(&quorum, &facts, 9), [("quorum_loss", 0)]);
    voters(&mut facts, &[1, 2, 3]);
    facts.answering.remove(&BrokerId(9));
    assert_eq!(blockers(&quorum, &facts, 9), []);
}

#[test]
fn without_a_raft_leader_or_with_two_sets_of_voters_nothing_is_safe() {
    let quorum = Quorum::new(3);
    let mut facts = all_well(&[1, 2, 3]);
    facts.quorum.as_mut().unwrap().joint = true;
    assert_eq!(blockers(&quorum, &facts, 1), [("quorum_loss", 0)]);
    facts.quorum = None;
    facts.answering.clear();
    assert_eq!(blockers(&quorum, &facts, 1), [("quorum_loss", 0)]);
}

#[test]
fn a_wiped_voter_and_one_that_is_behind_are_not_caught_up() {
    let member =
        |node, directory| QuorumMember { node: BrokerId(node), directory: DirectoryId::from_bytes([directory; 16]) };
    let peer = |node, lag, contact_age_ms| PeerStatus {
        member: member(node, 1),
        voter: true,
        matched: None,
        lag,
        contact_age_ms,
    };
    let mut status = QuorumStatus {
        node: BrokerId(1),
        directory: DirectoryId::from_bytes([1; 16]),
        incarnation: process(1, 1),
        cluster_id: None,
        role: QuorumRole::Leader,
        term: 1,
        voted_for: None,
        leader: Some(BrokerId(1)),
        last_log: None,
        committed: None,
        applied: None,
        snapshot: None,
        purged: None,
        voters: (1..=4).map(|node| member(node, 1)).collect(),
        observers: Vec::new(),
        joint: false,
        // 4 answers as another disk, an observer: the voter of its old disk is never heard of again.
        peers: vec![
            peer(1, 0, Some(0)),
            peer(2, 0, Some(100)),
            peer(3, 101, Some(100)),
            peer(4, 0, None),
            PeerStatus { member: member(4, 2), voter: false, ..peer(4, 0, Some(100)) },
        ],
        quorum_ack_age_ms: Some(100),
        leader_heard_age_ms: Some(100),
        majority: 3,
        can_lose: Some(0),
        waiting: None,
        wiped: None,
        failed: None,
        election_timeout_ms: 600,
    };
    let facts = QuorumFacts::of(&status).unwrap();
    assert_eq!(facts.caught_up, ids(&[1, 2]).into_iter().collect());
    status.quorum_ack_age_ms = Some(1_801);
    assert_eq!(QuorumFacts::of(&status), None, "a leader that no majority answers knows nothing");
}

#[test]
fn a_roll_takes_each_broker_once_the_oldest_first_and_the_raft_leader_last() {
    let mut quorum = Quorum::new(4);
    quorum.fence(&[4]);
    let since = Some(quorum.image.version);
    let leader = Some(BrokerId(1));
    assert_eq!(restart_order(&quorum.image, leader, None), ids(&[1, 2, 3]), "whoever is fenced is not offered");
    let mut taken = Vec::new();
    while let Some(next) = restart_order(&quorum.image, leader, since).first().copied() {
        taken.push(next.0);
        assert!(taken.len() < 9, "{taken:?}");
        quorum.shut_down(next.0).unwrap();
        let claim = quorum.clean_stop(next.0);
        quorum.start(next.0, claim);
    }
    assert_eq!(taken, [2, 3, 1]);
    quorum.start(4, DataClaim::Nothing);
    assert_eq!(restart_order(&quorum.image, leader, since), ids(&[]), "4 has started since");
    assert_eq!(restart_order(&quorum.image, leader, None), ids(&[2, 3, 1, 4]));
}
