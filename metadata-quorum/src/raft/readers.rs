//! What reads bytes from other nodes, with samples of what it should meet. For tests only: whatever bytes come, it ends with
//! a value or an error, and takes no more memory than they are worth.

use bytes::Bytes;
use highwater_wire::{
    BrokerEpoch, BrokerId, DirectoryId, IncarnationId, LeaderEpoch, Offset, Timestamp, TopicId, TopicPartition,
};
use openraft::Vote;
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest};
use serde::de::DeserializeOwned;

use super::listener::{self, ProposeRequest, SuspectRequest, TransferRequest, VoterRequest, WatermarkReport};
use super::snapshot;
use super::trial::{Model, command, entry, leader, log_id};
use super::types::{SnapshotMeta, TypeConfig};
use crate::client::Heartbeat;
use crate::controller::{Command, KnownWatermark};
use crate::image::ImageVersion;
use crate::voters::{NewVoter, VoterChange};

/// One of them.
#[derive(Debug)]
pub struct Reader {
    pub name: &'static str,
    pub samples: Vec<Vec<u8>>,
    /// Whether it takes the bytes.
    pub read: fn(&[u8]) -> bool,
}

fn postcard_of<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    postcard::from_bytes::<T>(bytes).is_ok()
}

fn json_of<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    serde_json::from_slice::<T>(bytes).is_ok()
}

fn binary(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data")
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data")
}

/// All of them.
pub fn readers() -> Vec<Reader> {
    let vote = Vote { leader_id: leader(3), committed: true };
    let append = AppendEntriesRequest::<TypeConfig> {
        vote,
        prev_log_id: Some(log_id(4)),
        entries: (5..30).map(entry).collect(),
        leader_commit: Some(log_id(7)),
    };
    let ask = VoteRequest::<TypeConfig>::new(vote, Some(log_id(29)));
    let transfer = TransferLeaderRequest::<TypeConfig>::new(vote, leader(3).voted_for, Some(log_id(29)));
    let state = Model::default().after(60).expect("its commands are taken");
    let meta = SnapshotMeta { last_log_id: Some(log_id(60)), ..SnapshotMeta::default() };
    let head = binary(&(vote, &meta));
    let watermark = KnownWatermark {
        partition: TopicPartition { topic: TopicId::from_bytes([5; 16]), partition: 3 },
        high_watermark: Offset(77),
        reported: Timestamp(9),
        log_start: Offset(3),
        leader_epoch: Some(LeaderEpoch(1)),
    };
    let heartbeat = Heartbeat {
        broker: BrokerId(1),
        epoch: BrokerEpoch(2),
        incarnation: IncarnationId::from_bytes([4; 16]),
        version: ImageVersion(5),
        want_fence: false,
        want_shutdown: true,
        drained: false,
        lost: vec![watermark.partition],
        watermarks: vec![watermark.clone()],
    };
    let proposals: Vec<Command> = (0..40).map(command).collect();
    let change = VoterChange {
        add: Some(NewVoter { node: BrokerId(2), directory: Some(DirectoryId::from_bytes([1; 16])), endpoint: None }),
        remove: Some(BrokerId(3)),
        retain_as_observer: true,
        validate_only: false,
    };
    vec![
        Reader {
            name: "append",
            samples: vec![binary(&append)],
            read: postcard_of::<AppendEntriesRequest<TypeConfig>>,
        },
        Reader { name: "vote", samples: vec![binary(&ask)], read: postcard_of::<VoteRequest<TypeConfig>> },
        Reader {
            name: "transfer",
            samples: vec![binary(&transfer)],
            read: postcard_of::<TransferLeaderRequest<TypeConfig>>,
        },
        Reader {
            name: "install-snapshot",
            samples: vec![[&u32::try_from(head.len()).expect("small").to_be_bytes()[..], &head, &state].concat()],
            read: |bytes| {
                let parts = listener::parse_snapshot(&Bytes::copy_from_slice(bytes));
                parts.is_some_and(|(_, _, snapshot)| snapshot::decode(&snapshot).is_ok())
            },
        },
        Reader { name: "snapshot", samples: vec![state], read: |bytes| snapshot::decode(bytes).is_ok() },
        Reader { name: "commands", samples: proposals.iter().map(binary).collect(), read: postcard_of::<Command> },
        Reader {
            name: "propose",
            samples: proposals.into_iter().map(|command| json(&ProposeRequest { command, timeout_ms: 5 })).collect(),
            read: json_of::<ProposeRequest>,
        },
        Reader { name: "heartbeat", samples: vec![json(&heartbeat)], read: json_of::<Heartbeat> },
        Reader {
            name: "watermarks",
            samples: vec![json(&WatermarkReport {
                broker: BrokerId(1),
                epoch: BrokerEpoch(2),
                watermarks: vec![watermark],
            })],
            read: json_of::<WatermarkReport>,
        },
        Reader {
            name: "suspect",
            samples: vec![json(&SuspectRequest { broker: BrokerId(1), epoch: BrokerEpoch(2) })],
            read: json_of::<SuspectRequest>,
        },
        Reader {
            name: "voters",
            samples: vec![json(&VoterRequest { change, timeout_ms: 5 })],
            read: json_of::<VoterRequest>,
        },
        Reader {
            name: "transfer-leadership",
            samples: vec![json(&TransferRequest { target: BrokerId(2), timeout_ms: 5 })],
            read: json_of::<TransferRequest>,
        },
    ]
}
