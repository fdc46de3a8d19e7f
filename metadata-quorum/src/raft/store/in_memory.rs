//! The store of a simulated node: maps in memory, and a disk that loses what was not synced when its machine dies.
//!
//! Writes reach the disk in the order they were made, each batch as a whole, as in sled: a crash keeps a prefix of them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::watch;

use super::super::snapshot;
use super::super::types::{LogId, SnapshotMeta};
use super::tree::{Batch, Bytes, OrderedMap, Rows, Tree};
use super::{Disk, Done, Encode, MetaStore, OpenError, SWEEP_KEYS_MAX, Trees};

const RAFT: usize = 0;
const STATE: usize = 1;
const EVENTS: usize = 2;

type Map = BTreeMap<Bytes, Bytes>;

/// One in so many syncs takes `slow`.
const ONE_IN_SLOW: u32 = 50;

/// How long a sync takes, in milliseconds.
#[derive(Debug, Clone)]
pub struct Latency {
    pub usual_ms: Range<u64>,
    pub slow_ms: Range<u64>,
}

struct State {
    /// What a crash leaves, per tree.
    durable: [Map; 3],
    /// What the process sees.
    live: [Map; 3],
    unsynced: VecDeque<(usize, Batch)>,
    /// Batches written and batches synced since the beginning.
    written: u64,
    synced: u64,
    waiting: Vec<Done>,
    syncing: bool,
    snapshot: Option<(Option<LogId>, bytes::Bytes)>,
    /// The next sync fails; none succeeds after that until the machine was restarted.
    fail_next: bool,
    broken: bool,
    latency: Latency,
    chance: SmallRng,
}

fn write(map: &mut Map, batch: &Batch) {
    for (key, value) in &batch.0 {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

impl State {
    fn apply(&mut self, tree: usize, batch: Batch) {
        write(&mut self.live[tree], &batch);
        self.unsynced.push_back((tree, batch));
        self.written += 1;
    }

    /// Makes everything up to batch `upto` durable.
    fn settle(&mut self, upto: u64) {
        while self.synced < upto
            && let Some((tree, batch)) = self.unsynced.pop_front()
        {
            write(&mut self.durable[tree], &batch);
            self.synced += 1;
        }
    }

    fn takes(&mut self) -> Duration {
        let slow = self.chance.random_ratio(1, ONE_IN_SLOW);
        let range = if slow { self.latency.slow_ms.clone() } else { self.latency.usual_ms.clone() };
        Duration::from_millis(self.chance.random_range(range))
    }
}

/// The disk of one simulated machine; outlives the processes on it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    pub fn new(seed: u64, latency: Latency) -> Self {
        Self(Arc::new(Mutex::new(State {
            durable: Default::default(),
            live: Default::default(),
            unsynced: VecDeque::new(),
            written: 0,
            synced: 0,
            waiting: Vec::new(),
            syncing: false,
            snapshot: None,
            fail_next: false,
            broken: false,
            latency,
            chance: SmallRng::seed_from_u64(seed),
        })))
    }

    /// The machine lost its power: of what was not synced a prefix survives, nothing and everything among them. Returns how
    /// many batches are lost. No process may be running on it.
    pub fn lose_power(&self) -> u64 {
        let mut state = self.0.lock();
        let unsynced = state.written - state.synced;
        let kept = match state.chance.random_range(0..4) {
            0 => unsynced,
            1 => 0,
            _ => state.chance.random_range(0..=unsynced),
        };
        let upto = state.synced + kept;
        state.settle(upto);
        state.unsynced.clear();
        state.written = state.synced;
        state.live = state.durable.clone();
        state.waiting.clear();
        (state.syncing, state.fail_next, state.broken) = (false, false, false);
        unsynced - kept
    }

    /// The next sync fails, and with it the store.
    pub fn fail_next_sync(&self) {
        self.0.lock().fail_next = true;
    }

    /// Whether a sync failed since its machine started.
    pub fn is_broken(&self) -> bool {
        self.0.lock().broken
    }

    pub fn set_latency(&self, latency: Latency) {
        self.0.lock().latency = latency;
    }

    /// Reads a row of the raft tree, as the process sees it or as a crash would leave it.
    pub(crate) fn raft_row(&self, key: &[u8], durable: bool) -> Option<Bytes> {
        let state = self.0.lock();
        let map = if durable { &state.durable[RAFT] } else { &state.live[RAFT] };
        map.get(key).cloned()
    }

    /// What the snapshot is of.
    pub(crate) fn snapshot(&self) -> Option<LogId> {
        self.0.lock().snapshot.as_ref().and_then(|(log_id, _)| *log_id)
    }

    /// As [`Self::raft_row`], of the state tree.
    pub(crate) fn state_row(&self, key: &[u8], durable: bool) -> Option<Bytes> {
        let state = self.0.lock();
        let map = if durable { &state.durable[STATE] } else { &state.live[STATE] };
        map.get(key).cloned()
    }

    fn sync(&self, done: Done, failed: &watch::Sender<Option<String>>) {
        let begin = {
            let mut state = self.0.lock();
            state.waiting.push(done);
            !std::mem::replace(&mut state.syncing, true)
        };
        if begin {
            tokio::spawn(self.clone().sync_waiting(failed.clone()));
        }
    }

    /// Group commit, as the sync thread of the real store does it.
    async fn sync_waiting(self, failed: watch::Sender<Option<String>>) {
        loop {
            let (jobs, upto, takes) = {
                let mut state = self.0.lock();
                if state.waiting.is_empty() {
                    state.syncing = false;
                    return;
                }
                (std::mem::take(&mut state.waiting), state.written, state.takes())
            };
            tokio::time::sleep(takes).await;
            let broken = {
                let mut state = self.0.lock();
                if std::mem::take(&mut state.fail_next) {
                    state.broken = true;
                }
                if !state.broken {
                    state.settle(upto);
                }
                state.broken
            };
            if broken {
                failed.send_replace(Some("the simulated disk failed".to_owned()));
            }
            for done in jobs {
                done(if broken { Err(io::Error::other("the simulated disk failed")) } else { Ok(()) });
            }
        }
    }
}

