//! Every group whose records lie in one partition of `__consumer_offsets`.

use std::collections::{BTreeMap, BTreeSet};

use highwater_wire::group_records::OffsetValue;
use highwater_wire::{ErrorCode, Millis};

use super::classic::{ClassicGroup, Ctx, State};
use super::loading::Loading;
use super::offsets;
use super::{
    Answer, GroupRecord, JoinRequest, Joined, Leaver, Limits, Out, Speaker, SyncRequest, Synced, Token, Write, WriteId,
    Written, append_error,
};
use crate::replica::message::Now;

#[cfg(test)]
mod tests;

/// What happens when a [`Write`] has come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pending {
    /// Nothing depends on it.
    Nothing,
    /// The leader's assignment.
    Assignment { group: String, generation: i32 },
    /// A static member goes on under a new id.
    Replaced { token: Token, joined: Joined },
    /// Positions committed or taken back. `token`: who is told.
    Offsets { group: String, offsets: Vec<(String, i32, Option<OffsetValue>)>, token: Option<Token> },
    /// A group taken back with all that it committed.
    Forgotten { group: String, token: Option<Token> },
}

/// Writes on their way.
#[derive(Debug, Default)]
pub struct Writes {
    next: u64,
    pending: BTreeMap<WriteId, Pending>,
}

impl Writes {
    pub(super) fn add(&mut self, records: Vec<GroupRecord>, pending: Pending, out: &mut Out) -> WriteId {
        let id = WriteId(self.next);
        self.next += 1;
        self.pending.insert(id, pending);
        out.writes.push(Write { id, records });
        id
    }

    /// Topics and partitions that a group committed, or took back, and that may not be in the log yet.
    fn positions_of(&self, id: &str) -> BTreeSet<(&str, i32)> {
        let of_group = self.pending.values().filter_map(|pending| match pending {
            Pending::Offsets { group, offsets, .. } if group == id => Some(offsets),
            _ => None,
        });
        of_group.flatten().map(|(topic, partition, _)| (topic.as_str(), *partition)).collect()
    }
}

/// One position of an OffsetCommit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub topic: String,
    pub partition: i32,
    pub value: OffsetValue,
}

pub struct Shard {
    limits: Limits,
    groups: BTreeMap<String, ClassicGroup>,
    writes: Writes,
    /// When a group is to be looked at; an earlier time than needed does no harm, a group has at most one.
    alarms: BTreeSet<(Millis, String)>,
    alarm_of: BTreeMap<String, Millis>,
}

impl Shard {
    /// With what its log says.
    pub fn new(limits: Limits, loaded: Loading, now: Now) -> Self {
        let mut shard = Self {
            limits,
            groups: BTreeMap::new(),
            writes: Writes::default(),
            alarms: BTreeSet::new(),
            alarm_of: BTreeMap::new(),
        };
        for (id, value) in loaded.groups {
            shard.groups.insert(id.clone(), ClassicGroup::loaded(id, value, now));
        }
        for (id, offsets) in loaded.offsets {
            if !offsets.is_empty() {
                let group = shard.groups.entry(id.clone()).or_insert_with(|| ClassicGroup::new(id, now));
                group.offsets = offsets;
            }
        }
        let ids: Vec<String> = shard.groups.keys().cloned().collect();
        ids.iter().for_each(|id| shard.wind(id));
        shard
    }

