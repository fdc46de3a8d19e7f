//! Plans of elections by example: one topic of one partition on brokers 1, 2 and 3.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_quorum::Change;
use highwater_quorum::controller::KnownWatermark;
use highwater_quorum::image::{
    BrokerRegistration, BrokerState, ChangeKind, DataProof, LastReport, LeaderReason, LeaderRecovery, PartitionChange,
    PartitionState, TopicConfig,
};
use highwater_wire::{BrokerEpoch, DirectoryId, IncarnationId, Offset, TopicId, TopicPartition};

use super::plan_id::{AGE_MAX_MS, plan_id, verify};
use super::*;
use crate::live::{LiveMap, LiveReplica};

const NOW: i64 = 1_760_000_000_000;

fn brokers(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

fn broker(id: i32, active: bool) -> BrokerRegistration {
    BrokerRegistration {
        id: BrokerId(id),
        incarnation: IncarnationId::from_bytes([id as u8; 16]),
        epoch: BrokerEpoch(1),
        listeners: BTreeMap::new(),
        inter_broker_listener: "PLAINTEXT".to_owned(),
        controller_url: String::new(),
        admin_url: String::new(),
        rack: None,
        log_dirs: vec![],
        metadata_dir: DirectoryId::from_bytes([1; 16]),
        features: BTreeMap::new(),
        version: String::new(),
        state: if active { BrokerState::Active } else { BrokerState::Fenced },
        state_since: Timestamp(NOW - 312_000),
        kept_data: DataProof::None,
    }
}

fn at() -> TopicPartition {
    TopicPartition::new(TopicId::from_bytes([7; 16]), 0)
}

fn report(watermark: i64, reported_ms: i64) -> LastReport {
    let (high_watermark, reported) = (Offset(watermark), Timestamp(reported_ms));
    LastReport { high_watermark, reported, log_start: Offset::ZERO }
}

/// Leader epoch 14, partition epoch 31; `up`: the brokers that are active.
fn image(up: &[i32], leader: Option<i32>, isr: &[i32], elr: &[i32]) -> MetadataImage {
    let mut image = MetadataImage::default();
    for id in 1..=3 {
        image.apply(&Change::Broker(broker(id, up.contains(&id)).into()));
    }
    let config = Arc::new(TopicConfig::built_in());
    image.apply(&Change::Topic { id: at().topic, name: "orders".into(), created: Timestamp(1), config });
    let state = PartitionState {
        replicas: brokers(&[1, 2, 3]),
        directories: vec![DirectoryId::from_bytes([1; 16]); 3],
        adding: vec![],
        removing: vec![],
        isr: brokers(isr),
        elr: brokers(elr),
        last_known_elr: if leader.is_none() { brokers(&[1]) } else { vec![] },
        leader: leader.map(BrokerId),
        leader_epoch: LeaderEpoch(14),
        partition_epoch: PartitionEpoch(31),
        recovery: LeaderRecovery::Recovered,
        last_known_watermark: leader.is_none().then_some(report(1_048_576, NOW - 1_000)),
        leader_since: Timestamp(2),
    };
    image.apply(&Change::Partition(at(), Arc::new(state)));
    image
}

/// A log: each epoch with its first offset, and the end.
fn log(epochs: &[(i32, i64)], end: i64) -> LiveReplica {
    LiveReplica {
        is_leader: false,
        leader_epoch: 14,
        partition_epoch: 31,
        log_start_offset: 0,
        high_watermark: end / 2,
        last_stable_offset: end / 2,
        log_end_offset: end,
        log_bytes: 1,
        fetch_state: "IDLE".to_owned(),
        offline: None,
        followers: vec![],
        proposed_isr: None,
        waiting_produces: 0,
        leader_epochs: epochs.to_vec(),
        last_truncation: None,
        observed_ms: NOW,
    }
}

fn logs(logs: &[(i32, LiveReplica)]) -> LiveMap {
    logs.iter().map(|(id, log)| ((BrokerId(*id), at()), log.clone())).collect()
}

fn wanted(image: &MetadataImage, leader: Option<i32>) -> Wanted<'_> {
    let chosen = named(image, "orders", 0).unwrap();
    Wanted { chosen, leader: leader.map(BrokerId), expected_leader_epoch: None, expected_partition_epoch: None }
}

