//! What a test does to the simulated disk: crashes it, lets calls fail, fills and damages it, and asks what it holds.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::node::{DirNode, Ino, Node};
use super::{ROOT, SimDisk};

/// What a crash does to what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process ended, the machine did not: everything stays (D10).
    Killed,
    /// Power was lost: nothing stays but what was synced.
    PowerLoss,
    /// Power was lost: of what was not synced, some stays, drawn from the seed; the last write may be torn.
    PowerLossKeepingSome { seed: u64 },
}

/// A kind of call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Create,
    Write,
    SetLen,
    Sync,
    Rename,
    Remove,
}

impl Call {
    pub const ALL: [Self; 6] = [Self::Create, Self::Write, Self::SetLen, Self::Sync, Self::Rename, Self::Remove];
}

/// What is to fail, and how full it may be.
#[derive(Default, Clone)]
pub(super) struct Faults {
    pub(super) capacity_bytes: Option<u64>,
    pub(super) used_bytes: u64,
    /// The countdown to the call that fails; 0: the next one.
    pub(super) write_fails_in: Option<u64>,
    pub(super) sync_fails_in: Option<u64>,
    pub(super) sync_lies_in: Option<u64>,
    /// What the sync that lied was to sync.
    pub(super) forgotten: Option<Ino>,
    /// A create, change of length, rename or removal.
    pub(super) other_fails_in: Option<(Call, u64)>,
    /// The number of the change from which on every one fails, as if the process had died there.
    pub(super) stop_at: Option<u64>,
    /// How much of the write at `stop_at` still happens, in 256ths.
    pub(super) stop_torn: u8,
}

impl SimDisk {
    /// Ends the process that uses this disk, or the power: handles and locks die, faults are taken away, and of what was
    /// not synced only what `crash` says is left.
    pub fn crash(&self, crash: Crash) {
        let state = &mut *self.state.lock();
        state.life += 1;
        state.locks.clear();
        state.faults = Faults { capacity_bytes: state.faults.capacity_bytes, ..Faults::default() };
        match crash {
            Crash::Killed => {}
            Crash::PowerLoss => state.lose_unsynced(None),
            Crash::PowerLossKeepingSome { seed } => state.lose_unsynced(Some(SmallRng::seed_from_u64(seed))),
        }
        state.collect_garbage();
    }

