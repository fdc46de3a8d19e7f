//! ListGroups (16, v0–5): the groups that this broker coordinates; a client asks all brokers. v4 by state, v5 by type: here
//! all are `classic`.

use std::sync::Arc;

use kafka_wire::list_groups_response::ListedGroup;
use kafka_wire::{ListGroupsRequest, ListGroupsResponse};

use super::context::Context;

const CLASSIC: &str = "Classic";

pub fn handle(context: &Arc<Context>, version: i16, request: &ListGroupsRequest) -> ListGroupsResponse {
    let named = |filter: &[highwater_wire::StrBytes], name: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.as_str().eq_ignore_ascii_case(name))
    };
    let mut response = ListGroupsResponse::default();
    let listed = context.coordinators.tell_all(|shard| {
        let wanted = shard.groups().filter(|group| named(&request.states_filter, group.state().name()));
        wanted
            .map(|group| {
                let mut told = ListedGroup::default();
                told.group_id = group.id.as_str().into();
                told.protocol_type = group.protocol_type().unwrap_or_default().into();
                if version >= 4 {
                    told.group_state = group.state().name().into();
                }
                if version >= 5 {
                    told.group_type = CLASSIC.into();
                }
                told
            })
            .collect::<Vec<_>>()
    });
    match listed {
        Err(error) => response.error_code = error.code(),
        Ok(listed) if named(&request.types_filter, CLASSIC) => response.groups = listed.into_iter().flatten().collect(),
        Ok(_) => {}
    }
    response
}
