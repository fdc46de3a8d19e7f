//! LeaveGroup (13, v0–5): members leave, or an administrator sends them away (from v3 on several at once, and static ones by
//! their instance alone, KIP-345). v5 the reason (KIP-800).

use std::sync::Arc;

use kafka_wire::leave_group_response::MemberResponse;
use kafka_wire::{LeaveGroupRequest, LeaveGroupResponse};

use super::context::Context;
use crate::group::Leaver;

pub fn handle(context: &Arc<Context>, version: i16, request: &LeaveGroupRequest) -> LeaveGroupResponse {
    let leavers: Vec<Leaver> = if version >= 3 {
        let members = request.members.iter();
        members
            .map(|member| Leaver {
                member_id: member.member_id.as_str().to_owned(),
                instance: member.group_instance_id.as_ref().map(|id| id.as_str().to_owned()),
                reason: member.reason.as_ref().map(|reason| reason.as_str().to_owned()).unwrap_or_default(),
            })
            .collect()
    } else {
        vec![Leaver { member_id: request.member_id.as_str().to_owned(), instance: None, reason: String::new() }]
    };
    let group = request.group_id.as_str();
    let left =
        context.coordinators.tell(&context.image(), group, |shard, now, out| shard.leave(group, &leavers, now, out));
    let mut response = LeaveGroupResponse::default();
    match left.and_then(|left| left) {
        Err(error) => response.error_code = error.code(),
        Ok(left) if version >= 3 => {
            let told = leavers.into_iter().zip(left).map(|(leaver, left)| {
                let mut told = MemberResponse::default();
                told.member_id = leaver.member_id.into();
                told.group_instance_id = leaver.instance.map(Into::into);
                told.error_code = left.err().map_or(0, |error| error.code());
                told
            });
            response.members = told.collect();
        }
        Ok(left) => response.error_code = left.first().and_then(|left| left.err()).map_or(0, |error| error.code()),
    }
    response
}
