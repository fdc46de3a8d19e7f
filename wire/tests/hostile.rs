//! Frames that nobody should send: decoding ends with an answer or an error, in little time and little memory.
//!
//! The whole test process lives in a bounded address space, so an allocation by a count from the wire ends it.

#![allow(clippy::unwrap_used)] // helpers of tests, too, may fail loudly

mod common;

use bytes::Bytes;
use common::{batch, request, response, text};
use highwater_wire::batch::{ClientRules, InnerCheck, TimestampRule};
use highwater_wire::request::request_limits;
use highwater_wire::response::response_limits;
use highwater_wire::{ApiKey, BatchIter, Codec, Request, Response};
use highwater_wire::{Record, RecordBatch, RecordBatchBuilder, Timestamp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What the process may use at all, test harness included: far below the GiB that one believed count would ask for.
const ADDRESS_SPACE_BYTES: u64 = 768 << 20;
const FRAMES: usize = 100_000;

fn bound_memory() {
    let limit = rustix::process::Rlimit { current: Some(ADDRESS_SPACE_BYTES), maximum: Some(ADDRESS_SPACE_BYTES) };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    assert!(Vec::<u8>::new().try_reserve_exact(1 << 30).is_err(), "the bound on memory does not hold");
}

/// Changes, cuts, repeats and inserts; often writes the numbers that counts and lengths like least.
fn mutate(bytes: &[u8], rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.random_range(1..=4) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..7) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.random()),
            4 => {
                let part = bytes[at..(at + rng.random_range(1..40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            5 => {
                let nasty = [i32::MAX, i32::MIN, -1, -2, 0, 1 << 24, 99_999][rng.random_range(0..7)];
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&nasty.to_be_bytes()[..end - at]);
            }
            _ => {
                // The largest compact length there is.
                let end = (at + 5).min(bytes.len());
                bytes[at..end].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f][..end - at]);
            }
        }
    }
    bytes
}

#[test]
fn mutated_frames_never_panic_nor_take_memory_by_the_counts_in_them() {
    bound_memory();
    let mut rng = SmallRng::seed_from_u64(3);
    let samples: Vec<(ApiKey, i16, Bytes, Bytes)> = ApiKey::ALL
        .iter()
        .flat_map(|api| api.versions().iter().map(move |version| (*api, version)))
        .map(|(api, version)| {
            let asked = request(api, version).encode(version, 7, Some(&text("client"))).unwrap().to_bytes();
            let answered = response(api, version).encode(version, 7).unwrap().to_bytes();
            (api, version, asked.slice(4..), answered.slice(4..))
        })
        .collect();
    let (mut read, mut refused) = (0, 0);
    for round in 0..FRAMES {
        let (api, version, asked, answered) = &samples[round % samples.len()];
        // Requests get most of the rounds: they come from strangers.
        let ok = if rng.random_ratio(3, 4) {
            Request::decode(mutate(asked, &mut rng).into(), request_limits()).is_ok()
        } else {
            Response::decode(*api, *version, mutate(answered, &mut rng).into(), response_limits()).is_ok()
        };
        if ok { read += 1 } else { refused += 1 }
    }
    assert!(read > FRAMES / 20 && refused > FRAMES / 20, "{read} read, {refused} refused: too tame or too wild");

    mutated_batches_are_refused_or_right(&mut rng);
}

/// Part of the one test above: the address space is the whole process's.
fn mutated_batches_are_refused_or_right(rng: &mut SmallRng) {
    let rules = ClientRules {
        batch_bytes_max: 1 << 20,
        keys_required: false,
        timestamps: TimestampRule::ANY_CREATE_TIME,
        inner: InnerCheck::Records,
    };
    let samples: Vec<Bytes> = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd]
        .into_iter()
        .flat_map(|codec| {
            let mut plain = RecordBatchBuilder::new().codec(codec);
            for i in 0..20i64 {
                let mut record = Record::new(Timestamp(1_000 + i), Some(b"key"), Some(&[i as u8; 50]));
                record.headers = vec![(Bytes::from_static(b"name"), Some(Bytes::from_static(b"value")))];
                plain.push(&record);
            }
            [plain.build().into_bytes(), batch().into_bytes()]
        })
        .collect();
    let mut accepted = 0;
    for round in 0..FRAMES {
        let mut bytes = mutate(&samples[round % samples.len()], rng);
        // Most rounds get a right length and CRC, so that the checks behind them are reached.
        if bytes.len() >= 61 && rng.random_ratio(9, 10) {
            let length = bytes.len() as i32 - 12;
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            let crc = crc_fast::crc32_iscsi(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        let bytes = Bytes::from(bytes);
        BatchIter::new(bytes.clone()).flatten().for_each(|batch| {
            let _ = batch.validate_from_leader();
        });
        let Ok(batch) = RecordBatch::from_produce(Some(bytes), 9) else { continue };
        let readable = batch.records().map(|records| records.for_each(drop));
        if let Ok(checked) = batch.validate_from_client(&rules) {
            accepted += 1;
            readable.unwrap();
            let records = checked.records().unwrap().collect::<Result<Vec<_>, _>>().unwrap();
            assert_eq!(records.len(), batch.record_count() as usize);
            assert_eq!(records.last().map(|record| record.offset), Some(batch.last_offset()));
            let max = records.iter().map(|record| record.timestamp).max();
            assert_eq!(max.unwrap().max(Timestamp::NONE), checked.max_timestamp());
            checked.check_crc().unwrap();
        }
    }
    assert!(accepted > FRAMES / 50, "{accepted} accepted: too wild to test anything");
}
