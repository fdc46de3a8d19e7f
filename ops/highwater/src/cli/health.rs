//! `highwater health`: the cluster's health, once or until it is healthy.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::http::Api;
use super::table::cell;
use super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Args)]
pub struct HealthArgs {
    #[command(flatten)]
    pub api: ApiArgs,
    /// Look again every half second and print what changes
    #[arg(short, long)]
    pub watch: bool,
    /// With --watch: end as soon as the cluster is healthy
    #[arg(short, long)]
    pub exit_when_healthy: bool,
    /// With --watch: give up after this many seconds (exit code 7)
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
}

/// Exit code 0 when healthy, 7 when not, 5 when nobody answers.
///
/// # Errors
/// Nobody answers, or says no.
pub async fn run(args: &HealthArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    if !args.watch {
        let health = api.get("/health", &[]).await?;
        print(args.api.output, &health);
        return Ok(if health["healthy"] == true { Exit::Done } else { Exit::Unhealthy });
    }
    let mut last = String::new();
    let limit = args.timeout.map_or(Duration::MAX, Duration::from_secs);
    let watch = async {
        loop {
            // A node that does not answer is a state to watch, too.
            let (text, healthy) = match api.get("/health", &[]).await {
                Ok(health) => (shown(args.api.output, &health), health["healthy"] == true),
                Err(error) => (format!("no answer: {error}\n"), false),
            };
            if text != last {
                print!("{text}");
                last = text;
            }
            if healthy && args.exit_when_healthy {
                return Exit::Done;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        exit = watch => Ok(exit),
        () = tokio::time::sleep(limit), if args.timeout.is_some() => Ok(Exit::Unhealthy),
        _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
    }
}

fn print(output: Output, health: &Value) {
    print!("{}", shown(output, health));
}

fn shown(output: Output, health: &Value) -> String {
    match output {
        Output::Json => format!("{}\n", serde_json::to_string_pretty(health).unwrap_or_default()),
        Output::Jsonl => format!("{health}\n"),
        Output::Table => summary(health),
    }
}

fn summary(health: &Value) -> String {
    let (brokers, partitions, quorum) = (&health["brokers"], &health["partitions"], &health["quorum"]);
    let word = if health["healthy"] == true { "healthy" } else { "UNHEALTHY" };
    let mut out = format!(
        "{word}: brokers {} of {}, partitions {} ({} offline, {} under min ISR, {} under-replicated), quorum leader {}, \
         can lose {}\n",
        cell(&brokers["unfenced"]),
        cell(&brokers["total"]),
        cell(&partitions["total"]),
        cell(&partitions["offline"]),
        cell(&partitions["under_min_isr"]),
        cell(&partitions["under_replicated"]),
        cell(&quorum["leader_id"]),
        cell(&quorum["can_lose"]),
    );
    for reason in health["reasons"].as_array().into_iter().flatten() {
        out.push_str(&format!("  {} {} {}", cell(&reason["severity"]), cell(&reason["code"]), cell(&reason["count"])));
        if reason["cause"]["brokers"].as_array().is_some_and(|brokers| !brokers.is_empty()) {
            out.push_str(&format!(", explained by broker {}", cell(&reason["cause"]["brokers"])));
        } else if reason["code"] == "NO_ACTIVE_BROKER" {
            out.push_str(": none has joined yet");
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_summary_names_what_is_wrong_and_who_explains_it() {
        let health = json!({"healthy": false,
            "brokers": {"total": 3, "unfenced": 2}, "quorum": {"leader_id": 1, "can_lose": 0},
            "partitions": {"total": 6, "offline": 0, "under_min_isr": 0, "under_replicated": 6},
            "reasons": [{"code": "UNDER_REPLICATED", "severity": "warning", "count": 6, "cause": {"brokers": [2]}}]});
        let text = summary(&health);
        assert!(text.starts_with("UNHEALTHY: brokers 2 of 3, partitions 6 (0 offline"));
        assert!(text.contains("  warning UNDER_REPLICATED 6, explained by broker 2\n"));
        let alone = json!({ "reasons": [{ "code": "NO_ACTIVE_BROKER", "severity": "critical", "count": 1, "cause": { "brokers": [] } }] });
        assert!(summary(&alone).contains("  critical NO_ACTIVE_BROKER 1: none has joined yet\n"));
    }
}
