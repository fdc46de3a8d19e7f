//! Topics that change under load: partitions are added, records deleted, old segments go, names are used again while a
//! broker is away. Clusters of real nodes in this process; `tests/scale.rs` has the large ones.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use highwater_tests::client::{Client, EARLIEST, LATEST, batch, contents, list_offsets_request};
use highwater_tests::cluster::{Cluster, told};
use highwater_wire::ErrorCode;
use highwater_wire::messages::create_partitions_request::{CreatePartitionsAssignment, CreatePartitionsTopic};
use highwater_wire::request::{CreatePartitionsRequest, DescribeLogDirsRequest, DescribeTopicPartitionsRequest};
use serde_json::{Value, json};

const ALL: i16 = -1;
const MIN_ISR_2: &[(&str, &str)] = &[("min.insync.replicas", "2")];
const NOW: i64 = 1_760_000_000_000;

/// Asks the admin API of a node: status and body.
async fn http(cluster: &Cluster, id: i32, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let url = format!("http://127.0.0.1:{}/v3/clusters/-{path}", cluster.member(id).http_port);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.request(method.parse().unwrap(), url);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap_or(Value::Null))
}

async fn produce(client: &mut Client, topic: &str, partition: i32, values: &[&str]) {
    for value in values {
        let answer = told(client.produce(topic, partition, ALL, batch(NOW, &[value])).await);
        assert_eq!(answer.error_code, 0, "{answer:?}");
    }
}

/// CreatePartitions for one topic: error code and message.
async fn add(
    client: &mut Client,
    topic: &str,
    count: i32,
    assigned: Option<&[&[i32]]>,
    validate_only: bool,
) -> (i16, Option<String>) {
    let mut wanted = CreatePartitionsTopic::default();
    wanted.name = topic.into();
    wanted.count = count;
    wanted.assignments = assigned.map(|replicas| {
        let assignment = |brokers: &&[i32]| {
            let mut assignment = CreatePartitionsAssignment::default();
            assignment.broker_ids = brokers.to_vec();
            assignment
        };
        replicas.iter().map(assignment).collect()
    });
    let mut request = CreatePartitionsRequest::default();
    request.topics = vec![wanted];
    request.timeout_ms = 10_000;
    request.validate_only = validate_only;
    let answer = told(client.ask(3, request).await);
    let result = &answer.results[0];
    (result.error_code, result.error_message.as_ref().map(|why| why.as_str().to_owned()))
}

/// DeleteRecords for one partition: low watermark or error.
async fn delete(client: &mut Client, topic: &str, partition: i32, before: i64) -> Result<i64, ErrorCode> {
    told(client.delete_records(topic, partition, before).await)
}

/// Where the log of a replica begins, whatever its role.
async fn log_start(cluster: &Cluster, id: i32, topic: &str) -> Option<i64> {
    let mut client = Client::connect(cluster.address(id)).await.ok()?;
    let mut request = list_offsets_request(topic, 0, EARLIEST, -1);
    request.replica_id = -2; // "debug": any replica answers (R68)
    let answer = client.ask(8, request).await.ok()?;
    let told = answer.topics.first()?.partitions.first()?;
    (told.error_code == 0).then_some(told.offset)
}

