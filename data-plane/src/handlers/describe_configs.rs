//! DescribeConfigs (32, v1–4): every key of a topic or a broker with its value, where that comes from, and what would be
//! in force without it.
//!
//! A broker describes itself, and under an empty name what is set on all brokers, as Kafka's do; asked for another one
//! it answers 42, since only that one knows its own file. v3 adds types and documentation.

use std::sync::Arc;

use highwater_quorum::MetadataImage;
use highwater_quorum::controller::ConfigResource;
use highwater_quorum::settings::{Setting, of_all_brokers, of_broker, of_topic};
use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::describe_configs_request::DescribeConfigsResource;
use kafka_wire::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_wire::{DescribeConfigsRequest, DescribeConfigsResponse};

use super::broker_loggers;
use super::configs::{BROKER_LOGGER, resource};
use super::context::Context;
use super::named::{Fault, message};

pub async fn handle(context: &Context, version: i16, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    let image = context.image();
    let describe = |asked: &DescribeConfigsResource| {
        let mut told = DescribeConfigsResult::default();
        told.resource_type = asked.resource_type;
        told.resource_name = asked.resource_name.clone();
        told.error_message = None;
        let keys = asked.configuration_keys.as_deref().filter(|keys| !keys.is_empty());
        let wanted = |name: &str| keys.is_none_or(|keys| keys.iter().any(|key| key.as_str() == name));
        let entries = match asked.resource_type {
            BROKER_LOGGER => broker_loggers::describe(context, asked.resource_name.as_str()),
            _ => settings(context, &image, asked)
                .map(|settings| settings.iter().map(|setting| entry(&request, version, setting)).collect()),
        };
        match entries {
            Ok(entries) => {
                told.configs = entries.into_iter().filter(|entry| wanted(entry.name.as_str())).collect();
            }
            Err((code, why)) => {
                told.error_code = code.code();
                told.error_message = message(&why);
            }
        }
        told
    };
    let mut response = DescribeConfigsResponse::default();
    response.results = request.resources.iter().map(describe).collect();
    response
}

fn settings(
    context: &Context,
    image: &Arc<MetadataImage>,
    asked: &DescribeConfigsResource,
) -> Result<Vec<Setting>, Fault> {
    let me: BrokerId = context.identity.broker;
    match resource(image, asked.resource_type, asked.resource_name.as_str())? {
        ConfigResource::Topic(id) => Ok(image.topics.get(&id).map(|topic| of_topic(image, topic)).unwrap_or_default()),
        ConfigResource::Brokers => Ok(of_all_brokers(image, &context.settings)),
        ConfigResource::Broker(id) if id == me => Ok(of_broker(image, me, &context.settings)),
        ConfigResource::Broker(id) => {
            let why = format!(
                "unexpected broker id, expected {me} or an empty name, but received {id}: ask broker {id} itself"
            );
            Err((ErrorCode::InvalidRequest, why))
        }
    }
}

fn entry(request: &DescribeConfigsRequest, version: i16, setting: &Setting) -> DescribeConfigsResourceResult {
    let mut told = DescribeConfigsResourceResult::default();
    told.name = setting.name.clone().into();
    told.value = setting.value().map(|value| value.to_owned().into());
    told.read_only = setting.read_only;
    told.config_source = setting.source().code();
    if request.include_synonyms {
        let synonym = |synonym: &highwater_quorum::settings::Synonym| {
            let mut told = DescribeConfigsSynonym::default();
            told.name = synonym.name.clone().into();
            told.value = synonym.value.clone().map(Into::into);
            told.source = synonym.source.code();
            told
        };
        told.synonyms = setting.synonyms.iter().map(synonym).collect();
    }
    if version >= 3 {
        told.config_type = setting.kind.code();
        told.documentation = request.include_documentation.then(|| setting.doc.clone().into());
    }
    told
}
