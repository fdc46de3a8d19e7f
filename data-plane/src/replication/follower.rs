//! The follower: where to fetch, what to accept, where to truncate, which watermark to adopt (R143–R165).

use highwater_quorum::flaws::{Flaw, planted};
use highwater_wire::{BrokerId, ErrorCode, LeaderEpoch, Offset};

use crate::log_view::LogView;

/// Where a follower fetches next: derived from its log, never stored elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchPoint {
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    /// The log end: by asking, everything below is acknowledged.
    pub offset: Offset,
    /// The newest epoch of the log; `None` for a log that never held a record.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    pub log_start: Offset,
    /// Counts role changes and truncations of this replica: an answer to another generation is dropped (R152).
    pub generation: u64,
}

/// What a follower does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowerNext {
    /// Ask for this in the next round.
    Fetch(FetchPoint),
    /// Ask for this again after a pause (D26a); `error` is what the leader said.
    BackOff { point: FetchPoint, error: ErrorCode },
    /// Ask the leader where its log ends and starts (ListOffsets −1 and −2 with the point's leader epoch), then hand the
    /// answer in (R162).
    AskLeaderOffsets(FetchPoint),
    /// A flush or truncation must reach the disk first; an output of its own follows (D23, D24).
    AwaitSync,
    /// Nothing until new metadata: fenced (R163), no leader, draining, leading, failed or stopped.
    AwaitMetadata,
    /// The answer was stale and changed nothing (R152): a newer fetch point is already on its way.
    Dropped,
}

/// A leader's answer without its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Records { high_watermark: Offset, log_start: Offset },
    Diverging { epoch: Option<LeaderEpoch>, end: Option<Offset> },
    Error(ErrorCode),
}

/// What to do with a leader's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It answers a question of another time (R152).
    Stale,
    /// Append the records, then [`Follower::on_stored`].
    Append {
        high_watermark: Offset,
        log_start: Offset,
    },
    /// Cut the log here, then [`Follower::on_truncated`].
    Truncate {
        to: Offset,
    },
    /// Start anew at this offset, then [`Follower::on_truncated`].
    TruncateFully {
        start: Offset,
    },
    /// Nothing was out of range after all: fetch again.
    Resume,
    BackOff(ErrorCode),
    AskLeaderOffsets,
    /// R163: parked until metadata.
    Fenced,
}

/// One following of one leader in one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follower {
    leader: BrokerId,
    epoch: LeaderEpoch,
    high_watermark: Offset,
    generation: u64,
    phase: Phase,
}

/// What it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Fetching,
    /// The leader's last answer was an error.
    BackingOff,
    /// Waits for the leader's offsets.
    OutOfRange,
    /// The leader is in a newer epoch.
    Fenced,
}

impl Follower {
    /// Follows `leader` from now on. `generation` is one that no other following of this replica had.
    pub fn new(leader: BrokerId, epoch: LeaderEpoch, high_watermark: Offset, generation: u64) -> Self {
        Self { leader, epoch, high_watermark, generation, phase: Phase::Fetching }
    }

    /// Whom it follows.
    pub fn leader(&self) -> BrokerId {
        self.leader
    }

    /// In which epoch.
    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// As far as it knows.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// What it is about.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// R143 (4): a log with records but without epochs cannot be compared with the leader's. It is cut to the watermark.
    pub fn first_truncation(&self, view: &LogView<'_>) -> Option<Offset> {
        let uncomparable =
            view.epochs.entries().is_empty() && view.end > view.start || planted(Flaw::TruncatesToWatermark);
        (uncomparable && self.high_watermark < view.end).then_some(self.high_watermark)
    }

    /// The question to ask now.
    pub fn fetch_point(&self, view: &LogView<'_>) -> FetchPoint {
        FetchPoint {
            leader: self.leader,
            leader_epoch: self.epoch,
            offset: view.end,
            last_fetched_epoch: view.epochs.latest(),
            log_start: view.start,
            generation: self.generation,
        }
    }

    /// What follows from `phase`.
    pub fn next(&self, view: &LogView<'_>) -> FollowerNext {
        match self.phase {
            Phase::Fetching | Phase::BackingOff => FollowerNext::Fetch(self.fetch_point(view)),
            Phase::OutOfRange => FollowerNext::AskLeaderOffsets(self.fetch_point(view)),
            Phase::Fenced => FollowerNext::AwaitMetadata,
        }
    }

