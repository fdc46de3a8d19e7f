//! A run that breaks a rule is made short: as few events as still break the same rule.
//!
//! Whole kinds go first, then single events (delta debugging), then clients, partitions and brokers, then everything that is
//! unusual, then the time in which nothing happens. Whether what is left still fails is asked of a [`Judge`]; with a
//! planted flaw it must also pass without it, or another fault has been found instead.

use std::time::{Duration, Instant};

use super::schedule::{Record, Schedule};

mod campaign;
mod moves;
mod regression;
mod worker;

pub use campaign::{Case, shrink_case};
pub use regression::Regression;
pub use worker::{Ask, Reply, Worker, serve};

/// Says what comes of a schedule.
pub trait Judge {
    /// Whether it breaks the rule that is looked for, and only through the flaw, if there is one; if so, when (µs).
    fn fails(&mut self, schedule: &Schedule) -> Option<u64>;

    /// What was done in it, until it broke the rule.
    fn record(&mut self, schedule: &Schedule) -> Record;
}

/// One shrinking.
pub struct Shrinker<'a> {
    judge: &'a mut dyn Judge,
    best: Schedule,
    until: Instant,
    /// Schedules tried.
    pub tried: u64,
    /// Other seeds that a schedule is tried with before it is given up: times vary with what is left out.
    luck: u64,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Shrunk {
    pub schedule: Schedule,
    /// Events, clients' too, as recorded.
    pub events_before: usize,
    pub tried: u64,
    pub seconds: f64,
}

/// Makes a recorded run short. `None`: it does not even fail when it is run as recorded.
pub fn shrink(judge: &mut dyn Judge, recorded: Schedule, acts: usize, time: Duration) -> Option<Shrunk> {
    let began = Instant::now();
    let events_before = recorded.events.len() + acts;
    let mut shrinker = Shrinker { judge, best: recorded, until: began + time, tried: 0, luck: 60 };
    if !shrinker.accept(shrinker.best.clone()) {
        return None;
    }
    shrinker.run();
    let Shrinker { best, tried, .. } = shrinker;
    Some(Shrunk { schedule: best, events_before, tried, seconds: began.elapsed().as_secs_f64() })
}

impl Shrinker<'_> {
    fn run(&mut self) {
        self.luck = 2;
        self.without_conditions();
        self.without_kinds();
        self.without_events();
        self.without_clients();
        self.write_clients();
        let mut before = usize::MAX;
        for round in 0.. {
            self.luck = if round == 0 { 3 } else { 6 };
            self.write_clients();
            self.merged();
            self.plain_ends();
            self.without_kinds();
            self.without_events();
            self.without_clients();
            self.without_conditions();
            self.without_replicas();
            self.as_usual();
            self.held_still();
            self.without_pauses();
            let size = self.best.size();
            if size >= before || self.is_late() {
                break;
            }
            before = size;
        }
        self.luck = 3;
        self.rounded();
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Takes a schedule if it fails, perhaps with times that vary in another way.
    fn accept(&mut self, mut candidate: Schedule) -> bool {
        if candidate == self.best && self.tried > 0 {
            return false;
        }
        let seed = candidate.seed;
        let luck = if candidate.still { 0 } else { self.luck };
        for other in 0..=luck {
            if self.is_late() && self.tried > 0 {
                return false;
            }
            candidate.seed = if other == 0 { seed } else { seed.wrapping_add(other.wrapping_mul(7_919) % 1_000_003) };
            self.tried += 1;
            if let Some(at) = self.judge.fails(&candidate) {
                candidate.end_at(at);
                self.best = candidate;
                return true;
            }
        }
        false
    }

    /// Takes what a change makes of the best one, if it fails.
    fn attempt(&mut self, change: impl FnOnce(&mut Schedule)) -> bool {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        self.accept(candidate)
    }
}

impl Schedule {
    /// Nothing is of interest after the rule is broken.
    fn end_at(&mut self, at: u64) {
        if at < self.trouble_us {
            self.trouble_us = at + 1_000;
            self.events.retain(|entry| entry.at_us <= at);
        }
    }
}

