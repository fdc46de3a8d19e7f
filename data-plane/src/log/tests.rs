//! What a log does, sentence by sentence. `tests/recovery.rs`: after a stop; `tests/crash.rs`: wherever it stops.

use std::path::Path;

use highwater_wire::batch::{BatchIter, Codec};
use highwater_wire::records::RecordBatchBuilder;
use highwater_wire::{BrokerId, ClusterId, ProducerEpoch, ProducerId};

use super::*;
use crate::disk::sim::{Crash, SimDisk};

mod append;
mod clean;
mod crash;
mod follow;
mod read;
mod recovery;
mod truncate;

const DIR: &str = "/data";
const NOW: Timestamp = Timestamp(1_000_000);

type SimLog = Log<SimDisk>;

fn name() -> LogName {
    LogName::new("t", 0)
}

fn topic() -> TopicId {
    TopicId::from_bytes([7; 16])
}

fn log_dir(disk: &SimDisk) -> Arc<LogDir<SimDisk>> {
    let opening = Opening {
        cluster: ClusterId("c".to_owned()),
        broker: BrokerId(1),
        boot_id: Some("boot".to_owned()),
        boot_time_ms: 1,
    };
    LogDir::open(disk.clone(), Path::new(DIR), &opening).unwrap().0
}

/// Segments of 1,000 bytes, an index entry every 100.
fn settings() -> LogSettings {
    LogSettings { segment_bytes_max: 1_000, index_interval_bytes: 100, ..LogSettings::default() }
}

fn open_with(disk: &SimDisk, settings: LogSettings) -> (SimLog, RecoveryReport) {
    Log::open(&log_dir(disk), &name(), topic(), settings, NOW).unwrap()
}

fn open(disk: &SimDisk) -> (SimLog, RecoveryReport) {
    open_with(disk, settings())
}

fn new_log() -> (SimDisk, SimLog) {
    let disk = SimDisk::new();
    let (log, report) = open(&disk);
    assert!(report.created);
    (disk, log)
}

/// A batch of `count` records that say where they are meant to be.
fn batch(count: usize, timestamp: i64) -> RecordBatch {
    let mut builder = RecordBatchBuilder::new();
    for n in 0..count {
        builder = builder.value(Timestamp(timestamp), format!("record {n} of {count} at {timestamp}").as_bytes());
    }
    builder.build()
}

fn append(log: &mut SimLog, count: usize, epoch: i32) -> Appended {
    let appended = log.append_as_leader(&batch(count, log.view().end.0), LeaderEpoch(epoch), NOW).unwrap();
    log.check_invariants();
    appended
}

/// Runs the job that is due, if any.
fn sync(log: &mut SimLog) -> bool {
    let Some(job) = log.sync_job() else { return false };
    log.on_synced(job.run()).unwrap()
}

/// All batches from `from` on: base offset and epoch.
fn contents_from(log: &SimLog, from: Offset) -> Vec<(i64, i32)> {
    let mut found = Vec::new();
    let mut at = from;
    while at < log.view().end {
        let bytes = log.plan_read(at, log.view().end, 700, true).unwrap().read().unwrap();
        assert!(!bytes.is_empty(), "nothing at {at}");
        for batch in BatchIter::new(bytes) {
            let batch = batch.unwrap();
            batch.validate_from_leader().unwrap();
            found.push((batch.base_offset().0, batch.leader_epoch().map_or(-1, |epoch| epoch.0)));
            at = batch.next_offset();
        }
    }
    found
}

fn contents(log: &SimLog) -> Vec<(i64, i32)> {
    contents_from(log, log.view().start)
}

fn epochs(log: &SimLog) -> Vec<(i32, i64)> {
    log.view().epochs.entries().iter().map(|entry| (entry.epoch.0, entry.start.0)).collect()
}

fn file_names(log: &SimLog) -> Vec<String> {
    log.dir().disk().list(log.path()).unwrap().into_iter().map(|entry| entry.name).collect()
}

fn close(mut log: SimLog) {
    while sync(&mut log) {}
    log.close_cleanly().unwrap();
    log.dir().close_cleanly(None).unwrap();
}
