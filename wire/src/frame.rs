//! Length-prefixed frames: push bytes as they arrive, pop whole frames as slices of the read buffer.
//!
//! A frame is `INT32` length, then that many bytes. What is popped shares the read buffer and keeps all of it alive
//! (up to [`READ_BYTES_MAX`], or the frame's own size if larger): let go of it before any long wait.

use bytes::{Bytes, BytesMut};

use crate::api::ApiKey;

/// How much a busy connection reads at once.
pub const READ_BYTES_MAX: usize = 256 << 10;
/// How much a quiet one does.
const READ_BYTES_MIN: usize = 16 << 10;
/// A frame as large as one that came whole gets its room at once, up to this size; beyond, room grows with what has
/// really arrived.
const TRUSTED_FRAME_BYTES_MAX: usize = 2 << 20;
const PREFIX_BYTES: usize = 4;
/// A correlation id: nothing shorter is an answer, let alone a request.
const FRAME_BYTES_MIN: usize = 4;

/// How large frames may be, in bytes behind the length field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// Produce requests: `socket.request.max.bytes`.
    pub produce_bytes: usize,
    /// Everything else.
    pub other_bytes: usize,
}

impl FrameLimits {
    /// Until a client has proved who it is, 1 MiB for everything.
    pub const BEFORE_AUTHENTICATION: Self = Self { produce_bytes: 1 << 20, other_bytes: 1 << 20 };
    /// `socket.request.max.bytes` of 100 MiB for Produce, 1 MiB for everything else.
    pub const DEFAULT: Self = Self { produce_bytes: 100 << 20, other_bytes: 1 << 20 };

    /// One limit for all frames: for the side that reads answers.
    pub const fn same(bytes: usize) -> Self {
        Self { produce_bytes: bytes, other_bytes: bytes }
    }

    fn largest(self) -> usize {
        self.produce_bytes.max(self.other_bytes)
    }

    fn of(self, api_key: i16) -> usize {
        if api_key == ApiKey::Produce.code() { self.produce_bytes } else { self.other_bytes }
    }
}

/// Why a connection cannot go on: where the next frame begins is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes: frames have at least 4; is this a Kafka client?")]
    TooSmall(i32),
    #[error("a frame of {bytes} bytes exceeds the limit of {max} (socket.request.max.bytes for Produce, 1 MiB else)")]
    TooLarge { bytes: usize, max: usize },
    #[error("the connection ended {missing} bytes before the end of a frame")]
    Truncated { missing: usize },
}

/// The bytes of a connection that are not yet popped.
#[derive(Debug)]
pub struct FrameBuffer {
    buffer: BytesMut,
    limits: FrameLimits,
    read_bytes: usize,
    /// A length up to this is believed: as much as one read may take, or as the largest frame that came whole.
    trusted: usize,
    lent: bool,
}

impl FrameBuffer {
    /// Holds no memory until [`FrameBuffer::read_space`].
    pub fn new(limits: FrameLimits) -> Self {
        Self { buffer: BytesMut::new(), limits, read_bytes: READ_BYTES_MIN, trusted: READ_BYTES_MAX, lent: false }
    }

