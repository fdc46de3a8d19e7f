//! SyncGroup (14, v0–5): the leader says who does what, and every member takes its part. v3 static members, v5 the protocol,
//! which must be the group's.

use std::sync::Arc;

use bytes::Bytes;
use highwater_wire::ErrorCode;
use kafka_wire::{SyncGroupRequest, SyncGroupResponse};

use super::context::Context;
use crate::group::{Answer, Speaker, SyncRequest, Synced};

pub async fn handle(context: &Arc<Context>, version: i16, request: SyncGroupRequest) -> SyncGroupResponse {
    let text = |text: highwater_wire::StrBytes| text.as_str().to_owned();
    let request = SyncRequest {
        group: text(request.group_id),
        speaker: Speaker {
            member_id: text(request.member_id),
            instance: request.group_instance_id.map(text),
            generation: request.generation_id,
        },
        protocol_type: request.protocol_type.map(text),
        protocol: request.protocol_name.map(text),
        assignments: request
            .assignments
            .into_iter()
            .map(|given| (text(given.member_id), Bytes::copy_from_slice(&given.assignment)))
            .collect(),
    };
    let asked = context.coordinators.ask(&context.image(), &request.group, |shard, token, now, out| {
        shard.sync(token, &request, now, out);
    });
    let synced = match asked {
        Err(error) => Synced::refused(error),
        Ok(((), promise)) => match promise.answer().await {
            Some(Answer::Synced(synced)) => synced,
            _ => Synced::refused(ErrorCode::NotCoordinator),
        },
    };
    let mut response = SyncGroupResponse::default();
    response.error_code = synced.error.code();
    if version >= 5 {
        response.protocol_type = synced.protocol_type.map(Into::into);
        response.protocol_name = synced.protocol.map(Into::into);
    }
    response.assignment = synced.assignment;
    response
}
