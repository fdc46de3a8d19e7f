//! A run as a list: which cluster, which clients, and what is done when. Written down while a seed is drawn, run again
//! without the draw, and short once it has been shrunk (`sim/shrink.rs`).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use highwater_wire::BrokerId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::core::Join;
use super::deeds::Deed;
use super::swarm::{ProducerDraw, Swarm};

/// All that a run depends on beside the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Of the streams from which times vary, and what happens seldom.
    pub seed: u64,
    /// Nothing varies.
    #[serde(default)]
    pub still: bool,
    /// What differs from [`Swarm::quiet`].
    #[serde(serialize_with = "write_swarm", deserialize_with = "read_swarm")]
    pub swarm: Swarm,
    /// Brokers that never run, though there are others with higher ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<BrokerId>,
    /// Topics in the order in which they were made; the newest of a number is made again when it was deleted.
    pub topics: Vec<Made>,
    pub clients: Vec<Client>,
    /// Clients act when they like, and not as it is written.
    #[serde(default, skip_serializing_if = "is_false")]
    pub clients_drawn: bool,
    /// µs of trouble; then everything is healed.
    pub trouble_us: u64,
    pub events: Vec<Entry>,
}

/// One deed and its time (µs).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub at_us: u64,
    /// Not at this time but with the first such join from then on: a follower asks to be taken into the ISR.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinOf>,
    /// … and so long after it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub after_us: u64,
    #[serde(flatten)]
    pub deed: Deed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinOf {
    pub leader: BrokerId,
    pub joiner: BrokerId,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A topic as it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// In the swarm.
    pub topic: usize,
    /// Per partition, the preferred leader first.
    pub replicas: Vec<Vec<BrokerId>>,
    /// Unclean elections are allowed from the beginning.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unclean: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    pub id: u32,
    pub topic: usize,
    pub partition: i32,
    /// Without: a consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<ProducerDraw>,
}

/// What was written down of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Record {
    pub events: Vec<Entry>,
    pub topics: Vec<Made>,
    pub clients: Vec<Client>,
}

thread_local! {
    /// Outlives the world when shipped code panics in the middle of an event.
    static RECORD: RefCell<Record> = const { RefCell::new(Record { events: Vec::new(), topics: Vec::new(), clients: Vec::new() }) };
}

/// Of the newest run on this thread that was written down.
pub fn record() -> Record {
    RECORD.with_borrow(Record::clone)
}

/// What a world writes down of itself, and what it is told to do.
#[derive(Debug, Default)]
pub struct Ledger {
    recording: bool,
    scripted: bool,
    clients_scripted: bool,
    pub clients: Vec<Client>,
    /// The join that what is done now follows from, and its time.
    pub struck: Option<(Join, u64)>,
    /// When each pair of leader and follower last joined.
    joins: BTreeMap<(BrokerId, BrokerId), (u64, u64)>,
    /// What waits for a join.
    waiting: Vec<Entry>,
    /// Topics still to be made, as they were.
    to_make: VecDeque<Made>,
    /// How each topic was made last.
    remade: BTreeMap<usize, Made>,
}

impl Ledger {
    /// Writes down what is drawn.
    pub fn recording() -> Self {
        RECORD.set(Record::default());
        Self { recording: true, ..Self::default() }
    }

    /// As it is written; what is done is written down anew.
    pub fn scripted(schedule: &Schedule) -> Self {
        RECORD.set(Record::default());
        Self {
            recording: true,
            scripted: true,
            clients_scripted: !schedule.clients_drawn,
            waiting: schedule.events.iter().filter(|entry| entry.join.is_some()).cloned().collect(),
            to_make: schedule.topics.iter().cloned().collect(),
            clients: schedule.clients.clone(),
            ..Self::default()
        }
    }

    pub fn is_scripted(&self) -> bool {
        self.scripted
    }

    /// Clients do nothing by themselves but to bring to an end what they began.
    pub fn clients_are_scripted(&self) -> bool {
        self.clients_scripted
    }

