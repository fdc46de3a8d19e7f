//! What goes wrong and when: drawn from the seed before anything starts, so that a seed names a schedule.
//!
//! Who is hit is drawn as a role ("the leader of partition slot 3"); which node that is shows when the fault begins.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::sim::rng::Rng;

/// The kinds of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// kill -9, and a start after a while.
    Kill,
    /// kill -9 of a leader within milliseconds of a produce that is on its way to it.
    Strike,
    /// SIGTERM, waited for, and a start.
    Term,
    /// kill -9 of all nodes, and a start of all.
    KillAll,
    /// SIGSTOP, and SIGCONT after a while.
    Pause,
    /// The same for each node in turn.
    RollingPause,
    /// A node is cut off from the other nodes; clients reach it.
    Partition,
    /// Packets from a node to the others are lost, or those from the others to it.
    OneWay,
    /// Two nodes lose each other; the third sees both.
    Bridge,
    /// Clients' packets to a node are lost, or its answers.
    ClientCut,
    /// As [`Fault::Partition`], of the controller port only.
    QuorumCut,
    /// … of the replication port only.
    DataCut,
    /// A part of all packets that reach a node is lost.
    Loss,
    /// All connections of a node are reset, and refused for a moment.
    Reset,
    /// kill -9, `log.dirs` removed, and a start.
    Wipe,
    /// The same with `metadata.log.dir`; the node is made a voter again.
    Replace,
    /// Replication to a leader is cut, another is made leader while records wait there, and soon it leads again.
    HandOver,
    /// Replication to a leader is cut until it is alone in the ISR; then it is killed, and the cut is over.
    Forsaken,
    /// One bit of a segment is turned while the node is down. Some time later an operator empties its `log.dirs`.
    Rot,
    /// The disk is full for a while; then an operator makes room and starts the node again.
    FullDisk,
    /// Power is cut: what was not synced is gone, and the node starts on another boot.
    PowerCut,
    /// A node gets a twentieth of a core.
    Squeeze,
    /// A second process of a node's id: on the same files, which it must refuse, and with none, which the quorum must.
    Twin,
    /// Bytes between a node and the others come 50–2000 ms late.
    Delay,
    /// Connections between a node and the others carry nothing any more, and nobody is told.
    HalfOpen,
    /// They are reset again and again in the middle of a frame.
    MidFrame,
    /// They are reset and refused, though everybody is well: the quorum is made to believe that a node has died.
    Suspicion,
}

impl Fault {
    pub const ALL: [Self; 27] = [
        Self::Kill,
        Self::Strike,
        Self::Term,
        Self::KillAll,
        Self::Pause,
        Self::RollingPause,
        Self::Partition,
        Self::OneWay,
        Self::Bridge,
        Self::ClientCut,
        Self::QuorumCut,
        Self::DataCut,
        Self::Loss,
        Self::Reset,
        Self::Wipe,
        Self::Replace,
        Self::HandOver,
        Self::Forsaken,
        Self::Rot,
        Self::FullDisk,
        Self::PowerCut,
        Self::Squeeze,
        Self::Twin,
        Self::Delay,
        Self::HalfOpen,
        Self::MidFrame,
        Self::Suspicion,
    ];

    /// Those that need a proxy on every link, without which a death is noticed sooner: only where they are asked for.
    pub const LINKS: [Self; 4] = [Self::Delay, Self::HalfOpen, Self::MidFrame, Self::Suspicion];

    /// All others.
    pub fn usual() -> Vec<Self> {
        Self::ALL.into_iter().filter(|fault| !fault.needs_links()).collect()
    }

    /// What a word of the command line stands for: a fault, `links`, `usual`.
    ///
    /// # Errors
    /// There is no such fault.
    pub fn named(word: &str) -> Result<Vec<Self>, String> {
        match word {
            "links" => Ok(Self::LINKS.to_vec()),
            "usual" => Ok(Self::usual()),
            name => Ok(vec![name.parse()?]),
        }
    }

    pub fn needs_links(self) -> bool {
        Self::LINKS.contains(&self)
    }

