//! Forming a cluster, once: every voter listed is fresh, and the lowest id says so (D2). Finding out that this voter
//! lost its disk, and staying up to say why (D1, R218).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_wire::{BrokerId, DirectoryId};
use openraft::EmptyNode;
use openraft::async_runtime::watch::WatchReceiver as _;
use serde::{Deserialize, Serialize};

use super::network::url_of;
use super::node::Node;
use super::types::NodeId;
use crate::status::QuorumMember;

const ASK: Duration = Duration::from_millis(500);
/// Between rounds: fast while a cluster is starting, slower when somebody stays away.
const FAST: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_millis(250);
const FAST_ROUNDS: u32 = 150;

/// What a node answers to `/formation`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FormationAnswer {
    pub node: BrokerId,
    pub directory: DirectoryId,
    /// Vote of term 0 and an empty log.
    pub fresh: bool,
    pub cluster_id: Option<String>,
    /// As configured; must agree where given.
    pub cluster_id_given: Option<String>,
    /// The members it knows, voters and learners.
    pub members: Vec<QuorumMember>,
    /// The asking node, under another directory, is one of the voters.
    pub voter_with_other_directory: Option<DirectoryId>,
    /// Where this node reaches itself and the members.
    #[serde(default)]
    pub addresses: BTreeMap<BrokerId, String>,
}

impl FormationAnswer {
    /// # Errors
    /// Raft stopped here.
    pub async fn of(node: &Node, asking: BrokerId, directory: DirectoryId) -> Result<Self, String> {
        let fresh = !node.raft.is_initialized().await.map_err(|fatal| fatal.to_string())?;
        let metrics = node.raft.metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        let voter = membership.voter_ids().find(|voter| voter.node == asking).map(|voter| voter.directory);
        let known = membership.nodes().filter(|(id, _)| **id != node.id);
        let known = known.filter_map(|(id, _)| Some((id.node, node.peers.url(id.node)?)));
        Ok(Self {
            node: node.id.node,
            directory: node.id.directory,
            fresh,
            cluster_id: node.cluster_id(),
            cluster_id_given: node.cluster_id_given.clone(),
            members: membership.nodes().map(|(id, _)| QuorumMember::from(*id)).collect(),
            voter_with_other_directory: voter.filter(|known| *known != directory),
            addresses: known.chain([(node.id.node, url_of(&node.advertised))]).collect(),
        })
    }
}

/// Runs until this node belongs to a cluster: forms one, or waits for one to take it in.
pub(crate) async fn run(node: Arc<Node>) {
    let mut stopping = node.stopping.subscribe();
    for round in 0u32.. {
        match step(&node).await {
            Ok(true) => {
                *node.standing.lock() = super::node::Standing::default();
                node.living.send_replace(None);
                return;
            }
            Ok(false) => {}
            Err(why) => set_waiting(&node, Some(why)),
        }
        let pause = if round < FAST_ROUNDS { FAST } else { SLOW };
        tokio::select! {
            _ = tokio::time::sleep(pause) => {}
            _ = stopping.changed() => return,
        }
    }
}

/// Says why, once per reason.
fn set_waiting(node: &Node, why: Option<String>) {
    let mut standing = node.standing.lock();
    if standing.waiting != why {
        if let Some(why) = &why {
            tracing::info!(why, "waiting for the metadata quorum");
        }
        standing.waiting = why;
    }
}

/// One look around; true when this node belongs to a cluster.
async fn step(node: &Arc<Node>) -> Result<bool, String> {
    if node.raft.is_initialized().await.map_err(|fatal| fatal.to_string())? {
        return Ok(true);
    }
    let voters = node.peers.voters();
    let Round { answers, missing, silent } = ask_all(node).await?;
    check_cluster_id(node, &answers)?;

    // A living cluster comes first: two wiped voters never found a second one over a third that remembers.
    let living: Vec<&FormationAnswer> = answers.values().filter(|answer| !answer.fresh).collect();
    if !living.is_empty() {
        living.iter().for_each(|answer| node.peers.learn(&answer.addresses));
        judge_own_disk(node, &living);
        let wiped = node.standing.lock().wiped.clone();
        let why = wiped.unwrap_or_else(|| not_taken_in(node));
        set_waiting(node, Some(why));
        return Ok(false);
    }
    if voters.is_empty() {
        return Err(match silent.is_empty() {
            true => "the voters have not formed a cluster yet".to_owned(),
            false => format!("nobody tells of a cluster: {}", silent.join("; ")),
        });
    }
    if !missing.is_empty() {
        return Err(format!("{} of {} voters are missing: {}", missing.len(), voters.len(), missing.join("; ")));
    }
    if !voters.contains_key(&node.id.node) {
        return Err("the voters have not formed a cluster yet".to_owned());
    }
    set_waiting(node, None);
    if voters.keys().next() != Some(&node.id.node) {
        return Ok(false);
    }
    let mut members: BTreeMap<NodeId, EmptyNode> = BTreeMap::from([(node.id, EmptyNode {})]);
    // Whoever else answered at a bootstrap server is no voter.
    let listed = answers.values().filter(|answer| voters.contains_key(&answer.node));
    members.extend(listed.map(|answer| (NodeId { node: answer.node, directory: answer.directory }, EmptyNode {})));
    let ids: Vec<String> = members.keys().map(NodeId::to_string).collect();
    match node.raft.initialize(members).await {
        Ok(()) => tracing::info!(voters = ids.join(", "), "formed the metadata quorum"),
        Err(error) => tracing::debug!(%error, "not formed here"),
    }
    Ok(true)
}

