//! `/events`: what happens in the cluster, as server-sent events (operators.md 1.4 K).
//!
//! An id is a place in the metadata log, the same on every node: whoever was cut off goes on with `Last-Event-ID`, here or
//! elsewhere, and misses nothing and sees nothing twice. Each connection reads the quorum's journal at its own pace, so
//! that a slow one holds up nobody; what the journal no longer has is told as a `gap`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::sse::{self, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use highwater_quorum::image::ChangeKind;
use highwater_quorum::image::events::{ConfigChange, Event, EventId, EventKind};
use highwater_wire::BrokerId;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};

use crate::AdminState;
use crate::error::ApiError;
use crate::partitions::history::{EvidenceBody, LossBody, concerned, missing, words};
use crate::partitions::ids;
use crate::query::Filter;
use crate::respond::Call;
use crate::routes::{self, Route};
use crate::time::{now_ms, rfc3339};

/// A sign of life when nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Events read at once.
const PAGE: usize = 256;

const FILTERS: &[&str] = &["type", "topic", "broker_id", "since"];

/// Every type there is.
const TYPES: &[&str] = &[
    "broker.registered",
    "broker.fenced",
    "broker.unfenced",
    "broker.shutdown",
    "broker.unregistered",
    "isr.shrink",
    "isr.expand",
    "leader.elected",
    "leader.lost",
    "partition.offline",
    "partition.online",
    "partition.under_min_isr",
    "partition.data_lost",
    "topic.created",
    "topic.deleted",
    "topic.grown",
    "config.changed",
    "quorum.leader",
    "quorum.membership",
];

/// This file's route.
pub fn routes() -> Vec<Route> {
    const WHAT: &str = "Everything that happens, as it happens; goes on after the `Last-Event-ID` a reader sends";
    vec![routes::get("/events", stream, WHAT).media("text/event-stream").knows(FILTERS)]
}

/// What a reader wants to hear of.
struct Wanted {
    types: Filter,
    topics: Filter,
    brokers: Filter,
}

impl Wanted {
    fn admits(&self, event: &Event) -> bool {
        let (topic, brokers) = about(&event.kind);
        self.types.admits(event.kind.name())
            && (self.topics.is_empty() || topic.is_some_and(|topic| self.topics.admits(topic)))
            && (self.brokers.is_empty() || self.brokers.admits_numbers(brokers.into_iter()))
    }
}

/// `GET /events`
///
/// Begins with what happens next, or with `since`, or behind the header `Last-Event-ID`. 400 for an id that is none.
pub async fn stream(
    State(admin): State<AdminState>,
    Path(cluster): Path<String>,
    call: Call,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let read = call.read(&admin, &cluster, &[FILTERS]).await?;
    let since = read.params.time("since", now_ms())?;
    let wanted = Wanted {
        types: read.params.filter("type", Some(TYPES))?,
        topics: read.params.filter("topic", None)?,
        brokers: read.params.number_filter("broker_id")?,
    };
    let last = match headers.get("last-event-id").map(|value| value.to_str()) {
        None | Some(Ok("")) => None,
        Some(given) => {
            let id = given.ok().and_then(|text| text.parse::<EventId>().ok());
            Some(id.ok_or_else(|| ApiError::malformed("Last-Event-ID: an id that this API gave, such as 88210.0"))?)
        }
    };
    let (position, search) = match (last, since) {
        (Some(id), _) => (id, None),
        (None, Some(_)) => (admin.quorum.events_floor(), since),
        (None, None) => (EventId::end_of(read.image.version.0), None),
    };
    let reader = Reader {
        looked: admin.quorum.events_watch(),
        leader: admin.quorum.leader(),
        closing: admin.closing(),
        admin,
        wanted,
        position,
        said: None,
        search,
        waiting: VecDeque::new(),
        heartbeat: Instant::now() + HEARTBEAT,
    };
    let mut response = Sse::new(reader.stream()).into_response();
    read.mark(&mut response);
    Ok(response)
}

/// One connection.
struct Reader {
    admin: AdminState,
    wanted: Wanted,
    /// Everything up to here was read.
    position: EventId,
    /// The place that the other end knows of.
    said: Option<EventId>,
    /// Nothing is said before the first event of this time or later.
    search: Option<i64>,
    waiting: VecDeque<sse::Event>,
    looked: tokio::sync::watch::Receiver<u64>,
    leader: Option<BrokerId>,
    closing: tokio::sync::watch::Receiver<bool>,
    heartbeat: Instant,
}

