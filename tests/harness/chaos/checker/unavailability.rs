//! How long a partition took no acknowledgement because of one fault that hit its leader, and how long healing took.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::super::fleet::SESSION;

/// How long after its end a fault is looked for in the acknowledgements.
const AFTERMATH_US: u64 = 15_000_000;

/// A fault, and the partitions that its nodes led when it began.
#[derive(Debug, Clone)]
pub struct Hit {
    pub kind: String,
    pub begin: u64,
    pub end: Option<u64>,
    /// Hits a majority: nobody can go on, and nothing is measured.
    pub of_many: bool,
    /// The raft leader is among its nodes.
    pub controller: bool,
    pub partitions: Vec<String>,
    pub recovered_ms: Option<u64>,
}

/// Acknowledgements of one partition.
#[derive(Debug, Default)]
pub struct Acks {
    /// µs, rising.
    pub times: Vec<u64>,
    /// When producers were told to leave it.
    pub retired: Option<u64>,
}

/// Numbers of one kind of fault, ms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    pub count: usize,
    pub p50: u64,
    pub p99: u64,
    pub most: u64,
}

impl Spread {
    /// `None`: of nothing.
    pub fn of(mut numbers: Vec<u64>) -> Option<Self> {
        numbers.sort_unstable();
        let rank = |percent: usize| numbers.get((numbers.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Some(Self { count: numbers.len(), p50: rank(50)?, p99: rank(99)?, most: rank(100)? })
    }

    pub fn json(&self) -> Value {
        json!({ "count": self.count, "p50": self.p50, "p99": self.p99, "max": self.most })
    }
}

/// What is wanted of a spread (fault-testing §10, M11), for faults that come one by one.
struct Mark {
    kind: &'static str,
    p50: u64,
    p99: u64,
}

const SESSION_MS: u64 = SESSION.as_millis() as u64;
/// A silent leader: its session, and what an election takes.
const SILENT: u64 = SESSION_MS + 800;

const MARKS: [Mark; 7] = [
    Mark { kind: "kill", p50: 1_000, p99: 2_000 },
    Mark { kind: "strike", p50: 1_000, p99: 2_000 },
    Mark { kind: "pause", p50: SILENT, p99: SILENT },
    Mark { kind: "partition", p50: SILENT, p99: SILENT },
    Mark { kind: "one-way", p50: SILENT, p99: SILENT },
    Mark { kind: "quorum-cut", p50: SILENT, p99: SILENT },
    Mark { kind: OF_CONTROLLER, p50: 2 * SESSION_MS + 1_000, p99: 2 * SESSION_MS + 1_000 },
];
/// Faults that hit the raft leader, whatever their kind.
const OF_CONTROLLER: &str = "raft leader";
/// How soon after a false suspicion all must be in sync again, ms.
const SUSPECTED: u64 = 1_000;

/// By kind of fault, how long partitions were without acknowledgements. `over`: from when on producers may have stopped, µs.
pub fn measure(hits: &BTreeMap<u64, Hit>, acks: &HashMap<String, Acks>, over: u64) -> BTreeMap<String, Spread> {
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for hit in hits.values().filter(|hit| !hit.of_many) {
        let Some(end) = hit.end else { continue };
        let until = hits.values().map(|other| other.begin).filter(|begin| *begin > hit.begin).min();
        let until = until.unwrap_or(u64::MAX).min(end + AFTERMATH_US).min(over);
        let is_alone = |other: &Hit| other.begin >= hit.begin || other.end.is_some_and(|end| end <= hit.begin);
        // Another one that began meanwhile would be measured too.
        if until < end || !hits.values().all(is_alone) {
            continue;
        }
        for partition in &hit.partitions {
            let Some(acks) = acks.get(partition).filter(|acks| acks.retired.is_none_or(|at| at > until)) else {
                continue;
            };
            let kind = if hit.controller { OF_CONTROLLER } else { &hit.kind };
            numbers.entry(kind.to_owned()).or_default().push(longest(&acks.times, hit.begin, until) / 1_000);
        }
    }
    numbers.into_iter().filter_map(|(kind, numbers)| Some((kind, Spread::of(numbers)?))).collect()
}

/// The longest time between acknowledgements from `begin` to `until`; what is still without one then counts to there.
fn longest(times: &[u64], begin: u64, until: u64) -> u64 {
    let from = times.partition_point(|time| *time <= begin);
    let to = times.partition_point(|time| *time <= until);
    let mut last = begin;
    let mut most = 0;
    for time in &times[from..to] {
        most = most.max(time - last);
        last = *time;
    }
    most.max(until.saturating_sub(last))
}

/// By kind of fault, how long healing took.
pub fn recovered(hits: &BTreeMap<u64, Hit>) -> BTreeMap<String, Spread> {
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for hit in hits.values() {
        numbers.entry(hit.kind.clone()).or_default().extend(hit.recovered_ms);
    }
    numbers.into_iter().filter_map(|(kind, numbers)| Some((kind, Spread::of(numbers)?))).collect()
}

/// The marks that were missed, in words.
pub fn missed(unavailable: &BTreeMap<String, Spread>, recovered: &BTreeMap<String, Spread>) -> Vec<String> {
    let marks = MARKS.iter().filter_map(|mark| Some((mark, unavailable.get(mark.kind)?)));
    let late = marks.filter(|(mark, spread)| spread.p50 > mark.p50 || spread.p99 > mark.p99).map(|(mark, spread)| {
        let Spread { count, p50, p99, .. } = spread;
        let Mark { kind, p50: wanted, p99: limit } = mark;
        format!("{kind}: p50 {p50} ms, p99 {p99} ms of {count}; wanted {wanted} and {limit}")
    });
    let suspected = recovered.get("suspicion").filter(|spread| spread.most > SUSPECTED);
    let suspected = suspected.map(|spread| format!("suspicion: in sync after {} ms, wanted {SUSPECTED}", spread.most));
    late.chain(suspected).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(begin: u64, end: u64) -> Hit {
        Hit {
            kind: "kill".into(),
            begin,
            end: Some(end),
            of_many: false,
            controller: false,
            partitions: vec!["q/0".into()],
            recovered_ms: None,
        }
    }

    fn measured(hits: Vec<Hit>, times: &[u64], retired: Option<u64>) -> Option<Spread> {
        let hits = hits.into_iter().enumerate().map(|(id, hit)| (id as u64, hit)).collect();
        let acks = HashMap::from([("q/0".to_owned(), Acks { times: times.to_vec(), retired })]);
        measure(&hits, &acks, OVER).remove("kill")
    }

    const S: u64 = 1_000_000;
    /// Everything has healed, and producers stop soon.
    const OVER: u64 = 100 * S;

    #[test]
    fn the_longest_wait_counts_from_the_fault_and_not_from_the_acknowledgement_before_it() {
        let times: Vec<u64> =
            [9, 10].iter().chain(&[13, 14]).map(|s| s * S).chain((140..260).map(|t| t * S / 10)).collect();
        let spread = measured(vec![hit(10 * S + S / 2, 11 * S)], &times, None).expect("one event");
        assert_eq!((spread.count, spread.p50, spread.most), (1, 2_500, 2_500));
    }

    #[test]
    fn a_partition_that_stays_silent_counts_to_the_end_of_the_look() {
        let spread = measured(vec![hit(10 * S, 11 * S)], &[9 * S], None).expect("one event");
        assert_eq!(spread.most, 16_000);
    }

    #[test]
    fn what_comes_after_producers_have_stopped_counts_nothing() {
        let times: Vec<u64> = (90..101).map(|s| s * S).collect();
        let spread = measured(vec![hit(97 * S + S / 2, 98 * S)], &times, None).expect("one event");
        assert_eq!(spread.most, 1_000);
    }

    #[test]
    fn faults_that_overlap_are_not_measured() {
        assert_eq!(measured(vec![hit(10 * S, 14 * S), hit(12 * S, 13 * S)], &[9 * S, 20 * S], None), None);
    }

    #[test]
    fn a_partition_that_producers_left_is_not_measured() {
        assert_eq!(measured(vec![hit(10 * S, 11 * S)], &[9 * S], Some(12 * S)), None);
    }

    #[test]
    fn ranks_are_of_the_numbers_themselves() {
        let spread = Spread::of((1..=200).collect()).expect("numbers");
        assert_eq!((spread.p50, spread.p99, spread.most), (100, 198, 200));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
