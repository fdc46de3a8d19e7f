//! The journal: the newest events of this node's applied entries, beside the state in sled (operators.md 1.4 K).
//!
//! Readers pull at their own pace and hold nothing; it is bounded, and who asks for what is gone is told so. It survives
//! every restart: the tree `events` holds rows `index | chunk` → events, and under `00` the stretch it covers without a
//! hole. Rows and stretch are written with each batch of entries, before the state that follows from it; what a crash took
//! is applied, and written, again. An older build does not write it: the stretch then shows the hole, and it starts anew.

use std::collections::VecDeque;
use std::io;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::store::MetaStore;
use super::store::tree::{Batch, Tree};
use crate::image::events::{Event, EventId};

/// Events kept. A restart of one node in a cluster of 10,000 partitions makes about 27,000.
const EVENTS_MAX: usize = 50_000;
/// Bytes kept.
const BYTES_MAX: usize = 8 << 20;
/// Events in one row: far below the size that sled would put into a file of its own.
const ROW_EVENTS: usize = 64;
const FORMAT: u32 = 1;
/// Key of [`Stretch`].
const STRETCH: &[u8] = &[0x00];

/// What the rows cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stretch {
    format: u32,
    /// The last place that is gone: every event behind it is here.
    floor: EventId,
    /// The last entry looked at.
    upto: u64,
}

#[derive(Debug)]
struct Row {
    key: [u8; 12],
    last: EventId,
    events: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Book {
    stretch: Stretch,
    rows: VecDeque<Row>,
    events: usize,
    bytes: usize,
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Journal {
    tree: Tree,
    book: Mutex<Book>,
    /// The last entry looked at.
    looked: watch::Sender<u64>,
}

/// Some events in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// The place asked for is older than the journal: everything behind it and up to here is lost to the reader.
    pub gap_to: Option<EventId>,
    pub events: Vec<Event>,
    /// Where to go on.
    pub position: EventId,
}

fn key(index: u64, chunk: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&index.to_be_bytes());
    key[8..].copy_from_slice(&chunk.to_be_bytes());
    key
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, and memory is the only limit")
}

impl Journal {
    /// Opens the journal beside a state that has applied entries up to `applied`.
    pub fn open(store: &MetaStore, applied: u64) -> io::Result<Self> {
        let tree = store.events.clone();
        let stretch = tree.get(STRETCH)?;
        let stretch = stretch.and_then(|bytes| {
            let format = postcard::take_from_bytes::<u32>(&bytes).ok()?.0;
            (format == FORMAT).then(|| postcard::from_bytes::<Stretch>(&bytes).ok()).flatten()
        });
        let covered = stretch.filter(|stretch| stretch.upto >= applied);
        let floor = covered.map_or(EventId::end_of(applied), |stretch| stretch.floor);
        let stretch = Stretch { format: FORMAT, floor, upto: applied };
        let mut book = Book { stretch, rows: VecDeque::new(), events: 0, bytes: 0 };
        let mut stale = Batch::default();
        let first = key(0, 0);
        for row in tree.range(first..) {
            let (found, value) = row?;
            let events = postcard::from_bytes::<Vec<Event>>(&value).unwrap_or_default();
            let last = events.last().map(|event| event.id);
            match (<[u8; 12]>::try_from(found.as_ref()), last) {
                // What lies behind the applied state is applied again.
                (Ok(key), Some(last)) if last > floor && last.index <= applied => {
                    book.push(Row { key, last, events: events.len(), bytes: value.len() });
                }
                _ => stale.remove(found),
            }
        }
        stale.insert(STRETCH, encode(&stretch));
        tree.apply_batch(stale)?;
        Ok(Self { tree, book: Mutex::new(book), looked: watch::channel(applied).0 })
    }

