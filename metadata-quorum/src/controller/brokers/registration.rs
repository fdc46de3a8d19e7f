//! Registration of a broker's process (R166–R169, D9, D10).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_wire::{BrokerEpoch, DirectoryId};

use super::{Departure, Draft, Live};
use crate::controller::transition::Transition;
use crate::controller::{Answer, DataClaim, Refusal, RegisterBroker};
use crate::flaws::{Flaw, planted};
use crate::image::{BrokerRegistration, BrokerState, Change, DataProof, METADATA_FEATURE, MetadataImage, ShrinkReason};

/// A new process takes over the broker's id: fenced, under a new epoch, out of every ISR, and out of every ELR unless it
/// proves that it holds all its predecessor held. The same process again keeps its epoch and state (R167).
pub(in crate::controller) fn register(draft: &mut Draft, request: &RegisterBroker) -> Result<Answer, Refusal> {
    let image = draft.image;
    check(image, request)?;
    let previous = image.broker(request.broker);
    if let Some(previous) = previous
        && previous.incarnation == request.incarnation
    {
        let same = registration(request, previous.epoch, previous.state, previous.kept_data);
        let same = BrokerRegistration { state_since: previous.state_since, ..same };
        if same.log_dirs != previous.log_dirs {
            let why = "a running process cannot change its log directories; restart it".to_owned();
            return Err(Refusal::InvalidRegistration(why));
        }
        if same != **previous {
            draft.push(Change::Broker(Arc::new(same)));
        }
        return Ok(Answer::Registered { epoch: previous.epoch });
    }
    if previous.is_some_and(|previous| previous.is_active()) && !request.previous_is_dead {
        return Err(Refusal::DuplicateRegistration(request.broker));
    }
    let fresh = BrokerEpoch(i64::try_from(draft.index).expect("raft indexes stay below 2^63"));
    let epoch = previous.filter(|_| planted(Flaw::OneEpochForAll)).map_or(fresh, |previous| previous.epoch);
    let proof = proof(previous.map(Arc::as_ref), request);
    draft.push(Change::Broker(Arc::new(registration(request, epoch, BrokerState::Fenced, proof))));
    if !planted(Flaw::RegistrationKeepsIsr) {
        take_out(draft, request, proof, previous.map(Arc::as_ref));
    }
    Ok(Answer::Registered { epoch })
}

/// R169 as amended by D10. A broker whose directory is another than before gets the new one written into its partitions.
fn take_out(draft: &mut Draft, request: &RegisterBroker, proof: DataProof, previous: Option<&BrokerRegistration>) {
    let (image, broker) = (draft.image, request.broker);
    let lost = if proof == DataProof::None { BTreeSet::from([broker]) } else { BTreeSet::new() };
    let gone = BTreeMap::from([(broker, None)]);
    let keeps_all = planted(Flaw::RegistrationKeepsIsr);
    let departure = Departure {
        gone: if keeps_all { BTreeMap::new() } else { gone },
        lost: if keeps_all { BTreeSet::new() } else { lost },
        forgotten: None,
        reason: ShrinkReason::BrokerRestarted,
        reports: BTreeMap::new(),
        live: Live::of(image).without([&broker]),
    };
    let moved = previous.is_none_or(|previous| previous.log_dirs != request.log_dirs);
    let directory = request.log_dirs.first().copied().filter(|_| moved);
    for (at, topic, state) in image.partitions() {
        let place = directory.and_then(|directory| {
            let place = state.replicas.iter().position(|id| *id == broker)?;
            (state.directories[place] != directory).then_some((place, directory))
        });
        if place.is_none() && !departure.concerns(state) {
            continue;
        }
        let mut step = Transition::new(at, topic, state);
        if let Some((place, directory)) = place {
            step.after.directories[place] = directory;
        }
        departure.of_partition(&mut step, state, at);
        step.finish(draft, None);
    }
}

