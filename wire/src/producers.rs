//! DescribeProducers (61) with what a replica that begins anew needs besides: where each producer's newest batch lies.
//!
//! Kafka's answer has no room for it, so it goes into a tagged field of our own, which clients skip (KIP-482). Without it a
//! replica could not tell the batches that were deleted from those that it is still going to fetch.

use bytes::Bytes;
use kafka_wire::describe_producers_response::ProducerState;
use kafka_wire_core::{TaggedField, TaggedFields};

use crate::Offset;

/// Far above those that Kafka's own fields count up to. Bytes, big-endian: offset i64, delta i32.
const NEWEST_BATCH: u32 = 10_000;

/// Notes that the newest batch ends with the record at `last` and began `delta` offsets before it.
pub fn set_newest_batch(producer: &mut ProducerState, last: Offset, delta: i32) {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&last.0.to_be_bytes());
    bytes[8..].copy_from_slice(&delta.to_be_bytes());
    let field = TaggedField::new(NEWEST_BATCH, Bytes::copy_from_slice(&bytes));
    producer.unknown_tagged_fields = TaggedFields::from_sorted(vec![field]).unwrap_or_default();
}

/// What [`set_newest_batch`] noted; `None` where nobody did, or not in this form.
pub fn newest_batch(producer: &ProducerState) -> Option<(Offset, i32)> {
    let field = producer.unknown_tagged_fields.iter().find(|field| field.tag() == NEWEST_BATCH)?;
    let (last, delta) = field.data().split_first_chunk::<8>()?;
    let delta = i32::from_be_bytes(delta.try_into().ok()?);
    let last = Offset::from_wire(i64::from_be_bytes(*last))?;
    (delta >= 0).then_some((last, delta))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_again_and_anything_else_is_nothing() {
        let mut producer = ProducerState::default();
        assert_eq!(newest_batch(&producer), None);
        set_newest_batch(&mut producer, Offset(1 << 40), 7);
        assert_eq!(newest_batch(&producer), Some((Offset(1 << 40), 7)));
        for bytes in [&[][..], &[0; 11], &[0; 13], &[0xff; 12]] {
            let field = TaggedField::new(NEWEST_BATCH, Bytes::copy_from_slice(bytes));
            producer.unknown_tagged_fields = TaggedFields::from_sorted(vec![field]).unwrap();
            assert_eq!(newest_batch(&producer), None, "{bytes:?}");
        }
    }
}
