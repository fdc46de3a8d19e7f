//! When raft on this node looks at its clock: a leader to tell the others that it lives, everybody else once its leader has
//! been silent for a while.
//!
//! openraft's own clock ticks fifty times a second on every node, whatever there is to do. Here it stands still while a
//! leader is heard: until the lease and an election timeout have passed (D5) a tick could not lead to anything.

use std::sync::Arc;
use std::time::Duration;

use highwater_wire::Millis;
use openraft::async_runtime::watch::WatchReceiver as _;

use super::node::Node;

/// Raft's own heartbeat (D5).
pub(super) const HEARTBEAT: Duration = Duration::from_millis(100);

/// What a node does about its clock, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pulse {
    /// It leads: it says so, and again after [`HEARTBEAT`].
    Beat,
    /// It was told by a leader a moment ago: there is nothing to be doubted for so long.
    Trust(Millis),
    /// Nobody leads that this node hears: openraft's clock runs, and its rules decide.
    Doubt,
}

/// `heard`: how long ago a leader spoke to this node. `patience`: the shortest silence that can lead to an election.
fn pulse(leads: bool, heard: Option<Millis>, patience: Millis) -> Pulse {
    match heard {
        _ if leads => Pulse::Beat,
        Some(silence) if silence < patience => Pulse::Trust(patience - silence),
        _ => Pulse::Doubt,
    }
}

/// Runs on every node until raft ends.
pub(super) async fn run(node: Arc<Node>) {
    let patience = node.limits.election_timeout / 2;
    let patience_ms = Millis(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
    let mut leaders = node.leader_changes();
    loop {
        let pulse = pulse(node.is_leader(), node.leader_heard_age(), patience_ms);
        node.raft.runtime_config().tick(pulse == Pulse::Doubt);
        let pause = match pulse {
            Pulse::Beat => {
                if has_others(&node) && node.raft.trigger().heartbeat().await.is_err() {
                    return;
                }
                HEARTBEAT
            }
            Pulse::Trust(left) => Duration::from_millis(left.0),
            Pulse::Doubt => patience,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = leaders.changed() => if !changed { return },
        }
    }
}

/// Whether there is anybody to tell.
fn has_others(node: &Node) -> bool {
    let metrics = node.raft.server_metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.nodes().any(|(id, _)| *id != node.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openrafts_clock_runs_only_where_no_leader_is_heard() {
        let patience = Millis(300);
        assert_eq!(pulse(true, None, patience), Pulse::Beat);
        assert_eq!(pulse(true, Some(Millis(5)), patience), Pulse::Beat, "what it heard before it led says nothing");
        assert_eq!(pulse(false, Some(Millis(99)), patience), Pulse::Trust(Millis(201)));
        assert_eq!(pulse(false, Some(Millis(300)), patience), Pulse::Doubt);
        assert_eq!(pulse(false, None, patience), Pulse::Doubt, "a new node, or one that was cut off");
    }
}
