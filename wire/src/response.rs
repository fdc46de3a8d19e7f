//! Answers: header and body to and from bytes, matched by correlation id.

use bytes::Bytes;
use kafka_wire_core::{ApiVersion, DecodeError, DecodeLimits, Decoder, EncodeError, Encoder, KafkaDecode, KafkaEncode};

pub use kafka_wire::{
    AlterConfigsResponse, ApiVersionsResponse, CreatePartitionsResponse, CreateTopicsResponse, DeleteGroupsResponse,
    DeleteRecordsResponse, DeleteTopicsResponse, DescribeClusterResponse, DescribeConfigsResponse,
    DescribeGroupsResponse, DescribeLogDirsResponse, DescribeProducersResponse, DescribeQuorumResponse,
    DescribeTopicPartitionsResponse, ElectLeadersResponse, FindCoordinatorResponse, HeartbeatResponse,
    IncrementalAlterConfigsResponse, InitProducerIdResponse, JoinGroupResponse, LeaveGroupResponse, ListGroupsResponse,
    ListOffsetsResponse, MetadataResponse, OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse,
    OffsetForLeaderEpochResponse, ProduceResponse, SyncGroupResponse, UnregisterBrokerResponse,
};

use crate::api::ApiKey;
use crate::error_code::ErrorCode;
use crate::fetch::FetchResponse;
use crate::frame::{ChunkWriter, Chunks};
use crate::produce::{supported, tags};
use crate::request::finish;

mod errors;

macro_rules! responses {
    ($($api:ident($body:ty),)*) => {
        /// An answer. Only Fetch is ours; its records are written and read without being copied.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Response {
            Fetch(FetchResponse),
            $($api($body),)*
        }

        impl Response {
            /// Which API it answers.
            pub const fn api(&self) -> ApiKey {
                match self {
                    Self::Fetch(_) => ApiKey::Fetch,
                    $(Self::$api(_) => ApiKey::$api,)*
                }
            }

            fn decode_body(api: ApiKey, version: i16, decoder: &mut Decoder) -> Result<Self, DecodeError> {
                match api {
                    ApiKey::Fetch => FetchResponse::decode(decoder, version).map(Self::Fetch),
                    $(ApiKey::$api => <$body>::decode(decoder, ApiVersion::new(version)).map(Self::$api),)*
                }
            }

            fn encode_body(&self, version: i16, out: &mut ChunkWriter) -> Result<(), EncodeError> {
                match self {
                    Self::Fetch(body) => body.encode(out, version),
                    $(Self::$api(body) => {
                        body.encode_into(&mut out.buffer, ApiVersion::new(version)).map(|_bytes| ())
                    })*
                }
            }
        }

        $(impl From<$body> for Response {
            fn from(body: $body) -> Self {
                Self::$api(body)
            }
        })*
    };
}

responses! {
    Produce(ProduceResponse),
    ListOffsets(ListOffsetsResponse),
    Metadata(MetadataResponse),
    FindCoordinator(FindCoordinatorResponse),
    ApiVersions(ApiVersionsResponse),
    CreateTopics(CreateTopicsResponse),
    DeleteTopics(DeleteTopicsResponse),
    InitProducerId(InitProducerIdResponse),
    OffsetForLeaderEpoch(OffsetForLeaderEpochResponse),
    DescribeCluster(DescribeClusterResponse),
    DeleteRecords(DeleteRecordsResponse),
    DescribeConfigs(DescribeConfigsResponse),
    AlterConfigs(AlterConfigsResponse),
    DescribeLogDirs(DescribeLogDirsResponse),
    CreatePartitions(CreatePartitionsResponse),
    ElectLeaders(ElectLeadersResponse),
    IncrementalAlterConfigs(IncrementalAlterConfigsResponse),
    DescribeQuorum(DescribeQuorumResponse),
    DescribeProducers(DescribeProducersResponse),
    UnregisterBroker(UnregisterBrokerResponse),
    DescribeTopicPartitions(DescribeTopicPartitionsResponse),
    OffsetCommit(OffsetCommitResponse),
    OffsetFetch(OffsetFetchResponse),
    JoinGroup(JoinGroupResponse),
    Heartbeat(HeartbeatResponse),
    LeaveGroup(LeaveGroupResponse),
    SyncGroup(SyncGroupResponse),
    DescribeGroups(DescribeGroupsResponse),
    ListGroups(ListGroupsResponse),
    DeleteGroups(DeleteGroupsResponse),
    OffsetDelete(OffsetDeleteResponse),
}

