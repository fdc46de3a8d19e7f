//! What may be set on brokers while they run: which keys, with which values, for one broker or for all (R187).
//!
//! `decide` checks by this table, so a new key or another range is a new rule version. Which of the keys a process takes
//! over without a restart is its own affair: see [`effect`].

use std::collections::BTreeMap;

use highwater_wire::BrokerId;

use super::topic_config::{ConfigFault, ConfigType};
use super::{Inherited, MetadataImage, Topic, TopicConfig};

mod keys;

pub use keys::Effect;
use keys::{COARSE, NODE, NodeKey, READ_ONLY, TOPIC_DEFAULTS};

/// What a key that may be set on brokers does.
pub fn effect(name: &str) -> Option<Effect> {
    match topic_key(name) {
        Some(_) => Some(Effect::TopicDefault),
        None => NodeKey::named(name).map(|key| key.effect),
    }
}

/// The topic level key whose default a broker level key is.
pub fn topic_key(broker_key: &str) -> Option<&'static str> {
    TOPIC_DEFAULTS.iter().find(|(broker, _)| *broker == broker_key).map(|(_, topic)| *topic)
}

/// The broker level key that is the default of a topic level key, in the same unit.
pub fn broker_key(topic_key: &str) -> Option<&'static str> {
    TOPIC_DEFAULTS.iter().find(|(_, topic)| *topic == topic_key).map(|(broker, _)| *broker)
}

/// Whether a key is fixed for as long as a process runs, and what to do instead of setting it.
pub fn read_only(name: &str) -> Option<&'static str> {
    let fixed = READ_ONLY.contains(&name).then_some("it takes effect at the start of a node: set it in its file");
    COARSE.iter().find(|(coarse, _)| *coarse == name).map(|(_, advice)| *advice).or(fixed)
}

/// Type and range of a key that may be set on brokers.
pub fn described(name: &str) -> Option<(ConfigType, String)> {
    let topic = topic_key(name).and_then(super::topic_config::keys::Key::named).map(|key| &key.rule);
    let rule = topic.or_else(|| NodeKey::named(name).map(|key| &key.rule))?;
    Some((rule.kind(), rule.allowed()))
}

/// What is wrong with setting `name` to `value` on brokers: on one, if `of` says which.
///
/// # Errors
/// A key that is unknown, read-only or meant for all brokers at once; a value out of its range.
pub fn check(of: Option<BrokerId>, name: &str, value: &str) -> Result<(), ConfigFault> {
    let fault = |why: String, allowed: Option<String>| {
        Err(ConfigFault { key: name.to_owned(), value: value.to_owned(), why, allowed })
    };
    if let Some(advice) = read_only(name) {
        return fault(format!("cannot update {name} dynamically: {advice}"), None);
    }
    let topic = topic_key(name).and_then(super::topic_config::keys::Key::named);
    if let (Some(topic), Some(id)) = (topic, of) {
        let why = format!(
            "{name} is the default of the topic key {}: replicas on different brokers must agree, so it cannot be set \
             on broker {id} alone; set it for all brokers (an empty broker id), or {} on the topic",
            topic.name, topic.name
        );
        return fault(why, None);
    }
    let Some(rule) = topic.map(|key| &key.rule).or_else(|| NodeKey::named(name).map(|key| &key.rule)) else {
        return fault(unknown(name), None);
    };
    rule.read(value).map(|_| ()).or_else(|why| fault(why, Some(rule.allowed())))
}

fn unknown(name: &str) -> String {
    let known = NODE.iter().map(|key| key.name).chain(TOPIC_DEFAULTS.iter().map(|(broker, _)| *broker));
    let known = known.chain(READ_ONLY.iter().copied());
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    match near {
        Some((distance, near)) if distance <= name.len() / 3 => {
            format!("unknown broker key {name:?}; did you mean {near:?}?")
        }
        _ => format!("unknown broker key {name:?}; GET /v3/clusters/-/config-schema lists those that are served"),
    }
}

/// Every broker level key of the table that may be set while brokers run.
pub fn dynamic_keys() -> impl Iterator<Item = &'static str> {
    NODE.iter().map(|key| key.name).chain(TOPIC_DEFAULTS.iter().map(|(broker, _)| *broker))
}

