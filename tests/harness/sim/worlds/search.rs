//! All schedules up to a depth, state by state: what was met before is not searched again.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Instant;

use super::super::flaws::plant;
use super::super::invariants::Violation;
use super::{Setting, Step, World, Wrong};

/// What a search found.
#[derive(Debug, Clone)]
pub struct Explored {
    pub setting: Setting,
    pub states: usize,
    /// Steps taken from one state to another.
    pub transitions: usize,
    /// Different schedules of at most `depth` steps that are covered.
    pub schedules: f64,
    pub seconds: f64,
    /// The shortest schedule that breaks a rule, in words, and the rule.
    pub counterexample: Option<(Vec<String>, Violation)>,
    /// Everything that may happen within the budget was searched.
    pub exhausted: bool,
}

/// Two streams of 64 bits: states that differ and are taken for equal are not to be expected.
struct Fingerprint(u64, u64);

impl Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for chunk in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_le_bytes(bytes) ^ (chunk.len() as u64) << 59;
            self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xD134_2543_DE82_EF95);
        }
        Ok(())
    }
}

impl World {
    /// Equal for states that behave the same from now on.
    fn fingerprint(&self) -> u128 {
        let mut print = Fingerprint(0x4869_6768, 0x7761_7465);
        let state = self.image.partition(super::partition());
        let _infallible = write!(print, "{state:?}{:?}{:?}{:?}", self.budget, self.now, self.committed);
        for broker in &self.brokers {
            let known = self.image.broker(broker.id).map(|known| (known.epoch, known.state, known.kept_data));
            let _infallible = write!(
                print,
                "{known:?}{:?}{:?}{:?}{}{:?}{:?}",
                broker.log.records,
                broker.log.epochs.entries(),
                broker.epoch,
                broker.lossy,
                broker.former,
                broker.checkpoint
            );
            let Some(process) = &broker.process else { continue };
            let replication = &process.replication;
            let seen = process.seen == self.version();
            let terms = replication.terms().map(|terms| (&terms.state, &terms.peers));
            let _infallible = write!(
                print,
                "{seen}{:?}{:?}{:?}{terms:?}",
                replication.role(),
                replication.leader_epoch(),
                replication.partition_epoch()
            );
        }
        // In which order they were sent does not matter: any may arrive next.
        let mut sum: u128 = 0;
        for packet in &self.under_way {
            let mut one = Fingerprint(7, 11);
            let _infallible = write!(one, "{packet:?}");
            sum = sum.wrapping_add(u128::from(one.0) << 64 | u128::from(one.1));
        }
        (u128::from(print.0) << 64 | u128::from(print.1)).wrapping_add(sum.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// How each state was first met: from which, and by what.
struct Met {
    from: u32,
    step: Step,
}

/// Searches a setting level by level, so that the first counterexample is a shortest one.
pub fn explore(setting: &Setting) -> Explored {
    let began = Instant::now();
    plant(if let Wrong::Planted(flaw) = setting.wrong { Some(flaw) } else { None });
    let mut explored = search(setting);
    plant(None);
    explored.seconds = began.elapsed().as_secs_f64();
    explored
}

fn search(setting: &Setting) -> Explored {
    let first = World::begin(setting);
    let mut numbers: HashMap<u128, u32> = HashMap::from([(first.fingerprint(), 0)]);
    let mut met = vec![Met { from: 0, step: Step::Lapse }];
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut level = vec![(0, first)];
    let mut counterexample = None;
    let mut exhausted = false;
    'levels: for _ in 0..setting.depth {
        let mut next = Vec::new();
        for (number, world) in level {
            for step in world.steps() {
                let mut after = world.clone();
                after.take(step);
                if let Err(violation) = after.check() {
                    met.push(Met { from: number, step });
                    let last = met.len() as u32 - 1;
                    counterexample = Some((told(setting, &met, last), violation));
                    break 'levels;
                }
                let fresh = met.len() as u32;
                let known = *numbers.entry(after.fingerprint()).or_insert(fresh);
                edges.push((number, known));
                if known == fresh {
                    met.push(Met { from: number, step });
                    next.push((fresh, after));
                }
            }
        }
        exhausted = next.is_empty();
        if exhausted {
            break;
        }
        level = next;
    }
    Explored {
        setting: *setting,
        states: met.len(),
        transitions: edges.len(),
        schedules: schedules(met.len(), &edges, setting.depth),
        seconds: 0.0,
        counterexample,
        exhausted,
    }
}

/// How many walks of 1 to `depth` steps there are from the first state.
fn schedules(states: usize, edges: &[(u32, u32)], depth: usize) -> f64 {
    let mut ways = vec![0.0; states];
    ways[0] = 1.0;
    let mut sum = 0.0;
    for _ in 0..depth {
        let mut next = vec![0.0; states];
        for &(from, to) in edges {
            next[to as usize] += ways[from as usize];
        }
        sum += next.iter().sum::<f64>();
        ways = next;
    }
    sum
}

/// A schedule in words, from the first step on.
fn told(setting: &Setting, met: &[Met], last: u32) -> Vec<String> {
    let mut steps = Vec::new();
    let begins = Setting { before: &[], ..*setting };
    let mut at = last;
    while at != 0 {
        steps.push(met[at as usize].step);
        at = met[at as usize].from;
    }
    steps.reverse();
    let mut world = World::begin(&begins);
    let mut lines = Vec::new();
    for step in setting.before.iter().copied().chain(steps) {
        lines.push(world.describe(step));
        world.take(step);
        let _found = world.check();
    }
    lines
}
