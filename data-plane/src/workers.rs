//! The threads that the data plane's tasks run on (D37).
//!
//! A single worker needs neither work stealing nor wake-ups between threads: it is a thread that drives a runtime of its
//! own. That saves a fifth of the task switches of a batch where brokers share cores.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// How long each worker of a runtime has been busy since it started.
pub fn busy(runtime: &Handle) -> Vec<Duration> {
    let metrics = runtime.metrics();
    (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).collect()
}

/// A runtime and its threads. A drop ends them too.
pub struct Workers {
    handle: Handle,
    threads: Threads,
}

enum Threads {
    One { end: oneshot::Sender<Duration>, thread: JoinHandle<()> },
    Several(Runtime),
}

impl Workers {
    /// Starts `count` workers, at least one.
    ///
    /// # Errors
    /// No more threads or descriptors to be had.
    pub fn start(count: usize) -> io::Result<Self> {
        if count > 1 {
            let runtime = Builder::new_multi_thread().worker_threads(count).thread_name("data").enable_all().build()?;
            return Ok(Self { handle: runtime.handle().clone(), threads: Threads::Several(runtime) });
        }
        let runtime = Builder::new_current_thread().thread_name("data-blocking").enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("data".to_owned()).spawn(move || {
            let within = runtime.block_on(ended).unwrap_or_default();
            runtime.shutdown_timeout(within);
        })?;
        Ok(Self { handle, threads: Threads::One { end, thread } })
    }

    /// Where tasks are spawned.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends all tasks where they wait. Blocks, at most for `within` where something blocks a worker; so it must not be
    /// called on a runtime.
    pub fn end(self, within: Duration) {
        match self.threads {
            Threads::Several(runtime) => runtime.shutdown_timeout(within),
            Threads::One { end, thread } => {
                let _ = end.send(within);
                let _ = thread.join();
            }
        }
    }
}
