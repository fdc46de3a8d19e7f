//! Members come, and a generation begins when all of them have.

use highwater_wire::{ErrorCode, Millis};

use super::{ClassicGroup, Ctx, HISTORY, Initial, Rebalance, Round, State};
use crate::group::member::Member;
use crate::group::shard::Pending;
use crate::group::{Answer, JoinRequest, Joined, Synced, Token};

impl ClassicGroup {
    /// JoinGroup. The shard has checked the group's id and the session's bounds.
    pub fn join(&mut self, token: Token, request: &JoinRequest, ctx: &mut Ctx<'_>) {
        let fault = if !self.could_take(&request.protocol_type, request.protocols.iter().map(|known| &known.name)) {
            Some(ErrorCode::InconsistentGroupProtocol)
        } else if request.member_id.is_empty() {
            self.join_new(token, request, ctx)
        } else {
            self.join_known(token, request, ctx)
        };
        if let Some(fault) = fault {
            ctx.answer(token, Answer::Joined(Joined::refused(fault, &request.member_id)));
        }
    }

    fn join_new(&mut self, token: Token, request: &JoinRequest, ctx: &mut Ctx<'_>) -> Option<ErrorCode> {
        let id = request.fresh_id.clone();
        if let Some(instance) = &request.instance
            && let Some(former) = self.instances.get(instance).cloned()
        {
            self.replace(token, &former, id, request, ctx);
            return None;
        }
        if self.members.len() + self.handed_out.len() >= ctx.limits.members_max {
            return Some(ErrorCode::GroupMaxSizeReached);
        }
        if request.requires_known_id && request.instance.is_none() {
            self.handed_out.insert(id.clone(), ctx.now.mono + request.session_timeout);
            ctx.answer(token, Answer::Joined(Joined::refused(ErrorCode::MemberIdRequired, &id)));
            return None;
        }
        self.add(token, id, request, ctx);
        None
    }

    fn join_known(&mut self, token: Token, request: &JoinRequest, ctx: &mut Ctx<'_>) -> Option<ErrorCode> {
        let id = &request.member_id;
        if request.instance.is_none() && self.handed_out.remove(id).is_some() {
            self.add(token, id.clone(), request, ctx);
            return None;
        }
        if let Err(fault) = self.check_member(id, request.instance.as_deref()) {
            return Some(fault);
        }
        let same = self.members.get(id).is_some_and(|member| member.protocols == request.protocols);
        let leads = self.leader.as_ref() == Some(id);
        match self.state {
            State::PreparingRebalance => {
                self.rejoin(token, request, ctx);
                self.complete_if_all_joined(ctx);
            }
            // It has not heard of the generation that it is in already.
            State::CompletingRebalance if same => self.tell_again(token, id, ctx),
            // Whoever leads may want everybody to be assigned anew.
            State::Stable if same && !leads => self.tell_again(token, id, ctx),
            State::CompletingRebalance | State::Stable => {
                self.rejoin(token, request, ctx);
                let what = if same { "asks for a new assignment" } else { "changed what it subscribes to" };
                self.prepare(because(&format!("{id} {what}"), &request.reason), ctx);
            }
            State::Empty => return Some(ErrorCode::UnknownMemberId),
        }
        None
    }

    fn add(&mut self, token: Token, id: String, request: &JoinRequest, ctx: &mut Ctx<'_>) {
        if self.members.is_empty() {
            self.protocol_type = Some(request.protocol_type.clone());
        }
        if let Some(instance) = &request.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        self.leader.get_or_insert_with(|| id.clone());
        self.members.insert(id.clone(), Member::joining(id.clone(), token, request, ctx.now.mono));
        if self.state != State::PreparingRebalance {
            self.prepare(because(&format!("{id} joined"), &request.reason), ctx);
            return;
        }
        if let Some(initial) = self.round.as_mut().and_then(|round| round.initial.as_mut()) {
            initial.grew = true;
        }
        self.complete_if_all_joined(ctx);
    }

