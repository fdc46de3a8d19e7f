//! What becomes of a wish for more partitions, by example.

use std::collections::BTreeMap;

use highwater_wire::{BrokerId, ErrorCode};

use super::*;
use crate::controller::testing::{Quorum, at, creation, ids, topic_id};
use crate::controller::{Answer, CreateTopic};

const TIME: Timestamp = Timestamp(1);

fn spec(partitions: i32) -> PartitionsSpec {
    PartitionsSpec { topic: "topic-1".to_owned(), partitions, ..PartitionsSpec::default() }
}

fn plan(image: &MetadataImage, spec: &PartitionsSpec) -> Result<GrowthPlan, Refusal> {
    plan_growth(image, spec, 7, TIME)
}

/// Four brokers, and topic 1 of five partitions on three of them.
fn quorum() -> Quorum {
    let mut quorum = Quorum::new(4);
    let orders = [ids(&[1, 2, 3]), ids(&[2, 3, 1]), ids(&[3, 1, 2]), ids(&[1, 2, 3]), ids(&[2, 3, 1])];
    let creation = CreateTopic { assignments: orders.to_vec(), ..creation(1, &[1], &[]) };
    quorum.run(Command::CreateTopic(creation)).unwrap();
    quorum
}

#[test]
fn what_cannot_grow_is_refused_with_kafkas_code() {
    let quorum = quorum();
    let by_hand = |partitions, given: &[&[i32]]| PartitionsSpec {
        assignments: Some(given.iter().map(|replicas| ids(replicas)).collect()),
        ..spec(partitions)
    };
    for (asked, expected) in [
        (PartitionsSpec { topic: "absent".to_owned(), ..spec(9) }, 3),
        (spec(5), 37),
        (spec(4), 37),
        (spec(0), 37),
        (spec(-1), 37),
        (spec(100_001), 37),
        (by_hand(7, &[&[1, 2, 3]]), 39),
        (by_hand(6, &[]), 39),
        (by_hand(6, &[&[1, 2]]), 39),
        (by_hand(6, &[&[1, 2, 2]]), 39),
        (by_hand(6, &[&[1, 2, 9]]), 39),
        (by_hand(6, &[&[4, 2, 3]]), 0),
        (spec(6), 0),
    ] {
        let code = plan(&quorum.image, &asked).map_or_else(|refusal| ErrorCode::from(&refusal).code(), |_| 0);
        assert_eq!(code, expected, "{asked:?}");
    }
    let mut thin = quorum;
    thin.fence(&[1, 2, 3, 4]);
    let none = plan(&thin.image, &spec(6)).unwrap_err();
    assert_eq!(ErrorCode::from(&none), ErrorCode::InvalidReplicationFactor, "{none}");
}

#[test]
fn new_partitions_keep_the_factor_and_go_on_with_the_brokers_that_lead_fewest() {
    let quorum = quorum();
    for seed in 0..20 {
        let planned = plan_growth(&quorum.image, &spec(12), seed, TIME).unwrap();
        let [part] = planned.parts.as_slice() else { panic!("{planned:?}") };
        assert_eq!((part.first_partition, part.assignments.len()), (5, 7));
        let mut leads = BTreeMap::<BrokerId, usize>::from([(1, 2), (2, 2), (3, 1)].map(|(id, n)| (BrokerId(id), n)));
        for replicas in &part.assignments {
            assert_eq!(replicas.len(), 3);
            *leads.entry(replicas[0]).or_default() += 1;
        }
        assert!(leads.values().all(|count| *count == 3), "12 partitions on four brokers: {leads:?}");
    }
}

#[test]
fn a_large_growth_is_cut_into_parts_that_fit_an_entry_and_to_go_on_after_any_of_them_is_safe() {
    let mut quorum = quorum();
    let planned = plan(&quorum.image, &spec(20_005)).unwrap();
    assert!(planned.parts.len() >= 10);
    let half = planned.parts.len() / 2;
    for part in &planned.parts[..half] {
        assert!(part.assignments.len() <= 2_000 && postcard::to_stdvec(part).unwrap().len() <= 64 << 10);
        assert_eq!(quorum.run(Command::AddPartitions(part.clone())), Ok(Answer::Done));
    }
    // Whoever asked did not hear the answer and asks again: other replicas are drawn, for the rest only.
    let present = quorum.image.topics.get(&topic_id(1)).unwrap().partitions.len();
    let again = plan_growth(&quorum.image, &spec(20_005), 8, TIME).unwrap();
    assert_eq!(again.parts[0].first_partition as usize, present);
    for part in again.parts {
        quorum.run(Command::AddPartitions(part)).unwrap();
    }
    assert_eq!(quorum.image.topics.get(&topic_id(1)).unwrap().partitions.len(), 20_005);
    assert_eq!(quorum.image.partition(at(1)).unwrap().replicas, ids(&[1, 2, 3]), "the old ones are untouched");
}