    /// Something is done.
    pub fn note(&mut self, now: u64, deed: &Deed) {
        if !self.recording || (self.scripted && !deed.is_of_client()) {
            return;
        }
        let entry = match self.struck {
            None => Entry { at_us: now, join: None, after_us: 0, deed: deed.clone() },
            Some((Join { leader, joiner }, at)) => {
                // The first join after the one before it, but not one of long ago.
                let before = self
                    .joins
                    .get(&(leader, joiner))
                    .map_or(0, |(before, newest)| if *newest < at { *newest } else { *before });
                let from = (before + 1).max(at.saturating_sub(JOIN_SLACK));
                Entry { at_us: from, join: Some(JoinOf { leader, joiner }), after_us: now - at, deed: deed.clone() }
            }
        };
        RECORD.with_borrow_mut(|record| record.events.push(entry));
    }

    /// A broker ended by itself, as an earlier deed had it, and comes back so long after.
    pub fn note_return(&mut self, broker: BrokerId, after: u64) {
        if !self.recording || self.scripted {
            return;
        }
        let led_to = |entry: &&mut Entry| match &entry.deed {
            Deed::Doom { broker: id, .. } | Deed::Stop { broker: id, .. } | Deed::FailDisk { broker: id, .. } => {
                *id == broker
            }
            _ => false,
        };
        RECORD.with_borrow_mut(|record| {
            if let Some(Entry { deed, .. }) = record.events.iter_mut().rev().find(led_to)
                && let Deed::Doom { back_us, .. } | Deed::Stop { back_us, .. } | Deed::FailDisk { back_us, .. } = deed
            {
                *back_us = Some(after);
            }
        });
    }

    /// A follower asks to join. What is written to follow from it?
    pub fn struck_by(&mut self, Join { leader, joiner }: Join, now: u64) -> Vec<Entry> {
        let times = self.joins.entry((leader, joiner)).or_default();
        *times = (times.1, now);
        let of = Some(JoinOf { leader, joiner });
        let (due, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|entry| entry.join == of && entry.at_us <= now);
        self.waiting = waiting;
        due
    }

    /// How a topic is to be made next: `None`: as is drawn; without partitions: not at all.
    pub fn to_make(&self, topic: usize) -> Option<Made> {
        if !self.scripted {
            return None;
        }
        let written = self.to_make.iter().find(|made| made.topic == topic).or_else(|| self.remade.get(&topic));
        Some(written.cloned().unwrap_or(Made { topic, replicas: Vec::new(), unclean: false }))
    }

    /// A topic was made.
    pub fn note_made(&mut self, made: Made) {
        if self.scripted {
            if let Some(index) = self.to_make.iter().position(|written| written.topic == made.topic) {
                self.to_make.remove(index);
            }
            self.remade.insert(made.topic, made);
        } else if self.recording {
            RECORD.with_borrow_mut(|record| record.topics.push(made));
        }
    }

    /// These clients were drawn.
    pub fn note_clients(&mut self, clients: Vec<Client>) {
        if self.recording {
            RECORD.with_borrow_mut(|record| record.clients.clone_from(&clients));
        }
        self.clients = clients;
    }
}

/// A join may come so much earlier (µs) than it did, and is still the same.
const JOIN_SLACK: u64 = 1_000_000;

impl Schedule {
    /// The events and the conditions that are not quiet: how long it is for whoever reads it.
    pub fn size(&self) -> usize {
        self.events.len() + self.conditions().len() + usize::from(self.clients_drawn) * 1_000
    }

