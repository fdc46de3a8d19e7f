//! Who waits for this partition: fetch sessions and single fetches, and what wakes them (D20, R79–R81, D32).
//!
//! A waiter is armed for one wake. After it, the partition is on the waiter's ready list, and the waiter asks it again.

use highwater_wire::Offset;

use super::progress::LastArrival;

/// Names one fetch session, or one fetch without a session, that waits for news; minted by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// Asks to be woken once. Armed only while fewer than `bytes_min` are available (the grant says so);
/// a waiter that was woken, or was not armed, asks the partition again in its next round.
///
/// Woken for data: a follower by an append, a consumer by a watermark move, both by an error or a change of epoch or
/// role. Noticed without being woken (a quiet wake): a follower by a watermark move (R81), both by a log start that moved,
/// which a session must tell (R88).
#[derive(Debug, Clone)]
pub struct Watch {
    pub waiter: WaiterId,
    /// At least 1: the request's MinBytes.
    pub bytes_min: u32,
    /// Of a follower's session: when its last request arrived (D20). `None` outside sessions.
    pub arrival: Option<LastArrival>,
}

/// What a waiter waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// A follower at this offset: anything appended.
    Follower { quietly_told: bool },
    /// A consumer: the watermark beyond this offset.
    Consumer { offset: Offset, quietly_told: bool },
}

/// Whom to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeUp {
    pub waiter: WaiterId,
    /// `false`: put the partition on the ready list, but let the waiter sleep.
    pub urgent: bool,
}

/// The armed waiters of one partition, in the order in which they were armed.
#[derive(Debug, Clone, Default)]
pub struct Park {
    armed: Vec<(WaiterId, Interest)>,
}

impl Park {
    /// Arms a waiter; an older arming of the same waiter is replaced.
    pub fn arm(&mut self, waiter: WaiterId, interest: Interest) {
        match self.armed.iter_mut().find(|(armed, _)| *armed == waiter) {
            Some((_, old)) => *old = interest,
            None => self.armed.push((waiter, interest)),
        }
    }

    /// The waiter is gone or no longer interested.
    pub fn disarm(&mut self, waiter: WaiterId) {
        self.armed.retain(|(armed, _)| *armed != waiter);
    }

    /// Records were appended: followers have something to fetch.
    pub fn on_appended(&mut self, mut wake: impl FnMut(WakeUp)) {
        self.armed.retain(|&(waiter, interest)| match interest {
            Interest::Follower { .. } => {
                wake(WakeUp { waiter, urgent: true });
                false
            }
            Interest::Consumer { .. } => true,
        });
    }

    /// The watermark moved: consumers below it have something to read; followers hear of it with their next answer
    /// (R81: waking them for it made large clusters thrash).
    pub fn on_watermark(&mut self, high_watermark: Offset, mut wake: impl FnMut(WakeUp)) {
        self.armed.retain_mut(|(waiter, interest)| match interest {
            Interest::Follower { quietly_told } => {
                if !*quietly_told {
                    *quietly_told = true;
                    wake(WakeUp { waiter: *waiter, urgent: false });
                }
                true
            }
            Interest::Consumer { offset, .. } if *offset < high_watermark => {
                wake(WakeUp { waiter: *waiter, urgent: true });
                false
            }
            Interest::Consumer { .. } => true,
        });
    }

    /// The log begins elsewhere: everybody hears of it with the next answer.
    pub fn on_start(&mut self, mut wake: impl FnMut(WakeUp)) {
        for (waiter, interest) in &mut self.armed {
            let (Interest::Follower { quietly_told } | Interest::Consumer { quietly_told, .. }) = interest;
            if !std::mem::replace(quietly_told, true) {
                wake(WakeUp { waiter: *waiter, urgent: false });
            }
        }
    }

    /// An error, an epoch or a role changed: everybody asks again and learns of it (D32).
    pub fn wake_all(&mut self, mut wake: impl FnMut(WakeUp)) {
        self.armed.drain(..).for_each(|(waiter, _)| wake(WakeUp { waiter, urgent: true }));
    }

    /// How many are armed.
    pub fn len(&self) -> usize {
        self.armed.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLLOWER: Interest = Interest::Follower { quietly_told: false };

    fn consumer(offset: i64) -> Interest {
        Interest::Consumer { offset: Offset(offset), quietly_told: false }
    }

    fn park(waiters: &[(u64, Interest)]) -> Park {
        let mut park = Park::default();
        waiters.iter().for_each(|&(id, interest)| park.arm(WaiterId(id), interest));
        park
    }

    fn collect(feed: impl FnOnce(&mut dyn FnMut(WakeUp))) -> Vec<(u64, bool)> {
        let mut woken = Vec::new();
        feed(&mut |wake| woken.push((wake.waiter.0, wake.urgent)));
        woken
    }

    #[test]
    fn an_append_wakes_followers_once_and_no_consumer() {
        let mut park = park(&[(1, FOLLOWER), (2, consumer(5))]);
        assert_eq!(collect(|wake| park.on_appended(wake)), [(1, true)]);
        assert_eq!(collect(|wake| park.on_appended(wake)), [], "not again before it asked again");
        assert_eq!(park.len(), 1);
    }

    #[test]
    fn a_watermark_move_wakes_consumers_below_it_and_only_tells_followers() {
        let mut park = park(&[(1, FOLLOWER), (2, consumer(5)), (3, consumer(7))]);
        assert_eq!(collect(|wake| park.on_watermark(Offset(6), wake)), [(1, false), (2, true)]);
        assert_eq!(
            collect(|wake| park.on_watermark(Offset(7), wake)),
            [],
            "told once; a consumer at the watermark waits"
        );
        assert_eq!(collect(|wake| park.on_appended(wake)), [(1, true)], "the follower still waits for data");
    }

    #[test]
    fn a_log_start_that_moves_is_told_once_to_everybody_and_wakes_nobody() {
        let mut park = park(&[(1, FOLLOWER), (2, consumer(5))]);
        assert_eq!(collect(|wake| park.on_start(wake)), [(1, false), (2, false)]);
        assert_eq!(collect(|wake| park.on_start(wake)), []);
        assert_eq!(collect(|wake| park.on_watermark(Offset(6), wake)), [(2, true)], "and it still waits for data");
        assert_eq!(collect(|wake| park.on_appended(wake)), [(1, true)]);
    }

    #[test]
    fn a_change_of_role_wakes_everybody() {
        let mut park = park(&[(1, FOLLOWER), (2, consumer(5))]);
        assert_eq!(collect(|wake| park.wake_all(wake)), [(1, true), (2, true)]);
        assert!(park.is_empty());
    }

    #[test]
    fn a_waiter_that_left_is_not_woken() {
        let mut park = park(&[(1, FOLLOWER), (2, FOLLOWER)]);
        park.disarm(WaiterId(1));
        assert_eq!(collect(|wake| park.on_appended(wake)), [(2, true)]);
    }
}
