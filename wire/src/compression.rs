//! The codecs of record batches: what the three bits mean, and streams that read and write them.
//!
//! Reading never trusts a length in the data: it is a stream with a fixed working set ([`Decompressed`]).

use std::io::{self, BufRead, BufReader, Read, Write};

/// How the records of a batch are compressed: bits 0–2 of the attributes (R32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Codec {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    /// `None` for the bits 5–7, which no codec has.
    pub const fn from_attributes(attributes: i16) -> Option<Self> {
        match attributes & 0b111 {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The bits of the attributes.
    pub const fn bits(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// The name in `compression.type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// A snappy block grows by at most this factor: its densest element, a copy, makes 64 bytes of 3.
const SNAPPY_GROWTH_MAX: usize = 22;
/// What the Java clients put before snappy data: magic, version, oldest version that can read it.
const XERIAL_MAGIC: &[u8; 8] = b"\x82SNAPPY\0";
const XERIAL_HEADER_BYTES: usize = 16;
const LZ4_FRAME_MAGIC: &[u8; 4] = &[0x04, 0x22, 0x4d, 0x18];

/// A stream of the bytes that some compressed data stands for.
///
/// The working set does not depend on lengths that the data claims: gzip 40 KiB, lz4 at most 13 MiB (blocks of 4 MiB),
/// zstd the window of the frame (at most 128 MiB of address space, touched only as far as data comes out), snappy
/// 22 times the compressed size.
pub struct Decompressed<'a>(Stream<'a>);

enum Stream<'a> {
    Plain(&'a [u8]),
    Gzip(Box<BufReader<flate2::bufread::MultiGzDecoder<&'a [u8]>>>),
    Snappy(Snappy<'a>),
    Lz4(Box<Lz4<'a>>),
    Zstd(Box<BufReader<zstd::stream::read::Decoder<'static, &'a [u8]>>>),
}

impl<'a> Decompressed<'a> {
    /// Fails when the data does not even begin like the codec's.
    pub fn new(codec: Codec, data: &'a [u8]) -> io::Result<Self> {
        Ok(Self(match codec {
            Codec::None => Stream::Plain(data),
            Codec::Gzip => {
                Stream::Gzip(Box::new(BufReader::with_capacity(32 << 10, flate2::bufread::MultiGzDecoder::new(data))))
            }
            Codec::Snappy => Stream::Snappy(Snappy::new(data)),
            Codec::Lz4 => Stream::Lz4(Box::new(Lz4::new(data)?)),
            Codec::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(data)?;
                Stream::Zstd(Box::new(BufReader::with_capacity(64 << 10, decoder)))
            }
        }))
    }
}

impl Read for Decompressed<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = {
            let available = self.fill_buf()?;
            let bytes = available.len().min(out.len());
            out[..bytes].copy_from_slice(&available[..bytes]);
            bytes
        };
        self.consume(bytes);
        Ok(bytes)
    }
}

impl BufRead for Decompressed<'_> {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match &mut self.0 {
            Stream::Plain(data) => Ok(data),
            Stream::Gzip(stream) => stream.fill_buf(),
            Stream::Snappy(stream) => stream.fill_buf(),
            Stream::Lz4(stream) => stream.fill_buf(),
            Stream::Zstd(stream) => stream.fill_buf(),
        }
    }

    #[inline]
    fn consume(&mut self, bytes: usize) {
        match &mut self.0 {
            Stream::Plain(data) => *data = &data[bytes..],
            Stream::Gzip(stream) => stream.consume(bytes),
            Stream::Snappy(stream) => stream.position += bytes,
            Stream::Lz4(stream) => stream.decoder.consume(bytes),
            Stream::Zstd(stream) => stream.consume(bytes),
        }
    }
}

/// One lz4 frame with its end mark, and nothing behind it: all that Kafka's readers accept.
struct Lz4<'a> {
    decoder: lz4_flex::frame::FrameDecoder<&'a [u8]>,
    ended: bool,
}

impl<'a> Lz4<'a> {
    fn new(data: &'a [u8]) -> io::Result<Self> {
        check_lz4_blocks(data)?;
        Ok(Self { decoder: lz4_flex::frame::FrameDecoder::new(data), ended: false })
    }

    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        // Once the frame has ended the decoder must not be asked again: it would begin another one.
        if !self.ended && self.decoder.fill_buf()?.is_empty() {
            self.ended = true;
        }
        if self.ended { Ok(&[]) } else { self.decoder.fill_buf() }
    }
}

