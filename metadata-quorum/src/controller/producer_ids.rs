//! Blocks of producer ids (R67): one handed out is never handed out again (T12).

use highwater_wire::{BrokerEpoch, BrokerId, ProducerId};

use super::brokers::registered;
use crate::controller::{Answer, Refusal, draft::Draft};
use crate::flaws::{Flaw, planted};
use crate::image::Change;

/// The next block, to a registered broker. A lost answer wastes its block.
pub(super) fn allocate(draft: &mut Draft, broker: BrokerId, epoch: BrokerEpoch, count: u32) -> Result<Answer, Refusal> {
    registered(draft.image, broker, epoch)?;
    let first = draft.image.next_producer_id;
    match first.checked_add(i64::from(count)) {
        Some(next) if count > 0 => {
            if !planted(Flaw::GivesIdsTwice) {
                draft.push(Change::NextProducerId(next));
            }
            Ok(Answer::ProducerIds { first: ProducerId(first), count })
        }
        _ => Err(Refusal::InvalidRequest(format!("a block of {count} producer ids from {first} on cannot be given"))),
    }
}
