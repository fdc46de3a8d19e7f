//! One call of the admin API, and what its failures mean for the exit code.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use super::{CliError, Exit};

/// What is unsafe is a conflict, not a mistake in the command line.
const NOT_CONFIRMED: u32 = 42_210;

/// A node's admin API.
pub(super) struct Api {
    client: reqwest::Client,
    url: String,
}

/// What a write may take: more than its time-out of a minute.
const WRITE_MAX: Duration = Duration::from_secs(65);

/// What every write sends with it.
const WRITE: &[(&str, &str)] = &[("timeout_ms", "60000")];

/// A call that was not done.
#[derive(Debug)]
pub(super) struct Refused {
    error: CliError,
    /// Kafka's name of it, where it has one.
    kafka_error: Option<String>,
}

impl Refused {
    /// Whether it is this error of Kafka's.
    pub(super) fn is(&self, kafka_error: &str) -> bool {
        self.kafka_error.as_deref() == Some(kafka_error)
    }
}

impl From<CliError> for Refused {
    fn from(error: CliError) -> Self {
        Self { error, kafka_error: None }
    }
}

impl From<Refused> for CliError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

impl Api {
    pub(super) fn new(url: &str) -> Result<Self, CliError> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(2))
            .timeout(Duration::from_secs(15))
            .build()
            .map_err(|error| CliError::new(Exit::Failed, format!("no HTTP client: {error}")))?;
        Ok(Self { client, url: base(url) })
    }

    /// GET below the cluster, with query parameters.
    pub(super) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, CliError> {
        self.call(Method::GET, path, query, None).await.map_err(CliError::from)
    }

    /// GET below the cluster, where the caller tells refusals apart.
    pub(super) async fn ask(&self, path: &str) -> Result<Value, Refused> {
        self.call(Method::GET, path, &[], None).await
    }

    /// POST below the cluster.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, Refused> {
        self.call(Method::POST, path, WRITE, Some(body)).await
    }

    /// PATCH below the cluster.
    pub(super) async fn patch(&self, path: &str, body: &Value) -> Result<Value, Refused> {
        self.call(Method::PATCH, path, WRITE, Some(body)).await
    }

    /// DELETE below the cluster.
    pub(super) async fn delete(&self, path: &str) -> Result<Value, Refused> {
        self.call(Method::DELETE, path, WRITE, None).await
    }

    /// Any method below the cluster, with a JSON body or none.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        self.call(method, path, query, body).await.map_err(CliError::from)
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, Refused> {
        let url = format!("{}/v3/clusters/-{path}{}", self.url, query_string(query));
        let mut request = self.client.request(method.clone(), &url);
        if method != Method::GET {
            request = request.timeout(WRITE_MAX);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status().as_u16();
        let not_json = |error: &dyn std::fmt::Display| {
            CliError::new(Exit::Failed, format!("{url} did not answer with JSON ({error}): is it a Highwater node?"))
        };
        let bytes = answer.bytes().await.map_err(|error| not_json(&error))?;
        let body: Value = match bytes.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&bytes).map_err(|error| not_json(&error))?,
        };
        if (200..300).contains(&status) {
            return Ok(body);
        }
        Err(refused(status, &body))
    }

    /// For answers that go on for as long as somebody listens.
    pub(super) fn streaming(url: &str) -> Result<Self, CliError> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(2))
            .build()
            .map_err(|error| CliError::new(Exit::Failed, format!("no HTTP client: {error}")))?;
        Ok(Self { client, url: base(url) })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Opens a stream of events behind an id.
    pub(super) async fn open(&self, target: &str, last: Option<&str>) -> Result<reqwest::Response, CliError> {
        let mut request = self.client.get(format!("{}{target}", self.url));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let sent = tokio::time::timeout(Duration::from_secs(15), request.send()).await;
        let late = |_| CliError::new(Exit::Unreachable, format!("{} did not answer in time", self.url));
        let answer = sent.map_err(late)?.map_err(|error| self.unreachable(&error))?;
        match answer.status().as_u16() {
            200..300 => Ok(answer),
            status => Err(refused(status, &answer.json().await.unwrap_or_default()).error),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let why = if error.is_timeout() { "did not answer in time" } else { "cannot be reached" };
        let message = format!("{} {why}: name another node with --url or HIGHWATER_URL", self.url);
        CliError::new(Exit::Unreachable, message)
    }
}

/// `host:port` is enough.
fn base(url: &str) -> String {
    let url = url.trim_end_matches('/');
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

fn refused(status: u16, body: &Value) -> Refused {
    let said = body["message"].as_str().unwrap_or("no reason given");
    let exit = if body["error_code"] == NOT_CONFIRMED { Exit::Conflict } else { exit_of(status) };
    let said = format!("{said} (HTTP {status}, error_code {})", body["error_code"]);
    let kafka_error = body["details"]["kafka_error"].as_str().map(str::to_owned);
    Refused { error: CliError::new(exit, said), kafka_error }
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

pub(super) fn query_string(query: &[(&str, &str)]) -> String {
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
