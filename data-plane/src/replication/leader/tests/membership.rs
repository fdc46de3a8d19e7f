//! Who leaves the ISR, who joins it, and what becomes of a proposal.

use super::*;

#[test]
fn a_replica_removed_and_added_again_starts_from_nothing() {
    // R107, R261.
    let mut stage = Stage::in_sync(2);
    let terms = stage.facts.change(|state| {
        state.replicas = brokers(&[1, 2]);
        state.isr = brokers(&[1, 2]);
    });
    stage.image(&terms);
    let terms = stage.facts.change(|state| state.replicas = brokers(&[1, 2, 3]));
    stage.image(&terms);
    assert_eq!(stage.leader.follower_ends().last(), Some((BrokerId(3), None)));
}

// Who joins (R111, R115–R118).

#[test]
fn a_replica_joins_only_from_the_watermark_and_the_start_of_the_epoch_on() {
    // KAFKA-7128, R240: the new leader's watermark lags at 5, but 5..10 may be committed.
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 1), Numbers::new(&[(4, 0)], 10), 5);
    stage.fetch(3, 5).unwrap();
    assert!(proposals(&stage.effects).is_empty());
    stage.fetch(3, 10).unwrap();
    let proposal = stage.proposal();
    assert_eq!(members(&proposal), [1, 2, 3]);
    assert_eq!(proposal.why, IsrReason::Expand(ExpandReason::CaughtUp));
    assert_eq!(proposal.evidence[0].follower_end, Some(Offset(10)));
    assert_eq!(proposal.isr[2], (BrokerId(3), BrokerEpoch(103)), "vouched for as the process that fetched");
}

#[test]
fn a_fenced_or_departing_replica_does_not_join_until_it_is_active_again() {
    let mut facts = Facts::new(&[1, 2, 3], &[1, 2], 5, 1);
    facts.peers.get_mut(&BrokerId(3)).unwrap().active = false;
    let mut stage = Stage::new(facts, Numbers::new(&[(4, 0)], 10), 10);
    stage.fetch(3, 10).unwrap();
    assert!(proposals(&stage.effects).is_empty());
    let terms = stage.facts.change_peer(3, |peer| peer.active = true);
    stage.image(&terms);
    let proposal = stage.proposal();
    assert_eq!(members(&proposal), [1, 2, 3], "silent at the end: nothing else would let it in (D20)");
    assert_eq!(proposal.why, IsrReason::Expand(ExpandReason::BrokerReturned));
}

#[test]
fn one_replica_joins_at_a_time_and_the_next_follows_without_another_fetch() {
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1], 5, 1), Numbers::new(&[(4, 0)], 10), 10);
    stage.fetch(2, 10).unwrap();
    stage.fetch(3, 10).unwrap();
    let proposal = stage.proposal();
    assert_eq!(members(&proposal), [1, 2]);
    stage.answer(&proposal, Ok(()));
    assert_eq!(members(&stage.proposal()), [1, 2, 3]);
}

#[test]
fn under_min_isr_reaching_the_watermark_is_not_enough_to_join() {
    // KAFKA-19996, R118, R255: the watermark is frozen there, and the replica would fall out again.
    let (mut stage, proposal) = Stage::shrinking(3);
    stage.answer(&proposal, Ok(()));
    stage.append(100);
    stage.effects.clear();
    stage.fetch(3, 12).unwrap();
    assert!(proposals(&stage.effects).is_empty());
    stage.fetch(3, 115).unwrap();
    assert_eq!(members(&stage.proposal()), [1, 2, 3]);
}

#[test]
fn a_refused_join_is_not_repeated_at_once() {
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 1), Numbers::new(&[(4, 0)], 10), 10);
    stage.fetch(3, 10).unwrap();
    let proposal = stage.proposal();
    stage.answer(&proposal, Err(ErrorCode::IneligibleReplica));
    stage.tick();
    assert!(proposals(&stage.effects).is_empty());
    stage.now = stage.leader.tick_at(&stage.log.view(), stage.now).unwrap();
    stage.tick();
    assert_eq!(members(&stage.proposal()), [1, 2, 3], "but after a rest, though it is silent at the end");
}

