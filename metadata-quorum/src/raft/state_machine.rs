//! Applies committed entries: `decide`, rows, and one publication of the image per batch (D13, D16).
//!
//! Rows live in the tree `state`: `00` → head; `generation (u32 big-endian) | kind | key` → row. A batch of entries and
//! the head that names the last of them are one sled batch, unsynced: the log replays what a crash takes away.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use highwater_wire::{BrokerId, Timestamp};
use openraft::alias::SmSnapshotOf;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::journal::Journal;
use super::rows::{self, ImageReader, RowSink};
use super::snapshot::{self, State};
use super::store::tree::Batch;
use super::store::{MetaStore, STORE_FORMAT, SWEEP_KEYS_MAX};
use super::types::{Applied, LogId, Membership, SnapshotMeta, TypeConfig};
use crate::controller::{decide, time_of};
use crate::flaws::{Flaw, planted};
use crate::image::events::{Collector, Event};
use crate::image::{Change, ChangeKind, ImageVersion, MetadataImage};

pub(super) const HEAD: &[u8] = &[0x00];

/// What stands at `00`: the state as a whole. The format comes first.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    format: u32,
    generation: u32,
    applied: Option<LogId>,
    membership: Membership,
    cluster_id: Option<String>,
    feature_level: u16,
}

/// The state machine of one node.
#[derive(Debug)]
pub(crate) struct StateMachine {
    store: Arc<MetaStore>,
    generation: u32,
    state: State,
    images: watch::Sender<Arc<MetadataImage>>,
    journal: Arc<Journal>,
}

/// Collects row changes under one generation.
struct Rows {
    generation: [u8; 4],
    batch: Batch,
    keys: usize,
}

impl Rows {
    fn of(generation: u32) -> Self {
        Self { generation: generation.to_be_bytes(), batch: Batch::default(), keys: 0 }
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        let mut whole = self.generation.to_vec();
        whole.extend_from_slice(key);
        whole
    }
}

impl RowSink for Rows {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.batch.insert(self.key(&key), value);
        self.keys += 1;
    }

    fn remove(&mut self, key: Vec<u8>) {
        self.batch.remove(self.key(&key));
        self.keys += 1;
    }
}

/// Collects all rows of an image, to be written in batches.
#[derive(Default)]
struct AllRows(Vec<(Vec<u8>, Vec<u8>)>);

impl RowSink for AllRows {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.0.push((key, value));
    }

    fn remove(&mut self, _: Vec<u8>) {
        unreachable!("an image is written whole");
    }
}

/// A prefix of rows: generation 0 begins with four zero bytes, which no other key does (`00` is shorter).
fn generation_range(generation: u32) -> (Vec<u8>, Vec<u8>) {
    let from = generation.to_be_bytes().to_vec();
    let mut to = from.clone();
    to.extend_from_slice(&[0xff; 64]);
    (from, to)
}

impl StateMachine {
    /// Rebuilds the image from the rows and publishes it.
    pub fn open(store: Arc<MetaStore>) -> io::Result<(Self, watch::Receiver<Arc<MetadataImage>>)> {
        let head = match store.state.get(HEAD)? {
            Some(bytes) => Some(read_head(&bytes)?),
            None => None,
        };
        let (generation, state) = match head {
            None => {
                let state = State { applied: None, membership: Membership::default(), image: MetadataImage::default() };
                (1, state)
            }
            Some(head) => {
                let mut reader = ImageReader::default();
                let (from, to) = generation_range(head.generation);
                for row in store.state.range(from..to) {
                    let (key, value) = row?;
                    reader.row(&key[4..], &value).map_err(|error| io::Error::other(error.to_string()))?;
                }
                let mut image = reader.finish().map_err(|error| io::Error::other(error.to_string()))?;
                image.version = ImageVersion(head.applied.as_ref().map_or(0, |applied| applied.index));
                image.cluster_id = head.cluster_id.as_deref().map(Into::into);
                image.feature_level = head.feature_level;
                (head.generation, State { applied: head.applied, membership: head.membership, image })
            }
        };
        // Generations of an install that was cut short, or whose predecessor was not yet gone.
        if generation > 1 {
            let (from, _) = generation_range(1);
            store.sweep(&store.state, from, generation.to_be_bytes().to_vec());
        }
        let (images, published) = watch::channel(Arc::new(state.image.clone()));
        let journal = Journal::open(&store, state.applied.map_or(0, |applied| applied.index))?;
        Ok((Self { store, generation, state, images, journal: Arc::new(journal) }, published))
    }

