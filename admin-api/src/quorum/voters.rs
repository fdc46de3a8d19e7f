//! `/quorum/voters` and `/quorum:transfer-leader`: who votes, and who leads (operators.md 1.4 D).

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use highwater_quorum::image::Endpoint;
use highwater_quorum::{NewVoter, QuorumMember, VoterChange, VoterChangeState, VoterChangeStatus};
use highwater_wire::{BrokerId, DirectoryId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::AdminState;
use crate::error::ApiError;
use crate::respond::{Call, Metadata, Read, WRITE_TIMEOUT, read_json};
use crate::routes::Failure;

pub(super) const REMOVE_PARAMETERS: &[&str] = &["retain_as_observer", "validate_only"];

pub(super) const FAILURES: &[Failure] = &[
    (409, 40910, "another change of voters is under way"),
    (409, 40913, "the rest could not form a caught-up majority"),
    (503, 50302, "the node that is to vote does not answer"),
];

/// A node that is to vote.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VoterBody {
    node_id: i32,
    /// Of its metadata directory; by default as the node says itself.
    directory_id: Option<String>,
    /// `host:port` of its controller listener; by default where the cluster knows it.
    endpoint: Option<String>,
    /// The voter it replaces, in the same step; itself when it lost its disk.
    replace: Option<i32>,
    #[serde(default)]
    validate_only: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TransferBody {
    target_id: i32,
}

/// A change of voters, and how far it is: the same object for a dry run, for one under way and for one that is done.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChangeBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    /// PLANNED, CATCHING_UP or DONE.
    state: &'static str,
    validate_only: bool,
    adds: Option<VoterRef>,
    endpoint: Option<String>,
    removes: Option<VoterRef>,
    voters_before: Vec<VoterRef>,
    voters_after: Vec<VoterRef>,
    /// Votes needed among `voters_after`.
    majority: usize,
    /// Of `voters_after`, those that answer and have caught up; the new one counted as if it had.
    caught_up: usize,
    /// Entries that the new voter lacks; `null` while nothing is known of it.
    lag: Option<u64>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct VoterRef {
    replica_id: i32,
    #[schemars(with = "String")]
    directory_id: DirectoryText,
}

/// A directory id as people write it.
#[derive(Debug, Clone, Copy)]
struct DirectoryText(DirectoryId);

impl Serialize for DirectoryText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl From<&QuorumMember> for VoterRef {
    fn from(member: &QuorumMember) -> Self {
        Self { replica_id: member.node.0, directory_id: DirectoryText(member.directory) }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct LeaderBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    leader_id: i32,
}

/// `POST /quorum/voters`: 202 when the change was made or goes on, 200 for a dry run and when it was made before. Safe to
/// repeat: asking again tells how far it is.
pub async fn add(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let body: VoterBody = read_json(&headers, &body)?;
    let directory = body.directory_id.as_deref().map(str::parse::<DirectoryId>).transpose();
    let directory = directory.map_err(|error| ApiError::invalid_payload(format!("directory_id: {error}")))?;
    let endpoint = body.endpoint.as_deref().map(parse_endpoint).transpose()?;
    let change = VoterChange {
        add: Some(NewVoter { node: node_id("node_id", body.node_id)?, directory, endpoint }),
        remove: body.replace.map(|replace| node_id("replace", replace)).transpose()?,
        retain_as_observer: false,
        validate_only: body.validate_only,
    };
    answer(&admin, read, change).await
}

/// `DELETE /quorum/voters/{node_id}`: 202 when it votes no more; 404 when it is no voter.
pub async fn remove(
    State(admin): State<AdminState>,
    Path((cluster, node)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[REMOVE_PARAMETERS]).await?;
    let node = node.parse().ok().and_then(BrokerId::from_wire);
    let node = node.ok_or_else(|| ApiError::not_found("a voter is named by its node.id"))?;
    let change = VoterChange {
        add: None,
        remove: Some(node),
        retain_as_observer: read.params.flag("retain_as_observer")?,
        validate_only: read.params.flag("validate_only")?,
    };
    answer(&admin, read, change).await
}

async fn answer(admin: &AdminState, mut read: Read, change: VoterChange) -> Result<Response, ApiError> {
    let (timeout, validate_only) = (read.params.timeout(WRITE_TIMEOUT)?, change.validate_only);
    let status = admin.quorum.change_voters(change, timeout).await?;
    read.set_image(admin.quorum.image());
    let code = if validate_only || status.before == status.after { StatusCode::OK } else { StatusCode::ACCEPTED };
    read.object(code, &change_body(&read, &status, validate_only))
}

fn change_body(read: &Read, status: &VoterChangeStatus, validate_only: bool) -> ChangeBody {
    ChangeBody {
        kind: "KafkaQuorumVoterChange",
        metadata: read.links.metadata("/quorum", &["quorum".to_owned()]),
        cluster_id: read.links.cluster_id().to_owned(),
        state: match status.state {
            VoterChangeState::Planned => "PLANNED",
            VoterChangeState::CatchingUp => "CATCHING_UP",
            VoterChangeState::Done => "DONE",
        },
        validate_only,
        adds: status.add.as_ref().map(VoterRef::from),
        endpoint: status.endpoint.as_ref().map(|endpoint| match endpoint.host.contains(':') {
            true => format!("[{}]:{}", endpoint.host, endpoint.port),
            false => format!("{}:{}", endpoint.host, endpoint.port),
        }),
        removes: status.remove.as_ref().map(VoterRef::from),
        voters_before: status.before.iter().map(VoterRef::from).collect(),
        voters_after: status.after.iter().map(VoterRef::from).collect(),
        majority: status.majority,
        caught_up: status.caught_up,
        lag: status.lag,
    }
}

fn node_id(field: &str, id: i32) -> Result<BrokerId, ApiError> {
    BrokerId::from_wire(id).ok_or_else(|| ApiError::invalid_payload(format!("{field}: {id} is no node.id")))
}

fn parse_endpoint(text: &str) -> Result<Endpoint, ApiError> {
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| Endpoint { host: host.to_owned(), port })
    });
    parsed.ok_or_else(|| ApiError::invalid_payload(format!("endpoint: \"{text}\" is not host:port")))
}

/// `POST /quorum:transfer-leader`: 200 once the target leads, also when it did before.
pub async fn transfer(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let body: TransferBody = read_json(&headers, &body)?;
    let target = node_id("target_id", body.target_id)?;
    admin.quorum.transfer_leadership(target, read.params.timeout(WRITE_TIMEOUT)?).await?;
    let body = LeaderBody {
        kind: "KafkaQuorumLeader",
        metadata: read.links.metadata("/quorum", &["quorum".to_owned()]),
        cluster_id: read.links.cluster_id().to_owned(),
        leader_id: target.0,
    };
    read.object(StatusCode::OK, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_host_and_port() {
        let read = |text| parse_endpoint(text).map(|endpoint| (endpoint.host, endpoint.port));
        assert_eq!(read("n4:9093").unwrap(), ("n4".to_owned(), 9093));
        assert_eq!(read("[::1]:9093").unwrap(), ("::1".to_owned(), 9093));
        for bad in ["n4", ":9093", "n4:0", "n4:x", "n4:70000"] {
            assert_eq!(read(bad).unwrap_err().error_code, 42206, "{bad}");
        }
    }
}
