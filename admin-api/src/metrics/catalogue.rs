//! Every metric there is: name, type, labels, meaning. `ops/metrics.md` is written from it, and what a node exposes is held
//! against it by a test.

use std::fmt::Write as _;

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// As Prometheus types them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// As in `# TYPE`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// All series of one name.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
    /// Counted by the process's recorder; the others are read when asked for.
    pub recorded: bool,
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, labels, help, recorded: false }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, labels, help, recorded: false }
}

const fn recorded(kind: Kind, name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind, labels, help, recorded: true }
}

const PARTITION: &[&str] = &["topic", "partition"];
const REPLICA: &[&str] = &["topic", "partition", "replica"];

/// In the order of the document.
pub const ALL: &[Family] = &[
    gauge("highwater_build_info", &["version"], "Version of the binary; always 1."),
    gauge("highwater_uptime_seconds", &[], "Since the process started."),
    gauge(
        "highwater_config_pending_restart",
        &["broker"],
        "Keys of this node that are set to another value, which its next start takes over.",
    ),
    counter(
        "highwater_worker_busy_seconds_total",
        &["pool"],
        "Time in which the workers of a runtime had something to do: data, raft or admin.",
    ),
    gauge("highwater_workers", &["pool"], "Workers of a runtime; idle is what they were not busy."),
    // The metadata quorum.
    gauge("highwater_controller_active", &[], "1 on the raft leader."),
    gauge("highwater_raft_state", &["state"], "1 for the present role."),
    gauge("highwater_raft_term", &[], "Term of the metadata quorum."),
    gauge("highwater_raft_leader_id", &[], "Node id of the raft leader, -1 without one."),
    gauge("highwater_raft_offset", &["kind"], "Positions in the metadata log: where the next entry goes."),
    gauge("highwater_raft_quorum_ack_age_seconds", &[], "On the raft leader: since a majority acknowledged it."),
    gauge("highwater_raft_can_lose", &[], "On the raft leader: voters that may fail now."),
    gauge("highwater_raft_peer_lag_entries", &["peer"], "On the raft leader: entries a member lacks."),
    gauge("highwater_raft_peer_contact_age_seconds", &["peer"], "On the raft leader: since a member last answered."),
    counter("highwater_raft_elections_total", &[], "Changes of the raft leader that this node heard of."),
    recorded(
        Kind::Histogram,
        "highwater_raft_commit_seconds",
        &[],
        "On the raft leader: from a proposal to its result.",
    ),
    gauge("highwater_metadata_age_seconds", &[], "Since this node last heard of a raft leader."),
    // The cluster; on the raft leader only, so that sums over nodes are right.
    gauge("highwater_cluster_brokers", &["state"], "On the raft leader: registered brokers."),
    gauge("highwater_cluster_topics", &[], "On the raft leader: topics."),
    gauge("highwater_cluster_partitions", &[], "On the raft leader: partitions."),
    gauge("highwater_cluster_partitions_state", &["state"], "On the raft leader: partitions by state."),
    gauge(
        "highwater_broker_restart_safe",
        &["broker"],
        "On the raft leader: 1 when this broker may be restarted now, by its knowledge; restart-check asks everybody.",
    ),
    // Changes; on one node each.
    counter(
        "highwater_leader_elections_total",
        &["reason"],
        "Elections of partition leaders, counted on the new leader.",
    ),
    recorded(
        Kind::Histogram,
        "highwater_leader_election_seconds",
        &[],
        "How long a partition had no leader before one was elected, by the times of the quorum; 0 where the old one was \
         replaced in one step. Counted on the new leader.",
    ),
    counter(
        "highwater_committed_records_lost_total",
        &[],
        "Committed records known to be lost by unclean elections, counted where the partition is led.",
    ),
    counter(
        "highwater_isr_changes_total",
        &["change", "reason", "topic"],
        "Changes of in-sync replicas, counted on the partition's leader; without topic at level summary.",
    ),
    recorded(
        Kind::Counter,
        "highwater_isr_change_failures_total",
        &["error"],
        "ISR changes that the controller refused.",
    ),
    // Replicas here.
    gauge("highwater_replicas", &["role"], "Replicas hosted here."),
    gauge("highwater_under_replicated_partitions", &[], "Led here, with fewer in sync than replicas."),
    gauge("highwater_under_min_isr_partitions", &[], "Led here, with fewer in sync than min.insync.replicas."),
    gauge("highwater_at_min_isr_partitions", &[], "Led here, with as many in sync as min.insync.replicas."),
    gauge("highwater_partition_isr_size", PARTITION, "In-sync replicas."),
    gauge("highwater_partition_leader_epoch", PARTITION, "Term of the leader."),
    gauge("highwater_partition_epoch", PARTITION, "Changes of the partition's state."),
    gauge("highwater_partition_log_start_offset", PARTITION, "First offset."),
    gauge("highwater_partition_high_watermark", PARTITION, "End of what consumers see."),
    gauge("highwater_partition_log_end_offset", PARTITION, "Next offset to be written."),
    gauge("highwater_partition_size_bytes", PARTITION, "Size of the log."),
    gauge("highwater_partition_replica_lag_offsets", REPLICA, "Records a follower lacks."),
    gauge("highwater_partition_replica_lag_bytes", REPLICA, "Bytes a follower lacks."),
    gauge("highwater_partition_replica_lag_seconds", REPLICA, "How long a follower has been behind."),
    gauge(
        "highwater_metrics_truncated",
        &[],
        "1 when there are too many partitions to show each: then the 1000 furthest behind.",
    ),
    recorded(Kind::Counter, "highwater_replication_bytes_total", &["direction", "kind"], "Records between brokers."),
    recorded(Kind::Counter, "highwater_replica_fetch_errors_total", &["error"], "Fetches from leaders that failed."),
    // Clients.
    recorded(
        Kind::Counter,
        "highwater_requests_total",
        &["api", "version", "error"],
        "Kafka requests that were answered; the error is the first one in the answer.",
    ),
    recorded(
        Kind::Histogram,
        "highwater_request_seconds",
        &["api", "phase"],
        "From the arrival of a Kafka request; total: until its answer was queued, waits included; local, of Produce and \
         Fetch and one in 16: until it was answered or began to wait for others.",
    ),
    recorded(Kind::Counter, "highwater_bytes_total", &["direction"], "Records from producers and to consumers."),
    counter("highwater_topic_bytes_total", &["topic", "direction"], "Records from producers and to consumers."),
    counter("highwater_topic_records_total", &["topic", "direction"], "Records from producers."),
    recorded(Kind::Counter, "highwater_produce_rejected_total", &["reason"], "Batches that were refused."),
    recorded(Kind::Gauge, "highwater_connections", &["listener"], "Open connections."),
    recorded(
        Kind::Counter,
        "highwater_connections_rejected_total",
        &["listener"],
        "Connections turned away by max.connections.",
    ),
    gauge("highwater_purgatory_size", &["op"], "Requests that wait."),
    gauge("highwater_fetch_sessions", &[], "Fetch sessions kept."),
    // Disks.
    gauge("highwater_log_dir_bytes", &["dir", "kind"], "Size of the file system of a log directory, and what is free."),
    gauge("highwater_log_dir_state", &["dir"], "0 in order, 3 when a replica stepped aside because the disk failed."),
    recorded(Kind::Histogram, "highwater_append_seconds", &["dir"], "Appends of producers' batches, one in 16."),
    recorded(Kind::Histogram, "highwater_fsync_seconds", &["dir"], "Forcing a log's files to the disk."),
    gauge("highwater_log_recovery_remaining", &["unit"], "What is still to be opened after a start."),
    recorded(
        Kind::Counter,
        "highwater_log_truncated_records_total",
        &["reason"],
        "Offsets that replicas here gave up to agree with a leader; committed: acknowledged records were lost.",
    ),
    recorded(
        Kind::Counter,
        "highwater_corrupt_batches_total",
        &["from"],
        "Damaged batches: sent by a producer or a leader, or found on disk (each place once while it is the newest).",
    ),
    recorded(Kind::Counter, "highwater_log_cleaner_runs_total", &[], "Logs that were compacted, as often as each was."),
    recorded(
        Kind::Counter,
        "highwater_log_cleaner_bytes_total",
        &[],
        "Bytes of logs that compaction has gone through.",
    ),
    recorded(
        Kind::Counter,
        "highwater_log_cleaner_recovered_bytes_total",
        &[],
        "Bytes that it took out of them: older records of the same keys.",
    ),
    recorded(
        Kind::Counter,
        "highwater_log_cleaner_failures_total",
        &[],
        "Logs that could not be compacted: the disk was full or failed, or a batch is damaged (see the log of the node).",
    ),
    // This API.
    recorded(Kind::Counter, "highwater_admin_requests_total", &["route", "code"], "Requests to the admin API."),
    recorded(Kind::Histogram, "highwater_admin_request_seconds", &["route"], "Until the head of the answer was ready."),
    // The process, under the names that every exporter gives them.
    recorded(Kind::Counter, "process_cpu_seconds_total", &[], "Processor time used."),
    recorded(Kind::Gauge, "process_open_fds", &[], "Open file descriptors."),
    recorded(Kind::Gauge, "process_max_fds", &[], "File descriptors that may be open."),
    recorded(Kind::Gauge, "process_virtual_memory_bytes", &[], "Virtual memory."),
    recorded(Kind::Gauge, "process_virtual_memory_max_bytes", &[], "Virtual memory that may be used."),
    recorded(Kind::Gauge, "process_resident_memory_bytes", &[], "Resident memory."),
    recorded(Kind::Gauge, "process_start_time_seconds", &[], "When the process started, as Unix time."),
    recorded(Kind::Gauge, "process_threads", &[], "Threads."),
];

