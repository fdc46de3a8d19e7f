//! What may be left out or made simpler, in the order of what it saves.

use std::collections::BTreeSet;

use highwater_wire::BrokerId;
use serde_json::Value;

use super::super::deeds::Deed;
use super::super::node::End;
use super::super::schedule::{Entry, Schedule};
use super::super::swarm::Swarm;
use super::Shrinker;

/// Bytes: segments are not made smaller than that.
const SEGMENT_MIN: u32 = 300;
/// µs: pauses are not made shorter than that.
const PAUSE_MIN: u64 = 20_000;

impl Shrinker<'_> {
    /// Nothing that goes wrong all the time, or not this.
    pub(super) fn without_conditions(&mut self) {
        let all = self.best.conditions();
        if all.len() > 1
            && self.attempt(|schedule| all.iter().for_each(|name| *schedule = schedule.without_condition(name)))
        {
            return;
        }
        for name in all {
            self.attempt(|schedule| *schedule = schedule.without_condition(name));
        }
    }

    /// No deeds of one kind.
    pub(super) fn without_kinds(&mut self) {
        let kinds: BTreeSet<String> = self.best.events.iter().map(|entry| entry.deed.kind()).collect();
        for kind in kinds {
            self.attempt(|schedule| schedule.events.retain(|entry| entry.deed.kind() != kind));
        }
    }

    /// Delta debugging: half of the events, a quarter, and so on down to single ones, until none can be spared.
    pub(super) fn without_events(&mut self) {
        let mut size = self.best.events.len().div_ceil(2);
        while size > 0 && !self.is_late() {
            let (mut from, mut spared) = (0, false);
            // From the end on: the last events are the ones that break the rule seldom.
            while from < self.best.events.len() && !self.is_late() {
                let end = self.best.events.len() - from;
                let begin = end.saturating_sub(size);
                if self.attempt(|schedule| {
                    schedule.events.drain(begin..end);
                }) {
                    spared = true;
                } else {
                    from += size;
                }
            }
            size = match size {
                1 if spared && self.best.events.len() <= 40 => 1,
                1 => 0,
                _ => size.div_ceil(2).min(size - 1),
            };
        }
    }

    pub(super) fn without_clients(&mut self) {
        let ids: Vec<u32> = self.best.clients.iter().map(|client| client.id).collect();
        for id in ids {
            self.attempt(|schedule| {
                schedule.clients.retain(|client| client.id != id);
                schedule.events.retain(|entry| !is_of(&entry.deed, id));
            });
        }
    }

    /// From now on clients do what they did in this run, and nothing by themselves.
    pub(super) fn write_clients(&mut self) {
        if !self.best.clients_drawn {
            return;
        }
        let luck = std::mem::replace(&mut self.luck, 60);
        let record = self.judge.record(&self.best);
        self.attempt(|schedule| {
            schedule.clients_drawn = false;
            schedule.events.extend(record.events.into_iter().filter(|entry| entry.deed.is_of_client()));
            schedule.events.sort_by_key(|entry| entry.at_us);
        });
        self.luck = luck;
    }

    /// More records at once instead of one batch after the other, and smaller segments instead of more records.
    pub(super) fn merged(&mut self) {
        for index in 0..self.best.swarm.topics.len() {
            self.attempt(|schedule| {
                let bytes = &mut schedule.swarm.topics[index].segment_bytes;
                *bytes = (*bytes).min(SEGMENT_MIN);
            });
        }
        let ids: Vec<u32> = self.best.clients.iter().map(|client| client.id).collect();
        for id in ids {
            // All of them, or those from one on, each into the one before it.
            let produces = |schedule: &Schedule| {
                let of = |entry: &Entry| matches!(entry.deed, Deed::Produce { client, .. } if client == id);
                (0..schedule.events.len()).filter(|index| of(&schedule.events[*index])).collect::<Vec<_>>()
            };
            let mut from = 0;
            while from + 1 < produces(&self.best).len() && !self.is_late() {
                let all = produces(&self.best);
                let merge = |schedule: &mut Schedule, into: usize, others: &[usize]| {
                    let mut more = 0;
                    for other in others.iter().rev() {
                        if let Deed::Produce { records, .. } = schedule.events.remove(*other).deed {
                            more += records;
                        }
                    }
                    if let Deed::Produce { records, .. } = &mut schedule.events[into].deed {
                        *records += more;
                    }
                };
                let rest = self.attempt(|schedule| merge(schedule, all[from], &all[from + 1..]));
                if !rest && !self.attempt(|schedule| merge(schedule, all[from], &all[from + 1..from + 2])) {
                    from += 1;
                }
            }
        }
    }

    /// A plain kill instead of any other end: what is not lost need not be explained.
    pub(super) fn plain_ends(&mut self) {
        for index in 0..self.best.events.len() {
            let Some(entry) = self.best.events.get(index) else { return };
            let (broker, back_us) = match entry.deed {
                Deed::End { end: End::Killed, .. } => continue,
                Deed::End { broker, back_us, .. } => (broker, back_us),
                Deed::Doom { broker, back_us, .. }
                | Deed::Stop { broker, back_us }
                | Deed::FailDisk { broker, back_us, .. } => (broker, back_us.unwrap_or(1_000_000)),
                _ => continue,
            };
            self.attempt(|schedule| {
                schedule.events[index].deed = Deed::End { broker, end: End::Killed, back_us, keeps: None };
            });
        }
    }

    /// Fewer topics, partitions, replicas and brokers.
    pub(super) fn without_replicas(&mut self) {
        for index in (0..self.best.topics.len()).rev() {
            if self.attempt(|schedule| {
                schedule.topics.remove(index);
            }) {
                continue;
            }
            while self.best.topics[index].replicas.len() > 1
                && self.attempt(|schedule| {
                    schedule.topics[index].replicas.pop();
                })
            {}
            let count = self.best.topics[index].replicas.len();
            for partition in 0..count {
                for place in (1..self.best.topics[index].replicas[partition].len()).rev() {
                    // All partitions of a topic have as many replicas.
                    if count == 1 {
                        self.attempt(|schedule| {
                            schedule.topics[index].replicas[partition].remove(place);
                        });
                    }
                }
            }
        }
        for id in (1..=self.best.swarm.brokers).rev().map(BrokerId) {
            if self.best.absent.contains(&id) {
                continue;
            }
            self.attempt(|schedule| {
                if id.0 == schedule.swarm.brokers {
                    schedule.swarm.brokers -= 1;
                } else {
                    schedule.absent.push(id);
                }
                schedule.absent.sort_unstable();
                let brokers = schedule.swarm.brokers;
                schedule.absent.retain(|absent| absent.0 <= brokers);
            });
        }
    }

    /// The cluster as usual, in all respects or in this one.
    pub(super) fn as_usual(&mut self) {
        let Ok(quiet) = serde_json::to_value(Swarm::quiet()) else { return };
        for path in unusual(&self.best) {
            let Some(usual) = at_path(&quiet, &path).cloned() else { continue };
            self.attempt(|schedule| {
                if let Some(swarm) = with_value(&schedule.swarm, &path, usual) {
                    schedule.swarm = swarm;
                }
            });
        }
        for index in 0..self.best.clients.len() {
            self.attempt(|schedule| {
                if let Some(producer) = &mut schedule.clients[index].producer {
                    (producer.idempotent, producer.in_flight) = (false, 1);
                }
            });
        }
    }

    pub(super) fn held_still(&mut self) {
        if !self.best.still {
            self.attempt(|schedule| (schedule.still, schedule.seed) = (true, 0));
        }
    }

    /// Less time in which nothing happens, from the end to the beginning.
    pub(super) fn without_pauses(&mut self) {
        for index in (0..self.best.events.len()).rev() {
            let mut share = 16;
            while share > 1 && !self.is_late() && index < self.best.events.len() {
                let begin = index.checked_sub(1).map_or(0, |before| self.best.events[before].at_us);
                let gap = self.best.events[index].at_us.saturating_sub(begin);
                if gap < PAUSE_MIN {
                    break;
                }
                let less = gap - gap / share;
                if !self.attempt(|schedule| schedule.bring_forward(index, less)) {
                    share /= 2;
                }
            }
        }
    }

    /// Times and lengths in whole milliseconds, for whoever reads them.
    pub(super) fn rounded(&mut self) {
        for unit in [1_000_000, 100_000, 10_000, 1_000] {
            for index in 0..self.best.events.len() {
                self.attempt(|schedule| {
                    let entry = &mut schedule.events[index];
                    entry.at_us = nearest(entry.at_us, unit);
                    schedule.events.sort_by_key(|entry| entry.at_us);
                });
                if let Some(entry) = self.best.events.get(index)
                    && entry.deed.lengths().iter().any(|length| *length != nearest(*length, unit))
                {
                    self.attempt(|schedule| {
                        let deed = &mut schedule.events[index].deed;
                        deed.lengths_mut().into_iter().for_each(|length| *length = nearest(*length, unit).max(unit));
                    });
                }
            }
        }
    }
}

