//! A reader of `/events`: just enough of server-sent events to tell what came, in order.

use std::time::Duration;

use highwater_tests::cluster::{Cluster, PATIENCE};
use serde_json::Value;

/// One event as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub id: Option<String>,
    pub kind: String,
    pub data: Value,
}

/// One open connection.
pub struct Stream {
    response: reqwest::Response,
    rest: String,
}

impl Stream {
    /// Opens `/events` of a node; `query` begins with `?` unless it is empty.
    pub async fn open(cluster: &Cluster, node: i32, query: &str, last: Option<&str>) -> Self {
        let response = Self::answer(cluster, node, query, last).await;
        assert_eq!(response.status(), 200);
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        Self { response, rest: String::new() }
    }

    /// The answer, whatever it is.
    pub async fn answer(cluster: &Cluster, node: i32, query: &str, last: Option<&str>) -> reqwest::Response {
        let url = format!("http://127.0.0.1:{}/v3/clusters/-/events{query}", cluster.member(node).http_port);
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut request = client.get(url);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request.send().await.unwrap()
    }

    /// The next frame, those without data too; `None`: the node ended the stream.
    pub async fn frame(&mut self) -> Option<Told> {
        loop {
            if let Some(end) = self.rest.find("\n\n") {
                let text: String = self.rest.drain(..end + 2).collect();
                let of =
                    |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start().to_owned()));
                let data = of("data:").map_or(Value::Null, |data| serde_json::from_str(&data).unwrap());
                return Some(Told { id: of("id:"), kind: of("event:").unwrap_or_default(), data });
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await;
            let chunk = chunk.unwrap_or_else(|_| panic!("nothing for {PATIENCE:?}")).ok()??;
            self.rest.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The place at which a stream says that it begins.
    pub async fn beginning(&mut self) -> String {
        let first = self.frame().await.unwrap();
        assert_eq!(first.kind, "", "the first frame is the place alone: {first:?}");
        first.id.unwrap()
    }

    /// Events that stand in the metadata log, until one of this type about this topic.
    pub async fn until(&mut self, kind: &str, topic: &str) -> Vec<Told> {
        let mut all = Vec::new();
        loop {
            let told = self.frame().await.expect("the stream goes on");
            if told.data.is_null() || told.id.is_none() {
                continue;
            }
            let last = told.kind == kind && told.data["topic_name"] == topic;
            all.push(told);
            if last {
                return all;
            }
        }
    }

    /// Waits until the node ends the stream; how long that took.
    pub async fn ended(&mut self) -> Duration {
        let begun = std::time::Instant::now();
        while self.frame().await.is_some() {}
        begun.elapsed()
    }
}

/// The types of some events, in order.
pub fn kinds(told: &[Told]) -> Vec<&str> {
    told.iter().map(|told| told.kind.as_str()).collect()
}
