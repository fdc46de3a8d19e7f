//! ElectLeaders: being built.

use kafka_wire::{ElectLeadersRequest, ElectLeadersResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    ElectLeadersResponse::default()
}
