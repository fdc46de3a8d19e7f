//! A handful of seeds of the quorum's simulation, in this process. Without `--cfg tokio_unstable` nothing is seeded but
//! the troubles, so a failure is shown with its trace; `quorum-sim` runs hundreds that can be run again.

use highwater_quorum_sim::run::{Plan, run_seed};
use highwater_quorum_sim::trace::{Verbose, last_lines};

#[test]
fn the_quorum_keeps_its_promises_through_troubles() {
    for seed in 0..4 {
        let outcome = run_seed(seed, &Plan { seconds: 8, verbose: Verbose::Keep, ..Plan::default() });
        let lines = || last_lines(60).join("\n");
        assert!(outcome.violation.is_none(), "seed {seed}: {:?}\n{}", outcome.violation, lines());
        assert!(outcome.counts.acked > 0, "seed {seed}: nothing was acknowledged\n{}", lines());
    }
}
