//! DeleteRecords at the leader (R274, D33): asked, awaited, answered, and each step looked at.

use highwater_data::disk::SimDisk;
use highwater_data::replica::message::{DeleteRecords, ReplicaReply, ReplicaRequest, Ticket};
use highwater_data::replication::Role;
use highwater_wire::{ErrorCode, Millis, Offset, TopicPartition};

use super::super::core::Core;
use super::super::invariants::deleted_records;
use super::super::marks::Mark;
use super::super::message::{Call, Message};
use super::super::network::{Link, Way};
use super::Process;

/// A request that waits for the log starts to follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingDelete {
    to: (Link, u64, Call),
    /// What it deletes below.
    target: Offset,
}

impl Process {
    pub(super) fn on_delete(
        &mut self,
        core: &mut Core,
        to: (Link, u64, Call),
        at: TopicPartition,
        before: Option<Offset>,
        timeout_ms: u64,
    ) {
        let Some(hosted) = self.hosted.get(&at) else {
            return Self::send_deleted(core, to, Err(ErrorCode::NotLeaderOrFollower));
        };
        let high_watermark = hosted.replica.replication().high_watermark();
        let start = hosted.replica.log().view().start;
        let leads = matches!(hosted.replica.replication().role(), Role::Leader(_));
        let ticket = Ticket(self.mint());
        let deadline = core.clock().mono + Millis(timeout_ms);
        self.deleting.insert(ticket, WaitingDelete { to, target: before.unwrap_or(high_watermark) });
        let reply = self.ask(core, at, ReplicaRequest::DeleteRecords(DeleteRecords { before, deadline, ticket }));
        let (Some(reply), Some(hosted)) = (reply, self.hosted.get(&at)) else { return };
        let refused = matches!(&reply, ReplicaReply::Refused(refusal) if refusal.code() == ErrorCode::OffsetOutOfRange);
        if leads && hosted.replica.log().failed().is_none() {
            let starts = (start.0, hosted.replica.log().view().start.0);
            core.check(deleted_records::judged(at, before.map(|o| o.0), high_watermark.0, refused, starts));
        }
        if !matches!(reply, ReplicaReply::Waiting) {
            self.answer_delete(core, at, ticket, &reply, false);
        }
    }

    pub(super) fn answer_delete(
        &mut self,
        core: &mut Core,
        at: TopicPartition,
        ticket: Ticket,
        reply: &ReplicaReply<SimDisk>,
        waited: bool,
    ) {
        let Some(WaitingDelete { to, target }) = self.deleting.remove(&ticket) else { return };
        let result = match reply {
            ReplicaReply::DeletedRecords { low_watermark } => {
                core.counts.deletes_answered += 1;
                if waited {
                    core.mark(Mark::DeleteAwaited);
                }
                let alive = self.acted.active_brokers().filter(|broker| broker.id != self.id);
                let alive: Vec<_> = alive.map(|broker| (broker.id, broker.epoch.0)).collect();
                let me = self.id;
                if let Some(partition) = core.book.partitions.get_mut(&at) {
                    let verdict = deleted_records::answered(at, me, target.0, low_watermark.0, &alive, partition);
                    core.check(verdict);
                }
                Ok(*low_watermark)
            }
            ReplicaReply::Refused(refusal) => Err(refusal.code()),
            other => panic!("DeleteRecords is answered with {other:?}"),
        };
        Self::send_deleted(core, to, result);
    }

    fn send_deleted(core: &mut Core, (link, generation, call): (Link, u64, Call), result: Result<Offset, ErrorCode>) {
        core.send(link, Way::Back, generation, Message::Deleted { call, result });
    }

    /// A consumer is about to be shown something: it must not be what was said to be deleted, if this is the leader now.
    pub(super) fn check_shown(&self, core: &mut Core, at: TopicPartition, offset: Offset, start: Offset) {
        let (Some(hosted), Some(partition)) = (self.hosted.get(&at), core.book.partitions.get(&at)) else { return };
        let epoch = hosted.replica.replication().leader_epoch();
        if partition.quorum.as_ref().is_some_and(|state| state.leader_epoch == epoch) {
            let verdict = deleted_records::shown(at, self.id, offset, start, partition);
            core.check(verdict);
        }
    }
}
