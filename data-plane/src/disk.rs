//! What the log needs of a file system: a narrow trait with two implementations that pass one suite
//! (`disk/conformance.rs`). The real one is `disk/fs.rs`; `disk/sim.rs` (feature "sim") forgets on a crash what was
//! not synced.
//!
//! Everything is synchronous and takes `&self`: a file may be read by one thread while another appends to it. Nothing
//! here knows what the bytes mean.

use std::io::{self, IoSlice};
use std::path::Path;

#[cfg(any(test, feature = "sim"))]
pub mod conformance;
pub mod fs;
#[cfg(any(test, feature = "sim"))]
pub mod sim;

pub use fs::FsDisk;
#[cfg(any(test, feature = "sim"))]
pub use sim::SimDisk;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
}

/// What tells one directory from another one that was put in its place (D10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirIdentity {
    pub device: u64,
    pub inode: u64,
    /// Whether the file system keeps its cache for as long as the machine runs: ext4, xfs, btrfs, tmpfs, overlay.
    pub cache_outlives_process: bool,
}

/// Who holds the lock that was asked for.
#[derive(Debug)]
pub enum LockAttempt<L> {
    /// Ours until the value is dropped or the process ends.
    Held(L),
    /// Another process has it; its id where the lock file says so.
    HeldBy(Option<u32>),
}

/// A file system. Clones share it.
pub trait Disk: Clone + Send + Sync + 'static {
    type File: DiskFile;
    type Lock: Send + Sync + 'static;

    /// Opens an existing file for reading and writing. `NotFound` where there is none.
    fn open(&self, path: &Path) -> io::Result<Self::File>;

    /// Opens a file for reading and writing and empties it; makes it where there is none. The directory must exist.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Makes a directory and those above it; nothing if it exists.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, sorted. `NotFound` where there is none.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// Removes a file. `NotFound` where there is none; open handles stay readable.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with all it holds. `NotFound` where there is none.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Gives a file or directory another name, replacing a file of that name in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes creations, removals and renames in this directory survive a loss of power.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Whether a file or directory of that name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// What tells this directory from one put in its place.
    fn identity(&self, dir: &Path) -> io::Result<DirIdentity>;

    /// Takes the lock file at `path`, making it if need be, and writes this process's id into it.
    fn lock(&self, path: &Path) -> io::Result<LockAttempt<Self::Lock>>;

    /// The whole content of a file. `NotFound` where there is none.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        let len = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut content = Vec::with_capacity(len);
        while content.len() < len {
            let at = content.len();
            if file.read_into(&mut content, len - at, at as u64)? == 0 {
                break;
            }
        }
        Ok(content)
    }
}

/// An open file. Positions are in bytes from its start.
pub trait DiskFile: Send + Sync + 'static {
    /// Reads into `buffer` from `at` on; the number of bytes read is smaller only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Appends up to `len_max` bytes from `at` on to `buffer`, without zeroing it first; the number read is smaller
    /// only at the end of the file.
    fn read_into(&self, buffer: &mut Vec<u8>, len_max: usize, at: u64) -> io::Result<usize>;

    /// Writes all of `parts`, one after the other, from `at` on. On an error any part of it may have been written.
    fn write_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<()>;

    /// The length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds nothing.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or lengthens it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes content and length survive a loss of power. After an error nothing may be believed of this file any
    /// more: never call it again (R283).
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves room for `len` bytes without changing the length. A wish: `Ok` where it is not supported.
    fn preallocate(&self, len: u64) -> io::Result<()>;
}
