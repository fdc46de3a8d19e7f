//! Changes the voters (D1): a new one learns first and votes when it has caught up; leadership is handed over.
//!
//! One change at a time, on the raft leader. Whether it may be made is decided in `crate::voters`. A leader that dies in
//! the middle leaves an observer, or a joint step that the next leader finishes; asking again goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_wire::{BrokerId, DirectoryId};
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{EmptyNode, OptionalSend, OptionalSync};
use tokio::time::Instant;

use super::network::{address_in, url_of};
use super::node::{Node, Reply};
use super::probe::authority;
use super::types::{NodeId, TypeConfig};
use crate::ambient::wall_clock;
use crate::controller::{Command, Refusal};
use crate::image::Endpoint;
use crate::status::{ProbeAnswer, QuorumMember};
use crate::voters::{CAUGHT_UP_LAG, NewVoter, Progress, VoterChange, VoterChangeState, VoterChangeStatus, VoterPlan};

/// A node that is to vote says who it is within this.
const ASK: Duration = Duration::from_secs(1);
/// A change that is done within this is answered as done.
const PATIENCE: Duration = Duration::from_secs(1);
/// A new voter that gets no further for so long is given up; it stays an observer.
const STALLED: Duration = Duration::from_secs(60);
/// A note of the leader's own.
const PROPOSE: Duration = Duration::from_secs(5);
/// An observer that has answered within this is there.
const ANSWERS_MS: u64 = 1_000;
/// Between two looks at a membership change that another one holds up.
const HELD_UP: Duration = Duration::from_millis(50);

/// The change under way on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changing {
    add: Option<NodeId>,
    remove: Option<NodeId>,
}

/// Ends the change under way when it goes.
struct Slot(Arc<Node>);

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.changing.lock() = None;
    }
}

/// Why a step of a change was not made.
enum Stop {
    Refused(Refusal),
    NotLeader,
    Failed(String),
}

impl Stop {
    fn reply<T>(self, node: &Node) -> Reply<T> {
        match self {
            Self::Refused(refusal) => Reply::Refused(refusal),
            Self::NotLeader => Reply::NotLeader { leader: node.leader().map(|leader| leader.node) },
            Self::Failed(why) => Reply::Unsure { why },
        }
    }
}

/// Waits for a change, and not for long. `false`: raft has ended, and whoever goes on waiting for it spins.
async fn news<T>(metrics: &mut WatchReceiverOf<TypeConfig, T>) -> bool
where
    T: OptionalSend + OptionalSync,
{
    !matches!(tokio::time::timeout(HELD_UP, metrics.changed()).await, Ok(Err(_)))
}

impl Node {
    /// The observer that is about to vote: not to be removed for want of a registration.
    pub(super) fn promoting(&self) -> Option<NodeId> {
        self.changing.lock().as_ref().and_then(|changing| changing.add)
    }

    /// Ends a joint step whose leader died in the middle. True when there was one.
    pub(super) async fn finish_joint_step(&self) -> bool {
        if self.changing.lock().is_some() {
            return false;
        }
        let last = {
            let metrics = self.raft.metrics();
            let membership = metrics.borrow_watched().membership_config.membership().clone();
            let configs = membership.get_joint_config();
            (configs.len() > 1).then(|| configs.last().cloned().unwrap_or_default())
        };
        let Some(voters) = last else { return false };
        // Who is no longer wanted is removed as a learner.
        match self.raft.change_membership(voters, true).await {
            Ok(_) => {
                tracing::info!("finished a change of voters that the last leader began");
                true
            }
            Err(error) => {
                tracing::debug!(%error, "the joint step goes on");
                false
            }
        }
    }

    /// What this node has to say if it votes and the metadata does not tell where it is: who joins later, with nothing
    /// but the metadata to go by, must find every voter.
    pub fn announcement(&self) -> Option<Command> {
        let image = self.image();
        image.cluster_id.as_ref()?;
        let NodeId { node, directory } = self.id;
        if image.controllers.get(&node).is_some_and(|known| known.directory == directory) || !self.votes(self.id) {
            return None;
        }
        Some(Command::RegisterController { node, directory, endpoint: self.advertised.clone(), time: wall_clock() })
    }

    /// Whether this member votes, as far as this node knows.
    pub fn votes(&self, id: NodeId) -> bool {
        let metrics = self.raft.metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        membership.voter_ids().any(|voter| voter == id)
    }

