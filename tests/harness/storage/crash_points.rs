//! Every crash point of a short life: before each change to the disk power is lost, and every subset of what was not synced
//! survives once, whole and torn. And the other way round: each sync left out must be found out.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use highwater_data::disk::sim::Crash;
use highwater_data::disk::{Disk as _, SimDisk};
use highwater_data::log::{Log, LogDir, LogName, LogSettings, Opening, RecoveryReport, checkpoint};
use highwater_wire::batch::RecordBatch;
use highwater_wire::records::RecordBatchBuilder;
use highwater_wire::{BrokerId, ClusterId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Timestamp, TopicId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::corruption::kind_of;

pub(super) const DIR: &str = "/data";
const NOW: Timestamp = Timestamp(1_000_000);
/// A segment is old by then.
const LATER: Timestamp = Timestamp(NOW.0 + 1_000);

pub(super) type SimLog = Log<SimDisk>;

fn name() -> LogName {
    LogName::new("t", 0)
}

fn settings() -> LogSettings {
    LogSettings { segment_ms: 500, index_interval_bytes: 100, ..LogSettings::default() }
}

/// Up to so many ways to lose power at one point are all tried; of more, as many are drawn.
pub const WAYS_MAX: u64 = 1 << 12;
/// The same where a sync is left out.
pub const WAYS_WITHOUT_SYNC: u64 = 256;

/// Syncs of the life, by number, that nothing promised depends on: of indexes, snapshots, epochs and checkpoints that are made
/// anew or may be older, and of directories that are synced again before anything is promised.
pub const NEEDLESS_SYNCS: [usize; 41] = [
    2, 5, 8, 9, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 25, 26, 28, 29, 32, 33, 34, 35, 37, 38, 39, 40, 42, 43,
    47, 48, 49, 50, 52, 53, 54, 55, 57, 58, 59,
];

/// Where the last surviving write of a file is torn, in bytes.
const TORN_AT: [usize; 4] = [0, 1, 61, 512];

/// What must hold of the log that is opened next.
#[derive(Clone, Default)]
pub(super) struct Promise {
    /// Base offset and epoch of what is synced; and of all that was ever begun.
    synced: Vec<(i64, i32)>,
    begun: Vec<(i64, i32)>,
    written: Vec<(i64, i32)>,
    /// A truncation is under way down to here.
    cut_to: Option<i64>,
    /// The start that was promised, and one that is about to be.
    start: i64,
    start_next: i64,
    /// The most the recovery point may be.
    recovery_max: i64,
    /// Its mark is there in full, or about to be.
    closing: bool,
}

/// Nine batches, a roll, a checkpoint, a truncation, another epoch, a deleted segment, a moved start, a clean stop.
pub(super) fn live(log: &mut SimLog, promise: &mut Promise) -> io::Result<()> {
    // Enough of them that a truncation to the third leaves whole ones behind its block.
    for _ in 0..9 {
        write(log, promise, 0)?;
    }
    flush(log, promise)?;
    roll(log)?;
    write(log, promise, 0)?;
    write(log, promise, 0)?;
    checkpoint(log)?;
    flush(log, promise)?;
    checkpoint(log)?;
    write(log, promise, 0)?;
    // A follower finds that it parted from its leader inside the first segment, and goes on with what that one sends.
    promise.cut_to = Some(2);
    log.truncate_to(Offset(2))?;
    promise.written.retain(|&(base, _)| base < 2);
    flush(log, promise)?;
    log.assign_epoch(LeaderEpoch(2));
    write(log, promise, 2)?;
    flush(log, promise)?;
    write(log, promise, 2)?;
    roll(log)?;
    write(log, promise, 3)?;
    flush(log, promise)?;
    checkpoint(log)?;
    log.set_settings(LogSettings { retention_ms: None, retention_bytes: Some(1), ..settings() });
    promise.start_next = log.view().end.0;
    let away = log.delete_segments(log.view().end, NOW)?;
    log.dir().erase(&away)?;
    write(log, promise, 3)?;
    write(log, promise, 3)?;
    flush(log, promise)?;
    promise.start_next = log.view().end.0 - 1;
    log.advance_start(Offset(promise.start_next));
    log.dir().checkpoint_starts([(name(), log.view().start)])?;
    promise.start = promise.start_next;
    write(log, promise, 3)?;
    promise.closing = true;
    log.close_cleanly()?;
    promise.synced.clone_from(&promise.written);
    promise.recovery_max = log.view().end.0;
    log.dir().close_cleanly(None)
}

fn roll(log: &mut SimLog) -> io::Result<()> {
    if log.roll_if_due(LATER)? { Ok(()) } else { Err(io::Error::other("the segment was not due")) }
}

pub(super) fn write(log: &mut SimLog, promise: &mut Promise, epoch: i32) -> io::Result<()> {
    let base = log.view().end;
    promise.begun.push((base.0, epoch));
    let batch = RecordBatchBuilder::new()
        .producer(ProducerId(9), ProducerEpoch(0), base.0 as i32)
        .value(Timestamp(1_000 + base.0), &[epoch as u8; 90])
        .build();
    log.append_as_leader(&batch, LeaderEpoch(epoch), NOW)?;
    promise.written.push((base.0, epoch));
    if promise.closing {
        return Ok(());
    }
    log.check_invariants();
    Ok(())
}

fn flush(log: &mut SimLog, promise: &mut Promise) -> io::Result<()> {
    promise.recovery_max = promise.recovery_max.max(log.view().end.0);
    while let Some(job) = log.sync_job() {
        log.on_synced(job.run())?;
    }
    promise.synced.clone_from(&promise.written);
    promise.cut_to = None;
    promise.recovery_max = log.view().end.0;
    Ok(())
}

fn checkpoint(log: &SimLog) -> io::Result<()> {
    log.dir().checkpoint_recovery_points()?;
    log.dir().checkpoint_watermarks([(name(), log.view().flushed_end)])
}

/// What is wrong with the log on a disk that lost power, and the log that was opened on it.
pub(super) fn check(disk: &SimDisk, promise: &Promise) -> Result<SimLog, String> {
    let claimed = recovery_point_on(disk);
    if claimed > promise.recovery_max {
        return Err(format!("the recovery point says {claimed}, synced was {}", promise.recovery_max));
    }
    let (log, report) = try_open(disk)?;
    let found = contents(&log)?;
    let (start, end) = (log.view().start.0, log.view().end.0);
    if start > promise.start.max(promise.start_next) || start < promise.start {
        return Err(format!("it begins at {start}, promised was {}..={}", promise.start, promise.start_next));
    }
    if found.last().map_or(start, |last| last.0 + 1) != end {
        return Err(format!("it ends at {end} and holds {found:?}"));
    }
    for pair in found.windows(2) {
        if pair[0].0 + 1 != pair[1].0 || pair[0].1 > pair[1].1 {
            return Err(format!("no line of offsets and epochs: {found:?}"));
        }
    }
    if let Some(strange) = found.iter().find(|batch| !promise.begun.contains(batch)) {
        return Err(format!("{strange:?} was never written"));
    }
    let kept_to = promise.cut_to.unwrap_or(i64::MAX);
    let owed = promise.synced.iter().filter(|batch| batch.0 >= start && batch.0 < kept_to);
    if let Some(lost) = owed.clone().find(|batch| !found.contains(batch)) {
        return Err(format!("{lost:?} was synced and is lost; found {found:?}, {report:?}"));
    }
    let known: Vec<_> = log.view().epochs.entries().iter().map(|entry| (entry.epoch.0, entry.start.0)).collect();
    for &(base, epoch) in &found {
        let covers = known.iter().rfind(|entry| entry.1 <= base).map(|entry| entry.0);
        if covers != Some(epoch) {
            return Err(format!("the record at {base} is of epoch {epoch}, the history says {known:?}"));
        }
    }
    if let Some((last, _)) = found.last() {
        let newest: Vec<_> = log.producers().newest_sequences().collect();
        if newest != [(ProducerId(9), ProducerEpoch(0), Some(*last as i32))] {
            return Err(format!("the producer wrote {last} last, remembered is {newest:?}"));
        }
    }
    Ok(log)
}

/// All batches: base offset and epoch.
fn contents(log: &SimLog) -> Result<Vec<(i64, i32)>, String> {
    let sound = |batch: RecordBatch| {
        batch.validate_from_leader().map_err(|error| error.to_string())?;
        Ok((batch.base_offset().0, batch.leader_epoch().map_or(-1, |epoch| epoch.0)))
    };
    super::batches(log)?.into_iter().map(sound).collect()
}

fn recovery_point_on(disk: &SimDisk) -> i64 {
    let path = Path::new(DIR).join("recovery-point-offset-checkpoint");
    let text = checkpoint::read_text(disk, &path).ok().flatten().unwrap_or_default();
    let points = checkpoint::parse_offsets(&text).unwrap_or_default();
    points.get(&name()).map_or(0, |point| point.0)
}

pub(super) fn try_open(disk: &SimDisk) -> Result<(SimLog, RecoveryReport), String> {
    let opening = Opening {
        cluster: ClusterId("c".to_owned()),
        broker: BrokerId(1),
        boot_id: Some("boot".to_owned()),
        boot_time_ms: 1,
    };
    let (dir, _) = LogDir::open(disk.clone(), Path::new(DIR), &opening).map_err(|error| error.to_string())?;
    Log::open(&dir, &name(), TopicId::from_bytes([7; 16]), settings(), NOW).map_err(|error| error.to_string())
}

/// The disk of a life that ended before change `stop`, what was promised by then, and whether it came to its end.
fn lived_to(stop: u64, forgotten_sync: Option<u64>) -> (SimDisk, Promise, bool) {
    let disk = SimDisk::new();
    if let Some(sync) = forgotten_sync {
        disk.forget_sync_after(sync);
    }
    disk.stop_at(stop, 0);
    let mut promise = Promise::default();
    let Ok((mut log, _)) = try_open(&disk) else { return (disk, promise, false) };
    let finished = live(&mut log, &mut promise).is_ok();
    drop(log);
    (disk, promise, finished)
}

/// All ways in which power can be lost there, or as many as `ways_max` of them.
fn ways_of(disk: &SimDisk, stop: u64, ways_max: u64) -> Vec<u64> {
    let mut rng = SmallRng::seed_from_u64(stop);
    match disk.ways() {
        Some(ways) if ways <= ways_max => (0..ways).collect(),
        Some(ways) => [0, ways - 1].into_iter().chain((2..ways_max).map(|_| rng.random_range(0..ways))).collect(),
        None => panic!("more is unsynced than can be counted"),
    }
}

/// A life goes on after a loss of power: it writes, syncs, loses power once more.
fn goes_on(disk: &SimDisk, mut log: SimLog, promise: &Promise) -> Result<(), String> {
    let mut next = Promise { written: contents(&log)?, start: log.view().start.0, ..Promise::default() };
    next.start_next = next.start;
    next.begun.clone_from(&promise.begun);
    for _ in 0..2 {
        write(&mut log, &mut next, 9).map_err(|error| error.to_string())?;
    }
    flush(&mut log, &mut next).map_err(|error| error.to_string())?;
    write(&mut log, &mut next, 9).map_err(|error| error.to_string())?;
    drop(log);
    disk.crash(Crash::PowerLoss);
    // Its start was no promise of this life: what lies below may be seen again.
    next.start = promise.start;
    next.recovery_max = i64::MAX;
    check(disk, &next).map(drop)
}

/// Power is lost once more while the log is being opened, before each of the changes that this makes.
fn lost_again(disk: &SimDisk, promise: &Promise) -> Result<(), String> {
    for stop in 0.. {
        let again = disk.fork();
        again.stop_at(again.changes() + stop, 0);
        let opened = try_open(&again).is_ok();
        for keep in [Crash::PowerLoss, Crash::PowerLossKeepingSome { seed: stop }] {
            let lost = again.fork();
            lost.crash(keep);
            check(&lost, promise).map_err(|fault| format!("again before change {stop} of opening: {fault}"))?;
        }
        if opened {
            break;
        }
    }
    Ok(())
}

/// How much was tried.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tried {
    /// Changes to the disk before which power was lost.
    pub points: u64,
    /// Ways of losing it.
    pub ways: u64,
    /// Disks that were left, each checked once.
    pub disks: u64,
}

