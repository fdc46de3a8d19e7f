//! Pages of partitions, of an image that the rules made.

use std::collections::BTreeMap;

use highwater_quorum::controller::{CreateTopic, DataClaim, FencedBroker, RULE_VERSION, RegisterBroker};
use highwater_quorum::image::{Endpoint, ImageVersion};
use highwater_quorum::{Answer, Command, decide};
use highwater_wire::{BrokerEpoch, DirectoryId, IncarnationId, Timestamp, TopicId};
use kafka_wire::describe_topic_partitions_request::{Cursor as AskedCursor, TopicRequest};

use super::*;

const TIME: Timestamp = Timestamp(1);

fn run(image: &mut MetadataImage, command: &Command) -> Answer {
    let index = image.version.0 + 1;
    let decision = decide(image, index, RULE_VERSION, command).unwrap();
    image.apply_all(&decision.changes);
    image.version = ImageVersion(index);
    decision.answer
}

/// Brokers 1 to 3, of which 3 has no address on the callers' listener, and these topics of one replica set.
fn image(topics: &[(&str, usize)]) -> MetadataImage {
    let mut image = MetadataImage::default();
    run(&mut image, &Command::FormCluster { cluster_id: "c".to_owned(), feature_level: 1, time: TIME });
    for id in 1..=3u8 {
        let broker = BrokerId(i32::from(id));
        let listener = if id == 3 { "INTERNAL" } else { "PLAINTEXT" };
        let endpoint = Endpoint { host: format!("n{id}"), port: 9092 };
        let registration = RegisterBroker {
            broker,
            cluster_id: "c".to_owned(),
            incarnation: IncarnationId::from_bytes([id; 16]),
            listeners: BTreeMap::from([(listener.to_owned(), endpoint)]),
            inter_broker_listener: listener.to_owned(),
            controller_url: format!("http://n{id}:9093"),
            admin_url: String::new(),
            rack: None,
            log_dirs: vec![DirectoryId::from_bytes([id + 10; 16])],
            metadata_dir: DirectoryId::from_bytes([id + 20; 16]),
            features: BTreeMap::new(),
            version: "0".to_owned(),
            claim: DataClaim::Nothing,
            previous_is_dead: false,
            time: TIME,
        };
        let Answer::Registered { epoch } = run(&mut image, &Command::RegisterBroker(registration)) else { panic!() };
        run(&mut image, &Command::UnfenceBroker { broker, epoch, lost: vec![], time: TIME });
    }
    for (n, (name, partitions)) in (1u8..).zip(topics) {
        let creation = CreateTopic {
            id: TopicId::from_bytes([n; 16]),
            name: (*name).to_owned(),
            configs: BTreeMap::from([("min.insync.replicas".to_owned(), "2".to_owned())]),
            first_partition: 0,
            assignments: vec![[1, 2, 3].map(BrokerId).to_vec(); *partitions],
            complete: true,
            manual: true,
            time: TIME,
        };
        run(&mut image, &Command::CreateTopic(creation));
    }
    image
}

fn fence(image: &mut MetadataImage, brokers: &[i32]) {
    let epoch = |id: i32| image.broker(BrokerId(id)).map_or(BrokerEpoch(0), |broker| broker.epoch);
    let fenced = |id: &i32| FencedBroker { broker: BrokerId(*id), epoch: epoch(*id), note: String::new() };
    let brokers = brokers.iter().map(fenced).collect();
    run(image, &Command::FenceBrokers { brokers, watermarks: vec![], time: TIME });
}

fn caller() -> Caller {
    Caller { listener: "PLAINTEXT".into(), inter_broker: false, peer: ([127, 0, 0, 1], 1).into() }
}

fn ask(topics: &[&str], limit: i32, cursor: Option<(&str, i32)>) -> DescribeTopicPartitionsRequest {
    let mut request = DescribeTopicPartitionsRequest::default();
    let named = topics.iter().map(|name| {
        let mut topic = TopicRequest::default();
        topic.name = StrBytes::from(*name);
        topic
    });
    request.topics = named.collect();
    request.response_partition_limit = limit;
    request.cursor = cursor.map(|(topic, partition)| {
        let mut cursor = AskedCursor::default();
        cursor.topic_name = StrBytes::from(topic);
        cursor.partition_index = partition;
        cursor
    });
    request
}

/// (name, error, numbers of the partitions) of each topic, and the cursor.
type Page = (Vec<(String, i16, Vec<i32>)>, Option<(String, i32)>);

