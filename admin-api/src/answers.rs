//! What the routes say, as functions of what a node knows: for whoever holds the answers against the truth. The routes call
//! the same functions.

use std::collections::BTreeMap;

use highwater_quorum::MetadataImage;
use highwater_quorum::controller::{ChosenElection, KnownWatermark};
use highwater_wire::{BrokerId, TopicPartition};

use crate::elections::ElectionType;
use crate::elections::plan::{Facts, Wanted, plan};
pub use crate::health::cluster::{PartitionsBody, count as partition_counts, trouble_codes};
pub use crate::live::LiveMap;
use crate::partitions::Chosen;
pub use crate::partitions::state::states as partition_states;

/// What `POST /elections` says before anything is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncleanPlan {
    pub election: ChosenElection,
    /// Committed records lost at least; `None`: nothing is known.
    pub records_lost: Option<u64>,
    /// The leader that is to go was asked itself.
    pub exact: bool,
}

/// The plan of an election that may lose records: of `leader`, or of whoever has most to keep. `live`: of the replicas that
/// answer; `reported`: what the present leader last said of its watermark. `None`: nobody can be elected, or nothing is lost.
pub fn plan_unclean(
    image: &MetadataImage,
    at: TopicPartition,
    leader: Option<BrokerId>,
    live: LiveMap,
    reported: Option<KnownWatermark>,
    now_ms: i64,
) -> Option<UncleanPlan> {
    let (topic, state) = (image.topics.get(&at.topic)?, image.partition(at)?);
    let chosen = Chosen { topic, partition: at.partition, state };
    let wanted = Wanted { chosen, leader, expected_leader_epoch: None, expected_partition_epoch: None };
    let type_ = if state.leader.is_some() { ElectionType::Designated } else { ElectionType::Unclean };
    let reported: BTreeMap<_, _> = reported.into_iter().map(|known| (at, known)).collect();
    let planned = plan(&Facts { image, live, reported, now_ms }, type_, wanted);
    let (election, loss) = (planned.election()?, planned.loss()?);
    Some(UncleanPlan { election, records_lost: loss.records(), exact: loss.exact })
}
