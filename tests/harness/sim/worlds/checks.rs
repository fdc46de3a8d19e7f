//! What must hold in every state of a small world.

use highwater_data::replication::Role;
use highwater_wire::{BrokerEpoch, BrokerId};

use super::super::invariants::{Verdict, must};
use super::broker::Record;
use super::{World, partition};

/// Whether a log holds all of this, at the same offsets.
fn holds(log: &[Record], all: &[Record]) -> bool {
    log.len() >= all.len() && log[..all.len()] == *all
}

impl World {
    /// Notes what is committed by now, and checks everything.
    pub fn check(&mut self) -> Verdict {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        self.commit()?;
        self.members_are_complete()?;
        self.watermarks_were_reached()?;
        self.logs_match()
    }

    /// One offset, one content (S9, H2); a watermark is no higher than what those it counts really hold (T3).
    fn commit(&mut self) -> Verdict {
        for index in 0..self.brokers.len() {
            let broker = &self.brokers[index];
            let Some(Role::Leader(leader)) = broker.role() else { continue };
            let end = usize::try_from(leader.high_watermark().0).unwrap_or(0);
            let (own, known) = (&broker.log.records, &self.committed);
            let both = end.min(known.len());
            must(own[..both] == known[..both], "S9", || {
                format!("leader {} of epoch {} holds {own:?}, committed is {known:?}", broker.id, leader.epoch())
            })?;
            let told = |id: BrokerId| leader.reported_ends().find(|(told, ..)| *told == id).map(|(_, epoch, _)| epoch);
            for member in leader.isr().maximal().filter(|id| *id != broker.id) {
                let Some(epoch) = told(member) else { continue };
                let theirs = self.broker(member).log_as_of(epoch);
                must(end <= both || holds(theirs, &own[..end]), "T3", || {
                    format!(
                        "leader {} of epoch {} counts records up to {end}; {member}, which it counts, holds {theirs:?} of \
                         {own:?}",
                        broker.id,
                        leader.epoch()
                    )
                })?;
            }
            if end > known.len() {
                self.committed = own[..end].to_vec();
            }
        }
        Ok(())
    }

    /// S7: whoever may be elected holds everything committed. What somebody lost counts from the next registration on.
    fn members_are_complete(&self) -> Verdict {
        let Some(state) = self.image.partition(partition()) else { return Ok(()) };
        for member in state.isr.iter().chain(&state.elr) {
            let registered = self.image.broker(*member).map_or(BrokerEpoch(-1), |known| known.epoch);
            let log = self.broker(*member).log_as_of(registered);
            must(holds(log, &self.committed), "S7", || {
                format!(
                    "{member} may be elected (ISR {:?}, ELR {:?}) and holds {log:?}; committed is {:?}",
                    state.isr, state.elr, self.committed
                )
            })?;
        }
        Ok(())
    }

    /// S10: nobody's watermark is beyond what a leader's once was.
    fn watermarks_were_reached(&self) -> Verdict {
        for broker in &self.brokers {
            let end = broker.high_watermark().map_or(0, |end| end.0);
            must(end <= self.committed.len() as i64, "S10", || {
                format!("{} has watermark {end}, committed is {:?}", broker.id, self.committed)
            })?;
        }
        Ok(())
    }

    /// S9: two logs that hold a record of one epoch at one offset hold the same up to there.
    fn logs_match(&self) -> Verdict {
        for (index, one) in self.brokers.iter().enumerate() {
            for other in &self.brokers[index + 1..] {
                let (a, b) = (&one.log.records, &other.log.records);
                let Some(last) = a.iter().zip(b).rposition(|(a, b)| a.epoch == b.epoch) else { continue };
                must(a[..=last] == b[..=last], "S9", || {
                    format!("{} holds {a:?}, {} holds {b:?}: the same epoch at {last}", one.id, other.id)
                })?;
            }
        }
        Ok(())
    }
}
