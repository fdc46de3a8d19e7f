//! `/metrics`: Prometheus text (operators.md §4). Gauges of partitions, quorum and cluster are read from the image and
//! the replicas when asked for; counters and histograms come from the process's recorder.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use highwater_data::replica::status::{ReplicaStatus, RoleName};
use highwater_quorum::QuorumRole;
use highwater_quorum::image::BrokerState;
use highwater_wire::TopicPartition;

use crate::error::ApiError;
use crate::respond::Call;
use crate::routes::{self, Route};
use crate::{AdminState, PartitionMetrics, health, quorum, restart};

/// Above this many hosted partitions only the counts are shown, and `metrics_truncated` says so.
const PARTITIONS_MAX: usize = 20_000;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes families of series; a family's head is written with its first series.
struct Text {
    out: String,
    open: &'static str,
}

impl Text {
    fn series(&mut self, name: &'static str, kind: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        if self.open != name {
            let _ = writeln!(self.out, "# HELP highwater_{name} {help}\n# TYPE highwater_{name} {kind}");
            self.open = name;
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

    fn gauge(&mut self, name: &'static str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.series(name, "gauge", help, labels, value);
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
    process(&mut text, &admin);
    raft(&mut text, &admin);
    cluster(&mut text, &admin);
    changes(&mut text, &admin);
    replicas(&mut text, &admin);
    let mut out = text.out;
    if let Some(recorder) = &admin.metrics {
        out.push_str(&recorder.render());
    }
    let kind = HeaderValue::from_static(TEXT);
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], out).into_response())
}

fn process(text: &mut Text, admin: &AdminState) {
    let labels = [("version", admin.config.version.as_str())];
    text.gauge("build_info", "Version of the binary.", &labels, 1.0);
    text.gauge("uptime_seconds", "Since the process started.", &[], admin.started.elapsed().as_secs_f64());
}

fn raft(text: &mut Text, admin: &AdminState) {
    let status = admin.quorum.status();
    let leads = status.role == QuorumRole::Leader;
    text.gauge("controller_active", "1 on the raft leader.", &[], f64::from(u8::from(leads)));
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
        let value = f64::from(u8::from(role == status.role));
        text.gauge("raft_state", "1 for the present role.", &[("state", &name)], value);
    }
    text.gauge("raft_term", "Term of the metadata quorum.", &[], as_f64(status.term));
    let leader = status.leader.map_or(-1.0, |leader| f64::from(leader.0));
    text.gauge("raft_leader_id", "Node id of the raft leader, -1 without one.", &[], leader);
    let offsets = [
        ("end", status.last_log.map(|last| last + 1)),
        ("committed", status.committed.map(|last| last + 1)),
        ("applied", status.applied.map(|last| last + 1)),
        ("snapshot", status.snapshot),
        ("purged", status.purged),
    ];
    for (kind, offset) in offsets {
        let value = as_f64(offset.unwrap_or(0));
        text.gauge("raft_offset", "Positions in the metadata log.", &[("kind", kind)], value);
    }
    let seconds = |ms: u64| as_f64(ms) / 1_000.0;
    if let Some(age) = status.quorum_ack_age_ms {
        let help = "Since a majority acknowledged the raft leader.";
        text.gauge("raft_quorum_ack_age_seconds", help, &[], seconds(age));
    }
    if let Some(can_lose) = status.can_lose {
        text.gauge("raft_can_lose", "Voters that may fail now.", &[], as_f64(can_lose as u64));
    }
    for peer in status.peers.iter().filter(|peer| peer.member.node != status.node) {
        let node = peer.member.node.to_string();
        text.gauge("raft_peer_lag_entries", "Entries a member lacks.", &[("peer", &node)], as_f64(peer.lag));
    }
    for peer in status.peers.iter().filter(|peer| peer.member.node != status.node) {
        let node = peer.member.node.to_string();
        if let Some(age) = peer.contact_age_ms {
            let help = "Since a member last answered the raft leader.";
            text.gauge("raft_peer_contact_age_seconds", help, &[("peer", &node)], seconds(age));
        }
    }
    let age = seconds(admin.metadata_age_ms());
    text.gauge("metadata_age_seconds", "Since this node last heard of a raft leader.", &[], age);
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
        text.gauge("cluster_brokers", "Registered brokers.", &[("state", name)], as_f64(count as u64));
    }
    for (broker, safe) in restart::by_heartbeats(admin, &admin.quorum.status()) {
        let help = "1: this broker may be restarted now, by the raft leader's knowledge; restart-check asks everybody.";
        let value = f64::from(u8::from(safe));
        text.gauge("broker_restart_safe", help, &[("broker", &broker.to_string())], value);
    }
    let counts = health::cluster::count(&image);
    text.gauge("cluster_topics", "Topics.", &[], as_f64(image.topics.size() as u64));
    text.gauge("cluster_partitions", "Partitions.", &[], as_f64(counts.total as u64));
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
        text.gauge("cluster_partitions_state", "Partitions by state.", &[("state", state)], as_f64(count as u64));
    }
}

