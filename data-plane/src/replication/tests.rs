//! Transitions between roles, one sentence each.

use highwater_quorum::controller::IsrReason;
use highwater_quorum::image::LeaderRecovery;
use highwater_wire::ErrorCode;

use super::leader::{AckState, FollowerFetch, StoredBatch};
use super::park::Interest;
use super::testing::{Facts, LAG_MAX, ME, Numbers, brokers, partition};
use super::*;

const NOW: Millis = Millis(1_000_000);

struct Stage {
    replication: Replication,
    log: Numbers,
    effects: Vec<Effect>,
}

impl Stage {
    fn new(log: Numbers, high_watermark: i64) -> Self {
        let replication = Replication::new(partition(), ME, LAG_MAX, Offset(high_watermark), &log.view());
        Self { replication, log, effects: Vec::new() }
    }

    /// Applies an image as the replica does.
    fn apply(&mut self, terms: Terms) -> Step {
        let step = self.replication.step(&terms);
        match step {
            Step::Ignore => {}
            Step::Refresh => self.replication.refresh(terms, self.log.view(), NOW, &mut self.effects),
            Step::Lead { epoch } => {
                self.log.epochs.assign(epoch, self.log.end);
                self.replication.lead(terms, self.log.view(), NOW, &mut self.effects);
            }
            Step::Follow { .. } => {
                self.replication.follow(terms, &self.log.view(), &mut self.effects);
            }
            Step::Idle => self.replication.idle(terms, &mut self.effects),
        }
        self.replication.check_invariants(&self.log.view());
        step
    }

    /// One record with acks = −1.
    fn produce(&mut self, ticket: u64) -> AckState {
        let base = self.log.end;
        self.log.end = base.plus(1);
        let (leader, mut cx) = self.replication.lead_with(self.log.view(), NOW, &mut self.effects).unwrap();
        leader.on_appended(&mut cx);
        let stored = StoredBatch { base, end: base.plus(1), log_append_time: Timestamp::NONE };
        leader.await_commit(stored, Ticket(ticket), Millis::MAX)
    }

    fn fetch(&mut self, replica: i32, offset: i64, leader_epoch: i32) -> Result<(), Refusal> {
        let question = FollowerFetch {
            replica: BrokerId(replica),
            broker_epoch: Some(BrokerEpoch(100 + i64::from(replica))),
            leader_epoch: Some(LeaderEpoch(leader_epoch)),
            offset: Offset(offset),
            last_fetched_epoch: self.log.epochs.epoch_at(Offset(offset - 1)),
            log_start: None,
            at: NOW,
            session: None,
        };
        let view = self.log.view();
        self.replication.leader()?.check_fetch(&question, &view)?;
        let (leader, mut cx) = self.replication.lead_with(view, NOW, &mut self.effects).unwrap();
        leader.on_follower_fetch(&question, &mut cx);
        Ok(())
    }

    fn refused(&self) -> Vec<(u64, ErrorCode)> {
        let refused = |effect: &Effect| match effect {
            Effect::Refused { ticket, refusal } => Some((ticket.0, refusal.code())),
            _ => None,
        };
        self.effects.iter().filter_map(refused).collect()
    }

    fn acked(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::Stored { .. }))
    }

    fn generation(&mut self) -> u64 {
        let view = self.log.view();
        self.replication.following().unwrap().fetch_point(&view).generation
    }
}

fn elect(facts: &mut Facts, leader: Option<i32>) -> Terms {
    facts.change(|state| {
        state.leader = leader.map(BrokerId);
        state.leader_epoch = state.leader_epoch.next();
    })
}

#[test]
fn a_new_leader_keeps_its_own_watermark_and_notes_where_its_epoch_starts() {
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 10), 6);
    assert_eq!(stage.apply(Facts::new(&[1, 2], &[1, 2], 5, 1).terms()), Step::Lead { epoch: LeaderEpoch(5) });
    let leader = stage.replication.leader().unwrap();
    assert_eq!((leader.high_watermark(), leader.epoch_start()), (Offset(6), Offset(10)));
    assert_eq!(stage.log.epochs.latest(), Some(LeaderEpoch(5)), "though nothing was written in it");
}

#[test]
fn an_image_of_another_process_of_this_broker_is_not_acted_on() {
    let mut facts = Facts::new(&[1, 2], &[1, 2], 5, 1);
    let mut stage = Stage::new(Numbers::default(), 0);
    for epoch in [100, 102] {
        let terms = facts.change_peer(1, |peer| peer.epoch = BrokerEpoch(epoch));
        assert_eq!(stage.apply(terms), Step::Ignore);
    }
    facts.peers.remove(&ME);
    assert_eq!(stage.apply(facts.terms()), Step::Ignore, "not registered (any more)");
    assert!(stage.effects.is_empty());
}

