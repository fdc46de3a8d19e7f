//! A producer: acks=all, 1 or 0, idempotent or not, with and without resending.

use std::collections::VecDeque;

use bytes::Bytes;
use highwater_wire::batch::RecordBatch;
use highwater_wire::records::RecordBatchBuilder;
use highwater_wire::{ErrorCode, Offset, ProducerEpoch, ProducerId};

use super::super::book::Content;
use super::super::core::{ClientTimer, Core, Event};
use super::super::deeds::Deed;
use super::super::invariants::{consistent_read, must};
use super::super::message::{Call, Message};
use super::super::network::Link;
use super::super::swarm::ProducerDraw;
use super::Target;

/// µs before a failed round is sent again.
const RESEND_AFTER: u64 = 100_000;
/// µs after which a batch is given up (delivery.timeout.ms).
const DELIVERY_TIMEOUT: u64 = 30_000_000;
/// Batches from the oldest unanswered one on, answered or not: leaders know no more of an idempotent producer (R57).
const WINDOW: u64 = 5;

#[derive(Debug)]
struct Pending {
    batch: Bytes,
    number: u64,
    serials: Vec<u64>,
    call: Option<Call>,
    sent: u32,
    born: u64,
}

#[derive(Debug)]
pub(super) struct Producer {
    pub id: u32,
    draw: ProducerDraw,
    target: Target,
    producer_id: Option<i64>,
    sequence: i32,
    serial: u64,
    /// Batches so far.
    made: u64,
    queue: VecDeque<Pending>,
    /// The oldest record of this producer id that was acknowledged: from it on the partition must know the sequence.
    known_from: Option<u64>,
    resending: bool,
}

impl Producer {
    pub fn new(id: u32, draw: ProducerDraw, target: Target) -> Self {
        let serial = u64::from(id) << 40;
        Self {
            id,
            draw,
            target,
            producer_id: None,
            sequence: 0,
            serial,
            made: 0,
            queue: VecDeque::new(),
            known_from: None,
            resending: false,
        }
    }

    pub fn under_way(&self) -> usize {
        self.queue.len()
    }

    pub fn on_timer(&mut self, core: &mut Core, timer: ClientTimer, quiet: bool) {
        match timer {
            ClientTimer::Next => {
                if !quiet {
                    self.produce(core, None);
                }
                let gap = core.rng.around(self.draw.gap_ms * 1_000);
                core.after(gap, Event::Client { client: self.id, timer: ClientTimer::Next });
            }
            ClientTimer::CallDue(call) => {
                if self.queue.iter().any(|p| p.call == Some(call)) {
                    self.start_over(core);
                }
            }
            ClientTimer::Resend => self.resend(core),
        }
    }

    /// One more batch, of as many records as are drawn or asked for. `false`: it does not know where to send it.
    pub fn produce(&mut self, core: &mut Core, records: Option<u64>) -> bool {
        if self.resending || self.queue.len() >= self.draw.in_flight {
            return true;
        }
        if self.draw.idempotent && self.queue.front().is_some_and(|oldest| self.made - oldest.number >= WINDOW) {
            return true;
        }
        if (self.target.leader.is_none() || core.rng.chance(50)) && self.target.refresh(core) {
            self.forget(core);
        }
        if self.target.at.is_none() || self.target.leader.is_none() {
            return false;
        }
        if self.draw.idempotent && self.producer_id.is_none() {
            // Asked of the quorum through some broker; the block is not given back.
            core.wants_producer_id.push(self.id);
            return false;
        }
        let count = records.unwrap_or_else(|| core.rng.within(1, self.draw.records_max));
        core.ledger.note(core.now, &Deed::Produce { client: self.id, records: count });
        let mut serials = Vec::new();
        let mut builder = RecordBatchBuilder::new();
        if let Some(id) = self.producer_id {
            builder = builder.producer(ProducerId(id), ProducerEpoch(0), self.sequence);
            self.sequence += count as i32;
        }
        let mut value = vec![0x5A; self.draw.value_bytes.max(8) as usize];
        for _ in 0..count {
            self.serial += 1;
            value[..8].copy_from_slice(&self.serial.to_le_bytes());
            builder = builder.value(core.wall(), &value);
            serials.push(self.serial);
        }
        let batch: RecordBatch = builder.build();
        let content = Content { serials: serials.clone(), producer: self.producer_id.unwrap_or(-1) };
        core.book.contents.insert(batch.header().crc, content);
        let number = self.made;
        self.made += 1;
        let pending = Pending { batch: batch.into_bytes(), number, serials, call: None, sent: 0, born: core.now };
        self.queue.push_back(pending);
        let newest = self.queue.len() - 1;
        self.send(core, newest);
        if self.draw.acks == 0 {
            self.queue.pop_back();
        }
        true
    }

    /// Took part in an answer of the quorum.
    pub fn got_producer_id(&mut self, id: i64) {
        self.producer_id = Some(id);
        self.sequence = 0;
        self.known_from = None;
    }

