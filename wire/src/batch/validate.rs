//! What a leader asks of a batch that comes from a client (R33–R37), cheap checks first.
//!
//! **Why records are looked at, compressed ones too.** A batch is appended verbatim and handed to every consumer; one
//! whose inside is broken stops all of them at its offset for ever, and nobody can repair it from outside. So the
//! leader walks the records once. Plain ones by their varints alone, keys and values are skipped: 10–20 ns a record.
//! Compressed ones as a stream that is thrown away: nothing is recompressed, copied or kept. Measured, 64 KiB batches of
//! 1 KiB: lz4 0.4 CPU-s per GB of user data where half of it is zeros (the benchmark's payload), 1.0 where hardly
//! anything repeats; snappy 0.3–1.2, zstd 0.4–2. That is paid on one of three replicas: followers and consumers never
//! decompress here. Against 9.7 CPU-s per GB for the whole of Kafka it buys that no producer can block a partition.
//! [`InnerCheck::Envelope`] (0.05 CPU-s per GB, the CRC) is for whoever trusts all producers.

use super::{BatchError, Codec, RecordBatch};
use crate::compression::Decompressed;
use crate::records::walk::{self, RecordSeen};
use crate::time::Timestamp;

/// How many records at fault an error names.
pub const REPORTED_RECORDS_MAX: usize = 100;

/// How far a batch may decompress, in bytes. Nothing of this is held in memory: the bound is on time. A larger batch is
/// answered MESSAGE_TOO_LARGE 10, on which clients split it.
pub const DECOMPRESSED_BYTES_MAX: u64 = 256 << 20;

/// Whose time the records of a topic carry: `message.timestamp.type` (R37, R38).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampRule {
    /// The producer's, within bounds.
    CreateTime {
        /// The wall clock of the leader.
        now: Timestamp,
        /// `message.timestamp.before.max.ms`
        before_max_ms: u64,
        /// `message.timestamp.after.max.ms`
        after_max_ms: u64,
    },
    /// The leader's: whoever appends calls [`RecordBatch::with_log_append_time`].
    LogAppendTime,
}

impl TimestampRule {
    /// CreateTime without bounds.
    pub const ANY_CREATE_TIME: Self =
        Self::CreateTime { now: Timestamp(0), before_max_ms: u64::MAX, after_max_ms: u64::MAX };

    /// The earliest and the latest time a record may have.
    fn bounds(self) -> (i64, i64) {
        match self {
            Self::CreateTime { now, before_max_ms, after_max_ms } => {
                (now.0.saturating_sub_unsigned(before_max_ms), now.0.saturating_add_unsigned(after_max_ms))
            }
            Self::LogAppendTime => (i64::MIN, i64::MAX),
        }
    }
}

/// How deep to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InnerCheck {
    /// Every record, decompressing where needed; see the head of this file.
    #[default]
    Records,
    /// Header and CRC only. Keys and times of single records are then not checked either (the maximum is).
    Envelope,
}

/// What a topic asks of batches from clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientRules {
    /// `max.message.bytes`, for the whole batch.
    pub batch_bytes_max: usize,
    /// `cleanup.policy` contains `compact` (R36).
    pub keys_required: bool,
    pub timestamps: TimestampRule,
    pub inner: InnerCheck,
}

