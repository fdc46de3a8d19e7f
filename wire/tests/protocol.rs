//! Every API in every version served: what is written reads back, the bytes never change, and another codec agrees.

#![allow(clippy::unwrap_used)] // helpers of tests, too, may fail loudly

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use common::{request, response, text};
use highwater_wire::request::request_limits;
use highwater_wire::response::{self, response_limits};
use highwater_wire::{ApiKey, Request, RequestError, Response};
use kafka_protocol::messages as other;
use kafka_protocol::protocol::{Decodable, Encodable};

const CORRELATION_ID: i32 = 0x0102_0304;

fn every_version() -> impl Iterator<Item = (ApiKey, i16)> {
    ApiKey::ALL.iter().flat_map(|api| api.versions().iter().map(move |version| (*api, version)))
}

/// The frame without its length field, which must be right.
fn body_of(frame: Bytes) -> Bytes {
    assert_eq!(frame[..4], (frame.len() as i32 - 4).to_be_bytes());
    frame.slice(4..)
}

fn request_frame(api: ApiKey, version: i16) -> Bytes {
    request(api, version).encode(version, CORRELATION_ID, Some(&text("client-1"))).unwrap().to_bytes()
}

fn response_frame(api: ApiKey, version: i16) -> Bytes {
    response(api, version).encode(version, CORRELATION_ID).unwrap().to_bytes()
}

#[test]
fn requests_read_back_in_every_version() {
    for (api, version) in every_version() {
        let frame = body_of(request_frame(api, version));
        let (header, decoded) = Request::decode(frame, request_limits()).unwrap();
        assert_eq!((header.api, header.version, header.correlation_id), (api, version, CORRELATION_ID));
        assert_eq!(header.client_id, Some(text("client-1")));
        assert_eq!(decoded, request(api, version), "{api} {version}");
    }
}

#[test]
fn answers_read_back_in_every_version() {
    for (api, version) in every_version() {
        let frame = body_of(response_frame(api, version));
        assert_eq!(response::correlation_id(&frame), Some(CORRELATION_ID));
        let (correlation_id, decoded) = Response::decode(api, version, frame, response_limits()).unwrap();
        assert_eq!(correlation_id, CORRELATION_ID);
        assert_eq!(decoded, response(api, version), "{api} {version}");
    }
}