    /// R152: the answer is to the question we would ask now, of this leader, epoch and generation.
    fn answers(&self, requested: &FetchPoint, view: &LogView<'_>) -> bool {
        if planted(Flaw::TakesLateAnswers) {
            return requested.offset == view.end;
        }
        requested.leader == self.leader
            && requested.leader_epoch == self.epoch
            && requested.generation == self.generation
            && requested.offset == view.end
    }

    /// A leader's answer to `requested` (R124, R152, R157, R158, R162, R163).
    pub fn on_answer(&mut self, requested: &FetchPoint, answer: Answer, view: &LogView<'_>) -> Verdict {
        if !self.answers(requested, view) || self.phase == Phase::Fenced {
            return Verdict::Stale;
        }
        match answer {
            Answer::Records { high_watermark, log_start } => {
                self.phase = Phase::Fetching;
                Verdict::Append { high_watermark, log_start }
            }
            Answer::Diverging { epoch, end } => {
                self.phase = Phase::Fetching;
                Verdict::Truncate { to: self.truncation_target(epoch, end, view) }
            }
            Answer::Error(ErrorCode::OffsetOutOfRange) => {
                self.phase = Phase::OutOfRange;
                Verdict::AskLeaderOffsets
            }
            Answer::Error(ErrorCode::FencedLeaderEpoch) => {
                self.phase = Phase::Fenced;
                Verdict::Fenced
            }
            Answer::Error(code) => {
                self.phase = Phase::BackingOff;
                Verdict::BackOff(code)
            }
        }
    }

    /// Where the logs part ways, as far as the leader's answer and our own history tell (R158). Each round lowers our
    /// newest epoch or ends (R159).
    fn truncation_target(&self, epoch: Option<LeaderEpoch>, end: Option<Offset>, view: &LogView<'_>) -> Offset {
        let (Some(epoch), Some(end)) = (epoch, end) else { return self.high_watermark.min(view.end) };
        let own = view.epochs.end_of(epoch, view.end);
        let target = match own {
            None => end,
            Some((own_epoch, own_end)) if own_epoch < epoch => own_end,
            Some((_, own_end)) => own_end.min(end),
        };
        target.min(view.end)
    }

    /// What the leader's log holds, after our offset was out of its range (R162).
    pub fn on_leader_offsets(
        &mut self,
        requested: &FetchPoint,
        leader_start: Offset,
        leader_end: Offset,
        view: &LogView<'_>,
    ) -> Verdict {
        if !self.answers(requested, view) || self.phase != Phase::OutOfRange {
            return Verdict::Stale;
        }
        self.phase = Phase::Fetching;
        if leader_end < view.end {
            Verdict::Truncate { to: leader_end }
        } else if leader_start > view.end {
            Verdict::TruncateFully { start: leader_start }
        } else {
            Verdict::Resume
        }
    }

    /// The leader's offsets could not be had: the fetch is tried again after a pause. `false`: stale.
    pub fn on_leader_offsets_failed(&mut self, requested: &FetchPoint, view: &LogView<'_>) -> bool {
        let counts = self.answers(requested, view) && self.phase == Phase::OutOfRange;
        if counts {
            self.phase = Phase::BackingOff;
        }
        counts
    }

    /// The records of an answer are in the log: adopts the leader's watermark, which may be below ours (R3, R124, R165).
    /// Says whether ours moved.
    pub fn on_stored(&mut self, high_watermark: Offset, view: &LogView<'_>) -> bool {
        let before = self.high_watermark;
        self.high_watermark = high_watermark.min(view.end).max(view.start);
        self.high_watermark != before
    }

    /// The damaged part of an answer was left out: the same offset is asked for again after a pause (R154).
    pub fn on_damaged(&mut self) {
        self.phase = Phase::BackingOff;
    }

    /// The log was cut: answers to earlier questions no longer count. `generation` is a fresh one.
    pub fn on_truncated(&mut self, view: &LogView<'_>, generation: u64) {
        self.generation = generation;
        self.high_watermark = self.high_watermark.clamp(view.start, view.end);
    }

    /// Nothing changed hands but this broker's news: a fenced or failing follower tries again (D26a).
    pub fn on_metadata(&mut self) {
        if self.phase == Phase::BackingOff {
            self.phase = Phase::Fetching;
        }
    }
}
