//! `highwater events`: what happens in the cluster, line by line, for as long as it is left running. A connection that
//! breaks is made again, to the next node if need be, behind the last event that was printed.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use reqwest::Response;
use serde_json::{Map, Value};

use super::http::{Api, query_string};
use super::{CliError, Exit, Output};

/// Between two rounds over all nodes.
const PAUSE: Duration = Duration::from_millis(500);
/// The node sends a sign of life each 15 s: a connection without any for longer is dead.
const SILENCE_MAX: Duration = Duration::from_secs(40);

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Admin APIs of nodes, separated by commas; the next one is asked when one is gone
    #[arg(long, value_delimiter = ',', default_value = "http://127.0.0.1:8082", env = "HIGHWATER_URL")]
    pub url: Vec<String>,
    #[arg(short, long, value_enum, default_value = "table", alias = "format")]
    pub output: Output,
    /// Only these types: `isr.*,leader.*`
    #[arg(short = 't', long = "type", value_name = "TYPES")]
    pub types: Option<String>,
    /// Only what is about these topics; `*` stands for anything
    #[arg(long)]
    pub topic: Option<String>,
    /// Only what is about these brokers
    #[arg(long)]
    pub broker: Option<String>,
    /// Begin in the past: -1h, epoch milliseconds or 2026-01-01T00:00:00Z; default: with what happens next
    #[arg(long, allow_hyphen_values = true)]
    pub since: Option<String>,
    /// Go on behind this event, as the node's `Last-Event-ID`
    #[arg(long, value_name = "ID")]
    pub after: Option<String>,
}

/// One server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    id: Option<String>,
    event: String,
    data: String,
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
struct Frames {
    rest: Vec<u8>,
    open: Frame,
}

impl Frames {
    /// Takes bytes as they come; returns the frames that are whole.
    fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.rest.extend_from_slice(bytes);
        let mut whole = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                whole.push(std::mem::take(&mut self.open));
                continue;
            }
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "id" => self.open.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut self.open.event),
                "data" => {
                    if !self.open.data.is_empty() {
                        self.open.data.push('\n');
                    }
                    self.open.data.push_str(value);
                }
                _ => {}
            }
        }
        whole
    }
}

/// Prints events until it is interrupted.
///
/// # Errors
/// No node answers at the start, or one refuses what is asked for.
pub async fn run(args: &EventsArgs) -> Result<Exit, CliError> {
    let given = [("type", &args.types), ("topic", &args.topic), ("broker_id", &args.broker), ("since", &args.since)];
    let query: Vec<(&str, &str)> =
        given.iter().filter_map(|(name, value)| value.as_deref().map(|value| (*name, value))).collect();
    let path = format!("/v3/clusters/-/events{}", query_string(&query));
    let nodes: Vec<Api> = args.url.iter().map(|url| Api::streaming(url)).collect::<Result<_, _>>()?;
    let mut last = args.after.clone();
    let mut connected = false;
    loop {
        let mut failure = None;
        for node in &nodes {
            match node.open(&path, last.as_deref()).await {
                Ok(response) => {
                    connected = true;
                    if print(response, args.output, &mut last).await? == Ended::Unread {
                        return Ok(Exit::Done);
                    }
                    eprintln!("highwater: the connection to {} ended; going on elsewhere", node.url());
                }
                // Another node would say the same.
                Err(error) if error.exit != Exit::Unreachable => return Err(error),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if !connected => return Err(error),
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The node or the way to it.
    Node,
    /// Nobody reads what is printed.
    Unread,
}

async fn print(mut response: Response, output: Output, last: &mut Option<String>) -> Result<Ended, CliError> {
    let mut frames = Frames::default();
    loop {
        let Ok(Ok(Some(bytes))) = tokio::time::timeout(SILENCE_MAX, response.chunk()).await else {
            return Ok(Ended::Node);
        };
        for frame in frames.push(&bytes) {
            if !frame.data.is_empty() {
                let mut out = std::io::stdout().lock();
                if writeln!(out, "{}", line(&frame, output)?).and_then(|()| out.flush()).is_err() {
                    return Ok(Ended::Unread);
                }
            }
            if frame.id.is_some() {
                *last = frame.id;
            }
        }
    }
}

fn line(frame: &Frame, output: Output) -> Result<String, CliError> {
    let data: Value = serde_json::from_str(&frame.data)
        .map_err(|error| CliError::new(Exit::Failed, format!("an event that is no JSON ({error}): {}", frame.data)))?;
    if output == Output::Table {
        return Ok(words(frame, &data));
    }
    let mut object = Map::new();
    object.insert("id".to_owned(), frame.id.clone().into());
    object.insert("event".to_owned(), frame.event.clone().into());
    if let Value::Object(facts) = data {
        object.extend(facts);
    }
    Ok(Value::Object(object).to_string())
}

/// `2026-01-01T00:00:00.000Z  isr.shrink  orders-7  reason=FOLLOWER_SLOW isr_after=[2,3] …`
fn words(frame: &Frame, data: &Value) -> String {
    let time = data["time"].as_str().unwrap_or("-");
    let place = match (data["topic_name"].as_str(), data["partition_id"].as_i64(), data["broker_id"].as_i64()) {
        (Some(topic), Some(partition), _) => format!("{topic}-{partition}"),
        (Some(topic), None, _) => topic.to_owned(),
        (None, _, Some(broker)) => format!("broker {broker}"),
        (None, _, None) => "-".to_owned(),
    };
    let said = ["time", "time_ms", "topic_name", "topic_id", "partition_id", "evidence", "broker_ids"];
    let facts = data.as_object().into_iter().flatten().filter(|(name, value)| {
        let is_said = said.contains(&name.as_str()) || (*name == "broker_id" && place.starts_with("broker "));
        !is_said && !value.is_null()
    });
    let facts: Vec<String> = facts
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        })
        .collect();
    format!("{time:24}  {:24}  {place:20}  {}", frame.event, facts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_wherever_the_bytes_end() {
        let text = ":\nid: 7.0\n\nid: 8.1\nevent: isr.shrink\ndata: {\"a\":\ndata: 1}\n\n";
        for at in 0..text.len() {
            let mut frames = Frames::default();
            let mut found = frames.push(&text.as_bytes()[..at]);
            found.extend(frames.push(&text.as_bytes()[at..]));
            let frame = |id: &str, event: &str, data: &str| Frame {
                id: Some(id.to_owned()),
                event: event.to_owned(),
                data: data.to_owned(),
            };
            assert_eq!(found, [frame("7.0", "", ""), frame("8.1", "isr.shrink", "{\"a\":\n1}")], "cut at {at}");
        }
    }

    #[test]
    fn an_event_is_a_line_for_people_and_an_object_for_scripts() {
        let frame = Frame {
            id: Some("88210.0".to_owned()),
            event: "isr.shrink".to_owned(),
            data: r#"{"time":"T","topic_name":"orders","partition_id":7,"reason":"FOLLOWER_SLOW","isr_after":[2,3]}"#
                .to_owned(),
        };
        let text = line(&frame, Output::Table).unwrap();
        let parts: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(parts, ["T", "isr.shrink", "orders-7", "isr_after=[2,3]", "reason=FOLLOWER_SLOW"]);
        let object: Value = serde_json::from_str(&line(&frame, Output::Jsonl).unwrap()).unwrap();
        assert_eq!(
            (&object["id"], &object["event"], &object["partition_id"]),
            (&"88210.0".into(), &"isr.shrink".into(), &7.into())
        );
    }
}
