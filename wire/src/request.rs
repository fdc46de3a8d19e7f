//! Requests: header and body to and from bytes, both ways (the server, its fetcher, the test client).

use bytes::Bytes;
use kafka_wire_core::{ApiVersion, DecodeError, DecodeLimits, Decoder, EncodeError, Encoder, KafkaDecode, KafkaEncode};

pub use kafka_wire::{
    AlterConfigsRequest, ApiVersionsRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteGroupsRequest,
    DeleteRecordsRequest, DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest, DescribeGroupsRequest,
    DescribeLogDirsRequest, DescribeProducersRequest, DescribeQuorumRequest, DescribeTopicPartitionsRequest,
    ElectLeadersRequest, FetchRequest, FindCoordinatorRequest, HeartbeatRequest, IncrementalAlterConfigsRequest,
    InitProducerIdRequest, JoinGroupRequest, LeaveGroupRequest, ListGroupsRequest, ListOffsetsRequest, MetadataRequest,
    OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest, SyncGroupRequest,
    UnregisterBrokerRequest,
};
pub use kafka_wire_core::StrBytes;

use crate::api::ApiKey;
use crate::frame::{ChunkWriter, Chunks};
use crate::produce::{ProduceRequest, supported, tags};

/// What every request begins with (header versions 1 and 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    pub api: ApiKey,
    /// One that is served.
    pub version: i16,
    /// The answer carries it back.
    pub correlation_id: i32,
    /// What the client calls itself. Shares the frame: copy it to keep it.
    pub client_id: Option<StrBytes>,
}

macro_rules! requests {
    ($($api:ident($body:ty),)*) => {
        /// A decoded request. Only Produce is ours; it keeps records as slices of the frame.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request {
            Produce(ProduceRequest),
            $($api($body),)*
        }

        impl Request {
            /// Which API it is.
            pub const fn api(&self) -> ApiKey {
                match self {
                    Self::Produce(_) => ApiKey::Produce,
                    $(Self::$api(_) => ApiKey::$api,)*
                }
            }

            fn decode_body(api: ApiKey, version: i16, decoder: &mut Decoder) -> Result<Self, DecodeError> {
                match api {
                    ApiKey::Produce => ProduceRequest::decode(decoder, version).map(Self::Produce),
                    $(ApiKey::$api => <$body>::decode(decoder, ApiVersion::new(version)).map(Self::$api),)*
                }
            }

            fn encode_body(&self, version: i16, out: &mut ChunkWriter) -> Result<(), EncodeError> {
                match self {
                    Self::Produce(body) => body.encode(out, version),
                    $(Self::$api(body) => {
                        body.encode_into(&mut out.buffer, ApiVersion::new(version)).map(|_bytes| ())
                    })*
                }
            }
        }

        $(impl From<$body> for Request {
            fn from(body: $body) -> Self {
                Self::$api(body)
            }
        })*
    };
}

requests! {
    Fetch(FetchRequest),
    ListOffsets(ListOffsetsRequest),
    Metadata(MetadataRequest),
    FindCoordinator(FindCoordinatorRequest),
    ApiVersions(ApiVersionsRequest),
    CreateTopics(CreateTopicsRequest),
    DeleteTopics(DeleteTopicsRequest),
    InitProducerId(InitProducerIdRequest),
    OffsetForLeaderEpoch(OffsetForLeaderEpochRequest),
    DescribeCluster(DescribeClusterRequest),
    DeleteRecords(DeleteRecordsRequest),
    DescribeConfigs(DescribeConfigsRequest),
    AlterConfigs(AlterConfigsRequest),
    DescribeLogDirs(DescribeLogDirsRequest),
    CreatePartitions(CreatePartitionsRequest),
    ElectLeaders(ElectLeadersRequest),
    IncrementalAlterConfigs(IncrementalAlterConfigsRequest),
    DescribeQuorum(DescribeQuorumRequest),
    DescribeProducers(DescribeProducersRequest),
    UnregisterBroker(UnregisterBrokerRequest),
    DescribeTopicPartitions(DescribeTopicPartitionsRequest),
    OffsetCommit(OffsetCommitRequest),
    OffsetFetch(OffsetFetchRequest),
    JoinGroup(JoinGroupRequest),
    Heartbeat(HeartbeatRequest),
    LeaveGroup(LeaveGroupRequest),
    SyncGroup(SyncGroupRequest),
    DescribeGroups(DescribeGroupsRequest),
    ListGroups(ListGroupsRequest),
    DeleteGroups(DeleteGroupsRequest),
    OffsetDelete(OffsetDeleteRequest),
}

impl From<ProduceRequest> for Request {
    fn from(body: ProduceRequest) -> Self {
        Self::Produce(body)
    }
}

