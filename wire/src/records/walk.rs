//! One pass over the records of a batch that looks at lengths, times and counts and skips everything else.
//!
//! The same walk runs over plain bytes and over a decompressing stream; it never allocates, and each of its loops
//! consumes input or ends.

use std::io::BufRead;

use crate::batch::{BatchError, Codec, DECOMPRESSED_BYTES_MAX};
use crate::compression::Decompressed;

/// What the walk tells of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordSeen {
    /// Position in the batch, from 0; equal to its offset delta.
    pub index: i32,
    pub timestamp: i64,
    pub has_key: bool,
}

/// Why a walk stopped.
enum Fault {
    /// The input ended.
    End,
    Malformed(&'static str),
    Stream(std::io::Error),
    TooLong,
}

/// Walks plain records. Their number must be `count`, their deltas 0, 1, 2…, and nothing may follow.
pub(crate) fn slice(
    data: &[u8],
    count: i32,
    base_timestamp: i64,
    visit: impl FnMut(RecordSeen),
) -> Result<(), BatchError> {
    records(&mut Slice { data, position: 0 }, Codec::None, count, base_timestamp, visit)
}

/// Walks compressed records; stops with `TooLargeDecompressed` at [`DECOMPRESSED_BYTES_MAX`].
pub(crate) fn stream(
    data: Decompressed<'_>,
    codec: Codec,
    count: i32,
    base_timestamp: i64,
    visit: impl FnMut(RecordSeen),
) -> Result<(), BatchError> {
    records(&mut Stream { data, position: 0 }, codec, count, base_timestamp, visit)
}

/// Where a walk reads.
trait Source {
    /// Bytes consumed so far.
    fn position(&self) -> u64;
    fn byte(&mut self) -> Result<u8, Fault>;
    fn skip(&mut self, bytes: u64) -> Result<(), Fault>;
    fn is_at_end(&mut self) -> Result<bool, Fault>;

    /// Passes one record.
    #[inline]
    fn record(&mut self) -> Result<Head, Fault> {
        read_record(self)
    }

    #[inline]
    fn varlong(&mut self) -> Result<i64, Fault> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err(Fault::Malformed("a varlong of more than ten bytes"))
    }

    #[inline]
    fn varint(&mut self) -> Result<i32, Fault> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1) as i32 ^ -((value & 1) as i32));
            }
        }
        Err(Fault::Malformed("a varint of more than five bytes"))
    }
}

fn records<S: Source>(
    source: &mut S,
    codec: Codec,
    count: i32,
    base_timestamp: i64,
    mut visit: impl FnMut(RecordSeen),
) -> Result<(), BatchError> {
    for index in 0..count {
        let name = |fault| match fault {
            Fault::End => BatchError::MalformedRecord { index, count, fault: "the data ends within it" },
            Fault::Malformed(fault) => BatchError::MalformedRecord { index, count, fault },
            Fault::Stream(fault) => BatchError::Decompression { codec: codec.name(), fault: fault.to_string() },
            Fault::TooLong => BatchError::TooLargeDecompressed { max: DECOMPRESSED_BYTES_MAX },
        };
        if source.is_at_end().map_err(name)? {
            return Err(BatchError::RecordsMissing { count, found: index });
        }
        let record = source.record().map_err(name)?;
        if record.offset_delta != index {
            return Err(BatchError::OffsetDelta { index, delta: record.offset_delta });
        }
        let timestamp = base_timestamp.wrapping_add(record.timestamp_delta);
        visit(RecordSeen { index, timestamp, has_key: record.has_key });
    }
    match source.is_at_end() {
        Ok(true) => Ok(()),
        Ok(false) => Err(BatchError::RecordsLeftOver { count }),
        Err(Fault::Stream(fault)) => Err(BatchError::Decompression { codec: codec.name(), fault: fault.to_string() }),
        Err(Fault::End | Fault::Malformed(_) | Fault::TooLong) => Err(BatchError::RecordsLeftOver { count }),
    }
}

struct Head {
    timestamp_delta: i64,
    offset_delta: i32,
    has_key: bool,
}

