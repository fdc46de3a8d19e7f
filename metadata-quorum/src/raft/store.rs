//! The metadata store: one sled database under our own durability rules (R213, R214, stack.md §3).
//!
//! sled's `flush()` alone is no barrier: one thread flushes, then calls fdatasync on our own descriptor of the `db`
//! file, for all who wait at that moment (group commit). An error there is final: the node must stop.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

use highwater_wire::DirectoryId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

mod sync_count;

use self::sync_count::SyncCount;

/// The format of the store that this build writes; a newer one is refused (D28).
pub(crate) const STORE_FORMAT: u32 = 2;
/// Pages up to a quarter of a segment stay in the log instead of becoming blob files, which sled never syncs.
const SEGMENT_BYTES: usize = 8 << 20;
/// sled's memory follows the database, which is small; this only bounds its cache.
const CACHE_BYTES: u64 = 64 << 20;
/// Keys removed per batch in the background: a batch holds a process-wide lock.
pub(crate) const SWEEP_KEYS_MAX: usize = 512;

/// Key of [`Identity`] in the tree `raft` (D13).
const IDENTITY: &[u8] = &[0x03];
/// Key of how many syncs there were (u64 big-endian), in the same tree; see [`sync_count`].
const SYNCS: &[u8] = &[0x04];

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
    #[error("sled cannot open it: {0}; if this is the only damaged node, wipe the directory and replace the voter")]
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

type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Work for the sweeping thread.
enum Sweep {
    /// Removes the keys of `[from, to)` in chunks.
    Range { tree: sled::Tree, from: Vec<u8>, to: Vec<u8> },
}

/// The one database of this node. Cheap to share behind an `Arc`; closed by [`MetaStore::close`].
pub(crate) struct MetaStore {
    pub raft: sled::Tree,
    pub state: sled::Tree,
    /// See [`super::journal`].
    pub events: sled::Tree,
    directory: PathBuf,
    identity: Mutex<Identity>,
    sync: Mutex<Option<mpsc::Sender<Done>>>,
    sweep: Mutex<Option<mpsc::Sender<Sweep>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    failed: watch::Sender<Option<String>>,
    _lock: File,
}

impl std::fmt::Debug for MetaStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl MetaStore {
    /// Opens or formats the store of `node` in `directory`.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing is changed by a refusal.
    pub fn open(directory: &Path, node: i32) -> Result<Self, OpenError> {
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |source| OpenError::Io { path, source }
        };
        fs::create_dir_all(directory).map_err(at(directory))?;
        let lock = lock_directory(directory)?;
        check_properties(&directory.join("meta.properties"))?;