fn changes(text: &mut Text, admin: &AdminState) {
    let leads_raft = admin.quorum.leader() == Some(admin.config.node);
    admin.changes.observe(&admin.quorum.image(), admin.config.node, leads_raft);
    let help = "Elections of partition leaders, counted on the new leader.";
    for (reason, count) in admin.changes.elections() {
        text.series("leader_elections_total", "counter", help, &[("reason", reason)], as_f64(count));
    }
    let help = "Committed records known to be lost by unclean elections, counted where the partition is led";
    text.series("committed_records_lost_total", "counter", help, &[], as_f64(admin.changes.lost()));
    let help = "Changes of in-sync replicas, counted on the partition's leader.";
    if admin.partition_metrics() == PartitionMetrics::Summary {
        let mut sums = std::collections::BTreeMap::<_, u64>::new();
        for ((change, reason, _), count) in admin.changes.isr() {
            *sums.entry((change, reason)).or_default() += count;
        }
        for ((change, reason), count) in sums {
            let labels = [("change", change), ("reason", reason)];
            text.series("isr_changes_total", "counter", help, &labels, as_f64(count));
        }
        return;
    }
    for ((change, reason, topic), count) in admin.changes.isr() {
        let labels = [("change", change), ("reason", reason), ("topic", &*topic)];
        text.series("isr_changes_total", "counter", help, &labels, as_f64(count));
    }
}

fn replicas(text: &mut Text, admin: &AdminState) {
    let Some(view) = admin.replicas.get() else { return };
    let node = view.node();
    let produces = as_f64(node.waiting_produces as u64);
    text.gauge("purgatory_size", "Requests that wait.", &[("op", "produce")], produces);
    let sessions = as_f64(node.fetch_sessions as u64);
    text.gauge("fetch_sessions", "Fetch sessions kept.", &[], sessions);
    let all = view.all();
    let role = |role: RoleName| as_f64(all.iter().filter(|(_, status)| status.role == role).count() as u64);
    for (name, roles) in [
        ("leader", &[RoleName::Leader][..]),
        ("follower", &[RoleName::Follower, RoleName::Idle][..]),
        ("offline", &[RoleName::Offline][..]),
    ] {
        let count = roles.iter().map(|one| role(*one)).sum();
        text.gauge("replicas", "Replicas hosted here.", &[("role", name)], count);
    }
    let image = admin.quorum.image();
    let mut under = [0_u64; 3];
    for (at, status) in all.iter().filter(|(_, status)| status.role == RoleName::Leader) {
        let (Some(state), Some(topic)) = (image.partition(*at), image.topics.get(&at.topic)) else { continue };
        let words = crate::partitions::state::states(state, topic.config.min_isr);
        for (slot, word) in under.iter_mut().zip(["UNDER_REPLICATED", "UNDER_MIN_ISR", "AT_MIN_ISR"]) {
            *slot += u64::from(words.contains(&word));
        }
        let _ = status;
    }
    text.gauge("under_replicated_partitions", "Led here.", &[], as_f64(under[0]));
    text.gauge("under_min_isr_partitions", "Led here.", &[], as_f64(under[1]));
    text.gauge("at_min_isr_partitions", "Led here.", &[], as_f64(under[2]));
    let truncated = all.len() > PARTITIONS_MAX;
    text.gauge(
        "metrics_truncated",
        "1 when there are too many partitions to show.",
        &[],
        f64::from(u8::from(truncated)),
    );
    if truncated || admin.partition_metrics() == PartitionMetrics::Summary {
        return;
    }
    let shown: Vec<(String, String, TopicPartition, &ReplicaStatus)> = all
        .iter()
        .filter(|(_, status)| status.role == RoleName::Leader || admin.partition_metrics() == PartitionMetrics::Full)
        .filter_map(|(at, status)| {
            let topic = image.topics.get(&at.topic)?;
            Some((topic.name.to_string(), at.partition.to_string(), *at, status))
        })
        .collect();
    partitions(text, &shown);
    lags(text, &shown);
}

