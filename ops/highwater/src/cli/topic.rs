//! `highwater topic …`: what rpk and kafka-topics do, over the admin API.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::ask::{self, Consent};
use super::http::{Api, Refused};
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

pub mod describe;
pub mod trim;

#[derive(Debug, Subcommand)]
pub enum TopicVerb {
    /// All topics, or those whose names match
    List(ListArgs),
    /// Create topics
    Create(CreateArgs),
    /// Size, configuration and partitions of topics
    Describe(describe::DescribeArgs),
    /// Delete topics with all their records
    Delete(DeleteArgs),
    /// Set configuration keys of topics, or return them to their defaults
    AlterConfig(AlterConfigArgs),
    /// Give topics more partitions; there can never be fewer
    AddPartitions(AddPartitionsArgs),
    /// Delete the records below an offset, on all replicas and for good
    #[command(alias = "trim-prefix")]
    Trim(trim::TrimArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Names, `*` stands for anything; all when none is given
    pub topics: Vec<String>,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    #[arg(required = true)]
    pub topics: Vec<String>,
    /// How many partitions; default: num.partitions of the cluster
    #[arg(short, long)]
    pub partitions: Option<i32>,
    /// How many replicas each; default: default.replication.factor, capped at the brokers present
    #[arg(short, long, alias = "replication-factor")]
    pub replicas: Option<i16>,
    /// KEY=VALUE, several times
    #[arg(short = 'c', long = "topic-config", value_name = "KEY=VALUE", alias = "config")]
    pub config: Vec<String>,
    /// Brokers of each partition, preferred leader first: 1:2,2:3
    #[arg(long, value_name = "B:B,B:B", conflicts_with_all = ["partitions", "replicas"])]
    pub replica_assignment: Option<String>,
    /// A topic that exists already is no error
    #[arg(long)]
    pub if_not_exists: bool,
    /// Check all, create nothing
    #[arg(short, long, alias = "validate-only", alias = "dry")]
    pub dry_run: bool,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[arg(required = true)]
    pub topics: Vec<String>,
    /// A topic that does not exist is no error
    #[arg(long)]
    pub if_exists: bool,
    #[command(flatten)]
    pub consent: Consent,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["set", "delete"]))]
pub struct AlterConfigArgs {
    #[arg(required = true)]
    pub topics: Vec<String>,
    /// KEY=VALUE, several times
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// A key that goes back to its default, several times
    #[arg(short, long, value_name = "KEY")]
    pub delete: Vec<String>,
    /// Check all, change nothing
    #[arg(long, alias = "validate-only", alias = "dry")]
    pub dry_run: bool,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("count").required(true).args(["num", "total"]))]
