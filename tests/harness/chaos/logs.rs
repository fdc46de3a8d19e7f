//! What the nodes' logs may say: no ERROR, no panic, and no WARN but those that a fault explains.

use std::collections::{BTreeMap, BTreeSet};

use super::board::Board;
use super::history::Event;
use super::plan::Fault;

/// What openraft says of calls while it is being stopped.
const OPENRAFT_STOPS: [&str; 4] =
    ["raft stopped", "failed to send HeartbeatProgress", "failed to receive from RaftCore", "to-Raft tx send error"];

/// A line that may come: its message, the faults that explain it (none: any does), and why it is right.
type Legal = (&'static str, &'static [Fault], &'static str);

const LEGAL_ERRORS: [Legal; 7] = [
    (
        "this voter is not the one the quorum knows",
        &[Fault::Replace, Fault::Twin],
        "it lost its metadata, until it is replaced",
    ),
    ("cannot read records that the log says it holds", &[Fault::Rot], "what has rotted is never handed out"),
    (
        "the disk failed; this replica serves nothing",
        &[Fault::FullDisk],
        "until an operator makes room and starts it again",
    ),
    ("the data plane cannot go on", &[Fault::FullDisk], "it was started while nothing could be written"),
    ("cannot open a log", &[Fault::FullDisk], "nothing can be written"),
    ("metadata sync failed, this node must stop", &[Fault::FullDisk], "it cannot keep its vote"),
    ("this node must stop", &[Fault::FullDisk, Fault::Twin], "it cannot keep its vote; another process has its files"),
];

/// All other warnings are as bad as an ERROR.
const LEGAL_WARNINGS: [Legal; 17] = [
    (" WARN highwater: server.properties:", &[], "the harness listens on all addresses, without passwords"),
    ("fenced by the metadata quorum; asking to be let in again", &[], "it was silent for a session, or taken for dead"),
    ("brokers=", &[], "the raft leader fenced somebody silent, or led no more before that was decided"),
    ("no metadata quorum yet", &[], "it was started without a majority, or into a cut"),
    ("the quorum did not agree to the shutdown in time", &[Fault::Term], "there was none"),
    ("the quorum did not confirm the controlled shutdown in time", &[Fault::Term], "there was none"),
    ("some connections did not end in time", &[Fault::Term], "their clients were cut off"),
    ("raft did not stop in order", &[Fault::Term], "openraft waits for peers that are gone"),
    ("the cluster is not formed yet", &[], "at its first start, before a majority is there"),
    ("the registration of this broker is gone", &[Fault::Replace], "it lost its metadata"),
    ("the voters are unchanged", &[Fault::Replace], "the new voter was asked for before it had caught up"),
    (
        "a log holds less than its checkpoints say it held",
        &[Fault::Wipe, Fault::Replace, Fault::PowerCut, Fault::Rot],
        "it lost data",
    ),
    ("the end of a log was damaged and is cut off", &[Fault::PowerCut, Fault::Rot], "a peer fills it again"),
    ("a checkpoint is damaged and counts as empty", &[Fault::FullDisk], "it could not be written"),
    ("sled::config: empty/corrupt configuration file", &[Fault::PowerCut], "sled does not sync it, and writes it anew"),
    (
        "the metadata knows no such replica on this broker",
        &[Fault::PowerCut],
        "its topic was deleted, its id never synced",
    ),
    ("cannot write the checkpoint", &[Fault::FullDisk], "nothing can be written"),
];

/// Writes down what no log may hold; how often each WARN line came, numbers left out.
pub fn judge(board: &Board, faults: &[Fault]) -> BTreeMap<String, u64> {
    let mut warnings = BTreeMap::new();
    for node in board.fleet.nodes() {
        let mut told: BTreeSet<String> = BTreeSet::new();
        for line in board.fleet.log(node).lines() {
            if line.contains(" WARN ") {
                *warnings.entry(without_numbers(line)).or_default() += 1;
            }
            // The same again says nothing new.
            if is_wrong(line, faults) && told.insert(without_numbers(line)) {
                board.history.write(Event::Broken { node, what: line.to_owned() });
            }
        }
    }
    warnings
}

fn is_wrong(line: &str, faults: &[Fault]) -> bool {
    if line.contains("panicked at") || line.contains("assertion") || line.contains("memory allocation of") {
        return true;
    }
    let stops = line.contains(" openraft::") && OPENRAFT_STOPS.iter().any(|known| line.contains(known));
    let explains =
        |(text, by, _): &Legal| line.contains(text) && (by.is_empty() || by.iter().any(|fault| faults.contains(fault)));
    let is_error = line.contains(" ERROR ") && !LEGAL_ERRORS.iter().any(explains);
    let is_warning = line.contains(" WARN ") && !LEGAL_WARNINGS.iter().any(explains);
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
