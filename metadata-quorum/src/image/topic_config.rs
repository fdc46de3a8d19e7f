//! Topic level configuration: Kafka's names and our fields (replication.md §24, operators.md §5).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub(super) mod keys;

pub use keys::ConfigType;
use keys::{KEYS, Key};

/// The configuration of a topic in force: every key has a value, set on the topic or a default of the cluster (see
/// [`TopicConfig::resolve`]); `given` says which were set on the topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicConfig {
    /// `min.insync.replicas`
    pub min_isr: usize,
    /// `unclean.leader.election.enable`
    pub unclean_election: bool,
    /// `max.message.bytes`: of one batch, header included
    pub message_bytes_max: u32,
    /// `retention.ms`; `None`: for ever
    pub retention_ms: Option<u64>,
    /// `retention.bytes`; `None`: unbounded
    pub retention_bytes: Option<u64>,
    /// `segment.bytes`
    pub segment_bytes_max: u32,
    /// `segment.ms`
    pub segment_ms: u64,
    /// `segment.jitter.ms`
    pub segment_jitter_ms: u64,
    /// `segment.index.bytes`
    pub index_bytes_max: u32,
    /// `index.interval.bytes`
    pub index_interval_bytes: u32,
    /// `cleanup.policy` contains `compact`
    pub compact: bool,
    /// `compression.type`: only `producer` until re-encoding exists
    pub compression: String,
    /// `message.timestamp.type` = LogAppendTime
    pub log_append_time: bool,
    /// `message.timestamp.before.max.ms`
    pub timestamp_before_max_ms: u64,
    /// `message.timestamp.after.max.ms`
    pub timestamp_after_max_ms: u64,
    /// `flush.messages`; `u64::MAX`: never by count
    pub flush_messages: u64,
    /// `flush.ms`; `u64::MAX`: never by time
    pub flush_ms: u64,
    /// `file.delete.delay.ms`
    pub file_delete_delay_ms: u64,
    /// `preallocate`
    pub preallocate: bool,
    /// Keys set on the topic, as given, sorted.
    pub given: BTreeMap<String, String>,
    /// Not stored, so that a topic is stored as before there was compaction: whoever reads one back resolves it again.
    #[serde(skip)]
    pub cleanup: Cleanup,
}

/// What belongs to `cleanup.policy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleanup {
    /// `cleanup.policy` contains `delete`
    pub delete: bool,
    /// `min.cleanable.dirty.ratio`, in millionths
    pub dirty_ratio_min: u32,
    /// `min.compaction.lag.ms`
    pub lag_min_ms: u64,
    /// `max.compaction.lag.ms`; `u64::MAX`: never overdue
    pub lag_max_ms: u64,
    /// `delete.retention.ms`
    pub delete_retention_ms: u64,
}

impl Default for Cleanup {
    /// As built in; a test compares it with the table of keys.
    fn default() -> Self {
        Self {
            delete: true,
            dirty_ratio_min: 500_000,
            lag_min_ms: 0,
            lag_max_ms: u64::MAX,
            delete_retention_ms: 86_400_000,
        }
    }
}

/// What is wrong with one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFault {
    pub key: String,
    pub value: String,
    /// A whole sentence part: "must be a whole number from 1 to 2147483647".
    pub why: String,
    /// The range or the words that would do; `None` for an unknown key.
    pub allowed: Option<String>,
}

/// Bytes of a key or value that may be set: what a string of every version of Kafka's protocol can carry back.
const TEXT_BYTES_MAX: usize = i16::MAX as usize;

/// What is wrong with texts that could be stored, but not told to every client. Checked before anything is proposed: no
/// rule, so an entry in the log that holds longer ones stays what it is.
///
/// # Errors
/// A fault for each that is too long.
pub(crate) fn check_lengths<'a>(texts: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), ConfigFaults> {
    let begin = |text: &str| text.get(..text.floor_char_boundary(VALUE_SHOWN)).unwrap_or_default().to_owned();
    let too_long = |(key, value): (&str, &str)| {
        let what = if key.len() > TEXT_BYTES_MAX { "the key" } else { "the value" };
        let longest = key.len().max(value.len());
        (longest > TEXT_BYTES_MAX).then(|| ConfigFault {
            key: begin(key),
            value: begin(value),
            why: format!("{what} of {} has {longest} bytes: there may be {TEXT_BYTES_MAX}", begin(key)),
            allowed: None,
        })
    };
    let faults: Vec<_> = texts.filter_map(too_long).collect();
    if faults.is_empty() { Ok(()) } else { Err(ConfigFaults(faults)) }
}

