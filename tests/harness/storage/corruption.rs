//! Damage in every file of a closed data directory: one flip, zero, cut or duplicate in each region; then everything is
//! opened and read. Never a wrong byte, never a loss that nobody is told of; what happens instead is the outcome table.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use highwater_data::disk::{Disk, SimDisk};
use highwater_data::log::{Log, LogDir, LogName, LogSettings, Opening};
use highwater_wire::batch::{BatchIter, HEADER_BYTES};
use highwater_wire::records::RecordBatchBuilder;
use highwater_wire::{
    BrokerEpoch, BrokerId, ClusterId, IncarnationId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Timestamp, TopicId,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const DIR: &str = "/data";
const NOW: Timestamp = Timestamp(1_000_000);
const CLEAN_EPOCH: BrokerEpoch = BrokerEpoch(417);
/// Parts of a file that are damaged, beside the fields of some batches.
const REGIONS: usize = 8;
/// Bytes zeroed or duplicated.
const RUN_BYTES: usize = 16;

/// How the directory was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    Cleanly,
    Killed,
}

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    Flip { bit: u8 },
    Zero,
    Cut,
    Duplicate,
}

/// What became of it. The best comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Everything is there, from what the rest of the directory says.
    Rebuilt,
    /// A checkpoint is damaged, and a warning says so; every record is there, deleted ones may be back.
    Warned,
    /// Everything is there, but nothing proves it any more: the replica leaves ISR and ELR until it has caught up.
    Unproved,
    /// Nothing in the directory tells it from what might have been: the epoch of the last, unsynced batch of a killed process,
    /// the oldest segment missing after a kill as retention would leave it, the log start after a kill.
    KnownHole,
    /// The unsynced last batch of a killed process is cut as one that was torn: a warning, and no more (D10).
    TakenForTorn,
    /// A log is shorter, and the quorum is told: the replica leaves ISR and ELR, and a peer fills it again.
    CutAndReported,
    /// Some records cannot be read, and whoever asks for them is told.
    ReadRefused,
    /// The directory or a log is not opened, and the error names the file.
    StartRefused,
}

/// One log as it must be.
#[derive(Debug, Clone, PartialEq)]
struct Contents {
    start: Offset,
    end: Offset,
    batches: Vec<(Offset, Offset, Bytes)>,
    epochs: Vec<(i32, i64)>,
    producers: Vec<(ProducerId, ProducerEpoch, Option<i32>)>,
}

fn settings() -> LogSettings {
    LogSettings { segment_bytes_max: 1_200, index_interval_bytes: 200, ..LogSettings::default() }
}

fn opening(boot_time_ms: u64) -> Opening {
    Opening {
        cluster: ClusterId("cluster".to_owned()),
        broker: BrokerId(1),
        boot_id: Some("boot".to_owned()),
        boot_time_ms,
    }
}

fn logs() -> [(LogName, TopicId); 3] {
    [("orders", 0, 7), ("orders", 1, 7), ("quiet", 0, 8)]
        .map(|(topic, partition, id)| (LogName::new(topic, partition), TopicId::from_bytes([id; 16])))
}

/// A directory with a log of several segments, epochs and producers, one of a single segment, and an empty one.
fn directory(stop: Stop) -> SimDisk {
    let disk = SimDisk::new();
    make(&disk, stop).expect("a disk without faults");
    disk.crash(highwater_data::disk::sim::Crash::Killed);
    disk
}