#[test]
fn no_byte_of_any_version_has_changed() {
    let golden: BTreeMap<&str, &str> = include_str!("golden.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|l| l.rsplit_once(' '))
        .collect();
    let mut now = String::new();
    let mut line = |direction: &str, api: ApiKey, version: i16, frame: Bytes| {
        let name = format!("{api} {version} {direction}");
        let hex = frame.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        writeln!(now, "{name} {hex}").unwrap();
        golden.get(name.as_str()).copied() == Some(hex.as_str())
    };
    let mut changed = Vec::new();
    for (api, version) in every_version() {
        if !line("request", api, version, request_frame(api, version)) {
            changed.push((api, version, "request"));
        }
        if !line("answer", api, version, response_frame(api, version)) {
            changed.push((api, version, "answer"));
        }
    }
    let count = 2 * every_version().count();
    let path = std::env::temp_dir().join("highwater-wire-golden.txt");
    if !changed.is_empty() || golden.len() != count {
        std::fs::write(&path, now).unwrap();
    }
    assert!(changed.is_empty(), "changed on the wire: {changed:?}; the bytes of now are in {}", path.display());
    assert_eq!(golden.len(), count, "golden.txt holds versions that are not served");
}

/// Reads our bytes with kafka-protocol and writes them again: the same bytes must come out.
#[test]
fn kafka_protocol_reads_and_writes_the_same_bytes() {
    fn again<M: Decodable + Encodable>(mut bytes: Bytes, version: i16, what: &str) -> Bytes {
        let message = M::decode(&mut bytes, version).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert!(bytes.is_empty(), "{what}: {} bytes unread", bytes.len());
        let mut out = BytesMut::new();
        message.encode(&mut out, version).unwrap();
        out.freeze()
    }
    for (api, version) in every_version() {
        let what = format!("{api} {version}");
        let mut request = body_of(request_frame(api, version));
        let mut answer = body_of(response_frame(api, version));
        let request_head = other::RequestHeader::decode(&mut request, api.request_header_version(version)).unwrap();
        assert_eq!((request_head.request_api_key, request_head.request_api_version), (api.code(), version));
        assert_eq!(request_head.correlation_id, CORRELATION_ID);
        let answer_head = other::ResponseHeader::decode(&mut answer, api.response_header_version(version)).unwrap();
        assert_eq!(answer_head.correlation_id, CORRELATION_ID);
        macro_rules! both {
            ($request:ident, $answer:ident) => {
                (
                    again::<other::$request>(request.clone(), version, &what),
                    again::<other::$answer>(answer.clone(), version, &what),
                )
            };
        }
        let (request_again, answer_again) = match api {
            ApiKey::Produce => both!(ProduceRequest, ProduceResponse),
            ApiKey::Fetch => both!(FetchRequest, FetchResponse),
            ApiKey::ListOffsets => both!(ListOffsetsRequest, ListOffsetsResponse),
            ApiKey::Metadata => both!(MetadataRequest, MetadataResponse),
            ApiKey::FindCoordinator => both!(FindCoordinatorRequest, FindCoordinatorResponse),
            ApiKey::ApiVersions => both!(ApiVersionsRequest, ApiVersionsResponse),
            ApiKey::CreateTopics => both!(CreateTopicsRequest, CreateTopicsResponse),
            ApiKey::DeleteTopics => both!(DeleteTopicsRequest, DeleteTopicsResponse),
            ApiKey::InitProducerId => both!(InitProducerIdRequest, InitProducerIdResponse),
            ApiKey::OffsetForLeaderEpoch => both!(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
            ApiKey::DescribeCluster => both!(DescribeClusterRequest, DescribeClusterResponse),
            ApiKey::DeleteRecords => both!(DeleteRecordsRequest, DeleteRecordsResponse),
            ApiKey::DescribeConfigs => both!(DescribeConfigsRequest, DescribeConfigsResponse),
            ApiKey::AlterConfigs => both!(AlterConfigsRequest, AlterConfigsResponse),
            ApiKey::DescribeLogDirs => both!(DescribeLogDirsRequest, DescribeLogDirsResponse),
            ApiKey::CreatePartitions => both!(CreatePartitionsRequest, CreatePartitionsResponse),
            ApiKey::ElectLeaders => both!(ElectLeadersRequest, ElectLeadersResponse),
            ApiKey::IncrementalAlterConfigs => both!(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
            ApiKey::DescribeQuorum => both!(DescribeQuorumRequest, DescribeQuorumResponse),
            ApiKey::DescribeProducers => both!(DescribeProducersRequest, DescribeProducersResponse),
            ApiKey::UnregisterBroker => both!(UnregisterBrokerRequest, UnregisterBrokerResponse),
            ApiKey::DescribeTopicPartitions => both!(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
            ApiKey::OffsetCommit => both!(OffsetCommitRequest, OffsetCommitResponse),
            ApiKey::OffsetFetch => both!(OffsetFetchRequest, OffsetFetchResponse),
            ApiKey::JoinGroup => both!(JoinGroupRequest, JoinGroupResponse),
            ApiKey::Heartbeat => both!(HeartbeatRequest, HeartbeatResponse),
            ApiKey::LeaveGroup => both!(LeaveGroupRequest, LeaveGroupResponse),
            ApiKey::SyncGroup => both!(SyncGroupRequest, SyncGroupResponse),
            ApiKey::DescribeGroups => both!(DescribeGroupsRequest, DescribeGroupsResponse),
            ApiKey::ListGroups => both!(ListGroupsRequest, ListGroupsResponse),
            ApiKey::DeleteGroups => both!(DeleteGroupsRequest, DeleteGroupsResponse),
            ApiKey::OffsetDelete => both!(OffsetDeleteRequest, OffsetDeleteResponse),
        };
        assert_eq!(request_again, request, "{what} request");
        assert_eq!(answer_again, answer, "{what} answer");
    }
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_as_version_0() {
    let frame = Bytes::from_static(&[0, 18, 0, 99, 1, 2, 3, 4, 0xff, 0xff, 0, 42]);
    let refused = RequestError::UnknownApiVersions { version: 99, correlation_id: CORRELATION_ID };
    assert_eq!(Request::decode(frame, request_limits()), Err(refused));

    let answer = body_of(response::unsupported_api_versions(CORRELATION_ID).unwrap().to_bytes());
    // The client asked in its newest version and reads version 0 all the same.
    let (_, answer) = Response::decode(ApiKey::ApiVersions, 4, answer, response_limits()).unwrap();
    let Response::ApiVersions(answer) = answer else { panic!("{answer:?}") };
    assert_eq!(answer.error_code, 35);
    assert_eq!(answer.api_keys.len(), ApiKey::ALL.len());
    assert_eq!((answer.api_keys[0].min_version, answer.api_keys[0].max_version), (0, 13));
}

#[test]
fn unknown_apis_and_versions_are_refused_with_the_name_of_the_client() {
    let frame = |key: i16, version: i16| {
        let mut frame = BytesMut::new();
        frame.extend_from_slice(&key.to_be_bytes());
        frame.extend_from_slice(&version.to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 1, 0, 3]);
        frame.extend_from_slice(b"abc");
        frame.extend_from_slice(&[0; 20]);
        frame.freeze()
    };
    let client = || Some("abc".to_owned());
    let decode = |key, version| Request::decode(frame(key, version), request_limits()).unwrap_err();
    assert_eq!(decode(24, 2), RequestError::UnknownApi { key: 24, version: 2, client: client() });
    assert_eq!(decode(-1, 0), RequestError::UnknownApi { key: -1, version: 0, client: client() });
    let unsupported = |api, version| RequestError::UnsupportedVersion { api, version, client: client() };
    for version in [-1, 0, 1, 2, 14] {
        assert_eq!(decode(0, version), unsupported(ApiKey::Produce, version));
    }
    assert_eq!(decode(1, 3), unsupported(ApiKey::Fetch, 3));
    assert!(matches!(Request::decode(Bytes::from_static(&[0, 3, 0]), request_limits()), Err(RequestError::Header(_))));
}

#[test]
fn a_request_cut_short_is_refused() {
    for (api, version) in every_version() {
        let frame = body_of(request_frame(api, version));
        for cut in 0..frame.len() {
            let short = Request::decode(frame.slice(..cut), request_limits());
            assert!(short.is_err(), "{api} {version} cut at {cut}");
        }
    }
}

/// librdkafka 2.16 sends Metadata v13 with three bytes too many, and Kafka does not look behind a body.
#[test]
fn bytes_behind_a_request_are_ignored() {
    for (api, version) in every_version() {
        let mut frame = body_of(request_frame(api, version)).to_vec();
        let exact = Request::decode(frame.clone().into(), request_limits()).unwrap();
        frame.extend([0; 3]);
        assert_eq!(Request::decode(frame.into(), request_limits()).unwrap(), exact, "{api} {version}");
    }
}

#[test]
fn a_body_encoded_once_serves_many_clients() {
    for (api, version) in every_version() {
        let body = response(api, version).encode_body_alone(version).unwrap();
        let frame = response::frame_of_body(api, version, CORRELATION_ID, body).unwrap();
        assert_eq!(frame.to_bytes(), response_frame(api, version), "{api} {version}");
    }
}

#[test]
fn versions_that_are_not_served_are_not_written_either() {
    for &api in ApiKey::ALL {
        let versions = api.versions();
        for version in [versions.min - 1, versions.max + 1] {
            assert!(request(api, versions.max).encode(version, 0, None).is_err(), "{api} {version}");
            assert!(response(api, versions.max).encode(version, 0).is_err(), "{api} {version}");
        }
    }
}
