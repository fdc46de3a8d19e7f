//! What is in force, and where it comes from: the settings of topics and brokers with their sources, as Kafka's
//! DescribeConfigs and the admin API tell them.
//!
//! Pure. What a node's own configuration says is handed in as [`NodeSettings`]; the rest is in the image.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use highwater_wire::BrokerId;
use serde::{Deserialize, Serialize};

use crate::image::broker_config::{self, Effect};
use crate::image::topic_config::ConfigType;
use crate::image::{MetadataImage, Topic, TopicConfig};

/// Where a value comes from; strongest first (R187). Kafka's numbers and names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConfigSource {
    Topic = 1,
    Broker = 2,
    AllBrokers = 3,
    Static = 4,
    Default = 5,
}

impl ConfigSource {
    /// As DescribeConfigs v1+ carries it.
    pub const fn code(self) -> i8 {
        self as i8
    }

    /// As people read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Topic => "DYNAMIC_TOPIC_CONFIG",
            Self::Broker => "DYNAMIC_BROKER_CONFIG",
            Self::AllBrokers => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            Self::Static => "STATIC_BROKER_CONFIG",
            Self::Default => "DEFAULT_CONFIG",
        }
    }
}

/// One value that is in force, or would be if the ones before it were not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synonym {
    /// A topic's key is another one on brokers: `retention.ms`, `log.retention.ms`.
    pub name: String,
    pub value: Option<String>,
    pub source: ConfigSource,
}

/// One key of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub name: String,
    /// What is in force, then what would be without it, and so on. Never empty.
    pub synonyms: Vec<Synonym>,
    /// It cannot be changed while the cluster runs.
    pub read_only: bool,
    pub kind: ConfigType,
    /// To be read after "must be".
    pub allowed: String,
    pub doc: String,
    /// A process knows another value of it until its next start.
    pub pending_restart: bool,
}

impl Setting {
    /// The strongest value; `None`: there is none, not even a default.
    pub fn value(&self) -> Option<&str> {
        self.synonyms.first().and_then(|synonym| synonym.value.as_deref())
    }

    /// Where the strongest value comes from.
    pub fn source(&self) -> ConfigSource {
        self.synonyms.first().map_or(ConfigSource::Default, |synonym| synonym.source)
    }
}

/// One key of a broker, with what the process itself works with. What nodes tell each other of themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    pub setting: Setting,
    /// Until its next start another one than the strongest, where that one needs a restart.
    pub in_force: Option<String>,
    /// Where its own configuration has its value from.
    pub origin: SettingOrigin,
    /// What its own configuration says, or the default.
    pub own: Option<String>,
}

/// Where a node's own configuration has a value from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettingOrigin {
    /// Nobody set it.
    Default,
    File {
        name: String,
        line: usize,
    },
    Environment {
        variable: String,
    },
    Flag,
}

/// One key of a node's own configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSetting {
    pub name: &'static str,
    /// `None`: not set, and the default is computed.
    pub value: Option<String>,
    pub default: Option<&'static str>,
    pub origin: SettingOrigin,
    pub kind: ConfigType,
    pub allowed: String,
    pub doc: &'static str,
}

/// A node's own configuration, as far as people may ask for it. The same for the life of the process.
#[derive(Debug, Default)]
pub struct NodeSettings {
    keys: BTreeMap<&'static str, NodeSetting>,
    /// What keys that need a restart were when this process took them over.
    started_with: OnceLock<BTreeMap<&'static str, Option<String>>>,
}

impl NodeSettings {
    pub fn new(keys: impl IntoIterator<Item = NodeSetting>) -> Self {
        Self { keys: keys.into_iter().map(|key| (key.name, key)).collect(), started_with: OnceLock::new() }
    }

    /// The keys of this node's own configuration, by name.
    pub fn keys(&self) -> impl Iterator<Item = &NodeSetting> {
        self.keys.values()
    }

    /// One of them.
    pub fn key(&self, name: &str) -> Option<&NodeSetting> {
        self.keys.get(name)
    }

    /// This process goes to work with what the image says now. Only the first call counts.
    pub fn started(&self, image: &MetadataImage, node: BrokerId) {
        let at_restart = self.keys.keys().filter(|name| broker_config::effect(name) == Some(Effect::AtRestart));
        let values = at_restart.map(|name| (*name, self.value(image, node, name).map(str::to_owned)));
        let _ = self.started_with.set(values.collect());
    }

    /// The strongest value of a key on this node: set while it runs, else its own.
    pub fn value<'a>(&'a self, image: &'a MetadataImage, node: BrokerId, name: &str) -> Option<&'a str> {
        let own = || self.keys.get(name).and_then(|key| key.value.as_deref());
        image.dynamic_setting(node, name).or_else(own)
    }

