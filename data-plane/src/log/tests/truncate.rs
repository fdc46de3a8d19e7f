//! Truncation, and what it takes with it.

use super::*;

#[test]
fn truncation_takes_records_epochs_and_producers_away() {
    let (_disk, mut log) = new_log();
    let from = |producer, sequence| {
        RecordBatchBuilder::new().producer(ProducerId(producer), ProducerEpoch(0), sequence).value(NOW, b"a").build()
    };
    log.append_as_leader(&from(1, 0), LeaderEpoch(0), NOW).unwrap();
    log.append_as_leader(&from(1, 1), LeaderEpoch(0), NOW).unwrap();
    let kept = log.producers().clone();
    log.append_as_leader(&from(1, 2), LeaderEpoch(2), NOW).unwrap();
    log.append_as_leader(&from(2, 0), LeaderEpoch(2), NOW).unwrap();
    assert_eq!(epochs(&log), [(0, 0), (2, 2)]);
    log.truncate_to(Offset(2)).unwrap();
    log.check_invariants();
    assert_eq!(epochs(&log), [(0, 0)]);
    assert_eq!(log.producers(), &kept);
    assert_eq!(contents(&log), [(0, 0), (1, 0)]);
    assert_eq!(log.view().truncations, 1);
}

#[test]
fn truncation_at_or_above_the_end_only_drops_empty_epochs() {
    let (_disk, mut log) = new_log();
    append(&mut log, 2, 0);
    log.assign_epoch(LeaderEpoch(5));
    assert_eq!(epochs(&log), [(0, 0), (5, 2)]);
    log.truncate_to(Offset(2)).unwrap();
    assert_eq!(epochs(&log), [(0, 0)]);
    assert_eq!(log.view().truncations, 0);
    assert!(log.is_settled());
}

#[test]
fn every_place_can_be_cut_and_written_on() {
    for to in 0..60 {
        let (disk, mut log) = new_log();
        for n in 0..40 {
            append(&mut log, 1 + n % 2, 0);
        }
        let before = contents(&log);
        log.truncate_to(Offset(to)).unwrap();
        let expected: Vec<(i64, i32)> = before
            .iter()
            .copied()
            .filter(|&(base, _)| before.iter().map(|b| b.0).chain([60]).find(|&b| b > base) <= Some(to))
            .collect();
        assert_eq!(contents(&log), expected, "cut at {to}");
        let end = log.view().end;
        assert!(end <= Offset(to), "a batch that is cut goes whole");
        append(&mut log, 3, 1);
        while log.segment_count() < 9 {
            append(&mut log, 1, 1);
        }
        let written = contents(&log);
        while sync(&mut log) {}
        drop(log);
        disk.crash(Crash::PowerLoss);
        let (log, report) = open(&disk);
        assert_eq!(report.cut, None);
        assert_eq!(contents(&log), written, "cut at {to}");
        log.check_invariants();
    }
}

#[test]
fn a_truncation_is_settled_by_the_next_sync_and_lowers_the_recovery_point() {
    let (disk, mut log) = new_log();
    for _ in 0..10 {
        append(&mut log, 1, 0);
    }
    sync(&mut log);
    log.dir().checkpoint_recovery_points().unwrap();
    log.truncate_to(Offset(4)).unwrap();
    assert_eq!(log.view().flushed_end, Offset(4));
    assert!(!log.is_settled() && log.sync_due());
    sync(&mut log);
    assert!(log.is_settled());
    append(&mut log, 5, 1);
    drop(log);
    disk.crash(Crash::PowerLoss);
    let (log, report) = open(&disk);
    assert_eq!(report.end, Offset(4), "what was appended after the truncation is not believed unseen");
    assert_eq!(contents(&log).len(), 4);
}

#[test]
fn a_sync_from_before_a_truncation_flushes_nothing() {
    let (_disk, mut log) = new_log();
    append(&mut log, 5, 0);
    append(&mut log, 5, 0);
    let job = log.sync_job().unwrap();
    log.truncate_to(Offset(5)).unwrap();
    append(&mut log, 5, 1);
    assert!(!log.on_synced(job.run()).unwrap());
    assert_eq!(log.view().flushed_end, Offset(0));
    assert!(!log.is_settled());
    assert!(sync(&mut log));
    assert!(log.is_settled());
    assert_eq!(log.view().flushed_end, Offset(10));
}

#[test]
fn a_snapshot_from_before_a_truncation_is_never_believed() {
    let (disk, mut log) = new_log();
    let from = |producer: i64, sequence| {
        RecordBatchBuilder::new()
            .producer(ProducerId(producer), ProducerEpoch(0), sequence)
            .value(NOW, &[0; 200])
            .build()
    };
    for sequence in 0..8 {
        log.append_as_leader(&from(1, sequence), LeaderEpoch(0), NOW).unwrap();
    }
    assert!(log.segment_count() > 2);
    let job = log.sync_job().unwrap();
    log.truncate_to(Offset(1)).unwrap();
    log.on_synced(job.run()).unwrap();
    for sequence in 0..8 {
        log.append_as_leader(&from(2, sequence), LeaderEpoch(1), NOW).unwrap();
    }
    sync(&mut log);
    let newest: Vec<_> = log.producers().newest_sequences().collect();
    drop(log);
    disk.crash(Crash::PowerLoss);
    let (log, _) = open(&disk);
    assert_eq!(log.producers().newest_sequences().collect::<Vec<_>>(), newest);
}

