//! `/brokers/{id}/recovery`: how far a broker is after a restart (operators.md 1.4 G).

use std::collections::BTreeSet;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use highwater_quorum::MetadataImage;
use highwater_wire::BrokerId;
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::brokers::{find, state_name};
use crate::error::ApiError;
use crate::respond::{Call, Metadata};
use crate::restart::reports;
use crate::routes::{self, Route};

/// This file's route.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get("/brokers/{broker_id}/recovery", show, "How far a broker is after a restart")
            .object::<RecoveryBody>(200)
            .fails(&[(404, 404, "no such broker")]),
    ]
}

#[derive(Debug, Serialize, JsonSchema)]
struct RecoveryBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    broker_id: i32,
    /// Everything that can be back is back.
    recovered: bool,
    state: &'static str,
    in_sync_replicas_pct: usize,
    isr_missing: usize,
    leaders_pct_of_preferred: usize,
    log_recovery: LogRecoveryBody,
    metadata_offset: u64,
}

/// `null`: the broker did not answer within 2 s.
#[derive(Debug, Serialize, JsonSchema)]
struct LogRecoveryBody {
    done: Option<bool>,
    partitions_done: Option<usize>,
    partitions_total: Option<usize>,
}

/// `GET /brokers/{broker_id}/recovery`: how far a broker is after a restart.
pub async fn show(
    State(admin): State<AdminState>,
    Path((cluster, broker)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    let registered = find(&read, &broker)?;
    let id = registered.id;
    let report = reports(&admin, BTreeSet::from([id])).await.remove(&id);
    let back = Back::count(&read.image, id);
    let done = report.as_ref().map(|report| report.recovered);
    let body = RecoveryBody {
        kind: "KafkaBrokerRecovery",
        metadata: read
            .links
            .metadata(&format!("/brokers/{id}/recovery"), &[format!("broker={id}"), "recovery".to_owned()]),
        cluster_id: read.links.cluster_id().to_owned(),
        broker_id: id.0,
        recovered: registered.is_active() && done == Some(true) && back.waiting == 0,
        state: state_name(registered.state),
        in_sync_replicas_pct: percent(back.in_sync, back.replicas),
        isr_missing: back.replicas - back.in_sync,
        leaders_pct_of_preferred: percent(back.led, back.preferred),
        log_recovery: LogRecoveryBody {
            done,
            partitions_done: report.as_ref().map(|report| report.logs_open),
            partitions_total: report.as_ref().map(|report| report.logs),
        },
        metadata_offset: read.image.version.0,
    };
    read.object(StatusCode::OK, &body)
}

/// Replicas of one broker.
#[derive(Debug, Default, PartialEq, Eq)]
struct Back {
    replicas: usize,
    in_sync: usize,
    /// Outside the ISR although somebody leads: could be in it.
    waiting: usize,
    /// First in the assignment.
    preferred: usize,
    /// … and led here.
    led: usize,
}

impl Back {
    fn count(image: &MetadataImage, broker: BrokerId) -> Self {
        let mut back = Self::default();
        for (_, _, state) in image.partitions().filter(|(_, _, state)| state.replicas.contains(&broker)) {
            let in_sync = state.isr.contains(&broker);
            let preferred = state.replicas.first() == Some(&broker);
            back.replicas += 1;
            back.in_sync += usize::from(in_sync);
            back.waiting += usize::from(!in_sync && state.leader.is_some());
            back.preferred += usize::from(preferred);
            back.led += usize::from(preferred && state.leader == Some(broker));
        }
        back
    }
}

/// Rounded down, so that 100 means all; all of nothing is 100.
fn percent(part: usize, whole: usize) -> usize {
    (part * 100).checked_div(whole).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_down_and_all_of_nothing_is_all() {
        assert_eq!((percent(0, 0), percent(199, 200), percent(200, 200)), (100, 99, 100));
    }
}
