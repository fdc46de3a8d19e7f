//! One full sample of every request and answer in every version: each field that the version has differs from its default.

#![allow(dead_code, unused_imports)] // each test file uses its part
use bytes::Bytes;
use highwater_wire::fetch::{AbortedTransaction, CurrentLeader, EpochEnd, NodeEndpoint};
use highwater_wire::produce::{ProducePartition, ProduceTopic};
use highwater_wire::request::*;
use highwater_wire::response::*;
use highwater_wire::*;
use kafka_wire::{
    alter_configs_request, alter_configs_response, api_versions_response, create_partitions_request,
    create_partitions_response, create_topics_request, create_topics_response, delete_groups_response,
    delete_records_request, delete_records_response, delete_topics_request, delete_topics_response,
    describe_cluster_response, describe_configs_request, describe_configs_response, describe_groups_response,
    describe_log_dirs_request, describe_log_dirs_response, describe_producers_request, describe_producers_response,
    describe_quorum_request, describe_quorum_response, describe_topic_partitions_request,
    describe_topic_partitions_response, elect_leaders_request, elect_leaders_response, fetch_request,
    find_coordinator_response, incremental_alter_configs_request, incremental_alter_configs_response,
    join_group_request, join_group_response, leave_group_request, leave_group_response, list_groups_response,
    list_offsets_request, list_offsets_response, metadata_request, metadata_response, offset_commit_request,
    offset_commit_response, offset_delete_request, offset_delete_response, offset_fetch_request, offset_fetch_response,
    offset_for_leader_epoch_request, offset_for_leader_epoch_response, produce_response, sync_group_request,
};

/// A generated message with some fields set; the messages are non-exhaustive, so there is no other way.
macro_rules! message {
    ($type:ty { $($field:ident : $value:expr),* $(,)? }) => {{
        let mut message = <$type>::default();
        $(message.$field = $value;)*
        message
    }};
}

mod admin;
mod data;
mod groups;

pub use data::{fetch_response, produce_request};

pub fn text(text: &str) -> StrBytes {
    StrBytes::from(text)
}
pub const TOPIC_ID: TopicId = TopicId::from_bytes(*b"0123456789abcdef");

pub fn zero_id() -> TopicId {
    TopicId::from_bytes([0; 16])
}

/// The value where the version has the field, else its default.
pub fn since<T: Default>(version: i16, first: i16, value: T) -> T {
    if version >= first { value } else { T::default() }
}

/// One plain batch of two records.
pub fn batch() -> RecordBatch {
    RecordBatchBuilder::new()
        .value(Timestamp(1_700_000_000_000), b"first")
        .record(&Record::new(Timestamp(1_700_000_000_007), Some(b"key"), None))
        .build()
}

pub fn request(api: ApiKey, version: i16) -> Request {
    data::request(api, version)
        .or_else(|| groups::request(api, version))
        .unwrap_or_else(|| admin::request(api, version))
}

pub fn response(api: ApiKey, version: i16) -> Response {
    data::response(api, version)
        .or_else(|| groups::response(api, version))
        .unwrap_or_else(|| admin::response(api, version))
}
