//! The same seed gives the same trace: in another process, at another place in the order, beside other seeds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use highwater_wire::Millis;

use super::run::{Plan, run_seed};

/// What a seed came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    pub trace_hash: u64,
    pub events: u64,
    pub simulated: Millis,
}

/// Runs seeds from the first to the last, or backwards.
pub fn run_all(seeds: &Range<u64>, backwards: bool, plan: &Plan, threads: usize) -> BTreeMap<u64, Came> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut came = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let seed = if backwards { seeds.end.checked_sub(number + 1) } else { seeds.start.checked_add(number) };
            let Some(seed) = seed.filter(|seed| seeds.contains(seed)) else { return came };
            let outcome = run_seed(seed, plan);
            let (trace_hash, events) = (outcome.trace_hash, outcome.events);
            came.push((seed, Came { trace_hash, events, simulated: outcome.simulated }));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a seed ends")).collect()
    })
}

/// One line a seed, for another process to read.
pub fn print(came: &BTreeMap<u64, Came>) -> String {
    let line =
        |(seed, came): (&u64, &Came)| format!("{seed} {:016x} {} {}\n", came.trace_hash, came.events, came.simulated.0);
    came.iter().map(line).collect()
}

/// Reads what [`print`] wrote; `None` where a line is none of it.
pub fn parse(text: &str) -> Option<BTreeMap<u64, Came>> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let seed = words.next()?.parse().ok()?;
        let trace_hash = u64::from_str_radix(words.next()?, 16).ok()?;
        let (events, simulated) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((seed, Came { trace_hash, events, simulated: Millis(simulated) }))
    };
    text.lines().map(line).collect()
}

/// Seeds that did not come to the same twice, or came to something only once.
pub fn differing(first: &BTreeMap<u64, Came>, second: &BTreeMap<u64, Came>) -> Vec<u64> {
    let seeds = first.keys().chain(second.keys().filter(|seed| !first.contains_key(seed)));
    seeds.filter(|seed| first.get(seed) != second.get(seed)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_and_what_is_printed_can_be_read() {
        let came = |trace_hash| Came { trace_hash, events: 9, simulated: Millis(70_000) };
        let first = BTreeMap::from([(3, came(u64::MAX)), (4, came(1)), (5, came(2))]);
        assert_eq!(parse(&print(&first)), Some(first.clone()));
        assert_eq!(parse("seed 3: S7: it lacks records"), None);
        let second = BTreeMap::from([(3, came(u64::MAX)), (4, came(7)), (6, came(2))]);
        assert!(differing(&first, &first).is_empty());
        assert_eq!(differing(&first, &second), [4, 5, 6]);
    }
}
