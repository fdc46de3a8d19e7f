//! From the body of a change to what the quorum is asked.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::ConfigChange;
use highwater_quorum::controller::{ConfigAction, ConfigOperation, ConfigResource};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::AdminState;
use crate::error::ApiError;
use crate::respond::Read;
use crate::routes::Failure;

/// What a change may answer beside the usual.
pub(super) const FAILURES: &[Failure] = &[(409, 40911, "If-Match names another configuration than the present one")];

/// The body of `configs:alter`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AlterBody {
    data: Vec<OperationBody>,
    /// Check all, change nothing.
    #[serde(default)]
    pub validate_only: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OperationBody {
    name: String,
    value: Option<String>,
    /// SET without it.
    operation: Option<OperationName>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum OperationName {
    Set,
    Delete,
    /// Adds to a list.
    Append,
    /// Takes from a list.
    Subtract,
}

/// An example of the body.
pub(super) fn example(name: &str, value: &str) -> Value {
    json!({ "data": [{ "name": name, "value": value }] })
}

impl AlterBody {
    /// What is to be done with each key.
    ///
    /// # Errors
    /// 422 for an operation without its value.
    pub fn operations(&self) -> Result<Vec<ConfigOperation>, ApiError> {
        let operation = |body: &OperationBody| {
            let value = || {
                let missing = || ApiError::invalid_payload(format!("{}: value is missing", body.name));
                body.value.clone().ok_or_else(missing)
            };
            let action = match body.operation.unwrap_or(OperationName::Set) {
                OperationName::Set => ConfigAction::Set(value()?),
                OperationName::Delete => ConfigAction::Delete,
                OperationName::Append => ConfigAction::Append(value()?),
                OperationName::Subtract => ConfigAction::Subtract(value()?),
            };
            Ok(ConfigOperation { key: body.name.clone(), action })
        };
        self.data.iter().map(operation).collect()
    }
}

/// One key set or taken back.
pub(super) fn one(name: String, value: Option<String>) -> Vec<ConfigOperation> {
    let action = value.map_or(ConfigAction::Delete, ConfigAction::Set);
    vec![ConfigOperation { key: name, action }]
}

/// The change itself.
pub(super) fn of(resource: ConfigResource, operations: Vec<ConfigOperation>) -> ConfigChange {
    ConfigChange { resource, replace: false, operations, expected: None }
}

/// Makes a change and answers 204 with the metadata that holds it.
pub(super) async fn make(
    admin: &AdminState,
    mut read: Read,
    change: ConfigChange,
    validate_only: bool,
    timeout: Duration,
) -> Result<Response, ApiError> {
    admin.quorum.alter_configs(change, validate_only, timeout).await?;
    read.set_image(admin.quorum.image());
    Ok(read.empty(StatusCode::NO_CONTENT))
}
