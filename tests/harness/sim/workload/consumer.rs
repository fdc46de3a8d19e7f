//! A reader: polls its leader, checks every batch against what was committed, and asks for the end now and then.

use bytes::Bytes;
use highwater_wire::batch::BatchIter;
use highwater_wire::{ErrorCode, LeaderEpoch, Offset};

use super::super::core::{ClientTimer, Core, Event};
use super::super::deeds::Deed;
use super::super::invariants::{Verdict, consistent_read, must};
use super::super::message::{Call, Message, ReadAnswer};
use super::Target;

/// µs until an unanswered poll is given up.
const PATIENCE: u64 = 2_000_000;

#[derive(Debug)]
pub(super) struct Consumer {
    pub id: u32,
    target: Target,
    position: i64,
    last_epoch: Option<LeaderEpoch>,
    latest: i64,
    call: Option<Call>,
}

impl Consumer {
    pub fn new(id: u32, target: Target) -> Self {
        Self { id, target, position: 0, last_epoch: None, latest: 0, call: None }
    }

    pub fn on_timer(&mut self, core: &mut Core, timer: ClientTimer) {
        match timer {
            ClientTimer::Next => {
                self.poll(core, None);
                let gap = core.rng.around(core.swarm.poll_ms * 1_000);
                core.after(gap, Event::Client { client: self.id, timer: ClientTimer::Next });
            }
            ClientTimer::CallDue(call) => {
                if self.call == Some(call) {
                    if let Some(link) = self.target.link(self.id) {
                        core.net.reset(link);
                    }
                    self.on_broken(core);
                }
            }
            ClientTimer::Resend => {}
        }
    }

    fn refresh(&mut self, core: &mut Core) {
        if self.target.refresh(core) {
            self.position = 0;
            self.latest = 0;
            self.last_epoch = None;
        }
    }

    /// Asks for the end, or for records in knowledge of the epoch last read or not, as is drawn or asked for. `false`: it
    /// does not know where.
    pub fn poll(&mut self, core: &mut Core, asked: Option<(bool, bool)>) -> bool {
        if self.call.is_some() {
            return true;
        }
        if self.target.leader.is_none() || core.rng.chance(100) {
            self.refresh(core);
        }
        let (Some(at), Some(link)) = (self.target.at, self.target.link(self.id)) else { return false };
        let call = core.call();
        self.call = Some(call);
        let leader_epoch = self.target.epoch;
        let latest = asked.map_or_else(|| core.rng.chance(150), |(latest, _)| latest);
        let tells_epoch = match asked {
            Some((_, tells_epoch)) => tells_epoch,
            None => !latest && self.last_epoch.is_some() && core.rng.chance(800),
        };
        core.ledger.note(core.now, &Deed::Poll { client: self.id, latest, tells_epoch });
        let message = if latest {
            Message::Latest { call, at, leader_epoch }
        } else {
            let last_epoch = self.last_epoch.filter(|_| tells_epoch);
            Message::Read { call, at, offset: Offset(self.position), leader_epoch, last_epoch }
        };
        core.request(link, message);
        core.after(PATIENCE, Event::Client { client: self.id, timer: ClientTimer::CallDue(call) });
        true
    }

    pub fn on_broken(&mut self, core: &mut Core) {
        self.call = None;
        self.refresh(core);
    }

    pub fn on_answer(&mut self, core: &mut Core, message: Message) {
        let verdict = match message {
            Message::ReadAnswer { call, result } if self.call == Some(call) => {
                self.call = None;
                match result {
                    Ok(answer) => self.on_read(core, &answer),
                    Err(error) => self.on_error(core, error),
                }
            }
            Message::LatestAnswer { call, result } if self.call == Some(call) => {
                self.call = None;
                match result {
                    Ok(Some(end)) => self.on_latest(core, end.0),
                    Ok(None) => Ok(()),
                    Err(error) => self.on_error(core, error),
                }
            }
            _ => Ok(()),
        };
        core.check(verdict);
    }