/// Bytes of a bad value that are shown; nobody reads more.
const VALUE_SHOWN: usize = 100;

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, why, .. } = self;
        let (shown, rest) = value.split_at(value.floor_char_boundary(VALUE_SHOWN));
        let value = if rest.is_empty() { shown.to_owned() } else { format!("{shown}…") };
        if self.allowed.is_some() { write!(f, "{key} = {value:?}: {why}") } else { f.write_str(why) }
    }
}

/// All that is wrong with a configuration, at once, by key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct ConfigFaults(pub Vec<ConfigFault>);

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if number == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// One key as a describe request shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    pub name: &'static str,
    /// As given on the topic, else the built-in value.
    pub value: String,
    /// The built-in value.
    pub default: &'static str,
    /// Set on the topic itself (also where it equals the default).
    pub given: bool,
    pub kind: ConfigType,
    /// "a whole number from 1 to 2147483647", "true or false".
    pub allowed: String,
    pub doc: &'static str,
}

impl TopicConfig {
    /// The configuration of a topic on which nothing is set.
    pub fn built_in() -> Self {
        let mut config = Self {
            min_isr: 0,
            unclean_election: false,
            message_bytes_max: 0,
            retention_ms: None,
            retention_bytes: None,
            segment_bytes_max: 0,
            segment_ms: 0,
            segment_jitter_ms: 0,
            index_bytes_max: 0,
            index_interval_bytes: 0,
            compact: false,
            cleanup: Cleanup::default(),
            compression: String::new(),
            log_append_time: false,
            timestamp_before_max_ms: 0,
            timestamp_after_max_ms: 0,
            flush_messages: 0,
            flush_ms: 0,
            file_delete_delay_ms: 0,
            preallocate: false,
            given: BTreeMap::new(),
        };
        for key in KEYS {
            let value = key.rule.read(key.default).expect("a test reads every default by its own rule");
            (key.put)(&mut config, &value);
        }
        config
    }

    /// The configuration of a topic on which `given` is set, beside no other defaults than the built-in ones.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn parse(given: &BTreeMap<String, String>) -> Result<Self, ConfigFaults> {
        Self::resolve(given, &BTreeMap::new())
    }

    /// The configuration of a topic on which `given` is set, where `defaults` stand before the built-in ones (R187). A
    /// default that its key does not allow is passed over: it was checked where it was set.
    ///
    /// # Errors
    /// Every fault of every key given, sorted by key: unknown (with the likeliest name meant), out of range, not served
    /// here.
    pub fn resolve(
        given: &BTreeMap<String, String>,
        defaults: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigFaults> {
        let mut config = Self::built_in();
        for (name, text) in defaults {
            if let Some(key) = Key::named(name)
                && let Ok(value) = key.rule.read(text)
            {
                (key.put)(&mut config, &value);
            }
        }
        let mut faults = Vec::new();
        for (name, text) in given {
            match Key::named(name) {
                None => faults.push(unknown(name, text)),
                Some(key) => match key.rule.read(text) {
                    Ok(value) => (key.put)(&mut config, &value),
                    Err(why) => {
                        let allowed = Some(key.rule.allowed());
                        faults.push(ConfigFault { key: name.clone(), value: text.clone(), why, allowed });
                    }
                },
            }
        }
        config.given = given.clone();
        if faults.is_empty() { Ok(config) } else { Err(ConfigFaults(faults)) }
    }

    /// Every key by name, as set on the topic or built in: without the defaults of a cluster.
    pub fn entries(&self) -> Vec<ConfigEntry> {
        let mut entries: Vec<_> = KEYS
            .iter()
            .map(|key| ConfigEntry {
                name: key.name,
                value: self.given.get(key.name).map_or(key.default, String::as_str).to_owned(),
                default: key.default,
                given: self.given.contains_key(key.name),
                kind: key.rule.kind(),
                allowed: key.rule.allowed(),
                doc: key.doc,
            })
            .collect();
        entries.sort_by_key(|entry| entry.name);
        entries
    }
}

