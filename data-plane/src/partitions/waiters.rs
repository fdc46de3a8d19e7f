//! Fetch sessions (and fetches without one) that wait for news of their partitions (D20).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use highwater_wire::TopicPartition;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::replica::message::WaiterId;

/// One who waits: its ready list, and its alarm clock.
pub struct Waiter {
    pub id: WaiterId,
    ready: Mutex<Vec<TopicPartition>>,
    woken: Notify,
    stop: AtomicBool,
}

impl Waiter {
    /// Ends its wait, whatever it waits for.
    pub fn wake(&self) {
        self.stop.store(true, Ordering::Release);
        self.woken.notify_one();
    }

    /// Whether its wait was ended by [`Waiter::wake`].
    pub fn take_stop(&self) -> bool {
        self.stop.swap(false, Ordering::AcqRel)
    }

    /// Takes the partitions that have news; one may be named twice.
    pub fn take_ready(&self) -> Vec<TopicPartition> {
        std::mem::take(&mut *self.ready.lock())
    }

    /// Waits until somebody wakes it; returns at once if somebody has since the last wait.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }
}

/// All who may be woken.
#[derive(Default)]
pub struct Waiters {
    next: AtomicU64,
    all: RwLock<HashMap<WaiterId, Arc<Waiter>>>,
}

impl Waiters {
    /// A new one. It must be closed.
    pub fn open(&self) -> Arc<Waiter> {
        let id = WaiterId(self.next.fetch_add(1, Ordering::Relaxed));
        let waiter =
            Arc::new(Waiter { id, ready: Mutex::default(), woken: Notify::new(), stop: AtomicBool::new(false) });
        self.all.write().insert(id, waiter.clone());
        waiter
    }

    /// It is woken no more. Partitions that still have it registered are told by `Unwatch`.
    pub fn close(&self, id: WaiterId) {
        self.all.write().remove(&id);
    }

    /// There is news of `at`.
    pub fn wake(&self, id: WaiterId, at: TopicPartition, urgent: bool) {
        let all = self.all.read();
        if let Some(waiter) = all.get(&id) {
            waiter.ready.lock().push(at);
            if urgent {
                waiter.woken.notify_one();
            }
        }
    }
}
