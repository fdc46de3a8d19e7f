//! `ApiError`: what the API says when it cannot do what it was asked (operators.md §1.1, the error table).
//!
//! A status, Kafka REST's `error_code`, a message that says what to do, and details a script can read. The request id
//! is added on the way out.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use highwater_quorum::body::BodyFault;
use highwater_quorum::image::topic_config::{ConfigFault, ConfigFaults};
use highwater_quorum::{QuorumError, Refusal};
use highwater_wire::{BrokerId, ErrorCode};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

/// The longest text of a refusal by axum itself, in bytes.
const FRAMEWORK_BODY_MAX: usize = 4 << 10;

/// One refusal or failure, before it becomes a response.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    /// As in the table: the HTTP status, or three digits of it and two more.
    pub error_code: u32,
    pub message: String,
    pub details: Option<Value>,
}

impl ApiError {
    fn new(status: StatusCode, error_code: u32, message: impl Into<String>) -> Self {
        Self { status, error_code, message: message.into(), details: None }
    }

    /// What axum refuses before a handler is asked, such as a path that is no UTF-8, said as everything else is said.
    /// `None` for an answer that is no error, or one of ours.
    pub async fn of_the_framework(response: &mut Response) -> Option<Self> {
        let status = response.status();
        if !(status.is_client_error() || status.is_server_error()) || has_json(response) {
            return None;
        }
        let body = axum::body::to_bytes(std::mem::take(response.body_mut()), FRAMEWORK_BODY_MAX).await;
        let said = body.map(|body| String::from_utf8_lossy(&body).into_owned()).unwrap_or_default();
        let message = if said.is_empty() { status.canonical_reason().unwrap_or("refused").to_owned() } else { said };
        Some(Self::new(status, u32::from(status.as_u16()), message))
    }

    /// 413/413 or 400/400: a body that is too large, or broke off.
    pub fn of_body(fault: &BodyFault) -> Self {
        match fault {
            BodyFault::TooLarge { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, 413, fault.to_string()),
            BodyFault::BrokeOff(_) => Self::malformed(fault.to_string()),
        }
    }

    /// 400/400: a parameter or body that cannot be read.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, 400, message)
    }

    /// 400/40002: Kafka's rules say no.
    pub fn refused(error: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, 40002, message).because(error)
    }

    /// 404/404: no such endpoint, cluster, broker.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, 404, message)
    }

    /// 404/40403
    pub fn unknown_topic(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, 40403, format!("there is no topic {name}"))
            .because(ErrorCode::UnknownTopicOrPartition)
    }

    /// 404/40405
    pub fn unknown_group(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, 40405, message).because(ErrorCode::GroupIdNotFound)
    }

    /// 404/40403
    pub fn unknown_partition(name: &str, partition: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, 40403, format!("topic {name} has no partition {partition}"))
            .because(ErrorCode::UnknownTopicOrPartition)
    }

    /// 405/405
    pub fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, 405, "this path does not answer to this method")
    }

    /// 415/415
    pub fn unsupported_media_type(given: &str) -> Self {
        let message = format!("the body is \"{given}\": send it with -H 'content-type: application/json'");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, 415, message)
    }

    /// 409/40911: decided on a state that is no longer there.
    pub fn stale(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, 40911, message)
    }

    /// 409/40917: nobody may lead.
    pub fn no_eligible_leader(error: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, 40917, message).because(error)
    }

    /// 422/42210: `confirm_data_loss` is missing.
    pub fn not_confirmed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, 42210, message)
    }

    /// 409 with one of the codes 40910 to 40918.
    pub fn conflict(error_code: u32, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, error_code, message)
    }

    /// 422/42206: the body is JSON, but not one that means something here.
    pub fn invalid_payload(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, 42206, message)
    }

    /// 400/40002 with `details.key`, `details.allowed` of the first fault, and `details.faults` for all of them.
    fn bad_configs(code: ErrorCode, faults: &ConfigFaults) -> Self {
        let told = |fault: &ConfigFault| json!({ "key": fault.key, "value": fault.value, "why": fault.why, "allowed": fault.allowed });
        let first = faults.0.first();
        Self::refused(code, faults.to_string()).with_details(json!({
            "key": first.map(|fault| &fault.key),
            "allowed": first.and_then(|fault| fault.allowed.as_ref()),
            "faults": faults.0.iter().map(told).collect::<Vec<_>>(),
        }))
    }

    /// 503/50310
    pub fn no_raft_leader(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, 50310, message).because(ErrorCode::NotController)
    }

    /// 503/50311
    pub fn metadata_too_old(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, 50311, message)
    }

    /// 503/50302
    pub fn broker_not_available(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, 50302, message).because(ErrorCode::BrokerNotAvailable)
    }

    /// 500/50003: the same request may succeed later.
    pub fn retriable(error: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, 50003, message).because(error)
    }

    /// 500/500
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, 500, message)
    }

    /// Adds facts for scripts.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        match (&mut self.details, details) {
            (Some(Value::Object(there)), Value::Object(more)) => there.extend(more),
            (slot, details) => *slot = Some(details),
        }
        self
    }

    fn because(self, error: ErrorCode) -> Self {
        self.with_details(json!({ "kafka_error": error.name() }))
    }

    /// No partition leader answered for `partition`.
    pub fn leader_silent(topic: &str, partition: i32, leader: Option<BrokerId>) -> Self {
        match leader {
            Some(leader) => Self::broker_not_available(format!(
                "broker {leader}, which leads {topic}-{partition}, did not answer within 2 s; try again, or read its \
                 state"
            )),
            None => Self::broker_not_available(format!(
                "{topic}-{partition} has no leader now: GET its state to see who is waited for"
            )),
        }
    }

    /// The body, as the wire carries it.
    pub fn body<'a>(&'a self, request_id: &'a str) -> ErrorBody<'a> {
        ErrorBody { error_code: self.error_code, message: &self.message, details: self.details.as_ref(), request_id }
    }
}

