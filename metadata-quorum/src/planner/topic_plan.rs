//! From what a client asks for to the commands that create it: the one door of HTTP and Kafka (D18).

use std::collections::BTreeMap;

use highwater_wire::{BrokerId, Timestamp, TopicId};
use serde::Serialize;

use super::place;
use crate::client::TopicSpec;
use crate::config::TopicDefaults;
use crate::controller::{Command, CreateTopic, RULE_VERSION, Refusal, check_topic_name, decide};
use crate::image::{Inherited, MetadataImage, TopicConfig};

/// Most partitions of one topic.
pub const PARTITIONS_MAX: usize = 100_000;
/// Most partitions of one part (D17).
const PART_PARTITIONS_MAX: usize = 2_000;
/// One part of an assignment: the number of its first partition, and the replicas of each.
type Part = (i32, Vec<Vec<BrokerId>>);
/// Largest part as postcard writes it, well below the 64 KiB of an entry.
const PART_BYTES_MAX: usize = 48 << 10;

/// How a topic will be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPlan {
    /// To be proposed in order, see [`TopicPlan::commands`]; the topic exists with the last.
    pub parts: Vec<CreateTopic>,
    /// What each part takes over from this node's configuration.
    pub inherited: BTreeMap<String, Inherited>,
    pub partitions: i32,
    pub replication_factor: i16,
    /// A remark for the caller: what was capped, and why.
    pub note: Option<String>,
}

impl TopicPlan {
    /// What is to be proposed, in order.
    pub fn commands(&self) -> impl Iterator<Item = Command> {
        let inherited = &self.inherited;
        let command =
            |part: &CreateTopic| Command::CreateTopicInheriting { part: part.clone(), inherited: inherited.clone() };
        self.parts.iter().map(command)
    }
}

/// Places, checks and spells out a new topic. `seed` and `id` are fresh and random, `time` is the wall clock.
///
/// Everything that the rules will check is checked here too, by the same rules against this image, so that a caller who
/// only wants to know (`validate_only`) gets the true answer.
///
/// # Errors
/// The first refusal in Kafka's order (R179): name 17, existing 36, contradictory request 42, partitions 37,
/// replication factor 38, manual assignment 39, configuration 40.
pub fn plan_topic(
    image: &MetadataImage,
    spec: &TopicSpec,
    defaults: &TopicDefaults,
    id: TopicId,
    seed: u64,
    time: Timestamp,
) -> Result<TopicPlan, Refusal> {
    check_topic_name(&spec.name)?;
    if image.topic_named(&spec.name).is_some() {
        return Err(Refusal::TopicExists(spec.name.clone()));
    }
    let (assignments, manual, note) = if spec.assignments.is_empty() {
        let partitions = partition_count(spec.partitions.unwrap_or(defaults.partitions))?;
        let (factor, note) = replication_factor(image, spec, defaults)?;
        (place(image, &[], partitions, factor, seed)?, false, note)
    } else {
        (manual_assignments(spec)?, true, None)
    };
    let factor = assignments[0].len();
    let whole = CreateTopic {
        id,
        name: spec.name.clone(),
        configs: spec.configs.clone(),
        first_partition: 0,
        assignments: Vec::new(),
        complete: false,
        manual,
        time,
    };
    let partitions = assignments.len();
    let replication_factor = i16::try_from(factor)
        .map_err(|_| Refusal::InvalidReplicationFactor(format!("{factor} replicas are more than Kafka can count")))?;
    let plan = TopicPlan {
        parts: split(&whole, assignments),
        inherited: inherited(defaults, factor),
        partitions: i32::try_from(partitions).expect("bounded by PARTITIONS_MAX"),
        replication_factor,
        note,
    };
    rehearse(image, &plan)?;
    Ok(plan)
}

fn partition_count(asked: i32) -> Result<usize, Refusal> {
    match usize::try_from(asked) {
        Ok(count @ 1..=PARTITIONS_MAX) => Ok(count),
        _ => Err(Refusal::InvalidPartitions(format!("{asked} partitions: must be from 1 to {PARTITIONS_MAX}"))),
    }
}

