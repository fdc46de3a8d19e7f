//! How far one follower is, as its leader knows it (R8, R102, R108, D20).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_wire::{BrokerEpoch, Millis, Offset};

use super::park::WaiterId;

/// When the last request of one follower's fetch session arrived (D20).
///
/// The session's owner stores the arrival *after* it has asked every partition which that request named or which was
/// ready; replicas at the end of the leader's log read it when they need to know. Monotonic.
#[derive(Debug, Clone, Default)]
pub struct LastArrival(Arc<AtomicU64>);

impl LastArrival {
    /// A request of the session arrived at `at`.
    pub fn store(&self, at: Millis) {
        self.0.fetch_max(at.0, Ordering::Relaxed);
    }

    /// The last stored arrival; 0 before the first.
    pub fn get(&self) -> Millis {
        Millis(self.0.load(Ordering::Relaxed))
    }
}

/// A follower's fetch session.
#[derive(Debug, Clone)]
pub struct Session {
    pub waiter: WaiterId,
    pub arrival: LastArrival,
}

/// What a valid fetch of the current leader epoch says of its follower.
#[derive(Debug, Clone)]
pub struct FollowerFetched {
    /// The offset asked for: everything below is stored there.
    pub offset: Offset,
    pub log_start: Option<Offset>,
    pub broker_epoch: BrokerEpoch,
    /// When the request arrived.
    pub at: Millis,
    /// The session that goes on asking for this partition in silence while it is at the end.
    pub session: Option<Session>,
}

/// One follower in one leader epoch. Everything is unknown until its first fetch (R106, R117).
#[derive(Debug, Clone, Default)]
pub struct FollowerProgress {
    end: Option<Offset>,
    log_start: Option<Offset>,
    broker_epoch: Option<BrokerEpoch>,
    /// The leader's end when it last fetched.
    last_fetch_leader_end: Option<Offset>,
    last_fetch: Option<Millis>,
    caught_up_at: Option<Millis>,
    /// Its session, while its requests count for this partition without naming it (D20).
    session: Option<Session>,
}

impl FollowerProgress {
    /// At the start of a leadership: a member of the ISR counts as caught up now, others never were (R106).
    pub fn new(in_isr: bool, now: Millis) -> Self {
        Self { caught_up_at: in_isr.then_some(now), ..Self::default() }
    }

    /// A fetch that passed all checks, with the leader's end as read for it (R102).
    pub fn on_fetch(&mut self, fetched: FollowerFetched, leader_end: Offset) {
        self.settle(leader_end);
        if fetched.offset >= leader_end {
            self.caught_up_at = self.caught_up_at.max(Some(fetched.at));
        } else if self.last_fetch_leader_end.is_some_and(|end| fetched.offset >= end) {
            self.caught_up_at = self.caught_up_at.max(self.last_fetch);
        }
        // The follower may have truncated: its end is stored as it is (R104).
        self.end = Some(fetched.offset);
        self.log_start = fetched.log_start;
        self.last_fetch_leader_end = self.last_fetch_leader_end.max(Some(leader_end));
        self.last_fetch = self.last_fetch.max(Some(fetched.at));
        self.broker_epoch = Some(fetched.broker_epoch);
        self.session = fetched.session;
    }

    /// Counts the requests in which its session said nothing of this partition because nothing had changed: before an
    /// append, a shrink check or a look at the watermark (D20). `leader_end`: the end they were at, so before the append.
    pub fn settle(&mut self, leader_end: Offset) {
        let Some(session) = &self.session else { return };
        if self.end != Some(leader_end) {
            return;
        }
        let at = session.arrival.get();
        if self.last_fetch < Some(at) {
            self.caught_up_at = self.caught_up_at.max(Some(at));
            self.last_fetch = Some(at);
            self.last_fetch_leader_end = self.last_fetch_leader_end.max(Some(leader_end));
        }
    }

    /// Its session no longer counts: it forgot the partition, or its broker registered anew.
    pub fn detach(&mut self, leader_end: Offset) {
        self.settle(leader_end);
        self.session = None;
    }

    /// It was told that its log and the leader's part ways: it will cut what it holds, or begin anew, and how far it then
    /// agrees only its next fetch says. When it was caught up last stays as it was.
    pub fn diverged(&mut self, leader_end: Offset) {
        self.detach(leader_end);
        self.end = None;
        self.log_start = None;
    }

    /// The session whose requests count for it.
    pub fn session(&self) -> Option<WaiterId> {
        self.session.as_ref().map(|session| session.waiter)
    }

    /// Whether this session's requests count for it.
    pub fn is_followed_by(&self, waiter: WaiterId) -> bool {
        self.session.as_ref().is_some_and(|session| session.waiter == waiter)
    }

    /// R108: at the leader's end, or there not longer than `lag_max` ago.
    pub fn is_caught_up(&self, leader_end: Offset, now: Millis, lag_max: Millis) -> bool {
        self.end == Some(leader_end) || self.caught_up_at.is_some_and(|at| now - at <= lag_max)
    }

    /// The end of its log; `None` before its first fetch in this epoch.
    pub fn end(&self) -> Option<Offset> {
        self.end
    }

    /// The start of its log, as its fetches say.
    pub fn log_start(&self) -> Option<Offset> {
        self.log_start
    }

    /// Of its last fetch.
    pub fn broker_epoch(&self) -> Option<BrokerEpoch> {
        self.broker_epoch
    }

    /// When it last fetched.
    pub fn last_fetch(&self) -> Option<Millis> {
        self.last_fetch
    }

