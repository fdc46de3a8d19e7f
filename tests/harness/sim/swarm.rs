//! Each seed draws its own mix of faults and its own cluster.
//!
//! One fixed mix of everything finds few bugs: faults drown each other. A mix that leaves most of them out, and turns
//! the rest up, finds most (swarm testing). Rates are log-uniform; sizes are kept small, so that edges are near.

use serde::{Deserialize, Serialize};

use super::network::Weather;
use super::rng::Rng;

mod acts;
mod quiet;

pub use acts::Acts;

/// What a test fixes; the rest is drawn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shape {
    pub brokers: Option<u64>,
    pub replication_factor: Option<u64>,
    pub min_isr: Option<u64>,
    /// No faults at all, and no operator.
    pub calm: bool,
    /// Faults, but no operator.
    pub unattended: bool,
}

/// Everything drawn.
pub const ANY: Shape = Shape { brokers: None, replication_factor: None, min_isr: None, calm: false, unattended: false };
/// Everything drawn but the operator: what seeds were before there was one.
pub const UNATTENDED: Shape = Shape { unattended: true, ..ANY };
/// The usual cluster: three brokers, three replicas, two of them in sync.
pub const THREE_BROKERS: Shape =
    Shape { brokers: Some(3), replication_factor: Some(3), min_isr: Some(2), calm: false, unattended: false };
/// The usual cluster on a good day.
pub const THREE_CALM_BROKERS: Shape = Shape { calm: true, ..THREE_BROKERS };

/// How much may be lost at once (house rule: at most min ISR − 1 lossy members not yet caught up).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Budget {
    /// Within the promise: nothing is lost and everything comes back.
    Strict,
    /// As long as another complete replica is alive: nothing is lost.
    Loose,
    /// Anything: then nobody may lead who lacks what was acknowledged, and partitions may stay without a leader.
    None,
}

/// The cluster and its faults, as drawn. Times are ms, mean gaps between faults of a kind are ms, 0: never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swarm {
    pub brokers: i32,
    pub topics: Vec<TopicDraw>,
    pub session_ms: u64,
    pub heartbeat_ms: u64,
    pub lag_ms: u64,
    pub fetch_wait_ms: u64,
    pub fetch_bytes_max: u32,
    pub backoff_ms: u64,
    pub tick_ms: u64,
    pub checkpoint_ms: u64,
    /// µs for one fsync.
    pub sync_us: u64,
    pub restart_ms: u64,
    pub weather: Weather,
    /// µs from a decision of the quorum to a broker's image, usual and at times.
    pub image_delay_us: u64,
    pub image_slow: u64,
    pub image_delay_long_us: u64,
    /// In 1,000 answers of the controller: lost.
    pub answers_lost: u64,
    /// In 1,000 requests to the controller: late, by up to `controller_late_us`.
    pub controller_late: u64,
    pub controller_late_us: u64,
    /// In 1,000 answers of the controller: late, by up to `answers_late_us`, so that metadata overtakes them.
    pub answers_late: u64,
    pub answers_late_us: u64,
    pub budget: Budget,
    /// A broker that comes back at once is believed to be dead before its session ends (D9).
    pub restarts_proved: bool,
    pub gaps: Gaps,
    pub strikes: Strikes,
    pub producers: Vec<ProducerDraw>,
    pub consumers: u32,
    pub poll_ms: u64,
    /// Mean gap between topic deletions.
    pub delete_gap_ms: u64,
    pub acts: Acts,
}

/// Mean gaps (ms) between faults of a kind; 0: this kind is off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps {
    pub kill: u64,
    pub power: u64,
    pub wipe: u64,
    pub stop: u64,
    pub pause: u64,
    pub pause_ms: u64,
    pub cut: u64,
    pub cut_ms: u64,
    pub isolate: u64,
    pub suspicion: u64,
    pub controller_out: u64,
    pub controller_out_ms: u64,
    pub controller_change: u64,
    pub image_hold: u64,
    pub image_hold_ms: u64,
    pub reset: u64,
    pub disk_error: u64,
    pub preferred: u64,
    /// Two brokers at once: the classic scripts (kill one, wipe the other, change the controller).
    pub double: u64,
}

