//! The log with `flush.messages=1` on trial: a writer that acknowledges only what is synced, and what must be there later.
//!
//! A record follows from its offset and leader epoch, and after a truncation the epoch is always another one: whoever reads
//! knows what each record must hold.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use highwater_data::disk::FsDisk;
use highwater_data::log::{Log, LogDir, LogName, LogSettings, Opening, Previous, RecoveryReport};
use highwater_wire::batch::{BatchIter, RecordBatch};
use highwater_wire::records::RecordBatchBuilder;
use highwater_wire::{
    BrokerId, ClusterId, IncarnationId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Timestamp, TopicId,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const NOW: Timestamp = Timestamp(1_000_000);
const PRODUCER: ProducerId = ProducerId(9);
/// Records of one batch.
const RECORDS_MAX: i64 = 3;

/// What a writer said: its lines are words and numbers.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// First offset → leader epoch, of all that was written.
    pub written: BTreeMap<i64, i32>,
    /// Everything below is acknowledged, and was not truncated since.
    pub acked: i64,
    /// DeleteRecords was answered for everything below (D33).
    pub start: i64,
}

impl Told {
    pub(super) fn note(&mut self, line: &str) {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<i64>().ok()).expect("a number");
        match what {
            // "wrote BASE EPOCH", before it does.
            "wrote" => {
                let (base, epoch) = (number(), i32::try_from(number()).expect("an epoch"));
                self.forget_from(base);
                if self.written.values().next_back() != Some(&epoch) {
                    self.written.insert(base, epoch);
                }
            }
            // "cut OFFSET", before it does.
            "cut" => self.acked = self.acked.min(number()),
            "acked" => self.acked = number(),
            "start" => self.start = number(),
            _ => {}
        }
    }

    fn forget_from(&mut self, offset: i64) {
        self.written.split_off(&offset);
    }

    fn epoch_of(&self, offset: i64) -> Option<i32> {
        self.written.range(..=offset).next_back().map(|(_, epoch)| *epoch)
    }

    /// As lines that [`Told::read`] takes.
    pub fn lines(&self) -> String {
        let mut lines = String::new();
        for (base, epoch) in &self.written {
            lines += &format!("wrote {base} {epoch}\n");
        }
        lines + &format!("acked {}\nstart {}\n", self.acked, self.start)
    }

    pub fn read(lines: &str) -> Self {
        let mut told = Self::default();
        lines.lines().for_each(|line| told.note(line));
        told
    }
}

/// Small segments, so that they are rolled and deleted in a life of a second.
fn settings() -> LogSettings {
    LogSettings {
        segment_bytes_max: 24 << 10,
        index_interval_bytes: 1 << 10,
        retention_ms: None,
        retention_bytes: Some(256 << 10),
        ..LogSettings::default()
    }
}

fn open(path: &Path, boot: &str) -> io::Result<(Log<FsDisk>, Previous, RecoveryReport)> {
    let opening = Opening {
        cluster: ClusterId("power".to_owned()),
        broker: BrokerId(1),
        boot_id: Some(boot.to_owned()),
        boot_time_ms: 1,
    };
    let (dir, previous) = LogDir::open(FsDisk, path, &opening).map_err(io::Error::other)?;
    dir.write_running_marker(IncarnationId::random())?;
    let name = LogName::new("t", 0);
    let topic = TopicId::from_bytes([7; 16]);
    let (log, report) = Log::open(&dir, &name, topic, settings(), NOW).map_err(io::Error::other)?;
    Ok((log, previous, report))
}

/// What the record at `offset` holds if the leader of `epoch` wrote it.
fn value(offset: i64, epoch: i32) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(offset as u64 ^ (epoch as u64) << 40);
    let mut value = vec![0; rng.random_range(1..900)];
    rng.fill(&mut value[..]);
    value
}

fn batch(base: i64, epoch: i32, count: i64) -> RecordBatch {
    let sequence = i32::try_from(base & i64::from(i32::MAX)).expect("masked to 31 bits");
    let mut builder = RecordBatchBuilder::new().producer(PRODUCER, ProducerEpoch(0), sequence);
    for offset in base..base + count {
        builder = builder.value(Timestamp(NOW.0 + offset), &value(offset, epoch));
    }
    builder.build()
}

/// A log that lives on its own: whatever a replica does with one, as a leader or a follower.
struct Life<'a> {
    log: Log<FsDisk>,
    epoch: i32,
    rng: SmallRng,
    say: &'a mut dyn FnMut(&str),
}

/// Opens the log at `path` and writes for ever.
///
/// # Errors
/// The disk failed; nothing is said of what was under way.
pub fn write(path: &Path, boot: &str, seed: u64, say: &mut dyn FnMut(&str)) -> io::Result<()> {
    let (log, _, _) = open(path, boot)?;
    let epoch = log.view().epochs.latest().map_or(0, |epoch| epoch.0) + 1;
    let mut life = Life { log, epoch, rng: SmallRng::seed_from_u64(seed), say };
    // The tail is synced before anything else (D23): from then on it counts.
    life.cut_to(life.log.view().end.0)?;
    life.flush()?;
    loop {
        match life.rng.random_range(0..100) {
            0..60 => {
                for _ in 0..life.rng.random_range(1..5) {
                    life.append()?;
                }
                life.flush()?;
            }
            60..75 => life.flush_while_appending()?,
            75..80 => life.epoch += 1,
            80..84 => {
                let view = life.log.view();
                let back = life.rng.random_range(1..60);
                life.cut_to((view.end.0 - back).max(view.start.0))?;
                life.flush()?;
            }
            84..91 => {
                let end = life.log.view().end;
                life.log.dir().checkpoint_recovery_points()?;
                life.log.dir().checkpoint_watermarks([(life.log.name().clone(), end)])?;
            }
            91..95 => life.delete_records()?,
            95..98 => {
                let away = life.log.delete_segments(life.log.view().flushed_end, NOW)?;
                life.log.dir().erase(&away)?;
            }
            _ => {
                life.log.roll_if_due(NOW)?;
            }
        }
    }
}

