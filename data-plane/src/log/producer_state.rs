//! What idempotent producers wrote last: duplicates are known, gaps refused (KIP-98, R57–R66). Pure.
//!
//! Only a client's batch is ever judged ([`ProducerState::check`]); whatever is in the log already is noted as it is
//! ([`ProducerState::note`]), by leaders, followers and recovery alike, so that all replicas know the same (R63).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::batch::BatchHeader;
use highwater_wire::{Offset, ProducerEpoch, ProducerId, Timestamp};

mod active;
mod snapshot;

pub use active::ActiveProducer;
pub use snapshot::SnapshotError;

/// Batches remembered per producer: a client has at most five in flight.
const WINDOW: usize = 5;

const TRANSACTIONAL_BIT: i16 = 1 << 4;
const CONTROL_BIT: i16 = 1 << 5;

/// What an idempotent producer's batch is to the log (R58–R61).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProducerCheck {
    /// It continues what was written, or has no producer: append it.
    Fresh,
    /// It is one of the last five, appended before: answer with where it went (R58).
    Duplicate {
        base: Offset,
        /// Inclusive.
        last: Offset,
        /// The batch's largest timestamp then: the append time, where the topic stamps it.
        timestamp: Timestamp,
    },
}

/// Why an idempotent producer's batch may not be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProducerRefusal {
    /// `INVALID_PRODUCER_EPOCH` 47 (R59).
    #[error("producer epoch {given} is behind {current}")]
    StaleEpoch { given: ProducerEpoch, current: ProducerEpoch },
    /// `OUT_OF_ORDER_SEQUENCE_NUMBER` 45 (R59, R60).
    #[error("sequence {given} does not follow: expected {expected}")]
    OutOfOrder { given: i32, expected: i32 },
}

/// One batch of a producer, as it lies in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    last_sequence: i32,
    last_offset: i64,
    offset_delta: i32,
    timestamp: i64,
}

impl Written {
    fn first_sequence(&self) -> i32 {
        ((i64::from(self.last_sequence) - i64::from(self.offset_delta)) & i64::from(i32::MAX)) as i32
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    /// Oldest first, all of `epoch`. Empty after a marker raised the epoch.
    written: VecDeque<Written>,
    last_timestamp: i64,
    coordinator_epoch: i32,
    transaction_start: Option<i64>,
}

/// The producers of one log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProducerState {
    producers: BTreeMap<ProducerId, Producer>,
}

impl ProducerState {
    /// Judges a client's batch; changes nothing.
    pub fn check(&self, batch: &BatchHeader) -> Result<ProducerCheck, ProducerRefusal> {
        if batch.producer_id < 0 {
            return Ok(ProducerCheck::Fresh);
        }
        let Some(producer) = self.producers.get(&ProducerId(batch.producer_id)) else {
            return Ok(ProducerCheck::Fresh);
        };
        let first = batch.base_sequence;
        if batch.producer_epoch < producer.epoch {
            let (given, current) = (ProducerEpoch(batch.producer_epoch), ProducerEpoch(producer.epoch));
            return Err(ProducerRefusal::StaleEpoch { given, current });
        }
        if batch.producer_epoch == producer.epoch {
            let last = last_sequence(batch);
            let same = |written: &&Written| written.first_sequence() == first && written.last_sequence == last;
            if let Some(written) = producer.written.iter().find(same).filter(|_| !planted(Flaw::StoresDuplicates)) {
                return Ok(ProducerCheck::Duplicate {
                    base: Offset(written.last_offset - i64::from(written.offset_delta)),
                    last: Offset(written.last_offset),
                    timestamp: Timestamp(written.timestamp),
                });
            }
        }
        let newest = producer.written.back().filter(|_| batch.producer_epoch == producer.epoch);
        let expected = newest.map_or(0, |newest| next_sequence(newest.last_sequence));
        if first == expected || planted(Flaw::StoresDuplicates) || planted(Flaw::TakesAnySequence) {
            Ok(ProducerCheck::Fresh)
        } else {
            Err(ProducerRefusal::OutOfOrder { given: first, expected })
        }
    }