/// What everybody who may know of a cluster said.
struct Round {
    answers: BTreeMap<BrokerId, FormationAnswer>,
    /// Voters that did not answer.
    missing: Vec<String>,
    /// Bootstrap servers that did not.
    silent: Vec<String>,
}

/// Asks the configured voters, and whoever is at the bootstrap servers.
async fn ask_all(node: &Node) -> Result<Round, String> {
    let voters = node.peers.voters();
    let path = format!("/formation?node={}&directory={}", node.id.node, node.id.directory);
    let asked = voters.keys().filter(|voter| **voter != node.id.node).map(|voter| {
        let path = path.as_str();
        async move { (*voter, node.peers.get_json::<FormationAnswer>(*voter, path, ASK).await) }
    });
    let bootstrap = node
        .peers
        .bootstrap()
        .iter()
        .filter(|endpoint| **endpoint != node.advertised && !voters.values().any(|voter| voter == *endpoint));
    let bootstrap = bootstrap.map(|endpoint| {
        let (path, url) = (path.as_str(), url_of(endpoint));
        async move {
            let answer = node.peers.get_json_at::<FormationAnswer>(&url, path, ASK).await;
            (url, answer)
        }
    });
    let (asked, bootstrap) = tokio::join!(futures::future::join_all(asked), futures::future::join_all(bootstrap));
    let mut round = Round { answers: BTreeMap::new(), missing: Vec::new(), silent: Vec::new() };
    for (voter, answer) in asked {
        match answer {
            Ok(answer) if answer.node == voter => {
                round.answers.insert(voter, answer);
            }
            Ok(answer) => {
                let at = &voters[&voter];
                return Err(format!(
                    "node {} answers at {}:{}, where controller.quorum.voters names {voter}: correct it",
                    answer.node, at.host, at.port
                ));
            }
            Err(error) => round.missing.push(format!("voter {voter} does not answer ({error})")),
        }
    }
    for (url, answer) in bootstrap {
        match answer {
            Ok(answer) if answer.node == node.id.node => {}
            Ok(answer) => {
                round.answers.entry(answer.node).or_insert(answer);
            }
            Err(error) => round.silent.push(format!("{url} does not answer ({error})")),
        }
    }
    Ok(round)
}

/// What a node outside a living cluster waits for.
fn not_taken_in(node: &Node) -> String {
    if node.roles.broker {
        return "a cluster exists and has not yet taken this node in".to_owned();
    }
    format!(
        "a cluster exists, and this controller is none of its voters. Make it one: highwater quorum add-voter --node {} \
         --directory-id {} --endpoint {}:{} --wait",
        node.id.node, node.id.directory, node.advertised.host, node.advertised.port
    )
}

/// A given cluster id that differs from the cluster's, or from another voter's, is refused with both named.
fn check_cluster_id(node: &Node, answers: &BTreeMap<BrokerId, FormationAnswer>) -> Result<(), String> {
    let Some(ours) = &node.cluster_id_given else { return Ok(()) };
    for answer in answers.values() {
        if let Some(theirs) = answer.cluster_id.as_ref().or(answer.cluster_id_given.as_ref())
            && theirs != ours
        {
            return Err(format!(
                "this node is configured for cluster {ours}, node {} belongs to {theirs}: correct CLUSTER_ID or the \
                 voters",
                answer.node
            ));
        }
    }
    Ok(())
}

/// This node is fresh and a cluster lives: is it one of its voters, with another disk?
fn judge_own_disk(node: &Node, living: &[&FormationAnswer]) {
    let me = QuorumMember::from(node.id);
    let known = living.iter().any(|answer| answer.members.contains(&me));
    let cluster_id = living.iter().find_map(|answer| answer.cluster_id.clone());
    let old = living.iter().find_map(|answer| answer.voter_with_other_directory);
    let wiped = match old {
        Some(old) if !known => Some(format!(
            "the metadata directory {} is new (directory id {}), but the quorum knows voter {} by directory id {old}: \
             this voter lost its disk and may not vote again. Bring the old directory back, or replace the voter: \
             highwater quorum add-voter --node {} --directory-id {} --replace {} --wait",
            node.store.directory().display(),
            node.id.directory,
            node.id.node,
            node.id.node,
            node.id.directory,
            node.id.node,
        )),
        _ => None,
    };
    // A voter that lost its disk is not taken in by registering: somebody has to say that it is replaced.
    let to_join = cluster_id.filter(|_| !known && old.is_none());
    node.living.send_if_modified(|living| std::mem::replace(living, to_join.clone()) != to_join);
    let mut standing = node.standing.lock();
    if standing.wiped != wiped {
        if let Some(wiped) = &wiped {
            tracing::error!(why = wiped, "this voter is not the one the quorum knows");
        }
        standing.wiped = wiped;
    }
}
