//! One record batch of magic 2 (R30): its header, its checks, and the two fields a leader stamps.
//!
//! A batch is a view over shared bytes: nothing here copies records. Base offset and leader epoch lie outside the CRC,
//! so that the leader writes them without touching, or even holding alone, the bytes that came from the socket.

mod error;
mod validate;

use bytes::Bytes;

pub use crate::compression::Codec;
use crate::epoch::{LeaderEpoch, ProducerEpoch};
use crate::ids::ProducerId;
use crate::offset::Offset;
use crate::time::Timestamp;

pub use error::BatchError;
pub use validate::{ClientRules, DECOMPRESSED_BYTES_MAX, InnerCheck, REPORTED_RECORDS_MAX, TimestampRule};

/// The header of a batch; records begin behind it.
pub const HEADER_BYTES: usize = 61;
/// Base offset and length: what is not counted by the length field.
pub const LOG_OVERHEAD_BYTES: usize = 12;
/// Base offset, length, leader epoch: what [`RecordBatch::stamped_head`] replaces.
pub const STAMP_BYTES: usize = 16;
/// The only magic that is stored (R41).
pub const MAGIC: i8 = 2;

pub(crate) const LENGTH_AT: usize = 8;
pub(crate) const EPOCH_AT: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
/// The CRC covers everything from here to the end (R31).
pub(crate) const ATTRIBUTES_AT: usize = 21;
pub(crate) const MAX_TIMESTAMP_AT: usize = 35;

const TIMESTAMP_TYPE_BIT: i16 = 1 << 3;
const TRANSACTIONAL_BIT: i16 = 1 << 4;
const CONTROL_BIT: i16 = 1 << 5;
pub(crate) const DELETE_HORIZON_BIT: i16 = 1 << 6;

/// The 61 bytes before the records, as numbers. Nothing is checked but the magic and the length field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    pub base_offset: i64,
    /// Bytes behind this field: the whole batch less 12. At least 49.
    pub length: i32,
    pub leader_epoch: i32,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

impl BatchHeader {
    /// Reads the header at the beginning of `bytes`, which may end before or behind the batch.
    ///
    /// `Incomplete` when fewer than 61 bytes are there, `Magic` and `LengthField` when it is no batch of ours.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        if let Some(&magic) = bytes.get(MAGIC_AT)
            && magic as i8 != MAGIC
        {
            return Err(BatchError::Magic(magic as i8));
        }
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(BatchError::Incomplete { bytes: bytes.len(), needed: HEADER_BYTES });
        };
        let header = Self {
            base_offset: i64_at(head, 0),
            length: i32_at(head, LENGTH_AT),
            leader_epoch: i32_at(head, EPOCH_AT),
            crc: i32_at(head, CRC_AT) as u32,
            attributes: i16_at(head, ATTRIBUTES_AT),
            last_offset_delta: i32_at(head, 23),
            base_timestamp: i64_at(head, 27),
            max_timestamp: i64_at(head, MAX_TIMESTAMP_AT),
            producer_id: i64_at(head, 43),
            producer_epoch: i16_at(head, 51),
            base_sequence: i32_at(head, 53),
            record_count: i32_at(head, 57),
        };
        if header.length < (HEADER_BYTES - LOG_OVERHEAD_BYTES) as i32 {
            return Err(BatchError::LengthField(header.length));
        }
        Ok(header)
    }

    /// Bytes of the whole batch, this header included: at least 61.
    pub const fn total_bytes(&self) -> usize {
        self.length as usize + LOG_OVERHEAD_BYTES
    }

    /// Whether its largest timestamp is that of a record: compaction leaves batches without records.
    #[inline]
    pub const fn has_times(&self) -> bool {
        self.max_timestamp >= 0 && self.record_count > 0
    }

    /// The offset behind the last one this batch covers. Saturates; [`RecordBatch::check_counts`] refuses such batches.
    pub const fn next_offset(&self) -> Offset {
        Offset(self.base_offset.saturating_add(self.last_offset_delta as i64).saturating_add(1))
    }
}

fn i16_at(head: &[u8; HEADER_BYTES], at: usize) -> i16 {
    i16::from_be_bytes([head[at], head[at + 1]])
}

