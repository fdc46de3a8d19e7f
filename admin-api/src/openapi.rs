//! `/openapi.json`, `/openapi.yaml`, `/docs`: the API describes itself (OpenAPI 3.1). Generated from the routes and from
//! the types they answer with; a test sends every example to a real cluster and holds the answers against the schemas.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::AdminState;
use crate::error::{ApiError, ErrorBody};
use crate::respond::{Call, ListMetadata, json_response};
use crate::routes::{self, Route, Shape};

mod page;
pub mod parameters;
mod yaml;

const JSON: &str = "application/json";
/// RFC 9512.
const YAML: &str = "application/yaml";
const HTML: &str = "text/html; charset=utf-8";

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get_at("/openapi.json", show, "This document").media(JSON),
        routes::get_at("/openapi.yaml", show_yaml, "This document as YAML").media(YAML),
        routes::get_at("/docs", show_page, "This document as a page to read").media(HTML),
    ]
}

/// `GET /openapi.json`
pub async fn show(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    call.params(&[])?;
    Ok(json_response(StatusCode::OK, document(&routes::all(), &admin.config.version).to_string().into_bytes()))
}

/// `GET /openapi.yaml`
async fn show_yaml(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    call.params(&[])?;
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(YAML))];
    Ok((kind, yaml::write(&document(&routes::all(), &admin.config.version))).into_response())
}

/// What a browser may do with the page: show it.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /docs`
async fn show_page(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    call.params(&[])?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(HTML)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY)),
    ];
    Ok((headers, page::write(&document(&routes::all(), &admin.config.version))).into_response())
}

/// The document for some routes.
pub fn document(routes: &[Route], version: &str) -> Value {
    let mut schemas = Schemas::new();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let methods = paths.entry(route.path.clone()).or_default();
        methods.insert(route.method.to_owned(), operation(route, &mut schemas));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Highwater admin API",
            "version": version,
            "description": "Any node answers; writes are forwarded inside the cluster. REST v3 shapes are taken over \
                exactly, with additions. Everything below /v3 is also there below /kafka/v3. An unknown query parameter \
                is 400; times are epoch milliseconds.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": { "schemas": schemas.finish() },
    })
}

/// Collects the schemas of answers and of bodies: what a reader may leave out differs between the two.
struct Schemas {
    answers: SchemaGenerator,
    bodies: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = Cow::Borrowed("/components/schemas");
                settings.meta_schema = None;
            })
        };
        let (answers, bodies) = (settings().for_serialize(), settings().for_deserialize());
        Self { answers: answers.into_generator(), bodies: bodies.into_generator() }
    }

    fn finish(mut self) -> Map<String, Value> {
        let mut all = self.answers.take_definitions(true);
        all.extend(self.bodies.take_definitions(true));
        all
    }
}

/// The names in braces of a path.
pub fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split('}').next())
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [tag(&route.path)],
        "parameters": parameters_of(route),
        "responses": responses(route, schemas),
    });
    if let Some(sent) = &route.sent {
        let mut examples = Map::new();
        for (at, (what_for, value)) in sent.examples.iter().enumerate() {
            let summary = if what_for.is_empty() { route.summary } else { what_for };
            examples.insert(format!("example{}", at + 1), json!({ "summary": summary, "value": value }));
        }
        operation["requestBody"] = json!({
            "required": true,
            "content": { JSON: { "schema": (sent.schema)(&mut schemas.bodies), "examples": examples } },
        });
    }
    if let Some(status) = route.expects {
        operation["x-example-status"] = json!(status);
    }
    operation
}

/// `GET /v3/clusters/{cluster_id}/topics/{topic_name}` is `get_topics_topic_name`.
fn operation_id(route: &Route) -> String {
    let path = route.path.strip_prefix("/v3/clusters/{cluster_id}").unwrap_or(&route.path);
    let words: Vec<&str> = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let path = if words.is_empty() { "cluster".to_owned() } else { words.join("_") };
    format!("{}_{path}", route.method)
}

/// The noun a path is about.
fn tag(path: &str) -> &str {
    let below = path.strip_prefix("/v3/clusters/{cluster_id}").unwrap_or(path);
    let mut words = below.split(['/', ':']).filter(|word| !word.is_empty() && !word.starts_with('{'));
    match words.next_back() {
        _ if below.contains("/partitions") => "partitions",
        _ if below.contains("configs") => "configs",
        None | Some("v3" | "clusters") => "clusters",
        Some(_) => below.split(['/', ':']).find(|word| !word.is_empty()).unwrap_or("clusters"),
    }
}

