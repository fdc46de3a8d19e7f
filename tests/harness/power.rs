//! Power cuts on a real file system (R214, D10, B26): one process writes a metadata store and a log and says what is
//! durable, the power of its volume is cut, another process opens what is left and holds it to what was said.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use highwater_quorum::storage_trial;
use rustix::process::{Pid, Signal, kill_process};

pub mod log;
pub mod volume;

/// Where the two lie in a volume.
pub const METADATA: &str = "metadata";
pub const LOG: &str = "log";

/// The writer's lines begin with one of these.
const OF_METADATA: &str = "m ";
const OF_LOG: &str = "l ";

/// How long a writer may take to acknowledge something.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that was said of one volume.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub metadata: storage_trial::Told,
    pub log: log::Told,
    /// Acknowledgements heard in this life of the writer.
    pub acks: u64,
}

impl Told {
    fn note(&mut self, line: &str) {
        let (line, acks) = if let Some(line) = line.strip_prefix(OF_METADATA) {
            self.metadata.note(line);
            (line, 1)
        } else if let Some(line) = line.strip_prefix(OF_LOG) {
            self.log.note(line);
            (line, 1 << 32)
        } else {
            return;
        };
        if line.starts_with("acked") {
            self.acks += acks;
        }
    }

    /// Takes a line that may have been said after the power went: what it promises does not count – an abort of the journal lets
    /// an fsync that waits for it return as if it were done – but what it was about to do does.
    fn note_late(&mut self, line: &str) {
        if let Some(line) = line.strip_prefix(OF_LOG)
            && (line.starts_with("wrote") || line.starts_with("cut"))
        {
            self.log.note(line);
        }
    }

    fn both_acked(&self) -> bool {
        self.acks >> 32 > 0 && self.acks & u64::from(u32::MAX) > 0
    }
}

/// Writes into both, each from a thread of its own, until it is stopped; says on standard output what is durable.
///
/// # Errors
/// One of them failed.
pub fn write(volume: &Path, boot: &str, seed: u64) -> std::io::Result<()> {
    let say = |of: &'static str| {
        move |line: &str| {
            use std::io::Write as _;
            let mut out = std::io::stdout().lock();
            writeln!(out, "{of}{line}").and_then(|()| out.flush()).expect("the parent listens");
        }
    };
    let metadata = volume.join(METADATA);
    let of_metadata = std::thread::spawn(move || {
        let say = say(OF_METADATA);
        storage_trial::write(&metadata, &mut |what, number| say(&format!("{what} {number}")))
    });
    log::write(&volume.join(LOG), boot, seed, &mut say(OF_LOG))?;
    of_metadata.join().map_err(|_| std::io::Error::other("the writer of metadata panicked"))?
}

/// A running writer.
pub struct Writer {
    child: Child,
    said: Receiver<String>,
}

impl Writer {
    /// Starts `command`, whose standard output is heard.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the writer starts");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line))));
        Self { child, said }
    }

    /// Hears it until both have acknowledged something and then, for `time` more, whatever it says.
    pub fn run(&mut self, told: &mut Told, time: Duration) {
        self.hear_both(told);
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if let Ok(line) = self.said.recv_timeout(left) {
                told.note(&line);
            }
        }
    }

    /// Hears it until both have acknowledged something and then until the next `acks` acknowledgements are in.
    pub fn run_to_ack(&mut self, told: &mut Told, acks: u32) {
        self.hear_both(told);
        let mut left = acks;
        while left > 0 {
            let Ok(line) = self.said.recv_timeout(PATIENCE) else { panic!("the writer fell silent") };
            told.note(&line);
            left -= u32::from(line.contains("acked"));
        }
    }

    fn hear_both(&mut self, told: &mut Told) {
        told.acks = 0;
        while !told.both_acked() {
            let Ok(line) = self.said.recv_timeout(PATIENCE) else {
                panic!("the writer acknowledges nothing: {:?}", self.child.try_wait());
            };
            told.note(&line);
        }
    }

    /// Stops it where it is: every call that was under way is done when this returns.
    pub fn freeze(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("the writer is there");
        let tasks = format!("/proc/{}/task", self.child.id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat"))).unwrap_or_default();
            // Behind the name, which may hold anything, comes the state; T and t are stopped.
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't']))
        };
        let until = Instant::now() + PATIENCE;
        while !std::fs::read_dir(&tasks).is_ok_and(|mut tasks| tasks.all(stopped)) {
            assert!(Instant::now() < until, "the writer does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills it, and hears everything it had said.
    pub fn kill(&mut self, told: &mut Told) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.said.iter().for_each(|line| told.note(&line));
    }

    /// The same, where power went before: only what was heard by then is promised.
    pub fn kill_without_power(&mut self, told: &mut Told) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.said.iter().for_each(|line| told.note_late(&line));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
