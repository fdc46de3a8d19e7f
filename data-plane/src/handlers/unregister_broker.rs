//! UnregisterBroker (64, v0): forgets a broker that takes no part any more (R176).
//!
//! Unlike Kafka's controllers, the quorum refuses it while the broker lives (42): it would only register again. Its
//! replicas stay assigned; over HTTP that is refused, as a broker that still owns some is easily missed there.

use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::context::Context;
use super::create_topics::{CREATE_TIMEOUT, explain};
use super::named::message;

pub async fn handle(context: &Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse {
    let mut response = UnregisterBrokerResponse::default();
    if let Err(error) = context.quorum.unregister_broker(BrokerId(request.broker_id), CREATE_TIMEOUT).await {
        response.error_code = ErrorCode::from(&error).code();
        response.error_message = message(&explain(&error));
    }
    response
}
