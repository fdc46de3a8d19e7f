//! Which brokers are to be fenced, from the ages of their heartbeats and from proofs of death (R171, R220, D7, D8).
//!
//! Soft state of the raft leader: it is made when leadership is won and thrown away with it. Nothing here decides
//! anything: the fence command names the broker epoch, and the rules skip whoever has another by then. A wrong fence
//! loses nothing.

use std::collections::BTreeMap;

use highwater_wire::{BrokerEpoch, BrokerId, IncarnationId, Millis};

use crate::controller::FencedBroker;
use crate::image::{BrokerRegistration, MetadataImage};

/// Session times for which a broker that was wrongly proved dead is spared the fast road (D7).
const SPARED_SESSIONS: u64 = 5;
/// A look that comes later than this share of a session after the last one means that this node itself stood still.
const STALL_SHARE: u64 = 4;

/// What the raft leader knows of the brokers' lives.
#[derive(Debug, Clone)]
pub struct Liveness {
    /// `broker.session.timeout.ms`
    session: Millis,
    /// When this node began to lead: silence counts from here at the earliest (D8).
    since: Millis,
    last_look: Millis,
    heard: BTreeMap<BrokerId, Heard>,
    /// Fenced by proof and not back yet.
    proved: BTreeMap<BrokerId, Proved>,
    /// Not to be proved dead before this.
    spared_until: BTreeMap<BrokerId, Millis>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    epoch: BrokerEpoch,
    at: Millis,
}

#[derive(Debug, Clone, Copy)]
struct Proved {
    epoch: BrokerEpoch,
    incarnation: IncarnationId,
}

/// Why a proof of death fences nobody now; the session decides instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofRefusal {
    #[error("it is not active under the epoch that the proof speaks of")]
    NotCurrent,
    #[error("a heartbeat arrived after the suspicion")]
    HeardSince,
    #[error("it was proved dead before and lived; only its session counts for another {0}")]
    Spared(Millis),
    #[error("{fenced} brokers are fenced by proof already, at most {most} may be at one time")]
    TooMany { fenced: usize, most: usize },
}

impl Liveness {
    /// For a node that begins to lead `now`: every broker has a full fresh session (D8).
    pub fn new(session: Millis, now: Millis) -> Self {
        let (heard, proved, spared_until) = Default::default();
        Self { session, since: now, last_look: now, heard, proved, spared_until }
    }

    /// A heartbeat of a registered broker under its current epoch.
    pub fn heartbeat(&mut self, broker: BrokerId, epoch: BrokerEpoch, incarnation: IncarnationId, now: Millis) {
        self.heard.insert(broker, Heard { epoch, at: now });
        if let Some(proved) = self.proved.remove(&broker)
            && proved.incarnation == incarnation
        {
            // The proof was wrong: a firewall that rejects, a sidecar that died, a cut in one direction.
            self.spared_until.insert(broker, now + Millis(self.session.0 * SPARED_SESSIONS));
        }
    }

    /// How long ago a broker was last heard of under this epoch, or this node began to lead.
    pub fn silence(&self, broker: BrokerId, epoch: BrokerEpoch, now: Millis) -> Millis {
        let heard = self.heard.get(&broker).filter(|heard| heard.epoch == epoch).map(|heard| heard.at);
        now - heard.unwrap_or(self.since).max(self.since)
    }

    /// When a broker was last heard of by this leader.
    pub fn last_heard(&self, broker: BrokerId) -> Option<Millis> {
        self.heard.get(&broker).map(|heard| heard.at)
    }

    /// The brokers whose session has ended, stalest first, for one `FenceBrokers`: those found dead together are taken
    /// out together (D30). Ask it regularly and after the heartbeats that have arrived are handed in (R171); a look that
    /// comes too late gives everybody the time back for which this node stood still.
    pub fn expired(&mut self, image: &MetadataImage, now: Millis) -> Vec<FencedBroker> {
        let stall = now - self.last_look;
        if stall > Millis(self.session.0 / STALL_SHARE) {
            self.since = now.min(self.since + stall);
            for heard in self.heard.values_mut() {
                heard.at = now.min(heard.at + stall);
            }
        }
        self.last_look = now;
        self.heard.retain(|id, _| image.broker(*id).is_some());
        self.proved.retain(|id, proved| image.broker(*id).is_some_and(|broker| broker.epoch == proved.epoch));
        self.spared_until.retain(|_, until| *until > now);

        let mut expired: Vec<_> = image
            .active_brokers()
            .map(|broker| (self.silence(broker.id, broker.epoch, now), broker))
            .filter(|(silence, _)| *silence >= self.session)
            .collect();
        expired.sort_by_key(|(silence, broker)| (std::cmp::Reverse(*silence), broker.id));
        let session = self.session;
        let fence = |(silence, broker): (Millis, &std::sync::Arc<BrokerRegistration>)| FencedBroker {
            broker: broker.id,
            epoch: broker.epoch,
            note: format!("session of {session} ended: silent for {silence}"),
        };
        expired.into_iter().map(fence).collect()
    }

    /// How long until the next session may end; never so long that the look would be taken for one that comes too late.
    pub fn next_look(&self, image: &MetadataImage, now: Millis) -> Millis {
        let left = |broker: &std::sync::Arc<BrokerRegistration>| {
            self.session - self.silence(broker.id, broker.epoch, now).min(self.session)
        };
        let regularly = Millis(self.session.0 / (2 * STALL_SHARE));
        image.active_brokers().map(left).min().unwrap_or(regularly).min(regularly).max(Millis(1))
    }

    /// May the broker be fenced at once, on a proof of death found after a suspicion of `suspected`? `how` goes into
    /// the history. It counts as fenced by proof from now on until it is heard of again or registers anew, so that a
    /// fault of this node's own network cannot take more than a minority out.
    ///
    /// # Errors
    /// Why not; its session decides then.
    pub fn prove_dead(
        &mut self,
        image: &MetadataImage,
        broker: BrokerId,
        epoch: BrokerEpoch,
        suspected: Millis,
        how: &str,
        now: Millis,
    ) -> Result<FencedBroker, ProofRefusal> {
        let registration = image.broker(broker).filter(|current| current.epoch == epoch && current.is_active());
        let registration = registration.ok_or(ProofRefusal::NotCurrent)?;
        if self.heard.get(&broker).is_some_and(|heard| heard.epoch == epoch && heard.at >= suspected) {
            return Err(ProofRefusal::HeardSince);
        }
        if let Some(until) = self.spared_until.get(&broker)
            && *until > now
        {
            return Err(ProofRefusal::Spared(*until - now));
        }
        let still_out = |(id, proved): &(&BrokerId, &Proved)| {
            **id != broker && image.broker(**id).is_some_and(|other| other.epoch == proved.epoch)
        };
        let fenced = self.proved.iter().filter(still_out).count();
        let most = (image.brokers.size().saturating_sub(1) / 2).max(1);
        if fenced >= most {
            return Err(ProofRefusal::TooMany { fenced, most });
        }
        self.proved.insert(broker, Proved { epoch, incarnation: registration.incarnation });
        Ok(FencedBroker { broker, epoch, note: how.to_owned() })
    }

    /// The fence on a proof was not applied after all: its place is free again.
    pub fn proof_withdrawn(&mut self, broker: BrokerId) {
        self.proved.remove(&broker);
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
