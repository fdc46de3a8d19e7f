//! Brokers come, go, and what that does to the partitions they hold (R166–R176, D7–D10, D30).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_wire::{BrokerEpoch, BrokerId, TopicPartition};

use super::draft::Draft;
use super::election::{Live, Policy};
use super::transition::Transition;
use crate::controller::{Answer, FencedBroker, Refusal};
use crate::flaws::{Flaw, planted};
use crate::image::{
    BrokerRegistration, BrokerState, Change, Evidence, LastReport, MetadataImage, PartitionState, ShrinkReason,
};

mod registration;

pub(super) use registration::register;

/// The registration of a broker, if this is its epoch.
pub(super) fn registered(
    image: &MetadataImage,
    broker: BrokerId,
    epoch: BrokerEpoch,
) -> Result<&Arc<BrokerRegistration>, Refusal> {
    let registration = image.broker(broker).ok_or(Refusal::UnknownBroker(broker))?;
    if registration.epoch != epoch {
        return Err(Refusal::StaleBrokerEpoch { broker, given: epoch, current: registration.epoch });
    }
    Ok(registration)
}

/// Who leaves which sets, why, and who is left to lead.
struct Departure<'d> {
    /// Leave every ISR; the note says how that was known.
    gone: BTreeMap<BrokerId, Option<&'d str>>,
    /// Cannot prove that they hold what they held: leave every ELR too (R169).
    lost: BTreeSet<BrokerId>,
    /// Are nobody any more: cannot even be the last known leader.
    forgotten: Option<BrokerId>,
    reason: ShrinkReason,
    /// What the leaders among them had reported.
    reports: BTreeMap<TopicPartition, LastReport>,
    live: Live,
}

impl Departure<'_> {
    /// Takes all out of all sets of a partition first, and only then elects (D30).
    fn of_partition(&self, step: &mut Transition, state: &PartitionState, at: TopicPartition) {
        let is_gone = |id: &BrokerId| self.gone.contains_key(id);
        if state.isr.iter().any(is_gone) {
            let noted = state.isr.iter().filter_map(|id| self.gone.get(id).copied().flatten().map(|note| (*id, note)));
            let evidence = noted.map(|(id, note)| Evidence { note: Some(note.to_owned()), ..Evidence::about(id) });
            step.shrink(|id| is_gone(&id), self.reason, evidence.collect());
        }
        step.settle_elr(&self.lost);
        step.after.last_known_elr.retain(|id| self.forgotten != Some(*id));
        if state.leader.is_some_and(|leader| is_gone(&leader))
            && let Some(report) = self.reports.get(&at)
        {
            step.after.last_known_watermark = Some(*report);
        }
        step.elect(&self.live, Policy::AsConfigured, self.reason == ShrinkReason::ControlledShutdown);
    }

    fn concerns(&self, state: &PartitionState) -> bool {
        state.isr.iter().any(|id| self.gone.contains_key(id))
            || state.elr.iter().any(|id| self.lost.contains(id))
            || state.last_known_elr.iter().any(|id| self.forgotten == Some(*id))
    }

    /// One walk over all partitions.
    fn carry_out(&self, draft: &mut Draft) {
        for (at, topic, state) in draft.image.partitions() {
            if self.concerns(state) {
                let mut step = Transition::new(at, topic, state);
                self.of_partition(&mut step, state, at);
                step.finish(draft, None);
            }
        }
    }
}

fn set_state(draft: &mut Draft, registration: &BrokerRegistration, state: BrokerState) {
    let state_since = draft.time;
    draft.push(Change::Broker(Arc::new(BrokerRegistration { state, state_since, ..registration.clone() })));
}

