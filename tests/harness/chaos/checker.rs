//! Judges a history: one pass over its lines, every rule of Kafka that a client can see broken.
//!
//! It knows no product and no clock, only lines. Each row of the table is a kind of anomaly with its own verdict; a row
//! that concerns what is not built counts nothing and says so.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use self::metadata::Metadata;
use self::records::Records;
use self::unavailability::{Hit, Spread};
use super::history::{Event, Line, Outcome};

mod metadata;
mod records;
#[cfg(test)]
mod tests;
mod unavailability;

/// Shown of each row.
const EXAMPLES: usize = 5;

/// The kinds of anomaly (fault-testing §4), in the order of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Acknowledged, passed by a complete scan, never read; or read once and gone.
    LostWrite,
    /// Acknowledged, and no scan came that far.
    Unseen,
    /// Two values at one offset, or a value that nobody sent there.
    InconsistentOffsets,
    /// One value at two offsets.
    Duplicate,
    /// A value whose send failed for certain was read.
    AbortedRead,
    /// A reader jumped over a record, between two polls or within one.
    PollSkip,
    /// A reader went back, between two polls or within one.
    NonmonotonicPoll,
    /// A later send of one producer lies before an earlier one, or within one send.
    NonmonotonicSend,
    /// A foreign record between two of one send: Kafka allows it.
    IntSendSkip,
    /// Torn transactions and read cycles.
    TornTransaction,
    /// "Latest" or a high watermark went back for one observer.
    EndRegress,
    /// A committed group offset went back.
    OffsetRegress,
    /// Acknowledged metadata is missing, or the nodes disagree.
    GhostMetadata,
    /// A panic, an assertion, an end nobody asked for.
    Broken,
    /// Not in sync and writable in time after the last fault.
    SlowHeal,
    /// Too little happened for the run to count.
    Vacuous,
}

/// What a hit in a row means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Fails,
    /// Kafka allows it: counted only.
    Allowed,
    /// Groups and transactions are not built.
    NotApplicable,
}

impl Row {
    pub const ALL: [Self; 16] = [
        Self::LostWrite,
        Self::Unseen,
        Self::InconsistentOffsets,
        Self::Duplicate,
        Self::AbortedRead,
        Self::PollSkip,
        Self::NonmonotonicPoll,
        Self::NonmonotonicSend,
        Self::IntSendSkip,
        Self::TornTransaction,
        Self::EndRegress,
        Self::OffsetRegress,
        Self::GhostMetadata,
        Self::Broken,
        Self::SlowHeal,
        Self::Vacuous,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::LostWrite => "lost-write",
            Self::Unseen => "unseen",
            Self::InconsistentOffsets => "inconsistent-offsets",
            Self::Duplicate => "duplicate",
            Self::AbortedRead => "aborted-read",
            Self::PollSkip => "poll-skip",
            Self::NonmonotonicPoll => "nonmonotonic-poll",
            Self::NonmonotonicSend => "nonmonotonic-send",
            Self::IntSendSkip => "int-send-skip",
            Self::TornTransaction => "torn-transaction",
            Self::EndRegress => "end-regress",
            Self::OffsetRegress => "offset-regress",
            Self::GhostMetadata => "ghost-metadata",
            Self::Broken => "broken",
            Self::SlowHeal => "slow-heal",
            Self::Vacuous => "vacuous",
        }
    }

    pub const fn rule(self) -> Rule {
        match self {
            Self::IntSendSkip => Rule::Allowed,
            Self::TornTransaction | Self::OffsetRegress => Rule::NotApplicable,
            _ => Rule::Fails,
        }
    }
}

/// How often each row was hit, with some examples.
#[derive(Debug, Default)]
pub struct Findings {
    counts: BTreeMap<Row, u64>,
    examples: BTreeMap<Row, Vec<String>>,
    /// Values found twice whose producer may send them twice.
    repeats: u64,
}

impl Findings {
    fn add(&mut self, row: Row, what: impl FnOnce() -> String) {
        *self.counts.entry(row).or_default() += 1;
        let examples = self.examples.entry(row).or_default();
        if examples.len() < EXAMPLES {
            examples.push(what());
        }
    }

    /// A value stands at two offsets; `once`: its producer never writes one twice.
    fn twice(&mut self, once: bool, what: impl FnOnce() -> String) {
        match once {
            true => self.add(Row::Duplicate, what),
            false => self.repeats += 1,
        }
    }

    pub fn count(&self, row: Row) -> u64 {
        self.counts.get(&row).copied().unwrap_or_default()
    }

    /// Of the rows that fail.
    pub fn failed(&self) -> bool {
        Row::ALL.iter().any(|row| row.rule() == Rule::Fails && self.count(*row) > 0)
    }
}

