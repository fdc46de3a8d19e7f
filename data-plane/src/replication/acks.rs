//! Produce requests that wait for the watermark or a deadline.

/// Names one waiting request of a client; minted by the caller, comes back with the answer in [`Output::Reply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);
