//! Input that somebody made up, on a node that others go on using.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use highwater_tests::client::{Client, batch};
use highwater_tests::process::Processes;
use highwater_wire::api::ApiKey;
use highwater_wire::messages::create_topics_request::CreatableTopic;
use highwater_wire::request::{ApiVersionsRequest, CreateTopicsRequest, InitProducerIdRequest};
use highwater_wire::response::response_limits;
use highwater_wire::{ErrorCode, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{ALL, NOW};

/// One node with a topic `t` of one partition.
async fn one_node() -> Processes {
    let mut cluster = Processes::start(1, &[]);
    cluster.wait_ready().await;
    cluster.create_topic(1, "t", 1, 1, &[]).await;
    cluster
}

fn kafka(cluster: &Processes, id: usize) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, cluster.node(id).kafka_port).into()
}

/// The process is the one that was started, and serves.
async fn assert_unharmed(cluster: &mut Processes) {
    assert!(cluster.nodes[0].runs(), "the process is gone");
    let mut client = Client::connect(kafka(cluster, 1)).await.unwrap();
    assert_eq!(client.produce("t", 0, ALL, batch(NOW, &["v"])).await.unwrap().error_code, 0);
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
    let panics: Vec<String> =
        cluster.node(1).log().lines().filter(|line| line.contains("panicked")).map(str::to_owned).collect();
    assert_eq!(panics, Vec::<String>::new());
}

