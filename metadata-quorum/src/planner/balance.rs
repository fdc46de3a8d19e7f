//! Leaders away from home (R199).

use highwater_wire::TopicPartition;

use crate::image::{MetadataImage, PartitionState};

/// Most elections of one round; when more are due, the next round comes soon.
pub const PREFERRED_ELECTIONS_MAX: usize = 1_000;

/// The partitions led by another than their first replica, although that one is in sync and active: at most
/// [`PREFERRED_ELECTIONS_MAX`], and whether there are more. For an `ElectLeaders` of kind `Preferred`.
pub fn away_from_home(image: &MetadataImage) -> (Vec<TopicPartition>, bool) {
    let could_go_home = |state: &PartitionState| {
        state.replicas.first().is_some_and(|preferred| {
            state.leader.is_some_and(|leader| leader != *preferred)
                && state.isr.contains(preferred)
                && image.broker(*preferred).is_some_and(|broker| broker.is_active())
        })
    };
    let mut away: Vec<_> = image
        .partitions()
        .filter_map(|(at, _, state)| could_go_home(state).then_some(at))
        .take(PREFERRED_ELECTIONS_MAX + 1)
        .collect();
    let more = away.len() > PREFERRED_ELECTIONS_MAX;
    away.truncate(PREFERRED_ELECTIONS_MAX);
    (away, more)
}
