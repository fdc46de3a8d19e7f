//! Read plans, offsets and times.

use std::io::ErrorKind;

use super::*;

fn full_log() -> (SimDisk, SimLog) {
    let (disk, mut log) = new_log();
    for n in 0..60 {
        append(&mut log, 1 + n % 3, 0);
    }
    assert!(log.segment_count() > 5);
    (disk, log)
}

fn first_base(log: &SimLog, from: i64) -> i64 {
    let bytes = log.plan_read(Offset(from), log.view().end, 10_000, true).unwrap().read().unwrap();
    BatchIter::new(bytes).next().unwrap().unwrap().base_offset().0
}

#[test]
fn every_offset_is_found_in_its_batch() {
    let (disk, log) = full_log();
    let bases: Vec<i64> = contents(&log).iter().map(|(base, _)| *base).collect();
    let check = |log: &SimLog| {
        for offset in 0..log.view().end.0 {
            let expected = *bases.iter().rfind(|base| **base <= offset).unwrap();
            assert_eq!(first_base(log, offset), expected, "offset {offset}");
        }
    };
    check(&log);
    close(log);
    let (log, report) = open(&disk);
    assert!(report.clean);
    check(&log);
}

#[test]
fn a_lost_or_damaged_index_is_built_anew() {
    let (disk, log) = full_log();
    close(log);
    let path = Path::new(DIR).join("t-0");
    let indexes: Vec<String> =
        disk.list(&path).unwrap().into_iter().map(|e| e.name).filter(|n| n.ends_with("index")).collect();
    for (n, name) in indexes.iter().enumerate() {
        if n % 2 == 0 {
            disk.remove(&path.join(name)).unwrap();
        } else {
            disk.create(&path.join(name)).unwrap();
        }
    }
    let (log, report) = open(&disk);
    assert!(report.clean);
    for offset in 0..log.view().end.0 {
        assert!(first_base(&log, offset) <= offset);
    }
}

#[test]
fn a_read_outside_the_log_is_refused_and_at_its_end_empty() {
    let (_disk, mut log) = new_log();
    append(&mut log, 3, 0);
    append(&mut log, 3, 0);
    log.advance_start(Offset(2));
    let kind = |from| log.plan_read(Offset(from), Offset(6), 100, true).err().map(|error| error.kind());
    assert_eq!(kind(1), Some(ErrorKind::InvalidInput));
    assert_eq!(kind(7), Some(ErrorKind::InvalidInput));
    assert!(log.plan_read(Offset(6), Offset(6), 100, true).unwrap().is_empty());
    assert_eq!(first_base(&log, 2), 0, "the start may lie inside a batch");
}

#[test]
fn batches_come_whole_and_end_at_the_bound() {
    let (_disk, mut log) = new_log();
    for _ in 0..3 {
        append(&mut log, 2, 0);
    }
    let read = |bound, bytes_max, first_whole| {
        let bytes = log.plan_read(Offset(0), Offset(bound), bytes_max, first_whole).unwrap().read().unwrap();
        BatchIter::new(bytes).map(|batch| batch.unwrap().base_offset().0).collect::<Vec<_>>()
    };
    let size = log.size_bytes() as usize / 3;
    assert_eq!(read(6, 10_000, false), [0, 2, 4]);
    assert_eq!(read(4, 10_000, false), [0, 2]);
    assert_eq!(read(3, 10_000, false), [0], "a batch is returned whole or not at all");
    assert_eq!(read(1, 10_000, true), Vec::<i64>::new());
    assert_eq!(read(6, 2 * size - 1, false), [0]);
    assert_eq!(read(6, size - 1, false), Vec::<i64>::new());
    assert_eq!(read(6, size - 1, true), [0], "the first batch comes whole even if it is larger");
    assert_eq!(read(6, 0, true), [0]);
}

#[test]
fn available_bytes_are_exact_at_the_tail() {
    let (_disk, mut log) = new_log();
    append(&mut log, 2, 0);
    let before = log.size_bytes();
    append(&mut log, 2, 0);
    assert_eq!(log.bytes_from(Offset(4)), 0);
    assert_eq!(log.bytes_from(Offset(2)), log.size_bytes() - before);
    assert_eq!(log.bytes_from(Offset(0)), log.size_bytes());
    let (_disk, log) = full_log();
    assert_eq!(log.bytes_from(Offset(0)), log.size_bytes());
}

#[test]
fn a_read_after_a_truncation_gives_nothing_of_two_histories() {
    let (_disk, mut log) = new_log();
    append(&mut log, 2, 0);
    append(&mut log, 2, 0);
    let plan = log.plan_read(Offset(0), Offset(4), 10_000, true).unwrap();
    log.truncate_to(Offset(2)).unwrap();
    append(&mut log, 2, 1);
    assert!(plan.read().unwrap().is_empty());
    assert_eq!(contents(&log), [(0, 0), (2, 1)]);
}

#[test]
fn a_read_goes_on_after_a_roll_and_a_removed_segment() {
    let (_disk, mut log) = full_log();
    let plan = log.plan_read(Offset(0), log.view().end, 10_000, true).unwrap();
    let expected = plan.read().unwrap();
    log.set_settings(LogSettings { retention_bytes: Some(1_500), ..settings() });
    let erased = log.delete_segments(log.view().end, NOW).unwrap();
    assert!(!erased.is_empty());
    log.dir().erase(&erased).unwrap();
    append(&mut log, 1, 0);
    assert_eq!(plan.read().unwrap(), expected);
}

#[test]
fn times_lead_to_the_first_record_that_is_not_older() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    for n in 0..40i64 {
        let batch = RecordBatchBuilder::new()
            .value(Timestamp(1_000 + 20 * n), b"first of two")
            .value(Timestamp(1_010 + 20 * n), b"second of two")
            .build();
        log.append_as_leader(&batch, LeaderEpoch(3), NOW).unwrap();
    }
    assert!(log.segment_count() > 3);
    let check = |log: &SimLog| {
        let offset = |at| log.offset_for_timestamp(Timestamp(at)).unwrap().map(|hit| (hit.offset.0, hit.timestamp.0));
        assert_eq!(offset(0), Some((0, 1_000)));
        for n in 0..80 {
            assert_eq!(offset(1_000 + 10 * n), Some((n, 1_000 + 10 * n)));
            assert_eq!(offset(991 + 10 * n), Some((n, 1_000 + 10 * n)));
        }
        assert_eq!(offset(1_791), None);
        let max = log.max_timestamp().unwrap().unwrap();
        assert_eq!((max.offset, max.timestamp, max.leader_epoch), (Offset(79), Timestamp(1_790), Some(LeaderEpoch(3))));
    };
    check(&log);
    close(log);
    let (mut log, _) = open(&disk);
    check(&log);
    log.advance_start(Offset(5));
    assert_eq!(log.offset_for_timestamp(Timestamp(0)).unwrap().unwrap().offset, Offset(5), "not below the start");
}

#[test]
fn the_largest_time_is_that_of_the_first_record_that_has_it() {
    let (_disk, mut log) = new_log();
    for timestamp in [50, 90, 20, 90, 10] {
        log.append_as_leader(&batch(2, timestamp), LeaderEpoch(0), NOW).unwrap();
    }
    assert_eq!(log.max_timestamp().unwrap().unwrap().offset, Offset(2));
    log.advance_start(Offset(8));
    let hit = log.max_timestamp().unwrap().unwrap();
    assert_eq!((hit.offset, hit.timestamp), (Offset(8), Timestamp(10)), "what is below the start does not count");
}
