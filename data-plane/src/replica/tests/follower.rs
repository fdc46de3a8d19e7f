//! The follower's replica, and what changes of leader do to it.

use super::*;
use crate::disk::sim::Crash;

/// Runs fetch rounds, syncs included, until the follower has nothing left to ask.
fn catch_up(follower: &mut Node, leader: &mut Node) {
    for _ in 0..20 {
        follower.sync();
        let point = match follower.next() {
            FollowerNext::Fetch(point) => point,
            FollowerNext::AskLeader(point) => {
                follower.hear(point, leader.holds());
                continue;
            }
            other => panic!("{other:?}"),
        };
        let answer = leader.answer(follower.id, point);
        let nothing = matches!(&answer, LeaderAnswer::Records { records, .. } if records.is_empty());
        follower.feed(point, answer);
        if nothing {
            return;
        }
    }
    panic!("it never catches up");
}

/// All bytes of a log.
fn content(node: &Node) -> Bytes {
    let view = node.replica.log().view();
    node.replica.log().plan_read(view.start, view.end, usize::MAX, true).unwrap().read().unwrap()
}

#[test]
fn the_logs_are_equal_byte_by_byte() {
    let [mut leader, mut two, mut three] = cluster(&facts());
    for records in [1, 5, 2] {
        leader.produce(batch(records), Acks::Leader, 1);
    }
    catch_up(&mut two, &mut leader);
    catch_up(&mut three, &mut leader);
    assert_eq!(content(&two), content(&leader));
    assert_eq!(content(&three), content(&leader));
}

#[test]
fn a_former_leader_cuts_what_nobody_shares_and_hears_of_its_producers_first() {
    // R51, R235 (KIP-101), R230.
    let mut facts = facts();
    let [mut one, mut two, mut three] = cluster(&facts);
    one.produce(batch(2), Acks::AllInSync, 1);
    catch_up(&mut two, &mut one);
    catch_up(&mut three, &mut one);
    assert_eq!(one.replies(), [(1, Ok(0))]);
    one.produce(batch(3), Acks::AllInSync, 2);
    elect(&mut facts, 2);
    two.take_terms(&facts);
    two.produce(batch(1), Acks::Leader, 3);
    assert!(matches!(one.take_terms(&facts), Became::Follower(FollowerNext::Fetch(_))));
    assert_eq!(one.replies(), [(2, Err(ErrorCode::NotLeaderOrFollower))]);
    assert_eq!(one.end(), 5, "and nothing was cut before that");
    let next = one.fetch_from(&mut two);
    assert_eq!(next, FollowerNext::AwaitSync, "the cut is finished before the next fetch (D24)");
    assert_eq!(one.end(), 2);
    assert!(one.notes().iter().any(|note| matches!(note, Note::Truncated { from: Offset(5), to: Offset(2), .. })));
    assert_eq!(one.status().fetch_state, FetchState::Truncating);
    one.sync();
    assert!(one.outputs.iter().any(|output| matches!(output, Output::Fetchable(FollowerNext::Fetch(_)))));
    catch_up(&mut one, &mut two);
    assert_eq!(content(&one), content(&two));
}

#[test]
fn restarting_does_not_cut_the_log_to_its_watermark() {
    // KIP-101, R234: broker 2 knew a watermark of 0 when it was killed, and led afterwards.
    let mut facts = facts();
    let [mut one, two, mut three] = cluster(&facts);
    let mut two = two;
    one.produce(batch(2), Acks::AllInSync, 1);
    two.fetch_from(&mut one);
    three.fetch_from(&mut one);
    three.fetch_from(&mut one);
    let point = two.point();
    one.answer(two.id, point);
    assert_eq!((one.replies(), two.high_watermark()), (vec![(1, Ok(0))], 0));
    let Node { disk, replica, .. } = two;
    drop(replica);
    let mut two = Node::open(2, disk);
    two.take_terms(&facts);
    two.sync();
    assert_eq!((two.end(), two.point().offset), (2, Offset(2)));
    elect(&mut facts, 2);
    two.take_terms(&facts);
    assert_eq!(two.end(), 2, "the acknowledged records are there");
}

#[test]
fn an_answer_from_before_a_change_of_leader_changes_nothing() {
    // R152, R250, R257.
    let mut facts = facts();
    let [mut one, mut two, _] = cluster(&facts);
    one.produce(batch(2), Acks::Leader, 1);
    let point = two.point();
    let late = one.answer(two.id, point);
    elect(&mut facts, 3);
    two.take_terms(&facts);
    assert_eq!(two.feed(point, late), FollowerNext::Dropped);
    assert_eq!((two.end(), two.high_watermark()), (0, 0));
}

