//! `highwater topic trim`: deletes the records below an offset.

use clap::Args;
use serde_json::{Value, json};

use super::super::ask::{self, Consent};
use super::super::http::Api;
use super::super::table::{self, cell};
use super::super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Args)]
pub struct TrimArgs {
    pub topic: String,
    /// The first offset to keep; `end`: none of what consumers can read
    #[arg(long, value_name = "OFFSET|end")]
    pub offset: String,
    /// Only these, by commas; default: all partitions
    #[arg(short, long, value_delimiter = ',', value_name = "N,N")]
    pub partitions: Vec<i32>,
    #[command(flatten)]
    pub consent: Consent,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// # Errors
/// Nobody answers, the topic or partition does not exist, or the offset is above a high watermark: then nothing is
/// deleted anywhere.
pub async fn run(args: &TrimArgs) -> Result<Exit, CliError> {
    let before = match args.offset.as_str() {
        "end" | "-1" => -1,
        text => text.parse::<i64>().ok().filter(|offset| *offset >= 0).ok_or_else(|| {
            CliError::new(Exit::Usage, format!("--offset \"{text}\": give the first offset to keep, or `end`"))
        })?,
    };
    let api = Api::new(&args.api.url)?;
    let topic = api.get(&format!("/topics/{}", args.topic), &[]).await?;
    let all = 0..i32::try_from(topic["partitions_count"].as_i64().unwrap_or(0)).unwrap_or(0);
    let partitions: Vec<i32> = if args.partitions.is_empty() { all.collect() } else { args.partitions.clone() };
    let ask = async |partition: i32, validate_only: bool| {
        let path = format!("/topics/{}/partitions/{partition}/records:delete", args.topic);
        api.post(&path, &json!({"before_offset": before, "validate_only": validate_only})).await
    };
    // All are checked before the first is touched.
    let mut planned = Vec::new();
    for partition in &partitions {
        planned.push(ask(*partition, true).await?);
    }
    let gone: i64 = planned.iter().filter_map(|row| row["deleted_offsets"].as_i64()).sum();
    let plan = format!("{gone} offsets of {} go, on every replica and for good:\n{}", args.topic, rows(&planned));
    if !ask::go_on(&plan, &args.consent)? {
        return Ok(Exit::Done);
    }
    let (mut done, mut failed) = (Vec::new(), None);
    for partition in &partitions {
        match ask(*partition, false).await {
            Ok(row) => done.push(row),
            Err(refused) if partitions.len() == 1 => return Err(refused.into()),
            Err(refused) => {
                let error = CliError::from(refused);
                eprintln!("highwater: {}-{partition}: {error}", args.topic);
                failed.get_or_insert(error.exit);
            }
        }
    }
    match args.api.output {
        Output::Table => print!("{}", rows(&done)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&done).unwrap_or_default()),
        Output::Jsonl => done.iter().for_each(|row| println!("{row}")),
    }
    Ok(match failed {
        None => Exit::Done,
        Some(_) if !done.is_empty() => Exit::PartlyDone,
        Some(exit) => exit,
    })
}

fn rows(told: &[Value]) -> String {
    let fields = ["topic_name", "partition_id", "deleted_offsets", "low_watermark"];
    let cells = |row: &Value| fields.iter().map(|field| cell(&row[*field])).collect::<Vec<_>>();
    let head = ["TOPIC", "PARTITION", "DELETED", "NEW-START-OFFSET"];
    table::print(&head, &told.iter().map(cells).collect::<Vec<_>>())
}
