//! placeholder
use std::marker::PhantomData;

use crate::disk::Disk;

/// What is to be synced, run off the lock.
pub struct SyncJob<D: Disk> {
    _disk: PhantomData<D>,
}

/// What came of it, for [`super::Log::on_synced`].
pub struct SyncDone<D: Disk> {
    _disk: PhantomData<D>,
}

impl<D: Disk> SyncJob<D> {
    /// Bytes of log this job may have to write out; to order jobs by.
    pub fn bytes(&self) -> u64 {
        todo!()
    }

    /// Syncs. May take long.
    pub fn run(self) -> SyncDone<D> {
        todo!()
    }
}

impl<D: Disk> SyncDone<D> {
    /// Why it failed, if it did; the log fails with it.
    pub fn error(&self) -> Option<&std::io::Error> {
        todo!()
    }
}
