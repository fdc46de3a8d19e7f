//! The words of the Kafka protocol: ids, epochs, offsets, errors, frames, messages, record batches.
//!
//! Everything here is pure: no IO, no clock, no randomness (new random ids are the one exception, in `ids.rs`).

pub mod batch;
pub mod compression;
pub mod epoch;
pub mod error_code;
pub mod ids;
pub mod offset;
pub mod records;
pub mod time;

pub use batch::{BatchError, BatchHeader, BatchIter, RecordBatch};
pub use compression::Codec;
pub use epoch::{BrokerEpoch, LeaderEpoch, PartitionEpoch, ProducerEpoch};
pub use error_code::ErrorCode;
pub use ids::{BrokerId, ClusterId, DirectoryId, IncarnationId, ProducerId, TopicId, TopicPartition};
pub use offset::Offset;
pub use records::{Record, RecordBatchBuilder, Records};
pub use time::{Millis, Timestamp};
