//! Samples of what carries records, and of what a client asks before.

use super::*;

/// The sample of a request; `None`: not one of these.
pub fn request(api: ApiKey, version: i16) -> Option<Request> {
    Some(match api {
        ApiKey::Produce => produce_request(version).into(),
        ApiKey::Fetch => fetch_request(version).into(),
        ApiKey::ListOffsets => message!(ListOffsetsRequest {
            replica_id: 2,
            isolation_level: since(version, 2, 1),
            topics: vec![message!(list_offsets_request::ListOffsetsTopic {
                name: text("orders"),
                partitions: vec![message!(list_offsets_request::ListOffsetsPartition {
                    partition_index: 3,
                    current_leader_epoch: if version >= 4 { 7 } else { -1 },
                    timestamp: -3,
                })],
            })],
            timeout_ms: since(version, 10, 1_500),
        })
        .into(),
        ApiKey::Metadata => metadata_request(version).into(),
        ApiKey::FindCoordinator => message!(FindCoordinatorRequest {
            key: if version < 4 { text("group-a") } else { text("") },
            key_type: since(version, 1, 1),
            coordinator_keys: since(version, 4, vec![text("group-a"), text("group-b")]),
        })
        .into(),
        ApiKey::ApiVersions => message!(ApiVersionsRequest {
            client_software_name: since(version, 3, text("librdkafka")),
            client_software_version: since(version, 3, text("2.10.0")),
        })
        .into(),
        ApiKey::InitProducerId => message!(InitProducerIdRequest {
            transactional_id: Some(text("tx")),
            transaction_timeout_ms: 60_000,
            producer_id: if version >= 3 { 4_000 } else { -1 },
            producer_epoch: if version >= 3 { 5 } else { -1 },
        })
        .into(),
        ApiKey::OffsetForLeaderEpoch => message!(OffsetForLeaderEpochRequest {
            replica_id: if version >= 3 { 1 } else { -2 },
            topics: vec![message!(offset_for_leader_epoch_request::OffsetForLeaderTopic {
                topic: text("orders"),
                partitions: vec![message!(offset_for_leader_epoch_request::OffsetForLeaderPartition {
                    partition: 3,
                    current_leader_epoch: 9,
                    leader_epoch: 8,
                })],
            })],
        })
        .into(),
        _ => return None,
    })
}

/// The sample of a response; `None`: not one of these.
pub fn response(api: ApiKey, version: i16) -> Option<Response> {
    Some(match api {
        ApiKey::Produce => produce_response(version).into(),
        ApiKey::Fetch => fetch_response(version).into(),
        ApiKey::ListOffsets => message!(ListOffsetsResponse {
            throttle_time_ms: since(version, 2, 9),
            topics: vec![message!(list_offsets_response::ListOffsetsTopicResponse {
                name: text("orders"),
                partitions: vec![message!(list_offsets_response::ListOffsetsPartitionResponse {
                    partition_index: 3,
                    error_code: ErrorCode::OffsetNotAvailable.code(),
                    timestamp: 1_700_000_000_000,
                    offset: 55,
                    leader_epoch: if version >= 4 { 7 } else { -1 },
                })],
            })],
        })
        .into(),
        ApiKey::Metadata => metadata_response(version).into(),
        ApiKey::FindCoordinator => find_coordinator_response(version).into(),
        ApiKey::ApiVersions => {
            let mut response = api_versions();
            response.throttle_time_ms = since(version, 1, 4);
            if version >= 3 {
                response.finalized_features_epoch = 6;
                response.finalized_features = vec![message!(api_versions_response::FinalizedFeatureKey {
                    name: text("metadata.version"),
                    max_version_level: 25,
                    min_version_level: 1,
                })];
                response.supported_features = vec![message!(api_versions_response::SupportedFeatureKey {
                    name: text("metadata.version"),
                    min_version: 1,
                    max_version: 27,
                })];
            }
            response.into()
        }
        ApiKey::InitProducerId => message!(InitProducerIdResponse {
            throttle_time_ms: 4,
            error_code: 15,
            producer_id: 4_000,
            producer_epoch: 5,
        })
        .into(),
        ApiKey::OffsetForLeaderEpoch => message!(OffsetForLeaderEpochResponse {
            throttle_time_ms: 4,
            topics: vec![message!(offset_for_leader_epoch_response::OffsetForLeaderTopicResult {
                topic: text("orders"),
                partitions: vec![message!(offset_for_leader_epoch_response::EpochEndOffset {
                    error_code: 74,
                    partition: 3,
                    leader_epoch: 8,
                    end_offset: 1_000,
                })],
            })],
        })
        .into(),
        _ => return None,
    })
}

