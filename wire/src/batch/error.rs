//! What can be wrong with a record batch, and what Kafka calls it.

use crate::ErrorCode;
use crate::time::Timestamp;

/// Why some bytes are no record batch, or none that a client may send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("no records: exactly one record batch is needed")]
    NoRecords,
    #[error("{bytes} bytes are an incomplete record batch: {needed} are needed; send whole batches")]
    Incomplete { bytes: usize, needed: usize },
    #[error("{extra} bytes follow the record batch: send exactly one batch per partition")]
    TrailingBytes { extra: usize },
    #[error("magic {0}: only record batches of magic 2 are stored; use a client of Kafka 0.11 or later")]
    Magic(i8),
    #[error("batch length field {0} is below the 49 bytes of the header")]
    LengthField(i32),
    #[error("CRC-32C is {computed:#010x}, the header says {stated:#010x}: the bytes changed on their way")]
    Crc { stated: u32, computed: u32 },
    #[error("base offset {0}: a producer must send 0")]
    BaseOffset(i64),
    #[error("offsets {base} + {delta} are not within 0..=2^63-1")]
    OffsetRange { base: i64, delta: i32 },
    #[error("batch of {bytes} bytes exceeds max.message.bytes {max}")]
    TooLarge { bytes: usize, max: usize },
    #[error("{count} records but last offset delta {last_offset_delta}: it must be one less than the count")]
    Count { count: i32, last_offset_delta: i32 },
    #[error("control batches come from brokers only")]
    Control,
    #[error("producer id {id} with epoch {epoch} and base sequence {sequence}: both must be 0 or greater")]
    Producer { id: i64, epoch: i16, sequence: i32 },
    #[error("compression bits {0}: no codec has them")]
    UnknownCodec(i16),
    #[error("zstd needs Produce version 7 or later, this is version {produce_version}")]
    ZstdTooOld { produce_version: i16 },
    #[error("the {codec} data cannot be decompressed: {fault}")]
    Decompression { codec: &'static str, fault: String },
    #[error("the records decompress to more than {max} bytes: send smaller batches")]
    TooLargeDecompressed { max: u64 },
    #[error("record {index} of {count} is malformed: {fault}")]
    MalformedRecord { index: i32, count: i32, fault: &'static str },
    #[error("the header counts {count} records, the data holds {found}")]
    RecordsMissing { count: i32, found: i32 },
    #[error("bytes follow the last of {count} records")]
    RecordsLeftOver { count: i32 },
    #[error("record {index} has offset delta {delta}: deltas must count up from 0")]
    OffsetDelta { index: i32, delta: i32 },
    #[error("records {indexes:?} have no key: a compacted topic needs one in every record")]
    MissingKey {
        /// Positions in the batch, at most [`crate::batch::REPORTED_RECORDS_MAX`] of them.
        indexes: Vec<i32>,
    },
    #[error("records {indexes:?} lie outside {earliest} – {latest} (message.timestamp.before/after.max.ms)")]
    TimestampOutOfRange {
        /// Positions in the batch, at most [`crate::batch::REPORTED_RECORDS_MAX`] of them.
        indexes: Vec<i32>,
        earliest: Timestamp,
        latest: Timestamp,
    },
    #[error("a producer must not mark its batch LogAppendTime")]
    LogAppendTimeFromClient,
}

impl BatchError {
    /// The records that are at fault, for `RecordErrors` (Produce v8 and later); empty when it is the batch.
    pub fn record_indexes(&self) -> &[i32] {
        match self {
            Self::MissingKey { indexes } | Self::TimestampOutOfRange { indexes, .. } => indexes,
            Self::MalformedRecord { index, .. } | Self::OffsetDelta { index, .. } => std::slice::from_ref(index),
            _ => &[],
        }
    }
}

impl From<&BatchError> for ErrorCode {
    /// R33–R37, R41, D32. No wildcard arm: a new fault does not compile until it has a code.
    fn from(error: &BatchError) -> Self {
        match error {
            BatchError::LengthField(_)
            | BatchError::Crc { .. }
            | BatchError::Decompression { .. }
            | BatchError::MalformedRecord { .. } => Self::CorruptMessage,
            BatchError::TooLarge { .. } | BatchError::TooLargeDecompressed { .. } => Self::MessageTooLarge,
            BatchError::UnknownCodec(_) | BatchError::ZstdTooOld { .. } => Self::UnsupportedCompressionType,
            BatchError::TimestampOutOfRange { .. } | BatchError::LogAppendTimeFromClient => Self::InvalidTimestamp,
            BatchError::NoRecords
            | BatchError::Incomplete { .. }
            | BatchError::TrailingBytes { .. }
            | BatchError::Magic(_)
            | BatchError::BaseOffset(_)
            | BatchError::OffsetRange { .. }
            | BatchError::Count { .. }
            | BatchError::Control
            | BatchError::Producer { .. }
            | BatchError::RecordsMissing { .. }
            | BatchError::RecordsLeftOver { .. }
            | BatchError::OffsetDelta { .. }
            | BatchError::MissingKey { .. } => Self::InvalidRecord,
        }
    }
}
