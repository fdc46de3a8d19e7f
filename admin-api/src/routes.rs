//! One route is one value: what the router does and what `/openapi.json` says of it, so that neither can lack the other.
//!
//! Each noun's file lists its own with `pub fn routes()`; [`all`] joins them. Path parameters, the parameters of every
//! read and the errors of every call are added here and in `openapi`, from the path and from what the handler reads.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use crate::query::{ALWAYS, LIST};
use crate::{
    AdminState, brokers, clusters, configs, elections, events, groups, health, log_dirs, loggers, metrics, openapi,
    partitions, quorum, recovery, restart, topics,
};

/// Where everything about a cluster lies.
const CLUSTER: &str = "/v3/clusters/{cluster_id}";

/// All routes of the admin API, in the order in which a person looks for them.
pub fn all() -> Vec<Route> {
    let nouns = [
        clusters::routes(),
        topics::routes(),
        configs::routes(),
        partitions::routes(),
        elections::routes(),
        groups::routes(),
        brokers::routes(),
        log_dirs::routes(),
        loggers::routes(),
        restart::routes(),
        recovery::routes(),
        quorum::routes(),
        events::routes(),
        health::routes(),
        metrics::routes(),
        openapi::routes(),
    ];
    nouns.into_iter().flatten().collect()
}

/// Routes as axum wants them: those below `/v3` (without that prefix), and the others.
pub fn routers(routes: Vec<Route>) -> (Router<AdminState>, Router<AdminState>) {
    let (mut v3, mut rest) = (Router::new(), Router::new());
    for route in routes {
        // A verb behind a parameter shares its segment, of which the router knows only the parameter.
        let path = route.path.rsplit_once("}:").map_or(route.path.clone(), |(thing, _)| format!("{thing}}}"));
        match path.strip_prefix("/v3") {
            Some(path) => v3 = v3.route(path, route.handler),
            None => rest = rest.route(&path, route.handler),
        }
    }
    (v3, rest)
}

