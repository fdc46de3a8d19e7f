//! Compaction from time to time (R275): the log with the largest dirty part first, one at a time.
//!
//! Reading and writing happen on a thread of their own; a replica's lock is held for renames alone. What was begun when the
//! broker stops is left: the log is whole at every moment.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Counter, counter};
use tokio::sync::watch;
use tracing::{debug, error, warn};

use crate::config::LogConfig;
use crate::log::LogName;
use crate::log::clean::{CleanReport, Installed, KeyBuffer};
use crate::partitions::{Deliveries, Hosted, Partitions, Reply, Request};

/// Partitions looked at before others get the worker.
const AT_ONCE: usize = 64;

/// Runs for ever; ends with its task.
pub async fn run(partitions: Arc<Partitions>, mut configs: watch::Receiver<LogConfig>) {
    let (stopped, counts) = (StopAtEnd::default(), Counts::new());
    // Damaged: cleaning them would fail again and again. A restart tries anew.
    let mut left_alone: BTreeSet<LogName> = BTreeSet::new();
    loop {
        let config = configs.borrow_and_update().clone();
        tokio::select! {
            () = tokio::time::sleep(config.cleaner_backoff) => {}
            Ok(()) = configs.changed() => continue,
        }
        while let Some(hosted) = dirtiest(&partitions, &left_alone).await {
            let (partitions, name, stop) = (partitions.clone(), hosted.log.clone(), stopped.0.clone());
            let buffer = KeyBuffer { bytes_max: config.cleaner_buffer_bytes, secret: rand::random() };
            let work = move || clean(&partitions, &hosted, buffer, &stop);
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok(Some(report))) => counts.cleaned(&report),
                // The replica is another one by now, or gone: it is looked at again in its turn.
                Ok(Ok(None)) | Err(_) => break,
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    error!(log = %name, %error, "this log cannot be compacted: it is damaged. Remove its directory while the \
                        node is stopped, and it fetches the log from the others; until then it grows");
                    counts.failures.increment(1);
                    left_alone.insert(name);
                }
                Ok(Err(error)) => {
                    warn!(log = %name, %error, "this log could not be compacted; it is tried again");
                    counts.failures.increment(1);
                    break;
                }
            }
        }
    }
}

/// What `/metrics` shows; there from the start.
struct Counts {
    runs: Counter,
    bytes: Counter,
    recovered: Counter,
    failures: Counter,
}

impl Counts {
    fn new() -> Self {
        Self {
            runs: counter!("highwater_log_cleaner_runs_total"),
            bytes: counter!("highwater_log_cleaner_bytes_total"),
            recovered: counter!("highwater_log_cleaner_recovered_bytes_total"),
            failures: counter!("highwater_log_cleaner_failures_total"),
        }
    }

    fn cleaned(&self, report: &CleanReport) {
        self.runs.increment(1);
        self.bytes.increment(report.bytes_before);
        self.recovered.increment(report.bytes_before.saturating_sub(report.bytes_after));
    }
}

/// Ends the work on the blocking thread when the task ends.
#[derive(Default)]
struct StopAtEnd(Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The log that is most in need.
async fn dirtiest(partitions: &Arc<Partitions>, left_alone: &BTreeSet<LogName>) -> Option<Arc<Hosted>> {
    let mut best: Option<(bool, f64, Arc<Hosted>)> = None;
    for some in partitions.all().chunks(AT_ONCE) {
        let now = partitions.clock.now();
        let mut deliveries = Deliveries::new();
        for hosted in some.iter().filter(|hosted| !left_alone.contains(&hosted.log)) {
            if let Reply::CleaningDue(Some(due)) =
                partitions.enter_hosted(hosted, Request::CleaningDue, now, &mut deliveries)
                && best.as_ref().is_none_or(|(overdue, ratio, _)| (due.overdue, due.dirty_ratio) > (*overdue, *ratio))
            {
                best = Some((due.overdue, due.dirty_ratio, hosted.clone()));
            }
        }
        partitions.deliver(&mut deliveries);
        tokio::task::yield_now().await;
    }
    best.map(|(_, _, hosted)| hosted)
}

/// Cleans one log; `None`: it was not to be, any more. Blocks.
fn clean(
    partitions: &Arc<Partitions>,
    hosted: &Arc<Hosted>,
    buffer: KeyBuffer,
    stop: &Arc<AtomicBool>,
) -> io::Result<Option<CleanReport>> {
    let ask = |request| {
        let mut deliveries = Deliveries::new();
        let reply = partitions.enter_hosted(hosted, request, partitions.clock.now(), &mut deliveries);
        partitions.deliver(&mut deliveries);
        reply
    };
    let Reply::CleanJob(Some(mut job)) = ask(Request::Clean(buffer)) else { return Ok(None) };
    job.stop_when(stop.clone());
    while let Some(cleaned) = job.step()? {
        match ask(Request::InstallCleaned(Box::new(cleaned))) {
            Reply::Installed(installed @ (Installed::Done | Installed::Begun), cleaned) => {
                // It is part of the log by now: what could not be synced must not be believed (R283).
                let synced =
                    || job.sync_names().inspect_err(|error| drop(ask(Request::StorageFailed(error.to_string()))));
                synced()?;
                job.write_index(&cleaned)?;
                let mut more = installed == Installed::Begun;
                while more {
                    more = matches!(ask(Request::GoOnSwapping), Reply::Swapping(true));
                    synced()?;
                }
            }
            Reply::Installed(Installed::Stale, cleaned) => {
                job.discard(&cleaned)?;
                return Ok(None);
            }
            // It stopped, or its disk failed.
            _ => return Ok(None),
        }
    }
    let report = job.report;
    ask(Request::CleanedUp(report));
    debug!(log = %hosted.log, ?report, "compacted");
    Ok(Some(report))
}