fn nearest(time: u64, unit: u64) -> u64 {
    (time + unit / 2) / unit * unit
}

fn is_of(deed: &Deed, id: u32) -> bool {
    matches!(deed, Deed::Produce { client, .. } | Deed::Poll { client, .. } if *client == id)
}

impl Schedule {
    /// This event and all later ones come earlier.
    fn bring_forward(&mut self, index: usize, less: u64) {
        let from = self.events[index].at_us;
        let later = |entry: &&mut Entry| entry.at_us >= from;
        self.events.iter_mut().filter(later).for_each(|entry| entry.at_us -= less);
        self.trouble_us = self.trouble_us.saturating_sub(less);
    }
}

impl Deed {
    fn lengths_mut(&mut self) -> Vec<&mut u64> {
        match self {
            Self::Pause { for_us, .. }
            | Self::Cut { for_us, .. }
            | Self::Isolate { for_us, .. }
            | Self::ControllerOut { for_us }
            | Self::HoldImages { for_us, .. }
            | Self::Neglect { for_us, .. } => vec![for_us],
            Self::End { back_us, .. } => vec![back_us],
            Self::Doom { back_us, .. } | Self::Stop { back_us, .. } | Self::FailDisk { back_us, .. } => {
                back_us.iter_mut().collect()
            }
            _ => Vec::new(),
        }
    }

