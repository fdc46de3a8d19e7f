//! Fetch answers (key 1, versions 4–18), by hand: records are neither copied out nor copied in.
//!
//! v5 log start offset, v7 error and session (KIP-227), v11 preferred replica (KIP-392), v12 compact lengths and tagged
//! fields: diverging epoch, current leader, snapshot id (KIP-595), v13 topic ids (KIP-516), v16 node endpoints
//! (KIP-951). Requests are kafka-wire's `FetchRequest`.

use bytes::Bytes;
use kafka_wire_core::{DecodeError, Decoder, EncodeError, Encoder, StrBytes, TagOutcome};

use crate::api::ApiKey;
use crate::epoch::LeaderEpoch;
use crate::error_code::ErrorCode;
use crate::frame::ChunkWriter;
use crate::ids::{BrokerId, ProducerId, TopicId};
use crate::offset::Offset;
use crate::produce::{array_len, records, tags, topic_head};

/// What a leader answers. A field that the version lacks is left out when written, and absent when read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchResponse {
    pub throttle_time_ms: i32,
    /// Of the whole request: the session's. v7.
    pub error: ErrorCode,
    /// 0: no session. v7.
    pub session_id: i32,
    pub topics: Vec<FetchedTopic>,
    /// Where the leaders named in the answer can be reached. v16.
    pub node_endpoints: Vec<NodeEndpoint>,
}

impl Default for FetchResponse {
    fn default() -> Self {
        Self { throttle_time_ms: 0, error: ErrorCode::None, session_id: 0, topics: vec![], node_endpoints: vec![] }
    }
}

/// One topic of a Fetch answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedTopic {
    /// Empty from version 13.
    pub name: StrBytes,
    /// Zero below version 13.
    pub id: TopicId,
    pub partitions: Vec<FetchedPartition>,
}

/// One partition of a Fetch answer (R76).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedPartition {
    pub index: i32,
    pub error: ErrorCode,
    /// Exclusive; `None` (−1) beside an error.
    pub high_watermark: Option<Offset>,
    pub last_stable_offset: Option<Offset>,
    /// v5.
    pub log_start_offset: Option<Offset>,
    /// From here on the follower's log differs from the leader's (R99). v12.
    pub diverging: Option<EpochEnd>,
    /// Who leads, beside errors 6 and 74 (R54). v12.
    pub current_leader: Option<CurrentLeader>,
    /// Of the metadata log of a KRaft quorum; ours never writes it. v12.
    pub snapshot: Option<EpochEnd>,
    /// `None`: null, as for everybody who reads uncommitted.
    pub aborted_transactions: Option<Vec<AbortedTransaction>>,
    /// Fetch from there next time. v11.
    pub preferred_read_replica: Option<BrokerId>,
    /// Whole batches as they lie in the log; never null when written. A reader may meet null, and sees it as empty.
    pub records: Bytes,
}

impl FetchedPartition {
    /// No records, no watermarks: what an error, or a new answer, begins with.
    pub const fn new(index: i32, error: ErrorCode) -> Self {
        Self {
            index,
            error,
            high_watermark: None,
            last_stable_offset: None,
            log_start_offset: None,
            diverging: None,
            current_leader: None,
            snapshot: None,
            aborted_transactions: None,
            preferred_read_replica: None,
            records: Bytes::new(),
        }
    }
}

/// An epoch and where it ends in the leader's log (exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    pub epoch: LeaderEpoch,
    pub end: Offset,
}

/// Who leads a partition, as the answering broker knows it (KIP-951).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentLeader {
    /// `None`: nobody.
    pub leader: Option<BrokerId>,
    pub epoch: LeaderEpoch,
}

/// A transaction whose records a read_committed consumer must skip, from its first one on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    pub producer_id: ProducerId,
    pub first_offset: Offset,
}

/// Where a broker can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEndpoint {
    pub id: BrokerId,
    pub host: StrBytes,
    pub port: i32,
    pub rack: Option<StrBytes>,
}

const DIVERGING_TAG: u32 = 0;
const CURRENT_LEADER_TAG: u32 = 1;
const SNAPSHOT_TAG: u32 = 2;
const NODE_ENDPOINTS_TAG: u32 = 0;

