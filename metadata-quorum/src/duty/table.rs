//! What the raft leader knows of brokers from their heartbeats: soft state, gone with its term (R219). Only what brokers
//! said of their watermarks every voter knows and keeps, for the raft leader may die with the broker that told it.
//!
//! Pure: times are handed in. Who is to be fenced is judged in `planner/liveness`, the fence itself in `decide`.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::{BrokerEpoch, BrokerId, Millis};

use crate::client::Heartbeat;
use crate::image::{BrokerRegistration, ImageVersion, MetadataImage};
use crate::planner::{Liveness, Reports};

/// One term's knowledge.
#[derive(Debug)]
pub(crate) struct Table {
    session: Millis,
    term: Option<u64>,
    pub liveness: Liveness,
    /// The image that a broker said it has.
    versions: BTreeMap<BrokerId, (BrokerEpoch, ImageVersion)>,
    probing: BTreeSet<BrokerId>,
    /// Kept beyond the term.
    pub reports: Reports,
    /// The image version at which a broker was first seen shutting down (R174).
    shut_down_at: BTreeMap<BrokerId, (BrokerEpoch, ImageVersion)>,
}

impl Table {
    pub fn new(session: Millis, now: Millis) -> Self {
        Self {
            session,
            term: None,
            liveness: Liveness::new(session, now),
            versions: BTreeMap::new(),
            probing: BTreeSet::new(),
            reports: Reports::default(),
            shut_down_at: BTreeMap::new(),
        }
    }

    /// Notes whether this node leads. True when it begins to: everybody gets a fresh session then (D8).
    pub fn on_leading(&mut self, term: Option<u64>, now: Millis) -> bool {
        if self.term == term {
            return false;
        }
        let reports = std::mem::take(&mut self.reports);
        *self = Self { term, reports, ..Self::new(self.session, now) };
        term.is_some()
    }

    /// Takes a heartbeat of the current epoch.
    pub fn on_heartbeat(&mut self, heartbeat: &Heartbeat, now: Millis) {
        self.liveness.heartbeat(heartbeat.broker, heartbeat.epoch, heartbeat.incarnation, now);
        self.versions.insert(heartbeat.broker, (heartbeat.epoch, heartbeat.version));
    }

    /// Whether this registration has been silent for a whole session (R166).
    pub fn session_ended(&self, broker: &BrokerRegistration, now: Millis) -> bool {
        self.liveness.silence(broker.id, broker.epoch, now) >= self.session
    }

    /// Whether this registration was heard of within the last half of a session.
    pub fn is_recent(&self, broker: &BrokerRegistration, now: Millis) -> bool {
        self.liveness.silence(broker.id, broker.epoch, now).0 * 2 <= self.session.0
    }

    /// A suspicion: true if a probe is to begin, which is then under way until [`Self::end_probe`].
    pub fn begin_probe(&mut self, broker: BrokerId) -> bool {
        self.term.is_some() && self.probing.insert(broker)
    }

    pub fn end_probe(&mut self, broker: BrokerId) {
        self.probing.remove(&broker);
    }

    pub fn is_probing(&self) -> bool {
        !self.probing.is_empty()
    }

    /// R174: everything is off this broker, and every active broker knows.
    pub fn may_stop(&mut self, image: &MetadataImage, broker: &BrokerRegistration, drained: bool) -> bool {
        let entry = self.shut_down_at.entry(broker.id).or_insert((broker.epoch, image.version));
        if entry.0 != broker.epoch {
            *entry = (broker.epoch, image.version);
        }
        let at = entry.1;
        let leads = image.partitions().any(|(_, _, state)| state.leader == Some(broker.id));
        let known_everywhere = image.active_brokers().all(|other| {
            self.versions.get(&other.id).is_some_and(|(epoch, version)| *epoch == other.epoch && *version >= at)
        });
        drained && !leads && known_everywhere
    }
}

#[cfg(test)]
mod tests {
    use highwater_wire::{Offset, Timestamp};

    use super::*;
    use crate::controller::testing::{Quorum, at};
    use crate::controller::{DataClaim, KnownWatermark};

    const SESSION: Millis = Millis(9_000);

    fn heartbeat(quorum: &Quorum, id: i32, version: u64) -> Heartbeat {
        let broker = quorum.image.broker(BrokerId(id)).unwrap();
        Heartbeat {
            broker: broker.id,
            epoch: broker.epoch,
            incarnation: broker.incarnation,
            version: ImageVersion(version),
            want_fence: false,
            want_shutdown: false,
            drained: false,
            lost: Vec::new(),
            watermarks: Vec::new(),
        }
    }

    #[test]
    fn a_term_begins_once_and_forgets_the_one_before() {
        let mut table = Table::new(SESSION, Millis(0));
        assert!(table.on_leading(Some(3), Millis(10)));
        assert!(!table.on_leading(Some(3), Millis(20)));
        assert!(table.begin_probe(BrokerId(1)) && !table.begin_probe(BrokerId(1)), "one probe at a time");
        assert!(!table.on_leading(None, Millis(30)));
        assert!(!table.is_probing() && !table.begin_probe(BrokerId(1)), "who does not lead probes nobody");
        assert!(table.on_leading(Some(5), Millis(40)));
    }

    #[test]
    fn what_leaders_reported_is_known_to_whoever_leads_the_quorum_next() {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[]).unwrap();
        let mut table = Table::new(SESSION, Millis(0));
        let (high_watermark, reported) = (Offset(12), Timestamp(1));
        let log_start = Offset::ZERO;
        let told = KnownWatermark { partition: at(1), high_watermark, reported, log_start, leader_epoch: None };
        table.reports.take(&quorum.image, BrokerId(1), std::slice::from_ref(&told));
        table.on_leading(Some(3), Millis(5));
        assert_eq!(table.reports.of(&quorum.image, at(1)), Some(told));
    }

    #[test]
    fn a_broker_stops_when_it_leads_nothing_and_all_active_ones_know() {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[]).unwrap();
        let mut table = Table::new(SESSION, Millis(0));
        table.on_leading(Some(1), Millis(0));
        quorum.shut_down(1).unwrap();
        let image = quorum.image.clone();
        let leaving = image.broker(BrokerId(1)).unwrap();
        assert!(!table.may_stop(&image, leaving, true), "broker 2 has said nothing");
        table.on_heartbeat(&heartbeat(&quorum, 2, image.version.0 - 1), Millis(1));
        assert!(!table.may_stop(&image, leaving, true), "broker 2 is behind");
        table.on_heartbeat(&heartbeat(&quorum, 2, image.version.0), Millis(2));
        assert!(!table.may_stop(&image, leaving, false), "its own data plane still leads");
        assert!(table.may_stop(&image, leaving, true));
        quorum.start(1, DataClaim::Nothing);
    }
}
