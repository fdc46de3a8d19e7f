//! What was acknowledged of topics and their settings, and what the nodes know in the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::history::{Ask, Event, Outcome};
use super::{Findings, Row, is_ok};

/// What a topic may be: everything that the answers so far allow.
#[derive(Default, Clone)]
struct Expected {
    may_exist: bool,
    may_be_gone: bool,
    /// By key, the value that was acknowledged last.
    settings: BTreeMap<String, String>,
    /// Something was asked whose answer never came: it may happen at any time, so only agreement is judged.
    open: bool,
}

#[derive(Default)]
pub(super) struct Metadata {
    pub asked: u64,
    pub ok: u64,
    under_way: HashMap<u64, (String, Ask)>,
    topics: BTreeMap<String, Expected>,
    listed: BTreeMap<u8, BTreeSet<String>>,
    settings: BTreeMap<(String, u8), BTreeMap<String, String>>,
}

impl Metadata {
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Topic { topic, .. } => {
                self.topics.insert(topic.clone(), Expected { may_exist: true, ..Expected::default() });
            }
            Event::Asked { op, topic, ask } => {
                self.asked += 1;
                self.under_way.insert(*op, (topic.clone(), ask.clone()));
                let now =
                    self.topics.entry(topic.clone()).or_insert(Expected { may_be_gone: true, ..Expected::default() });
                // Until the answer, both.
                now.may_exist |= *ask == Ask::Create;
                now.may_be_gone |= *ask == Ask::Delete;
            }
            Event::Answered { op, outcome, .. } => {
                self.ok += u64::from(is_ok(*outcome));
                let Some((topic, ask)) = self.under_way.remove(op) else { return };
                let now = self.topics.entry(topic).or_default();
                match (ask, outcome) {
                    (_, Outcome::Unknown) => now.open = true,
                    (Ask::Create, Outcome::Ok) | (Ask::Delete, Outcome::Failed) => now.may_be_gone = now.open,
                    (Ask::Create, Outcome::Failed) => now.may_exist = now.open,
                    (Ask::Delete, Outcome::Ok) => {
                        *now =
                            Expected { may_exist: now.open, may_be_gone: true, open: now.open, ..Expected::default() };
                    }
                    (Ask::Configure { key, value }, Outcome::Ok) => {
                        now.settings.insert(key, value);
                    }
                    (Ask::Configure { .. }, Outcome::Failed) => {}
                }
            }
            Event::Topics { node, topics } => {
                self.listed.insert(*node, topics.iter().cloned().collect());
            }
            Event::Settings { node, topic, settings } => {
                self.settings.insert((topic.clone(), *node), settings.clone());
            }
            _ => {}
        }
    }

    pub fn end(&self, found: &mut Findings) {
        for (node, listed) in &self.listed {
            for (topic, expected) in &self.topics {
                if listed.contains(topic) && !expected.may_exist {
                    found.add(Row::GhostMetadata, || format!("node {node} knows {topic}, which was deleted"));
                } else if !listed.contains(topic) && !expected.may_be_gone {
                    found.add(Row::GhostMetadata, || format!("node {node} does not know {topic}, which was created"));
                }
            }
        }
        for ((node, listed), (other, known)) in self.listed.iter().zip(self.listed.iter().skip(1)) {
            for topic in listed.symmetric_difference(known) {
                found.add(Row::GhostMetadata, || format!("one of nodes {node} and {other} knows {topic}"));
            }
        }
        for (at, settings) in &self.settings {
            let (topic, node) = at;
            let (other, known) =
                self.settings.range((topic.clone(), 0)..).next().map_or((*node, settings), |(at, known)| (at.1, known));
            if known != settings {
                found.add(Row::GhostMetadata, || format!("nodes {other} and {node} disagree about {topic}"));
            }
            for (key, told) in self.topics.get(topic).filter(|e| !e.open).into_iter().flat_map(|e| &e.settings) {
                let value = settings.get(key);
                if value != Some(told) {
                    found.add(Row::GhostMetadata, || format!("node {node}: {topic} has {key}={value:?}, not {told}"));
                }
            }
        }
    }
}
