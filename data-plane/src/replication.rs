//! The pure half of a replica: what it is to its partition, and what follows from what happens to it.
//!
//! Read `leader` first. Nothing here knows a clock, a file or a log line: the caller hands in the time and a view of the
//! log, and carries the effects out. [`Replication`] holds the one role a replica has, and the only transitions.

use std::sync::Arc;

use highwater_quorum::controller::IsrProposal;
use highwater_quorum::flaws::{Flaw, planted};
use highwater_quorum::image::{ImageVersion, PartitionState, TopicConfig};
use highwater_wire::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch, Timestamp, TopicPartition};

use self::acks::{Ack, Ticket};
use self::follower::{Follower, FollowerNext};
use self::leader::Leader;
use self::note::Note;
use self::park::{Park, WaiterId, WakeUp};
use self::peers::Peers;
use self::refusal::Refusal;
use crate::log_view::LogView;

pub mod acks;
pub mod follower;
pub mod isr;
pub mod leader;
pub mod note;
pub mod park;
pub mod peers;
pub mod progress;
pub mod refusal;
#[cfg(test)]
pub(crate) mod testing;

/// What an image says of one partition hosted here.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Images older than the last one applied are ignored.
    pub version: ImageVersion,
    pub state: Arc<PartitionState>,
    /// The topic's configuration: min ISR, flush, retention, segments.
    pub config: Arc<TopicConfig>,
    /// All registrations of the same image.
    pub peers: Arc<Peers>,
    /// The epoch under which *this process* registered. An image in which this broker has another one is not acted on.
    pub own_epoch: BrokerEpoch,
}

impl Terms {
    /// Whether every record is to be synced before it counts (D23).
    pub fn durable(&self) -> bool {
        self.config.flush_messages <= 1 || self.config.flush_ms == 0
    }
}

/// What became of an assignment handed to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    Leader,
    /// With what the fetcher has to do.
    Follower(FollowerNext),
    /// No leader, or not one of the replicas.
    Idle,
    /// The image is older than one applied, or of another process of this broker: nothing changed.
    Ignored,
}

/// What is to be carried out, in this order, before anything else happens to the replica.
#[derive(Debug)]
pub enum Effect {
    /// A waiting produce is as safe as its acks asked for.
    Stored {
        ticket: Ticket,
        base: Offset,
        log_append_time: Timestamp,
    },
    /// A waiting request ends with an error.
    Refused {
        ticket: Ticket,
        refusal: Refusal,
    },
    Wake(WakeUp),
    /// Carry this to the quorum as it is.
    Propose(Box<IsrProposal>),
    Note(Note),
}

impl Effect {
    fn stored(ack: &Ack) -> Self {
        Self::Stored { ticket: ack.ticket, base: ack.base, log_append_time: ack.log_append_time }
    }
}

/// What a role is handed in with every event: the log as of now, the time, who waits, and where effects go.
pub struct Cx<'a> {
    pub view: LogView<'a>,
    pub now: Millis,
    pub park: &'a mut Park,
    pub effects: &'a mut Vec<Effect>,
}

/// What a replica is to its partition.
#[derive(Debug, Clone)]
pub enum Role {
    Leader(Box<Leader>),
    Follower(Follower),
    /// Follows nobody, keeps its watermark (R145).
    Idle {
        high_watermark: Offset,
    },
}

/// The transition that an image asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Of another process of this broker, or older than what is known.
    Ignore,
    /// The role stays: ISR, assignment, peers or configuration may have changed (R144).
    Refresh,
    /// Note the epoch in the log, then [`Replication::lead`] (R140).
    Lead {
        epoch: LeaderEpoch,
    },
    Follow {
        leader: BrokerId,
        epoch: LeaderEpoch,
    },
    Idle,
}

