//! Configurations changed while the cluster runs, by example (R187, R193, R196).

use std::collections::BTreeMap;

use highwater_wire::{BrokerId, ErrorCode, Timestamp};

use crate::controller::testing::*;
use crate::controller::*;
use crate::image::topic_config::ConfigFault;
use crate::image::{Inherited, LeaderReason, state_hash};

const TOPIC: ConfigResource = ConfigResource::Topic(highwater_wire::TopicId::from_bytes([1; 16]));

fn request(resource: ConfigResource, operations: &[(&str, ConfigAction)]) -> AlterConfigs {
    let operations = operations
        .iter()
        .map(|(key, action)| ConfigOperation { key: (*key).to_owned(), action: action.clone() })
        .collect();
    AlterConfigs { resource, replace: false, operations, expected: None, time: Timestamp(9) }
}

fn set(value: &str) -> ConfigAction {
    ConfigAction::Set(value.to_owned())
}

fn alter(
    quorum: &mut Quorum,
    resource: ConfigResource,
    operations: &[(&str, ConfigAction)],
) -> Result<Answer, Refusal> {
    quorum.run(Command::AlterConfigs(request(resource, operations)))
}

fn faults(refused: Result<Answer, Refusal>) -> Vec<ConfigFault> {
    match refused {
        Err(Refusal::InvalidTopicConfigs(faults) | Refusal::InvalidBrokerConfigs(faults)) => faults.0,
        other => panic!("{other:?}"),
    }
}

fn config(quorum: &Quorum, n: u8) -> &crate::image::TopicConfig {
    &quorum.image.topics.get(&topic_id(n)).unwrap().config
}

#[test]
fn a_change_takes_effect_as_a_whole_and_a_repetition_changes_nothing() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("retention.ms", "1000"), ("segment.bytes", "4096")]).unwrap();
    let both =
        [("retention.ms", set("-1")), ("max.message.bytes", set("500")), ("segment.bytes", ConfigAction::Delete)];
    alter(&mut quorum, TOPIC, &both).unwrap();
    let now = config(&quorum, 1);
    assert_eq!((now.retention_ms, now.message_bytes_max, now.segment_bytes_max), (None, 500, 1 << 30));
    assert_eq!(now.given.keys().collect::<Vec<_>>(), ["max.message.bytes", "retention.ms"]);
    let before = state_hash(&quorum.image);
    alter(&mut quorum, TOPIC, &both).unwrap();
    assert_eq!(state_hash(&quorum.image), before);

    let replacement = AlterConfigs { replace: true, ..request(TOPIC, &[("flush.messages", set("1"))]) };
    quorum.run(Command::AlterConfigs(replacement)).unwrap();
    let now = config(&quorum, 1);
    assert_eq!((now.retention_ms, now.flush_messages), (Some(604_800_000), 1));
    assert_eq!(now.given.len(), 1, "what a replacement does not name is back at its default");
}

#[test]
fn one_bad_key_refuses_the_whole_and_all_faults_are_told() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    let before = state_hash(&quorum.image);
    let bad = [
        ("retention.ms", set("5")),
        ("segment.bytes", set("10")),
        ("retension.ms", set("1")),
        ("min.insync.replica", ConfigAction::Delete),
    ];
    let refused = alter(&mut quorum, TOPIC, &bad);
    assert_eq!(ErrorCode::from(refused.as_ref().unwrap_err()), ErrorCode::InvalidConfig);
    let told = faults(refused);
    let keys: Vec<_> = told.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(keys, ["min.insync.replica", "retension.ms", "segment.bytes"]);
    assert_eq!(told[2].allowed.as_deref(), Some("a whole number from 1024 to 2147483647"));
    assert!(told[0].why.contains("did you mean \"min.insync.replicas\"?"), "a deleted typo is no success");
    assert_eq!(state_hash(&quorum.image), before);
    alter(&mut quorum, TOPIC, &[("retention.ms", ConfigAction::Delete)]).unwrap();
    assert_eq!(state_hash(&quorum.image), before, "a known key that is not set may be deleted");
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[]).unwrap();
    let twice = [("retention.ms", set("5")), ("retention.ms", ConfigAction::Delete)];
    assert!(matches!(alter(&mut quorum, TOPIC, &twice), Err(Refusal::InvalidRequest(_))));
    let replacement = AlterConfigs { replace: true, ..request(TOPIC, &[("retention.ms", ConfigAction::Delete)]) };
    assert!(matches!(quorum.run(Command::AlterConfigs(replacement)), Err(Refusal::InvalidRequest(_))));
    let unknown = ConfigResource::Topic(topic_id(9));
    let refused = alter(&mut quorum, unknown, &[("retention.ms", set("5"))]);
    assert_eq!(refused, Err(Refusal::UnknownTopicId(topic_id(9))));
    let refused = alter(&mut quorum, ConfigResource::Broker(BrokerId(9)), &[("max.connections", set("5"))]);
    assert_eq!(refused, Err(Refusal::UnknownBroker(BrokerId(9))));
}

