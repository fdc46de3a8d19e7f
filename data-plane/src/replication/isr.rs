//! The in-sync replicas: as the controller last said, and at most one proposal in flight (R7, R113, R123, R133–R135, D26).
//!
//! The proposal is kept as it was sent. A resent one that named newer broker epochs would vouch for a process that the
//! leader has not heard of.

use highwater_quorum::controller::{AlteredPartition, IsrProposal, IsrReason};
use highwater_quorum::flaws::{Flaw, planted};
#[cfg(feature = "sim")]
use highwater_wire::BrokerEpoch;
use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, Millis, PartitionEpoch};

/// How long an unanswered proposal is left alone before it is sent again.
pub const RESEND_UNANSWERED: Millis = Millis(1_000);
/// How long to wait after "no leader", a time-out and the like (R128).
pub const RESEND_REFUSED: Millis = Millis(50);

/// Committed and pending ISR of one leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsrState {
    committed: Vec<BrokerId>,
    pending: Option<Pending>,
}

/// A change the controller may or may not have applied.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pending {
    proposal: Box<IsrProposal>,
    /// The member it adds; `None` for a shrink.
    joining: Option<BrokerId>,
    next_send: NextSend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextSend {
    At(Millis),
    /// The controller's answer will be explained by metadata; sending again would not help (R133).
    Never,
}

/// What an answer of the controller led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsrOutcome {
    /// Of a proposal that is no longer the pending one, or of another state (R134).
    Ignored,
    /// The committed ISR and the partition epoch are those of the answer.
    Committed,
    /// Nothing was applied and nothing will be: back to the committed ISR, wait for the next trigger.
    Dropped(ErrorCode),
    /// It stays pending until metadata explains it.
    AwaitsMetadata(ErrorCode),
    /// It stays pending and will be sent again.
    Resent(ErrorCode),
}

impl IsrState {
    /// Nothing in flight.
    pub fn stable(committed: impl IntoIterator<Item = BrokerId>) -> Self {
        Self { committed: committed.into_iter().collect(), pending: None }
    }

    /// As the controller last said.
    pub fn committed(&self) -> &[BrokerId] {
        &self.committed
    }

    /// The proposal in flight.
    pub fn pending(&self) -> Option<&IsrProposal> {
        self.pending.as_ref().map(|pending| &*pending.proposal)
    }

