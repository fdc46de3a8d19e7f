//! Record batches: layout, stamping, walking several of them, and every check that a client's batch must pass.

#![allow(clippy::unwrap_used)] // helpers of tests, too, may fail loudly

use bytes::{Bytes, BytesMut};
use highwater_wire::batch::{
    self, BatchError, BatchIter, ClientRules, HEADER_BYTES, InnerCheck, REPORTED_RECORDS_MAX, TimestampRule,
};
use highwater_wire::{
    Codec, ErrorCode, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Record, RecordBatch, RecordBatchBuilder,
    Timestamp,
};
use kafka_protocol::records::{
    Compression, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

const CODECS: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

const ANYTHING: ClientRules = ClientRules {
    batch_bytes_max: 1_048_588,
    keys_required: false,
    timestamps: TimestampRule::ANY_CREATE_TIME,
    inner: InnerCheck::Records,
};

fn records(count: i64) -> Vec<Record> {
    (0..count)
        .map(|i| {
            let mut record = Record::new(Timestamp(1_000 + i * 3), Some(b"key"), Some(format!("value {i}").as_bytes()));
            record.headers = vec![(Bytes::from_static(b"trace"), Some(Bytes::from_static(b"1"))), (Bytes::new(), None)];
            record
        })
        .collect()
}

fn build(codec: Codec, records: &[Record]) -> RecordBatch {
    records.iter().fold(RecordBatchBuilder::new().codec(codec), RecordBatchBuilder::record).build()
}

/// A batch whose bytes behind the header are replaced, with a length and CRC that fit.
fn with_payload(batch: &RecordBatch, payload: &[u8]) -> RecordBatch {
    let bytes = [&batch.bytes()[..HEADER_BYTES], payload].concat();
    sealed(bytes)
}

/// Writes a right length and CRC.
fn sealed(mut bytes: Vec<u8>) -> RecordBatch {
    let length = bytes.len() as i32 - 12;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    RecordBatch::parse(bytes.into()).unwrap()
}

/// A batch with some bytes of the header replaced.
fn patched(batch: &RecordBatch, at: usize, bytes: &[u8]) -> RecordBatch {
    let mut all = batch.bytes().to_vec();
    all[at..at + bytes.len()].copy_from_slice(bytes);
    sealed(all)
}

fn refused(batch: &RecordBatch) -> (ErrorCode, BatchError) {
    let error = batch.validate_from_client(&ANYTHING).unwrap_err();
    (ErrorCode::from(&error), error)
}

#[test]
fn the_layout_is_that_of_kafka_protocol() {
    let mut theirs = BytesMut::new();
    let record = |offset: i64, value: &'static [u8]| kafka_protocol::records::Record {
        transactional: true,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: 7,
        producer_id: 4_000,
        producer_epoch: 5,
        timestamp_type: TimestampType::Creation,
        offset: 100 + offset,
        sequence: 40 + offset as i32,
        timestamp: 1_700_000_000_000 + offset,
        key: Some(Bytes::from_static(b"key")),
        value: Some(Bytes::from_static(value)),
        headers: [("h".into(), Some(Bytes::from_static(b"v"))), ("n".into(), None)].into_iter().collect(),
    };
    let sent = [record(0, b"first"), record(1, b"second")];
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut theirs, &sent, &options).unwrap();

    let header = |name: &'static str, value: Option<&'static [u8]>| {
        (Bytes::from_static(name.as_bytes()), value.map(Bytes::from_static))
    };
    let ours = [b"first".as_slice(), b"second"].into_iter().zip(0..).fold(
        RecordBatchBuilder::new().stamp(Offset(100), LeaderEpoch(7)).attributes(16).producer(
            ProducerId(4_000),
            ProducerEpoch(5),
            40,
        ),
        |builder, (value, i)| {
            let mut record = Record::new(Timestamp(1_700_000_000_000 + i), Some(b"key"), Some(value));
            record.headers = vec![header("h", Some(b"v")), header("n", None)];
            builder.record(&record)
        },
    );
    let ours = ours.build();
    assert_eq!(ours.bytes(), &theirs.freeze());

    let read = RecordBatchDecoder::decode(&mut ours.bytes().clone()).unwrap();
    assert_eq!(read.records, sent);
    ours.check_crc().unwrap();
    assert!(ours.is_transactional() && !ours.is_control() && !ours.is_log_append_time() && !ours.has_delete_horizon());
    assert_eq!((ours.base_offset(), ours.last_offset(), ours.next_offset()), (Offset(100), Offset(101), Offset(102)));
    assert_eq!((ours.record_count(), ours.offset_count()), (2, 2));
    assert_eq!(ours.leader_epoch(), Some(LeaderEpoch(7)));
    assert_eq!((ours.producer_id(), ours.producer_epoch()), (Some(ProducerId(4_000)), Some(ProducerEpoch(5))));
    assert_eq!((ours.base_sequence(), ours.last_sequence()), (40, 41));
    assert_eq!(ours.max_timestamp(), Timestamp(1_700_000_000_001));
}

