//! DeleteGroups (42, v0–2): groups without members are forgotten with all that they committed.

use std::sync::Arc;

use futures::future::join_all;
use kafka_wire::delete_groups_response::DeletableGroupResult;
use kafka_wire::{DeleteGroupsRequest, DeleteGroupsResponse};

use super::context::Context;
use super::offset_commit::{STORE_TIMEOUT, stored};

pub async fn handle(context: &Arc<Context>, request: DeleteGroupsRequest) -> DeleteGroupsResponse {
    let image = context.image();
    let deletions = request.groups_names.into_iter().map(|name| {
        let asked = context
            .coordinators
            .ask(&image, name.as_str(), |shard, token, _, out| shard.delete(token, name.as_str(), out));
        async move {
            let deleted = match asked {
                Err(error) | Ok((Err(error), _)) => Err(error),
                Ok((Ok(()), promise)) => stored(promise.within(STORE_TIMEOUT).await),
            };
            let mut told = DeletableGroupResult::default();
            told.group_id = name;
            told.error_code = deleted.err().map_or(0, |error| error.code());
            told
        }
    });
    let mut response = DeleteGroupsResponse::default();
    response.results = join_all(deletions).await;
    response
}