    /// The larger of the two sets the controller may be at: a joining member counts from the moment of submission, a
    /// leaving one until the controller has said that it left (R123).
    pub fn maximal(&self) -> impl Iterator<Item = BrokerId> + '_ {
        self.committed.iter().copied().chain(self.joining())
    }

    /// Whether `broker` is in the maximal ISR.
    pub fn maximal_contains(&self, broker: BrokerId) -> bool {
        self.committed.contains(&broker) || self.joining() == Some(broker)
    }

    /// Size of the maximal ISR.
    pub fn maximal_len(&self) -> usize {
        self.committed.len() + usize::from(self.joining().is_some())
    }

    fn joining(&self) -> Option<BrokerId> {
        self.pending.as_ref().and_then(|pending| pending.joining)
    }

    /// Submits a change. Panics when one is pending: at most one is in flight (R127).
    pub fn propose(&mut self, proposal: IsrProposal, now: Millis) {
        assert!(self.pending.is_none(), "an ISR change is pending: {:?}", self.pending);
        let joining = match proposal.why {
            IsrReason::Expand(_) => {
                let joins = |&&(broker, _): &&(BrokerId, _)| !self.committed.contains(&broker);
                proposal.isr.iter().find(joins).map(|&(broker, _)| broker)
            }
            IsrReason::Shrink(_) | IsrReason::Recovered => None,
        };
        let next_send = NextSend::At(now + RESEND_UNANSWERED);
        self.pending = Some(Pending { proposal: Box::new(proposal), joining, next_send });
    }

    /// When the pending proposal is to be sent again.
    pub fn resend_at(&self) -> Option<Millis> {
        match self.pending.as_ref()?.next_send {
            NextSend::At(at) => Some(at),
            NextSend::Never => None,
        }
    }

    /// The pending proposal, word for word, when it is due again.
    pub fn take_resend(&mut self, now: Millis) -> Option<Box<IsrProposal>> {
        let pending = self.pending.as_mut()?;
        match pending.next_send {
            NextSend::At(at) if at <= now => {
                pending.next_send = NextSend::At(now + RESEND_UNANSWERED);
                Some(pending.proposal.clone())
            }
            NextSend::At(_) | NextSend::Never => None,
        }
    }

    /// Takes the controller's answer (R133, R134, D26).
    pub fn on_answer(
        &mut self,
        proposal: &IsrProposal,
        result: &Result<AlteredPartition, ErrorCode>,
        leader_epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
        now: Millis,
    ) -> IsrOutcome {
        let any = planted(Flaw::AnyAnswerEndsProposal);
        let Some(pending) = self.pending.as_mut().filter(|pending| any || *pending.proposal == *proposal) else {
            return IsrOutcome::Ignored;
        };
        match result {
            Ok(altered) => {
                if (altered.leader_epoch != leader_epoch || altered.partition_epoch < partition_epoch) && !any {
                    pending.next_send = NextSend::Never;
                    return IsrOutcome::Ignored;
                }
                self.committed.clone_from(&altered.isr);
                self.pending = None;
                IsrOutcome::Committed
            }
            Err(code) if planted(Flaw::ErrorsEndProposals) => {
                self.pending = None;
                IsrOutcome::Dropped(*code)
            }
            Err(code @ (ErrorCode::IneligibleReplica | ErrorCode::OperationNotAttempted)) => {
                self.pending = None;
                IsrOutcome::Dropped(*code)
            }
            Err(
                code @ (ErrorCode::UnknownTopicOrPartition
                | ErrorCode::UnknownTopicId
                | ErrorCode::FencedLeaderEpoch
                | ErrorCode::InvalidUpdateVersion
                | ErrorCode::InvalidRequest
                | ErrorCode::NewLeaderElected),
            ) => {
                pending.next_send = NextSend::Never;
                IsrOutcome::AwaitsMetadata(*code)
            }
            Err(code) => {
                pending.next_send = NextSend::At(now + RESEND_REFUSED);
                IsrOutcome::Resent(*code)
            }
        }
    }

    /// What R242 forbids: the pending proposal vouches for whoever is registered now.
    #[cfg(feature = "sim")]
    pub(super) fn restamp(&mut self, registered: impl Fn(BrokerId) -> Option<BrokerEpoch>) {
        for (id, epoch) in self.pending.iter_mut().flat_map(|pending| &mut pending.proposal.isr) {
            *epoch = registered(*id).unwrap_or(*epoch);
        }
    }

    /// Metadata with a higher partition epoch: the controller has decided, whatever was pending (R135).
    pub fn on_metadata(&mut self, isr: &[BrokerId]) {
        self.committed.clear();
        self.committed.extend_from_slice(isr);
        self.pending = None;
    }
}

#[cfg(test)]
mod tests {
    use highwater_quorum::image::{ExpandReason, LeaderRecovery, ShrinkReason};
    use highwater_wire::{BrokerEpoch, TopicId, TopicPartition};

    use super::*;

    const T0: Millis = Millis(10_000);

