//! A shard with a log that takes what it is given: members join, work and leave, and what is told is in the log.

use std::collections::BTreeMap;

use bytes::Bytes;
use highwater_wire::group_records::OffsetValue;
use highwater_wire::{ErrorCode, Millis, Timestamp};

use super::*;
use crate::group::classic::Rebalance;
use crate::group::{Protocol, Value};

mod commits;
mod rebalances;

/// A shard with a log that takes everything, unless told otherwise.
struct Desk {
    shard: Shard,
    now: Millis,
    out: Out,
    next_token: u64,
    answers: BTreeMap<Token, Answer>,
    /// What was appended and is committed.
    log: Vec<GroupRecord>,
    /// Appends are kept back.
    held: Option<Vec<Write>>,
}

impl Desk {
    fn new() -> Self {
        Self::with(Limits { initial_rebalance_delay: Millis(3_000), ..Limits::default() })
    }

    fn with(limits: Limits) -> Self {
        let now = Millis(1_000);
        Self {
            shard: Shard::new(limits, Loading::default(), at(now)),
            now,
            out: Out::default(),
            next_token: 0,
            answers: BTreeMap::new(),
            log: Vec::new(),
            held: None,
        }
    }

    fn do_it<T>(&mut self, call: impl FnOnce(&mut Shard, Token, Now, &mut Out) -> T) -> (T, Token) {
        let token = Token(self.next_token);
        self.next_token += 1;
        let done = call(&mut self.shard, token, at(self.now), &mut self.out);
        self.settle();
        (done, token)
    }

    /// Carries out what followed, until nothing follows any more.
    fn settle(&mut self) {
        loop {
            for (token, answer) in self.out.answers.drain(..) {
                assert!(self.answers.insert(token, answer).is_none(), "{token:?} is answered twice");
            }
            let writes = std::mem::take(&mut self.out.writes);
            if writes.is_empty() {
                return;
            }
            match &mut self.held {
                Some(held) => held.extend(writes),
                None => writes.into_iter().for_each(|write| self.commit(write)),
            }
        }
    }

    fn commit(&mut self, write: Write) {
        self.log.extend(write.records);
        self.shard.written(write.id, Written::Committed, at(self.now), &mut self.out);
    }

    /// The oldest append that was kept back comes to its end.
    fn release(&mut self, result: Written) {
        let write = self.held.as_mut().expect("appends are held back").remove(0);
        if result != Written::Committed {
            self.shard.written(write.id, result, at(self.now), &mut self.out);
        } else {
            self.commit(write);
        }
        self.settle();
    }

    fn pass(&mut self, millis: u64) {
        let until = self.now + Millis(millis);
        while let Some(due) = self.shard.next_deadline().filter(|due| *due <= until) {
            self.now = due.max(self.now);
            self.shard.tick(at(self.now), &mut self.out);
            self.settle();
        }
        self.now = until;
    }

    fn join(&mut self, request: JoinRequest) -> Token {
        self.do_it(|shard, token, now, out| shard.join(token, &request, now, out)).1
    }

