//! Configurations that change while the cluster runs (R187): in force without a restart, kept over restarts, told with
//! their sources; what cannot be is refused and changes nothing.

#![allow(clippy::unwrap_used)] // in the helpers of tests too

use std::time::Duration;

use highwater_tests::client::{Client, EARLIEST, LATEST, batch};
use highwater_tests::cluster::{Cluster, told};
use highwater_wire::ErrorCode;
use kafka_wire::alter_configs_request::{AlterConfigsResource as ReplacedResource, AlterableConfig as ReplacedConfig};
use kafka_wire::describe_configs_request::DescribeConfigsResource;
use kafka_wire::describe_configs_response::DescribeConfigsResourceResult;
use kafka_wire::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_wire::{AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest};
use serde_json::{Value, json};

const ALL: i16 = -1;
const NOW: i64 = 1_760_000_000_000;
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;

/// One resource of a request: type, name, and (key, operation, value).
type Asked<'a> = (i8, &'a str, &'a [(&'a str, i8, Option<&'a str>)]);

/// A call that is refused: method, path, body, and (status, error_code).
type Refused<'a> = (&'a str, &'a str, Option<Value>, (u16, u32));

/// Error codes and messages by resource.
async fn alter(client: &mut Client, validate_only: bool, asked: &[Asked<'_>]) -> Vec<(i16, String)> {
    let mut request = IncrementalAlterConfigsRequest::default();
    request.validate_only = validate_only;
    for (kind, name, operations) in asked {
        let mut resource = AlterConfigsResource::default();
        resource.resource_type = *kind;
        resource.resource_name = (*name).into();
        for (key, operation, value) in *operations {
            let mut config = AlterableConfig::default();
            config.name = (*key).into();
            config.config_operation = *operation;
            config.value = value.map(Into::into);
            resource.configs.push(config);
        }
        request.resources.push(resource);
    }
    let answer = told(client.ask(1, request).await);
    let message =
        |told: &Option<highwater_wire::StrBytes>| told.as_ref().map_or(String::new(), |text| text.as_str().to_owned());
    answer.responses.iter().map(|one| (one.error_code, message(&one.error_message))).collect()
}

/// Sets one key and insists.
async fn set(client: &mut Client, kind: i8, name: &str, key: &str, value: Option<&str>) {
    let operation = if value.is_some() { SET } else { DELETE };
    let done = alter(client, false, &[(kind, name, &[(key, operation, value)])]).await;
    assert_eq!(done[0].0, 0, "{name} {key}: {done:?}");
}

async fn describe(
    client: &mut Client,
    kind: i8,
    name: &str,
    keys: Option<&[&str]>,
) -> Result<Vec<DescribeConfigsResourceResult>, (i16, String)> {
    let mut resource = DescribeConfigsResource::default();
    resource.resource_type = kind;
    resource.resource_name = name.into();
    resource.configuration_keys = keys.map(|keys| keys.iter().map(|key| (*key).into()).collect());
    let mut request = DescribeConfigsRequest::default();
    request.resources = vec![resource];
    request.include_synonyms = true;
    request.include_documentation = true;
    let answer = told(client.ask(4, request).await).results.remove(0);
    match answer.error_code {
        0 => Ok(answer.configs),
        code => Err((code, answer.error_message.map_or(String::new(), |text| text.as_str().to_owned()))),
    }
}

/// Value, source and what stands behind it, of one key.
async fn one(client: &mut Client, kind: i8, name: &str, key: &str) -> (Option<String>, i8, Vec<(String, i8)>) {
    let entries = describe(client, kind, name, Some(&[key])).await.unwrap();
    assert_eq!(entries.len(), 1, "{key}: {entries:?}");
    let text = |value: &Option<highwater_wire::StrBytes>| value.as_ref().map(|text| text.as_str().to_owned());
    let synonyms = entries[0].synonyms.iter().map(|s| (s.name.as_str().to_owned(), s.source)).collect();
    (text(&entries[0].value), entries[0].config_source, synonyms)
}

async fn produce(client: &mut Client, topic: &str, bytes: usize) -> i16 {
    told(client.produce(topic, 0, ALL, batch(NOW, &["x".repeat(bytes).as_str()])).await).error_code
}

/// All that is set on topics and brokers, as the quorum has it.
fn everything_set(cluster: &Cluster) -> String {
    let image = cluster.image();
    let topics: Vec<_> = image.topics.values().map(|topic| (&topic.name, &topic.config, &topic.inherited)).collect();
    format!("{topics:?} {:?}", image.broker_configs)
}

async fn call(
    cluster: &Cluster,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Value>,
) -> (u16, reqwest::header::HeaderMap, Value) {
    let port = cluster.member(1).http_port;
    let url = format!("http://127.0.0.1:{port}/v3/clusters/-{path}");
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = http.request(method.parse().unwrap(), url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let bytes = answer.bytes().await.unwrap();
    (status, headers, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_topic_are_in_force_at_once_and_survive_a_restart_of_all_nodes() {
    let mut cluster =
        Cluster::start(3, &[("log.retention.check.interval.ms", "100"), ("log.retention.ms", "-1")]).await;
    cluster.create_assigned("t", &[1, 2, 3], &[]).await;
    let mut client = cluster.leader_client("t", 0).await;
    assert_eq!(
        one(&mut client, TOPIC, "t", "min.insync.replicas").await.1,
        5,
        "ours for three replicas: nobody set it"
    );

    set(&mut client, TOPIC, "t", "max.message.bytes", Some("500")).await;
    assert_eq!(produce(&mut client, "t", 1_000).await, ErrorCode::MessageTooLarge.code());
    set(&mut client, TOPIC, "t", "max.message.bytes", None).await;
    assert_eq!(produce(&mut client, "t", 1_000).await, 0);

    // Segments and retention.
    let small = [("segment.bytes", SET, Some("4096")), ("retention.bytes", SET, Some("8192"))];
    assert_eq!(alter(&mut client, false, &[(TOPIC, "t", &small)]).await[0].0, 0);
    cluster
        .wait_for("old segments go on every replica", async || {
            let mut client = cluster.leader_client("t", 0).await;
            assert_eq!(produce(&mut client, "t", 1_000).await, 0);
            let start = told(client.list_offset("t", 0, EARLIEST).await).offset;
            (start > 0).then_some(())
        })
        .await;

    // Min ISR: more than there are in sync refuses, and lowering it again lets go on.
    set(&mut client, TOPIC, "t", "min.insync.replicas", Some("3")).await;
    assert_eq!(produce(&mut client, "t", 10).await, 0);
    cluster.stop(3).await;
    cluster.wait_in_sync("t", 0, 2).await;
    let too_few = ErrorCode::NotEnoughReplicas.code();
    cluster.wait_for("too few in sync", async || (produce(&mut client, "t", 10).await == too_few).then_some(())).await;
    set(&mut client, TOPIC, "t", "min.insync.replicas", Some("2")).await;
    cluster.wait_for("enough again", async || (produce(&mut client, "t", 10).await == 0).then_some(())).await;
    assert!(cluster.state("t", 0).unwrap().elr.is_empty(), "R196");

    // On all brokers and on one; kept, like the topic's, by every node over its restart.
    set(&mut client, BROKER, "", "log.retention.ms", Some("9000000000000")).await;
    set(&mut client, BROKER, "2", "max.connections", Some("77")).await;
    cluster.start_node(3).await;
    cluster.wait_in_sync("t", 0, 3).await;
    cluster.stop_all().await;
    for id in 1..=3 {
        cluster.begin(id).await;
    }
    cluster.wait_serving().await;
    for id in 1..=3 {
        let mut client = cluster.client(id).await;
        let (value, source, behind) = one(&mut client, TOPIC, "t", "retention.bytes").await;
        assert_eq!((value.as_deref(), source), (Some("8192"), 1));
        assert_eq!(behind, [("retention.bytes".to_owned(), 1), ("log.retention.bytes".to_owned(), 5)]);
        let (value, source, _) = one(&mut client, TOPIC, "t", "retention.ms").await;
        assert_eq!((value.as_deref(), source), (Some("9000000000000"), 3));
        let (value, source, _) = one(&mut client, BROKER, &id.to_string(), "max.connections").await;
        let expected = if id == 2 { (Some("77"), 2) } else { (Some("2147483647"), 5) };
        assert_eq!((value.as_deref(), source), expected, "broker {id}");
    }
    let end = told(cluster.leader_client("t", 0).await.list_offset("t", 0, LATEST).await).offset;
    assert!(end > 8, "{end}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_brokers_settings_are_told_with_their_sources_and_what_needs_a_restart_waits_for_it() {
    let mut cluster = Cluster::start(1, &[("fetch.max.bytes", "500000"), ("log.retention.ms", "-1")]).await;
    cluster.create_topic("t", 1, 1, &[]).await;
    let mut client = cluster.client(1).await;
    for _ in 0..5 {
        assert_eq!(produce(&mut client, "t", 1_000).await, 0);
    }
    set(&mut client, BROKER, "", "fetch.max.bytes", Some("400000")).await;
    set(&mut client, BROKER, "1", "fetch.max.bytes", Some("1024")).await;
    let (value, source, behind) = one(&mut client, BROKER, "1", "fetch.max.bytes").await;
    assert_eq!((value.as_deref(), source), (Some("1024"), 2));
    assert_eq!(behind.iter().map(|(_, source)| *source).collect::<Vec<_>>(), [2, 3, 4, 5]);
    let fetched = async |client: &mut Client| told(client.fetch("t", 0, 0, Duration::ZERO).await).records.len();
    cluster.wait_for("small answers", async || (fetched(&mut client).await < 2_000).then_some(())).await;
    set(&mut client, BROKER, "1", "fetch.max.bytes", None).await;
    cluster.wait_for("whole answers", async || (fetched(&mut client).await > 5_000).then_some(())).await;

    set(&mut client, BROKER, "1", "num.replica.fetchers", Some("2")).await;
    let effective = async |cluster: &Cluster, key: &str| {
        let (status, _, list) =
            call(cluster, "GET", &format!("/brokers/1/configs:effective?name={key}"), &[], None).await;
        assert_eq!(status, 200, "{list}");
        list["data"][0].clone()
    };
    let pending = effective(&cluster, "num.replica.fetchers").await;
    assert_eq!((&pending["value"], &pending["pending_value"]), (&json!("1"), &json!("2")), "{pending}");
    assert_eq!(
        (&pending["pending_restart"], &pending["source"]),
        (&json!(true), &json!("DEFAULT_CONFIG")),
        "{pending}"
    );
    assert_eq!(call(&cluster, "GET", "/health", &[], None).await.2["pending_restart"], json!([1]));
    let own = effective(&cluster, "fetch.max.bytes").await;
    assert_eq!((&own["value"], &own["own_value"]), (&json!("400000"), &json!("500000")), "{own}");
    assert!(own["location"].as_str().unwrap().starts_with("server.properties:"), "{own}");
    cluster.stop(1).await;
    cluster.start_node(1).await;
    let taken = effective(&cluster, "num.replica.fetchers").await;
    assert_eq!((&taken["value"], &taken["pending_restart"]), (&json!("2"), &json!(false)), "{taken}");
    assert_eq!(taken["source"], "DYNAMIC_BROKER_CONFIG", "{taken}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_change_over_http_as_rest_v3_has_it() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_topic("t", 1, 1, &[("retention.ms", "1000000")]).await;
    let key = "/topics/t/configs/retention.ms";
    let (status, headers, read) = call(&cluster, "GET", key, &[], None).await;
    assert_eq!((status, &read["is_read_only"], &read["source"]), (200, &json!(false), &json!("DYNAMIC_TOPIC_CONFIG")));
    let tag = headers["etag"].to_str().unwrap().to_owned();
    let body = || Some(json!({ "value": "2000000" }));
    assert_eq!(call(&cluster, "PUT", key, &[("if-match", &tag)], body()).await.0, 204);
    let (status, _, told) =
        call(&cluster, "PUT", key, &[("if-match", &tag)], Some(json!({ "value": "3000000" }))).await;
    assert_eq!((status, &told["error_code"]), (409, &json!(40911)), "{told}");
    let several = json!({ "data": [{ "name": "retention.ms", "value": "3000000" }] });
    for (path, refused) in [("t", (409, 40911)), ("-", (422, 42206))] {
        let path = format!("/topics/{path}/configs:alter");
        let (status, _, told) = call(&cluster, "POST", &path, &[("if-match", &tag)], Some(several.clone())).await;
        assert_eq!((status, told["error_code"].as_u64()), (refused.0, Some(refused.1)), "{path}: {told}");
    }
    assert_eq!(call(&cluster, "GET", key, &[], None).await.2["value"], "2000000");
    assert_eq!(call(&cluster, "DELETE", key, &[], None).await.0, 204);
    assert_eq!(call(&cluster, "DELETE", key, &[], None).await.0, 204, "safe to repeat");
    assert_eq!(call(&cluster, "GET", key, &[], None).await.2["source"], "DEFAULT_CONFIG");

    let alter =
        json!({ "data": [{ "name": "retention.ms", "value": "5000" }, { "name": "flush.ms", "operation": "DELETE" }] });
    let mut dry = alter.clone();
    dry["validate_only"] = json!(true);
    for (path, body, after) in [("t", &dry, "604800000"), ("-", &dry, "604800000"), ("-", &alter, "5000")] {
        assert_eq!(
            call(&cluster, "POST", &format!("/topics/{path}/configs:alter"), &[], Some(body.clone())).await.0,
            204
        );
        assert_eq!(call(&cluster, "GET", key, &[], None).await.2["value"], after, "{path} {body}");
    }
    assert_eq!(
        call(&cluster, "PUT", "/broker-configs/log.segment.bytes", &[], Some(json!({ "value": "5000" }))).await.0,
        204
    );
    let (_, _, list) = call(&cluster, "GET", "/broker-configs", &[], None).await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    let (_, _, segment) = call(&cluster, "GET", "/topics/t/configs/segment.bytes", &[], None).await;
    assert_eq!((&segment["value"], &segment["source"]), (&json!("5000"), &json!("DYNAMIC_DEFAULT_BROKER_CONFIG")));
    assert_eq!(
        call(&cluster, "PUT", "/brokers/1/configs/fetch.max.bytes", &[], Some(json!({ "value": "5000" }))).await.0,
        204
    );
    let (_, _, fetch) = call(&cluster, "GET", "/brokers/1/configs/fetch.max.bytes", &[], None).await;
    assert_eq!((&fetch["value"], &fetch["source"]), (&json!("5000"), &json!("DYNAMIC_BROKER_CONFIG")), "{fetch}");
    let (_, _, all) = call(&cluster, "GET", "/brokers/-/configs", &[], None).await;
    assert!(all["data"].as_array().unwrap().len() > 50);
    let (_, _, schema) = call(&cluster, "GET", "/config-schema?name=log.retention.ms", &[], None).await;
    assert_eq!(
        (&schema["data"][0]["takes_effect"], &schema["data"][0]["synonym"]),
        (&json!("AT_ONCE"), &json!("retention.ms"))
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_set_is_refused_with_kafkas_code_and_changes_nothing() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_topic("t", 1, 1, &[]).await;
    cluster.create_topic("u", 1, 1, &[]).await;
    let mut client = cluster.client(1).await;
    let before = everything_set(&cluster);
    let good = ("retention.ms", SET, Some("5000"));
    let long = "9".repeat(30_000);
    // Beyond what strings of the old versions can be.
    let longer = format!("{}5", "0".repeat(39_999));
    let cases: &[(Asked<'_>, ErrorCode, &str)] = &[
        (
            (TOPIC, "t", &[good, ("segment.bytes", SET, Some("10"))]),
            ErrorCode::InvalidConfig,
            "from 1024 to 2147483647",
        ),
        (
            (TOPIC, "t", &[good, ("retension.ms", SET, Some("1"))]),
            ErrorCode::InvalidConfig,
            "did you mean \"retention.ms\"?",
        ),
        ((TOPIC, "t", &[("retention.ms", SET, Some(&long))]), ErrorCode::InvalidConfig, "a whole number"),
        ((TOPIC, "t", &[("retention.ms", APPEND, Some("1"))]), ErrorCode::InvalidConfig, "not a list"),
        ((TOPIC, "t", &[("retention.ms", SET, None)]), ErrorCode::InvalidRequest, "no value"),
        ((TOPIC, "t", &[("retention.ms", 9, Some("1"))]), ErrorCode::InvalidRequest, "operation 9"),
        ((TOPIC, "t", &[good, good]), ErrorCode::InvalidRequest, "named twice"),
        ((TOPIC, "nobody", &[good]), ErrorCode::UnknownTopicOrPartition, "nobody"),
        ((TOPIC, "a b", &[good]), ErrorCode::InvalidTopicException, "a b"),
        ((BROKER, "7", &[("max.connections", SET, Some("5"))]), ErrorCode::BrokerIdNotRegistered, "7"),
        ((BROKER, "x", &[("max.connections", SET, Some("5"))]), ErrorCode::InvalidRequest, "named by its id"),
        ((BROKER, "1", &[("node.id", SET, Some("5"))]), ErrorCode::InvalidRequest, "cannot update node.id dynamically"),
        (
            (BROKER, "1", &[("min.insync.replicas", SET, Some("1"))]),
            ErrorCode::InvalidRequest,
            "replicas on different brokers",
        ),
        ((BROKER, "", &[("max.connections", SET, Some("0"))]), ErrorCode::InvalidRequest, "from 1 to"),
        ((TOPIC, "t", &[good, ("segment.bytes", SET, Some(&longer))]), ErrorCode::InvalidConfig, "has 40000 bytes"),
        ((TOPIC, "t", &[(&longer, SET, Some("1"))]), ErrorCode::InvalidConfig, "the key"),
        ((TOPIC, &longer, &[good]), ErrorCode::InvalidTopicException, "…"),
        ((BROKER, "1", &[("max.connections", SET, Some(&longer))]), ErrorCode::InvalidRequest, "has 40000 bytes"),
        ((LOGGER, "1", &[("root", SET, Some(&longer))]), ErrorCode::InvalidConfig, "must be FATAL"),
        ((99, "1", &[good]), ErrorCode::InvalidRequest, "resource type 99"),
    ];
    for (asked, code, words) in cases {
        for validate_only in [true, false] {
            let told = alter(&mut client, validate_only, &[*asked]).await;
            assert_eq!(told.len(), 1);
            assert_eq!(told[0].0, code.code(), "{} {:?}: {}", asked.0, asked.1, told[0].1);
            assert!(told[0].1.contains(words), "{:?}: {}", asked.1, told[0].1);
        }
    }
    assert_eq!(alter(&mut client, true, &[(TOPIC, "t", &[good])]).await[0].0, 0);
    let twice = alter(&mut client, false, &[(TOPIC, "t", &[good]), (TOPIC, "t", &[good])]).await;
    assert_eq!(twice.iter().map(|told| told.0).collect::<Vec<_>>(), [ErrorCode::InvalidRequest.code()]);
    let mut replace = AlterConfigsRequest::default();
    let mut resource = ReplacedResource::default();
    (resource.resource_type, resource.resource_name) = (TOPIC, "t".into());
    let mut nothing = ReplacedConfig::default();
    (nothing.name, nothing.value) = ("retention.ms".into(), None);
    resource.configs = vec![nothing];
    replace.resources = vec![resource.clone()];
    let answer = told(client.ask(2, replace.clone()).await);
    assert_eq!(answer.responses[0].error_code, ErrorCode::InvalidRequest.code(), "{answer:?}");
    assert_eq!(everything_set(&cluster), before);

    // One resource that is refused does not touch the other.
    let bad = ("segment.bytes", SET, Some("1"));
    let both = alter(&mut client, false, &[(TOPIC, "t", &[good, bad]), (TOPIC, "u", &[good])]).await;
    assert_eq!(both.iter().map(|told| told.0).collect::<Vec<_>>(), [ErrorCode::InvalidConfig.code(), 0]);
    assert_eq!(one(&mut client, TOPIC, "t", "retention.ms").await.1, 5);
    assert_eq!(one(&mut client, TOPIC, "u", "retention.ms").await.1, 1);
    // The old request replaces everything.
    let mut segment = ReplacedConfig::default();
    (segment.name, segment.value) = ("segment.bytes".into(), Some("5000".into()));
    (resource.resource_name, resource.configs) = ("u".into(), vec![segment]);
    replace.resources = vec![resource];
    assert_eq!(told(client.ask(2, replace).await).responses[0].error_code, 0);
    assert_eq!(one(&mut client, TOPIC, "u", "retention.ms").await.1, 5);
    assert_eq!(one(&mut client, TOPIC, "u", "segment.bytes").await.0.as_deref(), Some("5000"));

    assert_eq!(describe(&mut client, TOPIC, "nobody", None).await.unwrap_err().0, 3);
    assert_eq!(describe(&mut client, BROKER, "2", None).await.unwrap_err().0, 42);
    assert!(describe(&mut client, BROKER, "", None).await.unwrap().is_empty());
    assert!(describe(&mut client, TOPIC, "t", Some(&["frob"])).await.unwrap().is_empty());

    let all = json!({ "data": [{ "name": "retention.ms", "value": "5" }, { "name": "segment.bytes", "value": "1" }] });
    let http: &[Refused<'_>] = &[
        ("PUT", "/topics/t/configs/segment.bytes", Some(json!({ "value": "1" })), (400, 40002)),
        ("PUT", "/topics/t/configs/frob", Some(json!({ "value": "1" })), (400, 40002)),
        ("PUT", "/topics/t/configs/retention.ms", Some(json!({})), (422, 42206)),
        ("PUT", "/topics/nobody/configs/retention.ms", Some(json!({ "value": "1" })), (404, 40403)),
        ("DELETE", "/topics/t/configs/frob", None, (400, 40002)),
        ("POST", "/topics/t/configs:alter", Some(all.clone()), (400, 40002)),
        ("POST", "/topics/-/configs:alter", Some(all), (400, 40002)),
        (
            "POST",
            "/topics/t/configs:alter",
            Some(json!({ "data": [{ "name": "x", "operation": "MOVE" }] })),
            (422, 42206),
        ),
        ("PUT", "/broker-configs/node.id", Some(json!({ "value": "1" })), (400, 40002)),
        ("PUT", "/brokers/1/configs/log.retention.ms", Some(json!({ "value": "1" })), (400, 40002)),
        ("PUT", "/brokers/9/configs/max.connections", Some(json!({ "value": "1" })), (404, 404)),
        ("GET", "/brokers/9/configs", None, (404, 404)),
        ("GET", "/broker-configs/frob", None, (404, 404)),
        ("PUT", "/topics/t/configs/retention.ms", Some(json!({ "value": longer })), (400, 40002)),
        (
            "POST",
            "/topics/-/configs:alter",
            Some(json!({ "data": [{ "name": "retention.ms", "value": longer }] })),
            (400, 40002),
        ),
        (
            "POST",
            "/topics",
            Some(json!({ "topic_name": "v", "configs": [{ "name": "retention.ms", "value": longer }] })),
            (400, 40002),
        ),
    ];
    let before = everything_set(&cluster);
    for (method, path, body, expected) in http {
        let (status, _, told) = call(&cluster, method, path, &[], body.clone()).await;
        assert_eq!(
            (status, told["error_code"].as_u64()),
            (expected.0, Some(expected.1.into())),
            "{method} {path}: {told}"
        );
    }
    assert_eq!(everything_set(&cluster), before);
    let all = json!({ "data": [{ "name": "retention.ms", "value": "7000" }] });
    assert_eq!(call(&cluster, "POST", "/topics/-/configs:alter", &[], Some(all)).await.0, 204);
    for topic in ["t", "u"] {
        assert_eq!(one(&mut client, TOPIC, topic, "retention.ms").await.0.as_deref(), Some("7000"));
    }
    let (_, _, told) =
        call(&cluster, "PUT", "/topics/t/configs/segment.bytes", &[], Some(json!({ "value": "1" }))).await;
    assert_eq!(told["details"]["key"], "segment.bytes", "{told}");
    assert_eq!(told["details"]["allowed"], "a whole number from 1024 to 2147483647", "{told}");
    assert_eq!(told["details"]["kafka_error"], "INVALID_CONFIG", "{told}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_levels_change_while_a_broker_runs_over_http_and_kafka_and_end_by_themselves() {
    let mut cluster = Cluster::start(2, &[]).await;
    let mut kafka = cluster.client(2).await;
    let level = async |kafka: &mut Client, name: &str| one(kafka, LOGGER, "2", name).await.0.unwrap();
    assert_eq!(one(&mut kafka, LOGGER, "2", "replica").await, (Some("INFO".to_owned()), 6, Vec::new()));

    // Over Kafka: of this broker alone, all or none.
    let asked = [("data", SET, Some("debug")), ("fetcher", SET, Some("FATAL"))];
    assert_eq!(alter(&mut kafka, true, &[(LOGGER, "2", &asked)]).await[0].0, 0);
    assert_eq!(level(&mut kafka, "replica").await, "INFO", "a dry run");
    assert_eq!(alter(&mut kafka, false, &[(LOGGER, "2", &asked)]).await[0].0, 0);
    assert_eq!(
        (level(&mut kafka, "replica").await, level(&mut kafka, "fetcher").await),
        ("DEBUG".into(), "ERROR".into())
    );
    for (name, key, operation, value, code) in [
        ("2", "replica", SET, Some("LOUD"), ErrorCode::InvalidConfig),
        ("2", "replica", SET, None, ErrorCode::InvalidConfig),
        ("2", "replication", SET, Some("DEBUG"), ErrorCode::InvalidConfig),
        ("2", "replica", APPEND, Some("DEBUG"), ErrorCode::InvalidRequest),
        ("1", "replica", SET, Some("DEBUG"), ErrorCode::InvalidRequest),
        ("", "replica", SET, Some("DEBUG"), ErrorCode::InvalidRequest),
    ] {
        let told =
            alter(&mut kafka, false, &[(LOGGER, name, &[("raft", SET, Some("TRACE")), (key, operation, value)])]).await;
        assert_eq!(told[0].0, code.code(), "{name} {key}: {told:?}");
    }
    assert_eq!(level(&mut kafka, "raft").await, "INFO", "what is refused changes nothing");
    assert_eq!(describe(&mut kafka, LOGGER, "1", None).await.unwrap_err().0, ErrorCode::InvalidRequest.code());
    assert_eq!(alter(&mut kafka, false, &[(LOGGER, "2", &[("data", DELETE, None)])]).await[0].0, 0);
    assert_eq!(
        (level(&mut kafka, "replica").await, level(&mut kafka, "fetcher").await),
        ("INFO".into(), "ERROR".into())
    );

    // Over HTTP: of any node, asked of node 1.
    let path = "/brokers/2/loggers/replica";
    let (status, _, body) = call(&cluster, "PUT", path, &[], Some(json!({ "level": "TRACE", "ttl_s": 3_600 }))).await;
    assert_eq!((status, &body["level"], &body["configured_level"]), (200, &json!("TRACE"), &json!("INFO")), "{body}");
    assert!(body["until_ms"].as_i64().unwrap() > NOW, "{body}");
    assert_eq!(level(&mut kafka, "replica").await, "TRACE");
    let (_, _, list) = call(&cluster, "GET", "/brokers/-/loggers?name=replica", &[], None).await;
    let told: Vec<_> = list["data"].as_array().unwrap().iter().map(|row| (&row["broker_id"], &row["level"])).collect();
    assert_eq!(told, [(&json!(1), &json!("INFO")), (&json!(2), &json!("TRACE"))]);
    // The newest word counts; it ends when it said.
    call(&cluster, "PUT", path, &[], Some(json!({ "level": "WARN", "ttl_s": 1 }))).await;
    assert_eq!(level(&mut kafka, "replica").await, "WARN");
    cluster
        .wait_for("the level has ended", async || {
            (one(&mut cluster.client(2).await, LOGGER, "2", "replica").await.0.unwrap() == "INFO").then_some(())
        })
        .await;
    assert_eq!(call(&cluster, "DELETE", "/brokers/2/loggers/fetcher", &[], None).await.0, 204);
    assert_eq!(level(&mut kafka, "fetcher").await, "INFO");

    let refused: &[Refused<'_>] = &[
        ("GET", "/brokers/2/loggers/replication", None, (404, 404)),
        ("PUT", "/brokers/2/loggers/replication", Some(json!({ "level": "WARN" })), (404, 404)),
        ("GET", "/brokers/9/loggers", None, (404, 404)),
        ("PUT", path, Some(json!({ "level": "LOUD" })), (422, 42206)),
        ("PUT", path, Some(json!({ "level": "WARN", "ttl_s": 0 })), (422, 42206)),
        ("PUT", path, Some(json!({ "ttl_s": 5 })), (422, 42206)),
    ];
    for (method, path, body, expected) in refused {
        let (status, _, told) = call(&cluster, method, path, &[], body.clone()).await;
        assert_eq!((status, told["error_code"].as_u64()), (expected.0, Some(expected.1.into())), "{path}: {told}");
    }
    cluster.crash(2).await;
    let (status, _, told) = call(&cluster, "GET", path, &[], None).await;
    assert_eq!((status, told["error_code"].as_u64()), (503, Some(50302)), "{told}");
    cluster.end().await;
}
