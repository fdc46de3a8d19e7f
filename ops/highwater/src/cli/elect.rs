//! `highwater partition elect`: plans on the server, shows the plan, asks where records would be lost, and carries it out.

use std::io::{IsTerminal as _, Write as _};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::http::Api;
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Args)]
pub struct ElectArgs {
    /// TOPIC:PARTITION, or TOPIC for all its partitions
    #[arg(required_unless_present = "all")]
    pub partitions: Vec<String>,
    #[command(flatten)]
    pub api: ApiArgs,
    /// What kind of leader
    #[arg(long = "type", value_enum, default_value = "preferred")]
    pub type_: ElectionType,
    /// Who is to lead (designated, unclean)
    #[arg(long, value_name = "BROKER")]
    pub to: Option<i32>,
    /// All partitions that need such an election
    #[arg(long, conflicts_with_all = ["partitions", "to"])]
    pub all: bool,
    /// Show what would happen, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Accept that acknowledged records are lost, as the plan says
    #[arg(long)]
    pub confirm_data_loss: bool,
    /// Do not ask; not enough where records are lost
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ElectionType {
    /// The first replica, if it is in sync
    Preferred,
    /// Where nobody leads: whoever has most to keep, or --to; records may be lost
    Unclean,
    /// Whoever --to names
    Designated,
}

impl ElectionType {
    const fn word(self) -> &'static str {
        match self {
            Self::Preferred => "PREFERRED",
            Self::Unclean => "UNCLEAN",
            Self::Designated => "DESIGNATED",
        }
    }
}

/// Exit code 0 when all leaders wanted lead, 8 when some do, 4 when none could be elected or loss was not confirmed.
///
/// # Errors
/// Nobody answers, a partition does not exist (3), nobody may lead or the plan is of another state (4).
pub async fn run(args: &ElectArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let mut body = json!({ "election_type": args.type_.word(), "validate_only": true });
    if args.all {
        body["all"] = json!(true);
    } else {
        body["partitions"] = json!(named(&api, args).await?);
    }
    let plan = api.post("/elections", &body).await?;
    let rows = results(&plan);
    let needed = rows.iter().any(|row| row["result"] == "WOULD_ELECT");
    if args.dry_run || !needed {
        show(args.api.output, &plan);
        return Ok(if args.dry_run { Exit::Done } else { exit_of(rows) });
    }
    let costly: Vec<&Value> = rows.iter().filter(|row| !row["loss"].is_null()).collect();
    if !costly.is_empty() || args.all && !args.yes {
        // Data goes to stdout, the question and what it is about to stderr.
        eprint!("{}", plan_table(rows));
    }
    if !costly.is_empty() {
        confirm_loss(args, &costly)?;
        body["confirm_data_loss"] = json!(true);
        body["plan_id"] = plan["plan_id"].clone();
    } else if args.all && !args.yes && std::io::stdin().is_terminal() && answer("elect these leaders? [y/N] ")? != "y" {
        return Err(CliError::new(Exit::Interrupted, "nothing was elected"));
    }
    body["validate_only"] = json!(false);
    let done = api.post("/elections", &body).await?;
    show(args.api.output, &done);
    Ok(exit_of(results(&done)))
}

fn results(election: &Value) -> &[Value] {
    election["results"].as_array().map_or(&[], Vec::as_slice)
}

/// The partitions named, as the API wants them.
async fn named(api: &Api, args: &ElectArgs) -> Result<Vec<Value>, CliError> {
    let mut all = Vec::new();
    for name in &args.partitions {
        let numbers: Vec<Value> = match name.split_once(':') {
            Some((_, number)) => {
                let number: i32 = number.parse().map_err(|_| {
                    CliError::new(
                        Exit::Usage,
                        format!("{name}: \"{number}\" is no partition number; use TOPIC:PARTITION"),
                    )
                })?;
                vec![json!(number)]
            }
            None => {
                let list = api.get(&format!("/topics/{name}/partitions"), &[]).await?;
                list["data"].as_array().into_iter().flatten().map(|row| row["partition_id"].clone()).collect()
            }
        };
        let topic = name.split_once(':').map_or(name.as_str(), |(topic, _)| topic);
        for number in numbers {
            let mut one = json!({ "topic_name": topic, "partition_id": number });
            if let Some(to) = args.to {
                one["leader_id"] = json!(to);
            }
            all.push(one);
        }
    }
    Ok(all)
}

/// Loss wants its flag, or on a terminal the topic's name typed.
fn confirm_loss(args: &ElectArgs, costly: &[&Value]) -> Result<(), CliError> {
    if args.confirm_data_loss {
        return Ok(());
    }
    let unsafe_ = |message: &str| CliError::new(Exit::Conflict, message);
    if !std::io::stdin().is_terminal() {
        return Err(unsafe_(
            "acknowledged records may be lost (see the plan above): add --confirm-data-loss to accept that; nothing was \
             elected",
        ));
    }
    let mut topics: Vec<&str> = costly.iter().filter_map(|row| row["topic_name"].as_str()).collect();
    topics.dedup();
    for topic in topics {
        let typed =
            answer(&format!("acknowledged records of {topic} may be lost; type the topic's name to accept that: "))?;
        if typed != topic {
            return Err(unsafe_("that is not its name; nothing was elected"));
        }
    }
    Ok(())
}