fn planned<'a>(image: &'a MetadataImage, live: &LiveMap, type_: ElectionType, leader: Option<i32>) -> Planned<'a> {
    plan(&facts(image, live), type_, wanted(image, leader))
}

fn facts<'a>(image: &'a MetadataImage, live: &LiveMap) -> Facts<'a> {
    Facts { image, live: live.clone(), reported: BTreeMap::new(), now_ms: NOW }
}

fn refused(planned: &Planned<'_>) -> (u16, u32, String) {
    let Outcome::Ineligible(error) = &planned.outcome else { panic!("it is eligible") };
    (error.status.as_u16(), error.error_code, error.message.clone())
}

fn elected(planned: &Planned<'_>) -> (i32, Option<Loss>) {
    let Outcome::Elect { leader, loss } = planned.outcome else { panic!("{:?}", ResultBody::new(planned)) };
    (leader.0, loss)
}

#[test]
fn of_those_who_could_lead_the_one_with_most_to_keep_is_recommended() {
    // Broker 2 has the longer log, but its last record is of an older leader; the epoch 14 that 2 began wrote nothing.
    let image = image(&[2, 3], None, &[], &[1]);
    let live =
        logs(&[(2, log(&[(12, 0), (13, 900_000), (14, 1_050_000)], 1_050_000)), (3, log(&[(14, 0)], 1_040_000))]);
    let planned = planned(&image, &live, ElectionType::Unclean, None);
    let order: Vec<_> = planned.candidates.iter().map(|c| (c.broker.0, c.last_epoch.unwrap().0, c.end.0)).collect();
    assert_eq!(order, [(3, 14, 1_040_000), (2, 13, 1_050_000)]);
    let (leader, loss) = elected(&planned);
    let loss = loss.unwrap();
    assert_eq!((leader, loss.records(), loss.exact), (3, Some(8_576), false));
    let body = serde_json::to_value(ResultBody::new(&planned)).unwrap();
    assert_eq!((&body["result"], &body["recommended_leader_id"]), (&json!("WOULD_ELECT"), &json!(3)));
    let expected = json!({
        "last_known_high_watermark": 1_048_576, "known_at_ms": NOW - 1_000, "reported_by": 1, "source": "REPORTED",
        "new_log_end_offset": 1_040_000, "committed_records_lost_at_least": 8_576, "exact": false,
        "acks_all_data_affected": true,
    });
    assert_eq!(body["loss"], expected);
    assert_eq!(body["alternative"], "broker 1 is in the ELR and fenced since 312 s; starting it loses nothing");
    // The operator may prefer another.
    assert_eq!(elected(&super::plan(&facts(&image, &live), ElectionType::Unclean, wanted(&image, Some(2)))).0, 2);
}

#[test]
fn the_command_is_fenced_by_the_state_that_was_planned_on() {
    let image = image(&[2, 3], None, &[], &[]);
    let live = logs(&[(3, log(&[(14, 0)], 10))]);
    let election = planned(&image, &live, ElectionType::Unclean, None).election().unwrap();
    assert_eq!(
        election,
        ChosenElection {
            partition: at(),
            leader: BrokerId(3),
            accept_loss: true,
            expected_leader_epoch: Some(LeaderEpoch(14)),
            expected_partition_epoch: Some(PartitionEpoch(31)),
            watermark: None,
        }
    );
}

#[test]
fn nobody_is_chosen_blindly() {
    let nobody = image(&[], None, &[], &[1]);
    let (status, code, message) = refused(&planned(&nobody, &LiveMap::new(), ElectionType::Unclean, None));
    assert_eq!((status, code), (409, 40917));
    assert!(message.contains("starting it loses nothing"), "{message}");
    let silent = image(&[3], None, &[], &[]);
    assert_eq!(refused(&planned(&silent, &LiveMap::new(), ElectionType::Unclean, None)).1, 50302);
    assert_eq!(refused(&planned(&silent, &LiveMap::new(), ElectionType::Unclean, Some(3))).1, 50302);
    let mut broken = log(&[(14, 0)], 10);
    broken.offline = Some("input/output error".to_owned());
    assert_eq!(refused(&planned(&silent, &logs(&[(3, broken)]), ElectionType::Unclean, None)).1, 50302);
    let live = logs(&[(3, log(&[(14, 0)], 10))]);
    assert_eq!(refused(&planned(&silent, &live, ElectionType::Unclean, Some(2))).1, 40917, "it is fenced");
    assert_eq!(refused(&planned(&silent, &live, ElectionType::Unclean, Some(9))).1, 40002, "it holds no replica");
}