fn i32_at(head: &[u8; HEADER_BYTES], at: usize) -> i32 {
    i32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn i64_at(head: &[u8; HEADER_BYTES], at: usize) -> i64 {
    (i64::from(i32_at(head, at)) << 32) | i64::from(i32_at(head, at + 4) as u32)
}

/// Exactly one whole batch of magic 2 over shared bytes. Cloning shares.
///
/// Length and magic are checked when it is made; the CRC and all counts are not: a producer's batch goes through
/// [`RecordBatch::validate_from_client`], a leader's through [`RecordBatch::validate_from_leader`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl RecordBatch {
    /// The bytes must be one batch, whole, and nothing else.
    pub fn parse(bytes: Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        let total = header.total_bytes();
        if bytes.len() < total {
            return Err(BatchError::Incomplete { bytes: bytes.len(), needed: total });
        }
        if bytes.len() > total {
            return Err(BatchError::TrailingBytes { extra: bytes.len() - total });
        }
        Ok(Self { header, bytes })
    }

    /// The record data of one partition of a Produce request (R33): one batch, zstd only from version 7.
    ///
    /// Cheap, and before any look at the partition; what costs time is left to [`RecordBatch::validate_from_client`].
    pub fn from_produce(records: Option<Bytes>, produce_version: i16) -> Result<Self, BatchError> {
        let bytes = records.filter(|records| !records.is_empty()).ok_or(BatchError::NoRecords)?;
        let batch = Self::parse(bytes)?;
        match batch.codec()? {
            Codec::Zstd if produce_version < 7 => Err(BatchError::ZstdTooOld { produce_version }),
            Codec::None | Codec::Gzip | Codec::Snappy | Codec::Lz4 | Codec::Zstd => Ok(batch),
        }
    }

    pub const fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The batch as it came (base offset and epoch not stamped).
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Length of the whole batch in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A batch is never empty: it has its header.
    pub const fn is_empty(&self) -> bool {
        false
    }

    pub const fn base_offset(&self) -> Offset {
        Offset(self.header.base_offset)
    }

    /// Inclusive.
    pub const fn last_offset(&self) -> Offset {
        Offset(self.header.base_offset.saturating_add(self.header.last_offset_delta as i64))
    }

    /// Exclusive: where the next batch begins, unless compaction left a gap.
    pub const fn next_offset(&self) -> Offset {
        self.header.next_offset()
    }

    /// How many offsets the batch takes, even where compaction removed records.
    pub const fn offset_count(&self) -> i64 {
        self.header.last_offset_delta as i64 + 1
    }

    pub const fn record_count(&self) -> i32 {
        self.header.record_count
    }

    pub const fn last_offset_delta(&self) -> i32 {
        self.header.last_offset_delta
    }

    /// `None` when no leader stamped it.
    pub fn leader_epoch(&self) -> Option<LeaderEpoch> {
        LeaderEpoch::from_wire(self.header.leader_epoch)
    }

    /// `UnknownCodec` for the bits 5–7.
    pub fn codec(&self) -> Result<Codec, BatchError> {
        let attributes = self.header.attributes;
        Codec::from_attributes(attributes).ok_or(BatchError::UnknownCodec(attributes & 0b111))
    }

    pub const fn base_timestamp(&self) -> Timestamp {
        Timestamp(self.header.base_timestamp)
    }

    pub const fn max_timestamp(&self) -> Timestamp {
        Timestamp(self.header.max_timestamp)
    }

    /// Every record then has the time of [`RecordBatch::max_timestamp`].
    pub const fn is_log_append_time(&self) -> bool {
        self.header.attributes & TIMESTAMP_TYPE_BIT != 0
    }

    pub const fn is_transactional(&self) -> bool {
        self.header.attributes & TRANSACTIONAL_BIT != 0
    }

    pub const fn is_control(&self) -> bool {
        self.header.attributes & CONTROL_BIT != 0
    }

    pub const fn has_delete_horizon(&self) -> bool {
        self.header.attributes & DELETE_HORIZON_BIT != 0
    }

    /// `None`: the producer is not idempotent.
    pub fn producer_id(&self) -> Option<ProducerId> {
        (self.header.producer_id >= 0).then_some(ProducerId(self.header.producer_id))
    }

    /// `None` when negative.
    pub fn producer_epoch(&self) -> Option<ProducerEpoch> {
        ProducerEpoch::from_wire(self.header.producer_epoch)
    }

    /// −1 when the producer is not idempotent.
    pub const fn base_sequence(&self) -> i32 {
        self.header.base_sequence
    }

    /// The sequence of the last record; wraps from `i32::MAX` to 0 (R60). −1 when the producer is not idempotent.
    pub const fn last_sequence(&self) -> i32 {
        if self.header.base_sequence < 0 {
            return -1;
        }
        ((self.header.base_sequence as i64 + self.header.last_offset_delta as i64) & i32::MAX as i64) as i32
    }

    /// The records, compressed or not, as they lie behind the header.
    pub fn payload(&self) -> Bytes {
        self.bytes.slice(HEADER_BYTES..)
    }

    /// Compares the CRC of the header with that of the bytes (R31).
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let computed = crc_of(&self.bytes);
        if computed == self.header.crc { Ok(()) } else { Err(BatchError::Crc { stated: self.header.crc, computed }) }
    }

    /// Offsets within range and no more records than offsets: what every stored batch keeps, compacted ones too.
    pub fn check_counts(&self) -> Result<(), BatchError> {
        let BatchHeader { base_offset: base, last_offset_delta: delta, record_count: count, .. } = self.header;
        if base < 0 || delta < 0 || base.checked_add(i64::from(delta) + 1).is_none() {
            return Err(BatchError::OffsetRange { base, delta });
        }
        if count < 0 || i64::from(count) > i64::from(delta) + 1 {
            return Err(BatchError::Count { count, last_offset_delta: delta });
        }
        Ok(())
    }

    /// What a follower and recovery ask of a batch (R153, D27): CRC and counts, and an epoch. Records are not read.
    pub fn validate_from_leader(&self) -> Result<(), BatchError> {
        self.check_crc()?;
        self.check_counts()
    }

    /// The first 16 bytes as a leader writes them (R40): append these, then `bytes()[16..]`.
    pub fn stamped_head(&self, base: Offset, epoch: LeaderEpoch) -> [u8; STAMP_BYTES] {
        let mut head = [0; STAMP_BYTES];
        head[..LENGTH_AT].copy_from_slice(&base.0.to_be_bytes());
        head[LENGTH_AT..EPOCH_AT].copy_from_slice(&self.header.length.to_be_bytes());
        head[EPOCH_AT..].copy_from_slice(&epoch.0.to_be_bytes());
        head
    }

    /// A stamped copy; for tests and for in-memory logs. The append path uses [`RecordBatch::stamped_head`].
    #[must_use]
    pub fn stamped(&self, base: Offset, epoch: LeaderEpoch) -> Self {
        let mut bytes = self.bytes.to_vec();
        bytes[..STAMP_BYTES].copy_from_slice(&self.stamped_head(base, epoch));
        let header = BatchHeader { base_offset: base.0, leader_epoch: epoch.0, ..self.header };
        Self { header, bytes: bytes.into() }
    }

    /// A copy in which every record has the time `now` (R38): bit and maximum are set, the CRC is computed anew.
    #[must_use]
    pub fn with_log_append_time(&self, now: Timestamp) -> Self {
        self.rewritten(self.header.attributes | TIMESTAMP_TYPE_BIT, now)
    }

    /// A copy with other attributes and another maximum, and a CRC that fits.
    pub(crate) fn rewritten(&self, attributes: i16, max_timestamp: Timestamp) -> Self {
        let mut bytes = self.bytes.to_vec();
        bytes[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
        bytes[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&max_timestamp.0.to_be_bytes());
        let crc = write_crc(&mut bytes);
        let header = BatchHeader { attributes, max_timestamp: max_timestamp.0, crc, ..self.header };
        Self { header, bytes: bytes.into() }
    }

    pub(crate) const fn create_time_attributes(&self) -> i16 {
        self.header.attributes & !TIMESTAMP_TYPE_BIT
    }
}

