//! A straight line through samples, and how much it may rise.

use std::fmt;

use serde_json::{Value, json};

use super::sample::Metric;

/// How much a metric may grow: noise, whatever the time, and a rate.
struct Bound {
    /// Between the ends of the line.
    noise: f64,
    /// An hour, at the churn of a day.
    hourly: f64,
}

const MIB: f64 = 1_048_576.0;

/// Noise: the mean of five runs of three minutes and three standard deviations, rounded up (tests/README.md); of the store
/// and the snapshots what the quorum keeps between two snapshots. Rates: fault-testing §8.
const fn bound(metric: Metric) -> Bound {
    match metric {
        Metric::Memory => Bound { noise: 3.0 * MIB, hourly: MIB },
        Metric::Descriptors => Bound { noise: 15.0, hourly: 0.0 },
        Metric::Threads => Bound { noise: 2.0, hourly: 0.0 },
        Metric::Store => Bound { noise: 16.0 * MIB, hourly: 0.0 },
        Metric::Snapshots => Bound { noise: MIB, hourly: 0.0 },
        Metric::Data => Bound { noise: 0.25 * MIB, hourly: 0.0 },
        // 50 MB a day.
        Metric::Log => Bound { noise: 0.05 * MIB, hourly: 50.0 / 24.0 * MIB },
    }
}

/// How a metric went.
#[derive(Debug, Clone)]
pub struct Growth {
    pub metric: Metric,
    /// Of the line, at its two ends.
    first: f64,
    last: f64,
    allowed: f64,
    seconds: f64,
}

impl Growth {
    fn grown(&self) -> f64 {
        self.last - self.first
    }

    pub fn is_too_much(&self) -> bool {
        self.grown() > self.allowed
    }

    /// Growth by what is allowed.
    pub fn excess(&self) -> f64 {
        self.grown() / self.allowed
    }

    pub fn json(&self) -> Value {
        let round = |value: f64| (value * 10.0).round() / 10.0;
        let (first, last, allowed) = (round(self.first), round(self.last), round(self.allowed));
        json!({ "first": first, "last": last, "grown": round(self.grown()), "allowed": allowed })
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, first, last) = (self.metric.name(), self.first, self.last);
        let (grown, allowed, seconds) = (self.grown(), self.allowed, self.seconds);
        write!(f, "{name} from {first:.0} to {last:.0} in {seconds:.0} s: {grown:.0} more, {allowed:.0} allowed")
    }
}

/// The line through samples (seconds, value), and whether it rises too much. `None`: too few to say.
pub fn judge(metric: Metric, churn: u32, samples: &[(f64, f64)]) -> Option<Growth> {
    let (first, last) = (samples.first()?.0, samples.last()?.0);
    let seconds = last - first;
    if samples.len() < 10 {
        return None;
    }
    let count = samples.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (mean_time, mean_value) = (mean(|sample| sample.0), mean(|sample| sample.1));
    let spread: f64 = samples.iter().map(|(time, _)| (time - mean_time).powi(2)).sum();
    let slope = samples.iter().map(|(time, value)| (time - mean_time) * (value - mean_value)).sum::<f64>() / spread;
    let bound = bound(metric);
    let at = |time: f64| mean_value + slope * (time - mean_time);
    let allowed = bound.noise + bound.hourly * f64::from(churn) * seconds / 3_600.0;
    Some(Growth { metric, first: at(first), last: at(last), allowed, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(mib_a_minute: f64, noise: f64) -> Growth {
        let samples: Vec<(f64, f64)> = (0..120)
            .map(|second| {
                let wave = if second % 2 == 0 { noise } else { -noise };
                (f64::from(second), (100.0 + mib_a_minute * f64::from(second) / 60.0 + wave) * MIB)
            })
            .collect();
        judge(Metric::Memory, 10, &samples).expect("samples enough")
    }

    #[test]
    fn noise_however_large_is_no_growth() {
        assert!(!memory(0.0, 30.0).is_too_much());
    }

    #[test]
    fn a_leak_shows_through_the_noise() {
        let growth = memory(5.0, 5.0);
        assert!(growth.is_too_much(), "{growth}");
        assert!((growth.grown() / MIB - 9.9).abs() < 0.5, "{growth}");
    }

    #[test]
    fn a_fall_is_no_leak() {
        assert!(!memory(-20.0, 0.0).is_too_much());
    }

    #[test]
    fn too_few_samples_say_nothing() {
        assert!(judge(Metric::Threads, 1, &[(0.0, 1.0), (1.0, 100.0)]).is_none());
    }
}
