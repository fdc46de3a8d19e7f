//! The golden logs, one for each rule version: what they decide is decided for ever (D14).
//!
//! `golden_rules_N.bin` is a list of (index, rules, command) as postcard wrote it once. A change of a persisted type or of
//! a rule that is already in use shows here, before a cluster with two builds disagrees with itself. Never adapt the file
//! to the code: give the changed rule a new version.

use std::collections::BTreeMap;

use highwater_wire::{BrokerId, DirectoryId, IncarnationId, LeaderEpoch, Offset, Timestamp};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::{
    Endpoint, Evidence, ImageVersion, Inherited, LastReport, LeaderReason, LeaderRecovery, MetadataImage, ShrinkReason,
    state_hash,
};

struct Golden {
    name: &'static str,
    stored: &'static [u8],
    written_anew: fn() -> Vec<(u64, u16, Command)>,
    /// The hash after the last entry, and the exclusive or of the hashes after each.
    hashes: (u64, u64),
}

const GOLDEN: [Golden; 4] = [
    Golden {
        name: "golden_rules_1.bin",
        stored: include_bytes!("golden_rules_1.bin"),
        written_anew: by_rules_1,
        hashes: (0xdafb_03a1_df73_bc4d, 0xf433_1505_7908_8dcd),
    },
    Golden {
        name: "golden_rules_2.bin",
        stored: include_bytes!("golden_rules_2.bin"),
        written_anew: by_rules_2,
        hashes: (0x5ae6_4541_e77d_eeb6, 0xbb2c_d307_476e_9698),
    },
    Golden {
        name: "golden_rules_3.bin",
        stored: include_bytes!("golden_rules_3.bin"),
        written_anew: by_rules_3,
        hashes: (0x2bf2_3fee_bb99_827f, 0xc5f8_5fdd_a87a_9279),
    },
    Golden {
        name: "golden_rules_4.bin",
        stored: include_bytes!("golden_rules_4.bin"),
        written_anew: by_rules_4,
        hashes: (0x53f8_0312_5fe1_5ed6, 0xe18d_7e11_fde2_467d),
    },
];

fn replay(entries: &[(u64, u16, Command)]) -> (u64, u64, usize) {
    let (mut image, mut all, mut refused) = (MetadataImage::default(), 0, 0);
    for (index, rules, command) in entries {
        match decide(&image, *index, *rules, command) {
            Ok(decision) => image.apply_all(&decision.changes),
            Err(_) => refused += 1,
        }
        image.version = ImageVersion(*index);
        image.check_invariants();
        image.check_configs();
        all ^= state_hash(&image).rotate_left((*index % 64) as u32);
    }
    (state_hash(&image), all, refused)
}

#[test]
fn the_stored_logs_give_the_same_state_for_ever() {
    for golden in GOLDEN {
        let entries: Vec<(u64, u16, Command)> = postcard::from_bytes(golden.stored).expect("a golden file can be read");
        assert_eq!(entries.len(), (golden.written_anew)().len());
        let (last, all, refused) = replay(&entries);
        assert_eq!((last, all), golden.hashes, "{}: got {last:#018x}, {all:#018x}", golden.name);
        assert!(refused > 0, "refusals belong to the log");
    }
}

#[test]
fn commands_are_written_as_the_golden_files_have_them() {
    for Golden { name, stored, written_anew, .. } in GOLDEN {
        let bytes = postcard::to_stdvec(&written_anew()).unwrap();
        if bytes != stored {
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, &bytes).unwrap();
            panic!("commands are written differently now ({} bytes, stored {}): {path:?}", bytes.len(), stored.len());
        }
    }
}

/// A cluster with brokers 1 to `brokers` at work.
fn form(q: &mut Quorum, brokers: i32, run: &mut impl FnMut(&mut Quorum, Command) -> Result<Answer, Refusal>) {
    let time = Timestamp(1_767_225_600_000);
    run(q, Command::FormCluster { cluster_id: CLUSTER.to_owned(), feature_level: 1, time }).unwrap();
    for id in 1..=brokers {
        run(q, Command::RegisterBroker(RegisterBroker { time, ..registration(id) })).unwrap();
        let (broker, epoch) = (BrokerId(id), q.epoch(id));
        run(q, Command::UnfenceBroker { broker, epoch, lost: Vec::new(), time }).unwrap();
    }
}

