//! Opening a log after a stop of any kind.

use super::*;
use crate::disk::DiskFile;

fn kill(disk: &SimDisk, log: SimLog) -> (SimLog, RecoveryReport) {
    drop(log);
    disk.crash(Crash::Killed);
    open(disk)
}

/// Six batches in epochs 0, 0, 1, 1, 4, 4 over a few segments.
fn written(log: &mut SimLog) {
    for epoch in [0, 0, 1, 1, 4, 4] {
        append(log, 8, epoch);
    }
    assert!(log.segment_count() > 1);
}

fn segment_files(log: &SimLog) -> Vec<PathBuf> {
    let names = file_names(log).into_iter().filter(|name| name.ends_with(".log"));
    names.map(|name| log.path().join(name)).collect()
}

#[test]
fn a_clean_stop_is_opened_without_a_scan() {
    let (disk, mut log) = new_log();
    written(&mut log);
    let before = (contents(&log), epochs(&log), log.view().end);
    close(log);
    let (mut log, report) = open(&disk);
    assert!(report.clean && report.bytes_scanned == 0 && report.cut.is_none());
    assert_eq!((contents(&log), epochs(&log), log.view().end), before);
    assert_eq!(log.view().flushed_end, log.view().end);
    assert!(log.sync_job().is_none());
    append(&mut log, 1, 4);
    assert_eq!(contents(&log).len(), 7);
}

#[test]
fn a_clean_stop_says_nothing_of_a_log_that_was_written_since() {
    let (disk, mut log) = new_log();
    written(&mut log);
    close(log);
    let dir = log_dir(&disk);
    let again = || Log::open(&dir, &name(), topic(), settings(), NOW).unwrap();
    let (mut log, report) = again();
    assert!(report.clean);
    append(&mut log, 3, 5);
    drop(log);
    let (log, report) = again();
    assert!(!report.clean && report.bytes_scanned > 0);
    assert_eq!(contents(&log).len(), 7);
    assert_eq!(epochs(&log).last(), Some(&(5, 48)));
}

#[test]
fn a_killed_process_loses_nothing() {
    let (disk, mut log) = new_log();
    written(&mut log);
    let before = (contents(&log), epochs(&log));
    let (mut log, report) = kill(&disk, log);
    assert!(!report.clean && report.cut.is_none() && !report.may_have_lost_records());
    assert!(report.bytes_scanned > 0);
    assert_eq!((contents(&log), epochs(&log)), before);
    assert_eq!(log.view().flushed_end, Offset(0), "the page cache is no disk");
    append(&mut log, 1, 5);
    assert!(sync(&mut log));
    assert_eq!(log.view().flushed_end, log.view().end);
}

#[test]
fn one_incomplete_last_batch_is_what_a_kill_leaves() {
    let (disk, mut log) = new_log();
    written(&mut log);
    let expected = contents(&log);
    disk.stop_at(disk.changes(), 100);
    assert!(log.append_as_leader(&batch(3, 0), LeaderEpoch(4), NOW).is_err());
    let (log, report) = kill(&disk, log);
    assert_eq!(contents(&log), expected);
    assert!(!report.may_have_lost_records());
    let cut = report.cut.unwrap();
    assert!(cut.incomplete_last_batch_only && cut.bytes > 0 && cut.segments == 0, "{cut:?}");
}

/// The first bytes of a batch are the zeros of its base offset (simulation, seed 108).
#[test]
fn a_write_that_ended_after_a_few_bytes_is_an_incomplete_batch() {
    for torn in [1, 6, 9] {
        let (disk, mut log) = new_log();
        written(&mut log);
        let last = segment_files(&log).pop().unwrap();
        let file = disk.open(&last).unwrap();
        file.set_len(file.len().unwrap() + torn).unwrap();
        let (_log, report) = kill(&disk, log);
        assert!(!report.may_have_lost_records(), "{torn} bytes: {report:?}");
    }
}

#[test]
fn a_bad_batch_cuts_the_log_and_all_later_segments() {
    let (disk, mut log) = new_log();
    written(&mut log);
    let first = segment_files(&log).remove(0);
    disk.flip_bit(&first, disk.read(&first).unwrap().len() as u64 - 3);
    let (mut log, report) = kill(&disk, log);
    assert!(report.may_have_lost_records());
    let cut = report.cut.unwrap();
    assert!(!cut.incomplete_last_batch_only && cut.segments > 0 && cut.reason.contains("CRC"), "{cut:?}");
    assert_eq!(cut.at, log.view().end);
    assert_eq!(log.segment_count(), 1);
    assert!(contents(&log).len() < 6);
    append(&mut log, 2, 5);
    log.check_invariants();
}

