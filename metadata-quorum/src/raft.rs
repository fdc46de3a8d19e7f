//! Starts and stops raft on this node. Only `raft*` names openraft or sled.

use std::time::Duration;

use crate::client::QuorumClient;
use crate::config::QuorumConfig;
use crate::error::StartError;

/// The quorum on this node: raft, its store, and the controller listener.
pub struct Quorum {
    client: QuorumClient,
}

impl Quorum {
    /// Opens the store, opens the controller listener (first of all listeners), and joins or forms the cluster in the
    /// background (D2). Runs on the runtime it is called on; give it one of its own (D5). `extra` is merged into the
    /// controller listener's routes (admin peer reads, D4).
    ///
    /// # Errors
    /// Bad configuration, an address in use, a store that cannot be opened or is of a newer format.
    pub async fn start(config: QuorumConfig, extra: axum::Router) -> Result<Self, StartError> {
        let _ = (config, extra);
        todo!()
    }

    /// The door for everybody on this node.
    pub fn client(&self) -> &QuorumClient {
        &self.client
    }

    /// The address the controller listener is bound to.
    pub fn listen_address(&self) -> std::net::SocketAddr {
        todo!()
    }

    /// Waits until there is a cluster and this node has applied what it had (and its raft knows a leader).
    pub async fn ready(&self, timeout: Duration) -> Result<(), crate::error::QuorumError> {
        let _ = timeout;
        todo!()
    }

    /// Resolves when the store or raft failed for good, with the reason: the process must stop then.
    pub async fn failed(&self) -> String {
        todo!()
    }

    /// Stops raft and closes the store; the controller listener closes last.
    pub async fn stop(self) {
        todo!()
    }
}
