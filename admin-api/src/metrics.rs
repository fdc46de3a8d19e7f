//! `/metrics`: Prometheus text (operators.md §4). Gauges of partitions, quorum and cluster are read from the image and
//! the replicas when asked for; counters and histograms come from the process's recorder. What each means, and that
//! nothing is missing: `catalogue`.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use highwater_data::replica::status::{ReplicaStatus, RoleName};
use highwater_data::{NodeView, ReplicaView};
use highwater_quorum::QuorumRole;
use highwater_quorum::image::BrokerState;
use highwater_wire::TopicPartition;

use crate::error::ApiError;
use crate::respond::Call;
use crate::routes::{self, Route};
use crate::{AdminState, PartitionMetrics, configs, health, quorum, restart};

pub mod catalogue;

/// Above this many hosted partitions only the worst are shown, and `metrics_truncated` says so.
const PARTITIONS_MAX: usize = 20_000;
/// How many the worst are: those with a replica that is furthest behind.
const WORST: usize = 1_000;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes families of series; a family's head is written with its first series.
struct Text {
    out: String,
    open: &'static str,
}

impl Text {
    /// `name`: of a family in the catalogue, without `highwater_`.
    fn put(&mut self, name: &'static str, labels: &[(&str, &str)], value: f64) {
        if self.open != name {
            self.head(name);
        }
        let _ = write!(self.out, "highwater_{name}");
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.out, "{}{label}=\"", if i == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.out, "{close} {value}");
    }

    fn head(&mut self, name: &'static str) {
        self.open = name;
        let whole = format!("highwater_{name}");
        if let Some(family) = catalogue::find(&whole) {
            let _ = writeln!(self.out, "# HELP {whole} {}\n# TYPE {whole} {}", family.help, family.kind.name());
        }
    }
}

/// This file's route.
pub fn routes() -> Vec<Route> {
    vec![routes::get_at("/metrics", show, "Counters, gauges and histograms as Prometheus text").media(TEXT)]
}

/// `GET /metrics`
pub async fn show(State(admin): State<AdminState>, call: Call) -> Result<Response, ApiError> {
    call.params(&[])?;
    let mut text = Text { out: String::with_capacity(16 * 1024), open: "" };
    text.put("build_info", &[("version", &admin.config.version)], 1.0);
    text.put("uptime_seconds", &[], admin.started.elapsed().as_secs_f64());
    raft(&mut text, &admin);
    cluster(&mut text, &admin);
    changes(&mut text, &admin);
    let node_id = admin.config.node.to_string();
    text.put("config_pending_restart", &[("broker", &node_id)], as_f64(configs::pending_here(&admin) as u64));
    workers(&mut text, &admin);
    if let Some(view) = admin.replicas.get() {
        let all = view.all();
        replicas(&mut text, &admin, &all);
        node(&mut text, &view.node());
        topics(&mut text, &admin, view);
        log_dirs(&mut text, view, &all);
    }
    let mut out = text.out;
    if let Some(recorder) = &admin.metrics {
        metrics_process::Collector::default().collect();
        out.push_str(&recorder.render());
    }
    let kind = HeaderValue::from_static(TEXT);
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], out).into_response())
}

/// Idle is the rest: a share between two looks belongs to whoever looks.
fn workers(text: &mut Text, admin: &AdminState) {
    let data = admin.replicas.get().map(|view| ("data", view.busy()));
    let others = admin.config.pools.iter().map(|(name, runtime)| (*name, highwater_data::workers::busy(runtime)));
    let pools: Vec<_> = data.into_iter().chain(others).collect();
    for (pool, busy) in &pools {
        text.put(
            "worker_busy_seconds_total",
            &[("pool", *pool)],
            busy.iter().map(std::time::Duration::as_secs_f64).sum(),
        );
    }
    for (pool, busy) in &pools {
        text.put("workers", &[("pool", *pool)], as_f64(busy.len() as u64));
    }
}

