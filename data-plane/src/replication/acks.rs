//! Produce requests that wait for an offset to be safe, or for a deadline (R48–R53).

use std::collections::VecDeque;

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{LeaderEpoch, Millis, Offset, Timestamp};

/// Names one waiting request of a client; minted by the caller, comes back with the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One stored batch whose producer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    pub ticket: Ticket,
    /// Exclusive end of the batch: safe when the bound has reached it.
    pub end: Offset,
    /// Of the leadership that the producer's wait belongs to (R52).
    pub leader_epoch: LeaderEpoch,
    pub deadline: Millis,
    pub base: Offset,
    pub log_append_time: Timestamp,
}

/// Ordered by end. All entries belong to one leadership: the queue is emptied when it ends, before anything is truncated
/// (R51), so that no watermark of another epoch can free them (R52, R264).
#[derive(Debug, Clone, Default)]
pub struct AckQueue {
    waiting: VecDeque<Ack>,
    /// No entry is due before this.
    next_deadline: Option<Millis>,
}

impl AckQueue {
    /// Waits. Panics when entries of another leadership are still here.
    pub fn push(&mut self, ack: Ack) {
        if let Some(other) = self.waiting.front() {
            assert_eq!(other.leader_epoch, ack.leader_epoch, "acks of two leaderships in one queue");
        }
        self.next_deadline = Some(self.next_deadline.map_or(ack.deadline, |next| next.min(ack.deadline)));
        // Ends grow with the log; only the repetition of an old batch (R58) belongs further forward.
        let mut at = self.waiting.len();
        while at > 0 && self.waiting[at - 1].end > ack.end {
            at -= 1;
        }
        self.waiting.insert(at, ack);
    }

    /// Frees what ends at or below `safe_end`, a bound of `leader_epoch`.
    pub fn release(&mut self, safe_end: Offset, leader_epoch: LeaderEpoch, mut freed: impl FnMut(Ack)) {
        while let Some(ack) = self.waiting.front() {
            if ack.end > safe_end {
                return;
            }
            let same = ack.leader_epoch == leader_epoch || planted(Flaw::AcksAcrossEpochs);
            assert!(same, "an ack of epoch {} outlived its leadership into {leader_epoch}", ack.leader_epoch);
            freed(*ack);
            self.waiting.pop_front();
        }
        self.next_deadline = None;
    }

    /// Takes out what has waited too long.
    pub fn expire(&mut self, now: Millis, mut expired: impl FnMut(Ack)) {
        if self.next_deadline.is_none_or(|next| next > now) {
            return;
        }
        let mut next: Option<Millis> = None;
        self.waiting.retain(|ack| {
            let keep = ack.deadline > now;
            if keep {
                next = Some(next.map_or(ack.deadline, |next| next.min(ack.deadline)));
            } else {
                expired(*ack);
            }
            keep
        });
        self.next_deadline = next;
    }

    /// Takes out everything: the leadership ends.
    pub fn drain(&mut self, mut lost: impl FnMut(Ack)) {
        self.waiting.drain(..).for_each(&mut lost);
        self.next_deadline = None;
    }

    /// When `expire` is due; may be early, never late.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.next_deadline
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: LeaderEpoch = LeaderEpoch(3);

    fn ack(ticket: u64, end: i64, deadline: u64) -> Ack {
        Ack {
            ticket: Ticket(ticket),
            end: Offset(end),
            leader_epoch: EPOCH,
            deadline: Millis(deadline),
            base: Offset(end - 1),
            log_append_time: Timestamp::NONE,
        }
    }

    fn queue(acks: &[(u64, i64, u64)]) -> AckQueue {
        let mut queue = AckQueue::default();
        acks.iter().for_each(|&(ticket, end, deadline)| queue.push(ack(ticket, end, deadline)));
        queue
    }

    fn released(queue: &mut AckQueue, end: i64) -> Vec<u64> {
        let mut freed = Vec::new();
        queue.release(Offset(end), EPOCH, |ack| freed.push(ack.ticket.0));
        freed
    }

    #[test]
    fn a_batch_is_free_when_the_bound_reaches_its_end() {
        let mut queue = queue(&[(1, 5, 100), (2, 8, 100)]);
        assert!(released(&mut queue, 4).is_empty());
        assert_eq!(released(&mut queue, 7), [1]);
        assert_eq!(released(&mut queue, 8), [2]);
        assert!(queue.is_empty());
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn a_repeated_batch_waits_for_its_original_offset_only() {
        let mut queue = queue(&[(1, 5, 100), (2, 9, 100), (3, 5, 100)]);
        assert_eq!(released(&mut queue, 5), [1, 3]);
    }

    #[test]
    fn a_deadline_takes_out_its_own_entry_only() {
        let mut queue = queue(&[(1, 5, 300), (2, 8, 200), (3, 9, 400)]);
        let mut expired = Vec::new();
        queue.expire(Millis(199), |ack| expired.push(ack.ticket.0));
        assert!(expired.is_empty());
        queue.expire(Millis(200), |ack| expired.push(ack.ticket.0));
        assert_eq!(expired, [2]);
        assert_eq!(queue.next_deadline(), Some(Millis(300)));
        assert_eq!(released(&mut queue, 9), [1, 3]);
    }

    #[test]
    #[should_panic(expected = "outlived its leadership")]
    fn a_watermark_of_another_epoch_frees_nothing() {
        queue(&[(1, 5, 100)]).release(Offset(9), LeaderEpoch(5), |_| {});
    }
}
