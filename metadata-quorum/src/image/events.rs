//! What an entry did, as news: derived from its changes while they are applied, so that every node numbers the same events
//! the same (operators.md 1.4 K). Costs a look at what each change replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use highwater_wire::{BrokerEpoch, BrokerId, LeaderEpoch, Timestamp, TopicId, TopicPartition};
use serde::{Deserialize, Serialize};

use super::{BrokerRegistration, BrokerState, Change, ChangeKind, MetadataImage, PartitionChange, PartitionState};

/// Which event: `88210.0` is the first of entry 88210. Also a place in the order of all events: `88210` alone is the end
/// of that entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventId {
    /// Index of the raft entry.
    pub index: u64,
    /// Counts the events of one entry; `u32::MAX`: all of them.
    pub number: u32,
}

impl EventId {
    /// Behind everything that an entry did.
    pub const fn end_of(index: u64) -> Self {
        Self { index, number: u32::MAX }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            u32::MAX => write!(f, "{}", self.index),
            number => write!(f, "{}.{number}", self.index),
        }
    }
}

impl FromStr for EventId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('.') {
            None => Ok(Self::end_of(text.parse()?)),
            Some((index, number)) => Ok(Self { index: index.parse()?, number: number.parse()? }),
        }
    }
}

/// One piece of news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub id: EventId,
    /// The proposer's clock; [`Timestamp::NONE`] where an entry carries none.
    pub time: Timestamp,
    pub kind: EventKind,
}

/// What happened. Persisted in each node's journal: variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    BrokerRegistered {
        broker: BrokerId,
        epoch: BrokerEpoch,
        version: String,
    },
    BrokerFenced {
        broker: BrokerId,
        epoch: BrokerEpoch,
    },
    BrokerUnfenced {
        broker: BrokerId,
        epoch: BrokerEpoch,
    },
    /// It asked to stop and is let go.
    BrokerShutdown {
        broker: BrokerId,
        epoch: BrokerEpoch,
    },
    BrokerUnregistered {
        broker: BrokerId,
    },
    TopicCreated {
        name: String,
        topic: TopicId,
        partitions: i32,
    },
    TopicDeleted {
        name: String,
        topic: TopicId,
        partitions: i32,
    },
    /// It has more partitions than before.
    TopicGrown {
        name: String,
        topic: TopicId,
        before: i32,
        after: i32,
    },
    /// A change of ISR or leader, as its history tells it. Elections at creation are part of [`Self::TopicCreated`].
    Partition {
        topic: String,
        partition: i32,
        change: PartitionChange,
    },
    /// Nobody leads it any more.
    PartitionOffline {
        topic: String,
        partition: i32,
        leader_epoch: LeaderEpoch,
        /// Who may lead it once it is back.
        eligible: Vec<BrokerId>,
    },
    /// Somebody leads it again.
    PartitionOnline {
        topic: String,
        partition: i32,
        leader_epoch: LeaderEpoch,
        leader: BrokerId,
    },
    /// acks=all is refused from here on: fewer are in sync than `min.insync.replicas`.
    PartitionUnderMinIsr {
        topic: String,
        partition: i32,
        leader_epoch: LeaderEpoch,
        isr: Vec<BrokerId>,
        min_isr: u32,
    },
    /// Keys whose value in force changed.
    TopicConfigChanged {
        name: String,
        topic: TopicId,
        changed: Vec<ConfigChange>,
    },
    /// Who votes and who listens, from this entry on.
    QuorumMembership {
        voters: Vec<BrokerId>,
        observers: Vec<BrokerId>,
    },
    /// Keys that are set on one broker, or on all (`None`), and were not so before.
    BrokerConfigChanged {
        broker: Option<BrokerId>,
        changed: Vec<ConfigChange>,
    },
}

/// One key, before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    pub name: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Collects the events of one entry. Hand it each change *before* it is applied.
pub struct Collector {
    index: u64,
    time: Timestamp,
    events: Vec<Event>,
    /// Of the partition at hand: told after the changes that explain them.
    held: Vec<EventKind>,
    /// A topic that this entry creates or makes larger: its id, name, and partitions before.
    growing: Option<(TopicId, String, i32)>,
    grown_to: i32,
}

impl Collector {
    /// For the entry at `index`, proposed at `time`.
    pub fn new(index: u64, time: Timestamp) -> Self {
        Self { index, time, events: Vec::new(), held: Vec::new(), growing: None, grown_to: 0 }
    }

