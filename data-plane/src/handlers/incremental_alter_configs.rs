//! IncrementalAlterConfigs: being built.

use kafka_wire::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    IncrementalAlterConfigsResponse::default()
}