    fn sync(&mut self, member: &str, generation: i32, assignments: &[(&str, &'static str)]) -> Token {
        let request = SyncRequest {
            group: "g".to_owned(),
            speaker: speaker(member, generation),
            protocol_type: None,
            protocol: None,
            assignments: assignments
                .iter()
                .map(|(id, given)| ((*id).to_owned(), Bytes::from_static(given.as_bytes())))
                .collect(),
        };
        self.do_it(|shard, token, now, out| shard.sync(token, &request, now, out)).1
    }

    fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), ErrorCode> {
        let speaker = speaker(member, generation);
        self.do_it(|shard, _, now, out| shard.heartbeat("g", &speaker, now, out)).0
    }

    fn joined(&mut self, token: Token) -> Joined {
        match self.answers.remove(&token) {
            Some(Answer::Joined(joined)) => joined,
            other => panic!("{token:?} is answered {other:?}"),
        }
    }

    fn synced(&mut self, token: Token) -> Synced {
        match self.answers.remove(&token) {
            Some(Answer::Synced(synced)) => synced,
            other => panic!("{token:?} is answered {other:?}"),
        }
    }

    fn stored(&mut self, token: Token) -> Result<(), ErrorCode> {
        match self.answers.remove(&token) {
            Some(Answer::Stored(stored)) => stored,
            other => panic!("{token:?} is answered {other:?}"),
        }
    }

    fn waits(&self, token: Token) -> bool {
        !self.answers.contains_key(&token)
    }

    fn commit_offset(&mut self, member: &str, generation: i32, offset: i64) -> Token {
        let speaker = speaker(member, generation);
        let commits = vec![Commit { topic: "t".to_owned(), partition: 0, value: value(offset, self.now) }];
        self.do_it(|shard, token, now, out| shard.commit(token, "g", &speaker, commits, now, out)).1
    }

    fn offset(&self) -> Option<i64> {
        self.shard.group("g")?.offsets.get("t", 0).map(|value| value.offset)
    }

    fn state(&self) -> Option<State> {
        self.shard.group("g").map(ClassicGroup::state)
    }

    /// What the next coordinator makes of the log.
    fn next_coordinator(&self) -> Shard {
        let mut loading = Loading::default();
        for record in &self.log {
            let value = record.value.as_ref().map(|value| match value {
                Value::Offset(offset) => offset.encode(),
                Value::Group(group) => group.encode(),
            });
            loading.record(&record.key.encode().unwrap(), value.as_deref()).unwrap();
        }
        Shard::new(Limits::default(), loading, at(self.now))
    }

    /// Two members `a` (who leads) and `b` in a stable generation 1.
    fn stable() -> Self {
        let mut desk = Self::new();
        let (a, b) = (desk.join(member("a")), desk.join(member("b")));
        desk.pass(6_000);
        assert_eq!((desk.joined(a).generation, desk.joined(b).generation), (1, 1));
        let b = desk.sync("b", 1, &[]);
        let a = desk.sync("a", 1, &[("a", "A"), ("b", "B")]);
        assert_eq!((desk.synced(a).assignment, desk.synced(b).assignment), ("A".into(), "B".into()));
        desk
    }
}

fn at(now: Millis) -> Now {
    Now { mono: now, wall: Timestamp(i64::try_from(now.0).unwrap()) }
}

fn speaker(member: &str, generation: i32) -> Speaker {
    Speaker { member_id: member.to_owned(), instance: None, generation }
}

fn value(offset: i64, now: Millis) -> OffsetValue {
    OffsetValue { offset, leader_epoch: 3, metadata: String::new(), committed_at: at(now).wall, expires_at: None }
}

/// A new member that is to be called `name`, of a client that does not ask for its id first.
fn member(name: &str) -> JoinRequest {
    JoinRequest {
        group: "g".to_owned(),
        member_id: String::new(),
        instance: None,
        client_id: "client".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        rebalance_timeout: Millis(60_000),
        session_timeout: Millis(10_000),
        protocol_type: "consumer".to_owned(),
        protocols: vec![Protocol { name: "range".to_owned(), metadata: subscription("t") }],
        fresh_id: name.to_owned(),
        requires_known_id: false,
        skips_assignment: false,
        reason: String::new(),
    }
}

/// The same, once it knows its id.
fn again(name: &str) -> JoinRequest {
    JoinRequest { member_id: name.to_owned(), ..member(name) }
}

/// A static member.
fn fixed(instance: &str, fresh: &str) -> JoinRequest {
    JoinRequest { instance: Some(instance.to_owned()), ..member(fresh) }
}

fn subscription(topic: &str) -> Bytes {
    let mut bytes = vec![0, 0, 0, 0, 0, 1, 0, u8::try_from(topic.len()).unwrap()];
    bytes.extend(topic.as_bytes());
    bytes.extend([0xff; 4]);
    bytes.into()
}