#[test]
fn records_of_an_epoch_it_has_not_heard_of_are_left_out() {
    // KAFKA-18723, R154, R250.
    let mut newer = facts();
    elect(&mut newer, 1);
    let [mut one, mut two, _] = cluster(&facts());
    one.produce(batch(1), Acks::Leader, 1);
    let point = two.point();
    one.take_terms(&newer);
    one.produce(batch(1), Acks::Leader, 2);
    // A late answer of the same broker, which leads in a newer epoch by now.
    let answer = one.answer(two.id, FetchPoint { leader_epoch: LeaderEpoch(6), ..point });
    let next = two.feed(point, answer);
    assert!(matches!(next, FollowerNext::BackOff { error: ErrorCode::UnknownLeaderEpoch, .. }), "{next:?}");
    assert_eq!(two.end(), 1, "what comes before is good");
}

#[test]
fn damaged_records_are_refused_with_the_leaders_name_and_asked_for_again() {
    // D27.
    let [mut one, mut two, _] = cluster(&facts());
    one.produce(batch(1), Acks::Leader, 1);
    let point = two.point();
    let LeaderAnswer::Records { records, high_watermark, log_start } = one.answer(two.id, point) else { panic!() };
    let mut damaged = records.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let next = two.feed(point, LeaderAnswer::Records { records: damaged.into(), high_watermark, log_start });
    assert_eq!(next, FollowerNext::BackOff { point, error: ErrorCode::CorruptMessage });
    assert_eq!(two.end(), 0);
    let named = |note: &&&Note| matches!(note, Note::CorruptFetch { leader: BrokerId(1), .. });
    assert_eq!(two.notes().iter().filter(named).count(), 1);
    assert_eq!(two.status().fetch_state, FetchState::BackingOff);
    catch_up(&mut two, &mut one);
    assert_eq!(two.end(), 1);
}

#[test]
fn a_replica_far_behind_starts_anew_where_the_leaders_log_starts() {
    // R162, R153: the leader's log starts inside a batch, and the follower takes that batch whole.
    let facts = facts();
    let [mut one, mut two, mut three] = cluster(&facts);
    for _ in 0..3 {
        one.produce(batch(4), Acks::Leader, 1);
    }
    catch_up(&mut two, &mut one);
    catch_up(&mut three, &mut one);
    let (before, deadline) = (Some(Offset(6)), Millis::MAX);
    one.ask(ReplicaRequest::DeleteRecords(DeleteRecords { before, deadline, ticket: Ticket(1) }));
    let mut three = Node::new(3);
    three.take_terms(&facts);
    three.sync();
    let point = three.point();
    let answer = one.answer(three.id, point);
    assert!(matches!(answer, LeaderAnswer::Error(ErrorCode::OffsetOutOfRange)), "{answer:?}");
    assert_eq!(three.feed(point, answer), FollowerNext::AskLeader(point));
    let holds = one.holds();
    assert_eq!((holds.start, holds.end), (Offset(6), Offset(12)));
    assert_eq!(three.hear(point, holds), FollowerNext::AwaitSync);
    three.sync();
    assert_eq!(three.point().offset, Offset(6));
    catch_up(&mut three, &mut one);
    let view = three.replica.log().view();
    assert_eq!((view.start, view.end), (Offset(6), Offset(12)));
}

/// Broker 1 leads a log that begins at 1; an idempotent producer's only batch was below.
fn with_a_producer_whose_batch_is_deleted(facts: &Facts) -> [Node; 3] {
    let [mut one, mut two, mut three] = cluster(facts);
    one.produce(idempotent(0, 0), Acks::Leader, 1);
    one.produce(batch(2), Acks::Leader, 2);
    for follower in [&mut two, &mut three] {
        catch_up(follower, &mut one);
    }
    let (before, deadline) = (Some(Offset(1)), Millis::MAX);
    one.ask(ReplicaRequest::DeleteRecords(DeleteRecords { before, deadline, ticket: Ticket(3) }));
    assert_eq!(one.replica.log().view().start, Offset(1));
    [one, two, three]
}

#[test]
fn who_begins_behind_deleted_batches_knows_their_producers() {
    // H3, R58: it would store a repeated batch a second time when it leads.
    let mut facts = facts();
    let [mut one, _, _] = with_a_producer_whose_batch_is_deleted(&facts);
    one.produce(
        RecordBatchBuilder::new().producer(ProducerId(8), ProducerEpoch(0), 0).value(one.now.wall, b"b").build(),
        Acks::Leader,
        4,
    );
    let mut three = Node::new(3);
    three.take_terms(&facts);
    catch_up(&mut three, &mut one);
    assert_eq!(three.replica.log().producer_count(), 2, "one of them by its batch");
    let disk = three.disk.clone();
    disk.crash(Crash::Killed);
    let mut three = Node::open(3, disk);
    elect(&mut facts, 3);
    three.take_terms(&facts);
    assert_eq!(base(&three.produce(idempotent(0, 0), Acks::Leader, 5)), 0, "answered as it was the first time");
    assert_eq!(three.end(), 4);
}

