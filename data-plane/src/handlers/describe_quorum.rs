//! DescribeQuorum: being built.

use kafka_wire::{DescribeQuorumRequest, DescribeQuorumResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    DescribeQuorumResponse::default()
}
