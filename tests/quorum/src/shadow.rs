//! The one history: every entry that any state machine applied, decided again by the shipped rules, and what must never
//! happen in it – an id twice, an epoch that goes back, an acknowledged proposal missing or applied twice.

use std::collections::{BTreeMap, BTreeSet};

use highwater_quorum::image::{Change, MetadataImage, state_hash};
use highwater_quorum::sim::{Content, EntryId};
use highwater_quorum::{Answer, Command, ImageVersion, QuorumMember, Refusal, decide};
use highwater_wire::{BrokerId, IncarnationId, TopicId, TopicPartition};

/// One applied entry.
#[derive(Debug, Clone)]
pub struct Applied {
    pub id: EntryId,
    pub content: Content,
    /// What the rules answered; `None` for entries without a command.
    pub decided: Option<Result<Answer, Refusal>>,
    /// Whether it changed anything.
    pub changed: bool,
    /// The state after it.
    pub image: MetadataImage,
    hash: Option<u64>,
    /// The last membership at or before it: its index.
    pub membership: Option<u64>,
}

/// See the file's head. Entry `i` stands at `entries[i]`.
#[derive(Debug, Default)]
pub struct Shadow {
    entries: Vec<Applied>,
    topics: BTreeSet<TopicId>,
    epochs: BTreeMap<(BrokerId, i64), IncarnationId>,
    newest_epoch: i64,
    next_producer_id: i64,
    partitions: BTreeMap<TopicPartition, (i32, i32)>,
}

type Broken = (&'static str, String);

impl Shadow {
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, index: u64) -> Option<&Applied> {
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// The state's number after entry `index`.
    pub fn hash(&mut self, index: u64) -> u64 {
        let entry = &mut self.entries[usize::try_from(index).unwrap()];
        *entry.hash.get_or_insert_with(|| state_hash(&entry.image))
    }

    /// Sets of voters that may be in force on a node that has applied entry `index`.
    pub fn memberships_from(&self, index: u64) -> Vec<&Vec<BTreeSet<QuorumMember>>> {
        let Some(from) = self.get(index).and_then(|entry| entry.membership) else { return Vec::new() };
        let entries = self.entries[usize::try_from(from).unwrap()..].iter();
        entries
            .filter_map(|entry| match &entry.content {
                Content::Membership(sets) => Some(sets),
                Content::Blank | Content::Command { .. } => None,
            })
            .collect()
    }

    /// The voters as of entry `index`.
    pub fn membership_at(&self, index: u64) -> Option<&Vec<BTreeSet<QuorumMember>>> {
        match &self.get(self.get(index)?.membership?)?.content {
            Content::Membership(sets) => Some(sets),
            Content::Blank | Content::Command { .. } => None,
        }
    }

    /// The first time anybody applied the next entry.
    pub fn push(&mut self, id: EntryId, content: Content) -> Result<(), Broken> {
        if id.index != self.len() {
            return Err(("prefixes of one history", format!("entry {id:?} applied after {} entries", self.len())));
        }
        if let Some(last) = self.entries.last()
            && last.id.term > id.term
        {
            return Err(("prefixes of one history", format!("entry {id:?} follows {:?}", last.id)));
        }
        let mut image = self.entries.last().map(|entry| entry.image.clone()).unwrap_or_default();
        let mut membership = self.entries.last().and_then(|entry| entry.membership);
        let (mut decided, mut changed) = (None, false);
        match &content {
            Content::Blank => {}
            Content::Membership(_) => membership = Some(id.index),
            Content::Command { rules, command } => {
                let decision = decide(&image, id.index, *rules, command);
                if let Ok(decision) = &decision {
                    changed = !decision.changes.is_empty();
                    for change in &decision.changes {
                        self.check(change)?;
                        image.apply(change);
                    }
                    self.check_answer(id.index, command, &decision.answer)?;
                }
                decided = Some(decision.map(|decision| decision.answer));
            }
        }
        image.version = ImageVersion(id.index);
        image.check_invariants();
        self.entries.push(Applied { id, content, decided, changed, image, hash: None, membership });
        Ok(())
    }

    fn check_answer(&mut self, index: u64, command: &Command, answer: &Answer) -> Result<(), Broken> {
        match (command, answer) {
            (Command::RegisterBroker(request), Answer::Registered { epoch }) => {
                let key = (request.broker, epoch.0);
                match self.epochs.get(&key) {
                    Some(incarnation) if *incarnation == request.incarnation => {}
                    Some(_) => return Err(("broker epochs", format!("epoch {epoch} is given twice at {index}"))),
                    None if epoch.0 <= self.newest_epoch => {
                        return Err(("broker epochs", format!("epoch {epoch} follows {}", self.newest_epoch)));
                    }
                    None => {
                        self.newest_epoch = epoch.0;
                        self.epochs.insert(key, request.incarnation);
                    }
                }
            }
            (Command::AllocateProducerIds { .. }, Answer::ProducerIds { first, count }) => {
                if first.0 < self.next_producer_id {
                    return Err(("producer ids", format!("block {first} at {index} was handed out before")));
                }
                self.next_producer_id = first.0 + i64::from(*count);
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&mut self, change: &Change) -> Result<(), Broken> {
        match change {
            Change::Topic { id, .. } => {
                let known = self.entries.last().is_some_and(|entry| entry.image.topics.contains_key(id));
                if !self.topics.insert(*id) && !known {
                    return Err(("topic ids", format!("topic {id} exists a second time")));
                }
            }
            Change::Partition(at, state) => {
                let now = (state.partition_epoch.0, state.leader_epoch.0);
                if let Some(before) = self.partitions.insert(*at, now)
                    && (now.0 <= before.0 || now.1 < before.1)
                {
                    return Err(("partition epochs", format!("{at}: {before:?} is followed by {now:?}")));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