    /// Entries up to `upto` were applied and did this.
    pub fn append(&self, upto: u64, events: &[Event]) -> io::Result<()> {
        let mut batch = Batch::default();
        let mut book = self.book.lock();
        for entry in events.chunk_by(|a, b| a.id.index == b.id.index) {
            for (chunk, events) in (0..).zip(entry.chunks(ROW_EVENTS)) {
                let Some(last) = events.last() else { continue };
                let (key, value) = (key(last.id.index, chunk), encode(&events));
                book.push(Row { key, last: last.id, events: events.len(), bytes: value.len() });
                batch.insert(&key, value);
            }
        }
        while (book.events > EVENTS_MAX || book.bytes > BYTES_MAX)
            && let Some(row) = book.rows.pop_front()
        {
            book.events -= row.events;
            book.bytes -= row.bytes;
            book.stretch.floor = row.last;
            batch.remove(&row.key);
        }
        book.stretch.upto = upto;
        batch.insert(STRETCH, encode(&book.stretch));
        self.tree.apply_batch(batch)?;
        drop(book);
        self.looked.send_replace(upto);
        Ok(())
    }

    /// The state was replaced by a snapshot of entry `upto`: what led there is not known here.
    pub fn reset(&self, upto: u64) -> io::Result<()> {
        let mut book = self.book.lock();
        let mut batch = Batch::default();
        for row in std::mem::take(&mut book.rows) {
            batch.remove(&row.key);
        }
        (book.events, book.bytes) = (0, 0);
        book.stretch = Stretch { format: FORMAT, floor: EventId::end_of(upto), upto };
        batch.insert(STRETCH, encode(&book.stretch));
        self.tree.apply_batch(batch)?;
        drop(book);
        self.looked.send_replace(upto);
        Ok(())
    }

    /// Up to `limit` events behind `after`, or a few more. Holds nobody up: rows are read beside the writer.
    pub fn page(&self, after: EventId, limit: usize) -> io::Result<EventPage> {
        loop {
            let (gap_to, after, keys, end) = {
                let book = self.book.lock();
                let floor = book.stretch.floor;
                let gap_to = (after < floor).then_some(floor);
                let start = book.rows.partition_point(|row| row.last <= after);
                let keys: Vec<_> = book.rows.range(start..).take(limit.div_ceil(2)).map(|row| row.key).collect();
                let whole = start + keys.len() == book.rows.len();
                let after = after.max(floor);
                let end = whole.then(|| EventId::end_of(book.stretch.upto).max(after));
                (gap_to, after, keys, end)
            };
            if let Some(page) = self.rows(after, limit, &keys, end)? {
                return Ok(EventPage { gap_to, ..page });
            }
            // A row went away meanwhile, and the floor rose.
        }
    }

    /// `end`: where the reader stands once all these rows are read.
    fn rows(
        &self,
        after: EventId,
        limit: usize,
        keys: &[[u8; 12]],
        end: Option<EventId>,
    ) -> io::Result<Option<EventPage>> {
        let mut events: Vec<Event> = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let Some(value) = self.tree.get(key)? else { return Ok(None) };
            let row: Vec<Event> = postcard::from_bytes(&value).map_err(io::Error::other)?;
            events.extend(row.into_iter().filter(|event| event.id > after));
            if events.len() >= limit && at + 1 < keys.len() {
                let position = events.last().map_or(after, |event| event.id);
                return Ok(Some(EventPage { gap_to: None, events, position }));
            }
        }
        let last = events.last().map_or(after, |event| event.id);
        Ok(Some(EventPage { gap_to: None, events, position: end.unwrap_or(last) }))
    }

    /// The last place that is gone.
    pub fn floor(&self) -> EventId {
        self.book.lock().stretch.floor
    }

    /// Wakes when entries were applied; holds the last one.
    pub fn looked(&self) -> watch::Receiver<u64> {
        self.looked.subscribe()
    }
}