impl RecordBatch {
    /// Everything of R34–R37 (R33 is [`RecordBatch::from_produce`]). Gives the batch to append: the same bytes, or, when
    /// a CreateTime batch states a wrong maximal time or carries the LogAppendTime bit, a corrected copy (R37, R38).
    pub fn validate_from_client(&self, rules: &ClientRules) -> Result<Self, BatchError> {
        let header = self.header();
        if header.base_offset != 0 {
            return Err(BatchError::BaseOffset(header.base_offset));
        }
        if self.len() > rules.batch_bytes_max {
            return Err(BatchError::TooLarge { bytes: self.len(), max: rules.batch_bytes_max });
        }
        self.check_crc()?;
        let (count, last_offset_delta) = (header.record_count, header.last_offset_delta);
        if last_offset_delta < 0 || count < 1 || count - 1 != last_offset_delta {
            return Err(BatchError::Count { count, last_offset_delta });
        }
        if self.is_control() {
            return Err(BatchError::Control);
        }
        if header.producer_id >= 0 && (header.producer_epoch < 0 || header.base_sequence < 0) {
            let (id, epoch, sequence) = (header.producer_id, header.producer_epoch, header.base_sequence);
            return Err(BatchError::Producer { id, epoch, sequence });
        }
        let codec = self.codec()?;
        if self.is_log_append_time() && rules.timestamps == TimestampRule::LogAppendTime {
            return Err(BatchError::LogAppendTimeFromClient);
        }
        let max_timestamp = match rules.inner {
            InnerCheck::Records => self.check_records(codec, rules)?,
            InnerCheck::Envelope => {
                let mut suspects = Suspects::new(rules);
                suspects.see(last_offset_delta, header.max_timestamp, true);
                suspects.verdict()?;
                header.max_timestamp
            }
        };
        let is_right = max_timestamp == header.max_timestamp && !self.is_log_append_time();
        if is_right || rules.timestamps == TimestampRule::LogAppendTime {
            return Ok(self.clone());
        }
        Ok(self.rewritten(self.create_time_attributes(), Timestamp(max_timestamp)))
    }

    /// Walks all records; gives the latest time among them.
    fn check_records(&self, codec: Codec, rules: &ClientRules) -> Result<i64, BatchError> {
        let mut suspects = Suspects::new(rules);
        let header = self.header();
        let visit = |record: RecordSeen| suspects.see(record.index, record.timestamp, record.has_key);
        let payload = &self.bytes()[super::HEADER_BYTES..];
        match codec {
            Codec::None => walk::slice(payload, header.record_count, header.base_timestamp, visit)?,
            Codec::Gzip | Codec::Snappy | Codec::Lz4 | Codec::Zstd => {
                let fault =
                    |fault: std::io::Error| BatchError::Decompression { codec: codec.name(), fault: fault.to_string() };
                let stream = Decompressed::new(codec, payload).map_err(fault)?;
                walk::stream(stream, codec, header.record_count, header.base_timestamp, visit)?;
            }
        }
        suspects.verdict()?;
        Ok(suspects.max_timestamp)
    }
}

/// Collects the records that break a rule of the topic.
struct Suspects {
    earliest: i64,
    latest: i64,
    keys_required: bool,
    max_timestamp: i64,
    out_of_range: Vec<i32>,
    without_key: Vec<i32>,
}

impl Suspects {
    fn new(rules: &ClientRules) -> Self {
        let (earliest, latest) = rules.timestamps.bounds();
        Self {
            earliest,
            latest,
            keys_required: rules.keys_required,
            max_timestamp: Timestamp::NONE.0,
            out_of_range: Vec::new(),
            without_key: Vec::new(),
        }
    }

    #[inline]
    fn see(&mut self, index: i32, timestamp: i64, has_key: bool) {
        self.max_timestamp = self.max_timestamp.max(timestamp);
        let in_range = (self.earliest..=self.latest).contains(&timestamp) || timestamp == Timestamp::NONE.0;
        if !in_range && self.out_of_range.len() < REPORTED_RECORDS_MAX {
            self.out_of_range.push(index);
        }
        if self.keys_required && !has_key && self.without_key.len() < REPORTED_RECORDS_MAX {
            self.without_key.push(index);
        }
    }

    /// Times before keys: the batch's error is 32 if any failure is one of time (R37).
    fn verdict(&mut self) -> Result<(), BatchError> {
        if !self.out_of_range.is_empty() {
            return Err(BatchError::TimestampOutOfRange {
                indexes: std::mem::take(&mut self.out_of_range),
                earliest: Timestamp(self.earliest),
                latest: Timestamp(self.latest),
            });
        }
        if !self.without_key.is_empty() {
            return Err(BatchError::MissingKey { indexes: std::mem::take(&mut self.without_key) });
        }
        Ok(())
    }
}
