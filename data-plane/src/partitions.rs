//! The replicas hosted here, each behind its own short lock: enter, handle, leave, deliver.
//!
//! This is the only door to a replica. Nothing waits inside: no await, no fsync, no other lock. What a call brings
//! about besides its reply – answers for others who waited, fetch sessions to wake, ISR proposals, files to sync – is
//! collected and delivered after the lock is left. Several calls may share one delivery, so that one answer of a
//! follower that frees thirty producers costs one write per connection.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use highwater_quorum::controller::IsrProposal;
use highwater_wire::{Millis, Offset, Timestamp, TopicPartition};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use crate::disk::FsDisk;
use crate::log::{LogDir, LogName};
use crate::replica::Replica;
use crate::replica::message::{FollowerNext, Now, Outbox, Output, ReplicaReply, ReplicaRequest};
use crate::sync_pool::SyncPool;

pub mod ticker;
pub mod tickets;
pub mod traffic;
pub mod waiters;

use ticker::Alarms;
use tickets::{Flush, Tickets};
use traffic::{TopicTraffic, Traffic};
use waiters::Waiters;

/// The disk under a broker. (The simulator uses replicas without this door.)
pub type Store = FsDisk;
/// What is asked of a replica here.
pub type Request = ReplicaRequest<Store>;
/// What it answers.
pub type Reply = ReplicaReply<Store>;

