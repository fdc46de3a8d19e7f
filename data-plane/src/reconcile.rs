//! Image → replicas: opens what this broker shall host, tells each replica what it is, lets go of what is gone (R227).
//!
//! Compares states, not events (R226), so that repeats and skipped images are harmless. Acts only on images that carry
//! the broker epoch of this process. Whatever blocks – opening, recovering, renaming – runs off the workers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use highwater_quorum::image::diff::{LocalChanges, LocalPartition, StopReason, StoppedPartition, local_changes};
use highwater_quorum::image::{BrokerState, DataProof, MetadataImage};
use highwater_wire::{BrokerId, Millis, TopicPartition};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::identity::Identity;
use crate::log::{Log, LogDir, LogName, LogSettings, OpenError, RecoveryReport};
use crate::partitions::{Deliveries, Partitions, Request, Store};
use crate::replica::message::{Assignment, Became, FollowerNext, Peer, Peers, ReplicaReply};
use crate::replica::{Replica, ReplicaConfig};
use crate::view::Recovery;

/// Logs opened by one task: creating one takes a fraction of a millisecond.
const LOGS_PER_TASK: usize = 16;

/// `file.delete.delay.ms` where the topic's own is not known any more.
const ERASE_DELAY_MS: u64 = 60_000;

/// Replicas told of an image in a row, before others get the worker.
const TOLD_AT_ONCE: usize = 128;

/// What the replicas here have been told.
pub struct Reconciler {
    partitions: Arc<Partitions>,
    broker: BrokerId,
    identity: Arc<Identity>,
    replica_lag_max: Millis,
    producer_expiration_ms: u64,
    told: Arc<MetadataImage>,
}

/// A log that was opened.
struct Opened {
    partition: LocalPartition,
    log: Log<Store>,
    report: RecoveryReport,
}

impl Reconciler {
    pub fn new(
        partitions: Arc<Partitions>,
        identity: Arc<Identity>,
        replica_lag_max: Millis,
        producer_expiration_ms: u64,
    ) -> Self {
        Self {
            partitions,
            broker: identity.broker,
            identity,
            replica_lag_max,
            producer_expiration_ms,
            told: Arc::default(),
        }
    }