/// What the claim proves against the last registration. A marker found in another directory than the registered one
/// proves nothing.
fn proof(previous: Option<&BrokerRegistration>, request: &RegisterBroker) -> DataProof {
    match (previous, &request.claim) {
        (Some(previous), _) if previous.log_dirs != request.log_dirs => DataProof::None,
        (Some(previous), DataClaim::CleanStop { epoch }) if *epoch == previous.epoch => DataProof::CleanStop,
        (Some(previous), DataClaim::SameBoot { incarnation }) if *incarnation == previous.incarnation => {
            DataProof::SameBoot
        }
        (Some(previous), DataClaim::Survivors { clean_epoch: Some(epoch), .. }) if *epoch == previous.epoch => {
            DataProof::CleanStop
        }
        (Some(previous), DataClaim::Survivors { incarnations, .. }) if incarnations.contains(&previous.incarnation) => {
            DataProof::SameBoot
        }
        _ => DataProof::None,
    }
}

fn registration(
    request: &RegisterBroker,
    epoch: BrokerEpoch,
    state: BrokerState,
    kept_data: DataProof,
) -> BrokerRegistration {
    BrokerRegistration {
        id: request.broker,
        incarnation: request.incarnation,
        epoch,
        listeners: request.listeners.clone(),
        inter_broker_listener: request.inter_broker_listener.clone(),
        controller_url: request.controller_url.clone(),
        admin_url: request.admin_url.clone(),
        rack: request.rack.clone(),
        log_dirs: request.log_dirs.clone(),
        metadata_dir: request.metadata_dir,
        features: request.features.clone(),
        version: request.version.clone(),
        state,
        state_since: request.time,
        kept_data,
    }
}

/// R166: 104, 35, 119, in this order.
fn check(image: &MetadataImage, request: &RegisterBroker) -> Result<(), Refusal> {
    let ours = image.cluster_id.as_deref().unwrap_or_default();
    if ours != request.cluster_id {
        let (ours, given) = (ours.to_owned(), request.cluster_id.clone());
        return Err(Refusal::InconsistentClusterId { ours, given });
    }
    if request.features.get(METADATA_FEATURE).copied().unwrap_or(1) < image.feature_level {
        return Err(Refusal::UnsupportedFeature { level: image.feature_level });
    }
    match fault(image, request) {
        Some(fault) => Err(Refusal::InvalidRegistration(fault)),
        None => Ok(()),
    }
}

fn fault(image: &MetadataImage, request: &RegisterBroker) -> Option<String> {
    let RegisterBroker { broker, listeners, inter_broker_listener, log_dirs, metadata_dir, .. } = request;
    if broker.0 < 0 {
        return Some(format!("node.id {broker} is negative"));
    }
    if !listeners.contains_key(inter_broker_listener) {
        let names: Vec<_> = listeners.keys().collect();
        return Some(format!(
            "inter.broker.listener.name {inter_broker_listener:?} is none of its listeners {names:?}"
        ));
    }
    if request.controller_url.is_empty() {
        return Some("it names no controller listener, over which the quorum reaches it".to_owned());
    }
    let [log_dir] = log_dirs.as_slice() else {
        return Some(format!("it has {} log directories; exactly one is served so far", log_dirs.len()));
    };
    for directory in [log_dir, metadata_dir] {
        if is_reserved(*directory) {
            return Some(format!("directory id {directory} is reserved; format the directory anew"));
        }
        let owns = |other: &&Arc<BrokerRegistration>| {
            other.id != *broker && (other.log_dirs.contains(directory) || other.metadata_dir == *directory)
        };
        if let Some(other) = image.brokers.values().find(owns) {
            let other = other.id;
            return Some(format!("directory {directory} belongs to broker {other}: was it copied? format it anew"));
        }
    }
    None
}

/// Kafka keeps the first hundred ids for meanings of its own.
fn is_reserved(directory: DirectoryId) -> bool {
    let bytes = directory.to_bytes();
    bytes[..15].iter().all(|byte| *byte == 0) && bytes[15] < 100
}