#[test]
fn lists_are_added_to_and_taken_from_and_nothing_else_is() {
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[]).unwrap();
    let append = |part: &str| ConfigAction::Append(part.to_owned());
    alter(&mut quorum, TOPIC, &[("cleanup.policy", append("delete"))]).unwrap();
    assert_eq!(config(&quorum, 1).given["cleanup.policy"], "delete", "it was in force, so it is not doubled");
    let told = faults(alter(&mut quorum, TOPIC, &[("cleanup.policy", ConfigAction::Subtract("delete".to_owned()))]));
    assert_eq!(told[0].value, "", "{told:?}");
    alter(&mut quorum, TOPIC, &[("cleanup.policy", append("compact"))]).unwrap();
    assert_eq!(config(&quorum, 1).given["cleanup.policy"], "delete,compact");
    alter(&mut quorum, TOPIC, &[("cleanup.policy", ConfigAction::Subtract("delete".to_owned()))]).unwrap();
    assert!(config(&quorum, 1).compact && !config(&quorum, 1).cleanup.delete);
    let told = faults(alter(&mut quorum, TOPIC, &[("retention.ms", append("1"))]));
    assert!(told[0].why.contains("its type is not a list"), "{told:?}");
}

#[test]
fn a_change_decided_on_another_configuration_is_refused() {
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[("retention.ms", "1000")]).unwrap();
    let read = config(&quorum, 1).given.clone();
    let change = AlterConfigs { expected: Some(read), ..request(TOPIC, &[("retention.ms", set("2000"))]) };
    quorum.run(Command::AlterConfigs(change.clone())).unwrap();
    let refused = quorum.run(Command::AlterConfigs(change));
    assert_eq!(refused, Err(Refusal::ConfigsChanged("topic \"topic-1\"".to_owned())));
    assert_eq!(config(&quorum, 1).retention_ms, Some(2_000));
}

#[test]
fn a_default_of_all_brokers_is_in_force_where_a_topic_does_not_set_the_key_itself() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("retention.ms", "1000")]).unwrap();
    let inherited = BTreeMap::from([("retention.ms".to_owned(), Inherited { value: "7000".to_owned(), set: true })]);
    quorum.run(Command::CreateTopicInheriting { part: creation(2, &[1], &[]), inherited }).unwrap();
    let retention =
        |quorum: &Quorum| [1, 2, 3].map(|n| quorum.image.topics.get(&topic_id(n)).and_then(|t| t.config.retention_ms));
    assert_eq!(retention(&quorum), [Some(1_000), Some(7_000), None]);

    alter(&mut quorum, ConfigResource::Brokers, &[("log.retention.ms", set("5000"))]).unwrap();
    quorum.create(3, &[1], &[]).unwrap();
    assert_eq!(retention(&quorum), [Some(1_000), Some(5_000), Some(5_000)]);
    assert!(config(&quorum, 3).given.is_empty(), "it is not set on the topic");

    alter(&mut quorum, TOPIC, &[("retention.ms", ConfigAction::Delete)]).unwrap();
    assert_eq!(retention(&quorum), [Some(5_000); 3]);
    alter(&mut quorum, ConfigResource::Brokers, &[("log.retention.ms", ConfigAction::Delete)]).unwrap();
    assert_eq!(retention(&quorum), [Some(604_800_000), Some(7_000), Some(604_800_000)]);
    assert!(quorum.image.broker_configs.is_empty());
}