/// As a loss of power leaves it: the end of a segment is missing, and the next one is there.
#[test]
fn a_batch_cut_short_before_other_segments_is_no_write_that_was_cut_short() {
    let (disk, mut log) = new_log();
    written(&mut log);
    let first = disk.open(&segment_files(&log).remove(0)).unwrap();
    first.set_len(first.len().unwrap() - 3).unwrap();
    let (_log, report) = kill(&disk, log);
    assert!(report.may_have_lost_records(), "{report:?}");
    let cut = report.cut.unwrap();
    assert!(!cut.incomplete_last_batch_only && cut.segments > 0, "{cut:?}");
}

#[test]
fn zeros_at_the_end_are_no_incomplete_batch() {
    let (disk, mut log) = new_log();
    written(&mut log);
    let last = segment_files(&log).pop().unwrap();
    let file = disk.open(&last).unwrap();
    file.set_len(file.len().unwrap() + 40).unwrap();
    let (_log, report) = kill(&disk, log);
    assert!(!report.cut.unwrap().incomplete_last_batch_only);
}

#[test]
fn a_hole_between_segments_ends_the_log() {
    let (disk, mut log) = new_log();
    for _ in 0..40 {
        append(&mut log, 1, 0);
    }
    let second = segment_files(&log).remove(1);
    disk.remove(&second).unwrap();
    let (log, report) = kill(&disk, log);
    let cut = report.cut.unwrap();
    assert!(cut.reason.contains("does not begin at the end"), "{cut:?}");
    assert_eq!(log.segment_count(), 1);
    assert_eq!(contents(&log).len() as i64, log.view().end.0);
}

#[test]
fn below_the_recovery_point_nothing_is_scanned() {
    let (disk, mut log) = new_log();
    for _ in 0..40 {
        append(&mut log, 1, 0);
    }
    sync(&mut log);
    log.dir().checkpoint_recovery_points().unwrap();
    let bytes = log.size_bytes();
    let expected = contents(&log);
    let (log, report) = kill(&disk, log);
    assert!(report.bytes_scanned < bytes / 2, "{report:?}");
    assert_eq!(log.view().flushed_end, Offset(40));
    assert_eq!(contents(&log), expected);
}

#[test]
fn the_recovery_point_is_never_above_the_end() {
    let (disk, mut log) = new_log();
    written(&mut log);
    sync(&mut log);
    log.dir().checkpoint_recovery_points().unwrap();
    let last = segment_files(&log).pop().unwrap();
    disk.open(&last).unwrap().set_len(0).unwrap();
    let (mut log, report) = kill(&disk, log);
    assert_eq!(log.view().flushed_end, report.end);
    append(&mut log, 1, 9);
    drop(log);
    disk.crash(Crash::PowerLoss);
    let (log, report) = open(&disk);
    assert_eq!(log.view().end, report.end);
    log.check_invariants();
}

#[test]
fn a_log_that_ends_below_its_start_begins_anew_at_its_start() {
    let (disk, mut log) = new_log();
    append(&mut log, 10, 0);
    log.dir().checkpoint_starts([(name(), Offset(50))]).unwrap();
    let (log, report) = kill(&disk, log);
    assert!(report.emptied && report.may_have_lost_records());
    assert_eq!((log.view().start, log.view().end), (Offset(50), Offset(50)));
}

#[test]
fn the_start_comes_back_from_its_checkpoint() {
    let (disk, mut log) = new_log();
    append(&mut log, 10, 0);
    append(&mut log, 10, 1);
    log.advance_start(Offset(4));
    log.dir().checkpoint_starts([(name(), log.view().start)]).unwrap();
    let (log, _) = kill(&disk, log);
    assert_eq!(log.view().start, Offset(4));
    assert_eq!(epochs(&log), [(0, 4), (1, 10)]);
}

#[test]
fn a_log_that_begins_anew_below_its_checkpointed_start_puts_the_checkpoint_right() {
    let (disk, mut log) = new_log();
    append(&mut log, 10, 0);
    log.advance_start(Offset(8));
    log.dir().checkpoint_starts([(name(), Offset(8))]).unwrap();
    log.truncate_fully_to(Offset(2)).unwrap();
    append(&mut log, 10, 1);
    sync(&mut log);
    let (log, report) = kill(&disk, log);
    assert_eq!((log.view().start, log.view().end), (Offset(2), Offset(12)), "{report:?}");
}