    /// What goes wrong by itself all the time, by name.
    pub fn conditions(&self) -> Vec<&'static str> {
        let (swarm, weather) = (&self.swarm, &self.swarm.weather);
        let all = [
            ("slow messages", weather.slow > 0),
            ("breaking connections", weather.breaks > 0),
            ("doubled requests", weather.doubles > 0),
            ("stragglers", weather.stragglers > 0),
            ("a lame broker", weather.lame.is_some()),
            ("slow images", swarm.image_slow > 0),
            ("lost answers", swarm.answers_lost > 0),
            ("late requests to the controller", swarm.controller_late > 0),
            ("late answers of the controller", swarm.answers_late > 0),
        ];
        all.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
    }

    /// Takes one of these away.
    pub fn without_condition(&self, name: &str) -> Self {
        let mut calmer = self.clone();
        let (swarm, weather) = (&mut calmer.swarm, &mut self.swarm.weather.clone());
        match name {
            "slow messages" => weather.slow = 0,
            "breaking connections" => weather.breaks = 0,
            "doubled requests" => weather.doubles = 0,
            "stragglers" => weather.stragglers = 0,
            "a lame broker" => weather.lame = None,
            "slow images" => swarm.image_slow = 0,
            "lost answers" => swarm.answers_lost = 0,
            "late requests to the controller" => swarm.controller_late = 0,
            "late answers of the controller" => swarm.answers_late = 0,
            _ => {}
        }
        swarm.weather = weather.clone();
        calmer
    }
}

/// What is in `value` and not the same in `usual`.
fn differing(value: &Value, usual: &Value) -> Value {
    match (value, usual) {
        (Value::Object(value), Value::Object(usual)) => {
            let other = |(key, value): (&String, &Value)| {
                let usual = usual.get(key).unwrap_or(&Value::Null);
                (value != usual).then(|| (key.clone(), differing(value, usual)))
            };
            Value::Object(value.iter().filter_map(other).collect())
        }
        (Value::Array(values), Value::Array(usual)) if usual.first().is_some_and(Value::is_object) => {
            Value::Array(values.iter().map(|value| differing(value, &usual[0])).collect())
        }
        _ => value.clone(),
    }
}

/// `usual` with what `value` says otherwise.
fn overlaid(usual: Value, value: Value) -> Value {
    match (usual, value) {
        (Value::Object(mut usual), Value::Object(value)) => {
            for (key, value) in value {
                let below = usual.remove(&key).unwrap_or(Value::Null);
                usual.insert(key, overlaid(below, value));
            }
            Value::Object(usual)
        }
        (Value::Array(usual), Value::Array(values)) if usual.first().is_some_and(Value::is_object) => {
            Value::Array(values.into_iter().map(|value| overlaid(usual[0].clone(), value)).collect())
        }
        (_, value) => value,
    }
}

fn write_swarm<S: serde::Serializer>(swarm: &Swarm, to: S) -> Result<S::Ok, S::Error> {
    let value = |swarm: &Swarm| serde_json::to_value(swarm).map_err(serde::ser::Error::custom);
    differing(&value(swarm)?, &value(&Swarm::quiet())?).serialize(to)
}

fn read_swarm<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Swarm, D::Error> {
    let quiet = serde_json::to_value(Swarm::quiet()).map_err(serde::de::Error::custom)?;
    let value = overlaid(quiet, Value::deserialize(from)?);
    serde_json::from_value(value).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_read_as_it_was_written_and_only_what_is_unusual_of_its_swarm_is_written() {
        let mut swarm = Swarm::quiet();
        swarm.lag_ms = 777;
        swarm.weather.delay = 11;
        let deed = Deed::Pause { broker: BrokerId(2), for_us: 5 };
        let schedule = Schedule {
            seed: 3,
            still: true,
            swarm,
            absent: vec![BrokerId(3)],
            topics: vec![Made { topic: 0, replicas: vec![vec![BrokerId(1)]], unclean: false }],
            clients: Vec::new(),
            clients_drawn: false,
            trouble_us: 9,
            events: vec![Entry { at_us: 4, join: None, after_us: 0, deed }],
        };
        let text = serde_json::to_string(&schedule).unwrap();
        assert!(text.contains(r#""swarm":{"lag_ms":777,"weather":{"delay":11}}"#), "{text}");
        assert!(text.contains(r#"{"at_us":4,"do":"pause","broker":2,"for_us":5}"#), "{text}");
        assert_eq!(serde_json::from_str::<Schedule>(&text).unwrap(), schedule);
    }
}
