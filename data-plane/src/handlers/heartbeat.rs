//! Heartbeat (12, v0–4): a member lives; 27 tells it to join again. v3 static members.

use std::sync::Arc;

use kafka_wire::{HeartbeatRequest, HeartbeatResponse};

use super::context::Context;
use crate::group::Speaker;

pub fn handle(context: &Arc<Context>, request: &HeartbeatRequest) -> HeartbeatResponse {
    let speaker = Speaker {
        member_id: request.member_id.as_str().to_owned(),
        instance: request.group_instance_id.as_ref().map(|id| id.as_str().to_owned()),
        generation: request.generation_id,
    };
    let group = request.group_id.as_str();
    let heard = context
        .coordinators
        .tell(&context.image(), group, |shard, now, out| shard.heartbeat(group, &speaker, now, out));
    let mut response = HeartbeatResponse::default();
    if let Err(error) = heard.and_then(|heard| heard) {
        response.error_code = error.code();
    }
    response
}
