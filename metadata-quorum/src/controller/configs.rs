//! Configurations changed while the cluster runs (R187): of one topic, of one broker, of all brokers.
//!
//! All keys of one command take effect in one entry, or none. What follows for partitions is in the same entry: ELR
//! (R196), leaders of partitions that have none (R193, D35).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_wire::{BrokerId, TopicId, TopicPartition};

use super::draft::Draft;
use super::election::{Live, Policy};
use super::transition::Transition;
use crate::controller::{AlterConfigs, Answer, ConfigAction, ConfigOperation, ConfigResource, Refusal};
use crate::flaws::{Flaw, planted};
use crate::image::topic_config::{ConfigFault, ConfigFaults, ConfigType, unknown_key};
use crate::image::{Change, Topic, TopicConfig, broker_config};

type Configs = BTreeMap<String, String>;

/// A repetition changes nothing.
pub(super) fn alter(draft: &mut Draft, request: &AlterConfigs) -> Result<Answer, Refusal> {
    if draft.rules < 3 {
        return Err(Refusal::UnsupportedFeature { level: draft.image.feature_level });
    }
    check_shape(request)?;
    match request.resource {
        ConfigResource::Topic(id) => alter_topic(draft, id, request)?,
        ConfigResource::Brokers => alter_brokers(draft, None, request)?,
        ConfigResource::Broker(id) => alter_brokers(draft, Some(id), request)?,
    }
    Ok(Answer::Done)
}

fn check_shape(request: &AlterConfigs) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = request.operations.iter().find(|operation| !seen.insert(operation.key.as_str())) {
        return Err(Refusal::InvalidRequest(format!("{:?} is named twice for one resource", twice.key)));
    }
    let is_set = |operation: &&ConfigOperation| !matches!(operation.action, ConfigAction::Set(_));
    if let Some(other) = request.operations.iter().find(is_set).filter(|_| request.replace) {
        let why = format!("{:?}: a replacement of all keys names what is set, nothing else", other.key);
        return Err(Refusal::InvalidRequest(why));
    }
    Ok(())
}

/// The keys set on a resource after the operations. `list`: the value in force of a key whose type is a list.
///
/// # Errors
/// Operations that a key does not know; everything else is checked by the caller.
fn operated(
    request: &AlterConfigs,
    before: &Configs,
    list: impl Fn(&str) -> Option<String>,
) -> Result<Configs, Vec<ConfigFault>> {
    let mut after = if request.replace { Configs::new() } else { before.clone() };
    let mut faults = Vec::new();
    for ConfigOperation { key, action } in &request.operations {
        let (parts, adds) = match action {
            ConfigAction::Set(value) => {
                after.insert(key.clone(), value.clone());
                continue;
            }
            ConfigAction::Delete => {
                after.remove(key);
                continue;
            }
            ConfigAction::Append(parts) => (parts, true),
            ConfigAction::Subtract(parts) => (parts, false),
        };
        let Some(in_force) = list(key) else {
            let verb = if adds { "append to" } else { "subtract from" };
            let why = format!("cannot {verb} {key}: its type is not a list");
            faults.push(ConfigFault { key: key.clone(), value: parts.clone(), why, allowed: None });
            continue;
        };
        let split = |text: &str| -> Vec<String> {
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let mut now = split(after.get(key).unwrap_or(&in_force));
        for part in split(parts) {
            now.retain(|present| *present != part);
            if adds {
                now.push(part);
            }
        }
        after.insert(key.clone(), now.join(","));
    }
    if faults.is_empty() { Ok(after) } else { Err(faults) }
}

/// The configuration must be what the caller believes it to be, if it says so.
fn check_expected(request: &AlterConfigs, before: &Configs, what: impl Fn() -> String) -> Result<(), Refusal> {
    match &request.expected {
        Some(expected) if expected != before => Err(Refusal::ConfigsChanged(what())),
        _ => Ok(()),
    }
}

/// Before rules 5 nothing was compacted, and no key of brokers was about that.
pub(super) fn check_policy<'a>(
    rules: u16,
    mut set: impl Iterator<Item = (&'a String, &'a String)>,
) -> Vec<ConfigFault> {
    let policy = |(key, value): &(&String, &String)| match key.as_str() {
        "cleanup.policy" | "log.cleanup.policy" => value.trim() != "delete",
        key => key.starts_with("log.cleaner."),
    };
    let fault = |(key, value): (&String, &String)| ConfigFault {
        key: key.clone(),
        value: value.clone(),
        why: "is not served by rules before 5".to_owned(),
        allowed: None,
    };
    if rules < 5 { set.find(policy).map(fault).into_iter().collect() } else { Vec::new() }
}

/// Deleting a key that is neither set nor known would be a typo that looks like success.
fn check_deleted(
    request: &AlterConfigs,
    before: &Configs,
    unknown: impl Fn(&str) -> Option<ConfigFault>,
) -> Vec<ConfigFault> {
    let deleted = request.operations.iter().filter(|operation| operation.action == ConfigAction::Delete);
    deleted
        .filter(|operation| !before.contains_key(&operation.key))
        .filter_map(|operation| unknown(&operation.key))
        .collect()
}

