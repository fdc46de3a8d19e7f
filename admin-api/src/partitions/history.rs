//! `.../history` and `.../leader-epochs`: what happened to a partition, why, and by what evidence (operators.md 1.4 B).
//! Both come from the image, so any node tells the same story, also when the leader is gone.

use axum::extract::{Path, State};
use axum::response::Response;
use highwater_quorum::MetadataImage;
use highwater_quorum::image::{
    ChangeKind, Evidence, ExpandReason, LeaderReason, PartitionChange, ShrinkReason, WatermarkSource,
};
use highwater_wire::{BrokerId, TopicPartition};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Chosen, choose, ids, one};
use crate::AdminState;
use crate::error::ApiError;
use crate::live;
use crate::query::LIST;
use crate::respond::{Call, Row, number_key};
use crate::routes::{self, Route};
use crate::time::{now_ms, rfc3339};

const FILTERS: &[&str] = &["type", "since", "until", "broker_id", "reason", "topic"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    let partition = |rest: &str| format!("/topics/{{topic_name}}/partitions/{{partition_id}}{rest}");
    vec![
        routes::get(&partition("/history"), history, "Every change of ISR and leader, with reason and evidence")
            .list::<ChangeBody>("KafkaPartitionHistoryList")
            .knows(FILTERS),
        routes::get(
            &partition("/leader-epochs"),
            leader_epochs,
            "Each leadership, and who had to give up records for it",
        )
        .list::<EpochBody>("KafkaLeaderEpochList"),
    ]
}

/// The word of a reason why a replica left the ISR.
pub const fn shrink_reason(reason: ShrinkReason) -> &'static str {
    match reason {
        ShrinkReason::FollowerStoppedFetching => "FOLLOWER_STOPPED_FETCHING",
        ShrinkReason::FollowerSlow => "FOLLOWER_SLOW",
        ShrinkReason::BrokerFenced => "BROKER_FENCED",
        ShrinkReason::BrokerRestarted => "BROKER_RESTARTED",
        ShrinkReason::ControlledShutdown => "CONTROLLED_SHUTDOWN",
        ShrinkReason::LogDirOffline => "LOG_DIR_OFFLINE",
        ShrinkReason::Reassignment => "REASSIGNMENT",
        ShrinkReason::UncleanElection => "UNCLEAN_ELECTION",
    }
}

/// The word of a reason why a replica came into the ISR.
pub const fn expand_reason(reason: ExpandReason) -> &'static str {
    match reason {
        ExpandReason::CaughtUp => "CAUGHT_UP",
        ExpandReason::BrokerReturned => "BROKER_RETURNED",
    }
}

/// The word of a reason for an election.
pub const fn leader_reason(reason: LeaderReason) -> &'static str {
    match reason {
        LeaderReason::Created => "CREATED",
        LeaderReason::Preferred => "PREFERRED",
        LeaderReason::Failover => "FAILOVER",
        LeaderReason::Elr => "ELR",
        LeaderReason::LastKnown => "LAST_KNOWN",
        LeaderReason::Unclean => "UNCLEAN",
        LeaderReason::Designated => "DESIGNATED",
        LeaderReason::Reassignment => "REASSIGNMENT",
        LeaderReason::Drain => "DRAIN",
        LeaderReason::Lost => "LOST",
    }
}

/// How the last leader's watermark is known.
pub const fn watermark_source(source: WatermarkSource) -> &'static str {
    match source {
        WatermarkSource::Reported => "REPORTED",
        WatermarkSource::IsrChange => "ISR_CHANGE",
    }
}

const TYPES: &[&str] = &["ISR_SHRINK", "ISR_EXPAND", "LEADER_CHANGE", "DATA_LOSS"];

#[derive(Debug, Serialize, JsonSchema)]
struct ChangeBody {
    kind: &'static str,
    #[serde(rename = "type")]
    type_: &'static str,
    time: String,
    time_ms: i64,
    metadata_offset: u64,
    /// Counts the changes of one partition.
    sequence: u64,
    topic_name: String,
    partition_id: i32,
    isr_before: Option<Vec<i32>>,
    isr_after: Option<Vec<i32>>,
    leader_before: Option<i32>,
    leader_id: Option<i32>,
    leader_epoch: i32,
    partition_epoch_after: i32,
    /// `null`: the controller itself.
    requested_by: Option<RequestedBy>,
    reason: &'static str,
    /// Of a `DATA_LOSS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<LossBody>,
    /// Of the first replica concerned.
    evidence: Option<EvidenceBody>,
    /// Of the others, when one change concerned several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    further_evidence: Vec<EvidenceBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RequestedBy {
    broker_id: i32,
}

