//! One member of a classic group.

use bytes::Bytes;
use highwater_wire::Millis;
use highwater_wire::group_records::MemberValue;

use super::{JoinRequest, JoinedMember, Protocol, Token};

/// How long a new member may wait in its first join; its session begins afterwards.
pub const NEW_MEMBER_PATIENCE: Millis = Millis(300_000);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub id: String,
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout: Millis,
    pub session_timeout: Millis,
    pub protocols: Vec<Protocol>,
    /// Empty until somebody assigned something.
    pub assignment: Bytes,
    /// The JoinGroup that waits, and whether its sender understands "assign nothing".
    pub joining: Option<(Token, bool)>,
    /// The SyncGroup that waits.
    pub syncing: Option<Token>,
    /// When its session ends, unless a request of it waits; of a new member, when its first join does.
    pub deadline: Millis,
    pub is_new: bool,
}

impl Member {
    /// One that joins.
    pub fn joining(id: String, token: Token, request: &JoinRequest, now: Millis) -> Self {
        Self {
            id,
            instance: request.instance.clone(),
            client_id: request.client_id.clone(),
            client_host: request.client_host.clone(),
            rebalance_timeout: request.rebalance_timeout,
            session_timeout: request.session_timeout,
            protocols: request.protocols.clone(),
            assignment: Bytes::new(),
            joining: Some((token, request.skips_assignment)),
            syncing: None,
            deadline: now + NEW_MEMBER_PATIENCE,
            is_new: true,
        }
    }

    /// One that a former coordinator knew. It gets a whole session.
    pub fn loaded(value: MemberValue, protocol: &str, now: Millis) -> Self {
        let millis = |span: i32| Millis(u64::try_from(span).unwrap_or(0));
        let session_timeout = millis(value.session_timeout_ms);
        Self {
            id: value.member_id,
            instance: value.group_instance_id,
            client_id: value.client_id,
            client_host: value.client_host,
            rebalance_timeout: millis(value.rebalance_timeout_ms),
            session_timeout,
            protocols: vec![Protocol { name: protocol.to_owned(), metadata: value.subscription }],
            assignment: value.assignment,
            joining: None,
            syncing: None,
            deadline: now + session_timeout,
            is_new: false,
        }
    }

    /// As it is written.
    pub fn value(&self, protocol: &str) -> MemberValue {
        let millis = |span: Millis| i32::try_from(span.0).unwrap_or(i32::MAX);
        MemberValue {
            member_id: self.id.clone(),
            group_instance_id: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout_ms: millis(self.rebalance_timeout),
            session_timeout_ms: millis(self.session_timeout),
            subscription: self.metadata(protocol),
            assignment: self.assignment.clone(),
        }
    }

    /// What it says about itself for this protocol; nothing where it does not speak it.
    pub fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols
            .iter()
            .find(|known| known.name == protocol)
            .map(|known| known.metadata.clone())
            .unwrap_or_default()
    }

    /// As the leader is told of it.
    pub fn told(&self, protocol: &str) -> JoinedMember {
        JoinedMember { member_id: self.id.clone(), instance: self.instance.clone(), metadata: self.metadata(protocol) }
    }

    pub fn speaks(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|known| known.name == protocol)
    }

    /// Its session begins anew.
    pub fn heard(&mut self, now: Millis) {
        self.deadline = now + self.session_timeout;
    }

    /// When its session ends; `None`: nobody is silent while we owe them an answer, but for the patience with new ones.
    pub fn session_end(&self) -> Option<Millis> {
        let owed = self.syncing.is_some() || (self.joining.is_some() && !self.is_new);
        (!owed).then_some(self.deadline)
    }

    /// Whether its session has ended.
    pub fn is_due(&self, now: Millis) -> bool {
        self.session_end().is_some_and(|end| end <= now)
    }
}