/// Why a frame is no request that can be served. Only `UnknownApiVersions` is answered; the others close the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// To be answered by [`crate::response::unsupported_api_versions`], after which the client asks again (KIP-511).
    #[error("ApiVersions version {version} is not known; answered as version 0")]
    UnknownApiVersions { version: i16, correlation_id: i32 },
    #[error("API key {key} version {version} from client {client:?} is not served")]
    UnknownApi { key: i16, version: i16, client: Option<String> },
    #[error("{api} version {version} from client {client:?} is not served (versions {})", api.versions())]
    UnsupportedVersion { api: ApiKey, version: i16, client: Option<String> },
    #[error("the frame is too short for a request header: {0}")]
    Header(DecodeError),
    #[error("{api} version {version} from client {client:?} cannot be read: {fault}")]
    Body { api: ApiKey, version: i16, client: Option<String>, fault: DecodeError },
}

/// What a single field of a request may take: strings up to 1 MiB, arrays up to 100,000. The frame itself is bounded by
/// [`crate::frame::FrameLimits`].
///
/// The compact format can carry strings beyond the 32,767 bytes of the classic one. They are read, so that whoever means
/// something by them answers with an error; closing the connection would make a client send them again for ever.
pub fn request_limits() -> DecodeLimits {
    let mut limits = DecodeLimits::default();
    limits.max_string_bytes = 1 << 20;
    limits.max_array_elements = 100_000;
    // A Produce frame is at most 100 MiB and may be one batch.
    limits.max_bytes_bytes = limits.max_frame_bytes;
    limits.max_tagged_fields = 64;
    limits.max_tag_bytes = 1 << 20;
    limits.max_total_tag_bytes = 1 << 20;
    limits
}

impl Request {
    /// Reads a whole frame (without its length field).
    ///
    /// Bytes behind the body are ignored, as Kafka ignores them: librdkafka 2.16 sends three of them with Metadata v13.
    pub fn decode(frame: Bytes, limits: DecodeLimits) -> Result<(RequestHeader, Self), RequestError> {
        let mut decoder = Decoder::new(frame, limits).map_err(RequestError::Header)?;
        let key = decoder.read_i16().map_err(RequestError::Header)?;
        let version = decoder.read_i16().map_err(RequestError::Header)?;
        let correlation_id = decoder.read_i32().map_err(RequestError::Header)?;
        let api = ApiKey::from_code(key);
        if api == Some(ApiKey::ApiVersions) && !ApiKey::ApiVersions.versions().contains(version) {
            return Err(RequestError::UnknownApiVersions { version, correlation_id });
        }
        // Header versions 1 and 2 agree up to the client id, so it can be named even where the rest is unknown.
        let client_id = decoder.read_nullable_string();
        let client = || client_id.as_ref().ok().and_then(Option::as_ref).map(ToString::to_string);
        let Some(api) = api else { return Err(RequestError::UnknownApi { key, version, client: client() }) };
        if !api.versions().contains(version) {
            return Err(RequestError::UnsupportedVersion { api, version, client: client() });
        }
        let body_fault = |fault| RequestError::Body { api, version, client: client(), fault };
        if api.request_header_version(version) >= 2 && client_id.is_ok() {
            decoder.read_tagged_fields().map_err(body_fault)?;
        }
        let body = match &client_id {
            Err(fault) => Err(fault.clone()),
            Ok(_) => Self::decode_body(api, version, &mut decoder),
        };
        let body = body.map_err(body_fault)?;
        let client_id = client_id.map_err(RequestError::Header)?;
        Ok((RequestHeader { api, version, correlation_id, client_id }, body))
    }

    /// Writes a whole frame, length field included. Fails for a version that is not served, and for a field that is set
    /// but that the version lacks.
    pub fn encode(
        &self,
        version: i16,
        correlation_id: i32,
        client_id: Option<&StrBytes>,
    ) -> Result<Chunks, EncodeError> {
        let api = self.api();
        supported(api.name(), api, version)?;
        let (small_bytes, shared) = match self {
            Self::Produce(produce) => {
                let partitions = produce.topics.iter().map(|topic| topic.partitions.len()).sum();
                (128 + 32 * partitions, partitions)
            }
            _ => (256, 0),
        };
        let mut out = ChunkWriter::new(small_bytes, shared);
        let mut encoder = Encoder::new(&mut out.buffer);
        encoder.write_i16(api.code())?;
        encoder.write_i16(version)?;
        encoder.write_i32(correlation_id)?;
        encoder.write_nullable_string(client_id)?;
        tags(&mut out, api.request_header_version(version) >= 2)?;
        self.encode_body(version, &mut out)?;
        finish(out)
    }
}

pub(crate) fn finish(out: ChunkWriter) -> Result<Chunks, EncodeError> {
    let maximum = i32::MAX as usize;
    out.finish().ok_or(EncodeError::LengthOverflow { kind: "frame", length: maximum, maximum })
}
