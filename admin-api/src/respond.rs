//! One read: which image answers it, how old that is, and how answers are shaped (links, lists, headers).

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use highwater_quorum::{ImageVersion, MetadataImage};
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::AdminState;
use crate::error::ApiError;
use crate::query::{PageStart, Params};

/// How long a write waits for the quorum unless `timeout_ms` says otherwise.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a read waits for its metadata unless `timeout_ms` says otherwise.
const READ_TIMEOUT: Duration = Duration::from_millis(5_000);

/// What every handler takes of a request besides its path parameters and body.
#[derive(Debug)]
pub struct Call {
    /// `http://host:port` as the caller reached us; empty: use the configured URL.
    host: Option<String>,
    path: String,
    pairs: Vec<(String, String)>,
}

/// The path as it was asked for: a nested router sees it without its prefix.
#[derive(Debug, Clone)]
pub struct FullPath(pub String);

impl FromRequestParts<AdminState> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AdminState) -> Result<Self, ApiError> {
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::malformed(format!("the query string cannot be read: {error}")))?;
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let path = parts.extensions.get::<FullPath>().map_or(parts.uri.path(), |path| &path.0).to_owned();
        Ok(Self { host: host.map(|host| format!("http://{host}")), path, pairs })
    }
}

/// Links and names of things in this cluster.
#[derive(Debug, Clone)]
pub struct Links {
    /// `http://host:port/v3/clusters/C`
    base: String,
    cluster_id: String,
}

/// `{"related": url}`
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Related {
    pub related: String,
}

/// `metadata` of an object.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Metadata {
    #[serde(rename = "self")]
    pub itself: String,
    pub resource_name: String,
}

impl Links {
    /// The cluster these links lead into.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The URL of a path below the cluster; `""` for the cluster itself.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A link to it.
    pub fn related(&self, path: &str) -> Related {
        Related { related: self.url(path) }
    }

    /// `metadata` of the object at `path`; `names`: pairs of its resource name, such as `topic=orders`.
    pub fn metadata(&self, path: &str, names: &[String]) -> Metadata {
        let mut resource_name = format!("crn:///kafka={}", self.cluster_id);
        for name in names {
            resource_name.push('/');
            resource_name.push_str(name);
        }
        Metadata { itself: self.url(path), resource_name }
    }
}

/// A read in progress: the image it answers from and the request's parameters.
pub struct Read {
    pub image: Arc<MetadataImage>,
    pub params: Params,
    pub links: Links,
    age_ms: u64,
    itself: String,
}

/// One row of a list and the key that orders it.
pub struct Row<T> {
    key: String,
    item: T,
}

impl<T> Row<T> {
    /// Text parts order as text, numbers as numbers: use [`number_key`] for them.
    pub fn new(key: &[&str], item: T) -> Self {
        Self { key: key.join("\u{0}"), item }
    }
}

/// A number as part of a key.
pub fn number_key(number: i32) -> String {
    format!("{number:010}")
}

impl Call {
    /// Begins a read under a cluster. `allowed`: the parameters this path knows besides those of every read.
    ///
    /// # Errors
    /// 400 for parameters, 404 for another cluster's id, 503 when the metadata asked for does not come in time.
    pub async fn read(self, admin: &AdminState, cluster: &str, allowed: &[&[&str]]) -> Result<Read, ApiError> {
        let params = Params::new(self.pairs, allowed)?;
        let timeout = params.timeout(READ_TIMEOUT)?;
        let quorum = &admin.quorum;
        let mut image = quorum.image();
        if params.word("consistency", &["local", "linearizable"], "local")? == "linearizable" {
            image = quorum.linearizable(timeout).await.map_err(|error| {
                ApiError::no_raft_leader(format!(
                    "no linearizable read: {error}; leave consistency away to read locally"
                ))
            })?;
        }
        if let Some(offset) = params.number("min_metadata_offset")? {
            image = quorum.reached(ImageVersion(offset), timeout).await.map_err(|_| {
                ApiError::metadata_too_old(format!(
                    "this node has applied metadata up to {}, not {offset}, within {} ms",
                    quorum.image().version.0,
                    timeout.as_millis()
                ))
            })?;
        }
        let host = self.host.unwrap_or_else(|| admin.config.url.clone());
        let links = links(&image, &host, cluster)?;
        let age_ms = admin.metadata_age_ms();
        Ok(Read { image, params, links, age_ms, itself: format!("{host}{}", self.path) })
    }

