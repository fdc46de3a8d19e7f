//! How the book is kept: what was seen goes in, and every invariant that it may touch is checked.

use std::sync::Arc;

use highwater_quorum::MetadataImage;
use highwater_quorum::image::{LeaderRecovery, PartitionState, TopicConfig};
use highwater_wire::{BrokerId, TopicPartition};

use super::book::{Book, Former, Look, Mirror, PartitionBook, ReplicaBook};
use super::core::Counts;
use super::invariants::{
    Verdict, consistent_read, joining, leader_candidate_completeness, leader_completeness, log_matching,
    monotonic_epochs, replication_quorum_superset, valid_isr_and_elr,
};
use super::node::End;

/// A batch as read from a log: base, end, epoch, checksum.
pub type Read = (i64, i64, i32, u32);

impl Book {
    pub fn partition(&mut self, at: TopicPartition) -> &mut PartitionBook {
        self.partitions.entry(at).or_default()
    }

    /// A process ended, and perhaps its machine or disk: what it held must be there again, or what it had synced.
    pub fn went_down(&mut self, broker: BrokerId, end: End) {
        for partition in self.partitions.values_mut() {
            let Some(replica) = partition.replicas.get_mut(&broker) else { continue };
            let held = if replica.alive { replica.mirror.end() } else { replica.kept_up_to };
            replica.kept_up_to = match end {
                End::Killed | End::Stopped => held,
                End::PowerLoss => held.min(replica.flushed_end),
                End::Wiped => 0,
            };
            replica.alive = false;
            replica.leads = false;
        }
    }

    /// A broker let go of a replica for good.
    pub fn deleted(&mut self, broker: BrokerId, at: TopicPartition) {
        if let Some(partition) = self.partitions.get_mut(&at) {
            partition.replicas.remove(&broker);
        }
    }

    /// A replica was opened: it must hold what its disk had to keep.
    pub fn reopened(&mut self, look: &Look<'_>, now: ReplicaBook) -> Verdict {
        let Some(partition) = self.partitions.get_mut(&look.at) else { return Ok(()) };
        let Some(before) = partition.replicas.get(&look.broker) else {
            partition.replicas.insert(look.broker, now);
            return Ok(());
        };
        log_matching::reopened(look, before, &now)?;
        let mut now = now;
        now.leader_epoch = before.leader_epoch;
        now.partition_epoch = before.partition_epoch;
        now.former.clone_from(&before.former);
        now.former.push(Former {
            broker_epoch: before.broker_epoch,
            mirror: before.mirror.clone(),
            flushed_end: before.flushed_end,
        });
        partition.replicas.insert(look.broker, now);
        leader_candidate_completeness::members(look.at, partition)
    }

    /// A replica after an event. `new`: the batches since last time; `None`: it was truncated, read `whole`.
    pub fn looked(
        &mut self,
        look: &Look<'_>,
        new: Option<Vec<Read>>,
        whole: impl FnOnce() -> Vec<Read>,
        counts: &mut Counts,
    ) -> Verdict {
        let at = look.at;
        // A topic that is deleted lives on at brokers that have not heard of it.
        let Some(partition) = self.partitions.get_mut(&at) else { return Ok(()) };
        let Some(replica) = partition.replicas.get(&look.broker) else { return Ok(()) };
        let before_watermark = replica.high_watermark;
        let took_over = look.leads && !(replica.leads && replica.leader_epoch == look.leader_epoch);
        let grew = new.as_ref().is_none_or(|new| !new.is_empty());
        let renewed = replica.high_watermark != look.high_watermark || grew;
        let mut cut = false;
        match new {
            Some(new) => {
                let mirror = &mut partition.replicas.get_mut(&look.broker).expect("looked up above").mirror;
                for (base, end, epoch, crc) in new {
                    if mirror.batches.is_empty() && base != mirror.origin {
                        *mirror = Mirror::starting(base, partition.committed.chain_at(base).unwrap_or(0));
                    }
                    mirror.push(base, end, epoch, crc);
                }
            }
            None => {
                counts.truncations += 1;
                cut = true;
                self.truncated(look, whole())?;
            }
        }
        let partition = self.partition(at);
        monotonic_epochs::at_broker(look, partition)?;
        leader_completeness::watermark_rises(look, partition)?;
        let replica = &partition.replicas[&look.broker];
        if renewed || cut || took_over {
            log_matching::shape(look, replica)?;
            if cut || look.epochs.len() != replica.epochs_seen || took_over {
                log_matching::epochs_match_the_log(look, replica)?;
            }
        }
        let epochs_seen = look.epochs.len();
        // S7, S10 and T3 look at the book as it was before this event told of anything new.
        // One that took an old epoch, late, commits nothing any more.
        let current = partition.quorum.as_ref().is_none_or(|state| state.leader_epoch.0 <= look.leader_epoch);
        if took_over && current {
            leader_completeness::took_over(look, partition)?;
        }
        {
            let replica = partition.replicas.get_mut(&look.broker).expect("looked up above");
            replica.truncations = look.truncations;
            replica.start = look.start;
            replica.high_watermark = look.high_watermark;
            replica.flushed_end = look.flushed_end;
            replica.leader_epoch = look.leader_epoch;
            replica.partition_epoch = look.partition_epoch;
            replica.leads = look.leads;
            replica.broker_epoch = look.broker_epoch;
            replica.epochs_seen = epochs_seen;
        }
        if look.leads {
            let replica = partition.replicas.get_mut(&look.broker).expect("looked up above");
            if took_over {
                replica.leadership_start = look.end;
                replica.heard.clear();
            }
            for &(follower, epoch, end) in look.believed {
                let heard = replica.heard.entry((follower, epoch)).or_insert(end);
                *heard = end.max(*heard);
            }
            if look.high_watermark > before_watermark {
                replication_quorum_superset::watermark_moved(look, partition)?;
            }
            replication_quorum_superset::maximal_isr(look, partition)?;
            log_matching::believed_ends(look, partition)?;
            if look.high_watermark > partition.committed.end() {
                self.commit(look)?;
            }
        }
        let partition = self.partition(at);
        leader_completeness::watermark_was_reached(look, partition)?;
        if renewed && !partition.unclean {
            log_matching::below_watermark(look, partition)?;
        }
        Ok(())
    }

