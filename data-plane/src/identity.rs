//! Who this broker is: its id, and the epoch under which this process registered.

use highwater_wire::{BrokerEpoch, BrokerId};
use tokio::sync::watch;

/// Shared by all that speak for this broker.
#[derive(Debug)]
pub struct Identity {
    pub broker: BrokerId,
    /// `None` until registered.
    epoch: watch::Sender<Option<BrokerEpoch>>,
}

impl Identity {
    pub fn new(broker: BrokerId) -> Self {
        Self { broker, epoch: watch::Sender::new(None) }
    }

    /// `None` until registered.
    pub fn epoch(&self) -> Option<BrokerEpoch> {
        *self.epoch.borrow()
    }

    /// The quorum registered this process, perhaps again.
    pub fn registered(&self, epoch: BrokerEpoch) {
        self.epoch.send_replace(Some(epoch));
    }

    /// The epoch, and news of each further one: what was looked at under the old one has to be looked at again.
    pub fn watch(&self) -> watch::Receiver<Option<BrokerEpoch>> {
        self.epoch.subscribe()
    }

    /// The epoch, as soon as there is one.
    pub async fn until_registered(&self) -> BrokerEpoch {
        let mut epochs = self.watch();
        loop {
            if let Some(epoch) = *epochs.borrow_and_update() {
                return epoch;
            }
            // It cannot end: `self` holds the sender.
            let _ = epochs.changed().await;
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
