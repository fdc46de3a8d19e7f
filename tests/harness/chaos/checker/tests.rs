//! Hand-made histories: for each row some that hit it, and near misses that do not.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Checker, Demand, Row, Rule, USUAL, Verdict, judge};
use crate::chaos::history::{Ask, End, Event, Line, Outcome, Promise};

/// So that a history of three lines counts.
const NO_DEMAND: Demand = Demand { ok_percent: 0, leader_changes: 0 };

const AT: &str = "q/0";
const WEAK: &str = "w/0";

/// A history that breaks nothing, to which the tests add.
fn begun() -> Vec<Event> {
    vec![
        Event::Topic { topic: "q".into(), partitions: 1, promise: Promise::Kept },
        Event::Topic { topic: "w".into(), partitions: 1, promise: Promise::ReadIsKept },
    ]
}

fn judged(events: Vec<Event>) -> Verdict {
    let mut checker = Checker::default();
    let ending = [
        Event::Send { op: 900, by: "last".into(), at: "q/9".into(), values: vec![900], once: true, ordered: true },
        Event::Sent { op: 900, first: 0, count: 1, offset: 0 },
        poll("last", "q/9", &[(0, 900)]),
        Event::Healed { ms: Some(1), limit_ms: 10, why: String::new() },
    ];
    for (n, event) in begun().into_iter().chain(events).chain(ending).enumerate() {
        checker.line(&Line { t: n as u64 * 1_000, event });
    }
    checker.end(NO_DEMAND)
}

/// Only this row is hit, so often.
#[track_caller]
fn hits(row: Row, times: u64, events: Vec<Event>) {
    let verdict = judged(events);
    for other in Row::ALL {
        let expected = if other == row { times } else { 0 };
        assert_eq!(verdict.findings.count(other), expected, "{}: {:#?}", other.name(), verdict.examples());
    }
    assert_eq!(verdict.findings.failed(), row.rule() == Rule::Fails && times > 0);
}

#[track_caller]
fn passes(events: Vec<Event>) {
    hits(Row::LostWrite, 0, events);
}

fn send(op: u64, at: &str, values: &[u64]) -> Event {
    Event::Send { op, by: "p".into(), at: at.into(), values: values.to_vec(), once: true, ordered: true }
}

/// From a producer that may repeat and reorder.
fn loose(op: u64, at: &str, values: &[u64]) -> Event {
    Event::Send { op, by: "l".into(), at: at.into(), values: values.to_vec(), once: false, ordered: false }
}

fn sent(op: u64, count: usize, offset: i64) -> Event {
    Event::Sent { op, first: 0, count, offset }
}

fn unsent(op: u64, outcome: Outcome) -> Event {
    Event::Unsent { op, first: 0, count: 1, outcome, why: "told so".into() }
}

fn poll(by: &str, at: &str, records: &[(i64, u64)]) -> Event {
    Event::Poll { by: by.into(), at: at.into(), records: records.to_vec() }
}

fn assign(by: &str, offset: i64) -> Event {
    Event::Assign { by: by.into(), at: AT.into(), offset }
}

fn drained(end: i64) -> Event {
    Event::Drained { by: "d".into(), at: AT.into(), end }
}

fn end(by: &str, end: End, offset: i64) -> Event {
    Event::End { by: by.into(), at: AT.into(), end, offset }
}

fn asked(op: u64, ask: Ask) -> Event {
    Event::Asked { op, topic: "a".into(), ask }
}

fn answered(op: u64, outcome: Outcome) -> Event {
    Event::Answered { op, outcome, why: String::new() }
}

fn topics(node: u8, topics: &[&str]) -> Event {
    Event::Topics { node, topics: topics.iter().map(|topic| (*topic).to_owned()).collect() }
}

fn settings(node: u8, value: &str) -> Event {
    let settings = BTreeMap::from([("retention.ms".to_owned(), value.to_owned())]);
    Event::Settings { node, topic: "a".into(), settings }
}

fn configure(value: &str) -> Ask {
    Ask::Configure { key: "retention.ms".into(), value: value.into() }
}

fn leader(leader: i32, epoch: i32) -> Event {
    Event::Leader { at: AT.into(), leader, epoch }
}

