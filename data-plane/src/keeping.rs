//! What is written and cleared away from time to time: checkpoints (R14) and old segments (R272).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use highwater_wire::Offset;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, warn};

use crate::config::LogConfig;
use crate::log::LogName;
use crate::partitions::{Deliveries, Partitions, Request};
use crate::replica::message::ReplicaReply;

/// Partitions handled at once, before others get the worker.
const AT_ONCE: usize = 64;

/// Runs for ever; ends with its task. An interval that changes begins anew.
pub async fn run(partitions: Arc<Partitions>, mut configs: watch::Receiver<LogConfig>) {
    let every = |period| {
        let mut interval = interval(period);
        interval.reset();
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    };
    let mut config = configs.borrow_and_update().clone();
    let mut watermarks = every(config.watermark_checkpoint_interval);
    let mut offsets = every(config.offset_checkpoint_interval);
    let mut retention = every(config.retention_check_interval);
    let mut written: HashMap<LogName, Offset> = HashMap::new();
    loop {
        tokio::select! {
            _ = watermarks.tick() => {
                let marks = watermarks_of(&partitions);
                if marks == written {
                    continue;
                }
                let (dir, to_write) = (partitions.dir().clone(), marks.clone());
                match partitions.sync_pool().call(move || dir.checkpoint_watermarks(to_write)).await {
                    Some(Ok(())) => written = marks,
                    Some(Err(error)) => warn!(%error, "cannot write the checkpoint of high watermarks"),
                    None => return,
                }
            }
            _ = offsets.tick() => {
                let partitions = partitions.clone();
                let pool = partitions.sync_pool().clone();
                match pool.call(move || checkpoint_offsets(&partitions)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => warn!(%error, "cannot write the checkpoints of recovery points and log starts"),
                    None => return,
                }
            }
            _ = retention.tick() => retain(&partitions).await,
            Ok(()) = configs.changed() => {
                let before = std::mem::replace(&mut config, configs.borrow_and_update().clone());
                if config.watermark_checkpoint_interval != before.watermark_checkpoint_interval {
                    watermarks = every(config.watermark_checkpoint_interval);
                }
                if config.offset_checkpoint_interval != before.offset_checkpoint_interval {
                    offsets = every(config.offset_checkpoint_interval);
                }
                if config.retention_check_interval != before.retention_check_interval {
                    retention = every(config.retention_check_interval);
                }
            }
        }
    }
}

/// The watermark of every hosted replica, also of those without a leader (R15).
fn watermarks_of(partitions: &Arc<Partitions>) -> HashMap<LogName, Offset> {
    checkpoints(partitions).into_iter().map(|(name, checkpoint)| (name, checkpoint.high_watermark)).collect()
}

fn checkpoints(partitions: &Arc<Partitions>) -> Vec<(LogName, crate::replica::message::Checkpoint)> {
    let now = partitions.clock.now();
    let mut deliveries = Deliveries::new();
    let mut found = Vec::new();
    for hosted in partitions.all() {
        if let ReplicaReply::Checkpoint(checkpoint) =
            partitions.enter_hosted(&hosted, Request::Checkpoint, now, &mut deliveries)
        {
            found.push((hosted.log.clone(), checkpoint));
        }
    }
    partitions.deliver(&mut deliveries);
    found
}

fn checkpoint_offsets(partitions: &Arc<Partitions>) -> io::Result<()> {
    partitions.dir().checkpoint_recovery_points()?;
    partitions.dir().checkpoint_cleaned()?;
    partitions.dir().checkpoint_found_starts(|| {
        let starts = checkpoints(partitions).into_iter().map(|(name, checkpoint)| (name, checkpoint.log_start));
        starts.filter(|(_, start)| *start > Offset::ZERO).collect()
    })
}

/// Writes all checkpoints now, at the end (R29).
pub fn checkpoint_all(partitions: &Arc<Partitions>) -> io::Result<()> {
    partitions.dir().checkpoint_watermarks(watermarks_of(partitions))?;
    checkpoint_offsets(partitions).inspect_err(|error| error!(%error, "cannot write checkpoints"))
}

async fn retain(partitions: &Arc<Partitions>) {
    for some in partitions.all().chunks(AT_ONCE) {
        let now = partitions.clock.now();
        let mut deliveries = Deliveries::new();
        for hosted in some {
            partitions.enter_hosted(hosted, Request::Retain, now, &mut deliveries);
        }
        partitions.deliver(&mut deliveries);
        tokio::task::yield_now().await;
    }
}
