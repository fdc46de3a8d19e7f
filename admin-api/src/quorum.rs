//! `/quorum`: the metadata quorum in the words of `kafka-metadata-quorum.sh` (operators.md 1.4 D), also when it has no
//! leader: then `views` shows what each node believes.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::{QuorumMember, QuorumRole, QuorumStatus};
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::AdminState;
use crate::error::ApiError;
use crate::live::BUDGET;
use crate::respond::{Call, Metadata};
use crate::routes::{self, Route};
use crate::time::now_ms;

mod voters;

/// The routes of this file and of `quorum/voters.rs`.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get("/quorum", show, "The metadata quorum: leader, voters, observers, and what each node believes")
            .object::<QuorumBody>(200),
        routes::post("/quorum/voters", voters::add, "Make a node a voter, or let it replace one; it learns first")
            .takes::<voters::VoterBody>(json!({ "node_id": 1, "validate_only": true }))
            .object::<voters::ChangeBody>(200)
            .object::<voters::ChangeBody>(202)
            .fails(voters::FAILURES),
        routes::delete("/quorum/voters/{node_id}", voters::remove, "Take a vote away; the rest must keep a majority")
            .knows(voters::REMOVE_PARAMETERS)
            .example("node_id", "99")
            .object::<voters::ChangeBody>(202)
            .object::<voters::ChangeBody>(200)
            .fails(voters::FAILURES)
            .expects(404),
        routes::post("/quorum:transfer-leader", voters::transfer, "Hand leadership of the quorum to another voter")
            .takes::<voters::TransferBody>(json!({ "target_id": 1 }))
            .object::<voters::LeaderBody>(200)
            .fails(&[(409, 40917, "it is no voter, is behind or does not answer")]),
    ]
}

#[derive(Debug, Serialize, JsonSchema)]
struct QuorumBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: Option<String>,
    leader_id: Option<i32>,
    leader_epoch: u64,
    high_watermark: Option<u64>,
    log_end_offset: Option<u64>,
    snapshot_offset: Option<u64>,
    purged_offset: Option<u64>,
    quorum_ack_age_ms: Option<u64>,
    majority: usize,
    can_lose: Option<usize>,
    membership_state: &'static str,
    current_voters: Vec<MemberBody>,
    observers: Vec<MemberBody>,
    views: Vec<ViewBody>,
    /// Why no cluster is formed yet, or why this voter may not vote.
    notes: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MemberBody {
    replica_id: i32,
    directory_id: String,
    log_end_offset: Option<u64>,
    lag: Option<u64>,
    last_fetch_timestamp_ms: Option<i64>,
    last_caught_up_timestamp_ms: Option<i64>,
    status: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ViewBody {
    node_id: i32,
    state: Option<&'static str>,
    leader_id: Option<i32>,
    leader_epoch: Option<u64>,
    voted_for: Option<i32>,
    log_end_offset: Option<u64>,
    applied_offset: Option<u64>,
    leader_heard_age_ms: Option<u64>,
    reachable: bool,
    note: Option<String>,
}

/// How the API spells a role.
pub const fn role_name(role: QuorumRole) -> &'static str {
    match role {
        QuorumRole::Leader => "LEADER",
        QuorumRole::Follower => "FOLLOWER",
        QuorumRole::Candidate => "CANDIDATE",
        QuorumRole::Observer => "OBSERVER",
        QuorumRole::Unformed => "UNFORMED",
        QuorumRole::Stopped => "STOPPED",
    }
}

/// The views of all nodes that belong to the quorum, this one's first; `None`: it did not answer within 2 s.
pub async fn views(admin: &AdminState) -> BTreeMap<BrokerId, Option<QuorumStatus>> {
    let own = admin.quorum.status();
    let image = admin.quorum.image();
    let mut nodes: Vec<BrokerId> = own.voters.iter().chain(&own.observers).map(|member| member.node).collect();
    nodes.extend(image.brokers.keys());
    nodes.extend(&admin.config.voters);
    nodes.sort_unstable();
    nodes.dedup();
    nodes.retain(|node| *node != own.node);
    let calls = nodes.into_iter().map(|node| async move {
        let view = admin.peers.quorum(&admin.quorum, node, BUDGET).await;
        (node, view.filter(|view| view.node == node))
    });
    let mut views: BTreeMap<_, _> = futures::future::join_all(calls).await.into_iter().collect();
    views.insert(own.node, Some(own));
    views
}

