//! One full sample of every request and answer in every version: each field that the version has differs from its default.

#![allow(dead_code)] // each test file uses its part
use bytes::Bytes;
use highwater_wire::fetch::{AbortedTransaction, CurrentLeader, EpochEnd, NodeEndpoint};
use highwater_wire::produce::{ProducePartition, ProduceTopic};
use highwater_wire::request::*;
use highwater_wire::response::*;
use highwater_wire::*;
use kafka_wire::{
    alter_configs_request, alter_configs_response, api_versions_response, create_partitions_request,
    create_partitions_response, create_topics_request, create_topics_response, delete_records_request,
    delete_records_response, delete_topics_request, delete_topics_response, describe_cluster_response,
    describe_configs_request, describe_configs_response, describe_log_dirs_request, describe_log_dirs_response,
    describe_quorum_request, describe_quorum_response, describe_topic_partitions_request,
    describe_topic_partitions_response, elect_leaders_request, elect_leaders_response, fetch_request,
    find_coordinator_response, incremental_alter_configs_request, incremental_alter_configs_response,
    list_offsets_request, list_offsets_response, metadata_request, metadata_response, offset_for_leader_epoch_request,
    offset_for_leader_epoch_response, produce_response,
};

/// A generated message with some fields set; the messages are non-exhaustive, so there is no other way.
macro_rules! message {
    ($type:ty { $($field:ident : $value:expr),* $(,)? }) => {{
        let mut message = <$type>::default();
        $(message.$field = $value;)*
        message
    }};
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from(text)
}
pub const TOPIC_ID: TopicId = TopicId::from_bytes(*b"0123456789abcdef");

pub fn zero_id() -> TopicId {
    TopicId::from_bytes([0; 16])
}

/// The value where the version has the field, else its default.
pub fn since<T: Default>(version: i16, first: i16, value: T) -> T {
    if version >= first { value } else { T::default() }
}

/// One plain batch of two records.
pub fn batch() -> RecordBatch {
    RecordBatchBuilder::new()
        .value(Timestamp(1_700_000_000_000), b"first")
        .record(&Record::new(Timestamp(1_700_000_000_007), Some(b"key"), None))
        .build()
}

