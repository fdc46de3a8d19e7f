//! Where this crate takes the wall clock and chance from; the simulation puts its own in their place.
//!
//! Time that passes is tokio's, which a simulation holds in its hand already; openraft's chance is its runtime's.

use highwater_wire::{ClusterId, DirectoryId, Timestamp, TopicId};

/// The wall clock, for the time fields of commands.
pub(crate) fn wall_clock() -> Timestamp {
    #[cfg(feature = "sim")]
    if let Some(ambient) = AMBIENT.get() {
        return (ambient.clock)();
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Starts the planner's placement.
pub(crate) fn random_seed() -> u64 {
    #[cfg(feature = "sim")]
    if let Some(ambient) = AMBIENT.get() {
        return (ambient.chance)();
    }
    rand::random()
}

pub(crate) fn random_topic_id() -> TopicId {
    simulated_bytes().map_or_else(TopicId::random, TopicId::from_bytes)
}

pub(crate) fn random_directory_id() -> DirectoryId {
    simulated_bytes().map_or_else(DirectoryId::random, DirectoryId::from_bytes)
}

pub(crate) fn random_cluster_id() -> ClusterId {
    simulated_bytes().map_or_else(ClusterId::random, |bytes| ClusterId(DirectoryId::from_bytes(bytes).to_string()))
}

/// 16 bytes of the simulation's chance; `None` outside of it.
fn simulated_bytes() -> Option<[u8; 16]> {
    #[cfg(feature = "sim")]
    if let Some(ambient) = AMBIENT.get() {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(ambient.chance)().to_be_bytes());
        bytes[8..].copy_from_slice(&(ambient.chance)().to_be_bytes());
        return Some(bytes);
    }
    None
}

/// What a simulation puts in their place, on its thread.
#[cfg(feature = "sim")]
#[derive(Debug, Clone, Copy)]
pub struct Ambient {
    pub clock: fn() -> Timestamp,
    pub chance: fn() -> u64,
}

#[cfg(feature = "sim")]
thread_local! {
    static AMBIENT: std::cell::Cell<Option<Ambient>> = const { std::cell::Cell::new(None) };
}

/// From now on, on this thread.
#[cfg(feature = "sim")]
pub fn simulate(ambient: Option<Ambient>) {
    AMBIENT.set(ambient);
}