    fn brokers(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    fn proposal(isr: &[i32], why: IsrReason) -> IsrProposal {
        IsrProposal {
            partition: TopicPartition::new(TopicId::from_bytes([1; 16]), 0),
            leader_epoch: LeaderEpoch(4),
            partition_epoch: PartitionEpoch(9),
            isr: isr.iter().map(|&id| (BrokerId(id), BrokerEpoch(100 + i64::from(id)))).collect(),
            recovery: LeaderRecovery::Recovered,
            why,
            evidence: Vec::new(),
        }
    }

    fn expanding() -> (IsrState, IsrProposal) {
        let mut isr = IsrState::stable(brokers(&[1, 2]));
        let proposal = proposal(&[1, 2, 3], IsrReason::Expand(ExpandReason::CaughtUp));
        isr.propose(proposal.clone(), T0);
        (isr, proposal)
    }

    fn shrinking() -> (IsrState, IsrProposal) {
        let mut isr = IsrState::stable(brokers(&[1, 2, 3]));
        let proposal = proposal(&[1, 2], IsrReason::Shrink(ShrinkReason::FollowerSlow));
        isr.propose(proposal.clone(), T0);
        (isr, proposal)
    }

    fn altered(isr: &[i32], leader_epoch: i32, partition_epoch: i32) -> AlteredPartition {
        AlteredPartition {
            partition: TopicPartition::new(TopicId::from_bytes([1; 16]), 0),
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch(leader_epoch),
            isr: brokers(isr),
            recovery: LeaderRecovery::Recovered,
            partition_epoch: PartitionEpoch(partition_epoch),
        }
    }

    fn answer(isr: &mut IsrState, proposal: &IsrProposal, result: Result<AlteredPartition, ErrorCode>) -> IsrOutcome {
        isr.on_answer(proposal, &result, LeaderEpoch(4), PartitionEpoch(9), T0)
    }

    #[test]
    fn a_joining_member_counts_from_the_moment_of_submission() {
        let (isr, _) = expanding();
        assert_eq!(isr.committed(), brokers(&[1, 2]));
        assert_eq!(isr.maximal().collect::<Vec<_>>(), brokers(&[1, 2, 3]));
        assert_eq!(isr.maximal_len(), 3);
    }

    #[test]
    fn a_leaving_member_counts_until_the_controller_says_that_it_left() {
        let (mut isr, proposal) = shrinking();
        assert!(isr.maximal_contains(BrokerId(3)), "R241: the controller may still elect it");
        assert_eq!(answer(&mut isr, &proposal, Ok(altered(&[1, 2], 4, 10))), IsrOutcome::Committed);
        assert!(!isr.maximal_contains(BrokerId(3)));
    }

    #[test]
    fn the_same_proposal_is_sent_again_word_for_word_until_answered() {
        let (mut isr, proposal) = expanding();
        assert_eq!(isr.take_resend(T0), None, "just sent");
        let due = isr.resend_at().unwrap();
        assert_eq!(*isr.take_resend(due).unwrap(), proposal);
        assert_eq!(isr.take_resend(due), None, "sent a moment ago");
        for code in [
            ErrorCode::NotController,
            ErrorCode::StaleBrokerEpoch,
            ErrorCode::RequestTimedOut,
            ErrorCode::UnknownServerError,
        ] {
            assert_eq!(answer(&mut isr, &proposal, Err(code)), IsrOutcome::Resent(code));
            assert_eq!(isr.resend_at(), Some(T0 + RESEND_REFUSED));
            assert_eq!(*isr.take_resend(T0 + RESEND_REFUSED).unwrap(), proposal);
        }
    }

    #[test]
    fn refused_as_ineligible_or_not_attempted_the_committed_isr_stands_again() {
        for code in [ErrorCode::IneligibleReplica, ErrorCode::OperationNotAttempted] {
            let (mut isr, proposal) = expanding();
            assert_eq!(answer(&mut isr, &proposal, Err(code)), IsrOutcome::Dropped(code));
            assert_eq!(isr, IsrState::stable(brokers(&[1, 2])));
        }
    }

    #[test]
    fn answers_that_metadata_must_explain_keep_the_proposal_pending_and_unsent() {
        for code in [3, 100, 74, 95, 42, 108].map(ErrorCode::from_code) {
            let (mut isr, proposal) = expanding();
            assert_eq!(answer(&mut isr, &proposal, Err(code)), IsrOutcome::AwaitsMetadata(code));
            assert_eq!(isr.maximal_len(), 3, "{code}");
            assert_eq!(isr.take_resend(Millis::MAX), None);
            isr.on_metadata(&brokers(&[1]));
            assert_eq!(isr, IsrState::stable(brokers(&[1])));
        }
    }

    #[test]
    fn the_answer_to_an_older_proposal_does_not_end_the_one_in_flight() {
        // KAFKA-12686, R252.
        let (mut isr, old) = expanding();
        isr.on_metadata(&brokers(&[1, 2, 3]));
        let new = proposal(&[1, 2], IsrReason::Shrink(ShrinkReason::FollowerStoppedFetching));
        isr.propose(new.clone(), T0);
        assert_eq!(answer(&mut isr, &old, Ok(altered(&[1, 2, 3], 4, 10))), IsrOutcome::Ignored);
        assert_eq!(answer(&mut isr, &old, Err(ErrorCode::IneligibleReplica)), IsrOutcome::Ignored);
        assert_eq!(isr.pending(), Some(&new));
    }

    #[test]
    fn an_answer_of_another_epoch_commits_nothing() {
        let (mut isr, proposal) = expanding();
        assert_eq!(answer(&mut isr, &proposal, Ok(altered(&[1, 2, 3], 5, 10))), IsrOutcome::Ignored);
        assert_eq!(answer(&mut isr, &proposal, Ok(altered(&[1, 2, 3], 4, 8))), IsrOutcome::Ignored);
        assert_eq!(isr.committed(), brokers(&[1, 2]));
        assert_eq!(answer(&mut isr, &proposal, Ok(altered(&[1, 2, 3], 4, 9))), IsrOutcome::Committed, "equal counts");
    }
}
