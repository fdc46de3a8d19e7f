//! DescribeLogDirs: being built.

use kafka_wire::{DescribeLogDirsRequest, DescribeLogDirsResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    DescribeLogDirsResponse::default()
}