/// The family of this name.
pub fn find(name: &str) -> Option<&'static Family> {
    ALL.iter().find(|family| family.name == name)
}

/// Tells the process's recorder what its metrics mean. Call it once, after the recorder is installed.
pub fn describe() {
    for Family { name, kind, help, .. } in ALL.iter().filter(|family| family.recorded) {
        match kind {
            Kind::Counter => describe_counter!(*name, *help),
            Kind::Gauge => describe_gauge!(*name, *help),
            Kind::Histogram => describe_histogram!(*name, *help),
        }
    }
}

/// The text of `ops/metrics.md`.
pub fn document() -> String {
    let mut out = String::from(
        "# Metrics\n\nWhat `/metrics` of a node shows, as Prometheus text. Base units. Counters begin at 0 with the process, \
         and every value of a label that an alert looks at is there from the start. Written by a test from \
         `admin-api/src/metrics/catalogue.rs`.\n\n| name | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for Family { name, kind, labels, help, .. } in ALL {
        let _ = writeln!(out, "| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_what_the_catalogue_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/metrics.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        if found != document() {
            std::fs::write(path, document()).unwrap();
            panic!("ops/metrics.md was out of step and has been written anew: commit it");
        }
    }

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        for (at, family) in ALL.iter().enumerate() {
            let name = family.name;
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
            assert!(family.kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(family.help.ends_with('.') && !family.help.contains('|'), "{name}: {}", family.help);
            assert!(ALL[..at].iter().all(|other| other.name != name), "{name} twice");
        }
    }
}
