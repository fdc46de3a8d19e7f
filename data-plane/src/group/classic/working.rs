//! Members work: they take their assignments, are heard of, leave, or fall silent.

use std::collections::BTreeMap;

use bytes::Bytes;
use highwater_wire::ErrorCode;

use super::joining::because;
use super::{ClassicGroup, Ctx, State};
use crate::group::shard::Pending;
use crate::group::{Answer, Leaver, Speaker, SyncRequest, Synced, Token, WriteId, append_error};

impl ClassicGroup {
    /// SyncGroup: the leader says who does what; everybody is told when that is in the log.
    pub fn sync(&mut self, token: Token, request: &SyncRequest, ctx: &mut Ctx<'_>) {
        if let Err(fault) = self.check_sync(request) {
            ctx.answer(token, Answer::Synced(Synced::refused(fault)));
            return;
        }
        let id = &request.speaker.member_id;
        self.unsynced.remove(id);
        if self.state == State::Stable {
            let synced = self.synced(id);
            if let Some(member) = self.members.get_mut(id) {
                member.heard(ctx.now.mono);
            }
            ctx.answer(token, Answer::Synced(synced));
            return;
        }
        if let Some(before) = self.members.get_mut(id).and_then(|member| member.syncing.replace(token)) {
            ctx.answer(before, Answer::Synced(Synced::refused(ErrorCode::RebalanceInProgress)));
        }
        if self.leader.as_ref() == Some(id) && self.storing.is_none() {
            let given: BTreeMap<&str, &Bytes> =
                request.assignments.iter().map(|(id, bytes)| (id.as_str(), bytes)).collect();
            for member in self.members.values_mut() {
                // Whom it names and who is not in the group is nobody's business here.
                member.assignment = given.get(member.id.as_str()).map(|bytes| Bytes::clone(bytes)).unwrap_or_default();
            }
            let pending = Pending::Assignment { group: self.id.clone(), generation: self.generation };
            self.storing = Some(self.write(pending, ctx));
        }
    }