    /// For frames popped from now on.
    pub fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }

    /// The buffer with room to read into. Only append to it.
    ///
    /// Room is 16 KiB at first and 256 KiB once reads fill it. A frame under way gets room for all of it up to 256 KiB, or
    /// up to the largest that came whole before, at most 2 MiB; beyond that twice what has arrived, so that a length alone
    /// claims no memory.
    pub fn read_space(&mut self) -> &mut BytesMut {
        self.note_fullness();
        let spare = self.buffer.capacity() - self.buffer.len();
        match self.missing() {
            Some(missing) => {
                let trusted = missing.min(self.trusted.max(self.buffer.len()));
                if spare < trusted {
                    self.buffer.reserve(trusted.max(self.read_bytes));
                }
            }
            None if spare < self.read_bytes / 4 => self.buffer.reserve(self.read_bytes),
            None => {}
        }
        self.lent = true;
        &mut self.buffer
    }

    /// Appends a copy of `bytes`.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame without its length field; `None`: more bytes are needed.
    ///
    /// A size is judged as soon as it is known, a Produce request by its own limit once its key is there. After an
    /// error the connection is of no more use.
    pub fn pop(&mut self) -> Result<Option<Bytes>, FrameError> {
        self.note_fullness();
        let Some(prefix) = self.buffer.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let stated = i32::from_be_bytes(*prefix);
        let bytes = usize::try_from(stated).ok().filter(|bytes| *bytes >= FRAME_BYTES_MIN);
        let bytes = bytes.ok_or(FrameError::TooSmall(stated))?;
        let max = match self.buffer.get(PREFIX_BYTES..PREFIX_BYTES + 2) {
            Some(key) => self.limits.of(i16::from_be_bytes([key[0], key[1]])),
            None => self.limits.largest(),
        };
        if bytes > max {
            return Err(FrameError::TooLarge { bytes, max });
        }
        if self.buffer.len() < PREFIX_BYTES + bytes {
            return Ok(None);
        }
        self.trusted = self.trusted.max(bytes.min(TRUSTED_FRAME_BYTES_MAX));
        let mut frame = self.buffer.split_to(PREFIX_BYTES + bytes).freeze();
        let _prefix = frame.split_to(PREFIX_BYTES);
        Ok(Some(frame))
    }

    /// What the end of the stream means: fine between frames, `Truncated` within one.
    pub fn end(&self) -> Result<(), FrameError> {
        match self.buffer.len() {
            0 => Ok(()),
            have => Err(FrameError::Truncated { missing: self.missing().unwrap_or(PREFIX_BYTES - have.min(3)) }),
        }
    }

    /// Bytes that have arrived and are not popped.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Gives the room back; for a connection that has been quiet for a while. Does nothing within a frame.
    pub fn shrink(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
            self.read_bytes = READ_BYTES_MIN;
            self.lent = false;
        }
    }

    /// How much of the frame that has begun is not here; `None` before its length is.
    fn missing(&self) -> Option<usize> {
        let prefix = self.buffer.first_chunk::<PREFIX_BYTES>()?;
        let bytes = usize::try_from(i32::from_be_bytes(*prefix)).ok()?;
        Some((PREFIX_BYTES + bytes).saturating_sub(self.buffer.len()))
    }

    /// A read that filled all its room makes the next one larger.
    fn note_fullness(&mut self) {
        if std::mem::take(&mut self.lent) && self.buffer.len() == self.buffer.capacity() {
            self.read_bytes = (self.read_bytes * 4).min(READ_BYTES_MAX);
        }
    }
}

/// A frame to be sent, length field included, as buffers for one vectored write: small parts written for it, and records
/// as they lie elsewhere in memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chunks(Vec<Bytes>);

impl Chunks {
    /// Never an empty buffer among them.
    pub fn as_slice(&self) -> &[Bytes] {
        &self.0
    }

    pub fn into_vec(self) -> Vec<Bytes> {
        self.0
    }

    /// Bytes of all buffers together.
    pub fn byte_len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// One buffer; copies when there are several. For tests and small messages.
    pub fn to_bytes(&self) -> Bytes {
        match self.0.as_slice() {
            [one] => one.clone(),
            many => {
                let mut all = BytesMut::with_capacity(self.byte_len());
                many.iter().for_each(|chunk| all.extend_from_slice(chunk));
                all.freeze()
            }
        }
    }
}

impl IntoIterator for Chunks {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Collects the buffers of one frame: small parts are written to `buffer`, records are remembered with their place.
pub(crate) struct ChunkWriter {
    pub(crate) buffer: BytesMut,
    /// Each lies before the byte of `buffer` that is counted here.
    shared: Vec<(usize, Bytes)>,
}

impl ChunkWriter {
    /// Begins with room for the length field.
    pub(crate) fn new(small_bytes: usize, shared_chunks: usize) -> Self {
        let mut buffer = BytesMut::with_capacity(small_bytes.max(64));
        buffer.extend_from_slice(&[0; PREFIX_BYTES]);
        Self { buffer, shared: Vec::with_capacity(shared_chunks) }
    }

