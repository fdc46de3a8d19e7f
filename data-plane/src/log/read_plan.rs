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

use super::scan::{HeaderScan, check_crc};
use super::segment::ClosedIndex;
use crate::disk::{Disk, DiskFile};
use crate::log_view::EpochHistory;

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
    /// Where the segment begins, and where the next one does or the log ends.
    pub base: Offset,
    pub end: Offset,
}

impl<D: Disk> Source<D> {
    /// Whether what is read may have been written long ago, and may have rotted since.
    pub fn is_from_disk(&self) -> bool {
        !matches!(self.begin, Begin::At(_))
    }
}

/// A granted read of whole batches.
pub struct ReadPlan<D: Disk> {
    /// The segment that holds the offset. Empty: nothing to read.
    pub(super) source: Option<Source<D>>,
    /// Whose batches they are to be; only for what may have rotted.
    pub(super) epochs: Option<EpochHistory>,
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
        self.source.is_none()
    }

    /// The most bytes that are wanted; a first batch that is larger still comes whole where that was asked for.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Reads the batches. Empty where none fits `bytes_max`, or if the log was truncated in between: ask again.
    ///
    /// What this process did not append a moment ago is checked, header and CRC: no damaged batch is ever handed out.
    ///
    /// # Errors
    /// `InvalidData`, and where it lies, for a damaged batch (P7); whatever else the disk says.
    pub fn read(&self) -> io::Result<Bytes> {
        let read = self.source.as_ref().map_or_else(
            || Ok(Bytes::new()),
            |source| {
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("{:020}.log: {error}", source.base.0));
                self.read_source(source).map_err(named)
            },
        );
        // Pairs with the log's count before it touches the file; what an old plan could not read is no error either.
        if self.truncations_now.load(Ordering::SeqCst) == self.truncations { read } else { Ok(Bytes::new()) }
    }

    fn read_source(&self, source: &Source<D>) -> io::Result<Bytes> {
        let begin = match &source.begin {
            Begin::At(position) => Some(*position),
            Begin::ScanFrom(position) => self.find(source, *position)?,
            Begin::Look(index) => self.find(source, u64::from(index.floor(self.from)?))?,
        };
        // A segment ends where the next one begins: it is never left with a gap.
        let begin = begin.ok_or_else(|| {
            let text = format!("segment {} ends before offset {}: its end is missing", source.base, self.from);
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
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
        let whole =
            if source.is_from_disk() { self.sound_batches(&buffer, begin, left)? } else { self.whole_batches(&buffer) };
        buffer.truncate(whole);
        Ok(Bytes::from(buffer))
    }

    /// The first batch that reaches beyond `from`. `hint` is where to begin to look, if it is what it should be: the batch
    /// found from there holds `from` and ends where the next one begins. Else all headers of the segment are walked through.
    fn find(&self, source: &Source<D>, hint: u64) -> io::Result<Option<u64>> {
        let mut scan = HeaderScan::new(&*source.file, hint, source.limit);
        let near = loop {
            match scan.next() {
                Ok(Some((_, header))) if header.next_offset() <= self.from => {}
                Ok(Some((position, header))) if header.base_offset <= self.from.0 => {
                    let next =
                        scan.next().ok().map(|next| next.map_or(source.end, |(_, next)| Offset(next.base_offset)));
                    break (next == Some(header.next_offset())).then_some(position);
                }
                Ok(_) => break None,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => break None,
                Err(error) => return Err(error),
            }
        };
        if near.is_some() && hint > 0 { Ok(near) } else { self.find_from_start(source) }
    }

    /// Offsets never fall, and may leave gaps.
    fn find_from_start(&self, source: &Source<D>) -> io::Result<Option<u64>> {
        let mut scan = HeaderScan::new(&*source.file, 0, source.limit);
        let mut end = source.base;
        while let Some((position, header)) = scan.next()? {
            if header.base_offset < end.0 || header.last_offset_delta < 0 {
                return Err(damaged(position, &format!("it begins at offset {}, behind {end}", header.base_offset)));
            }
            let follows = header.base_offset == end.0;
            end = header.next_offset();
            if end > self.from {
                if follows {
                    return Ok(Some(position));
                }
                let next = scan.next()?.map_or(source.end, |(_, next)| Offset(next.base_offset));
                if end > next {
                    return Err(damaged(position, &format!("it ends at offset {end}, the next one begins at {next}")));
                }
                return Ok(Some(position));
            }
        }
        Ok(None)
    }

    /// As [`Self::whole_batches`], of batches that begin at `begin` of a file with `left` bytes from there on: each is what
    /// its CRC, its offsets and its epoch say. Ends before a gap, and before a damaged batch unless that is the first.
    fn sound_batches(&self, buffer: &[u8], begin: u64, left: usize) -> io::Result<usize> {
        let mut whole = 0;
        let mut expected = None;
        while buffer.len() - whole >= HEADER_BYTES {
            let rest = &buffer[whole..];
            let fault = match self.fault(rest, left - whole, expected) {
                Ok(header) => {
                    let total = header.total_bytes();
                    if total > rest.len() || header.next_offset() > self.bound {
                        break;
                    }
                    whole += total;
                    expected = Some(header.next_offset());
                    continue;
                }
                Err(fault) => fault,
            };
            if whole == 0 {
                return Err(damaged(begin, &fault));
            }
            break;
        }
        Ok(whole)
    }

    /// The header of the batch at the beginning of `rest`, or what is wrong with it. One that is not whole is not checked
    /// any further.
    fn fault(&self, rest: &[u8], left: usize, expected: Option<Offset>) -> Result<BatchHeader, String> {
        let header = BatchHeader::parse(rest).map_err(|error| error.to_string())?;
        let (base, total) = (Offset(header.base_offset), header.total_bytes());
        if total > left {
            return Err(format!("a batch of {total} bytes, {left} are left of the segment"));
        }
        if expected.is_some_and(|expected| base != expected) {
            return Err(format!("a gap before offset {base}"));
        }
        let Some(batch) = rest.get(..total) else { return Ok(header) };
        check_crc(batch, &header)?;
        let known = self.epochs.as_ref().and_then(|epochs| epochs.epoch_at(base));
        if known.is_some_and(|known| header.leader_epoch != known.0) {
            return Err(format!("it is of leader epoch {}, its offset {base} of {known:?}", header.leader_epoch));
        }
        Ok(header)
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

fn damaged(position: u64, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the batch at position {position} is damaged: {why}"))
}
