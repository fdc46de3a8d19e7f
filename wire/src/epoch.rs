//! The four kinds of epoch. They count different things and are never interchangeable.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! epoch {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl $name {
            /// `None` for every negative number (−1 means "absent" on the wire).
            pub fn from_wire(value: $inner) -> Option<Self> {
                (value >= 0).then_some(Self(value))
            }

            /// −1 for `None`.
            pub fn to_wire(value: Option<Self>) -> $inner {
                value.map_or(-1, |epoch| epoch.0)
            }

            /// The next one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

epoch! {
    /// The term of one partition leader.
    ///
    /// Grows by one with every election of the partition and never goes back; the controller alone mints it.
    /// Every batch carries the epoch of the leader that first appended it, so two replicas that agree on
    /// `(epoch, offset)` agree on everything before it.
    ///
    /// Wire: `INT32`, −1 when absent. Source: KIP-101 (truncate by epoch), KIP-320 (fencing of fetchers).
    LeaderEpoch(i32)
}
epoch! {
    /// Grows by one with every change of a partition's state: the compare-and-set of R138. Wire: `INT32`.
    PartitionEpoch(i32)
}
epoch! {
    /// One uptime of one broker: the log position of its registration (R167, KIP-903). Wire: `INT64`, −1 when absent.
    BrokerEpoch(i64)
}
epoch! {
    /// The epoch of an idempotent producer (KIP-98). Wire: `INT16`, −1 when absent.
    ProducerEpoch(i16)
}
