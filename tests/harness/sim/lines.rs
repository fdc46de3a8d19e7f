//! What unclean elections take back. A partition's committed records form one line, until a leader takes over that was
//! elected without proof of completeness: the line is then cut where that leader's log parts from it, and goes on from
//! there. What was cut off is kept here: only that may be missing, only that may be said twice, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use highwater_quorum::image::PartitionState;
use highwater_wire::BrokerId;

use super::book::{Batch, Content, Mirror, PartitionBook, ReplicaBook};

/// The cuts of one partition.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// Members of ISR or ELR that were elected uncleanly and have not led since: they may lack something, and cut the
    /// line if they come to lead.
    pub unproved: BTreeSet<BrokerId>,
    /// The leader epochs of unclean elections.
    pub unclean_epochs: BTreeSet<i32>,
    /// The leader epoch with which the present line begins; 0: nothing was ever cut.
    pub since: i32,
    /// Of each line but the first: its first leader epoch, and where it parted from the one before.
    parted: Vec<(i32, i64)>,
    /// The lowest offset that was ever cut off, and the largest end of what was.
    cut_at: Option<i64>,
    cut_end: i64,
    /// What was committed, shown or acknowledged in a line that was cut off: base and checksum.
    batches: BTreeSet<(i64, u32)>,
    /// The same by offset and serial.
    serials: BTreeSet<(i64, u64)>,
    /// How often a leader that took over uncleanly lacked something.
    pub losses: u64,
    /// What the newest of them lacked, and the epoch it took over in.
    pub newest_loss: Option<(i32, Loss)>,
    /// Records lost that the history does not speak of yet: a leader may be gone before it says what it lacks.
    pub untold: i64,
}

impl Lines {
    /// Whether a leader of this epoch writes on a line that was cut off.
    pub fn is_over(&self, leader_epoch: i32) -> bool {
        leader_epoch < self.since
    }

    /// Where the lines that began after this leader epoch parted from its own at first; `None`: there are none.
    pub fn parted_after(&self, leader_epoch: i32) -> Option<i64> {
        self.parted.iter().filter(|(since, _)| *since > leader_epoch).map(|(_, at)| *at).min()
    }

    /// The quorum changed the partition: whoever is no member any more has to catch up to become one, and whom a leader
    /// took into the ISR has caught up.
    pub fn settle(&mut self, before: &PartitionState, after: &PartitionState) {
        self.unproved.retain(|id| {
            let joined = after.isr.contains(id) && !before.isr.contains(id) && after.leader != Some(*id);
            (after.isr.contains(id) || after.elr.contains(id)) && !joined
        });
    }

    /// Whether something below this position was taken back from whoever had read it.
    pub fn took_back_below(&self, position: i64) -> bool {
        self.cut_at.is_some_and(|cut| cut < position)
    }

    /// Where a reader goes on whose position was taken back.
    pub fn go_on_at(&self, position: i64) -> i64 {
        self.cut_at.map_or(position, |cut| position.min(cut))
    }

    /// The end of what was ever committed and taken back.
    pub fn cut_end(&self) -> i64 {
        self.cut_end
    }

    /// Whether this batch was committed once and taken back.
    pub fn held(&self, base: i64, crc: u32) -> bool {
        self.batches.contains(&(base, crc))
    }

    /// Whether this record was committed at this offset and taken back.
    pub fn held_record(&self, offset: i64, serial: u64) -> bool {
        self.serials.contains(&(offset, serial))
    }

    /// This batch lies below where the present line is known to begin: whoever still holds it may show it.
    pub fn remember(&mut self, batch: &Batch) {
        self.batches.insert((batch.base, batch.crc));
    }

    fn note(&mut self, batch: &Batch, content: Option<&Content>) {
        self.batches.insert((batch.base, batch.crc));
        self.cut_at = Some(self.cut_at.map_or(batch.base, |cut| cut.min(batch.base)));
        self.cut_end = self.cut_end.max(batch.end);
        for (offset, &serial) in (batch.base..).zip(content.into_iter().flat_map(|content| &content.serials)) {
            self.serials.insert((offset, serial));
        }
    }
}

/// What a leader lacks that took over uncleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// The first offset that it does not hold as it was committed.
    pub from: i64,
    /// Where the committed records ended.
    pub committed_end: i64,
}

impl PartitionBook {
    /// The leader of an unclean election takes over: what it lacks of the committed records is gone.
    pub fn begin_line(&mut self, leader: &ReplicaBook, leader_epoch: i32, contents: &BTreeMap<u32, Content>) -> Loss {
        let committed_end = self.committed.end();
        let from = self.held_by(leader).min(committed_end);
        let gone: Vec<Batch> = self.committed.between(from, committed_end).to_vec();
        for batch in &gone {
            self.lines.note(batch, contents.get(&batch.crc));
        }
        self.lines.losses += u64::from(!gone.is_empty());
        let loss = Loss { from: if gone.is_empty() { committed_end } else { from }, committed_end };
        self.lines.newest_loss = Some((leader_epoch, loss));
        self.lines.untold += loss.committed_end - loss.from;
        self.lines.since = leader_epoch;
        self.lines.parted.push((leader_epoch, from));
        if gone.is_empty() && !self.committed.batches.is_empty() {
            return loss;
        }
        for batch in leader.mirror.batches.iter().filter(|batch| batch.end <= from) {
            self.lines.remember(batch);
        }
        self.committed.cut(from);
        if self.committed.batches.is_empty() {
            // Nothing is left of what was committed: the line goes on with the leader's own batches.
            let begins = leader.mirror.batch_at(from).map_or(from, |batch| batch.base);
            self.committed = Mirror::starting(begins, leader.mirror.chain_at(begins).unwrap_or(0));
        }
        self.serials.truncate(usize::try_from(self.committed.end()).unwrap_or(0));
        self.serial_at.retain(|_, offset| *offset < from);
        self.newest_of.clear();
        for batch in &self.committed.batches {
            if let Some(content) = contents.get(&batch.crc).filter(|content| content.producer >= 0) {
                self.newest_of.insert(content.producer, content.serials.last().copied().unwrap_or(0));
            }
        }
        loss
    }

