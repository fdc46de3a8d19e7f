//! Configurations of topics and brokers with their sources (REST v3): what all of them share. Read and changed in
//! `topics.rs` and `brokers.rs`; what a process works with and which keys there are in `effective.rs`.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use highwater_quorum::settings::{ConfigSource, Setting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::routes::Route;

pub use brokers::{pending_here, pending_restart};

mod brokers;
mod change;
mod effective;
mod topics;

/// The routes of all configurations.
pub fn routes() -> Vec<Route> {
    [topics::routes(), brokers::routes(), effective::routes()].into_iter().flatten().collect()
}

/// What every configuration says of one key.
#[derive(Debug, Serialize, JsonSchema)]
struct ConfigValue {
    name: String,
    value: Option<String>,
    is_default: bool,
    /// It cannot be changed while the cluster runs.
    is_read_only: bool,
    is_sensitive: bool,
    source: Source,
    /// What would be in force without it, nearest first; begins with what is.
    synonyms: Vec<Synonym>,
    // Ours from here on.
    #[serde(rename = "type")]
    kind_of_value: &'static str,
    /// To be read after "must be".
    allowed: String,
    documentation: String,
}

/// Where a value comes from, in Kafka's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
enum Source {
    #[serde(rename = "DYNAMIC_TOPIC_CONFIG")]
    Topic,
    #[serde(rename = "DYNAMIC_BROKER_CONFIG")]
    Broker,
    #[serde(rename = "DYNAMIC_DEFAULT_BROKER_CONFIG")]
    AllBrokers,
    #[serde(rename = "STATIC_BROKER_CONFIG")]
    Static,
    #[serde(rename = "DEFAULT_CONFIG")]
    Default,
}

impl From<ConfigSource> for Source {
    fn from(source: ConfigSource) -> Self {
        match source {
            ConfigSource::Topic => Self::Topic,
            ConfigSource::Broker => Self::Broker,
            ConfigSource::AllBrokers => Self::AllBrokers,
            ConfigSource::Static => Self::Static,
            ConfigSource::Default => Self::Default,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct Synonym {
    name: String,
    value: Option<String>,
    source: Source,
}

impl From<Setting> for ConfigValue {
    fn from(setting: Setting) -> Self {
        let source = Source::from(setting.source());
        let synonym = |synonym: &highwater_quorum::settings::Synonym| Synonym {
            name: synonym.name.clone(),
            value: synonym.value.clone(),
            source: synonym.source.into(),
        };
        Self {
            value: setting.value().map(str::to_owned),
            is_default: source == Source::Default,
            is_read_only: setting.read_only,
            is_sensitive: false,
            source,
            synonyms: setting.synonyms.iter().map(synonym).collect(),
            kind_of_value: setting.kind.name(),
            allowed: setting.allowed,
            documentation: setting.doc,
            name: setting.name,
        }
    }
}

/// The body of `PUT …/configs/{name}`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ValueBody {
    value: Option<String>,
}

impl ValueBody {
    fn value(self) -> Result<String, ApiError> {
        let missing = "value is missing: to take a key back to its default, DELETE it";
        self.value.ok_or_else(|| ApiError::invalid_payload(missing))
    }
}

/// The ETag of what is set on a resource: equal on every node, another one after every change.
fn etag(set: &BTreeMap<String, String>) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for text in set.iter().flat_map(|(key, value)| [key, value]) {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    format!("\"{hash:016x}\"")
}

/// Adds the ETag that `If-Match` of a change is compared with.
fn tagged(mut response: Response, set: &BTreeMap<String, String>) -> Response {
    if let Ok(value) = HeaderValue::from_str(&etag(set)) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

/// What a change may rely on: what is `set` on the resource now, if the caller's `If-Match` says the same.
///
/// # Errors
/// 409/40911 when it says something else.
fn expected(headers: &HeaderMap, set: &BTreeMap<String, String>) -> Result<Option<BTreeMap<String, String>>, ApiError> {
    let given: Vec<&str> = headers.get_all(header::IF_MATCH).iter().filter_map(|value| value.to_str().ok()).collect();
    let mut tags = given.iter().flat_map(|value| value.split(',')).map(str::trim).peekable();
    if tags.peek().is_none() {
        return Ok(None);
    }
    let now = etag(set);
    if tags.any(|tag| tag == "*" || tag == now) {
        return Ok(Some(set.clone()));
    }
    Err(ApiError::stale(format!(
        "the configuration was changed since it was read: its ETag is now {now}; read it again"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_relies_on_another_configuration_is_told_so() {
        let set = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
        let with = |value: &str| HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_str(value).unwrap())]);
        assert_eq!(expected(&HeaderMap::new(), &set), Ok(None));
        assert_eq!(expected(&with(&etag(&set)), &set), Ok(Some(set.clone())));
        assert_eq!(expected(&with(&format!("\"x\", {}", etag(&set))), &set), Ok(Some(set.clone())));
        assert_eq!(expected(&with("*"), &set), Ok(Some(set.clone())));
        let stale = expected(&with(&etag(&BTreeMap::new())), &set).unwrap_err();
        assert_eq!((stale.status.as_u16(), stale.error_code), (409, 40911));
        assert_ne!(
            etag(&BTreeMap::from([("a".to_owned(), "bc".to_owned())])),
            etag(&BTreeMap::from([("ab".to_owned(), "c".to_owned())]))
        );
    }
}
