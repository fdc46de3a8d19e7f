//! placeholder
use highwater_wire::Offset;

/// What opening a log found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The directory held no such log: an empty one was made. For a replica that should exist: its data is gone.
    pub created: bool,
    /// The directory was closed in order, and nothing was scanned (R19).
    pub clean: bool,
    /// Bytes read and checked.
    pub bytes_scanned: u64,
    /// What was cut off the end (R20).
    pub cut: Option<Cut>,
    /// Everything was removed because the end was below the start in the checkpoint (R22).
    pub emptied: bool,
    pub start: Offset,
    pub end: Offset,
    /// What the checkpoint said of the high watermark; 0 when it said nothing (R24: clamp it to start and end).
    pub watermark_checkpoint: Offset,
}

/// The end of a log that was not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The log now ends here.
    pub at: Offset,
    /// Bytes removed, later segments included.
    pub bytes: u64,
    /// Segments removed as a whole.
    pub segments: usize,
    /// Whether it was no more than the first part of one last batch: what a killed process leaves behind.
    pub incomplete_last_batch_only: bool,
    /// What was wrong at the cut, and where.
    pub reason: String,
}

impl RecoveryReport {
    /// Whether records may be gone that this replica once held (D10): more was cut than one incomplete last batch, the
    /// log ends below its watermark checkpoint, or there was no log.
    pub fn may_have_lost_records(&self) -> bool {
        let cut = self.cut.as_ref().is_some_and(|cut| !cut.incomplete_last_batch_only);
        self.created || cut || self.emptied || self.end < self.watermark_checkpoint
    }
}
