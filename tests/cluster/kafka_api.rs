//! What Kafka's own requests say of a cluster in which nothing breaks: sessions, offsets, epochs, names used again.

use highwater_tests::client::{
    Client, EARLIEST, LATEST, MAX_TIMESTAMP, batch, fetch_partition, fetch_request, fetch_topic, produce_request,
};
use highwater_tests::cluster::{Cluster, told};
use highwater_wire::messages::fetch_request::{FetchRequest, ForgottenTopic};
use highwater_wire::{BrokerId, ErrorCode, FetchResponse};

use super::{ALL, MIN_ISR_2, NOW, produce, read};

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_created_again_has_another_id_and_an_empty_log() {
    let cluster = Cluster::start(3, &[]).await;
    let first = cluster.create_topic("t", 1, 3, &[]).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", ALL, &["a", "b"]).await;
    let mut any = cluster.client(1).await;
    assert_eq!(told(any.delete_topic("t").await), 0);
    assert_eq!(told(any.delete_topic("t").await), ErrorCode::UnknownTopicOrPartition.code());
    cluster
        .wait("no node answers for it", || {
            cluster.running().iter().all(|&id| cluster.node(id).quorum().image().topic_named("t").is_none())
        })
        .await;
    let answer = told(client.produce("t", 0, ALL, batch(NOW, &["late"])).await);
    assert_eq!(answer.error_code, ErrorCode::UnknownTopicOrPartition.code());

    let (code, why) = told(any.create_topic("t", 1, 3, &[]).await);
    assert_eq!((code, why), (0, None));
    let (code, why) = told(any.create_topic("t", 1, 3, &[]).await);
    assert_eq!(code, ErrorCode::TopicAlreadyExists.code(), "{why:?}");
    cluster.wait_in_sync("t", 0, 3).await;
    assert_ne!(cluster.image().topic_named("t").unwrap().id, first.id);
    assert_eq!(read(&cluster, "t").await, []);
    let mut client = cluster.leader_client("t", 0).await;
    assert_eq!(produce(&mut client, "t", ALL, &["c"]).await, [(0, "c".to_owned())]);
    cluster.end().await;
}

/// (topic, partition, error, bytes of records) of an answer, in order.
fn listed(answer: &FetchResponse) -> Vec<(String, i32, ErrorCode, bool)> {
    let rows = answer.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|p| (topic.name.as_str().to_owned(), p.index, p.error, !p.records.is_empty()))
    });
    rows.collect()
}

