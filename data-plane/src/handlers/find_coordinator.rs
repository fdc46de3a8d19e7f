//! FindCoordinator (10, v0–6): no coordinator exists yet, neither of groups nor of transactions.
//!
//! It is listed, and answered, because librdkafka derives from its presence whether lz4 may be used.

use highwater_wire::ErrorCode;
use kafka_wire::find_coordinator_response::Coordinator;
use kafka_wire::{FindCoordinatorRequest, FindCoordinatorResponse};

const TRANSACTION: i8 = 1;

pub fn handle(version: i16, request: &FindCoordinatorRequest) -> FindCoordinatorResponse {
    let (error, why) = if version >= 1 && request.key_type == TRANSACTION {
        (ErrorCode::TransactionalIdAuthorizationFailed, "this broker serves no transactions")
    } else {
        (ErrorCode::CoordinatorNotAvailable, "this broker coordinates no groups; assign partitions in the consumer")
    };
    let mut response = FindCoordinatorResponse::default();
    if version < 4 {
        response.error_code = error.code();
        if version >= 1 {
            response.error_message = Some(why.into());
        }
        response.node_id = -1;
        response.port = -1;
        return response;
    }
    response.coordinators = request
        .coordinator_keys
        .iter()
        .map(|key| {
            let mut coordinator = Coordinator::default();
            coordinator.key = key.clone();
            coordinator.node_id = -1;
            coordinator.port = -1;
            coordinator.error_code = error.code();
            coordinator.error_message = Some(why.into());
            coordinator
        })
        .collect();
    response
}
