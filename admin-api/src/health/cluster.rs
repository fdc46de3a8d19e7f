//! Health of the cluster (operators.md 1.4 C): what is wrong, how much of it, since when, and because of whom.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::image::{BrokerState, ChangeKind, PartitionState};
use highwater_quorum::planner::QuorumFacts;
use highwater_quorum::{MetadataImage, PeerStatus, QuorumStatus};
use highwater_wire::{BrokerId, TopicPartition};
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::configs;
use crate::error::ApiError;
use crate::live::BUDGET;
use crate::partitions::state::states;
use crate::respond::{Call, Metadata, Related};
use crate::time::now_ms;

use super::CLUSTER_PARAMETERS;

#[derive(Debug, Serialize, JsonSchema)]
pub struct HealthBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    healthy: bool,
    /// Since when something is wrong; `null` while nothing is.
    since_ms: Option<i64>,
    reasons: Vec<ReasonBody>,
    brokers: BrokersBody,
    partitions: PartitionsBody,
    quorum: QuorumBody,
    disk: DiskBody,
    /// Brokers that work with other settings than those set on them, until their next start; of those that answer.
    pending_restart: Vec<i32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReasonBody {
    code: &'static str,
    severity: &'static str,
    count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<Related>,
    cause: CauseBody,
}

/// The smallest set of brokers found that explains the affected partitions.
#[derive(Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct CauseBody {
    brokers: Vec<i32>,
    explains: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BrokersBody {
    total: usize,
    unfenced: usize,
    fenced: Vec<i32>,
    shutting_down: Vec<i32>,
    maintenance: [(); 0],
    decommissioning: [(); 0],
}

/// Partitions by state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PartitionsBody {
    pub total: usize,
    pub offline: usize,
    pub under_min_isr: usize,
    pub at_min_isr: usize,
    pub under_replicated: usize,
    pub elr_only: usize,
    pub not_preferred: usize,
    pub reassigning: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "QuorumHealthBody")]
