//! The pure half of a replica: what it is to its partition and what follows from what happens to it.

use self::follower::FollowerNext;

pub mod acks;
pub mod follower;
pub mod park;
pub mod peers;
pub mod progress;
pub mod refusal;

/// What became of an assignment handed to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    Leader,
    /// With what the fetcher has to do.
    Follower(FollowerNext),
    /// No leader, or not one of the replicas.
    Idle,
    /// The image is older than one applied, or of another process of this broker: nothing changed.
    Ignored,
}
