//! Positions: who may commit them, when they are seen, when they go.

use super::*;

#[test]
fn a_position_is_seen_and_told_when_it_is_in_the_log() {
    let mut desk = Desk::stable();
    desk.held = Some(Vec::new());
    let (first, second) = (desk.commit_offset("a", 1, 5), desk.commit_offset("a", 1, 6));
    assert!(desk.waits(first) && desk.offset().is_none());
    desk.release(Written::Committed);
    assert_eq!((desk.stored(first), desk.offset()), (Ok(()), Some(5)));
    desk.release(Written::Refused(ErrorCode::NotEnoughReplicas));
    assert_eq!((desk.stored(second), desk.offset()), (Err(ErrorCode::CoordinatorNotAvailable), Some(5)));
    let thin = desk.commit_offset("a", 1, 7);
    desk.release(Written::Thin);
    assert_eq!(
        (desk.stored(thin), desk.offset()),
        (Err(ErrorCode::CoordinatorNotAvailable), Some(7)),
        "it is in the log"
    );
}

#[test]
fn only_members_of_the_generation_commit() {
    let mut desk = Desk::stable();
    for (member, generation, error) in [
        ("x", 1, ErrorCode::UnknownMemberId),
        ("a", 0, ErrorCode::IllegalGeneration),
        ("a", 2, ErrorCode::IllegalGeneration),
        ("", -1, ErrorCode::UnknownMemberId),
    ] {
        let token = desk.commit_offset(member, generation, 1);
        assert_eq!((desk.stored(token), desk.offset()), (Err(error), None), "{member} {generation}");
    }
    // While others join, what was read may still be committed; while assignments are made it may not.
    let c = desk.join(member("c"));
    let token = desk.commit_offset("b", 1, 2);
    assert_eq!(desk.stored(token), Ok(()));
    let _ = (desk.join(again("a")), desk.join(again("b")));
    assert_eq!(desk.joined(c).generation, 2);
    let token = desk.commit_offset("b", 2, 3);
    assert_eq!((desk.stored(token), desk.offset()), (Err(ErrorCode::RebalanceInProgress), Some(2)));
}

#[test]
fn who_assigns_partitions_to_itself_commits_without_a_group() {
    let mut desk = Desk::new();
    let token = desk.commit_offset("", 3, 1);
    assert_eq!(desk.stored(token), Err(ErrorCode::IllegalGeneration));
    assert_eq!(desk.state(), None);
    let token = desk.commit_offset("", -1, 4);
    assert_eq!((desk.stored(token), desk.offset()), (Ok(()), Some(4)));
    assert_eq!(desk.next_coordinator().group("g").unwrap().offsets, desk.shard.group("g").unwrap().offsets);
}

#[test]
fn positions_and_groups_are_taken_back_when_nobody_uses_them() {
    let mut desk = Desk::stable();
    let token = desk.commit_offset("a", 1, 5);
    assert_eq!(desk.stored(token), Ok(()));
    let named = [("t".to_owned(), 0), ("u".to_owned(), 0)];
    let (verdicts, token) = desk.do_it(|shard, token, _, out| shard.delete_offsets(token, "g", &named, out));
    assert_eq!(verdicts, Ok(vec![Err(ErrorCode::GroupSubscribedToTopic), Ok(())]));
    assert_eq!((desk.stored(token), desk.offset()), (Ok(()), Some(5)));
    let (deleted, _) = desk.do_it(|shard, token, _, out| shard.delete(token, "g", out));
    assert_eq!(deleted, Err(ErrorCode::NonEmptyGroup));
    desk.pass(90_000);
    assert_eq!(desk.state(), Some(State::Empty));
    let (deleted, token) = desk.do_it(|shard, token, _, out| shard.delete(token, "g", out));
    assert_eq!((deleted, desk.stored(token)), (Ok(()), Ok(())));
    assert!(desk.shard.group("g").is_none() && desk.next_coordinator().group("g").is_none());
    let (deleted, _) = desk.do_it(|shard, token, _, out| shard.delete(token, "g", out));
    assert_eq!(deleted, Err(ErrorCode::GroupIdNotFound));
}

#[test]
fn old_positions_of_an_empty_group_expire_and_the_group_with_them() {
    let mut desk = Desk::with(Limits { offsets_retention: Millis(100_000), ..Limits::default() });
    let a = desk.join(member("a"));
    desk.pass(3_000);
    desk.joined(a);
    let a = desk.sync("a", 1, &[("a", "A")]);
    desk.synced(a);
    let token = desk.commit_offset("a", 1, 5);
    assert_eq!(desk.stored(token), Ok(()));
    desk.pass(50_000);
    assert_eq!(desk.state(), Some(State::Empty));
    desk.pass(58_000);
    desk.do_it(|shard, _, now, out| shard.expire(now, out));
    assert_eq!(desk.offset(), Some(5), "it was in use until its member fell silent");
    desk.pass(20_000);
    desk.do_it(|shard, _, now, out| shard.expire(now, out));
    assert!(desk.shard.group("g").is_none() && desk.next_coordinator().group("g").is_none());
}

/// Commits, deletions and expiry overtake each other's answers in every order: what is known in the end is what the log says,
/// and a commit that was acknowledged is gone only if something was asked for after it.
#[test]
fn what_is_known_is_what_the_log_says_whatever_was_on_its_way() {
    const DEEDS: usize = 5;
    for story in 0..DEEDS.pow(6) {
        let mut desk = Desk::with(Limits { offsets_retention: Millis(100), ..Limits::default() });
        desk.held = Some(Vec::new());
        let (mut last, mut wanted) = (0, None);
        let deeds: Vec<usize> = (0..6).map(|place| story / DEEDS.pow(place) % DEEDS).collect();
        for deed in &deeds {
            match deed {
                0 => {
                    last += 1;
                    desk.commit_offset("", -1, last);
                    wanted = Some(last);
                }
                1 => {
                    let (asked, _) = desk.do_it(|shard, token, _, out| shard.delete(token, "g", out));
                    wanted = wanted.filter(|_| asked.is_err());
                }
                2 => {
                    let named = [("t".to_owned(), 0)];
                    let known = desk.offset().is_some();
                    let (asked, _) = desk.do_it(|shard, token, _, out| shard.delete_offsets(token, "g", &named, out));
                    wanted = wanted.filter(|_| asked.is_err() || !known);
                }
                3 => {
                    desk.now = desk.now + Millis(60);
                    desk.do_it(|shard, _, now, out| shard.expire(now, out));
                }
                _ if desk.held.as_ref().is_some_and(|held| !held.is_empty()) => desk.release(Written::Committed),
                _ => {}
            }
        }
        let young = deeds
            .iter()
            .rposition(|deed| *deed == 0)
            .is_some_and(|at| deeds[at..].iter().filter(|deed| **deed == 3).count() < 2);
        while desk.held.as_ref().is_some_and(|held| !held.is_empty()) {
            desk.release(Written::Committed);
        }
        let in_log = desk.next_coordinator().group("g").and_then(|group| Some(group.offsets.get("t", 0)?.offset));
        assert_eq!(desk.offset(), in_log, "{deeds:?}");
        if young {
            assert_eq!(in_log, wanted, "{deeds:?}");
        }
    }
}
