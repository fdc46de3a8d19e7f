//! The words of the Kafka protocol: ids, epochs, offsets, errors, frames, messages, record batches.
//!
//! Everything here is pure: no IO, no clock, no randomness (new random ids are the one exception, in `ids.rs`).

pub mod epoch;
pub mod error_code;
pub mod ids;
pub mod offset;
pub mod time;

pub use epoch::{BrokerEpoch, LeaderEpoch, PartitionEpoch, ProducerEpoch};
pub use error_code::ErrorCode;
pub use ids::{BrokerId, ClusterId, DirectoryId, IncarnationId, ProducerId, TopicId, TopicPartition};
pub use offset::Offset;
pub use time::{Millis, Timestamp};
