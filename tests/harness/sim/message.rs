//! What travels: between clients and brokers, between brokers, and between brokers and the controller.

use bytes::Bytes;
use highwater_data::replica::message::{FetchPoint, LeaderHolds, OffsetSpec};
use highwater_quorum::client::{Heartbeat, HeartbeatAnswer};
use highwater_quorum::controller::{AlterPartition, AlteredPartition, RegisterBroker};
use highwater_wire::{BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Offset, TopicPartition};

/// Pairs an answer with its request; counts per run.
pub type Call = u64;

#[derive(Debug, Clone)]
pub enum Message {
    Produce {
        call: Call,
        at: TopicPartition,
        batch: Bytes,
        acks: i16,
        timeout_ms: u64,
    },
    Produced {
        call: Call,
        result: Result<Offset, ErrorCode>,
    },
    Read {
        call: Call,
        at: TopicPartition,
        offset: Offset,
        leader_epoch: Option<LeaderEpoch>,
        last_epoch: Option<LeaderEpoch>,
    },
    ReadAnswer {
        call: Call,
        result: Result<ReadAnswer, ErrorCode>,
    },
    Latest {
        call: Call,
        at: TopicPartition,
        leader_epoch: Option<LeaderEpoch>,
    },
    LatestAnswer {
        call: Call,
        result: Result<Option<Offset>, ErrorCode>,
    },

    /// An operator's DeleteRecords; `before`: `None` for all that is committed.
    Delete {
        call: Call,
        at: TopicPartition,
        before: Option<Offset>,
        timeout_ms: u64,
    },
    Deleted {
        call: Call,
        result: Result<Offset, ErrorCode>,
    },

    /// A follower's round: what is asked anew, and what no more; the rest stays as it was (KIP-227).
    Fetch {
        call: Call,
        broker: BrokerId,
        epoch: BrokerEpoch,
        points: Vec<(TopicPartition, FetchPoint)>,
        forget: Vec<TopicPartition>,
    },
    FetchAnswer {
        call: Call,
        answers: Vec<(TopicPartition, FetchPoint, PartitionAnswer)>,
    },
    /// What a follower wants to know of its leader's log (R162).
    Offsets {
        call: Call,
        at: TopicPartition,
        point: FetchPoint,
    },
    OffsetsAnswer {
        call: Call,
        at: TopicPartition,
        point: FetchPoint,
        result: Result<LeaderHolds, ErrorCode>,
    },

    Register {
        call: Call,
        request: Box<RegisterBroker>,
    },
    Registered {
        call: Call,
        result: Result<BrokerEpoch, ErrorCode>,
    },
    Heartbeat {
        call: Call,
        request: Box<Heartbeat>,
    },
    HeartbeatAnswer {
        call: Call,
        result: Result<HeartbeatAnswer, ErrorCode>,
    },
    Alter {
        call: Call,
        request: Box<AlterPartition>,
    },
    Altered {
        call: Call,
        result: Result<Vec<Result<AlteredPartition, ErrorCode>>, ErrorCode>,
    },
    Suspect {
        broker: BrokerId,
        epoch: BrokerEpoch,
    },
}

/// What a consumer was shown.
#[derive(Debug, Clone)]
pub struct ReadAnswer {
    pub high_watermark: Offset,
    pub log_start: Offset,
    pub records: Bytes,
    /// The reader's history and the leader's part ways (R239).
    pub diverging: bool,
}

/// A leader's answer for one partition.
#[derive(Debug, Clone)]
pub enum PartitionAnswer {
    Records { records: Bytes, high_watermark: Offset, log_start: Offset },
    Diverging { epoch: LeaderEpoch, end: Offset, log_start: Offset },
    Error(ErrorCode),
}