    /// As [`Call::read`], but also where no cluster is formed yet: the id is then empty.
    ///
    /// # Errors
    /// 400 for parameters, 404 for another cluster's id.
    pub fn read_unformed(self, admin: &AdminState, cluster: &str, allowed: &[&[&str]]) -> Result<Read, ApiError> {
        let params = Params::new(self.pairs, allowed)?;
        let image = admin.quorum.image();
        let host = self.host.unwrap_or_else(|| admin.config.url.clone());
        let links = match (&image.cluster_id, cluster) {
            (None, "-") => Links { base: format!("{host}/v3/clusters/-"), cluster_id: String::new() },
            _ => links(&image, &host, cluster)?,
        };
        Ok(Read { image, params, links, age_ms: admin.metadata_age_ms(), itself: format!("{host}{}", self.path) })
    }

    /// The parameters alone, for paths that are no reads of metadata.
    ///
    /// # Errors
    /// 400 for an unknown one.
    pub fn params(self, allowed: &[&[&str]]) -> Result<Params, ApiError> {
        Params::new(self.pairs, allowed)
    }
}

fn links(image: &MetadataImage, host: &str, cluster: &str) -> Result<Links, ApiError> {
    let Some(ours) = image.cluster_id.as_deref() else {
        return Err(ApiError::no_raft_leader(
            "the cluster is not formed yet: GET /v3/clusters/-/quorum tells which voter is missing",
        ));
    };
    if cluster != "-" && cluster != ours {
        let message = format!("this is cluster {ours}, not {cluster}; \"-\" means the one that answers");
        return Err(ApiError::not_found(message));
    }
    Ok(Links { base: format!("{host}/v3/clusters/{ours}"), cluster_id: ours.to_owned() })
}

impl Read {
    /// Takes a newer image for the answer, after a write.
    pub fn set_image(&mut self, image: Arc<MetadataImage>) {
        self.image = image;
    }

    /// An object, trimmed to `fields`.
    ///
    /// # Errors
    /// 400 for a field it does not have.
    pub fn object(&self, status: StatusCode, object: &impl Serialize) -> Result<Response, ApiError> {
        let body = match self.params.fields() {
            None => encode(object)?,
            Some(fields) => encode(&trim(to_value(object)?, &fields)?)?,
        };
        Ok(self.with_headers(status, body))
    }

    /// An answer without body.
    pub fn empty(&self, status: StatusCode) -> Response {
        let mut response = status.into_response();
        self.headers(&mut response);
        response
    }

    /// A list: rows in key order unless `sort` says otherwise, all of them unless `page_size` says otherwise.
    ///
    /// # Errors
    /// 400 for paging, sorting or fields that make no sense.
    pub fn list<T: Serialize>(&self, kind: &'static str, rows: Vec<Row<T>>) -> Result<Response, ApiError> {
        self.rows(kind, rows, false)
    }

    /// As [`Read::list`], and `metadata.total_size` is always there.
    ///
    /// # Errors
    /// As [`Read::list`].
    pub fn counted_list<T: Serialize>(&self, kind: &'static str, rows: Vec<Row<T>>) -> Result<Response, ApiError> {
        self.rows(kind, rows, true)
    }

    /// What brokers tell, a row for each thing, by broker and name; filter `name`.
    ///
    /// # Errors
    /// As [`Read::list`].
    pub fn list_by_broker<T, B: Serialize>(
        &self,
        kind: &'static str,
        told: Vec<(BrokerId, Vec<T>)>,
        name: impl Fn(&T) -> String,
        body: impl Fn(BrokerId, T) -> B,
    ) -> Result<Response, ApiError> {
        let names = self.params.filter("name", None)?;
        let mut rows = Vec::new();
        for (id, told) in told {
            for one in told {
                let name = name(&one);
                if names.admits(&name) {
                    rows.push(Row::new(&[&number_key(id.0), &name], body(id, one)));
                }
            }
        }
        self.list(kind, rows)
    }