impl Reader {
    fn stream(self) -> impl Stream<Item = Result<sse::Event, Infallible>> {
        futures::stream::unfold(self, async |mut reader| {
            let event = reader.next().await?;
            reader.heartbeat = Instant::now() + HEARTBEAT;
            Some((Ok(event), reader))
        })
    }

    /// The next thing to say; `None` when this node stops or its journal cannot be read.
    async fn next(&mut self) -> Option<sse::Event> {
        if self.said.is_none() {
            // Where this begins, so that a reader who is cut off before the first event can go on from here.
            return Some(self.place());
        }
        let mut leaders = self.admin.quorum.leader_changes();
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if *self.closing.borrow_and_update() {
                return None;
            }
            let _ = self.looked.borrow_and_update();
            if self.read()? {
                continue;
            }
            let leader = self.admin.quorum.leader();
            if leader != self.leader {
                self.leader = leader;
                if self.wanted.types.admits("quorum.leader") && self.is_unfiltered() {
                    return Some(self.leader_changed());
                }
            }
            tokio::select! {
                changed = self.looked.changed() => changed.ok()?,
                changed = leaders.changed() => changed.then_some(())?,
                _ = self.closing.changed() => return None,
                () = sleep_until(self.heartbeat) => return Some(self.place()),
            }
        }
    }

    /// Reads on; whether there was anything.
    fn read(&mut self) -> Option<bool> {
        let mut page = self.admin.quorum.events_after(self.position, PAGE).ok()?;
        if let Some(to) = page.gap_to {
            self.waiting.push_back(gap(Some(self.position), to));
        }
        let moved = page.position != self.position;
        if let Some(since) = self.search {
            let found = page.events.iter().position(|event| event.time.0 >= since);
            // Nothing older than what was looked for is here: more of it may have been before.
            if found == Some(0) && self.position == self.admin.quorum.events_floor() && self.position.index > 0 {
                self.waiting.push_back(gap(None, self.position));
            }
            page.events.drain(..found.unwrap_or(page.events.len()));
            self.search = self.search.filter(|_| found.is_none());
        }
        for event in page.events.iter().filter(|event| self.wanted.admits(event)) {
            self.waiting.push_back(frame(event));
            self.said = Some(event.id);
        }
        self.position = page.position;
        Some(moved)
    }

    /// A comment that keeps the connection, with the place reached: nothing before it concerns this reader any more.
    fn place(&mut self) -> sse::Event {
        let event = sse::Event::default().comment("");
        if self.said == Some(self.position) {
            return event;
        }
        self.said = Some(self.position);
        event.id(self.position.to_string())
    }

    fn is_unfiltered(&self) -> bool {
        self.wanted.topics.is_empty() && self.wanted.brokers.is_empty()
    }

    /// No entry says who leads raft, so this has no id: it is as this node hears it.
    fn leader_changed(&self) -> sse::Event {
        let time = now_ms();
        let data = json!({
            "time": rfc3339(time), "time_ms": time,
            "leader_id": self.leader.map(|leader| leader.0), "leader_epoch": self.admin.quorum.status().term,
        });
        sse::Event::default().event("quorum.leader").data(data.to_string())
    }
}

/// Events between the two are lost to this reader. The id is that of the end: it is told once.
fn gap(from: Option<EventId>, to: EventId) -> sse::Event {
    let message = "the journal of this node begins behind `to`: read /state and /history, or ask another node";
    let data = json!({ "from": from.map(|from| from.to_string()), "to": to.to_string(), "message": message });
    sse::Event::default().event("gap").id(to.to_string()).data(data.to_string())
}

fn frame(event: &Event) -> sse::Event {
    let frame = sse::Event::default().event(event.kind.name()).id(event.id.to_string());
    frame.data(body(event).to_string())
}

/// The topic and the brokers an event is about.
fn about(kind: &EventKind) -> (Option<&str>, Vec<i32>) {
    match kind {
        EventKind::BrokerRegistered { broker, .. }
        | EventKind::BrokerFenced { broker, .. }
        | EventKind::BrokerUnfenced { broker, .. }
        | EventKind::BrokerShutdown { broker, .. }
        | EventKind::BrokerUnregistered { broker } => (None, vec![broker.0]),
        EventKind::TopicCreated { name, .. }
        | EventKind::TopicDeleted { name, .. }
        | EventKind::TopicGrown { name, .. }
        | EventKind::TopicConfigChanged { name, .. } => (Some(name), vec![]),
        EventKind::Partition { topic, change, .. } => (Some(topic), concerned(change)),
        EventKind::PartitionOffline { topic, eligible, .. } => (Some(topic), ids(eligible)),
        EventKind::PartitionOnline { topic, leader, .. } => (Some(topic), vec![leader.0]),
        EventKind::PartitionUnderMinIsr { topic, isr, .. } => (Some(topic), ids(isr)),
        EventKind::BrokerConfigChanged { broker, .. } => (None, broker.iter().map(|broker| broker.0).collect()),
        EventKind::QuorumMembership { voters, observers } => {
            (None, voters.iter().chain(observers).map(|node| node.0).collect())
        }
    }
}

