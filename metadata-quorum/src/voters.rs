//! Changes of the voters: what may be asked, what comes back, and whether it may be done. Pure.
//!
//! A change needs a majority of the old voters and of the new ones for its entry, and the cluster needs one of the new
//! ones from then on. So both sets must hold a majority of voters that answer and have all but the newest entries.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::{BrokerId, DirectoryId};
use serde::{Deserialize, Serialize};

use crate::controller::Refusal;
use crate::image::Endpoint;
use crate::status::QuorumMember;

/// A member this many entries behind the leader cannot stand in for a lost one yet.
pub const CAUGHT_UP_LAG: u64 = 100;

/// A node that is to vote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVoter {
    pub node: BrokerId,
    /// `None`: as the node says itself.
    pub directory: Option<DirectoryId>,
    /// Of its controller listener; `None`: where the metadata or the configuration knows it.
    pub endpoint: Option<Endpoint>,
}

/// What is asked of the raft leader: to add, to remove, or both as one step, which is a replacement (D1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterChange {
    pub add: Option<NewVoter>,
    pub remove: Option<BrokerId>,
    /// A removed voter goes on learning.
    pub retain_as_observer: bool,
    /// Check all, change nothing.
    pub validate_only: bool,
}

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VoterChangeState {
    /// It may be made; nothing was (`validate_only`).
    Planned,
    /// The new voter is an observer that catches up.
    CatchingUp,
    /// The voters are what was asked for.
    Done,
}

/// What is being changed, and how far that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterChangeStatus {
    pub state: VoterChangeState,
    pub add: Option<QuorumMember>,
    pub endpoint: Option<Endpoint>,
    pub remove: Option<QuorumMember>,
    pub before: Vec<QuorumMember>,
    pub after: Vec<QuorumMember>,
    /// Votes needed among `after`.
    pub majority: usize,
    /// Voters among `after` that answer and have caught up; the new one is counted as if it had.
    pub caught_up: usize,
    /// Entries that the new voter lacks; `None`: nothing is known of it yet.
    pub lag: Option<u64>,
}

/// What the leader knows of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Entries it lacks.
    pub lag: u64,
    /// Age of its last answer; `None`: none since this leader leads.
    pub contact_age_ms: Option<u64>,
}

impl Progress {
    /// Whether it could stand in for a lost voter: it has answered within this time and lacks little.
    pub fn is_well(self, heard_within_ms: u64) -> bool {
        self.lag <= CAUGHT_UP_LAG && self.contact_age_ms.is_some_and(|age| age <= heard_within_ms)
    }
}

/// A change spelled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoterPlan {
    pub add: Option<QuorumMember>,
    pub remove: Option<QuorumMember>,
    pub before: BTreeSet<QuorumMember>,
    pub after: BTreeSet<QuorumMember>,
}

impl VoterPlan {
    /// The voters before and after. What has been done already is a plan that changes nothing.
    ///
    /// # Errors
    /// Nothing is asked for; a voter twice; a voter that is none.
    pub fn new(
        voters: &BTreeSet<QuorumMember>,
        add: Option<QuorumMember>,
        remove: Option<BrokerId>,
    ) -> Result<Self, Refusal> {
        let named = |node: BrokerId| voters.iter().find(|voter| voter.node == node).copied();
        let mut after = voters.clone();
        let mut removed = None;
        match (add, remove) {
            (None, None) => return Err(Refusal::InvalidRequest("name a voter to add or to remove".to_owned())),
            (None, Some(node)) => removed = Some(named(node).ok_or(Refusal::VoterNotFound(node))?),
            (Some(new), _) if voters.contains(&new) => {
                removed = remove.filter(|node| *node != new.node).and_then(named);
            }
            (Some(new), replace) => {
                if let Some(node) = replace {
                    removed = Some(named(node).ok_or(Refusal::VoterNotFound(node))?);
                }
                if let Some(twice) = named(new.node)
                    && Some(twice.node) != replace
                {
                    return Err(Refusal::DuplicateVoter { node: twice.node, directory: twice.directory });
                }
            }
        }
        if let Some(old) = removed {
            after.remove(&old);
        }
        after.extend(add);
        Ok(Self { add, remove: removed, before: voters.clone(), after })
    }

    pub fn changes_nothing(&self) -> bool {
        self.before == self.after
    }

    /// Whether this change may be made now: the safety rule of every change of voters. Only who has answered within
    /// `heard_within_ms` counts: take the time since the change was asked for, or a voter that died a moment ago is
    /// counted on. `arriving`: the new voter is still to be waited for, so it counts as caught up. The answer: the well
    /// voters among those after the change.
    ///
    /// # Errors
    /// `QuorumWouldBeLost` with the arithmetic.
    pub fn check(
        &self,
        progress: &BTreeMap<QuorumMember, Progress>,
        heard_within_ms: u64,
        arriving: bool,
    ) -> Result<usize, Refusal> {
        if self.after.is_empty() {
            let why = "the last voter cannot be removed: nobody would own the metadata".to_owned();
            return Err(Refusal::QuorumWouldBeLost(why));
        }
        let well = |member: &&QuorumMember| {
            arriving && self.add == Some(**member)
                || progress.get(*member).is_some_and(|progress| progress.is_well(heard_within_ms))
        };
        let mut count = 0;
        for (set, when) in [(&self.before, "now"), (&self.after, "after the change")] {
            let majority = set.len() / 2 + 1;
            count = set.iter().filter(well).count();
            if count < majority {
                let bad = set.iter().filter(|member| !well(member)).map(|member| member.node.to_string());
                let bad: Vec<String> = bad.collect();
                return Err(Refusal::QuorumWouldBeLost(format!(
                    "{when} {count} of {} voters would answer and be caught up, {majority} are needed; silent or \
                     behind: node {}. Bring those back first",
                    set.len(),
                    bad.join(", ")
                )));
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
#[path = "voters_tests.rs"]
mod tests;
