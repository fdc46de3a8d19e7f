//! Storage faults on the simulated disk: every crash point, every error of every call, damage in every file.

pub mod corruption;
pub mod crash_points;
pub mod faults;
pub mod metadata_rot;

use highwater_data::disk::sim::SimDisk;
use highwater_data::log::Log;
use highwater_wire::RecordBatch;
use highwater_wire::batch::BatchIter;

/// Bytes asked for at once: a few batches, so that a walk takes many reads.
const READ_BYTES: usize = 700;

/// All batches of a log, read as a consumer reads them.
fn batches(log: &Log<SimDisk>) -> Result<Vec<RecordBatch>, String> {
    let mut found = Vec::new();
    let (mut at, end) = (log.view().start, log.view().end);
    while at < end {
        let read = log.plan_read(at, end, READ_BYTES, true).and_then(|plan| plan.read());
        let read = read.map_err(|error| error.to_string())?;
        if read.is_empty() {
            return Err(format!("nothing at {at}, though it ends at {end}"));
        }
        for batch in BatchIter::new(read) {
            let batch = batch.map_err(|error| error.to_string())?;
            at = batch.next_offset();
            found.push(batch);
        }
    }
    Ok(found)
}
