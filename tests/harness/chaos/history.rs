//! What clients, supervisor and faults did, one event a line of JSON: written by many, judged by the checker afterwards.
//!
//! A value is a number that no other record of the history has. A partition is named `topic/index`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::checker::Checker;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Microseconds since the history began.
    pub t: u64,
    #[serde(flatten)]
    pub event: Event,
}

/// What is promised of the records of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// acks=all with `min.insync.replicas` 2: acknowledged is kept.
    Kept,
    /// acks=1: what is acknowledged may go with its leader; what was once read stays.
    ReadIsKept,
}

/// What came of something that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    /// It did not happen and never will.
    Failed,
    /// It may have happened, or happen yet.
    Unknown,
}

/// Something asked of the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    Create,
    Delete,
    Configure { key: String, value: String },
}

/// Of which end an observer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// ListOffsets "latest".
    Latest,
    /// The high watermark beside fetched records. A new leader may begin lower (R125): the observer names the epoch.
    HighWatermark,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "snake_case")]
pub enum Event {
    /// What the run set out to do.
    Plan {
        seed: u64,
        faults: Vec<String>,
    },
    /// A topic that producers write to from now on.
    Topic {
        topic: String,
        partitions: i32,
        promise: Promise,
    },
    /// No producer chooses it any more; what is under way may still come.
    Retired {
        topic: String,
    },
    /// `once`: nobody sends a value again by himself. `ordered`: one `by` sends in the order of its ops.
    Send {
        op: u64,
        by: String,
        at: String,
        values: Vec<u64>,
        once: bool,
        ordered: bool,
    },
    /// The values `first..first + count` of an op are acknowledged, from this offset on.
    Sent {
        op: u64,
        first: usize,
        count: usize,
        offset: i64,
    },
    /// The values from `first` on are not acknowledged; `Failed` or `Unknown`.
    Unsent {
        op: u64,
        first: usize,
        count: usize,
        outcome: Outcome,
        why: String,
    },
    /// The position of a reader, chosen by itself.
    Assign {
        by: String,
        at: String,
        offset: i64,
    },
    /// Offset and value of the records of one answer.
    Poll {
        by: String,
        at: String,
        records: Vec<(i64, u64)>,
    },
    /// A position to which the reader had come by reading was out of range.
    OutOfRange {
        by: String,
        at: String,
        offset: i64,
    },
    End {
        by: String,
        at: String,
        end: End,
        offset: i64,
    },
    /// A reader has read the partition from its first to its last record (exclusive end), after the last write.
    Drained {
        by: String,
        at: String,
        end: i64,
    },
    /// Who leads, as metadata told it.
    Leader {
        at: String,
        leader: i32,
        epoch: i32,
    },
    /// Something asked of the metadata, and what came of it; one client asks for one topic, one after the other.
    Asked {
        op: u64,
        topic: String,
        ask: Ask,
    },
    Answered {
        op: u64,
        outcome: Outcome,
        why: String,
    },
    /// The topics a node knows after everything healed.
    Topics {
        node: u8,
        topics: Vec<String>,
    },
    /// Settings of a topic that a node knows after everything healed.
    Settings {
        node: u8,
        topic: String,
        settings: BTreeMap<String, String>,
    },
    /// `nodes`: whose process, disk or links; `controller`: whether the raft leader is among them, where that was asked.
    FaultBegins {
        id: u64,
        fault: String,
        target: String,
        #[serde(default)]
        nodes: Vec<u8>,
        #[serde(default)]
        controller: bool,
    },
    FaultEnds {
        id: u64,
    },
    /// How long after the end of a fault, with no other under way, everything was in sync again.
    Recovered {
        id: u64,
        ms: u64,
    },
    /// A panic, an end nobody asked for, an ERROR line: what a node must never do.
    Broken {
        node: u8,
        what: String,
    },
    /// How long it took until everything was in sync and writable again after the last fault. `None`: not in time.
    Healed {
        ms: Option<u64>,
        limit_ms: u64,
        why: String,
    },
}

/// Where everybody writes.
pub struct History {
    began: Instant,
    file: Mutex<BufWriter<File>>,
    ops: AtomicU64,
    values: AtomicU64,
    /// Judges every line as it is written, for runs that are over when something is found.
    checker: Option<Mutex<Checker>>,
}

impl History {
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = Mutex::new(BufWriter::new(File::create(path)?));
        let (ops, values) = (AtomicU64::new(1), AtomicU64::new(1));
        Ok(Self { began: Instant::now(), file, ops, values, checker: None })
    }

    /// The same, judged while it is written.
    pub fn judged(self) -> Self {
        Self { checker: Some(Mutex::default()), ..self }
    }

    /// Whether something was found already that fails.
    pub fn is_broken(&self) -> bool {
        self.checker.as_ref().is_some_and(|checker| checker.lock().is_broken())
    }

    /// Seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A number for something asked for.
    pub fn next_op(&self) -> u64 {
        self.ops.fetch_add(1, Ordering::Relaxed)
    }

    /// So many new values.
    pub fn next_values(&self, count: u64) -> Vec<u64> {
        let first = self.values.fetch_add(count, Ordering::Relaxed);
        (first..first + count).collect()
    }

    /// Writes one line. The order of the lines is an order in which the events can have happened: what is sent is
    /// written before it is sent, what is told after it was told.
    pub fn write(&self, event: Event) {
        let mut file = self.file.lock();
        let t = u64::try_from(self.began.elapsed().as_micros()).expect("a run is no eternity");
        let line = Line { t, event };
        if let Some(checker) = &self.checker {
            checker.lock().line(&line);
        }
        let line = serde_json::to_string(&line).expect("plain data");
        writeln!(file, "{line}").expect("the history can be written");
    }

    /// # Errors
    /// The file cannot be written.
    pub fn flush(&self) -> io::Result<()> {
        self.file.lock().flush()
    }
}
