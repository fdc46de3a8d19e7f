//! What an election would do: who would lead, who else could, and what it would cost. Pure; the live values are handed in.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use highwater_quorum::MetadataImage;
use highwater_quorum::controller::loss::{LastKnown, last_watermark};
use highwater_quorum::controller::{ChosenElection, KnownWatermark, is_clean};
use highwater_quorum::image::{LastReport, LastWatermark, WatermarkSource};
use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, Offset, PartitionEpoch, Timestamp, TopicPartition};

use super::ElectionType;
use crate::error::ApiError;
use crate::live::{LiveMap, LiveReplica};
use crate::partitions::Chosen;

/// One partition for which an election was asked for.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub chosen: Chosen<'a>,
    pub leader: Option<BrokerId>,
    pub expected_leader_epoch: Option<LeaderEpoch>,
    pub expected_partition_epoch: Option<PartitionEpoch>,
}

/// What would become of it.
pub struct Planned<'a> {
    pub wanted: Wanted<'a>,
    pub outcome: Outcome,
    /// Of an unclean election: those whose logs are known, the one with most to keep first.
    pub candidates: Vec<Candidate>,
    /// Who could lead without loss, if somebody started it.
    pub alternative: Option<String>,
}

/// The end of the plan for one partition.
pub enum Outcome {
    /// It leads already, or somebody does.
    NotNeeded,
    Elect {
        leader: BrokerId,
        /// `None`: nothing is lost.
        loss: Option<Loss>,
    },
    Ineligible(ApiError),
}

/// What an unclean election costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// The last leader's watermark, and where its log began.
    pub known: Option<LastKnown>,
    /// Where the new leader's log ends.
    pub new_end: Offset,
    /// The last leader itself was asked.
    pub exact: bool,
}

impl Loss {
    /// Committed records that are lost; `None`: nothing is known.
    pub fn records(&self) -> Option<u64> {
        self.known.map(|known| {
            let lost = known.watermark.high_watermark.since(known.first_lost(self.new_end));
            u64::try_from(lost).unwrap_or(0)
        })
    }
}

/// A replica that could lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub broker: BrokerId,
    /// Of the leader that wrote its last record; `None`: its log holds none.
    pub last_epoch: Option<LeaderEpoch>,
    pub end: Offset,
}

/// What plans are made of.
pub struct Facts<'a> {
    pub image: &'a MetadataImage,
    /// Of the replicas of all partitions whose election [`is_unclean`].
    pub live: LiveMap,
    /// What present leaders last reported of their watermarks.
    pub reported: BTreeMap<TopicPartition, KnownWatermark>,
    pub now_ms: i64,
}

/// Whether the live values of a partition's replicas are needed to plan its election.
pub fn is_unclean(type_: ElectionType, wanted: &Wanted<'_>) -> bool {
    let state = wanted.chosen.state;
    match (type_, wanted.leader) {
        (ElectionType::Preferred, _) | (ElectionType::Designated, None) => false,
        (ElectionType::Unclean, _) => state.leader.is_none(),
        (ElectionType::Designated, Some(leader)) => state.leader != Some(leader) && !is_clean(state, leader),
    }
}

/// Plans one election.
pub fn plan<'a>(facts: &Facts<'_>, type_: ElectionType, wanted: Wanted<'a>) -> Planned<'a> {
    let unclean = is_unclean(type_, &wanted);
    let candidates = if unclean { candidates(facts, wanted.chosen) } else { Vec::new() };
    let alternative = if unclean { alternative(facts, wanted.chosen) } else { None };
    let outcome = match outcome(facts, type_, &wanted, unclean, &candidates) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Ineligible(match &alternative {
            Some(text) => {
                let message = format!("{}; {text}", error.message);
                ApiError { message, ..error }
            }
            None => error,
        }),
    };
    Planned { wanted, outcome, candidates, alternative }
}