#[test]
fn a_topic_that_sets_one_of_two_changed_defaults_takes_the_other() {
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("retention.ms", "1000")]).unwrap();
    let both = [("log.retention.ms", set("5000")), ("min.insync.replicas", set("2"))];
    alter(&mut quorum, ConfigResource::Brokers, &both).unwrap();
    let now = config(&quorum, 1);
    assert_eq!((now.retention_ms, now.min_isr), (Some(1_000), 2));
}

#[test]
fn what_is_set_on_one_broker_goes_before_what_is_set_on_all() {
    let mut quorum = Quorum::new(2);
    let (all, one) = (ConfigResource::Brokers, ConfigResource::Broker(BrokerId(2)));
    alter(&mut quorum, all, &[("max.connections", set("10"))]).unwrap();
    alter(&mut quorum, one, &[("max.connections", set("20"))]).unwrap();
    let of = |id| quorum.image.dynamic_setting(BrokerId(id), "max.connections");
    assert_eq!((of(1), of(2)), (Some("10"), Some("20")));
    let told = faults(alter(&mut quorum, one, &[("min.insync.replicas", set("2")), ("node.id", set("3"))]));
    assert!(told[0].why.contains("replicas on different brokers must agree"), "{told:?}");
    assert!(told[1].why.contains("cannot update node.id dynamically"), "{told:?}");
    let refused = alter(&mut quorum, all, &[("max.connections", set("0"))]);
    assert_eq!(ErrorCode::from(refused.as_ref().unwrap_err()), ErrorCode::InvalidRequest);
}

#[test]
fn lowering_min_isr_empties_the_elr_in_the_same_entry() {
    // R196: the leader may commit without them from then on.
    let mut quorum = Quorum::new(3);
    quorum.create(1, &[1, 2, 3], &[("min.insync.replicas", "3")]).unwrap();
    quorum.set_isr(1, &[1, 2]);
    quorum.set_isr(1, &[1]);
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![2, 3]));
    alter(&mut quorum, TOPIC, &[("min.insync.replicas", set("1"))]).unwrap();
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![]));
    quorum.fence(&[1]);
    assert_eq!(quorum.sets(1).0, None, "nobody who was left behind may lead");
}

#[test]
fn lowering_the_default_of_all_brokers_empties_the_elr_too_but_not_where_the_factor_caps_it() {
    let mut quorum = Quorum::new(3);
    alter(&mut quorum, ConfigResource::Brokers, &[("min.insync.replicas", set("3"))]).unwrap();
    quorum.create(1, &[1, 2, 3], &[]).unwrap();
    quorum.create(2, &[1, 2], &[]).unwrap();
    quorum.create(3, &[1, 2, 3], &[("min.insync.replicas", "3")]).unwrap();
    for (n, isr) in [(1, &[1, 2][..]), (2, &[1]), (3, &[1, 2])] {
        quorum.set_isr(n, isr);
    }
    alter(&mut quorum, ConfigResource::Brokers, &[("min.insync.replicas", set("2"))]).unwrap();
    assert_eq!(quorum.sets(1).2, Vec::<i32>::new());
    assert_eq!(quorum.sets(2).2, vec![2], "two of two are needed before and after");
    assert_eq!(quorum.sets(3).2, vec![3], "its own setting goes first");
}

#[test]
fn a_partition_without_leader_keeps_its_elr_when_min_isr_is_lowered() {
    // Nobody commits while nobody leads: those who held everything still do, and may lead cleanly.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[("min.insync.replicas", "2")]).unwrap();
    quorum.fence(&[1]);
    quorum.fence(&[2]);
    assert_eq!(quorum.sets(1), (None, vec![], vec![1, 2]));
    alter(&mut quorum, TOPIC, &[("min.insync.replicas", set("1"))]).unwrap();
    let claim = quorum.same_boot(1);
    quorum.start(1, claim);
    assert_eq!((quorum.sets(1), quorum.last_election(1)), ((Some(1), vec![1], vec![]), LeaderReason::Elr));
}

