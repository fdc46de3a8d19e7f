//! Topics: created, in one part or several (R179–R184, D17), given more partitions (R186), and deleted (R185).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use highwater_wire::{BrokerId, DirectoryId, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition};

use super::configs::check_policy;
use super::draft::Draft;
use crate::controller::{AddPartitions, Answer, CreateTopic, Refusal};
use crate::flaws::{Flaw, planted};
use crate::image::topic_config::ConfigFaults;
use crate::image::{
    Change, ChangeKind, Inherited, LeaderReason, LeaderRecovery, MetadataImage, PartitionState, TopicConfig,
};

/// Longest topic name, in bytes.
pub const TOPIC_NAME_LENGTH_MAX: usize = 249;

/// R179: the shape of a name.
///
/// # Errors
/// [`Refusal::InvalidTopicName`], which says which rule it breaks.
pub fn check_topic_name(name: &str) -> Result<(), Refusal> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let why = if name.is_empty() {
        "it is empty".to_owned()
    } else if name == "." || name == ".." {
        "it names a directory".to_owned()
    } else if name.len() > TOPIC_NAME_LENGTH_MAX {
        format!("it has {} bytes, at most {TOPIC_NAME_LENGTH_MAX} may be", name.len())
    } else if let Some(bad) = name.chars().find(|c| !is_legal(*c)) {
        format!("{bad:?} may not be in it, only letters, digits, '.', '_' and '-'")
    } else {
        return Ok(());
    };
    Err(Refusal::InvalidTopicName { name: name.to_owned(), why })
}

/// The name of another topic that differs in '.' and '_' only: their metrics would collide (R179).
fn colliding_name(image: &MetadataImage, name: &str) -> Option<Arc<str>> {
    let folded = |name: &str| name.replace('.', "_");
    let (prefix, wanted) = (&name[..name.find(['.', '_'])?], folded(name));
    // Whatever collides begins with the same characters up to the first '.' or '_'.
    let from = image.names.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).map(|(other, _)| other);
    let mut candidates = from.take_while(|other| other.starts_with(prefix));
    candidates.find(|other| other.as_ref() != name && folded(other) == wanted).cloned()
}

/// Creates a topic, or keeps one part of a large one until its last part is there. A repeated part changes nothing.
pub(super) fn create(draft: &mut Draft, part: &CreateTopic) -> Result<Answer, Refusal> {
    create_part(draft, part, &BTreeMap::new())
}

/// As [`create`], with what the topic takes over from the configuration of the node that proposes it.
pub(super) fn create_inheriting(
    draft: &mut Draft,
    part: &CreateTopic,
    inherited: &BTreeMap<String, Inherited>,
) -> Result<Answer, Refusal> {
    if draft.rules < 3 {
        return Err(Refusal::UnsupportedFeature { level: draft.image.feature_level });
    }
    create_part(draft, part, inherited)
}

fn create_part(
    draft: &mut Draft,
    part: &CreateTopic,
    inherited: &BTreeMap<String, Inherited>,
) -> Result<Answer, Refusal> {
    let image = draft.image;
    if let Some(topic) = image.topics.get(&part.id) {
        let repeated = topic.name.as_ref() == part.name && part.first_partition as usize <= topic.partitions.len();
        return if repeated { Ok(Answer::TopicCreated { id: part.id }) } else { Err(exists(&part.name)) };
    }
    let staged = image.staged.get(&part.id).map_or(&[][..], |parts| parts.as_slice());
    if staged.contains(part) {
        return Ok(Answer::Done);
    }
    check_topic_name(&part.name)?;
    if image.names.contains_key(part.name.as_str()) {
        return Err(exists(&part.name));
    }
    if let Some(other) = colliding_name(image, &part.name) {
        let why = format!("it collides with topic {other:?}: '.' and '_' are one character in metric names");
        return Err(Refusal::InvalidTopicName { name: part.name.clone(), why });
    }
    let cluster = if draft.rules >= 3 { image.topic_defaults() } else { BTreeMap::new() };
    let inherited_now = inherited.iter().map(|(key, inherited)| (key, &inherited.value));
    let faults = check_policy(draft.rules, part.configs.iter().chain(inherited_now));
    if !faults.is_empty() {
        return Err(Refusal::InvalidTopicConfigs(ConfigFaults(faults)));
    }
    let config = new_config(&part.configs, cluster, inherited)?;
    check_part(image, staged, part)?;
    // Whoever began last wins a name; what another proposer left half done goes.
    let abandoned = image.staged.iter().filter(|(id, parts)| **id != part.id && parts[0].name == part.name);
    for (id, _) in abandoned {
        draft.push(Change::Unstaged(*id));
    }
    if !part.complete {
        draft.push(Change::Staged(part.id, Arc::new(part.clone())));
        return Ok(Answer::Done);
    }
    if !staged.is_empty() {
        draft.push(Change::Unstaged(part.id));
    }
    let name: Arc<str> = part.name.as_str().into();
    draft.push(Change::Topic { id: part.id, name, created: part.time, config: Arc::new(config) });
    if !inherited.is_empty() {
        draft.push(Change::Inherited(part.id, Arc::new(inherited.clone())));
    }
    let all = staged.iter().chain([part]).flat_map(|part| &part.assignments);
    for (number, replicas) in (0i32..).zip(all) {
        add_partition(draft, TopicPartition::new(part.id, number), replicas);
    }
    Ok(Answer::TopicCreated { id: part.id })
}

