//! Shapes and errors of the API, asked of a real quorum of one voter without a data plane: what leaders alone know is
//! absent here and tested with whole clusters elsewhere.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use highwater_admin::{AdminConfig, AdminState, Beats, LocalReplicas, PartitionMetrics, peer, router};
use highwater_data::Loggers;
use highwater_quorum::controller::{DataClaim, RegisterBroker};
use highwater_quorum::image::Endpoint;
use highwater_quorum::{
    Answer, Command, ControllerListener, NodeRoles, Quorum, QuorumConfig, QuorumLimits, TopicDefaults,
};
use highwater_wire::{BrokerId, DirectoryId, IncarnationId, Timestamp};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const LIMIT: Duration = Duration::from_secs(10);

/// A formed cluster of one voter with one active broker, and the API in front of it.
struct Setup {
    quorum: Quorum,
    router: Router,
    _dir: tempfile::TempDir,
}

impl Setup {
    async fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (node, incarnation) = (BrokerId(1), IncarnationId::random());
        let config = QuorumConfig {
            node,
            incarnation,
            directory: dir.path().join("metadata"),
            cluster_id: Some("test-cluster".to_owned()),
            voters: BTreeMap::from([(node, Endpoint { host: "127.0.0.1".to_owned(), port })]),
            bootstrap: Vec::new(),
            listener: ControllerListener::Bound(listener),
            advertised: Endpoint { host: "127.0.0.1".to_owned(), port },
            roles: NodeRoles { broker: true, controller: true },
            limits: QuorumLimits::default(),
            topic_defaults: TopicDefaults::default(),
        };
        let (replicas, own_view) = (LocalReplicas::default(), peer::LocalQuorum::default());
        let extra = peer::replica_router(replicas.clone()).merge(peer::quorum_router(own_view.clone()));
        let quorum = Quorum::start(config, extra).await.unwrap();
        let client = quorum.client();
        let mut images = client.watch();
        tokio::time::timeout(LIMIT, images.wait_for(|image| image.cluster_id.is_some())).await.unwrap().unwrap();
        own_view.set(client.clone());
        let (answer, _) = client.propose(register(node, incarnation, port), LIMIT).await.unwrap();
        let Answer::Registered { epoch } = answer else { panic!("{answer:?}") };
        let unfence = Command::UnfenceBroker { broker: node, epoch, lost: vec![], time: Timestamp(2) };
        client.propose(unfence, LIMIT).await.unwrap();
        let admin = AdminConfig {
            node,
            broker: true,
            url: "http://n1:8082".to_owned(),
            version: "0.0.0".to_owned(),
            voters: vec![node],
            delete_topics: true,
            in_sync_wait_max: Duration::from_secs(600),
            partition_metrics: PartitionMetrics::Leader,
            settings: Arc::default(),
            loggers: Loggers::default(),
            pools: Vec::new(),
        };
        let state = AdminState::new(admin, client.clone(), replicas, Beats::default(), None).unwrap();
        Self { quorum, router: router(state), _dir: dir }
    }

    async fn call(&self, request: Request<Body>) -> (StatusCode, HeaderMap, Value) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap_or(Value::Null) };
        (status, headers, body)
    }

    async fn get(&self, path: &str) -> (StatusCode, HeaderMap, Value) {
        self.call(Request::get(path).header("host", "n1:8082").body(Body::empty()).unwrap()).await
    }

    /// A successful GET below the cluster.
    async fn cluster(&self, path: &str) -> Value {
        let (status, _, body) = self.get(&format!("/v3/clusters/-{path}")).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// A GET that fails: status and error code.
    async fn refused(&self, path: &str) -> (u16, u64) {
        let (status, _, body) = self.get(path).await;
        assert!(body["message"].is_string() && body["request_id"].is_string(), "{path}: {body}");
        (status.as_u16(), body["error_code"].as_u64().unwrap())
    }

    async fn create(&self, body: &Value) -> (StatusCode, HeaderMap, Value) {
        let request = Request::post("/v3/clusters/-/topics")
            .header("host", "n1:8082")
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        self.call(request).await
    }
}