    fn on_read(&mut self, core: &mut Core, answer: &ReadAnswer) -> Verdict {
        let Some(at) = self.target.at else { return Ok(()) };
        let deep = core.rng.chance(150);
        let Some(partition) = core.book.partitions.get(&at) else { return Ok(()) };
        let taken_back = partition.lines.took_back_below(self.position);
        must(!answer.diverging || taken_back, "H5", || {
            format!("{at}: a reader at {} of {:?} is told that it diverges", self.position, self.last_epoch)
        })?;
        if answer.diverging {
            self.go_on_at(partition.lines.go_on_at(self.position));
            return Ok(());
        }
        let ever_committed = partition.committed.end().max(partition.lines.cut_end());
        must(answer.high_watermark.0 <= ever_committed, "S10", || {
            format!(
                "{at}: a reader is told of watermark {}, committed up to {}",
                answer.high_watermark,
                partition.committed.end()
            )
        })?;
        let mut batches = BatchIter::new(answer.records.clone());
        for batch in batches.by_ref() {
            let batch = batch.expect("a leader sends whole batches");
            let (base, end) = (batch.base_offset().0, batch.next_offset().0);
            must(base <= self.position || answer.log_start.0 > self.position, "H5", || {
                format!("{at}: a reader at {} is shown {base} next", self.position)
            })?;
            let epoch = batch.leader_epoch();
            consistent_read::read(at, partition, base, end, epoch.map_or(-1, |e| e.0), batch.header().crc)?;
            if deep {
                must(batch.check_crc().is_ok(), "P7", || format!("{at}: a reader is shown a damaged batch at {base}"))?;
                let serials: Vec<u64> = batch
                    .records()
                    .expect("readable")
                    .map(|record| record.ok().and_then(|r| r.value).map_or(0, |value| serial_of(&value)))
                    .collect();
                let written = core.book.contents.get(&batch.header().crc).map(|c| &c.serials);
                must(written == Some(&serials), "H2", || {
                    format!("{at}: records at {base}: {serials:?}, written {written:?}")
                })?;
            }
            self.position = self.position.max(end);
            self.last_epoch = epoch;
            core.counts.read += 1;
        }
        must(batches.rest().is_empty(), "R69", || format!("{at}: a reader is shown a part of a batch"))
    }

    /// From here on, whatever was read before.
    fn go_on_at(&mut self, position: i64) {
        self.position = position;
        self.latest = self.latest.min(position);
        self.last_epoch = None;
    }

    fn on_latest(&mut self, core: &mut Core, end: i64) -> Verdict {
        let Some(at) = self.target.at else { return Ok(()) };
        let before = std::mem::replace(&mut self.latest, end).max(self.position);
        let Some(partition) = core.book.partitions.get(&at) else { return Ok(()) };
        if !partition.lines.took_back_below(before) {
            consistent_read::latest(at, before, end)?;
        }
        must(end <= partition.committed.end().max(partition.lines.cut_end()), "S10", || {
            format!("{at}: the end is said to be {end}, committed up to {}", partition.committed.end())
        })
    }

    fn on_error(&mut self, core: &mut Core, error: ErrorCode) -> Verdict {
        if error == ErrorCode::OffsetOutOfRange
            && let Some(at) = self.target.at
            && let Some(partition) = core.book.partitions.get(&at)
        {
            let start = partition.replicas.values().filter(|r| r.leads).map(|r| r.start).max().unwrap_or(0);
            let deleted = partition.deletes_old || partition.replicas.values().any(|r| r.start > self.position);
            must(deleted || partition.lines.took_back_below(self.position), "H5", || {
                format!("{at}: a reader at {} is told that this is out of range", self.position)
            })?;
            self.go_on_at(partition.lines.go_on_at(self.position).max(start));
        }
        self.refresh(core);
        Ok(())
    }
}

fn serial_of(value: &Bytes) -> u64 {
    value.get(..8).and_then(|head| head.try_into().ok()).map_or(0, u64::from_le_bytes)
}
