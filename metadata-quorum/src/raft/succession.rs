//! The short road to a new raft leader (D5): a voter that has proof of the leader's death stands at once, with the dead
//! leader's vote as its warrant, which its peers accept inside their lease.
//!
//! Safe whatever the proof is worth: what follows is an ordinary vote in a new term.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::TransferLeaderRequest;

use super::node::Node;
use super::probe::{Suspect, Verdict, prove};
use super::types::{LogId, NodeId, Vote};

/// Voter number k by id waits k times this, so that they do not stand against each other.
const PER_RANK: Duration = Duration::from_millis(150);

/// The leader this node follows as a voter, with its vote, this node's last entry and its rank among the survivors.
fn followed(node: &Node) -> Option<(NodeId, Vote, Option<LogId>, u32)> {
    let metrics = node.raft.metrics();
    let metrics = metrics.borrow_watched();
    let leader = metrics.current_leader?;
    let vote = metrics.vote;
    if leader == node.id || !vote.committed || vote.leader_id.voted_for != leader {
        return None;
    }
    let survivors: std::collections::BTreeSet<NodeId> =
        metrics.membership_config.voter_ids().filter(|voter| *voter != leader).collect();
    let rank = survivors.iter().position(|voter| *voter == node.id)?;
    let last = node.raft.data_metrics().borrow_watched().last_log;
    Some((leader, vote, last, u32::try_from(rank).ok()?))
}

/// Checks whether the raft leader is dead and if so stands for its succession. True if this node stood.
pub(crate) async fn succeed(node: &Arc<Node>) -> bool {
    let Some((leader, vote, _, rank)) = followed(node) else { return false };
    let Some(url) = node.peers.url(leader.node) else { return false };
    let image = node.image();
    let incarnation = image.brokers.get(&leader.node).map(|broker| broker.incarnation);
    let suspect = Suspect { node: leader.node, url, incarnation, cluster_id: node.cluster_id() };
    let Verdict::Dead(proof) = prove(node.peers.transport.as_ref(), &suspect).await else { return false };
    tokio::time::sleep(PER_RANK * rank).await;
    // Somebody of a lower rank may have stood meanwhile.
    let Some((still, vote_now, last, _)) = followed(node) else { return false };
    if still != leader || vote_now != vote {
        return false;
    }
    tracing::info!(leader = %leader.node, proof, rank, "the raft leader is dead, standing for its succession");
    let request = TransferLeaderRequest::new(vote, node.id, last);
    match node.raft.handle_transfer_leader(request).await {
        Ok(Ok(())) => true,
        Ok(Err(refused)) => {
            tracing::debug!(%refused, "did not stand after all");
            false
        }
        Err(_) => false,
    }
}
