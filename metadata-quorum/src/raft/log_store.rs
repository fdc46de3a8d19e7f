//! The raft log and vote on the tree `raft`: durable before it is said to be (R213).
//!
//! Keys (D13): `00` vote, `01` committed, `02` purged, `03` identity, `04` count of syncs, `10|index (u64 big-endian)` → entry.
//! All writes go through one database and one sync thread, so they reach the disk in the order they were made.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::alias::EntryOf;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::store::MetaStore;
use super::store::tree::Batch;
use super::types::{LogId, TypeConfig, Vote};
use crate::flaws::{Flaw, planted};

pub(super) const VOTE: &[u8] = &[0x00];
const COMMITTED: &[u8] = &[0x01];
pub(super) const PURGED: &[u8] = &[0x02];
const ENTRY: u8 = 0x10;

/// Bytes of entries read at once for one append to a follower (D5).
const READ_BYTES_MAX: usize = 1 << 20;

type Entry = EntryOf<TypeConfig>;

/// The log; clones are readers of the same one.
#[derive(Debug, Clone)]
pub(crate) struct LogStore {
    store: Arc<MetaStore>,
    ends: Arc<Mutex<Ends>>,
}

/// What readers must know without asking sled.
#[derive(Debug, Default)]
struct Ends {
    vote: Option<Vote>,
    /// Entries at or below do not exist, though some may still lie in the tree.
    purged: Option<LogId>,
    last: Option<LogId>,
}

pub(super) fn entry_key(index: u64) -> [u8; 9] {
    let mut key = [ENTRY; 9];
    key[1..].copy_from_slice(&index.to_be_bytes());
    key
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, and memory is the only limit")
}

fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(|error| io::Error::other(format!("unreadable {what} in the raft log: {error}")))
}

#[cfg(feature = "sim")]
pub(super) fn read_vote(bytes: &[u8]) -> Option<Vote> {
    decode("vote", bytes).ok()
}

#[cfg(feature = "sim")]
pub(super) fn read_log_id(bytes: &[u8]) -> Option<LogId> {
    decode("mark", bytes).ok()
}

#[cfg(feature = "sim")]
pub(super) fn read_entry(bytes: &[u8]) -> Option<Entry> {
    decode("entry", bytes).ok()
}

impl LogStore {
    /// Reads the ends of the log, and sweeps what a purge left behind.
    pub fn open(store: Arc<MetaStore>) -> io::Result<Self> {
        let read = |key: &[u8]| store.raft.get(key);
        let vote = read(VOTE)?.map(|bytes| decode("vote", &bytes)).transpose()?;
        let purged: Option<LogId> = read(PURGED)?.map(|bytes| decode("purge mark", &bytes)).transpose()?;
        let last = match store.raft.range(entry_key(0)..=entry_key(u64::MAX)).next_back().transpose()? {
            Some((_, bytes)) => Some(decode::<Entry>("entry", &bytes)?.log_id),
            None => None,
        };
        let last = last.max(purged);
        if let Some(purged) = &purged {
            store.sweep(&store.raft, entry_key(0).to_vec(), entry_key(purged.index + 1).to_vec());
        }
        Ok(Self { store, ends: Arc::new(Mutex::new(Ends { vote, purged, last })) })
    }

    /// Entries of a range in order. Stops after `bytes_max`, but never before the first.
    fn read(&self, range: impl RangeBounds<u64>, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let first_kept = self.ends.lock().purged.as_ref().map_or(0, |purged| purged.index + 1);
        let from = from.max(first_kept);
        let to = match range.end_bound() {
            Bound::Included(index) => Bound::Included(entry_key(*index)),
            Bound::Excluded(index) if *index <= from => return Ok(Vec::new()),
            Bound::Excluded(index) => Bound::Excluded(entry_key(*index)),
            Bound::Unbounded => Bound::Included(entry_key(u64::MAX)),
        };
        if matches!(range.end_bound(), Bound::Included(end) if *end < from) {
            return Ok(Vec::new());
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes_read = 0;
        for row in self.store.raft.range((Bound::Included(entry_key(from)), to)) {
            let (_, bytes) = row?;
            bytes_read += bytes.len();
            if bytes_read > bytes_max && !entries.is_empty() {
                break;
            }
            let entry: Entry = decode("entry", &bytes)?;
            if let Some(before) = entries.last()
                && before.log_id.index + 1 != entry.log_id.index
            {
                return Err(io::Error::other(format!(
                    "the raft log has a hole between {} and {}",
                    before.log_id.index, entry.log_id.index
                )));
            }
            entries.push(entry);
        }
        Ok(entries)
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        self.read(range, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start..end, READ_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.ends.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let ends = self.ends.lock();
        Ok(LogState { last_purged_log_id: ends.purged, last_log_id: ends.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.store.raft.insert(VOTE, encode(vote))?;
        self.ends.lock().vote = Some(*vote);
        if planted(Flaw::ForgetsVotes) {
            return Ok(());
        }
        self.store.synced().await
    }

    /// A lower bound is enough, so this is not synced.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        match committed {
            Some(committed) => self.store.raft.insert(COMMITTED, encode(&committed)),
            None => self.store.raft.remove(COMMITTED),
        }
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let stored = self.store.raft.get(COMMITTED)?;
        stored.map(|bytes| decode("commit mark", &bytes)).transpose()
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut batch = Batch::default();
        let mut last = None;
        for entry in entries {
            batch.insert(&entry_key(entry.log_id.index), encode(&entry));
            last = Some(entry.log_id);
        }
        self.store.raft.apply_batch(batch)?;
        if last.is_some() {
            self.ends.lock().last = last;
        }
        if planted(Flaw::AcksUnsynced) {
            callback.io_completed(Ok(()));
            self.store.sync(|_| ());
            return Ok(());
        }
        self.store.sync(move |result| callback.io_completed(result));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.as_ref().map_or(0, |last| last.index + 1);
        let mut batch = Batch::default();
        for row in self.store.raft.range(entry_key(from)..=entry_key(u64::MAX)) {
            batch.remove(row?.0);
        }
        if !planted(Flaw::TruncatesInMemory) {
            self.store.raft.apply_batch(batch)?;
        }
        {
            let mut ends = self.ends.lock();
            ends.last = ends.last.take().min(last).max(ends.purged);
        }
        self.store.synced().await
    }

    /// Marks, syncs, and leaves the deleting to the background.
    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.store.raft.insert(PURGED, encode(&upto))?;
        self.store.synced().await?;
        {
            let mut ends = self.ends.lock();
            ends.purged = Some(upto);
            ends.last = ends.last.take().max(Some(upto));
        }
        self.store.sweep(&self.store.raft, entry_key(0).to_vec(), entry_key(upto.index + 1).to_vec());
        Ok(())
    }
}