/// One record: length, attributes, deltas, key, value, headers; the parts must fill the length exactly.
#[inline]
fn read_record<S: Source + ?Sized>(source: &mut S) -> Result<Head, Fault> {
    let length = source.varint()?;
    if length < 0 {
        return Err(Fault::Malformed("its length is negative"));
    }
    let end = source.position() + length as u64;
    source.byte()?; // attributes: no bit of them means anything
    let timestamp_delta = source.varlong()?;
    let offset_delta = source.varint()?;
    let key = source.varint()?;
    field(source, key, end)?;
    let value = source.varint()?;
    field(source, value, end)?;
    let headers = source.varint()?;
    if headers < 0 {
        return Err(Fault::Malformed("its number of headers is negative"));
    }
    for _ in 0..headers {
        let name = source.varint()?;
        if name < 0 {
            return Err(Fault::Malformed("a header has no name"));
        }
        field(source, name, end)?;
        let value = source.varint()?;
        field(source, value, end)?;
    }
    if source.position() != end {
        return Err(Fault::Malformed("its parts do not fill its length"));
    }
    Ok(Head { timestamp_delta, offset_delta, has_key: key >= 0 })
}

/// Skips a key, value or name of `length` bytes (−1: null), which may not pass the end of its record.
#[inline]
fn field<S: Source + ?Sized>(source: &mut S, length: i32, end: u64) -> Result<(), Fault> {
    if length < -1 {
        return Err(Fault::Malformed("a length is below -1"));
    }
    if length <= 0 {
        return if source.position() > end { Err(Fault::Malformed("its parts exceed its length")) } else { Ok(()) };
    }
    if source.position() + length as u64 > end {
        return Err(Fault::Malformed("its parts exceed its length"));
    }
    source.skip(length as u64)
}

struct Slice<'a> {
    data: &'a [u8],
    position: usize,
}

impl Source for Slice<'_> {
    #[inline]
    fn position(&self) -> u64 {
        self.position as u64
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.data.get(self.position).ok_or(Fault::End)?;
        self.position += 1;
        Ok(byte)
    }

    #[inline]
    fn skip(&mut self, bytes: u64) -> Result<(), Fault> {
        if bytes > (self.data.len() - self.position) as u64 {
            return Err(Fault::End);
        }
        self.position += bytes as usize;
        Ok(())
    }

    #[inline]
    fn is_at_end(&mut self) -> Result<bool, Fault> {
        Ok(self.position == self.data.len())
    }
}

struct Stream<'a> {
    data: Decompressed<'a>,
    position: u64,
}

impl Source for Stream<'_> {
    /// Most records lie whole in what is decompressed already: there they are passed as plain bytes. One that goes on
    /// beyond it (`End`) is begun anew, byte by byte.
    #[inline]
    fn record(&mut self) -> Result<Head, Fault> {
        let mut whole = Slice { data: self.data.fill_buf().map_err(Fault::Stream)?, position: 0 };
        match read_record(&mut whole) {
            Err(Fault::End) => read_record(self),
            Err(fault) => Err(fault),
            Ok(head) => {
                let bytes = whole.position;
                self.data.consume(bytes);
                self.position += bytes as u64;
                Ok(head)
            }
        }
    }

    #[inline]
    fn position(&self) -> u64 {
        self.position
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.data.fill_buf().map_err(Fault::Stream)?.first().ok_or(Fault::End)?;
        self.data.consume(1);
        self.position += 1;
        Ok(byte)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Fault> {
        if self.position + bytes > DECOMPRESSED_BYTES_MAX {
            return Err(Fault::TooLong);
        }
        let mut left = bytes;
        while left > 0 {
            let available = self.data.fill_buf().map_err(Fault::Stream)?.len() as u64;
            if available == 0 {
                return Err(Fault::End);
            }
            let now = available.min(left);
            self.data.consume(now as usize);
            left -= now;
        }
        self.position += bytes;
        Ok(())
    }

    #[inline]
    fn is_at_end(&mut self) -> Result<bool, Fault> {
        if self.position > DECOMPRESSED_BYTES_MAX {
            return Err(Fault::TooLong);
        }
        Ok(self.data.fill_buf().map_err(Fault::Stream)?.is_empty())
    }
}