    /// A truncation of a replica stopped half-way, with its disk.
    pub fn cut_short(&mut self, at: TopicPartition, broker: BrokerId, left: i64, truncations: u64) {
        if let Some(replica) = self.partitions.get_mut(&at).and_then(|p| p.replicas.get_mut(&broker)) {
            replica.mirror.cut(left);
            replica.truncations = truncations;
        }
    }

    /// A leader's watermark went beyond all earlier ones: what lies below it is committed for ever.
    fn commit(&mut self, look: &Look<'_>) -> Verdict {
        let partition = self.partition(look.at);
        leader_completeness::took_over(look, partition)?;
        let from = partition.committed.end();
        let batches = partition.replicas[&look.broker].mirror.between(from, look.high_watermark).to_vec();
        for batch in batches {
            let partition = self.partition(look.at);
            if partition.committed.end() < batch.base {
                // Only with records that a leader deleted before anybody counted them.
                partition.committed = Mirror::starting(batch.base, 0);
            }
            partition.committed.push(batch.base, batch.end, batch.epoch, batch.crc);
            consistent_read::committed(look.at, self, &batch)?;
        }
        leader_candidate_completeness::members(look.at, self.partition(look.at))
    }

    fn truncated(&mut self, look: &Look<'_>, whole: Vec<Read>) -> Verdict {
        let partition = self.partition(look.at);
        let origin = whole.first().map_or(look.start, |first| first.0);
        // What lay below is not held here any more; what it ought to have been is known.
        let known = partition.committed.chain_at(origin);
        let chain = known.or_else(|| partition.replicas[&look.broker].mirror.chain_at(origin)).unwrap_or(0);
        let mut mirror = Mirror::starting(origin, chain);
        for (base, end, epoch, crc) in whole {
            mirror.push(base, end, epoch, crc);
        }
        let before = &partition.replicas[&look.broker].mirror;
        let agreed = before.agrees_up_to(&mirror, before.end().min(mirror.end()));
        if !partition.unclean {
            log_matching::truncation(look, partition, agreed.min(mirror.end()))?;
        }
        partition.replicas.get_mut(&look.broker).expect("looked up by the caller").mirror = mirror;
        Ok(())
    }

    /// The quorum has another state of a partition.
    pub fn decided(
        &mut self,
        at: TopicPartition,
        state: &Arc<PartitionState>,
        config: &TopicConfig,
        image: &MetadataImage,
        counts: &mut Counts,
    ) -> Verdict {
        let partition = self.partition(at);
        let before = partition.quorum.replace(state.clone());
        partition.min_isr = state.effective_min_isr(config.min_isr);
        partition.flushes_each = config.flush_messages == 1;
        partition.deletes_old = config.retention_bytes.is_some();
        monotonic_epochs::at_quorum(at, before.as_deref(), state)?;
        if let Some(before) = &before {
            if before.leader != state.leader && state.leader.is_some() {
                counts.leader_changes += 1;
                counts.elr_elections += u64::from(before.isr.is_empty());
            }
            counts.isr_changes += u64::from(before.isr != state.isr);
        }
        if state.recovery == LeaderRecovery::Recovering {
            // Only where the topic allows it, which no simulated topic does, or with proof (D30).
            let leader = state.leader.or_else(|| state.isr.first().copied());
            let complete = leader.is_none_or(|leader| partition.is_complete(leader));
            super::invariants::must(complete, "D30", || {
                format!("{at}: {leader:?} was elected though it lacks committed records: {state:?}")
            })?;
        }
        valid_isr_and_elr::partition(at, state, partition.min_isr, image)?;
        if let Some(before) = &before {
            joining::by_proof(at, before, state, partition, image)?;
        }
        leader_candidate_completeness::members(at, partition)?;
        leader_candidate_completeness::last_known(at, partition, image)
    }
}
