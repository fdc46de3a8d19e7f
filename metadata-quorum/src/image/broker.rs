//! A broker as the quorum knows it.

use std::collections::BTreeMap;

use highwater_wire::{BrokerEpoch, BrokerId, DirectoryId, IncarnationId, Timestamp};
use serde::{Deserialize, Serialize};

/// The feature under which a broker says which feature level of the metadata it speaks (D14); missing means 1.
pub const METADATA_FEATURE: &str = "metadata.version";

/// The last registration of a broker, and its state since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRegistration {
    pub id: BrokerId,
    /// The process that registered.
    pub incarnation: IncarnationId,
    /// Index of the registration entry (R167).
    pub epoch: BrokerEpoch,
    /// Listener name → address, as advertised. Clients and peers are told these.
    pub listeners: BTreeMap<String, Endpoint>,
    /// The listener over which brokers fetch from each other.
    pub inter_broker_listener: String,
    /// `http://host:port` of the controller listener: raft, heartbeats, probes, peer reads (D4).
    pub controller_url: String,
    /// `http://host:port` of the admin API, for links in answers. Empty when unknown.
    pub admin_url: String,
    pub rack: Option<String>,
    /// Directory ids of `log.dirs`; exactly one for now (D15).
    pub log_dirs: Vec<DirectoryId>,
    /// The directory id of the metadata directory (D1).
    pub metadata_dir: DirectoryId,
    /// Feature name → highest level this process can speak.
    pub features: BTreeMap<String, u16>,
    /// Version of the binary.
    pub version: String,
    pub state: BrokerState,
    /// When it entered `state`, by the proposer's clock.
    pub state_since: Timestamp,
    /// The proof with which this registration came (D10): decides the last-known-leader rule (D30).
    pub kept_data: DataProof,
}

impl BrokerRegistration {
    /// May lead and be in an ISR: registered, unfenced, not shutting down.
    pub fn is_active(&self) -> bool {
        self.state == BrokerState::Active
    }

    /// The highest feature level of the metadata that this process speaks.
    pub fn metadata_level(&self) -> u16 {
        self.features.get(METADATA_FEATURE).copied().unwrap_or(1)
    }

    /// Where other brokers reach it.
    pub fn inter_broker_endpoint(&self) -> Option<&Endpoint> {
        self.listeners.get(&self.inter_broker_listener)
    }
}

/// An address that can be dialled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
}

/// A controller that was added to a living quorum, as whoever added it named it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerRegistration {
    pub node: BrokerId,
    /// The directory id of the metadata directory (D1).
    pub directory: DirectoryId,
    /// Of its controller listener.
    pub endpoint: Endpoint,
    /// When this was noted, by the proposer's clock.
    pub since: Timestamp,
}

/// Whether a broker takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerState {
    /// Registered but not (or no longer) trusted to answer: in no ISR, leads nothing.
    Fenced,
    /// Takes part.
    Active,
    /// Asked to stop: leads nothing, leaves every ISR, may not come back without a new registration (R175).
    ShuttingDown,
}

/// What a registration could prove about the data of its predecessor (D10, R169).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataProof {
    /// A clean stop: the marker names the epoch of the last registration.
    CleanStop,
    /// Same boot, directory and inode as the last registration: the page cache survived the process.
    SameBoot,
    /// Nothing proves that nothing was lost: out of ISR and ELR.
    None,
}
