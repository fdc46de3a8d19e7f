//! UnregisterBroker: being built.

use kafka_wire::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: UnregisterBrokerRequest,
) -> UnregisterBrokerResponse {
    UnregisterBrokerResponse::default()
}
