//! AlterConfigs: being built.

use kafka_wire::{AlterConfigsRequest, AlterConfigsResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    AlterConfigsResponse::default()
}
