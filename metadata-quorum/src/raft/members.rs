//! Who learns from raft: brokers that are no voters (D3), and controllers that were added and do not vote (yet).

use std::collections::BTreeSet;

use highwater_wire::{BrokerId, DirectoryId};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{ChangeMembers, EmptyNode};

use super::node::Node;
use super::types::NodeId;
use crate::image::MetadataImage;

/// The next change of the learners that the registrations ask for; one membership entry at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LearnerChange {
    Add(NodeId),
    Remove(NodeId),
}

/// What the learners should be: every registered broker and every added controller that is no voter, each as the disk
/// it is known by. Pure.
pub(crate) fn learner_change(
    image: &MetadataImage,
    voters: &BTreeSet<NodeId>,
    learners: &BTreeSet<NodeId>,
    promoting: Option<NodeId>,
) -> Option<LearnerChange> {
    let is_voter = |node: BrokerId| voters.iter().any(|voter| voter.node == node);
    let disk = |node: BrokerId| -> Option<DirectoryId> {
        let broker = image.brokers.get(&node).map(|broker| broker.metadata_dir);
        broker.or_else(|| image.controllers.get(&node).map(|controller| controller.directory))
    };
    // Unregistered, or its disk was wiped: the old one never comes back.
    let useless = |learner: &&NodeId| {
        !is_voter(learner.node) && promoting != Some(**learner) && disk(learner.node) != Some(learner.directory)
    };
    if let Some(learner) = learners.iter().find(useless) {
        return Some(LearnerChange::Remove(*learner));
    }
    let nodes: BTreeSet<BrokerId> = image.brokers.keys().chain(image.controllers.keys()).copied().collect();
    let mut wanted = nodes.into_iter().filter(|node| !is_voter(*node));
    let id = |node| disk(node).map(|directory| NodeId { node, directory });
    wanted.find_map(|node| id(node).filter(|id| !learners.contains(id))).map(LearnerChange::Add)
}

impl Node {
    /// Voters and learners.
    pub(super) fn members(&self) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let metrics = self.raft.metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        (membership.voter_ids().collect(), membership.membership().learner_ids().collect())
    }

    /// Adds or removes one learner if the registrations ask for it. True when something was changed.
    pub async fn settle_learners(&self) -> bool {
        if self.finish_joint_step().await {
            return true;
        }
        let (voters, learners) = self.members();
        let Some(change) = learner_change(&self.image(), &voters, &learners, self.promoting()) else {
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
        let add = learner_change(&image, &voters, &none, None);
        assert_eq!(add, Some(LearnerChange::Add(id(2, 2))));
        assert_eq!(learner_change(&image, &voters, &BTreeSet::from([id(2, 2)]), None), None);
    }

    #[test]
    fn a_wiped_observer_is_replaced_and_a_wiped_voter_is_not() {
        let (voters, none) = (BTreeSet::from([id(1, 1)]), BTreeSet::new());
        let image = image(&[id(1, 7), id(2, 7)]);
        let learners = BTreeSet::from([id(2, 2)]);
        assert_eq!(learner_change(&image, &voters, &learners, None), Some(LearnerChange::Remove(id(2, 2))));
        assert_eq!(learner_change(&image, &voters, &none, None), Some(LearnerChange::Add(id(2, 7))));
        assert_eq!(learner_change(&image, &voters, &BTreeSet::from([id(2, 7)]), None), None, "voter 1 stays out");
    }

    #[test]
    fn an_added_controller_learns_until_it_is_forgotten() {
        let (voters, none) = (BTreeSet::from([id(1, 1)]), BTreeSet::new());
        let mut image = image(&[id(1, 1)]);
        let endpoint = crate::image::Endpoint { host: "n4".to_owned(), port: 9093 };
        let (node, directory) = (BrokerId(4), id(4, 4).directory);
        let since = highwater_wire::Timestamp(1);
        let controller = crate::image::ControllerRegistration { node, directory, endpoint, since };
        image.apply(&Change::Controller(Arc::new(controller)));
        assert_eq!(learner_change(&image, &voters, &none, None), Some(LearnerChange::Add(id(4, 4))));
        let learners = BTreeSet::from([id(4, 4)]);
        assert_eq!(learner_change(&image, &voters, &learners, None), None);
        assert_eq!(learner_change(&image, &BTreeSet::from([id(1, 1), id(4, 4)]), &none, None), None, "it votes");
        image.apply(&Change::ControllerRemoved(node));
        assert_eq!(learner_change(&image, &voters, &learners, None), Some(LearnerChange::Remove(id(4, 4))));
    }

    #[test]
    fn an_unregistered_observer_goes_unless_it_is_about_to_vote() {
        let voters = BTreeSet::from([id(1, 1)]);
        let (image, learners) = (image(&[id(1, 1)]), BTreeSet::from([id(4, 4)]));
        assert_eq!(learner_change(&image, &voters, &learners, None), Some(LearnerChange::Remove(id(4, 4))));
        assert_eq!(learner_change(&image, &voters, &learners, Some(id(4, 4))), None);
    }
}
