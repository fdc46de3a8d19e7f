//! What heartbeats tell of watermarks (D12): of the partitions led here whose ISR is smaller than the replica set. If this
//! broker is lost with its disk, that is all anybody knows of what it had committed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::controller::KnownWatermark;
use highwater_quorum::{ImageVersion, MetadataImage};
use highwater_wire::{BrokerId, LeaderEpoch, Offset, TopicPartition};
use tokio::sync::watch;

use crate::partitions::{Deliveries, Partitions, Request};
use crate::replica::message::{Checkpoint, ReplicaReply};

/// Watermarks in one heartbeat.
const TOLD_MAX: usize = 1_000;
/// Between two looks at watermarks that may have moved, for each [`TOLD_MAX`] of them. What is committed in this time is
/// what the estimate of a loss is too small by.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What was told, and where there may be something to tell.
pub(super) struct Watermarks {
    me: BrokerId,
    partitions: Arc<Partitions>,
    images: watch::Receiver<Arc<MetadataImage>>,
    /// Led here with a smaller ISR than replica set, as of `seen`; in order.
    gaps: Vec<TopicPartition>,
    seen: Option<ImageVersion>,
    told: HashMap<TopicPartition, Told>,
    /// Where the next look begins, so that each partition has its turn.
    next: usize,
}

/// What is told of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    high_watermark: Offset,
    log_start: Offset,
    leader_epoch: LeaderEpoch,
}

impl Told {
    fn of(checkpoint: &Checkpoint) -> Self {
        let Checkpoint { high_watermark, log_start, leader_epoch, .. } = *checkpoint;
        Self { high_watermark, log_start, leader_epoch }
    }
}

impl Watermarks {
    pub fn new(me: BrokerId, partitions: Arc<Partitions>, images: watch::Receiver<Arc<MetadataImage>>) -> Self {
        Self { me, partitions, images, gaps: Vec::new(), seen: None, told: HashMap::new(), next: 0 }
    }

    /// Waits until there is something to tell. Costs nothing while no partition led here lacks a replica in sync and the
    /// metadata stands still.
    pub async fn moved(&mut self) {
        loop {
            if self.gaps.is_empty() && self.images.changed().await.is_err() {
                // Nothing will be published any more; the heartbeat finds out why.
                std::future::pending::<()>().await;
            }
            let looks = u32::try_from(1 + self.gaps.len() / TOLD_MAX).unwrap_or(u32::MAX);
            tokio::time::sleep(LOOK_AGAIN.saturating_mul(looks)).await;
            self.find_gaps();
            let mut news = false;
            self.for_each_gap(|at, now, told| {
                news = told.get(&at) != Some(&now);
                !news
            });
            if news {
                return;
            }
        }
    }

    /// What has moved since it was last told, at most [`TOLD_MAX`] of it.
    pub fn take(&mut self) -> Vec<KnownWatermark> {
        self.find_gaps();
        let reported = self.partitions.clock.wall();
        let mut taken = Vec::new();
        self.for_each_gap(|partition, now, told| {
            if told.insert(partition, now) != Some(now) {
                let Told { high_watermark, log_start, leader_epoch } = now;
                let leader_epoch = Some(leader_epoch);
                taken.push(KnownWatermark { partition, high_watermark, reported, log_start, leader_epoch });
            }
            taken.len() < TOLD_MAX
        });
        taken
    }

    /// What was told may not have arrived: all of it is told again.
    pub fn forget(&mut self) {
        self.told.clear();
    }

    /// Looks for gaps if there is a new image.
    fn find_gaps(&mut self) {
        let image = self.images.borrow_and_update().clone();
        if self.seen.replace(image.version) == Some(image.version) {
            return;
        }
        let gaps = image
            .partitions()
            .filter(|(_, _, state)| state.leader == Some(self.me) && state.isr.len() < state.replicas.len());
        self.gaps = gaps.map(|(at, _, _)| at).collect();
        let gaps = &self.gaps;
        self.told.retain(|at, _| gaps.binary_search(at).is_ok());
    }

    /// Visits what is led here with a gap, from where the last visit ended, while `go_on` says so.
    fn for_each_gap(
        &mut self,
        mut go_on: impl FnMut(TopicPartition, Told, &mut HashMap<TopicPartition, Told>) -> bool,
    ) {
        let now = self.partitions.clock.now();
        let mut deliveries = Deliveries::new();
        let count = self.gaps.len();
        let first = self.next;
        for step in 0..count {
            self.next = (first + step) % count;
            let at = self.gaps[self.next];
            let reply = self.partitions.enter_with(at, Request::Checkpoint, now, &mut deliveries);
            if let Some(ReplicaReply::Checkpoint(checkpoint)) = reply
                && checkpoint.leads_with_gaps
                && !go_on(at, Told::of(&checkpoint), &mut self.told)
            {
                break;
            }
        }
        self.partitions.deliver(&mut deliveries);
    }
}