fn parameters_of(route: &Route) -> Vec<Value> {
    let mut all = Vec::new();
    for name in segments(&route.path) {
        let Some(known) = parameters::in_path(name) else { continue };
        let special = route.example_path.iter().find(|(parameter, _)| *parameter == name);
        all.push(json!({
            "name": name, "in": "path", "required": true, "description": known.description,
            "schema": known.schema(), "example": special.map_or(known.example, |(_, value)| value),
        }));
    }
    for name in &route.parameters {
        let Some(known) = parameters::in_query(name) else { continue };
        all.push(json!({
            "name": name, "in": "query", "required": false, "description": known.description,
            "schema": known.schema(), "example": known.example,
        }));
    }
    all
}

fn responses(route: &Route, schemas: &mut Schemas) -> Map<String, Value> {
    let mut all = Map::new();
    for (status, shape) in &route.answers {
        let mut answer = json!({ "description": described(shape) });
        match shape {
            Shape::Empty => {}
            Shape::Media(media) => answer["content"] = json!({ *media: {} }),
            Shape::Object(schema) => {
                answer["content"] = json!({ JSON: { "schema": schema(&mut schemas.answers) } });
            }
            Shape::List(schema, kind) => {
                let item = schema(&mut schemas.answers).to_value();
                answer["content"] = json!({ JSON: { "schema": list(item, kind, schemas) } });
            }
            Shape::Either(schema, kind) => {
                let item = schema(&mut schemas.answers).to_value();
                let list = list(item.clone(), kind, schemas);
                answer["content"] = json!({ JSON: { "schema": { "oneOf": [item, list] } } });
            }
        }
        if route.path.starts_with("/v3") {
            answer["headers"] = json!({
                "X-Metadata-Offset": {
                    "description": "The answer holds the metadata up to here.", "schema": { "type": "integer" },
                },
                "X-Metadata-Age-Ms": {
                    "description": "Since this node last heard of a raft leader.", "schema": { "type": "integer" },
                },
            });
        }
        all.insert(status.to_string(), answer);
    }
    let mut failures: BTreeMap<u16, Vec<(u32, &str)>> = BTreeMap::new();
    for (status, code, when) in common_failures(route).chain(route.failures.iter().copied()) {
        let known = failures.entry(status).or_default();
        if !known.iter().any(|(other, _)| *other == code) {
            known.push((code, when));
        }
    }
    for (status, codes) in failures {
        let description: Vec<String> = codes.iter().map(|(code, when)| format!("{code}: {when}")).collect();
        let mut schema = schemas.answers.subschema_for::<ErrorBody<'_>>().to_value();
        // A verdict that is also a status (health, checks).
        if let Some(verdict) = all.get(&status.to_string()) {
            schema = json!({ "anyOf": [verdict["content"][JSON]["schema"], schema] });
        }
        let answer = json!({
            "description": description.join("; "),
            "x-error-codes": codes.iter().map(|(code, _)| code).collect::<Vec<_>>(),
            "content": { JSON: { "schema": schema } },
        });
        all.insert(status.to_string(), answer);
    }
    all
}

/// What any route may answer.
fn common_failures(route: &Route) -> impl Iterator<Item = (u16, u32, &'static str)> {
    let writes = route.method != "get";
    let unknown_topic = route.path.contains("{topic_name}");
    let all = [
        (true, (400, 400, "a parameter or body that cannot be read")),
        (route.is_below_cluster(), (404, 404, "no such cluster, or no such thing in it")),
        (unknown_topic, (404, 40403, "no such topic or partition")),
        (route.path.starts_with("/v3"), (503, 50310, "no raft leader, or no cluster is formed yet")),
        (
            route.path.starts_with("/v3"),
            (
                503,
                50311,
                "min_metadata_offset was not reached in time, or this node has just started and does not hold all metadata yet",
            ),
        ),
        (writes, (503, 50302, "this node is stopping")),
        (writes, (500, 50003, "it may or may not have been done: read, then repeat")),
        (writes, (400, 40002, "Kafka's rules refuse it; details.kafka_error says which")),
        (route.sent.is_some(), (413, 413, "the body is larger than 2 MiB")),
        (route.sent.is_some(), (415, 415, "the body is not sent as JSON")),
        (route.sent.is_some(), (422, 42206, "JSON, but not of a shape or with values that mean something here")),
    ];
    all.into_iter().filter(|(applies, _)| *applies).map(|(_, failure)| failure)
}

const fn described(shape: &Shape) -> &'static str {
    match shape {
        Shape::Empty => "Done; no body.",
        Shape::Object(_) => "The object.",
        Shape::List(..) => "The list, in key order.",
        Shape::Either(..) => "The object, or the list where a segment of the path is `-`.",
        Shape::Media(_) => "As the media type says.",
    }
}

fn list(item: Value, kind: &str, schemas: &mut Schemas) -> Value {
    json!({
        "type": "object",
        "required": ["kind", "metadata", "data"],
        "properties": {
            "kind": { "const": kind },
            "metadata": schemas.answers.subschema_for::<ListMetadata>(),
            "data": { "type": "array", "items": item },
        },
    })
}

#[cfg(test)]
mod tests;
