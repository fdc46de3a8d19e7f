//! Sequences of idempotent producers, sentence by sentence.

use super::*;

/// A batch of `count` records of producer 7.
fn batch(epoch: i16, first: i32, count: i32, base_offset: i64) -> BatchHeader {
    BatchHeader {
        base_offset,
        length: 100,
        leader_epoch: 0,
        crc: 0,
        attributes: 0,
        last_offset_delta: count - 1,
        base_timestamp: base_offset * 10,
        max_timestamp: base_offset * 10,
        producer_id: 7,
        producer_epoch: epoch,
        base_sequence: first,
        record_count: count,
    }
}

fn after(batches: &[BatchHeader]) -> ProducerState {
    let mut state = ProducerState::default();
    for batch in batches {
        state.note(batch);
    }
    state
}

fn out_of_order(given: i32, expected: i32) -> Result<ProducerCheck, ProducerRefusal> {
    Err(ProducerRefusal::OutOfOrder { given, expected })
}

#[test]
fn a_producer_nobody_knows_may_start_anywhere() {
    let state = ProducerState::default();
    assert_eq!(state.check(&batch(3, 500, 2, 0)), Ok(ProducerCheck::Fresh));
}

#[test]
fn the_next_sequence_follows_and_any_other_is_out_of_order() {
    let state = after(&[batch(0, 0, 10, 100)]);
    assert_eq!(state.check(&batch(0, 10, 1, 0)), Ok(ProducerCheck::Fresh));
    assert_eq!(state.check(&batch(0, 11, 1, 0)), out_of_order(11, 10));
    assert_eq!(state.check(&batch(0, 5, 5, 0)), out_of_order(5, 10), "a part of a batch is no duplicate");
}

#[test]
fn sequences_wrap_to_zero_even_inside_a_batch() {
    let state = after(&[batch(0, i32::MAX, 1, 0)]);
    assert_eq!(state.check(&batch(0, 0, 1, 0)), Ok(ProducerCheck::Fresh));
    let wrapping = batch(0, i32::MAX - 1, 4, 50);
    let state = after(&[wrapping]);
    assert_eq!(state.check(&batch(0, 2, 1, 0)), Ok(ProducerCheck::Fresh));
    assert!(matches!(state.check(&wrapping), Ok(ProducerCheck::Duplicate { base: Offset(50), last: Offset(53), .. })));
}

#[test]
fn one_of_the_last_five_batches_is_a_duplicate_and_an_older_one_out_of_order() {
    let batches: Vec<BatchHeader> = (0..7).map(|n| batch(0, n * 2, 2, i64::from(n) * 2)).collect();
    let state = after(&batches);
    for (n, batch) in batches.iter().enumerate() {
        let answer = state.check(batch);
        if n < 2 {
            assert_eq!(answer, out_of_order(batch.base_sequence, 14));
        } else {
            let (base, last) = (Offset(batch.base_offset), Offset(batch.base_offset + 1));
            let timestamp = Timestamp(batch.max_timestamp);
            assert_eq!(answer, Ok(ProducerCheck::Duplicate { base, last, timestamp }));
        }
    }
}

#[test]
fn an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero() {
    let state = after(&[batch(4, 0, 10, 0)]);
    let stale = ProducerRefusal::StaleEpoch { given: ProducerEpoch(3), current: ProducerEpoch(4) };
    assert_eq!(state.check(&batch(3, 10, 1, 0)), Err(stale));
    assert_eq!(state.check(&batch(5, 10, 1, 0)), out_of_order(10, 0));
    assert_eq!(state.check(&batch(5, 0, 10, 0)), Ok(ProducerCheck::Fresh));
}

#[test]
fn a_marker_that_raised_the_epoch_resets_the_sequence() {
    let mut marker = batch(5, -1, 1, 10);
    marker.attributes = TRANSACTIONAL_BIT | CONTROL_BIT;
    let state = after(&[batch(4, 0, 10, 0), marker]);
    assert_eq!(state.check(&batch(5, 3, 1, 0)), out_of_order(3, 0));
    assert_eq!(state.check(&batch(5, 0, 1, 0)), Ok(ProducerCheck::Fresh));
}

#[test]
fn what_is_in_the_log_is_noted_whatever_its_sequence() {
    let state = after(&[batch(4, 0, 10, 0), batch(2, 77, 1, 10)]);
    assert_eq!(state.check(&batch(2, 78, 1, 0)), Ok(ProducerCheck::Fresh));
}

#[test]
fn rewinding_forgets_what_was_cut_or_says_that_it_cannot() {
    let batches = [batch(0, 0, 2, 0), batch(0, 2, 2, 2), batch(0, 4, 2, 4)];
    let mut state = after(&batches);
    assert!(state.rewind(Offset(6)), "nothing to forget");
    assert!(state.rewind(Offset(4)));
    assert_eq!(state, after(&batches[..2]));
    let mut all = after(&batches);
    assert!(!all.rewind(Offset(0)), "the producer may have been known before these batches");
    assert_eq!(all, after(&batches), "and nothing changed");
}

#[test]
fn silent_producers_expire_unless_a_transaction_is_open() {
    let mut state = after(&[batch(0, 0, 1, 100)]);
    assert_eq!(state.expire(Timestamp(1_999), 1_000), 0);
    let mut open = batch(0, 1, 1, 100);
    open.attributes = TRANSACTIONAL_BIT;
    let mut transactional = after(&[open]);
    assert_eq!(transactional.expire(Timestamp(i64::MAX), 1), 0);
    assert_eq!(state.expire(Timestamp(2_000), 1_000), 1);
    assert!(state.is_empty());
}

#[test]
fn a_snapshot_keeps_the_newest_batch_in_kafkas_bytes() {
    let state = after(&[batch(3, 0, 2, 40), batch(3, 2, 5, 42)]);
    let bytes = state.encode();
    assert_eq!(bytes.len(), 56);
    assert_eq!(&bytes[..2], &[0, 1]);
    assert_eq!(&bytes[6..10], &[0, 0, 0, 1]);
    assert_eq!(&bytes[10..20], &[0, 0, 0, 0, 0, 0, 0, 7, 0, 3]);
    assert_eq!(&bytes[20..24], &[0, 0, 0, 6], "last sequence");
    let read = ProducerState::decode(&bytes).unwrap();
    assert_eq!(read.newest_sequences().collect::<Vec<_>>(), state.newest_sequences().collect::<Vec<_>>());
    assert!(matches!(read.check(&batch(3, 2, 5, 0)), Ok(ProducerCheck::Duplicate { base: Offset(42), .. })));
    assert_eq!(read.check(&batch(3, 7, 1, 0)), Ok(ProducerCheck::Fresh));
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let mut bytes = after(&[batch(3, 0, 2, 40)]).encode();
    bytes[30] ^= 1;
    assert_eq!(ProducerState::decode(&bytes), Err(SnapshotError::Damaged));
    assert_eq!(ProducerState::decode(&bytes[..20]), Err(SnapshotError::Damaged));
    bytes[1] = 9;
    assert_eq!(ProducerState::decode(&bytes), Err(SnapshotError::Version(9)));
    assert_eq!(ProducerState::decode(&[]), Err(SnapshotError::Damaged));
}