    /// The first image: deletes what is left of deleted topics, sets aside what else belongs to nobody (R27), recovers all
    /// logs, several at once, and tells every replica its role. Gives the partitions where records may be gone (D10).
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub async fn first(
        &mut self,
        image: Arc<MetadataImage>,
        progress: &watch::Sender<Recovery>,
    ) -> io::Result<Vec<TopicPartition>> {
        let changes = local_changes(&MetadataImage::default(), &image, self.broker);
        let local: Vec<_> = changes.lead.iter().chain(&changes.follow).chain(&changes.refreshed).cloned().collect();
        let expected: HashMap<LogName, TopicPartition> =
            local.iter().map(|p| (LogName::new(p.topic_name.clone(), p.at.partition), p.at)).collect();
        let dir = self.partitions.dir().clone();
        // A quorum that knows the process before this one has known all its topics too. A quorum that does not may be a new
        // one under an old id: what it has never heard of is kept.
        let remembers = image.brokers.get(&self.broker).is_some_and(|broker| broker.kept_data != DataProof::None);
        let known = image.clone();
        // The quorum counts on this broker's records of these: a directory of that name with another topic's id is more likely
        // damaged than one of a topic that was deleted meanwhile. It is kept.
        let counted_on: HashSet<LogName> = local
            .iter()
            .filter(|partition| was_complete_here(partition, self.broker))
            .map(|partition| LogName::new(partition.topic_name.clone(), partition.at.partition))
            .collect();
        let (found, deleted) = blocking(move || {
            // Renamed by a process that ended before it had erased them.
            let mut deleted: Vec<_> = dir.left_over()?.into_iter().map(|path| (path, 0)).collect();
            let found = dir.found()?;
            let (ours, strays): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|log| expected.get(&log.name).is_some_and(|at| log.is_of(at.topic)));
            for stray in &strays {
                let deleted_topic = stray.topic.is_some_and(|topic| !known.topics.contains_key(&topic));
                if remembers && deleted_topic && !counted_on.contains(&stray.name) {
                    info!(log = %stray.name, topic = ?stray.topic, "its topic was deleted while this broker was away");
                    let heir = known.topic_named(&stray.name.topic);
                    let delay = heir.map_or(ERASE_DELAY_MS, |topic| topic.config.file_delete_delay_ms);
                    deleted.push((dir.delete_log(&stray.name)?, delay));
                    continue;
                }
                let path = dir.set_aside(&stray.name)?;
                warn!(log = %stray.name, topic = ?stray.topic, path = %path.display(),
                    "the metadata knows no such replica on this broker; its directory is set aside");
            }
            Ok::<_, io::Error>((ours, deleted))
        })
        .await??;
        self.erase_later(deleted);
        let sizes: HashMap<LogName, u64> = found.into_iter().map(|log| (log.name, log.bytes)).collect();
        progress.send_replace(Recovery { logs: local.len(), bytes: sizes.values().sum(), ..Recovery::default() });
        let held: HashSet<_> = local.iter().filter(|p| was_complete_here(p, self.broker)).map(|p| p.at).collect();
        let opened = self.open(local, |log| {
            let bytes = sizes.get(&LogName::new(log.topic_name.clone(), log.at.partition)).copied().unwrap_or(0);
            progress.send_modify(|recovery| {
                recovery.logs_open += 1;
                recovery.bytes_open += bytes;
            });
        });
        let opened = opened.await?;
        let lost = opened
            .iter()
            .filter(|opened| opened.report.may_have_lost_records() && held.contains(&opened.partition.at))
            .map(|opened| opened.partition.at)
            .collect();
        self.host(opened);
        self.tell_all(&image).await;
        self.told = image;
        Ok(lost)
    }

    /// A newer image. `false`: it is not for this process, and nothing was done.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub async fn apply(&mut self, image: Arc<MetadataImage>) -> io::Result<bool> {
        if image.brokers.get(&self.broker).is_none_or(|broker| Some(broker.epoch) != self.identity.epoch()) {
            return Ok(false);
        }
        if image.version <= self.told.version {
            return Ok(true);
        }
        let changes = local_changes(&self.told, &image, self.broker);
        let LocalChanges { stop, lead, follow, refreshed, brokers } = changes;
        let let_go = self.let_go(&stop);
        let peers = peers(&image);
        let (hosted, new): (Vec<_>, Vec<_>) = lead
            .into_iter()
            .chain(follow)
            .chain(refreshed)
            .partition(|partition| self.partitions.contains(partition.at));
        self.tell(&image, &peers, hosted).await;
        if !brokers.is_empty() {
            self.tell_all(&image).await;
        }
        self.delete(let_go).await?;
        if !new.is_empty() {
            let opened = self.open(new, |_| {}).await?;
            let partitions = opened.iter().map(|opened| opened.partition.clone()).collect();
            self.host(opened);
            self.tell(&image, &peers, partitions).await;
        }
        self.told = image;
        Ok(true)
    }

    /// The image that the replicas have been told of.
    pub fn told(&self) -> &Arc<MetadataImage> {
        &self.told
    }

    /// Stops replicas at once: who waits is answered, nobody finds them any more.
    fn let_go(&self, stop: &[StoppedPartition]) -> Vec<(LogName, u64)> {
        let mut deliveries = Deliveries::new();
        let now = self.partitions.clock.now();
        let mut gone = Vec::with_capacity(stop.len());
        for stopped in stop {
            let Some(hosted) = self.partitions.remove(stopped.at) else { continue };
            self.partitions.enter_hosted(&hosted, Request::Stop, now, &mut deliveries);
            self.partitions.follow(stopped.at, FollowerNext::AwaitMetadata);
            let why = match stopped.why {
                StopReason::TopicDeleted => "its topic was deleted",
                StopReason::Unassigned => "the assignment no longer names this broker",
            };
            info!(partition = %hosted.log, why, "replica goes");
            let config = self.told.topics.get(&stopped.at.topic).map(|topic| topic.config.file_delete_delay_ms);
            gone.push((hosted.log.clone(), config.unwrap_or(ERASE_DELAY_MS)));
        }
        self.partitions.deliver(&mut deliveries);
        gone
    }

    /// Renames the directories away; they are erased later.
    async fn delete(&self, gone: Vec<(LogName, u64)>) -> io::Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        let dir = self.partitions.dir().clone();
        let renamed = blocking(move || {
            let renamed = gone.into_iter().map(|(name, delay)| dir.delete_log(&name).map(|path| (path, delay)));
            renamed.collect::<io::Result<Vec<_>>>()
        });
        self.erase_later(renamed.await??);
        Ok(())
    }

    /// Erases directories, each after its delay in milliseconds.
    fn erase_later(&self, renamed: Vec<(PathBuf, u64)>) {
        let mut by_delay: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for (path, delay) in renamed {
            by_delay.entry(delay).or_default().push(path);
        }
        for (delay, paths) in by_delay {
            self.partitions.erase_later(paths, delay);
        }
    }

    async fn open(
        &self,
        local: Vec<LocalPartition>,
        mut opened_one: impl FnMut(&LocalPartition),
    ) -> io::Result<Vec<Opened>> {
        let mut opening: JoinSet<io::Result<Vec<Opened>>> = JoinSet::new();
        let at_once = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let mut opened = Vec::with_capacity(local.len());
        let per_task = LOGS_PER_TASK.min(local.len().div_ceil(at_once).max(1));
        let mut rest = local.into_iter().peekable();
        loop {
            while opening.len() < at_once && rest.peek().is_some() {
                let some: Vec<_> = rest.by_ref().take(per_task).collect();
                let (dir, clock) = (self.partitions.dir().clone(), self.partitions.clock);
                let expiration = self.producer_expiration_ms;
                opening.spawn_blocking(move || {
                    some.into_iter().map(|partition| open_one(&dir, partition, expiration, clock.wall())).collect()
                });
            }
            let Some(done) = opening.join_next().await else { return Ok(opened) };
            for one in done.map_err(io::Error::other)?? {
                opened_one(&one.partition);
                opened.push(one);
            }
        }
    }

    fn host(&self, opened: Vec<Opened>) {
        for Opened { partition, log, report } in opened {
            let config = ReplicaConfig { partition: partition.at, me: self.broker, lag_max: self.replica_lag_max };
            let name = log.name().clone();
            let replica = Replica::new(config, log, report.watermark_checkpoint);
            self.partitions.host(partition.at, name, replica);
        }
    }

    /// Tells replicas what they are; leaders first (R227). Lets others have the worker in between.
    async fn tell(&self, image: &MetadataImage, peers: &Arc<Peers>, mut partitions: Vec<LocalPartition>) {
        partitions.sort_by_key(|partition| partition.state.leader != Some(self.broker));
        for some in partitions.chunks(TOLD_AT_ONCE) {
            let mut deliveries = Deliveries::new();
            for partition in some {
                self.tell_one(image, peers, partition, &mut deliveries);
            }
            self.partitions.deliver(&mut deliveries);
            if some.len() == TOLD_AT_ONCE {
                tokio::task::yield_now().await;
            }
        }
    }

    fn tell_one(
        &self,
        image: &MetadataImage,
        peers: &Arc<Peers>,
        partition: &LocalPartition,
        deliveries: &mut Deliveries,
    ) {
        let Some(own_epoch) = self.identity.epoch() else { return };
        let Some(hosted) = self.partitions.get(partition.at) else { return };
        hosted.set_erase_delay(partition.config.file_delete_delay_ms);
        let assignment = Assignment {
            version: image.version,
            state: partition.state.clone(),
            config: partition.config.clone(),
            peers: peers.clone(),
            own_epoch,
        };
        let now = self.partitions.clock.now();
        let told = Request::Become(Box::new(assignment));
        let ReplicaReply::Became(became) = self.partitions.enter_hosted(&hosted, told, now, deliveries) else { return };
        match became {
            Became::Leader | Became::Idle => self.partitions.follow(partition.at, FollowerNext::AwaitMetadata),
            Became::Follower(next) => self.partitions.follow(partition.at, next),
            Became::Ignored => return,
        }
        hosted.set_leader(became == Became::Leader);
    }

    /// Tells every hosted replica the image, because brokers changed.
    async fn tell_all(&self, image: &Arc<MetadataImage>) {
        let peers = peers(image);
        let all = self.partitions.all().into_iter().filter_map(|hosted| {
            let topic = image.topics.get(&hosted.at.topic)?;
            let state = image.partition(hosted.at)?.clone();
            let (topic_name, config) = (topic.name.clone(), topic.config.clone());
            Some(LocalPartition { at: hosted.at, topic_name, state, config })
        });
        let all = all.collect();
        self.tell(image, &peers, all).await;
    }
}

