//! Bugs that can be planted on purpose, each the absence of one safety rule: the simulation must catch every one.
//!
//! Without the feature `sim` nothing can be planted and [`planted`] is the constant `false`: the shipped binary carries
//! none of this. With it, a flaw is planted for one thread, so that seeds run side by side, or for a whole process: the
//! binary's feature `flaws` takes one from its environment, and the chaos run must catch it.

/// One safety rule left out. Named by what goes wrong; the number is the scenario of replication.md §18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flaw {
    /// R234: a follower cuts its log at its watermark, not where the leader's history parts from its own.
    TruncatesToWatermark,
    /// R235: a leader does not compare the follower's last epoch with its history.
    IgnoresDivergence,
    /// R99: a leader takes a follower's log for its own where its history says nothing of it.
    VouchesForTheDeleted,
    /// R240: a follower may join at the watermark, below the start of the leader's epoch.
    JoinsAtWatermark,
    /// R241: the watermark counts the ISR as proposed, before the controller agreed to it.
    CountsProposedIsr,
    /// R242: a proposal that is sent again gets the broker epochs of the newest metadata.
    RestampsProposals,
    /// R243: a fetch of a former process of the follower counts.
    BelievesOldProcesses,
    /// R244: a registration without proof leaves the broker in ISR and ELR.
    RegistrationKeepsIsr,
    /// R245: the watermark moves below min ISR.
    CommitsBelowMinIsr,
    /// R248: a fetch from where the logs have parted counts as acknowledgement.
    CountsDivergingFetches,
    /// R250: a follower takes what comes late, and batches of epochs beyond its own.
    TakesLateAnswers,
    /// R252: any answer of the controller ends the proposal under way.
    AnyAnswerEndsProposal,
    /// R264: a waiting acknowledgement outlives the leadership it belongs to.
    AcksAcrossEpochs,
    /// D30: the last known leader is elected without proof that it lost nothing.
    LastKnownNeedsNoProof,
    /// R5: DeleteRecords may move the log start above the watermark.
    DeletesAboveWatermark,
    /// R14: a log that is opened begins at its first segment, whatever the checkpoint of its start says.
    ForgetsLogStart,
    /// R27: a log of a topic that was deleted is taken for that of another one of its name.
    TakesOverLogs,
    /// R122: a leader does not heed a new min ISR.
    KeepsMinIsr,
    /// R176: a broker that is forgotten stays eligible.
    UnregisterKeepsElr,
    /// R186: partitions are added although the proposer saw another number of them.
    GrowsUnfenced,
    /// R187: a raised min ISR leaves proposals on their way that were made under the old one.
    RaisesUnnoticed,
    /// R190: an unclean election leaves those eligible who hold another history than its leader.
    UncleanKeepsElr,
    /// R192: whom an operator names leads, in sync or not, without the word that records may be lost.
    NamesAnybody,
    /// R194: anybody is elected where nobody complete is left, whatever the topic allows.
    ElectsAnybody,
    /// R196: a lowered min ISR leaves those eligible without whom the leader may commit now.
    LoweringKeepsElr,
    /// R272: retention deletes what is not committed yet.
    RetainsNothing,
    /// R274: DeleteRecords is answered before the other replicas have followed.
    DeletesAlone,
    /// D12: an unclean leader counts the loss from its watermark, not from the end of its log.
    LosesFromWatermark,
    /// D12: what the last leader had deleted is counted as lost.
    LosesTheDeleted,
    /// 1.4 B: who leaves the ISR does so without a word in the history.
    ShrinksUntold,
    /// D33: DeleteRecords is answered before the log start is in its checkpoint.
    DeletesUnsaved,
    /// R48: a producer that asks for all replicas is answered when one has its batch.
    AcksUnreplicated,
    /// R57: only the newest batch of a producer is remembered, not the last five.
    RemembersOneBatch,
    /// R58: a batch that comes again is stored again.
    StoresDuplicates,
    /// R60: a batch is taken though the one before it is not in the log.
    TakesAnySequence,
    /// R65: a truncation leaves the producers as they were.
    KeepsProducers,
    /// R26: a log that is opened knows nothing of its producers.
    ForgetsProducers,
    /// R67: a producer id is given to the next one who asks, too.
    GivesIdsTwice,
    /// R69: a consumer is shown what lies above the watermark.
    ShowsUncommitted,
    /// R94: a new leader tells its watermark as the end before it has reached what was told already.
    TellsTheEndTooSoon,
    /// R106: where followers were in an earlier leadership still counts.
    KeepsProgress,
    /// R124: a follower takes the watermark of its leader, however short its own log is.
    AdoptsBeyondItsEnd,
    /// R130: a proposal vouches for whoever is registered under the id of a member.
    AdmitsAnyProcess,
    /// R133: a proposal is forgotten with the first error, though it may be applied.
    ErrorsEndProposals,
    /// R136: a former leader may change the ISR.
    ZombiesPropose,
    /// R137: who is elected where nobody led leads in the epoch of its predecessor.
    KeepsEpoch,
    /// R140: a leader does not note where its epoch begins.
    ForgetsEpochEntry,
    /// R141: a new leader takes all that it holds for committed.
    CommitsAtTakeover,
    /// R148: a truncation leaves the history of epochs as it was.
    KeepsEpochEntries,
    /// R160: a truncation leaves the recovery point where it was.
    KeepsRecoveryPoint,
    /// R167: a new process of a broker gets the epoch of the one before.
    OneEpochForAll,
    /// R174: a broker that stops in order keeps its leaderships and its place in the ISR.
    StoppingStaysInSync,
    /// R183: a new partition counts its fenced replicas as in sync.
    TrustsTheFenced,
    /// R195: who left the ISR stays eligible though it is large enough again.
    KeepsElr,
    /// R236: a leader names the epoch it was asked for, not the largest that it knows.
    NamesTheAskedEpoch,
    /// R238: a leader does not ask in which epoch it is believed to lead.
    TakesAnyEpoch,
    /// R259: a proposal made in knowledge of an older state is accepted.
    IgnoresPartitionEpochs,
    /// R262: the mark of a clean stop outlives the start after it (B15).
    CleanStopCountsTwice,
    /// R20: an opened log keeps batches whose checksum is wrong (B16).
    TrustsWhatItFinds,
    /// R283: a sync that failed counts as done (B21).
    IgnoresFailedSyncs,
    /// D10: a broker that says that it lost records stays eligible.
    LostIsIgnored,
    /// D23: a leader counts its own records before they are synced, where all are to be.
    CountsUnsynced,
    /// D24: a follower fetches before its truncation has reached the disk.
    FetchesUnsettled,
    /// 1.4 G: a restart is judged by the ISR alone; members that do not answer any more count.
    RestartTrustsTheSilent,
    /// 1.4 G: a restart is safe as long as somebody can lead, whatever acks=all needs.
    RestartForgetsMinIsr,
    /// 1.4 G: a restart is judged without a look at the voters.
    RestartForgetsTheQuorum,
    /// R213: a vote is given before it is on disk.
    ForgetsVotes,
    /// R213: entries are acknowledged to the raft leader before they are on disk.
    AcksUnsynced,
    /// R213: what was truncated from the raft log is there again after a restart.
    TruncatesInMemory,
    /// D13: the rows of an entry and the mark that it was applied are written one after the other.
    AppliesApart,
    /// D13: a snapshot counts as installed before it is on disk.
    InstallsUnsynced,
    /// D13: a snapshot is installed without its membership.
    InstallsNoMembership,
    /// D5: every pre-vote is granted, by nobody.
    GrantsPreVotes,
    /// D5: a leader that restarts goes on leading without a vote.
    RestoresLeaders,
    /// D1: a voter is its number, whatever disk it has.
    WipedVote,
    /// R216: a proposal whose fate is unknown is made again, whatever it is.
    RepeatsProposals,
    /// R219: the raft leader answers a read without asking a majority.
    ReadsAlone,
}