/// Kafka REST's error object; the last two are ours.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ErrorBody<'a> {
    error_code: u32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Value>,
    request_id: &'a str,
}

impl From<QuorumError> for ApiError {
    fn from(error: QuorumError) -> Self {
        match error {
            QuorumError::Refused(refusal) => refusal.into(),
            QuorumError::NoLeader { why } => {
                Self::no_raft_leader(format!("the metadata quorum has no leader: {why}; nothing was changed"))
            }
            QuorumError::TimedOut { after_ms } => Self::retriable(
                ErrorCode::RequestTimedOut,
                format!(
                    "the metadata quorum did not answer within {after_ms} ms: the change may or may not have been made; \
                     read before you repeat it"
                ),
            ),
            QuorumError::Stopped(why) => Self::broker_not_available(format!("this node is stopping: {why}")),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let code = ErrorCode::from(&refusal);
        let message = refusal.to_string();
        match &refusal {
            Refusal::InvalidTopicConfigs(faults) | Refusal::InvalidBrokerConfigs(faults) => {
                return Self::bad_configs(code, faults);
            }
            Refusal::ConfigsChanged(_) => return Self::stale(message),
            Refusal::UnknownBroker(_) | Refusal::VoterNotFound(_) => return Self::not_found(message).because(code),
            Refusal::VoterChangeInProgress(_) => return Self::conflict(40910, message).because(code),
            Refusal::NotFenced(_) => return Self::conflict(40912, message).because(code),
            Refusal::QuorumWouldBeLost(_) => return Self::conflict(40913, message).because(code),
            Refusal::IneligibleQuorumLeader { .. } => return Self::conflict(40917, message).because(code),
            Refusal::NodeUnreachable(_) => return Self::broker_not_available(message),
            _ => {}
        }
        match code {
            ErrorCode::InvalidTopicException => Self::invalid_payload(message).because(code),
            ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId => {
                Self::new(StatusCode::NOT_FOUND, 40403, message).because(code)
            }
            ErrorCode::NotController => Self::no_raft_leader(message),
            ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch | ErrorCode::InvalidUpdateVersion => {
                Self::stale(message).because(code)
            }
            ErrorCode::PreferredLeaderNotAvailable | ErrorCode::EligibleLeadersNotAvailable => {
                Self::no_eligible_leader(code, message)
            }
            _ if code.is_retriable() => Self::retriable(code, message),
            _ => Self::refused(code, message),
        }
    }
}

impl IntoResponse for ApiError {
    /// The body is written by the outermost layer, which knows the request id.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
fn has_json(response: &Response) -> bool {
    let media = response.headers().get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
    media.is_some_and(|media| media.starts_with("application/json"))
}