impl Message {
    /// A number for the trace hash.
    pub fn code(&self) -> u64 {
        match self {
            Self::Produce { call, .. } => 0x100 ^ (call << 16),
            Self::Produced { call, result } => 0x200 ^ (call << 16) ^ result.as_ref().map_or(77, |o| o.0 as u64),
            Self::Read { call, offset, .. } => 0x300 ^ (call << 16) ^ offset.0 as u64,
            Self::ReadAnswer { call, result } => {
                0x400
                    ^ (call << 16)
                    ^ result.as_ref().map_or(77, |a| (a.records.len() as u64) << 8 ^ a.high_watermark.0 as u64)
            }
            Self::Latest { call, .. } => 0x500 ^ (call << 16),
            Self::LatestAnswer { call, result } => {
                0x600 ^ (call << 16) ^ result.as_ref().map_or(77, |o| o.map_or(0, |o| o.0 as u64))
            }
            Self::Fetch { call, points, .. } => points.iter().fold(0x700 ^ (call << 16), |hash, (_, p)| {
                hash.rotate_left(3) ^ p.offset.0 as u64 ^ p.generation << 32
            }),
            Self::FetchAnswer { call, answers } => {
                answers.iter().fold(0x800 ^ (call << 16), |hash, (_, _, answer)| hash.rotate_left(3) ^ answer.code())
            }
            Self::Offsets { call, .. } => 0x900 ^ (call << 16),
            Self::OffsetsAnswer { call, .. } => 0xA00 ^ (call << 16),
            Self::Register { call, .. } => 0xB00 ^ (call << 16),
            Self::Registered { call, result } => 0xC00 ^ (call << 16) ^ result.map_or(77, |e| e.0 as u64),
            Self::Heartbeat { call, request } => 0xD00 ^ (call << 16) ^ request.version.0,
            Self::HeartbeatAnswer { call, .. } => 0xE00 ^ (call << 16),
            Self::Alter { call, request } => request.changes.iter().fold(0xF00 ^ (call << 16), |hash, c| {
                hash.rotate_left(3) ^ c.partition_epoch.0 as u64 ^ c.isr.len() as u64
            }),
            Self::Altered { call, .. } => 0x1000 ^ (call << 16),
            Self::Delete { call, before, .. } => 0x1200 ^ (call << 16) ^ before.map_or(77, |o| o.0 as u64),
            Self::Deleted { call, result } => 0x1300 ^ (call << 16) ^ result.as_ref().map_or(77, |o| o.0 as u64),
            Self::Suspect { broker, .. } => 0x1100 ^ broker.0 as u64,
        }
    }

    /// The receiver must stand a second copy: HTTP calls to the controller, and what clients resend.
    pub fn is_repeatable(&self) -> bool {
        matches!(self, Self::Register { .. } | Self::Heartbeat { .. } | Self::Alter { .. } | Self::Fetch { .. })
    }

    /// For a reader of the trace.
    pub fn describe(&self) -> String {
        match self {
            Self::Produce { call, at, batch, acks, .. } => {
                format!("produce #{call} {at} acks={acks} {} bytes", batch.len())
            }
            Self::Produced { call, result } => format!("produced #{call} {result:?}"),
            Self::Read { call, at, offset, leader_epoch, .. } => {
                format!("read #{call} {at} from {offset} epoch {leader_epoch:?}")
            }
            Self::ReadAnswer { call, result } => match result {
                Ok(answer) => {
                    format!("read answer #{call} watermark {} {} bytes", answer.high_watermark, answer.records.len())
                }
                Err(error) => format!("read answer #{call} {error:?}"),
            },
            Self::Latest { call, at, .. } => format!("latest? #{call} {at}"),
            Self::LatestAnswer { call, result } => format!("latest #{call} {result:?}"),
            Self::Fetch { call, epoch, points, .. } => {
                let points: Vec<_> = points
                    .iter()
                    .map(|(at, p)| {
                        format!(
                            "{at} from {} (epoch {} last {:?} gen {})",
                            p.offset,
                            p.leader_epoch,
                            p.last_fetched_epoch.map(|e| e.0),
                            p.generation
                        )
                    })
                    .collect();
                format!("fetch #{call} as {epoch}: {}", points.join(", "))
            }
            Self::FetchAnswer { call, answers } => {
                let answers: Vec<_> =
                    answers.iter().map(|(at, _, answer)| format!("{at} {}", answer.describe())).collect();
                format!("fetch answer #{call}: {}", answers.join(", "))
            }
            Self::Alter { call, request } => {
                let changes: Vec<_> = request
                    .changes
                    .iter()
                    .map(|c| {
                        format!(
                            "{} to {:?} at {}/{}",
                            c.partition,
                            c.isr.iter().map(|(b, e)| (b.0, e.0)).collect::<Vec<_>>(),
                            c.leader_epoch,
                            c.partition_epoch
                        )
                    })
                    .collect();
                format!("alter #{call} {}", changes.join(", "))
            }
            Self::Heartbeat { call, request } => format!(
                "heartbeat #{call} epoch {} at {} fence={} shutdown={} drained={}",
                request.epoch, request.version.0, request.want_fence, request.want_shutdown, request.drained
            ),
            Self::Register { call, request } => {
                format!("register #{call} {:?} dead={}", request.claim, request.previous_is_dead)
            }
            other => format!("{other:?}"),
        }
    }
}

impl PartitionAnswer {
    fn code(&self) -> u64 {
        match self {
            Self::Records { records, high_watermark, .. } => (records.len() as u64) << 20 ^ high_watermark.0 as u64,
            Self::Diverging { epoch, end, .. } => 1 << 60 ^ (epoch.0 as u64) << 32 ^ end.0 as u64,
            Self::Error(error) => 1 << 61 ^ *error as u64,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Records { records, high_watermark, .. } => {
                format!("{} bytes, watermark {high_watermark}", records.len())
            }
            Self::Diverging { epoch, end, .. } => format!("diverges: {epoch} ends at {end}"),
            Self::Error(error) => format!("{error:?}"),
        }
    }
}

/// Used by clients.
pub const LATEST: OffsetSpec = OffsetSpec::Latest;
