//! Configuration: Kafka's names in, one typed `NodeConfig` out, or everything that is wrong with it, all at once.
//!
//! Weakest source first: default, file, `KAFKA_*` environment, `-X key=value`. Nothing is opened or started here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_quorum::image::Endpoint;
use highwater_wire::BrokerId;

mod checks;
mod dynamic;
pub mod example;
pub mod keys;
mod properties;
mod values;

pub use checks::host_port;
pub use dynamic::set_on;
pub use properties::{Origin, Setting, Sources, Surroundings};
use values::Values;

/// A finding: where, and what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub origin: Origin,
    pub severity: Severity,
    pub text: String,
}

/// Whether a finding keeps the node from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The node does not start; exit code 2.
    Error,
    /// Told at every start.
    Warning,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.text)
    }
}

/// The result of reading a configuration.
#[derive(Debug)]
pub struct Report {
    /// Present when no finding is an error.
    pub config: Option<NodeConfig>,
    /// Errors and warnings in the order of their places.
    pub findings: Vec<Finding>,
}

/// A listener of this node as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// As in `listeners`, such as `PLAINTEXT`.
    pub name: String,
    /// Empty: every interface.
    pub host: String,
    /// 0: any free port.
    pub port: u16,
    /// What others are told.
    pub advertised: Endpoint,
}

impl Listener {
    /// `host:port` to bind, every interface as `[::]` where the machine speaks IPv6 is left to the caller.
    pub fn bind(&self) -> (String, u16) {
        let host = if self.host.is_empty() { "0.0.0.0".to_owned() } else { self.host.clone() };
        (host, self.port)
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// Which partitions `/metrics` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionMetrics {
    Summary,
    Leader,
    Full,
}

/// The admin API's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// `None`: no admin API.
    pub listen: Option<(String, u16)>,
    /// `http://host:port` in links and in the registration.
    pub url: String,
    pub in_sync_wait_max: Duration,
    pub partition_metrics: PartitionMetrics,
}

/// The quorum's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumPart {
    pub voters: BTreeMap<BrokerId, Endpoint>,
    pub bootstrap: Vec<Endpoint>,
    pub election_timeout_max: Duration,
    pub session_timeout: Duration,
    pub registration_timeout: Duration,
    pub rebalance_leaders: bool,
    pub rebalance_interval: Duration,
}

/// What a new topic gets where its creator said nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPart {
    pub auto_create: bool,
    pub delete_enabled: bool,
    pub partitions: i32,
    /// Before the cap at the brokers present.
    pub replication_factor: i16,
    /// `None`: 2 where the replication factor is 3 or more, otherwise 1.
    pub min_isr: Option<usize>,
    pub unclean_election: bool,
    /// Topic level keys of broker level settings that differ from the built-in default.
    pub configs: BTreeMap<String, String>,
}

/// Of consumer groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPart {
    /// Of `__consumer_offsets`.
    pub partitions: i32,
    /// Of the same, before the cap at the brokers present.
    pub replication_factor: i16,
    pub offsets_retention: Duration,
    pub metadata_bytes_max: usize,
    pub initial_rebalance_delay: Duration,
    pub session_min: Duration,
    pub session_max: Duration,
    pub members_max: usize,
}

/// Everything else the data plane is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPart {
    /// `None`: one for two cores, at most 4.
    pub workers: Option<usize>,
    pub request_bytes_max: usize,
    pub connections_max: usize,
    pub connection_idle_max: Duration,
    pub heartbeat_interval: Duration,
    pub controlled_shutdown: bool,
    pub replica_lag_max: Duration,
    pub fetch_wait_max: Duration,
    pub fetch_bytes_min: u32,
    pub fetch_partition_bytes_max: u32,
    pub fetch_response_bytes_max: u32,
    pub fetch_backoff_max: Duration,
    pub fetchers: u32,
    pub watermark_checkpoint_interval: Duration,
    pub retention_check_interval: Duration,
    pub cleaner_backoff: Duration,
    pub cleaner_buffer_bytes: usize,
    pub producer_id_expiration: Duration,
    pub fetch_bytes_max: u32,
    pub fetch_sessions_max: usize,
}

/// What this process does (`process.roles`); at least one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    pub broker: bool,
    /// May vote in the metadata quorum.
    pub controller: bool,
}

