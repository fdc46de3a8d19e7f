//! What the nodes' logs may say: no ERROR, no panic, and no WARN but those that a fault explains.

use std::collections::{BTreeMap, BTreeSet};

use super::board::{Board, Mark};
use super::history::Event;
use super::plan::Fault;

/// What openraft says of calls while it is being stopped.
const OPENRAFT_STOPS: [&str; 4] =
    ["raft stopped", "failed to send HeartbeatProgress", "failed to receive from RaftCore", "to-Raft tx send error"];

/// A line that may come: a part of it, what explains it, and why it is right.
type Legal = (&'static str, By, &'static str);

/// What explains a line, on the node that says it unless told otherwise: one of these must have begun before it.
enum By {
    /// Any fault, or a start.
    Anything,
    /// One of these, on that node.
    Here(&'static [Fault]),
    /// One of these, on any node.
    Anywhere(&'static [Fault]),
}

use By::{Anything, Anywhere, Here};

const LEGAL_ERRORS: [Legal; 7] = [
    (
        "this voter is not the one the quorum knows",
        Here(&[Fault::Replace]),
        "it lost its metadata, until it is replaced",
    ),
    ("cannot read records that the log says it holds", Here(&[Fault::Rot]), "what has rotted is never handed out"),
    (
        "the disk failed; this replica serves nothing",
        Here(&[Fault::FullDisk]),
        "until an operator makes room and starts it again",
    ),
    ("the data plane cannot go on", Here(&[Fault::FullDisk]), "no record can be kept"),
    ("cannot open a log", Here(&[Fault::FullDisk]), "nothing can be written"),
    (
        "this node must stop",
        Here(&[Fault::FullDisk]),
        "it can keep no records or no vote, says why and what to do, and ends",
    ),
    ("kind: StorageFull", Here(&[Fault::FullDisk]), "sled and openraft say so of each of their calls that failed"),
];

/// All other warnings are as bad as an ERROR.
const LEGAL_WARNINGS: [Legal; 20] = [
    (" WARN highwater: server.properties:", Anything, "the harness listens on all addresses, without passwords"),
    ("fenced by the metadata quorum; asking to be let in again", Anything, "silent for a session, or taken for dead"),
    ("highwater_quorum::duty: fenced brokers=", Anything, "the raft leader fenced somebody silent"),
    ("highwater_quorum::duty: not fenced brokers=", Anything, "it led no more before that was decided"),
    ("no metadata quorum yet", Anything, "it was started without a majority, or into a cut"),
    ("the quorum did not agree to the shutdown in time", Here(&[Fault::Term]), "there was none"),
    ("the quorum did not confirm the controlled shutdown in time", Here(&[Fault::Term]), "there was none"),
    ("some connections did not end in time", Here(&[Fault::Term]), "their clients were cut off"),
    ("raft did not stop in order", Here(&[Fault::Term]), "openraft waits for peers that are gone"),
    ("the cluster is not formed yet", Anything, "at its first start, before a majority is there"),
    ("the registration of this broker is gone", Here(&[Fault::Replace]), "it lost its metadata"),
    ("the voters are unchanged", Anywhere(&[Fault::Replace]), "it was asked for before the new voter had caught up"),
    (
        "a log holds less than its checkpoints say it held",
        Here(&[Fault::Wipe, Fault::Replace, Fault::PowerCut, Fault::Rot]),
        "it lost data",
    ),
    (
        "the end of a log was damaged and is cut off",
        Here(&[Fault::PowerCut, Fault::Rot, Fault::FullDisk]),
        "torn, rotten, or no room for all of it: a peer fills it again",
    ),
    ("a checkpoint is damaged and counts as empty", Here(&[Fault::FullDisk]), "it could not be written"),
    (
        "sled::config: empty/corrupt configuration file",
        Here(&[Fault::PowerCut]),
        "sled does not sync it, and writes it anew",
    ),
    (
        "the metadata knows no such replica on this broker",
        Here(&[Fault::PowerCut]),
        "its topic was deleted, its id never synced",
    ),
    ("cannot write the checkpoint", Here(&[Fault::FullDisk]), "nothing can be written"),
    ("the log directory is not marked clean", Here(&[Fault::FullDisk]), "nothing can be written"),
    ("was never recovered", Here(&[Fault::Term]), "asked to stop while it waited for a quorum to register with"),
];

/// Whether it allows a line of a node's log that begins at byte `at`.
fn allows((text, by, _): &Legal, line: &str, node: u8, at: u64, marks: &[Mark]) -> bool {
    let mut begun = marks.iter().filter(|mark| mark.log_ends[usize::from(node) - 1] <= at);
    line.contains(text)
        && match by {
            Anything => true,
            Here(faults) => begun.any(|mark| faults.contains(&mark.fault) && mark.nodes.contains(&node)),
            Anywhere(faults) => begun.any(|mark| faults.contains(&mark.fault)),
        }
}

/// Writes down what no log may hold; how often each WARN line came, numbers left out.
pub fn judge(board: &Board) -> BTreeMap<String, u64> {
    let mut warnings = BTreeMap::new();
    let marks = board.marks();
    for node in board.fleet.nodes() {
        let mut told: BTreeSet<String> = BTreeSet::new();
        let mut at = 0;
        for line in board.fleet.log(node).split_inclusive('\n') {
            if line.contains(" WARN ") {
                *warnings.entry(without_numbers(line)).or_default() += 1;
            }
            // The same again says nothing new.
            if is_wrong(line, node, at, &marks) && told.insert(without_numbers(line)) {
                board.history.write(Event::Broken { node, what: line.trim_end().to_owned() });
            }
            at += line.len() as u64;
        }
    }
    warnings
}

fn is_wrong(line: &str, node: u8, at: u64, marks: &[Mark]) -> bool {
    if line.contains("panicked at") || line.contains("assertion") || line.contains("memory allocation of") {
        return true;
    }
    let stops = line.contains(" openraft::") && OPENRAFT_STOPS.iter().any(|known| line.contains(known));
    let explained = |table: &[Legal]| table.iter().any(|legal| allows(legal, line, node, at, marks));
    let is_error = line.contains(" ERROR ") && !explained(&LEGAL_ERRORS);
    let is_warning = line.contains(" WARN ") && !explained(&LEGAL_WARNINGS);
    (is_error || is_warning) && !stops
}

/// A log line without its time and with every number replaced.
fn without_numbers(line: &str) -> String {
    let text = line.split_once(' ').map_or(line, |(_, rest)| rest).trim();
    let mut kept = String::new();
    for letter in text.chars() {
        match letter.is_ascii_digit() {
            true if kept.ends_with('#') => {}
            true => kept.push('#'),
            false => kept.push(letter),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROTTEN: &str = "2026-12-01T01:00:00Z ERROR highwater_data: cannot read records that the log says it holds\n";
    const UNCHANGED: &str = "2026-12-01T01:00:00Z  WARN highwater_quorum: the voters are unchanged new=2\n";

    fn mark(fault: Fault, node: u8, log_ends: [u64; 3]) -> Mark {
        Mark { fault, nodes: vec![node], log_ends: log_ends.to_vec() }
    }

    #[test]
    fn a_fault_explains_what_its_node_says_after_it_began() {
        let marks = [mark(Fault::Rot, 2, [100, 100, 100])];
        assert!(!is_wrong(ROTTEN, 2, 100, &marks));
        assert!(is_wrong(ROTTEN, 2, 99, &marks), "before the fault");
        assert!(is_wrong(ROTTEN, 1, 100, &marks), "another node");
        assert!(is_wrong(ROTTEN, 2, 100, &[mark(Fault::Kill, 2, [0; 3])]), "another fault");
    }

    #[test]
    fn some_lines_come_from_a_node_that_looks_at_the_one_that_was_hit() {
        let marks = [mark(Fault::Replace, 2, [0, 0, 50])];
        assert!(!is_wrong(UNCHANGED, 3, 50, &marks));
        assert!(is_wrong(UNCHANGED, 3, 49, &marks));
    }

    #[test]
    fn a_panic_is_explained_by_nothing() {
        let line = "thread 'main' panicked at log.rs: cannot read records that the log says it holds";
        assert!(is_wrong(line, 2, 9, &[mark(Fault::Rot, 2, [0; 3])]));
    }
}
