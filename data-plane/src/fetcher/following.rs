//! What one fetcher follows: which partitions to ask for, which rest after an error, what changed since the last request.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::{Millis, TopicPartition};

use crate::replica::message::FetchPoint;

/// The first pause after an error (D26a).
const PAUSE_MIN: Millis = Millis(20);
/// How long a request waits for partitions whose records are being synced (D23), so that they need not be left out.
const SYNC_HOLD: Millis = Millis(5);

/// The partitions of one fetcher.
#[derive(Debug)]
pub struct Following {
    pause_max: Millis,
    followed: BTreeMap<TopicPartition, Followed>,
    /// Asked for, and what is asked is not what was sent last.
    changed: BTreeSet<TopicPartition>,
    /// Known to the leader's session, not to be asked for now.
    dropped: BTreeSet<TopicPartition>,
    /// In the leader's session, as sent last.
    known: BTreeSet<TopicPartition>,
    /// By when their pause ends.
    paused: BTreeSet<(Millis, TopicPartition)>,
    /// Being synced, since when.
    syncing: BTreeMap<TopicPartition, Millis>,
    /// A pause ended since it was last asked.
    resumed: bool,
}

#[derive(Debug)]
struct Followed {
    point: FetchPoint,
    /// Until when it rests; `ZERO`: it does not.
    paused_until: Millis,
    /// The last pause; `ZERO` after a success.
    pause: Millis,
}

/// What the next request has to say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub asked: BTreeMap<TopicPartition, FetchPoint>,
    pub dropped: Vec<TopicPartition>,
}

impl Following {
    /// `pause_max`: the longest pause after an error.
    pub fn new(pause_max: Millis) -> Self {
        Self {
            pause_max,
            followed: BTreeMap::new(),
            changed: BTreeSet::new(),
            dropped: BTreeSet::new(),
            known: BTreeSet::new(),
            paused: BTreeSet::new(),
            syncing: BTreeMap::new(),
            resumed: false,
        }
    }

    /// The longest pause after an error, from the next one on.
    pub fn set_pause_max(&mut self, pause_max: Millis) {
        self.pause_max = pause_max;
    }

    /// Ask for this from the next request on; ends a pause.
    pub fn fetch(&mut self, at: TopicPartition, point: FetchPoint) {
        self.syncing.remove(&at);
        self.unpause(at);
        self.dropped.remove(&at);
        self.followed.insert(at, Followed { point, paused_until: Millis::ZERO, pause: Millis::ZERO });
        self.changed.insert(at);
    }

    /// Ask for this after a pause: 20 ms, doubled with each error in a row.
    pub fn back_off(&mut self, at: TopicPartition, point: FetchPoint, now: Millis) {
        let last = self.followed.get(&at).map_or(Millis::ZERO, |followed| followed.pause);
        let pause = Millis(last.0 * 2).clamp(PAUSE_MIN.min(self.pause_max), self.pause_max);
        self.drop(at);
        let paused_until = now + pause;
        self.followed.insert(at, Followed { point, paused_until, pause });
        self.paused.insert((paused_until, at));
    }

    /// Leave it out until it is told anew.
    pub fn drop(&mut self, at: TopicPartition) {
        self.syncing.remove(&at);
        self.unpause(at);
        self.followed.remove(&at);
        self.changed.remove(&at);
        if self.known.contains(&at) {
            self.dropped.insert(at);
        }
    }

    /// Leave it out until its records are synced; the next request waits a little for that.
    pub fn await_sync(&mut self, at: TopicPartition, now: Millis) {
        self.drop(at);
        self.syncing.insert(at, now);
    }

    fn unpause(&mut self, at: TopicPartition) {
        if let Some(followed) = self.followed.get_mut(&at) {
            self.paused.remove(&(followed.paused_until, at));
            followed.paused_until = Millis::ZERO;
        }
    }

    /// Those whose pause is over are asked for again.
    fn resume(&mut self, now: Millis) {
        while let Some((until, at)) = self.paused.first().copied().filter(|(until, _)| *until <= now) {
            self.paused.remove(&(until, at));
            if let Some(followed) = self.followed.get_mut(&at) {
                followed.paused_until = Millis::ZERO;
                self.dropped.remove(&at);
                self.changed.insert(at);
                self.resumed = true;
            }
        }
        self.syncing.retain(|_, since| now - *since < SYNC_HOLD);
    }

    /// Whether a request may be sent when none is under way: something is to be asked for, and nothing that is about to
    /// be synced would be left out.
    pub fn may_send(&mut self, now: Millis) -> bool {
        self.resume(now);
        self.syncing.is_empty() && self.followed.values().any(|followed| followed.paused_until == Millis::ZERO)
    }

    /// Whether a pause ended since the last call: worth a request of its own, behind one that may be parked for long.
    pub fn take_resumed(&mut self, now: Millis) -> bool {
        self.resume(now);
        std::mem::take(&mut self.resumed)
    }

    /// Whether a request would say something new.
    pub fn has_changes(&mut self, now: Millis) -> bool {
        self.resume(now);
        !self.changed.is_empty()
    }

