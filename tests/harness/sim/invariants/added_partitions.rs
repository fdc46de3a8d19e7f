//! A topic that gets more partitions keeps those it has, to the letter (R186), and new ones begin from nothing.

use std::sync::Arc;

use highwater_quorum::image::PartitionState;

use super::{Verdict, must};

/// A topic was given `more` partitions.
pub fn grown(topic: &str, before: &[Arc<PartitionState>], after: &[Arc<PartitionState>], more: usize) -> Verdict {
    must(after.len() == before.len() + more, "R186", || {
        format!("{topic} had {} partitions and was given {more}: it has {}", before.len(), after.len())
    })?;
    let touched = before.iter().zip(after).position(|(before, after)| before != after);
    must(touched.is_none(), "R186", || {
        format!("{topic} was given partitions, and that changed partition {touched:?}")
    })?;
    let old = after[before.len()..].iter().find(|state| state.leader_epoch.0 != 0 || state.partition_epoch.0 != 0);
    must(old.is_none(), "R186", || format!("a new partition of {topic} begins as {old:?}"))
}