#[test]
fn a_batch_that_is_still_to_be_fetched_is_not_known_before() {
    // It may never come: who then leads must store its repetition.
    let facts = facts();
    let [mut one, _, _] = with_a_producer_whose_batch_is_deleted(&facts);
    one.produce(idempotent(0, 1), Acks::Leader, 4);
    let mut three = Node::new(3);
    three.take_terms(&facts);
    three.sync();
    let point = three.point();
    let answer = one.answer(three.id, point);
    three.feed(point, answer);
    three.hear(point, one.holds());
    assert_eq!((three.end(), three.replica.log().producer_count()), (1, 0));
    catch_up(&mut three, &mut one);
    let newest = |node: &Node| node.replica.log().producers().active().collect::<Vec<_>>();
    assert_eq!(newest(&three), newest(&one));
}

#[test]
fn a_log_that_was_begun_anew_and_killed_asks_for_producers_before_it_fetches() {
    let facts = facts();
    let [mut one, _, _] = with_a_producer_whose_batch_is_deleted(&facts);
    let mut three = Node::new(3);
    three.take_terms(&facts);
    three.sync();
    let point = three.point();
    let answer = one.answer(three.id, point);
    three.feed(point, answer);
    three.hear(point, one.holds());
    // Nothing was synced since: the snapshot of the producers is not there.
    let disk = three.disk.clone();
    disk.crash(Crash::Killed);
    let mut three = Node::open(3, disk);
    three.take_terms(&facts);
    three.sync();
    assert_eq!(three.end(), 1);
    let FollowerNext::AskLeader(point) = three.next() else { panic!("{:?}", three.next()) };
    let offsets = LeaderOffsets { requested: point, answer: Err(ErrorCode::NetworkException) };
    assert_eq!(
        next_of(three.ask(ReplicaRequest::LeaderOffsets(offsets))),
        FollowerNext::AskLeader(point),
        "nothing else"
    );
    assert_eq!(three.hear(point, one.holds()), FollowerNext::AwaitSync);
    catch_up(&mut three, &mut one);
    assert_eq!(three.replica.log().producers(), one.replica.log().producers());
}

#[test]
fn when_the_leaders_offsets_cannot_be_had_it_tries_again_later() {
    let [mut one, mut two, _] = cluster(&facts());
    let point = two.point();
    two.feed(point, LeaderAnswer::Error(ErrorCode::OffsetOutOfRange));
    let offsets = LeaderOffsets { requested: point, answer: Err(ErrorCode::NetworkException) };
    let next = next_of(two.ask(ReplicaRequest::LeaderOffsets(offsets)));
    assert_eq!(next, FollowerNext::BackOff { point, error: ErrorCode::NetworkException });
    catch_up(&mut two, &mut one);
}

#[test]
fn fenced_it_waits_for_metadata() {
    // R163.
    let mut newer = facts();
    elect(&mut newer, 1);
    let [mut one, mut two, _] = cluster(&facts());
    one.take_terms(&newer);
    assert_eq!(two.fetch_from(&mut one), FollowerNext::AwaitMetadata);
    assert_eq!(two.status().fetch_state, FetchState::AwaitingMetadata);
    assert!(matches!(two.take_terms(&newer), Became::Follower(FollowerNext::Fetch(_))));
    catch_up(&mut two, &mut one);
}

#[test]
fn a_cut_below_the_own_watermark_is_an_error_in_the_log() {
    // R161.
    let mut facts = facts();
    let [mut one, mut two, mut three] = cluster(&facts);
    one.produce(batch(2), Acks::AllInSync, 1);
    catch_up(&mut two, &mut one);
    catch_up(&mut three, &mut one);
    catch_up(&mut two, &mut one);
    assert_eq!(two.high_watermark(), 2);
    let mut wiped = Node::new(3);
    elect(&mut facts, 3);
    wiped.take_terms(&facts);
    wiped.produce(batch(1), Acks::Leader, 2);
    two.take_terms(&facts);
    two.fetch_from(&mut wiped);
    two.sync();
    let told = |note: &&&Note| matches!(note, Note::TruncatedBelowWatermark { from: Offset(2), .. });
    if two.end() == 2 {
        // Unknown epoch at the leader: out of range first.
        let FollowerNext::AskLeader(requested) = two.next() else { panic!("{:?}", two.next()) };
        two.hear(requested, wiped.holds());
    }
    assert_eq!(two.notes().iter().filter(told).count(), 1, "{:?}", two.notes());
    assert_eq!(two.status().last_truncation.unwrap().from, Offset(2));
}

