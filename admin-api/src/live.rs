//! Live values of replicas (log ends, lags, watermarks): from this node where it hosts them, else from the broker that
//! does, within a budget. What does not come in time is absent, never old.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use highwater_data::ReplicaView;
use highwater_data::replica::status::{ReplicaStatus, RoleName};
use highwater_quorum::MetadataImage;
use highwater_wire::{BrokerId, TopicPartition};
use serde::{Deserialize, Serialize};

use crate::AdminState;
use crate::error::ApiError;
use crate::respond::Read;

/// How long a read waits for other brokers (D4).
pub const BUDGET: Duration = Duration::from_secs(2);

/// What one broker tells, or (`-`) what all tell that answer. `known`: who may be asked, `of`: asks it.
///
/// # Errors
/// There is no such broker, or it does not answer.
pub async fn of_each<T, F>(
    read: &Read,
    broker: &str,
    known: impl Fn(&str) -> Result<BrokerId, ApiError>,
    of: impl Fn(BrokerId) -> F,
) -> Result<Vec<(BrokerId, Vec<T>)>, ApiError>
where
    F: Future<Output = Result<Vec<T>, ApiError>>,
{
    if broker != "-" {
        let id = known(broker)?;
        return Ok(vec![(id, of(id).await?)]);
    }
    let of = &of;
    let all = read.image.brokers.keys().map(|id| async move { Some((*id, of(*id).await.ok()?)) });
    Ok(futures::future::join_all(all).await.into_iter().flatten().collect())
}

/// The replicas of this node, from the moment the data plane has started.
#[derive(Clone, Default)]
pub struct LocalReplicas(Arc<OnceLock<ReplicaView>>);

impl LocalReplicas {
    /// The data plane is there. Only the first call counts.
    pub fn set(&self, view: ReplicaView) {
        let _ = self.0.set(view);
    }

    /// `None` until the data plane has started.
    pub fn get(&self) -> Option<&ReplicaView> {
        self.0.get()
    }

    /// One replica hosted here.
    pub fn live(&self, at: TopicPartition) -> Option<LiveReplica> {
        self.get()?.status(at).map(|status| LiveReplica::from(&status))
    }
}

/// One replica as the broker that hosts it sees it; what brokers tell each other over the controller listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveReplica {
    pub is_leader: bool,
    pub leader_epoch: i32,
    pub partition_epoch: i32,
    pub log_start_offset: i64,
    pub high_watermark: i64,
    pub last_stable_offset: i64,
    pub log_end_offset: i64,
    pub log_bytes: u64,
    pub fetch_state: String,
    /// Why it stepped aside, if its disk failed.
    pub offline: Option<String>,
    /// Of a leader: every replica as it sees it.
    pub followers: Vec<LiveFollower>,
    /// Of a leader: the ISR it has proposed and has no answer for.
    pub proposed_isr: Option<Vec<i32>>,
    pub waiting_produces: usize,
    /// (epoch, first offset), oldest first.
    pub leader_epochs: Vec<(i32, i64)>,
    pub last_truncation: Option<Truncation>,
    pub observed_ms: i64,
}

/// One replica as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveFollower {
    pub broker_id: i32,
    pub is_leader: bool,
    pub is_in_isr: bool,
    pub is_caught_up: bool,
    pub log_start_offset: Option<i64>,
    pub log_end_offset: Option<i64>,
    pub lag_offsets: Option<i64>,
    pub lag_bytes: Option<u64>,
    pub lag_ms: Option<u64>,
    pub last_fetch_time_ms: Option<i64>,
    pub last_caught_up_time_ms: Option<i64>,
    pub fetch_state: String,
    pub waiting_for: Option<String>,
}

/// Records that a replica dropped to agree with its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncation {
    pub from_offset: i64,
    pub to_offset: i64,
    pub leader_epoch: i32,
    pub time_ms: i64,
}

impl LiveReplica {
    /// What this leader knows of one replica.
    pub fn follower(&self, broker: BrokerId) -> Option<&LiveFollower> {
        self.followers.iter().find(|follower| follower.broker_id == broker.0)
    }
}

