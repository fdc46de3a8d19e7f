//! `highwater group …`: what kafka-consumer-groups and rpk group do, over the admin API.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::ask::{self, Consent};
use super::http::Api;
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Subcommand)]
pub enum GroupVerb {
    /// All groups, with what is to be said of each in a word
    #[command(alias = "status")]
    List(ListArgs),
    /// Members, positions and lag of a group, and why its partitions were shared out anew
    Describe(DescribeArgs),
    /// Move the positions of a group that nobody is in
    Seek(SeekArgs),
    /// Delete groups that nobody is in, with their positions
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only groups in this state: STABLE, EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE
    #[arg(long)]
    pub state: Option<String>,
    /// Exit code 7 when a group is behind and does not work: STALLED or STOPPED
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct DescribeArgs {
    pub group: String,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct SeekArgs {
    pub group: String,
    /// start, end, an offset, or by how many records: +100, -100
    #[arg(long, value_name = "WHERE", allow_hyphen_values = true, value_parser = target)]
    pub to: Target,
    /// Only these topics; default: all that the group has positions in
    #[arg(long = "topic")]
    pub topics: Vec<String>,
    #[command(flatten)]
    pub consent: Consent,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[arg(required = true)]
    pub groups: Vec<String>,
    #[command(flatten)]
    pub consent: Consent,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// Where positions go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Start,
    End,
    Offset(i64),
    By(i64),
}

fn target(text: &str) -> Result<Target, String> {
    let number = |text: &str| text.parse::<i64>().map_err(|_| "give start, end, an offset, or +N or -N".to_owned());
    match text {
        "start" | "earliest" => Ok(Target::Start),
        "end" | "latest" => Ok(Target::End),
        text if text.starts_with(['+', '-']) => number(text).map(Target::By),
        text => number(text).map(Target::Offset),
    }
}

impl Target {
    fn body(self, topics: &[String], dry: bool) -> Value {
        let (to, value) = match self {
            Self::Start => ("EARLIEST", None),
            Self::End => ("LATEST", None),
            Self::Offset(offset) => ("OFFSET", Some(offset)),
            Self::By(records) => ("SHIFT_BY", Some(records)),
        };
        let topics = (!topics.is_empty()).then_some(topics);
        json!({ "to": to, "value": value, "topics": topics, "validate_only": dry })
    }
}

/// # Errors
/// Nobody answers, or what was asked for was refused.
pub async fn run(verb: &GroupVerb) -> Result<Exit, CliError> {
    match verb {
        GroupVerb::List(args) => list(args).await,
        GroupVerb::Describe(args) => describe(args).await,
        GroupVerb::Seek(args) => seek(args).await,
        GroupVerb::Delete(args) => delete(args).await,
    }
}

/// The path of a group below its cluster.
fn path_of(group: &str) -> String {
    // As one parameter: what stands behind its `=` is the name, encoded.
    let encoded = super::http::query_string(&[("g", group)]);
    format!("/consumer-groups/{}", encoded.trim_start_matches("?g="))
}

fn rows_of(list: &Value) -> Vec<Value> {
    list["data"].as_array().cloned().unwrap_or_default()
}

async fn list(args: &ListArgs) -> Result<Exit, CliError> {
    let state: Vec<(&str, &str)> = args.state.iter().map(|state| ("state", state.as_str())).collect();
    let rows = rows_of(&Api::new(&args.api.url)?.get("/consumer-groups", &state).await?);
    let fields = ["consumer_group_id", "state", "status", "total_lag", "members_count", "partition_assignor"];
    print(args.api.output, &["GROUP", "STATE", "STATUS", "LAG", "MEMBERS", "ASSIGNOR"], &fields, &rows);
    let ill = rows.iter().any(|row| row["status"] == "STALLED" || row["status"] == "STOPPED");
    Ok(if args.check && ill { Exit::Unhealthy } else { Exit::Done })
}

fn print(output: Output, head: &[&str], fields: &[&str], rows: &[Value]) {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(rows).unwrap_or_default()),
        Output::Jsonl => rows.iter().for_each(|row| println!("{row}")),
        Output::Table => print!("{}", table_of(head, fields, rows)),
    }
}

fn table_of(head: &[&str], fields: &[&str], rows: &[Value]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| fields.iter().map(|field| cell(&row[*field])).collect()).collect();
    table::print(head, &cells)
}

async fn describe(args: &DescribeArgs) -> Result<Exit, CliError> {
    let (api, path) = (Api::new(&args.api.url)?, path_of(&args.group));
    let mut group = api.get(&path, &[]).await?;
    let lags = rows_of(&api.get(&format!("{path}/lags"), &[]).await?);
    let members = rows_of(&api.get(&format!("{path}/consumers"), &[]).await?);
    if args.api.output == Output::Table {
        print!("{}", described(&group, &lags, &members));
    } else {
        group["lags"] = lags.into();
        group["members"] = members.into();
        print(args.api.output, &[], &[], &[group]);
    }
    Ok(Exit::Done)
}