impl Book {
    fn push(&mut self, row: Row) {
        self.events += row.events;
        self.bytes += row.bytes;
        self.rows.push_back(row);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use highwater_wire::{BrokerId, Timestamp};
    use tempfile::TempDir;

    use super::*;
    use crate::image::events::EventKind;

    fn event(index: u64, number: u32) -> Event {
        let kind = EventKind::BrokerUnregistered { broker: BrokerId(1) };
        Event { id: EventId { index, number }, time: Timestamp(1), kind }
    }

    fn open(directory: &TempDir, applied: u64) -> (Arc<MetaStore>, Journal) {
        let store = Arc::new(MetaStore::open(directory.path(), 1).unwrap());
        let journal = Journal::open(&store, applied).unwrap();
        (store, journal)
    }

    fn close(store: Arc<MetaStore>, journal: Journal) {
        store.close();
        drop(journal);
        drop(store);
    }

    fn read(journal: &Journal, after: EventId) -> (Option<EventId>, Vec<EventId>) {
        let (mut after, mut gap, mut ids) = (after, None, Vec::new());
        loop {
            let page = journal.page(after, 7).unwrap();
            gap = gap.or(page.gap_to);
            if page.events.is_empty() {
                return (gap, ids);
            }
            ids.extend(page.events.iter().map(|event| event.id));
            after = page.position;
        }
    }

    #[test]
    fn what_was_applied_is_read_from_any_place_exactly_once_also_after_a_restart() {
        let directory = TempDir::new().unwrap();
        let (store, journal) = open(&directory, 0);
        let large: Vec<Event> = (0..150).map(|number| event(3, number)).collect();
        journal.append(2, &[event(1, 0), event(2, 0)]).unwrap();
        journal.append(5, &large).unwrap();
        let all: Vec<EventId> =
            [event(1, 0).id, event(2, 0).id].into_iter().chain(large.iter().map(|e| e.id)).collect();
        let beginning = EventId { index: 0, number: 0 };
        assert_eq!(read(&journal, EventId::end_of(0)), (None, all.clone()));
        assert_eq!(read(&journal, event(3, 100).id), (None, all[103..].to_vec()));
        assert_eq!(read(&journal, EventId::end_of(5)), (None, vec![]));
        assert_eq!(journal.page(EventId::end_of(4), 7).unwrap().position, EventId::end_of(5));
        close(store, journal);

        // The state went back to entry 2: what lies behind is applied, and written, again.
        let (store, journal) = open(&directory, 2);
        assert_eq!(read(&journal, EventId::end_of(0)).1, all[..2]);
        journal.append(5, &large).unwrap();
        close(store, journal);
        let (store, journal) = open(&directory, 5);
        assert_eq!(read(&journal, EventId::end_of(0)), (None, all));
        assert_eq!(read(&journal, beginning).0, Some(EventId::end_of(0)));
        close(store, journal);
    }

    #[test]
    fn it_is_bounded_and_tells_what_is_gone() {
        let directory = TempDir::new().unwrap();
        let (store, journal) = open(&directory, 0);
        let entries = (EVENTS_MAX as u64).div_ceil(1_000) + 3;
        for index in 1..=entries {
            let events: Vec<Event> = (0..1_000).map(|number| event(index, number)).collect();
            journal.append(index, &events).unwrap();
        }
        let page = journal.page(EventId::end_of(0), 10).unwrap();
        assert_eq!(page.gap_to, Some(journal.floor()));
        assert!(page.events[0].id > journal.floor());
        let (_, ids) = read(&journal, EventId::end_of(0));
        assert!(ids.len() <= EVENTS_MAX && ids.len() > EVENTS_MAX - 1_000, "{}", ids.len());
        assert_eq!(ids.last(), Some(&EventId { index: entries, number: 999 }));
        close(store, journal);
    }

    #[test]
    fn a_hole_or_a_snapshot_makes_it_start_anew() {
        let directory = TempDir::new().unwrap();
        let (store, journal) = open(&directory, 0);
        journal.append(2, &[event(1, 0), event(2, 0)]).unwrap();
        close(store, journal);
        // Another build applied up to 9.
        let (store, journal) = open(&directory, 9);
        assert_eq!(read(&journal, event(1, 0).id), (Some(EventId::end_of(9)), vec![]));
        journal.append(10, &[event(10, 0)]).unwrap();
        journal.reset(50).unwrap();
        assert_eq!(read(&journal, event(10, 0).id), (Some(EventId::end_of(50)), vec![]));
        journal.append(51, &[event(51, 0)]).unwrap();
        assert_eq!(read(&journal, EventId::end_of(50)), (None, vec![event(51, 0).id]));
        close(store, journal);
    }
}
