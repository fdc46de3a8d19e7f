//! Samples of what administers: topics, configurations, elections, brokers, the quorum.

use super::*;

/// The sample of a request, of every API that `data.rs` has none of.
pub fn request(api: ApiKey, version: i16) -> Request {
    match api {
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
        ApiKey::DescribeProducers => message!(DescribeProducersRequest {
            topics: vec![message!(describe_producers_request::TopicRequest {
                name: text("orders"),
                partition_indexes: vec![0, 3],
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
        ApiKey::Produce
        | ApiKey::Fetch
        | ApiKey::ListOffsets
        | ApiKey::Metadata
        | ApiKey::FindCoordinator
        | ApiKey::ApiVersions
        | ApiKey::InitProducerId
        | ApiKey::OffsetForLeaderEpoch => unreachable!("a sample of data.rs"),
        ApiKey::OffsetCommit
        | ApiKey::OffsetFetch
        | ApiKey::JoinGroup
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::SyncGroup
        | ApiKey::DescribeGroups
        | ApiKey::ListGroups
        | ApiKey::DeleteGroups
        | ApiKey::OffsetDelete => unreachable!("a sample of groups.rs"),
    }
}

/// The sample of a response, of every API that `data.rs` has none of.
pub fn response(api: ApiKey, version: i16) -> Response {
    match api {
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
        ApiKey::DescribeProducers => message!(DescribeProducersResponse {
            throttle_time_ms: 4,
            topics: vec![message!(describe_producers_response::TopicResponse {
                name: text("orders"),
                partitions: vec![message!(describe_producers_response::PartitionResponse {
                    partition_index: 3,
                    error_code: 0,
                    active_producers: vec![message!(describe_producers_response::ProducerState {
                        producer_id: 4_001,
                        producer_epoch: 2,
                        last_sequence: 17,
                        last_timestamp: 1_700_000_000_000,
                        coordinator_epoch: -1,
                        current_txn_start_offset: -1,
                    })],
                })],
            })],
        })
        .into(),
        ApiKey::UnregisterBroker => message!(UnregisterBrokerResponse {
            throttle_time_ms: 4,
            error_code: 102,
            error_message: Some(text("broker 3 is not registered")),
        })
        .into(),
        ApiKey::DescribeTopicPartitions => describe_topic_partitions_response().into(),
        ApiKey::Produce
        | ApiKey::Fetch
        | ApiKey::ListOffsets
        | ApiKey::Metadata
        | ApiKey::FindCoordinator
        | ApiKey::ApiVersions
        | ApiKey::InitProducerId
        | ApiKey::OffsetForLeaderEpoch => unreachable!("a sample of data.rs"),
        ApiKey::OffsetCommit
        | ApiKey::OffsetFetch
        | ApiKey::JoinGroup
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::SyncGroup
        | ApiKey::DescribeGroups
        | ApiKey::ListGroups
        | ApiKey::DeleteGroups
        | ApiKey::OffsetDelete => unreachable!("a sample of groups.rs"),
    }
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