fn outcome(
    facts: &Facts<'_>,
    type_: ElectionType,
    wanted: &Wanted<'_>,
    unclean: bool,
    candidates: &[Candidate],
) -> Result<Outcome, ApiError> {
    let Chosen { state, .. } = wanted.chosen;
    let name = name(wanted.chosen);
    let is_active = |id: BrokerId| facts.image.broker(id).is_some_and(|broker| broker.is_active());
    let leader = match type_ {
        ElectionType::Preferred => state.replicas.first().copied(),
        // Whoever leads, no unclean election is needed (R192).
        ElectionType::Unclean if state.leader.is_some() => state.leader,
        ElectionType::Unclean => wanted.leader.or(candidates.first().map(|candidate| candidate.broker)),
        ElectionType::Designated => wanted.leader,
    };
    if leader.is_some() && state.leader == leader {
        return Ok(Outcome::NotNeeded);
    }
    check_expected(wanted)?;
    let Some(leader) = leader else {
        return Err(if state.replicas.iter().any(|id| is_active(*id)) {
            ApiError::broker_not_available(format!(
                "no replica of {name} told within 2 s where its log ends, so nobody can be chosen: try again"
            ))
        } else {
            ApiError::no_eligible_leader(
                ErrorCode::EligibleLeadersNotAvailable,
                format!("no replica of {name} is on a broker that is up: start one of {:?}", ids(&state.replicas)),
            )
        });
    };
    if !state.replicas.contains(&leader) {
        return Err(ApiError::refused(
            ErrorCode::InvalidRequest,
            format!("broker {leader} holds no replica of {name}: choose one of {:?}", ids(&state.replicas)),
        ));
    }
    if type_ == ElectionType::Preferred && !state.isr.contains(&leader) {
        return Err(ApiError::no_eligible_leader(
            ErrorCode::PreferredLeaderNotAvailable,
            format!("broker {leader}, the preferred leader of {name}, is not in sync: wait until it is"),
        ));
    }
    if !is_active(leader) {
        return Err(ApiError::no_eligible_leader(
            ErrorCode::EligibleLeadersNotAvailable,
            format!("broker {leader} cannot lead {name} now: it is fenced, shutting down or not registered; start it"),
        ));
    }
    if !unclean || is_clean(state, leader) {
        return Ok(Outcome::Elect { leader, loss: None });
    }
    let candidate = candidates.iter().find(|candidate| candidate.broker == leader).ok_or_else(|| {
        ApiError::broker_not_available(format!(
            "broker {leader} did not tell within 2 s where its log of {name} ends, so what would be lost is unknown: try \
             again"
        ))
    })?;
    Ok(Outcome::Elect { leader, loss: Some(loss_of(facts, wanted.chosen, candidate.end)) })
}

/// Does the caller know the present state?
fn check_expected(wanted: &Wanted<'_>) -> Result<(), ApiError> {
    let Chosen { state, .. } = wanted.chosen;
    let name = name(wanted.chosen);
    let stale = |what: &str, given: i32, current: i32| {
        Err(ApiError::stale(format!(
            "the {what} epoch of {name} is {current}, not {given} as expected: read its state and decide again"
        )))
    };
    match wanted.expected_leader_epoch {
        Some(given) if given != state.leader_epoch => return stale("leader", given.0, state.leader_epoch.0),
        _ => {}
    }
    match wanted.expected_partition_epoch {
        Some(given) if given != state.partition_epoch => stale("partition", given.0, state.partition_epoch.0),
        _ => Ok(()),
    }
}

/// The replicas that could lead and whose logs are known: by the epoch of their last record, then by their end, then in
/// the order of the assignment.
fn candidates(facts: &Facts<'_>, chosen: Chosen<'_>) -> Vec<Candidate> {
    let state = chosen.state;
    let up = |id: &&BrokerId| facts.image.broker(**id).is_some_and(|b| b.is_active()) && state.leader != Some(**id);
    let mut found: Vec<Candidate> = state
        .replicas
        .iter()
        .filter(up)
        .filter_map(|id| Some((*id, facts.live.get(&(*id, chosen.at()))?)))
        .filter(|(_, replica)| replica.offline.is_none())
        .map(|(broker, replica)| Candidate {
            broker,
            last_epoch: last_epoch(replica),
            end: Offset(replica.log_end_offset),
        })
        .collect();
    found.sort_by_key(|candidate| Reverse((candidate.last_epoch, candidate.end)));
    found
}

