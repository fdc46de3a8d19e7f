//! The fuzzing targets in short: the same inputs every time. The binary `fuzz` goes on from here for minutes.

use std::time::Duration;

use highwater_tests::fuzz::{Memory, TARGETS, run};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// One test, since the allocator counts for the whole process.
#[test]
fn no_made_up_bytes_end_a_reader_or_cost_more_than_they_may() {
    let memory =
        Memory { now: || MEMORY.current_usage(), peak: || MEMORY.peak_usage(), reset: || MEMORY.reset_peak_usage() };
    for target in &TARGETS {
        let cases = if target.name == "properties" { 60 } else { 6_000 };
        let told = run(target, 7, 0..cases, Duration::MAX, memory, |_| ());
        assert_eq!(told.first_over, None, "{}: {} bytes too many", target.name, told.bytes_over);
        assert_eq!(told.cases, cases);
        let refused = cases - told.accepted;
        assert!(told.accepted > cases / 50 && refused > cases / 50, "{}: too tame or too wild: {told:?}", target.name);
    }
}