/// Whether the quorum may count on this broker's records of a partition: only then is their loss news.
fn was_complete_here(partition: &LocalPartition, broker: BrokerId) -> bool {
    let state = &partition.state;
    [&state.isr, &state.elr, &state.last_known_elr].into_iter().any(|list| list.contains(&broker))
}

fn open_one(
    dir: &Arc<LogDir<Store>>,
    partition: LocalPartition,
    producer_expiration_ms: u64,
    now: highwater_wire::Timestamp,
) -> io::Result<Opened> {
    let name = LogName::new(partition.topic_name.clone(), partition.at.partition);
    let settings = LogSettings { producer_expiration_ms, ..LogSettings::from(&*partition.config) };
    let mut result = Log::open(dir, &name, partition.at.topic, settings.clone(), now);
    if let Err(OpenError::InconsistentTopicId { stored, expected, .. }) = &result {
        let path = dir.set_aside(&name)?;
        warn!(log = %name, %stored, %expected, path = %path.display(),
            "the directory belongs to a topic of the same name that was deleted; it is set aside");
        result = Log::open(dir, &name, partition.at.topic, settings, now);
    }
    let (log, report) = result.map_err(|error| {
        error!(log = %name, %error, "cannot open a log");
        io::Error::other(error)
    })?;
    if let Some(cut) = &report.cut {
        warn!(log = %name, at = %cut.at, bytes = cut.bytes, segments = cut.segments, reason = cut.reason,
            "the end of a log was damaged and is cut off");
    } else if report.may_have_lost_records() {
        warn!(log = %name, created = report.created, emptied = report.emptied, start = %report.start, end = %report.end,
            high_watermark = %report.watermark_checkpoint, "a log holds less than its checkpoints say it held");
    }
    if report.start_doubted {
        warn!(log = %name, start = %report.start,
            "where a log begins was damaged: deleted records may be readable again");
    }
    Ok(Opened { partition, log, report })
}

/// All registrations of an image, for those who weigh peers.
fn peers(image: &MetadataImage) -> Arc<Peers> {
    let peers = image.brokers.values().map(|broker| {
        let peer = Peer {
            epoch: broker.epoch,
            active: broker.state == BrokerState::Active,
            reachable: broker.inter_broker_endpoint().is_some(),
        };
        (broker.id, peer)
    });
    Arc::new(Peers(peers.collect()))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
