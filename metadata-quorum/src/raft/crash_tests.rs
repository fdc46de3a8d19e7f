//! The store against kill -9 (R214): a child process writes and says what was acknowledged, it is killed at some moment,
//! and what the store then holds is compared with what it had said. Power cuts need a file system of their own: the
//! binary `power` of the tests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::trial::{self, Told};

/// Set for the child only: where its store lies.
const CHILD: &str = "HIGHWATER_TEST_STORE_WRITER";
const CHILD_TEST: &str = "raft::crash_tests::writes_until_it_is_stopped";
const KILL_ROUNDS: u32 = 12;

/// Not a test of its own: the child's part.
#[test]
fn writes_until_it_is_stopped() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let written = trial::write(Path::new(&directory), &mut |what, number| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{what} {number}").and_then(|()| out.flush()).unwrap();
    });
    panic!("the store failed: {written:?}");
}

/// The child, and what it said.
struct Writer {
    child: Child,
    said: std::sync::mpsc::Receiver<String>,
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
        let (tell, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line))));
        Self { child, said }
    }

    /// Lets it write for a while after its first acknowledgement, kills it, and hears everything it said before.
    fn run(mut self, told: &mut Told, time: Duration) {
        let patience = Instant::now() + Duration::from_secs(60);
        let mut acked = false;
        while !acked {
            assert!(Instant::now() < patience, "the writer acknowledges nothing");
            if let Ok(line) = self.said.recv_timeout(Duration::from_secs(1)) {
                acked = line.starts_with("acked");
                told.note(&line);
            }
        }
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if let Ok(line) = self.said.recv_timeout(left) {
                told.note(&line);
            }
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said.iter().for_each(|line| told.note(&line));
    }
}

/// Spread over the time that a batch takes, differently in every round.
fn moment(round: u32) -> Duration {
    Duration::from_millis(u64::from(20 + round * 37 % 260))
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_nine() {
    let directory = TempDir::new().unwrap();
    let mut told = Told::default();
    for round in 0..KILL_ROUNDS {
        Writer::start(directory.path()).run(&mut told, moment(round));
        trial::check(directory.path(), &told).unwrap();
    }
}