fn make(disk: &SimDisk, stop: Stop) -> io::Result<()> {
    let (dir, _) = LogDir::open(disk.clone(), Path::new(DIR), &opening(1)).map_err(io::Error::other)?;
    dir.write_running_marker(IncarnationId::from_bytes([3; 16]))?;
    let mut open = Vec::new();
    for (name, topic) in logs() {
        open.push(Log::open(&dir, &name, topic, settings(), NOW).map_err(io::Error::other)?.0);
    }
    for batch in 0..26 {
        append(&mut open[0], [0, 1, 4, 6][batch / 7], 3)?;
    }
    for _ in 0..3 {
        append(&mut open[1], 2, 2)?;
    }
    for log in &mut open {
        sync(log)?;
    }
    open[0].advance_start(Offset(4));
    dir.checkpoint_starts([(open[0].name().clone(), Offset(4))])?;
    dir.checkpoint_recovery_points()?;
    dir.checkpoint_watermarks(open.iter().map(|log| (log.name().clone(), log.view().end)))?;
    append(&mut open[0], 6, 1)?;
    append(&mut open[1], 2, 1)?;
    if stop == Stop::Killed {
        return Ok(());
    }
    for log in &mut open {
        sync(log)?;
        log.close_cleanly()?;
    }
    dir.checkpoint_watermarks(open.iter().map(|log| (log.name().clone(), log.view().end)))?;
    dir.close_cleanly(Some(CLEAN_EPOCH))
}

fn append(log: &mut Log<SimDisk>, epoch: i32, records: i64) -> io::Result<()> {
    let base = log.view().end.0;
    let mut builder = RecordBatchBuilder::new().producer(ProducerId(5_000), ProducerEpoch(1), base as i32);
    for offset in base..base + records {
        builder =
            builder.value(Timestamp(10_000 + 10 * offset), format!("record {offset} of epoch {epoch}").as_bytes());
    }
    log.append_as_leader(&builder.build(), LeaderEpoch(epoch), NOW).map(drop)
}

fn sync(log: &mut Log<SimDisk>) -> io::Result<()> {
    while let Some(job) = log.sync_job() {
        log.on_synced(job.run())?;
    }
    Ok(())
}

/// All files below a directory.
fn files(disk: &SimDisk, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in disk.list(dir).expect("a directory") {
        let path = dir.join(&entry.name);
        if entry.is_dir { found.extend(files(disk, &path)) } else { found.push(path) }
    }
    found
}

/// The kind of a file: its name, or what follows the digits.
pub fn kind_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match name.split_once('.') {
        Some((digits, ending)) if digits.len() == 20 => format!(".{ending}"),
        _ => name,
    }
}

/// Where a file is damaged.
fn places(path: &Path, content: &[u8]) -> BTreeSet<usize> {
    let len = content.len();
    let mut places: BTreeSet<usize> = (0..REGIONS).map(|region| region * len / REGIONS).collect();
    places.extend(len.checked_sub(1));
    if path.extension().is_some_and(|ending| ending == "log") {
        let mut starts = vec![];
        let mut at = 0;
        for batch in BatchIter::new(Bytes::copy_from_slice(content)).map_while(Result::ok) {
            starts.push(at);
            at += batch.len();
        }
        let chosen = [starts.first(), starts.get(starts.len() / 2), starts.last()];
        // Base offset, length, epoch, magic, CRC, attributes, last delta, times, producer, sequence, count, records.
        let fields = [7, 11, 15, 16, 17, 22, 26, 34, 42, 50, 56, 60, HEADER_BYTES + 5];
        places.extend(chosen.into_iter().flatten().flat_map(|start| fields.map(|field| start + field)));
    }
    places.retain(|&place| place < len);
    places
}

/// Does it to `content`.
pub fn apply(damage: Damage, place: usize, content: &mut Vec<u8>) {
    let end = (place + RUN_BYTES).min(content.len());
    match damage {
        Damage::Flip { bit } => content[place] ^= 1 << bit,
        Damage::Zero => content[place..end].fill(0),
        Damage::Cut => content.truncate(place),
        Damage::Duplicate => {
            let run = content[place..end].to_vec();
            content.splice(place..place, run);
        }
    }
}

/// Reads all of a log as a consumer does, and looks up each offset and time on the way.
fn read(log: &Log<SimDisk>) -> Result<Contents, String> {
    let (start, end) = (log.view().start, log.view().end);
    let batches = super::batches(log)?.into_iter();
    let batches = batches.map(|batch| (batch.base_offset(), batch.next_offset(), batch.bytes().clone())).collect();
    Ok(Contents {
        start,
        end,
        batches,
        epochs: log.view().epochs.entries().iter().map(|entry| (entry.epoch.0, entry.start.0)).collect(),
        producers: log.producers().newest_sequences().collect(),
    })
}