    /// Progress of every member, as this leader knows it.
    fn progress(&self) -> BTreeMap<QuorumMember, Progress> {
        self.status().peers.iter().map(|peer| (peer.member, peer.progress())).collect()
    }

    fn plan(&self, add: Option<QuorumMember>, remove: Option<BrokerId>) -> Result<VoterPlan, Refusal> {
        let voters: BTreeSet<QuorumMember> = self.members().0.into_iter().map(QuorumMember::from).collect();
        VoterPlan::new(&voters, add, remove)
    }

    /// Judges a change by who answers from `begun` on; waits for them for up to three election timeouts.
    async fn judge(&self, plan: &VoterPlan, begun: Instant, arriving: bool) -> Result<usize, Refusal> {
        let mut metrics = self.raft.metrics();
        loop {
            let waited = begun.elapsed();
            let within_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            let verdict = plan.check(&self.progress(), within_ms, arriving);
            if verdict.is_ok() || waited >= 3 * self.limits.election_timeout || !news(&mut metrics).await {
                return verdict;
            }
        }
    }

    /// What is known of a member that has answered since `begun`; waited for as in [`Self::judge`].
    pub(super) async fn heard_since(&self, member: QuorumMember, begun: Instant) -> Option<Progress> {
        let mut metrics = self.raft.metrics();
        loop {
            let waited = begun.elapsed();
            let known = self.progress().get(&member).copied();
            let within_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            let well = known.is_some_and(|progress| progress.is_well(within_ms));
            if well || waited >= 3 * self.limits.election_timeout || !news(&mut metrics).await {
                return known.filter(|progress| progress.contact_age_ms.is_some_and(|age| age <= within_ms));
            }
        }
    }

    /// Changes the voters; this node must lead. Answers as soon as the change is done, or when a new voter takes longer
    /// to catch up: asking again tells how far it is.
    pub async fn change_voters(self: &Arc<Self>, change: VoterChange, timeout: Duration) -> Reply<VoterChangeStatus> {
        if self.leading().is_none() {
            return Stop::NotLeader.reply(self);
        }
        match self.change_voters_here(&change, timeout).await {
            Ok(status) => Reply::Done(status),
            Err(stop) => stop.reply(self),
        }
    }

    async fn change_voters_here(
        self: &Arc<Self>,
        change: &VoterChange,
        timeout: Duration,
    ) -> Result<VoterChangeStatus, Stop> {
        let new = match &change.add {
            Some(new) => Some(self.identify(new).await.map_err(Stop::Refused)?),
            None => None,
        };
        let plan = self.plan(new.as_ref().map(|(member, _)| *member), change.remove).map_err(Stop::Refused)?;
        let caught_up = if plan.changes_nothing() {
            self.status().well_voters()
        } else {
            self.judge(&plan, Instant::now(), true).await.map_err(Stop::Refused)?
        };
        let endpoint = new.as_ref().map(|(_, endpoint)| endpoint.clone());
        let status = |state| VoterChangeStatus {
            state,
            add: plan.add,
            endpoint: endpoint.clone(),
            remove: plan.remove,
            before: plan.before.iter().copied().collect(),
            after: plan.after.iter().copied().collect(),
            majority: plan.after.len() / 2 + 1,
            caught_up,
            lag: plan.add.and_then(|new| self.progress().get(&new).map(|progress| progress.lag)),
        };
        if change.validate_only {
            self.check_slot(&plan).map_err(Stop::Refused)?;
            return Ok(status(VoterChangeState::Planned));
        }
        if plan.changes_nothing() {
            if let Some((member, endpoint)) = &new {
                self.note_address(*member, endpoint).await?;
            }
            return Ok(status(VoterChangeState::Done));
        }
        let Some(slot) = self.take_slot(&plan).map_err(Stop::Refused)? else {
            return Ok(status(VoterChangeState::CatchingUp));
        };
        match new {
            None => {
                tokio::time::timeout(timeout, self.remove(&plan, change.retain_as_observer))
                    .await
                    .unwrap_or_else(|_| Err(Stop::Failed("the voters did not agree in time".to_owned())))?;
                drop(slot);
                Ok(status(VoterChangeState::Done))
            }
            Some((member, endpoint)) => {
                self.note_address(member, &endpoint).await?;
                let (node, plan) = (Arc::clone(self), plan.clone());
                let job = tokio::spawn(async move {
                    let done = node.promote(&plan).await;
                    drop(slot);
                    if let Err(Stop::Failed(why)) = &done {
                        tracing::warn!(new = %NodeId::from(member), why, "the voters are unchanged");
                    }
                    done
                });
                match tokio::time::timeout(PATIENCE.min(timeout), job).await {
                    Ok(Ok(done)) => done.map(|()| status(VoterChangeState::Done)),
                    Ok(Err(error)) => Err(Stop::Failed(error.to_string())),
                    Err(_) => Ok(status(VoterChangeState::CatchingUp)),
                }
            }
        }
    }

