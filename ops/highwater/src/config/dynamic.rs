//! What is set on brokers while they run, laid over a node's own configuration; and that configuration as people may ask
//! for it.

use std::collections::BTreeMap;

use highwater_quorum::image::broker_config::{Effect, described, dynamic_keys, effect};
use highwater_quorum::{MetadataImage, NodeSetting, NodeSettings, SettingOrigin};
use highwater_wire::BrokerId;

use super::keys::GROUPS;
use super::values::Values;
use super::{Finding, NodeConfig, Origin, Setting, Severity, checks};

/// What the cluster has set on this node and concerns its process: on it, else on all brokers.
pub fn set_on(image: &MetadataImage, node: BrokerId) -> BTreeMap<String, String> {
    let of_process = dynamic_keys().filter(|name| effect(name) != Some(Effect::TopicDefault));
    of_process.filter_map(|name| Some((name.to_owned(), image.dynamic_setting(node, name)?.to_owned()))).collect()
}

impl NodeConfig {
    /// This configuration under what is `set` while it runs, which is stronger than file, environment and flags. What
    /// does not go together with the rest is left out, and told.
    pub fn under(&self, set: &BTreeMap<String, String>) -> (Self, Vec<Finding>) {
        if let Ok(config) = self.checked(set) {
            return (config, Vec::new());
        }
        // Some key does not fit: find out which, each after those that do.
        let (mut fitting, mut config, mut told) = (BTreeMap::new(), self.clone(), Vec::new());
        for (key, value) in set {
            fitting.insert(key.clone(), value.clone());
            match self.checked(&fitting) {
                Ok(fits) => config = fits,
                Err(findings) => {
                    fitting.remove(key);
                    told.extend(findings);
                }
            }
        }
        (config, told)
    }

    fn checked(&self, set: &BTreeMap<String, String>) -> Result<Self, Vec<Finding>> {
        let mut settings = self.own.clone();
        let dynamic = |value: &String| Setting { value: value.clone(), origin: Origin::Dynamic };
        settings.extend(set.iter().map(|(key, value)| (key.clone(), dynamic(value))));
        let mut values = Values::new(settings, Vec::new());
        let config = checks::node(&mut values);
        let errors = values.into_findings().into_iter().filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<_> = errors.collect();
        match config {
            Some(config) if errors.is_empty() => Ok(Self { own: self.own.clone(), ..config }),
            _ => Err(errors),
        }
    }

    /// The configuration as people may ask for it.
    pub fn node_settings(&self) -> NodeSettings {
        let keys = GROUPS.iter().flat_map(|group| group.keys);
        NodeSettings::new(keys.map(|key| {
            let own = self.own.get(key.name).filter(|setting| !setting.value.is_empty());
            let default = (!key.default.is_empty()).then_some(key.default);
            let (kind, allowed) = described(key.name).unwrap_or((key.kind.config_type(), key.kind.allowed()));
            NodeSetting {
                name: key.name,
                value: own.map(|setting| setting.value.clone()).or(default.map(str::to_owned)),
                default,
                origin: own.map_or(SettingOrigin::Default, |setting| origin(&setting.origin)),
                kind,
                allowed,
                doc: key.about,
            }
        }))
    }
}

fn origin(origin: &Origin) -> SettingOrigin {
    match origin {
        Origin::File { name, line } => SettingOrigin::File { name: name.clone(), line: *line },
        Origin::Environment(variable) => SettingOrigin::Environment { variable: variable.clone() },
        Origin::Flag => SettingOrigin::Flag,
        Origin::Dynamic | Origin::Default => SettingOrigin::Default,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Surroundings, read};
    use super::*;

    const FILE: &str = "node.id=1\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n\
        advertised.listeners=PLAINTEXT://127.0.0.1:9092\nmax.connections=50\nreplica.lag.time.max.ms=5000\n";

    fn config() -> NodeConfig {
        let environment = BTreeMap::from([("KAFKA_FETCH_MAX_BYTES".to_owned(), "2048".to_owned())]);
        let report =
            read(Some((Path::new("server.properties"), FILE)), &[], &Surroundings { environment: &environment });
        report.config.unwrap_or_else(|| panic!("{:?}", report.findings))
    }

    fn set(keys: &[(&str, &str)]) -> BTreeMap<String, String> {
        keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_set_while_it_runs_is_stronger_than_file_and_environment() {
        let own = config();
        let (under, told) = own.under(&set(&[("max.connections", "7"), ("fetch.max.bytes", "4096")]));
        assert_eq!((under.data.connections_max, under.data.fetch_bytes_max), (7, 4096));
        assert_eq!((told, &under.own), (Vec::new(), &own.own));
        assert_eq!(under.under(&BTreeMap::new()).0, own, "what is taken back leaves nothing behind");
    }

    #[test]
    fn a_value_that_does_not_go_with_this_nodes_file_is_left_out_and_told() {
        let own = config();
        let (under, told) = own.under(&set(&[("max.connections", "7"), ("replica.fetch.wait.max.ms", "6000")]));
        assert_eq!((under.data.connections_max, under.data.fetch_wait_max.as_millis()), (7, 500));
        assert!(told[0].to_string().contains("replica.fetch.wait.max.ms (6000) must be < replica.lag.time.max.ms"));
    }

    #[test]
    fn every_key_is_told_with_where_it_was_set() {
        let settings = config().node_settings();
        let origin = |name| &settings.key(name).unwrap().origin;
        assert_eq!(*origin("max.connections"), SettingOrigin::File { name: "server.properties".to_owned(), line: 4 });
        let variable = "KAFKA_FETCH_MAX_BYTES".to_owned();
        assert_eq!(*origin("fetch.max.bytes"), SettingOrigin::Environment { variable });
        let segment = settings.key("log.segment.bytes").unwrap();
        assert_eq!((segment.value.as_deref(), &segment.origin), (Some("1073741824"), &SettingOrigin::Default));
        assert_eq!(settings.key("broker.rack").unwrap().value, None);
    }
}