    fn lengths(&self) -> Vec<u64> {
        self.clone().lengths_mut().into_iter().map(|length| *length).collect()
    }
}

/// Where a swarm differs from the quiet one: the way to each value.
fn unusual(schedule: &Schedule) -> Vec<Vec<String>> {
    fn walk(value: &Value, way: &[String], found: &mut Vec<Vec<String>>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    walk(value, &[way, std::slice::from_ref(key)].concat(), found);
                }
            }
            _ => found.push(way.to_vec()),
        }
    }
    let mut found = Vec::new();
    let written = serde_json::to_value(schedule).unwrap_or_default();
    walk(&written["swarm"], &[], &mut found);
    // Topics differ as a whole: each of their values by itself.
    found.retain(|way| way[0] != "topics" && way[0] != "brokers");
    if let Some(usual) = serde_json::to_value(&schedule.swarm.topics).ok().and_then(|topics| topics.as_array().cloned())
    {
        for (index, topic) in usual.iter().enumerate() {
            let keys = topic.as_object().into_iter().flat_map(|object| object.keys().cloned());
            found.extend(keys.map(|key| vec!["topics".to_owned(), index.to_string(), key]));
        }
    }
    found
}

fn at_path<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| match value {
        // Every topic is compared with the only one of the quiet swarm.
        Value::Array(items) => items.first(),
        _ => value.get(key),
    })
}

fn with_value(swarm: &Swarm, path: &[String], usual: Value) -> Option<Swarm> {
    let mut value = serde_json::to_value(swarm).ok()?;
    let place = path.iter().try_fold(&mut value, |value, key| match value {
        Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
        _ => value.get_mut(key),
    })?;
    *place = usual;
    serde_json::from_value(value).ok()
}
