//! The leader's rules, one sentence each.

use highwater_quorum::controller::{IsrProposal, IsrReason};
use highwater_quorum::image::{ExpandReason, ShrinkReason};
use highwater_wire::ErrorCode;

use super::*;
use crate::log_view::EpochHistory;
use crate::replication::isr::{IsrOutcome, RESEND_UNANSWERED};
use crate::replication::note::Note;
use crate::replication::park::{Interest, Park, WakeUp};
use crate::replication::progress::{LastArrival, Session};
use crate::replication::testing::{Facts, LAG_MAX, ME, Numbers, brokers, members, partition, proposals};

mod fetches;
mod membership;

/// A leadership with everything around it.
struct Stage {
    leader: Leader,
    log: Numbers,
    facts: Facts,
    park: Park,
    effects: Vec<Effect>,
    now: Millis,
    next_ticket: u64,
    /// Of the next produce.
    deadline: Millis,
}

impl Stage {
    /// Broker 1 begins to lead `facts` with this log and watermark, at 1,000,000 ms.
    fn new(facts: Facts, log: Numbers, high_watermark: i64) -> Self {
        let now = Millis(1_000_000);
        let (terms, mut log) = (facts.terms(), log);
        log.epochs.assign(terms.state.leader_epoch, log.end);
        let view = log.view();
        let leader = Leader::new(partition(), ME, LAG_MAX, &terms, Offset(high_watermark), &view, now);
        Self {
            leader,
            log,
            facts,
            park: Park::default(),
            effects: Vec::new(),
            now,
            next_ticket: 0,
            deadline: Millis::MAX,
        }
    }

    /// Three replicas, all in sync at offset 10, in epoch 5.
    fn in_sync(min_isr: usize) -> Self {
        let mut stage = Self::new(Facts::new(&[1, 2, 3], &[1, 2, 3], 5, min_isr), Numbers::new(&[(4, 0)], 10), 10);
        stage.fetch(2, 10).unwrap();
        stage.fetch(3, 10).unwrap();
        stage.effects.clear();
        stage
    }

