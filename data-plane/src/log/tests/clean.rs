//! Compaction against a model of it: every record that was ever appended, and what may be missing of them.

use std::collections::BTreeMap;

use highwater_wire::Record;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::disk::DiskFile as _;
use crate::log::clean::{CleanReport, Installed, KeyBuffer};
use crate::log::compaction::CompactionRules;

const RETENTION_MS: u64 = 500;

fn buffer(bytes_max: usize) -> KeyBuffer {
    KeyBuffer { bytes_max, secret: (1, 2) }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    timestamp: i64,
}

/// A log with what was ever appended to it.
struct Life {
    disk: SimDisk,
    log: SimLog,
    said: BTreeMap<i64, Said>,
    /// Nothing below it is ever cut.
    high_watermark: i64,
    epoch: i32,
    now: i64,
    sequences: BTreeMap<i64, i32>,
    rng: SmallRng,
    cleaned: u64,
    merged: u64,
}

fn compacted() -> LogSettings {
    let rules =
        CompactionRules { dirty_ratio_min: 100_000, delete_retention_ms: RETENTION_MS, ..CompactionRules::default() };
    LogSettings { compaction: Some(rules), retention_ms: None, ..settings() }
}

/// From, up to and without, and the leader epoch.
type Covered = (i64, i64, i32);

/// Records by offset, and what each batch covers.
fn read(log: &SimLog) -> (BTreeMap<i64, Said>, Vec<Covered>) {
    let (mut records, mut batches) = (BTreeMap::new(), Vec::new());
    let mut at = log.view().start;
    while at < log.view().end {
        let bytes = log.plan_read(at, log.view().end, 700, true).unwrap().read().unwrap();
        assert!(!bytes.is_empty(), "nothing at {at}");
        for batch in BatchIter::new(bytes) {
            let batch = batch.unwrap();
            batch.validate_from_leader().unwrap();
            let epoch = batch.leader_epoch().map_or(-1, |epoch| epoch.0);
            batches.push((batch.base_offset().0, batch.next_offset().0, epoch));
            at = batch.next_offset();
            for Record { offset, timestamp, key, value, .. } in batch.records().unwrap().map(Result::unwrap) {
                let said = Said {
                    key: key.unwrap().to_vec(),
                    value: value.map(|value| value.to_vec()),
                    timestamp: timestamp.0,
                };
                records.insert(offset.0, said);
            }
        }
    }
    (records, batches)
}

