//! One replica of one partition: its role and its log, joined. [`Replica::handle`] is the only door.

use highwater_wire::{BrokerId, Millis, Offset, TopicPartition};

use crate::disk::Disk;
use crate::log::Log;

pub mod message;
pub mod note;
pub mod status;

use message::{Now, Outbox, ReplicaReply, ReplicaRequest};

/// What a replica must know from its birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaConfig {
    pub partition: TopicPartition,
    /// This broker.
    pub me: BrokerId,
    /// `replica.lag.time.max.ms`
    pub lag_max: Millis,
}

/// One replica.
pub struct Replica<D: Disk> {
    log: Log<D>,
}

impl<D: Disk> Replica<D> {
    /// Around an open log. `high_watermark`: of the checkpoint; clamped to what the log holds (R24).
    pub fn new(config: ReplicaConfig, log: Log<D>, high_watermark: Offset) -> Self {
        let _ = (config, high_watermark);
        Self { log }
    }

    /// The one door: does what is asked, answers, and puts everything else that follows into `out`, behind what is
    /// there. Never waits, never syncs.
    pub fn handle(&mut self, request: ReplicaRequest<D>, now: Now, out: &mut Outbox<D>) -> ReplicaReply<D> {
        let _ = (request, now, out);
        todo!("{:p}", &self.log)
    }
}
