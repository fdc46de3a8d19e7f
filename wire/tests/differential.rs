//! The two messages written by hand, Produce requests and Fetch answers, against two generated codecs in every version.

#![allow(clippy::unwrap_used)] // helpers of tests, too, may fail loudly

mod common;

use bytes::{Bytes, BytesMut};
use common::{text, zero_id};
use highwater_wire::fetch::{AbortedTransaction, CurrentLeader, EpochEnd, NodeEndpoint};
use highwater_wire::produce::{ProducePartition, ProduceTopic};
use highwater_wire::request::request_limits;
use highwater_wire::response::response_limits;
use highwater_wire::*;
use kafka_protocol::messages as other;
use kafka_protocol::protocol::{Decodable, Encodable};
use kafka_wire_core::{ApiVersion, KafkaDecode, KafkaEncode};
use proptest::prelude::*;

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn name() -> impl Strategy<Value = StrBytes> {
    "[a-z0-9._-]{0,300}|[à-ü]{1,20}".prop_map(|name| StrBytes::from(name.as_str()))
}

fn topic_id() -> impl Strategy<Value = TopicId> {
    any::<[u8; 16]>().prop_map(TopicId::from_bytes)
}

fn produce_request() -> impl Strategy<Value = ProduceRequest> {
    let partition =
        (any::<i32>(), prop::option::of(bytes(400))).prop_map(|(index, records)| ProducePartition { index, records });
    let topic = (name(), topic_id(), prop::collection::vec(partition, 0..6))
        .prop_map(|(name, id, partitions)| ProduceTopic { name, id, partitions });
    (prop::option::of(name()), any::<i16>(), any::<i32>(), prop::collection::vec(topic, 0..5)).prop_map(
        |(transactional_id, acks, timeout_ms, topics)| ProduceRequest { transactional_id, acks, timeout_ms, topics },
    )
}

fn offset() -> impl Strategy<Value = Offset> {
    (0..=i64::MAX).prop_map(Offset)
}

fn epoch_end() -> impl Strategy<Value = EpochEnd> {
    (0..=i32::MAX, offset()).prop_map(|(epoch, end)| EpochEnd { epoch: LeaderEpoch(epoch), end })
}

fn current_leader() -> impl Strategy<Value = CurrentLeader> {
    (prop::option::of(0..=i32::MAX), 0..=i32::MAX)
        .prop_map(|(leader, epoch)| CurrentLeader { leader: leader.map(BrokerId), epoch: LeaderEpoch(epoch) })
}

fn fetched_partition() -> impl Strategy<Value = FetchedPartition> {
    let aborted = (any::<i64>(), any::<i64>())
        .prop_map(|(id, offset)| AbortedTransaction { producer_id: ProducerId(id), first_offset: Offset(offset) });
    let numbers =
        (any::<i32>(), prop::option::of(offset()), prop::option::of(offset()), prop::option::of(offset()), 0usize..121);
    let tagged = (prop::option::of(epoch_end()), prop::option::of(current_leader()), prop::option::of(epoch_end()));
    let rest = (
        prop::option::of(prop::collection::vec(aborted, 0..4)),
        prop::option::of((0..=i32::MAX).prop_map(BrokerId)),
        bytes(600),
    );
    (numbers, tagged, rest).prop_map(|(numbers, tagged, rest)| FetchedPartition {
        index: numbers.0,
        error: ErrorCode::ALL[numbers.4],
        high_watermark: numbers.1,
        last_stable_offset: numbers.2,
        log_start_offset: numbers.3,
        diverging: tagged.0,
        current_leader: tagged.1,
        snapshot: tagged.2,
        aborted_transactions: rest.0,
        preferred_read_replica: rest.1,
        records: rest.2,
    })
}

fn fetch_response() -> impl Strategy<Value = FetchResponse> {
    let topic = (name(), topic_id(), prop::collection::vec(fetched_partition(), 0..5))
        .prop_map(|(name, id, partitions)| FetchedTopic { name, id, partitions });
    let endpoint = (0..=i32::MAX, name(), any::<i32>(), prop::option::of(name()))
        .prop_map(|(id, host, port, rack)| NodeEndpoint { id: BrokerId(id), host, port, rack });
    (any::<i32>(), 0usize..121, any::<i32>(), prop::collection::vec(topic, 0..4), prop::collection::vec(endpoint, 0..3))
        .prop_map(|(throttle_time_ms, error, session_id, topics, node_endpoints)| FetchResponse {
            throttle_time_ms,
            error: ErrorCode::ALL[error],
            session_id,
            topics,
            node_endpoints,
        })
}

/// What a version can say of a Produce request.
fn produce_in(version: i16, mut request: ProduceRequest) -> ProduceRequest {
    for topic in &mut request.topics {
        if version >= 13 {
            topic.name = text("");
        } else {
            topic.id = zero_id();
        }
    }
    request
}

/// What a version can say of a Fetch answer.
fn fetch_in(version: i16, mut response: FetchResponse) -> FetchResponse {
    if version < 7 {
        (response.error, response.session_id) = (ErrorCode::None, 0);
    }
    if version < 16 {
        response.node_endpoints.clear();
    }
    for topic in &mut response.topics {
        if version >= 13 {
            topic.name = text("");
        } else {
            topic.id = zero_id();
        }
        for partition in &mut topic.partitions {
            if version < 5 {
                partition.log_start_offset = None;
            }
            if version < 11 {
                partition.preferred_read_replica = None;
            }
            if version < 12 {
                (partition.diverging, partition.current_leader, partition.snapshot) = (None, None, None);
            }
        }
    }
    response
}

