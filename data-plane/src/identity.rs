//! Who this broker is: its id, and the epoch under which this process registered.

use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering};

use highwater_wire::{BrokerEpoch, BrokerId};
use tokio::sync::Notify;

/// Shared by all that speak for this broker.
#[derive(Debug)]
pub struct Identity {
    pub broker: BrokerId,
    /// −1 until registered.
    epoch: AtomicI64,
    registered: Notify,
}

impl Identity {
    pub fn new(broker: BrokerId) -> Self {
        Self { broker, epoch: AtomicI64::new(-1), registered: Notify::new() }
    }

    /// `None` until registered.
    pub fn epoch(&self) -> Option<BrokerEpoch> {
        BrokerEpoch::from_wire(self.epoch.load(Ordering::Acquire))
    }

    /// The quorum registered this process.
    pub fn registered(&self, epoch: BrokerEpoch) {
        self.epoch.store(epoch.0, Ordering::Release);
        self.registered.notify_waiters();
    }

    /// The epoch, as soon as there is one.
    pub async fn until_registered(&self) -> BrokerEpoch {
        loop {
            let mut registered = pin!(self.registered.notified());
            // From here on no registration is missed.
            registered.as_mut().enable();
            if let Some(epoch) = self.epoch() {
                return epoch;
            }
            registered.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_for_the_registration_wakes_with_its_epoch() {
        let identity = Arc::new(Identity::new(BrokerId(1)));
        let waiting = tokio::spawn({
            let identity = Arc::clone(&identity);
            async move { identity.until_registered().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        identity.registered(BrokerEpoch(7));
        assert_eq!(waiting.await.unwrap(), BrokerEpoch(7));
        assert_eq!(identity.until_registered().await, BrokerEpoch(7), "at once from then on");
    }
}
