//! Fills a shard from its log (R287).
//!
//! All that the log holds when this broker begins to lead is read, and only when all of it is committed is the shard opened:
//! what a coordinator tells – a position, a generation – must not be taken back by the next one. (Kafka opens earlier, and
//! may then tell a position that is lost with its leader.)

use std::sync::Arc;

use highwater_wire::batch::BatchIter;
use highwater_wire::{LeaderEpoch, Offset, TopicPartition};

use crate::group::Loading;
use crate::partitions::waiters::Waiter;
use crate::partitions::{Partitions, Reply, Request};
use crate::replica::message::{Caller, Fetch, FetchGrant, Isolation, Watch};
use crate::view::NodeState;

/// Read at a time.
const BYTES: u32 = 1 << 20;

/// `None`: this broker does not lead in that epoch any more, or its disk failed.
pub async fn load(
    partitions: &Arc<Partitions>,
    state: &NodeState,
    at: TopicPartition,
    epoch: LeaderEpoch,
) -> Option<Loading> {
    let mut next = begin(partitions, state, at, epoch).await?;
    let waiter = partitions.waiters.open();
    let loaded = read_all(partitions, &waiter, at, epoch, &mut next).await;
    partitions.waiters.close(waiter.id);
    partitions.enter(at, Request::Unwatch(waiter.id));
    loaded
}

/// Where the log begins, as soon as the replica here leads in `epoch`.
async fn begin(
    partitions: &Arc<Partitions>,
    state: &NodeState,
    at: TopicPartition,
    epoch: LeaderEpoch,
) -> Option<Offset> {
    // `Err`: not any more.
    let start = || match partitions.enter(at, Request::Status) {
        Some(Reply::Status(status)) if status.leader_epoch > epoch => Err(()),
        Some(Reply::Status(status)) if status.leader_epoch == epoch => {
            Ok(status.leading.is_some().then_some(status.log_start))
        }
        _ => Ok(None),
    };
    loop {
        match start() {
            Ok(Some(start)) => return Some(start),
            Ok(None) => state.next_acted_on(|| !matches!(start(), Ok(None))).await,
            Err(()) => return None,
        }
    }
}

async fn read_all(
    partitions: &Arc<Partitions>,
    waiter: &Waiter,
    at: TopicPartition,
    epoch: LeaderEpoch,
    next: &mut Offset,
) -> Option<Loading> {
    let mut loading = Loading::default();
    let mut end: Option<Offset> = None;
    loop {
        let grant = ask(partitions, waiter, at, epoch, *next)?;
        let end = *end.get_or_insert(grant.log_end);
        let records = match grant.plan.as_ref().map(|plan| plan.read()) {
            None => bytes::Bytes::new(),
            Some(Ok(records)) => records,
            Some(Err(error)) => {
                tracing::error!(partition = at.partition, %error, "groups cannot be read from their log");
                return None;
            }
        };
        if records.is_empty() {
            if *next >= end {
                return Some(loading);
            }
            // What was appended before this leadership is not committed yet.
            if grant.watched {
                waiter.woken().await;
                waiter.take_ready();
            } else {
                tokio::task::yield_now().await;
            }
            continue;
        }
        for batch in BatchIter::new(records) {
            let Ok(batch) = batch else { break };
            *next = batch.last_offset().plus(1);
            take(&mut loading, &batch, at);
        }
        tokio::task::yield_now().await;
    }
}

fn take(loading: &mut Loading, batch: &highwater_wire::RecordBatch, at: TopicPartition) {
    let told = |offset: Offset, why: String| {
        tracing::warn!(partition = at.partition, %offset, why, "a record of the groups cannot be read; it is left out");
    };
    let records = match batch.records() {
        Ok(records) => records,
        Err(error) => return told(batch.base_offset(), error.to_string()),
    };
    for record in records {
        match record {
            Ok(record) => {
                let Some(key) = &record.key else {
                    told(record.offset, "it has no key".to_owned());
                    continue;
                };
                if let Err(error) = loading.record(key, record.value.as_deref()) {
                    told(record.offset, error.to_string());
                }
            }
            Err(error) => told(batch.base_offset(), error.to_string()),
        }
    }
}

fn ask(
    partitions: &Arc<Partitions>,
    waiter: &Waiter,
    at: TopicPartition,
    epoch: LeaderEpoch,
    offset: Offset,
) -> Option<FetchGrant<crate::partitions::Store>> {
    let fetch = Fetch {
        caller: Caller::Consumer(Isolation::ReadUncommitted),
        leader_epoch: Some(epoch),
        offset,
        last_fetched_epoch: None,
        follower_log_start: None,
        bytes_max: BYTES,
        first_whole: true,
        any_replica: false,
        watch: Some(Watch { waiter: waiter.id, bytes_min: 1, arrival: None }),
        arrived: partitions.clock.mono(),
        first_ask: true,
    };
    match partitions.enter(at, Request::Fetch(fetch)) {
        Some(Reply::Fetched(grant)) => Some(grant),
        _ => None,
    }
}
