//! Who leads, given a partition, the brokers alive and what the topic allows (R189–R194, D30).

use std::cmp::Ordering;
use std::collections::BTreeSet;

use highwater_wire::{BrokerId, TopicPartition};

use super::draft::Draft;
use super::transition::Transition;
use crate::controller::{Answer, ChosenElection, ElectionKind, Refusal};
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
    if !unclean && !planted(Flaw::LastKnownNeedsNoProof) && !planted(Flaw::ElectsAnybody) {
        return None;
    }
    if state.isr.is_empty()
        && state.elr.is_empty()
        && let Some(leader) = first(&state.last_known_elr)
    {
        return Some((leader, LeaderReason::LastKnown));
    }
    if !unclean && !planted(Flaw::ElectsAnybody) {
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

/// Whether `leader`, a replica, loses nothing by leading: it is in sync, or eligible while nobody is (R189, R195).
pub fn is_clean(state: &PartitionState, leader: BrokerId) -> bool {
    state.isr.contains(&leader) || state.isr.is_empty() && state.elr.contains(&leader)
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

/// Elections whose leaders somebody chose. Each partition has its own result.
pub(super) fn elect_chosen(draft: &mut Draft, elections: &[ChosenElection]) -> Result<Answer, Refusal> {
    if draft.rules < 3 {
        return Err(Refusal::UnsupportedFeature { level: draft.image.feature_level });
    }
    let live = Live::of(draft.image);
    let mut seen = BTreeSet::new();
    let mut results = Vec::with_capacity(elections.len());
    for election in elections {
        let at = election.partition;
        results.push(if seen.insert(at) {
            elect_one_chosen(draft, election, &live)
        } else {
            Err(Refusal::InvalidRequest(format!("partition {at} is named twice")))
        });
    }
    Ok(Answer::LeadersElected(results))
}

fn elect_one_chosen(draft: &mut Draft, election: &ChosenElection, live: &Live) -> Result<BrokerId, Refusal> {
    let (image, at, leader) = (draft.image, election.partition, election.leader);
    let unknown = Refusal::UnknownPartition(at);
    let (Some(topic), Some(state)) = (image.topics.get(&at.topic), image.partition(at)) else { return Err(unknown) };
    if state.leader == Some(leader) {
        return Err(Refusal::ElectionNotNeeded);
    }
    check_expected(state, election)?;
    if !state.replicas.contains(&leader) {
        return Err(Refusal::NotAReplica { broker: leader, partition: at });
    }
    if !live.is_active(leader) {
        return Err(Refusal::LeaderNotActive(leader));
    }
    let clean = is_clean(state, leader);
    if !clean && !election.accept_loss && !planted(Flaw::NamesAnybody) {
        return Err(Refusal::LossNotAccepted(leader));
    }
    let mut step = Transition::new(at, topic, state);
    if !clean && state.leader.is_some() && election.watermark.is_some() {
        step.after.last_known_watermark = election.watermark;
    }
    step.lead(
        leader,
        match clean {
            false => LeaderReason::Unclean,
            true if state.replicas.first() == Some(&leader) => LeaderReason::Preferred,
            true => LeaderReason::Designated,
        },
    );
    step.finish(draft, None);
    Ok(leader)
}

/// Was the election asked for in knowledge of the present state?
fn check_expected(state: &PartitionState, election: &ChosenElection) -> Result<(), Refusal> {
    if let Some(given) = election.expected_leader_epoch {
        let current = state.leader_epoch;
        match given.cmp(&current) {
            Ordering::Less => return Err(Refusal::FencedLeaderEpoch { given, current }),
            Ordering::Greater => return Err(Refusal::LeaderEpochAhead { given, current }),
            Ordering::Equal => {}
        }
    }
    if let Some(given) = election.expected_partition_epoch {
        let current = state.partition_epoch;
        match given.cmp(&current) {
            Ordering::Less => return Err(Refusal::StalePartitionEpoch { given, current }),
            Ordering::Greater => return Err(Refusal::PartitionEpochAhead { given, current }),
            Ordering::Equal => {}
        }
    }
    Ok(())
}