impl Flaw {
    /// Every flaw of what brokers and the rules do, in the order of the table that `sim -- flaws` prints.
    pub const ALL: [Self; 66] = [
        Self::TruncatesToWatermark,
        Self::IgnoresDivergence,
        Self::VouchesForTheDeleted,
        Self::JoinsAtWatermark,
        Self::CountsProposedIsr,
        Self::RestampsProposals,
        Self::BelievesOldProcesses,
        Self::RegistrationKeepsIsr,
        Self::CommitsBelowMinIsr,
        Self::CountsDivergingFetches,
        Self::TakesLateAnswers,
        Self::AnyAnswerEndsProposal,
        Self::AcksAcrossEpochs,
        Self::LastKnownNeedsNoProof,
        Self::DeletesAboveWatermark,
        Self::ForgetsLogStart,
        Self::TakesOverLogs,
        Self::KeepsMinIsr,
        Self::UnregisterKeepsElr,
        Self::GrowsUnfenced,
        Self::RaisesUnnoticed,
        Self::UncleanKeepsElr,
        Self::NamesAnybody,
        Self::ElectsAnybody,
        Self::LoweringKeepsElr,
        Self::RetainsNothing,
        Self::DeletesAlone,
        Self::LosesFromWatermark,
        Self::LosesTheDeleted,
        Self::ShrinksUntold,
        Self::DeletesUnsaved,
        Self::AcksUnreplicated,
        Self::RemembersOneBatch,
        Self::StoresDuplicates,
        Self::TakesAnySequence,
        Self::KeepsProducers,
        Self::ForgetsProducers,
        Self::GivesIdsTwice,
        Self::ShowsUncommitted,
        Self::TellsTheEndTooSoon,
        Self::KeepsProgress,
        Self::AdoptsBeyondItsEnd,
        Self::AdmitsAnyProcess,
        Self::ErrorsEndProposals,
        Self::ZombiesPropose,
        Self::KeepsEpoch,
        Self::ForgetsEpochEntry,
        Self::CommitsAtTakeover,
        Self::KeepsEpochEntries,
        Self::KeepsRecoveryPoint,
        Self::OneEpochForAll,
        Self::StoppingStaysInSync,
        Self::TrustsTheFenced,
        Self::KeepsElr,
        Self::NamesTheAskedEpoch,
        Self::TakesAnyEpoch,
        Self::IgnoresPartitionEpochs,
        Self::CleanStopCountsTwice,
        Self::TrustsWhatItFinds,
        Self::IgnoresFailedSyncs,
        Self::LostIsIgnored,
        Self::CountsUnsynced,
        Self::FetchesUnsettled,
        Self::RestartTrustsTheSilent,
        Self::RestartForgetsMinIsr,
        Self::RestartForgetsTheQuorum,
    ];