    /// What the entries applied here did.
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    fn head(&self) -> Vec<u8> {
        let head = Head {
            format: STORE_FORMAT,
            generation: self.generation,
            applied: self.state.applied,
            membership: self.state.membership.clone(),
            cluster_id: self.state.image.cluster_id.as_deref().map(str::to_owned),
            feature_level: self.state.image.feature_level,
        };
        postcard::to_stdvec(&head).expect("plain data")
    }

    /// Decides and applies one entry to the image in memory; its rows go into `rows`, its events into `events`.
    fn apply_entry(
        &mut self,
        log_id: LogId,
        payload: EntryPayload<super::types::Proposal, super::types::NodeId, openraft::EmptyNode>,
        rows: &mut Rows,
        events: &mut Vec<Event>,
    ) -> io::Result<Applied> {
        let answer = match payload {
            EntryPayload::Blank => Applied::Nothing,
            EntryPayload::Membership(membership) => {
                self.state.membership = Membership::new(Some(log_id), membership);
                events.extend(self.membership_events(log_id.index));
                Applied::Nothing
            }
            EntryPayload::Normal(proposal) => {
                let command = proposal.command()?;
                let decided = decide(&self.state.image, log_id.index, proposal.rules, &command);
                Applied::Decided(decided.map(|decision| {
                    let mut news = Collector::new(log_id.index, time_of(&command));
                    for change in &decision.changes {
                        report_loss(&self.state.image, change);
                        news.note(&self.state.image, change);
                        rows::write_change(rows, &self.state.image, change);
                        self.state.image.apply(change);
                    }
                    events.append(&mut news.finish());
                    decision.answer
                }))
            }
        };
        self.state.image.version = ImageVersion(log_id.index);
        self.state.applied = Some(log_id);
        Ok(answer)
    }

    fn membership_events(&self, index: u64) -> Vec<Event> {
        let members = self.state.membership.membership();
        let voters: BTreeSet<BrokerId> = members.voter_ids().map(|id| id.node).collect();
        let observers: BTreeSet<BrokerId> = members.learner_ids().map(|id| id.node).collect();
        let mut news = Collector::new(index, Timestamp::NONE);
        news.membership(voters.into_iter().collect(), observers.into_iter().collect());
        news.finish()
    }

    fn publish(&self) {
        if cfg!(debug_assertions) {
            self.state.image.check_invariants();
        }
        self.images.send_replace(Arc::new(self.state.image.clone()));
    }

    /// Remembers the cluster's id beside the vote, where a node finds it before it has any state.
    fn note_cluster(&self) -> io::Result<()> {
        match &self.state.image.cluster_id {
            Some(id) if self.store.cluster_id().as_deref() != Some(id) => self.store.set_cluster_id(id),
            _ => Ok(()),
        }
    }

    /// Replaces the state by `state`, durably, as the next generation.
    async fn replace(&mut self, state: State) -> io::Result<()> {
        let old = self.generation;
        let new = old.checked_add(1).ok_or_else(|| io::Error::other("out of generations"))?;
        let tree = self.store.state.clone();
        // What an install that was cut short may have left.
        let (from, _) = generation_range(new);
        loop {
            let keys: Vec<_> = tree.range(from.clone()..).flatten().take(SWEEP_KEYS_MAX).map(|(key, _)| key).collect();
            if keys.is_empty() {
                break;
            }
            let mut batch = Batch::default();
            keys.into_iter().for_each(|key| batch.remove(key));
            tree.apply_batch(batch)?;
        }
        let mut rows = AllRows::default();
        rows::write_image(&mut rows, &state.image);
        for chunk in rows.0.chunks(SWEEP_KEYS_MAX) {
            let mut batch = Rows::of(new);
            for (key, value) in chunk {
                batch.put(key.clone(), value.clone());
            }
            tree.apply_batch(batch.batch)?;
        }
        self.generation = new;
        self.state = state;
        self.note_cluster()?;
        tree.insert(HEAD, self.head())?;
        if !planted(Flaw::InstallsUnsynced) {
            self.store.synced().await?;
        }
        let (from, to) = generation_range(old);
        self.store.sweep(&tree, from, to);
        self.publish();
        self.journal.reset(self.state.applied.map_or(0, |applied| applied.index))
    }
}

