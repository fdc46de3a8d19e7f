//! What the raft leader knows of brokers from their heartbeats: soft state, gone with its term (R219). Only what brokers
//! said of their watermarks every voter knows and keeps, for the raft leader may die with the broker that told it.
//!
//! Pure: times are handed in. Who is to be fenced is judged in `planner/liveness`, the fence itself in `decide`.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, TopicPartition};

use crate::client::Heartbeat;
use crate::controller::{FencedBroker, KnownWatermark};
use crate::image::{BrokerRegistration, ImageVersion, MetadataImage, PartitionState};
use crate::planner::Liveness;

/// Watermarks kept for all partitions together (D12): beyond it new partitions are not taken.
const WATERMARKS_MAX: usize = 100_000;
/// Watermarks in one fence, so that its entry stays far below 64 KiB.
const WATERMARKS_PER_FENCE: usize = 1_000;

/// One term's knowledge.
#[derive(Debug)]
pub(crate) struct Table {
    session: Millis,
    term: Option<u64>,
    pub liveness: Liveness,
    /// The image that a broker said it has.
    versions: BTreeMap<BrokerId, (BrokerEpoch, ImageVersion)>,
    probing: BTreeSet<BrokerId>,
    watermarks: BTreeMap<TopicPartition, Report>,
    /// The image version at which a broker was first seen shutting down (R174).
    shut_down_at: BTreeMap<BrokerId, (BrokerEpoch, ImageVersion)>,
}

/// What a leader said of its watermark, and in which leadership.
#[derive(Debug)]
struct Report {
    by: BrokerId,
    epoch: LeaderEpoch,
    known: KnownWatermark,
}

impl Report {
    /// Of the present leadership: what an earlier one reached may have been lost since.
    fn is_of(&self, state: &PartitionState) -> bool {
        state.leader == Some(self.by) && state.leader_epoch == self.epoch
    }
}

impl Table {
    pub fn new(session: Millis, now: Millis) -> Self {
        Self {
            session,
            term: None,
            liveness: Liveness::new(session, now),
            versions: BTreeMap::new(),
            probing: BTreeSet::new(),
            watermarks: BTreeMap::new(),
            shut_down_at: BTreeMap::new(),
        }
    }

    /// Notes whether this node leads. True when it begins to: everybody gets a fresh session then (D8).
    pub fn on_leading(&mut self, term: Option<u64>, now: Millis) -> bool {
        if self.term == term {
            return false;
        }
        let watermarks = std::mem::take(&mut self.watermarks);
        *self = Self { term, watermarks, ..Self::new(self.session, now) };
        term.is_some()
    }

    /// Takes a heartbeat of the current epoch.
    pub fn on_heartbeat(&mut self, heartbeat: &Heartbeat, now: Millis) {
        self.liveness.heartbeat(heartbeat.broker, heartbeat.epoch, heartbeat.incarnation, now);
        self.versions.insert(heartbeat.broker, (heartbeat.epoch, heartbeat.version));
    }

