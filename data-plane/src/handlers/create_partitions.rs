//! CreatePartitions: being built.

use kafka_wire::{CreatePartitionsRequest, CreatePartitionsResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    CreatePartitionsResponse::default()
}
