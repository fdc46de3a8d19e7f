//! The cluster itself: its id and its feature level.

use crate::controller::{Answer, Refusal, draft::Draft};
use crate::image::Change;

/// The first entry. A repetition changes nothing.
pub(super) fn form(draft: &mut Draft, cluster_id: &str, feature_level: u16) -> Result<Answer, Refusal> {
    match draft.image.cluster_id.as_deref() {
        Some(ours) if ours == cluster_id => return Ok(Answer::Done),
        Some(ours) => {
            let (ours, given) = (ours.to_owned(), cluster_id.to_owned());
            return Err(Refusal::InconsistentClusterId { ours, given });
        }
        None => {}
    }
    if cluster_id.is_empty() || feature_level == 0 {
        let why = format!("a cluster needs an id ({cluster_id:?}) and a feature level above 0 ({feature_level})");
        return Err(Refusal::InvalidRequest(why));
    }
    draft.push(Change::Cluster { cluster_id: cluster_id.to_owned(), feature_level });
    Ok(Answer::Done)
}

/// Raises the level of what may be proposed, once every registered broker speaks it. It never sinks (D14).
pub(super) fn set_feature_level(draft: &mut Draft, level: u16) -> Result<Answer, Refusal> {
    let current = draft.image.feature_level;
    let Some(cluster_id) = draft.image.cluster_id.as_deref() else {
        return Err(Refusal::InvalidRequest("the cluster is not formed yet".to_owned()));
    };
    if level < current {
        return Err(Refusal::InvalidRequest(format!("feature level {level} is below the current one ({current})")));
    }
    if let Some(behind) = draft.image.brokers.values().find(|broker| broker.metadata_level() < level) {
        let (id, speaks) = (behind.id, behind.metadata_level());
        let why = format!("broker {id} speaks feature level {speaks}, not {level}: upgrade or unregister it first");
        return Err(Refusal::InvalidRequest(why));
    }
    if level > current {
        draft.push(Change::Cluster { cluster_id: cluster_id.to_owned(), feature_level: level });
    }
    Ok(Answer::Done)
}
