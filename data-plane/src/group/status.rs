//! What people are told of a group. Pure.

use highwater_wire::{Millis, Timestamp, subscription};

use super::classic::{ClassicGroup, Rebalance, State};

/// One group as its coordinator knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    pub id: String,
    pub state: State,
    /// When it entered its state.
    pub state_since: Timestamp,
    pub generation: i32,
    /// `consumer`, `connect`, …; `None` for one that only ever committed.
    pub protocol_type: Option<String>,
    /// How its members share the work; `None` while they join.
    pub protocol: Option<String>,
    pub leader: Option<String>,
    pub members: Vec<MemberStatus>,
    pub positions: Vec<PositionStatus>,
    /// The generations that began here, oldest first: at most 32.
    pub history: Vec<Rebalance>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    pub id: String,
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub session_timeout: Millis,
    /// What it was given; empty while members join, and where the protocol is not the consumers'.
    pub assigned: Vec<(String, Vec<i32>)>,
}

/// One committed position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionStatus {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub metadata: String,
    pub committed_at: Timestamp,
}

impl ClassicGroup {
    /// As of now.
    pub fn status(&self) -> GroupStatus {
        let stable = self.state() == State::Stable;
        let members = self.members().map(|member| MemberStatus {
            id: member.id.clone(),
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            session_timeout: member.session_timeout,
            assigned: Some(&member.assignment)
                .filter(|_| stable)
                .and_then(|assignment| subscription::assigned(assignment))
                .unwrap_or_default(),
        });
        let positions = self.offsets.iter().map(|(topic, partition, value)| PositionStatus {
            topic: topic.to_owned(),
            partition,
            offset: value.offset,
            metadata: value.metadata.clone(),
            committed_at: value.committed_at,
        });
        GroupStatus {
            id: self.id.clone(),
            state: self.state(),
            state_since: self.state_since(),
            generation: self.generation(),
            protocol_type: self.protocol_type().map(str::to_owned),
            protocol: self.protocol().filter(|_| stable).map(str::to_owned),
            leader: self.leader().map(str::to_owned),
            members: members.collect(),
            positions: positions.collect(),
            history: self.history().cloned().collect(),
        }
    }
}
