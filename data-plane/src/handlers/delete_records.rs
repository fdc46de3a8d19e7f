//! DeleteRecords: being built.

use kafka_wire::{DeleteRecordsRequest, DeleteRecordsResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    DeleteRecordsResponse::default()
}
