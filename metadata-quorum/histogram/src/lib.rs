//! What openraft counts its batch sizes in, where nobody reads them: a counter for each power of two.
//!
//! The crate that openraft takes for this builds its tables for sixteen resolutions at the first histogram, 23 MB that stay
//! for the life of the process, and uses one of them. This offers as much of it as openraft names; the workspace puts it in
//! its place. The percentiles are those of the counters: the lower end of the power of two that holds them.

use std::fmt;
use std::marker::PhantomData;

/// One counter for zero and one for each bit length of a `u64`.
const COUNTERS: usize = u64::BITS as usize + 1;

/// How often values of each size were recorded. `T` marks nothing here.
pub struct Histogram<T = ()> {
    counters: [u64; COUNTERS],
    marks: PhantomData<fn() -> T>,
}

impl<T> Histogram<T> {
    #[must_use]
    pub const fn new() -> Self {
        Self { counters: [0; COUNTERS], marks: PhantomData }
    }

    pub const fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// The same value `count` times.
    pub const fn record_n(&mut self, value: u64, count: u64) {
        self.counters[(u64::BITS - value.leading_zeros()) as usize] += count;
    }

    /// How many values were recorded.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counters.iter().sum()
    }

    #[must_use]
    pub fn percentile_stats(&self) -> PercentileStats {
        let samples = self.total();
        let at = |per_mille: u64| {
            let rank = (samples * per_mille).div_ceil(1_000).max(1);
            let mut seen = 0;
            let reached = self.counters.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            match reached {
                None | Some(0) => 0,
                Some(bits) => 1 << (bits - 1),
            }
        };
        PercentileStats {
            samples,
            p0_1: at(1),
            p1: at(10),
            p5: at(50),
            p10: at(100),
            p50: at(500),
            p90: at(900),
            p99: at(990),
            p99_9: at(999),
        }
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Histogram<T> {
    fn clone(&self) -> Self {
        Self { counters: self.counters, marks: PhantomData }
    }
}

impl<T> PartialEq for Histogram<T> {
    fn eq(&self, other: &Self) -> bool {
        self.counters == other.counters
    }
}

impl<T> Eq for Histogram<T> {}

impl<T> fmt::Debug for Histogram<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.percentile_stats().fmt(f)
    }
}

/// Where so many of the values lie: `p99` of 8 means that 99 % of them are below 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, p50, p90, p99, .. } = self;
        write!(f, "{samples} samples, p50 {p50}, p90 {p90}, p99 {p99}")
    }
}

/// Several histograms, a line each.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart(Vec<(String, Histogram)>);

impl AsciiChart {
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    #[must_use]
    pub fn add(mut self, name: &str, histogram: Histogram) -> Self {
        self.0.push((name.to_owned(), histogram));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, histogram)| writeln!(f, "{name}: {}", histogram.percentile_stats()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_powers_of_two_that_hold_them() {
        let mut sizes: Histogram = Histogram::new();
        assert_eq!(sizes.percentile_stats(), PercentileStats::default());
        for value in [0, 1, 5, 5, 5, 5, 5, 5, 5, u64::MAX] {
            sizes.record(value);
        }
        let stats = sizes.percentile_stats();
        assert_eq!((stats.samples, stats.p10, stats.p50, stats.p90, stats.p99), (10, 0, 4, 4, 1 << 63));
        assert_eq!(
            AsciiChart::new().add("sizes", sizes).to_string(),
            "sizes: 10 samples, p50 4, p90 4, p99 9223372036854775808\n"
        );
    }
}
