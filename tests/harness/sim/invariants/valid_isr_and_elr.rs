//! The quorum's own state: S2, S3, S4, T8, T9.

use highwater_quorum::MetadataImage;
use highwater_quorum::image::PartitionState;
use highwater_wire::TopicPartition;

use super::{Verdict, must};

/// One partition as the quorum has it.
pub fn partition(at: TopicPartition, state: &PartitionState, min_isr: usize, image: &MetadataImage) -> Verdict {
    state.check_invariants();
    let active = |broker| image.brokers.get(broker).is_some_and(|b| b.is_active());
    must(state.leader.as_ref().is_none_or(active), "S3", || format!("{at}: leader {:?} is not active", state.leader))?;
    let stranger = state.isr.iter().find(|member| !active(member));
    must(stranger.is_none(), "S4", || format!("{at}: {stranger:?} is in the ISR {:?} and not active", state.isr))?;
    let mut eligible = state.elr.iter().chain(&state.last_known_elr);
    let nobody = eligible.find(|member| !image.brokers.contains_key(member));
    must(nobody.is_none(), "R176", || {
        format!("{at}: {nobody:?} is not registered and may lead: ELR {:?}, last {:?}", state.elr, state.last_known_elr)
    })?;
    must(state.isr.len() < min_isr || state.elr.is_empty(), "S4", || {
        format!("{at}: ISR {:?} reaches min ISR {min_isr}, ELR {:?}", state.isr, state.elr)
    })?;
    // L1's kernel: an active member of ISR or ELR leads, in the same entry.
    let electable = state.isr.iter().find(|m| active(m)).or_else(|| state.elr.iter().find(|m| active(m)));
    must(state.leader.is_some() || electable.is_none(), "L1", || {
        format!("{at}: {electable:?} could lead and nobody does: {state:?}")
    })
}
