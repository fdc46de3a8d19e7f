//! ApiVersions (18, v0–4): what is served here (R301). An unknown version is answered as v0 with 35 (KIP-511), which
//! happens before a request gets here.

use highwater_wire::request::ApiVersionsRequest;
use highwater_wire::response::{ApiVersionsResponse, api_versions};

use super::context::Context;

pub fn handle(_context: &Context, _version: i16) -> ApiVersionsResponse {
    api_versions()
}

/// Name and version of the client's software, from v3 on (KIP-511); what it may not contain is left out.
pub fn software(request: &ApiVersionsRequest) -> Option<String> {
    let name = request.client_software_name.as_str();
    let version = request.client_software_version.as_str();
    let told = |text: &str| -> String {
        text.chars().filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c)).take(64).collect()
    };
    (!name.is_empty()).then(|| format!("{} {}", told(name), told(version)))
}