    /// Takes note of a change. `image`: without it, but with those before it.
    pub fn note(&mut self, image: &MetadataImage, change: &Change) {
        match change {
            Change::Partition(at, state) => {
                self.release();
                self.partition(image, *at, state);
                return;
            }
            Change::History(at, change) => {
                let created = self.is_growing(*at);
                if let Some(topic) = image.topics.get(&at.topic).filter(|_| !created) {
                    let (topic, partition) = (topic.name.to_string(), at.partition);
                    self.push(EventKind::Partition { topic, partition, change: change.as_ref().clone() });
                }
                return;
            }
            Change::Cluster { .. }
            | Change::HistoryTrimmed(..)
            | Change::Staged(..)
            | Change::Unstaged(_)
            | Change::NextProducerId(_)
            | Change::Controller(_)
            | Change::ControllerRemoved(_)
            | Change::Inherited(..) => return,
            Change::Broker(_)
            | Change::BrokerRemoved(_)
            | Change::Topic { .. }
            | Change::TopicRemoved(_)
            | Change::BrokerConfigs(..) => {}
        }
        self.release();
        match change {
            Change::Broker(broker) => self.broker(image, broker),
            Change::BrokerRemoved(broker) => self.push(EventKind::BrokerUnregistered { broker: *broker }),
            Change::Topic { id, name, config, .. } => match image.topics.get(id) {
                None => self.growing = Some((*id, name.to_string(), 0)),
                Some(topic) => {
                    let after = config.entries();
                    let changed = topic.config.entries().into_iter().zip(after).filter(|(a, b)| a.value != b.value);
                    let changed: Vec<_> = changed
                        .map(|(before, after)| ConfigChange {
                            name: before.name.to_owned(),
                            before: Some(before.value),
                            after: Some(after.value),
                        })
                        .collect();
                    if !changed.is_empty() {
                        self.push(EventKind::TopicConfigChanged { name: name.to_string(), topic: *id, changed });
                    }
                }
            },
            Change::BrokerConfigs(broker, after) => {
                let none = BTreeMap::new();
                let before = image.broker_configs(*broker).unwrap_or(&none);
                let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
                let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
                let changed: Vec<_> = changed
                    .map(|name| ConfigChange {
                        name: name.clone(),
                        before: before.get(name).cloned(),
                        after: after.get(name).cloned(),
                    })
                    .collect();
                if !changed.is_empty() {
                    self.push(EventKind::BrokerConfigChanged { broker: *broker, changed });
                }
            }
            Change::TopicRemoved(id) => {
                if let Some(topic) = image.topics.get(id) {
                    let (name, partitions) = (topic.name.to_string(), count(topic.partitions.len()));
                    self.push(EventKind::TopicDeleted { name, topic: *id, partitions });
                }
            }
            _ => {}
        }
    }

    /// The quorum has other members.
    pub fn membership(&mut self, voters: Vec<BrokerId>, observers: Vec<BrokerId>) {
        self.push(EventKind::QuorumMembership { voters, observers });
    }

    /// All events of the entry, in order.
    pub fn finish(mut self) -> Vec<Event> {
        self.release();
        if let Some((topic, name, before)) = self.growing.take() {
            let after = self.grown_to;
            self.push(match before {
                0 => EventKind::TopicCreated { name, topic, partitions: after },
                _ => EventKind::TopicGrown { name, topic, before, after },
            });
        }
        self.events
    }

    fn push(&mut self, kind: EventKind) {
        let number = u32::try_from(self.events.len()).unwrap_or(u32::MAX - 1);
        self.events.push(Event { id: EventId { index: self.index, number }, time: self.time, kind });
    }

    fn release(&mut self) {
        for kind in std::mem::take(&mut self.held) {
            self.push(kind);
        }
    }

    /// Whether the partition exists only since this entry.
    fn is_growing(&self, at: TopicPartition) -> bool {
        self.growing.as_ref().is_some_and(|(topic, _, before)| *topic == at.topic && at.partition >= *before)
    }