async fn wait_log_starts(cluster: &Cluster, topic: &str, expected: i64) {
    for id in cluster.running() {
        cluster
            .wait_for(&format!("the log of {topic} on node {id} begins at {expected}"), async || {
                (log_start(cluster, id, topic).await == Some(expected)).then_some(())
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_added_and_those_that_were_there_stay_as_they_are() {
    let cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", 2, 3, MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", 0, &["a", "b"]).await;
    let before = cluster.state("t", 0).unwrap();

    // What cannot be is refused with Kafka's code, what could be is only said, and nothing changes.
    for (count, assigned, expected) in [
        (2, None, 37),
        (1, None, 37),
        (-1, None, 37),
        (4, Some(&[&[1, 2, 3][..]][..]), 39),
        (3, Some(&[&[1, 2][..]]), 39),
        (3, Some(&[&[1, 2, 2][..]]), 39),
        (3, Some(&[&[1, 2, 9][..]]), 39),
    ] {
        let (code, why) = add(&mut client, "t", count, assigned, false).await;
        assert_eq!(code, expected, "{count} {assigned:?}: {why:?}");
        assert!(why.is_some_and(|why| why.len() > 20));
    }
    assert_eq!(add(&mut client, "nobody", 3, None, false).await.0, 3);
    assert_eq!(add(&mut client, "t", 7, None, true).await, (0, None));
    let url = "/topics/t";
    for (body, expected) in [
        (json!({"partitions_count": 2}), (400, 40002)),
        (json!({"partitions_count": 3, "replicas_assignments": {"2": [1, 1, 2]}}), (400, 40002)),
        (json!({"partitions_count": 3, "replicas_assignments": {"0": [1, 2, 3]}}), (400, 40002)),
        (json!({}), (422, 42206)),
        (json!({"partitions": 3}), (422, 42206)),
    ] {
        let (status, told) = http(&cluster, 2, "PATCH", url, Some(body.clone())).await;
        assert_eq!((status, told["error_code"].as_u64().unwrap()), expected, "{body}: {told}");
    }
    let (status, told) = http(&cluster, 2, "PATCH", "/topics/nobody", Some(json!({"partitions_count": 3}))).await;
    assert_eq!((status, &told["error_code"]), (404, &json!(40403)));
    let (status, told) =
        http(&cluster, 2, "PATCH", url, Some(json!({"partitions_count": 9, "validate_only": true}))).await;
    assert_eq!((status, &told["partitions_count"]), (200, &json!(9)));
    assert_eq!(cluster.image().topic_named("t").unwrap().partitions.len(), 2);

    assert_eq!(add(&mut client, "t", 4, None, false).await, (0, None));
    assert_eq!(add(&mut client, "t", 5, Some(&[&[2, 3, 1]]), false).await, (0, None));
    let (status, told) = http(&cluster, 3, "PATCH", url, Some(json!({"partitions_count": 7}))).await;
    assert_eq!((status, &told["partitions_count"]), (200, &json!(7)), "{told}");
    assert_eq!(cluster.state("t", 0).unwrap(), before);
    for partition in 2..7 {
        cluster.wait_in_sync("t", partition, 3).await;
        let mut client = cluster.leader_client("t", partition).await;
        produce(&mut client, "t", partition, &["x"]).await;
    }
    assert_eq!(cluster.state("t", 4).unwrap().replicas.iter().map(|id| id.0).collect::<Vec<_>>(), [2, 3, 1]);

    // Java's admin asks this way; pages of three.
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let mut request = DescribeTopicPartitionsRequest::default();
        request.response_partition_limit = 3;
        request.cursor = cursor;
        let page = self::told(client.ask(0, request).await);
        seen.extend(page.topics.iter().flat_map(|topic| &topic.partitions).map(|row| {
            assert_eq!((row.error_code, row.isr_nodes.len()), (0, 3), "{row:?}");
            row.partition_index
        }));
        let Some(next) = page.next_cursor else { break };
        let mut again = highwater_wire::messages::describe_topic_partitions_request::Cursor::default();
        again.topic_name = next.topic_name;
        again.partition_index = next.partition_index;
        cursor = Some(again);
    }
    assert_eq!(seen, (0..7).collect::<Vec<_>>());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_records_stay_deleted_on_every_replica_through_kill_nine() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", 1, 3, MIN_ISR_2).await;
    let leader = cluster.wait_leading("t", 0).await;
    let mut client = cluster.client(leader).await;
    let values: Vec<String> = (0..20).map(|n| format!("v{n}")).collect();
    produce(&mut client, "t", 0, &values.iter().map(String::as_str).collect::<Vec<_>>()).await;

    // R274: above the watermark, below -1, at a follower, of nobody's topic.
    assert_eq!(delete(&mut client, "t", 0, 21).await, Err(ErrorCode::OffsetOutOfRange));
    assert_eq!(delete(&mut client, "t", 0, -2).await, Err(ErrorCode::OffsetOutOfRange));
    assert_eq!(delete(&mut client, "t", 1, 1).await, Err(ErrorCode::UnknownTopicOrPartition));
    assert_eq!(delete(&mut client, "nobody", 0, 1).await, Err(ErrorCode::UnknownTopicOrPartition));
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    let mut elsewhere = cluster.client(follower).await;
    assert_eq!(delete(&mut elsewhere, "t", 0, 1).await, Err(ErrorCode::NotLeaderOrFollower));
    wait_log_starts(&cluster, "t", 0).await;

    assert_eq!(delete(&mut client, "t", 0, 12).await, Ok(12));
    // Not "soon": the answer says that all have moved, and that it is on their disks (D33).
    for id in 1..=3 {
        assert_eq!(log_start(&cluster, id, "t").await, Some(12), "node {id}");
        let saved = std::fs::read_to_string(cluster.member(id).data_dir().join("log-start-offset-checkpoint")).unwrap();
        assert!(saved.lines().any(|line| line == "t 0 12"), "node {id}: {saved}");
    }
    assert_eq!(delete(&mut client, "t", 0, 5).await, Ok(12), "a log start never moves back");
    let fetched = told(client.fetch("t", 0, 11, Duration::ZERO).await);
    assert_eq!(fetched.error, ErrorCode::OffsetOutOfRange);

    for id in 1..=3 {
        cluster.crash(id).await;
    }
    for id in 1..=3 {
        cluster.begin(id).await;
    }
    cluster.wait_serving().await;
    cluster.wait_in_sync("t", 0, 3).await;
    for id in 1..=3 {
        assert_eq!(log_start(&cluster, id, "t").await, Some(12), "node {id} after a kill -9 of all");
    }
    let mut client = cluster.leader_client("t", 0).await;
    let read = contents(&told(client.read_all("t", 0).await));
    assert_eq!(read.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), (12..20).collect::<Vec<_>>());

    // Over HTTP, of a node that does not lead: first as a dry run, then all that is readable.
    let leader = cluster.wait_leading("t", 0).await;
    let other = (1..=3).find(|id| *id != leader).unwrap();
    let path = "/topics/t/partitions/0/records:delete";
    for (path, body, expected) in [
        (path, json!({"before_offset": 21}), (400, 40002)),
        (path, json!({"before_offset": -2}), (400, 40002)),
        (path, json!({"offset": 1}), (422, 42206)),
        ("/topics/t/partitions/9/records:delete", json!({"before_offset": 1}), (404, 40403)),
        ("/topics/nobody/partitions/0/records:delete", json!({"before_offset": 1}), (404, 40403)),
    ] {
        let (status, told) = http(&cluster, other, "POST", path, Some(body.clone())).await;
        assert_eq!((status, told["error_code"].as_u64().unwrap()), expected, "{body}: {told}");
    }
    let dry = json!({"before_offset": -1, "validate_only": true});
    let (status, told) = http(&cluster, other, "POST", path, Some(dry)).await;
    assert_eq!((status, &told["deleted_offsets"], &told["before_offset"]), (200, &json!(8), &json!(20)), "{told}");
    assert_eq!(log_start(&cluster, leader, "t").await, Some(12));
    let (status, told) = http(&cluster, other, "POST", path, Some(json!({"before_offset": -1}))).await;
    assert_eq!((status, &told["low_watermark"]), (200, &json!(20)), "{told}");
    wait_log_starts(&cluster, "t", 20).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", 0, &["after"]).await;
    assert_eq!(contents(&self::told(client.read_all("t", 0).await)), [(20, "after".to_owned())]);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_used_again_while_a_broker_was_away_is_another_topic_and_the_old_directory_goes() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", 1, 3, MIN_ISR_2).await;
    cluster.create_topic("gone", 1, 3, MIN_ISR_2).await;
    for topic in ["t", "gone"] {
        let mut client = cluster.leader_client(topic, 0).await;
        produce(&mut client, topic, 0, &["old 1", "old 2", "old 3"]).await;
    }
    let old = cluster.at("t", 0).unwrap();
    cluster.crash(3).await;
    for topic in ["t", "gone"] {
        cluster.wait_state(topic, 0, "without node 3", |state| state.isr.len() == 2).await;
        let mut client = cluster.leader_client(topic, 0).await;
        assert_eq!(told(client.delete_topic(topic).await), 0);
    }
    let configs = [("min.insync.replicas", "2"), ("file.delete.delay.ms", "100")];
    let mut client = cluster.client(1).await;
    assert_eq!(told(client.create_topic("t", 1, 3, &configs).await).0, 0);
    assert_ne!(cluster.at("t", 0).unwrap(), old);
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", 0, &["new"]).await;

    cluster.start_node(3).await;
    cluster.wait_in_sync("t", 0, 3).await;
    cluster.wait_log_end(3, "t", 0, 1).await;
    let data = cluster.member(3).data_dir();
    let directories = || {
        let names = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("t-0") || name.starts_with("gone-0")).collect::<Vec<_>>()
    };
    // The records of the old `t` are erased soon, those of `gone` after the usual minute.
    cluster
        .wait("what was deleted is put away on node 3", || {
            let names = directories();
            let old_t = names.iter().any(|name| name.starts_with("t-0."));
            !old_t && names.contains(&"t-0".to_owned()) && names.iter().any(|name| name.ends_with("-delete"))
        })
        .await;
    assert!(!directories().contains(&"gone-0".to_owned()), "{:?}", directories());
    assert!(!directories().iter().any(|name| name.ends_with("-stray")), "{:?}", directories());

    // It may lead the new one: nothing of the old is in it.
    cluster.stop(1).await;
    cluster.stop(2).await;
    let mut client = cluster.leader_client("t", 0).await;
    let read = cluster
        .wait_for("node 3 knows its watermark", async || client.read_all("t", 0).await.ok().filter(|r| !r.is_empty()))
        .await;
    assert_eq!(contents(&read), [(0, "new".to_owned())]);

    // A process that ended before it had erased them leaves them to the next one.
    cluster.crash(3).await;
    for id in 1..=3 {
        cluster.begin(id).await;
    }
    cluster
        .wait("the next start erases what the last one had put away", || {
            !directories().iter().any(|name| name.ends_with("-delete"))
        })
        .await;
    cluster.end().await;
}