    fn feed<R>(&mut self, feed: impl FnOnce(&mut Leader, &mut Cx<'_>) -> R) -> R {
        let (view, now) = (self.log.view(), self.now);
        let mut cx = Cx { view, now, park: &mut self.park, effects: &mut self.effects };
        let fed = feed(&mut self.leader, &mut cx);
        self.leader.check_invariants(&self.log.view());
        fed
    }

    fn append(&mut self, records: i64) {
        self.leader.before_append(&self.log.view());
        self.log.end = self.log.end.plus(records);
        self.log.flushed_end = if self.leader.is_durable() { self.log.flushed_end } else { self.log.end };
        self.feed(|leader, cx| leader.on_appended(cx));
    }

    /// Appends with acks = −1.
    fn produce(&mut self, records: i64) -> (Ticket, AckState) {
        let base = self.log.end;
        self.append(records);
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let stored = StoredBatch { base, end: self.log.end, log_append_time: Timestamp::NONE };
        (ticket, self.leader.await_commit(stored, ticket, self.deadline))
    }

    fn question(&self, replica: i32, offset: i64) -> FollowerFetch {
        FollowerFetch {
            replica: BrokerId(replica),
            broker_epoch: self.facts.peers.get(&BrokerId(replica)).map(|peer| peer.epoch),
            leader_epoch: Some(self.facts.state.leader_epoch),
            offset: Offset(offset),
            last_fetched_epoch: self.log.epochs.epoch_at(Offset(offset - 1)),
            log_start: Some(Offset::ZERO),
            at: self.now,
            session: None,
        }
    }

    fn ask(&mut self, question: &FollowerFetch) -> Result<FetchVerdict, Refusal> {
        let verdict = self.leader.check_fetch(question, &self.log.view())?;
        self.feed(|leader, cx| match verdict {
            FetchVerdict::Agrees => leader.on_follower_fetch(question, cx),
            FetchVerdict::Diverges { .. } => leader.on_diverging_fetch(question, &cx.view),
        });
        Ok(verdict)
    }

    fn fetch(&mut self, replica: i32, offset: i64) -> Result<FetchVerdict, Refusal> {
        self.ask(&self.question(replica, offset))
    }

    fn tick(&mut self) {
        self.feed(|leader, cx| leader.on_tick(cx));
    }

    fn image(&mut self, terms: &Terms) {
        self.feed(|leader, cx| leader.on_image(terms, cx));
    }

    fn answer(&mut self, proposal: &IsrProposal, result: Result<(), ErrorCode>) -> IsrOutcome {
        let result = result.map(|()| self.facts.accept(proposal));
        if let Ok(altered) = &result {
            self.facts.state.isr.clone_from(&altered.isr);
            self.facts.state.partition_epoch = altered.partition_epoch;
        }
        self.feed(|leader, cx| leader.on_isr(proposal, &result, cx))
    }

    fn high_watermark(&self) -> i64 {
        self.leader.high_watermark().0
    }

    /// The one proposal among the effects, which are then forgotten.
    fn proposal(&mut self) -> IsrProposal {
        let found = proposals(&self.effects);
        assert_eq!(found.len(), 1, "{:?}", self.effects);
        let proposal = found[0].clone();
        self.effects.clear();
        proposal
    }

    fn acked(&self) -> Vec<u64> {
        let acked = |effect: &Effect| match effect {
            Effect::Stored { ticket, .. } => Some(ticket.0),
            _ => None,
        };
        self.effects.iter().filter_map(acked).collect()
    }

    fn refused(&self) -> Vec<(u64, ErrorCode)> {
        let refused = |effect: &Effect| match effect {
            Effect::Refused { ticket, refusal } => Some((ticket.0, refusal.code())),
            _ => None,
        };
        self.effects.iter().filter_map(refused).collect()
    }

    /// Broker 3 falls silent, the log grows, the lag limit passes, and its leaving is proposed.
    fn shrinking(min_isr: usize) -> (Self, IsrProposal) {
        let mut stage = Self::in_sync(min_isr);
        stage.append(5);
        stage.now = stage.now + LAG_MAX;
        stage.fetch(2, 15).unwrap();
        stage.now = stage.now + Millis(1);
        stage.tick();
        let proposal = stage.proposal();
        (stage, proposal)
    }
}

fn code(result: Result<FetchVerdict, Refusal>) -> ErrorCode {
    result.unwrap_err().code()
}

// The watermark (R119–R125).

#[test]
fn the_watermark_is_the_lowest_end_of_the_isr_and_one_fetch_round_frees_the_producer() {
    let mut stage = Stage::in_sync(2);
    let (ticket, state) = stage.produce(3);
    assert_eq!(state, AckState::Waiting);
    stage.fetch(2, 13).unwrap();
    assert_eq!((stage.high_watermark(), stage.acked()), (10, vec![]));
    stage.fetch(3, 12).unwrap();
    assert_eq!((stage.high_watermark(), stage.acked()), (12, vec![]));
    stage.fetch(3, 13).unwrap();
    assert_eq!((stage.high_watermark(), stage.acked()), (13, vec![ticket.0]));
}

#[test]
fn a_leader_alone_in_the_isr_commits_as_it_appends() {
    let mut stage = Stage::new(Facts::new(&[1], &[1], 5, 2), Numbers::new(&[(4, 0)], 10), 4);
    stage.feed(|leader, cx| leader.advance(cx));
    assert_eq!(stage.high_watermark(), 10, "min ISR is capped by the replicas (R9)");
    assert_eq!(stage.produce(2).1, AckState::Done);
    assert_eq!(stage.high_watermark(), 12);
}

#[test]
fn a_new_leader_waits_for_each_member_to_fetch_in_its_own_epoch() {
    // R141, R238, R256: what a follower acknowledged in another epoch proves nothing.
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2, 3], 5, 2), Numbers::new(&[(4, 0)], 10), 6);
    stage.feed(|leader, cx| leader.advance(cx));
    stage.fetch(2, 10).unwrap();
    assert_eq!(stage.high_watermark(), 6);
    stage.fetch(3, 10).unwrap();
    assert_eq!(stage.high_watermark(), 10);
}

