//! IncrementalAlterConfigs (44, v0–1): sets, deletes, appends to and subtracts from single keys (KIP-339). Each resource
//! is changed as a whole or not at all; one that is refused does not touch the others.

use highwater_quorum::ConfigChange;
use highwater_quorum::controller::{ConfigAction, ConfigOperation, ConfigResource};
use highwater_wire::ErrorCode;
use kafka_wire::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_wire::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_wire::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};

use super::broker_loggers;
use super::configs::{BROKER_LOGGER, alter, told};
use super::context::Context;
use super::named::{Fault, each_once, message};

pub async fn handle(context: &Context, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse {
    let (asked, validate_only) = (&request.resources, request.validate_only);
    let name = |asked: &AlterConfigsResource| told(asked.resource_type, asked.resource_name.as_str());
    let altered = each_once(asked, name, |asked| async move {
        match (asked.resource_type, asked.resource_name.as_str()) {
            (BROKER_LOGGER, name) => broker_loggers::alter(context, name, &asked.configs, validate_only),
            (kind, name) => alter(context, kind, name, validate_only, |resource| change(resource, asked)).await,
        }
    });
    let altered = altered.await;
    let mut response = IncrementalAlterConfigsResponse::default();
    response.responses = altered.into_iter().map(|(asked, result)| answer(asked, result)).collect();
    response
}

fn change(resource: ConfigResource, asked: &AlterConfigsResource) -> Result<ConfigChange, Fault> {
    let operations = asked.configs.iter().map(operation).collect::<Result<_, _>>()?;
    Ok(ConfigChange { resource, replace: false, operations, expected: None })
}

fn operation(config: &AlterableConfig) -> Result<ConfigOperation, Fault> {
    let key = config.name.as_str().to_owned();
    let value = || {
        let missing = || (ErrorCode::InvalidRequest, format!("{key} has no value: delete it to take it back"));
        config.value.as_ref().map(|value| value.as_str().to_owned()).ok_or_else(missing)
    };
    let action = match config.config_operation {
        0 => ConfigAction::Set(value()?),
        1 => ConfigAction::Delete,
        2 => ConfigAction::Append(value()?),
        3 => ConfigAction::Subtract(value()?),
        other => {
            let why = format!("{key}: operation {other} is none of 0 (set), 1 (delete), 2 (append), 3 (subtract)");
            return Err((ErrorCode::InvalidRequest, why));
        }
    };
    Ok(ConfigOperation { key, action })
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