fn wall_clock() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_by_time_goes_on_under_load_and_a_restarted_replica_begins_no_earlier() {
    let mut cluster = Cluster::start(3, &[("log.retention.check.interval.ms", "100")]).await;
    let times = [
        ("min.insync.replicas", "2"),
        ("segment.ms", "300"),
        ("retention.ms", "600"),
        ("file.delete.delay.ms", "0"),
        ("message.timestamp.type", "LogAppendTime"),
    ];
    cluster.create_assigned("t", &[1, 2, 3], &times).await;
    let mut client = cluster.leader_client("t", 0).await;
    let mut next = 0;
    // One record every few milliseconds until the log has lost its beginning twice over, on every replica.
    let mut starts = Vec::new();
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while starts.len() < 3 {
        assert!(std::time::Instant::now() < until, "the log began at {starts:?} only");
        let answer = told(client.produce("t", 0, ALL, batch(wall_clock(), &[&format!("v{next}")])).await);
        assert_eq!((answer.error_code, answer.base_offset), (0, next), "no produce fails meanwhile");
        next += 1;
        let start = told(client.list_offset("t", 0, EARLIEST).await).offset;
        if start > starts.last().copied().unwrap_or(0) {
            starts.push(start);
        }
        // All that is left is there, from the first on.
        if next % 50 == 0 {
            let read = told(client.read_all("t", 0).await);
            let offsets: Vec<_> = read.iter().map(|record| record.offset.0).collect();
            assert!(offsets.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{offsets:?}");
        }
    }
    let start = *starts.last().unwrap();
    for id in 1..=3 {
        cluster
            .wait_for(&format!("node {id} has deleted as much"), async || {
                log_start(&cluster, id, "t").await.filter(|own| *own >= start)
            })
            .await;
    }
    let before = log_start(&cluster, 3, "t").await.unwrap();
    cluster.crash(3).await;
    produce(&mut client, "t", 0, &["meanwhile"]).await;
    cluster.start_node(3).await;
    let after = cluster.wait_for("node 3 is back", async || log_start(&cluster, 3, "t").await).await;
    assert!(after >= before, "node 3 began at {before} and begins at {after} after a kill -9");
    cluster.wait_log_end(3, "t", 0, next + 1).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_directories_tell_what_each_replica_takes() {
    let cluster = Cluster::start(2, &[]).await;
    cluster.create_topic("t", 2, 2, &[]).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", 0, &[&"x".repeat(10_000)]).await;
    let end = told(client.list_offset("t", 0, LATEST).await).offset;
    for id in 1..=2 {
        cluster.wait_log_end(id, "t", 0, end).await;
        let mut everything = DescribeLogDirsRequest::default();
        everything.topics = None;
        let answer = told(cluster.client(id).await.ask(4, everything).await);
        let dir = &answer.results[0];
        assert_eq!((dir.error_code, dir.log_dir.as_str()), (0, cluster.member(id).data_dir().to_str().unwrap()));
        assert!(dir.total_bytes >= dir.usable_bytes && dir.usable_bytes > 0, "{dir:?}");
        let sizes: Vec<_> =
            dir.topics[0].partitions.iter().map(|row| (row.partition_index, row.partition_size)).collect();
        let file = cluster.member(id).replica_dir("t", 0).join("00000000000000000000.log");
        assert_eq!(sizes, [(0, i64::try_from(std::fs::metadata(file).unwrap().len()).unwrap()), (1, 0)]);

        // Of any node, over HTTP.
        let (status, told) = http(&cluster, 3 - id, "GET", &format!("/brokers/{id}/log-dirs"), None).await;
        let row = &told["data"][0];
        assert_eq!((status, &row["state"], &row["replicas_count"]), (200, &json!("OK"), &json!(2)), "{told}");
        assert_eq!(row["largest_partitions"][0]["size_bytes"], json!(sizes[0].1), "{told}");
    }
    let mut request = DescribeLogDirsRequest::default();
    request.topics = Some(vec![]);
    let answer = told(client.ask(1, request).await);
    assert_eq!(answer.results[0].topics.len(), 0, "nothing was asked for");
    let (status, told) = http(&cluster, 1, "GET", "/brokers/7/log-dirs", None).await;
    assert_eq!((status, &told["error_code"]), (404, &json!(404)));
    cluster.end().await;
}
