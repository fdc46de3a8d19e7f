//! `highwater quorum`: who votes and leads, in the words of `kafka-metadata-quorum`, and changing it.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::http::Api;
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

/// Between two questions whether a new voter has caught up.
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct AddVoterArgs {
    /// node.id of the node that is to vote
    #[arg(long)]
    pub node: i32,
    /// host:port of its controller listener; needed where nobody knows it yet
    #[arg(long)]
    pub endpoint: Option<String>,
    /// Id of its metadata directory; by default as the node says itself
    #[arg(long)]
    pub directory_id: Option<String>,
    /// node.id of the voter it stands in for; its own when it lost its disk
    #[arg(long)]
    pub replace: Option<i32>,
    /// Check all, change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Return when it votes, not when it begins to catch up
    #[arg(long)]
    pub wait: bool,
    /// With --wait: give up after this many seconds (exit code 5); the node goes on catching up
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    pub timeout: u64,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct RemoveVoterArgs {
    /// node.id of the voter
    #[arg(long)]
    pub node: i32,
    /// It goes on learning the metadata
    #[arg(long)]
    pub retain_as_observer: bool,
    /// Check all, change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct TransferArgs {
    /// node.id of the voter that is to lead
    #[arg(long)]
    pub to: i32,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// Exit code 0 with a leader, 7 without.
///
/// # Errors
/// Nobody answers.
pub async fn status(args: &StatusArgs) -> Result<Exit, CliError> {
    let quorum = Api::new(&args.api.url)?.get("/quorum", &[]).await?;
    print!("{}", shown(args.api.output, &quorum, described));
    Ok(if quorum["leader_id"].is_null() { Exit::Unhealthy } else { Exit::Done })
}

/// # Errors
/// The change is refused, or nobody answers; with `--wait` also when it takes longer than that.
pub async fn add_voter(args: &AddVoterArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let mut body = json!({ "node_id": args.node, "validate_only": args.dry_run });
    let optional = [
        ("endpoint", args.endpoint.clone().map(Value::from)),
        ("directory_id", args.directory_id.clone().map(Value::from)),
        ("replace", args.replace.map(Value::from)),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    let change = async {
        loop {
            let answer = api.send(Method::POST, "/quorum/voters", &[], Some(&body)).await;
            match &answer {
                Ok(change) if args.wait && change["state"] == "CATCHING_UP" => {}
                // The leader may change meanwhile; what it began goes on.
                Err(error) if args.wait && error.exit == Exit::Unreachable => {}
                _ => return answer,
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    };
    let limit = Duration::from_secs(args.timeout);
    let change = tokio::time::timeout(limit, change).await.unwrap_or_else(|_| {
        let message = format!("node {} does not vote after {} s: highwater quorum status", args.node, args.timeout);
        Err(CliError::new(Exit::Unreachable, message))
    })?;
    print!("{}", shown(args.api.output, &change, changed));
    Ok(Exit::Done)
}

/// # Errors
/// The change is refused, or nobody answers.
pub async fn remove_voter(args: &RemoveVoterArgs) -> Result<Exit, CliError> {
    let flag = |value: bool| if value { "true" } else { "false" };
    let query = [("retain_as_observer", flag(args.retain_as_observer)), ("validate_only", flag(args.dry_run))];
    let path = format!("/quorum/voters/{}", args.node);
    let change = Api::new(&args.api.url)?.send(Method::DELETE, &path, &query, None).await?;
    print!("{}", shown(args.api.output, &change, changed));
    Ok(Exit::Done)
}

/// # Errors
/// The node cannot lead, or nobody answers.
pub async fn transfer(args: &TransferArgs) -> Result<Exit, CliError> {
    let body = json!({ "target_id": args.to });
    let answer = Api::new(&args.api.url)?.send(Method::POST, "/quorum:transfer-leader", &[], Some(&body)).await?;
    let leads = |answer: &Value| format!("node {} leads the metadata quorum\n", cell(&answer["leader_id"]));
    print!("{}", shown(args.api.output, &answer, leads));
    Ok(Exit::Done)
}

fn shown(output: Output, object: &Value, table: impl Fn(&Value) -> String) -> String {
    match output {
        Output::Json => format!("{}\n", serde_json::to_string_pretty(object).unwrap_or_default()),
        Output::Jsonl => format!("{object}\n"),
        Output::Table => table(object),
    }
}

/// `--status` of kafka-metadata-quorum, then `--replication`.
fn described(quorum: &Value) -> String {
    let voters = quorum["current_voters"].as_array().map_or(&[][..], Vec::as_slice);
    let observers = quorum["observers"].as_array().map_or(&[][..], Vec::as_slice);
    let ids = |members: &[Value]| members.iter().map(|member| cell(&member["replica_id"])).collect::<Vec<_>>();
    let followers = voters.iter().filter(|voter| voter["status"] != "LEADER");
    let lag = followers.filter_map(|voter| voter["lag"].as_u64()).max();
    let mut out = String::new();
    for (name, value) in [
        ("ClusterId", cell(&quorum["cluster_id"])),
        ("LeaderId", cell(&quorum["leader_id"])),
        ("LeaderEpoch", cell(&quorum["leader_epoch"])),
        ("HighWatermark", cell(&quorum["high_watermark"])),
        ("MaxFollowerLag", lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string())),
        ("CurrentVoters", format!("[{}]", ids(voters).join(","))),
        ("CurrentObservers", format!("[{}]", ids(observers).join(","))),
        ("CanLose", cell(&quorum["can_lose"])),
    ] {
        out.push_str(&format!("{:<18}{value}\n", format!("{name}:")));
    }
    let rows: Vec<Vec<String>> = voters
        .iter()
        .chain(observers)
        .map(|member| {
            let fields = [
                "replica_id",
                "directory_id",
                "log_end_offset",
                "lag",
                "last_fetch_timestamp_ms",
                "last_caught_up_timestamp_ms",
                "status",
            ];
            fields.iter().map(|field| cell(&member[field])).collect()
        })
        .collect();
    out.push('\n');
    out.push_str(&table::print(
        &["NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"],
        &rows,
    ));
    for note in quorum["notes"].as_array().into_iter().flatten() {
        out.push_str(&format!("note: {}\n", cell(note)));
    }
    out
}

fn changed(change: &Value) -> String {
    let ids = |members: &Value| {
        let members = members.as_array().into_iter().flatten();
        members.map(|member| cell(&member["replica_id"])).collect::<Vec<_>>().join(",")
    };
    let (before, after) = (ids(&change["voters_before"]), ids(&change["voters_after"]));
    let arithmetic = format!("{} of them caught up, {} needed", cell(&change["caught_up"]), cell(&change["majority"]));
    match change["state"].as_str() {
        Some("PLANNED") => format!("would change the voters from [{before}] to [{after}]: {arithmetic}\n"),
        Some("CATCHING_UP") => format!(
            "node {} catches up ({} entries to go) and votes then: voters [{before}] become [{after}]\n",
            cell(&change["adds"]["replica_id"]),
            cell(&change["lag"]),
        ),
        _ => format!("voters [{after}]: {arithmetic}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_has_the_columns_of_kafkas_tool() {
        let quorum = json!({"cluster_id": "C", "leader_id": 1, "leader_epoch": 7, "high_watermark": 12, "can_lose": 1,
            "current_voters": [
                {"replica_id": 1, "directory_id": "A", "log_end_offset": 12, "lag": 0, "status": "LEADER"},
                {"replica_id": 2, "directory_id": "B", "log_end_offset": 10, "lag": 2, "status": "FOLLOWER"}],
            "observers": [{"replica_id": 4, "directory_id": "D", "log_end_offset": 0, "lag": 12, "status": "OBSERVER"}],
            "notes": ["node 3: lost"]});
        let text = described(&quorum);
        for line in ["LeaderId:         1", "MaxFollowerLag:   2", "CurrentVoters:    [1,2]", "CurrentObservers: [4]"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.contains("NodeId  DirectoryId  LogEndOffset  Lag  LastFetchTimestamp"), "{text}");
        assert!(text.ends_with("note: node 3: lost\n"), "{text}");
    }

    #[test]
    fn a_change_says_what_becomes_of_the_voters() {
        let mut change = json!({"state": "PLANNED", "majority": 2, "caught_up": 3, "lag": 4000,
            "adds": {"replica_id": 4}, "voters_before": [{"replica_id": 1}], "voters_after": [{"replica_id": 4}]});
        assert_eq!(changed(&change), "would change the voters from [1] to [4]: 3 of them caught up, 2 needed\n");
        change["state"] = json!("CATCHING_UP");
        assert!(changed(&change).starts_with("node 4 catches up (4000 entries to go)"));
        change["state"] = json!("DONE");
        assert!(changed(&change).starts_with("voters [4]"));
    }
}