/// Offsets from `from_offset` on, up to `to_offset`, were committed and are gone.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LossBody {
    /// `null`: the new leader did not say where its log ended.
    from_offset: Option<i64>,
    /// The last leader's watermark as last known, exclusive; `null`: nothing is known. Not above `from_offset`: nothing is
    /// known to be lost.
    to_offset: Option<i64>,
    committed_records_lost_at_least: Option<u64>,
    /// Whether no more can be lost than that. The last report is a lower bound, so this is not said of it.
    exact: bool,
    known_at_ms: Option<i64>,
    /// The last leader.
    reported_by: Option<i32>,
    source: Option<&'static str>,
}

impl LossBody {
    /// `None`: not a loss.
    pub fn of(kind: &ChangeKind) -> Option<Self> {
        let ChangeKind::DataLoss { from, known } = kind else { return None };
        Some(Self {
            from_offset: from.map(|offset| offset.0),
            to_offset: known.map(|known| known.high_watermark.0),
            committed_records_lost_at_least: from.and(known.as_ref()).map(|_| kind.records_lost()),
            exact: false,
            known_at_ms: known.map(|known| known.known.0),
            reported_by: known.and_then(|known| known.leader).map(|leader| leader.0),
            source: known.map(|known| watermark_source(known.source)),
        })
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EvidenceBody {
    broker_id: i32,
    follower_log_end_offset: Option<i64>,
    leader_log_end_offset: Option<i64>,
    lag_ms: Option<u64>,
    last_fetch_age_ms: Option<u64>,
    last_caught_up_age_ms: Option<u64>,
    note: Option<String>,
}

impl From<&Evidence> for EvidenceBody {
    fn from(evidence: &Evidence) -> Self {
        Self {
            broker_id: evidence.broker.0,
            follower_log_end_offset: evidence.follower_end.map(|offset| offset.0),
            leader_log_end_offset: evidence.leader_end.map(|offset| offset.0),
            lag_ms: evidence.lag_ms,
            last_fetch_age_ms: evidence.last_fetch_age_ms,
            last_caught_up_age_ms: evidence.last_caught_up_age_ms,
            note: evidence.note.clone(),
        }
    }
}

impl ChangeBody {
    fn new(topic: &str, partition: i32, change: &PartitionChange) -> Self {
        let (type_, reason) = words(&change.kind);
        let (before, after, evidence) = match &change.kind {
            ChangeKind::Shrink { before, after, evidence, .. } | ChangeKind::Expand { before, after, evidence, .. } => {
                (Some(ids(before)), Some(ids(after)), evidence.as_slice())
            }
            ChangeKind::Leader { .. } | ChangeKind::DataLoss { .. } => (None, None, [].as_slice()),
        };
        let leader_before = match &change.kind {
            ChangeKind::Leader { before, .. } => before.map(|broker| broker.0),
            _ => None,
        };
        let loss = LossBody::of(&change.kind);
        // What a leader says of itself comes after what it says of those who left or joined.
        let (of_requester, of_others): (Vec<_>, Vec<_>) =
            evidence.iter().partition(|evidence| Some(evidence.broker) == change.requested_by);
        let mut evidence = of_others.into_iter().chain(of_requester).map(EvidenceBody::from);
        Self {
            kind: "KafkaPartitionChange",
            type_,
            time: rfc3339(change.time.0),
            time_ms: change.time.0,
            metadata_offset: change.index,
            sequence: change.sequence,
            topic_name: topic.to_owned(),
            partition_id: partition,
            isr_before: before,
            isr_after: after,
            leader_before,
            leader_id: change.leader.map(|leader| leader.0),
            leader_epoch: change.leader_epoch.0,
            partition_epoch_after: change.partition_epoch.0,
            requested_by: change.requested_by.map(|broker| RequestedBy { broker_id: broker.0 }),
            reason,
            loss,
            evidence: evidence.next(),
            further_evidence: evidence.collect(),
        }
    }
}

/// Type and reason of a change.
pub fn words(kind: &ChangeKind) -> (&'static str, &'static str) {
    match kind {
        ChangeKind::Shrink { reason, .. } => ("ISR_SHRINK", shrink_reason(*reason)),
        ChangeKind::Expand { reason, .. } => ("ISR_EXPAND", expand_reason(*reason)),
        ChangeKind::Leader { reason, .. } => ("LEADER_CHANGE", leader_reason(*reason)),
        ChangeKind::DataLoss { .. } => ("DATA_LOSS", leader_reason(LeaderReason::Unclean)),
    }
}

/// The brokers that a change is about: who came, who went, who led and who leads.
pub fn concerned(change: &PartitionChange) -> Vec<i32> {
    match &change.kind {
        ChangeKind::Shrink { before, after, .. } => missing(before, after),
        ChangeKind::Expand { before, after, .. } => missing(after, before),
        ChangeKind::Leader { before, .. } => before.iter().chain(&change.leader).map(|broker| broker.0).collect(),
        ChangeKind::DataLoss { known, .. } => {
            let last = known.and_then(|known| known.leader);
            last.iter().chain(&change.leader).map(|broker| broker.0).collect()
        }
    }
}

/// Those of `of` that `than` lacks.
pub fn missing(of: &[BrokerId], than: &[BrokerId]) -> Vec<i32> {
    of.iter().filter(|broker| !than.contains(broker)).map(|broker| broker.0).collect()
}

/// `GET .../history`; filters `type`, `since`, `until`, `broker_id`, `reason`, `topic`. Oldest first per partition.
pub async fn history(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST, FILTERS]).await?;
    let now_ms = now_ms();
    let types = read.params.filter("type", Some(TYPES))?;
    let reasons = read.params.filter("reason", None)?;
    let brokers = read.params.number_filter("broker_id")?;
    let names = read.params.filter("topic", None)?;
    let since = read.params.time("since", now_ms)?.unwrap_or(i64::MIN);
    let until = read.params.time("until", now_ms)?.unwrap_or(i64::MAX);
    let mut rows = Vec::new();
    for chosen in choose(&read.image, &topic, &partition)? {
        if !names.admits(&chosen.topic.name) {
            continue;
        }
        for change in changes(&read.image, chosen.at()) {
            let (type_, reason) = words(&change.kind);
            let wanted = types.admits(type_)
                && reasons.admits(reason)
                && (since..=until).contains(&change.time.0)
                && (brokers.is_empty() || brokers.admits_numbers(concerned(change).into_iter()));
            if wanted {
                let key = [&*chosen.topic.name, &number_key(chosen.partition), &format!("{:020}", change.sequence)];
                rows.push(Row::new(&key, ChangeBody::new(&chosen.topic.name, chosen.partition, change)));
            }
        }
    }
    read.counted_list("KafkaPartitionHistoryList", rows)
}

