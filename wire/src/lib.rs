//! The words of the Kafka protocol: ids, epochs, offsets, errors, frames, messages, record batches.
//!
//! Everything here is pure: no IO, no clock, no randomness (new random ids are the one exception, in `ids.rs`).

pub mod api;
pub mod batch;
pub mod compression;
pub mod epoch;
pub mod error_code;
pub mod fetch;
pub mod frame;
pub mod group_records;
pub mod ids;
pub mod offset;
pub mod produce;
pub mod producers;
pub mod records;
pub mod request;
pub mod response;
pub mod subscription;
pub mod time;

pub use api::ApiKey;
pub use batch::{BatchError, BatchHeader, BatchIter, RecordBatch};
pub use compression::Codec;
pub use epoch::{BrokerEpoch, LeaderEpoch, PartitionEpoch, ProducerEpoch};
pub use error_code::ErrorCode;
pub use fetch::{FetchResponse, FetchedPartition, FetchedTopic};
pub use frame::{Chunks, FrameBuffer, FrameError, FrameLimits};
pub use ids::{BrokerId, ClusterId, DirectoryId, IncarnationId, ProducerId, TopicId, TopicPartition};
/// The generated messages: everything but Produce requests and Fetch answers.
pub use kafka_wire as messages;
pub use kafka_wire_core::{DecodeError, DecodeLimits, EncodeError, StrBytes, Uuid as WireUuid};
pub use offset::Offset;
pub use produce::ProduceRequest;
pub use records::{Record, RecordBatchBuilder, Records};
pub use request::{Request, RequestError, RequestHeader};
pub use response::Response;
pub use time::{Millis, Timestamp};
