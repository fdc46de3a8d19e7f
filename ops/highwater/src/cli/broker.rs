//! `highwater broker list`, `describe`, `check` and `unregister`: the brokers, whether one may be restarted now, and how to
//! forget one.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::Args;
use highwater_admin::rfc3339;
use reqwest::Method;
use serde_json::Value;

use super::ask::{self, Consent};
use super::http::Api;
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// Id of the broker
    pub broker: i32,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Id of the broker that is to be restarted
    #[arg(required_unless_present = "next")]
    pub broker: Option<i32>,
    /// Which broker is safe to restart next: the one that has run longest
    #[arg(long, conflicts_with = "broker")]
    pub next: bool,
    /// With --next: the metadata offset at which the rolling restart began (`roll` in its first answer). Brokers
    /// registered after it have had their turn, the raft leader comes last
    #[arg(long, value_name = "OFFSET", requires = "next")]
    pub since: Option<u64>,
    #[command(flatten)]
    pub api: ApiArgs,
    /// Ask again until it is safe; what stands in the way is told on stderr when it changes
    #[arg(long)]
    pub wait: bool,
    /// With --wait: give up after this many seconds (exit code 7)
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "wait")]
    pub timeout: u64,
    /// Partitions listed per check; counts are always complete
    #[arg(long, default_value_t = 10)]
    pub limit: usize,
}

#[derive(Debug, Args)]
pub struct UnregisterArgs {
    /// Id of the broker
    pub broker: i32,
    #[command(flatten)]
    pub consent: Consent,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// # Errors
/// Nobody answers, or says no.
pub async fn list(args: &ListArgs) -> Result<Exit, CliError> {
    let answer = Api::new(&args.api.url)?.get("/brokers", &[]).await?;
    let rows = answer["data"].as_array().cloned().unwrap_or_default();
    match args.api.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer).unwrap_or_default()),
        Output::Jsonl => rows.iter().for_each(|row| println!("{row}")),
        Output::Table => {
            let head = ["BROKER", "STATE", "HOST", "PORT", "RACK", "EPOCH", "CONTROLLER", "VERSION", "ADMIN"];
            let fields =
                ["broker_id", "state", "host", "port", "rack", "broker_epoch", "is_controller", "version", "admin_url"];
            let rows: Vec<Vec<String>> =
                rows.iter().map(|row| fields.iter().map(|field| cell(&row[*field])).collect()).collect();
            print!("{}", table::print(&head, &rows));
        }
    }
    Ok(Exit::Done)
}

/// # Errors
/// There is no such broker, or nobody answers.
pub async fn describe(args: &DescribeArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let broker = api.get(&format!("/brokers/{}", args.broker), &[]).await?;
    match args.api.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&broker).unwrap_or_default()),
        Output::Jsonl => println!("{broker}"),
        Output::Table => {
            let recovery = api.get(&format!("/brokers/{}/recovery", args.broker), &[]).await?;
            print!("{}", described(&broker, &recovery));
        }
    }
    Ok(Exit::Done)
}

fn described(broker: &Value, recovery: &Value) -> String {
    let address = format!("{}:{}", cell(&broker["host"]), cell(&broker["port"]));
    let in_sync = format!(
        "{} % of its replicas, {} missing",
        cell(&recovery["in_sync_replicas_pct"]),
        cell(&recovery["isr_missing"])
    );
    let lines = [
        ("broker", cell(&broker["broker_id"])),
        ("state", cell(&broker["state"])),
        ("address", address),
        ("rack", cell(&broker["rack"])),
        ("epoch", cell(&broker["broker_epoch"])),
        ("incarnation", cell(&broker["incarnation_id"])),
        ("controller", cell(&broker["is_controller"])),
        ("version", cell(&broker["version"])),
        ("admin API", cell(&broker["admin_url"])),
        ("recovered", cell(&recovery["recovered"])),
        ("in sync", in_sync),
        ("leads", format!("{} % of the partitions it should", cell(&recovery["leaders_pct_of_preferred"]))),
    ];
    lines.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "{name:<12} {value}");
        out
    })
}

