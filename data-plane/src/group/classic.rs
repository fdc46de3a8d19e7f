//! One group of the classic protocol: who is in it, which generation it has, and what it waits for.
//!
//! ```text
//! Empty ──first join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──assigned──► Stable
//!   ▲                        ▲        │ nobody left                              │                             │
//!   └────────────────────────│────────┘                                          │    somebody joins, leaves,  │
//!                            └───────────────────────────────────────────────────┴──────  is silent  ──────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use highwater_wire::group_records::{GroupKey, GroupValue};
use highwater_wire::{ErrorCode, Millis, Timestamp};

use super::member::Member;
use super::offsets::Offsets;
use super::shard::{Pending, Writes};
use super::{Answer, GroupRecord, Joined, Limits, Out, Speaker, Synced, Token, Value, WriteId};
use crate::replica::message::Now;

mod joining;
mod working;

/// Generations whose beginning is remembered.
const HISTORY: usize = 32;

/// What a group is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nobody is in it; it may have offsets.
    Empty,
    /// Its members are to join, all of them.
    PreparingRebalance,
    /// They have joined; the leader is to say who does what.
    CompletingRebalance,
    Stable,
}

impl State {
    /// As Kafka's tools print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
        }
    }
}

/// While members join.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Round {
    /// Whoever has not joined by then is left out.
    until: Millis,
    /// Of the first round of an empty group: it waits for more as long as more come, up to here.
    initial: Option<Initial>,
    why: String,
    began: Now,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Initial {
    until_at_most: Millis,
    grew: bool,
}

/// How a generation came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebalance {
    pub generation: i32,
    /// What set it off.
    pub why: String,
    pub began: Timestamp,
    /// Until all had joined.
    pub lasted: Millis,
    /// Who was in it then.
    pub members: usize,
}

#[derive(Debug, Clone)]
pub struct ClassicGroup {
    pub id: String,
    state: State,
    state_since: Timestamp,
    generation: i32,
    protocol_type: Option<String>,
    protocol: Option<String>,
    leader: Option<String>,
    members: BTreeMap<String, Member>,
    /// Instance → member (KIP-345).
    instances: BTreeMap<String, String>,
    /// Ids that were handed out and have not joined yet (KIP-394), with the time they are forgotten.
    handed_out: BTreeMap<String, Millis>,
    round: Option<Round>,
    /// Who has joined this generation and not asked for its assignment, and how long it may take.
    unsynced: BTreeSet<String>,
    unsynced_until: Millis,
    /// The leader's assignment is on its way to the log.
    storing: Option<WriteId>,
    pub offsets: Offsets,
    history: VecDeque<Rebalance>,
}

/// What a call may use.
pub struct Ctx<'a> {
    pub now: Now,
    pub limits: &'a Limits,
    pub writes: &'a mut Writes,
    pub out: &'a mut Out,
}

impl Ctx<'_> {
    fn answer(&mut self, token: Token, answer: Answer) {
        self.out.answers.push((token, answer));
    }
}

impl ClassicGroup {
    /// Without members and offsets.
    pub fn new(id: String, now: Now) -> Self {
        Self {
            id,
            state: State::Empty,
            state_since: now.wall,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            handed_out: BTreeMap::new(),
            round: None,
            unsynced: BTreeSet::new(),
            unsynced_until: Millis::MAX,
            storing: None,
            offsets: Offsets::default(),
            history: VecDeque::new(),
        }
    }

    /// As a former coordinator wrote it. Its members get a whole session to be heard of.
    pub fn loaded(id: String, value: GroupValue, now: Now) -> Self {
        let mut group = Self::new(id, now);
        group.generation = value.generation;
        group.protocol_type = Some(value.protocol_type).filter(|name| !name.is_empty());
        group.state_since = if value.state_since.0 >= 0 { value.state_since } else { now.wall };
        if value.members.is_empty() {
            return group;
        }
        group.state = State::Stable;
        let protocol = value.protocol.unwrap_or_default();
        for member in value.members {
            let member = Member::loaded(member, &protocol, now.mono);
            if let Some(instance) = &member.instance {
                group.instances.insert(instance.clone(), member.id.clone());
            }
            group.members.insert(member.id.clone(), member);
        }
        group.leader = value.leader.filter(|id| group.members.contains_key(id));
        group.protocol = Some(protocol);
        group
    }

    pub const fn state(&self) -> State {
        self.state
    }

    /// When it entered its state.
    pub const fn state_since(&self) -> Timestamp {
        self.state_since
    }

    pub const fn generation(&self) -> i32 {
        self.generation
    }

    /// `consumer`, `connect`, …; `None` for one that only ever committed.
    pub fn protocol_type(&self) -> Option<&str> {
        self.protocol_type.as_deref()
    }

    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    pub fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    /// In the order of their ids.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Newest last.
    pub fn history(&self) -> impl Iterator<Item = &Rebalance> {
        self.history.iter()
    }