    /// The node, disk and address of a voter to be: named, or asked of it.
    async fn identify(&self, new: &NewVoter) -> Result<(QuorumMember, Endpoint), Refusal> {
        let node = new.node;
        let known = || {
            let url = self.peers.url(node)?;
            let (host, port) = authority(&url)?.rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some(Endpoint { host, port: port.parse().ok()? })
        };
        let endpoint = new.endpoint.clone().or_else(known);
        let endpoint = endpoint.ok_or_else(|| {
            Refusal::InvalidVoterKey(format!(
                "nobody knows where node {node} is: name the endpoint (host:port) of its controller listener"
            ))
        })?;
        let url = url_of(&endpoint);
        let answer: ProbeAnswer = match self.peers.get_json_at(&url, "/probe", ASK).await {
            Ok(answer) => answer,
            Err(why) => {
                return Err(Refusal::NodeUnreachable(format!(
                    "node {node} does not answer at {url}, so it cannot catch up ({why}): start it, or correct the \
                     endpoint"
                )));
            }
        };
        let wrong = |why: String| Err(Refusal::InvalidVoterKey(why));
        if answer.node != node {
            return wrong(format!("node {} answers at {url}, not node {node}: correct the endpoint", answer.node));
        }
        if let (Some(given), Some(ours)) = (answer.cluster_id, self.cluster_id())
            && given != ours
        {
            return Err(Refusal::InconsistentClusterId { ours, given });
        }
        if !answer.may_vote {
            return wrong(format!(
                "node {node} has no controller role: start it with process.roles=controller or broker,controller"
            ));
        }
        if let Some(given) = new.directory
            && given != answer.directory
        {
            return wrong(format!(
                "the metadata directory of node {node} has id {}, not {given}: name that one, or leave it out",
                answer.directory
            ));
        }
        Ok((QuorumMember { node, directory: answer.directory }, endpoint))
    }

    fn check_slot(&self, plan: &VoterPlan) -> Result<bool, Refusal> {
        let asked = Changing { add: plan.add.map(NodeId::from), remove: plan.remove.map(NodeId::from) };
        match self.changing.lock().as_ref() {
            None => Ok(true),
            Some(running) if *running == asked => Ok(false),
            Some(running) => {
                let name = |id: Option<NodeId>| id.map_or_else(|| "nobody".to_owned(), |id| id.to_string());
                Err(Refusal::VoterChangeInProgress(format!(
                    "another change of voters is under way (adds {}, removes {}): wait for it",
                    name(running.add),
                    name(running.remove)
                )))
            }
        }
    }

    /// `None`: this very change is under way.
    fn take_slot(self: &Arc<Self>, plan: &VoterPlan) -> Result<Option<Slot>, Refusal> {
        if !self.check_slot(plan)? {
            return Ok(None);
        }
        let asked = Changing { add: plan.add.map(NodeId::from), remove: plan.remove.map(NodeId::from) };
        let mut changing = self.changing.lock();
        if changing.is_some() {
            return Err(Refusal::VoterChangeInProgress(
                "another change of voters has just begun: try again".to_owned(),
            ));
        }
        *changing = Some(asked);
        Ok(Some(Slot(Arc::clone(self))))
    }

    /// Writes down where a controller is, unless that is known.
    async fn note_address(self: &Arc<Self>, member: QuorumMember, endpoint: &Endpoint) -> Result<(), Stop> {
        let known = self
            .image()
            .controllers
            .get(&member.node)
            .is_some_and(|known| known.directory == member.directory && known.endpoint == *endpoint);
        if known {
            return Ok(());
        }
        let QuorumMember { node, directory } = member;
        self.note(Command::RegisterController { node, directory, endpoint: endpoint.clone(), time: wall_clock() }).await
    }