    /// Of a key that is true or false; `None` when this node does not know it.
    pub fn flag(&self, image: &MetadataImage, node: BrokerId, name: &str) -> Option<bool> {
        self.value(image, node, name).map(|text| text.trim().eq_ignore_ascii_case("true"))
    }

    /// What this process works with, where that is not the strongest value: until its next start.
    pub fn in_force<'a>(&'a self, image: &'a MetadataImage, node: BrokerId, name: &str) -> Option<&'a str> {
        let started = self.started_with.get().and_then(|started| started.get(name));
        started.map_or_else(|| self.value(image, node, name), |value| value.as_deref())
    }

    /// Whether this process works with another value than the strongest one.
    pub fn pending_restart(&self, image: &MetadataImage, node: BrokerId, name: &str) -> bool {
        self.in_force(image, node, name) != self.value(image, node, name)
    }

    /// The keys that wait for a restart of this process.
    pub fn all_pending(&self, image: &MetadataImage, node: BrokerId) -> Vec<&'static str> {
        self.keys.keys().copied().filter(|name| self.pending_restart(image, node, name)).collect()
    }
}

/// Every key of a topic, by name.
pub fn of_topic(image: &MetadataImage, topic: &Topic) -> Vec<Setting> {
    let cluster = image.topic_defaults();
    let entries = TopicConfig::built_in().entries().into_iter();
    let setting = |entry: crate::image::topic_config::ConfigEntry| {
        let on_brokers = broker_config::broker_key(entry.name).unwrap_or(entry.name);
        let mut synonyms = Vec::new();
        let mut add = |name: &str, value: &str, source| {
            synonyms.push(Synonym { name: name.to_owned(), value: Some(value.to_owned()), source });
        };
        if let Some(value) = topic.config.given.get(entry.name) {
            add(entry.name, value, ConfigSource::Topic);
        }
        if let Some(value) = cluster.get(entry.name) {
            add(on_brokers, value, ConfigSource::AllBrokers);
        }
        let inherited = topic.inherited.get(entry.name);
        if let Some(inherited) = inherited.filter(|inherited| inherited.set) {
            add(on_brokers, &inherited.value, ConfigSource::Static);
        }
        let derived = inherited.filter(|inherited| !inherited.set).map(|inherited| inherited.value.as_str());
        add(on_brokers, derived.unwrap_or(entry.default), ConfigSource::Default);
        Setting {
            name: entry.name.to_owned(),
            synonyms,
            read_only: false,
            kind: entry.kind,
            allowed: entry.allowed,
            doc: entry.doc.to_owned(),
            pending_restart: false,
        }
    };
    entries.map(setting).collect()
}

/// Every key of a broker, as the broker itself knows them, by name.
pub fn of_broker(image: &MetadataImage, node: BrokerId, settings: &NodeSettings) -> Vec<Setting> {
    let setting = |key: &NodeSetting| {
        let mut synonyms = dynamic(image, Some(node), key.name);
        let mut add = |value: Option<String>, source| {
            synonyms.push(Synonym { name: key.name.to_owned(), value, source });
        };
        if key.origin != SettingOrigin::Default {
            add(key.value.clone(), ConfigSource::Static);
        }
        add(key.default.map(str::to_owned), ConfigSource::Default);
        Setting {
            name: key.name.to_owned(),
            synonyms,
            read_only: broker_config::effect(key.name).is_none(),
            kind: key.kind,
            allowed: key.allowed.clone(),
            doc: key.doc.to_owned(),
            pending_restart: settings.pending_restart(image, node, key.name),
        }
    };
    settings.keys().map(setting).collect()
}

/// Every key of a broker with what its process works with, by name.
pub fn effective(image: &MetadataImage, node: BrokerId, settings: &NodeSettings) -> Vec<Effective> {
    let told = of_broker(image, node, settings).into_iter().zip(settings.keys());
    told.map(|(setting, key)| Effective {
        in_force: settings.in_force(image, node, key.name).map(str::to_owned),
        origin: key.origin.clone(),
        own: key.value.clone(),
        setting,
    })
    .collect()
}

/// What is set on all brokers, by name; `settings`: any node's, for the words about each key.
pub fn of_all_brokers(image: &MetadataImage, settings: &NodeSettings) -> Vec<Setting> {
    let set = image.broker_configs(None).into_iter().flatten();
    set.map(|(name, _)| {
        let (kind, allowed) = broker_config::described(name).unwrap_or((ConfigType::String, String::new()));
        let doc = settings.key(name).map_or("", |key| key.doc).to_owned();
        let synonyms = dynamic(image, None, name);
        Setting { name: name.clone(), synonyms, read_only: false, kind, allowed, doc, pending_restart: false }
    })
    .collect()
}