impl MetadataImage {
    /// The defaults of topic level keys that were set on all brokers, under their topic level names.
    pub fn topic_defaults(&self) -> BTreeMap<String, String> {
        self.broker_configs(None).map(topic_defaults).unwrap_or_default()
    }

    /// What was set on this broker while it ran, or on all: the nearest. Not what its file says.
    pub fn dynamic_setting(&self, broker: BrokerId, name: &str) -> Option<&str> {
        let of = |of| self.broker_configs(of).and_then(|configs| configs.get(name)).map(String::as_str);
        of(Some(broker)).or_else(|| of(None))
    }
}

/// See [`MetadataImage::topic_defaults`].
pub fn topic_defaults(cluster: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let topic_level = |(name, value): (&String, &String)| Some((topic_key(name)?.to_owned(), value.clone()));
    cluster.iter().filter_map(topic_level).collect()
}

impl Topic {
    /// The configuration in force for what is `given` on the topic, where `cluster` are the defaults set on all brokers
    /// under topic level names: stronger than what the topic inherited at its creation (R187).
    ///
    /// # Errors
    /// As [`TopicConfig::resolve`].
    pub fn config_of(
        &self,
        given: &BTreeMap<String, String>,
        cluster: &BTreeMap<String, String>,
    ) -> Result<TopicConfig, super::topic_config::ConfigFaults> {
        TopicConfig::resolve(given, &defaults_of(&self.inherited, cluster))
    }
}

impl TopicConfig {
    /// As it was stored, with what is not.
    #[must_use]
    pub(crate) fn with_cleanup(
        self,
        inherited: &BTreeMap<String, Inherited>,
        cluster: &BTreeMap<String, String>,
    ) -> Self {
        // One whose keys are no longer allowed stays as it is.
        match Self::resolve(&self.given, &defaults_of(inherited, cluster)) {
            Ok(resolved) => Self { cleanup: resolved.cleanup, ..self },
            Err(_) => self,
        }
    }
}

/// What stands before the built-in values of a topic.
fn defaults_of(
    inherited: &BTreeMap<String, Inherited>,
    cluster: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut defaults: BTreeMap<_, _> =
        inherited.iter().map(|(key, inherited)| (key.clone(), inherited.value.clone())).collect();
    defaults.extend(cluster.iter().map(|(key, value)| (key.clone(), value.clone())));
    defaults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_stands_in_two_classes() {
        let all: Vec<_> =
            dynamic_keys().chain(READ_ONLY.iter().copied()).chain(COARSE.iter().map(|(key, _)| *key)).collect();
        for (number, key) in all.iter().enumerate() {
            assert!(!all[..number].contains(key), "{key} stands twice");
        }
    }

    #[test]
    fn every_topic_default_is_of_a_key_that_is_served() {
        for (broker, topic) in TOPIC_DEFAULTS {
            assert!(TopicConfig::built_in().entries().iter().any(|entry| entry.name == *topic), "{broker}: {topic}");
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_the_reason_and_what_to_do() {
        let why = |of, name, value| check(of, name, value).unwrap_err();
        let one = Some(BrokerId(2));
        assert_eq!(
            why(one, "fetch.max.bytes", "10").allowed.as_deref(),
            Some("a whole number from 1024 to 2147483647")
        );
        assert!(
            why(one, "node.id", "4").why.contains("cannot update node.id dynamically: it takes effect at the start")
        );
        assert!(why(None, "log.retention.hours", "4").why.contains("log.retention.ms"));
        assert!(
            why(one, "log.retention.ms", "4")
                .why
                .contains("set it for all brokers (an empty broker id), or retention.ms")
        );
        assert!(why(None, "log.retension.ms", "4").why.contains("did you mean \"log.retention.ms\"?"));
        assert!(why(None, "log.retention.ms", "-2").why.contains("must be a whole number from -1"));
        assert_eq!(check(None, "log.retention.ms", "-1"), Ok(()));
        assert_eq!(check(one, "max.connections", "100"), Ok(()));
    }
}
