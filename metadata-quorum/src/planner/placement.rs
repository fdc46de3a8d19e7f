//! Which brokers hold the replicas of new partitions: striped over all, spread over racks (R182).

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_wire::BrokerId;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::controller::Refusal;
use crate::image::{BrokerState, MetadataImage, PartitionState};

/// A broker that may hold replicas.
struct Place<'i> {
    id: BrokerId,
    rack: Option<&'i str>,
}

/// Replicas of `partitions` new partitions, `factor` each, preferred leader first.
///
/// Preferred leaders go round all active brokers from a random start, so that their numbers differ by one at most;
/// `beside` are the partitions that the topic has already, and the round goes on with the brokers that lead fewest of
/// them (R186). The other replicas follow in the same order with a gap that grows with each round, so that the partitions of a broker
/// that dies spread over all others. Every replica lies in the rack that holds fewest of the partition's so far; fenced
/// brokers come last within a rack and never first of a partition; brokers that shut down get nothing. No rack counts
/// as one rack.
///
/// # Errors
/// [`Refusal::InvalidReplicationFactor`]: fewer usable brokers than `factor`, or none active.
pub fn place(
    image: &MetadataImage,
    beside: &[Arc<PartitionState>],
    partitions: usize,
    factor: usize,
    seed: u64,
) -> Result<Vec<Vec<BrokerId>>, Refusal> {
    let in_state = |state| image.brokers.values().filter(move |broker| broker.state == state);
    let as_place = |broker: &'_ Arc<crate::image::BrokerRegistration>| broker.id;
    let rack_of = |id: &BrokerId| image.broker(*id).and_then(|broker| broker.rack.as_deref());
    let active: Vec<_> = in_state(BrokerState::Active).map(as_place).collect();
    let fenced: Vec<_> = in_state(BrokerState::Fenced).map(as_place).collect();
    if active.is_empty() {
        let why = format!("no broker is active now ({} are fenced): wait for one to come back", fenced.len());
        return Err(Refusal::InvalidReplicationFactor(why));
    }
    let usable = active.len() + fenced.len();
    if factor == 0 || factor > usable {
        let why = format!("replication factor {factor} is not from 1 to {usable}, the number of usable brokers");
        return Err(Refusal::InvalidReplicationFactor(why));
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let active = interleave(active.iter().map(|id| Place { id: *id, rack: rack_of(id) }), &mut rng);
    let fenced = interleave(fenced.iter().map(|id| Place { id: *id, rack: rack_of(id) }), &mut rng);
    let start = rng.random_range(0..active.len());
    let first_gap = rng.random_range(0..active.len());
    let led_by = |place: &Place| beside.iter().filter(|state| state.replicas.first() == Some(&place.id)).count();
    let mut leads: Vec<_> = active.iter().map(led_by).collect();
    let plan = (0..partitions).map(|number| {
        let turn = (0..active.len()).map(|n| (start + number + n) % active.len());
        let leader = turn.min_by_key(|broker| leads[*broker]).expect("there is an active broker");
        leads[leader] += 1;
        let gap = first_gap + number / active.len();
        one_partition(&active, &fenced, leader, gap, factor)
    });
    Ok(plan.collect())
}

/// Brokers in an order in which neighbours lie in different racks as long as possible.
fn interleave<'i>(places: impl Iterator<Item = Place<'i>>, rng: &mut SmallRng) -> Vec<Place<'i>> {
    let mut by_rack = BTreeMap::<Option<&str>, Vec<Place>>::new();
    for place in places {
        by_rack.entry(place.rack).or_default().push(place);
    }
    let mut racks: Vec<_> = by_rack.into_values().collect();
    racks.shuffle(rng);
    for rack in &mut racks {
        rack.shuffle(rng);
    }
    let mut order = Vec::new();
    while racks.iter().any(|rack| !rack.is_empty()) {
        order.extend(racks.iter_mut().filter_map(Vec::pop));
    }
    order
}