/// R186: more partitions; those that exist are not touched. A repeated command changes nothing.
pub(super) fn grow(draft: &mut Draft, growth: &AddPartitions) -> Result<Answer, Refusal> {
    let image = draft.image;
    if draft.rules < 3 {
        return Err(Refusal::UnsupportedFeature { level: image.feature_level });
    }
    let topic = image.topics.get(&growth.topic).ok_or(Refusal::UnknownTopicId(growth.topic))?;
    let present = topic.partitions.len();
    let first = usize::try_from(growth.first_partition).unwrap_or(usize::MAX);
    if first != present && !planted(Flaw::GrowsUnfenced) || growth.assignments.is_empty() {
        let there = topic.partitions.get(first..first.saturating_add(growth.assignments.len())).unwrap_or_default();
        if !there.is_empty() && there.iter().map(|state| &state.replicas).eq(&growth.assignments) {
            return Ok(Answer::Done);
        }
        let (name, count) = (&topic.name, growth.assignments.len());
        let why = format!(
            "topic {name:?} has {present} partitions, not the {} that {count} more were to follow; look again",
            growth.first_partition
        );
        return Err(Refusal::InvalidPartitions(why));
    }
    let factor = replication_factor(&topic.partitions[0]);
    check_assignments(image, growth.first_partition, factor, &growth.assignments, growth.manual)?;
    for (number, replicas) in (growth.first_partition..).zip(&growth.assignments) {
        add_partition(draft, TopicPartition::new(growth.topic, number), replicas);
    }
    Ok(Answer::Done)
}

/// How many replicas a partition has, once those that are leaving have left.
pub(crate) fn replication_factor(state: &PartitionState) -> usize {
    state.replicas.len() - state.removing.len()
}

fn add_partition(draft: &mut Draft, at: TopicPartition, replicas: &[BrokerId]) {
    let state = new_partition(draft, replicas);
    let kinds = match state.leader {
        Some(_) => vec![ChangeKind::Leader { before: None, reason: LeaderReason::Created }],
        None => Vec::new(),
    };
    draft.partition(at, state, None, kinds);
}

/// What is asked for, beside the defaults set on all brokers and those of the proposing node (R187).
fn new_config(
    given: &BTreeMap<String, String>,
    cluster: BTreeMap<String, String>,
    inherited: &BTreeMap<String, Inherited>,
) -> Result<TopicConfig, Refusal> {
    let mut defaults = inherited.iter().map(|(key, inherited)| (key.clone(), inherited.value.clone())).collect();
    TopicConfig::parse(&defaults).map_err(Refusal::InvalidTopicConfigs)?;
    defaults.extend(cluster);
    TopicConfig::resolve(given, &defaults).map_err(Refusal::InvalidTopicConfigs)
}

fn exists(name: &str) -> Refusal {
    Refusal::TopicExists(name.to_owned())
}

