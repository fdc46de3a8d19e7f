//! The rows about records: what was sent, acknowledged and read, partition by partition.
//!
//! Logs here have no holes: nothing is compacted, trimmed or expired, and there are no transactions. So the order of a
//! partition is a list of values by offset, and a jump over an offset that holds one is a skip.

use std::collections::{BTreeMap, HashMap};

use super::super::history::{End, Event, Outcome, Promise};
use super::unavailability::Acks;
use super::{Findings, Gap, Row, is_ok};

/// What stands at an offset, as somebody told it. 0: nobody did.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    value: u64,
    read: bool,
}

#[derive(Debug)]
struct Partition {
    name: String,
    kept: bool,
    cells: Vec<Cell>,
    /// One past the last offset that anybody read.
    read_end: i64,
    /// Where the shortest complete scan ended; `None`: there was none.
    drained: Option<i64>,
    last_ok: Option<u64>,
    retired: bool,
    acks: Acks,
}

#[derive(Debug, Clone, Copy)]
struct ValueState {
    op: u64,
    partition: usize,
    kept: bool,
    once: bool,
    acked: Option<i64>,
    failed: bool,
    seen: Option<i64>,
}

struct Send {
    by: String,
    partition: usize,
    values: Vec<u64>,
    ordered: bool,
    /// Values that have not been answered for.
    open: usize,
    all_ok: bool,
}

/// Where one producer's latest acknowledged send lies.
#[derive(Clone, Copy)]
struct Latest {
    op: u64,
    offset: i64,
}

/// A jump of a reader, judged when all offsets are known.
struct Jump {
    by: String,
    partition: usize,
    from: i64,
    to: i64,
}

#[derive(Default)]
pub(super) struct Records {
    partitions: Vec<Partition>,
    by_name: HashMap<String, usize>,
    promises: HashMap<String, Promise>,
    retired: Vec<String>,
    values: HashMap<u64, ValueState>,
    sends: HashMap<u64, Send>,
    producers: HashMap<(String, usize), Latest>,
    /// The next offset a reader is to see.
    readers: HashMap<(String, usize), i64>,
    ends: HashMap<(String, usize, End), i64>,
    jumps: Vec<Jump>,
    sums: Sums,
}

#[derive(Default)]
pub(super) struct Sums {
    pub ops: u64,
    pub ok: u64,
    pub acks: u64,
    pub reads: u64,
    pub gaps: Vec<Gap>,
    /// By name, of partitions with acks=all.
    pub acks_of: HashMap<String, Acks>,
}

/// Gaps between acknowledgements below this are not kept, µs.
const GAP_MIN: u64 = 200_000;

impl Records {
    pub fn event(&mut self, t: u64, event: &Event, found: &mut Findings) {
        match event {
            Event::Topic { topic, promise, .. } => {
                self.promises.insert(topic.clone(), *promise);
            }
            Event::Retired { topic } => self.retire(t, topic),
            Event::Send { op, by, at, values, once, ordered } => {
                self.send(*op, by, at, values, *once, *ordered, found);
            }
            Event::Sent { op, first, count, offset } => self.sent(t, *op, *first, *count, *offset, found),
            Event::Unsent { op, first, count, outcome, why } => {
                self.unsent(*op, *first, *count, *outcome, why, found);
            }
            Event::Assign { by, at, offset } => {
                let partition = self.partition(at);
                self.readers.insert((by.clone(), partition), *offset);
            }
            Event::Poll { by, at, records } => self.poll(by, at, records, found),
            Event::OutOfRange { by, at, offset } => {
                found.add(Row::EndRegress, || format!("{at}: {by} had read to {offset}, which is out of range now"));
            }
            Event::End { by, at, end, offset } => {
                let partition = self.partition(at);
                let known = self.ends.entry((by.clone(), partition, *end)).or_insert(*offset);
                if *offset < *known {
                    found.add(Row::EndRegress, || format!("{at}: {by} was told {end:?} {offset} after {known}"));
                }
                *known = (*known).max(*offset);
            }
            Event::Drained { at, end, .. } => {
                let partition = self.partition(at);
                let drained = &mut self.partitions[partition].drained;
                *drained = Some(drained.map_or(*end, |known| known.min(*end)));
            }
            _ => {}
        }
    }

    fn partition(&mut self, at: &str) -> usize {
        if let Some(known) = self.by_name.get(at) {
            return *known;
        }
        let topic = at.rsplit_once('/').map_or(at, |(topic, _)| topic);
        let kept = self.promises.get(topic) == Some(&Promise::Kept);
        let retired = self.retired.iter().any(|name| name == topic);
        let made = Partition {
            name: at.to_owned(),
            kept,
            cells: Vec::new(),
            read_end: 0,
            drained: None,
            last_ok: None,
            retired,
            acks: Acks::default(),
        };
        self.partitions.push(made);
        self.by_name.insert(at.to_owned(), self.partitions.len() - 1);
        self.partitions.len() - 1
    }