    /// A disk of its own with the same content, synced and unsynced, without handles, locks and faults.
    pub fn fork(&self) -> Self {
        let mut state = self.state.lock().clone();
        state.life += 1;
        state.locks.clear();
        state.faults = Faults::default();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// In how many ways what is not synced can survive a loss of power: each write or change of length of a file or not,
    /// of a directory's changes the first ones. `None`: too many to count.
    pub fn ways(&self) -> Option<u64> {
        let state = self.state.lock();
        state.nodes.values().try_fold(1u64, |ways, node| ways.checked_mul(node.ways()?))
    }

    /// Power was lost, and of what was not synced way number `way` survives, counted from 0: 0 keeps nothing, the last one
    /// everything. The last surviving write of each file is torn after `torn` bytes.
    pub fn lose_power(&self, way: u64, torn: usize) {
        {
            let state = &mut *self.state.lock();
            let mut left = way;
            for node in state.nodes.values_mut() {
                let ways = node.ways().expect("ways are counted before one is taken");
                let own = left % ways;
                left /= ways;
                match node {
                    Node::File(file) => file.keep(own, torn),
                    Node::Dir(dir) => dir.undo_to(usize::try_from(own).expect("few names")),
                }
            }
        }
        // What is left is what was synced, as it were.
        self.crash(Crash::Killed);
    }

    /// Names and contents of all files as one number: equal for disks that hold the same.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let state = self.state.lock();
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            match state.nodes.get(&ino) {
                Some(Node::File(file)) => file.content.hash(&mut hasher),
                Some(Node::Dir(dir)) => dir.entries.iter().for_each(|(name, child)| {
                    name.hash(&mut hasher);
                    todo.push(*child);
                }),
                None => {}
            }
        }
        hasher.finish()
    }

    /// Removes everything, as a replaced disk would.
    pub fn wipe(&self) {
        let state = &mut *self.state.lock();
        state.life += 1;
        state.locks.clear();
        state.nodes.clear();
        // The new root is another inode for `identity`, by the numbers its directories get.
        state.nodes.insert(ROOT, Node::Dir(DirNode::default()));
        state.faults = Faults::default();
    }

    /// From now on writes fail with `StorageFull` once all files together hold this many bytes.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().faults.capacity_bytes = bytes;
    }

    /// The call of this kind after `calls` more ones fails with EIO: a write half done, a sync as
    /// [`SimDisk::fail_sync_after`] says, any other with nothing done.
    pub fn fail_after(&self, call: Call, calls: u64) {
        match call {
            Call::Write => self.fail_write_after(calls),
            Call::Sync => self.fail_sync_after(calls),
            Call::Create | Call::SetLen | Call::Rename | Call::Remove => {
                self.state.lock().faults.other_fails_in = Some((call, calls));
            }
        }
    }

    /// Whether a failure that was asked for is still to come.
    pub fn is_to_fail(&self) -> bool {
        let faults = &self.state.lock().faults;
        faults.write_fails_in.is_some() || faults.sync_fails_in.is_some() || faults.other_fails_in.is_some()
    }

    /// The write after `calls` more ones fails with EIO, half of it done.
    pub fn fail_write_after(&self, calls: u64) {
        self.state.lock().faults.write_fails_in = Some(calls);
    }

    /// The sync (of a file or directory) after `calls` more ones fails with EIO. What it was to sync counts as unsynced
    /// for ever, even if a later sync of the same file says otherwise: as Linux does it.
    pub fn fail_sync_after(&self, calls: u64) {
        self.state.lock().faults.sync_fails_in = Some(calls);
    }

    /// The sync (of a file or directory) after `calls` more ones says that it was done, and did nothing.
    pub fn forget_sync_after(&self, calls: u64) {
        self.state.lock().faults.sync_lies_in = Some(calls);
    }

    /// The name, by now, of what [`SimDisk::forget_sync_after`] left unsynced.
    pub fn forgotten(&self) -> Option<PathBuf> {
        let state = self.state.lock();
        let forgotten = state.faults.forgotten?;
        let mut todo = vec![(ROOT, PathBuf::from("/"))];
        while let Some((ino, path)) = todo.pop() {
            if ino == forgotten {
                return Some(path);
            }
            if let Ok(dir) = state.dir(ino) {
                todo.extend(dir.entries.iter().map(|(name, child)| (*child, path.join(name))));
            }
        }
        None
    }

    /// Every change from number `change` on ([`SimDisk::changes`] counts from 0) fails and does nothing, as if the process
    /// had died before it; if that one is a write, `torn` 256ths of it still happen.
    pub fn stop_at(&self, change: u64, torn: u8) {
        let faults = &mut self.state.lock().faults;
        faults.stop_at = Some(change);
        faults.stop_torn = torn;
    }

    /// How many calls so far changed or synced something.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Lets `damage` do what it likes with the content of a file, durably.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn damage(&self, path: &Path, damage: impl FnOnce(&mut Vec<u8>)) {
        let state = &mut *self.state.lock();
        let ino = state.find(path).expect("a file to damage");
        let Some(Node::File(file)) = state.nodes.get_mut(&ino) else { panic!("{} is no file", path.display()) };
        damage(&mut file.content);
        file.settle();
    }

    /// Inverts a bit, as a disk that rots.
    ///
    /// # Panics
    /// When there is no such byte.
    pub fn flip_bit(&self, path: &Path, at: u64) {
        self.damage(path, |content| content[usize::try_from(at).expect("in range")] ^= 1);
    }
}

/// Whether the countdown ends with this call.
pub(super) fn count_down(counter: &mut Option<u64>) -> bool {
    match counter {
        None => false,
        Some(0) => {
            *counter = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
    }
}