/// What differs from rules 1: a proposal with a member that is not active moves the partition epoch.
fn by_rules_2() -> Vec<(u64, u16, Command)> {
    let mut quorum = Quorum { image: MetadataImage::default() };
    let mut log = Vec::new();
    let mut run = |quorum: &mut Quorum, command: Command| {
        log.push((quorum.image.version.0 + 1, 2, command.clone()));
        quorum.run(command)
    };
    let time = Timestamp(1_767_225_600_000);
    let q = &mut quorum;
    form(q, 2, &mut run);
    run(q, Command::CreateTopic(creation(1, &[1, 2], &[]))).unwrap();
    let one = FencedBroker { broker: BrokerId(2), epoch: q.epoch(2), note: "silent".to_owned() };
    run(q, Command::FenceBrokers { brokers: vec![one], watermarks: Vec::new(), time }).unwrap();
    let expand = q.proposal(1, &[1, 2]);
    let (broker, epoch) = (BrokerId(1), q.epoch(1));
    let alter = Command::AlterPartition(AlterPartition { broker, epoch, changes: vec![expand], time });
    run(q, alter.clone()).unwrap();
    let (broker, epoch) = (BrokerId(2), q.epoch(2));
    run(q, Command::UnfenceBroker { broker, epoch, lost: Vec::new(), time }).unwrap();
    run(q, alter).unwrap();
    run(q, Command::DeleteTopic { id: topic_id(4), time }).unwrap_err();
    assert_eq!(q.sets(1).1, ids(&[1]).iter().map(|id| id.0).collect::<Vec<_>>(), "the late copy changed nothing");
    log
}

