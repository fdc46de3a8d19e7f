//! Planted bugs: for each safety rule, the product without it. A checker that does not notice is no checker.
//!
//! The flaws themselves sit in the shipped code behind `highwater_quorum::flaws`, at the very line that holds the rule;
//! here is only what to do with them: run ordinary seeds, none chosen for the flaw, until one is caught.

pub use highwater_quorum::flaws::{Flaw, plant, planted};

use super::run::{Plan, run_seed};

/// How a flaw was found.
#[derive(Debug, Clone)]
pub struct Caught {
    pub seed: u64,
    pub rule: String,
    pub text: String,
    /// Seeds run before, without finding it.
    pub seeds: u64,
}

/// Runs seeds with the flaw planted until one breaks a rule. Shipped assertions that fire count as well: with
/// `panic = "unwind"` they are caught here; the command line runs each flaw in a process of its own.
pub fn hunt(flaw: Flaw, seeds: std::ops::Range<u64>, plan: &Plan) -> Option<Caught> {
    let first = seeds.start;
    for seed in seeds {
        let plan = Plan { flaw: Some(flaw), ..plan.clone() };
        let outcome = std::panic::catch_unwind(|| run_seed(seed, &plan));
        plant(None);
        let found = match outcome {
            Ok(outcome) => outcome.violation.map(|v| (v.rule.to_owned(), v.text)),
            Err(panic) => Some(("assertion".to_owned(), panic_text(&*panic))),
        };
        // A seed that breaks a rule without the flaw says nothing about it.
        if let Some((rule, text)) = found
            && run_seed(seed, &Plan { flaw: None, ..plan.clone() }).violation.is_none()
        {
            return Some(Caught { seed, rule, text, seeds: seed - first + 1 });
        }
    }
    None
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