    /// Takes what a broker says of the watermarks of partitions it leads (D12); what it does not lead is left out.
    pub fn on_watermarks(&mut self, image: &MetadataImage, broker: BrokerId, told: &[KnownWatermark]) {
        if self.watermarks.len() + told.len() > WATERMARKS_MAX {
            self.watermarks.retain(|at, report| image.partition(*at).is_some_and(|state| report.is_of(state)));
        }
        for known in told {
            let at = known.partition;
            let Some(state) = image.partition(at).filter(|state| state.leader == Some(broker)) else { continue };
            // Reports may overtake each other; within a leadership the watermark only grows.
            let before = self.watermarks.get(&at);
            if before.is_some_and(|it| it.is_of(state) && it.known.high_watermark > known.high_watermark) {
                continue;
            }
            if before.is_some() || self.watermarks.len() < WATERMARKS_MAX {
                let report = Report { by: broker, epoch: state.leader_epoch, known: known.clone() };
                self.watermarks.insert(at, report);
            }
        }
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

    /// What the present leader of a partition said of its watermark, if this node has heard it.
    pub fn reported(&self, image: &MetadataImage, at: TopicPartition) -> Option<KnownWatermark> {
        let report = self.watermarks.get(&at)?;
        report.is_of(image.partition(at)?).then(|| report.known.clone())
    }

    /// What these brokers said of the watermarks of partitions that lose their whole ISR with them (D12): where somebody
    /// stays in sync, nothing is lost.
    pub fn last_watermarks(&self, image: &MetadataImage, brokers: &[FencedBroker]) -> Vec<KnownWatermark> {
        let gone = |id: &BrokerId| brokers.iter().any(|fenced| fenced.broker == *id);
        let lost = |at: &TopicPartition, report: &Report| {
            image.partition(*at).is_some_and(|state| report.is_of(state) && state.isr.iter().all(gone))
        };
        let lost = self.watermarks.iter().filter(|(at, report)| lost(at, report));
        lost.map(|(_, report)| report.known.clone()).take(WATERMARKS_PER_FENCE).collect()
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
    use highwater_wire::{Offset, TopicId};

    use super::*;
    use crate::controller::testing::{Quorum, at};
    use crate::controller::{DataClaim, KnownWatermark};
    use highwater_wire::Timestamp;

    const SESSION: Millis = Millis(9_000);

    fn heartbeat(quorum: &Quorum, id: i32, version: u64, watermarks: Vec<KnownWatermark>) -> Heartbeat {
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
            watermarks,
        }
    }

    fn known(partition: TopicPartition, high_watermark: i64) -> KnownWatermark {
        KnownWatermark { partition, high_watermark: Offset(high_watermark), reported: Timestamp(1) }
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
    fn a_broker_stops_when_it_leads_nothing_and_all_active_ones_know() {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[]).unwrap();
        let mut table = Table::new(SESSION, Millis(0));
        table.on_leading(Some(1), Millis(0));
        quorum.shut_down(1).unwrap();
        let image = quorum.image.clone();
        let leaving = image.broker(BrokerId(1)).unwrap();
        assert!(!table.may_stop(&image, leaving, true), "broker 2 has said nothing");
        table.on_heartbeat(&heartbeat(&quorum, 2, image.version.0 - 1, Vec::new()), Millis(1));
        assert!(!table.may_stop(&image, leaving, true), "broker 2 is behind");
        table.on_heartbeat(&heartbeat(&quorum, 2, image.version.0, Vec::new()), Millis(2));
        assert!(!table.may_stop(&image, leaving, false), "its own data plane still leads");
        assert!(table.may_stop(&image, leaving, true));
        quorum.start(1, DataClaim::Nothing);
    }

    fn fenced(quorum: &Quorum, ids: &[i32]) -> Vec<FencedBroker> {
        let fenced = |id: &i32| FencedBroker { broker: BrokerId(*id), epoch: quorum.epoch(*id), note: String::new() };
        ids.iter().map(fenced).collect()
    }

    #[test]
    fn the_last_watermarks_are_those_of_partitions_that_lose_their_whole_isr() {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[]).unwrap();
        quorum.create(2, &[2, 1], &[]).unwrap();
        quorum.create(3, &[1, 2], &[]).unwrap();
        quorum.set_isr(1, &[1]);
        quorum.set_isr(2, &[2]);
        let mut table = Table::new(SESSION, Millis(0));
        let strange = TopicPartition::new(TopicId::random(), 0);
        let told = [known(at(1), 7), known(at(2), 8), known(at(3), 6), known(strange, 9)];
        table.on_watermarks(&quorum.image, BrokerId(1), &told);
        let last = |table: &Table, ids| table.last_watermarks(&quorum.image, &fenced(&quorum, ids));
        assert_eq!(last(&table, &[1]), [known(at(1), 7)], "3 has another in sync, 2 is led by another");
        assert_eq!(last(&table, &[2]), []);
        assert_eq!(last(&table, &[1, 2]), [known(at(1), 7), known(at(3), 6)]);
        table.on_watermarks(&quorum.image, BrokerId(1), &[known(at(1), 12)]);
        assert_eq!(last(&table, &[1]), [known(at(1), 12)]);
        table.on_watermarks(&quorum.image, BrokerId(1), &[known(at(1), 9)]);
        assert_eq!(table.reported(&quorum.image, at(1)), Some(known(at(1), 12)), "a report that came late");
        assert_eq!(table.reported(&quorum.image, at(2)), None);
        table.on_leading(Some(3), Millis(5));
        assert_eq!(last(&table, &[1]), [known(at(1), 12)], "whoever leads the quorum next knows it too");
    }

    #[test]
    fn what_an_earlier_leadership_reached_says_nothing_of_this_one() {
        let mut quorum = Quorum::new(2);
        quorum.create(1, &[1, 2], &[]).unwrap();
        let mut table = Table::new(SESSION, Millis(0));
        table.on_watermarks(&quorum.image, BrokerId(1), &[known(at(1), 7)]);
        quorum.set_isr(1, &[1]);
        quorum.fence(&[1]);
        quorum.unfence(1, &[]).unwrap();
        assert_eq!(quorum.sets(1).0, Some(1), "the same leader in another epoch");
        assert_eq!(table.last_watermarks(&quorum.image, &fenced(&quorum, &[1])), []);
    }
}
