//! Elections under a person's control, on whole nodes in this process: the unclean road from the dry run to the loss in the
//! history, how good the estimate is, and leaders that go home.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use highwater_quorum::image::{ChangeKind, LastWatermark, LeaderReason, WatermarkSource};
use highwater_tests::client::{Client, batch, contents};
use highwater_tests::cluster::{Cluster, told};
use highwater_tests::process::binary;
use highwater_wire::batch::BatchIter;
use highwater_wire::messages::elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
use highwater_wire::{BrokerId, ErrorCode, Offset};
use serde_json::{Value, json};

const ALL: i16 = -1;
const MIN_ISR_1: &[(&str, &str)] = &[("min.insync.replicas", "1")];
const NOW: i64 = 1_760_000_000_000;

fn url(cluster: &Cluster, id: i32, path: &str) -> String {
    format!("http://127.0.0.1:{}{path}", cluster.member(id).http_port)
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// `POST /elections` on a node: status and body.
async fn elect(cluster: &Cluster, id: i32, body: &Value) -> (u16, Value) {
    let answer = http().post(url(cluster, id, "/v3/clusters/-/elections")).json(body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn refused(cluster: &Cluster, id: i32, body: &Value) -> (u16, u64) {
    let (status, answer) = elect(cluster, id, body).await;
    assert!(answer["message"].is_string(), "{body}: {answer}");
    (status, answer["error_code"].as_u64().unwrap())
}

/// With further members.
fn and(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The command line, asking a node; off a terminal.
fn highwater(cluster: &Cluster, id: i32, args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(args).args(["--url", &url(cluster, id, "")]).stdin(Stdio::null());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

async fn produce(client: &mut Client, topic: &str, acks: i16, count: usize) -> i64 {
    let values: Vec<String> = (0..count).map(|n| format!("v{n}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let answer = told(client.produce(topic, 0, acks, batch(NOW, &values)).await);
    assert_eq!(answer.error_code, 0, "{answer:?}");
    answer.base_offset
}

/// The loss that stands in the history, waited for.
async fn loss(cluster: &Cluster, topic: &str) -> (Option<Offset>, Option<LastWatermark>) {
    cluster
        .wait_for(&format!("{topic}: the loss in its history"), async || {
            cluster.history(topic, 0).iter().rev().find_map(|change| match change.kind {
                ChangeKind::DataLoss { from, known } => Some((from, known)),
                _ => None,
            })
        })
        .await
}

/// One line of `/metrics`.
async fn metric(cluster: &Cluster, id: i32, name: &str) -> Option<f64> {
    let text = http().get(url(cluster, id, "/metrics")).send().await.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_makes_a_partition_writable_whose_leaders_disk_is_gone_and_the_loss_is_true_to_the_offset() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.expect_error("an unclean election lost committed records");
    cluster.create_assigned("orders", &[1, 2], MIN_ISR_1).await;
    let mut client = cluster.leader_client("orders", 0).await;
    produce(&mut client, "orders", ALL, 100).await;
    cluster.wait_log_end(2, "orders", 0, 100).await;
    cluster.crash(2).await;
    cluster.wait_in_sync("orders", 0, 1).await;
    assert_eq!(produce(&mut client, "orders", ALL, 50).await, 100, "acknowledged by the only one in sync");
    let at = cluster.at("orders", 0).unwrap();
    cluster
        .wait("the other voter knows what node 1 has committed", || {
            let known = cluster.node(3).quorum().reported_watermark(at);
            known.is_some_and(|known| known.high_watermark == Offset(150))
        })
        .await;
    cluster.crash(1).await;
    cluster.start_node(2).await;
    cluster.wait_state("orders", 0, "without a leader", |s| s.leader.is_none() && s.elr == [BrokerId(1)]).await;

    // The dry run says what it costs, and what would cost nothing.
    let body = json!({"election_type": "UNCLEAN", "partitions": [{"topic_name": "orders", "partition_id": 0}]});
    let dry = and(&body, json!({"validate_only": true}));
    let (status, early) = elect(&cluster, 3, &dry).await;
    assert_eq!(status, 200, "{early}");
    let alternative = early["results"][0]["alternative"].as_str().unwrap();
    assert!(alternative.contains("broker 1 is in the ELR and fenced since"), "{early}");
    // Node 1 comes back without its disk, and cannot lead.
    std::fs::remove_dir_all(cluster.member(1).data_dir()).unwrap();
    cluster.start_node(1).await;
    let state = cluster.wait_state("orders", 0, "led by nobody", |s| s.leader.is_none() && s.elr.is_empty()).await;
    assert_eq!(state.last_known_elr, [BrokerId(1)]);
    let (status, plan) = elect(&cluster, 1, &dry).await;
    assert_eq!(status, 200, "{plan}");
    let result = &plan["results"][0];
    assert_eq!((&result["result"], &result["recommended_leader_id"]), (&json!("WOULD_ELECT"), &json!(2)), "{plan}");
    assert_eq!(result["candidates"][0]["log_end_offset"], 100, "{plan}");
    assert_eq!(result["candidates"][1], json!({"broker_id": 1, "last_leader_epoch": null, "log_end_offset": 0}));
    let told_loss = &result["loss"];
    assert_eq!(told_loss["committed_records_lost_at_least"], 50, "{plan}");
    assert_eq!((&told_loss["last_known_high_watermark"], &told_loss["reported_by"]), (&json!(150), &json!(1)));

    // Nothing happens without the word, or by the plan of another state; and saying so again changes nothing.
    let plan_of = |plan: &Value| json!({"confirm_data_loss": true, "plan_id": plan["plan_id"]});
    for _ in 0..2 {
        assert_eq!(refused(&cluster, 2, &body).await, (422, 42210));
        assert_eq!(refused(&cluster, 2, &and(&body, json!({"confirm_data_loss": true}))).await, (422, 42210));
        assert_eq!(refused(&cluster, 2, &and(&body, json!({"plan_id": plan["plan_id"]}))).await, (422, 42210));
        assert_eq!(refused(&cluster, 2, &and(&body, plan_of(&early))).await, (409, 40911));
        let strange = json!({"confirm_data_loss": true, "plan_id": "el-7c1"});
        assert_eq!(refused(&cluster, 2, &and(&body, strange)).await, (422, 42206));
        let other = json!({"partitions": [{"topic_name": "orders", "partition_id": 0, "leader_id": 1}]});
        assert_eq!(
            refused(&cluster, 2, &and(&and(&body, plan_of(&plan)), other)).await,
            (409, 40911),
            "another leader"
        );
        let stale = json!({"partitions": [{"topic_name": "orders", "partition_id": 0, "expected_leader_epoch": 99}]});
        assert_eq!(refused(&cluster, 2, &and(&dry, stale)).await, (409, 40911));
    }
    let command = ["partition", "elect", "orders:0", "--type", "unclean"];
    let dry_run = highwater(&cluster, 3, &[&command[..], &["--dry-run"]].concat());
    assert_eq!(dry_run.status.code(), Some(0), "{}", text(&dry_run));
    assert!(text(&dry_run).contains("2@0:100"), "{}", text(&dry_run));
    let unconfirmed = highwater(&cluster, 3, &[&command[..], &["--yes"]].concat());
    assert_eq!(unconfirmed.status.code(), Some(4), "{}", text(&unconfirmed));
    assert_eq!(cluster.state("orders", 0).unwrap(), state, "nothing was changed");

    let confirmed = highwater(&cluster, 3, &[&command[..], &["--confirm-data-loss"]].concat());
    assert_eq!(confirmed.status.code(), Some(0), "{}", text(&confirmed));
    assert!(String::from_utf8_lossy(&confirmed.stdout).contains("ELECTED"), "{}", text(&confirmed));
    // Writable, from where the log of node 2 ended.
    let mut client = cluster.leader_client("orders", 0).await;
    assert_eq!(produce(&mut client, "orders", ALL, 10).await, 100);
    let (from, known) = loss(&cluster, "orders").await;
    let known = known.unwrap();
    assert_eq!((from, known.high_watermark), (Some(Offset(100)), Offset(150)));
    assert_eq!((known.leader, known.source), (Some(BrokerId(1)), WatermarkSource::Reported));
    let history = url(&cluster, 1, "/v3/clusters/-/topics/orders/partitions/0/history?type=DATA_LOSS");
    let listed: Value = http().get(history).send().await.unwrap().json().await.unwrap();
    let told_loss = &listed["data"][0]["loss"];
    assert_eq!((&told_loss["from_offset"], &told_loss["to_offset"]), (&json!(100), &json!(150)), "{listed}");
    assert_eq!((&told_loss["committed_records_lost_at_least"], &told_loss["exact"]), (&json!(50), &json!(false)));
    let shown = highwater(&cluster, 2, &["partition", "history", "orders:0", "--type", "DATA_LOSS"]);
    assert!(text(&shown).contains("committed_records_lost_at_least=50"), "{}", text(&shown));
    cluster
        .wait_for("the loss in the metrics of the leader", async || {
            let lost = metric(&cluster, 2, "highwater_committed_records_lost_total ").await?;
            let elections = metric(&cluster, 2, "highwater_leader_elections_total{reason=\"UNCLEAN\"}").await?;
            ((lost, elections) == (50.0, 1.0)).then_some(())
        })
        .await;

    // Once more: nothing to do, whatever plan is named.
    let (status, again) = elect(&cluster, 1, &and(&body, plan_of(&plan))).await;
    assert_eq!((status, &again["results"][0]["result"]), (200, &json!("NOT_NEEDED")), "{again}");
    let repeated = highwater(&cluster, 3, &[&command[..], &["--confirm-data-loss"]].concat());
    assert_eq!(repeated.status.code(), Some(0), "{}", text(&repeated));
    cluster.wait_in_sync("orders", 0, 2).await;
    cluster.wait_log_end(1, "orders", 0, 110).await;
    assert_eq!(contents(&told(client.read_all("orders", 0).await)).len(), 110);
    let losses = cluster.history("orders", 0);
    let losses = losses.iter().filter(|change| matches!(change.kind, ChangeKind::DataLoss { .. }));
    assert_eq!(losses.count(), 1);
    cluster.end().await;
}

/// Sends `records` a time at a steady pace until the leader is gone; tells how far the log was acknowledged.
fn steady_load(cluster: &Cluster, leader: i32, topic: &str, records: usize) -> Arc<AtomicI64> {
    let acked = Arc::new(AtomicI64::new(0));
    let (counter, topic, address) = (acked.clone(), topic.to_owned(), cluster.address(leader));
    tokio::spawn(async move {
        let mut client = Client::connect(address).await.unwrap();
        let values = vec!["0123456789"; records];
        let mut pace = tokio::time::interval(Duration::from_millis(10));
        loop {
            pace.tick().await;
            match client.produce(&topic, 0, 1, batch(NOW, &values)).await {
                Ok(answer) if answer.error_code == 0 => {
                    counter.store(answer.base_offset + records as i64, Ordering::Release);
                }
                _ => return,
            }
        }
    });
    acked
}

/// Where the log of a node that is down ends, as it lies on disk.
fn end_on_disk(cluster: &Cluster, id: i32, topic: &str) -> i64 {
    let bytes = std::fs::read(cluster.member(id).replica_dir(topic, 0).join("00000000000000000000.log")).unwrap();
    let batches = BatchIter::new(bytes.into()).map_while(Result::ok);
    batches.last().map_or(0, |batch| batch.last_offset().0 + 1)
}

/// Issue 4: at steady load the estimate is at most the true loss and at least 90 % of it, over 20 losses.
#[tokio::test(flavor = "multi_thread")]
async fn the_estimate_of_a_loss_is_never_too_high_and_at_least_nine_tenths_of_the_truth() {
    const ROUNDS: usize = 4;
    const TOPICS: usize = 5;
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.expect_error("an unclean election lost committed records");
    cluster.expect_error("truncated below the high watermark");
    let mut measured = Vec::new();
    for round in 0..ROUNDS {
        let (leader, follower) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        let topics: Vec<String> = (0..TOPICS).map(|n| format!("r{round}-{n}")).collect();
        for topic in &topics {
            cluster.create_assigned(topic, &[leader, follower], MIN_ISR_1).await;
        }
        // The raft leader and the partitions' leader die as one in the first rounds.
        if round < 2 && cluster.controller().await != leader {
            let controller = cluster.controller().await;
            cluster
                .node(controller)
                .quorum()
                .transfer_leadership(BrokerId(leader), Duration::from_secs(20))
                .await
                .unwrap();
            cluster.wait("the raft leader moved", || cluster.node(3).quorum().leader() == Some(BrokerId(leader))).await;
        }
        let controller = cluster.controller().await;
        let loads: Vec<_> =
            topics.iter().enumerate().map(|(n, topic)| steady_load(&cluster, leader, topic, n + 1)).collect();
        let acked = |least: &[i64]| loads.iter().zip(least).all(|(load, least)| load.load(Ordering::Acquire) >= *least);
        let per_second = |n: usize| 100 * (n as i64 + 1);
        cluster.wait("load", || acked(&(0..TOPICS).map(per_second).collect::<Vec<_>>())).await;
        cluster.crash(follower).await;
        for topic in &topics {
            cluster.wait_in_sync(topic, 0, 1).await;
        }
        let alone: Vec<i64> = loads.iter().map(|load| load.load(Ordering::Acquire)).collect();
        let more: Vec<i64> = alone.iter().enumerate().map(|(n, from)| from + 3 * per_second(n)).collect();
        cluster.wait("three seconds of load on the leader alone", || acked(&more)).await;
        cluster.crash(leader).await;
        let truth: Vec<i64> = topics.iter().map(|topic| end_on_disk(&cluster, leader, topic)).collect();
        cluster.start_node(follower).await;
        for topic in &topics {
            cluster.wait_state(topic, 0, "led by nobody", |s| s.leader.is_none()).await;
        }

        let partitions: Vec<Value> = topics.iter().map(|t| json!({"topic_name": t, "partition_id": 0})).collect();
        let body = json!({"election_type": "UNCLEAN", "partitions": partitions});
        let (status, plan) = elect(&cluster, follower, &and(&body, json!({"validate_only": true}))).await;
        assert_eq!(status, 200, "{plan}");
        let confirmed = and(&body, json!({"confirm_data_loss": true, "plan_id": plan["plan_id"]}));
        // The plan of one node is good on another.
        let (status, done) = elect(&cluster, 3, &confirmed).await;
        assert_eq!(status, 200, "{done}");
        for ((topic, truth), result) in topics.iter().zip(truth).zip(plan["results"].as_array().unwrap()) {
            let new_end = result["loss"]["new_log_end_offset"].as_i64().unwrap();
            let estimate = result["loss"]["committed_records_lost_at_least"].as_i64();
            let (from, known) = loss(&cluster, topic).await;
            assert_eq!(from, Some(Offset(new_end)), "{topic}");
            assert_eq!(known.map(|known| known.high_watermark.0 - new_end), estimate, "{topic}: as planned");
            let (lost, estimate) = (truth - new_end, estimate.unwrap_or(0));
            let share = estimate as f64 / lost as f64;
            println!(
                "{topic}: lost {lost}, estimated {estimate} ({share:.3}), raft leader died: {}",
                controller == leader
            );
            measured.push((topic.clone(), lost, estimate));
        }
        cluster.start_node(leader).await;
        for topic in &topics {
            cluster.wait_in_sync(topic, 0, 2).await;
        }
    }
    assert_eq!(measured.len(), 20);
    for (topic, lost, estimate) in measured {
        assert!(
            lost > 0 && estimate <= lost && estimate * 10 >= lost * 9,
            "{topic}: lost {lost}, estimated {estimate}"
        );
    }
    cluster.end().await;
}

async fn elect_over_the_wire(
    client: &mut Client,
    version: i16,
    type_: i8,
    partitions: Option<&[(&str, i32)]>,
) -> (i16, Vec<(String, i32, i16)>) {
    let mut request = ElectLeadersRequest::default();
    request.election_type = type_;
    request.timeout_ms = 10_000;
    request.topic_partitions = partitions.map(|named| {
        let topic = |(topic, partition): &(&str, i32)| {
            let mut one = TopicPartitions::default();
            one.topic = (*topic).into();
            one.partitions = vec![*partition];
            one
        };
        named.iter().map(topic).collect()
    });
    let answer = told(client.ask(version, request).await);
    let results = answer.replica_election_results.into_iter().flat_map(|topic| {
        let name = topic.topic.as_str().to_owned();
        topic.partition_result.into_iter().map(move |one| (name.clone(), one.partition_id, one.error_code))
    });
    (answer.error_code, results.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_are_elected_over_the_wire_and_by_name_and_mistakes_change_nothing() {
    let mut cluster = Cluster::start(3, &[("auto.leader.rebalance.enable", "false")]).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_1).await;
    cluster.create_assigned("lonely", &[2], MIN_ISR_1).await;
    let code = |error: ErrorCode| error.code();
    let mut client = cluster.client(3).await;
    let one = |topic: &str, error: ErrorCode| (0, vec![(topic.to_owned(), 0, error.code())]);

    // By name over HTTP, and back home over the wire.
    let to = |leader: i32| json!({"topic_name": "t", "partition_id": 0, "leader_id": leader});
    let body = json!({"election_type": "DESIGNATED", "partitions": [to(3)]});
    for result in ["ELECTED", "NOT_NEEDED"] {
        let (status, answer) = elect(&cluster, 2, &body).await;
        assert_eq!((status, &answer["results"][0]["result"]), (200, &json!(result)), "{answer}");
        assert_eq!((&answer["results"][0]["new_leader_id"], &answer["results"][0]["loss"]), (&json!(3), &json!(null)));
    }
    assert_eq!(elect_over_the_wire(&mut client, 2, 1, Some(&[("t", 0)])).await, one("t", ErrorCode::ElectionNotNeeded));
    assert_eq!(elect_over_the_wire(&mut client, 2, 0, None).await, one("t", ErrorCode::None), "all that are away");
    assert_eq!(elect_over_the_wire(&mut client, 1, 0, None).await, (0, vec![]), "none is away");
    let reasons = |cluster: &Cluster| -> Vec<LeaderReason> {
        let history = cluster.history("t", 0);
        let reason = |kind: &ChangeKind| match kind {
            ChangeKind::Leader { reason, .. } => Some(*reason),
            _ => None,
        };
        history.iter().filter_map(|change| reason(&change.kind)).collect()
    };
    assert_eq!(reasons(&cluster), [LeaderReason::Created, LeaderReason::Designated, LeaderReason::Preferred]);

    // Mistakes, each twice.
    let before = cluster.wait_in_sync("t", 0, 3).await;
    let designated = |one: Value| json!({"election_type": "DESIGNATED", "partitions": [one]});
    let http_mistakes = [
        (designated(json!({"topic_name": "no", "partition_id": 0, "leader_id": 1})), (404, 40403)),
        (designated(json!({"topic_name": "t", "partition_id": 7, "leader_id": 1})), (404, 40403)),
        (designated(json!({"topic_name": "t", "partition_id": -1, "leader_id": 1})), (404, 40403)),
        (designated(json!({"topic_name": "t", "partition_id": 0})), (422, 42206)),
        (designated(to(9)), (400, 40002)),
        (designated(and(&to(2), json!({"expected_leader_epoch": 0}))), (409, 40911)),
        (designated(and(&to(2), json!({"expected_leader_epoch": 99}))), (409, 40911)),
        (designated(and(&to(2), json!({"expected_partition_epoch": 0}))), (409, 40911)),
        (designated(and(&to(2), json!({"leader": 2}))), (422, 42206)),
        (json!({"election_type": "DESIGNATED", "partitions": [to(2), to(3)]}), (422, 42206)),
        (json!({"election_type": "DESIGNATED", "all": true}), (422, 42206)),
        (json!({"election_type": "PREFERRED", "partitions": [to(2)]}), (422, 42206)),
        (json!({"election_type": "PREFERRED"}), (422, 42206)),
        (json!({"election_type": "PREFERRED", "all": true, "partitions": [to(2)]}), (422, 42206)),
        (json!({"election_type": "CLEAN", "all": true}), (422, 42206)),
    ];
    let unknown = ErrorCode::UnknownTopicOrPartition;
    for _ in 0..2 {
        for (body, expected) in &http_mistakes {
            assert_eq!(refused(&cluster, 1, body).await, *expected, "{body}");
        }
        assert_eq!(elect_over_the_wire(&mut client, 1, 1, Some(&[("no", 0)])).await, one("no", unknown));
        let unknown_number = elect_over_the_wire(&mut client, 0, 0, Some(&[("t", 9)])).await;
        assert_eq!(unknown_number, (0, vec![("t".to_owned(), 9, code(unknown))]));
        let (whole, each) = elect_over_the_wire(&mut client, 2, 9, Some(&[("t", 0)])).await;
        assert_eq!((whole, each[0].2), (code(ErrorCode::InvalidRequest), code(ErrorCode::InvalidRequest)));
        assert_eq!(
            elect_over_the_wire(&mut client, 1, 0, Some(&[("t", 0)])).await,
            one("t", ErrorCode::ElectionNotNeeded)
        );
    }
    assert_eq!(cluster.state("t", 0).unwrap(), before);

    // Nobody can lead: the preferred leader is away, and the only replica is down.
    cluster.crash(2).await;
    cluster.wait_state("lonely", 0, "led by nobody", |s| s.leader.is_none()).await;
    let not_available = ErrorCode::EligibleLeadersNotAvailable;
    let preferred = ErrorCode::PreferredLeaderNotAvailable;
    let lonely = json!({"topic_name": "lonely", "partition_id": 0});
    for _ in 0..2 {
        assert_eq!(elect_over_the_wire(&mut client, 2, 1, Some(&[("lonely", 0)])).await, one("lonely", not_available));
        assert_eq!(elect_over_the_wire(&mut client, 2, 1, None).await, one("lonely", not_available), "all leaderless");
        assert_eq!(elect_over_the_wire(&mut client, 0, 0, Some(&[("lonely", 0)])).await, one("lonely", preferred));
        for type_ in ["UNCLEAN", "PREFERRED"] {
            let body = json!({"election_type": type_, "partitions": [lonely], "validate_only": true});
            assert_eq!(refused(&cluster, 1, &body).await, (409, 40917), "{type_}");
        }
        assert_eq!(refused(&cluster, 1, &designated(to(2))).await, (409, 40917), "it is down");
        let all = json!({"election_type": "PREFERRED", "all": true});
        let (status, answer) = elect(&cluster, 3, &all).await;
        assert_eq!((status, &answer["results"][0]["result"]), (200, &json!("NOT_ELIGIBLE")), "{answer}");
    }
    let cli = highwater(&cluster, 1, &["partition", "elect", "nothing:0"]);
    assert_eq!(cli.status.code(), Some(3), "{}", text(&cli));
    let cli = highwater(&cluster, 1, &["partition", "elect", "t:x"]);
    assert_eq!(cli.status.code(), Some(2), "{}", text(&cli));
    let cli = highwater(&cluster, 1, &["partition", "elect", "--all", "--yes"]);
    assert_eq!(cli.status.code(), Some(4), "{}", text(&cli));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_go_home_by_themselves() {
    let settings = [("leader.imbalance.check.interval.seconds", "1")];
    let mut cluster = Cluster::start(3, &settings).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_1).await;
    cluster.crash(1).await;
    cluster.wait_state("t", 0, "led by another", |s| s.leader.is_some_and(|l| l.0 != 1)).await;
    cluster.start_node(1).await;
    let state = cluster.wait_state("t", 0, "led by its first replica", |s| s.leader == Some(BrokerId(1))).await;
    assert!(state.isr.contains(&BrokerId(1)));
    let history = cluster.history("t", 0);
    let last = history.iter().rev().find_map(|change| match change.kind {
        ChangeKind::Leader { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(last, Some(LeaderReason::Preferred));
    cluster.end().await;
}
