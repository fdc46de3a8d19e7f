//! Controllers and brokers apart, in one process: who forms the cluster, who joins it later, who leaves it.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::process::{Command, Stdio};
use std::time::Duration;

use highwater_quorum::QuorumRole;
use highwater_quorum::image::BrokerState;
use highwater_tests::client::{batch, contents};
use highwater_tests::cluster::{Cluster, told};
use highwater_tests::process::Role::{Both, Broker, Controller};
use highwater_tests::process::binary;
use highwater_wire::request::{DescribeQuorumRequest, UnregisterBrokerRequest};
use highwater_wire::{BrokerId, ErrorCode};
use serde_json::{Value, json};

const ALL: i16 = -1;
const MIN_ISR_2: &[(&str, &str)] = &[("min.insync.replicas", "2")];
const NOW: i64 = 1_760_000_000_000;

/// GET of a node's admin API: status and body.
async fn get(cluster: &Cluster, id: i32, path: &str) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}{path}", cluster.member(id).http_port);
    let answer = told(client.get(url).timeout(Duration::from_secs(10)).send().await);
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or(Value::Null))
}

async fn wait_ready(cluster: &Cluster, id: i32) {
    cluster
        .wait_for(&format!("node {id} is ready"), async || {
            let (status, body) = get(cluster, id, "/health/ready").await;
            (status == 200).then_some(body)
        })
        .await;
}

async fn produce(cluster: &Cluster, topic: &str, value: &str) {
    let mut client = cluster.leader_client(topic, 0).await;
    let answer = told(client.produce(topic, 0, ALL, batch(NOW, &[value])).await);
    assert_eq!(answer.error_code, 0, "{answer:?}");
}