#[test]
fn lost_write() {
    // Acknowledged at 1, the scan passes it.
    let records =
        [send(1, AT, &[1]), sent(1, 1, 0), send(2, AT, &[2]), sent(2, 1, 1), send(3, AT, &[3]), sent(3, 1, 2)];
    let with = |more: Vec<Event>| records.iter().cloned().chain(more).collect::<Vec<_>>();
    hits(Row::LostWrite, 1, {
        let mut events = vec![send(1, AT, &[1]), sent(1, 1, 0), send(2, AT, &[2]), sent(2, 1, 1)];
        events.extend([poll("d", AT, &[(0, 1)]), drained(2)]);
        events
    });
    // Read once, and a later scan ends before it.
    hits(Row::LostWrite, 1, with(vec![poll("r", AT, &[(0, 1), (1, 2), (2, 3)]), poll("d", AT, &[(0, 1)]), drained(1)]));
    // All are there.
    passes(with(vec![poll("d", AT, &[(0, 1), (1, 2), (2, 3)]), drained(3)]));
    // A copy elsewhere does not make up for it.
    hits(Row::LostWrite, 1, {
        let mut events = vec![loose(1, AT, &[1]), sent(1, 1, 3), poll("d", AT, &[(2, 1)])];
        events.push(drained(4));
        events
    });
    // With acks=1 an acknowledged record may go, and another take its place.
    passes(vec![
        send(1, WEAK, &[1]),
        sent(1, 1, 0),
        send(2, WEAK, &[2]),
        sent(2, 1, 0),
        poll("d", WEAK, &[(0, 2)]),
        Event::Drained { by: "d".into(), at: WEAK.into(), end: 1 },
    ]);
    // What was read of it may not.
    hits(
        Row::LostWrite,
        1,
        vec![
            send(1, WEAK, &[1]),
            poll("r", WEAK, &[(0, 1)]),
            Event::Drained { by: "d".into(), at: WEAK.into(), end: 0 },
        ],
    );
    // Nobody knows whether it was written: it need not be there.
    passes(vec![send(1, AT, &[1]), unsent(1, Outcome::Unknown), drained(0)]);
}

#[test]
fn unseen() {
    hits(Row::Unseen, 1, vec![send(1, AT, &[1]), sent(1, 1, 5), drained(5)]);
    hits(Row::Unseen, 1, vec![send(1, AT, &[1]), sent(1, 1, 0)]);
    passes(vec![send(1, AT, &[1]), sent(1, 1, 5), poll("d", AT, &[(5, 1)]), drained(6)]);
    passes(vec![send(1, WEAK, &[1]), sent(1, 1, 5)]);
}

#[test]
fn inconsistent_offsets() {
    let two = |at: &str| vec![send(1, at, &[1]), send(2, at, &[2]), poll("r", at, &[(0, 1)]), poll("s", at, &[(0, 2)])];
    hits(Row::InconsistentOffsets, 1, two(AT));
    hits(Row::InconsistentOffsets, 1, two(WEAK));
    // Two sends acknowledged at one place.
    let events =
        vec![loose(1, AT, &[1]), sent(1, 1, 0), loose(2, AT, &[2]), sent(2, 1, 0), poll("r", AT, &[(1, 1), (2, 2)])];
    let verdict = judged(events);
    assert_eq!(verdict.findings.count(Row::InconsistentOffsets), 1, "{:?}", verdict.examples());
    // A value from nowhere, and one of another partition.
    hits(Row::InconsistentOffsets, 1, vec![poll("r", AT, &[(0, 7)])]);
    hits(Row::InconsistentOffsets, 1, vec![send(1, WEAK, &[1]), poll("r", AT, &[(0, 1)])]);
    // The same value for two readers.
    passes(vec![send(1, AT, &[1]), poll("r", AT, &[(0, 1)]), poll("s", AT, &[(0, 1)])]);
}

#[test]
fn duplicate() {
    hits(Row::Duplicate, 1, vec![send(1, AT, &[1]), poll("r", AT, &[(0, 1), (1, 1)])]);
    // Acknowledged at one offset and read at another: it is there twice, or was moved. The read comes later, or earlier.
    let elsewhere = [sent(1, 1, 0), poll("r", AT, &[(3, 1)])];
    let mut later = vec![send(1, AT, &[1])];
    later.extend(elsewhere.iter().cloned());
    hits(Row::Duplicate, 1, later);
    let mut earlier = vec![send(1, AT, &[1])];
    earlier.extend(elsewhere.into_iter().rev());
    hits(Row::Duplicate, 1, earlier);
    // A producer that repeats may write twice: counted apart.
    let repeated = vec![loose(1, AT, &[1]), poll("r", AT, &[(0, 1), (1, 1)])];
    assert_eq!(judged(repeated.clone()).json()["allowed_repeats"], json!(1));
    passes(repeated);
    passes(vec![send(1, AT, &[1]), poll("r", AT, &[(0, 1)]), assign("r", 0), poll("r", AT, &[(0, 1)])]);
}

