//! What the quorum needs to know of this node: identity, voters, directory, time limits, defaults for new topics.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use highwater_wire::{BrokerId, IncarnationId};

use crate::error::StartError;
use crate::image::{Endpoint, MetadataImage};

/// Where the controller listener listens. Tests bind first, to know their ports before anything starts.
#[derive(Debug)]
pub enum ControllerListener {
    /// `host:port` of the `CONTROLLER` listener.
    Address(String),
    Bound(TcpListener),
}

/// `process.roles`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRoles {
    /// Registers, and learns the metadata if it is no voter (D3).
    pub broker: bool,
    /// May be a voter.
    pub controller: bool,
}

/// Configuration of the quorum on one node. No default: an operator chooses identity and voters.
#[derive(Debug)]
pub struct QuorumConfig {
    /// `node.id`
    pub node: BrokerId,
    /// Of this process; the same one that the broker registers with (R166). Answered to probes (D7).
    pub incarnation: IncarnationId,
    /// `metadata.log.dir`, never inside `log.dirs` (D1).
    pub directory: PathBuf,
    /// `CLUSTER_ID` or `storage format`; `None`: random at formation. Must match a cluster that exists (D2).
    pub cluster_id: Option<String>,
    /// `controller.quorum.voters`: used to form a cluster and to find one's peers until the image knows them (D2).
    pub voters: BTreeMap<BrokerId, Endpoint>,
    /// `controller.quorum.bootstrap.servers`: where a node that is none of those voters asks for the cluster.
    pub bootstrap: Vec<Endpoint>,
    pub listener: ControllerListener,
    /// What others dial to reach it.
    pub advertised: Endpoint,
    pub roles: NodeRoles,
    pub limits: QuorumLimits,
    /// What `create_topic` fills in where the caller left it open (D19).
    pub topic_defaults: TopicDefaults,
}

/// Time limits and sizes, with the values of D5 as default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumLimits {
    /// `controller.quorum.election.timeout.ms`: the upper bound; the lower is half. Under 300 ms is refused.
    pub election_timeout: Duration,
    /// `broker.session.timeout.ms`
    pub session_timeout: Duration,
    /// `broker.heartbeat.interval.ms`
    pub heartbeat_interval: Duration,
    /// Entries between two snapshots.
    pub snapshot_entries: u64,
    /// Move leaders home by themselves (`auto.leader.rebalance.enable`, `leader.imbalance.check.interval.seconds`);
    /// `None`: never.
    pub leader_imbalance_check: Option<Duration>,
}

impl Default for QuorumLimits {
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_millis(600),
            session_timeout: Duration::from_secs(9),
            heartbeat_interval: Duration::from_secs(2),
            snapshot_entries: 3_000,
            leader_imbalance_check: Some(Duration::from_secs(300)),
        }
    }
}

/// Defaults of this node's configuration, written into the command (D14, D19).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDefaults {
    /// `num.partitions`
    pub partitions: i32,
    /// `default.replication.factor`; capped at the active brokers, with a note.
    pub replication_factor: i16,
    /// `min.insync.replicas` of the node; `None`: 2 where the factor is 3 or more, else 1.
    pub min_isr: Option<usize>,
    /// `unclean.leader.election.enable` of the node.
    pub unclean_election: bool,
    /// Further topic level keys the node's configuration sets (`log.retention.ms` as `retention.ms`, …).
    pub configs: BTreeMap<String, String>,
}

impl Default for TopicDefaults {
    fn default() -> Self {
        Self { partitions: 1, replication_factor: 3, min_isr: None, unclean_election: false, configs: BTreeMap::new() }
    }
}

impl TopicDefaults {
    /// These, with what was set on brokers while they run: on `broker`, or on all.
    pub(crate) fn under(&self, image: &MetadataImage, broker: BrokerId) -> Self {
        let mut defaults = self.clone();
        if let Some(partitions) = image.dynamic_setting(broker, "num.partitions").and_then(|text| text.parse().ok()) {
            defaults.partitions = partitions;
        }
        let factor = image.dynamic_setting(broker, "default.replication.factor").and_then(|text| text.parse().ok());
        if let Some(factor) = factor {
            defaults.replication_factor = factor;
        }
        defaults
    }
}

impl QuorumConfig {
    /// Checks what can be checked without touching disk or network.
    ///
    /// # Errors
    /// All faults in one text, each with its key.
    pub fn validate(&self) -> Result<(), StartError> {
        let mut faults = Vec::new();
        if self.node.0 < 0 {
            faults.push(format!("node.id ({}) must be 0 or greater", self.node));
        }
        if self.voters.is_empty() && self.bootstrap.is_empty() {
            let text = "controller.quorum.voters is empty: name at least one voter as id@host:port, or \
                        controller.quorum.bootstrap.servers";
            faults.push(text.to_owned());
        }
        let election_ms = self.limits.election_timeout.as_millis();
        if election_ms < 300 {
            faults.push(format!(
                "controller.quorum.election.timeout.ms ({election_ms}) is under 300: a slow fdatasync would look like a \
                 dead leader"
            ));
        }
        if self.limits.session_timeout <= self.limits.heartbeat_interval * 2 {
            faults.push(format!(
                "broker.session.timeout.ms ({}) must be > 2 x broker.heartbeat.interval.ms ({})",
                self.limits.session_timeout.as_millis(),
                self.limits.heartbeat_interval.as_millis()
            ));
        }
        if self.limits.snapshot_entries < 100 {
            faults
                .push(format!("{} entries between snapshots are too few: 100 at least", self.limits.snapshot_entries));
        }
        if faults.is_empty() { Ok(()) } else { Err(StartError::Config(faults.join("; "))) }
    }
}
