//! Counters of the Kafka server (operators.md §4). Each handle is made once, so that counting costs an atomic addition and
//! no look at labels; only an answer that is an error looks its counter up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use highwater_wire::ErrorCode;
use highwater_wire::api::ApiKey;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// What the controller says to a proposal it does not accept (D26).
const REFUSED_PROPOSALS: [ErrorCode; 4] = [
    ErrorCode::InvalidUpdateVersion,
    ErrorCode::IneligibleReplica,
    ErrorCode::FencedLeaderEpoch,
    ErrorCode::NotController,
];
/// What a leader says to a follower it does not serve.
const FAILED_FETCHES: [ErrorCode; 4] = [
    ErrorCode::NotLeaderOrFollower,
    ErrorCode::FencedLeaderEpoch,
    ErrorCode::OffsetOutOfRange,
    ErrorCode::KafkaStorageError,
];

/// Handles for all connections.
pub struct ServerMetrics {
    /// By the key on the wire.
    apis: Vec<Option<ApiMetrics>>,
    connections: Arc<AtomicUsize>,
    bytes_in: Counter,
    bytes_out: Counter,
    replication_out: Counter,
    produce_rejected: [(RejectReason, Counter); 6],
    corrupt: Counter,
    waiting_fetches: Arc<AtomicUsize>,
}

struct ApiMetrics {
    /// Answered without an error, by version from the oldest that is served.
    requests: Vec<Counter>,
    oldest: i16,
    seconds: Histogram,
    /// Only of those that wait for others and do something before.
    local: Option<Histogram>,
}

impl ApiMetrics {
    fn new(api: ApiKey) -> Self {
        let versions = api.versions();
        let of = |version: i16| {
            let (version, error) = (version.to_string(), ErrorCode::None.name());
            counter!("highwater_requests_total", "api" => api.name(), "version" => version, "error" => error)
        };
        Self {
            requests: versions.iter().map(of).collect(),
            oldest: versions.min,
            seconds: histogram!("highwater_request_seconds", "api" => api.name(), "phase" => "total"),
            local: matches!(api, ApiKey::Produce | ApiKey::Fetch)
                .then(|| histogram!("highwater_request_seconds", "api" => api.name(), "phase" => "local")),
        }
    }
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
        // Errors that alerts and dashboards look at are there from the start.
        for error in REFUSED_PROPOSALS {
            counter!("highwater_isr_change_failures_total", "error" => error.name()).absolute(0);
        }
        for error in FAILED_FETCHES {
            counter!("highwater_replica_fetch_errors_total", "error" => error.name()).absolute(0);
        }
        let keys = ApiKey::ALL.last().map_or(0, |last| last.code() + 1);
        Self {
            apis: (0..keys).map(|key| ApiKey::from_code(key).map(ApiMetrics::new)).collect(),
            connections: Arc::default(),
            bytes_in: counter!("highwater_bytes_total", "direction" => "in"),
            bytes_out: counter!("highwater_bytes_total", "direction" => "out"),
            replication_out: counter!("highwater_replication_bytes_total", "direction" => "out", "kind" => "normal"),
            produce_rejected: RejectReason::ALL
                .map(|(reason, label)| (reason, counter!("highwater_produce_rejected_total", "reason" => label))),
            corrupt: counter!("highwater_corrupt_batches_total", "from" => "producer"),
            waiting_fetches: Arc::default(),
        }
    }

    fn of(&self, api: ApiKey) -> Option<&ApiMetrics> {
        usize::try_from(api.code()).ok().and_then(|key| self.apis.get(key)?.as_ref())
    }

    /// Whether the share of this API's requests that is spent here is told apart from the waiting.
    pub fn tells_local(&self, api: ApiKey) -> bool {
        self.of(api).is_some_and(|metrics| metrics.local.is_some())
    }

    /// A request was answered or began to wait for others, `took` after its arrival.
    pub fn handled_here(&self, api: ApiKey, took: Duration) {
        if let Some(local) = self.of(api).and_then(|metrics| metrics.local.as_ref()) {
            local.record(took);
        }
    }

    /// A request was answered; `took` is the time from its arrival until its answer was queued.
    pub fn answered(&self, api: ApiKey, version: i16, error: ErrorCode, took: Duration) {
        let Some(metrics) = self.of(api) else { return };
        metrics.seconds.record(took);
        if error != ErrorCode::None {
            let (version, error) = (version.to_string(), error.name());
            counter!("highwater_requests_total", "api" => api.name(), "version" => version, "error" => error)
                .increment(1);
        } else if let Some(counter) = metrics.requests.get(usize::try_from(version - metrics.oldest).unwrap_or(0)) {
            counter.increment(1);
        }
    }

    /// A fetch waits for as long as this lives.
    pub fn waiting_fetch(&self) -> WaitingFetch {
        self.waiting_fetches.fetch_add(1, Ordering::Relaxed);
        WaitingFetch(self.waiting_fetches.clone())
    }

    /// Fetches that wait now.
    pub fn waiting_fetches(&self) -> usize {
        self.waiting_fetches.load(Ordering::Relaxed)
    }

    /// Records came in from producers.
    pub fn produced(&self, bytes: usize) {
        self.bytes_in.increment(bytes as u64);
    }

    /// A batch was refused.
    pub fn refused(&self, code: ErrorCode) {
        let reason = RejectReason::of(code);
        if code == ErrorCode::CorruptMessage {
            self.corrupt.increment(1);
        }
        if let Some((_, counter)) = self.produce_rejected.iter().find(|(known, _)| *known == reason) {
            counter.increment(1);
        }
    }

    /// Records went out.
    pub fn fetched(&self, bytes: u64, to_follower: bool) {
        if to_follower { self.replication_out.increment(bytes) } else { self.bytes_out.increment(bytes) }
    }

    /// A listener is open.
    pub fn listens(&self, listener: &str) {
        counter!("highwater_connections_rejected_total", "listener" => listener.to_owned()).absolute(0);
    }

    /// A connection was turned away: there are `max.connections` already.
    pub fn rejected(&self, listener: &str) {
        counter!("highwater_connections_rejected_total", "listener" => listener.to_owned()).increment(1);
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

/// See [`ServerMetrics::waiting_fetch`].
pub struct WaitingFetch(Arc<AtomicUsize>);

impl Drop for WaitingFetch {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
