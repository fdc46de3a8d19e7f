//! `highwater partition state` and `highwater partition history`.

use clap::Args;
use serde_json::Value;

use super::http::Api;
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Args)]
pub struct StateArgs {
    /// TOPIC or TOPIC:PARTITION; all when none is named
    pub partitions: Vec<String>,
    #[command(flatten)]
    pub api: ApiArgs,
    /// Only partitions in one of these states, such as UNDER_REPLICATED,OFFLINE
    #[arg(long)]
    pub state: Option<String>,
    /// Only partitions with a replica on this broker
    #[arg(long)]
    pub broker: Option<i32>,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// TOPIC or TOPIC:PARTITION; all when none is named
    pub partitions: Vec<String>,
    #[command(flatten)]
    pub api: ApiArgs,
    /// ISR_SHRINK, ISR_EXPAND, LEADER_CHANGE, DATA_LOSS
    #[arg(long = "type")]
    pub type_: Option<String>,
    /// Such as 1h, or 2026-01-01T00:00:00Z
    #[arg(long)]
    pub since: Option<String>,
    /// Only changes that concern this broker
    #[arg(long)]
    pub broker: Option<i32>,
}

/// # Errors
/// Nobody answers, or a partition does not exist.
pub async fn state(args: &StateArgs) -> Result<Exit, CliError> {
    let broker = args.broker.map(|broker| broker.to_string());
    let mut query = Vec::new();
    query.extend(args.state.as_deref().map(|state| ("state", state)));
    query.extend(broker.as_deref().map(|broker| ("broker_id", broker)));
    let rows = collect(&args.api, &args.partitions, "state", &query).await?;
    let head =
        ["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "ELR", "HW", "END", "STATES", "WAITING FOR"];
    show(args.api.output, &rows, &head, |row| {
        let waiting: Vec<String> = row["waiting_for"].as_array().into_iter().flatten().map(waiting).collect();
        let fields = [
            "topic_name",
            "partition_id",
            "leader_id",
            "leader_epoch",
            "replicas",
            "isr",
            "elr",
            "high_watermark",
            "log_end_offset",
            "states",
        ];
        let mut cells: Vec<String> = fields.iter().map(|field| cell(&row[*field])).collect();
        cells.push(if waiting.is_empty() { "-".to_owned() } else { waiting.join(", ") });
        cells
    });
    Ok(Exit::Done)
}

/// One replica that is waited for, and why.
pub(super) fn waiting(row: &Value) -> String {
    let mut text = format!("{} {}", cell(&row["broker_id"]), cell(&row["why"]));
    if let Some(lag) = row["lag_ms"].as_u64() {
        text.push_str(&format!(" lag {lag} ms"));
    }
    if let Some(eta) = row["eta_ms"].as_u64() {
        text.push_str(&format!(" eta {eta} ms"));
    }
    text
}

/// # Errors
/// Nobody answers, or a partition does not exist.
pub async fn history(args: &HistoryArgs) -> Result<Exit, CliError> {
    let broker = args.broker.map(|broker| broker.to_string());
    // `--since 1h` and `--since -1h` mean the same.
    let since = args.since.as_deref().map(|since| match since.ends_with(['s', 'm', 'h', 'd']) {
        true if !since.starts_with('-') => format!("-{since}"),
        _ => since.to_owned(),
    });
    let mut query = Vec::new();
    query.extend(args.type_.as_deref().map(|type_| ("type", type_)));
    query.extend(since.as_deref().map(|since| ("since", since)));
    query.extend(broker.as_deref().map(|broker| ("broker_id", broker)));
    let rows = collect(&args.api, &args.partitions, "history", &query).await?;
    let head = ["TIME", "TOPIC", "PARTITION", "TYPE", "REASON", "ISR", "LEADER", "EPOCH", "BY", "EVIDENCE"];
    show(args.api.output, &rows, &head, |row| {
        let isr = match row["isr_before"].is_null() {
            true => "-".to_owned(),
            false => format!("{} -> {}", cell(&row["isr_before"]), cell(&row["isr_after"])),
        };
        let leader = match row["type"] == "LEADER_CHANGE" {
            true => format!("{} -> {}", cell(&row["leader_before"]), cell(&row["leader_id"])),
            false => cell(&row["leader_id"]),
        };
        let by = match row["requested_by"].is_null() {
            true => "controller".to_owned(),
            false => format!("broker {}", cell(&row["requested_by"]["broker_id"])),
        };
        let mut cells: Vec<String> =
            ["time", "topic_name", "partition_id", "type", "reason"].iter().map(|field| cell(&row[*field])).collect();
        let why = if row["type"] == "DATA_LOSS" { evidence(&row["loss"]) } else { evidence(&row["evidence"]) };
        cells.extend([isr, leader, cell(&row["leader_epoch"]), by, why]);
        cells
    });
    Ok(Exit::Done)
}

fn evidence(evidence: &Value) -> String {
    let Value::Object(fields) = evidence else { return "-".to_owned() };
    let told = fields.iter().filter(|(_, value)| !value.is_null());
    told.map(|(name, value)| format!("{name}={}", cell(value))).collect::<Vec<_>>().join(" ")
}

/// The rows of all partitions named.
async fn collect(
    api: &ApiArgs,
    partitions: &[String],
    what: &str,
    query: &[(&str, &str)],
) -> Result<Vec<Value>, CliError> {
    let client = Api::new(&api.url)?;
    let everything = ["-".to_owned()];
    let named = if partitions.is_empty() { &everything[..] } else { partitions };
    let mut rows = Vec::new();
    for name in named {
        let (topic, partition) = name.split_once(':').unwrap_or((name, "-"));
        let path = format!("/topics/{topic}/partitions/{partition}/{what}");
        let answer = client.get(&path, query).await?;
        match answer.get("data") {
            Some(Value::Array(items)) => rows.extend(items.iter().cloned()),
            _ => rows.push(answer),
        }
    }
    Ok(rows)
}

fn show(output: Output, rows: &[Value], head: &[&str], cells: impl Fn(&Value) -> Vec<String>) {
    match output {
        Output::Table => {
            let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
            print!("{}", table::print(head, &rows));
        }
        Output::Json => println!("{}", serde_json::to_string_pretty(rows).unwrap_or_default()),
        Output::Jsonl => rows.iter().for_each(|row| println!("{row}")),
    }
}