impl Life {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new();
        let (log, _) = open_with(&disk, compacted());
        Self {
            disk,
            log,
            said: BTreeMap::new(),
            high_watermark: 0,
            epoch: 0,
            now: NOW.0,
            sequences: BTreeMap::new(),
            rng: SmallRng::seed_from_u64(seed),
            cleaned: 0,
            merged: 0,
        }
    }

    fn append(&mut self) -> io::Result<()> {
        let base = self.log.view().end.0;
        let mut builder = RecordBatchBuilder::new();
        if self.rng.random_bool(0.2) {
            builder = builder.codec(Codec::Lz4);
        }
        let producer = self.rng.random_range(0..6_i64);
        let count = self.rng.random_range(1..5);
        if producer < 3 {
            let next = self.sequences.entry(producer).or_default();
            builder = builder.producer(ProducerId(producer), ProducerEpoch(0), *next);
            *next += count as i32;
        }
        for n in 0..count {
            let key = vec![self.rng.random_range(0..12)];
            let value = self.rng.random_bool(0.8).then(|| vec![self.rng.random(); self.rng.random_range(1..80)]);
            let timestamp = self.now - self.rng.random_range(0..300);
            builder.push(&Record::new(Timestamp(timestamp), Some(&key), value.as_deref()));
            self.said.insert(base + n, Said { key, value, timestamp });
        }
        self.log.append_as_leader(&builder.build(), LeaderEpoch(self.epoch), Timestamp(self.now))?;
        self.log.check_invariants();
        Ok(())
    }

    /// One record in a batch of its own.
    fn say(&mut self, key: &[u8], value: Option<&[u8]>) {
        let said = Said { key: key.to_vec(), value: value.map(<[u8]>::to_vec), timestamp: self.now };
        self.said.insert(self.log.view().end.0, said);
        let batch = RecordBatchBuilder::new().record(&Record::new(Timestamp(self.now), Some(key), value)).build();
        self.log.append_as_leader(&batch, LeaderEpoch(self.epoch), Timestamp(self.now)).unwrap();
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(job) = self.log.sync_job() {
            self.log.on_synced(job.run())?;
        }
        Ok(())
    }

    /// Compacts as the cleaner does. With `disturb` others get at the log between its steps.
    fn clean(&mut self, disturb: bool) -> io::Result<Option<CleanReport>> {
        let buffer = buffer(if self.rng.random_bool(0.3) { 400 } else { 1 << 20 });
        let job = self.log.clean_job(Offset(self.high_watermark), Timestamp(self.now), buffer);
        let Some(mut job) = job else { return Ok(None) };
        while let Some(cleaned) = job.step()? {
            if disturb {
                self.disturb()?;
            }
            match self.log.install(&cleaned)? {
                Installed::Stale => {
                    job.discard(&cleaned)?;
                    return Ok(None);
                }
                Installed::Done => {
                    self.log.check_invariants();
                    job.sync_names()?;
                    job.write_index(&cleaned)?;
                }
                Installed::Begun => {
                    self.merged += 1;
                    job.sync_names()?;
                    job.write_index(&cleaned)?;
                    loop {
                        if disturb {
                            self.disturb()?;
                        }
                        self.log.check_invariants();
                        let more = self.log.go_on_swapping()?;
                        job.sync_names()?;
                        if !more {
                            break;
                        }
                    }
                }
            }
        }
        self.log.cleaned(&job.report);
        self.log.dir().checkpoint_cleaned()?;
        self.cleaned += 1;
        Ok(Some(job.report))
    }

    fn disturb(&mut self) -> io::Result<()> {
        match self.rng.random_range(0..4) {
            0 => self.append(),
            1 => self.flush(),
            2 => self.cut(),
            _ => Ok(()),
        }
    }

    fn cut(&mut self) -> io::Result<()> {
        let to = self.rng.random_range(self.high_watermark..=self.log.view().end.0);
        self.log.truncate_to(Offset(to))?;
        self.forget_behind_end();
        self.epoch += 1;
        self.flush()
    }

    fn forget_behind_end(&mut self) {
        let end = self.log.view().end.0;
        self.said.retain(|offset, _| *offset < end);
        for (producer, next) in &mut self.sequences {
            let known = self.log.producers().newest_sequences().find(|(id, ..)| id.0 == *producer);
            *next = known.and_then(|(.., newest)| newest).map_or(0, |newest| newest + 1);
        }
    }

    fn check(&self, context: &str) {
        self.log.check_invariants();
        let (records, batches) = read(&self.log);
        for pair in batches.windows(2) {
            assert_eq!(pair[0].1, pair[1].0, "{context}: a gap");
            assert!(pair[0].2 <= pair[1].2, "{context}: epochs go back");
        }
        for (offset, record) in &records {
            assert_eq!(Some(record), self.said.get(offset), "{context}: offset {offset}");
        }
        let end = self.log.view().end.0;
        let mut newest: BTreeMap<&[u8], i64> = BTreeMap::new();
        for (offset, said) in self.said.range(..end) {
            newest.insert(&said.key, *offset);
        }
        for (offset, said) in self.said.range(..end) {
            let superseded = newest[said.key.as_slice()] > *offset;
            // Nobody saw the tombstone before its batch was closed.
            let may_be_gone = said.value.is_none() && self.now - said.timestamp >= RETENTION_MS as i64;
            assert!(superseded || may_be_gone || records.contains_key(offset), "{context}: {offset} {said:?} is gone");
            // A value may not be back after its tombstone went.
            if superseded && records.contains_key(offset) {
                let gone = self.said.range(offset + 1..end).find(|(_, later)| later.key == said.key);
                let (_, next) = gone.unwrap();
                let later = self.said.range(offset + 1..end).filter(|(_, later)| later.key == said.key);
                let present = later.clone().any(|(offset, _)| records.contains_key(offset));
                assert!(present, "{context}: {offset} {said:?} came back, {next:?} and all behind it are gone");
            }
        }
        let known: Vec<_> = self.log.producers().newest_sequences().map(|(id, _, newest)| (id.0, newest)).collect();
        let expected: Vec<_> =
            self.sequences.iter().filter(|(_, next)| **next > 0).map(|(id, next)| (*id, Some(next - 1))).collect();
        assert_eq!(known, expected, "{context}: producers");
    }

    /// With a crash, or as it was closed.
    fn reopen(self, crash: Option<Crash>, context: &str) -> Self {
        let Self { disk, log, said, high_watermark, epoch, now, sequences, rng, cleaned, merged } = self;
        let before = log.view().end;
        drop(log);
        if let Some(crash) = crash {
            disk.crash(crash);
        }
        let (log, report) = open_with(&disk, compacted());
        assert_eq!(report.clean, crash.is_none(), "{context}");
        assert!(log.view().end.0 >= high_watermark, "{context}: committed records are gone: {report:?}");
        if crash == Some(Crash::Killed) {
            let cut_more = report.cut.as_ref().is_some_and(|cut| !cut.incomplete_last_batch_only);
            assert!(!cut_more && log.view().end <= before, "{context}: {report:?}");
        }
        let names = file_names(&log);
        assert!(names.iter().all(|name| !name.contains("swap") && !name.contains("clean")), "{context}: {names:?}");
        let mut life = Self { disk, log, said, high_watermark, epoch, now, sequences, rng, cleaned, merged };
        life.forget_behind_end();
        life
    }
}

