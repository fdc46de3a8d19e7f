//! A stage for tests of roles: a log that is nothing but numbers, and the facts an image would hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_quorum::controller::{AlteredPartition, IsrProposal};
use highwater_quorum::image::{ImageVersion, LeaderRecovery, PartitionState, TopicConfig};
use highwater_wire::{
    BrokerEpoch, BrokerId, DirectoryId, LeaderEpoch, Millis, Offset, PartitionEpoch, Timestamp, TopicId, TopicPartition,
};

use super::peers::{Peer, Peers};
use super::{Effect, Terms};
use crate::log_view::{EpochHistory, LogView};

pub const LAG_MAX: Millis = Millis(30_000);
pub const ME: BrokerId = BrokerId(1);

pub fn partition() -> TopicPartition {
    TopicPartition::new(TopicId::from_bytes([1; 16]), 0)
}

pub fn brokers(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

/// A log without bytes.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    pub start: Offset,
    pub end: Offset,
    pub flushed_end: Offset,
    pub epochs: EpochHistory,
    pub knows_producers: bool,
}

impl Numbers {
    /// One entry per epoch: (epoch, first offset); flushed to the end.
    pub fn new(epochs: &[(i32, i64)], end: i64) -> Self {
        let mut history = EpochHistory::default();
        for &(epoch, start) in epochs {
            history.assign(LeaderEpoch(epoch), Offset(start));
        }
        Self { start: Offset::ZERO, end: Offset(end), flushed_end: Offset(end), epochs: history, knows_producers: true }
    }

    pub fn view(&self) -> LogView<'_> {
        LogView {
            start: self.start,
            end: self.end,
            flushed_end: self.flushed_end,
            epochs: &self.epochs,
            truncations: 0,
            knows_producers: self.knows_producers,
        }
    }
}

/// What an image says; changed by tests and handed in again.
#[derive(Debug, Clone)]
pub struct Facts {
    pub version: u64,
    pub state: PartitionState,
    pub config: TopicConfig,
    pub peers: BTreeMap<BrokerId, Peer>,
}

impl Facts {
    /// Brokers 1, 2, 3 registered with epochs 101, 102, 103; broker 1 leads in `leader_epoch`.
    pub fn new(replicas: &[i32], isr: &[i32], leader_epoch: i32, min_isr: usize) -> Self {
        let state = PartitionState {
            replicas: brokers(replicas),
            directories: vec![DirectoryId::from_bytes([9; 16]); replicas.len()],
            adding: Vec::new(),
            removing: Vec::new(),
            isr: brokers(isr),
            elr: Vec::new(),
            last_known_elr: Vec::new(),
            leader: Some(ME),
            leader_epoch: LeaderEpoch(leader_epoch),
            partition_epoch: PartitionEpoch(10),
            recovery: LeaderRecovery::Recovered,
            last_known_watermark: None,
            leader_since: Timestamp(0),
        };
        let config = TopicConfig { min_isr, ..TopicConfig::built_in() };
        let peer = |id: i32| {
            let epoch = BrokerEpoch(100 + i64::from(id));
            (BrokerId(id), Peer { epoch, active: true, reachable: true })
        };
        let peers = replicas.iter().copied().map(peer).collect();
        Self { version: 1, state, config, peers }
    }

    pub fn terms(&self) -> Terms {
        Terms {
            version: ImageVersion(self.version),
            state: Arc::new(self.state.clone()),
            config: Arc::new(self.config.clone()),
            peers: Arc::new(Peers(self.peers.clone())),
            own_epoch: BrokerEpoch(100 + i64::from(ME.0)),
        }
    }

    /// The next image: a change of the partition.
    pub fn change(&mut self, change: impl FnOnce(&mut PartitionState)) -> Terms {
        change(&mut self.state);
        self.state.partition_epoch = self.state.partition_epoch.next();
        self.version += 1;
        self.terms()
    }

    /// The next image: the partition stays, brokers change.
    pub fn change_peer(&mut self, id: i32, change: impl FnOnce(&mut Peer)) -> Terms {
        change(self.peers.get_mut(&BrokerId(id)).unwrap());
        self.version += 1;
        self.terms()
    }

    /// What the controller answers when it accepts a proposal.
    pub fn accept(&self, proposal: &IsrProposal) -> AlteredPartition {
        AlteredPartition {
            partition: proposal.partition,
            leader: Some(ME),
            leader_epoch: proposal.leader_epoch,
            isr: proposal.isr.iter().map(|&(id, _)| id).collect(),
            recovery: proposal.recovery,
            partition_epoch: proposal.partition_epoch.next(),
        }
    }
}

/// The proposals among effects.
pub fn proposals(effects: &[Effect]) -> Vec<&IsrProposal> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Propose(proposal) => Some(&**proposal),
            _ => None,
        })
        .collect()
}

/// The members a proposal names.
pub fn members(proposal: &IsrProposal) -> Vec<i32> {
    proposal.isr.iter().map(|(id, _)| id.0).collect()
}
