//! ISR changes proposed by leaders (R126–R132): fences first, then the rules.

use std::collections::BTreeSet;

use highwater_wire::{BrokerEpoch, BrokerId};

use super::draft::Draft;
use super::transition::Transition;
use crate::controller::{AlterPartition, AlteredPartition, Answer, IsrProposal, IsrReason, Refusal};
use crate::flaws::{Flaw, planted};
use crate::image::{ExpandReason, LeaderRecovery, MetadataImage, PartitionState, ShrinkReason};

/// Decides each proposal by itself; only a stale sender is refused as a whole.
pub(super) fn alter(draft: &mut Draft, request: &AlterPartition) -> Result<Answer, Refusal> {
    let current = draft.image.broker(request.broker).map(|broker| broker.epoch);
    if current != Some(request.epoch) {
        let (broker, given) = (request.broker, request.epoch);
        let current = current.unwrap_or(BrokerEpoch(-1));
        return Err(Refusal::StaleBrokerEpoch { broker, given, current });
    }
    let mut seen = BTreeSet::new();
    let mut results = Vec::with_capacity(request.changes.len());
    for proposal in &request.changes {
        let at = proposal.partition;
        results.push(if seen.insert(at) {
            alter_one(draft, request.broker, proposal)
        } else {
            Err(Refusal::InvalidRequest(format!("partition {at} is named twice")))
        });
    }
    Ok(Answer::PartitionsAltered(results))
}

fn alter_one(draft: &mut Draft, sender: BrokerId, proposal: &IsrProposal) -> Result<AlteredPartition, Refusal> {
    let (image, at) = (draft.image, proposal.partition);
    let topic = image.topics.get(&at.topic).ok_or(Refusal::UnknownTopicId(at.topic))?;
    let state = image.partition(at).ok_or(Refusal::UnknownPartition(at))?;
    check_fences(state, sender, proposal)?;
    if let Err(refusal) = check_members(image, state, sender, proposal) {
        if draft.rules >= 2 && may_be_accepted_later(image, proposal, &refusal) {
            let state =
                PartitionState { partition_epoch: state.partition_epoch.next(), ..PartitionState::clone(state) };
            draft.partition(at, state, None, Vec::new());
        }
        return Err(refusal);
    }

    let proposed = |id: BrokerId| proposal.isr.iter().any(|(member, _)| *member == id);
    let joining: Vec<_> = proposal.isr.iter().map(|(id, _)| *id).filter(|id| !state.isr.contains(id)).collect();
    let (shrink, expand) = match proposal.why {
        IsrReason::Shrink(reason) => (reason, ExpandReason::CaughtUp),
        IsrReason::Expand(reason) => (ShrinkReason::FollowerSlow, reason),
        IsrReason::Recovered => (ShrinkReason::FollowerSlow, ExpandReason::CaughtUp),
    };
    let mut step = Transition::new(at, topic, state);
    step.shrink(|id| !proposed(id), shrink, proposal.evidence.clone());
    step.expand(&joining, expand, proposal.evidence.clone());
    step.settle_elr(&BTreeSet::new());
    step.after.recovery = proposal.recovery;
    let recovers = state.recovery == LeaderRecovery::Recovering && proposal.recovery == LeaderRecovery::Recovered;
    if draft.rules >= 3 && recovers {
        // The first thing an unclean leader says; with it, where its log ended when it was elected.
        let of_itself = proposal.evidence.iter().find(|evidence| evidence.broker == sender);
        step.note_loss(of_itself.and_then(|evidence| evidence.leader_end), image.history_of(at));
    }
    let after = step.after.clone();
    let changed = step.finish(draft, Some(sender));
    Ok(AlteredPartition {
        partition: at,
        leader: after.leader,
        leader_epoch: after.leader_epoch,
        isr: after.isr,
        recovery: after.recovery,
        partition_epoch: if changed { state.partition_epoch.next() } else { state.partition_epoch },
    })
}

/// R130, steps 3 to 6: is the proposal made in knowledge of the present state, by the present leader?
fn check_fences(state: &PartitionState, sender: BrokerId, proposal: &IsrProposal) -> Result<(), Refusal> {
    if planted(Flaw::ZombiesPropose) {
        return Ok(());
    }
    let (leader_epoch, partition_epoch) = (state.leader_epoch, state.partition_epoch);
    if proposal.leader_epoch > leader_epoch || proposal.partition_epoch > partition_epoch {
        return Err(Refusal::ControllerBehind {
            leader_epoch: proposal.leader_epoch,
            partition_epoch: proposal.partition_epoch,
        });
    }
    if proposal.leader_epoch < leader_epoch {
        return Err(Refusal::FencedLeaderEpoch { given: proposal.leader_epoch, current: leader_epoch });
    }
    if state.leader != Some(sender) {
        let at = proposal.partition;
        let leader = state.leader.map_or("nobody".to_owned(), |leader| format!("broker {leader}"));
        return Err(Refusal::InvalidRequest(format!("broker {sender} does not lead {at}, {leader} does")));
    }
    if proposal.partition_epoch < partition_epoch && !planted(Flaw::IgnoresPartitionEpochs) {
        return Err(Refusal::StalePartitionEpoch { given: proposal.partition_epoch, current: partition_epoch });
    }
    Ok(())
}

/// Whether a copy of a refused proposal that is still under way would be accepted once its members are active again: a
/// leader forgets what was refused, and does not count such a member.
fn may_be_accepted_later(image: &MetadataImage, proposal: &IsrProposal, refusal: &Refusal) -> bool {
    let registered = |(id, epoch): &(BrokerId, BrokerEpoch)| image.broker(*id).is_some_and(|b| b.epoch == *epoch);
    matches!(refusal, Refusal::IneligibleReplica(_)) && proposal.isr.iter().all(registered)
}

/// R130, steps 7 to 9: may these be the ISR? The broker epochs are those that the members' own fetches carried, so a
/// member that has registered anew since is refused with all the others (KIP-903).
fn check_members(
    image: &MetadataImage,
    state: &PartitionState,
    leader: BrokerId,
    proposal: &IsrProposal,
) -> Result<(), Refusal> {
    let at = proposal.partition;
    let members: BTreeSet<_> = proposal.isr.iter().map(|(id, _)| *id).collect();
    let fault = if members.is_empty() {
        Some("is empty")
    } else if members.len() < proposal.isr.len() {
        Some("names a broker twice")
    } else if members.iter().any(|id| !state.replicas.contains(id)) {
        Some("names a broker that holds no replica")
    } else if !members.contains(&leader) {
        Some("lacks the leader")
    } else if proposal.recovery == LeaderRecovery::Recovering && members.len() > 1 {
        Some("has more than the leader, which has not recovered yet")
    } else if proposal.recovery == LeaderRecovery::Recovering && state.recovery == LeaderRecovery::Recovered {
        Some("would take back that the leader recovered")
    } else {
        None
    };
    if let Some(fault) = fault {
        return Err(Refusal::InvalidRequest(format!("the ISR proposed for {at} {fault}: {:?}", proposal.isr)));
    }
    let any = planted(Flaw::AdmitsAnyProcess);
    for (id, epoch) in &proposal.isr {
        if !image.broker(*id).is_some_and(|broker| broker.is_active() && (broker.epoch == *epoch || any)) {
            return Err(Refusal::IneligibleReplica(*id));
        }
    }
    Ok(())
}
