//! Fetch sessions (KIP-227): what may be left unsaid between two rounds of fetching, for both ends. Pure.
//!
//! The server's end remembers what a session follows ([`FetchSession`]) and which sessions exist ([`SessionTable`]);
//! the client's end ([`ClientSession`]) remembers what it last asked, and so what it need not repeat.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_wire::{ErrorCode, LeaderEpoch, Millis, Offset, TopicId, TopicPartition};

/// How long a session must have been idle, or a consumer's must have lived, before its slot may be taken (R90).
const EVICTION: Millis = Millis(120_000);

/// The session epoch of a request that opens a session (R85).
pub const INITIAL_EPOCH: i32 = 0;
/// The session epoch of a request that wants none (R85).
pub const FINAL_EPOCH: i32 = -1;

/// The epoch after `epoch` (R86): never 0 or below.
pub fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch.max(0) + 1 }
}

/// How a request names a topic: by id from Fetch v13 on, by name before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicKey {
    Id(TopicId),
    Name(Arc<str>),
}

/// One partition as the session's client names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartitionKey {
    pub topic: TopicKey,
    pub partition: i32,
}

/// What is asked of one partition, round after round until it is asked anew (R87).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// As it came, so that a negative one is refused where offsets are checked.
    pub offset: i64,
    pub bytes_max: u32,
    pub leader_epoch: Option<LeaderEpoch>,
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// The follower's log start.
    pub log_start: Option<Offset>,
}

/// What the session last told its client of a partition, so far as R88 compares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    high_watermark: i64,
    log_start: i64,
}

const NEVER_TOLD: Told = Told { high_watermark: -1, log_start: -1 };

#[derive(Debug)]
struct Entry {
    asked: Asked,
    told: Told,
    /// Place in the order of answering.
    place: u64,
}

/// What an answer says of one partition, so far as it decides whether it must be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    pub error: ErrorCode,
    pub diverging: bool,
    pub preferred_replica: bool,
    pub records: bool,
    /// −1 with an error.
    pub high_watermark: i64,
    pub log_start: i64,
}

/// The server's end of one session.
#[derive(Debug)]
pub struct FetchSession {
    by_id: bool,
    /// Its client may have two requests under way, and drops an answer to what it no longer asks (R152).
    follower: bool,
    epoch: i32,
    entries: BTreeMap<PartitionKey, Entry>,
    order: BTreeMap<u64, PartitionKey>,
    next_place: u64,
}

impl FetchSession {
    /// A session that follows nothing yet; its first incremental request carries epoch 1.
    pub fn new(by_id: bool) -> Self {
        Self { by_id, follower: false, epoch: 1, entries: BTreeMap::new(), order: BTreeMap::new(), next_place: 0 }
    }

    /// The same for a follower.
    pub fn of_follower(by_id: bool) -> Self {
        Self { follower: true, ..Self::new(by_id) }
    }

    /// Accepts an incremental request (R86).
    ///
    /// # Errors
    /// 71 for another epoch than the next, 106 when it names topics the other way.
    pub fn accept(&mut self, epoch: i32, by_id: bool) -> Result<(), ErrorCode> {
        if epoch != self.epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if by_id != self.by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        self.epoch = next_epoch(self.epoch);
        Ok(())
    }

    /// Adds a partition at the end of the order, or changes what is asked of it. A follower that asks otherwise may have
    /// dropped the last answer, which was to another question: it is told everything once more.
    pub fn ask(&mut self, key: PartitionKey, asked: Asked) {
        if let Some(entry) = self.entries.get_mut(&key) {
            if self.follower && entry.asked != asked {
                entry.told = NEVER_TOLD;
            }
            entry.asked = asked;
            return;
        }
        let place = self.next_place;
        self.next_place += 1;
        self.order.insert(place, key.clone());
        self.entries.insert(key, Entry { asked, told: NEVER_TOLD, place });
    }