/// The role of one replica, and what it was last told.
#[derive(Debug, Clone)]
pub struct Replication {
    partition: TopicPartition,
    me: BrokerId,
    lag_max: Millis,
    role: Role,
    terms: Option<Terms>,
    /// Of the last image or answer applied; never goes back (R228).
    leader_epoch: LeaderEpoch,
    partition_epoch: PartitionEpoch,
    generation: u64,
    draining: bool,
    park: Park,
    /// What R52 forbids: acknowledgements of a leadership that is over.
    #[cfg(feature = "sim")]
    carried: Option<acks::AckQueue>,
    /// What R106 forbids: where followers were in a leadership that is over.
    #[cfg(feature = "sim")]
    known: std::collections::BTreeMap<BrokerId, progress::FollowerProgress>,
}

impl Replication {
    /// A replica that has not been told anything yet. `high_watermark` is clamped to the log (R24).
    pub fn new(
        partition: TopicPartition,
        me: BrokerId,
        lag_max: Millis,
        high_watermark: Offset,
        view: &LogView<'_>,
    ) -> Self {
        Self {
            partition,
            me,
            lag_max,
            role: Role::Idle { high_watermark: high_watermark.clamp(view.start, view.end) },
            terms: None,
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            generation: 0,
            draining: false,
            park: Park::default(),
            #[cfg(feature = "sim")]
            carried: None,
            #[cfg(feature = "sim")]
            known: Default::default(),
        }
    }

    /// This broker.
    pub fn me(&self) -> BrokerId {
        self.me
    }

    /// `replica.lag.time.max.ms`
    pub fn lag_max(&self) -> Millis {
        self.lag_max
    }

    /// The role of now.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// What the last image said.
    pub fn terms(&self) -> Option<&Terms> {
        self.terms.as_ref()
    }

    /// The leader epoch known here.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// The partition epoch known here.
    pub fn partition_epoch(&self) -> PartitionEpoch {
        match &self.role {
            Role::Leader(leader) => leader.partition_epoch(),
            Role::Follower(_) | Role::Idle { .. } => self.partition_epoch,
        }
    }

    /// The leader known here.
    pub fn leader_id(&self) -> Option<BrokerId> {
        self.terms.as_ref().and_then(|terms| terms.state.leader)
    }

    /// Whoever waits for news.
    pub fn park(&mut self) -> &mut Park {
        &mut self.park
    }

    /// How many fetches wait.
    pub fn waiting_fetches(&self) -> usize {
        self.park.len()
    }

    /// The watermark, whatever the role.
    pub fn high_watermark(&self) -> Offset {
        match &self.role {
            Role::Leader(leader) => leader.high_watermark(),
            Role::Follower(follower) => follower.high_watermark(),
            Role::Idle { high_watermark } => *high_watermark,
        }
    }

    /// "Not the leader here", with who is (R54).
    pub fn not_leader(&self) -> Refusal {
        let leader = self.leader_id().filter(|&leader| leader != self.me);
        Refusal::NotLeader { leader, leader_epoch: self.leader_epoch }
    }

    /// R72: `None` is no check.
    pub fn check_epoch(&self, given: Option<LeaderEpoch>) -> Result<(), Refusal> {
        let current = self.leader_epoch;
        match given {
            Some(_) if planted(Flaw::TakesAnyEpoch) => Ok(()),
            Some(given) if given < current => Err(Refusal::FencedEpoch { given, current, leader: self.leader_id() }),
            Some(given) if given > current => Err(Refusal::UnknownEpoch { given, current }),
            _ => Ok(()),
        }
    }

    /// The leadership, or who has it.
    pub fn leader(&self) -> Result<&Leader, Refusal> {
        match &self.role {
            Role::Leader(leader) => Ok(leader),
            Role::Follower(_) | Role::Idle { .. } => Err(self.not_leader()),
        }
    }

