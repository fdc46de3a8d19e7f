//! `GET /v3/clusters`, `GET /v3/clusters/{cluster_id}`: where everything else hangs (REST v3).

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use crate::AdminState;
use crate::error::ApiError;
use crate::query::LIST;
use crate::respond::{Call, Links, Metadata, Read, Related, Row};
use crate::routes::{self, Route};

/// This file's routes.
pub fn routes() -> Vec<Route> {
    vec![
        routes::get_at("/v3/clusters", list, "The one cluster this node belongs to")
            .list::<ClusterBody>("KafkaClusterList"),
        routes::get("", show, "The cluster: where everything else hangs").object::<ClusterBody>(200),
    ]
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ClusterBody {
    kind: &'static str,
    metadata: Metadata,
    cluster_id: String,
    /// `null` while there is no raft leader.
    controller: Option<Related>,
    acls: Related,
    brokers: Related,
    broker_configs: Related,
    consumer_groups: Related,
    topics: Related,
    partition_reassignments: Related,
}

impl ClusterBody {
    fn new(admin: &AdminState, links: &Links) -> Self {
        Self {
            kind: "KafkaCluster",
            metadata: links.metadata("", &[]),
            cluster_id: links.cluster_id().to_owned(),
            controller: admin.quorum.leader().map(|leader| links.related(&format!("/brokers/{leader}"))),
            acls: links.related("/acls"),
            brokers: links.related("/brokers"),
            broker_configs: links.related("/broker-configs"),
            consumer_groups: links.related("/consumer-groups"),
            topics: links.related("/topics"),
            partition_reassignments: links.related("/topics/-/partitions/-/reassignment"),
        }
    }
}

/// `GET /v3/clusters`: the one cluster this node belongs to.
pub async fn list(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    let read: Read = call.read(&admin, "-", &[LIST]).await?;
    let cluster = ClusterBody::new(&admin, &read.links);
    read.list("KafkaClusterList", vec![Row::new(&[read.links.cluster_id()], cluster)])
}

/// `GET /v3/clusters/{cluster_id}`
pub async fn show(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[]).await?;
    read.object(StatusCode::OK, &ClusterBody::new(&admin, &read.links))
}
