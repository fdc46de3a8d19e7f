//! One call of the admin API, and what its failures mean for the exit code.

use std::time::Duration;

use serde_json::Value;

use super::{CliError, Exit};

/// A node's admin API.
pub(super) struct Api {
    client: reqwest::Client,
    url: String,
}

impl Api {
    pub(super) fn new(url: &str) -> Result<Self, CliError> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(2))
            .timeout(Duration::from_secs(15))
            .build()
            .map_err(|error| CliError::new(Exit::Failed, format!("no HTTP client: {error}")))?;
        let url = url.trim_end_matches('/');
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        Ok(Self { client, url })
    }

    /// GET below the cluster, with query parameters.
    pub(super) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, CliError> {
        let url = format!("{}/v3/clusters/-{path}{}", self.url, query_string(query));
        let answer = self.client.get(&url).send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.map_err(|error| {
            CliError::new(Exit::Failed, format!("{url} did not answer with JSON ({error}): is it a Highwater node?"))
        })?;
        if (200..300).contains(&status) {
            return Ok(body);
        }
        let said = body["message"].as_str().unwrap_or("no reason given");
        Err(CliError::new(exit_of(status), format!("{said} (HTTP {status}, error_code {})", body["error_code"])))
    }

    fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let why = if error.is_timeout() { "did not answer in time" } else { "cannot be reached" };
        let message = format!("{} {why}: name another node with --url or HIGHWATER_URL", self.url);
        CliError::new(Exit::Unreachable, message)
    }
}

fn exit_of(status: u16) -> Exit {
    match status {
        400 | 422 => Exit::Usage,
        401 | 403 => Exit::NotAuthorised,
        404 => Exit::NotFound,
        409 => Exit::Conflict,
        408 | 503 | 504 => Exit::Unreachable,
        _ => Exit::Failed,
    }
}

fn query_string(query: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in query {
        out.push(if out.is_empty() { '?' } else { '&' });
        out.push_str(name);
        out.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b',' | b'*' => {
                    out.push(byte.into());
                }
                _ => out.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_are_encoded() {
        assert_eq!(query_string(&[("since", "-1h"), ("x", "a b&c")]), "?since=-1h&x=a%20b%26c");
    }

    #[test]
    fn statuses_become_exit_codes() {
        assert_eq!(exit_of(404), Exit::NotFound);
        assert_eq!(exit_of(503), Exit::Unreachable);
        assert_eq!(exit_of(500), Exit::Failed);
    }
}