/// The body of a frame that was written with a header of `header_bytes`.
fn body(frame: &Chunks, header_bytes: usize) -> Bytes {
    frame.to_bytes().slice(4 + header_bytes..)
}

fn kafka_wire_again<M: KafkaDecode + KafkaEncode>(body: Bytes, version: i16) -> Bytes {
    let version = ApiVersion::new(version);
    M::decode_from_bytes(body, version, response_limits()).unwrap().encode_to_bytes(version).unwrap()
}

fn kafka_protocol_again<M: Decodable + Encodable>(mut body: Bytes, version: i16) -> Bytes {
    let message = M::decode(&mut body, version).unwrap();
    assert!(body.is_empty());
    let mut out = BytesMut::new();
    message.encode(&mut out, version).unwrap();
    out.freeze()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn produce_requests_are_the_same_bytes_to_all_codecs(request in produce_request()) {
        for version in ApiKey::Produce.versions().iter() {
            let expected = produce_in(version, request.clone());
            let frame = Request::from(request.clone()).encode(version, 7, None).unwrap();
            let head = if ApiKey::Produce.is_flexible(version) { 11 } else { 10 };
            let ours = body(&frame, head);
            prop_assert_eq!(&kafka_wire_again::<messages::ProduceRequest>(ours.clone(), version), &ours);
            prop_assert_eq!(&kafka_protocol_again::<other::ProduceRequest>(ours.clone(), version), &ours);
            let (_, read) = Request::decode(frame.to_bytes().slice(4..), request_limits()).unwrap();
            prop_assert_eq!(read, Request::Produce(expected));
        }
    }

    #[test]
    fn fetch_answers_are_the_same_bytes_to_all_codecs(response in fetch_response()) {
        for version in ApiKey::Fetch.versions().iter() {
            let expected = fetch_in(version, response.clone());
            let frame = Response::from(response.clone()).encode(version, 7).unwrap();
            let head = if ApiKey::Fetch.is_flexible(version) { 5 } else { 4 };
            let ours = body(&frame, head);
            prop_assert_eq!(&kafka_wire_again::<messages::FetchResponse>(ours.clone(), version), &ours);
            prop_assert_eq!(&kafka_protocol_again::<other::FetchResponse>(ours.clone(), version), &ours);
            let read = Response::decode(ApiKey::Fetch, version, frame.to_bytes().slice(4..), response_limits());
            prop_assert_eq!(read.unwrap(), (7, Response::Fetch(expected)));
        }
    }
}

#[test]
fn records_are_neither_copied_out_nor_copied_in() {
    let records = Bytes::from(vec![7u8; 1 << 20]);
    for version in ApiKey::Fetch.versions().iter() {
        let mut response = common::fetch_response(version);
        for partition in &mut response.topics[0].partitions {
            partition.records = records.clone();
        }
        let frame = Response::from(response).encode(version, 1).unwrap();
        let shared = frame.as_slice().iter().filter(|chunk| chunk.as_ptr() == records.as_ptr());
        assert_eq!(shared.count(), 3, "version {version}: one buffer per partition");
        assert!(frame.as_slice().iter().all(|chunk| !chunk.is_empty()));
        assert!(frame.byte_len() - 3 * records.len() < 400, "version {version}: small parts are small");

        let bytes = frame.to_bytes();
        let (_, read) = Response::decode(ApiKey::Fetch, version, bytes.slice(4..), response_limits()).unwrap();
        let Response::Fetch(read) = read else { panic!("{read:?}") };
        for partition in &read.topics[0].partitions {
            assert!(bytes.as_ptr_range().contains(&partition.records.as_ptr()));
        }
    }
    for version in ApiKey::Produce.versions().iter() {
        let mut request = common::produce_request(version);
        request.topics[0].partitions[0].records = Some(records.clone());
        let frame = Request::from(request).encode(version, 1, None).unwrap();
        assert!(frame.as_slice().iter().any(|chunk| chunk.as_ptr() == records.as_ptr()));
        let bytes = frame.to_bytes();
        let (_, read) = Request::decode(bytes.slice(4..), request_limits()).unwrap();
        let Request::Produce(read) = read else { panic!("{read:?}") };
        let read = read.topics[0].partitions[0].records.as_ref().unwrap();
        assert!(bytes.as_ptr_range().contains(&read.as_ptr()));
    }
}

#[test]
fn null_records_are_told_from_empty_ones() {
    for version in ApiKey::Produce.versions().iter() {
        let frame = Request::from(common::produce_request(version)).encode(version, 1, None).unwrap();
        let (_, read) = Request::decode(frame.to_bytes().slice(4..), request_limits()).unwrap();
        let Request::Produce(read) = read else { panic!("{read:?}") };
        assert_eq!(read.topics[0].partitions[1].records, None);
        assert_eq!(read.topics[1].partitions[0].records, Some(Bytes::new()));
    }
}

#[test]
fn a_request_of_too_many_partitions_is_refused_before_they_take_memory() {
    let partitions = |count: usize| (0..count).map(|_| ProducePartition { index: 0, records: None }).collect();
    let topic = |count| ProduceTopic { name: text("t"), id: zero_id(), partitions: partitions(count) };
    let decode = |counts: [usize; 2]| {
        let request = ProduceRequest { topics: counts.map(topic).to_vec(), ..ProduceRequest::default() };
        let frame = Request::from(request).encode(9, 1, None).unwrap().to_bytes();
        Request::decode(frame.slice(4..), request_limits())
    };
    assert!(decode([50_000, 50_000]).is_ok());
    let error = decode([50_000, 50_001]).unwrap_err().to_string();
    assert!(error.contains("partitions of a Produce request"), "{error}");
}