    fn broker(&mut self, image: &MetadataImage, now: &BrokerRegistration) {
        let (broker, epoch) = (now.id, now.epoch);
        let before = image.brokers.get(&broker);
        if before.is_none_or(|before| before.epoch != epoch) {
            self.push(EventKind::BrokerRegistered { broker, epoch, version: now.version.clone() });
        } else if before.is_some_and(|before| before.state != now.state) {
            self.push(match now.state {
                BrokerState::Fenced => EventKind::BrokerFenced { broker, epoch },
                BrokerState::Active => EventKind::BrokerUnfenced { broker, epoch },
                BrokerState::ShuttingDown => EventKind::BrokerShutdown { broker, epoch },
            });
        }
    }

    fn partition(&mut self, image: &MetadataImage, at: TopicPartition, now: &PartitionState) {
        let Some(topic) = image.topics.get(&at.topic) else { return };
        let Some(before) = image.partition(at) else {
            let known = self.growing.as_ref().is_some_and(|(growing, ..)| *growing == at.topic);
            if !known {
                self.growing = Some((at.topic, topic.name.to_string(), count(topic.partitions.len())));
            }
            self.grown_to = at.partition + 1;
            return;
        };
        let (name, partition, leader_epoch) = (topic.name.to_string(), at.partition, now.leader_epoch);
        match (before.leader, now.leader) {
            (Some(_), None) => {
                let eligible = now.elr.iter().chain(&now.last_known_elr).copied().collect();
                self.held.push(EventKind::PartitionOffline { topic: name.clone(), partition, leader_epoch, eligible });
            }
            (None, Some(leader)) => {
                self.held.push(EventKind::PartitionOnline { topic: name.clone(), partition, leader_epoch, leader });
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        let min_isr = now.effective_min_isr(topic.config.min_isr);
        if now.isr.len() < min_isr && before.isr.len() >= before.effective_min_isr(topic.config.min_isr) {
            let (isr, min_isr) = (now.isr.clone(), u32::try_from(min_isr).unwrap_or(u32::MAX));
            self.held.push(EventKind::PartitionUnderMinIsr { topic: name, partition, leader_epoch, isr, min_isr });
        }
    }
}

impl EventKind {
    /// The name of the type.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::BrokerRegistered { .. } => "broker.registered",
            Self::BrokerFenced { .. } => "broker.fenced",
            Self::BrokerUnfenced { .. } => "broker.unfenced",
            Self::BrokerShutdown { .. } => "broker.shutdown",
            Self::BrokerUnregistered { .. } => "broker.unregistered",
            Self::TopicCreated { .. } => "topic.created",
            Self::TopicDeleted { .. } => "topic.deleted",
            Self::TopicGrown { .. } => "topic.grown",
            Self::Partition { change, .. } => match (&change.kind, change.leader) {
                (ChangeKind::Shrink { .. }, _) => "isr.shrink",
                (ChangeKind::Expand { .. }, _) => "isr.expand",
                (ChangeKind::Leader { .. }, Some(_)) => "leader.elected",
                (ChangeKind::Leader { .. }, None) => "leader.lost",
                (ChangeKind::DataLoss { .. }, _) => "partition.data_lost",
            },
            Self::PartitionOffline { .. } => "partition.offline",
            Self::PartitionOnline { .. } => "partition.online",
            Self::PartitionUnderMinIsr { .. } => "partition.under_min_isr",
            Self::TopicConfigChanged { .. } | Self::BrokerConfigChanged { .. } => "config.changed",
            Self::QuorumMembership { .. } => "quorum.membership",
        }
    }
}

