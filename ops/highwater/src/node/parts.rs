//! What each part of a node is told, from the node's own configuration.

use std::sync::Arc;
use std::time::Duration;

use highwater_admin::{AdminConfig, PartitionMetrics};
use highwater_data::{
    Boot, DataPlaneConfig, LifecycleConfig, LiveConfig, LogConfig, Loggers, ReplicationConfig, ServerConfig,
    TopicDefaults,
};
use highwater_quorum::image::Endpoint;
use highwater_quorum::{ControllerListener, NodeRoles, NodeSettings, QuorumClient, QuorumConfig, QuorumLimits};
use highwater_wire::{IncarnationId, Millis};
use tokio::runtime::Handle;

use super::{NodeError, VERSION};
use crate::config::{self, NodeConfig};
use crate::storage;

pub(super) fn quorum_config(config: &NodeConfig, incarnation: IncarnationId) -> Result<QuorumConfig, NodeError> {
    let (host, port) = config.controller_listener.bind();
    let part = &config.quorum;
    Ok(QuorumConfig {
        node: config.node_id,
        incarnation,
        directory: config.metadata_dir.clone(),
        cluster_id: storage::cluster_id(config)?,
        voters: part.voters.clone(),
        bootstrap: part.bootstrap.clone(),
        advertised: controller_endpoint(config).clone(),
        roles: NodeRoles { broker: config.roles.broker, controller: config.roles.controller },
        listener: ControllerListener::Address(config::host_port(&host, port)),
        limits: QuorumLimits {
            election_timeout: part.election_timeout_max,
            session_timeout: part.session_timeout,
            heartbeat_interval: config.data.heartbeat_interval,
            leader_imbalance_check: part.rebalance_leaders.then_some(part.rebalance_interval),
            ..QuorumLimits::default()
        },
        topic_defaults: highwater_quorum::TopicDefaults {
            partitions: config.topics.partitions,
            replication_factor: config.topics.replication_factor,
            min_isr: config.topics.min_isr,
            unclean_election: config.topics.unclean_election,
            configs: config.topics.configs.clone(),
        },
    })
}

/// Where the other nodes dial this one.
pub(super) fn controller_endpoint(config: &NodeConfig) -> &Endpoint {
    config.quorum.voters.get(&config.node_id).unwrap_or(&config.controller_listener.advertised)
}

pub(super) fn data_config(
    config: &NodeConfig,
    cluster_id: String,
    quorum: &QuorumClient,
    incarnation: IncarnationId,
    settings: Arc<NodeSettings>,
    loggers: Loggers,
) -> DataPlaneConfig {
    let part = &config.data;
    let LiveConfig { replication, log, server } = live_config(config);
    let controller = controller_endpoint(config);
    DataPlaneConfig {
        broker: config.node_id,
        cluster_id,
        incarnation,
        log_dir: config.log_dir.clone(),
        metadata_dir: quorum.status().directory,
        boot: Boot::of_this_machine(),
        rack: config.rack.clone(),
        controller_url: format!("http://{}", config::host_port(&controller.host, controller.port)),
        admin_url: config.http.url.clone(),
        version: VERSION.to_owned(),
        inter_broker_listener: config.inter_broker_listener.clone(),
        lifecycle: LifecycleConfig { heartbeat_interval: part.heartbeat_interval, ..LifecycleConfig::default() },
        replication,
        log,
        server,
        topics: TopicDefaults {
            auto_create: config.topics.auto_create,
            delete_enabled: config.topics.delete_enabled,
            offsets_partitions: config.groups.partitions,
            offsets_replication_factor: config.groups.replication_factor,
        },
        groups: group_limits(config),
        settings,
        loggers,
    }
}

fn group_limits(config: &NodeConfig) -> highwater_data::group::Limits {
    let part = &config.groups;
    let millis = |span: Duration| Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    highwater_data::group::Limits {
        initial_rebalance_delay: millis(part.initial_rebalance_delay),
        session_min: millis(part.session_min),
        session_max: millis(part.session_max),
        members_max: part.members_max,
        metadata_bytes_max: part.metadata_bytes_max,
        offsets_retention: millis(part.offsets_retention),
    }
}

/// What a running data plane can be told anew.
pub(super) fn live_config(config: &NodeConfig) -> LiveConfig {
    let part = &config.data;
    let server = ServerConfig::default();
    LiveConfig {
        replication: ReplicationConfig {
            replica_lag_max: part.replica_lag_max,
            fetch_wait_max: part.fetch_wait_max,
            fetch_bytes_min: part.fetch_bytes_min,
            fetch_partition_bytes_max: part.fetch_partition_bytes_max,
            fetch_response_bytes_max: part.fetch_response_bytes_max,
            fetch_backoff_max: part.fetch_backoff_max,
            fetchers: part.fetchers,
        },
        log: LogConfig {
            watermark_checkpoint_interval: part.watermark_checkpoint_interval,
            retention_check_interval: part.retention_check_interval,
            cleaner_backoff: part.cleaner_backoff,
            cleaner_buffer_bytes: part.cleaner_buffer_bytes,
            producer_id_expiration: part.producer_id_expiration,
            ..LogConfig::default()
        },
        server: ServerConfig {
            workers: part.workers.unwrap_or(server.workers),
            request_bytes_max: part.request_bytes_max,
            connection_idle_max: part.connection_idle_max,
            connections_max: part.connections_max,
            fetch_bytes_max: part.fetch_bytes_max,
            fetch_sessions_max: part.fetch_sessions_max,
        },
    }
}

pub(super) fn admin_config(
    config: &NodeConfig,
    settings: Arc<NodeSettings>,
    loggers: Loggers,
    pools: Vec<(&'static str, Handle)>,
) -> AdminConfig {
    AdminConfig {
        node: config.node_id,
        broker: config.roles.broker,
        url: config.http.url.clone(),
        version: VERSION.to_owned(),
        voters: config.quorum.voters.keys().copied().collect(),
        delete_topics: config.topics.delete_enabled,
        in_sync_wait_max: config.http.in_sync_wait_max,
        partition_metrics: match config.http.partition_metrics {
            config::PartitionMetrics::Summary => PartitionMetrics::Summary,
            config::PartitionMetrics::Leader => PartitionMetrics::Leader,
            config::PartitionMetrics::Full => PartitionMetrics::Full,
        },
        settings,
        loggers,
        pools,
    }
}
