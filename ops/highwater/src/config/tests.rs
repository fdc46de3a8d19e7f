//! What the configuration accepts, and what it says of what it does not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

fn read_text(text: &str) -> Report {
    let environment = BTreeMap::new();
    read(Some((Path::new("/etc/server.properties"), text)), &[], &Surroundings { environment: &environment })
}

/// On loopback, so that nothing is told by itself.
const QUIET: &str = "node.id=1\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n";

fn findings(text: &str) -> Vec<String> {
    read_text(text).findings.iter().map(ToString::to_string).collect()
}

fn findings_of(lines: &str) -> Vec<String> {
    findings(&format!("{QUIET}{lines}"))
}

fn accepted(lines: &str) -> NodeConfig {
    let report = read_text(&format!("{QUIET}{lines}"));
    report.config.unwrap_or_else(|| panic!("{:?}", report.findings))
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_a_suggestion() {
    assert_eq!(
        findings_of("min.insync.replica=2\n"),
        ["server.properties:3: unknown key \"min.insync.replica\"; did you mean \"min.insync.replicas\"?   (set \
             config.unknown.keys=warn to continue)"]
    );
    assert!(read_text(&format!("{QUIET}frob=1\n")).config.is_none());
    let report = read_text(&format!("{QUIET}config.unknown.keys=warn\nfrob=1\n"));
    assert!(report.config.is_some());
    assert_eq!(report.findings[0].to_string(), "server.properties:4: warning: unknown key \"frob\"");
}

#[test]
fn all_faults_are_told_at_once_in_the_order_of_their_lines() {
    let found =
        findings_of("replica.lag.time.max.ms=soon\nmin.insync.replica=1\nnum.partitions=0\nlog.preallocate=yes\n");
    assert_eq!(
        found,
        [
            "server.properties:3: replica.lag.time.max.ms \"soon\" is not a whole number",
            "server.properties:4: unknown key \"min.insync.replica\"; did you mean \"min.insync.replicas\"?   (set \
             config.unknown.keys=warn to continue)",
            "server.properties:5: num.partitions (0) must lie between 1 and 2147483647",
            "server.properties:6: log.preallocate \"yes\" is neither true nor false",
        ]
    );
}

#[test]
fn keys_of_parts_that_do_not_exist_here_are_told_in_one_line() {
    assert_eq!(
        findings_of("num.io.threads=8\nlog.cleaner.threads=2\noffsets.commit.timeout.ms=3\n"),
        ["warning: known to Kafka, without effect here: log.cleaner.threads, num.io.threads, \
             offsets.commit.timeout.ms"]
    );
}

#[test]
fn keys_that_are_dangerous_to_ignore_are_refused_with_advice() {
    let found =
        findings_of("zookeeper.connect=z:2181\nauthorizer.class.name=org.x.Y\nremote.log.storage.system.enable=true\n");
    assert_eq!(found.len(), 3);
    assert!(found[0].starts_with("server.properties:3: \"zookeeper.connect\" cannot be ignored safely: there is no"));
    assert!(found[1].contains("access rules are not served yet"));
    assert!(found[2].contains("tiered storage is not served"));
}

#[test]
fn a_session_must_outlast_two_heartbeats() {
    assert_eq!(
        findings_of("broker.session.timeout.ms=2000\n"),
        ["server.properties:3: broker.session.timeout.ms (2000) must be > 2 x broker.heartbeat.interval.ms (2000)"]
    );
}

#[test]
fn the_metadata_directory_may_not_lie_inside_the_data() {
    let found = findings_of("log.dirs=/var/hw\nmetadata.log.dir=/var/hw/x/../meta\n");
    assert!(
        found[0]
            .starts_with("server.properties:4: metadata.log.dir (/var/hw/x/../meta) lies inside log.dirs (/var/hw)")
    );
    let config = accepted("log.dirs=/var/hw/\n");
    assert_eq!(config.metadata_dir, PathBuf::from("/var/hw-metadata"));
}

#[test]
fn several_log_directories_are_refused() {
    assert_eq!(
        findings_of("log.dirs=/a,/b\n"),
        [
            "server.properties:3: log.dirs names 2 directories; one is served: join the disks below one file system and name that"
        ]
    );
}

#[test]
fn an_advertised_loopback_is_told_when_other_brokers_are_elsewhere() {
    let found = findings_of(
        "advertised.listeners=PLAINTEXT://localhost:9092\ncontroller.quorum.voters=1@10.0.0.11:9093,2@10.0.0.12:9093,3@10.0.0.13:9093\n",
    );
    assert_eq!(
        found,
        [
            "server.properties:3: warning: advertised.listeners \"PLAINTEXT://localhost:9092\" is loopback but broker 2 is \
             at 10.0.0.12: clients on other hosts will fail"
        ]
    );
}

#[test]
fn an_admin_api_beyond_loopback_wants_an_explicit_mode() {
    let found = findings_of("http.listeners=http://0.0.0.0:8082\n");
    assert!(found[0].contains("set http.auth.mode explicitly"), "{found:?}");
    let report = read_text(&format!("{QUIET}http.listeners=http://0.0.0.0:8082\nhttp.auth.mode=none\n"));
    assert!(report.config.is_some());
    assert!(report.findings[0].to_string().contains("without authentication"));
    assert_eq!(
        findings_of("http.auth.mode=basic\n"),
        ["server.properties:3: http.auth.mode \"basic\" is not served; one of: none"]
    );
}

#[test]
fn plaintext_beyond_loopback_is_told_loudly() {
    let found = findings("node.id=1\n");
    assert_eq!(found.len(), 2);
    assert!(found[0].contains("listener PLAINTEXT://:9092 is reachable from other hosts and is PLAINTEXT"));
    assert!(found[1].contains("anybody who reaches it commands the cluster"));
}

#[test]
fn encrypted_listeners_are_refused_rather_than_served_in_the_clear() {
    let found = findings("node.id=1\nlisteners=SSL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n");
    assert_eq!(found, ["listener SSL speaks SSL, which is not served yet; use PLAINTEXT"]);
}

#[test]
fn a_listener_without_protocol_port_or_partner_is_refused() {
    let found = findings(
        "node.id=1\nlisteners=INSIDE://127.0.0.1:9092,CONTROLLER://127.0.0.1:x\nadvertised.listeners=OUTSIDE://h:1\n",
    );
    assert_eq!(
        found,
        [
            "server.properties:2: listeners: \"CONTROLLER://127.0.0.1:x\": \"x\" is no port (0 to 65535)",
            "server.properties:2: listener INSIDE has no protocol: add INSIDE:PLAINTEXT to listener.security.protocol.map",
            "server.properties:2: listeners has no CONTROLLER: raft and the other nodes' calls need a listener of their \
             own, such as CONTROLLER://:9093",
            "server.properties:3: advertised.listeners: OUTSIDE is not among listeners; add it there or remove it here",
        ]
    );
}

#[test]
fn a_node_needs_a_number_and_a_role() {
    let found = findings("listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\nprocess.roles=leader\n");
    assert_eq!(
        found,
        [
            "server.properties:2: process.roles: \"leader\" is neither broker nor controller",
            "node.id is missing: give each node a number of its own, 0 or greater",
        ]
    );
}

/// The findings for a file with this much and nothing that warns.
fn separate(roles: &str, listeners: &str, rest: &str) -> Vec<String> {
    findings(&format!("node.id=4\nprocess.roles={roles}\nlisteners={listeners}\n{rest}"))
}

#[test]
fn a_broker_alone_listens_for_the_controllers_and_knows_where_they_are() {
    let both = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093";
    let voters = "controller.quorum.voters=1@127.0.0.1:9193\n";
    assert_eq!(separate("broker", both, voters), [""; 0]);
    assert_eq!(separate("broker", both, "controller.quorum.bootstrap.servers=127.0.0.1:9193,[::1]:9193\n"), [""; 0]);
    let found = separate("broker", "PLAINTEXT://127.0.0.1:9092", voters);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("listeners has no CONTROLLER: unlike Kafka's, a broker without the controller role needs it")
    );
    let found = separate("broker", both, "");
    assert!(found[0].contains("controller.quorum.voters is missing"), "{found:?}");
    let found = separate("broker", both, "controller.quorum.voters=4@127.0.0.1:9093\n");
    assert!(found[0].contains("lists this node (4), which has no controller role"), "{found:?}");
    let found = separate("broker", both, "controller.quorum.bootstrap.servers=nowhere\n");
    assert!(found[0].contains("\"nowhere\" is not host:port"), "{found:?}");
}