#[test]
fn aborted_read() {
    let failed = vec![send(1, AT, &[1]), unsent(1, Outcome::Failed), poll("r", AT, &[(0, 1)])];
    hits(Row::AbortedRead, 1, failed);
    let told_late = vec![send(1, AT, &[1]), poll("r", AT, &[(0, 1)]), unsent(1, Outcome::Failed)];
    hits(Row::AbortedRead, 1, told_late);
    passes(vec![send(1, AT, &[1]), unsent(1, Outcome::Unknown), poll("r", AT, &[(0, 1)])]);
    passes(vec![send(1, AT, &[1]), unsent(1, Outcome::Failed), drained(0)]);
}

#[test]
fn poll_skip() {
    let sends = || vec![send(1, AT, &[1, 2, 3])];
    let with = |more: Vec<Event>| sends().into_iter().chain(more).collect::<Vec<_>>();
    let all = || poll("s", AT, &[(0, 1), (1, 2), (2, 3)]);
    // Across polls, within one, and after an assignment; whether the hole is known before or afterwards.
    hits(Row::PollSkip, 1, with(vec![poll("r", AT, &[(0, 1)]), poll("r", AT, &[(2, 3)]), all()]));
    hits(Row::PollSkip, 1, with(vec![all(), poll("r", AT, &[(0, 1), (2, 3)])]));
    hits(Row::PollSkip, 1, with(vec![assign("r", 1), poll("r", AT, &[(2, 3)]), all()]));
    // A new assignment may jump; and an offset that holds nothing can be jumped over.
    passes(with(vec![poll("r", AT, &[(0, 1)]), assign("r", 2), poll("r", AT, &[(2, 3)]), all()]));
    passes(vec![send(1, AT, &[1, 3]), poll("r", AT, &[(0, 1), (2, 3)])]);
}

#[test]
fn nonmonotonic_poll() {
    let sends = send(1, AT, &[1, 2]);
    let read = poll("r", AT, &[(0, 1), (1, 2)]);
    hits(Row::NonmonotonicPoll, 1, vec![sends.clone(), read.clone(), poll("r", AT, &[(1, 2)])]);
    hits(Row::NonmonotonicPoll, 1, vec![sends.clone(), poll("r", AT, &[(1, 2), (0, 1)])]);
    hits(Row::NonmonotonicPoll, 1, vec![sends.clone(), assign("r", 1), read.clone()]);
    passes(vec![sends.clone(), read.clone(), assign("r", 1), poll("r", AT, &[(1, 2)])]);
    passes(vec![sends, read, poll("other", AT, &[(1, 2)])]);
}

#[test]
fn nonmonotonic_send() {
    let read = poll("d", AT, &[(0, 2), (1, 1)]);
    let backwards = |at: &str| vec![send(1, at, &[1]), send(2, at, &[2]), sent(1, 1, 1), sent(2, 1, 0)];
    let with_read = |mut events: Vec<Event>, read: &Event| {
        events.push(read.clone());
        events
    };
    hits(Row::NonmonotonicSend, 1, with_read(backwards(AT), &read));
    // The answers came in the other order.
    let mut other_way = backwards(AT);
    other_way.swap(2, 3);
    hits(Row::NonmonotonicSend, 1, with_read(other_way, &read));
    // Within one send.
    let within = vec![
        send(1, AT, &[1, 2]),
        Event::Sent { op: 1, first: 0, count: 1, offset: 1 },
        Event::Sent { op: 1, first: 1, count: 1, offset: 0 },
    ];
    hits(Row::NonmonotonicSend, 1, with_read(within, &read));
    // Two producers, a producer that may reorder, and acks=1 after a truncation.
    let by = |by: &str, op: u64, value: u64| Event::Send {
        op,
        by: by.into(),
        at: AT.into(),
        values: vec![value],
        once: true,
        ordered: true,
    };
    passes(with_read(vec![by("a", 1, 1), by("b", 2, 2), sent(1, 1, 1), sent(2, 1, 0)], &read));
    passes(with_read(vec![loose(1, AT, &[1]), loose(2, AT, &[2]), sent(1, 1, 1), sent(2, 1, 0)], &read));
    passes(backwards(WEAK));
    // Answers out of order, places in order.
    let sent_late = vec![send(1, AT, &[1]), send(2, AT, &[2]), sent(2, 1, 1), sent(1, 1, 0)];
    passes(with_read(sent_late, &poll("d", AT, &[(0, 1), (1, 2)])));
}

