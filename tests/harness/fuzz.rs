//! Bytes that somebody made up, against every reader that meets bytes from outside: deterministic, with its memory counted.
//!
//! A target makes one input per number from a seed and feeds it to the shipped reader. It must end with an answer or an
//! error; what it took beyond [`BYTES_PER_BYTE`] times the input and [`BYTES_FREE`] is a fault, and so is a panic.

pub mod mutate;
mod targets;

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;

pub use targets::TARGETS;
pub(crate) use targets::golden;

/// What a reader may take for each byte of its input …
pub const BYTES_PER_BYTE: usize = 8;
/// … and besides.
pub const BYTES_FREE: usize = 1 << 20;

/// One reader and where its inputs come from.
pub struct Target {
    pub name: &'static str,
    /// Builds the samples, once.
    pub prepare: fn() -> Maker,
}

/// Makes one case after the other.
pub type Maker = Box<dyn Fn(&mut SmallRng) -> Case>;

/// One input.
pub struct Case {
    pub input: Vec<u8>,
    /// Feeds it; whether the reader took it for good.
    pub read: Box<dyn FnOnce(Vec<u8>) -> bool>,
}

/// How memory is looked at: the process has one allocator, the binary owns it.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Bytes allocated now.
    pub now: fn() -> usize,
    /// The most since `reset`.
    pub peak: fn() -> usize,
    pub reset: fn(),
}

/// What became of a target.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub cases: u64,
    pub accepted: u64,
    /// The most that one case took beyond what it may for its size; 0 when all stayed below.
    pub bytes_over: usize,
    /// Number and input of the first case that took too much.
    pub first_over: Option<(u64, Vec<u8>)>,
}

/// The input of case `number`, for looking at it.
pub fn case(target: &Target, seed: u64, number: u64) -> Case {
    (target.prepare)()(&mut random(seed, number))
}

fn random(seed: u64, number: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number))
}

/// Runs cases from `first` on until `time` is over or `most` have run. `before` hears of each.
pub fn run(
    target: &Target,
    seed: u64,
    cases: std::ops::Range<u64>,
    time: Duration,
    memory: Memory,
    mut before: impl FnMut(u64),
) -> Told {
    let make = (target.prepare)();
    let began = Instant::now();
    let mut told = Told::default();
    for number in cases {
        if number % 256 == 0 && began.elapsed() >= time {
            break;
        }
        before(number);
        let Case { input, read } = make(&mut random(seed, number));
        let (length, copy) = (input.len(), input.clone());
        let held = (memory.now)();
        (memory.reset)();
        let accepted = read(input);
        let took = (memory.peak)().saturating_sub(held);
        let over = took.saturating_sub(BYTES_PER_BYTE * length + BYTES_FREE);
        if over > 0 && told.first_over.is_none() {
            told.first_over = Some((number, copy));
        }
        told.bytes_over = told.bytes_over.max(over);
        told.accepted += u64::from(accepted);
        told.cases += 1;
    }
    told
}
