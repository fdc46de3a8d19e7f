//! A file system in memory that forgets on a crash what was not synced, and fails when it is told to.
//!
//! Deterministic: what a crash keeps is drawn from a seed. Each file and directory remembers how to undo what happened
//! since it was last synced; content is one vector per file, so that a run of thousands of seeds is cheap.
//!
//! `faults.rs`: what a test does to it; here: what it is to those who use it.
//!
//! The model is meaner than ext4: a created or renamed file is lost unless its directory was synced, even if the file
//! itself was; writes of one file survive in any combination; the last one that survives may be torn.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;

use super::{DirEntry, DirIdentity, Disk, DiskFile, LockAttempt};

mod faults;
mod node;

pub use faults::{Call, Crash};
use faults::{Faults, count_down};
use node::{DirNode, FileNode, Ino, Node};

const ROOT: Ino = Ino(0);

/// An in-memory file system. Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone)]
struct State {
    nodes: BTreeMap<Ino, Node>,
    next_ino: u64,
    locks: BTreeSet<PathBuf>,
    /// Handles and locks of an earlier life are dead.
    life: u64,
    faults: Faults,
    /// Calls so far that changed something or synced.
    changes: u64,
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty one.
    pub fn new() -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::Dir(DirNode::default()))]);
        let state =
            State { nodes, next_ino: 1, locks: BTreeSet::new(), life: 0, faults: Faults::default(), changes: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }
}

impl State {
    /// The parent's inode and the last name.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(Ino, &'p str)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?;
        Ok((self.find(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn find(&self, path: &Path) -> io::Result<Ino> {
        let mut ino = ROOT;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let name = name.to_str().ok_or(ErrorKind::InvalidInput)?;
            let child = self.dir(ino)?.entries.get(name);
            ino = *child.ok_or_else(|| io::Error::new(ErrorKind::NotFound, path.display().to_string()))?;
        }
        Ok(ino)
    }

    fn dir(&self, ino: Ino) -> io::Result<&DirNode> {
        match self.nodes.get(&ino) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&ino) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn file_mut(&mut self, ino: Ino) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&ino) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn add(&mut self, node: Node) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.nodes.insert(ino, node);
        ino
    }

    /// Counts a change; an error where the process is to have died by now.
    fn change(&mut self) -> io::Result<()> {
        let number = self.changes;
        if self.faults.stop_at.is_some_and(|stop| number >= stop) {
            return Err(io::Error::other("the simulated process has died"));
        }
        self.changes += 1;
        Ok(())
    }

    /// An error where this very call is to fail.
    fn may(&mut self, call: Call) -> io::Result<()> {
        match &mut self.faults.other_fails_in {
            Some((failing, 0)) if *failing == call => {
                self.faults.other_fails_in = None;
                Err(eio())
            }
            Some((failing, left)) if *failing == call => {
                *left -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn lose_unsynced(&mut self, mut keep: Option<SmallRng>) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.lose_unsynced(keep.as_mut()),
                Node::Dir(dir) => {
                    let kept = keep.as_mut().map_or(0, |rng| rng.random_range(0..=dir.unsynced.len()));
                    dir.undo_to(kept);
                }
            }
        }
    }

    /// Drops what no name leads to, and counts the bytes of the rest. Only when no handle is alive.
    fn collect_garbage(&mut self) {
        let mut reachable = BTreeSet::new();
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            if reachable.insert(ino)
                && let Ok(dir) = self.dir(ino)
            {
                todo.extend(dir.entries.values());
            }
        }
        self.nodes.retain(|ino, _| reachable.contains(ino));
        self.faults.used_bytes = self
            .nodes
            .values()
            .map(|node| if let Node::File(file) = node { file.content.len() as u64 } else { 0 })
            .sum();
        // A directory entry that survived without its inode cannot be: inodes go only here.
        for node in self.nodes.values_mut() {
            if let Node::Dir(dir) = node {
                dir.settle();
            } else if let Node::File(file) = node {
                file.settle();
            }
        }
    }
}

impl Disk for SimDisk {
    type File = SimFile;
    type Lock = SimLock;

    fn open(&self, path: &Path) -> io::Result<SimFile> {
        let state = &mut *self.state.lock();
        let ino = state.find(path)?;
        state.file_mut(ino)?;
        Ok(SimFile { state: Arc::clone(&self.state), ino, life: state.life })
    }