/// The clock of this process: read here, in `fetcher` and in `lifecycle` only.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at one second, so that no time is mistaken for "never".
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Both times, now.
    pub fn now(&self) -> Now {
        Now { mono: self.mono(), wall: self.wall() }
    }

    /// Monotonic milliseconds.
    pub fn mono(&self) -> Millis {
        Millis(1_000 + u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Wall-clock milliseconds since 1970.
    pub fn wall(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Now, finer than milliseconds: to measure how long something takes.
    pub fn precise(&self) -> Instant {
        Instant::now()
    }

    /// When `at` is, as the runtime counts.
    pub fn instant(&self, at: Millis) -> Instant {
        self.start + std::time::Duration::from_millis(at.0.saturating_sub(1_000).min(1 << 40))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// One replica with its lock.
pub struct Hosted {
    pub at: TopicPartition,
    pub log: LogName,
    /// `topic-partition` by name, for people.
    name: String,
    /// `file.delete.delay.ms`
    erase_delay_ms: AtomicU64,
    replica: Mutex<Replica<Store>>,
    /// The earliest alarm set for it; `u64::MAX`: none.
    alarm: AtomicU64,
    leads: AtomicBool,
    traffic: Arc<TopicTraffic>,
    /// The damage on disk that a read met last, so that not every reader's every try is a line in the log.
    damage: Mutex<Option<String>>,
}

/// Where the outputs go that leave the data plane's inner rooms.
pub struct Edges {
    pub isr: UnboundedSender<IsrProposal>,
    pub fetchable: UnboundedSender<(TopicPartition, FollowerNext)>,
    pub storage_failed: UnboundedSender<Arc<str>>,
    pub sync_pool: SyncPool,
    pub dir: Arc<LogDir<Store>>,
    /// For what waits: the erasing of files.
    pub runtime: Handle,
}

impl Hosted {
    /// Whether it was last told to lead.
    pub fn is_leader(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Flushes and closes its log, after `Stop`. Blocks.
    ///
    /// # Errors
    /// Something could not be written: the directory must not be marked clean.
    pub fn close_cleanly(&self) -> io::Result<()> {
        self.replica.lock().close_cleanly().map(drop)
    }

    /// It was told its role.
    pub fn set_leader(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// The topic's `file.delete.delay.ms`.
    pub fn set_erase_delay(&self, millis: u64) {
        self.erase_delay_ms.store(millis, Ordering::Relaxed);
    }
}

/// All replicas of this broker.
pub struct Partitions {
    hosted: RwLock<HashMap<TopicPartition, Arc<Hosted>>>,
    pub clock: Clock,
    pub tickets: Tickets,
    pub waiters: Waiters,
    /// What goes through them.
    pub traffic: Traffic,
    alarms: Alarms,
    edges: Edges,
}

/// What followed from calls and is not delivered yet. Must be handed to [`Partitions::deliver`].
#[derive(Default)]
pub struct Deliveries {
    outbox: Outbox<Store>,
    /// For each run of outputs its end, and whose they are.
    runs: Vec<(usize, Arc<Hosted>)>,
}

impl Deliveries {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Partitions {
    /// The runtime of the data plane.
    pub fn runtime(&self) -> Handle {
        self.edges.runtime.clone()
    }

    pub fn new(edges: Edges) -> Arc<Self> {
        Arc::new(Self {
            hosted: RwLock::default(),
            clock: Clock::new(),
            tickets: Tickets::default(),
            waiters: Waiters::default(),
            traffic: Traffic::new(&edges.dir.path().display().to_string()),
            alarms: Alarms::default(),
            edges,
        })
    }

    /// Hosts a replica. One that was hosted under the same id before is returned: the caller stops it.
    pub fn host(&self, at: TopicPartition, log: LogName, replica: Replica<Store>) -> Option<Arc<Hosted>> {
        let hosted = Hosted {
            at,
            name: log.to_string(),
            log,
            erase_delay_ms: AtomicU64::new(60_000),
            replica: Mutex::new(replica),
            alarm: AtomicU64::new(u64::MAX),
            leads: AtomicBool::new(false),
            traffic: self.traffic.of(at.topic),
            damage: Mutex::default(),
        };
        self.hosted.write().insert(at, Arc::new(hosted))
    }

    /// One replica.
    pub fn get(&self, at: TopicPartition) -> Option<Arc<Hosted>> {
        self.hosted.read().get(&at).cloned()
    }

    /// Lets go of all replicas, so that their files and the directory's lock are freed.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.hosted.write());
        drop(all);
    }

    /// The directory of all logs.
    pub fn dir(&self) -> &Arc<LogDir<Store>> {
        &self.edges.dir
    }

    /// Tells the fetchers what a replica wants next.
    pub fn follow(&self, at: TopicPartition, next: FollowerNext) {
        let _ = self.edges.fetchable.send((at, next));
    }

    /// Counts bytes that were handed to a consumer.
    pub fn count_consumed(&self, at: TopicPartition, bytes: u64) {
        if let Some(hosted) = self.hosted.read().get(&at) {
            hosted.traffic.consumed(bytes);
        }
    }

    /// A read met damage on disk; whether that is news.
    pub fn note_damage(&self, at: TopicPartition, error: &io::Error) -> bool {
        let Some(hosted) = self.hosted.read().get(&at).cloned() else { return true };
        let told = error.to_string();
        let mut damage = hosted.damage.lock();
        let news = damage.as_ref() != Some(&told);
        if news {
            self.traffic.rotted();
            *damage = Some(told);
        }
        news
    }

    /// Hosts it no longer. Requests that are inside finish; later ones find nothing.
    pub fn remove(&self, at: TopicPartition) -> Option<Arc<Hosted>> {
        self.hosted.write().remove(&at)
    }

    /// Whether the partition is hosted here.
    pub fn contains(&self, at: TopicPartition) -> bool {
        self.hosted.read().contains_key(&at)
    }

    /// How many replicas are hosted.
    pub fn len(&self) -> usize {
        self.hosted.read().len()
    }

    /// None is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything hosted, in order.
    pub fn all(&self) -> Vec<Arc<Hosted>> {
        let mut all: Vec<_> = self.hosted.read().values().cloned().collect();
        all.sort_unstable_by_key(|hosted| hosted.at);
        all
    }

    /// Locks, handles, unlocks, delivers. `None`: not hosted here.
    pub fn enter(self: &Arc<Self>, at: TopicPartition, request: Request) -> Option<Reply> {
        let mut deliveries = Deliveries::new();
        let reply = self.enter_with(at, request, self.clock.now(), &mut deliveries);
        self.deliver(&mut deliveries);
        reply
    }

    /// Locks, handles, unlocks; what is to be delivered is added to `deliveries`. `None`: not hosted here.
    pub fn enter_with(
        &self,
        at: TopicPartition,
        request: Request,
        now: Now,
        deliveries: &mut Deliveries,
    ) -> Option<Reply> {
        let hosted = self.hosted.read().get(&at).cloned()?;
        Some(self.enter_hosted(&hosted, request, now, deliveries))
    }

    /// As [`Self::enter_with`], for one that is at hand, hosted or not.
    pub fn enter_hosted(&self, hosted: &Arc<Hosted>, request: Request, now: Now, deliveries: &mut Deliveries) -> Reply {
        let before = deliveries.outbox.outputs.len();
        let produced = match &request {
            Request::Produce(produce) => Some((produce.batch.len(), produce.batch.record_count())),
            _ => None,
        };
        let began = produced.filter(|_| hosted.traffic.is_timed()).map(|_| self.clock.precise());
        let reply = hosted.replica.lock().handle(request, now, &mut deliveries.outbox);
        if let Some((bytes, records)) = produced
            && matches!(reply, Reply::Produced(_) | Reply::Waiting)
        {
            hosted.traffic.produced(bytes as u64, u64::try_from(records).unwrap_or(0));
            if let Some(began) = began {
                self.traffic.appended(began.elapsed());
            }
        }
        if let Some(at) = deliveries.outbox.tick_at.take()
            && at.0 < hosted.alarm.load(Ordering::Relaxed)
        {
            hosted.alarm.fetch_min(at.0, Ordering::Relaxed);
            self.alarms.set(at, hosted.at);
        }
        let after = deliveries.outbox.outputs.len();
        if after > before {
            deliveries.runs.push((after, hosted.clone()));
        }
        reply
    }

    /// Delivers in order, then writes each connection's answers once.
    pub fn deliver(self: &Arc<Self>, deliveries: &mut Deliveries) {
        if deliveries.runs.is_empty() {
            return;
        }
        let mut to_flush: Vec<Arc<dyn Flush>> = Vec::new();
        let mut runs = deliveries.runs.drain(..);
        let mut run = runs.next();
        for (index, output) in deliveries.outbox.drain().enumerate() {
            while run.as_ref().is_some_and(|(end, _)| *end <= index) {
                run = runs.next();
            }
            let Some((_, hosted)) = &run else { break };
            match output {
                Output::Reply(ticket, reply) => {
                    if let Some(flush) = self.tickets.complete(ticket, reply) {
                        push_once(&mut to_flush, flush);
                    }
                }
                Output::Wake { waiter, urgent } => self.waiters.wake(waiter, hosted.at, urgent),
                Output::ProposeIsr(proposal) => {
                    let _ = self.edges.isr.send(*proposal);
                }
                Output::Fetchable(next) => {
                    let _ = self.edges.fetchable.send((hosted.at, next));
                }
                Output::Sync(job) => {
                    let (partitions, hosted) = (Arc::clone(self), hosted.clone());
                    self.edges.sync_pool.sync(Box::new(move || {
                        let began = partitions.clock.precise();
                        let done = job.run();
                        partitions.traffic.synced(began.elapsed());
                        let mut deliveries = Deliveries::new();
                        let now = partitions.clock.now();
                        partitions.enter_hosted(&hosted, Request::Synced(done), now, &mut deliveries);
                        partitions.deliver(&mut deliveries);
                    }));
                }
                Output::Note(note) => {
                    self.traffic.note(&note);
                    note.log(&hosted.name);
                }
                Output::SaveStart(start) => self.save_start(hosted.clone(), start),
                Output::Erase(paths) => self.erase_later(paths, hosted.erase_delay_ms.load(Ordering::Relaxed)),
                Output::StorageFailed { error } => {
                    let _ = self.edges.storage_failed.send(error);
                }
            }
        }
        drop(runs);
        for flush in to_flush {
            flush.flush();
        }
    }

    /// The pool, for work that must not run on the workers.
    pub fn sync_pool(&self) -> &SyncPool {
        &self.edges.sync_pool
    }

    /// Rings the alarms for ever; ends with its task.
    pub async fn run_ticker(self: Arc<Self>) {
        loop {
            let due = self.alarms.next(&self.clock).await;
            let mut deliveries = Deliveries::new();
            let now = self.clock.now();
            for at in due {
                let Some(hosted) = self.hosted.read().get(&at).cloned() else { continue };
                hosted.alarm.store(u64::MAX, Ordering::Relaxed);
                self.enter_hosted(&hosted, Request::Tick, now, &mut deliveries);
            }
            self.deliver(&mut deliveries);
        }
    }

    /// D33: the log start is in its checkpoint before anybody is told.
    fn save_start(self: &Arc<Self>, hosted: Arc<Hosted>, start: Offset) {
        let partitions = Arc::clone(self);
        self.edges.sync_pool.sync(Box::new(move || {
            let request = match partitions.edges.dir.checkpoint_starts([(hosted.log.clone(), start)]) {
                Ok(()) => Request::StartSaved(start),
                Err(error) => Request::StorageFailed(format!("log start checkpoint: {error}")),
            };
            let mut deliveries = Deliveries::new();
            partitions.enter_hosted(&hosted, request, partitions.clock.now(), &mut deliveries);
            partitions.deliver(&mut deliveries);
        }));
    }

    /// Erases files that are no longer part of a log, after `delay_ms`.
    pub fn erase_later(&self, paths: Vec<PathBuf>, delay_ms: u64) {
        let (pool, dir) = (self.edges.sync_pool.clone(), self.edges.dir.clone());
        self.edges.runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            pool.run(Box::new(move || {
                if let Err(error) = dir.erase(&paths) {
                    warn!(?paths, %error, "cannot erase deleted files; the next start tries again");
                }
            }));
        });
    }
}

fn push_once(list: &mut Vec<Arc<dyn Flush>>, item: Arc<dyn Flush>) {
    if !list.iter().rev().take(8).any(|other| Arc::ptr_eq(other, &item)) {
        list.push(item);
    }
}
