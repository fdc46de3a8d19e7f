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
    if request.transactional_id.is_some() {
        return answer(Err(ErrorCode::TransactionalIdAuthorizationFailed));
    }
    let id = context.producer_ids.next(&context.quorum, &context.identity).await;
    answer(id.map_err(|error| while_the_quorum_is_away(&error)))
}

/// As Kafka: clients try again on 14, and on nothing that a metadata quorum says. A producer of theirs would be dead.
const fn while_the_quorum_is_away(_why: &QuorumError) -> ErrorCode {
    ErrorCode::CoordinatorLoadInProgress
}

fn answer(id: Result<i64, ErrorCode>) -> InitProducerIdResponse {
    let mut response = InitProducerIdResponse::default();
    response.producer_id = id.unwrap_or(-1);
    response.producer_epoch = if id.is_ok() { 0 } else { -1 };
    response.error_code = id.err().map_or(0, ErrorCode::code);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_quorum::controller::Refusal;
    use highwater_wire::BrokerId;

    #[test]
    fn whatever_keeps_the_quorum_from_answering_a_producer_tries_again() {
        for error in [
            QuorumError::NoLeader { why: "it votes".to_owned() },
            QuorumError::TimedOut { after_ms: 2_000 },
            QuorumError::Refused(Refusal::UnknownBroker(BrokerId(1))),
            QuorumError::Stopped("the node stops".to_owned()),
        ] {
            let told = answer(Err(while_the_quorum_is_away(&error)));
            assert_eq!((told.error_code, told.producer_id, told.producer_epoch), (14, -1, -1), "{error}");
        }
        let told = answer(Ok(7));
        assert_eq!((told.error_code, told.producer_id, told.producer_epoch), (0, 7, 0));
    }
}