/// Look-ups by offset and by time give what the batches say.
fn check_look_ups(log: &Log<SimDisk>, contents: &Contents) -> Result<(), String> {
    for (base, next, _) in &contents.batches {
        let from = (*base).max(contents.start);
        let found = log.plan_read(from, contents.end, 1, true).and_then(|plan| plan.read());
        let found = found.map_err(|error| format!("a read at {from} is refused: {error}"))?;
        let first = BatchIter::new(found).next().and_then(Result::ok).map(|batch| batch.base_offset());
        if first != Some(*base) {
            return Err(format!("a read at {from} begins at {first:?}"));
        }
        let at = Timestamp(10_000 + 10 * (next.0 - 1));
        let hit = log.offset_for_timestamp(at).map_err(|error| format!("a search for {at:?} is refused: {error}"))?;
        if hit.map(|hit| hit.offset) != Some(Offset(next.0 - 1)) {
            return Err(format!("a search for the time of {} finds {hit:?}", next.0 - 1));
        }
    }
    let newest = log.max_timestamp().map_err(|error| format!("a search for the newest is refused: {error}"))?;
    if newest.map_or(contents.start, |hit| hit.offset.plus(1)) != contents.end {
        return Err(format!("the newest record is said to be {newest:?}"));
    }
    Ok(())
}

/// Every log of an undamaged directory.
fn originals(stop: Stop) -> BTreeMap<LogName, Contents> {
    let disk = directory(stop).fork();
    let (dir, _) = LogDir::open(disk, Path::new(DIR), &opening(2)).expect("it opens");
    let open = logs().map(|(name, topic)| {
        let (log, _) = Log::open(&dir, &name, topic, settings(), NOW).expect("it opens");
        let contents = read(&log).expect("it can be read");
        check_look_ups(&log, &contents).expect("what is looked up is found");
        (name, contents)
    });
    open.into_iter().collect()
}

