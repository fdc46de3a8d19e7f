//! What each parameter means: a name means the same on every path, so it is described once.

use serde_json::{Value, json};

/// One parameter of paths or queries.
pub struct Parameter {
    pub name: &'static str,
    pub description: &'static str,
    /// A value that works on a cluster with a topic `orders` of three partitions on brokers 1, 2 and 3.
    pub example: &'static str,
    kind: Kind,
}

enum Kind {
    Text,
    Whole,
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
}

impl Parameter {
    /// Its schema.
    pub fn schema(&self) -> Value {
        match self.kind {
            Kind::Text => json!({ "type": "string" }),
            Kind::Whole => json!({ "type": "integer", "minimum": 0 }),
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Word(words) => json!({ "type": "string", "enum": words }),
        }
    }
}

/// The path parameter of this name.
pub fn in_path(name: &str) -> Option<&'static Parameter> {
    PATH.iter().find(|parameter| parameter.name == name)
}

/// The query parameter of this name.
pub fn in_query(name: &str) -> Option<&'static Parameter> {
    QUERY.iter().find(|parameter| parameter.name == name)
}

const fn text(name: &'static str, example: &'static str, description: &'static str) -> Parameter {
    Parameter { name, description, example, kind: Kind::Text }
}

const fn whole(name: &'static str, example: &'static str, description: &'static str) -> Parameter {
    Parameter { name, description, example, kind: Kind::Whole }
}

const fn flag(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, description, example: "true", kind: Kind::Flag }
}

const fn word(name: &'static str, words: &'static [&'static str], description: &'static str) -> Parameter {
    Parameter { name, description, example: words[0], kind: Kind::Word(words) }
}

/// Segments of paths.
const PATH: &[Parameter] = &[
    text("cluster_id", "-", "Id of the cluster; `-`: the one that answers."),
    text("topic_name", "orders", "Name of a topic; `-`, where lists are answered: all topics."),
    text("partition_id", "0", "Number of a partition; `-`, where lists are answered: all partitions."),
    whole("broker_id", "1", "`node.id` of a broker; `-`, where a restart is checked: the next one that is safe."),
    whole("node_id", "1", "`node.id` of a voter."),
    text("consumer_group_id", "billing", "A consumer group."),
    text("name", "retention.ms", "A configuration key."),
    text(
        "logger_name",
        "replica",
        "A part of a process that writes log lines; `root`: all that have no level of their own.",
    ),
];

/// What stands behind the `?`. In filters a comma is OR, a repeated parameter AND, and `*` stands for anything.
const QUERY: &[Parameter] = &[
    // Of every read.
    word("consistency", &["linearizable", "local"], "`linearizable` asks the raft leader first (read index)."),
    whole(
        "min_metadata_offset",
        "1",
        "Wait until this node has applied metadata up to here; 503/50311 if not in time.",
    ),
    whole("timeout_ms", "5000", "How long to wait for metadata or for the quorum; at most a minute."),
    text("fields", "kind", "Keep only these fields of the object, or of each object of a list; separated by commas."),
    flag("include_authorized_operations", "Accepted for REST v3; everything is allowed, so nothing is listed."),
    flag("includeAuthorizedOperations", "The other spelling of REST v3."),
    // Of every list.
    whole("page_size", "1", "Objects per page, 1 to 5000; without it the list is whole."),
    text("page_token", "6b6f72", "From `metadata.next` of the page before; needs `page_size`."),
    text("sort", "-kind", "Sort by this field; downwards with a `-` before it."),
    // Filters.
    text("topic", "ord*", "Filter by topic name."),
    text("broker_id", "1,2", "Filter by broker: of what it hosts or what concerns it."),
    text("leader_id", "1", "Filter by the broker that leads."),
    text("state", "*", "Filter by state; the words are those of the answer."),
    text("name", "*", "Filter by configuration key or logger."),
    text("type", "*", "Filter by type; the words are those of the answer."),
    text("reason", "*", "Filter by reason; the words are those of the answer."),
    text("since", "-1h", "Not before: -24h, epoch milliseconds or 2026-01-01T00:00:00Z."),
    text("until", "2100-01-01T00:00:00Z", "Not after; as `since`."),
    whole("min_lag_ms", "0", "Only partitions with a replica that is at least this far behind."),
    // Of single paths.
    word("offset_type", &["earliest_and_latest", "earliest", "latest"], "Which ends of the log."),
    whole("limit", "5", "Partitions listed per check; counts are always complete."),
    whole("since_metadata_offset", "1", "Brokers registered after this metadata offset count as restarted already."),
    flag("retain_as_observer", "A voter that is removed goes on learning the metadata."),
    flag("validate_only", "Check all, change nothing; the answer is the same object."),
    flag("fail", "Answer 503 instead of 200 when the answer is bad news."),
    word("level", &["serving", "in_sync"], "`in_sync`: also, every replica here that can be in the ISR is in it."),
];
