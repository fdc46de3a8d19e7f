//! Who waits for this partition: fetch sessions and single fetches, and what wakes them (D20, R79–R81).

use super::progress::LastArrival;

/// Names one fetch session, or one fetch without a session, that waits for news; minted by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// Asks to be woken once. Armed only while fewer than `bytes_min` are available (the grant says so);
/// a waiter that was woken, or was not armed, asks the partition again in its next round.
///
/// Woken for data: a follower by an append, a consumer by a watermark move, both by an error or a change of epoch or
/// role. Noticed without being woken (a quiet wake): a follower by a watermark move (R81).
#[derive(Debug, Clone)]
pub struct Watch {
    pub waiter: WaiterId,
    /// At least 1: the request's MinBytes.
    pub bytes_min: u32,
    /// Of a follower's session: when its last request arrived (D20). `None` outside sessions.
    pub arrival: Option<LastArrival>,
}
