//! How fast replicas catch up: from two looks at the same replica, so the first answer has none.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use highwater_wire::{BrokerId, TopicPartition};
use parking_lot::Mutex;

use crate::live::LiveReplica;

/// Looks closer together than this say nothing.
const APART: Duration = Duration::from_millis(200);
/// Looks further apart than this start anew.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// A replica's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bytes of log it gained per second.
    pub bytes_per_s: u64,
    /// Until it lacks nothing, at the rate at which its lag shrinks; `None` when it does not shrink.
    pub eta_ms: Option<u64>,
}

#[derive(Debug)]
struct Look {
    at: Instant,
    lag_bytes: u64,
    /// Bytes of the leader's log that the replica has.
    position: u64,
    rate: Option<Rate>,
}

/// The last look at each replica that is outside the ISR. Bounded: entries are dropped when they are forgotten.
#[derive(Debug, Default)]
pub struct CatchUp(Mutex<BTreeMap<(TopicPartition, BrokerId), Look>>);

impl CatchUp {
    /// The leader of `at` has just said this.
    pub fn sample(&self, at: TopicPartition, leader: &LiveReplica) {
        self.sample_at(at, leader, Instant::now());
    }

    /// What two looks have shown.
    pub fn get(&self, at: TopicPartition, broker: BrokerId) -> Option<Rate> {
        self.0.lock().get(&(at, broker)).and_then(|look| look.rate)
    }

    fn sample_at(&self, at: TopicPartition, leader: &LiveReplica, now: Instant) {
        let mut looks = self.0.lock();
        if looks.len() > 10_000 {
            looks.retain(|_, look| now.duration_since(look.at) < FORGOTTEN);
        }
        for follower in &leader.followers {
            let key = (at, BrokerId(follower.broker_id));
            let Some(lag_bytes) = follower.lag_bytes.filter(|_| !follower.is_in_isr && !follower.is_leader) else {
                looks.remove(&key);
                continue;
            };
            let position = leader.log_bytes.saturating_sub(lag_bytes);
            let before = looks.get(&key).filter(|look| now.duration_since(look.at) < FORGOTTEN);
            let Some(before) = before else {
                looks.insert(key, Look { at: now, lag_bytes, position, rate: None });
                continue;
            };
            let elapsed_ms = u64::try_from(now.duration_since(before.at).as_millis()).unwrap_or(u64::MAX);
            if elapsed_ms < u64::try_from(APART.as_millis()).unwrap_or(u64::MAX) {
                continue;
            }
            let gained = position.saturating_sub(before.position);
            let shrunk = before.lag_bytes.saturating_sub(lag_bytes);
            let rate = Rate {
                bytes_per_s: gained.saturating_mul(1_000) / elapsed_ms,
                eta_ms: (shrunk > 0).then(|| lag_bytes.saturating_mul(elapsed_ms) / shrunk),
            };
            looks.insert(key, Look { at: now, lag_bytes, position, rate: Some(rate) });
        }
    }
}

#[cfg(test)]
mod tests {
    use highwater_wire::TopicId;

    use super::*;
    use crate::live::LiveFollower;

    fn leader(log_bytes: u64, lag_bytes: u64) -> LiveReplica {
        LiveReplica {
            is_leader: true,
            leader_epoch: 0,
            partition_epoch: 0,
            log_start_offset: 0,
            high_watermark: 0,
            last_stable_offset: 0,
            log_end_offset: 0,
            log_bytes,
            fetch_state: "LEADER".into(),
            offline: None,
            followers: vec![LiveFollower {
                broker_id: 2,
                is_leader: false,
                is_in_isr: false,
                is_caught_up: false,
                log_start_offset: None,
                log_end_offset: None,
                lag_offsets: None,
                lag_bytes: Some(lag_bytes),
                lag_ms: None,
                last_fetch_time_ms: None,
                last_caught_up_time_ms: None,
                fetch_state: "FETCHING".into(),
                waiting_for: None,
            }],
            proposed_isr: None,
            waiting_produces: 0,
            leader_epochs: vec![],
            last_truncation: None,
            observed_ms: 0,
        }
    }

    #[test]
    fn two_looks_show_the_rate_and_the_time_that_is_left() {
        let (rates, at, now) = (CatchUp::default(), TopicPartition::new(TopicId::random(), 0), Instant::now());
        rates.sample_at(at, &leader(10_000, 8_000), now);
        assert_eq!(rates.get(at, BrokerId(2)), None);
        rates.sample_at(at, &leader(11_000, 6_000), now + Duration::from_secs(1));
        assert_eq!(rates.get(at, BrokerId(2)), Some(Rate { bytes_per_s: 3_000, eta_ms: Some(3_000) }));
        rates.sample_at(at, &leader(20_000, 9_000), now + Duration::from_secs(2));
        assert_eq!(rates.get(at, BrokerId(2)).unwrap().eta_ms, None);
    }
}
