//! After every event: looks at the replica it touched, brings the book up to date, and has the invariants checked.

use highwater_data::replica::message::{Outbox, ReplicaReply, ReplicaRequest};
use highwater_data::replication::{Replication, Role};
use highwater_quorum::image::diff::LocalPartition;
use highwater_wire::batch::BatchHeader;
use highwater_wire::{BrokerId, LeaderEpoch, Offset, PartitionEpoch, TopicPartition};

use super::super::book::{Look, Mirror, ReplicaBook};
use super::super::core::Core;
use super::super::invariants::Verdict;
use super::{Hosted, Process};

/// The batches of a log from `from` on, as (base, end, epoch, checksum).
fn batches_from(hosted: &Hosted, from: i64) -> Vec<(i64, i64, i32, u32)> {
    let view = hosted.replica.log().view();
    let mut batches = Vec::new();
    let mut next = from;
    // A read ends with its segment.
    while next < view.end.0 {
        let plan = hosted.replica.log().plan_read(Offset(next), view.end, usize::MAX, true);
        let read = plan.and_then(|plan| plan.read());
        if hosted.replica.log().failed().is_some() && !read.as_ref().is_ok_and(|bytes| !bytes.is_empty()) {
            break;
        }
        let bytes = read.expect("a log reads what it holds");
        let mut at = 0;
        while at < bytes.len() {
            let header = BatchHeader::parse(&bytes[at..]).expect("a log holds batches");
            let end = header.base_offset + i64::from(header.last_offset_delta) + 1;
            batches.push((header.base_offset, end, header.leader_epoch, header.crc));
            at += header.length as usize + 12;
            next = end;
        }
        assert!(at > 0, "nothing to read at {next} below the end {}", view.end);
    }
    batches
}

impl Hosted {
    /// Where a truncation that is under way just now is to cut; 0: everything is to go.
    fn cut_to(&mut self, core: &Core) -> i64 {
        let now = core.clock();
        let ReplicaReply::Status(status) = self.replica.handle(ReplicaRequest::Status, now, &mut Outbox::new()) else {
            return 0;
        };
        status.last_truncation.filter(|truncation| truncation.at == now.wall).map_or(0, |truncation| truncation.to.0)
    }
}

/// What a role shows.
struct Glance {
    leads: bool,
    leader_epoch: LeaderEpoch,
    partition_epoch: PartitionEpoch,
    isr: Vec<BrokerId>,
    maximal_isr: Vec<BrokerId>,
    believed: Vec<(BrokerId, i64, i64)>,
}

impl Glance {
    fn of(replication: &Replication) -> Self {
        let leader = if let Role::Leader(leader) = replication.role() { Some(leader) } else { None };
        Self {
            leads: leader.is_some(),
            leader_epoch: replication.leader_epoch(),
            partition_epoch: replication.partition_epoch(),
            isr: leader.map_or_else(Vec::new, |l| l.isr().committed().to_vec()),
            maximal_isr: leader.map_or_else(Vec::new, |l| l.isr().maximal().collect()),
            believed: leader
                .map_or_else(Vec::new, |l| l.reported_ends().map(|(id, epoch, end)| (id, epoch.0, end.0)).collect()),
        }
    }
}

