//! A short run with its story, kept in a file under `tests/regressions/` and run for ever.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::flaws::{Flaw, panic_text, plant};
use super::super::run::{Plan, run_schedule};
use super::super::schedule::Schedule;

/// What such a file holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Regression {
    /// What happens, for people.
    pub story: String,
    /// Where it comes from: a seed, a commit.
    pub found: String,
    /// The planted flaw that it catches, by its rule; without: a fault of the product, mended since.
    #[serde(default)]
    pub flaw: Option<String>,
    /// The rule that it breaks; `assertion`: one of the product's own.
    pub rule: String,
    pub schedule: Schedule,
}

impl Regression {
    /// Reads one.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// As it stands in a file: one topic, client, event a line.
    pub fn to_text(&self) -> String {
        fn lines<T: Serialize>(items: &[T]) -> String {
            let line = |item: &T| format!("\n      {}", serde_json::to_string(item).unwrap_or_default());
            let lines: Vec<String> = items.iter().map(line).collect();
            if lines.is_empty() { "[]".to_owned() } else { format!("[{}\n    ]", lines.join(",")) }
        }
        let mut without = self.clone();
        let Schedule { topics, clients, events, .. } = &mut without.schedule;
        topics.clear();
        clients.clear();
        events.clear();
        let text = serde_json::to_string_pretty(&without).unwrap_or_default();
        let Schedule { topics, clients, events, .. } = &self.schedule;
        let text = text.replace("    \"topics\": []", &format!("    \"topics\": {}", lines(topics)));
        let text = text.replace("\"clients\": []", &format!("\"clients\": {}", lines(clients)));
        text.replace("\"events\": []", &format!("\"events\": {}", lines(events))) + "\n"
    }

    /// The flaw it is about.
    pub fn flaw(&self) -> Result<Option<Flaw>, String> {
        let Some(rule) = &self.flaw else { return Ok(None) };
        let known = Flaw::ALL.into_iter().find(|flaw| flaw.rule() == rule);
        known.map(Some).ok_or_else(|| format!("no flaw is planted for {rule}"))
    }

    /// Runs it with the flaw or without; the rule broken, and how. Where panics end the process, so does an assertion.
    pub fn run(&self, flaw: Option<Flaw>) -> Option<(String, String)> {
        let plan = Plan { flaw, ..Plan::usual() };
        let outcome = std::panic::catch_unwind(|| run_schedule(&self.schedule, &plan));
        plant(None);
        match outcome {
            Ok(outcome) => outcome.violation.map(|violation| (violation.rule.to_owned(), violation.text)),
            Err(panic) => Some(("assertion".to_owned(), panic_text(&*panic))),
        }
    }
}
