//! Voters come, go, lose their disk and hand over (D1), and everybody still finds them afterwards.

use highwater_quorum::image::Endpoint;
use highwater_quorum::{
    NewVoter, QuorumError, QuorumLimits, QuorumMember, QuorumRole, Refusal, VoterChange, VoterChangeState,
    VoterChangeStatus,
};
use highwater_wire::{BrokerId, DirectoryId};

use crate::cluster::{Cluster, PATIENCE, eventually};

impl Cluster {
    fn ask(&self, at: usize, change: &VoterChange) -> Result<VoterChangeStatus, QuorumError> {
        let process = self.nodes[at].process.as_ref().unwrap();
        process.runtime.block_on(process.quorum.client().change_voters(change.clone(), PATIENCE))
    }

    /// Asks until it is done.
    fn change(&self, at: usize, change: &VoterChange) -> VoterChangeStatus {
        let mut last = None;
        eventually("the voters are changed", || {
            last = Some(self.ask(at, change).unwrap());
            last.as_ref().unwrap().state == VoterChangeState::Done
        });
        last.unwrap()
    }

    fn refused(&self, at: usize, change: &VoterChange) -> Refusal {
        match self.ask(at, change) {
            Err(QuorumError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn add(&self, at: usize) -> VoterChange {
        let node = &self.nodes[at];
        let endpoint = Some(Endpoint { host: "127.0.0.1".to_owned(), port: node.address.port() });
        let add = Some(NewVoter { node: node.id, directory: None, endpoint });
        VoterChange { add, remove: None, retain_as_observer: false, validate_only: false }
    }

    fn remove(&self, at: usize) -> VoterChange {
        let remove = Some(self.nodes[at].id);
        VoterChange { add: None, remove, retain_as_observer: false, validate_only: false }
    }

    fn voters_seen_by(&self, at: usize) -> Vec<i32> {
        self.client(at).status().voters.iter().map(|voter| voter.node.0).collect()
    }

    /// Every running node that belongs to the quorum sees these voters, in one uniform step.
    fn await_voters(&self, expected: &[i32], seen_by: &[usize]) {
        eventually(&format!("voters {expected:?}"), || {
            let sees = |at: &usize| self.voters_seen_by(*at) == expected && !self.client(*at).status().joint;
            seen_by.iter().all(sees)
        });
    }
}

#[test]
fn a_wiped_voter_is_refused_and_named_and_replaced_on_purpose() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.await_leader();
    let victim = (leader + 1) % 3;
    let old = cluster.client(victim).status().directory;
    cluster.stop(victim);
    std::fs::remove_dir_all(&cluster.nodes[victim].directory).unwrap();
    cluster.restart(victim);
    eventually("it says what happened", || {
        let wiped = cluster.client(victim).status().wiped;
        wiped.is_some_and(|why| why.contains("lost its disk") && why.contains(&old.to_string()))
    });
    let status = cluster.client(victim).status();
    assert_eq!((status.role, status.term), (QuorumRole::Unformed, 0), "it votes for nobody: {status:?}");
    assert_eq!(*cluster.client(victim).cluster_to_join().borrow(), None, "registering is no way in");

    let node = cluster.nodes[victim].id;
    let new = QuorumMember { node, directory: status.directory };
    let add = NewVoter { node, directory: Some(status.directory), endpoint: None };
    let replace = VoterChange { add: Some(add), remove: Some(node), retain_as_observer: false, validate_only: false };
    let added = VoterChange { remove: None, ..replace.clone() };
    assert!(matches!(cluster.refused(leader, &added), Refusal::DuplicateVoter { .. }), "it must be a replacement");
    let planned = cluster.ask(leader, &VoterChange { validate_only: true, ..replace.clone() }).unwrap();
    assert_eq!((planned.state, planned.majority, planned.caught_up), (VoterChangeState::Planned, 2, 3));
    assert!(planned.after.contains(&new) && !planned.before.contains(&new));
    // Through a follower, which forwards it.
    let done = cluster.change((leader + 2) % 3, &replace);
    assert_eq!(done.add, Some(new));
    eventually("it votes again, as another", || cluster.client(victim).status().role == QuorumRole::Follower);
    eventually("the joint step is over", || {
        let voters = cluster.client(victim).status().voters;
        voters.contains(&new) && voters.len() == 3
    });
    eventually("and says nothing more", || cluster.client(victim).status().wiped.is_none());
    assert_eq!(cluster.ask(leader, &replace).unwrap().state, VoterChangeState::Done, "safe to repeat");
}

#[test]
fn a_voter_that_nobody_has_configured_is_found_after_everybody_restarted() {
    let mut cluster = Cluster::start_with(3, 2, QuorumLimits::default());
    let leader = cluster.await_leader();
    for new in [3, 4] {
        eventually("it says how it gets in, or waits", || cluster.client(new).status().waiting.is_some());
        let added = cluster.change(leader, &cluster.add(new));
        assert_eq!(added.add.unwrap().node, cluster.nodes[new].id);
    }
    cluster.await_voters(&[1, 2, 3, 4, 5], &[0, 1, 2, 3, 4]);
    eventually("where every voter is stands in the metadata of those that know it from nowhere else", || {
        [3, 4].iter().all(|at| cluster.client(*at).image().controllers.size() == 5)
    });
    for at in 0..5 {
        cluster.stop(at);
    }
    for at in 0..5 {
        cluster.restart(at);
    }
    cluster.await_leader();
    cluster.await_voters(&[1, 2, 3, 4, 5], &[0, 1, 2, 3, 4]);
    eventually("all five follow one leader", || {
        let leader = cluster.client(0).leader();
        leader.is_some() && (0..5).all(|at| cluster.client(at).leader() == leader)
    });
    // Two of the first three die: only the added ones can make up a majority with the third.
    cluster.stop(0);
    cluster.stop(1);
    eventually("the rest leads on", || {
        let leader = cluster.client(2).leader().filter(|leader| leader.0 > 2);
        leader.is_some() && [3, 4].iter().all(|at| cluster.client(*at).leader() == leader)
    });
    let refused = cluster.refused(3, &cluster.remove(4));
    assert!(matches!(&refused, Refusal::QuorumWouldBeLost(why) if why.contains("1, 2")), "{refused}");
    let gone = cluster.change(3, &cluster.remove(0));
    assert_eq!(gone.after.len(), 4);
    assert_eq!(cluster.refused(3, &cluster.remove(0)), Refusal::VoterNotFound(BrokerId(1)));
}

#[test]
fn a_leader_that_is_removed_hands_over_first_and_a_retained_voter_goes_on_learning() {
    let cluster = Cluster::start(3);
    let leader = cluster.await_leader();
    let other = (leader + 1) % 3;
    let removed = VoterChange { retain_as_observer: true, ..cluster.remove(leader) };
    let done = cluster.change(leader, &removed);
    assert_eq!(done.after.len(), 2);
    eventually("another leads", || cluster.client(other).leader().is_some_and(|id| id != cluster.nodes[leader].id));
    eventually("it observes", || cluster.client(leader).status().role == QuorumRole::Observer);
    let version = cluster.client(other).image().version;
    eventually("and learns", || cluster.client(leader).image().version >= version);
    let back = cluster.change(other, &cluster.add(leader));
    assert_eq!(back.after.len(), 3);
    eventually("it votes again", || cluster.client(leader).status().role == QuorumRole::Follower);
}

#[test]
fn leadership_goes_to_a_voter_that_is_there_and_to_nobody_else() {
    let mut cluster = Cluster::start_with(3, 1, QuorumLimits::default());
    let leader = cluster.await_leader();
    let (heir, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let ask = |cluster: &Cluster, at: usize, target: usize| {
        let process = cluster.nodes[at].process.as_ref().unwrap();
        let target = cluster.nodes[target].id;
        process.runtime.block_on(process.quorum.client().transfer_leadership(target, PATIENCE))
    };
    ask(&cluster, third, heir).unwrap();
    eventually("the heir leads", || cluster.client(heir).status().role == QuorumRole::Leader);
    ask(&cluster, third, heir).unwrap();
    let no_voter = ask(&cluster, heir, 3).unwrap_err();
    assert!(
        matches!(&no_voter, QuorumError::Refused(Refusal::IneligibleQuorumLeader { why, .. }) if why.contains("no voter"))
    );
    cluster.stop(third);
    let silent = ask(&cluster, heir, third).unwrap_err();
    assert!(matches!(silent, QuorumError::Refused(Refusal::IneligibleQuorumLeader { .. })), "{silent}");
}

#[test]
fn a_voter_to_be_must_be_who_it_is_said_to_be() {
    let mut cluster = Cluster::start_with(3, 1, QuorumLimits::default());
    let leader = cluster.await_leader();
    let good = cluster.add(3);
    let with = |change: &dyn Fn(&mut NewVoter)| {
        let mut asked = good.clone();
        change(asked.add.as_mut().unwrap());
        asked
    };
    let other_disk = with(&|new| new.directory = Some(DirectoryId::from_bytes([9; 16])));
    assert!(
        matches!(cluster.refused(leader, &other_disk), Refusal::InvalidVoterKey(why) if why.contains("leave it out"))
    );
    let other_node = with(&|new| new.node = BrokerId(9));
    assert!(
        matches!(cluster.refused(leader, &other_node), Refusal::InvalidVoterKey(why) if why.contains("node 4 answers"))
    );
    let nowhere = with(&|new| (new.node, new.endpoint) = (BrokerId(9), None));
    assert!(
        matches!(cluster.refused(leader, &nowhere), Refusal::InvalidVoterKey(why) if why.contains("name the endpoint"))
    );
    cluster.stop(3);
    let refused = cluster.refused(leader, &good);
    assert!(matches!(&refused, Refusal::NodeUnreachable(why) if why.contains("cannot catch up")), "{refused}");
    cluster.await_voters(&[1, 2, 3], &[0, 1, 2]);
}
