//! From a seed that fails to the file that keeps it short.

use std::time::{Duration, Instant};

use super::super::schedule::{Record, Schedule};
use super::super::swarm::{ANY, Acts, Gaps, Strikes, Swarm, UNATTENDED};
use super::{Ask, Judge, Regression, Reply, Shrunk, Worker, shrink};

/// What is to be shrunk.
#[derive(Debug, Clone)]
pub struct Case {
    /// By its rule; without: a fault of the product.
    pub flaw: Option<String>,
    /// The first that fails is taken.
    pub seeds: std::ops::Range<u64>,
    pub unattended: bool,
    /// Simulated time of trouble.
    pub seconds: u64,
    /// How long it may take.
    pub time: Duration,
    /// What the code is called that it was found in.
    pub commit: String,
}

/// Runs in another process, and looks for one broken rule.
struct Elsewhere<'a> {
    worker: &'a mut Worker,
    ask: Ask,
    rule: String,
    /// Of an assertion: file and line.
    place: String,
    error: Option<String>,
}

fn place_of(reply: &Reply) -> String {
    let is_assertion = reply.rule.as_deref() == Some("assertion");
    if is_assertion { reply.text.split(": ").next().unwrap_or_default().to_owned() } else { String::new() }
}

impl Elsewhere<'_> {
    fn run(&mut self, schedule: &Schedule, flaw: Option<String>, settle: bool) -> Reply {
        let ask = Ask { schedule: Some(schedule.clone()), flaw, settle, ..self.ask.clone() };
        self.worker.ask(&ask).unwrap_or_else(|error| {
            self.error = Some(error);
            Reply::default()
        })
    }
}

impl Judge for Elsewhere<'_> {
    fn fails(&mut self, schedule: &Schedule) -> Option<u64> {
        let reply = self.run(schedule, self.ask.flaw.clone(), self.ask.settle);
        let same = reply.rule.as_ref() == Some(&self.rule) && place_of(&reply) == self.place;
        // The file is run to its end, so whatever breaks a rule without the flaw is no use.
        let only_flawed = same && (self.ask.flaw.is_none() || self.run(schedule, None, true).rule.is_none());
        only_flawed.then_some(reply.at_us)
    }

    fn record(&mut self, schedule: &Schedule) -> Record {
        self.run(schedule, self.ask.flaw.clone(), self.ask.settle).record.unwrap_or_default()
    }
}

/// Finds a seed that fails and makes it short. Of a flaw, which many seeds catch, others follow while it is not short enough
/// and there is time.
pub fn shrink_case(worker: &mut Worker, case: &Case) -> Result<(Regression, Shrunk), String> {
    let began = Instant::now();
    let mut best: Option<(Regression, Shrunk)> = None;
    let mut why = format!("none of the seeds {:?} fails", case.seeds);
    for seed in case.seeds.clone() {
        let left = case.time.saturating_sub(began.elapsed());
        if left.is_zero() && best.is_some() {
            break;
        }
        // One of many seeds must not take all the time that there is.
        let left = if case.seeds.end - case.seeds.start > 1 { left.clamp(case.time / 4, case.time / 2) } else { left };
        match shrink_seed(worker, case, seed, left)? {
            Found::Nothing => {}
            Found::Useless(reason) => why = reason,
            Found::Short(found) => {
                let (found, mut shrunk) = *found;
                let is_shorter = |(_, before): &(_, Shrunk)| shrunk.schedule.size() < before.schedule.size();
                if best.as_ref().is_none_or(is_shorter) {
                    shrunk.seconds = began.elapsed().as_secs_f64();
                    best = Some((found, shrunk));
                }
                if best.as_ref().is_some_and(|(_, shrunk)| shrunk.schedule.size() <= SHORT_ENOUGH) {
                    break;
                }
            }
        }
    }
    best.ok_or(why)
}

/// Events: a person reads as many at a glance.
const SHORT_ENOUGH: usize = 8;

enum Found {
    /// The seed does not fail.
    Nothing,
    /// It does, but cannot be used.
    Useless(String),
    Short(Box<(Regression, Shrunk)>),
}

fn shrink_seed(worker: &mut Worker, case: &Case, seed: u64, time: Duration) -> Result<Found, String> {
    let drawn = Ask {
        schedule: None,
        seed,
        unattended: case.unattended,
        seconds: case.seconds,
        flaw: case.flaw.clone(),
        settle: true,
        record: true,
    };
    let reply = worker.ask(&drawn)?;
    let Some(rule) = reply.rule.clone() else { return Ok(Found::Nothing) };
    if case.flaw.is_some() && worker.ask(&Ask { flaw: None, ..drawn.clone() })?.rule.is_some() {
        return Ok(Found::Useless(format!("seed {seed} fails without the flaw too")));
    }
    let (schedule, acts) = written(seed, case, &reply);
    let settle = reply.at_us >= case.seconds * 1_000_000;
    let ask = Ask { settle, ..drawn };
    let mut judge = Elsewhere { worker: &mut *worker, ask, rule: rule.clone(), place: place_of(&reply), error: None };
    let shrunk = shrink(&mut judge, schedule, acts, time);
    if let Some(error) = judge.error.take() {
        return Err(error);
    }
    let Some(shrunk) = shrunk else {
        return Ok(Found::Useless(format!("seed {seed} breaks {rule}, but not when it is run as it was written down")));
    };
    let story = judge.run(&shrunk.schedule, case.flaw.clone(), true).text;
    let found = Regression {
        story,
        found: format!("seed {seed}{}, {}", if case.unattended { " (unattended)" } else { "" }, case.commit),
        flaw: case.flaw.clone(),
        rule,
        schedule: shrunk.schedule.clone(),
    };
    Ok(Found::Short(Box::new((found, shrunk))))
}

/// The run of a seed as a list, in which clients still act by themselves; and how often they acted.
fn written(seed: u64, case: &Case, reply: &Reply) -> (Schedule, usize) {
    let shape = if case.unattended { UNATTENDED } else { ANY };
    let mut swarm = Swarm::draw_for(seed, shape);
    // What only the draw looks at.
    swarm.acts = Acts { add_partitions: swarm.acts.add_partitions, ..Acts::default() };
    (swarm.gaps, swarm.strikes, swarm.delete_gap_ms) = (Gaps::default(), Strikes::default(), 0);
    (swarm.producers, swarm.consumers) = (Vec::new(), 0);
    let Record { events, topics, clients } = reply.record.clone().unwrap_or_default();
    let (acts, events): (Vec<_>, Vec<_>) = events.into_iter().partition(|entry| entry.deed.is_of_client());
    let trouble_us = case.seconds * 1_000_000;
    let schedule = Schedule {
        seed,
        still: false,
        swarm,
        absent: Vec::new(),
        topics,
        clients,
        clients_drawn: true,
        trouble_us,
        events,
    };
    (schedule, acts.len())
}
