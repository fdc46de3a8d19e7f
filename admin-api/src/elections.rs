//! `POST /elections`: leaders sent home, leaders named, and, where nobody can lead without loss, the choice of what to keep
//! (operators.md 1.4 E). What would be lost is told before, and nothing is lost without a confirmation of that plan.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use highwater_quorum::controller::ChosenElection;
use highwater_quorum::{Answer, Command, MetadataImage, Refusal};
use highwater_wire::{BrokerId, LeaderEpoch, PartitionEpoch, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::AdminState;
use crate::error::ApiError;
use crate::live;
use crate::partitions::history::watermark_source;
use crate::partitions::{Chosen, choose};
use crate::respond::{Call, Read, WRITE_TIMEOUT, read_json};
use crate::routes::{self, Route};
use crate::time::now_ms;

pub(crate) mod plan;
mod plan_id;
#[cfg(test)]
mod tests;

use plan::{Facts, Loss, Outcome, Planned, Wanted, name, plan};

/// Of `all`.
const FILTERS: &[&str] = &["topic", "broker_id"];

/// Elections in one entry (D17).
const BATCH: usize = 1_000;

/// This file's routes.
pub fn routes() -> Vec<Route> {
    let preferred = json!({
        "election_type": "PREFERRED",
        "partitions": [{ "topic_name": "orders", "partition_id": 0 }],
        "validate_only": true,
    });
    let all = json!({ "election_type": "UNCLEAN", "all": true, "validate_only": true });
    let summary = "Elect leaders: the preferred ones, named ones, or by accepting loss; `validate_only` is a dry run";
    vec![
        routes::post("/elections", elect, summary)
            .takes::<ElectBody>(preferred)
            .or_takes("What it would cost to make everything writable", all)
            .knows(FILTERS)
            .object::<ElectionBody>(200)
            .fails(&[
                (404, 40403, "a partition that is named does not exist"),
                (409, 40911, "the state is not the expected one, or the plan is old or of another state"),
                (409, 40917, "nobody who is up may lead"),
                (422, 42210, "records would be lost and confirm_data_loss or plan_id is missing"),
                (503, 50302, "a replica did not tell within 2 s where its log ends"),
            ]),
    ]
}

/// Which leaders are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ElectionType {
    /// The first replica of the assignment, if it is in sync.
    Preferred,
    /// Where nobody leads: `leader_id`, or whoever has most to keep, whatever is lost.
    Unclean,
    /// `leader_id`.
    Designated,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ElectBody {
    election_type: ElectionType,
    /// These partitions.
    #[serde(default)]
    partitions: Vec<WantedBody>,
    /// All partitions for which such an election is needed; filters stand behind the `?`.
    #[serde(default)]
    all: bool,
    /// Tell what would happen, and change nothing.
    #[serde(default)]
    validate_only: bool,
    /// Committed records may be lost, as the plan says.
    #[serde(default)]
    confirm_data_loss: bool,
    /// Of a dry run younger than ten minutes; needed where records are lost.
    plan_id: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WantedBody {
    topic_name: String,
    partition_id: i32,
    leader_id: Option<i32>,
    /// Elect only in this epoch.
    expected_leader_epoch: Option<i32>,
    expected_partition_epoch: Option<i32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ElectionBody {
    kind: &'static str,
    election_type: ElectionType,
    plan_id: String,
    validate_only: bool,
    /// By partition; of `all` only those for which an election is needed.
    results: Vec<ResultBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ResultBody {
    topic_name: String,
    partition_id: i32,
    /// Before the election.
    current_leader_id: Option<i32>,
    leader_epoch: i32,
    new_leader_id: Option<i32>,
    /// `WOULD_ELECT`, `ELECTED`, `NOT_NEEDED`, `NOT_ELIGIBLE`, or `REFUSED` when the state changed meanwhile.
    result: &'static str,
    /// Of an unclean election: who has most to keep.
    recommended_leader_id: Option<i32>,
    /// `null`: nothing is lost.
    loss: Option<LossBody>,
    /// Of an unclean election: the replicas whose logs are known, the one with most to keep first.
    candidates: Vec<CandidateBody>,
    /// How it could be done without loss.
    alternative: Option<String>,
    /// Why not.
    error_code: Option<u32>,
    message: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LossBody {
    /// `null`: nothing is known of what the last leader had committed.
    last_known_high_watermark: Option<i64>,
    known_at_ms: Option<i64>,
    /// The last leader.
    reported_by: Option<i32>,
    /// `REPORTED` by the leader, or by the `ISR_CHANGE` that left it alone in sync.
    source: Option<&'static str>,
    new_log_end_offset: i64,
    committed_records_lost_at_least: Option<u64>,
    /// The last leader itself was asked; otherwise more may have been committed after the last report.
    exact: bool,
    /// Records that were acknowledged to acks=all are among the lost; `null`: nothing is known, or none is known to be.
    acks_all_data_affected: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CandidateBody {
    broker_id: i32,
    /// `null`: its log is empty.
    last_leader_epoch: Option<i32>,
    log_end_offset: i64,
}

impl From<&Loss> for LossBody {
    fn from(loss: &Loss) -> Self {
        let known = loss.known.map(|known| known.watermark);
        Self {
            last_known_high_watermark: known.map(|known| known.high_watermark.0),
            known_at_ms: known.map(|known| known.known.0),
            reported_by: known.and_then(|known| known.leader).map(|leader| leader.0),
            source: known.map(|known| watermark_source(known.source)),
            new_log_end_offset: loss.new_end.0,
            committed_records_lost_at_least: loss.records(),
            exact: loss.exact,
            acks_all_data_affected: loss.records().filter(|lost| *lost > 0).map(|_| true),
        }
    }
}

impl ResultBody {
    /// As planned.
    fn new(planned: &Planned<'_>) -> Self {
        let chosen = planned.wanted.chosen;
        let (result, new_leader, error) = match &planned.outcome {
            Outcome::NotNeeded => ("NOT_NEEDED", chosen.state.leader, None),
            Outcome::Elect { leader, .. } => ("WOULD_ELECT", Some(*leader), None),
            Outcome::Ineligible(error) => ("NOT_ELIGIBLE", None, Some(error)),
        };
        let candidates = planned.candidates.iter().map(|candidate| CandidateBody {
            broker_id: candidate.broker.0,
            last_leader_epoch: candidate.last_epoch.map(|epoch| epoch.0),
            log_end_offset: candidate.end.0,
        });
        Self {
            topic_name: chosen.topic.name.to_string(),
            partition_id: chosen.partition,
            current_leader_id: chosen.state.leader.map(|leader| leader.0),
            leader_epoch: chosen.state.leader_epoch.0,
            new_leader_id: new_leader.map(|leader| leader.0),
            result,
            recommended_leader_id: planned.candidates.first().map(|candidate| candidate.broker.0),
            loss: planned.loss().map(LossBody::from),
            candidates: candidates.collect(),
            alternative: planned.alternative.clone(),
            error_code: error.map(|error| error.error_code),
            message: error.map(|error| error.message.clone()),
        }
    }

    /// As it went.
    fn carried_out(&mut self, result: Result<BrokerId, ApiError>) {
        match result {
            Ok(leader) => {
                self.result = "ELECTED";
                self.new_leader_id = Some(leader.0);
            }
            Err(error) => {
                self.result = "REFUSED";
                self.new_leader_id = None;
                self.error_code = Some(error.error_code);
                self.message = Some(error.message);
            }
        }
    }
}

/// `POST /elections`
///
/// All that can be wrong is found before anything is elected. Safe to repeat: who leads already is `NOT_NEEDED`. With
/// `all`, a partition whose leader cannot be elected is told and passed over; of named ones it refuses the whole.
pub async fn elect(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut read = call.read(&admin, &cluster, &[FILTERS]).await?;
    let body: ElectBody = read_json(&headers, &body)?;
    let timeout = read.params.timeout(WRITE_TIMEOUT)?;
    // Planned by all that is committed: this node may not have heard yet who leads.
    let image = admin.quorum.linearizable(timeout).await?;
    let wanted = wanted(&image, &read, &body)?;
    let type_ = body.election_type;
    let unclean = || wanted.iter().filter(|wanted| plan::is_unclean(type_, wanted)).map(|wanted| wanted.chosen.at());
    let now_ms = now_ms();
    let facts = Facts {
        image: &image,
        live: live::from_replicas(&admin, &image, unclean()).await,
        reported: unclean().filter_map(|at| Some((at, admin.quorum.reported_watermark(at)?))).collect(),
        now_ms,
    };
    let mut planned: Vec<Planned<'_>> = wanted.iter().map(|wanted| plan(&facts, type_, *wanted)).collect();
    if body.all {
        planned.retain(|planned| !matches!(planned.outcome, Outcome::NotNeeded));
    } else {
        refuse_ineligible(&planned)?;
    }
    let mut results: Vec<ResultBody> = planned.iter().map(ResultBody::new).collect();
    if !body.validate_only {
        check_confirmation(&body, &planned, now_ms)?;
        carry_out(&admin, &planned, &mut results, timeout).await?;
    }
    let answer = ElectionBody {
        kind: "KafkaElection",
        election_type: type_,
        plan_id: plan_id::plan_id(&planned, now_ms),
        validate_only: body.validate_only,
        results,
    };
    read.set_image(admin.quorum.image());
    read.object(StatusCode::OK, &answer)
}

/// The partitions that a body means, in the order of its list or of the image.
fn wanted<'a>(image: &'a MetadataImage, read: &Read, body: &ElectBody) -> Result<Vec<Wanted<'a>>, ApiError> {
    let (names, brokers) = (read.params.filter("topic", None)?, read.params.number_filter("broker_id")?);
    if body.all != body.partitions.is_empty() {
        return Err(ApiError::invalid_payload(
            "say which partitions: either a list \"partitions\", or \"all\": true, perhaps with ?topic= or ?broker_id=",
        ));
    }
    if body.all {
        if body.election_type == ElectionType::Designated {
            return Err(ApiError::invalid_payload(
                "DESIGNATED needs a leader_id for each partition: list \"partitions\"",
            ));
        }
        let all = choose(image, "-", "-")?.into_iter().filter(|chosen| {
            let replicas = || chosen.state.replicas.iter().map(|broker| broker.0);
            names.admits(&chosen.topic.name) && (brokers.is_empty() || brokers.admits_numbers(replicas()))
        });
        let plain =
            |chosen| Wanted { chosen, leader: None, expected_leader_epoch: None, expected_partition_epoch: None };
        return Ok(all.map(plain).collect());
    }
    if !names.is_empty() || !brokers.is_empty() {
        return Err(ApiError::malformed("filters go with \"all\": true, not with a list of partitions"));
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut wanted = Vec::with_capacity(body.partitions.len());
    for one in &body.partitions {
        let name = format!("{}-{}", one.topic_name, one.partition_id);
        if !seen.insert((&one.topic_name, one.partition_id)) {
            return Err(ApiError::invalid_payload(format!("partition {name} is listed twice")));
        }
        match (body.election_type, one.leader_id) {
            (ElectionType::Designated, None) => {
                return Err(ApiError::invalid_payload(format!("DESIGNATED needs a leader_id for {name}")));
            }
            (ElectionType::Preferred, Some(_)) => {
                let why = "PREFERRED elects the first replica: leave leader_id away, or use DESIGNATED";
                return Err(ApiError::invalid_payload(format!("{name}: {why}")));
            }
            _ => {}
        }
        wanted.push(Wanted {
            chosen: named(image, &one.topic_name, one.partition_id)?,
            leader: one.leader_id.map(BrokerId),
            expected_leader_epoch: one.expected_leader_epoch.map(LeaderEpoch),
            expected_partition_epoch: one.expected_partition_epoch.map(PartitionEpoch),
        });
    }
    Ok(wanted)
}

fn named<'a>(image: &'a MetadataImage, topic: &str, partition: i32) -> Result<Chosen<'a>, ApiError> {
    let unknown = || ApiError::unknown_partition(topic, &partition.to_string());
    let topic = image.topic_named(topic).ok_or_else(|| ApiError::unknown_topic(topic))?;
    let number = usize::try_from(partition).map_err(|_| unknown())?;
    let state = topic.partitions.get(number).ok_or_else(unknown)?;
    Ok(Chosen { topic, partition, state })
}

/// Of partitions named one by one, all must be possible; the first fault is told, the others stand in the details.
fn refuse_ineligible(planned: &[Planned<'_>]) -> Result<(), ApiError> {
    let faults = planned.iter().filter_map(|planned| match &planned.outcome {
        Outcome::Ineligible(error) => Some((planned.wanted.chosen, error)),
        Outcome::NotNeeded | Outcome::Elect { .. } => None,
    });
    let faults: Vec<(Chosen<'_>, &ApiError)> = faults.collect();
    let Some((_, first)) = faults.first() else { return Ok(()) };
    let partitions: Vec<_> = faults
        .iter()
        .map(|(chosen, error)| {
            json!({
                "topic_name": &*chosen.topic.name, "partition_id": chosen.partition,
                "error_code": error.error_code, "message": error.message,
            })
        })
        .collect();
    Err((*first).clone().with_details(json!({ "partitions": partitions })))
}

/// What is lost must have been seen, and accepted as it was seen.
fn check_confirmation(body: &ElectBody, planned: &[Planned<'_>], now_ms: i64) -> Result<(), ApiError> {
    let costly: Vec<String> =
        planned.iter().filter(|p| p.loss().is_some()).map(|planned| name(planned.wanted.chosen)).collect();
    let confirmed = body.confirm_data_loss && body.plan_id.is_some();
    if !costly.is_empty() && !confirmed {
        let shown = costly.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        return Err(ApiError::not_confirmed(format!(
            "acknowledged records of {} partition(s) may be lost ({shown}): send it with validate_only, read \"loss\" and \
             \"alternative\", then send it with \"confirm_data_loss\": true and the \"plan_id\" of that answer",
            costly.len()
        )));
    }
    // A repeat has nothing left to do, whatever plan it names.
    match &body.plan_id {
        Some(given) if planned.iter().any(|planned| planned.election().is_some()) => {
            plan_id::verify(given, planned, now_ms)
        }
        _ => Ok(()),
    }
}

/// Elects; what is refused of a single partition refuses the whole.
async fn carry_out(
    admin: &AdminState,
    planned: &[Planned<'_>],
    results: &mut [ResultBody],
    timeout: std::time::Duration,
) -> Result<(), ApiError> {
    let mut elections: Vec<(&mut ResultBody, ChosenElection)> =
        results.iter_mut().zip(planned).filter_map(|(result, planned)| Some((result, planned.election()?))).collect();
    let mut begun = false;
    for batch in elections.chunks_mut(BATCH) {
        let chosen = batch.iter().map(|(_, election)| election.clone()).collect();
        let command = Command::ElectChosen { elections: chosen, time: Timestamp(now_ms()) };
        let decided = match admin.quorum.propose(command, timeout).await {
            Ok((Answer::LeadersElected(decided), _)) => decided,
            Ok((other, _)) => return Err(ApiError::internal(format!("an answer to another question: {other:?}"))),
            Err(error) if !begun => return Err(error.into()),
            Err(error) => {
                // What is elected stays so; the answer tells what is not.
                let error = ApiError::from(error);
                batch.iter_mut().for_each(|(result, _)| result.carried_out(Err(error.clone())));
                continue;
            }
        };
        begun = true;
        for ((result, _), decided) in batch.iter_mut().zip(decided) {
            match decided {
                Err(Refusal::ElectionNotNeeded) => result.result = "NOT_NEEDED",
                decided => result.carried_out(decided.map_err(ApiError::from)),
            }
        }
    }
    match results {
        [result] if result.result == "REFUSED" => Err(ApiError::stale(format!(
            "{}; nothing was elected: send it with validate_only and look at the new plan",
            result.message.as_deref().unwrap_or("the state changed meanwhile")
        ))),
        _ => Ok(()),
    }
}
