//! `highwater log-level list|set|reset`: how much each part of a running broker tells.

use clap::{Args, Subcommand};
use highwater_data::LogLevel;
use reqwest::Method;
use serde_json::{Value, json};

use super::http::Api;
use super::table::{self, cell};
use super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Subcommand)]
pub enum LogLevelVerb {
    /// The level of each part on each broker
    List(ListArgs),
    /// Set the level of one part at once, for some time or until the next start
    Set(SetArgs),
    /// Take one part back to what its process was started with
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only this broker
    #[arg(long)]
    pub broker: Option<i32>,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the part, as `list` shows it
    pub logger: String,
    /// OFF, ERROR, WARN, INFO, DEBUG or TRACE
    pub level: LogLevel,
    /// How long, such as 90s, 10m or 2h; without it until the next start
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub ttl: Option<u64>,
    /// Only this broker; default: each
    #[arg(long)]
    pub broker: Option<i32>,
    #[command(flatten)]
    pub api: ApiArgs,
}

#[derive(Debug, Args)]
pub struct ResetArgs {
    /// Name of the part, as `list` shows it
    pub logger: String,
    /// Only this broker; default: each
    #[arg(long)]
    pub broker: Option<i32>,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// `90s`, `10m`, `2h`, `1d` as seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let unit = text.chars().next_back().and_then(|unit| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3_600),
        'd' => Some(86_400),
        _ => None,
    });
    let number = text.get(..text.len().saturating_sub(1)).and_then(|number| number.parse::<u64>().ok());
    let told = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit)).filter(|seconds| *seconds > 0);
    told.ok_or_else(|| "give a number and its unit, such as 90s, 10m or 2h".to_owned())
}

/// Exit code 8 when some brokers could not be told.
///
/// # Errors
/// Nobody answers, or there is no such broker or logger.
pub async fn run(verb: &LogLevelVerb) -> Result<Exit, CliError> {
    match verb {
        LogLevelVerb::List(args) => list(args).await,
        LogLevelVerb::Set(args) => {
            let body = json!({ "level": args.level.name(), "ttl_s": args.ttl });
            each(&args.api, args.broker, &args.logger, Method::PUT, Some(&body)).await
        }
        LogLevelVerb::Reset(args) => each(&args.api, args.broker, &args.logger, Method::DELETE, None).await,
    }
}

async fn list(args: &ListArgs) -> Result<Exit, CliError> {
    let broker = args.broker.map_or_else(|| "-".to_owned(), |broker| broker.to_string());
    let list = Api::new(&args.api.url)?.get(&format!("/brokers/{broker}/loggers"), &[]).await?;
    print(args.api.output, &list["data"].as_array().cloned().unwrap_or_default());
    Ok(Exit::Done)
}

fn print(output: Output, rows: &[Value]) {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(rows).unwrap_or_default()),
        Output::Jsonl => rows.iter().for_each(|row| println!("{row}")),
        Output::Table => {
            let fields = ["broker_id", "name", "level", "configured_level", "until_ms"];
            let cells: Vec<Vec<String>> =
                rows.iter().map(|row| fields.iter().map(|field| cell(&row[*field])).collect()).collect();
            print!("{}", table::print(&["BROKER", "LOGGER", "LEVEL", "CONFIGURED", "UNTIL-MS"], &cells));
        }
    }
}

/// Changes one logger of one broker, or of each; prints what it is then.
async fn each(
    to: &ApiArgs,
    broker: Option<i32>,
    logger: &str,
    method: Method,
    body: Option<&Value>,
) -> Result<Exit, CliError> {
    let api = Api::new(&to.url)?;
    let brokers = match broker {
        Some(broker) => vec![broker.to_string()],
        None => {
            let all = api.get("/brokers", &[]).await?;
            all["data"].as_array().into_iter().flatten().map(|one| cell(&one["broker_id"])).collect()
        }
    };
    let (mut rows, mut failed) = (Vec::new(), None);
    for id in &brokers {
        let path = format!("/brokers/{id}/loggers/{logger}");
        match api.send(method.clone(), &path, &[], body).await {
            Ok(Value::Null) => rows.push(api.get(&path, &[]).await?),
            Ok(told) => rows.push(told),
            Err(error) if brokers.len() == 1 => return Err(error),
            Err(error) => {
                eprintln!("highwater: broker {id}: {error}");
                failed.get_or_insert(error.exit);
            }
        }
    }
    print(to.output, &rows);
    Ok(match failed {
        None => Exit::Done,
        Some(_) if !rows.is_empty() => Exit::PartlyDone,
        Some(exit) => exit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(
            (seconds("90s"), seconds("10m"), seconds("2h"), seconds("1d")),
            (Ok(90), Ok(600), Ok(7_200), Ok(86_400))
        );
        for wrong in ["", "m", "10", "0s", "-1m", "10ä", "99999999999999999999s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
