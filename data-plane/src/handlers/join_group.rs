//! JoinGroup (11, v0–9): a member asks to be in the next generation of its group, and is answered when that begins.
//!
//! v1 rebalance timeout, v4 a new member is told its id first (KIP-394), v5 static members (KIP-345), v7 protocol type, v8 the
//! reason (KIP-800), v9 "assign nothing" (KIP-814).

use std::sync::Arc;

use highwater_wire::{ErrorCode, Millis};
use kafka_wire::join_group_response::JoinGroupResponseMember;
use kafka_wire::{JoinGroupRequest, JoinGroupResponse};

use super::context::{Caller, Context};
use crate::group::{Answer, JoinRequest, Joined, Protocol};

pub async fn handle(
    context: &Arc<Context>,
    caller: &Caller,
    client_id: &str,
    version: i16,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    let request = question(caller, client_id, version, request);
    let asked = context.coordinators.ask(&context.image(), &request.group, |shard, token, now, out| {
        shard.join(token, &request, now, out);
    });
    let joined = match asked {
        Err(error) => Joined::refused(error, &request.member_id),
        Ok(((), promise)) => match promise.answer().await {
            Some(Answer::Joined(joined)) => joined,
            _ => Joined::refused(ErrorCode::NotCoordinator, &request.member_id),
        },
    };
    answer(version, joined)
}

fn question(caller: &Caller, client_id: &str, version: i16, request: JoinGroupRequest) -> JoinRequest {
    let millis = |span: i32| Millis(u64::try_from(span).unwrap_or(0));
    let instance = request.group_instance_id.map(|id| id.as_str().to_owned());
    let called = instance.as_deref().unwrap_or(client_id);
    JoinRequest {
        group: request.group_id.as_str().to_owned(),
        member_id: request.member_id.as_str().to_owned(),
        fresh_id: format!("{called}-{}", uuid::Uuid::new_v4()),
        instance,
        client_id: client_id.to_owned(),
        client_host: format!("/{}", caller.peer.ip()),
        // Before v1 there was only the session.
        rebalance_timeout: millis(if version >= 1 { request.rebalance_timeout_ms } else { request.session_timeout_ms }),
        session_timeout: millis(request.session_timeout_ms),
        protocol_type: request.protocol_type.as_str().to_owned(),
        protocols: request
            .protocols
            .into_iter()
            // A copy: what is kept must not hold on to the buffer that was read into.
            .map(|protocol| Protocol {
                name: protocol.name.as_str().to_owned(),
                metadata: bytes::Bytes::copy_from_slice(&protocol.metadata),
            })
            .collect(),
        requires_known_id: version >= 4,
        skips_assignment: version >= 9,
        reason: request.reason.map(|reason| reason.as_str().to_owned()).unwrap_or_default(),
    }
}

fn answer(version: i16, joined: Joined) -> JoinGroupResponse {
    let mut response = JoinGroupResponse::default();
    response.error_code = joined.error.code();
    response.generation_id = joined.generation;
    if version >= 7 {
        response.protocol_type = joined.protocol_type.map(Into::into);
        response.protocol_name = joined.protocol.map(Into::into);
    } else {
        response.protocol_name = Some(joined.protocol.unwrap_or_default().into());
    }
    response.leader = joined.leader.into();
    if version >= 9 {
        response.skip_assignment = joined.skip_assignment;
    }
    response.member_id = joined.member_id.into();
    response.members = joined
        .members
        .into_iter()
        .map(|member| {
            let mut told = JoinGroupResponseMember::default();
            told.member_id = member.member_id.into();
            if version >= 5 {
                told.group_instance_id = member.instance.map(Into::into);
            }
            told.metadata = member.metadata;
            told
        })
        .collect();
    response
}