    /// Puts bytes into the frame without copying them.
    pub(crate) fn put_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.shared.push((self.buffer.len(), bytes));
        }
    }

    /// Writes the length field. `None`: the frame is longer than the field can say (2 GiB).
    pub(crate) fn finish(mut self) -> Option<Chunks> {
        let shared_bytes: usize = self.shared.iter().map(|(_, bytes)| bytes.len()).sum();
        let bytes = i32::try_from(self.buffer.len() - PREFIX_BYTES + shared_bytes).ok()?;
        self.buffer[..PREFIX_BYTES].copy_from_slice(&bytes.to_be_bytes());
        let small = self.buffer.freeze();
        if self.shared.is_empty() {
            return Some(Chunks(vec![small]));
        }
        let mut chunks = Vec::with_capacity(2 * self.shared.len() + 1);
        let mut written = 0;
        for (at, bytes) in self.shared {
            if written < at {
                chunks.push(small.slice(written..at));
                written = at;
            }
            chunks.push(bytes);
        }
        if written < small.len() {
            chunks.push(small.slice(written..));
        }
        Some(Chunks(chunks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        [&(body.len() as i32).to_be_bytes()[..], body].concat()
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        let bodies: [&[u8]; 3] = [&[0, 3, 0, 1], &[0, 0, 0, 3, 9, 9, 9], &[7; 900]];
        let stream: Vec<u8> = bodies.iter().flat_map(|body| frame(body)).collect();
        for step in [1, 3, 7, 64, stream.len()] {
            let mut frames = FrameBuffer::new(FrameLimits::DEFAULT);
            let mut popped = Vec::new();
            for piece in stream.chunks(step) {
                frames.read_space().extend_from_slice(piece);
                while let Some(frame) = frames.pop().unwrap() {
                    popped.push(frame);
                }
            }
            assert_eq!(popped, bodies);
            assert_eq!(frames.end(), Ok(()));
        }
    }

    #[test]
    fn each_state_has_its_limit_and_produce_has_its_own() {
        let pop = |limits, bytes: &[u8]| {
            let mut frames = FrameBuffer::new(limits);
            frames.push(bytes);
            frames.pop()
        };
        let head = |size: i32, key: i16| [&size.to_be_bytes()[..], &key.to_be_bytes()].concat();
        let too_large = |bytes, max| Err(FrameError::TooLarge { bytes, max });
        let mib = 1 << 20;
        assert_eq!(pop(FrameLimits::DEFAULT, &head(mib + 1, 0)), Ok(None));
        assert_eq!(pop(FrameLimits::DEFAULT, &head(mib + 1, 1)), too_large(mib as usize + 1, mib as usize));
        assert_eq!(pop(FrameLimits::DEFAULT, &head(mib, 1)), Ok(None));
        assert_eq!(pop(FrameLimits::DEFAULT, &(100 * mib + 1).to_be_bytes()), too_large(104_857_601, 104_857_600));
        assert_eq!(
            pop(FrameLimits::BEFORE_AUTHENTICATION, &head(mib + 1, 0)),
            too_large(mib as usize + 1, mib as usize)
        );
        assert_eq!(pop(FrameLimits::DEFAULT, &(-1i32).to_be_bytes()), Err(FrameError::TooSmall(-1)));
        assert_eq!(pop(FrameLimits::DEFAULT, &3i32.to_be_bytes()), Err(FrameError::TooSmall(3)));
        // "GET " as a length: somebody speaks HTTP.
        assert!(matches!(pop(FrameLimits::DEFAULT, b"GET / HTTP/1.1"), Err(FrameError::TooLarge { .. })));
    }

    #[test]
    fn an_end_within_a_frame_is_told_from_an_end_between_frames() {
        let mut frames = FrameBuffer::new(FrameLimits::DEFAULT);
        frames.push(&frame(&[1; 10])[..9]);
        assert_eq!(frames.pop(), Ok(None));
        assert_eq!(frames.end(), Err(FrameError::Truncated { missing: 5 }));
        frames.push(&[1; 5]);
        assert!(frames.pop().unwrap().is_some());
        assert_eq!(frames.end(), Ok(()));
    }

    #[test]
    fn a_length_alone_claims_little_memory() {
        let mut frames = FrameBuffer::new(FrameLimits::DEFAULT);
        frames.push(&(100i32 << 20).to_be_bytes());
        frames.push(&[0, 0]);
        assert!(frames.read_space().capacity() <= 2 * READ_BYTES_MAX);
    }

    #[test]
    fn a_frame_as_large_as_one_before_gets_its_room_at_once() {
        let mut frames = FrameBuffer::new(FrameLimits::DEFAULT);
        let large = frame(&[0; 1 << 20]);
        for (n, batch) in [&large, &large].into_iter().enumerate() {
            frames.push(&batch[..100]);
            let room = frames.read_space().capacity();
            assert_eq!(room >= batch.len(), n == 1, "{room} for frame {n}");
            frames.push(&batch[100..]);
            assert!(frames.pop().unwrap().is_some());
        }
    }

    #[test]
    fn reads_grow_when_they_fill_their_room_and_popped_frames_are_not_copied() {
        let mut frames = FrameBuffer::new(FrameLimits::DEFAULT);
        let mut room = Vec::new();
        for _ in 0..4 {
            let space = frames.read_space();
            let spare = space.capacity() - space.len();
            room.push(spare);
            let body = vec![0u8; spare - PREFIX_BYTES];
            space.extend_from_slice(&frame(&body));
            let at = frames.buffer.as_ptr() as usize + PREFIX_BYTES;
            assert_eq!(frames.pop().unwrap().unwrap().as_ptr() as usize, at);
        }
        assert!(room[0] >= READ_BYTES_MIN && room[0] < READ_BYTES_MAX);
        assert!(room[3] >= READ_BYTES_MAX);
    }
}
