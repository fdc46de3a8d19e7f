//! Walking the batches of a segment file.

use std::io;

use highwater_wire::batch::{BatchHeader, HEADER_BYTES, LOG_OVERHEAD_BYTES};

use crate::disk::DiskFile;

/// What is read at once when only headers are wanted.
const WINDOW_BYTES: usize = 4096;

/// The headers of the batches from one position to another. Records are skipped, not read, where they are large.
pub struct HeaderScan<'f, F: DiskFile> {
    file: &'f F,
    next: u64,
    limit: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'f, F: DiskFile> HeaderScan<'f, F> {
    /// `from` is the first byte of a batch, `limit` the end of the last one.
    pub fn new(file: &'f F, from: u64, limit: u64) -> Self {
        Self { file, next: from, limit, window: Vec::new(), window_at: from }
    }

    /// The next batch and its position; `None` at the limit. `InvalidData` where there is no whole batch of ours.
    pub fn next(&mut self) -> io::Result<Option<(u64, BatchHeader)>> {
        let position = self.next;
        if position >= self.limit {
            return Ok(None);
        }
        let mut offset = usize::try_from(position - self.window_at).unwrap_or(usize::MAX);
        if offset.saturating_add(HEADER_BYTES) > self.window.len() {
            let wanted = usize::try_from(self.limit - position).unwrap_or(usize::MAX).min(WINDOW_BYTES);
            self.window.clear();
            self.file.read_into(&mut self.window, wanted, position)?;
            self.window_at = position;
            offset = 0;
        }
        let header = BatchHeader::parse(&self.window[offset..]).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("no batch at position {position}: {error}"))
        })?;
        self.next = position + header.total_bytes() as u64;
        if self.next > self.limit {
            let text = format!("the batch at position {position} ends at {}, behind {}", self.next, self.limit);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Some((position, header)))
    }
}

/// Why a scan of a whole segment ended before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Where the first bad batch begins; everything before is good.
    pub position: u64,
    /// Whether what follows is no more than the first part of one batch, as a process killed in a write leaves it.
    pub incomplete: bool,
    pub reason: String,
}

/// What is read at once when everything is checked; a larger batch is read whole.
const CHECKED_CHUNK_BYTES: usize = 1 << 20;

/// Reads every batch of a segment from its first byte on, checks it (R20), and shows it to `visit` with its position.
/// `first` is the lowest offset the first batch may have, `last_max` the highest any may. Stops before the first bad one.
pub fn check_batches<F: DiskFile>(
    file: &F,
    len: u64,
    first: i64,
    last_max: i64,
    mut visit: impl FnMut(u64, &BatchHeader),
) -> io::Result<Option<Bad>> {
    let (mut lowest, mut epoch) = (first, -1);
    let mut chunk = Vec::new();
    let mut chunk_at = 0;
    let mut position = 0;
    while position < len {
        let left = len - position;
        let bad = |incomplete, reason: String| Ok(Some(Bad { position, incomplete, reason }));
        let mut bytes = chunk.get(usize::try_from(position - chunk_at).unwrap_or(usize::MAX)..).unwrap_or_default();
        if bytes.len() < HEADER_BYTES && (bytes.len() as u64) < left {
            read_chunk(file, &mut chunk, CHECKED_CHUNK_BYTES, position, left)?;
            chunk_at = position;
            bytes = &chunk;
        }
        let header = match BatchHeader::parse(bytes) {
            Ok(header) => header,
            // The end of the file. Zeros there are no write that was cut short, unless there are so few of them that they
            // are the leading zeros of a base offset and a length.
            Err(error) => {
                let cut_short = left < HEADER_BYTES as u64 && (left < LOG_OVERHEAD_BYTES as u64 || !is_zero(bytes));
                return bad(cut_short, error.to_string());
            }
        };
        let total = header.total_bytes();
        if total as u64 > left {
            return bad(true, format!("a batch of {total} bytes, but only {left} are there"));
        }
        if bytes.len() < total {
            read_chunk(file, &mut chunk, CHECKED_CHUNK_BYTES.max(total), position, left)?;
            chunk_at = position;
            bytes = &chunk;
        }
        let Some(batch) = bytes.get(..total) else {
            return bad(false, "the file is shorter than it said".to_owned());
        };
        let crc = crc_fast::crc32_iscsi(&batch[CRC_FROM..]);
        if crc != header.crc {
            return bad(false, format!("CRC-32C is {crc:#010x}, the header says {:#010x}", header.crc));
        }
        let last = header.base_offset.checked_add(i64::from(header.last_offset_delta));
        if header.base_offset < lowest || header.last_offset_delta < 0 || last.is_none_or(|last| last > last_max) {
            let delta = header.last_offset_delta;
            let text = format!("offsets {} + {delta} are not within {lowest}..={last_max}", header.base_offset);
            return bad(false, text);
        }
        if header.leader_epoch < epoch {
            return bad(false, format!("leader epoch {} behind a batch of epoch {epoch}", header.leader_epoch));
        }
        visit(position, &header);
        epoch = header.leader_epoch;
        lowest = header.next_offset().0;
        position += total as u64;
    }
    Ok(None)
}

/// The CRC covers everything from the attributes on (R31).
const CRC_FROM: usize = 21;

fn read_chunk<F: DiskFile>(file: &F, chunk: &mut Vec<u8>, bytes: usize, position: u64, left: u64) -> io::Result<()> {
    chunk.clear();
    let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
    file.read_into(chunk, wanted, position)?;
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
