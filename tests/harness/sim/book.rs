//! What is known of every replica and partition, kept outside the product and written by what it was seen to do.
//!
//! A log is mirrored as a list of batches with a chained fingerprint: two logs with the same chain at an offset hold
//! the same batches, of the same epochs, up to there. So "does this replica hold everything committed" is one
//! comparison, made after every event.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_quorum::image::PartitionState;
use highwater_wire::{BrokerId, TopicPartition};

use super::lines::Lines;

/// One stored batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    pub base: i64,
    /// Exclusive.
    pub end: i64,
    pub epoch: i32,
    /// Names its content: the checksum covers everything but base and epoch.
    pub crc: u32,
    /// Fingerprint of everything up to and including this batch.
    pub chain: u64,
}

fn link(chain: u64, base: i64, epoch: i32, crc: u32) -> u64 {
    let mut hash = chain;
    for fact in [base as u64, epoch as u64, u64::from(crc)] {
        hash = (hash.rotate_left(7) ^ fact).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    hash ^ (hash >> 29)
}

/// The batches of one log, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirror {
    /// Where it begins, and the fingerprint of what was before.
    pub origin: i64,
    pub origin_chain: u64,
    pub batches: Vec<Batch>,
}

impl Mirror {
    /// Empty, to be filled from `origin` on.
    pub fn starting(origin: i64, origin_chain: u64) -> Self {
        Self { origin, origin_chain, batches: Vec::new() }
    }

    pub fn end(&self) -> i64 {
        self.batches.last().map_or(self.origin, |b| b.end)
    }

    pub fn last_epoch(&self) -> Option<i32> {
        self.batches.last().map(|b| b.epoch)
    }

    pub fn push(&mut self, base: i64, end: i64, epoch: i32, crc: u32) -> Batch {
        let before = self.batches.last().map_or(self.origin_chain, |b| b.chain);
        let batch = Batch { base, end, epoch, crc, chain: link(before, base, epoch, crc) };
        self.batches.push(batch);
        batch
    }

    /// The fingerprint of everything below `offset`; `None` where no batch ends there.
    pub fn chain_at(&self, offset: i64) -> Option<u64> {
        if offset == self.origin {
            return Some(self.origin_chain);
        }
        let index = self.batches.partition_point(|b| b.end < offset);
        self.batches.get(index).filter(|b| b.end == offset).map(|b| b.chain)
    }

    /// The batch that holds this offset.
    pub fn batch_at(&self, offset: i64) -> Option<&Batch> {
        let index = self.batches.partition_point(|b| b.end <= offset);
        self.batches.get(index).filter(|b| b.base <= offset)
    }

    /// The batches that end above `from` and at or below `to`.
    pub fn between(&self, from: i64, to: i64) -> &[Batch] {
        let first = self.batches.partition_point(|b| b.end <= from);
        let last = self.batches.partition_point(|b| b.end <= to);
        &self.batches[first.min(last)..last]
    }

    /// Drops what ends above `to`.
    pub fn cut(&mut self, to: i64) {
        let keep = self.batches.partition_point(|b| b.end <= to);
        self.batches.truncate(keep);
    }

