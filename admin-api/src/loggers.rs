//! `/brokers/{id}/loggers`: log levels of a running process, by part (operators.md 1.4 H). They live in that process alone;
//! with `ttl_s` they end by themselves, so that nobody has to remember.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use highwater_data::loggers::UnknownLogger;
use highwater_data::{LogLevel, Logger, Loggers};
use highwater_wire::{BrokerId, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::AdminState;
use crate::error::ApiError;
use crate::live::{BUDGET, of_each};
use crate::query::LIST;
use crate::respond::{Call, Links, Metadata, read_json};
use crate::routes::{self, Route};
use crate::time::now_ms;

const FILTERS: &[&str] = &["name"];
const SILENT: &[routes::Failure] = &[(503, 50302, "that broker did not answer within 2 s")];
/// A level that is to hold for longer belongs into the configuration.
const TTL_MAX_S: u64 = 30 * 86_400;

/// This file's routes.
pub fn routes() -> Vec<Route> {
    const ONE: &str = "/brokers/{broker_id}/loggers/{logger_name}";
    vec![
        routes::get("/brokers/{broker_id}/loggers", list, "The log levels of a broker (`-`: of each), by part")
            .list::<LoggerBody>("KafkaBrokerLoggerList")
            .knows(FILTERS)
            .fails(SILENT),
        routes::get(ONE, show, "The log level of one part of a broker").object::<LoggerBody>(200).fails(SILENT),
        routes::put(ONE, put, "Set the log level of one part at once, for some time or until the next start")
            .takes::<LevelBody>(json!({ "level": "DEBUG", "ttl_s": 600 }))
            .or_takes("Until the next start", json!({ "level": "WARN" }))
            .object::<LoggerBody>(200)
            .fails(SILENT),
        routes::delete(ONE, delete, "Take the log level of one part back to what the process was started with")
            .fails(SILENT)
            .empty(204),
    ]
}

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::Off,
            LogLevel::Error => Self::Error,
            LogLevel::Warn => Self::Warn,
            LogLevel::Info => Self::Info,
            LogLevel::Debug => Self::Debug,
            LogLevel::Trace => Self::Trace,
        }
    }
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Off => Self::Off,
            Level::Error => Self::Error,
            Level::Warn => Self::Warn,
            Level::Info => Self::Info,
            Level::Debug => Self::Debug,
            Level::Trace => Self::Trace,
        }
    }
}

/// One logger as its process tells it; what nodes tell each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveLogger {
    name: String,
    target: String,
    level: Level,
    configured: Level,
    set: Option<Level>,
    until_ms: Option<i64>,
}

impl From<Logger> for LiveLogger {
    fn from(logger: Logger) -> Self {
        Self {
            name: logger.name.to_owned(),
            target: logger.target.to_owned(),
            level: logger.level.into(),
            configured: logger.configured.into(),
            set: logger.set.map(Level::from),
            until_ms: logger.until.map(|until| until.0),
        }
    }
}

/// What is asked of the process that has the loggers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LevelChange {
    name: String,
    /// `None`: back to what was configured.
    level: Option<Level>,
    ttl_s: Option<u64>,
}

impl LevelChange {
    /// Carries it out in this process; the logger as it is then. Must be called on a runtime.
    ///
    /// # Errors
    /// There is no such logger: which ones there are.
    pub fn make(self, loggers: &Loggers) -> Result<LiveLogger, String> {
        let told = |error: UnknownLogger| error.to_string();
        match self.level {
            None => loggers.reset(&self.name).map_err(told)?,
            Some(level) => {
                let until = self.ttl_s.map(|ttl_s| now_ms().saturating_add_unsigned(ttl_s.saturating_mul(1_000)));
                let choice = loggers.set(&self.name, level.into(), until.map(Timestamp)).map_err(told)?;
                if let Some(ttl_s) = self.ttl_s {
                    let (loggers, name) = (loggers.clone(), self.name.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = tokio::time::sleep(Duration::from_secs(ttl_s)) => loggers.end(&name, choice.number),
                            _ = choice.over => {}
                        }
                    });
                }
            }
        }
        loggers.named(&self.name).map(LiveLogger::from).map_err(told)
    }
}

/// The body of a change.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LevelBody {
    level: Level,
    /// How long it holds, in seconds, at most 30 days; without it until the next start.
    ttl_s: Option<u64>,
}

