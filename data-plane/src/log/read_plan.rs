//! A read that was granted under the lock and is carried out elsewhere.
//!
//! The plan holds its own handle on the file, so that neither a roll nor a removed segment disturbs it. A truncation does:
//! the log counts it before it touches the file, and a plan that finds another count after its read gives nothing back –
//! the bytes may be of two histories (R271).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use highwater_wire::Offset;
use highwater_wire::batch::{BatchHeader, HEADER_BYTES};

use super::scan::HeaderScan;
use super::segment::ClosedIndex;
use crate::disk::{Disk, DiskFile};

/// Where to begin in a file.
pub(super) enum Begin<D: Disk> {
    /// The first byte of the first batch wanted.
    At(u64),
    /// The first byte of a batch at or before it.
    ScanFrom(u64),
    /// Ask the index.
    Look(Arc<ClosedIndex<D>>),
}

/// A part of one segment.
pub(super) struct Source<D: Disk> {
    pub file: Arc<D::File>,
    pub begin: Begin<D>,
    /// Bytes of the file that belong to the log.
    pub limit: u64,
}

/// A granted read of whole batches.
pub struct ReadPlan<D: Disk> {
    /// The segment that should hold the offset, and the one behind it, for where the first ends in a gap. Empty: nothing
    /// to read.
    pub(super) sources: [Option<Source<D>>; 2],
    pub(super) from: Offset,
    pub(super) bound: Offset,
    pub(super) bytes_max: usize,
    pub(super) first_whole: bool,
    pub(super) truncations: u64,
    pub(super) truncations_now: Arc<AtomicU64>,
}

impl<D: Disk> ReadPlan<D> {
    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.sources[0].is_none()
    }

    /// The most bytes that are wanted; a first batch that is larger still comes whole where that was asked for.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Reads the batches. Empty where none fits `bytes_max`, or if the log was truncated in between: ask again.
    pub fn read(&self) -> io::Result<Bytes> {
        let mut sources = self.sources.iter().flatten().map(|source| self.read_source(source));
        let read = sources.find_map(Result::transpose).unwrap_or_else(|| Ok(Bytes::new()));
        // Pairs with the log's count before it touches the file; what an old plan could not read is no error either.
        if self.truncations_now.load(Ordering::SeqCst) == self.truncations { read } else { Ok(Bytes::new()) }
    }

    /// `None` where the segment ends before a batch that reaches beyond `from`.
    fn read_source(&self, source: &Source<D>) -> io::Result<Option<Bytes>> {
        let begin = match &source.begin {
            Begin::At(position) => Some(*position),
            Begin::ScanFrom(position) => self.scan(source, *position)?,
            Begin::Look(index) => self.scan(source, u64::from(index.get()?.floor(index.base, self.from)))?,
        };
        let Some(begin) = begin else { return Ok(None) };
        let left = usize::try_from(source.limit - begin).unwrap_or(usize::MAX);
        let mut wanted = left.min(self.bytes_max);
        if self.first_whole {
            wanted = wanted.max(HEADER_BYTES.min(left));
        }
        let mut buffer = Vec::with_capacity(wanted);
        source.file.read_into(&mut buffer, wanted, begin)?;
        if self.first_whole
            && let Ok(first) = BatchHeader::parse(&buffer)
            && first.total_bytes() > buffer.len()
            && first.total_bytes() <= left
        {
            let missing = first.total_bytes() - buffer.len();
            let at = begin + buffer.len() as u64;
            source.file.read_into(&mut buffer, missing, at)?;
        }
        let whole = self.whole_batches(&buffer);
        buffer.truncate(whole);
        Ok(Some(Bytes::from(buffer)))
    }

    /// The first batch from `position` on that reaches beyond `from`.
    fn scan(&self, source: &Source<D>, position: u64) -> io::Result<Option<u64>> {
        let mut scan = HeaderScan::new(&*source.file, position, source.limit);
        while let Some((position, header)) = scan.next()? {
            if header.next_offset() > self.from {
                return Ok(Some(position));
            }
        }
        Ok(None)
    }

    /// Length of the batches at the beginning of `buffer` that are whole and end at or below the bound.
    fn whole_batches(&self, buffer: &[u8]) -> usize {
        let mut whole = 0;
        while let Ok(header) = BatchHeader::parse(&buffer[whole..]) {
            let end = whole + header.total_bytes();
            if end > buffer.len() || header.next_offset() > self.bound {
                break;
            }
            whole = end;
        }
        whole
    }
}
