//! DescribeConfigs: being built.

use kafka_wire::{DescribeConfigsRequest, DescribeConfigsResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    DescribeConfigsResponse::default()
}
