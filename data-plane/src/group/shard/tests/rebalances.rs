//! Generations: who is in them, who leads, and what sets off the next one.

use super::*;

#[test]
fn the_first_generation_waits_for_others_and_its_leader_assigns() {
    let mut desk = Desk::new();
    let a = desk.join(member("a"));
    desk.pass(2_000);
    let b = desk.join(member("b"));
    desk.pass(2_900);
    assert!(desk.waits(a) && desk.waits(b), "somebody came, so it waits another while");
    desk.pass(1_200);
    let (a, b) = (desk.joined(a), desk.joined(b));
    let told = (a.error, a.generation, a.leader.as_str(), a.protocol.as_deref());
    assert_eq!(told, (ErrorCode::None, 1, "a", Some("range")));
    assert_eq!(a.members.iter().map(|member| member.member_id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((b.leader.as_str(), b.members.len()), ("a", 0));
    let b = desk.sync("b", 1, &[]);
    assert!(desk.waits(b), "nobody has assigned anything");
    let a = desk.sync("a", 1, &[("a", "A"), ("b", "B"), ("stranger", "S")]);
    assert_eq!(desk.synced(b).assignment, "B");
    assert_eq!(desk.synced(a).assignment, "A");
    assert_eq!(desk.state(), Some(State::Stable));
}

#[test]
fn an_assignment_is_told_when_it_is_in_the_log_and_not_before() {
    let mut desk = Desk::new();
    let a = desk.join(member("a"));
    desk.pass(3_000);
    desk.joined(a);
    desk.held = Some(Vec::new());
    let a = desk.sync("a", 1, &[("a", "A")]);
    assert!(desk.waits(a));
    assert_eq!(desk.state(), Some(State::CompletingRebalance));
    desk.release(Written::Refused(ErrorCode::NotEnoughReplicas));
    assert_eq!(desk.synced(a).error, ErrorCode::CoordinatorNotAvailable);
    assert_eq!(desk.state(), Some(State::PreparingRebalance), "it has to join again");
    desk.held = None;
    let a = desk.join(again("a"));
    assert_eq!(desk.joined(a).generation, 2);
    let a = desk.sync("a", 2, &[("a", "A2")]);
    assert_eq!(desk.synced(a).assignment, "A2");
}

#[test]
fn a_newcomer_sends_everybody_back_to_join() {
    let mut desk = Desk::stable();
    let c = desk.join(member("c"));
    assert_eq!(desk.heartbeat("a", 1), Err(ErrorCode::RebalanceInProgress));
    let a = desk.join(again("a"));
    assert!(desk.waits(a) && desk.waits(c), "b is missing");
    let late = desk.sync("b", 1, &[]);
    assert_eq!(desk.synced(late).error, ErrorCode::RebalanceInProgress);
    let b = desk.join(again("b"));
    assert_eq!([a, b, c].map(|token| desk.joined(token).generation), [2, 2, 2]);
    assert_eq!(desk.heartbeat("a", 1), Err(ErrorCode::IllegalGeneration));
    assert_eq!(desk.heartbeat("a", 2), Ok(()), "it may live while assignments are made");
    let told = |one: &Rebalance| (one.generation, one.why.clone(), one.members);
    let history: Vec<_> = desk.shard.group("g").unwrap().history().map(told).collect();
    assert_eq!(history, [(1, "a joined".to_owned(), 2), (2, "c joined".to_owned(), 3)]);
}

#[test]
fn whoever_does_not_join_in_time_is_left_out_and_another_leads() {
    let mut desk = Desk::stable();
    let other = vec![Protocol { name: "range".to_owned(), metadata: subscription("u") }];
    let b = desk.join(JoinRequest { protocols: other, ..again("b") });
    for _ in 0..7 {
        desk.pass(9_000);
        let _ = desk.heartbeat("a", 1);
    }
    let told = desk.joined(b);
    assert_eq!((told.generation, told.leader.as_str(), told.members.len()), (2, "b", 1));
    assert_eq!(desk.heartbeat("a", 2), Err(ErrorCode::UnknownMemberId));
}

#[test]
fn a_silent_member_is_taken_out_when_its_session_ends() {
    let mut desk = Desk::stable();
    desk.pass(9_000);
    assert_eq!(desk.heartbeat("a", 1), Ok(()));
    desk.pass(900);
    assert_eq!(desk.heartbeat("a", 1), Ok(()));
    desk.pass(200);
    assert_eq!(desk.heartbeat("a", 1), Err(ErrorCode::RebalanceInProgress), "b was silent for ten seconds");
    let a = desk.join(again("a"));
    assert_eq!(desk.joined(a).members.len(), 1);
    desk.pass(60_000);
    assert_eq!(desk.state(), Some(State::Empty), "nobody is left");
}

/// A request that waits keeps its member alive, and ends with a new session for it.
#[test]
fn who_is_sent_back_from_waiting_has_a_whole_session_to_join() {
    let mut desk = Desk::new();
    let (a, b) = (desk.join(member("a")), desk.join(member("b")));
    desk.pass(6_000);
    let leader = desk.joined(a).leader;
    desk.joined(b);
    let other = if leader == "a" { "b" } else { "a" };
    let waiting = desk.sync(other, 1, &[]);
    // The leader dies before it assigns anything.
    desk.pass(10_000);
    assert_eq!(desk.synced(waiting).error, ErrorCode::RebalanceInProgress);
    desk.pass(9_000);
    let rejoined = desk.join(again(other));
    desk.pass(60_000);
    assert_eq!(desk.joined(rejoined).error, ErrorCode::None, "it was not taken out meanwhile");
}

#[test]
fn a_member_that_leaves_is_gone_at_once() {
    let mut desk = Desk::stable();
    let leaver = Leaver { member_id: "a".to_owned(), instance: None, reason: "closing".to_owned() };
    let stranger = Leaver { member_id: "x".to_owned(), ..leaver.clone() };
    let left = desk.do_it(|shard, _, now, out| shard.leave("g", &[leaver, stranger], now, out)).0;
    assert_eq!(left, Ok(vec![Ok(()), Err(ErrorCode::UnknownMemberId)]));
    assert_eq!(desk.heartbeat("b", 1), Err(ErrorCode::RebalanceInProgress));
    let b = desk.join(again("b"));
    let b = desk.joined(b);
    assert_eq!((b.generation, b.leader.as_str()), (2, "b"));
    let why = desk.shard.group("g").unwrap().history().last().unwrap().why.clone();
    assert_eq!(why, "a left: closing");
}

#[test]
fn new_members_get_their_id_first_and_are_forgotten_if_they_never_come() {
    let mut desk = Desk::new();
    let first = JoinRequest { requires_known_id: true, ..member("a") };
    let told = desk.join(first.clone());
    let told = desk.joined(told);
    assert_eq!((told.error, told.member_id.as_str()), (ErrorCode::MemberIdRequired, "a"));
    assert_eq!(desk.state(), Some(State::Empty), "an id is no member");
    let a = desk.join(JoinRequest { requires_known_id: true, ..again("a") });
    desk.pass(3_000);
    assert_eq!(desk.joined(a).generation, 1);
    let told = desk.join(JoinRequest { requires_known_id: true, ..again("b") });
    assert_eq!(desk.joined(told).error, ErrorCode::UnknownMemberId, "nobody was told this id");
    let mut other = Desk::new();
    other.join(first);
    other.pass(10_001);
    assert_eq!(other.state(), None, "nothing is left of it");
}

#[test]
fn a_static_member_goes_on_after_a_restart_without_a_rebalance() {
    let mut desk = Desk::new();
    let (a, b) = (desk.join(fixed("ia", "a")), desk.join(fixed("ib", "b")));
    desk.pass(6_000);
    desk.joined(a);
    desk.joined(b);
    let (b, a) = (desk.sync("b", 1, &[]), desk.sync("a", 1, &[("a", "A"), ("b", "B")]));
    desk.synced(a);
    desk.synced(b);
    // The follower.
    let back = desk.join(fixed("ib", "b2"));
    let told = desk.joined(back);
    let told = (told.error, told.generation, told.member_id, told.skip_assignment);
    assert_eq!(told, (ErrorCode::None, 1, "b2".to_owned(), false));
    let synced = desk.sync("b2", 1, &[]);
    assert_eq!(desk.synced(synced).assignment, "B");
    let old = Speaker { instance: Some("ib".to_owned()), ..speaker("b", 1) };
    let heard = desk.do_it(|shard, _, now, out| shard.heartbeat("g", &old, now, out)).0;
    assert_eq!(heard, Err(ErrorCode::FencedInstanceId));
    // The leader: one that understands is told to assign nothing, an older one that another leads.
    let leader = desk.join(JoinRequest { skips_assignment: true, ..fixed("ia", "a2") });
    let told = desk.joined(leader);
    assert_eq!((told.leader.as_str(), told.skip_assignment, told.members.len()), ("a2", true, 2));
    let leader = desk.join(fixed("ia", "a3"));
    let told = desk.joined(leader);
    assert_eq!((told.leader.as_str(), told.skip_assignment, told.members.len()), ("a2", false, 0));
    // It is in the log: the next coordinator knows the new ids.
    let next = desk.next_coordinator();
    let members = next.group("g").unwrap().members();
    let ids: Vec<_> = members.map(|member| (member.id.clone(), member.assignment.clone())).collect();
    assert_eq!(ids, [("a3".to_owned(), "A".into()), ("b2".to_owned(), "B".into())]);
}

#[test]
fn a_static_member_is_not_left_out_of_a_round_but_its_session_ends() {
    let mut desk = Desk::new();
    let (a, b) = (desk.join(fixed("ia", "a")), desk.join(member("b")));
    desk.pass(6_000);
    desk.joined(a);
    desk.joined(b);
    let c = desk.join(member("c"));
    let b = desk.join(again("b"));
    desk.pass(4_000);
    assert!(desk.waits(c));
    desk.pass(7_000);
    assert_eq!((desk.joined(c).generation, desk.joined(b).generation), (2, 2), "the session of a ended");
    assert_eq!(desk.shard.group("g").unwrap().members().count(), 2);
}

#[test]
fn only_what_all_members_speak_can_be_chosen_and_most_votes_win() {
    let speaks = |name: &str, protocols: &[&str]| {
        let protocol = |name: &&str| Protocol { name: (*name).to_owned(), metadata: Bytes::new() };
        JoinRequest { protocols: protocols.iter().map(protocol).collect(), ..member(name) }
    };
    let mut desk = Desk::new();
    let a = desk.join(speaks("a", &["x", "range", "sticky"]));
    let b = desk.join(speaks("b", &["sticky", "range"]));
    let c = desk.join(speaks("c", &["sticky", "range"]));
    let alien = desk.join(speaks("d", &["other"]));
    assert_eq!(desk.joined(alien).error, ErrorCode::InconsistentGroupProtocol);
    let alien = desk.join(JoinRequest { protocol_type: "connect".to_owned(), ..member("e") });
    assert_eq!(desk.joined(alien).error, ErrorCode::InconsistentGroupProtocol);
    desk.pass(6_100);
    for token in [a, b, c] {
        assert_eq!(desk.joined(token).protocol.as_deref(), Some("sticky"));
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_and_change_nothing() {
    let mut desk = Desk::new();
    for (request, error) in [
        (JoinRequest { group: String::new(), ..member("a") }, ErrorCode::InvalidGroupId),
        (JoinRequest { session_timeout: Millis(5_999), ..member("a") }, ErrorCode::InvalidSessionTimeout),
        (JoinRequest { session_timeout: Millis(1_800_001), ..member("a") }, ErrorCode::InvalidSessionTimeout),
        (JoinRequest { protocols: vec![], ..member("a") }, ErrorCode::InconsistentGroupProtocol),
        (JoinRequest { protocol_type: String::new(), ..member("a") }, ErrorCode::InconsistentGroupProtocol),
        (again("a"), ErrorCode::UnknownMemberId),
    ] {
        let token = desk.join(request);
        assert_eq!(desk.joined(token).error, error);
        assert_eq!(desk.state(), None);
    }
    let token = desk.sync("a", 1, &[]);
    assert_eq!(desk.synced(token).error, ErrorCode::UnknownMemberId);
    assert_eq!(desk.heartbeat("a", 1), Err(ErrorCode::UnknownMemberId));
    let mut desk = Desk::stable();
    let token = desk.sync("a", 0, &[]);
    assert_eq!(desk.synced(token).error, ErrorCode::IllegalGeneration);
    let request = SyncRequest {
        group: "g".to_owned(),
        speaker: speaker("a", 1),
        protocol_type: Some("connect".to_owned()),
        protocol: None,
        assignments: vec![],
    };
    let token = desk.do_it(|shard, token, now, out| shard.sync(token, &request, now, out)).1;
    assert_eq!(desk.synced(token).error, ErrorCode::InconsistentGroupProtocol);
}

#[test]
fn a_full_group_takes_nobody() {
    let mut desk = Desk::with(Limits { members_max: 1, initial_rebalance_delay: Millis(0), ..Limits::default() });
    let a = desk.join(member("a"));
    assert_eq!(desk.joined(a).generation, 1, "without a delay it begins at once");
    let b = desk.join(member("b"));
    assert_eq!(desk.joined(b).error, ErrorCode::GroupMaxSizeReached);
}

#[test]
fn who_joined_and_never_asks_for_an_assignment_is_taken_out() {
    let mut desk = Desk::new();
    let (a, b) = (desk.join(member("a")), desk.join(member("b")));
    desk.pass(6_000);
    desk.joined(a);
    desk.joined(b);
    let a = desk.sync("a", 1, &[("a", "A")]);
    desk.synced(a);
    for _ in 0..8 {
        desk.pass(9_000);
        let _ = (desk.heartbeat("a", 1), desk.heartbeat("b", 1));
    }
    assert_eq!(desk.heartbeat("b", 1), Err(ErrorCode::UnknownMemberId), "after its rebalance timeout of a minute");
}

#[test]
fn a_request_that_is_sent_again_takes_the_place_of_the_first() {
    let mut desk = Desk::stable();
    let c = desk.join(member("c"));
    let first = desk.join(again("a"));
    let second = desk.join(again("a"));
    assert_eq!(desk.joined(first).error, ErrorCode::RebalanceInProgress);
    let b = desk.join(again("b"));
    assert_eq!([second, b, c].map(|token| desk.joined(token).generation), [2; 3]);
    // A follower that did not hear of the generation is told again.
    let b = desk.join(again("b"));
    assert_eq!((desk.joined(b).generation, desk.state()), (2, Some(State::CompletingRebalance)));
}

#[test]
fn another_coordinator_goes_on_where_this_one_ended() {
    let mut desk = Desk::stable();
    let c = desk.join(member("c"));
    let mut next = desk.next_coordinator();
    let mut out = Out::default();
    let shard = std::mem::replace(&mut desk.shard, Shard::new(Limits::default(), Loading::default(), at(desk.now)));
    shard.unload(at(desk.now), &mut out);
    desk.out = out;
    desk.settle();
    assert_eq!(desk.joined(c).error, ErrorCode::NotCoordinator);
    let mut out = Out::default();
    assert_eq!(next.heartbeat("g", &speaker("a", 1), at(desk.now), &mut out), Ok(()));
    let group = next.group("g").unwrap();
    assert_eq!((group.state(), group.generation(), group.leader()), (State::Stable, 1, Some("a")));
    assert_eq!(group.members().map(|member| member.assignment.clone()).collect::<Vec<_>>(), ["A", "B"]);
    next.tick(at(desk.now + Millis(10_001)), &mut out);
    assert_eq!(next.group("g").unwrap().state(), State::Empty, "both were silent for a session");
}