#[test]
fn who_leads_already_is_not_needed_whatever_epoch_was_expected() {
    let image = image(&[1, 2, 3], Some(1), &[1, 2], &[]);
    for (type_, leader) in
        [(ElectionType::Preferred, None), (ElectionType::Unclean, Some(3)), (ElectionType::Designated, Some(1))]
    {
        let wanted = Wanted { expected_leader_epoch: Some(LeaderEpoch(3)), ..wanted(&image, leader) };
        let planned = plan(&facts(&image, &LiveMap::new()), type_, wanted);
        assert!(matches!(planned.outcome, Outcome::NotNeeded), "{type_:?}");
        assert_eq!(ResultBody::new(&planned).new_leader_id, Some(1));
    }
}

#[test]
fn a_stale_epoch_is_a_conflict() {
    let image = image(&[1, 2, 3], Some(1), &[1, 2], &[]);
    for (leader, partition) in [(Some(13), None), (Some(15), None), (None, Some(30)), (Some(14), Some(32))] {
        let wanted = Wanted {
            expected_leader_epoch: leader.map(LeaderEpoch),
            expected_partition_epoch: partition.map(PartitionEpoch),
            ..wanted(&image, Some(2))
        };
        let (status, code, _) = refused(&plan(&facts(&image, &LiveMap::new()), ElectionType::Designated, wanted));
        assert_eq!((status, code), (409, 40911), "{leader:?} {partition:?}");
    }
}

#[test]
fn the_preferred_leader_must_be_in_sync() {
    let away = image(&[1, 2, 3], Some(2), &[2], &[]);
    assert_eq!(refused(&planned(&away, &LiveMap::new(), ElectionType::Preferred, None)).1, 40917);
    let home = image(&[1, 2, 3], Some(2), &[1, 2], &[]);
    assert_eq!(elected(&planned(&home, &LiveMap::new(), ElectionType::Preferred, None)), (1, None));
}

#[test]
fn a_leader_that_is_there_is_asked_what_its_replacement_costs() {
    let image = image(&[1, 2, 3], Some(1), &[1, 2], &[]);
    let mut leader = log(&[(14, 0)], 100);
    (leader.is_leader, leader.high_watermark) = (true, 90);
    let live = logs(&[(1, leader), (2, log(&[(14, 0)], 95)), (3, log(&[(14, 0)], 60))]);
    let clean = planned(&image, &live, ElectionType::Designated, Some(2));
    assert_eq!(elected(&clean), (2, None));
    assert_eq!((clean.candidates.len(), clean.alternative.is_none()), (0, true));
    let unclean = planned(&image, &live, ElectionType::Designated, Some(3));
    let (leader, loss) = elected(&unclean);
    let loss = loss.unwrap();
    assert_eq!((leader, loss.records(), loss.exact), (3, Some(30), true));
    assert_eq!(unclean.alternative.as_deref(), Some("choosing one of the in-sync brokers [2] loses nothing"));
    assert_eq!(unclean.election().unwrap().watermark, Some(report(90, NOW)));
    // One that does not answer has told before.
    let silent = logs(&[(3, log(&[(14, 0)], 60))]);
    let (high_watermark, log_start) = (Offset(80), Offset(75));
    let reported = Timestamp(NOW - 50);
    let told = KnownWatermark { partition: at(), high_watermark, reported, log_start, leader_epoch: None };
    let facts = Facts { reported: BTreeMap::from([(at(), told)]), ..facts(&image, &silent) };
    let loss = elected(&super::plan(&facts, ElectionType::Designated, wanted(&image, Some(3)))).1.unwrap();
    assert_eq!((loss.records(), loss.exact), (Some(5), false), "what it had deleted is not lost");
}