pub fn produce_request(version: i16) -> ProduceRequest {
    let topic = |name: &str, partitions| ProduceTopic {
        name: if version < 13 { text(name) } else { text("") },
        id: if version >= 13 { TOPIC_ID } else { zero_id() },
        partitions,
    };
    ProduceRequest {
        transactional_id: Some(text("tx")),
        acks: -1,
        timeout_ms: 30_000,
        topics: vec![
            topic(
                "orders",
                vec![
                    ProducePartition { index: 0, records: Some(batch().into_bytes()) },
                    ProducePartition { index: 5, records: None },
                ],
            ),
            topic("payments", vec![ProducePartition { index: 2, records: Some(Bytes::new()) }]),
        ],
    }
}

fn fetch_request(version: i16) -> FetchRequest {
    let mut partition = message!(fetch_request::FetchPartition {
        partition: 4,
        current_leader_epoch: if version >= 9 { 11 } else { -1 },
        fetch_offset: 123_456,
        last_fetched_epoch: if version >= 12 { 10 } else { -1 },
        log_start_offset: if version >= 5 { 100 } else { -1 },
        partition_max_bytes: 1 << 20,
    });
    if version >= 17 {
        partition.replica_directory_id = TOPIC_ID.into();
    }
    if version >= 18 {
        partition.high_watermark = 123_000;
    }
    let mut request = message!(FetchRequest {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 10 << 20,
        isolation_level: 1,
        session_id: since(version, 7, 77),
        session_epoch: if version >= 7 { 3 } else { -1 },
        topics: vec![message!(fetch_request::FetchTopic {
            topic: if version < 13 { text("orders") } else { text("") },
            topic_id: if version >= 13 { TOPIC_ID.into() } else { WireUuid::ZERO },
            partitions: vec![partition],
        })],
        rack_id: since(version, 11, text("rack-1")),
    });
    if version >= 15 {
        request.replica_state = message!(fetch_request::ReplicaState { replica_id: 2, replica_epoch: 42 });
    } else {
        request.replica_id = 2;
    }
    if version >= 7 {
        request.forgotten_topics_data = vec![message!(fetch_request::ForgottenTopic {
            topic: if version < 13 { text("gone") } else { text("") },
            topic_id: if version >= 13 { TOPIC_ID.into() } else { WireUuid::ZERO },
            partitions: vec![1, 2],
        })];
    }
    if version >= 12 {
        request.cluster_id = Some(text("cluster"));
    }
    request
}

fn metadata_request(version: i16) -> MetadataRequest {
    let mut request = message!(MetadataRequest {
        topics: Some(vec![message!(metadata_request::MetadataRequestTopic { name: Some(text("orders")) })]),
        allow_auto_topic_creation: version < 4,
        include_cluster_authorized_operations: (8..=10).contains(&version),
        include_topic_authorized_operations: version >= 8,
    });
    if version >= 12 {
        let by_id = message!(metadata_request::MetadataRequestTopic { topic_id: TOPIC_ID.into(), name: None });
        request.topics.as_mut().unwrap().push(by_id);
    }
    request
}

fn produce_response(version: i16) -> ProduceResponse {
    let mut refused = message!(produce_response::PartitionProduceResponse {
        index: 5,
        error_code: ErrorCode::InvalidRecord.code(),
        base_offset: -1,
        log_append_time_ms: -1,
        log_start_offset: if version >= 5 { 0 } else { -1 },
    });
    if version >= 8 {
        refused.record_errors = vec![message!(produce_response::BatchIndexAndErrorMessage {
            batch_index: 1,
            batch_index_error_message: Some(text("no key")),
        })];
        refused.error_message = Some(text("a compacted topic needs keys"));
    }
    if version >= 10 {
        refused.current_leader = message!(produce_response::LeaderIdAndEpoch { leader_id: 2, leader_epoch: 9 });
    }
    message!(ProduceResponse {
        responses: vec![message!(produce_response::TopicProduceResponse {
            name: if version < 13 { text("orders") } else { text("") },
            topic_id: if version >= 13 { TOPIC_ID.into() } else { WireUuid::ZERO },
            partition_responses: vec![
                message!(produce_response::PartitionProduceResponse {
                    index: 0,
                    base_offset: 1_234,
                    log_append_time_ms: 1_700_000_000_000,
                    log_start_offset: if version >= 5 { 17 } else { -1 },
                }),
                refused,
            ],
        })],
        throttle_time_ms: 12,
        node_endpoints: since(
            version,
            10,
            vec![message!(produce_response::NodeEndpoint {
                node_id: 2,
                host: text("broker-2"),
                port: 9094,
                rack: Some(text("rack-2")),
            })]
        ),
    })
}

