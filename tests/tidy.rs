//! The house rules a machine can check: who may know whom, what is pure, what is never written.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Source files under `place` (a file or folder, relative to the root), without inline test modules.
fn sources(place: &str) -> Vec<(String, String)> {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                walk(&entry.unwrap().path(), found);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path.to_owned());
        }
    }
    let mut files = Vec::new();
    let path = root().join(place);
    walk(&path, &mut files);
    // `role.rs` beside `role/` is part of the same room.
    let beside = path.with_extension("rs");
    if path.is_dir() && beside.is_file() && !files.contains(&beside) {
        files.push(beside);
    }
    assert!(!files.is_empty(), "{place} holds no source: update the table");
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let text = fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(root()).unwrap().display().to_string();
            let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
            (name, code)
        })
        .collect()
}

fn refuse(place: &str, words: &[&str], except: &[&str], why: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in sources(place) {
        if except.iter().any(|e| file.contains(e)) || file.contains("/tests") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let line = line.split("//").next().unwrap();
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                found.push(format!("{file}:{}: `{word}`: {why}", number + 1));
            }
        }
    }
    found
}

const IO: &[&str] = &["std::fs", "std::net", "tokio::", "Instant::now", "SystemTime::now", "thread::sleep"];
const CHANCE: &[&str] = &["rand::", "HashMap", "HashSet", "tracing::", "info!(", "warn!(", "error!(", "debug!("];

#[test]
fn each_room_knows_only_what_it_may() {
    let mut found = Vec::new();
    found.extend(refuse("wire/src", IO, &[], "wire is pure"));
    found.extend(refuse("wire/src", &["openraft", "sled::", "highwater_"], &[], "wire knows nobody"));
    found.extend(refuse("metadata-quorum/src", &["highwater_data", "highwater_admin"], &[], "arrows never turn"));
    found.extend(refuse("metadata-quorum/src", &["openraft", "sled::"], &["src/raft"], "only raft names them"));
    found.extend(refuse("data-plane/src", &["openraft", "sled::", "highwater_admin"], &[], "arrows never turn"));
    found.extend(refuse("admin-api/src", &["openraft", "sled::"], &[], "arrows never turn"));
    found.extend(refuse("data-plane/src/replication", &["crate::log::", "crate::disk"], &[], "roles see a LogView"));
    found.extend(refuse("data-plane/src/log", &["crate::replication", "crate::replica"], &[], "the log knows no role"));
    for place in ["replication", "replica", "log", "disk"] {
        found.extend(refuse(&format!("data-plane/src/{place}"), &["kafka_wire"], &[], "generated messages stop above"));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn pure_code_has_no_clock_chance_or_log_line() {
    let mut found = Vec::new();
    for place in [
        "metadata-quorum/src/image",
        "metadata-quorum/src/controller",
        "metadata-quorum/src/planner",
        "data-plane/src/replication",
        "data-plane/src/log_view.rs",
        "data-plane/src/fetcher/following.rs",
        "data-plane/src/log/retention.rs",
        "data-plane/src/log/producer_state.rs",
    ] {
        found.extend(refuse(place, IO, &[], "pure code is handed what it needs"));
        found.extend(refuse(place, CHANCE, &["planner/placement.rs"], "pure code is the same everywhere"));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn only_the_listed_files_read_a_clock() {
    // The asynchronous edge: it stamps requests on arrival, waits for deadlines and drives the timers.
    let readers = ["partitions", "fetcher.rs", "lifecycle", "keeping.rs", "sync_pool", "server/", "handlers"];
    let found = refuse("data-plane/src", &["Instant::now", "SystemTime::now"], &readers, "not in the list of readers");
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_quorum_has_one_door_to_the_wall_clock_and_to_chance() {
    // What goes round it cannot be simulated. Time that passes is tokio's.
    let words =
        ["SystemTime::now", "std::time::Instant", "Duration, Instant}", "rand::random", "::random()", "thread_rng"];
    let found =
        refuse("metadata-quorum/src", &words, &["ambient.rs", "crash_tests.rs"], "ask `ambient`, or tokio's clock");
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for_and_nothing_is_left_to_do() {
    let mut found = Vec::new();
    for place in ["wire", "metadata-quorum", "data-plane", "admin-api", "ops", "tests"] {
        for (file, text) in sources(place) {
            if !text.trim_start().starts_with("//!") {
                found.push(format!("{file}: does not open with `//!`"));
            }
        }
        found.extend(refuse(
            place,
            &["todo!(", "unimplemented!(", "#[ignore", "static mut", "dbg!("],
            &["tidy.rs"],
            "not on main",
        ));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}