fn incremental(id: i32, epoch: i32) -> FetchRequest {
    let mut request = fetch_request(vec![]);
    (request.session_id, request.session_epoch) = (id, epoch);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_session_says_only_what_changed() {
    const V: i16 = 12;
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_topic("t", 3, 1, &[]).await;
    let mut client = cluster.client(1).await;
    let ask = async |client: &mut Client, request: FetchRequest| told(client.ask(V, request).await);

    let mut full = incremental(0, 0);
    full.topics = vec![fetch_topic("t", (0..3).map(|p| fetch_partition(p, 0)).collect())];
    let answer = ask(&mut client, full).await;
    let id = answer.session_id;
    assert!(id > 0, "no session was opened");
    assert_eq!(listed(&answer).len(), 3, "a full fetch names every partition");

    // Nothing new: nothing said. One record: that partition alone, until the client says how far it is.
    assert_eq!(listed(&ask(&mut client, incremental(id, 1)).await), []);
    let mut writer = cluster.client(1).await;
    assert_eq!(told(writer.produce("t", 1, ALL, batch(NOW, &["a"])).await).error_code, 0);
    let data = ("t".to_owned(), 1, ErrorCode::None, true);
    assert_eq!(listed(&ask(&mut client, incremental(id, 2)).await), std::slice::from_ref(&data));
    assert_eq!(listed(&ask(&mut client, incremental(id, 3)).await), [data], "the offset did not move");
    let mut moved = incremental(id, 4);
    moved.topics = vec![fetch_topic("t", vec![fetch_partition(1, 1)])];
    assert_eq!(listed(&ask(&mut client, moved).await), []);

    // A fetch that waits is woken by a record for any of its partitions.
    let mut waiting = incremental(id, 5);
    waiting.max_wait_ms = 10_000;
    let (answer, ()) = tokio::join!(ask(&mut client, waiting), async {
        assert_eq!(told(writer.produce("t", 2, ALL, batch(NOW, &["b"])).await).error_code, 0);
    });
    assert_eq!(listed(&answer), [("t".to_owned(), 2, ErrorCode::None, true)]);

    // Forgotten partitions are not looked at any more.
    let mut forget = incremental(id, 6);
    let mut gone = ForgottenTopic::default();
    gone.topic = "t".into();
    gone.partitions = vec![2];
    forget.forgotten_topics_data = vec![gone];
    assert_eq!(listed(&ask(&mut client, forget).await), []);

    // R86: a wrong epoch and an unknown id are told; the session survives the former.
    assert_eq!(ask(&mut client, incremental(id, 6)).await.error, ErrorCode::InvalidFetchSessionEpoch);
    assert_eq!(ask(&mut client, incremental(id + 1, 1)).await.error, ErrorCode::FetchSessionIdNotFound);
    assert_eq!(ask(&mut client, incremental(id, 7)).await.error, ErrorCode::None);
    // −1 closes it.
    assert_eq!(ask(&mut client, incremental(id, -1)).await.session_id, 0);
    assert_eq!(ask(&mut client, incremental(id, 8)).await.error, ErrorCode::FetchSessionIdNotFound);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_found_by_time() {
    let cluster = Cluster::start(3, &[]).await;
    cluster.create_topic("t", 1, 3, &[]).await;
    let mut client = cluster.leader_client("t", 0).await;
    for (n, time) in [100, 200, 400, 300].into_iter().enumerate() {
        let sent = batch(NOW + time, &[&format!("{n}-a"), &format!("{n}-b")]);
        assert_eq!(told(client.produce("t", 0, ALL, sent).await).error_code, 0);
    }
    for (asked, offset, time) in [
        (EARLIEST, 0, -1),
        (LATEST, 8, -1),
        (0, 0, NOW + 100),
        (NOW + 100, 0, NOW + 100),
        (NOW + 101, 2, NOW + 200),
        (NOW + 201, 4, NOW + 400),
        (NOW + 400, 4, NOW + 400),
        (NOW + 401, -1, -1),
        (MAX_TIMESTAMP, 4, NOW + 400),
    ] {
        let found = told(client.list_offset("t", 0, asked).await);
        assert_eq!((found.error_code, found.offset, found.timestamp), (0, offset, time), "asked for {asked}");
    }
    // Only the leader answers (R92).
    let leader = cluster.wait_leading("t", 0).await;
    let mut other = cluster.client(leader % 3 + 1).await;
    assert_eq!(told(other.list_offset("t", 0, LATEST).await).error_code, ErrorCode::NotLeaderOrFollower.code());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_the_wrong_broker_or_with_another_epoch_is_told_where_to_go() {
    let mut cluster = Cluster::start(3, &[]).await;
    cluster.create_assigned("t", &[1, 2, 3], MIN_ISR_2).await;
    let mut client = cluster.leader_client("t", 0).await;
    produce(&mut client, "t", ALL, &["a"]).await;
    cluster.stop(1).await;
    let leader = cluster.wait_leading("t", 0).await;
    let epoch = cluster.state("t", 0).unwrap().leader_epoch.0;
    let other = 5 - leader;
    cluster
        .wait("the follower knows its leader", || {
            let image = cluster.node(other).quorum().image();
            image.version == cluster.image().version
        })
        .await;

    // R54: error 6 names the leader, its epoch and its address.
    let mut wrong = cluster.client(other).await;
    let answer = told(wrong.ask(10, produce_request("t", 0, ALL, Some(batch(NOW, &["x"])))).await);
    let partition = &answer.responses[0].partition_responses[0];
    assert_eq!(partition.error_code, ErrorCode::NotLeaderOrFollower.code());
    assert_eq!((partition.current_leader.leader_id, partition.current_leader.leader_epoch), (leader, epoch));
    let endpoint = answer.node_endpoints.first().expect("the leader's address");
    assert_eq!((endpoint.node_id, endpoint.port), (leader, i32::from(cluster.member(leader).kafka_port)));
    assert_eq!(told(wrong.epoch_end("t", 0, 0).await).error_code, ErrorCode::NotLeaderOrFollower.code());

    // R72, in this order: epoch first, leader second.
    let mut right = cluster.client(leader).await;
    let ask = async |client: &mut Client, current: i32| {
        let mut partition = fetch_partition(0, 0);
        partition.current_leader_epoch = current;
        let answer = told(client.ask(12, fetch_request(vec![fetch_topic("t", vec![partition])])).await);
        answer.topics[0].partitions[0].clone()
    };
    assert_eq!(ask(&mut right, epoch).await.error, ErrorCode::None);
    let fenced = ask(&mut right, epoch - 1).await;
    assert_eq!((fenced.error, fenced.records.len()), (ErrorCode::FencedLeaderEpoch, 0));
    // From v16 on 74 names the leader too; topics then go by id.
    let mut partition = fetch_partition(0, 0);
    partition.current_leader_epoch = epoch - 1;
    let mut by_id = fetch_topic("", vec![partition]);
    by_id.topic_id = cluster.at("t", 0).unwrap().topic.into();
    let answer = told(right.ask(16, fetch_request(vec![by_id])).await);
    let fenced = &answer.topics[0].partitions[0];
    assert_eq!(fenced.error, ErrorCode::FencedLeaderEpoch);
    let current = fenced.current_leader.expect("beside 74 stands who leads");
    assert_eq!((current.leader, current.epoch.0), (Some(BrokerId(leader)), epoch));
    assert_eq!(ask(&mut right, epoch + 1).await.error, ErrorCode::UnknownLeaderEpoch);
    assert_eq!(ask(&mut wrong, epoch - 1).await.error, ErrorCode::FencedLeaderEpoch);
    // From v11 a follower serves consumers, bounded by its own watermark (R70).
    assert_eq!(ask(&mut wrong, epoch).await.error, ErrorCode::None);
    let old = told(wrong.ask(10, fetch_request(vec![fetch_topic("t", vec![fetch_partition(0, 0)])])).await);
    assert_eq!(old.topics[0].partitions[0].error, ErrorCode::NotLeaderOrFollower);
    assert_eq!(read(&cluster, "t").await, [(0, "a".to_owned())]);
    cluster.end().await;
}