/// R171, R172, D30: all of them out of all ISRs, then elections. Brokers that have registered anew, are fenced already or
/// have shut down are skipped; the answer names those that were fenced now.
pub(super) fn fence(
    draft: &mut Draft,
    brokers: &[FencedBroker],
    reports: BTreeMap<TopicPartition, LastReport>,
) -> Result<Answer, Refusal> {
    let image = draft.image;
    let mut gone = BTreeMap::new();
    for FencedBroker { broker, epoch, note } in brokers {
        let Some(registration) = image.broker(*broker) else { continue };
        if registration.epoch == *epoch && registration.is_active() && !gone.contains_key(broker) {
            gone.insert(*broker, Some(note.as_str()));
            set_state(draft, registration, BrokerState::Fenced);
        }
    }
    let fenced: Vec<_> = gone.keys().copied().collect();
    if !gone.is_empty() {
        let departure = Departure {
            live: Live::of(image).without(&fenced),
            gone,
            lost: BTreeSet::new(),
            forgotten: None,
            reason: ShrinkReason::BrokerFenced,
            reports,
        };
        departure.carry_out(draft);
    }
    Ok(Answer::Fenced { fenced })
}

/// R173: the broker takes part. First it leaves the ELR where it `lost` records (D10), then whoever may lead now is
/// elected where nobody leads. It comes back into ISRs by its leaders' proposals only (R115).
pub(super) fn unfence(
    draft: &mut Draft,
    broker: BrokerId,
    epoch: BrokerEpoch,
    lost: &[TopicPartition],
) -> Result<Answer, Refusal> {
    let image = draft.image;
    let registration = registered(image, broker, epoch)?;
    match registration.state {
        BrokerState::ShuttingDown => return Err(Refusal::ShuttingDown(broker)),
        BrokerState::Active => return Ok(Answer::BrokerState { state: BrokerState::Active }),
        BrokerState::Fenced => set_state(draft, registration, BrokerState::Active),
    }
    let live = Live::of(image).with(broker);
    let (lost, loser) = (lost.iter().collect::<BTreeSet<_>>(), BTreeSet::from([broker]));
    for (at, topic, state) in image.partitions() {
        if state.leader.is_some() && state.elr.is_empty() || !state.replicas.contains(&broker) {
            continue;
        }
        let mut step = Transition::new(at, topic, state);
        if lost.contains(&at) && !planted(Flaw::LostIsIgnored) {
            step.settle_elr(&loser);
            step.after.last_known_elr.retain(|id| *id != broker);
        }
        step.elect(&live, Policy::AsConfigured, false);
        step.finish(draft, None);
    }
    Ok(Answer::BrokerState { state: BrokerState::Active })
}

/// R174, R175: leaders move, the broker leaves every ISR, and only a new registration brings it back.
pub(super) fn shut_down(draft: &mut Draft, broker: BrokerId, epoch: BrokerEpoch) -> Result<Answer, Refusal> {
    let image = draft.image;
    let registration = registered(image, broker, epoch)?;
    if registration.state != BrokerState::ShuttingDown {
        set_state(draft, registration, BrokerState::ShuttingDown);
    }
    if registration.is_active() && !planted(Flaw::StoppingStaysInSync) {
        let departure = Departure {
            gone: BTreeMap::from([(broker, None)]),
            lost: BTreeSet::new(),
            forgotten: None,
            reason: ShrinkReason::ControlledShutdown,
            reports: BTreeMap::new(),
            live: Live::of(image).without([&broker]),
        };
        departure.carry_out(draft);
    }
    Ok(Answer::BrokerState { state: BrokerState::ShuttingDown })
}

/// R176: forgets a broker that takes no part. Its replicas stay assigned; nobody waits for it to lead again.
pub(super) fn unregister(draft: &mut Draft, broker: BrokerId) -> Result<Answer, Refusal> {
    let image = draft.image;
    if image.broker(broker).ok_or(Refusal::UnknownBroker(broker))?.is_active() {
        return Err(Refusal::NotFenced(broker));
    }
    draft.push(Change::BrokerRemoved(broker));
    let eligible = planted(Flaw::UnregisterKeepsElr);
    let departure = Departure {
        gone: BTreeMap::new(),
        lost: if eligible { BTreeSet::new() } else { BTreeSet::from([broker]) },
        forgotten: Some(broker),
        reason: ShrinkReason::BrokerFenced,
        reports: BTreeMap::new(),
        live: Live::of(image),
    };
    departure.carry_out(draft);
    Ok(Answer::Done)
}
