//! DescribeCluster (60, v0–2): the brokers that can be reached by the caller's listener; fenced ones too if asked (v2).

use highwater_wire::ErrorCode;
use kafka_wire::describe_cluster_response::DescribeClusterBroker;
use kafka_wire::{DescribeClusterRequest, DescribeClusterResponse};
use kafka_wire_core::StrBytes;

use super::context::{Caller, Context, is_live};
use super::metadata::controller;

/// What this listener serves (KIP-919): brokers, not controllers.
const BROKERS: i8 = 1;

pub fn handle(
    context: &Context,
    caller: &Caller,
    version: i16,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let image = context.image();
    let mut response = DescribeClusterResponse::default();
    response.cluster_id = context.cluster_id.as_str().into();
    if version >= 1 && request.endpoint_type != BROKERS {
        response.error_code = ErrorCode::MismatchedEndpointType.code();
        response.error_message = Some("this listener belongs to a broker; ask for endpoint type 1".into());
        return response;
    }
    let with_fenced = version >= 2 && request.include_fenced_brokers;
    let told = image.brokers.values().filter(|broker| with_fenced || is_live(broker));
    response.brokers = told
        .filter_map(|broker| {
            let endpoint = broker.listeners.get(&*caller.listener)?;
            let mut told = DescribeClusterBroker::default();
            told.broker_id = broker.id.0;
            told.host = endpoint.host.as_str().into();
            told.port = i32::from(endpoint.port);
            told.rack = broker.rack.as_deref().map(StrBytes::from);
            if version >= 2 {
                told.is_fenced = !is_live(broker);
            }
            Some(told)
        })
        .collect();
    response.controller_id = controller(context, &image, caller);
    response
}
