//! Which fetches of followers count, and what the others are told.

use super::*;

#[test]
fn a_fetch_of_another_leader_epoch_is_refused_and_counts_for_nothing() {
    // KIP-320, R237, R238.
    let mut stage = Stage::in_sync(2);
    stage.append(5);
    for (epoch, expected) in [(4, ErrorCode::FencedLeaderEpoch), (6, ErrorCode::UnknownLeaderEpoch)] {
        let question = FollowerFetch { leader_epoch: Some(LeaderEpoch(epoch)), ..stage.question(2, 15) };
        assert_eq!(code(stage.ask(&question)), expected);
    }
    let question = FollowerFetch { leader_epoch: None, ..stage.question(2, 15) };
    assert_eq!(code(stage.ask(&question)), ErrorCode::NotLeaderOrFollower, "a follower must send it (R72)");
    assert_eq!(stage.leader.follower_ends().next(), Some((BrokerId(2), Some(Offset(10)))));
}

#[test]
fn a_fetch_of_a_broker_outside_the_assignment_leaves_no_trace() {
    let mut stage = Stage::in_sync(2);
    stage.facts.peers.insert(BrokerId(4), stage.facts.peers[&BrokerId(3)]);
    let terms = stage.facts.change_peer(4, |_| {});
    stage.image(&terms);
    assert_eq!(code(stage.fetch(4, 10)), ErrorCode::UnknownLeaderEpoch, "R73: our metadata may be behind");
    assert_eq!(stage.leader.follower_ends().count(), 2);
}

#[test]
fn a_late_fetch_of_a_former_process_of_the_follower_is_refused() {
    // R103, R243.
    let mut stage = Stage::in_sync(2);
    stage.append(5);
    let late = stage.question(3, 15);
    let terms = stage.facts.change_peer(3, |peer| peer.epoch = BrokerEpoch(203));
    stage.image(&terms);
    assert_eq!(code(stage.ask(&late)), ErrorCode::NotLeaderOrFollower);
    assert_eq!(stage.leader.follower_ends().last(), Some((BrokerId(3), Some(Offset(10)))));
}

#[test]
fn a_fetch_of_a_process_we_have_not_heard_of_waits_for_our_metadata() {
    // D22.
    let mut stage = Stage::in_sync(2);
    let question = FollowerFetch { broker_epoch: Some(BrokerEpoch(999)), ..stage.question(3, 10) };
    assert_eq!(code(stage.ask(&question)), ErrorCode::UnknownLeaderEpoch);
    let question = FollowerFetch { broker_epoch: None, ..stage.question(3, 10) };
    assert_eq!(code(stage.ask(&question)), ErrorCode::UnknownLeaderEpoch);
}

#[test]
fn a_fetch_above_the_point_where_logs_part_is_told_so_and_acknowledges_nothing() {
    // KAFKA-13141, KAFKA-8400, R100, R247, R248.
    let log = Numbers::new(&[(1, 0), (4, 6)], 10);
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 1), log, 0);
    let question = FollowerFetch { last_fetched_epoch: Some(LeaderEpoch(3)), ..stage.question(2, 9) };
    let diverges = FetchVerdict::Diverges { epoch: LeaderEpoch(1), end: Offset(6) };
    assert_eq!(stage.ask(&question), Ok(diverges), "the largest epoch at or below the one asked (R95, KIP-279)");
    let question = FollowerFetch { last_fetched_epoch: Some(LeaderEpoch(1)), ..stage.question(2, 8) };
    assert_eq!(stage.ask(&question), Ok(diverges), "of the same epoch, but longer than it was");
    assert_eq!(stage.leader.follower_ends().next(), Some((BrokerId(2), None)));
    assert_eq!(stage.high_watermark(), 0);
}

#[test]
fn offsets_outside_the_log_are_out_of_range_before_anything_is_compared() {
    let mut stage = Stage::in_sync(2);
    stage.log.start = Offset(4);
    let question = FollowerFetch { last_fetched_epoch: Some(LeaderEpoch(2)), ..stage.question(2, 3) };
    assert_eq!(code(stage.ask(&question)), ErrorCode::OffsetOutOfRange, "R99: the log start first");
    let question = FollowerFetch { last_fetched_epoch: Some(LeaderEpoch(9)), ..stage.question(2, 10) };
    assert_eq!(code(stage.ask(&question)), ErrorCode::OffsetOutOfRange, "an epoch we have never heard of");
    let question = FollowerFetch { last_fetched_epoch: None, ..stage.question(2, 11) };
    assert_eq!(code(stage.ask(&question)), ErrorCode::OffsetOutOfRange);
    let verdict =
        compare_logs(Offset(0), None, &LogView { epochs: &EpochHistory::default(), ..Numbers::new(&[], 0).view() });
    assert_eq!(verdict, Ok(FetchVerdict::Agrees), "an empty log at the start of an empty log");
}