    /// Committed records that would be gone if this replica led as it is now, with those gone already that the history does
    /// not tell of yet.
    pub fn lost_with(&self, replica: &ReplicaBook) -> i64 {
        self.lines.untold + self.committed.end() - self.held_by(replica).min(self.committed.end())
    }

    /// How far a replica holds what is committed.
    fn held_by(&self, replica: &ReplicaBook) -> i64 {
        let (mirror, committed) = (&replica.mirror, &self.committed);
        if let Some(agreed) = self.agreed_with(mirror) {
            return agreed;
        }
        // Nothing of it is there to be compared: what its line had in common with the present one counts.
        match self.lines.parted_after(replica.line) {
            Some(parted) => parted.min(mirror.end()),
            None if mirror.origin >= committed.end() => committed.end(),
            None => mirror.end().min(committed.origin),
        }
    }

    /// How far a log holds the same as what is committed; `None` where they have no offset in common to be compared at.
    pub fn agreed_with(&self, mirror: &Mirror) -> Option<i64> {
        let both_begin = mirror.origin.max(self.committed.origin);
        let agreed = mirror.agrees_up_to(&self.committed, self.committed.end());
        let at_the_beginning = mirror.chain_at(both_begin);
        let begin_alike = at_the_beginning.is_some() && at_the_beginning == self.committed.chain_at(both_begin);
        (agreed > both_begin || begin_alike).then_some(agreed)
    }

    /// A leader of an unclean election took over when another had been elected already: it commits nothing, but readers that
    /// have not heard of the other are sent back to where it parts from what is committed.
    pub fn took_over_in_vain(&mut self, leader: &ReplicaBook) {
        let parts = self.held_by(leader).min(self.committed.end());
        self.lines.cut_at = Some(self.lines.cut_at.map_or(parts, |cut| cut.min(parts)));
    }

    /// A leader of a line that was cut off counts more of its log as committed: nobody else ever will.
    pub fn committed_in_vain(&mut self, batches: &[Batch], contents: &BTreeMap<u32, Content>) {
        for batch in batches {
            self.lines.note(batch, contents.get(&batch.crc));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition() -> PartitionBook {
        let mut partition = PartitionBook::default();
        for number in 0..4 {
            partition.committed.push(number * 2, number * 2 + 2, 0, 10 + number as u32);
            partition.serials.extend([number as u64 * 2, number as u64 * 2 + 1]);
        }
        partition
    }

    #[test]
    fn what_an_unclean_leader_lacks_is_cut_off_and_nothing_else() {
        let mut partition = partition();
        let mut leader = ReplicaBook::default();
        for number in 0..2 {
            leader.mirror.push(number * 2, number * 2 + 2, 0, 10 + number as u32);
        }
        leader.mirror.push(4, 6, 0, 99);
        let loss = partition.begin_line(&leader, 3, &BTreeMap::new());
        assert_eq!(loss, Loss { from: 4, committed_end: 8 });
        assert_eq!((partition.committed.end(), partition.serials.len()), (4, 4));
        assert!(
            partition.lines.held(4, 12) && !partition.lines.held(4, 99),
            "what was cut off, not what stands there now"
        );
        assert!(partition.lines.took_back_below(5) && !partition.lines.took_back_below(4));
        assert!(partition.lines.is_over(2) && !partition.lines.is_over(3));
    }

    /// Seed 4864.
    #[test]
    fn a_log_that_begins_above_what_is_committed_says_nothing_of_its_line() {
        let partition = partition();
        assert_eq!(partition.agreed_with(&partition.committed), Some(8));
        assert_eq!(partition.agreed_with(&Mirror::starting(9, 77)), None);
        let mut other = Mirror::starting(0, 0);
        other.push(0, 2, 0, 99);
        assert_eq!(partition.agreed_with(&other), Some(0), "they part at once");
    }

    /// Seed 3271.
    #[test]
    fn an_unclean_leader_that_comes_too_late_sends_readers_back_and_commits_nothing() {
        let mut partition = partition();
        let mut leader = ReplicaBook::default();
        leader.mirror.push(0, 2, 0, 10);
        partition.took_over_in_vain(&leader);
        assert!(partition.lines.took_back_below(3) && !partition.lines.took_back_below(2));
        assert_eq!((partition.committed.end(), partition.lines.losses), (8, 0));
    }

    #[test]
    fn an_unclean_leader_that_lacks_nothing_cuts_nothing() {
        let mut partition = partition();
        let leader = ReplicaBook { mirror: partition.committed.clone(), ..ReplicaBook::default() };
        assert_eq!(partition.begin_line(&leader, 3, &BTreeMap::new()), Loss { from: 8, committed_end: 8 });
        assert!(!partition.lines.took_back_below(8));
        assert_eq!(partition.lines.losses, 0);
    }
}