#[test]
fn what_retention_deleted_while_a_follower_was_away_is_no_truncation() {
    let facts = facts();
    let [mut one, mut two, _] = cluster(&facts);
    one.produce(batch(2), Acks::Leader, 1);
    catch_up(&mut two, &mut one);
    catch_up(&mut two, &mut one);
    let asked = two.point();
    let out_of_range = two.feed(asked, LeaderAnswer::Error(ErrorCode::OffsetOutOfRange));
    let FollowerNext::AskLeader(requested) = out_of_range else { panic!("{out_of_range:?}") };
    two.hear(requested, LeaderHolds { start: Offset(5), end: Offset(9), producers: Vec::new() });
    assert_eq!(two.end(), 5, "it begins where the leader begins");
    let cut = |note: &&&Note| matches!(note, Note::TruncatedBelowWatermark { .. } | Note::Truncated { .. });
    assert_eq!(two.notes().iter().filter(cut).count(), 0, "{:?}", two.notes());
    assert_eq!(two.status().last_truncation, None);
}

#[test]
fn a_log_begun_anew_within_a_batch_saves_where_it_begins() {
    // D33: the batch that comes first begins below, and a power loss would bring its deleted records back.
    let facts = facts();
    let [_, mut two, _] = cluster(&facts);
    let asked = two.point();
    let out_of_range = two.feed(asked, LeaderAnswer::Error(ErrorCode::OffsetOutOfRange));
    let FollowerNext::AskLeader(requested) = out_of_range else { panic!("{out_of_range:?}") };
    two.hear(requested, LeaderHolds { start: Offset(2), end: Offset(3), producers: Vec::new() });
    two.sync();
    assert_eq!(two.replica.log().view().start, Offset(2));
    assert!(two.point().log_start < Offset(2), "the leader hears of it when it is saved");
    assert_eq!(two.save_starts(), [Offset(2)]);
    assert_eq!(two.point().log_start, Offset(2));
}

#[test]
fn a_broker_acts_only_on_images_with_its_own_epoch() {
    let mut two = Node::new(2);
    let mut facts = facts();
    facts.peers.get_mut(&BrokerId(2)).unwrap().epoch = BrokerEpoch(77);
    assert_eq!(two.take_terms(&facts), Became::Ignored);
    assert_eq!(two.next(), FollowerNext::AwaitMetadata);
}

#[test]
fn in_controlled_shutdown_a_replica_outside_the_isr_stops_fetching() {
    // R146.
    let mut facts = facts();
    let [_, mut two, _] = cluster(&facts);
    two.ask(ReplicaRequest::Drain);
    assert!(matches!(two.next(), FollowerNext::Fetch(_)));
    facts.change(|state| state.isr = brokers(&[1, 3]));
    assert_eq!(two.take_terms(&facts), Became::Follower(FollowerNext::AwaitMetadata));
}

#[test]
fn failing_over_and_back_keeps_every_acknowledged_record_and_all_logs_equal() {
    let mut facts = facts();
    let mut nodes = cluster(&facts);
    let mut acknowledged = Vec::new();
    for round in 0..9_usize {
        let at = round % 3;
        if round > 0 {
            // What the old leader appended for itself alone is lost with its leadership.
            nodes[(at + 2) % 3].produce(batch(2), Acks::AllInSync, 999);
            elect(&mut facts, at as i32 + 1);
            for node in &mut nodes {
                node.take_terms(&facts);
                node.sync();
            }
        }
        let (before, rest) = nodes.split_at_mut(at);
        let (leader, after) = rest.split_first_mut().unwrap();
        leader.produce(batch(1 + round), Acks::AllInSync, round as u64);
        for _ in 0..3 {
            for follower in before.iter_mut().chain(after.iter_mut()) {
                catch_up(follower, leader);
            }
        }
        for (ticket, base) in leader.replies() {
            if ticket == round as u64 {
                acknowledged.push((base.unwrap(), leader.replica.replication().leader_epoch()));
            }
        }
        let content = content(leader);
        for follower in before.iter().chain(after.iter()) {
            assert_eq!(super::follower::content(follower), content);
            assert_eq!(follower.high_watermark(), follower.end());
        }
    }
    assert_eq!(acknowledged.len(), 9);
    for (base, epoch) in acknowledged {
        assert_eq!(nodes[0].replica.log().view().epochs.epoch_at(Offset(base)), Some(epoch), "record {base}");
    }
}