#[cfg(test)]
mod tests {
    use highwater_wire::BrokerId;

    use super::super::deeds::Deed;
    use super::super::schedule::{Client, Entry, Made};
    use super::super::swarm::Swarm;
    use super::*;

    /// Fails wherever these deeds are done in this order and client 2 is there.
    struct Needs(Vec<Deed>);

    impl Judge for Needs {
        fn fails(&mut self, schedule: &Schedule) -> Option<u64> {
            let mut needed = self.0.iter().filter(|deed| !schedule.clients_drawn || !deed.is_of_client()).peekable();
            for entry in &schedule.events {
                needed.next_if(|deed| **deed == entry.deed);
            }
            let is_there = schedule.clients.iter().any(|client| client.id == 2);
            (needed.peek().is_none() && is_there).then_some(schedule.trouble_us)
        }

        fn record(&mut self, _schedule: &Schedule) -> Record {
            let deed = |client| Deed::Produce { client, records: 1 };
            let events =
                (0..50).map(|n| Entry { at_us: n * 1_000, join: None, after_us: 0, deed: deed(1 + n as u32 % 2) });
            Record { events: events.collect(), ..Record::default() }
        }
    }

    fn recorded() -> Schedule {
        let deed = |n: u64| match n % 3 {
            0 => Deed::Elect,
            1 => Deed::Suspect { broker: BrokerId(n as i32 % 5) },
            _ => Deed::Reset {
                from: super::super::network::Place::Controller,
                to: super::super::network::Place::Client(1),
            },
        };
        let mut swarm = Swarm::quiet();
        (swarm.brokers, swarm.lag_ms, swarm.image_slow) = (5, 123, 7);
        Schedule {
            seed: 5,
            still: false,
            swarm,
            absent: Vec::new(),
            topics: vec![Made { topic: 0, replicas: vec![vec![BrokerId(1), BrokerId(2)]; 3], unclean: false }],
            clients: (1..=2).map(|id| Client { id, topic: 0, partition: 0, producer: None }).collect(),
            clients_drawn: true,
            trouble_us: 60_000_000,
            events: (0..200).map(|n| Entry { at_us: n * 100_000, join: None, after_us: 0, deed: deed(n) }).collect(),
        }
    }

    #[test]
    fn what_is_left_is_what_is_needed_at_the_usual_cluster() {
        let needed = vec![
            Deed::Produce { client: 2, records: 1 },
            Deed::Suspect { broker: BrokerId(3) },
            Deed::Elect,
            Deed::Suspect { broker: BrokerId(1) },
        ];
        let shrunk = shrink(&mut Needs(needed.clone()), recorded(), 50, Duration::from_secs(60)).unwrap();
        let deeds: Vec<Deed> = shrunk.schedule.events.iter().map(|entry| entry.deed.clone()).collect();
        assert_eq!(deeds, needed);
        assert_eq!(shrunk.events_before, 250);
        assert!(shrunk.schedule.still && shrunk.schedule.conditions().is_empty() && !shrunk.schedule.clients_drawn);
        assert_eq!((shrunk.schedule.swarm.brokers, shrunk.schedule.swarm.lag_ms), (0, Swarm::quiet().lag_ms));
        assert!(shrunk.schedule.topics.is_empty() && shrunk.schedule.clients.len() == 1);
        let (first, last) = (shrunk.schedule.events[0].at_us, shrunk.schedule.events[3].at_us);
        assert!(last - first <= 3 * 20_000, "{:?}", shrunk.schedule.events);
    }

    #[test]
    fn what_does_not_fail_as_it_was_written_down_is_given_up() {
        let never = Deed::ControllerOut { for_us: 1 };
        assert!(shrink(&mut Needs(vec![never]), recorded(), 0, Duration::from_secs(60)).is_none());
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let schedule = recorded();
        let regression =
            Regression { story: "s".to_owned(), found: "f".to_owned(), flaw: None, rule: "S7".to_owned(), schedule };
        assert_eq!(serde_json::from_str::<Regression>(&regression.to_text()).unwrap(), regression);
    }
}