    fn check_sync(&self, request: &SyncRequest) -> Result<(), ErrorCode> {
        self.check(&request.speaker)?;
        let differs = |told: &Option<String>, ours: &Option<String>| told.is_some() && told != ours;
        if differs(&request.protocol_type, &self.protocol_type) || differs(&request.protocol, &self.protocol) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        match self.state {
            State::Empty => Err(ErrorCode::UnknownMemberId),
            State::PreparingRebalance => Err(ErrorCode::RebalanceInProgress),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    fn synced(&self, id: &str) -> Synced {
        Synced {
            error: ErrorCode::None,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: self.members.get(id).map(|member| member.assignment.clone()).unwrap_or_default(),
        }
    }

    /// The assignment of this generation is in the log, or is not.
    pub fn assignment_written(
        &mut self,
        id: WriteId,
        generation: i32,
        result: Result<(), ErrorCode>,
        ctx: &mut Ctx<'_>,
    ) {
        if self.state != State::CompletingRebalance || self.generation != generation || self.storing != Some(id) {
            return;
        }
        self.storing = None;
        if let Err(error) = result {
            self.send_back(append_error(error), ctx);
            self.prepare(format!("the assignment could not be stored: {}", error.name()), ctx);
            return;
        }
        self.enter(State::Stable, ctx.now);
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let synced = self.synced(&id);
            let Some(member) = self.members.get_mut(&id) else { continue };
            let Some(token) = member.syncing.take() else { continue };
            member.heard(ctx.now.mono);
            ctx.answer(token, Answer::Synced(synced));
        }
    }

    /// Heartbeat
    ///
    /// # Errors
    /// As for everything a member says, and 27: it is to join again.
    pub fn heartbeat(&mut self, speaker: &Speaker, ctx: &Ctx<'_>) -> Result<(), ErrorCode> {
        self.check(speaker)?;
        if let Some(member) = self.members.get_mut(&speaker.member_id) {
            member.heard(ctx.now.mono);
        }
        match self.state {
            State::Empty => Err(ErrorCode::UnknownMemberId),
            State::PreparingRebalance => Err(ErrorCode::RebalanceInProgress),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    /// LeaveGroup, of one member.
    ///
    /// # Errors
    /// 25, 82
    pub fn leave(&mut self, leaver: &Leaver, ctx: &mut Ctx<'_>) -> Result<(), ErrorCode> {
        let id = match &leaver.instance {
            // An administrator names the instance alone.
            Some(instance) if leaver.member_id.is_empty() => {
                self.instances.get(instance).cloned().ok_or(ErrorCode::UnknownMemberId)?
            }
            _ if leaver.instance.is_none() && self.handed_out.remove(&leaver.member_id).is_some() => {
                self.complete_if_all_joined(ctx);
                return Ok(());
            }
            instance => {
                self.check_member(&leaver.member_id, instance.as_deref())?;
                leaver.member_id.clone()
            }
        };
        self.take_out(&id, ErrorCode::UnknownMemberId, ctx);
        self.after_departure(because(&format!("{id} left"), &leaver.reason), ctx);
        Ok(())
    }

    /// Whether this speaker may commit offsets (R290); it is heard of by it.
    ///
    /// # Errors
    /// 25, 22, 82; 27 while the assignments of a new generation are not known.
    pub fn check_commit(&mut self, speaker: &Speaker, ctx: &Ctx<'_>) -> Result<(), ErrorCode> {
        if speaker.generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        self.check(speaker)?;
        if self.state == State::CompletingRebalance {
            return Err(ErrorCode::RebalanceInProgress);
        }
        if let Some(member) = self.members.get_mut(&speaker.member_id) {
            member.heard(ctx.now.mono);
        }
        Ok(())
    }

    /// What is due by now: sessions that ended, ids nobody joined with, rounds that took long enough.
    pub fn tick(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        let before = self.handed_out.len();
        self.handed_out.retain(|_, until| *until > now);
        if self.handed_out.len() < before {
            self.complete_if_all_joined(ctx);
        }
        let silent: Vec<String> =
            self.members.values().filter(|member| member.is_due(now)).map(|member| member.id.clone()).collect();
        for id in &silent {
            self.take_out(id, ErrorCode::UnknownMemberId, ctx);
        }
        if let Some(first) = silent.first() {
            let others = if silent.len() > 1 { format!(" and {} others", silent.len() - 1) } else { String::new() };
            self.after_departure(format!("the session of {first}{others} ended"), ctx);
        }
        if !self.unsynced.is_empty() && self.unsynced_until <= now {
            let late: Vec<String> = std::mem::take(&mut self.unsynced).into_iter().collect();
            for id in &late {
                self.take_out(id, ErrorCode::UnknownMemberId, ctx);
            }
            self.after_departure(format!("{} did not ask for its assignment in time", late.join(", ")), ctx);
        }
        if self.round.as_ref().is_some_and(|round| round.until <= now) {
            self.round_is_due(ctx);
        }
    }

    /// The topics that its members have subscribed to; `None` where that cannot be told.
    pub fn subscribed(&self) -> Option<std::collections::BTreeSet<String>> {
        if self.protocol_type.as_deref() != Some("consumer") {
            return None;
        }
        let protocol = self.protocol.as_deref()?;
        let mut topics = std::collections::BTreeSet::new();
        for member in self.members.values() {
            topics.extend(highwater_wire::subscription::topics(&member.metadata(protocol))?);
        }
        Some(topics)
    }

    /// Another coordinator takes over: whoever waits is told to look for it.
    pub fn unload(&mut self, ctx: &mut Ctx<'_>) {
        for member in self.members.values_mut() {
            if let Some((token, _)) = member.joining.take() {
                let refused = crate::group::Joined::refused(ErrorCode::NotCoordinator, &member.id);
                ctx.out.answers.push((token, Answer::Joined(refused)));
            }
            if let Some(token) = member.syncing.take() {
                ctx.out.answers.push((token, Answer::Synced(Synced::refused(ErrorCode::NotCoordinator))));
            }
        }
    }
}