/// What operators may do since rules 3: partitions added, leaders chosen and the loss told, configurations changed, topics
/// that inherit, controllers that come and go.
fn by_rules_3() -> Vec<(u64, u16, Command)> {
    let mut quorum = Quorum { image: MetadataImage::default() };
    let mut log = Vec::new();
    let mut run = |quorum: &mut Quorum, command: Command| {
        log.push((quorum.image.version.0 + 1, 3, command.clone()));
        quorum.run(command)
    };
    let time = Timestamp(1_767_225_600_000);
    let q = &mut quorum;
    form(q, 3, &mut run);
    // Controllers.
    let directory = DirectoryId::from_bytes([9; 16]);
    let endpoint = Endpoint { host: "n4".to_owned(), port: 9_093 };
    let node = BrokerId(4);
    run(q, Command::RegisterController { node, directory, endpoint: endpoint.clone(), time }).unwrap();
    run(q, Command::RegisterController { node: BrokerId(5), directory, endpoint, time }).unwrap();
    run(q, Command::UnregisterController { node, directory, time }).unwrap();
    // A topic that inherits, and one that grows.
    let inherited =
        BTreeMap::from([("min.insync.replicas".to_owned(), Inherited { value: "2".to_owned(), set: false })]);
    let part = creation(1, &[1, 2, 3], &[("retention.ms", "3600000")]);
    run(q, Command::CreateTopicInheriting { part, inherited }).unwrap();
    run(q, Command::CreateTopic(creation(2, &[1, 2], &[]))).unwrap();
    let growth = AddPartitions {
        topic: topic_id(2),
        first_partition: 1,
        assignments: vec![ids(&[2, 3]), ids(&[3, 1])],
        manual: false,
        time,
    };
    run(q, Command::AddPartitions(growth.clone())).unwrap();
    run(q, Command::AddPartitions(growth.clone())).unwrap();
    run(q, Command::AddPartitions(AddPartitions { first_partition: 9, ..growth })).unwrap_err();
    // Configurations: set, taken back, refused, all replaced; a lower min ISR while somebody is out.
    let alter = |resource, replace, operations: &[(&str, ConfigAction)]| {
        let operation =
            |(key, action): &(&str, ConfigAction)| ConfigOperation { key: (*key).to_owned(), action: action.clone() };
        let operations = operations.iter().map(operation).collect();
        Command::AlterConfigs(AlterConfigs { resource, replace, operations, expected: None, time })
    };
    let set = |value: &str| ConfigAction::Set(value.to_owned());
    let one = ConfigResource::Topic(topic_id(1));
    run(q, alter(one, false, &[("retention.ms", ConfigAction::Delete), ("segment.bytes", set("1048576"))])).unwrap();
    run(q, alter(one, false, &[("segment.bytes", set("many"))])).unwrap_err();
    run(q, alter(ConfigResource::Brokers, false, &[("log.retention.ms", set("60000"))])).unwrap();
    run(q, alter(ConfigResource::Broker(BrokerId(2)), false, &[("num.replica.fetchers", set("2"))])).unwrap();
    let one_gone = FencedBroker { broker: BrokerId(3), epoch: q.epoch(3), note: "silent".to_owned() };
    let another = FencedBroker { broker: BrokerId(2), epoch: q.epoch(2), note: "silent".to_owned() };
    run(q, Command::FenceBrokers { brokers: vec![one_gone, another], watermarks: Vec::new(), time }).unwrap();
    run(q, alter(one, true, &[("min.insync.replicas", set("1")), ("flush.messages", set("1"))])).unwrap();
    // The last one goes; what it had committed is known; another leads at the cost of it, and says where it begins.
    let last = FencedBroker { broker: BrokerId(1), epoch: q.epoch(1), note: "connection refused twice".to_owned() };
    let known = BareWatermark { partition: at(1), high_watermark: Offset(70), reported: time };
    run(q, Command::FenceBrokers { brokers: vec![last], watermarks: vec![known], time }).unwrap();
    let (broker, epoch) = (BrokerId(2), q.epoch(2));
    run(q, Command::UnfenceBroker { broker, epoch, lost: Vec::new(), time }).unwrap();
    let chosen = |accept_loss, expected_leader_epoch| Command::ElectChosen {
        elections: vec![ChosenElection {
            partition: at(1),
            leader: BrokerId(2),
            accept_loss,
            expected_leader_epoch,
            expected_partition_epoch: None,
            watermark: None,
        }],
        time,
    };
    let leader_epoch = q.state(1).leader_epoch;
    run(q, chosen(false, None)).unwrap();
    run(q, chosen(true, Some(LeaderEpoch(leader_epoch.0 - 1)))).unwrap();
    run(q, chosen(true, Some(leader_epoch))).unwrap();
    assert_eq!(q.last_election(1), LeaderReason::Unclean);
    let mut recovered = q.proposal(1, &[2]);
    recovered.why = IsrReason::Recovered;
    recovered.recovery = LeaderRecovery::Recovered;
    recovered.evidence = vec![Evidence { leader_end: Some(Offset(64)), ..Evidence::about(BrokerId(2)) }];
    let (broker, epoch) = (BrokerId(2), q.epoch(2));
    run(q, Command::AlterPartition(AlterPartition { broker, epoch, changes: vec![recovered], time })).unwrap();
    let lost: u64 = q.image.history_of(at(1)).iter().map(|change| change.kind.records_lost()).sum();
    assert_eq!(lost, 6, "committed up to 70, there up to 64");
    // Unclean elections allowed: whoever has no leader gets one.
    run(q, alter(ConfigResource::Topic(topic_id(2)), false, &[("unclean.leader.election.enable", set("true"))]))
        .unwrap();
    log
}

