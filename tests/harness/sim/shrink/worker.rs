//! Runs schedules in a process of its own: a shipped assertion that fires ends it, and says so first.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use highwater_wire::Millis;
use serde::{Deserialize, Serialize};

use super::super::flaws::Flaw;
use super::super::run::{Plan, record_seed, run_schedule};
use super::super::schedule::{Record, Schedule, record};
use super::super::swarm::{ANY, UNATTENDED};
use super::super::trace;

/// One question, a line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ask {
    /// The run; or else the seed of one that is to be drawn.
    pub schedule: Option<Schedule>,
    pub seed: u64,
    pub unattended: bool,
    pub seconds: u64,
    /// By its rule.
    pub flaw: Option<String>,
    pub settle: bool,
    /// What was done is to be told.
    pub record: bool,
}

/// One answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reply {
    /// The rule that was broken, and how; `assertion`: one of the product's own.
    pub rule: Option<String>,
    pub text: String,
    /// When (µs).
    pub at_us: u64,
    pub record: Option<Record>,
}

/// The asking side.
pub struct Worker {
    child: Option<(Child, ChildStdin, BufReader<ChildStdout>)>,
    program: std::path::PathBuf,
    arguments: Vec<String>,
}

impl Worker {
    /// Processes are started as they are needed.
    pub fn new(program: std::path::PathBuf, arguments: Vec<String>) -> Self {
        Self { child: None, program, arguments }
    }

    /// What comes of a run.
    pub fn ask(&mut self, ask: &Ask) -> Result<Reply, String> {
        let line = serde_json::to_string(ask).map_err(|error| error.to_string())?;
        // One that has ended since its last answer is followed by another one.
        for _ in 0..2 {
            if self.child.is_none() {
                self.child = Some(self.start()?);
            }
            if let Some(reply) = self.try_ask(&line) {
                return Ok(reply);
            }
            self.end();
        }
        Err(format!("no answer to {line}"))
    }

    fn try_ask(&mut self, line: &str) -> Option<Reply> {
        let (_, to, from) = self.child.as_mut()?;
        writeln!(to, "{line}").and_then(|()| to.flush()).ok()?;
        let mut answer = String::new();
        from.read_line(&mut answer).ok()?;
        serde_json::from_str(&answer).ok()
    }

    fn start(&self) -> Result<(Child, ChildStdin, BufReader<ChildStdout>), String> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or("a process without pipes")?;
        Ok((child, to, BufReader::new(from)))
    }

    fn end(&mut self) {
        if let Some((mut child, to, _)) = self.child.take() {
            drop(to);
            // It ends with its input, or has ended.
            let _ = child.wait();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// The answering side: until the input ends.
pub fn serve() {
    // Where panics end the process, this is all that is heard of them.
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
        let text = format!("{place}: {}", info.to_string().replace('\n', " "));
        say(&Reply { rule: Some("assertion".to_owned()), text, at_us: trace::now(), record: Some(record()) });
        std::process::exit(0);
    }));
    for line in std::io::stdin().lock().lines() {
        let Some(ask) = line.ok().and_then(|line| serde_json::from_str::<Ask>(&line).ok()) else { return };
        say(&answer(&ask));
    }
}

fn say(reply: &Reply) {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(reply).unwrap_or_default();
    // Whoever does not hear it is gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn answer(ask: &Ask) -> Reply {
    let flaw = Flaw::ALL.into_iter().find(|flaw| Some(flaw.rule()) == ask.flaw.as_deref());
    let shape = if ask.unattended { UNATTENDED } else { ANY };
    let plan = Plan { flaw, settle: ask.settle, shape, time: Millis(ask.seconds * 1_000), ..Plan::usual() };
    let outcome = match &ask.schedule {
        Some(schedule) => run_schedule(schedule, &plan),
        None => record_seed(ask.seed, &plan),
    };
    let (rule, text) = outcome.violation.map_or((None, String::new()), |v| (Some(v.rule.to_owned()), v.text));
    Reply { rule, text, at_us: trace::now(), record: ask.record.then(record) }
}