struct SimTree {
    disk: SimDisk,
    tree: usize,
}

impl OrderedMap for SimTree {
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        Ok(self.disk.0.lock().live[self.tree].get(key).cloned())
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Rows<'_> {
        let state = self.disk.0.lock();
        let empty = match (from, to) {
            (Bound::Included(from), Bound::Excluded(to)) => from >= to,
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
            _ => false,
        };
        if empty {
            return Box::new(std::iter::empty());
        }
        let rows = state.live[self.tree].range::<[u8], _>((from, to));
        let rows: Vec<_> = rows.map(|(key, value)| Ok((key.clone(), value.clone()))).collect();
        Box::new(rows.into_iter())
    }

    fn apply(&self, batch: Batch) -> io::Result<()> {
        self.disk.0.lock().apply(self.tree, batch);
        Ok(())
    }
}

/// A process's hold on its machine's disk.
struct Mounted {
    disk: SimDisk,
    failed: watch::Sender<Option<String>>,
}

impl Disk for Mounted {
    fn directory(&self) -> &Path {
        Path::new("simulated")
    }

    fn write_properties(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self, done: Done) {
        self.disk.sync(done, &self.failed);
    }

    fn sweep(&self, tree: &Tree, from: Vec<u8>, to: Vec<u8>) {
        let tree = tree.clone();
        tokio::spawn(async move {
            loop {
                let mut batch = Batch::default();
                tree.range(from.clone()..to.clone())
                    .flatten()
                    .take(SWEEP_KEYS_MAX)
                    .for_each(|(key, _)| batch.remove(key));
                if batch.0.is_empty() || tree.apply_batch(batch).is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }

    fn save_snapshot(&self, log_id: Option<LogId>, encode: Encode) -> BoxFuture<'static, io::Result<bytes::Bytes>> {
        let disk = self.disk.clone();
        Box::pin(async move {
            let bytes = encode();
            let takes = disk.0.lock().takes();
            tokio::time::sleep(takes).await;
            let mut state = disk.0.lock();
            if state.snapshot.as_ref().is_none_or(|(saved, _)| *saved <= log_id) {
                state.snapshot = Some((log_id, bytes.clone()));
            }
            Ok(bytes)
        })
    }

    fn load_snapshot(&self) -> BoxFuture<'static, io::Result<Option<(SnapshotMeta, bytes::Bytes)>>> {
        let saved = self.disk.0.lock().snapshot.clone();
        Box::pin(async move {
            let Some((_, bytes)) = saved else { return Ok(None) };
            Ok(Some((snapshot::meta(&bytes)?, bytes)))
        })
    }

    fn end(&self) -> Vec<std::thread::JoinHandle<()>> {
        Vec::new()
    }
}

impl MetaStore {
    /// Opens or formats the store of `node` on a simulated disk.
    pub async fn in_memory(disk: &SimDisk, node: i32) -> Result<Self, OpenError> {
        let (failed, _) = watch::channel(None);
        let tree = |tree| Tree::new(SimTree { disk: disk.clone(), tree });
        let trees = Trees { raft: tree(RAFT), state: tree(STATE), events: tree(EVENTS) };
        let mounted = Mounted { disk: disk.clone(), failed: failed.clone() };
        let (store, is_new) = Self::on(Box::new(mounted), trees, failed, node)?;
        if is_new {
            let at = |source| OpenError::Io { path: "simulated".into(), source };
            store.save_identity().map_err(at)?;
            store.synced().await.map_err(at)?;
        }
        Ok(store)
    }
}