/// Walks the block lengths of an lz4 frame to its end mark, which must be the end of the data. The decoder itself takes
/// a frame that is cut between blocks for a whole one, and reads on behind its end.
fn check_lz4_blocks(data: &[u8]) -> io::Result<()> {
    const SHORT: &str = "lz4: shorter than its frame";
    let [m0, m1, m2, m3, flags, ..] = *data else { return Err(broken("lz4: shorter than a frame header")) };
    if [m0, m1, m2, m3] != *LZ4_FRAME_MAGIC {
        return Err(broken("lz4: does not begin with the magic of a frame"));
    }
    let has = |bit: u8, bytes: usize| if flags & bit != 0 { bytes } else { 0 };
    let (block_checksum, content_checksum) = (has(0x10, 4), has(0x04, 4));
    // Magic, flags, block size; content size and dictionary where flagged; checksum of the header.
    let mut at = 6 + has(0x08, 8) + has(0x01, 4) + 1;
    loop {
        let length = data.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or_else(|| broken(SHORT))?;
        let length = u32::from_le_bytes(*length);
        at += 4;
        if length == 0 {
            break;
        }
        // The highest bit says that the block is not compressed.
        at += (length & 0x7fff_ffff) as usize + block_checksum;
    }
    match (at + content_checksum).cmp(&data.len()) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(broken(SHORT)),
        std::cmp::Ordering::Less => Err(broken("lz4: bytes behind the end of the frame")),
    }
}

/// Snappy as Kafka's clients write it: raw (librdkafka), or in the chunks of the xerial library (Java).
struct Snappy<'a> {
    rest: &'a [u8],
    in_chunks: bool,
    block: Vec<u8>,
    position: usize,
}

impl<'a> Snappy<'a> {
    fn new(data: &'a [u8]) -> Self {
        let in_chunks = data.len() >= XERIAL_HEADER_BYTES && data.starts_with(XERIAL_MAGIC);
        let rest = if in_chunks { &data[XERIAL_HEADER_BYTES..] } else { data };
        Self { rest, in_chunks, block: Vec::new(), position: 0 }
    }

    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.position >= self.block.len() && !self.rest.is_empty() {
            let chunk = self.next_chunk()?;
            let claimed = snap::raw::decompress_len(chunk).map_err(|_| broken("snappy: no length"))?;
            if claimed > chunk.len().saturating_mul(SNAPPY_GROWTH_MAX) {
                return Err(broken("snappy: claims more than its bytes can stand for"));
            }
            self.block.resize(claimed, 0);
            self.position = 0;
            snap::raw::Decoder::new().decompress(chunk, &mut self.block).map_err(|_| broken("snappy: broken block"))?;
        }
        Ok(&self.block[self.position.min(self.block.len())..])
    }

    fn next_chunk(&mut self) -> io::Result<&'a [u8]> {
        if !self.in_chunks {
            return Ok(std::mem::take(&mut self.rest));
        }
        // Concatenated streams repeat the header (negative as a length, so it cannot be taken for one).
        if self.rest.len() >= XERIAL_HEADER_BYTES && self.rest.starts_with(XERIAL_MAGIC) {
            self.rest = &self.rest[XERIAL_HEADER_BYTES..];
        }
        let Some((length, after)) = self.rest.split_first_chunk::<4>() else {
            return Err(broken("snappy: torn chunk length"));
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > after.len() {
            return Err(broken("snappy: chunk longer than the data"));
        }
        let (chunk, rest) = after.split_at(length);
        self.rest = rest;
        Ok(chunk)
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Compresses as the Java clients do (snappy: one xerial chunk). For builders, tests and tools.
pub fn compress(codec: Codec, data: &[u8]) -> Vec<u8> {
    const NO_FAULT: &str = "writing to a vector has no way to fail";
    match codec {
        Codec::None => data.to_vec(),
        Codec::Gzip => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            writer.write_all(data).expect(NO_FAULT);
            writer.finish().expect(NO_FAULT)
        }
        Codec::Snappy => {
            let block = snap::raw::Encoder::new().compress_vec(data).expect("blocks are far below snappy's 4 GiB");
            let mut out = Vec::with_capacity(XERIAL_HEADER_BYTES + 4 + block.len());
            out.extend_from_slice(XERIAL_MAGIC);
            out.extend_from_slice(&1u32.to_be_bytes());
            out.extend_from_slice(&1u32.to_be_bytes());
            out.extend_from_slice(&(block.len() as u32).to_be_bytes());
            out.extend_from_slice(&block);
            out
        }
        Codec::Lz4 => {
            let frame = lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut writer = lz4_flex::frame::FrameEncoder::with_frame_info(frame, Vec::new());
            writer.write_all(data).expect(NO_FAULT);
            writer.finish().expect(NO_FAULT)
        }
        Codec::Zstd => zstd::stream::encode_all(data, 0).expect(NO_FAULT),
    }
}
