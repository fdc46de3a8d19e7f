//! `/brokers/{id|-}/restart-check`: may this broker be restarted now, which one next, and what is it that stands in the
//! way (operators.md 1.4 G). The judgement is `planner/restart` of the quorum; here its facts are collected – the newest
//! image, the raft leader's view of the voters, an answer of every broker within 2 s – and explained.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::planner::{Blocker, QuorumFacts, RestartFacts, RestartVerdict, judge_restart, restart_order};
use highwater_quorum::{ImageVersion, MetadataImage, QuorumStatus};
use highwater_wire::{BrokerId, TopicPartition};
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::error::ApiError;
use crate::live::{self, BUDGET};
use crate::partitions::state::{WaitingBody, missing};
use crate::partitions::{Chosen, ids};
use crate::peer::NodeReport;
use crate::respond::{Call, Metadata, Read};
use crate::routes::{self, Route};

const PARAMETERS: &[&str] = &["fail", "limit"];
/// Of the next broker.
const ROLL_PARAMETERS: &[&str] = &["since_metadata_offset"];

/// This file's routes.
pub fn routes() -> Vec<Route> {
    let unknown = (404, 404, "no such broker, and no voter of that id either");
    vec![
        routes::get(
            "/brokers/{broker_id}/restart-check",
            check,
            "Whether a broker may be restarted now without harm, or which one is next; if not, what is waited for",
        )
        .object::<RestartCheckBody>(200)
        .object::<RestartCheckBody>(503)
        .knows(PARAMETERS)
        .knows(ROLL_PARAMETERS)
        .example("broker_id", "-")
        .fails(&[unknown]),
    ]
}

/// Partitions listed per check unless `limit` says otherwise; counts are always complete.
const LISTED: usize = 100;
/// When nothing tells how long it takes.
const LOOK_AGAIN_MS: u64 = 1_000;
/// Bounds of `retry_after_ms`: an estimate may be wrong in either direction.
const LOOK_AGAIN_RANGE_MS: std::ops::RangeInclusive<u64> = 500..=30_000;

