//! What lies in a log's directory, and the removal of what a crash left half done (R25).

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use highwater_wire::Offset;

use super::super::checkpoint::TEMPORARY;
use super::super::error::OpenError;
use super::super::log_dir::DELETED_FILE;
use super::super::segment::parse_file_name;
use super::super::sync::PREPARED;
use crate::disk::Disk;

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
        let names: Vec<String> = disk.list(path).map_err(failed)?.into_iter().map(|entry| entry.name).collect();
        if let Some(name) = names.iter().find(|name| name.ends_with(".swap")) {
            return Err(OpenError::UnfinishedCompaction { file: path.join(name) });
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

fn remove<D: Disk>(disk: &D, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
