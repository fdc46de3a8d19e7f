//! Appending as leader.

use super::*;

#[test]
fn a_leader_stamps_offset_and_epoch_and_nothing_else() {
    let (_disk, mut log) = new_log();
    append(&mut log, 3, 5);
    let sent = batch(2, 77);
    let appended = log.append_as_leader(&sent, LeaderEpoch(6), NOW).unwrap();
    assert_eq!(appended, Appended { base: Offset(3), last: Offset(4), log_append_time: None });
    let stored = log.plan_read(Offset(3), Offset(5), 10_000, true).unwrap().read().unwrap();
    assert_eq!(stored, sent.stamped(Offset(3), LeaderEpoch(6)).into_bytes());
    assert_eq!(sent.base_offset(), Offset(0), "the producer's bytes are untouched");
    assert_eq!(epochs(&log), [(5, 0), (6, 3)]);
}

#[test]
fn log_append_time_sets_the_time_and_a_crc_that_fits() {
    let disk = SimDisk::new();
    let (mut log, _) = open_with(&disk, LogSettings { log_append_time: true, ..settings() });
    let sent = batch(2, 77);
    let appended = log.append_as_leader(&sent, LeaderEpoch(0), Timestamp(5_000)).unwrap();
    assert_eq!(appended.log_append_time, Some(Timestamp(5_000)));
    let stored =
        RecordBatch::parse(log.plan_read(Offset(0), Offset(2), 10_000, true).unwrap().read().unwrap()).unwrap();
    assert_eq!(stored, sent.with_log_append_time(Timestamp(5_000)).stamped(Offset(0), LeaderEpoch(0)));
    stored.validate_from_leader().unwrap();
    assert_eq!(log.max_timestamp().unwrap().unwrap().timestamp, Timestamp(5_000));
}

#[test]
fn segments_roll_before_they_would_grow_too_large() {
    let (_disk, mut log) = new_log();
    for _ in 0..30 {
        append(&mut log, 1, 0);
    }
    assert!(log.segment_count() > 2);
    for name in file_names(&log).iter().filter(|name| name.ends_with(".log")) {
        assert!(log.dir().disk().read(&log.path().join(name)).unwrap().len() <= 1_000, "{name}");
    }
    assert_eq!(contents(&log).len(), 30);
    let huge = RecordBatchBuilder::new().value(NOW, &[0; 5_000]).build();
    log.append_as_leader(&huge, LeaderEpoch(0), NOW).unwrap();
    assert_eq!(contents(&log).len(), 31, "a batch larger than a segment gets one of its own");
}

#[test]
fn segments_roll_by_the_time_of_their_records_or_by_the_clock_if_they_have_none() {
    let disk = SimDisk::new();
    let (mut log, _) = open_with(&disk, LogSettings { segment_ms: 100, ..settings() });
    let mut at = |timestamp, now| {
        log.append_as_leader(&batch(1, timestamp), LeaderEpoch(0), Timestamp(now)).unwrap();
        log.segment_count()
    };
    assert_eq!(at(1_000, NOW.0), 1);
    assert_eq!(at(1_100, NOW.0 + 1_000), 1, "the clock does not matter");
    assert_eq!(at(1_101, NOW.0), 2);
    let disk = SimDisk::new();
    let (mut log, _) = open_with(&disk, LogSettings { segment_ms: 100, ..settings() });
    let mut at = |now| {
        log.append_as_leader(&batch(1, -1), LeaderEpoch(0), Timestamp(now)).unwrap();
        log.segment_count()
    };
    assert_eq!(at(NOW.0 + 100), 1);
    assert_eq!(at(NOW.0 + 100), 1);
    assert_eq!(at(NOW.0 + 101), 2);
}

#[test]
fn a_full_index_rolls_the_segment() {
    let disk = SimDisk::new();
    let (mut log, _) = open_with(&disk, LogSettings { segment_bytes_max: 1 << 20, index_bytes_max: 48, ..settings() });
    for _ in 0..40 {
        append(&mut log, 1, 0);
    }
    assert!(log.segment_count() > 1);
}

#[test]
fn a_prepared_segment_is_taken_at_the_next_roll() {
    let (_disk, mut log) = new_log();
    while log.segment_count() < 2 {
        append(&mut log, 1, 0);
    }
    assert!(log.sync_due());
    sync(&mut log);
    assert!(!log.sync_due());
    assert!(file_names(&log).contains(&"next-segment.prepared".to_owned()));
    while log.segment_count() < 3 {
        append(&mut log, 1, 0);
    }
    assert!(!file_names(&log).contains(&"next-segment.prepared".to_owned()));
    contents(&log);
}