    /// Stops following a partition. `false`: it did not.
    pub fn forget(&mut self, key: &PartitionKey) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.order.remove(&entry.place);
        true
    }

    /// What is asked of a partition now.
    pub fn asked(&self, key: &PartitionKey) -> Option<Asked> {
        self.entries.get(key).map(|entry| entry.asked)
    }

    /// Puts partitions into the order in which they are answered; unknown ones are dropped.
    pub fn in_order(&self, keys: impl IntoIterator<Item = PartitionKey>) -> Vec<PartitionKey> {
        let mut placed: Vec<_> =
            keys.into_iter().filter_map(|key| self.entries.get(&key).map(|entry| (entry.place, key))).collect();
        placed.sort_unstable();
        placed.dedup();
        placed.into_iter().map(|(_, key)| key).collect()
    }

    /// Everything it follows, in order.
    pub fn followed(&self) -> impl Iterator<Item = &PartitionKey> {
        self.order.values()
    }

    /// How many partitions it follows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// It follows nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the answer for a partition must be sent (R88), assuming that it then is; one that carries records
    /// moves to the end of the order (R89).
    pub fn must_tell(&mut self, key: &PartitionKey, answered: Answered) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return true };
        let told = Told { high_watermark: answered.high_watermark, log_start: answered.log_start };
        let must = answered.error.is_error()
            || answered.diverging
            || answered.preferred_replica
            || answered.records
            || told != entry.told;
        entry.told = if answered.error.is_error() { NEVER_TOLD } else { told };
        if answered.records {
            self.order.remove(&entry.place);
            entry.place = self.next_place;
            self.next_place += 1;
            self.order.insert(entry.place, key.clone());
        }
        must
    }
}

/// Every slot is taken by one that may not be evicted for this one: the answer must be sessionless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSlot;

/// Which sessions exist, so far as it decides who may have a slot (R90). The sessions themselves are elsewhere.
#[derive(Debug)]
pub struct SessionTable {
    slots_max: usize,
    slots: BTreeMap<i32, Slot>,
}

#[derive(Debug)]
struct Slot {
    /// A follower's.
    privileged: bool,
    partitions: usize,
    created: Millis,
    used: Millis,
}

impl SessionTable {
    /// `max.incremental.fetch.session.cache.slots`
    pub fn new(slots_max: usize) -> Self {
        Self { slots_max, slots: BTreeMap::new() }
    }

    /// Takes a slot for `id`; gives the session that had to make way.
    ///
    /// # Errors
    /// Nobody may be evicted for this one, or the id is taken.
    pub fn open(&mut self, id: i32, privileged: bool, partitions: usize, now: Millis) -> Result<Option<i32>, NoSlot> {
        if self.slots.contains_key(&id) {
            return Err(NoSlot);
        }
        let mut evicted = None;
        if self.slots.len() >= self.slots_max {
            let victim = self.victim(privileged, partitions, now).ok_or(NoSlot)?;
            self.slots.remove(&victim);
            evicted = Some(victim);
        }
        self.slots.insert(id, Slot { privileged, partitions, created: now, used: now });
        Ok(evicted)
    }

    fn victim(&self, privileged: bool, partitions: usize, now: Millis) -> Option<i32> {
        let (stalest, slot) = self.slots.iter().min_by_key(|(_, slot)| slot.used)?;
        if now - slot.used > EVICTION {
            return Some(*stalest);
        }
        let (id, slot) = self
            .slots
            .iter()
            .filter(|(_, slot)| (privileged && !slot.privileged) || now - slot.created > EVICTION)
            .min_by_key(|(id, slot)| (slot.privileged, slot.partitions, **id))?;
        ((privileged, partitions) >= (slot.privileged, slot.partitions)).then_some(*id)
    }

