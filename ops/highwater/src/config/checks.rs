//! From settings to `NodeConfig`: what each key means together with the others.
//!
//! Every fault is noted and the walk goes on, so that one run tells all of them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use highwater_quorum::image::Endpoint;
use highwater_wire::BrokerId;

use super::values::Values;
use super::{DataPart, GroupPart, NodeConfig, QuorumPart, TopicPart};
use addresses::Listeners;

pub use addresses::host_port;

mod addresses;
mod roles;

/// `None` when what is needed for a `NodeConfig` is missing; the findings say what.
pub(super) fn node(values: &mut Values) -> Option<NodeConfig> {
    let node_id = node_id(values);
    let roles = roles::roles(values);
    let (log_dir, metadata_dir) = directories(values);
    let listeners = addresses::listeners(values, roles);
    let bootstrap = roles::bootstrap(values);
    let voters = addresses::voters(values, node_id, roles, listeners.as_ref().map(|l| &l.controller));
    if let (Some(node_id), Some(listeners)) = (node_id, &listeners) {
        addresses::check_reach(values, node_id, listeners, &voters);
    }
    let http = addresses::http(values, listeners.as_ref());
    let quorum = quorum(values, voters, bootstrap);
    let topics = topics(values);
    let groups = groups(values);
    let data = data(values);
    let Listeners { kafka, controller, inter_broker } = listeners?;
    Some(NodeConfig {
        node_id: node_id?,
        roles,
        cluster_id: values.optional_text("cluster.id"),
        log_dir,
        metadata_dir,
        rack: values.optional_text("broker.rack"),
        listeners: kafka,
        controller_listener: controller,
        inter_broker_listener: inter_broker,
        http: http?,
        quorum,
        topics,
        groups,
        data,
        own: BTreeMap::new(),
    })
}

fn node_id(values: &mut Values) -> Option<BrokerId> {
    let id = values.optional_number("node.id").and_then(|id| i32::try_from(id).ok()).and_then(BrokerId::from_wire);
    if id.is_none() && !values.is_set("node.id") {
        values.refuse("node.id", "node.id is missing: give each node a number of its own, 0 or greater");
    }
    id
}

fn directories(values: &mut Values) -> (PathBuf, PathBuf) {
    let dirs = values.list("log.dirs");
    if dirs.len() > 1 {
        let text = format!(
            "log.dirs names {} directories; one is served: join the disks below one file system and name that",
            dirs.len()
        );
        values.refuse("log.dirs", text);
    }
    let log_dir = PathBuf::from(dirs.first().map_or("./data", String::as_str));
    let metadata_dir = match values.optional_text("metadata.log.dir") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let mut name = clean(&log_dir).into_os_string();
            name.push("-metadata");
            PathBuf::from(name)
        }
    };
    if clean(&metadata_dir).starts_with(clean(&log_dir)) {
        let text = format!(
            "metadata.log.dir ({}) lies inside log.dirs ({}): whoever wipes the data would make this voter forget its \
             vote; name a directory beside it",
            metadata_dir.display(),
            log_dir.display()
        );
        values.refuse("metadata.log.dir", text);
    }
    (log_dir, metadata_dir)
}

