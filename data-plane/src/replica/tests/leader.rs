//! The leader's replica: producing, reading, failing.

use super::*;

#[test]
fn acks_all_is_answered_when_one_fetch_round_has_brought_it_everywhere() {
    let [mut leader, mut two, mut three] = cluster(&facts());
    assert!(matches!(leader.produce(batch(3), Acks::AllInSync, 7), ReplicaReply::Waiting));
    for follower in [&mut two, &mut three] {
        follower.fetch_from(&mut leader);
        assert_eq!(follower.end(), 3);
        assert!(leader.replies().is_empty(), "the records are there, but only the next question says so");
    }
    two.fetch_from(&mut leader);
    three.fetch_from(&mut leader);
    assert_eq!(leader.replies(), [(7, Ok(0))]);
    assert_eq!((leader.high_watermark(), three.high_watermark()), (3, 3));
}

#[test]
fn acks_of_the_leader_alone_are_answered_at_once_whatever_the_isr() {
    let mut facts = facts();
    facts.config.min_isr = 3;
    facts.state.isr = brokers(&[1, 2]);
    let [mut leader, ..] = cluster(&facts);
    assert_eq!(base(&leader.produce(batch(1), Acks::Leader, 1)), 0);
    assert_eq!(base(&leader.produce(batch(1), Acks::None, 2)), 1);
    assert_eq!(code(&leader.produce(batch(1), Acks::AllInSync, 3)), ErrorCode::NotEnoughReplicas);
    assert_eq!(leader.end(), 2, "nothing was appended for the refused one (H4)");
}

#[test]
fn a_repeated_batch_is_not_appended_and_waits_for_its_original() {
    // R58.
    let [mut leader, mut two, mut three] = cluster(&facts());
    assert!(matches!(leader.produce(idempotent(0, 0), Acks::AllInSync, 1), ReplicaReply::Waiting));
    assert!(matches!(leader.produce(idempotent(0, 1), Acks::AllInSync, 2), ReplicaReply::Waiting));
    assert!(matches!(leader.produce(idempotent(0, 0), Acks::AllInSync, 3), ReplicaReply::Waiting));
    assert_eq!(leader.end(), 2);
    for _ in 0..2 {
        two.fetch_from(&mut leader);
        three.fetch_from(&mut leader);
    }
    assert_eq!(leader.replies(), [(1, Ok(0)), (3, Ok(0)), (2, Ok(1))]);
    assert_eq!(base(&leader.produce(idempotent(0, 1), Acks::AllInSync, 4)), 1, "committed long ago");
}

