//! `highwater config get|set|diff`: configurations of topics and brokers.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::http::Api;
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// What is in force, and where it comes from
    Get(GetArgs),
    /// Set keys, or take them back to their defaults: all of them or none
    Set(SetArgs),
    /// Where brokers work with something else than their own files say, and what waits for a restart
    Diff(DiffArgs),
}

/// Whose configuration.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Resource {
    #[arg(long)]
    pub topic: Option<String>,
    #[arg(long)]
    pub broker: Option<i32>,
    /// What is set on all brokers
    #[arg(long)]
    pub cluster: bool,
}

impl Resource {
    fn path(&self) -> String {
        match (&self.topic, self.broker) {
            (Some(topic), _) => format!("/topics/{topic}/configs"),
            (_, Some(broker)) => format!("/brokers/{broker}/configs"),
            _ => "/broker-configs".to_owned(),
        }
    }

    fn name(&self) -> String {
        match (&self.topic, self.broker) {
            (Some(topic), _) => format!("topic {topic}"),
            (_, Some(broker)) => format!("broker {broker}"),
            _ => "all brokers".to_owned(),
        }
    }
}

#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    pub resource: Resource,
    /// Only this key, with everything that stands behind its value
    pub key: Option<String>,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    pub resource: Resource,
    /// key=value
    #[arg(value_name = "KEY=VALUE", required_unless_present = "delete")]
    pub set: Vec<String>,
    /// Take this key back to its default
    #[arg(long, value_name = "KEY")]
    pub delete: Vec<String>,
    /// Check all, change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Only this broker
    #[arg(long)]
    pub broker: Option<i32>,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// # Errors
/// Nobody answers, or the resource, a key or a value is not one.
pub async fn run(verb: &ConfigVerb) -> Result<Exit, CliError> {
    match verb {
        ConfigVerb::Get(args) => get(args).await,
        ConfigVerb::Set(args) => set(args).await,
        ConfigVerb::Diff(args) => diff(args).await,
    }
}

async fn get(args: &GetArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let path = args.resource.path();
    let Some(key) = &args.key else {
        let list = api.get(&path, &[]).await?;
        let rows = list["data"].as_array().cloned().unwrap_or_default();
        print(args.api.output, &rows, &["KEY", "VALUE", "SOURCE", "PENDING RESTART"], |row| {
            ["name", "value", "source", "pending_restart"].iter().map(|field| cell(&row[*field])).collect()
        });
        return Ok(Exit::Done);
    };
    let one = api.get(&format!("{path}/{key}"), &[]).await?;
    match args.api.output {
        Output::Table => {
            let rows = one["synonyms"].as_array().cloned().unwrap_or_default();
            print(Output::Table, &rows, &["KEY", "VALUE", "SOURCE"], |row| {
                ["name", "value", "source"].iter().map(|field| cell(&row[*field])).collect()
            });
        }
        output => print(output, &[one], &[], |_| Vec::new()),
    }
    Ok(Exit::Done)
}

async fn set(args: &SetArgs) -> Result<Exit, CliError> {
    let body = json!({ "data": operations(&args.set, &args.delete)?, "validate_only": args.dry_run });
    let api = Api::new(&args.api.url)?;
    api.post(&format!("{}:alter", args.resource.path()), &body).await?;
    let done = if args.dry_run { "would be changed" } else { "changed" };
    eprintln!("{}: {done}", args.resource.name());
    Ok(Exit::Done)
}

fn operations(set: &[String], delete: &[String]) -> Result<Vec<Value>, CliError> {
    let set = set.iter().map(|text| match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok(json!({ "name": key.trim(), "value": value })),
        _ => Err(CliError::new(Exit::Usage, format!("\"{text}\" is not key=value"))),
    });
    let delete = delete.iter().map(|key| Ok(json!({ "name": key, "operation": "DELETE" })));
    set.chain(delete).collect()
}

async fn diff(args: &DiffArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let broker = args.broker.map_or_else(|| "-".to_owned(), |broker| broker.to_string());
    let list = api.get(&format!("/brokers/{broker}/configs:effective"), &[]).await?;
    let all = list["data"].as_array().cloned().unwrap_or_default();
    let rows: Vec<Value> = all.iter().filter(|row| differs(row)).cloned().collect();
    let head = ["BROKER", "KEY", "OWN VALUE", "WORKS WITH", "SOURCE", "SET AT", "AFTER RESTART"];
    print(args.api.output, &rows, &head, |row| {
        let fields = ["broker_id", "name", "own_value", "value", "source", "location", "pending_value"];
        fields.iter().map(|field| cell(&row[*field])).collect()
    });
    let silent = match args.broker {
        Some(_) => Vec::new(),
        None => silent(&api.get("/brokers", &[]).await?, &all),
    };
    if silent.is_empty() {
        return Ok(Exit::Done);
    }
    Err(CliError::new(Exit::Unreachable, format!("not asked, because it did not answer: broker {}", silent.join(", "))))
}

fn differs(row: &Value) -> bool {
    row["value"] != row["own_value"] || row["pending_restart"] == true
}

/// The brokers of which no row came.
fn silent(brokers: &Value, rows: &[Value]) -> Vec<String> {
    let ids = brokers["data"].as_array().into_iter().flatten().map(|broker| &broker["broker_id"]);
    ids.filter(|id| !rows.iter().any(|row| row["broker_id"] == **id)).map(cell).collect()
}

fn print(output: Output, rows: &[Value], head: &[&str], cells: impl Fn(&Value) -> Vec<String>) {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(rows).unwrap_or_default()),
        Output::Jsonl => rows.iter().for_each(|row| println!("{row}")),
        Output::Table => print!("{}", table::print(head, &rows.iter().map(cells).collect::<Vec<_>>())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_becomes_operations_and_a_typo_is_a_usage_error() {
        let told = operations(&["retention.ms=5".to_owned(), "x=a=b".to_owned()], &["flush.ms".to_owned()]).unwrap();
        assert_eq!(told[0], json!({ "name": "retention.ms", "value": "5" }));
        assert_eq!(told[1], json!({ "name": "x", "value": "a=b" }));
        assert_eq!(told[2], json!({ "name": "flush.ms", "operation": "DELETE" }));
        assert_eq!(operations(&["retention.ms".to_owned()], &[]).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn the_difference_is_what_was_set_or_waits_and_silent_brokers_are_named() {
        let row = |value: &str, own: &str, pending: bool| json!({ "broker_id": 1, "value": value, "own_value": own, "pending_restart": pending });
        assert!(!differs(&row("1", "1", false)));
        assert!(differs(&row("2", "1", false)) && differs(&row("1", "1", true)));
        let brokers = json!({ "data": [{ "broker_id": 1 }, { "broker_id": 2 }] });
        assert_eq!(silent(&brokers, &[row("1", "1", false)]), ["2"]);
    }
}