/// What rules 4 brought: where the logs of lost leaders began, reported, named with a choice, or as evidence.
fn by_rules_4() -> Vec<(u64, u16, Command)> {
    let mut quorum = Quorum { image: MetadataImage::default() };
    let mut log = Vec::new();
    let mut run = |quorum: &mut Quorum, command: Command| {
        log.push((quorum.image.version.0 + 1, 4, command.clone()));
        quorum.run(command)
    };
    let time = Timestamp(1_767_225_600_000);
    let q = &mut quorum;
    form(q, 2, &mut run);
    run(q, Command::CreateTopic(creation(1, &[1, 2], &[]))).unwrap();
    let alter = |q: &Quorum, proposal: IsrProposal| {
        let sender = q.image.partition(proposal.partition).unwrap().leader.unwrap();
        let epoch = q.epoch(sender.0);
        Command::AlterPartition(AlterPartition { broker: sender, epoch, changes: vec![proposal], time })
    };
    let of_itself = |id, leader_end, follower_end| Evidence {
        leader_end: Some(Offset(leader_end)),
        follower_end: Some(Offset(follower_end)).filter(|start| *start > Offset::ZERO),
        ..Evidence::about(BrokerId(id))
    };
    let mut alone = q.proposal(1, &[1]);
    alone.why = IsrReason::Shrink(ShrinkReason::FollowerSlow);
    alone.evidence = vec![of_itself(1, 40, 33)];
    run(q, alter(q, alone)).unwrap();
    let fenced = |q: &Quorum, id| FencedBroker { broker: BrokerId(id), epoch: q.epoch(id), note: "silent".to_owned() };
    let (high_watermark, log_start) = (Offset(70), Offset(66));
    let leader_epoch = Some(q.state(1).leader_epoch);
    let known = KnownWatermark { partition: at(1), high_watermark, reported: time, log_start, leader_epoch };
    run(q, Command::FenceBrokersKnowing { brokers: vec![fenced(q, 1)], watermarks: vec![known], time }).unwrap();
    let chosen = |leader, watermark| Command::ElectChosen {
        elections: vec![ChosenElection {
            partition: at(1),
            leader: BrokerId(leader),
            accept_loss: true,
            expected_leader_epoch: None,
            expected_partition_epoch: None,
            watermark,
        }],
        time,
    };
    run(q, chosen(2, None)).unwrap();
    let recovers = |q: &Quorum, id, end| {
        let mut recovered = q.proposal(1, &[id]);
        recovered.why = IsrReason::Recovered;
        recovered.recovery = LeaderRecovery::Recovered;
        recovered.evidence = vec![of_itself(id, end, 0)];
        alter(q, recovered)
    };
    run(q, recovers(q, 2, 64)).unwrap();
    // The other one comes back and is named, at the cost of what the present leader has committed since and not deleted.
    let (broker, epoch) = (BrokerId(1), q.epoch(1));
    run(q, Command::UnfenceBroker { broker, epoch, lost: Vec::new(), time }).unwrap();
    let report = LastReport { high_watermark: Offset(90), reported: time, log_start: Offset(88) };
    run(q, chosen(1, Some(report))).unwrap();
    run(q, recovers(q, 1, 75)).unwrap();
    let lost: Vec<u64> = q.image.history_of(at(1)).iter().map(|change| change.kind.records_lost()).collect();
    assert_eq!(lost.iter().sum::<u64>(), (70 - 66) + (90 - 88));
    run(q, Command::FenceBrokers { brokers: vec![fenced(q, 2)], watermarks: Vec::new(), time }).unwrap();
    run(q, Command::DeleteTopic { id: topic_id(4), time }).unwrap_err();
    log
}