    /// The leadership to feed, with the context it wants.
    pub fn lead_with<'a>(
        &'a mut self,
        view: LogView<'a>,
        now: Millis,
        effects: &'a mut Vec<Effect>,
    ) -> Option<(&'a mut Leader, Cx<'a>)> {
        match &mut self.role {
            Role::Leader(leader) => Some((leader, Cx { view, now, park: &mut self.park, effects })),
            Role::Follower(_) | Role::Idle { .. } => None,
        }
    }

    /// The following to feed.
    pub fn following(&mut self) -> Option<&mut Follower> {
        match &mut self.role {
            Role::Follower(follower) => Some(follower),
            Role::Leader(_) | Role::Idle { .. } => None,
        }
    }

    /// A number no following of this replica had before (R152).
    pub fn fresh_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Which transition an image asks for; changes nothing. A broker acts only on images that carry its own broker
    /// epoch: an older or a younger process of it is somebody else (R168).
    pub fn step(&self, terms: &Terms) -> Step {
        let registered = terms.peers.get(self.me).map(|peer| peer.epoch);
        if registered != Some(terms.own_epoch) || self.terms.as_ref().is_some_and(|last| terms.version < last.version) {
            return Step::Ignore;
        }
        let state = &terms.state;
        let stale = state.partition_epoch < self.partition_epoch() || state.leader_epoch < self.leader_epoch;
        if stale && self.terms.is_some() {
            // An answer of the controller was faster than this image (R134); its peers are news all the same.
            return Step::Refresh;
        }
        let leader = state.leader.filter(|_| state.replicas.contains(&self.me));
        match (&self.role, leader) {
            (Role::Leader(own), Some(id)) if id == self.me && own.epoch() == state.leader_epoch => Step::Refresh,
            (Role::Follower(own), Some(id)) if own.leader() == id && own.epoch() == state.leader_epoch => Step::Refresh,
            (Role::Idle { .. }, None) if self.terms.is_some() && self.leader_epoch == state.leader_epoch => {
                Step::Refresh
            }
            (_, Some(id)) if id == self.me => Step::Lead { epoch: state.leader_epoch },
            (_, Some(leader)) => Step::Follow { leader, epoch: state.leader_epoch },
            (_, None) => Step::Idle,
        }
    }

    /// Takes the news of an image that leaves the role as it is.
    pub fn refresh(&mut self, terms: Terms, view: LogView<'_>, now: Millis, effects: &mut Vec<Effect>) {
        self.partition_epoch = self.partition_epoch.max(terms.state.partition_epoch);
        match &mut self.role {
            Role::Leader(leader) => leader.on_image(&terms, &mut Cx { view, now, park: &mut self.park, effects }),
            Role::Follower(follower) => follower.on_metadata(),
            Role::Idle { .. } => {}
        }
        self.remember(terms);
    }

    /// Begins a leadership (R140). The log already holds the epoch's entry, so that its end is the start.
    pub fn lead(&mut self, terms: Terms, view: LogView<'_>, now: Millis, effects: &mut Vec<Effect>) {
        let high_watermark = self.leave_role(&terms, effects);
        let mut leader =
            Box::new(Leader::new(self.partition, self.me, self.lag_max, &terms, high_watermark, &view, now));
        #[cfg(feature = "sim")]
        if let Some(acks) = self.carried.take() {
            *leader.acks_mut() = acks;
        }
        #[cfg(feature = "sim")]
        for (id, progress) in leader.progress_mut() {
            if let Some(known) = self.known.remove(&id) {
                *progress = known;
            }
        }
        effects.push(Effect::Note(Note::BecameLeader {
            leader_epoch: leader.epoch(),
            partition_epoch: leader.partition_epoch(),
            isr: leader.isr().committed().to_vec(),
            epoch_start: leader.epoch_start(),
            high_watermark: leader.high_watermark(),
        }));
        let cx = &mut Cx { view, now, park: &mut self.park, effects };
        leader.advance(cx);
        leader.maybe_propose(cx);
        self.role = Role::Leader(leader);
        self.remember(terms);
    }

    /// Begins to follow (R143). Answers to questions asked before are of an older generation. Returns where the log is
    /// to be cut first, if it cannot be compared by epochs.
    pub fn follow(&mut self, terms: Terms, view: &LogView<'_>, effects: &mut Vec<Effect>) -> Option<Offset> {
        let high_watermark = self.leave_role(&terms, effects);
        let leader = terms.state.leader.expect("a step to follow names the leader");
        let generation = self.fresh_generation();
        let follower = Follower::new(leader, terms.state.leader_epoch, high_watermark, generation);
        effects.push(Effect::Note(Note::BecameFollower {
            leader,
            leader_epoch: terms.state.leader_epoch,
            log_end: view.end,
            high_watermark,
        }));
        let cut = follower.first_truncation(view);
        self.role = Role::Follower(follower);
        self.remember(terms);
        cut
    }

    /// Nobody to follow (R145).
    pub fn idle(&mut self, terms: Terms, effects: &mut Vec<Effect>) {
        let high_watermark = self.leave_role(&terms, effects);
        self.fresh_generation();
        effects.push(Effect::Note(Note::BecameIdle { leader_epoch: terms.state.leader_epoch }));
        self.role = Role::Idle { high_watermark };
        self.remember(terms);
    }

    /// Ends the role for good or for a failed disk: whoever waits is told why.
    pub fn abdicate(&mut self, refusal: &Refusal, effects: &mut Vec<Effect>) {
        let high_watermark = self.end_role(refusal, effects);
        self.fresh_generation();
        self.role = Role::Idle { high_watermark };
    }

    /// R143 (3): produces and fetches that wait are answered before anything else.
    fn leave_role(&mut self, terms: &Terms, effects: &mut Vec<Effect>) -> Offset {
        let leader = terms.state.leader.filter(|&leader| leader != self.me);
        self.end_role(&Refusal::NotLeader { leader, leader_epoch: terms.state.leader_epoch }, effects)
    }

    fn end_role(&mut self, refusal: &Refusal, effects: &mut Vec<Effect>) -> Offset {
        self.partition_epoch = self.partition_epoch();
        let role = std::mem::replace(&mut self.role, Role::Idle { high_watermark: Offset::ZERO });
        let high_watermark = match role {
            #[cfg(feature = "sim")]
            Role::Leader(mut leader) if planted(Flaw::KeepsProgress) => {
                self.known = leader.progress_mut().map(|(id, progress)| (id, std::mem::take(progress))).collect();
                leader.step_down(refusal, effects)
            }
            #[cfg(feature = "sim")]
            Role::Leader(mut leader) if planted(Flaw::AcksAcrossEpochs) => {
                self.carried = Some(std::mem::take(leader.acks_mut()));
                leader.high_watermark()
            }
            Role::Leader(leader) => leader.step_down(refusal, effects),
            Role::Follower(follower) => follower.high_watermark(),
            Role::Idle { high_watermark } => high_watermark,
        };
        self.park.wake_all(|wake| effects.push(Effect::Wake(wake)));
        high_watermark
    }

    fn remember(&mut self, terms: Terms) {
        self.leader_epoch = self.leader_epoch.max(terms.state.leader_epoch);
        self.partition_epoch = self.partition_epoch.max(terms.state.partition_epoch);
        let kept = match &self.terms {
            // A stale state beside fresh peers: keep the newer of each.
            Some(last) if last.state.partition_epoch > terms.state.partition_epoch => Arc::clone(&last.state),
            _ => Arc::clone(&terms.state),
        };
        self.terms = Some(Terms { state: kept, ..terms });
    }

    /// The broker is in controlled shutdown (R146).
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether a follower may fetch now: its leader can be reached (R145), and it is not draining outside the ISR (R146).
    pub fn may_fetch(&self) -> bool {
        let (Role::Follower(follower), Some(terms)) = (&self.role, &self.terms) else { return false };
        let reachable = terms.peers.get(follower.leader()).is_some_and(|peer| peer.reachable);
        reachable && (!self.draining || terms.state.isr.contains(&self.me))
    }

    /// A waiter is gone: it is woken no more, and its silence proves nothing.
    pub fn unwatch(&mut self, waiter: WaiterId, view: &LogView<'_>) {
        self.park.disarm(waiter);
        if let Role::Leader(leader) = &mut self.role {
            leader.detach(waiter, view.end);
        }
    }

    /// Panics where the role contradicts the log or itself.
    pub fn check_invariants(&self, view: &LogView<'_>) {
        let high_watermark = self.high_watermark();
        assert!(
            view.start <= high_watermark && high_watermark <= view.end,
            "watermark {high_watermark} outside {}..={}",
            view.start,
            view.end
        );
        if let Role::Leader(leader) = &self.role {
            leader.check_invariants(view);
        }
    }
}

#[cfg(test)]
mod tests;