pub fn fetch_response(version: i16) -> FetchResponse {
    let mut full = FetchedPartition::new(0, ErrorCode::None);
    full.high_watermark = Some(Offset(120));
    full.last_stable_offset = Some(Offset(118));
    full.log_start_offset = since(version, 5, Some(Offset(4)));
    full.aborted_transactions =
        Some(vec![AbortedTransaction { producer_id: ProducerId(4_000), first_offset: Offset(99) }]);
    full.preferred_read_replica = since(version, 11, Some(BrokerId(3)));
    full.records = batch().stamped(Offset(116), LeaderEpoch(8)).into_bytes();

    let mut refused = FetchedPartition::new(5, ErrorCode::NotLeaderOrFollower);
    refused.current_leader =
        since(version, 12, Some(CurrentLeader { leader: Some(BrokerId(2)), epoch: LeaderEpoch(9) }));

    let mut diverging = FetchedPartition::new(6, ErrorCode::None);
    diverging.high_watermark = Some(Offset(1));
    diverging.log_start_offset = since(version, 5, Some(Offset(0)));
    diverging.diverging = since(version, 12, Some(EpochEnd { epoch: LeaderEpoch(7), end: Offset(1 << 40) }));
    diverging.snapshot = since(version, 12, Some(EpochEnd { epoch: LeaderEpoch(1), end: Offset(50) }));
    diverging.aborted_transactions = Some(vec![]);

    FetchResponse {
        throttle_time_ms: 3,
        error: if version >= 7 { ErrorCode::InvalidFetchSessionEpoch } else { ErrorCode::None },
        session_id: since(version, 7, 77),
        topics: vec![FetchedTopic {
            name: if version < 13 { text("orders") } else { text("") },
            id: if version >= 13 { TOPIC_ID } else { zero_id() },
            partitions: vec![full, refused, diverging],
        }],
        node_endpoints: since(
            version,
            16,
            vec![NodeEndpoint { id: BrokerId(2), host: text("broker-2"), port: 9094, rack: None }],
        ),
    }
}

fn metadata_response(version: i16) -> MetadataResponse {
    let mut partition = message!(metadata_response::MetadataResponsePartition {
        error_code: 9,
        partition_index: 1,
        leader_id: 2,
        replica_nodes: vec![2, 3, 1],
        isr_nodes: vec![2, 3],
        offline_replicas: since(version, 5, vec![1]),
    });
    if version >= 7 {
        partition.leader_epoch = 9;
    }
    let mut topic = message!(metadata_response::MetadataResponseTopic {
        error_code: 5,
        name: Some(text("orders")),
        topic_id: if version >= 10 { TOPIC_ID.into() } else { WireUuid::ZERO },
        is_internal: version >= 1,
        partitions: vec![partition],
    });
    if version >= 8 {
        topic.topic_authorized_operations = 7;
    }
    let mut response = message!(MetadataResponse {
        throttle_time_ms: since(version, 3, 6),
        brokers: vec![message!(metadata_response::MetadataResponseBroker {
            node_id: 2,
            host: text("localhost"),
            port: 9092,
            rack: since(version, 1, Some(text("rack-1"))),
        })],
        cluster_id: since(version, 2, Some(text("cluster"))),
        controller_id: if version >= 1 { 3 } else { -1 },
        topics: vec![topic],
        error_code: since(version, 13, 41),
    });
    if (8..=10).contains(&version) {
        response.cluster_authorized_operations = 3;
    }
    if version >= 12 {
        response.topics.push(message!(metadata_response::MetadataResponseTopic {
            error_code: 100,
            name: None,
            topic_id: TOPIC_ID.into(),
        }));
    }
    response
}

fn find_coordinator_response(version: i16) -> FindCoordinatorResponse {
    if version >= 4 {
        return message!(FindCoordinatorResponse {
            throttle_time_ms: 2,
            coordinators: vec![message!(find_coordinator_response::Coordinator {
                key: text("group-a"),
                node_id: -1,
                host: text(""),
                port: -1,
                error_code: 15,
                error_message: Some(text("no groups yet")),
            })],
        });
    }
    let mut response = message!(FindCoordinatorResponse { error_code: 15, node_id: -1, host: text("h"), port: -1 });
    if version >= 1 {
        response.throttle_time_ms = 2;
        response.error_message = Some(text("no groups yet"));
    }
    response
}
