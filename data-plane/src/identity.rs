//! Who this broker is: its id, and the epoch under which this process registered.

use std::sync::atomic::{AtomicI64, Ordering};

use highwater_wire::{BrokerEpoch, BrokerId};

/// Shared by all that speak for this broker.
#[derive(Debug)]
pub struct Identity {
    pub broker: BrokerId,
    /// −1 until registered.
    epoch: AtomicI64,
}

impl Identity {
    pub fn new(broker: BrokerId) -> Self {
        Self { broker, epoch: AtomicI64::new(-1) }
    }

    /// `None` until registered.
    pub fn epoch(&self) -> Option<BrokerEpoch> {
        BrokerEpoch::from_wire(self.epoch.load(Ordering::Acquire))
    }

    /// The quorum registered this process.
    pub fn registered(&self, epoch: BrokerEpoch) {
        self.epoch.store(epoch.0, Ordering::Release);
    }
}
