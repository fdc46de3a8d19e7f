//! The other brokers, as far as an image knows them.

use std::collections::BTreeMap;

use highwater_wire::{BrokerEpoch, BrokerId};

/// Who is registered, as of one image. Shared by all replicas of a broker; ordered, and small.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers(pub BTreeMap<BrokerId, Peer>);

/// One registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub epoch: BrokerEpoch,
    /// Unfenced and not shutting down: may be in an ISR (R116).
    pub active: bool,
    /// Has an inter-broker address, so that it can be fetched from (R145).
    pub reachable: bool,
}

impl Peers {
    /// The registration of a broker.
    pub fn get(&self, broker: BrokerId) -> Option<&Peer> {
        self.0.get(&broker)
    }
}
