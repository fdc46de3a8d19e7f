//! Appending what a leader sent.

use bytes::Bytes;

use super::*;

/// Batches as a leader sends them: base offset, records, epoch.
fn sent(batches: &[(i64, usize, i32)]) -> Bytes {
    let stamped = |&(base, count, epoch)| batch(count, base).stamped(Offset(base), LeaderEpoch(epoch)).into_bytes();
    batches.iter().map(stamped).collect::<Vec<_>>().concat().into()
}

fn follow(log: &mut SimLog, records: Bytes, current: i32) -> Result<FollowerAppended, FollowerAppendError> {
    let appended = log.append_as_follower(records, LeaderEpoch(current), NOW);
    log.check_invariants();
    appended
}

fn refused(appended: Result<FollowerAppended, FollowerAppendError>) -> FollowerStop {
    match appended {
        Err(FollowerAppendError::Refused(stop)) => stop,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_follower_takes_the_leaders_bytes_and_epochs_as_they_are() {
    let (_disk, mut log) = new_log();
    let records = sent(&[(0, 2, 1), (2, 3, 1), (5, 1, 4)]);
    let appended = follow(&mut log, records.clone(), 4).unwrap();
    assert_eq!((appended.before, appended.end, appended.batches), (Offset(0), Offset(6), 3));
    assert_eq!((appended.bytes, appended.epochs_changed, appended.stopped), (records.len(), true, None));
    assert_eq!(log.plan_read(Offset(0), Offset(6), 10_000, true).unwrap().read().unwrap(), records);
    assert_eq!(epochs(&log), [(1, 0), (4, 5)]);
    assert!(!follow(&mut log, sent(&[(6, 1, 4)]), 4).unwrap().epochs_changed);
}

#[test]
fn an_epoch_without_records_does_not_hide_an_older_one_with() {
    let (_disk, mut log) = new_log();
    follow(&mut log, sent(&[(0, 2, 1)]), 1).unwrap();
    log.assign_epoch(LeaderEpoch(3));
    assert_eq!(epochs(&log), [(1, 0), (3, 2)]);
    // Another leader, elected with epoch 4, has records of epoch 2 there.
    follow(&mut log, sent(&[(2, 1, 2), (3, 1, 4)]), 4).unwrap();
    assert_eq!(epochs(&log), [(1, 0), (2, 2), (4, 3)]);
    log.assign_epoch(LeaderEpoch(6));
    follow(&mut log, sent(&[(4, 1, 4)]), 7).unwrap();
    assert_eq!(epochs(&log), [(1, 0), (2, 2), (4, 3)], "nor the one it goes on with");
}

#[test]
fn one_answer_may_fill_several_segments() {
    let (_disk, mut log) = new_log();
    let batches: Vec<(i64, usize, i32)> = (0..40).map(|n| (n, 1, 0)).collect();
    assert_eq!(follow(&mut log, sent(&batches), 0).unwrap().batches, 40);
    assert!(log.segment_count() > 3);
    assert_eq!(contents(&log).len(), 40);
}

#[test]
fn a_batch_of_a_future_epoch_ends_the_answer() {
    let (_disk, mut log) = new_log();
    let appended = follow(&mut log, sent(&[(0, 2, 1), (2, 3, 3)]), 2).unwrap();
    assert_eq!(appended.end, Offset(2));
    let stop = FollowerStop::FutureEpoch { base: Offset(2), batch: LeaderEpoch(3), current: LeaderEpoch(2) };
    assert_eq!(appended.stopped, Some(stop.clone()));
    assert_eq!(refused(follow(&mut log, sent(&[(2, 3, 3)]), 2)), stop);
}

#[test]
fn a_corrupt_batch_is_never_appended() {
    let (_disk, mut log) = new_log();
    let mut records = sent(&[(0, 2, 1), (2, 3, 1)]).to_vec();
    let last = records.len() - 1;
    records[last] ^= 1;
    let appended = follow(&mut log, records.into(), 1).unwrap();
    assert_eq!(appended.end, Offset(2));
    assert!(matches!(appended.stopped, Some(FollowerStop::Corrupt { after: Offset(2), .. })));
    assert!(matches!(refused(follow(&mut log, vec![3; 100].into(), 1)), FollowerStop::Corrupt { .. }));
    assert_eq!(contents(&log), [(0, 1)]);
}

#[test]
fn a_batch_cut_by_the_size_limit_is_left_for_the_next_answer() {
    let (_disk, mut log) = new_log();
    let records = sent(&[(0, 2, 1), (2, 3, 1)]);
    let appended = follow(&mut log, records.slice(..records.len() - 10), 1).unwrap();
    assert_eq!(appended.end, Offset(2));
    assert!(matches!(appended.stopped, Some(FollowerStop::Incomplete { .. })));
    assert_eq!(follow(&mut log, Bytes::new(), 1).unwrap().batches, 0);
}

#[test]
fn offsets_must_rise_and_may_leave_gaps() {
    let (_disk, mut log) = new_log();
    let appended = follow(&mut log, sent(&[(0, 2, 1), (10, 1, 1), (10, 1, 1)]), 1).unwrap();
    assert_eq!(appended.end, Offset(11));
    assert_eq!(appended.stopped, Some(FollowerStop::OutOfOrder { base: Offset(10), end: Offset(11) }));
    assert!(matches!(refused(follow(&mut log, sent(&[(5, 2, 1)]), 1)), FollowerStop::OutOfOrder { .. }));
    let next = log.plan_read(Offset(4), Offset(11), 10_000, true).unwrap().read().unwrap();
    assert_eq!(RecordBatch::parse(next).unwrap().base_offset(), Offset(10), "a read in a gap returns the next batch");
}

#[test]
fn an_empty_log_moves_back_to_the_batch_that_spans_its_start() {
    let (_disk, mut log) = new_log();
    log.truncate_fully_to(Offset(7)).unwrap();
    sync(&mut log);
    let records = sent(&[(5, 4, 1)]);
    let appended = follow(&mut log, records.clone(), 1).unwrap();
    assert_eq!((appended.end, appended.batches), (Offset(5), 0));
    assert!(!log.is_settled());
    sync(&mut log);
    assert_eq!(follow(&mut log, records, 1).unwrap().end, Offset(9));
    assert!(log.advance_start(Offset(7)));
    let bytes = log.plan_read(Offset(7), Offset(9), 10_000, true).unwrap().read().unwrap();
    assert_eq!(RecordBatch::parse(bytes).unwrap().base_offset(), Offset(5));
}

#[test]
fn followers_build_the_leaders_producer_state() {
    let (_disk, mut leader) = new_log();
    for sequence in [0, 1, 2] {
        let batch =
            RecordBatchBuilder::new().producer(ProducerId(9), ProducerEpoch(0), sequence).value(NOW, b"a").build();
        leader.append_as_leader(&batch, LeaderEpoch(0), NOW).unwrap();
    }
    let (_disk, mut follower) = new_log();
    let records = leader.plan_read(Offset(0), Offset(3), 10_000, true).unwrap().read().unwrap();
    follow(&mut follower, records, 0).unwrap();
    assert_eq!(follower.producers(), leader.producers());
}

/// A batch of a compacted leader that covers up to `last`, without producer.
fn covering(base: i64, count: usize, last: i64) -> RecordBatch {
    batch(count, base).stamped(Offset(base), LeaderEpoch(1)).stretched_to(Offset(last))
}

#[test]
fn a_follower_that_ends_within_what_its_leader_compacted_away_goes_on_behind_it() {
    for (first, end) in
        [(covering(0, 2, 9), 2), (covering(0, 2, 9), 7), (RecordBatch::empty(Offset(0), Offset(9), LeaderEpoch(1)), 4)]
    {
        let (_disk, mut log) = new_log();
        follow(&mut log, sent(&(0..end).map(|n| (n, 1, 1)).collect::<Vec<_>>()), 1).unwrap();
        let records: Bytes = [first.into_bytes(), sent(&[(10, 2, 1)])].concat().into();
        let appended = follow(&mut log, records, 1).unwrap();
        assert_eq!((appended.before, appended.end, appended.batches), (Offset(end), Offset(12), 2));
        assert_eq!(appended.stopped, None);
        let expected: Vec<(i64, i32)> = (0..=end).chain([10]).map(|base| (base, 1)).collect();
        assert_eq!(contents(&log), expected, "its own records, one that covers the rest, and what came then");
    }
}

#[test]
fn a_batch_that_begins_below_the_end_and_has_records_behind_it_is_refused() {
    let producers = RecordBatchBuilder::new().producer(ProducerId(1), ProducerEpoch(0), 0);
    let of_producer = producers.value(Timestamp(1), b"v").gap(4).build().stamped(Offset(0), LeaderEpoch(1));
    for wrong in [covering(0, 3, 9), of_producer, covering(0, 2, 1)] {
        let (_disk, mut log) = new_log();
        follow(&mut log, sent(&[(0, 1, 1), (1, 1, 1)]), 1).unwrap();
        let stop = refused(follow(&mut log, wrong.into_bytes(), 1));
        assert_eq!(stop, FollowerStop::OutOfOrder { base: Offset(0), end: Offset(2) });
    }
    let (_disk, mut log) = new_log();
    follow(&mut log, sent(&[(0, 1, 1), (1, 1, 1)]), 1).unwrap();
    let mut torn = covering(0, 2, 9).into_bytes().to_vec();
    torn[70] ^= 1;
    assert!(matches!(refused(follow(&mut log, torn.into(), 1)), FollowerStop::Corrupt { .. }));
}