/// Every command of the first rules, most of them applied, some refused.
fn by_rules_1() -> Vec<(u64, u16, Command)> {
    let mut quorum = Quorum { image: MetadataImage::default() };
    let mut log = Vec::new();
    let mut run = |quorum: &mut Quorum, command: Command| {
        log.push((quorum.image.version.0 + 1, 1, command.clone()));
        quorum.run(command)
    };
    let time = Timestamp(1_767_225_600_000);
    let q = &mut quorum;
    let start = |q: &mut Quorum, run: &mut dyn FnMut(&mut Quorum, Command) -> Result<Answer, Refusal>, id, claim| {
        let former = q.image.broker(BrokerId(id)).map_or(0, |broker| broker.incarnation.to_bytes()[1]);
        let incarnation: IncarnationId = process(id, former + 1);
        let rack = Some(format!("rack-{id}"));
        let request = RegisterBroker { incarnation, claim, rack, previous_is_dead: true, time, ..registration(id) };
        run(q, Command::RegisterBroker(request)).unwrap();
        let (broker, epoch) = (BrokerId(id), q.epoch(id));
        run(q, Command::UnfenceBroker { broker, epoch, lost: vec![at(3)], time }).unwrap();
    };
    run(q, Command::FormCluster { cluster_id: CLUSTER.to_owned(), feature_level: 1, time }).unwrap();
    for id in 1..=4 {
        start(q, &mut run, id, DataClaim::Nothing);
    }
    run(q, Command::SetFeatureLevel { level: 1 }).unwrap();
    let configs = [("min.insync.replicas", "2"), ("retention.ms", "3600000"), ("cleanup.policy", "delete")];
    run(q, Command::CreateTopic(creation(1, &[1, 2, 3], &configs))).unwrap();
    for number in 0..2 {
        let part = CreateTopic {
            first_partition: number * 2,
            assignments: vec![ids(&[2, 3]), ids(&[3, 1])],
            complete: number == 1,
            manual: false,
            ..creation(2, &[1], &[("unclean.leader.election.enable", "true")])
        };
        run(q, Command::CreateTopic(part)).unwrap();
    }
    run(q, Command::CreateTopic(creation(3, &[4], &[]))).unwrap();
    run(q, Command::CreateTopic(creation(4, &[9], &[]))).unwrap_err();
    run(q, Command::DeleteTopic { id: topic_id(4), time }).unwrap_err();
    let mut shrink = q.proposal(1, &[1, 2]);
    shrink.why = IsrReason::Shrink(ShrinkReason::FollowerSlow);
    shrink.evidence =
        vec![Evidence { lag_ms: Some(30_012), leader_end: Some(Offset(99)), ..Evidence::about(BrokerId(3)) }];
    let alter = |q: &Quorum, proposal: IsrProposal| {
        let sender = q.image.partition(proposal.partition).unwrap().leader.unwrap();
        let epoch = q.epoch(sender.0);
        Command::AlterPartition(AlterPartition { broker: sender, epoch, changes: vec![proposal], time })
    };
    run(q, alter(q, shrink.clone())).unwrap();
    run(q, alter(q, shrink)).unwrap();
    run(q, alter(q, q.proposal(1, &[1, 2, 3]))).unwrap();
    let known = BareWatermark { partition: at(1), high_watermark: Offset(70), reported: time };
    let fence = |q: &Quorum, brokers: &[i32]| {
        let one = |id: &i32| FencedBroker { broker: BrokerId(*id), epoch: q.epoch(*id), note: "silent".to_owned() };
        let brokers = brokers.iter().map(one).collect();
        Command::FenceBrokers { brokers, watermarks: vec![known.clone()], time }
    };
    run(q, fence(q, &[1, 4])).unwrap();
    run(q, fence(q, &[2, 3])).unwrap();
    let claim = q.same_boot(2);
    start(q, &mut run, 2, claim);
    start(q, &mut run, 1, DataClaim::Nothing);
    let claim = q.same_boot(4);
    start(q, &mut run, 4, claim);
    let (broker, epoch) = (BrokerId(2), q.epoch(2));
    run(q, Command::AllocateProducerIds { broker, epoch, count: 1_000 }).unwrap();
    run(q, alter(q, q.proposal(1, &[1, 2]))).unwrap();
    let elect = |kind, topics: &[u8]| {
        let partitions = topics.iter().map(|n| at(*n)).collect();
        Command::ElectLeaders { kind, partitions, time }
    };
    run(q, elect(ElectionKind::Preferred, &[1, 2])).unwrap();
    run(q, elect(ElectionKind::Clean, &[3, 9])).unwrap();
    run(q, elect(ElectionKind::Unclean, &[3])).unwrap();
    let (broker, epoch) = (BrokerId(2), q.epoch(2));
    run(q, Command::ShutDownBroker { broker, epoch, time }).unwrap();
    run(q, Command::UnregisterBroker { broker: BrokerId(3), time }).unwrap();
    run(q, Command::UnregisterBroker { broker: BrokerId(1), time }).unwrap_err();
    run(q, Command::DeleteTopic { id: topic_id(3), time }).unwrap();
    log
}