fn described(group: &Value, lags: &[Value], members: &[Value]) -> String {
    let mut out = format!(
        "{}: {}, {}, lag {}, generation {}\n\n",
        cell(&group["consumer_group_id"]),
        cell(&group["state"]),
        cell(&group["status"]),
        cell(&group["total_lag"]),
        cell(&group["generation"])
    );
    let host_of = |consumer: &Value| {
        let member = members.iter().find(|member| member["consumer_id"] == *consumer && !consumer.is_null());
        member.map_or(Value::Null, |member| member["host"].clone())
    };
    let rows: Vec<Value> = lags
        .iter()
        .map(|lag| {
            let mut row = lag.clone();
            row["host"] = host_of(&lag["consumer_id"]);
            row
        })
        .collect();
    let head = ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"];
    let fields =
        ["topic_name", "partition_id", "current_offset", "log_end_offset", "lag", "consumer_id", "host", "client_id"];
    out.push_str(&table_of(&head, &fields, &rows));
    let rebalances: Vec<Value> = group["rebalances"].as_array().cloned().unwrap_or_default();
    if !rebalances.is_empty() {
        out.push('\n');
        let fields = ["generation", "members_count", "lasted_ms", "cause"];
        out.push_str(&table_of(&["GENERATION", "MEMBERS", "TOOK-MS", "CAUSE"], &fields, &rebalances));
    }
    out
}

async fn seek(args: &SeekArgs) -> Result<Exit, CliError> {
    let (api, path) = (Api::new(&args.api.url)?, format!("{}/offsets:reset", path_of(&args.group)));
    let plan = api.post(&path, &args.to.body(&args.topics, true)).await?;
    let rows = plan["offsets"].as_array().cloned().unwrap_or_default();
    let head = ["TOPIC", "PARTITION", "BEFORE", "AFTER", "LAG"];
    let fields = ["topic_name", "partition_id", "before_offset", "after_offset", "lag"];
    let shown = format!("group {} would go on at:\n{}", args.group, table_of(&head, &fields, &rows));
    if !ask::go_on(&shown, &args.consent)? {
        return Ok(Exit::Done);
    }
    let done = api.post(&path, &args.to.body(&args.topics, false)).await?;
    let rows = done["offsets"].as_array().cloned().unwrap_or_default();
    print(args.api.output, &head, &fields, &rows);
    Ok(Exit::Done)
}

async fn delete(args: &DeleteArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let plan = format!("this deletes, with all their positions: {}\n", args.groups.join(", "));
    if !ask::go_on(&plan, &args.consent)? {
        return Ok(Exit::Done);
    }
    let (mut done, mut failed) = (0, None);
    for group in &args.groups {
        match api.delete(&path_of(group)).await.map_err(CliError::from) {
            Ok(_) => done += 1,
            Err(error) if args.groups.len() == 1 => return Err(error),
            Err(error) => {
                eprintln!("highwater: {error}");
                failed.get_or_insert(error.exit);
            }
        }
    }
    Ok(match failed {
        None => Exit::Done,
        Some(_) if done > 0 => Exit::PartlyDone,
        Some(exit) => exit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_to_an_end_an_offset_or_by_records() {
        assert_eq!((target("start"), target("latest")), (Ok(Target::Start), Ok(Target::End)));
        assert_eq!(
            (target("17"), target("-5"), target("+5")),
            (Ok(Target::Offset(17)), Ok(Target::By(-5)), Ok(Target::By(5)))
        );
        assert!(target("yesterday").is_err() && target("").is_err() && target("-").is_err());
        let body = Target::By(-5).body(&["t".to_owned()], true);
        assert_eq!(body, json!({ "to": "SHIFT_BY", "value": -5, "topics": ["t"], "validate_only": true }));
    }

    #[test]
    fn names_of_groups_are_encoded() {
        assert_eq!(path_of("billing"), "/consumer-groups/billing");
        assert_eq!(path_of("a/b c"), "/consumer-groups/a%2Fb%20c");
    }

    #[test]
    fn a_group_is_shown_with_who_reads_what_and_why_it_changed() {
        let group = json!({"consumer_group_id": "g", "state": "STABLE", "status": "LAGGING", "total_lag": 3, "generation": 2,
            "rebalances": [{"generation": 2, "members_count": 1, "lasted_ms": 40, "cause": "c-1 joined"}]});
        let lags = [
            json!({"topic_name": "t", "partition_id": 0, "current_offset": 7, "log_end_offset": 10, "lag": 3,
            "consumer_id": "c-1", "client_id": "c"}),
            json!({"topic_name": "t", "partition_id": 1, "current_offset": null,
            "log_end_offset": 0, "lag": 0, "consumer_id": null, "client_id": null}),
        ];
        let members = [json!({"consumer_id": "c-1", "host": "/127.0.0.1"})];
        let expected = "g: STABLE, LAGGING, lag 3, generation 2

TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST        CLIENT-ID
t      0          7               10              3    c-1          /127.0.0.1  c
t      1          -               0               0    -            -           -

GENERATION  MEMBERS  TOOK-MS  CAUSE
2           1        40       c-1 joined
";
        assert_eq!(described(&group, &lags, &members), expected);
    }
}