/// What a run must at least have done to count.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Of all sends and metadata changes, in percent.
    pub ok_percent: u64,
    pub leader_changes: u64,
}

/// [`Demand`] of a run of some minutes (fault-testing §4).
pub const USUAL: Demand = Demand { ok_percent: 50, leader_changes: 10 };

/// The longest time between two acknowledgements of a partition that somebody wrote to.
#[derive(Debug, Clone, Default)]
pub struct Gap {
    pub us: u64,
    pub at: String,
    /// When it ended, since the history began.
    pub until_us: u64,
    /// Faults that were under way.
    pub during: Vec<String>,
}

/// Reads lines, one after the other.
#[derive(Default)]
pub struct Checker {
    findings: Findings,
    records: Records,
    metadata: Metadata,
    planned: Vec<String>,
    seed: u64,
    faults: BTreeMap<u64, Hit>,
    leaders: HashMap<String, (i32, i32)>,
    leader_changes: u64,
    healed: Option<Option<u64>>,
    /// When nothing was waited for any more, in sync or not.
    healed_at: Option<u64>,
    last_time: u64,
}

/// The judgement.
#[derive(Debug)]
pub struct Verdict {
    pub findings: Findings,
    pub seed: u64,
    /// Sends and metadata changes that were asked for, and that were acknowledged.
    pub ops: u64,
    pub ok: u64,
    /// Records acknowledged, and records read.
    pub acks: u64,
    pub reads: u64,
    pub faults: BTreeMap<String, u64>,
    pub leader_changes: u64,
    pub longest: Gap,
    /// How long partitions whose leader was hit were without acknowledgements, by kind of fault, ms.
    pub unavailable: BTreeMap<String, Spread>,
    /// How long healing took after faults that came one by one, by kind, ms.
    pub recovered: BTreeMap<String, Spread>,
    /// Longest gap while one fault of this kind, and no other, was under way, in ms.
    pub longest_alone: BTreeMap<String, u64>,
    pub healed_ms: Option<u64>,
    pub seconds: u64,
}

impl Checker {
    /// Takes the next line.
    pub fn line(&mut self, line: &Line) {
        self.last_time = line.t;
        let found = &mut self.findings;
        match &line.event {
            Event::Plan { seed, faults } => {
                self.seed = *seed;
                self.planned.clone_from(faults);
            }
            Event::Leader { at, leader, epoch } => {
                let known = self.leaders.entry(at.clone()).or_insert((*leader, *epoch));
                if *epoch > known.1 {
                    self.leader_changes += u64::from(*leader >= 0 && *leader != known.0);
                    // Without a leader in between, the same one again is no change.
                    *known = (if *leader >= 0 { *leader } else { known.0 }, *epoch);
                } else if *epoch == known.1 && *leader >= 0 && *leader != known.0 {
                    found.add(Row::GhostMetadata, || {
                        format!("{at}: brokers {} and {leader} lead in epoch {epoch}", known.0)
                    });
                }
            }
            Event::FaultBegins { id, fault, target, nodes, controller } => {
                let of_many = target.starts_with("majority") || fault == "kill-all";
                let led = |leader: i32| u8::try_from(leader).is_ok_and(|leader| nodes.contains(&leader));
                let led = self.leaders.iter().filter(|(_, (leader, _))| led(*leader));
                let hit = Hit {
                    kind: fault.clone(),
                    begin: line.t,
                    end: None,
                    of_many,
                    controller: *controller,
                    partitions: led.map(|(at, _)| at.clone()).collect(),
                    recovered_ms: None,
                };
                self.faults.insert(*id, hit);
            }
            Event::Recovered { id, ms } => {
                if let Some(fault) = self.faults.get_mut(id) {
                    fault.recovered_ms = Some(*ms);
                }
            }
            Event::FaultEnds { id } => {
                if let Some(fault) = self.faults.get_mut(id) {
                    fault.end = Some(line.t);
                }
            }
            Event::Broken { node, what } => found.add(Row::Broken, || format!("node {node}: {what}")),
            Event::Healed { ms, limit_ms, why } => {
                (self.healed, self.healed_at) = (Some(*ms), Some(line.t));
                if ms.is_none_or(|ms| ms > *limit_ms) {
                    found.add(Row::SlowHeal, || format!("{ms:?} of {limit_ms} ms: {why}"));
                }
            }
            event => {
                self.records.event(line.t, event, found);
                self.metadata.event(event);
            }
        }
    }

    /// Whether a line was found already that fails.
    pub fn is_broken(&self) -> bool {
        self.findings.failed()
    }