    fn send(&mut self, core: &mut Core, index: usize) {
        let (Some(at), Some(link)) = (self.target.at, self.target.link(self.id)) else { return };
        let call = core.call();
        let pending = &mut self.queue[index];
        pending.call = Some(call);
        pending.sent += 1;
        let (acks, timeout_ms) = (self.draw.acks, self.draw.timeout_ms);
        core.request(link, Message::Produce { call, at, batch: pending.batch.clone(), acks, timeout_ms });
        if acks != 0 {
            let patience = (timeout_ms + 1_500) * 1_000;
            core.after(patience, Event::Client { client: self.id, timer: ClientTimer::CallDue(call) });
        }
    }

    pub fn on_answer(&mut self, core: &mut Core, call: Call, result: Result<Offset, ErrorCode>) {
        let Some(index) = self.queue.iter().position(|p| p.call == Some(call)) else { return };
        match result {
            Ok(base) => {
                let pending = self.queue.remove(index).expect("found above");
                core.counts.acked += 1;
                self.known_from = self.known_from.into_iter().chain(pending.serials.first().copied()).min();
                let Some(at) = self.target.at else { return };
                if self.draw.acks == -1
                    && let Some(partition) = core.book.partitions.get(&at)
                {
                    let verdict = consistent_read::acknowledged(at, partition, base.0, &pending.serials);
                    core.check(verdict);
                }
            }
            Err(error) => self.on_error(core, index, error),
        }
    }

    fn on_error(&mut self, core: &mut Core, index: usize, error: ErrorCode) {
        let at = self.target.at;
        let lost_sequence = matches!(
            error,
            ErrorCode::OutOfOrderSequenceNumber | ErrorCode::InvalidProducerEpoch | ErrorCode::UnknownProducerId
        );
        // Everything before the first unanswered batch was acknowledged: the broker must know its sequence. Of an id that
        // it never saw it takes any (R61), so that of the first few batches a later one may come to be the first: the
        // older ones, sent to another leader meanwhile, come too late, unless they are in the log too (R58).
        let serials = &self.queue[index].serials;
        let leader = at.and_then(|at| {
            let partition = core.book.partitions.get(&at)?;
            Some(self.target.leader.and_then(|leader| partition.replicas.get(&leader)))
        });
        let reopened =
            leader.is_some_and(|leader| leader.is_none_or(|replica| replica.opened_at > self.queue[index].born));
        let follows = self.known_from.is_some_and(|from| serials.first().is_some_and(|&first| from < first));
        let stored = || {
            let mut batches = leader.flatten().into_iter().flat_map(|replica| &replica.mirror.batches);
            batches.any(|batch| core.book.contents.get(&batch.crc).is_some_and(|content| content.serials == *serials))
        };
        // What was acknowledged may have been taken back since: by a leader of an unclean election, or by one that has been
        // elected so and, not knowing it yet, answers as the leader that it was before (17389).
        let taken_back = at.and_then(|at| core.book.partitions.get(&at)).is_some_and(|partition| {
            let unproved = self.target.leader.is_some_and(|leader| partition.lines.unproved.contains(&leader));
            partition.lines.since > 0 || unproved
        });
        let promised = self.known_from.is_some() && !reopened && !taken_back && (follows || stored());
        let verdict = must(!lost_sequence || index > 0 || !promised, "S16", || {
            format!("{at:?}: {error:?} for the oldest batch of producer {:?} in order", self.producer_id)
        });
        core.check(verdict);
        if lost_sequence && index == 0 {
            return self.forget(core);
        }
        if self.draw.retries {
            self.start_over(core);
            return;
        }
        let pending = self.queue.remove(index).expect("found by the caller");
        let definite =
            matches!(error, ErrorCode::NotEnoughReplicas | ErrorCode::CorruptMessage | ErrorCode::InvalidRecord);
        if definite && pending.sent == 1 {
            core.book.refused.extend(pending.serials);
        }
        if self.target.refresh(core) {
            self.forget(core);
        }
    }

    pub fn on_broken(&mut self, core: &mut Core, link: Link) {
        if self.target.link(self.id) == Some(link) && self.queue.iter().any(|p| p.call.is_some()) {
            self.start_over(core);
        }
    }

    /// Nothing of what is under way will be answered: a new connection, and again from the first unanswered batch on.
    fn start_over(&mut self, core: &mut Core) {
        if let Some(link) = self.target.link(self.id) {
            core.net.reset(link);
        }
        if !self.draw.retries {
            // Unknown for ever (H4).
            self.queue.clear();
            if self.target.refresh(core) {
                self.forget(core);
            }
            return;
        }
        for pending in &mut self.queue {
            pending.call = None;
        }
        if !self.resending {
            self.resending = true;
            core.after(RESEND_AFTER, Event::Client { client: self.id, timer: ClientTimer::Resend });
        }
    }

    fn resend(&mut self, core: &mut Core) {
        self.resending = false;
        if self.target.refresh(core) {
            return self.forget(core);
        }
        if self.queue.front().is_some_and(|p| core.now - p.born > DELIVERY_TIMEOUT) {
            return self.forget(core);
        }
        if self.target.leader.is_none() {
            self.resending = true;
            core.after(RESEND_AFTER, Event::Client { client: self.id, timer: ClientTimer::Resend });
            return;
        }
        for index in 0..self.queue.len() {
            self.send(core, index);
        }
    }

    /// What is under way stays unknown; an idempotent producer starts anew under another id.
    fn forget(&mut self, _core: &mut Core) {
        self.queue.clear();
        self.producer_id = None;
    }
}