    /// Every flaw of raft's edge: store, network and proposals. `quorum-sim -- flaws` prints them.
    pub const QUORUM: [Self; 11] = [
        Self::ForgetsVotes,
        Self::AcksUnsynced,
        Self::TruncatesInMemory,
        Self::AppliesApart,
        Self::InstallsUnsynced,
        Self::InstallsNoMembership,
        Self::GrantsPreVotes,
        Self::RestoresLeaders,
        Self::WipedVote,
        Self::RepeatsProposals,
        Self::ReadsAlone,
    ];

    /// The scenario or decision it belongs to.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::TruncatesToWatermark => "R234",
            Self::IgnoresDivergence => "R235",
            Self::VouchesForTheDeleted => "R99",
            Self::JoinsAtWatermark => "R240",
            Self::CountsProposedIsr => "R241",
            Self::RestampsProposals => "R242",
            Self::BelievesOldProcesses => "R243",
            Self::RegistrationKeepsIsr => "R244",
            Self::CommitsBelowMinIsr => "R245",
            Self::CountsDivergingFetches => "R248",
            Self::TakesLateAnswers => "R250",
            Self::AnyAnswerEndsProposal => "R252",
            Self::AcksAcrossEpochs => "R264",
            Self::LastKnownNeedsNoProof => "D30",
            Self::DeletesAboveWatermark => "R5",
            Self::ForgetsLogStart => "R14",
            Self::TakesOverLogs => "R27",
            Self::KeepsMinIsr => "R122",
            Self::UnregisterKeepsElr => "R176",
            Self::GrowsUnfenced => "R186",
            Self::RaisesUnnoticed => "R187",
            Self::UncleanKeepsElr => "R190",
            Self::NamesAnybody => "R192",
            Self::ElectsAnybody => "R194",
            Self::LoweringKeepsElr => "R196",
            Self::RetainsNothing => "R272",
            Self::DeletesAlone => "R274",
            Self::LosesFromWatermark => "D12",
            Self::LosesTheDeleted => "D12-start",
            Self::ShrinksUntold => "B-history",
            Self::DeletesUnsaved => "D33",
            Self::AcksUnreplicated => "R48",
            Self::RemembersOneBatch => "R57",
            Self::StoresDuplicates => "R58",
            Self::TakesAnySequence => "R60",
            Self::KeepsProducers => "R65",
            Self::ForgetsProducers => "R26",
            Self::GivesIdsTwice => "R67",
            Self::ShowsUncommitted => "R69",
            Self::TellsTheEndTooSoon => "R94",
            Self::KeepsProgress => "R106",
            Self::AdoptsBeyondItsEnd => "R124",
            Self::AdmitsAnyProcess => "R130",
            Self::ErrorsEndProposals => "R133",
            Self::ZombiesPropose => "R136",
            Self::KeepsEpoch => "R137",
            Self::ForgetsEpochEntry => "R140",
            Self::CommitsAtTakeover => "R141",
            Self::KeepsEpochEntries => "R148",
            Self::KeepsRecoveryPoint => "R160",
            Self::OneEpochForAll => "R167",
            Self::StoppingStaysInSync => "R174",
            Self::TrustsTheFenced => "R183",
            Self::KeepsElr => "R195",
            Self::NamesTheAskedEpoch => "R236",
            Self::TakesAnyEpoch => "R238",
            Self::IgnoresPartitionEpochs => "R259",
            Self::CleanStopCountsTwice => "R262",
            Self::TrustsWhatItFinds => "R20",
            Self::IgnoresFailedSyncs => "R283",
            Self::LostIsIgnored => "D10",
            Self::CountsUnsynced => "D23",
            Self::FetchesUnsettled => "D24",
            Self::RestartTrustsTheSilent => "G-silent",
            Self::RestartForgetsMinIsr => "G-min-isr",
            Self::RestartForgetsTheQuorum => "G-quorum",
            Self::ForgetsVotes => "R213-vote",
            Self::AcksUnsynced => "R213-append",
            Self::TruncatesInMemory => "R213-truncate",
            Self::AppliesApart => "D13-apply",
            Self::InstallsUnsynced => "D13-install",
            Self::InstallsNoMembership => "D13-membership",
            Self::GrantsPreVotes => "D5-pre-vote",
            Self::RestoresLeaders => "D5-restore",
            Self::WipedVote => "D1",
            Self::RepeatsProposals => "R216",
            Self::ReadsAlone => "R219",
        }
    }
}

#[cfg(feature = "sim")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
}

#[cfg(feature = "sim")]
static EVERYWHERE: std::sync::OnceLock<Flaw> = std::sync::OnceLock::new();

/// Plants a flaw on all threads of this process until it ends: for a binary that a checker of real processes must find
/// wanting.
#[cfg(feature = "sim")]
pub fn plant_everywhere(flaw: Flaw) {
    EVERYWHERE.get_or_init(|| flaw);
}

/// Plants a flaw on this thread, or takes it away.
#[cfg(feature = "sim")]
pub fn plant(flaw: Option<Flaw>) {
    PLANTED.set(flaw);
}

/// Whether a rule is to be left out here and now.
#[cfg(feature = "sim")]
#[inline]
pub fn planted(flaw: Flaw) -> bool {
    PLANTED.get() == Some(flaw) || EVERYWHERE.get() == Some(&flaw)
}

/// Whether a rule is to be left out here and now: never.
#[cfg(not(feature = "sim"))]
#[inline]
pub const fn planted(_flaw: Flaw) -> bool {
    false
}
