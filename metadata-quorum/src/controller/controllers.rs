//! Where the voters are that were added to a living quorum: their address travels in the metadata, so that every node
//! finds them after any restart (D1).

use std::sync::Arc;

use highwater_wire::{BrokerId, DirectoryId};

use super::draft::Draft;
use crate::controller::{Answer, Refusal};
use crate::image::{Change, ControllerRegistration, Endpoint};

/// Rules that know of controllers.
const SINCE_RULES: u16 = 3;

fn known(draft: &Draft) -> Result<(), Refusal> {
    if draft.rules < SINCE_RULES {
        return Err(Refusal::UnsupportedFeature { level: draft.image.feature_level });
    }
    Ok(())
}

/// The same again changes nothing.
pub(super) fn register(
    draft: &mut Draft,
    node: BrokerId,
    directory: DirectoryId,
    endpoint: &Endpoint,
) -> Result<Answer, Refusal> {
    known(draft)?;
    if node.0 < 0 || endpoint.host.is_empty() || endpoint.port == 0 {
        let why = format!("controller {node} at {}:{} cannot be dialled", endpoint.host, endpoint.port);
        return Err(Refusal::InvalidRegistration(why));
    }
    let before = draft.image.controllers.get(&node);
    if before.is_some_and(|before| before.directory == directory && before.endpoint == *endpoint) {
        return Ok(Answer::Done);
    }
    let registration = ControllerRegistration { node, directory, endpoint: endpoint.clone(), since: draft.time };
    draft.push(Change::Controller(Arc::new(registration)));
    Ok(Answer::Done)
}

pub(super) fn unregister(draft: &mut Draft, node: BrokerId, directory: DirectoryId) -> Result<Answer, Refusal> {
    known(draft)?;
    if draft.image.controllers.get(&node).is_some_and(|known| known.directory == directory) {
        draft.push(Change::ControllerRemoved(node));
    }
    Ok(Answer::Done)
}