async fn values(cluster: &Cluster, topic: &str) -> Vec<String> {
    let mut client = cluster.leader_client(topic, 0).await;
    let records = contents(&told(client.read_all(topic, 0).await));
    records.into_iter().map(|(_, value)| value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_own_the_metadata_and_brokers_the_records() {
    let mut cluster = Cluster::start_roles(&[Controller, Controller, Controller, Broker, Broker, Broker], &[]).await;
    cluster.create_topic("t", 3, 3, MIN_ISR_2).await;
    produce(&cluster, "t", "a").await;
    let image = cluster.image();
    assert_eq!(image.brokers.keys().copied().collect::<Vec<_>>(), [4, 5, 6].map(BrokerId));
    for state in image.partitions().map(|(_, _, state)| state) {
        assert!(state.replicas.iter().all(|replica| replica.0 >= 4), "{state:?}");
    }
    // A controller alone is ready without being registered, hosts nothing and answers for everything.
    for id in 1..=6 {
        wait_ready(&cluster, id).await;
        assert_eq!(get(&cluster, id, "/health/startup").await.0, 200);
        let (status, state) = get(&cluster, id, "/v3/clusters/-/topics/t/partitions/0/state").await;
        assert_eq!((status, state["high_watermark"].as_i64()), (200, Some(1)), "node {id}: {state}");
        let status = cluster.node(id).quorum().status();
        let expected = if id <= 3 { status.role != QuorumRole::Observer } else { status.role == QuorumRole::Observer };
        assert!(expected, "node {id}: {status:?}");
    }
    let (_, quorum) = get(&cluster, 5, "/v3/clusters/-/quorum").await;
    let ids =
        |list: &Value| list.as_array().unwrap().iter().map(|m| m["replica_id"].as_i64().unwrap()).collect::<Vec<_>>();
    assert_eq!((ids(&quorum["current_voters"]), ids(&quorum["observers"])), (vec![1, 2, 3], vec![4, 5, 6]), "{quorum}");

    // The raft leader dies: records go on, and so does the metadata.
    let controller = cluster.controller().await;
    cluster.crash(controller).await;
    produce(&cluster, "t", "b").await;
    assert_ne!(cluster.controller().await, controller);
    cluster.create_topic("u", 1, 3, MIN_ISR_2).await;
    // A broker dies while another controller leads: it is fenced and its leaderships move.
    let leader = cluster.wait_leading("t", 0).await;
    cluster.crash(leader).await;
    cluster.wait_state("t", 0, "led by another", |state| state.leader.is_some_and(|l| l.0 != leader)).await;
    produce(&cluster, "t", "c").await;
    cluster.start_node(leader).await;
    cluster.start_node(controller).await;
    cluster.wait_in_sync("t", 0, 3).await;

    // Everybody stops and starts, brokers first: they wait for the controllers.
    cluster.stop_all().await;
    for id in [4, 5, 6, 1, 2, 3] {
        cluster.begin(id).await;
    }
    cluster.wait_serving().await;
    cluster.wait_in_sync("t", 0, 3).await;
    assert_eq!(values(&cluster, "t").await, ["a", "b", "c"]);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_comes_later_finds_the_cluster_by_its_bootstrap_servers() {
    let mut cluster = Cluster::start_roles(&[Controller, Broker], &[]).await;
    cluster.create_topic("t", 1, 1, &[]).await;
    produce(&cluster, "t", "a").await;
    // Nobody is there whom it could ask: it waits, and says for whom.
    let late = cluster.add_member(Broker);
    cluster.crash(1).await;
    cluster.begin(late).await;
    let said = cluster
        .wait_for("the new broker says that nobody answers", async || {
            let (status, ready) = get(&cluster, late, "/health/ready").await;
            let why = ready["failed"].as_array()?.iter().find(|f| f["check"] == "QUORUM_MEMBER")?["why"].clone();
            (status == 503).then_some(why)
        })
        .await;
    assert!(said.as_str().unwrap().contains("nobody tells of a cluster"), "{said}");
    cluster.start_node(1).await;
    cluster.wait_serving().await;
    assert_eq!(cluster.node(late).quorum().status().role, QuorumRole::Observer);
    cluster.create_assigned("u", &[late, 2], MIN_ISR_2).await;
    produce(&cluster, "u", "b").await;
    // It has no address but the metadata's when it comes back.
    cluster.crash(late).await;
    cluster.start_node(late).await;
    cluster.wait_in_sync("u", 0, 2).await;
    // An observer that lost its metadata is no voter: it registers, and is filled again.
    cluster.crash(late).await;
    std::fs::remove_dir_all(cluster.member(late).metadata_dir()).unwrap();
    cluster.start_node(late).await;
    assert_eq!(cluster.node(late).quorum().status().role, QuorumRole::Observer);
    cluster.wait_in_sync("u", 0, 2).await;
    assert_eq!(values(&cluster, "u").await, ["b"]);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_combined_node_that_comes_later_serves_and_does_not_vote() {
    let mut cluster = Cluster::start(1, &[]).await;
    let late = cluster.add_member(Both);
    cluster.start_node(late).await;
    let image = cluster.image();
    assert_eq!(image.brokers.get(&BrokerId(late)).map(|broker| broker.state), Some(BrokerState::Active));
    assert_eq!(cluster.node(late).quorum().status().role, QuorumRole::Observer);
    wait_ready(&cluster, late).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_voters_lose_two_and_go_on() {
    let mut cluster =
        Cluster::start_roles(&[Controller, Controller, Controller, Controller, Controller, Broker], &[]).await;
    cluster.create_topic("t", 1, 1, &[]).await;
    for round in ["a", "b"] {
        let controller = cluster.controller().await;
        cluster.crash(controller).await;
        produce(&cluster, "t", round).await;
        cluster.create_topic(round, 1, 1, &[]).await;
    }
    let (_, health) = get(&cluster, 6, "/v3/clusters/-/health").await;
    assert_eq!(health["quorum"]["voters"].as_i64(), Some(5), "{health}");
    let leader = cluster.controller().await;
    cluster
        .wait_for("the leader knows that it may lose nobody more", async || {
            (cluster.node(leader).quorum().status().can_lose == Some(0)).then_some(())
        })
        .await;
    let dead: Vec<i32> = (1..=5).filter(|id| !cluster.running().contains(id)).collect();
    for id in dead {
        cluster.start_node(id).await;
    }
    let leader = cluster.controller().await;
    cluster
        .wait_for("all five have caught up", async || {
            (cluster.node(leader).quorum().status().can_lose == Some(2)).then_some(())
        })
        .await;
    assert_eq!(values(&cluster, "t").await, ["a", "b"]);
    cluster.end().await;
}

/// A write to a node's admin API: status and body.
async fn write(cluster: &Cluster, id: i32, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}/v3/clusters/-{path}", cluster.member(id).http_port);
    let mut request = client.request(method.parse().unwrap(), url).timeout(Duration::from_secs(20));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = told(request.send().await);
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_is_unregistered_when_it_is_gone_and_hosts_nothing_and_leaves_raft() {
    let mut cluster = Cluster::start_roles(&[Controller, Broker, Broker, Broker], &[]).await;
    cluster.create_assigned("t", &[2, 3], &[]).await;
    let unregister =
        async |cluster: &Cluster, id: i32| write(cluster, 1, "POST", &format!("/brokers/{id}:unregister"), None).await;
    let kafka = async |cluster: &Cluster, id: i32| {
        let mut request = UnregisterBrokerRequest::default();
        request.broker_id = id;
        ErrorCode::from_code(told(cluster.client(2).await.ask(0, request).await).error_code)
    };
    // It lives.
    let (status, body) = unregister(&cluster, 4).await;
    assert_eq!((status, body["error_code"].as_i64()), (409, Some(40912)), "{body}");
    assert_eq!(kafka(&cluster, 4).await, ErrorCode::InvalidRequest);
    // It never was.
    let (status, body) = unregister(&cluster, 9).await;
    assert_eq!((status, body["error_code"].as_i64()), (404, Some(404)), "{body}");
    assert_eq!(kafka(&cluster, 9).await, ErrorCode::BrokerIdNotRegistered);
    assert_eq!(write(&cluster, 1, "POST", "/brokers/4:restart", None).await.0, 404);
    // It is gone, and a replica is still its own: named.
    cluster.crash(3).await;
    cluster
        .wait("broker 3 is fenced", || {
            cluster.image().brokers.get(&BrokerId(3)).is_some_and(|broker| broker.state == BrokerState::Fenced)
        })
        .await;
    let (status, body) = unregister(&cluster, 3).await;
    assert_eq!((status, body["error_code"].as_i64()), (409, Some(40912)), "{body}");
    assert_eq!(body["details"]["blocking"][0]["topic_name"], "t", "{body}");
    // It is gone with nothing of its own.
    cluster.crash(4).await;
    cluster
        .wait("broker 4 is fenced", || {
            cluster.image().brokers.get(&BrokerId(4)).is_some_and(|broker| broker.state == BrokerState::Fenced)
        })
        .await;
    let dry = write(&cluster, 1, "POST", "/brokers/4:unregister?validate_only=true", None).await;
    assert_eq!(dry.0, 200, "{dry:?}");
    assert_eq!(unregister(&cluster, 4).await.0, 202);
    assert_eq!(unregister(&cluster, 4).await.0, 404, "the second time nobody is there");
    cluster
        .wait("it is no observer any more", || {
            let observers = cluster.node(1).quorum().status().observers;
            observers.iter().all(|observer| observer.node != BrokerId(4))
        })
        .await;
    // Kafka's request leaves assignments as they are (R176).
    assert_eq!(kafka(&cluster, 3).await, ErrorCode::None);
    assert_eq!(cluster.state("t", 0).unwrap().replicas, [BrokerId(2), BrokerId(3)]);
    // Whoever comes back registers anew, and fetches what it lacks.
    cluster.start_node(4).await;
    cluster.start_node(3).await;
    cluster.wait_in_sync("t", 0, 2).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_forgets_a_broker_that_is_gone_and_says_why_not() {
    let mut cluster = Cluster::start_roles(&[Controller, Broker, Broker, Broker], &[]).await;
    cluster.create_assigned("t", &[2, 3], &[]).await;
    let unregister = |cluster: &Cluster, id: &str, more: &[&str]| {
        let url = format!("http://127.0.0.1:{}", cluster.member(1).http_port);
        let mut command = Command::new(binary());
        command.args(["broker", "unregister", id, "--url", &url]).args(more).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    let says = |said: (Option<i32>, String), code: i32, words: &str| {
        assert!(said.0 == Some(code) && said.1.contains(words), "not {code} with {words:?}: {said:?}");
    };
    says(unregister(&cluster, "9", &["--yes"]), 3, "there is no broker 9");
    says(unregister(&cluster, "4", &["--yes"]), 4, "error_code 40912");
    for id in [3, 4] {
        cluster.crash(id).await;
        let state = |cluster: &Cluster| cluster.image().broker(BrokerId(id)).map(|broker| broker.state);
        cluster.wait("it is fenced", || state(&cluster) == Some(BrokerState::Fenced)).await;
    }
    says(unregister(&cluster, "3", &["--yes"]), 4, "still owns 1 replicas, the first of t-0");
    says(unregister(&cluster, "4", &["--dry-run"]), 0, "FENCED since");
    says(unregister(&cluster, "4", &[]), 2, "add --yes");
    assert!(cluster.image().broker(BrokerId(4)).is_some(), "nobody said yes");
    says(unregister(&cluster, "4", &["--yes"]), 0, "broker 4 is forgotten");
    assert!(cluster.image().broker(BrokerId(4)).is_none());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_healthy_only_with_a_broker_that_serves() {
    let mut cluster = Cluster::start_roles(&[Controller, Broker], &[]).await;
    let codes = |body: &Value| -> Vec<String> {
        let reasons = body["reasons"].as_array().unwrap().iter();
        reasons.map(|reason| reason["code"].as_str().unwrap().to_owned()).collect()
    };
    wait_ready(&cluster, 2).await;
    let (_, body) = get(&cluster, 1, "/v3/clusters/-/health").await;
    assert_eq!((&body["healthy"], codes(&body)), (&json!(true), Vec::new()), "{body}");
    // The only one goes.
    cluster.stop(2).await;
    let (status, body) = get(&cluster, 1, "/v3/clusters/-/health?fail=true").await;
    assert_eq!(
        (status, &body["healthy"], codes(&body)[0].as_str()),
        (503, &json!(false), "NO_ACTIVE_BROKER"),
        "{body}"
    );
    assert!(body["since_ms"].is_i64(), "{body}");
    assert_eq!(body["reasons"][0]["cause"]["brokers"], json!([2]));
    // None is left, as before the first one has joined.
    let (status, _) = write(&cluster, 1, "POST", "/brokers/2:unregister", None).await;
    assert_eq!(status, 202);
    let (_, body) = get(&cluster, 1, "/v3/clusters/-/health").await;
    assert_eq!((&body["healthy"], codes(&body)), (&json!(false), vec!["NO_ACTIVE_BROKER".to_owned()]), "{body}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_broker_describes_the_quorum_as_its_leader_sees_it() {
    let mut cluster = Cluster::start_roles(&[Controller, Controller, Controller, Broker, Broker], &[]).await;
    let ask = async |cluster: &Cluster, id: i32, version: i16| {
        let mut partition = kafka_wire::describe_quorum_request::PartitionData::default();
        partition.partition_index = 0;
        let mut topic = kafka_wire::describe_quorum_request::TopicData::default();
        topic.topic_name = "__cluster_metadata".into();
        topic.partitions = vec![partition];
        let mut request = DescribeQuorumRequest::default();
        request.topics = vec![topic];
        told(cluster.client(id).await.ask(version, request).await)
    };
    let leader = cluster.controller().await;
    for (broker, version) in [(4, 0), (5, 1), (5, 2)] {
        let answer = cluster
            .wait_for("both brokers are observers that have caught up", async || {
                let answer = ask(&cluster, broker, version).await;
                let told = &answer.topics[0].partitions[0];
                let caught_up = told.observers.iter().all(|observer| observer.log_end_offset == told.high_watermark);
                (told.observers.len() == 2 && caught_up).then_some(answer)
            })
            .await;
        let told = &answer.topics[0].partitions[0];
        assert_eq!((told.error_code, told.leader_id), (0, leader));
        assert_eq!(told.current_voters.iter().map(|voter| voter.replica_id).collect::<Vec<_>>(), [1, 2, 3]);
        for voter in &told.current_voters {
            let directory = cluster.node(voter.replica_id).quorum().status().directory;
            let expected = if version >= 2 { directory.to_bytes() } else { [0; 16] };
            assert_eq!(voter.replica_directory_id.to_bytes(), expected, "v{version}");
            assert_eq!(voter.last_fetch_timestamp > 0, version >= 1, "v{version}");
        }
        let ports: Vec<u16> = answer.nodes.iter().map(|node| node.listeners[0].port).collect();
        let expected: Vec<u16> = (1..=3).map(|id| cluster.member(id).controller_port).collect();
        assert_eq!(ports, if version >= 2 { expected } else { Vec::new() });
    }
    // Without a majority nobody can tell.
    cluster.crash(leader).await;
    let next = cluster.controller().await;
    cluster.crash(next).await;
    cluster
        .wait_for("the broker says that there is no leader", async || {
            let answer = ask(&cluster, 4, 2).await;
            let told = &answer.topics[0].partitions[0];
            (told.error_code == ErrorCode::NotLeaderOrFollower.code() && told.error_message.is_some()).then_some(())
        })
        .await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn voters_are_changed_over_http_by_any_node() {
    let mut cluster = Cluster::start_roles(&[Controller, Controller, Controller, Broker], &[]).await;
    let added = cluster.add_member(Controller);
    cluster.begin(added).await;
    let said = cluster
        .wait_for("the controller outside says how it gets in", async || {
            let (_, ready) = get(&cluster, added, "/health/ready").await;
            let why = ready["failed"].as_array()?.iter().find(|f| f["check"] == "QUORUM_MEMBER")?["why"].clone();
            why.as_str().is_some_and(|why| why.contains("highwater quorum add-voter --node 5")).then_some(why)
        })
        .await;
    assert!(said.as_str().unwrap().contains("--endpoint 127.0.0.1:"), "{said}");
    let endpoint = format!("127.0.0.1:{}", cluster.member(added).controller_port);
    let mut body = json!({ "node_id": added, "endpoint": endpoint, "validate_only": true });
    let (status, planned) = write(&cluster, 4, "POST", "/quorum/voters", Some(body.clone())).await;
    assert_eq!((status, planned["state"].as_str()), (200, Some("PLANNED")), "{planned}");
    assert_eq!(cluster.node(1).quorum().status().voters.len(), 3, "nothing was changed");
    body["validate_only"] = json!(false);
    let (status, done) = write(&cluster, 4, "POST", "/quorum/voters", Some(body.clone())).await;
    assert_eq!(status, 202, "{done}");
    let keys = |body: &Value| body.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&planned), keys(&done), "the same object");
    wait_ready(&cluster, added).await;
    cluster
        .wait_for("it votes", async || {
            let (status, again) = write(&cluster, 4, "POST", "/quorum/voters", Some(body.clone())).await;
            (status == 200 && again["state"] == "DONE").then_some(())
        })
        .await;

    // Leadership goes where it is sent, and not to an observer.
    let (status, body) =
        write(&cluster, 4, "POST", "/quorum:transfer-leader", Some(json!({ "target_id": added }))).await;
    assert_eq!((status, body["leader_id"].as_i64()), (200, Some(added.into())), "{body}");
    cluster.wait("the added one leads", || cluster.node(4).quorum().leader() == Some(BrokerId(added))).await;
    let (status, body) = write(&cluster, 4, "POST", "/quorum:transfer-leader", Some(json!({ "target_id": 4 }))).await;
    assert_eq!((status, body["error_code"].as_i64()), (409, Some(40917)), "{body}");

    // With two of four gone, none of the others may go; the dead may.
    cluster.crash(1).await;
    let (status, body) = write(&cluster, 4, "DELETE", "/quorum/voters/1?validate_only=true", None).await;
    assert_eq!((status, body["state"].as_str()), (200, Some("PLANNED")), "{body}");
    let (status, body) = write(&cluster, 4, "DELETE", "/quorum/voters/1", None).await;
    assert_eq!((status, body["state"].as_str()), (202, Some("DONE")), "{body}");
    let (status, body) = write(&cluster, 4, "DELETE", "/quorum/voters/1", None).await;
    assert_eq!((status, body["error_code"].as_i64()), (404, Some(404)), "{body}");
    cluster.crash(2).await;
    let (status, body) = write(&cluster, 4, "DELETE", "/quorum/voters/3", None).await;
    assert_eq!((status, body["error_code"].as_i64()), (409, Some(40913)), "{body}");
    assert_eq!(cluster.node(3).quorum().status().voters.len(), 3, "nothing half done");
    for (body, code) in [
        (json!({ "node_id": 3, "endpoint": "nowhere" }), 42206),
        (json!({ "node_id": 4 }), 40002),
        (json!({ "node_id": 9 }), 40002),
        (json!({ "node_id": 9, "endpoint": "127.0.0.1:1" }), 50302),
        (json!({ "node": 9 }), 42206),
    ] {
        let (_, refused) = write(&cluster, 4, "POST", "/quorum/voters", Some(body.clone())).await;
        assert_eq!(refused["error_code"].as_i64(), Some(code), "{body}: {refused}");
    }
    cluster.end().await;
}