/// One node's configuration: checked, typed, with units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    pub node_id: BrokerId,
    pub roles: Roles,
    /// `None`: as the directory says, or minted when the cluster forms.
    pub cluster_id: Option<String>,
    pub log_dir: PathBuf,
    pub metadata_dir: PathBuf,
    pub rack: Option<String>,
    /// Kafka listeners, the controller's not among them; none without the broker role.
    pub listeners: Vec<Listener>,
    pub controller_listener: Listener,
    /// Empty without the broker role.
    pub inter_broker_listener: String,
    pub http: HttpConfig,
    pub quorum: QuorumPart,
    pub topics: TopicPart,
    pub groups: GroupPart,
    pub data: DataPart,
    /// The served keys as somebody set them, under their own names.
    pub own: BTreeMap<String, Setting>,
}

/// Reads a configuration from all its sources.
///
/// `file`: its path and text. Every fault is found before anything is returned.
pub fn read(file: Option<(&Path, &str)>, flags: &[String], surroundings: &Surroundings<'_>) -> Report {
    let mut sources = Sources::default();
    if let Some((path, text)) = file {
        sources.add_file(&properties::short_name(path), text);
    }
    sources.add_environment(surroundings, |key| keys::served(key).is_some());
    sources.add_flags(flags);
    sources.expand(surroundings);

    let mut findings: Vec<Finding> = sources
        .faults
        .drain(..)
        .map(|fault| Finding {
            origin: fault.origin,
            severity: if fault.harmless { Severity::Warning } else { Severity::Error },
            text: fault.text,
        })
        .collect();
    let settings = classify(sources.settings, &mut findings);
    let own = settings.clone();
    let mut values = Values::new(settings, findings);
    let config = checks::node(&mut values).map(|config| NodeConfig { own, ..config });
    let mut findings = values.into_findings();
    findings.sort_by(|a, b| (&a.origin, a.severity).cmp(&(&b.origin, b.severity)));
    let refused = findings.iter().any(|finding| finding.severity == Severity::Error);
    Report { config: config.filter(|_| !refused), findings }
}

/// Reads the configuration file at `path` with this process's environment.
///
/// # Errors
/// The file cannot be read; faults inside it are in the report.
pub fn load(path: Option<&Path>, flags: &[String]) -> std::io::Result<Report> {
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let surroundings = Surroundings { environment: &environment };
    let text = path.map(std::fs::read_to_string).transpose()?;
    Ok(read(path.zip(text.as_deref()), flags, &surroundings))
}

/// Keeps the served keys under their own names; tells or refuses the others.
fn classify(settings: BTreeMap<String, Setting>, findings: &mut Vec<Finding>) -> BTreeMap<String, Setting> {
    let unknown_refuses = settings.get("config.unknown.keys").is_none_or(|setting| setting.value != "warn");
    let mut kept = BTreeMap::new();
    let mut ignored = Vec::new();
    for (name, setting) in settings {
        if let Some(key) = keys::served(&name) {
            // The key itself is stronger than its alias.
            if name == key.name || !kept.contains_key(key.name) {
                kept.insert(key.name.to_owned(), setting);
            }
        } else if let Some(advice) = keys::dangerous(&name) {
            let text = format!("\"{name}\" cannot be ignored safely: {advice}");
            findings.push(Finding { origin: setting.origin, severity: Severity::Error, text });
        } else if keys::ignored(&name) {
            ignored.push(name);
        } else {
            findings.push(unknown(&name, setting.origin, unknown_refuses));
        }
    }
    if !ignored.is_empty() {
        let text = format!("known to Kafka, without effect here: {}", ignored.join(", "));
        findings.push(Finding { origin: Origin::Default, severity: Severity::Warning, text });
    }
    kept
}

/// Orchestrators put variables of their own (`KAFKA_PORT`) into the environment: those only refuse when they look like
/// a typo.
fn unknown(name: &str, origin: Origin, refuses: bool) -> Finding {
    let suggestion = keys::suggestion(name);
    let stray = matches!(origin, Origin::Environment(_)) && suggestion.is_none();
    let mut text = format!("unknown key \"{name}\"");
    if let Some(meant) = suggestion {
        text.push_str(&format!("; did you mean \"{meant}\"?"));
    }
    let severity = if refuses && !stray { Severity::Error } else { Severity::Warning };
    if severity == Severity::Error {
        text.push_str("   (set config.unknown.keys=warn to continue)");
    }
    Finding { origin, severity, text }
}

/// Whether a host names this machine only.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[path = "config/tests.rs"]
mod tests;