    fn rows<T: Serialize>(
        &self,
        kind: &'static str,
        mut rows: Vec<Row<T>>,
        counted: bool,
    ) -> Result<Response, ApiError> {
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        let total_size = rows.len();
        let sort = self.params.sort();
        if let Some((field, downwards)) = sort {
            rows = sorted(rows, field, downwards)?;
        }
        let page = self.params.page()?;
        let mut next = None;
        if let Some(page) = &page {
            let skip = match &page.start {
                PageStart::Beginning => 0,
                PageStart::After(key) if sort.is_none() => rows.partition_point(|row| row.key <= *key),
                PageStart::Skip(skip) if sort.is_some() => *skip,
                _ => return Err(ApiError::malformed("page_token belongs to a list with another sort")),
            };
            rows.drain(..skip.min(rows.len()));
            if rows.len() > page.size {
                rows.truncate(page.size);
                let start = match rows.last() {
                    Some(row) if sort.is_none() => PageStart::After(row.key.clone()),
                    _ => PageStart::Skip(skip + page.size),
                };
                next = Some(format!("{}?{}", self.itself, self.params.with_token(&start.token())));
            }
        }
        let metadata = ListMetadata {
            itself: self.itself.clone(),
            next,
            total_size: (counted || page.is_some()).then_some(total_size),
        };
        let items: Vec<T> = rows.into_iter().map(|row| row.item).collect();
        let body = match self.params.fields() {
            None => encode(&List { kind, metadata, data: items })?,
            Some(fields) => {
                let data: Result<Vec<Value>, ApiError> =
                    items.iter().map(|item| trim(to_value(item)?, &fields)).collect();
                encode(&List { kind, metadata, data: data? })?
            }
        };
        Ok(self.with_headers(StatusCode::OK, body))
    }

    fn with_headers(&self, status: StatusCode, body: Vec<u8>) -> Response {
        let mut response = json_response(status, body);
        self.headers(&mut response);
        response
    }

    /// Adds the headers of every read to an answer of another kind.
    pub fn mark(&self, response: &mut Response) {
        self.headers(response);
    }

    fn headers(&self, response: &mut Response) {
        response.headers_mut().insert("x-metadata-offset", HeaderValue::from(self.image.version.0));
        response.headers_mut().insert("x-metadata-age-ms", HeaderValue::from(self.age_ms));
    }
}

/// Reads a JSON body.
///
/// 415 for another content type, 400 for what is no JSON, 422 for JSON of another shape.
pub fn read_json<T: for<'a> Deserialize<'a>>(headers: &HeaderMap, body: &[u8]) -> Result<T, ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = given.split(';').next().unwrap_or("").trim();
    if !media.is_empty() && media != "application/json" && !media.ends_with("+json") {
        return Err(ApiError::unsupported_media_type(media));
    }
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => ApiError::invalid_payload(format!("the body does not fit: {error}")),
        _ => ApiError::malformed(format!("the body is no JSON: {error}")),
    })
}

/// A JSON answer of bytes that are JSON already.
pub fn json_response(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// A JSON answer that is no read of metadata.
///
/// # Errors
/// 500 when it cannot be written, which no shape here can cause.
pub fn plain(status: StatusCode, object: &impl Serialize) -> Result<Response, ApiError> {
    Ok(json_response(status, encode(object)?))
}

#[derive(Serialize)]
struct List<T> {
    kind: &'static str,
    metadata: ListMetadata,
    data: Vec<T>,
}

/// `metadata` of a list.
#[derive(Serialize, JsonSchema)]
pub struct ListMetadata {
    #[serde(rename = "self")]
    itself: String,
    next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_size: Option<usize>,
}

fn encode(object: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    let mut body = serde_json::to_vec(object).map_err(|error| ApiError::internal(error.to_string()))?;
    body.push(b'\n');
    Ok(body)
}

fn to_value(object: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(object).map_err(|error| ApiError::internal(error.to_string()))
}

/// Keeps the named fields of an object.
fn trim(value: Value, fields: &[&str]) -> Result<Value, ApiError> {
    let Value::Object(mut object) = value else { return Ok(value) };
    for field in fields {
        if !object.contains_key(*field) {
            let known: Vec<&str> = object.keys().map(String::as_str).collect();
            let message = format!("fields: there is no \"{field}\" here; there are: {}", known.join(", "));
            return Err(ApiError::malformed(message));
        }
    }
    object.retain(|name, _| fields.contains(&name.as_str()));
    Ok(Value::Object(object))
}

/// Sorts by a field; rows without a value come last either way, equal ones keep key order.
fn sorted<T: Serialize>(rows: Vec<Row<T>>, field: &str, downwards: bool) -> Result<Vec<Row<T>>, ApiError> {
    let mut keyed = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Object(mut object) = to_value(&row.item)? else { continue };
        let Some(value) = object.remove(field) else {
            let known: Vec<&str> = object.keys().map(String::as_str).collect();
            let message = format!("sort: there is no \"{field}\" here; there are: {}", known.join(", "));
            return Err(ApiError::malformed(message));
        };
        keyed.push((value, row));
    }
    keyed.sort_by(|(a, _), (b, _)| match (a.is_null(), b.is_null()) {
        (false, false) if downwards => compare(b, a),
        (false, false) => compare(a, b),
        (a, b) => a.cmp(&b),
    });
    Ok(keyed.into_iter().map(|(_, row)| row).collect())
}

fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => a.len().cmp(&b.len()),
        _ => Ordering::Equal,
    }
}