fn changes(image: &MetadataImage, at: TopicPartition) -> impl DoubleEndedIterator<Item = &PartitionChange> {
    image.history.get(&at).into_iter().flat_map(|changes| changes.iter()).map(AsRef::as_ref)
}

#[derive(Debug, Serialize, JsonSchema)]
struct EpochBody {
    kind: &'static str,
    topic_name: String,
    partition_id: i32,
    leader_epoch: i32,
    /// `null` when the leader did not answer, or its log holds no record of this epoch.
    start_offset: Option<i64>,
    /// `null` for the last one.
    end_offset: Option<i64>,
    leader_id: Option<i32>,
    since_ms: Option<i64>,
    reason: Option<&'static str>,
    truncated_on: Vec<TruncatedBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TruncatedBody {
    broker_id: i32,
    from_offset: i64,
    to_offset: i64,
    time_ms: i64,
}

/// `GET .../leader-epochs`: each leadership with its first offset, and who had to give up records when it began.
///
/// Offsets come from the leader's log, leaders and reasons from the history in the image; what either lacks is null.
pub async fn leader_epochs(
    State(admin): State<AdminState>,
    Path((cluster, topic, partition)): Path<(String, String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[LIST]).await?;
    let chosen: Chosen<'_> = one(&read, &topic, &partition)?;
    let at = chosen.at();
    let live = live::from_replicas(&admin, &read.image, std::iter::once(at)).await;
    let leader = chosen.state.leader.and_then(|leader| live.get(&(leader, at))).filter(|live| live.is_leader);
    let starts = leader.map_or(&[][..], |leader| leader.leader_epochs.as_slice());
    // The first change of an epoch is the election that began it.
    let elections: Vec<&PartitionChange> = changes(&read.image, at)
        .filter(|change| matches!(change.kind, ChangeKind::Leader { .. }) && change.leader.is_some())
        .collect();
    let mut epochs: Vec<i32> =
        starts.iter().map(|(epoch, _)| *epoch).chain(elections.iter().map(|change| change.leader_epoch.0)).collect();
    epochs.sort_unstable();
    epochs.dedup();
    let mut rows = Vec::new();
    for epoch in epochs {
        let place = starts.iter().position(|(other, _)| *other == epoch);
        let election = elections.iter().find(|change| change.leader_epoch.0 == epoch);
        let truncated_on = live
            .iter()
            .filter_map(|((broker, _), replica)| Some((broker, replica.last_truncation.as_ref()?)))
            .filter(|(_, truncation)| truncation.leader_epoch == epoch)
            .map(|(broker, truncation)| TruncatedBody {
                broker_id: broker.0,
                from_offset: truncation.from_offset,
                to_offset: truncation.to_offset,
                time_ms: truncation.time_ms,
            });
        let body = EpochBody {
            kind: "KafkaLeaderEpoch",
            topic_name: chosen.topic.name.to_string(),
            partition_id: chosen.partition,
            leader_epoch: epoch,
            start_offset: place.map(|place| starts[place].1),
            end_offset: place.and_then(|place| starts.get(place + 1)).map(|(_, start)| *start),
            leader_id: election.and_then(|change| change.leader).map(|leader| leader.0),
            since_ms: election.map(|change| change.time.0),
            reason: election.map(|change| words(&change.kind).1),
            truncated_on: truncated_on.collect(),
        };
        rows.push(Row::new(&[&number_key(epoch)], body));
    }
    read.list("KafkaLeaderEpochList", rows)
}

#[cfg(test)]
mod tests {
    use highwater_wire::{LeaderEpoch, Offset, PartitionEpoch, Timestamp};