/// Absolute, without `.` and `..`, without asking the file system.
fn clean(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut out = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

fn quorum(values: &mut Values, voters: BTreeMap<BrokerId, Endpoint>, bootstrap: Vec<Endpoint>) -> QuorumPart {
    let session = values.number("broker.session.timeout.ms");
    let heartbeat = values.number("broker.heartbeat.interval.ms");
    if session <= 2 * heartbeat {
        let key = if values.is_set("broker.session.timeout.ms") {
            "broker.session.timeout.ms"
        } else {
            "broker.heartbeat.interval.ms"
        };
        let text =
            format!("broker.session.timeout.ms ({session}) must be > 2 x broker.heartbeat.interval.ms ({heartbeat})");
        values.refuse(key, text);
    }
    QuorumPart {
        voters,
        bootstrap,
        election_timeout_max: values.millis("controller.quorum.election.timeout.ms"),
        session_timeout: values.millis("broker.session.timeout.ms"),
        registration_timeout: values.millis("initial.broker.registration.timeout.ms"),
        rebalance_leaders: values.flag("auto.leader.rebalance.enable"),
        rebalance_interval: std::time::Duration::from_secs(values.count("leader.imbalance.check.interval.seconds")),
    }
}

fn topics(values: &mut Values) -> TopicPart {
    let replication_factor: i16 = values.count("default.replication.factor");
    let min_isr = values.optional_number("min.insync.replicas").and_then(|n| usize::try_from(n).ok());
    if let Some(min_isr) = min_isr
        && values.is_set("default.replication.factor")
        && usize::try_from(replication_factor).is_ok_and(|factor| min_isr > factor)
    {
        let text = format!(
            "min.insync.replicas ({min_isr}) is greater than default.replication.factor ({replication_factor}): it \
             counts as {replication_factor} for such topics"
        );
        values.warn("min.insync.replicas", text);
    }
    TopicPart {
        auto_create: values.flag("auto.create.topics.enable"),
        delete_enabled: values.flag("delete.topic.enable"),
        partitions: values.count("num.partitions"),
        replication_factor,
        min_isr,
        unclean_election: values.flag("unclean.leader.election.enable"),
        configs: topic_configs(values),
    }
}

fn groups(values: &mut Values) -> GroupPart {
    let (min, max) = (values.number("group.min.session.timeout.ms"), values.number("group.max.session.timeout.ms"));
    if min > max {
        let text = format!(
            "group.min.session.timeout.ms ({min}) is greater than group.max.session.timeout.ms ({max}): no member could join"
        );
        values.refuse("group.min.session.timeout.ms", text);
    }
    GroupPart {
        partitions: values.count("offsets.topic.num.partitions"),
        replication_factor: values.count("offsets.topic.replication.factor"),
        offsets_retention: std::time::Duration::from_secs(
            60 * u64::try_from(values.number("offsets.retention.minutes")).unwrap_or(0),
        ),
        metadata_bytes_max: values.count("offset.metadata.max.bytes"),
        initial_rebalance_delay: values.millis("group.initial.rebalance.delay.ms"),
        session_min: values.millis("group.min.session.timeout.ms"),
        session_max: values.millis("group.max.session.timeout.ms"),
        members_max: values.count("group.max.size"),
    }
}

/// Broker level settings that are the default of a topic level key, where somebody set them.
fn topic_configs(values: &mut Values) -> BTreeMap<String, String> {
    const SAME: &[(&str, &str)] = &[
        ("log.segment.bytes", "segment.bytes"),
        ("log.retention.bytes", "retention.bytes"),
        ("log.flush.interval.messages", "flush.messages"),
        ("log.flush.interval.ms", "flush.ms"),
        ("log.index.interval.bytes", "index.interval.bytes"),
        ("log.index.size.max.bytes", "segment.index.bytes"),
        ("log.preallocate", "preallocate"),
        ("log.segment.delete.delay.ms", "file.delete.delay.ms"),
        ("log.message.timestamp.type", "message.timestamp.type"),
        ("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
        ("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
        ("message.max.bytes", "max.message.bytes"),
    ];
    // The finer unit wins.
    const SCALED: &[(&str, &[(&str, i64)])] = &[
        (
            "retention.ms",
            &[("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)],
        ),
        ("segment.ms", &[("log.roll.ms", 1), ("log.roll.hours", 3_600_000)]),
        ("segment.jitter.ms", &[("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000)]),
    ];
    let mut out = BTreeMap::new();
    for (broker, topic) in SAME {
        if values.is_set(broker) && values.text(broker) != super::keys::served(broker).map_or("", |key| key.default) {
            out.insert((*topic).to_owned(), values.text(broker));
        }
    }
    for (topic, sources) in SCALED {
        if let Some((key, unit)) = sources.iter().find(|(key, _)| values.is_set(key)) {
            let number = values.number(key);
            let scaled = if number < 0 { -1 } else { number.saturating_mul(*unit) };
            out.insert((*topic).to_owned(), scaled.to_string());
        }
    }
    out
}

fn data(values: &mut Values) -> DataPart {
    let lag = values.number("replica.lag.time.max.ms");
    let wait = values.number("replica.fetch.wait.max.ms");
    if wait >= lag {
        let key = if values.is_set("replica.fetch.wait.max.ms") {
            "replica.fetch.wait.max.ms"
        } else {
            "replica.lag.time.max.ms"
        };
        let text = format!(
            "replica.fetch.wait.max.ms ({wait}) must be < replica.lag.time.max.ms ({lag}): idle followers would leave \
             the in-sync replicas"
        );
        values.refuse(key, text);
    }
    let request = values.number("socket.request.max.bytes");
    let message = values.number("message.max.bytes");
    if message > request {
        let text = format!(
            "message.max.bytes ({message}) is greater than socket.request.max.bytes ({request}): such a batch could \
             never arrive"
        );
        let key = if values.is_set("message.max.bytes") { "message.max.bytes" } else { "socket.request.max.bytes" };
        values.refuse(key, text);
    }
    DataPart {
        workers: values.optional_number("num.network.threads").and_then(|n| usize::try_from(n).ok()),
        request_bytes_max: values.count("socket.request.max.bytes"),
        connections_max: values.count("max.connections"),
        connection_idle_max: values.millis("connections.max.idle.ms"),
        heartbeat_interval: values.millis("broker.heartbeat.interval.ms"),
        controlled_shutdown: values.flag("controlled.shutdown.enable"),
        replica_lag_max: values.millis("replica.lag.time.max.ms"),
        fetch_wait_max: values.millis("replica.fetch.wait.max.ms"),
        fetch_bytes_min: values.count("replica.fetch.min.bytes"),
        fetch_partition_bytes_max: values.count("replica.fetch.max.bytes"),
        fetch_response_bytes_max: values.count("replica.fetch.response.max.bytes"),
        fetch_backoff_max: values.millis("replica.fetch.backoff.ms"),
        fetchers: values.count("num.replica.fetchers"),
        watermark_checkpoint_interval: values.millis("replica.high.watermark.checkpoint.interval.ms"),
        retention_check_interval: values.millis("log.retention.check.interval.ms"),
        cleaner_backoff: values.millis("log.cleaner.backoff.ms"),
        cleaner_buffer_bytes: values.count("log.cleaner.dedupe.buffer.size"),
        producer_id_expiration: values.millis("producer.id.expiration.ms"),
        fetch_bytes_max: values.count("fetch.max.bytes"),
        fetch_sessions_max: values.count("max.incremental.fetch.session.cache.slots"),
    }
}