#[test]
fn the_watermark_does_not_follow_a_follower_that_truncated() {
    let mut stage = Stage::in_sync(2);
    stage.fetch(3, 4).unwrap();
    assert_eq!(stage.high_watermark(), 10, "R104");
    stage.append(1);
    stage.fetch(2, 11).unwrap();
    assert_eq!(stage.high_watermark(), 10);
}

#[test]
fn the_watermark_stands_still_under_min_isr_and_makes_one_step_on_recovery() {
    // R121, R245: whoever left the ISR holds all that was ever committed.
    let (mut stage, proposal) = Stage::shrinking(3);
    stage.answer(&proposal, Ok(()));
    assert!(stage.leader.is_under_min_isr());
    stage.append(5);
    stage.fetch(2, 20).unwrap();
    assert_eq!(stage.high_watermark(), 10);
    stage.effects.clear();
    stage.fetch(3, 20).unwrap();
    let proposal = stage.proposal();
    assert_eq!(stage.high_watermark(), 10);
    stage.answer(&proposal, Ok(()));
    assert_eq!(stage.high_watermark(), 20);
}

#[test]
fn a_shrink_to_the_leader_alone_frees_producers_without_another_write() {
    // KAFKA-13091, R253.
    let mut stage = Stage::in_sync(1);
    let (ticket, _) = stage.produce(1);
    stage.now = stage.now + LAG_MAX + Millis(1);
    stage.tick();
    let proposal = stage.proposal();
    assert_eq!(members(&proposal), [1]);
    assert_eq!(stage.high_watermark(), 10, "both still count while the controller may elect them (R241)");
    stage.answer(&proposal, Ok(()));
    assert_eq!((stage.high_watermark(), stage.acked()), (11, vec![ticket.0]));
}

#[test]
fn a_leaving_member_bounds_the_watermark_until_the_controller_has_agreed() {
    // AsyncIsr, R241, R123.
    let (mut stage, _) = Stage::shrinking(2);
    assert_eq!(stage.high_watermark(), 10);
    stage.append(1);
    stage.fetch(2, 16).unwrap();
    assert_eq!(stage.high_watermark(), 10);
}

#[test]
fn a_joining_member_bounds_the_watermark_before_the_controller_answers() {
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 2), Numbers::new(&[(4, 0)], 10), 10);
    stage.fetch(2, 10).unwrap();
    stage.fetch(3, 10).unwrap();
    assert_eq!(members(&stage.proposal()), [1, 2, 3]);
    stage.append(2);
    stage.fetch(2, 12).unwrap();
    assert_eq!(stage.high_watermark(), 10);
    stage.fetch(3, 12).unwrap();
    assert_eq!(stage.high_watermark(), 12);
}

#[test]
fn a_caught_up_replica_outside_the_isr_is_waited_for_while_it_may_join() {
    // R119, R120: or the watermark would run ahead of it for ever.
    let mut facts = Facts::new(&[1, 2, 3], &[1, 2], 5, 2);
    facts.peers.get_mut(&BrokerId(3)).unwrap().active = false;
    let mut stage = Stage::new(facts, Numbers::new(&[(4, 0)], 10), 10);
    stage.fetch(2, 10).unwrap();
    stage.fetch(3, 10).unwrap();
    stage.append(1);
    stage.fetch(2, 11).unwrap();
    assert_eq!(stage.high_watermark(), 11, "a fenced one does not hold it (KAFKA-15021, R254)");
    let terms = stage.facts.change_peer(3, |peer| peer.active = true);
    stage.image(&terms);
    stage.append(1);
    stage.fetch(2, 12).unwrap();
    assert_eq!(stage.high_watermark(), 11, "an eligible one does");
    stage.now = stage.now + LAG_MAX + Millis(1);
    stage.fetch(2, 12).unwrap();
    stage.tick();
    assert_eq!(stage.high_watermark(), 12, "until it is no longer caught up: the tick releases it (R122)");
}

#[test]
fn fencing_seen_in_metadata_releases_the_watermark() {
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 2), Numbers::new(&[(4, 0)], 10), 10);
    stage.fetch(2, 10).unwrap();
    stage.fetch(3, 10).unwrap();
    let proposal = stage.proposal();
    stage.append(1);
    stage.fetch(2, 11).unwrap();
    stage.answer(&proposal, Err(ErrorCode::IneligibleReplica));
    assert_eq!(stage.high_watermark(), 10);
    let terms = stage.facts.change_peer(3, |peer| peer.active = false);
    stage.image(&terms);
    assert_eq!(stage.high_watermark(), 11);
}