impl FetchResponse {
    /// Bytes of records in it.
    pub fn records_bytes(&self) -> usize {
        self.topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.records.len()).sum()
    }

    /// Room for the parts that are not records, generously.
    pub(crate) fn small_bytes(&self) -> usize {
        let topic = |topic: &FetchedTopic| 24 + topic.name.len() + 96 * topic.partitions.len();
        64 + self.topics.iter().map(topic).sum::<usize>() + 64 * self.node_endpoints.len()
    }

    pub(crate) fn partition_count(&self) -> usize {
        self.topics.iter().map(|topic| topic.partitions.len()).sum()
    }

    pub(crate) fn encode(&self, out: &mut ChunkWriter, version: i16) -> Result<(), EncodeError> {
        let flexible = ApiKey::Fetch.is_flexible(version);
        let mut encoder = Encoder::new(&mut out.buffer);
        encoder.write_i32(self.throttle_time_ms)?;
        if version >= 7 {
            encoder.write_i16(self.error.code())?;
            encoder.write_i32(self.session_id)?;
        }
        array_len(&mut encoder, flexible, self.topics.len())?;
        for topic in &self.topics {
            topic_head(out, (ApiKey::Fetch, version), (topic.id, &topic.name), topic.partitions.len())?;
            for partition in &topic.partitions {
                partition.encode(out, version, flexible)?;
            }
            tags(out, flexible)?;
        }
        if version >= 16 && !self.node_endpoints.is_empty() {
            return self.encode_endpoints(out);
        }
        tags(out, flexible)
    }

    /// The one tagged field of the answer itself; its size stands before it, so it is written aside.
    fn encode_endpoints(&self, out: &mut ChunkWriter) -> Result<(), EncodeError> {
        let mut field = bytes::BytesMut::new();
        let mut encoder = Encoder::new(&mut field);
        encoder.write_compact_array_len(self.node_endpoints.len())?;
        for endpoint in &self.node_endpoints {
            encoder.write_i32(endpoint.id.0)?;
            encoder.write_compact_string(&endpoint.host)?;
            encoder.write_i32(endpoint.port)?;
            encoder.write_compact_nullable_string(endpoint.rack.as_ref())?;
            encoder.write_unsigned_varint(0)?;
        }
        let mut encoder = Encoder::new(&mut out.buffer);
        encoder.write_unsigned_varint(1)?;
        encoder.write_unsigned_varint(NODE_ENDPOINTS_TAG)?;
        encoder.write_unsigned_varint(field.len() as u32)?;
        encoder.write_raw_slice(&field)
    }

    /// Reads the body of an answer; records are slices of the frame.
    pub fn decode(decoder: &mut Decoder, version: i16) -> Result<Self, DecodeError> {
        let flexible = ApiKey::Fetch.is_flexible(version);
        let mut response = Self { throttle_time_ms: decoder.read_i32()?, ..Self::default() };
        if version >= 7 {
            response.error = ErrorCode::from_code(decoder.read_i16()?);
            response.session_id = decoder.read_i32()?;
        }
        let count = if flexible { decoder.read_compact_array_len()? } else { decoder.read_array_len()? };
        response.topics = decoder.read_vec(count, |decoder| {
            let mut topic =
                FetchedTopic { name: StrBytes::default(), id: TopicId::from_bytes([0; 16]), partitions: vec![] };
            if version >= 13 {
                topic.id = decoder.read_uuid()?.into();
            } else if flexible {
                topic.name = decoder.read_compact_string()?;
            } else {
                topic.name = decoder.read_string()?;
            }
            let count = if flexible { decoder.read_compact_array_len()? } else { decoder.read_array_len()? };
            topic.partitions =
                decoder.read_vec(count, |decoder| FetchedPartition::decode(decoder, version, flexible))?;
            if flexible {
                decoder.read_tagged_fields()?;
            }
            Ok(topic)
        })?;
        if flexible {
            decoder.read_tagged_fields_with(|tag, decoder| match tag {
                NODE_ENDPOINTS_TAG if version >= 16 => {
                    let count = decoder.read_compact_array_len()?;
                    response.node_endpoints = decoder.read_vec(count, endpoint)?;
                    Ok(TagOutcome::Decoded)
                }
                _ => Ok(TagOutcome::Retained),
            })?;
        }
        Ok(response)
    }
}