    /// Writes down where the present voters are, before another one joins that may know them from the metadata alone: they
    /// announce themselves, but perhaps not before they are needed. Whoever is not configured here was added, and noted then.
    async fn note_present_voters(self: &Arc<Self>) -> Result<(), Stop> {
        let configured = self.peers.voters().clone();
        for voter in self.members().0 {
            let endpoint = if voter == self.id { Some(&self.advertised) } else { configured.get(&voter.node) };
            let told =
                self.image().controllers.get(&voter.node).is_some_and(|known| known.directory == voter.directory);
            if let Some(endpoint) = endpoint.filter(|_| !told) {
                self.note_address(QuorumMember::from(voter), endpoint).await?;
            }
        }
        Ok(())
    }

    async fn forget_address(self: &Arc<Self>, node: BrokerId, directory: DirectoryId) -> Result<(), Stop> {
        if self.image().controllers.get(&node).is_none_or(|known| known.directory != directory) {
            return Ok(());
        }
        self.note(Command::UnregisterController { node, directory, time: wall_clock() }).await
    }

    async fn note(self: &Arc<Self>, command: Command) -> Result<(), Stop> {
        match self.propose_here(command, PROPOSE).await {
            Reply::Done(_) => Ok(()),
            Reply::Refused(refusal) => Err(Stop::Refused(refusal)),
            Reply::NotLeader { .. } => Err(Stop::NotLeader),
            Reply::Unsure { why } | Reply::Stopped { why } => Err(Stop::Failed(why)),
        }
    }

    /// Lets the new voter catch up and vote; the one it replaces goes in the same joint step.
    async fn promote(self: &Arc<Self>, plan: &VoterPlan) -> Result<(), Stop> {
        let Some(new) = plan.add.map(NodeId::from) else { return Ok(()) };
        self.note_present_voters().await?;
        if !self.members().1.contains(&new) {
            self.until_agreed(|| self.raft.add_learner(new, EmptyNode {}, false)).await?;
        }
        self.caught_up(new).await?;
        let now = self.plan(plan.add, plan.remove.map(|old| old.node)).map_err(Stop::Refused)?;
        self.judge(&now, Instant::now(), false).await.map_err(Stop::Refused)?;
        let after: BTreeSet<NodeId> = now.after.iter().copied().map(NodeId::from).collect();
        self.until_agreed(|| self.raft.change_membership(after.clone(), false)).await?;
        let removed = plan.remove.map(NodeId::from);
        tracing::info!(%new, replaces = removed.map(|old| old.to_string()), "changed the voters of the metadata quorum");
        match plan.remove {
            Some(old) if old.node != new.node => self.forget_address(old.node, old.directory).await,
            _ => Ok(()),
        }
    }

