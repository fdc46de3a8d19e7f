//! The metadata store: vote, log, state and snapshot of one node, under our own durability rules (R213, R214, stack.md
//! §3). What it stands on is a [`Disk`]: sled and a file system, or the simulation's memory.

#[cfg(feature = "sim")]
pub(crate) mod in_memory;
mod on_sled;
mod sync_count;
pub(crate) mod tree;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use futures::future::BoxFuture;
use highwater_wire::DirectoryId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use self::on_sled::SledDisk;
use self::tree::Tree;
use super::types::{LogId, SnapshotMeta};
use crate::ambient;

/// The format of the store that this build writes; a newer one is refused (D28).
pub(crate) const STORE_FORMAT: u32 = 3;
/// Keys removed per batch in the background: a batch holds a process-wide lock.
pub(crate) const SWEEP_KEYS_MAX: usize = 512;

/// Key of [`Identity`] in the tree `raft` (D13).
const IDENTITY: &[u8] = &[0x03];

/// Why the store cannot be opened; the text names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("in use by process {holder} (lock file {path}): stop it first, or give this node a directory of its own")]
    Locked { path: PathBuf, holder: String },
    #[error(
        "format {found} is newer than {STORE_FORMAT}, the newest this build reads: start version {written_by} or newer"
    )]
    Newer { found: u32, written_by: String },
    #[error("belongs to node {found}, not {given}: check node.id and metadata.log.dir")]
    OtherNode { found: i32, given: i32 },
    #[error(
        "sled cannot open it: {0}; a full disk needs room; if the directory is damaged, and on this node alone, wipe it and replace the voter"
    )]
    Sled(sled::Error),
    #[error("damaged: {0}")]
    Damaged(String),
    #[error(
        "the database knows of {found} syncs, but {known} were done ({path}): what this node acknowledged in the others is \
         lost, and a voter that has forgotten must not vote. If other voters are whole, wipe the directory and replace this \
         voter (highwater quorum add-voter); if it was the only one, restore a backup, or remove that file to go on with \
         what is left"
    )]
    Forgot { found: u64, known: u64, path: PathBuf },
}

/// Who this directory is. Minted once, at formatting (D1).
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Identity {
    format: u32,
    written_by: String,
    node: i32,
    directory: DirectoryId,
    cluster_id: Option<String>,
}

pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Makes the bytes of a snapshot, where that holds nobody up.
pub(crate) type Encode = Box<dyn FnOnce() -> bytes::Bytes + Send>;

/// What a store stands on.
pub(crate) trait Disk: Send + Sync {
    fn directory(&self) -> &Path;

    /// For people, and for other versions to refuse this directory before they touch it (D28). Durable when it returns.
    fn write_properties(&self, text: &str) -> io::Result<()>;

    /// Looks after itself, and says what it finds in the log.
    fn check(&self) {}

    /// Calls `done` when everything written to the trees so far is on disk. An error is final: nothing is synced any more.
    fn sync(&self, done: Done);

    /// Removes `[from, to)` of a tree in the background, in chunks.
    fn sweep(&self, tree: &Tree, from: Vec<u8>, to: Vec<u8>);

    /// Replaces the snapshot unless a newer one is there; atomic, and durable when it is done.
    fn save_snapshot(&self, log_id: Option<LogId>, encode: Encode) -> BoxFuture<'static, io::Result<bytes::Bytes>>;

    fn load_snapshot(&self) -> BoxFuture<'static, io::Result<Option<(SnapshotMeta, bytes::Bytes)>>>;

    /// Ends what it runs in the background after its last job; returns what is to be waited for.
    fn end(&self) -> Vec<JoinHandle<()>>;
}

/// The maps of a store (D13).
#[derive(Debug, Clone)]
pub(crate) struct Trees {
    pub raft: Tree,
    pub state: Tree,
    /// See [`super::journal`].
    pub events: Tree,
}

/// The one store of this node. Cheap to share behind an `Arc`; closed by [`MetaStore::close`].
pub(crate) struct MetaStore {
    pub raft: Tree,
    pub state: Tree,
    /// See [`super::journal`].
    pub events: Tree,
    identity: Mutex<Identity>,
    failed: watch::Sender<Option<String>>,
    disk: Box<dyn Disk>,
}

impl std::fmt::Debug for MetaStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaStore").field("directory", &self.directory()).finish_non_exhaustive()
    }
}

impl MetaStore {
    /// Opens or formats the store of `node` in `directory`. Blocks.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing is changed by a refusal.
    pub fn open(directory: &Path, node: i32) -> Result<Self, OpenError> {
        let (failed, _) = watch::channel(None);
        let (disk, trees) = SledDisk::open(directory, failed.clone())?;
        let (store, is_new) = Self::on(Box::new(disk), trees, failed, node)?;
        let at = |source| OpenError::Io { path: directory.to_path_buf(), source };
        if is_new {
            store.save_identity().map_err(at)?;
            store.sync_blocking().map_err(at)?;
        }
        store.write_properties().map_err(at)?;
        store.check();
        Ok(store)
    }

    /// A store whose identity is read, or minted and then still to be saved.
    fn on(
        disk: Box<dyn Disk>,
        trees: Trees,
        failed: watch::Sender<Option<String>>,
        node: i32,
    ) -> Result<(Self, bool), OpenError> {
        let (identity, is_new) = match identity_in(&trees.raft, disk.directory(), node) {
            Ok(identity) => identity,
            // Whoever opens it next finds it free.
            Err(refused) => {
                join(disk.end());
                return Err(refused);
            }
        };
        let Trees { raft, state, events } = trees;
        Ok((Self { raft, state, events, identity: Mutex::new(identity), failed, disk }, is_new))
    }