    /// A request of the session was accepted.
    pub fn used(&mut self, id: i32, partitions: usize, now: Millis) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.used = now;
            slot.partitions = partitions;
        }
    }

    /// The session is gone.
    pub fn close(&mut self, id: i32) -> bool {
        self.slots.remove(&id).is_some()
    }

    /// How many slots are taken.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// No session exists.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// What the client's next request has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRound {
    pub session: i32,
    pub epoch: i32,
    /// New or changed.
    pub asked: Vec<(TopicPartition, Asked)>,
    pub forgotten: Vec<TopicPartition>,
}

/// The client's end of one session: a replica fetcher's.
#[derive(Debug, Default)]
pub struct ClientSession {
    /// 0: none yet.
    id: i32,
    epoch: i32,
    /// What the server knows us to ask.
    known: BTreeMap<TopicPartition, Asked>,
    /// The server kept no session when it was last asked to.
    kept_none: bool,
}

impl ClientSession {
    /// Whether a request may follow one that is not answered yet. Not before the server has named the session: a second full
    /// request would open a second one, and of what changes later each would hear a part.
    pub fn may_pipeline(&self) -> bool {
        self.id != 0
    }

    /// Whether the next request is to be answered at once: until then no other may follow it, whatever comes up.
    pub fn is_opening(&self) -> bool {
        self.id == 0 && !self.kept_none
    }

    /// The next request when `wanted` is all that shall be followed. Counts as sent.
    pub fn round(&mut self, wanted: BTreeMap<TopicPartition, Asked>) -> ClientRound {
        let asked =
            wanted.iter().filter(|(at, asked)| self.known.get(at) != Some(asked)).map(|(at, asked)| (*at, *asked));
        let asked = asked.collect();
        let forgotten = self.known.keys().filter(|at| !wanted.contains_key(at)).copied().collect();
        self.known = wanted;
        ClientRound { session: self.id, epoch: self.take_epoch(), asked, forgotten }
    }

    /// The same with changes only: what is asked anew, and what no more. Everything else stays as it was.
    pub fn round_of_changes(
        &mut self,
        changed: impl IntoIterator<Item = (TopicPartition, Asked)>,
        dropped: impl IntoIterator<Item = TopicPartition>,
    ) -> ClientRound {
        let mut asked = Vec::new();
        let forgotten: Vec<_> = dropped.into_iter().filter(|at| self.known.remove(at).is_some()).collect();
        for (at, wish) in changed {
            if self.known.insert(at, wish) != Some(wish) {
                asked.push((at, wish));
            }
        }
        if self.id == 0 {
            asked = self.known.iter().map(|(at, wish)| (*at, *wish)).collect();
        }
        ClientRound { session: self.id, epoch: self.take_epoch(), asked, forgotten }
    }

    /// The epoch of a request that is sent now. It grows with what is sent, not with what is answered: two requests may be
    /// under way.
    fn take_epoch(&mut self) -> i32 {
        let epoch = self.epoch;
        if self.id != 0 {
            self.epoch = next_epoch(epoch);
        }
        epoch
    }

    /// The server answered with this session id (0: it keeps none) and no error at the top.
    pub fn on_answer(&mut self, session: i32) {
        self.kept_none = session == 0;
        if session == 0 {
            self.start_over();
        } else if self.id != session {
            self.id = session;
            self.epoch = next_epoch(INITIAL_EPOCH);
        }
    }

    /// No answer, or one with an error at the top: start over with a full request (R91). What was asked is forgotten: the
    /// caller says all that it follows now, and nothing that it left while there was no session.
    pub fn reset(&mut self) {
        self.kept_none = false;
        self.start_over();
    }

    fn start_over(&mut self) {
        self.id = 0;
        self.epoch = INITIAL_EPOCH;
        self.known.clear();
    }