type Shown<'a> = (String, String, TopicPartition, &'a ReplicaStatus);

fn partitions(text: &mut Text, shown: &[Shown<'_>]) {
    type Value = fn(&ReplicaStatus) -> Option<f64>;
    let families: &[(&'static str, &str, Value)] = &[
        ("partition_isr_size", "In-sync replicas.", |status| {
            status.leading.as_ref().map(|leading| as_f64(leading.isr.len() as u64))
        }),
        ("partition_leader_epoch", "Term of the leader.", |status| Some(f64::from(status.leader_epoch.0))),
        ("partition_epoch", "Changes of the partition's state.", |status| Some(f64::from(status.partition_epoch.0))),
        ("partition_log_start_offset", "First offset.", |status| Some(signed(status.log_start.0))),
        ("partition_high_watermark", "End of what consumers see.", |status| Some(signed(status.high_watermark.0))),
        ("partition_log_end_offset", "Next offset to be written.", |status| Some(signed(status.log_end.0))),
        ("partition_size_bytes", "Size of the log.", |status| Some(as_f64(status.log_bytes))),
    ];
    for (name, help, value) in families {
        for (topic, partition, _, status) in shown {
            if let Some(value) = value(status) {
                text.gauge(name, help, &[("topic", topic), ("partition", partition)], value);
            }
        }
    }
}

fn lags(text: &mut Text, shown: &[Shown<'_>]) {
    type Value = fn(&highwater_data::replica::status::ReplicaProgress) -> Option<f64>;
    let families: &[(&'static str, &str, Value)] = &[
        ("partition_replica_lag_offsets", "Records a follower lacks.", |replica| replica.lag_offsets.map(signed)),
        ("partition_replica_lag_bytes", "Bytes a follower lacks.", |replica| replica.lag_bytes.map(as_f64)),
        ("partition_replica_lag_seconds", "How long a follower has been behind.", |replica| {
            replica.lag_ms.map(|ms| as_f64(ms) / 1_000.0)
        }),
    ];
    for (name, help, value) in families {
        for (topic, partition, _, status) in shown {
            for replica in status.leading.iter().flat_map(|leading| &leading.replicas) {
                if let Some(value) = value(replica).filter(|_| !replica.is_leader) {
                    let broker = replica.broker.to_string();
                    text.gauge(name, help, &[("topic", topic), ("partition", partition), ("replica", &broker)], value);
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
        text.gauge("a", "First.", &[("topic", "x\"y")], 1.0);
        text.gauge("a", "First.", &[], 2.5);
        assert_eq!(
            text.out,
            "# HELP highwater_a First.\n# TYPE highwater_a gauge\nhighwater_a{topic=\"x\\\"y\"} 1\nhighwater_a 2.5\n"
        );
    }
}