#[test]
fn an_end_below_the_watermark_checkpoint_is_reported() {
    let (disk, mut log) = new_log();
    append(&mut log, 10, 0);
    log.dir().checkpoint_watermarks([(name(), Offset(11))]).unwrap();
    let (_log, report) = kill(&disk, log);
    assert_eq!(report.watermark_checkpoint, Offset(11));
    assert!(report.may_have_lost_records());
}

#[test]
fn what_an_unclean_election_took_back_is_no_loss_of_this_log() {
    // Seed 9523: the last replica was killed soon after its log had been cut below the watermark, said that it had lost
    // records, and nobody could lead any more.
    for cut_all in [false, true] {
        let (disk, mut log) = new_log();
        append(&mut log, 4, 0);
        append(&mut log, 6, 0);
        sync(&mut log);
        log.dir().checkpoint_watermarks([(name(), Offset(10))]).unwrap();
        if cut_all { log.truncate_fully_to(Offset(4)) } else { log.truncate_to(Offset(4)) }.unwrap();
        sync(&mut log);
        let (log, report) = kill(&disk, log);
        assert_eq!(log.view().end, Offset(4));
        assert!(!report.may_have_lost_records(), "{report:?}");
    }
}

#[test]
fn a_missing_directory_is_reported_and_made_anew() {
    let (disk, mut log) = new_log();
    append(&mut log, 10, 0);
    log.dir().checkpoint_watermarks([(name(), Offset(10))]).unwrap();
    disk.remove_dir_all(log.path()).unwrap();
    let (log, report) = kill(&disk, log);
    assert!(report.created && report.may_have_lost_records());
    assert_eq!(report.watermark_checkpoint, Offset(10));
    assert_eq!(log.dir().watermark(&name()), Offset(0), "the new log has none of the old one's marks");
}

/// All replicas of a topic killed between its creation and their first look at it (simulation, seed 818).
#[test]
fn a_log_that_was_never_made_has_lost_nothing() {
    let disk = SimDisk::new();
    drop(log_dir(&disk));
    disk.crash(Crash::Killed);
    let dir = log_dir(&disk);
    let (_log, report) = Log::open(&dir, &name(), topic(), settings(), NOW).unwrap();
    assert!(report.created && !report.may_have_lost_records());
}

#[test]
fn a_directory_of_another_topic_id_is_refused() {
    let (disk, mut log) = new_log();
    append(&mut log, 1, 0);
    drop(log);
    disk.crash(Crash::Killed);
    let other = TopicId::from_bytes([8; 16]);
    let Err(error) = Log::open(&log_dir(&disk), &name(), other, settings(), NOW) else { panic!("opened") };
    let text = error.to_string();
    assert!(text.contains("/data/t-0") && text.contains(&other.to_string()) && text.contains("move the directory"));
}

#[test]
fn unreadable_epochs_are_read_from_the_log() {
    for content in [&b""[..], b"0\n1\nx\n"] {
        let (disk, mut log) = new_log();
        written(&mut log);
        let expected = epochs(&log);
        let path = log.path().join("leader-epoch-checkpoint");
        close(log);
        checkpoint::write_atomically(&disk, &path, content).unwrap();
        let (log, report) = open(&disk);
        assert!(report.clean);
        assert_eq!(epochs(&log), expected);
    }
}

#[test]
fn newer_epochs_are_refused_with_their_version() {
    let (disk, log) = new_log();
    let path = log.path().join("leader-epoch-checkpoint");
    close(log);
    checkpoint::write_atomically(&disk, &path, b"3\n0\n").unwrap();
    let Err(error) = Log::open(&log_dir(&disk), &name(), topic(), settings(), NOW) else { panic!("opened") };
    assert!(error.to_string().contains("format version 3"), "{error}");
}

#[test]
fn epochs_that_were_never_synced_are_rebuilt_from_headers() {
    let (disk, mut log) = new_log();
    written(&mut log);
    log.assign_epoch(LeaderEpoch(9));
    let (log, _) = kill(&disk, log);
    assert_eq!(epochs(&log), [(0, 0), (1, 16), (4, 32)], "an epoch without records leaves no trace");
}

#[test]
fn an_epoch_without_records_that_a_clean_stop_left_does_not_come_back() {
    let (disk, mut log) = new_log();
    append(&mut log, 8, 2);
    log.assign_epoch(LeaderEpoch(3));
    close(log);
    let (mut log, report) = open(&disk);
    assert!(report.clean);
    assert_eq!(epochs(&log), [(2, 0)]);
    // Another leader of epoch 2 had written on.
    append(&mut log, 8, 2);
    sync(&mut log);
    log.dir().checkpoint_recovery_points().unwrap();
    let (log, report) = kill(&disk, log);
    assert!(!report.clean);
    assert_eq!(epochs(&log), [(2, 0)]);
}

