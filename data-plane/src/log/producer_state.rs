//! placeholder
use highwater_wire::{Offset, ProducerEpoch, Timestamp};

/// What an idempotent producer's batch is to the log (R58–R61).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProducerCheck {
    /// It continues what was written, or has no producer: append it.
    Fresh,
    /// It is one of the last five, appended before: answer with where it went (R58).
    Duplicate {
        base: Offset,
        /// Inclusive.
        last: Offset,
        /// The time answered then.
        timestamp: Timestamp,
    },
}

/// Why an idempotent producer's batch may not be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProducerRefusal {
    /// `INVALID_PRODUCER_EPOCH` 47 (R59).
    #[error("producer epoch {given} is behind {current}")]
    StaleEpoch { given: ProducerEpoch, current: ProducerEpoch },
    /// `OUT_OF_ORDER_SEQUENCE_NUMBER` 45 (R59, R60).
    #[error("sequence {given} does not follow: expected {expected}")]
    OutOfOrder { given: i32, expected: i32 },
}
