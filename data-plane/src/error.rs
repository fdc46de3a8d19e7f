//! What stops the broker. Refusals of single requests are elsewhere: they stop nobody.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use highwater_quorum::QuorumError;
use highwater_wire::BrokerId;

use crate::log::LogDirError;

/// Why the data plane could not start, or had to stop.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DataPlaneError {
    #[error("listener {name}: cannot bind {address}: {source}; is another process using the port?")]
    Bind { name: String, address: SocketAddr, source: Arc<io::Error> },
    #[error("inter.broker.listener.name {name} is none of the listeners {listeners:?}")]
    NoInterBrokerListener { name: String, listeners: Vec<String> },
    /// Locked by another process, of another broker, or unreadable.
    #[error(transparent)]
    Directory(Arc<LogDirError>),
    #[error("cannot start a thread or runtime: {0}")]
    Resources(Arc<io::Error>),
    #[error("broker {broker} cannot register: {source}")]
    Registration { broker: BrokerId, source: QuorumError },
    #[error("the log directory {path} failed: {why}; repair or replace the disk, then start again")]
    Storage { path: PathBuf, why: Arc<str> },
    #[error("the data plane was stopped")]
    Stopped,
}