    /// A known member asks to join; an earlier request of it that still waits is answered.
    fn rejoin(&mut self, token: Token, request: &JoinRequest, ctx: &mut Ctx<'_>) {
        let Some(member) = self.members.get_mut(&request.member_id) else { return };
        member.protocols.clone_from(&request.protocols);
        member.rebalance_timeout = request.rebalance_timeout;
        member.session_timeout = request.session_timeout;
        let before = member.joining.replace((token, request.skips_assignment));
        let id = member.id.clone();
        if let Some((before, _)) = before {
            ctx.answer(before, Answer::Joined(Joined::refused(ErrorCode::RebalanceInProgress, &id)));
        }
    }

    /// A static member is back under a new id, after a restart (KIP-345): it takes the place of its former self.
    fn replace(&mut self, token: Token, former: &str, id: String, request: &JoinRequest, ctx: &mut Ctx<'_>) {
        let Some(mut member) = self.members.remove(former) else { return };
        if let Some((waiting, _)) = member.joining.take() {
            ctx.answer(waiting, Answer::Joined(Joined::refused(ErrorCode::FencedInstanceId, former)));
        }
        if let Some(waiting) = member.syncing.take() {
            ctx.answer(waiting, Answer::Synced(Synced::refused(ErrorCode::FencedInstanceId)));
        }
        let assignment = std::mem::take(&mut member.assignment);
        let former_leader = self.leader.clone();
        if self.leader.as_deref() == Some(former) {
            self.leader = Some(id.clone());
        }
        if self.unsynced.remove(former) {
            self.unsynced.insert(id.clone());
        }
        if let Some(instance) = &request.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        let mut member = Member::joining(id.clone(), token, request, ctx.now.mono);
        member.assignment = assignment;
        self.members.insert(id.clone(), member);
        match self.state {
            State::Stable if self.chosen_protocol() == self.protocol => {
                // It goes on with what it had. The new id is written before it is told, so that it outlives this broker.
                if let Some(member) = self.members.get_mut(&id) {
                    member.joining = None;
                    member.is_new = false;
                    member.heard(ctx.now.mono);
                }
                let mut joined = self.joined(&id);
                if self.leader.as_ref() == Some(&id) && !request.skips_assignment {
                    // It would assign anew if it knew that it leads.
                    joined.leader = former_leader.unwrap_or_default();
                    joined.members.clear();
                }
                joined.skip_assignment = request.skips_assignment && self.leader.as_ref() == Some(&id);
                self.write(Pending::Replaced { token, joined }, ctx);
            }
            State::Stable | State::CompletingRebalance => {
                self.prepare(because(&format!("the static member {id} restarted"), &request.reason), ctx);
            }
            State::PreparingRebalance => self.complete_if_all_joined(ctx),
            State::Empty => {}
        }
    }

    /// What whoever is in this generation is told of it.
    fn joined(&self, id: &str) -> Joined {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let leads = self.leader.as_deref() == Some(id);
        Joined {
            error: ErrorCode::None,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            member_id: id.to_owned(),
            members: if leads {
                self.members.values().map(|member| member.told(protocol)).collect()
            } else {
                Vec::new()
            },
        }
    }

    fn tell_again(&mut self, token: Token, id: &str, ctx: &mut Ctx<'_>) {
        let joined = self.joined(id);
        if let Some(member) = self.members.get_mut(id) {
            member.heard(ctx.now.mono);
        }
        ctx.answer(token, Answer::Joined(joined));
    }

