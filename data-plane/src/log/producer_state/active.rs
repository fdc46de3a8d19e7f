//! What each producer wrote last, as plain values: for snapshots, for whoever asks (KIP-664), and for a replica that begins
//! where the batches that would tell it are deleted.

use std::collections::VecDeque;

use highwater_wire::{Offset, ProducerEpoch, ProducerId, Timestamp};

use super::{Producer, ProducerState, WINDOW, Written};

/// The newest batch of one producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveProducer {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    /// −1: none since its epoch was raised.
    pub last_sequence: i32,
    /// Inclusive; `None` with a sequence of −1.
    pub last_offset: Option<Offset>,
    /// From its first record to its last.
    pub offset_delta: i32,
    pub last_timestamp: Timestamp,
    /// −1: none.
    pub coordinator_epoch: i32,
    pub transaction_start: Option<Offset>,
}

impl ActiveProducer {
    /// Whether all that is known of it lies below `offset`.
    pub fn is_below(&self, offset: Offset) -> bool {
        self.last_offset.is_none_or(|last| last < offset)
    }
}

impl ProducerState {
    /// What each producer wrote last, by its id.
    pub fn active(&self) -> impl ExactSizeIterator<Item = ActiveProducer> + '_ {
        self.producers.iter().map(|(&id, producer)| {
            let newest = producer.written.back();
            ActiveProducer {
                id,
                epoch: ProducerEpoch(producer.epoch),
                last_sequence: newest.map_or(-1, |newest| newest.last_sequence),
                last_offset: newest.map(|newest| Offset(newest.last_offset)),
                offset_delta: newest.map_or(0, |newest| newest.offset_delta),
                last_timestamp: Timestamp(newest.map_or(producer.last_timestamp, |newest| newest.timestamp)),
                coordinator_epoch: producer.coordinator_epoch,
                transaction_start: producer.transaction_start.map(Offset),
            }
        })
    }
}

impl FromIterator<ActiveProducer> for ProducerState {
    fn from_iter<T: IntoIterator<Item = ActiveProducer>>(active: T) -> Self {
        let producer = |one: ActiveProducer| {
            let mut written = VecDeque::with_capacity(WINDOW);
            if let Some(last_offset) = one.last_offset {
                written.push_back(Written {
                    last_sequence: one.last_sequence,
                    last_offset: last_offset.0,
                    offset_delta: one.offset_delta,
                    timestamp: one.last_timestamp.0,
                });
            }
            let producer = Producer {
                epoch: one.epoch.0,
                written,
                last_timestamp: one.last_timestamp.0,
                coordinator_epoch: one.coordinator_epoch,
                transaction_start: one.transaction_start.map(|start| start.0),
            };
            (one.id, producer)
        };
        Self { producers: active.into_iter().map(producer).collect() }
    }
}
