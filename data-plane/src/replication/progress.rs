//! How far one follower is, as its leader knows it (R8, R102, D20).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_wire::Millis;

/// When the last request of one follower's fetch session arrived (D20).
///
/// The session's owner stores the arrival *after* it has asked every partition which that request named or which was
/// ready; replicas at the end of the leader's log read it when they need to know (see `progress`). Monotonic.
#[derive(Debug, Clone, Default)]
pub struct LastArrival(Arc<AtomicU64>);

impl LastArrival {
    /// A request of the session arrived at `at`.
    pub fn store(&self, at: Millis) {
        self.0.fetch_max(at.0, Ordering::Relaxed);
    }

    /// The last stored arrival; 0 before the first.
    pub fn get(&self) -> Millis {
        Millis(self.0.load(Ordering::Relaxed))
    }
}