    /// Alarms if what it stands on is in a state that it should never reach (stack.md §3, rule 2).
    pub fn check(&self) {
        self.disk.check();
    }

    pub fn directory(&self) -> &Path {
        self.disk.directory()
    }

    pub fn directory_id(&self) -> DirectoryId {
        self.identity.lock().directory
    }

    /// The cluster this disk belongs to, once it has learned it.
    pub fn cluster_id(&self) -> Option<String> {
        self.identity.lock().cluster_id.clone()
    }

    /// Remembers the cluster; durable with the next sync.
    pub fn set_cluster_id(&self, cluster_id: &str) -> io::Result<()> {
        self.identity.lock().cluster_id = Some(cluster_id.to_owned());
        self.save_identity()?;
        self.write_properties()
    }

    fn save_identity(&self) -> io::Result<()> {
        let identity = postcard::to_stdvec(&*self.identity.lock()).expect("plain data");
        self.raft.insert(IDENTITY, identity)?;
        Ok(())
    }

    fn write_properties(&self) -> io::Result<()> {
        let identity = self.identity.lock().clone();
        let text = format!(
            "# written by highwater {}; do not edit\nversion={STORE_FORMAT}\nnode.id={}\ndirectory.id={}\n{}",
            identity.written_by,
            identity.node,
            identity.directory,
            identity.cluster_id.map_or(String::new(), |id| format!("cluster.id={id}\n"))
        );
        self.disk.write_properties(&text)
    }

    /// Calls `done` when everything written so far is on disk, perhaps from another thread.
    pub fn sync(&self, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.disk.sync(Box::new(done));
    }

    /// Waits until everything written so far is on disk.
    pub async fn synced(&self) -> io::Result<()> {
        let (done, synced) = tokio::sync::oneshot::channel();
        self.sync(move |result| {
            let _ = done.send(result);
        });
        synced.await.unwrap_or_else(|_| Err(io::Error::other("the metadata store is closed")))
    }

    fn sync_blocking(&self) -> io::Result<()> {
        let (done, synced) = std::sync::mpsc::channel();
        self.sync(move |result| {
            let _ = done.send(result);
        });
        synced.recv().unwrap_or_else(|_| Err(io::Error::other("the metadata store is closed")))
    }

    /// Removes `[from, to)` of a tree in the background, in chunks.
    pub fn sweep(&self, tree: &Tree, from: Vec<u8>, to: Vec<u8>) {
        self.disk.sweep(tree, from, to);
    }

    /// Replaces the snapshot unless a newer one is there; durable when it returns. Returns its bytes.
    pub async fn save_snapshot(
        &self,
        log_id: Option<LogId>,
        encode: impl FnOnce() -> bytes::Bytes + Send + 'static,
    ) -> io::Result<bytes::Bytes> {
        self.disk.save_snapshot(log_id, Box::new(encode)).await
    }

    /// The newest snapshot, if there is one.
    pub async fn load_snapshot(&self) -> io::Result<Option<(SnapshotMeta, bytes::Bytes)>> {
        self.disk.load_snapshot().await
    }

    /// Resolves to the reason when a sync failed: final, the node must stop.
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.failed.subscribe()
    }

    /// Ends the threads after their last job. Blocks: call it off the async threads.
    #[cfg(any(test, feature = "sim"))]
    pub fn close(&self) {
        join(self.disk.end());
    }

    /// As [`Self::close`], without blocking the caller.
    pub async fn closed(&self) {
        let threads = self.disk.end();
        if !threads.is_empty() {
            let _ = tokio::task::spawn_blocking(move || join(threads)).await;
        }
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        let _ = thread.join();
    }
}

/// The identity that is stored, or a fresh one and true.
fn identity_in(raft: &Tree, directory: &Path, node: i32) -> Result<(Identity, bool), OpenError> {
    let stored = raft.get(IDENTITY).map_err(|source| OpenError::Io { path: directory.to_path_buf(), source })?;
    if let Some(stored) = stored {
        return Ok((read_identity(&stored, node)?, false));
    }
    let identity = Identity {
        format: STORE_FORMAT,
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        node,
        directory: ambient::random_directory_id(),
        cluster_id: None,
    };
    Ok((identity, true))
}

fn read_identity(stored: &[u8], node: i32) -> Result<Identity, OpenError> {
    // The format comes first, so a newer identity is recognised whatever follows.
    let (format, _) = postcard::take_from_bytes::<u32>(stored)
        .map_err(|error| OpenError::Damaged(format!("unreadable identity: {error}")))?;
    if format > STORE_FORMAT {
        let written_by = postcard::take_from_bytes::<(u32, String)>(stored)
            .map_or_else(|_| "unknown".to_owned(), |(head, _)| head.1);
        return Err(OpenError::Newer { found: format, written_by });
    }
    let identity: Identity =
        postcard::from_bytes(stored).map_err(|error| OpenError::Damaged(format!("unreadable identity: {error}")))?;
    if identity.node != node {
        return Err(OpenError::OtherNode { found: identity.node, given: node });
    }
    Ok(identity)
}

pub(crate) fn to_io(error: sled::Error) -> io::Error {
    match error {
        sled::Error::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Replaces a small file atomically and durably.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) => sync_directory(parent),
        None => Ok(()),
    }
}