#[test]
fn a_controller_alone_serves_no_clients_and_may_wait_to_be_added() {
    let voters = "controller.quorum.voters=4@127.0.0.1:9093\n";
    let report =
        read_text(&format!("node.id=4\nprocess.roles=controller\nlisteners=CONTROLLER://127.0.0.1:9093\n{voters}"));
    let config = report.config.expect("accepted");
    assert_eq!(config.roles, Roles { broker: false, controller: true });
    assert!(config.listeners.is_empty() && config.inter_broker_listener.is_empty());
    let found = separate("controller", "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", voters);
    assert!(found[0].contains("PLAINTEXT serves nobody"), "{found:?}");
    let only = "CONTROLLER://127.0.0.1:9093";
    assert_eq!(separate("controller", only, "controller.quorum.bootstrap.servers=127.0.0.1:9193\n"), [""; 0]);
    let found = separate("controller", only, "controller.quorum.voters=1@127.0.0.1:9193\n");
    assert!(found[0].contains("does not list this node (4)"), "{found:?}");
}

#[test]
fn voters_are_read_and_must_list_this_node() {
    let config = accepted("controller.quorum.voters=1@127.0.0.1:9093,2@127.0.0.1:9193,3@127.0.0.1:9293\n");
    assert_eq!(config.quorum.voters.len(), 3);
    assert_eq!(config.quorum.voters[&BrokerId(2)], Endpoint { host: "127.0.0.1".into(), port: 9193 });
    let found = findings_of("controller.quorum.voters=2@127.0.0.1:9193,nonsense\n");
    assert_eq!(
        found,
        [
            "server.properties:3: controller.quorum.voters: \"nonsense\" is not id@host:port",
            "server.properties:3: controller.quorum.voters does not list this node (1): with the controller role it must \
             be a voter; one that is to be added to a cluster that exists is started with controller.quorum.bootstrap.servers",
        ]
    );
}

