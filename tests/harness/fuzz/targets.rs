//! The readers that meet bytes from outside, each with samples of what it should meet.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use highwater::config::{self, Surroundings};
use highwater_data::log::checkpoint;
use highwater_data::log::index::SparseIndex;
use highwater_data::log::producer_state::ProducerState;
use highwater_quorum::image::TopicConfig;
use highwater_wire::api::ApiKey;
use highwater_wire::batch::{BatchIter, ClientRules, Codec, InnerCheck, TimestampRule};
use highwater_wire::frame::{FrameBuffer, FrameLimits};
use highwater_wire::request::request_limits;
use highwater_wire::response::response_limits;
use highwater_wire::{
    Offset, ProducerEpoch, ProducerId, Record, RecordBatch, RecordBatchBuilder, Request, Response, Timestamp,
};
use rand::Rng as _;
use rand::rngs::SmallRng;

use super::mutate;
use super::{Case, Maker, Target};

/// All of them, in the order in which they run.
pub const TARGETS: [Target; 8] = [
    Target { name: "frames", prepare: frames },
    Target { name: "requests", prepare: requests },
    Target { name: "answers", prepare: answers },
    Target { name: "batches", prepare: batches },
    Target { name: "properties", prepare: properties },
    Target { name: "topic-configs", prepare: topic_configs },
    Target { name: "controllers", prepare: controllers },
    Target { name: "log-files", prepare: log_files },
];

/// The frames of `wire/tests/golden.txt` without their length field: a request or an answer of every version.
pub(crate) fn golden(wanted: &str) -> Vec<(ApiKey, i16, Vec<u8>)> {
    let text = include_str!("../../../wire/tests/golden.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect::<Vec<_>>());
    let frames = lines.filter_map(|words| {
        let [name, version, direction, hex] = words[..] else { return None };
        let api = ApiKey::ALL.iter().copied().find(|api| api.name() == name)?;
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok());
        let bytes: Option<Vec<u8>> = bytes.collect();
        (direction == wanted).then_some((api, version.parse().ok()?, bytes?.get(4..)?.to_vec()))
    });
    frames.collect()
}

fn pick<'a, T>(samples: &'a [T], rng: &mut SmallRng) -> &'a T {
    &samples[rng.random_range(0..samples.len())]
}

/// A stream of a connection, in pieces: the splitter, and the decoder behind it.
fn frames() -> Maker {
    let samples = golden("request");
    Box::new(move |rng| {
        let mut stream = Vec::new();
        for _ in 0..rng.random_range(1..6) {
            let (_, _, frame) = pick(&samples, rng);
            stream.extend(i32::try_from(frame.len()).unwrap_or(i32::MAX).to_be_bytes());
            stream.extend(frame);
        }
        let pieces = rng.random_range(1..200);
        let read = move |stream: Vec<u8>| {
            let mut buffer = FrameBuffer::new(FrameLimits::same(1 << 20));
            let mut taken = 0;
            for piece in stream.chunks(pieces) {
                buffer.push(piece);
                loop {
                    match buffer.pop() {
                        Ok(Some(frame)) => taken += usize::from(Request::decode(frame, request_limits()).is_ok()),
                        Ok(None) => break,
                        Err(_) => return taken > 0,
                    }
                }
            }
            taken > 0 && buffer.end().is_ok()
        };
        Case { input: mutate::bytes(&stream, rng), read: Box::new(read) }
    })
}

fn requests() -> Maker {
    let samples = golden("request");
    Box::new(move |rng| {
        let (_, _, frame) = pick(&samples, rng);
        let read = |frame: Vec<u8>| Request::decode(Bytes::from(frame), request_limits()).is_ok();
        Case { input: mutate::bytes(frame, rng), read: Box::new(read) }
    })
}

/// What a follower, and every client of ours, reads of a broker.
fn answers() -> Maker {
    let samples = golden("answer");
    Box::new(move |rng| {
        let (api, version, frame) = pick(&samples, rng);
        let (api, version) = (*api, *version);
        let read = move |frame: Vec<u8>| match Response::decode(api, version, Bytes::from(frame), response_limits()) {
            Ok((_, Response::Fetch(answer))) => {
                let partitions = answer.topics.into_iter().flat_map(|topic| topic.partitions);
                partitions.for_each(|partition| walk(partition.records));
                true
            }
            Ok(_) => true,
            Err(_) => false,
        };
        Case { input: mutate::bytes(frame, rng), read: Box::new(read) }
    })
}