impl From<&ReplicaStatus> for LiveReplica {
    fn from(status: &ReplicaStatus) -> Self {
        let leading = status.leading.as_ref();
        let followers = leading.into_iter().flat_map(|leading| &leading.replicas).map(|replica| LiveFollower {
            broker_id: replica.broker.0,
            is_leader: replica.is_leader,
            is_in_isr: replica.is_in_isr,
            is_caught_up: replica.is_caught_up,
            log_start_offset: replica.log_start.map(|offset| offset.0),
            log_end_offset: replica.log_end.map(|offset| offset.0),
            lag_offsets: replica.lag_offsets,
            lag_bytes: replica.lag_bytes,
            lag_ms: replica.lag_ms,
            last_fetch_time_ms: replica.last_fetch.map(|time| time.0),
            last_caught_up_time_ms: replica.last_caught_up.map(|time| time.0),
            fetch_state: replica.fetch_state.name().to_owned(),
            waiting_for: replica.waiting_for.map(|why| why.name().to_owned()),
        });
        Self {
            is_leader: status.role == RoleName::Leader,
            leader_epoch: status.leader_epoch.0,
            partition_epoch: status.partition_epoch.0,
            log_start_offset: status.log_start.0,
            high_watermark: status.high_watermark.0,
            last_stable_offset: status.last_stable_offset.0,
            log_end_offset: status.log_end.0,
            log_bytes: status.log_bytes,
            fetch_state: status.fetch_state.name().to_owned(),
            offline: status.offline.as_deref().map(str::to_owned),
            followers: followers.collect(),
            proposed_isr: leading
                .and_then(|leading| leading.pending.as_ref())
                .map(|proposal| proposal.isr.iter().map(|(broker, _)| broker.0).collect()),
            waiting_produces: leading.map_or(0, |leading| leading.waiting_produces),
            leader_epochs: status.leader_epochs.iter().map(|(epoch, start)| (epoch.0, start.0)).collect(),
            last_truncation: status.last_truncation.map(|truncation| Truncation {
                from_offset: truncation.from.0,
                to_offset: truncation.to.0,
                leader_epoch: truncation.leader_epoch.0,
                time_ms: truncation.at.0,
            }),
            observed_ms: status.observed.0,
        }
    }
}

/// Live values by (broker asked, partition). Absent: it did not answer in time, or does not host it.
pub type LiveMap = BTreeMap<(BrokerId, TopicPartition), LiveReplica>;

/// Asks the leaders of some partitions for their live values; only answers of a replica that believes it leads count.
pub async fn from_leaders(
    admin: &AdminState,
    image: &MetadataImage,
    partitions: impl Iterator<Item = TopicPartition>,
) -> BTreeMap<TopicPartition, LiveReplica> {
    let mut asked: BTreeMap<BrokerId, Vec<TopicPartition>> = BTreeMap::new();
    for at in partitions {
        if let Some(leader) = image.partition(at).and_then(|state| state.leader) {
            asked.entry(leader).or_default().push(at);
        }
    }
    let answers = ask(admin, asked).await;
    answers.into_iter().filter(|(_, live)| live.is_leader).map(|((_, at), live)| (at, live)).collect()
}

/// Asks every replica of some partitions.
pub async fn from_replicas(
    admin: &AdminState,
    image: &MetadataImage,
    partitions: impl Iterator<Item = TopicPartition>,
) -> LiveMap {
    let mut asked: BTreeMap<BrokerId, Vec<TopicPartition>> = BTreeMap::new();
    for at in partitions {
        for replica in image.partition(at).into_iter().flat_map(|state| &state.replicas) {
            // A broker that is not active is likely gone: do not spend the budget on it.
            if image.brokers.get(replica).is_some_and(|broker| broker.is_active()) || *replica == admin.config.node {
                asked.entry(*replica).or_default().push(at);
            }
        }
    }
    ask(admin, asked).await
}

async fn ask(admin: &AdminState, asked: BTreeMap<BrokerId, Vec<TopicPartition>>) -> LiveMap {
    let calls = asked.into_iter().map(|(broker, partitions)| async move {
        let answers = if broker == admin.config.node {
            partitions.iter().map(|at| admin.replicas.live(*at)).collect()
        } else {
            admin.peers.replicas(&admin.quorum, broker, &partitions, BUDGET).await.unwrap_or_default()
        };
        (broker, partitions, answers)
    });
    let mut found = LiveMap::new();
    for (broker, partitions, answers) in futures::future::join_all(calls).await {
        for (at, live) in partitions.into_iter().zip(answers) {
            if let Some(live) = live {
                found.insert((broker, at), live);
            }
        }
    }
    found
}