fn live(seed: u64) -> (u64, u64) {
    let mut life = Life::new(seed);
    for step in 0..life.rng.random_range(40..160) {
        let context = format!("seed {seed}, step {step}");
        life.now += life.rng.random_range(0..100);
        let crash = match life.rng.random_range(0..10) {
            0..4 => Crash::Killed,
            4..6 => Crash::PowerLoss,
            _ => Crash::PowerLossKeepingSome { seed: life.rng.random() },
        };
        let happened = match life.rng.random_range(0..100) {
            0..55 => life.append(),
            55..58 => {
                life.epoch += 1;
                life.log.assign_epoch(LeaderEpoch(life.epoch));
                Ok(())
            }
            58..70 => life.flush().map(|()| life.high_watermark = life.log.view().flushed_end.0),
            70..84 => life.clean(false).map(drop),
            84..90 => life.clean(true).map(drop),
            90..92 => life.cut(),
            92..96 => {
                // Within the next few changes the disk stops.
                let (stop, torn) = (life.disk.changes() + life.rng.random_range(0..14), life.rng.random());
                life.disk.stop_at(stop, torn);
                let done = life.clean(false).map(drop);
                done.and_then(|()| Err(io::Error::other("the process ends here")))
            }
            96..98 => Err(io::Error::other("the process ends here")),
            _ => {
                life.flush().unwrap();
                life.log.close_cleanly().unwrap();
                life.log.dir().close_cleanly(None).unwrap();
                life.high_watermark = life.log.view().end.0;
                life = life.reopen(None, &context);
                Ok(())
            }
        };
        if happened.is_err() {
            life = life.reopen(Some(crash), &context);
        }
        life.check(&context);
    }
    (life.cleaned, life.merged)
}

#[test]
fn whatever_happens_the_newest_record_of_each_key_stays() {
    let (mut cleaned, mut merged) = (0, 0);
    for seed in 0..400 {
        let (some, others) = live(seed);
        (cleaned, merged) = (cleaned + some, merged + others);
    }
    assert!(cleaned > 1_000 && merged > 300, "{cleaned} cleanings, {merged} merges");
}

/// Twelve segments over a few keys, synced, with a log of their own.
fn filled() -> Life {
    let mut life = Life::new(7);
    for _ in 0..90 {
        life.append().unwrap();
    }
    life.flush().unwrap();
    life.high_watermark = life.log.view().end.0;
    life
}

#[test]
fn a_log_shrinks_to_what_its_keys_need_and_ends_where_it_did() {
    let mut life = filled();
    let (before, end, segments) = (life.log.size_bytes(), life.log.view().end, life.log.segment_count());
    let report = life.clean(false).unwrap().unwrap();
    assert_eq!(life.log.view().end, end);
    assert!(life.log.size_bytes() < before / 2, "{} of {before} bytes", life.log.size_bytes());
    assert_eq!(report.cleaned_to.0, life.log.segments.last().unwrap().base.0);
    assert!(report.records_after < report.records_before && report.keys <= 12, "{report:?}");
    life.check("after the first");
    assert_eq!(life.clean(false).unwrap(), None, "nothing is dirty");
    life.append().unwrap();
    for _ in 0..40 {
        life.append().unwrap();
    }
    life.flush().unwrap();
    life.high_watermark = life.log.view().end.0;
    assert!(life.clean(false).unwrap().is_some());
    assert!(life.log.segment_count() < segments, "small ones are merged: {}", life.log.segment_count());
    assert!(life.merged > 0);
    life.check("after the second");
}