    fn retire(&mut self, t: u64, topic: &str) {
        self.retired.push(topic.to_owned());
        for (at, index) in &self.by_name {
            if at.rsplit_once('/').is_some_and(|(name, _)| name == topic) {
                let place = &mut self.partitions[*index];
                place.retired = true;
                place.acks.retired = Some(t);
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of one event
    fn send(&mut self, op: u64, by: &str, at: &str, values: &[u64], once: bool, ordered: bool, found: &mut Findings) {
        let partition = self.partition(at);
        let kept = self.partitions[partition].kept;
        self.sums.ops += 1;
        for value in values {
            let state = ValueState { op, partition, kept, once, acked: None, failed: false, seen: None };
            if self.values.insert(*value, state).is_some() {
                found.add(Row::Duplicate, || format!("{at}: value {value} was sent by two ops: no history of ours"));
            }
        }
        let open = values.len();
        let send = Send { by: by.to_owned(), partition, values: values.to_vec(), ordered, open, all_ok: true };
        self.sends.insert(op, send);
    }

    fn sent(&mut self, t: u64, op: u64, first: usize, count: usize, offset: i64, found: &mut Findings) {
        let Some(send) = self.sends.get_mut(&op) else { return };
        send.open = send.open.saturating_sub(count);
        let (partition, done) = (send.partition, send.open == 0);
        let values: Vec<u64> = send.values.iter().skip(first).take(count).copied().collect();
        let (by, ordered, all_ok) = (send.by.clone(), send.ordered, send.all_ok);
        let place = &mut self.partitions[partition];
        let (name, kept) = (place.name.clone(), place.kept);
        if let Some(last) = place.last_ok
            && t - last >= GAP_MIN
            && !place.retired
        {
            self.sums.gaps.push(Gap { us: t - last, at: name.clone(), until_us: t, during: Vec::new() });
        }
        place.last_ok = Some(t);
        if kept {
            place.acks.times.push(t);
        }
        for (value, offset) in values.iter().zip(offset..) {
            self.sums.acks += 1;
            if let Some(state) = self.values.get_mut(value) {
                state.acked = Some(offset);
                if kept && state.seen.is_some_and(|seen| seen != offset) {
                    let seen = state.seen;
                    found.twice(state.once, || format!("{name}: {value} acknowledged at {offset}, read at {seen:?}"));
                }
            }
            if kept {
                let cell = cell(&mut self.partitions[partition].cells, offset);
                if cell.value == 0 {
                    cell.value = *value;
                } else if cell.value != *value {
                    let other = cell.value;
                    found.add(Row::InconsistentOffsets, || format!("{name}@{offset}: {other} and then {value}"));
                }
            }
        }
        if kept && ordered {
            // A later op lies higher; within an op, so does a later value.
            let mine = Latest { op, offset: offset + count as i64 - 1 };
            let latest = self.producers.entry((by, partition)).or_insert(Latest { op, offset: i64::MIN });
            let (earlier, later) = if op >= latest.op { (*latest, offset) } else { (mine, latest.offset) };
            if later <= earlier.offset && earlier.offset != i64::MIN {
                let (one, two) = (latest.op, latest.offset);
                found.add(Row::NonmonotonicSend, || format!("{name}: op {op} at {offset}, op {one} at {two}"));
            }
            if op >= latest.op {
                *latest = mine;
            }
        }
        if done {
            self.sums.ok += u64::from(all_ok);
            self.sends.remove(&op);
        }
    }

    fn unsent(&mut self, op: u64, first: usize, count: usize, outcome: Outcome, why: &str, found: &mut Findings) {
        let Some(send) = self.sends.get_mut(&op) else { return };
        send.open = send.open.saturating_sub(count);
        send.all_ok &= is_ok(outcome);
        if outcome == Outcome::Failed {
            for value in send.values.iter().skip(first).take(count) {
                let Some(state) = self.values.get_mut(value) else { continue };
                state.failed = true;
                if let Some(seen) = state.seen {
                    let name = &self.partitions[send.partition].name;
                    found.add(Row::AbortedRead, || format!("{name}@{seen}: {value}, whose send failed: {why}"));
                }
            }
        }
        if send.open == 0 {
            self.sends.remove(&op);
        }
    }

    fn poll(&mut self, by: &str, at: &str, records: &[(i64, u64)], found: &mut Findings) {
        let partition = self.partition(at);
        let reader = (by.to_owned(), partition);
        let mut next = self.readers.get(&reader).copied();
        let mut previous: Option<(i64, u64)> = None;
        for &(offset, value) in records {
            self.sums.reads += 1;
            if let Some(expected) = next {
                if offset > expected {
                    let jump = Jump { by: by.to_owned(), partition, from: expected, to: offset };
                    self.jumps.push(jump);
                } else if offset < expected {
                    found.add(Row::NonmonotonicPoll, || format!("{at}: {by} read {offset} where {expected} was next"));
                }
            }
            next = Some(offset + 1);
            self.read(partition, offset, value, previous, found);
            previous = Some((offset, value));
        }
        if let Some(next) = next {
            self.readers.insert(reader, next);
        }
    }

    /// One record was read; `previous`: the one before it in the same answer.
    fn read(&mut self, partition: usize, offset: i64, value: u64, previous: Option<(i64, u64)>, found: &mut Findings) {
        let place = &mut self.partitions[partition];
        let name = &place.name;
        place.read_end = place.read_end.max(offset + 1);
        let at = cell(&mut place.cells, offset);
        if at.value != 0 && at.value != value {
            let other = at.value;
            found.add(Row::InconsistentOffsets, || format!("{name}@{offset}: {other} and then {value}"));
        }
        let again = at.value == value && at.read;
        *at = Cell { value, read: true };
        if again {
            return;
        }
        let Some(state) = self.values.get_mut(&value).filter(|state| state.partition == partition) else {
            found.add(Row::InconsistentOffsets, || format!("{name}@{offset}: {value}, which nobody sent there"));
            return;
        };
        if let Some(seen) = state.seen.replace(offset)
            && seen != offset
        {
            found.twice(state.once, || format!("{name}: {value} at {seen} and at {offset}"));
        }
        if state.failed {
            found.add(Row::AbortedRead, || format!("{name}@{offset}: {value}, whose send failed"));
        }
        if let Some(acked) = state.acked
            && state.kept
            && state.once
            && acked != offset
        {
            found.add(Row::Duplicate, || format!("{name}: {value} acknowledged at {acked}, read at {offset}"));
        }
        let op = state.op;
        let of_op = |value: u64| self.values.get(&value).map(|state| state.op);
        // Two of one send, one after the other in the order of sending: nothing lies between them in `values`.
        if let Some((before, other)) = previous
            && of_op(other) != Some(op)
            && of_op(value - 1) == Some(op)
            && self.values.get(&(value - 1)).is_some_and(|first| first.seen.is_some_and(|seen| seen < before))
        {
            found.add(Row::IntSendSkip, || format!("{name}: {other} between {} and {value}", value - 1));
        }
    }

    /// Judges what only the end shows.
    pub fn end(mut self, found: &mut Findings) -> Sums {
        let known_before: Vec<Vec<i64>> = self.partitions.iter().map(known_before).collect();
        for Jump { by, partition, from, to } in &self.jumps {
            let before = &known_before[*partition];
            let count = |offset: i64| before.get(offset.max(0) as usize).or(before.last()).copied().unwrap_or_default();
            if count(*to) > count(*from) {
                let name = &self.partitions[*partition].name;
                found.add(Row::PollSkip, || format!("{name}: {by} came from {from} to {to}"));
            }
        }
        let mut lost: BTreeMap<u64, &ValueState> = BTreeMap::new();
        for (value, state) in &self.values {
            let Some(acked) = state.acked.filter(|_| state.kept) else { continue };
            // One copy more elsewhere does not make up for the acknowledged one.
            let cells = &self.partitions[state.partition].cells;
            let is_there = usize::try_from(acked).ok().and_then(|at| cells.get(at));
            let is_there = is_there.is_some_and(|cell| cell.value == *value && cell.read);
            if state.seen.is_none() || !state.once && !is_there {
                lost.insert(*value, state);
            }
        }
        for (value, state) in lost {
            let (place, offset) = (&self.partitions[state.partition], state.acked.unwrap_or_default());
            let (name, passed) = (&place.name, place.drained.unwrap_or(place.read_end));
            let row = if passed > offset { Row::LostWrite } else { Row::Unseen };
            found.add(row, || {
                format!("{name}@{offset}: {value} acknowledged, read by nobody; the scan ends at {passed}")
            });
        }
        for place in &self.partitions {
            if let Some(end) = place.drained
                && end < place.read_end
            {
                let (name, read) = (&place.name, place.read_end);
                found.add(Row::LostWrite, || format!("{name}: read to {read} before, ends at {end} now"));
            }
        }
        self.sums.acks_of = self.partitions.into_iter().filter(|at| at.kept).map(|at| (at.name, at.acks)).collect();
        self.sums
    }
}

/// For each offset, how many offsets below it hold a value.
fn known_before(place: &Partition) -> Vec<i64> {
    let mut sums = Vec::with_capacity(place.cells.len() + 1);
    let mut sum = 0;
    sums.push(0);
    for cell in &place.cells {
        sum += i64::from(cell.value != 0);
        sums.push(sum);
    }
    sums
}

fn cell(cells: &mut Vec<Cell>, offset: i64) -> &mut Cell {
    let index = usize::try_from(offset).expect("the clients write down offsets from 0 on");
    if cells.len() <= index {
        cells.resize(index + 1, Cell::default());
    }
    &mut cells[index]
}
