//! Coverage: how often a run came to what this simulation is for. A run that hardly ever comes there proves little,
//! however many seeds it has.
//!
//! Counting draws nothing and changes nothing: with and without it a seed is the same.

use std::collections::BTreeMap;

/// How often at least [`SEEDS`] seeds must come to each of them; fewer seeds, in proportion.
pub const LEAST: u64 = 20;
pub const SEEDS: u64 = 300;
/// Runs of fewer seeds are not held to it.
pub const SEEDS_FEWEST: u64 = 100;

macro_rules! marks {
    ($($(#[doc = $doc:literal])* $mark:ident => $name:literal,)*) => {
        /// Something that must happen often.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mark {
            $($(#[doc = $doc])* $mark,)*
        }

        impl Mark {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$mark,)*];

            /// As the run prints it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$mark => $name,)*
                }
            }
        }
    };
}

marks! {
    /// A leader lived on in its term while another one led a newer term: a partition that mattered.
    TwoLeaders => "old_leader_beside_new",
    /// A node stayed alone for so long that its term was held against it (pre-vote).
    Alone => "alone_and_watched",
    /// A process gave up entries at the end of its log: a leader's that were never committed.
    Truncated => "entries_truncated",
    /// A machine lost its power while a vote was not on its disk.
    VoteUnsynced => "power_lost_with_unsynced_vote",
    /// The same with entries of raft's log.
    EntriesUnsynced => "power_lost_with_unsynced_entries",
    /// Entries of raft's log were lost in a crash.
    EntriesLost => "entries_lost_in_a_crash",
    /// A process ended since a sync failed.
    SyncFailed => "ended_by_a_failed_sync",
    /// A process wrote a snapshot.
    SnapshotTaken => "snapshot_taken",
    /// A node took over the snapshot of its leader.
    SnapshotInstalled => "snapshot_installed",
    /// A process purged its log up to a snapshot.
    Purged => "log_purged",
    /// A process started on a disk whose log had been purged.
    BootedPurged => "booted_on_a_purged_log",
    /// Somebody asked for a voter that was added, and was told that it votes.
    VoterAdded => "voter_added",
    /// The same for one that was removed.
    VoterRemoved => "voter_removed",
    /// The same for one that took another's place.
    VoterReplaced => "voter_replaced",
    /// A leader began its term in the middle of a change of voters.
    JointInherited => "joint_step_inherited",
    /// A leader handed over on purpose.
    HandedOver => "leadership_handed_over",
    /// A proposal went to another node, which answered.
    Forwarded => "proposal_forwarded",
    /// A proposal arrived a second time.
    ProposedTwice => "proposal_duplicated",
    /// A command that may be repeated was applied again.
    AppliedAgain => "command_applied_again",
    /// Raft's own messages arrived a second time.
    RaftTwice => "raft_message_duplicated",
    /// A proposal whose maker was told nothing had its effect.
    UnknownApplied => "unknown_but_applied",
    /// Another one had none.
    UnknownLost => "unknown_and_never_applied",
    /// A proposal was acknowledged by a leader of a term that began after it was made.
    AckedByNext => "acknowledged_in_a_later_term",
    /// A linearizable read was answered.
    Read => "read_answered",
    /// A linearizable read was not answered.
    ReadRefused => "read_not_answered",
}

/// Counts by [`Mark`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<Mark, u64>);

impl Marks {
    pub fn hit(&mut self, mark: Mark) {
        *self.0.entry(mark).or_default() += 1;
    }

    /// All marks with their counts.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        Mark::ALL.iter().map(|mark| (mark.name(), self.0.get(mark).copied().unwrap_or(0))).collect()
    }
}

/// The marks that a run of so many seeds came to too seldom, with how often it should have.
pub fn rare(sums: &BTreeMap<String, u64>, seeds: u64) -> Vec<(&'static str, u64)> {
    if seeds < SEEDS_FEWEST {
        return Vec::new();
    }
    let least = LEAST * seeds.min(SEEDS) / SEEDS;
    let seldom = |mark: &&Mark| sums.get(mark.name()).is_none_or(|count| *count < least);
    Mark::ALL.iter().filter(seldom).map(|mark| (mark.name(), least)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hardly_ever_happened_is_named() {
        let often = |count| Mark::ALL.iter().map(|mark| (mark.name().to_owned(), count)).collect::<BTreeMap<_, _>>();
        assert_eq!(rare(&often(LEAST), SEEDS), []);
        assert_eq!(rare(&often(LEAST), 10 * SEEDS), []);
        assert_eq!(rare(&often(LEAST / 2), SEEDS / 2), []);
        assert_eq!(rare(&often(LEAST - 1), SEEDS).len(), Mark::ALL.len());
        let mut one_missing = often(LEAST);
        one_missing.remove(Mark::Purged.name());
        assert_eq!(rare(&one_missing, SEEDS), [(Mark::Purged.name(), LEAST)]);
        assert_eq!(rare(&BTreeMap::new(), SEEDS_FEWEST - 1), [], "too few seeds to ask for anything");
    }
}
