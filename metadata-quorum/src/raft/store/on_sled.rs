//! The store on a real disk: one sled database, a snapshot file beside it, and the two threads that sync and sweep.
//!
//! sled's `flush()` alone is no barrier: one thread flushes, then calls fdatasync on our own descriptor of the `db`
//! file, for all who wait at that moment (group commit). An error there is final: the node must stop.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::snapshot;
use super::super::types::{LogId, SnapshotMeta};
use super::sync_count::SyncCount;
use super::tree::{Batch, Tree};
use super::{Disk, Done, Encode, OpenError, STORE_FORMAT, SWEEP_KEYS_MAX, Trees, replace_file, sync_directory, to_io};

/// Pages up to a quarter of a segment stay in the log instead of becoming blob files, which sled never syncs.
const SEGMENT_BYTES: usize = 8 << 20;
/// sled's memory follows the database, which is small; this only bounds its cache.
const CACHE_BYTES: u64 = 64 << 20;

/// Key of how many syncs there were (u64 big-endian), in the tree `raft`; see [`super::sync_count`].
const SYNCS: &[u8] = &[0x04];

/// Work for the sweeping thread: removes the keys of `[from, to)` in chunks.
struct Sweep {
    tree: Tree,
    from: Vec<u8>,
    to: Vec<u8>,
}

/// See the file's head.
pub(crate) struct SledDisk {
    directory: PathBuf,
    sync: Mutex<Option<mpsc::Sender<Done>>>,
    sweep: Mutex<Option<mpsc::Sender<Sweep>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    saved: SavedSnapshot,
    _lock: File,
}

/// The snapshot file's log id; held while the file is replaced, so that an old one never replaces a newer one.
type SavedSnapshot = Arc<Mutex<Option<LogId>>>;

/// Saves a snapshot unless a newer one is there.
fn save_newer(saved: &SavedSnapshot, directory: &Path, log_id: &Option<LogId>, bytes: &[u8]) -> io::Result<()> {
    let mut saved = saved.lock();
    if *saved <= *log_id {
        snapshot::save(directory, bytes)?;
        *saved = *log_id;
    }
    Ok(())
}

impl SledDisk {
    /// Opens or creates the database in `directory`. `failed` is told when a sync fails.
    pub fn open(directory: &Path, failed: watch::Sender<Option<String>>) -> Result<(Self, Trees), OpenError> {
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
        let tree = |name| db.open_tree(name).map(Tree::new).map_err(OpenError::Sled);
        let trees = Trees { raft: tree("raft")?, state: tree("state")?, events: tree("events")? };

        let count_file = SyncCount::path(directory);
        let (sync_count, known) = SyncCount::open(directory).map_err(at(&count_file))?;
        let found = trees.raft.get(SYNCS).map_err(at(&path))?;
        let found = found.and_then(|count| Some(u64::from_be_bytes((*count).try_into().ok()?))).unwrap_or(0);
        if let Some(known) = known.filter(|known| *known > found) {
            return Err(OpenError::Forgot { found, known, path: count_file });
        }

        let db_file = path.join("db");
        let file = OpenOptions::new().read(true).write(true).open(&db_file).map_err(at(&db_file))?;
        let (sync, sync_jobs) = mpsc::channel();
        let (sweep, sweep_jobs) = mpsc::channel();
        let mut barrier = Barrier { db, raft: trees.raft.clone(), file, syncs: found, sync_count };
        let sync_thread = std::thread::Builder::new()
            .name("meta-sync".to_owned())
            .spawn(move || sync_loop(&mut barrier, &sync_jobs, &failed))
            .map_err(at(&path))?;
        let sweep_thread = std::thread::Builder::new()
            .name("meta-sweep".to_owned())
            .spawn(move || sweep_loop(&sweep_jobs))
            .map_err(at(&path))?;
        let disk = Self {
            directory: directory.to_path_buf(),
            sync: Mutex::new(Some(sync)),
            sweep: Mutex::new(Some(sweep)),
            threads: Mutex::new(vec![sync_thread, sweep_thread]),
            saved: SavedSnapshot::default(),
            _lock: lock,
        };
        Ok((disk, trees))
    }
}