fn register(broker: BrokerId, incarnation: IncarnationId, port: u16) -> Command {
    let endpoint = Endpoint { host: "n1".to_owned(), port: 9092 };
    Command::RegisterBroker(RegisterBroker {
        broker,
        cluster_id: "test-cluster".to_owned(),
        incarnation,
        listeners: BTreeMap::from([("PLAINTEXT".to_owned(), endpoint)]),
        inter_broker_listener: "PLAINTEXT".to_owned(),
        controller_url: format!("http://127.0.0.1:{port}"),
        admin_url: "http://n1:8082".to_owned(),
        rack: Some("a".to_owned()),
        log_dirs: vec![DirectoryId::random()],
        metadata_dir: DirectoryId::random(),
        features: BTreeMap::new(),
        version: "0.0.0".to_owned(),
        claim: DataClaim::Nothing,
        previous_is_dead: false,
        time: Timestamp(1),
    })
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_answers_in_the_shapes_of_rest_v3() {
    let setup = Setup::new().await;
    let (status, headers, topic) = setup
        .create(&json!({"topic_name": "orders", "partitions_count": 2, "configs": [{"name": "retention.ms", "value": "5"}]}))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{topic}");
    assert_eq!(headers["location"], "http://n1:8082/v3/clusters/test-cluster/topics/orders");
    assert_eq!(topic["kind"], "KafkaTopic");
    assert_eq!(topic["metadata"]["resource_name"], "crn:///kafka=test-cluster/topic=orders");
    assert_eq!((&topic["partitions_count"], &topic["replication_factor"]), (&json!(2), &json!(1)));
    assert!(topic["note"].as_str().unwrap().contains("capped"), "the cap is told: {topic}");

    let (status, headers, clusters) = setup.get("/kafka/v3/clusters").await;
    assert_eq!(status, StatusCode::OK);
    assert!(headers["x-metadata-offset"].to_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(headers.contains_key("x-metadata-age-ms"));
    assert_eq!(clusters["kind"], "KafkaClusterList");
    assert_eq!(clusters["metadata"], json!({"self": "http://n1:8082/kafka/v3/clusters", "next": null}));
    let cluster = &clusters["data"][0];
    assert_eq!(cluster["cluster_id"], "test-cluster");
    assert_eq!(cluster["controller"]["related"], "http://n1:8082/v3/clusters/test-cluster/brokers/1");

    let broker = setup.cluster("/brokers/1").await;
    assert_eq!((&broker["host"], &broker["port"], &broker["rack"]), (&json!("n1"), &json!(9092), &json!("a")));
    assert_eq!((&broker["state"], &broker["is_controller"]), (&json!("ACTIVE"), &json!(true)));
    assert_eq!(setup.cluster("/brokers").await["data"].as_array().unwrap().len(), 1);
    let hosted = setup.cluster("/brokers/1/partition-replicas").await;
    assert_eq!(hosted["data"].as_array().unwrap().len(), 2);

    let partition = setup.cluster("/topics/orders/partitions/1").await;
    assert_eq!(partition["kind"], "KafkaPartition");
    assert_eq!((&partition["leader_id"], &partition["isr"]), (&json!(1), &json!([1])));
    let replica = setup.cluster("/topics/orders/partitions/1/replicas/1").await;
    assert_eq!(
        keys(&replica),
        [
            "broker",
            "broker_id",
            "cluster_id",
            "is_in_sync",
            "is_leader",
            "kind",
            "metadata",
            "partition_id",
            "topic_name"
        ]
    );

    let state = setup.cluster("/topics/orders/partitions/0/state").await;
    assert_eq!(state["kind"], "KafkaPartitionState");
    assert_eq!(state["states"], json!(["ONLINE", "AT_MIN_ISR"]));
    // There is no data plane here: what it alone knows is absent, never old.
    assert_eq!((&state["high_watermark"], &state["observed"]["stale"]), (&Value::Null, &json!(true)));
    let all = setup.cluster("/topics/-/partitions/-/state?state=ONLINE&topic=ord*").await;
    assert_eq!((&all["kind"], all["data"].as_array().unwrap().len()), (&json!("KafkaPartitionStateList"), 2));
    assert_eq!(setup.cluster("/topics/-/partitions/-/state?state=OFFLINE").await["data"], json!([]));
    let status = setup.cluster("/topics/orders/partitions/-/replica-status").await;
    assert_eq!(status["data"][0]["kind"], "KafkaReplicaStatus");

    let history = setup.cluster("/topics/orders/partitions/0/history").await;
    assert_eq!(history["metadata"]["total_size"], history["data"].as_array().unwrap().len());
    let epochs = setup.cluster("/topics/orders/partitions/0/leader-epochs").await;
    assert_eq!(epochs["kind"], "KafkaLeaderEpochList");
    setup.quorum.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topics_configuration_is_told_with_its_sources() {
    let setup = Setup::new().await;
    let configs = json!([{"name": "retention.ms", "value": "5"}]);
    let (status, ..) = setup.create(&json!({"topic_name": "orders", "configs": configs})).await;
    assert_eq!(status, StatusCode::CREATED);
    let given = setup.cluster("/topics/orders/configs/retention.ms").await;
    assert_eq!(given["kind"], "KafkaTopicConfig");
    assert_eq!(given["metadata"]["resource_name"], "crn:///kafka=test-cluster/topic=orders/config=retention.ms");
    assert_eq!((&given["value"], &given["is_default"]), (&json!("5"), &json!(false)));
    assert_eq!(
        given["synonyms"],
        json!([
            {"name": "retention.ms", "value": "5", "source": "DYNAMIC_TOPIC_CONFIG"},
            {"name": "log.retention.ms", "value": "604800000", "source": "DEFAULT_CONFIG"}
        ])
    );
    let built_in = setup.cluster("/topics/orders/configs/flush.ms").await;
    assert_eq!((&built_in["source"], &built_in["is_default"]), (&json!("DEFAULT_CONFIG"), &json!(true)));
    assert_eq!(built_in["type"], "LONG");
    let all = setup.cluster("/topics/orders/configs").await;
    let names: Vec<_> = all["data"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.len() > 15 && names.is_sorted() && names.contains(&"min.insync.replicas"), "{names:?}");
    let everywhere = setup.cluster("/topics/-/configs?name=retention.*").await;
    assert_eq!(everywhere["data"].as_array().unwrap().len(), 2, "{everywhere}");
    assert_eq!(setup.refused("/v3/clusters/-/topics/orders/configs/retention.mss").await.0, 404);
    assert_eq!(setup.refused("/v3/clusters/-/topics/nothing/configs").await, (404, 40403));
    setup.quorum.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quorum_and_health_tell_what_is_known() {
    let setup = Setup::new().await;
    let quorum = setup.cluster("/quorum").await;
    assert_eq!((&quorum["leader_id"], &quorum["majority"], &quorum["can_lose"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(quorum["current_voters"][0]["status"], "LEADER");
    assert_eq!(quorum["views"][0]["state"], "LEADER");

    let health = setup.cluster("/health?fail=true").await;
    assert_eq!((&health["healthy"], &health["reasons"]), (&json!(true), &json!([])));
    assert_eq!(
        health["brokers"],
        json!({"total": 1, "unfenced": 1, "fenced": [], "shutting_down": [],
        "maintenance": [], "decommissioning": []})
    );

    let (status, _, live) = setup.get("/health/live").await;
    assert_eq!((status, &live["status"]), (StatusCode::OK, &json!("ok")));
    let (status, _, startup) = setup.get("/health/startup").await;
    assert_eq!((status, &startup["phase"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("STARTING")));
    let (status, _, ready) = setup.get("/health/ready?level=in_sync").await;
    assert_eq!((status, &ready["ready"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(false)));
    assert_eq!(ready["failed"], json!([{"check": "STARTED"}]));

    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let response = setup.router.clone().oneshot(request).await.unwrap();
    let text = String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap();
    for line in
        ["highwater_controller_active 1", "highwater_cluster_brokers{state=\"active\"} 1", "highwater_raft_leader_id 1"]
    {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    setup.quorum.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_have_the_status_and_code_of_the_table() {
    let setup = Setup::new().await;
    setup.create(&json!({"topic_name": "orders"})).await;
    for (path, expected) in [
        ("/v3/clusters/other/topics", (404, 404)),
        ("/v3/nothing", (404, 404)),
        ("/v3/clusters/-/brokers/9", (404, 404)),
        ("/v3/clusters/-/topics/nope", (404, 40403)),
        ("/v3/clusters/-/topics/orders/partitions/99", (404, 40403)),
        ("/v3/clusters/-/topics/orders/partitions/x/state", (404, 40403)),
        ("/v3/clusters/-/topics/-/partitions/-/state?stat=OFFLINE", (400, 400)),
        ("/v3/clusters/-/topics/-/partitions/-/state?state=OFLINE", (400, 400)),
        ("/v3/clusters/-/topics/orders/partitions/0/history?since=yesterday", (400, 400)),
        ("/v3/clusters/-/topics/orders/partitions/0/offset?offset_type=last", (400, 400)),
        ("/v3/clusters/-/topics/orders/partitions/0/offset", (503, 50302)),
        ("/v3/clusters/-/topics?page_size=0", (400, 400)),
        ("/v3/clusters/-/topics?sort=nothing", (400, 400)),
        ("/v3/clusters/-/topics?fields=nothing", (400, 400)),
        ("/v3/clusters/-/topics?min_metadata_offset=999999&timeout_ms=20", (503, 50311)),
        ("/v3/clusters/-/topics?consistency=strong", (400, 400)),
        ("/health/ready?level=best", (400, 400)),
        ("/metrics?format=kafka", (400, 400)),
    ] {
        assert_eq!(setup.refused(path).await, expected, "{path}");
    }
    let (status, _, body) = setup.create(&json!({"topic_name": "orders"})).await;
    assert_eq!((status.as_u16(), &body["error_code"]), (400, &json!(40002)));
    assert_eq!(body["details"]["kafka_error"], "TOPIC_ALREADY_EXISTS");
    let (status, _, body) = setup.create(&json!({"topic_name": "a/b"})).await;
    assert_eq!((status.as_u16(), &body["error_code"]), (422, &json!(42206)), "{body}");
    let (status, _, body) = setup.create(&json!({"topic_name": "t", "replication_factor": 5})).await;
    assert_eq!((status.as_u16(), &body["details"]["kafka_error"]), (400, &json!("INVALID_REPLICATION_FACTOR")));
    let (status, _, body) =
        setup.create(&json!({"topic_name": "t", "configs": [{"name": "retention.ms", "value": "soon"}]})).await;
    assert_eq!((status.as_u16(), &body["details"]["kafka_error"]), (400, &json!("INVALID_CONFIG")), "{body}");

    let request = Request::post("/v3/clusters/-/topics/orders").body(Body::empty()).unwrap();
    assert_eq!(setup.call(request).await.0, StatusCode::METHOD_NOT_ALLOWED);
    let request = Request::post("/v3/clusters/-/topics")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from("{}"))
        .unwrap();
    assert_eq!(setup.call(request).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    setup.quorum.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_page_sort_and_trim_and_a_write_is_read_by_its_offset() {
    let setup = Setup::new().await;
    for name in ["c", "a", "b"] {
        let partitions = if name == "b" { 3 } else { 1 };
        setup.create(&json!({"topic_name": name, "partitions_count": partitions})).await;
    }
    let names = |list: &Value| -> Vec<String> {
        list["data"].as_array().unwrap().iter().map(|t| t["topic_name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&setup.cluster("/topics").await), ["a", "b", "c"]);
    assert_eq!(names(&setup.cluster("/topics?sort=-partitions_count").await), ["b", "a", "c"]);
    let page = setup.cluster("/topics?page_size=2&fields=topic_name").await;
    assert_eq!(page["data"], json!([{"topic_name": "a"}, {"topic_name": "b"}]));
    assert_eq!(page["metadata"]["total_size"], 3);
    let next = page["metadata"]["next"].as_str().unwrap().strip_prefix("http://n1:8082").unwrap().to_owned();
    let (_, _, page) = setup.get(&next).await;
    assert_eq!((names(&page), &page["metadata"]["next"]), (vec!["c".to_owned()], &Value::Null));
    // Whoever follows `next` to the end sees every row once, sorted or not.
    for (sort, expected) in [("", ["a", "b", "c"]), ("&sort=-topic_name", ["c", "b", "a"])] {
        let (mut seen, mut next) = (Vec::new(), Some(format!("/topics?page_size=1{sort}")));
        while let Some(path) = next.take() {
            let page = setup.cluster(&path).await;
            seen.extend(names(&page));
            assert!(seen.len() <= 3, "a page comes again: {seen:?}");
            next = page["metadata"]["next"].as_str().map(|next| next.split_once("/topics").unwrap().1.to_owned());
            next = next.map(|query| format!("/topics{query}"));
        }
        assert_eq!(seen, expected, "{sort:?}");
    }

    let request =
        Request::delete("/v3/clusters/-/topics/b").header("x-request-id", "mine").body(Body::empty()).unwrap();
    let (status, headers, _) = setup.call(request).await;
    assert_eq!((status, &headers["x-request-id"]), (StatusCode::NO_CONTENT, &"mine".parse().unwrap()));
    let offset = headers["x-metadata-offset"].to_str().unwrap();
    let list = setup.cluster(&format!("/topics?min_metadata_offset={offset}")).await;
    assert_eq!(names(&list), ["a", "c"]);
    assert_eq!(names(&setup.cluster("/topics?consistency=linearizable").await), ["a", "c"]);

    let (status, _, body) = setup.create(&json!({"topic_name": "d", "validate_only": true})).await;
    assert_eq!((status, &body["topic_id"]), (StatusCode::OK, &Value::Null));
    assert_eq!(names(&setup.cluster("/topics").await), ["a", "c"]);
    setup.quorum.stop().await;
}

/// One voter and one broker: nothing here can ever be restarted safely, and the answer says so in full.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_check_tells_what_blocks_what_is_accepted_and_when_to_ask_again() {
    let setup = Setup::new().await;
    let (status, _, topic) = setup.create(&json!({"topic_name": "orders", "partitions_count": 3})).await;
    assert_eq!(status, StatusCode::CREATED, "{topic}");
    let check = setup.cluster("/brokers/1/restart-check?limit=2").await;
    assert_eq!(check["kind"], "KafkaBrokerRestartCheck");
    assert_eq!(
        (&check["broker_id"], &check["safe"], &check["next_safe_broker"]),
        (&json!(1), &json!(false), &Value::Null)
    );
    assert_eq!(check["blocking"].as_array().unwrap().len(), 1, "{check}");
    assert_eq!((&check["blocking"][0]["check"], &check["blocking"][0]["count"]), (&json!("quorum_loss"), &json!(1)));
    assert!(check["blocking"][0]["why"].as_str().unwrap().contains("0 of 1 voters"), "{check}");
    assert_eq!(check["quorum"], json!({"voters": 1, "caught_up_without_broker": 0, "majority": 1, "ok": false}));
    let (rf1, min) = (&check["accepted"][0], &check["accepted"][1]);
    assert_eq!((&rf1["check"], &rf1["count"]), (&json!("rf1_offline"), &json!(3)));
    assert_eq!(rf1["partitions"].as_array().unwrap().len(), 2, "the limit holds for the list, not for the count");
    assert_eq!(rf1["partitions"][1]["partition_id"], 1);
    assert_eq!(*min, json!({"check": "min_isr_equals_rf", "count": 0}));
    assert!(check["retry_after_ms"].as_u64().unwrap() > 0);
    assert!(check["metadata_offset"].as_u64().unwrap() > 0 && check["roll"].is_null());

    let next = setup.cluster("/brokers/-/restart-check").await;
    let now = next["roll"]["since_metadata_offset"].as_u64().unwrap();
    assert_eq!((&next["broker_id"], &next["safe"], &next["roll"]["left"]), (&json!(1), &json!(false), &json!([1])));
    assert!(now >= check["metadata_offset"].as_u64().unwrap());
    let over = setup.cluster("/brokers/-/restart-check?since_metadata_offset=1&fail=true").await;
    assert_eq!((&over["broker_id"], &over["safe"], &over["roll"]["done"]), (&Value::Null, &json!(true), &json!(true)));

    let (status, _, unsafe_) = setup.get("/v3/clusters/-/brokers/1/restart-check?fail=true").await;
    assert_eq!((status.as_u16(), &unsafe_["safe"]), (503, &json!(false)));
    assert_eq!(setup.refused("/v3/clusters/-/brokers/9/restart-check").await, (404, 404));
    assert_eq!(setup.refused("/v3/clusters/-/brokers/x/restart-check").await, (404, 404));
    assert_eq!(setup.refused("/v3/clusters/-/brokers/1/restart-check?since_metadata_offset=1").await, (400, 400));
    assert_eq!(setup.refused("/v3/clusters/-/brokers/-/restart-check?limit=few").await, (400, 400));

    let recovery = setup.cluster("/brokers/1/recovery").await;
    assert_eq!(recovery["kind"], "KafkaBrokerRecovery");
    assert_eq!((&recovery["in_sync_replicas_pct"], &recovery["isr_missing"]), (&json!(100), &json!(0)));
    assert_eq!(recovery["leaders_pct_of_preferred"], 100);
    // No data plane runs here: its logs are not open.
    assert_eq!((&recovery["log_recovery"]["done"], &recovery["recovered"]), (&json!(false), &json!(false)));
    assert_eq!(setup.refused("/v3/clusters/-/brokers/9/recovery").await, (404, 404));
}