    /// Judges what only the end shows.
    pub fn end(mut self, demand: Demand) -> Verdict {
        let sums = self.records.end(&mut self.findings);
        self.metadata.end(&mut self.findings);
        let found = &mut self.findings;
        let (ops, ok) = (sums.ops + self.metadata.asked, sums.ok + self.metadata.ok);
        let mut faults: BTreeMap<String, u64> = self.planned.iter().map(|kind| (kind.clone(), 0)).collect();
        for fault in self.faults.values() {
            *faults.entry(fault.kind.clone()).or_default() += 1;
        }
        if ops == 0 || ok * 100 < ops * demand.ok_percent {
            found.add(Row::Vacuous, || format!("{ok} of {ops} operations were acknowledged"));
        }
        if self.leader_changes < demand.leader_changes {
            found.add(Row::Vacuous, || format!("{} leader changes", self.leader_changes));
        }
        for (kind, _) in faults.iter().filter(|(_, times)| **times == 0) {
            found.add(Row::Vacuous, || format!("{kind} never happened"));
        }
        if self.healed.is_none() {
            found.add(Row::Vacuous, || "the run did not come to its end".to_owned());
        }
        let mut longest = Gap::default();
        let mut longest_alone: BTreeMap<String, u64> = BTreeMap::new();
        for mut gap in sums.gaps {
            let from = gap.until_us - gap.us;
            let under_way = |fault: &&Hit| fault.begin < gap.until_us && fault.end.is_none_or(|end| end > from);
            let during: Vec<&Hit> = self.faults.values().filter(under_way).collect();
            if let [alone] = &during[..] {
                let kind = if alone.of_many { format!("{} of a majority", alone.kind) } else { alone.kind.clone() };
                let most = longest_alone.entry(kind).or_default();
                *most = (*most).max(gap.us / 1_000);
            }
            gap.during = during.into_iter().map(|fault| fault.kind.clone()).collect();
            if gap.us > longest.us {
                longest = gap;
            }
        }
        Verdict {
            unavailable: unavailability::measure(&self.faults, &sums.acks_of, self.healed_at.unwrap_or(u64::MAX)),
            recovered: unavailability::recovered(&self.faults),
            seed: self.seed,
            ops,
            ok,
            acks: sums.acks,
            reads: sums.reads,
            faults,
            leader_changes: self.leader_changes,
            longest,
            longest_alone,
            healed_ms: self.healed.flatten(),
            seconds: self.last_time / 1_000_000,
            findings: self.findings,
        }
    }
}

impl Verdict {
    /// What was wanted of times, and was not so; for runs with one fault at a time.
    pub fn missed_marks(&self) -> Vec<String> {
        unavailability::missed(&self.unavailable, &self.recovered)
    }

    /// The closing line of a run.
    pub fn json(&self) -> Value {
        let mut anomalies = Map::new();
        for row in Row::ALL {
            let told = match row.rule() {
                Rule::NotApplicable => json!("not applicable"),
                Rule::Allowed | Rule::Fails => json!(self.findings.count(row)),
            };
            anomalies.insert(row.name().to_owned(), told);
        }
        let spreads = |of: &BTreeMap<String, Spread>| {
            of.iter().map(|(kind, spread)| (kind.clone(), spread.json())).collect::<Map<_, _>>()
        };
        json!({
            "ok": !self.findings.failed(),
            "seed": self.seed,
            "seconds": self.seconds,
            "ops": self.ops,
            "ops_ok": self.ok,
            "acks": self.acks,
            "reads": self.reads,
            "faults": self.faults,
            "leader_changes": self.leader_changes,
            "anomalies": anomalies,
            "allowed_repeats": self.findings.repeats,
            "longest_unavailability_ms": self.longest.us / 1_000,
            "longest_unavailability": {
                "partition": self.longest.at,
                "until_s": self.longest.until_us as f64 / 1e6,
                "during": self.longest.during,
            },
            "longest_unavailability_ms_by_lone_fault": self.longest_alone,
            "unavailable_ms": spreads(&self.unavailable),
            "recovered_ms": spreads(&self.recovered),
            "healed_ms": self.healed_ms,
        })
    }

    /// Examples of every row that was hit, one a line.
    pub fn examples(&self) -> Vec<String> {
        let shown = |(row, examples): (&Row, &Vec<String>)| {
            examples.iter().map(|example| format!("{}: {example}", row.name())).collect::<Vec<_>>()
        };
        self.findings.examples.iter().flat_map(shown).collect()
    }
}

/// Judges what a file holds.
///
/// # Errors
/// A line is no event.
pub fn judge(lines: impl Iterator<Item = std::io::Result<String>>, demand: Demand) -> std::io::Result<Verdict> {
    let mut checker = Checker::default();
    for line in lines {
        let line = line?;
        checker.line(
            &serde_json::from_str(&line)
                .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{error}: {line}")))?,
        );
    }
    Ok(checker.end(demand))
}

/// Whether something was acknowledged.
const fn is_ok(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Ok)
}