/// Tells people, once on each node, what an unclean election cost.
fn report_loss(image: &MetadataImage, change: &Change) {
    let Change::History(at, change) = change else { return };
    let ChangeKind::DataLoss { from, known } = &change.kind else { return };
    let topic = image.topics.get(&at.topic).map_or_else(|| at.topic.to_string(), |topic| topic.name.to_string());
    let partition = format!("{topic}-{}", at.partition);
    let (leader, leader_epoch, lost) = (change.leader.map(|id| id.0), change.leader_epoch, change.kind.records_lost());
    let from_offset = from.map(|offset| offset.0);
    let known_watermark = known.map(|known| known.high_watermark.0);
    if lost > 0 {
        let at_least = lost;
        tracing::error!(
            partition, leader, %leader_epoch, from_offset, known_watermark, at_least,
            "an unclean election lost committed records"
        );
    } else {
        tracing::warn!(
            partition, leader, %leader_epoch, from_offset, known_watermark,
            "an unclean election: no committed record is known to be lost"
        );
    }
}

fn read_head(bytes: &[u8]) -> io::Result<Head> {
    let unreadable =
        |error: postcard::Error| io::Error::other(format!("unreadable head of the metadata state: {error}"));
    let format = postcard::take_from_bytes::<u32>(bytes).map_err(unreadable)?.0;
    if format > STORE_FORMAT {
        return Err(io::Error::other(format!("state of format {format}, this build reads up to {STORE_FORMAT}")));
    }
    postcard::from_bytes(bytes).map_err(unreadable)
}

/// The last applied entry and the membership as of it, from the bytes of a head.
#[cfg(feature = "sim")]
pub(super) fn applied(bytes: &[u8]) -> Option<(LogId, Membership)> {
    let head = read_head(bytes).ok()?;
    Some((head.applied?, head.membership))
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Membership)> {
        Ok((self.state.applied, self.state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut rows = Rows::of(self.generation);
        let mut answers: Vec<(ApplyResponder<TypeConfig>, Applied)> = Vec::new();
        let mut events = Vec::new();
        while let Some((entry, responder)) = entries.try_next().await? {
            let answer = self.apply_entry(entry.log_id, entry.payload, &mut rows, &mut events)?;
            if let Some(responder) = responder {
                answers.push((responder, answer));
            }
        }
        self.publish();
        self.note_cluster()?;
        if let Some(applied) = &self.state.applied {
            self.journal.append(applied.index, &events)?;
        }
        if planted(Flaw::AppliesApart) {
            self.store.state.apply_batch(std::mem::take(&mut rows.batch))?;
        }
        rows.batch.insert(HEAD, self.head());
        self.store.state.apply_batch(rows.batch)?;
        for (responder, answer) in answers {
            responder.send(answer);
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { store: Arc::clone(&self.store), state: self.state.clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, bytes: Bytes) -> io::Result<()> {
        let mut state = snapshot::decode(&bytes)?;
        if planted(Flaw::InstallsNoMembership) {
            state.membership = self.state.membership.clone();
        }
        if state.applied != meta.last_log_id {
            return Err(io::Error::other("a metadata snapshot that is not the one announced"));
        }
        if !planted(Flaw::InstallsUnsynced) {
            self.store.save_snapshot(state.applied, || bytes).await?;
        }
        let index = state.applied.map(|applied| applied.index);
        self.replace(state).await?;
        tracing::info!(index, "installed a metadata snapshot");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SmSnapshotOf<TypeConfig, Self>>> {
        let loaded = self.store.load_snapshot().await?;
        Ok(loaded.map(|(meta, snapshot)| openraft::Snapshot { meta, snapshot }))
    }
}

/// Builds a snapshot of the state as it was when the builder was made: the image is shared, so this costs nothing.
pub(crate) struct Builder {
    store: Arc<MetaStore>,
    state: State,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> io::Result<SmSnapshotOf<TypeConfig, StateMachine>> {
        let state = self.state.clone();
        let snapshot = self.store.save_snapshot(state.applied, move || snapshot::encode(&state)).await?;
        self.store.check();
        let meta = SnapshotMeta { last_log_id: self.state.applied, last_membership: self.state.membership.clone() };
        Ok(openraft::Snapshot { meta, snapshot })
    }
}
