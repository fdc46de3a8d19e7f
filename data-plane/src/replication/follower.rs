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
    /// Ask the leader where its log ends and starts (ListOffsets −1 and −2 with the point's leader epoch) and what its
    /// producers wrote last (DescribeProducers), then hand the answer in (R162).
    AskLeader(FetchPoint),
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
    Diverging { epoch: Option<LeaderEpoch>, end: Option<Offset>, log_start: Option<Offset> },
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
    AskLeader,
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
    /// Asks where the leader's log starts and ends.
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
            Phase::Fetching | Phase::BackingOff if view.knows_producers => FollowerNext::Fetch(self.fetch_point(view)),
            Phase::Fetching | Phase::BackingOff | Phase::OutOfRange => FollowerNext::AskLeader(self.fetch_point(view)),
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
            Answer::Diverging { epoch, end, log_start } => {
                self.phase = Phase::Fetching;
                let to = self.truncation_target(epoch, end, view);
                match log_start {
                    // The leader can compare nothing below its log start: what we would keep may be of another history,
                    // deleted there, and would be seen again if we led.
                    Some(start) if start >= to && to > view.start => Verdict::TruncateFully { start },
                    // All of ours is of a history that was given up, and what lies below was deleted in that history only.
                    Some(start) if to < view.start => Verdict::TruncateFully { start },
                    _ => Verdict::Truncate { to },
                }
            }
            Answer::Error(ErrorCode::OffsetOutOfRange) => {
                self.phase = Phase::OutOfRange;
                Verdict::AskLeader
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

    /// Whether what the leader's log holds is what we want to know now.
    fn asks_leader(&self, requested: &FetchPoint, view: &LogView<'_>) -> bool {
        let wanted = self.phase == Phase::OutOfRange || self.phase != Phase::Fenced && !view.knows_producers;
        wanted && self.answers(requested, view)
    }

    /// What the leader's log holds, after our offset was out of its range (R162), or while we know no producers.
    pub fn on_leader_offsets(
        &mut self,
        requested: &FetchPoint,
        leader_start: Offset,
        leader_end: Offset,
        view: &LogView<'_>,
    ) -> Verdict {
        if !self.asks_leader(requested, view) {
            return Verdict::Stale;
        }
        self.phase = Phase::Fetching;
        if leader_end < view.start {
            // All of ours is of a history that was given up, and what lies below was deleted in that history only.
            Verdict::TruncateFully { start: leader_start }
        } else if leader_end < view.end {
            Verdict::Truncate { to: leader_end }
        } else if leader_start > view.end {
            Verdict::TruncateFully { start: leader_start }
        } else {
            Verdict::Resume
        }
    }

    /// The leader's offsets could not be had: the fetch is tried again after a pause. `false`: stale.
    pub fn on_leader_offsets_failed(&mut self, requested: &FetchPoint, view: &LogView<'_>) -> bool {
        let counts = self.asks_leader(requested, view);
        if counts {
            self.phase = Phase::BackingOff;
        }
        counts
    }

    /// The records of an answer are in the log: adopts the leader's watermark, which may be below ours (R3, R124, R165).
    /// Says whether ours moved.
    pub fn on_stored(&mut self, high_watermark: Offset, view: &LogView<'_>) -> bool {
        let before = self.high_watermark;
        let bound = if planted(Flaw::AdoptsBeyondItsEnd) { high_watermark } else { view.end };
        self.high_watermark = high_watermark.min(bound).max(view.start);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::testing::Numbers;

    const LEADER: BrokerId = BrokerId(2);

    fn follower(high_watermark: i64) -> Follower {
        Follower::new(LEADER, LeaderEpoch(5), Offset(high_watermark), 1)
    }

    fn records(high_watermark: i64) -> Answer {
        Answer::Records { high_watermark: Offset(high_watermark), log_start: Offset::ZERO }
    }

    fn diverging(epoch: i32, end: i64) -> Answer {
        Answer::Diverging { epoch: Some(LeaderEpoch(epoch)), end: Some(Offset(end)), log_start: Some(Offset::ZERO) }
    }

    /// What a diverging answer makes of a log.
    fn cut(log: &Numbers, answer: Answer) -> i64 {
        let mut follower = follower(0);
        match follower.on_answer(&follower.fetch_point(&log.view()), answer, &log.view()) {
            Verdict::Truncate { to } => to.0,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_asks_from_its_log_end_with_its_newest_epoch_whatever_the_watermark() {
        // R143 (4), R234: never cut to the watermark where epochs are known.
        let log = Numbers::new(&[(1, 0), (4, 6)], 10);
        let follower = follower(3);
        assert_eq!(follower.first_truncation(&log.view()), None);
        let point = follower.fetch_point(&log.view());
        assert_eq!((point.offset, point.last_fetched_epoch), (Offset(10), Some(LeaderEpoch(4))));
        assert_eq!((point.leader, point.leader_epoch), (LEADER, LeaderEpoch(5)));
    }

    #[test]
    fn a_log_without_epochs_is_cut_to_the_watermark_first() {
        let log = Numbers::new(&[], 10);
        assert_eq!(follower(3).first_truncation(&log.view()), Some(Offset(3)));
        assert_eq!(follower(0).first_truncation(&Numbers::new(&[], 0).view()), None);
    }

    #[test]
    fn an_empty_answer_keeps_the_last_fetched_epoch() {
        // KAFKA-15510, R157, R249: the point comes from the log, not from the answer.
        let log = Numbers::new(&[(4, 0)], 10);
        let mut follower = follower(10);
        let point = follower.fetch_point(&log.view());
        assert!(matches!(follower.on_answer(&point, records(10), &log.view()), Verdict::Append { .. }));
        assert_eq!(follower.fetch_point(&log.view()), point);
    }

    #[test]
    fn an_answer_to_another_question_changes_nothing() {
        // R152, R237, R250, R251, R257.
        let log = Numbers::new(&[(4, 0)], 10);
        let mut follower = follower(5);
        let point = follower.fetch_point(&log.view());
        let stale = [
            FetchPoint { leader: BrokerId(3), ..point },
            FetchPoint { leader_epoch: LeaderEpoch(4), ..point },
            FetchPoint { generation: 0, ..point },
            FetchPoint { offset: Offset(9), ..point },
        ];
        for stale in stale {
            for answer in [records(10), diverging(1, 2), Answer::Error(ErrorCode::FencedLeaderEpoch)] {
                let before = follower.clone();
                assert_eq!(follower.on_answer(&stale, answer, &log.view()), Verdict::Stale, "{stale:?}");
                assert_eq!(follower, before);
            }
        }
    }

    #[test]
    fn after_a_truncation_answers_to_earlier_questions_are_stale() {
        let log = Numbers::new(&[(4, 0)], 10);
        let mut follower = follower(5);
        let before = follower.fetch_point(&log.view());
        follower.on_truncated(&log.view(), 2);
        assert_eq!(follower.on_answer(&before, records(10), &log.view()), Verdict::Stale);
    }

    #[test]
    fn it_truncates_to_the_end_of_the_shared_epoch() {
        // R158.
        let log = Numbers::new(&[(1, 0), (3, 4), (4, 7)], 10);
        assert_eq!(cut(&log, diverging(4, 8)), 8, "same epoch, longer here");
        assert_eq!(cut(&log, diverging(4, 12)), 10, "never beyond the end");
        assert_eq!(cut(&log, diverging(3, 5)), 5);
        assert_eq!(cut(&log, diverging(3, 9)), 7, "our epoch 3 ended earlier");
        assert_eq!(cut(&log, diverging(2, 6)), 4, "epoch 2 is unknown here: to the end of our epoch 1, then ask again");
        assert_eq!(
            cut(&log, Answer::Diverging { epoch: None, end: None, log_start: None }),
            0,
            "no epoch at all: to the watermark"
        );
        assert_eq!(cut(&Numbers::new(&[(6, 5)], 10), diverging(1, 3)), 3, "all of ours is newer");
    }

    #[test]
    fn a_log_that_begins_above_the_leaders_end_begins_anew_where_the_leaders_does() {
        // What was deleted below 90 was deleted in a history that an unclean election gave up.
        let mut log = Numbers::new(&[(4, 90)], 100);
        log.start = Offset(90);
        let mut follower = follower(100);
        let asked = follower.fetch_point(&log.view());
        let out_of_range = Answer::Error(ErrorCode::OffsetOutOfRange);
        assert_eq!(follower.on_answer(&asked, out_of_range, &log.view()), Verdict::AskLeader);
        let verdict = follower.on_leader_offsets(&asked, Offset(20), Offset(83), &log.view());
        assert_eq!(verdict, Verdict::TruncateFully { start: Offset(20) });
    }

    #[test]
    fn where_the_leader_holds_nothing_of_what_is_shared_it_starts_anew_at_the_leaders_log_start() {
        // The leader deleted all that it could be compared with: it names our own epoch, and its first offset as its end.
        let log = Numbers::new(&[(6, 0), (7, 316)], 321);
        let mut follower = follower(316);
        let asked = follower.fetch_point(&log.view());
        let (epoch, end) = (Some(LeaderEpoch(7)), Some(Offset(317)));
        let answer = |start| Answer::Diverging { epoch, end, log_start: Some(Offset(start)) };
        let verdict = follower.on_answer(&asked, answer(316), &log.view());
        assert_eq!(verdict, Verdict::Truncate { to: Offset(317) }, "one record is there to be compared");
        let verdict = follower.on_answer(&asked, answer(317), &log.view());
        assert_eq!(verdict, Verdict::TruncateFully { start: Offset(317) });
    }

    #[test]
    fn where_the_logs_part_below_its_start_it_starts_anew_at_the_leaders_log_start() {
        // What was deleted below 90 was deleted in a history that was given up: of the leader's, 20 to 90 would be missing.
        let log = Numbers { start: Offset(90), ..Numbers::new(&[(4, 90)], 100) };
        let mut follower = follower(100);
        let asked = follower.fetch_point(&log.view());
        let answer = |end| {
            let log_start = Some(Offset(20));
            Answer::Diverging { epoch: Some(LeaderEpoch(3)), end: Some(Offset(end)), log_start }
        };
        let verdict = follower.on_answer(&asked, answer(89), &log.view());
        assert_eq!(verdict, Verdict::TruncateFully { start: Offset(20) });
        let verdict = follower.on_answer(&asked, answer(90), &log.view());
        assert_eq!(verdict, Verdict::Truncate { to: Offset(90) }, "then it is empty, and the leader says the rest");
    }

    #[test]
    fn rounds_of_truncation_lower_the_newest_epoch_until_the_logs_agree() {
        // KIP-279, R236, R159: fast fail-overs left epochs on each side that the other never saw.
        let leader = Numbers::new(&[(1, 0), (4, 5), (7, 9), (8, 12)], 15);
        let mut log = Numbers::new(&[(1, 0), (3, 4), (5, 7), (6, 11)], 13);
        let mut rounds = 0;
        loop {
            let latest = log.epochs.latest().unwrap();
            let (epoch, end) = leader.epochs.end_of(latest, leader.end).unwrap();
            if epoch == latest && end >= log.end {
                break;
            }
            let to = Offset(cut(&log, diverging(epoch.0, end.0)));
            log.end = log.end.min(to);
            log.epochs.truncate_from_end(to);
            assert!(log.epochs.latest() < Some(latest), "each round lowers it");
            rounds += 1;
            assert!(rounds <= 4);
        }
        assert_eq!((log.end, log.epochs.latest()), (Offset(4), Some(LeaderEpoch(1))));
    }

    #[test]
    fn it_adopts_the_leaders_watermark_as_far_as_its_log_goes_even_downwards() {
        // R3, R124, R165.
        let log = Numbers::new(&[(4, 0)], 10);
        let mut follower = follower(5);
        assert!(follower.on_stored(Offset(12), &log.view()));
        assert_eq!(follower.high_watermark(), Offset(10));
        assert!(follower.on_stored(Offset(7), &log.view()));
        assert_eq!(follower.high_watermark(), Offset(7));
        assert!(!follower.on_stored(Offset(7), &log.view()));
    }

    #[test]
    fn fenced_it_waits_for_metadata_and_other_errors_are_tried_again() {
        // R163.
        let log = Numbers::new(&[(4, 0)], 10);
        for code in [6, 75, 3, 100, 103, 13, 56].map(ErrorCode::from_code) {
            let mut follower = follower(5);
            let point = follower.fetch_point(&log.view());
            assert_eq!(follower.on_answer(&point, Answer::Error(code), &log.view()), Verdict::BackOff(code));
            assert_eq!(follower.next(&log.view()), FollowerNext::Fetch(point), "the same offset");
        }
        let mut follower = follower(5);
        let point = follower.fetch_point(&log.view());
        let fenced = Answer::Error(ErrorCode::FencedLeaderEpoch);
        assert_eq!(follower.on_answer(&point, fenced, &log.view()), Verdict::Fenced);
        assert_eq!(follower.next(&log.view()), FollowerNext::AwaitMetadata);
        assert_eq!(follower.on_answer(&point, records(10), &log.view()), Verdict::Stale);
    }

    /// What comes of "out of range" when the leader then tells its start and end.
    fn out_of_range(start: i64, end: i64) -> Verdict {
        let log = Numbers::new(&[(4, 0)], 10);
        let mut follower = follower(5);
        let point = follower.fetch_point(&log.view());
        let answer = Answer::Error(ErrorCode::OffsetOutOfRange);
        assert_eq!(follower.on_answer(&point, answer, &log.view()), Verdict::AskLeader);
        assert_eq!(follower.next(&log.view()), FollowerNext::AskLeader(point));
        follower.on_leader_offsets(&point, Offset(start), Offset(end), &log.view())
    }

    #[test]
    fn out_of_range_it_asks_what_the_leader_holds_and_never_gives_up() {
        // R162.
        assert_eq!(out_of_range(0, 7), Verdict::Truncate { to: Offset(7) });
        assert_eq!(out_of_range(20, 30), Verdict::TruncateFully { start: Offset(20) });
        assert_eq!(out_of_range(5, 30), Verdict::Resume);
    }
}
