//! The real file system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::FallocateFlags;

use super::{DirEntry, DirIdentity, Disk, DiskFile, LockAttempt};

/// Parts handed to one call; more are written by further calls (`IOV_MAX` is 1024).
const PARTS_MAX: usize = 512;

/// File systems that keep dirty pages for as long as the machine runs, whatever happens to a process (D10).
const CACHE_OUTLIVES_PROCESS: [u64; 5] = [
    0xEF53,      // ext4
    0x5846_5342, // xfs
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
    0x794C_7630, // overlay
];

/// The files of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct FsDisk;

impl Disk for FsDisk {
    type File = FsFile;
    type Lock = File;

    fn open(&self, path: &Path) -> io::Result<FsFile> {
        OpenOptions::new().read(true).write(true).open(path).map(FsFile)
    }

    fn create(&self, path: &Path) -> io::Result<FsFile> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).map(FsFile)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let is_dir = entry.file_type()?.is_dir();
            // A name that is no UTF-8 is not ours: nothing here ever opens it.
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(DirEntry { name, is_dir });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        fs::exists(path)
    }

    fn identity(&self, dir: &Path) -> io::Result<DirIdentity> {
        let metadata = fs::metadata(dir)?;
        // The magic number has another width and sign on each platform; only its low 32 bits are a name.
        #[allow(clippy::unnecessary_cast)]
        let kind = rustix::fs::statfs(dir)?.f_type as u64 & 0xFFFF_FFFF;
        Ok(DirIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            cache_outlives_process: CACHE_OUTLIVES_PROCESS.contains(&kind),
        })
    }

    fn lock(&self, path: &Path) -> io::Result<LockAttempt<File>> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut locked = file.try_lock();
        for _ in 0..LOCK_ATTEMPTS {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(LOCK_PAUSE);
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {
                file.set_len(0)?;
                file.write_all(std::process::id().to_string().as_bytes())?;
                Ok(LockAttempt::Held(file))
            }
            Err(TryLockError::WouldBlock) => Ok(LockAttempt::HeldBy(fs::read_to_string(path)?.trim().parse().ok())),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// For half a second another holder may take to let go: a process on its way out, or a child of it between fork and exec.
const LOCK_ATTEMPTS: usize = 50;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// An open file.
#[derive(Debug)]
pub struct FsFile(File);

impl DiskFile for FsFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], at + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_into(&self, buffer: &mut Vec<u8>, len_max: usize, at: u64) -> io::Result<usize> {
        let before = buffer.len();
        buffer.reserve_exact(len_max);
        while buffer.len() - before < len_max {
            let done = buffer.len() - before;
            match rustix::io::pread(&self.0, spare_capacity(buffer), at + done as u64) {
                Ok(0) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    buffer.truncate(before);
                    return Err(errno.into());
                }
            }
        }
        // The allocator may have given more room than was asked for.
        buffer.truncate(before + len_max);
        Ok(buffer.len() - before)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if parts.len() <= PARTS_MAX {
            match rustix::io::pwritev(&self.0, parts, at) {
                Ok(written) if written == total => return Ok(()),
                Ok(written) => return self.write_rest(parts, written, at),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.write_rest(parts, 0, at)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, 0, len) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl FsFile {
    /// Writes what lies behind the first `skip` bytes of `parts`, part by part: after a short write, which is rare.
    fn write_rest(&self, parts: &[IoSlice<'_>], mut skip: usize, at: u64) -> io::Result<()> {
        let mut position = at;
        for part in parts {
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                self.0.write_all_at(&part[skipped..], position + skipped as u64)?;
            }
            position += part.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_disk_passes_the_suite() {
        let root = tempfile::tempdir().unwrap();
        super::super::conformance::run(&FsDisk, root.path());
    }

    #[test]
    fn a_second_lock_names_the_holder() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(".lock");
        let held = FsDisk.lock(&path).unwrap();
        assert!(matches!(held, LockAttempt::Held(_)));
        let Ok(LockAttempt::HeldBy(holder)) = FsDisk.lock(&path) else { panic!("locked twice") };
        assert_eq!(holder, Some(std::process::id()));
        drop(held);
        assert!(matches!(FsDisk.lock(&path).unwrap(), LockAttempt::Held(_)));
    }

    #[test]
    fn many_parts_are_written_in_order() {
        let root = tempfile::tempdir().unwrap();
        let file = FsDisk.create(&root.path().join("parts")).unwrap();
        let parts: Vec<[u8; 3]> = (0..2_000u32).map(|n| [n as u8, (n >> 8) as u8, 7]).collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_at(&slices, 5).unwrap();
        let mut read = Vec::new();
        assert_eq!(file.read_into(&mut read, 10_000, 5).unwrap(), 6_000);
        assert_eq!(read, parts.concat());
    }
}