    /// Notes a batch that is in the log, whatever its sequence (R63). Offsets are those of the header.
    pub fn note(&mut self, batch: &BatchHeader) {
        if batch.producer_id < 0 {
            return;
        }
        let id = ProducerId(batch.producer_id);
        let producer = self.producers.entry(id).or_insert_with(|| Producer {
            epoch: batch.producer_epoch,
            written: VecDeque::with_capacity(WINDOW),
            last_timestamp: batch.max_timestamp,
            coordinator_epoch: -1,
            transaction_start: None,
        });
        if producer.epoch != batch.producer_epoch {
            producer.epoch = batch.producer_epoch;
            producer.written.clear();
        }
        producer.last_timestamp = batch.max_timestamp;
        if batch.attributes & CONTROL_BIT != 0 {
            producer.transaction_start = None;
            return;
        }
        if batch.attributes & TRANSACTIONAL_BIT != 0 {
            producer.transaction_start.get_or_insert(batch.base_offset);
        }
        let window = if planted(Flaw::RemembersOneBatch) { 1 } else { WINDOW };
        if producer.written.len() == window {
            producer.written.pop_front();
        }
        producer.written.push_back(Written {
            last_sequence: last_sequence(batch),
            last_offset: batch.base_offset.saturating_add(i64::from(batch.last_offset_delta)),
            offset_delta: batch.last_offset_delta,
            timestamp: batch.max_timestamp,
        });
    }

    /// Forgets what was written at `to` and above. `false` where that cannot be told from memory: then load a snapshot and
    /// replay the log (R65). What remains of a window is enough: batches that left it for ones now gone were acknowledged.
    pub fn rewind(&mut self, to: Offset) -> bool {
        let touched = |producer: &Producer| producer.written.back().is_some_and(|newest| newest.last_offset >= to.0);
        let forgettable = |producer: &Producer| {
            producer.transaction_start.is_none()
                && producer.written.front().is_some_and(|oldest| oldest.last_offset < to.0)
        };
        if self
            .producers
            .values()
            .any(|producer| producer.written.is_empty() || touched(producer) && !forgettable(producer))
        {
            return false;
        }
        for producer in self.producers.values_mut() {
            while producer.written.back().is_some_and(|newest| newest.last_offset >= to.0) {
                producer.written.pop_back();
            }
            if let Some(newest) = producer.written.back() {
                producer.last_timestamp = newest.timestamp;
            }
        }
        true
    }

    /// Forgets producers whose last batch is older than `expiration_ms` (R66). Says how many.
    pub fn expire(&mut self, now: Timestamp, expiration_ms: u64) -> usize {
        let before = self.producers.len();
        let oldest = now.0.saturating_sub(i64::try_from(expiration_ms).unwrap_or(i64::MAX));
        self.producers.retain(|_, producer| producer.transaction_start.is_some() || producer.last_timestamp > oldest);
        before - self.producers.len()
    }

    /// Where the newest batch of each producer ends: the last offset in it.
    pub fn newest_ends(&self) -> BTreeSet<Offset> {
        self.producers.values().filter_map(|producer| Some(Offset(producer.written.back()?.last_offset))).collect()
    }

    pub fn len(&self) -> usize {
        self.producers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    pub fn clear(&mut self) {
        self.producers.clear();
    }

    /// The newest sequence of each producer, for comparing two states (S16).
    pub fn newest_sequences(&self) -> impl Iterator<Item = (ProducerId, ProducerEpoch, Option<i32>)> + '_ {
        self.producers.iter().map(|(&id, producer)| {
            (id, ProducerEpoch(producer.epoch), producer.written.back().map(|written| written.last_sequence))
        })
    }
}

/// Wraps from `i32::MAX` to 0 (R60).
fn last_sequence(batch: &BatchHeader) -> i32 {
    ((i64::from(batch.base_sequence) + i64::from(batch.last_offset_delta)) & i64::from(i32::MAX)) as i32
}

fn next_sequence(last: i32) -> i32 {
    last.checked_add(1).unwrap_or(0)
}

#[cfg(test)]
mod tests;