    /// All members are to join again.
    pub(super) fn prepare(&mut self, why: String, ctx: &mut Ctx<'_>) {
        if self.state == State::CompletingRebalance {
            self.send_back(ErrorCode::RebalanceInProgress, ctx);
        }
        self.storing = None;
        self.unsynced.clear();
        let (now, patience) = (ctx.now.mono, self.patience());
        let initial = self.state == State::Empty;
        let until = if initial { now + ctx.limits.initial_rebalance_delay.min(patience) } else { now + patience };
        let initial = initial.then_some(Initial { until_at_most: now + patience, grew: false });
        let waits = initial.is_some() && until > now;
        self.round = Some(Round { until, initial, why, began: ctx.now });
        self.enter(State::PreparingRebalance, ctx.now);
        if !waits {
            self.complete_if_all_joined(ctx);
        }
    }

    /// The round is over when all have joined; the first of an empty group by time alone.
    pub(super) fn complete_if_all_joined(&mut self, ctx: &mut Ctx<'_>) {
        let Some(round) = &self.round else { return };
        let waits = round.initial.is_some() && round.until > ctx.now.mono;
        let all = self.handed_out.is_empty() && self.members.values().all(|member| member.joining.is_some());
        if !waits && all {
            self.complete(ctx);
        }
    }

    /// The time of the round is up.
    pub(super) fn round_is_due(&mut self, ctx: &mut Ctx<'_>) {
        let Some(round) = &mut self.round else { return };
        if let Some(initial) = &mut round.initial
            && std::mem::take(&mut initial.grew)
            && initial.until_at_most > ctx.now.mono
        {
            round.until = (ctx.now.mono + ctx.limits.initial_rebalance_delay).min(initial.until_at_most);
            return;
        }
        self.complete(ctx);
    }

    /// Whoever has joined is in the next generation, and static members, whose session alone decides.
    fn complete(&mut self, ctx: &mut Ctx<'_>) {
        let absent = |member: &&Member| member.joining.is_none() && member.instance.is_none();
        let late: Vec<String> = self.members.values().filter(absent).map(|member| member.id.clone()).collect();
        for id in &late {
            self.take_out(id, ErrorCode::UnknownMemberId, ctx);
        }
        let joined = |member: &&Member| member.joining.is_some();
        let leader_joined = self.leader.as_ref().and_then(|id| self.members.get(id)).as_ref().is_some_and(joined);
        if !leader_joined && !self.members.is_empty() {
            let Some(next) = self.members.values().find(joined).map(|member| member.id.clone()) else {
                // Only static members, none of which is back: their sessions end this.
                if let Some(round) = &mut self.round {
                    round.until = ctx.now.mono
                        + self.members.values().map(|member| member.rebalance_timeout).max().unwrap_or(Millis(1));
                    round.initial = None;
                }
                return;
            };
            self.leader = Some(next);
        }
        let round = self.round.take();
        self.generation = if self.generation == i32::MAX { 1 } else { self.generation + 1 };
        if let Some(round) = round {
            self.history.push_back(Rebalance {
                generation: self.generation,
                why: round.why,
                began: round.began.wall,
                lasted: ctx.now.mono - round.began.mono,
                members: self.members.len(),
            });
            if self.history.len() > HISTORY {
                self.history.pop_front();
            }
        }
        if self.members.is_empty() {
            self.protocol = None;
            self.leader = None;
            self.enter(State::Empty, ctx.now);
            self.write(Pending::Nothing, ctx);
            return;
        }
        self.protocol = self.chosen_protocol();
        self.enter(State::CompletingRebalance, ctx.now);
        self.unsynced = self.members.keys().cloned().collect();
        self.unsynced_until = ctx.now.mono + self.patience();
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let joined = self.joined(&id);
            let Some(member) = self.members.get_mut(&id) else { continue };
            member.is_new = false;
            let Some((token, _)) = member.joining.take() else { continue };
            member.heard(ctx.now.mono);
            ctx.answer(token, Answer::Joined(joined));
        }
    }
}

/// What happened, and why in the words of the client that did it.
pub(super) fn because(what: &str, reason: &str) -> String {
    if reason.is_empty() { what.to_owned() } else { format!("{what}: {reason}") }
}
