//! The store on trial (R214): one process writes for ever and says what is durable, until it is killed or its disk loses
//! power; another one reads what is there then and holds it to what was said. For tests only.
//!
//! Every entry follows from its index, and so does the state after it: whoever reads knows what must be there.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures::stream;
use highwater_wire::{BrokerId, DirectoryId, Timestamp};
use openraft::storage::{IOFlushed, RaftLogStorage as _, RaftStateMachine as _};
use openraft::{EntryPayload, LogId, RaftLogReader as _, RaftSnapshotBuilder as _, Vote};

use super::log_store::LogStore;
use super::snapshot::{self, State};
use super::state_machine::StateMachine;
use super::store::MetaStore;
use super::types::{Membership, NodeId, Proposal, TypeConfig};
use crate::controller::{Command, RULE_VERSION, decide};
use crate::image::{Endpoint, ImageVersion, MetadataImage};

type Entry = openraft::alias::EntryOf<TypeConfig>;
type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, NodeId>;

/// Entries between two snapshots.
const SNAPSHOT_ENTRIES: u64 = 600;
/// Entries kept behind a snapshot when the log is purged.
const KEPT_ENTRIES: u64 = 200;
/// Entries of one term.
const TERM_ENTRIES: u64 = 200;
/// Appends that wait for their sync at the same time.
const IN_FLIGHT: u64 = 5;
/// Whom the entries are about, in turn: rows are written over and over.
const NODES: u64 = 50;

/// What a writer said was durable; entries and terms as numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    pub acked: Option<u64>,
    pub voted: u64,
    pub purged: Option<u64>,
    pub snapshot: Option<u64>,
}

impl Told {
    /// Takes one line of a writer: a word and a number; others are passed over.
    pub fn note(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(what), Some(Ok(number))) = (words.next(), words.next().map(str::parse::<u64>)) else { return };
        match what {
            "acked" => self.acked = Some(number),
            "vote" => self.voted = number,
            "purged" => self.purged = Some(number),
            "snapshot" => self.snapshot = Some(number),
            _ => {}
        }
    }
}

/// The content of entry `index`: the sizes vary up to the largest that is allowed.
pub(super) fn command(index: u64) -> Command {
    let length = match index % 97 {
        0 => 60 << 10,
        step => 40 + usize::try_from(step).expect("small") * 8,
    };
    let letter = char::from(b'a' + u8::try_from(index % 26).expect("a letter"));
    let mut directory = [7; 16];
    directory[..8].copy_from_slice(&index.to_be_bytes());
    Command::RegisterController {
        node: BrokerId(i32::try_from(index % NODES).expect("small")),
        directory: DirectoryId::from_bytes(directory),
        endpoint: Endpoint { host: letter.to_string().repeat(length), port: 9 },
        time: Timestamp(i64::try_from(index).expect("far below 2^63")),
    }
}

pub(super) fn entry(index: u64) -> Entry {
    let proposal = Proposal::of(&command(index)).expect("within the limit of an entry");
    Entry { log_id: log_id(index), payload: EntryPayload::Normal(proposal) }
}

pub(super) fn log_id(index: u64) -> super::types::LogId {
    LogId { leader_id: openraft::vote::RaftLeaderId::to_committed(&leader(index / TERM_ENTRIES + 1)), index }
}

pub(super) fn leader(term: u64) -> LeaderId {
    let voted_for = NodeId { node: BrokerId(1), directory: DirectoryId::from_bytes([0; 16]) };
    LeaderId { term, voted_for }
}

/// The state after entry `index`, for every index asked for in rising order.
#[derive(Default)]
pub(super) struct Model {
    image: MetadataImage,
    next: u64,
}

impl Model {
    pub fn after(&mut self, index: u64) -> io::Result<Vec<u8>> {
        while self.next <= index {
            let decided = decide(&self.image, self.next, RULE_VERSION, &command(self.next));
            let decision = decided.map_err(|refusal| io::Error::other(refusal.to_string()))?;
            decision.changes.iter().for_each(|change| self.image.apply(change));
            self.image.version = ImageVersion(self.next);
            self.next += 1;
        }
        Ok(bytes_of(log_id(index), &self.image))
    }
}