#[test]
fn the_same_image_twice_and_older_ones_change_nothing() {
    // R228.
    let mut facts = Facts::new(&[1, 2], &[1, 2], 5, 1);
    let first = facts.terms();
    let second = elect(&mut facts, Some(2));
    let mut stage = Stage::new(Numbers::default(), 0);
    stage.apply(first.clone());
    assert_eq!(stage.apply(first.clone()), Step::Refresh);
    stage.apply(second.clone());
    stage.effects.clear();
    assert_eq!(stage.apply(first), Step::Ignore);
    assert_eq!(stage.apply(second), Step::Refresh);
    assert!(stage.effects.is_empty(), "{:?}", stage.effects);
}

#[test]
fn a_change_without_a_new_epoch_keeps_the_following_going() {
    // R144.
    let mut facts = Facts::new(&[1, 2, 3], &[2, 3], 5, 1);
    facts.state.leader = Some(BrokerId(2));
    let mut stage = Stage::new(Numbers::default(), 0);
    stage.apply(facts.terms());
    let generation = stage.generation();
    let grown = facts.change(|state| state.isr = brokers(&[2, 3, 1]));
    assert_eq!(stage.apply(grown), Step::Refresh);
    assert_eq!(stage.generation(), generation);
}

#[test]
fn a_new_epoch_of_the_same_leader_makes_every_answer_on_its_way_stale() {
    // R143 (2), R257.
    let mut facts = Facts::new(&[1, 2, 3], &[2, 3], 5, 1);
    facts.state.leader = Some(BrokerId(2));
    let mut stage = Stage::new(Numbers::default(), 0);
    stage.apply(facts.terms());
    let generation = stage.generation();
    let again = elect(&mut facts, Some(2));
    assert_eq!(stage.apply(again), Step::Follow { leader: BrokerId(2), epoch: LeaderEpoch(6) });
    assert!(stage.generation() > generation);
}

#[test]
fn losing_the_leadership_answers_producers_and_wakes_fetches_before_anything_else() {
    // R51, R143 (3), D32.
    let mut facts = Facts::new(&[1, 2], &[1, 2], 5, 1);
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 10), 10);
    stage.apply(facts.terms());
    assert_eq!(stage.produce(7), AckState::Waiting);
    stage.replication.park().arm(WaiterId(1), Interest::Consumer { offset: Offset(10), quietly_told: false });
    stage.effects.clear();
    let away = elect(&mut facts, Some(2));
    stage.apply(away);
    assert!(matches!(&stage.effects[0], Effect::Refused { ticket: Ticket(7), .. }), "{:?}", stage.effects);
    assert!(matches!(&stage.effects[1], Effect::Wake(WakeUp { waiter: WaiterId(1), urgent: true })));
    assert_eq!(stage.refused(), [(7, ErrorCode::NotLeaderOrFollower)]);
    let Effect::Refused { refusal, .. } = &stage.effects[0] else { unreachable!() };
    assert_eq!(refusal.current_leader(), Some((BrokerId(2), LeaderEpoch(6))), "R54");
}

#[test]
fn a_watermark_of_a_later_leadership_frees_no_producer_of_an_earlier_one() {
    // R52, R264: A leads, B leads, A leads again; the offset may hold other data now.
    let mut facts = Facts::new(&[1, 2], &[1, 2], 5, 1);
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 10), 10);
    stage.apply(facts.terms());
    stage.produce(7);
    let away = elect(&mut facts, Some(2));
    stage.apply(away);
    let back = elect(&mut facts, Some(1));
    stage.apply(back);
    stage.effects.clear();
    stage.fetch(2, 11, 7).unwrap();
    assert_eq!(stage.replication.high_watermark(), Offset(11));
    assert!(!stage.acked());
}

#[test]
fn a_leader_elected_again_forgets_what_followers_acknowledged_before() {
    // R106, R256, and more: an image may leave out that broker 2 led in epoch 6 and broker 3 cut and refilled its log.
    let mut facts = Facts::new(&[1, 2, 3], &[1, 2, 3], 5, 1);
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 8), 8);
    stage.apply(facts.terms());
    stage.log.end = Offset(10);
    stage.fetch(3, 10, 5).unwrap();
    stage.fetch(2, 8, 5).unwrap();
    elect(&mut facts, Some(2));
    let merged = elect(&mut facts, Some(1));
    assert_eq!(stage.apply(merged), Step::Lead { epoch: LeaderEpoch(7) });
    stage.fetch(2, 10, 7).unwrap();
    assert_eq!(stage.replication.high_watermark(), Offset(8), "broker 3 has not shown itself in epoch 7");
}

#[test]
fn with_the_epoch_of_its_leadership_raised_a_leader_answers_producers_that_wait() {
    // R139: it is a leader change like any other.
    let mut facts = Facts::new(&[1, 2], &[1, 2], 5, 1);
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 10), 10);
    stage.apply(facts.terms());
    stage.produce(7);
    let again = elect(&mut facts, Some(1));
    stage.apply(again);
    assert_eq!(stage.refused(), [(7, ErrorCode::NotLeaderOrFollower)]);
    assert_eq!(stage.replication.leader().unwrap().epoch_start(), Offset(11));
}

