//! Builds with a rule left out, which the run must find wanting: is what it sees enough?

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::checker::{Row, Rule, Verdict};
use super::plan::Fault;
use super::run::{self, Plan};

/// A rule, and the faults that its absence needs.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// As `HIGHWATER_FLAW` names it.
    pub rule: &'static str,
    pub what: &'static str,
    faults: &'static [Fault],
    /// With five a partition can lose two of its three replicas, and the quorum goes on.
    nodes: u8,
}

/// All of them are about bytes on their way between processes, or about a process that dies.
pub const TRIALS: [Trial; 8] = [
    Trial {
        rule: "R234",
        what: "a follower cuts at its watermark, not where the leader's history parts",
        faults: &[Fault::Strike, Fault::Kill, Fault::DataCut, Fault::HandOver],
        nodes: 3,
    },
    Trial {
        rule: "R235",
        what: "a leader does not compare epochs",
        faults: &[Fault::Strike, Fault::Kill, Fault::DataCut, Fault::HandOver],
        nodes: 3,
    },
    Trial {
        rule: "R241",
        what: "the watermark counts the ISR as proposed",
        faults: &[
            Fault::Kill,
            Fault::Strike,
            Fault::Partition,
            Fault::DataCut,
            Fault::Wipe,
            Fault::Pause,
            Fault::KillAll,
            Fault::QuorumCut,
        ],
        nodes: 3,
    },
    // What a leader alone took with acks=1 was read, and goes with it.
    Trial { rule: "R245", what: "the watermark moves below min ISR", faults: &[Fault::Forsaken], nodes: 3 },
    Trial {
        rule: "R264",
        what: "a waiting acknowledgement outlives its leadership",
        faults: &[Fault::HandOver],
        nodes: 3,
    },
    // Eligible with nothing, while the leader, alone in the ISR, is about to die.
    Trial {
        rule: "R244",
        what: "a node that lost its disk stays in the ISR",
        faults: &[Fault::Forsaken, Fault::Wipe],
        nodes: 3,
    },
    // The former leader is slow: what it asked for counts, and it leads again before it has heard that its log has parted.
    Trial {
        rule: "R248",
        what: "a fetch from where the logs have parted counts as acknowledgement",
        faults: &[Fault::HandOver, Fault::Squeeze],
        nodes: 3,
    },
    Trial {
        rule: "R194",
        what: "anybody is elected where nobody complete is left",
        faults: &[Fault::DataCut, Fault::Kill, Fault::Strike],
        nodes: 5,
    },
];

/// What came of one trial.
#[derive(Debug)]
pub struct Outcome {
    pub trial: Trial,
    /// By which rows it was caught; empty: it was not.
    pub rows: Vec<&'static str>,
    pub seed: u64,
    pub took: Duration,
}

/// Runs one, with one seed after the other until it is caught, at most `tries` of them. `plan`: all but faults and flaw.
///
/// # Errors
/// A history cannot be written or read.
pub async fn run(trial: Trial, plan: &Plan, tries: u64, dir: &Path) -> io::Result<Outcome> {
    let began = Instant::now();
    let mut outcome = Outcome { trial, rows: Vec::new(), seed: plan.seed, took: Duration::ZERO };
    for seed in plan.seed..plan.seed + tries {
        let home = tempfile::Builder::new().prefix("flaw-").tempdir_in(dir)?;
        let plan = Plan {
            seed,
            faults: trial.faults.to_vec(),
            flaw: Some(trial.rule.to_owned()),
            nodes: trial.nodes,
            dir: home.path().to_owned(),
            ..plan.clone()
        };
        let (verdict, _) = run::run(&plan).await?;
        outcome = Outcome { trial, rows: rows(&verdict), seed, took: began.elapsed() };
        if !outcome.rows.is_empty() {
            break;
        }
    }
    Ok(outcome)
}

/// What a run found, apart from that too little happened in it.
fn rows(verdict: &Verdict) -> Vec<&'static str> {
    let hit = |row: &Row| row.rule() == Rule::Fails && *row != Row::Vacuous && verdict.findings.count(*row) > 0;
    Row::ALL.into_iter().filter(hit).map(Row::name).collect()
}

/// The closing line: by rule, whether it was caught, by what, after how many seconds.
pub fn json(outcomes: &[Outcome]) -> serde_json::Value {
    let told = |outcome: &Outcome| {
        let Outcome { trial, rows, seed, took } = outcome;
        let told = serde_json::json!({ "caught_by": rows, "seed": seed, "seconds": took.as_secs() });
        (trial.rule.to_owned(), told)
    };
    let caught = outcomes.iter().filter(|outcome| !outcome.rows.is_empty()).count();
    let all: BTreeMap<String, serde_json::Value> = outcomes.iter().map(told).collect();
    serde_json::json!({ "ok": caught == outcomes.len(), "caught": caught, "of": outcomes.len(), "flaws": all })
}