fn raft(text: &mut Text, admin: &AdminState) {
    let status = admin.quorum.status();
    let leads = status.role == QuorumRole::Leader;
    text.put("controller_active", &[], f64::from(u8::from(leads)));
    let roles = [
        QuorumRole::Leader,
        QuorumRole::Follower,
        QuorumRole::Candidate,
        QuorumRole::Observer,
        QuorumRole::Unformed,
        QuorumRole::Stopped,
    ];
    for role in roles {
        let name = quorum::role_name(role).to_lowercase();
        text.put("raft_state", &[("state", &name)], f64::from(u8::from(role == status.role)));
    }
    text.put("raft_term", &[], as_f64(status.term));
    text.put("raft_leader_id", &[], status.leader.map_or(-1.0, |leader| f64::from(leader.0)));
    let offsets = [
        ("end", status.last_log.map(|last| last + 1)),
        ("committed", status.committed.map(|last| last + 1)),
        ("applied", status.applied.map(|last| last + 1)),
        ("snapshot", status.snapshot),
        ("purged", status.purged),
    ];
    for (kind, offset) in offsets {
        text.put("raft_offset", &[("kind", kind)], as_f64(offset.unwrap_or(0)));
    }
    let seconds = |ms: u64| as_f64(ms) / 1_000.0;
    if let Some(age) = status.quorum_ack_age_ms {
        text.put("raft_quorum_ack_age_seconds", &[], seconds(age));
    }
    if let Some(can_lose) = status.can_lose {
        text.put("raft_can_lose", &[], as_f64(can_lose as u64));
    }
    for peer in status.peers.iter().filter(|peer| peer.member.node != status.node) {
        text.put("raft_peer_lag_entries", &[("peer", &peer.member.node.to_string())], as_f64(peer.lag));
    }
    for peer in status.peers.iter().filter(|peer| peer.member.node != status.node) {
        if let Some(age) = peer.contact_age_ms {
            text.put("raft_peer_contact_age_seconds", &[("peer", &peer.member.node.to_string())], seconds(age));
        }
    }
    text.put("raft_elections_total", &[], as_f64(admin.changes.raft_leaders()));
    text.put("metadata_age_seconds", &[], seconds(admin.metadata_age_ms()));
}

/// Only on the raft leader, so that sums over nodes are right.
fn cluster(text: &mut Text, admin: &AdminState) {
    if admin.quorum.leader() != Some(admin.config.node) {
        return;
    }
    let image = admin.quorum.image();
    let states = [
        (BrokerState::Active, "active"),
        (BrokerState::Fenced, "fenced"),
        (BrokerState::ShuttingDown, "shutting_down"),
    ];
    for (state, name) in states {
        let count = image.brokers.values().filter(|broker| broker.state == state).count();
        text.put("cluster_brokers", &[("state", name)], as_f64(count as u64));
    }
    let counts = health::cluster::count(&image);
    text.put("cluster_topics", &[], as_f64(image.topics.size() as u64));
    text.put("cluster_partitions", &[], as_f64(counts.total as u64));
    let by_state = [
        ("offline", counts.offline),
        ("under_replicated", counts.under_replicated),
        ("under_min_isr", counts.under_min_isr),
        ("at_min_isr", counts.at_min_isr),
        ("elr_only", counts.elr_only),
        ("not_preferred", counts.not_preferred),
        ("reassigning", counts.reassigning),
    ];
    for (state, count) in by_state {
        text.put("cluster_partitions_state", &[("state", state)], as_f64(count as u64));
    }
    for (broker, safe) in restart::by_heartbeats(admin, &admin.quorum.status()) {
        text.put("broker_restart_safe", &[("broker", &broker.to_string())], f64::from(u8::from(safe)));
    }
}

fn changes(text: &mut Text, admin: &AdminState) {
    let counts = admin.changes.read(admin);
    for (reason, count) in &counts.elections {
        text.put("leader_elections_total", &[("reason", reason)], as_f64(*count));
    }
    text.put("committed_records_lost_total", &[], as_f64(counts.lost));
    if admin.partition_metrics() == PartitionMetrics::Summary {
        let mut sums = std::collections::BTreeMap::<_, u64>::new();
        for ((change, reason, _), count) in &counts.isr {
            *sums.entry((change, reason)).or_default() += count;
        }
        for ((change, reason), count) in sums {
            text.put("isr_changes_total", &[("change", change), ("reason", reason)], as_f64(count));
        }
        return;
    }
    for ((change, reason, topic), count) in &counts.isr {
        let labels = [("change", *change), ("reason", *reason), ("topic", topic.as_str())];
        text.put("isr_changes_total", &labels, as_f64(*count));
    }
}