/// The golden request of every API and version that is spoken.
fn golden_requests() -> Vec<(ApiKey, i16, Vec<u8>)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/tests/golden.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let requests = lines.filter_map(|line| {
        let [name, version, "request", hex] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let api = ApiKey::ALL.iter().copied().find(|api| api.name() == name).unwrap();
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        Some((api, version.parse().unwrap(), bytes.collect()))
    });
    requests.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn b43_what_is_advertised_is_answered_and_what_is_not_harms_nobody() {
    let mut cluster = one_node().await;
    let mut client = Client::connect(kafka(&cluster, 1)).await.unwrap();
    let advertised = client.ask(3, {
        let mut request = ApiVersionsRequest::default();
        request.client_software_name = "tests".into();
        request.client_software_version = "1".into();
        request
    });
    let advertised = advertised.await.unwrap();
    let golden = golden_requests();
    let mut answered = BTreeSet::new();
    for (api, version, frame) in &golden {
        client.send_bytes(frame).await.unwrap();
        let frame = client.receive_frame().await.unwrap();
        let frame = frame.unwrap_or_else(|| panic!("{api} {version}: the connection was closed"));
        let (_, response) = Response::decode(*api, *version, frame, response_limits())
            .unwrap_or_else(|error| panic!("{api} {version}: {error}"));
        assert_eq!(response.api(), *api);
        answered.insert((api.code(), *version));
    }
    // librdkafka looks for Produce 0 to 2 and drops compression without them: they are named and not served.
    let only_named = |key: i16, version: i16| key == ApiKey::Produce.code() && version < 3;
    for range in &advertised.api_keys {
        for version in range.min_version..=range.max_version {
            let is = answered.contains(&(range.api_key, version)) || only_named(range.api_key, version);
            assert!(is, "API {} version {version} is advertised, and no golden frame asks for it", range.api_key);
        }
    }
    // Every key and version around what is served: an answer with 35 for ApiVersions, the end of that connection
    // otherwise, and another one goes on.
    let mut bystander = Client::connect(kafka(&cluster, 1)).await.unwrap();
    for key in (-1..=100_i16).chain([9_999, i16::MAX]) {
        let served = ApiKey::from_code(key).map(ApiKey::versions);
        let versions = served.map_or(vec![0], |range| vec![-1, range.min - 1, range.max + 1, 99, i16::MAX]);
        for version in versions {
            if served.is_some_and(|range| range.contains(version)) {
                continue;
            }
            let mut frame = 10_i32.to_be_bytes().to_vec();
            frame.extend(key.to_be_bytes());
            frame.extend(version.to_be_bytes());
            frame.extend(7_i32.to_be_bytes());
            frame.extend((-1_i16).to_be_bytes());
            let mut client = Client::connect(kafka(&cluster, 1)).await.unwrap();
            client.send_bytes(&frame).await.unwrap();
            let answer = client.receive_frame().await.unwrap();
            if key == ApiKey::ApiVersions.code() {
                let (_, answer) = Response::decode(ApiKey::ApiVersions, 0, answer.unwrap(), response_limits()).unwrap();
                let Response::ApiVersions(answer) = answer else { panic!("{answer:?}") };
                assert_eq!(answer.error_code, ErrorCode::UnsupportedVersion.code(), "version {version}");
                assert!(!answer.api_keys.is_empty());
            } else {
                assert_eq!(answer, None, "API {key} version {version}");
            }
        }
        assert!(bystander.metadata("t").await.is_ok(), "after API {key}");
    }
    assert_unharmed(&mut cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b37_transactions_are_refused_and_never_pretended() {
    let mut cluster = one_node().await;
    let mut client = Client::connect(kafka(&cluster, 1)).await.unwrap();
    for version in 0..=5 {
        let mut request = InitProducerIdRequest::default();
        request.transactional_id = Some("payments".into());
        request.transaction_timeout_ms = 60_000;
        if version >= 3 {
            (request.producer_id, request.producer_epoch) = (-1, -1);
        }
        let answer = client.ask(version, request).await.unwrap();
        assert_eq!(answer.error_code, ErrorCode::TransactionalIdAuthorizationFailed.code(), "version {version}");
        assert_eq!((answer.producer_id, answer.producer_epoch), (-1, -1));
    }
    let mut request = highwater_tests::client::produce_request("t", 0, ALL, Some(batch(NOW, &["x"])));
    request.transactional_id = Some("payments".into());
    let answer = client.produce_as(9, request).await.unwrap();
    assert_eq!(answer.error_code, ErrorCode::TransactionalIdAuthorizationFailed.code(), "{answer:?}");
    assert_eq!(client.read_all("t", 0).await.unwrap().len(), 0);
    assert_unharmed(&mut cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b52_names_that_are_paths_or_worse_are_refused_and_nothing_is_made_of_them() {
    let mut cluster = one_node().await;
    let mut client = Client::connect(kafka(&cluster, 1)).await.unwrap();
    let long = "a".repeat(250);
    let names =
        ["", ".", "..", "../up", "a/b", "a b", "tab\t", "nul\0", "new\nline", "ä", "%2e%2e", "\u{202e}x", "a:b", &long];
    for name in names {
        let mut topic = CreatableTopic::default();
        topic.name = name.into();
        (topic.num_partitions, topic.replication_factor) = (1, 1);
        let mut request = CreateTopicsRequest::default();
        request.topics = vec![topic];
        request.timeout_ms = 5_000;
        let answer = client.ask(7, request).await.unwrap();
        let told = &answer.topics[0];
        assert_eq!(told.error_code, ErrorCode::InvalidTopicException.code(), "{name:?}: {told:?}");
        let body = json!({"topic_name": name});
        let answer = cluster.http.post(cluster.url(1, "/topics")).json(&body).send().await.unwrap();
        let status = answer.status().as_u16();
        let told: Value = answer.json().await.unwrap();
        assert!(status == 400 || status == 422, "{name:?}: {status} {told}");
    }
    let made: Vec<String> = std::fs::read_dir(cluster.node(1).data_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| cluster.node(1).data_dir().join(name).is_dir())
        .collect();
    assert_eq!(made, ["t-0"]);
    assert_unharmed(&mut cluster).await;
}

/// What each place of a body is replaced by.
fn odd_values() -> Vec<Value> {
    let mut odd = vec![
        json!(null),
        json!(true),
        json!(""),
        json!("x"),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!({}),
        json!([]),
        json!([[]]),
        json!("\u{0}\u{fffd}\u{202e}"),
    ];
    odd.push(json!("long ".repeat(2_000)));
    odd
}

/// Every body that differs from this one in one place: replaced, missing, or given once more under another name.
fn variants(body: &Value) -> Vec<Value> {
    let mut all = odd_values();
    match body {
        Value::Object(members) => {
            for (name, member) in members {
                let mut without = members.clone();
                without.remove(name);
                let mut twice = members.clone();
                twice.insert(format!("{name}s"), member.clone());
                all.extend([Value::Object(without), Value::Object(twice)]);
                for other in variants(member) {
                    let mut changed = members.clone();
                    changed.insert(name.clone(), other);
                    all.push(Value::Object(changed));
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                for other in variants(item) {
                    let mut changed = items.clone();
                    changed[at] = other;
                    all.push(Value::Array(changed));
                }
            }
            let many: Vec<Value> = items.iter().cycle().take(items.len() * 3).cloned().collect();
            all.push(Value::Array(many));
        }
        _ => {}
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn b51_no_body_parameter_or_path_makes_a_node_fail() {
    const ODD: [&str; 9] = ["x", "-1", "99999999999999999999", "%00", "..%2f..", "%ff", "a%20b", "*", "0"];
    let mut cluster = one_node().await;
    let base = format!("http://127.0.0.1:{}", cluster.node(1).http_port);
    let document: Value = cluster.http.get(format!("{base}/openapi.json")).send().await.unwrap().json().await.unwrap();
    let mut wrong = Vec::new();
    let mut calls = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let named = |place: &str| -> Vec<(String, String)> {
                let all = parameters.iter().filter(|parameter| parameter["in"] == place);
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                all.map(|parameter| (text(&parameter["name"]), text(&parameter["example"]))).collect()
            };
            let (in_path, in_query) = (named("path"), named("query"));
            let filled = |odd: Option<(&str, &str)>| {
                let mut target = path.clone();
                for (name, example) in &in_path {
                    let value = odd.filter(|(which, _)| which == name).map_or(example.as_str(), |(_, value)| value);
                    target = target.replace(&format!("{{{name}}}"), value);
                }
                target
            };
            let examples = operation["requestBody"]["content"]["application/json"]["examples"].as_object();
            let bodies: Vec<Value> =
                examples.map(|all| all.values().map(|one| one["value"].clone()).collect()).unwrap_or_default();
            let mut requests: Vec<(String, Option<Vec<u8>>)> = Vec::new();
            for odd in ODD {
                let body = || bodies.first().map(|body| body.to_string().into_bytes());
                requests.extend(in_path.iter().map(|(name, _)| (filled(Some((name, odd))), body())));
                requests.extend(in_query.iter().map(|(name, _)| (format!("{}?{name}={odd}", filled(None)), body())));
            }
            for body in bodies.iter().take(1) {
                requests.extend(variants(body).iter().map(|body| (filled(None), Some(body.to_string().into_bytes()))));
                let broken: [&[u8]; 9] = [
                    b"",
                    b"[",
                    b"{\"a\":",
                    b"\xef\xbb\xbf{}",
                    b"\xff\xfe{\0}\0",
                    b"\"\\ud800\"",
                    b"NaN",
                    b"{}{}",
                    b"// {}",
                ];
                requests.extend(broken.iter().map(|body| (filled(None), Some(body.to_vec()))));
            }
            for (target, body) in requests {
                calls += 1;
                let mut request =
                    cluster.http.request(method.to_uppercase().parse().unwrap(), format!("{base}{target}"));
                let shown =
                    body.as_ref().map(|body| String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned());
                if let Some(body) = body {
                    request = request.header("content-type", "application/json").body(body);
                }
                let what = format!("{method} {target} {}", shown.unwrap_or_default());
                let answer = match request.timeout(Duration::from_secs(20)).send().await {
                    Ok(answer) => answer,
                    Err(error) => {
                        wrong.push(format!("{what}: no answer: {error}"));
                        continue;
                    }
                };
                let status = answer.status().as_u16();
                if status < 400 {
                    // It was no mistake after all. A stream has no end to read.
                    continue;
                }
                let text = answer.text().await.unwrap_or_default();
                let told: Value = serde_json::from_str(&text).unwrap_or_default();
                let explained = told["error_code"].is_u64() && told["message"].as_str().is_some_and(|m| !m.is_empty());
                // 503 with a code of its own is a state of the cluster, not a fault of the node.
                if (status >= 500 && status != 503) || !explained {
                    wrong.push(format!("{what}: {status} {text}"));
                }
            }
        }
    }
    println!("{calls} calls");
    assert!(calls > 2_000, "{calls} calls");
    assert!(wrong.is_empty(), "{} of {calls}:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
    // The topic of these calls may be gone; the node is not.
    let body = json!({"topic_name": "after", "partitions_count": 1, "replication_factor": 1});
    let answer = cluster.http.post(cluster.url(1, "/topics")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let log = cluster.node(1).log();
    assert!(cluster.nodes[0].runs() && !log.contains("panicked"), "a panic in the log");
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}

/// What it is, how it begins, how it goes on for ever, and statuses that are right.
type Endless<'a> = (&'a str, Vec<u8>, &'a [u8], &'a [&'a str]);

/// Sends raw bytes to a port, `more` again and again until the node ends it or `most` are sent: the status line of
/// what came back (empty: closed without one), and how many bytes went out.
async fn raw_http(port: u16, head: &[u8], more: &[u8], most: usize) -> (String, usize) {
    let address: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let (mut input, mut output) = TcpStream::connect(address).await.unwrap().into_split();
    let mut sent = 0;
    let mut answer = Vec::new();
    let mut buffer = [0; 4_096];
    let mut next = head;
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        if sent < most && !next.is_empty() {
            tokio::select! {
                biased;
                read = input.read(&mut buffer) => {
                    answer.extend_from_slice(&buffer[..read.unwrap_or(0)]);
                    break;
                }
                wrote = output.write(next) => {
                    let Ok(wrote) = wrote else { break };
                    sent += wrote;
                    next = &next[wrote..];
                }
            }
            if next.is_empty() {
                next = more;
            }
        } else {
            let left = until.saturating_duration_since(Instant::now());
            let read = tokio::time::timeout(left, input.read(&mut buffer)).await;
            let read = read.unwrap_or_else(|_| panic!("neither answered nor closed within 40 s"));
            answer.extend_from_slice(&buffer[..read.unwrap_or(0)]);
            break;
        }
    }
    (String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned(), sent)
}

/// Each kind of request that has no end or no measure, to one path of one port.
async fn endless_requests(cluster: &mut Processes, port: u16, path: &str) {
    const MOST: usize = 64 << 20;
    let post = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n");
    let chunk = [&b"10000\r\n"[..], &[b' '; 0x10000], b"\r\n"].concat();
    let header = [&b"x-long: "[..], &[b'a'; 1 << 20], b"\r\n"].concat();
    let deep = [b'['; 1 << 16];
    let array = b"{\"topic_name\":\"x\"},".repeat(1_000);
    let long_url = [&b"GET /v3/clusters/-/topics?"[..], &[b'a'; 1 << 20], b" HTTP/1.1\r\n\r\n"].concat();
    let of = |head: &str| format!("{post}{head}\r\n\r\n").into_bytes();
    let list = [&of("transfer-encoding: chunked")[..], b"FFFFFFF\r\n["].concat();
    let two_lengths = [&of("content-length: 2\r\ncontent-length: 3")[..], b"{}"].concat();
    let smuggled = [&of("content-length: 5\r\ntransfer-encoding: chunked")[..], b"0\r\n\r\nGET "].concat();
    let cases: Vec<Endless<'_>> = vec![
        ("a body in chunks without end", of("transfer-encoding: chunked"), &chunk, &["413"]),
        ("10^18 bytes announced", of("content-length: 1000000000000000000"), b" ", &["413"]),
        ("almost a megabyte in single bytes", of("content-length: 800000"), b" ", &["400"]),
        ("-1 bytes announced", of("content-length: -1"), b"", &["400"]),
        ("two lengths", two_lengths, b"", &["400"]),
        ("a length and chunks", smuggled, b"", &["400", "422"]),
        ("a header of 1 MiB", post.clone().into(), &header, &["431", "400"]),
        ("headers without end", post.clone().into(), b"x-more: 1\r\n", &["431", "400"]),
        ("a URL of 1 MiB", long_url, b"", &["414", "431", "400"]),
        ("nested without end", of("content-length: 1000000"), &deep, &["400", "413", "422"]),
        ("a list without end", list, &array, &["413"]),
        ("a method nobody knows", b"DANCE / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), b"", &["404", "405", "400"]),
        ("a line that is none", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), b"", &["400"]),
    ];
    for (what, head, more, statuses) in cases {
        let (status, sent) = raw_http(port, &head, more, MOST).await;
        // Closed at once is as good as an answer.
        let fine = status.is_empty() || statuses.iter().any(|code| status.contains(code));
        assert!(fine, "{path}, {what}: {status:?} after {sent} bytes");
        assert!(sent < MOST, "{path}, {what}: {sent} bytes were taken");
        println!("{path}, {what}: {status:?} after {sent} bytes, {} KiB", cluster.usage(1).resident_kib);
        assert_unharmed(cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b53_a_request_without_end_or_measure_is_cut_off_and_costs_no_memory() {
    let mut cluster = one_node().await;
    let before = cluster.usage(1).resident_kib;
    // The admin API, and the listener of the controllers: both speak HTTP.
    let (admin, controller) = (cluster.node(1).http_port, cluster.node(1).controller_port);
    for (port, path) in [(admin, "/v3/clusters/-/topics"), (controller, "/propose")] {
        endless_requests(&mut cluster, port, path).await;
    }
    // Many that say nothing.
    let address: SocketAddr = (Ipv4Addr::LOCALHOST, cluster.node(1).http_port).into();
    let mut idle = Vec::new();
    for _ in 0..250 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let (status, _) = cluster.get(1, "/topics").await.unwrap();
    assert_eq!(status, 200);
    let after = cluster.usage(1).resident_kib;
    println!("resident: {before} KiB before, {after} KiB after");
    assert!(after < before + (32 << 10), "{before} KiB became {after} KiB");
    drop(idle);
    assert_unharmed(&mut cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b53_of_many_that_want_the_same_at_once_one_gets_it_and_all_nodes_agree() {
    const AT_ONCE: usize = 60;
    let mut cluster = Processes::start(3, &[]);
    cluster.wait_ready().await;
    for round in 0..3 {
        let mut tries = tokio::task::JoinSet::new();
        for n in 0..AT_ONCE {
            let body = json!({"topic_name": "same", "partitions_count": 2, "replication_factor": 3});
            let request = cluster.http.post(cluster.url(n % 3 + 1, "/topics")).json(&body);
            tries.spawn(async move {
                let answer = request.send().await.unwrap();
                (answer.status().as_u16(), answer.text().await.unwrap())
            });
        }
        let made = tries.join_all().await;
        let odd: Vec<_> = made.iter().filter(|(status, _)| ![201, 400, 409].contains(status)).collect();
        assert!(odd.is_empty(), "round {round}: {odd:?}");
        assert_eq!(made.iter().filter(|(status, _)| *status == 201).count(), 1, "round {round}: {made:?}");

        // Some of those who delete do not wait for the answer.
        let mut tries = tokio::task::JoinSet::new();
        for n in 0..AT_ONCE {
            let request = cluster.http.delete(cluster.url(n % 3 + 1, "/topics/same"));
            let gone = n % 4 == 0;
            tries.spawn(async move {
                let patience = Duration::from_millis(if gone { 2 } else { 20_000 });
                match tokio::time::timeout(patience, request.send()).await {
                    Ok(answer) => Some(answer.unwrap().status().as_u16()),
                    Err(_) if gone => None,
                    Err(_) => panic!("no answer within {patience:?}"),
                }
            });
        }
        let deleted = tries.join_all().await;
        let odd: Vec<_> = deleted.iter().flatten().filter(|status| ![204, 404].contains(*status)).collect();
        assert!(odd.is_empty(), "round {round}: {odd:?}");
        let done = deleted.iter().flatten().filter(|status| **status == 204).count();
        let unknown = deleted.iter().filter(|status| status.is_none()).count();
        assert!(done == 1 || (done == 0 && unknown > 0), "round {round}: {done} deleted it, {unknown} went away");
        for id in 1..=3 {
            cluster
                .wait(&format!("node {id} knows that it is gone"), Duration::from_secs(20), async || {
                    cluster.get(id, "/topics/same").await.is_ok_and(|(status, _)| status == 404)
                })
                .await;
        }
    }
    assert_eq!(cluster.unexpected_errors(&[]), Vec::<String>::new());
}