fn count(partitions: usize) -> i32 {
    i32::try_from(partitions).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::controller::testing::*;
    use crate::controller::{Command, FencedBroker, RULE_VERSION, RegisterBroker, decide};

    /// Runs a command and tells its events: ids and types.
    fn news(quorum: &mut Quorum, command: &Command) -> Vec<Event> {
        let index = quorum.image.version.0 + 1;
        let decision = decide(&quorum.image, index, RULE_VERSION, command).unwrap();
        let mut collector = Collector::new(index, Timestamp(7));
        for change in &decision.changes {
            collector.note(&quorum.image, change);
            quorum.image.apply(change);
        }
        quorum.image.version.0 = index;
        collector.finish()
    }

    fn types(events: &[Event]) -> Vec<&'static str> {
        events.iter().map(|event| event.kind.name()).collect()
    }

    fn fence(quorum: &Quorum, id: i32) -> Command {
        let broker = FencedBroker { broker: BrokerId(id), epoch: quorum.epoch(id), note: "silent".to_owned() };
        Command::FenceBrokers { brokers: vec![broker], watermarks: vec![], time: Timestamp(3) }
    }

    #[test]
    fn ids_read_back_and_order_events() {
        let id = |text: &str| text.parse::<EventId>().unwrap();
        assert_eq!(id("88210.0"), EventId { index: 88_210, number: 0 });
        assert_eq!(id("88210").to_string(), "88210");
        assert!(id("7.4294967290") < id("7") && id("7") < id("8.0"));
        for bad in ["", "x", "7.", ".1", "7.0.1", "-1"] {
            assert!(bad.parse::<EventId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fence_tells_who_what_that_did_to_its_partitions_and_what_follows_in_this_order() {
        let mut quorum = Quorum::new(3);
        let created =
            news(&mut quorum, &Command::CreateTopic(creation(1, &[1, 2, 3], &[("min.insync.replicas", "2")])));
        assert_eq!(types(&created), ["topic.created"]);
        let EventKind::TopicCreated { name, partitions, .. } = &created[0].kind else { panic!("{created:?}") };
        assert_eq!((name.as_str(), *partitions), ("topic-1", 1));

        let first = fence(&quorum, 1);
        let events = news(&mut quorum, &first);
        assert_eq!(types(&events), ["broker.fenced", "isr.shrink", "leader.elected"]);
        let index = quorum.image.version.0;
        let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
        assert_eq!(ids, [0, 1, 2].map(|number| EventId { index, number }));

        let second = fence(&quorum, 2);
        let events = news(&mut quorum, &second);
        assert_eq!(types(&events), ["broker.fenced", "isr.shrink", "leader.elected", "partition.under_min_isr"]);
        let EventKind::PartitionUnderMinIsr { isr, min_isr, .. } = &events[3].kind else { panic!("{events:?}") };
        assert_eq!((isr.as_slice(), *min_isr), ([BrokerId(3)].as_slice(), 2));

        let third = fence(&quorum, 3);
        let events = news(&mut quorum, &third);
        assert_eq!(types(&events), ["broker.fenced", "isr.shrink", "leader.lost", "partition.offline"]);
        assert!(news(&mut quorum, &third).is_empty(), "what changes nothing is no news");
    }

    #[test]
    fn a_broker_setting_tells_what_it_was_and_what_it_is() {
        let set = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Change::BrokerConfigs(Some(BrokerId(1)), Arc::new(pairs.collect()))
        };
        let mut image = MetadataImage::default();
        image.apply(&set(&[("a", "1"), ("b", "2")]));
        let mut collector = Collector::new(9, Timestamp(7));
        collector.note(&image, &set(&[("b", "3"), ("a", "1"), ("c", "4")]));
        let events = collector.finish();
        assert_eq!(types(&events), ["config.changed"]);
        let EventKind::BrokerConfigChanged { changed, .. } = &events[0].kind else { panic!("{events:?}") };
        let changed: Vec<_> =
            changed.iter().map(|key| (key.name.as_str(), key.before.as_deref(), key.after.as_deref())).collect();
        assert_eq!(changed, [("b", Some("2"), Some("3")), ("c", None, Some("4"))]);
    }

    #[test]
    fn a_return_tells_registration_readmission_and_who_leads_again() {
        let mut quorum = Quorum::new(1);
        quorum.create(1, &[1], &[]).unwrap();
        quorum.fence(&[1]);
        let claim = quorum.same_boot(1);
        let back = RegisterBroker { incarnation: process(1, 2), claim, previous_is_dead: true, ..registration(1) };
        assert_eq!(types(&news(&mut quorum, &Command::RegisterBroker(back))), ["broker.registered"]);
        let (broker, epoch) = (BrokerId(1), quorum.epoch(1));
        let unfence = Command::UnfenceBroker { broker, epoch, lost: vec![], time: Timestamp(2) };
        let events = news(&mut quorum, &unfence);
        assert_eq!(types(&events)[0], "broker.unfenced");
        assert_eq!(types(&events)[events.len() - 2..], ["leader.elected", "partition.online"]);

        let delete = Command::DeleteTopic { id: topic_id(1), time: Timestamp(9) };
        assert_eq!(types(&news(&mut quorum, &delete)), ["topic.deleted"]);
        let shut_down = Command::ShutDownBroker { broker, epoch, time: Timestamp(9) };
        assert_eq!(types(&news(&mut quorum, &shut_down)), ["broker.shutdown"]);
    }
}