impl Process {
    /// A log was opened: its mirror is read anew.
    pub(super) fn opened(&mut self, core: &mut Core, local: &LocalPartition) {
        let at = local.at;
        let Some(hosted) = self.hosted.get(&at) else { return };
        let view = hosted.replica.log().view();
        let Some(book) = core.book.partitions.get(&at) else { return };
        // What lies below its start is not there to be read; what it was is known, of this line or of a former one.
        let former = book.replicas.get(&self.id).filter(|_| book.lines.since > 0);
        let chain_at = |offset| {
            let own = former.and_then(|replica| replica.mirror.chain_at(offset));
            own.or_else(|| book.committed.chain_at(offset)).unwrap_or(0)
        };
        let mut fresh = ReplicaBook {
            mirror: Mirror::starting(view.start.0, chain_at(view.start.0)),
            process: self.number,
            opened_at: core.now,
            alive: true,
            truncations: view.truncations,
            segments: hosted.replica.log().segment_count(),
            start: view.start.0,
            flushed_end: view.flushed_end.0,
            ..ReplicaBook::default()
        };
        for (base, end, epoch, crc) in batches_from(hosted, view.start.0) {
            if fresh.mirror.batches.is_empty() && base < fresh.mirror.origin {
                fresh.mirror = Mirror::starting(base, chain_at(base));
            }
            fresh.mirror.push(base, end, epoch, crc);
        }
        let look = Look {
            at,
            broker: self.id,
            broker_epoch: self.epoch.map_or(-1, |e| e.0),
            process: self.number,
            leads: false,
            leader_epoch: 0,
            partition_epoch: 0,
            start: view.start.0,
            high_watermark: view.start.0,
            end: view.end.0,
            flushed_end: view.flushed_end.0,
            truncations: view.truncations,
            segments: hosted.replica.log().segment_count(),
            epochs: &[],
            isr: &[],
            min_isr: 0,
            maximal_isr: &[],
            believed: &[],
        };
        let verdict = core.book.reopened(&look, fresh);
        core.check(verdict);
    }

    /// Looks at one replica.
    pub(super) fn look(&mut self, core: &mut Core, at: TopicPartition) {
        let verdict = self.look_at(core, at);
        core.check(verdict);
    }

    fn look_at(&mut self, core: &mut Core, at: TopicPartition) -> Verdict {
        let Some(hosted) = self.hosted.get_mut(&at) else { return Ok(()) };
        let cut_to = hosted.replica.log().failed().is_some().then(|| hosted.cut_to(core));
        let Some(hosted) = self.hosted.get(&at) else { return Ok(()) };
        let replica = &hosted.replica;
        let view = replica.log().view();
        let glance = Glance::of(replica.replication());
        let Some(known) = core.book.partitions.get(&at).and_then(|p| p.replicas.get(&self.id)) else { return Ok(()) };
        if let Some(to) = cut_to
            && view.truncations != known.truncations
        {
            // The disk failed in the middle of a truncation, and the process ends. What the log still shows says little of
            // what its directory holds: it reads files that are removed already.
            core.book.cut_short(at, self.id, to, view.truncations);
            return Ok(());
        }
        let new =
            if view.truncations != known.truncations { None } else { Some(batches_from(hosted, known.mirror.end())) };
        let epochs: Vec<(i32, i64)> = view.epochs.entries().iter().map(|e| (e.epoch.0, e.start.0)).collect();
        let look = Look {
            at,
            broker: self.id,
            broker_epoch: self.epoch.map_or(-1, |e| e.0),
            process: self.number,
            leads: glance.leads,
            leader_epoch: glance.leader_epoch.0,
            partition_epoch: glance.partition_epoch.0,
            start: view.start.0,
            high_watermark: replica.replication().high_watermark().0,
            end: view.end.0,
            flushed_end: view.flushed_end.0,
            truncations: view.truncations,
            segments: replica.log().segment_count(),
            epochs: &epochs,
            isr: &glance.isr,
            min_isr: self.told_min_isr(at),
            maximal_isr: &glance.maximal_isr,
            believed: &glance.believed,
        };
        let whole = || batches_from(hosted, view.start.0);
        core.book.looked(&look, new, whole, &mut core.counts)
    }

    /// Effective min ISR by the image that this broker has acted on.
    fn told_min_isr(&self, at: TopicPartition) -> usize {
        let topic = self.acted.topics.get(&at.topic);
        let state = self.acted.partition(at);
        topic.zip(state).map_or(0, |(topic, state)| state.effective_min_isr(topic.config.min_isr))
    }
}
