//! What recovery found short at the start (D10), until the quorum has heard of it.

use highwater_quorum::image::BrokerState;
use highwater_wire::TopicPartition;

/// Partitions of which records are gone that this broker once held.
pub struct Losses(Vec<TopicPartition>);

impl Losses {
    pub const fn new(found: Vec<TopicPartition>) -> Self {
        Self(found)
    }

    /// For the next heartbeat, and for every one until [`Self::heard`]: any may be lost, or come to a raft leader that
    /// answers without having decided anything.
    pub fn told(&self) -> Vec<TopicPartition> {
        self.0.clone()
    }

    /// A heartbeat was answered: only an unfenced broker's report was decided upon.
    pub fn heard(&mut self, state: BrokerState) {
        if state == BrokerState::Active {
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_wire::TopicId;

    #[test]
    fn losses_are_told_until_the_broker_is_unfenced() {
        let lost = vec![TopicPartition::new(TopicId::from_bytes([1; 16]), 0)];
        let mut losses = Losses::new(lost.clone());
        assert_eq!((losses.told(), losses.told()), (lost.clone(), lost.clone()), "the first one may not have arrived");
        losses.heard(BrokerState::Fenced);
        assert_eq!(losses.told(), lost);
        losses.heard(BrokerState::Active);
        assert_eq!(losses.told(), []);
    }
}