fn node(text: &mut Text, node: &NodeView) {
    let recovery = node.recovery;
    let remaining = [
        ("partitions", recovery.logs.saturating_sub(recovery.logs_open) as u64),
        ("bytes", recovery.bytes.saturating_sub(recovery.bytes_open)),
    ];
    for (unit, left) in remaining {
        text.put("log_recovery_remaining", &[("unit", unit)], as_f64(left));
    }
    for (op, waiting) in [("produce", node.waiting_produces), ("fetch", node.waiting_fetches)] {
        text.put("purgatory_size", &[("op", op)], as_f64(waiting as u64));
    }
    text.put("fetch_sessions", &[], as_f64(node.fetch_sessions as u64));
}

fn topics(text: &mut Text, admin: &AdminState, view: &ReplicaView) {
    if admin.partition_metrics() == PartitionMetrics::Summary {
        return;
    }
    let image = admin.quorum.image();
    let named = view.topics().into_iter();
    let mut named: Vec<_> =
        named.filter_map(|(id, counts)| Some((image.topics.get(&id)?.name.clone(), counts))).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    for (topic, counts) in &named {
        for (direction, bytes) in [("in", counts.bytes_in), ("out", counts.bytes_out)] {
            text.put("topic_bytes_total", &[("topic", topic), ("direction", direction)], as_f64(bytes));
        }
    }
    for (topic, counts) in &named {
        text.put("topic_records_total", &[("topic", topic), ("direction", "in")], as_f64(counts.records_in));
    }
}

fn log_dirs(text: &mut Text, view: &ReplicaView, all: &[(TopicPartition, ReplicaStatus)]) {
    let Some(dir) = view.log_dir() else { return };
    let name = dir.display().to_string();
    if let Some(space) = view.log_dir_space() {
        for (kind, bytes) in [("total", space.total_bytes), ("free", space.usable_bytes)] {
            text.put("log_dir_bytes", &[("dir", &name), ("kind", kind)], as_f64(bytes));
        }
    }
    let failed = all.iter().any(|(_, status)| status.role == RoleName::Offline);
    text.put("log_dir_state", &[("dir", &name)], if failed { 3.0 } else { 0.0 });
}

fn replicas(text: &mut Text, admin: &AdminState, all: &[(TopicPartition, ReplicaStatus)]) {
    let role = |role: RoleName| as_f64(all.iter().filter(|(_, status)| status.role == role).count() as u64);
    for (name, roles) in [
        ("leader", &[RoleName::Leader][..]),
        ("follower", &[RoleName::Follower, RoleName::Idle][..]),
        ("offline", &[RoleName::Offline][..]),
    ] {
        let count = roles.iter().map(|one| role(*one)).sum();
        text.put("replicas", &[("role", name)], count);
    }
    let image = admin.quorum.image();
    let mut under = [0_u64; 3];
    for (at, _) in all.iter().filter(|(_, status)| status.role == RoleName::Leader) {
        let (Some(state), Some(topic)) = (image.partition(*at), image.topics.get(&at.topic)) else { continue };
        let words = crate::partitions::state::states(state, topic.config.min_isr);
        for (slot, word) in under.iter_mut().zip(["UNDER_REPLICATED", "UNDER_MIN_ISR", "AT_MIN_ISR"]) {
            *slot += u64::from(words.contains(&word));
        }
    }
    text.put("under_replicated_partitions", &[], as_f64(under[0]));
    text.put("under_min_isr_partitions", &[], as_f64(under[1]));
    text.put("at_min_isr_partitions", &[], as_f64(under[2]));
    let truncated = all.len() > PARTITIONS_MAX;
    text.put("metrics_truncated", &[], f64::from(u8::from(truncated)));
    let level = admin.partition_metrics();
    if level == PartitionMetrics::Summary {
        return;
    }
    let fits = |(_, status): &&(TopicPartition, ReplicaStatus)| {
        status.role == RoleName::Leader || level == PartitionMetrics::Full
    };
    let mut chosen: Vec<_> = all.iter().filter(fits).collect();
    if truncated {
        keep_worst(&mut chosen, WORST);
    }
    let shown: Vec<Shown<'_>> = chosen
        .into_iter()
        .filter_map(|(at, status)| {
            let topic = image.topics.get(&at.topic)?;
            Some((topic.name.to_string(), at.partition.to_string(), status))
        })
        .collect();
    partitions(text, &shown);
    lags(text, &shown);
}