    /// Whether each node needs a disk of its own.
    pub const fn needs_disks(self) -> bool {
        matches!(self, Self::FullDisk | Self::PowerCut)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Strike => "strike",
            Self::Term => "term",
            Self::KillAll => "kill-all",
            Self::Pause => "pause",
            Self::RollingPause => "rolling-pause",
            Self::Partition => "partition",
            Self::OneWay => "one-way",
            Self::Bridge => "bridge",
            Self::ClientCut => "client-cut",
            Self::QuorumCut => "quorum-cut",
            Self::DataCut => "data-cut",
            Self::Loss => "loss",
            Self::Reset => "reset",
            Self::Wipe => "wipe",
            Self::Replace => "replace",
            Self::HandOver => "hand-over",
            Self::Forsaken => "forsaken",
            Self::Rot => "rot",
            Self::FullDisk => "full-disk",
            Self::PowerCut => "power-cut",
            Self::Squeeze => "squeeze",
            Self::Twin => "twin",
            Self::Delay => "delay",
            Self::HalfOpen => "half-open",
            Self::MidFrame => "mid-frame",
            Self::Suspicion => "suspicion",
        }
    }

    /// How long it lasts, ms: shortest and longest, drawn log-uniformly.
    const fn lasts(self) -> (u64, u64) {
        match self {
            Self::Kill | Self::Strike | Self::Wipe | Self::Replace | Self::PowerCut | Self::Forsaken => (100, 8_000),
            Self::Rot | Self::FullDisk => (1_000, 6_000),
            Self::Squeeze | Self::Delay | Self::MidFrame => (2_000, 10_000),
            Self::Twin => (1_000, 4_000),
            Self::HalfOpen => (300, 15_000),
            // Until the former leader leads again.
            Self::HandOver => (50, 1_000),
            Self::Suspicion => (100, 1_000),
            Self::Term | Self::KillAll => (50, 3_000),
            Self::Pause => (200, 20_000),
            Self::RollingPause => (300, 4_000),
            Self::Partition | Self::OneWay | Self::Bridge | Self::ClientCut | Self::QuorumCut | Self::DataCut => {
                (300, 15_000)
            }
            Self::Loss => (2_000, 10_000),
            Self::Reset => (50, 500),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|fault| fault.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.map(Self::name).to_vec();
            format!("no fault is called {text:?}; there are {}", names.join(", "))
        })
    }
}

/// Who is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Node(u8),
    /// The leader of the partition that producers of this slot write to.
    LeaderOf(u8),
    /// The raft leader.
    Controller,
    /// So many that no quorum is left: two of three, three of five.
    MajorityWithout(u8),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::LeaderOf(slot) => write!(f, "leader of slot {slot}"),
            Self::Controller => f.write_str("quorum leader"),
            Self::MajorityWithout(node) => write!(f, "majority without node {node}"),
        }
    }
}

/// One fault of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Since the faults began.
    pub after: Duration,
    pub fault: Fault,
    pub target: Target,
    pub lasts: Duration,
    /// What else the kind needs: a direction, a percentage, microseconds after a produce.
    pub detail: u64,
}

/// The schedule of a seed. Each kind comes once before any comes twice, and once in any case, however short the run.
pub fn draw(seed: u64, length: Duration, faults: &[Fault], mean_gap: Duration, nodes: u8, slots: u8) -> Vec<Step> {
    let mut rng = Rng::new(seed).fork(1);
    let mut steps: Vec<Step> = Vec::new();
    let mut bag: Vec<Fault> = Vec::new();
    let mut at = Duration::ZERO;
    while !faults.is_empty() {
        at += Duration::from_micros(rng.around(u64::try_from(mean_gap.as_micros()).expect("a short time")));
        if at >= length && steps.len() >= faults.len() {
            break;
        }
        if bag.is_empty() {
            bag = faults.to_vec();
        }
        let fault = bag.swap_remove(rng.below(bag.len() as u64) as usize);
        let (shortest, longest) = fault.lasts();
        let lasts = Duration::from_millis(rng.log_within(shortest, longest));
        steps.push(Step {
            after: at,
            fault,
            target: target(&mut rng, fault, nodes, slots),
            lasts,
            detail: rng.next_u64(),
        });
    }
    steps
}

fn target(rng: &mut Rng, fault: Fault, nodes: u8, slots: u8) -> Target {
    let node = rng.within(1, nodes.into()) as u8;
    let leader = Target::LeaderOf(rng.below(slots.into()) as u8);
    let majority = matches!(fault, Fault::Kill | Fault::Pause | Fault::Term | Fault::Reset) && rng.chance(100);
    match (fault, rng.below(10)) {
        (Fault::Strike | Fault::HandOver | Fault::Forsaken, _) => leader,
        _ if majority => Target::MajorityWithout(node),
        (_, 0..=3) => leader,
        (_, 4..=5) => Target::Controller,
        _ => Target::Node(node),
    }
}

/// How often each kind comes.
pub fn counts(steps: &[Step]) -> BTreeMap<Fault, usize> {
    let mut counts = BTreeMap::new();
    for step in steps {
        *counts.entry(step.fault).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_secs(5);

    fn of(seed: u64) -> Vec<Step> {
        draw(seed, Duration::from_secs(300), &Fault::ALL, GAP, 3, 4)
    }

    #[test]
    fn a_seed_names_a_schedule() {
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn every_kind_comes_as_often_as_any_other_give_or_take_one() {
        for seed in 0..100 {
            let counts = counts(&of(seed));
            assert_eq!(counts.len(), Fault::ALL.len(), "seed {seed}: {counts:?}");
            let (least, most) = (counts.values().min().copied(), counts.values().max().copied());
            assert!(most <= least.map(|n| n + 1), "seed {seed}: {counts:?}");
        }
    }

    #[test]
    fn a_short_run_has_every_kind_once() {
        let steps = draw(7, Duration::from_secs(1), &Fault::ALL, GAP, 3, 4);
        assert_eq!((steps.len(), counts(&steps).len()), (Fault::ALL.len(), Fault::ALL.len()));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert!("earthquake".parse::<Fault>().is_err());
    }
}