fn answer(question: &str) -> Result<String, CliError> {
    let failed = |error: std::io::Error| CliError::new(Exit::Failed, format!("no answer could be read: {error}"));
    eprint!("{question}");
    std::io::stderr().flush().map_err(failed)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(failed)?;
    Ok(line.trim().to_owned())
}

fn exit_of(rows: &[Value]) -> Exit {
    let failed = |row: &&Value| row["result"] == "REFUSED" || row["result"] == "NOT_ELIGIBLE";
    match rows.iter().filter(failed).count() {
        0 => Exit::Done,
        all if all == rows.len() => Exit::Conflict,
        _ => Exit::PartlyDone,
    }
}

fn show(output: Output, election: &Value) {
    match output {
        Output::Table => print!("{}", plan_table(results(election))),
        Output::Json => println!("{}", serde_json::to_string_pretty(election).unwrap_or_default()),
        Output::Jsonl => println!("{election}"),
    }
}

/// A line per partition, and below it what could be done without loss or why nothing is done.
fn plan_table(rows: &[Value]) -> String {
    let head =
        ["TOPIC", "PARTITION", "LEADER", "NEW LEADER", "RESULT", "LOST AT LEAST", "KNOWN HW", "NEW END", "CANDIDATES"];
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let mut out = table::print(&head, &cells);
    for row in rows {
        for field in ["alternative", "message"] {
            if let Some(text) = row[field].as_str() {
                out.push_str(&format!("{}:{}: {text}\n", cell(&row["topic_name"]), cell(&row["partition_id"])));
            }
        }
    }
    out
}

fn cells(row: &Value) -> Vec<String> {
    let loss = &row["loss"];
    let lost = match (loss.is_null(), &loss["committed_records_lost_at_least"]) {
        (true, _) => "none".to_owned(),
        (false, Value::Null) => "unknown".to_owned(),
        (false, count) => cell(count),
    };
    let candidate = |of: &Value| {
        format!("{}@{}:{}", cell(&of["broker_id"]), cell(&of["last_leader_epoch"]), cell(&of["log_end_offset"]))
    };
    let candidates: Vec<String> = row["candidates"].as_array().into_iter().flatten().map(candidate).collect();
    let fields = ["topic_name", "partition_id", "current_leader_id", "new_leader_id", "result"];
    let mut cells: Vec<String> = fields.iter().map(|field| cell(&row[*field])).collect();
    cells.extend([lost, cell(&loss["last_known_high_watermark"]), cell(&loss["new_log_end_offset"])]);
    // broker@epoch:end
    cells.push(if candidates.is_empty() { "-".to_owned() } else { candidates.join(",") });
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_who_would_lead_what_is_lost_and_what_could_be_done_instead() {
        let row = json!({
            "topic_name": "orders", "partition_id": 7, "current_leader_id": null, "new_leader_id": 3,
            "result": "WOULD_ELECT", "message": null, "alternative": "broker 2 is in the ELR; starting it loses nothing",
            "loss": { "last_known_high_watermark": 70, "new_log_end_offset": 62, "committed_records_lost_at_least": 8 },
            "candidates": [{ "broker_id": 3, "last_leader_epoch": 14, "log_end_offset": 62 }],
        });
        let text = plan_table(std::slice::from_ref(&row));
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["orders", "7", "-", "3", "WOULD_ELECT", "8", "70", "62", "3@14:62"]);
        assert_eq!(lines[2], "orders:7: broker 2 is in the ELR; starting it loses nothing");
    }

    #[test]
    fn what_is_not_known_is_not_called_nothing() {
        let row = |loss: Value| json!({ "topic_name": "t", "partition_id": 0, "result": "WOULD_ELECT", "loss": loss });
        assert_eq!(cells(&row(json!(null)))[5], "none");
        assert_eq!(cells(&row(json!({ "new_log_end_offset": 4 })))[5], "unknown");
        assert_eq!(cells(&row(json!({ "committed_records_lost_at_least": 0 })))[5], "0");
    }

    #[test]
    fn the_exit_code_tells_whether_all_some_or_none_were_elected() {
        let rows = |results: &[&str]| -> Vec<Value> { results.iter().map(|r| json!({ "result": r })).collect() };
        assert_eq!(exit_of(&rows(&["ELECTED", "NOT_NEEDED"])), Exit::Done);
        assert_eq!(exit_of(&rows(&["ELECTED", "NOT_ELIGIBLE"])), Exit::PartlyDone);
        assert_eq!(exit_of(&rows(&["REFUSED"])), Exit::Conflict);
        assert_eq!(exit_of(&[]), Exit::Done);
    }
}
