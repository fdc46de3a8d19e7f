//! Produce requests (key 0, versions 3–13), by hand: record data stays a slice of the frame it came in.
//!
//! v9 compact lengths and tagged fields, v13 topic ids in place of names (KIP-516). v4–v8 and v10–v12 differ from
//! their neighbours only in the answer, or not at all. Answers are kafka-wire's `ProduceResponse`.

use bytes::Bytes;
use kafka_wire_core::{ApiVersion, DecodeError, Decoder, EncodeError, Encoder, StrBytes};

use crate::api::ApiKey;
use crate::frame::ChunkWriter;
use crate::ids::TopicId;

/// How many partitions one request may carry: a bound on memory, since a partition takes more of it than of the frame.
pub const PARTITIONS_MAX: usize = 100_000;

/// What a producer sends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProduceRequest {
    pub transactional_id: Option<StrBytes>,
    /// 0, 1 or −1 when valid (R42).
    pub acks: i16,
    /// How long to wait for the replicas, in milliseconds.
    pub timeout_ms: i32,
    pub topics: Vec<ProduceTopic>,
}

/// One topic of a Produce request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProduceTopic {
    /// Empty from version 13.
    pub name: StrBytes,
    /// Zero below version 13.
    pub id: TopicId,
    pub partitions: Vec<ProducePartition>,
}

/// One partition of a Produce request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducePartition {
    pub index: i32,
    /// `None`: null on the wire, which is answered INVALID_RECORD 87 (D32); see `RecordBatch::from_produce`.
    pub records: Option<Bytes>,
}

impl ProduceRequest {
    /// Reads the body of a request. Nothing is allocated by the counts in it.
    pub fn decode(decoder: &mut Decoder, version: i16) -> Result<Self, DecodeError> {
        let flexible = ApiKey::Produce.is_flexible(version);
        let transactional_id =
            if flexible { decoder.read_compact_nullable_string()? } else { decoder.read_nullable_string()? };
        let acks = decoder.read_i16()?;
        let timeout_ms = decoder.read_i32()?;
        let count = if flexible { decoder.read_compact_array_len()? } else { decoder.read_array_len()? };
        let mut partitions = 0;
        let topics = decoder.read_vec(count, |decoder| topic(decoder, version, flexible, &mut partitions))?;
        if flexible {
            decoder.read_tagged_fields()?;
        }
        Ok(Self { transactional_id, acks, timeout_ms, topics })
    }

    pub(crate) fn encode(&self, out: &mut ChunkWriter, version: i16) -> Result<(), EncodeError> {
        let flexible = ApiKey::Produce.is_flexible(version);
        let mut encoder = Encoder::new(&mut out.buffer);
        let id = self.transactional_id.as_ref();
        if flexible {
            encoder.write_compact_nullable_string(id)?;
        } else {
            encoder.write_nullable_string(id)?;
        }
        encoder.write_i16(self.acks)?;
        encoder.write_i32(self.timeout_ms)?;
        array_len(&mut encoder, flexible, self.topics.len())?;
        for topic in &self.topics {
            topic_head(out, (ApiKey::Produce, version), (topic.id, &topic.name), topic.partitions.len())?;
            for partition in &topic.partitions {
                let mut encoder = Encoder::new(&mut out.buffer);
                encoder.write_i32(partition.index)?;
                records(out, flexible, partition.records.as_ref())?;
                tags(out, flexible)?;
            }
            tags(out, flexible)?;
        }
        tags(out, flexible)
    }
}

fn topic(
    decoder: &mut Decoder,
    version: i16,
    flexible: bool,
    partitions_so_far: &mut usize,
) -> Result<ProduceTopic, DecodeError> {
    let mut name = StrBytes::default();
    let mut id = TopicId::from_bytes([0; 16]);
    if version >= 13 {
        id = decoder.read_uuid()?.into();
    } else if flexible {
        name = decoder.read_compact_string()?;
    } else {
        name = decoder.read_string()?;
    }
    let offset = decoder.offset();
    let count = if flexible { decoder.read_compact_array_len()? } else { decoder.read_array_len()? };
    *partitions_so_far = partitions_so_far.saturating_add(count.get());
    if *partitions_so_far > PARTITIONS_MAX {
        let (length, limit) = (*partitions_so_far, PARTITIONS_MAX);
        return Err(DecodeError::LimitExceeded { kind: "partitions of a Produce request", length, limit, offset });
    }
    let partitions = decoder.read_vec(count, |decoder| {
        let index = decoder.read_i32()?;
        let records = if flexible { decoder.read_compact_nullable_bytes()? } else { decoder.read_nullable_bytes()? };
        if flexible {
            decoder.read_tagged_fields()?;
        }
        Ok(ProducePartition { index, records })
    })?;
    if flexible {
        decoder.read_tagged_fields()?;
    }
    Ok(ProduceTopic { name, id, partitions })
}

pub(crate) fn array_len(
    encoder: &mut Encoder<kafka_wire_core::BufferTarget<'_>>,
    flexible: bool,
    len: usize,
) -> Result<(), EncodeError> {
    if flexible { encoder.write_compact_array_len(len) } else { encoder.write_array_len(len) }
}

/// The topic of a Produce or Fetch – both name it by id from v13 on – and how many partitions of it follow.
pub(crate) fn topic_head(
    out: &mut ChunkWriter,
    (api, version): (ApiKey, i16),
    (id, name): (TopicId, &StrBytes),
    partitions: usize,
) -> Result<(), EncodeError> {
    let flexible = api.is_flexible(version);
    let mut encoder = Encoder::new(&mut out.buffer);
    if version >= 13 {
        encoder.write_uuid(id.into())?;
    } else if flexible {
        encoder.write_compact_string(name)?;
    } else {
        encoder.write_string(name)?;
    }
    array_len(&mut encoder, flexible, partitions)
}

/// No tagged fields, where there is room for some.
pub(crate) fn tags(out: &mut ChunkWriter, flexible: bool) -> Result<(), EncodeError> {
    if flexible { Encoder::new(&mut out.buffer).write_unsigned_varint(0) } else { Ok(()) }
}

/// The length of record data, and the data itself without copying it.
pub(crate) fn records(out: &mut ChunkWriter, flexible: bool, records: Option<&Bytes>) -> Result<(), EncodeError> {
    let overflow = |length| EncodeError::LengthOverflow { kind: "records", length, maximum: i32::MAX as usize };
    let mut encoder = Encoder::new(&mut out.buffer);
    match records {
        None if flexible => encoder.write_unsigned_varint(0)?,
        None => encoder.write_i32(-1)?,
        Some(records) => {
            let length = i32::try_from(records.len()).map_err(|_| overflow(records.len()))?;
            if flexible {
                encoder.write_unsigned_varint(length as u32 + 1)?;
            } else {
                encoder.write_i32(length)?;
            }
            out.put_shared(records.clone());
        }
    }
    Ok(())
}

pub(crate) fn supported(name: &'static str, api: ApiKey, version: i16) -> Result<(), EncodeError> {
    let versions = api.versions();
    if versions.contains(version) {
        return Ok(());
    }
    Err(EncodeError::UnsupportedVersion {
        message: name,
        version: ApiVersion::new(version),
        supported: kafka_wire_core::VersionRange::new(versions.min, versions.max),
    })
}