        let path = directory.join("store");
        let fresh = !path.join("db").exists();
        let db = open_sled(&path)?;
        if fresh {
            sync_directory(&path).map_err(at(&path))?;
            sync_directory(directory).map_err(at(directory))?;
            if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                sync_directory(parent).map_err(at(parent))?;
            }
        }
        let raft = db.open_tree("raft").map_err(OpenError::Sled)?;
        let state = db.open_tree("state").map_err(OpenError::Sled)?;
        let events = db.open_tree("events").map_err(OpenError::Sled)?;
        let (identity, is_new) = match raft.get(IDENTITY).map_err(OpenError::Sled)? {
            Some(stored) => (read_identity(&stored, node)?, false),
            None => {
                let identity = Identity {
                    format: STORE_FORMAT,
                    written_by: env!("CARGO_PKG_VERSION").to_owned(),
                    node,
                    directory: DirectoryId::random(),
                    cluster_id: None,
                };
                (identity, true)
            }
        };

        let count_file = SyncCount::path(directory);
        let (sync_count, known) = SyncCount::open(directory).map_err(at(&count_file))?;
        let found = raft
            .get(SYNCS)
            .map_err(OpenError::Sled)?
            .and_then(|count| Some(u64::from_be_bytes((*count).try_into().ok()?)));
        let found = found.unwrap_or(0);
        if let Some(known) = known.filter(|known| *known > found) {
            return Err(OpenError::Forgot { found, known, path: count_file });
        }

        let db_file = path.join("db");
        let file = OpenOptions::new().read(true).write(true).open(&db_file).map_err(at(&db_file))?;
        let (failed, _) = watch::channel(None);
        let (sync, sync_jobs) = mpsc::channel();
        let (sweep, sweep_jobs) = mpsc::channel();
        let report = failed.clone();
        let mut barrier = Barrier { db, raft: raft.clone(), file, syncs: found, sync_count };
        let sync_thread = std::thread::Builder::new()
            .name("meta-sync".to_owned())
            .spawn(move || sync_loop(&mut barrier, &sync_jobs, &report))
            .map_err(at(&path))?;
        let sweep_thread = std::thread::Builder::new()
            .name("meta-sweep".to_owned())
            .spawn(move || sweep_loop(&sweep_jobs))
            .map_err(at(&path))?;
        let store = Self {
            raft,
            state,
            events,
            directory: directory.to_path_buf(),
            identity: Mutex::new(identity),
            sync: Mutex::new(Some(sync)),
            sweep: Mutex::new(Some(sweep)),
            threads: Mutex::new(vec![sync_thread, sweep_thread]),
            failed,
            _lock: lock,
        };
        if is_new {
            store.save_identity().map_err(at(&db_file))?;
            store.sync_blocking().map_err(at(&db_file))?;
        }
        store.write_properties().map_err(at(directory))?;
        store.check_blobs();
        Ok(store)
    }

    /// Alarms if sled has ever put a value into a file of its own, which it never syncs (stack.md §3, rule 2).
    pub fn check_blobs(&self) {
        let blobs = self.directory.join("store").join("blobs");
        if fs::read_dir(&blobs).is_ok_and(|mut files| files.next().is_some()) {
            tracing::error!(directory = %blobs.display(), "sled wrote blob files, which it never syncs: a row is too large");
        }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
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
        self.raft.insert(IDENTITY, identity).map_err(to_io)?;
        Ok(())
    }

    /// For people, and for other versions to refuse this directory before they touch it (D28).
    fn write_properties(&self) -> io::Result<()> {
        let identity = self.identity.lock().clone();
        let text = format!(
            "# written by highwater {}; do not edit\nversion={STORE_FORMAT}\nnode.id={}\ndirectory.id={}\n{}",
            identity.written_by,
            identity.node,
            identity.directory,
            identity.cluster_id.map_or(String::new(), |id| format!("cluster.id={id}\n"))
        );
        let path = self.directory.join("meta.properties");
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        replace_file(&path, text.as_bytes())
    }

    /// Calls `done` when everything written so far is on disk, from the sync thread.
    pub fn sync(&self, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        let sender = self.sync.lock().clone();
        let done: Done = Box::new(done);
        let unsent = match sender {
            Some(sender) => sender.send(done).err().map(|unsent| unsent.0),
            None => Some(done),
        };
        if let Some(done) = unsent {
            done(Err(io::Error::other("the metadata store is closed")));
        }
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
        let (done, synced) = mpsc::channel();
        self.sync(move |result| {
            let _ = done.send(result);
        });
        synced.recv().unwrap_or_else(|_| Err(io::Error::other("the metadata store is closed")))
    }

    /// Removes `[from, to)` of a tree in the background, in chunks.
    pub fn sweep(&self, tree: &sled::Tree, from: Vec<u8>, to: Vec<u8>) {
        if let Some(sweep) = self.sweep.lock().as_ref() {
            // A closed thread means a closing store: what is left is swept after the next start.
            let _ = sweep.send(Sweep::Range { tree: tree.clone(), from, to });
        }
    }

    /// Resolves to the reason when a sync failed: final, the node must stop.
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.failed.subscribe()
    }

    /// Ends the threads after their last job. Blocks: call it off the async threads.
    pub fn close(&self) {
        self.sync.lock().take();
        self.sweep.lock().take();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }
}

/// What makes durable what was written so far.
struct Barrier {
    db: sled::Db,
    raft: sled::Tree,
    /// The file `db`.
    file: File,
    syncs: u64,
    sync_count: SyncCount,
}