#[test]
fn a_lower_min_isr_moves_the_watermark_at_once() {
    let (mut stage, proposal) = Stage::shrinking(3);
    stage.answer(&proposal, Ok(()));
    assert_eq!(stage.high_watermark(), 10);
    stage.facts.config.min_isr = 2;
    stage.facts.version += 1;
    let terms = stage.facts.terms();
    stage.image(&terms);
    assert_eq!(stage.high_watermark(), 15, "R122");
}

#[test]
fn a_higher_min_isr_holds_the_watermark_from_the_image_that_tells_it() {
    // R187: the quorum moves the partition epoch with it, so that a shrink proposed before is not accepted.
    let mut stage = Stage::new(Facts::new(&[1, 2, 3], &[1, 2], 5, 2), Numbers::new(&[(4, 0)], 10), 10);
    stage.facts.config.min_isr = 3;
    stage.facts.version += 1;
    stage.facts.state.partition_epoch = stage.facts.state.partition_epoch.next();
    let terms = stage.facts.terms();
    stage.image(&terms);
    stage.append(1);
    stage.fetch(2, 11).unwrap();
    assert_eq!(stage.high_watermark(), 10);
    assert!(stage.leader.may_append_for_all().is_err(), "two in sync are too few now");
    stage.facts.config.min_isr = 2;
    stage.facts.version += 1;
    let terms = stage.facts.terms();
    stage.image(&terms);
    assert_eq!(stage.high_watermark(), 11, "R122");
}

#[test]
fn where_every_record_is_synced_the_own_share_is_the_synced_end() {
    // D23.
    let mut facts = Facts::new(&[1, 2, 3], &[1, 2, 3], 5, 2);
    facts.config.flush_messages = 1;
    let mut stage = Stage::new(facts, Numbers::new(&[(4, 0)], 10), 10);
    let (ticket, _) = stage.produce(1);
    stage.fetch(2, 11).unwrap();
    stage.fetch(3, 11).unwrap();
    assert_eq!((stage.high_watermark(), stage.acked()), (10, vec![]));
    let stored = StoredBatch { base: Offset(10), end: Offset(11), log_append_time: Timestamp::NONE };
    let own = stage.leader.await_own(stored, Ticket(99), stage.now + Millis(1), &stage.log.view());
    assert_eq!(own, AckState::Waiting, "acks = 1 waits for the disk too");
    let due = stage.leader.tick_at(&stage.log.view(), stage.now);
    assert_eq!(due, Some(stage.now + Millis(1)), "and no longer than its producer");
    stage.log.flushed_end = Offset(11);
    stage.feed(|leader, cx| leader.on_flushed(cx));
    assert_eq!((stage.high_watermark(), stage.acked()), (11, vec![99, ticket.0]));
}

// Producing (R42, R47–R53).

#[test]
fn acks_all_is_refused_before_the_append_under_min_isr() {
    let (mut stage, proposal) = Stage::shrinking(3);
    assert_eq!(stage.leader.may_append_for_all(), Ok(()), "the committed ISR decides (R10)");
    stage.answer(&proposal, Ok(()));
    assert_eq!(stage.leader.may_append_for_all().unwrap_err().code(), ErrorCode::NotEnoughReplicas);
}

#[test]
fn a_produce_ends_by_its_deadline_and_the_records_stay() {
    let mut stage = Stage::in_sync(2);
    stage.deadline = stage.now + Millis(1_000);
    let (ticket, _) = stage.produce(1);
    assert_eq!(stage.leader.tick_at(&stage.log.view(), stage.now), Some(stage.now + Millis(1_000)));
    stage.now = stage.now + Millis(1_000);
    stage.tick();
    assert_eq!(stage.refused(), [(ticket.0, ErrorCode::RequestTimedOut)]);
    stage.effects.clear();
    stage.fetch(2, 11).unwrap();
    stage.fetch(3, 11).unwrap();
    assert_eq!((stage.high_watermark(), stage.acked()), (11, vec![]));
}

