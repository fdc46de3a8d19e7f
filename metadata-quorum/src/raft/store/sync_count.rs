//! A count of syncs beside the database, by which it is noticed when the database has forgotten something.
//!
//! sled takes the first damaged place of its log for its end and opens without a word; a voter would then vote as if it had
//! promised nothing. So each sync counts one up in the database, and here when it is done: a database that counts less than
//! this file has lost what was acknowledged. The file itself is never synced: power lost leaves it behind, not ahead.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::super::snapshot::crc;

/// Two places that are written in turn, so that one survives whatever tears the other.
const SLOTS: u64 = 2;
/// Bytes from one to the next: a sector.
const STRIDE: u64 = 512;
/// The count (big-endian) and its CRC-32C.
const SLOT_BYTES: usize = 12;

/// The file `sync-count` of a metadata directory.
#[derive(Debug)]
pub(super) struct SyncCount {
    file: File,
}

impl SyncCount {
    pub fn path(directory: &Path) -> PathBuf {
        directory.join("sync-count")
    }

    /// Opens or creates the file; with the count it knows, `None` in a new or unreadable one.
    pub fn open(directory: &Path) -> io::Result<(Self, Option<u64>)> {
        let path = Self::path(directory);
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
        let slots = (0..SLOTS).filter_map(|slot| read(&file, slot));
        let known = slots.max();
        Ok((Self { file }, known))
    }

    /// `count` syncs are done.
    pub fn write(&self, count: u64) -> io::Result<()> {
        let mut slot = [0; SLOT_BYTES];
        let (number, sum) = slot.split_at_mut(8);
        number.copy_from_slice(&count.to_be_bytes());
        sum.copy_from_slice(&crc(number).to_be_bytes());
        self.file.write_all_at(&slot, count % SLOTS * STRIDE)
    }
}

fn read(file: &File, slot: u64) -> Option<u64> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot * STRIDE).ok()?;
    let (number, sum) = bytes.split_first_chunk::<8>()?;
    (sum == crc(number).to_be_bytes()).then(|| u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_count_is_read_back_and_a_torn_one_leaves_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let (count, known) = SyncCount::open(directory.path()).unwrap();
        assert_eq!(known, None);
        for number in 1..=5 {
            count.write(number).unwrap();
            assert_eq!(SyncCount::open(directory.path()).unwrap().1, Some(number));
        }
        count.file.write_all_at(&[0xff], 5 % SLOTS * STRIDE + 3).unwrap();
        assert_eq!(SyncCount::open(directory.path()).unwrap().1, Some(4));
        count.file.set_len(0).unwrap();
        assert_eq!(SyncCount::open(directory.path()).unwrap().1, None);
    }
}