    /// How far both hold the same: the end of the last common batch at or below `limit`.
    pub fn agrees_up_to(&self, other: &Self, limit: i64) -> i64 {
        let mut agreed = self.origin.max(other.origin);
        let (mut low, mut high) = (0, self.batches.len());
        // Chains agree on a prefix and nowhere after: bisect.
        while low < high {
            let middle = usize::midpoint(low, high);
            let batch = &self.batches[middle];
            let agrees = batch.end <= agreed || (batch.end <= limit && other.chain_at(batch.end) == Some(batch.chain));
            if agrees {
                agreed = agreed.max(batch.end);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        agreed
    }
}

/// A log as a former process of its broker held it: what a leader counts that has not heard of the present one.
#[derive(Debug, Clone)]
pub struct Former {
    pub broker_epoch: i64,
    pub mirror: Mirror,
    pub flushed_end: i64,
}

/// One replica as last seen.
#[derive(Debug, Clone, Default)]
pub struct ReplicaBook {
    pub mirror: Mirror,
    /// The process that hosted it, counted over the whole run.
    pub process: u64,
    pub broker_epoch: i64,
    /// When its log was opened (µs): of producers' windows it then knew only the newest batch (R57).
    pub opened_at: u64,
    /// Up and hosting it now.
    pub alive: bool,
    /// What its disk had to keep through all that happened since it was open: exclusive.
    pub kept_up_to: i64,
    pub truncations: u64,
    pub segments: usize,
    /// A truncation to there stopped half-way, with its disk: what lay above may be gone, or not.
    pub cut_to: Option<i64>,
    pub start: i64,
    pub high_watermark: i64,
    pub flushed_end: i64,
    pub leader_epoch: i32,
    pub partition_epoch: i32,
    pub leads: bool,
    /// Where its newest leadership begins, and which followers it heard in it: as which processes, and their largest ends.
    pub leadership_start: i64,
    pub heard: BTreeMap<(BrokerId, i64), i64>,
    /// Newest last.
    pub former: Vec<Former>,
    /// Entries of the epoch history when it was last compared with the log.
    pub epochs_seen: usize,
    /// The line of committed records (its first leader epoch) that it was seen to hold.
    pub line: i32,
    /// It was opened since lines were cut, and not seen on the present one since: its watermark may be of a former one.
    pub unsettled: bool,
    /// Its log start was counted for an answer to DeleteRecords: it never falls below that again.
    pub owes_start: i64,
}

/// A partition: what was ever committed, and who holds it.
#[derive(Debug, Clone, Default)]
pub struct PartitionBook {
    /// Everything below the largest high watermark that a leader ever reached.
    pub committed: Mirror,
    /// Leader epoch → who led in it.
    pub leaders: BTreeMap<i32, (BrokerId, u64)>,
    pub replicas: BTreeMap<BrokerId, ReplicaBook>,
    /// As the quorum has it.
    pub quorum: Option<Arc<PartitionState>>,
    /// Effective min ISR.
    pub min_isr: usize,
    /// How many at least hold everything committed, of the ISR, the ELR and those who lost something and are not back: the
    /// effective min ISR, but after it was raised the one before until the ISR has reached it, and after it was lowered no
    /// more than that entry left (R196).
    pub promised: usize,
    pub flushes_each: bool,
    pub deletes_old: bool,
    /// What unclean elections took back.
    pub lines: Lines,
    /// Everything below was deleted by DeleteRecords, and said to be.
    pub deleted_to: i64,
    /// The largest start of a leader's log, as far as its line is the present one: below it records may be gone.
    pub gone_to: i64,
    /// The committed records by offset, from 0 on.
    pub serials: Vec<u64>,
    /// Serial of a record of an idempotent producer → its committed offset.
    pub serial_at: BTreeMap<u64, i64>,
    /// Producer id → newest committed serial.
    pub newest_of: BTreeMap<i64, u64>,
}

impl PartitionBook {
    /// The largest high watermark a leader ever reached.
    pub fn max_high_watermark(&self) -> i64 {
        self.committed.end()
    }

    /// Whether a replica holds everything committed.
    pub fn is_complete(&self, broker: BrokerId) -> bool {
        let end = self.committed.end();
        if end == 0 {
            return true;
        }
        let Some(replica) = self.replicas.get(&broker) else { return false };
        if replica.mirror.origin > 0 && replica.mirror.origin >= end {
            // Everything committed was deleted below its start.
            return true;
        }
        replica.mirror.chain_at(end).is_some_and(|chain| Some(chain) == self.committed.chain_at(end))
    }

    /// The fingerprint of everything below `offset`, where it is known: of what is committed, or as the leader of this epoch
    /// holds it.
    pub fn known_chain(&self, offset: i64, leader_epoch: i32) -> Option<u64> {
        let leader = self.leaders.get(&leader_epoch).and_then(|(leader, _)| self.replicas.get(leader));
        let led = || leader.and_then(|leader| leader.mirror.chain_at(offset));
        self.committed.chain_at(offset).or_else(led)
    }

    /// The log of a broker that a leader counts when it counts the process with this broker epoch, and up to where it is
    /// synced. What a process lost matters from its next registration on, and to leaders that have heard of that.
    pub fn log_of(&self, broker: BrokerId, broker_epoch: Option<i64>) -> Option<(&Mirror, i64)> {
        let replica = self.replicas.get(&broker)?;
        let former = replica.former.iter().rev().find(|former| Some(former.broker_epoch) == broker_epoch);
        match former {
            Some(former) if replica.broker_epoch != former.broker_epoch => Some((&former.mirror, former.flushed_end)),
            _ => Some((&replica.mirror, replica.flushed_end)),
        }
    }

    /// Who the quorum may elect: ISR and ELR.
    pub fn members(&self) -> Vec<BrokerId> {
        self.quorum.as_ref().map_or_else(Vec::new, |state| state.isr.iter().chain(&state.elr).copied().collect())
    }
}

/// What a batch holds, by its checksum: written by whoever built it.
#[derive(Debug, Clone)]
pub struct Content {
    pub serials: Vec<u64>,
    /// −1: not idempotent.
    pub producer: i64,
}

/// All partitions that ever were.
#[derive(Debug, Default)]
pub struct Book {
    pub partitions: BTreeMap<TopicPartition, PartitionBook>,
    /// Checksum → content.
    pub contents: BTreeMap<u32, Content>,
    /// Serials that were refused for good and may never be seen (H4).
    pub refused: std::collections::BTreeSet<u64>,
    /// Partitions of which an operator said, in the entry that is being decided, that their records may be lost.
    pub may_lose: std::collections::BTreeSet<TopicPartition>,
    /// Elected uncleanly since somebody last looked.
    pub elected_uncleanly: Vec<TopicPartition>,
    /// Promised less since somebody last looked.
    pub promised_less: Vec<TopicPartition>,
}

/// One replica as it is after an event.
#[derive(Debug)]
pub struct Look<'a> {
    pub at: TopicPartition,
    pub broker: BrokerId,
    /// Of the registration of its process; −1: none.
    pub broker_epoch: i64,
    pub process: u64,
    pub leads: bool,
    pub leader_epoch: i32,
    pub partition_epoch: i32,
    pub start: i64,
    pub high_watermark: i64,
    pub end: i64,
    pub flushed_end: i64,
    pub truncations: u64,
    pub segments: usize,
    /// Epoch and first offset.
    pub epochs: &'a [(i32, i64)],
    pub isr: &'a [BrokerId],
    /// As the image says that this broker has acted on.
    pub min_isr: usize,
    pub maximal_isr: &'a [BrokerId],
    /// Followers' ends as the leader believes them, with the broker epoch of the fetch that said so.
    pub believed: &'a [(BrokerId, i64, i64)],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_with_equal_chains_are_equal_and_others_part_where_they_differ() {
        let (mut a, mut b) = (Mirror::default(), Mirror::default());
        for mirror in [&mut a, &mut b] {
            mirror.push(0, 2, 0, 11);
            mirror.push(2, 3, 0, 12);
        }
        a.push(3, 5, 0, 13);
        b.push(3, 5, 1, 13);
        assert_eq!(a.chain_at(3), b.chain_at(3));
        assert_ne!(a.chain_at(5), b.chain_at(5));
        assert_eq!(a.chain_at(4), None);
        assert_eq!(a.agrees_up_to(&b, 5), 3);
        assert_eq!(a.between(0, 3).len(), 2);
        b.cut(4);
        assert_eq!(b.end(), 3);
        assert_eq!(a.batch_at(4).map(|x| x.base), Some(3));
    }
}
