//! Whose directory this is, how the process before stopped, and whether its page cache can still be there (D10, R18).

use std::io;
use std::path::Path;

use highwater_quorum::controller::DataClaim;
use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId};

use super::super::checkpoint::{format_properties, parse_properties, read_text, write_atomically};
use crate::disk::{DirIdentity, Disk};
use crate::log::LogDirError;

const META: &str = "meta.properties";
const META_VERSION: i64 = 1;
/// The mark of a clean stop (D31).
const CLEAN_STOP: &str = ".clean-shutdown";
/// Who runs here, since when.
pub const RUNNING: &str = ".running";
const RUNNING_VERSION: &str = "1";

/// Whose directory it is to be, and which boot of the machine this is.
#[derive(Debug, Clone)]
pub struct Opening {
    pub cluster: ClusterId,
    pub broker: BrokerId,
    /// `/proc/sys/kernel/random/boot_id`; `None` where unreadable, and then nothing is proved (D10).
    pub boot_id: Option<String>,
    /// CLOCK_BOOTTIME in milliseconds: how long the machine has been up.
    pub boot_time_ms: u64,
}

/// What a directory said of the process before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previous {
    /// The mark of a clean stop was there (it is removed by now), with the broker epoch in it, if one was known (R18).
    pub clean_stop: Option<Option<BrokerEpoch>>,
    /// The processes whose page cache is known to have survived: same boot, same directory (D10). Newest first: one that
    /// was killed before it could register hands on what it found.
    pub survived: Vec<IncarnationId>,
    /// The epoch of a clean stop that one of them found, and none could use.
    pub clean_before: Option<BrokerEpoch>,
    /// The directory was formatted just now.
    pub fresh: bool,
    /// For the log line: why nothing is proved.
    pub doubt: Option<String>,
    /// Checkpoints that cannot be read; what they said is made up for where that is possible, else it is gone.
    pub damaged: Vec<&'static str>,
}

impl Previous {
    /// What this process can prove of the data its broker held.
    pub fn claim(&self) -> DataClaim {
        let clean_epoch = self.clean_stop.flatten().or(self.clean_before);
        match (clean_epoch, &self.survived[..]) {
            (None, []) => DataClaim::Nothing,
            (None, [incarnation]) => DataClaim::SameBoot { incarnation: *incarnation },
            (Some(epoch), _) if self.clean_stop.is_some() => DataClaim::CleanStop { epoch },
            (clean_epoch, incarnations) => DataClaim::Survivors { incarnations: incarnations.to_vec(), clean_epoch },
        }
    }
}

/// Reads `meta.properties`, or writes it where the directory has none and holds no logs either.
pub fn read_or_format<D: Disk>(disk: &D, path: &Path, opening: &Opening) -> Result<(DirectoryId, bool), LogDirError> {
    let file = path.join(META);
    let failed = |error| LogDirError::Io { directory: path.to_owned(), error };
    let Some(text) = read_text(disk, &file).map_err(failed)? else {
        let id = DirectoryId::random();
        let text = format_properties(&[
            ("version", META_VERSION.to_string()),
            ("cluster.id", opening.cluster.to_string()),
            ("node.id", opening.broker.to_string()),
            ("directory.id", id.to_string()),
        ]);
        write_atomically(disk, &file, text.as_bytes()).map_err(failed)?;
        return Ok((id, true));
    };
    let properties = parse_properties(&text);
    let damaged = |reason: &str| LogDirError::BadMetaProperties { file: file.clone(), reason: reason.to_owned() };
    let version = properties.get("version").and_then(|version| version.parse().ok());
    let version: i64 = version.ok_or_else(|| damaged("no version"))?;
    if version > META_VERSION {
        return Err(LogDirError::NewerFormat { file, version, known: META_VERSION });
    }
    for (key, expected) in [("cluster.id", opening.cluster.to_string()), ("node.id", opening.broker.to_string())] {
        let found = properties.get(key).ok_or_else(|| damaged(&format!("no {key}")))?;
        if *found != expected {
            return Err(LogDirError::WrongOwner { file, key, found: found.clone(), expected });
        }
    }
    let id = properties.get("directory.id").and_then(|id| id.parse().ok());
    Ok((id.ok_or_else(|| damaged("no directory.id"))?, false))
}