#[test]
fn waiting_longer_than_the_lag_limit_is_refused() {
    let found = findings_of("replica.lag.time.max.ms=400\n");
    assert!(
        found[0].starts_with(
            "server.properties:3: replica.fetch.wait.max.ms (500) must be < replica.lag.time.max.ms (400)"
        )
    );
}

#[test]
fn the_finer_unit_of_a_time_wins() {
    let config = accepted("log.retention.hours=1\nlog.retention.ms=5000\nlog.roll.hours=2\nlog.retention.bytes=-1\n");
    assert_eq!(config.topics.configs["retention.ms"], "5000");
    assert_eq!(config.topics.configs["segment.ms"], "7200000");
    assert!(!config.topics.configs.contains_key("retention.bytes"));
    assert_eq!(accepted("log.retention.minutes=-1\n").topics.configs["retention.ms"], "-1");
}

#[test]
fn flags_and_environment_are_checked_like_lines() {
    let environment = BTreeMap::from([
        ("KAFKA_REPLICA_LAG_TIME_MAX_MS".to_owned(), "5000".to_owned()),
        ("KAFKA_PORT".to_owned(), "tcp://10.0.0.1:9092".to_owned()),
        ("KAFKA_NUM_PARTITION".to_owned(), "3".to_owned()),
    ]);
    let flags = ["min.insync.replicas=x".to_owned()];
    let report = read(Some((Path::new("s.properties"), QUIET)), &flags, &Surroundings { environment: &environment });
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "environment variable KAFKA_NUM_PARTITION: unknown key \"num.partition\"; did you mean \
             \"num.partitions\"?   (set config.unknown.keys=warn to continue)",
            "environment variable KAFKA_PORT: warning: unknown key \"port\"",
            "-X: min.insync.replicas \"x\" is not a whole number",
        ]
    );
}

#[test]
fn the_file_of_the_measuring_harness_is_accepted() {
    let text = "process.roles=broker,controller\nnode.id=2\n\
        controller.quorum.voters=1@127.0.0.1:19093,2@127.0.0.1:29093,3@127.0.0.1:39093\n\
        listeners=PLAINTEXT://127.0.0.1:29092,CONTROLLER://127.0.0.1:29093\n\
        advertised.listeners=PLAINTEXT://127.0.0.1:29092\ncontroller.listener.names=CONTROLLER\n\
        listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs=/tmp/m/highwater/d2\n\
        offsets.topic.replication.factor=3\nmin.insync.replicas=2\nauto.create.topics.enable=false\n\
        group.initial.rebalance.delay.ms=0\nhttp.listeners=http://127.0.0.1:28082\n\
        metadata.log.dir=/tmp/m/highwater/m2\nconfig.unknown.keys=warn\n";
    let report = read_text(text);
    let config = report.config.expect("accepted");
    assert_eq!(config.node_id, BrokerId(2));
    assert_eq!(config.log_dir, PathBuf::from("/tmp/m/highwater/d2"));
    assert_eq!(config.topics.min_isr, Some(2));
    assert!(!config.topics.auto_create);
    assert_eq!(config.http.url, "http://127.0.0.1:28082");
    assert_eq!(config.inter_broker_listener, "PLAINTEXT");
    assert_eq!(config.listeners[0].advertised, Endpoint { host: "127.0.0.1".into(), port: 29092 });
    assert_eq!(config.quorum.election_timeout_max, Duration::from_millis(600));
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn the_example_file_is_itself_accepted() {
    let report = read_text(&example::text());
    assert!(report.config.is_some(), "{:?}", report.findings);
}
