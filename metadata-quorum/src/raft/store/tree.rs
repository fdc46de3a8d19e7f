//! The ordered maps a store is made of: sled's trees in the product, maps in memory in the simulation.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A key or value; shared with the store, so that reading copies nothing.
pub(crate) type Bytes = sled::IVec;

/// A row as it was read.
pub(crate) type Row = io::Result<(Bytes, Bytes)>;

/// Rows in the order of their keys.
pub(crate) type Rows<'a> = Box<dyn DoubleEndedIterator<Item = Row> + Send + 'a>;

/// What a store offers of each map. What is written reaches the disk in the order it was written, each batch as a whole
/// or not at all; when, says [`super::MetaStore::sync`].
pub(crate) trait OrderedMap: Send + Sync {
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>>;
    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Rows<'_>;
    fn apply(&self, batch: Batch) -> io::Result<()>;
}

/// Changes that are made together. The last one of a key counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch(pub Vec<(Bytes, Option<Bytes>)>);

impl Batch {
    pub fn insert(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.0.push((key.into(), Some(value.into())));
    }

    pub fn remove(&mut self, key: impl Into<Bytes>) {
        self.0.push((key.into(), None));
    }
}

/// A handle to one map.
#[derive(Clone)]
pub(crate) struct Tree(Arc<dyn OrderedMap>);

impl Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tree")
    }
}

impl Tree {
    pub fn new(map: impl OrderedMap + 'static) -> Self {
        Self(Arc::new(map))
    }

    pub fn get(&self, key: impl AsRef<[u8]>) -> io::Result<Option<Bytes>> {
        self.0.get(key.as_ref())
    }

    pub fn insert(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.insert(key, value);
        self.0.apply(batch)
    }

    pub fn remove(&self, key: impl Into<Bytes>) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.remove(key);
        self.0.apply(batch)
    }

    pub fn apply_batch(&self, batch: Batch) -> io::Result<()> {
        self.0.apply(batch)
    }

    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Rows<'_> {
        self.0.range(range.start_bound().map(AsRef::as_ref), range.end_bound().map(AsRef::as_ref))
    }
}

impl OrderedMap for sled::Tree {
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        Self::get(self, key).map_err(super::to_io)
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Rows<'_> {
        Box::new(Self::range::<&[u8], _>(self, (from, to)).map(|row| row.map_err(super::to_io)))
    }

    fn apply(&self, batch: Batch) -> io::Result<()> {
        // One row costs sled less than a batch of one.
        if let [_] = batch.0.as_slice() {
            for (key, value) in batch.0 {
                match value {
                    Some(value) => Self::insert(self, key, value),
                    None => Self::remove(self, key),
                }
                .map_err(super::to_io)?;
            }
            return Ok(());
        }
        let mut writes = sled::Batch::default();
        for (key, value) in batch.0 {
            match value {
                Some(value) => writes.insert(key, value),
                None => writes.remove(key),
            }
        }
        self.apply_batch(writes).map_err(super::to_io)
    }
}
