//! InitProducerId (22, v0–5): a producer id of its own for each idempotent producer (R67).
//!
//! Ids come from the quorum in blocks; a block belongs to this process and is never given back. Without a transactional
//! id the id and epoch that a client may offer (v3) are ignored: it simply gets a fresh one. Transactions: 53.

use std::ops::Range;

use highwater_quorum::{QuorumClient, QuorumError};
use highwater_wire::ErrorCode;
use kafka_wire::{InitProducerIdRequest, InitProducerIdResponse};

use super::context::Context;
use crate::identity::Identity;

/// The block in use.
#[derive(Default)]
pub struct ProducerIds {
    block: tokio::sync::Mutex<Range<i64>>,
}

impl ProducerIds {
    /// The next id; asks the quorum for a block when the last one is used up.
    async fn next(&self, quorum: &QuorumClient, identity: &Identity) -> Result<i64, QuorumError> {
        let mut block = self.block.lock().await;
        if let Some(id) = block.next() {
            return Ok(id);
        }
        let epoch = identity.epoch().ok_or_else(|| QuorumError::Stopped("this broker is not registered".to_owned()))?;
        *block = quorum.allocate_producer_ids(identity.broker, epoch).await?;
        block.next().ok_or_else(|| QuorumError::Stopped("an empty block of producer ids".to_owned()))
    }
}

pub async fn handle(context: &Context, request: &InitProducerIdRequest) -> InitProducerIdResponse {
    let mut response = InitProducerIdResponse::default();
    response.producer_id = -1;
    response.producer_epoch = -1;
    if request.transactional_id.is_some() {
        response.error_code = ErrorCode::TransactionalIdAuthorizationFailed.code();
        return response;
    }
    match context.producer_ids.next(&context.quorum, &context.identity).await {
        Ok(id) => {
            response.producer_id = id;
            response.producer_epoch = 0;
        }
        // As Kafka: clients try again on 14, and on nothing that a metadata quorum says.
        Err(_) => response.error_code = ErrorCode::CoordinatorLoadInProgress.code(),
    }
    response
}