    /// Other settings hold from now on.
    pub fn set(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub fn group(&self, id: &str) -> Option<&ClassicGroup> {
        self.groups.get(id)
    }

    /// In the order of their ids.
    pub fn groups(&self) -> impl Iterator<Item = &ClassicGroup> {
        self.groups.values()
    }

    /// When [`Self::tick`] is due.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Calls `act` for a group that exists, and looks again when something of it is due.
    fn with<T>(
        &mut self,
        id: &str,
        now: Now,
        out: &mut Out,
        act: impl FnOnce(&mut ClassicGroup, &mut Ctx<'_>) -> T,
    ) -> Option<T> {
        let Self { limits, groups, writes, .. } = self;
        let group = groups.get_mut(id)?;
        let done = act(group, &mut Ctx { now, limits, writes, out });
        self.wind(id);
        Some(done)
    }

    /// Sets the alarm of a group, unless it rings early enough already.
    fn wind(&mut self, id: &str) {
        let Some(at) = self.groups.get(id).and_then(ClassicGroup::next_deadline) else { return };
        let set = self.alarm_of.get(id).copied();
        if set.is_some_and(|set| set <= at) {
            return;
        }
        if let Some(set) = set {
            self.alarms.remove(&(set, id.to_owned()));
        }
        self.alarms.insert((at, id.to_owned()));
        self.alarm_of.insert(id.to_owned(), at);
    }

    /// JoinGroup
    pub fn join(&mut self, token: Token, request: &JoinRequest, now: Now, out: &mut Out) {
        let refuse = |error, out: &mut Out| {
            out.answers.push((token, Answer::Joined(Joined::refused(error, &request.member_id))));
        };
        if request.group.is_empty() {
            return refuse(ErrorCode::InvalidGroupId, out);
        }
        if request.session_timeout < self.limits.session_min || request.session_timeout > self.limits.session_max {
            return refuse(ErrorCode::InvalidSessionTimeout, out);
        }
        if !self.groups.contains_key(&request.group) {
            if !request.member_id.is_empty() {
                return refuse(ErrorCode::UnknownMemberId, out);
            }
            self.groups.insert(request.group.clone(), ClassicGroup::new(request.group.clone(), now));
        }
        self.with(&request.group, now, out, |group, ctx| group.join(token, request, ctx));
        // A first request that was refused leaves nothing behind.
        self.drop_if_never_used(&request.group);
    }

    /// SyncGroup
    pub fn sync(&mut self, token: Token, request: &SyncRequest, now: Now, out: &mut Out) {
        let refused = if request.group.is_empty() { ErrorCode::InvalidGroupId } else { ErrorCode::UnknownMemberId };
        if self.with(&request.group, now, out, |group, ctx| group.sync(token, request, ctx)).is_none() {
            out.answers.push((token, Answer::Synced(Synced::refused(refused))));
        }
    }

    /// Heartbeat
    ///
    /// # Errors
    /// 24, 25, 22, 82; 27: join again.
    pub fn heartbeat(&mut self, group: &str, speaker: &Speaker, now: Now, out: &mut Out) -> Result<(), ErrorCode> {
        if group.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        let heard = self.with(group, now, out, |group, ctx| group.heartbeat(speaker, ctx));
        heard.unwrap_or(Err(ErrorCode::UnknownMemberId))
    }

    /// LeaveGroup: what became of each.
    ///
    /// # Errors
    /// 24, 25: no such group.
    pub fn leave(
        &mut self,
        group: &str,
        leavers: &[Leaver],
        now: Now,
        out: &mut Out,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        if group.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        let left =
            self.with(group, now, out, |group, ctx| leavers.iter().map(|leaver| group.leave(leaver, ctx)).collect());
        left.ok_or(ErrorCode::UnknownMemberId)
    }

    /// OffsetCommit. The caller has refused positions that cannot be kept; the others are stored together.
    pub fn commit(
        &mut self,
        token: Token,
        group: &str,
        speaker: &Speaker,
        commits: Vec<Commit>,
        now: Now,
        out: &mut Out,
    ) {
        if let Err(fault) = self.check_commit(group, speaker, now, out) {
            out.answers.push((token, Answer::Stored(Err(fault))));
            return;
        }
        if commits.is_empty() {
            out.answers.push((token, Answer::Stored(Ok(()))));
            return;
        }
        let commits = commits.into_iter().map(|commit| (commit.topic, commit.partition, Some(commit.value))).collect();
        self.store(group, commits, Some(token), out);
    }

    fn check_commit(&mut self, id: &str, speaker: &Speaker, now: Now, out: &mut Out) -> Result<(), ErrorCode> {
        if id.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        if let Some(checked) = self.with(id, now, out, |group, ctx| group.check_commit(speaker, ctx)) {
            return checked;
        }
        if speaker.generation >= 0 {
            return Err(ErrorCode::IllegalGeneration);
        }
        // A consumer that assigns partitions to itself has no group but for its positions.
        self.groups.insert(id.to_owned(), ClassicGroup::new(id.to_owned(), now));
        Ok(())
    }

    fn store(
        &mut self,
        group: &str,
        offsets: Vec<(String, i32, Option<OffsetValue>)>,
        token: Option<Token>,
        out: &mut Out,
    ) {
        let record = |(topic, partition, value): &(String, i32, Option<OffsetValue>)| {
            offsets::record(group, topic, *partition, value.clone())
        };
        let records = offsets.iter().map(record).collect();
        self.writes.add(records, Pending::Offsets { group: group.to_owned(), offsets, token }, out);
    }

    /// OffsetDelete (KIP-496): which of these may not be taken back, and why; the others are, and `token` is told then.
    ///
    /// # Errors
    /// 24, 69; 68: it has members whose subscriptions are not known.
    pub fn delete_offsets(
        &mut self,
        token: Token,
        group: &str,
        named: &[(String, i32)],
        out: &mut Out,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        if group.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        let known = self.groups.get(group).ok_or(ErrorCode::GroupIdNotFound)?;
        let subscribed = match known.state() {
            State::Empty => BTreeSet::new(),
            _ => known.subscribed().ok_or(ErrorCode::NonEmptyGroup)?,
        };
        let may = |topic: &String| {
            if subscribed.contains(topic) { Err(ErrorCode::GroupSubscribedToTopic) } else { Ok(()) }
        };
        let verdicts: Vec<_> = named.iter().map(|(topic, _)| may(topic)).collect();
        let gone: Vec<_> = named
            .iter()
            .filter(|(topic, partition)| may(topic).is_ok() && known.offsets.get(topic, *partition).is_some())
            .map(|(topic, partition)| (topic.clone(), *partition, None))
            .collect();
        if gone.is_empty() {
            out.answers.push((token, Answer::Stored(Ok(()))));
        } else {
            self.store(group, gone, Some(token), out);
        }
        Ok(verdicts)
    }

    /// DeleteGroups, of one: it is gone when `token` is told so.
    ///
    /// # Errors
    /// 24, 69; 68: it has members.
    pub fn delete(&mut self, token: Token, group: &str, out: &mut Out) -> Result<(), ErrorCode> {
        if group.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        let known = self.groups.get(group).ok_or(ErrorCode::GroupIdNotFound)?;
        if !known.is_deserted() {
            return Err(ErrorCode::NonEmptyGroup);
        }
        self.forget(group, Some(token), out);
        Ok(())
    }

    /// Takes back all that a group wrote.
    fn forget(&mut self, id: &str, token: Option<Token>, out: &mut Out) {
        let Some(group) = self.groups.get(id) else { return };
        // What is on its way lies in the log before this.
        let mut positions = self.writes.positions_of(id);
        positions.extend(group.offsets.iter().map(|(topic, partition, _)| (topic, partition)));
        let offsets = positions.into_iter().map(|(topic, partition)| offsets::record(id, topic, partition, None));
        let records: Vec<_> = offsets.chain(group.tombstone()).collect();
        if records.is_empty() {
            self.groups.remove(id);
            if let Some(token) = token {
                out.answers.push((token, Answer::Stored(Ok(()))));
            }
            return;
        }
        self.writes.add(records, Pending::Forgotten { group: id.to_owned(), token }, out);
    }

    /// A [`Write`] has come to its end.
    pub fn written(&mut self, id: WriteId, result: Written, now: Now, out: &mut Out) {
        let Some(pending) = self.writes.pending.remove(&id) else { return };
        let (in_log, told) = match result {
            Written::Committed => (true, Ok(())),
            Written::Thin => (true, Err(ErrorCode::NotEnoughReplicasAfterAppend)),
            Written::Refused(error) => (false, Err(error)),
        };
        let mut tell = |token: Option<Token>| {
            if let Some(token) = token {
                out.answers.push((token, Answer::Stored(told.map_err(append_error))));
            }
        };
        match pending {
            Pending::Nothing => {}
            Pending::Offsets { group, offsets, token } => {
                if in_log {
                    // It may have been deleted meanwhile; this came behind that.
                    let new = || ClassicGroup::new(group.clone(), now);
                    let known = self.groups.entry(group.clone()).or_insert_with(new);
                    offsets
                        .into_iter()
                        .for_each(|(topic, partition, value)| known.offsets.apply(topic, partition, value));
                }
                tell(token);
                self.drop_if_never_used(&group);
            }
            Pending::Forgotten { group, token } => {
                // Whoever joined meanwhile goes on in it.
                if in_log && let Some(known) = self.groups.get_mut(&group) {
                    known.offsets = offsets::Offsets::default();
                    if known.is_deserted() {
                        self.groups.remove(&group);
                    }
                }
                tell(token);
            }
            Pending::Replaced { token, joined } => {
                let answer = match told {
                    Ok(()) => joined,
                    Err(error) => Joined::refused(append_error(error), &joined.member_id),
                };
                out.answers.push((token, Answer::Joined(answer)));
            }
            Pending::Assignment { group, generation } => {
                let told = if in_log { Ok(()) } else { told };
                self.with(&group, now, out, |group, ctx| group.assignment_written(id, generation, told, ctx));
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now, out: &mut Out) {
        while let Some((at, id)) = self.alarms.first().cloned() {
            if at > now.mono {
                break;
            }
            self.alarms.remove(&(at, id.clone()));
            self.alarm_of.remove(&id);
            self.with(&id, now, out, |group, ctx| group.tick(ctx));
            self.drop_if_never_used(&id);
        }
    }

    /// Positions that nobody needs any more, and groups of which nothing is left (R292). Due every
    /// `offsets.retention.check.interval.ms`.
    pub fn expire(&mut self, now: Now, out: &mut Out) {
        let ids: Vec<String> = self.groups.keys().cloned().collect();
        for id in ids {
            let Some(group) = self.groups.get(&id) else { continue };
            let empty_since = (group.state() == State::Empty).then(|| {
                // One that only commits is not "empty since": each position counts for itself.
                if group.protocol_type().is_some() { group.state_since() } else { highwater_wire::Timestamp(0) }
            });
            let subscribed = if empty_since.is_none() { group.subscribed() } else { None };
            let mut expired =
                group.offsets.expired(now.wall, self.limits.offsets_retention, empty_since, subscribed.as_ref());
            let all = expired.len() == group.offsets.iter().count();
            // A position that is on its way is young, however old the one is that is known.
            let on_their_way = self.writes.positions_of(&id);
            expired.retain(|(topic, partition)| !on_their_way.contains(&(topic.as_str(), *partition)));
            if all && group.is_deserted() && on_their_way.is_empty() {
                self.forget(&id, None, out);
            } else if !expired.is_empty() {
                let gone = expired.into_iter().map(|(topic, partition)| (topic, partition, None)).collect();
                self.store(&id, gone, None, out);
            }
        }
    }

    /// A group that holds nothing, was never written, and has nothing on its way.
    fn drop_if_never_used(&mut self, id: &str) {
        let Some(group) = self.groups.get(id) else { return };
        let on_its_way = |pending: &Pending| match pending {
            Pending::Offsets { group, .. } | Pending::Forgotten { group, .. } | Pending::Assignment { group, .. } => {
                group == id
            }
            Pending::Nothing | Pending::Replaced { .. } => false,
        };
        let unused = group.is_deserted() && group.offsets.is_empty() && group.tombstone().is_none();
        if unused && !self.writes.pending.values().any(on_its_way) {
            self.groups.remove(id);
        }
    }

    /// Another coordinator takes over: everybody who waits is told to look for it.
    pub fn unload(mut self, now: Now, out: &mut Out) {
        let Self { limits, groups, writes, .. } = &mut self;
        for group in groups.values_mut() {
            group.unload(&mut Ctx { now, limits, writes, out });
        }
        for pending in std::mem::take(&mut writes.pending).into_values() {
            match pending {
                Pending::Offsets { token: Some(token), .. } | Pending::Forgotten { token: Some(token), .. } => {
                    out.answers.push((token, Answer::Stored(Err(ErrorCode::NotCoordinator))));
                }
                Pending::Replaced { token, joined } => {
                    let refused = Joined::refused(ErrorCode::NotCoordinator, &joined.member_id);
                    out.answers.push((token, Answer::Joined(refused)));
                }
                Pending::Offsets { token: None, .. }
                | Pending::Forgotten { token: None, .. }
                | Pending::Nothing
                | Pending::Assignment { .. } => {}
            }
        }
    }
}
