//! Counters of the Kafka server; each handle is made once (operators.md §4).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use highwater_wire::ErrorCode;
use highwater_wire::api::ApiKey;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// Handles for all connections.
pub struct ServerMetrics {
    /// By `ApiKey::ALL`.
    apis: Vec<ApiMetrics>,
    connections: Arc<AtomicUsize>,
    rejected: Counter,
    bytes_in: Counter,
    bytes_out: Counter,
    replication_out: Counter,
    produce_rejected: [(RejectReason, Counter); 6],
}

struct ApiMetrics {
    requests: Counter,
    seconds: Histogram,
}

/// Why a produced batch was refused, as `produce_rejected_total` groups it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RejectReason {
    NotEnoughReplicas,
    NotLeader,
    FencedEpoch,
    TooLarge,
    Disk,
    Invalid,
}

impl RejectReason {
    const ALL: [(Self, &'static str); 6] = [
        (Self::NotEnoughReplicas, "not_enough_replicas"),
        (Self::NotLeader, "not_leader"),
        (Self::FencedEpoch, "fenced_epoch"),
        (Self::TooLarge, "too_large"),
        (Self::Disk, "disk"),
        (Self::Invalid, "invalid"),
    ];

    const fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::NotEnoughReplicas | ErrorCode::NotEnoughReplicasAfterAppend | ErrorCode::RequestTimedOut => {
                Self::NotEnoughReplicas
            }
            ErrorCode::NotLeaderOrFollower | ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId => {
                Self::NotLeader
            }
            ErrorCode::FencedLeaderEpoch | ErrorCode::InvalidProducerEpoch => Self::FencedEpoch,
            ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge => Self::TooLarge,
            ErrorCode::KafkaStorageError => Self::Disk,
            _ => Self::Invalid,
        }
    }
}

impl ServerMetrics {
    pub fn new() -> Self {
        let apis = ApiKey::ALL.iter().map(|api| ApiMetrics {
            requests: counter!("highwater_requests_total", "api" => api.name()),
            seconds: histogram!("highwater_request_seconds", "api" => api.name(), "phase" => "total"),
        });
        Self {
            apis: apis.collect(),
            connections: Arc::default(),
            rejected: counter!("highwater_connections_rejected_total"),
            bytes_in: counter!("highwater_bytes_total", "direction" => "in"),
            bytes_out: counter!("highwater_bytes_total", "direction" => "out"),
            replication_out: counter!("highwater_replication_bytes_total", "direction" => "out", "kind" => "normal"),
            produce_rejected: RejectReason::ALL
                .map(|(reason, label)| (reason, counter!("highwater_produce_rejected_total", "reason" => label))),
        }
    }

    /// A request was handled; `took` is the time until its answer was queued, or until it began to wait.
    pub fn handled(&self, api: ApiKey, took: Duration) {
        if let Some(metrics) = ApiKey::ALL.iter().position(|known| *known == api).and_then(|at| self.apis.get(at)) {
            metrics.requests.increment(1);
            metrics.seconds.record(took);
        }
    }

    /// Records came in from producers.
    pub fn produced(&self, bytes: usize) {
        self.bytes_in.increment(bytes as u64);
    }

    /// A batch was refused.
    pub fn refused(&self, code: ErrorCode) {
        let reason = RejectReason::of(code);
        if let Some((_, counter)) = self.produce_rejected.iter().find(|(known, _)| *known == reason) {
            counter.increment(1);
        }
    }

    /// Records went out.
    pub fn fetched(&self, bytes: u64, to_follower: bool) {
        if to_follower { self.replication_out.increment(bytes) } else { self.bytes_out.increment(bytes) }
    }

    /// A connection was turned away: there are `max.connections` already.
    pub fn rejected(&self) {
        self.rejected.increment(1);
    }

    /// Open connections over all listeners.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection for as long as the guard lives.
    pub fn connected(&self, listener: &str) -> ConnectionGuard {
        let gauge = gauge!("highwater_connections", "listener" => listener.to_owned());
        gauge.increment(1.0);
        self.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard { gauge, all: self.connections.clone() }
    }
}

impl Default for ServerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// See [`ServerMetrics::connected`].
pub struct ConnectionGuard {
    gauge: Gauge,
    all: Arc<AtomicUsize>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}