/// Tries every point, and at each every way or as many as `ways_max`; `thorough`: torn in several places, too, and with a
/// second loss of power in the middle of opening.
///
/// # Errors
/// The first fault.
pub fn try_all(forgotten_sync: Option<u64>, ways_max: u64, thorough: bool) -> Result<Tried, String> {
    let mut tried = Tried::default();
    for stop in 0.. {
        let (disk, promise, finished) = lived_to(stop, forgotten_sync);
        let mut seen = HashSet::new();
        for way in ways_of(&disk, stop, ways_max) {
            for torn in std::iter::once(usize::MAX).chain(TORN_AT.into_iter().filter(|_| thorough)) {
                let lost = disk.fork();
                lost.lose_power(way, torn);
                tried.ways += 1;
                if !seen.insert(lost.fingerprint()) {
                    continue;
                }
                let context =
                    |fault: String| format!("power lost before change {stop}, way {way}, torn {torn}: {fault}");
                let untouched = (thorough && way % 7 == 0).then(|| lost.fork());
                let log = check(&lost, &promise).map_err(context)?;
                if way % 5 == 0 {
                    goes_on(&lost, log, &promise).map_err(context)?;
                }
                if let Some(untouched) = untouched {
                    lost_again(&untouched, &promise).map_err(context)?;
                }
            }
        }
        tried.points += 1;
        tried.disks += seen.len() as u64;
        if finished {
            break;
        }
    }
    Ok(tried)
}

/// For each sync of the life: what it was to sync, and what is found when it alone is left out; `None`: nothing.
pub fn without_each_sync(ways_max: u64) -> Vec<(String, Option<String>)> {
    let syncs = (0..).take_while(|&sync| happens(sync));
    syncs.map(|sync| (name_of(sync), try_all(Some(sync), ways_max, false).err())).collect()
}

/// What sync number `sync` is of: a file's kind, `.../` for a directory.
fn name_of(sync: u64) -> String {
    for stop in 0.. {
        let again = SimDisk::new();
        again.forget_sync_after(sync);
        again.stop_at(stop, 0);
        if let Ok((mut log, _)) = try_open(&again) {
            let _ = live(&mut log, &mut Promise::default());
        }
        if let Some(path) = again.forgotten() {
            let is_dir = again.list(&path).is_ok();
            return if is_dir { format!("{}/", path.display()) } else { kind_of(&path) };
        }
    }
    String::new()
}

/// Whether the life has a sync of this number.
fn happens(sync: u64) -> bool {
    let disk = SimDisk::new();
    disk.fail_sync_after(sync);
    let Ok((mut log, _)) = try_open(&disk) else { return true };
    live(&mut log, &mut Promise::default()).is_err()
}