/// How a schema comes into the document.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The body of a successful answer.
#[derive(Clone, Copy)]
pub enum Shape {
    /// None.
    Empty,
    /// One object.
    Object(SchemaOf),
    /// A list of objects; its `kind`.
    List(SchemaOf, &'static str),
    /// An object where the path names one thing, a list where a segment is `-`.
    Either(SchemaOf, &'static str),
    /// Something else than JSON of a schema; its media type.
    Media(&'static str),
}

/// What a request sends.
pub struct Sent {
    pub schema: SchemaOf,
    /// What each is for, and the body. The first answers as [`Route::expects`] says; the others succeed.
    pub examples: Vec<(&'static str, Value)>,
}

/// An error of this route beside those of every route: status, `error_code`, when.
pub type Failure = (u16, u32, &'static str);

/// One method of one path.
pub struct Route {
    pub method: &'static str,
    /// As the router knows it, from the root.
    pub path: String,
    pub summary: &'static str,
    /// Query parameters that the handler reads; each must stand in `openapi/parameters.rs`.
    pub parameters: Vec<&'static str>,
    pub sent: Option<Sent>,
    /// Successful answers by status.
    pub answers: Vec<(u16, Shape)>,
    pub failures: Vec<Failure>,
    /// Values of path parameters in the example, where the usual ones do not fit.
    pub example_path: Vec<(&'static str, &'static str)>,
    /// The status of the example; by default that of the first answer.
    pub expects: Option<u16>,
    handler: MethodRouter<AdminState>,
}

/// A route below a cluster: reads the metadata of this node and knows the parameters of every read.
fn below(method: &'static str, path: &str, handler: MethodRouter<AdminState>, summary: &'static str) -> Route {
    plain(method, &format!("{CLUSTER}{path}"), handler, summary)
}

fn plain(method: &'static str, path: &str, handler: MethodRouter<AdminState>, summary: &'static str) -> Route {
    Route {
        method,
        path: path.to_owned(),
        summary,
        parameters: if path.starts_with("/v3") { ALWAYS.to_vec() } else { Vec::new() },
        sent: None,
        answers: Vec::new(),
        failures: Vec::new(),
        example_path: Vec::new(),
        expects: None,
        handler,
    }
}

/// `GET` below a cluster.
pub fn get<H, T>(path: &str, handler: H, summary: &'static str) -> Route
where
    H: Handler<T, AdminState>,
    T: 'static,
{
    below("get", path, routing::get(handler), summary)
}

/// `POST` below a cluster.
pub fn post<H, T>(path: &str, handler: H, summary: &'static str) -> Route
where
    H: Handler<T, AdminState>,
    T: 'static,
{
    below("post", path, routing::post(handler), summary)
}

/// `PUT` below a cluster.
pub fn put<H, T>(path: &str, handler: H, summary: &'static str) -> Route
where
    H: Handler<T, AdminState>,
    T: 'static,
{
    below("put", path, routing::put(handler), summary)
}

/// `PATCH` below a cluster.
pub fn patch<H, T>(path: &str, handler: H, summary: &'static str) -> Route
where
    H: Handler<T, AdminState>,
    T: 'static,
{
    below("patch", path, routing::patch(handler), summary)
}

/// `DELETE` below a cluster.
pub fn delete<H, T>(path: &str, handler: H, summary: &'static str) -> Route
where
    H: Handler<T, AdminState>,
    T: 'static,
{
    below("delete", path, routing::delete(handler), summary)
}

/// `GET` of something that is not below a cluster: the path is whole.
pub fn get_at<H, T>(path: &str, handler: H, summary: &'static str) -> Route
where
    H: Handler<T, AdminState>,
    T: 'static,
{
    plain("get", path, routing::get(handler), summary)
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Route {
    fn answers(mut self, status: u16, shape: Shape) -> Self {
        self.answers.push((status, shape));
        self
    }

    /// Answers one object.
    pub fn object<T: JsonSchema>(self, status: u16) -> Self {
        self.answers(status, Shape::Object(schema_of::<T>))
    }

    /// Answers a list of this `kind`, with what belongs to lists.
    pub fn list<T: JsonSchema>(self, kind: &'static str) -> Self {
        self.knows(LIST).answers(200, Shape::List(schema_of::<T>, kind))
    }

    /// Answers an object where the path names one thing, else a list of this `kind`.
    pub fn object_or_list<T: JsonSchema>(self, kind: &'static str) -> Self {
        self.knows(LIST).answers(200, Shape::Either(schema_of::<T>, kind))
    }

    /// Answers without a body.
    pub fn empty(self, status: u16) -> Self {
        self.answers(status, Shape::Empty)
    }

    /// Answers with something that has no schema here.
    pub fn media(self, media_type: &'static str) -> Self {
        self.answers(200, Shape::Media(media_type))
    }

    /// Takes a JSON body; `example` is sent as it stands by a test, and by readers of the document.
    pub fn takes<T: JsonSchema>(mut self, example: Value) -> Self {
        self.sent = Some(Sent { schema: schema_of::<T>, examples: vec![("", example)] });
        self
    }

    /// A further example of the body.
    pub fn or_takes(mut self, what_for: &'static str, example: Value) -> Self {
        if let Some(sent) = &mut self.sent {
            sent.examples.push((what_for, example));
        }
        self
    }

    /// Reads these query parameters: the constant that the handler hands to its `Call`.
    pub fn knows(mut self, parameters: &[&'static str]) -> Self {
        self.parameters.extend(parameters);
        self
    }

    /// May also answer these errors.
    pub fn fails(mut self, failures: &[Failure]) -> Self {
        self.failures.extend(failures);
        self
    }

    /// Its example names this in its path.
    pub fn example(mut self, parameter: &'static str, value: &'static str) -> Self {
        self.example_path.push((parameter, value));
        self
    }

    /// Its example is answered with this status.
    pub fn expects(mut self, status: u16) -> Self {
        self.expects = Some(status);
        self
    }

    /// Whether it lies below one cluster.
    pub fn is_below_cluster(&self) -> bool {
        self.path.starts_with(CLUSTER)
    }
}