    /// When to look again though nothing happened. `None`: never.
    pub fn next_due(&self) -> Option<Millis> {
        let paused = self.paused.first().map(|(until, _)| *until);
        let syncing = self.syncing.values().min().map(|since| *since + SYNC_HOLD);
        paused.into_iter().chain(syncing).min()
    }

    /// What the next request has to say; counts as said.
    pub fn take_changes(&mut self, now: Millis) -> Changes {
        self.resume(now);
        let changed = std::mem::take(&mut self.changed);
        let asked: BTreeMap<_, _> = changed.iter().filter_map(|at| Some((*at, self.followed.get(at)?.point))).collect();
        let dropped: Vec<_> = std::mem::take(&mut self.dropped).into_iter().collect();
        for at in &dropped {
            self.known.remove(at);
        }
        self.known.extend(asked.keys());
        Changes { asked, dropped }
    }

    /// The leader knows nothing of what was sent: everything is said again.
    pub fn ask_again(&mut self) {
        self.known.clear();
        self.dropped.clear();
        let asking = self.followed.iter().filter(|(_, followed)| followed.paused_until == Millis::ZERO);
        self.changed = asking.map(|(at, _)| *at).collect();
    }

    /// Everything that is asked for now.
    pub fn all_asking(&self) -> Vec<(TopicPartition, FetchPoint)> {
        let asking = self.followed.iter().filter(|(_, followed)| followed.paused_until == Millis::ZERO);
        asking.map(|(at, followed)| (*at, followed.point)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_wire::{BrokerId, LeaderEpoch, Offset, TopicId};

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new(TopicId::from_bytes([1; 16]), partition)
    }

    fn point(offset: i64) -> FetchPoint {
        FetchPoint {
            leader: BrokerId(1),
            leader_epoch: LeaderEpoch(0),
            offset: Offset(offset),
            last_fetched_epoch: None,
            log_start: Offset(0),
            generation: 0,
        }
    }

    fn following() -> Following {
        Following::new(Millis(1_000))
    }

    #[test]
    fn only_what_changed_is_said_again() {
        let mut following = following();
        assert!(!following.may_send(Millis(0)));
        following.fetch(at(0), point(1));
        following.fetch(at(1), point(1));
        assert!(following.may_send(Millis(0)));
        assert_eq!(following.take_changes(Millis(0)).asked.len(), 2);
        assert!(following.may_send(Millis(0)) && !following.has_changes(Millis(0)));
        following.fetch(at(1), point(2));
        let changes = following.take_changes(Millis(0));
        assert_eq!(changes, Changes { asked: [(at(1), point(2))].into(), dropped: vec![] });
        following.drop(at(0));
        assert_eq!(following.take_changes(Millis(0)).dropped, [at(0)]);
        following.drop(at(7));
        assert_eq!(following.take_changes(Millis(0)), Changes::default(), "what was never said need not be forgotten");
    }

    #[test]
    fn pauses_double_up_to_their_maximum_and_end_with_news() {
        let mut following = following();
        following.fetch(at(0), point(1));
        following.take_changes(Millis(0));
        let mut now = Millis(0);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            following.back_off(at(0), point(1), now);
            let due = following.next_due().unwrap();
            pauses.push((due - now).0);
            assert!(!following.may_send(now));
            now = due;
            assert!(following.may_send(now));
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        assert!(following.take_resumed(now) && !following.take_resumed(now));
        following.back_off(at(0), point(1), now);
        following.fetch(at(0), point(5));
        assert!(following.may_send(now), "new metadata ends the wait");
        assert_eq!(following.take_changes(now).asked, [(at(0), point(5))].into());
        following.back_off(at(0), point(5), now);
        assert_eq!(following.next_due(), Some(now + Millis(20)), "a success in between resets the pause");
    }

    #[test]
    fn a_request_waits_a_little_for_records_being_synced() {
        let mut following = following();
        following.fetch(at(0), point(1));
        following.fetch(at(1), point(1));
        following.take_changes(Millis(0));
        following.await_sync(at(0), Millis(100));
        assert!(!following.may_send(Millis(104)));
        following.fetch(at(0), point(2));
        assert!(following.may_send(Millis(104)));
        assert_eq!(following.take_changes(Millis(104)).dropped, [], "synced in time: never left out");
        following.await_sync(at(0), Millis(200));
        assert!(following.may_send(Millis(205)));
        assert_eq!(following.take_changes(Millis(205)).dropped, [at(0)]);
    }

    #[test]
    fn a_new_session_is_told_everything_but_what_rests() {
        let mut following = following();
        following.fetch(at(0), point(1));
        following.fetch(at(1), point(1));
        following.take_changes(Millis(0));
        following.back_off(at(1), point(1), Millis(0));
        following.ask_again();
        let changes = following.take_changes(Millis(0));
        assert_eq!(changes, Changes { asked: [(at(0), point(1))].into(), dropped: vec![] });
        assert_eq!(following.take_changes(Millis(20)).asked, [(at(1), point(1))].into());
    }
}
