//! AlterConfigs (33, v0–2): replaces all that is set on a resource. Keys that are not named go back to their defaults, so
//! IncrementalAlterConfigs is the better way (KIP-339); old tools still send this one.

use highwater_quorum::ConfigChange;
use highwater_quorum::controller::{ConfigAction, ConfigOperation, ConfigResource};
use highwater_wire::ErrorCode;
use kafka_wire::alter_configs_request::AlterConfigsResource;
use kafka_wire::alter_configs_response::AlterConfigsResourceResponse;
use kafka_wire::{AlterConfigsRequest, AlterConfigsResponse};

use super::configs::{alter, told};
use super::context::Context;
use super::named::{Fault, each_once, message};

pub async fn handle(context: &Context, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let name = |asked: &AlterConfigsResource| told(asked.resource_type, asked.resource_name.as_str());
    let altered = each_once(&request.resources, name, |asked| {
        let (kind, name) = (asked.resource_type, asked.resource_name.as_str());
        alter(context, kind, name, request.validate_only, |resource| change(resource, asked))
    });
    let altered = altered.await;
    let mut response = AlterConfigsResponse::default();
    response.responses = altered.into_iter().map(|(asked, result)| answer(asked, result)).collect();
    response
}

fn change(resource: ConfigResource, asked: &AlterConfigsResource) -> Result<ConfigChange, Fault> {
    let operation = |config: &kafka_wire::alter_configs_request::AlterableConfig| {
        let key = config.name.as_str().to_owned();
        let Some(value) = &config.value else {
            let why = format!("{key} has no value: to take it back to its default, leave it out");
            return Err((ErrorCode::InvalidRequest, why));
        };
        Ok(ConfigOperation { key, action: ConfigAction::Set(value.as_str().to_owned()) })
    };
    let operations = asked.configs.iter().map(operation).collect::<Result<_, _>>()?;
    Ok(ConfigChange { resource, replace: true, operations, expected: None })
}

fn answer(asked: &AlterConfigsResource, result: Result<(), Fault>) -> AlterConfigsResourceResponse {
    let mut told = AlterConfigsResourceResponse::default();
    told.resource_type = asked.resource_type;
    told.resource_name = asked.resource_name.clone();
    told.error_message = None;
    if let Err((code, why)) = result {
        told.error_code = code.code();
        told.error_message = message(&why);
    }
    told
}