#[test]
fn records_read_back_under_every_codec() {
    for codec in CODECS {
        let sent = records(500);
        let batch = build(codec, &sent);
        assert_eq!(batch.codec(), Ok(codec));
        let read: Vec<Record> = batch.records().unwrap().map(Result::unwrap).collect();
        assert_eq!(read.len(), sent.len());
        for (i, (read, sent)) in read.iter().zip(&sent).enumerate() {
            assert_eq!(read.offset, Offset(i as i64));
            assert_eq!((&read.key, &read.value, &read.headers), (&sent.key, &sent.value, &sent.headers));
            assert_eq!(read.timestamp, sent.timestamp);
        }
        assert_eq!(batch.validate_from_client(&ANYTHING), Ok(batch.clone()), "{codec:?}");
    }
}

#[test]
fn stamping_changes_sixteen_bytes_and_leaves_the_crc_right() {
    let batch = build(Codec::Lz4, &records(10));
    let head = batch.stamped_head(Offset(1 << 40), LeaderEpoch(9));
    let vectored = [&head[..], &batch.bytes()[head.len()..]].concat();
    let copied = batch.stamped(Offset(1 << 40), LeaderEpoch(9));
    let mut in_place = batch.bytes().to_vec();
    batch::stamp(&mut in_place, Offset(1 << 40), LeaderEpoch(9));
    assert_eq!(copied.bytes(), &vectored);
    assert_eq!(in_place, vectored);
    let read = RecordBatch::parse(vectored.into()).unwrap();
    assert_eq!(read, copied);
    read.validate_from_leader().unwrap();
    assert_eq!((read.base_offset(), read.leader_epoch()), (Offset(1 << 40), Some(LeaderEpoch(9))));
    assert_eq!((batch.base_offset(), batch.leader_epoch()), (Offset(0), None));
}

#[test]
fn iteration_ends_cleanly_before_an_incomplete_last_batch() {
    let batches: Vec<RecordBatch> =
        (0..3).map(|i| build(CODECS[i], &records(4)).stamped(Offset(4 * i as i64), LeaderEpoch(1))).collect();
    let all: Vec<u8> = batches.iter().flat_map(|batch| batch.bytes().to_vec()).collect();
    let ends: Vec<usize> = batches
        .iter()
        .scan(0, |end, batch| {
            *end += batch.len();
            Some(*end)
        })
        .collect();
    for cut in 0..=all.len() {
        let mut iter = BatchIter::new(Bytes::copy_from_slice(&all[..cut]));
        let read: Vec<RecordBatch> = iter.by_ref().map(Result::unwrap).collect();
        let whole = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(read, batches[..whole], "cut at {cut}");
        let read_bytes = if whole == 0 { 0 } else { ends[whole - 1] };
        assert_eq!(iter.rest().len(), cut - read_bytes);
        assert!(iter.next().is_none());
    }
}

#[test]
fn iteration_stops_at_what_is_no_batch() {
    let good = build(Codec::None, &records(2));
    let mut old_magic = good.bytes().to_vec();
    old_magic[16] = 1;
    let mut bad_length = good.bytes().to_vec();
    bad_length[8..12].copy_from_slice(&48i32.to_be_bytes());
    for (bad, error) in [(old_magic, BatchError::Magic(1)), (bad_length, BatchError::LengthField(48))] {
        let mut iter = BatchIter::new([good.bytes(), &bad[..]].concat().into());
        assert_eq!(iter.next(), Some(Ok(good.clone())));
        assert_eq!(iter.next(), Some(Err(error)));
        assert_eq!(iter.next(), None);
    }
}