#[test]
fn int_send_skip_is_counted_and_allowed() {
    let events = |order: &[(i64, u64)]| vec![loose(1, AT, &[1, 2]), loose(2, AT, &[3]), poll("r", AT, order)];
    hits(Row::IntSendSkip, 1, events(&[(0, 1), (1, 3), (2, 2)]));
    passes(events(&[(0, 1), (1, 2), (2, 3)]));
    passes(events(&[(0, 3), (1, 1), (2, 2)]));
}

#[test]
fn end_regress() {
    hits(Row::EndRegress, 1, vec![end("o", End::Latest, 5), end("o", End::Latest, 4)]);
    hits(Row::EndRegress, 1, vec![end("o@3", End::HighWatermark, 5), end("o@3", End::HighWatermark, 4)]);
    hits(Row::EndRegress, 1, vec![Event::OutOfRange { by: "r".into(), at: AT.into(), offset: 9 }]);
    // Another observer, another kind of end, another leadership; and standing still.
    passes(vec![end("o", End::Latest, 5), end("p", End::Latest, 4), end("o", End::HighWatermark, 3)]);
    passes(vec![end("o@3", End::HighWatermark, 5), end("o@4", End::HighWatermark, 4)]);
    passes(vec![end("o", End::Latest, 5), end("o", End::Latest, 5)]);
}

#[test]
fn ghost_metadata() {
    let all = |topics_of: [&[&str]; 2]| vec![topics(1, topics_of[0]), topics(2, topics_of[1])];
    let with = |events: Vec<Event>, more: Vec<Event>| events.into_iter().chain(more).collect::<Vec<_>>();
    let created = || vec![asked(1, Ask::Create), answered(1, Outcome::Ok)];
    let deleted = || with(created(), vec![asked(2, Ask::Delete), answered(2, Outcome::Ok)]);
    let (present, absent): (&[&str], &[&str]) = (&["q", "w", "a"], &["q", "w"]);
    // Missing on both; missing on one, who also disagrees with the other; back again.
    hits(Row::GhostMetadata, 2, with(created(), all([absent, absent])));
    hits(Row::GhostMetadata, 2, with(created(), all([present, absent])));
    hits(Row::GhostMetadata, 2, with(deleted(), all([present, present])));
    passes(with(created(), all([present, present])));
    passes(with(deleted(), all([absent, absent])));
    // Without an answer both are right, but not at once.
    let unknown = || vec![asked(1, Ask::Create), answered(1, Outcome::Unknown)];
    passes(with(unknown(), all([absent, absent])));
    passes(with(unknown(), all([present, present])));
    passes(with(vec![asked(1, Ask::Create)], all([present, present])));
    hits(Row::GhostMetadata, 1, with(unknown(), all([present, absent])));
    // Refused, and there all the same.
    let refused = vec![asked(1, Ask::Create), answered(1, Outcome::Failed)];
    hits(Row::GhostMetadata, 2, with(refused, all([present, present])));

    let set = |outcome| with(created(), vec![asked(2, configure("7")), answered(2, outcome)]);
    hits(Row::GhostMetadata, 2, with(set(Outcome::Ok), vec![settings(1, "1"), settings(2, "1")]));
    hits(Row::GhostMetadata, 1, with(set(Outcome::Unknown), vec![settings(1, "7"), settings(2, "1")]));
    passes(with(set(Outcome::Ok), vec![settings(1, "7"), settings(2, "7")]));
    passes(with(set(Outcome::Unknown), vec![settings(1, "1"), settings(2, "1")]));
    passes(with(set(Outcome::Failed), vec![settings(1, "1"), settings(2, "1")]));

    // Two leaders in one epoch.
    hits(Row::GhostMetadata, 1, vec![leader(1, 4), leader(2, 4)]);
    passes(vec![leader(1, 4), leader(-1, 5), leader(2, 6), leader(2, 6)]);
}

#[test]
fn broken_and_slow_to_heal() {
    hits(Row::Broken, 1, vec![Event::Broken { node: 2, what: "panicked".into() }]);
    let healed = |ms, limit_ms| Event::Healed { ms, limit_ms, why: String::new() };
    hits(Row::SlowHeal, 1, vec![healed(Some(11), 10)]);
    hits(Row::SlowHeal, 1, vec![healed(None, 10)]);
    passes(vec![healed(Some(10), 10)]);
}