/// Exit code 0 when safe (or, with `--next`, when every broker has had its turn), 7 when not.
///
/// # Errors
/// There is no such broker, or nobody answers.
pub async fn check(args: &CheckArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let path = args.broker.map_or("/brokers/-/restart-check".to_owned(), |id| format!("/brokers/{id}/restart-check"));
    let (limit, since) = (args.limit.to_string(), args.since.map(|since| since.to_string()));
    let mut query = vec![("limit", limit.as_str())];
    query.extend(since.as_deref().map(|since| ("since_metadata_offset", since)));
    let until = Instant::now() + Duration::from_secs(args.timeout);
    let mut told = String::new();
    let asking = async {
        loop {
            let answer = api.get(&path, &query).await;
            let left = until.saturating_duration_since(Instant::now());
            let again = match &answer {
                Ok(answer) => !is_safe(answer),
                // A node that is being restarted is a state to wait through; a broker that does not exist is not.
                Err(error) => error.exit == Exit::Unreachable,
            };
            if !args.wait || !again || left.is_zero() {
                return answer;
            }
            let (text, pause) = match &answer {
                Ok(answer) => (shown(answer), answer["retry_after_ms"].as_u64().unwrap_or(1_000).clamp(100, 5_000)),
                Err(error) => (format!("no answer: {error}\n"), 500),
            };
            if text != told {
                eprint!("{text}");
                told = text;
            }
            tokio::time::sleep(Duration::from_millis(pause).min(left)).await;
        }
    };
    let answer = tokio::select! {
        answer = asking => answer?,
        _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
    };
    match args.api.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer).unwrap_or_default()),
        Output::Jsonl => println!("{answer}"),
        Output::Table => print!("{}", shown(&answer)),
    }
    Ok(if is_safe(&answer) { Exit::Done } else { Exit::Unhealthy })
}

/// # Errors
/// There is no such broker (3), it lives or still owns replicas (4), nobody agreed, or nobody answers.
pub async fn unregister(args: &UnregisterArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let broker = api.get(&format!("/brokers/{}", args.broker), &[]).await?;
    let path = format!("/brokers/{}:unregister", args.broker);
    let ask = async |validate_only: &str| {
        let query = [("validate_only", validate_only), ("timeout_ms", "60000")];
        api.send(Method::POST, &path, &query, None).await
    };
    ask("true").await?;
    if ask::go_on(&farewell(&broker), &args.consent)? {
        ask("false").await?;
        eprintln!("broker {} is forgotten", args.broker);
    }
    Ok(Exit::Done)
}

/// What becomes of a broker that is forgotten.
fn farewell(broker: &Value) -> String {
    format!(
        "broker {} ({}:{}), {} since {}, hosts no replica. It is forgotten, and leaves the metadata quorum if it does not \
         vote there.\nIf it is started again, it registers as a new one.\n",
        cell(&broker["broker_id"]),
        cell(&broker["host"]),
        cell(&broker["port"]),
        cell(&broker["state"]),
        broker["state_since_ms"].as_i64().map_or_else(|| "-".to_owned(), rfc3339),
    )
}

fn is_safe(answer: &Value) -> bool {
    answer["safe"] == true
}