#[test]
fn a_failed_write_marks_the_log_failed_and_never_becomes_readable() {
    let (disk, mut log) = new_log();
    append(&mut log, 2, 0);
    disk.fail_write_after(0);
    let error = log.append_as_leader(&batch(2, 0), LeaderEpoch(0), NOW).unwrap_err();
    assert!(error.to_string().contains("/data/t-0"), "{error}");
    assert!(log.failed().is_some());
    assert_eq!(log.view().end, Offset(2));
    assert_eq!(contents(&log), [(0, 0)]);
    assert!(log.append_as_leader(&batch(2, 0), LeaderEpoch(0), NOW).is_err(), "nothing is tried again");
    assert!(log.sync_job().is_none());
    assert!(log.truncate_to(Offset(1)).is_err());
    assert!(log.close_cleanly().is_err());
    drop(log);
    disk.crash(Crash::Killed);
    let (log, report) = open(&disk);
    assert_eq!(contents(&log), [(0, 0)]);
    assert!(report.cut.unwrap().incomplete_last_batch_only);
}

#[test]
fn a_full_disk_fails_the_log_and_space_brings_it_back_at_the_next_start() {
    let (disk, mut log) = new_log();
    append(&mut log, 2, 0);
    disk.set_capacity(Some(log.size_bytes() + 300));
    let mut written = 1;
    while log.append_as_leader(&batch(1, 0), LeaderEpoch(0), NOW).is_ok() {
        written += 1;
    }
    disk.crash(Crash::Killed);
    disk.set_capacity(None);
    let (mut log, _) = open(&disk);
    assert_eq!(contents(&log).len(), written);
    append(&mut log, 1, 1);
}

#[test]
fn duplicates_are_known_and_gaps_refused() {
    let (_disk, mut log) = new_log();
    let from_producer = |sequence| {
        RecordBatchBuilder::new()
            .producer(ProducerId(9), ProducerEpoch(0), sequence)
            .value(Timestamp(50), b"a")
            .value(Timestamp(60), b"b")
            .build()
    };
    assert_eq!(log.check_producer(&from_producer(0)), Ok(ProducerCheck::Fresh));
    log.append_as_leader(&from_producer(0), LeaderEpoch(0), NOW).unwrap();
    append(&mut log, 1, 0);
    let (base, last, timestamp) = (Offset(0), Offset(1), Timestamp(60));
    assert_eq!(log.check_producer(&from_producer(0)), Ok(ProducerCheck::Duplicate { base, last, timestamp }));
    assert_eq!(log.check_producer(&from_producer(2)), Ok(ProducerCheck::Fresh));
    assert_eq!(log.check_producer(&from_producer(4)), Err(ProducerRefusal::OutOfOrder { given: 4, expected: 2 }));
    assert_eq!(log.check_producer(&batch(1, 0)), Ok(ProducerCheck::Fresh));
    log.expire_producers(Timestamp(60 + 86_400_000));
    assert_eq!(log.producer_count(), 0);
}

#[test]
fn the_flushed_end_follows_syncs_and_only_one_job_is_out() {
    let (disk, mut log) = new_log();
    append(&mut log, 2, 0);
    assert_eq!(log.view().flushed_end, Offset(0));
    let job = log.sync_job().unwrap();
    append(&mut log, 3, 0);
    assert!(log.sync_job().is_none());
    assert!(log.on_synced(job.run()).unwrap());
    assert_eq!(log.view().flushed_end, Offset(2), "what was appended meanwhile is not synced");
    assert!(sync(&mut log));
    assert_eq!(log.view().flushed_end, Offset(5));
    assert!(log.sync_job().is_none(), "nothing to do");
    drop(log);
    disk.crash(Crash::PowerLoss);
    let (log, report) = open(&disk);
    assert_eq!(contents(&log), [(0, 0), (2, 0)]);
    assert_eq!(report.cut, None);
}

#[test]
fn a_failed_sync_fails_the_log_for_good() {
    let (disk, mut log) = new_log();
    append(&mut log, 2, 0);
    disk.fail_sync_after(0);
    let done = log.sync_job().unwrap().run();
    assert!(done.error().is_some());
    assert!(log.on_synced(done).is_err());
    assert!(log.failed().is_some());
    assert_eq!(log.view().flushed_end, Offset(0));
    assert!(log.append_as_leader(&batch(2, 0), LeaderEpoch(0), NOW).is_err());
}

#[test]
fn compressed_batches_are_stored_as_they_came() {
    let (_disk, mut log) = new_log();
    let sent =
        RecordBatchBuilder::new().codec(Codec::Lz4).value(Timestamp(3), &[1; 500]).value(Timestamp(9), b"b").build();
    log.append_as_leader(&sent, LeaderEpoch(0), NOW).unwrap();
    let hit = log.offset_for_timestamp(Timestamp(4)).unwrap().unwrap();
    assert_eq!((hit.offset, hit.timestamp), (Offset(1), Timestamp(9)));
}