#[test]
fn gaps_and_old_epochs_of_a_producer_are_refused() {
    let [mut leader, ..] = cluster(&facts());
    leader.produce(idempotent(1, 0), Acks::Leader, 1);
    assert_eq!(code(&leader.produce(idempotent(1, 5), Acks::Leader, 2)), ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(code(&leader.produce(idempotent(0, 1), Acks::Leader, 3)), ErrorCode::InvalidProducerEpoch);
    assert_eq!(leader.end(), 1);
}

#[test]
fn a_follower_refuses_producers_and_names_the_leader() {
    let [_, mut two, _] = cluster(&facts());
    match two.produce(batch(1), Acks::Leader, 1) {
        ReplicaReply::Refused(refusal) => {
            assert_eq!(refusal.code(), ErrorCode::NotLeaderOrFollower);
            assert_eq!(refusal.current_leader(), Some((BrokerId(1), LeaderEpoch(5))));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn when_the_disk_fails_nothing_is_a_success_any_more() {
    // R44, R209: never an acknowledgement, not even for what was stored before.
    let [mut leader, mut two, _] = cluster(&facts());
    assert!(matches!(leader.produce(batch(1), Acks::AllInSync, 1), ReplicaReply::Waiting));
    leader.consume(0, Some(Watch { waiter: WaiterId(5), bytes_min: 1, arrival: None }));
    leader.disk.fail_write_after(0);
    assert_eq!(code(&leader.produce(batch(1), Acks::Leader, 2)), ErrorCode::KafkaStorageError);
    assert_eq!(leader.replies(), [(1, Err(ErrorCode::KafkaStorageError))]);
    assert_eq!(leader.wakes(), [(5, true)], "readers ask again and hear of it");
    let failed = leader.outputs.iter().filter(|output| matches!(output, Output::StorageFailed { .. }));
    assert_eq!(failed.count(), 1);
    leader.disk.fail_write_after(u64::MAX);
    assert_eq!(code(&leader.produce(batch(1), Acks::Leader, 3)), ErrorCode::KafkaStorageError, "no write is retried");
    assert_eq!(code(&leader.consume(0, None)), ErrorCode::KafkaStorageError);
    let point = two.point();
    assert!(matches!(leader.answer(two.id, point), LeaderAnswer::Error(ErrorCode::KafkaStorageError)));
    let status = leader.status();
    assert_eq!((status.role, status.fetch_state), (RoleName::Offline, FetchState::Failed));
    assert!(status.offline.is_some());
    assert!(leader.replica.close_cleanly().is_err(), "the directory must not be marked clean");
}

#[test]
fn a_failed_sync_takes_the_replica_out() {
    let mut facts = facts();
    facts.config.flush_messages = 1;
    let [mut leader, ..] = cluster(&facts);
    assert!(matches!(leader.produce(batch(1), Acks::Leader, 1), ReplicaReply::Waiting));
    leader.disk.fail_sync_after(0);
    leader.sync();
    assert_eq!(leader.replies(), [(1, Err(ErrorCode::KafkaStorageError))], "never retried and believed (R283)");
}

#[test]
fn a_log_is_closed_behind_the_sync_that_was_out_when_it_stopped() {
    let mut facts = facts();
    facts.config.flush_messages = 1;
    let [mut leader, ..] = cluster(&facts);
    assert!(matches!(leader.produce(batch(1), Acks::Leader, 1), ReplicaReply::Waiting));
    leader.ask(ReplicaRequest::Stop);
    assert!(leader.replica.close_cleanly().is_err(), "its job is out");
    assert_eq!(leader.sync(), 1);
    leader.replica.close_cleanly().unwrap();
    // One that failed is not hidden by the stop.
    let [mut leader, ..] = cluster(&facts);
    assert!(matches!(leader.produce(batch(1), Acks::Leader, 1), ReplicaReply::Waiting));
    leader.ask(ReplicaRequest::Stop);
    leader.disk.fail_sync_after(0);
    assert_eq!(leader.sync(), 1);
    assert!(leader.replica.close_cleanly().is_err());
}

#[test]
fn where_every_record_is_synced_acks_wait_for_the_disk_and_share_a_flush() {
    // D23.
    let mut facts = facts();
    facts.config.flush_messages = 1;
    let [mut leader, mut two, mut three] = cluster(&facts);
    for ticket in 1..=3 {
        assert!(matches!(leader.produce(batch(1), Acks::Leader, ticket), ReplicaReply::Waiting));
    }
    assert!(matches!(leader.produce(batch(1), Acks::AllInSync, 4), ReplicaReply::Waiting));
    let job = leader.outputs.iter().position(|output| matches!(output, Output::Sync(_))).unwrap();
    let Output::Sync(job) = leader.outputs.remove(job) else { unreachable!() };
    assert!(!leader.outputs.iter().any(|output| matches!(output, Output::Sync(_))), "one at a time");
    let done = job.run();
    leader.ask(ReplicaRequest::Synced(done));
    assert_eq!(leader.replies(), [(1, Ok(0))], "what was there when it began");
    assert_eq!(leader.sync(), 1, "and one for all that came meanwhile");
    assert_eq!(leader.replies(), [(2, Ok(1)), (3, Ok(2))]);
    for follower in [&mut two, &mut three] {
        assert_eq!(follower.fetch_from(&mut leader), FollowerNext::AwaitSync);
        assert_eq!(follower.next(), FollowerNext::AwaitSync, "it must not vouch for what is not synced");
        follower.sync();
        let fetchable = |output: &Output<SimDisk>| matches!(output, Output::Fetchable(FollowerNext::Fetch(_)));
        assert_eq!(follower.outputs.iter().filter(|output| fetchable(output)).count(), 1);
        follower.fetch_from(&mut leader);
    }
    assert_eq!(leader.replies(), [(4, Ok(3))]);
}

#[test]
fn flush_ms_asks_for_a_flush_when_it_is_due() {
    let mut facts = facts();
    facts.config.flush_ms = 200;
    let [mut leader, ..] = cluster(&facts);
    assert_eq!(base(&leader.produce(batch(1), Acks::Leader, 1)), 0);
    assert_eq!(leader.sync(), 0);
    assert_eq!(leader.tick_at, Some(leader.now.mono + Millis(200)));
    leader.pass(200);
    leader.ask(ReplicaRequest::Tick);
    assert_eq!(leader.sync(), 1);
    assert_eq!(leader.replica.log().view().flushed_end, Offset(1));
}

#[test]
fn a_consumer_reads_below_the_watermark_and_is_woken_when_it_moves() {
    // R69, R74, R81.
    let [mut leader, mut two, mut three] = cluster(&facts());
    leader.produce(batch(2), Acks::Leader, 1);
    let watch = || Some(Watch { waiter: WaiterId(5), bytes_min: 1, arrival: None });
    match leader.consume(0, watch()) {
        ReplicaReply::Fetched(grant) => {
            assert!(grant.plan.is_none() && grant.watched, "{grant:?}");
            assert_eq!((grant.available, grant.high_watermark, grant.log_end), (0, Offset(0), Offset(2)));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(leader.consume(2, None), ReplicaReply::Fetched(_)), "between watermark and end: empty, no error");
    assert_eq!(code(&leader.consume(3, None)), ErrorCode::OffsetOutOfRange);
    leader.produce(batch(1), Acks::Leader, 2);
    assert!(leader.wakes().is_empty(), "an append is nothing for a consumer");
    for _ in 0..2 {
        two.fetch_from(&mut leader);
        three.fetch_from(&mut leader);
    }
    assert_eq!(leader.wakes(), [(5, true)]);
    match leader.consume(0, watch()) {
        ReplicaReply::Fetched(grant) => {
            assert!(!grant.watched && grant.available > 0);
            assert_eq!(grant.plan.unwrap().read().unwrap().len() as u64, grant.available);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_consumer_whose_last_record_was_cut_is_told_where_the_logs_part() {
    // R239: after an unclean election its position may exist again, with other records.
    let mut facts = facts();
    let [mut one, mut two, mut three] = cluster(&facts);
    one.produce(batch(4), Acks::Leader, 1);
    let point = FetchPoint { offset: Offset(4), ..three.point() };
    elect(&mut facts, 2);
    two.take_terms(&facts);
    two.produce(batch(6), Acks::Leader, 2);
    let fetch = Fetch {
        caller: Caller::Consumer(Isolation::ReadUncommitted),
        last_fetched_epoch: Some(LeaderEpoch(5)),
        leader_epoch: None,
        ..follower_fetch(two.id, point, two.now.mono)
    };
    match two.ask(ReplicaRequest::Fetch(fetch)) {
        ReplicaReply::Diverging(diverging) => assert_eq!((diverging.epoch, diverging.end), (LeaderEpoch(5), Offset(0))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_consumer_may_read_a_follower_up_to_its_own_watermark() {
    // R70, R98.
    let [mut leader, mut two, mut three] = cluster(&facts());
    leader.produce(batch(2), Acks::Leader, 1);
    for _ in 0..2 {
        two.fetch_from(&mut leader);
        three.fetch_from(&mut leader);
    }
    assert_eq!((two.high_watermark(), three.high_watermark()), (0, 2), "the first to ask did not hear of it yet");
    assert!(matches!(two.consume(0, None), ReplicaReply::Fetched(FetchGrant { plan: None, .. })));
    assert!(matches!(three.consume(0, None), ReplicaReply::Fetched(FetchGrant { plan: Some(_), .. })));
}

#[test]
fn a_follower_at_the_end_is_woken_by_an_append_and_only_told_of_the_watermark() {
    // D20, R81.
    let [mut leader, mut two, mut three] = cluster(&facts());
    let arrival = LastArrival::default();
    let point = two.point();
    let watch = Watch { waiter: WaiterId(2), bytes_min: 1, arrival: Some(arrival) };
    let fetch = |at| Fetch { watch: Some(watch.clone()), ..follower_fetch(BrokerId(2), point, at) };
    let now = leader.now.mono;
    leader.ask(ReplicaRequest::Fetch(fetch(now)));
    leader.produce(batch(1), Acks::Leader, 1);
    leader.produce(batch(1), Acks::Leader, 2);
    assert_eq!(leader.wakes(), [(2, true)], "once");
    two.fetch_from(&mut leader);
    three.fetch_from(&mut leader);
    assert_eq!(leader.wakes(), [(2, false)], "fetched outside its session, which is to say again where it is");
    let point = two.point();
    leader.ask(ReplicaRequest::Fetch(Fetch { watch: Some(watch.clone()), ..follower_fetch(BrokerId(2), point, now) }));
    assert!(leader.wakes().is_empty());
    three.fetch_from(&mut leader);
    assert_eq!((leader.high_watermark(), leader.wakes()), (2, vec![(2, false)]));
    leader.ask(ReplicaRequest::Unwatch(WaiterId(2)));
    leader.produce(batch(1), Acks::Leader, 3);
    assert!(leader.wakes().is_empty());
}

#[test]
fn an_unanswered_produce_times_out_by_the_tick_it_asked_for() {
    let [mut leader, ..] = cluster(&facts());
    leader.produce(batch(1), Acks::AllInSync, 1);
    let due = leader.tick_at.unwrap();
    assert!(due <= leader.now.mono + Millis(30_000));
    leader.pass(30_000);
    leader.ask(ReplicaRequest::Tick);
    assert_eq!(leader.replies(), [(1, Err(ErrorCode::RequestTimedOut))]);
}

#[test]
fn an_idle_partition_wants_no_ticks() {
    let [mut leader, mut two, mut three] = cluster(&facts());
    leader.produce(batch(1), Acks::AllInSync, 1);
    for _ in 0..2 {
        two.fetch_from(&mut leader);
        three.fetch_from(&mut leader);
    }
    leader.ask(ReplicaRequest::Tick);
    assert_eq!((leader.tick_at, two.tick_at), (None, None));
}

#[test]
fn offsets_are_told_by_who_asks() {
    // R92-R94.
    let [mut leader, mut two, mut three] = cluster(&facts());
    leader.produce(batch(3), Acks::Leader, 1);
    two.fetch_from(&mut leader);
    three.fetch_from(&mut leader);
    let ask = |node: &mut Node, caller, spec| match node.ask(ReplicaRequest::ListOffsets(ListOffsets {
        caller,
        leader_epoch: None,
        spec,
    })) {
        ReplicaReply::ListedOffset(listed) => Ok(listed.offset.map(|offset| offset.0)),
        other => Err(code(&other)),
    };
    let consumer = OffsetsCaller::Consumer(Isolation::ReadUncommitted);
    assert_eq!(ask(&mut leader, consumer, OffsetSpec::Latest), Ok(Some(0)));
    assert_eq!(ask(&mut leader, OffsetsCaller::Replica, OffsetSpec::Latest), Ok(Some(3)));
    assert_eq!(ask(&mut leader, consumer, OffsetSpec::Earliest), Ok(Some(0)));
    assert_eq!(ask(&mut leader, consumer, OffsetSpec::LatestTiered), Ok(None));
    let first = OffsetSpec::AtOrAfter(Timestamp(1_699_999_999_001));
    assert_eq!(ask(&mut leader, consumer, first), Ok(None), "not committed yet");
    assert_eq!(ask(&mut leader, OffsetsCaller::Replica, first), Ok(Some(1)));
    assert_eq!(ask(&mut leader, OffsetsCaller::Replica, OffsetSpec::MaxTimestamp), Ok(Some(2)));
    assert_eq!(ask(&mut two, OffsetsCaller::Debug, OffsetSpec::Latest), Ok(Some(3)));
    assert_eq!(ask(&mut two, consumer, OffsetSpec::Latest), Err(ErrorCode::NotLeaderOrFollower));
    // Broker 2 takes over with a watermark that lags: what it would say could go backwards.
    let mut facts = facts();
    elect(&mut facts, 2);
    two.take_terms(&facts);
    assert_eq!(ask(&mut two, consumer, OffsetSpec::Latest), Err(ErrorCode::OffsetNotAvailable));
    assert_eq!(ask(&mut two, consumer, first), Err(ErrorCode::OffsetNotAvailable));
    assert_eq!(ask(&mut two, consumer, OffsetSpec::Earliest), Ok(Some(0)));
}

#[test]
fn deleted_records_are_gone_for_good_everywhere_before_the_answer() {
    // R274, D33.
    let [mut leader, mut two, mut three] = cluster(&facts());
    leader.produce(batch(3), Acks::Leader, 1);
    for _ in 0..2 {
        two.fetch_from(&mut leader);
        three.fetch_from(&mut leader);
    }
    let delete = |before, ticket| {
        let (before, deadline, ticket) = (Some(Offset(before)), Millis::MAX, Ticket(ticket));
        ReplicaRequest::DeleteRecords(DeleteRecords { before, deadline, ticket })
    };
    assert_eq!(code(&leader.ask(delete(4, 8))), ErrorCode::OffsetOutOfRange);
    assert!(matches!(leader.ask(delete(2, 9)), ReplicaReply::Waiting));
    for _ in 0..2 {
        two.fetch_from(&mut leader);
        three.fetch_from(&mut leader);
    }
    assert_eq!(two.replica.log().view().start, Offset(2));
    assert_eq!(leader.save_starts(), [Offset(2)]);
    assert_eq!(two.save_starts(), [Offset(2)]);
    two.fetch_from(&mut leader);
    three.fetch_from(&mut leader);
    assert!(leader.replies().is_empty(), "replica 3 has not saved it");
    three.outputs.retain(|output| matches!(output, Output::SaveStart(_)));
    three.save_starts();
    let told = three.outputs.iter().find_map(|output| match output {
        Output::Fetchable(FollowerNext::Fetch(point)) => Some(point.log_start),
        _ => None,
    });
    assert_eq!(told, Some(Offset(2)), "it tells the leader at once");
    three.fetch_from(&mut leader);
    assert_eq!(leader.replies(), [(9, Ok(2))]);
    assert_eq!(code(&leader.consume(1, None)), ErrorCode::OffsetOutOfRange);
    assert!(matches!(leader.ask(delete(1, 10)), ReplicaReply::DeletedRecords { low_watermark: Offset(2) }));
    // Broker 3 registers anew, perhaps with an empty disk: what its former process said counts no more.
    let mut facts = facts();
    facts.change_peer(3, |peer| peer.epoch = BrokerEpoch(203));
    leader.take_terms(&facts);
    assert!(matches!(leader.ask(delete(1, 11)), ReplicaReply::Waiting));
}

#[test]
fn the_state_of_every_replica_can_be_told() {
    // operators.md 1.4 A.
    let [mut leader, mut two, _] = cluster(&facts());
    leader.produce(batch(3), Acks::AllInSync, 1);
    leader.pass(250);
    two.fetch_from(&mut leader);
    two.fetch_from(&mut leader);
    let status = leader.status();
    assert_eq!((status.role, status.log_end, status.high_watermark), (RoleName::Leader, Offset(3), Offset(0)));
    let leading = status.leading.unwrap();
    assert_eq!((leading.isr.len(), leading.min_isr, leading.waiting_produces), (3, 2, 1));
    let [one, in_time, behind] = &leading.replicas[..] else { panic!("{:?}", leading.replicas) };
    assert!(one.is_leader && one.fetch_state == FetchState::Leader);
    assert_eq!((in_time.lag_offsets, in_time.lag_bytes, in_time.lag_ms), (Some(0), Some(0), Some(0)));
    assert_eq!(in_time.last_fetch, Some(status.observed));
    assert_eq!((behind.lag_offsets, behind.lag_ms), (Some(3), Some(250)));
    assert!(behind.lag_bytes.unwrap() > 0 && behind.is_in_isr && behind.is_caught_up);
    assert_eq!(behind.last_caught_up, Some(Timestamp(status.observed.0 - 250)));
    let status = two.status();
    assert_eq!(
        (status.role, status.leader, status.fetch_state),
        (RoleName::Follower, Some(BrokerId(1)), FetchState::Fetching)
    );
    assert!(status.leading.is_none());
}

#[test]
fn a_follower_that_stops_fetching_is_proposed_for_leaving_and_the_answer_frees_producers() {
    let facts = facts();
    let [mut leader, mut two, _] = cluster(&facts);
    leader.produce(batch(1), Acks::AllInSync, 1);
    two.fetch_from(&mut leader);
    leader.pass(20_000);
    two.fetch_from(&mut leader);
    leader.ask(ReplicaRequest::Tick);
    assert!(leader.proposals().is_empty());
    leader.pass(10_001);
    leader.produce(batch(1), Acks::AllInSync, 2);
    two.fetch_from(&mut leader);
    two.fetch_from(&mut leader);
    leader.ask(ReplicaRequest::Tick);
    leader.pass(15_000);
    leader.ask(ReplicaRequest::Tick);
    let proposals = leader.proposals();
    assert_eq!(members(&proposals[0]), [1, 2]);
    let answered = IsrAnswered { proposal: proposals[0].clone(), result: Ok(facts.accept(&proposals[0])) };
    leader.replies();
    leader.ask(ReplicaRequest::IsrAnswered(Box::new(answered)));
    assert_eq!(leader.high_watermark(), 2);
}

#[test]
fn once_stopped_it_refuses_everything_and_can_be_closed_in_order() {
    let [mut leader, ..] = cluster(&facts());
    leader.produce(batch(1), Acks::AllInSync, 1);
    leader.ask(ReplicaRequest::Stop);
    assert_eq!(leader.replies(), [(1, Err(ErrorCode::NotLeaderOrFollower))]);
    assert_eq!(code(&leader.produce(batch(1), Acks::Leader, 2)), ErrorCode::NotLeaderOrFollower);
    let checkpoint = leader.replica.close_cleanly().unwrap();
    assert_eq!((checkpoint.recovery_point, checkpoint.high_watermark), (Offset(1), Offset(0)));
    let Node { disk, replica, outputs, .. } = leader;
    drop((replica, outputs));
    let mut again = Node::open(1, disk);
    assert_eq!((again.end(), again.status().role), (1, RoleName::Idle));
}
