//! The usual cluster without any trouble and without clients: what schedules that are run again differ from.

use super::super::network::Weather;
use super::{Acts, Budget, Gaps, Strikes, Swarm, TopicDraw};

impl Swarm {
    /// Three brokers and one topic, nothing that goes wrong.
    pub fn quiet() -> Self {
        Self {
            brokers: 3,
            topics: vec![TopicDraw::quiet()],
            session_ms: 3_000,
            heartbeat_ms: 500,
            lag_ms: 2_000,
            fetch_wait_ms: 200,
            fetch_bytes_max: 1_048_576,
            backoff_ms: 200,
            tick_ms: 200,
            checkpoint_ms: 1_000,
            sync_us: 2_000,
            restart_ms: 1_000,
            weather: Weather::calm(),
            image_delay_us: 1_000,
            image_slow: 0,
            image_delay_long_us: 0,
            answers_lost: 0,
            controller_late: 0,
            controller_late_us: 0,
            answers_late: 0,
            answers_late_us: 0,
            budget: Budget::Strict,
            restarts_proved: true,
            gaps: Gaps::default(),
            strikes: Strikes::default(),
            producers: Vec::new(),
            consumers: 0,
            poll_ms: 300,
            delete_gap_ms: 0,
            acts: Acts::default(),
        }
    }
}

impl TopicDraw {
    /// One partition, three replicas, two of them in sync.
    pub fn quiet() -> Self {
        Self {
            partitions: 1,
            replication_factor: 3,
            min_isr: 2,
            flush_messages: None,
            flush_ms: None,
            segment_bytes: 1_048_576,
            retention_bytes: None,
        }
    }
}
