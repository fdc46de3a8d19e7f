//! Who belongs to raft: brokers that are no voters learn (D3); a lost voter is replaced on purpose (D1).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use highwater_wire::BrokerId;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, EmptyNode};

use super::node::{Node, Reply};
use super::types::{NodeId, TypeConfig};
use crate::controller::Refusal;
use crate::image::MetadataImage;
use crate::status::QuorumMember;

/// A new voter may lack this many entries when it starts to vote.
const PROMOTE_LAG: u64 = 100;

/// The next change of the learners that the registrations ask for; one membership entry at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LearnerChange {
    Add(NodeId),
    Remove(NodeId),
}

/// What the learners should be: every registered broker that is no voter, as the disk it registered with. Pure.
pub(crate) fn learner_change(
    image: &MetadataImage,
    voters: &BTreeSet<NodeId>,
    learners: &BTreeSet<NodeId>,
    promoting: &BTreeSet<NodeId>,
) -> Option<LearnerChange> {
    let is_voter = |node: BrokerId| voters.iter().any(|voter| voter.node == node);
    for learner in learners.iter().filter(|learner| !is_voter(learner.node) && !promoting.contains(learner)) {
        match image.brokers.get(&learner.node) {
            Some(broker) if broker.metadata_dir == learner.directory => {}
            // Unregistered, or its disk was wiped: the old one never comes back.
            _ => return Some(LearnerChange::Remove(*learner)),
        }
    }
    let wanted = image.brokers.values().filter(|broker| !is_voter(broker.id));
    let mut wanted = wanted.map(|broker| NodeId { node: broker.id, directory: broker.metadata_dir });
    wanted.find(|id| !learners.contains(id)).map(LearnerChange::Add)
}

