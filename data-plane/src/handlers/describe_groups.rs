//! DescribeGroups (15, v0–6): state, protocol and members. A group that does not exist is "Dead", from v6 on with error 69
//! (KIP-1043).

use std::sync::Arc;

use bytes::Bytes;
use highwater_wire::ErrorCode;
use kafka_wire::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_wire::{DescribeGroupsRequest, DescribeGroupsResponse};

use super::context::Context;
use crate::group::{ClassicGroup, State};

/// Nobody asked what it may do, or nobody knows.
const NO_OPERATIONS: i32 = i32::MIN;

pub fn handle(context: &Arc<Context>, version: i16, request: &DescribeGroupsRequest) -> DescribeGroupsResponse {
    let image = context.image();
    let mut response = DescribeGroupsResponse::default();
    response.groups = request
        .groups
        .iter()
        .map(|name| {
            let described = context.coordinators.tell(&image, name.as_str(), |shard, _, _| {
                shard.group(name.as_str()).map(|group| describe(version, group))
            });
            let mut told = match described {
                Ok(Some(described)) => described,
                Ok(None) => {
                    let mut told = DescribedGroup::default();
                    told.group_state = "Dead".into();
                    if version >= 6 {
                        told.error_code = ErrorCode::GroupIdNotFound.code();
                        told.error_message = Some(format!("group {:?} does not exist", name.as_str()).as_str().into());
                    }
                    told
                }
                Err(error) => {
                    let mut told = DescribedGroup::default();
                    told.error_code = error.code();
                    told
                }
            };
            told.group_id = name.clone();
            told.authorized_operations = NO_OPERATIONS;
            told
        })
        .collect();
    response
}

fn describe(version: i16, group: &ClassicGroup) -> DescribedGroup {
    let mut told = DescribedGroup::default();
    told.group_state = group.state().name().into();
    told.protocol_type = group.protocol_type().unwrap_or_default().into();
    // While members join, nothing is decided.
    let decided = group.state() == State::Stable;
    let protocol = group.protocol().filter(|_| decided);
    told.protocol_data = protocol.unwrap_or_default().into();
    told.members = group
        .members()
        .map(|member| {
            let mut told = DescribedGroupMember::default();
            told.member_id = member.id.as_str().into();
            if version >= 4 {
                told.group_instance_id = member.instance.as_deref().map(Into::into);
            }
            told.client_id = member.client_id.as_str().into();
            told.client_host = member.client_host.as_str().into();
            told.member_metadata = protocol.map(|protocol| member.metadata(protocol)).unwrap_or_default();
            told.member_assignment = if decided { member.assignment.clone() } else { Bytes::new() };
            told
        })
        .collect();
    told
}