/// Reads the mark of a clean stop and removes it, durably, before anything else happens (R18).
pub fn take_clean_stop<D: Disk>(disk: &D, path: &Path) -> Result<Option<Option<BrokerEpoch>>, LogDirError> {
    let failed = |error| LogDirError::Io { directory: path.to_owned(), error };
    let file = path.join(CLEAN_STOP);
    if !disk.exists(&file).map_err(failed)? {
        return Ok(None);
    }
    let text = read_text(disk, &file).map_err(failed)?.unwrap_or_default();
    if !planted(Flaw::CleanStopCountsTwice) {
        disk.remove(&file).map_err(failed)?;
        disk.sync_dir(path).map_err(failed)?;
    }
    let properties = parse_properties(&text);
    // A mark that does not say so whole was not written at the very end.
    if properties.get("version").is_none_or(|version| version != "0") {
        return Ok(None);
    }
    let epoch = properties.get("broker.epoch").and_then(|epoch| epoch.parse().ok()).and_then(BrokerEpoch::from_wire);
    Ok(Some(epoch))
}

/// Marks a clean stop, durably.
pub fn write_clean_stop<D: Disk>(disk: &D, path: &Path, epoch: Option<BrokerEpoch>) -> io::Result<()> {
    let epoch = BrokerEpoch::to_wire(epoch).to_string();
    let text = format_properties(&[("version", "0".to_owned()), ("broker.epoch", epoch)]);
    write_atomically(disk, &path.join(CLEAN_STOP), text.as_bytes())
}

/// What a process hands on to the next if it ends before it has registered.
#[derive(Debug, Clone, Default)]
pub struct Heritage {
    pub survived: Vec<IncarnationId>,
    pub clean: Option<BrokerEpoch>,
}

/// Processes handed on at most; the oldest is the one that registered.
const HERITAGE_MAX: usize = 64;

impl Heritage {
    pub fn of(previous: &Previous) -> Self {
        let mut survived = previous.survived.clone();
        while survived.len() > HERITAGE_MAX {
            survived.remove(0);
        }
        Self { survived, clean: previous.clean_stop.flatten().or(previous.clean_before) }
    }
}

pub fn format_running(
    opening: &Opening,
    directory: &DirIdentity,
    incarnation: IncarnationId,
    heritage: &Heritage,
) -> String {
    let before: Vec<_> = heritage.survived.iter().map(IncarnationId::to_string).collect();
    format_properties(&[
        ("version", RUNNING_VERSION.to_owned()),
        ("boot.id", opening.boot_id.clone().unwrap_or_default()),
        ("boot.time.ms", opening.boot_time_ms.to_string()),
        ("device", directory.device.to_string()),
        ("inode", directory.inode.to_string()),
        ("incarnation.id", incarnation.to_string()),
        ("incarnations.before", before.join(",")),
        ("clean.epoch.before", BrokerEpoch::to_wire(heritage.clean).to_string()),
    ])
}

/// The incarnation that ran here last and what it handed on, if all it wrote must still be in the page cache or on the disk: it ran on this very
/// boot, in this very directory, on a file system that keeps its cache (D10). Else what speaks against it.
pub fn survivor<D: Disk>(disk: &D, path: &Path, opening: &Opening) -> io::Result<Result<Heritage, String>> {
    let Some(text) = read_text(disk, &path.join(RUNNING))? else { return Ok(Err("no running-marker".to_owned())) };
    Ok(judge_marker(&text, opening, &disk.identity(path)?))
}

fn judge_marker(text: &str, opening: &Opening, directory: &DirIdentity) -> Result<Heritage, String> {
    let marker = parse_properties(text);
    let of = |key: &str| marker.get(key).map(String::as_str).ok_or_else(|| format!("the running-marker has no {key}"));
    let number = |key: &str| of(key)?.parse::<u64>().map_err(|_| format!("the running-marker's {key} is no number"));
    if of("version")? != RUNNING_VERSION {
        return Err("the running-marker is of another version".to_owned());
    }
    if !directory.cache_outlives_process {
        return Err("the file system may forget what a killed process wrote".to_owned());
    }
    let boot = opening.boot_id.as_deref().filter(|id| !id.is_empty()).ok_or("this boot has no readable id")?;
    if of("boot.id")? != boot {
        return Err("the machine was booted since".to_owned());
    }
    if number("boot.time.ms")? > opening.boot_time_ms {
        return Err("the machine's time since boot went back".to_owned());
    }
    if (number("device")?, number("inode")?) != (directory.device, directory.inode) {
        return Err("this is another directory than the marker was written in".to_owned());
    }
    let unreadable = |_| "the running-marker's incarnation.id is unreadable".to_owned();
    let last: IncarnationId = of("incarnation.id")?.parse().map_err(unreadable)?;
    let before = marker.get("incarnations.before").map_or("", String::as_str);
    let before = before.split(',').filter_map(|id| id.parse().ok());
    let clean = marker.get("clean.epoch.before").and_then(|epoch| epoch.parse().ok()).and_then(BrokerEpoch::from_wire);
    Ok(Heritage { survived: std::iter::once(last).chain(before).collect(), clean })
}
