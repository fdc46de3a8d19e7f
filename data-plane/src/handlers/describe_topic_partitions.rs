//! DescribeTopicPartitions: being built.

use kafka_wire::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};

use super::context::{Caller, Context};

pub async fn handle(
    _context: &Context,
    _caller: &Caller,
    _version: i16,
    _request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    DescribeTopicPartitionsResponse::default()
}
