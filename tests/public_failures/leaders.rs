//! Leaders that move, stop and come back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use highwater_tests::client::{Client, EARLIEST, LATEST, batch, contents};
use highwater_tests::cluster::{Cluster, PATIENCE, told};
use highwater_tests::process::{Processes, Role};
use highwater_wire::ErrorCode;
use serde_json::json;

use crate::pipeline::{POLL, Pipeline, check_values};
use crate::{ALL, MIN_ISR_2, NOW};

#[tokio::test(flavor = "multi_thread")]
async fn b05_batches_behind_a_refused_one_are_refused_too_while_leaders_move() {
    const PRODUCERS: usize = 6;
    const MOVES: usize = 15;
    let cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_2).await;
    let addresses: Vec<SocketAddr> = (1..=3).map(|id| cluster.address(id)).collect();
    let refused = Arc::new(AtomicUsize::new(0));
    let enough = Arc::new(AtomicBool::new(false));
    let mut producers = Vec::new();
    for name in 0..PRODUCERS {
        let (addresses, refused, enough) = (addresses.clone(), refused.clone(), enough.clone());
        producers.push(tokio::spawn(Pipeline { addresses, name, refused, acked: Arc::default(), enough }.run()));
    }

    // The leader is another one as often as the cluster can.
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}/v3/clusters/-/elections", cluster.member(1).http_port);
    let until = Instant::now() + 2 * PATIENCE;
    let mut moved = 0;
    while moved < MOVES || refused.load(Ordering::Relaxed) < MOVES {
        assert!(Instant::now() < until, "{moved} moves, {refused:?} batches refused: too quiet to prove anything");
        let leader = cluster.state("t", 0).unwrap().leader.map_or(0, |leader| leader.0);
        let partitions = json!([{"topic_name": "t", "partition_id": 0, "leader_id": leader % 3 + 1}]);
        let body = json!({"election_type": "DESIGNATED", "partitions": partitions});
        let answer = http.post(&url).json(&body).send().await;
        moved += usize::from(answer.is_ok_and(|answer| answer.status().is_success()));
        tokio::time::sleep(POLL).await;
    }
    enough.store(true, Ordering::Relaxed);
    let mut sent = Vec::new();
    for producer in producers {
        sent.push(producer.await.unwrap());
    }
    println!("{moved} moves, {refused:?} batches refused, {sent:?} sent");

    cluster.wait_in_sync("t", 0, 3).await;
    let mut client = cluster.leader_client("t", 0).await;
    let values: Vec<String> =
        contents(&told(client.read_all("t", 0).await)).into_iter().map(|(_, value)| value).collect();
    for (name, count) in sent.iter().enumerate() {
        check_values(&values, name, *count);
    }
    assert_eq!(values.len(), sent.iter().map(|count| *count as usize).sum::<usize>());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b11_epochs_end_where_the_batches_say_on_the_leader_and_nowhere_else() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_2).await;
    // Epochs with three, two and no records.
    let mut expected = Vec::new();
    for count in [3, 2, 0, 1] {
        let epoch = cluster.state("t", 0).unwrap().leader_epoch.0;
        let leader = cluster.wait_leading("t", 0).await;
        let mut client = cluster.client(leader).await;
        for n in 0..count {
            assert_eq!(told(client.produce("t", 0, ALL, batch(NOW, &[&format!("{epoch}-{n}")])).await).error_code, 0);
        }
        expected.push((epoch, count));
        cluster.crash(leader).await;
        cluster.wait_state("t", 0, "led by another", |s| s.leader.is_some_and(|l| l.0 != leader)).await;
        cluster.start_node(leader).await;
        cluster.wait_in_sync("t", 0, 3).await;
    }
    let newest = cluster.state("t", 0).unwrap().leader_epoch.0;
    let leader = cluster.wait_leading("t", 0).await;
    let mut client = cluster.client(leader).await;
    let end = told(client.list_offset("t", 0, LATEST).await).offset;
    assert_eq!(end, 6);
    // R95: an epoch that has no record of its own ends where the next one begins, under the epoch before it.
    let mut reached = 0;
    let mut known = -1;
    for epoch in -1..=newest + 2 {
        let found = told(client.epoch_end("t", 0, epoch).await);
        let has = expected.iter().find(|(e, _)| *e == epoch).map(|(_, count)| *count);
        match has {
            Some(count) if count > 0 => {
                reached += count;
                known = epoch;
            }
            _ => {}
        }
        let right = match epoch {
            -1 => (-1, -1),
            epoch if epoch == newest => (newest, end),
            epoch if epoch > newest => (-1, -1),
            // Between: the largest epoch at or below it that has records.
            _ => (known, reached),
        };
        assert_eq!((found.leader_epoch, found.end_offset), right, "epoch {epoch} of {newest}: {found:?}");
    }
    let mut other = cluster.client(leader % 3 + 1).await;
    for epoch in -1..=newest + 2 {
        let code = told(other.epoch_end("t", 0, epoch).await).error_code;
        assert_eq!(code, ErrorCode::NotLeaderOrFollower.code(), "epoch {epoch} asked of a follower");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b09_a_follower_from_before_the_log_start_refills_joins_and_leads_from_there() {
    // Controllers of their own: two of three brokers will die.
    let roles = [[Role::Controller; 3], [Role::Broker; 3]].concat();
    let mut cluster = Cluster::start_roles(&roles, &[]).await;
    cluster.create_assigned("t", &[4, 5, 6], &[("min.insync.replicas", "1")]).await;
    let mut client = cluster.leader_client("t", 0).await;
    for n in 0..5 {
        assert_eq!(told(client.produce("t", 0, ALL, batch(NOW, &[&format!("old {n}")])).await).error_code, 0);
    }
    cluster.crash(6).await;
    cluster.wait_in_sync("t", 0, 2).await;
    for n in 0..5 {
        assert_eq!(told(client.produce("t", 0, ALL, batch(NOW, &[&format!("deleted {n}")])).await).error_code, 0);
    }
    assert_eq!(told(client.delete_records("t", 0, -1).await), Ok(10), "up to the watermark, with node 6 away");
    for n in 0..3 {
        assert_eq!(told(client.produce("t", 0, ALL, batch(NOW, &[&format!("kept {n}")])).await).error_code, 0);
    }
    cluster.start_node(6).await;
    cluster.wait_in_sync("t", 0, 3).await;
    cluster.crash(4).await;
    cluster.crash(5).await;
    cluster.wait_state("t", 0, "led by node 6", |s| s.leader.is_some_and(|l| l.0 == 6)).await;

    let mut client = cluster.leader_client("t", 0).await;
    cluster
        .wait_for("node 6 knows its watermark", async || {
            (cluster.client(6).await.list_offset("t", 0, LATEST).await.ok()?.offset == 13).then_some(())
        })
        .await;
    assert_eq!(told(client.list_offset("t", 0, EARLIEST).await).offset, 10);
    for offset in [0, 5, 9] {
        let fetched = told(client.fetch("t", 0, offset, Duration::ZERO).await);
        assert_eq!(fetched.error, ErrorCode::OffsetOutOfRange, "a consumer at {offset}");
    }
    let kept = contents(&told(client.read_all("t", 0).await));
    assert_eq!(kept, [(10, "kept 0".to_owned()), (11, "kept 1".to_owned()), (12, "kept 2".to_owned())]);
    assert_eq!(told(client.produce("t", 0, ALL, batch(NOW, &["new"])).await).base_offset, 13);
    for id in [4, 5] {
        cluster.start_node(id).await;
    }
    cluster.wait_in_sync("t", 0, 3).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b24_a_second_term_signal_or_a_kill_amid_a_stop_loses_nothing() {
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "t", 30, 3, MIN_ISR_2).await;
    let mut sent = 0;
    for round in 0..6 {
        let victim = round % 3 + 1;
        for partition in 0..30 {
            let id = leader(&cluster, partition).await;
            let address = (std::net::Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into();
            let mut client = Client::connect(address).await.unwrap();
            let answer = client.produce("t", partition as i32, ALL, batch(NOW, &[&round.to_string()])).await.unwrap();
            assert_eq!(answer.error_code, 0, "{answer:?}");
            sent += 1;
        }
        match round / 3 {
            0 => assert_eq!(cluster.terminate_twice(victim), Some(0), "a second SIGTERM is no other order"),
            _ => cluster.terminate_then_kill(victim),
        }
        cluster.start_node(victim);
        cluster.wait_ready().await;
        for partition in 0..30 {
            cluster
                .wait_state(victim % 3 + 1, "t", partition, "in sync again", |s| {
                    s["isr"].as_array().is_some_and(|isr| isr.len() == 3)
                })
                .await;
        }
    }
    let mut read = 0;
    for partition in 0..30 {
        let id = leader(&cluster, partition).await;
        let address = (std::net::Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into();
        let records = Client::connect(address).await.unwrap().read_all("t", partition as i32).await.unwrap();
        let values: Vec<String> = contents(&records).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["0", "1", "2", "3", "4", "5"], "partition {partition}");
        read += values.len();
    }
    assert_eq!(read, sent);
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

async fn leader(cluster: &Processes, partition: usize) -> usize {
    let state = cluster.wait_state(1, "t", partition, "led", |s| s["leader_id"].is_u64()).await;
    usize::try_from(state["leader_id"].as_u64().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn b29_a_node_that_has_not_applied_everything_calls_no_topic_unknown() {
    const TOPICS: usize = 100;
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    for n in 0..TOPICS {
        let body = json!({"topic_name": format!("t{n}"), "partitions_count": 1, "replication_factor": 3});
        let answer = cluster.http.post(cluster.url(n % 3 + 1, "/topics")).json(&body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 201);
    }
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.start_node(id);
    }
    // From the first moment that somebody answers until all are ready.
    let (mut asked, mut answered) = (0, 0);
    let ready = async |cluster: &Processes, id: usize| {
        let url = format!("http://127.0.0.1:{}/health/ready", cluster.node(id).http_port);
        cluster.http.get(url).send().await.is_ok_and(|answer| answer.status().is_success())
    };
    let until = Instant::now() + PATIENCE;
    loop {
        let mut all_ready = true;
        for id in 1..=3 {
            all_ready &= ready(&cluster, id).await;
            let name = format!("t{}", asked % TOPICS);
            asked += 1;
            let address = (std::net::Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into();
            if let Ok(mut client) = Client::connect(address).await
                && let Ok(metadata) = client.metadata(&name).await
            {
                answered += 1;
                let code = metadata.topics[0].error_code;
                assert_ne!(code, ErrorCode::UnknownTopicOrPartition.code(), "node {id} does not know {name}");
            }
            if let Ok((status, body)) = cluster.get(id, &format!("/topics/{name}")).await {
                assert_ne!(status, 404, "node {id} does not know {name}: {body}");
            }
        }
        if all_ready {
            break;
        }
        assert!(Instant::now() < until, "not ready within {PATIENCE:?}");
    }
    println!("{asked} times asked, {answered} times answered before all were ready");
    assert!(answered > 0);
}
