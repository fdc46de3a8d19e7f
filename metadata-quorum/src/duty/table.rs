//! What the raft leader knows of brokers from their heartbeats: soft state, gone with its term (R219).
//!
//! Pure: times are handed in. Who is to be fenced is judged in `planner/liveness`, the fence itself in `decide`.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::{BrokerEpoch, BrokerId, Millis, TopicPartition};

use crate::client::Heartbeat;
use crate::controller::{FencedBroker, KnownWatermark};
use crate::image::{BrokerRegistration, ImageVersion, MetadataImage};
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
    watermarks: BTreeMap<TopicPartition, KnownWatermark>,
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
            watermarks: BTreeMap::new(),
            shut_down_at: BTreeMap::new(),
        }
    }

    /// Notes whether this node leads. True when it begins to: everybody gets a fresh session then (D8).
    pub fn on_leading(&mut self, term: Option<u64>, now: Millis) -> bool {
        if self.term == term {
            return false;
        }
        *self = Self { term, ..Self::new(self.session, now) };
        term.is_some()
    }

    /// Takes a heartbeat of the current epoch.
    pub fn on_heartbeat(&mut self, heartbeat: &Heartbeat, now: Millis) {
        self.liveness.heartbeat(heartbeat.broker, heartbeat.epoch, heartbeat.incarnation, now);
        self.versions.insert(heartbeat.broker, (heartbeat.epoch, heartbeat.version));
        for known in &heartbeat.watermarks {
            if self.watermarks.len() < WATERMARKS_MAX || self.watermarks.contains_key(&known.partition) {
                self.watermarks.insert(known.partition, known.clone());
            }
        }
    }

    /// Whether this registration has been silent for a whole session (R166).
    pub fn session_ended(&self, broker: &BrokerRegistration, now: Millis) -> bool {
        self.liveness.silence(broker.id, broker.epoch, now) >= self.session
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

    /// What these brokers last said of the watermarks of partitions they lead (D12); they are forgotten here.
    pub fn take_watermarks(&mut self, image: &MetadataImage, brokers: &[FencedBroker]) -> Vec<KnownWatermark> {
        let led = |at: &TopicPartition| {
            let leader = image.partition(*at).and_then(|state| state.leader);
            leader.is_some_and(|leader| brokers.iter().any(|fenced| fenced.broker == leader))
        };
        let led: Vec<TopicPartition> = self.watermarks.keys().filter(|at| led(at)).copied().collect();
        let taken: Vec<_> = led.iter().filter_map(|at| self.watermarks.remove(at)).collect();
        taken.into_iter().take(WATERMARKS_PER_FENCE).collect()
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