#[test]
fn a_produce_must_carry_exactly_one_batch_of_magic_2() {
    let good = build(Codec::None, &records(2)).into_bytes();
    let code = |records: Option<Bytes>| ErrorCode::from(&RecordBatch::from_produce(records, 9).unwrap_err());
    assert_eq!(code(None), ErrorCode::InvalidRecord);
    assert_eq!(code(Some(Bytes::new())), ErrorCode::InvalidRecord);
    assert_eq!(code(Some([&good[..], &good[..]].concat().into())), ErrorCode::InvalidRecord);
    assert_eq!(code(Some(good.slice(..good.len() - 1))), ErrorCode::InvalidRecord);
    assert_eq!(code(Some(good.slice(..10))), ErrorCode::InvalidRecord);
    for magic in [0, 1, 3] {
        let mut bytes = good.to_vec();
        bytes[16] = magic;
        assert_eq!(RecordBatch::from_produce(Some(bytes.into()), 9), Err(BatchError::Magic(magic as i8)));
    }
    let mut short = good.to_vec();
    short[8..12].copy_from_slice(&10i32.to_be_bytes());
    assert_eq!(code(Some(short.into())), ErrorCode::CorruptMessage);

    let zstd = build(Codec::Zstd, &records(2)).into_bytes();
    let too_old = RecordBatch::from_produce(Some(zstd.clone()), 6).unwrap_err();
    assert_eq!(ErrorCode::from(&too_old), ErrorCode::UnsupportedCompressionType);
    assert!(RecordBatch::from_produce(Some(zstd), 7).is_ok());
    for bits in 5..8 {
        let mut bytes = good.to_vec();
        bytes[22] = bits;
        assert_eq!(code(Some(bytes.into())), ErrorCode::UnsupportedCompressionType);
    }
}

#[test]
fn each_fault_of_a_header_has_its_error() {
    let good = build(Codec::None, &records(3));
    let code = |at, bytes: &[u8]| refused(&patched(&good, at, bytes)).0;
    assert_eq!(code(0, &1i64.to_be_bytes()), ErrorCode::InvalidRecord, "base offset");
    assert_eq!(code(23, &(-1i32).to_be_bytes()), ErrorCode::InvalidRecord, "last offset delta");
    assert_eq!(code(23, &3i32.to_be_bytes()), ErrorCode::InvalidRecord, "delta and count differ");
    assert_eq!(code(57, &0i32.to_be_bytes()), ErrorCode::InvalidRecord, "count");
    assert_eq!(code(57, &(-3i32).to_be_bytes()), ErrorCode::InvalidRecord, "count");
    assert_eq!(code(57, &i32::MIN.to_be_bytes()), ErrorCode::InvalidRecord, "count");
    assert_eq!(code(21, &32i16.to_be_bytes()), ErrorCode::InvalidRecord, "control");
    assert_eq!(code(43, &7i64.to_be_bytes()), ErrorCode::InvalidRecord, "producer id without epoch and sequence");

    let mut flipped = good.bytes().to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    let flipped = RecordBatch::parse(flipped.into()).unwrap();
    assert!(matches!(refused(&flipped), (ErrorCode::CorruptMessage, BatchError::Crc { .. })));
    assert!(matches!(flipped.validate_from_leader(), Err(BatchError::Crc { .. })));

    let tight = ClientRules { batch_bytes_max: good.len() - 1, ..ANYTHING };
    let too_large = good.validate_from_client(&tight).unwrap_err();
    assert_eq!(ErrorCode::from(&too_large), ErrorCode::MessageTooLarge);
    let exact = ClientRules { batch_bytes_max: good.len(), ..ANYTHING };
    assert!(good.validate_from_client(&exact).is_ok());
}