fn alter_topic(draft: &mut Draft, id: TopicId, request: &AlterConfigs) -> Result<(), Refusal> {
    let image = draft.image;
    let topic = image.topics.get(&id).ok_or(Refusal::UnknownTopicId(id))?;
    let before = &topic.config.given;
    check_expected(request, before, || format!("topic {:?}", topic.name))?;
    let cluster = image.topic_defaults();
    let entries = TopicConfig::built_in().entries();
    let list = |key: &str| {
        let entry = entries.iter().find(|entry| entry.name == key && entry.kind == ConfigType::List)?;
        let inherited = topic.inherited.get(key).map(|inherited| &inherited.value);
        let in_force = before.get(key).or_else(|| cluster.get(key)).or(inherited);
        Some(in_force.map_or(entry.default, String::as_str).to_owned())
    };
    let refused = |faults| Refusal::InvalidTopicConfigs(ConfigFaults(faults));
    let given = operated(request, before, list).map_err(refused)?;
    let mut faults = check_deleted(request, before, unknown_key);
    faults.extend(check_policy(draft.rules, given.iter()));
    match topic.config_of(&given, &cluster) {
        Ok(config) if faults.is_empty() => reconfigure(draft, topic, config, &Live::of(image)),
        Ok(_) => return Err(refused(faults)),
        Err(more) => {
            faults.extend(more.0);
            return Err(refused(faults));
        }
    }
    Ok(())
}

fn alter_brokers(draft: &mut Draft, of: Option<BrokerId>, request: &AlterConfigs) -> Result<(), Refusal> {
    let image = draft.image;
    let nothing = Configs::new();
    let before = image.broker_configs(of).unwrap_or(&nothing);
    if let Some(id) = of.filter(|id| image.broker(*id).is_none() && before.is_empty()) {
        return Err(Refusal::UnknownBroker(id));
    }
    check_expected(request, before, || of.map_or("all brokers".to_owned(), |id| format!("broker {id}")))?;
    let list = |key: &str| {
        let (kind, _) = broker_config::described(key)?;
        let built_in = || {
            TopicConfig::built_in()
                .entries()
                .into_iter()
                .find(|entry| Some(entry.name) == broker_config::topic_key(key))
        };
        (kind == ConfigType::List)
            .then(|| before.get(key).cloned().or_else(|| Some(built_in()?.default.to_owned())).unwrap_or_default())
    };
    let refused = |faults| Refusal::InvalidBrokerConfigs(ConfigFaults(faults));
    let after = operated(request, before, list).map_err(refused)?;
    let mut faults = check_deleted(request, before, |key| {
        broker_config::check(of, key, "").err().filter(|_| broker_config::described(key).is_none())
    });
    faults.extend(check_policy(draft.rules, after.iter()));
    let touched = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
    faults.extend(touched.filter_map(|(key, value)| broker_config::check(of, key, value).err()));
    if !faults.is_empty() {
        return Err(refused(faults));
    }
    if after == *before {
        return Ok(());
    }
    let (old, new) = (broker_config::topic_defaults(before), broker_config::topic_defaults(&after));
    draft.push(Change::BrokerConfigs(of, Arc::new(after)));
    if of.is_some() || old == new {
        return Ok(());
    }
    let moved: BTreeSet<&String> = old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).collect();
    let live = Live::of(image);
    for topic in image.topics.values() {
        if moved.iter().all(|key| topic.config.given.contains_key(*key)) {
            continue;
        }
        // What is given was allowed when it was set; a topic whose keys no longer are stays as it is.
        if let Ok(config) = topic.config_of(&topic.config.given, &new) {
            reconfigure(draft, topic, config, &live);
        }
    }
    Ok(())
}

/// Gives a topic another configuration, and its partitions what follows from it.
fn reconfigure(draft: &mut Draft, topic: &Topic, config: TopicConfig, live: &Live) {
    let old = &topic.config;
    if config == **old {
        return;
    }
    let config = Arc::new(config);
    let (id, name, created) = (topic.id, Arc::clone(&topic.name), topic.created);
    draft.push(Change::Topic { id, name, created, config: Arc::clone(&config) });
    if (old.min_isr, old.unclean_election) == (config.min_isr, config.unclean_election) {
        return;
    }
    for (number, state) in (0i32..).zip(&topic.partitions) {
        let (before, after) = (state.effective_min_isr(old.min_isr), state.effective_min_isr(config.min_isr));
        let mut step = Transition::under(TopicPartition::new(id, number), &config, state);
        if state.leader.is_none() {
            // Nobody commits anything below the new minimum before an election, which settles the ELR by it. Emptied now,
            // the partition could not be led again by those who hold everything.
            step.elect(live, Policy::AsConfigured, false);
        } else if after < before {
            // R196: from now on the leader may commit without them.
            if !planted(Flaw::LoweringKeepsElr) {
                step.after.elr.clear();
            }
        } else if after > before {
            // A leader that does not know the new minimum yet may commit with fewer than it says. A proposal it made
            // until then must not put those it leaves behind into the ELR, so it is made stale.
            if !planted(Flaw::RaisesUnnoticed) {
                step.touch();
            }
        }
        step.finish(draft, None);
    }
}