struct QuorumBody {
    leader_id: Option<i32>,
    leader_epoch: Option<u64>,
    voters: Option<usize>,
    caught_up: Option<usize>,
    can_lose: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DiskBody {
    low: [(); 0],
    read_only: [(); 0],
}

/// Counts the partitions of an image by state.
pub fn count(image: &MetadataImage) -> PartitionsBody {
    let mut counts = PartitionsBody::default();
    for topic in image.topics.values() {
        for state in &topic.partitions {
            counts.total += 1;
            for word in states(state, topic.config.min_isr) {
                match word {
                    "OFFLINE" => counts.offline += 1,
                    "UNDER_MIN_ISR" => counts.under_min_isr += 1,
                    "AT_MIN_ISR" => counts.at_min_isr += 1,
                    "UNDER_REPLICATED" => counts.under_replicated += 1,
                    "ELR_ONLY" => counts.elr_only += 1,
                    "NOT_PREFERRED_LEADER" => counts.not_preferred += 1,
                    "REASSIGNING" => counts.reassigning += 1,
                    _ => {}
                }
            }
        }
    }
    counts
}

/// One kind of trouble with partitions.
struct Trouble {
    /// For each affected partition, the brokers of whom one would have to be there.
    missing: Vec<BTreeSet<BrokerId>>,
    since_ms: Option<i64>,
}

fn trouble(image: &MetadataImage, word: &str) -> Trouble {
    let mut found = Trouble { missing: Vec::new(), since_ms: None };
    for topic in image.topics.values() {
        for (partition, state) in (0..).zip(&topic.partitions) {
            if states(state, topic.config.min_isr).contains(&word) {
                found.missing.push(missing(image, state));
                let since = since(image, TopicPartition::new(topic.id, partition), word);
                found.since_ms = [found.since_ms, since].into_iter().flatten().min();
            }
        }
    }
    found
}

/// Who would have to be there: without a leader those who might lead, if anybody may; else the replicas outside the ISR.
/// Where brokers that take no part are among them, the others are not to blame.
fn missing(image: &MetadataImage, state: &PartitionState) -> BTreeSet<BrokerId> {
    let might_lead: BTreeSet<BrokerId> = match state.leader {
        None => state.elr.iter().chain(&state.last_known_elr).copied().collect(),
        Some(_) => BTreeSet::new(),
    };
    let outside = || state.replicas.iter().filter(|id| !state.isr.contains(id)).copied().collect();
    let missing: BTreeSet<BrokerId> = if might_lead.is_empty() { outside() } else { might_lead };
    let takes_part = |id: &BrokerId| image.broker(*id).is_some_and(|broker| broker.is_active());
    let away: BTreeSet<BrokerId> = missing.iter().filter(|id| !takes_part(id)).copied().collect();
    if away.is_empty() { missing } else { away }
}

/// When the present trouble of a partition began, as far as its history tells.
fn since(image: &MetadataImage, at: TopicPartition, word: &str) -> Option<i64> {
    let changes = image.history.get(&at)?;
    let lost = |kind: &ChangeKind| match kind {
        ChangeKind::Leader { .. } => word == "OFFLINE",
        ChangeKind::Shrink { .. } => word != "OFFLINE",
        ChangeKind::Expand { .. } | ChangeKind::DataLoss { .. } => false,
    };
    changes.iter().rev().find(|change| lost(&change.kind)).map(|change| change.time.0)
}

/// Sets of up to this many brokers are all tried; beyond it the broker that explains most is taken first.
const TRIED: usize = 3;

/// The smallest set of brokers of which every affected partition misses one.
fn cause(missing: &[BTreeSet<BrokerId>]) -> CauseBody {
    let explains = missing.iter().filter(|set| !set.is_empty()).count();
    let kinds: BTreeSet<&BTreeSet<BrokerId>> = missing.iter().filter(|set| !set.is_empty()).collect();
    let mut weights: BTreeMap<BrokerId, usize> = BTreeMap::new();
    for broker in missing.iter().flatten() {
        *weights.entry(*broker).or_default() += 1;
    }
    // Whoever is missing most comes first, so that of several smallest sets the likeliest is found.
    let mut suspects: Vec<BrokerId> = weights.keys().copied().collect();
    suspects.sort_by_key(|broker| (std::cmp::Reverse(weights.get(broker).copied()), *broker));
    let smallest = (1..=TRIED).find_map(|size| hitting(&kinds, &suspects, size));
    let mut brokers = smallest.unwrap_or_else(|| greedy(&kinds, &suspects));
    brokers.sort_unstable();
    CauseBody { brokers: brokers.iter().map(|broker| broker.0).collect(), explains }
}

/// At most `size` of the suspects that meet every set.
fn hitting(kinds: &BTreeSet<&BTreeSet<BrokerId>>, suspects: &[BrokerId], size: usize) -> Option<Vec<BrokerId>> {
    let Some(first) = kinds.first() else { return Some(Vec::new()) };
    if size == 0 {
        return None;
    }
    // One of the first set must be among them.
    suspects.iter().filter(|suspect| first.contains(suspect)).find_map(|suspect| {
        let left = kinds.iter().filter(|set| !set.contains(suspect)).copied().collect();
        let mut found = hitting(&left, suspects, size - 1)?;
        found.push(*suspect);
        Some(found)
    })
}

fn greedy(kinds: &BTreeSet<&BTreeSet<BrokerId>>, suspects: &[BrokerId]) -> Vec<BrokerId> {
    let mut left = kinds.clone();
    let mut found = Vec::new();
    while !left.is_empty() {
        let explained = |suspect: &BrokerId| left.iter().filter(|set| set.contains(suspect)).count();
        let Some(most) = suspects.iter().rev().max_by_key(|suspect| explained(suspect)) else { break };
        left.retain(|set| !set.contains(most));
        found.push(*most);
    }
    found
}

/// What can be wrong with partitions, and how bad it is.
const TROUBLES: [(&str, &str); 3] =
    [("OFFLINE", "critical"), ("UNDER_MIN_ISR", "critical"), ("UNDER_REPLICATED", "warning")];

/// The brokers that take no part, by what is said of them.
fn brokers_away(image: &MetadataImage) -> [(&'static str, Vec<i32>); 2] {
    let with_state = |state: BrokerState| -> Vec<i32> {
        image.brokers.values().filter(|broker| broker.state == state).map(|broker| broker.id.0).collect()
    };
    [
        ("BROKER_FENCED", with_state(BrokerState::Fenced)),
        ("BROKER_SHUTTING_DOWN", with_state(BrokerState::ShuttingDown)),
    ]
}

/// The codes of all that the metadata says is wrong.
pub fn trouble_codes(image: &MetadataImage) -> Vec<&'static str> {
    let troubles = TROUBLES.iter().map(|(code, _)| *code).filter(|code| !trouble(image, code).missing.is_empty());
    let serves = nobody_serves(image).map(|(reason, _)| reason.code);
    let away = brokers_away(image).into_iter().filter(|(_, brokers)| !brokers.is_empty()).map(|(code, _)| code);
    troubles.chain(serves).chain(away).collect()
}

/// `GET /health` of the cluster; `fail=true` makes it 503 when something is wrong.
pub async fn show(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[CLUSTER_PARAMETERS]).await?;
    let fail = read.params.flag("fail")?;
    let image = &read.image;
    let mut reasons = Vec::new();
    let mut since_ms: Option<i64> = None;
    for (word, severity) in TROUBLES {
        let trouble = trouble(image, word);
        if !trouble.missing.is_empty() {
            since_ms = [since_ms, trouble.since_ms].into_iter().flatten().min();
            reasons.push(ReasonBody {
                code: word,
                severity,
                count: trouble.missing.len(),
                partitions: Some(read.links.related(&format!("/topics/-/partitions/-/state?state={word}"))),
                cause: cause(&trouble.missing),
            });
        }
    }
    if let Some((reason, since)) = nobody_serves(image) {
        since_ms = [since_ms, since].into_iter().flatten().min();
        reasons.push(reason);
    }
    let away = brokers_away(image);
    for (code, brokers) in &away {
        if !brokers.is_empty() {
            let since = image.brokers.values().filter(|b| brokers.contains(&b.id.0)).map(|b| b.state_since.0).min();
            since_ms = [since_ms, since].into_iter().flatten().min();
            let cause = CauseBody { brokers: brokers.clone(), explains: brokers.len() };
            reasons.push(ReasonBody { code, severity: "warning", count: brokers.len(), partitions: None, cause });
        }
    }
    let [(_, fenced), (_, shutting_down)] = away;
    let leader = admin.quorum.leader_status(BUDGET).await;
    let voters = leader.as_ref().and_then(QuorumFacts::of);
    for (reason, age_ms) in of_the_quorum(leader.as_ref(), voters.as_ref(), admin.quorum.status().leader_heard_age_ms) {
        reasons.push(reason);
        let since = age_ms.map(|age| now_ms() - i64::try_from(age).unwrap_or(0));
        since_ms = [since_ms, since].into_iter().flatten().min();
    }
    let healthy = reasons.is_empty();
    let body = HealthBody {
        kind: "KafkaClusterHealth",
        metadata: read.links.metadata("/health", &["health".to_owned()]),
        cluster_id: read.links.cluster_id().to_owned(),
        healthy,
        since_ms,
        reasons,
        brokers: BrokersBody {
            total: image.brokers.size(),
            unfenced: image.brokers.values().filter(|broker| broker.state != BrokerState::Fenced).count(),
            fenced,
            shutting_down,
            maintenance: [],
            decommissioning: [],
        },
        partitions: count(image),
        quorum: QuorumBody {
            leader_id: leader.as_ref().map(|status| status.node.0),
            leader_epoch: leader.as_ref().map(|status| status.term),
            voters: leader.as_ref().map(|status| status.voters.len()),
            caught_up: voters.as_ref().map(|voters| voters.caught_up.len()),
            can_lose: leader.as_ref().and_then(|status| status.can_lose),
        },
        disk: DiskBody { low: [], read_only: [] },
        pending_restart: configs::pending_restart(&admin, &read).await,
    };
    read.object(if healthy || !fail { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}

/// Without an active broker no record is stored or read, however well the quorum is: none has joined yet, or all are away,
/// since the last one went.
fn nobody_serves(image: &MetadataImage) -> Option<(ReasonBody, Option<i64>)> {
    if image.brokers.values().any(|broker| broker.is_active()) {
        return None;
    }
    let brokers: Vec<i32> = image.brokers.keys().map(|id| id.0).collect();
    let cause = CauseBody { explains: brokers.len(), brokers };
    let since = image.brokers.values().map(|broker| broker.state_since.0).max();
    Some((ReasonBody { code: "NO_ACTIVE_BROKER", severity: "critical", count: 1, partitions: None, cause }, since))
}

/// Silence after which a voter counts as down. Longer than what takes it out of `can_lose`, so that a slow moment is none.
const VOTER_SILENT_MS: u64 = 5_000;

/// What is wrong with the voters, and for how long already as far as that is known. Voters need not be brokers.
fn of_the_quorum(
    leader: Option<&QuorumStatus>,
    voters: Option<&QuorumFacts>,
    leader_heard_age_ms: Option<u64>,
) -> Vec<(ReasonBody, Option<u64>)> {
    let reason = |code, severity, count, brokers: Vec<i32>| {
        let cause = CauseBody { explains: brokers.len(), brokers };
        ReasonBody { code, severity, count, partitions: None, cause }
    };
    let Some(status) = leader else {
        return vec![(reason("NO_QUORUM_LEADER", "critical", 1, Vec::new()), leader_heard_age_ms)];
    };
    let mut reasons = Vec::new();
    let is_silent = |peer: &&PeerStatus| peer.voter && peer.contact_age_ms.is_none_or(|age| age > VOTER_SILENT_MS);
    let silent: Vec<&PeerStatus> = status.peers.iter().filter(is_silent).collect();
    if !silent.is_empty() {
        let age_ms = silent.iter().filter_map(|peer| peer.contact_age_ms).max();
        let brokers: Vec<i32> = silent.iter().map(|peer| peer.member.node.0).collect();
        reasons.push((reason("VOTER_DOWN", "warning", brokers.len(), brokers), age_ms));
    }
    // One or two voters can never lose one: that is how they were set up, not what happened to them.
    if status.voters.len() > 2 && status.can_lose == Some(0) {
        let behind = |node: &&BrokerId| voters.is_none_or(|voters| !voters.caught_up.contains(node));
        let nodes = status.voters.iter().map(|voter| &voter.node).filter(behind);
        let brokers: Vec<i32> = nodes.map(|node| node.0).collect();
        reasons.push((reason("QUORUM_CANNOT_LOSE_ONE", "warning", 1, brokers), None));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_smallest_set_of_brokers_that_explains_all() {
        let set = |ids: &[i32]| ids.iter().map(|id| BrokerId(*id)).collect::<BTreeSet<_>>();
        let missing = [set(&[1]), set(&[1, 2]), set(&[1, 3]), set(&[3])];
        assert_eq!(cause(&missing), CauseBody { brokers: vec![1, 3], explains: 4 });
        // Whoever takes the broker that is missing most ends with three.
        let tempting = [set(&[1, 2]), set(&[1, 3]), set(&[1, 2]), set(&[1, 3]), set(&[2, 4]), set(&[3, 4])];
        assert_eq!(cause(&tempting), CauseBody { brokers: vec![1, 4], explains: 6 });
        let crossed = [set(&[1, 2]), set(&[1, 3]), set(&[2, 4]), set(&[3, 5])];
        assert_eq!(cause(&crossed), CauseBody { brokers: vec![2, 3], explains: 4 });
        let many: Vec<_> = (1..=6).map(|id| set(&[id])).collect();
        assert_eq!(cause(&many), CauseBody { brokers: vec![1, 2, 3, 4, 5, 6], explains: 6 });
        assert_eq!(cause(&[]), CauseBody::default());
    }

    #[test]
    fn without_a_leader_those_are_to_blame_who_might_lead() {
        let mut state = PartitionState {
            replicas: vec![BrokerId(1), BrokerId(2), BrokerId(3)],
            directories: vec![highwater_wire::DirectoryId::from_bytes([1; 16]); 3],
            adding: vec![],
            removing: vec![],
            isr: vec![],
            elr: vec![BrokerId(2)],
            last_known_elr: vec![BrokerId(3)],
            leader: None,
            leader_epoch: highwater_wire::LeaderEpoch(1),
            partition_epoch: highwater_wire::PartitionEpoch(1),
            recovery: highwater_quorum::image::LeaderRecovery::Recovered,
            last_known_watermark: None,
            leader_since: highwater_wire::Timestamp(0),
        };
        let blamed = |state: &PartitionState| missing(&MetadataImage::default(), state).into_iter().collect::<Vec<_>>();
        assert_eq!(blamed(&state), [BrokerId(2), BrokerId(3)]);
        (state.elr, state.last_known_elr) = (vec![], vec![]);
        assert_eq!(blamed(&state), [BrokerId(1), BrokerId(2), BrokerId(3)]);
        (state.leader, state.isr) = (Some(BrokerId(1)), vec![BrokerId(1)]);
        assert_eq!(blamed(&state), [BrokerId(2), BrokerId(3)]);
    }

    fn peer(node: i32, contact_age_ms: Option<u64>) -> PeerStatus {
        let directory = highwater_wire::DirectoryId::from_bytes([1; 16]);
        let member = highwater_quorum::QuorumMember { node: BrokerId(node), directory };
        PeerStatus { member, voter: true, matched: None, lag: 0, contact_age_ms }
    }

    #[test]
    fn a_voter_that_is_down_is_told_also_while_the_quorum_can_lose_another() {
        let peers =
            vec![peer(1, Some(0)), peer(2, Some(50)), peer(3, Some(50)), peer(4, Some(50)), peer(5, Some(9_000))];
        let mut status = QuorumStatus {
            node: BrokerId(1),
            directory: peers[0].member.directory,
            incarnation: highwater_wire::IncarnationId::from_bytes([1; 16]),
            cluster_id: None,
            role: highwater_quorum::QuorumRole::Leader,
            term: 1,
            voted_for: None,
            leader: Some(BrokerId(1)),
            last_log: None,
            committed: None,
            applied: None,
            snapshot: None,
            purged: None,
            voters: peers.iter().map(|peer| peer.member).collect(),
            observers: vec![],
            joint: false,
            peers,
            quorum_ack_age_ms: Some(50),
            leader_heard_age_ms: Some(50),
            majority: 3,
            can_lose: Some(1),
            waiting: None,
            wiped: None,
            failed: None,
            election_timeout_ms: 600,
        };
        let told = |status: &QuorumStatus| -> Vec<(&'static str, Vec<i32>, Option<u64>)> {
            let reasons = of_the_quorum(Some(status), QuorumFacts::of(status).as_ref(), None);
            reasons.into_iter().map(|(reason, age)| (reason.code, reason.cause.brokers, age)).collect()
        };
        assert_eq!(told(&status), [("VOTER_DOWN", vec![5], Some(9_000))]);
        status.peers[3].contact_age_ms = None;
        status.can_lose = Some(0);
        let expected = [("VOTER_DOWN", vec![4, 5], Some(9_000)), ("QUORUM_CANNOT_LOSE_ONE", vec![4, 5], None)];
        assert_eq!(told(&status), expected);
        let nobody = of_the_quorum(None, None, Some(7));
        assert_eq!(
            nobody.iter().map(|(reason, age)| (reason.code, *age)).collect::<Vec<_>>(),
            [("NO_QUORUM_LEADER", Some(7))]
        );
    }
}
