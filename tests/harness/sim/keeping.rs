//! How the book is kept: what was seen goes in, and every invariant that it may touch is checked.

use std::sync::Arc;

use highwater_quorum::MetadataImage;
use highwater_quorum::image::{ChangeKind, LeaderReason, PartitionChange, PartitionState, TopicConfig};
use highwater_wire::{BrokerId, TopicPartition};

use super::answers::history_tells;
use super::book::{Book, Former, Look, Mirror, PartitionBook, ReplicaBook};
use super::core::Counts;
use super::invariants::{
    Verdict, consistent_read, deleted_records, joining, leader_candidate_completeness, leader_completeness,
    log_matching, monotonic_epochs, replication_quorum_superset, reported_loss, valid_isr_and_elr,
};
use super::marks::Mark;
use super::node::End;

/// The built-in `retention.ms`: nothing is that old in a simulation.
const WEEK_MS: u64 = 604_800_000;

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
            let held = held.min(replica.cut_to.unwrap_or(held));
            replica.kept_up_to = match end {
                End::Killed | End::Stopped => held,
                End::PowerLoss => held.min(replica.flushed_end),
                End::Wiped => 0,
            };
            if end == End::Wiped {
                replica.owes_start = 0;
            }
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
        deleted_records::reopened(look, before)?;
        let mut now = now;
        now.leader_epoch = before.leader_epoch;
        now.partition_epoch = before.partition_epoch;
        now.line = before.line;
        now.unsettled = partition.lines.since > 0;
        now.owes_start = if look.end == look.start { 0 } else { before.owes_start };
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
        let took = new.as_ref().is_some_and(|new| !new.is_empty());
        let mut cut = false;
        match new {
            Some(new) => {
                let mirror = &partition.replicas[&look.broker].mirror;
                // Where it was empty, whatever lay below was deleted, of this line or of a former one.
                let emptied = look.start >= mirror.end();
                let moved = new.first().map(|first| first.0).filter(|_| mirror.batches.is_empty() || emptied);
                let known = moved.and_then(|base| partition.known_chain(base, look.leader_epoch));
                let chain = known.or_else(|| mirror.chain_at(moved?)).unwrap_or(0);
                let mirror = &mut partition.replicas.get_mut(&look.broker).expect("looked up above").mirror;
                if let Some(base) = moved {
                    *mirror = Mirror::starting(base, chain);
                }
                for (base, end, epoch, crc) in new {
                    mirror.push(base, end, epoch, crc);
                }
            }
            None => {
                counts.truncations += 1;
                if look.segments < replica.segments {
                    counts.marks.hit(Mark::SegmentsCut);
                }
                if look.end == look.start && look.start != replica.start {
                    counts.marks.hit(Mark::BegunAnew);
                }
                cut = true;
                self.truncated(look, whole())?;
            }
        }
        let partition = self.partition(at);
        monotonic_epochs::at_broker(look, partition)?;
        if let Some(replica) = partition.replicas.get(&look.broker) {
            deleted_records::start_moved(look, replica)?;
        }
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
        // One that took an old epoch, late, commits nothing any more; but for the last of an unclean election that is still to lead
        // next: what it commits until it hears that it has stopped stays (seeds 27189, 28546).
        let current = partition.quorum.as_ref().is_none_or(|state| {
            let to_lead_next = state.leader.is_none() && state.elr == [look.broker];
            state.leader_epoch.0 <= look.leader_epoch
                || to_lead_next && partition.lines.unclean_epochs.contains(&look.leader_epoch)
        });
        if took_over && current {
            self.begin_line(look, counts);
            leader_completeness::took_over(look, self.partition(at))?;
            leader_completeness::begins_where_others_did(look, self.partition(at))?;
            deleted_records::took_over(look, self.partition(at))?;
        }
        let partition = self.partition(at);
        if took_over && !current && partition.lines.unclean_epochs.contains(&look.leader_epoch) {
            let leader = partition.replicas[&look.broker].clone();
            partition.took_over_in_vain(&leader);
        }
        {
            let replica = partition.replicas.get_mut(&look.broker).expect("looked up above");
            replica.truncations = look.truncations;
            replica.segments = look.segments;
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
            let shared = partition.lines.parted_after(look.leader_epoch).unwrap_or(look.start);
            partition.gone_to = partition.gone_to.max(look.start.min(shared));
            replication_quorum_superset::maximal_isr(look, partition)?;
            log_matching::believed_ends(look, partition)?;
            if look.leader_epoch < partition.lines.since {
                let batches = partition.replicas[&look.broker].mirror.between(before_watermark, look.high_watermark);
                let batches = batches.to_vec();
                let Self { partitions, contents, .. } = self;
                if let Some(partition) = partitions.get_mut(&at) {
                    partition.committed_in_vain(&batches, contents);
                }
            } else if look.high_watermark > partition.committed.end() {
                self.commit(look)?;
            }
        }
        let partition = self.partition(at);
        let line = partition.lines.since;
        let replica = &partition.replicas[&look.broker];
        let settled = replica.line == line && !replica.unsettled;
        let of_line = look.leader_epoch >= line;
        let as_line = leader_completeness::watermark_was_reached(look, partition).and_then(|()| {
            // It may have moved on with the line without anything of its own changing.
            if renewed || !settled { log_matching::below_watermark(look, partition) } else { Ok(()) }
        });
        // A replica of a line that was cut off holds what it held, and says what it said, until it is brought into the
        // present one: it leads in it, takes records of who leads in it, or turns out to hold what it holds.
        if settled || (of_line && (look.leads || took)) {
            as_line.clone()?;
        }
        let compared = took || look.leads || partition.agreed_with(&replica.mirror).is_some();
        if as_line.is_ok() && of_line && compared {
            let replica = partition.replicas.get_mut(&look.broker).expect("looked up above");
            (replica.line, replica.unsettled) = (line, false);
        }
        Ok(())
    }

    /// If the new leader was elected uncleanly: what it lacks is gone.
    fn begin_line(&mut self, look: &Look<'_>, counts: &mut Counts) {
        let Self { partitions, contents, .. } = self;
        let Some(partition) = partitions.get_mut(&look.at) else { return };
        if !partition.lines.unproved.remove(&look.broker) {
            return;
        }
        let Some(leader) = partition.replicas.get(&look.broker).cloned() else { return };
        let loss = partition.begin_line(&leader, look.leader_epoch, contents);
        if loss.from < loss.committed_end {
            counts.lossy_elections += 1;
            counts.marks.hit(Mark::UncleanWithLoss);
        }
        // What was deleted of a line that is over is gone as far as the present one shared it.
        partition.gone_to = look.start.max(partition.gone_to.min(loss.from));
    }

    /// A truncation of a replica to `to` stopped half-way, with its disk.
    pub fn cut_short(&mut self, at: TopicPartition, broker: BrokerId, to: i64, truncations: u64) {
        if let Some(replica) = self.partitions.get_mut(&at).and_then(|p| p.replicas.get_mut(&broker)) {
            // A batch that begins below goes as a whole.
            replica.cut_to = Some(replica.mirror.batch_at(to).map_or(to, |batch| batch.base));
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
                // Only with records that a leader deleted before anybody counted them, or of a line that was cut off.
                let chain = partition.known_chain(batch.base, look.leader_epoch).unwrap_or(0);
                for below in std::mem::replace(&mut partition.committed, Mirror::starting(batch.base, chain)).batches {
                    partition.lines.remember(&below);
                }
                partition.serials.resize(usize::try_from(batch.base).unwrap_or(0), 0);
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
        let known = partition.known_chain(origin, look.leader_epoch);
        let chain = known.or_else(|| partition.replicas[&look.broker].mirror.chain_at(origin)).unwrap_or(0);
        let mut mirror = Mirror::starting(origin, chain);
        for (base, end, epoch, crc) in whole {
            mirror.push(base, end, epoch, crc);
        }
        let before = &partition.replicas[&look.broker].mirror;
        let agreed = before.agrees_up_to(&mirror, before.end().min(mirror.end()));
        log_matching::truncation(look, partition, agreed.min(mirror.end()))?;
        let replica = partition.replicas.get_mut(&look.broker).expect("looked up by the caller");
        replica.mirror = mirror;
        // What begins anew may begin below what another history had deleted.
        replica.owes_start = replica.owes_start.min(look.start);
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
        let allowed = config.unclean_election || self.may_lose.contains(&at);
        let unclean = unclean_election(at, image);
        self.elected_uncleanly.extend(unclean.filter(|_| allowed).map(|_| at));
        let partition = self.partition(at);
        let before = partition.quorum.replace(state.clone());
        let min_isr = state.effective_min_isr(config.min_isr);
        let former = before.as_ref().map(|_| (partition.min_isr, partition.promised));
        (partition.min_isr, partition.promised) =
            (min_isr, promised(former, min_isr, state.isr.len(), state.elr.len()));
        if former.is_some_and(|(_, before)| partition.promised < before) {
            self.promised_less.push(at);
        }
        let partition = self.partition(at);
        let flushes_each = config.flush_messages == 1;
        // D23 holds for what was appended once everybody flushes: a switch is not followed here.
        partition.flushes_each = flushes_each && (before.is_none() || partition.flushes_each);
        partition.deletes_old |= config.retention_bytes.is_some() || config.retention_ms.is_some_and(|ms| ms < WEEK_MS);
        monotonic_epochs::at_quorum(at, before.as_deref(), state)?;
        if let Some(before) = &before {
            if before.leader != state.leader && state.leader.is_some() {
                counts.leader_changes += 1;
                counts.elr_elections += u64::from(before.isr.is_empty());
            }
            counts.isr_changes += u64::from(before.isr != state.isr);
            if newest_election(at, image) == Some(LeaderReason::Elr) {
                counts.marks.hit(Mark::ElrElected);
            }
        }
        if let Some(before) = &before {
            partition.lines.settle(before, state);
        }
        if let Some(reason) = unclean {
            // Only where the topic allows it, by an operator's word, or with proof (D30).
            let complete = state.leader.is_none_or(|leader| partition.is_complete(leader));
            super::invariants::must(allowed || complete, "D30", || {
                format!(
                    "{at}: {:?} was elected ({reason:?}) though it lacks committed records: {state:?}",
                    state.leader
                )
            })?;
            if allowed {
                counts.unclean_elections += 1;
                partition.lines.unproved.extend(state.leader);
                partition.lines.unclean_epochs.insert(state.leader_epoch.0);
            }
        }
        if let Some(before) = &before {
            let mut told: Vec<&PartitionChange> = newest_changes(at, image).collect();
            told.reverse();
            history_tells(at, before, state, &told)?;
        }
        for change in newest_changes(at, image) {
            if matches!(change.kind, ChangeKind::DataLoss { .. }) {
                counts.losses_told += 1;
                reported_loss::told(at, state, &change.kind, partition)?;
                partition.lines.untold = 0;
            }
        }
        valid_isr_and_elr::partition(at, state, partition.min_isr, image)?;
        if let Some(before) = &before {
            joining::by_proof(at, before, state, partition, image)?;
        }
        leader_candidate_completeness::members(at, partition)?;
        leader_candidate_completeness::last_known(at, partition, image)
    }
}