#[test]
fn a_batch_from_a_leader_may_have_gaps_but_no_impossible_counts() {
    let compacted = RecordBatchBuilder::new().value(Timestamp(1), b"a").gap(3).value(Timestamp(2), b"b").gap(2).build();
    compacted.validate_from_leader().unwrap();
    assert_eq!((compacted.record_count(), compacted.last_offset_delta()), (2, 6));
    let offsets: Vec<i64> = compacted.records().unwrap().map(|record| record.unwrap().offset.0).collect();
    assert_eq!(offsets, [0, 4]);
    assert_eq!(refused(&compacted).0, ErrorCode::InvalidRecord);
    // Compaction keeps an empty batch for the producer state in it.
    patched(&compacted, 57, &0i32.to_be_bytes()).validate_from_leader().unwrap();
    for (at, bytes) in [(57, 8i32.to_be_bytes()), (57, (-1i32).to_be_bytes()), (23, (-1i32).to_be_bytes())] {
        assert!(patched(&compacted, at, &bytes).validate_from_leader().is_err());
    }
    for base in [-1, i64::MAX - 6, i64::MAX] {
        assert!(patched(&compacted, 0, &base.to_be_bytes()).validate_from_leader().is_err(), "base {base}");
    }
    patched(&compacted, 0, &(i64::MAX - 7).to_be_bytes()).validate_from_leader().unwrap();
}

#[test]
fn records_that_do_not_match_the_header_are_refused_under_every_codec() {
    let three = records(3);
    for codec in CODECS {
        let good = build(codec, &three);
        let claims = |count: i32| {
            let batch = patched(&good, 23, &(count - 1).to_be_bytes());
            patched(&batch, 57, &count.to_be_bytes())
        };
        assert!(matches!(refused(&claims(4)), (ErrorCode::InvalidRecord, BatchError::RecordsMissing { found: 3, .. })));
        assert!(matches!(refused(&claims(2)), (ErrorCode::InvalidRecord, BatchError::RecordsLeftOver { .. })));
        assert!(matches!(refused(&claims(i32::MAX)), (ErrorCode::InvalidRecord, BatchError::RecordsMissing { .. })));

        // Two records, the second with delta 2: compacted, and nothing a producer sends.
        let gap = RecordBatchBuilder::new().codec(codec).value(Timestamp(1), b"a").gap(1).value(Timestamp(1), b"b");
        let gap = patched(&gap.build(), 23, &1i32.to_be_bytes());
        assert!(matches!(refused(&gap), (ErrorCode::InvalidRecord, BatchError::OffsetDelta { index: 1, delta: 2 })));
    }
}

#[test]
fn records_whose_lengths_do_not_add_up_are_corrupt() {
    // length, attributes, time delta, offset delta, key, value, headers; numbers are zigzag: 0x0c is 6, 0x01 is -1.
    let good = [0x0c, 0, 0, 0, 0x01, 0x01, 0];
    let one = build(Codec::None, &records(1));
    assert!(with_payload(&one, &good).validate_from_client(&ANYTHING).is_ok());
    let bad: [&[u8]; 9] = [
        &[0x0e, 0, 0, 0, 0x01, 0x01, 0],                // the record is shorter than its length
        &[0x0a, 0, 0, 0, 0x01, 0x01, 0],                // and longer
        &[0x01, 0, 0, 0, 0x01, 0x01, 0],                // a negative length
        &[0x0c, 0, 0, 0, 0x03, 0x01, 0],                // a key of length -2
        &[0x0c, 0, 0, 0, 0x40, 0x01, 0],                // a key that passes the end
        &[0x0c, 0, 0, 0, 0x01, 0x01, 0x01],             // -1 headers
        &[0x10, 0, 0, 0, 0x01, 0x01, 0x02, 0x01, 0x01], // a header without a name
        &[0x0c, 0, 0, 0, 0x01, 0x01],                   // the data ends within it
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x01, 0x01], // a length that never ends
    ];
    for payload in bad {
        for codec in [Codec::None, Codec::Lz4] {
            let batch = build(codec, &records(1));
            let batch = match codec {
                Codec::None => with_payload(&batch, payload),
                _ => with_payload(&batch, &highwater_wire::compression::compress(codec, payload)),
            };
            let (code, error) = refused(&batch);
            assert_eq!(code, ErrorCode::CorruptMessage, "{payload:x?}: {error}");
        }
    }
    let huge_count = [0x14, 0, 0, 0, 0x01, 0x01, 0xfe, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(refused(&with_payload(&one, &huge_count)).0, ErrorCode::CorruptMessage);
}

