//! What lies in a log's directory, and the removal of what a crash left half done (R25).

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use highwater_wire::Offset;

use super::super::checkpoint::TEMPORARY;
use super::super::clean::{CLEANED, SWAP};
use super::super::error::OpenError;
use super::super::log_dir::DELETED_FILE;
use super::super::scan::check_batches;
use super::super::segment::{file_name, parse_file_name};
use super::super::sync::PREPARED;
use crate::disk::{Disk, DiskFile as _};

/// The files of a log that count.
pub struct Files {
    /// Base offsets, rising.
    pub segments: Vec<Offset>,
    pub snapshots: BTreeSet<Offset>,
}

impl Files {
    /// Lists the directory and removes temporary, deleted and ownerless files.
    pub fn tidy<D: Disk>(disk: &D, path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Io { directory: path.to_owned(), error };
        let mut names = names_in(disk, path).map_err(failed)?;
        if names.iter().any(|name| name.ends_with(".swap")) {
            finish_swaps(disk, path, &names)?;
            names = names_in(disk, path).map_err(failed)?;
        }
        let with = |wanted: &str| {
            let parsed = names.iter().filter_map(|name| parse_file_name(name));
            parsed.filter(|&(_, ending)| ending == wanted).map(|(offset, _)| offset).collect::<BTreeSet<_>>()
        };
        let segments = with("log");
        let ownerless = |name: &str| match parse_file_name(name) {
            Some((base, "index" | "timeindex" | "txnindex")) => !segments.contains(&base),
            _ => false,
        };
        for name in &names {
            let left_over = [TEMPORARY, DELETED_FILE, ".cleaned"].iter().any(|ending| name.ends_with(ending));
            if left_over || name == PREPARED || ownerless(name) {
                remove(disk, &path.join(name)).map_err(failed)?;
            }
        }
        Ok(Self { snapshots: with("snapshot"), segments: segments.into_iter().collect() })
    }
}

fn names_in<D: Disk>(disk: &D, path: &Path) -> io::Result<Vec<String>> {
    Ok(disk.list(path)?.into_iter().map(|entry| entry.name).collect())
}

/// Puts merged segments in the place of those that they were made of (R25): each is whole, since it was synced before it got its
/// name. Not where one that belongs before it was still being written: Kafka was splitting a segment, which is all there.
fn finish_swaps<D: Disk>(disk: &D, path: &Path, names: &[String]) -> Result<(), OpenError> {
    let failed = |error| OpenError::Io { directory: path.to_owned(), error };
    let with = |wanted: &'static str| {
        let parsed = names.iter().filter_map(|name| parse_file_name(name));
        parsed.filter(move |&(_, ending)| ending == wanted).map(|(base, _)| base)
    };
    let unfinished = with(CLEANED).min();
    for base in with(SWAP).filter(|&base| unfinished.is_some_and(|unfinished| base >= unfinished)) {
        remove(disk, &path.join(file_name(base, SWAP))).map_err(failed)?;
    }
    for base in with(SWAP).filter(|&base| unfinished.is_none_or(|unfinished| base < unfinished)) {
        let swap = path.join(file_name(base, SWAP));
        let end = end_of(disk, &swap, base).map_err(failed)?;
        let end = end.ok_or_else(|| OpenError::UnfinishedCompaction { file: swap.clone() })?;
        let replaced = with("log").filter(|&other| other > base && other < end);
        for other in replaced {
            for ending in ["log", "index", "timeindex", "txnindex"] {
                remove(disk, &path.join(file_name(other, ending))).map_err(failed)?;
            }
        }
        disk.sync_dir(path).map_err(failed)?;
        disk.rename(&swap, &path.join(file_name(base, "log"))).map_err(failed)?;
        disk.sync_dir(path).map_err(failed)?;
    }
    // Kafka swaps its indexes too; they are made anew.
    for name in names.iter().filter(|name| name.ends_with("index.swap")) {
        remove(disk, &path.join(name)).map_err(failed)?;
    }
    Ok(())
}

/// Where a segment file that begins at `base` ends; `None`: it is not whole.
fn end_of<D: Disk>(disk: &D, file: &Path, base: Offset) -> io::Result<Option<Offset>> {
    let file = disk.open(file)?;
    let mut end = base;
    let (len, last_max) = (file.len()?, base.0.saturating_add(i64::from(i32::MAX)));
    let bad = check_batches(&file, len, base.0, last_max, |_, header| end = header.next_offset())?;
    Ok(Some(end).filter(|end| bad.is_none() && *end > base))
}

fn remove<D: Disk>(disk: &D, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