#[test]
fn a_full_truncation_starts_anew_above_or_below() {
    for start in [3, 500] {
        let (disk, mut log) = new_log();
        for _ in 0..30 {
            append(&mut log, 1, 0);
        }
        sync(&mut log);
        log.truncate_fully_to(Offset(start)).unwrap();
        log.check_invariants();
        assert_eq!((log.view().start, log.view().end), (Offset(start), Offset(start)));
        assert_eq!(epochs(&log), []);
        sync(&mut log);
        append(&mut log, 2, 4);
        sync(&mut log);
        drop(log);
        disk.crash(Crash::PowerLoss);
        let (log, _) = open(&disk);
        assert_eq!(contents(&log), [(start, 4)]);
        assert_eq!(log.view().start, Offset(start));
    }
}

#[test]
fn truncating_below_the_start_empties_the_log_there() {
    let (_disk, mut log) = new_log();
    append(&mut log, 10, 0);
    log.advance_start(Offset(6));
    log.truncate_to(Offset(2)).unwrap();
    assert_eq!((log.view().start, log.view().end), (Offset(6), Offset(6)));
}

#[test]
fn the_start_only_advances_and_collapses_epochs() {
    let (_disk, mut log) = new_log();
    for epoch in 0..4 {
        append(&mut log, 5, epoch);
    }
    assert!(log.advance_start(Offset(12)));
    assert!(!log.advance_start(Offset(11)));
    assert_eq!(epochs(&log), [(2, 12), (3, 15)]);
    assert!(log.advance_start(Offset(500)), "never beyond the end");
    assert_eq!(log.view().start, Offset(20));
}

#[test]
fn retention_removes_old_segments_and_moves_the_start() {
    let (disk, mut log) = new_log();
    for _ in 0..40 {
        append(&mut log, 1, 0);
    }
    while sync(&mut log) {}
    let segments = log.segment_count();
    log.set_settings(LogSettings { retention_ms: None, retention_bytes: Some(2_000), ..settings() });
    assert_eq!(log.delete_segments(Offset(0), NOW).unwrap(), Vec::<PathBuf>::new(), "nothing above the watermark goes");
    let away = log.delete_segments(Offset(40), NOW).unwrap();
    log.check_invariants();
    assert!(log.segment_count() < segments && log.size_bytes() >= 2_000);
    assert!(log.view().start > Offset(0));
    assert!(away.iter().all(|path| path.to_string_lossy().ends_with(".deleted")));
    let kept = contents(&log);
    assert_eq!(kept[0].0, log.view().start.0);
    log.dir().erase(&away).unwrap();
    assert!(!file_names(&log).iter().any(|name| name.ends_with(".deleted")));
    close(log);
    assert_eq!(contents(&open(&disk).0), kept);
}

#[test]
fn an_active_segment_that_is_too_old_is_rolled_and_removed() {
    let (_disk, mut log) = new_log();
    append(&mut log, 5, 0);
    log.set_settings(LogSettings { retention_ms: Some(1_000), ..settings() });
    log.delete_segments(Offset(5), Timestamp(5_000)).unwrap();
    log.check_invariants();
    assert_eq!((log.view().start, log.view().end, log.size_bytes()), (Offset(5), Offset(5), 0));
    assert_eq!(epochs(&log), [(0, 5)], "the epoch of the last record is still known");
}

#[test]
fn an_old_segment_is_rolled_by_the_clock() {
    let (_disk, mut log) = new_log();
    assert!(!log.roll_if_due(Timestamp(i64::MAX)).unwrap(), "an empty one never");
    append(&mut log, 1, 0);
    assert!(!log.roll_if_due(Timestamp(NOW.0 + 604_800_000)).unwrap());
    assert!(log.roll_if_due(Timestamp(NOW.0 + 604_800_001)).unwrap());
    assert_eq!(log.segment_count(), 2);
}

#[test]
fn what_is_appended_before_a_truncation_is_synced_goes_to_a_file_of_its_own() {
    let (_disk, mut log) = new_log();
    for _ in 0..6 {
        append(&mut log, 1, 0);
    }
    log.truncate_to(Offset(4)).unwrap();
    append(&mut log, 1, 1);
    assert_eq!(segment_bases(&log), [0, 4]);
    append(&mut log, 1, 1);
    log.truncate_to(Offset(5)).unwrap();
    log.truncate_to(Offset(4)).unwrap();
    append(&mut log, 1, 2);
    assert_eq!(segment_bases(&log), [0, 4], "an empty file is new anyway");
    log.truncate_to(Offset(2)).unwrap();
    sync(&mut log);
    append(&mut log, 1, 3);
    assert_eq!(segment_bases(&log), [0], "synced: the file goes on");
    assert_eq!(contents(&log), [(0, 0), (1, 0), (2, 3)]);
}

fn segment_bases(log: &SimLog) -> Vec<i64> {
    log.segments.iter().map(|segment| segment.base.0).collect()
}