fn produce(log: &mut SimLog, sequences: std::ops::Range<i32>) {
    for sequence in sequences {
        let batch = RecordBatchBuilder::new()
            .producer(ProducerId(9), ProducerEpoch(0), sequence)
            .value(Timestamp(i64::from(sequence)), &[0; 100])
            .build();
        log.append_as_leader(&batch, LeaderEpoch(0), NOW).unwrap();
    }
}

#[test]
fn producers_come_back_after_any_stop() {
    for clean in [true, false] {
        let (disk, mut log) = new_log();
        produce(&mut log, 0..25);
        sync(&mut log);
        produce(&mut log, 25..40);
        let newest: Vec<_> = log.producers().newest_sequences().collect();
        let log = if clean {
            close(log);
            open(&disk).0
        } else {
            kill(&disk, log).0
        };
        assert_eq!(log.producers().newest_sequences().collect::<Vec<_>>(), newest);
        assert_eq!(newest, [(ProducerId(9), ProducerEpoch(0), Some(39))]);
    }
}

#[test]
fn a_damaged_snapshot_gives_way_to_an_older_one() {
    let (disk, mut log) = new_log();
    produce(&mut log, 0..40);
    let newest: Vec<_> = log.producers().newest_sequences().collect();
    close(log);
    let path = Path::new(DIR).join("t-0");
    let mut snapshots: Vec<String> =
        disk.list(&path).unwrap().into_iter().map(|e| e.name).filter(|n| n.ends_with(".snapshot")).collect();
    assert!(snapshots.len() > 2);
    let last = path.join(snapshots.pop().unwrap());
    disk.flip_bit(&last, 12);
    let (log, report) = open(&disk);
    assert!(report.clean);
    assert_eq!(log.producers().newest_sequences().collect::<Vec<_>>(), newest);
    assert!(!disk.exists(&last).unwrap(), "the damaged one is removed");
}

#[test]
fn left_overs_of_a_crash_are_removed_and_a_half_done_compaction_refused() {
    let (disk, mut log) = new_log();
    written(&mut log);
    let expected = contents(&log);
    let path = log.path().to_owned();
    for name in [
        "a.tmp",
        "next-segment.prepared",
        "00000000000000000000.log.deleted",
        "00000000000000000999.index",
        "x.cleaned",
    ] {
        disk.create(&path.join(name)).unwrap();
    }
    let (log, _) = kill(&disk, log);
    assert_eq!(contents(&log), expected);
    assert!(
        file_names(&log).iter().all(|name| {
            ["log", "snapshot", "index", "timeindex"]
                .iter()
                .any(|ending| segment::parse_file_name(name).is_some_and(|n| n.1 == *ending))
                || ["partition.metadata", "leader-epoch-checkpoint"].contains(&name.as_str())
        }),
        "{:?}",
        file_names(&log)
    );
    disk.create(&path.join("00000000000000000000.log.swap")).unwrap();
    drop(log);
    disk.crash(Crash::Killed);
    let Err(error) = Log::open(&log_dir(&disk), &name(), topic(), settings(), NOW) else { panic!("opened") };
    assert!(error.to_string().contains("swap"), "{error}");
}

#[test]
fn names_on_the_disk_are_kafkas() {
    let (disk, mut log) = new_log();
    written(&mut log);
    close(log);
    let names = |path: &str| disk.list(Path::new(path)).unwrap().into_iter().map(|e| e.name).collect::<Vec<_>>();
    assert_eq!(
        names(DIR),
        [
            ".clean-shutdown",
            ".lock",
            "log-start-offset-checkpoint",
            "meta.properties",
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
            "t-0"
        ]
    );
    let in_log = names("/data/t-0");
    for name in [
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ] {
        assert!(in_log.iter().any(|found| found == name), "{name} is not among {in_log:?}");
    }
    assert!(in_log.iter().any(|found| found.ends_with(".snapshot")));
    assert_eq!(disk.read(Path::new("/data/recovery-point-offset-checkpoint")).unwrap(), b"0\n1\nt 0 48\n");
    assert_eq!(disk.read(Path::new("/data/t-0/leader-epoch-checkpoint")).unwrap(), b"0\n3\n0 0\n1 16\n4 32\n");
}
