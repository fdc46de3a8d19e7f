//! What stops the broker. Refusals of single requests are elsewhere: they stop nobody.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use highwater_quorum::QuorumError;
use highwater_wire::BrokerId;

/// Why the data plane could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    #[error("listener {name}: cannot bind {address}: {source}; is another process using the port?")]
    Bind { name: String, address: SocketAddr, source: io::Error },
    #[error("inter.broker.listener.name {name} is none of the listeners {listeners:?}")]
    NoInterBrokerListener { name: String, listeners: Vec<String> },
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("{path} is in use by another process; stop it, or give this node its own log.dirs")]
    DirectoryLocked { path: PathBuf },
    #[error("{path}: {why}")]
    MetaProperties { path: PathBuf, why: String },
    #[error("cannot start a thread or runtime: {0}")]
    Resources(io::Error),
    #[error("broker {broker} cannot register: {source}")]
    Registration { broker: BrokerId, source: QuorumError },
    #[error("the log directory {path} failed: {source}; see the log for the first failure")]
    Storage { path: PathBuf, source: io::Error },
    #[error("the data plane was stopped")]
    Stopped,
}
