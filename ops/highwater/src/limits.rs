//! Limits of the operating system that a node needs to know before it serves.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors below which a loaded node will run out.
const DESCRIPTORS_WANTED: u64 = 10_000;

/// Raises the descriptor limit as far as it goes and warns when that is not far; switches core dumps off, because a
/// dumping process holds its sockets open and would look alive (D7).
pub fn apply() {
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: files.maximum, maximum: files.maximum };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => files.maximum,
        Err(_) => files.current,
    };
    if let Some(limit) = limit.filter(|limit| *limit < DESCRIPTORS_WANTED) {
        warn!(
            limit,
            wanted = DESCRIPTORS_WANTED,
            "few file descriptors: each partition takes one per segment and each client one; raise LimitNOFILE or ulimit -n"
        );
    }
    if setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).is_err() {
        warn!("core dumps could not be switched off: a crash will take longer to be noticed by the other nodes");
    }
}