/// As a follower looks at fetched records, and a tool at those of a log.
fn walk(records: Bytes) {
    for batch in BatchIter::new(records).map_while(Result::ok) {
        let _ = batch.validate_from_leader();
        if let Ok(records) = batch.records() {
            records.take_while(Result::is_ok).for_each(drop);
        }
    }
}

fn batches() -> Maker {
    let sample = |codec: Codec, count: i64| {
        let mut builder = RecordBatchBuilder::new().codec(codec);
        for at in 0..count {
            let mut record = Record::new(Timestamp(1_000 + at), Some(b"key"), Some(&[7; 50]));
            record.headers = vec![(Bytes::from_static(b"name"), Some(Bytes::from_static(b"value")))];
            builder.push(&record);
        }
        builder.build().into_bytes()
    };
    let codecs = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
    let samples: Vec<Bytes> = codecs.iter().flat_map(|codec| [1, 20].map(|count| sample(*codec, count))).collect();
    Box::new(move |rng| {
        let sample: &Bytes = pick(&samples, rng);
        let mut input = mutate::bytes(sample, rng);
        // Most get a right length and CRC, so that the checks behind them are reached.
        if input.len() >= 61 && rng.random_ratio(9, 10) {
            let length = i32::try_from(input.len()).unwrap_or(i32::MAX) - 12;
            input[8..12].copy_from_slice(&length.to_be_bytes());
            let crc = crc_fast::crc32_iscsi(&input[21..]);
            input[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        let read = |input: Vec<u8>| {
            let bytes = Bytes::from(input);
            walk(bytes.clone());
            let rules = ClientRules {
                batch_bytes_max: 1 << 20,
                keys_required: false,
                timestamps: TimestampRule::ANY_CREATE_TIME,
                inner: InnerCheck::Records,
            };
            let Ok(batch) = RecordBatch::from_produce(Some(bytes), 9) else { return false };
            let Ok(checked) = batch.validate_from_client(&rules) else { return false };
            // What is taken can be read by everybody, and says of itself what is so.
            let records: Vec<Record> = checked
                .records()
                .and_then(Iterator::collect)
                .unwrap_or_else(|error| panic!("taken, and cannot be read: {error}"));
            assert_eq!(records.len(), batch.record_count() as usize);
            assert_eq!(records.last().map(|record| record.offset), Some(batch.last_offset()));
            true
        };
        Case { input, read: Box::new(read) }
    })
}

fn properties() -> Maker {
    let sample = include_str!("../../../ops/server.properties.example");
    // Every key with its example, as if it were set.
    let set: String = sample.lines().map(|line| format!("{}\n", line.trim_start_matches('#'))).collect();
    Box::new(move |rng| {
        let chosen = if rng.random_ratio(1, 2) { sample } else { &set };
        let read = |input: Vec<u8>| {
            let text = String::from_utf8_lossy(&input);
            let environment = BTreeMap::new();
            let file = Some((Path::new("server.properties"), &*text));
            let report = config::read(file, &[], &Surroundings { environment: &environment });
            assert!(report.config.is_some() || !report.findings.is_empty(), "refused without a word");
            report.config.is_some()
        };
        Case { input: mutate::text(chosen, rng).into_bytes(), read: Box::new(read) }
    })
}

fn topic_configs() -> Maker {
    let sample: String =
        TopicConfig::built_in().entries().iter().map(|entry| format!("{}={}\n", entry.name, entry.value)).collect();
    Box::new(move |rng| {
        let read = |input: Vec<u8>| {
            let text = String::from_utf8_lossy(&input).into_owned();
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            let given: BTreeMap<String, String> =
                pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let Ok(config) = TopicConfig::parse(&given) else { return false };
            // What it says of itself is taken again, and means the same.
            let told = config.entries().into_iter().map(|entry| (entry.name.to_string(), entry.value.to_string()));
            let again = TopicConfig::parse(&told.collect()).unwrap_or_else(|faults| panic!("{given:?}: {faults:?}"));
            let meant = |config: TopicConfig| TopicConfig { given: BTreeMap::new(), ..config };
            assert_eq!(meant(again), meant(config), "{given:?}");
            true
        };
        Case { input: mutate::text(&sample, rng).into_bytes(), read: Box::new(read) }
    })
}

/// What nodes tell each other on the controller listener, and what they keep of it.
fn controllers() -> Maker {
    let readers = highwater_quorum::readers::readers();
    Box::new(move |rng| {
        let reader = pick(&readers, rng);
        let (sample, read) = (pick(&reader.samples, rng), reader.read);
        let mut input = mutate::bytes(sample, rng);
        // A right checksum, so that what lies behind it is reached.
        if reader.name == "snapshot" && input.len() > 4 && rng.random_ratio(3, 4) {
            let (content, _) = input.split_at(input.len() - 4);
            let crc = crc_fast::crc32_iscsi(content).to_be_bytes();
            let at = input.len() - 4;
            input[at..].copy_from_slice(&crc);
        }
        Case { input, read: Box::new(move |input| read(&input)) }
    })
}

/// The small files beside the records.
fn log_files() -> Maker {
    type Read = fn(&[u8]) -> bool;
    let offsets: Read = |bytes| checkpoint::parse_offsets(&String::from_utf8_lossy(bytes)).is_ok();
    let epochs: Read = |bytes| checkpoint::parse_epochs(&String::from_utf8_lossy(bytes)).is_ok();
    let topic: Read = |bytes| checkpoint::parse_partition_metadata(&String::from_utf8_lossy(bytes)).is_ok();
    let properties: Read = |bytes| !checkpoint::parse_properties(&String::from_utf8_lossy(bytes)).is_empty();
    let producers: Read = |bytes| {
        ProducerState::decode(bytes).is_ok_and(|state| {
            assert_eq!(ProducerState::decode(&state.encode()).expect("what it wrote itself").len(), state.len());
            true
        })
    };
    let index: Read = |bytes| {
        let (offsets, times) = bytes.split_at(bytes.len() / 2);
        let index = SparseIndex::decode(offsets, times, 1 << 30);
        let _ = (index.floor(Offset(10), Offset(1_000)), index.max_timestamp(Offset(10)), index.last_entry(Offset(10)));
        !index.encode_offsets().is_empty()
    };
    let mut batch = RecordBatchBuilder::new().producer(ProducerId(7), ProducerEpoch(1), 3);
    let mut state = ProducerState::default();
    let mut bytes = Vec::new();
    for at in 0..40_u32 {
        bytes.extend([at * 3, at * 4_100].map(u32::to_be_bytes).concat());
    }
    for at in 0..20_u64 {
        bytes.extend((1_700_000_000_000 + at * 1_000).to_be_bytes());
        bytes.extend((at as u32 * 6).to_be_bytes());
    }
    batch.push(&Record::new(Timestamp(1_000), None, Some(b"value")));
    state.note(batch.build().header());
    let samples: Vec<(Vec<u8>, Read)> = vec![
        (b"0\n3\na 10 5\nb-c 0 1099511627776\nlonger.name_here 3 77\n".to_vec(), offsets),
        (b"0\n4\n0 0\n1 10\n4 77\n9 1000000\n".to_vec(), epochs),
        (b"version: 0\ntopic_id: BQUFBQUFBQUFBQUFBQUFBQ\n".to_vec(), topic),
        (b"#\n#now\nversion=1\nnode.id=3\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n".to_vec(), properties),
        (state.encode(), producers),
        (bytes, index),
    ];
    Box::new(move |rng| {
        let (sample, read) = pick(&samples, rng);
        let (read, mut input) = (*read, mutate::bytes(sample, rng));
        if sample == &samples[4].0 && input.len() >= 10 && rng.random_ratio(3, 4) {
            let crc = crc_fast::crc32_iscsi(&input[6..]);
            input[2..6].copy_from_slice(&crc.to_be_bytes());
        }
        Case { input, read: Box::new(move |input| read(&input)) }
    })
}