impl From<FetchResponse> for Response {
    fn from(body: FetchResponse) -> Self {
        Self::Fetch(body)
    }
}

impl Response {
    /// Writes a whole frame, length field included, for the version of the request. Except in Fetch, a field that is set
    /// but that the version lacks is an error: build answers per version.
    pub fn encode(&self, version: i16, correlation_id: i32) -> Result<Chunks, EncodeError> {
        let api = self.api();
        supported(api.name(), api, version)?;
        let (small_bytes, shared) = match self {
            Self::Fetch(fetch) => (fetch.small_bytes(), fetch.partition_count()),
            _ => (256, 0),
        };
        let mut out = ChunkWriter::new(small_bytes, shared);
        header(&mut out, api, version, correlation_id)?;
        self.encode_body(version, &mut out)?;
        finish(out)
    }

    /// The body alone, for [`frame_of_body`]: a large answer that is the same for many clients is encoded once.
    pub fn encode_body_alone(&self, version: i16) -> Result<Bytes, EncodeError> {
        supported(self.api().name(), self.api(), version)?;
        let mut out = ChunkWriter::new(256, 0);
        self.encode_body(version, &mut out)?;
        Ok(finish(out)?.to_bytes().slice(4..))
    }

    /// Reads a whole frame (without its length field) that answers a request of `api` and `version`; gives the
    /// correlation id too. An ApiVersions answer of 35 is of version 0 whatever was asked (KIP-511).
    pub fn decode(api: ApiKey, version: i16, frame: Bytes, limits: DecodeLimits) -> Result<(i32, Self), DecodeError> {
        let mut decoder = Decoder::new(frame.clone(), limits)?;
        let correlation_id = decoder.read_i32()?;
        if api.response_header_version(version) >= 1 {
            decoder.read_tagged_fields()?;
        }
        let unsupported = ErrorCode::UnsupportedVersion.code().to_be_bytes();
        let is_refused = api == ApiKey::ApiVersions && frame.get(4..6) == Some(&unsupported);
        let body = Self::decode_body(api, if is_refused { 0 } else { version }, &mut decoder)?;
        decoder.finish()?;
        Ok((correlation_id, body))
    }
}

/// The correlation id of an answer, to find what it answers. `None` when the frame is shorter than four bytes.
pub fn correlation_id(frame: &[u8]) -> Option<i32> {
    frame.first_chunk().map(|id| i32::from_be_bytes(*id))
}

/// What one answer may take; answers come from brokers of the own cluster, or to a test.
pub fn response_limits() -> DecodeLimits {
    let mut limits = DecodeLimits::default();
    limits.max_bytes_bytes = limits.max_frame_bytes;
    limits
}

/// A frame of a body that was encoded before ([`Response::encode_body_alone`]); shares it.
pub fn frame_of_body(api: ApiKey, version: i16, correlation_id: i32, body: Bytes) -> Result<Chunks, EncodeError> {
    let mut out = ChunkWriter::new(16, 1);
    header(&mut out, api, version, correlation_id)?;
    out.put_shared(body);
    finish(out)
}

/// What ApiVersions lists.
pub fn api_versions() -> ApiVersionsResponse {
    let mut response = ApiVersionsResponse::default();
    for &api in ApiKey::ALL {
        let mut entry = kafka_wire::api_versions_response::ApiVersion::default();
        entry.api_key = api.code();
        entry.min_version = api.advertised().min;
        entry.max_version = api.advertised().max;
        response.api_keys.push(entry);
    }
    response
}

/// The answer to an ApiVersions request of a version not known here: version 0, error 35, and the list (KIP-511).
pub fn unsupported_api_versions(correlation_id: i32) -> Result<Chunks, EncodeError> {
    let mut response = api_versions();
    response.error_code = ErrorCode::UnsupportedVersion.code();
    Response::ApiVersions(response).encode(0, correlation_id)
}

fn header(out: &mut ChunkWriter, api: ApiKey, version: i16, correlation_id: i32) -> Result<(), EncodeError> {
    Encoder::new(&mut out.buffer).write_i32(correlation_id)?;
    tags(out, api.response_header_version(version) >= 1)
}