    /// Waits until an observer lacks so little that it may vote.
    async fn caught_up(&self, new: NodeId) -> Result<(), Stop> {
        let mut metrics = self.raft.metrics();
        let (mut furthest, mut moved) = (None, Instant::now());
        loop {
            let matched = {
                let now = metrics.borrow_and_update();
                if !now.state.is_leader() {
                    return Err(Stop::NotLeader);
                }
                now.replication.as_ref().and_then(|all| all.get(&new).cloned().flatten()).map(|at| at.index)
            };
            let progress = self.progress().get(&new.into()).copied();
            if progress.is_some_and(|progress| progress.is_well(ANSWERS_MS)) {
                return Ok(());
            }
            if matched > furthest {
                (furthest, moved) = (matched, Instant::now());
            }
            let left = STALLED.saturating_sub(moved.elapsed());
            match tokio::time::timeout(left, metrics.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Stop::Failed("raft ended".to_owned())),
                Err(_) => {
                    let lag = progress.map_or_else(|| "all".to_owned(), |progress| progress.lag.to_string());
                    return Err(Stop::Failed(format!(
                        "node {new} got no further within {} s and lacks {lag} entries; it goes on as an observer",
                        STALLED.as_secs()
                    )));
                }
            }
        }
    }

    /// Takes a vote away. A leader that is to go hands over first.
    async fn remove(self: &Arc<Self>, plan: &VoterPlan, retain: bool) -> Result<(), Stop> {
        let Some(old) = plan.remove else { return Ok(()) };
        if NodeId::from(old) == self.id {
            let progress = self.progress();
            let well = |member: &QuorumMember| {
                progress.get(member).filter(|progress| progress.is_well(ANSWERS_MS)).map(|p| p.lag)
            };
            let heir = plan.after.iter().filter_map(|member| Some((well(member)?, *member))).min();
            let Some((_, heir)) = heir else {
                return Err(Stop::Failed("no other voter can lead now".to_owned()));
            };
            self.hand_over(heir.into()).await?;
            return Err(Stop::NotLeader);
        }
        if retain && self.image().brokers.get(&old.node).is_none() {
            let endpoint = address_in(&self.image(), old.node).or_else(|| self.peers.url(old.node));
            let endpoint = endpoint.as_deref().and_then(authority).and_then(|authority| {
                let (host, port) = authority.rsplit_once(':')?;
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                Some(Endpoint { host, port: port.parse().ok()? })
            });
            if let Some(endpoint) = endpoint {
                self.note_address(old, &endpoint).await?;
            }
        }
        let after: BTreeSet<NodeId> = plan.after.iter().copied().map(NodeId::from).collect();
        self.until_agreed(|| self.raft.change_membership(after.clone(), retain)).await?;
        tracing::info!(removed = %NodeId::from(old), retain, "changed the voters of the metadata quorum");
        if retain { Ok(()) } else { self.forget_address(old.node, old.directory).await }
    }

    /// Makes a membership change; one that another change holds up is tried again.
    async fn until_agreed<T, F>(&self, change: impl Fn() -> F) -> Result<(), Stop>
    where
        F: Future<Output = Result<T, RaftError<TypeConfig, ClientWriteError<TypeConfig>>>>,
    {
        // Not on `metrics`: every refusal of raft's changes those, and this loop would never pause.
        let mut membership = self.raft.server_metrics();
        loop {
            membership.borrow_and_update();
            match change().await {
                Ok(_) => return Ok(()),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => return Err(Stop::NotLeader),
                Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_),
                ))) => {}
                Err(RaftError::APIError(error)) => return Err(Stop::Failed(error.to_string())),
                Err(RaftError::Fatal(fatal)) => return Err(Stop::Failed(fatal.to_string())),
            }
            // Its end shows there; a look now and then costs nothing.
            let _ = news(&mut membership).await;
        }
    }

    /// Hands leadership to another voter; this node must lead.
    pub async fn transfer_leadership(self: &Arc<Self>, target: BrokerId, timeout: Duration) -> Reply<()> {
        if self.leading().is_none() {
            return Stop::NotLeader.reply(self);
        }
        if target == self.id.node {
            return Reply::Done(());
        }
        let refuse = |why: String| Reply::Refused(Refusal::IneligibleQuorumLeader { node: target, why });
        let Some(to) = self.members().0.into_iter().find(|voter| voter.node == target) else {
            return refuse("it is no voter".to_owned());
        };
        match self.heard_since(to.into(), Instant::now()).await {
            Some(Progress { lag, .. }) if lag <= CAUGHT_UP_LAG => {}
            Some(Progress { lag, .. }) => return refuse(format!("it lacks {lag} entries")),
            None => return refuse("it does not answer this leader".to_owned()),
        }
        match tokio::time::timeout(timeout, self.hand_over(to)).await {
            Ok(Ok(())) => Reply::Done(()),
            Ok(Err(stop)) => stop.reply(self),
            Err(_) => Reply::Unsure { why: format!("node {target} has not taken over yet") },
        }
    }

    /// Returns once another node leads.
    async fn hand_over(&self, to: NodeId) -> Result<(), Stop> {
        let mut leaders = self.raft.server_metrics();
        let asked = self.raft.trigger().transfer_leader(to).await;
        asked.map_err(|fatal| Stop::Failed(fatal.to_string()))?;
        loop {
            let leader = leaders.borrow_watched().current_leader;
            match leader {
                Some(leader) if leader == to => {
                    tracing::info!(%to, "handed over the metadata quorum");
                    return Ok(());
                }
                Some(leader) if leader != self.id => {
                    return Err(Stop::Failed(format!("node {leader} took over instead")));
                }
                _ => {}
            }
            if leaders.changed().await.is_err() {
                return Err(Stop::Failed("raft ended".to_owned()));
            }
        }
    }
}