/// What becomes of a damaged directory.
///
/// # Errors
/// A wrong byte, or a loss that nobody is told of.
fn judge(
    disk: &SimDisk,
    file: &str,
    stop: Stop,
    originals: &BTreeMap<LogName, Contents>,
) -> Result<(Outcome, String), String> {
    let (dir, previous) = match LogDir::open(disk.clone(), Path::new(DIR), &opening(2)) {
        Ok(opened) => opened,
        Err(error) => return Ok((Outcome::StartRefused, error.to_string())),
    };
    let proved = match stop {
        Stop::Cleanly => previous.clean_stop == Some(Some(CLEAN_EPOCH)),
        Stop::Killed => previous.survived == [IncarnationId::from_bytes([3; 16])],
    };
    let mut worst = if proved { (Outcome::Rebuilt, String::new()) } else { (Outcome::Unproved, String::new()) };
    if !previous.damaged.is_empty() {
        worst = worst.max((Outcome::Warned, format!("{:?}", previous.damaged)));
    }
    for (name, topic) in logs() {
        let (log, report) = match Log::open(&dir, &name, topic, settings(), NOW) {
            Ok(opened) => opened,
            Err(error) => {
                worst = worst.max((Outcome::StartRefused, error.to_string()));
                continue;
            }
        };
        log.check_invariants();
        let expected = &originals[&name];
        let found = match read(&log) {
            Ok(found) => found,
            Err(refused) => {
                worst = worst.max((Outcome::ReadRefused, refused));
                continue;
            }
        };
        let is_last = |batch: &(Offset, Offset, Bytes)| batch.1 == expected.end;
        let same_but_epoch = |batch: &(Offset, Offset, Bytes)| {
            let before = expected.batches.last().map(|last| &last.2);
            before.is_some_and(|before| before[..12] == batch.2[..12] && before[16..] == batch.2[16..])
        };
        if let Some(wrong) = found.batches.iter().find(|batch| !expected.batches.contains(batch)) {
            if stop == Stop::Killed && is_last(wrong) && same_but_epoch(wrong) {
                worst = worst.max((Outcome::KnownHole, format!("{name}")));
                continue;
            }
            let below = wrong.1 <= expected.start;
            // Names and numbers in this file have no check of their own: a known hole, see tests/README.md.
            let hole = stop == Stop::Killed && file == "log-start-offset-checkpoint";
            if below && hole {
                worst = worst.max((Outcome::KnownHole, format!("{name}")));
                continue;
            }
            if below && (report.start_doubted || previous.damaged.contains(&"log-start-offset-checkpoint")) {
                worst = worst.max((Outcome::Warned, format!("{report:?}")));
                continue;
            }
            return Err(if below {
                format!("{name}: deleted records from {} on are back: {report:?}", wrong.0)
            } else {
                format!("{name}: a wrong byte in the batch at {}", wrong.0)
            });
        }
        let lost = found.start > expected.start || found.end < expected.end;
        if lost && report.cut.as_ref().is_some_and(|cut| cut.incomplete_last_batch_only) && stop == Stop::Killed {
            worst = worst.max((Outcome::TakenForTorn, format!("{report:?}")));
            continue;
        }
        let may_hide = [".log", "log-start-offset-checkpoint"].contains(&file);
        if stop == Stop::Killed && may_hide && found.start > expected.start && found.end == expected.end {
            worst = worst.max((Outcome::KnownHole, format!("{report:?}")));
            continue;
        }
        if lost && !report.may_have_lost_records() {
            return Err(format!("{name}: silently reaches from {} to {}: {report:?}", found.start, found.end));
        }
        if lost {
            worst = worst.max((Outcome::CutAndReported, format!("{report:?}")));
        } else if found != *expected {
            return Err(format!("{name}: {found:?}\n is not {expected:?}"));
        }
        if let Err(fault) = check_look_ups(&log, &found) {
            if fault.contains("refused") {
                worst = worst.max((Outcome::ReadRefused, fault));
            } else {
                return Err(format!("{name}: {fault}"));
            }
        }
    }
    Ok(worst)
}

/// What a sweep found: for each kind of file and of damage, how often which outcome; and all faults.
#[derive(Debug, Default)]
pub struct Sweep {
    pub cases: u64,
    pub outcomes: BTreeMap<(String, Stop, Outcome), u64>,
    pub faults: Vec<String>,
}

/// Damages everything once.
pub fn sweep(seed: u64) -> Sweep {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut sweep = Sweep::default();
    for stop in [Stop::Cleanly, Stop::Killed] {
        let originals = originals(stop);
        let whole = directory(stop);
        for path in files(&whole, Path::new(DIR)) {
            if path.ends_with(".lock") {
                continue;
            }
            let content = whole.read(&path).expect("it is there");
            for place in places(&path, &content) {
                for damage in
                    [Damage::Flip { bit: rng.random_range(0..8) }, Damage::Zero, Damage::Cut, Damage::Duplicate]
                {
                    let disk = whole.fork();
                    disk.damage(&path, |content| apply(damage, place, content));
                    sweep.cases += 1;
                    match judge(&disk, &kind_of(&path), stop, &originals) {
                        Ok((outcome, _)) => *sweep.outcomes.entry((kind_of(&path), stop, outcome)).or_default() += 1,
                        Err(fault) => sweep.faults.push(format!(
                            "{stop:?}, {}, {damage:?} at {place} of {}: {fault}",
                            path.display(),
                            content.len()
                        )),
                    }
                }
            }
            let disk = whole.fork();
            disk.remove(&path).expect("it is there");
            sweep.cases += 1;
            match judge(&disk, &kind_of(&path), stop, &originals) {
                Ok((outcome, _)) => *sweep.outcomes.entry((kind_of(&path), stop, outcome)).or_default() += 1,
                Err(fault) => sweep.faults.push(format!("{stop:?}, {} removed: {fault}", path.display())),
            }
        }
    }
    sweep
}
