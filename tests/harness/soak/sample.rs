//! What a running node holds, seen from outside: /proc and its directories.

use std::fs;
use std::io;
use std::path::Path;

use crate::chaos::fleet::{CLIENT_PORT, Fleet};

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Resident memory, bytes.
    Memory,
    /// Open descriptors.
    Descriptors,
    Threads,
    /// The metadata store without its snapshots, bytes.
    Store,
    /// Snapshots of the metadata, bytes.
    Snapshots,
    /// `log.dirs`, bytes.
    Data,
    /// The node's own log, bytes.
    Log,
}

impl Metric {
    pub const ALL: [Self; 7] =
        [Self::Memory, Self::Descriptors, Self::Threads, Self::Store, Self::Snapshots, Self::Data, Self::Log];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "rss_bytes",
            Self::Descriptors => "descriptors",
            Self::Threads => "threads",
            Self::Store => "store_bytes",
            Self::Snapshots => "snapshot_bytes",
            Self::Data => "data_bytes",
            Self::Log => "log_bytes",
        }
    }

    /// Whether it belongs to the process, and begins anew with it.
    pub const fn is_set_back(self) -> bool {
        matches!(self, Self::Memory | Self::Descriptors | Self::Threads)
    }
}

/// One node at one moment.
#[derive(Debug, Clone)]
pub struct Sample {
    pub node: u8,
    /// Seconds since the load began.
    pub at: f64,
    /// Which of its processes.
    pub starts: u32,
    /// Connections of clients, those included that only this end still holds.
    pub clients: u64,
    memory: u64,
    descriptors: u64,
    threads: u64,
    store: u64,
    snapshots: u64,
    data: u64,
    log: u64,
}

impl Sample {
    /// # Errors
    /// The node does not run, or its files cannot be read.
    pub fn take(fleet: &Fleet, node: u8, at: f64) -> io::Result<Self> {
        let (pid, starts) = fleet.process(node).ok_or_else(|| io::Error::other(format!("node {node} does not run")))?;
        let proc = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(proc.join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
        };
        let descriptors = fs::read_dir(proc.join("fd"))?.count() as u64;
        let metadata = fleet.metadata_dir(node);
        let mut sizes = (0, 0);
        walk(&metadata, &mut |path, bytes| match path.to_string_lossy().contains("snapshot") {
            true => sizes.1 += bytes,
            false => sizes.0 += bytes,
        });
        let mut data = 0;
        walk(&fleet.data_dir(node), &mut |_, bytes| data += bytes);
        Ok(Self {
            node,
            at,
            starts,
            clients: connections(&proc, CLIENT_PORT)?,
            memory: field("VmRSS:") * 1_024,
            descriptors,
            threads: field("Threads:"),
            store: sizes.0,
            snapshots: sizes.1,
            data,
            log: fs::metadata(fleet.home(node).join("log"))?.len(),
        })
    }

    pub fn of(&self, metric: Metric) -> f64 {
        let value = match metric {
            Metric::Memory => self.memory,
            Metric::Descriptors => self.descriptors,
            Metric::Threads => self.threads,
            Metric::Store => self.store,
            Metric::Snapshots => self.snapshots,
            Metric::Data => self.data,
            Metric::Log => self.log,
        };
        value as f64
    }
}

/// Connections at a port in the network namespace of a process; not the port itself, nor what the kernel alone remembers.
fn connections(proc: &Path, port: u16) -> io::Result<u64> {
    const LISTEN: &str = "0A";
    const TIME_WAIT: &str = "06";
    let mut found = 0;
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(proc.join("net").join(table))?;
        for line in table.lines().skip(1) {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
            let at_port = local.rsplit_once(':').is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port));
            found += u64::from(at_port && state != LISTEN && state != TIME_WAIT);
        }
    }
    Ok(found)
}

/// Every file below a folder and how long it is; what vanishes meanwhile is left out.
fn walk(dir: &Path, each: &mut dyn FnMut(&Path, u64)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => walk(&path, each),
            Ok(meta) => each(&path, meta.len()),
            Err(_) => {}
        }
    }
}
