//! Each seed draws its own mix: sizes, speeds, and which kinds of trouble there are and how often.

use std::time::Duration;

use highwater_quorum::sim::Latency;

use crate::rng::Rng;

/// A kind of trouble, for the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// One machine loses its power, and what it had not synced.
    Crash,
    /// The raft leader's.
    CrashLeader,
    /// All of them at once.
    CrashAll,
    /// A process ends in order.
    Stop,
    /// One node is cut off from all others.
    Isolate,
    /// The raft leader is.
    IsolateLeader,
    /// Two groups that do not hear each other.
    Split,
    /// One direction of one link is cut.
    OneWay,
    /// A link is slow, up to seconds: messages overtake each other, and come late.
    SlowLink,
    /// A disk is slow.
    SlowDisk,
    /// A sync fails: the process must stop.
    DiskError,
    /// A machine comes back with an empty disk.
    Wipe,
}

impl Trouble {
    pub const ALL: [Self; 12] = [
        Self::Crash,
        Self::CrashLeader,
        Self::CrashAll,
        Self::Stop,
        Self::Isolate,
        Self::IsolateLeader,
        Self::Split,
        Self::OneWay,
        Self::SlowLink,
        Self::SlowDisk,
        Self::DiskError,
        Self::Wipe,
    ];
}

/// What one seed is like.
#[derive(Debug, Clone)]
pub struct Swarm {
    /// Nodes 1 to `voters` form the cluster.
    pub voters: u32,
    /// Nodes that join it as observers.
    pub others: u32,
    pub snapshot_entries: u64,
    pub election_timeout: Duration,
    pub latency_ms: (u64, u64),
    pub disk: Latency,
    /// Mean time between two proposals of one node, in milliseconds.
    pub pace_ms: u64,
    /// Kinds of trouble with the mean time between two of them, in milliseconds.
    pub troubles: Vec<(Trouble, u64)>,
    /// Requests that are sent again later, whatever became of them; in 1,000.
    pub duplicated: u64,
    /// Requests that arrive when their sender has long given up; in 1,000.
    pub late: u64,
    /// Voters are added, removed and replaced.
    pub membership: bool,
    /// Leadership is handed over on purpose.
    pub transfers: bool,
}

impl Swarm {
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed).fork(1);
        let voters = if rng.chance(700) { 3 } else { 5 };
        let mut troubles = Vec::new();
        for kind in Trouble::ALL {
            let (likely, mean) = match kind {
                Trouble::Crash | Trouble::CrashLeader => (600, rng.log_within(1_500, 15_000)),
                Trouble::CrashAll => (250, rng.log_within(6_000, 30_000)),
                Trouble::Stop | Trouble::DiskError => (250, rng.log_within(4_000, 30_000)),
                Trouble::Isolate | Trouble::IsolateLeader => (450, rng.log_within(2_000, 15_000)),
                Trouble::Split | Trouble::OneWay => (350, rng.log_within(2_000, 15_000)),
                Trouble::SlowLink | Trouble::SlowDisk => (350, rng.log_within(2_000, 15_000)),
                Trouble::Wipe => (250, rng.log_within(8_000, 30_000)),
            };
            if rng.chance(likely) {
                troubles.push((kind, mean));
            }
        }
        let slowest = rng.log_within(2, 40);
        let usual = rng.log_within(2, 12);
        Self {
            voters,
            others: if rng.chance(600) { rng.within(1, 2) as u32 } else { 0 },
            snapshot_entries: rng.log_within(20, 400),
            election_timeout: Duration::from_millis(rng.within(4, 8) * 100),
            latency_ms: (1, slowest),
            disk: Latency { usual_ms: 1..usual + 1, slow_ms: usual..rng.log_within(50, 900) + usual },
            pace_ms: rng.log_within(20, 300),
            troubles,
            duplicated: if rng.chance(400) { rng.log_within(2, 60) } else { 0 },
            late: if rng.chance(400) { rng.log_within(2, 60) } else { 0 },
            membership: rng.chance(500),
            transfers: rng.chance(300),
        }
    }

    pub fn nodes(&self) -> u32 {
        self.voters + self.others
    }
}