/// What is set of a key while brokers run.
fn dynamic(image: &MetadataImage, node: Option<BrokerId>, name: &str) -> Vec<Synonym> {
    let places = [node.map(|node| (Some(node), ConfigSource::Broker)), Some((None, ConfigSource::AllBrokers))];
    let value = |of| image.broker_configs(of).and_then(|configs| configs.get(name)).cloned();
    let found = places.into_iter().flatten().filter_map(|(of, source)| Some((value(of)?, source)));
    found.map(|(value, source)| Synonym { name: name.to_owned(), value: Some(value), source }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::controller::testing::{cluster_of, creation};
    use crate::controller::{Command, RULE_VERSION, decide};
    use crate::image::{Change, Inherited};

    const ONE: BrokerId = BrokerId(1);

    fn set(image: &mut MetadataImage, of: Option<BrokerId>, configs: &[(&str, &str)]) {
        let configs = configs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        image.apply(&Change::BrokerConfigs(of, Arc::new(configs)));
    }

    fn number(name: &'static str, value: Option<&str>, default: Option<&'static str>) -> NodeSetting {
        let origin = match value {
            Some(_) => SettingOrigin::File { name: "server.properties".to_owned(), line: 7 },
            None => SettingOrigin::Default,
        };
        let (kind, allowed) = (ConfigType::Int, "a number".to_owned());
        NodeSetting { name, value: value.or(default).map(str::to_owned), default, origin, kind, allowed, doc: "" }
    }

    fn told(settings: &[Setting], name: &str) -> Vec<(String, Option<String>, i8)> {
        let setting = settings.iter().find(|setting| setting.name == name).unwrap();
        setting.synonyms.iter().map(|s| (s.name.clone(), s.value.clone(), s.source.code())).collect()
    }

    fn line(name: &str, value: &str, source: i8) -> (String, Option<String>, i8) {
        (name.to_owned(), Some(value.to_owned()), source)
    }

    #[test]
    fn a_topics_value_is_told_with_everything_that_stands_behind_it() {
        let mut image = cluster_of(&[1]);
        set(&mut image, None, &[("log.retention.ms", "3000")]);
        let inherited = |value: &str, set| Inherited { value: value.to_owned(), set };
        let command = Command::CreateTopicInheriting {
            part: creation(1, &[1], &[("retention.ms", "1000")]),
            inherited: BTreeMap::from([
                ("retention.ms".to_owned(), inherited("4000", true)),
                ("min.insync.replicas".to_owned(), inherited("2", false)),
            ]),
        };
        let decision = decide(&image, 2, RULE_VERSION, &command).unwrap();
        image.apply_all(&decision.changes);
        let settings = of_topic(&image, image.topic_named("topic-1").unwrap());
        let all = [
            line("retention.ms", "1000", 1),
            line("log.retention.ms", "3000", 3),
            line("log.retention.ms", "4000", 4),
            line("log.retention.ms", "604800000", 5),
        ];
        assert_eq!(told(&settings, "retention.ms"), all);
        assert_eq!(told(&settings, "min.insync.replicas"), [line("min.insync.replicas", "2", 5)]);
        assert_eq!(told(&settings, "delete.retention.ms"), [line("delete.retention.ms", "86400000", 5)]);
        assert!(settings.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn a_brokers_value_is_the_nearest_and_what_needs_a_restart_waits_for_it() {
        let mut image = cluster_of(&[1]);
        let settings = NodeSettings::new([
            number("max.connections", Some("50"), Some("100")),
            number("num.replica.fetchers", None, Some("1")),
            number("node.id", Some("1"), None),
        ]);
        settings.started(&image, ONE);
        set(&mut image, None, &[("max.connections", "10"), ("num.replica.fetchers", "4")]);
        set(&mut image, Some(ONE), &[("max.connections", "20")]);
        let now = of_broker(&image, ONE, &settings);
        let all = [
            line("max.connections", "20", 2),
            line("max.connections", "10", 3),
            line("max.connections", "50", 4),
            line("max.connections", "100", 5),
        ];
        assert_eq!(told(&now, "max.connections"), all);
        let find = |name: &str| now.iter().find(|setting| setting.name == name).unwrap();
        assert!(find("node.id").read_only && !find("max.connections").read_only);
        assert!(find("num.replica.fetchers").pending_restart && !find("max.connections").pending_restart);
        assert_eq!(settings.in_force(&image, ONE, "num.replica.fetchers"), Some("1"));
        assert_eq!(settings.all_pending(&image, ONE), ["num.replica.fetchers"]);
        assert_eq!(told(&of_all_brokers(&image, &settings), "max.connections"), [line("max.connections", "10", 3)]);
        set(&mut image, None, &[("num.replica.fetchers", "1")]);
        assert!(settings.all_pending(&image, ONE).is_empty(), "the value it runs with needs no restart");
    }
}