    /// When it was last known to hold everything (R102).
    pub fn caught_up_at(&self) -> Option<Millis> {
        self.caught_up_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAG_MAX: Millis = Millis(30_000);

    fn fetched(offset: i64, at: u64, session: Option<LastArrival>) -> FollowerFetched {
        FollowerFetched {
            offset: Offset(offset),
            log_start: Some(Offset::ZERO),
            broker_epoch: BrokerEpoch(7),
            at: Millis(at),
            session: session.map(|arrival| Session { waiter: WaiterId(1), arrival }),
        }
    }

    #[test]
    fn one_round_behind_under_constant_load_counts_as_caught_up_at_the_round_before() {
        // R110.
        let mut progress = FollowerProgress::default();
        progress.on_fetch(fetched(100, 0, None), Offset(100));
        assert_eq!(progress.caught_up_at(), Some(Millis(0)));
        progress.on_fetch(fetched(100, 1, None), Offset(150));
        assert_eq!(progress.caught_up_at(), Some(Millis(0)));
        progress.on_fetch(fetched(150, 2, None), Offset(200));
        assert_eq!(progress.caught_up_at(), Some(Millis(1)));
    }

    #[test]
    fn a_follower_that_falls_further_behind_each_round_stops_being_caught_up() {
        let mut progress = FollowerProgress::default();
        progress.on_fetch(fetched(100, 0, None), Offset(100));
        for round in 1..=40 {
            progress.on_fetch(fetched(100 + round, round as u64 * 1_000, None), Offset(100 + 50 * round));
        }
        assert_eq!(progress.caught_up_at(), Some(Millis(0)));
        assert!(progress.is_caught_up(Offset(2_100), Millis(30_000), LAG_MAX));
        assert!(!progress.is_caught_up(Offset(2_100), Millis(30_001), LAG_MAX));
    }

    #[test]
    fn at_the_leaders_end_it_stays_caught_up_however_long_it_is_silent() {
        // D36.
        let mut progress = FollowerProgress::default();
        progress.on_fetch(fetched(5, 0, None), Offset(5));
        assert!(progress.is_caught_up(Offset(5), Millis(10_000_000), LAG_MAX));
        assert!(!progress.is_caught_up(Offset(6), Millis(10_000_000), LAG_MAX));
    }

    #[test]
    fn its_end_goes_down_when_it_truncated() {
        let mut progress = FollowerProgress::default();
        progress.on_fetch(fetched(9, 0, None), Offset(9));
        progress.on_fetch(fetched(4, 1, None), Offset(9));
        assert_eq!(progress.end(), Some(Offset(4)));
    }

    #[test]
    fn silent_rounds_of_a_session_that_forgot_it_count_no_more() {
        let session = LastArrival::default();
        let mut progress = FollowerProgress::default();
        progress.on_fetch(fetched(5, 1, Some(session.clone())), Offset(5));
        session.store(Millis(2));
        progress.detach(Offset(5));
        session.store(Millis(50));
        progress.settle(Offset(5));
        assert_eq!(progress.last_fetch(), Some(Millis(2)));
    }

    /// What happens to one partition and its follower.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Append(u8),
        /// A request of the session; the answer brings at most this many records.
        Round {
            records_max: u8,
        },
        Truncate(u8),
        ShrinkCheck,
    }

    fn events() -> impl Strategy<Value = Vec<(u8, Event)>> {
        let event = prop_oneof![
            3 => (1..4_u8).prop_map(Event::Append),
            6 => (0..6_u8).prop_map(|records_max| Event::Round { records_max }),
            1 => (1..3_u8).prop_map(Event::Truncate),
            1 => Just(Event::ShrinkCheck),
        ];
        prop::collection::vec((0..20_u8, event), 1..120)
    }

    proptest! {
        /// D20: settling late says the same as R102 applied to every partition in every round.
        #[test]
        fn settling_late_says_what_every_round_would_have_said(events in events()) {
            let session = LastArrival::default();
            let (mut lazy, mut literal) = (FollowerProgress::default(), FollowerProgress::default());
            let (mut leader_end, mut follower_end, mut now) = (0_i64, 0_i64, 0_u64);
            // Whether the session's next request names the partition: its offset changed, or it is on the ready list.
            let mut named = true;
            for (pause, event) in events {
                now += u64::from(pause);
                match event {
                    Event::Append(records) => {
                        lazy.settle(Offset(leader_end));
                        leader_end += i64::from(records);
                        named = true;
                    }
                    Event::Truncate(records) => {
                        follower_end = (follower_end - i64::from(records)).max(0);
                        named = true;
                    }
                    Event::Round { records_max } => {
                        literal.on_fetch(fetched(follower_end, now, None), Offset(leader_end));
                        if named {
                            lazy.on_fetch(fetched(follower_end, now, Some(session.clone())), Offset(leader_end));
                        }
                        session.store(Millis(now));
                        let taken = i64::from(records_max).min(leader_end - follower_end);
                        follower_end += taken;
                        named = taken > 0 || follower_end < leader_end;
                    }
                    Event::ShrinkCheck => {
                        lazy.settle(Offset(leader_end));
                        let (end, at) = (Offset(leader_end), Millis(now));
                        prop_assert_eq!(lazy.is_caught_up(end, at, Millis(15)), literal.is_caught_up(end, at, Millis(15)));
                        prop_assert_eq!(lazy.caught_up_at(), literal.caught_up_at());
                        prop_assert_eq!(lazy.last_fetch(), literal.last_fetch());
                        prop_assert_eq!(lazy.last_fetch_leader_end, literal.last_fetch_leader_end);
                        prop_assert_eq!(lazy.end(), literal.end());
                    }
                }
            }
        }
    }
}