#[test]
fn what_nobody_reported_is_not_guessed() {
    let mut image = image(&[3], None, &[], &[]);
    let mut state = PartitionState::clone(image.partition(at()).unwrap());
    state.last_known_watermark = None;
    image.apply(&Change::Partition(at(), Arc::new(state)));
    let lost = PartitionChange {
        index: 9,
        sequence: 0,
        time: Timestamp(NOW),
        leader: None,
        leader_epoch: LeaderEpoch(14),
        partition_epoch: PartitionEpoch(31),
        requested_by: None,
        kind: ChangeKind::Leader { before: Some(BrokerId(1)), reason: LeaderReason::Lost },
    };
    image.apply(&Change::History(at(), Arc::new(lost)));
    let live = logs(&[(3, log(&[(14, 0)], 60))]);
    let body = serde_json::to_value(ResultBody::new(&planned(&image, &live, ElectionType::Unclean, None))).unwrap();
    for field in ["last_known_high_watermark", "committed_records_lost_at_least", "acks_all_data_affected"] {
        assert!(body["loss"][field].is_null(), "{body}");
    }
    assert_eq!(body["loss"]["new_log_end_offset"], 60);
}

#[test]
fn a_plan_is_valid_for_ten_minutes_for_the_state_and_the_leaders_it_names() {
    let before = image(&[2, 3], None, &[], &[]);
    let live = logs(&[(2, log(&[(14, 0)], 10)), (3, log(&[(14, 0)], 20))]);
    let plan = |image, leader| vec![planned(image, &live, ElectionType::Unclean, leader)];
    let id = plan_id(&plan(&before, None), NOW);
    assert!(id.starts_with("el-"), "{id}");
    assert_eq!(verify(&id, &plan(&before, None), NOW), Ok(()));
    assert_eq!(verify(&id, &plan(&before, Some(3)), NOW + AGE_MAX_MS), Ok(()), "the same leader by name");
    let code = |result: Result<(), ApiError>| result.unwrap_err().error_code;
    assert_eq!(code(verify(&id, &plan(&before, None), NOW + AGE_MAX_MS + 1)), 40911);
    assert_eq!(code(verify(&id, &plan(&before, Some(2)), NOW)), 40911, "another leader");
    let mut after = before.clone();
    let state = PartitionState::clone(after.partition(at()).unwrap());
    let state = PartitionState { partition_epoch: state.partition_epoch.next(), ..state };
    after.apply(&Change::Partition(at(), Arc::new(state)));
    assert_eq!(code(verify(&id, &plan(&after, None), NOW)), 40911, "another state");
    let later = id.replacen(&format!("{NOW:x}"), &format!("{:x}", NOW + 1_000), 1);
    assert_eq!(code(verify(&later, &plan(&before, None), NOW)), 40911, "another time");
    for strange in ["", "el-7c1", "el-x-y", "plan"] {
        assert_eq!(code(verify(strange, &plan(&before, None), NOW)), 42206, "{strange}");
    }
}

#[test]
fn loss_wants_a_plan_and_a_confirmation() {
    let image = image(&[3], None, &[], &[]);
    let live = logs(&[(3, log(&[(14, 0)], 20))]);
    let planned = vec![planned(&image, &live, ElectionType::Unclean, None)];
    let body = |confirm_data_loss, plan_id| ElectBody {
        election_type: ElectionType::Unclean,
        partitions: vec![],
        all: true,
        validate_only: false,
        confirm_data_loss,
        plan_id,
    };
    let id = plan_id(&planned, NOW);
    let code = |body: ElectBody| check_confirmation(&body, &planned, NOW).map_err(|error| error.error_code);
    assert_eq!(code(body(false, None)), Err(42210));
    assert_eq!(code(body(true, None)), Err(42210));
    assert_eq!(code(body(false, Some(id.clone()))), Err(42210));
    assert_eq!(code(body(true, Some(plan_id(&planned, NOW - AGE_MAX_MS - 1)))), Err(40911));
    assert_eq!(code(body(true, Some(id))), Ok(()));
    assert_eq!(check_confirmation(&body(false, Some("el-0-0".to_owned())), &[], NOW), Ok(()), "nothing left to do");
}