fn shown(answer: &Value) -> String {
    let (broker, roll) = (&answer["broker_id"], &answer["roll"]);
    let mut out = String::new();
    let _ = match (is_safe(answer), broker.is_null()) {
        (true, true) => {
            writeln!(
                out,
                "no broker is left: all have been restarted since metadata offset {}",
                cell(&roll["since_metadata_offset"])
            )
        }
        (true, false) => writeln!(out, "broker {} is safe to restart", cell(broker)),
        (false, true) => writeln!(out, "it cannot be told whether a broker is left to restart"),
        (false, false) => writeln!(out, "broker {} is NOT safe to restart now", cell(broker)),
    };
    for check in answer["blocking"].as_array().into_iter().flatten() {
        let _ = write!(out, "  {} {}", cell(&check["check"]), cell(&check["count"]));
        if let Some(why) = check["why"].as_str() {
            let _ = write!(out, ": {why}");
        }
        if check["brokers"].is_array() {
            let _ = write!(out, ": broker {} not in service", cell(&check["brokers"]));
        }
        out.push('\n');
        // The partitions behind this one are those of the other checks.
        if check["check"] != "other_broker_down" {
            let partitions = check["partitions"].as_array().map_or(&[][..], Vec::as_slice);
            partitions.iter().for_each(|partition| out.push_str(&partition_line(partition)));
            let more = check["count"].as_u64().unwrap_or(0).saturating_sub(partitions.len() as u64);
            if more > 0 && !partitions.is_empty() {
                let _ = writeln!(out, "    and {more} more");
            }
        }
    }
    for check in answer["accepted"].as_array().into_iter().flatten().filter(|check| check["count"] != 0) {
        let _ = writeln!(out, "  accepted: {} {}", cell(&check["check"]), cell(&check["count"]));
    }
    let (quorum, next) = (&answer["quorum"], &answer["next_safe_broker"]);
    if is_safe(answer) && !broker.is_null() {
        let _ = writeln!(
            out,
            "  voters caught up without it: {} of {}",
            cell(&quorum["caught_up_without_broker"]),
            cell(&quorum["voters"])
        );
    }
    if !is_safe(answer) {
        if !next.is_null() {
            let _ = writeln!(out, "  safe now: broker {}", cell(next));
        }
        let _ = writeln!(out, "  ask again in {} ms", cell(&answer["retry_after_ms"]));
    }
    if roll.is_object() {
        let _ = writeln!(out, "  roll: --since {}, left {}", cell(&roll["since_metadata_offset"]), cell(&roll["left"]));
    }
    out
}

fn partition_line(partition: &Value) -> String {
    let mut line = format!(
        "    {}-{} ISR {} of {}, min {}",
        cell(&partition["topic_name"]),
        cell(&partition["partition_id"]),
        cell(&partition["isr"]),
        cell(&partition["replicas"]),
        cell(&partition["min_insync_replicas"])
    );
    let waiting: Vec<String> =
        partition["waiting_for"].as_array().into_iter().flatten().map(super::partition::waiting).collect();
    if !waiting.is_empty() {
        let _ = write!(line, ", waits for {}", waiting.join(", "));
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unsafe_check_names_what_it_waits_for_and_who_is_safe() {
        let partition = json!({"topic_name": "orders", "partition_id": 7, "isr": [2, 3], "replicas": [1, 2, 3],
            "min_insync_replicas": 2, "waiting_for": [{"broker_id": 1, "why": "CATCHING_UP", "lag_ms": 31250, "eta_ms": 4193}]});
        let answer = json!({"broker_id": 2, "safe": false, "retry_after_ms": 4193, "next_safe_broker": 1,
            "blocking": [{"check": "full_acks_produce_unavailable", "count": 3, "partitions": [partition]},
                {"check": "other_broker_down", "count": 1, "brokers": [5], "partitions": [partition]},
                {"check": "quorum_loss", "count": 1, "why": "1 of 3"}],
            "accepted": [{"check": "rf1_offline", "count": 0}, {"check": "min_isr_equals_rf", "count": 2}]});
        let expected = "broker 2 is NOT safe to restart now
  full_acks_produce_unavailable 3
    orders-7 ISR 2,3 of 1,2,3, min 2, waits for 1 CATCHING_UP lag 31250 ms eta 4193 ms
    and 2 more
  other_broker_down 1: broker 5 not in service
  quorum_loss 1: 1 of 3
  accepted: min_isr_equals_rf 2
  safe now: broker 1
  ask again in 4193 ms
";
        assert_eq!(shown(&answer), expected);
    }

    #[test]
    fn whoever_forgets_a_broker_is_told_which_and_since_when_it_is_gone() {
        let broker = json!({"broker_id": 4, "host": "n4", "port": 9092, "state": "FENCED", "state_since_ms": 1_767_225_600_123_i64});
        let told = farewell(&broker);
        assert!(
            told.starts_with("broker 4 (n4:9092), FENCED since 2026-01-01T00:00:00.123Z, hosts no replica."),
            "{told}"
        );
    }

    #[test]
    fn a_roll_that_is_over_says_so() {
        let over =
            json!({"broker_id": null, "safe": true, "roll": {"since_metadata_offset": 88, "left": [], "done": true}});
        assert!(shown(&over).starts_with("no broker is left: all have been restarted since metadata offset 88\n"));
        assert!(is_safe(&over));
    }
}
