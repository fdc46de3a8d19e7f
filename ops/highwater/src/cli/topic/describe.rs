//! `highwater topic describe`: rpk's sections, kafka-topics' filters.

use clap::Args;
use serde_json::{Value, json};

use super::super::http::Api;
use super::super::table::{self, cell};
use super::super::{ApiArgs, CliError, Exit, Output};

#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// All when none is named
    pub topics: Vec<String>,
    /// Size and factor; by default these and the partitions
    #[arg(short = 's', long)]
    pub print_summary: bool,
    /// Configuration
    #[arg(short = 'c', long)]
    pub print_configs: bool,
    /// Partitions
    #[arg(short = 'p', long)]
    pub print_partitions: bool,
    /// Everything
    #[arg(short = 'a', long)]
    pub print_all: bool,
    /// Only partitions with a replica out of sync
    #[arg(long)]
    pub under_replicated_partitions: bool,
    /// Only partitions with fewer in sync than min.insync.replicas
    #[arg(long)]
    pub under_min_isr_partitions: bool,
    /// Only partitions with as many in sync as min.insync.replicas
    #[arg(long)]
    pub at_min_isr_partitions: bool,
    /// Only partitions without a leader
    #[arg(long)]
    pub unavailable_partitions: bool,
    /// A topic that does not exist is no error
    #[arg(long)]
    pub if_exists: bool,
    #[command(flatten)]
    pub api: ApiArgs,
}

/// Which sections are shown.
struct Sections {
    summary: bool,
    configs: bool,
    partitions: bool,
}

impl DescribeArgs {
    /// States that the filters stand for; none: all partitions.
    fn states(&self) -> Vec<&'static str> {
        let filters = [
            (self.under_replicated_partitions, "UNDER_REPLICATED"),
            (self.under_min_isr_partitions, "UNDER_MIN_ISR"),
            (self.at_min_isr_partitions, "AT_MIN_ISR"),
            (self.unavailable_partitions, "OFFLINE"),
        ];
        filters.into_iter().filter(|(asked, _)| *asked).map(|(_, state)| state).collect()
    }

    fn sections(&self) -> Sections {
        let chosen = self.print_summary || self.print_configs || self.print_partitions;
        let filtered = !self.states().is_empty();
        Sections {
            summary: self.print_all || self.print_summary || !chosen && !filtered,
            configs: self.print_all || self.print_configs,
            partitions: self.print_all || self.print_partitions || !chosen || filtered,
        }
    }
}

/// # Errors
/// Nobody answers, or a topic does not exist.
pub async fn run(args: &DescribeArgs) -> Result<Exit, CliError> {
    let api = Api::new(&args.api.url)?;
    let everything = ["-".to_owned()];
    let named = if args.topics.is_empty() { &everything[..] } else { &args.topics };
    let mut objects = Vec::new();
    for name in named {
        match one(&api, name, args).await {
            Ok(described) => objects.extend(described),
            Err(error) if args.if_exists && error.exit == Exit::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    match args.api.output {
        Output::Table => objects.iter().for_each(|object| print!("{}", sections(object))),
        Output::Json => println!("{}", serde_json::to_string_pretty(&objects).unwrap_or_default()),
        Output::Jsonl => objects.iter().for_each(|object| println!("{object}")),
    }
    Ok(Exit::Done)
}

/// What is asked for of one topic (`-`: of all), as one object with a member per section.
async fn one(api: &Api, name: &str, args: &DescribeArgs) -> Result<Option<Value>, CliError> {
    let wanted = args.sections();
    let mut described = json!({});
    let data = |answer: Value| answer.get("data").cloned().unwrap_or_else(|| json!([answer]));
    if wanted.summary {
        let path = if name == "-" { "/topics".to_owned() } else { format!("/topics/{name}") };
        described["topics"] = data(api.get(&path, &[]).await?);
    }
    if wanted.configs {
        described["configs"] = data(api.get(&format!("/topics/{name}/configs"), &[]).await?);
    }
    if wanted.partitions {
        let states = args.states().join(",");
        let filter = [("state", states.as_str())];
        let query = if states.is_empty() { &[][..] } else { &filter };
        described["partitions"] = data(api.get(&format!("/topics/{name}/partitions/-/state"), query).await?);
    }
    Ok(Some(described))
}

fn sections(described: &Value) -> String {
    let tables: [(&str, &[&str], &[&str]); 3] = [
        (
            "topics",
            &["NAME", "PARTITIONS", "REPLICAS", "MIN ISR", "ID"],
            &["topic_name", "partitions_count", "replication_factor", "min_insync_replicas", "topic_id"],
        ),
        ("configs", &["TOPIC", "KEY", "VALUE", "SOURCE"], &["topic_name", "name", "value", "source"]),
        (
            "partitions",
            &[
                "TOPIC",
                "PARTITION",
                "LEADER",
                "EPOCH",
                "REPLICAS",
                "ISR",
                "ELR",
                "LOG-START",
                "HIGH-WATERMARK",
                "STATES",
            ],
            &[
                "topic_name",
                "partition_id",
                "leader_id",
                "leader_epoch",
                "replicas",
                "isr",
                "elr",
                "log_start_offset",
                "high_watermark",
                "states",
            ],
        ),
    ];
    let mut out = Vec::new();
    for (section, head, fields) in tables {
        let Some(rows) = described[section].as_array() else { continue };
        let cells = |row: &Value| fields.iter().map(|field| cell(&row[*field])).collect::<Vec<_>>();
        out.push(table::print(head, &rows.iter().map(cells).collect::<Vec<_>>()));
    }
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb, topic::TopicVerb};

    fn args(line: &str) -> DescribeArgs {
        let words = format!("highwater topic describe {line}");
        match Cli::parse_from(words.split_whitespace()).verb {
            Verb::Topic(TopicVerb::Describe(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn letters_choose_sections_and_filters_choose_partitions() {
        let shown = |line: &str| {
            let sections = args(line).sections();
            [(sections.summary, 's'), (sections.configs, 'c'), (sections.partitions, 'p')]
                .into_iter()
                .filter(|(shown, _)| *shown)
                .map(|(_, letter)| letter)
                .collect::<String>()
        };
        assert_eq!(shown("orders"), "sp");
        assert_eq!(shown("orders -s"), "s");
        assert_eq!(shown("orders -c -p"), "cp");
        assert_eq!(shown("orders -a"), "scp");
        assert_eq!(shown("--under-replicated-partitions"), "p");
        assert_eq!(args("--at-min-isr-partitions --unavailable-partitions").states(), ["AT_MIN_ISR", "OFFLINE"]);
    }
}
