//! One timer for all partitions: each says when it wants to be ticked next, the earliest rings.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use highwater_wire::{Millis, TopicPartition};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Clock;

/// The longest sleep, in milliseconds: a clock that jumps (a suspended machine) is noticed after this.
const SLEEP_MAX: u64 = 60_000;

#[derive(Default)]
pub struct Alarms {
    heap: Mutex<BinaryHeap<Reverse<(Millis, TopicPartition)>>>,
    earlier: Notify,
}

impl Alarms {
    /// Rings for `partition` at `at` or soon after.
    pub fn set(&self, at: Millis, partition: TopicPartition) {
        let mut heap = self.heap.lock();
        let earlier = heap.peek().is_none_or(|Reverse((first, _))| at < *first);
        heap.push(Reverse((at, partition)));
        drop(heap);
        if earlier {
            self.earlier.notify_one();
        }
    }

    /// What is due, each partition once, and when the next one is.
    fn take_due(&self, now: Millis) -> (Vec<TopicPartition>, Millis) {
        let mut due = Vec::new();
        let mut heap = self.heap.lock();
        while let Some(Reverse((at, partition))) = heap.peek().copied()
            && at <= now
        {
            heap.pop();
            due.push(partition);
        }
        let next = heap.peek().map_or(Millis::MAX, |Reverse((at, _))| *at);
        drop(heap);
        due.sort_unstable();
        due.dedup();
        (due, next)
    }

    /// Waits until something is due, and takes all that is; each partition once.
    pub async fn next(&self, clock: &Clock) -> Vec<TopicPartition> {
        loop {
            let now = clock.mono();
            let (due, next) = self.take_due(now);
            if !due.is_empty() {
                return due;
            }
            let sleep_until = clock.instant(next.min(now + Millis(SLEEP_MAX))).into();
            tokio::select! {
                () = tokio::time::sleep_until(sleep_until) => {}
                () = self.earlier.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_wire::TopicId;

    #[tokio::test]
    async fn the_earliest_alarm_rings_first_and_an_earlier_one_set_meanwhile_is_heard() {
        let (alarms, clock) = (Alarms::default(), Clock::new());
        let at = |partition| TopicPartition::new(TopicId::from_bytes([7; 16]), partition);
        alarms.set(Millis(1 << 50), at(0));
        let rung = tokio::time::timeout(std::time::Duration::from_secs(10), alarms.next(&clock));
        let (due, ()) = tokio::join!(rung, async {
            tokio::task::yield_now().await;
            alarms.set(clock.mono(), at(1));
        });
        assert_eq!(due.expect("at once, not when the other one is due or SLEEP_MAX is over"), [at(1)]);
        alarms.set(Millis(1), at(2));
        alarms.set(Millis(2), at(2));
        assert_eq!(alarms.next(&clock).await, [at(2)]);
    }
}