#[test]
fn a_proposal_is_sent_again_unchanged_even_if_the_follower_registered_anew() {
    // R242 (seed 382 of the first prototype): a newer broker epoch would vouch for a process that lost its disk.
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 1), Numbers::new(&[(4, 0)], 10), 10);
    stage.fetch(3, 10).unwrap();
    let proposal = stage.proposal();
    let terms = stage.facts.change_peer(3, |peer| peer.epoch = BrokerEpoch(203));
    stage.image(&terms);
    stage.now = stage.now + RESEND_UNANSWERED;
    stage.tick();
    assert_eq!(stage.proposal(), proposal);
}

// Who leaves (R108, R112–R114, D36).

#[test]
fn a_silent_follower_leaves_after_the_lag_limit_with_the_reason_and_what_was_seen() {
    let (stage, proposal) = Stage::shrinking(2);
    assert_eq!(members(&proposal), [1, 2]);
    assert_eq!(proposal.why, IsrReason::Shrink(ShrinkReason::FollowerStoppedFetching));
    assert_eq!(proposal.partition_epoch, stage.facts.state.partition_epoch);
    let [evidence] = &proposal.evidence[..] else { panic!("{:?}", proposal.evidence) };
    assert_eq!(
        (evidence.broker, evidence.follower_end, evidence.leader_end),
        (BrokerId(3), Some(Offset(10)), Some(Offset(15)))
    );
    assert_eq!(evidence.last_fetch_age_ms, Some(LAG_MAX.0 + 1));
    assert_eq!(evidence.lag_ms, Some(LAG_MAX.0 + 1));
}

#[test]
fn a_leader_that_asks_to_be_alone_says_first_what_it_has_committed() {
    // D12: whoever counts a loss may not count what lies beyond; the leader may be gone before it commits that.
    let mut stage = Stage::new(Facts::new(&[1, 2], &[1, 2], 5, 1), Numbers::new(&[(4, 0)], 10), 8);
    stage.fetch(2, 9).unwrap();
    stage.append(5);
    stage.now = stage.now + Millis(LAG_MAX.0 + 1);
    stage.tick();
    let proposal = stage.proposal();
    assert_eq!(members(&proposal), [1]);
    let said: Vec<_> = proposal.evidence.iter().map(|it| (it.broker.0, it.leader_end.map(|end| end.0))).collect();
    assert_eq!(said, [(1, Some(9)), (2, Some(15))]);
}

#[test]
fn a_follower_that_fetches_but_stays_behind_leaves_as_slow() {
    let mut stage = Stage::in_sync(2);
    for second in 1..=31 {
        stage.now = stage.now + Millis(1_000);
        stage.append(50);
        stage.fetch(2, 10 + 50 * second).unwrap();
        stage.fetch(3, 10 + second).unwrap();
    }
    stage.tick();
    let proposal = stage.proposal();
    assert_eq!(members(&proposal), [1, 2]);
    assert_eq!(proposal.why, IsrReason::Shrink(ShrinkReason::FollowerSlow));
    assert_eq!(proposal.evidence[0].last_fetch_age_ms, Some(0));
}

#[test]
fn nobody_leaves_an_idle_partition() {
    // R108, D36: at the leader's end a follower may be cut off for ever; the first append starts the timer.
    let mut stage = Stage::in_sync(2);
    assert_eq!(stage.leader.tick_at(&stage.log.view(), stage.now), None, "and nothing ticks");
    stage.now = stage.now + Millis(10 * LAG_MAX.0);
    stage.tick();
    assert!(proposals(&stage.effects).is_empty());
    stage.append(1);
    assert!(stage.leader.tick_at(&stage.log.view(), stage.now).is_some());
    stage.tick();
    assert!(proposals(&stage.effects).is_empty(), "the check of this half period is done");
    stage.now = stage.now + Millis(LAG_MAX.0 / 2);
    stage.tick();
    assert_eq!(members(&stage.proposal()), [1]);
}