#[test]
fn a_topic_with_compaction_needs_keys() {
    let rules = ClientRules { keys_required: true, ..ANYTHING };
    for codec in CODECS {
        let mut some = records(4);
        (some[1].key, some[3].key) = (None, None);
        let error = build(codec, &some).validate_from_client(&rules).unwrap_err();
        assert_eq!((ErrorCode::from(&error), error.record_indexes()), (ErrorCode::InvalidRecord, [1, 3].as_slice()));
        assert!(build(codec, &records(4)).validate_from_client(&rules).is_ok());
    }
    let none: Vec<Record> = (0..1_000).map(|_| Record::new(Timestamp(1), None, Some(b"v"))).collect();
    let error = build(Codec::None, &none).validate_from_client(&rules).unwrap_err();
    assert_eq!(error.record_indexes().len(), REPORTED_RECORDS_MAX);
}

#[test]
fn times_outside_the_bounds_are_refused_and_named() {
    let timestamps = TimestampRule::CreateTime { now: Timestamp(10_000), before_max_ms: 500, after_max_ms: 100 };
    let rules = ClientRules { timestamps, ..ANYTHING };
    let at = |times: &[i64]| {
        let records: Vec<Record> = times.iter().map(|t| Record::new(Timestamp(*t), Some(b"k"), None)).collect();
        build(Codec::None, &records).validate_from_client(&rules)
    };
    assert!(at(&[10_000, 9_500, 10_100, -1]).is_ok());
    let error = at(&[10_000, 9_499, 10_101]).unwrap_err();
    assert_eq!((ErrorCode::from(&error), error.record_indexes()), (ErrorCode::InvalidTimestamp, [1, 2].as_slice()));
    // Limits of u64::MAX and times at the ends of i64 do not overflow.
    let records = [Record::new(Timestamp(i64::MAX), None, None), Record::new(Timestamp(i64::MIN), None, None)];
    assert!(build(Codec::None, &records).validate_from_client(&ANYTHING).is_ok());
    // A time fault outweighs a missing key (R37).
    let both = ClientRules { keys_required: true, ..rules };
    let late = build(Codec::None, &[Record::new(Timestamp(1), None, None)]);
    assert_eq!(ErrorCode::from(&late.validate_from_client(&both).unwrap_err()), ErrorCode::InvalidTimestamp);
}

#[test]
fn a_wrong_maximal_time_and_a_wrong_time_type_are_corrected() {
    let good = build(Codec::None, &records(3));
    assert_eq!(good.max_timestamp(), Timestamp(1_006));
    for wrong in [5i64, i64::MAX, -1] {
        let corrected = patched(&good, 35, &wrong.to_be_bytes()).validate_from_client(&ANYTHING).unwrap();
        assert_eq!(corrected, good);
    }
    let marked = patched(&good, 21, &8i16.to_be_bytes());
    assert_eq!(marked.validate_from_client(&ANYTHING), Ok(good.clone()));
    let log_append = ClientRules { timestamps: TimestampRule::LogAppendTime, ..ANYTHING };
    let error = marked.validate_from_client(&log_append).unwrap_err();
    assert_eq!(ErrorCode::from(&error), ErrorCode::InvalidTimestamp);
}

#[test]
fn log_append_time_is_the_time_of_every_record() {
    let rules = ClientRules { timestamps: TimestampRule::LogAppendTime, ..ANYTHING };
    let accepted = build(Codec::Lz4, &records(3)).validate_from_client(&rules).unwrap();
    let stamped = accepted.with_log_append_time(Timestamp(77));
    stamped.check_crc().unwrap();
    assert!(stamped.is_log_append_time());
    assert_eq!(stamped.max_timestamp(), Timestamp(77));
    assert_eq!(stamped.codec(), Ok(Codec::Lz4));
    assert!(stamped.records().unwrap().all(|record| record.unwrap().timestamp == Timestamp(77)));
    assert_eq!(RecordBatch::parse(stamped.bytes().clone()), Ok(stamped));
}

#[test]
fn sequences_wrap_to_zero() {
    let batch = |base| {
        let builder = RecordBatchBuilder::new().producer(ProducerId(1), ProducerEpoch(0), base);
        records(4).iter().fold(builder, RecordBatchBuilder::record).build()
    };
    assert_eq!(batch(i32::MAX - 3).last_sequence(), i32::MAX);
    assert_eq!(batch(i32::MAX - 2).last_sequence(), 0);
    assert_eq!(batch(i32::MAX).last_sequence(), 2);
    assert_eq!(build(Codec::None, &records(4)).last_sequence(), -1);
}
