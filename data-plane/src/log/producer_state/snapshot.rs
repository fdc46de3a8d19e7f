//! The producers of a log as a file, in Kafka's format: version 1, CRC-32C, then one entry per producer.
//!
//! Bytes, big-endian: version i16, CRC u32 over all that follows, count i32; per entry producer id i64, epoch i16, last
//! sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32, first offset of an open
//! transaction i64 (−1: none). Only the newest batch of each producer is in it; the rest comes from the log (R57).

use highwater_wire::{Offset, ProducerEpoch, ProducerId, Timestamp};

use super::{ActiveProducer, ProducerState};

const VERSION: i16 = 1;
const HEAD_BYTES: usize = 10;
const ENTRY_BYTES: usize = 46;

/// Why a snapshot cannot be used; an older one, or none, is used then (R26).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("version {0} of the producer snapshot is not known")]
    Version(i16),
    #[error("the producer snapshot is damaged")]
    Damaged,
}

impl ProducerState {
    /// The bytes of a `.snapshot` file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + ENTRY_BYTES * self.producers.len());
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let count = i32::try_from(self.producers.len()).expect("fewer than 2^31 producers fit in memory");
        bytes.extend_from_slice(&count.to_be_bytes());
        for producer in self.active() {
            bytes.extend_from_slice(&producer.id.0.to_be_bytes());
            bytes.extend_from_slice(&producer.epoch.0.to_be_bytes());
            bytes.extend_from_slice(&producer.last_sequence.to_be_bytes());
            bytes.extend_from_slice(&Offset::to_wire(producer.last_offset).to_be_bytes());
            bytes.extend_from_slice(&producer.offset_delta.to_be_bytes());
            bytes.extend_from_slice(&producer.last_timestamp.0.to_be_bytes());
            bytes.extend_from_slice(&producer.coordinator_epoch.to_be_bytes());
            bytes.extend_from_slice(&Offset::to_wire(producer.transaction_start).to_be_bytes());
        }
        let crc = crc_fast::crc32_iscsi(&bytes[6..]);
        bytes[2..6].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// From the bytes of a `.snapshot` file.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut fields = Fields(bytes);
        let version = i16::from_be_bytes(fields.take()?);
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let crc = u32::from_be_bytes(fields.take()?);
        if crc_fast::crc32_iscsi(fields.0) != crc {
            return Err(SnapshotError::Damaged);
        }
        let count = i32::from_be_bytes(fields.take()?);
        if usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY_BYTES)) != Some(fields.0.len()) {
            return Err(SnapshotError::Damaged);
        }
        let mut producer = || {
            Ok(ActiveProducer {
                id: ProducerId(i64::from_be_bytes(fields.take()?)),
                epoch: ProducerEpoch(i16::from_be_bytes(fields.take()?)),
                last_sequence: i32::from_be_bytes(fields.take()?),
                last_offset: Offset::from_wire(i64::from_be_bytes(fields.take()?)),
                offset_delta: i32::from_be_bytes(fields.take()?),
                last_timestamp: Timestamp(i64::from_be_bytes(fields.take()?)),
                coordinator_epoch: i32::from_be_bytes(fields.take()?),
                transaction_start: Offset::from_wire(i64::from_be_bytes(fields.take()?)),
            })
        };
        (0..count).map(|_| producer()).collect()
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(SnapshotError::Damaged)?;
        self.0 = rest;
        Ok(*field)
    }
}
