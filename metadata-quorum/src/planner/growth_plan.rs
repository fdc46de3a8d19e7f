//! From the number of partitions a client asks for to the commands that add them: the one door of HTTP and Kafka (D18).

use highwater_wire::{Timestamp, TopicId};

use super::place;
use super::topic_plan::{PARTITIONS_MAX, cut};
use crate::client::PartitionsSpec;
use crate::controller::{AddPartitions, Command, RULE_VERSION, Refusal, decide, replication_factor};
use crate::image::MetadataImage;

/// How a topic will grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrowthPlan {
    pub topic: TopicId,
    /// To be proposed in order; the partitions of each are there when it is applied.
    pub parts: Vec<AddPartitions>,
}

/// Places, checks and spells out the new partitions of a topic (R186). `seed` is fresh and random, `time` is the wall
/// clock. Everything that the rules will check is checked here too, as for a new topic.
///
/// # Errors
/// Unknown topic 3, a number that is no growth 37, replicas that cannot be placed 38, manual assignment 39.
pub fn plan_growth(
    image: &MetadataImage,
    spec: &PartitionsSpec,
    seed: u64,
    time: Timestamp,
) -> Result<GrowthPlan, Refusal> {
    let topic = image.topic_named(&spec.topic).ok_or_else(|| Refusal::UnknownTopic(spec.topic.clone()))?;
    let (name, asked, present) = (&spec.topic, spec.partitions, topic.partitions.len());
    let wanted = match usize::try_from(asked) {
        Ok(wanted) if wanted > PARTITIONS_MAX => {
            return Err(Refusal::InvalidPartitions(format!("{asked} partitions: at most {PARTITIONS_MAX} may be")));
        }
        Ok(wanted) if wanted > present => wanted,
        _ => {
            let why = format!("topic {name:?} has {present} partitions already, {asked} would not be more");
            return Err(Refusal::InvalidPartitions(why));
        }
    };
    let assignments = match &spec.assignments {
        Some(given) if given.len() != wanted - present => {
            let (given, more) = (given.len(), wanted - present);
            let why = format!("{more} partitions are to be added to topic {name:?}, but {given} are assigned");
            return Err(Refusal::InvalidAssignment(why));
        }
        Some(given) => given.clone(),
        None => {
            let factor = replication_factor(&topic.partitions[0]);
            place(image, &topic.partitions, wanted - present, factor, seed)?
        }
    };
    let first = i32::try_from(present).expect("bounded by PARTITIONS_MAX");
    let manual = spec.assignments.is_some();
    let whole = AddPartitions { topic: topic.id, first_partition: first, assignments: Vec::new(), manual, time };
    let part = |(first_partition, assignments)| AddPartitions { first_partition, assignments, ..whole.clone() };
    let parts: Vec<_> = cut(&whole, first, assignments).into_iter().map(part).collect();
    rehearse(image, &parts)?;
    Ok(GrowthPlan { topic: topic.id, parts })
}

/// Decides the parts one after another against a copy of the image.
fn rehearse(image: &MetadataImage, parts: &[AddPartitions]) -> Result<(), Refusal> {
    let mut image = image.clone();
    for part in parts {
        let index = image.version.0 + 1;
        let decision = decide(&image, index, RULE_VERSION, &Command::AddPartitions(part.clone()))?;
        image.apply_all(&decision.changes);
    }
    Ok(())
}

#[cfg(test)]
#[path = "growth_plan_tests.rs"]
mod tests;
