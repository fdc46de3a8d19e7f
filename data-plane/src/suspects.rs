//! Brokers whose connection to this one just broke as if their process had died (D7).
//!
//! For the second that the quorum needs to find out, this broker keeps clients from hearing that such a broker leads:
//! a client that is told the old leader once more may not ask again for a second or two.

use std::collections::BTreeMap;

use highwater_quorum::QuorumClient;
use highwater_wire::{BrokerEpoch, BrokerId, Millis};
use parking_lot::Mutex;

/// How long a suspicion counts here. The quorum fences a dead broker within a fraction of it.
const COUNTS_FOR: Millis = Millis(1_000);

/// Who is suspected, under which registration, and since when.
pub struct Suspects {
    quorum: QuorumClient,
    since: Mutex<BTreeMap<BrokerId, (BrokerEpoch, Millis)>>,
}

impl Suspects {
    pub fn new(quorum: QuorumClient) -> Self {
        Self { quorum, since: Mutex::default() }
    }

    /// A connection to or from this process of a broker was reset, refused or closed: tells the quorum.
    pub fn suspect(&self, broker: BrokerId, epoch: BrokerEpoch, now: Millis) {
        self.since.lock().insert(broker, (epoch, now));
        self.quorum.suspect(broker, epoch);
    }

    /// It was heard of.
    pub fn lives(&self, broker: BrokerId) {
        self.since.lock().remove(&broker);
    }

    /// Those under suspicion now, with their registrations; nobody most of the time.
    pub fn now(&self, now: Millis) -> BTreeMap<BrokerId, BrokerEpoch> {
        let mut since = self.since.lock();
        since.retain(|_, (_, at)| now - *at < COUNTS_FOR);
        since.iter().map(|(broker, (epoch, _))| (*broker, *epoch)).collect()
    }
}