/// How many replicas hold everything committed while nothing is lost, see [`PartitionBook::promised`]. `former`: effective
/// min ISR and promise before this entry, if the partition was there.
fn promised(former: Option<(usize, usize)>, min_isr: usize, isr: usize, elr: usize) -> usize {
    let holders = match former {
        _ if isr >= min_isr => min_isr,
        None => isr,
        // R196 may have emptied the ELR.
        Some((before, promised)) if min_isr < before => promised.min(isr + elr),
        Some((_, promised)) => promised,
    };
    holders.min(min_isr)
}

/// What the newest entry did to this partition, newest first.
fn newest_changes(at: TopicPartition, image: &MetadataImage) -> impl Iterator<Item = &PartitionChange> {
    image.history_of(at).iter().rev().take_while(|change| change.index == image.version.0).map(Arc::as_ref)
}

/// How the newest entry came to the leader of this partition, if it did.
fn newest_election(at: TopicPartition, image: &MetadataImage) -> Option<LeaderReason> {
    newest_changes(at, image)
        .find_map(|change| if let ChangeKind::Leader { reason, .. } = change.kind { Some(reason) } else { None })
}

/// Whether the newest entry elected a leader of this partition that need not be complete, and how.
fn unclean_election(at: TopicPartition, image: &MetadataImage) -> Option<LeaderReason> {
    newest_election(at, image).filter(|reason| matches!(reason, LeaderReason::Unclean | LeaderReason::LastKnown))
}

#[cfg(test)]
mod tests {
    use super::promised;

    #[test]
    fn a_raised_min_isr_promises_nothing_before_the_isr_has_reached_it() {
        assert_eq!(promised(None, 2, 3, 0), 2);
        assert_eq!(promised(None, 2, 1, 0), 1, "made with one of them away");
        assert_eq!(promised(Some((2, 2)), 2, 1, 1), 2, "who left is eligible");
        assert_eq!(promised(Some((1, 1)), 3, 1, 0), 1, "raised while one is in sync: only that one holds everything");
        assert_eq!(promised(Some((3, 1)), 3, 2, 0), 1);
        assert_eq!(promised(Some((3, 1)), 3, 3, 0), 3);
        assert_eq!(promised(Some((3, 3)), 1, 2, 0), 1);
        assert_eq!(promised(Some((3, 3)), 2, 1, 0), 1, "lowered: those who were eligible are not any more");
        assert_eq!(promised(Some((2, 2)), 1, 0, 2), 1, "nobody leads: they stay eligible");
    }
}
