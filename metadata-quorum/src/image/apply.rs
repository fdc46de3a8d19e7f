//! `apply`: the one way an image changes, and what must hold after each entry.

use std::sync::Arc;

use highwater_wire::TopicPartition;

use super::{CHANGES_PER_PARTITION, Change, MetadataImage, Topic};

impl MetadataImage {
    /// Applies one change of a decision, or of the rows that an image is rebuilt from.
    ///
    /// Shared parts are copied on the first write and changed in place from then on: 10,000 changed partitions of one
    /// topic copy its list of partitions once, if nobody else has taken a clone in between. The caller sets `version`.
    ///
    /// # Panics
    /// A change that does not follow from this image: a topic or a partition number it lacks. No decision makes one.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Cluster { cluster_id, feature_level } => {
                if self.cluster_id.as_deref() != Some(cluster_id) {
                    self.cluster_id = Some(cluster_id.as_str().into());
                }
                self.feature_level = *feature_level;
            }
            Change::Broker(registration) => self.brokers.insert_mut(registration.id, Arc::clone(registration)),
            Change::BrokerRemoved(id) => {
                self.brokers.remove_mut(id);
            }
            Change::Topic { id, name, created, config } => {
                let before = self.topics.get(id);
                let partitions = before.map(|topic| topic.partitions.clone()).unwrap_or_default();
                let inherited = before.map(|topic| topic.inherited.clone()).unwrap_or_default();
                let (name_of, config) = (name.clone(), config.clone());
                let topic = Topic { id: *id, name: name_of, created: *created, config, inherited, partitions };
                self.topics.insert_mut(*id, Arc::new(topic));
                self.names.insert_mut(name.clone(), *id);
            }
            Change::TopicRemoved(id) => {
                let Some(topic) = self.topics.get(id).cloned() else { return };
                self.topics.remove_mut(id);
                if self.names.get(&topic.name) == Some(id) {
                    self.names.remove_mut(&topic.name);
                }
                for (number, _) in (0i32..).zip(&topic.partitions) {
                    let at = TopicPartition::new(*id, number);
                    self.history_weight -= self.history_of(at).iter().map(|change| change.weight()).sum::<u64>();
                    self.history.remove_mut(&at);
                }
            }
            Change::Partition(at, state) => {
                let topic = self.topics.get_mut(&at.topic);
                let topic = topic.unwrap_or_else(|| panic!("partition {at} of a topic that does not exist"));
                let partitions = &mut Arc::make_mut(topic).partitions;
                match usize::try_from(at.partition) {
                    Ok(number) if number < partitions.len() => partitions[number] = Arc::clone(state),
                    Ok(number) if number == partitions.len() => partitions.push(Arc::clone(state)),
                    _ => panic!("partition {at} would leave a gap after {}", partitions.len()),
                }
            }
            Change::History(at, change) => {
                self.history_weight += change.weight();
                if let Some(changes) = self.history.get_mut(at) {
                    Arc::make_mut(changes).push(Arc::clone(change));
                } else {
                    self.history.insert_mut(*at, Arc::new(vec![Arc::clone(change)]));
                }
            }
            Change::HistoryTrimmed(at, first_kept) => {
                let Some(changes) = self.history.get_mut(at) else { return };
                let dropped = changes.partition_point(|change| change.sequence < *first_kept);
                self.history_weight -= changes[..dropped].iter().map(|change| change.weight()).sum::<u64>();
                Arc::make_mut(changes).drain(..dropped);
            }
            Change::Staged(id, part) => {
                let mut parts = self.staged.get(id).cloned().unwrap_or_default();
                Arc::make_mut(&mut parts).push(part.as_ref().clone());
                self.staged.insert_mut(*id, parts);
            }
            Change::Unstaged(id) => {
                self.staged.remove_mut(id);
            }
            Change::NextProducerId(next) => self.next_producer_id = *next,
            Change::Controller(registration) => self.controllers.insert_mut(registration.node, registration.clone()),
            Change::ControllerRemoved(node) => {
                self.controllers.remove_mut(node);
            }
            Change::Inherited(id, inherited) => {
                let topic = self.topics.get_mut(id);
                let topic = topic.unwrap_or_else(|| panic!("defaults of topic {id}, which does not exist"));
                Arc::make_mut(topic).inherited = Arc::clone(inherited);
            }
            Change::BrokerConfigs(of, configs) if configs.is_empty() => {
                self.broker_configs.remove_mut(of);
            }
            Change::BrokerConfigs(of, configs) => self.broker_configs.insert_mut(*of, Arc::clone(configs)),
        }
    }

    /// Applies the changes of a decision in order.
    pub fn apply_all(&mut self, changes: &[Change]) {
        for change in changes {
            self.apply(change);
        }
    }

    /// Panics, with the state, where an entry left something that must never be (S2–S4 and the shape of the image).
    pub fn check_invariants(&self) {
        for (id, broker) in &self.brokers {
            assert_eq!(*id, broker.id, "a broker under another's id: {broker:?}");
            assert!(broker.epoch.0 >= 0, "a broker without an epoch: {broker:?}");
        }
        assert_eq!(self.names.size(), self.topics.size(), "names and topics differ");
        let is_active = |id| self.brokers.get(id).is_some_and(|broker| broker.is_active());
        for (at, topic, state) in self.partitions() {
            state.check_invariants();
            assert!(state.isr.iter().all(is_active), "S3, S4: inactive in the ISR of {at}: {state:?}");
            let known = |id| self.brokers.contains_key(id);
            assert!(
                state.elr.iter().chain(&state.last_known_elr).all(known),
                "unregistered in the ELR of {at}: {state:?}"
            );
            let min_isr = state.effective_min_isr(topic.config.min_isr);
            assert!(state.isr.len() < min_isr || state.elr.is_empty(), "S4: full ISR beside an ELR of {at}: {state:?}");
        }
        for topic in self.topics.values() {
            assert_eq!(self.names.get(&topic.name), Some(&topic.id), "name of topic {:?}", topic.name);
            assert!(!topic.partitions.is_empty(), "topic {:?} has no partition", topic.name);
            assert!(!self.staged.contains_key(&topic.id), "topic {:?} is complete and staged", topic.name);
        }
        let mut weight = 0;
        for (at, changes) in &self.history {
            assert!(self.partition(*at).is_some(), "history of {at}, which does not exist");
            assert!(changes.len() <= CHANGES_PER_PARTITION, "{} changes kept of {at}", changes.len());
            let in_order = changes.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence);
            assert!(in_order, "history of {at} has holes: {changes:?}");
            weight += changes.iter().map(|change| change.weight()).sum::<u64>();
        }
        assert_eq!(self.history_weight, weight, "weight of the history");
        assert!(self.next_producer_id >= 0, "producer ids ran over: {}", self.next_producer_id);
    }

    /// Panics where a topic works with another configuration than what is set on it and around it. Takes time for each topic.
    pub fn check_configs(&self) {
        let cluster = self.topic_defaults();
        for topic in self.topics.values() {
            // One whose keys are no longer allowed stays as it is.
            if let Ok(config) = topic.config_of(&topic.config.given, &cluster) {
                assert_eq!(*topic.config, config, "R187: the configuration in force of topic {:?}", topic.name);
            }
        }
    }
}