pub fn request(api: ApiKey, version: i16) -> Request {
    match api {
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
        ApiKey::CreateTopics => create_topics_request().into(),
        ApiKey::DeleteTopics => message!(DeleteTopicsRequest {
            topic_names: if version < 6 { vec![text("orders"), text("payments")] } else { vec![] },
            topics: since(
                version,
                6,
                vec![
                    message!(delete_topics_request::DeleteTopicState { name: Some(text("orders")) }),
                    message!(delete_topics_request::DeleteTopicState { name: None, topic_id: TOPIC_ID.into() }),
                ]
            ),
            timeout_ms: 30_000,
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
        ApiKey::DescribeCluster => message!(DescribeClusterRequest {
            include_cluster_authorized_operations: true,
            endpoint_type: if version >= 1 { 2 } else { 1 },
            include_fenced_brokers: version >= 2,
        })
        .into(),
        ApiKey::DeleteRecords => message!(DeleteRecordsRequest {
            topics: vec![message!(delete_records_request::DeleteRecordsTopic {
                name: text("orders"),
                partitions: vec![message!(delete_records_request::DeleteRecordsPartition {
                    partition_index: 3,
                    offset: 1_000,
                })],
            })],
            timeout_ms: 30_000,
        })
        .into(),
        ApiKey::DescribeConfigs => message!(DescribeConfigsRequest {
            resources: vec![
                message!(describe_configs_request::DescribeConfigsResource {
                    resource_type: 2,
                    resource_name: text("orders"),
                    configuration_keys: Some(vec![text("retention.ms")]),
                }),
                message!(describe_configs_request::DescribeConfigsResource {
                    resource_type: 4,
                    resource_name: text("1"),
                    configuration_keys: None,
                }),
            ],
            include_synonyms: true,
            include_documentation: version >= 3,
        })
        .into(),
        ApiKey::AlterConfigs => message!(AlterConfigsRequest {
            resources: vec![message!(alter_configs_request::AlterConfigsResource {
                resource_type: 2,
                resource_name: text("orders"),
                configs: vec![message!(alter_configs_request::AlterableConfig {
                    name: text("retention.ms"),
                    value: Some(text("60000")),
                })],
            })],
            validate_only: true,
        })
        .into(),
        ApiKey::DescribeLogDirs => message!(DescribeLogDirsRequest {
            topics: Some(vec![message!(describe_log_dirs_request::DescribableLogDirTopic {
                topic: text("orders"),
                partitions: vec![0, 3],
            })]),
        })
        .into(),
        ApiKey::CreatePartitions => message!(CreatePartitionsRequest {
            topics: vec![
                message!(create_partitions_request::CreatePartitionsTopic {
                    name: text("orders"),
                    count: 4,
                    assignments: Some(vec![message!(create_partitions_request::CreatePartitionsAssignment {
                        broker_ids: vec![3, 1, 2],
                    })]),
                }),
                message!(create_partitions_request::CreatePartitionsTopic {
                    name: text("placed"),
                    count: 8,
                    assignments: None
                }),
            ],
            timeout_ms: 30_000,
            validate_only: true,
        })
        .into(),
        ApiKey::ElectLeaders => message!(ElectLeadersRequest {
            election_type: since(version, 1, 1),
            topic_partitions: Some(vec![message!(elect_leaders_request::TopicPartitions {
                topic: text("orders"),
                partitions: vec![0, 3],
            })]),
            timeout_ms: 30_000,
        })
        .into(),
        ApiKey::IncrementalAlterConfigs => message!(IncrementalAlterConfigsRequest {
            resources: vec![message!(incremental_alter_configs_request::AlterConfigsResource {
                resource_type: 4,
                resource_name: text("1"),
                configs: vec![message!(incremental_alter_configs_request::AlterableConfig {
                    name: text("log.retention.ms"),
                    config_operation: 1,
                    value: None,
                })],
            })],
            validate_only: true,
        })
        .into(),
        ApiKey::DescribeQuorum => message!(DescribeQuorumRequest {
            topics: vec![message!(describe_quorum_request::TopicData {
                topic_name: text("__cluster_metadata"),
                partitions: vec![message!(describe_quorum_request::PartitionData { partition_index: 1 })],
            })],
        })
        .into(),
        ApiKey::UnregisterBroker => message!(UnregisterBrokerRequest { broker_id: 3 }).into(),
        ApiKey::DescribeTopicPartitions => message!(DescribeTopicPartitionsRequest {
            topics: vec![message!(describe_topic_partitions_request::TopicRequest { name: text("orders") })],
            response_partition_limit: 100,
            cursor: Some(message!(describe_topic_partitions_request::Cursor {
                topic_name: text("orders"),
                partition_index: 7,
            })),
        })
        .into(),
    }
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

fn create_topics_request() -> CreateTopicsRequest {
    message!(CreateTopicsRequest {
        topics: vec![
            message!(create_topics_request::CreatableTopic {
                name: text("orders"),
                num_partitions: 12,
                replication_factor: 3,
                configs: vec![
                    message!(create_topics_request::CreatableTopicConfig {
                        name: text("retention.ms"),
                        value: Some(text("60000")),
                    }),
                    message!(create_topics_request::CreatableTopicConfig { name: text("segment.ms"), value: None }),
                ],
            }),
            message!(create_topics_request::CreatableTopic {
                name: text("placed"),
                num_partitions: -1,
                replication_factor: -1,
                assignments: vec![message!(create_topics_request::CreatableReplicaAssignment {
                    partition_index: 0,
                    broker_ids: vec![3, 1, 2],
                })],
            }),
        ],
        timeout_ms: 30_000,
        validate_only: true,
    })
}

pub fn response(api: ApiKey, version: i16) -> Response {
    match api {
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
        ApiKey::CreateTopics => create_topics_response(version).into(),
        ApiKey::DeleteTopics => message!(DeleteTopicsResponse {
            throttle_time_ms: 4,
            responses: vec![message!(delete_topics_response::DeletableTopicResult {
                name: Some(text("orders")),
                topic_id: if version >= 6 { TOPIC_ID.into() } else { WireUuid::ZERO },
                error_code: 3,
                error_message: since(version, 5, Some(text("no such topic"))),
            })],
        })
        .into(),
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
        ApiKey::DescribeCluster => message!(DescribeClusterResponse {
            throttle_time_ms: 4,
            error_code: 0,
            error_message: Some(text("fine")),
            endpoint_type: if version >= 1 { 2 } else { 1 },
            cluster_id: text("cluster"),
            controller_id: 1,
            brokers: vec![message!(describe_cluster_response::DescribeClusterBroker {
                broker_id: 1,
                host: text("localhost"),
                port: 9092,
                rack: Some(text("rack-1")),
                is_fenced: version >= 2,
            })],
            cluster_authorized_operations: 3,
        })
        .into(),
        ApiKey::DeleteRecords => message!(DeleteRecordsResponse {
            throttle_time_ms: 4,
            topics: vec![message!(delete_records_response::DeleteRecordsTopicResult {
                name: text("orders"),
                partitions: vec![message!(delete_records_response::DeleteRecordsPartitionResult {
                    partition_index: 3,
                    low_watermark: 1_000,
                    error_code: 7,
                })],
            })],
        })
        .into(),
        ApiKey::DescribeConfigs => describe_configs_response(version).into(),
        ApiKey::AlterConfigs => message!(AlterConfigsResponse {
            throttle_time_ms: 4,
            responses: vec![message!(alter_configs_response::AlterConfigsResourceResponse {
                error_code: 40,
                error_message: Some(text("retention.ms must be a whole number")),
                resource_type: 2,
                resource_name: text("orders"),
            })],
        })
        .into(),
        ApiKey::DescribeLogDirs => describe_log_dirs_response(version).into(),
        ApiKey::CreatePartitions => message!(CreatePartitionsResponse {
            throttle_time_ms: 4,
            results: vec![message!(create_partitions_response::CreatePartitionsTopicResult {
                name: text("orders"),
                error_code: 37,
                error_message: Some(text("it has 4 partitions already")),
            })],
        })
        .into(),
        ApiKey::ElectLeaders => message!(ElectLeadersResponse {
            throttle_time_ms: 4,
            error_code: since(version, 1, 31),
            replica_election_results: vec![message!(elect_leaders_response::ReplicaElectionResult {
                topic: text("orders"),
                partition_result: vec![message!(elect_leaders_response::PartitionResult {
                    partition_id: 3,
                    error_code: 84,
                    error_message: Some(text("it leads already")),
                })],
            })],
        })
        .into(),
        ApiKey::IncrementalAlterConfigs => message!(IncrementalAlterConfigsResponse {
            throttle_time_ms: 4,
            responses: vec![message!(incremental_alter_configs_response::AlterConfigsResourceResponse {
                error_code: 40,
                error_message: Some(text("log.retention.ms must be a whole number")),
                resource_type: 4,
                resource_name: text("1"),
            })],
        })
        .into(),
        ApiKey::DescribeQuorum => describe_quorum_response(version).into(),
        ApiKey::UnregisterBroker => message!(UnregisterBrokerResponse {
            throttle_time_ms: 4,
            error_code: 102,
            error_message: Some(text("broker 3 is not registered")),
        })
        .into(),
        ApiKey::DescribeTopicPartitions => describe_topic_partitions_response().into(),
    }
}

fn describe_configs_response(version: i16) -> DescribeConfigsResponse {
    let mut config = message!(describe_configs_response::DescribeConfigsResourceResult {
        name: text("retention.ms"),
        value: Some(text("60000")),
        read_only: true,
        config_source: 1,
        is_sensitive: true,
        synonyms: vec![message!(describe_configs_response::DescribeConfigsSynonym {
            name: text("log.retention.ms"),
            value: Some(text("604800000")),
            source: 5,
        })],
    });
    if version >= 3 {
        config.config_type = 5;
        config.documentation = Some(text("How long a segment stays."));
    }
    message!(DescribeConfigsResponse {
        throttle_time_ms: 4,
        results: vec![message!(describe_configs_response::DescribeConfigsResult {
            error_code: 3,
            error_message: Some(text("no such topic")),
            resource_type: 2,
            resource_name: text("orders"),
            configs: vec![config],
        })],
    })
}

fn describe_log_dirs_response(version: i16) -> DescribeLogDirsResponse {
    let mut dir = message!(describe_log_dirs_response::DescribeLogDirsResult {
        error_code: 56,
        log_dir: text("/data"),
        topics: vec![message!(describe_log_dirs_response::DescribeLogDirsTopic {
            name: text("orders"),
            partitions: vec![message!(describe_log_dirs_response::DescribeLogDirsPartition {
                partition_index: 3,
                partition_size: 1 << 40,
                offset_lag: 17,
                is_future_key: true,
            })],
        })],
    });
    if version >= 4 {
        (dir.total_bytes, dir.usable_bytes) = (1 << 42, 1 << 41);
    }
    message!(DescribeLogDirsResponse { throttle_time_ms: 4, error_code: since(version, 3, 31), results: vec![dir] })
}

fn describe_quorum_response(version: i16) -> DescribeQuorumResponse {
    let replica = |id: i32| {
        let mut replica = message!(describe_quorum_response::ReplicaState { replica_id: id, log_end_offset: 1_000 });
        if version >= 1 {
            (replica.last_fetch_timestamp, replica.last_caught_up_timestamp) = (1_700_000_000_007, 1_700_000_000_000);
        }
        if version >= 2 {
            replica.replica_directory_id = TOPIC_ID.into();
        }
        replica
    };
    let node = message!(describe_quorum_response::Node {
        node_id: 1,
        listeners: vec![message!(describe_quorum_response::Listener {
            name: text("CONTROLLER"),
            host: text("localhost"),
            port: 9_093,
        })],
    });
    message!(DescribeQuorumResponse {
        error_code: 41,
        error_message: Some(text(if version >= 2 { "no leader" } else { "" })),
        topics: vec![message!(describe_quorum_response::TopicData {
            topic_name: text("__cluster_metadata"),
            partitions: vec![message!(describe_quorum_response::PartitionData {
                partition_index: 1,
                error_code: 3,
                error_message: Some(text(if version >= 2 { "there is only partition 0" } else { "" })),
                leader_id: 1,
                leader_epoch: 7,
                high_watermark: 1_000,
                current_voters: vec![replica(1), replica(2)],
                observers: vec![replica(4)],
            })],
        })],
        nodes: since(version, 2, vec![node]),
    })
}

fn describe_topic_partitions_response() -> DescribeTopicPartitionsResponse {
    message!(DescribeTopicPartitionsResponse {
        throttle_time_ms: 4,
        topics: vec![message!(describe_topic_partitions_response::DescribeTopicPartitionsResponseTopic {
            error_code: 5,
            name: Some(text("orders")),
            topic_id: TOPIC_ID.into(),
            is_internal: true,
            partitions: vec![message!(describe_topic_partitions_response::DescribeTopicPartitionsResponsePartition {
                error_code: 9,
                partition_index: 1,
                leader_id: 2,
                leader_epoch: 9,
                replica_nodes: vec![2, 3, 1],
                isr_nodes: vec![2, 3],
                eligible_leader_replicas: Some(vec![1]),
                last_known_elr: Some(vec![]),
                offline_replicas: vec![1],
            })],
            topic_authorized_operations: 7,
        })],
        next_cursor: Some(message!(describe_topic_partitions_response::Cursor {
            topic_name: text("orders"),
            partition_index: 2,
        })),
    })
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

fn create_topics_response(version: i16) -> CreateTopicsResponse {
    let mut topic = message!(create_topics_response::CreatableTopicResult {
        name: text("orders"),
        error_code: 36,
        error_message: Some(text("it is there already")),
    });
    if version >= 5 {
        topic.topic_config_error_code = 29;
        topic.num_partitions = 12;
        topic.replication_factor = 3;
        topic.configs = Some(vec![message!(create_topics_response::CreatableTopicConfigs {
            name: text("retention.ms"),
            value: Some(text("60000")),
            read_only: true,
            config_source: 1,
            is_sensitive: true,
        })]);
    }
    if version >= 7 {
        topic.topic_id = TOPIC_ID.into();
    }
    message!(CreateTopicsResponse { throttle_time_ms: 4, topics: vec![topic] })
}
