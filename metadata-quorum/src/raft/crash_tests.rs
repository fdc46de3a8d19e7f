//! The store against kill -9 and against a power cut (R214): a child process writes and says what was acknowledged,
//! it is killed or its disk frozen at some moment, and what the store then holds is compared with what it had said.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::storage::{IOFlushed, RaftLogStorage as _};
use openraft::{EntryPayload, LogId, RaftLogReader as _, Vote};
use tempfile::TempDir;

use super::log_store::LogStore;
use super::store::MetaStore;
use super::types::{NodeId, Proposal, TypeConfig};

/// Set for the child only: where its store lies.
const CHILD: &str = "HIGHWATER_TEST_STORE_WRITER";
const CHILD_TEST: &str = "raft::crash_tests::writes_until_it_is_stopped";
const KILL_ROUNDS: u32 = 12;
const POWER_CUT_ROUNDS: u32 = 10;

type Entry = openraft::alias::EntryOf<TypeConfig>;
type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, NodeId>;

/// What entry `index` holds; the sizes vary up to the largest that is allowed.
fn entry(index: u64) -> Entry {
    let length = match index % 97 {
        0 => 60 << 10,
        step => 40 + usize::try_from(step).unwrap() * 8,
    };
    let byte = u8::try_from(index % 251).unwrap();
    let proposal = Proposal { format: 1, rules: 1, payload: vec![byte; length].into() };
    Entry { log_id: log_id(index), payload: EntryPayload::Normal(proposal) }
}

fn log_id(index: u64) -> openraft::alias::LogIdOf<TypeConfig> {
    LogId { leader_id: openraft::vote::RaftLeaderId::to_committed(&leader(index / 200 + 1)), index }
}

fn leader(term: u64) -> LeaderId {
    LeaderId { term, voted_for: NodeId::from(1) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Not a test of its own: the child's part. Says `vote T`, `purged I` and `acked I` when they are durable.
#[test]
fn writes_until_it_is_stopped() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let store = Arc::new(MetaStore::open(Path::new(&directory), 1).unwrap());
    let mut log = LogStore::open(store).unwrap();
    let say = |what: &str, number: u64| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{what} {number}").and_then(|()| out.flush()).unwrap();
    };
    runtime().block_on(async {
        let last = log.get_log_state().await.unwrap().last_log_id.map(|last| last.index);
        let mut next = last.map_or(0, |last| last + 1);
        say("open", next);
        loop {
            let term = next / 200 + 1;
            log.save_vote(&Vote { leader_id: leader(term), committed: true }).await.unwrap();
            say("vote", term);
            // Batches of 1 to 40, several in flight.
            let mut waiting = Vec::new();
            for batch in 1..=5u64 {
                let count = (next + batch * 13) % 40 + 1;
                let (tx, rx) = <TypeConfig as openraft::type_config::TypeConfigExt>::oneshot();
                log.append((next..next + count).map(entry), IOFlushed::signal(tx)).await.unwrap();
                next += count;
                waiting.push((next - 1, rx));
            }
            for (last, flushed) in waiting {
                flushed.await.unwrap().unwrap();
                say("acked", last);
            }
            if next % 3 == 0 && next > 1_000 {
                log.purge(log_id(next - 900)).await.unwrap();
                say("purged", next - 900);
            }
        }
    });
}

/// The child, and what it said last.
struct Writer {
    child: Child,
    said: std::sync::mpsc::Receiver<String>,
    acked: Option<u64>,
    voted: u64,
    purged: Option<u64>,
}

