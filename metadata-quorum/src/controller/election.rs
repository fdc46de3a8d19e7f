//! Who leads, given a partition, the brokers alive and what the topic allows (R189–R194, D30).

use std::collections::BTreeSet;

use highwater_wire::{BrokerId, TopicPartition};

use super::draft::Draft;
use super::transition::Transition;
use crate::controller::{Answer, ElectionKind, Refusal};
use crate::flaws::{Flaw, planted};
use crate::image::{LeaderReason, MetadataImage, PartitionState};

/// The brokers that may lead and be in an ISR, as of the end of the entry that is being decided.
pub(super) struct Live(BTreeSet<BrokerId>);

impl Live {
    /// The active brokers of an image.
    pub fn of(image: &MetadataImage) -> Self {
        Self(image.active_brokers().map(|broker| broker.id).collect())
    }

    /// … less those whom this entry takes out.
    pub fn without<'b>(mut self, gone: impl IntoIterator<Item = &'b BrokerId>) -> Self {
        for id in gone {
            self.0.remove(id);
        }
        self
    }

    /// … and one whom it brings back.
    pub fn with(mut self, id: BrokerId) -> Self {
        self.0.insert(id);
        self
    }

    /// Whether a broker may lead and be in an ISR.
    pub fn is_active(&self, id: BrokerId) -> bool {
        self.0.contains(&id)
    }
}

/// How far an election may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// As the topic says.
    AsConfigured,
    /// An operator accepts that acknowledged records may be lost.
    Unclean,
}

/// The next leader by R189, and how it came to it: of the ISR; else, when that is empty, of the ELR; else, only where
/// an unclean election is allowed, the last known leader if nobody has a better claim, or else whoever is there.
///
/// D30 would also elect a last known leader whose registration proves that nothing was lost. Such a leader is still in
/// the ELR and led by the second rule: it left it only by a registration without proof, a report of lost records, or by
/// being unregistered. The proof of its *newest* registration says nothing of the restarts before: a broker that came
/// back with an empty disk and was then restarted cleanly would hold one.
pub(super) fn candidate(state: &PartitionState, live: &Live, unclean: bool) -> Option<(BrokerId, LeaderReason)> {
    let first = |of: &[BrokerId]| state.replicas.iter().copied().find(|id| of.contains(id) && live.is_active(*id));
    if let Some(leader) = first(&state.isr) {
        return Some((leader, LeaderReason::Failover));
    }
    if state.isr.is_empty()
        && let Some(leader) = first(&state.elr)
    {
        return Some((leader, LeaderReason::Elr));
    }
    if !unclean && !planted(Flaw::LastKnownNeedsNoProof) {
        return None;
    }
    if state.isr.is_empty()
        && state.elr.is_empty()
        && let Some(leader) = first(&state.last_known_elr)
    {
        return Some((leader, LeaderReason::LastKnown));
    }
    if !unclean {
        return None;
    }
    first(&state.replicas).map(|leader| (leader, LeaderReason::Unclean))
}

/// Whom an election would make leader of a partition now, and how; `None`: nobody, or it has a leader. `unclean`: by an
/// operator's word, else as the topic says. For whoever wants to know before asking.
pub fn next_leader(image: &MetadataImage, at: TopicPartition, unclean: bool) -> Option<(BrokerId, LeaderReason)> {
    let (topic, state) = (image.topics.get(&at.topic)?, image.partition(at)?);
    if state.leader.is_some() {
        return None;
    }
    candidate(state, &Live::of(image), unclean || topic.config.unclean_election)
}

/// Elections asked for, by a planner or an operator (R192, R199). Each partition has its own result.
pub(super) fn elect_leaders(
    draft: &mut Draft,
    kind: ElectionKind,
    partitions: &[TopicPartition],
) -> Result<Answer, Refusal> {
    let live = Live::of(draft.image);
    let mut seen = BTreeSet::new();
    let mut results = Vec::with_capacity(partitions.len());
    for at in partitions {
        results.push(if seen.insert(*at) {
            elect_one(draft, kind, *at, &live)
        } else {
            Err(Refusal::InvalidRequest(format!("partition {at} is named twice")))
        });
    }
    Ok(Answer::LeadersElected(results))
}

fn elect_one(draft: &mut Draft, kind: ElectionKind, at: TopicPartition, live: &Live) -> Result<BrokerId, Refusal> {
    let image = draft.image;
    let unknown = Refusal::UnknownPartition(at);
    let (Some(topic), Some(state)) = (image.topics.get(&at.topic), image.partition(at)) else { return Err(unknown) };
    let mut step = Transition::new(at, topic, state);
    match kind {
        ElectionKind::Preferred => {
            let Some(preferred) = state.replicas.first().copied() else { return Err(unknown) };
            if state.leader == Some(preferred) {
                return Err(Refusal::ElectionNotNeeded);
            }
            if !state.isr.contains(&preferred) || !live.is_active(preferred) {
                return Err(Refusal::PreferredLeaderNotAvailable(preferred));
            }
            step.lead(preferred, LeaderReason::Preferred);
        }
        ElectionKind::Clean | ElectionKind::Unclean => {
            if state.leader.is_some() {
                return Err(Refusal::ElectionNotNeeded);
            }
            let unclean = kind == ElectionKind::Unclean;
            step.elect(live, if unclean { Policy::Unclean } else { Policy::AsConfigured }, false);
        }
    }
    let leader = step.after.leader.ok_or(Refusal::EligibleLeadersNotAvailable)?;
    step.finish(draft, None);
    Ok(leader)
}