/// Keeps those with the replica that is furthest behind its leader, in their order.
fn keep_worst(chosen: &mut Vec<&(TopicPartition, ReplicaStatus)>, count: usize) {
    let lag = |status: &ReplicaStatus| {
        let replicas = status.leading.iter().flat_map(|leading| &leading.replicas);
        replicas.map(|replica| replica.lag_offsets.unwrap_or(i64::MAX)).max()
    };
    chosen.sort_by_cached_key(|(at, status)| (std::cmp::Reverse(lag(status)), *at));
    chosen.truncate(count);
    chosen.sort_by_key(|(at, _)| *at);
}

/// Topic, partition, and what is shown of it.
type Shown<'a> = (String, String, &'a ReplicaStatus);

fn partitions(text: &mut Text, shown: &[Shown<'_>]) {
    type Value = fn(&ReplicaStatus) -> Option<f64>;
    let families: &[(&'static str, Value)] = &[
        ("partition_isr_size", |status| status.leading.as_ref().map(|leading| as_f64(leading.isr.len() as u64))),
        ("partition_leader_epoch", |status| Some(f64::from(status.leader_epoch.0))),
        ("partition_epoch", |status| Some(f64::from(status.partition_epoch.0))),
        ("partition_log_start_offset", |status| Some(signed(status.log_start.0))),
        ("partition_high_watermark", |status| Some(signed(status.high_watermark.0))),
        ("partition_log_end_offset", |status| Some(signed(status.log_end.0))),
        ("partition_size_bytes", |status| Some(as_f64(status.log_bytes))),
    ];
    for (name, value) in families {
        for (topic, partition, status) in shown {
            if let Some(value) = value(status) {
                text.put(name, &[("topic", topic), ("partition", partition)], value);
            }
        }
    }
}

fn lags(text: &mut Text, shown: &[Shown<'_>]) {
    type Value = fn(&highwater_data::replica::status::ReplicaProgress) -> Option<f64>;
    let families: &[(&'static str, Value)] = &[
        ("partition_replica_lag_offsets", |replica| replica.lag_offsets.map(signed)),
        ("partition_replica_lag_bytes", |replica| replica.lag_bytes.map(as_f64)),
        ("partition_replica_lag_seconds", |replica| replica.lag_ms.map(|ms| as_f64(ms) / 1_000.0)),
    ];
    for (name, value) in families {
        for (topic, partition, status) in shown {
            for replica in status.leading.iter().flat_map(|leading| &leading.replicas) {
                if let Some(value) = value(replica).filter(|_| !replica.is_leader) {
                    let broker = replica.broker.to_string();
                    text.put(name, &[("topic", topic), ("partition", partition), ("replica", &broker)], value);
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
fn as_f64(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
fn signed(value: i64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_a_family_share_one_head_and_labels_are_escaped() {
        let mut text = Text { out: String::new(), open: "" };
        text.put("replicas", &[("role", "x\"y\\z\n")], 1.0);
        text.put("replicas", &[], 2.5);
        assert_eq!(
            text.out,
            "# HELP highwater_replicas Replicas hosted here.\n# TYPE highwater_replicas gauge\n\
             highwater_replicas{role=\"x\\\"y\\\\z\\n\"} 1\nhighwater_replicas 2.5\n"
        );
    }
}
