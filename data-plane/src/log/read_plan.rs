//! placeholder
use std::io;
use std::marker::PhantomData;

use bytes::Bytes;

use crate::disk::Disk;

/// A read that was granted under the lock and is carried out elsewhere.
pub struct ReadPlan<D: Disk> {
    _disk: PhantomData<D>,
}

impl<D: Disk> ReadPlan<D> {
    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// At most this many bytes will come.
    pub fn bytes_max(&self) -> usize {
        todo!()
    }

    /// Reads the batches. Empty if the log was truncated in between (R271): ask again.
    pub fn read(&self) -> io::Result<Bytes> {
        todo!()
    }
}
