//! A file and a directory of the simulated disk, and how to undo what was not synced.

use std::collections::BTreeMap;
use std::io::IoSlice;

use rand::Rng;
use rand::rngs::SmallRng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ino(pub u64);

/// What a file system writes at once.
const BLOCK_BYTES: usize = 512;

#[derive(Clone)]
pub enum Node {
    File(FileNode),
    Dir(DirNode),
}

impl Node {
    /// In how many ways what is not synced can survive.
    pub fn ways(&self) -> Option<u64> {
        match self {
            Self::File(file) => 1u64.checked_shl(u32::try_from(file.unsynced.len()).ok()?),
            Self::Dir(dir) => Some(dir.unsynced.len() as u64 + 1),
        }
    }
}

#[derive(Default, Clone)]
pub struct FileNode {
    pub content: Vec<u8>,
    /// What happened since the last sync, oldest first, with what was there before.
    unsynced: Vec<FileChange>,
    /// A sync failed once: none is believed any more.
    poisoned: bool,
}

#[derive(Clone)]
struct FileChange {
    at: usize,
    /// Length of the file before.
    len_before: usize,
    /// The bytes that were at `at` before, as far as the file reached.
    before: Vec<u8>,
    /// How many bytes were written; `None`: the length was set to `at`.
    written: Option<usize>,
}

impl FileNode {
    /// Up to `len` bytes from `at` on.
    pub fn range(&self, at: u64, len: usize) -> &[u8] {
        let start = usize::try_from(at).unwrap_or(usize::MAX).min(self.content.len());
        let end = start.saturating_add(len).min(self.content.len());
        &self.content[start..end]
    }

    /// Writes the first `allowed` bytes of `parts`.
    pub fn write(&mut self, parts: &[IoSlice<'_>], at: u64, allowed: usize) {
        let at = usize::try_from(at).expect("files in memory are small");
        if allowed == 0 {
            return;
        }
        let before = self.range(at as u64, allowed).to_vec();
        let len_before = self.content.len();
        self.unsynced.push(FileChange { at, len_before, before, written: Some(allowed) });
        if self.content.len() < at {
            self.content.resize(at, 0);
        }
        let mut left = allowed;
        let mut at = at;
        for part in parts {
            let taken = &part[..left.min(part.len())];
            put(&mut self.content, at, taken);
            at += taken.len();
            left -= taken.len();
        }
    }

    pub fn set_len(&mut self, len: u64) {
        let at = usize::try_from(len).expect("files in memory are small");
        let before = self.content.get(at..).unwrap_or_default().to_vec();
        self.unsynced.push(FileChange { at, len_before: self.content.len(), before, written: None });
        self.content.resize(at, 0);
    }

    pub fn sync(&mut self, fails: bool) {
        self.poisoned |= fails;
        if !self.poisoned {
            self.unsynced.clear();
        }
    }

    /// What is there after a crash is what is there.
    pub fn settle(&mut self) {
        self.unsynced.clear();
        self.poisoned = false;
    }

    /// Undoes everything since the last sync, and redoes what the draw keeps: each change or not, the last one torn.
    pub fn lose_unsynced(&mut self, keep: Option<&mut SmallRng>) {
        let mut kept = self.undo();
        let Some(rng) = keep else { return };
        if kept.is_empty() {
            return;
        }
        // One draw in three keeps a plain prefix, which is what most disks do.
        let prefix = rng.random_ratio(1, 3).then(|| rng.random_range(0..=kept.len()));
        let mut index = 0..;
        kept.retain(|_| {
            let index = index.next().unwrap_or_default();
            prefix.map_or_else(|| rng.random_bool(0.6), |end| index < end)
        });
        if let Some(last) = kept.last_mut()
            && rng.random_bool(0.3)
        {
            last.after.truncate(rng.random_range(0..=last.after.len()));
        }
        self.redo(kept);
    }

    /// Undoes everything since the last sync, and redoes the changes whose bit is set, the oldest being the lowest; of the
    /// last one no more than `torn` bytes. Where it is torn, a cut that is undone has left zeros up to the end of its block:
    /// a file system writes those before it writes the shorter length.
    pub fn keep(&mut self, bits: u64, torn: usize) {
        let mut kept = self.undo();
        let mut index = 0..;
        kept.retain(|undone| {
            let keeps = bits >> index.next().unwrap_or_default() & 1 == 1;
            if !keeps && torn < usize::MAX && undone.change.written.is_none() {
                let at = undone.change.at;
                let end = at.next_multiple_of(BLOCK_BYTES).min(self.content.len());
                if at < end {
                    self.content[at..end].fill(0);
                }
            }
            keeps
        });
        if let Some(last) = kept.last_mut() {
            last.after.truncate(torn);
        }
        self.redo(kept);
    }

    /// Back to the last sync; gives what was undone, oldest first.
    fn undo(&mut self) -> Vec<Undone> {
        let mut undone = Vec::new();
        for change in self.unsynced.drain(..).rev() {
            let after = match change.written {
                Some(written) => self.content[change.at..change.at + written].to_vec(),
                None => Vec::new(),
            };
            put(&mut self.content, change.at, &change.before);
            self.content.resize(change.len_before, 0);
            undone.push(Undone { change, after });
        }
        undone.reverse();
        undone
    }

    fn redo(&mut self, kept: Vec<Undone>) {
        for Undone { change, after } in kept {
            match change.written {
                Some(_) => {
                    if self.content.len() < change.at {
                        self.content.resize(change.at, 0);
                    }
                    put(&mut self.content, change.at, &after);
                }
                None => self.content.resize(change.at, 0),
            }
        }
    }
}

/// A change that was undone, and the bytes it had written.
struct Undone {
    change: FileChange,
    after: Vec<u8>,
}

/// Writes over what is there and appends the rest. `at` must not be behind the end.
fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let over = bytes.len().min(content.len() - at);
    content[at..at + over].copy_from_slice(&bytes[..over]);
    content.extend_from_slice(&bytes[over..]);
}

#[derive(Default, Clone)]
pub struct DirNode {
    pub entries: BTreeMap<String, Ino>,
    /// What happened since the last sync, oldest first: names with what they stood for before.
    pub unsynced: Vec<Vec<(String, Option<Ino>)>>,
    poisoned: bool,
}

impl DirNode {
    pub fn link(&mut self, name: &str, ino: Ino) {
        let before = self.entries.insert(name.to_owned(), ino);
        self.unsynced.push(vec![(name.to_owned(), before)]);
    }

    pub fn unlink(&mut self, name: &str) {
        let before = self.entries.remove(name);
        self.unsynced.push(vec![(name.to_owned(), before)]);
    }

    /// Both names change in one step.
    pub fn rename(&mut self, from: &str, to: &str, ino: Ino) {
        self.entries.remove(from);
        let replaced = self.entries.insert(to.to_owned(), ino);
        self.unsynced.push(vec![(from.to_owned(), Some(ino)), (to.to_owned(), replaced)]);
    }

    pub fn sync(&mut self, fails: bool) {
        self.poisoned |= fails;
        if !self.poisoned {
            self.unsynced.clear();
        }
    }

    pub fn settle(&mut self) {
        self.unsynced.clear();
        self.poisoned = false;
    }

    /// Undoes all but the first `kept` changes: a journal keeps their order.
    pub fn undo_to(&mut self, kept: usize) {
        for change in self.unsynced.drain(kept..).rev() {
            for (name, before) in change {
                match before {
                    Some(ino) => self.entries.insert(name, ino),
                    None => self.entries.remove(&name),
                };
            }
        }
    }
}
