//! Coverage: how often a run came to states that are rare and that faults hide in. A run that hardly ever comes there
//! proves little, however many seeds it has.
//!
//! Counting draws nothing and changes nothing: with and without it a seed is the same.

/// How often at least a run of [`CI_SEEDS`] must come to each state.
pub const LEAST: u64 = 100;
/// The seeds of a run that is held to that, from 0 on.
pub const CI_SEEDS: u64 = 4_000;

macro_rules! marks {
    ($($(#[doc = $doc:literal])* $mark:ident => $name:literal,)*) => {
        /// A rare state.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

        const MARKS: usize = Mark::ALL.len();
    };
}

marks! {
    /// A leader ended while the controller had not answered that a follower may join (R123).
    LeaderEndedExpanding => "leader_ended_expanding",
    /// The same while a follower was to leave.
    LeaderEndedShrinking => "leader_ended_shrinking",
    /// A proposal was answered when its sender led no more, or in another epoch (R134).
    AnsweredTooLate => "proposal_answered_after_leadership",
    /// A proposal was refused since the partition had changed (R133).
    ProposalOutdated => "proposal_outdated",
    /// A proposal was refused for a member that had registered anew or is out (KIP-903).
    MemberIneligible => "member_ineligible",
    /// A member of the ELR was elected (R189).
    ElrElected => "elr_elected",
    /// An unclean election lost committed records.
    UncleanWithLoss => "unclean_election_with_loss",
    /// A session that had served rounds before told its follower that their logs part (R99).
    DivergedInSession => "diverged_in_session",
    /// A session that waited was given up for a new connection.
    SessionReplaced => "waiting_session_replaced",
    /// A fetch of a former process of its broker was refused (R103).
    FormerProcessFetched => "former_process_fetched",
    /// A leader's answer came to a process that did not wait for it any more (R152).
    AnswerToNobody => "fetch_answer_to_nobody",
    /// A truncation removed whole segments.
    SegmentsCut => "truncated_below_a_segment",
    /// A log was emptied and began anew elsewhere (R162).
    BegunAnew => "log_begun_anew",
    /// Opening a log cut off one incomplete last batch (R20).
    TornTailCut => "torn_tail_cut",
    /// Opening a log found that more may be gone, and a member of ISR or ELR said so (D10).
    LossReported => "loss_reported_at_start",
    /// A log was opened with idempotent producers in it, after a stop that was not orderly (R26).
    ProducersRebuilt => "producers_rebuilt",
    /// A producer's batch that was stored already was answered, not stored again (R58).
    DuplicateAnswered => "duplicate_answered",
    /// A new leader would not tell its end yet (R94).
    EndNotTold => "end_not_told_yet",
    /// Acks=all was refused below min ISR (R42).
    RefusedBelowMinIsr => "refused_below_min_isr",
    /// A broker that lives was fenced for a false suspicion (D7).
    FencedByMistake => "fenced_by_mistake",
    /// A restart was believed before the session ended (D9).
    RestartBelieved => "restart_believed",
    /// DeleteRecords waited for other replicas and was answered then (R274).
    DeleteAwaited => "delete_awaited",
}

/// Counts by [`Mark`].
#[derive(Debug, Clone, Copy)]
pub struct Marks([u64; MARKS]);

impl Default for Marks {
    fn default() -> Self {
        Self([0; MARKS])
    }
}

impl Marks {
    pub fn hit(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (sum, one) in self.0.iter_mut().zip(other.0) {
            *sum += one;
        }
    }

    /// All marks with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (Mark, u64)> + '_ {
        Mark::ALL.iter().map(|&mark| (mark, self.0[mark as usize]))
    }

    /// Marks that a run of the CI came to too seldom, with their counts.
    pub fn rare(&self) -> impl Iterator<Item = (Mark, u64)> + '_ {
        self.counts().filter(|(_, count)| *count < LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_hardly_ever_reached_is_named() {
        let mut marks = Marks::default();
        for _ in 0..LEAST {
            Mark::ALL.iter().for_each(|&mark| marks.hit(mark));
        }
        assert_eq!(marks.rare().count(), 0);
        let mut fewer = Marks::default();
        fewer.hit(Mark::ElrElected);
        marks.add(&fewer);
        assert_eq!(marks.counts().find(|(mark, _)| *mark == Mark::ElrElected).unwrap().1, LEAST + 1);
        assert_eq!(fewer.rare().count(), MARKS, "one is not enough");
    }
}