#[derive(Debug, Serialize, JsonSchema)]
struct RestartCheckBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    /// `null`: the roll is over.
    broker_id: Option<i32>,
    safe: bool,
    metadata_offset: u64,
    /// What stands in the way; empty when safe.
    blocking: Vec<CheckBody>,
    /// What a restart costs and always will.
    accepted: Vec<CheckBody>,
    quorum: VotersBody,
    /// When to ask again; `null` when safe.
    retry_after_ms: Option<u64>,
    next_safe_broker: Option<i32>,
    /// Of the next broker only.
    #[serde(skip_serializing_if = "Option::is_none")]
    roll: Option<RollBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CheckBody {
    check: &'static str,
    /// Of all partitions concerned; 1 for the quorum.
    count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Who is not in service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    brokers: Vec<i32>,
    /// The first of them by name, at most `limit`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    partitions: Vec<BlockedBody>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct BlockedBody {
    topic_name: String,
    partition_id: i32,
    leader_id: Option<i32>,
    isr: Vec<i32>,
    elr: Vec<i32>,
    replicas: Vec<i32>,
    min_insync_replicas: usize,
    waiting_for: Vec<WaitingBody>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct VotersBody {
    voters: Option<usize>,
    caught_up_without_broker: Option<usize>,
    majority: Option<usize>,
    ok: bool,
}

/// Where a rolling restart is.
#[derive(Debug, Serialize, JsonSchema)]
struct RollBody {
    /// To be passed on from the first call: brokers registered after it count as restarted.
    since_metadata_offset: u64,
    /// Active brokers that have not been restarted since, in the order of their turns.
    left: Vec<i32>,
    done: bool,
}

/// `GET /brokers/{broker_id}/restart-check`; `-` asks for the next broker of a rolling restart that began at
/// `since_metadata_offset`.
/// `fail=true`: 503 when unsafe. `limit`: partitions listed per check.
pub async fn check(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let next = broker == "-";
    let mut read = call.read(&admin, &cluster, &[PARAMETERS, if next { ROLL_PARAMETERS } else { &[] }]).await?;
    let fail = read.params.flag("fail")?;
    let limit = read.params.number("limit")?.unwrap_or(LISTED);
    let since: Option<u64> = read.params.number("since_metadata_offset")?;
    let wanted = if next { None } else { Some(known(&admin, &read.image, &broker)?) };
    let (image, facts) = collect(&admin, &read.image, wanted).await;
    read.set_image(Arc::clone(&image));
    let leader = facts.quorum.as_ref().map(|quorum| quorum.leader);
    let judge = |broker: &BrokerId| judge_restart(&image, &facts, *broker);
    let order = restart_order(&image, leader, since.map(ImageVersion));
    let path = format!("/brokers/{broker}/restart-check");
    let metadata = read.links.metadata(&path, &[format!("broker={broker}"), "restart-check".to_owned()]);

    let mut body = match wanted {
        Some(broker) => {
            let others = order.iter().filter(|other| **other != broker);
            let next_safe = others.copied().find(|other| judge(other).is_safe());
            let verdict = judge(&broker);
            explain(&admin, &read, &facts, &verdict, next_safe, limit, metadata).await
        }
        None => {
            let safe = order.iter().map(judge).find(RestartVerdict::is_safe);
            match safe.or_else(|| order.first().map(judge)) {
                Some(verdict) => {
                    let next_safe = verdict.is_safe().then_some(verdict.broker);
                    explain(&admin, &read, &facts, &verdict, next_safe, limit, metadata).await
                }
                None => nothing_left(&read, &facts, metadata),
            }
        }
    };
    if next {
        body.roll = Some(RollBody {
            since_metadata_offset: since.unwrap_or(image.version.0),
            done: order.is_empty(),
            left: ids(&order),
        });
    }
    let status = if body.safe || !fail { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    read.object(status, &body)
}

/// A registered broker, or a voter that is none.
fn known(admin: &AdminState, image: &MetadataImage, text: &str) -> Result<BrokerId, ApiError> {
    let id = text.parse().ok().and_then(BrokerId::from_wire);
    let is_voter = |id: &BrokerId| admin.quorum.status().voters.iter().any(|voter| voter.node == *id);
    id.filter(|id| image.brokers.contains_key(id) || is_voter(id))
        .ok_or_else(|| ApiError::not_found(format!("there is no broker {text}, and no voter of that id either")))
}

/// The newest image and what the brokers say now. Without a quorum that confirms the image as the newest, the facts hold
/// no quorum, so that nothing is safe.
async fn collect(
    admin: &AdminState,
    image: &Arc<MetadataImage>,
    also: Option<BrokerId>,
) -> (Arc<MetadataImage>, RestartFacts) {
    let mut asked: BTreeSet<BrokerId> = image.active_brokers().map(|broker| broker.id).collect();
    asked.extend(also);
    let (newest, status, reports) =
        tokio::join!(admin.quorum.linearizable(BUDGET), admin.quorum.leader_status(BUDGET), reports(admin, asked));
    let (image, quorum) = match newest {
        Ok(newest) => (newest, status.as_ref().and_then(QuorumFacts::of)),
        Err(_) => (Arc::clone(image), None),
    };
    let facts = facts(&image, quorum, reports);
    (image, facts)
}

/// What these nodes tell of themselves; those that do not answer within 2 s are missing.
pub async fn reports(admin: &AdminState, asked: BTreeSet<BrokerId>) -> BTreeMap<BrokerId, NodeReport> {
    let calls = asked.into_iter().map(|broker| async move {
        if broker == admin.config.node {
            return Some((broker, NodeReport::here(&admin.replicas)));
        }
        Some((broker, admin.peers.node(&admin.quorum, broker, BUDGET).await?))
    });
    futures::future::join_all(calls).await.into_iter().flatten().collect()
}

/// A process of another registration than the image's is not the broker that the image calls active.
fn facts(image: &MetadataImage, quorum: Option<QuorumFacts>, reports: BTreeMap<BrokerId, NodeReport>) -> RestartFacts {
    let is_same = |id: &BrokerId, report: &NodeReport| {
        let registered = image.broker(*id).filter(|broker| broker.is_active());
        registered.is_none_or(|broker| report.broker_epoch == Some(broker.epoch.0))
    };
    let answering = reports.iter().filter(|(id, report)| is_same(id, report)).map(|(id, _)| *id).collect();
    let proposals = reports.into_values().flat_map(|report| report.proposals);
    let brokers = |isr: Vec<i32>| isr.into_iter().map(BrokerId).collect();
    RestartFacts { answering, proposed: proposals.map(|(at, isr)| (at, brokers(isr))).collect(), quorum }
}

fn nothing_left(read: &Read, facts: &RestartFacts, metadata: Metadata) -> RestartCheckBody {
    let quorum = facts.quorum.as_ref();
    RestartCheckBody {
        kind: "KafkaBrokerRestartCheck",
        metadata,
        cluster_id: read.links.cluster_id().to_owned(),
        broker_id: None,
        // An old image may not know of a broker that is left.
        safe: quorum.is_some(),
        metadata_offset: read.image.version.0,
        blocking: quorum.is_none().then(|| quorum_loss(facts, None)).into_iter().collect(),
        accepted: Vec::new(),
        quorum: VotersBody {
            voters: quorum.map(|quorum| quorum.voters.len()),
            caught_up_without_broker: quorum.map(|quorum| quorum.caught_up.len()),
            majority: quorum.map(|quorum| quorum.majority),
            ok: quorum.is_some(),
        },
        retry_after_ms: quorum.is_none().then_some(LOOK_AGAIN_MS),
        next_safe_broker: None,
        roll: None,
    }
}

async fn explain(
    admin: &AdminState,
    read: &Read,
    facts: &RestartFacts,
    verdict: &RestartVerdict,
    next_safe: Option<BrokerId>,
    limit: usize,
    metadata: Metadata,
) -> RestartCheckBody {
    let image = &read.image;
    let mut listed: BTreeMap<Blocker, Vec<TopicPartition>> = verdict.blocking.clone();
    for partitions in listed.values_mut() {
        first(image, partitions, limit);
    }
    // A leader that was silent a moment ago is not waited for again.
    let answers = |at: &TopicPartition| {
        let leader = image.partition(*at).and_then(|state| state.leader);
        leader.is_some_and(|leader| facts.answering.contains(&leader))
    };
    let asked: BTreeSet<TopicPartition> = listed.values().flatten().copied().filter(answers).collect();
    let live = live::from_leaders(admin, image, asked.into_iter()).await;
    for (at, live) in &live {
        admin.rates.sample(*at, live);
    }
    let body = |at: &TopicPartition| {
        let chosen = chosen(image, *at)?;
        let mut waiting_for = missing(image, chosen, live.get(at), &admin.rates);
        for broker in chosen.state.replicas.iter().filter(|id| **id != verdict.broker) {
            let silent = image.broker(*broker).is_some_and(|b| b.is_active()) && !facts.answering.contains(broker);
            if silent && !waiting_for.iter().any(|waiting| waiting.broker() == *broker) {
                waiting_for.push(WaitingBody::unseen(*broker, "BROKER_SILENT"));
            }
        }
        Some(partition_body(chosen, waiting_for))
    };
    let blocking: Vec<CheckBody> = Blocker::ALL
        .into_iter()
        .filter_map(|why| verdict.blocking.get(&why).map(|partitions| (why, partitions)))
        .map(|(why, partitions)| match why {
            Blocker::QuorumLoss => quorum_loss(facts, Some(verdict)),
            why => CheckBody {
                check: why.name(),
                count: partitions.len(),
                why: None,
                brokers: if why == Blocker::OtherBrokerDown {
                    verdict.down.iter().map(|id| id.0).collect()
                } else {
                    Vec::new()
                },
                partitions: listed.get(&why).into_iter().flatten().filter_map(body).collect(),
            },
        })
        .collect();
    let accepted = [("rf1_offline", &verdict.rf1_offline), ("min_isr_equals_rf", &verdict.min_isr_equals_rf)];
    let accepted = accepted.into_iter().map(|(check, partitions)| {
        let mut named = partitions.clone();
        first(image, &mut named, limit);
        let named = named.iter().filter_map(|at| Some(partition_body(chosen(image, *at)?, Vec::new())));
        CheckBody { check, count: partitions.len(), why: None, brokers: Vec::new(), partitions: named.collect() }
    });
    let retry_after_ms = (!verdict.is_safe()).then(|| look_again(&blocking));
    RestartCheckBody {
        kind: "KafkaBrokerRestartCheck",
        metadata,
        cluster_id: read.links.cluster_id().to_owned(),
        broker_id: Some(verdict.broker.0),
        safe: verdict.is_safe(),
        metadata_offset: image.version.0,
        accepted: accepted.collect(),
        quorum: VotersBody {
            voters: facts.quorum.as_ref().map(|quorum| quorum.voters.len()),
            caught_up_without_broker: verdict.caught_up_without,
            majority: facts.quorum.as_ref().map(|quorum| quorum.majority),
            ok: !verdict.blocking.contains_key(&Blocker::QuorumLoss),
        },
        blocking,
        retry_after_ms,
        next_safe_broker: next_safe.map(|broker| broker.0),
        roll: None,
    }
}

/// The first of some partitions by topic name and number.
fn first(image: &MetadataImage, partitions: &mut Vec<TopicPartition>, limit: usize) {
    partitions
        .sort_by_cached_key(|at| (image.topics.get(&at.topic).map(|topic| Arc::clone(&topic.name)), at.partition));
    partitions.truncate(limit);
}

fn chosen(image: &MetadataImage, at: TopicPartition) -> Option<Chosen<'_>> {
    let (topic, state) = (image.topics.get(&at.topic)?, image.partition(at)?);
    Some(Chosen { topic, partition: at.partition, state })
}

fn partition_body(chosen: Chosen<'_>, waiting_for: Vec<WaitingBody>) -> BlockedBody {
    let state = chosen.state;
    BlockedBody {
        topic_name: chosen.topic.name.to_string(),
        partition_id: chosen.partition,
        leader_id: state.leader.map(|leader| leader.0),
        isr: ids(&state.isr),
        elr: ids(&state.elr),
        replicas: ids(&state.replicas),
        min_insync_replicas: state.effective_min_isr(chosen.topic.config.min_isr),
        waiting_for,
    }
}

fn quorum_loss(facts: &RestartFacts, verdict: Option<&RestartVerdict>) -> CheckBody {
    let why = match &facts.quorum {
        None => "no raft leader that a majority answers: what the brokers hold now is not known for sure".to_owned(),
        Some(quorum) if quorum.joint => "the voters are being changed: ask again when that is over".to_owned(),
        Some(quorum) => format!(
            "{} of {} voters would be caught up without it, {} are a majority",
            verdict.and_then(|verdict| verdict.caught_up_without).unwrap_or_default(),
            quorum.voters.len(),
            quorum.majority
        ),
    };
    CheckBody {
        check: Blocker::QuorumLoss.name(),
        count: 1,
        why: Some(why),
        brokers: Vec::new(),
        partitions: Vec::new(),
    }
}

/// The longest estimate among those who are waited for.
fn look_again(blocking: &[CheckBody]) -> u64 {
    let waiting = blocking.iter().flat_map(|check| &check.partitions).flat_map(|partition| &partition.waiting_for);
    let longest = waiting.filter_map(WaitingBody::eta_ms).max();
    longest.map_or(LOOK_AGAIN_MS, |eta| eta.clamp(*LOOK_AGAIN_RANGE_MS.start(), *LOOK_AGAIN_RANGE_MS.end()))
}

/// For the metric: each registered broker and whether it may be restarted, by what the raft leader knows without asking
/// anybody. `status` is its own.
pub fn by_heartbeats(admin: &AdminState, status: &QuorumStatus) -> Vec<(BrokerId, bool)> {
    let image = admin.quorum.image();
    let facts = RestartFacts {
        answering: admin.quorum.heard_recently(),
        proposed: BTreeMap::new(),
        quorum: QuorumFacts::of(status),
    };
    image.brokers.keys().map(|broker| (*broker, judge_restart(&image, &facts, *broker).is_safe())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(etas: &[Option<u64>]) -> CheckBody {
        let waiting = |eta: &Option<u64>| WaitingBody::unseen(BrokerId(1), "CATCHING_UP").with_eta(*eta);
        let partition = BlockedBody {
            topic_name: "t".to_owned(),
            partition_id: 0,
            leader_id: None,
            isr: vec![],
            elr: vec![],
            replicas: vec![],
            min_insync_replicas: 1,
            waiting_for: etas.iter().map(waiting).collect(),
        };
        CheckBody { check: "unavailable", count: 1, why: None, brokers: vec![], partitions: vec![partition] }
    }

    #[test]
    fn whoever_is_not_safe_is_told_when_to_ask_again() {
        assert_eq!(look_again(&[]), 1_000);
        assert_eq!(look_again(&[check(&[None])]), 1_000);
        assert_eq!(look_again(&[check(&[Some(4_193), None]), check(&[Some(700)])]), 4_193);
        assert_eq!(look_again(&[check(&[Some(3)])]), 500);
        assert_eq!(look_again(&[check(&[Some(86_400_000)])]), 30_000);
    }

    #[test]
    fn a_process_of_another_registration_does_not_answer_for_an_active_broker() {
        use highwater_quorum::{Answer, Command, decide};
        let mut image = MetadataImage::default();
        let run = |image: &mut MetadataImage, index: u64, command: Command| {
            let decision = decide(image, index, 1, &command).unwrap();
            image.apply_all(&decision.changes);
            decision.answer
        };
        let time = highwater_wire::Timestamp(1);
        run(&mut image, 1, Command::FormCluster { cluster_id: "c".to_owned(), feature_level: 1, time });
        let answer = run(&mut image, 2, Command::RegisterBroker(registration()));
        let Answer::Registered { epoch } = answer else { panic!("{answer:?}") };
        let broker = BrokerId(1);
        let report = |epoch| BTreeMap::from([(broker, NodeReport { broker_epoch: epoch, ..NodeReport::default() })]);
        let answers = |image: &MetadataImage, epoch| facts(image, None, report(epoch)).answering.contains(&broker);
        assert!(answers(&image, None), "a fenced one may be on its way to register anew");
        run(&mut image, 3, Command::UnfenceBroker { broker, epoch, lost: vec![], time });
        assert!(answers(&image, Some(epoch.0)));
        assert!(!answers(&image, Some(epoch.0 + 1)) && !answers(&image, None));
    }

    fn registration() -> highwater_quorum::controller::RegisterBroker {
        use highwater_wire::{DirectoryId, IncarnationId, Timestamp};
        let endpoint = highwater_quorum::image::Endpoint { host: "n1".to_owned(), port: 9092 };
        highwater_quorum::controller::RegisterBroker {
            broker: BrokerId(1),
            cluster_id: "c".to_owned(),
            incarnation: IncarnationId::random(),
            listeners: BTreeMap::from([("PLAINTEXT".to_owned(), endpoint)]),
            inter_broker_listener: "PLAINTEXT".to_owned(),
            controller_url: "http://n1:9093".to_owned(),
            admin_url: String::new(),
            rack: None,
            log_dirs: vec![DirectoryId::random()],
            metadata_dir: DirectoryId::random(),
            features: BTreeMap::new(),
            version: "0".to_owned(),
            claim: highwater_quorum::controller::DataClaim::Nothing,
            previous_is_dead: false,
            time: Timestamp(1),
        }
    }
}
