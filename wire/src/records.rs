//! Build batches and read the records in them: for tests, tools and compaction. The append path does neither.

pub mod thin;
pub(crate) mod walk;

use std::io::Read as _;

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::batch::{self, BatchError, Codec, DECOMPRESSED_BYTES_MAX, HEADER_BYTES, RecordBatch};
use crate::compression::{self, Decompressed};
use crate::epoch::{LeaderEpoch, ProducerEpoch};
use crate::ids::ProducerId;
use crate::offset::Offset;
use crate::time::Timestamp;

/// One record. Bytes are shared with the batch it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Set when read; a builder counts by itself.
    pub offset: Offset,
    pub timestamp: Timestamp,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    /// Name and value, in order; names may repeat.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl Record {
    /// A record without headers; its offset is set by where it lands.
    pub fn new(timestamp: Timestamp, key: Option<&[u8]>, value: Option<&[u8]>) -> Self {
        let owned = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
        Self { offset: Offset::ZERO, timestamp, key: owned(key), value: owned(value), headers: Vec::new() }
    }
}

impl RecordBatch {
    /// The records of this batch, decompressed where needed (at most [`DECOMPRESSED_BYTES_MAX`], held in memory).
    ///
    /// The CRC is not looked at: ask [`RecordBatch::check_crc`] first where it matters.
    pub fn records(&self) -> Result<Records, BatchError> {
        let codec = self.codec()?;
        let data = match codec {
            Codec::None => self.payload(),
            Codec::Gzip | Codec::Snappy | Codec::Lz4 | Codec::Zstd => {
                let fault =
                    |fault: std::io::Error| BatchError::Decompression { codec: codec.name(), fault: fault.to_string() };
                let mut data = Vec::new();
                let stream = Decompressed::new(codec, &self.bytes()[HEADER_BYTES..]).map_err(fault)?;
                stream.take(DECOMPRESSED_BYTES_MAX + 1).read_to_end(&mut data).map_err(fault)?;
                if data.len() as u64 > DECOMPRESSED_BYTES_MAX {
                    return Err(BatchError::TooLargeDecompressed { max: DECOMPRESSED_BYTES_MAX });
                }
                data.into()
            }
        };
        Ok(Records {
            data,
            base_offset: self.base_offset().0,
            base_timestamp: self.base_timestamp().0,
            log_append_time: self.is_log_append_time().then(|| self.max_timestamp()),
            index: 0,
            count: self.record_count(),
        })
    }
}

/// An iterator over the records of one batch. After an error there is nothing more.
#[derive(Debug, Clone)]
pub struct Records {
    data: Bytes,
    base_offset: i64,
    base_timestamp: i64,
    log_append_time: Option<Timestamp>,
    index: i32,
    count: i32,
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.count {
            return None;
        }
        let (index, count) = (self.index, self.count);
        let read = self.read();
        self.index = if read.is_ok() { index + 1 } else { count };
        Some(read.map_err(|fault| BatchError::MalformedRecord { index, count, fault }))
    }
}

impl Records {
    fn read(&mut self) -> Result<Record, &'static str> {
        const SHORT: &str = "its parts exceed its length";
        let length = usize::try_from(varint(&mut self.data)?).map_err(|_| "its length is negative")?;
        if length > self.data.len() {
            return Err("the data ends within it");
        }
        let mut body = self.data.split_to(length);
        if body.is_empty() {
            return Err(SHORT);
        }
        let _attributes = body.split_to(1);
        let timestamp = self.base_timestamp.wrapping_add(varlong(&mut body)?);
        let offset = self.base_offset.wrapping_add(i64::from(varint(&mut body)?));
        let key = nullable(&mut body)?;
        let value = nullable(&mut body)?;
        let count = varint(&mut body)?;
        let mut headers = Vec::new();
        for _ in 0..count.max(0) {
            let name = nullable(&mut body)?.ok_or("a header has no name")?;
            headers.push((name, nullable(&mut body)?));
        }
        if count < 0 || !body.is_empty() {
            return Err("its parts do not fill its length");
        }
        let timestamp = self.log_append_time.unwrap_or(Timestamp(timestamp));
        Ok(Record { offset: Offset(offset), timestamp, key, value, headers })
    }
}

fn varlong(data: &mut Bytes) -> Result<i64, &'static str> {
    let mut value = 0u64;
    for at in 0..10 {
        let byte = *data.get(at).ok_or("the data ends within it")?;
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let _read = data.split_to(at + 1);
            return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    Err("a varlong of more than ten bytes")
}

fn varint(data: &mut Bytes) -> Result<i32, &'static str> {
    i32::try_from(varlong(data)?).map_err(|_| "a varint of more than 32 bits")
}

fn nullable(data: &mut Bytes) -> Result<Option<Bytes>, &'static str> {
    match varint(data)? {
        -1 => Ok(None),
        length => {
            let length = usize::try_from(length).map_err(|_| "a length is below -1")?;
            if length > data.len() { Err("its parts exceed its length") } else { Ok(Some(data.split_to(length))) }
        }
    }
}