    fn create(&self, path: &Path) -> io::Result<SimFile> {
        let state = &mut *self.state.lock();
        let (parent, name) = state.parent(path)?;
        let existing = state.dir(parent)?.entries.get(name).copied();
        state.change()?;
        state.may(Call::Create)?;
        let ino = match existing {
            Some(ino) => {
                let file = state.file_mut(ino)?;
                let freed = file.content.len() as u64;
                file.set_len(0);
                state.faults.used_bytes -= freed;
                ino
            }
            None => {
                let ino = state.add(Node::File(FileNode::default()));
                state.dir_mut(parent)?.link(name, ino);
                ino
            }
        };
        Ok(SimFile { state: Arc::clone(&self.state), ino, life: state.life })
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        let mut ino = ROOT;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let name = name.to_str().ok_or(ErrorKind::InvalidInput)?;
            ino = match state.dir(ino)?.entries.get(name) {
                Some(&child) => child,
                None => {
                    state.change()?;
                    state.may(Call::Create)?;
                    let child = state.add(Node::Dir(DirNode::default()));
                    state.dir_mut(ino)?.link(name, child);
                    child
                }
            };
        }
        state.dir(ino).map(|_| ())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let state = self.state.lock();
        let dir = state.dir(state.find(dir)?)?;
        let is_dir = |ino: &Ino| matches!(state.nodes.get(ino), Some(Node::Dir(_)));
        Ok(dir.entries.iter().map(|(name, ino)| DirEntry { name: name.clone(), is_dir: is_dir(ino) }).collect())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        let ino = state.find(path)?;
        let freed = state.file_mut(ino)?.content.len() as u64;
        let (parent, name) = state.parent(path)?;
        state.change()?;
        state.may(Call::Remove)?;
        state.dir_mut(parent)?.unlink(name);
        state.faults.used_bytes = state.faults.used_bytes.saturating_sub(freed);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        state.dir(state.find(path)?)?;
        let (parent, name) = state.parent(path)?;
        state.change()?;
        state.may(Call::Remove)?;
        state.dir_mut(parent)?.unlink(name);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        let (from_parent, from_name) = state.parent(from)?;
        let (to_parent, to_name) = state.parent(to)?;
        let ino = state.find(from)?;
        if from_parent != to_parent {
            return Err(io::Error::new(ErrorKind::Unsupported, "renaming between directories is not simulated"));
        }
        state.change()?;
        state.may(Call::Rename)?;
        state.dir_mut(from_parent)?.rename(from_name, to_name, ino);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        let ino = state.find(dir)?;
        state.change()?;
        let fails = count_down(&mut state.faults.sync_fails_in);
        if count_down(&mut state.faults.sync_lies_in) {
            state.faults.forgotten = Some(ino);
            return Ok(());
        }
        let dir = state.dir_mut(ino)?;
        dir.sync(fails);
        if fails { Err(eio()) } else { Ok(()) }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.state.lock().find(path).is_ok())
    }

    fn identity(&self, dir: &Path) -> io::Result<DirIdentity> {
        let Ino(inode) = self.state.lock().find(dir)?;
        Ok(DirIdentity { device: 1, inode, cache_outlives_process: true })
    }

    fn lock(&self, path: &Path) -> io::Result<LockAttempt<SimLock>> {
        {
            let state = &mut *self.state.lock();
            if !state.locks.insert(path.to_owned()) {
                return Ok(LockAttempt::HeldBy(None));
            }
        }
        if !self.exists(path)? {
            self.create(path)?;
        }
        let life = self.state.lock().life;
        Ok(LockAttempt::Held(SimLock { state: Arc::clone(&self.state), path: path.to_owned(), life }))
    }
}

/// An open file of a [`SimDisk`]. Dead after a crash.
pub struct SimFile {
    state: Arc<Mutex<State>>,
    ino: Ino,
    life: u64,
}

impl SimFile {
    fn with<T>(&self, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.state.lock();
        if state.life != self.life {
            return Err(io::Error::other("a file handle from before the crash"));
        }
        call(state)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.with(|state| {
            let found = state.file_mut(self.ino)?.range(at, buffer.len());
            buffer[..found.len()].copy_from_slice(found);
            Ok(found.len())
        })
    }

    fn read_into(&self, buffer: &mut Vec<u8>, len_max: usize, at: u64) -> io::Result<usize> {
        self.with(|state| {
            let found = state.file_mut(self.ino)?.range(at, len_max);
            buffer.extend_from_slice(found);
            Ok(found.len())
        })
    }

    fn write_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        self.with(|state| {
            let mut allowed = total;
            let mut outcome = Ok(());
            if state.faults.stop_at == Some(state.changes) {
                allowed = total * usize::from(state.faults.stop_torn) / 256;
                outcome = Err(io::Error::other("the simulated process has died in a write"));
                state.changes += 1;
            } else {
                state.change()?;
            }
            if count_down(&mut state.faults.write_fails_in) {
                allowed = allowed.min(total / 2);
                outcome = Err(eio());
            }
            let end_now = state.file_mut(self.ino)?.content.len() as u64;
            if let Some(capacity) = state.faults.capacity_bytes {
                let end_max = end_now + capacity.saturating_sub(state.faults.used_bytes);
                let fits = usize::try_from(end_max.saturating_sub(at)).unwrap_or(usize::MAX);
                if fits < allowed {
                    allowed = fits;
                    outcome = Err(ErrorKind::StorageFull.into());
                }
            }
            let file = state.file_mut(self.ino)?;
            file.write(parts, at, allowed);
            let grown = file.content.len() as u64 - end_now;
            state.faults.used_bytes += grown;
            outcome
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.file_mut(self.ino)?.content.len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|state| {
            state.change()?;
            state.may(Call::SetLen)?;
            let file = state.file_mut(self.ino)?;
            let before = file.content.len() as u64;
            file.set_len(len);
            state.faults.used_bytes = (state.faults.used_bytes + len).saturating_sub(before);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|state| {
            state.change()?;
            let fails = count_down(&mut state.faults.sync_fails_in);
            if count_down(&mut state.faults.sync_lies_in) {
                state.faults.forgotten = Some(self.ino);
                return Ok(());
            }
            state.file_mut(self.ino)?.sync(fails);
            if fails { Err(eio()) } else { Ok(()) }
        })
    }

    fn preallocate(&self, _len: u64) -> io::Result<()> {
        self.with(|_| Ok(()))
    }
}

/// A held lock.
pub struct SimLock {
    state: Arc<Mutex<State>>,
    path: PathBuf,
    life: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let state = &mut *self.state.lock();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

#[cfg(test)]
mod tests;