#[test]
fn tombstones_go_when_their_time_has_passed_and_not_before() {
    let mut life = Life::new(7);
    for value in [Some(&b"value"[..]), None] {
        life.say(b"gone", value);
    }
    for _ in 0..40 {
        life.append().unwrap();
    }
    life.flush().unwrap();
    life.high_watermark = life.log.view().end.0;
    life.clean(false).unwrap().unwrap();
    let tombstones = |life: &Life| {
        let (records, _) = read(&life.log);
        records.values().filter(|said| said.key == b"gone").map(|said| said.value.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(tombstones(&life), [false], "the value is gone");
    let again = |life: &mut Life| {
        for _ in 0..60 {
            life.say(b"another", Some(b"value that takes some room"));
        }
        life.flush().unwrap();
        life.high_watermark = life.log.view().end.0;
        life.clean(false).unwrap().unwrap();
        life.check("again");
    };
    life.now += RETENTION_MS as i64 - 1;
    again(&mut life);
    assert_eq!(tombstones(&life), [false]);
    life.now += 1;
    again(&mut life);
    assert!(tombstones(&life).is_empty());
}

#[test]
fn a_damaged_batch_is_not_compacted_away() {
    let life = filled();
    let path = life.log.path().join("00000000000000000000.log");
    life.disk.flip_bit(&path, 300);
    let mut job = life.log.clean_job(Offset(life.high_watermark), NOW, buffer(1 << 20)).unwrap();
    let error = job.step().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[test]
fn a_topic_that_is_not_compacted_is_left_alone() {
    let mut life = filled();
    life.log.set_settings(settings());
    assert!(life.log.clean_job(Offset(life.high_watermark), NOW, buffer(1 << 20)).is_none());
}

/// Whatever a replica held when it stopped following: it takes up what the leader has made of its log meanwhile, and knows the same.
#[test]
fn a_follower_goes_on_from_every_place_in_a_log_that_was_compacted_meanwhile() {
    for seed in 0..12 {
        let mut leader = Life::new(seed);
        let mut ends = vec![0];
        for _ in 0..60 {
            leader.append().unwrap();
            ends.push(leader.log.view().end.0);
        }
        let original = copied(&leader.log, 0);
        leader.flush().unwrap();
        leader.high_watermark = leader.log.view().end.0;
        leader.clean(false).unwrap().unwrap();
        for end in ends {
            let disk = SimDisk::new();
            let (mut follower, _) = open_with(&disk, compacted());
            for batch in original.iter().filter(|batch| batch.next_offset().0 <= end) {
                follower.append_as_follower(batch.bytes().clone(), LeaderEpoch(0), NOW).unwrap();
            }
            while follower.view().end < leader.log.view().end {
                let (from, to) = (follower.view().end, leader.log.view().end);
                let records = leader.log.plan_read(from, to, 700, true).unwrap().read().unwrap();
                let appended = follower.append_as_follower(records, LeaderEpoch(0), NOW).unwrap();
                assert!(appended.end > from, "seed {seed}: stuck at {from}");
                follower.check_invariants();
            }
            let (records, _) = read(&follower);
            let (leaders, _) = read(&leader.log);
            let behind =
                |records: &BTreeMap<i64, Said>| records.range(end..).map(|(k, v)| (*k, v.clone())).collect::<Vec<_>>();
            assert_eq!(behind(&records), behind(&leaders), "seed {seed}, from {end}");
            assert!(records.iter().all(|(offset, said)| leader.said[offset] == *said), "seed {seed}, from {end}");
            let newest = |log: &SimLog| log.producers().newest_sequences().collect::<Vec<_>>();
            assert_eq!(newest(&follower), newest(&leader.log), "seed {seed}, from {end}");
        }
    }
}

/// The batches of a log from an offset on.
fn copied(log: &SimLog, from: i64) -> Vec<RecordBatch> {
    let (mut at, mut batches) = (Offset(from), Vec::new());
    while at < log.view().end {
        for batch in BatchIter::new(log.plan_read(at, log.view().end, 700, true).unwrap().read().unwrap()) {
            let batch = batch.unwrap();
            at = batch.next_offset();
            batches.push(batch);
        }
    }
    batches
}

/// Kafka splits a segment into several, the last one first; until all are written the one that is split counts (R25).
#[test]
fn a_split_that_kafka_did_not_finish_is_forgotten() {
    let life = filled();
    let (said, path) = (read(&life.log).0, life.log.path().to_owned());
    let first = life.disk.read(&path.join("00000000000000000000.log")).unwrap();
    let second = highwater_wire::batch::BatchHeader::parse(&first).unwrap();
    let (base, rest) = (second.next_offset().0, &first[second.total_bytes()..]);
    for (name, content) in
        [(format!("{base:020}.log.swap"), rest), ("00000000000000000000.log.cleaned".to_owned(), &[][..])]
    {
        let file = life.disk.create(&path.join(name)).unwrap();
        file.write_at(&[io::IoSlice::new(content)], 0).unwrap();
    }
    let life = life.reopen(Some(Crash::Killed), "split");
    assert_eq!(read(&life.log).0, said);
}