/// The epoch of the last record: an epoch that wrote none says nothing of how complete a log is.
fn last_epoch(replica: &LiveReplica) -> Option<LeaderEpoch> {
    let wrote = |(_, start): &&(i32, i64)| *start < replica.log_end_offset;
    let last = replica.leader_epochs.iter().rev().find(wrote);
    last.filter(|_| replica.log_end_offset > replica.log_start_offset).map(|(epoch, _)| LeaderEpoch(*epoch))
}

/// Who could lead without loss if it were up, or could take over from a leader that is there.
fn alternative(facts: &Facts<'_>, chosen: Chosen<'_>) -> Option<String> {
    let state = chosen.state;
    if let Some(leader) = state.leader {
        let in_sync: Vec<i32> = state.isr.iter().filter(|id| **id != leader).map(|id| id.0).collect();
        return Some(match in_sync.is_empty() {
            true => format!("broker {leader} leads and is up: nothing is lost while it does"),
            false => format!("choosing one of the in-sync brokers {in_sync:?} loses nothing"),
        });
    }
    let complete = state.isr.iter().chain(&state.elr);
    let texts: Vec<String> = complete
        .map(|id| {
            let set = if state.isr.contains(id) { "ISR" } else { "ELR" };
            let since = facts.image.broker(*id).map(|broker| (facts.now_ms - broker.state_since.0).max(0) / 1_000);
            match since {
                Some(seconds) => {
                    format!("broker {id} is in the {set} and fenced since {seconds} s; starting it loses nothing")
                }
                None => format!("broker {id} is in the {set} and not registered; starting it loses nothing"),
            }
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn loss_of(facts: &Facts<'_>, chosen: Chosen<'_>, new_end: Offset) -> Loss {
    let (state, at) = (chosen.state, chosen.at());
    let Some(leader) = state.leader else {
        let min_isr = state.effective_min_isr(chosen.topic.config.min_isr);
        let known = last_watermark(state, facts.image.history_of(at), min_isr);
        return Loss { known, new_end, exact: false };
    };
    let known = |high_watermark, known, log_start| {
        let (leader, source) = (Some(leader), WatermarkSource::Reported);
        Some(LastKnown { watermark: LastWatermark { high_watermark, known, leader, source }, log_start })
    };
    if let Some(live) = facts.live.get(&(leader, at)).filter(|live| live.is_leader) {
        let observed = Timestamp(live.observed_ms);
        let known = known(Offset(live.high_watermark), observed, Offset(live.log_start_offset));
        return Loss { known, new_end, exact: true };
    }
    let reported = facts.reported.get(&at);
    let known = reported.and_then(|told| known(told.high_watermark, told.reported, told.log_start));
    Loss { known, new_end, exact: false }
}

impl Planned<'_> {
    /// The command that carries it out; `None`: nothing to do. An unclean election is fenced by the state it was planned
    /// on, a clean one by what the caller expects.
    pub fn election(&self) -> Option<ChosenElection> {
        let Outcome::Elect { leader, loss } = &self.outcome else { return None };
        let (wanted, state) = (&self.wanted, self.wanted.chosen.state);
        let known = loss.and_then(|loss| loss.known).filter(|_| state.leader.is_some());
        Some(ChosenElection {
            partition: wanted.chosen.at(),
            leader: *leader,
            accept_loss: loss.is_some(),
            expected_leader_epoch: if loss.is_some() { Some(state.leader_epoch) } else { wanted.expected_leader_epoch },
            expected_partition_epoch: match loss {
                Some(_) => Some(state.partition_epoch),
                None => wanted.expected_partition_epoch,
            },
            watermark: known.map(|LastKnown { watermark: LastWatermark { high_watermark, known, .. }, log_start }| {
                LastReport { high_watermark, reported: known, log_start }
            }),
        })
    }

    /// The loss, if it is an unclean election.
    pub fn loss(&self) -> Option<&Loss> {
        match &self.outcome {
            Outcome::Elect { loss, .. } => loss.as_ref(),
            Outcome::NotNeeded | Outcome::Ineligible(_) => None,
        }
    }
}

/// `topic-partition`
pub fn name(chosen: Chosen<'_>) -> String {
    format!("{}-{}", chosen.topic.name, chosen.partition)
}

fn ids(brokers: &[BrokerId]) -> Vec<i32> {
    brokers.iter().map(|broker| broker.0).collect()
}
