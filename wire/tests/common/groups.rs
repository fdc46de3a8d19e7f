//! Samples of what consumer groups say.

use super::*;

/// The sample of a request; `None`: not one of these.
pub fn request(api: ApiKey, version: i16) -> Option<Request> {
    Some(match api {
        ApiKey::JoinGroup => message!(JoinGroupRequest {
            group_id: text("billing"),
            session_timeout_ms: 45_000,
            rebalance_timeout_ms: if version >= 1 { 300_000 } else { -1 },
            member_id: text("reader-1"),
            group_instance_id: since(version, 5, Some(text("host-1"))),
            protocol_type: text("consumer"),
            protocols: vec![message!(join_group_request::JoinGroupRequestProtocol {
                name: text("range"),
                metadata: Bytes::from_static(&[0, 1, 2]),
            })],
            reason: since(version, 8, Some(text("rejoining"))),
        })
        .into(),
        ApiKey::SyncGroup => message!(SyncGroupRequest {
            group_id: text("billing"),
            generation_id: 7,
            member_id: text("reader-1"),
            group_instance_id: since(version, 3, Some(text("host-1"))),
            protocol_type: since(version, 5, Some(text("consumer"))),
            protocol_name: since(version, 5, Some(text("range"))),
            assignments: vec![message!(sync_group_request::SyncGroupRequestAssignment {
                member_id: text("reader-2"),
                assignment: Bytes::from_static(&[0, 0, 9]),
            })],
        })
        .into(),
        ApiKey::Heartbeat => message!(HeartbeatRequest {
            group_id: text("billing"),
            generation_id: 7,
            member_id: text("reader-1"),
            group_instance_id: since(version, 3, Some(text("host-1"))),
        })
        .into(),
        ApiKey::LeaveGroup => message!(LeaveGroupRequest {
            group_id: text("billing"),
            member_id: if version < 3 { text("reader-1") } else { text("") },
            members: since(
                version,
                3,
                vec![message!(leave_group_request::MemberIdentity {
                    member_id: text("reader-1"),
                    group_instance_id: Some(text("host-1")),
                    reason: since(version, 5, Some(text("closing"))),
                })]
            ),
        })
        .into(),
        ApiKey::OffsetCommit => message!(OffsetCommitRequest {
            group_id: text("billing"),
            generation_id_or_member_epoch: 7,
            member_id: text("reader-1"),
            group_instance_id: since(version, 7, Some(text("host-1"))),
            retention_time_ms: if version <= 4 { 60_000 } else { -1 },
            topics: vec![message!(offset_commit_request::OffsetCommitRequestTopic {
                name: text("orders"),
                partitions: vec![message!(offset_commit_request::OffsetCommitRequestPartition {
                    partition_index: 3,
                    committed_offset: 55,
                    committed_leader_epoch: if version >= 6 { 4 } else { -1 },
                    committed_metadata: Some(text("m")),
                })],
            })],
        })
        .into(),
        ApiKey::OffsetFetch if version >= 8 => message!(OffsetFetchRequest {
            groups: vec![message!(offset_fetch_request::OffsetFetchRequestGroup {
                group_id: text("billing"),
                member_id: since(version, 9, Some(text("reader-1"))),
                member_epoch: if version >= 9 { 5 } else { -1 },
                topics: Some(vec![message!(offset_fetch_request::OffsetFetchRequestTopics {
                    name: text("orders"),
                    partition_indexes: vec![0, 3],
                })]),
            })],
            require_stable: true,
        })
        .into(),
        ApiKey::OffsetFetch => message!(OffsetFetchRequest {
            group_id: text("billing"),
            topics: if version == 2 {
                None
            } else {
                Some(vec![message!(offset_fetch_request::OffsetFetchRequestTopic {
                    name: text("orders"),
                    partition_indexes: vec![0, 3],
                })])
            },
            require_stable: since(version, 7, true),
        })
        .into(),
        ApiKey::OffsetDelete => message!(OffsetDeleteRequest {
            group_id: text("billing"),
            topics: vec![message!(offset_delete_request::OffsetDeleteRequestTopic {
                name: text("orders"),
                partitions: vec![message!(offset_delete_request::OffsetDeleteRequestPartition { partition_index: 3 })],
            })],
        })
        .into(),
        ApiKey::DescribeGroups => message!(DescribeGroupsRequest {
            groups: vec![text("billing"), text("audit")],
            include_authorized_operations: since(version, 3, true),
        })
        .into(),
        ApiKey::ListGroups => message!(ListGroupsRequest {
            states_filter: since(version, 4, vec![text("Stable")]),
            types_filter: since(version, 5, vec![text("classic")]),
        })
        .into(),
        ApiKey::DeleteGroups => message!(DeleteGroupsRequest { groups_names: vec![text("billing")] }).into(),
        _ => return None,
    })
}

