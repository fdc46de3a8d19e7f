//! Kafka's own command line tools, unchanged, from Maven: what an operator's hands know works here.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::process::Command;

use highwater_tests::process::Processes;
use highwater_tests::stock_tools::kafka_tool;

/// The tools of one cluster: `kafka-topics` and its kin, by the class their script starts.
struct Tools<'a> {
    cluster: &'a Processes,
}

impl Tools<'_> {
    fn command(&self, class: &str, arguments: &str) -> Command {
        let mut tool = kafka_tool(&format!("org.apache.kafka.tools.{class}"));
        tool.args(["--bootstrap-server", &self.cluster.bootstrap()]).args(arguments.split_whitespace());
        tool
    }

    /// Runs a tool that must succeed; what it printed.
    fn run(&self, class: &str, arguments: &str) -> String {
        let (ended_well, said) = output(&mut self.command(class, arguments));
        assert!(ended_well, "{class} {arguments}:\n{said}");
        said
    }

    /// Runs a tool that must not succeed; what it printed.
    fn refused(&self, class: &str, arguments: &str) -> String {
        let (ended_well, said) = output(&mut self.command(class, arguments));
        assert!(!ended_well, "{class} {arguments} succeeded:\n{said}");
        said
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.cluster.dir().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

fn output(tool: &mut Command) -> (bool, String) {
    let ran = tool.output().expect("java runs; .ci/run installs it");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    (ran.status.success(), said)
}

fn check(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "no {word:?} in:\n{said}");
    }
}