impl Writer {
    fn start(directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD_TEST, "--nocapture", "--test-threads=1"])
            .env(CHILD, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tx, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).for_each(|line| drop(tx.send(line))));
        Self { child, said, acked: None, voted: 0, purged: None }
    }

    fn note(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(what), Some(Ok(number))) = (words.next(), words.next().map(str::parse::<u64>)) else { return };
        match what {
            "acked" => self.acked = Some(number),
            "vote" => self.voted = number,
            "purged" => self.purged = Some(number),
            _ => {}
        }
    }

    /// Lets it write for a while after its first acknowledgement.
    fn run(&mut self, time: Duration) {
        let patience = Instant::now() + Duration::from_secs(60);
        while self.acked.is_none() {
            assert!(Instant::now() < patience, "the writer acknowledges nothing");
            if let Ok(line) = self.said.recv_timeout(Duration::from_secs(1)) {
                self.note(&line);
            }
        }
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if let Ok(line) = self.said.recv_timeout(left) {
                self.note(&line);
            }
        }
    }

    /// Everything it said before it stopped.
    fn drain(&mut self) {
        while let Ok(line) = self.said.recv_timeout(Duration::from_millis(300)) {
            self.note(&line);
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Every acknowledged entry is there, whole, in order; the vote did not go back; what was purged stays away.
fn check(directory: &Path, writer: &Writer) {
    let store = Arc::new(MetaStore::open(directory, 1).unwrap());
    let mut log = LogStore::open(Arc::clone(&store)).unwrap();
    runtime().block_on(async {
        let acked = writer.acked.unwrap();
        let state = log.get_log_state().await.unwrap();
        assert!(state.last_log_id.is_some_and(|last| last.index >= acked), "acked {acked}, found {state:?}");
        let purged = state.last_purged_log_id.map(|purged| purged.index);
        assert!(purged >= writer.purged, "purge mark {purged:?} went back behind {:?}", writer.purged);
        let first = purged.map_or(0, |purged| purged + 1);
        let entries = log.try_get_log_entries(0..).await.unwrap();
        assert_eq!(entries.first().map(|entry| entry.log_id.index), Some(first), "the log begins after the purge mark");
        assert!(entries.last().is_some_and(|last| last.log_id.index >= acked), "acknowledged entries are lost");
        for (index, found) in (first..).zip(&entries) {
            assert!(*found == entry(index), "entry {index} is another");
        }
        let vote = log.read_vote().await.unwrap().unwrap();
        assert!(vote.leader_id.term >= writer.voted, "vote {} went back to {}", writer.voted, vote.leader_id.term);
    });
    drop(log);
    store.close();
}

/// Spread over the time that a batch takes, differently in every round.
fn moment(round: u32) -> Duration {
    Duration::from_millis(u64::from(20 + round * 37 % 260))
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_nine() {
    let directory = TempDir::new().unwrap();
    for round in 0..KILL_ROUNDS {
        let mut writer = Writer::start(directory.path());
        writer.run(moment(round));
        writer.kill();
        writer.drain();
        check(directory.path(), &writer);
    }
}

/// A file system of its own whose block device can be copied at any moment.
struct LoopDisk {
    image: PathBuf,
    mounted: PathBuf,
}

impl LoopDisk {
    fn mount(image: PathBuf, mounted: PathBuf) -> Self {
        std::fs::create_dir_all(&mounted).unwrap();
        must(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted));
        Self { image, mounted }
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mounted).status();
    }
}

fn must(command: &mut Command) {
    let status = command.status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "{command:?}: {status:?}; this test mounts loop devices: it needs root and mkfs.ext4"
    );
}

#[test]
fn nothing_acknowledged_is_lost_by_a_power_cut() {
    let home = TempDir::new().unwrap();
    for round in 0..POWER_CUT_ROUNDS {
        let image = home.path().join("disk");
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        must(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let disk = LoopDisk::mount(image, home.path().join("mounted"));
        let mut writer = Writer::start(&disk.mounted.join("metadata"));
        writer.run(moment(round));
        // Freeze, hear what it had said by then, and take what has reached the block device.
        let frozen = rustix::process::Pid::from_child(&writer.child);
        rustix::process::kill_process(frozen, rustix::process::Signal::STOP).unwrap();
        writer.drain();
        let after = home.path().join("after");
        std::fs::copy(&disk.image, &after).unwrap();
        writer.kill();
        drop(disk);
        let disk = LoopDisk::mount(after, home.path().join("mounted-after"));
        check(&disk.mounted.join("metadata"), &writer);
    }
}