/// The sample of a response; `None`: not one of these.
pub fn response(api: ApiKey, version: i16) -> Option<Response> {
    Some(match api {
        ApiKey::JoinGroup => message!(JoinGroupResponse {
            throttle_time_ms: since(version, 2, 4),
            generation_id: 7,
            protocol_type: since(version, 7, Some(text("consumer"))),
            protocol_name: Some(text("range")),
            leader: text("reader-1"),
            skip_assignment: since(version, 9, true),
            member_id: text("reader-1"),
            members: vec![message!(join_group_response::JoinGroupResponseMember {
                member_id: text("reader-1"),
                group_instance_id: since(version, 5, Some(text("host-1"))),
                metadata: Bytes::from_static(&[0, 1, 2]),
            })],
        })
        .into(),
        ApiKey::SyncGroup => message!(SyncGroupResponse {
            throttle_time_ms: since(version, 1, 4),
            protocol_type: since(version, 5, Some(text("consumer"))),
            protocol_name: since(version, 5, Some(text("range"))),
            assignment: Bytes::from_static(&[0, 0, 9]),
        })
        .into(),
        ApiKey::Heartbeat => {
            message!(HeartbeatResponse { throttle_time_ms: since(version, 1, 4), error_code: 27 }).into()
        }
        ApiKey::LeaveGroup => message!(LeaveGroupResponse {
            throttle_time_ms: since(version, 1, 4),
            members: since(
                version,
                3,
                vec![message!(leave_group_response::MemberResponse {
                    member_id: text("reader-1"),
                    group_instance_id: Some(text("host-1")),
                    error_code: 25,
                })]
            ),
        })
        .into(),
        ApiKey::OffsetCommit => message!(OffsetCommitResponse {
            throttle_time_ms: since(version, 3, 4),
            topics: vec![message!(offset_commit_response::OffsetCommitResponseTopic {
                name: text("orders"),
                partitions: vec![message!(offset_commit_response::OffsetCommitResponsePartition {
                    partition_index: 3,
                    error_code: 12,
                })],
            })],
        })
        .into(),
        ApiKey::OffsetFetch if version >= 8 => message!(OffsetFetchResponse {
            throttle_time_ms: 4,
            groups: vec![message!(offset_fetch_response::OffsetFetchResponseGroup {
                group_id: text("billing"),
                topics: vec![message!(offset_fetch_response::OffsetFetchResponseTopics {
                    name: text("orders"),
                    partitions: vec![message!(offset_fetch_response::OffsetFetchResponsePartitions {
                        partition_index: 3,
                        committed_offset: 55,
                        committed_leader_epoch: 4,
                        metadata: Some(text("m")),
                    })],
                })],
                error_code: 16,
            })],
        })
        .into(),
        ApiKey::OffsetFetch => message!(OffsetFetchResponse {
            throttle_time_ms: since(version, 3, 4),
            topics: vec![message!(offset_fetch_response::OffsetFetchResponseTopic {
                name: text("orders"),
                partitions: vec![message!(offset_fetch_response::OffsetFetchResponsePartition {
                    partition_index: 3,
                    committed_offset: 55,
                    committed_leader_epoch: if version >= 5 { 4 } else { -1 },
                    metadata: Some(text("m")),
                    error_code: 3,
                })],
            })],
            error_code: since(version, 2, 14),
        })
        .into(),
        ApiKey::OffsetDelete => message!(OffsetDeleteResponse {
            error_code: 0,
            throttle_time_ms: 4,
            topics: vec![message!(offset_delete_response::OffsetDeleteResponseTopic {
                name: text("orders"),
                partitions: vec![message!(offset_delete_response::OffsetDeleteResponsePartition {
                    partition_index: 3,
                    error_code: 86,
                })],
            })],
        })
        .into(),
        ApiKey::DescribeGroups => message!(DescribeGroupsResponse {
            throttle_time_ms: since(version, 1, 4),
            groups: vec![message!(describe_groups_response::DescribedGroup {
                error_message: since(version, 6, Some(text("why"))),
                group_id: text("billing"),
                group_state: text("Stable"),
                protocol_type: text("consumer"),
                protocol_data: text("range"),
                members: vec![message!(describe_groups_response::DescribedGroupMember {
                    member_id: text("reader-1"),
                    group_instance_id: since(version, 4, Some(text("host-1"))),
                    client_id: text("reader"),
                    client_host: text("/127.0.0.1"),
                    member_metadata: Bytes::from_static(&[0, 1, 2]),
                    member_assignment: Bytes::from_static(&[0, 0, 9]),
                })],
                authorized_operations: if version >= 3 { 264 } else { i32::MIN },
            })],
        })
        .into(),
        ApiKey::ListGroups => message!(ListGroupsResponse {
            throttle_time_ms: since(version, 1, 4),
            error_code: 0,
            groups: vec![message!(list_groups_response::ListedGroup {
                group_id: text("billing"),
                protocol_type: text("consumer"),
                group_state: since(version, 4, text("Stable")),
                group_type: since(version, 5, text("Classic")),
            })],
        })
        .into(),
        ApiKey::DeleteGroups => message!(DeleteGroupsResponse {
            throttle_time_ms: 4,
            results: vec![message!(delete_groups_response::DeletableGroupResult {
                group_id: text("billing"),
                error_code: 68,
            })],
        })
        .into(),
        _ => return None,
    })
}