#[test]
fn a_run_in_which_too_little_happened_does_not_count() {
    let plan = Event::Plan { seed: 1, faults: vec!["kill".into()] };
    hits(Row::Vacuous, 1, vec![plan.clone()]);
    let began =
        Event::FaultBegins { id: 1, fault: "kill".into(), target: "1".into(), nodes: vec![1], controller: false };
    passes(vec![plan, began.clone()]);

    let with_demand = |events: &[Event], demand| {
        let mut checker = Checker::default();
        for event in events {
            checker.line(&Line { t: 0, event: event.clone() });
        }
        checker.end(demand).findings.count(Row::Vacuous)
    };
    let healed = Event::Healed { ms: Some(1), limit_ms: 10, why: String::new() };
    let half = [send(1, AT, &[1]), sent(1, 1, 0), send(2, AT, &[2]), unsent(2, Outcome::Unknown), healed.clone()];
    let demand = Demand { ok_percent: 50, leader_changes: 0 };
    assert_eq!(with_demand(&half, demand), 0);
    let less = [&half[..], &[send(3, AT, &[3])]].concat();
    assert_eq!(with_demand(&less, demand), 1);
    assert_eq!(with_demand(&half[..4], demand), 1, "it never ended");
    let change = |count: i32| (0..=count).map(|n| leader(n % 2, n)).chain(half.clone()).collect::<Vec<_>>();
    assert_eq!(with_demand(&change(10), USUAL), 0);
    assert_eq!(with_demand(&change(9), USUAL), 1);
}

#[test]
fn rows_of_what_is_not_built_say_so() {
    let verdict = judged(vec![]);
    let line = verdict.json();
    assert_eq!(line["anomalies"].as_object().map(serde_json::Map::len), Some(16));
    for row in ["torn-transaction", "offset-regress"] {
        assert_eq!(line["anomalies"][row], json!("not applicable"));
    }
    assert_eq!((&line["ok"], &line["acks"]), (&json!(true), &json!(1)));
}

#[test]
fn the_longest_time_without_an_acknowledgement_is_told_with_its_fault() {
    let mut checker = Checker::default();
    let fault = |id, fault: &str| Event::FaultBegins {
        id,
        fault: fault.into(),
        target: "1".into(),
        nodes: vec![1],
        controller: false,
    };
    let lines = [
        (0, begun().remove(0)),
        (0, send(1, AT, &[1])),
        (1_000_000, sent(1, 1, 0)),
        (1_100_000, fault(1, "kill")),
        (1_200_000, send(2, AT, &[2])),
        (2_000_000, sent(2, 1, 1)),
        (2_100_000, Event::FaultEnds { id: 1 }),
        (2_200_000, fault(2, "pause")),
        (2_300_000, send(3, AT, &[3])),
        (2_500_000, sent(3, 1, 2)),
        // Nobody writes to it any more.
        (2_600_000, Event::Retired { topic: "q".into() }),
        (9_000_000, send(4, AT, &[4])),
        (9_000_001, sent(4, 1, 3)),
    ];
    for (t, event) in lines {
        checker.line(&Line { t, event });
    }
    let verdict = checker.end(NO_DEMAND);
    assert_eq!((verdict.longest.us, verdict.longest.until_us), (1_000_000, 2_000_000));
    assert_eq!(verdict.longest.during, ["kill"]);
    assert_eq!(verdict.longest_alone, BTreeMap::from([("kill".to_owned(), 1_000)]));
}

#[test]
fn a_line_survives_the_way_through_the_file() {
    let events = begun().into_iter().chain([
        send(1, AT, &[1, 2]),
        sent(1, 2, 0),
        unsent(2, Outcome::Unknown),
        asked(1, configure("7")),
        end("o", End::HighWatermark, 3),
        poll("r", AT, &[(0, 1)]),
    ]);
    for event in events {
        let line = Line { t: 5, event };
        let text = serde_json::to_string(&line).expect("plain data");
        assert_eq!(serde_json::from_str::<Line>(&text).expect("the same"), line, "{text}");
    }
    assert!(judge(["{}"].map(|line| Ok(line.to_owned())).into_iter(), NO_DEMAND).is_err());
}

#[test]
fn many_lines_take_no_longer_each_than_few() {
    let cost = |count: u64| {
        let began = std::time::Instant::now();
        let mut checker = Checker::default();
        for event in begun() {
            checker.line(&Line { t: 0, event });
        }
        for n in 0..count {
            checker.line(&Line { t: n, event: send(n + 1, AT, &[n + 1]) });
            checker.line(&Line { t: n, event: sent(n + 1, 1, n as i64) });
            checker.line(&Line { t: n, event: poll("r", AT, &[(n as i64, n + 1)]) });
        }
        assert!(!checker.end(NO_DEMAND).findings.examples.contains_key(&Row::LostWrite));
        began.elapsed().as_secs_f64() / count as f64
    };
    let (few, many) = (cost(5_000), cost(100_000));
    assert!(many < 8.0 * few, "{many} s a line after {few} s");
}