/// A state as the bytes of its snapshot.
fn bytes_of(applied: super::types::LogId, image: &MetadataImage) -> Vec<u8> {
    let state = State { applied: Some(applied), membership: Membership::default(), image: image.clone() };
    snapshot::encode(&state).to_vec()
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Writes into the store at `directory` for ever: votes, batches of entries with several in flight, their state,
/// snapshots, purges. Calls `say` with a word and a number, as [`Told::note`] takes them, when something is durable.
///
/// # Errors
/// The store failed; nothing is said of what was under way.
pub fn write(directory: &Path, say: &mut dyn FnMut(&str, u64)) -> io::Result<()> {
    let store = Arc::new(MetaStore::open(directory, 1).map_err(|error| io::Error::other(error.to_string()))?);
    let mut log = LogStore::open(Arc::clone(&store))?;
    let (mut machine, _) = StateMachine::open(Arc::clone(&store))?;
    runtime()?.block_on(async {
        let state = log.get_log_state().await?;
        restore(&mut machine, state.last_purged_log_id).await?;
        let mut next = state.last_log_id.map_or(0, |last| last.index + 1);
        let mut snapshot_due = next + SNAPSHOT_ENTRIES / 2;
        say("open", next);
        loop {
            let term = next / TERM_ENTRIES + 1;
            log.save_vote(&Vote { leader_id: leader(term), committed: true }).await?;
            say("vote", term);
            let mut waiting = Vec::new();
            for batch in 1..=IN_FLIGHT {
                let count = (next + batch * 13) % 40 + 1;
                let (tell, told) = <TypeConfig as openraft::type_config::TypeConfigExt>::oneshot();
                log.append((next..next + count).map(entry), IOFlushed::signal(tell)).await?;
                next += count;
                waiting.push((next - 1, told));
            }
            for (last, flushed) in waiting {
                flushed.await.map_err(io::Error::other)?.map_err(|error| io::Error::other(error.to_string()))?;
                say("acked", last);
            }
            let (applied, _) = machine.applied_state().await?;
            let from = applied.map_or(0, |applied| applied.index + 1);
            log.save_committed(Some(log_id(next - 1))).await?;
            let entries = log.try_get_log_entries(from..next).await?;
            machine.apply(stream::iter(entries.into_iter().map(|entry| Ok((entry, None))))).await?;
            if next > snapshot_due {
                snapshot_due = next + SNAPSHOT_ENTRIES;
                let built = machine.get_snapshot_builder().await.build_snapshot().await?;
                let upto = built.meta.last_log_id.map_or(0, |last| last.index);
                say("snapshot", upto);
                if let Some(purged) = upto.checked_sub(KEPT_ENTRIES) {
                    log.purge(log_id(purged)).await?;
                    say("purged", purged);
                }
            }
        }
    })
}

/// What raft does at a start: a state that is older than the log's beginning is taken from the snapshot.
async fn restore(machine: &mut StateMachine, purged: Option<super::types::LogId>) -> io::Result<()> {
    let (applied, _) = machine.applied_state().await?;
    if applied < purged
        && let Some(saved) = machine.get_current_snapshot().await?
    {
        machine.install_snapshot(&saved.meta, saved.snapshot).await?;
    }
    Ok(())
}

/// Whether the store at `directory` opens and holds all that was said: every acknowledged entry, whole and in order; a vote
/// and a purge mark that did not go back; a state and a snapshot that are what their entries make.
///
/// # Errors
/// What is wrong with it.
pub fn check(directory: &Path, told: &Told) -> Result<(), String> {
    let store = Arc::new(MetaStore::open(directory, 1).map_err(|error| format!("it does not open: {error}"))?);
    let checked =
        runtime().map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(check_open(&store, told)));
    store.close();
    checked
}

async fn check_open(store: &Arc<MetaStore>, told: &Told) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let mut log = LogStore::open(Arc::clone(store)).map_err(text)?;
    let (mut machine, images) = StateMachine::open(Arc::clone(store)).map_err(text)?;
    let state = log.get_log_state().await.map_err(text)?;
    let last = state.last_log_id.map(|last| last.index);
    let purged = state.last_purged_log_id.map(|purged| purged.index);
    require(last >= told.acked, || format!("entry {:?} was acknowledged, the last one is {last:?}", told.acked))?;
    require(purged >= told.purged, || format!("the purge mark is {purged:?}, and was {:?}", told.purged))?;

    let first = purged.map_or(0, |purged| purged + 1);
    let entries = log.try_get_log_entries(0..).await.map_err(text)?;
    let end = first + entries.len() as u64;
    require(last.map_or(0, |last| last + 1) == end, || {
        format!("the log is to reach from {first} to {last:?}, and holds {} entries", entries.len())
    })?;
    for (index, found) in (first..).zip(&entries) {
        require(*found == entry(index), || format!("entry {index} is another: {found:?}"))?;
    }
    let term = log.read_vote().await.map_err(text)?.map_or(0, |vote| vote.leader_id.term);
    require(term >= told.voted, || format!("the vote is of term {term}, and was of {}", told.voted))?;

    let (applied, _) = machine.applied_state().await.map_err(text)?;
    let applied = applied.map(|applied| applied.index);
    require(applied.map_or(0, |applied| applied + 1) <= end, || {
        format!("state {applied:?} of a log that ends at {end}")
    })?;
    let saved = machine.get_current_snapshot().await.map_err(text)?;
    let snapshot = saved.as_ref().and_then(|saved| saved.meta.last_log_id).map(|last| last.index);
    require(snapshot >= told.snapshot, || format!("the snapshot is of {snapshot:?}, and was of {:?}", told.snapshot))?;
    require(applied.max(snapshot) >= purged, || {
        format!("state {applied:?} and snapshot {snapshot:?} do not reach the purge mark {purged:?}")
    })?;
    let of_state = applied.map(|index| (index, bytes_of(log_id(index), &images.borrow())));
    let of_snapshot = snapshot.zip(saved.map(|saved| saved.snapshot.to_vec()));
    let mut both: Vec<_> = of_state.into_iter().chain(of_snapshot).collect();
    both.sort();
    let mut model = Model::default();
    for (index, found) in both {
        let expected = model.after(index).map_err(text)?;
        require(found == expected, || format!("the state after entry {index} is not what its entries make"))?;
    }
    Ok(())
}

fn require(holds: bool, fault: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(fault()) }
}
