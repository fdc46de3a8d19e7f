//! Compressed batches: what clients really write is accepted, what no consumer could read is refused (D32).

#![allow(clippy::unwrap_used)] // helpers of tests, too, may fail loudly

use highwater_wire::batch::{BatchError, ClientRules, DECOMPRESSED_BYTES_MAX, HEADER_BYTES, InnerCheck, TimestampRule};
use highwater_wire::compression::compress;
use highwater_wire::{Codec, ErrorCode, RecordBatch, RecordBatchBuilder, Timestamp};
use std::io::Write as _;

const COMPRESSED: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

const RULES: ClientRules = ClientRules {
    batch_bytes_max: 16 << 20,
    keys_required: false,
    timestamps: TimestampRule::ANY_CREATE_TIME,
    inner: InnerCheck::Records,
};

/// 400 records that compress a little, 200 KiB: more than one block of every codec.
fn plain() -> RecordBatch {
    let value: Vec<u8> = (0..512u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    (0..400).fold(RecordBatchBuilder::new(), |batch, i| batch.value(Timestamp(i), &value)).build()
}

/// The batch with its records as `payload` under `codec`, and a length and CRC that fit.
fn with_payload(batch: &RecordBatch, codec: Codec, payload: &[u8]) -> RecordBatch {
    let mut bytes = [&batch.bytes()[..HEADER_BYTES], payload].concat();
    let length = bytes.len() as i32 - 12;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[21..23].copy_from_slice(&codec.bits().to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    RecordBatch::parse(bytes.into()).unwrap()
}

fn accepted(batch: &RecordBatch) {
    batch.validate_from_client(&RULES).unwrap();
    assert!(batch.records().unwrap().map(Result::unwrap).eq(plain().records().unwrap().map(Result::unwrap)));
}

fn refused(batch: &RecordBatch) -> (ErrorCode, BatchError) {
    let error = batch.validate_from_client(&RULES).unwrap_err();
    (ErrorCode::from(&error), error)
}

fn corrupt(batch: &RecordBatch, what: &str) {
    let (code, error) = refused(batch);
    assert_eq!(code, ErrorCode::CorruptMessage, "{what}: {error}");
}

#[test]
fn snappy_is_read_raw_and_in_chunks() {
    let plain = plain();
    let raw = snap::raw::Encoder::new().compress_vec(&plain.payload()).unwrap();
    accepted(&with_payload(&plain, Codec::Snappy, &raw));
    // Java: a header once, then chunks of 32 KiB.
    let mut chunks = compress(Codec::Snappy, b"")[..16].to_vec();
    for chunk in plain.payload().chunks(32 << 10) {
        let chunk = snap::raw::Encoder::new().compress_vec(chunk).unwrap();
        chunks.extend_from_slice(&(chunk.len() as u32).to_be_bytes());
        chunks.extend_from_slice(&chunk);
    }
    accepted(&with_payload(&plain, Codec::Snappy, &chunks));
    corrupt(&with_payload(&plain, Codec::Snappy, &chunks[..chunks.len() - 1]), "a chunk cut short");
    // "These 20 bytes are 4 GiB": refused before a byte is asked for.
    let liar = [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0; 15]].concat();
    corrupt(&with_payload(&plain, Codec::Snappy, &liar), "a length beyond belief");
}

#[test]
fn lz4_is_read_with_linked_blocks_and_checksums() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let plain = plain();
    for mode in [BlockMode::Independent, BlockMode::Linked] {
        for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max4MB] {
            for checksums in [false, true] {
                let info = FrameInfo::new()
                    .block_mode(mode)
                    .block_size(size)
                    .block_checksums(checksums)
                    .content_checksum(checksums)
                    .content_size(checksums.then(|| plain.payload().len() as u64));
                let mut writer = FrameEncoder::with_frame_info(info, Vec::new());
                writer.write_all(&plain.payload()).unwrap();
                let frame = writer.finish().unwrap();
                accepted(&with_payload(&plain, Codec::Lz4, &frame));
                let end = frame.len() - if checksums { 8 } else { 4 };
                corrupt(&with_payload(&plain, Codec::Lz4, &frame[..end]), "no end mark");
                if checksums {
                    let mut wrong = frame.clone();
                    *wrong.last_mut().unwrap() ^= 1;
                    corrupt(&with_payload(&plain, Codec::Lz4, &wrong), "a wrong checksum");
                }
                corrupt(&with_payload(&plain, Codec::Lz4, &[&frame[..], &[0]].concat()), "a byte behind the frame");
                corrupt(&with_payload(&plain, Codec::Lz4, &[&frame[..], &frame[..]].concat()), "a second frame");
            }
        }
    }
}