pub struct AddPartitionsArgs {
    #[arg(required = true)]
    pub topics: Vec<String>,
    /// How many more
    #[arg(short, long)]
    pub num: Option<i32>,
    /// How many in all, so that repeating it adds nothing twice
    #[arg(short, long, alias = "partitions")]
    pub total: Option<i32>,
    /// Brokers of each new partition, preferred leader first: 1:2,2:3
    #[arg(long, value_name = "B:B,B:B")]
    pub replica_assignment: Option<String>,
    /// A topic that does not exist is no error
    #[arg(long)]
    pub if_exists: bool,
    /// Check all, change nothing
    #[arg(short, long, alias = "validate-only", alias = "dry")]
    pub dry_run: bool,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// # Errors
/// Nobody answers, or the one thing asked for was refused.
pub async fn run(verb: &TopicVerb) -> Result<Exit, CliError> {
    match verb {
        TopicVerb::List(args) => list(args).await,
        TopicVerb::Create(args) => create(args).await,
        TopicVerb::Describe(args) => describe::run(args).await,
        TopicVerb::Delete(args) => delete(args).await,
        TopicVerb::AlterConfig(args) => alter_config(args).await,
        TopicVerb::AddPartitions(args) => add_partitions(args).await,
        TopicVerb::Trim(args) => trim::run(args).await,
    }
}

async fn list(args: &ListArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let names = args.topics.join(",");
    let filter = [("topic", names.as_str())];
    let rows = api.get("/topics", if names.is_empty() { &[] } else { &filter }).await?;
    let rows = rows["data"].as_array().cloned().unwrap_or_default();
    let head = ["NAME", "PARTITIONS", "REPLICAS", "MIN ISR", "ID"];
    let fields = ["topic_name", "partitions_count", "replication_factor", "min_insync_replicas", "topic_id"];
    show(args.api.output, &head, &rows, |row| fields.iter().map(|field| cell(&row[*field])).collect());
    Ok(Exit::Done)
}

async fn create(args: &CreateArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let assignments = args.replica_assignment.as_deref().map(|text| assignments(text, 0)).transpose()?;
    let configs = args.config.iter().map(|text| pair(text).map(|(name, value)| json!({"name": name, "value": value})));
    let configs = configs.collect::<Result<Vec<_>, _>>()?;
    each(&args.topics, args.api.output, async |name| {
        let mut body = json!({"topic_name": name, "configs": configs, "validate_only": args.dry_run});
        let told = [
            ("partitions_count", args.partitions.map(Value::from)),
            ("replication_factor", args.replicas.map(Value::from)),
            ("replicas_assignments", assignments.clone().map(Value::Object)),
        ];
        for (key, value) in told {
            if let Some(value) = value {
                body[key] = value;
            }
        }
        match api.post("/topics", &body).await {
            Ok(topic) => {
                let size =
                    format!("{} partitions, {} replicas", topic["partitions_count"], topic["replication_factor"]);
                let note = topic["note"].as_str().map_or(String::new(), |note| format!("; {note}"));
                let what = if args.dry_run { "would be created" } else { "created" };
                Ok((format!("{what}: {size}{note}"), topic))
            }
            Err(refused) if args.if_not_exists && refused.is("TOPIC_ALREADY_EXISTS") => {
                Ok(("exists already".to_owned(), Value::Null))
            }
            Err(refused) => Err(refused),
        }
    })
    .await
}

async fn delete(args: &DeleteArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let mut plan = String::from("These topics and all their records go, on every broker:\n");
    for name in &args.topics {
        match api.get(&format!("/topics/{name}"), &[]).await {
            Ok(topic) => plan.push_str(&format!("  {name}: {} partitions\n", topic["partitions_count"])),
            Err(error) if error.exit == Exit::NotFound => plan.push_str(&format!("  {name}: does not exist\n")),
            Err(error) => return Err(error),
        }
    }
    if !ask::go_on(&plan, &args.consent)? {
        return Ok(Exit::Done);
    }
    each(&args.topics, args.api.output, async |name| match api.delete(&format!("/topics/{name}")).await {
        Ok(gone) => Ok(("deleted".to_owned(), gone)),
        Err(refused) if args.if_exists && refused.is("UNKNOWN_TOPIC_OR_PARTITION") => {
            Ok(("does not exist".to_owned(), Value::Null))
        }
        Err(refused) => Err(refused),
    })
    .await
}

async fn alter_config(args: &AlterConfigArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let mut data = Vec::new();
    for text in &args.set {
        let (name, value) = pair(text)?;
        data.push(json!({"name": name, "value": value, "operation": "SET"}));
    }
    data.extend(args.delete.iter().map(|name| json!({"name": name, "operation": "DELETE"})));
    let body = json!({"data": data, "validate_only": args.dry_run});
    each(&args.topics, args.api.output, async |name| {
        let altered = api.post(&format!("/topics/{name}/configs:alter"), &body).await?;
        Ok((if args.dry_run { "would be changed" } else { "changed" }.to_owned(), altered))
    })
    .await
}

async fn add_partitions(args: &AddPartitionsArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    each(&args.topics, args.api.output, async |name| {
        let path = format!("/topics/{name}");
        let missing = |refused: &Refused| args.if_exists && refused.is("UNKNOWN_TOPIC_OR_PARTITION");
        let present = match api.ask(&path).await {
            Ok(topic) => topic["partitions_count"].as_i64().unwrap_or(0),
            Err(refused) if missing(&refused) => return Ok(("does not exist".to_owned(), Value::Null)),
            Err(refused) => return Err(refused),
        };
        let total = match (args.total, args.num) {
            (Some(total), _) => i64::from(total),
            (None, num) => present + i64::from(num.unwrap_or(0)),
        };
        let mut body = json!({"partitions_count": total, "validate_only": args.dry_run});
        if let Some(text) = &args.replica_assignment {
            body["replicas_assignments"] = Value::Object(assignments(text, usize::try_from(present).unwrap_or(0))?);
        }
        let topic = api.patch(&path, &body).await?;
        let what = if args.dry_run { "would have" } else { "has" };
        Ok((format!("{what} {} partitions, {present} before", topic["partitions_count"]), topic))
    })
    .await
}

/// Does something to each of some topics, and says what became of it. One that fails is an error; of several the others
/// go on, and the exit code says that some did not.
async fn each(
    topics: &[String],
    output: Output,
    mut one: impl AsyncFnMut(&str) -> Result<(String, Value), Refused>,
) -> Result<Exit, CliError> {
    let (mut rows, mut objects, mut failed, mut done) = (Vec::new(), Vec::new(), None, 0);
    for name in topics {
        match one(name).await {
            Ok((what, object)) => {
                done += 1;
                rows.push(vec![name.clone(), what]);
                objects.push(object);
            }
            Err(refused) => {
                let error = CliError::from(refused);
                if topics.len() == 1 {
                    return Err(error);
                }
                eprintln!("highwater: {name}: {error}");
                failed.get_or_insert(error.exit);
            }
        }
    }
    match output {
        Output::Table => print!("{}", table::print(&["TOPIC", "STATUS"], &rows)),
        other => show(other, &[], &objects, |_| Vec::new()),
    }
    Ok(match failed {
        None => Exit::Done,
        Some(_) if done > 0 => Exit::PartlyDone,
        Some(exit) => exit,
    })
}

/// Rows as a table or as they came.
fn show(output: Output, head: &[&str], rows: &[Value], cells: impl Fn(&Value) -> Vec<String>) {
    match output {
        Output::Table => {
            let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
            print!("{}", table::print(head, &rows));
        }
        Output::Json => println!("{}", serde_json::to_string_pretty(rows).unwrap_or_default()),
        Output::Jsonl => rows.iter().for_each(|row| println!("{row}")),
    }
}

fn pair(text: &str) -> Result<(&str, &str), CliError> {
    text.split_once('=').ok_or_else(|| CliError::new(Exit::Usage, format!("\"{text}\": write KEY=VALUE")))
}

/// kafka-topics' way to write replicas, as the API takes them: `1:2,2:3` for the partitions from `first` on.
fn assignments(text: &str, first: usize) -> Result<Map<String, Value>, CliError> {
    let bad =
        |part: &str| CliError::new(Exit::Usage, format!("\"{part}\": write brokers as 1:2:3, partitions by commas"));
    let mut assignments = Map::new();
    for (number, part) in (first..).zip(text.split(',')) {
        let brokers: Result<Vec<i32>, _> = part.split(':').map(|broker| broker.trim().parse()).collect();
        assignments.insert(number.to_string(), json!(brokers.map_err(|_| bad(part))?));
    }
    Ok(assignments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_written_as_in_kafka_topics() {
        let written = Value::Object(assignments("1:2,2:3", 4).unwrap());
        assert_eq!(written, json!({"4": [1, 2], "5": [2, 3]}));
        assert_eq!(assignments("1:x", 0).unwrap_err().exit, Exit::Usage);
        assert_eq!(assignments("", 0).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn a_value_may_hold_an_equals_sign() {
        assert_eq!(pair("a=b=c").unwrap(), ("a", "b=c"));
        assert_eq!(pair("a").unwrap_err().exit, Exit::Usage);
    }
}
