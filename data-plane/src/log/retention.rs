//! Which segments may go (R272). Pure.

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{Offset, Timestamp};

/// What retention needs to know of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Exclusive: where the next segment begins, or the end of the log.
    pub end: Offset,
    pub bytes: u64,
    /// Of its records; when it was made, if they carry none.
    pub largest_timestamp: Timestamp,
}

/// The limits of the topic. `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub retention_ms: Option<u64>,
    pub retention_bytes: Option<u64>,
}

/// How many of the oldest segments may go. All of them only if the last one, the active, holds records: it is rolled first.
///
/// A segment goes when it is too old, when the log is too large without it, or when it ends below the log's start; never
/// with records at or above the high watermark, and never before an older one.
pub fn plan_removal(
    segments: &[SegmentFacts],
    start: Offset,
    high_watermark: Offset,
    now: Timestamp,
    limits: Limits,
) -> usize {
    let too_old = |segment: &SegmentFacts| {
        limits.retention_ms.is_some_and(|max| {
            u64::try_from(now.0.saturating_sub(segment.largest_timestamp.0)).is_ok_and(|age| age > max)
        })
    };
    let mut bytes_left: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut removable = 0;
    for (index, segment) in segments.iter().enumerate() {
        let last = index + 1 == segments.len();
        let committed = segment.end <= high_watermark || planted(Flaw::RetainsNothing);
        if !committed || (last && segment.bytes == 0) {
            break;
        }
        let bytes_after = bytes_left - segment.bytes;
        let too_large = limits.retention_bytes.is_some_and(|max| bytes_after >= max);
        let below_start = !last && segment.end <= start;
        if !(too_old(segment) || too_large || below_start) {
            break;
        }
        bytes_left = bytes_after;
        removable = index + 1;
    }
    removable
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Limits = Limits { retention_ms: None, retention_bytes: None };

    /// Four segments of 100 bytes and 10 offsets, a second apart.
    fn segments() -> Vec<SegmentFacts> {
        (1..=4)
            .map(|n| SegmentFacts { end: Offset(n * 10), bytes: 100, largest_timestamp: Timestamp(n * 1_000) })
            .collect()
    }

    fn plan(start: i64, high_watermark: i64, now: i64, limits: Limits) -> usize {
        plan_removal(&segments(), Offset(start), Offset(high_watermark), Timestamp(now), limits)
    }

    #[test]
    fn without_limits_only_what_is_below_the_start_goes() {
        assert_eq!(plan(0, 40, i64::MAX, NONE), 0);
        assert_eq!(plan(19, 40, 0, NONE), 1);
        assert_eq!(plan(20, 40, 0, NONE), 2);
    }

    #[test]
    fn segments_go_by_age_and_never_past_a_younger_one() {
        let limits = Limits { retention_ms: Some(500), ..NONE };
        assert_eq!(plan(0, 40, 1_500, limits), 0, "exactly at the limit it stays");
        assert_eq!(plan(0, 40, 1_501, limits), 1);
        assert_eq!(plan(0, 40, 10_000, limits), 4, "the active one too: it is rolled first");
        let mut young_first = segments();
        young_first[0].largest_timestamp = Timestamp(9_999);
        assert_eq!(plan_removal(&young_first, Offset(0), Offset(40), Timestamp(10_000), limits), 0);
    }

    #[test]
    fn segments_go_while_the_rest_is_large_enough() {
        let by_size = |bytes| plan(0, 40, 0, Limits { retention_bytes: Some(bytes), ..NONE });
        assert_eq!(by_size(400), 0);
        assert_eq!(by_size(301), 0, "what remains must not be smaller than the limit");
        assert_eq!(by_size(300), 1);
        assert_eq!(by_size(150), 2);
    }

    #[test]
    fn nothing_at_or_above_the_watermark_goes() {
        let limits = Limits { retention_ms: Some(0), ..NONE };
        assert_eq!(plan(0, 25, 100_000, limits), 2);
        assert_eq!(plan(0, 5, 100_000, limits), 0);
    }

    #[test]
    fn an_empty_active_segment_stays() {
        let mut with_empty = segments();
        with_empty.push(SegmentFacts { end: Offset(40), bytes: 0, largest_timestamp: Timestamp(0) });
        let limits = Limits { retention_ms: Some(0), retention_bytes: Some(0) };
        assert_eq!(plan_removal(&with_empty, Offset(0), Offset(40), Timestamp(100_000), limits), 4);
    }
}