fn one_partition(active: &[Place], fenced: &[Place], leader: usize, gap: usize, factor: usize) -> Vec<BrokerId> {
    let others = active.len() - 1;
    let followers = (0..others).map(|n| &active[(leader + 1 + (gap + n) % others) % active.len()]);
    let mut candidates: Vec<_> = followers.chain(fenced).collect();
    let mut chosen = vec![&active[leader]];
    while chosen.len() < factor {
        let in_rack = |rack| chosen.iter().filter(|place| place.rack == rack).count();
        let best = (0..candidates.len()).min_by_key(|n| (in_rack(candidates[*n].rack), *n));
        let best = best.expect("the factor is at most the number of usable brokers");
        chosen.push(candidates.remove(best));
    }
    chosen.iter().map(|place| place.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::testing::{broker, cluster_of};
    use crate::image::Change;

    fn counts(plan: &[Vec<BrokerId>], of: impl Fn(&[BrokerId]) -> Vec<BrokerId>) -> BTreeMap<BrokerId, usize> {
        let mut counts = BTreeMap::new();
        for id in plan.iter().flat_map(|replicas| of(replicas)) {
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    fn spread(counts: &BTreeMap<BrokerId, usize>) -> usize {
        counts.values().max().unwrap() - counts.values().min().unwrap()
    }

    fn cluster(racks: &[(i32, Option<&str>)]) -> MetadataImage {
        let mut image = cluster_of(&[]);
        for (id, rack) in racks {
            let rack = rack.map(str::to_owned);
            let active = crate::image::BrokerRegistration { rack, ..broker(*id, BrokerState::Active) };
            image.apply(&Change::Broker(active.into()));
        }
        image
    }

    #[test]
    fn leaders_and_replicas_are_spread_evenly() {
        for seed in 0..20 {
            let image = cluster(&[(1, None), (2, None), (3, None), (4, None), (5, None)]);
            let plan = place(&image, &[], 100, 3, seed).unwrap();
            assert!(plan.iter().all(|r| r.len() == 3 && r[0] != r[1] && r[1] != r[2] && r[0] != r[2]));
            assert_eq!(spread(&counts(&plan, |r| vec![r[0]])), 0);
            assert!(spread(&counts(&plan, |r| r.to_vec())) <= 2, "{plan:?}");
            let heirs = counts(&plan, |r| if r[0] == BrokerId(1) { vec![r[1]] } else { vec![] });
            assert_eq!(heirs.len(), 4, "what broker 1 leads would go to {heirs:?}");
        }
    }

    #[test]
    fn each_rack_gets_one_replica_where_there_are_enough_racks() {
        let racks = [(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c"), (6, "c")];
        let image = cluster(&racks.map(|(id, rack)| (id, Some(rack))));
        let rack_of = |id: &BrokerId| racks[(id.0 - 1) as usize].1;
        for seed in 0..20 {
            for replicas in place(&image, &[], 60, 3, seed).unwrap() {
                let mut used: Vec<_> = replicas.iter().map(rack_of).collect();
                used.sort_unstable();
                assert_eq!(used, ["a", "b", "c"], "{replicas:?}");
            }
        }
    }

    #[test]
    fn a_fenced_broker_holds_replicas_last_and_never_leads_and_one_shutting_down_holds_none() {
        let mut image = cluster(&[(1, None), (2, None)]);
        image.apply(&Change::Broker(broker(3, BrokerState::Fenced).into()));
        image.apply(&Change::Broker(broker(4, BrokerState::ShuttingDown).into()));
        for replicas in place(&image, &[], 20, 3, 7).unwrap() {
            assert_eq!(replicas[2], BrokerId(3));
        }
        assert!(matches!(place(&image, &[], 1, 4, 7), Err(Refusal::InvalidReplicationFactor(_))));
        for replicas in place(&image, &[], 20, 2, 7).unwrap() {
            assert!(!replicas.contains(&BrokerId(3)));
        }
    }

    #[test]
    fn nothing_is_placed_while_all_brokers_are_fenced() {
        let mut image = cluster(&[]);
        image.apply(&Change::Broker(broker(3, BrokerState::Fenced).into()));
        assert!(matches!(place(&image, &[], 1, 1, 0), Err(Refusal::InvalidReplicationFactor(_))));
    }
}