    use super::*;

    #[test]
    fn a_shrink_tells_who_left_why_and_by_what_evidence() {
        let change = PartitionChange {
            index: 88_210,
            sequence: 3,
            time: Timestamp(1_767_225_600_000),
            leader: Some(BrokerId(2)),
            leader_epoch: LeaderEpoch(14),
            partition_epoch: PartitionEpoch(31),
            requested_by: Some(BrokerId(2)),
            kind: ChangeKind::Shrink {
                before: vec![BrokerId(1), BrokerId(2), BrokerId(3)],
                after: vec![BrokerId(2), BrokerId(3)],
                reason: ShrinkReason::FollowerSlow,
                evidence: vec![Evidence {
                    broker: BrokerId(1),
                    follower_end: Some(Offset(1_031_000)),
                    leader_end: Some(Offset(1_046_100)),
                    lag_ms: Some(30_012),
                    last_fetch_age_ms: Some(84),
                    last_caught_up_age_ms: Some(30_012),
                    note: None,
                }],
            },
        };
        let body = serde_json::to_string(&ChangeBody::new("orders", 7, &change)).unwrap();
        for part in [
            r#"{"kind":"KafkaPartitionChange","type":"ISR_SHRINK","time":"2026-01-01T00:00:00.000Z""#,
            r#""metadata_offset":88210"#,
            r#""isr_before":[1,2,3],"isr_after":[2,3]"#,
            r#""requested_by":{"broker_id":2},"reason":"FOLLOWER_SLOW","evidence":{"broker_id":1,"follower_log_end_offset":1031000"#,
        ] {
            assert!(body.contains(part), "{part} is missing in {body}");
        }
        assert_eq!(concerned(&change), [1]);
    }

    #[test]
    fn what_a_leader_says_of_itself_comes_after_what_it_says_of_those_who_left() {
        let evidence = |broker, end| Evidence { leader_end: Some(Offset(end)), ..Evidence::about(BrokerId(broker)) };
        let change = PartitionChange {
            index: 7,
            sequence: 0,
            time: Timestamp(0),
            leader: Some(BrokerId(2)),
            leader_epoch: LeaderEpoch(1),
            partition_epoch: PartitionEpoch(1),
            requested_by: Some(BrokerId(2)),
            kind: ChangeKind::Shrink {
                before: vec![BrokerId(1), BrokerId(2)],
                after: vec![BrokerId(2)],
                reason: ShrinkReason::FollowerSlow,
                evidence: vec![evidence(2, 40), evidence(1, 45)],
            },
        };
        let body = ChangeBody::new("orders", 7, &change);
        let told = body.evidence.iter().chain(&body.further_evidence).map(|it| it.broker_id);
        assert_eq!(told.collect::<Vec<_>>(), [1, 2]);
    }
}