/// As asked, or the default capped at the brokers present (D19).
fn replication_factor(
    image: &MetadataImage,
    spec: &TopicSpec,
    defaults: &TopicDefaults,
) -> Result<(usize, Option<String>), Refusal> {
    let asked = spec.replication_factor.unwrap_or(defaults.replication_factor);
    let Ok(factor @ 1..) = usize::try_from(asked) else {
        return Err(Refusal::InvalidReplicationFactor(format!("replication factor {asked}: must be at least 1")));
    };
    let present = image.active_brokers().count();
    if spec.replication_factor.is_some() || factor <= present || present == 0 {
        return Ok((factor, None));
    }
    let (are, brokers) = if present == 1 { ("is", "broker") } else { ("are", "brokers") };
    let note =
        format!("replication factor capped at {present}: {present} {brokers} {are} present (the default is {factor})");
    Ok((present, Some(note)))
}

fn manual_assignments(spec: &TopicSpec) -> Result<Vec<Vec<BrokerId>>, Refusal> {
    if spec.partitions.is_some() || spec.replication_factor.is_some() {
        let why = "give either replicas by partition or their numbers (partitions, replication factor), not both";
        return Err(Refusal::InvalidRequest(why.to_owned()));
    }
    let count = spec.assignments.len();
    if count > PARTITIONS_MAX {
        return Err(Refusal::InvalidPartitions(format!("{count} partitions: must be from 1 to {PARTITIONS_MAX}")));
    }
    if let Some((missing, _)) = (0i32..).zip(spec.assignments.keys()).find(|(number, given)| number != *given) {
        let why = format!("{count} partitions are assigned, but partition {missing} is not among them");
        return Err(Refusal::InvalidAssignment(why));
    }
    Ok(spec.assignments.values().cloned().collect())
}

/// This node's defaults where they differ from the built-in ones, spelled out (D14).
fn inherited(defaults: &TopicDefaults, factor: usize) -> BTreeMap<String, Inherited> {
    let min_isr = defaults.min_isr.unwrap_or(if factor >= 3 { 2 } else { 1 });
    let own = [
        ("min.insync.replicas".to_owned(), min_isr.to_string()),
        ("unclean.leader.election.enable".to_owned(), defaults.unclean_election.to_string()),
    ];
    let entries = TopicConfig::built_in().entries();
    let is_built_in = |key: &str, value: &str| entries.iter().any(|entry| entry.name == key && entry.default == value);
    let all = own.into_iter().chain(defaults.configs.clone());
    let differing = all.filter(|(key, value)| !is_built_in(key, value));
    let is_set = |key: &str| key != "min.insync.replicas" || defaults.min_isr.is_some();
    differing.map(|(key, value)| (key.clone(), Inherited { value, set: is_set(&key) })).collect()
}

/// Cuts a creation into parts that fit an entry each.
fn split(whole: &CreateTopic, assignments: Vec<Vec<BrokerId>>) -> Vec<CreateTopic> {
    let part = |(first_partition, assignments)| CreateTopic { first_partition, assignments, ..whole.clone() };
    let mut parts: Vec<_> = cut(whole, 0, assignments).into_iter().map(part).collect();
    if let Some(last) = parts.last_mut() {
        last.complete = true;
    }
    parts
}

/// Cuts the assignments of the partitions from `first` on into parts that fit an entry each, together with the rest of
/// their command, `empty`.
pub(super) fn cut(empty: &impl Serialize, first: i32, assignments: Vec<Vec<BrokerId>>) -> Vec<Part> {
    // Numbers take up to five bytes, twice (first partition, length of the list).
    let empty = postcard::to_stdvec(empty).map_or(0, |bytes| bytes.len()) + 10;
    let mut parts = Vec::<Part>::new();
    let mut bytes = 0;
    for (number, replicas) in (first..).zip(assignments) {
        let more = 1 + replicas.len() * 5;
        let fits = |part: &&mut Part| part.1.len() < PART_PARTITIONS_MAX && bytes + more <= PART_BYTES_MAX;
        match parts.last_mut().filter(fits) {
            Some((_, part)) => {
                bytes += more;
                part.push(replicas);
            }
            None => {
                bytes = empty + more;
                parts.push((number, vec![replicas]));
            }
        }
    }
    parts
}

/// Decides the parts one after another against a copy of the image.
fn rehearse(image: &MetadataImage, plan: &TopicPlan) -> Result<(), Refusal> {
    let mut image = image.clone();
    for (command, part) in plan.commands().zip(&plan.parts) {
        let index = image.version.0 + 1;
        let decision = decide(&image, index, RULE_VERSION, &command)?;
        if !part.complete {
            image.apply_all(&decision.changes);
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "topic_plan_tests.rs"]
mod tests;
