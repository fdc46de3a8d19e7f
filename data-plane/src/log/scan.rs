//! Walking the batches of a segment file.

use std::io;

use highwater_quorum::flaws::{Flaw, planted};
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
///
/// Base offset and leader epoch are outside the CRC. A batch that leaves a gap is believed only when the next one is good and
/// fits behind it, for nothing here ever writes one; a batch that begins an epoch not when the next one goes on at its end in
/// an older epoch.
pub fn check_batches<F: DiskFile>(
    file: &F,
    len: u64,
    first: i64,
    last_max: i64,
    mut visit: impl FnMut(u64, &BatchHeader),
) -> io::Result<Option<Bad>> {
    let (mut lowest, mut epoch) = (first, -1);
    let mut held_back: Option<(u64, BatchHeader, bool)> = None;
    let mut chunk = Vec::new();
    let mut chunk_at = 0;
    let mut position = 0;
    while position < len {
        let left = len - position;
        let mut bytes = chunk.get(usize::try_from(position - chunk_at).unwrap_or(usize::MAX)..).unwrap_or_default();
        if bytes.len() < HEADER_BYTES && (bytes.len() as u64) < left {
            read_chunk(file, &mut chunk, CHECKED_CHUNK_BYTES, position, left)?;
            chunk_at = position;
            bytes = &chunk;
        }
        if let Ok(header) = BatchHeader::parse(bytes)
            && bytes.len() < header.total_bytes()
            && header.total_bytes() as u64 <= left
        {
            read_chunk(file, &mut chunk, CHECKED_CHUNK_BYTES.max(header.total_bytes()), position, left)?;
            chunk_at = position;
            bytes = &chunk;
        }
        let header = match check_batch(bytes, left, last_max) {
            Ok(header) if header.base_offset < lowest => {
                Err((false, false, format!("it begins at offset {}, below {lowest}", header.base_offset)))
            }
            Ok(header) if header.leader_epoch < epoch => {
                let reason = format!("leader epoch {} behind a batch of epoch {epoch}", header.leader_epoch);
                Err((header.base_offset == lowest, false, reason))
            }
            Ok(header) => Ok(header),
            Err((incomplete, reason)) => Err((false, incomplete, reason)),
        };
        let before = held_back.take();
        let header = match header {
            Ok(header) => header,
            Err((epoch_denied, incomplete, reason)) => {
                return Ok(Some(match before {
                    Some((position, _, gap)) if gap || epoch_denied => Bad {
                        position,
                        incomplete: false,
                        reason: format!("what comes behind it is no proof of it: {reason}"),
                    },
                    before => {
                        if let Some((position, header, _)) = before {
                            visit(position, &header);
                        }
                        Bad { position, incomplete, reason }
                    }
                }));
            }
        };
        if let Some((position, header, _)) = before {
            visit(position, &header);
        }
        let gap = header.base_offset > lowest;
        if gap || header.leader_epoch > epoch {
            held_back = Some((position, header, gap));
        } else {
            visit(position, &header);
        }
        epoch = header.leader_epoch;
        lowest = header.next_offset().0;
        position += header.total_bytes() as u64;
    }
    match held_back {
        Some((position, header, true)) => {
            let reason = format!("it is the last one, and leaves a gap before offset {}", header.base_offset);
            Ok(Some(Bad { position, incomplete: false, reason }))
        }
        Some((position, header, false)) => {
            visit(position, &header);
            Ok(None)
        }
        None => Ok(None),
    }
}

/// The header of the batch at the beginning of `bytes`, of which `left` are in the file; or whether it is no more than the
/// first part of one, and what is wrong with it.
fn check_batch(bytes: &[u8], left: u64, last_max: i64) -> Result<BatchHeader, (bool, String)> {
    let header = BatchHeader::parse(bytes).map_err(|error| {
        // The end of the file. Zeros there are no write that was cut short, unless there are so few of them that they are the
        // leading zeros of a base offset and a length.
        let cut_short = left < HEADER_BYTES as u64 && (left < LOG_OVERHEAD_BYTES as u64 || !is_zero(bytes));
        (cut_short, error.to_string())
    })?;
    let total = header.total_bytes();
    if total as u64 > left {
        return Err((true, format!("a batch of {total} bytes, but only {left} are there")));
    }
    let batch = bytes.get(..total).ok_or_else(|| (false, "the file is shorter than it said".to_owned()))?;
    if !planted(Flaw::TrustsWhatItFinds) {
        check_crc(batch, &header).map_err(|reason| (false, reason))?;
    }
    let last = header.base_offset.checked_add(i64::from(header.last_offset_delta));
    if header.last_offset_delta < 0 || last.is_none_or(|last| last > last_max) {
        let (base, delta) = (header.base_offset, header.last_offset_delta);
        return Err((false, format!("offsets {base} + {delta} are not up to {last_max}")));
    }
    Ok(header)
}

/// Whether a whole batch is what its CRC says; what is wrong if not.
pub fn check_crc(batch: &[u8], header: &BatchHeader) -> Result<(), String> {
    let crc = crc_fast::crc32_iscsi(&batch[CRC_FROM..]);
    if crc == header.crc {
        Ok(())
    } else {
        Err(format!("CRC-32C is {crc:#010x}, the header says {:#010x}", header.crc))
    }
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