    /// When something may become due. Never later than it is; being heard of moves it on without being told here.
    pub fn next_deadline(&self) -> Option<Millis> {
        let sessions = self.members.values().filter_map(Member::session_end);
        let handed_out = self.handed_out.values().copied();
        let round = self.round.as_ref().map(|round| round.until);
        let unsynced = (!self.unsynced.is_empty()).then_some(self.unsynced_until);
        sessions.chain(handed_out).chain(round).chain(unsynced).min()
    }

    /// Nobody is in it, and nobody was told an id to join with.
    pub fn is_deserted(&self) -> bool {
        self.state == State::Empty && self.handed_out.is_empty()
    }

    /// The record that takes it back; `None` where none was ever written.
    pub fn tombstone(&self) -> Option<GroupRecord> {
        let key = GroupKey::Group { group: self.id.clone() };
        (self.generation > 0).then_some(GroupRecord { key, value: None })
    }

    /// As it is to be written.
    fn record(&self) -> GroupRecord {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let value = GroupValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_since: self.state_since,
            members: self.members.values().map(|member| member.value(protocol)).collect(),
        };
        GroupRecord { key: GroupKey::Group { group: self.id.clone() }, value: Some(Value::Group(value)) }
    }

    fn enter(&mut self, state: State, now: Now) {
        self.state = state;
        self.state_since = now.wall;
    }

    /// That a member is who it says (R290): the instance is not another's (82), it is in the group (25), and in this
    /// generation (22).
    fn check(&self, speaker: &Speaker) -> Result<(), ErrorCode> {
        self.check_member(&speaker.member_id, speaker.instance.as_deref())?;
        if speaker.generation == self.generation { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
    }

    fn check_member(&self, member_id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                Some(id) if id == member_id => {}
                Some(_) => return Err(ErrorCode::FencedInstanceId),
                None => return Err(ErrorCode::UnknownMemberId),
            }
        }
        if self.members.contains_key(member_id) { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }

    /// Whether one could join with this.
    fn could_take(&self, protocol_type: &str, mut protocols: impl Iterator<Item = impl AsRef<str>>) -> bool {
        if self.members.is_empty() {
            return !protocol_type.is_empty() && protocols.next().is_some();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.any(|name| self.members.values().all(|member| member.speaks(name.as_ref())))
    }

    /// What most members like best of what all of them speak; of equals what the leader, or else the first, likes better.
    fn chosen_protocol(&self) -> Option<String> {
        let leader =
            self.leader.as_ref().and_then(|id| self.members.get(id)).or_else(|| self.members.values().next())?;
        let shared = |name: &str| self.members.values().all(|member| member.speaks(name));
        let votes = |name: &str| {
            let first =
                |member: &Member| member.protocols.iter().find(|known| shared(&known.name)).map(|p| p.name == name);
            self.members.values().filter(|member| first(member) == Some(true)).count()
        };
        let mut best: Option<(usize, &str)> = None;
        for candidate in leader.protocols.iter().map(|known| known.name.as_str()).filter(|name| shared(name)) {
            let votes = votes(candidate);
            if best.is_none_or(|(most, _)| votes > most) {
                best = Some((votes, candidate));
            }
        }
        best.map(|(_, name)| name.to_owned())
    }

    /// How long members may take to join: as long as the most patient of them.
    fn patience(&self) -> Millis {
        self.members.values().map(|member| member.rebalance_timeout).max().unwrap_or(Millis::ZERO)
    }

    /// Takes a member out; whoever waits for it is told. `false`: it was not there.
    fn take_out(&mut self, id: &str, told: ErrorCode, ctx: &mut Ctx<'_>) -> bool {
        let Some(member) = self.members.remove(id) else { return false };
        if let Some((token, _)) = member.joining {
            ctx.answer(token, Answer::Joined(Joined::refused(told, id)));
        }
        if let Some(token) = member.syncing {
            ctx.answer(token, Answer::Synced(Synced::refused(told)));
        }
        if let Some(instance) = &member.instance
            && self.instances.get(instance).is_some_and(|held| held == id)
        {
            self.instances.remove(instance);
        }
        self.unsynced.remove(id);
        if self.leader.as_deref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
        true
    }

    /// A member is gone: the others are to share what it had.
    fn after_departure(&mut self, why: String, ctx: &mut Ctx<'_>) {
        match self.state {
            State::Stable | State::CompletingRebalance => self.prepare(why, ctx),
            State::PreparingRebalance => self.complete_if_all_joined(ctx),
            State::Empty => {}
        }
    }

    /// Everybody who waits for an assignment is sent back to join.
    fn send_back(&mut self, told: ErrorCode, ctx: &mut Ctx<'_>) {
        for member in self.members.values_mut() {
            member.assignment.clear();
            if let Some(token) = member.syncing.take() {
                member.heard(ctx.now.mono);
                ctx.out.answers.push((token, Answer::Synced(Synced::refused(told))));
            }
        }
    }

    fn write(&mut self, pending: Pending, ctx: &mut Ctx<'_>) -> WriteId {
        ctx.writes.add(vec![self.record()], pending, ctx.out)
    }
}