/// What strikes while a follower joins an ISR: a moment that trouble finds too seldom by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strikes {
    /// In 1,000 joins: struck, in one or several of these ways.
    pub joins: u64,
    /// In 1,000 strikes: the controller deals with the leader's proposals late.
    pub late: u64,
    pub late_ms: u64,
    /// The joining broker ends, somehow, and is back soon.
    pub joiner: u64,
    /// It does not reach the leader any more for a while.
    pub unheard: u64,
    /// Somebody else is elected shortly after.
    pub election: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicDraw {
    pub partitions: i32,
    pub replication_factor: usize,
    pub min_isr: usize,
    pub flush_messages: Option<u64>,
    pub flush_ms: Option<u64>,
    pub segment_bytes: u32,
    pub retention_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerDraw {
    /// −1, 0, 1.
    pub acks: i16,
    pub idempotent: bool,
    /// Resends what may or may not have been written.
    pub retries: bool,
    pub in_flight: usize,
    pub gap_ms: u64,
    pub timeout_ms: u64,
    pub records_max: u64,
    pub value_bytes: u64,
}

impl Swarm {
    /// The mix of this seed.
    pub fn draw(seed: u64) -> Self {
        Self::draw_for(seed, ANY)
    }

    /// The mix of this seed within a given shape.
    pub fn draw_for(seed: u64, shape: Shape) -> Self {
        let mut rng = Rng::new(seed).fork(1);
        let brokers = shape.brokers.unwrap_or_else(|| [2, 2, 3, 3, 3, 3, 4, 4, 5, 5][rng.below(10) as usize]);
        let topics = (0..rng.within(1, 2)).map(|_| TopicDraw::draw(&mut rng, brokers, shape)).collect();
        let session_ms = rng.log_within(1_500, 9_000);
        let budget = match rng.below(10) {
            0..=5 => Budget::Strict,
            6..=8 => Budget::Loose,
            _ => Budget::None,
        };
        let count = rng.within(2, 4);
        let mut swarm = Self {
            brokers: brokers as i32,
            topics,
            session_ms,
            heartbeat_ms: (session_ms / rng.within(4, 8)).max(250),
            lag_ms: rng.log_within(600, 10_000),
            fetch_wait_ms: rng.log_within(100, 500),
            fetch_bytes_max: if rng.chance(300) { rng.within(80, 600) as u32 } else { 1_048_576 },
            backoff_ms: rng.log_within(50, 1_000),
            tick_ms: rng.log_within(100, 500),
            checkpoint_ms: rng.log_within(500, 5_000),
            sync_us: rng.log_within(200, 20_000),
            restart_ms: rng.log_within(100, 8_000),
            weather: Weather { delay: rng.log_within(100, 4_000), ..Weather::calm() },
            image_delay_us: rng.log_within(300, 20_000),
            image_slow: 0,
            image_delay_long_us: 0,
            answers_lost: 0,
            controller_late: 0,
            controller_late_us: 0,
            answers_late: 0,
            answers_late_us: 0,
            budget,
            restarts_proved: rng.chance(700),
            gaps: Gaps::default(),
            strikes: Strikes::default(),
            producers: (0..count).map(|n| ProducerDraw::draw(&mut rng, n)).collect(),
            consumers: rng.within(1, 2) as u32,
            poll_ms: rng.log_within(100, 1_000),
            delete_gap_ms: 0,
            acts: Acts::default(),
        };
        if !shape.calm {
            swarm.draw_faults(&mut rng);
        }
        if !shape.calm && !shape.unattended {
            swarm.acts = Acts::draw(seed);
        }
        swarm
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        if rng.chance(400) {
            self.weather.slow = rng.log_within(1, 60);
            self.weather.delay_long = rng.log_within(20_000, 6_000_000);
        }
        if rng.chance(300) {
            self.weather.breaks = rng.log_within(1, 20);
        }
        if rng.chance(400) {
            self.weather.stragglers = rng.log_within(20, 800);
        }
        if rng.chance(300) {
            self.weather.doubles = rng.log_within(2, 200);
        }
        if rng.chance(400) {
            self.image_slow = rng.log_within(10, 300);
            self.image_delay_long_us = rng.log_within(50_000, 8_000_000);
        }
        if rng.chance(300) {
            self.answers_lost = rng.log_within(10, 500);
        }
        if rng.chance(400) {
            self.controller_late = rng.log_within(20, 500);
            self.controller_late_us = rng.log_within(50_000, 10_000_000);
        }
        if rng.chance(400) {
            self.answers_late = rng.log_within(100, 800);
            self.answers_late_us = rng.log_within(50_000, 1_500_000);
        }
        if rng.chance(350) {
            self.weather.lame = Some(rng.within(1, self.brokers as u64) as i32);
            self.weather.lame_delay = rng.log_within(10_000, 800_000);
            // Some are so slow that they leave the ISR and come back all the time.
            if rng.chance(600) {
                self.lag_ms = (self.weather.lame_delay * rng.within(1, 6) / 1_000).clamp(600, 5_000);
            }
        }
        if rng.chance(500) {
            self.fetch_wait_ms = rng.log_within(100, self.lag_ms / 2);
        }
        if rng.chance(500) {
            self.strikes = Strikes {
                joins: rng.log_within(100, 900),
                late: rng.within(0, 900),
                late_ms: rng.log_within(500, 5_000),
                joiner: rng.within(0, 900),
                unheard: rng.within(0, 900),
                election: rng.within(0, 700),
            };
        }
        if rng.chance(250) {
            self.delete_gap_ms = rng.log_within(8_000, 60_000);
        }
        let mut gap = |per_mille: u64, low: u64, high: u64| {
            if rng.chance(per_mille) { rng.log_within(low, high) } else { 0 }
        };
        self.gaps = Gaps {
            kill: gap(600, 4_000, 40_000),
            power: gap(400, 5_000, 40_000),
            wipe: gap(300, 6_000, 40_000),
            stop: gap(350, 6_000, 40_000),
            pause: gap(400, 4_000, 40_000),
            pause_ms: gap(1_000, 200, 20_000),
            cut: gap(450, 3_000, 40_000),
            cut_ms: gap(1_000, 300, 20_000),
            isolate: gap(300, 6_000, 40_000),
            suspicion: gap(300, 4_000, 40_000),
            controller_out: gap(300, 5_000, 40_000),
            controller_out_ms: gap(1_000, 200, 10_000),
            controller_change: gap(350, 4_000, 40_000),
            image_hold: gap(350, 4_000, 40_000),
            image_hold_ms: gap(1_000, 300, 15_000),
            reset: gap(400, 1_000, 20_000),
            disk_error: gap(150, 10_000, 60_000),
            preferred: gap(500, 1_000, 30_000),
            double: gap(300, 8_000, 40_000),
        };
        // A seed without any trouble teaches nothing.
        if self.gaps.kill + self.gaps.power + self.gaps.stop + self.gaps.isolate + self.gaps.pause + self.gaps.double
            == 0
        {
            self.gaps.kill = rng.log_within(4_000, 20_000);
        }
    }
}

impl TopicDraw {
    fn draw(rng: &mut Rng, brokers: u64, shape: Shape) -> Self {
        let most = if rng.chance(300) { brokers.min(3) } else { brokers };
        let factor =
            shape.replication_factor.unwrap_or_else(|| if rng.chance(850) { rng.within(2.min(most), most) } else { 1 });
        let min_isr =
            shape.min_isr.unwrap_or_else(|| if rng.chance(600) { 2.min(factor) } else { rng.within(1, factor.min(3)) });
        Self {
            partitions: if rng.chance(700) { 1 } else { rng.within(2, 3) as i32 },
            replication_factor: factor as usize,
            min_isr: min_isr as usize,
            flush_messages: rng.chance(250).then_some(1),
            flush_ms: rng.chance(150).then(|| rng.log_within(50, 2_000)),
            segment_bytes: if rng.chance(700) { rng.log_within(512, 8_192) as u32 } else { 1_048_576 },
            retention_bytes: rng.chance(100).then(|| rng.log_within(2_048, 16_384)),
        }
    }
}

impl ProducerDraw {
    fn draw(rng: &mut Rng, number: u64) -> Self {
        let acks = match if number == 0 { 0 } else { rng.below(10) } {
            0..=5 => -1,
            6..=8 => 1,
            _ => 0,
        };
        let idempotent = acks == -1 && rng.chance(650);
        Self {
            acks,
            idempotent,
            retries: acks != 0 && (idempotent || rng.chance(500)),
            in_flight: if idempotent { rng.within(1, 5) as usize } else { rng.within(1, 3) as usize },
            gap_ms: rng.log_within(150, 1_200),
            timeout_ms: rng.log_within(300, 8_000),
            records_max: rng.within(1, 3),
            value_bytes: rng.log_within(16, 300),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_drawn_per_seed_and_again_the_same() {
        assert_eq!(format!("{:?}", Swarm::draw(3)), format!("{:?}", Swarm::draw(3)));
        assert_ne!(format!("{:?}", Swarm::draw(3)), format!("{:?}", Swarm::draw(4)));
        let calm = Swarm::draw_for(3, THREE_CALM_BROKERS);
        assert_eq!((calm.brokers, calm.gaps.kill, calm.weather.breaks), (3, 0, 0));
    }
}
