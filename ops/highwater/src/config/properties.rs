//! Where settings come from: a Java properties file, `KAFKA_*` environment variables, `-X key=value`.
//!
//! Keeps for each setting the place it was read from, because every message about it names that place.
//! Knows nothing of which keys exist.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use java_properties::{LineContent, PropertiesIter};

/// Where a setting was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A file, by the name it was given with, and the line, from 1.
    File { name: String, line: usize },
    /// An environment variable.
    Environment(String),
    /// `-X key=value` on the command line.
    Flag,
    /// Set on the running broker, or on all of them.
    Dynamic,
    /// Nobody set it.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::Flag => f.write_str("-X"),
            Self::Dynamic => f.write_str("set while brokers run"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One setting as written, after expansion of `${env:X}` and `${file:/path}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub value: String,
    pub origin: Origin,
}

/// Something that was wrong while reading, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub origin: Origin,
    pub text: String,
    /// Told, but no reason to refuse.
    pub harmless: bool,
}

/// The settings of all sources, the strongest source winning.
#[derive(Debug, Default)]
pub struct Sources {
    pub settings: BTreeMap<String, Setting>,
    pub faults: Vec<Fault>,
}

/// What is read from the world: handed in, so that tests need no real environment.
pub struct Surroundings<'a> {
    /// All environment variables.
    pub environment: &'a BTreeMap<String, String>,
}

/// Environment variables of Kafka's images and start scripts that are no settings.
const NOT_SETTINGS: &[&str] = &[
    "KAFKA_VERSION",
    "KAFKA_OPTS",
    "KAFKA_HEAP_OPTS",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_GC_LOG_OPTS",
    "KAFKA_LOG4J_OPTS",
    "KAFKA_LOG4J_LOGGERS",
    "KAFKA_LOG4J_ROOT_LOGLEVEL",
    "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    "KAFKA_JMX_OPTS",
    "KAFKA_JMX_PORT",
    "KAFKA_JMX_HOSTNAME",
    "KAFKA_DEBUG",
    "KAFKA_CLUSTER_ID",
];

impl Sources {
    /// Adds a properties file: the weakest source, so add it first.
    pub fn add_file(&mut self, name: &str, text: &str) {
        for line in PropertiesIter::new(ascii(text).as_bytes()) {
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    let number = error.line_number().unwrap_or(0);
                    self.fault(file(name, number), format!("not a property: {error}"));
                    continue;
                }
            };
            let number = line.line_number();
            let LineContent::KVPair(key, value) = line.consume_content() else { continue };
            if let Some(before) = self.settings.get(&key) {
                self.faults.push(Fault {
                    origin: file(name, number),
                    text: format!("\"{key}\" is set twice (first at {}): this line wins", before.origin),
                    harmless: true,
                });
            }
            self.settings.insert(key, Setting { value, origin: file(name, number) });
        }
    }

    /// Adds `KAFKA_*` by the rule of Apache's image: `_` is `.`, `__` is `_`, `___` is `-`; `KAFKA_X_FILE` names a file
    /// that holds the value. `CLUSTER_ID` becomes `cluster.id`.
    pub fn add_environment(&mut self, surroundings: &Surroundings<'_>, known: impl Fn(&str) -> bool) {
        for (variable, value) in surroundings.environment {
            let key = if variable == "CLUSTER_ID" {
                "cluster.id".to_owned()
            } else if let Some(rest) = variable.strip_prefix("KAFKA_") {
                if NOT_SETTINGS.contains(&variable.as_str()) {
                    continue;
                }
                key_of_variable(rest)
            } else {
                continue;
            };
            let origin = Origin::Environment(variable.clone());
            if !known(&key)
                && let Some(secret) = key.strip_suffix(".file").filter(|key| known(key))
            {
                match std::fs::read_to_string(value) {
                    Ok(text) => {
                        let value = text.trim_end_matches(['\r', '\n']).to_owned();
                        self.settings.insert(secret.to_owned(), Setting { value, origin });
                    }
                    Err(error) => self.fault(origin, format!("cannot read {value}: {error}")),
                }
                continue;
            }
            self.settings.insert(key, Setting { value: value.clone(), origin });
        }
    }

    /// Adds `-X key=value`: the strongest source, so add it last.
    pub fn add_flags(&mut self, flags: &[String]) {
        for flag in flags {
            match flag.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    let value = value.trim().to_owned();
                    self.settings.insert(key.trim().to_owned(), Setting { value, origin: Origin::Flag });
                }
                _ => self.fault(Origin::Flag, format!("\"{flag}\" is not key=value")),
            }
        }
    }

    /// Replaces `${env:X}` and `${file:/path}` in all values.
    pub fn expand(&mut self, surroundings: &Surroundings<'_>) {
        let mut faults = Vec::new();
        for (key, setting) in &mut self.settings {
            match expand(&setting.value, surroundings) {
                Ok(value) => setting.value = value.trim().to_owned(),
                Err(why) => faults.push(Fault {
                    origin: setting.origin.clone(),
                    text: format!("{key}: {why}"),
                    harmless: false,
                }),
            }
        }
        self.faults.append(&mut faults);
    }

    fn fault(&mut self, origin: Origin, text: String) {
        self.faults.push(Fault { origin, text, harmless: false });
    }
}

/// The name under which messages speak of a file: its last part, as in `server.properties:14`.
pub fn short_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn file(name: &str, line: usize) -> Origin {
    Origin::File { name: name.to_owned(), line }
}

/// Properties files are Latin-1 by definition and UTF-8 in practice: other characters travel as `\uXXXX`.
fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0u16; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// `LOG_RETENTION_MS` is `log.retention.ms`, `A__B` is `a_b`, `A___B` is `a-b`.
fn key_of_variable(rest: &str) -> String {
    let lower = rest.to_lowercase();
    let mut key = String::with_capacity(lower.len());
    let mut chars = lower.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '_' {
            key.push(c);
            continue;
        }
        let mut run = 1;
        while run < 3 && chars.next_if_eq(&'_').is_some() {
            run += 1;
        }
        key.push(match run {
            1 => '.',
            2 => '_',
            _ => '-',
        });
    }
    key
}

fn expand(value: &str, surroundings: &Surroundings<'_>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = value;
    while let Some(start) = rest.find("${") {
        out.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let end = inner.find('}').ok_or_else(|| format!("\"{}\" has no closing brace", &rest[start..]))?;
        let name = &inner[..end];
        if let Some(variable) = name.strip_prefix("env:") {
            let found = surroundings.environment.get(variable);
            out.push_str(found.ok_or_else(|| format!("environment variable {variable} is not set"))?);
        } else if let Some(path) = name.strip_prefix("file:") {
            let path = PathBuf::from(path);
            let text =
                std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            out.push_str(text.trim_end_matches(['\r', '\n']));
        } else {
            return Err(format!("\"${{{name}}}\" is neither ${{env:NAME}} nor ${{file:/path}}"));
        }
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere(environment: &BTreeMap<String, String>) -> Surroundings<'_> {
        Surroundings { environment }
    }

    #[test]
    fn settings_keep_the_line_they_were_read_from() {
        let mut sources = Sources::default();
        sources.add_file(
            "server.properties",
            "# a comment\n\nnode.id=1\nlisteners=A://:1,\\\n   B://:2\nbroker.rack : z\u{fc}rich\n",
        );
        let at = |key: &str| sources.settings[key].clone();
        assert_eq!(at("node.id"), Setting { value: "1".into(), origin: file("server.properties", 3) });
        assert_eq!(at("listeners"), Setting { value: "A://:1,B://:2".into(), origin: file("server.properties", 4) });
        assert_eq!(at("broker.rack"), Setting { value: "zürich".into(), origin: file("server.properties", 6) });
        assert_eq!(sources.faults, []);
    }

    #[test]
    fn a_key_set_twice_is_told_and_the_last_line_wins() {
        let mut sources = Sources::default();
        sources.add_file("f", "a=1\na=2\n");
        assert_eq!(sources.settings["a"].value, "2");
        assert!(sources.faults[0].harmless);
        assert_eq!(sources.faults[0].text, "\"a\" is set twice (first at f:1): this line wins");
    }

    #[test]
    fn flags_beat_the_environment_which_beats_the_file() {
        let environment = BTreeMap::from([
            ("KAFKA_NODE_ID".to_owned(), "2".to_owned()),
            ("KAFKA_BROKER_RACK".to_owned(), "b".to_owned()),
            ("CLUSTER_ID".to_owned(), "abc".to_owned()),
            ("KAFKA_HEAP_OPTS".to_owned(), "-Xmx1g".to_owned()),
        ]);
        let mut sources = Sources::default();
        sources.add_file("f", "node.id=1\nbroker.rack=a\nlog.dirs=/x\n");
        sources.add_environment(&nowhere(&environment), |_| true);
        sources.add_flags(&["node.id=3".to_owned(), "nonsense".to_owned()]);
        assert_eq!(sources.settings["node.id"], Setting { value: "3".into(), origin: Origin::Flag });
        assert_eq!(sources.settings["broker.rack"].value, "b");
        assert_eq!(sources.settings["log.dirs"].value, "/x");
        assert_eq!(sources.settings["cluster.id"].value, "abc");
        assert!(!sources.settings.contains_key("heap.opts"));
        assert_eq!(sources.faults[0].text, "\"nonsense\" is not key=value");
    }

    #[test]
    fn underscores_of_a_variable_become_dots_underscores_and_dashes() {
        assert_eq!(key_of_variable("LOG_RETENTION_MS"), "log.retention.ms");
        assert_eq!(key_of_variable("A__B___C"), "a_b-c");
    }

    #[test]
    fn values_expand_from_the_environment_and_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "hush\n").unwrap();
        let environment = BTreeMap::from([
            ("HOST".to_owned(), "n1".to_owned()),
            ("KAFKA_BROKER_RACK_FILE".to_owned(), secret.display().to_string()),
        ]);
        let mut sources = Sources::default();
        sources.add_file("f", &format!("a=x${{env:HOST}}y\nb=${{file:{}}}\nc=${{env:NONE}}\n", secret.display()));
        sources.add_environment(&nowhere(&environment), |key| key == "broker.rack");
        sources.expand(&nowhere(&environment));
        assert_eq!(sources.settings["a"].value, "xn1y");
        assert_eq!(sources.settings["b"].value, "hush");
        assert_eq!(sources.settings["broker.rack"].value, "hush");
        assert_eq!(sources.faults[0].text, "c: environment variable NONE is not set");
    }
}