#[test]
fn without_a_leader_it_keeps_its_watermark_and_fetches_from_nobody() {
    // R145.
    let mut facts = Facts::new(&[1, 2], &[1, 2], 5, 1);
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 10), 6);
    let nobody = elect(&mut facts, None);
    assert_eq!(stage.apply(nobody), Step::Idle);
    assert_eq!(stage.replication.high_watermark(), Offset(6));
    assert!(!stage.replication.may_fetch());
    assert_eq!(stage.replication.not_leader().code(), ErrorCode::NotLeaderOrFollower);
}

#[test]
fn a_leader_without_an_address_is_not_fetched_from_until_it_has_one() {
    let mut facts = Facts::new(&[1, 2], &[2], 5, 1);
    facts.state.leader = Some(BrokerId(2));
    facts.peers.get_mut(&BrokerId(2)).unwrap().reachable = false;
    let mut stage = Stage::new(Numbers::default(), 0);
    stage.apply(facts.terms());
    assert!(!stage.replication.may_fetch());
    let known = facts.change_peer(2, |peer| peer.reachable = true);
    assert_eq!(stage.apply(known), Step::Refresh);
    assert!(stage.replication.may_fetch());
}

#[test]
fn in_controlled_shutdown_only_members_of_the_isr_go_on_fetching() {
    // R146.
    let mut facts = Facts::new(&[1, 2], &[2, 1], 5, 1);
    facts.state.leader = Some(BrokerId(2));
    let mut stage = Stage::new(Numbers::default(), 0);
    stage.apply(facts.terms());
    stage.replication.drain();
    assert!(stage.replication.may_fetch());
    let out = facts.change(|state| state.isr = brokers(&[2]));
    stage.apply(out);
    assert!(!stage.replication.may_fetch());
}

#[test]
fn epochs_of_requests_are_compared_with_the_newest_known_in_any_role() {
    // R72.
    let mut facts = Facts::new(&[1, 2], &[1, 2], 5, 1);
    let mut stage = Stage::new(Numbers::default(), 0);
    let away = elect(&mut facts, Some(2));
    stage.apply(away);
    let check =
        |given: Option<i32>| stage.replication.check_epoch(given.map(LeaderEpoch)).map_err(|refusal| refusal.code());
    assert_eq!(check(None), Ok(()));
    assert_eq!(check(Some(6)), Ok(()));
    assert_eq!(check(Some(5)), Err(ErrorCode::FencedLeaderEpoch));
    assert_eq!(check(Some(7)), Err(ErrorCode::UnknownLeaderEpoch));
    assert_eq!(stage.replication.leader().unwrap_err().code(), ErrorCode::NotLeaderOrFollower);
}

#[test]
fn an_answer_that_came_before_its_image_is_not_undone_by_an_older_image() {
    // R134, R135: whichever is first, the partition epoch decides.
    let mut facts = Facts::new(&[1, 2], &[1], 5, 1);
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 10), 10);
    stage.apply(facts.terms());
    stage.fetch(2, 10, 5).unwrap();
    let proposal = super::testing::proposals(&stage.effects)[0].clone();
    let accepted = Ok(facts.accept(&proposal));
    let (leader, mut cx) = stage.replication.lead_with(stage.log.view(), NOW, &mut stage.effects).unwrap();
    leader.on_isr(&proposal, &accepted, &mut cx);
    facts.version += 1;
    assert_eq!(stage.apply(facts.terms()), Step::Refresh, "older partition epoch, newer peers");
    assert_eq!(stage.replication.leader().unwrap().isr().committed(), brokers(&[1, 2]));
    let image = facts.change(|state| state.isr = brokers(&[1, 2]));
    stage.apply(image);
    assert_eq!(stage.replication.leader().unwrap().isr().committed(), brokers(&[1, 2]));
}

#[test]
fn an_uncleanly_elected_leader_says_at_once_that_it_has_recovered() {
    // R191: or the partition would be shown as recovering until somebody joins.
    let mut facts = Facts::new(&[1, 2], &[1], 5, 1);
    facts.state.recovery = LeaderRecovery::Recovering;
    let mut stage = Stage::new(Numbers::new(&[(4, 0)], 10), 10);
    stage.apply(facts.terms());
    let proposal = super::testing::proposals(&stage.effects)[0].clone();
    assert_eq!((proposal.why, proposal.recovery), (IsrReason::Recovered, LeaderRecovery::Recovered));
    assert_eq!(super::testing::members(&proposal), [1]);
    let [evidence] = proposal.evidence.as_slice() else { panic!("{proposal:?}") };
    assert_eq!((evidence.broker, evidence.leader_end), (BrokerId(1), Some(Offset(10))), "where the loss begins (D12)");
}
