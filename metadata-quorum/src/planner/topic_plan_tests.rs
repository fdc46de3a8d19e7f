//! What becomes of what a client asks for, by example.

use super::*;
use crate::controller::testing::{cluster_of, ids, topic_id};
use crate::image::Change;

const TIME: Timestamp = Timestamp(1);

fn plan(image: &MetadataImage, spec: &TopicSpec) -> Result<TopicPlan, Refusal> {
    plan_topic(image, spec, &TopicDefaults::default(), topic_id(1), 7, TIME)
}

fn spec(name: &str) -> TopicSpec {
    TopicSpec { name: name.to_owned(), ..TopicSpec::default() }
}

fn code(planned: Result<TopicPlan, Refusal>) -> i16 {
    planned.map_or_else(|refusal| highwater_wire::ErrorCode::from(&refusal).code(), |_| 0)
}

#[test]
fn defaults_are_written_into_the_command_beside_what_was_asked_for() {
    let image = cluster_of(&[1, 2, 3]);
    let planned = plan(&image, &spec("orders")).unwrap();
    assert_eq!((planned.partitions, planned.replication_factor, planned.note), (1, 3, None));
    let part = &planned.parts[0];
    let derived = Inherited { value: "2".to_owned(), set: false };
    assert_eq!(planned.inherited, BTreeMap::from([("min.insync.replicas".to_owned(), derived)]));
    assert!(part.complete && !part.manual && part.configs.is_empty());

    let configs = BTreeMap::from([
        ("retention.ms".to_owned(), "1000".to_owned()),
        ("segment.ms".to_owned(), "604800000".to_owned()),
    ]);
    let defaults = TopicDefaults { min_isr: Some(3), unclean_election: true, configs, ..TopicDefaults::default() };
    let given = BTreeMap::from([("min.insync.replicas".to_owned(), "1".to_owned())]);
    let asked = TopicSpec { configs: given, ..spec("orders") };
    let planned = plan_topic(&image, &asked, &defaults, topic_id(1), 7, TIME).unwrap();
    let spelled: Vec<_> = planned.inherited.iter().map(|(k, v)| (k.as_str(), v.value.as_str(), v.set)).collect();
    let expected = [
        ("min.insync.replicas", "3", true),
        ("retention.ms", "1000", true),
        ("unclean.leader.election.enable", "true", true),
    ];
    assert_eq!(spelled, expected);
    let mut image = image;
    let decision = decide(&image, 2, RULE_VERSION, &planned.commands().next().unwrap()).unwrap();
    image.apply_all(&decision.changes);
    let config = &image.topic_named("orders").unwrap().config;
    assert_eq!((config.min_isr, config.retention_ms, config.unclean_election), (1, Some(1_000), true));
    assert_eq!(config.given, asked.configs, "only what was asked for counts as set on the topic");
}

#[test]
fn the_default_factor_is_capped_at_the_brokers_present_and_the_caller_is_told() {
    // D19.
    let planned = plan(&cluster_of(&[1]), &spec("orders")).unwrap();
    assert_eq!(planned.replication_factor, 1);
    let note = "replication factor capped at 1: 1 broker is present (the default is 3)";
    assert_eq!(planned.note.as_deref(), Some(note));
    assert!(planned.inherited.is_empty(), "min ISR 2 is for three replicas or more");
    let asked = TopicSpec { replication_factor: Some(3), ..spec("orders") };
    assert_eq!(code(plan(&cluster_of(&[1]), &asked)), 38, "what was asked for is not capped");
}

#[test]
fn what_cannot_be_created_is_refused_with_kafkas_code() {
    let mut image = cluster_of(&[1, 2, 3]);
    let planned = plan_topic(&image, &spec("a.b"), &TopicDefaults::default(), topic_id(9), 7, TIME).unwrap();
    let decision = decide(&image, 2, RULE_VERSION, &Command::CreateTopic(planned.parts[0].clone())).unwrap();
    image.apply_all(&decision.changes);
    let by_hand = |given: &[(i32, &[i32])]| TopicSpec {
        assignments: given.iter().map(|(number, replicas)| (*number, ids(replicas))).collect(),
        ..spec("orders")
    };
    let config = BTreeMap::from([("nonsense".to_owned(), "1".to_owned())]);
    for (asked, expected) in [
        (spec("a b"), 17),
        (spec("a_b"), 17),
        (spec("a.b"), 36),
        (TopicSpec { partitions: Some(0), ..spec("orders") }, 37),
        (TopicSpec { partitions: Some(100_001), ..spec("orders") }, 37),
        (TopicSpec { replication_factor: Some(0), ..spec("orders") }, 38),
        (TopicSpec { replication_factor: Some(4), ..spec("orders") }, 38),
        (by_hand(&[(0, &[1]), (2, &[1])]), 39),
        (by_hand(&[(0, &[1, 1])]), 39),
        (by_hand(&[(0, &[8])]), 39),
        (TopicSpec { configs: config, ..spec("orders") }, 40),
        (TopicSpec { partitions: Some(1), ..by_hand(&[(0, &[1])]) }, 42),
        (by_hand(&[(0, &[3, 1]), (1, &[1, 2])]), 0),
    ] {
        assert_eq!(code(plan(&image, &asked)), expected, "{asked:?}");
    }
}

#[test]
fn a_large_topic_is_cut_into_parts_that_fit_an_entry_and_join_to_the_whole() {
    // D17.
    let mut image = cluster_of(&[1, 2, 3]);
    let planned = plan(&image, &TopicSpec { partitions: Some(50_000), ..spec("orders") }).unwrap();
    assert_eq!(planned.partitions, 50_000);
    for part in &planned.parts {
        assert!(part.assignments.len() <= 2_000);
        assert!(postcard::to_stdvec(part).unwrap().len() <= 64 << 10);
    }
    for command in planned.commands() {
        assert!(postcard::to_stdvec(&command).unwrap().len() <= 64 << 10);
        let decision = decide(&image, image.version.0 + 1, RULE_VERSION, &command).unwrap();
        image.apply_all(&decision.changes);
    }
    assert_eq!(image.topic_named("orders").unwrap().partitions.len(), 50_000);
}

#[test]
fn leaders_away_from_home_are_found_in_rounds() {
    let mut image = cluster_of(&[1, 2]);
    let assignments = (0..1_500).map(|number| (number, ids(&[1, 2]))).collect();
    let planned = plan(&image, &TopicSpec { assignments, ..spec("orders") }).unwrap();
    for part in &planned.parts {
        let decision = decide(&image, 2, RULE_VERSION, &Command::CreateTopic(part.clone())).unwrap();
        image.apply_all(&decision.changes);
    }
    assert_eq!(crate::planner::away_from_home(&image), (vec![], false));
    for (at, _, state) in image.clone().partitions().take(1_200) {
        let mut moved = state.as_ref().clone();
        moved.leader = Some(BrokerId(2));
        image.apply(&Change::Partition(at, moved.into()));
    }
    let (away, more) = crate::planner::away_from_home(&image);
    assert_eq!((away.len(), more), (1_000, true));
}