#[test]
fn a_member_that_a_new_leader_never_hears_of_leaves_though_nobody_writes() {
    // R109: the watermark waits for it, and its consumers get nothing.
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2, 3], 5, 1), Numbers::new(&[(4, 0)], 10), 8);
    stage.fetch(2, 10).unwrap();
    let began = stage.now;
    while proposals(&stage.effects).is_empty() {
        stage.now = stage.leader.tick_at(&stage.log.view(), stage.now).expect("it is looked at again");
        assert!(stage.now - began <= Millis(2 * LAG_MAX.0), "it stays for ever");
        stage.tick();
    }
    let proposal = stage.proposal();
    assert_eq!((members(&proposal), proposal.evidence[0].follower_end), (vec![1, 2], None));
}

#[test]
fn a_session_that_asks_in_silence_keeps_its_partitions_in_the_isr() {
    // D20.
    let mut stage = Stage::in_sync(2);
    let arrival = LastArrival::default();
    for replica in [2, 3] {
        let session = Some(Session { waiter: WaiterId(replica as u64), arrival: arrival.clone() });
        let question = FollowerFetch { session, ..stage.question(replica, 10) };
        stage.ask(&question).unwrap();
    }
    stage.now = stage.now + Millis(10 * LAG_MAX.0);
    arrival.store(stage.now);
    stage.append(1);
    stage.now = stage.now + LAG_MAX;
    stage.tick();
    assert!(proposals(&stage.effects).is_empty());
    stage.now = stage.now + LAG_MAX;
    stage.tick();
    assert_eq!(members(&stage.proposal()), [1], "its last request came before the append");
}

#[test]
fn the_silence_of_a_session_counts_no_more_after_its_broker_registered_anew() {
    let mut stage = Stage::in_sync(2);
    let arrival = LastArrival::default();
    let session = Some(Session { waiter: WaiterId(3), arrival: arrival.clone() });
    let question = FollowerFetch { session, ..stage.question(3, 10) };
    stage.ask(&question).unwrap();
    let terms = stage.facts.change_peer(3, |peer| peer.epoch = BrokerEpoch(203));
    stage.image(&terms);
    arrival.store(stage.now + LAG_MAX);
    let now = stage.now;
    let view = stage.log.view();
    let last_fetch = stage.leader.standings(&view, now).last().unwrap().progress.last_fetch();
    assert_eq!(last_fetch, Some(now), "D20, R103");
}

#[test]
fn nobody_else_leaves_while_a_change_is_pending() {
    let (mut stage, _) = Stage::shrinking(1);
    stage.now = stage.now + LAG_MAX;
    stage.tick();
    assert!(proposals(&stage.effects).iter().all(|proposal| members(proposal) == [1, 2]), "the same one, sent again");
}

#[test]
fn metadata_ends_a_pending_change_whatever_came_of_it() {
    // R135.
    let (mut stage, proposal) = Stage::shrinking(2);
    assert_eq!(
        stage.answer(&proposal, Err(ErrorCode::InvalidUpdateVersion)),
        IsrOutcome::AwaitsMetadata(ErrorCode::InvalidUpdateVersion)
    );
    assert!(stage.leader.isr().maximal_contains(BrokerId(3)));
    let terms = stage.facts.change(|state| state.isr = brokers(&[1, 2]));
    stage.image(&terms);
    assert_eq!(stage.leader.isr().pending(), None);
    assert_eq!(stage.high_watermark(), 15);
}

#[test]
fn an_image_older_than_an_answer_does_not_bring_the_old_isr_back() {
    let (mut stage, proposal) = Stage::shrinking(2);
    let older = stage.facts.terms();
    stage.answer(&proposal, Ok(()));
    stage.image(&older);
    assert_eq!(stage.leader.isr().committed(), brokers(&[1, 2]));
}

#[test]
fn each_change_of_the_isr_is_told_once() {
    let (mut stage, proposal) = Stage::shrinking(2);
    stage.answer(&proposal, Ok(()));
    let terms = stage.facts.terms();
    stage.image(&terms);
    let told = stage.effects.iter().filter(|effect| matches!(effect, Effect::Note(Note::IsrChanged { .. })));
    assert_eq!(told.count(), 1);
}

// What readers are told (R81, R94).