fn keys(changed: &[ConfigChange]) -> Vec<Value> {
    let one = |key: &ConfigChange| json!({ "name": key.name, "value_before": key.before, "value": key.after });
    changed.iter().map(one).collect()
}

fn body(event: &Event) -> Value {
    let facts = match &event.kind {
        EventKind::BrokerRegistered { broker, epoch, version } => {
            json!({ "broker_id": broker.0, "broker_epoch": epoch.0, "version": version })
        }
        EventKind::BrokerFenced { broker, epoch }
        | EventKind::BrokerUnfenced { broker, epoch }
        | EventKind::BrokerShutdown { broker, epoch } => json!({ "broker_id": broker.0, "broker_epoch": epoch.0 }),
        EventKind::BrokerUnregistered { broker } => json!({ "broker_id": broker.0 }),
        EventKind::TopicCreated { name, topic, partitions } | EventKind::TopicDeleted { name, topic, partitions } => {
            json!({ "topic_name": name, "topic_id": topic.to_string(), "partitions_count": partitions })
        }
        EventKind::TopicGrown { name, topic, before, after } => json!({
            "topic_name": name, "topic_id": topic.to_string(),
            "partitions_before": before, "partitions_count": after,
        }),
        EventKind::Partition { topic, partition, change } => {
            let mut facts = json!({
                "topic_name": topic, "partition_id": partition, "reason": words(&change.kind).1,
                "leader_id": change.leader.map(|leader| leader.0), "leader_epoch": change.leader_epoch.0,
                "partition_epoch": change.partition_epoch.0,
                "requested_by": change.requested_by.map(|broker| broker.0),
            });
            match &change.kind {
                ChangeKind::Shrink { before, after, evidence, .. }
                | ChangeKind::Expand { before, after, evidence, .. } => {
                    let moved =
                        if before.len() > after.len() { missing(before, after) } else { missing(after, before) };
                    facts["isr_before"] = json!(ids(before));
                    facts["isr_after"] = json!(ids(after));
                    facts["broker_id"] = json!(moved.first());
                    facts["broker_ids"] = json!(moved);
                    facts["evidence"] = json!(evidence.iter().map(EvidenceBody::from).collect::<Vec<_>>());
                }
                ChangeKind::Leader { before, .. } => facts["leader_before"] = json!(before.map(|leader| leader.0)),
                ChangeKind::DataLoss { .. } => facts["loss"] = json!(LossBody::of(&change.kind)),
            }
            facts
        }
        EventKind::PartitionOffline { topic, partition, leader_epoch, eligible } => json!({
            "topic_name": topic, "partition_id": partition, "leader_epoch": leader_epoch.0,
            "eligible": ids(eligible),
        }),
        EventKind::PartitionOnline { topic, partition, leader_epoch, leader } => json!({
            "topic_name": topic, "partition_id": partition, "leader_epoch": leader_epoch.0, "leader_id": leader.0,
        }),
        EventKind::PartitionUnderMinIsr { topic, partition, leader_epoch, isr, min_isr } => json!({
            "topic_name": topic, "partition_id": partition, "leader_epoch": leader_epoch.0,
            "isr": ids(isr), "min_insync_replicas": min_isr,
        }),
        EventKind::TopicConfigChanged { name, topic, changed } => json!({
            "resource_type": "TOPIC", "topic_name": name, "topic_id": topic.to_string(), "changed": keys(changed),
        }),
        EventKind::BrokerConfigChanged { broker, changed } => json!({
            "resource_type": "BROKER", "broker_id": broker.map(|broker| broker.0), "changed": keys(changed),
        }),
        EventKind::QuorumMembership { voters, observers } => {
            json!({ "voters": ids(voters), "observers": ids(observers) })
        }
    };
    let mut body = Map::new();
    if event.time.0 >= 0 {
        body.insert("time".to_owned(), json!(rfc3339(event.time.0)));
        body.insert("time_ms".to_owned(), json!(event.time.0));
    }
    if let Value::Object(facts) = facts {
        body.extend(facts);
    }
    Value::Object(body)
}