/// The leader's own view, which alone has the progress of the others; `None` without a leader that answers and that is
/// answered.
pub fn of_leader(views: &BTreeMap<BrokerId, Option<QuorumStatus>>) -> Option<&QuorumStatus> {
    let leading = views.values().flatten().filter(|view| view.leads());
    // A deposed leader that has not noticed has the smaller term.
    leading.max_by_key(|view| view.term)
}

/// An offset is where the next entry goes; raft counts the last one.
fn end(last: Option<u64>) -> Option<u64> {
    last.map(|last| last + 1)
}

/// `GET /quorum`: 200 also without a leader.
pub async fn show(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read_unformed(&admin, &cluster, &[])?;
    let own = admin.quorum.status();
    let views = views(&admin).await;
    let leader = of_leader(&views);
    let basis = leader.unwrap_or(&own);
    let mut notes: Vec<String> = Vec::new();
    for view in views.values().flatten() {
        let said = view.waiting.iter().chain(&view.wiped).chain(&view.failed);
        notes.extend(said.map(|note| format!("node {}: {note}", view.node)));
    }
    let members = |members: &[QuorumMember], voter: bool| -> Vec<MemberBody> {
        members.iter().map(|member| member_body(*member, voter, leader)).collect()
    };
    let body = QuorumBody {
        kind: "KafkaQuorum",
        metadata: read.links.metadata("/quorum", &["quorum".to_owned()]),
        cluster_id: own.cluster_id.clone(),
        leader_id: leader.map(|leader| leader.node.0),
        leader_epoch: basis.term,
        high_watermark: end(basis.committed),
        log_end_offset: end(basis.last_log),
        snapshot_offset: basis.snapshot,
        purged_offset: basis.purged,
        quorum_ack_age_ms: leader.and_then(|leader| leader.quorum_ack_age_ms),
        majority: basis.majority,
        can_lose: leader.and_then(|leader| leader.can_lose),
        membership_state: if basis.joint { "JOINT" } else { "UNIFORM" },
        current_voters: members(&basis.voters, true),
        observers: members(&basis.observers, false),
        views: views.iter().map(|(node, view)| view_body(*node, view.as_ref())).collect(),
        notes,
    };
    read.object(StatusCode::OK, &body)
}

fn member_body(member: QuorumMember, voter: bool, leader: Option<&QuorumStatus>) -> MemberBody {
    let peer = leader.and_then(|leader| leader.peers.iter().find(|peer| peer.member == member));
    let contact = peer.and_then(|peer| peer.contact_age_ms).map(|age| now_ms() - i64::try_from(age).unwrap_or(0));
    let leads = leader.is_some_and(|leader| leader.node == member.node && leader.directory == member.directory);
    MemberBody {
        replica_id: member.node.0,
        directory_id: member.directory.to_string(),
        log_end_offset: peer.and_then(|peer| end(peer.matched)),
        lag: peer.map(|peer| peer.lag),
        last_fetch_timestamp_ms: contact,
        last_caught_up_timestamp_ms: contact.filter(|_| peer.is_some_and(|peer| peer.lag == 0)),
        status: match (leads, voter) {
            (true, _) => "LEADER",
            (false, true) => "FOLLOWER",
            (false, false) => "OBSERVER",
        },
    }
}

fn view_body(node: BrokerId, view: Option<&QuorumStatus>) -> ViewBody {
    ViewBody {
        node_id: node.0,
        state: view.map(|view| role_name(view.role)),
        leader_id: view.and_then(|view| view.leader).map(|leader| leader.0),
        leader_epoch: view.map(|view| view.term),
        voted_for: view.and_then(|view| view.voted_for).map(|node| node.0),
        log_end_offset: view.and_then(|view| end(view.last_log)),
        applied_offset: view.and_then(|view| view.applied),
        leader_heard_age_ms: view.and_then(|view| view.leader_heard_age_ms),
        reachable: view.is_some(),
        note: view.and_then(|view| view.failed.clone().or(view.wiped.clone()).or(view.waiting.clone())),
    }
}