#[test]
fn a_proposal_made_before_min_isr_was_raised_is_stale() {
    // The leader that made it may commit by the old minimum once it shrinks: whom it leaves behind would be incomplete,
    // and by the new minimum eligible.
    let mut quorum = Quorum::new(2);
    quorum.create(1, &[1, 2], &[]).unwrap();
    let shrink = quorum.proposal(1, &[1]);
    alter(&mut quorum, TOPIC, &[("min.insync.replicas", set("2"))]).unwrap();
    assert!(matches!(quorum.alter(1, shrink), Err(Refusal::StalePartitionEpoch { .. })));
    quorum.set_isr(1, &[1]);
    assert_eq!(quorum.sets(1), (Some(1), vec![1], vec![2]), "a leader that knows holds its watermark still");
}

#[test]
fn switching_unclean_election_on_elects_where_nobody_leads() {
    // D35, by the topic and by the default of all brokers; a partition with a leader keeps it.
    for resource in [TOPIC, ConfigResource::Brokers] {
        let mut quorum = Quorum::new(3);
        quorum.create(1, &[1, 2], &[]).unwrap();
        quorum.create(2, &[2, 3], &[]).unwrap();
        quorum.set_isr(1, &[1]);
        quorum.fence(&[1]);
        assert_eq!(quorum.sets(1).0, None);
        alter(&mut quorum, resource, &[("unclean.leader.election.enable", set("true"))]).unwrap();
        assert_eq!(quorum.sets(1), (Some(2), vec![2], vec![]));
        assert_eq!(quorum.last_election(1), LeaderReason::Unclean);
        assert_eq!(quorum.state(2).leader_epoch.0, 0);
    }
}

#[test]
fn older_rules_do_not_know_the_commands() {
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[]).unwrap();
    let unknown = Err(Refusal::UnsupportedFeature { level: 1 });
    for command in [
        Command::AlterConfigs(request(TOPIC, &[("retention.ms", set("1"))])),
        Command::CreateTopicInheriting { part: creation(2, &[1], &[]), inherited: BTreeMap::new() },
    ] {
        for rules in [1, 2] {
            assert_eq!(decide(&quorum.image, 9, rules, &command), unknown);
        }
    }
}

#[test]
fn nothing_is_compacted_by_rules_before_5() {
    let mut quorum = Quorum::new(1);
    quorum.create(1, &[1], &[]).unwrap();
    let compact = [("cleanup.policy", "compact")];
    let inherited =
        BTreeMap::from([("cleanup.policy".to_owned(), Inherited { value: "compact".to_owned(), set: true })]);
    for command in [
        Command::CreateTopic(creation(2, &[1], &compact)),
        Command::CreateTopicInheriting { part: creation(2, &[1], &[]), inherited },
        Command::AlterConfigs(request(TOPIC, &[("cleanup.policy", set("compact,delete"))])),
        Command::AlterConfigs(request(ConfigResource::Brokers, &[("log.cleanup.policy", set("compact"))])),
        Command::AlterConfigs(request(ConfigResource::Brokers, &[("log.cleaner.backoff.ms", set("5"))])),
    ] {
        let refused = decide(&quorum.image, 9, 4, &command).map(|decision| decision.answer);
        assert!(faults(refused)[0].why.contains("rules before 5"), "{command:?}");
        assert!(decide(&quorum.image, 9, 5, &command).is_ok(), "{command:?}");
    }
    quorum.run(Command::CreateTopic(creation(2, &[1], &compact))).unwrap();
    let read = decide(&quorum.image, 9, 4, &Command::AlterConfigs(request(TOPIC, &[("retention.ms", set("1"))])));
    assert!(read.is_ok(), "another topic is nobody's business");
}