/// Offsets as `kafka-get-offsets` prints them (`topic:partition:offset`), summed up.
fn sum_of_offsets(said: &str) -> i64 {
    let lines = said.lines().filter_map(|line| line.rsplit_once(':'));
    lines.filter_map(|(_, offset)| offset.trim().parse::<i64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_s_day_with_kafkas_own_tools() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    let leader = cluster.controller().await;
    let tools = Tools { cluster: &cluster };

    // kafka-broker-api-versions: every API that is offered is one the tool can use.
    let said = tools.run("BrokerApiVersionsCommand", "");
    check(&said, &["CreatePartitions(37): 0 to 3", "DescribeQuorum(55): 0 to 2", "ElectLeaders(43): 0 to 2"]);
    assert_eq!(said.matches("Fetch(1)").count(), 3, "three brokers: {said}");
    assert!(!said.contains("UNKNOWN("), "{said}");

    // kafka-topics
    let create = "--create --topic tools --partitions 2 --replication-factor 3 --config retention.ms=3600000";
    check(&tools.run("TopicCommand", create), &["Created topic tools."]);
    check(&tools.refused("TopicCommand", create), &["exists already"]);
    check(&tools.run("TopicCommand", "--list"), &["tools"]);
    tools.run("TopicCommand", "--alter --topic tools --partitions 4");
    check(&tools.refused("TopicCommand", "--alter --topic tools --partitions 3"), &["4"]);
    for partition in 0..4 {
        let full = |s: &serde_json::Value| s["isr"].as_array().is_some_and(|isr| isr.len() == 3);
        cluster.wait_state(1, "tools", partition, "in sync", full).await;
    }
    let said = tools.run("TopicCommand", "--describe --topic tools");
    check(&said, &["PartitionCount: 4", "ReplicationFactor: 3", "retention.ms=3600000", "Elr:", "LastKnownElr:"]);
    assert_eq!(said.matches("Isr: ").count(), 4, "{said}");
    assert_eq!(tools.run("TopicCommand", "--describe --under-replicated-partitions").trim(), "");
    assert_eq!(tools.run("TopicCommand", "--describe --unavailable-partitions").trim(), "");
    check(&tools.run("TopicCommand", "--describe --topics-with-overrides"), &["Topic: tools"]);

    // kafka-producer-perf-test, kafka-verifiable-producer, kafka-get-offsets
    let mut perf = kafka_tool("org.apache.kafka.tools.ProducerPerformance");
    perf.args(["--topic", "tools", "--num-records", "9000", "--record-size", "200", "--throughput", "-1"]);
    perf.args(["--producer-props", &format!("bootstrap.servers={}", cluster.bootstrap()), "acks=all"]);
    let (ended_well, said) = output(&mut perf);
    assert!(ended_well && said.contains("9000 records sent"), "{said}");
    let said = tools.run("VerifiableProducer", "--topic tools --max-messages 1000 --acks -1");
    check(&said, &["\"sent\":1000", "\"acked\":1000"]);
    let said = tools.run("GetOffsetShell", "--topic tools");
    assert_eq!(sum_of_offsets(&said), 10_000, "{said}");
    assert_eq!(sum_of_offsets(&tools.run("GetOffsetShell", "--topic tools --time earliest")), 0);

    // kafka-delete-records
    let ends: Vec<i64> =
        said.lines().filter_map(|l| l.rsplit_once(':')).filter_map(|(_, o)| o.trim().parse().ok()).collect();
    let before = ends[0].min(100);
    let file = |offset: i64| {
        let text = format!(r#"{{"version":1,"partitions":[{{"topic":"tools","partition":0,"offset":{offset}}}]}}"#);
        tools.file("delete.json", &text)
    };
    let said = tools.run("DeleteRecordsCommand", &format!("--offset-json-file {}", file(before)));
    check(&said, &[&format!("partition: tools-0\tlow_watermark: {before}")]);
    let said = tools.run("GetOffsetShell", "--topic-partitions tools:0 --time earliest");
    assert_eq!(sum_of_offsets(&said), before, "{said}");
    let (_, said) =
        output(&mut tools.command("DeleteRecordsCommand", &format!("--offset-json-file {}", file(1 << 40))));
    check(&said, &["OffsetOutOfRange"]);

    // kafka-configs
    let topic = "--entity-type topics --entity-name tools";
    check(
        &tools
            .run("ConfigCommand", &format!("{topic} --alter --add-config retention.ms=7200000,segment.bytes=2097152")),
        &["Completed updating config for topic tools."],
    );
    let said = tools.run("ConfigCommand", &format!("{topic} --describe"));
    check(&said, &["retention.ms=7200000", "segment.bytes=2097152", "DYNAMIC_TOPIC_CONFIG:retention.ms=7200000"]);
    tools.run("ConfigCommand", &format!("{topic} --alter --delete-config retention.ms"));
    let said = tools.run("ConfigCommand", &format!("{topic} --describe --all"));
    check(&said, &["retention.ms=604800000", "segment.bytes=2097152"]);
    let said = tools.refused("ConfigCommand", &format!("{topic} --alter --add-config retention.ms=soon"));
    check(&said, &["retention.ms"]);
    let said = tools.refused("ConfigCommand", &format!("{topic} --alter --add-config retention.mss=1"));
    check(&said, &["retention.mss"]);
    let defaults = "--entity-type brokers --entity-default";
    tools.run("ConfigCommand", &format!("{defaults} --alter --add-config log.retention.ms=86400000"));
    check(&tools.run("ConfigCommand", &format!("{defaults} --describe")), &["log.retention.ms=86400000"]);
    let said = tools.run("ConfigCommand", &format!("{topic} --describe --all"));
    check(&said, &["retention.ms=86400000", "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=86400000"]);
    tools.run("ConfigCommand", &format!("{defaults} --alter --delete-config log.retention.ms"));
    let said = tools.run("ConfigCommand", "--entity-type brokers --entity-name 2 --describe --all");
    check(&said, &["node.id=2", "STATIC_BROKER_CONFIG:node.id=2"]);
    let loggers = "--entity-type broker-loggers --entity-name 2";
    check(&tools.run("ConfigCommand", &format!("{loggers} --describe")), &["replica=INFO", "openraft=ERROR"]);
    tools.run("ConfigCommand", &format!("{loggers} --alter --add-config replica=DEBUG,raft=WARN"));
    check(&tools.run("ConfigCommand", &format!("{loggers} --describe")), &["replica=DEBUG", "raft=WARN"]);
    tools.run("ConfigCommand", &format!("{loggers} --alter --delete-config replica,raft"));
    check(&tools.run("ConfigCommand", &format!("{loggers} --describe")), &["replica=INFO", "raft=INFO"]);
    tools.refused("ConfigCommand", &format!("{loggers} --alter --add-config replication=DEBUG"));

    // kafka-log-dirs
    let said = tools.run("LogDirsCommand", "--describe --topic-list tools");
    let json = said.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["brokers"].as_array().unwrap().len(), 3, "{said}");
    assert_eq!(said.matches("\"partition\":\"tools-").count(), 12, "four partitions on three brokers: {said}");

    // kafka-leader-election
    let said = tools.run("LeaderElectionCommand", "--election-type preferred --all-topic-partitions");
    assert!(!said.contains("Error"), "{said}");
    let (_, said) =
        output(&mut tools.command("LeaderElectionCommand", "--election-type unclean --topic tools --partition 0"));
    check(&said, &["Valid replica already elected for partitions tools-0"]);

    // kafka-metadata-quorum
    let said = tools.run("MetadataQuorumCommand", "describe --status");
    check(&said, &["LeaderId:", "CurrentVoters:", "MaxFollowerLag:"]);
    assert!(said.lines().any(|l| l.starts_with("LeaderId:") && l.trim_end().ends_with(&leader.to_string())), "{said}");
    let said = tools.run("MetadataQuorumCommand", "describe --replication");
    assert_eq!((said.matches("Leader").count(), said.matches("Follower").count()), (1, 2), "{said}");

    // kafka-topics, the end of it
    tools.run("TopicCommand", "--delete --topic tools");
    assert!(!tools.run("TopicCommand", "--list").contains("tools"));
    check(&tools.refused("TopicCommand", "--describe --topic tools"), &["does not exist"]);

    let errors = cluster.unexpected_errors(&[]);
    assert!(errors.is_empty(), "{errors:#?}");
}
