//! The life of `crash_points.rs` on a disk that refuses: each call of each kind fails once, or the disk is full from some
//! byte on. Nothing is promised that is not there, whatever comes afterwards.

use std::path::Path;

use highwater_data::disk::sim::{Call, Crash};
use highwater_data::disk::{Disk, SimDisk};

use super::crash_points::{DIR, Promise, check, live, try_open, write};

/// Bytes between two sizes of a full disk.
const STEP_BYTES: u64 = 23;

/// How much was tried.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tried {
    /// Calls that failed, or sizes of the disk.
    pub failures: u64,
    /// Of these: after which the life went on to its end.
    pub survived: u64,
    /// Disks that were opened afterwards.
    pub disks: u64,
}

/// How a process may end after a failure.
fn ends(seed: u64) -> [Crash; 5] {
    let keeping = |draw| Crash::PowerLossKeepingSome { seed: seed * 8 + draw };
    [Crash::Killed, Crash::PowerLoss, keeping(0), keeping(1), keeping(2)]
}

/// Lives as far as the disk allows; what was promised by then, and whether it came to its end.
///
/// # Errors
/// A log that failed goes on writing.
fn live_on(disk: &SimDisk) -> Result<(Promise, bool), String> {
    let mut promise = Promise::default();
    let Ok((mut log, _)) = try_open(disk) else { return Ok((promise, false)) };
    let finished = live(&mut log, &mut promise).is_ok();
    if !finished && log.failed().is_some() && write(&mut log, &mut promise.clone(), 9).is_ok() {
        return Err("a log that has failed took another record".to_owned());
    }
    Ok((promise, finished))
}

/// Every call that changes or syncs something fails once with EIO (R283, B21).
///
/// # Errors
/// The first fault.
pub fn each_call_fails() -> Result<Tried, String> {
    let mut tried = Tried::default();
    for call in Call::ALL {
        for number in 0.. {
            let disk = SimDisk::new();
            disk.fail_after(call, number);
            let context = |fault: String| format!("{call:?} number {number} failed: {fault}");
            let (promise, finished) = live_on(&disk).map_err(context)?;
            if disk.is_to_fail() {
                break;
            }
            tried.failures += 1;
            tried.survived += u64::from(finished);
            for end in ends(number) {
                let left = disk.fork();
                left.crash(end);
                check(&left, &promise).map_err(|fault| context(format!("then {end:?}: {fault}")))?;
                tried.disks += 1;
            }
        }
    }
    Ok(tried)
}

/// The disk is full from some byte on, at each step of the life; it is started again while full, and when there is room
/// (B20).
///
/// # Errors
/// The first fault.
pub fn disk_full() -> Result<Tried, String> {
    let mut tried = Tried::default();
    for step in 0.. {
        let capacity = step * STEP_BYTES;
        let disk = SimDisk::new();
        disk.set_capacity(Some(capacity));
        let context = |fault: String| format!("full at {capacity} bytes: {fault}");
        let (promise, finished) = live_on(&disk).map_err(context)?;
        if finished {
            break;
        }
        tried.failures += 1;
        for end in ends(step) {
            let left = disk.fork();
            left.crash(end);
            let mut files = Vec::new();
            for _ in 0..3 {
                left.set_capacity(Some(capacity));
                drop(try_open(&left));
                left.crash(Crash::Killed);
                files.push(count_files(&left, Path::new(DIR)));
            }
            if files[2] > files[1] {
                return Err(context(format!("each start leaves files behind: {files:?}")));
            }
            left.set_capacity(None);
            check(&left, &promise).map_err(|fault| context(format!("then {end:?}, and room again: {fault}")))?;
            tried.disks += 1;
        }
    }
    Ok(tried)
}

fn count_files(disk: &SimDisk, dir: &Path) -> usize {
    let entries = disk.list(dir).unwrap_or_default();
    entries.iter().map(|entry| if entry.is_dir { count_files(disk, &dir.join(&entry.name)) } else { 1 }).sum()
}
