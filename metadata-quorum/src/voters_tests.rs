//! The safety rule of changes of voters, by example and for all small quorums.

use super::*;

const WITHIN_MS: u64 = 600;

fn member(node: i32) -> QuorumMember {
    QuorumMember { node: BrokerId(node), directory: DirectoryId::from_bytes([u8::try_from(node).unwrap(); 16]) }
}

fn members(nodes: &[i32]) -> BTreeSet<QuorumMember> {
    nodes.iter().copied().map(member).collect()
}

/// These are well, all others silent.
fn well(nodes: &[i32]) -> BTreeMap<QuorumMember, Progress> {
    nodes.iter().map(|node| (member(*node), Progress { lag: 0, contact_age_ms: Some(50) })).collect()
}

fn plan(voters: &[i32], add: Option<i32>, remove: Option<i32>) -> VoterPlan {
    VoterPlan::new(&members(voters), add.map(member), remove.map(BrokerId)).unwrap()
}

#[test]
fn the_voter_that_keeps_the_majority_stays() {
    let progress = well(&[1, 2]);
    let refused = plan(&[1, 2, 3], None, Some(2)).check(&progress, WITHIN_MS, false).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("after the change 1 of 2 voters") && text.contains("node 3"), "{text}");
    assert_eq!(plan(&[1, 2, 3], None, Some(3)).check(&progress, WITHIN_MS, false), Ok(2), "the dead one may go");
    let last = plan(&[1], None, Some(1)).check(&well(&[1]), WITHIN_MS, false).unwrap_err();
    assert!(last.to_string().contains("the last voter"), "{last}");
}

#[test]
fn a_voter_that_is_behind_or_silent_does_not_count() {
    let mut progress = well(&[1, 2, 3]);
    progress.insert(member(3), Progress { lag: CAUGHT_UP_LAG + 1, contact_age_ms: Some(1) });
    assert!(plan(&[1, 2, 3], None, Some(2)).check(&progress, WITHIN_MS, false).is_err());
    progress.insert(member(3), Progress { lag: CAUGHT_UP_LAG, contact_age_ms: Some(WITHIN_MS) });
    assert_eq!(plan(&[1, 2, 3], None, Some(2)).check(&progress, WITHIN_MS, false), Ok(2));
    progress.insert(member(3), Progress { lag: 0, contact_age_ms: Some(WITHIN_MS + 1) });
    assert!(plan(&[1, 2, 3], None, Some(2)).check(&progress, WITHIN_MS, false).is_err());
    progress.insert(member(3), Progress { lag: 0, contact_age_ms: None });
    assert!(plan(&[1, 2, 3], None, Some(2)).check(&progress, WITHIN_MS, false).is_err());
}

#[test]
fn a_new_voter_counts_while_it_is_waited_for_and_must_have_caught_up_in_the_end() {
    let grow = plan(&[1, 2], Some(4), None);
    assert_eq!(grow.after, members(&[1, 2, 4]));
    let (one, both) = (well(&[1]), well(&[1, 2]));
    assert!(grow.check(&one, WITHIN_MS, true).is_err(), "no majority of the old ones");
    assert_eq!(grow.check(&both, WITHIN_MS, true), Ok(3));
    assert_eq!(grow.check(&both, WITHIN_MS, false), Ok(2), "it may still be behind: two of three suffice");
    let alone = plan(&[1], Some(4), None);
    assert!(alone.check(&one, WITHIN_MS, false).is_err(), "one of two does not");
}

#[test]
fn what_is_asked_for_twice_or_of_nobody_is_refused() {
    let voters = members(&[1, 2, 3]);
    let ask = |add: Option<QuorumMember>, remove: Option<i32>| VoterPlan::new(&voters, add, remove.map(BrokerId));
    let wiped = QuorumMember { directory: DirectoryId::from_bytes([9; 16]), ..member(2) };
    assert!(matches!(ask(Some(wiped), None), Err(Refusal::DuplicateVoter { node: BrokerId(2), .. })));
    assert!(matches!(ask(Some(member(4)), Some(7)), Err(Refusal::VoterNotFound(BrokerId(7)))));
    assert!(matches!(ask(None, Some(7)), Err(Refusal::VoterNotFound(BrokerId(7)))));
    assert!(matches!(ask(None, None), Err(Refusal::InvalidRequest(_))));
    let replaced = ask(Some(wiped), Some(2)).unwrap();
    assert_eq!(replaced.remove, Some(member(2)));
    assert_eq!(replaced.after.len(), 3);
    assert!(ask(Some(member(2)), None).unwrap().changes_nothing(), "it votes already");
    assert!(ask(Some(member(2)), Some(2)).unwrap().changes_nothing(), "it was replaced already");
}

/// For every quorum of up to five voters, every set of well ones and every single change: what is allowed leaves a
/// majority of well voters before and after, and nothing that does so is refused.
#[test]
fn a_change_is_allowed_exactly_when_a_well_majority_remains() {
    for size in 1..=5i32 {
        let voters: Vec<i32> = (1..=size).collect();
        for mask in 0u32..1 << size {
            let healthy: Vec<i32> = voters.iter().copied().filter(|node| mask & (1 << (node - 1)) != 0).collect();
            let progress = well(&healthy);
            let changes = voters.iter().map(|node| (None, Some(*node))).chain([(Some(9), None), (Some(9), Some(1))]);
            for (add, remove) in changes {
                let plan = plan(&voters, add, remove);
                let count = |set: &BTreeSet<QuorumMember>| {
                    set.iter().filter(|m| healthy.contains(&m.node.0) || m.node.0 == 9).count()
                };
                let holds = |set: &BTreeSet<QuorumMember>| count(set) > set.len() / 2;
                let allowed = plan.check(&progress, WITHIN_MS, true).is_ok();
                assert_eq!(allowed, holds(&plan.before) && holds(&plan.after), "{voters:?} {healthy:?} {plan:?}");
            }
        }
    }
}