/// CRC-32C of a batch of at least 61 bytes.
fn crc_of(batch: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&batch[ATTRIBUTES_AT..])
}

/// Computes the CRC of a whole batch, writes it into the header and returns it.
pub(crate) fn write_crc(batch: &mut [u8]) -> u32 {
    let crc = crc_of(batch);
    batch[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&crc.to_be_bytes());
    crc
}

/// Stamps base offset and leader epoch into a batch in place (R40). The CRC stays right: it covers neither.
///
/// # Panics
/// When `batch` is shorter than 16 bytes.
pub fn stamp(batch: &mut [u8], base: Offset, epoch: LeaderEpoch) {
    batch[..LENGTH_AT].copy_from_slice(&base.0.to_be_bytes());
    batch[EPOCH_AT..STAMP_BYTES].copy_from_slice(&epoch.0.to_be_bytes());
}

/// The batches that lie one behind the other in some bytes: a Fetch answer, a piece of a segment.
///
/// Ends cleanly before a last batch that is not whole (a Fetch answer may be cut anywhere; a segment may end torn):
/// [`BatchIter::rest`] then holds what is left. After an error there is nothing more.
#[derive(Debug, Clone)]
pub struct BatchIter {
    rest: Bytes,
    ended: bool,
}

impl BatchIter {
    pub const fn new(bytes: Bytes) -> Self {
        Self { rest: bytes, ended: false }
    }

    /// What was not handed out: empty when the bytes ended with a whole batch.
    pub const fn rest(&self) -> &Bytes {
        &self.rest
    }
}

impl Iterator for BatchIter {
    type Item = Result<RecordBatch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended || self.rest.is_empty() {
            return None;
        }
        match BatchHeader::parse(&self.rest) {
            Ok(header) if header.total_bytes() <= self.rest.len() => {
                let bytes = self.rest.split_to(header.total_bytes());
                Some(Ok(RecordBatch { header, bytes }))
            }
            Ok(_) | Err(BatchError::Incomplete { .. }) => {
                self.ended = true;
                None
            }
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
        }
    }
}