/// R183. Brokers may have been fenced since an earlier part was staged: such a partition begins without a leader, with
/// its replicas eligible, since nothing was ever written.
fn new_partition(draft: &Draft, replicas: &[BrokerId]) -> PartitionState {
    let image = draft.image;
    let directory = |id: &BrokerId| image.broker(*id).and_then(|broker| broker.log_dirs.first().copied());
    let none = DirectoryId::from_bytes([0; 16]);
    let takes_part =
        |id: BrokerId| image.broker(id).is_some_and(|broker| broker.is_active() || planted(Flaw::TrustsTheFenced));
    let isr: Vec<_> = replicas.iter().copied().filter(|id| takes_part(*id)).collect();
    let registered = replicas.iter().copied().filter(|id| image.broker(*id).is_some());
    PartitionState {
        replicas: replicas.to_vec(),
        directories: replicas.iter().map(|id| directory(id).unwrap_or(none)).collect(),
        adding: Vec::new(),
        removing: Vec::new(),
        leader: isr.first().copied(),
        elr: if isr.is_empty() { registered.collect() } else { Vec::new() },
        isr,
        last_known_elr: Vec::new(),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: PartitionEpoch(0),
        recovery: LeaderRecovery::Recovered,
        last_known_watermark: None,
        leader_since: draft.time,
    }
}

/// Does this part go on where the staged ones end, and can its replicas be placed as it says?
fn check_part(image: &MetadataImage, staged: &[CreateTopic], part: &CreateTopic) -> Result<(), Refusal> {
    let next = staged.iter().map(|part| part.assignments.len()).sum::<usize>();
    if usize::try_from(part.first_partition) != Ok(next) {
        let (name, first) = (&part.name, part.first_partition);
        let why = format!("a part of topic {name:?} begins at partition {first}, but {next} is next; create it anew");
        return Err(Refusal::InvalidRequest(why));
    }
    if let Some(begun) = staged.first()
        && (&begun.name, &begun.configs) != (&part.name, &part.configs)
    {
        let why = format!("a part of topic {:?} differs from the first in name or configuration", part.name);
        return Err(Refusal::InvalidRequest(why));
    }
    if part.assignments.is_empty() {
        return Err(Refusal::InvalidPartitions(format!("topic {:?} would have no partition", part.name)));
    }
    let factor = staged.first().unwrap_or(part).assignments[0].len();
    check_assignments(image, part.first_partition, factor, &part.assignments, part.manual)
}

/// Can the partitions from `first` on lie where they are assigned?
fn check_assignments(
    image: &MetadataImage,
    first: i32,
    factor: usize,
    assignments: &[Vec<BrokerId>],
    manual: bool,
) -> Result<(), Refusal> {
    let refuse = |why| {
        let refusal = if manual { Refusal::InvalidAssignment } else { Refusal::InvalidReplicationFactor };
        Err(refusal(why))
    };
    for (number, replicas) in (first..).zip(assignments) {
        if replicas.is_empty() {
            return refuse(format!("partition {number} has no replica"));
        }
        if replicas.len() != factor {
            let count = replicas.len();
            return refuse(format!("partition {number} has {count} replicas and partition 0 has {factor}"));
        }
        if replicas.iter().collect::<BTreeSet<_>>().len() < replicas.len() {
            return refuse(format!("partition {number} has two replicas on one broker: {replicas:?}"));
        }
        if let Some(unknown) = replicas.iter().find(|id| image.broker(**id).is_none()) {
            return refuse(format!("partition {number} has a replica on broker {unknown}, which is not registered"));
        }
        if !replicas.iter().any(|id| image.broker(*id).is_some_and(|broker| broker.is_active())) {
            return refuse(format!("no broker of partition {number} is active now: {replicas:?}"));
        }
    }
    Ok(())
}

/// R185. The name is free at once.
pub(super) fn delete(draft: &mut Draft, id: TopicId) -> Result<Answer, Refusal> {
    if draft.image.topics.contains_key(&id) {
        draft.push(Change::TopicRemoved(id));
    } else if draft.image.staged.contains_key(&id) {
        draft.push(Change::Unstaged(id));
    } else {
        return Err(Refusal::UnknownTopicId(id));
    }
    Ok(Answer::Done)
}