impl Disk for SledDisk {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn write_properties(&self, text: &str) -> io::Result<()> {
        let path = self.directory.join("meta.properties");
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        replace_file(&path, text.as_bytes())
    }

    fn check(&self) {
        let blobs = self.directory.join("store").join("blobs");
        if fs::read_dir(&blobs).is_ok_and(|mut files| files.next().is_some()) {
            tracing::error!(directory = %blobs.display(), "sled wrote blob files, which it never syncs: a row is too large");
        }
    }

    fn sync(&self, done: Done) {
        let sender = self.sync.lock().clone();
        let unsent = match sender {
            Some(sender) => sender.send(done).err().map(|unsent| unsent.0),
            None => Some(done),
        };
        if let Some(done) = unsent {
            done(Err(io::Error::other("the metadata store is closed")));
        }
    }

    fn sweep(&self, tree: &Tree, from: Vec<u8>, to: Vec<u8>) {
        if let Some(sweep) = self.sweep.lock().as_ref() {
            // A closed thread means a closing store: what is left is swept after the next start.
            let _ = sweep.send(Sweep { tree: tree.clone(), from, to });
        }
    }

    fn save_snapshot(&self, log_id: Option<LogId>, encode: Encode) -> BoxFuture<'static, io::Result<bytes::Bytes>> {
        let (directory, saved) = (self.directory.clone(), Arc::clone(&self.saved));
        let save = move || {
            let bytes = encode();
            save_newer(&saved, &directory, &log_id, &bytes).map(|()| bytes)
        };
        Box::pin(async move { tokio::task::spawn_blocking(save).await.map_err(io::Error::other)? })
    }

    fn load_snapshot(&self) -> BoxFuture<'static, io::Result<Option<(SnapshotMeta, bytes::Bytes)>>> {
        let directory = self.directory.clone();
        let load = move || snapshot::load(&directory);
        Box::pin(async move { tokio::task::spawn_blocking(load).await.map_err(io::Error::other)? })
    }

    fn end(&self) -> Vec<JoinHandle<()>> {
        self.sync.lock().take();
        self.sweep.lock().take();
        std::mem::take(&mut *self.threads.lock())
    }
}

/// What makes durable what was written so far.
struct Barrier {
    db: sled::Db,
    raft: Tree,
    /// The file `db`.
    file: File,
    syncs: u64,
    sync_count: SyncCount,
}

impl Barrier {
    fn sync(&mut self) -> io::Result<()> {
        self.syncs += 1;
        self.raft.insert(SYNCS, &self.syncs.to_be_bytes())?;
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
    while let Ok(Sweep { tree, from, to }) = jobs.recv() {
        loop {
            let keys: Vec<_> =
                tree.range(from.clone()..to.clone()).flatten().take(SWEEP_KEYS_MAX).map(|(key, _)| key).collect();
            if keys.is_empty() {
                break;
            }
            let mut batch = Batch::default();
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
    let lock = || rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    if lock().is_err()
        && !(0..LOCK_ATTEMPTS).any(|_| {
            std::thread::sleep(LOCK_PAUSE);
            lock().is_ok()
        })
    {
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

/// For a second another holder of a lock may take to let go of it: sled's own threads outlive the last handle for a
/// moment, and so does a process that is on its way out, or a child between fork and exec.
const LOCK_ATTEMPTS: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

fn is_locked(error: &sled::Error) -> bool {
    // sled wraps what the lock said in a text of its own.
    matches!(error, sled::Error::Io(io) if io.to_string().contains("could not acquire lock"))
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
    let mut opened = open();
    for _ in 0..LOCK_ATTEMPTS {
        if !opened.as_ref().is_err_and(is_locked) {
            break;
        }
        std::thread::sleep(LOCK_PAUSE);
        opened = open();
    }
    match opened {
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