/// The fault of a topic level key that is not served; `None`: it is.
pub fn unknown_key(name: &str) -> Option<ConfigFault> {
    Key::named(name).is_none().then(|| unknown(name, ""))
}

/// The fault of a key we do not serve: known to Kafka, or misspelt, or neither.
fn unknown(name: &str, value: &str) -> ConfigFault {
    let why = if keys::NOT_SERVED.contains(&name) {
        format!("{name} is a topic key of Kafka that is not served here; leave it out")
    } else {
        let near = KEYS.iter().map(|key| (strsim::damerau_levenshtein(name, key.name), key.name)).min();
        match near {
            Some((distance, near)) if distance <= name.len() / 3 => {
                format!("unknown topic key {name:?}; did you mean {near:?}?")
            }
            _ => {
                let all: Vec<_> = KEYS.iter().map(|key| key.name).collect();
                format!("unknown topic key {name:?}; there are {}", all.join(", "))
            }
        }
    };
    ConfigFault { key: name.to_owned(), value: value.to_owned(), why, allowed: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> Result<TopicConfig, ConfigFaults> {
        TopicConfig::parse(&given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn every_default_is_allowed_by_its_own_rule() {
        for key in KEYS {
            assert!(key.rule.read(key.default).is_ok(), "{}", key.name);
            assert!(parse(&[(key.name, key.default)]).is_ok(), "{}", key.name);
        }
        let config = TopicConfig::built_in();
        assert_eq!((config.min_isr, config.message_bytes_max, config.retention_ms), (1, 1_048_588, Some(604_800_000)));
        assert_eq!((config.retention_bytes, config.segment_bytes_max), (None, 1 << 30));
        assert_eq!((config.flush_messages, config.flush_ms), (u64::MAX, u64::MAX));
        assert_eq!((config.timestamp_before_max_ms, config.timestamp_after_max_ms), (u64::MAX, 3_600_000));
        assert_eq!(config.compression, "producer");
        assert_eq!((config.compact, config.cleanup), (false, Cleanup::default()));
        let both = parse(&[("cleanup.policy", "compact, delete"), ("min.cleanable.dirty.ratio", "0.01")]).unwrap();
        assert_eq!((both.cleanup.delete, both.compact, both.cleanup.dirty_ratio_min), (true, true, 10_000));
    }

    #[test]
    fn given_values_are_in_force_and_shown_as_given() {
        let given = [("min.insync.replicas", "2"), ("retention.ms", "-1"), ("unclean.leader.election.enable", "TRUE")];
        let config = parse(&given).unwrap();
        assert_eq!((config.min_isr, config.retention_ms, config.unclean_election), (2, None, true));
        let entries = config.entries();
        let shown = |name| entries.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!((shown("retention.ms").value.as_str(), shown("retention.ms").given), ("-1", true));
        assert_eq!((shown("segment.ms").value.as_str(), shown("segment.ms").given), ("604800000", false));
        assert!(entries.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn all_faults_are_told_at_once_with_the_range_that_is_allowed() {
        let given = [
            ("min.insync.replica", "2"),
            ("min.insync.replicas", "0"),
            ("segment.bytes", "many"),
            ("cleanup.policy", "compress"),
            ("compression.type", "zstd"),
            ("remote.storage.enable", "true"),
            ("preallocate", "yes"),
        ];
        let told = parse(&given).unwrap_err();
        assert_eq!(told.0.len(), given.len());
        let told = told.to_string();
        for part in [
            "did you mean \"min.insync.replicas\"?",
            "min.insync.replicas = \"0\": must be a whole number from 1 to 2147483647",
            "segment.bytes = \"many\": must be a whole number",
            "cleanup.policy = \"compress\": must be delete or compact, or several of them separated by commas",
            "compression.type = \"zstd\": is not served yet",
            "remote.storage.enable is a topic key of Kafka that is not served here",
            "preallocate = \"yes\": must be true or false",
        ] {
            assert!(told.contains(part), "{part} is missing in {told}");
        }
    }
}
