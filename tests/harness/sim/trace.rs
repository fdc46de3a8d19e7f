//! What happened in a run: a hash over every event, and the lines of it when somebody wants to read them.
//!
//! Runs go without lines, which are expensive; a run that fails is run again with them: same seed, same trace.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Lines kept for the report of a violation.
const LINES_KEPT: usize = 400;

thread_local! {
    /// Outlives the world when shipped code panics in the middle of an event, so that the last lines can be shown.
    static LINES: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
    /// The same of the time (µs).
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// The time (µs) of the newest event on this thread.
pub fn now() -> u64 {
    NOW.get()
}

/// The last lines written on this thread by a trace that keeps lines.
pub fn last_lines(count: usize) -> Vec<String> {
    LINES.with_borrow(|lines| lines.iter().skip(lines.len().saturating_sub(count)).cloned().collect())
}

/// Hash and lines of one run.
#[derive(Debug, Clone)]
pub struct Trace {
    hash: u64,
    events: u64,
    /// Print or keep lines.
    pub verbose: Verbose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbose {
    No,
    /// The last lines only, for [`last_lines`].
    Keep,
    /// Each line as it happens.
    Print,
}

impl Trace {
    pub fn new(verbose: Verbose) -> Self {
        LINES.with_borrow_mut(VecDeque::clear);
        Self { hash: 0xCBF2_9CE4_8422_2325, events: 0, verbose }
    }

    /// Adds a fact to the hash.
    pub fn mix(&mut self, fact: u64) {
        self.hash = (self.hash.rotate_left(5) ^ fact).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// Starts an event.
    pub fn event(&mut self, at: u64, kind: u64) {
        self.events += 1;
        NOW.set(at);
        self.mix(at);
        self.mix(kind);
    }

    /// A line, made only if somebody will read it.
    pub fn line(&self, at: u64, text: impl FnOnce() -> String) {
        if self.verbose == Verbose::No {
            return;
        }
        let line = format!("{:>6}.{:06} {}", at / 1_000_000, at % 1_000_000, text());
        if self.verbose == Verbose::Print {
            println!("{line}");
        }
        LINES.with_borrow_mut(|lines| {
            if lines.len() == LINES_KEPT {
                lines.pop_front();
            }
            lines.push_back(line);
        });
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn events(&self) -> u64 {
        self.events
    }
}