#[test]
fn when_the_leadership_ends_every_waiting_producer_hears_it() {
    let mut stage = Stage::in_sync(2);
    let (waiting, _) = stage.produce(1);
    let refusal = Refusal::NotLeader { leader: Some(BrokerId(2)), leader_epoch: LeaderEpoch(6) };
    let mut effects = Vec::new();
    assert_eq!(stage.leader.step_down(&refusal, &mut effects), Offset(10));
    let [Effect::Refused { ticket, refusal }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((*ticket, refusal.code()), (waiting, ErrorCode::NotLeaderOrFollower));
}

#[test]
fn a_repeated_batch_whose_original_is_committed_is_answered_at_once() {
    let mut stage = Stage::in_sync(2);
    let stored = StoredBatch { base: Offset(4), end: Offset(6), log_append_time: Timestamp::NONE };
    assert_eq!(stage.leader.await_commit(stored, Ticket(1), Millis::MAX), AckState::Done);
}

// Fetches of followers (R72, R73, R99–R107).

#[test]
fn the_end_is_not_told_before_the_watermark_has_reached_the_start_of_the_epoch() {
    let mut stage = Stage::new(Facts::new(&[1, 2], &[1, 2], 5, 1), Numbers::new(&[(4, 0)], 10), 5);
    assert_eq!(stage.leader.may_tell_the_end().unwrap_err().code(), ErrorCode::OffsetNotAvailable);
    stage.fetch(2, 10).unwrap();
    assert_eq!(stage.leader.may_tell_the_end(), Ok(()));
}

#[test]
fn an_append_wakes_followers_and_only_a_watermark_move_wakes_consumers() {
    let mut stage = Stage::in_sync(2);
    stage.park.arm(WaiterId(1), Interest::Follower { quietly_told: false });
    stage.park.arm(WaiterId(2), Interest::Consumer { offset: Offset(10), quietly_told: false });
    stage.append(1);
    let wakes = |effects: &[Effect]| -> Vec<WakeUp> {
        let woken =
            effects.iter().filter_map(|effect| if let Effect::Wake(wake) = effect { Some(*wake) } else { None });
        woken.collect()
    };
    assert_eq!(wakes(&stage.effects), [WakeUp { waiter: WaiterId(1), urgent: true }]);
    stage.effects.clear();
    stage.fetch(2, 11).unwrap();
    stage.fetch(3, 11).unwrap();
    assert_eq!(wakes(&stage.effects), [WakeUp { waiter: WaiterId(2), urgent: true }]);
}

#[test]
fn after_a_late_fetch_from_elsewhere_the_silent_session_of_the_follower_is_asked_again() {
    let mut stage = Stage::in_sync(2);
    let session = |waiter| Some(Session { waiter: WaiterId(waiter), arrival: LastArrival::default() });
    let present = FollowerFetch { session: session(7), ..stage.question(2, 10) };
    let woken = |stage: &Stage| -> Vec<WakeUp> {
        let wakes = stage.effects.iter();
        wakes.filter_map(|effect| if let Effect::Wake(wake) = effect { Some(*wake) } else { None }).collect()
    };
    stage.ask(&present).unwrap();
    assert_eq!(woken(&stage), []);
    // Sent long ago on a connection that is gone, it says less than is true, and nobody would say more.
    let late = FollowerFetch { session: session(3), ..stage.question(2, 6) };
    stage.ask(&late).unwrap();
    assert_eq!(woken(&stage), [WakeUp { waiter: WaiterId(7), urgent: false }]);
    stage.ask(&present).unwrap();
    assert_eq!(stage.leader.reported_ends().next().map(|(id, _, end)| (id, end)), Some((BrokerId(2), Offset(10))));
}

#[test]
fn the_low_watermark_is_the_lowest_start_of_the_living() {
    let mut stage = Stage::in_sync(2);
    stage.log.start = Offset(8);
    assert_eq!(stage.leader.low_watermark(&stage.log.view()), Some(Offset(0)));
    for replica in [2, 3] {
        let question = FollowerFetch { log_start: Some(Offset(8)), ..stage.question(replica, 10) };
        stage.ask(&question).unwrap();
    }
    assert_eq!(stage.leader.low_watermark(&stage.log.view()), Some(Offset(8)));
}