impl Barrier {
    fn sync(&mut self) -> io::Result<()> {
        self.syncs += 1;
        self.raft.insert(SYNCS, &self.syncs.to_be_bytes()).map_err(to_io)?;
        self.db.flush().map_err(to_io)?;
        self.file.sync_data()?;
        self.sync_count.write(self.syncs)
    }
}

/// Group commit: one flush and one fdatasync for all who asked since the last.
fn sync_loop(barrier: &mut Barrier, jobs: &mpsc::Receiver<Done>, failed: &watch::Sender<Option<String>>) {
    let mut broken: Option<String> = None;
    while let Ok(first) = jobs.recv() {
        let mut waiting = vec![first];
        waiting.extend(jobs.try_iter());
        if broken.is_none()
            && let Err(error) = barrier.sync()
        {
            let why =
                format!("the metadata store could not be synced: {error}; after a failed fsync nothing is certain");
            tracing::error!(%error, "metadata sync failed, this node must stop");
            failed.send_replace(Some(why.clone()));
            broken = Some(why);
        }
        for done in waiting {
            done(match &broken {
                None => Ok(()),
                Some(why) => Err(io::Error::other(why.clone())),
            });
        }
    }
}

fn sweep_loop(jobs: &mpsc::Receiver<Sweep>) {
    while let Ok(Sweep::Range { tree, from, to }) = jobs.recv() {
        loop {
            let keys: Vec<_> = tree.range(from.clone()..to.clone()).keys().take(SWEEP_KEYS_MAX).flatten().collect();
            if keys.is_empty() {
                break;
            }
            let mut batch = sled::Batch::default();
            for key in keys {
                batch.remove(key);
            }
            if let Err(error) = tree.apply_batch(batch) {
                tracing::warn!(%error, "old metadata entries could not be removed, tried again after the next start");
                break;
            }
            std::thread::yield_now();
        }
    }
}

/// Takes the directory for this process and writes its id into the lock file.
fn lock_directory(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(".lock");
    let io = |source| OpenError::Io { path: path.clone(), source };
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
    if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        let holder = if holder.trim().is_empty() { "unknown".to_owned() } else { holder.trim().to_owned() };
        return Err(OpenError::Locked { path, holder });
    }
    file.set_len(0).map_err(io)?;
    file.rewind().map_err(io)?;
    writeln!(file, "{}", std::process::id()).map_err(io)?;
    Ok(file)
}

/// Refuses a directory of a newer version before anything in it is touched.
fn check_properties(path: &Path) -> Result<(), OpenError> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(()) };
    let version = text.lines().find_map(|line| line.strip_prefix("version="));
    let found = version.and_then(|version| version.trim().parse::<u32>().ok());
    match found {
        Some(found) if found > STORE_FORMAT => {
            let writer = text.lines().find_map(|line| line.strip_prefix("# written by highwater "));
            let written_by = writer.and_then(|rest| rest.split(';').next()).unwrap_or("unknown").to_owned();
            Err(OpenError::Newer { found, written_by })
        }
        _ => Ok(()),
    }
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

/// Opens sled after removing what a power cut may have torn (stack.md §3, rule 3).
fn open_sled(path: &Path) -> Result<sled::Db, OpenError> {
    let open = || {
        sled::Config::new()
            .path(path)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None)
            .open()
    };
    remove_snapshots(path, |name| name.ends_with(".generating"));
    match open() {
        Err(sled::Error::Corruption { .. }) => {
            tracing::warn!(directory = %path.display(), "damaged index snapshot of the metadata store, scanning its log instead");
            remove_snapshots(path, |_| true);
            open().map_err(OpenError::Sled)
        }
        other => other.map_err(OpenError::Sled),
    }
}

/// Removes sled's `snap.*` files whose name passes.
fn remove_snapshots(path: &Path, which: impl Fn(&str) -> bool) {
    let Ok(files) = fs::read_dir(path) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && which(&name) {
            let _ = fs::remove_file(file.path());
        }
    }
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
