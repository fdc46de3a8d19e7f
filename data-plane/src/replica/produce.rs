//! A producer's batch, from the checks to its acknowledgement (R42 from step 8 on).

use highwater_wire::{LeaderEpoch, Timestamp};

use super::message::{Acks, Now, Produce, Produced, ReplicaReply};
use super::{Replica, StorageFailure};
use crate::disk::Disk;
use crate::log::{ProducerCheck, ProducerRefusal};
use crate::replication::leader::{AckState, StoredBatch};
use crate::replication::refusal::Refusal;

impl<D: Disk> Replica<D> {
    pub(super) fn produce(&mut self, produce: Produce, now: Now) -> Result<ReplicaReply<D>, StorageFailure> {
        let epoch = match self.may_append(produce.acks, produce.epoch) {
            Ok(epoch) => epoch,
            Err(refusal) => return Ok(ReplicaReply::Refused(refusal)),
        };
        let stored = match self.log.check_producer(&produce.batch) {
            Ok(ProducerCheck::Fresh) => {
                if let Some((leader, cx)) = self.replication.lead_with(self.log.view(), now.mono, &mut self.effects) {
                    leader.before_append(&cx.view);
                }
                let appended = self.log.append_as_leader(&produce.batch, epoch, now.wall)?;
                if let Some((leader, mut cx)) = self.replication.lead_with(self.log.view(), now.mono, &mut self.effects)
                {
                    leader.on_appended(&mut cx);
                }
                StoredBatch {
                    base: appended.base,
                    end: appended.last.plus(1),
                    log_append_time: appended.log_append_time.unwrap_or(Timestamp::NONE),
                }
            }
            // Nothing is appended; the answer waits for the original batch (R58).
            Ok(ProducerCheck::Duplicate { base, last, timestamp }) => {
                let stamped = self.log.settings().log_append_time;
                let log_append_time = if stamped { timestamp } else { Timestamp::NONE };
                StoredBatch { base, end: last.plus(1), log_append_time }
            }
            Err(refusal) => return Ok(ReplicaReply::Refused(producer_refusal(&refusal))),
        };
        let Some((leader, cx)) = self.replication.lead_with(self.log.view(), now.mono, &mut self.effects) else {
            return Ok(ReplicaReply::Refused(self.replication.not_leader()));
        };
        let state = match produce.acks {
            Acks::None => AckState::Done,
            Acks::Leader => leader.await_own(stored, produce.ticket, produce.deadline, &cx.view),
            Acks::AllInSync => leader.await_commit(stored, produce.ticket, produce.deadline),
        };
        let log_start = cx.view.start;
        Ok(match state {
            AckState::Done => ReplicaReply::Produced(Produced {
                base: stored.base,
                log_append_time: stored.log_append_time,
                log_start,
            }),
            AckState::Waiting => ReplicaReply::Waiting,
            AckState::Refused(refusal) => ReplicaReply::Refused(refusal),
        })
    }

    /// R42 steps 8 and 9.
    fn may_append(&self, acks: Acks, as_of: Option<LeaderEpoch>) -> Result<LeaderEpoch, Refusal> {
        let leader = self.replication.leader()?;
        if as_of.is_some_and(|epoch| epoch != leader.epoch()) {
            return Err(self.replication.not_leader());
        }
        if acks == Acks::AllInSync {
            leader.may_append_for_all()?;
        }
        Ok(leader.epoch())
    }
}

fn producer_refusal(refusal: &ProducerRefusal) -> Refusal {
    match refusal {
        ProducerRefusal::StaleEpoch { .. } => Refusal::InvalidProducerEpoch { why: refusal.to_string() },
        ProducerRefusal::OutOfOrder { .. } => Refusal::OutOfOrderSequence { why: refusal.to_string() },
    }
}