/// One logger of one broker.
#[derive(Debug, Serialize, JsonSchema)]
struct LoggerBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    broker_id: i32,
    name: String,
    /// What its lines begin with in the log; empty for `root`, which stands for all that has no level of its own.
    target: String,
    /// What is told now.
    level: Level,
    /// What the process was started with.
    configured_level: Level,
    /// Set on this very logger; `null`: its level is the configured one, or that of a logger above it.
    set_level: Option<Level>,
    /// When that ends by itself.
    until_ms: Option<i64>,
}

impl LoggerBody {
    fn new(links: &Links, broker: BrokerId, logger: LiveLogger) -> Self {
        let name = logger.name;
        let path = format!("/brokers/{broker}/loggers/{name}");
        Self {
            kind: "KafkaBrokerLogger",
            metadata: links.metadata(&path, &[format!("broker={broker}"), format!("logger={name}")]),
            cluster_id: links.cluster_id().to_owned(),
            broker_id: broker.0,
            name,
            target: logger.target,
            level: logger.level,
            configured_level: logger.configured,
            set_level: logger.set,
            until_ms: logger.until_ms,
        }
    }
}

/// `GET /brokers/{id|-}/loggers`; filter `name`. Of all brokers, those that do not answer are left out.
async fn list(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let told = of_each(&read, &broker, |broker| known(&admin, broker), |id| of(&admin, id)).await?;
    let name = |logger: &LiveLogger| logger.name.clone();
    read.list_by_broker("KafkaBrokerLoggerList", told, name, |id, logger| LoggerBody::new(&read.links, id, logger))
}

/// `GET /brokers/{id}/loggers/{name}`
async fn show(
    State(admin): State<AdminState>,
    Path((cluster, broker, name)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let id = known(&admin, &broker)?;
    let all = of(&admin, id).await?;
    let known = all.iter().map(|logger| logger.name.as_str()).collect::<Vec<_>>().join(", ");
    let one = all.into_iter().find(|logger| logger.name == name);
    let unknown = || ApiError::not_found(UnknownLogger { name, known }.to_string());
    read.object(StatusCode::OK, &LoggerBody::new(&read.links, id, one.ok_or_else(unknown)?))
}

/// `PUT /brokers/{id}/loggers/{name}`: the logger as it is from now on.
async fn put(
    State(admin): State<AdminState>,
    Path((cluster, broker, name)): Path<(String, String, String)>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let body: LevelBody = read_json(&headers, &body)?;
    if body.ttl_s.is_some_and(|ttl_s| !(1..=TTL_MAX_S).contains(&ttl_s)) {
        return Err(ApiError::invalid_payload(format!("ttl_s must be 1 to {TTL_MAX_S} (30 days), or absent")));
    }
    let id = known(&admin, &broker)?;
    let logger = change(&admin, id, LevelChange { name, level: Some(body.level), ttl_s: body.ttl_s }).await?;
    read.object(StatusCode::OK, &LoggerBody::new(&read.links, id, logger))
}

/// `DELETE /brokers/{id}/loggers/{name}`
async fn delete(
    State(admin): State<AdminState>,
    Path((cluster, broker, name)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let id = known(&admin, &broker)?;
    change(&admin, id, LevelChange { name, level: None, ttl_s: None }).await?;
    Ok(read.empty(StatusCode::NO_CONTENT))
}

/// A node that can be asked: a broker, or a controller alone.
fn known(admin: &AdminState, broker: &str) -> Result<BrokerId, ApiError> {
    let id = broker.parse().ok().and_then(BrokerId::from_wire);
    id.filter(|id| *id == admin.config.node || admin.quorum.controller_url(*id).is_some())
        .ok_or_else(|| ApiError::not_found(format!("there is no broker {broker}")))
}

/// The loggers of one node, as itself tells them.
async fn of(admin: &AdminState, id: BrokerId) -> Result<Vec<LiveLogger>, ApiError> {
    if id == admin.config.node {
        return Ok(here(&admin.config.loggers));
    }
    admin.peers.loggers(&admin.quorum, id, BUDGET).await.ok_or_else(|| silent(id))
}

/// The loggers of this process.
pub fn here(loggers: &Loggers) -> Vec<LiveLogger> {
    loggers.all().into_iter().map(LiveLogger::from).collect()
}

async fn change(admin: &AdminState, id: BrokerId, change: LevelChange) -> Result<LiveLogger, ApiError> {
    let made = if id == admin.config.node {
        change.make(&admin.config.loggers)
    } else {
        admin.peers.change_level(&admin.quorum, id, &change, BUDGET).await.ok_or_else(|| silent(id))?
    };
    made.map_err(ApiError::not_found)
}

fn silent(id: BrokerId) -> ApiError {
    ApiError::broker_not_available(format!("broker {id} did not answer within 2 s, and only it has its loggers"))
}