/// Writes batches as a producer does; every field of the header can be set to build wrong ones too.
#[derive(Debug, Clone)]
pub struct RecordBatchBuilder {
    codec: Codec,
    attributes: i16,
    base_offset: i64,
    leader_epoch: i32,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    base_timestamp: Option<i64>,
    max_timestamp: i64,
    next_delta: i32,
    count: i32,
    records: BytesMut,
    scratch: BytesMut,
}

impl Default for RecordBatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl RecordBatchBuilder {
    /// Offset 0, no epoch, no producer id, CreateTime, not compressed.
    pub fn new() -> Self {
        Self {
            codec: Codec::None,
            attributes: 0,
            base_offset: 0,
            leader_epoch: -1,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            base_timestamp: None,
            max_timestamp: -1,
            next_delta: 0,
            count: 0,
            records: BytesMut::new(),
            scratch: BytesMut::new(),
        }
    }

    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// What a leader stamps.
    #[must_use]
    pub fn stamp(mut self, base: Offset, epoch: LeaderEpoch) -> Self {
        (self.base_offset, self.leader_epoch) = (base.0, epoch.0);
        self
    }

    #[must_use]
    pub fn producer(mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: i32) -> Self {
        (self.producer_id, self.producer_epoch, self.base_sequence) = (id.0, epoch.0, base_sequence);
        self
    }

    /// Sets bits of the attributes beside the codec's: 8 LogAppendTime, 16 transactional, 32 control.
    #[must_use]
    pub fn attributes(mut self, bits: i16) -> Self {
        self.attributes |= bits;
        self
    }

    /// Adds a record behind the last one.
    #[must_use]
    pub fn record(mut self, record: &Record) -> Self {
        self.push(record);
        self
    }

    /// Adds a record with a value, no key and no headers.
    #[must_use]
    pub fn value(self, timestamp: Timestamp, value: &[u8]) -> Self {
        self.record(&Record::new(timestamp, None, Some(value)))
    }

    /// Adds a record behind the last one.
    pub fn push(&mut self, record: &Record) {
        let base = *self.base_timestamp.get_or_insert(record.timestamp.0);
        self.max_timestamp = self.max_timestamp.max(record.timestamp.0);
        let body = &mut self.scratch;
        body.clear();
        body.put_i8(0);
        put_varlong(body, record.timestamp.0.wrapping_sub(base));
        put_varlong(body, i64::from(self.next_delta));
        put_nullable(body, record.key.as_deref());
        put_nullable(body, record.value.as_deref());
        put_varlong(body, record.headers.len() as i64);
        for (name, value) in &record.headers {
            put_nullable(body, Some(name));
            put_nullable(body, value.as_deref());
        }
        put_varlong(&mut self.records, self.scratch.len() as i64);
        self.records.extend_from_slice(&self.scratch);
        self.next_delta += 1;
        self.count += 1;
    }

    /// Leaves a gap of `offsets`, as compaction does; before [`RecordBatchBuilder::build`] it lengthens the batch.
    #[must_use]
    pub fn gap(mut self, offsets: i32) -> Self {
        self.next_delta += offsets;
        self
    }

    pub const fn record_count(&self) -> i32 {
        self.count
    }

    /// Bytes of the records so far, not compressed.
    pub fn payload_bytes(&self) -> usize {
        self.records.len()
    }

    /// The finished batch with its CRC.
    pub fn build(self) -> RecordBatch {
        let payload = match self.codec {
            Codec::None => self.records.to_vec(),
            codec => compression::compress(codec, &self.records),
        };
        let mut out = BytesMut::with_capacity(HEADER_BYTES + payload.len());
        out.put_i64(self.base_offset);
        out.put_i32((HEADER_BYTES - batch::LOG_OVERHEAD_BYTES + payload.len()) as i32);
        out.put_i32(self.leader_epoch);
        out.put_i8(batch::MAGIC);
        out.put_u32(0);
        out.put_i16(self.attributes | self.codec.bits());
        out.put_i32(self.next_delta - 1);
        out.put_i64(self.base_timestamp.unwrap_or(-1));
        out.put_i64(self.max_timestamp);
        out.put_i64(self.producer_id);
        out.put_i16(self.producer_epoch);
        out.put_i32(self.base_sequence);
        out.put_i32(self.count);
        out.extend_from_slice(&payload);
        batch::write_crc(&mut out);
        RecordBatch::parse(out.freeze()).expect("the builder writes whole batches of magic 2")
    }
}

fn put_varlong(out: &mut BytesMut, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
    while zigzag >= 0x80 {
        out.put_u8(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    out.put_u8(zigzag as u8);
}

fn put_nullable(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varlong(out, -1),
        Some(bytes) => {
            put_varlong(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}