fn told(image: &MetadataImage, request: &DescribeTopicPartitionsRequest) -> Page {
    let response = page(image, &caller(), request);
    let topics = response.topics.iter().map(|topic| {
        let numbers = topic.partitions.iter().map(|partition| partition.partition_index).collect();
        (topic.name.as_ref().unwrap().as_str().to_owned(), topic.error_code, numbers)
    });
    let cursor = response.next_cursor.as_ref();
    (topics.collect(), cursor.map(|cursor| (cursor.topic_name.as_str().to_owned(), cursor.partition_index)))
}

fn row(name: &str, error: i16, numbers: &[i32]) -> (String, i16, Vec<i32>) {
    (name.to_owned(), error, numbers.to_vec())
}

#[test]
fn pages_follow_each_other_without_gap_or_repetition() {
    let image = image(&[("b", 3), ("a", 2), ("c", 1)]);
    let all = [row("a", 0, &[0, 1]), row("b", 0, &[0, 1, 2]), row("c", 0, &[0])];
    assert_eq!(told(&image, &ask(&[], 100, None)), (all.to_vec(), None));
    for limit in -1..=7 {
        let (mut seen, mut cursor) = (Vec::new(), None::<(String, i32)>);
        for page in 0.. {
            let from = cursor.as_ref().map(|(topic, partition)| (topic.as_str(), *partition));
            let (topics, next) = told(&image, &ask(&[], limit, from));
            let rows: Vec<_> =
                topics.iter().flat_map(|(name, _, numbers)| numbers.iter().map(|n| (name.clone(), *n))).collect();
            assert!(rows.len() <= usize::try_from(limit).unwrap_or(0).max(1), "limit {limit}, page {page}: {rows:?}");
            seen.extend(rows);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        let expected: Vec<_> =
            all.iter().flat_map(|(name, _, numbers)| numbers.iter().map(|n| (name.clone(), *n))).collect();
        assert_eq!(seen, expected, "limit {limit}");
    }
    let full = told(&image, &ask(&[], 2, None));
    assert_eq!(full, (vec![row("a", 0, &[0, 1])], Some(("b".to_owned(), 0))), "the cursor says what comes next");
}

#[test]
fn named_topics_come_in_order_and_what_does_not_exist_is_told_as_an_error() {
    let image = image(&[("b", 1), ("a", 1)]);
    let request = ask(&["b", "nobody", "a", "not a name"], 100, None);
    let expected = [row("a", 0, &[0]), row("b", 0, &[0]), row("nobody", 3, &[]), row("not a name", 17, &[])];
    assert_eq!(told(&image, &request), (expected.to_vec(), None));
    // The topic of a cursor may be gone by now.
    assert_eq!(told(&image, &ask(&[], 100, Some(("aa", 7)))), (vec![row("b", 0, &[0])], None));
    assert_eq!(told(&image, &ask(&["a", "b"], 100, Some(("b", 0)))), (vec![row("b", 0, &[0])], None));
}

#[test]
fn a_cursor_that_does_not_fit_the_request_is_refused() {
    let image = image(&[("a", 1), ("b", 1)]);
    for (topics, cursor) in [(&["a"][..], ("b", 0)), (&["a"], ("a", -1))] {
        assert_eq!(told(&image, &ask(topics, 100, Some(cursor))), (vec![row("a", 42, &[])], None), "{cursor:?}");
    }
    assert_eq!(told(&image, &ask(&[], 100, Some(("a", -1)))), (vec![], None));
    assert_eq!(told(&image, &ask(&[], 100, Some(("a", 9)))), (vec![row("a", 0, &[]), row("b", 0, &[0])], None));
}

#[test]
fn replicas_that_may_lead_without_loss_are_told() {
    let mut image = image(&[("a", 1)]);
    fence(&mut image, &[1]);
    fence(&mut image, &[2]);
    let response = page(&image, &caller(), &ask(&["a"], 100, None));
    let partition = &response.topics[0].partitions[0];
    // Broker 3 leads, but where callers of this listener cannot reach it.
    assert_eq!((partition.error_code, partition.leader_id), (ErrorCode::ListenerNotFound.code(), -1));
    assert_eq!(partition.isr_nodes, [3]);
    assert_eq!(partition.eligible_leader_replicas.as_deref(), Some(&[2][..]), "it left below min ISR");
    assert_eq!(partition.offline_replicas, [1, 2, 3]);
    fence(&mut image, &[3]);
    let response = page(&image, &caller(), &ask(&["a"], 100, None));
    let partition = &response.topics[0].partitions[0];
    assert_eq!((partition.error_code, partition.leader_id), (ErrorCode::LeaderNotAvailable.code(), -1));
    assert_eq!(partition.last_known_elr.as_deref(), Some(&[3][..]));
}
