//! The ISR grows only by proof: a fetch of the very process that is registered, in this leadership, from far enough on
//! (T8, T10), and a follower heeds only what its present leader answers (S12).

use highwater_quorum::MetadataImage;
use highwater_quorum::image::PartitionState;
use highwater_wire::{BrokerId, TopicPartition};

use super::super::book::PartitionBook;
use super::{Verdict, must};

/// T8: whom the leader's proposal brought in was heard by that leader, as the process that is registered now, at or
/// beyond the start of its leadership and its watermark.
pub fn by_proof(
    at: TopicPartition,
    before: &PartitionState,
    after: &PartitionState,
    book: &PartitionBook,
    image: &MetadataImage,
) -> Verdict {
    let (Some(leader), true) = (after.leader, before.leader_epoch == after.leader_epoch) else { return Ok(()) };
    let Some(replica) = book.replicas.get(&leader).filter(|r| r.leader_epoch == after.leader_epoch.0) else {
        return Ok(());
    };
    for joiner in after.isr.iter().filter(|id| !before.isr.contains(id)) {
        let registered = image.broker(*joiner).map_or(-1, |b| b.epoch.0);
        // A late request of the same process may have told of less since.
        let heard = replica.heard.get(&(*joiner, registered)).copied();
        let far_enough = replica.leadership_start.max(replica.high_watermark);
        must(heard.is_some_and(|end| end >= far_enough), "T8", || {
            format!(
                "{at}: {joiner}, registered as {registered}, joins the ISR {:?}; leader {leader} of epoch {} needs it at \
                 {far_enough} and heard {heard:?} of that process",
                after.isr, after.leader_epoch
            )
        })?;
    }
    Ok(())
}

/// What a leader believes of a follower: broker epoch and end.
pub type Belief = Option<(i64, i64)>;

/// T10: only the process of the follower that is registered changes what its leader believes of it.
pub fn heard(
    at: TopicPartition,
    follower: BrokerId,
    fetched_as: i64,
    registered: i64,
    before: Belief,
    now: Belief,
) -> Verdict {
    // To believe less is no harm.
    let own = fetched_as == registered && now.is_none_or(|(epoch, _)| epoch == fetched_as);
    must(before == now || own, "T10", || {
        format!(
            "{at}: a fetch of {follower} as {fetched_as}, registered as {registered}, made its leader believe {now:?} \
             instead of {before:?}"
        )
    })
}

/// S12: an answer changed a follower, so it is to what that asks of its present leader, in its present epoch.
pub fn taken(at: TopicPartition, me: BrokerId, asked: (BrokerId, i32), follows: Option<(BrokerId, i32)>) -> Verdict {
    must(follows == Some(asked), "S12", || {
        format!("{at} on {me}: an answer of {} in epoch {} changed one that follows {follows:?}", asked.0, asked.1)
    })
}

/// R52: whoever waits for the watermark of a leadership waits no longer than it lasts.
pub fn waits(at: TopicPartition, me: BrokerId, since: i32, leads: Option<i32>) -> Verdict {
    must(leads == Some(since), "R52", || {
        format!("{at} on {me}: a produce of epoch {since} still waits; the replica now leads in {leads:?}")
    })
}