    /// What the server knows us to ask of a partition.
    pub fn asked(&self, at: TopicPartition) -> Option<Asked> {
        self.known.get(&at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(partition: i32) -> PartitionKey {
        PartitionKey { topic: TopicKey::Name("t".into()), partition }
    }

    fn asked(offset: i64) -> Asked {
        Asked { offset, bytes_max: 1_000, leader_epoch: None, last_fetched_epoch: None, log_start: None }
    }

    fn quiet(high_watermark: i64) -> Answered {
        Answered {
            error: ErrorCode::None,
            diverging: false,
            preferred_replica: false,
            records: false,
            high_watermark,
            log_start: 0,
        }
    }

    #[test]
    fn epochs_are_accepted_in_order_and_wrap_to_one() {
        let mut session = FetchSession::new(true);
        assert_eq!(session.accept(1, true), Ok(()));
        assert_eq!(session.accept(1, true), Err(ErrorCode::InvalidFetchSessionEpoch));
        assert_eq!(session.accept(2, false), Err(ErrorCode::FetchSessionTopicIdError));
        assert_eq!(session.accept(2, true), Ok(()), "a refused request does not move the epoch");
        assert_eq!(next_epoch(i32::MAX), 1);
        assert_eq!(next_epoch(INITIAL_EPOCH), 1);
    }

    #[test]
    fn a_partition_is_told_only_when_something_changed() {
        let mut session = FetchSession::new(false);
        session.ask(key(0), asked(5));
        assert!(session.must_tell(&key(0), quiet(7)), "the first answer is always sent");
        assert!(!session.must_tell(&key(0), quiet(7)));
        assert!(session.must_tell(&key(0), quiet(8)), "the watermark moved");
        assert!(session.must_tell(&key(0), Answered { log_start: 3, ..quiet(8) }), "the log start moved");
        let refused = Answered { error: ErrorCode::NotLeaderOrFollower, high_watermark: -1, ..quiet(8) };
        assert!(session.must_tell(&key(0), refused));
        assert!(session.must_tell(&key(0), refused), "errors are repeated");
        assert!(session.must_tell(&key(0), Answered { log_start: 3, ..quiet(8) }), "success after an error is told");
    }

    #[test]
    fn a_follower_that_asks_otherwise_is_told_again_what_it_may_have_dropped() {
        // Two requests under way: the records of the first answer move the follower on, and it drops the second answer,
        // which alone told of the watermark.
        let mut session = FetchSession::of_follower(true);
        session.ask(key(0), asked(5));
        assert!(session.must_tell(&key(0), Answered { records: true, ..quiet(5) }));
        assert!(session.must_tell(&key(0), Answered { records: true, ..quiet(8) }));
        session.ask(key(0), asked(5));
        assert!(!session.must_tell(&key(0), quiet(8)), "the same question");
        session.ask(key(0), asked(8));
        assert!(session.must_tell(&key(0), quiet(8)));
        assert!(!session.must_tell(&key(0), quiet(8)));
        let mut consumer = FetchSession::new(true);
        consumer.ask(key(0), asked(5));
        assert!(consumer.must_tell(&key(0), quiet(8)));
        consumer.ask(key(0), asked(8));
        assert!(!consumer.must_tell(&key(0), quiet(8)), "one request at a time: it has heard that");
    }

    #[test]
    fn a_partition_that_gave_records_goes_to_the_end_of_the_order() {
        let mut session = FetchSession::new(false);
        for partition in 0..3 {
            session.ask(key(partition), asked(0));
        }
        session.must_tell(&key(0), Answered { records: true, ..quiet(1) });
        assert_eq!(session.followed().cloned().collect::<Vec<_>>(), [key(1), key(2), key(0)]);
        assert_eq!(session.in_order([key(0), key(9), key(2), key(0)]), [key(2), key(0)]);
        assert!(session.forget(&key(2)));
        assert!(!session.forget(&key(2)));
        session.ask(key(1), asked(4));
        assert_eq!(session.followed().cloned().collect::<Vec<_>>(), [key(1), key(0)], "asking anew keeps the place");
        assert_eq!(session.asked(&key(1)), Some(asked(4)));
    }

    #[test]
    fn a_full_table_makes_room_for_followers_and_from_the_idle_only() {
        let mut table = SessionTable::new(2);
        assert_eq!(table.open(1, false, 10, Millis(0)), Ok(None));
        assert_eq!(table.open(2, false, 5, Millis(0)), Ok(None));
        assert_eq!(table.open(3, false, 50, Millis(1_000)), Err(NoSlot), "young sessions stay");
        assert_eq!(table.open(3, true, 1, Millis(1_000)), Ok(Some(2)), "a follower takes the smallest consumer's slot");
        table.used(1, 10, Millis(100_000));
        table.used(3, 1, Millis(100_000));
        assert_eq!(table.open(4, false, 5, Millis(130_000)), Err(NoSlot), "smaller than the one it would evict");
        assert_eq!(table.open(4, false, 11, Millis(130_000)), Ok(Some(1)));
        table.used(4, 11, Millis(300_000));
        assert_eq!(table.open(5, false, 1, Millis(300_000)), Ok(Some(3)), "idle for more than two minutes");
        assert!(table.close(5));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_client_says_only_what_changed_and_all_of_it_after_an_error() {
        let topic = TopicId::from_bytes([1; 16]);
        let at = |partition| TopicPartition::new(topic, partition);
        let mut client = ClientSession::default();
        let round = client.round([(at(0), asked(1)), (at(1), asked(1))].into());
        assert_eq!((round.session, round.epoch, round.asked.len()), (0, 0, 2));
        client.on_answer(77);
        let round = client.round_of_changes([(at(0), asked(2)), (at(1), asked(1))], []);
        assert_eq!((round.session, round.epoch), (77, 1));
        assert_eq!(round.asked, [(at(0), asked(2))]);
        client.on_answer(77);
        let round = client.round_of_changes([], [at(1), at(9)]);
        assert_eq!((round.epoch, round.asked.len()), (2, 0));
        assert_eq!(round.forgotten, [at(1)]);
        client.reset();
        let round = client.round_of_changes([(at(0), asked(2)), (at(3), asked(3))], []);
        assert_eq!((round.session, round.epoch), (0, 0));
        assert_eq!(round.asked, [(at(0), asked(2)), (at(3), asked(3))]);
    }

    #[test]
    fn what_was_left_without_a_session_is_not_asked_by_the_next_one() {
        let at = |partition| TopicPartition::new(TopicId::from_bytes([1; 16]), partition);
        let mut client = ClientSession::default();
        client.round_of_changes([(at(0), asked(1)), (at(1), asked(1))], []);
        client.reset();
        let round = client.round_of_changes([(at(1), asked(1))], []);
        assert_eq!(round.asked, [(at(1), asked(1))]);
    }
    #[test]
    fn two_requests_under_way_are_of_one_session_and_the_server_takes_both() {
        let at = |partition| TopicPartition::new(TopicId::from_bytes([1; 16]), partition);
        let mut client = ClientSession::default();
        assert!(client.is_opening());
        client.round_of_changes([(at(0), asked(1))], []);
        assert!(!client.may_pipeline(), "a second full request would open a second session");
        client.on_answer(77);
        assert!(client.may_pipeline() && !client.is_opening());
        let mut server = FetchSession::of_follower(true);
        let rounds =
            [client.round_of_changes([(at(0), asked(2))], []), client.round_of_changes([(at(1), asked(1))], [])];
        for round in rounds {
            assert_eq!(server.accept(round.epoch, true), Ok(()), "{round:?}");
        }
        client.on_answer(77);
        client.on_answer(77);
        assert_eq!(server.accept(client.round_of_changes([], []).epoch, true), Ok(()));
        client.reset();
        assert!(!client.may_pipeline() && client.is_opening());
        client.round_of_changes([(at(0), asked(1))], []);
        client.on_answer(0);
        assert!(!client.may_pipeline() && !client.is_opening(), "who keeps no session is not asked without end");
    }
}