impl FetchedPartition {
    fn encode(&self, out: &mut ChunkWriter, version: i16, flexible: bool) -> Result<(), EncodeError> {
        let mut encoder = Encoder::new(&mut out.buffer);
        encoder.write_i32(self.index)?;
        encoder.write_i16(self.error.code())?;
        encoder.write_i64(Offset::to_wire(self.high_watermark))?;
        encoder.write_i64(Offset::to_wire(self.last_stable_offset))?;
        if version >= 5 {
            encoder.write_i64(Offset::to_wire(self.log_start_offset))?;
        }
        match &self.aborted_transactions {
            None if flexible => encoder.write_unsigned_varint(0)?,
            None => encoder.write_i32(-1)?,
            Some(aborted) => array_len(&mut encoder, flexible, aborted.len())?,
        }
        for aborted in self.aborted_transactions.iter().flatten() {
            encoder.write_i64(aborted.producer_id.0)?;
            encoder.write_i64(aborted.first_offset.0)?;
            if flexible {
                encoder.write_unsigned_varint(0)?;
            }
        }
        if version >= 11 {
            encoder.write_i32(BrokerId::to_wire(self.preferred_read_replica))?;
        }
        records(out, flexible, Some(&self.records))?;
        if !flexible {
            return Ok(());
        }
        let mut encoder = Encoder::new(&mut out.buffer);
        let fields = [self.diverging.is_some(), self.current_leader.is_some(), self.snapshot.is_some()];
        encoder.write_unsigned_varint(fields.into_iter().filter(|present| *present).count() as u32)?;
        // Each field is a structure without tagged fields of its own: hence the zero at its end, and the fixed sizes.
        if let Some(diverging) = self.diverging {
            encoder.write_unsigned_varint(DIVERGING_TAG)?;
            encoder.write_unsigned_varint(13)?;
            encoder.write_i32(diverging.epoch.0)?;
            encoder.write_i64(diverging.end.0)?;
            encoder.write_unsigned_varint(0)?;
        }
        if let Some(current) = self.current_leader {
            encoder.write_unsigned_varint(CURRENT_LEADER_TAG)?;
            encoder.write_unsigned_varint(9)?;
            encoder.write_i32(BrokerId::to_wire(current.leader))?;
            encoder.write_i32(current.epoch.0)?;
            encoder.write_unsigned_varint(0)?;
        }
        if let Some(snapshot) = self.snapshot {
            encoder.write_unsigned_varint(SNAPSHOT_TAG)?;
            encoder.write_unsigned_varint(13)?;
            encoder.write_i64(snapshot.end.0)?;
            encoder.write_i32(snapshot.epoch.0)?;
            encoder.write_unsigned_varint(0)?;
        }
        Ok(())
    }

    fn decode(decoder: &mut Decoder, version: i16, flexible: bool) -> Result<Self, DecodeError> {
        let index = decoder.read_i32()?;
        let mut partition = Self::new(index, ErrorCode::from_code(decoder.read_i16()?));
        partition.high_watermark = Offset::from_wire(decoder.read_i64()?);
        partition.last_stable_offset = Offset::from_wire(decoder.read_i64()?);
        if version >= 5 {
            partition.log_start_offset = Offset::from_wire(decoder.read_i64()?);
        }
        let aborted =
            if flexible { decoder.read_compact_nullable_array_len()? } else { decoder.read_nullable_array_len()? };
        if let Some(count) = aborted {
            partition.aborted_transactions = Some(decoder.read_vec(count, |decoder| {
                let producer_id = ProducerId(decoder.read_i64()?);
                let first_offset = Offset(decoder.read_i64()?);
                if flexible {
                    decoder.read_tagged_fields()?;
                }
                Ok(AbortedTransaction { producer_id, first_offset })
            })?);
        }
        if version >= 11 {
            partition.preferred_read_replica = BrokerId::from_wire(decoder.read_i32()?);
        }
        let records = if flexible { decoder.read_compact_nullable_bytes()? } else { decoder.read_nullable_bytes()? };
        partition.records = records.unwrap_or_default();
        if flexible {
            decoder.read_tagged_fields_with(|tag, decoder| {
                match tag {
                    DIVERGING_TAG => {
                        let epoch = LeaderEpoch::from_wire(decoder.read_i32()?);
                        let end = Offset::from_wire(decoder.read_i64()?);
                        partition.diverging = epoch.zip(end).map(|(epoch, end)| EpochEnd { epoch, end });
                    }
                    CURRENT_LEADER_TAG => {
                        let leader = BrokerId::from_wire(decoder.read_i32()?);
                        let epoch = LeaderEpoch::from_wire(decoder.read_i32()?);
                        partition.current_leader = epoch.map(|epoch| CurrentLeader { leader, epoch });
                    }
                    SNAPSHOT_TAG => {
                        let end = Offset::from_wire(decoder.read_i64()?);
                        let epoch = LeaderEpoch::from_wire(decoder.read_i32()?);
                        partition.snapshot = epoch.zip(end).map(|(epoch, end)| EpochEnd { epoch, end });
                    }
                    _ => return Ok(TagOutcome::Retained),
                }
                decoder.read_tagged_fields()?;
                Ok(TagOutcome::Decoded)
            })?;
        }
        Ok(partition)
    }
}

fn endpoint(decoder: &mut Decoder) -> Result<NodeEndpoint, DecodeError> {
    let id = BrokerId(decoder.read_i32()?);
    let host = decoder.read_compact_string()?;
    let port = decoder.read_i32()?;
    let rack = decoder.read_compact_nullable_string()?;
    decoder.read_tagged_fields()?;
    Ok(NodeEndpoint { id, host, port, rack })
}