#[test]
fn gzip_is_read_in_several_members_and_zstd_in_several_frames() {
    let plain = plain();
    let payload = plain.payload();
    let (first, second) = payload.split_at(payload.len() / 2);
    for codec in [Codec::Gzip, Codec::Zstd] {
        let parts = [compress(codec, first), compress(codec, second)].concat();
        accepted(&with_payload(&plain, codec, &parts));
    }
}

#[test]
fn data_that_does_not_decompress_is_corrupt_whatever_its_crc() {
    let plain = plain();
    for codec in COMPRESSED {
        let good = compress(codec, &plain.payload());
        accepted(&with_payload(&plain, codec, &good));
        corrupt(&with_payload(&plain, codec, b"garbage, and not even the magic"), codec.name());
        for keep in [good.len() / 3, good.len() - 1] {
            corrupt(&with_payload(&plain, codec, &good[..keep]), codec.name());
        }
        let mut flipped = good.clone();
        for at in (good.len() / 4..good.len()).step_by(good.len() / 8) {
            flipped[at] ^= 0x55;
        }
        let batch = with_payload(&plain, codec, &flipped);
        // A flipped literal of lz4 or snappy may be within a value, where nobody can tell; lengths cannot all survive.
        if let Err(error) = batch.validate_from_client(&RULES) {
            assert!(matches!(ErrorCode::from(&error), ErrorCode::CorruptMessage | ErrorCode::InvalidRecord), "{error}");
        }
        assert!(matches!(
            refused(&with_payload(&plain, codec, b"")).0,
            ErrorCode::CorruptMessage | ErrorCode::InvalidRecord
        ));
    }
}

#[test]
fn a_small_batch_that_decompresses_without_end_is_too_large() {
    // One record that claims 1 GiB of zeros, in 128 KiB of zstd and less than 2 MiB of gzip.
    let mut head = vec![0xf6, 0xff, 0xff, 0xff, 0x07, 0, 0, 0, 0x01];
    head.extend_from_slice(&[0xe0, 0xff, 0xff, 0xff, 0x07]);
    let one = RecordBatchBuilder::new().value(Timestamp(0), b"").build();
    let mut writer = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    writer.write_all(&head).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..300 {
        writer.write_all(&zeros).unwrap();
    }
    let bomb = writer.finish().unwrap();
    assert!(bomb.len() < 128 << 10);
    let batch = with_payload(&one, Codec::Zstd, &bomb);
    let (code, error) = refused(&batch);
    assert_eq!(
        (code, error),
        (ErrorCode::MessageTooLarge, BatchError::TooLargeDecompressed { max: DECOMPRESSED_BYTES_MAX })
    );
    let read = batch.records().map(|_| ());
    assert_eq!(read, Err(BatchError::TooLargeDecompressed { max: DECOMPRESSED_BYTES_MAX }));
}

#[test]
fn the_envelope_alone_is_enough_for_who_trusts_producers() {
    let rules = ClientRules { inner: InnerCheck::Envelope, ..RULES };
    let garbage = with_payload(&plain(), Codec::Lz4, b"garbage");
    assert_eq!(garbage.validate_from_client(&rules), Ok(garbage));
}