impl Life<'_> {
    fn append(&mut self) -> io::Result<()> {
        let (base, count) = (self.log.view().end.0, self.rng.random_range(1..=RECORDS_MAX));
        (self.say)(&format!("wrote {base} {}", self.epoch));
        self.log.append_as_leader(&batch(base, self.epoch, count), LeaderEpoch(self.epoch), NOW)?;
        Ok(())
    }

    /// Syncs all there is, and acknowledges it.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(job) = self.log.sync_job() {
            self.log.on_synced(job.run())?;
        }
        self.acknowledge();
        Ok(())
    }

    /// Acknowledges what a sync covered that others overtook.
    fn flush_while_appending(&mut self) -> io::Result<()> {
        self.append()?;
        let Some(job) = self.log.sync_job() else { return Ok(()) };
        self.append()?;
        self.append()?;
        let done = job.run();
        self.append()?;
        self.log.on_synced(done)?;
        self.acknowledge();
        Ok(())
    }

    fn acknowledge(&mut self) {
        let view = self.log.view();
        if self.log.is_settled() {
            (self.say)(&format!("acked {}", view.flushed_end));
        }
    }

    /// Truncates, as a follower that finds that it diverged; what comes next is of another epoch.
    fn cut_to(&mut self, to: i64) -> io::Result<()> {
        // At or below its start the log is emptied, with what still lies below; a batch goes whole.
        let kept = if to <= self.log.view().start.0 { 0 } else { (to - RECORDS_MAX + 1).max(0) };
        (self.say)(&format!("cut {kept}"));
        self.log.truncate_to(Offset(to))?;
        self.epoch += 1;
        Ok(())
    }

    fn delete_records(&mut self) -> io::Result<()> {
        let view = self.log.view();
        let start = self.rng.random_range(view.start.0..=view.flushed_end.0.max(view.start.0));
        if self.log.advance_start(Offset(start)) {
            self.log.dir().checkpoint_starts([(self.log.name().clone(), Offset(start))])?;
            (self.say)(&format!("start {start}"));
        }
        Ok(())
    }
}

/// Opens the log after a cut, on another boot, and reads all of it. Gives what it holds now, for the next life.
///
/// # Errors
/// What is wrong: it does not open, acknowledged records are gone or others, deleted ones are back, something was never
/// written, or the page cache of the process before is said to have survived (D10).
pub fn check(path: &Path, boot: &str, told: &Told) -> Result<Told, String> {
    let (log, previous, report) = open(path, boot).map_err(|error| format!("it does not open: {error}"))?;
    if !previous.survived.is_empty() || previous.clean_stop.is_some() {
        return Err(format!("after a loss of power it claims to hold everything: {previous:?}"));
    }
    log.check_invariants();
    let view = log.view();
    if view.end.0 < told.acked {
        return Err(format!("it ends at {}, and was acknowledged up to {}: {report:?}", view.end, told.acked));
    }
    if view.start.0 < told.start {
        return Err(format!("it begins at {}, and records below {} were deleted", view.start, told.start));
    }
    let mut found = Told { acked: view.end.0, start: view.start.0, ..Told::default() };
    let mut at = view.start;
    while at < view.end {
        let plan = log.plan_read(at, view.end, 64 << 10, true).map_err(|error| format!("at {at}: {error}"))?;
        let bytes = plan.read().map_err(|error| format!("at {at}: {error}"))?;
        if bytes.is_empty() {
            return Err(format!("nothing at {at}, though it ends at {}", view.end));
        }
        for batch in BatchIter::new(bytes) {
            let batch = batch.map_err(|error| format!("behind {at}: {error}"))?;
            batch.validate_from_leader().map_err(|error| format!("the batch at {}: {error}", batch.base_offset()))?;
            let epoch = batch.leader_epoch().map_or(-1, |epoch| epoch.0);
            if batch.base_offset() > at {
                return Err(format!("a hole from {at} to {}", batch.base_offset()));
            }
            check_batch(&batch, epoch, told)?;
            if found.written.values().next_back() != Some(&epoch) {
                found.written.insert(batch.base_offset().0, epoch);
            }
            at = batch.next_offset();
        }
    }
    Ok(found)
}

fn check_batch(batch: &RecordBatch, epoch: i32, told: &Told) -> Result<(), String> {
    for record in batch.records().map_err(|error| error.to_string())? {
        let record = record.map_err(|error| error.to_string())?;
        let offset = record.offset.0;
        if record.value.as_deref() != Some(&value(offset, epoch)[..]) {
            return Err(format!("record {offset} of epoch {epoch} holds something else"));
        }
        if offset < told.acked && told.epoch_of(offset) != Some(epoch) {
            let acknowledged = told.epoch_of(offset);
            return Err(format!("record {offset} is of epoch {epoch}, acknowledged was that of {acknowledged:?}"));
        }
    }
    Ok(())
}