#[test]
fn a_follower_outside_the_isr_begins_anew_where_our_history_says_nothing_of_its_log() {
    // The follower's tail of epoch 3 was given up, and what took its place was deleted up to 6, just where that tail ends.
    let log = Numbers { start: Offset(6), ..Numbers::new(&[(4, 6)], 10) };
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 1), log, 6);
    let told = |stage: &mut Stage, replica, offset, last: Option<i32>| {
        let last_fetched_epoch = last.map(LeaderEpoch);
        stage.ask(&FollowerFetch { last_fetched_epoch, ..stage.question(replica, offset) })
    };
    let begins_at = |epoch, end| Ok(FetchVerdict::Diverges { epoch: LeaderEpoch(epoch), end: Offset(end) });
    assert_eq!(told(&mut stage, 3, 6, Some(3)), begins_at(3, 6), "its epoch was deleted here, if it ever was here");
    assert_eq!(told(&mut stage, 3, 8, None), begins_at(5, 6), "and what lies below its empty log was not deleted here");
    assert_eq!(stage.leader.follower_ends().last(), Some((BrokerId(3), None)), "neither proves anything");
    assert_eq!(told(&mut stage, 3, 6, None), Ok(FetchVerdict::Agrees), "begun anew");
    assert_eq!(told(&mut stage, 3, 8, Some(4)), Ok(FetchVerdict::Agrees), "what is here can be compared");
    assert_eq!(told(&mut stage, 2, 6, Some(3)), Ok(FetchVerdict::Agrees), "a member of the ISR has proved it before");
    // A kill may bring an older start back, without the epochs (R274).
    stage.log.start = Offset(5);
    assert_eq!(told(&mut stage, 3, 6, Some(3)), begins_at(3, 5));
}

#[test]
fn a_member_of_the_elr_does_not_begin_anew() {
    // It may be elected, and must hold all that was committed (5320).
    let mut facts = Facts::new(&[1, 2, 3], &[1, 2], 5, 3);
    facts.state.elr = brokers(&[3]);
    let mut stage = Stage::new(facts, Numbers { start: Offset(6), ..Numbers::new(&[(4, 6)], 10) }, 6);
    let question = FollowerFetch { last_fetched_epoch: None, ..stage.question(3, 8) };
    assert_eq!(stage.ask(&question), Ok(FetchVerdict::Agrees));
    let terms = stage.facts.change(|state| state.elr.clear());
    stage.image(&terms);
    let begins = FetchVerdict::Diverges { epoch: LeaderEpoch(5), end: Offset(6) };
    assert_eq!(stage.leader.follower_ends().last(), Some((BrokerId(3), Some(Offset(8)))));
    assert_eq!(stage.ask(&question), Ok(begins), "once it is waited for no more");
    let told = stage.leader.follower_ends().last();
    assert_eq!(told, Some((BrokerId(3), None)), "it begins anew, so nothing of it counts (S11, seed 11794)");
}

#[test]
fn where_the_last_deleted_record_is_known_a_follower_that_ends_with_it_goes_on() {
    // Beginning anew it would forget the sequences of producers.
    let mut log = Numbers::new(&[(2, 0), (4, 6)], 10);
    log.epochs.truncate_from_start(Offset(6));
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 1), Numbers { start: Offset(6), ..log }, 6);
    let question = FollowerFetch { last_fetched_epoch: Some(LeaderEpoch(3)), ..stage.question(3, 6) };
    assert_eq!(stage.ask(&question), Ok(FetchVerdict::Diverges { epoch: LeaderEpoch(3), end: Offset(6) }));
    let question = FollowerFetch { last_fetched_epoch: Some(LeaderEpoch(2)), ..question };
    assert_eq!(stage.ask(&question), Ok(FetchVerdict::Agrees));
}
