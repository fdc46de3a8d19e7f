//! The few threads that may block: fsync, opening and deleting of logs, checkpoints. Never a worker of the runtime.
//!
//! Syncs go first. A partition has at most one sync out; what is appended meanwhile is covered by the next one, so many
//! waiting acks share one fsync. Several threads sync different files at once, which the file system's journal joins.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::error::DataPlaneError;

/// A piece of blocking work.
pub type Work = Box<dyn FnOnce() + Send>;

/// Handle to the pool; clones share it.
#[derive(Clone)]
pub struct SyncPool {
    shared: Arc<Shared>,
}

struct Shared {
    queues: Mutex<Queues>,
    changed: Condvar,
    /// No sync is queued or under way.
    settled: Condvar,
}

#[derive(Default)]
struct Queues {
    syncs: VecDeque<Work>,
    /// Taken from `syncs`, under way.
    syncing: usize,
    rest: VecDeque<Work>,
    /// Of `rest`, under way.
    busy_with_rest: usize,
    threads: usize,
    stopped: bool,
}

impl SyncPool {
    /// Starts `threads` threads (at least one). They end when [`SyncPool::stop`] is called.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(threads: usize) -> Result<(Self, Vec<JoinHandle<()>>), DataPlaneError> {
        let threads = threads.max(1);
        let queues = Mutex::new(Queues { threads, ..Queues::default() });
        let shared = Arc::new(Shared { queues, changed: Condvar::new(), settled: Condvar::new() });
        let mut handles = Vec::with_capacity(threads);
        for number in 0..threads {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("sync-{number}"));
            handles
                .push(thread.spawn(move || shared.run()).map_err(|error| DataPlaneError::Resources(Arc::new(error)))?);
        }
        Ok((Self { shared }, handles))
    }

    /// Syncs, before everything else.
    pub fn sync(&self, work: Work) {
        self.shared.queues.lock().syncs.push_back(work);
        self.shared.changed.notify_one();
    }

    /// Anything else that blocks. One thread is kept free of it, if there are two.
    pub fn run(&self, work: Work) {
        self.shared.queues.lock().rest.push_back(work);
        self.shared.changed.notify_one();
    }

    /// As [`Self::run`], and waits for the result. `None`: the pool was stopped.
    pub async fn call<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (tell, told) = tokio::sync::oneshot::channel();
        self.run(Box::new(move || drop(tell.send(work()))));
        told.await.ok()
    }

    /// Waits until no sync is queued or under way. Blocks; returns at once when the pool was stopped.
    pub fn settle(&self) {
        let mut queues = self.shared.queues.lock();
        while !queues.stopped && (queues.syncing > 0 || !queues.syncs.is_empty()) {
            self.shared.settled.wait(&mut queues);
        }
    }

    /// Finishes what is queued, then ends the threads.
    pub fn stop(&self) {
        self.shared.queues.lock().stopped = true;
        self.shared.changed.notify_all();
        self.shared.settled.notify_all();
    }

    /// Drops what is queued and ends the threads after what they are at.
    pub fn abandon(&self) {
        let mut queues = self.shared.queues.lock();
        queues.stopped = true;
        let dropped = (std::mem::take(&mut queues.syncs), std::mem::take(&mut queues.rest));
        drop(queues);
        drop(dropped);
        self.shared.changed.notify_all();
        self.shared.settled.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let mut queues = self.queues.lock();
        loop {
            if let Some(sync) = queues.syncs.pop_front() {
                queues.syncing += 1;
                drop(queues);
                sync();
                queues = self.queues.lock();
                queues.syncing -= 1;
                if queues.syncing == 0 && queues.syncs.is_empty() {
                    self.settled.notify_all();
                }
            } else if queues.busy_with_rest + 1 < queues.threads.max(2)
                && let Some(work) = queues.rest.pop_front()
            {
                queues.busy_with_rest += 1;
                drop(queues);
                work();
                queues = self.queues.lock();
                queues.busy_with_rest -= 1;
                self.changed.notify_one();
            } else if queues.stopped {
                return;
            } else {
                self.changed.wait(&mut queues);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn syncs_overtake_other_work_and_a_stop_finishes_what_is_queued() {
        let (pool, threads) = SyncPool::start(1).unwrap();
        let (tell, told) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        pool.run(Box::new(move || wait.recv().unwrap()));
        for number in 1..=2 {
            let tell = tell.clone();
            pool.run(Box::new(move || tell.send(number).unwrap()));
        }
        pool.sync(Box::new(move || tell.send(0).unwrap()));
        go.send(()).unwrap();
        pool.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn settled_means_that_no_sync_is_queued_or_under_way() {
        let (pool, threads) = SyncPool::start(2).unwrap();
        pool.settle();
        let (go, wait) = mpsc::channel::<()>();
        let done = Arc::new(Mutex::new(0));
        for wait in [Some(wait), None, None] {
            let done = done.clone();
            pool.sync(Box::new(move || {
                wait.map_or(Ok(()), |wait| wait.recv()).unwrap();
                *done.lock() += 1;
            }));
        }
        let settled = std::thread::spawn({
            let (pool, done) = (pool.clone(), done.clone());
            move || {
                pool.settle();
                *done.lock()
            }
        });
        go.send(()).unwrap();
        assert_eq!(settled.join().unwrap(), 3);
        pool.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