impl Node {
    fn members(&self) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let metrics = self.raft.metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        (membership.voter_ids().collect(), membership.membership().learner_ids().collect())
    }

    /// Adds or removes one learner if the registrations ask for it. True when something was changed.
    pub async fn settle_learners(&self) -> bool {
        let (voters, learners) = self.members();
        let Some(change) = learner_change(&self.image(), &voters, &learners, &self.promoting.lock()) else {
            return false;
        };
        let changed = match &change {
            LearnerChange::Add(id) => self.raft.add_learner(*id, EmptyNode {}, false).await,
            LearnerChange::Remove(id) => {
                self.raft.change_membership(ChangeMembers::RemoveNodes(BTreeSet::from([*id])), true).await
            }
        };
        match changed {
            Ok(_) => {
                tracing::info!(?change, "changed the observers of the metadata quorum");
                true
            }
            // Another change is under way: the next round tries again.
            Err(error) => {
                tracing::debug!(%error, ?change, "observers unchanged");
                false
            }
        }
    }

    /// Makes `new` a voter, and with `replace` the old one none. This node must lead. Waits until the new one has
    /// caught up; the change itself is one joint step.
    pub async fn change_voter(&self, new: QuorumMember, replace: Option<BrokerId>, timeout: Duration) -> Reply<()> {
        let new = NodeId::from(new);
        self.promoting.lock().insert(new);
        let changed = tokio::time::timeout(timeout, self.change_voter_unbounded(new, replace)).await;
        self.promoting.lock().remove(&new);
        changed.unwrap_or_else(|_| Reply::Unsure {
            why: format!("node {new} has not caught up within {} ms; it goes on as an observer", timeout.as_millis()),
        })
    }

    async fn change_voter_unbounded(&self, new: NodeId, replace: Option<BrokerId>) -> Reply<()> {
        let (voters, learners) = self.members();
        if voters.contains(&new) {
            return Reply::Done(());
        }
        let old = voters.iter().find(|voter| Some(voter.node) == replace);
        if let Some(replace) = replace
            && old.is_none()
        {
            return Reply::Refused(Refusal::InvalidRequest(format!("node {replace} is no voter")));
        }
        if let Some(twice) = voters.iter().find(|voter| voter.node == new.node && Some(voter.node) != replace) {
            let why = format!("node {} is a voter already, with directory {}: replace it", twice.node, twice.directory);
            return Reply::Refused(Refusal::InvalidRequest(why));
        }
        if !learners.contains(&new) {
            match self.raft.add_learner(new, EmptyNode {}, false).await {
                Ok(_) => {}
                Err(error) => return self.membership_error(error),
            }
        }
        let mut metrics = self.raft.metrics();
        loop {
            let (leads, close) = {
                let now = metrics.borrow_and_update();
                let matched = now.replication.as_ref().and_then(|all| all.get(&new).cloned().flatten());
                let last = now.last_log_index.unwrap_or(0);
                (now.state.is_leader(), matched.is_some_and(|at| at.index + PROMOTE_LAG >= last))
            };
            if !leads {
                return Reply::NotLeader { leader: self.leader().map(|leader| leader.node) };
            }
            if close {
                break;
            }
            if metrics.changed().await.is_err() {
                return Reply::Stopped { why: "raft ended".to_owned() };
            }
        }
        let mut after: BTreeMap<NodeId, EmptyNode> = voters.iter().map(|voter| (*voter, EmptyNode {})).collect();
        if let Some(old) = old {
            after.remove(old);
        }
        after.insert(new, EmptyNode {});
        let ids: BTreeSet<NodeId> = after.into_keys().collect();
        match self.raft.change_membership(ids, false).await {
            Ok(_) => {
                tracing::info!(%new, ?replace, "changed the voters of the metadata quorum");
                Reply::Done(())
            }
            Err(error) => self.membership_error(error),
        }
    }

    fn membership_error(&self, error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Reply<()> {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => {
                Reply::NotLeader { leader: self.leader().map(|leader| leader.node) }
            }
            RaftError::APIError(ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_))) => {
                Reply::Refused(Refusal::InvalidRequest("another membership change is under way: try again".to_owned()))
            }
            RaftError::APIError(error) => Reply::Unsure { why: error.to_string() },
            RaftError::Fatal(fatal) => Reply::Stopped { why: fatal.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use highwater_wire::DirectoryId;

    use super::*;
    use crate::controller::testing;
    use crate::image::Change;

    fn id(node: i32, directory: u8) -> NodeId {
        NodeId { node: BrokerId(node), directory: DirectoryId::from_bytes([directory; 16]) }
    }

    /// An image with these brokers, each on the metadata directory given.
    fn image(brokers: &[NodeId]) -> MetadataImage {
        let mut image = MetadataImage::default();
        for broker in brokers {
            let registration = testing::broker(broker.node.0, crate::image::BrokerState::Active);
            let metadata_dir = broker.directory;
            image.apply(&Change::Broker(Arc::new(crate::image::BrokerRegistration { metadata_dir, ..registration })));
        }
        image
    }

    #[test]
    fn registered_brokers_that_do_not_vote_learn() {
        let (voters, none) = (BTreeSet::from([id(1, 1)]), BTreeSet::new());
        let image = image(&[id(1, 1), id(2, 2)]);
        let add = learner_change(&image, &voters, &none, &none);
        assert_eq!(add, Some(LearnerChange::Add(id(2, 2))));
        assert_eq!(learner_change(&image, &voters, &BTreeSet::from([id(2, 2)]), &none), None);
    }

    #[test]
    fn a_wiped_observer_is_replaced_and_a_wiped_voter_is_not() {
        let (voters, none) = (BTreeSet::from([id(1, 1)]), BTreeSet::new());
        let image = image(&[id(1, 7), id(2, 7)]);
        let learners = BTreeSet::from([id(2, 2)]);
        assert_eq!(learner_change(&image, &voters, &learners, &none), Some(LearnerChange::Remove(id(2, 2))));
        assert_eq!(learner_change(&image, &voters, &none, &none), Some(LearnerChange::Add(id(2, 7))));
        assert_eq!(learner_change(&image, &voters, &BTreeSet::from([id(2, 7)]), &none), None, "voter 1 stays out");
    }

    #[test]
    fn an_unregistered_observer_goes_unless_it_is_about_to_vote() {
        let (voters, none) = (BTreeSet::from([id(1, 1)]), BTreeSet::new());
        let (image, learners) = (image(&[id(1, 1)]), BTreeSet::from([id(4, 4)]));
        assert_eq!(learner_change(&image, &voters, &learners, &none), Some(LearnerChange::Remove(id(4, 4))));
        assert_eq!(learner_change(&image, &voters, &learners, &learners), None);
    }
}
